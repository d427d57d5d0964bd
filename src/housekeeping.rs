//! Housekeeping: statistics, the forecast, history's partitions, retention. One node does it for all, the owner of shard 0.
//!
//! The duties run on tokio-cron-scheduler, by cron expressions; users' timers never pass through it. Each duty
//! is idempotent, and two nodes may run it at the same time. A duty that is still running at its next time is
//! not started again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Mutex;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Monotonic, SystemClock};
use crate::cold::{ColdStore, DAYS_AHEAD, Error, QueueDepth, RetentionStep, SCALES, Summary, Whose};
use crate::metrics::Metrics;
use crate::model::schedule::ScheduleState;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::model::{destination, queue};
use crate::ownership::Ownership;
use crate::telemetry::Streak;

/// A periodic duty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Counts live timers.
    Statistics,
    /// Counts live timers by wake time ([`Summary`]).
    Forecast,
    /// Makes history's partitions for the days ahead (PostgreSQL).
    Partitions,
    /// Removes history, attempts, replays and taken ids after their retention, and nodes after a day without a
    /// heartbeat.
    Retention,
}

impl Duty {
    /// All duties, in the order of a start.
    const ALL: [Self; 4] = [Self::Statistics, Self::Forecast, Self::Partitions, Self::Retention];

    /// Its word in metrics.
    const fn word(self) -> &'static str {
        match self {
            Self::Statistics => "statistics",
            Self::Forecast => "forecast",
            Self::Partitions => "partitions",
            Self::Retention => "retention",
        }
    }
}

/// Held while a duty runs.
type Busy = Arc<Mutex<()>>;

/// A clock that goes back by more than this was set back.
const SET_BACK: Duration = Duration::from_secs(1);

/// A scale of the forecast, and the schedules, are not counted again before so many times as long as the last count took, so
/// that it costs a 500th of a core; a scale sooner when the store has doubled or halved since.
const COUNT_PAUSE: u32 = 500;

/// A store with so few live timers is counted at every turn.
const FORECAST_SMALL: i64 = 10_000;

/// How long after a count of the forecast has failed it is tried again.
const FORECAST_RETRY: Duration = Duration::from_secs(60);

/// The most destinations whose waiting timers are shown.
const MOST_DESTINATIONS: usize = 100;

/// The most queues that are counted, of which as many as destinations are shown.
const MOST_QUEUES: usize = 1000;

/// The most waiting timers of one destination that are counted, where there are few destinations and where there are many.
const MOST_WAITING: [i64; 2] = [10_000, 1000];

/// About the most waiting timers that are counted at once.
const WAITING_AT_ONCE: i64 = 500_000;

/// The longest pause between two counts of a scale of the forecast.
const FORECAST_LONGEST: Duration = Duration::from_secs(3600);

/// The forecast as this node counted it last.
#[derive(Default)]
struct Forecast {
    summary: Option<Summary>,
    /// When each scale is to be counted next.
    next_at: [Option<Monotonic>; SCALES.len()],
    /// Nothing is counted until then: a count has failed.
    retry_at: Option<Monotonic>,
}

/// Runs the duties.
#[derive(Clone)]
pub struct Housekeeping {
    store: ColdStore,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    retention: Duration,
    forecast: Arc<Mutex<Forecast>>,
    /// When the schedules are to be counted next.
    schedules_at: Arc<Mutex<Option<Monotonic>>>,
    /// What failed in a row, by its word.
    failing: Arc<std::sync::Mutex<HashMap<&'static str, Streak>>>,
}

impl Housekeeping {
    /// Housekeeping for a store that keeps ended timers for `retention`.
    pub fn new(store: ColdStore, ownership: Arc<Ownership>, metrics: Metrics, retention: Duration) -> Self {
        let (forecast, schedules_at, failing) = Default::default();
        Self { store, ownership, metrics, retention, forecast, schedules_at, failing }
    }

    /// Runs until stopped: every duty once after the start, then by its cron expression. The scheduler goes by the machine's
    /// clock, and would wait for as long as that is set back: then there is another one.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        while !self.ownership.has_entered() && !stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let busy: HashMap<&str, Busy> = Duty::ALL.iter().map(|duty| (duty.word(), Busy::default())).collect();
        for duty in Duty::ALL {
            self.run_logged(duty).await;
        }
        while !stop.is_cancelled() {
            let mut scheduler =
                self.scheduler(&busy).await.context("the scheduler of the housekeeping cannot be started")?;
            tokio::select! {
                () = stop.cancelled() => {}
                () = clock_is_set_back(|| SystemClock.now()) => {}
            }
            scheduler.shutdown().await.context("the scheduler of the housekeeping does not stop")?;
        }
        Ok(())
    }

    /// A scheduler that has started, of jobs that are not started while they run.
    async fn scheduler(&self, busy: &HashMap<&str, Busy>) -> Result<JobScheduler, JobSchedulerError> {
        let scheduler = JobScheduler::new().await?;
        for duty in Duty::ALL {
            let cron = match duty {
                Duty::Statistics => "*/15 * * * * *".to_owned(),
                Duty::Forecast => "*/5 * * * * *".to_owned(),
                // When there is none to make, this is one look at the catalogue.
                Duty::Partitions => "45 * * * * *".to_owned(),
                Duty::Retention => every(self.retention / 2),
            };
            let (house, busy) = (self.clone(), busy.get(duty.word()).cloned().unwrap_or_default());
            let job = Job::new_async(cron.as_str(), move |_, _| {
                let (house, busy) = (house.clone(), Arc::clone(&busy));
                Box::pin(async move {
                    if let Ok(_running) = busy.try_lock() {
                        house.run_logged(duty).await;
                    }
                })
            });
            scheduler.add(job?).await?;
        }
        scheduler.start().await?;
        Ok(scheduler)
    }

    async fn run_logged(&self, duty: Duty) {
        if self.note(duty.word(), self.run_once(duty).await).is_ok() {
            let now = self.store.clock().now().get() as f64 / 1000.0;
            self.metrics.housekeeping_done.with_label_values(&[duty.word()]).set(now);
        }
    }

    /// Logs what has failed for longer than a moment, once, and when it succeeds again.
    fn note<T>(&self, what: &'static str, outcome: Result<T, Error>) -> Result<T, Error> {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let streak = failing.entry(what).or_default();
        match &outcome {
            Ok(_) if streak.succeeded() => tracing::info!(what, "the housekeeping goes on"),
            Ok(_) => {}
            Err(why) if streak.failed(self.store.is_away()) => {
                tracing::warn!(what, %why, "a part of the housekeeping fails; it is tried again at its next time");
            }
            Err(why) => tracing::debug!(what, %why, "a part of the housekeeping failed; it is tried again"),
        }
        outcome
    }

    /// Does all steps of the retention: one that fails does not keep the others from theirs. Returns the first failure.
    async fn retain(&self, now: UnixMs) -> Result<(), Error> {
        let mut outcome = Ok(());
        for step in RetentionStep::ALL {
            let cleaned = self.note(step.word(), self.store.clean_up(step, now).await);
            outcome = outcome.and(cleaned.map(drop));
        }
        let forgotten = self.note("nodes", self.store.forget_nodes().await);
        outcome = outcome.and(forgotten);
        for step in RetentionStep::ALL.into_iter().filter(|step| step.removes()) {
            let lag_ms = self.store.retention_lag_ms(step, now).await?;
            self.metrics.retention_lag.with_label_values(&[step.word()]).set(lag_ms as f64 / 1000.0);
        }
        outcome
    }

    /// Runs a duty once, if this node owns shard 0.
    pub async fn run_once(&self, duty: Duty) -> Result<(), Error> {
        if !self.ownership.is_first() {
            match duty {
                Duty::Statistics => {
                    self.show_live(0, &HashMap::new());
                    *self.schedules_at.lock().await = None;
                    self.show_schedules(&[]);
                    self.metrics.destination_waiting.reset();
                    self.show_queues(&[]);
                }
                Duty::Forecast => {
                    // What it counted gets old: should shard 0 come back, the stored summary counts.
                    *self.forecast.lock().await = Forecast::default();
                    self.show_forecast(&Summary::default());
                }
                // The lag is told by who does it.
                Duty::Retention => {
                    for step in RetentionStep::ALL.into_iter().filter(|step| step.removes()) {
                        self.metrics.retention_lag.with_label_values(&[step.word()]).set(0.0);
                    }
                }
                Duty::Partitions => {}
            }
            return Ok(());
        }
        let now = self.store.clock().now();
        match duty {
            Duty::Statistics => {
                self.show_live(self.store.ledger(Whose::All).await?.pending, &self.store.held_back().await?);
                self.show_waiting().await?;
                self.count_queues().await?;
                self.count_schedules().await?;
            }
            Duty::Forecast => self.forecast(now).await?,
            Duty::Partitions => self.store.make_partitions(now, DAYS_AHEAD).await?,
            Duty::Retention => self.retain(now).await?,
        }
        Ok(())
    }

    /// Counts the schedules, unless that took long and was done lately.
    async fn count_schedules(&self) -> Result<(), Error> {
        let mut next_at = self.schedules_at.lock().await;
        let began = Monotonic::now();
        if next_at.is_none_or(|at| at <= began) {
            self.show_schedules(&self.store.schedule_counts().await?);
            *next_at = Some(began.plus(began.elapsed() * COUNT_PAUSE));
        }
        Ok(())
    }

    /// Shows how many schedules are in each state.
    fn show_schedules(&self, counts: &[(ScheduleState, i64)]) {
        for state in ScheduleState::ALL {
            let count = counts.iter().find(|(one, _)| *one == state).map_or(0, |(_, count)| *count);
            self.metrics.schedules.with_label_values(&[state.word()]).set(count);
        }
    }

    /// Shows the destinations for which most timers wait.
    async fn show_waiting(&self) -> Result<(), Error> {
        let names: HashMap<i64, String> = self
            .store
            .destination_versions()
            .await?
            .into_keys()
            .map(|(namespace, name)| {
                (destination::lane(namespace, &name), namespace.qualified(&name).into_owned())
            })
            .collect();
        let lanes: Vec<i64> = names.keys().copied().collect();
        let [few, many] = MOST_WAITING;
        let most = (WAITING_AT_ONCE / names.len().max(1) as i64).clamp(many, few);
        let mut waiting: Vec<(i64, i64)> =
            self.store.destinations_waiting(&lanes, most).await?.into_iter().collect();
        waiting.retain(|(_, count)| *count > 0);
        waiting.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
        self.metrics.destination_waiting.reset();
        for (lane, count) in waiting.iter().take(MOST_DESTINATIONS) {
            let name = names.get(lane).map(String::as_str).unwrap_or_default();
            self.metrics.destination_waiting.with_label_values(&[name]).set(*count);
        }
        Ok(())
    }

    /// Shows the queues with the most that is ready or with workers.
    async fn count_queues(&self) -> Result<(), Error> {
        let rows = self.store.queues_of_all(MOST_QUEUES).await?;
        let lanes: Vec<i64> = rows.iter().map(|row| queue::lane(row.namespace, &row.name)).collect();
        let depths = self.store.queue_depths_now(&lanes).await?;
        let names = rows.iter().map(|row| row.namespace.qualified(&row.name));
        let mut counted: Vec<(Cow<'_, str>, QueueDepth)> = names.zip(depths).collect();
        counted.retain(|(_, depth)| depth.ready + depth.leased > 0);
        counted.sort_unstable_by_key(|(_, depth)| std::cmp::Reverse((depth.ready, depth.leased)));
        counted.truncate(MOST_DESTINATIONS);
        self.show_queues(&counted);
        Ok(())
    }

    fn show_queues(&self, counted: &[(Cow<'_, str>, QueueDepth)]) {
        let Metrics { queue_ready, queue_out, queue_oldest, .. } = &self.metrics;
        queue_ready.reset();
        queue_out.reset();
        queue_oldest.reset();
        let now = self.store.clock().now();
        for (name, depth) in counted {
            queue_ready.with_label_values(&[name]).set(depth.ready);
            queue_out.with_label_values(&[name]).set(depth.leased);
            let age = depth.oldest_ready_at.map(|at| now.since(at)).unwrap_or_default();
            queue_oldest.with_label_values(&[name]).set(age.as_secs_f64());
        }
    }

    /// Counts the scales of the forecast whose time has come.
    async fn forecast(&self, now: UnixMs) -> Result<(), Error> {
        let mut forecast = self.forecast.lock().await;
        if forecast.retry_at.is_some_and(|at| Monotonic::now() < at) {
            return Ok(());
        }
        let live = self.store.ledger(Whose::All).await?.pending;
        let Forecast { summary, next_at, retry_at } = &mut *forecast;
        let summary = match summary {
            Some(summary) => summary,
            None => {
                // What another node has counted a while ago is not counted again because this one has started. The next
                // day is.
                let stored = self.store.summary().await?.unwrap_or_default();
                for (scale, next_at) in next_at.iter_mut().enumerate().skip(1) {
                    let counted_at = stored.scale_counted_at(scale);
                    // From before the store's clock was set back: who knows how old it is.
                    let age = if counted_at > now { FORECAST_LONGEST } else { now.since(counted_at) };
                    let left = FORECAST_LONGEST.saturating_sub(age);
                    *next_at = (live > FORECAST_SMALL).then(|| Monotonic::now().plus(left));
                }
                summary.insert(stored)
            }
        };
        let mut counted = false;
        for (scale, next_at) in next_at.iter_mut().enumerate() {
            let began = Monotonic::now();
            let waits = next_at.is_some_and(|at| began < at);
            if waits && !summary.is_outgrown(scale, live) {
                continue;
            }
            let summarized = self.store.summarize(summary, scale, now, live).await;
            // A count that takes too long would take as long at the next turn, and cost as much.
            *retry_at = summarized.is_err().then(|| began.plus(FORECAST_RETRY));
            summarized?;
            counted = true;
            // What is counted in a moment anyway is counted at every turn.
            let pause = if live <= FORECAST_SMALL { Duration::ZERO } else { began.elapsed() * COUNT_PAUSE };
            *next_at = Some(Monotonic::now().plus(pause.min(FORECAST_LONGEST)));
        }
        if counted {
            self.store.put_summary(summary).await?;
        }
        self.show_forecast(summary);
        Ok(())
    }

    fn show_forecast(&self, summary: &Summary) {
        for (within, count) in summary.horizons(self.store.clock().now()) {
            self.metrics.forecast.with_label_values(&[within]).set(count);
        }
    }

    /// Shows the live timers: all, and those of them that retry or are paused.
    fn show_live(&self, pending: i64, held_back: &HashMap<State, i64>) {
        let of = |state| held_back.get(&state).copied().unwrap_or(0);
        let delivering = if pending > 0 { self.metrics.in_flight.get() } else { 0 };
        let (retrying, paused) = (of(State::Retrying), of(State::Paused));
        let scheduled = (pending - retrying - paused - delivering).max(0);
        self.metrics.pending.set(pending);
        for (state, count) in [
            (State::Scheduled, scheduled),
            (State::Delivering, delivering),
            (State::Retrying, retrying),
            (State::Paused, paused),
        ] {
            self.metrics.live.with_label_values(&[state.word()]).set(count);
        }
    }
}

/// A cron expression with about this period: at least every second, at most every ten minutes.
fn every(span: Duration) -> String {
    match span.as_secs() {
        0..=1 => "* * * * * *".to_owned(),
        seconds @ 2..=59 => format!("*/{seconds} * * * * *"),
        seconds => format!("0 */{} * * * *", (seconds / 60).min(10)),
    }
}

/// Returns when this clock has gone back, by a look each second.
async fn clock_is_set_back(now: impl Fn() -> UnixMs) {
    let mut last = now();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let this = now();
        if this.plus(SET_BACK) < last {
            return;
        }
        last = this;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_back_is_found_and_one_that_goes_on_or_jumps_ahead_is_not() {
        let began = tokio::time::Instant::now();
        let shows = |step_at: u64, back_at: u64| {
            move || {
                let passed = began.elapsed().as_secs();
                let ahead = if (step_at..back_at).contains(&passed) { 28_800 } else { 0 };
                UnixMs::new(0).plus(Duration::from_secs(1_000_000 + passed + ahead))
            }
        };
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, clock_is_set_back(shows(600, u64::MAX))).await.expect_err("it goes on");
        let began = began.elapsed().as_secs();
        let found = tokio::time::timeout(hour, clock_is_set_back(shows(began + 100, began + 200))).await;
        found.expect("it is found");
    }

    #[test]
    fn every_span_has_an_expression_that_the_scheduler_takes() {
        for (seconds, cron) in [
            (0, "* * * * * *"),
            (1, "* * * * * *"),
            (45, "*/45 * * * * *"),
            (60, "0 */1 * * * *"),
            (302_400, "0 */10 * * * *"),
        ] {
            let expression = every(Duration::from_secs(seconds));
            assert_eq!(expression, cron);
            assert!(Job::new_async(expression.as_str(), |_, _| Box::pin(async {})).is_ok(), "{cron}");
        }
    }
}

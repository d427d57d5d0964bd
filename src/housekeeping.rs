//! Housekeeping: statistics, the forecast, history's partitions, retention. One node does it for all, the owner of shard 0.
//!
//! The duties run on tokio-cron-scheduler, by cron expressions; users' timers never pass through it. Each duty
//! is idempotent, and two nodes may run it at the same time. A duty that is still running at its next time is
//! not started again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Mutex;
use tokio_cron_scheduler::{Job, JobScheduler};
use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, DAYS_AHEAD, Error, Summary};
use crate::metrics::Metrics;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::ownership::Ownership;

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

/// A forecast is not counted again before so many times as long as the last count took: it costs at most a
/// 500th of a core.
const FORECAST_PAUSE: u32 = 500;

/// A store with so few live timers is counted at every turn.
const FORECAST_SMALL: usize = 10_000;

/// About so many timers are counted by one statement.
const FORECAST_STEP: usize = 250_000;

/// The longest pause between two counts of the forecast.
const FORECAST_LONGEST: Duration = Duration::from_secs(600);

/// Runs the duties.
#[derive(Clone)]
pub struct Housekeeping {
    store: ColdStore,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    retention: Duration,
    /// When the forecast is to be counted next.
    forecast_at: Arc<Mutex<Option<Monotonic>>>,
}

impl Housekeeping {
    /// Housekeeping for a store that keeps ended timers for `retention`.
    pub fn new(store: ColdStore, ownership: Arc<Ownership>, metrics: Metrics, retention: Duration) -> Self {
        Self { store, ownership, metrics, retention, forecast_at: Arc::default() }
    }

    /// Runs until stopped: every duty once after the start, then by its cron expression.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let failed = "the scheduler of the housekeeping cannot be started";
        let mut scheduler = JobScheduler::new().await.context(failed)?;
        for duty in Duty::ALL {
            let cron = match duty {
                Duty::Statistics => "*/15 * * * * *".to_owned(),
                Duty::Forecast => "*/5 * * * * *".to_owned(),
                Duty::Partitions => "0 7 * * * *".to_owned(),
                Duty::Retention => every(self.retention / 2),
            };
            let (house, busy) = (self.clone(), Arc::new(Mutex::new(())));
            let job = Job::new_async(cron.as_str(), move |_, _| {
                let (house, busy) = (house.clone(), Arc::clone(&busy));
                Box::pin(async move {
                    if let Ok(_running) = busy.try_lock() {
                        house.run_logged(duty).await;
                    }
                })
            });
            scheduler.add(job.context(failed)?).await.context(failed)?;
        }
        while !self.ownership.has_entered() && !stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for duty in Duty::ALL {
            self.run_logged(duty).await;
        }
        scheduler.start().await.context(failed)?;
        stop.cancelled().await;
        scheduler.shutdown().await.context("the scheduler of the housekeeping does not stop")
    }

    async fn run_logged(&self, duty: Duty) {
        match self.run_once(duty).await {
            Ok(()) => {
                let now = self.store.clock().now().get() as f64 / 1000.0;
                self.metrics.housekeeping_done.with_label_values(&[duty.word()]).set(now);
            }
            Err(why) => {
                tracing::debug!(%why, ?duty, "a duty of the housekeeping failed; it is tried again at its next time");
            }
        }
    }

    /// Runs a duty once, if this node owns shard 0.
    pub async fn run_once(&self, duty: Duty) -> Result<(), Error> {
        if !self.ownership.is_first() {
            match duty {
                Duty::Statistics => self.show_live(0, &HashMap::new()),
                Duty::Forecast => self.show_forecast(&Summary::default()),
                Duty::Partitions | Duty::Retention => {}
            }
            return Ok(());
        }
        let now = self.store.clock().now();
        match duty {
            Duty::Statistics => {
                self.show_live(self.store.tally().await?.pending, &self.store.held_back().await?)
            }
            Duty::Forecast => self.forecast(now).await?,
            Duty::Partitions => self.store.make_partitions(now, DAYS_AHEAD).await?,
            Duty::Retention => {
                self.store.clean_up(now).await?;
                self.store.forget_nodes().await?;
            }
        }
        Ok(())
    }

    /// Counts the forecast, unless it was counted a moment ago.
    async fn forecast(&self, now: UnixMs) -> Result<(), Error> {
        let mut next_at = self.forecast_at.lock().await;
        if next_at.is_some_and(|at| Monotonic::now() < at) {
            return Ok(());
        }
        let began = Monotonic::now();
        let mut summary = Summary::starting(now);
        let shards: Vec<i32> = self.store.shards().collect();
        let live = usize::try_from(self.store.tally().await?.pending).unwrap_or(0);
        let at_once = (shards.len() * FORECAST_STEP / live.max(1)).clamp(1, shards.len());
        for shards in shards.chunks(at_once) {
            self.store.summarize(shards, now, &mut summary).await?;
        }
        self.store.put_summary(now, &summary).await?;
        self.show_forecast(&summary);
        // What is counted in a moment anyway is counted at every turn.
        let pause = if live <= FORECAST_SMALL { Duration::ZERO } else { began.elapsed() * FORECAST_PAUSE };
        *next_at = Some(Monotonic::now().plus(pause.min(FORECAST_LONGEST)));
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

#[cfg(test)]
mod tests {
    use super::*;

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

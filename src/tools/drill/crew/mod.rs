//! Workers of a queue, beside the load: what they are to fetch, and the workers themselves.
//!
//! In `worker-kill` they are killed in the middle of their work, hang up, or settle when their lease has ended; a worker
//! that was killed comes back under its name, or another comes. In `lease-storm` hundreds of them begin to wait, hang up
//! and come again ([`storm`]), while a few go on fetching.

mod desk;
mod storm;
mod worker;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cluster::Cluster;
use super::history::{Affected, Fault, Looks, Micros, Places, Recorder, Terms};
use super::load::Callers;
use super::plan::TAIL_MS;
use super::{Drill, Options, wait_until};
use crate::model::time::UnixMs;
use desk::Desk;

/// Of so many timers a second of the load there is one for the queue beside it.
const RATE_BY_LOAD: u32 = 5;
/// Of so many timers a second of the load there is one worker in `worker-kill`: most of them wait.
const WORKERS_BY_LOAD: u32 = 2;
/// How many they are, at least and at most.
const WORKERS: Range<u32> = 30..600;
/// How many go on fetching in `lease-storm`.
const PATIENT: u32 = 10;
/// How long workers have what they fetch.
const LEASE_US: Micros = 2_000_000;
/// How soon a worker has what is due, though it may be given to some first that hang up. Where workers die, all that are
/// left may be busy.
const WITHIN_US: Micros = 1_500_000;
const WITHIN_BUSY_US: Micros = 5_000_000;
/// The longest time from a registration to its due time; short, so that they are due as steadily as they are registered.
const AHEAD_MS: Range<i64> = 500..6000;

/// A timer for the queue; times are milliseconds since the load began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Task {
    asked_at: i64,
    due_at: i64,
    places: Places,
    cancel_at: Option<i64>,
}

/// What workers did that rehearses a failure.
#[derive(Debug, Default)]
struct Deeds {
    killed: AtomicU64,
    overslept: AtomicU64,
    hung_up: AtomicU64,
    /// Answers that were written to a worker that had hung up.
    unread: AtomicU64,
}

/// What all workers know.
struct Team {
    desk: Desk,
    recorder: Arc<Recorder>,
    deeds: Deeds,
    /// The number of the next new name.
    next: AtomicU32,
    stop: CancellationToken,
    /// When workers do harm.
    harm: Range<Micros>,
}

/// The timers of a drill for its queue, and who fetches them.
pub struct Crew {
    drill: Drill,
    first: u32,
    tasks: Vec<Task>,
    seed: u64,
    workers: u32,
}

/// Workers at work.
pub struct AtWork {
    drill: Drill,
    team: Arc<Team>,
    registering: JoinHandle<()>,
    working: TaskTracker,
}

impl Crew {
    /// Those of a drill; `None` if it has no queue. The timers' numbers begin at `first`.
    pub fn of(drill: Drill, first: u32, seed: u64, options: &Options) -> Option<Self> {
        let workers = match drill {
            Drill::WorkerKill => (options.rate / WORKERS_BY_LOAD).clamp(WORKERS.start, WORKERS.end),
            Drill::LeaseStorm => PATIENT,
            _ => return None,
        };
        let tasks = tasks(drill, seed, (options.rate / RATE_BY_LOAD).max(5), options.seconds);
        Some(Self { drill, first, tasks, seed, workers })
    }

    /// Adds their terms to those of all timers.
    pub fn add_terms(&self, terms: &mut Vec<Terms>) {
        terms.resize(self.first as usize, Terms::default());
        terms.extend(self.tasks.iter().map(|task| Terms { places: Some(task.places), ..Terms::default() }));
    }

    /// Begins: timers are registered as planned, and workers come.
    pub fn begin(
        self,
        cluster: &Cluster,
        callers: &Arc<Callers>,
        recorder: &Arc<Recorder>,
        began_us: Micros,
        harm: Range<Micros>,
    ) -> anyhow::Result<AtWork> {
        let team = Arc::new(Team {
            desk: Desk::new(cluster.listening())?,
            recorder: Arc::clone(recorder),
            deeds: Deeds::default(),
            next: AtomicU32::new(self.workers),
            stop: CancellationToken::new(),
            harm,
        });
        let working = TaskTracker::new();
        for n in 0..self.workers {
            let rng = SmallRng::seed_from_u64(self.seed ^ (u64::from(n) << 32));
            let is_bad = self.drill == Drill::WorkerKill;
            working.spawn(worker::work(Arc::clone(&team), n, rng, is_bad));
        }
        if self.drill == Drill::LeaseStorm {
            working.spawn(storm::rage(Arc::clone(&team), cluster.listening(), self.seed));
        }
        working.close();
        let callers = Arc::clone(callers);
        let (drill, first, tasks) = (self.drill, self.first, self.tasks);
        let registering = tokio::spawn(async move { register(callers, first, tasks, began_us).await });
        Ok(AtWork { drill, team, registering, working })
    }
}

impl AtWork {
    /// Whether every timer is registered, and every cancel answered.
    pub fn is_registered(&self) -> bool {
        self.registering.is_finished()
    }

    /// Ends. Returns what the workers did, as a fault.
    pub async fn end(self) -> anyhow::Result<Fault> {
        self.team.stop.cancel();
        self.working.wait().await;
        self.registering.await?;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Deeds { killed, overslept, hung_up, unread } = &self.team.deeds;
        let (killed, overslept, hung_up, unread) = (of(killed), of(overslept), of(hung_up), of(unread));
        let (kind, landed) = match self.drill {
            Drill::WorkerKill => (
                "workers killed",
                (killed > 0 && overslept > 0).then(|| {
                    format!(
                        "{killed} killed at work, {hung_up} hung up, {overslept} settled after their lease"
                    )
                }),
            ),
            _ => (
                "storm of workers",
                (hung_up > 0).then(|| {
                    let looks = self.team.recorder.looks();
                    let sum = |of: fn(&Looks) -> u64| looks.iter().map(of).sum::<u64>();
                    let (calls, most) = (sum(|one| one.calls), sum(|one| one.most));
                    format!(
                        "{hung_up} hung up while they waited, {unread} with an answer on its way; nodes asked the store \
                         {calls} times, at most {most}"
                    )
                }),
            ),
        };
        let Range { start: from_us, end: until_us } = self.team.harm;
        Ok(Fault { kind, affected: Affected::Callers, from_us, until_us, landed })
    }
}

async fn register(callers: Arc<Callers>, first: u32, tasks: Vec<Task>, began_us: Micros) {
    let calls = TaskTracker::new();
    for (number, task) in (first..).zip(tasks) {
        wait_until(began_us + task.asked_at * 1000).await;
        let callers = Arc::clone(&callers);
        calls.spawn(async move {
            let due_ms = began_us / 1000 + task.due_at;
            let cancel_us = task.cancel_at.map(|at| began_us + at * 1000);
            callers.task(number, due_ms, &timer(due_ms, task.places), cancel_us).await;
        });
    }
    calls.close();
    calls.wait().await;
}

/// The request that registers one. Its attempts are more than a drill can use up.
fn timer(due_ms: i64, places: Places) -> Value {
    json!({
        "fire_at": UnixMs::new(due_ms).rfc3339(),
        "target": { "queue": desk::QUEUE },
        "retry": { "attempts": 100 },
        "dispatch": { "times": places.times, "repeat": places.repeat },
        "data": { "drill": true },
    })
}

/// The timers of a drill, in the order of their registration.
fn tasks(drill: Drill, seed: u64, rate: u32, seconds: u32) -> Vec<Task> {
    // Other random numbers than those of plan and schedule.
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x0c4e_77a1);
    let last = i64::from(seconds) * 1000 + TAIL_MS;
    let count = i64::from(rate) * i64::from(seconds);
    let one = |number: i64| {
        let asked_at = number * 1000 / i64::from(rate);
        let due_at = (asked_at + rng.random_range(AHEAD_MS)).min(last);
        let is_kill = drill == Drill::WorkerKill;
        let times = if is_kill { [1, 1, 2, 4][rng.random_range(0..4)] } else { 1 };
        let places = Places {
            times,
            repeat: is_kill && rng.random_bool(0.3),
            is_all_seen: !is_kill,
            within_us: if is_kill { WITHIN_BUSY_US } else { WITHIN_US },
        };
        // Half of the cancels come while workers have it, or have had it.
        let is_cancelled = is_kill && rng.random_bool(0.25);
        let cancel_at = is_cancelled.then(|| (due_at + rng.random_range(-600..900)).max(asked_at));
        Task { asked_at, due_at, places, cancel_at }
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_crew_and_all_is_due_soon_after_the_load() {
        let tasks = |drill, seed| super::tasks(drill, seed, 50, 20);
        for drill in [Drill::WorkerKill, Drill::LeaseStorm] {
            assert_eq!(tasks(drill, 1), tasks(drill, 1));
            assert_ne!(tasks(drill, 1), tasks(drill, 2));
            assert!(tasks(drill, 1).iter().all(|task| task.due_at <= 20_000 + TAIL_MS), "{drill:?}");
            assert_eq!(tasks(drill, 1).len(), 1000);
        }
    }

    #[test]
    fn every_kind_of_timer_is_among_those_whose_workers_die() {
        let tasks = tasks(Drill::WorkerKill, 1, 50, 20);
        let count = |is: fn(&Task) -> bool| tasks.iter().filter(|task| is(task)).count();
        assert!(count(|task| task.places.times > 1) > 300);
        assert!(count(|task| task.places.repeat) > 200);
        assert!(count(|task| task.cancel_at.is_some_and(|at| at > task.due_at)) > 100);
        assert!(count(|task| task.cancel_at.is_some_and(|at| at < task.due_at)) > 50);
    }
}

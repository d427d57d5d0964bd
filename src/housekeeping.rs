//! Housekeeping: statistics, history's partitions, retention. One node does it for all, the owner of shard 0.
//!
//! The duties run on tokio-cron-scheduler, by cron expressions; users' timers never pass through it. Each duty
//! is idempotent, and two nodes may run it at the same time. A duty that is still running at its next time is
//! not started again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Mutex;
use tokio_cron_scheduler::{Job, JobScheduler};
use tokio_util::sync::CancellationToken;

use crate::cold::{ColdStore, DAYS_AHEAD, Error};
use crate::metrics::Metrics;
use crate::ownership::Ownership;

/// A periodic duty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Counts live timers.
    Statistics,
    /// Makes history's partitions for the days ahead (PostgreSQL).
    Partitions,
    /// Removes history, attempts, replays and taken ids after their retention, and nodes after a day without a
    /// heartbeat.
    Retention,
}

/// Runs the duties.
#[derive(Clone)]
pub struct Housekeeping {
    store: ColdStore,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    retention: Duration,
}

impl Housekeeping {
    /// Housekeeping for a store that keeps ended timers for `retention`.
    pub fn new(store: ColdStore, ownership: Arc<Ownership>, metrics: Metrics, retention: Duration) -> Self {
        Self { store, ownership, metrics, retention }
    }

    /// Runs until stopped: every duty once after the start, then by its cron expression.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let failed = "the scheduler of the housekeeping cannot be started";
        let mut scheduler = JobScheduler::new().await.context(failed)?;
        let duties =
            [(Duty::Statistics, "*/15 * * * * *".to_owned()), (Duty::Partitions, "0 7 * * * *".to_owned())];
        let retention = (Duty::Retention, every(self.retention / 2));
        for (duty, cron) in duties.into_iter().chain([retention]) {
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
        for duty in [Duty::Statistics, Duty::Partitions, Duty::Retention] {
            self.run_logged(duty).await;
        }
        scheduler.start().await.context(failed)?;
        stop.cancelled().await;
        scheduler.shutdown().await.context("the scheduler of the housekeeping does not stop")
    }

    async fn run_logged(&self, duty: Duty) {
        if let Err(why) = self.run_once(duty).await {
            self.metrics.store_errors.inc();
            tracing::debug!(%why, ?duty, "a duty of the housekeeping failed; it is tried again at its next time");
        }
    }

    /// Runs a duty once, if this node owns shard 0.
    pub async fn run_once(&self, duty: Duty) -> Result<(), Error> {
        if !self.ownership.is_first() {
            if duty == Duty::Statistics {
                self.metrics.pending.set(0);
            }
            return Ok(());
        }
        let now = self.store.clock().now();
        match duty {
            Duty::Statistics => self.metrics.pending.set(self.store.pending().await?),
            Duty::Partitions => self.store.make_partitions(now, DAYS_AHEAD).await?,
            Duty::Retention => {
                self.store.clean_up(now).await?;
                self.store.forget_nodes().await?;
            }
        }
        Ok(())
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

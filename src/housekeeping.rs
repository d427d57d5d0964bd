//! What one node does for all now and then: partitions, retention, statistics. Every step may be repeated,
//! and doing it on two nodes at once does no harm; the owner of shard 0 does it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, DAYS_AHEAD, Error};
use crate::metrics::Metrics;
use crate::ownership::Ownership;

/// How often live timers are counted.
const COUNT_EVERY: Duration = Duration::from_secs(15);

/// Keeps house.
pub struct Housekeeping {
    store: ColdStore,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    /// How often what has had its time is removed.
    clean_every: Duration,
    cleaned_at: Option<Monotonic>,
}

impl Housekeeping {
    /// Housekeeping for a store whose ended timers stay for `retention`.
    pub fn new(store: ColdStore, ownership: Arc<Ownership>, metrics: Metrics, retention: Duration) -> Self {
        let clean_every = (retention / 2).clamp(Duration::from_secs(1), Duration::from_secs(600));
        Self { store, ownership, metrics, clean_every, cleaned_at: None }
    }

    /// Keeps house until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let tick = COUNT_EVERY.min(self.clean_every);
        loop {
            if let Err(why) = self.run_once().await {
                self.metrics.store_errors.inc();
                tracing::debug!(%why, "housekeeping put off");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(tick) => {}
            }
        }
    }

    /// One round, if this node is the one to do it.
    pub async fn run_once(&mut self) -> Result<(), Error> {
        if !self.ownership.is_first() {
            self.metrics.pending.set(0);
            return Ok(());
        }
        self.metrics.pending.set(self.store.pending().await?);
        if self.cleaned_at.is_none_or(|at| at.elapsed() >= self.clean_every) {
            let now = self.store.clock().now();
            self.store.make_partitions(now, DAYS_AHEAD).await?;
            self.store.clean_up(now).await?;
            self.store.forget_nodes().await?;
            self.cleaned_at = Some(Monotonic::now());
        }
        Ok(())
    }
}

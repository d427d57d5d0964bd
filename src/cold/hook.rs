//! What surrounds every call to the database: its measurement, and the simulation's fail point.
//!
//! In builds with the feature `planted` a store may have a [`FailPoint`]
//! ([`super::ColdStore::with_fail_point`]). It runs before and after every call, and can delay the call, fail
//! it, or replace its answer by an error.

use super::Error;
use crate::clock::Monotonic;
use crate::metrics::Metrics;

#[cfg(feature = "planted")]
use futures::future::BoxFuture;

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Reads, outside any transaction.
    Read,
    /// Writes, as a transaction of its own.
    Write,
    /// Begins a transaction that may write.
    Begin,
    /// One statement of a transaction.
    Within,
    /// Commits a transaction.
    Commit,
}

/// Runs before and after every call to the database.
#[cfg(feature = "planted")]
pub trait FailPoint: Send + Sync {
    /// Runs before a call. An error is returned instead of making the call.
    fn before(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>>;

    /// Runs after a call. An error is returned instead of its answer.
    fn after(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>>;

    /// Runs when a transaction has begun. The value returned is dropped when the transaction ends.
    fn begin(&self) -> Box<dyn std::any::Any + Send + Sync>;
}

/// What surrounds the calls of a store.
#[derive(Clone, Default)]
pub(super) struct Hook {
    /// Where calls are counted; `None` outside a server.
    pub metrics: Option<Metrics>,
    #[cfg(feature = "planted")]
    pub point: Option<std::sync::Arc<dyn FailPoint>>,
}

/// The fail point's value for a transaction, dropped when it ends.
pub(super) struct TxMark(
    #[cfg(feature = "planted")]
    #[expect(dead_code, reason = "kept until it is dropped")]
    Option<Box<dyn std::any::Any + Send + Sync>>,
);

impl Hook {
    /// Makes a call and measures it. `name` is that of the statement.
    pub async fn run<T>(
        &self,
        call: Call,
        name: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(metrics) = &self.metrics else { return self.between(call, name, work).await };
        let began = Monotonic::now();
        let answer = self.between(call, name, work).await;
        // A value that the database refuses is no failure of the database.
        let failed = answer.as_ref().is_err_and(|why| !why.is_data() && !why.is_duplicate());
        metrics.stored("cold", operation(name), began.elapsed(), failed);
        answer
    }

    /// Makes a call, between the two halves of the fail point.
    #[cfg(feature = "planted")]
    async fn between<T>(
        &self,
        call: Call,
        name: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(point) = &self.point else { return work.await };
        point.before(call, name).await?;
        let answer = work.await;
        point.after(call, name).await?;
        answer
    }

    /// Makes a call.
    #[cfg(not(feature = "planted"))]
    async fn between<T>(
        &self,
        _: Call,
        _: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        work.await
    }

    /// Marks the beginning of a transaction.
    pub fn begin(&self) -> TxMark {
        #[cfg(feature = "planted")]
        return TxMark(self.point.as_ref().map(|point| point.begin()));
        #[cfg(not(feature = "planted"))]
        return TxMark();
    }
}

/// The operation that a statement belongs to, as a word in metrics.
fn operation(name: &str) -> &'static str {
    match name {
        "begin" => "begin",
        "commit" => "commit",
        "claim" | "early" => "claim",
        "due" | "postpone" | "bring_claims_back" | "bring_retries_back" => "sweep",
        "scan" | "raise_watermarks" | "set_wheel" | "shard_rows" => "scan",
        "enter" | "renew" | "take_over" | "recall" | "give_up" | "leave" | "heartbeat"
        | "heartbeat_alive" | "bring_beats_back" | "bring_leases_back" | "end_old_waits" => "lease",
        "reserve_slots" => "slots",
        "lease_terms" | "lease_own" | "lease_lock" | "lease_ready" | "lease_update" | "lease_data"
        | "ended_leases" | "ready_audiences" | "tell_ready" => "lease_items",
        "park" => "sweep",
        name if name.starts_with("outbox") || name.contains("subscription") => "outbox",
        "count" => "finish",
        name if name.starts_with("register") => "register",
        name if name.starts_with("apply") || name == "amend_record" => "apply",
        name if name.starts_with("end") => "finish",
        name if name.contains("schedule") || name.contains("skips") => "schedules",
        "find_many" | "list" | "ledger" | "verify" | "verify_timeout" | "clock" | "forecast" | "reports" => {
            "query"
        }
        _ => "housekeeping",
    }
}

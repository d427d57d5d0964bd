//! Fail points: the simulation's hook around every call to the database.
//!
//! In builds with the feature `planted` a store may have a [`FailPoint`]
//! ([`super::ColdStore::with_fail_point`]). It runs before and after every call, and can delay the call, fail
//! it, or replace its answer by an error. In other builds a [`Hook`] is empty and runs the call alone.

use super::Error;

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

/// A fail point, or none.
#[derive(Clone, Default)]
pub(super) struct Hook {
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
    /// Makes a call, between the two halves of the fail point.
    #[cfg(feature = "planted")]
    pub async fn run<T>(
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
    pub fn run<T, W: Future<Output = Result<T, Error>>>(&self, _: Call, _: &'static str, work: W) -> W {
        work
    }

    /// Marks the beginning of a transaction.
    pub fn begin(&self) -> TxMark {
        #[cfg(feature = "planted")]
        return TxMark(self.point.as_ref().map(|point| point.begin()));
        #[cfg(not(feature = "planted"))]
        return TxMark();
    }
}

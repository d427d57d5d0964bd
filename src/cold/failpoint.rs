//! The way from this room's statements to the database, on which the simulation can stand.
//!
//! With the feature `planted` a store can be looked at through a [`Gate`] ([`super::ColdStore::through`]): it
//! is asked before every call and told after it, and may hold the call, fail it, or lose its answer. Without
//! the feature there is no gate and no trace of one.

use super::Error;

#[cfg(feature = "planted")]
use futures::future::BoxFuture;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Reads, on its own.
    Read,
    /// Writes, as a transaction of its own.
    Write,
    /// Begins a transaction that may write.
    Begin,
    /// One statement of a transaction.
    Within,
    /// Ends a transaction.
    Commit,
}

/// Stands before the database.
#[cfg(feature = "planted")]
pub trait Gate: Send + Sync {
    /// A call wants to pass. An error takes the place of the call.
    fn before(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>>;

    /// The call is done. An error takes the place of its answer.
    fn after(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>>;

    /// A transaction has begun; what is returned is dropped when it is over.
    fn begun(&self) -> Box<dyn std::any::Any + Send + Sync>;
}

/// The way, with a gate on it or without.
#[derive(Clone, Default)]
pub(super) struct Way {
    #[cfg(feature = "planted")]
    pub gate: Option<std::sync::Arc<dyn Gate>>,
}

/// Lasts as long as a transaction.
pub(super) struct Begun(
    #[cfg(feature = "planted")]
    #[expect(dead_code, reason = "held for its end")]
    Option<Box<dyn std::any::Any + Send + Sync>>,
);

impl Way {
    /// Makes a call.
    #[cfg(feature = "planted")]
    pub async fn pass<T>(
        &self,
        call: Call,
        name: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(gate) = &self.gate else { return work.await };
        gate.before(call, name).await?;
        let done = work.await;
        gate.after(call, name).await?;
        done
    }

    /// Makes a call.
    #[cfg(not(feature = "planted"))]
    pub fn pass<T, W: Future<Output = Result<T, Error>>>(&self, _: Call, _: &'static str, work: W) -> W {
        work
    }

    /// A transaction has begun.
    pub fn begun(&self) -> Begun {
        #[cfg(feature = "planted")]
        return Begun(self.gate.as_ref().map(|gate| gate.begun()));
        #[cfg(not(feature = "planted"))]
        return Begun();
    }
}

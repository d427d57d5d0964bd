//! Keeps the set of subscriptions that this node writes events for, and waits until every node has taken a change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, Identity, Subscribed, SubscriptionRow};
use crate::model::namespace::Namespace;
use crate::telemetry::Streak;

/// The pause after the set could not be read.
const AGAIN: Duration = Duration::from_millis(250);

/// The pause between two looks whether every node has taken a change.
const LOOK: Duration = Duration::from_millis(20);

/// Beyond a lease, within which a node that does not answer is out, so long a change is waited for.
const PATIENCE: Duration = Duration::from_secs(7);

/// A subscription was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// It is so now.
    pub row: SubscriptionRow,
    /// There was none of this name.
    pub is_new: bool,
    /// The live nodes that do not write events for it yet, after a wait; none, unless something is wrong.
    pub behind: BTreeSet<String>,
}

/// The outcome of writing a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutOutcome {
    /// It was written.
    Done(Put),
    /// There is no such destination.
    NoDestination,
    /// The store has as many as it takes.
    Full,
}

/// The subscriptions, as this node works with them.
pub struct Subscriptions {
    store: ColdStore,
    me: Identity,
    lease: Duration,
    /// The version that this node works with.
    taken: watch::Sender<i64>,
}

impl Subscriptions {
    /// The subscriptions of a store, for a node whose leases are so long.
    pub fn new(store: ColdStore, me: Identity, lease: Duration) -> Self {
        Self { store, me, lease, taken: watch::Sender::new(-1) }
    }

    /// Takes the set as it is.
    pub async fn take(&self) -> Result<(), Error> {
        let version = self.store.take_subscriptions(&self.me).await?;
        self.taken.send_if_modified(|taken| std::mem::replace(taken, version) != version);
        Ok(())
    }

    /// Takes every change of the set. Runs until dropped.
    pub async fn follow(self: Arc<Self>) {
        let mut streak = Streak::default();
        loop {
            self.store.subscriptions_changed().await;
            while let Err(why) = self.take().await {
                if streak.failed(self.store.is_away()) {
                    tracing::warn!(%why, "subscriptions cannot be read; events are written for those that are known");
                }
                self.store.clock().sleep(AGAIN).await;
            }
            streak.succeeded();
        }
    }

    /// Completes when this node has taken another set.
    pub fn changes(&self) -> watch::Receiver<i64> {
        self.taken.subscribe()
    }

    /// Writes a subscription, new or in place of the one of this name, and returns when every live node writes events for
    /// it: from then on it misses nothing.
    pub async fn put(
        &self,
        namespace: Namespace,
        name: &str,
        destination: &str,
        settings: &str,
    ) -> Result<PutOutcome, Error> {
        let store = self.store.within(namespace);
        let (row, is_new, version) = match store.put_subscription(name, destination, settings).await? {
            Subscribed::Done(row, is_new, version) => (row, is_new, version),
            Subscribed::NoDestination => return Ok(PutOutcome::NoDestination),
            Subscribed::Full => return Ok(PutOutcome::Full),
        };
        let behind = self.until_taken(version).await?;
        Ok(PutOutcome::Done(Put { row, is_new, behind }))
    }

    /// Removes a subscription; returns whether there was one of this name.
    pub async fn remove(&self, namespace: Namespace, name: &str) -> Result<bool, Error> {
        let Some(version) = self.store.within(namespace).remove_subscription(name).await? else {
            return Ok(false);
        };
        // Not for the others: what they still write for it is removed with the rest.
        self.taken_here(version, Monotonic::now().plus(PATIENCE)).await;
        Ok(true)
    }

    /// Waits until this node has taken this version; returns whether it has.
    async fn taken_here(&self, version: i64, until: Monotonic) -> bool {
        self.store.look_at_subscriptions();
        let mut taken = self.taken.subscribe();
        let wait = async { taken.wait_for(|taken| *taken >= version).await.is_ok() };
        tokio::time::timeout(until.since(Monotonic::now()), wait).await.unwrap_or(false)
    }

    /// Waits until every live node works with this version, or long enough; returns those that do not.
    async fn until_taken(&self, version: i64) -> Result<BTreeSet<String>, Error> {
        let until = Monotonic::now().plus(self.lease + PATIENCE);
        if !self.taken_here(version, until).await {
            return Ok(BTreeSet::from([self.me.name.clone()]));
        }
        let lease_ms = i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX);
        loop {
            let behind = self.store.behind(version, lease_ms).await?;
            if behind.is_empty() || Monotonic::now() >= until {
                return Ok(behind);
            }
            self.store.clock().sleep(LOOK).await;
        }
    }
}

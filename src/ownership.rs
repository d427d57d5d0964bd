//! Ownership: which shards this node owns, and for how long it may act as their owner.
//!
//! The store's clock decides when a lease expires. The node counts a lease on its own monotonic clock, from
//! *before* it sent the renewal, so for the node the lease expires first. [`Ownership::valid`] is checked just
//! before every send; the claim itself compares the epoch in the store. It also asks the store's clock: one that has
//! jumped forward has ended the lease, and another node may have the shard.
//!
//! A node hands over what it owns beyond its fair share, and at a stop everything. The words:
//!
//! | word | meaning |
//! |---|---|
//! | ceding | The shard is about to be ceded. For a moment the timers that fall due in it within [`CEDING_REACH`] are claimed already, so that they are sent in time however long the next owner's take-over lasts. |
//! | ceded | This node no longer claims, promotes or counts the shard. What it claimed before may still be sent, for no longer than the lease would have run. |
//! | given up | The store has recorded it: `owner` is NULL, and another node can take the shard over at once. |
//! | spared | Claims under the epoch that was given up, or an older one (`shards.spared`): the next owner does not recall them. They end by their token, or expire. |
//! | recalled | Claims of a crashed owner: they are due again at once. |
//!
//! Invariant: a shard is ceded here before the store records it, and no other node can own it earlier.

mod round;

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Monotonic;
use crate::cold::Identity;
use crate::model::id::{Epoch, Uid};
use crate::model::time::UnixMs;
use crate::model::timer::Token;
use crate::planted::{Defect, Planted};

pub use round::Round;

/// How far ahead of their due time the timers of a shard that is being ceded are claimed. The wheels have
/// handed at least as much to the last mile ([`crate::hot::AHEAD_MS`]).
pub const CEDING_REACH: Duration = Duration::from_millis(500);

/// A round that waits for a moment begins so much after it.
const JUST_AFTER: Duration = Duration::from_millis(5);

/// When a lease ends, as far as this node knows.
#[derive(Debug, Clone, Copy)]
struct Lease {
    /// By this node's monotonic clock: before it does by the store's.
    until: Monotonic,
    /// By the store's clock, a little later than it does.
    until_there: UnixMs,
}

impl Lease {
    fn runs(&self) -> bool {
        Monotonic::now() < self.until
    }
}

#[derive(Debug, Clone, Copy)]
struct Held {
    epoch: Epoch,
    lease: Lease,
    /// Whether it is about to be ceded.
    ceding: bool,
    /// Whether the claims of crashed owners have been recalled.
    recalled: bool,
}

/// A shard that was ceded.
#[derive(Debug, Clone, Copy)]
struct Ceded {
    shard: i32,
    epoch: Epoch,
    /// Claims under this epoch may be sent until then.
    lease: Lease,
    /// Whether the store has recorded it.
    given_up: bool,
}

/// The shards of a node.
#[derive(Debug, Default)]
struct Shards {
    held: BTreeMap<i32, Held>,
    /// The incarnations of the nodes that were alive in the last round, by name.
    alive: BTreeMap<String, String>,
    ceded: Vec<Ceded>,
    /// When the next of the other nodes counts as dead, if it sends no further heartbeat.
    next_dead_at: Option<Monotonic>,
    /// Attempts that were recalled and that the sweep has not fetched yet.
    recalled: Vec<(Uid, Token)>,
    /// By how much the store's clock was set back, in milliseconds, as far as the sweep has not fetched it yet.
    set_back_ms: Option<i64>,
}

/// The shards of this node.
#[derive(Debug)]
pub struct Ownership {
    me: Identity,
    lease: Duration,
    /// No other node can open the store, so a lease that was not renewed in time stays valid.
    exclusive: bool,
    shards: usize,
    own: RwLock<Shards>,
    entered: AtomicBool,
    /// How many nodes were alive in the last round, this one included.
    alive: AtomicUsize,
    /// Whether this node had less than its share at the end of the last round.
    short: AtomicBool,
    /// The owned shards have changed.
    changed: Notify,
    /// Shards are about to be ceded.
    ceding: Notify,
    /// Claims were recalled.
    recalling: Notify,
    planted: Planted,
}

impl Ownership {
    /// A node that owns no shard yet.
    ///
    /// `exclusive`: no other node can open the store (SQLite); then a late renewal of the lease has no effect.
    pub fn new(me: Identity, lease: Duration, shards: u16, exclusive: bool) -> Self {
        let shards = usize::from(shards);
        Self {
            me,
            lease,
            exclusive,
            shards,
            own: RwLock::default(),
            entered: AtomicBool::new(false),
            alive: AtomicUsize::new(1),
            short: AtomicBool::new(false),
            changed: Notify::new(),
            ceding: Notify::new(),
            recalling: Notify::new(),
            planted: Planted::default(),
        }
    }

    /// The same, with this planted defect.
    pub fn with(mut self, planted: Planted) -> Self {
        self.planted = planted;
        self
    }

    /// The identity of this node.
    pub const fn me(&self) -> &Identity {
        &self.me
    }

    /// Whether the first round is done. A node may own no shard after it: there can be more nodes than shards.
    pub fn has_entered(&self) -> bool {
        self.entered.load(Ordering::SeqCst)
    }

    /// The attempts that were recalled since the last call.
    pub fn take_recalled(&self) -> Vec<(Uid, Token)> {
        self.lock_write(|own| std::mem::take(&mut own.recalled))
    }

    /// By how much the store's clock was set back at most, in milliseconds, if that was found out since the last call:
    /// claims and retries in the store then lie so far ahead.
    pub fn take_set_back(&self) -> Option<i64> {
        self.lock_write(|own| own.set_back_ms.take())
    }

    /// The next round recalls the claims of crashed owners in all shards again.
    pub fn recall_again(&self) {
        self.lock_write(|own| own.held.values_mut().for_each(|one| one.recalled = false));
    }

    /// Completes when claims were recalled, or the store's clock was set back.
    pub async fn recalled(&self) {
        self.recalling.notified().await;
    }

    /// The shards that may be swept and claimed now, in order.
    pub fn claimable(&self) -> Vec<(i32, Epoch)> {
        self.lock_read(|own| {
            let valid = own.held.iter().filter(|(_, one)| one.lease.runs());
            valid.map(|(shard, one)| (*shard, one.epoch)).collect()
        })
    }

    /// The shards of this node, in order, also those whose lease was not renewed in time.
    pub fn kept(&self) -> Vec<(i32, Epoch)> {
        self.lock_read(|own| own.held.iter().map(|(shard, one)| (*shard, one.epoch)).collect())
    }

    /// The epoch to claim under, if this shard may be claimed now.
    pub fn begin(&self, shard: i32) -> Option<Epoch> {
        self.lock_read(|own| {
            own.held.get(&shard).filter(|one| self.is_running(&one.lease)).map(|one| one.epoch)
        })
    }

    /// Whether this node owns the shard under this epoch, as far as it can know. False as soon as the shard is
    /// ceded.
    pub fn owns(&self, shard: i32, epoch: Epoch) -> bool {
        self.begin(shard) == Some(epoch)
    }

    /// Whether claims under this epoch may be sent: while this node owns the shard, and after it was ceded for
    /// as long as the lease would have run, at most five seconds. `now` is the store's time.
    pub fn valid(&self, shard: i32, epoch: Epoch, now: UnixMs) -> bool {
        if self.planted.is(Defect::ClaimWithoutEpoch) {
            return true;
        }
        self.lock_read(|own| {
            let held = own.held.get(&shard).filter(|one| one.epoch == epoch).map(|one| &one.lease);
            let ceded = own.ceded.iter().find(|one| (one.shard, one.epoch) == (shard, epoch));
            let lease = held.or(ceded.map(|one| &one.lease));
            lease.is_some_and(|lease| lease.runs() && now < lease.until_there)
        })
    }

    /// Whether a lease has not expired.
    fn is_running(&self, lease: &Lease) -> bool {
        lease.runs() || self.planted.is(Defect::ClaimWithoutEpoch)
    }

    /// Completes when the owned shards have changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Completes when shards are about to be ceded.
    pub async fn ceding(&self) {
        self.ceding.notified().await;
    }

    /// Whether this shard is about to be ceded.
    pub fn is_ceding(&self, shard: i32) -> bool {
        self.lock_read(|own| own.held.get(&shard).is_some_and(|one| one.ceding))
    }

    /// Whether other nodes were alive in the last round.
    pub fn has_peers(&self) -> bool {
        self.alive.load(Ordering::SeqCst) > 1
    }

    /// Whether this node had less than its share at the end of the last round: others have more than theirs, or
    /// the leases of a node that has died have not expired.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::SeqCst)
    }

    /// How long to wait before the next round: a third of the lease, or less if another node counts as dead
    /// earlier.
    pub fn rest(&self) -> Duration {
        let next_dead_at = self.lock_read(|own| own.next_dead_at);
        let until_dead = next_dead_at.map(|at| at.since(Monotonic::now()) + JUST_AFTER);
        until_dead.map_or(self.lease / 3, |wait| wait.min(self.lease / 3))
    }

    /// How many shards this node owns.
    pub fn count(&self) -> usize {
        self.lock_read(|own| own.held.len())
    }

    /// Whether this node owns shard 0: its owner does what only one node should do.
    pub fn is_first(&self) -> bool {
        self.claimable().first().is_some_and(|(shard, _)| *shard == 0)
    }

    fn lock_read<T>(&self, read: impl FnOnce(&Shards) -> T) -> T {
        // A panic while the lock is held leaves plain data, which stays usable.
        read(&self.own.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn lock_write<T>(&self, write: impl FnOnce(&mut Shards) -> T) -> T {
        write(&mut self.own.write().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_by_the_stores_clock_too() {
        let me = Identity { name: "n".into(), incarnation: "1".into(), address: "127.0.0.1:1".into() };
        let ownership = Ownership::new(me, Duration::from_secs(3), 4, false);
        let until_there = UnixMs::new(10_000);
        let lease = Lease { until: Monotonic::now().plus(Duration::from_secs(60)), until_there };
        let held = Held { epoch: Epoch(7), lease, ceding: false, recalled: true };
        ownership.own.write().expect("no panic").held.insert(2, held);
        let valid = |epoch, now| ownership.valid(2, Epoch(epoch), UnixMs::new(now));
        assert!(valid(7, 9999));
        assert!(!valid(7, 10_000), "the store's clock has jumped past its end");
        assert!(!valid(6, 9999), "another epoch");
        assert!(!ownership.valid(3, Epoch(7), UnixMs::new(0)), "another shard");
    }
}

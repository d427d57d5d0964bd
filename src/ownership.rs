//! Which shards this node owns, and for how long it may believe so.
//!
//! The store's clock judges leases; the node counts its own on monotonic time from *before* it asked for the
//! renewal, so it stops believing before the store does. Excess shards are drained first and handed over
//! when nothing of theirs is in flight. [`Ownership::valid`] is asked before every claim and once more just
//! before every send; the store asks the epoch again in the claim itself.

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, Identity};
use crate::model::id::Epoch;
use crate::planted::{Defect, Planted};

#[derive(Debug, Clone, Copy)]
struct Held {
    epoch: Epoch,
    valid_until: Monotonic,
    draining: bool,
    /// Whether what an older epoch had claimed has been made due again.
    recalled: bool,
}

/// The shards of this node.
#[derive(Debug)]
pub struct Ownership {
    me: Identity,
    lease: Duration,
    /// Nobody else can open the store, so a lease that could not be renewed in time is nobody's loss.
    alone: bool,
    shards: usize,
    held: RwLock<BTreeMap<i32, Held>>,
    in_flight: Vec<AtomicUsize>,
    entered: AtomicBool,
    /// Nodes that beat, this one included, as of the last round.
    alive: AtomicUsize,
    planted: Planted,
}

/// What one round of [`Ownership::run_once`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Shards newly owned.
    pub taken: Vec<i32>,
    /// Shards that another node has taken.
    pub lost: Vec<i32>,
    /// Shards handed over.
    pub given_up: Vec<i32>,
    /// Attempts of dead owners that are due again.
    pub recalled: u64,
    /// Another process runs under this node's name: stop.
    pub usurped: bool,
}

impl Ownership {
    /// A node that owns nothing yet.
    ///
    /// `alone`: the store cannot be shared (SQLite); then a late renewal of the lease changes nothing.
    pub fn new(me: Identity, lease: Duration, shards: u16, alone: bool) -> Self {
        let shards = usize::from(shards);
        Self {
            me,
            lease,
            alone,
            shards,
            held: RwLock::default(),
            in_flight: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            entered: AtomicBool::new(false),
            alive: AtomicUsize::new(1),
            planted: Planted::default(),
        }
    }

    /// The same, with this defect built in.
    pub fn with(mut self, planted: Planted) -> Self {
        self.planted = planted;
        self
    }

    /// Who this node is.
    pub const fn me(&self) -> &Identity {
        &self.me
    }

    /// The first step after a start: takes the name, then at once the shards that stand under it.
    pub async fn enter(&self, store: &ColdStore) -> Result<Round, Error> {
        store.enter(&self.me).await?;
        let round = self.round(store, true, |_| 0).await?;
        self.entered.store(true, Ordering::SeqCst);
        Ok(round)
    }

    /// Whether the first round is done. A node may own nothing after it: there can be more nodes than shards.
    pub fn has_entered(&self) -> bool {
        self.entered.load(Ordering::SeqCst)
    }

    /// One round: sign of life, renewal, hand-over of what is too much, take-over of what is free. `cursor`
    /// tells how far a shard's wheels have been handed over, which the renewal keeps.
    pub async fn run_once(&self, store: &ColdStore, cursor: impl Fn(i32) -> i64) -> Result<Round, Error> {
        self.round(store, false, cursor).await
    }

    async fn round(
        &self,
        store: &ColdStore,
        own_too: bool,
        cursor: impl Fn(i32) -> i64,
    ) -> Result<Round, Error> {
        let lease_ms = i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX);
        let mut round = Round::default();
        let beat = store.beat(&self.me, lease_ms).await?;
        self.alive.store(beat.alive, Ordering::SeqCst);
        if beat.usurped {
            self.lock_write(BTreeMap::clear);
            return Ok(Round { usurped: true, ..round });
        }
        let asked_at = Monotonic::now();
        let before: Vec<(i32, Epoch)> = self.all();
        let kept = store.renew(&self.me, &before, cursor, lease_ms).await?;
        round.lost = before.iter().map(|(shard, _)| *shard).filter(|shard| !kept.contains(shard)).collect();
        self.lock_write(|held| {
            held.retain(|shard, _| !round.lost.contains(shard));
            for shard in &kept {
                if let Some(one) = held.get_mut(shard) {
                    one.valid_until = self.valid_until(asked_at);
                }
            }
        });

        let fair = self.shards.div_ceil(beat.alive);
        round.given_up = self.hand_over(store, fair).await?;
        let room = fair.saturating_sub(self.all().len());
        if room > 0 || own_too {
            round.taken = self.take(store, room, own_too, lease_ms).await?;
        }
        round.recalled = self.recall(store).await?;
        Ok(round)
    }

    fn valid_until(&self, asked_at: Monotonic) -> Monotonic {
        asked_at.plus(if self.alone { Duration::MAX } else { self.lease })
    }

    /// Marks what is over the fair share as draining, and gives up what has drained.
    async fn hand_over(&self, store: &ColdStore, fair: usize) -> Result<Vec<i32>, Error> {
        let idle: Vec<(i32, Epoch)> = self.lock_write(|held| {
            for (place, one) in held.values_mut().enumerate() {
                one.draining = place >= fair;
            }
            let drained = |shard: i32| self.counter(shard).is_none_or(|n| n.load(Ordering::SeqCst) == 0);
            held.iter()
                .filter(|(shard, one)| one.draining && drained(**shard))
                .map(|(s, one)| (*s, one.epoch))
                .collect()
        });
        // Draining since before this round, or nothing could have been claimed in between: `begin` refuses.
        store.give_up(&self.me, &idle).await?;
        self.lock_write(|held| held.retain(|shard, _| !idle.iter().any(|(given_up, _)| given_up == shard)));
        Ok(idle.into_iter().map(|(shard, _)| shard).collect())
    }

    async fn take(
        &self,
        store: &ColdStore,
        room: usize,
        own_too: bool,
        lease_ms: i64,
    ) -> Result<Vec<i32>, Error> {
        let asked_at = Monotonic::now();
        let room = if own_too { room.max(1) } else { room };
        let taken = store.take(&self.me, room, own_too, lease_ms).await?;
        let valid_until = self.valid_until(asked_at);
        self.lock_write(|held| {
            for (shard, epoch) in &taken {
                held.insert(*shard, Held { epoch: *epoch, valid_until, draining: false, recalled: false });
            }
        });
        Ok(taken.into_iter().map(|(shard, _)| shard).collect())
    }

    /// Makes due again what dead owners had claimed in shards that are new here; tried until it is done.
    async fn recall(&self, store: &ColdStore) -> Result<u64, Error> {
        let open: Vec<(i32, Epoch)> = self.lock_read(|held| {
            held.iter().filter(|(_, one)| !one.recalled).map(|(shard, one)| (*shard, one.epoch)).collect()
        });
        let recalled = store.recall(&open).await?;
        self.lock_write(|held| {
            for (shard, epoch) in &open {
                if let Some(one) = held.get_mut(shard).filter(|one| one.epoch == *epoch) {
                    one.recalled = true;
                }
            }
        });
        Ok(recalled)
    }

    /// Shards that may be swept and claimed now.
    pub fn claimable(&self) -> Vec<(i32, Epoch)> {
        let now = Monotonic::now();
        self.lock_read(|held| {
            held.iter()
                .filter(|(_, one)| !one.draining && now < one.valid_until)
                .map(|(shard, one)| (*shard, one.epoch))
                .collect()
        })
    }

    /// Shards that are this node's and not being handed over, whether or not the lease could be renewed.
    pub fn kept(&self) -> Vec<(i32, Epoch)> {
        self.lock_read(|held| {
            held.iter().filter(|(_, one)| !one.draining).map(|(shard, one)| (*shard, one.epoch)).collect()
        })
    }

    /// Counts an attempt of this shard as in flight, if it may be claimed now; tells the epoch to claim under.
    /// The caller ends it with [`Ownership::end`].
    pub fn begin(&self, shard: i32) -> Option<Epoch> {
        // Counted while the lock is held, so that a hand-over sees either the count or a claim refused.
        self.lock_read(|held| {
            let one = held.get(&shard).filter(|one| !one.draining && self.holds_still(one))?;
            self.counter(shard)?.fetch_add(1, Ordering::SeqCst);
            Some(one.epoch)
        })
    }

    /// The attempt is over and recorded.
    pub fn end(&self, shard: i32) {
        if let Some(count) = self.counter(shard) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether this node still owns the shard under this epoch, as far as it can know.
    pub fn valid(&self, shard: i32, epoch: Epoch) -> bool {
        if self.planted.is(Defect::ClaimWithoutEpoch) {
            return true;
        }
        self.lock_read(|held| held.get(&shard).is_some_and(|one| one.epoch == epoch && self.holds_still(one)))
    }

    /// Whether the lease has not run out.
    fn holds_still(&self, one: &Held) -> bool {
        Monotonic::now() < one.valid_until || self.planted.is(Defect::ClaimWithoutEpoch)
    }

    /// The last step of a stop: gives all shards up and takes the node off the list.
    pub async fn leave(&self, store: &ColdStore) -> Result<(), Error> {
        let all = self.all();
        self.lock_write(BTreeMap::clear);
        store.give_up(&self.me, &all).await?;
        store.leave(&self.me).await
    }

    /// Whether other nodes were alive at the last round.
    pub fn has_company(&self) -> bool {
        self.alive.load(Ordering::SeqCst) > 1
    }

    /// How many shards this node owns.
    pub fn count(&self) -> usize {
        self.lock_read(BTreeMap::len)
    }

    /// Whether this node owns shard 0, whose owner does what one node should do.
    pub fn is_first(&self) -> bool {
        self.claimable().first().is_some_and(|(shard, _)| *shard == 0)
    }

    fn all(&self) -> Vec<(i32, Epoch)> {
        self.lock_read(|held| held.iter().map(|(shard, one)| (*shard, one.epoch)).collect())
    }

    fn counter(&self, shard: i32) -> Option<&AtomicUsize> {
        self.in_flight.get(usize::try_from(shard).ok()?)
    }

    fn lock_read<T>(&self, read: impl FnOnce(&BTreeMap<i32, Held>) -> T) -> T {
        // A panic while holding the lock leaves plain data; go on with it.
        read(&self.held.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn lock_write<T>(&self, write: impl FnOnce(&mut BTreeMap<i32, Held>) -> T) -> T {
        write(&mut self.held.write().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

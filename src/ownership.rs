//! Which shards this node owns, and for how long it may believe so.
//!
//! The store's clock judges leases; the node counts its own on monotonic time from *before* it asked for the
//! renewal, so it stops believing before the store does. [`Ownership::valid`] is asked just before every send;
//! the store asks the epoch again in the claim itself.
//!
//! What is over the fair share, and at a stop everything, is *ceded*: handed over in order, at once, while
//! attempts are still under way. From that moment nothing more of the shard is claimed, promoted or counted on
//! here. What was claimed before may still be sent, for no longer than the lease would have run: the store
//! notes the ceded epoch, and the next owner leaves its claims alone. They end by their token, or run out.
//! For a moment before, the shard is *parting*: what falls due in it within half a second is claimed already
//! ([`PARTING_REACH`]), so that it goes out in time whatever the next owner's take-over takes.
//!
//! Invariant: a shard is ceded here before the store hears of it, and nobody else can have it before.

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, Identity};
use crate::model::id::{Epoch, Uid};
use crate::model::timer::Token;
use crate::planted::{Defect, Planted};

/// The longest that what was claimed before a shard was ceded may wait to be sent: longer than it waits for
/// its due time and for a place, and well within the life of a claim.
const LAST_SENDS: Duration = Duration::from_secs(5);

/// How far ahead a shard is claimed that is about to be handed over. The wheels have handed out at least as
/// much of it ([`crate::hot::AHEAD_MS`]).
pub const PARTING_REACH: Duration = Duration::from_millis(500);

/// How long that takes: a claim, on a machine that has something to do.
const PARTING: Duration = Duration::from_millis(50);

/// A moment counts as over when so much more has passed.
const JUST_AFTER: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
struct Held {
    epoch: Epoch,
    valid_until: Monotonic,
    /// Whether it is about to be handed over.
    parting: bool,
    /// Whether what crashed owners had claimed has been made due again.
    recalled: bool,
}

/// A shard that is handed over.
#[derive(Debug, Clone, Copy)]
struct Ceded {
    shard: i32,
    epoch: Epoch,
    /// What was claimed under this epoch may be sent until here.
    valid_until: Monotonic,
    /// Whether the store knows.
    told: bool,
}

/// The shards of a node.
#[derive(Debug, Default)]
struct Shards {
    held: BTreeMap<i32, Held>,
    /// Nodes that were alive in the last round, by name, with their incarnations.
    alive: BTreeMap<String, String>,
    ceded: Vec<Ceded>,
    /// When the next of the other nodes counts as dead, if it is not heard of again.
    next_dead_at: Option<Monotonic>,
    /// Attempts of crashed owners that are due again, and that nobody has seen to yet.
    recalled: Vec<(Uid, Token)>,
}

/// The shards of this node.
#[derive(Debug)]
pub struct Ownership {
    me: Identity,
    lease: Duration,
    /// Nobody else can open the store, so a lease that could not be renewed in time is nobody's loss.
    alone: bool,
    shards: usize,
    own: RwLock<Shards>,
    entered: AtomicBool,
    /// Nodes that beat, this one included, as of the last round.
    alive: AtomicUsize,
    /// Whether the last round left this node with less than its share.
    short: AtomicBool,
    /// Shards came or went.
    changed: Notify,
    /// Shards are about to go.
    parting: Notify,
    /// Attempts of crashed owners are due again.
    recalling: Notify,
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
    pub superseded: bool,
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
            own: RwLock::default(),
            entered: AtomicBool::new(false),
            alive: AtomicUsize::new(1),
            short: AtomicBool::new(false),
            changed: Notify::new(),
            parting: Notify::new(),
            recalling: Notify::new(),
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
        let beat_at = Monotonic::now();
        let beat = store.beat(&self.me, lease_ms).await?;
        self.alive.store(beat.alive.len(), Ordering::SeqCst);
        if beat.superseded {
            self.lock_write(|own| *own = Shards::default());
            self.changed.notify_one();
            return Ok(Round { superseded: true, ..round });
        }
        let asked_at = Monotonic::now();
        let before = self.kept();
        let kept = store.renew(&self.me, &before, cursor, lease_ms).await?;
        round.lost = before.iter().map(|(shard, _)| *shard).filter(|shard| !kept.contains(shard)).collect();
        self.lock_write(|own| {
            own.held.retain(|shard, _| !round.lost.contains(shard));
            for shard in &kept {
                if let Some(one) = own.held.get_mut(shard) {
                    one.valid_until = self.valid_until(asked_at);
                }
            }
        });

        let fair = fair_share(self.shards, beat.alive.len(), beat.rank(&self.me.name));
        let left = beat.next_dead_ms.map(|left| Duration::from_millis(left.try_into().unwrap_or(0)));
        self.note_alive(beat.alive, left.map(|left| beat_at.plus(left)));
        if self.count() > fair {
            // What crashed owners left is seen to before the next owner is told to leave it alone.
            round.recalled += self.recall(store).await?;
            self.part(store, fair).await;
            self.cede(fair);
        }
        round.given_up = self.hand_over(store).await?;
        let room = fair.saturating_sub(self.count());
        if room > 0 || own_too {
            round.taken = self.take(store, room, own_too, lease_ms).await?;
        }
        self.short.store(self.count() < fair, Ordering::SeqCst);
        if !(round.taken.is_empty() && round.lost.is_empty() && round.given_up.is_empty()) {
            self.changed.notify_one();
        }
        round.recalled += self.recall(store).await?;
        Ok(round)
    }

    /// When a node is gone, what it had ceded and was still sending is looked for in all shards.
    fn note_alive(&self, alive: BTreeMap<String, String>, next_dead_at: Option<Monotonic>) {
        self.lock_write(|own| {
            if own.alive.iter().any(|(name, incarnation)| alive.get(name) != Some(incarnation)) {
                own.held.values_mut().for_each(|one| one.recalled = false);
            }
            own.alive = alive;
            own.next_dead_at = next_dead_at;
        });
    }

    fn valid_until(&self, asked_at: Monotonic) -> Monotonic {
        asked_at.plus(if self.alone { Duration::MAX } else { self.lease })
    }

    /// Lets what falls due next in all shards but the first `keep` be claimed before they are ceded. Without
    /// another node there is nobody to take them over in a moment.
    async fn part(&self, store: &ColdStore, keep: usize) {
        if self.alone || !self.has_company() {
            return;
        }
        self.lock_write(|own| own.held.values_mut().skip(keep).for_each(|one| one.parting = true));
        self.parting.notify_one();
        store.clock().sleep(PARTING).await;
    }

    /// From here on nothing more of these shards is claimed: of those that are held, the first `keep` stay.
    fn cede(&self, keep: usize) {
        let last = Monotonic::now().plus(LAST_SENDS);
        self.lock_write(|own| {
            let over: Vec<i32> = own.held.keys().copied().skip(keep).collect();
            for shard in over {
                if let Some(Held { epoch, valid_until, .. }) = own.held.remove(&shard) {
                    own.ceded.push(Ceded { shard, epoch, valid_until: valid_until.min(last), told: false });
                }
            }
        });
        self.changed.notify_one();
    }

    /// Tells the store what is ceded; tried again in every round, for an answer that was lost leaves open
    /// whether it knows. Returns what it gave up just now.
    async fn hand_over(&self, store: &ColdStore) -> Result<Vec<i32>, Error> {
        let open: Vec<(i32, Epoch)> = self.lock_write(|own| {
            own.ceded.retain(|one| !one.told || Monotonic::now() < one.valid_until);
            own.ceded.iter().filter(|one| !one.told).map(|one| (one.shard, one.epoch)).collect()
        });
        let given_up = match self.alone {
            // Nobody waits for these shards, and what could not be recorded is to come again at the next start.
            true => store.give_up_sparing_nothing(&self.me, &open).await?,
            false => store.give_up(&self.me, &open).await?,
        };
        self.lock_write(|own| {
            for one in own.ceded.iter_mut().filter(|one| open.contains(&(one.shard, one.epoch))) {
                one.told = true;
            }
        });
        Ok(given_up)
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
        self.lock_write(|own| {
            for (shard, epoch) in &taken {
                own.held.insert(*shard, Held { epoch: *epoch, valid_until, parting: false, recalled: false });
            }
        });
        Ok(taken.into_iter().map(|(shard, _)| shard).collect())
    }

    /// Makes due again what crashed owners had claimed in shards that are new here; tried until it is done.
    async fn recall(&self, store: &ColdStore) -> Result<u64, Error> {
        let open: Vec<(i32, Epoch)> = self.lock_read(|own| {
            own.held.iter().filter(|(_, one)| !one.recalled).map(|(shard, one)| (*shard, one.epoch)).collect()
        });
        let lease_ms = i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX);
        let recalled = store.recall(&open, lease_ms).await?;
        let count = recalled.len() as u64;
        self.lock_write(|own| {
            own.recalled.extend(recalled);
            for (shard, epoch) in &open {
                if let Some(one) = own.held.get_mut(shard).filter(|one| one.epoch == *epoch) {
                    one.recalled = true;
                }
            }
        });
        if count > 0 {
            self.recalling.notify_one();
        }
        Ok(count)
    }

    /// Attempts of crashed owners that have become due again since this was asked last.
    pub fn take_recalled(&self) -> Vec<(Uid, Token)> {
        self.lock_write(|own| std::mem::take(&mut own.recalled))
    }

    /// Completes when there are such.
    pub async fn recalled(&self) {
        self.recalling.notified().await;
    }

    /// Shards that may be swept and claimed now, in order.
    pub fn claimable(&self) -> Vec<(i32, Epoch)> {
        let now = Monotonic::now();
        self.lock_read(|own| {
            let valid = own.held.iter().filter(|(_, one)| now < one.valid_until);
            valid.map(|(shard, one)| (*shard, one.epoch)).collect()
        })
    }

    /// Shards that are this node's, whether or not the lease could be renewed, in order.
    pub fn kept(&self) -> Vec<(i32, Epoch)> {
        self.lock_read(|own| own.held.iter().map(|(shard, one)| (*shard, one.epoch)).collect())
    }

    /// The epoch to claim under, if this shard may be claimed now.
    pub fn begin(&self, shard: i32) -> Option<Epoch> {
        self.lock_read(|own| {
            own.held.get(&shard).filter(|one| self.holds_still(one.valid_until)).map(|one| one.epoch)
        })
    }

    /// Whether this node owns the shard under this epoch, as far as it can know. False from the moment at which
    /// it is ceded.
    pub fn owns(&self, shard: i32, epoch: Epoch) -> bool {
        self.begin(shard) == Some(epoch)
    }

    /// Whether what was claimed under this epoch may be sent: while the shard is this node's, and when it was
    /// ceded, while its lease would have run.
    pub fn valid(&self, shard: i32, epoch: Epoch) -> bool {
        if self.planted.is(Defect::ClaimWithoutEpoch) {
            return true;
        }
        let same = |one: &&Ceded| (one.shard, one.epoch) == (shard, epoch);
        self.owns(shard, epoch)
            || self.lock_read(|own| {
                own.ceded.iter().find(same).is_some_and(|one| Monotonic::now() < one.valid_until)
            })
    }

    /// Whether the lease has not run out.
    fn holds_still(&self, valid_until: Monotonic) -> bool {
        Monotonic::now() < valid_until || self.planted.is(Defect::ClaimWithoutEpoch)
    }

    /// Takes the node off the list and hands all its shards over. The list first: whoever learns of the shards
    /// then finds this node's share among his own. Tried again, it goes on where it failed.
    pub async fn leave(&self, store: &ColdStore) -> Result<(), Error> {
        self.recall(store).await?;
        self.part(store, 0).await;
        self.cede(0);
        store.leave(&self.me).await?;
        self.hand_over(store).await.map(drop)
    }

    /// Completes when shards have come or gone since it was last asked.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Completes when shards are about to be handed over.
    pub async fn parting(&self) {
        self.parting.notified().await;
    }

    /// Whether this shard is about to be handed over.
    pub fn is_parting(&self, shard: i32) -> bool {
        self.lock_read(|own| own.held.get(&shard).is_some_and(|one| one.parting))
    }

    /// Whether other nodes were alive at the last round.
    pub fn has_company(&self) -> bool {
        self.alive.load(Ordering::SeqCst) > 1
    }

    /// Whether the last round left this node with less than its share: others hold more than theirs, or one
    /// has died whose leases still run.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::SeqCst)
    }

    /// How long to rest before the next round: a third of the lease, or until a node that was not heard of for
    /// almost a lease counts as dead.
    pub fn rest(&self) -> Duration {
        let next_dead_at = self.lock_read(|own| own.next_dead_at);
        let left = next_dead_at.map(|at| at.since(Monotonic::now()) + JUST_AFTER);
        left.map_or(self.lease / 3, |left| left.min(self.lease / 3))
    }

    /// How many shards this node owns.
    pub fn count(&self) -> usize {
        self.lock_read(|own| own.held.len())
    }

    /// Whether this node owns shard 0, whose owner does what one node should do.
    pub fn is_first(&self) -> bool {
        self.claimable().first().is_some_and(|(shard, _)| *shard == 0)
    }

    fn lock_read<T>(&self, read: impl FnOnce(&Shards) -> T) -> T {
        // A panic while holding the lock leaves plain data; go on with it.
        read(&self.own.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn lock_write<T>(&self, write: impl FnOnce(&mut Shards) -> T) -> T {
        write(&mut self.own.write().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// How many of the shards are the `rank`th node's, counted from 0, of `alive`: as many as anybody's, or one
/// more, and all together exactly all.
fn fair_share(shards: usize, alive: usize, rank: usize) -> usize {
    shards / alive + usize::from(rank < shards % alive)
}

#[cfg(test)]
mod tests {
    use super::fair_share;

    #[test]
    fn fair_shares_differ_by_one_at_most_and_leave_nothing_over() {
        for (shards, alive) in [(64, 1), (64, 3), (64, 4), (64, 10), (64, 63), (4, 6), (1024, 7)] {
            let shares: Vec<usize> = (0..alive).map(|rank| fair_share(shards, alive, rank)).collect();
            assert_eq!(shares.iter().sum::<usize>(), shards);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }
}

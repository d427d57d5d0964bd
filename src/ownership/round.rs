//! The rounds of ownership: heartbeat, renewal, hand-over, take-over, recall.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Ceded, Held, Lease, Ownership, Shards};
use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, FUTURE_MS};
use crate::model::id::Epoch;

/// How long after a shard was ceded its claims may still be sent, at most. Longer than an attempt waits for its
/// due time and for its lane, and well within the life of a claim.
const LAST_SENDS: Duration = Duration::from_secs(5);

/// How long a shard is ceding: the time of a claim on a busy machine.
const CEDING: Duration = Duration::from_millis(50);

/// What one round did ([`Ownership::run_once`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Shards taken over.
    pub taken: Vec<i32>,
    /// Shards that another node has taken over.
    pub lost: Vec<i32>,
    /// Shards given up.
    pub given_up: Vec<i32>,
    /// How many claims were recalled.
    pub recalled: u64,
    /// Another process has taken this node's name: this one must stop.
    pub superseded: bool,
    /// The store's clock was set back, by so many milliseconds at most; 0 if it was not.
    pub set_back_ms: i64,
    /// The store went back in time: it was restored. What fell due since is held, and all shards are free.
    pub restored: bool,
}

impl Ownership {
    /// The first round after a start: takes the name, and takes over the shards that are owned under it.
    pub async fn enter(&self, store: &ColdStore) -> Result<Round, Error> {
        store.enter(&self.me).await?;
        let round = self.round(store, true, |_| 0).await?;
        self.entered.store(true, Ordering::SeqCst);
        Ok(round)
    }

    /// One round: heartbeat, renewal of the leases, hand-over of shards beyond the fair share, take-over of
    /// free ones. `cursor` returns how far a shard's wheels were handed over; the renewal stores it.
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
        let beat = store.heartbeat(&self.me, lease_ms).await?;
        self.alive.store(beat.alive.len(), Ordering::SeqCst);
        if beat.superseded {
            self.lock_write(|own| *own = Shards::default());
            self.changed.notify_one();
            return Ok(Round { superseded: true, ..round });
        }
        if beat.went_back {
            store.hold().await?;
            let lost = self.lock_write(|own| std::mem::take(own).held.into_keys().collect());
            self.changed.notify_one();
            return Ok(Round { restored: true, lost, ..round });
        }
        // A clock that was ahead for less than a third of a lease may have left claims, and no lease.
        let set_back_ms = beat.lease_excess_ms.max(store.clock().take_set_back_ms());
        if set_back_ms > FUTURE_MS {
            round.set_back_ms = set_back_ms + lease_ms;
            // First, because the clock tells of it once, and what follows may fail.
            self.lock_write(|own| own.set_back_ms = own.set_back_ms.max(Some(round.set_back_ms)));
            store.bring_leases_back(lease_ms).await?;
            match store.end_old_waits().await {
                Ok(0) => {}
                Ok(ended) => tracing::warn!(
                    ended,
                    "sessions of the database waited by the clock before it was set back"
                ),
                Err(why) => {
                    tracing::warn!(%why, "waits by the clock before it was set back may last as long as the step")
                }
            }
            self.recalling.notify_one();
        }
        let asked_at = Monotonic::now();
        let before = self.kept();
        let kept = store.renew(&self.me, &before, cursor, lease_ms).await?;
        round.lost = before.iter().map(|(shard, _)| *shard).filter(|shard| !kept.contains(shard)).collect();
        let lease = self.lease_from(asked_at, store);
        self.lock_write(|own| {
            own.held.retain(|shard, _| !round.lost.contains(shard));
            for shard in &kept {
                if let Some(one) = own.held.get_mut(shard) {
                    one.lease = lease;
                }
            }
        });

        let fair = fair_share(self.shards, beat.alive.len(), beat.rank(&self.me.name));
        let next_dead = beat.next_dead_ms.map(|ms| Duration::from_millis(ms.try_into().unwrap_or(0)));
        self.note_alive(beat.alive, next_dead.map(|after| beat_at.plus(after)));
        if self.count() > fair {
            // The next owner spares all older claims, so those of crashed owners are recalled before.
            round.recalled += self.recall(store).await?;
            self.announce_ceding(store, fair).await;
            self.cede(fair);
        }
        round.given_up = self.give_up(store).await?;
        let missing = fair.saturating_sub(self.count());
        if missing > 0 || own_too {
            round.taken = self.take_over(store, missing, own_too, lease_ms).await?;
        }
        self.short.store(self.count() < fair, Ordering::SeqCst);
        if !(round.taken.is_empty() && round.lost.is_empty() && round.given_up.is_empty()) {
            self.changed.notify_one();
        }
        round.recalled += self.recall(store).await?;
        Ok(round)
    }

    /// Sets the nodes that are alive. When one has died or was restarted, claims are recalled in all shards
    /// again: it may have ceded some of them with attempts under way.
    fn note_alive(&self, alive: BTreeMap<String, String>, next_dead_at: Option<Monotonic>) {
        self.lock_write(|own| {
            if own.alive.iter().any(|(name, incarnation)| alive.get(name) != Some(incarnation)) {
                own.held.values_mut().for_each(|one| one.recalled = false);
            }
            own.alive = alive;
            own.next_dead_at = next_dead_at;
        });
    }

    /// The lease that was asked for at that moment and has just been given.
    fn lease_from(&self, asked_at: Monotonic, store: &ColdStore) -> Lease {
        let length = if self.exclusive { Duration::MAX } else { self.lease };
        Lease { until: asked_at.plus(length), until_there: store.clock().now().plus(length) }
    }

    /// Marks all shards but the first `keep` as ceding, and waits until the timers that fall due next in them
    /// can be claimed. Not without another node, which could take them over.
    async fn announce_ceding(&self, store: &ColdStore, keep: usize) {
        if self.exclusive || !self.has_peers() {
            return;
        }
        self.lock_write(|own| own.held.values_mut().skip(keep).for_each(|one| one.ceding = true));
        self.ceding.notify_one();
        store.clock().sleep(CEDING).await;
    }

    /// Cedes all shards but the first `keep`: from here on this node claims nothing in them.
    fn cede(&self, keep: usize) {
        let last = Monotonic::now().plus(LAST_SENDS);
        self.lock_write(|own| {
            let over: Vec<i32> = own.held.keys().copied().skip(keep).collect();
            for shard in over {
                if let Some(Held { epoch, lease, .. }) = own.held.remove(&shard) {
                    let lease = Lease { until: lease.until.min(last), ..lease };
                    own.ceded.push(Ceded { shard, epoch, lease, given_up: false });
                }
            }
        });
        self.changed.notify_one();
    }

    /// Gives up the ceded shards in the store. Tried again in every round until the store has answered, because
    /// a lost answer leaves open whether they were given up. Returns the shards that were given up now.
    async fn give_up(&self, store: &ColdStore) -> Result<Vec<i32>, Error> {
        let open: Vec<(i32, Epoch)> = self.lock_write(|own| {
            own.ceded.retain(|one| !one.given_up || one.lease.runs());
            own.ceded.iter().filter(|one| !one.given_up).map(|one| (one.shard, one.epoch)).collect()
        });
        let given_up = match self.exclusive {
            // No other node waits for these shards, and claims without a recorded result are due again at the
            // next start.
            true => store.give_up_sparing_nothing(&self.me, &open).await?,
            false => store.give_up(&self.me, &open).await?,
        };
        self.lock_write(|own| {
            for one in own.ceded.iter_mut().filter(|one| open.contains(&(one.shard, one.epoch))) {
                one.given_up = true;
            }
        });
        Ok(given_up)
    }

    async fn take_over(
        &self,
        store: &ColdStore,
        missing: usize,
        own_too: bool,
        lease_ms: i64,
    ) -> Result<Vec<i32>, Error> {
        let asked_at = Monotonic::now();
        let most = if own_too { missing.max(1) } else { missing };
        let taken = store.take_over(&self.me, most, own_too, lease_ms).await?;
        let lease = self.lease_from(asked_at, store);
        self.lock_write(|own| {
            for (shard, epoch) in &taken {
                own.held.insert(*shard, Held { epoch: *epoch, lease, ceding: false, recalled: false });
            }
        });
        Ok(taken.into_iter().map(|(shard, _)| shard).collect())
    }

    /// Recalls the claims of crashed owners in the shards in which that is not done yet. Returns their number.
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

    /// Removes the node from the list of nodes and hands all its shards over. The list comes first: the other
    /// nodes' shares then include this node's when they are notified of its shards. After a failure it may be
    /// called again.
    pub async fn leave(&self, store: &ColdStore) -> Result<(), Error> {
        self.recall(store).await?;
        self.announce_ceding(store, 0).await;
        self.cede(0);
        store.leave(&self.me).await?;
        self.give_up(store).await.map(drop)
    }
}

/// The fair share of the node of this rank, counted from 0, among `alive` nodes. Shares differ by one at most,
/// and their sum is `shards`.
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

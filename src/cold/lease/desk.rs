//! What a transaction of a lease has in hand, and who gets what of it: decided in memory.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::{Asker, Leased};
use crate::cold::places::{PlaceWrites, QueueTerms, Told};
use crate::cold::queues::Heard;
use crate::cold::row::TimerRow;
use crate::model::id::Uid;
use crate::model::namespace::Namespace;
use crate::model::priority::Priority;
use crate::model::queue::{DEFAULT_LEASE, Held, LeaseToken, Place};
use crate::model::subscription::Lifecycle;
use crate::model::time::UnixMs;

/// Once a transaction has given out so many places, it serves no further worker.
const MAX_GIVEN: usize = 2000;

/// What a transaction of a lease has in hand.
pub(super) struct Desk<'a> {
    pub namespace: Namespace,
    pub queue: &'a str,
    /// The store's time, once it was heard.
    pub now: UnixMs,
    pub node: &'a str,
    pub terms: QueueTerms,
    /// Whether there is such a queue, once it was heard.
    pub has_queue: Option<bool>,
    /// Locked rows, with their places.
    pub rows: BTreeMap<Uid, TimerRow>,
    /// For whom each of them is.
    pub audience_of: BTreeMap<Uid, i64>,
    pub changed: BTreeSet<Uid>,
    pub places: PlaceWrites,
    pub told: Vec<Told>,
    pub given: Vec<Vec<Leased>>,
    pub again: BTreeSet<usize>,
    /// There may be more for those who asked than was looked at.
    pub has_more: bool,
}

/// Whose turn it is among priorities: of 21 turns 16 are for high ones, 4 for normal ones, one for a low one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    credit: [i32; 3],
}

impl Turn {
    /// The next of these priorities, of which some have nothing (smooth weighted round-robin).
    fn next(&mut self, has: [bool; 3]) -> Option<usize> {
        let with: Vec<usize> = (0..3).filter(|&rank| has[rank]).collect();
        let total: i32 = with.iter().map(|&rank| Priority::ALL[rank].weight()).sum();
        for &rank in &with {
            self.credit[rank] += Priority::ALL[rank].weight();
        }
        let first = with.into_iter().max_by_key(|&rank| (self.credit[rank], -(rank as i32)))?;
        self.credit[first] -= total;
        Some(first)
    }
}

/// What a look has found.
pub(super) struct Found {
    pub uids: Vec<Uid>,
    /// Audiences of which there may be more than was looked at.
    pub cut: HashSet<i64>,
}

/// What is ready, by priority, the longest ready first.
pub(super) struct Ready {
    of: [VecDeque<Uid>; 3],
    /// Audiences of which there may be more than was looked at.
    cut: HashSet<i64>,
}

impl Ready {
    pub fn of(desk: &Desk<'_>, found: Found) -> Self {
        let mut ready = Self { of: Default::default(), cut: found.cut };
        let mut sorted: Vec<(UnixMs, UnixMs, Uid, usize)> = Vec::with_capacity(found.uids.len());
        for uid in found.uids {
            let Some(row) = desk.rows.get(&uid) else { continue };
            let rank = Priority::ALL.iter().position(|one| *one == row.priority).unwrap_or(1);
            let ready_at = row.seats.as_ref().and_then(|seats| seats.ready_at).unwrap_or_default();
            sorted.push((ready_at, row.life.due_at, uid, rank));
        }
        sorted.sort_unstable();
        for (_, _, uid, rank) in sorted {
            ready.of[rank].push_back(uid);
        }
        ready
    }

    pub fn was_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    pub fn was_cut_for(&self, audiences: &BTreeSet<i64>) -> bool {
        audiences.iter().any(|audience| self.cut.contains(audience))
    }
}

impl<'a> Desk<'a> {
    /// A desk at which so many ask.
    pub fn of(namespace: Namespace, queue: &'a str, node: &'a str, asking: usize) -> Self {
        Self {
            namespace,
            queue,
            now: UnixMs::default(),
            node,
            terms: QueueTerms::default(),
            has_queue: None,
            rows: BTreeMap::new(),
            audience_of: BTreeMap::new(),
            changed: BTreeSet::new(),
            places: PlaceWrites::default(),
            told: Vec::new(),
            given: (0..asking).map(|_| Vec::new()).collect(),
            again: BTreeSet::new(),
            has_more: false,
        }
    }

    /// Notes what the store and the queue say. What the queue said first stays.
    pub fn note(&mut self, heard: Heard) {
        self.now = heard.now.max(self.now);
        if self.has_queue.is_none() {
            self.has_queue = Some(heard.terms.is_some());
            self.terms = heard.terms.unwrap_or_default();
        }
    }

    /// This transaction has given out enough.
    pub fn is_full(&self) -> bool {
        self.given.iter().map(Vec::len).sum::<usize>() >= MAX_GIVEN
    }

    /// Whether this call wants what its worker has, and another call of that worker was given something just now: it is given
    /// that again, by the next transaction.
    pub fn has_served_another(&self, i: usize, asking: &[Asker]) -> bool {
        let is_other = |j: &usize| *j != i && asking[*j].worker == asking[i].worker;
        asking[i].redo && (0..asking.len()).filter(is_other).any(|j| !self.given[j].is_empty())
    }

    /// Gives a worker what is ready, in turn by priority, until it has what it asked for.
    pub fn give_ready(&mut self, i: usize, asking: &Asker, ready: &mut Ready, turn: &mut Turn) {
        // Where each priority is looked at next: what this worker may not have is passed over, for this worker.
        let mut at = [0; 3];
        while self.given[i].len() < asking.most {
            for (at, of) in at.iter_mut().zip(&ready.of) {
                let may_have = |uid: &Uid| self.may_have(asking, *uid);
                *at += of.range(*at..).take_while(|uid| !may_have(uid)).count();
            }
            let has = [0, 1, 2].map(|rank| at[rank] < ready.of[rank].len());
            let Some(rank) = turn.next(has) else { return };
            let uid = ready.of[rank][at[rank]];
            self.give(i, asking, uid);
            // What has nothing more for anybody is not looked at again for each of those that come after.
            match self.rows.get(&uid).is_some_and(TimerRow::has_free) {
                true => at[rank] += 1,
                false => drop(ready.of[rank].remove(at[rank])),
            }
        }
    }

    /// What was given out here, and this worker may have no place of.
    pub fn taken_from(&self, asking: &Asker) -> BTreeSet<Uid> {
        self.changed.iter().copied().filter(|uid| !self.may_have(asking, *uid)).collect()
    }

    fn may_have(&self, asking: &Asker, uid: Uid) -> bool {
        // Asked for each worker and each row: what this takes, a lease takes.
        let is_for = self.audience_of.get(&uid).is_some_and(|audience| asking.audiences().contains(audience));
        is_for
            && !asking.exclude.contains(&uid)
            && self.rows.get(&uid).is_some_and(|row| row.is_free_for(&asking.worker, self.now))
    }

    /// Gives a place of this timer out.
    fn give(&mut self, i: usize, asking: &Asker, uid: Uid) {
        let lease = asking.lease.or(self.terms.lease).unwrap_or(DEFAULT_LEASE);
        let until = self.now.plus(lease.get());
        let Some(row) = self.rows.get_mut(&uid) else { return };
        let ready_at = row.seats.as_ref().and_then(|seats| seats.ready_at);
        let is_lost = |place: &&Place| place.worker == asking.worker && place.held == Held::Lost;
        let lost: Vec<i32> = row.places.iter().filter(is_lost).map(|place| place.number).collect();
        let given = row.places().and_then(|mut places| places.give(&asking.worker, until, self.now));
        let Some(place) = given else { return };
        row.claimed_at = Some(self.now);
        row.node = Some(self.node.to_owned());
        self.changed.insert(uid);
        self.places.put(uid, (self.namespace, self.queue), place.clone());
        let waited_ms = ready_at.map_or(0, |at| (self.now.get() - at.get()).max(0));
        let told = Told {
            kind: Lifecycle::QueueLeased,
            row: row.clone(),
            place: place.clone(),
            action: None,
            result: None,
            at: self.now,
        };
        let before = if lost.contains(&place.number) { Held::Lost } else { Held::Returned };
        self.given[i].push(leased(row, &place, waited_ms, Some(before)));
        self.told.push(told);
    }

    /// Gives a worker a place again that it has or had last.
    pub fn give_own(&mut self, i: usize, asking: &Asker, uid: Uid) {
        let Some(row) = self.rows.get_mut(&uid) else { return };
        // If the answer that gave it out was not written, it is not taken back from now on: this one may be.
        let own = row.places().and_then(|mut places| places.tell_again(&asking.worker, self.now));
        match own {
            Some(place) => {
                self.given[i].push(leased(row, &place, 0, None));
                self.changed.insert(uid);
                self.places.put(uid, (self.namespace, self.queue), place);
            }
            None if !self.terms.paused => self.give(i, asking, uid),
            None => {}
        }
    }
}

/// A place as its worker gets it, without the payload. `before` is what it was before this call gave it out; `None` if the
/// worker had it already.
fn leased(row: &TimerRow, place: &Place, waited_ms: i64, before: Option<Held>) -> Leased {
    Leased {
        delivery_id: place.delivery_id(row.uid, row.created_at),
        timer: row.id.clone(),
        due_at: row.life.due_at,
        attempt: place.attempt,
        data: Vec::new(),
        token: LeaseToken {
            uid: row.uid,
            created_at: row.created_at,
            given_at: place.given_at,
            generation: place.generation.0,
            place: place.number,
            giving: place.giving,
        },
        lease_until: place.until,
        waited_ms,
        before,
    }
}

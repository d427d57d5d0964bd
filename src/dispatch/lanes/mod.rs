//! Which due timers are sent next: a lane for each receiver and class of attempts.
//!
//! A plain structure without I/O or clock. Due timers wait here as pointers, unclaimed, until their lane has room. A
//! receiver that hangs fills its own lane and no other.
//!
//! **Limits.** The number of attempts that a lane may send at once (its permits, [`Lanes::acquire`]) starts small, rises
//! with every answer and is halved when the receiver does not answer in time. While the receiver answers, a lane may
//! have three times as many pointers in flight as it has permits: the next attempts are claimed by the time a permit
//! is free. This holds as long as half of the node is free. Retries have lanes of their own and never take more than
//! a quarter of the node. First attempts that an outage left overdue have lanes of their own too and never take more
//! than half, so that timers that fall due now are not delayed by them.
//!
//! **Queues.** A lane queues as many pointers as its receiver takes within half a minute, and never more than all lanes
//! together leave free; so there is always room for another receiver. A pointer for which its lane is full is dropped;
//! its row stays in SQL. The sweep skips lanes that have a backlog ([`Lanes::backlogged`]) and postpones rows that a slow
//! receiver's lane cannot queue. As long as the sweep has still to bring dropped pointers of a lane, a long queue takes
//! pointers from the sweep only: these are older than what has just fallen due.

mod lane;
mod pace;

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::sync::oneshot;

use crate::model::id::Uid;
use crate::model::pointer::{Pointer, Revision, Via};
use crate::model::time::UnixMs;
use lane::{INITIAL_LIMIT, Lane};

/// Pointers that all lanes together queue at most. Each lane may queue as many as are left: one alone takes half of
/// them, two a third each, so that some are always left for another (dynamic thresholds, Choudhury and Hahne 1998).
const MAX_QUEUED: usize = 524_288;

/// The highest threshold of a backlog: a lane with so many pointers has a backlog, until a quarter of them are left.
const BACKLOG_MAX: usize = 2048;

/// The lowest threshold of a backlog, where many lanes have a queue.
const BACKLOG_MIN: usize = 64;

/// Lanes without a backlog queue about so many pointers together: the sweep reads them all, each time it looks.
const QUEUED_WITHOUT_BACKLOG: usize = 32_768;

/// Lanes that are kept while nothing of theirs is queued.
const MAX_IDLE_LANES: usize = 32_768;

/// How many pointers of one lane are taken before the next lane has its turn.
const TURN: usize = 16;

/// Which attempts a lane is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// First attempts of timers that fall due now.
    First,
    /// Further attempts.
    Retry,
    /// First attempts of timers that an outage left overdue.
    CatchUp,
}

impl Class {
    /// How many classes there are.
    const COUNT: usize = 3;

    /// Attempts of this class that a node may have in flight, all receivers together, of `total`.
    const fn max_in_flight(self, total: usize) -> usize {
        let max = match self {
            Self::First => total,
            Self::Retry => total / 4,
            Self::CatchUp => total / 2,
        };
        if max == 0 { 1 } else { max }
    }
}

/// Names a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneKey {
    /// Hash of scheme, host and port.
    pub lane: i64,
    /// The class of attempts.
    pub class: Class,
}

impl LaneKey {
    /// The lane of a pointer.
    pub const fn of(pointer: &Pointer) -> Self {
        let class = match (pointer.attempt, pointer.overdue) {
            (0, true) => Class::CatchUp,
            (0, false) => Class::First,
            _ => Class::Retry,
        };
        Self { lane: pointer.lane, class }
    }
}

/// What became of an offered pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is queued.
    Queued,
    /// This node has the timer already: a pointer of this revision or a newer one is queued, or the timer is in hand
    /// (taken, and its outcome not recorded yet).
    Duplicate,
    /// Its lane is full: postpone the row by so many milliseconds. Only for pointers that the sweep offers.
    Postpone(i64),
    /// It is dropped: its lane is full, or the sweep has older ones for the lane. The sweep will offer it again.
    Dropped,
}

/// How an attempt that had a permit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The receiver answered, well or badly.
    Answered,
    /// The receiver did not answer in time, or not at all.
    NoAnswer,
    /// Nothing was sent.
    NotSent,
}

/// A timer that was taken and whose outcome is not recorded yet.
#[derive(Debug)]
struct InHand {
    revision: Revision,
    /// A pointer that came meanwhile and is no older: the timer was changed, or its attempt is to be made again. It is
    /// offered when the outcome is recorded; otherwise only the sweep would bring it, a second later.
    next: Option<Pointer>,
}

/// What the lanes of a node hold at one moment.
#[derive(Debug, Default)]
pub struct Load {
    /// Pointers that wait, unclaimed.
    pub queued: usize,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
    /// The same by lane, all classes of attempts together. Lanes that were idle for long are forgotten.
    pub lanes: HashMap<i64, LaneLoad>,
}

/// What one receiver's lanes hold.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LaneLoad {
    /// Pointers that wait, unclaimed.
    pub waiting: usize,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
    /// The receiver's last attempts failed.
    pub failing: bool,
}

impl LaneLoad {
    /// Its state, as a word in metrics.
    pub const fn word(&self) -> &'static str {
        match self {
            Self { failing: true, .. } => "failing",
            Self { waiting: 1.., .. } => "waiting",
            Self { in_flight: 1.., .. } => "sending",
            _ => "idle",
        }
    }
}

/// All lanes of a node.
#[derive(Debug)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    /// Lanes with queued pointers, in the order of their turns.
    turns: VecDeque<LaneKey>,
    /// The newest queued revision of each timer.
    queued_revisions: HashMap<Uid, Revision>,
    /// Timers that were taken and whose outcome is not recorded yet. They are not taken again: a claim whose answer was
    /// lost may have happened, and a result that is not written yet is a result all the same.
    in_hand: HashMap<Uid, InHand>,
    backlogged: HashSet<LaneKey>,
    /// How often a lane has ceased to have a backlog.
    backlogs_cleared: u64,
    queued: usize,
    /// Claimed pointers by class: the index is the class's number.
    in_flight: [usize; Class::COUNT],
    total: usize,
    per_lane: usize,
}

impl Lanes {
    /// Lanes for a node that sends `total` at once, `per_lane` of them to one receiver.
    pub fn new(total: usize, per_lane: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            queued_revisions: HashMap::new(),
            in_hand: HashMap::new(),
            backlogged: HashSet::new(),
            backlogs_cleared: 0,
            queued: 0,
            in_flight: [0; Class::COUNT],
            total,
            per_lane,
        }
    }

    /// Offers the pointer of a due timer.
    pub fn offer(&mut self, pointer: Pointer, now_ms: i64) -> Offer {
        let revision = pointer.revision();
        let swept = pointer.via == Via::Sweep;
        if let Some(in_hand) = self.in_hand.get_mut(&pointer.uid) {
            let latest = in_hand.next.map_or(in_hand.revision, |next| next.revision());
            // A pointer from the sweep need not be kept: the sweep offers it again.
            if revision >= latest && !swept {
                in_hand.next = Some(pointer);
            }
            return Offer::Duplicate;
        }
        // An older one must not replace it: it would be claimed instead, in vain.
        if self.queued_revisions.get(&pointer.uid).is_some_and(|queued| *queued >= revision) {
            return Offer::Duplicate;
        }
        let key = LaneKey::of(&pointer);
        if self.lanes.len() > MAX_IDLE_LANES {
            self.lanes.retain(|_, lane| lane.in_flight > 0 || !lane.queue.is_empty());
        }
        let free = MAX_QUEUED.saturating_sub(self.queued);
        let threshold = self.backlog_threshold();
        let limit = self.initial_limit();
        let lane = self.lanes.entry(key).or_insert_with(|| Lane::new(limit, now_ms));
        lane.pace.measure(lane.queue.is_empty(), now_ms);
        let is_full = lane.queue.len() >= lane.capacity().min(free);
        if is_full && swept {
            return Offer::Postpone(lane.postpone_ms(now_ms));
        }
        // The pointers that the sweep has still to bring are older than what falls due now.
        if is_full || (!swept && lane.is_owed_by_sweep() && lane.queue.len() >= threshold / 4) {
            lane.count_dropped();
            return Offer::Dropped;
        }
        if lane.queue.is_empty() {
            self.turns.push_back(key);
        }
        lane.push(pointer, swept, now_ms);
        if lane.queue.len() >= threshold {
            self.backlogged.insert(key);
        }
        self.queued += 1;
        self.queued_revisions.insert(pointer.uid, revision);
        Offer::Queued
    }

    /// With how many queued pointers a lane has a backlog: the fewer, the more lanes there are.
    fn backlog_threshold(&self) -> usize {
        (QUEUED_WITHOUT_BACKLOG / self.turns.len().max(1)).clamp(BACKLOG_MIN, BACKLOG_MAX)
    }

    /// The limit of a new lane.
    fn initial_limit(&self) -> usize {
        INITIAL_LIMIT.min(self.per_lane)
    }

    /// The lanes with a backlog: the sweep skips them until [`Lanes::backlogs_cleared`] rises.
    pub fn backlogged(&self) -> impl Iterator<Item = LaneKey> {
        self.backlogged.iter().copied()
    }

    /// How often a lane has ceased to have a backlog.
    pub fn backlogs_cleared(&self) -> u64 {
        self.backlogs_cleared
    }

    /// How many pointers are queued in lanes without a backlog.
    pub fn queued_without_backlog(&self) -> usize {
        let backlogged = self.backlogged.iter().filter_map(|key| self.lanes.get(key));
        self.queued - backlogged.map(|lane| lane.queue.len()).sum::<usize>()
    }

    /// Takes up to `most` pointers to be claimed now, lane by lane in turn. They are in flight and in hand from here
    /// on.
    pub fn take(&mut self, most: usize) -> Vec<Pointer> {
        let mut taken = Vec::new();
        let mut turns_without_room = 0;
        let (threshold, initial_limit) = (self.backlog_threshold(), self.initial_limit());
        while taken.len() < most && self.in_flight() < self.total && turns_without_room < self.turns.len() {
            let Some(key) = self.turns.pop_front() else { break };
            let in_flight = self.in_flight();
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            // Attempts that only wait for a permit take no room that other receivers need.
            let claims_ahead = in_flight < self.total / 2;
            let of_lane = if claims_ahead { lane.max_in_flight(initial_limit) } else { lane.limit };
            let of_class = key.class.max_in_flight(self.total);
            let room = of_lane
                .saturating_sub(lane.in_flight)
                .min(self.total - in_flight)
                .min(of_class.saturating_sub(self.in_flight[key.class as usize]));
            let before = taken.len();
            for pointer in lane.queue.take(room.min(TURN).min(most - before)) {
                self.queued -= 1;
                let revision = pointer.revision();
                // A pointer that a newer one has replaced is dropped here.
                if self.queued_revisions.get(&pointer.uid) == Some(&revision) {
                    self.queued_revisions.remove(&pointer.uid);
                    self.in_hand.insert(pointer.uid, InHand { revision, next: None });
                    taken.push(pointer);
                }
            }
            let count = taken.len() - before;
            lane.in_flight += count;
            self.in_flight[key.class as usize] += count;
            lane.pace.observe_queue(lane.queue.is_empty());
            if !lane.queue.is_empty() {
                self.turns.push_back(key);
            }
            if lane.queue.len() < threshold / 4 {
                self.clear_backlog(key);
            }
            turns_without_room = if room == 0 { turns_without_room + 1 } else { 0 };
        }
        taken
    }

    fn clear_backlog(&mut self, key: LaneKey) {
        if self.backlogged.remove(&key) {
            self.backlogs_cleared += 1;
        }
    }

    /// The claim of a pointer surely got no row: it is neither in flight nor in hand any more.
    pub fn claim_dropped(&mut self, pointer: &Pointer, now_ms: i64) {
        self.free_claim(LaneKey::of(pointer));
        let in_hand = self.in_hand.remove(&pointer.uid);
        // The same revision again would get no row either.
        let newer = |in_hand: InHand| in_hand.next.filter(|next| next.revision() > in_hand.revision);
        if let Some(next) = in_hand.and_then(newer) {
            self.offer(next, now_ms);
        }
    }

    /// Asks for a permit to send a claimed pointer: `None` when it may be sent at once, else a receiver that
    /// completes when there is a permit.
    pub fn acquire(&mut self, key: LaneKey) -> Option<oneshot::Receiver<()>> {
        self.lanes.get_mut(&key)?.acquire()
    }

    /// A pointer that has no permit will not be sent: it is no longer in flight.
    pub fn free_claim(&mut self, key: LaneKey) {
        self.free(key, |_| {});
    }

    /// The outcome of a timer is recorded: it is no longer in hand. Returns whether a pointer that came meanwhile is
    /// queued now.
    pub fn recorded(&mut self, uid: &Uid, now_ms: i64) -> bool {
        let next = self.in_hand.remove(uid).and_then(|in_hand| in_hand.next);
        next.is_some_and(|next| self.offer(next, now_ms) == Offer::Queued)
    }

    /// Whether the timer was taken and its outcome is not recorded yet.
    pub fn has_in_hand(&self, uid: &Uid) -> bool {
        self.in_hand.contains_key(uid)
    }

    /// An attempt that had a permit has ended: it is no longer in flight.
    pub fn attempt_ended(&mut self, key: LaneKey, end: AttemptEnd, now_ms: i64) {
        let (per_lane, threshold) = (self.per_lane, self.backlog_threshold());
        let mut dropped: Vec<Pointer> = Vec::new();
        let mut queued = 0;
        self.free(key, |lane| {
            lane.release();
            match end {
                AttemptEnd::Answered => lane.answered(per_lane, now_ms),
                AttemptEnd::NoAnswer => {
                    // The sweep finds the dropped timers again, and postpones them.
                    dropped = lane.not_answered(per_lane, now_ms);
                    queued = lane.queue.len();
                }
                AttemptEnd::NotSent => {}
            }
        });
        self.queued -= dropped.len();
        if !dropped.is_empty() && queued < threshold / 4 {
            self.clear_backlog(key);
        }
        for pointer in dropped {
            self.queued_revisions.remove(&pointer.uid);
        }
    }

    fn free(&mut self, key: LaneKey, end: impl FnOnce(&mut Lane)) {
        let in_flight = &mut self.in_flight[key.class as usize];
        *in_flight = in_flight.saturating_sub(1);
        let initial_limit = self.initial_limit();
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_sub(1);
        end(lane);
        lane.grant();
        let is_idle = lane.in_flight == 0 && lane.queue.is_empty();
        if is_idle && lane.limit >= initial_limit {
            self.lanes.remove(&key);
        }
    }

    /// The earliest moment at which a queued pointer was due.
    pub fn oldest_queued(&self) -> Option<UnixMs> {
        self.lanes.values().filter_map(|lane| lane.queue.first()).map(|pointer| pointer.wake_at).min()
    }

    /// What the lanes hold now, by receiver.
    pub fn load(&self) -> Load {
        let mut load = Load { queued: self.queued, in_flight: self.in_flight(), lanes: HashMap::new() };
        for (key, lane) in &self.lanes {
            let of = load.lanes.entry(key.lane).or_default();
            of.waiting += lane.queue.len();
            of.in_flight += lane.in_flight;
        }
        load
    }

    /// How many pointers are queued, unclaimed.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// How many claimed pointers have not ended their attempt yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.iter().sum()
    }

    /// Drops every queued pointer. Attempts under way go on.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.queued_revisions.clear();
        self.backlogged.clear();
        self.backlogs_cleared += 1;
        self.queued = 0;
        self.lanes.values_mut().for_each(|lane| lane.queue.clear());
    }
}

#[cfg(test)]
mod tests;

//! Who may send next: a lane per receiver, with room of its own.
//!
//! A plain structure without I/O or clock. What is due waits here as pointers, unclaimed, until its lane has
//! room; so a receiver that hangs fills its own lane and nobody else's. A lane that is well may claim
//! twice as many again as it may send at once, so that the next are claimed by the time a place is free;
//! those wait at its gate ([`Lanes::enter`]), as long as half of the node is free. A lane starts small, grows with
//! every success and halves when its receiver does not answer in time. Retries have lanes of their own and
//! never take more than a quarter of the node; what an outage left overdue has lanes of its own too, and
//! never takes more than half, so that what falls due now is not delayed by it.
//!
//! A lane holds what its receiver takes within half a minute, and no more than all lanes leave free; so there is
//! always room for another receiver. What it does not hold stays in SQL, where the sweep passes over lanes
//! that are crowded ([`Lanes::crowded`]) and puts off what a slow one cannot hold. While something of a
//! receiver's is left there, the sweep's turn comes before that of what has only just fallen due.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::sync::oneshot;

use crate::model::id::Uid;
use crate::model::pointer::{Pointer, Revision, Via};

/// Attempts at once that a receiver nobody has heard of gets.
const START: usize = 16;

/// Attempts at once that a receiver which never answers is left with.
const FLOOR: usize = 4;

/// Seconds of its receiver's work that a lane holds.
const AHEAD_S: f64 = 30.0;

/// Pointers that a lane may hold however slow its receiver is.
const SLOW_HELD: usize = 64;

/// Pointers that all lanes hold at most. Each may hold as many as are left: one alone half of them, two a
/// third each, so that some are always left for another (dynamic thresholds, Choudhury and Hahne 1998).
const ALL_HELD: usize = 524_288;

/// With so many waiting a lane is crowded, until a quarter of them are left.
const CROWDED: usize = 2048;

/// With so many waiting a lane may be crowded where others wait too.
const CROWDED_LEAST: usize = 64;

/// Lanes that are not crowded hold about so many together: the sweep reads them all, each time it looks.
const UNCROWDED: usize = 32_768;

/// The longest that a row is put off, in milliseconds.
const LONGEST_MS: f64 = 300_000.0;

/// The half-life of what is remembered of a receiver's pace of late, in milliseconds, and how often it is looked
/// at.
const PACE_MS: f64 = 500.0;

/// The half-life of what is remembered of its usual pace, in milliseconds.
const USUAL_MS: f64 = 30_000.0;

/// Receivers that are remembered while nothing of theirs waits.
const IDLE_LANES: usize = 32_768;

/// How many pointers of one lane go into a batch before the next lane has its turn.
const TURN: usize = 16;

/// Which attempts a lane holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// First attempts of what falls due now.
    First,
    /// Further attempts.
    Retry,
    /// First attempts of what an outage left overdue.
    CatchUp,
}

impl Class {
    /// How many classes there are.
    const COUNT: usize = 3;

    /// Attempts of this class that a node may have under way, all receivers together, of `total`.
    const fn most(self, total: usize) -> usize {
        let most = match self {
            Self::First => total,
            Self::Retry => total / 4,
            Self::CatchUp => total / 2,
        };
        if most == 0 { 1 } else { most }
    }
}

/// A receiver's lane; each class of attempts has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneKey {
    /// Hash of scheme, host and port.
    pub lane: i64,
    /// The class of attempts.
    pub class: Class,
}

impl LaneKey {
    /// The lane a pointer waits in.
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
    /// It waits for its turn.
    Held,
    /// It waits already, or a newer one of its timer does, or that is in hand: taken, and its outcome not
    /// recorded yet.
    Known,
    /// Its lane is full: look at the row again this many milliseconds later. Only what the sweep brings.
    Later(i64),
    /// Its lane is full, or the sweep has older ones for it: the sweep brings it.
    Left,
}

/// How an attempt left its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The receiver answered, well or badly.
    Answered,
    /// It did not answer in time, or not at all.
    Silent,
    /// Nothing was sent.
    Unused,
}

#[derive(Debug)]
struct Lane {
    queue: VecDeque<Pointer>,
    /// Claimed: waiting for the due millisecond, at the gate, or being sent.
    in_flight: usize,
    sending: usize,
    /// Claimed and due, in order; told when there is a place.
    gate: VecDeque<oneshot::Sender<()>>,
    /// How many may be sent at once.
    limit: usize,
    /// Answers a second of late; a new lane is thought quick until it shows otherwise.
    rate: f64,
    /// Answers a second as a rule, so that a pause of seconds does not make it a slow one.
    usual: f64,
    answered: u32,
    rated_at_ms: i64,
    /// Nobody waited at some moment since then, so that it may be quicker than it shows.
    idled: bool,
    /// When something last came and nobody waited.
    empty_at_ms: i64,
    /// How many, about, were left to the sweep and have not come yet.
    left: usize,
    /// Rows that were put off, and whose turn comes before that of another.
    outside: f64,
    outside_at_ms: i64,
}

/// What was taken, and what has come of its timer since.
#[derive(Debug)]
struct InHand {
    revision: Revision,
    /// No older than what was taken: the timer was changed, or its attempt is to be made again. Offered when
    /// the hand is free, for nobody else brings it but the sweep, a second later.
    next: Option<Pointer>,
}

/// All lanes of a node.
#[derive(Debug)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    /// Lanes with somebody waiting, in turn.
    turn: VecDeque<LaneKey>,
    /// What waits, and in which revision.
    waiting: HashMap<Uid, Revision>,
    /// What was taken and is not recorded yet. Nobody else may touch these: a claim whose answer was lost may
    /// have happened, and a result that is not written yet is a result all the same.
    in_hand: HashMap<Uid, InHand>,
    crowded: HashSet<LaneKey>,
    /// How often a lane has ceased to be crowded.
    eased: u64,
    queued: usize,
    /// Claimed, by class: an index is the class's number.
    in_flight: [usize; Class::COUNT],
    total: usize,
    per_lane: usize,
}

impl Lanes {
    /// Lanes for a node that sends `total` at once, `per_lane` of them to one receiver.
    pub fn new(total: usize, per_lane: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            turn: VecDeque::new(),
            waiting: HashMap::new(),
            in_hand: HashMap::new(),
            crowded: HashSet::new(),
            eased: 0,
            queued: 0,
            in_flight: [0; Class::COUNT],
            total,
            per_lane,
        }
    }

    /// Offers a pointer to what is due.
    pub fn offer(&mut self, pointer: Pointer, now_ms: i64) -> Offer {
        let revision = pointer.revision();
        if let Some(hand) = self.in_hand.get_mut(&pointer.uid) {
            let latest = hand.next.map_or(hand.revision, |next| next.revision());
            // What the sweep brings it brings again.
            if revision >= latest && pointer.via != Via::Sweep {
                hand.next = Some(pointer);
            }
            return Offer::Known;
        }
        // An older one must not take its place: it would be claimed instead, in vain.
        if self.waiting.get(&pointer.uid).is_some_and(|waiting| *waiting >= revision) {
            return Offer::Known;
        }
        let key = LaneKey::of(&pointer);
        if self.lanes.len() > IDLE_LANES {
            self.lanes.retain(|_, lane| lane.in_flight > 0 || !lane.queue.is_empty());
        }
        let free = ALL_HELD.saturating_sub(self.queued);
        let crowd = self.crowd();
        let lane = self.lanes.entry(key).or_insert_with(|| Lane::new(START.min(self.per_lane), now_ms));
        lane.rerate(now_ms);
        let swept = pointer.via == Via::Sweep;
        let full = lane.queue.len() >= lane.cap().min(free);
        if full && swept {
            return Offer::Later(lane.put_off(now_ms));
        }
        // What the sweep has still to bring has waited longer than what falls due now.
        if full || (!swept && lane.left > 0 && lane.queue.len() >= crowd / 4) {
            lane.left += 1;
            return Offer::Left;
        }
        lane.left = lane.left.saturating_sub(usize::from(swept));
        if lane.queue.is_empty() {
            // Some of what was left may have been cancelled.
            lane.left = 0;
            lane.empty_at_ms = now_ms;
            self.turn.push_back(key);
        }
        lane.queue.push_back(pointer);
        if lane.queue.len() >= crowd {
            self.crowded.insert(key);
        }
        self.queued += 1;
        self.waiting.insert(pointer.uid, revision);
        Offer::Held
    }

    /// With how many waiting a lane is crowded: the fewer, the more lanes there are.
    fn crowd(&self) -> usize {
        (UNCROWDED / self.turn.len().max(1)).clamp(CROWDED_LEAST, CROWDED)
    }

    /// The lanes in which so many wait that nothing more need be looked for, until [`Lanes::eased`] rises.
    pub fn crowded(&self) -> impl Iterator<Item = LaneKey> {
        self.crowded.iter().copied()
    }

    /// How often a lane has ceased to be crowded.
    pub fn eased(&self) -> u64 {
        self.eased
    }

    /// How many pointers wait, those in crowded lanes not counted.
    pub fn uncrowded(&self) -> usize {
        let crowded = self.crowded.iter().filter_map(|key| self.lanes.get(key));
        self.queued - crowded.map(|lane| lane.queue.len()).sum::<usize>()
    }

    /// Takes up to `most` pointers that may be sent now, lane by lane in turn, and reserves their places.
    pub fn take(&mut self, most: usize) -> Vec<Pointer> {
        let mut taken = Vec::new();
        let mut idle = 0;
        let crowd = self.crowd();
        while taken.len() < most && self.in_flight() < self.total && idle < self.turn.len() {
            let Some(key) = self.turn.pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            // What waits at a gate takes no place that others need.
            let in_flight: usize = self.in_flight.iter().sum();
            let ahead = in_flight < self.total / 2;
            let places = if ahead { lane.places(START.min(self.per_lane)) } else { lane.limit };
            let of_class = key.class.most(self.total).saturating_sub(self.in_flight[key.class as usize]);
            let room = places.saturating_sub(lane.in_flight).min(self.total - in_flight).min(of_class);
            let before = taken.len();
            let n = room.min(TURN).min(most - taken.len()).min(lane.queue.len());
            for pointer in lane.queue.drain(..n) {
                self.queued -= 1;
                let revision = pointer.revision();
                // A pointer that a newer one has replaced is dropped here.
                if self.waiting.get(&pointer.uid) == Some(&revision) {
                    self.waiting.remove(&pointer.uid);
                    self.in_hand.insert(pointer.uid, InHand { revision, next: None });
                    taken.push(pointer);
                }
            }
            let n = taken.len() - before;
            lane.in_flight += n;
            self.in_flight[key.class as usize] += n;
            lane.idled |= lane.queue.is_empty();
            if !lane.queue.is_empty() {
                self.turn.push_back(key);
            }
            if lane.queue.len() < crowd / 4 && self.crowded.remove(&key) {
                self.eased += 1;
            }
            idle = if room == 0 { idle + 1 } else { 0 };
        }
        taken
    }

    /// The claim of a pointer that was taken surely got nothing: its place is free and it is in no hand.
    pub fn dropped(&mut self, pointer: &Pointer, now_ms: i64) {
        self.gave_up(LaneKey::of(pointer));
        let hand = self.in_hand.remove(&pointer.uid);
        // The same again would get nothing either.
        let newer = |hand: InHand| hand.next.filter(|next| next.revision() > hand.revision);
        if let Some(next) = hand.and_then(newer) {
            self.offer(next, now_ms);
        }
    }

    /// Asks for a place to send what was claimed: none when it may go at once, else what tells when it may.
    pub fn enter(&mut self, key: LaneKey) -> Option<oneshot::Receiver<()>> {
        let lane = self.lanes.get_mut(&key)?;
        if lane.sending < lane.limit {
            lane.sending += 1;
            return None;
        }
        let (place, told) = oneshot::channel();
        lane.gate.push_back(place);
        Some(told)
    }

    /// What was claimed will not be sent, and was not let through the gate.
    pub fn gave_up(&mut self, key: LaneKey) {
        self.free(key, false, |_| {});
    }

    /// What became of it is recorded: it is in no hand any more. Tells whether something waits in its place.
    pub fn recorded(&mut self, uid: &Uid, now_ms: i64) -> bool {
        let next = self.in_hand.remove(uid).and_then(|hand| hand.next);
        next.is_some_and(|next| self.offer(next, now_ms) == Offer::Held)
    }

    /// Whether it was taken and is not recorded yet.
    pub fn has_in_hand(&self, uid: &Uid) -> bool {
        self.in_hand.contains_key(uid)
    }

    /// An attempt that was let through the gate is over: its place is free.
    pub fn left(&mut self, key: LaneKey, how: Left, now_ms: i64) {
        let (per_lane, crowd) = (self.per_lane, self.crowd());
        let mut dropped: Vec<Uid> = Vec::new();
        let mut waiting = 0;
        self.free(key, true, |lane| match how {
            Left::Answered => {
                lane.limit = (lane.limit + 1).min(per_lane);
                lane.answered += 1;
                lane.rerate(now_ms);
            }
            Left::Silent => {
                lane.limit = (lane.limit / 2).max(FLOOR).min(per_lane);
                lane.rerate(now_ms);
                // What no longer fits is found again by the sweep, which then puts it off.
                while lane.queue.len() > lane.cap() {
                    dropped.extend(lane.queue.pop_back().map(|last| last.uid));
                }
                waiting = lane.queue.len();
            }
            Left::Unused => {}
        });
        self.queued -= dropped.len();
        if !dropped.is_empty() && waiting < crowd / 4 && self.crowded.remove(&key) {
            self.eased += 1;
        }
        for uid in dropped {
            self.waiting.remove(&uid);
        }
    }

    fn free(&mut self, key: LaneKey, entered: bool, note: impl FnOnce(&mut Lane)) {
        let in_flight = &mut self.in_flight[key.class as usize];
        *in_flight = in_flight.saturating_sub(1);
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_sub(1);
        lane.sending = lane.sending.saturating_sub(usize::from(entered));
        note(lane);
        while lane.sending < lane.limit {
            let Some(place) = lane.gate.pop_front() else { break };
            // Whoever has gone away from the gate takes no place.
            lane.sending += usize::from(place.send(()).is_ok());
        }
        let idle = lane.in_flight == 0 && lane.queue.is_empty();
        if idle && lane.limit >= START.min(self.per_lane) {
            self.lanes.remove(&key);
        }
    }

    /// How many pointers wait unclaimed.
    pub fn held(&self) -> usize {
        self.queued
    }

    /// How many attempts are under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.iter().sum()
    }

    /// Forgets everything that waits; what is under way stays.
    pub fn clear(&mut self) {
        self.turn.clear();
        self.waiting.clear();
        self.crowded.clear();
        self.eased += 1;
        self.queued = 0;
        self.lanes.values_mut().for_each(|lane| lane.queue.clear());
    }
}

impl Lane {
    fn new(limit: usize, now_ms: i64) -> Self {
        Self {
            queue: VecDeque::new(),
            in_flight: 0,
            sending: 0,
            gate: VecDeque::new(),
            limit,
            rate: 10_000.0,
            usual: 0.0,
            answered: 0,
            rated_at_ms: now_ms,
            idled: false,
            empty_at_ms: now_ms,
            left: 0,
            outside: 0.0,
            outside_at_ms: now_ms,
        }
    }

    /// How many may be claimed at once: twice as many again as may be sent, while the receiver answers.
    fn places(&self, start: usize) -> usize {
        if self.limit < start { self.limit } else { 3 * self.limit }
    }

    /// Answers a second that may be counted on.
    fn pace(&self) -> f64 {
        self.rate.max(self.usual)
    }

    /// How many pointers may wait.
    fn cap(&self) -> usize {
        ((self.pace() * AHEAD_S) as usize).max(SLOW_HELD)
    }

    /// For how long to put off one that finds no room: until those have gone that wait here and those that were
    /// put off before it, but not for longer than there has been a queue, so that a short stall does not put
    /// rows off for long.
    fn put_off(&mut self, now_ms: i64) -> i64 {
        let passed_s = (now_ms - self.outside_at_ms) as f64 / 1000.0;
        let pace = self.pace();
        let before = (self.outside - passed_s * pace).clamp(0.0, LONGEST_MS / 1000.0 * pace);
        (self.outside, self.outside_at_ms) = (before + 1.0, now_ms);
        let drain_ms = (self.queue.len() as f64 + before) / (pace + 0.1) * 1000.0;
        let queue_ms = (now_ms - self.empty_at_ms) as f64;
        drain_ms.min(queue_ms).clamp(1000.0, LONGEST_MS) as i64
    }

    fn rerate(&mut self, now_ms: i64) {
        let passed = (now_ms - self.rated_at_ms) as f64;
        if passed >= PACE_MS {
            let seen = f64::from(self.answered) * 1000.0 / passed;
            for (rate, half_life) in [(&mut self.rate, PACE_MS), (&mut self.usual, USUAL_MS)] {
                let kept = 0.5_f64.powf(passed / half_life);
                let smoothed = *rate * kept + seen * (1.0 - kept);
                // With nobody waiting it shows what was asked of it, not what it could do.
                *rate = if self.idled { smoothed.max(*rate) } else { smoothed };
            }
            self.idled = self.queue.is_empty();
            self.answered = 0;
            self.rated_at_ms = now_ms;
        }
    }
}

#[cfg(test)]
mod tests;

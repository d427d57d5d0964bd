//! Which due timers are sent next: a lane for each receiver and class of attempts.
//!
//! A plain structure without I/O or clock. Due timers wait here as pointers, unclaimed, until their lane has room. A
//! receiver that hangs fills its own lane and no other.
//!
//! **Trust.** A node keeps room for receivers that answer: those of which nothing is known, and those whose last attempts
//! had no answer, have a share of it, and so has each host or domain of theirs (`receiver.rs`, `turns.rs`). How many
//! attempts at unknown ones are under way follows what the processor bears (`newcomers.rs`). A timer takes one of the
//! node's places from its claim until its outcome is recorded (`in_hand.rs`).
//!
//! **Limits.** The number of attempts that a lane may send at once (its permits, [`Lanes::acquire`]) starts small, rises
//! with every answer and is halved when the receiver does not answer in time. While the receiver answers, a lane may
//! have three times as many pointers in flight as it has permits: the next attempts are claimed by the time a permit
//! is free. This holds as long as half of the node is free. Retries have lanes of their own and never take more than
//! a quarter of the node. First attempts that an outage left overdue have lanes of their own too and never take more
//! than half, so that timers that fall due now are not delayed by them.
//!
//! **Destinations.** What is agreed for the lane of a destination (concurrency, rate, held) stands in `terms.rs`. One
//! whose attempts fail again and again is tried by one attempt at a time, like a receiver that cannot be reached. Lifecycle
//! events have part in these terms (`beside.rs`).
//!
//! **Namespaces.** No two of them have a lane in common. They take turns (`ring.rs`), and none may hold so much of a node that
//! nothing is left for another (`shares.rs`).
//!
//! **Queues.** A lane queues as many pointers as its receiver takes within half a minute, and never more than all lanes
//! together leave free; so there is always room for another receiver. A pointer for which its lane is full is dropped;
//! its row stays in SQL. The sweep skips lanes that have a backlog (`backlogs.rs`) and postpones rows that a slow
//! receiver's lane cannot queue. As long as the sweep has still to bring dropped pointers of a lane, a long queue takes
//! pointers from the sweep only: these are older than what has just fallen due.

mod backlogs;
mod beside;
mod in_hand;
mod lane;
mod load;
mod newcomers;
mod pace;
mod receiver;
mod ring;
mod shares;
mod terms;
mod turns;

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use crate::model::id::Uid;
use crate::model::pointer::{Pointer, Revision, Via};
use backlogs::Backlogs;
use beside::Beside;
use in_hand::InHand;
use lane::{INITIAL_LIMIT, Lane};
use load::Ages;
pub use load::{LaneLoad, States};
use newcomers::Newcomers;
use receiver::{Receiver, Standing};
use shares::Shares;
use terms::Agreed;
pub use terms::Terms;
use turns::{Turns, group_of};

/// Pointers that all lanes together queue at most. Each lane may queue as many as are left: one alone takes half of
/// them, two a third each, so that some are always left for another (dynamic thresholds, Choudhury and Hahne 1998).
const MAX_QUEUED: usize = 524_288;

/// With more lanes than these, idle ones are forgotten, those first that have been kept longest.
const MAX_IDLE_LANES: usize = 32_768;

/// How long a lane is kept that nothing is sent to, in milliseconds: with it goes what is known of its receiver.
const KEEP_IDLE_MS: i64 = 600_000;

/// How many pointers of one lane are taken before the next lane has its turn.
const TURN: usize = 16;

/// Which attempts a lane is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    const COUNT: usize = Self::ALL.len();

    /// Every class.
    const ALL: [Self; 3] = [Self::First, Self::Retry, Self::CatchUp];

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The receiver: a hash of the namespace, and of scheme, host and port.
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
    /// Its destination is paused. The sweep will offer it when that is resumed.
    Held,
}

/// How an attempt that had a permit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The receiver took it.
    Answered,
    /// The receiver answered, and did not take it.
    Refused,
    /// The receiver did not answer in time, or not at all.
    NoAnswer,
    /// There was no connection to the receiver, or no address for its name.
    NotReached,
    /// Nothing was sent.
    NotSent,
}

/// All lanes of a node.
#[derive(Debug)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    /// The receivers of these lanes.
    receivers: HashMap<i64, Receiver>,
    turns: Turns,
    /// Every lane once, in the order in which they are looked at whether they may be forgotten.
    forgettable: VecDeque<(LaneKey, i64)>,
    /// The newest queued revision of each timer.
    queued_revisions: HashMap<Uid, Revision>,
    in_hand: InHand,
    backlogs: Backlogs,
    /// Pointers in queues.
    queued: usize,
    /// Lanes with queued pointers.
    lanes_queued: usize,
    states: States,
    ages: Ages,
    /// Claimed pointers by class and by standing of their receiver: the index is the number of either.
    in_flight: [usize; Class::COUNT],
    by_standing: [usize; 3],
    newcomers: Newcomers,
    shares: Shares,
    agreed: Agreed,
    beside: Beside,
    /// How often a lane has ceased to be held.
    released: u64,
    total: usize,
    per_lane: usize,
}

impl Lanes {
    /// Lanes for a node that sends `total` at once, `per_lane` of them to one receiver.
    pub fn new(total: usize, per_lane: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            receivers: HashMap::new(),
            turns: Turns::default(),
            forgettable: VecDeque::new(),
            queued_revisions: HashMap::new(),
            in_hand: InHand::default(),
            backlogs: Backlogs::default(),
            queued: 0,
            lanes_queued: 0,
            states: States::default(),
            ages: Ages::default(),
            in_flight: [0; Class::COUNT],
            by_standing: [0; 3],
            newcomers: Newcomers::of(total),
            shares: Shares::default(),
            agreed: Agreed::default(),
            beside: Beside::default(),
            released: 0,
            total,
            per_lane,
        }
    }

    /// From now on a node sends `total` at once, `per_lane` of them to one receiver. What is under way beyond that ends
    /// first.
    pub fn set_limits(&mut self, total: usize, per_lane: usize) {
        (self.total, self.per_lane, self.newcomers) = (total, per_lane, Newcomers::of(total));
        for (key, lane) in &mut self.lanes {
            lane.limit = lane.limit.min(self.agreed.concurrency(key.lane, per_lane));
        }
    }

    /// Pointers that were dropped are no longer the newest of their timers, unless newer ones have replaced them.
    fn forget_revisions(&mut self, dropped: &[Pointer]) {
        for pointer in dropped {
            if self.queued_revisions.get(&pointer.uid) == Some(&pointer.revision()) {
                self.queued_revisions.remove(&pointer.uid);
            }
        }
    }

    /// Offers the pointer of a due timer.
    pub fn offer(&mut self, pointer: Pointer, now_ms: i64) -> Offer {
        let revision = pointer.revision();
        let swept = pointer.via == Via::Sweep;
        if self.in_hand.keep_if_newer(&pointer) {
            return Offer::Duplicate;
        }
        // An older one must not replace it: it would be claimed instead, in vain.
        if self.queued_revisions.get(&pointer.uid).is_some_and(|queued| *queued >= revision) {
            return Offer::Duplicate;
        }
        let key = LaneKey::of(&pointer);
        if self.agreed.holds(key.lane) {
            return Offer::Held;
        }
        self.forget_idle(now_ms);
        let threshold = self.backlog_threshold();
        let limit = self.initial_limit(key.lane);
        let lane = self.lanes.entry(key).or_insert_with(|| {
            let receiver = self.receivers.entry(key.lane).or_insert_with(|| {
                self.states.idle += 1;
                Receiver::of(pointer.namespace)
            });
            receiver.lanes += 1;
            self.forgettable.push_back((key, now_ms));
            self.shares.of(pointer.namespace).lanes += 1;
            Lane::new(pointer.namespace, limit, now_ms)
        });
        let free = MAX_QUEUED.saturating_sub(self.queued);
        let free = self.shares.queue(lane.namespace, free);
        lane.pace.measure(lane.queue.is_empty(), now_ms);
        let priority = pointer.priority;
        // The pointers that the sweep has still to bring are older than what falls due now.
        if !swept && lane.is_owed_by_sweep(priority) && lane.queue.len_of(priority) >= threshold / 4 {
            lane.count_dropped(priority);
            return Offer::Dropped;
        }
        let capacity = lane.capacity().min(free);
        if lane.queue.len() >= capacity {
            match lane.queue.make_room(priority, capacity) {
                Some(other) => {
                    let is_empty = lane.queue.is_empty();
                    if self.queued_revisions.get(&other.uid) == Some(&other.revision()) {
                        lane.count_dropped(other.priority);
                        self.queued_revisions.remove(&other.uid);
                    }
                    self.unqueued(key, &[other], is_empty);
                }
                None if swept => return Offer::Postpone(lane.postpone_ms(now_ms)),
                None => {
                    lane.count_dropped(priority);
                    return Offer::Dropped;
                }
            }
        }
        let Some(lane) = self.lanes.get_mut(&key) else { return Offer::Dropped };
        self.lanes_queued += usize::from(lane.queue.is_empty());
        lane.push(pointer, swept, now_ms);
        self.backlogs.add(key, lane, priority, threshold);
        self.queued += 1;
        self.shares.of(lane.namespace).queued += 1;
        self.ages.add(&pointer);
        self.queued_revisions.insert(pointer.uid, revision);
        self.change_receiver(key.lane, |receiver| receiver.waiting += 1);
        self.wake(key, now_ms);
        Offer::Queued
    }

    /// The limit of a new lane of this receiver.
    fn initial_limit(&self, lane: i64) -> usize {
        INITIAL_LIMIT.min(self.agreed.concurrency(lane, self.per_lane))
    }

    /// Attempts that a receiver's lanes may make at once together: a concurrency of its own holds for all classes, and for
    /// events.
    fn places(&self, lane: i64) -> usize {
        match self.agreed.concurrency(lane, usize::MAX) {
            usize::MAX => usize::MAX,
            most => most.saturating_sub(self.beside.in_flight(lane)),
        }
    }

    /// Permits that a receiver's lanes may still give out together.
    fn free_permits(&self, lane: i64) -> usize {
        let most = self.places(lane);
        if most == usize::MAX {
            return most;
        }
        let sending = |class| self.lanes.get(&LaneKey { lane, class }).map_or(0, Lane::sending);
        most.saturating_sub(Class::ALL.into_iter().map(sending).sum())
    }

    /// Gives free permits to the attempts of a receiver that wait for one.
    fn grant(&mut self, lane: i64) {
        for class in Class::ALL {
            let free = self.free_permits(lane);
            if let Some(lane) = self.lanes.get_mut(&LaneKey { lane, class }) {
                lane.grant(free);
            }
        }
    }

    /// Notes that these pointers of a lane are no longer queued.
    fn unqueued(&mut self, key: LaneKey, pointers: &[Pointer], is_empty: bool) {
        if pointers.is_empty() {
            return;
        }
        for pointer in pointers {
            self.backlogs.remove(key, pointer.priority);
            self.ages.remove(pointer);
        }
        self.queued -= pointers.len();
        if let Some(lane) = self.lanes.get(&key) {
            self.shares.of(lane.namespace).queued -= pointers.len();
        }
        self.lanes_queued -= usize::from(is_empty);
        self.change_receiver(key.lane, |receiver| receiver.waiting -= pointers.len());
    }

    /// Changes what is known of a receiver, and what is counted by it.
    fn change_receiver(&mut self, lane: i64, change: impl FnOnce(&mut Receiver)) {
        let Some(receiver) = self.receivers.get_mut(&lane) else { return };
        let (load, standing, in_flight) = (receiver.load(), receiver.standing(), receiver.in_flight);
        change(receiver);
        *self.states.of(load) -= 1;
        *self.states.of(receiver.load()) += 1;
        let (now_standing, now_in_flight) = (receiver.standing(), receiver.in_flight);
        self.by_standing[standing as usize] -= in_flight;
        self.by_standing[now_standing as usize] += now_in_flight;
        if self.by_standing[Standing::New as usize] == 0 {
            self.newcomers.none_left();
        }
        if (standing, in_flight) != (now_standing, now_in_flight) {
            let held = &mut self.shares.of(receiver.namespace).by_standing;
            held[standing as usize] -= in_flight;
            held[now_standing as usize] += now_in_flight;
        }
        let unproven = |standing, in_flight| if standing == Standing::Proven { 0 } else { in_flight };
        let (before, after) = (unproven(standing, in_flight), unproven(now_standing, now_in_flight));
        self.turns.groups.change(group_of(lane), before, after);
    }

    /// An attempt begins to run, so many milliseconds after its claim. Returns whether there is room for others now.
    pub fn runs(&mut self, key: LaneKey, waited_ms: i64, now_ms: i64) -> bool {
        let is_new =
            self.receivers.get(&key.lane).is_some_and(|receiver| receiver.standing() == Standing::New);
        is_new && self.newcomers.runs(self.by_standing[Standing::New as usize], waited_ms, now_ms)
    }

    /// This node lacks something that attempts need: fewer at new receivers need less of it. So it is for this long.
    pub fn lacks(&mut self, pause_ms: i64, now_ms: i64) {
        self.newcomers.fall(pause_ms, now_ms);
    }

    /// Asks for a permit to send a claimed pointer: `None` when it may be sent at once, else a receiver that
    /// completes when there is a permit.
    pub fn acquire(&mut self, key: LaneKey) -> Option<oneshot::Receiver<()>> {
        let free = self.free_permits(key.lane);
        self.lanes.get_mut(&key)?.acquire(free)
    }

    /// A pointer that has no permit will not be sent: it is no longer in flight.
    pub fn free_claim(&mut self, key: LaneKey, now_ms: i64) {
        self.free(key, now_ms, |_| {});
    }

    /// An attempt that had a permit has ended: it is no longer in flight.
    pub fn attempt_ended(&mut self, key: LaneKey, end: AttemptEnd, now_ms: i64) {
        let (per_lane, threshold) =
            (self.agreed.concurrency(key.lane, self.per_lane), self.backlog_threshold());
        let is_destination = self.agreed.has(key.lane);
        let mut dropped: Vec<Pointer> = Vec::new();
        self.change_receiver(key.lane, |receiver| match end {
            AttemptEnd::Refused if is_destination => receiver.refused(now_ms),
            AttemptEnd::Answered | AttemptEnd::Refused => receiver.answered(),
            AttemptEnd::NoAnswer => receiver.not_answered(),
            AttemptEnd::NotReached => receiver.not_reached(now_ms),
            AttemptEnd::NotSent => {}
        });
        let is_open = self.receivers.get(&key.lane).is_some_and(|receiver| receiver.trial_at_ms().is_some());
        self.free(key, now_ms, |lane| {
            lane.release();
            match end {
                AttemptEnd::Refused if is_open => {
                    lane.answered(per_lane, now_ms);
                    lane.refuse_permits();
                }
                AttemptEnd::Answered | AttemptEnd::Refused => lane.answered(per_lane, now_ms),
                // The sweep finds the dropped timers again, and postpones them.
                AttemptEnd::NoAnswer => dropped = lane.not_answered(per_lane, now_ms),
                AttemptEnd::NotReached if is_open => {
                    dropped = lane.not_answered(per_lane, now_ms);
                    lane.refuse_permits();
                }
                AttemptEnd::NotReached | AttemptEnd::NotSent => {}
            }
        });
        if !dropped.is_empty() {
            let queued = self.lanes.get(&key).map_or(0, |lane| lane.queue.len());
            self.unqueued(key, &dropped, queued == 0);
            self.clear_backlogs(key, threshold / 4);
        }
        self.forget_revisions(&dropped);
    }

    /// Forgets a lane that has been idle for long, or one of too many. It looks at two lanes, which keeps up with one that
    /// is added.
    fn forget_idle(&mut self, now_ms: i64) {
        for _ in 0..2 {
            let Some((key, since_ms)) = self.forgettable.front().copied() else { return };
            let is_crowded = self.forgettable.len() > MAX_IDLE_LANES;
            if now_ms - since_ms < KEEP_IDLE_MS && !is_crowded {
                return;
            }
            self.forgettable.pop_front();
            let Some(lane) = self.lanes.get(&key) else { continue };
            let is_old = is_crowded || now_ms - lane.idle_since_ms >= KEEP_IDLE_MS;
            if !lane.is_idle() || !is_old {
                let since_ms = if lane.is_idle() { lane.idle_since_ms } else { now_ms };
                self.forgettable.push_back((key, since_ms));
                continue;
            }
            self.shares.forget_lane(lane.namespace);
            self.lanes.remove(&key);
            let Some(receiver) = self.receivers.get_mut(&key.lane) else { continue };
            receiver.lanes -= 1;
            if receiver.lanes == 0 {
                *self.states.of(receiver.load()) -= 1;
                self.receivers.remove(&key.lane);
            }
        }
    }

    /// Drops every queued pointer. Attempts under way go on.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.queued_revisions.clear();
        self.backlogs.clear();
        self.ages.clear();
        self.shares.clear_queues();
        (self.queued, self.lanes_queued) = (0, 0);
        let keys: Vec<LaneKey> = self.lanes.keys().copied().collect();
        for key in keys {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            lane.clear();
            self.change_receiver(key.lane, |receiver| receiver.waiting = 0);
        }
    }
}

#[cfg(test)]
mod tests;

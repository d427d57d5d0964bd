//! Which due timers are sent next: a lane for each receiver and class of attempts.
//!
//! A plain structure without I/O or clock. Due timers wait here as pointers, unclaimed, until their lane has room. A
//! receiver that hangs fills its own lane and no other.
//!
//! **Trust.** A node keeps room for receivers that answer: those of which nothing is known, and those whose last attempts
//! had no answer, have a share of it, and so has each host or domain of theirs (`receiver.rs`, `turns.rs`). How many
//! attempts at unknown ones are under way follows what the processor bears (`newcomers.rs`). A timer takes one of the
//! node's places from its claim until its outcome is recorded.
//!
//! **Limits.** The number of attempts that a lane may send at once (its permits, [`Lanes::acquire`]) starts small, rises
//! with every answer and is halved when the receiver does not answer in time. While the receiver answers, a lane may
//! have three times as many pointers in flight as it has permits: the next attempts are claimed by the time a permit
//! is free. This holds as long as half of the node is free. Retries have lanes of their own and never take more than
//! a quarter of the node. First attempts that an outage left overdue have lanes of their own too and never take more
//! than half, so that timers that fall due now are not delayed by them.
//!
//! **Destinations.** What is agreed for the lane of a destination (concurrency, rate, held) stands in `terms.rs`. One
//! whose attempts fail again and again is tried by one attempt at a time, like a receiver that cannot be reached.
//!
//! **Queues.** A lane queues as many pointers as its receiver takes within half a minute, and never more than all lanes
//! together leave free; so there is always room for another receiver. A pointer for which its lane is full is dropped;
//! its row stays in SQL. The sweep skips lanes that have a backlog ([`Lanes::backlogged`]) and postpones rows that a slow
//! receiver's lane cannot queue. As long as the sweep has still to bring dropped pointers of a lane, a long queue takes
//! pointers from the sweep only: these are older than what has just fallen due.

mod lane;
mod newcomers;
mod pace;
mod receiver;
mod terms;
mod turns;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use tokio::sync::oneshot;

use crate::model::id::Uid;
use crate::model::pointer::{Pointer, Revision, Via};
use crate::model::priority::Priority;
use crate::model::time::UnixMs;
use lane::{INITIAL_LIMIT, Lane};
use newcomers::Newcomers;
use receiver::{Receiver, Standing};
use terms::Agreed;
pub use terms::Terms;
use turns::{Turns, group_of};

/// Pointers that all lanes together queue at most. Each lane may queue as many as are left: one alone takes half of
/// them, two a third each, so that some are always left for another (dynamic thresholds, Choudhury and Hahne 1998).
const MAX_QUEUED: usize = 524_288;

/// The highest threshold of a backlog: a lane with so many pointers has a backlog, until a quarter of them are left.
const BACKLOG_MAX: usize = 2048;

/// The lowest threshold of a backlog, where many lanes have a queue.
const BACKLOG_MIN: usize = 64;

/// Lanes without a backlog queue about so many pointers together: the sweep reads them all, each time it looks.
const QUEUED_WITHOUT_BACKLOG: usize = 32_768;

/// With more lanes than these, idle ones are forgotten, those first that have been kept longest.
const MAX_IDLE_LANES: usize = 32_768;

/// How long a lane is kept that nothing is sent to, in milliseconds: with it goes what is known of its receiver.
const KEEP_IDLE_MS: i64 = 600_000;

/// How exactly the age of the oldest queued pointer is known, in milliseconds.
const OLDEST_STEP_MS: i64 = 100;

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
    /// The receiver: a hash of scheme, host and port.
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

/// A timer that was taken and whose outcome is not recorded yet.
#[derive(Debug)]
struct InHand {
    revision: Revision,
    /// Its attempt does not start before, in microseconds: the slot that it has.
    slot_us: Option<i64>,
    /// A pointer that came meanwhile and is no older: the timer was changed, or its attempt is to be made again. It is
    /// offered when the outcome is recorded; otherwise only the sweep would bring it, a second later.
    next: Option<Pointer>,
}

/// What one receiver's lanes hold, all classes of attempts together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LaneLoad {
    /// Pointers that wait, unclaimed.
    pub waiting: usize,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
}

/// How many receivers' lanes are in which state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// Nothing to do.
    pub idle: usize,
    /// Attempts are under way, and nothing waits.
    pub sending: usize,
    /// Pointers wait.
    pub waiting: usize,
}

impl States {
    /// The count in which lanes with this load are.
    pub fn of(&mut self, load: LaneLoad) -> &mut usize {
        match load {
            LaneLoad { waiting: 1.., .. } => &mut self.waiting,
            LaneLoad { in_flight: 1.., .. } => &mut self.sending,
            LaneLoad { .. } => &mut self.idle,
        }
    }
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
    /// Timers that were taken and whose outcome is not recorded yet. They are not taken again: a claim whose answer was
    /// lost may have happened, and a result that is not written yet is a result all the same.
    in_hand: HashMap<Uid, InHand>,
    /// Timers in hand that take no place: they will never be sent from here.
    set_aside: usize,
    backlogged: HashSet<(LaneKey, Priority)>,
    /// How often a lane has ceased to have a backlog.
    backlogs_cleared: u64,
    /// Pointers in queues.
    queued: usize,
    /// Pointers in queues of lanes with a backlog.
    queued_in_backlogs: usize,
    /// Lanes with queued pointers.
    lanes_queued: usize,
    states: States,
    /// How many queued pointers are due in which stretch of time ([`OLDEST_STEP_MS`]).
    ages: BTreeMap<i64, usize>,
    /// Claimed pointers by class and by standing of their receiver: the index is the number of either.
    in_flight: [usize; Class::COUNT],
    by_standing: [usize; 3],
    newcomers: Newcomers,
    agreed: Agreed,
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
            in_hand: HashMap::new(),
            set_aside: 0,
            backlogged: HashSet::new(),
            backlogs_cleared: 0,
            queued: 0,
            queued_in_backlogs: 0,
            lanes_queued: 0,
            states: States::default(),
            ages: BTreeMap::new(),
            in_flight: [0; Class::COUNT],
            by_standing: [0; 3],
            newcomers: Newcomers::of(total),
            agreed: Agreed::default(),
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

    /// Puts the terms of all destinations in force. What waits in lanes that are held now is dropped.
    pub fn set_terms(&mut self, terms: HashMap<i64, Terms>, now_ms: i64) {
        let changed = self.agreed.set(terms);
        for lane in changed.lanes {
            let most = self.agreed.concurrency(lane, self.per_lane);
            for class in Class::ALL {
                let key = LaneKey { lane, class };
                if self.agreed.holds(lane) {
                    self.empty(key);
                }
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.limit = lane.limit.min(most);
                }
                self.wake(key, now_ms);
            }
        }
        self.released += u64::from(changed.has_released);
        self.backlogs_cleared += u64::from(changed.has_released);
    }

    /// How often a lane has ceased to be held.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Drops what waits in a lane.
    fn empty(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let dropped = lane.queue.take(usize::MAX);
        lane.refuse_permits();
        self.unqueued(key, &dropped, true);
        self.clear_backlogs(key, 1);
        self.forget_revisions(&dropped);
    }

    /// Pointers that were dropped are no longer the newest of their timers, unless newer ones have replaced them.
    fn forget_revisions(&mut self, dropped: &[Pointer]) {
        for pointer in dropped {
            if self.queued_revisions.get(&pointer.uid) == Some(&pointer.revision()) {
                self.queued_revisions.remove(&pointer.uid);
            }
        }
    }

    /// Whether a lane needs time at its destination ([`Lanes::wanted_slots`]).
    pub fn needs_slots(&self) -> bool {
        self.agreed.is_wanting()
    }

    /// The time at destinations to ask for: `(lane, count, step in µs)`.
    pub fn wanted_slots(&mut self) -> Vec<(i64, i64, i64)> {
        let receivers = &self.receivers;
        self.agreed.wanted(|lane| receivers.get(&lane).map_or(0, |receiver| receiver.waiting))
    }

    /// Slots were reserved in a lane: `count` from `first_us` on.
    pub fn grant_slots(&mut self, lane: i64, first_us: i64, count: i64, step_us: i64, now_ms: i64) {
        self.agreed.grant(lane, first_us, count, step_us);
        for class in Class::ALL {
            self.wake(LaneKey { lane, class }, now_ms);
        }
    }

    /// Slots could not be reserved: they are asked for again.
    pub fn want_slots_again(&mut self, lanes: impl Iterator<Item = i64>) {
        self.agreed.want_again(lanes);
    }

    /// The time before which the attempt of a timer in hand does not start, in microseconds; `None` if it has no slot.
    pub fn slot_of(&self, uid: &Uid) -> Option<i64> {
        self.in_hand.get(uid).and_then(|in_hand| in_hand.slot_us)
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
        if self.agreed.holds(key.lane) {
            return Offer::Held;
        }
        self.forget_idle(now_ms);
        let free = MAX_QUEUED.saturating_sub(self.queued);
        let threshold = self.backlog_threshold();
        let limit = self.initial_limit(key.lane);
        let lane = self.lanes.entry(key).or_insert_with(|| {
            let receiver = self.receivers.entry(key.lane).or_insert_with(|| {
                self.states.idle += 1;
                Receiver::default()
            });
            receiver.lanes += 1;
            self.forgettable.push_back((key, now_ms));
            Lane::new(limit, now_ms)
        });
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
        if lane.is_backlogged[priority as usize] {
            self.queued_in_backlogs += 1;
        } else if lane.queue.len_of(priority) >= threshold {
            lane.is_backlogged[priority as usize] = true;
            self.backlogged.insert((key, priority));
            self.queued_in_backlogs += lane.queue.len_of(priority);
        }
        self.queued += 1;
        *self.ages.entry(age_of(&pointer)).or_default() += 1;
        self.queued_revisions.insert(pointer.uid, revision);
        self.change_receiver(key.lane, |receiver| receiver.waiting += 1);
        self.wake(key, now_ms);
        Offer::Queued
    }

    /// With how many queued pointers a lane has a backlog: the fewer, the more lanes there are.
    fn backlog_threshold(&self) -> usize {
        (QUEUED_WITHOUT_BACKLOG / self.lanes_queued.max(1)).clamp(BACKLOG_MIN, BACKLOG_MAX)
    }

    /// The limit of a new lane of this receiver.
    fn initial_limit(&self, lane: i64) -> usize {
        INITIAL_LIMIT.min(self.agreed.concurrency(lane, self.per_lane))
    }

    /// Permits that a receiver's lanes may still give out together: a concurrency of its own holds for all classes.
    fn free_permits(&self, lane: i64) -> usize {
        let most = self.agreed.concurrency(lane, usize::MAX);
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

    /// The lanes with a backlog, but for those that are held: the sweep skips them until [`Lanes::backlogs_cleared`] rises.
    pub fn backlogged(&self) -> impl Iterator<Item = (LaneKey, Priority)> {
        self.backlogged.iter().copied()
    }

    /// The lanes that are held: the sweep skips them, too.
    pub fn held(&self) -> impl Iterator<Item = i64> {
        self.agreed.held()
    }

    /// How often a lane has ceased to have a backlog.
    pub fn backlogs_cleared(&self) -> u64 {
        self.backlogs_cleared
    }

    /// How many pointers are queued in lanes without a backlog.
    pub fn queued_without_backlog(&self) -> usize {
        self.queued - self.queued_in_backlogs
    }

    /// Ends the backlogs of a lane's priorities of which fewer than `least` pointers wait.
    fn clear_backlogs(&mut self, key: LaneKey, least: usize) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        for priority in Priority::ALL {
            let waiting = lane.queue.len_of(priority);
            let is_backlogged = &mut lane.is_backlogged[priority as usize];
            if *is_backlogged && waiting < least {
                *is_backlogged = false;
                self.backlogged.remove(&(key, priority));
                self.backlogs_cleared += 1;
                self.queued_in_backlogs -= waiting;
            }
        }
    }

    /// Notes that these pointers of a lane are no longer queued.
    fn unqueued(&mut self, key: LaneKey, pointers: &[Pointer], is_empty: bool) {
        if pointers.is_empty() {
            return;
        }
        for pointer in pointers {
            if self.backlogged.contains(&(key, pointer.priority)) {
                self.queued_in_backlogs -= 1;
            }
            let age = age_of(pointer);
            if let Some(count) = self.ages.get_mut(&age) {
                *count -= 1;
                if *count == 0 {
                    self.ages.remove(&age);
                }
            }
        }
        self.queued -= pointers.len();
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
        let unproven = |standing, in_flight| if standing == Standing::Proven { 0 } else { in_flight };
        let (before, after) = (unproven(standing, in_flight), unproven(now_standing, now_in_flight));
        self.turns.groups.change(group_of(lane), before, after);
    }

    /// The claim of a pointer surely got no row: it is neither in flight nor in hand any more.
    pub fn claim_dropped(&mut self, pointer: &Pointer, now_ms: i64) {
        self.free_claim(LaneKey::of(pointer), now_ms);
        let in_hand = self.in_hand.remove(&pointer.uid);
        // The same revision again would get no row either.
        let newer = |in_hand: InHand| in_hand.next.filter(|next| next.revision() > in_hand.revision);
        if let Some(next) = in_hand.and_then(newer) {
            self.offer(next, now_ms);
        }
    }

    /// A claimed pointer will never be sent from here: it stays in hand, so that it is not claimed again and again, and
    /// takes no place.
    pub fn set_aside(&mut self, pointer: &Pointer, now_ms: i64) {
        self.free_claim(LaneKey::of(pointer), now_ms);
        self.set_aside += 1;
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

    /// The outcome of a timer is recorded: it is no longer in hand. Returns whether a pointer that came meanwhile is
    /// queued now, or a place became free that others wait for.
    pub fn recorded(&mut self, uid: &Uid, now_ms: i64) -> bool {
        let was_full = self.is_full();
        let next = self.in_hand.remove(uid).and_then(|in_hand| in_hand.next);
        next.is_some_and(|next| self.offer(next, now_ms) == Offer::Queued) || was_full
    }

    /// Whether the timer was taken and its outcome is not recorded yet.
    pub fn has_in_hand(&self, uid: &Uid) -> bool {
        self.in_hand.contains_key(uid)
    }

    /// Whether the node can take nothing more: what it has taken and not recorded fills its places.
    fn is_full(&self) -> bool {
        self.in_hand.len() >= self.total + self.set_aside
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
            self.lanes.remove(&key);
            let Some(receiver) = self.receivers.get_mut(&key.lane) else { continue };
            receiver.lanes -= 1;
            if receiver.lanes == 0 {
                *self.states.of(receiver.load()) -= 1;
                self.receivers.remove(&key.lane);
            }
        }
    }

    /// The earliest moment at which a queued pointer was due, to [`OLDEST_STEP_MS`].
    pub fn oldest_queued(&self) -> Option<UnixMs> {
        self.ages.first_key_value().map(|(age, _)| UnixMs::new(age * OLDEST_STEP_MS))
    }

    /// What the lanes of these receivers hold; `None` where there are none.
    pub fn loads(&self, lanes: &[i64]) -> Vec<Option<LaneLoad>> {
        lanes.iter().map(|lane| self.receivers.get(lane).map(Receiver::load)).collect()
    }

    /// How many receivers are in which state.
    pub fn states(&self) -> States {
        self.states
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
        self.ages.clear();
        (self.queued, self.queued_in_backlogs, self.lanes_queued) = (0, 0, 0);
        let keys: Vec<LaneKey> = self.lanes.keys().copied().collect();
        for key in keys {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            lane.clear();
            self.change_receiver(key.lane, |receiver| receiver.waiting = 0);
        }
    }
}

/// The stretch of time in which a pointer is due.
const fn age_of(pointer: &Pointer) -> i64 {
    pointer.wake_at.get().div_euclid(OLDEST_STEP_MS)
}

#[cfg(test)]
mod tests;

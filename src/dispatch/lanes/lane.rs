//! One lane: the queue, the permits and the limits of one receiver in one class of attempts.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::pace::Pace;
use crate::model::namespace::Namespace;
use crate::model::pointer::Pointer;
use crate::model::priority::Priority;

/// The limit of a new lane: attempts that may be sent at once to a receiver of which nothing is known. It rises with each
/// answer, so a quick receiver has it doubled within one round trip.
pub(super) const INITIAL_LIMIT: usize = 16;

/// The lowest limit: attempts that may be sent at once to a receiver that never answers.
pub(super) const MIN_LIMIT: usize = 4;

/// Length of a full queue, in seconds of the receiver's work.
const QUEUE_S: f64 = 30.0;

/// Pointers that a queue may hold however slow the receiver is.
pub(super) const MIN_CAPACITY: usize = 64;

/// The longest time for which a row is postponed, in milliseconds.
const POSTPONE_MAX_MS: f64 = 300_000.0;

/// The pointers that wait in a lane, unclaimed: of one priority first in first out, of several by turns.
///
/// The turns are smooth: each priority that waits gains its weight at each turn, the one that has gained most has the
/// turn and pays what all gained. So sixteen high ones do not go in a row before four normal ones.
#[derive(Debug, Default)]
pub(super) struct LaneQueue {
    pointers: [VecDeque<Pointer>; Priority::ALL.len()],
    gained: [i32; Priority::ALL.len()],
}

impl LaneQueue {
    /// Adds a pointer behind all others of its priority.
    pub fn push(&mut self, pointer: Pointer) {
        self.pointers[pointer.priority as usize].push_back(pointer);
    }

    /// Takes the next pointer.
    pub fn pop(&mut self) -> Option<Pointer> {
        let (mut turn, mut all) = (None, 0);
        for priority in Priority::ALL {
            let place = priority as usize;
            if self.pointers[place].is_empty() {
                // Who does not wait saves nothing up.
                self.gained[place] = 0;
                continue;
            }
            self.gained[place] += priority.weight();
            all += priority.weight();
            if turn.is_none_or(|turn: usize| self.gained[place] > self.gained[turn]) {
                turn = Some(place);
            }
        }
        let turn = turn?;
        self.gained[turn] -= all;
        self.pointers[turn].pop_front()
    }

    /// Takes the next `count` pointers, at most as many as there are.
    pub fn take(&mut self, count: usize) -> Vec<Pointer> {
        let mut waiting = self.pointers.iter_mut().filter(|queue| !queue.is_empty());
        if let (Some(only), None) = (waiting.next(), waiting.next()) {
            // The turns of one alone change nothing, and who does not wait saves nothing up.
            self.gained = [0; Priority::ALL.len()];
            return only.drain(..count.min(only.len())).collect();
        }
        std::iter::from_fn(|| self.pop()).take(count).collect()
    }

    /// Takes the last pointer of the lowest priority.
    pub fn take_last(&mut self) -> Option<Pointer> {
        self.pointers.iter_mut().rev().find_map(VecDeque::pop_back)
    }

    /// Makes room for a pointer of this priority in a queue that is full with `capacity`: takes the last pointer of the
    /// lowest other priority that has more than its share, if that is lower or this one has less than its own. So what is
    /// more important goes first, and each keeps as many as its turns will need.
    pub fn make_room(&mut self, priority: Priority, capacity: usize) -> Option<Pointer> {
        let share = |one: Priority| (capacity * one.weight() as usize / Priority::WEIGHTS as usize).max(1);
        let lacks = self.len_of(priority) < share(priority);
        let gives = |one: &Priority| {
            *one != priority && self.len_of(*one) > share(*one) && (lacks || *one > priority)
        };
        let from = Priority::ALL.into_iter().rev().find(gives)?;
        self.pointers[from as usize].pop_back()
    }

    /// How many pointers wait.
    pub fn len(&self) -> usize {
        self.pointers.iter().map(VecDeque::len).sum()
    }

    /// How many pointers of this priority wait.
    pub fn len_of(&self, priority: Priority) -> usize {
        self.pointers[priority as usize].len()
    }

    /// Whether no pointer waits.
    pub fn is_empty(&self) -> bool {
        self.pointers.iter().all(VecDeque::is_empty)
    }

    /// Drops all pointers.
    pub fn clear(&mut self) {
        self.pointers.iter_mut().for_each(VecDeque::clear);
    }
}

/// Where a lane with queued pointers waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nowhere: its queue is empty, or it has no room until an attempt ends.
    Nowhere,
    /// In the ring of its class and standing.
    InRing,
    /// For room among the attempts of its group.
    ForGroup,
    /// For the time of its receiver's next trial or slot, in milliseconds.
    ForTrial(i64),
}

/// A receiver's lane, for one class of attempts.
#[derive(Debug)]
pub(super) struct Lane {
    /// Whose timers it is for: no lane is for those of two.
    pub namespace: Namespace,
    pub queue: LaneQueue,
    pub waits: Waits,
    /// By priority: so many wait that the sweep skips the rows.
    pub is_backlogged: [bool; Priority::ALL.len()],
    /// When it was last idle, in milliseconds.
    pub idle_since_ms: i64,
    /// Claimed pointers: they wait for the due millisecond or for a permit, or are being sent.
    pub in_flight: usize,
    /// Permits given out: attempts that are being sent.
    sending: usize,
    /// Attempts that are due and wait for a permit, in order.
    permit_waiters: VecDeque<oneshot::Sender<()>>,
    /// Permits in all: how many attempts may be sent at once.
    pub limit: usize,
    pub pace: Pace,
    /// When the queue was last empty as a pointer came.
    last_empty_at_ms: i64,
    /// By priority: pointers that were dropped and that the sweep has not brought yet, about.
    dropped: [usize; Priority::ALL.len()],
    /// Rows that were postponed and come before the next one, as of `postponed_at_ms`.
    postponed: f64,
    postponed_at_ms: i64,
}

impl Lane {
    pub fn new(namespace: Namespace, limit: usize, now_ms: i64) -> Self {
        Self {
            namespace,
            queue: LaneQueue::default(),
            waits: Waits::Nowhere,
            is_backlogged: [false; Priority::ALL.len()],
            idle_since_ms: now_ms,
            in_flight: 0,
            sending: 0,
            permit_waiters: VecDeque::new(),
            limit,
            pace: Pace::new(now_ms),
            last_empty_at_ms: now_ms,
            dropped: [0; Priority::ALL.len()],
            postponed: 0.0,
            postponed_at_ms: now_ms,
        }
    }

    /// How many pointers may be in flight. While the receiver answers these are three times as many as there are
    /// permits, so that the next attempts are claimed by the time a permit is free; `initial` is the limit of a
    /// new lane.
    pub fn max_in_flight(&self, initial: usize) -> usize {
        if self.limit < initial { self.limit } else { 3 * self.limit }
    }

    /// Nothing of it is queued or in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }

    /// Drops every queued pointer.
    pub fn clear(&mut self) {
        self.queue.clear();
        (self.waits, self.is_backlogged) = (Waits::Nowhere, [false; Priority::ALL.len()]);
    }

    /// How many pointers may wait.
    pub fn capacity(&self) -> usize {
        ((self.pace.per_second() * QUEUE_S) as usize).max(MIN_CAPACITY)
    }

    /// Counts a pointer that the queue did not take and that the sweep will bring again.
    pub fn count_dropped(&mut self, priority: Priority) {
        self.dropped[priority as usize] += 1;
    }

    /// Whether the sweep has still to bring pointers of this priority that were dropped: these are older than what falls
    /// due now.
    pub fn is_owed_by_sweep(&self, priority: Priority) -> bool {
        self.dropped[priority as usize] > 0
    }

    /// Queues a pointer; `swept` if the sweep has brought it.
    pub fn push(&mut self, pointer: Pointer, swept: bool, now_ms: i64) {
        let dropped = &mut self.dropped[pointer.priority as usize];
        *dropped = dropped.saturating_sub(usize::from(swept));
        // Some of the timers that were dropped may have been cancelled, so the count may never come to 0.
        if self.queue.len_of(pointer.priority) == 0 {
            *dropped = 0;
        }
        if self.queue.is_empty() {
            self.last_empty_at_ms = now_ms;
        }
        self.queue.push(pointer);
    }

    /// For how many milliseconds to postpone a row for which the queue is full: until the pointers that wait here
    /// and the rows that were postponed before it are sent. Never for longer than there has been a queue, so that a
    /// short stall does not postpone rows for long.
    pub fn postpone_ms(&mut self, now_ms: i64) -> i64 {
        let passed_s = (now_ms - self.postponed_at_ms) as f64 / 1000.0;
        let pace = self.pace.per_second();
        let before = (self.postponed - passed_s * pace).clamp(0.0, POSTPONE_MAX_MS / 1000.0 * pace);
        (self.postponed, self.postponed_at_ms) = (before + 1.0, now_ms);
        let drain_ms = (self.queue.len() as f64 + before) / (pace + 0.1) * 1000.0;
        let queue_ms = (now_ms - self.last_empty_at_ms) as f64;
        drain_ms.min(queue_ms).clamp(1000.0, POSTPONE_MAX_MS) as i64
    }

    /// How many permits are given out.
    pub fn sending(&self) -> usize {
        self.sending
    }

    /// Gives a permit to send at once (`None`) if there are `free` ones for its receiver, or a receiver that completes when
    /// there is one.
    pub fn acquire(&mut self, free: usize) -> Option<oneshot::Receiver<()>> {
        if self.sending < self.limit && free > 0 {
            self.sending += 1;
            return None;
        }
        let (permit, granted) = oneshot::channel();
        self.permit_waiters.push_back(permit);
        Some(granted)
    }

    /// Takes a permit back.
    pub fn release(&mut self) {
        self.sending = self.sending.saturating_sub(1);
    }

    /// Gives no permit to those that wait for one: the receiver cannot be reached.
    pub fn refuse_permits(&mut self) {
        self.permit_waiters.clear();
    }

    /// Gives permits, `free` at most, to the attempts that wait for one.
    pub fn grant(&mut self, free: usize) {
        let most = self.limit.min(self.sending.saturating_add(free));
        while self.sending < most {
            let Some(permit) = self.permit_waiters.pop_front() else { break };
            // An attempt that no longer waits gets no permit.
            self.sending += usize::from(permit.send(()).is_ok());
        }
    }

    /// The receiver answered: one permit more, `max` at most.
    pub fn answered(&mut self, max: usize, now_ms: i64) {
        self.limit = (self.limit + 1).min(max);
        self.pace.answered();
        self.pace.measure(self.queue.is_empty(), now_ms);
    }

    /// The receiver did not answer: half the permits, `max` at most. Returns the pointers for which the queue is
    /// now too short.
    pub fn not_answered(&mut self, max: usize, now_ms: i64) -> Vec<Pointer> {
        self.limit = (self.limit / 2).max(MIN_LIMIT).min(max);
        self.pace.measure(self.queue.is_empty(), now_ms);
        let mut dropped = Vec::new();
        while self.queue.len() > self.capacity() {
            dropped.extend(self.queue.take_last());
        }
        dropped
    }
}

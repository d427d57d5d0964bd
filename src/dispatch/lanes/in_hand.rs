//! What is in hand: timers that this node has taken and whose outcome is not recorded yet.
//!
//! Nothing else is claimed for them until then: a claim whose answer was lost may have happened, and a result that is not
//! written yet is a result all the same. A timer comes in hand with its own pointer ([`Lanes::take`]), or because an
//! attempt is for it as well ([`Lanes::join`]): then it is *held* until as many reports about it are recorded. Each timer
//! in hand takes one of the node's places, but for those that are set aside.

use std::collections::HashMap;

use super::{LaneKey, Lanes, Offer};
use crate::model::id::Uid;
use crate::model::pointer::{Pointer, Revision, Via};

/// A timer in hand.
#[derive(Debug)]
struct Taken {
    revision: Revision,
    /// Its attempt does not start before, in microseconds: the slot that it has.
    slot_us: Option<i64>,
    /// A pointer that came meanwhile and is no older: the timer was changed, or its attempt is to be made again. It is
    /// offered when the outcome is recorded; otherwise only the sweep would bring it, a second later.
    next: Option<Pointer>,
    /// How many reports about it are to be recorded, beside the one that its own pointer leads to.
    held: u32,
}

/// All timers in hand.
#[derive(Debug, Default)]
pub(super) struct InHand {
    timers: HashMap<Uid, Taken>,
    /// Those that take no place: they will never be sent from here.
    set_aside: usize,
}

impl InHand {
    /// How many more timers may be taken, of `total` places.
    pub fn free_places(&self, total: usize) -> usize {
        (total + self.set_aside).saturating_sub(self.timers.len())
    }

    /// A pointer that was queued is taken, and has this slot.
    pub fn take(&mut self, pointer: &Pointer, slot_us: Option<i64>) {
        let taken = Taken { revision: pointer.revision(), slot_us, next: None, held: 0 };
        self.timers.insert(pointer.uid, taken);
    }

    /// Keeps a pointer that was queued, for after the record, if its timer is in hand; returns whether it is.
    pub fn keep(&mut self, pointer: &Pointer) -> bool {
        let Some(taken) = self.timers.get_mut(&pointer.uid) else { return false };
        taken.next = Some(*pointer);
        true
    }

    /// The same for a pointer that is offered, which may be older than what is known.
    pub fn keep_if_newer(&mut self, pointer: &Pointer) -> bool {
        let Some(taken) = self.timers.get_mut(&pointer.uid) else { return false };
        let latest = taken.next.map_or(taken.revision, |next| next.revision());
        // A pointer from the sweep need not be kept: the sweep offers it again.
        if pointer.revision() >= latest && pointer.via != Via::Sweep {
            taken.next = Some(*pointer);
        }
        true
    }

    /// One report more is to be recorded about this timer.
    fn hold(&mut self, uid: Uid, revision: Revision, slot_us: Option<i64>) {
        let taken = Taken { revision, slot_us: None, next: None, held: 0 };
        let taken = self.timers.entry(uid).or_insert(taken);
        taken.held += 1;
        taken.slot_us = taken.slot_us.or(slot_us);
    }

    fn is_held(&self, uid: &Uid) -> bool {
        self.timers.get(uid).is_some_and(|taken| taken.held > 0)
    }

    /// A pointer that was taken has led to nothing. Returns what was in hand, unless its timer is held: then it stays.
    fn forget(&mut self, uid: &Uid) -> Option<Taken> {
        if self.is_held(uid) { None } else { self.timers.remove(uid) }
    }

    /// A report about this timer is recorded. With the last one it is no longer in hand: returns the pointer that came
    /// meanwhile, if one did.
    fn recorded(&mut self, uid: &Uid) -> Option<Pointer> {
        if let Some(taken) = self.timers.get_mut(uid).filter(|taken| taken.held > 1) {
            taken.held -= 1;
            return None;
        }
        self.timers.remove(uid).and_then(|taken| taken.next)
    }
}

impl Lanes {
    /// The claim of a pointer surely got no row: it is neither in flight nor in hand any more.
    pub fn claim_dropped(&mut self, pointer: &Pointer, now_ms: i64) {
        self.free_claim(LaneKey::of(pointer), now_ms);
        let taken = self.in_hand.forget(&pointer.uid);
        // The same revision again would get no row either.
        let newer = |taken: Taken| taken.next.filter(|next| next.revision() > taken.revision);
        if let Some(next) = taken.and_then(newer) {
            self.offer(next, now_ms);
        }
    }

    /// A claimed pointer will never be sent from here: it stays in hand, so that it is not claimed again and again, and
    /// takes no place.
    pub fn set_aside(&mut self, pointer: &Pointer, now_ms: i64) {
        self.free_claim(LaneKey::of(pointer), now_ms);
        self.in_hand.set_aside += 1;
    }

    /// The attempt of a pointer that was taken is for these timers as well, whose pointers would claim nothing now: they
    /// are in hand, too.
    /// `slot_us` is the first one's.
    pub fn join(&mut self, members: impl Iterator<Item = (Uid, Revision)>, mut slot_us: Option<i64>) {
        for (uid, revision) in members {
            // A queued pointer to what the report is about is dropped when its turn comes.
            if self.queued_revisions.get(&uid).is_some_and(|queued| *queued <= revision) {
                self.queued_revisions.remove(&uid);
            }
            self.in_hand.hold(uid, revision, slot_us.take());
        }
    }

    /// Whether a report about this timer is to be recorded.
    pub fn is_held(&self, uid: &Uid) -> bool {
        self.in_hand.is_held(uid)
    }

    /// The attempt of a pointer that was taken is not for its own timer, but for others: it is no longer in hand. Returns the
    /// slot that it has.
    pub fn stands_in(&mut self, came: &Uid) -> Option<i64> {
        self.in_hand.forget(came).and_then(|taken| taken.slot_us)
    }

    /// The outcome of a timer is recorded: it is no longer in hand. Returns whether a pointer that came meanwhile is
    /// queued now, or a place became free that others wait for.
    pub fn recorded(&mut self, uid: &Uid, now_ms: i64) -> bool {
        let was_full = self.is_full();
        let next = self.in_hand.recorded(uid);
        next.is_some_and(|next| self.offer(next, now_ms) == Offer::Queued) || was_full
    }

    /// Whether the timer was taken and its outcome is not recorded yet.
    pub fn has_in_hand(&self, uid: &Uid) -> bool {
        self.in_hand.timers.contains_key(uid)
    }

    /// The time before which the attempt of a timer in hand does not start, in microseconds; `None` if it has no slot.
    pub fn slot_of(&self, uid: &Uid) -> Option<i64> {
        self.in_hand.timers.get(uid).and_then(|taken| taken.slot_us)
    }

    /// Whether the node can take nothing more: what it has taken and not recorded fills its places.
    pub fn is_full(&self) -> bool {
        self.in_hand.free_places(self.total) == 0
    }
}

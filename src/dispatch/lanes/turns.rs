//! Whose turn it is: rings of lanes that have something queued, and the places where others wait.
//!
//! A lane waits in the ring of its class and its receiver's standing. A lane without room leaves its ring until an
//! attempt ends; one whose group is full waits with the group, and one whose receiver cannot be reached, or whose
//! destination has a rate, waits for the next trial or slot. So a turn costs the same, however many lanes there are.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::lane::{INITIAL_LIMIT, Waits};
use super::receiver::Standing;
use super::ring::Ring;
use super::shares::Room;
use super::{Class, LaneKey, Lanes, TURN};
use crate::model::pointer::Pointer;

/// How many rings there are.
const RINGS: usize = Class::COUNT * Standing::ALL.len();

/// How many lanes one call of [`Lanes::take`] looks at, at most: the lanes are locked meanwhile.
const LOOKS: usize = 2048;

/// How long before its slot a timer is claimed, in milliseconds. Its attempt waits for the slot.
pub(super) const SLOT_LEAD_MS: i64 = 50;

/// When a lane that has no slot is looked at again, in milliseconds, if none comes meanwhile.
const NO_SLOT_MS: i64 = 1000;

/// The rings, and where lanes wait beside them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    rings: [Ring; RINGS],
    /// The ring that has its turn next.
    next: usize,
    /// Lanes that wait for the time of a trial or of a slot.
    trials: BTreeSet<(i64, LaneKey)>,
    pub groups: Groups,
    /// How many lanes were looked at.
    #[cfg(test)]
    pub looks: u64,
}

impl Turns {
    pub fn clear(&mut self) {
        self.rings.iter_mut().for_each(Ring::clear);
        self.trials.clear();
        self.groups.clear();
    }
}

/// The ring of a class and a standing.
const fn ring_of(class: Class, standing: Standing) -> usize {
    class as usize * Standing::ALL.len() + standing as usize
}

/// The class and the standing of a ring.
const fn of_ring(ring: usize) -> (Class, Standing) {
    (Class::ALL[ring / Standing::ALL.len()], Standing::ALL[ring % Standing::ALL.len()])
}

/// The group of a lane: its upper half is a hash of the domain or address ([`crate::model::target::Webhook::lane`]).
pub(super) const fn group_of(lane: i64) -> u32 {
    (lane >> 32) as u32
}

/// The attempts at receivers that are not proven, by group.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: HashMap<u32, Group>,
    /// Groups that have got room, and in which lanes wait.
    ready: Vec<u32>,
}

#[derive(Debug, Default)]
struct Group {
    /// Claimed pointers of receivers that are not proven.
    in_flight: usize,
    /// Lanes that wait for room.
    waiting: VecDeque<LaneKey>,
    is_ready: bool,
}

impl Groups {
    /// Changes how many claimed pointers a group has, by those of one receiver `before` and `after`.
    pub fn change(&mut self, group: u32, before: usize, after: usize) {
        if before == after {
            return;
        }
        let one = self.groups.entry(group).or_default();
        one.in_flight = one.in_flight + after - before;
        if one.waiting.is_empty() {
            if one.in_flight == 0 {
                self.groups.remove(&group);
            }
        } else if after < before && !one.is_ready {
            one.is_ready = true;
            self.ready.push(group);
        }
    }

    fn in_flight(&self, group: u32) -> usize {
        self.groups.get(&group).map_or(0, |one| one.in_flight)
    }

    fn wait(&mut self, group: u32, key: LaneKey) {
        self.groups.entry(group).or_default().waiting.push_back(key);
    }

    /// Takes out the lanes for which there is room now, in groups that may have `share` claimed pointers each.
    fn released(&mut self, share: usize) -> Vec<LaneKey> {
        let mut released = Vec::new();
        for group in std::mem::take(&mut self.ready) {
            let Some(one) = self.groups.get_mut(&group) else { continue };
            one.is_ready = false;
            let room = share.saturating_sub(one.in_flight).min(one.waiting.len());
            released.extend(one.waiting.drain(..room));
        }
        released
    }

    #[cfg(test)]
    pub fn counts(&self) -> HashMap<u32, usize> {
        let counts = self.groups.iter().map(|(group, one)| (*group, one.in_flight));
        counts.filter(|(_, in_flight)| *in_flight > 0).collect()
    }

    fn clear(&mut self) {
        self.ready.clear();
        self.groups.retain(|_, one| {
            one.waiting.clear();
            one.is_ready = false;
            one.in_flight > 0
        });
    }
}

impl Lanes {
    /// Takes up to `most` pointers to be claimed now, lane by lane in turn. They are in flight and in hand from here
    /// on. Also returns whether there may be more at once.
    pub fn take(&mut self, most: usize, now_ms: i64) -> (Vec<Pointer>, bool) {
        self.wake_waiting(now_ms);
        let mut taken = Vec::new();
        let (mut empty_rings, mut looks) = (0, 0);
        while taken.len() < most && !self.is_full() && empty_rings < RINGS {
            if looks == LOOKS {
                return (taken, true);
            }
            let ring = self.turns.next;
            self.turns.next = (ring + 1) % RINGS;
            let (room, shares) = (self.room_of_ring(ring), &self.shares);
            let (class, standing) = of_ring(ring);
            let has_room = |namespace| shares.places(namespace, class, standing, room) > 0;
            let pop = || self.turns.rings[ring].pop(has_room);
            let Some((namespace, key)) = (room.all() > 0).then(pop).flatten() else {
                empty_rings += 1;
                continue;
            };
            (empty_rings, looks) = (0, looks + 1);
            #[cfg(test)]
            {
                self.turns.looks += 1;
            }
            let before = taken.len();
            self.turn(key, ring, most - before, now_ms, &mut taken);
            self.turns.rings[ring].spend(namespace, taken.len() - before);
        }
        let more = taken.len() == most;
        (taken, more)
    }

    /// When the next lane is to be looked at because its receiver may be tried again.
    pub fn next_trial_ms(&self) -> Option<i64> {
        self.turns.trials.first().map(|(at_ms, _)| *at_ms)
    }

    /// Puts a lane that has something queued, and waits nowhere, where it belongs.
    pub(super) fn wake(&mut self, key: LaneKey, now_ms: i64) {
        let (Some(lane), Some(receiver)) = (self.lanes.get_mut(&key), self.receivers.get(&key.lane)) else {
            return;
        };
        if lane.queue.is_empty() {
            return;
        }
        let slot_at_ms = self.agreed.next_us(key.lane).map(|at_us| at_us.div_euclid(1000) - SLOT_LEAD_MS);
        let trial_at_ms = receiver.trial_at_ms().max(slot_at_ms).filter(|at_ms| *at_ms > now_ms);
        match lane.waits {
            Waits::Nowhere => {}
            Waits::InRing => return,
            Waits::ForGroup if receiver.standing() != Standing::Proven => return,
            // It is forgotten there when its turn comes.
            Waits::ForGroup => {}
            Waits::ForTrial(at_ms) if trial_at_ms == Some(at_ms) => return,
            Waits::ForTrial(at_ms) => drop(self.turns.trials.remove(&(at_ms, key))),
        }
        match trial_at_ms {
            Some(at_ms) => {
                lane.waits = Waits::ForTrial(at_ms);
                self.turns.trials.insert((at_ms, key));
            }
            None => {
                lane.waits = Waits::InRing;
                self.turns.rings[ring_of(key.class, receiver.standing())].push(lane.namespace, key);
            }
        }
    }

    /// A claimed pointer of this lane is no longer in flight.
    pub(super) fn free(&mut self, key: LaneKey, now_ms: i64, end: impl FnOnce(&mut super::lane::Lane)) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        self.shares.of(lane.namespace).in_flight[key.class as usize] -= usize::from(lane.in_flight > 0);
        lane.in_flight = lane.in_flight.saturating_sub(1);
        end(lane);
        lane.idle_since_ms = now_ms;
        self.grant(key.lane);
        let in_flight = &mut self.in_flight[key.class as usize];
        *in_flight = in_flight.saturating_sub(1);
        self.change_receiver(key.lane, |receiver| receiver.in_flight = receiver.in_flight.saturating_sub(1));
        for class in Class::ALL {
            self.wake(LaneKey { class, ..key }, now_ms);
        }
    }

    /// Lanes whose trial may start, or whose group has room, go back to their rings.
    fn wake_waiting(&mut self, now_ms: i64) {
        for key in self.turns.groups.released(self.group_share()) {
            if self.lanes.get(&key).is_some_and(|lane| lane.waits == Waits::ForGroup) {
                self.wake_from(key, now_ms);
            }
        }
        for _ in 0..LOOKS {
            let Some((at_ms, key)) = self.turns.trials.first().copied() else { return };
            if at_ms > now_ms {
                return;
            }
            self.turns.trials.pop_first();
            self.wake_from(key, now_ms);
        }
    }

    fn wake_from(&mut self, key: LaneKey, now_ms: i64) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.waits = Waits::Nowhere;
        }
        self.wake(key, now_ms);
    }

    /// How many claimed pointers of one group a node may have, while their receivers are not proven: on a small node at
    /// least those of two receivers, so that one that hangs leaves room for another on its host.
    fn group_share(&self) -> usize {
        (self.total / 8).max(2 * INITIAL_LIMIT)
    }

    /// What is free for pointers of this ring.
    fn room_of_ring(&self, ring: usize) -> Room {
        let (class, standing) = of_ring(ring);
        let of_class = class.max_in_flight(self.total).saturating_sub(self.in_flight[class as usize]);
        let [_, new, doubtful] = self.by_standing;
        let of_both = self.newcomers.most().saturating_sub(new + doubtful);
        let of_standing = match standing {
            Standing::Proven => self.total,
            Standing::New => of_both.min(self.newcomers.limit().saturating_sub(new)),
            Standing::Doubtful => of_both.min((self.total / 4).max(1).saturating_sub(doubtful)),
        };
        Room { of_node: self.free_places(), of_class, of_standing }
    }

    /// The turn of one lane, which was at the head of this ring.
    fn turn(&mut self, key: LaneKey, ring: usize, most: usize, now_ms: i64, taken: &mut Vec<Pointer>) {
        let (in_flight, initial_limit) = (self.in_flight(), self.initial_limit(key.lane));
        let (has_rate, places) = (self.agreed.has_rate(key.lane), self.places(key.lane));
        let room = self.room_of_ring(ring);
        let of_node = self.in_hand.free_places(self.total);
        let (group, share) = (group_of(key.lane), self.group_share());
        let (Some(lane), Some(receiver)) = (self.lanes.get_mut(&key), self.receivers.get(&key.lane)) else {
            return;
        };
        let standing = receiver.standing();
        let is_elsewhere = ring != ring_of(key.class, standing);
        let trial = receiver.trial_at_ms();
        if is_elsewhere || trial.is_some_and(|at_ms| at_ms > now_ms) {
            return self.wake_from(key, now_ms);
        }
        let of_lane = match trial {
            // Events have them all.
            _ if places == 0 => 0,
            Some(_) => usize::from(receiver.in_flight == 0),
            // Attempts that only wait for a permit take no room that other receivers need. With a rate they would wait while
            // their slots pass.
            None if standing == Standing::Proven && in_flight < self.total / 2 && !has_rate => {
                lane.max_in_flight(initial_limit).saturating_sub(lane.in_flight)
            }
            None => lane.limit.min(places).saturating_sub(lane.in_flight),
        };
        if of_lane == 0 {
            // An attempt of this receiver is under way, or an event; its end wakes the lane.
            lane.waits = Waits::Nowhere;
            return;
        }
        let of_group = match standing {
            Standing::Proven => usize::MAX,
            Standing::New | Standing::Doubtful => share.saturating_sub(self.turns.groups.in_flight(group)),
        };
        if of_group == 0 {
            lane.waits = Waits::ForGroup;
            return self.turns.groups.wait(group, key);
        }
        let namespace = lane.namespace;
        let of_namespace = self.shares.places(namespace, key.class, standing, room).min(room.all());
        let count = of_lane.min(of_node).min(of_group).min(of_namespace).min(TURN).min(most);
        let until_us = (now_ms + SLOT_LEAD_MS) * 1000;
        let slots = self.agreed.ready(key.lane, until_us, now_ms * 1000, count);
        if slots == Some(0) {
            let at_ms = match self.agreed.next_us(key.lane) {
                Some(at_us) => (at_us.div_euclid(1000) - SLOT_LEAD_MS).max(now_ms + 1),
                None => now_ms + NO_SLOT_MS,
            };
            lane.waits = Waits::ForTrial(at_ms);
            self.turns.trials.insert((at_ms, key));
            return;
        }
        let popped = lane.queue.take(slots.unwrap_or(count));
        let is_empty = lane.queue.is_empty();
        let before = taken.len();
        for pointer in &popped {
            let revision = pointer.revision();
            // A pointer that a newer one has replaced is dropped here.
            if self.queued_revisions.get(&pointer.uid) == Some(&revision) {
                self.queued_revisions.remove(&pointer.uid);
                // It went out with others meanwhile, and was changed since.
                if self.in_hand.keep(pointer) {
                    continue;
                }
                let slot_us = slots.and_then(|_| self.agreed.take(key.lane, until_us));
                self.in_hand.take(pointer, slot_us);
                taken.push(*pointer);
            }
        }
        let count = taken.len() - before;
        lane.in_flight += count;
        self.shares.of(namespace).in_flight[key.class as usize] += count;
        lane.pace.observe_queue(is_empty);
        lane.waits = if is_empty { Waits::Nowhere } else { Waits::InRing };
        if is_empty && count == 0 {
            lane.idle_since_ms = now_ms;
        }
        if !is_empty {
            self.turns.rings[ring].push(namespace, key);
        }
        self.in_flight[key.class as usize] += count;
        self.change_receiver(key.lane, |receiver| receiver.in_flight += count);
        self.unqueued(key, &popped, is_empty);
        self.clear_backlogs(key, self.backlog_threshold() / 4);
    }
}

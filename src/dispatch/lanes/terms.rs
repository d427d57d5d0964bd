//! What is agreed for single lanes: those of destinations have a concurrency, a rate, and may be held.
//!
//! **Rate.** All nodes together reserve time at a destination: slots, one for each attempt, evenly spaced. A node asks for
//! slots for the pointers that wait here, a fraction of a second ahead, and each pointer that is taken gets one, before
//! which its attempt does not start. So the rate holds however many nodes share a destination, and nobody asks for each
//! attempt.
//!
//! **Held.** Pointers of a lane that is held are not queued, and the sweep skips its rows. What is under way ends.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Class, LaneKey, Lanes};

/// For how long ahead slots are asked for, in microseconds.
const AHEAD_US: i64 = 250_000;

/// A slot whose time is past by more is not used, in microseconds: attempts that come late would come together.
const STALE_US: i64 = 50_000;

/// What is agreed for the lane of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Attempts at once; `None` is what every receiver has.
    pub concurrency: Option<usize>,
    /// The time between two attempts, all nodes together, in microseconds; `None` is no limit.
    pub step_us: Option<i64>,
    /// Nothing is to be sent now.
    pub held: bool,
}

/// Slots that this node has at one destination.
#[derive(Debug, Default)]
struct Slots {
    step_us: i64,
    /// The times of the slots, in microseconds, first one first, as ranges: first, and how many.
    ranges: VecDeque<(i64, i64)>,
}

impl Slots {
    fn count(&self) -> i64 {
        self.ranges.iter().map(|(_, count)| count).sum()
    }

    /// Drops slots whose time is past.
    fn forget(&mut self, now_us: i64) {
        while let Some((first, count)) = self.ranges.front_mut() {
            while *count > 0 && *first < now_us - STALE_US {
                (*first, *count) = (*first + self.step_us, *count - 1);
            }
            if *count > 0 {
                return;
            }
            self.ranges.pop_front();
        }
    }

    /// Takes the first slot, if its time is no later.
    fn take(&mut self, until_us: i64) -> Option<i64> {
        let (first, count) = self.ranges.front_mut()?;
        let at_us = *first;
        if at_us > until_us {
            return None;
        }
        (*first, *count) = (at_us + self.step_us, *count - 1);
        if *count == 0 {
            self.ranges.pop_front();
        }
        Some(at_us)
    }
}

/// What new terms have changed.
pub(super) struct Changed {
    /// The lanes whose terms are others now.
    pub lanes: Vec<i64>,
    /// One of them is held no longer.
    pub has_released: bool,
}

/// The terms of all destinations.
#[derive(Debug, Default)]
pub(super) struct Agreed {
    terms: HashMap<i64, Terms>,
    slots: HashMap<i64, Slots>,
    /// Lanes that have something to send and too few slots.
    wanting: HashSet<i64>,
}

impl Agreed {
    /// Puts these terms in force; returns what has changed.
    pub fn set(&mut self, terms: HashMap<i64, Terms>) -> Changed {
        let is_held = |terms: &HashMap<i64, Terms>, lane: &i64| terms.get(lane).is_some_and(|one| one.held);
        let all: HashSet<i64> = terms.keys().chain(self.terms.keys()).copied().collect();
        let lanes = all.into_iter().filter(|lane| terms.get(lane) != self.terms.get(lane)).collect();
        let has_released = self.terms.keys().any(|lane| is_held(&self.terms, lane) && !is_held(&terms, lane));
        let same_rate = |lane: &i64| {
            let step = |terms: &HashMap<i64, Terms>| terms.get(lane).and_then(|one| one.step_us);
            step(&terms).is_some() && step(&terms) == step(&self.terms)
        };
        self.slots.retain(|lane, _| same_rate(lane));
        self.wanting.retain(|lane| terms.get(lane).is_some_and(|one| one.step_us.is_some()));
        self.terms = terms;
        Changed { lanes, has_released }
    }

    /// Whether a lane is that of a destination.
    pub fn has(&self, lane: i64) -> bool {
        self.terms.contains_key(&lane)
    }

    /// Whether these are the terms of a lane.
    pub fn are(&self, lane: i64, terms: &Terms) -> bool {
        self.terms.get(&lane) == Some(terms)
    }

    /// Whether nothing is to be sent from a lane.
    pub fn holds(&self, lane: i64) -> bool {
        self.terms.get(&lane).is_some_and(|terms| terms.held)
    }

    /// The lanes that are held.
    pub fn held(&self) -> impl Iterator<Item = i64> {
        self.terms.iter().filter(|(_, terms)| terms.held).map(|(lane, _)| *lane)
    }

    /// Whether a lane has a rate.
    pub fn has_rate(&self, lane: i64) -> bool {
        self.terms.get(&lane).is_some_and(|terms| terms.step_us.is_some())
    }

    /// The attempts that may be made at once in a lane; `otherwise` where nothing is agreed.
    pub fn concurrency(&self, lane: i64, otherwise: usize) -> usize {
        self.terms.get(&lane).and_then(|terms| terms.concurrency).unwrap_or(otherwise)
    }

    /// The slots of a lane that come up until `until_us`, at most `most`; `None` where there is no limit.
    pub fn ready(&mut self, lane: i64, until_us: i64, now_us: i64, most: usize) -> Option<usize> {
        let step_us = self.terms.get(&lane)?.step_us?;
        let slots = self.slots.entry(lane).or_insert_with(|| Slots { step_us, ranges: VecDeque::new() });
        slots.forget(now_us);
        if slots.count() * step_us < AHEAD_US / 2 || slots.ranges.is_empty() {
            self.wanting.insert(lane);
        }
        let mut ready = 0;
        for (first, count) in &slots.ranges {
            if *first > until_us {
                break;
            }
            ready += (((until_us - first) / step_us) + 1).min(*count);
        }
        Some(usize::try_from(ready).unwrap_or(0).min(most))
    }

    /// When the next slot of a lane comes up, in microseconds; `None` if it has none.
    pub fn next_us(&self, lane: i64) -> Option<i64> {
        self.slots.get(&lane)?.ranges.front().map(|(first, _)| *first)
    }

    /// Takes the next slot of a lane for an attempt.
    pub fn take(&mut self, lane: i64, until_us: i64) -> Option<i64> {
        self.slots.get_mut(&lane)?.take(until_us)
    }

    /// Whether a lane has too few slots.
    pub fn is_wanting(&self) -> bool {
        !self.wanting.is_empty()
    }

    /// The slots to ask for: `(lane, count, step)`, where `waiting` tells for how many attempts a lane needs some.
    pub fn wanted(&mut self, waiting: impl Fn(i64) -> usize) -> Vec<(i64, i64, i64)> {
        let mut wanted = Vec::new();
        for lane in std::mem::take(&mut self.wanting) {
            let Some(step_us) = self.terms.get(&lane).and_then(|terms| terms.step_us) else { continue };
            let has = self.slots.get(&lane).map_or(0, Slots::count);
            let ahead = (AHEAD_US / step_us).max(1);
            let count = i64::try_from(waiting(lane)).unwrap_or(i64::MAX).min(ahead) - has;
            if count > 0 {
                wanted.push((lane, count, step_us));
            }
        }
        wanted
    }

    /// A reservation failed: it is asked for again.
    pub fn want_again(&mut self, lanes: impl Iterator<Item = i64>) {
        self.wanting.extend(lanes);
    }

    /// Notes slots that were reserved: so many from `first_us` on. Slots of another rate than is agreed now are not used.
    pub fn grant(&mut self, lane: i64, first_us: i64, count: i64, step_us: i64) {
        if self.terms.get(&lane).and_then(|terms| terms.step_us) != Some(step_us) {
            return;
        }
        let slots = self.slots.entry(lane).or_insert_with(|| Slots { step_us, ranges: VecDeque::new() });
        slots.ranges.push_back((first_us, count));
    }
}

impl Lanes {
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
        if changed.has_released {
            self.released += 1;
            self.backlogs.call_sweep();
        }
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

    /// Whether a lane needs time at its destination ([`Lanes::wanted_slots`]).
    pub fn needs_slots(&self) -> bool {
        self.agreed.is_wanting()
    }

    /// The time at destinations to ask for: `(lane, count, step in µs)`.
    pub fn wanted_slots(&mut self) -> Vec<(i64, i64, i64)> {
        let (receivers, beside) = (&self.receivers, self.beside.take_waiting());
        let timers = |lane| receivers.get(&lane).map_or(0, |receiver| receiver.waiting);
        self.agreed.wanted(|lane| timers(lane) + beside.get(&lane).copied().unwrap_or(0))
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

    /// The lanes that are held: the sweep skips them, too.
    pub fn held(&self) -> impl Iterator<Item = i64> {
        self.agreed.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rated(step_us: i64) -> HashMap<i64, Terms> {
        HashMap::from([(7, Terms { concurrency: None, step_us: Some(step_us), held: false })])
    }

    #[test]
    fn slots_are_asked_for_a_moment_ahead_and_used_in_order() {
        let mut agreed = Agreed::default();
        agreed.set(rated(10_000));
        assert_eq!(agreed.ready(7, 50_000, 0, 100), Some(0));
        assert_eq!(agreed.wanted(|_| 1000), [(7, 25, 10_000)], "a quarter of a second");
        assert!(agreed.wanted(|_| 1000).is_empty(), "asked for once");
        agreed.grant(7, 40_000, 25, 10_000);
        assert_eq!(agreed.ready(7, 60_000, 0, 100), Some(3));
        assert_eq!(agreed.next_us(7), Some(40_000));
        assert_eq!([agreed.take(7, 60_000), agreed.take(7, 60_000)], [Some(40_000), Some(50_000)]);
        assert_eq!(agreed.take(7, 55_000), None, "its time has not come");
        assert_eq!(agreed.ready(8, 0, 0, 100), None, "no rate is agreed");
    }

    #[test]
    fn a_slot_that_is_past_is_lost() {
        let mut agreed = Agreed::default();
        agreed.set(rated(10_000));
        agreed.grant(7, 0, 10, 10_000);
        assert_eq!(agreed.ready(7, 100_000, 80_000, 100), Some(7), "those before 30 ms are lost");
        assert_eq!(agreed.take(7, 100_000), Some(30_000));
    }

    #[test]
    fn a_new_rate_begins_anew() {
        let mut agreed = Agreed::default();
        agreed.set(rated(10_000));
        agreed.grant(7, 0, 10, 10_000);
        agreed.set(rated(20_000));
        assert_eq!(agreed.take(7, 100_000), None);
        agreed.grant(7, 0, 10, 10_000);
        assert_eq!(agreed.take(7, 100_000), None, "granted at the old rate");
    }

    #[test]
    fn only_what_waits_is_asked_for() {
        let mut agreed = Agreed::default();
        agreed.set(rated(10_000));
        agreed.ready(7, 0, 0, 1);
        assert_eq!(agreed.wanted(|_| 3), [(7, 3, 10_000)]);
        agreed.ready(7, 0, 0, 1);
        assert!(agreed.wanted(|_| 0).is_empty());
    }
}

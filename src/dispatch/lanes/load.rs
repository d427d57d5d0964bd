//! What lanes hold, as others are shown it: counts by receiver and in all, and how old the queues are.

use std::collections::BTreeMap;

use super::Lanes;
use super::receiver::Receiver;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;

/// How exactly the age of the oldest queued pointer is known, in milliseconds.
const OLDEST_STEP_MS: i64 = 100;

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

/// How many queued pointers are due in which stretch of time ([`OLDEST_STEP_MS`]).
#[derive(Debug, Default)]
pub(super) struct Ages(BTreeMap<i64, usize>);

impl Ages {
    pub fn add(&mut self, pointer: &Pointer) {
        *self.0.entry(stretch(pointer)).or_default() += 1;
    }

    pub fn remove(&mut self, pointer: &Pointer) {
        let stretch = stretch(pointer);
        if let Some(count) = self.0.get_mut(&stretch) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&stretch);
            }
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// How many pointers are queued.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.values().sum()
    }
}

/// The stretch of time in which a pointer is due.
const fn stretch(pointer: &Pointer) -> i64 {
    pointer.wake_at.get().div_euclid(OLDEST_STEP_MS)
}

impl Lanes {
    /// The earliest moment at which a queued pointer was due, to [`OLDEST_STEP_MS`].
    pub fn oldest_queued(&self) -> Option<UnixMs> {
        self.ages.0.first_key_value().map(|(stretch, _)| UnixMs::new(stretch * OLDEST_STEP_MS))
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
}

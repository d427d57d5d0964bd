//! What each namespace holds of a node, and how much it may.
//!
//! One namespace alone may have all of it. Where others have lanes as well, each may hold [`OF_FREE`] times as much as is free:
//! one that takes all it can leaves a sixteenth, two leave a thirty-first, so that something is always left for another one
//! (dynamic thresholds, Choudhury and Hahne 1998). Turns do the rest (`ring.rs`).

use std::collections::HashMap;

use super::Lanes;
use crate::model::namespace::Namespace;

/// How many times what is free a namespace may hold.
const OF_FREE: usize = 15;

/// What one namespace holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// Lanes, idle ones as well.
    pub lanes: usize,
    /// Pointers in their queues.
    pub queued: usize,
    /// Claimed pointers.
    pub in_flight: usize,
}

/// What all namespaces hold.
#[derive(Debug, Default)]
pub(super) struct Shares(HashMap<Namespace, Held>);

impl Shares {
    /// What this namespace holds.
    pub fn of(&mut self, namespace: Namespace) -> &mut Held {
        self.0.entry(namespace).or_default()
    }

    /// A lane of this namespace is forgotten.
    pub fn forget_lane(&mut self, namespace: Namespace) {
        let held = self.of(namespace);
        held.lanes -= 1;
        if held.lanes == 0 {
            self.0.remove(&namespace);
        }
    }

    /// Nothing is queued any more.
    pub fn clear_queues(&mut self) {
        self.0.values_mut().for_each(|held| held.queued = 0);
    }

    /// How many more pointers a namespace may queue of those for which there is room.
    pub fn queue(&self, namespace: Namespace, free: usize) -> usize {
        self.left(namespace, free, |held| held.queued)
    }

    /// How many more pointers a namespace may have in flight, with so many places free.
    pub fn places(&self, namespace: Namespace, free: usize) -> usize {
        self.left(namespace, free, |held| held.in_flight)
    }

    fn left(&self, namespace: Namespace, free: usize, of: fn(&Held) -> usize) -> usize {
        match self.0.get(&namespace) {
            // With so many more it holds that share of what is free then.
            Some(held) if self.0.len() > 1 => (OF_FREE * free).saturating_sub(of(held)) / (OF_FREE + 1),
            _ => free,
        }
    }

    #[cfg(test)]
    pub fn all(&self) -> &HashMap<Namespace, Held> {
        &self.0
    }
}

impl Lanes {
    /// How many places of the node no claimed pointer has.
    pub(super) fn free_places(&self) -> usize {
        self.total.saturating_sub(self.in_flight())
    }
}

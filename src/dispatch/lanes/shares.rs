//! What each namespace holds of a node, and how much it may.
//!
//! One namespace alone may have all of it. Where others have lanes as well, each may hold [`OF_FREE`] times as much as is free:
//! one that takes all it can leaves a sixteenth, two leave a thirty-first, so that something is always left for another one
//! (dynamic thresholds, Choudhury and Hahne 1998). That goes for the places of the node, for those that a class of attempts may
//! have, and for those of receivers of one standing: new receivers that hang keep nobody else's new ones waiting. Turns do the
//! rest (`ring.rs`).

use std::collections::HashMap;

use super::receiver::Standing;
use super::{Class, Lanes};
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
    /// Claimed pointers, by class and by standing of their receiver: the index is the number of either.
    pub in_flight: [usize; Class::COUNT],
    pub by_standing: [usize; Standing::ALL.len()],
}

/// Places that no claimed pointer has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Of the node.
    pub of_node: usize,
    /// Of those for a class of attempts.
    pub of_class: usize,
    /// Of those for receivers of a standing.
    pub of_standing: usize,
}

impl Room {
    /// How many may be claimed.
    pub fn all(self) -> usize {
        self.of_node.min(self.of_class).min(self.of_standing)
    }
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
        self.shared(namespace).map_or(free, |held| left(free, held.queued))
    }

    /// How many more pointers of this class, at receivers of this standing, a namespace may have in flight.
    pub fn places(&self, namespace: Namespace, class: Class, standing: Standing, room: Room) -> usize {
        let Some(held) = self.shared(namespace) else { return room.all() };
        left(room.of_node, held.in_flight.iter().sum())
            .min(left(room.of_class, held.in_flight[class as usize]))
            .min(left(room.of_standing, held.by_standing[standing as usize]))
    }

    /// What a namespace holds where there are others.
    fn shared(&self, namespace: Namespace) -> Option<&Held> {
        if self.0.len() > 1 { self.0.get(&namespace) } else { None }
    }

    #[cfg(test)]
    pub fn all(&self) -> &HashMap<Namespace, Held> {
        &self.0
    }
}

/// How much more of what is free somebody may have who holds so much: with that he holds his share of what is free then. Who has
/// nothing gets one while there is one.
fn left(free: usize, held: usize) -> usize {
    let more = (OF_FREE * free).saturating_sub(held) / (OF_FREE + 1);
    more.max(usize::from(held == 0 && free > 0))
}

impl Lanes {
    /// How many places of the node no claimed pointer has.
    pub(super) fn free_places(&self) -> usize {
        self.total.saturating_sub(self.in_flight())
    }
}

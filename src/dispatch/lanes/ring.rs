//! A ring of lanes: whose turn it is, namespace by namespace and, within one, lane by lane.
//!
//! A namespace may take [`TURN`] pointers, from as many of its lanes as it needs, before the next one has its turn (deficit
//! round robin, Shreedhar and Varghese 1995, with pointers of one size). So a namespace with a thousand lanes gets no more than
//! one with a single lane. Where there is one namespace alone, its lanes simply take turns.

use std::collections::{HashMap, VecDeque};

use super::{LaneKey, TURN};
use crate::model::namespace::Namespace;

/// One ring.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// The namespaces with lanes here, in the order of their turns.
    namespaces: VecDeque<Namespace>,
    lanes: HashMap<Namespace, VecDeque<LaneKey>>,
    /// What the first namespace has taken in its turn.
    spent: usize,
}

impl Ring {
    /// Adds a lane behind all others of its namespace.
    pub fn push(&mut self, namespace: Namespace, key: LaneKey) {
        let lanes = self.lanes.entry(namespace).or_default();
        if lanes.is_empty() {
            self.namespaces.push_back(namespace);
        }
        lanes.push_back(key);
    }

    /// Takes out the lane whose turn it is; namespaces without room are passed over.
    pub fn pop(&mut self, has_room: impl Fn(Namespace) -> bool) -> Option<(Namespace, LaneKey)> {
        let turn = self.namespaces.iter().position(|one| has_room(*one))?;
        if turn > 0 {
            self.namespaces.rotate_left(turn);
            self.spent = 0;
        }
        let namespace = *self.namespaces.front()?;
        let lanes = self.lanes.get_mut(&namespace)?;
        let key = lanes.pop_front()?;
        if lanes.is_empty() {
            self.lanes.remove(&namespace);
            self.namespaces.pop_front();
            self.spent = 0;
        }
        Some((namespace, key))
    }

    /// A lane of this namespace has had its turn and took so many pointers.
    pub fn spend(&mut self, namespace: Namespace, count: usize) {
        if self.namespaces.front() != Some(&namespace) {
            return;
        }
        self.spent += count;
        if self.spent >= TURN {
            self.namespaces.rotate_left(1);
            self.spent = 0;
        }
    }

    /// Takes out all lanes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

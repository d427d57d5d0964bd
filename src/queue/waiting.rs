//! The calls that wait on this node, counted by the namespace of their queue: none may have all that may wait where there are others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntGauge;

use crate::model::namespace::Namespace;

/// The most calls that wait on one node.
pub(super) const MAX_WAITING: usize = 50_000;

/// The most of one namespace, where there are others.
const MOST_OF_ONE: usize = MAX_WAITING / 4 * 3;

/// How many wait.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of: HashMap<Namespace, usize>,
}

/// The calls that wait.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    counts: Arc<Mutex<Counts>>,
    gauge: IntGauge,
}

/// A call that waits counts until this is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    of: Waiting,
    namespace: Namespace,
}

impl Waiting {
    /// Nobody waits yet; the gauge shows how many do.
    pub fn new(gauge: IntGauge) -> Self {
        Self { counts: Arc::default(), gauge }
    }

    /// Counts a call; `None` if there may be no more of its namespace.
    pub fn enter(&self, namespace: Namespace, has_others: bool) -> Option<Counted> {
        let mut counts = self.counts();
        let own = counts.of.get(&namespace).copied().unwrap_or(0);
        if counts.all >= MAX_WAITING || (has_others && own >= MOST_OF_ONE) {
            return None;
        }
        counts.all += 1;
        counts.of.insert(namespace, own + 1);
        self.gauge.inc();
        Some(Counted { of: self.clone(), namespace })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // A panic while the lock is held leaves plain numbers.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        counts.all -= 1;
        if let Some(own) = counts.of.get_mut(&self.namespace) {
            *own -= 1;
            if *own == 0 {
                counts.of.remove(&self.namespace);
            }
        }
        self.of.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_has_all_places_where_there_are_others() {
        let gauge = IntGauge::new("waiting", "waiting").expect("a gauge");
        let waiting = Waiting::new(gauge.clone());
        let enter = |of: i16, has_others| waiting.enter(Namespace(of), has_others);
        let mut places: Vec<_> = (0..MOST_OF_ONE).map(|_| enter(1, true).expect("a place")).collect();
        assert!(enter(1, true).is_none());
        places.extend(
            (MOST_OF_ONE..MAX_WAITING).map(|_| enter(2, true).expect("some are left for another one")),
        );
        assert!(enter(3, true).is_none() && enter(3, false).is_none(), "none at all is left");
        assert_eq!(gauge.get(), MAX_WAITING as i64);
        places.clear();
        assert_eq!(gauge.get(), 0);
        assert!(waiting.counts().of.is_empty());
        places.extend((0..MAX_WAITING).map(|_| enter(1, false).expect("one alone has all")));
        assert!(enter(1, false).is_none());
    }
}

//! How many timers of a namespace are due in one second: its quota `due_per_second`.
//!
//! The timers of a second are counted when one is registered for it, at most every two seconds, and what this node has admitted
//! since counts too. Several nodes may exceed the quota by what they register within that time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error};
use crate::model::namespace::Namespace;
use crate::model::spread::Spread;
use crate::model::time::UnixMs;

/// A count holds so long.
const FRESH: Duration = Duration::from_secs(2);

/// The most counts that are kept.
const MOST_KEPT: usize = 16_384;

/// A timer whose moment is chosen within a longer span than this, in seconds, is not asked where it falls: the choice takes the
/// emptiest moments.
const LONGEST_SPREAD_S: i64 = 60;

/// The seconds in which a timer may be due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seconds {
    /// The first one, since 1970.
    from: i64,
    /// How many.
    count: i64,
}

impl Seconds {
    /// Those of a timer that is due then, or whose moment is chosen; `None` if it is chosen within a long span. What is overdue
    /// fires now.
    pub fn of(due_at: UnixMs, spread: Option<&Spread>, now: UnixMs) -> Option<Self> {
        let from = due_at.max(now).get().div_euclid(1000);
        let until = spread.map_or(due_at, Spread::until).max(now);
        let count = until.get().div_euclid(1000) - from + 1;
        (count <= LONGEST_SPREAD_S + 1).then_some(Self { from, count })
    }

    /// When they begin.
    pub fn begin(self) -> UnixMs {
        UnixMs::new(self.from.saturating_mul(1000))
    }

    /// When they are over.
    pub fn end(self) -> UnixMs {
        UnixMs::new(self.from.saturating_add(self.count).saturating_mul(1000))
    }

    /// How many timers may be due in them, with so many in one.
    fn most(self, per_second: u32) -> i64 {
        self.count * i64::from(per_second)
    }
}

/// The timers of one stretch of seconds.
#[derive(Debug, Clone, Copy)]
struct Counted {
    at: Monotonic,
    count: i64,
    /// Since then.
    admitted: i64,
}

/// What is known of all.
#[derive(Debug, Default)]
pub struct Density {
    known: Mutex<HashMap<(Namespace, Seconds), Counted>>,
}

impl Density {
    /// Admits those of these timers, each due in its seconds, for which a second has room, with `per_second` at most; in the
    /// order given. The store is the namespace's.
    pub async fn admit(
        &self,
        store: &ColdStore,
        per_second: u32,
        timers: &[Option<Seconds>],
    ) -> Result<Vec<bool>, Error> {
        let namespace = store.namespace();
        let now = Monotonic::now();
        let mut stale: Vec<Seconds> = timers.iter().flatten().copied().collect();
        stale.sort_unstable();
        stale.dedup();
        {
            let known = self.known();
            let is_fresh = |one: &Counted| now.since(one.at) < FRESH;
            stale.retain(|seconds| !known.get(&(namespace, *seconds)).is_some_and(is_fresh));
        }
        if !stale.is_empty() {
            let asked: Vec<_> = stale.iter().map(|one| (one.begin(), one.end())).collect();
            let most = stale.iter().map(|one| one.most(per_second)).max().unwrap_or(0);
            let counts = store.count_due_between(&asked, most).await?;
            let mut known = self.known();
            if known.len() + stale.len() > MOST_KEPT {
                known.retain(|_, one| now.since(one.at) < FRESH);
            }
            if known.len() + stale.len() > MOST_KEPT {
                known.clear();
            }
            for (seconds, count) in stale.into_iter().zip(counts) {
                known.insert((namespace, seconds), Counted { at: now, count, admitted: 0 });
            }
        }
        let mut known = self.known();
        let mut admit = |seconds: &Option<Seconds>| {
            let Some(seconds) = seconds else { return true };
            // It was forgotten in this moment, among too many.
            let Some(one) = known.get_mut(&(namespace, *seconds)) else { return true };
            let has_room = one.count + one.admitted < seconds.most(per_second);
            one.admitted += i64::from(has_room);
            has_room
        };
        Ok(timers.iter().map(&mut admit).collect())
    }

    /// A timer that was admitted did not become a new one.
    pub fn give_back(&self, namespace: Namespace, seconds: Seconds) {
        if let Some(one) = self.known().get_mut(&(namespace, seconds)) {
            one.admitted = (one.admitted - 1).max(0);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(Namespace, Seconds), Counted>> {
        // A panic while the lock is held leaves plain numbers.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Span;

    #[test]
    fn a_timer_is_due_in_one_second_or_in_those_of_its_span() {
        let of = |due_ms, within: Option<&str>| {
            let from = UnixMs::new(due_ms);
            let spread = within.map(|text| Spread { from, within: Span::parse(text).expect("a span") });
            Seconds::of(from, spread.as_ref(), UnixMs::new(500)).map(|one| (one.from, one.count))
        };
        assert_eq!(of(1999, None), Some((1, 1)));
        assert_eq!(of(2000, None), Some((2, 1)));
        assert_eq!(of(-9000, None), Some((0, 1)), "what is overdue fires now");
        assert_eq!(of(-9000, Some("PT10S")), Some((0, 2)));
        assert_eq!(of(1999, Some("PT1S")), Some((1, 2)), "it may fall into either");
        assert_eq!(of(1000, Some("PT1M")), Some((1, 61)));
        assert_eq!(of(1000, Some("PT1H")), None, "the choice finds an empty moment");
    }
}

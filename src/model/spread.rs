//! `spread`: a timer that may fire anywhere in a span, and the moments among which its own is chosen.
//!
//! One of the moments is near the owner's place, which a hash of the owner gives; the others come from a hash of the timer
//! itself, which stands for chance. The one with the fewest due around it wins ([`crate::cold::ColdStore::choose_moments`]). With two
//! candidates of `n` balls in as many bins the fullest bin has ln ln n; with one it has ln n / ln ln n (Azar, Broder,
//! Karlin, Upfal: Balanced allocations, 1999). Four leave fewer of them in what was full before.

use std::time::Duration;

use super::id::{Uid, digest16};
use super::time::{LAST, Span, UnixMs};

/// The longest spread.
pub const MAX_SPREAD: Span = Span::from_duration(Duration::from_secs(86_400));

/// How many moments are looked at for each timer.
pub const CANDIDATES: usize = 4;

/// How near the place of the owner is: within this part of the span.
const NEAR: u64 = 16;

/// A timer may fire from `from` to `from` + `within`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// How long after `from` it may fire.
    pub within: Span,
    /// The due time that the caller asked for.
    pub from: UnixMs,
}

impl Spread {
    /// The last moment, which can be stored.
    pub fn until(&self) -> UnixMs {
        self.from.plus(self.within.get()).min(LAST)
    }

    /// Whether this moment was chosen for it; one of `minute` precision was rounded up afterwards.
    pub fn holds(&self, due_at: UnixMs, minute: bool) -> bool {
        let until = if minute { self.until().ceil_minute() } else { self.until() };
        (self.from.min(until)..=until).contains(&due_at)
    }

    /// The moments to choose from, none of them before `now` if some of the span still lies ahead. The first is near the
    /// owner's place, within a sixteenth of the span: at one place, all timers of an owner would come where the load is high
    /// everywhere else. The others are the timer's own. The same arguments give the same moments.
    pub fn candidates(
        &self,
        owner: &str,
        uid: Uid,
        now: UnixMs,
        minute: bool,
    ) -> impl Iterator<Item = UnixMs> + use<> {
        let until = self.until();
        let from = self.from.max(now).min(until);
        let moments = u64::try_from(until.get() - from.get()).unwrap_or(0) + 1;
        let of_owner = digest16(&[b"spread", owner.as_bytes()]);
        let own = digest16(&[b"spread", uid.0.as_bytes(), &now.get().to_be_bytes()]);
        let number = |hash: &[u8; 16], n: usize| {
            hash[4 * n..4 * n + 4].iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        (0..CANDIDATES).map(move |n| {
            let place = match n {
                0 => number(&of_owner, 0) % moments + number(&own, 0) % (moments / NEAR + 1),
                n => number(&own, n),
            };
            let at = UnixMs::new(from.get() + i64::try_from(place % moments).unwrap_or(0));
            if minute { at.ceil_minute() } else { at }
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn spread(from: i64, ms: u64) -> Spread {
        Spread { from: UnixMs::new(from), within: Span::from_duration(Duration::from_millis(ms)) }
    }

    fn of(spread: &Spread, n: u128, now: i64, minute: bool) -> Vec<i64> {
        let uid = Uid(Uuid::from_u128(n));
        spread.candidates("me", uid, UnixMs::new(now), minute).map(UnixMs::get).collect()
    }

    #[test]
    fn all_candidates_lie_in_the_span_and_ahead() {
        for n in 0..1000 {
            assert!(of(&spread(5_000, 300_000), n, 0, false).iter().all(|at| (5_000..=305_000).contains(at)));
            assert!(of(&spread(0, 10_000), n, 9_000, false).iter().all(|at| (9_000..=10_000).contains(at)));
            // It is all over: at once.
            assert_eq!(of(&spread(0, 10), n, 9_000, false), [10; CANDIDATES]);
            assert_eq!(of(&spread(7, 0), n, 0, false), [7; CANDIDATES]);
        }
    }

    #[test]
    fn a_minute_is_rounded_to_after_the_choice() {
        let spread = spread(30_000, 120_000);
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..1000 {
            for at in of(&spread, n, 0, true) {
                assert!(spread.holds(UnixMs::new(at), true));
                seen.insert(at);
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [60_000, 120_000, 180_000]);
        assert!(!spread.holds(UnixMs::new(0), true) && !spread.holds(UnixMs::new(150_001), false));
    }

    #[test]
    fn the_end_of_the_year_9999_is_not_passed() {
        for from in [LAST.get() - 10_000, LAST.get()] {
            let spread = spread(from, 86_400_000);
            for n in 0..1000 {
                for at in of(&spread, n, 0, false) {
                    assert!(
                        (from..=LAST.get()).contains(&at) && spread.holds(UnixMs::new(at), false),
                        "{at}"
                    );
                }
                let minute = LAST.floor_minute();
                assert_eq!(of(&spread, n, 0, true), [minute.get(); CANDIDATES]);
                assert!(spread.holds(minute, true));
            }
        }
    }

    #[test]
    fn an_owner_has_a_place_and_each_timer_others() {
        let spread = spread(0, 86_400_000);
        let (one, other) = (of(&spread, 1, 0, false), of(&spread, 2, 0, false));
        assert_eq!(one, of(&spread, 1, 0, false));
        let apart = (one[0] - other[0]).rem_euclid(86_400_001);
        let near = 86_400_001 / 16 + 1;
        assert!(apart <= near || apart >= 86_400_001 - near, "{one:?} {other:?}");
        assert!(one[1..].iter().all(|at| !other.contains(at)), "{one:?} {other:?}");
    }
}

//! How many attempts at receivers of which nothing is known a node has under way: as many as its processor bears.
//!
//! Each of them needs a connection, and a crowd of them all at once keeps the attempts at all other receivers waiting
//! for the processor. How long an attempt waits from its claim until it runs tells how short the processor is. The
//! number starts small, rises with each attempt that ran at once, and is halved when one did not (as TCP finds its
//! window, Jacobson 1988).

use super::lane::INITIAL_LIMIT;

/// An attempt that ran so many milliseconds after its claim ran at once.
const AT_ONCE_MS: i64 = 20;

/// The limit of attempts at receivers of which nothing is known.
#[derive(Debug)]
pub(super) struct Newcomers {
    least: usize,
    most: usize,
    limit: usize,
    /// Attempts that were claimed before the limit fell say nothing of the new one: until then they are not heard.
    deaf_until_ms: i64,
}

impl Newcomers {
    /// At most half of the places of a node, and at least a sixteenth; on a small node those of two receivers.
    pub fn of(total: usize) -> Self {
        let most = (total / 2).max(1);
        let least = (total / 16).max(2 * INITIAL_LIMIT).min(most);
        Self { least, most, limit: least, deaf_until_ms: i64::MIN }
    }

    /// How many there may be at most.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// How many there may be now.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// One of these so many begins to run, so long after its claim. Returns whether there may be more now.
    pub fn runs(&mut self, in_flight: usize, waited_ms: i64, now_ms: i64) -> bool {
        if waited_ms <= AT_ONCE_MS {
            // A limit that is not reached tells nothing of more.
            let is_more = self.limit < self.most && 2 * in_flight >= self.limit;
            self.limit += usize::from(is_more);
            return is_more;
        }
        self.fall(waited_ms, now_ms);
        false
    }

    /// Fewer from now on. Nothing that is heard for so long tells of the new number.
    pub fn fall(&mut self, deaf_ms: i64, now_ms: i64) {
        if now_ms >= self.deaf_until_ms {
            self.limit = (self.limit / 2).max(self.least);
            self.deaf_until_ms = now_ms + deaf_ms;
        }
    }

    /// None is under way any more: the next crowd begins small again.
    pub fn none_left(&mut self) {
        self.limit = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_rises_while_attempts_run_at_once_and_halves_when_one_does_not() {
        let mut newcomers = Newcomers::of(1600);
        assert_eq!((newcomers.limit(), newcomers.most()), (100, 800));
        assert!(!newcomers.runs(49, AT_ONCE_MS, 0), "half of them are not under way");
        assert!((0..2000).filter(|_| newcomers.runs(800, AT_ONCE_MS, 0)).count() == 700);
        assert!(!newcomers.runs(800, AT_ONCE_MS + 1, 1000));
        assert_eq!(newcomers.limit(), 400);
        assert!(!newcomers.runs(800, 500, 1000 + AT_ONCE_MS), "one that was claimed before the limit fell");
        assert_eq!(newcomers.limit(), 400);
        newcomers.fall(250, 2000);
        newcomers.fall(250, 2249);
        assert_eq!(newcomers.limit(), 200);
        (3..9).for_each(|n| newcomers.fall(250, n * 1000));
        assert_eq!(newcomers.limit(), 100, "never none");
        assert!((0..9).any(|_| newcomers.runs(100, 0, 9000)));
        newcomers.none_left();
        assert_eq!(newcomers.limit(), 100);
    }

    #[test]
    fn a_small_node_has_room_for_two_of_them() {
        for total in [1, 2, 16, 64] {
            let newcomers = Newcomers::of(total);
            let wanted = (2 * INITIAL_LIMIT).min((total / 2).max(1));
            assert_eq!((newcomers.limit(), newcomers.most()), (wanted, (total / 2).max(1)), "{total}");
        }
    }
}

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
        if now_ms >= self.deaf_until_ms {
            self.limit = (self.limit / 2).max(self.least);
            self.deaf_until_ms = now_ms + waited_ms;
        }
        false
    }

    /// None is under way any more: the next crowd begins small again.
    pub fn none_left(&mut self) {
        self.limit = self.least;
    }
}

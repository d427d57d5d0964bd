//! What is known of one receiver, all classes of attempts together: whether it answers, and its breaker.
//!
//! Nothing is known of a receiver at first. An answer, good or bad, makes it *proven*. Attempts without an answer make it
//! *doubtful*. One that cannot be reached (no connection, no address for its name) is tried by one attempt at a time,
//! at growing intervals; the timers that wait for it stay unclaimed. The first answer ends that.

use super::LaneLoad;
use crate::model::namespace::Namespace;

/// Attempts in a row without an answer after which a proven receiver is doubtful.
const DOUBTFUL_AFTER: u32 = 3;

/// Attempts in a row that a destination did not take, after which it is tried by one at a time.
const TRIED_SINGLY_AFTER: u32 = 5;

/// The time from the first failure to the first trial, in milliseconds. It doubles from trial to trial.
pub(super) const FIRST_TRIAL_MS: i64 = 100;

/// The longest time between two trials, in milliseconds. A receiver that is back waits so long at most.
pub(super) const LONGEST_TRIAL_MS: i64 = 1000;

/// How much a receiver is trusted; a node keeps room free for those that are trusted more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It answered lately.
    Proven,
    /// Nothing is known of it.
    New,
    /// Its last attempts had no answer.
    Doubtful,
}

impl Standing {
    /// Every standing.
    pub const ALL: [Self; 3] = [Self::Proven, Self::New, Self::Doubtful];
}

/// A breaker that is open: when the next trial may start.
#[derive(Debug, Clone, Copy)]
struct Breaker {
    wait_ms: i64,
    trial_at_ms: i64,
}

/// What is known of a receiver.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// Whose timers go there: lanes to it are those of one namespace.
    pub namespace: Namespace,
    /// It answered, and has not been doubtful since.
    answered: bool,
    /// Attempts in a row without an answer.
    unanswered: u32,
    /// Attempts in a row that were answered and not taken; counted for destinations only.
    refused: u32,
    breaker: Option<Breaker>,
    /// Claimed pointers in its lanes.
    pub in_flight: usize,
    /// Pointers that wait in its lanes.
    pub waiting: usize,
    /// How many lanes it has.
    pub lanes: u8,
}

impl Receiver {
    /// A receiver of which nothing is known.
    pub fn of(namespace: Namespace) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// What its lanes hold.
    pub const fn load(&self) -> LaneLoad {
        LaneLoad { waiting: self.waiting, in_flight: self.in_flight }
    }

    pub const fn standing(&self) -> Standing {
        match (self.answered, self.unanswered) {
            (_, DOUBTFUL_AFTER..) => Standing::Doubtful,
            (true, _) => Standing::Proven,
            (false, 0) => Standing::New,
            (false, _) => Standing::Doubtful,
        }
    }

    /// It answered.
    pub fn answered(&mut self) {
        (self.answered, self.unanswered, self.refused, self.breaker) = (true, 0, 0, None);
    }

    /// It answered, and did not take the delivery.
    pub fn refused(&mut self, now_ms: i64) {
        (self.answered, self.unanswered) = (true, 0);
        self.refused = self.refused.saturating_add(1);
        if self.refused >= TRIED_SINGLY_AFTER {
            self.open(now_ms);
        } else {
            // It can be reached.
            self.breaker = None;
        }
    }

    /// It did not answer in time.
    pub fn not_answered(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
        if self.standing() == Standing::Doubtful {
            self.answered = false;
        }
    }

    /// It could not be reached.
    pub fn not_reached(&mut self, now_ms: i64) {
        self.not_answered();
        if self.standing() == Standing::Doubtful {
            self.open(now_ms);
        }
    }

    /// Opens the breaker, or keeps it open for longer.
    fn open(&mut self, now_ms: i64) {
        let wait_ms = match self.breaker {
            // An attempt that began before the breaker opened says nothing new.
            Some(open) if now_ms < open.trial_at_ms => return,
            Some(open) => (2 * open.wait_ms).min(LONGEST_TRIAL_MS),
            None => FIRST_TRIAL_MS,
        };
        self.breaker = Some(Breaker { wait_ms, trial_at_ms: now_ms + wait_ms });
    }

    /// When the next trial may start, if the breaker is open.
    pub fn trial_at_ms(&self) -> Option<i64> {
        self.breaker.map(|open| open.trial_at_ms)
    }
}

//! A timer's state and the one function that moves it.
//!
//! ```text
//!                        ┌── reschedule, fire: next generation ──┐
//!                        ▼                                       │
//!  register ──────► scheduled ──claim──► delivering ──ok──► delivered
//!                    │  ▲  │                │  │  └─gave up──► dead
//!                    │  │  └─too late───┐   │  └─failed─► retrying ──claim──► delivering
//!                    │  └───release─────┼───┘                │ ▲
//!                    │                  ▼                    │ └─ claim expired (outcome unknown)
//!                    └────cancel──┐  expired                 │
//!                                 ▼                          │
//!                             cancelled ◄───────cancel───────┘
//!
//!  scheduled, retrying ──pause──► paused ──resume──► scheduled, retrying; or expired, if that is too late for it
//!                                 paused ──fire────► scheduled                paused ──cancel──► cancelled
//! ```
//!
//! The claim itself is one SQL statement and not made here; every later transition is. `attempt` counts the
//! claims of this generation, `tries` those of all generations since the registration. An attempt with an
//! unknown outcome sets `uncertain`, which is never cleared: from then on no answer may say that nothing was
//! sent.

use serde::{Deserialize, Serialize};

use super::id::{Generation, Version};
use super::time::{LAST, UnixMs};

/// The state of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for its due time, or for another occurrence of its schedule; this generation has had no attempt.
    Scheduled,
    /// Claimed: an attempt is under way, or its node has failed and the outcome is unknown.
    Delivering,
    /// An attempt failed; waits for the next one.
    Retrying,
    /// Does not fire until it is resumed.
    Paused,
    /// End: a receiver accepted it.
    Delivered,
    /// End: its caller cancelled it.
    Cancelled,
    /// End: it was found overdue by more than its grace, before any attempt.
    Expired,
    /// End: out of attempts, or refused for good by the receiver (410).
    Dead,
}

impl State {
    /// All states, live ones first.
    pub const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Delivering,
        Self::Retrying,
        Self::Paused,
        Self::Delivered,
        Self::Cancelled,
        Self::Expired,
        Self::Dead,
    ];

    /// Whether this is one of the four ends.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Delivered | Self::Cancelled | Self::Expired | Self::Dead)
    }

    /// The number of this state in SQL: 0–3 live, 4–7 ended.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The state with this number in SQL.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// The word of the contract.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Delivering => "delivering",
            Self::Retrying => "retrying",
            Self::Paused => "paused",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Dead => "dead",
        }
    }

    /// The state with this word in the contract.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// The result of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptResult {
    /// The receiver accepted it.
    Ok,
    /// The receiver answered with a failure.
    Failed,
    /// No answer in time; the receiver may have acted on it.
    Timeout,
    /// Nothing was sent: no connection, or an address that is not allowed.
    Refused,
    /// The connection broke after something was sent, or the node failed.
    Unknown,
}

impl AttemptResult {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::Timeout, Self::Refused, Self::Unknown];

    /// The word of the contract.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    /// The result with this word in the contract.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|result| result.word() == word)
    }

    /// Whether the receiver certainly did not accept it.
    pub const fn surely_failed(self) -> bool {
        matches!(self, Self::Failed | Self::Refused)
    }
}

/// What follows an attempt that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another attempt, not before this moment.
    Retry(UnixMs),
    /// No further attempt: the timer is dead.
    GiveUp,
}

/// The token of one attempt. A result counts only for the attempt whose token it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The generation that was claimed.
    pub generation: Generation,
    /// The attempt's number within the generation, from 1.
    pub attempt: i32,
}

/// The part of a live timer that its transitions change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Its state.
    pub state: State,
    /// When it should fire.
    pub due_at: UnixMs,
    /// When it needs attention next: at its due time, at its next attempt, or when its claim expires.
    pub wake_at: UnixMs,
    /// The version of its due time.
    pub generation: Generation,
    /// Claims of this generation so far.
    pub attempt: i32,
    /// Claims of all generations so far.
    pub tries: i32,
    /// Rises with every change a caller makes.
    pub version: Version,
    /// The outcome of an attempt is unknown.
    pub uncertain: bool,
    /// A cancel was requested while an attempt was under way.
    pub cancel_requested: bool,
    /// An earlier attempt was reported as successful while a later one is under way.
    pub acked_late: bool,
}

/// What happens to a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its caller cancels it.
    Cancel,
    /// Its caller sets a new due time or new data: a new generation. A paused timer stays paused.
    Reschedule {
        /// The new due time.
        due_at: UnixMs,
    },
    /// Its caller wants it to fire now, paused or not: a new generation.
    Fire,
    /// Its caller keeps it from firing.
    Pause,
    /// Its caller lets it fire again.
    Resume {
        /// It is overdue by more than its grace.
        is_too_late: bool,
    },
    /// Its caller changes only what does not affect the firing (labels).
    Relabel,
    /// The result of an attempt is known.
    Attempted {
        /// The attempt.
        token: Token,
        /// Its result.
        result: AttemptResult,
        /// What follows if it did not succeed.
        next: Next,
    },
    /// A claim expired without a result.
    ClaimExpired {
        /// The attempt.
        token: Token,
        /// The most attempts that the timer may have.
        max_attempts: u32,
    },
    /// The node that made the claim releases it: certainly nothing was sent.
    Released {
        /// The attempt.
        token: Token,
    },
    /// It was found overdue by more than its grace, before any attempt.
    TooLate {
        /// The generation that was found.
        generation: Generation,
    },
    /// An operator did not accept it after the store was restored.
    Discarded {
        /// The generation that was found.
        generation: Generation,
    },
    /// The schedule that made it was changed, or removed: one that its caller has touched stays.
    Withdrawn,
    /// Its schedule has judged that it may fire.
    Cleared {
        /// The generation that was judged.
        generation: Generation,
    },
    /// It waits for another occurrence of its schedule.
    Waits {
        /// The generation that was judged.
        generation: Generation,
    },
}

/// The answer to the caller of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing was sent, and nothing will be.
    Cancelled,
    /// All earlier attempts certainly failed; nothing more will be sent.
    Stopped,
    /// An attempt is under way, or its outcome is unknown.
    InFlight,
    /// Too late: it was delivered, is dead, or has expired.
    AlreadyFired,
    /// It was cancelled before.
    AlreadyCancelled,
    /// The event was applied.
    Done,
    /// Ignored: the event is of an attempt or generation that is no longer the current one.
    Stale,
}

/// The longest name of a label, in bytes.
pub const MAX_LABEL_NAME: usize = 64;

/// Whether a label may have this name: 1 to [`MAX_LABEL_NAME`] of `A-Z a-z 0-9 . _ - /`.
pub fn is_label_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
    (1..=MAX_LABEL_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

/// The largest payload, in bytes of JSON.
pub const MAX_DATA: usize = 64 * 1024;

/// A timer that nobody could fire for longer than this after its due time counts as missed.
pub const MISSED: std::time::Duration = std::time::Duration::from_secs(60);

/// The result of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The life after the event.
    pub life: Life,
    /// The answer to the caller.
    pub answer: Answer,
}

impl Life {
    /// The life of a new timer.
    pub fn new(due_at: UnixMs, now: UnixMs) -> Self {
        Self {
            state: State::Scheduled,
            due_at,
            wake_at: due_at.max(now),
            generation: Generation(1),
            attempt: 0,
            tries: 0,
            version: Version(1),
            uncertain: false,
            cancel_requested: false,
            acked_late: false,
        }
    }

    /// The one transition of a timer. `now` is the store's time.
    pub fn step(mut self, event: Event, now: UnixMs) -> Step {
        let answer = match event {
            Event::Cancel => self.cancel(),
            Event::Reschedule { due_at } => self.change(|life| {
                let is_paused = life.state == State::Paused;
                life.start_anew(due_at, now);
                if is_paused {
                    life.rest();
                }
            }),
            Event::Fire => self.change(|life| life.start_anew(now, now)),
            Event::Pause => self.change(Self::rest),
            // It was found overdue before any attempt of this generation, as by the sweep.
            Event::Resume { is_too_late: true } if self.state == State::Paused && self.attempt == 0 => {
                self.change(|life| life.state = State::Expired)
            }
            Event::Resume { .. } => self.change(|life| {
                if life.state == State::Paused {
                    (life.state, life.wake_at) = match life.attempt {
                        0 => (State::Scheduled, life.due_at.max(now)),
                        _ => (State::Retrying, now),
                    };
                }
            }),
            Event::Relabel => self.change(|_| {}),
            Event::Attempted { token, result, next } => self.attempted(token, result, next),
            Event::ClaimExpired { token, max_attempts } if self.is_under_way(token) => {
                let spent = u32::try_from(self.attempt).unwrap_or(0) >= max_attempts;
                let next = if spent { Next::GiveUp } else { Next::Retry(now) };
                self.failed(AttemptResult::Unknown, next);
                Answer::Done
            }
            Event::Released { token } if self.is_under_way(token) => {
                self.attempt -= 1;
                self.tries -= 1;
                // A claim may come a moment before the due time, and so may its release.
                self.wake_at = if self.attempt == 0 { now.max(self.due_at) } else { now };
                let waiting = if self.attempt == 0 { State::Scheduled } else { State::Retrying };
                self.settle_or(waiting);
                Answer::Done
            }
            Event::TooLate { generation }
                if self.state == State::Scheduled && self.generation == generation && self.attempt == 0 =>
            {
                self.state = State::Expired;
                Answer::Done
            }
            Event::Discarded { generation }
                if matches!(self.state, State::Scheduled | State::Retrying)
                    && self.generation == generation =>
            {
                self.state = State::Expired;
                Answer::Done
            }
            Event::Withdrawn if self.state == State::Scheduled && self.version == Version(1) => {
                self.state = State::Cancelled;
                Answer::Done
            }
            Event::Cleared { generation }
                if self.state == State::Scheduled && self.generation == generation =>
            {
                self.wake_at = self.due_at.max(now);
                Answer::Done
            }
            Event::Waits { generation }
                if self.state == State::Scheduled && self.generation == generation =>
            {
                self.wake_at = LAST;
                Answer::Done
            }
            Event::ClaimExpired { .. }
            | Event::Released { .. }
            | Event::TooLate { .. }
            | Event::Discarded { .. }
            | Event::Withdrawn
            | Event::Cleared { .. }
            | Event::Waits { .. } => Answer::Stale,
        };
        Step { life: self, answer }
    }

    /// The next generation begins, due then.
    fn start_anew(&mut self, due_at: UnixMs, now: UnixMs) {
        self.generation = Generation(self.generation.0 + 1);
        self.state = State::Scheduled;
        self.attempt = 0;
        self.due_at = due_at;
        self.wake_at = due_at.max(now);
    }

    /// It is paused, and nobody needs to look at it.
    fn rest(&mut self) {
        self.state = State::Paused;
        self.wake_at = LAST;
    }

    /// Whether the attempt of this token is the one under way.
    fn is_under_way(&self, token: Token) -> bool {
        self.state == State::Delivering
            && self.generation == token.generation
            && self.attempt == token.attempt
    }

    fn cancel(&mut self) -> Answer {
        match self.state {
            State::Delivered | State::Expired | State::Dead => Answer::AlreadyFired,
            State::Delivering => {
                if !self.cancel_requested {
                    self.cancel_requested = true;
                    self.version.0 += 1;
                }
                Answer::InFlight
            }
            State::Scheduled | State::Retrying | State::Paused | State::Cancelled => {
                if self.state != State::Cancelled {
                    self.state = State::Cancelled;
                    self.version.0 += 1;
                }
                match (self.uncertain, self.tries) {
                    (true, _) => Answer::InFlight,
                    (false, 0) => Answer::Cancelled,
                    (false, _) => Answer::Stopped,
                }
            }
        }
    }

    /// A caller's change, allowed while no attempt is under way or has an unknown outcome.
    fn change(&mut self, make: impl FnOnce(&mut Self)) -> Answer {
        match self.state {
            State::Cancelled => Answer::AlreadyCancelled,
            State::Delivered | State::Expired | State::Dead => Answer::AlreadyFired,
            State::Delivering => Answer::InFlight,
            _ if self.uncertain => Answer::InFlight,
            _ => {
                make(self);
                self.version.0 += 1;
                Answer::Done
            }
        }
    }

    fn attempted(&mut self, token: Token, result: AttemptResult, next: Next) -> Answer {
        let ok = result == AttemptResult::Ok;
        if self.is_under_way(token) {
            if ok {
                self.state = State::Delivered;
            } else {
                self.failed(result, next);
            }
            return Answer::Done;
        }
        // A late result: the claim had expired. A late success still counts, a late failure changes nothing.
        let ours = self.generation == token.generation && token.attempt <= self.attempt;
        match self.state {
            State::Retrying if ours && ok => {
                self.state = State::Delivered;
                Answer::Done
            }
            State::Delivering if ours && ok => {
                self.acked_late = true;
                Answer::Done
            }
            _ => Answer::Stale,
        }
    }

    /// The attempt under way did not, or not certainly, succeed.
    fn failed(&mut self, result: AttemptResult, next: Next) {
        self.uncertain |= !result.surely_failed();
        let waiting = match next {
            Next::Retry(at) => {
                self.wake_at = at;
                State::Retrying
            }
            Next::GiveUp => State::Dead,
        };
        self.settle_or(waiting);
    }

    /// Sets the state after the attempt under way. A late success, and then a cancel, that came meanwhile take
    /// precedence.
    fn settle_or(&mut self, otherwise: State) {
        self.state = if self.acked_late {
            State::Delivered
        } else if self.cancel_requested {
            // The cancel was answered `in_flight`, so the outcome stays uncertain in the record.
            self.uncertain = true;
            State::Cancelled
        } else {
            otherwise
        };
    }
}

#[cfg(test)]
mod tests;

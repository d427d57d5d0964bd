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
//! ```
//!
//! The claim itself is not made here but in one SQL statement; this room decides everything that follows
//! from it. `attempt` counts the claims of this generation, `tries` those of all generations since the
//! registration. An attempt whose outcome is unknown sets `uncertain` for good: from then on no answer
//! may say that nothing was sent.

use serde::{Deserialize, Serialize};

use super::id::{Generation, Version};
use super::time::UnixMs;

/// Where a timer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for its due time; nothing of this generation was attempted.
    Scheduled,
    /// Claimed: an attempt is under way, or its node is gone and nobody knows.
    Delivering,
    /// An attempt failed; waits for the next.
    Retrying,
    /// Held back until resumed.
    Paused,
    /// End: a receiver took it.
    Delivered,
    /// End: taken back by its caller.
    Cancelled,
    /// End: found later than its grace; never attempted.
    Expired,
    /// End: out of attempts, or the receiver is gone for good.
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

    /// The number that stands for this state in SQL; 0–3 live, 4–7 ended.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The state behind a number from SQL.
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

    /// The state behind a word of the contract.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// How one attempt came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptResult {
    /// The receiver took it.
    Ok,
    /// The receiver answered, and the answer was no.
    Failed,
    /// No answer in time: the receiver may have acted.
    Timeout,
    /// Nothing was sent: no connection, or an address that is not delivered to.
    Refused,
    /// The connection broke after something was sent, or the node died.
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

    /// The result behind a word of the contract.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|result| result.word() == word)
    }

    /// Whether the receiver surely did not take it.
    pub const fn surely_failed(self) -> bool {
        matches!(self, Self::Failed | Self::Refused)
    }
}

/// What follows an attempt that was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another attempt, not before this moment.
    Retry(UnixMs),
    /// No further attempt: the timer is dead.
    GiveUp,
}

/// Names one attempt of one firing. A result counts only for the attempt whose token it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The generation that was claimed.
    pub generation: Generation,
    /// The attempt's number within the generation, from 1.
    pub attempt: i32,
}

/// The part of a live timer that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Where it stands.
    pub state: State,
    /// When it should fire.
    pub due_at: UnixMs,
    /// When somebody must next look at it: due, next attempt, or the claim's expiry.
    pub wake_at: UnixMs,
    /// The version of its due time.
    pub generation: Generation,
    /// Claims of this generation so far.
    pub attempt: i32,
    /// Claims of all generations so far.
    pub tries: i32,
    /// Rises with every change a caller makes.
    pub version: Version,
    /// An attempt's outcome is unknown.
    pub uncertain: bool,
    /// A cancel came while an attempt was unresolved.
    pub cancel_requested: bool,
    /// A success of an earlier attempt arrived while a later one is under way.
    pub acked_late: bool,
}

/// What happens to a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its caller takes it back.
    Cancel,
    /// Its caller gives a new due time or new data: a new generation.
    Reschedule {
        /// The new due time.
        due_at: UnixMs,
    },
    /// Its caller changes what does not concern the firing (labels).
    Relabel,
    /// An attempt's outcome is known.
    Attempted {
        /// Which attempt.
        token: Token,
        /// How it came out.
        result: AttemptResult,
        /// What follows if it was not taken.
        next: Next,
    },
    /// A claim ran out and nobody reported.
    ClaimExpired {
        /// Which attempt.
        token: Token,
        /// How many attempts the timer has in all.
        max_attempts: u32,
    },
    /// Claimed, but surely nothing sent: the holder gives it back.
    Released {
        /// Which attempt.
        token: Token,
    },
    /// Found later than its grace, never attempted.
    TooLate {
        /// The generation that was found.
        generation: Generation,
    },
}

/// What the one who caused an event is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing was or ever will be sent.
    Cancelled,
    /// Earlier attempts all surely failed; nothing more will be sent.
    Stopped,
    /// An attempt is under way or its outcome unknown.
    InFlight,
    /// Too late: it fired, died or expired.
    AlreadyFired,
    /// Its caller had taken it back before.
    AlreadyCancelled,
    /// Done.
    Done,
    /// The event belongs to an attempt or generation that is no longer the current one.
    Stale,
}

/// What an event did: the new life, whether that differs from the old, and the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The life after the event.
    pub life: Life,
    /// What to tell.
    pub answer: Answer,
}

impl Life {
    /// A timer as it is registered.
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

    /// The one transition function. `now` is the store's time.
    pub fn step(mut self, event: Event, now: UnixMs) -> Step {
        let answer = match event {
            Event::Cancel => self.cancel(),
            Event::Reschedule { due_at } => self.change(|life| {
                life.generation = Generation(life.generation.0 + 1);
                life.state = State::Scheduled;
                life.attempt = 0;
                life.due_at = due_at;
                life.wake_at = due_at.max(now);
            }),
            Event::Relabel => self.change(|_| {}),
            Event::Attempted { token, result, next } => self.attempted(token, result, next),
            Event::ClaimExpired { token, max_attempts } if self.holds(token) => {
                let spent = u32::try_from(self.attempt).unwrap_or(0) >= max_attempts;
                let next = if spent { Next::GiveUp } else { Next::Retry(now) };
                self.not_taken(AttemptResult::Unknown, next);
                Answer::Done
            }
            Event::Released { token } if self.holds(token) => {
                self.attempt -= 1;
                self.tries -= 1;
                // A claim may come a moment before the due time, and so may its return.
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
            Event::ClaimExpired { .. } | Event::Released { .. } | Event::TooLate { .. } => Answer::Stale,
        };
        Step { life: self, answer }
    }

    /// Whether this attempt is the one under way.
    fn holds(&self, token: Token) -> bool {
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

    /// A caller's change, allowed while nothing is under way or unknown.
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
        if self.holds(token) {
            if ok {
                self.state = State::Delivered;
            } else {
                self.not_taken(result, next);
            }
            return Answer::Done;
        }
        // A late result: its claim had expired. A late success is still a success, a late failure changes nothing.
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

    /// The attempt under way was not (or not surely) taken.
    fn not_taken(&mut self, result: AttemptResult, next: Next) {
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

    /// What was decided while the attempt was under way comes first: a late success, then a cancel.
    fn settle_or(&mut self, otherwise: State) {
        self.state = if self.acked_late {
            State::Delivered
        } else if self.cancel_requested {
            // The cancel was answered `in_flight`; what that answer left open stays open in the record.
            self.uncertain = true;
            State::Cancelled
        } else {
            otherwise
        };
    }
}

#[cfg(test)]
mod tests;

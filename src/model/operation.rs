//! Operations: one action on every timer that a filter matches.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use super::time::Span;
use super::timer::State;

/// The prefix of an operation's id.
const PREFIX: &str = "op_";

/// An operation's id: `op_` and 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub Uuid);

impl OperationId {
    /// Reads one; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix(PREFIX).filter(|hex| hex.len() == 32)?;
        Uuid::try_parse(hex).ok().map(Self)
    }

    /// The id of the operation that does what this dry run has counted: always the same one, and next to it in order.
    pub const fn of_run(self) -> Self {
        Self(Uuid::from_u128(self.0.as_u128().wrapping_add(1)))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0.simple())
    }
}

/// What an operation does to each timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// They are cancelled.
    Cancel,
    /// Their due times move by the same duration.
    Shift,
    /// They are due now, as a new generation.
    Fire,
    /// They do not fire until they are resumed.
    Pause,
    /// Paused timers fire again.
    Resume,
    /// Dead timers run again, as a new generation.
    Redrive,
    /// What is kept of ended timers is removed.
    Purge,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 7] =
        [Self::Cancel, Self::Shift, Self::Fire, Self::Pause, Self::Resume, Self::Redrive, Self::Purge];

    /// The word of the contract.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Shift => "shift",
            Self::Fire => "fire",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Redrive => "redrive",
            Self::Purge => "purge",
        }
    }

    /// It takes timers in these states. Others do not match.
    pub const fn states(self) -> &'static [State] {
        match self {
            Self::Cancel | Self::Shift | Self::Fire => {
                &[State::Scheduled, State::Delivering, State::Retrying, State::Paused]
            }
            Self::Pause => &[State::Scheduled, State::Delivering, State::Retrying],
            Self::Resume => &[State::Paused],
            Self::Redrive => &[State::Dead],
            Self::Purge => &[State::Delivered, State::Cancelled, State::Expired, State::Dead],
        }
    }

    /// Whether it takes timers that have ended.
    pub const fn takes_ended(self) -> bool {
        matches!(self, Self::Redrive | Self::Purge)
    }

    /// Whether a timer that it has changed may come up in it again: its due time changes.
    pub const fn moves(self) -> bool {
        matches!(self, Self::Shift | Self::Fire)
    }

    /// The action with this word in the contract.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.word() == word)
    }
}

/// Reads how far due times are moved: an ISO 8601 duration, with a minus before it for earlier. In milliseconds.
pub fn parse_shift(text: &str) -> Result<i64, String> {
    let (sign, length) = text.strip_prefix('-').map_or((1, text), |length| (-1, length));
    let span = Span::parse(length).map_err(|why| why.to_string())?;
    match i64::try_from(span.get().as_millis()) {
        Ok(ms) if ms > 0 => Ok(sign * ms),
        _ => Err("it has to be longer than nothing".into()),
    }
}

/// A shift as [`parse_shift`] reads it.
pub fn shift_text(by_ms: i64) -> String {
    let span = Span::from_duration(Duration::from_millis(by_ms.unsigned_abs()));
    format!("{}{span}", if by_ms < 0 { "-" } else { "" })
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationState {
    /// It works through its filter, or waits for a node that does, or for another one to end: of those that move timers one
    /// goes on at a time.
    Running,
    /// It has come to the end of its filter.
    Done,
    /// A caller ended it early.
    Stopped,
    /// It could not go on; it says why.
    Failed,
}

impl OperationState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Stopped, Self::Failed];

    /// The number of this state in SQL.
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
            Self::Running => "running",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Why an operation left a timer that its filter matches as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// An attempt of it is under way, or the outcome of one is not known. A cancel is recorded: no further attempt starts.
    InFlight,
    /// A live timer has its id again.
    IdTaken,
    /// Its id was registered, or re-driven, again since, and that timer has ended, too.
    Superseded,
    /// Its destination was removed.
    NoDestination,
    /// Its history was removed meanwhile, by its age or by another purge.
    Removed,
    /// This node cannot read it: a newer version or another build wrote it.
    Unreadable,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::InFlight,
        Self::IdTaken,
        Self::Superseded,
        Self::NoDestination,
        Self::Removed,
        Self::Unreadable,
    ];

    /// Its word in answers.
    pub const fn word(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::IdTaken => "id_taken",
            Self::Superseded => "superseded",
            Self::NoDestination => "no_destination",
            Self::Removed => "removed",
            Self::Unreadable => "unreadable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back() {
        let id = OperationId(Uuid::from_u128(7));
        assert_eq!(OperationId::parse(&id.to_string()), Some(id));
        for bad in ["", "op_", "op_7", "00000000000000000000000000000007"] {
            assert_eq!(OperationId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_shift_is_read_back() {
        for (text, ms) in [("PT1H", 3_600_000), ("-PT15M", -900_000), ("PT0.5S", 500)] {
            assert_eq!(parse_shift(text), Ok(ms));
            assert_eq!(shift_text(ms), text);
        }
        for bad in ["", "-", "PT0S", "-PT0S", "--PT1S", "P1M", "1h"] {
            assert!(parse_shift(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_and_codes_are_read_back() {
        for action in Action::ALL {
            assert_eq!(Action::from_word(action.word()), Some(action));
        }
        for state in OperationState::ALL {
            assert_eq!(OperationState::from_code(state.code()), Some(state));
        }
        assert_eq!(OperationState::from_code(4), None);
    }
}

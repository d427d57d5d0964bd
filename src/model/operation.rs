//! Operations: one action on every timer that a filter matches.

use std::fmt;

use uuid::Uuid;

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

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationState {
    /// It works through its filter, or waits for a node that does.
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

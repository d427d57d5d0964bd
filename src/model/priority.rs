//! Priorities: who goes first when there is more due than can be sent.

use serde::{Deserialize, Serialize};

/// How soon a due timer goes out where others wait for the same receiver. Low ones still move.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Sixteen of twenty-one turns.
    High,
    /// Four of them.
    #[default]
    Normal,
    /// One of them.
    Low,
}

impl Priority {
    /// Every priority, the highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The sum of all weights.
    pub const WEIGHTS: i32 = 21;

    /// Its share of the turns, where all three wait.
    pub const fn weight(self) -> i32 {
        match self {
            Self::High => 16,
            Self::Normal => 4,
            Self::Low => 1,
        }
    }

    /// Its number in SQL, where `normal` is NULL, and in a packed pointer.
    pub const fn code(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::High => 1,
            Self::Low => 2,
        }
    }

    /// The priority of this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.code() == code)
    }

    /// Its word in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

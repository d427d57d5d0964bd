//! The tier of a timer: where its pointer is. It is computed from the watermark of its shard; no row holds it.

use std::time::Duration;

use serde::Serialize;

use super::Service;
use crate::cold::TimerRow;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::positions::Positions;

/// Where the pointer of a live timer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Nowhere: it rests in SQL.
    Cold,
    /// In the minute wheel.
    Minute,
    /// In the second wheel, or taken from it.
    Second,
    /// Claimed for an attempt.
    Claimed,
}

impl Tier {
    /// The word of the contract.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Minute => "minute",
            Self::Second => "second",
            Self::Claimed => "claimed",
        }
    }
}

/// Computes the tier of a timer from its shard's watermark; the row does not hold it.
#[derive(Clone, Copy)]
pub struct Tiers<'a> {
    positions: &'a Positions,
    /// A promoted timer whose minute begins by then is in the second wheel.
    near: UnixMs,
}

impl<'a> Tiers<'a> {
    /// Tiers as of now; `near` is the reach of the second wheel.
    pub fn now(service: &'a Service, near: Duration) -> Self {
        Self { positions: &service.positions, near: service.store.clock().now().plus(near) }
    }

    /// The tier of a timer; `None` if it has ended.
    pub fn of(&self, row: &TimerRow) -> Option<Tier> {
        let life = &row.life;
        match life.state {
            State::Delivering => Some(Tier::Claimed),
            state if state.is_end() => None,
            State::Paused => Some(Tier::Cold),
            _ if life.wake_at >= self.positions.watermark(row.shard) => Some(Tier::Cold),
            State::Scheduled if row.minute => Some(Tier::Minute),
            // A minute's slot is cascaded as a whole, once it begins within reach of the second wheel.
            _ if life.wake_at.floor_minute() > self.near => Some(Tier::Minute),
            _ => Some(Tier::Second),
        }
    }
}

//! What answers show of a timer beside its row: the tier, which is where its pointer is, and the `retry` in force.

use std::time::Duration;

use serde::Serialize;

use super::Service;
use crate::cold::TimerRow;
use crate::destinations::Destinations;
use crate::model::policy::Retry;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::positions::Positions;
use crate::queue::Queues;

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

/// Computes the tier of a timer from its shard's watermark, and its `retry` from its destination; the row holds neither.
#[derive(Clone, Copy)]
pub struct Tiers<'a> {
    positions: &'a Positions,
    destinations: &'a Destinations,
    queues: &'a Queues,
    /// A promoted timer whose minute begins by then is in the second wheel.
    near: UnixMs,
}

impl<'a> Tiers<'a> {
    /// Tiers as of now; `near` is the reach of the second wheel.
    pub fn now(service: &'a Service, near: Duration) -> Self {
        let Service { positions, destinations, queues, .. } = service;
        Self { positions, destinations, queues, near: service.store.clock().now().plus(near) }
    }

    /// The `retry` in force: the timer's own goes before its destination's or queue's, this before the default.
    pub fn retry(&self, row: &TimerRow) -> Retry {
        let of_destination = || self.destinations.get(row.namespace, row.target.destination()?)?.limits.retry;
        let of_queue = || self.queues.settings(row.namespace, row.target.queue()?).retry;
        row.policies.retry.or_else(of_destination).or_else(of_queue).unwrap_or_default()
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

//! What the overview shows: the first frame of the live picture, read. The page at first shows the same as the frames
//! that its script gets after it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::frame::Trouble;
use crate::service::Service;

/// A full frame ([`crate::observe::frame`]).
#[derive(Debug, Clone, Deserialize)]
pub struct Full {
    /// Milliseconds since the Unix epoch.
    pub now: i64,
    /// Reach of the second wheel, in seconds.
    pub near: i64,
    /// Reach of the minute wheel, in seconds.
    pub window: i64,
    /// Pointers by Unix second.
    #[serde(rename = "s")]
    pub seconds: Vec<(i64, u64)>,
    /// Pointers by Unix minute.
    #[serde(rename = "m")]
    pub minutes: Vec<(i64, u64)>,
    /// The last ticks that every shard has taken.
    pub taken: Taken,
    /// The overview.
    #[serde(rename = "x")]
    pub overview: Overview,
}

/// The last ticks that were taken.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Taken {
    /// Of the minute wheel.
    #[serde(rename = "m")]
    pub minute: Option<i64>,
}

/// The overview of a frame.
#[derive(Debug, Clone, Deserialize)]
pub struct Overview {
    pub sentence: String,
    pub level: String,
    pub link: String,
    pub fired: f64,
    pub p99: Option<f64>,
    pub rates: BTreeMap<String, f64>,
    pub cold: i64,
    pub bins: [i64; 5],
    pub last_mile: i64,
    pub in_flight: i64,
    pub waiting: i64,
    pub retrying: i64,
    pub dead: i64,
    pub redis: bool,
}

impl Overview {
    /// A rate by its name; 0 for one that the frame does not have.
    pub fn rate(&self, name: &str) -> f64 {
        self.rates.get(name).copied().unwrap_or_default()
    }
}

/// Reads the present frame.
pub async fn look(service: &Service) -> Result<Full, Trouble> {
    let (first, _) = service.observer.watch().await;
    serde_json::from_str(&first.data).map_err(|why| {
        tracing::error!(%why, "a frame of the picture cannot be read");
        Trouble::internal()
    })
}

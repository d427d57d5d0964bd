//! The forecast that callers see: counts of what is due, in steps.

use crate::cold::{ColdStore, Error};
use crate::model::time::UnixMs;

/// The most steps of a forecast.
pub const MAX_ITEMS: i64 = 1500;

/// A range with at most so many timers is counted exactly; one with more is read from the summary.
const EXACT: i64 = 100_000;

/// What is due from one moment to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// Each step that holds timers: when it begins, and how many.
    pub items: Vec<(UnixMs, i64)>,
    /// The fullest step.
    pub peak: Option<(UnixMs, i64)>,
    /// When this was counted. A count from the summary puts timers by the minute for a day from then, by the hour for two
    /// months, by the day beyond.
    pub counted_at: UnixMs,
}

/// Counts live timers that are due in [from, to), in steps of `step_ms`.
pub async fn forecast(store: &ColdStore, from: UnixMs, to: UnixMs, step_ms: i64) -> Result<Forecast, Error> {
    let now = store.clock().now();
    let summary = if store.ledger().await?.pending > EXACT { store.summary().await? } else { None };
    // The summary may be older than most of the timers, so the exact count has a limit of its own.
    let exact = match &summary {
        Some(summary) if summary.between(from, to) > EXACT => None,
        Some(_) => store.count_due(from, to, step_ms, EXACT).await?,
        None => store.count_due(from, to, step_ms, i64::MAX - 1).await?,
    };
    let (counts, counted_at) = match exact {
        Some(counts) => (counts, now),
        None => {
            let summary = summary.unwrap_or_default();
            let mut counts = std::collections::BTreeMap::new();
            for (at, count) in summary.bins().filter(|(at, _)| (from..to).contains(at)) {
                *counts.entry((at.get() - from.get()).div_euclid(step_ms)).or_default() += count;
            }
            (counts, summary.counted_at(from, to))
        }
    };
    let items: Vec<(UnixMs, i64)> =
        counts.into_iter().map(|(step, count)| (UnixMs::new(from.get() + step * step_ms), count)).collect();
    // Of equal ones the first.
    let peak = items.iter().rev().max_by_key(|(_, count)| *count).copied();
    Ok(Forecast { items, peak, counted_at })
}

//! The forecast that callers see: counts of what is due, in steps.

use std::collections::BTreeMap;

use crate::cold::{ColdStore, Error, Rhythm, Whose};
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;
use crate::schedule::upcoming::counts as unmade;

/// The most steps of a forecast.
pub const MAX_ITEMS: i64 = 1500;

/// A range with at most so many timers is counted exactly; one with more is read from the summary.
const EXACT: i64 = 100_000;

/// Of one namespace among others at most so many timers are counted.
const MOST_OF_ONE: i64 = 1_000_000;

/// About so many nominal times of schedules are looked at that are not made yet.
const MOST_UNMADE: usize = 100_000;

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
    /// There are more timers of a namespace, or more nominal times of schedules, than were counted.
    pub is_cut: bool,
}

/// Counts live timers that are due in [from, to), in steps of `step_ms`, and nominal times of schedules that are not made
/// yet: of all namespaces, or of the one that `store` is about.
pub async fn forecast(
    store: &ColdStore,
    is_of_all: bool,
    (from, to): (UnixMs, UnixMs),
    step_ms: i64,
) -> Result<Forecast, Error> {
    let now = store.clock().now();
    if !is_of_all && (store.namespace() != Namespace::OWN || store.has_others()) {
        let (counts, is_cut) = store.count_due_here(from, to, step_ms, MOST_OF_ONE).await?;
        return whole(store, Whose::One(store.namespace()), (counts, now, is_cut), (from, to), step_ms).await;
    }
    let summary = if store.ledger(Whose::All).await?.pending > EXACT { store.summary().await? } else { None };
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
            let mut counts = BTreeMap::new();
            for (at, count) in summary.bins().filter(|(at, _)| (from..to).contains(at)) {
                *counts.entry((at.get() - from.get()).div_euclid(step_ms)).or_default() += count;
            }
            (counts, summary.counted_at(from, to))
        }
    };
    whole(store, Whose::All, (counts, counted_at, false), (from, to), step_ms).await
}

/// What was counted, and what schedules add to it.
async fn whole(
    store: &ColdStore,
    whose: Whose,
    (mut counts, counted_at, is_cut): (BTreeMap<i64, i64>, UnixMs, bool),
    (from, to): (UnixMs, UnixMs),
    step_ms: i64,
) -> Result<Forecast, Error> {
    let rows = store.rhythms(whose, None, None).await?;
    let now = store.clock().now();
    let is_cut = add_unmade(rows, &mut counts, (from, to), step_ms, now).await? || is_cut;
    let items: Vec<(UnixMs, i64)> =
        counts.into_iter().map(|(step, count)| (UnixMs::new(from.get() + step * step_ms), count)).collect();
    // Of equal ones the first.
    let peak = items.iter().rev().max_by_key(|(_, count)| *count).copied();
    Ok(Forecast { items, peak, counted_at, is_cut })
}

/// Adds the nominal times of schedules whose occurrences are not made yet; returns whether there are more than are counted.
async fn add_unmade(
    rows: Vec<Rhythm>,
    counts: &mut BTreeMap<i64, i64>,
    range: (UnixMs, UnixMs),
    step_ms: i64,
    now: UnixMs,
) -> Result<bool, Error> {
    if rows.is_empty() {
        return Ok(false);
    }
    // Beside the runtime: a nominal time takes some microseconds.
    let counted = tokio::task::spawn_blocking(move || unmade(&rows, range, step_ms, now, MOST_UNMADE)).await;
    let (unmade, is_cut) = counted
        .map_err(|_| Error::Busy)?
        .map_err(|why| Error::Corrupt(format!("the rule of a schedule: {why}")))?;
    unmade.into_iter().for_each(|(step, count)| *counts.entry(step).or_default() += count);
    Ok(is_cut)
}

//! The forecast: how many live timers wake when.
//!
//! Two sources. A range that holds few timers is counted when somebody asks. Of a large store a *summary* is kept: one
//! row with counts by the minute for the next day, by the hour for two months, by the day for ten years. It is counted
//! shard by shard, over an index, by the housekeeping of one node ([`crate::housekeeping`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sql::{Column, Dialect, Statement};
use super::{ColdStore, Error};
use crate::model::time::UnixMs;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Widths of the bins of a summary, in milliseconds, and how far from the count each reaches.
const SCALES: [(i64, i64); 3] =
    [(MINUTE_MS, DAY_MS + HOUR_MS), (HOUR_MS, 62 * DAY_MS), (DAY_MS, 3660 * DAY_MS)];

/// How far ahead the horizons of the overview and of `mainspring_forecast_timers` reach, in milliseconds.
pub const HORIZONS: [(&str, i64); 5] =
    [("1h", HOUR_MS), ("1d", DAY_MS), ("7d", 7 * DAY_MS), ("30d", 30 * DAY_MS), ("later", i64::MAX)];

/// Live timers by wake time. Timers that wake later than the last scale reaches are in `later`; overdue ones are not
/// counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Up to where each scale reaches, in milliseconds since the Unix epoch. A scale begins where the one before ends.
    ends: [i64; SCALES.len()],
    /// Counts by the number of the bin, counted from the Unix epoch.
    bins: [BTreeMap<i64, i64>; SCALES.len()],
    later: i64,
}

impl Summary {
    /// An empty summary, to be counted at `now`.
    pub fn starting(now: UnixMs) -> Self {
        // A scale ends at the beginning of a bin of the next.
        let width_of_next = |index: usize| SCALES.get(index + 1).map_or(DAY_MS, |(width, _)| *width);
        let end = |index: usize| {
            let (width, end) = (width_of_next(index), now.get() + SCALES[index].1);
            (end.div_euclid(width) + 1) * width
        };
        Self { ends: std::array::from_fn(end), ..Self::default() }
    }

    fn add(&mut self, scale: usize, bin: i64, count: i64) {
        match self.bins.get_mut(scale) {
            Some(bins) => *bins.entry(bin).or_default() += count,
            None => self.later += count,
        }
    }

    /// The bins in order: when each begins, and its count.
    pub fn bins(&self) -> impl Iterator<Item = (UnixMs, i64)> {
        let of = |(bins, (width, _)): (&BTreeMap<i64, i64>, (i64, i64))| {
            bins.iter().map(move |(bin, count)| (UnixMs::new(bin * width), *count)).collect::<Vec<_>>()
        };
        self.bins.iter().zip(SCALES).flat_map(of)
    }

    /// Timers in [from, to), as far as the bins tell: a bin counts where it begins.
    pub fn between(&self, from: UnixMs, to: UnixMs) -> i64 {
        self.bins().filter(|(at, _)| (from..to).contains(at)).map(|(_, count)| count).sum()
    }

    /// Timers that wake within these horizons from `now` on, each without those before it.
    pub fn horizons(&self, now: UnixMs) -> [(&'static str, i64); HORIZONS.len()] {
        // The minute that has begun counts.
        let mut from = UnixMs::new(now.get().div_euclid(MINUTE_MS) * MINUTE_MS);
        HORIZONS.map(|(word, reach)| {
            let to = UnixMs::new(now.get().saturating_add(reach));
            let count = if reach == i64::MAX { self.since(from) } else { self.between(from, to) };
            from = to;
            (word, count)
        })
    }

    /// Timers that wake from `from` on.
    pub fn since(&self, from: UnixMs) -> i64 {
        self.bins().filter(|(at, _)| *at >= from).map(|(_, count)| count).sum::<i64>() + self.later
    }
}

impl ColdStore {
    /// Adds these shards to a summary that is being counted.
    pub async fn summarize(&self, shards: &[i32], now: UnixMs, summary: &mut Summary) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "forecast_summary");
        let batch =
            s.batch("b", vec![("b_shard", Column::Int(shards.iter().copied().map(i64::from).collect()))]);
        let mut from = s.int(now.get());
        let mut parts = Vec::new();
        for (scale, ((width, _), end)) in SCALES.into_iter().zip(summary.ends).enumerate() {
            let until = s.int(end);
            let rows = self.waking(&format!("t.wake_at >= {from} AND t.wake_at < {until}"));
            parts.push(format!(
                "SELECT {scale}, wake_at / {width}, count(*) FROM {rows} GROUP BY wake_at / {width}"
            ));
            from = until;
        }
        let rows = self.waking(&format!("t.wake_at >= {from}"));
        parts.push(format!("SELECT {}, 0, count(*) FROM {rows}", SCALES.len()));
        s.push(&format!("WITH {batch} {}", parts.join(" UNION ALL ")));
        for row in self.pool.read(s).await? {
            let scale = usize::try_from(row.get::<i32>(0)?).unwrap_or(usize::MAX);
            summary.add(scale, row.get(1)?, row.get(2)?);
        }
        Ok(())
    }

    /// The wake times of the live timers in the shards of the batch `b`, in a range: read from the index alone.
    fn waking(&self, range: &str) -> String {
        match self.dialect() {
            Dialect::Postgres => format!(
                "b CROSS JOIN LATERAL (SELECT t.wake_at FROM timers t WHERE t.shard = b_shard AND {range}) d"
            ),
            Dialect::Sqlite => format!("b CROSS JOIN timers t ON t.shard = b_shard AND {range}"),
        }
    }

    /// Stores a summary, as of `counted_at`.
    pub async fn put_summary(&self, counted_at: UnixMs, summary: &Summary) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "forecast_put");
        let (at, bins) =
            (s.int(counted_at.get()), s.text(&serde_json::to_string(summary).unwrap_or_default()));
        s.push(&format!(
            "INSERT INTO forecast (id, counted_at, bins) VALUES (1, {at}, {bins}) \
             ON CONFLICT (id) DO UPDATE SET counted_at = excluded.counted_at, bins = excluded.bins"
        ));
        self.pool.write(s).await.map(drop)
    }

    /// The summary and when it was counted; `None` before the first.
    pub async fn summary(&self) -> Result<Option<(UnixMs, Summary)>, Error> {
        let mut s = Statement::new(self.dialect(), "forecast");
        s.push("SELECT counted_at, bins FROM forecast WHERE id = 1");
        let Some(row) = self.pool.read(s).await?.into_iter().next() else { return Ok(None) };
        // One of another version counts as none.
        let summary = serde_json::from_str(&row.get::<String>(1)?).ok();
        let counted_at = UnixMs::new(row.get(0)?);
        Ok(summary.map(|summary| (counted_at, summary)))
    }

    /// Counts live timers by wake time in [from, to), in steps of `step_ms`: the number of the step, and the count.
    /// Steps without timers are missing.
    pub async fn count_due(
        &self,
        from: UnixMs,
        to: UnixMs,
        step_ms: i64,
    ) -> Result<BTreeMap<i64, i64>, Error> {
        let mut s = Statement::new(self.dialect(), "forecast");
        let shards = self.shards().map(i64::from).collect();
        let batch = s.batch("b", vec![("b_shard", Column::Int(shards))]);
        let (from, to, step) = (s.int(from.get()), s.int(to.get()), s.int(step_ms));
        let rows = self.waking(&format!("t.wake_at >= {from} AND t.wake_at < {to}"));
        s.push(&format!(
            "WITH {batch} SELECT (wake_at - {from}) / {step}, count(*) FROM {rows} GROUP BY (wake_at - {from}) / {step}"
        ));
        self.pool.read(s).await?.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_where_a_bin_of_the_next_begins() {
        let now = UnixMs::parse_rfc3339("2026-11-22T12:34:56.789Z").expect("a time");
        let summary = Summary::starting(now);
        assert_eq!(summary.ends[0] % HOUR_MS, 0);
        assert_eq!(summary.ends[1] % DAY_MS, 0);
        for ((_, reach), end) in SCALES.iter().zip(summary.ends) {
            assert!((now.get() + reach..=now.get() + reach + DAY_MS).contains(&end));
        }
    }

    #[test]
    fn a_sum_counts_each_bin_where_it_begins() {
        let mut summary = Summary::starting(UnixMs::new(0));
        summary.add(0, 1, 5);
        summary.add(1, 30, 7);
        summary.add(3, 0, 11);
        let at = |ms| UnixMs::new(ms);
        assert_eq!(summary.between(at(MINUTE_MS), at(MINUTE_MS + 1)), 5);
        assert_eq!(summary.between(at(MINUTE_MS + 1), at(30 * HOUR_MS)), 0);
        assert_eq!(summary.since(at(MINUTE_MS)), 23);
        assert_eq!(summary.since(at(30 * HOUR_MS)), 18);
        let horizons = summary.horizons(at(MINUTE_MS + 1)).map(|(_, count)| count);
        assert_eq!(horizons, [5, 0, 7, 0, 11]);
    }
}

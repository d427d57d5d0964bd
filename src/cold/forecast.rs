//! The forecast: how many live timers wake when.
//!
//! Two sources. A range that holds few timers is counted when somebody asks. Of a large store a *summary* is kept: one
//! row with counts by the minute for the next day, by the hour for two months, by the day for ten years. The
//! housekeeping of one node counts it over an index ([`crate::housekeeping`]), each of the three *scales* for itself:
//! what is near is few and changes, what is far is many and stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::list::of_namespace;
use super::sql::{Column, Dialect, Statement};
use super::{ColdStore, Error};
use crate::model::time::UnixMs;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The scales of a summary: the width of a bin, and how far from the count the bins reach, in milliseconds.
pub const SCALES: [(i64, i64); 3] =
    [(MINUTE_MS, DAY_MS + HOUR_MS), (HOUR_MS, 62 * DAY_MS), (DAY_MS, 3660 * DAY_MS)];

/// How far ahead the horizons of the overview and of `mainspring_forecast_timers` reach, in milliseconds.
pub const HORIZONS: [(&str, i64); 5] =
    [("1h", HOUR_MS), ("1d", DAY_MS), ("7d", 7 * DAY_MS), ("30d", 30 * DAY_MS), ("later", i64::MAX)];

/// About so many timers are counted by one statement.
const AT_ONCE: i64 = 250_000;

/// Live timers by wake time, as they were counted. Overdue ones are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    scales: [Scale; SCALES.len()],
    /// Timers that wake later than the last scale reaches.
    later: i64,
}

/// The bins of one width. A scale begins where the one before ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Scale {
    counted_at: i64,
    /// Live timers of the whole store at the count.
    live: i64,
    /// Where it ends, in milliseconds since the Unix epoch.
    until: i64,
    /// Counts by the number of the bin, counted from the Unix epoch.
    bins: BTreeMap<i64, i64>,
}

impl Scale {
    /// An empty one, to be counted at `now`. It ends at the beginning of a bin of the next.
    fn starting(index: usize, now: UnixMs, live: i64) -> Self {
        let width_of_next = SCALES.get(index + 1).map_or(DAY_MS, |(width, _)| *width);
        let until = ((now.get() + SCALES[index].1).div_euclid(width_of_next) + 1) * width_of_next;
        Self { counted_at: now.get(), live, until, bins: BTreeMap::new() }
    }
}

impl Summary {
    /// The bins in order: when each begins, and its count.
    pub fn bins(&self) -> impl Iterator<Item = (UnixMs, i64)> {
        // A finer scale that was counted again since reaches further, over the first bins of the next.
        let mut from = i64::MIN;
        self.scales.iter().zip(SCALES).flat_map(move |(scale, (width, _))| {
            let begins = std::mem::replace(&mut from, scale.until);
            let bins = scale.bins.iter().map(move |(bin, count)| (bin * width, *count));
            bins.filter(move |(at, _)| *at >= begins).map(|(at, count)| (UnixMs::new(at), count))
        })
    }

    /// Timers in [from, to), as far as the bins tell: a bin counts where it begins.
    pub fn between(&self, from: UnixMs, to: UnixMs) -> i64 {
        self.bins().filter(|(at, _)| (from..to).contains(at)).map(|(_, count)| count).sum()
    }

    /// When the bins of a range were counted: the oldest of the scales that it meets.
    pub fn counted_at(&self, from: UnixMs, to: UnixMs) -> UnixMs {
        let mut begins = i64::MIN;
        let met = self.scales.iter().filter(|scale| {
            let begins = std::mem::replace(&mut begins, scale.until);
            begins < to.get() && from.get() < scale.until
        });
        UnixMs::new(
            met.map(|scale| scale.counted_at).min().unwrap_or(self.scales[SCALES.len() - 1].counted_at),
        )
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

    /// When one scale was counted; the epoch if it never was.
    pub fn scale_counted_at(&self, scale: usize) -> UnixMs {
        UnixMs::new(self.scales[scale].counted_at)
    }

    /// Whether the store has twice as many live timers as when this scale was counted, or half as many.
    pub fn is_outgrown(&self, scale: usize, live: i64) -> bool {
        let then = self.scales[scale].live;
        live > then.saturating_mul(2) || live.saturating_mul(2) < then
    }
}

impl ColdStore {
    /// Counts one scale of a summary anew. `live` is how many live timers the store has.
    pub async fn summarize(
        &self,
        summary: &mut Summary,
        scale: usize,
        now: UnixMs,
        live: i64,
    ) -> Result<(), Error> {
        let mut counted = Scale::starting(scale, now, live);
        let is_last = scale + 1 == SCALES.len();
        let (width, from) = (
            SCALES[scale].0,
            match scale.checked_sub(1) {
                Some(before) => summary.scales[before].until,
                None => now.get(),
            },
        );
        let mut later = 0;
        let shards: Vec<i64> = self.shards().map(i64::from).collect();
        let at_once = (shards.len() as i64 * AT_ONCE / live.max(1)).clamp(1, shards.len() as i64);
        for shards in shards.chunks(usize::try_from(at_once).unwrap_or(1)) {
            let mut s = Statement::new(self.dialect(), "forecast_summary");
            let batch = s.batch("b", vec![("b_shard", Column::Int(shards.to_vec()))]);
            let (from, until) = (s.int(from), s.int(counted.until));
            let rows = self.waking(&format!("t.wake_at >= {from} AND t.wake_at < {until}"));
            s.push(&format!(
                "WITH {batch} SELECT wake_at / {width}, count(*) FROM {rows} GROUP BY wake_at / {width}"
            ));
            if is_last {
                let rows = self.waking(&format!("t.wake_at >= {until}"));
                s.push(&format!(" UNION ALL SELECT NULL, count(*) FROM {rows}"));
            }
            for row in self.pool.read(s).await? {
                match row.get::<Option<i64>>(0)? {
                    Some(bin) => *counted.bins.entry(bin).or_default() += row.get::<i64>(1)?,
                    None => later += row.get::<i64>(1)?,
                }
            }
        }
        summary.scales[scale] = counted;
        if is_last {
            summary.later = later;
        }
        Ok(())
    }

    /// The wake times of the live timers in the shards of the batch `b`, in a range: read from the index alone.
    fn waking(&self, range: &str) -> String {
        match self.dialect() {
            Dialect::Postgres => format!(
                "b CROSS JOIN LATERAL (SELECT t.wake_at FROM timers t WHERE t.shard = b_shard AND {range} OFFSET 0) d"
            ),
            Dialect::Sqlite => format!("b CROSS JOIN timers t ON t.shard = b_shard AND {range}"),
        }
    }

    /// Stores a summary.
    pub async fn put_summary(&self, summary: &Summary) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "forecast_put");
        let oldest = summary.scales.iter().map(|scale| scale.counted_at).min().unwrap_or(0);
        let (at, bins) = (s.int(oldest), s.text(&serde_json::to_string(summary).unwrap_or_default()));
        s.push(&format!(
            "INSERT INTO forecast (id, counted_at, bins) VALUES (1, {at}, {bins}) \
             ON CONFLICT (id) DO UPDATE SET counted_at = excluded.counted_at, bins = excluded.bins"
        ));
        self.pool.write(s).await.map(drop)
    }

    /// The summary; `None` before the first.
    pub async fn summary(&self) -> Result<Option<Summary>, Error> {
        let mut s = Statement::new(self.dialect(), "forecast");
        s.push("SELECT bins FROM forecast WHERE id = 1");
        let Some(row) = self.pool.read(s).await?.into_iter().next() else { return Ok(None) };
        // One of another version counts as none.
        Ok(serde_json::from_str(&row.get::<String>(0)?).ok())
    }

    /// Counts live timers by wake time in [from, to), in steps of `step_ms`: the number of the step, and the count.
    /// Steps without timers are missing. `None` if there are more than `most`: no more than that are read.
    pub async fn count_due(
        &self,
        from: UnixMs,
        to: UnixMs,
        step_ms: i64,
        most: i64,
    ) -> Result<Option<BTreeMap<i64, i64>>, Error> {
        let mut s = Statement::new(self.dialect(), "forecast");
        let shards = self.shards().map(i64::from).collect();
        let batch = s.batch("b", vec![("b_shard", Column::Int(shards))]);
        let (from, to, step) = (s.int(from.get()), s.int(to.get()), s.int(step_ms));
        let limit = s.int(most.saturating_add(1));
        let rows = self.waking(&format!("t.wake_at >= {from} AND t.wake_at < {to}"));
        s.push(&format!(
            "WITH {batch}, due AS (SELECT wake_at FROM {rows} LIMIT {limit}) \
             SELECT (wake_at - {from}) / {step}, count(*) FROM due GROUP BY (wake_at - {from}) / {step}"
        ));
        let rows = self.pool.read(s).await?;
        let counts: BTreeMap<i64, i64> =
            rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, Error>>()?;
        Ok((counts.values().sum::<i64>() <= most).then_some(counts))
    }

    /// How many live timers of the namespace are due in [from, to), in steps of `step_ms`, at most `most`; and whether there
    /// are more.
    pub async fn count_due_here(
        &self,
        from: UnixMs,
        to: UnixMs,
        step_ms: i64,
        most: i64,
    ) -> Result<(BTreeMap<i64, i64>, bool), Error> {
        let mut s = Statement::new(self.dialect(), "forecast");
        let of = of_namespace(self.namespace(), &mut s);
        let (from, to, step) = (s.int(from.get()), s.int(to.get()), s.int(step_ms));
        let limit = s.int(most.saturating_add(1));
        s.push(&format!(
            "SELECT (due_at - {from}) / {step}, count(*) FROM (SELECT due_at FROM timers WHERE {of} \
             AND due_at >= {from} AND due_at < {to} ORDER BY due_at LIMIT {limit}) due GROUP BY (due_at - {from}) / {step}"
        ));
        let rows = self.pool.read(s).await?;
        let counts: BTreeMap<i64, i64> =
            rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, Error>>()?;
        let is_cut = counts.values().sum::<i64>() > most;
        Ok((counts, is_cut))
    }

    /// How many live timers of the namespace are due in each stretch [from, to); each count goes no further than `most`.
    pub async fn count_due_between(
        &self,
        stretches: &[(UnixMs, UnixMs)],
        most: i64,
    ) -> Result<Vec<i64>, Error> {
        let mut s = Statement::new(self.dialect(), "count_due_between");
        let column = |of: fn(&(UnixMs, UnixMs)) -> i64| Column::Int(stretches.iter().map(of).collect());
        let numbers = Column::Int((0..).take(stretches.len()).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_n", numbers),
                ("b_from", column(|one| one.0.get())),
                ("b_to", column(|one| one.1.get())),
            ],
        );
        let (of, most) = (of_namespace(self.namespace(), &mut s), s.int(most));
        s.push(&format!(
            "WITH {batch} SELECT (SELECT count(*) FROM (SELECT 1 FROM timers WHERE {of} AND due_at >= b_from \
             AND due_at < b_to LIMIT {most}) due) FROM b ORDER BY b_n"
        ));
        self.pool.read(s).await?.iter().map(|row| row.get(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> UnixMs {
        UnixMs::new(ms)
    }

    #[test]
    fn a_scale_ends_where_a_bin_of_the_next_begins() {
        let now = UnixMs::parse_rfc3339("2026-11-22T12:34:56.789Z").expect("a time");
        let until = |index| Scale::starting(index, now, 0).until;
        assert_eq!((until(0) % HOUR_MS, until(1) % DAY_MS), (0, 0));
        for (index, (_, reach)) in SCALES.iter().enumerate() {
            assert!((now.get() + reach..=now.get() + reach + DAY_MS).contains(&until(index)));
        }
    }

    fn counted(at_each: [i64; 3], bins: [&[(i64, i64)]; 3]) -> Summary {
        let mut summary = Summary { later: 11, ..Summary::default() };
        for (index, scale) in summary.scales.iter_mut().enumerate() {
            *scale = Scale::starting(index, at(at_each[index]), 100);
            scale.bins = bins[index].iter().copied().collect();
        }
        summary
    }

    #[test]
    fn a_sum_counts_each_bin_where_it_begins() {
        let summary = counted([0; 3], [&[(1, 5)], &[(30, 7)], &[]]);
        assert_eq!(summary.between(at(MINUTE_MS), at(MINUTE_MS + 1)), 5);
        assert_eq!(summary.between(at(MINUTE_MS + 1), at(30 * HOUR_MS)), 0);
        assert_eq!(summary.since(at(MINUTE_MS)), 23);
        assert_eq!(summary.since(at(30 * HOUR_MS)), 18);
        let horizons = summary.horizons(at(MINUTE_MS + 1)).map(|(_, count)| count);
        assert_eq!(horizons, [5, 0, 7, 0, 11]);
    }

    #[test]
    fn a_finer_scale_that_was_counted_later_hides_the_bins_that_it_reaches_over() {
        // The minutes were counted ten hours after the hours, so they reach ten hours further.
        let (before, after) = (28 * 60, 40 * 60);
        let summary =
            counted([10 * HOUR_MS, 0, 0], [&[(before, 5)], &[(28, 6), (40, 7)], &[(1, 8), (70, 9)]]);
        let bins: Vec<(i64, i64)> = summary.bins().map(|(at, count)| (at.get() / MINUTE_MS, count)).collect();
        assert_eq!(bins, [(before, 5), (after, 7), (70 * 24 * 60, 9)]);
        assert_eq!(summary.counted_at(at(0), at(HOUR_MS)).get(), 10 * HOUR_MS);
        assert_eq!(summary.counted_at(at(0), at(100 * HOUR_MS)).get(), 0);
    }

    #[test]
    fn a_store_outgrows_its_summary_by_a_factor_of_two() {
        let summary = counted([0; 3], [&[], &[], &[]]);
        let outgrown = [49, 50, 200, 201].map(|live| summary.is_outgrown(0, live));
        assert_eq!(outgrown, [true, false, false, true]);
    }
}

//! Nominal times that became no occurrence: ranges of them, and what is made of them afterwards.
//!
//! A range is of one rule, and has all of its nominal times from the first to the last. One that grows is gone on with, up to
//! [`MOST_OF_RANGE`]. A nominal time stands in no range, or in one; what is made of a range leaves it in the transaction that
//! makes it.

use std::time::Duration;

use serde_json::json;

use super::ScheduleRow;
use super::judge::Skip;
use super::step::Made;
use crate::cold::audit::Deed;
use crate::cold::outbox::Happened;
use crate::cold::register::NewTimer;
use crate::cold::sql::{Row, Statement, Tx};
use crate::cold::totals::Counts;
use crate::cold::{ColdStore, Error};
use crate::model::rule::RuleError;
use crate::model::schedule::{Occurrence, Overlap, Skipped, Timing, Turn, occurrence_id};
use crate::model::time::UnixMs;

/// The most occurrences that one call makes of skipped nominal times.
pub const MAX_BACKFILL: usize = 1000;

/// The most nominal times of one range.
const MOST_OF_RANGE: i64 = 10_000;

/// The most ranges of one schedule that are kept; the oldest are forgotten.
const MOST_RANGES: i64 = 1000;

/// The outcome of making occurrences of skipped nominal times.
#[derive(Debug)]
pub enum Backfilled {
    /// So many were made.
    Done(usize, Made),
    /// There are more than one call makes ([`MAX_BACKFILL`]): nothing was made.
    TooMany,
    /// There is no schedule of this id.
    NoSuch,
}

/// Nominal times in a row that became no occurrence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRange {
    /// The first of them.
    pub first: UnixMs,
    /// The last of them.
    pub last: UnixMs,
    /// How many.
    pub count: i64,
    /// Why.
    pub reason: Skipped,
    /// When the first of them was recorded.
    pub at: UnixMs,
}

/// A range as it is stored.
struct Range {
    id: i64,
    first: UnixMs,
    last: UnixMs,
    reason: i16,
    rule: String,
    at: i64,
}

impl Range {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get(0)?,
            first: UnixMs::new(row.get(1)?),
            last: UnixMs::new(row.get(2)?),
            reason: row.get(3)?,
            rule: row.get(4)?,
            at: row.get(5)?,
        })
    }

    /// Its nominal times, in order.
    fn times(&self) -> Result<Vec<UnixMs>, RuleError> {
        let Ok(timing) = serde_json::from_str::<Timing>(&self.rule) else { return Ok(Vec::new()) };
        let rule = timing.rule()?;
        let (mut times, mut at) = (Vec::new(), UnixMs::new(self.first.get() - 1));
        while let Some(next) = rule.next(at)?.filter(|next| *next <= self.last) {
            times.push(next);
            at = next;
        }
        Ok(times)
    }
}

impl ColdStore {
    /// Records ranges of nominal times that became no occurrence.
    pub(super) async fn record_skips(
        &self,
        tx: &mut Tx,
        skips: &[(&ScheduleRow, Skip)],
        now: UnixMs,
    ) -> Result<(), Error> {
        for (row, skip) in skips {
            let rule = row.rule_text();
            if let Some(before) = skip.follows
                && self.extend_range(tx, &row.id, &rule, *skip, before).await?
            {
                continue;
            }
            self.insert_range(tx, &row.id, &rule, *skip, now.get()).await?;
            let mut s = Statement::new(self.dialect(), "forget_skips");
            let here = self.here(&mut s);
            let id = s.text(&row.id);
            let of = format!("namespace = {here} AND schedule = {id}");
            s.push(&format!(
                "DELETE FROM skips WHERE {of} AND first_nominal < (SELECT first_nominal FROM skips WHERE {of} \
                 ORDER BY first_nominal DESC LIMIT 1 OFFSET {})",
                MOST_RANGES - 1
            ));
            tx.execute(s).await?;
        }
        Ok(())
    }

    /// Adds to the range that ends with the nominal time before; `false` if there is none, or it is long enough.
    async fn extend_range(
        &self,
        tx: &mut Tx,
        id: &str,
        rule: &str,
        skip: Skip,
        before: UnixMs,
    ) -> Result<bool, Error> {
        let mut s = Statement::new(self.dialect(), "extend_skips");
        let here = self.here(&mut s);
        let (id, rule, reason) = (s.text(id), s.text(rule), skip.reason.code());
        let (last, count, before) = (s.int(skip.last.get()), s.int(skip.count), s.int(before.get()));
        s.push(&format!(
            "UPDATE skips SET last_nominal = {last}, count = count + {count} WHERE namespace = {here} \
             AND schedule = {id} AND last_nominal = {before} AND reason = {reason} AND rule = {rule} \
             AND count + {count} <= {MOST_OF_RANGE}"
        ));
        Ok(tx.execute(s).await? > 0)
    }

    async fn insert_range(
        &self,
        tx: &mut Tx,
        id: &str,
        rule: &str,
        skip: Skip,
        at: i64,
    ) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "insert_skips");
        let here = self.here(&mut s);
        let (id, rule, reason) = (s.text(id), s.text(rule), skip.reason.code());
        let (first, last) = (s.int(skip.first.get()), s.int(skip.last.get()));
        let (count, at) = (s.int(skip.count), s.int(at));
        s.push(&format!(
            "INSERT INTO skips (namespace, schedule, first_nominal, last_nominal, count, reason, rule, at) \
             VALUES ({here}, {id}, {first}, {last}, {count}, {reason}, {rule}, {at})"
        ));
        tx.execute(s).await.map(drop)
    }

    /// How many nominal times of a schedule are recorded as skipped, by reason.
    pub async fn skipped_times(&self, id: &str) -> Result<Vec<(Skipped, i64)>, Error> {
        let mut s = Statement::new(self.dialect(), "skipped_times");
        let here = self.here(&mut s);
        let id = s.text(id);
        s.push(&format!(
            "SELECT reason, CAST(sum(count) AS BIGINT) FROM skips WHERE namespace = {here} AND schedule = {id} \
             GROUP BY reason ORDER BY reason"
        ));
        let mut found = Vec::new();
        for row in self.pool.read(s).await? {
            found.extend(Skipped::from_code(row.get(0)?).zip(Some(row.get(1)?)));
        }
        Ok(found)
    }

    /// The latest nominal times of a schedule that are recorded as skipped, the last range first; at most 1,000 are kept.
    pub async fn skipped_ranges(&self, id: &str, limit: usize) -> Result<Vec<SkippedRange>, Error> {
        let mut s = Statement::new(self.dialect(), "skipped_ranges");
        let here = self.here(&mut s);
        let (id, limit) = (s.text(id), s.int(i64::try_from(limit).unwrap_or(MOST_RANGES)));
        s.push(&format!(
            "SELECT reason, first_nominal, last_nominal, count, at FROM skips WHERE namespace = {here} \
             AND schedule = {id} ORDER BY first_nominal DESC, id DESC LIMIT {limit}"
        ));
        let mut found = Vec::new();
        for row in self.pool.read(s).await? {
            let Some(reason) = Skipped::from_code(row.get(0)?) else { continue };
            let [first, last, count, at] = [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
            let [first, last, at] = [first, last, at].map(UnixMs::new);
            found.push(SkippedRange { first, last, count, reason, at });
        }
        Ok(found)
    }

    /// Makes occurrences of the nominal times from `from` to `to` that were skipped and never became any, due at once and in
    /// order.
    pub async fn backfill(&self, id: &str, from: UnixMs, to: UnixMs) -> Result<Backfilled, Error> {
        for _ in 0..4 {
            match Box::pin(self.backfill_once(id, from, to)).await {
                Err(why) if why.is_deadlock() => {}
                done => return done,
            }
        }
        Err(Error::Busy)
    }

    async fn backfill_once(&self, id: &str, from: UnixMs, to: UnixMs) -> Result<Backfilled, Error> {
        let mut made = Made::default();
        let mut tx = self.pool.begin().await?;
        let Some((mut row, present)) = self.lock_schedule(&mut tx, id).await? else {
            return Ok(Backfilled::NoSuch);
        };
        let (mut late, _) = self.decide_past(&mut tx, &mut row, present, &mut made).await?;
        let mut all: Vec<UnixMs> = Vec::new();
        for range in self.ranges(&mut tx, id, from, to).await? {
            let Some(times) = self.take_out(&mut tx, id, &range, from, to).await? else {
                return Ok(Backfilled::TooMany);
            };
            all.extend(times);
            if all.len() > MAX_BACKFILL {
                return Ok(Backfilled::TooMany);
            }
        }
        all.sort_unstable();
        let timers = self.backfilled(&row, &all, present.now);
        let rows = match timers.is_empty() {
            true => Vec::new(),
            false => self.insert_made(&mut tx, &timers, &vec![false; timers.len()]).await?,
        };
        row.made += rows.len() as i64;
        if row.plan.overlap != Overlap::Allow {
            // They may have to wait for each other.
            let look = present.now.plus(Duration::from_secs(1));
            row.make_at = Some(row.make_at.map_or(look, |at| at.min(look)));
        }
        self.write_steps(&mut tx, std::iter::once(&row)).await?;
        let set = Box::pin(self.listeners(&mut tx)).await?;
        late.push(Box::pin(self.tell(&mut tx, &set, Happened::registered(rows.iter()))).await?);
        let became = Some(json!({"from": from, "to": to, "made": rows.len()}));
        self.audit(&mut tx, Deed { action: "schedule.backfill", object: id, was: None, became }).await?;
        let mut counts = Counts::default();
        counts.add(self.namespace(), "registered", rows.len() as i64);
        self.count(&mut tx, &counts).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_all_late(late).await?;
        self.note_made(&made);
        let count = rows.len();
        made.rows.extend(rows);
        Ok(Backfilled::Done(count, made))
    }

    async fn ranges(&self, tx: &mut Tx, id: &str, from: UnixMs, to: UnixMs) -> Result<Vec<Range>, Error> {
        let mut s = Statement::new(self.dialect(), "skips");
        let here = self.here(&mut s);
        let (id, from, to) = (s.text(id), s.int(from.get()), s.int(to.get()));
        s.push(&format!(
            "SELECT id, first_nominal, last_nominal, reason, rule, at FROM skips WHERE namespace = {here} \
             AND schedule = {id} AND first_nominal <= {to} AND last_nominal >= {from} ORDER BY first_nominal, id"
        ));
        tx.fetch(s).await?.iter().map(Range::read).collect()
    }

    /// Takes the nominal times from `from` to `to` out of a range; `None` if they are too many.
    async fn take_out(
        &self,
        tx: &mut Tx,
        id: &str,
        range: &Range,
        from: UnixMs,
        to: UnixMs,
    ) -> Result<Option<Vec<UnixMs>>, Error> {
        let times = range.times().map_err(|why| Error::Corrupt(format!("a rule: {why}")))?;
        let (before, rest) = times.split_at(times.partition_point(|at| *at < from));
        let (taken, after) = rest.split_at(rest.partition_point(|at| *at <= to));
        if taken.len() > MAX_BACKFILL {
            return Ok(None);
        }
        if taken.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut s = Statement::new(self.dialect(), "remove_skips");
        let which = s.int(range.id);
        s.push(&format!("DELETE FROM skips WHERE id = {which}"));
        tx.execute(s).await?;
        let reason = Skipped::from_code(range.reason).unwrap_or(Skipped::Missed);
        for part in [before, after] {
            if let [first, ..] = part
                && let [.., last] = part
            {
                let count = part.len() as i64;
                let skip = Skip { first: *first, last: *last, count, reason, follows: None };
                self.insert_range(tx, id, &range.rule, skip, range.at).await?;
            }
        }
        Ok(Some(taken.to_vec()))
    }

    /// The timers of these nominal times, due from now on a millisecond apart: so they go in order.
    fn backfilled(&self, row: &ScheduleRow, times: &[UnixMs], now: UnixMs) -> Vec<NewTimer> {
        let due = (0..).map(|n| now.plus(Duration::from_millis(n)));
        let timer = |(nominal, at): (&UnixMs, UnixMs)| {
            let id = occurrence_id(&row.id, *nominal)?;
            let uid = id.uid(&self.salt);
            let occurrence = Occurrence {
                schedule: row.id.clone(),
                nominal: Some(*nominal),
                turn: (row.plan.overlap != Overlap::Allow).then_some(Turn::InLine),
                judge_after: None,
                skipped: None,
            };
            Some(NewTimer {
                spread: None,
                ..row.content.timer(self.namespace(), id, uid, at, now, occurrence)
            })
        };
        times.iter().zip(due).filter_map(timer).collect()
    }
}

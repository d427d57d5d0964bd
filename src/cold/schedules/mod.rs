//! Schedules, as the store has them: rules that make timers.
//!
//! Everything that becomes of a nominal time is decided in one transaction that has locked the schedule's row: its
//! occurrence is inserted, or it is recorded as skipped, and `last_nominal` passes it ([`step`]). So a second maker finds it
//! decided. An occurrence's id, and so its primary key, follows from its nominal time.
//!
//! An occurrence is a row of `timers` like any other. Two columns keep the claim from it: past `judge_after` its schedule has to
//! judge first whether it was missed, and with `overlap` it waits for others of its schedule ([`may_go`]).

mod carry;
mod change;
mod content;
mod judge;
mod look;
mod skips;
mod step;
mod turn;

pub use change::{ScheduleEdit, ScheduleGone, SchedulePut};
pub use content::Content;
pub(super) use judge::Skip;
pub use look::{Rhythm, ScheduleFilter, SchedulePage};
pub use skips::{Backfilled, MAX_BACKFILL, SkippedRange};
pub use step::Made as MadeOccurrences;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};

use super::restore::Held;
use super::sql::{Column, Row};
use super::{ColdStore, Error};
use crate::model::namespace::Namespace;
use crate::model::rule::RuleError;
use crate::model::schedule::{Plan, ScheduleState, Turn};
use crate::model::time::UnixMs;
use crate::model::timer::State;

/// A batch `b`, of which PostgreSQL expects one row: it does not know the limit when it plans. Of more rows it might rather
/// read all schedules, which are few when it makes the plan, and keep to that when they are many.
const ROW_BY_ROW: &str = "(SELECT * FROM b LIMIT (SELECT 2147483647)) few";

/// The namespace as a column of a batch. Said outright it is a condition by itself, by which a plan that was made for few
/// schedules would go: it would read all of them.
fn of_batch(namespace: Namespace, rows: usize) -> (&'static str, Column) {
    ("b_namespace", Column::Int(vec![namespace.0.into(); rows]))
}

/// The most schedules of a store.
pub const MAX_SCHEDULES: i64 = 200_000;

/// An occurrence that is due within so many milliseconds counts as due now for those after it. Longer than any statement
/// runs: of two that come up together each sees the other.
const SOON_MS: i64 = 60_000;

/// How long, in milliseconds, before its due time an occurrence of a paused schedule may not be claimed any more: claims are
/// made ahead.
const PAUSED_MS: i64 = super::decide::COMING_UP_MS;

/// The condition that no schedule has to judge a row of `of` before it is claimed. Other rows pay nothing: theirs are NULL.
/// What is held since the store was restored runs nowhere, and nobody waits for it.
/// It does not ask `history`: a claim must not wait for whoever drops one of its partitions. Nor does it go by `now` alone: on
/// SQLite that may be from before the statement had its turn, and from before the due time. Nor does it ask the store what is
/// held: PostgreSQL, where it knows of no rows, reads all of an index then.
pub(super) fn may_go(now: &str, of: &str, held: Option<Held>) -> String {
    let is_held = |held: Held| {
        let (from, until) = (held.from.get(), held.until.get());
        format!(" AND NOT (s.due_at >= {from} AND s.due_at <= {until} AND s.created_at <= {until})")
    };
    format!(
        "(judge_after IS NULL OR state <> 0 OR (judge_after > {now} AND judge_after > due_at)) \
         AND CASE WHEN overlap IS NULL OR state <> 0 THEN true ELSE NOT EXISTS (SELECT 1 FROM timers s \
             WHERE s.schedule = {of}.schedule AND s.schedule IS NOT NULL AND s.nominal IS NOT NULL AND s.uid <> {of}.uid \
             AND ((s.state <> 0 AND (s.state <> {paused} OR s.attempt > 0)) \
               OR (s.nominal < {of}.nominal AND (s.state <> 0 OR (s.due_at <= {now} + {SOON_MS}{is_held}))))) END",
        paused = State::Paused.code(),
        is_held = held.filter(Held::is_open).map_or_else(String::new, is_held)
    )
}

/// The condition that a row of `timers` that is due waits for its schedule: a claim refuses it ([`may_go`]), or one before it
/// that had not ended at its due time has ended since.
fn waits(now: &str, held: Option<Held>) -> String {
    let (may_go, skip) = (may_go(now, "timers", held), Turn::Skip.code());
    format!(
        "(NOT ({may_go}) OR (overlap = {skip} AND EXISTS (SELECT 1 FROM history h \
             WHERE h.schedule = timers.schedule AND h.schedule IS NOT NULL AND h.ended_at > timers.due_at \
             AND h.nominal < timers.nominal AND h.claimed_at IS NOT NULL)))"
    )
}

/// A schedule as the store has it.
#[derive(Clone)]
pub struct ScheduleRow {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its id.
    pub id: String,
    /// The shard whose owner makes its occurrences.
    pub shard: i32,
    /// Its state.
    pub state: ScheduleState,
    /// Its rule and its policies.
    pub plan: Plan,
    /// What each occurrence is.
    pub content: Content,
    /// What its caller sent, as JSON.
    pub request: String,
    /// The hash of that.
    pub request_hash: [u8; 16],
    /// Occurrences made, without those that a change has cancelled.
    pub made: i64,
    /// Nominal times up to here are decided.
    pub last_nominal: UnixMs,
    /// Nominal times up to here that are not decided fell into a pause.
    pub paused_until: Option<UnixMs>,
    /// When it is looked at next.
    pub make_at: Option<UnixMs>,
    /// How often in a row its next nominal time was not found.
    pub failures: i32,
    /// Nominal times ahead that must not be made again: their occurrences have ended, or were changed by hand.
    gone: Vec<UnixMs>,
    /// Rises with every change.
    pub version: i32,
    /// When it was made.
    pub created_at: UnixMs,
    /// When it was last changed.
    pub changed_at: UnixMs,
    /// The version of the time zones' data by which its occurrences ahead were made.
    tzdb: String,
}

/// The columns of [`ScheduleRow`], in order.
const COLUMNS: &str = "id, shard, state, plan, content, request, request_hash, made, last_nominal, paused_until, make_at, \
                       failures, gone, version, created_at, changed_at, tzdb, namespace";

/// How many they are.
const AFTER: usize = 18;

/// The version of the time zones' data in this build, such as `2026a`. A later one is greater.
const TZDB: &str = chrono_tz::IANA_TZDB_VERSION;

/// The most nominal times ahead that are remembered.
const MOST_GONE: usize = 1000;

/// Without what a log must not show.
impl fmt::Debug for ScheduleRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduleRow")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("plan", &self.plan)
            .field("made", &self.made)
            .field("last_nominal", &self.last_nominal)
            .field("make_at", &self.make_at)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl ScheduleRow {
    fn read(row: &Row) -> Result<Self, Error> {
        let bad = |what: &str| Error::Corrupt(format!("a schedule's {what} cannot be read back"));
        let json = |text: String, what| serde_json::from_str(&text).map_err(|_| bad(what));
        let gone: Option<String> = row.get(12)?;
        let gone = gone.map(|text| serde_json::from_str::<Vec<i64>>(&text)).transpose();
        Ok(Self {
            namespace: Namespace(row.get(17)?),
            id: row.get(0)?,
            shard: row.get(1)?,
            state: ScheduleState::from_code(row.get(2)?).ok_or_else(|| bad("state"))?,
            plan: json(row.get(3)?, "plan")?,
            content: serde_json::from_str(&row.get::<String>(4)?).map_err(|_| bad("content"))?,
            request: row.get(5)?,
            request_hash: row.get::<Vec<u8>>(6)?.try_into().map_err(|_| bad("hash"))?,
            made: row.get(7)?,
            last_nominal: UnixMs::new(row.get(8)?),
            paused_until: row.get::<Option<i64>>(9)?.map(UnixMs::new),
            make_at: row.get::<Option<i64>>(10)?.map(UnixMs::new),
            failures: row.get(11)?,
            gone: gone.map_err(|_| bad("list"))?.unwrap_or_default().into_iter().map(UnixMs::new).collect(),
            version: row.get(13)?,
            created_at: UnixMs::new(row.get(14)?),
            changed_at: UnixMs::new(row.get(15)?),
            tzdb: row.get(16)?,
        })
    }

    /// As the audit has it: its rule and where it goes, without payload and secrets.
    pub(super) fn audited(&self) -> Value {
        let plan = serde_json::to_value(&self.plan).unwrap_or_default();
        let target = self.content.target();
        json!({"plan": plan, "to": target.shown(), "content": self.content.audited(), "state": self.state.word(),
            "version": self.version})
    }

    /// Whether its occurrences ahead were made by the data of this build, or by later ones.
    fn follows_zones(&self) -> bool {
        self.tzdb.as_str() >= TZDB
    }

    /// What its rule names from now on of the time for which occurrences are made.
    fn times_ahead(&self, now: UnixMs) -> Result<BTreeSet<UnixMs>, RuleError> {
        let (times, _) = self.plan.times(now)?.take_until(self.last_nominal, MOST_GONE)?;
        Ok(times.into_iter().collect())
    }

    /// How many occurrences may still be made; `None` if any number.
    fn left(&self) -> Option<i64> {
        self.plan.max_occurrences.map(|most| (most - self.made).max(0))
    }

    /// The rule as it is stored beside what was skipped by it.
    fn rule_text(&self) -> String {
        serde_json::to_string(&self.plan.timing).unwrap_or_default()
    }

    /// Nominal times ahead that must not be made again, as they are stored.
    fn stored_gone(&self) -> Option<String> {
        let gone: Vec<i64> = self.gone.iter().map(|at| at.get()).collect();
        (!gone.is_empty()).then(|| serde_json::to_string(&gone).ok()).flatten()
    }

    /// Its nominal times after `now` that will make occurrences, at most `most`; none while it is paused.
    pub fn next_times(&self, now: UnixMs, most: usize) -> Result<Vec<UnixMs>, RuleError> {
        if self.state != ScheduleState::Active {
            return Ok(Vec::new());
        }
        let mut times = self.plan.times(now)?;
        let (mut next, mut left) = (Vec::new(), self.left());
        while next.len() < most {
            let Some(at) = times.peek()? else { break };
            times.pass(at);
            if at > self.last_nominal && !self.gone.contains(&at) {
                match &mut left {
                    Some(0) => break,
                    Some(left) => *left -= 1,
                    None => {}
                }
            }
            next.push(at);
        }
        Ok(next)
    }
}

impl ColdStore {
    /// The schedule with this id.
    pub async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>, Error> {
        let mut s = super::sql::Statement::new(self.dialect(), "schedule");
        let here = self.here(&mut s);
        let id = s.text(id);
        s.push(&format!("SELECT {COLUMNS} FROM schedules WHERE namespace = {here} AND id = {id}"));
        self.pool.read(s).await?.first().map(ScheduleRow::read).transpose()
    }
}

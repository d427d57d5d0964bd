//! The end of a timer: its row is moved from `timers` to `history`, its places go, and a caller's id stays taken.

use std::collections::HashSet;

use super::columns::{ALL, TimerColumn};
use super::outbox::Delivered;
use super::row::AttemptRecord;
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::subscriptions::SubscriptionSet;
use super::totals::Counts;
use super::{ColdStore, Error};
use crate::model::id::{Generation, Uid};
use crate::model::namespace::Namespace;
use crate::model::schedule::{Skipped, Turn};
use crate::model::subscription::Lifecycle;
use crate::model::time::LAST;
use crate::model::timer::{Life, State, Token};
use crate::planted::Defect;

/// The rows that [`ColdStore::end`] moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// All: this transaction has locked them. Some may have places, which leave with them.
    Locked { with_places: bool },
    /// Those whose token's attempt is still under way.
    Claimed,
    /// Those of them that nobody else has locked.
    ClaimedAndFree,
}

/// What the statement that ends timers counts.
enum Counted<'a> {
    /// What was known before.
    Known(Counts),
    /// Each that it ends, under this name. It leaves those with which more is to be done: occurrences for whose end others wait,
    /// timers of namespaces that this node does not know yet, and all if somebody has subscribed since this set was read.
    Alone(&'static str, &'a SubscriptionSet),
}

/// The end of one timer.
pub(super) struct End {
    pub uid: Uid,
    /// What its end is counted for, where it is known before.
    pub namespace: Namespace,
    /// Compared with the row, so that a result ends its timer only while its attempt is the current one.
    pub token: Token,
    /// The life at the end; `None` keeps what the row has.
    pub life: Option<Life>,
    pub state: State,
    pub last: Option<AttemptRecord>,
    /// Why its schedule skipped it.
    pub skipped: Option<Skipped>,
    /// Places that were acked, of a timer for a queue.
    pub acked: Option<u32>,
}

impl ColdStore {
    /// Ends timers whose attempt under way succeeded. Returns the uids that it ended. A result is missing, and must go
    /// through [`ColdStore::apply_unlocked`], when its attempt is no longer the current one or a stranger has locked
    /// its row.
    pub async fn finish_delivered(&self, done: &[(Uid, AttemptRecord)]) -> Result<Vec<Uid>, Error> {
        self.unblocked(|skip_locked| self.finish_once(done, skip_locked)).await
    }

    async fn finish_once(&self, done: &[(Uid, AttemptRecord)], skip_locked: bool) -> Result<Vec<Uid>, Error> {
        let rows = if skip_locked { Rows::ClaimedAndFree } else { Rows::Claimed };
        let mut finished = self.finish_alone(done, rows).await?;
        let is_left = |(uid, _): &&(Uid, AttemptRecord)| !finished.contains(uid);
        let left: Vec<_> = done.iter().filter(is_left).cloned().collect();
        if left.is_empty() {
            return Ok(finished.into_iter().collect());
        }
        // In a box: a transaction with all in line outgrows the stack of a thread in builds that are not optimised.
        match Box::pin(self.finish_within(&left, rows)).await {
            Ok(more) => finished.extend(more),
            Err(why) if finished.is_empty() => return Err(why),
            // The others have ended. These are missing, and go the way of all that are.
            Err(_) => {}
        }
        Ok(finished.into_iter().collect())
    }

    /// Ends those with which nothing more is to be done ([`Counted::Alone`]) with one statement, which is a transaction of its
    /// own: one call of the store instead of four. None while somebody subscribes to such ends, and on SQLite, which has no
    /// such statements.
    async fn finish_alone(&self, done: &[(Uid, AttemptRecord)], rows: Rows) -> Result<HashSet<Uid>, Error> {
        let set = self.confirmed_set().filter(|set| !set.asks_for(Lifecycle::TimerDelivered));
        let (Dialect::Postgres, Some(set)) = (self.dialect(), set) else { return Ok(HashSet::new()) };
        let counted = Counted::Alone("delivered", &set);
        let statement = self.end_statement(&delivered(done), rows, TimerColumn::Uid.name(), counted);
        let ended = self.urgent.write_once(statement).await?;
        ended.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    async fn finish_within(&self, done: &[(Uid, AttemptRecord)], rows: Rows) -> Result<Vec<Uid>, Error> {
        let mut tx = self.urgent.begin().await?;
        // In boxes, for the same reason.
        let set = Box::pin(self.listeners(&mut tx)).await?;
        let mut counts = Counts::default();
        let ended = self.end(&mut tx, delivered(done), rows, &Delivered::columns(&set), &mut counts).await?;
        let late = Box::pin(self.tell_delivered(&mut tx, &set, &ended, done)).await?;
        for row in &ended {
            counts.add(Namespace::of_stored(row.get_back(1)?), "delivered", 1);
        }
        self.count(&mut tx, &counts).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Box::pin(self.tell_late(late)).await?;
        ended.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// Moves rows to history, removes places that they have, and keeps callers' ids taken. Returns these columns of the rows
    /// that it moved, and three more, the last its namespace.
    ///
    /// `counts` is counted in the same statement where that can be, and then is empty.
    pub(super) async fn end(
        &self,
        tx: &mut Tx,
        mut ends: Vec<End>,
        rows: Rows,
        returned: &str,
        counts: &mut Counts,
    ) -> Result<Vec<Row>, Error> {
        ends.sort_by_key(|end| end.uid);
        let ended = match self.dialect() {
            Dialect::Postgres => {
                let counted = Counted::Known(std::mem::take(counts));
                tx.fetch(self.end_statement(&ends, rows, returned, counted)).await?
            }
            Dialect::Sqlite => self.end_in_steps(tx, &ends, rows, returned).await?,
        };
        self.judge_next(tx, &ended).await?;
        Ok(ended)
    }

    /// The same as one statement of PostgreSQL.
    fn end_statement(&self, ends: &[End], rows: Rows, returned: &str, counted: Counted<'_>) -> Statement {
        let Ending { mut matched, moved, hash, taken, returned } = self.ending(rows, returned);
        let is_it = self.dialect().keyed("uid", "b_uid");
        let (free, those) = match rows {
            Rows::ClaimedAndFree => (
                format!(
                    "free AS (SELECT b.* FROM timers JOIN b ON {is_it} FOR UPDATE OF timers SKIP LOCKED), "
                ),
                "free AS b",
            ),
            _ => (String::new(), "b"),
        };
        let is_its = self.dialect().keyed("places.uid", "gone.uid");
        let places = match rows {
            Rows::Locked { with_places: true } => {
                format!("apart AS (DELETE FROM places USING gone WHERE {is_its}), ")
            }
            _ => String::new(),
        };
        let mut s = Statement::new(self.dialect(), "end");
        let (batch, now) = (s.batch("b", columns(ends)), s.now(self.bound_now()));
        let retention = s.int(self.retention_ms);
        let counted = match counted {
            Counted::Alone(name, set) => {
                let is_still = Self::is_still(&mut s, set);
                let (skip, in_line) = (Turn::Skip.code(), Turn::InLine.code());
                matched.push_str(&format!(
                    " AND {is_still} AND COALESCE(overlap NOT IN ({skip}, {in_line}), true)"
                ));
                let has_others = self.has_others();
                if !has_others {
                    matched.push_str(" AND COALESCE(namespace IS NULL, false)");
                }
                format!("{}, ", self.counted_rows(&mut s, name, "gone", has_others))
            }
            Counted::Known(counts) if counts.is_empty() => String::new(),
            Counted::Known(counts) => format!("{}, ", self.counted(&mut s, &counts, "true")),
        };
        s.push(&format!(
            "WITH {batch}, {free}gone AS (DELETE FROM timers USING {those} WHERE {matched} RETURNING timers.*, b.*), \
             {counted}{places}kept AS (INSERT INTO history ({ALL}, ended_at, last) SELECT {moved}, {now}, b_last FROM gone), \
             taken AS (INSERT INTO ended_ids (uid, request_hash, generation, until) \
               SELECT uid, {hash}, generation, {now} + {retention} FROM gone WHERE caller_id {taken}) \
             SELECT {returned} FROM gone"
        ));
        s
    }

    async fn end_in_steps(
        &self,
        tx: &mut Tx,
        ends: &[End],
        rows: Rows,
        returned: &str,
    ) -> Result<Vec<Row>, Error> {
        let Ending { matched, moved, hash, taken, returned } = self.ending(rows, returned);
        if rows == (Rows::Locked { with_places: true }) {
            self.remove_places(tx, ends.iter().map(|end| end.uid).collect()).await?;
        }
        let new = |name: &'static str| {
            let mut s = Statement::new(self.dialect(), name);
            let batch = s.batch("b", columns(ends));
            let now = s.now(self.bound_now());
            let retention = s.int(self.retention_ms);
            (s, now, retention, batch)
        };
        let (mut s, now, _, batch) = new("end_keep");
        s.push(&format!(
            "WITH {batch} INSERT INTO history ({ALL}, ended_at, last) \
             SELECT {moved}, {now}, b_last FROM b CROSS JOIN timers ON {matched}"
        ));
        tx.execute(s).await?;
        let (mut s, now, retention, batch) = new("end_take");
        s.push(&format!(
            "WITH {batch} INSERT INTO ended_ids (uid, request_hash, generation, until) \
             SELECT uid, {hash}, generation, {now} + {retention} FROM b CROSS JOIN timers ON {matched} \
             WHERE caller_id {taken}"
        ));
        tx.execute(s).await?;
        let (mut s, _, _, batch) = new("end_delete");
        s.push(&format!(
            "WITH {batch} DELETE FROM timers WHERE rowid IN \
             (SELECT timers.rowid FROM b CROSS JOIN timers ON {matched}) RETURNING {returned}"
        ));
        tx.fetch(s).await
    }

    fn ending(&self, rows: Rows, returned: &str) -> Ending {
        // With `skip` what has ended counts, too: of the schedule's own, and of those that were made afterwards.
        let ran = format!(
            "overlap IN ({}, {}) AND nominal IS NOT NULL AND claimed_at IS NOT NULL",
            Turn::Skip.code(),
            Turn::InLine.code()
        );
        let returned = format!("{returned}, CASE WHEN {ran} THEN schedule END, nominal, namespace");
        let moved: Vec<&str> = TimerColumn::EACH.iter().map(|column| moved(*column)).collect();
        let claimed = if matches!(rows, Rows::Locked { .. }) { "" } else { "AND state = 1" };
        let is_it = self.dialect().keyed("uid", "b_uid");
        let mut matched = format!(
            "{is_it} AND COALESCE(generation = b_generation AND attempt = b_attempt {claimed}, false)"
        );
        if self.planted.is(Defect::ResultWithoutToken) {
            matched = is_it;
        }
        let taken = "ON CONFLICT (uid) DO UPDATE SET request_hash = excluded.request_hash, \
                     generation = excluded.generation, until = excluded.until";
        Ending { matched, moved: moved.join(", "), hash: kept_hash(), taken, returned }
    }

    /// Lets their schedules judge what was due while these ran, if it is to be skipped then: the claim sees only what still
    /// runs. It is due to be judged since it was due: a claim may go by a time that was read before this one's. A row that
    /// somebody has locked is left: who claims it meanwhile sees these still running.
    async fn judge_next(&self, tx: &mut Tx, ended: &[Row]) -> Result<(), Error> {
        let (mut schedules, mut nominals) = (Vec::new(), Vec::new());
        for row in ended {
            if let Some(schedule) = row.get_back::<Option<String>>(3)? {
                schedules.push(schedule);
                nominals.push(row.get_back::<i64>(2)?);
            }
        }
        if schedules.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "end_judge_next");
        let columns = vec![("b_schedule", Column::Text(schedules)), ("b_nominal", Column::Int(nominals))];
        let (batch, now, skip) = (s.batch("b", columns), s.now(self.bound_now()), Turn::Skip.code());
        let lock = self.dialect().lock("FOR NO KEY UPDATE SKIP LOCKED");
        let next = format!(
            "schedule = b_schedule AND schedule IS NOT NULL AND nominal IS NOT NULL AND nominal > b_nominal \
             AND overlap = {skip} AND state = 0 AND due_at < {now} \
             AND (judge_after IS NULL OR judge_after > {now} AND judge_after < {last})",
            last = LAST.get()
        );
        let next = format!("SELECT uid FROM b {}", self.dialect().each("timers", &next, lock));
        let is_next = self.dialect().among("uid", &next);
        s.push(&format!("WITH {batch} UPDATE timers SET judge_after = due_at WHERE {is_next}"));
        tx.execute(s).await.map(drop)
    }
}

/// What the statements that end timers have in common.
struct Ending {
    /// The condition that a row is one of the batch, with the attempt under way that the batch tells.
    matched: String,
    /// For each column of `history`.
    moved: String,
    hash: String,
    /// What becomes of an id that was taken before.
    taken: &'static str,
    returned: String,
}

/// Those whose attempt succeeded, in the order of all that ends, so that two transactions do not deadlock.
fn delivered(done: &[(Uid, AttemptRecord)]) -> Vec<End> {
    let end = |(uid, record): &(Uid, AttemptRecord)| End {
        uid: *uid,
        namespace: Namespace::OWN,
        token: Token { generation: Generation(record.generation), attempt: record.attempt },
        life: None,
        state: State::Delivered,
        last: Some(record.clone()),
        skipped: None,
        acked: None,
    };
    let mut ends: Vec<End> = done.iter().map(end).collect();
    ends.sort_by_key(|end| end.uid);
    ends
}

fn columns(ends: &[End]) -> Vec<(&'static str, Column)> {
    let of = |pick: fn(&End) -> i64| Column::Int(ends.iter().map(pick).collect());
    let life = |pick: fn(&Life) -> i64| {
        Column::IntOrNull(ends.iter().map(|end| end.life.as_ref().map(pick)).collect())
    };
    let skipped = ends.iter().map(|end| end.skipped.map(|why| why.code().into())).collect();
    vec![
        ("b_uid", Column::Uuid(ends.iter().map(|end| end.uid.0).collect())),
        ("b_generation", of(|end| i64::from(end.token.generation.0))),
        ("b_attempt", of(|end| i64::from(end.token.attempt))),
        ("b_state", of(|end| i64::from(end.state.code()))),
        ("b_version", life(|life| i64::from(life.version.0))),
        ("b_new_attempt", life(|life| i64::from(life.attempt))),
        ("b_tries", life(|life| i64::from(life.tries))),
        ("b_uncertain", life(|life| i64::from(life.uncertain))),
        ("b_skipped", Column::IntOrNull(skipped)),
        ("b_last", Column::TextOrNull(ends.iter().map(|end| last_json(end.last.as_ref())).collect())),
        ("b_acked", Column::IntOrNull(ends.iter().map(|end| end.acked.map(i64::from)).collect())),
    ]
}

/// What is kept of the request's hash while an id stays taken: of an occurrence that a change of its schedule has cancelled no
/// more than a byte. Nobody registers under such an id, and its schedule may make it again ([`is_withdrawn`]).
fn kept_hash() -> String {
    let changed = Skipped::Changed.code();
    format!("CASE WHEN b_skipped = {changed} THEN substr(request_hash, 1, 1) ELSE request_hash END")
}

/// The condition that a row of `ended_ids` is such an occurrence.
pub(super) const fn is_withdrawn() -> &'static str {
    "length(request_hash) = 1"
}

/// The expression for a column of `history`: the column of `timers`, or what the end itself changes.
const fn moved(column: TimerColumn) -> &'static str {
    match column {
        TimerColumn::State => "b_state",
        TimerColumn::Attempt => "COALESCE(b_new_attempt, attempt)",
        TimerColumn::Tries => "COALESCE(b_tries, tries)",
        TimerColumn::Version => "COALESCE(b_version, version)",
        TimerColumn::Skipped => "b_skipped",
        TimerColumn::Acked => "COALESCE(b_acked, acked)",
        TimerColumn::ReadyAt => "NULL",
        TimerColumn::Uncertain => "CASE WHEN b_uncertain IS NULL THEN uncertain ELSE b_uncertain = 1 END",
        other => other.name(),
    }
}

fn last_json(record: Option<&AttemptRecord>) -> Option<String> {
    serde_json::to_string(record?).ok()
}

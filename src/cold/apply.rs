//! Ends and changes: every event of a timer's life but its registration and its claim.
//!
//! [`ColdStore::apply`] locks the rows, asks [`super::decide`] what each event does, and writes it down, many
//! timers a transaction. [`ColdStore::finish_delivered`] is the short cut for the common event, a first
//! success of the attempt under way: one statement, matched by the attempt's token.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::columns::{self, AFTER, ALL, EDITED, LIFE, TimerColumn};
use super::decide::{Writes, decide};
use super::row::{AttemptRecord, TimerRow};
use super::sql::{Column, Dialect, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::id::{Epoch, Generation, Uid, Version};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, Next, Token};

/// The most events one transaction applies.
pub const MAX_BATCH: usize = 500;

/// Something that happens to one timer.
#[derive(Debug, Clone)]
pub struct Change {
    /// Which timer.
    pub uid: Uid,
    /// What happens.
    pub event: ChangeEvent,
}

/// The events of [`crate::model::timer::Life::step`], with what has to be written beside them.
#[derive(Debug, Clone)]
pub enum ChangeEvent {
    /// Its caller takes it back.
    Cancel,
    /// Its caller changes it.
    Edit(Edit),
    /// Its caller wants it to fire now.
    Fire,
    /// An attempt ended: what to do next if it was not taken, and its record.
    Attempted(Next, AttemptRecord),
    /// Its claim ran out.
    ClaimExpired(Token),
    /// The node that claimed it under this epoch gives it back unsent.
    Released(Token, Epoch),
    /// It was found later than its grace.
    TooLate(Generation),
}

/// What a `PATCH` changes; `None` leaves as it is.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    /// The new due time.
    pub due_at: Option<UnixMs>,
    /// The new payload; the inner `None` is `null`.
    pub data: Option<Option<Vec<u8>>>,
    /// The new labels, all of them; the inner `None` is none.
    pub labels: Option<Option<String>>,
    /// Only if the timer has this version.
    pub if_version: Option<Version>,
}

/// What became of a change.
#[derive(Debug, Clone)]
pub enum Applied {
    /// It met a live timer: how that stands now (or how it ended), and the answer.
    Live(Box<TimerRow>, Answer),
    /// `If-Match` named another version; this is the timer's own.
    OtherVersion(Version),
    /// There is no live timer of this uid.
    NotLive,
    /// There is one, and this version cannot read it; nothing was changed.
    Unreadable,
}

impl Applied {
    /// The timer, if it is live and the change was made.
    pub fn changed_row(&self) -> Option<&TimerRow> {
        match self {
            Self::Live(row, Answer::Done) => Some(row),
            _ => None,
        }
    }
}

/// How long, in milliseconds, changes wait for timers that other transactions hold, again and again, before they
/// take them one by one.
const PAUSES_MS: [u64; 6] = [1, 2, 4, 8, 16, 32];

impl ColdStore {
    /// Applies events in order; answers in the order given. Two events on one timer see each other.
    ///
    /// Timers that another transaction holds are passed over, and their turn comes when it may have ended: at
    /// last one by one, each in a transaction of its own. So who waits for a row holds no other. Claims and ends
    /// lock rows in whatever order their plan has, and would wait for each other in a circle with one who held
    /// some and waited for more. When one of the transactions fails, its events and those after it get the
    /// error; those before it are applied.
    pub async fn apply(&self, changes: &[Change]) -> Vec<Result<Applied, Error>> {
        let mut answers: Vec<Result<Applied, Error>> = changes.iter().map(|_| Err(Error::Busy)).collect();
        let mut left: BTreeSet<Uid> = changes.iter().map(|change| change.uid).collect();
        let mut pauses = PAUSES_MS.into_iter();
        while !left.is_empty() {
            let pause = pauses.next().filter(|_| left.len() > 1);
            let most = if pause.is_some() { left.len() } else { 1 };
            let uids: Vec<Uid> = left.iter().take(most).copied().collect();
            let is_its = |uid: &Uid| uids.binary_search(uid).is_ok();
            let (places, its): (Vec<usize>, Vec<Change>) =
                changes.iter().cloned().enumerate().filter(|(_, change)| is_its(&change.uid)).unzip();
            let (applied, held) = match self.apply_in_turn(&its, &uids, pause.is_some()).await {
                Ok(applied) => applied,
                Err(why) => {
                    let is_left = |change: &Change| left.contains(&change.uid);
                    let open = changes.iter().zip(&mut answers).filter(|(change, _)| is_left(change));
                    open.for_each(|(_, answer)| *answer = Err(why.clone()));
                    return answers;
                }
            };
            for (place, applied) in places.into_iter().zip(applied) {
                answers[place] = Ok(applied);
            }
            left.retain(|uid| held.contains(uid) || !is_its(uid));
            if let Some(pause) = pause.filter(|_| !left.is_empty()) {
                self.clock.sleep(Duration::from_millis(pause)).await;
            }
        }
        answers
    }

    /// Run again when two transactions stood in each other's way all the same.
    async fn apply_in_turn(
        &self,
        changes: &[Change],
        uids: &[Uid],
        passes: bool,
    ) -> Result<(Vec<Applied>, BTreeSet<Uid>), Error> {
        for _ in 0..3 {
            match self.apply_once(changes, uids, passes).await {
                Err(why) if why.is_deadlock() => {}
                other => return other,
            }
        }
        Err(Error::Busy)
    }

    /// One transaction. With `passes` it passes timers that another one holds; these are returned, and their
    /// answers mean nothing.
    async fn apply_once(
        &self,
        changes: &[Change],
        uids: &[Uid],
        passes: bool,
    ) -> Result<(Vec<Applied>, BTreeSet<Uid>), Error> {
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "apply_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let now = s.now(self.given());
        let lock = if passes { "FOR UPDATE OF timers SKIP LOCKED" } else { "FOR UPDATE OF timers" };
        let lock = self.dialect().lock(lock);
        s.push(&format!(
            "WITH {batch} SELECT {ALL}, {now} FROM timers JOIN b ON uid = b_uid ORDER BY uid {lock}"
        ));
        let mut rows: BTreeMap<Uid, TimerRow> = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        let mut store_now = self.clock.now();
        for row in tx.fetch(s).await? {
            store_now = UnixMs::new(row.get(AFTER)?);
            let uid = Uid(row.get(0)?);
            match TimerRow::read(&row, false) {
                Ok(row) => drop(rows.insert(uid, row)),
                Err(why) => {
                    tracing::error!(uid = %uid.0, %why, "a timer cannot be read; it is left alone");
                    unreadable.insert(uid);
                }
            }
        }
        let missing: Vec<Uid> =
            uids.iter().filter(|uid| !rows.contains_key(uid) && !unreadable.contains(uid)).copied().collect();
        let held = if passes { self.held(&mut tx, &missing).await? } else { BTreeSet::new() };
        let mut writes = Writes::default();
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            answers.push(match rows.get_mut(&change.uid) {
                _ if held.contains(&change.uid) => Applied::NotLive,
                Some(row) => decide(row, &change.event, store_now, self.planted, &mut writes),
                None if unreadable.contains(&change.uid) => Applied::Unreadable,
                None => self.amend_ended(&mut tx, change).await?,
            });
        }
        self.write_down(&mut tx, writes).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok((answers, held))
    }

    /// Of timers that were not locked: those that are live, so that another transaction must hold them.
    async fn held(&self, tx: &mut Tx, missing: &[Uid]) -> Result<BTreeSet<Uid>, Error> {
        if missing.is_empty() || self.dialect() == Dialect::Sqlite {
            return Ok(BTreeSet::new());
        }
        let mut s = Statement::new(self.dialect(), "apply_held");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(missing.iter().map(|uid| uid.0).collect()))]);
        s.push(&format!("WITH {batch} SELECT uid FROM timers JOIN b ON uid = b_uid"));
        tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// The result of an attempt whose timer has ended meanwhile is still written to that attempt's record.
    async fn amend_ended(&self, tx: &mut Tx, change: &Change) -> Result<Applied, Error> {
        if let ChangeEvent::Attempted(_, record) = &change.event {
            self.amend_record(tx, change.uid, record).await?;
        }
        Ok(Applied::NotLive)
    }

    async fn amend_record(&self, tx: &mut Tx, uid: Uid, record: &AttemptRecord) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "amend_record");
        let (result, ended) = (s.text(record.result.word()), s.int(record.ended_at));
        let (uid, generation) = (s.uuid(uid.0), s.int(i64::from(record.generation)));
        let attempt = s.int(i64::from(record.attempt));
        s.push(&format!(
            "UPDATE attempts SET result = {result}, ended_at = {ended}, detail = 'reported after its claim had expired' \
             WHERE uid = {uid} AND generation = {generation} AND attempt = {attempt} AND result = 'unknown'"
        ));
        tx.execute(s).await.map(drop)
    }

    async fn write_down(&self, tx: &mut Tx, writes: Writes) -> Result<(), Error> {
        let Writes { moved, edited, ends, records, late } = writes;
        let mut counts: BTreeMap<&'static str, i64> = BTreeMap::new();
        for end in &ends {
            *counts.entry(end.state.word()).or_default() += 1;
        }
        if !moved.is_empty() {
            let rows: Vec<&TimerRow> = moved.values().collect();
            tx.execute(self.update_statement("apply_update", LIFE, &rows)).await?;
        }
        if !edited.is_empty() {
            let rows: Vec<&TimerRow> = edited.iter().filter_map(|uid| moved.get(uid)).collect();
            tx.execute(self.update_statement("apply_edit", EDITED, &rows)).await?;
        }
        if !records.is_empty() {
            tx.execute(self.records_statement(&records)).await?;
        }
        for (uid, record) in late {
            self.amend_record(tx, uid, &record).await?;
        }
        if !ends.is_empty() {
            let expected = ends.len();
            let ended = self.end(tx, ends, false).await?;
            if ended.len() != expected {
                return Err(Error::Corrupt("a locked row did not end".into()));
            }
            let counts: Vec<_> = counts.into_iter().collect();
            self.count(tx, &counts).await?;
        }
        Ok(())
    }

    /// Writes these columns of live timers as they stand in these rows.
    fn update_statement(&self, name: &'static str, written: &[TimerColumn], rows: &[&TimerRow]) -> Statement {
        let mut s = Statement::new(self.dialect(), name);
        let keyed = [&[TimerColumn::Uid], written].concat();
        let batch = s.batch("b", columns::batch(&keyed, rows));
        let set = columns::assignments(written);
        s.push(&format!("WITH {batch} UPDATE timers SET {set} FROM b WHERE uid = b_uid"));
        s
    }

    fn records_statement(&self, records: &[(Uid, i64, AttemptRecord)]) -> Statement {
        let mut s = Statement::new(self.dialect(), "apply_attempts");
        let of =
            |pick: fn(&AttemptRecord) -> i64| Column::Int(records.iter().map(|(_, _, r)| pick(r)).collect());
        let text = |pick: fn(&AttemptRecord) -> Option<String>| {
            Column::TextOrNull(records.iter().map(|(_, _, r)| pick(r)).collect())
        };
        let status = records.iter().map(|(_, _, r)| r.status.map(i64::from)).collect();
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(records.iter().map(|(uid, _, _)| uid.0).collect())),
                ("b_generation", of(|r| i64::from(r.generation))),
                ("b_attempt", of(|r| i64::from(r.attempt))),
                ("b_started", of(|r| r.started_at)),
                ("b_ended", of(|r| r.ended_at)),
                ("b_result", text(|r| Some(r.result.word().to_owned()))),
                ("b_status", Column::IntOrNull(status)),
                ("b_reply", text(|r| r.reply.clone())),
                ("b_detail", text(|r| r.detail.clone())),
                ("b_node", text(|r| Some(r.node.clone()))),
                ("b_created", Column::Int(records.iter().map(|(_, created, _)| *created).collect())),
            ],
        );
        s.push(&format!(
            "WITH {batch} INSERT INTO attempts (uid, generation, attempt, started_at, ended_at, result, status, reply, \
             detail, node, created_at) SELECT b_uid, b_generation, b_attempt, b_started, b_ended, b_result, b_status, \
             b_reply, b_detail, b_node, b_created FROM b WHERE true ON CONFLICT (uid, generation, attempt) DO UPDATE \
             SET started_at = excluded.started_at, ended_at = excluded.ended_at, result = excluded.result, \
             status = excluded.status, reply = excluded.reply, detail = excluded.detail, node = excluded.node, \
             created_at = excluded.created_at"
        ));
        s
    }
}

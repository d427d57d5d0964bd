//! Ends and changes: every event of a timer's life but its registration and its claim.
//!
//! [`ColdStore::apply`] locks the rows, asks [`Life::step`] what each event does, and writes it down, many
//! timers a transaction. [`ColdStore::finish_delivered`] is the short cut for the common event, a first
//! success of the attempt under way: one statement, matched by the attempt's token.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::end::End;
use super::row::{AttemptRecord, COLUMNS, TimerRow, WIDTH};
use super::sql::{Column, Dialect, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::id::{Epoch, Generation, Uid};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, AttemptResult, Event, Life, State, Token};
use crate::planted::{Defect, Planted};

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

/// The events of [`Life::step`], with what has to be written beside them.
#[derive(Debug, Clone)]
pub enum ChangeEvent {
    /// Its caller takes it back.
    Cancel,
    /// Its caller changes it.
    Edit(Edit),
    /// Its caller wants it to fire now.
    Fire,
    /// An attempt ended: what to do next if it was not taken, and its record.
    Attempted(crate::model::timer::Next, AttemptRecord),
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
    pub if_version: Option<i32>,
}

/// What became of a change.
#[derive(Debug, Clone)]
pub enum Applied {
    /// It met a live timer: how that stands now (or how it ended), and the answer.
    Live(Box<TimerRow>, Answer),
    /// `If-Match` named another version; this is the timer's own.
    OtherVersion(i32),
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

/// What a transaction of [`ColdStore::apply`] has to write.
#[derive(Default)]
struct Writes {
    lives: BTreeMap<Uid, (Life, Option<UnixMs>)>,
    edits: Vec<(Uid, Edit)>,
    ends: Vec<End>,
    records: Vec<(Uid, i64, AttemptRecord)>,
    /// Results of attempts that were already given up as unknown: their records are amended.
    late: Vec<(Uid, AttemptRecord)>,
}

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
            "WITH {batch} SELECT {COLUMNS}, {now} FROM timers JOIN b ON uid = b_uid ORDER BY uid {lock}"
        ));
        let mut rows: BTreeMap<Uid, TimerRow> = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        let mut store_now = self.clock.now();
        for row in tx.fetch(s).await? {
            store_now = UnixMs::new(row.get(WIDTH)?);
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
        let Writes { lives, edits, ends, records, late } = writes;
        let mut counts: BTreeMap<&'static str, i64> = BTreeMap::new();
        for end in &ends {
            *counts.entry(end.state.word()).or_default() += 1;
        }
        if !lives.is_empty() {
            tx.execute(self.update_statement(&lives)).await?;
        }
        for (uid, edit) in edits {
            self.write_edit(tx, uid, &edit).await?;
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

    fn update_statement(&self, lives: &BTreeMap<Uid, (Life, Option<UnixMs>)>) -> Statement {
        let mut s = Statement::new(self.dialect(), "apply_update");
        let of = |pick: fn(&Life) -> i64| Column::Int(lives.values().map(|(life, _)| pick(life)).collect());
        let flag =
            |pick: fn(&Life) -> bool| Column::Bool(lives.values().map(|(life, _)| pick(life)).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(lives.keys().map(|uid| uid.0).collect())),
                ("b_state", of(|life| i64::from(life.state.code()))),
                ("b_due", of(|life| life.due_at.get())),
                ("b_wake", of(|life| life.wake_at.get())),
                ("b_expire", Column::IntOrNull(lives.values().map(|(_, at)| at.map(UnixMs::get)).collect())),
                ("b_generation", of(|life| i64::from(life.generation.0))),
                ("b_attempt", of(|life| i64::from(life.attempt))),
                ("b_tries", of(|life| i64::from(life.tries))),
                ("b_version", of(|life| i64::from(life.version))),
                ("b_uncertain", flag(|life| life.uncertain)),
                ("b_cancel", flag(|life| life.cancel_requested)),
                ("b_acked", flag(|life| life.acked_late)),
            ],
        );
        s.push(&format!(
            "WITH {batch} UPDATE timers SET state = b_state, due_at = b_due, wake_at = b_wake, expire_at = b_expire, \
             generation = b_generation, attempt = b_attempt, tries = b_tries, version = b_version, \
             uncertain = b_uncertain, cancel_requested = b_cancel, acked_late = b_acked FROM b WHERE uid = b_uid"
        ));
        s
    }

    async fn write_edit(&self, tx: &mut Tx, uid: Uid, edit: &Edit) -> Result<(), Error> {
        let columns = |data: &Option<Vec<u8>>, labels: &Option<String>| {
            vec![
                ("b_uid", Column::Uuid(vec![uid.0])),
                ("b_data", Column::BytesOrNull(vec![data.clone()])),
                ("b_labels", Column::TextOrNull(vec![labels.clone()])),
            ]
        };
        let sets: Vec<&str> = [
            edit.data.is_some().then_some("data = b_data"),
            edit.labels.is_some().then_some("labels = b_labels"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if sets.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "apply_edit");
        let batch = s.batch(
            "b",
            columns(&edit.data.clone().unwrap_or_default(), &edit.labels.clone().unwrap_or_default()),
        );
        s.push(&format!("WITH {batch} UPDATE timers SET {} FROM b WHERE uid = b_uid", sets.join(", ")));
        tx.execute(s).await.map(drop)
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

/// What one event does to one locked row.
fn decide(
    row: &mut TimerRow,
    event: &ChangeEvent,
    now: UnixMs,
    planted: Planted,
    writes: &mut Writes,
) -> Applied {
    let mut before = row.life;
    if planted.is(Defect::BlindCancel) && matches!(event, ChangeEvent::Cancel) {
        before = Life { state: State::Scheduled, tries: 0, uncertain: false, ..before };
    }
    if planted.is(Defect::ResultWithoutToken) && matches!(event, ChangeEvent::Attempted(..)) {
        before.state = State::Delivering;
    }
    if before.state.is_end() {
        // Ended by an earlier event of this same batch.
        return Applied::NotLive;
    }
    let mut edit = None;
    let mut record: Option<AttemptRecord> = None;
    let step_event = match event {
        ChangeEvent::Cancel => Event::Cancel,
        ChangeEvent::Fire => Event::Reschedule { due_at: now },
        ChangeEvent::TooLate(generation) if row.expire_at.is_some_and(|at| at < now) => {
            Event::TooLate { generation: *generation }
        }
        ChangeEvent::Released(token, epoch) if row.epoch == *epoch => Event::Released { token: *token },
        ChangeEvent::ClaimExpired(token)
            if before.wake_at <= now
                && before.state == State::Delivering
                && (before.generation, before.attempt) == (token.generation, token.attempt) =>
        {
            record = Some(lost_record(row, now));
            Event::ClaimExpired { token: *token, max_attempts: row.policies.max_attempts() }
        }
        ChangeEvent::TooLate(_) | ChangeEvent::ClaimExpired(_) | ChangeEvent::Released(..) => {
            return Applied::Live(Box::new(row.clone()), Answer::Stale);
        }
        ChangeEvent::Attempted(next, attempt) => {
            record = Some(attempt.clone());
            let mut token = Token { generation: Generation(attempt.generation), attempt: attempt.attempt };
            if planted.is(Defect::ResultWithoutToken) {
                token = Token { generation: before.generation, attempt: before.attempt };
            }
            Event::Attempted { token, result: attempt.result, next: *next }
        }
        ChangeEvent::Edit(wanted) => {
            if wanted.if_version.is_some_and(|version| version != before.version)
                && before.step(Event::Relabel, now).answer == Answer::Done
            {
                return Applied::OtherVersion(before.version);
            }
            let (kept, event) = what_changes(row, wanted);
            edit = Some(kept);
            match event {
                Some(event) => event,
                None if before.step(Event::Relabel, now).answer == Answer::Done => {
                    return Applied::Live(Box::new(row.clone()), Answer::Done);
                }
                None => Event::Relabel,
            }
        }
    };
    let step = before.step(step_event, now);
    let late = record.as_ref().is_some_and(|record| {
        before.state != State::Delivering
            || (record.generation, record.attempt) != (before.generation.0, before.attempt)
    });
    if step.answer == Answer::Stale && record.is_none() {
        return Applied::Live(Box::new(row.clone()), Answer::Stale);
    }
    row.life = step.life;
    if step.life.generation != before.generation {
        row.expire_at = row.policies.expire_at(row.life.due_at);
    }
    if let (Some(edit), Answer::Done) = (edit, step.answer) {
        if let Some(data) = &edit.data {
            row.data.clone_from(data);
        }
        if let Some(labels) = &edit.labels {
            row.labels.clone_from(labels);
        }
        writes.edits.push((row.uid, edit));
    }
    if step.life.state.is_end() {
        row.ended_at = Some(now);
        // The attempt that ends a timer stands in its history; a late one has a record already.
        row.last = if late { None } else { record.clone() };
        let token = Token { generation: before.generation, attempt: before.attempt };
        let last = row.last.clone();
        writes.ends.push(End { uid: row.uid, token, life: Some(step.life), state: step.life.state, last });
    } else if step.life != before {
        writes.lives.insert(row.uid, (step.life, row.expire_at));
    }
    match record {
        Some(record) if late => writes.late.push((row.uid, record)),
        Some(record) if !step.life.state.is_end() => {
            writes.records.push((row.uid, row.created_at.get(), record));
        }
        _ => {}
    }
    Applied::Live(Box::new(row.clone()), step.answer)
}

/// What of an edit differs from what is there, and the event that makes it; none if nothing differs.
fn what_changes(row: &TimerRow, wanted: &Edit) -> (Edit, Option<Event>) {
    let due_at = wanted.due_at.map(|due_at| if row.minute { due_at.ceil_minute() } else { due_at });
    let due_at = due_at.filter(|due_at| *due_at != row.life.due_at);
    let data = wanted.data.clone().filter(|data| *data != row.data);
    let labels = wanted.labels.clone().filter(|labels| *labels != row.labels);
    let event = match (due_at, &data, &labels) {
        (None, None, None) => None,
        (None, None, Some(_)) => Some(Event::Relabel),
        _ => Some(Event::Reschedule { due_at: due_at.unwrap_or(row.life.due_at) }),
    };
    (Edit { due_at, data, labels, if_version: None }, event)
}

/// The record of an attempt that nobody reported.
fn lost_record(row: &TimerRow, now: UnixMs) -> AttemptRecord {
    AttemptRecord {
        generation: row.life.generation.0,
        attempt: row.life.attempt,
        started_at: row.claimed_at.unwrap_or(now).get(),
        ended_at: now.get(),
        result: AttemptResult::Unknown,
        status: None,
        reply: None,
        detail: Some("its node did not report in time; the receiver may have got it".into()),
        node: row.node.clone().unwrap_or_default(),
    }
}

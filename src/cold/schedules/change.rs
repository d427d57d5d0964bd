//! Changes of schedules by their callers: put, remove, pause, resume. Each is one transaction that has locked the schedule.
//!
//! First the past is decided by the rule as it was. Then occurrences that are still ahead, and that nobody has touched, are
//! cancelled, and what the new rule makes ahead is made. So each nominal time is decided by one rule.

use std::collections::BTreeSet;
use std::time::Duration;

use super::judge::{self, Decided};
use super::step::{Made, Present, decide, present};
use super::{AFTER, COLUMNS, Content, MAX_SCHEDULES, MOST_GONE, PAUSED_MS, ScheduleRow, TZDB};
use crate::cold::apply::{Applied, Change, ChangeEvent};
use crate::cold::audit::Deed;
use crate::cold::outbox::Batch;
use crate::cold::sql::{Column, Statement, Tx};
use crate::cold::totals::Counts;
use crate::cold::{ColdStore, Error};
use crate::model::id::{Epoch, Uid, shard_of};
use crate::model::namespace::Namespace;
use crate::model::pointer::Pointer;
use crate::model::schedule::{Overlap, Plan, ScheduleState};
use crate::model::template::{TemplateHash, TemplateUse};
use crate::model::time::{LAST, UnixMs};
use crate::model::timer::{Answer, MISSED, State};

/// So many looks at the past one change makes, of a thousand nominal times each. If there is more, its maker is to go on
/// first.
const MOST_LOOKS: usize = 50;

/// How often a change is tried that another transaction stood in the way of.
const TRIES: usize = 4;

/// What a schedule shall be.
#[derive(Debug, Clone)]
pub struct ScheduleEdit {
    /// Its id.
    pub id: String,
    /// Its rule and its policies. The start counts only if `has_start`.
    pub plan: Plan,
    /// Whether its caller says when it starts. Else that is when it was made.
    pub has_start: bool,
    /// What its occurrences are.
    pub content: Content,
    /// What their payload was fitted to, if they have a template.
    pub fitted: Option<TemplateHash>,
    /// What its caller sent, as JSON.
    pub request: String,
    /// The hash of that.
    pub request_hash: [u8; 16],
    /// Written only if it has this version; 0 is that there is none of this id. `None` is whatever there is.
    pub if_version: Option<i32>,
}

/// The outcome of writing a schedule.
#[derive(Debug)]
pub enum SchedulePut {
    /// It is so now; `true` if it is new.
    Done(Box<ScheduleRow>, bool),
    /// It was so before: nothing was changed.
    Same(Box<ScheduleRow>),
    /// It has another version, or (0) there is none.
    OtherVersion(i32),
    /// There is no destination of this name.
    NoDestination(String),
    /// The payload was not fitted to its template as that is now.
    Unfitted,
    /// It would end before it starts.
    EndsBeforeStart,
    /// The store has as many as it takes ([`MAX_SCHEDULES`]).
    Full,
}

/// A schedule that was removed.
#[derive(Debug)]
pub struct ScheduleGone {
    /// Occurrences that waited for others of it and wait no longer.
    pub pointers: Vec<Pointer>,
}

impl ColdStore {
    /// Writes a schedule, new or in place of the one of this id, and makes its occurrences ahead as far as `reach`.
    pub async fn put_schedule(
        &self,
        edit: &ScheduleEdit,
        reach: Duration,
    ) -> Result<(SchedulePut, Made), Error> {
        for _ in 0..TRIES {
            match Box::pin(self.put_schedule_once(edit, reach)).await {
                Ok(Some(put)) => return Ok(put),
                // Another caller has just made it.
                Ok(None) => {}
                Err(why) if why.is_deadlock() => {}
                Err(why) => return Err(why),
            }
        }
        Err(Error::Busy)
    }

    async fn put_schedule_once(
        &self,
        edit: &ScheduleEdit,
        reach: Duration,
    ) -> Result<Option<(SchedulePut, Made)>, Error> {
        let mut made = Made::default();
        let unchanged = |put| Ok(Some((put, Made::default())));
        let mut tx = self.pool.begin().await?;
        self.hold_here(&mut tx).await?;
        let before = self.lock_schedule(&mut tx, &edit.id).await?;
        let version = before.as_ref().map_or(0, |(row, _)| row.version);
        if edit.if_version.is_some_and(|wanted| wanted != version) {
            return unchanged(SchedulePut::OtherVersion(version));
        }
        let target = edit.content.target();
        if let Some(name) = self
            .missing_destinations(&mut tx, std::iter::once((self.namespace(), &target)))
            .await?
            .pop_first()
        {
            return unchanged(SchedulePut::NoDestination(name.1));
        }
        let is_same = before.as_ref().is_some_and(|(row, _)| row.request_hash == edit.request_hash);
        if let Some(name) = edit.content.template().filter(|_| !is_same) {
            let of = TemplateUse { name: name.to_owned(), fitted: edit.fitted };
            let says = self.templates_in_use(&mut tx, std::iter::once((self.namespace(), &of))).await?;
            let says = says.into_values().next();
            if of.fitted.is_none() || says != of.fitted {
                return unchanged(SchedulePut::Unfitted);
            }
        }
        self.keep_queues(&mut tx, std::iter::once((self.namespace(), &target))).await?;
        let (mut late, mut decided, mut was) = (Vec::new(), Decided::default(), None);
        let is_new = before.is_none();
        let (mut row, now) = match before {
            Some((row, _)) if is_same => {
                return unchanged(SchedulePut::Same(Box::new(row)));
            }
            Some((mut row, present)) => {
                was = Some(row.audited());
                (late, decided) = self.decide_past(&mut tx, &mut row, present, &mut made).await?;
                self.withdraw(&mut tx, &mut row, &BTreeSet::new(), present.now, &mut made, &mut late).await?;
                row.state = match row.state {
                    ScheduleState::Ended => ScheduleState::Active,
                    other => other,
                };
                row.last_nominal = present.now;
                row.tzdb = row.tzdb.max(TZDB.to_owned());
                (row, present.now)
            }
            None if !self.has_schedule_room(&mut tx).await? => return unchanged(SchedulePut::Full),
            None => match self.insert_schedule(&mut tx, edit).await? {
                Some(inserted) => inserted,
                None => return Ok(None),
            },
        };
        row.plan = edit.plan.clone();
        if !edit.has_start {
            row.plan.timing.start_at = row.created_at;
        }
        if row.plan.end_at.is_some_and(|end| end < row.plan.timing.start_at) {
            return unchanged(SchedulePut::EndsBeforeStart);
        }
        row.content = edit.content.clone();
        (row.request, row.request_hash) = (edit.request.clone(), edit.request_hash);
        if !is_new {
            (row.version, row.changed_at) = (row.version + 1, now);
        }
        self.write_schedule(&mut tx, &row).await?;
        let deed = Deed { action: "schedule.put", object: &row.id, was, became: Some(row.audited()) };
        self.audit(&mut tx, deed).await?;
        judge::ahead(&mut row, &mut decided, reach, now).map_err(unforeseen)?;
        late.extend(
            Box::pin(self.carry_out(&mut tx, vec![(row.clone(), decided)], now, false, &mut made)).await?,
        );
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_all_late(late).await?;
        self.note_made(&made);
        Ok(Some((SchedulePut::Done(Box::new(row), is_new), made)))
    }

    /// Removes a schedule; `None` if there is none of this id.
    pub async fn remove_schedule(&self, id: &str) -> Result<Option<(ScheduleGone, Made)>, Error> {
        for _ in 0..TRIES {
            match Box::pin(self.remove_schedule_once(id)).await {
                Err(why) if why.is_deadlock() => {}
                done => return done,
            }
        }
        Err(Error::Busy)
    }

    async fn remove_schedule_once(&self, id: &str) -> Result<Option<(ScheduleGone, Made)>, Error> {
        let mut made = Made::default();
        let mut tx = self.pool.begin().await?;
        let Some((mut row, present)) = self.lock_schedule(&mut tx, id).await? else { return Ok(None) };
        let (mut late, _) = self.decide_past(&mut tx, &mut row, present, &mut made).await?;
        self.withdraw(&mut tx, &mut row, &BTreeSet::new(), present.now, &mut made, &mut late).await?;
        self.withdraw_waiting(&mut tx, id, &mut made, &mut late).await?;
        let pointers = self.let_go(&mut tx, id).await?;
        for table in
            ["skips WHERE namespace = {n} AND schedule =", "schedules WHERE namespace = {n} AND id ="]
        {
            let mut s = Statement::new(self.dialect(), "remove_schedule");
            let (here, id) = (self.here(&mut s), s.text(id));
            s.push(&format!("DELETE FROM {} {id}", table.replace("{n}", &here)));
            tx.execute(s).await?;
        }
        let was = Some(row.audited());
        self.audit(&mut tx, Deed { action: "schedule.remove", object: id, was, became: None }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_all_late(late).await?;
        self.note_made(&made);
        Ok(Some((ScheduleGone { pointers }, made)))
    }

    /// Pauses a schedule, or resumes it; `None` if there is none of this id. One that has ended stays as it is.
    pub async fn pause_schedule(
        &self,
        id: &str,
        paused: bool,
        reach: Duration,
    ) -> Result<Option<(ScheduleRow, Made)>, Error> {
        for _ in 0..TRIES {
            match Box::pin(self.pause_schedule_once(id, paused, reach)).await {
                Err(why) if why.is_deadlock() => {}
                done => return done,
            }
        }
        Err(Error::Busy)
    }

    async fn pause_schedule_once(
        &self,
        id: &str,
        paused: bool,
        reach: Duration,
    ) -> Result<Option<(ScheduleRow, Made)>, Error> {
        let mut made = Made::default();
        let mut tx = self.pool.begin().await?;
        let Some((mut row, present)) = self.lock_schedule(&mut tx, id).await? else { return Ok(None) };
        let from = if paused { ScheduleState::Active } else { ScheduleState::Paused };
        if row.state != from {
            return Ok(Some((row, made)));
        }
        let was = Some(row.audited());
        let (mut late, _) = self.decide_past(&mut tx, &mut row, present, &mut made).await?;
        let now = present.now;
        self.judge_ahead(&mut tx, id, paused, now).await?;
        row.state = if paused { ScheduleState::Paused } else { ScheduleState::Active };
        row.paused_until = (!paused).then_some(now);
        (row.version, row.changed_at) = (row.version + 1, now);
        self.write_schedule(&mut tx, &row).await?;
        let action = if paused { "schedule.pause" } else { "schedule.resume" };
        let became = Some(row.audited());
        self.audit(&mut tx, Deed { action, object: id, was, became }).await?;
        let (live, _) = self.live_occurrences(&mut tx, std::slice::from_ref(&row)).await?;
        let live = live.get(id).map(Vec::as_slice).unwrap_or_default();
        // One whose times cannot be told is paused all the same; its maker goes on trying.
        let decided = decide(&mut row, live, &[], present, reach);
        let decided = decided.unwrap_or_else(|why| undecidable(id, &why));
        late.extend(
            Box::pin(self.carry_out(&mut tx, vec![(row.clone(), decided)], now, false, &mut made)).await?,
        );
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_all_late(late).await?;
        self.note_made(&made);
        Ok(Some((row, made)))
    }

    /// Reads a schedule and keeps others from it until the end of the transaction.
    pub(super) async fn lock_schedule(
        &self,
        tx: &mut Tx,
        id: &str,
    ) -> Result<Option<(ScheduleRow, Present)>, Error> {
        let mut s = Statement::new(self.dialect(), "lock_schedule");
        let here = self.here(&mut s);
        let (id, lock) = (s.text(id), self.dialect().lock("FOR UPDATE"));
        s.push(&format!("SELECT {COLUMNS} FROM schedules WHERE namespace = {here} AND id = {id} {lock}"));
        let Some(row) = tx.fetch(s).await?.first().map(ScheduleRow::read).transpose()? else {
            return Ok(None);
        };
        // Who waited for the lock needs the time after it.
        let mut s = Statement::new(self.dialect(), "schedule_present");
        let now = s.now(self.bound_now());
        s.push(&format!("SELECT {}", present(&now)));
        let rows = tx.fetch(s).await?;
        let present = rows.first().map(|row| Present::read(row, 0)).transpose()?;
        Ok(present.map(|present| (row, present)))
    }

    /// Decides everything up to now, by the rule as it is. Returns what is to be told, and what is to be known by what the same
    /// change decides afterwards.
    pub(super) async fn decide_past(
        &self,
        tx: &mut Tx,
        row: &mut ScheduleRow,
        present: Present,
        made: &mut Made,
    ) -> Result<(Vec<Batch>, Decided), Error> {
        let mut late = Vec::new();
        for _ in 0..MOST_LOOKS {
            let (live, _) = self.live_occurrences(tx, std::slice::from_ref(row)).await?;
            let ended = self.ended_occurrences(tx, &live).await?;
            let live = live.get(&row.id).map(Vec::as_slice).unwrap_or_default();
            let ended = ended.get(&row.id).map(Vec::as_slice).unwrap_or_default();
            let decided = judge::past(row, live, ended, present.lost, present.now);
            let decided = match decided {
                // Who removes it, or puts a rule in its place that can be read, has to be able to.
                Err(why) => return Ok((late, undecidable(&row.id, &why))),
                Ok(decided) => decided,
            };
            // What is made of the past has to wait for its turn, too: that is decided by one more look.
            let is_decided =
                !decided.is_cut && (decided.makes.is_empty() || row.plan.overlap == Overlap::Allow);
            let rest = decided.go_on();
            late.extend(
                Box::pin(self.carry_out(tx, vec![(row.clone(), decided)], present.now, false, made)).await?,
            );
            if is_decided {
                return Ok((late, rest));
            }
        }
        Err(Error::Busy)
    }

    /// Cancels occurrences whose nominal times are ahead and that nobody has touched, but for those to `keep`. The others that
    /// were made ahead, live or ended, are not made again, nor counted again.
    async fn withdraw(
        &self,
        tx: &mut Tx,
        row: &mut ScheduleRow,
        keep: &BTreeSet<UnixMs>,
        now: UnixMs,
        made: &mut Made,
        late: &mut Vec<Batch>,
    ) -> Result<(), Error> {
        let ahead = self.occurrences_where(tx, &row.id, &format!("nominal > {}", now.get())).await?;
        let moves_nothing = ahead.iter().all(|(_, nominal)| keep.contains(nominal));
        let of_rule = ahead.iter().filter(|(_, nominal)| !keep.contains(nominal)).map(|(uid, _)| *uid);
        let withdrawn = self.withdraw_all(tx, of_rule.collect(), made, late).await?;
        row.made -= withdrawn.len() as i64;
        let (cancelled, live): (Vec<_>, Vec<_>) =
            ahead.into_iter().partition(|(uid, _)| withdrawn.contains(uid));
        let cancelled: BTreeSet<UnixMs> = cancelled.into_iter().map(|(_, nominal)| nominal).collect();
        let live = live.into_iter().map(|(_, nominal)| nominal);
        // A rule that cannot be read any more has made nothing that could be made again. By other data than these were made by
        // it may name other times, but where all that are live are among those to keep.
        let were_made = match row.follows_zones() {
            true => row.times_ahead(now).unwrap_or_default(),
            false if moves_nothing => keep.clone(),
            false => BTreeSet::new(),
        };
        let gone = live.chain(were_made.into_iter().filter(|at| !cancelled.contains(at)));
        let mut all: BTreeSet<UnixMs> = row.gone.iter().copied().filter(|at| *at > now).collect();
        all.extend(gone);
        // What the data of the time zones had kept is made again after all.
        all.retain(|at| !cancelled.contains(at));
        row.gone = all.into_iter().take(MOST_GONE).collect();
        Ok(())
    }

    /// Has schedules of these shards that were made by other data of the time zones follow the data of this build, at most
    /// `most` of them: occurrences ahead whose nominal times the rule does not name any more are cancelled, and those that it
    /// names now are made. Returns how many there were, too.
    pub async fn follow_zones(
        &self,
        owned: &[(i32, Epoch)],
        most: usize,
        reach: Duration,
    ) -> Result<(usize, Made), Error> {
        let mut s = Statement::new(self.dialect(), "schedules_of_other_zones");
        let shards = owned.iter().map(|(shard, _)| i64::from(*shard)).collect();
        let batch = s.batch("b", vec![("b_shard", Column::Int(shards))]);
        let (zones, most) = (s.text(TZDB), s.int(i64::try_from(most).unwrap_or(1)));
        // What has ended and has nothing ahead is left as it is.
        s.push(&format!(
            "WITH {batch} SELECT id, namespace FROM b CROSS JOIN schedules WHERE shard = b_shard AND make_at IS NOT NULL \
             AND tzdb < {zones} LIMIT {most}"
        ));
        let (mut made, mut count) = (Made::default(), 0);
        for row in self.pool.read(s).await? {
            let id: String = row.get(0)?;
            let within = self.within(Namespace(row.get(1)?));
            match Box::pin(within.follow_zones_of(&id, reach)).await {
                Ok(one) => made.add(one),
                Err(why) if why.is_passing() => return Err(why),
                // It does not hold up the others.
                Err(why) => {
                    tracing::error!(schedule = id, %why, "a schedule does not follow the data of the time zones");
                    let mut tx = self.pool.begin().await?;
                    within.note_zones(&mut tx, &id).await?;
                    tx.commit().await?;
                }
            }
            count += 1;
        }
        Ok((count, made))
    }

    /// Notes that a schedule follows the data of this build.
    async fn note_zones(&self, tx: &mut Tx, id: &str) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "schedule_follows_zones");
        let here = self.here(&mut s);
        let (id, zones) = (s.text(id), s.text(TZDB));
        s.push(&format!("UPDATE schedules SET tzdb = {zones} WHERE namespace = {here} AND id = {id}"));
        tx.execute(s).await.map(drop)
    }

    async fn follow_zones_of(&self, id: &str, reach: Duration) -> Result<Made, Error> {
        let mut made = Made::default();
        let mut tx = self.pool.begin().await?;
        let Some((mut row, present)) = self.lock_schedule(&mut tx, id).await? else { return Ok(made) };
        if row.follows_zones() {
            return Ok(made);
        }
        let mut late = Vec::new();
        // Of one whose times cannot be told its maker tells, and goes on trying.
        if let Ok(times) = row.times_ahead(present.now) {
            let (told, mut decided) = self.decide_past(&mut tx, &mut row, present, &mut made).await?;
            late.extend(told);
            self.withdraw(&mut tx, &mut row, &times, present.now, &mut made, &mut late).await?;
            row.last_nominal = present.now;
            if let Err(why) = judge::ahead(&mut row, &mut decided, reach, present.now) {
                decided = undecidable(&row.id, &why);
            }
            let steps = vec![(row, decided)];
            late.extend(Box::pin(self.carry_out(&mut tx, steps, present.now, false, &mut made)).await?);
        }
        self.note_zones(&mut tx, id).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_all_late(late).await?;
        self.note_made(&made);
        Ok(made)
    }

    /// Cancels all occurrences that wait for others and that nobody has touched.
    async fn withdraw_waiting(
        &self,
        tx: &mut Tx,
        id: &str,
        made: &mut Made,
        late: &mut Vec<Batch>,
    ) -> Result<(), Error> {
        let waiting =
            format!("state = 0 AND version = 1 AND overlap IS NOT NULL AND judge_after = {}", LAST.get());
        loop {
            let some = self.occurrences_where(tx, id, &waiting).await?;
            let withdrawn =
                self.withdraw_all(tx, some.into_iter().map(|(uid, _)| uid).collect(), made, late).await?;
            if withdrawn.is_empty() {
                return Ok(());
            }
        }
    }

    /// Cancels those of these occurrences that nobody has touched; returns which.
    async fn withdraw_all(
        &self,
        tx: &mut Tx,
        mut uids: Vec<Uid>,
        made: &mut Made,
        late: &mut Vec<Batch>,
    ) -> Result<BTreeSet<Uid>, Error> {
        if uids.is_empty() {
            return Ok(BTreeSet::new());
        }
        uids.sort_unstable();
        let changes: Vec<Change> = uids
            .iter()
            .map(|uid| Change { uid: *uid, caller: None, event: ChangeEvent::Withdrawn })
            .collect();
        let within = Box::pin(self.apply_within(tx, &changes, &uids, false, Counts::default())).await?;
        late.push(within.late);
        let is_done = |answer: &Applied| matches!(answer, Applied::Live(_, Answer::Done));
        let done = changes.iter().zip(&within.answers).filter(|(_, answer)| is_done(answer));
        let withdrawn = done.map(|(change, _)| change.uid).collect();
        made.changes.extend(changes);
        made.answers.extend(within.answers);
        Ok(withdrawn)
    }

    /// Live occurrences of a schedule that meet this condition, with their nominal times.
    async fn occurrences_where(
        &self,
        tx: &mut Tx,
        id: &str,
        condition: &str,
    ) -> Result<Vec<(Uid, UnixMs)>, Error> {
        let mut s = Statement::new(self.dialect(), "schedule_occurrences");
        let id = s.text(&self.namespace().qualified(id));
        s.push(&format!(
            "SELECT uid, nominal FROM timers WHERE schedule = {id} AND schedule IS NOT NULL AND nominal IS NOT NULL \
             AND {condition} ORDER BY nominal LIMIT 2000"
        ));
        tx.fetch(s).await?.iter().map(|row| Ok((Uid(row.get(0)?), UnixMs::new(row.get(1)?)))).collect()
    }

    /// Keeps occurrences ahead that nobody has touched from firing while their schedule is paused, or lets them again.
    async fn judge_ahead(&self, tx: &mut Tx, id: &str, paused: bool, now: UnixMs) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "schedule_judge_ahead");
        let id = s.text(&self.namespace().qualified(id));
        let (now, scheduled) = (s.int(now.get()), State::Scheduled.code());
        // A later moment than the nominal time is no reason to fire what fell into the pause.
        let (which, judge_after) = match paused {
            true => ("version = 1", format!("due_at - {PAUSED_MS}")),
            false => ("judge_after < due_at", format!("due_at + {}", MISSED.as_millis())),
        };
        let lock = self.dialect().lock("FOR UPDATE");
        s.push(&format!(
            "WITH own AS (SELECT uid AS own_uid FROM timers WHERE schedule = {id} AND schedule IS NOT NULL \
               AND state = {scheduled} AND nominal > {now} AND {which} ORDER BY uid {lock}) \
             UPDATE timers SET judge_after = {judge_after} WHERE {}",
            self.dialect().among("uid", "SELECT own_uid FROM own")
        ));
        tx.execute(s).await.map(drop)
    }

    /// Whether the store takes one more. To count them takes as long as there are many: it is done once for a hundredth of
    /// what is free, as other nodes make some meanwhile.
    async fn has_schedule_room(&self, tx: &mut Tx) -> Result<bool, Error> {
        if self.namespace() != Namespace::OWN && !self.has_room_here(tx, "schedules", MAX_SCHEDULES).await? {
            return Ok(false);
        }
        let mut room = self.schedule_room.lock().await;
        *room -= 1;
        if *room >= 0 {
            return Ok(true);
        }
        let mut s = Statement::new(self.dialect(), "schedules_in_all");
        s.push("SELECT count(*) FROM schedules");
        let rows = tx.fetch(s).await?;
        let free = MAX_SCHEDULES - rows.first().map_or(Ok(0), |row| row.get(0))?;
        *room = free / 100;
        Ok(free > 0)
    }

    /// Inserts a schedule; `None` if there is one of this id.
    async fn insert_schedule(
        &self,
        tx: &mut Tx,
        edit: &ScheduleEdit,
    ) -> Result<Option<(ScheduleRow, UnixMs)>, Error> {
        let mut s = Statement::new(self.dialect(), "insert_schedule");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (id, shard) = (s.text(&edit.id), s.int(shard_of(&self.salt, &edit.id, self.shards).into()));
        let (plan, content) = (s.text(&json(&edit.plan)), s.text(&json(&edit.content)));
        let (request, hash, zones) = (s.text(&edit.request), s.bytes(Some(&edit.request_hash)), s.text(TZDB));
        s.push(&format!(
            "INSERT INTO schedules (namespace, id, shard, state, plan, content, request, request_hash, kind, lane, made, \
               last_nominal, failures, version, created_at, changed_at, tzdb) \
             SELECT {here}, {id}, {shard}, 0, {plan}, {content}, {request}, {hash}, 0, 0, 0, {now}, 0, 1, {now}, {now}, {zones} \
             WHERE true ON CONFLICT (namespace, id) DO NOTHING \
             RETURNING {COLUMNS}, {now}"
        ));
        let rows = tx.fetch(s).await?;
        rows.first().map(|row| Ok((ScheduleRow::read(row)?, UnixMs::new(row.get(AFTER)?)))).transpose()
    }

    /// Writes what a caller's change concerns; the rest is written by [`ColdStore::write_steps`].
    async fn write_schedule(&self, tx: &mut Tx, row: &ScheduleRow) -> Result<(), Error> {
        let target = row.content.target();
        let mut s = Statement::new(self.dialect(), "write_schedule");
        let here = self.here(&mut s);
        let (id, plan, content) = (s.text(&row.id), s.text(&json(&row.plan)), s.text(&json(&row.content)));
        let (request, hash) = (s.text(&row.request), s.bytes(Some(&row.request_hash)));
        let (kind, lane) = (s.int(target.kind().into()), s.int(target.lane(row.namespace)));
        let mut maybe = |text: Option<&str>| text.map_or_else(|| "NULL".to_owned(), |text| s.text(text));
        let (owner, labels) = (maybe(row.content.owner()), maybe(row.content.labels()));
        let (given_to, template) = (maybe(row.content.given_to().as_deref()), maybe(row.content.template()));
        let (version, changed_at) = (s.int(row.version.into()), s.int(row.changed_at.get()));
        let zones = s.text(&row.tzdb);
        s.push(&format!(
            "UPDATE schedules SET plan = {plan}, content = {content}, request = {request}, request_hash = {hash}, \
               kind = {kind}, lane = {lane}, given_to = {given_to}, template = {template}, owner = {owner}, labels = {labels}, \
               version = {version}, changed_at = {changed_at}, tzdb = {zones} WHERE namespace = {here} AND id = {id}"
        ));
        tx.execute(s).await.map(drop)
    }

    /// The number of schedules whose occurrences are for a queue.
    pub(in crate::cold) fn scheduled_for_queue(&self, name: &str) -> Statement {
        let mut s = Statement::new(self.dialect(), "queue_schedules");
        let here = self.here(&mut s);
        let of = self.of_queue(name, &mut s);
        s.push(&format!("SELECT CAST(count(*) AS BIGINT) FROM schedules WHERE namespace = {here} AND {of}"));
        s
    }

    /// The number of schedules whose payload is fitted to a template.
    pub(in crate::cold) fn templated_schedules(&self, name: &str) -> Statement {
        let mut s = Statement::new(self.dialect(), "template_schedules");
        let here = self.here(&mut s);
        let name = s.text(name);
        s.push(&format!(
            "SELECT CAST(count(*) AS BIGINT) FROM schedules WHERE namespace = {here} AND template = {name}"
        ));
        s
    }

    /// The number of schedules whose occurrences go to a destination.
    pub(in crate::cold) fn scheduled_statement(&self, name: &str) -> Statement {
        let mut s = Statement::new(self.dialect(), "destination_schedules");
        let here = self.here(&mut s);
        let of = self.of_destination(name, &mut s);
        s.push(&format!("SELECT CAST(count(*) AS BIGINT) FROM schedules WHERE namespace = {here} AND {of}"));
        s
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Nothing can be decided about a schedule: its rule was taken by another version, or has met a defect. Only that is passed
/// over.
fn undecidable(id: &str, why: &crate::model::rule::RuleError) -> Decided {
    tracing::error!(schedule = id, %why, "the nominal times of a schedule cannot be told; it is changed all the same");
    Decided::default()
}

/// A rule that was checked has failed to tell its next nominal time.
fn unforeseen(why: crate::model::rule::RuleError) -> Error {
    Error::Corrupt(format!("a rule: {why}"))
}

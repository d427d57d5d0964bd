//! What was decided about schedules is written: occurrences are inserted, skips recorded, and the schedules pass on.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::judge::{Decided, Make};
use super::step::Made;
use super::{ROW_BY_ROW, ScheduleRow, of_batch};
use crate::cold::apply::{Applied, ChangeEvent, Within};
use crate::cold::end::is_withdrawn;
use crate::cold::outbox::{Batch, Happened};
use crate::cold::register::NewTimer;
use crate::cold::row::TimerRow;
use crate::cold::sql::{Column, Statement, Tx};
use crate::cold::totals::Counts;
use crate::cold::{ColdStore, Error};
use crate::model::id::Uid;
use crate::model::schedule::{Occurrence, Turn, occurrence_id};
use crate::model::time::UnixMs;
use crate::model::timer::MISSED;
use crate::planted::Defect;

impl ColdStore {
    /// Writes what was decided about these schedules, which this transaction has locked. `skip_locked`: a timer that
    /// somebody has locked stays as it is, for the next look.
    pub(super) async fn carry_out(
        &self,
        tx: &mut Tx,
        steps: Vec<(ScheduleRow, Decided)>,
        now: UnixMs,
        skip_locked: bool,
        made: &mut Made,
    ) -> Result<Vec<Batch>, Error> {
        let timers = steps.iter().flat_map(|(row, decided)| {
            decided.makes.iter().filter_map(|make| self.occurrence(row, *make, now))
        });
        let (timers, missed): (Vec<NewTimer>, Vec<bool>) = timers.unzip();
        let rows = self.insert_occurrences(tx, timers, &missed, made).await?;
        let (mut changes, mut skips) = (Vec::new(), Vec::new());
        for (row, decided) in &steps {
            changes.extend(decided.changes.iter().cloned());
            if self.planted.is(Defect::SkipNotRecorded) {
                continue;
            }
            skips.extend(decided.skips.iter().map(|skip| (row, *skip)));
        }
        for (_, skip) in &skips {
            made.skipped(skip.reason, skip.count);
        }
        self.record_skips(tx, &skips, now).await?;
        self.write_steps(tx, steps.iter().map(|(row, _)| row)).await?;
        let set = Box::pin(self.listeners(tx)).await?;
        let late = Box::pin(self.tell(tx, &set, Happened::registered(rows.iter()))).await?;
        self.tell_skips(tx, &set, &skips, now).await?;
        let mut counts = Counts::default();
        counts.add(self.namespace(), "registered", rows.len() as i64);
        made.rows.extend(rows);
        if changes.is_empty() {
            self.count(tx, &counts).await?;
            return Ok(vec![late]);
        }
        let uids: BTreeSet<Uid> = changes.iter().map(|change| change.uid).collect();
        let uids: Vec<Uid> = uids.into_iter().collect();
        let within = Box::pin(self.apply_within(tx, &changes, &uids, skip_locked, counts)).await?;
        let Within { answers, skipped, late: later } = within;
        for (change, answer) in changes.into_iter().zip(answers) {
            if skipped.contains(&change.uid) {
                continue;
            }
            if let (ChangeEvent::Skipped(_, why), Applied::Live(row, _)) = (&change.event, &answer)
                && row.life.state.is_end()
            {
                made.skipped(*why, 1);
            }
            made.changes.push(change);
            made.answers.push(answer);
        }
        Ok(vec![late, later])
    }

    /// What [`ColdStore::tell_late`] does, of several transactions' parts.
    pub(super) async fn tell_all_late(&self, late: Vec<Batch>) -> Result<(), Error> {
        for batch in late {
            Box::pin(self.tell_late(batch)).await?;
        }
        Ok(())
    }

    /// The timer of a nominal time, and whether that was missed; `None` for a moment that no id can be made of.
    fn occurrence(&self, row: &ScheduleRow, make: Make, now: UnixMs) -> Option<(NewTimer, bool)> {
        let id = occurrence_id(&row.id, make.at)?;
        let mut uid = id.uid(&self.salt);
        if self.planted.is(Defect::OccurrenceMadeTwice) {
            uid = Uid(Uuid::from_u128(uid.0.as_u128() ^ u128::from(now.get().unsigned_abs())));
        }
        let occurrence = Occurrence {
            schedule: row.id.clone(),
            nominal: Some(make.at),
            turn: Turn::of(row.plan.overlap),
            judge_after: None,
            skipped: None,
        };
        Some((row.content.timer(self.namespace(), id, uid, make.at, now, occurrence), make.is_missed))
    }

    /// Inserts occurrences whose ids are not taken. One that a change has cancelled is made again.
    async fn insert_occurrences(
        &self,
        tx: &mut Tx,
        timers: Vec<NewTimer>,
        missed: &[bool],
        made: &mut Made,
    ) -> Result<Vec<TimerRow>, Error> {
        if timers.is_empty() {
            return Ok(Vec::new());
        }
        let mut timers = self.choose_moments(&timers).into_owned();
        for (timer, is_missed) in timers.iter_mut().zip(missed) {
            let (due_at, now) = (timer.due_at, timer.created_at);
            if let Some(one) = &mut timer.occurrence {
                // One before it may have ended since: the claim sees only what still runs.
                let is_behind = one.turn == Some(Turn::Skip) && due_at < now;
                one.judge_after = match is_behind {
                    true => Some(due_at),
                    false => (!is_missed).then(|| due_at.plus(MISSED)),
                };
                made.is_cut |= is_behind;
            }
        }
        let rows = self.insert_made(tx, &timers, missed).await?;
        made.timers.extend(timers);
        Ok(rows)
    }

    /// Inserts these occurrences as they are; with `true` beside it one is not asked how late it is.
    pub(super) async fn insert_made(
        &self,
        tx: &mut Tx,
        timers: &[NewTimer],
        missed: &[bool],
    ) -> Result<Vec<TimerRow>, Error> {
        let withdrawn = self.withdrawn(tx, timers.iter().map(|timer| timer.uid.0).collect()).await?;
        let callers = timers.iter().map(|timer| (timer.uid, withdrawn.contains(&timer.uid))).collect();
        let mut fresh: Vec<TimerRow> = Vec::with_capacity(timers.len());
        for (timer, is_missed) in timers.iter().zip(missed) {
            let mut row = self.fresh_row(timer);
            if *is_missed {
                row.expire_at = None;
            }
            fresh.push(row);
        }
        // As registrations do, so that two of them do not deadlock.
        fresh.sort_by_key(|row| row.uid);
        self.keep_namespaces(tx, &fresh.iter().map(|row| row.namespace).collect()).await?;
        let targets = fresh.iter().map(|row| (row.namespace, &row.target));
        if let Some((_, name)) = self.missing_destinations(tx, targets).await?.first() {
            return Err(Error::Corrupt(format!("a schedule for destination `{name}`, which there is not")));
        }
        Ok(Box::pin(self.insert_free(tx, &callers, fresh, false)).await?.0)
    }

    /// Of these timers, those that ended because a rule was changed.
    async fn withdrawn(&self, tx: &mut Tx, uids: Vec<Uuid>) -> Result<BTreeSet<Uid>, Error> {
        let mut s = Statement::new(self.dialect(), "schedule_withdrawn");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids))]);
        let is_withdrawn = is_withdrawn();
        s.push(&format!(
            "WITH {batch} SELECT uid FROM b CROSS JOIN ended_ids WHERE {} AND COALESCE({is_withdrawn}, false)",
            self.dialect().keyed("uid", "b_uid")
        ));
        tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// Writes what a look changes of schedules.
    pub(super) async fn write_steps<'a>(
        &self,
        tx: &mut Tx,
        rows: impl Iterator<Item = &'a ScheduleRow>,
    ) -> Result<(), Error> {
        let rows: Vec<&ScheduleRow> = rows.collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.note_schedule();
        let int = |of: fn(&ScheduleRow) -> i64| Column::Int(rows.iter().map(|row| of(row)).collect());
        let maybe = |of: fn(&ScheduleRow) -> Option<UnixMs>| {
            Column::IntOrNull(rows.iter().map(|row| of(row).map(UnixMs::get)).collect())
        };
        let mut s = Statement::new(self.dialect(), "schedule_write");
        let batch = s.batch(
            "b",
            vec![
                ("b_id", Column::Text(rows.iter().map(|row| row.id.clone()).collect())),
                of_batch(self.namespace(), rows.len()),
                ("b_state", int(|row| row.state.code().into())),
                ("b_made", int(|row| row.made)),
                ("b_last", int(|row| row.last_nominal.get())),
                ("b_paused", maybe(|row| row.paused_until)),
                ("b_make", maybe(|row| row.make_at)),
                ("b_failures", int(|row| row.failures.into())),
                ("b_gone", Column::TextOrNull(rows.iter().map(|row| row.stored_gone()).collect())),
            ],
        );
        s.push(&format!(
            "WITH {batch} UPDATE schedules SET state = b_state, made = b_made, last_nominal = b_last, \
               paused_until = b_paused, make_at = b_make, failures = b_failures, gone = b_gone \
             FROM {ROW_BY_ROW} WHERE namespace = b_namespace AND id = b_id"
        ));
        tx.execute(s).await.map(drop)
    }
}

//! What one event does to one locked row, without SQL: which event of [`Life::step`] it is, how the timer moves,
//! and what has to be written.

use std::collections::{BTreeMap, BTreeSet};

use super::apply::{Applied, ChangeEvent, Edit};
use super::end::End;
use super::row::{AttemptRecord, TimerRow};
use crate::model::id::{Generation, Uid};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, AttemptResult, Event, Life, State, Step, Token};
use crate::planted::{Defect, Planted};

/// What a transaction of [`super::ColdStore::apply`] has to write.
#[derive(Default)]
pub(super) struct Writes {
    /// Timers that live on, as they stand now.
    pub moved: BTreeMap<Uid, TimerRow>,
    /// Those of them whose payload or labels differ.
    pub edited: BTreeSet<Uid>,
    /// Timers that end.
    pub ends: Vec<End>,
    /// Attempts that did not end their timer: uid, when it was registered, record.
    pub records: Vec<(Uid, i64, AttemptRecord)>,
    /// Results of attempts that were already given up as unknown: their records are amended.
    pub late: Vec<(Uid, AttemptRecord)>,
}

/// An event of [`Life::step`], and what is written beside it.
struct Happening {
    event: Event,
    /// The attempt that it reports.
    record: Option<AttemptRecord>,
    /// What of the timer's content changes.
    edit: Option<Edit>,
}

/// Decides what a change does to the timer that it meets: moves the row, notes what is to be written, and answers.
pub(super) fn decide(
    row: &mut TimerRow,
    change: &ChangeEvent,
    now: UnixMs,
    planted: Planted,
    writes: &mut Writes,
) -> Applied {
    let before = seen(row.life, change, planted);
    if before.state.is_end() {
        // Ended by an earlier change of this same batch.
        return Applied::NotLive;
    }
    let happening = match happening(row, before, change, now, planted) {
        Ok(happening) => happening,
        Err(applied) => return applied,
    };
    let step = before.step(happening.event, now);
    if step.answer == Answer::Stale && happening.record.is_none() {
        return Applied::Live(Box::new(row.clone()), Answer::Stale);
    }
    note_writes(row, before, step, happening, now, writes);
    Applied::Live(Box::new(row.clone()), step.answer)
}

/// The life as the event sees it: as it is, unless a defect is planted.
fn seen(mut life: Life, change: &ChangeEvent, planted: Planted) -> Life {
    if planted.is(Defect::BlindCancel) && matches!(change, ChangeEvent::Cancel) {
        life = Life { state: State::Scheduled, tries: 0, uncertain: false, ..life };
    }
    if planted.is(Defect::ResultWithoutToken) && matches!(change, ChangeEvent::Attempted(..)) {
        life.state = State::Delivering;
    }
    life
}

/// First step: which event it is. An error is the answer to a change that does not concern the timer as it stands.
fn happening(
    row: &TimerRow,
    before: Life,
    change: &ChangeEvent,
    now: UnixMs,
    planted: Planted,
) -> Result<Happening, Applied> {
    let plain = |event| Ok(Happening { event, record: None, edit: None });
    let stale = || Err(Applied::Live(Box::new(row.clone()), Answer::Stale));
    match change {
        ChangeEvent::Cancel => plain(Event::Cancel),
        ChangeEvent::Fire => plain(Event::Reschedule { due_at: now }),
        ChangeEvent::TooLate(generation) if row.expire_at.is_some_and(|at| at < now) => {
            plain(Event::TooLate { generation: *generation })
        }
        ChangeEvent::Released(token, epoch) if row.epoch == *epoch => {
            plain(Event::Released { token: *token })
        }
        ChangeEvent::ClaimExpired(token)
            if before.wake_at <= now
                && before.state == State::Delivering
                && (before.generation, before.attempt) == (token.generation, token.attempt) =>
        {
            let event = Event::ClaimExpired { token: *token, max_attempts: row.policies.max_attempts() };
            Ok(Happening { event, record: Some(lost_record(row, now)), edit: None })
        }
        ChangeEvent::TooLate(_) | ChangeEvent::ClaimExpired(_) | ChangeEvent::Released(..) => stale(),
        ChangeEvent::Attempted(next, record) => {
            let mut token = Token { generation: Generation(record.generation), attempt: record.attempt };
            if planted.is(Defect::ResultWithoutToken) {
                token = Token { generation: before.generation, attempt: before.attempt };
            }
            let event = Event::Attempted { token, result: record.result, next: *next };
            Ok(Happening { event, record: Some(record.clone()), edit: None })
        }
        ChangeEvent::Edit(wanted) => edit_event(row, before, wanted, now),
    }
}

/// The event of a caller's edit. An edit that changes nothing, and one for another version, has its answer at once,
/// if the timer could be changed at all.
fn edit_event(row: &TimerRow, before: Life, wanted: &Edit, now: UnixMs) -> Result<Happening, Applied> {
    let may_change = before.step(Event::Relabel, now).answer == Answer::Done;
    if may_change && wanted.if_version.is_some_and(|version| version != before.version) {
        return Err(Applied::OtherVersion(before.version));
    }
    let (edit, event) = what_differs(row, wanted);
    match event {
        None if may_change => Err(Applied::Live(Box::new(row.clone()), Answer::Done)),
        event => Ok(Happening { event: event.unwrap_or(Event::Relabel), record: None, edit: Some(edit) }),
    }
}

/// What of an edit differs from what is there, and the event that makes it; none if nothing differs.
fn what_differs(row: &TimerRow, wanted: &Edit) -> (Edit, Option<Event>) {
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

/// Third step, after the transition: the row as it stands now, and what of it has to be written.
fn note_writes(
    row: &mut TimerRow,
    before: Life,
    step: Step,
    happening: Happening,
    now: UnixMs,
    writes: &mut Writes,
) {
    let Happening { record, edit, .. } = happening;
    let is_late = record.as_ref().is_some_and(|record| {
        before.state != State::Delivering
            || (record.generation, record.attempt) != (before.generation.0, before.attempt)
    });
    row.life = step.life;
    if step.life.generation != before.generation {
        row.expire_at = row.policies.expire_at(row.life.due_at);
    }
    if let (Some(edit), Answer::Done) = (edit, step.answer) {
        if edit.data.is_some() || edit.labels.is_some() {
            writes.edited.insert(row.uid);
        }
        if let Some(data) = edit.data {
            row.data = data;
        }
        if let Some(labels) = edit.labels {
            row.labels = labels;
        }
    }
    if step.life.state.is_end() {
        row.ended_at = Some(now);
        // The attempt that ends a timer stands in its history; a late one has a record already.
        row.last = if is_late { None } else { record.clone() };
        let token = Token { generation: before.generation, attempt: before.attempt };
        let last = row.last.clone();
        writes.ends.push(End { uid: row.uid, token, life: Some(step.life), state: step.life.state, last });
    } else if step.life != before {
        writes.moved.insert(row.uid, row.clone());
    }
    match record {
        Some(record) if is_late => writes.late.push((row.uid, record)),
        Some(record) if !step.life.state.is_end() => {
            writes.records.push((row.uid, row.created_at.get(), record));
        }
        _ => {}
    }
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

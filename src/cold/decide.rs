//! What one event does to one locked row, without SQL, in three steps: the event for [`Life::step`]
//! ([`prepare`]), the transition, and the writes that follow from it ([`note_writes`]).
//!
//! A timer that is moved to a later moment needs no new pointer while one of it lies in a wheel before that moment
//! ([`pointer_ahead`]): however often it is moved, it leaves no more pointers behind.

use std::collections::{BTreeMap, BTreeSet};

use super::apply::{Applied, ChangeEvent, Edit};
use super::end::End;
use super::places::{PlaceWrites, QueueTerms, Told};
use super::row::{AttemptRecord, TimerRow};
use crate::model::id::{Generation, Uid, Version};
use crate::model::namespace::Salt;
use crate::model::schedule::Skipped;
use crate::model::time::{LAST, UnixMs};
use crate::model::timer::{Answer, AttemptResult, Event, Life, MISSED, State, Step, Token};
use crate::planted::{Defect, Planted};

/// The writes of one transaction of [`super::ColdStore::apply`].
#[derive(Default)]
pub(super) struct Writes {
    /// Timers that changed and are still live, as they are now.
    pub moved: BTreeMap<Uid, TimerRow>,
    /// Those of them whose payload or labels changed.
    pub edited: BTreeSet<Uid>,
    /// Those whose target changed.
    pub retargeted: BTreeSet<Uid>,
    /// Those whose priority changed.
    pub reranked: BTreeSet<Uid>,
    /// Those that left a merged set.
    pub unmerged: BTreeSet<Uid>,
    /// Those whose moment was chosen anew.
    pub respread: BTreeSet<Uid>,
    /// Those that wait for something else than before among the occurrences of their schedule.
    pub judged: BTreeSet<Uid>,
    /// Those for a queue, whose counts may have changed.
    pub seated: BTreeSet<Uid>,
    /// What becomes of places.
    pub places: PlaceWrites,
    /// What happened to places, in order.
    pub told: Vec<Told>,
    /// Timers that end.
    pub ends: Vec<End>,
    /// Attempts that did not end their timer: its uid, when it was registered, the record.
    pub records: Vec<(Uid, i64, AttemptRecord)>,
    /// Results of attempts that are recorded as `unknown` already: their records are amended.
    pub late: Vec<(Uid, AttemptRecord)>,
}

/// A pointer that comes up sooner than this, in milliseconds, may have come up already: claims are made up to a second
/// (`wheel.lead`) ahead.
pub(super) const COMING_UP_MS: i64 = 2000;

/// An event for [`Life::step`], and what is written if it is applied.
struct Prepared {
    event: Event,
    /// The record of the attempt that it reports.
    record: Option<AttemptRecord>,
    /// The changes of the timer's content.
    edit: Option<Edit>,
    /// What its schedule has found of it.
    finding: Option<Finding>,
}

/// What a schedule has found of one of its occurrences.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// It does not fire.
    Skipped(Skipped),
    /// It may fire; with `true` it was missed.
    Cleared(bool),
    /// It waits for another.
    Waits,
}

/// What a decision depends on beside the row and the change.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// The store's time.
    pub now: UnixMs,
    /// The watermark of the row's shard.
    pub watermark: UnixMs,
    pub planted: Planted,
    /// Of the store's own namespace.
    pub salt: &'a Salt,
    /// The queue that the row is for, if a change asks for it ([`ChangeEvent::asks_queue`]).
    pub queue: Option<&'a QueueTerms>,
}

/// Applies a change to a row in memory, adds what has to be written to `writes`, and returns the answer.
pub(super) fn decide(
    row: &mut TimerRow,
    change: &ChangeEvent,
    context: Context<'_>,
    writes: &mut Writes,
) -> Applied {
    row.lost = 0;
    let Context { now, watermark, planted, .. } = context;
    let before = life_before(row.life, change, planted);
    if before.state.is_end() {
        // It was ended by an earlier change of this batch.
        return Applied::NotLive;
    }
    if row.seats.is_some()
        && let Some(applied) = super::places::decide(row, change, context, writes)
    {
        return applied;
    }
    let prepared = match prepare(row, before, change, now, planted) {
        Ok(prepared) => prepared,
        Err(applied) => return applied,
    };
    let step = before.step(prepared.event, now);
    let is_left = matches!(change, ChangeEvent::Cancel) && row.merged.is_some();
    if is_left && planted.is(Defect::CancelledMemberStays) {
        return Applied::Live(Box::new(row.clone()), step.answer);
    }
    if step.answer == Answer::Stale && prepared.record.is_none() {
        return Applied::Live(Box::new(row.clone()), Answer::Stale);
    }
    if step.life != before {
        // A pointer for another receiver would wait for that one's turn.
        let target = prepared.edit.as_ref().and_then(|edit| edit.target.as_ref());
        // So it would with the former priority.
        let is_reranked = prepared.edit.as_ref().is_some_and(|edit| edit.priority.is_some());
        let keeps_place = !is_reranked && target.is_none_or(|target| target.lane(row.namespace) == row.lane);
        // Workers are woken by a pointer of the moment itself.
        let waits = step.life.state != State::Paused && row.seats.is_none();
        let known =
            (keeps_place && waits).then(|| pointer_ahead(row.pointed_at, before, step.life, now, watermark));
        row.pointed_at = known.flatten();
    }
    note_writes(row, before, step, prepared, context, writes);
    Applied::Live(Box::new(row.clone()), row.answer(step.answer))
}

/// The life before the event, as the event sees it: a planted defect falsifies it.
fn life_before(mut life: Life, change: &ChangeEvent, planted: Planted) -> Life {
    if planted.is(Defect::BlindCancel) && matches!(change, ChangeEvent::Cancel) {
        life = Life { state: State::Scheduled, tries: 0, uncertain: false, ..life };
    }
    if planted.is(Defect::ResultWithoutToken) && matches!(change, ChangeEvent::Attempted(..)) {
        life.state = State::Delivering;
    }
    life
}

/// First step: the event. An error is the answer to a change that does not apply to the timer in its present
/// state.
fn prepare(
    row: &TimerRow,
    before: Life,
    change: &ChangeEvent,
    now: UnixMs,
    planted: Planted,
) -> Result<Prepared, Applied> {
    let found = |event, finding| Ok(Prepared { event, record: None, edit: None, finding });
    let plain = |event| found(event, None);
    let stale = || Err(Applied::Live(Box::new(row.clone()), Answer::Stale));
    match change {
        ChangeEvent::Cancel => plain(Event::Cancel),
        ChangeEvent::Fire(if_version) => {
            expected(before, *if_version, now)?;
            plain(Event::Fire)
        }
        ChangeEvent::Shift(by_ms) => {
            let by = |at: UnixMs| at.shifted(*by_ms);
            let spread_from = row.spread.map(|spread| by(spread.from));
            let edit = Edit { due_at: Some(by(before.due_at)), spread_from, ..Edit::default() };
            edit_event(row, before, &edit, now)
        }
        ChangeEvent::Pause(if_version) => {
            let may_change = expected(before, *if_version, now)?;
            match may_change && before.state == State::Paused {
                true => Err(Applied::Same(Box::new(row.clone()))),
                false => plain(Event::Pause),
            }
        }
        ChangeEvent::Resume(if_version) => {
            let may_change = expected(before, *if_version, now)?;
            // What counts is how late it is now, however late it was when it was paused.
            let expire_at = row.policies.expire_at(before.due_at);
            match may_change && before.state != State::Paused {
                true => Err(Applied::Same(Box::new(row.clone()))),
                false => plain(Event::Resume { is_too_late: expire_at.is_some_and(|at| at < now) }),
            }
        }
        ChangeEvent::TooLate(generation)
            if row.expire_at.is_some_and(|at| at < now) && !waits_for_judgement(row, now) =>
        {
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
            Ok(Prepared { event, record: Some(unknown_record(row, now)), edit: None, finding: None })
        }
        ChangeEvent::Discarded(generation) => plain(Event::Discarded { generation: *generation }),
        ChangeEvent::Skipped(generation, why) => {
            found(Event::TooLate { generation: *generation }, Some(Finding::Skipped(*why)))
        }
        ChangeEvent::Cleared(generation, is_missed) => {
            found(Event::Cleared { generation: *generation }, Some(Finding::Cleared(*is_missed)))
        }
        ChangeEvent::Waits(generation) => {
            found(Event::Waits { generation: *generation }, Some(Finding::Waits))
        }
        ChangeEvent::Withdrawn => found(Event::Withdrawn, Some(Finding::Skipped(Skipped::Changed))),
        // Only of a timer for a queue, which it is not any more.
        ChangeEvent::Settle(_) | ChangeEvent::TakeBack(..) | ChangeEvent::Look => stale(),
        ChangeEvent::TooLate(_) | ChangeEvent::ClaimExpired(_) | ChangeEvent::Released(..) => stale(),
        ChangeEvent::Attempted(next, record) => {
            let mut token = Token { generation: Generation(record.generation), attempt: record.attempt };
            if planted.is(Defect::ResultWithoutToken) {
                token = Token { generation: before.generation, attempt: before.attempt };
            }
            let event = Event::Attempted { token, result: record.result, next: *next };
            Ok(Prepared { event, record: Some(record.clone()), edit: None, finding: None })
        }
        ChangeEvent::Edit(wanted) => edit_event(row, before, wanted, now),
    }
}

/// Whether its schedule has to say first whether it was missed: lateness is not asked of one that was.
pub(super) fn waits_for_judgement(row: &TimerRow, now: UnixMs) -> bool {
    row.occurrence.as_ref().and_then(|one| one.judge_after).is_some_and(|at| at <= now)
}

/// The event of a caller's edit. If the timer may be changed at all, an edit for another version, and one that
/// changes nothing, are answered at once.
fn edit_event(row: &TimerRow, before: Life, wanted: &Edit, now: UnixMs) -> Result<Prepared, Applied> {
    let may_change = expected(before, wanted.if_version, now)?;
    let (edit, event) = difference(row, wanted);
    match event {
        None if may_change => Err(Applied::Same(Box::new(row.clone()))),
        event => {
            let event = event.unwrap_or(Event::Relabel);
            Ok(Prepared { event, record: None, edit: Some(edit), finding: None })
        }
    }
}

/// Whether the timer may be changed at all; an error if it may, and has another version than the caller expects.
fn expected(before: Life, if_version: Option<Version>, now: UnixMs) -> Result<bool, Applied> {
    let may_change = before.step(Event::Relabel, now).answer == Answer::Done;
    match if_version {
        Some(version) if may_change && version != before.version => {
            Err(Applied::OtherVersion(before.version))
        }
        _ => Ok(may_change),
    }
}

/// The part of an edit that differs from the row, and the event that makes it; `None` if nothing differs.
fn difference(row: &TimerRow, wanted: &Edit) -> (Edit, Option<Event>) {
    let due_at = wanted.due_at.map(|due_at| if row.minute { due_at.ceil_minute() } else { due_at });
    let due_at = due_at.filter(|due_at| *due_at != row.life.due_at);
    let data = wanted.data.clone().filter(|data| *data != row.data);
    let labels = wanted.labels.clone().filter(|labels| *labels != row.labels);
    let target = wanted.target.clone().filter(|target| *target != row.target);
    let priority = wanted.priority.filter(|priority| *priority != row.priority);
    let seats = row.seats.as_ref();
    let dispatch = wanted.dispatch.clone();
    let dispatch = dispatch.filter(|new| seats.is_none_or(|seats| *new != seats.dispatch));
    let event = match (due_at, &data, &target) {
        (None, None, None) if labels.is_none() && priority.is_none() && dispatch.is_none() => None,
        (None, None, None) if dispatch.is_none() => Some(Event::Relabel),
        _ => Some(Event::Reschedule { due_at: due_at.unwrap_or(row.life.due_at) }),
    };
    let spread_from = wanted.spread_from;
    // What the payload was fitted to is the row's own template.
    let template = None;
    (
        Edit { due_at, data, template, labels, priority, target, dispatch, spread_from, if_version: None },
        event,
    )
}

/// The moment of a pointer that lies in the wheel of a timer that waits, and comes up no later than the timer is to wake
/// now; `None` if no such pointer is known, so that the timer needs one of its own. `pointed_at` is the row's before the
/// change.
fn pointer_ahead(
    pointed_at: Option<UnixMs>,
    before: Life,
    after: Life,
    now: UnixMs,
    watermark: UnixMs,
) -> Option<UnixMs> {
    let own = match before.state {
        // Not a row that was postponed: the sweep finds it.
        State::Scheduled => Some(before.wake_at).filter(|wake_at| *wake_at == before.due_at),
        State::Retrying => Some(before.wake_at),
        _ => return None,
    };
    let at = pointed_at.or(own)?;
    let is_in_wheel = at.get() > now.get() + COMING_UP_MS && at < watermark;
    (is_in_wheel && at <= after.wake_at).then_some(at)
}

/// Third step, after the transition: updates the row, and adds what has to be written.
fn note_writes(
    row: &mut TimerRow,
    before: Life,
    step: Step,
    prepared: Prepared,
    context: Context<'_>,
    writes: &mut Writes,
) {
    let now = context.now;
    let Prepared { event, record, edit, finding } = prepared;
    let is_late = record.as_ref().is_some_and(|record| {
        before.state != State::Delivering
            || (record.generation, record.attempt) != (before.generation.0, before.attempt)
    });
    row.life = step.life;
    let is_resumed = before.state == State::Paused && step.life.state == State::Scheduled;
    if is_resumed {
        // It was judged now; from now on it may be late again.
        row.expire_at = row.policies.expire_at(row.life.due_at.max(now));
    } else if step.life.generation != before.generation {
        row.expire_at = row.policies.expire_at(row.life.due_at);
    }
    note_merging(row, before, step.life, writes);
    let is_anew = is_resumed || step.life.generation != before.generation;
    note_judging(row, is_anew, event, finding, now, writes);
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
        if let Some(priority) = edit.priority {
            writes.reranked.insert(row.uid);
            row.priority = priority;
        }
        if let (Some(from), Some(spread)) = (edit.spread_from, &mut row.spread) {
            writes.respread.insert(row.uid);
            spread.from = from;
        }
        if let Some(target) = edit.target {
            writes.retargeted.insert(row.uid);
            (row.lane, row.target) = (target.lane(row.namespace), target);
            row.merge_key = row.find_merge_key(&context.salt.of(row.namespace));
        }
        super::places::edit(row, edit.dispatch, writes);
    }
    super::places::follow(row, before, now, writes);
    let life = row.life;
    if life.state.is_end() {
        row.ended_at = Some(now);
        // The attempt that ends a timer is recorded in its history row; a late one has a record of its own
        // already.
        row.last = if is_late { None } else { record.clone() };
        let token = Token { generation: before.generation, attempt: before.attempt };
        let last = row.last.clone();
        let acked = row.seats.as_ref().map(|seats| seats.acked);
        let skipped = row.skipped();
        writes.ends.push(End {
            uid: row.uid,
            namespace: row.namespace,
            token,
            life: Some(life),
            state: life.state,
            last,
            acked,
            skipped,
        });
    } else if life != before || writes.seated.contains(&row.uid) || writes.judged.contains(&row.uid) {
        writes.moved.insert(row.uid, row.clone());
    }
    match record {
        Some(record) if is_late => writes.late.push((row.uid, record)),
        Some(record) if !life.state.is_end() => {
            writes.records.push((row.uid, row.created_at.get(), record));
        }
        _ => {}
    }
}

/// What the change means for what an occurrence waits for.
fn note_judging(
    row: &mut TimerRow,
    is_anew: bool,
    event: Event,
    finding: Option<Finding>,
    now: UnixMs,
    writes: &mut Writes,
) {
    let ready = row.life.due_at.max(now);
    let Some(one) = row.occurrence.as_mut().filter(|one| one.nominal.is_some()) else { return };
    match finding {
        Some(Finding::Skipped(why)) => one.skipped = Some(why),
        Some(Finding::Cleared(is_missed)) => {
            one.judge_after = None;
            if is_missed {
                row.expire_at = None;
            }
        }
        Some(Finding::Waits) => one.judge_after = Some(LAST),
        // From its new moment on nobody has to be able to fire it for a while, for it to be missed.
        None if is_anew => one.judge_after = Some(ready.plus(MISSED)),
        None => return,
    }
    if event == Event::Fire {
        // Somebody wants it now, whatever else runs.
        one.turn = None;
    }
    if !row.life.state.is_end() {
        writes.judged.insert(row.uid);
    }
}

/// What the change means for timers that merge with this one.
fn note_merging(row: &mut TimerRow, before: Life, after: Life, writes: &mut Writes) {
    let is_moved = after.generation != before.generation;
    let is_paused = after.state == State::Paused;
    // Others wait for it only while it waits for its due time itself.
    let is_awaited =
        before.state == State::Scheduled && (is_moved || is_paused || after.state == State::Cancelled);
    row.left = row.merge_key.filter(|_| is_awaited);
    // A claim of which nothing was sent has made no set: who is there at the next one decides.
    let is_unsent = before.state == State::Delivering && after.state == State::Scheduled;
    // One that is paused leaves the further attempts of its set, and goes out by itself or in a new one.
    if (is_moved || is_unsent || is_paused) && row.merged.take().is_some() {
        writes.unmerged.insert(row.uid);
    }
}

/// The record of an attempt whose result was not reported in time.
fn unknown_record(row: &TimerRow, now: UnixMs) -> AttemptRecord {
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
        delivery_id: row.merged.as_ref().map(|merged| merged.id.clone()),
        worker: None,
    }
}

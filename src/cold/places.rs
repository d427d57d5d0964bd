//! The places of timers for queues: read and written beside the row of their timer, which is locked first. What an event
//! does to them: [`crate::model::queue::Places`].

use std::collections::{BTreeMap, BTreeSet};

use super::apply::{Applied, ChangeEvent, Settlement};
use super::decide::{Context, Writes, waits_for_judgement};
use super::destinations::Named;
use super::end::End;
use super::row::{AttemptRecord, TimerRow};
use super::sql::{Column, Dialect, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::id::{Generation, Uid};
use crate::model::namespace::Namespace;
use crate::model::policy::Retry;
use crate::model::queue::{Action, Again, Dispatch, Held, LeaseToken, Place, Seats, holder};
use crate::model::subscription::Lifecycle;
use crate::model::time::{Span, UnixMs};
use crate::model::timer::{Answer, AttemptResult, Life, Token};
use crate::planted::{Defect, Planted};

/// For how long a timer that would be too late is not looked at again while its queue is paused, in milliseconds: as long as it
/// is overdue, within these.
const PAUSED_LOOK_MS: (i64, i64) = (30_000, 300_000);

/// For how long one is not looked at again that its schedule has to judge first, in milliseconds.
const JUDGED_LOOK_MS: i64 = 1000;

/// What a queue says of the timers in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QueueTerms {
    /// Nothing is given out.
    pub paused: bool,
    /// How long a lease lasts that does not say.
    pub lease: Option<Span>,
    /// How often, and after which waits, for timers without a `retry` of their own.
    pub retry: Option<Retry>,
}

/// What is written of places.
#[derive(Default)]
pub(super) struct PlaceWrites {
    /// As they are now, with who holds them.
    put: BTreeMap<(Uid, i32), (Place, i64)>,
    /// There are none of these any more.
    gone: BTreeSet<(Uid, i32)>,
    /// Timers that have ended, or are not for a queue any more.
    ended: BTreeSet<Uid>,
}

/// Something that happened to a place, of which events tell.
pub(super) struct Told {
    pub kind: Lifecycle,
    /// The timer as it is then.
    pub row: TimerRow,
    pub place: Place,
    pub action: Option<&'static str>,
    pub result: Option<String>,
    pub at: UnixMs,
}

/// A timer for a queue as it was before a change.
struct Before {
    life: Life,
    seats: Option<Seats>,
    places: Vec<Place>,
}

impl Before {
    fn of(row: &TimerRow) -> Self {
        Self { life: row.life, seats: row.seats.clone(), places: row.places.clone() }
    }
}

/// The `retry` in force: a timer's own goes before its queue's.
fn retry_of(row: &TimerRow, terms: Option<&QueueTerms>) -> Retry {
    row.policies.retry.or(terms.and_then(|terms| terms.retry)).unwrap_or_default()
}

/// How often a place of this timer may be given out.
pub(super) fn again_of(row: &TimerRow, terms: Option<&QueueTerms>) -> Again {
    Again { max_attempts: retry_of(row, terms).attempts, wait_ms: 0 }
}

/// Applies an event of places to a row in memory; `None` if the event is another one.
pub(super) fn decide(
    row: &mut TimerRow,
    change: &ChangeEvent,
    context: Context<'_>,
    writes: &mut Writes,
) -> Option<Applied> {
    let now = context.now;
    let before = Before::of(row);
    let stale = |row: &TimerRow| Some(Applied::Live(Box::new(row.clone()), Answer::Stale));
    let mut records = Vec::new();
    let mut told = Vec::new();
    match change {
        ChangeEvent::Edit(_) if change.leaves_queues() && may_be_done(row, writes) => {
            return Some(Applied::Live(Box::new(row.clone()), Answer::InFlight));
        }
        ChangeEvent::Settle(settlement) => {
            let token = &token_of(settlement, row, context.planted);
            if token.created_at != row.created_at || settlement.lane != row.lane {
                return stale(row);
            }
            let retry = retry_of(row, context.queue);
            let attempt = row.places.iter().find(|place| place.number == token.place);
            let attempt = u32::try_from(attempt.map_or(1, |place| place.attempt)).unwrap_or(1);
            let wait = retry.wait_after(attempt, row.uid.jitter(attempt)).as_millis();
            let wait_ms = i64::try_from(wait).unwrap_or(i64::MAX);
            let again = Again { max_attempts: retry.attempts, wait_ms };
            let Some(place) = row.places()?.settle(token, settlement.action, again, now) else {
                return stale(row);
            };
            let result = match settlement.action {
                Action::Ack => Some(AttemptResult::Ok),
                Action::Retry(_) | Action::Dead => Some(AttemptResult::Failed),
                Action::Extend(_) => None,
            };
            if let Some(result) = result {
                let mut record = record_of(row, &place, result, now);
                record.reply.clone_from(&settlement.result);
                records.push(record);
                told.push((
                    Lifecycle::QueueSettled,
                    place,
                    Some(settlement.action.word()),
                    settlement.result.clone(),
                ));
            }
        }
        ChangeEvent::TakeBack(token, until, held) => {
            if token.created_at != row.created_at || !row.places()?.take_back(token, *until, *held, now) {
                return stale(row);
            }
        }
        ChangeEvent::Look | ChangeEvent::ClaimExpired(_) | ChangeEvent::TooLate(_) => {
            let again = again_of(row, context.queue);
            let lost = row.places()?.expire(again, now);
            row.lost = lost.len() as u64;
            for place in lost {
                let mut record = record_of(row, &place, AttemptResult::Unknown, now);
                record.detail = Some("its lease ended; the worker may have done it".into());
                records.push(record);
                told.push((Lifecycle::QueueLeaseLost, place, None, None));
            }
            let is_paused = context.queue.is_some_and(|queue| queue.paused);
            let is_judged_first = waits_for_judgement(row, now);
            let mut places = row.places()?;
            match places.is_late(now) {
                // Its schedule says first whether it was missed.
                true if is_judged_first => {
                    places.settle_state(now);
                    places.life.wake_at = now.shifted(JUDGED_LOOK_MS);
                }
                // That is judged at the resume.
                true if is_paused => {
                    places.settle_state(now);
                    let (least, most) = PAUSED_LOOK_MS;
                    let late_ms = now.get() - places.life.due_at.get();
                    places.life.wake_at = now.shifted(late_ms.clamp(least, most));
                }
                true => places.give_up_fresh(now),
                false => places.settle_state(now),
            }
        }
        _ => return None,
    }
    let told = told.into_iter().map(|(kind, place, action, result)| Told {
        kind,
        row: row.clone(),
        place,
        action,
        result,
        at: now,
    });
    writes.told.extend(told);
    note(row, &before, writes);
    let created_at = row.created_at.get();
    if row.life.state.is_end() {
        row.ended_at = Some(now);
        row.last = records.pop();
        let token = Token { generation: before.life.generation, attempt: before.life.attempt };
        writes.ends.push(End {
            uid: row.uid,
            namespace: row.namespace,
            token,
            life: Some(row.life),
            state: row.life.state,
            last: row.last.clone(),
            acked: row.seats.as_ref().map(|seats| seats.acked),
            skipped: None,
        });
    } else if row.life != before.life || writes.seated.contains(&row.uid) {
        writes.moved.insert(row.uid, row.clone());
    }
    writes.records.extend(records.into_iter().map(|record| (row.uid, created_at, record)));
    Some(Applied::Live(Box::new(row.clone()), Answer::Done))
}

/// Whether a worker has done this timer, or may have: also by a change of this very batch.
fn may_be_done(row: &TimerRow, writes: &Writes) -> bool {
    let now =
        |(uid, _, record): &(Uid, i64, AttemptRecord)| *uid == row.uid && !record.result.surely_failed();
    row.may_be_done || writes.records.iter().any(now)
}

/// The token of a settlement, as the event sees it: a planted defect falsifies it.
fn token_of(settlement: &Settlement, row: &TimerRow, planted: Planted) -> LeaseToken {
    let token = settlement.token;
    let now = row.places.iter().find(|place| place.number == token.place);
    match now.filter(|_| planted.is(Defect::SettledByAnyToken)) {
        Some(place) => LeaseToken { giving: place.giving, given_at: place.given_at, ..token },
        None => token,
    }
}

/// The record of what a worker had.
fn record_of(row: &TimerRow, place: &Place, result: AttemptResult, now: UnixMs) -> AttemptRecord {
    AttemptRecord {
        generation: place.generation.0,
        attempt: place.giving,
        started_at: place.given_at.get(),
        ended_at: now.get(),
        result,
        status: None,
        reply: None,
        detail: None,
        node: row.node.clone().unwrap_or_default(),
        delivery_id: (place.number > 0).then(|| place.delivery_id(row.uid, row.created_at)),
        worker: Some(place.worker.clone()),
    }
}

/// A caller's edit: how it is given out, now that its target is what it is.
pub(super) fn edit(row: &mut TimerRow, dispatch: Option<Dispatch>, writes: &mut Writes) {
    let is_for_queue = row.target.queue().is_some();
    match (&mut row.seats, is_for_queue) {
        (None, false) => return,
        (Some(_), false) => {
            (row.seats, row.places) = (None, Vec::new());
            writes.places.ended.insert(row.uid);
        }
        (Some(seats), true) => seats.dispatch = dispatch.unwrap_or_else(|| seats.dispatch.clone()),
        (None, true) => row.seats = Some(Seats::new(dispatch.unwrap_or_default(), row.life.due_at)),
    }
    writes.seated.insert(row.uid);
}

/// Places after an event of any timer: a new generation is given out anew, and what may be given out follows from the state.
pub(super) fn follow(row: &mut TimerRow, before: Life, now: UnixMs, writes: &mut Writes) {
    if row.seats.is_none() {
        return;
    }
    let was = Before::of(row);
    let is_new = row.life.generation != before.generation;
    if let Some(mut places) = row.places() {
        match is_new {
            true => places.start_anew(now),
            false => places.settle_state(now),
        }
    }
    note(row, &was, writes);
}

/// Notes what differs, to be written.
fn note(row: &TimerRow, before: &Before, writes: &mut Writes) {
    if row.life.state.is_end() {
        writes.places.ended.insert(row.uid);
        return;
    }
    if row.seats != before.seats {
        writes.seated.insert(row.uid);
    }
    let Some(queue) = row.target.queue() else { return };
    let had = |number: i32| before.places.iter().find(|place| place.number == number);
    for place in row.places.iter().filter(|place| had(place.number) != Some(place)) {
        let key = (row.uid, place.number);
        writes.places.gone.remove(&key);
        writes.places.put.insert(key, (place.clone(), holder(row.namespace, queue, &place.worker)));
    }
    let has = |number: i32| row.places.iter().any(|place| place.number == number);
    for place in before.places.iter().filter(|place| !has(place.number)) {
        let key = (row.uid, place.number);
        writes.places.put.remove(&key);
        writes.places.gone.insert(key);
    }
}

impl PlaceWrites {
    /// A place of this queue as it is now.
    pub fn put(&mut self, uid: Uid, (namespace, queue): (Namespace, &str), place: Place) {
        let holder = holder(namespace, queue, &place.worker);
        self.put.insert((uid, place.number), (place, holder));
    }

    /// What is written of timers that do not end here: their places leave with them ([`ColdStore::end`]). Whether any has some.
    pub fn leave_to_end(&mut self, ends: &[End]) -> bool {
        let Self { put, ended, .. } = self;
        put.retain(|(uid, _), _| !ended.contains(uid));
        let all = ended.len();
        for end in ends {
            ended.remove(&end.uid);
        }
        ended.len() < all
    }

    /// A batch of the places that are put, and the statement that writes it.
    pub fn put_statement(&self, s: &mut Statement, name: &'static str) -> (String, String) {
        let int = |pick: fn(&Place, i64) -> i64| {
            Column::Int(self.put.values().map(|(place, holder)| pick(place, *holder)).collect())
        };
        let batch = s.batch(
            name,
            vec![
                ("b_uid", Column::Uuid(self.put.keys().map(|(uid, _)| uid.0).collect())),
                ("b_number", int(|place, _| place.number.into())),
                ("b_generation", int(|place, _| place.generation.0.into())),
                ("b_attempt", int(|place, _| place.attempt.into())),
                ("b_giving", int(|place, _| place.giving.into())),
                ("b_holder", int(|_, holder| holder)),
                (
                    "b_worker",
                    Column::Text(self.put.values().map(|(place, _)| place.worker.clone()).collect()),
                ),
                ("b_held", int(|place, _| place.held.code().into())),
                ("b_until", int(|place, _| place.until.get())),
                ("b_given", int(|place, _| place.given_at.get())),
            ],
        );
        let put = format!(
            "INSERT INTO places ({PLACE}, holder) SELECT b_uid, b_number, b_generation, b_attempt, b_giving, \
             b_worker, b_held, b_until, b_given, b_holder FROM {name} WHERE true ON CONFLICT (uid, number) DO UPDATE SET \
             generation = excluded.generation, attempt = excluded.attempt, giving = excluded.giving, \
             worker = excluded.worker, held = excluded.held, until_at = excluded.until_at, \
             given_at = excluded.given_at, holder = excluded.holder"
        );
        (batch, put)
    }
}

/// The terms of the queue that a timer is for.
pub(super) fn terms_of<'a>(
    queues: &'a BTreeMap<Named, QueueTerms>,
    row: &TimerRow,
) -> Option<&'a QueueTerms> {
    queues.get(&(row.namespace, row.target.queue()?.to_owned()))
}

impl ColdStore {
    /// Reads the places of these timers, whose rows are locked; returns the terms of their queues if they are wanted.
    pub(super) async fn read_places(
        &self,
        tx: &mut Tx,
        rows: Vec<&mut TimerRow>,
        with_terms: bool,
    ) -> Result<BTreeMap<Named, QueueTerms>, Error> {
        if rows.is_empty() {
            return Ok(BTreeMap::new());
        }
        let queue = |row: &&mut TimerRow| Some((row.namespace, row.target.queue()?.to_owned()));
        let names: BTreeSet<Named> = rows.iter().filter_map(queue).collect();
        let had: Vec<Uid> = rows.iter().filter(|row| row.life.tries > 0).map(|row| row.uid).collect();
        let mut places = self.places_of(tx, had).await?;
        for row in rows {
            row.places = places.remove(&row.uid).unwrap_or_default();
        }
        match with_terms {
            true => self.queue_terms(tx, &names).await,
            false => Ok(BTreeMap::new()),
        }
    }

    /// The places of these timers, by timer.
    pub(super) async fn places_of(
        &self,
        tx: &mut Tx,
        uids: Vec<Uid>,
    ) -> Result<BTreeMap<Uid, Vec<Place>>, Error> {
        let mut places: BTreeMap<Uid, Vec<Place>> = BTreeMap::new();
        if uids.is_empty() {
            return Ok(places);
        }
        let mut s = Statement::new(self.dialect(), "apply_places");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let is_it = self.dialect().keyed("uid", "b_uid");
        s.push(&format!("WITH {batch} SELECT {PLACE} FROM b CROSS JOIN places WHERE {is_it}"));
        for row in tx.fetch(s).await? {
            let (uid, place) = place_of(&row)?;
            places.entry(uid).or_default().push(place);
        }
        places.values_mut().for_each(|places| places.sort_by_key(|place| place.number));
        Ok(places)
    }

    /// Removes all places of these timers.
    pub(super) async fn remove_places(&self, tx: &mut Tx, uids: Vec<Uid>) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "apply_places_ended");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let is_its = self.dialect().among("uid", "SELECT b_uid FROM b");
        s.push(&format!("WITH {batch} DELETE FROM places WHERE {is_its}"));
        tx.execute(s).await.map(drop)
    }

    /// Writes what has become of places.
    pub(super) async fn write_places(&self, tx: &mut Tx, writes: PlaceWrites) -> Result<(), Error> {
        let PlaceWrites { put, gone, ended } = &writes;
        if !ended.is_empty() {
            self.remove_places(tx, ended.iter().copied().collect()).await?;
        }
        if !gone.is_empty() {
            let mut s = Statement::new(self.dialect(), "apply_places_gone");
            let batch = s.batch(
                "b",
                vec![
                    ("b_uid", Column::Uuid(gone.iter().map(|(uid, _)| uid.0).collect())),
                    ("b_number", Column::Int(gone.iter().map(|(_, number)| i64::from(*number)).collect())),
                ],
            );
            s.push(&match self.dialect() {
                Dialect::Postgres => {
                    let is_it = self.dialect().keyed("uid", "b_uid");
                    format!("WITH {batch} DELETE FROM places USING b WHERE {is_it} AND COALESCE(number = b_number, false)")
                }
                Dialect::Sqlite => {
                    format!("WITH {batch} DELETE FROM places WHERE (uid, number) IN (SELECT b_uid, b_number FROM b)")
                }
            });
            tx.execute(s).await?;
        }
        if put.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "apply_places_put");
        let (batch, put) = writes.put_statement(&mut s, "b");
        s.push(&format!("WITH {batch} {put}"));
        tx.execute(s).await.map(drop)
    }
}

/// The columns of a place, in order, its timer first.
pub(super) const PLACE: &str = "uid, number, generation, attempt, giving, worker, held, until_at, given_at";

/// Reads a place from a row that begins with [`PLACE`].
pub(super) fn place_of(row: &super::sql::Row) -> Result<(Uid, Place), Error> {
    let held = Held::from_code(row.get(6)?).ok_or_else(|| Error::Corrupt("a place's state".into()))?;
    let place = Place {
        number: row.get(1)?,
        generation: Generation(row.get(2)?),
        attempt: row.get(3)?,
        giving: row.get(4)?,
        worker: row.get(5)?,
        held,
        until: UnixMs::new(row.get(7)?),
        given_at: UnixMs::new(row.get(8)?),
    };
    Ok((Uid(row.get(0)?), place))
}

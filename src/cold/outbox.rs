//! The outbox: lifecycle events that are written in the transaction which makes them true, and wait to be sent.
//!
//! A row is one event for one subscription. Its `seq` is given while the timer's row is locked (or is being inserted), so
//! those of one timer are in order: who changes the timer next waits for the commit, and gets a higher one. Between timers
//! a lower `seq` may show later. How they are read and removed: [`super::backlog`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use super::apply::{Applied, Change};
use super::columns::TimerColumn;
use super::places::Told as PlaceHappened;
use super::row::{AttemptRecord, TimerRow};
use super::schedules::{ScheduleRow, Skip};
use super::sql::{Column, Row, Statement, Tx};
use super::subscriptions::SubscriptionSet;
use super::{ColdStore, Error};
use crate::model::id::{Generation, Uid, shard_of};
use crate::model::merge::Merged;
use crate::model::namespace::Namespace;
use crate::model::subscription::{Lifecycle, PlaceTold, ScheduleSubject, Subject, Subscription, event_id};
use crate::model::target::{Kind, Target};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, AttemptResult, State};
use crate::planted::Defect;

/// An event that waits to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Its shard: that of its timer.
    pub shard: i32,
    /// Its place in the order of its timer.
    pub seq: i64,
    /// Its number, the same for all tries.
    pub id: Uuid,
    /// Its kind, as a number.
    pub kind: i16,
    /// The timer's id, or the destination's name.
    pub subject: String,
    /// When it became true.
    pub at: UnixMs,
    /// What is sent: JSON.
    pub body: Vec<u8>,
}

/// Something that happened to a timer.
pub(super) struct Happened<'a> {
    pub kind: Lifecycle,
    pub shard: i32,
    pub version: i32,
    pub subject: Subject<'a>,
    /// The place of it that it happened to.
    pub place: Option<PlaceTold<'a>>,
    pub at: UnixMs,
}

impl<'a> Happened<'a> {
    /// It happened to this timer, which is as it was left.
    fn to(row: &'a TimerRow, kind: Lifecycle, at: UnixMs) -> Self {
        let subject = Subject {
            namespace: row.namespace,
            uid: row.uid,
            id: &row.id,
            owner: row.owner.as_deref(),
            state: row.life.state,
            due_at: row.life.due_at,
            generation: row.life.generation,
            attempt: row.life.attempt,
            lane: row.lane,
            is_for_destination: matches!(row.target, Target::Destination(_)),
            queue: row.target.queue(),
            labels: row.labels.as_deref(),
            data: row.data.as_deref(),
            created_at: row.created_at,
            result: row.last.as_ref().map(|last| last.result),
            set: row.merged.as_ref().map(|merged| merged.id.as_str()),
            schedule: row.schedule(),
            nominal: row.nominal(),
            skipped: row.skipped(),
        };
        Self { kind, shard: row.shard, version: row.life.version.0, subject, place: None, at }
    }

    /// What happened to places of timers for queues.
    pub fn of_places(told: &'a [PlaceHappened]) -> impl Iterator<Item = Self> {
        told.iter().map(|told| {
            let happened = Self::to(&told.row, told.kind, told.at);
            let place = PlaceTold {
                place: &told.place,
                delivery_id: told.place.delivery_id(told.row.uid, told.row.created_at),
                action: told.action,
                result: told.result.as_deref(),
            };
            Self { place: Some(place), ..happened }
        })
    }

    /// These timers were registered.
    pub fn registered(rows: impl Iterator<Item = &'a TimerRow>) -> impl Iterator<Item = Self> {
        rows.map(|row| Self::to(row, Lifecycle::TimerRegistered, row.created_at))
    }

    /// These changes were answered so, at that moment.
    pub fn applied(changes: &'a [Change], answers: &'a [Applied], now: UnixMs) -> impl Iterator<Item = Self> {
        let of = move |(change, answer): (&'a Change, &'a Applied)| {
            let Applied::Live(row, answer) = answer else { return [None, None] };
            let kind = match Lifecycle::of_end(row.life.state) {
                // What has ended before is not live.
                Some(end) => end,
                None if change.event.is_callers() && *answer == Answer::Done => Lifecycle::TimerChanged,
                None => return [None, None],
            };
            let is_skipped = row.skipped().is_some_and(|why| why.word().is_some());
            let skipped = is_skipped.then(|| Self::to(row, Lifecycle::ScheduleSkipped, now));
            [skipped, Some(Self::to(row, kind, now))]
        };
        changes.iter().zip(answers).flat_map(of).flatten()
    }
}

/// The columns of a timer that an event of its end tells, from the row that is removed; its payload follows them.
const ENDED: &[TimerColumn] = &[
    TimerColumn::Uid,
    TimerColumn::Id,
    TimerColumn::Owner,
    TimerColumn::Shard,
    TimerColumn::DueAt,
    TimerColumn::Generation,
    TimerColumn::Attempt,
    TimerColumn::Version,
    TimerColumn::Lane,
    TimerColumn::Kind,
    TimerColumn::Labels,
    TimerColumn::CreatedAt,
    TimerColumn::Merged,
    TimerColumn::Schedule,
    TimerColumn::Nominal,
    TimerColumn::Namespace,
];

/// A timer that was delivered, as the statement that ended it returned it.
pub(super) struct Delivered {
    uid: Uid,
    namespace: Namespace,
    id: String,
    owner: Option<String>,
    shard: i32,
    due_at: UnixMs,
    generation: Generation,
    attempt: i32,
    version: i32,
    lane: i64,
    kind: Option<i16>,
    labels: Option<String>,
    created_at: UnixMs,
    merged: Option<Merged>,
    schedule: Option<String>,
    nominal: Option<UnixMs>,
    data: Option<Vec<u8>>,
}

impl Delivered {
    /// The select list for [`Delivered::read`], or only the uid if nobody asks for such events.
    pub fn columns(set: &SubscriptionSet) -> String {
        let mut asking = set.all.iter().filter(|one| one.asks_for(Lifecycle::TimerDelivered)).peekable();
        if asking.peek().is_none() {
            return TimerColumn::Uid.name().to_owned();
        }
        let data = if asking.any(Subscription::includes_data) { TimerColumn::Data.name() } else { "NULL" };
        format!("{}, {data}", super::columns::list(ENDED))
    }

    /// Reads a row that begins with [`ENDED`].
    pub fn read(row: &Row) -> Result<Self, Error> {
        let (uid, id) = (Uid(row.get(0)?), row.get::<String>(1)?);
        let namespace = Namespace::of_stored(row.get(15)?);
        Ok(Self {
            uid,
            namespace,
            id: super::row::id_of(uid, namespace, id),
            owner: row.get(2)?,
            shard: row.get(3)?,
            due_at: UnixMs::new(row.get(4)?),
            generation: Generation(row.get(5)?),
            attempt: row.get(6)?,
            version: row.get(7)?,
            lane: row.get(8)?,
            kind: row.get(9)?,
            labels: row.get(10)?,
            created_at: UnixMs::new(row.get(11)?),
            merged: super::row::merged_of(row.get(12)?)?,
            schedule: row.get::<Option<String>>(13)?.map(|id| namespace.plain(id)),
            nominal: row.get::<Option<i64>>(14)?.map(UnixMs::new),
            data: row.get(16)?,
        })
    }

    fn happened(&self, at: UnixMs) -> Happened<'_> {
        let subject = Subject {
            namespace: self.namespace,
            uid: self.uid,
            id: &self.id,
            owner: self.owner.as_deref(),
            state: State::Delivered,
            due_at: self.due_at,
            generation: self.generation,
            attempt: self.attempt,
            lane: self.lane,
            is_for_destination: self.kind == Some(Kind::Destination.code()),
            // Ends of this kind are of timers that were sent.
            queue: None,
            labels: self.labels.as_deref(),
            data: self.data.as_deref(),
            created_at: self.created_at,
            result: Some(AttemptResult::Ok),
            set: self.merged.as_ref().map(|merged| merged.id.as_str()),
            schedule: self.schedule.as_deref(),
            nominal: self.nominal,
            skipped: None,
        };
        let kind = Lifecycle::TimerDelivered;
        Happened { kind, shard: self.shard, version: self.version, subject, place: None, at }
    }
}

/// What the first part of the outbox's key holds in every row: a subscription has a number of its own in the whole store.
pub(super) const EVERY: i64 = 0;

/// With so many bytes a statement writes what there is: each event carries its timer's payload once for each
/// subscription that asks for it.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Rows of the outbox that are to be written, column by column. What [`ColdStore::tell`] returns is written already, and
/// empty, unless a defect is planted.
#[derive(Default)]
pub(super) struct Batch {
    subscriptions: Vec<i64>,
    shards: Vec<i64>,
    ids: Vec<Uuid>,
    kinds: Vec<i64>,
    subjects: Vec<String>,
    at: Vec<i64>,
    bodies: Vec<Vec<u8>>,
    /// Of all bodies.
    bytes: usize,
}

impl Batch {
    fn push(&mut self, one: &Subscription, event: EventRow) {
        self.subscriptions.push(one.id);
        self.shards.push(event.shard.into());
        self.ids.push(event.id);
        self.kinds.push(event.kind.into());
        self.subjects.push(event.subject);
        self.at.push(event.at.get());
        self.bytes += event.body.len();
        self.bodies.push(event.body);
    }

    fn add(&mut self, one: &Subscription, happened: &Happened<'_>) {
        let Happened { kind, shard, version, subject, place, at } = happened;
        let mut numbers = [subject.generation.0.to_be_bytes(), version.to_be_bytes()].concat();
        // Each giving-out of a timer happens once, and so does its settlement, or the end of its lease.
        numbers.extend(place.iter().flat_map(|told| told.place.giving.to_be_bytes()));
        let of: [&[u8]; 3] = [subject.uid.0.as_bytes(), &subject.created_at.get().to_be_bytes(), &numbers];
        self.push(
            one,
            EventRow {
                shard: *shard,
                seq: 0,
                id: event_id(one.id, *kind, &of, *at),
                kind: kind.code(),
                subject: subject.id.to_owned(),
                at: *at,
                body: subject.body(place.as_ref(), *at, one.includes_data()),
            },
        );
    }
}

/// How many events this process has written.
#[derive(Debug, Default)]
pub(super) struct Told {
    all: AtomicU64,
    /// By subscription.
    of: Mutex<HashMap<i64, u64>>,
}

impl Told {
    fn of(&self) -> MutexGuard<'_, HashMap<i64, u64>> {
        // A panic while the lock is held leaves plain numbers.
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, count: u64, subscriptions: Vec<i64>) {
        let mut of = self.of();
        subscriptions.into_iter().for_each(|one| *of.entry(one).or_default() += 1);
        drop(of);
        self.all.fetch_add(count, Ordering::Relaxed);
    }
}

impl ColdStore {
    /// Writes what happened for those who asked for it. The last of the transaction's statements but for the counts.
    pub(super) async fn tell(
        &self,
        tx: &mut Tx,
        set: &SubscriptionSet,
        happened: impl Iterator<Item = Happened<'_>>,
    ) -> Result<Batch, Error> {
        if set.all.is_empty() {
            return Ok(Batch::default());
        }
        let mut batch = Batch::default();
        for event in happened {
            for one in
                set.of(event.subject.namespace).iter().filter(|one| one.wants(event.kind, &event.subject))
            {
                batch.add(one, &event);
                if batch.bytes >= MOST_BYTES && !self.planted.is(Defect::EventAfterCommit) {
                    self.write_events(tx, std::mem::take(&mut batch)).await?;
                }
            }
        }
        if self.planted.is(Defect::EventAfterCommit) {
            return Ok(batch);
        }
        self.write_events(tx, batch).await.map(|()| Batch::default())
    }

    /// With that defect, writes after the commit what was to be told.
    pub(super) async fn tell_late(&self, late: Batch) -> Result<(), Error> {
        if late.ids.is_empty() {
            return Ok(());
        }
        let mut tx = self.pool.begin().await?;
        self.write_events(&mut tx, late).await?;
        tx.commit().await
    }

    /// The same for timers that were delivered.
    pub(super) async fn tell_delivered(
        &self,
        tx: &mut Tx,
        set: &SubscriptionSet,
        ended: &[Row],
        done: &[(Uid, AttemptRecord)],
    ) -> Result<Batch, Error> {
        if !set.asks_for(Lifecycle::TimerDelivered) {
            return Ok(Batch::default());
        }
        let ended: Vec<Delivered> = ended.iter().map(Delivered::read).collect::<Result<_, Error>>()?;
        let at: HashMap<Uid, i64> = done.iter().map(|(uid, record)| (*uid, record.ended_at)).collect();
        let at = |row: &Delivered| UnixMs::new(at.get(&row.uid).copied().unwrap_or_default());
        self.tell(tx, set, ended.iter().map(|row| row.happened(at(row)))).await
    }

    async fn write_events(&self, tx: &mut Tx, batch: Batch) -> Result<(), Error> {
        let count = batch.ids.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let of = batch.subscriptions.clone();
        let mut s = Statement::new(self.dialect(), "outbox_write");
        let rows = s.batch(
            "b",
            vec![
                ("b_subscription", Column::Int(batch.subscriptions)),
                ("b_shard", Column::Int(batch.shards)),
                ("b_id", Column::Uuid(batch.ids)),
                ("b_kind", Column::Int(batch.kinds)),
                ("b_subject", Column::Text(batch.subjects)),
                ("b_at", Column::Int(batch.at)),
                ("b_body", Column::Bytes(batch.bodies)),
            ],
        );
        s.push(&format!(
            "WITH {rows} INSERT INTO outbox (namespace, subscription, shard, id, kind, subject, at, body) \
             SELECT {EVERY}, b_subscription, b_shard, b_id, b_kind, b_subject, b_at, b_body FROM b"
        ));
        tx.execute(s).await?;
        self.told.add(count, of);
        Ok(())
    }

    /// How many events this process has written; the last ones may be committed a moment later.
    pub fn told(&self) -> u64 {
        self.told.all.load(Ordering::Relaxed)
    }

    /// How many of these were for this subscription.
    pub fn told_to(&self, subscription: i64) -> u64 {
        self.told.of().get(&subscription).copied().unwrap_or(0)
    }

    /// Writes that a destination is failing, or has recovered, for those who asked for it.
    pub async fn tell_destination(
        &self,
        kind: Lifecycle,
        (namespace, name): (Namespace, &str),
        node: &str,
        detail: Option<&str>,
    ) -> Result<(), Error> {
        let set = self.subscription_set();
        if !set.asks_for(kind) {
            return Ok(());
        }
        drop(set);
        let mut tx = self.pool.begin().await?;
        let set = self.listeners(&mut tx).await?;
        let at = self.clock.now();
        let mut batch = Batch::default();
        for one in set.of(namespace).iter().filter(|one| one.wants_destination(kind, name)) {
            let state = if kind == Lifecycle::DestinationFailing { "failing" } else { "ok" };
            let body = serde_json::json!({
                "destination": name, "state": state, "node": node, "detail": detail, "at": at.rfc3339(),
            });
            batch.push(one, self.other_event(one, kind, name, at, &body));
        }
        self.write_events(&mut tx, batch).await?;
        tx.commit().await.map_err(Error::at_commit)
    }

    /// Writes that ranges of nominal times became no occurrence, for those who asked for it.
    pub(super) async fn tell_skips(
        &self,
        tx: &mut Tx,
        set: &SubscriptionSet,
        skips: &[(&ScheduleRow, Skip)],
        at: UnixMs,
    ) -> Result<(), Error> {
        let kind = Lifecycle::ScheduleSkipped;
        if skips.is_empty() || !set.asks_for(kind) {
            return Ok(());
        }
        let mut batch = Batch::default();
        for (row, skip) in skips {
            let target = row.content.target();
            let subject = ScheduleSubject {
                namespace: row.namespace,
                id: &row.id,
                owner: row.content.owner(),
                lane: target.lane(row.namespace),
                is_for_destination: target.destination().is_some(),
                labels: row.content.labels(),
            };
            let body = subject.body(skip.reason, (skip.first, skip.last, skip.count), at);
            for one in set.of(row.namespace).iter().filter(|one| one.wants_schedule(kind, &subject)) {
                batch.push(one, self.other_event(one, kind, &row.id, at, &body));
            }
        }
        self.write_events(tx, batch).await
    }

    /// An event that is not of a timer.
    fn other_event(
        &self,
        one: &Subscription,
        kind: Lifecycle,
        subject: &str,
        at: UnixMs,
        body: &serde_json::Value,
    ) -> EventRow {
        EventRow {
            shard: shard_of(&self.own.of(one.namespace), subject, self.shards),
            seq: 0,
            // Of two such events within a millisecond each has a number of its own.
            id: event_id(one.id, kind, &[subject.as_bytes(), Uuid::now_v7().as_bytes()], at),
            kind: kind.code(),
            subject: subject.to_owned(),
            at,
            body: body.to_string().into_bytes(),
        }
    }

    /// Tells a subscription how many of its events were dropped ([`told_dropped`]).
    pub(super) async fn tell_dropped(
        &self,
        tx: &mut Tx,
        one: &Subscription,
        dropped: u64,
    ) -> Result<(), Error> {
        let (at, kind) = (self.clock.now(), Lifecycle::SubscriptionDropped);
        let body = serde_json::json!({"subscription": one.name, DROPPED: dropped, "at": at.rfc3339()});
        let mut batch = Batch::default();
        batch.push(one, self.other_event(one, kind, &one.name, at, &body));
        self.write_events(tx, batch).await
    }
}

/// The field that says how many events were dropped.
const DROPPED: &str = "dropped";

/// How many events were dropped, by the body of the event that tells it.
pub(super) fn told_dropped(body: &[u8]) -> u64 {
    let body: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    body.and_then(|body| body[DROPPED].as_u64()).unwrap_or(0)
}

//! Changes and ends: every event of a timer's life except its registration and its claim.
//!
//! [`ColdStore::apply`] locks the rows, asks [`super::decide`] what each event does, and writes the result,
//! many timers in one transaction. [`ColdStore::finish_delivered`] is the fast path for the common event, the
//! success of the attempt under way: one statement, matched by the attempt's token.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::columns::{
    self, AFTER, ALL, EDITED, JUDGED, LIFE, MERGED, PRIORITY, SEATS, SPREAD_FROM, TARGET, TimerColumn,
};
use super::decide::{Context, Writes, decide};
use super::destinations::Named;
use super::end::Rows;
use super::outbox::{Batch, Happened};
use super::places::{PlaceWrites, terms_of};
use super::row::{AttemptRecord, TimerRow};
use super::sql::{Column, Dialect, Statement, Tx};
use super::totals::Counts;
use super::{ColdStore, Error};
use crate::model::id::{Epoch, Generation, Uid, Version};
use crate::model::merge::MergeKey;
use crate::model::namespace::Namespace;
use crate::model::priority::Priority;
use crate::model::queue::{Action, Dispatch, Held, LeaseToken};
use crate::model::schedule::Skipped;
use crate::model::target::Target;
use crate::model::template::{TemplateHash, TemplateUse};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, AttemptResult, Next, Token};

/// The most events one transaction applies.
pub const MAX_BATCH: usize = 500;

/// One event of one timer.
#[derive(Debug, Clone)]
pub struct Change {
    /// The timer.
    pub uid: Uid,
    /// The namespace of the caller who wants it: a timer of another one is none to him. `None`: the service itself.
    pub caller: Option<Namespace>,
    /// The event.
    pub event: ChangeEvent,
}

/// The events of [`crate::model::timer::Life::step`], with the values that are written beside them.
#[derive(Debug, Clone)]
pub enum ChangeEvent {
    /// Its caller cancels it.
    Cancel,
    /// Its caller changes it.
    Edit(Edit),
    /// Its caller wants it to fire now; with a version, only if the timer has it.
    Fire(Option<Version>),
    /// An operation moves its due time by so many milliseconds.
    Shift(i64),
    /// Its caller keeps it from firing; with a version, only if the timer has it.
    Pause(Option<Version>),
    /// Its caller lets it fire again; with a version, only if the timer has it.
    Resume(Option<Version>),
    /// An attempt ended: what follows if the receiver did not accept it, and its record.
    Attempted(Next, AttemptRecord),
    /// Its claim expired.
    ClaimExpired(Token),
    /// The node that claimed it under this epoch releases the claim unsent.
    Released(Token, Epoch),
    /// It was found overdue by more than its grace.
    TooLate(Generation),
    /// It was held since the store was restored, and an operator did not accept it.
    Discarded(Generation),
    /// Its schedule skips it.
    Skipped(Generation, Skipped),
    /// Its schedule lets it fire. With `true` it was missed, and is not asked how late it is.
    Cleared(Generation, bool),
    /// It waits for another occurrence of its schedule.
    Waits(Generation),
    /// Its schedule was changed, or removed.
    Withdrawn,
    /// A worker settles a place of it.
    Settle(Settlement),
    /// The answer that would have given a worker this place could not be written. If it had been given out before, it was so.
    TakeBack(LeaseToken, UnixMs, Held),
    /// Its queue is looked at: leases may have ended, places may be too late, and what is ready needs no look any more.
    Look,
}

/// What a worker says of a place that it has.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The place.
    pub token: LeaseToken,
    /// The lane of the queue that it was settled in: a token of another queue is none.
    pub lane: i64,
    /// What becomes of it.
    pub action: Action,
    /// What the worker says: JSON.
    pub result: Option<String>,
}

impl ChangeEvent {
    /// Whether it is a caller's change that leaves the timer live.
    pub(super) const fn is_callers(&self) -> bool {
        matches!(self, Self::Edit(_) | Self::Fire(_) | Self::Shift(_) | Self::Pause(_) | Self::Resume(_))
    }

    /// The target that it gives the timer.
    const fn target(&self) -> Option<&Target> {
        match self {
            Self::Edit(edit) => edit.target.as_ref(),
            _ => None,
        }
    }

    /// Whether it gives the timer a target that is no queue.
    pub(super) fn leaves_queues(&self) -> bool {
        self.target().is_some_and(|target| target.queue().is_none())
    }

    /// Whether what becomes of a timer of a queue depends on what that queue says.
    pub(super) const fn asks_queue(&self) -> bool {
        match self {
            Self::Settle(settlement) => matches!(settlement.action, Action::Retry(_)),
            Self::Look | Self::ClaimExpired(_) | Self::TooLate(_) => true,
            _ => false,
        }
    }

    /// The template that its new payload was fitted to.
    const fn template(&self) -> Option<&TemplateUse> {
        match self {
            Self::Edit(edit) => edit.template.as_ref(),
            _ => None,
        }
    }

    /// Whether it gives this timer a payload that does not come from the timer's template; then that template's name, if it
    /// has one. `templates` are what those are now that payloads were fitted to.
    fn unfitted(&self, row: &TimerRow, templates: &BTreeMap<Named, TemplateHash>) -> Option<Option<String>> {
        let Self::Edit(Edit { data: Some(_), template: fitted, .. }) = self else { return None };
        let is_fit = match (&row.template, fitted) {
            (None, None) => true,
            (Some(name), Some(TemplateUse { name: to, fitted: Some(hash) })) => {
                name == to && templates.get(&(row.namespace, name.clone())) == Some(hash)
            }
            _ => false,
        };
        (!is_fit).then(|| row.template.clone())
    }
}

/// What a `PATCH` changes; `None` is no change.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    /// The new due time.
    pub due_at: Option<UnixMs>,
    /// The new payload; the inner `None` is `null`.
    pub data: Option<Option<Vec<u8>>>,
    /// The template that the new payload was fitted to.
    pub template: Option<TemplateUse>,
    /// The new labels, all of them; the inner `None` is none.
    pub labels: Option<Option<String>>,
    /// The new priority.
    pub priority: Option<Priority>,
    /// The new target, in place of the former one as a whole.
    pub target: Option<Target>,
    /// How it is given out from now on, if it is for a queue.
    pub dispatch: Option<Dispatch>,
    /// The due time that the caller asked for, where `due_at` was chosen by what is due around it.
    pub spread_from: Option<UnixMs>,
    /// Applied only if the timer has this version.
    pub if_version: Option<Version>,
}

/// The outcome of a change.
#[derive(Debug, Clone)]
pub enum Applied {
    /// The timer was live: its row after the change (it may have ended), and the answer.
    Live(Box<TimerRow>, Answer),
    /// The timer is as the change wants it already: its row. Nothing was written.
    Same(Box<TimerRow>),
    /// `If-Match` named another version; this is the timer's own.
    OtherVersion(Version),
    /// No timer of this uid is live.
    NotLive,
    /// The row cannot be read by this version; nothing was changed.
    Unreadable,
    /// There is no destination of this name, which the change gives; nothing was changed.
    NoDestination(String),
    /// The change does not fit the timer as it is; nothing was changed.
    Unfit(Unfit),
    /// The new payload was not fitted to the timer's template, which has this name, as it is now; or it was fitted to one, and
    /// the timer has none. Nothing was changed.
    Unfitted(Option<String>),
}

/// Why a change does not fit a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It says how the timer is given out, and its target is no queue.
    NoQueue,
    /// It gives a queue to a timer that merges.
    Merges,
}

impl Applied {
    /// What it merged by before the change, if others may have waited for it.
    pub fn left(&self) -> Option<MergeKey> {
        match self {
            Self::Live(row, _) => row.left,
            _ => None,
        }
    }

    /// The row, if the change was made.
    pub fn changed_row(&self) -> Option<&TimerRow> {
        match self {
            Self::Live(row, Answer::Done) => Some(row),
            _ => None,
        }
    }
}

/// What [`ColdStore::apply_within`] did.
pub(super) struct Within {
    /// In the order of the changes.
    pub answers: Vec<Applied>,
    /// Timers that another transaction has locked; their answers have no meaning.
    pub skipped: BTreeSet<Uid>,
    /// To be told after the commit ([`ColdStore::tell_late`]).
    pub late: Batch,
}

/// Whether a change does not fit this timer.
fn unfit(row: &TimerRow, event: &ChangeEvent) -> Option<Unfit> {
    let ChangeEvent::Edit(edit) = event else { return None };
    let is_for_queue = edit.target.as_ref().unwrap_or(&row.target).queue().is_some();
    match () {
        () if edit.dispatch.is_some() && !is_for_queue => Some(Unfit::NoQueue),
        () if is_for_queue && edit.target.is_some() && row.policies.merge.is_some() => Some(Unfit::Merges),
        () => None,
    }
}

/// The pauses, in milliseconds, between rounds that skip timers locked by other transactions. After the last
/// one the timers are locked one by one.
const SKIP_PAUSES_MS: [u64; 6] = [1, 2, 4, 8, 16, 32];

impl ColdStore {
    /// Applies events in order; answers in the order given. Of two events of one timer the second sees the
    /// first.
    ///
    /// A timer that another transaction has locked is skipped and tried again later; at last the remaining ones
    /// are locked one by one, each in a transaction of its own. So a transaction that waits for a row lock
    /// holds no other row lock. This is needed because claims and ends lock rows in the order of their query
    /// plan: a transaction that held some rows and waited for more could deadlock with them. If a transaction
    /// fails, its events and those after it get the error; those before it are applied.
    pub async fn apply(&self, changes: &[Change]) -> Vec<Result<Applied, Error>> {
        self.apply_to(changes, false).await
    }

    /// Like [`ColdStore::apply`], but does not wait for timers that stay locked: their answer is [`Error::Busy`], and they
    /// are not changed.
    pub async fn apply_unlocked(&self, changes: &[Change]) -> Vec<Result<Applied, Error>> {
        self.apply_to(changes, true).await
    }

    async fn apply_to(&self, changes: &[Change], unlocked_only: bool) -> Vec<Result<Applied, Error>> {
        let mut answers: Vec<Result<Applied, Error>> = changes.iter().map(|_| Err(Error::Busy)).collect();
        let mut pending: BTreeSet<Uid> = changes.iter().map(|change| change.uid).collect();
        let mut pauses = SKIP_PAUSES_MS.into_iter();
        while !pending.is_empty() {
            let pause = pauses.next().filter(|_| pending.len() > 1 || unlocked_only);
            if pause.is_none() && unlocked_only {
                return answers;
            }
            let most = if pause.is_some() { pending.len() } else { 1 };
            let uids: Vec<Uid> = pending.iter().take(most).copied().collect();
            let is_in_round = |uid: &Uid| uids.binary_search(uid).is_ok();
            let (indexes, round): (Vec<usize>, Vec<Change>) =
                changes.iter().cloned().enumerate().filter(|(_, change)| is_in_round(&change.uid)).unzip();
            let (applied, skipped) = match self.apply_with_retry(&round, &uids, pause.is_some()).await {
                Ok(applied) => applied,
                Err(why) => {
                    let is_pending = |change: &Change| pending.contains(&change.uid);
                    let unanswered =
                        changes.iter().zip(&mut answers).filter(|(change, _)| is_pending(change));
                    unanswered.for_each(|(_, answer)| *answer = Err(why.clone()));
                    return answers;
                }
            };
            for (index, applied) in indexes.into_iter().zip(applied) {
                if !skipped.contains(&changes[index].uid) {
                    answers[index] = Ok(applied);
                }
            }
            pending.retain(|uid| skipped.contains(uid) || !is_in_round(uid));
            if let Some(pause) = pause.filter(|_| !pending.is_empty()) {
                self.clock.sleep(Duration::from_millis(pause)).await;
            }
        }
        answers
    }

    /// One transaction, run again after a deadlock, at most three times.
    async fn apply_with_retry(
        &self,
        changes: &[Change],
        uids: &[Uid],
        skip_locked: bool,
    ) -> Result<(Vec<Applied>, BTreeSet<Uid>), Error> {
        for _ in 0..3 {
            match Box::pin(self.apply_once(changes, uids, skip_locked)).await {
                Err(why) if why.is_deadlock() => {}
                other => return other,
            }
        }
        Err(Error::Busy)
    }

    /// One transaction. With `skip_locked` it skips timers that another one has locked and returns them; their
    /// answers have no meaning.
    async fn apply_once(
        &self,
        changes: &[Change],
        uids: &[Uid],
        skip_locked: bool,
    ) -> Result<(Vec<Applied>, BTreeSet<Uid>), Error> {
        let mut tx = self.pool.begin().await?;
        let Within { answers, skipped, late } =
            Box::pin(self.apply_within(&mut tx, changes, uids, skip_locked, Counts::default())).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Box::pin(self.tell_late(late)).await?;
        Ok((answers, skipped))
    }

    /// The same within a transaction, which the caller commits. `also` is counted beside what ends.
    pub(super) async fn apply_within(
        &self,
        tx: &mut Tx,
        changes: &[Change],
        uids: &[Uid],
        skip_locked: bool,
        also: Counts,
    ) -> Result<Within, Error> {
        let mut s = Statement::new(self.dialect(), "apply_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let now = s.now(self.bound_now());
        let lock = if skip_locked { "FOR UPDATE OF timers SKIP LOCKED" } else { "FOR UPDATE OF timers" };
        let lock = self.dialect().lock(lock);
        s.push(&format!(
            "WITH {batch} SELECT {ALL}, {now}, (SELECT watermark FROM shards WHERE shards.shard = timers.shard) \
             FROM timers JOIN b ON {} ORDER BY b_uid {lock}",
            self.dialect().keyed("uid", "b_uid")
        ));
        let mut rows: BTreeMap<Uid, (TimerRow, UnixMs)> = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        let mut store_now = self.clock.now();
        for row in tx.fetch(s).await? {
            store_now = UnixMs::new(row.get(AFTER)?);
            let uid = Uid(row.get(0)?);
            match TimerRow::read(&row, false) {
                Ok(timer) => {
                    let watermark = row.get::<Option<i64>>(AFTER + 1)?.unwrap_or_default();
                    rows.insert(uid, (timer, UnixMs::new(watermark)));
                }
                Err(why) => {
                    tracing::error!(uid = %uid.0, %why, "a timer cannot be read by this version; it is not changed");
                    unreadable.insert(uid);
                }
            }
        }
        let missing: Vec<Uid> =
            uids.iter().filter(|uid| !rows.contains_key(uid) && !unreadable.contains(uid)).copied().collect();
        // What a caller names is of the namespace of his timer.
        let of = |change: &Change| {
            let namespace = rows.get(&change.uid).map(|(row, _)| row.namespace)?;
            change.caller.is_none_or(|caller| caller == namespace).then_some(namespace)
        };
        let wanted: Vec<(Namespace, &Target)> =
            changes.iter().filter_map(|change| of(change).zip(change.event.target())).collect();
        let no_destinations = self.missing_destinations(tx, wanted.iter().copied()).await?;
        let nowhere = |row: &TimerRow, event: &ChangeEvent| {
            let name =
                event.target().and_then(Target::destination).filter(|_| !no_destinations.is_empty())?;
            no_destinations.get(&(row.namespace, name.to_owned())).map(|(_, name)| name.clone())
        };
        let fitted: Vec<(Namespace, &TemplateUse)> =
            changes.iter().filter_map(|change| of(change).zip(change.event.template())).collect();
        let templates = self.templates_in_use(tx, fitted.into_iter()).await?;
        self.keep_queues(tx, wanted.into_iter()).await?;
        self.lend_retry(tx, changes, &mut rows).await?;
        let seated = rows.values_mut().map(|(row, _)| row).filter(|row| row.seats.is_some());
        let seated: Vec<&mut TimerRow> = seated.collect();
        let with_terms = changes.iter().any(|change| change.event.asks_queue());
        let queues = Box::pin(self.read_places(tx, seated, with_terms)).await?;
        Box::pin(self.find_done(tx, changes, &mut rows)).await?;
        let skipped = if skip_locked { self.live_among(tx, &missing).await? } else { BTreeSet::new() };
        let mut writes = Writes::default();
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            answers.push(match rows.get_mut(&change.uid) {
                _ if skipped.contains(&change.uid) => Applied::NotLive,
                Some((row, _)) if change.caller.is_some_and(|of| of != row.namespace) => Applied::NotLive,
                Some((row, watermark)) => match nowhere(row, &change.event) {
                    Some(name) => Applied::NoDestination(name),
                    None if let Some(why) = unfit(row, &change.event) => Applied::Unfit(why),
                    None if let Some(template) = change.event.unfitted(row, &templates) => {
                        Applied::Unfitted(template)
                    }
                    None => {
                        let context = Context {
                            now: store_now,
                            watermark: *watermark,
                            planted: self.planted,
                            salt: &self.own,
                            queue: terms_of(&queues, row),
                        };
                        let event = self.spread_anew(row, &change.event, store_now);
                        decide(row, &event, context, &mut writes)
                    }
                },
                None if unreadable.contains(&change.uid) => Applied::Unreadable,
                None => self.amend_ended(tx, change).await?,
            });
        }
        let told = std::mem::take(&mut writes.told);
        let counts = self.write(tx, writes, also).await?;
        // In boxes: a transaction with all of these in line outgrows the stack of a thread in builds that are not optimised.
        let set = Box::pin(self.listeners(tx)).await?;
        let late = Box::pin(self.tell(
            tx,
            &set,
            Happened::of_places(&told).chain(Happened::applied(changes, &answers, store_now)),
        ))
        .await?;
        self.count(tx, &counts).await?;
        Ok(Within { answers, skipped, late })
    }

    /// Gives timers whose claim expired the `retry` of their set, and those that have none that of their destination: it
    /// decides whether another attempt follows. It is not written.
    async fn lend_retry(
        &self,
        tx: &mut Tx,
        changes: &[Change],
        rows: &mut BTreeMap<Uid, (TimerRow, UnixMs)>,
    ) -> Result<(), Error> {
        let expired = changes.iter().filter(|change| matches!(change.event, ChangeEvent::ClaimExpired(_)));
        let mut of: BTreeMap<Uid, Named> = BTreeMap::new();
        for change in expired {
            let Some((row, _)) = rows.get_mut(&change.uid) else { continue };
            if let Some(merged) = &row.merged {
                row.policies.retry = merged.retry;
            }
            if let (None, Some(name)) = (row.policies.retry, row.target.destination()) {
                of.insert(row.uid, (row.namespace, name.to_owned()));
            }
        }
        if of.is_empty() {
            return Ok(());
        }
        let retries = self.destination_retries(tx, of.values().cloned().collect()).await?;
        for (uid, name) in of {
            if let (Some((row, _)), Some(retry)) = (rows.get_mut(&uid), retries.get(&name)) {
                row.policies.retry = Some(*retry);
            }
        }
        Ok(())
    }

    /// Finds out which timers that a change takes away from their queue a worker has done, or may have. Only a queue's own
    /// answers can tell it, so these stay.
    async fn find_done(
        &self,
        tx: &mut Tx,
        changes: &[Change],
        rows: &mut BTreeMap<Uid, (TimerRow, UnixMs)>,
    ) -> Result<(), Error> {
        let leave = changes.iter().filter(|change| change.event.leaves_queues()).map(|change| change.uid);
        let had = |uid: &Uid| rows.get(uid).is_some_and(|(row, _)| row.seats.is_some() && row.life.tries > 0);
        let had: Vec<Uid> = leave.filter(had).collect();
        if had.is_empty() {
            return Ok(());
        }
        let created_at = had.iter().filter_map(|uid| rows.get(uid)).map(|(row, _)| row.created_at.get());
        let mut s = Statement::new(self.dialect(), "apply_find_done");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(had.iter().map(|uid| uid.0).collect())),
                ("b_created", Column::Int(created_at.collect())),
            ],
        );
        let failed: Vec<String> = AttemptResult::ALL
            .iter()
            .filter(|result| result.surely_failed())
            .map(|result| format!("'{}'", result.word()))
            .collect();
        s.push(&format!(
            "WITH {batch} SELECT DISTINCT uid FROM b CROSS JOIN attempts WHERE uid = b_uid AND created_at = b_created \
             AND worker IS NOT NULL AND result NOT IN ({})",
            failed.join(", ")
        ));
        for row in tx.fetch(s).await? {
            if let Some((row, _)) = rows.get_mut(&Uid(row.get(0)?)) {
                row.may_be_done = true;
            }
        }
        Ok(())
    }

    /// Of timers that could not be locked, those that are live: another transaction has locked them.
    async fn live_among(&self, tx: &mut Tx, missing: &[Uid]) -> Result<BTreeSet<Uid>, Error> {
        if missing.is_empty() || self.dialect() == Dialect::Sqlite {
            return Ok(BTreeSet::new());
        }
        let mut s = Statement::new(self.dialect(), "apply_live_among");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(missing.iter().map(|uid| uid.0).collect()))]);
        let is_it = self.dialect().keyed("uid", "b_uid");
        s.push(&format!("WITH {batch} SELECT uid, generation FROM timers JOIN b ON {is_it}"));
        tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// Writes the result of an attempt to its record when its timer has already ended.
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

    /// Writes, and counts the ends and `also`. What it has not counted it returns.
    async fn write(&self, tx: &mut Tx, writes: Writes, also: Counts) -> Result<Counts, Error> {
        let Writes {
            moved,
            edited,
            retargeted,
            reranked,
            unmerged,
            respread,
            judged,
            seated,
            mut places,
            ends,
            records,
            late,
            told: _,
        } = writes;
        let mut counts = also;
        for end in &ends {
            counts.add(end.namespace, end.state.word(), 1);
        }
        if !moved.is_empty() {
            let rows: Vec<&TimerRow> = moved.values().collect();
            tx.execute(self.update_statement("apply_update", LIFE, &rows, None)).await?;
        }
        for (name, uids, columns) in [
            ("apply_edit", &edited, EDITED),
            ("apply_target", &retargeted, TARGET),
            ("apply_priority", &reranked, PRIORITY),
            ("apply_merged", &unmerged, MERGED),
            ("apply_spread", &respread, SPREAD_FROM),
            ("apply_judged", &judged, JUDGED),
            ("apply_seats", &seated, SEATS),
        ] {
            let rows: Vec<&TimerRow> = uids.iter().filter_map(|uid| moved.get(uid)).collect();
            if !rows.is_empty() {
                tx.execute(self.update_statement(name, columns, &rows, None)).await?;
            }
        }
        let with_places = places.leave_to_end(&ends);
        self.write_places(tx, places).await?;
        if !records.is_empty() {
            tx.execute(self.records_statement(&records)).await?;
        }
        for (uid, record) in late {
            self.amend_record(tx, uid, &record).await?;
        }
        if !ends.is_empty() {
            let expected = ends.len();
            let (rows, returned) = (Rows::Locked { with_places }, TimerColumn::Uid.name());
            // Nobody waits for what is counted early, where nothing is told afterwards.
            let nobody = self.nobody_subscribes();
            let mut not_yet = Counts::default();
            let early = if nobody.is_some() { &mut counts } else { &mut not_yet };
            let ended = self.end(tx, ends, rows, returned, early).await?;
            if ended.len() != expected {
                return Err(Error::Corrupt("a locked row did not end".into()));
            }
        }
        Ok(counts)
    }

    /// The statement that writes these columns of these live rows, and beside them, on PostgreSQL alone, the places that are
    /// put.
    pub(super) fn update_statement(
        &self,
        name: &'static str,
        written: &[TimerColumn],
        rows: &[&TimerRow],
        places: Option<PlaceWrites>,
    ) -> Statement {
        let mut s = Statement::new(self.dialect(), name);
        let keyed = [&[TimerColumn::Uid], written].concat();
        let mut batch = s.batch("b", columns::batch(&keyed, rows));
        if let Some(places) = places {
            let (places, put) = places.put_statement(&mut s, "p");
            batch.push_str(&format!(", {places}, put AS ({put})"));
        }
        let set = columns::assignments(written, self.dialect());
        let is_it = self.dialect().keyed("uid", "b_uid");
        s.push(&format!("WITH {batch} UPDATE timers SET {set} FROM b WHERE {is_it}"));
        s
    }

    pub(super) fn records_statement(&self, records: &[(Uid, i64, AttemptRecord)]) -> Statement {
        let mut s = Statement::new(self.dialect(), "apply_attempts");
        let int =
            |pick: fn(&AttemptRecord) -> i64| Column::Int(records.iter().map(|(_, _, r)| pick(r)).collect());
        let text = |pick: fn(&AttemptRecord) -> Option<String>| {
            Column::TextOrNull(records.iter().map(|(_, _, r)| pick(r)).collect())
        };
        let status = records.iter().map(|(_, _, r)| r.status.map(i64::from)).collect();
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(records.iter().map(|(uid, _, _)| uid.0).collect())),
                ("b_generation", int(|r| i64::from(r.generation))),
                ("b_attempt", int(|r| i64::from(r.attempt))),
                ("b_started", int(|r| r.started_at)),
                ("b_ended", int(|r| r.ended_at)),
                ("b_result", text(|r| Some(r.result.word().to_owned()))),
                ("b_status", Column::IntOrNull(status)),
                ("b_reply", text(|r| r.reply.clone())),
                ("b_detail", text(|r| r.detail.clone())),
                ("b_node", text(|r| Some(r.node.clone()))),
                ("b_delivery", text(|r| r.delivery_id.clone())),
                ("b_created", Column::Int(records.iter().map(|(_, created, _)| *created).collect())),
                ("b_worker", text(|r| r.worker.clone())),
            ],
        );
        s.push(&format!(
            "WITH {batch} INSERT INTO attempts (uid, generation, attempt, started_at, ended_at, result, status, reply, \
             detail, node, delivery_id, created_at, worker) SELECT b_uid, b_generation, b_attempt, b_started, b_ended, b_result, b_status, \
             b_reply, b_detail, b_node, b_delivery, b_created, b_worker FROM b WHERE true ON CONFLICT (uid, generation, attempt) DO UPDATE \
             SET started_at = excluded.started_at, ended_at = excluded.ended_at, result = excluded.result, \
             status = excluded.status, reply = excluded.reply, detail = excluded.detail, node = excluded.node, \
             delivery_id = excluded.delivery_id, created_at = excluded.created_at, worker = excluded.worker"
        ));
        s
    }
}

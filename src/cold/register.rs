//! Registration: many callers' timers in one transaction, with one flush.
//!
//! The rows are inserted first, and the ended ids are read afterwards, in the same transaction. An insert that
//! waited for a row that was just being ended succeeds when that row is deleted; only a read after it sees the
//! end.

use std::collections::{BTreeSet, HashMap};

use super::columns::{self, ALL, TimerColumn};
use super::namespaces::{all_kept, others};
use super::outbox::Happened;
use super::row::TimerRow;
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::subscriptions::SubscriptionSet;
use super::totals::Counts;
use super::{ColdStore, Error};
use crate::model::id::{Epoch, Generation, TimerId, Uid, shard_of};
use crate::model::namespace::Namespace;
use crate::model::policy::Policies;
use crate::model::priority::Priority;
use crate::model::queue::{Dispatch, Seats};
use crate::model::schedule::Occurrence;
use crate::model::spread::Spread;
use crate::model::target::Target;
use crate::model::template::TemplateUse;
use crate::model::time::UnixMs;
use crate::model::timer::Life;
use crate::model::trace::Trace;

/// The most timers one transaction registers.
pub const MAX_BATCH: usize = 1000;

/// A checked registration.
#[derive(Debug, Clone)]
pub struct NewTimer {
    /// Primary key: from the caller's id, the idempotency key, or new.
    pub uid: Uid,
    /// The namespace that it is of.
    pub namespace: Namespace,
    /// The id as text.
    pub id: TimerId,
    /// Whether the uid comes from the caller's id or idempotency key, which stays taken after the end.
    pub caller_id: bool,
    /// On an ended id: registers the next generation instead of returning the ended timer.
    pub again: bool,
    /// The owner, if one was given.
    pub owner: Option<String>,
    /// When it should fire.
    pub due_at: UnixMs,
    /// `precision: minute`.
    pub minute: bool,
    /// Who goes first where timers wait for one receiver.
    pub priority: Priority,
    /// The span over which its due time is chosen; `due_at` is its begin until it is chosen.
    pub spread: Option<Spread>,
    /// The target.
    pub target: Target,
    /// The payload; `None` for `null`.
    pub data: Option<Vec<u8>>,
    /// The template that the payload was fitted to.
    pub template: Option<TemplateUse>,
    /// Labels as a JSON object of strings; `None` for none.
    pub labels: Option<String>,
    /// Retry and late policy.
    pub policies: Policies,
    /// How it is given out, if its target is a queue.
    pub dispatch: Option<Dispatch>,
    /// Hash of the canonical request.
    pub request_hash: [u8; 16],
    /// When the request came in, by the store's clock.
    pub created_at: UnixMs,
    /// The trace of the call.
    pub trace: Option<Trace>,
    /// The schedule that makes it.
    pub occurrence: Option<Occurrence>,
}

/// The outcome of a registration.
#[derive(Debug, Clone)]
pub enum Registered {
    /// It was registered, durably.
    New(Box<TimerRow>),
    /// The same request was registered before; this is that timer now.
    Same(Box<TimerRow>),
    /// The id is taken by other content.
    Taken,
    /// There is no destination of this name. Nothing was registered.
    NoDestination(String),
    /// The payload was not fitted to the template of this name as it is now. Nothing was registered.
    Unfitted(String),
}

impl Registered {
    /// The row, if this registration made it.
    pub fn new_row(answer: &Result<Self, Error>) -> Option<&TimerRow> {
        match answer {
            Ok(Self::New(row)) => Some(row),
            _ => None,
        }
    }
}

impl ColdStore {
    /// Registers up to [`MAX_BATCH`] timers in one transaction; answers in the order given.
    ///
    /// A value that the database refuses fails alone: the batch is halved until the value is found. After a
    /// connection that broke during the commit the batch is run again, and recognises the rows that the first
    /// run committed.
    pub async fn register(&self, timers: &[NewTimer]) -> Vec<Result<Registered, Error>> {
        let mut ambiguous: Option<Error> = None;
        for tries_left in (0..3).rev() {
            match Box::pin(self.register_once(timers, ambiguous.is_some())).await {
                Ok(answers) => return answers,
                Err(why) if why.is_data() && timers.len() > 1 => {
                    let (left, right) = timers.split_at(timers.len() / 2);
                    let mut answers = Box::pin(self.register(left)).await;
                    answers.extend(Box::pin(self.register(right)).await);
                    return answers;
                }
                Err(why) if tries_left > 0 && why.is_ambiguous() => ambiguous = Some(why),
                Err(why) if tries_left > 0 && why.is_deadlock() => {}
                Err(why) => {
                    // After an ambiguous commit no later failure proves that nothing was committed.
                    let why = ambiguous.unwrap_or(why);
                    return timers.iter().map(|_| Err(why.clone())).collect();
                }
            }
        }
        let why = ambiguous.unwrap_or(Error::Busy);
        timers.iter().map(|_| Err(why.clone())).collect()
    }

    /// `rerun`: an earlier run may have been committed. A row with the same content and the same time of
    /// registration was made by that run, even if it has ended since.
    async fn register_once(
        &self,
        timers: &[NewTimer],
        rerun: bool,
    ) -> Result<Vec<Result<Registered, Error>>, Error> {
        let mut answers: Vec<Option<Result<Registered, Error>>> = Vec::with_capacity(timers.len());
        answers.resize_with(timers.len(), || None);
        if rerun {
            let rows = self.find_of_all(&timers.iter().map(|timer| timer.uid).collect::<Vec<_>>()).await?;
            for (timer, answer) in timers.iter().zip(&mut answers) {
                *answer = rows
                    .get(&timer.uid)
                    .filter(|row| {
                        row.request_hash == timer.request_hash && row.created_at == timer.created_at
                    })
                    .map(|row| Ok(Registered::New(Box::new(row.clone()))));
            }
        }
        // Of equal ids in a batch one is inserted: the first, or the one that registers the ended id `again`.
        // Sorted, so that two batches do not deadlock.
        let mut order: Vec<usize> = (0..timers.len()).filter(|&i| answers[i].is_none()).collect();
        order.sort_by_key(|&i| (timers[i].uid, !timers[i].again, i));
        order.dedup_by_key(|i| timers[*i].uid);

        let fresh = order.iter().map(|&i| self.fresh_row(&timers[i])).collect();
        let (kept, unmade) = match order.is_empty() {
            true => Default::default(),
            false => self.insert_new(timers, &order, fresh).await?,
        };
        // In the order that was asked for.
        let mut kept = kept.into_iter().peekable();
        for &i in &order {
            answers[i] =
                kept.next_if(|row| row.uid == timers[i].uid).map(|row| Ok(Registered::New(Box::new(row))));
        }
        // Of equal ids one was tried. If it could not be made, the others stand for themselves.
        let was_tried = |i: usize| order.contains(&i);
        let again: Vec<usize> = match unmade.is_empty() {
            true => Vec::new(),
            false => (0..timers.len())
                .filter(|&i| answers[i].is_none() && unmade.contains_key(&timers[i].uid) && !was_tried(i))
                .collect(),
        };
        if !again.is_empty() {
            let others: Vec<NewTimer> = again.iter().map(|&i| timers[i].clone()).collect();
            let answered = Box::pin(self.register_once(&others, rerun)).await?;
            for (i, answer) in again.into_iter().zip(answered) {
                answers[i] = Some(answer);
            }
        }
        let unanswered: Vec<usize> = (0..timers.len()).filter(|&i| answers[i].is_none()).collect();
        if !unanswered.is_empty() {
            let rows =
                self.find_of_all(&unanswered.iter().map(|&i| timers[i].uid).collect::<Vec<_>>()).await?;
            for i in unanswered {
                let same = |row: &&TimerRow| row.request_hash == timers[i].request_hash;
                answers[i] = Some(match rows.get(&timers[i].uid) {
                    // The first run may have been committed only now.
                    Some(row) if same(&row) && rerun && row.created_at == timers[i].created_at => {
                        Ok(Registered::New(Box::new(row.clone())))
                    }
                    Some(row) if same(&row) => Ok(Registered::Same(Box::new(row.clone()))),
                    // Otherwise the id is taken; without a row its history is removed already: the retention was shortened.
                    _ => match unmade.get(&timers[i].uid) {
                        Some(why) if was_tried(i) => Ok(why.clone()),
                        _ => Ok(Registered::Taken),
                    },
                });
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Inserts the timers whose ids are not taken, in this order. Returns the rows that it made, and why it did not try to
    /// make others: there is no such destination, or their payloads do not fit.
    async fn insert_new(
        &self,
        timers: &[NewTimer],
        order: &[usize],
        mut fresh: Vec<TimerRow>,
    ) -> Result<(Vec<TimerRow>, HashMap<Uid, Registered>), Error> {
        if let Some(inserted) = self.insert_alone(&fresh).await? {
            return Ok((those_inserted(fresh, &inserted), HashMap::new()));
        }
        let mut tx = self.pool.begin().await?;
        let namespaces = namespaces_of(&fresh);
        let has_template = |timer: &NewTimer| timer.template.is_some();
        if timers.iter().any(has_template) || !fresh.iter().all(asks_for_nothing) {
            // Before any other lock, as a removal does. Where there is none, the rows' own statement keeps them.
            self.keep_namespaces(&mut tx, &namespaces).await?;
        }
        let missing =
            self.missing_destinations(&mut tx, fresh.iter().map(|row| (row.namespace, &row.target))).await?;
        let templates = self
            .templates_in_use(
                &mut tx,
                timers.iter().filter_map(|timer| Some((timer.namespace, timer.template.as_ref()?))),
            )
            .await?;
        let mut unmade = HashMap::new();
        for &i in order {
            let NewTimer { uid, namespace, target, template, occurrence, .. } = &timers[i];
            let is_missing =
                |name: &&str| !missing.is_empty() && missing.contains(&(*namespace, (*name).to_owned()));
            if let Some(name) = target.destination().filter(is_missing) {
                unmade.insert(*uid, Registered::NoDestination(name.to_owned()));
            } else if let Some(TemplateUse { name, fitted }) = template
                // That of an occurrence was fitted when its schedule was written.
                && occurrence.is_none()
                && (fitted.is_none() || templates.get(&(*namespace, name.clone())) != fitted.as_ref())
            {
                unmade.insert(*uid, Registered::Unfitted(name.clone()));
            }
        }
        if !unmade.is_empty() {
            // With a namespace goes what it had.
            self.check_namespaces(&mut tx, &namespaces).await?;
        }
        fresh.retain(|row| !unmade.contains_key(&row.uid));
        let callers = order.iter().map(|&i| &timers[i]).filter(|timer| timer.caller_id);
        let callers = callers.map(|timer| (timer.uid, timer.again)).collect();
        // Nobody waits for what is counted early, where nothing is told afterwards.
        let nobody = self.nobody_subscribes();
        let (kept, counts) = self.insert_free(&mut tx, &callers, fresh, nobody.is_some()).await?;
        // In boxes: a transaction with all of these in line outgrows the stack of a thread in builds that are not optimised.
        let set = Box::pin(self.listeners(&mut tx)).await?;
        let late = Box::pin(self.tell(&mut tx, &set, Happened::registered(kept.iter()))).await?;
        self.count(&mut tx, &counts).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Box::pin(self.tell_late(late)).await?;
        Ok((kept, unmade))
    }

    /// Inserts timers with one statement, which is a transaction of its own: one call of the store instead of four. Returns what
    /// [`ColdStore::insert_rows`] does; `None` where something has to be asked or written beside them: for ids that may have
    /// ended, for destinations, queues and templates, for subscribers, for a namespace that is not there, and on SQLite, which
    /// has no such statements.
    async fn insert_alone(&self, fresh: &[TimerRow]) -> Result<Option<HashMap<Uid, UnixMs>>, Error> {
        let is_alone = |row: &TimerRow| !row.caller_id && asks_for_nothing(row);
        let set = self.nobody_subscribes();
        let (Dialect::Postgres, Some(set), true) = (self.dialect(), set, fresh.iter().all(is_alone)) else {
            return Ok(None);
        };
        let statement = self.insert_statement(fresh, &namespaces_of(fresh), Some(&set));
        let inserted = inserted(&self.pool.write_once(statement).await?)?;
        // None if somebody has subscribed meanwhile, or a namespace was removed.
        Ok(Some(inserted).filter(|inserted| !inserted.is_empty()))
    }

    /// Inserts, within a transaction which the caller goes on with, the rows whose ids are not taken, and returns them. If he has
    /// locked anything, he keeps their namespaces before ([`ColdStore::keep_namespaces`]).
    /// `callers`: the timers whose uids stay taken after their end, and whether one that has ended is registered again.
    /// `counts`: they are counted, where that saves a call of the store; what is to be counted yet is returned.
    pub(super) async fn insert_free(
        &self,
        tx: &mut Tx,
        callers: &HashMap<Uid, bool>,
        fresh: Vec<TimerRow>,
        counts: bool,
    ) -> Result<(Vec<TimerRow>, Counts), Error> {
        self.keep_queues(tx, fresh.iter().map(|row| (row.namespace, &row.target))).await?;
        let inserted = self.insert_rows(tx, &fresh).await?;
        let mut kept = those_inserted(fresh, &inserted);
        let counted = Counts::of(&kept, "registered");
        if !kept.iter().any(|row| callers.contains_key(&row.uid)) {
            return Ok((kept, counted));
        }
        let counts = counts && self.dialect() == Dialect::Postgres;
        let mut ended = HashMap::new();
        for row in tx.fetch(self.ended_ids_statement(&kept, counts.then_some(&counted))).await? {
            ended.insert(Uid(row.get(0)?), row.get::<i32>(1)?);
        }
        if ended.is_empty() {
            return Ok((kept, if counts { Counts::default() } else { counted }));
        }
        let is_again = |uid: &Uid| callers.get(uid).copied().unwrap_or(false);
        let (revived, refused): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(uid, _)| is_again(uid));
        let refused: Vec<Uid> = refused.into_iter().map(|(uid, _)| uid).collect();
        self.take_back(tx, &refused).await?;
        kept.retain(|row| !refused.contains(&row.uid));
        self.revive(tx, &revived).await?;
        let revived: HashMap<Uid, i32> = revived.into_iter().collect();
        for row in &mut kept {
            if let Some(generation) = revived.get(&row.uid) {
                row.life.generation = Generation(generation + 1);
            }
        }
        let counted = Counts::of(&kept, "registered");
        Ok((kept, counted))
    }

    /// The statement that returns those of rows just inserted whose ids have ended, with their generation. Where none has, it
    /// counts them.
    fn ended_ids_statement(&self, inserted: &[TimerRow], counts: Option<&Counts>) -> Statement {
        let mut s = Statement::new(self.dialect(), "register_ended_ids");
        let uids = inserted.iter().map(|row| row.uid.0).collect();
        let (batch, now) = (s.batch("b", vec![("b_uid", Column::Uuid(uids))]), s.now(self.bound_now()));
        let is_ended = self.dialect().keyed("uid", "b_uid");
        let ended = format!(
            "SELECT uid, generation FROM ended_ids JOIN b ON {is_ended} WHERE COALESCE(until > {now}, false)"
        );
        let text = match counts {
            Some(counts) => {
                let counted = self.counted(&mut s, counts, "NOT EXISTS (SELECT FROM ended)");
                format!("WITH {batch}, ended AS ({ended}), {counted} SELECT uid, generation FROM ended")
            }
            None => format!("WITH {batch} {ended}"),
        };
        s.push(&text);
        s
    }

    /// Removes timers that this transaction has inserted.
    pub(super) async fn take_back(&self, tx: &mut Tx, uids: &[Uid]) -> Result<(), Error> {
        if uids.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "register_take_back");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let is_one = self.dialect().among("uid", "SELECT b_uid FROM b");
        s.push(&format!("WITH {batch} DELETE FROM timers WHERE {is_one}"));
        tx.execute(s).await.map(drop)
    }

    /// Makes timers that this transaction has inserted the next generation of what ended with this one, and their ids no
    /// longer ended ones.
    pub(super) async fn revive(&self, tx: &mut Tx, ended: &[(Uid, i32)]) -> Result<(), Error> {
        if ended.is_empty() {
            return Ok(());
        }
        let columns = || {
            let next = ended.iter().map(|(_, generation)| i64::from(*generation) + 1).collect();
            vec![
                ("b_uid", Column::Uuid(ended.iter().map(|(uid, _)| uid.0).collect())),
                ("b_generation", Column::Int(next)),
            ]
        };
        let mut next = Statement::new(self.dialect(), "register_again");
        let batch = next.batch("b", columns());
        next.push(&format!(
            "WITH {batch} UPDATE timers SET generation = b_generation FROM b WHERE {}",
            self.dialect().keyed("uid", "b_uid")
        ));
        tx.execute(next).await?;
        let mut free = Statement::new(self.dialect(), "register_again_free");
        let batch = free.batch("b", columns());
        let is_one = self.dialect().among("uid", "SELECT b_uid FROM b");
        free.push(&format!("WITH {batch} DELETE FROM ended_ids WHERE {is_one}"));
        tx.execute(free).await.map(drop)
    }

    /// Inserts rows whose uids are not live; returns the uid and `wake_at` of each that it inserted. Their namespaces are kept
    /// until the end of the transaction; an error if one was removed before.
    pub(super) async fn insert_rows(
        &self,
        tx: &mut Tx,
        rows: &[TimerRow],
    ) -> Result<HashMap<Uid, UnixMs>, Error> {
        let namespaces = namespaces_of(rows);
        if self.dialect() == Dialect::Sqlite {
            self.check_namespaces(tx, &namespaces).await?;
        }
        let found = tx.fetch(self.insert_statement(rows, &namespaces, None)).await?;
        if found.is_empty() && self.dialect() == Dialect::Postgres {
            // All are live, or the statement has found that one is not there.
            self.check_namespaces(tx, &namespaces).await?;
        }
        inserted(&found)
    }

    /// The statement that inserts them. `alone`: it is the whole transaction, on PostgreSQL; so it counts them, and inserts
    /// nothing if these are not the subscribers any more.
    fn insert_statement(
        &self,
        rows: &[TimerRow],
        namespaces: &BTreeSet<Namespace>,
        alone: Option<&SubscriptionSet>,
    ) -> Statement {
        let mut s = Statement::new(self.dialect(), "register_insert");
        let rows: Vec<&TimerRow> = rows.iter().collect();
        // What nobody in the batch asks for costs nobody anything.
        let merges = rows.iter().any(|row| row.merge_key.is_some());
        let spreads = rows.iter().any(|row| row.spread.is_some());
        let queues = rows.iter().any(|row| row.seats.is_some());
        let templated = rows.iter().any(|row| row.template.is_some());
        let is_made = rows.iter().any(|row| row.occurrence.is_some());
        let others = others(namespaces);
        let initial = |column: TimerColumn| match column {
            TimerColumn::MergeKey if !merges => Some("NULL"),
            TimerColumn::Spread | TimerColumn::SpreadFrom if !spreads => Some("NULL"),
            TimerColumn::Schedule | TimerColumn::Nominal | TimerColumn::Overlap | TimerColumn::JudgeAfter
                if !is_made =>
            {
                Some("NULL")
            }
            TimerColumn::Template if !templated => Some("NULL"),
            TimerColumn::Namespace if others.is_empty() => Some("NULL"),
            TimerColumn::Dispatch
            | TimerColumn::Audience
            | TimerColumn::ReadyAt
            | TimerColumn::Fresh
            | TimerColumn::Acked
                if !queues =>
            {
                Some("NULL")
            }
            other => initial(other),
        };
        let is_bound = |column: &TimerColumn| initial(*column).is_none() && *column != TimerColumn::WakeAt;
        let fresh: Vec<TimerColumn> = TimerColumn::EACH.iter().copied().filter(is_bound).collect();
        let batch = s.batch("b", columns::batch(&fresh, &rows));
        let now = s.now(self.bound_now());
        // A statement less where the database is asked over a network.
        let are_there = match self.dialect() {
            Dialect::Postgres if !others.is_empty() => all_kept(&mut s, others.clone()),
            _ => "true".to_owned(),
        };
        let value = |column: &TimerColumn| match column {
            // Not before the store's clock: a row written after a sweep never lies below the sweep's floor. Not by this
            // node's knowledge of it: a moment after it was set back that may be far ahead.
            TimerColumn::WakeAt => format!("CASE WHEN b_due_at > {now} THEN b_due_at ELSE {now} END"),
            other => initial(*other).map_or_else(|| other.batched(self.dialect()), str::to_owned),
        };
        let values = TimerColumn::EACH.iter().map(value).collect::<Vec<_>>().join(", ");
        let (is_still, counted) = match alone {
            Some(set) => {
                let counted = self.counted_rows(&mut s, "registered", "made", !others.is_empty());
                (Self::is_still(&mut s, set), Some(counted))
            }
            None => ("true".to_owned(), None),
        };
        let insert = format!(
            "INSERT INTO timers ({ALL}) SELECT {values} FROM b WHERE {are_there} AND {is_still} \
             ON CONFLICT (uid) DO NOTHING RETURNING uid, wake_at, namespace"
        );
        let text = match counted {
            Some(counted) => {
                format!("WITH {batch}, made AS ({insert}), {counted} SELECT uid, wake_at FROM made")
            }
            None => format!("WITH {batch} {insert}"),
        };
        s.push(&text);
        s
    }

    /// The row of a registration. The store's clock may raise its `wake_at`, and an ended id that is registered
    /// again has a higher generation.
    pub(super) fn fresh_row(&self, timer: &NewTimer) -> TimerRow {
        let owner = timer.owner.as_deref().unwrap_or(timer.id.as_str());
        let salt = self.own.of(timer.namespace);
        let merge_key = timer.policies.merge.map(|merge| merge.key(&salt, owner, &timer.target));
        TimerRow {
            uid: timer.uid,
            namespace: timer.namespace,
            id: timer.id.as_str().to_owned(),
            caller_id: timer.caller_id,
            owner: timer.owner.clone(),
            shard: shard_of(&salt, owner, self.shards),
            life: Life::new(timer.due_at, timer.created_at),
            expire_at: timer.policies.expire_at(timer.due_at),
            epoch: Epoch(0),
            lane: timer.target.lane(timer.namespace),
            minute: timer.minute,
            priority: timer.priority,
            spread: timer.spread,
            occurrence: timer.occurrence.clone(),
            target: timer.target.clone(),
            data: timer.data.clone(),
            template: timer.template.as_ref().map(|one| one.name.clone()),
            labels: timer.labels.clone(),
            policies: timer.policies,
            request_hash: timer.request_hash,
            created_at: timer.created_at,
            claimed_at: None,
            node: None,
            via: None,
            trace: timer.trace,
            pointed_at: None,
            merge_key,
            merged: None,
            seats: timer
                .target
                .queue()
                .map(|_| Seats::new(timer.dispatch.clone().unwrap_or_default(), timer.due_at)),
            places: Vec::new(),
            lost: 0,
            may_be_done: false,
            left: None,
            ended_at: None,
            last: None,
        }
    }
}

/// Their namespaces.
fn namespaces_of(rows: &[TimerRow]) -> BTreeSet<Namespace> {
    rows.iter().map(|row| row.namespace).collect()
}

/// Whether it is registered without a look at anything but its namespace.
const fn asks_for_nothing(row: &TimerRow) -> bool {
    row.template.is_none() && matches!(row.target, Target::Webhook(_))
}

/// The uid and `wake_at` of each row that was inserted.
fn inserted(rows: &[Row]) -> Result<HashMap<Uid, UnixMs>, Error> {
    rows.iter().map(|row| Ok((Uid(row.get(0)?), UnixMs::new(row.get(1)?)))).collect()
}

/// Those that were inserted, in the same order, with the `wake_at` that the store gave them.
fn those_inserted(mut fresh: Vec<TimerRow>, inserted: &HashMap<Uid, UnixMs>) -> Vec<TimerRow> {
    fresh.retain_mut(|row| match inserted.get(&row.uid) {
        Some(wake_at) => {
            row.life.wake_at = *wake_at;
            true
        }
        None => false,
    });
    fresh
}

/// The constant that every new row has in this column, written into the statement instead of being bound for
/// each row; `None` for a column that differs by row.
const fn initial(column: TimerColumn) -> Option<&'static str> {
    match column {
        TimerColumn::State | TimerColumn::Attempt | TimerColumn::Tries | TimerColumn::Epoch => Some("0"),
        TimerColumn::Generation | TimerColumn::Version => Some("1"),
        TimerColumn::Uncertain | TimerColumn::CancelRequested | TimerColumn::AckedLate => Some("false"),
        TimerColumn::ClaimedAt
        | TimerColumn::Node
        | TimerColumn::Via
        | TimerColumn::PointedAt
        | TimerColumn::Merged
        | TimerColumn::Skipped => Some("NULL"),
        _ => None,
    }
}

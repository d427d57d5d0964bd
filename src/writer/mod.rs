//! The only writer of timers: it registers, changes and ends them, and does what follows each commit.
//!
//! What follows a commit is here and nowhere else: timers that are due soon are promoted, and the changes are counted.
//! It follows whether or not the caller still waits: a caller that hangs up does not cancel what is between a commit and
//! its end. Only the claim is made elsewhere ([`crate::dispatch`]).
//!
//! Callers' requests are committed in groups, without a timed window ([`Batcher`]).

mod batcher;
mod schedules;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

pub use batcher::{Batcher, NotTaken};

use crate::clock::Monotonic;
use crate::cold::{
    Applied, Asker, AttemptRecord, Change, ChangeEvent, ColdStore, Error, LeaseAnswer, MAX_APPLY_BATCH,
    MAX_REGISTER_BATCH, NewTimer, Operated, OperationRow, Registered, Settlement, Stepped, TimerRow, Turn,
    Unfit, Worker,
};
use crate::metrics::Metrics;
use crate::model::id::{Uid, Version};
use crate::model::merge::MergeKey;
use crate::model::namespace::Namespace;
use crate::model::pointer::Pointer;
use crate::model::schedule::Skipped;
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, Event, MISSED, State};
use crate::promotion::Promotion;

/// How many requests of one kind may be queued; further ones are refused ([`NotTaken::Full`]).
const QUEUE: usize = 20_000;

/// How many groups of timers ([`Intake::register_many`]) are registered at once.
const GROUPS: usize = 64;

/// Writes timers, and does what follows a commit.
#[derive(Clone)]
pub struct Writer {
    store: ColdStore,
    promotion: Promotion,
    metrics: Metrics,
}

impl Writer {
    /// A writer to this store, which promotes timers that are due soon and counts in these series.
    pub fn new(store: ColdStore, promotion: Promotion, metrics: Metrics) -> Self {
        Self { store, promotion, metrics }
    }

    /// Whether the store is known to be away ([`ColdStore::is_away`]).
    pub fn is_away(&self) -> bool {
        self.store.is_away()
    }

    /// Registers up to [`MAX_REGISTER_BATCH`] timers in one transaction; answers in the order given.
    pub async fn register(&self, timers: &[NewTimer]) -> Vec<Result<Registered, Error>> {
        let began = Monotonic::now();
        let timers = self.store.choose_moments(timers);
        let answers = self.store.register(&timers).await;
        self.store.note_registered(&timers, &answers);
        self.metrics.register_seconds.observe(began.elapsed().as_secs_f64());
        self.promotion.written(answers.iter().filter_map(Registered::new_row));
        self.count_registered(&answers);
        answers
    }

    /// Applies up to [`MAX_APPLY_BATCH`] changes; answers in the order given ([`ColdStore::apply`]).
    pub async fn apply(&self, changes: &[Change]) -> Vec<Result<Applied, Error>> {
        let answers = self.store.apply(changes).await;
        self.regroup(&answers).await;
        self.follow(changes, answers)
    }

    /// Timers that wait for one that was cancelled or moved, to go out together, are looked at again.
    async fn regroup(&self, answers: &[Result<Applied, Error>]) {
        let left = answers.iter().flatten().filter_map(Applied::left);
        let keys: BTreeSet<MergeKey> = left.collect();
        if keys.is_empty() {
            return;
        }
        match self.store.regroup(&keys.into_iter().collect::<Vec<_>>()).await {
            Ok(pointers) => self.promotion.promote(pointers),
            // They go out at the moment that they wait for.
            Err(why) => tracing::debug!(%why, "timers that merge were not looked at again"),
        }
    }

    /// The same, but does not wait for timers that a stranger has locked ([`ColdStore::apply_unlocked`]).
    pub async fn apply_unlocked(&self, changes: &[Change]) -> Vec<Result<Applied, Error>> {
        let answers = self.store.apply_unlocked(changes).await;
        self.regroup(&answers).await;
        self.follow(changes, answers)
    }

    /// Promotes timers that were moved and whose last pointer has come up.
    pub fn promote(&self, pointers: Vec<Pointer>) {
        self.promotion.promote(pointers);
    }

    /// Does what follows the commit of these changes.
    fn follow(
        &self,
        changes: &[Change],
        answers: Vec<Result<Applied, Error>>,
    ) -> Vec<Result<Applied, Error>> {
        self.promotion.written(answers.iter().flatten().filter_map(Applied::changed_row));
        for (change, applied) in changes.iter().zip(&answers) {
            if let Some(answer) = Counted::of(applied) {
                self.count_change(&change.event, answer);
            }
            let Ok(Applied::Live(row, answer)) = applied else { continue };
            if row.life.state.is_end() {
                self.count_ended(row.life.state, 1);
            }
            self.metrics.queue_lost.inc_by(row.lost);
            match change.event {
                ChangeEvent::ClaimExpired(_) if *answer == Answer::Done && row.seats.is_none() => {
                    self.metrics.claims_expired.inc();
                }

                ChangeEvent::Released(..) if *answer == Answer::Done => self.metrics.released.inc(),
                ChangeEvent::TooLate(_) if row.life.state == State::Expired => {
                    let late = row.ended_at.unwrap_or_default().since(row.life.due_at);
                    self.metrics.missed.inc_by(u64::from(late > MISSED));
                }
                ChangeEvent::Skipped(_, Skipped::Missed) if *answer == Answer::Done => {
                    self.metrics.missed.inc()
                }
                _ => {}
            }
        }
        answers
    }

    /// Ends timers whose attempt under way succeeded; returns which it ended ([`ColdStore::finish_delivered`]).
    pub async fn finish_delivered(&self, done: &[(Uid, AttemptRecord)]) -> Result<Vec<Uid>, Error> {
        let ended = self.store.finish_delivered(done).await?;
        self.count_ended(State::Delivered, ended.len());
        Ok(ended)
    }

    /// One step of a re-drive ([`ColdStore::redrive`]): dead timers are registered anew.
    pub async fn redrive(
        &self,
        operation: &OperationRow,
        worker: &Worker,
        most: usize,
    ) -> Result<Stepped, Error> {
        let stepped = self.store.within(operation.namespace).redrive(operation, worker, most).await?;
        self.promotion.written(stepped.made.iter());
        self.metrics.registered.inc_by(stepped.made.len() as u64);
        Ok(stepped)
    }

    /// One step of an operation on live timers ([`ColdStore::operate`]).
    pub async fn operate(
        &self,
        operation: &OperationRow,
        worker: &Worker,
        most: usize,
    ) -> Result<Stepped, Error> {
        let store = self.store.within(operation.namespace);
        let Operated { stepped, changes, answers } = store.operate(operation, worker, most).await?;
        let answers: Vec<_> = answers.into_iter().map(Ok).collect();
        self.regroup(&answers).await;
        self.follow(&changes, answers);
        Ok(stepped)
    }

    /// Gives out what is ready in a queue ([`ColdStore::lease`]). Leases of these workers that have ended, and at which
    /// nobody has looked since, end first: a worker that wants what it had gets that, under a new token.
    pub async fn lease(
        &self,
        namespace: Namespace,
        queue: &str,
        asking: &[Asker],
        node: &str,
        turn: &mut Turn,
    ) -> Result<LeaseAnswer, Error> {
        let store = self.store.within(namespace);
        let own: Vec<&str> = asking.iter().filter(|one| one.redo).map(|one| one.worker.as_str()).collect();
        if !own.is_empty() {
            let ended = store.ended_leases(queue, &own).await?;
            let looks: Vec<Change> =
                ended.into_iter().map(|uid| Change { uid, caller: None, event: ChangeEvent::Look }).collect();
            self.apply(&looks).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        let answer = store.lease(queue, asking, node, turn).await?;
        if answer.in_doubt.is_some() {
            return Ok(answer);
        }
        let given = answer.given.iter().flatten();
        let waited = |leased: &crate::cold::Leased| leased.waited_ms as f64 / 1000.0;
        given.for_each(|leased| {
            self.metrics.queue_leased.inc();
            self.metrics.queue_wait_seconds.observe(waited(leased));
        });
        Ok(answer)
    }

    fn count_registered(&self, answers: &[Result<Registered, Error>]) {
        let mut counts = [("new", 0), ("same", 0), ("taken", 0), ("failed", 0)];
        for answer in answers {
            let index = match answer {
                Ok(Registered::New(_)) => 0,
                Ok(Registered::Same(_)) => 1,
                Ok(Registered::Taken) => 2,
                // A request that is not valid.
                Ok(Registered::NoDestination(_) | Registered::Unfitted(_)) => continue,
                Err(_) => 3,
            };
            counts[index].1 += 1;
        }
        self.metrics.registered.inc_by(counts[0].1);
        for (result, count) in counts {
            self.metrics.registrations.with_label_values(&[result]).inc_by(count);
        }
    }

    /// Counts how a caller's change was answered; the node's own events have other series.
    fn count_change(&self, event: &ChangeEvent, answer: Counted) {
        let Metrics { cancels, changes, queue_settlements: settlements, .. } = &self.metrics;
        match event {
            ChangeEvent::Cancel => cancels.with_label_values(&[answer.word()]).inc(),
            ChangeEvent::Edit(_) => changes.with_label_values(&["change", answer.word()]).inc(),
            ChangeEvent::Fire(_) => changes.with_label_values(&["fire", answer.word()]).inc(),
            ChangeEvent::Shift(_) => changes.with_label_values(&["shift", answer.word()]).inc(),
            ChangeEvent::Pause(_) => changes.with_label_values(&["pause", answer.word()]).inc(),
            ChangeEvent::Resume(_) => changes.with_label_values(&["resume", answer.word()]).inc(),
            ChangeEvent::Settle(settlement) => {
                let answer =
                    if matches!(answer, Counted::Answer(Answer::Done)) { "done" } else { "lease_lost" };
                settlements.with_label_values(&[settlement.action.word(), answer]).inc();
            }
            _ => {}
        }
    }

    fn count_ended(&self, state: State, count: usize) {
        self.metrics.ended.with_label_values(&[state.word()]).inc_by(count as u64);
    }
}

/// How a caller's change was answered.
#[derive(Debug, Clone)]
pub enum Changed {
    /// The timer as it is after the change, and the answer. A timer that has ended is not changed; how it ended gives
    /// the answer.
    Answered(Box<TimerRow>, Answer),
    /// `If-Match` named another version; this is the timer's own.
    OtherVersion(Version),
    /// The row cannot be read by this version; nothing was changed.
    Unreadable,
    /// There is no timer of this uid.
    NoTimer,
    /// There is no destination of this name, which the change gives; nothing was changed.
    NoDestination(String),
    /// The change does not fit the timer as it is; nothing was changed.
    Unfit(Unfit),
    /// The new payload was not fitted to the timer's template of this name as it is now, or was fitted to one and the timer has
    /// none; nothing was changed.
    Unfitted(Option<String>),
}

/// Why a caller's change has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It was not taken.
    #[error("not taken: {0:?}")]
    NotTaken(NotTaken),
    /// In the cold store.
    #[error(transparent)]
    Cold(#[from] Error),
}

impl From<NotTaken> for ChangeError {
    fn from(why: NotTaken) -> Self {
        Self::NotTaken(why)
    }
}

/// An answer to a caller's change, as it is counted.
#[derive(Clone, Copy)]
enum Counted {
    Answer(Answer),
    OtherVersion,
    NoTimer,
    Failed,
}

impl Counted {
    /// `None` where the answer depends on how the timer ended, and for a request that is not valid.
    const fn of(applied: &Result<Applied, Error>) -> Option<Self> {
        match applied {
            Ok(Applied::Live(_, answer)) => Some(Self::Answer(*answer)),
            Ok(Applied::Same(_)) => Some(Self::Answer(Answer::Done)),
            Ok(Applied::OtherVersion(_)) => Some(Self::OtherVersion),
            Ok(Applied::Unreadable) | Err(_) => Some(Self::Failed),
            Ok(Applied::NotLive | Applied::NoDestination(_) | Applied::Unfit(_) | Applied::Unfitted(_)) => {
                None
            }
        }
    }

    /// Its word in metrics.
    const fn word(self) -> &'static str {
        match self {
            Self::Answer(Answer::Cancelled) => "cancelled",
            Self::Answer(Answer::Stopped) => "stopped",
            Self::Answer(Answer::InFlight) => "in_flight",
            Self::Answer(Answer::AlreadyFired) => "already_fired",
            Self::Answer(Answer::AlreadyCancelled) => "already_cancelled",
            Self::Answer(Answer::Done) => "done",
            Self::Answer(Answer::Stale) | Self::Failed => "failed",
            Self::OtherVersion => "precondition",
            Self::NoTimer => "not_found",
        }
    }
}

/// How often a change is tried on a timer that ends and is registered again meanwhile.
const CHANGE_TRIES: usize = 3;

/// The writer for callers of the API: single requests in group commits, batches in transactions of their own.
#[derive(Clone)]
pub struct Intake {
    writer: Writer,
    registrations: Batcher<NewTimer, Result<Registered, Error>>,
    changes: Batcher<Change, Result<Applied, Error>>,
    /// Groups run on when their callers go away, so these do not bound them.
    groups: Arc<Semaphore>,
}

impl Intake {
    /// An intake, and the workers to spawn for it. They end when it is dropped and every queued request is answered.
    ///
    /// `writers` is how many transactions of one kind run at once.
    pub fn new(writer: Writer, writers: usize) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let (registering, changing) = (writer.clone(), writer.clone());
        let (registrations, mut workers) =
            Batcher::new(writers, MAX_REGISTER_BATCH, QUEUE, move |batch: Vec<NewTimer>| {
                let writer = registering.clone();
                async move { writer.register(&batch).await }
            });
        let (changes, more) = Batcher::new(writers, MAX_APPLY_BATCH, QUEUE, move |batch: Vec<Change>| {
            let writer = changing.clone();
            async move { writer.apply(&batch).await }
        });
        workers.extend(more);
        (Self { writer, registrations, changes, groups: Arc::new(Semaphore::new(GROUPS)) }, workers)
    }

    /// The same for callers of this namespace.
    #[must_use]
    pub fn within(&self, namespace: Namespace) -> Self {
        let store = self.writer.store.within(namespace);
        Self { writer: Writer { store, ..self.writer.clone() }, ..self.clone() }
    }

    /// Registers one timer, in one transaction with other requests that wait.
    pub async fn register(&self, timer: NewTimer) -> Result<Result<Registered, Error>, NotTaken> {
        self.registrations.submit(timer).await
    }

    /// Makes a caller's change to a live timer ([`ChangeEvent::Cancel`], `Edit`, `Fire`, `Pause` or `Resume`), in one
    /// transaction with other requests that wait. The answer for a timer that has ended follows from how it ended.
    pub async fn change(&self, uid: Uid, event: ChangeEvent) -> Result<Changed, ChangeError> {
        let caller = Some(self.writer.store.namespace());
        let probe = if matches!(event, ChangeEvent::Cancel) { Event::Cancel } else { Event::Relabel };
        for _ in 0..CHANGE_TRIES {
            match self.changes.submit(Change { uid, caller, event: event.clone() }).await?? {
                Applied::Live(row, answer) => return Ok(Changed::Answered(row, answer)),
                Applied::Same(row) => return Ok(Changed::Answered(row, Answer::Done)),
                Applied::OtherVersion(version) => return Ok(Changed::OtherVersion(version)),
                Applied::Unreadable => return Ok(Changed::Unreadable),
                Applied::NoDestination(name) => return Ok(Changed::NoDestination(name)),
                Applied::Unfit(why) => return Ok(Changed::Unfit(why)),
                Applied::Unfitted(template) => return Ok(Changed::Unfitted(template)),
                Applied::NotLive => match self.writer.store.find(uid).await? {
                    Some(row) if row.life.state.is_end() => {
                        let answer = row.answer(row.life.step(probe, UnixMs::default()).answer);
                        self.writer.count_change(&event, Counted::Answer(answer));
                        return Ok(Changed::Answered(Box::new(row), answer));
                    }
                    // It was registered, or registered again, between the two reads: try again.
                    Some(_) => {}
                    None => {
                        self.writer.count_change(&event, Counted::NoTimer);
                        return Ok(Changed::NoTimer);
                    }
                },
            }
        }
        Err(Error::Busy.into())
    }

    /// Settles what workers have; for each whether its token was current. Each goes with other requests that wait, also
    /// those of one call: workers that settle a few at a time would otherwise flush for each few.
    pub async fn settle(&self, settlements: Vec<Settlement>) -> Vec<Result<bool, ChangeError>> {
        let is_done = |applied: &Applied| matches!(applied, Applied::Live(_, Answer::Done));
        let settled = settlements.into_iter().map(|one| async move {
            // The lane of the queue tells whose it is.
            let change = Change { uid: one.token.uid, caller: None, event: ChangeEvent::Settle(one) };
            Ok(is_done(&self.changes.submit(change).await??))
        });
        futures::future::join_all(settled).await
    }

    /// Registers up to [`MAX_REGISTER_BATCH`] timers of one request in a transaction of their own; answers in the order
    /// given. A caller that hangs up stops neither the transaction nor what follows it.
    pub async fn register_many(&self, timers: Vec<NewTimer>) -> Vec<Result<Registered, Error>> {
        let (writer, count) = (self.writer.clone(), timers.len());
        // The semaphore is never closed. A caller that hangs up while it waits has written nothing.
        let permit = Arc::clone(&self.groups).acquire_owned().await;
        let registered = tokio::spawn(async move {
            let _permit = permit;
            writer.register(&timers).await
        })
        .await;
        // Fails only after a panic, or at the end of the process.
        registered.unwrap_or_else(|_| (0..count).map(|_| Err(Error::Busy)).collect())
    }
}

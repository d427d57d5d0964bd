//! The only writer of timers: it registers, changes and ends them, and does what follows each commit.
//!
//! What follows a commit is here and nowhere else: timers that are due soon are promoted, and the changes are counted.
//! It follows whether or not the caller still waits: a caller that hangs up does not cancel what is between a commit and
//! its end. Only the claim is made elsewhere ([`crate::dispatch`]).
//!
//! Callers' requests are committed in groups, without a timed window ([`Batcher`]).

mod batcher;

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

pub use batcher::{Batcher, NotTaken};

use crate::cold::{
    Applied, AttemptRecord, Change, ChangeEvent, ColdStore, Error, MAX_APPLY_BATCH, MAX_REGISTER_BATCH,
    NewTimer, Registered,
};
use crate::metrics::Metrics;
use crate::model::id::Uid;
use crate::model::timer::{Answer, State};
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

    /// Registers up to [`MAX_REGISTER_BATCH`] timers in one transaction; answers in the order given.
    pub async fn register(&self, timers: &[NewTimer]) -> Vec<Result<Registered, Error>> {
        let answers = self.store.register(timers).await;
        self.promotion.written(answers.iter().filter_map(Registered::new_row));
        let new = answers.iter().filter_map(Registered::new_row).count();
        self.metrics.registered.inc_by(new as u64);
        answers
    }

    /// Applies up to [`MAX_APPLY_BATCH`] changes; answers in the order given ([`ColdStore::apply`]).
    pub async fn apply(&self, changes: &[Change]) -> Vec<Result<Applied, Error>> {
        let answers = self.store.apply(changes).await;
        self.promotion.written(answers.iter().flatten().filter_map(Applied::changed_row));
        for (change, applied) in changes.iter().zip(&answers) {
            let Ok(Applied::Live(row, answer)) = applied else { continue };
            if row.life.state.is_end() {
                self.count_ended(row.life.state, 1);
            }
            match change.event {
                ChangeEvent::ClaimExpired(_) if *answer == Answer::Done => self.metrics.claims_expired.inc(),
                ChangeEvent::Released(..) if *answer == Answer::Done => self.metrics.released.inc(),
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

    fn count_ended(&self, state: State, count: usize) {
        self.metrics.ended.with_label_values(&[state.word()]).inc_by(count as u64);
    }
}

/// The writer for callers of the API: single requests in group commits, batches in transactions of their own.
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

    /// Registers one timer, in one transaction with other requests that wait.
    pub async fn register(&self, timer: NewTimer) -> Result<Result<Registered, Error>, NotTaken> {
        self.registrations.submit(timer).await
    }

    /// Changes one timer, in one transaction with other requests that wait.
    pub async fn change(&self, change: Change) -> Result<Result<Applied, Error>, NotTaken> {
        self.changes.submit(change).await
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

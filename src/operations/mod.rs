//! Operations: one action on every timer that a filter matches.
//!
//! An operation is a row of SQL. Whichever node takes its lease works through it in bounded steps, each one transaction
//! that changes timers and moves the position; a node that is killed leaves the rest to the next. Steps are paced, so that
//! what is due meanwhile is not delayed. What an action does to a timer stands in one place, `Operations::step`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, MAX_STEP, NewOperation, OperationRow, Selection, Stepped, Worker};
use crate::model::namespace::Namespace;
use crate::model::operation::{Action, OperationId, OperationState};
use crate::telemetry::Streak;
use crate::writer::Writer;

/// How many rows one node reads a second to find the timers, at least, however few it changes.
const ROWS_PER_SECOND: u32 = 20_000;

/// How many operations one node works on at a time, in turns.
const MOST: usize = 8;

/// How long another node waits for one that is silent. Each step renews it, so all of a node have to have a turn within it.
const LEASE: Duration = Duration::from_secs(10);

/// How often a node looks for operations that nobody works on.
const LOOK: Duration = Duration::from_secs(2);

/// The shortest pause between two steps: one may find nothing that matches.
const BREATH: Duration = Duration::from_millis(10);

/// The pause after a step that waits for ends to settle ([`crate::cold::SETTLED`]). Others have their turns meanwhile.
const SETTLING: Duration = Duration::from_millis(250);

/// A step that the database refuses is tried so often; then the operation has failed.
const TRIES: u32 = 20;

/// A step that takes the database too long is tried so often, which lasts for a quarter of an hour and more. A store under
/// load gets over it; a row that somebody keeps locked would hold up all operations that wait for this one.
const TRIES_IN_TIME: u32 = 100;

/// An operation that this node works on.
struct Held {
    operation: OperationRow,
    failures: Failures,
}

impl Held {
    fn new(operation: OperationRow) -> Self {
        Self { operation, failures: Failures::default() }
    }
}

/// The steps of an operation in a row that failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Failures {
    all: u32,
    /// Those that took the database too long.
    timeouts: u32,
}

impl Failures {
    /// One more.
    fn and(self, why: &Error) -> Self {
        Self { all: self.all + 1, timeouts: self.timeouts + u32::from(why.is_timeout()) }
    }

    /// Whether a step may succeed later, the last of these for this reason.
    fn may_go_on(self, why: &Error) -> bool {
        match why {
            Error::Refused(_) => !why.is_data() && self.all < TRIES,
            other if other.is_timeout() => self.timeouts < TRIES_IN_TIME,
            other => other.is_passing(),
        }
    }
}

/// How long a step takes up of a node's time, which changes so many timers a second: so many timers that it looked at
/// closely, of so many rows.
fn pace(per_second: u32, looked_at: usize, scanned: usize) -> Duration {
    let part = |count: usize, per_second: u32| {
        Duration::from_secs(1) * u32::try_from(count).unwrap_or(u32::MAX) / per_second
    };
    part(looked_at, per_second).max(part(scanned, ROWS_PER_SECOND.max(per_second)))
}

/// How many timers a step takes, so that there are about ten steps a second.
fn step_size(per_second: u32) -> usize {
    (per_second as usize / 10).clamp(1, MAX_STEP)
}

/// Begins operations, and works on those that no other node works on.
pub struct Operations {
    store: ColdStore,
    writer: Writer,
    worker: Worker,
    /// How many timers this node changes a second, by all its operations together.
    per_second: u32,
    /// There is a new one.
    is_new: Notify,
    failing: Mutex<Streak>,
}

impl Operations {
    /// The operations of this store, worked on in the name of `node`, which changes so many timers a second.
    pub fn new(store: ColdStore, writer: Writer, node: &str, per_second: u32) -> Self {
        let lease_ms = i64::try_from(LEASE.as_millis()).unwrap_or(0);
        let worker = Worker { node: node.to_owned(), token: Uuid::now_v7(), lease_ms };
        Self { store, writer, worker, per_second, is_new: Notify::new(), failing: Mutex::default() }
    }

    /// Begins an operation; `None` if as many run as may ([`crate::cold::MAX_RUNNING`]). `filter` is what the caller
    /// asked for, as JSON.
    pub async fn begin(
        &self,
        namespace: Namespace,
        action: Action,
        filter: String,
        selection: Selection,
        dry_run: bool,
    ) -> Result<Option<OperationRow>, Error> {
        let id = OperationId(Uuid::now_v7());
        self.begin_new(namespace, NewOperation { id, action, filter, selection, dry_run }).await
    }

    /// Does what a dry run has counted, and takes nothing that came after that: asked again, it is the same operation. `None`
    /// if as many run as may.
    pub async fn begin_counted(
        &self,
        counted: &OperationRow,
        action: Action,
    ) -> Result<Option<OperationRow>, Error> {
        let id = counted.id.of_run();
        if let Some(begun) = self.find(counted.namespace, id).await? {
            return Ok(Some(begun));
        }
        let (filter, selection) = (counted.filter.clone(), counted.selection()?);
        let selection = Selection {
            registered_until: Some(counted.created_at),
            ended_before: selection.ended_before.min(counted.created_at),
            ..selection
        };
        let new = NewOperation { id, action, filter, selection, dry_run: false };
        match self.begin_new(counted.namespace, new).await? {
            // There is no room, or another call came first.
            None => self.find(counted.namespace, id).await,
            begun => Ok(begun),
        }
    }

    async fn begin_new(
        &self,
        namespace: Namespace,
        mut new: NewOperation,
    ) -> Result<Option<OperationRow>, Error> {
        // What ends from now on is not taken: a timer that it makes run again may die again.
        let selection = &mut new.selection;
        selection.ended_before = selection.ended_before.min(self.store.clock().now());
        let begun = self.store.within(namespace).create_operation(&new).await?;
        if begun.is_some() {
            let NewOperation { id, action, dry_run, .. } = new;
            tracing::info!(operation = %id, action = action.word(), dry_run, "an operation on many timers begins");
            self.is_new.notify_one();
        }
        Ok(begun)
    }

    /// All operations that are kept, the last one first.
    pub async fn list(&self, namespace: Namespace) -> Result<Vec<OperationRow>, Error> {
        self.store.within(namespace).operations().await
    }

    /// One operation.
    pub async fn find(&self, namespace: Namespace, id: OperationId) -> Result<Option<OperationRow>, Error> {
        self.store.within(namespace).operation(id).await
    }

    /// Ends a running operation early; one that has ended stays as it is. `None` if there is none.
    pub async fn end(&self, namespace: Namespace, id: OperationId) -> Result<Option<OperationRow>, Error> {
        self.store.within(namespace).stop_operation(id).await
    }

    /// Works on operations until stopped. The step under way is finished; another node goes on with the rest.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut held = Vec::new();
        let mut looked_at: Option<Monotonic> = None;
        while !stop.is_cancelled() {
            let mut pause = LOOK;
            let is_time = looked_at.is_none_or(|at| at.elapsed() >= LOOK);
            if is_time && held.len() < MOST {
                looked_at = Some(Monotonic::now());
                let of: Vec<Namespace> = held.iter().map(|one: &Held| one.operation.namespace).collect();
                let of_ids: Vec<OperationId> = held.iter().map(|one: &Held| one.operation.id).collect();
                match self.store.lease_operations(&self.worker, &of, MOST - held.len()).await {
                    // One of its own whose lease ended meanwhile is no other one.
                    Ok(more) => {
                        let is_new = |one: &OperationRow| of_ids.iter().all(|id| *id != one.id);
                        held.extend(more.into_iter().filter(is_new).map(Held::new));
                    }
                    Err(why) => self.note_failure(&why),
                }
            }
            if !held.is_empty() {
                pause = self.run_once(&mut held).await;
            }
            tokio::select! {
                // In this order, so that a run of the simulation does not depend on chance.
                biased;
                () = stop.cancelled() => {}
                () = self.is_new.notified(), if held.is_empty() => looked_at = None,
                () = self.store.clock().sleep(pause) => {}
            }
        }
        if !held.is_empty() && self.store.release_operations(self.worker.token).await.is_err() {
            tracing::debug!("the leases of operations end by themselves");
        }
    }

    /// One step of the first of these operations, which goes to the end of the queue, or is removed if it has ended.
    /// Returns the pause that keeps the pace.
    async fn run_once(&self, held: &mut Vec<Held>) -> Duration {
        let Held { operation, failures } = held.remove(0);
        match self.step(&operation).await {
            Ok(Stepped { operation: Some(after), looked_at, scanned, waits, .. }) => {
                if let Ok(mut failing) = self.failing.lock() {
                    failing.succeeded();
                }
                match after.state {
                    OperationState::Running => held.push(Held::new(after)),
                    _ => tracing::info!(
                        operation = %after.id, matched = after.matched, done = after.done,
                        "an operation on many timers has ended"
                    ),
                }
                pace(self.per_second, looked_at, scanned).max(if waits { SETTLING } else { BREATH })
            }
            // It was stopped, or another node has taken it over.
            Ok(Stepped { operation: None, .. }) => BREATH,
            Err(why) if failures.and(&why).may_go_on(&why) => {
                self.note_failure(&why);
                held.push(Held { operation, failures: failures.and(&why) });
                Duration::from_secs(1)
            }
            Err(why) => {
                tracing::error!(operation = %operation.id, %why, "an operation on many timers cannot go on");
                let store = self.store.within(operation.namespace);
                if store.fail_operation(operation.id, &why.to_string()).await.is_err() {
                    held.push(Held { operation, failures });
                }
                Duration::from_secs(1)
            }
        }
    }

    /// The next step of an operation.
    async fn step(&self, operation: &OperationRow) -> Result<Stepped, Error> {
        let most = step_size(self.per_second);
        match Action::from_word(&operation.action) {
            Some(Action::Redrive) => self.writer.redrive(operation, &self.worker, most).await,
            Some(Action::Purge) => {
                self.store.within(operation.namespace).purge(operation, &self.worker, most).await
            }
            Some(_) => self.writer.operate(operation, &self.worker, most).await,
            None => Err(Error::Corrupt("an action that this version does not know".into())),
        }
    }

    fn note_failure(&self, why: &Error) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if failing.failed(self.store.is_away()) {
            tracing::warn!(%why, "operations on many timers do not go on; they are tried again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_finds_nothing_is_paced_by_the_rows_that_it_read() {
        assert_eq!(pace(1000, 0, 2000), Duration::from_millis(100));
        assert_eq!(pace(1000, 100, 100), Duration::from_millis(100));
        assert_eq!(pace(50_000, 500, 2000), Duration::from_millis(40));
        assert_eq!(pace(1000, 0, 0), Duration::ZERO);
        assert_eq!([1, 1000, 100_000].map(step_size), [1, 100, MAX_STEP]);
    }

    #[test]
    fn a_step_is_tried_again_as_long_as_that_may_help() {
        let refused = Error::Refused(Arc::new(sea_orm::sqlx::Error::RowNotFound));
        let after = |all, timeouts| Failures { all, timeouts };
        assert!(after(1, 0).may_go_on(&refused) && !after(TRIES, 0).may_go_on(&refused));
        let many = after(1000, 0);
        assert!(many.may_go_on(&Error::Busy) && many.may_go_on(&Error::Full), "these pass by themselves");
        assert!(!after(1, 0).may_go_on(&Error::Corrupt("a row".into())));
    }

    /// What a database says, as far as an error is read from it.
    #[derive(Debug)]
    struct Said(&'static str);

    impl std::fmt::Display for Said {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Said {}

    impl sea_orm::sqlx::error::DatabaseError for Said {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sea_orm::sqlx::error::ErrorKind {
            sea_orm::sqlx::error::ErrorKind::Other
        }
    }

    #[test]
    fn a_step_that_takes_too_long_again_and_again_is_given_up_in_the_end() {
        let said = |code| Error::from(sea_orm::sqlx::Error::Database(Box::new(Said(code))));
        let (timeout, away) = (said("57014"), said("57P01"));
        let (mut late, mut absent) = (Failures::default(), Failures::default());
        for _ in 0..1000 {
            absent = absent.and(&away);
        }
        assert!(
            absent.may_go_on(&away) && absent.and(&timeout).may_go_on(&timeout),
            "an outage does not count"
        );
        for _ in 1..TRIES_IN_TIME {
            late = late.and(&timeout);
        }
        assert!(late.may_go_on(&timeout) && !late.and(&timeout).may_go_on(&timeout));
    }
}

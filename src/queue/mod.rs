//! Queues: workers ask for what is due, wait for it, and settle it.
//!
//! Calls that wait for one queue on this node stand at one *desk*, in the order in which they came. A desk has a task while
//! calls wait at it. When something of its queue is ready, one transaction gives out to as many of them as possible
//! ([`crate::cold::ColdStore::lease`]); so a thousand workers that wait cost no more than one. The store decides who gets
//! what: this room only knows when to ask it.
//!
//! A desk asks when a call comes, when a pointer of its queue comes up on this node, when another node says that one has
//! come up there, and every few seconds, because such a note may be lost.
//!
//! An answer that cannot be written gives back what it held ([`Given`]); that does not count as an attempt.

mod desk;
mod waiting;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Monotonic;
use crate::cold::{Asking, Change, ChangeEvent, ColdStore, Error, Leased, Turn};
use crate::metrics::Metrics;
use crate::model::namespace::Namespace;
use crate::model::queue::{Settings, lane};
use crate::ownership::Ownership;
use crate::writer::Writer;
use desk::{Call, Desk};
use waiting::{MAX_WAITING, Waiting};

/// How long this node remembers what queues say, for what answers show.
const REMEMBERED: Duration = Duration::from_secs(5);

/// The most queues of which that is remembered.
const MAX_REMEMBERED: usize = 10_000;

/// The most queues of which it is remembered whose turn it is. Most have none: what waits is of one priority.
const MAX_TURNS: usize = 10_000;

/// How often it is tried to take back what nobody got.
const TRIES: usize = 10;

/// The pause between these.
const BETWEEN_TRIES: Duration = Duration::from_secs(3);

/// The pause after a notification of other nodes: what becomes ready meanwhile goes with the next.
const BETWEEN_NOTIFICATIONS: Duration = Duration::from_millis(5);

/// Why a lease call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Too many calls wait on this node.
    #[error("{MAX_WAITING} calls wait on this node already, or three quarters as many of this namespace")]
    Full,
    /// In the cold store.
    #[error(transparent)]
    Cold(#[from] Error),
}

/// The queues, as a node serves them.
pub struct Queues {
    store: ColdStore,
    writer: Writer,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    desks: Mutex<HashMap<i64, Desk>>,
    waiting: Waiting,
    /// Whose turn it is among priorities, by lane: where there is a backlog nearly every call comes to a desk of its own.
    turns: Mutex<HashMap<i64, Turn>>,
    /// What queues say that say anything, by name.
    known: Mutex<HashMap<String, Settings>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What a worker was given. Unless [`Given::keep`] is called, it is taken back when this is dropped.
pub struct Given {
    /// What it got; may be empty.
    pub items: Vec<Leased>,
    queues: Option<Arc<Queues>>,
}

impl Given {
    /// The answer was written.
    pub fn keep(mut self) {
        self.queues = None;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(queues) = self.queues.take().filter(|_| !self.items.is_empty()) {
            queues.take_back(&self.items);
        }
    }
}

/// What takes back these items, because the answer that holds them cannot be written. What a worker had before stays with
/// it: an earlier answer may have told it, and it may be at work.
pub fn taken_back(items: &[Leased]) -> Vec<Change> {
    let change = |item: &Leased| {
        Some(Change {
            uid: item.token.uid,
            caller: None,
            event: ChangeEvent::TakeBack(item.token, item.lease_until, item.before?),
        })
    };
    items.iter().filter_map(change).collect()
}

impl Queues {
    /// The queues of this store. `stop` is cancelled when the node stops: calls that wait are answered then.
    pub fn new(
        store: ColdStore,
        writer: Writer,
        ownership: Arc<Ownership>,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let waiting = Waiting::new(metrics.queue_workers.clone());
        Arc::new(Self {
            store,
            writer,
            ownership,
            metrics,
            desks: Mutex::default(),
            waiting,
            turns: Mutex::default(),
            known: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// Wakes desks when something is ready, and tells other nodes, until stopped.
    pub async fn run(self: Arc<Self>) {
        let mut read_at: Option<Monotonic> = None;
        loop {
            if read_at.is_none_or(|at| at.elapsed() >= REMEMBERED) {
                // What is not known is not shown, for a while.
                if let Err(why) = self.read_settings().await {
                    tracing::debug!(%why, "queues cannot be read");
                }
                read_at = Some(Monotonic::now());
            }
            let ready = tokio::select! {
                ready = self.store.next_ready() => ready,
                () = self.store.clock().sleep(REMEMBERED) => continue,
            };
            for (lane, desk) in self.desks().iter() {
                if ready.any || ready.here.contains(lane) || ready.elsewhere.contains(lane) {
                    desk.wake();
                }
            }
            if !ready.here.is_empty() {
                self.tell_others(ready.here).await;
            }
        }
    }

    /// Tells other nodes that these queues have something ready.
    async fn tell_others(&self, lanes: BTreeSet<i64>) {
        if !self.store.is_shared() || !self.ownership.has_peers() {
            return;
        }
        let lanes: Vec<i64> = lanes.into_iter().collect();
        if let Err(why) = self.store.tell_ready(&lanes, &self.ownership.me().incarnation).await {
            // Workers that wait elsewhere look by themselves every few seconds.
            tracing::debug!(%why, "other nodes were not told what is ready");
        }
        self.store.clock().sleep(BETWEEN_NOTIFICATIONS).await;
    }

    async fn read_settings(&self) -> Result<(), Error> {
        let rows = self.store.queues_with_settings(MAX_REMEMBERED).await?;
        let said = rows.into_iter().filter(|row| row.settings != Settings::default());
        let said = said.map(|row| (row.namespace.qualified(&row.name).into_owned(), row.settings)).collect();
        *self.known() = said;
        Ok(())
    }

    /// What a queue says, as this node has read it some seconds ago.
    pub fn settings(&self, namespace: Namespace, name: &str) -> Settings {
        self.known().get(&*namespace.qualified(name)).cloned().unwrap_or_default()
    }

    /// Notes what a queue says from now on.
    pub fn note_settings(&self, namespace: Namespace, name: &str, settings: &Settings) {
        self.known().insert(namespace.qualified(name).into_owned(), settings.clone());
    }

    /// A queue was changed here: workers that wait look at once, elsewhere too.
    pub async fn changed(&self, namespace: Namespace, name: &str) {
        let lane = lane(namespace, name);
        if let Some(desk) = self.desks().get(&lane) {
            desk.wake();
        }
        self.tell_others(BTreeSet::from([lane])).await;
    }

    /// Gives a worker what is ready, or waits up to `wait` for something.
    pub async fn lease(
        self: &Arc<Self>,
        (namespace, queue): (Namespace, &str),
        asking: Asking,
        wait: Duration,
    ) -> Result<Given, Refused> {
        let counted = self.waiting.enter(namespace, self.store.has_others()).ok_or(Refused::Full)?;
        let (answer, answered) = oneshot::channel();
        let call = Call::new((namespace, queue), asking, Monotonic::now().plus(wait), answer, counted);
        self.arrive((namespace, queue), call);
        match answered.await {
            Ok(Ok(given)) => Ok(given),
            Ok(Err(why)) => Err(why.into()),
            // The node stops.
            Err(_) => Ok(Given { items: Vec::new(), queues: None }),
        }
    }

    /// A call comes to its desk.
    fn arrive(self: &Arc<Self>, (namespace, queue): (Namespace, &str), call: Call) {
        let lane = lane(namespace, queue);
        let mut desks = self.desks();
        match desks.get_mut(&lane) {
            Some(desk) => desk.arrive(call),
            None => {
                let mut desk = Desk::default();
                desk.arrive(call);
                desks.insert(lane, desk);
                let (this, queue) = (Arc::clone(self), queue.to_owned());
                self.tasks.spawn(async move { this.serve(lane, (namespace, &queue)).await });
            }
        }
    }

    /// Takes back what nobody got. While the store cannot be reached it tries again, for a while: after that their leases end
    /// by themselves.
    fn take_back(self: Arc<Self>, items: &[Leased]) {
        let changes = taken_back(items);
        self.metrics.queue_taken_back.inc_by(changes.len() as u64);
        let this = Arc::clone(&self);
        self.tasks.spawn(async move {
            for changes in changes.chunks(crate::cold::MAX_APPLY_BATCH) {
                for _ in 0..TRIES {
                    let failed = this.writer.apply(changes).await.into_iter().find_map(Result::err);
                    let Some(why) = failed else { break };
                    tracing::debug!(%why, "places that nobody got were not taken back");
                    if !why.is_passing() {
                        break;
                    }
                    tokio::select! {
                        () = this.stop.cancelled() => return,
                        () = this.store.clock().sleep(BETWEEN_TRIES) => {}
                    }
                }
            }
        });
    }

    /// Waits until every task of a desk has ended. To be called after the stop.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn desks(&self) -> MutexGuard<'_, HashMap<i64, Desk>> {
        // A panic while the lock is held leaves calls that end with their time.
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, lane: i64) -> Turn {
        self.turns().get(&lane).copied().unwrap_or_default()
    }

    /// Notes whose turn it is in a queue from now on.
    fn note_turn(&self, lane: i64, turn: Turn) {
        let mut turns = self.turns();
        if turn == Turn::default() {
            turns.remove(&lane);
            return;
        }
        if turns.len() >= MAX_TURNS && !turns.contains_key(&lane) {
            // Any of them: its turns begin again.
            if let Some(one) = turns.keys().next().copied() {
                turns.remove(&one);
            }
        }
        turns.insert(lane, turn);
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<i64, Turn>> {
        // A panic while the lock is held leaves a plain map.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Settings>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

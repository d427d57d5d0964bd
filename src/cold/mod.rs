//! The cold store: the SQL truth about every live timer, on PostgreSQL or SQLite.
//!
//! Ground rules. A timer changes in one row, inside a transaction; so of a claim, a cancel and a reschedule of
//! one timer exactly one wins. A 2xx is answered after a commit that was flushed. Batches are sorted by key, so
//! that two of them do not deadlock; where PostgreSQL finds a deadlock all the same, the transaction is run
//! again. The store's clock decides what is due ([`crate::clock::StoreClock`]).
//!
//! This room never speaks HTTP, never delivers, and does not know the wheels.

mod apply;
mod audit;
mod backlog;
mod claim;
mod columns;
mod copies;
mod decide;
mod destinations;
mod end;
mod entity;
mod error;
mod forecast;
mod gate;
mod history;
mod hook;
mod keys;
mod late;
mod lease;
mod list;
mod merge;
mod namespaces;
mod notify;
mod open;
mod operations;
mod outbox;
mod places;
mod query;
mod queues;
mod ready;
mod register;
mod report;
mod restore;
mod row;
mod schedules;
mod schema;
mod shards;
mod spread;
mod sql;
mod subscriptions;
mod templates;
mod totals;
mod watermark;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use sea_orm::DatabaseConnection;
use sea_orm::sqlx::PgPool;

pub use apply::{Applied, Change, ChangeEvent, Edit, MAX_BATCH as MAX_APPLY_BATCH, Settlement, Unfit};
pub use audit::{Actor, AuditFilter, AuditRow, Deed, MAX_AUDIT_PAGE, acting, carried};
pub use backlog::{Backlog, LeftOut, MAX_EVENTS as MAX_EVENT_BATCH, MOST_EXCESS};
pub use claim::{Backlogged, Claimed, DueRow, DueRows, Early, MAX_BATCH as MAX_CLAIM_BATCH, Probe};
pub use copies::{Copied, Mark};
pub use destinations::{
    DestinationEdit, DestinationRow, MAX_DESTINATIONS, MOST_COUNTED, Named, Removed, Reserved, Uses, Written,
};
pub use error::Error;
pub use forecast::{SCALES, Summary};
pub use history::Step as RetentionStep;
#[cfg(feature = "planted")]
pub use hook::{Call, FailPoint};
pub use keys::{KeyMade, KeyRevoked, KeyRow, KeysMark, MAX_KEYS, NewKey};
pub use late::{DeadTimer, LateOf, LateTimers};
pub use lease::{Asker, Asking, LeaseAnswer, Leased, MAX_ASKING, Turn};
pub use list::{Filter, ListCursor, Page};
pub use merge::{ClaimedSet, Doubtful};
pub use namespaces::{MAX_NAMESPACES, NamespaceRemoved, NamespaceRow, NamespaceWritten};
pub use operations::{
    MAX_RUNNING, MAX_STEP, NewOperation, Operated, OperationRow, SETTLED, Selection, Stepped, Worker,
};
pub use outbox::EventRow;
pub use queues::{QueueDepth, QueueRemoved, QueueRow, most_counted};
pub use ready::ReadyNow;
pub use register::{MAX_BATCH as MAX_REGISTER_BATCH, NewTimer, Registered};
pub use report::NodeReport;
pub use restore::Held;
pub use row::{AttemptRecord, TimerRow};
pub use schedules::{
    Backfilled, Content, MAX_BACKFILL, MAX_SCHEDULES, MadeOccurrences, Rhythm, ScheduleEdit, ScheduleFilter,
    ScheduleGone, SchedulePage, SchedulePut, ScheduleRow, SkippedRange,
};
pub use schema::MigrationState;
pub use shards::{FUTURE_MS, Heartbeat, Identity, NodeRow};
pub use subscriptions::{
    MAX_SUBSCRIPTIONS, MOST_IN_ALL as MOST_SUBSCRIPTIONS_IN_ALL, Subscribed, SubscriptionRow, SubscriptionSet,
};
pub use templates::{
    MAX_TEMPLATE_TEXT, MAX_TEMPLATES, TemplateEdit, TemplateRemoved, TemplateRow, TemplateWritten,
};
pub use totals::{Ledger, NamespaceLedger, Verification, Whose};
pub use watermark::{Range, ReplayNote, ScanPosition, Scanned, ShardRow};

use crate::clock::{Monotonic, StoreClock};
use crate::config::CLAIM_MARGIN;
use crate::metrics::{Connections, Metrics};
use crate::model::namespace::{Namespace, Salt, Sender};
use crate::planted::Planted;
use spread::Spreads;
use sql::{Dialect, Pool, Statement};

/// How long PostgreSQL lets a statement run.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long claims and ends pass by locked rows after one of them had to wait too long for a lock.
const SKIP_LOCKED_FOR: Duration = Duration::from_secs(10);

/// Days ahead of today for which history has partitions.
pub const DAYS_AHEAD: i64 = 7;

/// Rows of each total that one process adds to.
const TOTALS_SLOTS: i64 = 4;

/// The cold store.
#[derive(Clone)]
pub struct ColdStore {
    pool: Pool,
    /// Connections that callers' queries cannot use up, for what the node does by itself: leases, claims,
    /// results, sweep, loader ([`ColdStore::urgently`]).
    urgent: Pool,
    /// One connection, to listen on; `None` on SQLite.
    listener: Option<PgPool>,
    db: DatabaseConnection,
    urgent_db: DatabaseConnection,
    clock: StoreClock,
    /// The clock of PostgreSQL is replaced by this process's too (tests).
    manual: bool,
    /// What the hashes of its own namespace are made with: its name.
    own: Salt,
    /// Those of the namespace that callers' methods are about ([`ColdStore::within`]).
    salt: Salt,
    shards: u16,
    retention_ms: i64,
    audit_retention_ms: i64,
    claim_ttl_ms: i64,
    /// The longest attempt that a destination allows, in milliseconds.
    longest_attempt_ms: Arc<AtomicI64>,
    /// The first of the rows of each total that this process adds to, in turn. They are its own, so that
    /// transactions of several processes do not wait for each other's flush.
    slot: i64,
    turn: Arc<AtomicI64>,
    /// How many schedules this process may still make before it counts them.
    schedule_room: Arc<tokio::sync::Mutex<i64>>,
    planted: Planted,
    /// The last renewal of the leases failed.
    away: Arc<AtomicBool>,
    /// Until when claims and ends pass by locked rows ([`ColdStore::unblocked`]).
    skip_locked: Arc<Mutex<Option<Monotonic>>>,
    /// The highest incarnation of the store that was seen ([`restore`]).
    seen: Arc<AtomicI64>,
    /// What is held since the store was restored.
    held: Arc<Mutex<Option<Held>>>,
    /// The namespaces as senders, as they were last read.
    senders: Arc<RwLock<HashMap<Namespace, Arc<Sender>>>>,
    /// There are namespaces beside its own, as far as this node knows.
    has_others: Arc<AtomicBool>,
    /// What is known of what every node knows a copy of.
    copies: Arc<copies::Copies>,
    /// Which queues have something ready.
    ready: Arc<ready::ReadyLanes>,
    /// What is known of the ranges that timers are spread over.
    spreads: Spreads,
    /// The subscriptions that this node writes events for.
    known_set: Arc<subscriptions::KnownSet>,
    /// How many events this process has written.
    told: Arc<outbox::Told>,
    /// The lock beside the SQLite file, held until the last clone is dropped.
    lock: Option<Arc<std::fs::File>>,
}

impl ColdStore {
    /// Checks that the database answers, and observes its clock.
    pub async fn ping(&self) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "clock");
        let now = s.now_us(self.bound_now());
        s.push(&format!("SELECT {now}"));
        let sent = Monotonic::now();
        if let Some(row) = self.pool.read(s).await?.first() {
            self.clock.observe_us(sent, row.get(0)?);
        }
        Ok(())
    }

    /// The store's clock, as this node knows it.
    pub const fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// The same store, on the connections that callers' queries cannot use up.
    #[must_use]
    pub fn urgently(&self) -> Self {
        Self { pool: self.urgent.clone(), db: self.urgent_db.clone(), ..self.clone() }
    }

    /// The same store, with a fail point and another clock, which also replaces the database's.
    #[cfg(feature = "planted")]
    #[must_use]
    pub fn with_fail_point(&self, point: Arc<dyn FailPoint>, clock: Arc<dyn crate::clock::Clock>) -> Self {
        let mut this = Self { clock: StoreClock::local(clock), ..self.clone() };
        this.pool.hook.point = Some(Arc::clone(&point));
        this.urgent.hook.point = Some(point);
        this
    }

    /// The same store, whose calls are counted in these series.
    #[must_use]
    pub fn measured(mut self, metrics: &Metrics) -> Self {
        self.pool.hook.metrics = Some(metrics.clone());
        self.urgent.hook.metrics = Some(metrics.clone());
        self
    }

    /// The connections in use, by pool.
    pub fn connections(&self) -> Vec<(&'static str, Connections)> {
        let mut pools = vec![("cold", self.pool.connections())];
        if self.is_shared() {
            pools.push(("cold_urgent", self.urgent.connections()));
        }
        pools
    }

    /// Whether the last renewal of the leases failed. That is logged, once for all loops that fail with it.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// Notes whether the renewal of the leases failed; returns whether it did before.
    pub fn set_away(&self, away: bool) -> bool {
        self.away.swap(away, Ordering::Relaxed)
    }

    /// The planted defect, for the rooms that work with this store.
    pub const fn planted(&self) -> Planted {
        self.planted
    }

    /// From now on a claim lasts for an attempt of this length, too.
    pub fn set_longest_attempt(&self, longest: Duration) {
        let longest_ms = i64::try_from(longest.as_millis()).unwrap_or(i64::MAX / 4);
        self.longest_attempt_ms.store(longest_ms, Ordering::Relaxed);
    }

    /// How long a claim lasts, in milliseconds.
    fn claim_ttl_ms(&self) -> i64 {
        let margin_ms = i64::try_from(CLAIM_MARGIN.as_millis()).unwrap_or(0);
        self.claim_ttl_ms.max(self.longest_attempt_ms.load(Ordering::Relaxed) + margin_ms)
    }

    /// Every shard of the store.
    pub fn shards(&self) -> impl Iterator<Item = i32> + use<> {
        0..i32::from(self.shards)
    }

    /// What the hashes of the namespace are made with that this is about.
    pub const fn salt(&self) -> &Salt {
        &self.salt
    }

    /// The namespace that this is about.
    pub const fn namespace(&self) -> Namespace {
        self.salt.namespace
    }

    /// The name of the store's own namespace.
    pub fn own_name(&self) -> &str {
        self.own.text()
    }

    /// Whether there are namespaces beside the store's own, as far as this node knows.
    pub fn has_others(&self) -> bool {
        self.has_others.load(Ordering::Relaxed)
    }

    /// Notes whether there are namespaces beside the store's own. The forecast goes by it: without others that of the store is that
    /// of its own.
    pub fn set_has_others(&self, has_others: bool) {
        self.has_others.store(has_others, Ordering::Relaxed);
    }

    /// The same store for callers of this namespace: what has a name is looked for there, and made there.
    ///
    /// What a node does by itself (claims, ends, occurrences, operations) goes by the namespace of each row instead.
    #[must_use]
    pub fn within(&self, namespace: Namespace) -> Self {
        Self { salt: self.own.of(namespace), ..self.clone() }
    }

    /// Whether other nodes may share the store: PostgreSQL.
    pub fn is_shared(&self) -> bool {
        self.dialect() == Dialect::Postgres
    }

    /// How many transactions of one kind are worth running at once.
    pub fn writers(&self) -> usize {
        match self.dialect() {
            Dialect::Postgres => 2,
            Dialect::Sqlite => 1,
        }
    }

    /// How many timers of a batch are worth registering in one transaction. On SQLite claims wait for it: 500 take about
    /// ten milliseconds, of the fifty by which a claim is ahead of its due time.
    pub fn bulk(&self) -> usize {
        match self.dialect() {
            Dialect::Postgres => MAX_REGISTER_BATCH,
            Dialect::Sqlite => MAX_REGISTER_BATCH / 2,
        }
    }

    /// The namespace that this is about, bound.
    fn here(&self, s: &mut Statement) -> String {
        s.int(self.namespace().0.into())
    }

    fn dialect(&self) -> Dialect {
        self.pool.dialect()
    }

    /// Runs a batch so that rows which a stranger has locked do not hold up the others. `run` is told whether to pass by
    /// locked rows. That costs a lock for each row, so it is done only for some seconds after a batch was blocked.
    async fn unblocked<T, F>(&self, run: impl Fn(bool) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let until = || self.skip_locked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_passing_by = until().is_some_and(|until| Monotonic::now() < until);
        // On the heap: a transaction's future is large, and it stands here twice.
        match Box::pin(run(is_passing_by)).await {
            Err(why) if why.is_blocked() && !is_passing_by => {
                *until() = Some(Monotonic::now().plus(SKIP_LOCKED_FOR));
                Box::pin(run(true)).await
            }
            done => done,
        }
    }

    /// The time that a statement binds as the store's: on SQLite, which has no clock of its own, and in tests.
    fn bound_now(&self) -> Option<i64> {
        match self.dialect() {
            Dialect::Sqlite => Some(self.clock.now().get()),
            Dialect::Postgres => self.manual.then(|| self.clock.now().get()),
        }
    }
}

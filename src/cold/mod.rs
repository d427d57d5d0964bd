//! The cold store: the SQL truth about every live timer, on PostgreSQL or SQLite.
//!
//! Ground rules. Every change of a timer is one row's change inside a transaction, so of a claim, a cancel
//! and a reschedule that meet, exactly one wins. A 2xx follows a commit that was flushed. Batches are sorted
//! by key, so that two of them never wait for each other in a circle; where PostgreSQL sees one all the
//! same, it is run again. The store's clock decides what is due ([`crate::clock::StoreClock`]).
//!
//! This room never speaks HTTP, never delivers, and knows nothing of wheels.

mod apply;
mod claim;
mod columns;
mod decide;
mod end;
mod entity;
mod error;
mod failpoint;
mod history;
mod notify;
mod query;
mod register;
mod row;
mod shards;
mod sql;
mod watermark;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sea_orm::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sea_orm::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sea_orm::sqlx::{ConnectOptions, PgConnection, PgPool};
use sea_orm::{DatabaseConnection, EntityTrait, SqlxPostgresConnector, SqlxSqliteConnector};
use sea_orm_migration::MigratorTrait;

pub use apply::{Applied, Change, ChangeEvent, Edit, MAX_BATCH as MAX_APPLY_BATCH};
pub use claim::{Crowded, Due, Found, MAX_BATCH as MAX_CLAIM_BATCH, Probe};
pub use error::Error;
#[cfg(feature = "planted")]
pub use failpoint::{Call, Gate};
pub use query::{Filter, Ledger, Page, Place, Verification};
pub use register::{MAX_BATCH as MAX_REGISTER_BATCH, NewTimer, Registered};
pub use row::{AttemptRecord, TimerRow};
pub use shards::{Beat, Identity, NodeRow};
pub use watermark::{Place as ScanPlace, Range, ReplayNote, ShardRow};

use crate::clock::{Clock, StoreClock};
use crate::config::{ColdKind, Config};
use crate::planted::Planted;
use sql::{Column, Database, Dialect, Pool, Statement, Tx};

/// How long a statement may run on PostgreSQL before it is given up.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call waits for a connection to PostgreSQL. One that finds the writers busy with waiting waits
/// twice as long.
const ACQUIRE: Duration = Duration::from_secs(5);

/// Connections to PostgreSQL beside `cold.connections`, for the node's own work.
const URGENT_CONNECTIONS: u32 = 6;

/// Rows of each total that one process adds to.
const SLOTS: i64 = 4;

/// Days of history partitions that are made ahead.
pub const DAYS_AHEAD: i64 = 7;

/// The advisory lock under which PostgreSQL is migrated, so that nodes which start at once do it in turn.
const MIGRATION_LOCK: i64 = 0x6d61_696e_7370_7267;

/// The cold store.
#[derive(Clone)]
pub struct ColdStore {
    pool: Pool,
    /// Connections that callers' queries cannot use up: leases and claims go over these, and whatever else a
    /// node does by itself ([`ColdStore::urgently`]).
    urgent: Pool,
    /// One connection to listen on; none on SQLite.
    news: Option<PgPool>,
    db: DatabaseConnection,
    urgent_db: DatabaseConnection,
    clock: StoreClock,
    /// Tests turn the clock of PostgreSQL too.
    manual: bool,
    namespace: String,
    shards: u16,
    retention_ms: i64,
    claim_ttl_ms: i64,
    /// Which rows of each total this process adds to: a few of its own, taken in turn, so that transactions
    /// do not wait for each other's flush.
    slot: i64,
    turn: Arc<AtomicI64>,
    planted: Planted,
    _lock: Option<Arc<std::fs::File>>,
}

/// How the schema stands.
#[derive(Debug, Clone, serde::Serialize)]
pub struct MigrationState {
    /// Steps the database has.
    pub applied: Vec<String>,
    /// Steps it lacks.
    pub pending: Vec<String>,
    /// Steps it has that this binary does not know.
    pub unknown: Vec<String>,
}

impl ColdStore {
    /// Opens the store named by `cold.url`. PostgreSQL is not reached yet; SQLite's file is opened or made,
    /// and with `exclusive` held against a second process.
    ///
    /// `clock` is this node's wall clock; `manual` makes it the store's clock on PostgreSQL too (tests).
    pub fn open(
        config: &Config,
        clock: Arc<dyn Clock>,
        manual: bool,
        exclusive: bool,
    ) -> Result<Self, Error> {
        let kind = config.cold_kind().map_err(|why| Error::Url(why.to_string()))?;
        let (pool, urgent, news, db, urgent_db, store_clock, lock) = match kind {
            ColdKind::Postgres => {
                let pool = postgres_pool(config, config.cold.connections)?;
                let urgent = postgres_pool(config, URGENT_CONNECTIONS)?;
                let db = SqlxPostgresConnector::from_sqlx_postgres_pool(pool.clone());
                let urgent_db = SqlxPostgresConnector::from_sqlx_postgres_pool(urgent.clone());
                let clock = if manual { StoreClock::local(clock) } else { StoreClock::remote(clock) };
                let news = Some(postgres_pool(config, 1)?);
                (
                    Pool::to(Database::Postgres(pool)),
                    Pool::to(Database::Postgres(urgent)),
                    news,
                    db,
                    urgent_db,
                    clock,
                    None,
                )
            }
            ColdKind::Sqlite => {
                let path = sqlite_path(&config.cold.url)?;
                let lock = if exclusive { Some(Arc::new(lock_beside(&path)?)) } else { None };
                make_private(&path)?;
                let (writer, readers) = sqlite_pools(&path);
                let db = SqlxSqliteConnector::from_sqlx_sqlite_pool(readers.clone());
                let pool = Pool::to(Database::Sqlite { writer, readers });
                (pool.clone(), pool, None, db.clone(), db, StoreClock::local(clock), lock)
            }
        };
        Ok(Self {
            pool,
            urgent,
            news,
            db,
            urgent_db,
            clock: store_clock,
            manual,
            namespace: config.namespace.clone(),
            shards: config.shards,
            retention_ms: i64::try_from(config.history.retention.get().as_millis()).unwrap_or(i64::MAX / 4),
            claim_ttl_ms: i64::try_from(config.claim_ttl().as_millis()).unwrap_or(60_000),
            slot: i64::from(uuid::Uuid::now_v7().as_bytes()[15] % 64) * SLOTS,
            turn: Arc::default(),
            planted: config.planted(),
            _lock: lock,
        })
    }

    /// Reaches the database, migrates an empty or older one, makes the shards, and checks that the store
    /// is the one the settings describe.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.migrate().await?;
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "prepare_store");
        let now = s.now(self.given());
        let (namespace, shards) = (s.text(&self.namespace), s.int(i64::from(self.shards)));
        s.push(&format!(
            "INSERT INTO store (one, incarnation, namespace, shards, created_at) \
             VALUES (1, 1, {namespace}, {shards}, {now}) \
             ON CONFLICT (one) DO NOTHING"
        ));
        tx.execute(s).await?;
        let mut s = Statement::new(self.dialect(), "prepare_store_id");
        let id = s.text(&uuid::Uuid::now_v7().simple().to_string());
        s.push(&format!("UPDATE store SET id = {id} WHERE id = ''"));
        tx.execute(s).await?;
        let mut s = Statement::new(self.dialect(), "prepare_shards");
        let all = (0..i64::from(self.shards)).collect();
        let batch = s.batch("b", vec![("b_shard", Column::Int(all))]);
        s.push(&format!(
            "WITH {batch} INSERT INTO shards (shard, epoch, owner, lease_until) SELECT b_shard, 0, NULL, 0 FROM b \
             WHERE NOT EXISTS (SELECT 1 FROM shards) ON CONFLICT (shard) DO NOTHING"
        ));
        tx.execute(s).await?;
        tx.commit().await?;
        let Some(store) = entity::store::Entity::find_by_id(1).one(&self.db).await? else {
            return Err(Error::Corrupt("the store's own row is missing".into()));
        };
        if store.shards != i32::from(self.shards) {
            return Err(Error::Shards { store: store.shards, config: self.shards });
        }
        if store.namespace != self.namespace {
            return Err(Error::Namespace { store: store.namespace, config: self.namespace.clone() });
        }
        // The first `delay` is counted from the store's clock, and the first end finds its partition.
        self.ping().await?;
        self.make_partitions(self.clock.now(), DAYS_AHEAD).await
    }

    /// Brings the schema up to this binary's. Refuses a database that is newer.
    pub async fn migrate(&self) -> Result<(), Error> {
        let held = match &self.pool.to {
            Database::Postgres(pool) => {
                let mut held = pool.begin().await?;
                // It stands still while the steps are made, which may take long.
                sea_orm::sqlx::query("SET LOCAL idle_in_transaction_session_timeout = 0")
                    .execute(&mut *held)
                    .await?;
                sea_orm::sqlx::query("SELECT pg_advisory_xact_lock($1)")
                    .bind(MIGRATION_LOCK)
                    .execute(&mut *held)
                    .await?;
                Some(held)
            }
            Database::Sqlite { .. } => None,
        };
        let state = self.migration_state().await?;
        if !state.unknown.is_empty() {
            return Err(Error::Newer { unknown: state.unknown.join(", ") });
        }
        if !state.pending.is_empty() {
            mainspring_migrations::Migrator::up(&self.db, None).await?;
        }
        if let Some(held) = held {
            held.rollback().await?;
        }
        Ok(())
    }

    /// Takes the last `steps` steps of the schema back, or every one, which empties the store (tests only).
    pub async fn migrate_down(&self, steps: Option<u32>) -> Result<(), Error> {
        Ok(mainspring_migrations::Migrator::down(&self.db, steps).await?)
    }

    /// Compares the schema with this binary's. Changes nothing.
    pub async fn migration_state(&self) -> Result<MigrationState, Error> {
        let known: Vec<String> =
            mainspring_migrations::Migrator::migrations().iter().map(|step| step.name().to_owned()).collect();
        let mut look = Statement::new(self.dialect(), "migration_table");
        look.push(match self.dialect() {
            Dialect::Postgres => "SELECT 1 WHERE to_regclass('seaql_migrations') IS NOT NULL",
            Dialect::Sqlite => "SELECT 1 FROM sqlite_master WHERE name = 'seaql_migrations'",
        });
        let mut applied = Vec::new();
        if !self.pool.write(look).await?.is_empty() {
            let mut s = Statement::new(self.dialect(), "migration_state");
            s.push("SELECT version FROM seaql_migrations ORDER BY version");
            for row in self.pool.write(s).await? {
                applied.push(row.get::<String>(0)?);
            }
        }
        let missing =
            |of: &[String], from: &[String]| of.iter().filter(|v| !from.contains(v)).cloned().collect();
        Ok(MigrationState { pending: missing(&known, &applied), unknown: missing(&applied, &known), applied })
    }

    /// Asks the database for a sign of life and takes in its clock.
    pub async fn ping(&self) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "ping");
        let now = s.now(self.given());
        s.push(&format!("SELECT {now}"));
        if let Some(row) = self.pool.read(s).await?.first() {
            self.clock.observe(crate::model::time::UnixMs::new(row.get(0)?));
        }
        Ok(())
    }

    /// Opens the connections for the node's own work beforehand: a node that takes part is given shards at
    /// once, whose timers do not wait.
    pub async fn warm_up(&self) -> Result<(), Error> {
        if let Database::Postgres(urgent) = &self.urgent.to {
            // Held together, or one connection would do for all.
            futures::future::try_join_all((0..URGENT_CONNECTIONS).map(|_| urgent.acquire())).await?;
        }
        Ok(())
    }

    /// The name of this store's wheels, where other stores may have theirs: its namespace, and what no other
    /// store has.
    pub async fn wheels_name(&self) -> Result<String, Error> {
        let store = entity::store::Entity::find_by_id(1).one(&self.db).await?;
        let store = store.ok_or_else(|| Error::Corrupt("the store's own row is missing".into()))?;
        Ok(format!("{}:{}", store.namespace, store.id))
    }

    /// How many shards the store was made with; `None` when it is not made yet.
    pub async fn made_with(&self) -> Result<Option<i32>, Error> {
        if self.migration_state().await?.applied.is_empty() {
            return Ok(None);
        }
        Ok(entity::store::Entity::find_by_id(1).one(&self.db).await?.map(|store| store.shards))
    }

    /// PostgreSQL's settings that durability hangs on, as name and value; empty on SQLite, which is opened
    /// with `synchronous = FULL`.
    pub async fn durability(&self) -> Result<Vec<(String, String)>, Error> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "durability");
        s.push(
            "SELECT name, setting FROM pg_settings WHERE name IN \
             ('fsync', 'full_page_writes', 'server_version', 'synchronous_commit') ORDER BY name",
        );
        self.pool.read(s).await?.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// What this node knows of the store's clock.
    pub const fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// The same store over the connections that callers' queries cannot use up.
    #[must_use]
    pub fn urgently(&self) -> Self {
        Self { pool: self.urgent.clone(), db: self.urgent_db.clone(), ..self.clone() }
    }

    /// The same store, through a gate and under another clock, which is the store's own too.
    #[cfg(feature = "planted")]
    #[must_use]
    pub fn through(&self, gate: Arc<dyn Gate>, clock: Arc<dyn Clock>) -> Self {
        let mut this = Self { clock: StoreClock::local(clock), ..self.clone() };
        this.pool.way.gate = Some(Arc::clone(&gate));
        this.urgent.way.gate = Some(gate);
        this
    }

    /// The defect that is built in, for those who work with this store.
    pub const fn planted(&self) -> Planted {
        self.planted
    }

    /// The namespace that this store's timers live in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether the store is PostgreSQL, so that other nodes may share it.
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

    /// Closes the connections; on SQLite this also folds the write-ahead log into the file.
    pub async fn close(&self) {
        if let Some(news) = &self.news {
            news.close().await;
        }
        if let Database::Postgres(urgent) = &self.urgent.to {
            urgent.close().await;
        }
        match &self.pool.to {
            Database::Postgres(pool) => pool.close().await,
            Database::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
        }
    }

    fn dialect(&self) -> Dialect {
        self.pool.dialect()
    }

    /// The time to bind where the store has no clock of its own.
    fn given(&self) -> Option<i64> {
        match self.dialect() {
            Dialect::Sqlite => Some(self.clock.now().get()),
            Dialect::Postgres => self.manual.then(|| self.clock.now().get()),
        }
    }

    /// Adds to the ledger's totals inside the transaction in which it happened. Comes last before the
    /// commit: other transactions of this slot wait for the row.
    async fn count(&self, tx: &mut Tx, counts: &[(&str, i64)]) -> Result<(), Error> {
        let mut counts: Vec<_> = counts.iter().filter(|(_, n)| *n != 0).collect();
        if counts.is_empty() {
            return Ok(());
        }
        counts.sort_unstable();
        let mut s = Statement::new(self.dialect(), "count");
        let batch = s.batch(
            "b",
            vec![
                ("b_name", Column::Text(counts.iter().map(|(name, _)| (*name).to_owned()).collect())),
                ("b_value", Column::Int(counts.iter().map(|(_, n)| *n).collect())),
            ],
        );
        let slot = s.int(self.slot + self.turn.fetch_add(1, Ordering::Relaxed).rem_euclid(SLOTS));
        s.push(&format!(
            "WITH {batch} INSERT INTO totals (name, slot, value) SELECT b_name, {slot}, b_value FROM b WHERE true \
             ON CONFLICT (name, slot) DO UPDATE SET value = totals.value + excluded.value"
        ));
        tx.execute(s).await.map(drop)
    }
}

fn postgres_pool(config: &Config, connections: u32) -> Result<PgPool, Error> {
    let options = PgConnectOptions::from_str(&config.cold.url)
        .map_err(|why| Error::Url(why.to_string()))?
        .application_name("mainspring")
        .options([
            ("statement_timeout", STATEMENT_TIMEOUT.as_millis().to_string().as_str()),
            ("idle_in_transaction_session_timeout", idle_ms(config.lease.get()).as_str()),
            ("client_min_messages", "warning"),
            // The first plans of a statement are made for its values; those of `due` then read and sort a
            // shard's whole backlog (1.4 s a probe at 1 M overdue, against 0.15 s).
            ("plan_cache_mode", "force_generic_plan"),
            ("default_transaction_isolation", "read committed"),
        ])
        .statement_cache_capacity(256)
        .disable_statement_logging();
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false)
        .idle_timeout(Duration::from_secs(600))
        .max_lifetime(Duration::from_secs(3600))
        .after_connect(|session, _| Box::pin(flush_before_answering(session)))
        .connect_lazy_with(options))
}

/// Makes a commit of this session return after its flush, where the server, the database or the role has
/// `synchronous_commit = off`. Every other value flushes on this server first (`local`, `remote_write`, `on`,
/// `remote_apply`); they differ in what they wait for at replicas, which is the operator's choice and stays.
async fn flush_before_answering(session: &mut PgConnection) -> Result<(), sea_orm::sqlx::Error> {
    let raise = "SELECT set_config('synchronous_commit', 'on', false) \
                 WHERE current_setting('synchronous_commit') = 'off'";
    sea_orm::sqlx::query(raise).execute(session).await.map(drop)
}

/// How long, in milliseconds, a transaction may stand still before the database ends it: its node is paused or
/// cut off, and holds locks for which those who take its shards over would have to wait. Less than a lease, so
/// that nobody who waits loses his own.
fn idle_ms(lease: Duration) -> String {
    (lease / 2).clamp(Duration::from_millis(250), Duration::from_secs(5)).as_millis().to_string()
}

fn sqlite_path(url: &str) -> Result<PathBuf, Error> {
    let path = url.strip_prefix("sqlite://").unwrap_or(url);
    let path = path.split('?').next().unwrap_or_default();
    if path.is_empty() || path == ":memory:" {
        return Err(Error::Url("the store must be a file: sqlite://FILE".into()));
    }
    Ok(PathBuf::from(path))
}

fn sqlite_pools(path: &Path) -> (sea_orm::sqlx::SqlitePool, sea_orm::sqlx::SqlitePool) {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5))
        .pragma("cache_size", "-65536")
        .pragma("journal_size_limit", "67108864")
        .disable_statement_logging();
    let pool = |connections: u32, options: SqliteConnectOptions| {
        SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(10))
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(options)
    };
    (pool(1, options.clone()), pool(4, options))
}

/// Makes the file, if it is missing, readable for its owner only: it holds callers' secrets.
fn make_private(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt;
    match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(Error::File { path: path.into(), source: Arc::new(source) }),
    }
}

/// Holds `FILE.lock`, so that a second process refuses the same store instead of firing its timers twice.
fn lock_beside(path: &Path) -> Result<std::fs::File, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock)
        .map_err(|source| Error::File { path: lock.clone(), source: Arc::new(source) })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::InUse { path: path.into() }),
        Err(std::fs::TryLockError::Error(source)) => {
            Err(Error::File { path: lock, source: Arc::new(source) })
        }
    }
}

//! Opening and closing: the pools of connections to PostgreSQL or SQLite, and the lock file beside SQLite.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use sea_orm::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sea_orm::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sea_orm::sqlx::{ConnectOptions, PgConnection, PgPool};
use sea_orm::{SqlxPostgresConnector, SqlxSqliteConnector};

use super::sql::{Database, Pool};
use super::{ColdStore, Error, STATEMENT_TIMEOUT, TOTALS_SLOTS, restore};
use crate::clock::{Clock, StoreClock};
use crate::config::{ColdKind, Config};
use crate::model::namespace::{Namespace, Salt, Sender};
use crate::model::networks::Networks;

/// How long a call waits for a connection to PostgreSQL. While all writers wait for one, a caller's change
/// waits for a writer first: twice as long in all.
const ACQUIRE: Duration = Duration::from_secs(5);

/// Connections to PostgreSQL for the node's own work, beside the `cold.connections` for callers.
const URGENT_CONNECTIONS: u32 = 6;

/// How long the node's own statements wait for a lock. What they wait for is held by a stranger or by a statement that
/// waits itself, and other timers must not wait with them.
const LOCK_WAIT: Duration = Duration::from_millis(250);

impl ColdStore {
    /// Opens the store that `cold.url` names. No connection to PostgreSQL is made yet. SQLite's file is opened
    /// or made; with `exclusive` it is locked against a second process.
    ///
    /// `clock` is this node's wall clock; with `manual` it is the store's clock on PostgreSQL too (tests).
    pub fn open(
        config: &Config,
        clock: Arc<dyn Clock>,
        manual: bool,
        exclusive: bool,
    ) -> Result<Self, Error> {
        let kind = config.cold_kind().map_err(|why| Error::Url(why.to_string()))?;
        let (pool, urgent, listener, db, urgent_db, store_clock, lock) = match kind {
            ColdKind::Postgres => {
                let pool = postgres_pool(config, config.cold.connections, None)?;
                let urgent = postgres_pool(config, URGENT_CONNECTIONS, Some(LOCK_WAIT))?;
                let db = SqlxPostgresConnector::from_sqlx_postgres_pool(pool.clone());
                let urgent_db = SqlxPostgresConnector::from_sqlx_postgres_pool(urgent.clone());
                let clock = if manual { StoreClock::local(clock) } else { StoreClock::remote(clock) };
                let listener = Some(postgres_pool(config, 1, None)?);
                (
                    Pool::new(Database::Postgres(pool)),
                    Pool::new(Database::Postgres(urgent)),
                    listener,
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
                let pool = Pool::new(Database::Sqlite { writer, readers });
                (pool.clone(), pool.urgently(), None, db.clone(), db, StoreClock::local(clock), lock)
            }
        };
        Ok(Self {
            pool,
            urgent,
            listener,
            db,
            urgent_db,
            clock: store_clock,
            manual,
            own: Salt::own(&config.namespace),
            salt: Salt::own(&config.namespace),
            shards: config.shards,
            retention_ms: i64::try_from(config.history.retention.get().as_millis()).unwrap_or(i64::MAX / 4),
            audit_retention_ms: i64::try_from(config.audit.retention.get().as_millis())
                .unwrap_or(i64::MAX / 4),
            claim_ttl_ms: i64::try_from(config.claim_ttl().as_millis()).unwrap_or(60_000),
            longest_attempt_ms: Arc::default(),
            slot: i64::from(uuid::Uuid::now_v7().as_bytes()[15] % 64) * TOTALS_SLOTS,
            turn: Arc::default(),
            schedule_room: Arc::default(),
            planted: config.planted(),
            away: Arc::default(),
            skip_locked: Arc::default(),
            seen: Arc::new(lock.as_deref().map_or(0, restore::witnessed_by).into()),
            held: Arc::default(),
            // What its own may reach is read at a node's start, before anything is sent.
            senders: Arc::new(RwLock::new(
                [(Namespace::OWN, Arc::new(Sender::new(&config.namespace, &Networks::default())))].into(),
            )),
            has_others: Arc::default(),
            copies: Arc::default(),
            ready: Arc::default(),
            spreads: super::spread::Spreads::default(),
            known_set: Arc::default(),
            told: Arc::default(),
            lock,
        })
    }

    /// Opens the connections for the node's own work ahead of time. A node that enters gets shards at once, and
    /// their timers must not wait for connections.
    pub async fn warm_up(&self) -> Result<(), Error> {
        if let Database::Postgres(urgent) = &self.urgent.database {
            // All are held at the same time; otherwise one connection would serve every `acquire`.
            futures::future::try_join_all((0..URGENT_CONNECTIONS).map(|_| urgent.acquire())).await?;
        }
        Ok(())
    }

    /// Closes the connections. On SQLite this also checkpoints the write-ahead log into the file.
    pub async fn close(&self) {
        if let Some(listener) = &self.listener {
            listener.close().await;
        }
        if let Database::Postgres(urgent) = &self.urgent.database {
            urgent.close().await;
        }
        match &self.pool.database {
            Database::Postgres(pool) => pool.close().await,
            Database::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
        }
    }
}

fn postgres_pool(config: &Config, connections: u32, lock_wait: Option<Duration>) -> Result<PgPool, Error> {
    let options = PgConnectOptions::from_str(&config.cold.url)
        .map_err(|why| Error::Url(why.to_string()))?
        .application_name("mainspring")
        .options([
            ("statement_timeout", STATEMENT_TIMEOUT.as_millis().to_string().as_str()),
            // 0 is no limit of its own.
            ("lock_timeout", lock_wait.unwrap_or_default().as_millis().to_string().as_str()),
            ("idle_in_transaction_session_timeout", idle_ms(config.lease.get()).as_str()),
            ("client_min_messages", "warning"),
            // By default PostgreSQL plans the first executions of a statement for their values. Such plans of
            // `due` read and sort a shard's whole backlog: 1.4 s a probe with 1 M rows overdue, against 0.15 s.
            ("plan_cache_mode", "force_generic_plan"),
            // A plan is kept while its table grows. Made while that is small, it would read the whole table for each
            // batch: so settling cost twice the processor time. All of ours can go by an index.
            ("enable_seqscan", "off"),
            // A table without an index, as that of one row, is read all the same, at a cost that says "compile it first".
            ("jit", "off"),
            // It says "by several processes" too: each look for due schedules, once a second, started two of them to find
            // nothing, which was most of what PostgreSQL did on an idle node.
            ("max_parallel_workers_per_gather", "0"),
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

/// Makes every commit of this session return after its flush: sets `synchronous_commit` to `on` where the
/// server, the database or the role has it `off`. The other values (`local`, `remote_write`, `on`,
/// `remote_apply`) all flush on this server first; they differ in what they wait for at replicas. That is the
/// operator's choice, and it stays.
async fn flush_before_answering(session: &mut PgConnection) -> Result<(), sea_orm::sqlx::Error> {
    let raise = "SELECT set_config('synchronous_commit', 'on', false) \
                 WHERE current_setting('synchronous_commit') = 'off'";
    sea_orm::sqlx::query(raise).execute(session).await.map(drop)
}

/// How long, in milliseconds, a transaction may be idle before the database ends it. Its node is paused or cut
/// off, and other nodes wait for its locks when they take its shards over. Shorter than a lease, so that a node
/// that waits does not lose its own leases.
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

/// Creates the file, if it is missing, with read and write permission for its owner only: it holds callers'
/// secrets.
fn make_private(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt;
    match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(Error::File { path: path.into(), source: Arc::new(source) }),
    }
}

/// Locks `FILE.lock`. A second process cannot lock it and refuses to start; otherwise both would fire the
/// timers.
fn lock_beside(path: &Path) -> Result<std::fs::File, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
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

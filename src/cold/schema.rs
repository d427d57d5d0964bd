//! The schema, and what is fixed when a store is made: its namespace, its shards and its id.

use std::time::Duration;

use sea_orm::sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sea_orm::sqlx::{self, Connection};
use sea_orm::{DatabaseConnection, EntityTrait, SqlxPostgresConnector};
use sea_orm_migration::MigratorTrait;

use super::sql::{Column, Database, Dialect, Statement};
use super::{ColdStore, DAYS_AHEAD, Error, entity};

/// The advisory lock that is held while PostgreSQL is migrated, so that nodes which start at once migrate in
/// turn.
const MIGRATION_LOCK: i64 = 0x6d61_696e_7370_7267;

/// How long a step of a migration waits for a lock: claims and ends wait behind it.
const STEP_LOCK_WAIT: &str = "250ms";

/// The pause before a step that found its lock taken is tried again, and between two looks for one's turn.
const STEP_PAUSE: Duration = Duration::from_millis(250);

/// A node that sent a heartbeat within this time, in milliseconds, may live. Longer than any lease between two beats of
/// one that does.
const ALIVE_MS: i64 = 60_000;

/// The schema of the database, compared with this binary's.
#[derive(Debug, Clone, serde::Serialize)]
pub struct MigrationState {
    /// Migration steps that the database has.
    pub applied: Vec<String>,
    /// Steps that it lacks.
    pub pending: Vec<String>,
    /// Steps that it has and this binary does not know.
    pub unknown: Vec<String>,
    /// The release of the schema, as the store tells it; `None` before release 2, and in an empty database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<i32>,
    /// Whether this binary can work with it, once what is pending is applied: its steps are known, or it is of the next
    /// release and bears nodes of this one.
    #[serde(skip)]
    pub is_borne: bool,
}

impl ColdStore {
    /// Connects to the database, migrates an empty or older schema, inserts the shards, and checks that the
    /// store was made with the namespace and the number of shards of the settings.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.migrate().await?;
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "prepare_store");
        let now = s.now(self.bound_now());
        let (namespace, shards) = (s.text(self.own_name()), s.int(i64::from(self.shards)));
        s.push(&format!(
            "INSERT INTO store (one, incarnation, namespace, shards, created_at, release, bears) \
             VALUES (1, 1, {namespace}, {shards}, {now}, {}, {}) ON CONFLICT (one) DO NOTHING",
            mainspring_migrations::RELEASE,
            mainspring_migrations::BEARS,
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
        self.be_witness_of(&store.id);
        if store.shards != i32::from(self.shards) {
            return Err(Error::Shards { store: store.shards, config: self.shards });
        }
        if store.namespace != self.own_name() {
            return Err(Error::Namespace { store: store.namespace, config: self.own_name().to_owned() });
        }
        // The first `delay` needs the store's clock, and the first end needs its partition.
        self.ping().await?;
        if let Err(why) = self.make_partitions(self.clock.now(), DAYS_AHEAD).await {
            // A backup may hold the locks for hours. Those made before, or the default one, do meanwhile.
            tracing::info!(%why, "not all partitions of history are made; the housekeeping tries again");
        }
        Ok(())
    }

    /// Migrates the schema to this binary's. One of the next release that bears this binary's nodes is left as it is;
    /// a newer one is refused. A change that older nodes cannot bear is refused while such nodes live.
    ///
    /// On PostgreSQL nodes that start at once migrate in turn, on connections of their own without a time limit. A step
    /// that is broken off is gone on with by the next call.
    pub async fn migrate(&self) -> Result<(), Error> {
        let Database::Postgres(pool) = &self.pool.database else {
            if self.has_pending().await? {
                mainspring_migrations::Migrator::up(&self.db, None).await?;
            }
            return self.tell_release().await;
        };
        if !self.has_pending().await? {
            return Ok(());
        }
        // Later options go before earlier ones.
        let options = pool.connect_options().as_ref().clone().options([
            ("statement_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            ("lock_timeout", STEP_LOCK_WAIT),
        ]);
        let mut turn = PgConnection::connect_with(&options).await?;
        take_turn(&mut turn).await?;
        let migrated = self.migrate_in_turn(&options).await;
        // This gives the turn away, too.
        let _ = turn.close().await;
        migrated
    }

    async fn migrate_in_turn(&self, options: &PgConnectOptions) -> Result<(), Error> {
        // Another node may have done it meanwhile.
        if !self.has_pending().await? {
            return Ok(());
        }
        // One connection: what a step sets for its session holds for its next statement.
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone());
        let db = SqlxPostgresConnector::from_sqlx_postgres_pool(pool.clone());
        let is_new = self.migration_state().await?.applied.is_empty();
        let mut is_told = false;
        let migrated = loop {
            match self.next_step(&db, is_new).await {
                Ok(true) => {}
                Ok(false) => break self.tell_release().await,
                Err(why) if why.is_blocked() => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::info!(
                            "a step of the migration waits for a lock of another session; trying again"
                        );
                    }
                    tokio::time::sleep(STEP_PAUSE).await;
                }
                Err(why) => break Err(why),
            }
        };
        pool.close().await;
        migrated
    }

    /// Applies the next pending step; `false` if there is none.
    async fn next_step(&self, db: &DatabaseConnection, is_new: bool) -> Result<bool, Error> {
        let Some(step) = self.migration_state().await?.pending.into_iter().next() else { return Ok(false) };
        // Of an empty database the steps are no news.
        if !is_new {
            tracing::info!(step, "migrating the database");
        }
        mainspring_migrations::Migrator::up(db, Some(1)).await?;
        Ok(true)
    }

    /// Whether there are steps to apply. Fails if this binary cannot work with the schema, or if nodes live that could
    /// not work with it afterwards.
    async fn has_pending(&self) -> Result<bool, Error> {
        let state = self.migration_state().await?;
        if !state.is_borne {
            return Err(Error::Newer { unknown: state.unknown.join(", ") });
        }
        if state.pending.is_empty() {
            return Ok(false);
        }
        let older = self.nodes_older_than(mainspring_migrations::BEARS, &state).await?;
        if !older.is_empty() {
            return Err(Error::OlderNodes { names: older.join(", ") });
        }
        Ok(true)
    }

    /// Living nodes of a release before this one.
    async fn nodes_older_than(&self, release: i32, state: &MigrationState) -> Result<Vec<String>, Error> {
        let of_node = match state.release {
            Some(_) => format!("AND release < {release}"),
            // Before release 2 a node did not tell its release. It works with the schema as it is.
            None if mainspring_migrations::release_of(&state.applied) < release
                && !state.applied.is_empty() =>
            {
                String::new()
            }
            None => return Ok(Vec::new()),
        };
        let mut s = Statement::new(self.dialect(), "nodes_older_than");
        let now = s.now(self.bound_now());
        let within = s.int(ALIVE_MS);
        s.push(&format!("SELECT name FROM nodes WHERE beat_at > {now} - {within} {of_node} ORDER BY name"));
        self.pool.read(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Living nodes of a release that knows no namespaces.
    pub(super) async fn nodes_without_namespaces(&self) -> Result<Vec<String>, Error> {
        self.nodes_older_than(mainspring_migrations::WITH_NAMESPACES, &self.migration_state().await?).await
    }

    /// Writes down of which release the schema is.
    async fn tell_release(&self) -> Result<(), Error> {
        let (release, bears) = (mainspring_migrations::RELEASE, mainspring_migrations::BEARS);
        let mut s = Statement::new(self.dialect(), "tell_release");
        s.push(&format!("UPDATE store SET release = {release}, bears = {bears} WHERE release < {release}"));
        self.pool.write(s).await.map(drop)
    }

    /// Reverts the last `steps` steps of the schema, or all of them, which drops every table (tests only).
    pub async fn migrate_down(&self, steps: Option<u32>) -> Result<(), Error> {
        Ok(mainspring_migrations::Migrator::down(&self.db, steps).await?)
    }

    /// Compares the schema with this binary's. Changes nothing.
    pub async fn migration_state(&self) -> Result<MigrationState, Error> {
        let known: Vec<String> =
            mainspring_migrations::Migrator::migrations().iter().map(|step| step.name().to_owned()).collect();
        let mut table = Statement::new(self.dialect(), "migration_table");
        table.push(match self.dialect() {
            Dialect::Postgres => "SELECT 1 WHERE to_regclass('seaql_migrations') IS NOT NULL",
            Dialect::Sqlite => "SELECT 1 FROM sqlite_master WHERE name = 'seaql_migrations'",
        });
        let mut applied = Vec::new();
        if !self.pool.write(table).await?.is_empty() {
            let mut s = Statement::new(self.dialect(), "migration_state");
            s.push("SELECT version FROM seaql_migrations ORDER BY version");
            for row in self.pool.write(s).await? {
                applied.push(row.get::<String>(0)?);
            }
        }
        let missing = |of: &[String], from: &[String]| -> Vec<String> {
            of.iter().filter(|v| !from.contains(v)).cloned().collect()
        };
        let (pending, unknown) = (missing(&known, &applied), missing(&applied, &known));
        let told = self.told_release(&applied).await?;
        let own = mainspring_migrations::RELEASE;
        let is_borne =
            unknown.is_empty() || told.is_some_and(|(release, bears)| release == own + 1 && bears <= own);
        Ok(MigrationState { pending, unknown, release: told.map(|(release, _)| release), is_borne, applied })
    }

    /// The release of the schema and the oldest that it bears, once it has the columns for them.
    async fn told_release(&self, applied: &[String]) -> Result<Option<(i32, i32)>, Error> {
        if !applied.iter().any(|step| step == mainspring_migrations::TELLS_RELEASE) {
            return Ok(None);
        }
        let mut s = Statement::new(self.dialect(), "told_release");
        s.push("SELECT release, bears FROM store");
        self.pool.write(s).await?.first().map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
    }

    /// The name of this store's wheels in a Redis that other stores may share: the namespace and the store's
    /// id, which is random and unique.
    pub async fn wheels_name(&self) -> Result<String, Error> {
        let store = entity::store::Entity::find_by_id(1).one(&self.db).await?;
        let store = store.ok_or_else(|| Error::Corrupt("the store's own row is missing".into()))?;
        Ok(format!("{}:{}", store.namespace, store.id))
    }

    /// The number of shards that the store was made with; `None` if it is not made yet.
    pub async fn made_with(&self) -> Result<Option<i32>, Error> {
        if self.migration_state().await?.applied.is_empty() {
            return Ok(None);
        }
        Ok(entity::store::Entity::find_by_id(1).one(&self.db).await?.map(|store| store.shards))
    }

    /// PostgreSQL's settings that durability depends on, as name and value. Empty on SQLite, which is opened
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
}

/// Waits until no other node migrates. It asks again and again: a session that waits in a statement has a snapshot, for
/// which the building of an index, in the session that has the turn, would wait.
async fn take_turn(session: &mut PgConnection) -> Result<(), Error> {
    let mut is_told = false;
    loop {
        let ask = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(MIGRATION_LOCK);
        if ask.fetch_one(&mut *session).await? {
            return Ok(());
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!("another node is migrating the database; waiting for it");
        }
        tokio::time::sleep(STEP_PAUSE).await;
    }
}

//! The schema, and what is fixed when a store is made: its namespace, its shards and its id.

use sea_orm::EntityTrait;
use sea_orm_migration::MigratorTrait;

use super::sql::{Column, Database, Dialect, Statement};
use super::{ColdStore, DAYS_AHEAD, Error, entity};

/// The advisory lock that is held while PostgreSQL is migrated, so that nodes which start at once migrate in
/// turn.
const MIGRATION_LOCK: i64 = 0x6d61_696e_7370_7267;

/// The schema of the database, compared with this binary's.
#[derive(Debug, Clone, serde::Serialize)]
pub struct MigrationState {
    /// Migration steps that the database has.
    pub applied: Vec<String>,
    /// Steps that it lacks.
    pub pending: Vec<String>,
    /// Steps that it has and this binary does not know.
    pub unknown: Vec<String>,
}

impl ColdStore {
    /// Connects to the database, migrates an empty or older schema, inserts the shards, and checks that the
    /// store was made with the namespace and the number of shards of the settings.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.migrate().await?;
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "prepare_store");
        let now = s.now(self.bound_now());
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
        // The first `delay` needs the store's clock, and the first end needs its partition.
        self.ping().await?;
        self.make_partitions(self.clock.now(), DAYS_AHEAD).await
    }

    /// Migrates the schema to this binary's. Fails if the database is newer.
    pub async fn migrate(&self) -> Result<(), Error> {
        let locked = match &self.pool.database {
            Database::Postgres(pool) => {
                let mut locked = pool.begin().await?;
                // This transaction is idle while the steps run, which may take long.
                sea_orm::sqlx::query("SET LOCAL idle_in_transaction_session_timeout = 0")
                    .execute(&mut *locked)
                    .await?;
                sea_orm::sqlx::query("SELECT pg_advisory_xact_lock($1)")
                    .bind(MIGRATION_LOCK)
                    .execute(&mut *locked)
                    .await?;
                Some(locked)
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
        if let Some(locked) = locked {
            locked.rollback().await?;
        }
        Ok(())
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
        let missing =
            |of: &[String], from: &[String]| of.iter().filter(|v| !from.contains(v)).cloned().collect();
        Ok(MigrationState { pending: missing(&known, &applied), unknown: missing(&applied, &known), applied })
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

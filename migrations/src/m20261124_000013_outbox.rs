//! Lifecycle events: who subscribes to them, and those that are not sent yet. A row of `outbox` is one event for one
//! subscription, written in the transaction that makes it true. Without subscriptions there is none.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// `id` is never given twice, and so is `seq`: SQLite would give the highest ones of removed rows again without
/// `AUTOINCREMENT`. A subscription that was removed stays, with its time in `removed_at` (ms), until its events are gone.
///
/// `subscription_set.version` rises with every change of the subscriptions. `subscription_nodes` tells which version a
/// process, named by its incarnation, works with.
///
/// Of `outbox`: `at` is when it became true (ms), `body` the JSON that is sent.
const TABLES: &str = "
CREATE TABLE subscriptions (
    ID,
    namespace SMALLINT NOT NULL,
    name TEXT NOT NULL,
    destination TEXT NOT NULL,
    settings TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    removed_at BIGINT
);
CREATE UNIQUE INDEX subscriptions_by_name ON subscriptions (namespace, name) WHERE removed_at IS NULL;
CREATE TABLE subscription_set (
    one SMALLINT PRIMARY KEY,
    version BIGINT NOT NULL
);
INSERT INTO subscription_set (one, version) VALUES (1, 0);
CREATE TABLE subscription_nodes (
    incarnation TEXT PRIMARY KEY,
    version BIGINT NOT NULL
);
CREATE TABLE outbox (
    namespace SMALLINT NOT NULL,
    subscription BIGINT NOT NULL,
    shard INTEGER NOT NULL,
    SEQ,
    id UUID NOT NULL,
    kind SMALLINT NOT NULL,
    subject TEXT NOT NULL,
    at BIGINT NOT NULL,
    body BYTES NOT NULL
)";

/// The events of one subscription and shard, oldest first.
const KEY: &str = "(namespace, subscription, shard, seq)";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            let tables = TABLES
                .replace("    ID,", "    id INTEGER PRIMARY KEY AUTOINCREMENT,")
                .replace("    SEQ,", "    seq INTEGER PRIMARY KEY AUTOINCREMENT,")
                .replace("UUID", "BLOB")
                .replace("BYTES", "BLOB");
            let all = format!("{tables};\nCREATE INDEX outbox_by_subscription ON outbox {KEY}");
            return super::run(manager, "", &all).await;
        }
        let tables = TABLES
            .replace("    ID,", "    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,")
            .replace("    SEQ,", "    seq BIGINT GENERATED ALWAYS AS IDENTITY,")
            .replace("body BYTES NOT NULL", &format!("body BYTEA NOT NULL,\n    PRIMARY KEY {KEY}"))
            .replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
            .replace("CREATE UNIQUE INDEX", "CREATE UNIQUE INDEX IF NOT EXISTS")
            .replace("VALUES (1, 0)", "VALUES (1, 0) ON CONFLICT (one) DO NOTHING");
        for statement in tables.split(";\n") {
            online::at_once(manager, statement).await?;
        }
        // Rows come and go all the time: what is gone must not stand at the head of the index for long.
        let often = "ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, \
                     autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000)";
        online::at_once(manager, often).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP TABLE outbox;\nDROP TABLE subscription_nodes;\nDROP TABLE subscription_set;\n\
                    DROP TABLE subscriptions";
        super::run(manager, down, down).await
    }

    // Each statement stands alone, so that none waits for a lock while it holds another.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

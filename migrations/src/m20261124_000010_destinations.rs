//! Destinations: named places that deliveries go to. And indexes by which the timers of one are found; rows without a
//! destination are in none of them.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// The timers of one lane that go to a destination, live and ended, in due order.
const LIVE: (&str, &str) = ("timers_by_lane", "(lane, due_at, uid)");
const ENDED: (&str, &str) = ("history_by_lane", "(lane, due_at, uid)");

/// `next_slot` is when the next delivery may start under `rate_per_second`, in microseconds. It stands apart, because it
/// changes many times a second.
const TABLES: &str = "
CREATE TABLE destinations (
    namespace SMALLINT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    settings TEXT NOT NULL,
    secrets BYTES,
    paused BOOLEAN NOT NULL,
    version INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, name)
);
CREATE TABLE destination_slots (
    lane BIGINT PRIMARY KEY,
    next_slot BIGINT NOT NULL
)";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            let index = |(name, on): (&str, &str), table: &str| {
                format!("CREATE INDEX {name} ON {table} {on} WHERE kind <> 0")
            };
            let tables = TABLES.replace("BYTES", "BLOB");
            let both = format!("{tables};\n{};\n{}", index(LIVE, "timers"), index(ENDED, "history"));
            return super::run(manager, "", &both).await;
        }
        let of_destinations = |on: &str| format!("{on} WHERE kind IS NOT NULL");
        online::index(manager, LIVE.0, "timers", &of_destinations(LIVE.1)).await?;
        online::index_of_partitions(manager, ENDED.0, "history", &of_destinations(ENDED.1)).await?;
        let settings = "ALTER TABLE destination_slots SET (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, \
                        autovacuum_vacuum_threshold = 1000)";
        for statement in TABLES
            .replace("BYTES", "BYTEA")
            .replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
            .split(";\n")
        {
            online::at_once(manager, statement).await?;
        }
        online::at_once(manager, settings).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let drop = "DROP INDEX timers_by_lane;\nDROP INDEX history_by_lane;\nDROP TABLE destination_slots;\nDROP TABLE destinations";
        super::run(manager, drop, drop).await
    }

    // Indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

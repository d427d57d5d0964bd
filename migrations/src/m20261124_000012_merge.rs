//! Merging: what timers that go out together have in common, and the set that a claim has made of them. Both are NULL of
//! nearly every timer, and only timers that merge are in the index.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// For both tables of timers, and for attempts: of a merged set the delivery id differs from that of the timer.
const COLUMNS: [&str; 5] = [
    "ALTER TABLE timers ADD COLUMN merge_key {bytes}",
    "ALTER TABLE timers ADD COLUMN merged TEXT",
    "ALTER TABLE history ADD COLUMN merge_key {bytes}",
    "ALTER TABLE history ADD COLUMN merged TEXT",
    "ALTER TABLE attempts ADD COLUMN delivery_id TEXT",
];

/// Timers that merge, the earliest of each key first.
const BY_KEY: (&str, &str) = ("timers_merge", "(merge_key, due_at, uid) WHERE merge_key IS NOT NULL");

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let (name, on) = BY_KEY;
        if manager.get_database_backend() != DbBackend::Postgres {
            let columns = COLUMNS.join(";\n").replace("{bytes}", "BLOB");
            return super::run(manager, "", &format!("{columns};\nCREATE INDEX {name} ON timers {on}")).await;
        }
        for column in COLUMNS {
            let column = column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS").replace("{bytes}", "BYTEA");
            online::at_once(manager, &column).await?;
        }
        online::index(manager, name, "timers", on).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX timers_merge;\nALTER TABLE timers DROP COLUMN merge_key;\n\
                    ALTER TABLE timers DROP COLUMN merged;\nALTER TABLE history DROP COLUMN merge_key;\n\
                    ALTER TABLE history DROP COLUMN merged;\nALTER TABLE attempts DROP COLUMN delivery_id";
        super::run(manager, down, down).await
    }

    // The index is built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

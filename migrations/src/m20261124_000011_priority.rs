//! Priorities: NULL is `normal`, which nearly every timer is. The few that are high have an index by which the sweep finds
//! them behind any number of others.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

const COLUMNS: [&str; 2] =
    ["ALTER TABLE timers ADD COLUMN priority SMALLINT", "ALTER TABLE history ADD COLUMN priority SMALLINT"];

/// 1 is high.
const HIGH: (&str, &str) = ("timers_high", "(shard, wake_at) WHERE priority = 1");

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let (name, on) = HIGH;
        if manager.get_database_backend() != DbBackend::Postgres {
            let all = format!("{};\nCREATE INDEX {name} ON timers {on}", COLUMNS.join(";\n"));
            return super::run(manager, "", &all).await;
        }
        for column in COLUMNS {
            online::at_once(manager, &column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        }
        online::index(manager, name, "timers", on).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX timers_high;\nALTER TABLE timers DROP COLUMN priority;\n\
                    ALTER TABLE history DROP COLUMN priority";
        super::run(manager, down, down).await
    }

    // The index is built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

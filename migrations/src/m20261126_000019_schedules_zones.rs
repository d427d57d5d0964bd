//! By which data of the time zones a schedule's occurrences ahead were made; of those made before, none is known. And an index
//! for whether schedules use a template.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

const COLUMN: &str = "ALTER TABLE schedules ADD COLUMN tzdb TEXT NOT NULL DEFAULT ''";

/// Schedules of one template, and no others.
const INDEX: (&str, &str) = ("schedules_by_template", "(template) WHERE template IS NOT NULL");

const COMMENT: &str = "COMMENT ON COLUMN schedules.tzdb IS 'the version of the time zones by which occurrences ahead were made'";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let (name, on) = INDEX;
        if manager.get_database_backend() != DbBackend::Postgres {
            let all = format!("{COLUMN};\nCREATE INDEX {name} ON schedules {on}");
            return super::run(manager, "", &all).await;
        }
        online::at_once(manager, &COLUMN.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        online::index(manager, name, "schedules", on).await?;
        online::at_once(manager, COMMENT).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX schedules_by_template;\nALTER TABLE schedules DROP COLUMN tzdb";
        super::run(manager, down, down).await
    }

    // The index is built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

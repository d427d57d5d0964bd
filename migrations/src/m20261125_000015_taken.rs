//! The operation that moved a timer last: NULL for nearly every one. It does not take the timer twice.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            return super::run(manager, "", "ALTER TABLE timers ADD COLUMN operation BLOB").await;
        }
        online::at_once(manager, "ALTER TABLE timers ADD COLUMN IF NOT EXISTS operation UUID").await?;
        let comment = "COMMENT ON COLUMN timers.operation IS 'the operation that moved its due time last'";
        online::at_once(manager, comment).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "ALTER TABLE timers DROP COLUMN operation";
        super::run(manager, down, down).await
    }

    // What is done already is done again, harmlessly, if a lock was not free in time.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

//! An index of the timers that died: the page lists the last of them by receiver and reason.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // 7 dead. A timer that is delivered is never in it.
        let up = "CREATE INDEX history_dead ON history (ended_at) WHERE state = 7";
        super::run(manager, up, up).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX history_dead";
        super::run(manager, down, down).await
    }
}

//! Priorities: NULL is `normal`, which nearly every timer is.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let up = "ALTER TABLE timers ADD COLUMN priority SMALLINT;\nALTER TABLE history ADD COLUMN priority SMALLINT";
        super::run(manager, up, up).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "ALTER TABLE timers DROP COLUMN priority;\nALTER TABLE history DROP COLUMN priority";
        super::run(manager, down, down).await
    }
}

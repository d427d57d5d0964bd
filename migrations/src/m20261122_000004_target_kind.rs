//! Adds the kind of a timer's target, so that a node claims only kinds that it knows.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Existing targets are webhooks, kind 0.
        let up = "ALTER TABLE timers ADD COLUMN kind SMALLINT NOT NULL DEFAULT 0;\n\
                  ALTER TABLE history ADD COLUMN kind SMALLINT NOT NULL DEFAULT 0";
        let comment = "COMMENT ON COLUMN timers.kind IS 'of the target: 0 webhook'";
        super::run(manager, &format!("{up};\n{comment}"), up).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "ALTER TABLE timers DROP COLUMN kind;\nALTER TABLE history DROP COLUMN kind";
        super::run(manager, down, down).await
    }
}

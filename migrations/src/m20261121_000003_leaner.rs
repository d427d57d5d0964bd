//! A store has one namespace (`store.namespace`), so its timers need not repeat it: in the bench, 26 bytes of a
//! row. And a shard knows up to which epoch its claims end by themselves: it was given up in order, with
//! attempts under way.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let up = "ALTER TABLE timers DROP COLUMN namespace;\nALTER TABLE history DROP COLUMN namespace;\n\
                  ALTER TABLE shards ADD COLUMN spared BIGINT NOT NULL DEFAULT -1";
        let comment = "COMMENT ON COLUMN shards.spared IS \
                       'what was claimed up to this epoch is not recalled: it ends by itself'";
        super::run(manager, &format!("{up};\n{comment}"), up).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // The default is only for the rows that are there; a namespace is put back from the store's own row.
        let down = "ALTER TABLE shards DROP COLUMN spared;\n\
                    ALTER TABLE timers ADD COLUMN namespace TEXT NOT NULL DEFAULT '';\n\
                    ALTER TABLE history ADD COLUMN namespace TEXT NOT NULL DEFAULT '';\n\
                    UPDATE timers SET namespace = (SELECT namespace FROM store);\n\
                    UPDATE history SET namespace = (SELECT namespace FROM store)";
        super::run(manager, down, down).await
    }
}

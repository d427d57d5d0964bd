//! Watermark and cursor of each shard's wheels, the path that led to a claim, and the notes of replays.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, &format!("{UP};\n{COMMENTS}"), UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, DOWN, DOWN).await
    }
}

const UP: &str = "
    ALTER TABLE shards ADD COLUMN watermark BIGINT NOT NULL DEFAULT 0;\n
    ALTER TABLE shards ADD COLUMN cursor_at BIGINT NOT NULL DEFAULT 0;\n
    ALTER TABLE shards ADD COLUMN wheel TEXT NOT NULL DEFAULT '';\n
    ALTER TABLE store ADD COLUMN id TEXT NOT NULL DEFAULT '';\n
    ALTER TABLE timers ADD COLUMN via SMALLINT;\n
    ALTER TABLE history ADD COLUMN via SMALLINT;\n
    CREATE TABLE replays (
        at BIGINT NOT NULL, shard INTEGER NOT NULL, node TEXT NOT NULL, cause TEXT NOT NULL,
        cursor_at BIGINT NOT NULL, detail TEXT NOT NULL);\n
    CREATE INDEX replays_at ON replays (at)";

const DOWN: &str = "
    DROP TABLE replays;\n
    ALTER TABLE history DROP COLUMN via;\n
    ALTER TABLE timers DROP COLUMN via;\n
    ALTER TABLE store DROP COLUMN id;\n
    ALTER TABLE shards DROP COLUMN wheel;\n
    ALTER TABLE shards DROP COLUMN cursor_at;\n
    ALTER TABLE shards DROP COLUMN watermark";

const COMMENTS: &str = "
    COMMENT ON COLUMN shards.watermark IS 'ms since 1970 UTC: what wakes before this was promoted, or is by whoever writes it';\n
    COMMENT ON COLUMN shards.cursor_at IS 'ms since 1970 UTC: the wheels were handed over up to here';\n
    COMMENT ON COLUMN shards.wheel IS 'server and incarnation of the wheel that holds the window; empty: none';\n
    COMMENT ON COLUMN store.id IS 'random: names this store''s wheels in Redis, which other stores may share';\n
    COMMENT ON COLUMN timers.via IS 'what led to the last claim: 0 loader 1 express 2 sweep 3 replay';\n
    COMMENT ON TABLE replays IS 'what was found when a shard was taken over or its wheel was lost'";

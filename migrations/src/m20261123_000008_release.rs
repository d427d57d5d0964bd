//! What lets neighbouring releases work with one store: the store tells its release, and each node its own. Also the
//! columns of a restored store, and where a timer that was moved has its pointer.

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

// Nodes of release 1 do not write these columns.
const UP: &str = "
    ALTER TABLE nodes ADD COLUMN release INTEGER NOT NULL DEFAULT 1;\n
    ALTER TABLE store ADD COLUMN release INTEGER NOT NULL DEFAULT 1;\n
    ALTER TABLE store ADD COLUMN bears INTEGER NOT NULL DEFAULT 1;\n
    ALTER TABLE store ADD COLUMN beat_at BIGINT NOT NULL DEFAULT 0;\n
    ALTER TABLE store ADD COLUMN held_from BIGINT;\n
    ALTER TABLE store ADD COLUMN held_until BIGINT;\n
    ALTER TABLE store ADD COLUMN accepted_from BIGINT;\n
    ALTER TABLE timers ADD COLUMN pointed_at BIGINT;\n
    ALTER TABLE history ADD COLUMN pointed_at BIGINT";

const DOWN: &str = "
    ALTER TABLE history DROP COLUMN pointed_at;\n
    ALTER TABLE timers DROP COLUMN pointed_at;\n
    ALTER TABLE store DROP COLUMN accepted_from;\n
    ALTER TABLE store DROP COLUMN held_until;\n
    ALTER TABLE store DROP COLUMN held_from;\n
    ALTER TABLE store DROP COLUMN beat_at;\n
    ALTER TABLE store DROP COLUMN bears;\n
    ALTER TABLE store DROP COLUMN release;\n
    ALTER TABLE nodes DROP COLUMN release";

const COMMENTS: &str = "
    COMMENT ON COLUMN nodes.release IS 'of the schema that its binary was made for';\n
    COMMENT ON COLUMN store.release IS 'of the schema';\n
    COMMENT ON COLUMN store.bears IS 'the oldest release whose nodes can work with this schema';\n
    COMMENT ON COLUMN store.incarnation IS 'rises with every beat of a node; a restored store shows an older one';\n
    COMMENT ON COLUMN store.beat_at IS 'ms since 1970 UTC: when the incarnation rose last';\n
    COMMENT ON COLUMN store.held_from IS 'ms since 1970 UTC: the store was restored as it was then; what fell due since is held';\n
    COMMENT ON COLUMN store.held_until IS 'ms since 1970 UTC: when the restored store was found';\n
    COMMENT ON COLUMN store.accepted_from IS 'ms since 1970 UTC: of what is held, what is due from here on may fire, and the rest expires; NULL: held';\n
    COMMENT ON COLUMN timers.pointed_at IS 'ms since 1970 UTC: it was moved, and its first pointer in a wheel comes up then'";

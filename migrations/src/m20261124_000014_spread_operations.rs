//! The span over which a timer's moment was chosen: NULL for nearly every one. And operations: one action on every timer
//! that a filter matches.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

const COLUMNS: [&str; 4] = [
    "ALTER TABLE timers ADD COLUMN spread BIGINT",
    "ALTER TABLE timers ADD COLUMN spread_from BIGINT",
    "ALTER TABLE history ADD COLUMN spread BIGINT",
    "ALTER TABLE history ADD COLUMN spread_from BIGINT",
];

/// `selection` is the filter as nodes read it, with the bound of what the operation takes; `position` is the key up to
/// which it has come.
const OPERATIONS: &str = "CREATE TABLE operations (
    namespace SMALLINT NOT NULL,
    id UUID NOT NULL,
    action TEXT NOT NULL,
    filter TEXT NOT NULL,
    selection TEXT NOT NULL,
    dry_run BOOLEAN NOT NULL,
    state SMALLINT NOT NULL,
    position TEXT,
    matched BIGINT NOT NULL,
    done BIGINT NOT NULL,
    refused TEXT NOT NULL,
    failure TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    node TEXT,
    token UUID,
    lease_until BIGINT NOT NULL,
    PRIMARY KEY (namespace, id)
)";

/// 0 is running.
const RUNNING: &str = "CREATE INDEX operations_running ON operations (lease_until) WHERE state = 0";

const COMMENTS: [&str; 4] = [
    "COMMENT ON COLUMN timers.spread IS 'ms: due_at was chosen from spread_from to so long after it'",
    "COMMENT ON COLUMN timers.spread_from IS 'ms since 1970 UTC: the due time that was asked for'",
    "COMMENT ON COLUMN operations.state IS '0 running 1 done 2 stopped 3 failed'",
    "COMMENT ON COLUMN operations.lease_until IS 'ms since 1970 UTC: until then the node with this token works on it'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            let tables = format!("{};\n{RUNNING}", OPERATIONS.replace("UUID", "BLOB"));
            return super::run(manager, "", &format!("{};\n{tables}", COLUMNS.join(";\n"))).await;
        }
        for column in COLUMNS {
            online::at_once(manager, &column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        }
        for new in [OPERATIONS, RUNNING] {
            let new = new.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS");
            online::at_once(manager, &new.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS")).await?;
        }
        for comment in COMMENTS {
            online::at_once(manager, comment).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP TABLE operations;\nALTER TABLE timers DROP COLUMN spread;\n\
                    ALTER TABLE timers DROP COLUMN spread_from;\nALTER TABLE history DROP COLUMN spread;\n\
                    ALTER TABLE history DROP COLUMN spread_from";
        super::run(manager, down, down).await
    }

    // What is done already is done again, harmlessly, if a lock was not free in time.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

//! Namespaces: which there are, and the number of a timer's own, NULL for the store's. Two indexes find the timers of one of
//! the others, and hold no others.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// A row of one that was removed stays: its number is given to no other.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS namespaces (
    number SMALLINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    terms TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    removed_at BIGINT
)";

const BY_NAME: &str =
    "CREATE UNIQUE INDEX IF NOT EXISTS namespaces_by_name ON namespaces (name) WHERE removed_at IS NULL";

const COLUMNS: [&str; 2] =
    ["ALTER TABLE timers ADD COLUMN namespace SMALLINT", "ALTER TABLE history ADD COLUMN namespace SMALLINT"];

const OF_TIMERS: (&str, &str) =
    ("timers_by_namespace", "(namespace, due_at, uid) WHERE namespace IS NOT NULL");

const OF_HISTORY: (&str, &str) =
    ("history_by_namespace", "(namespace, due_at, uid) WHERE namespace IS NOT NULL");

const COMMENTS: [&str; 6] = [
    "COMMENT ON COLUMN namespaces.number IS 'never given to another one; 0: the store''s own'",
    "COMMENT ON COLUMN namespaces.terms IS 'JSON: its quotas'",
    "COMMENT ON COLUMN namespaces.removed_at IS 'ms since 1970 UTC'",
    "COMMENT ON COLUMN timers.namespace IS 'the number of its namespace; null: the store''s own'",
    "COMMENT ON COLUMN timers.schedule IS 'the id of its schedule, after the number of its namespace and a slash if that is not the store''s own'",
    "COMMENT ON COLUMN timers.template IS 'the template that its data was checked against, like schedule'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            let index =
                |table: &str, (name, on): (&str, &str)| format!("CREATE INDEX {name} ON {table} {on}");
            let mut all: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
            all.extend([TABLE.to_owned(), BY_NAME.to_owned()]);
            all.extend([index("timers", OF_TIMERS), index("history", OF_HISTORY)]);
            return super::run(manager, "", &all.join(";\n")).await;
        }
        for column in COLUMNS {
            online::at_once(manager, &column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        }
        for new in [TABLE, BY_NAME].iter().chain(&COMMENTS) {
            online::at_once(manager, new).await?;
        }
        online::index(manager, OF_TIMERS.0, "timers", OF_TIMERS.1).await?;
        online::index_of_partitions(manager, OF_HISTORY.0, "history", OF_HISTORY.1).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX timers_by_namespace;\nDROP INDEX history_by_namespace;\n\
                    ALTER TABLE timers DROP COLUMN namespace;\nALTER TABLE history DROP COLUMN namespace;\n\
                    DROP TABLE namespaces";
        super::run(manager, down, down).await
    }

    // The indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

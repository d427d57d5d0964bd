//! Templates: named JSON Schemas with defaults. And the template of a timer, NULL for one without; an index finds the live
//! timers of one template, and holds no others.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// `hash` is of what the template says, whoever wrote it and however often: a timer's data is checked against a hash.
const TABLE: &str = "CREATE TABLE templates (
    namespace SMALLINT NOT NULL,
    name TEXT NOT NULL,
    schema TEXT NOT NULL,
    defaults TEXT,
    hash BYTES NOT NULL,
    version INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, name)
)";

const COLUMNS: [&str; 2] =
    ["ALTER TABLE timers ADD COLUMN template TEXT", "ALTER TABLE history ADD COLUMN template TEXT"];

/// Timers get a namespace when a store has more than one; until then the name alone tells the template.
const INDEX: (&str, &str) = ("timers_by_template", "(template) WHERE template IS NOT NULL");

const COMMENTS: [&str; 2] = [
    "COMMENT ON COLUMN templates.hash IS 'of schema and defaults as canonical JSON'",
    "COMMENT ON COLUMN timers.template IS 'the template that its data was checked against'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let (name, on) = INDEX;
        if manager.get_database_backend() != DbBackend::Postgres {
            let (table, columns) = (TABLE.replace("BYTES", "BLOB"), COLUMNS.join(";\n"));
            let all = format!("{table};\n{columns};\nCREATE INDEX {name} ON timers {on}");
            return super::run(manager, "", &all).await;
        }
        let table = TABLE.replace("BYTES", "BYTEA").replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS");
        online::at_once(manager, &table).await?;
        for column in COLUMNS {
            online::at_once(manager, &column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        }
        online::index(manager, name, "timers", on).await?;
        for comment in COMMENTS {
            online::at_once(manager, comment).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX timers_by_template;\nALTER TABLE timers DROP COLUMN template;\n\
                    ALTER TABLE history DROP COLUMN template;\nDROP TABLE templates";
        super::run(manager, down, down).await
    }

    // The index is built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

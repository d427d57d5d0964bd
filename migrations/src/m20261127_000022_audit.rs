//! The audit: who did what to the service.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS audit (
    id NUMBERED,
    namespace SMALLINT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    name TEXT,
    origin TEXT,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    was TEXT,
    became TEXT
)";

/// Nobody writes there yet, so the index is made at once.
const INDEX: &str = "CREATE INDEX IF NOT EXISTS audit_by_time ON audit (at, id)";

const COMMENTS: [&str; 5] = [
    "COMMENT ON COLUMN audit.at IS 'ms since 1970 UTC'",
    "COMMENT ON COLUMN audit.namespace IS 'the number of its namespace; -1: of all'",
    "COMMENT ON COLUMN audit.actor IS 'the id of a key, or a word for who has none'",
    "COMMENT ON COLUMN audit.origin IS 'the address that the call came from'",
    "COMMENT ON COLUMN audit.was IS 'JSON without secrets and payloads; became likewise'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            // A number that was removed is not given again.
            let table = TABLE.replace("NUMBERED", "INTEGER PRIMARY KEY AUTOINCREMENT");
            return super::run(manager, "", &format!("{table};\n{INDEX}")).await;
        }
        let table = TABLE.replace("NUMBERED", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
        for statement in [table.as_str(), INDEX].iter().chain(&COMMENTS) {
            online::at_once(manager, statement).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP TABLE audit";
        super::run(manager, down, down).await
    }

    // Like the other steps that are made beside nodes that write: statement by statement.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

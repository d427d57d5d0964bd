//! API keys: a hash of each, what it may do, and where.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS api_keys (
    id TEXT NOT NULL PRIMARY KEY,
    namespace SMALLINT,
    name TEXT NOT NULL,
    scope SMALLINT NOT NULL,
    hash BYTES NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    last_used_at BIGINT,
    certificate BOOLEAN NOT NULL
)";

/// One certificate is one key, which holds or does not. Nobody writes there yet, so the index is made at once.
const INDEX: &str = "CREATE UNIQUE INDEX IF NOT EXISTS api_keys_by_hash ON api_keys (hash)";

const COMMENTS: [&str; 4] = [
    "COMMENT ON COLUMN api_keys.namespace IS 'the number of its namespace; NULL: all'",
    "COMMENT ON COLUMN api_keys.scope IS '0 view 1 register 2 operate 3 admin; each includes those before it'",
    "COMMENT ON COLUMN api_keys.hash IS 'SHA-256 of the key, which is not kept, or of the certificate that it is'",
    "COMMENT ON COLUMN api_keys.last_used_at IS 'ms since 1970 UTC, written about twice a minute; NULL: never'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            return super::run(manager, "", &format!("{};\n{INDEX}", TABLE.replace("BYTES", "BLOB"))).await;
        }
        online::at_once(manager, &TABLE.replace("BYTES", "BYTEA")).await?;
        online::at_once(manager, INDEX).await?;
        for comment in COMMENTS {
            online::at_once(manager, comment).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP TABLE api_keys";
        super::run(manager, down, down).await
    }

    // Like the other steps that are made beside nodes that write: statement by statement.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

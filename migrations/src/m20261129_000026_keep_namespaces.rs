//! A function by which one statement of PostgreSQL both keeps namespaces from being removed and sees whether they are there.
//!
//! A statement sees what was committed before it began. Where it waits for a removal, as all do that keep namespaces, it does
//! not see what it waited for; each statement of a function does.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// The number is that of `src/cold/namespaces.rs`. Each namespace is looked up for itself, as a join might read them all.
const KEEP: &str = "CREATE OR REPLACE FUNCTION keep_namespaces(numbers BIGINT[]) RETURNS BOOLEAN LANGUAGE plpgsql VOLATILE AS $$ \
     BEGIN \
       PERFORM pg_advisory_xact_lock_shared(7881696745979011437); \
       RETURN (SELECT count((SELECT 1 FROM namespaces WHERE number = each_one AND removed_at IS NULL)) = cardinality(numbers) \
         FROM unnest(numbers) each_one); \
     END $$";

const COMMENT: &str =
    "COMMENT ON FUNCTION keep_namespaces IS 'whether these are there, and stay until the transaction ends'";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            return Ok(());
        }
        online::at_once(manager, KEEP).await?;
        online::at_once(manager, COMMENT).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, "DROP FUNCTION keep_namespaces", "").await
    }

    // What is done already is done again, harmlessly, if a lock was not free in time.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

//! Queues are counted by what workers have of them, which is a few timers among many: only those are in this index, from
//! when a place is given out until none is.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// State 1 is `delivering`; only timers for queues have an audience.
const INDEX: (&str, &str) = ("timers_leased", "(lane) WHERE state = 1 AND audience IS NOT NULL");

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let (name, on) = INDEX;
        if manager.get_database_backend() != DbBackend::Postgres {
            return super::run(manager, "", &format!("CREATE INDEX {name} ON timers {on}")).await;
        }
        online::index(manager, name, "timers", on).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "DROP INDEX timers_leased";
        super::run(manager, down, down).await
    }

    // The index is built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

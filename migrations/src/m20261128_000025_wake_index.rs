//! The index by which PostgreSQL finds timers by the moment they wake serves no look for a timer by its key, which it ends in.
//! Where PostgreSQL took the table for empty, this index cost it the same as the primary key, and it could walk all of it.
//! Every row meets the index's condition; only who asks for `wake_at` implies it.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // SQLite's plans do not go by how many rows there were.
        if manager.get_database_backend() != DbBackend::Postgres {
            return Ok(());
        }
        let on = "(shard, wake_at, uid) WHERE wake_at IS NOT NULL";
        online::index(manager, "timers_by_wake", "timers", on).await?;
        online::drop_index(manager, "timers_shard_wake").await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down =
            "CREATE INDEX timers_shard_wake ON timers (shard, wake_at, uid);\nDROP INDEX timers_by_wake";
        super::run(manager, down, "").await
    }

    // An index is built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

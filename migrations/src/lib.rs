//! The cold store's schema, step by step. Times are milliseconds since the Unix epoch, UTC.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::{DbBackend, TransactionTrait};

mod m20261121_000001_timers;
mod m20261121_000002_wheels;
mod m20261121_000003_leaner;
mod m20261122_000004_target_kind;
mod m20261122_000005_null_kind;
mod m20261122_000006_observe;
mod m20261122_000007_dead;

/// All steps, oldest first.
#[derive(Debug)]
pub struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m20261121_000001_timers::Migration),
            Box::new(m20261121_000002_wheels::Migration),
            Box::new(m20261121_000003_leaner::Migration),
            Box::new(m20261122_000004_target_kind::Migration),
            Box::new(m20261122_000005_null_kind::Migration),
            Box::new(m20261122_000006_observe::Migration),
            Box::new(m20261122_000007_dead::Migration),
        ]
    }
}

/// Runs the statements for the connected database, one by one in one transaction: a step is made as a whole or not at
/// all. On SQLite it also keeps them on one connection: another one may not know yet what the statement before changed.
async fn run(manager: &SchemaManager<'_>, postgres: &str, sqlite: &str) -> Result<(), DbErr> {
    let db = manager.get_connection().begin().await?;
    let script = match manager.get_database_backend() {
        DbBackend::Postgres => postgres,
        DbBackend::Sqlite => sqlite,
        other => {
            return Err(DbErr::Custom(format!("{other:?} is not a cold store of Mainspring")));
        }
    };
    for statement in script.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()) {
        db.execute_unprepared(statement).await?;
    }
    db.commit().await
}

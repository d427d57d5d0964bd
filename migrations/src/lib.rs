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
mod m20261123_000008_release;
mod m20261123_000009_lists;
mod m20261124_000010_destinations;
mod m20261124_000011_priority;
mod m20261124_000012_merge;
mod m20261124_000013_outbox;
mod m20261124_000014_spread_operations;
mod m20261125_000015_taken;
mod m20261125_000016_queues;
mod m20261125_000017_schedules;
mod m20261125_000018_templates;
mod m20261126_000019_schedules_zones;
mod m20261126_000020_queue_counts;
mod m20261127_000021_keys;
mod m20261127_000022_audit;
mod m20261127_000023_namespaces;
mod m20261128_000024_own_lists;
mod m20261128_000025_wake_index;
mod m20261129_000026_keep_namespaces;
mod online;

/// The release of the schema that these steps make. It rises when a release of Mainspring adds steps.
pub const RELEASE: i32 = 3;

/// The oldest release whose nodes can work with this schema. A step that they cannot bear raises it.
pub const BEARS: i32 = 2;

/// The first release whose nodes know namespaces. A store that has one beside its own bears no others.
pub const WITH_NAMESPACES: i32 = 3;

/// With this step the store tells the release of its schema.
pub const TELLS_RELEASE: &str = "m20261123_000008_release";

/// Steps up to this one are of release 0, whose nodes write columns that release 1 has dropped.
const LAST_OF_RELEASE_0: &str = "m20261121_000002_wheels";

/// The release of a schema that has these steps and does not tell it: release 2 and later do.
pub fn release_of(applied: &[String]) -> i32 {
    i32::from(applied.iter().any(|step| step.as_str() > LAST_OF_RELEASE_0))
}

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
            Box::new(m20261123_000008_release::Migration),
            Box::new(m20261123_000009_lists::Migration),
            Box::new(m20261124_000010_destinations::Migration),
            Box::new(m20261124_000011_priority::Migration),
            Box::new(m20261124_000012_merge::Migration),
            Box::new(m20261124_000013_outbox::Migration),
            Box::new(m20261124_000014_spread_operations::Migration),
            Box::new(m20261125_000015_taken::Migration),
            Box::new(m20261125_000016_queues::Migration),
            Box::new(m20261125_000017_schedules::Migration),
            Box::new(m20261125_000018_templates::Migration),
            Box::new(m20261126_000019_schedules_zones::Migration),
            Box::new(m20261126_000020_queue_counts::Migration),
            Box::new(m20261127_000021_keys::Migration),
            Box::new(m20261127_000022_audit::Migration),
            Box::new(m20261127_000023_namespaces::Migration),
            Box::new(m20261128_000024_own_lists::Migration),
            Box::new(m20261128_000025_wake_index::Migration),
            Box::new(m20261129_000026_keep_namespaces::Migration),
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

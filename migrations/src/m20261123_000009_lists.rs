//! Indexes by which a page of a list costs what it returns, however many timers are due at one millisecond or belong to
//! one owner; the loader's scan likewise. And settings of the autovacuum for tables that change all the time.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// Indexes of `timers`: the name, what it is on, and the index that it replaces.
const TIMERS: [(&str, &str, &str); 4] = [
    ("timers_shard_wake", "(shard, wake_at, uid)", "timers_wake"),
    ("timers_by_due", "(due_at, uid)", "timers_due"),
    ("timers_by_owner", "(owner, due_at, uid) WHERE owner IS NOT NULL", "timers_owner"),
    // 2 retrying, 3 paused. A timer that never fails is never in it.
    ("timers_held", "(state, due_at, uid) WHERE state IN (2, 3)", "timers_held_back"),
];

/// Likewise of `history`.
const HISTORY: [(&str, &str, &str); 2] = [
    ("history_by_due", "(state, due_at, uid)", "history_due"),
    ("history_by_owner", "(owner, due_at, uid) WHERE owner IS NOT NULL", "history_owner"),
];

/// `timers`: 5 % of a large table is vacuumed sooner than the default 20 %. The small tables have a new version of most
/// rows every second: room for these in the page keeps the updates out of the indexes.
const AUTOVACUUM: [&str; 5] = [
    "ALTER TABLE timers SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05)",
    "ALTER TABLE shards SET (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
    "ALTER TABLE totals SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
    "ALTER TABLE nodes SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
    "ALTER TABLE store SET (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            return super::run(manager, "", &plain(false)).await;
        }
        for (name, on, _) in TIMERS {
            online::index(manager, name, "timers", on).await?;
        }
        for (name, on, _) in HISTORY {
            online::index_of_partitions(manager, name, "history", on).await?;
        }
        for (_, _, replaced) in TIMERS {
            online::drop_index(manager, replaced).await?;
        }
        for (_, _, replaced) in HISTORY {
            online::at_once(manager, &format!("DROP INDEX IF EXISTS {replaced}")).await?;
        }
        for setting in AUTOVACUUM {
            online::at_once(manager, setting).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let reset = "autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor, fillfactor";
        let resets = ["timers", "shards", "totals", "nodes", "store"]
            .map(|table| format!("ALTER TABLE {table} RESET ({reset})"))
            .join(";\n");
        super::run(manager, &format!("{};\n{resets}", plain(true)), &plain(true)).await
    }

    // Indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

/// The same in plain statements: the new indexes for the old ones, or back.
fn plain(back: bool) -> String {
    let tables = [("timers", &TIMERS[..]), ("history", &HISTORY[..])];
    let each =
        tables.into_iter().flat_map(|(table, indexes)| indexes.iter().map(move |index| (table, index)));
    let statements = each.map(|(table, (name, on, replaced))| {
        if back {
            let was =
                if *replaced == "history_due" { "(due_at)".to_owned() } else { on.replace(", uid)", ")") };
            format!("CREATE INDEX {replaced} ON {table} {was};\nDROP INDEX {name}")
        } else {
            format!("CREATE INDEX {name} ON {table} {on};\nDROP INDEX {replaced}")
        }
    });
    statements.collect::<Vec<_>>().join(";\n")
}

//! Changes of a PostgreSQL schema beside nodes that work with it: indexes are built without a lock against writers, and
//! whatever was begun before is gone on with.
//!
//! Every function here may be called again after it failed half way. A lock that is not free in time fails the call
//! with PostgreSQL's code 55P03; the caller tries again, so that nothing waits behind a waiting `ALTER` for long.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::{ConnectionTrait, Statement};

/// Makes an index of a plain table, unless it is there already. `on` is what follows the table's name.
pub async fn index(manager: &SchemaManager<'_>, name: &str, table: &str, on: &str) -> Result<(), DbErr> {
    let valid = format!("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{name}')");
    match column::<bool>(manager, &valid).await?.first() {
        Some(true) => return Ok(()),
        // The build that made it was broken off.
        Some(false) => drop_index(manager, name).await?,
        None => {}
    }
    patiently(manager, &format!("CREATE INDEX CONCURRENTLY {name} ON {table} {on}")).await
}

/// Removes an index of a plain table, if it is there.
pub async fn drop_index(manager: &SchemaManager<'_>, name: &str) -> Result<(), DbErr> {
    patiently(manager, &format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await
}

/// Makes an index of a partitioned table: one of each partition first, which no writer waits for, then the one that
/// binds them.
pub async fn index_of_partitions(
    manager: &SchemaManager<'_>,
    name: &str,
    table: &str,
    on: &str,
) -> Result<(), DbErr> {
    loop {
        // A partition that a node makes meanwhile has the index only if the parent had it by then.
        let lacking = format!(
            "SELECT p.inhrelid::regclass::text FROM pg_inherits p WHERE p.inhparent = '{table}'::regclass \
             AND NOT EXISTS (SELECT 1 FROM pg_index i JOIN pg_inherits a ON a.inhrelid = i.indexrelid \
               WHERE i.indrelid = p.inhrelid AND a.inhparent = to_regclass('{name}')) ORDER BY 1"
        );
        let lacking = column::<String>(manager, &lacking).await?;
        for partition in &lacking {
            index(manager, &of_partition(name, table, partition), partition, on).await?;
        }
        at_once(manager, &format!("CREATE INDEX IF NOT EXISTS {name} ON ONLY {table} {on}")).await?;
        for partition in &lacking {
            let index = of_partition(name, table, partition);
            at_once(manager, &format!("ALTER INDEX {name} ATTACH PARTITION {index}")).await?;
        }
        if lacking.is_empty() {
            return Ok(());
        }
    }
}

/// `history_due` of the partition `history_d20000` of `history` is `history_d20000_due`.
fn of_partition(name: &str, table: &str, partition: &str) -> String {
    format!("{partition}{}", name.strip_prefix(table).unwrap_or(name))
}

/// Runs a statement that waits for no lock longer than the session allows.
pub async fn at_once(manager: &SchemaManager<'_>, sql: &str) -> Result<(), DbErr> {
    manager.get_connection().execute_unprepared(sql).await.map(drop)
}

/// Runs a statement that makes nobody wait, however long it waits itself: it lets transactions end that are older.
async fn patiently(manager: &SchemaManager<'_>, sql: &str) -> Result<(), DbErr> {
    at_once(manager, "SET lock_timeout = 0").await?;
    let done = at_once(manager, sql).await;
    at_once(manager, "RESET lock_timeout").await?;
    done
}

async fn column<T: sea_orm_migration::sea_orm::TryGetable>(
    manager: &SchemaManager<'_>,
    sql: &str,
) -> Result<Vec<T>, DbErr> {
    let statement = Statement::from_string(manager.get_database_backend(), sql.to_owned());
    let rows = manager.get_connection().query_all_raw(statement).await?;
    rows.iter().map(|row| row.try_get_by_index(0)).collect()
}

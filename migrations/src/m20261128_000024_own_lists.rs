//! The indexes that find the timers of the store's own namespace hold no others: those of each of the others have one by
//! namespace (step 23), and each row stands in as many indexes as it did before there were namespaces.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// The table, the index, what it is on, the index that it replaces.
const INDEXES: [(&str, &str, &str, &str); 2] = [
    ("timers", "timers_own_by_due", "(due_at, uid)", "timers_by_due"),
    ("history", "history_own_by_due", "(state, due_at, uid)", "history_by_due"),
];

const OWN: &str = "WHERE namespace IS NULL";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            let plain = INDEXES.map(|(table, name, on, replaced)| {
                format!("CREATE INDEX {name} ON {table} {on} {OWN};\nDROP INDEX {replaced}")
            });
            return super::run(manager, "", &plain.join(";\n")).await;
        }
        for (table, name, on, _) in INDEXES {
            let on = format!("{on} {OWN}");
            match table {
                "history" => online::index_of_partitions(manager, name, table, &on).await?,
                _ => online::index(manager, name, table, &on).await?,
            }
        }
        // Nodes of release 2 read lists and forecasts by these, and have none until they are replaced.
        for (table, _, _, replaced) in INDEXES {
            match table {
                "history" => online::at_once(manager, &format!("DROP INDEX IF EXISTS {replaced}")).await?,
                _ => online::drop_index(manager, replaced).await?,
            }
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = INDEXES.map(|(table, name, on, replaced)| {
            format!("CREATE INDEX {replaced} ON {table} {on};\nDROP INDEX {name}")
        });
        super::run(manager, &down.join(";\n"), &down.join(";\n")).await
    }

    // Indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

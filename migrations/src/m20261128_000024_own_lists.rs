//! The indexes that find the timers of the store's own namespace hold no others: those of the others have one by namespace
//! (step 23), and each row stands in as many indexes as it did before there were namespaces. That of ended ones has their
//! state as well, by which they are counted.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// An index, and the one that it replaces.
struct Index {
    table: &'static str,
    name: &'static str,
    on: &'static str,
    replaced: &'static str,
    replaced_on: &'static str,
}

const INDEXES: [Index; 3] = [
    Index {
        table: "timers",
        name: "timers_own_by_due",
        on: "(due_at, uid) WHERE namespace IS NULL",
        replaced: "timers_by_due",
        replaced_on: "(due_at, uid)",
    },
    Index {
        table: "history",
        name: "history_own_by_due",
        on: "(state, due_at, uid) WHERE namespace IS NULL",
        replaced: "history_by_due",
        replaced_on: "(state, due_at, uid)",
    },
    Index {
        table: "history",
        name: "history_others_by_due",
        on: "(namespace, due_at, uid, state) WHERE namespace IS NOT NULL",
        replaced: "history_by_namespace",
        replaced_on: "(namespace, due_at, uid) WHERE namespace IS NOT NULL",
    },
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            // SQLite reads a row for the column of the index's own condition, unless the index has it.
            let plain = INDEXES.map(|Index { table, name, on, replaced, .. }| {
                let on = on.replace(") WHERE namespace IS NULL", ", namespace) WHERE namespace IS NULL");
                format!("CREATE INDEX {name} ON {table} {on};\nDROP INDEX {replaced}")
            });
            return super::run(manager, "", &plain.join(";\n")).await;
        }
        for Index { table, name, on, .. } in INDEXES {
            match table {
                "history" => online::index_of_partitions(manager, name, table, on).await?,
                _ => online::index(manager, name, table, on).await?,
            }
        }
        // Nodes of release 2 list by these, and once there is none they read `history` for longer: what needs a lock on it goes
        // first.
        for Index { table, replaced, .. } in INDEXES.into_iter().rev() {
            match table {
                "history" => online::at_once(manager, &format!("DROP INDEX IF EXISTS {replaced}")).await?,
                _ => online::drop_index(manager, replaced).await?,
            }
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = INDEXES.map(|Index { table, name, replaced, replaced_on, .. }| {
            format!("CREATE INDEX {replaced} ON {table} {replaced_on};\nDROP INDEX {name}")
        });
        super::run(manager, &down.join(";\n"), &down.join(";\n")).await
    }

    // Indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

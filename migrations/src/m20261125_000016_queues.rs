//! Queues: what workers fetch themselves. A timer for a queue has a place for each worker it is given out to; a place has a
//! row from when it is first given out until its timer ends. The new columns are NULL of every other timer, and only what
//! may be given out is in the index.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// For both tables of timers, in this order; and whose attempt it was.
const COLUMNS: [&str; 6] = [
    "ALTER TABLE {timers} ADD COLUMN dispatch TEXT",
    "ALTER TABLE {timers} ADD COLUMN audience BIGINT",
    "ALTER TABLE {timers} ADD COLUMN ready_at BIGINT",
    "ALTER TABLE {timers} ADD COLUMN fresh INTEGER",
    "ALTER TABLE {timers} ADD COLUMN acked INTEGER",
    "ALTER TABLE attempts ADD COLUMN worker TEXT",
];

const TABLES: [&str; 2] = [
    "CREATE TABLE queues (
        namespace SMALLINT NOT NULL,
        name TEXT NOT NULL,
        settings TEXT NOT NULL,
        paused BOOLEAN NOT NULL,
        version INTEGER NOT NULL,
        created_at BIGINT NOT NULL,
        changed_at BIGINT NOT NULL,
        PRIMARY KEY (namespace, name)
    )",
    "CREATE TABLE places (
        uid {uuid} NOT NULL,
        number INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        giving INTEGER NOT NULL,
        holder BIGINT NOT NULL,
        worker TEXT NOT NULL,
        held SMALLINT NOT NULL,
        until_at BIGINT NOT NULL,
        given_at BIGINT NOT NULL,
        PRIMARY KEY (uid, number)
    )",
];

/// What may be given out, by audience and priority, the longest ready first.
const READY: (&str, &str) =
    ("timers_ready", "(audience, (COALESCE(priority, 0)), ready_at) WHERE ready_at IS NOT NULL");

/// What a worker has, and what it lost and nobody has taken since.
const BY_HOLDER: (&str, &str) = ("places_holder", "(holder) WHERE held IN (0, 2)");

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let columns: Vec<String> = ["timers", "history"]
            .iter()
            .flat_map(|table| COLUMNS[..5].iter().map(move |column| column.replace("{timers}", table)))
            .chain([COLUMNS[5].to_owned()])
            .collect();
        if manager.get_database_backend() != DbBackend::Postgres {
            let tables = TABLES.map(|table| table.replace("{uuid}", "BLOB"));
            let indexes = [
                format!("CREATE INDEX {} ON timers {}", READY.0, READY.1),
                format!("CREATE INDEX {} ON places {}", BY_HOLDER.0, BY_HOLDER.1),
            ];
            let script = [columns.as_slice(), &tables, &indexes].concat().join(";\n");
            return super::run(manager, "", &script).await;
        }
        for column in columns {
            online::at_once(manager, &column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        }
        for table in TABLES {
            let table = table.replace("{uuid}", "UUID").replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS");
            online::at_once(manager, &table).await?;
        }
        // Rows that change at each lease: without room for the next version on their page they would grow the index.
        online::at_once(manager, "ALTER TABLE places SET (fillfactor = 70)").await?;
        for comment in [
            "COMMENT ON COLUMN timers.audience IS 'hash of queue and of whom it is for; NULL unless it is for a queue'",
            "COMMENT ON COLUMN timers.ready_at IS 'from when on a place may be given out, ms; NULL if none may'",
            "COMMENT ON COLUMN timers.fresh IS 'places that nobody has had yet'",
            "COMMENT ON COLUMN places.held IS '0 out, 1 given back, 2 lost, 3 acked, 4 dead'",
            "COMMENT ON COLUMN places.until_at IS 'end of its lease, or from when on it may be given out again, ms'",
        ] {
            online::at_once(manager, comment).await?;
        }
        online::index(manager, READY.0, "timers", READY.1).await?;
        online::index(manager, BY_HOLDER.0, "places", BY_HOLDER.1).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let mut down: Vec<String> =
            ["DROP INDEX timers_ready", "DROP TABLE places", "DROP TABLE queues"].map(str::to_owned).to_vec();
        for table in ["timers", "history"] {
            down.extend(
                ["dispatch", "audience", "ready_at", "fresh", "acked"]
                    .map(|column| format!("ALTER TABLE {table} DROP COLUMN {column}")),
            );
        }
        down.push("ALTER TABLE attempts DROP COLUMN worker".to_owned());
        let down = down.join(";\n");
        super::run(manager, &down, &down).await
    }

    // The indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

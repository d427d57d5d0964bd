//! Schedules: rules that make timers, and the nominal times that became none. What a timer has of its schedule is NULL of
//! every other one, and only timers of schedules are in the indexes.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use super::online;

#[derive(DeriveMigrationName)]
pub struct Migration;

/// Of a timer: the schedule that made it, for which nominal time, why it was skipped, what it waits for among the
/// occurrences of its schedule, and when somebody has to judge whether it was missed.
const COLUMNS: [&str; 13] = [
    "ALTER TABLE timers ADD COLUMN schedule TEXT",
    "ALTER TABLE timers ADD COLUMN nominal BIGINT",
    "ALTER TABLE timers ADD COLUMN skipped SMALLINT",
    "ALTER TABLE timers ADD COLUMN overlap SMALLINT",
    "ALTER TABLE timers ADD COLUMN judge_after BIGINT",
    "ALTER TABLE history ADD COLUMN schedule TEXT",
    "ALTER TABLE history ADD COLUMN nominal BIGINT",
    "ALTER TABLE history ADD COLUMN skipped SMALLINT",
    "ALTER TABLE history ADD COLUMN overlap SMALLINT",
    "ALTER TABLE history ADD COLUMN judge_after BIGINT",
    "ALTER TABLE shards ADD COLUMN served_until BIGINT",
    "ALTER TABLE shards ADD COLUMN served_since BIGINT",
    "ALTER TABLE shards ADD COLUMN gap_from BIGINT",
];

/// `plan` is the rule with its policies as nodes read it, `content` what each occurrence is, `request` what the caller
/// sent. `given_to` is to whom occurrences for a queue are given out. `gone` are nominal times ahead that must not be made again, as JSON.
const SCHEDULES: &str = "CREATE TABLE schedules (
    namespace SMALLINT NOT NULL,
    id TEXT NOT NULL,
    shard INTEGER NOT NULL,
    state SMALLINT NOT NULL,
    plan TEXT NOT NULL,
    content TEXT NOT NULL,
    request TEXT NOT NULL,
    request_hash BYTES NOT NULL,
    kind SMALLINT NOT NULL,
    lane BIGINT NOT NULL,
    given_to TEXT,
    template TEXT,
    owner TEXT,
    labels TEXT,
    made BIGINT NOT NULL,
    last_nominal BIGINT NOT NULL,
    paused_until BIGINT,
    make_at BIGINT,
    failures INTEGER NOT NULL,
    gone TEXT,
    version INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, id)
)";

/// A row is a range of nominal times of one rule that became no occurrence. SQLite gives a row's number again without
/// `AUTOINCREMENT`.
const SKIPS: &str = "CREATE TABLE skips (
    ID,
    namespace SMALLINT NOT NULL,
    schedule TEXT NOT NULL,
    first_nominal BIGINT NOT NULL,
    last_nominal BIGINT NOT NULL,
    count BIGINT NOT NULL,
    reason SMALLINT NOT NULL,
    rule TEXT NOT NULL,
    at BIGINT NOT NULL
)";

/// Indexes of the new tables: what is to be looked at, by time; who uses a destination; the ranges of a schedule.
const OF_TABLES: [&str; 3] = [
    "CREATE INDEX schedules_make_at ON schedules (shard, make_at) WHERE make_at IS NOT NULL",
    "CREATE INDEX schedules_by_lane ON schedules (lane)",
    "CREATE INDEX skips_by_schedule ON skips (namespace, schedule, first_nominal)",
];

/// Indexes of timers: those of a schedule; those to be judged; those that wait for another of their schedule.
const OF_TIMERS: [(&str, &str); 3] = [
    ("timers_by_schedule", "(schedule, due_at, uid) WHERE schedule IS NOT NULL"),
    ("timers_judged", "(shard, judge_after) WHERE judge_after IS NOT NULL AND state = 0"),
    ("timers_overlap", "(shard, due_at) WHERE overlap IS NOT NULL AND state = 0"),
];

/// Indexes of ended timers of schedules.
const OF_HISTORY: [(&str, &str); 2] = [
    ("history_by_schedule", "(schedule, due_at, uid) WHERE schedule IS NOT NULL"),
    ("history_schedule_ended", "(schedule, ended_at) WHERE schedule IS NOT NULL"),
];

const COMMENTS: [&str; 11] = [
    "COMMENT ON COLUMN timers.nominal IS 'ms since 1970 UTC: the nominal time that it was made for'",
    "COMMENT ON COLUMN timers.skipped IS '1 missed 2 overlap 3 paused 4 its rule was changed'",
    "COMMENT ON COLUMN timers.overlap IS '1 skip 2 queue_one 3 in line; null is allow'",
    "COMMENT ON COLUMN timers.judge_after IS 'ms since 1970 UTC: from then on not claimed before it is judged; before due_at its schedule is paused; the end of 9999: it waits for another of its schedule'",
    "COMMENT ON COLUMN shards.served_until IS 'ms since 1970 UTC: the last renewal of its lease'",
    "COMMENT ON COLUMN shards.gap_from IS 'ms since 1970 UTC: from then until served_since nobody served it'",
    "COMMENT ON COLUMN schedules.state IS '0 active 1 paused 2 ended'",
    "COMMENT ON COLUMN schedules.last_nominal IS 'ms since 1970 UTC: nominal times up to here are decided'",
    "COMMENT ON COLUMN schedules.paused_until IS 'ms since 1970 UTC: nominal times up to here fell into a pause'",
    "COMMENT ON COLUMN schedules.make_at IS 'ms since 1970 UTC: when it is looked at next'",
    "COMMENT ON COLUMN skips.reason IS '1 missed 3 paused'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Postgres {
            let index = |table: &'static str| {
                move |(name, on): &(&str, &str)| format!("CREATE INDEX {name} ON {table} {on}")
            };
            let mut all: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
            all.push(SCHEDULES.replace("BYTES", "BLOB"));
            all.push(SKIPS.replace("    ID,", "    id INTEGER PRIMARY KEY AUTOINCREMENT,"));
            all.extend(OF_TABLES.map(str::to_owned));
            all.extend(OF_TIMERS.iter().map(index("timers")));
            all.extend(OF_HISTORY.iter().map(index("history")));
            return super::run(manager, "", &all.join(";\n")).await;
        }
        for column in COLUMNS {
            online::at_once(manager, &column.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS")).await?;
        }
        let schedules = SCHEDULES.replace("BYTES", "BYTEA");
        let skips = SKIPS.replace("    ID,", "    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,");
        for new in [schedules.as_str(), skips.as_str()].into_iter().chain(OF_TABLES) {
            let new = new.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS");
            online::at_once(manager, &new.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS")).await?;
        }
        for comment in COMMENTS {
            online::at_once(manager, comment).await?;
        }
        for (name, on) in OF_TIMERS {
            online::index(manager, name, "timers", on).await?;
        }
        for (name, on) in OF_HISTORY {
            online::index_of_partitions(manager, name, "history", on).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let indexes = OF_TIMERS.iter().chain(&OF_HISTORY).map(|(name, _)| format!("DROP INDEX {name}"));
        let columns = COLUMNS.map(|column| column.replace("ADD COLUMN", "DROP COLUMN"));
        let columns = columns.iter().filter_map(|column| column.rsplit_once(' ').map(|(drop, _)| drop));
        let tables = ["DROP TABLE skips".to_owned(), "DROP TABLE schedules".to_owned()];
        let down = indexes.chain(columns.map(str::to_owned)).chain(tables).collect::<Vec<_>>().join(";\n");
        super::run(manager, &down, &down).await
    }

    // The indexes are built beside nodes that write, which no transaction can.
    fn use_transaction(&self) -> Option<bool> {
        Some(false)
    }
}

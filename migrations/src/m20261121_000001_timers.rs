//! Live timers, their history, attempts, the ledger's totals, and who owns which shard.
//!
//! `timers` has live rows only; a timer that ends is moved to `history` in the same transaction. Both tables
//! have the same columns in the same order, so a row is moved without being rebuilt.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let columns = |uuid: &str, bytes: &str| COLUMNS.replace("{uuid}", uuid).replace("{bytes}", bytes);
        let (pg, lite) = (columns("UUID", "BYTEA"), columns("BLOB", "BLOB"));
        let postgres = format!(
            "CREATE TABLE timers ({pg}, PRIMARY KEY (uid));\n
             CREATE TABLE history ({pg}, ended_at BIGINT NOT NULL, last TEXT) PARTITION BY RANGE (ended_at);\n
             CREATE TABLE history_default PARTITION OF history DEFAULT;\n
             CREATE INDEX history_default_ended_at ON history_default (ended_at);\n
             CREATE TABLE attempts ({attempts}, PRIMARY KEY (uid, generation, attempt));\n
             CREATE TABLE ended_ids ({ended});\n
             {rest}",
            attempts = ATTEMPTS.replace("{uuid}", "UUID"),
            ended = ENDED.replace("{uuid}", "UUID").replace("{bytes}", "BYTEA"),
            rest = REST.replace("{comments}", COMMENTS),
        );
        let sqlite = format!(
            "CREATE TABLE timers ({lite}, PRIMARY KEY (uid));\n
             CREATE TABLE history ({lite}, ended_at BIGINT NOT NULL, last TEXT);\n
             CREATE INDEX history_ended_at ON history (ended_at);\n
             CREATE TABLE attempts ({attempts}, PRIMARY KEY (uid, generation, attempt)) WITHOUT ROWID;\n
             CREATE TABLE ended_ids ({ended}) WITHOUT ROWID;\n
             {rest}",
            attempts = ATTEMPTS.replace("{uuid}", "BLOB"),
            ended = ENDED.replace("{uuid}", "BLOB").replace("{bytes}", "BLOB"),
            rest = REST.replace("{comments}", ""),
        );
        super::run(manager, &postgres, &sqlite).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let drop = "DROP TABLE timers;\nDROP TABLE history;\nDROP TABLE attempts;\nDROP TABLE ended_ids;\n\
                    DROP TABLE totals;\nDROP TABLE shards;\nDROP TABLE nodes;\nDROP TABLE store";
        super::run(manager, drop, drop).await
    }
}

const COLUMNS: &str = "
    uid {uuid} NOT NULL,
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    caller_id BOOLEAN NOT NULL,
    owner TEXT,
    shard INTEGER NOT NULL,
    state SMALLINT NOT NULL,
    due_at BIGINT NOT NULL,
    wake_at BIGINT NOT NULL,
    expire_at BIGINT,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    version INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    lane BIGINT NOT NULL,
    minute BOOLEAN NOT NULL,
    uncertain BOOLEAN NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    acked_late BOOLEAN NOT NULL,
    target TEXT NOT NULL,
    data {bytes},
    labels TEXT,
    policies TEXT,
    request_hash {bytes} NOT NULL,
    created_at BIGINT NOT NULL,
    claimed_at BIGINT,
    node TEXT";

const ATTEMPTS: &str = "
    uid {uuid} NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    result TEXT NOT NULL,
    status INTEGER,
    reply TEXT,
    detail TEXT,
    node TEXT NOT NULL,
    created_at BIGINT NOT NULL";

const ENDED: &str = "
    uid {uuid} NOT NULL PRIMARY KEY,
    request_hash {bytes} NOT NULL,
    generation INTEGER NOT NULL,
    until BIGINT NOT NULL";

const REST: &str = "
    CREATE INDEX timers_wake ON timers (shard, wake_at);\n
    CREATE INDEX timers_due ON timers (due_at);\n
    CREATE INDEX timers_owner ON timers (owner, due_at) WHERE owner IS NOT NULL;\n
    CREATE INDEX history_uid ON history (uid);\n
    CREATE INDEX history_due ON history (due_at);\n
    CREATE INDEX history_owner ON history (owner, due_at) WHERE owner IS NOT NULL;\n
    CREATE INDEX ended_ids_until ON ended_ids (until);\n
    CREATE INDEX attempts_ended_at ON attempts (ended_at);\n
    CREATE TABLE totals (
        name TEXT NOT NULL, slot INTEGER NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (name, slot));\n
    CREATE TABLE shards (
        shard INTEGER NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, owner TEXT, lease_until BIGINT NOT NULL);\n
    CREATE UNIQUE INDEX shards_epoch ON shards (shard, epoch);\n
    CREATE TABLE nodes (
        name TEXT NOT NULL PRIMARY KEY, incarnation TEXT NOT NULL, address TEXT NOT NULL, version TEXT NOT NULL,
        started_at BIGINT NOT NULL, beat_at BIGINT NOT NULL);\n
    CREATE TABLE store (
        one INTEGER NOT NULL PRIMARY KEY, incarnation BIGINT NOT NULL, namespace TEXT NOT NULL, shards INTEGER NOT NULL,
        created_at BIGINT NOT NULL);\n
    {comments}";

/// Units and meanings of the columns, for operators who look into the database.
const COMMENTS: &str = "
    COMMENT ON COLUMN timers.uid IS 'UUIDv7, or 128-bit hash of namespace and the caller''s id';\n
    COMMENT ON COLUMN timers.id IS 'the caller''s id; empty for one of the service''s own form, tmr_ and the uid';\n
    COMMENT ON COLUMN timers.state IS '0 scheduled 1 delivering 2 retrying 3 paused; in history 4 delivered 5 cancelled 6 expired 7 dead';\n
    COMMENT ON COLUMN timers.due_at IS 'ms since 1970 UTC';\n
    COMMENT ON COLUMN timers.wake_at IS 'ms since 1970 UTC: due, next attempt, or claim expiry';\n
    COMMENT ON COLUMN timers.expire_at IS 'ms since 1970 UTC: no first attempt after this; NULL: always';\n
    COMMENT ON COLUMN timers.attempt IS 'claims of this generation';\n
    COMMENT ON COLUMN timers.tries IS 'claims of all generations';\n
    COMMENT ON COLUMN timers.epoch IS 'of the shard at the last claim';\n
    COMMENT ON COLUMN timers.lane IS 'hash of the receiver''s scheme, host and port';\n
    COMMENT ON COLUMN timers.request_hash IS '128-bit hash of the canonical request';\n
    COMMENT ON COLUMN shards.lease_until IS 'ms since 1970 UTC, by this database''s clock';\n
    COMMENT ON TABLE totals IS 'the ledger: counted where it happens; slots keep writers apart'";

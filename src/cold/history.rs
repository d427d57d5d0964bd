//! Retention: partitions of history, and the removal of what ended longer ago than `history.retention`. Its
//! counts are added to the totals, which stay.
//!
//! Nothing here may make an end or a cancel wait. A lock on `history` that waits behind a long reader, such as a
//! running backup, makes every later end wait behind itself. So each wait for a lock is short ([`LOCK_WAIT`]), and
//! what was not done is tried again in the next round. The steps ([`Step`]) do not depend on each other.

use std::collections::BTreeMap;

use super::operations::PURGED;
use super::sql::{Dialect, Row, Statement, Tx};
use super::totals::Counts;
use super::{ColdStore, Error};
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;
use crate::model::timer::State;

const DAY_MS: i64 = 86_400_000;

/// The most rows that one statement removes or changes.
const STEP: i64 = 2000;

/// How long a change of the partitions waits for its locks. Ends and reads may have to wait as long behind it.
const LOCK_WAIT: &str = "200ms";

/// A step of the retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Whole partitions of history (PostgreSQL).
    Partitions,
    /// Single rows of history: on SQLite, and of PostgreSQL's default partition.
    History,
    /// Ids that stay taken longer than a shortened retention says.
    ShortenIds,
    /// Ids that were taken.
    Ids,
    /// Attempts.
    Attempts,
    /// Notes of replays.
    Replays,
    /// The audit, after a retention of its own.
    Audit,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 7] = [
        Self::Partitions,
        Self::History,
        Self::ShortenIds,
        Self::Ids,
        Self::Attempts,
        Self::Replays,
        Self::Audit,
    ];

    /// Whether it removes something, and so can be behind.
    pub fn removes(self) -> bool {
        self != Self::ShortenIds
    }

    /// Its word in metrics and log lines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Partitions => "old_partitions",
            Self::History => "history",
            Self::ShortenIds => "shortened_ids",
            Self::Ids => "ids",
            Self::Attempts => "attempts",
            Self::Replays => "replays",
            Self::Audit => "audit",
        }
    }
}

impl ColdStore {
    /// Makes the daily partitions of history for today and the `ahead` days after it (PostgreSQL; nothing on
    /// SQLite).
    ///
    /// A day that already has rows in the default partition gets no partition of its own. Fails at the first
    /// partition whose locks are not free in time; those before it are made.
    pub async fn make_partitions(&self, now: UnixMs, ahead: i64) -> Result<(), Error> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(());
        }
        let today = now.get().div_euclid(DAY_MS);
        let made = self.partitions().await?;
        for day in (today..=today + ahead).filter(|day| !made.contains(day)) {
            match self.make_partition(day, day > today + 1).await {
                // Rows of that day came into the default partition, or another node has just made it.
                Err(why) if why.is_data() || why.is_duplicate() => {
                    tracing::debug!(partition = partition_name(day), %why, "history partition not made");
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Makes one partition: aside first, then attached. `PARTITION OF` would lock `history` against everybody; this
    /// locks it against changes of its structure only, and the default partition, which is nearly always empty, for a
    /// moment.
    async fn make_partition(&self, day: i64, is_ahead: bool) -> Result<(), Error> {
        let (name, from, to) = (partition_name(day), day * DAY_MS, (day + 1) * DAY_MS);
        let mut s = Statement::new(self.dialect(), "default_rows");
        s.push(&format!(
            "SELECT EXISTS (SELECT 1 FROM history_default WHERE ended_at >= {from} AND ended_at < {to}), \
             EXISTS (SELECT 1 FROM history_default)"
        ));
        let (mut of_the_day, mut any) = (false, false);
        for row in self.pool.read(s).await? {
            (of_the_day, any) = (row.get(0)?, row.get(1)?);
        }
        if of_the_day {
            return Ok(());
        }
        // The constraint refuses rows until the partition is attached, so it is not for a day that may have some soon.
        if !any || !is_ahead {
            return self.attach(&name, from, to, None).await;
        }
        let check = format!("not_{name}");
        self.shield_default(&check, from, to).await?;
        self.attach(&name, from, to, Some(&check)).await
    }

    /// Gives the default partition a constraint that excludes a range, so that it is not read under a lock when the
    /// partition of that range is attached. It is read here, beside everybody else.
    async fn shield_default(&self, check: &str, from: i64, to: i64) -> Result<(), Error> {
        let mut tx = self.begin_with_short_waits().await?;
        tx.execute(self.plain(&format!(
            "ALTER TABLE history_default DROP CONSTRAINT IF EXISTS {check}, \
             ADD CONSTRAINT {check} CHECK (ended_at < {from} OR ended_at >= {to}) NOT VALID"
        )))
        .await?;
        tx.commit().await?;
        let mut tx = self.begin_with_short_waits().await?;
        tx.execute(self.plain("SET LOCAL statement_timeout = '10min'")).await?;
        tx.execute(self.plain(&format!("ALTER TABLE history_default VALIDATE CONSTRAINT {check}"))).await?;
        tx.commit().await
    }

    /// Makes a table and attaches it in one transaction, so that nothing is left over when a lock is not free.
    async fn attach(&self, name: &str, from: i64, to: i64, check: Option<&str>) -> Result<(), Error> {
        let mut tx = self.begin_with_short_waits().await?;
        tx.execute(self.plain(&format!("CREATE TABLE {name} (LIKE history INCLUDING ALL)"))).await?;
        let attach =
            format!("ALTER TABLE history ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})");
        tx.execute(self.plain(&attach)).await?;
        if let Some(check) = check {
            let drop = format!("ALTER TABLE history_default DROP CONSTRAINT {check}");
            tx.execute(self.plain(&drop)).await?;
        }
        tx.commit().await
    }

    /// Does a step of the retention: removes what ended longer ago than the retention, in transactions of at most
    /// `STEP` rows each, or a partition each. The counts of history are added to the totals (`folded.STATE`) in the
    /// same transaction. Returns the number of rows of history removed.
    pub async fn clean_up(&self, step: Step, now: UnixMs) -> Result<i64, Error> {
        let until = self.retained_from(now);
        match step {
            Step::Partitions => return self.drop_partitions(until).await,
            Step::History => {
                let mut removed = 0;
                loop {
                    let rows = self.delete_history(until).await?;
                    removed += rows;
                    if rows < STEP {
                        return Ok(removed);
                    }
                }
            }
            Step::ShortenIds => {
                let latest = now.get().saturating_add(self.retention_ms);
                let set = format!("UPDATE ended_ids SET until = {latest}");
                self.in_steps(&set, "ended_ids", "uid", &format!("until > {latest}")).await?;
            }
            Step::Ids => self.delete("ended_ids", "uid", "until", now.get()).await?,
            Step::Attempts => self.delete("attempts", "uid, generation, attempt", "ended_at", until).await?,
            Step::Replays => self.delete("replays", "at, shard", "at", until).await?,
            Step::Audit => self.delete("audit", "id", "at", self.audited_from(now)).await?,
        }
        Ok(0)
    }

    /// How long, in milliseconds, the oldest thing that a step is to remove should have been gone; 0 if there is none,
    /// and for a step that removes nothing.
    pub async fn retention_lag_ms(&self, step: Step, now: UnixMs) -> Result<i64, Error> {
        let until = self.retained_from(now);
        let (column, table, before) = match step {
            Step::Partitions => {
                let oldest = self.partitions().await?.into_iter().min();
                return Ok(oldest.map_or(0, |day| (until - (day + 1) * DAY_MS).max(0)));
            }
            Step::ShortenIds => return Ok(0),
            Step::History => ("ended_at", self.history_rows(), until),
            Step::Ids => ("until", "ended_ids", now.get()),
            Step::Attempts => ("ended_at", "attempts", until),
            Step::Replays => ("at", "replays", until),
            Step::Audit => ("at", "audit", self.audited_from(now)),
        };
        let mut s = Statement::new(self.dialect(), "retention_lag");
        s.push(&format!("SELECT min({column}) FROM {table}"));
        let rows = self.pool.read(s).await?;
        let oldest: Option<i64> = rows.first().map(|row| row.get(0)).transpose()?.flatten();
        Ok(oldest.map_or(0, |oldest| (before - oldest).max(0)))
    }

    const fn retained_from(&self, now: UnixMs) -> i64 {
        now.get().saturating_sub(self.retention_ms)
    }

    const fn audited_from(&self, now: UnixMs) -> i64 {
        now.get().saturating_sub(self.audit_retention_ms)
    }

    /// The table of history whose rows are removed one by one.
    fn history_rows(&self) -> &'static str {
        match self.dialect() {
            Dialect::Postgres => "history_default",
            Dialect::Sqlite => "history",
        }
    }

    async fn delete(&self, table: &str, key: &str, column: &str, before: i64) -> Result<(), Error> {
        self.in_steps(&format!("DELETE FROM {table}"), table, key, &format!("{column} < {before}")).await
    }

    /// Runs a statement on the rows for which a condition holds, until it holds for none, [`STEP`] rows at a time.
    async fn in_steps(&self, statement: &str, table: &str, key: &str, condition: &str) -> Result<(), Error> {
        loop {
            let mut s = Statement::new(self.dialect(), "clean_up_rest");
            s.push(&format!(
                "{statement} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {condition} LIMIT {STEP})"
            ));
            let mut tx = self.pool.begin().await?;
            let rows = tx.execute(s).await?;
            tx.commit().await?;
            if i64::try_from(rows).unwrap_or(0) < STEP {
                return Ok(());
            }
        }
    }

    /// The days that have a partition.
    async fn partitions(&self) -> Result<Vec<i64>, Error> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "partitions");
        s.push(
            "SELECT substr(c.relname, 10)::bigint FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
             WHERE i.inhparent = 'history'::regclass AND c.relname ~ '^history_d[0-9]+$' ORDER BY 1",
        );
        self.pool.read(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Drops the partitions of days that ended before `until`, oldest first. A partition whose locks are not free in
    /// time ends the step: those after it would wait behind the same readers.
    async fn drop_partitions(&self, until: i64) -> Result<i64, Error> {
        let mut removed = 0;
        for day in self.partitions().await? {
            if (day + 1) * DAY_MS <= until {
                removed += self.drop_partition(&partition_name(day)).await?;
            }
        }
        Ok(removed)
    }

    /// Adds a partition's counts to the totals and drops it. Its day has passed and no row is added any more,
    /// so it is counted without a lock; if a purge has removed rows since, another round drops it. The parent is locked before the partition, in the order in which
    /// readers lock them.
    async fn drop_partition(&self, name: &str) -> Result<i64, Error> {
        let mut counting = self.pool.begin().await?;
        counting.execute(self.plain("SET LOCAL statement_timeout = '10min'")).await?;
        // Every row is read.
        counting.execute(self.plain("SET LOCAL enable_seqscan = on")).await?;
        let purged = self.purged(&mut counting).await?;
        let mut counts = Removed::default();
        let count =
            self.plain(&format!("SELECT state, namespace, count(*) FROM {name} GROUP BY state, namespace"));
        for row in counting.fetch(count).await? {
            counts.insert((Namespace::of_stored(row.get(1)?), row.get(0)?), row.get(2)?);
        }
        counting.commit().await?;
        let mut tx = self.begin_with_short_waits().await?;
        tx.execute(self.plain("LOCK TABLE ONLY history IN ACCESS EXCLUSIVE MODE")).await?;
        if self.purged(&mut tx).await? != purged {
            return Ok(0);
        }
        self.fold(&mut tx, &counts).await?;
        tx.execute(self.plain(&format!("DROP TABLE {name}"))).await?;
        tx.commit().await?;
        Ok(counts.values().sum())
    }

    /// How many timers purges have removed.
    async fn purged(&self, tx: &mut Tx) -> Result<i64, Error> {
        let sum =
            format!("SELECT CAST(COALESCE(sum(value), 0) AS BIGINT) FROM totals WHERE name = '{PURGED}'");
        let s = self.plain(&sum);
        tx.fetch(s).await?.first().map_or(Ok(0), |row| row.get(0))
    }

    /// Begins a transaction that waits for no lock longer than [`LOCK_WAIT`].
    async fn begin_with_short_waits(&self) -> Result<Tx, Error> {
        let mut tx = self.pool.begin().await?;
        tx.execute(self.plain(&format!("SET LOCAL lock_timeout = '{LOCK_WAIT}'"))).await?;
        Ok(tx)
    }

    /// A statement of the housekeeping, which the database alone bounds in time.
    fn plain(&self, sql: &str) -> Statement {
        let mut s = Statement::new(self.dialect(), "retention");
        s.push(sql).without_timeout();
        s
    }

    async fn delete_history(&self, until: i64) -> Result<i64, Error> {
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "clean_up");
        let (until, step) = (s.int(until), s.int(STEP));
        let row = match self.dialect() {
            Dialect::Postgres => "ctid",
            Dialect::Sqlite => "rowid",
        };
        let table = self.history_rows();
        s.push(&format!(
            "DELETE FROM {table} WHERE {row} IN (SELECT {row} FROM {table} WHERE ended_at < {until} LIMIT {step}) \
             RETURNING state, namespace"
        ));
        let counts = removed(&tx.fetch(s).await?)?;
        self.fold(&mut tx, &counts).await?;
        tx.commit().await?;
        Ok(counts.values().sum())
    }

    /// Adds the counts of removed rows to the totals.
    pub(super) async fn fold(&self, tx: &mut Tx, removed: &Removed) -> Result<(), Error> {
        let mut counts = Counts::default();
        for ((namespace, code), count) in removed {
            if let Some(state) = State::from_code(*code) {
                counts.add(*namespace, &format!("folded.{}", state.word()), *count);
            }
        }
        self.count(tx, &counts).await
    }
}

/// How many rows of history were removed, by namespace and state.
pub(super) type Removed = BTreeMap<(Namespace, i16), i64>;

/// Counts removed rows, which have their states and their namespaces.
pub(super) fn removed(rows: &[Row]) -> Result<Removed, Error> {
    let mut counts = Removed::default();
    for row in rows {
        *counts.entry((Namespace::of_stored(row.get(1)?), row.get(0)?)).or_default() += 1;
    }
    Ok(counts)
}

fn partition_name(day: i64) -> String {
    format!("history_d{day}")
}

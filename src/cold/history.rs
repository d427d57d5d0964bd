//! Retention: partitions of history, and the removal of what ended longer ago than `history.retention`. Its
//! counts are added to the totals, which stay.

use super::sql::{Dialect, Statement};
use super::{ColdStore, Error};
use crate::model::time::UnixMs;
use crate::model::timer::State;

const DAY_MS: i64 = 86_400_000;

/// The most rows that one step deletes.
const STEP: i64 = 2000;

impl ColdStore {
    /// Makes the daily partitions of history for today and the `ahead` days after it (PostgreSQL; nothing on
    /// SQLite).
    ///
    /// A day that already has rows in the default partition gets no partition of its own.
    pub async fn make_partitions(&self, now: UnixMs, ahead: i64) -> Result<(), Error> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(());
        }
        let today = now.get().div_euclid(DAY_MS);
        for day in today..=today + ahead {
            let name = partition_name(day);
            let mut exists = Statement::new(self.dialect(), "partition_exists");
            let text = exists.text(&name);
            exists
                .push(&format!("SELECT 1 FROM pg_class WHERE relname = {text} AND pg_table_is_visible(oid)"));
            if !self.pool.read(exists).await?.is_empty() {
                continue;
            }
            let (from, to) = (day * DAY_MS, (day + 1) * DAY_MS);
            let mut make = Statement::new(self.dialect(), "make_partition");
            make.push(&format!(
                "CREATE TABLE IF NOT EXISTS {name} PARTITION OF history FOR VALUES FROM ({from}) TO ({to})"
            ));
            match self.pool.write(make).await {
                // The default partition holds rows of that day, or another node has just made it.
                Err(why) if why.is_data() || why.is_duplicate() => {
                    tracing::debug!(partition = name, %why, "history partition not made");
                }
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Removes what ended longer ago than the retention: whole partitions on PostgreSQL, small batches
    /// elsewhere. Its counts are added to the totals (`folded.STATE`) in the same transaction. Returns the
    /// number of rows removed.
    pub async fn clean_up(&self, now: UnixMs) -> Result<i64, Error> {
        let until = now.get().saturating_sub(self.retention_ms);
        let mut removed = 0;
        if self.dialect() == Dialect::Postgres {
            for name in self.partitions_before(until.div_euclid(DAY_MS)).await? {
                match self.drop_partition(&name).await {
                    Ok(rows) => removed += rows,
                    // Another transaction reads it. The next round tries again; the other partitions do not
                    // wait.
                    Err(why) => {
                        tracing::info!(partition = name, %why, "history partition not dropped; it is tried again")
                    }
                }
            }
        }
        let table = match self.dialect() {
            Dialect::Postgres => "history_default",
            Dialect::Sqlite => "history",
        };
        loop {
            let step = self.delete_step(table, until).await?;
            removed += step;
            if step < STEP {
                break;
            }
        }
        self.shorten_taken_ids(now.get()).await?;
        for (table, key, column, before) in [
            ("ended_ids", "uid", "until", now.get()),
            ("attempts", "uid, generation, attempt", "ended_at", until),
            ("replays", "at, shard", "at", until),
        ] {
            loop {
                let mut s = Statement::new(self.dialect(), "clean_up_rest");
                let (before, step) = (s.int(before), s.int(STEP));
                s.push(&format!(
                    "DELETE FROM {table} WHERE ({key}) IN \
                     (SELECT {key} FROM {table} WHERE {column} < {before} LIMIT {step})"
                ));
                let mut tx = self.pool.begin().await?;
                let deleted = tx.execute(s).await?;
                tx.commit().await?;
                if i64::try_from(deleted).unwrap_or(0) < STEP {
                    break;
                }
            }
        }
        Ok(removed)
    }

    /// Applies a shortened retention to the ids that are taken already.
    async fn shorten_taken_ids(&self, now: i64) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "shorten_taken_ids");
        let latest = s.int(now.saturating_add(self.retention_ms));
        s.push(&format!("UPDATE ended_ids SET until = {latest} WHERE until > {latest}"));
        self.pool.write(s).await.map(drop)
    }

    /// The names of the daily partitions of days before `day`.
    async fn partitions_before(&self, day: i64) -> Result<Vec<String>, Error> {
        let mut s = Statement::new(self.dialect(), "partitions_before");
        s.push(
            "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
             WHERE i.inhparent = 'history'::regclass AND c.relname ~ '^history_d[0-9]+$'",
        );
        let mut names = Vec::new();
        for row in self.pool.read(s).await? {
            let name: String = row.get(0)?;
            if name.trim_start_matches("history_d").parse::<i64>().is_ok_and(|of| of < day) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Adds a partition's counts to the totals and drops it. Its day has passed and no row is added any more,
    /// so it is counted without a lock. The parent is locked before the partition, in the order in which
    /// readers lock them; the wait for that lock is at most 2 s.
    async fn drop_partition(&self, name: &str) -> Result<i64, Error> {
        let plain = |sql: &str| {
            let mut s = Statement::new(self.dialect(), "drop_partition");
            s.push(sql).without_timeout();
            s
        };
        let mut counting = self.pool.begin().await?;
        counting.execute(plain("SET LOCAL statement_timeout = '10min'")).await?;
        let mut counts = Vec::new();
        for row in
            counting.fetch(plain(&format!("SELECT state, count(*) FROM {name} GROUP BY state"))).await?
        {
            counts.push((row.get::<i16>(0)?, row.get::<i64>(1)?));
        }
        counting.commit().await?;
        let mut tx = self.pool.begin().await?;
        tx.execute(plain("SET LOCAL lock_timeout = '2s'")).await?;
        tx.execute(plain("LOCK TABLE history IN ACCESS EXCLUSIVE MODE")).await?;
        self.fold(&mut tx, &counts).await?;
        tx.execute(plain(&format!("DROP TABLE {name}"))).await?;
        tx.commit().await?;
        Ok(counts.iter().map(|(_, n)| n).sum())
    }

    async fn delete_step(&self, table: &str, until: i64) -> Result<i64, Error> {
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "clean_up");
        let (until, step) = (s.int(until), s.int(STEP));
        let row = match self.dialect() {
            Dialect::Postgres => "ctid",
            Dialect::Sqlite => "rowid",
        };
        s.push(&format!(
            "DELETE FROM {table} WHERE {row} IN (SELECT {row} FROM {table} WHERE ended_at < {until} LIMIT {step}) \
             RETURNING state"
        ));
        let mut counts = [0_i64; 8];
        for row in tx.fetch(s).await? {
            if let Some(count) =
                usize::try_from(row.get::<i16>(0)?).ok().and_then(|code| counts.get_mut(code))
            {
                *count += 1;
            }
        }
        let folded: Vec<_> = (0_i16..).zip(counts).filter(|(_, n)| *n > 0).collect();
        self.fold(&mut tx, &folded).await?;
        tx.commit().await?;
        Ok(counts.iter().sum())
    }

    /// Adds the counts of removed rows to the totals, by state.
    async fn fold(&self, tx: &mut super::sql::Tx, counts: &[(i16, i64)]) -> Result<(), Error> {
        let names: Vec<(String, i64)> = counts
            .iter()
            .filter_map(|(code, n)| Some((format!("folded.{}", State::from_code(*code)?.word()), *n)))
            .collect();
        let pairs: Vec<(&str, i64)> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        self.count(tx, &pairs).await
    }
}

fn partition_name(day: i64) -> String {
    format!("history_d{day}")
}

//! What has ended, until its retention runs out. Totals outlive it.

use super::sql::{Dialect, Statement};
use super::{ColdStore, Error};
use crate::model::time::UnixMs;
use crate::model::timer::State;

const DAY_MS: i64 = 86_400_000;

/// How many rows one step of a clean-up deletes.
const STEP: i64 = 2000;

impl ColdStore {
    /// PostgreSQL: makes the daily partitions of history from today on, `ahead` days. Nothing to do on SQLite.
    ///
    /// A day whose rows already went to the default partition keeps them there.
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
                // The default partition holds rows of that day already, or another node was quicker.
                Err(why) if why.is_data() || why.is_duplicate() => {
                    tracing::debug!(partition = name, %why, "history partition not made");
                }
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Removes what ended longer ago than the retention: whole partitions where there are any, small batches
    /// elsewhere. Counts are folded into the totals in the same transaction. Returns how many rows went.
    pub async fn clean_up(&self, now: UnixMs) -> Result<i64, Error> {
        let until = now.get().saturating_sub(self.retention_ms);
        let mut gone = 0;
        if self.dialect() == Dialect::Postgres {
            for name in self.partitions_before(until.div_euclid(DAY_MS)).await? {
                match self.drop_partition(&name).await {
                    Ok(rows) => gone += rows,
                    // Somebody reads it; the next round tries again, and the rest does not wait for it.
                    Err(why) => tracing::info!(partition = name, %why, "history partition not dropped yet"),
                }
            }
        }
        let table = match self.dialect() {
            Dialect::Postgres => "history_default",
            Dialect::Sqlite => "history",
        };
        loop {
            let step = self.delete_step(table, until).await?;
            gone += step;
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
        Ok(gone)
    }

    /// A retention that was shortened counts for ids that are taken already.
    async fn shorten_taken_ids(&self, now: i64) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "shorten_taken_ids");
        let latest = s.int(now.saturating_add(self.retention_ms));
        s.push(&format!("UPDATE ended_ids SET until = {latest} WHERE until > {latest}"));
        self.pool.write(s).await.map(drop)
    }

    /// Names of daily partitions wholly before `day`.
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

    /// Folds a partition's counts into the totals and drops it. Its day is over and nothing is added to it,
    /// so it is counted without a lock; the parent is locked first, as its readers do, and not waited for long.
    async fn drop_partition(&self, name: &str) -> Result<i64, Error> {
        let plain = |sql: &str| {
            let mut s = Statement::new(self.dialect(), "drop_partition");
            s.push(sql).patiently();
            s
        };
        let mut counting = self.pool.begin().await?;
        counting.execute(plain("SET LOCAL statement_timeout = '10min'")).await?;
        let mut folded = Vec::new();
        for row in
            counting.fetch(plain(&format!("SELECT state, count(*) FROM {name} GROUP BY state"))).await?
        {
            folded.push((row.get::<i16>(0)?, row.get::<i64>(1)?));
        }
        counting.commit().await?;
        let mut tx = self.pool.begin().await?;
        tx.execute(plain("SET LOCAL lock_timeout = '2s'")).await?;
        tx.execute(plain("LOCK TABLE history IN ACCESS EXCLUSIVE MODE")).await?;
        self.fold(&mut tx, &folded).await?;
        tx.execute(plain(&format!("DROP TABLE {name}"))).await?;
        tx.commit().await?;
        Ok(folded.iter().map(|(_, n)| n).sum())
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

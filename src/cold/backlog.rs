//! Lifecycle events that wait: read, removed once they were taken, counted, and dropped where there are too many.
//!
//! What commits late may have a lower `seq` than what was read before, so nobody goes on behind a `seq`: each read begins
//! at the oldest row and leaves out what is in hand.

use uuid::Uuid;

use super::outbox::{EVERY, EventRow, told_dropped};
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::subscription::{Lifecycle, Subscription};
use crate::model::time::UnixMs;

/// The most events that one statement reads or removes.
pub const MAX_EVENTS: usize = 1000;

/// Beyond what may wait of a subscription, so many more events are counted at most.
pub const MOST_EXCESS: i64 = 100_000;

/// The most events that are dropped in one transaction, and told of by one event.
const DROPPED_TOGETHER: usize = 10 * MAX_EVENTS;

/// The bounds of a read of the oldest events.
struct Oldest<'a> {
    name: &'static str,
    subscription: i64,
    shards: &'a [i32],
    /// Of each shard.
    per_shard: usize,
    /// Of all.
    most: usize,
}

/// What waits of one subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Events, as far as they were counted.
    pub events: i64,
    /// When the oldest of them became true, about.
    pub oldest_at: UnixMs,
}

/// What a read of events leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Events in hand, by `seq`.
    pub seqs: Vec<i64>,
    /// Timers, or what else an event is of, that are not sent now.
    pub subjects: Vec<String>,
}

impl ColdStore {
    /// Events of a subscription in these shards but those left out: the oldest of each shard, at most `per_shard`, and of
    /// these the oldest `most`. In the order of each timer.
    pub async fn outbox(
        &self,
        subscription: i64,
        shards: &[i32],
        left_out: &LeftOut,
        per_shard: usize,
        most: usize,
    ) -> Result<Vec<EventRow>, Error> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let which = Oldest { name: "outbox_read", subscription, shards, per_shard, most };
        let s = self.oldest(&which, left_out, "shard, seq, id, kind, subject, at, body");
        let read = |row: &Row| {
            Ok(EventRow {
                shard: row.get(0)?,
                seq: row.get(1)?,
                id: row.get(2)?,
                kind: row.get(3)?,
                subject: row.get(4)?,
                at: UnixMs::new(row.get(5)?),
                body: row.get(6)?,
            })
        };
        self.by_key(s, false).await?.iter().map(read).collect()
    }

    /// The statement that reads these columns, `seq` among them, of the oldest events.
    fn oldest(&self, which: &Oldest<'_>, left_out: &LeftOut, columns: &str) -> Statement {
        let mut s = Statement::new(self.dialect(), which.name);
        let shards = which.shards.iter().map(|shard| i64::from(*shard)).collect();
        let batch = s.batch("b", vec![("b_shard", Column::Int(shards))]);
        let mut but = String::new();
        if !left_out.seqs.is_empty() {
            but += &format!("AND NOT o.seq {} ", s.among(&left_out.seqs));
        }
        if !left_out.subjects.is_empty() {
            but += &format!("AND NOT o.subject {}", s.among_texts(&left_out.subjects));
        }
        let limit = s.int(which.most as i64);
        let (of, most) = (s.int(which.subscription), s.int(which.per_shard as i64));
        let probe = format!(
            "FROM outbox o WHERE o.namespace = {EVERY} AND o.subscription = {of} AND o.shard = b_shard \
             {but} ORDER BY o.seq LIMIT {most}"
        );
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH {batch} SELECT d.* FROM b CROSS JOIN LATERAL (SELECT {columns} {probe}) d ORDER BY seq LIMIT {limit}"
            )),
            Dialect::Sqlite => s.push(&format!(
                "WITH {batch} SELECT {columns} FROM b CROSS JOIN outbox WHERE outbox.rowid IN (SELECT o.rowid {probe}) \
                 ORDER BY seq LIMIT {limit}"
            )),
        };
        s
    }

    /// Removes events that were taken, or are given up: `(shard, seq, id)`. A store that was restored may have given the
    /// `seq` to another one since.
    pub async fn remove_events(&self, subscription: i64, events: &[(i32, i64, Uuid)]) -> Result<(), Error> {
        if events.is_empty() {
            return Ok(());
        }
        self.by_key(self.removal("outbox_remove", subscription, events), true).await.map(drop)
    }

    fn removal(&self, name: &'static str, subscription: i64, events: &[(i32, i64, Uuid)]) -> Statement {
        let mut sorted = events.to_vec();
        sorted.sort_unstable();
        let mut s = Statement::new(self.dialect(), name);
        let batch = s.batch(
            "b",
            vec![
                ("b_shard", Column::Int(sorted.iter().map(|(shard, ..)| i64::from(*shard)).collect())),
                ("b_seq", Column::Int(sorted.iter().map(|(_, seq, _)| *seq).collect())),
                ("b_id", Column::Uuid(sorted.iter().map(|(.., id)| *id).collect())),
            ],
        );
        let of = s.int(subscription);
        match self.dialect() {
            // By the key, row by row: a join would be planned for the table as it was when it was empty.
            Dialect::Postgres => s.push(&format!(
                "WITH {batch} DELETE FROM outbox WHERE ctid = ANY (ARRAY(SELECT d.ctid FROM b CROSS JOIN LATERAL \
                 (SELECT o.ctid FROM outbox o WHERE o.namespace = {EVERY} AND o.subscription = {of} \
                  AND o.shard = b_shard AND o.seq = b_seq AND o.id = b_id LIMIT 1) d))"
            )),
            // There `seq` alone is the key.
            Dialect::Sqlite => s.push(&format!(
                "WITH {batch} DELETE FROM outbox WHERE seq IN (SELECT b_seq FROM b) AND subscription = {of} \
                 AND id IN (SELECT b_id FROM b)"
            )),
        };
        s
    }

    /// Runs a statement that finds its rows by the key. The table is empty as a rule and may grow within seconds: a plan
    /// that was made for few rows and reads them all would be kept until statistics are taken.
    async fn by_key(&self, statement: Statement, writes: bool) -> Result<Vec<Row>, Error> {
        match (self.dialect(), writes) {
            (Dialect::Sqlite, true) => self.pool.write(statement).await,
            (Dialect::Sqlite, false) => self.pool.read(statement).await,
            (Dialect::Postgres, _) => {
                let mut tx = self.pool.begin().await?;
                self.plan_by_key(&mut tx).await?;
                let rows = tx.fetch(statement).await?;
                tx.commit().await?;
                Ok(rows)
            }
        }
    }

    /// Lets a transaction find its rows by the key.
    async fn plan_by_key(&self, tx: &mut Tx) -> Result<(), Error> {
        if self.dialect() == Dialect::Postgres {
            let mut s = Statement::new(self.dialect(), "outbox_plan");
            s.push("SELECT set_config('enable_bitmapscan', 'off', true)");
            tx.fetch(s).await?;
        }
        Ok(())
    }

    /// What waits of a subscription, if anything does; of more than `most` only so many are counted.
    pub async fn backlog(&self, subscription: i64, most: i64) -> Result<Option<Backlog>, Error> {
        let shards: Vec<i32> = self.shards().collect();
        let which =
            Oldest { name: "outbox_oldest", subscription, shards: &shards, per_shard: 1, most: shards.len() };
        let rows = self.by_key(self.oldest(&which, &LeftOut::default(), "seq, at"), false).await?;
        let at = rows.iter().map(|row| row.get(1)).collect::<Result<Vec<i64>, Error>>()?;
        let Some(oldest_at) = at.into_iter().min().map(UnixMs::new) else { return Ok(None) };
        let mut s = Statement::new(self.dialect(), "outbox_count");
        let (of, most) = (s.int(subscription), s.int(most));
        s.push(&format!(
            "SELECT CAST(count(*) AS BIGINT) FROM (SELECT 1 FROM outbox WHERE namespace = {EVERY} \
             AND subscription = {of} LIMIT {most}) counted"
        ));
        let events = self.by_key(s, false).await?.first().map_or(Ok(0), |row| row.get(0))?;
        // They may have been sent in between.
        Ok((events > 0).then_some(Backlog { events, oldest_at }))
    }

    /// Drops so many of the oldest events of a subscription, in bounded transactions. Each tells the subscription by an event
    /// how many it dropped, and `dropped` once it is committed. Such an event that is dropped itself does not count in the
    /// next one: what it told does.
    pub async fn drop_oldest(
        &self,
        one: &Subscription,
        count: i64,
        mut dropped: impl FnMut(u64),
    ) -> Result<(), Error> {
        let shards: Vec<i32> = self.shards().collect();
        let mut left = usize::try_from(count).unwrap_or(0);
        while left > 0 {
            let some = left.min(DROPPED_TOGETHER);
            let gone = self.drop_together(one, &shards, some).await?;
            dropped(gone);
            // Fewer than are too many: others were sent meanwhile.
            left = if gone < some as u64 { 0 } else { left - some };
        }
        Ok(())
    }

    async fn drop_together(&self, one: &Subscription, shards: &[i32], most: usize) -> Result<u64, Error> {
        let mut tx = self.pool.begin().await?;
        self.plan_by_key(&mut tx).await?;
        let (mut gone, mut gap) = (0, 0);
        while gone < most as u64 {
            let some = MAX_EVENTS.min(most - usize::try_from(gone).unwrap_or(most));
            let (name, subscription) = ("outbox_edge", one.id);
            let which = Oldest { name, subscription, shards, per_shard: some, most: some };
            let rows = tx.fetch(self.oldest(&which, &LeftOut::default(), "shard, seq, id")).await?;
            let key = |row: &Row| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let keys: Vec<(i32, i64, Uuid)> = rows.iter().map(key).collect::<Result<_, Error>>()?;
            if keys.is_empty() {
                break;
            }
            let mut s = self.removal("outbox_drop", one.id, &keys);
            let told = Lifecycle::SubscriptionDropped.code();
            s.push(&format!(" RETURNING CASE WHEN kind = {told} THEN body END"));
            let removed = tx.fetch(s).await?;
            if removed.is_empty() {
                break;
            }
            gone += removed.len() as u64;
            for row in &removed {
                let body: Option<Vec<u8>> = row.get(0)?;
                gap += body.map_or(1, |body| told_dropped(&body));
            }
        }
        if gone > 0 {
            self.tell_dropped(&mut tx, one, gap).await?;
        }
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(gone)
    }

    /// Removes the oldest events of a subscription in one shard, at most [`MAX_EVENTS`].
    async fn drop_some(&self, subscription: i64, shard: i32) -> Result<u64, Error> {
        let mut s = Statement::new(self.dialect(), "outbox_clear");
        let (of, shard) = (s.int(subscription), s.int(shard.into()));
        let which = format!("namespace = {EVERY} AND subscription = {of} AND shard = {shard}");
        let lock = self.dialect().lock("FOR UPDATE SKIP LOCKED");
        s.push(&format!(
            "DELETE FROM outbox WHERE {which} AND seq IN (SELECT seq FROM outbox WHERE {which} \
             ORDER BY seq LIMIT {MAX_EVENTS} {lock}) RETURNING seq"
        ));
        Ok(self.by_key(s, true).await?.len() as u64)
    }

    /// Removes what is left of subscriptions that were removed, a bounded batch, and the subscriptions once nothing is
    /// left and none can be written any more. Returns how many events went.
    pub async fn clear_removed(&self, writers_gone_ms: i64) -> Result<u64, Error> {
        let mut s = Statement::new(self.dialect(), "removed_subscriptions");
        let (now, after) = (s.now(self.bound_now()), s.int(writers_gone_ms));
        s.push(&format!(
            "SELECT id, CASE WHEN removed_at < {now} - {after} THEN true ELSE false END FROM subscriptions \
             WHERE removed_at IS NOT NULL"
        ));
        let mut gone = 0;
        for row in self.pool.read(s).await? {
            let (id, is_old): (i64, bool) = (row.get(0)?, row.get(1)?);
            let mut of_one = 0;
            for shard in self.shards() {
                of_one += self.drop_some(id, shard).await?;
            }
            if of_one == 0 && is_old {
                let mut s = Statement::new(self.dialect(), "forget_subscription");
                let id = s.int(id);
                s.push(&format!("DELETE FROM subscriptions WHERE id = {id}"));
                self.pool.write(s).await?;
            }
            gone += of_one;
        }
        Ok(gone)
    }

    /// Forgets which version of the subscriptions processes worked with that are no longer nodes.
    pub async fn forget_takers(&self) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "forget_subscription_nodes");
        s.push("DELETE FROM subscription_nodes WHERE incarnation NOT IN (SELECT incarnation FROM nodes)");
        self.pool.write(s).await.map(drop)
    }
}

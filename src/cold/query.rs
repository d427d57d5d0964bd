//! Queries: one timer, its attempts, the ledger and its verification.

use std::collections::{BTreeMap, HashMap};

use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder};
use serde::Serialize;

use super::columns::ALL;
use super::row::{AttemptRecord, TimerRow};
use super::sql::{Column, Dialect, Statement};
use super::{ColdStore, Error, entity};
use crate::model::id::Uid;
use crate::model::timer::{AttemptResult, State};

/// The ledger: registered = delivered + cancelled + expired + dead + pending, at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Ledger {
    /// Timers acknowledged since the store was made. An ended id that is registered again counts again.
    pub registered: i64,
    /// Ended: a receiver accepted it.
    pub delivered: i64,
    /// Ended: its caller cancelled it.
    pub cancelled: i64,
    /// Ended: it was found overdue by more than its grace.
    pub expired: i64,
    /// Ended: out of attempts.
    pub dead: i64,
    /// Live.
    pub pending: i64,
}

impl Ledger {
    /// Whether the equation holds.
    pub const fn balanced(&self) -> bool {
        self.registered == self.delivered + self.cancelled + self.expired + self.dead + self.pending
    }
}

/// The result of `verify`.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// The ledger.
    pub ledger: Ledger,
    /// Whether the ledger's equation holds.
    pub balanced: bool,
    /// Rows in history and in the folded totals, by end. Each must equal the ledger's count.
    pub ended_rows: BTreeMap<String, i64>,
    /// Ends whose count differs from the rows, in words.
    pub mismatches: Vec<String>,
    /// Live timers, not paused, whose `wake_at` passed more than a minute ago.
    pub overdue: i64,
}

impl ColdStore {
    /// The timer of this uid: the live one, else the one that ended last.
    pub async fn find(&self, uid: Uid) -> Result<Option<TimerRow>, Error> {
        Ok(self.find_many(&[uid]).await?.remove(&uid))
    }

    /// The timers of these uids: the live ones, else those that ended last.
    pub async fn find_many(&self, uids: &[Uid]) -> Result<HashMap<Uid, TimerRow>, Error> {
        // Live timers first, then history: a timer that ends in between is found by the second query.
        let mut rows = self.find_in("timers", uids, false).await?;
        let missing: Vec<Uid> = uids.iter().copied().filter(|uid| !rows.contains_key(uid)).collect();
        if !missing.is_empty() {
            rows.extend(self.find_in("history", &missing, true).await?);
        }
        Ok(rows)
    }

    async fn find_in(&self, table: &str, uids: &[Uid], ended: bool) -> Result<HashMap<Uid, TimerRow>, Error> {
        let mut s = Statement::new(self.dialect(), "find_many");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let more = if ended { ", ended_at, last" } else { "" };
        s.push(&format!(
            "WITH {batch} SELECT {ALL}{more} FROM {table} WHERE uid IN (SELECT b_uid FROM b) ORDER BY generation"
        ));
        let mut found: HashMap<Uid, TimerRow> = HashMap::with_capacity(uids.len());
        for row in self.pool.read(s).await? {
            let row = TimerRow::read(&row, ended)?;
            // An id may end, be free again, and end again with the same generation: the later end counts.
            let newer = found.get(&row.uid).is_none_or(|old| old.ended_at <= row.ended_at);
            if newer {
                found.insert(row.uid, row);
            }
        }
        Ok(found)
    }

    /// All attempts of a timer's current registration that have ended, oldest first.
    pub async fn attempts(&self, row: &TimerRow) -> Result<Vec<AttemptRecord>, Error> {
        let models = entity::attempt::Entity::find()
            .filter(entity::attempt::Column::Uid.eq(row.uid.0))
            .filter(entity::attempt::Column::CreatedAt.eq(row.created_at.get()))
            .order_by_asc(entity::attempt::Column::Generation)
            .order_by_asc(entity::attempt::Column::Attempt)
            .all(&self.db)
            .await?;
        let mut records = models
            .into_iter()
            .map(|m| {
                Ok(AttemptRecord {
                    generation: m.generation,
                    attempt: m.attempt,
                    started_at: m.started_at,
                    ended_at: m.ended_at,
                    result: AttemptResult::from_word(&m.result)
                        .ok_or_else(|| Error::Corrupt("an unknown result".into()))?,
                    status: m.status.and_then(|status| u16::try_from(status).ok()),
                    reply: m.reply,
                    detail: m.detail,
                    node: m.node,
                    delivery_id: m.delivery_id,
                    worker: m.worker,
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        records.extend(row.last.clone());
        Ok(records)
    }

    /// The ledger, from the totals: its cost does not depend on the number of timers. What is pending is what was
    /// registered and has not ended; [`ColdStore::verify`] counts it.
    pub async fn ledger(&self) -> Result<Ledger, Error> {
        let mut s = Statement::new(self.dialect(), "ledger");
        s.push("SELECT name, CAST(sum(value) AS BIGINT) FROM totals GROUP BY name");
        let rows = self.pool.read(s).await?;
        let totals: BTreeMap<String, i64> =
            rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, Error>>()?;
        let Ledger { registered, delivered, cancelled, expired, dead, .. } = ledger_of(&totals);
        Ok(Ledger { pending: registered - delivered - cancelled - expired - dead, ..ledger_of(&totals) })
    }

    /// Live timers that retry or are paused, by state.
    pub async fn held_back(&self) -> Result<HashMap<State, i64>, Error> {
        let mut s = Statement::new(self.dialect(), "held_back");
        // The states are written out: only then does PostgreSQL find the partial index.
        s.push("SELECT state, count(*) FROM timers WHERE state IN (2, 3) GROUP BY state");
        let read = |row: &super::sql::Row| {
            let state =
                State::from_code(row.get(0)?).ok_or_else(|| Error::Corrupt("an unknown state".into()))?;
            Ok((state, row.get(1)?))
        };
        self.pool.read(s).await?.iter().map(read).collect()
    }

    /// Compares the ledger with a count of all rows, from one snapshot. The rows are counted in indexes; no table is
    /// read.
    pub async fn verify(&self) -> Result<Verification, Error> {
        let mut s = Statement::new(self.dialect(), "verify");
        let batch = s.batch("b", vec![("b_shard", Column::Int(self.shards().map(i64::from).collect()))]);
        let now = s.now(self.bound_now());
        s.push(&format!(
            "WITH {batch} SELECT name, CAST(sum(value) AS BIGINT) FROM totals GROUP BY name \
             UNION ALL SELECT 'pending', count(*) FROM timers \
             UNION ALL SELECT 'rows.' || state, count(*) FROM history GROUP BY state \
             UNION ALL SELECT 'overdue', count(*) FROM b JOIN timers ON shard = b_shard \
               AND wake_at < {now} - 60000 AND state <> 3"
        ));
        // Counting every row of a large store takes longer than `STATEMENT_TIMEOUT`.
        s.without_timeout();
        let rows = match self.dialect() {
            Dialect::Sqlite => self.pool.read(s).await?,
            Dialect::Postgres => {
                let mut tx = self.pool.begin().await?;
                let mut set = Statement::new(self.dialect(), "verify_setting");
                set.push("SET LOCAL statement_timeout = '1h'");
                tx.execute(set).await?;
                tx.fetch(s).await?
            }
        };
        let mut totals: BTreeMap<String, i64> = BTreeMap::new();
        for row in rows {
            totals.insert(row.get(0)?, row.get(1)?);
        }
        let ledger = ledger_of(&totals);
        let mut ended_rows = BTreeMap::new();
        let mut mismatches = Vec::new();
        for state in State::ALL.into_iter().filter(|state| state.is_end()) {
            let word = state.word();
            let of = |name: String| totals.get(&name).copied().unwrap_or(0);
            let rows = of(format!("rows.{}", state.code())) + of(format!("folded.{word}"));
            let counted = of(word.to_owned());
            if rows != counted {
                mismatches
                    .push(format!("{word}: {counted} counted, {rows} found in history and folded totals"));
            }
            ended_rows.insert(word.to_owned(), rows);
        }
        let overdue = totals.get("overdue").copied().unwrap_or(0);
        Ok(Verification { ledger, balanced: ledger.balanced(), ended_rows, mismatches, overdue })
    }
}

fn ledger_of(totals: &BTreeMap<String, i64>) -> Ledger {
    let of = |name: &str| totals.get(name).copied().unwrap_or(0);
    Ledger {
        registered: of("registered"),
        delivered: of("delivered"),
        cancelled: of("cancelled"),
        expired: of("expired"),
        dead: of("dead"),
        pending: of("pending"),
    }
}

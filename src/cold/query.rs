//! Queries: one timer, lists of timers in due order, attempts, the ledger and its verification.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder};
use serde::Serialize;
use uuid::Uuid;

use super::columns::ALL;
use super::row::{AttemptRecord, TimerRow};
use super::sql::{Column, Dialect, Statement};
use super::{ColdStore, Error, entity};
use crate::model::id::{TimerId, Uid};
use crate::model::time::UnixMs;
use crate::model::timer::{AttemptResult, State};

/// The most rows that one page of a list examines. A filter that matches few of them gives a short page.
const SCAN: i64 = 10_000;

/// Which timers a list contains: those that match every field given.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// One of these; any if empty.
    pub uids: Vec<Uid>,
    /// In this state.
    pub state: Option<State>,
    /// To the receiver of this lane.
    pub lane: Option<i64>,
    /// Of this owner.
    pub owner: Option<String>,
    /// With these labels.
    pub labels: Vec<(String, String)>,
    /// Due at this moment or after it.
    pub due_after: Option<UnixMs>,
    /// Due before this moment.
    pub due_before: Option<UnixMs>,
}

/// A cursor in a list: the next page begins strictly after this due time, uid and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    /// Due time of the last row examined.
    pub due_at: i64,
    /// Its uid.
    pub uid: Uuid,
    /// Its generation.
    pub generation: i32,
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.due_at, self.uid.simple(), self.generation)
    }
}

/// The text is no cursor of a list.
#[derive(Debug, thiserror::Error)]
#[error("no cursor of a list")]
pub struct BadCursor;

impl FromStr for ListCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let mut fields = text.splitn(3, '.');
        let mut next = || fields.next().ok_or(BadCursor);
        Ok(Self {
            due_at: next()?.parse().map_err(|_| BadCursor)?,
            uid: Uuid::try_parse(next()?).map_err(|_| BadCursor)?,
            generation: next()?.parse().map_err(|_| BadCursor)?,
        })
    }
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    /// In due order. May be empty although there is a next page.
    pub rows: Vec<TimerRow>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<ListCursor>,
}

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

    /// One page of timers, live and ended, in due order.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        let live = filter.state.is_none_or(|state| !state.is_end());
        let ended = filter.state.is_none_or(State::is_end);
        let mut page = Page { rows: Vec::new(), next: None };
        // The page ends where the scan that stopped first stopped.
        let mut horizon: Option<ListCursor> = None;
        for (table, is_ended) in [("timers", false), ("history", true)] {
            if (is_ended && !ended) || (!is_ended && !live) {
                continue;
            }
            let (rows, stopped_at) = self.list_in(table, is_ended, filter, after, limit).await?;
            page.rows.extend(rows);
            horizon = match (horizon, stopped_at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        page.rows.sort_by_key(cursor_at);
        if let Some(horizon) = horizon {
            page.rows.retain(|row| cursor_at(row) <= horizon);
        }
        if page.rows.len() > limit {
            page.rows.truncate(limit);
            page.next = page.rows.last().map(cursor_at);
        } else {
            page.next = horizon;
        }
        Ok(page)
    }

    /// Rows of one table, and where the scan stopped if it did not reach the end of the table.
    async fn list_in(
        &self,
        table: &str,
        ended: bool,
        filter: &Filter,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Result<(Vec<TimerRow>, Option<ListCursor>), Error> {
        let more = if ended { ", ended_at, last" } else { "" };
        let statement = |count: bool| {
            let mut s = Statement::new(self.dialect(), "list");
            let mut inner = String::from("true");
            if let Some(after) = after {
                let (due, uid) = (s.int(after.due_at), s.uuid(after.uid));
                let generation = s.int(i64::from(after.generation));
                inner += &format!(
                    " AND due_at >= {due} AND (due_at, uid, generation) > ({due}, {uid}, {generation})"
                );
            }
            if !filter.uids.is_empty() {
                let uids: Vec<String> = filter.uids.iter().map(|uid| s.uuid(uid.0)).collect();
                inner += &format!(" AND uid IN ({})", uids.join(", "));
            }
            if let Some(at) = filter.due_after {
                inner += &format!(" AND due_at >= {}", s.int(at.get()));
            }
            if let Some(at) = filter.due_before {
                inner += &format!(" AND due_at < {}", s.int(at.get()));
            }
            if let Some(owner) = &filter.owner {
                // A timer without an owner is its own owner: it is found by the uid of its id.
                let own = TimerId::parse(owner).map_or(Uuid::nil(), |id| id.uid(&self.namespace).0);
                let (owner, own) = (s.text(owner), s.uuid(own));
                inner += &format!(" AND (owner = {owner} OR (owner IS NULL AND uid = {own}))");
            }
            let order = "ORDER BY due_at, uid, generation";
            if count {
                let skip = s.int(SCAN - 1);
                s.push(&format!(
                    "SELECT due_at, uid, generation FROM {table} WHERE {inner} {order} LIMIT 1 OFFSET {skip}"
                ));
                return s;
            }
            let mut outer = String::from("true");
            if let Some(state) = filter.state {
                outer += &format!(" AND state = {}", s.int(i64::from(state.code())));
            }
            if let Some(lane) = filter.lane {
                outer += &format!(" AND lane = {}", s.int(lane));
            }
            for (name, value) in &filter.labels {
                let value = s.text(value);
                outer += &match self.dialect() {
                    Dialect::Postgres => format!(" AND (labels::json ->> {}) = {value}", s.text(name)),
                    Dialect::Sqlite => {
                        let path = s.text(&format!("$.\"{}\"", name.replace('"', "")));
                        format!(" AND json_extract(labels, {path}) = {value}")
                    }
                };
            }
            let (scan, limit) = (s.int(SCAN), s.int(limit as i64 + 1));
            s.push(&format!(
                "SELECT * FROM (SELECT {ALL}{more} FROM {table} WHERE {inner} {order} LIMIT {scan}) x \
                 WHERE {outer} {order} LIMIT {limit}"
            ));
            s
        };
        let rows: Vec<TimerRow> = self
            .pool
            .read(statement(false))
            .await?
            .iter()
            .map(|row| TimerRow::read(row, ended))
            .collect::<Result<_, _>>()?;
        if rows.len() > limit {
            return Ok((rows, None));
        }
        let stopped_at = match self.pool.read(statement(true)).await?.first() {
            Some(row) => Some(ListCursor { due_at: row.get(0)?, uid: row.get(1)?, generation: row.get(2)? }),
            None => None,
        };
        Ok((rows, stopped_at))
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
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        records.extend(row.last.clone());
        Ok(records)
    }

    /// The ledger, from one snapshot.
    pub async fn ledger(&self) -> Result<Ledger, Error> {
        let mut s = Statement::new(self.dialect(), "ledger");
        s.push(
            "SELECT name, CAST(sum(value) AS BIGINT) FROM totals GROUP BY name \
             UNION ALL SELECT 'pending', count(*) FROM timers",
        );
        let mut totals = BTreeMap::new();
        for row in self.pool.read(s).await? {
            totals.insert(row.get::<String>(0)?, row.get::<i64>(1)?);
        }
        Ok(ledger_of(&totals))
    }

    /// The ledger from the totals alone, without a count of the live timers: the cost does not depend on their number.
    pub async fn tally(&self) -> Result<Ledger, Error> {
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

    /// Compares the ledger with a count of all rows, from one snapshot.
    pub async fn verify(&self) -> Result<Verification, Error> {
        let mut s = Statement::new(self.dialect(), "verify");
        let now = s.now(self.bound_now());
        s.push(&format!(
            "SELECT name, CAST(sum(value) AS BIGINT) FROM totals GROUP BY name \
             UNION ALL SELECT 'pending', count(*) FROM timers \
             UNION ALL SELECT 'rows.' || state, count(*) FROM history GROUP BY state \
             UNION ALL SELECT 'overdue', count(*) FROM timers WHERE wake_at < {now} - 60000 AND state <> 3"
        ));
        // Counting every row of a large store takes longer than `STATEMENT_TIMEOUT`.
        s.without_timeout();
        let rows = match self.dialect() {
            Dialect::Sqlite => self.pool.read(s).await?,
            Dialect::Postgres => {
                let mut tx = self.pool.begin().await?;
                let mut timeout = Statement::new(self.dialect(), "verify_timeout");
                timeout.push("SET LOCAL statement_timeout = '1h'");
                tx.execute(timeout).await?;
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

fn cursor_at(row: &TimerRow) -> ListCursor {
    ListCursor { due_at: row.life.due_at.get(), uid: row.uid.0, generation: row.life.generation.0 }
}

//! Queries: one timer, its attempts, the ledger and its verification.

use std::collections::HashMap;

use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder};

use super::columns::ALL;
use super::row::{AttemptRecord, TimerRow};
use super::sql::{Column, Statement};
use super::{ColdStore, Error, entity};
use crate::model::id::Uid;
use crate::model::timer::{AttemptResult, State};

impl ColdStore {
    /// The timer of the namespace that has this uid: the live one, else the one that ended last.
    pub async fn find(&self, uid: Uid) -> Result<Option<TimerRow>, Error> {
        Ok(self.find_many(&[uid]).await?.remove(&uid))
    }

    /// The same of several.
    pub async fn find_many(&self, uids: &[Uid]) -> Result<HashMap<Uid, TimerRow>, Error> {
        let mut rows = self.find_of_all(uids).await?;
        rows.retain(|_, row| row.namespace == self.namespace());
        Ok(rows)
    }

    /// The timers of these uids, of whatever namespace: the live ones, else those that ended last.
    pub async fn find_of_all(&self, uids: &[Uid]) -> Result<HashMap<Uid, TimerRow>, Error> {
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
            "WITH {batch} SELECT {ALL}{more} FROM {table} WHERE {} ORDER BY generation",
            self.dialect().among("uid", "SELECT b_uid FROM b")
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
}

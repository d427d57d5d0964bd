//! What an operator looks for when something is wrong: timers that are overdue or retry, by receiver; timers that died;
//! the last replays. Each looks at a bounded number of rows.

use sea_orm::{EntityTrait, QueryOrder, QuerySelect};

use super::columns::WEBHOOK;
use super::list::of_namespace;
use super::row::AttemptRecord;
use super::sql::Statement;
use super::watermark::{ReplayNote, replay_note};
use super::{ColdStore, Error, entity};
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::State;

/// Live timers of one receiver that have not fired.
#[derive(Debug, Clone)]
pub struct LateTimers {
    /// The target of one of them.
    pub target: Target,
    /// How many.
    pub count: i64,
    /// The oldest due time.
    pub oldest_due: UnixMs,
    /// The next moment at which one of them is looked at again.
    pub next_wake: UnixMs,
}

/// Whose late timers are looked for: those of all receivers, or by the lanes of destinations.
#[derive(Debug, Clone, Copy)]
pub enum LateOf<'a> {
    /// Of all.
    All,
    /// Of all but these.
    AllBut(&'a [i64]),
    /// Of these only.
    Only(&'a [i64]),
}

/// A timer that died.
#[derive(Debug, Clone)]
pub struct DeadTimer {
    /// Where it was to go.
    pub target: Target,
    /// When it died.
    pub ended_at: UnixMs,
    /// Its last attempt.
    pub last: Option<AttemptRecord>,
}

impl ColdStore {
    /// Timers of the namespace in this state that were due before `before`, by receiver: most first, at most 200 receivers. The `most`
    /// oldest are looked at.
    pub async fn late(
        &self,
        state: State,
        before: UnixMs,
        of: LateOf<'_>,
        most: i64,
    ) -> Result<Vec<LateTimers>, Error> {
        let mut s = Statement::new(self.dialect(), "late");
        let before = s.int(before.get());
        let whose = of_namespace(self.namespace(), &mut s);
        let of = match of {
            LateOf::All | LateOf::AllBut([]) => String::new(),
            LateOf::AllBut(lanes) => format!("AND lane NOT {}", s.among(lanes)),
            LateOf::Only(lanes) => format!("AND lane {}", s.among(lanes)),
        };
        // The state is written out: only then does PostgreSQL use a partial index. So is the limit: it plans for it.
        let state = state.code();
        s.push(&format!(
            "SELECT min(kind), min(target), CAST(count(*) AS BIGINT) AS n, min(due_at), min(wake_at) FROM \
             (SELECT lane, kind, target, due_at, wake_at FROM timers WHERE state = {state} AND due_at < {before} AND {whose} {of} \
             ORDER BY due_at LIMIT {most}) x GROUP BY lane ORDER BY n DESC, min(due_at) LIMIT 200"
        ));
        let rows = self.pool.read(s).await?;
        let read = |row: &super::sql::Row| {
            Ok(LateTimers {
                target: target(row)?,
                count: row.get(2)?,
                oldest_due: UnixMs::new(row.get(3)?),
                next_wake: UnixMs::new(row.get(4)?),
            })
        };
        rows.iter().map(read).collect()
    }

    /// Timers of the namespace that died at `since` or later, the last first, at most `most`.
    pub async fn dead_since(&self, since: UnixMs, most: i64) -> Result<Vec<DeadTimer>, Error> {
        let mut s = Statement::new(self.dialect(), "dead_since");
        let since = s.int(since.get());
        let whose = of_namespace(self.namespace(), &mut s);
        s.push(&format!(
            "SELECT kind, target, ended_at, last FROM history WHERE state = {} AND ended_at >= {since} AND {whose} \
             ORDER BY ended_at DESC LIMIT {most}",
            State::Dead.code()
        ));
        let read = |row: &super::sql::Row| {
            let last: Option<String> = row.get(3)?;
            let last = last.as_deref().map(serde_json::from_str).transpose();
            Ok(DeadTimer {
                target: target(row)?,
                ended_at: UnixMs::new(row.get(2)?),
                last: last.map_err(|_| Error::Corrupt("a last attempt cannot be read back".into()))?,
            })
        };
        self.pool.read(s).await?.iter().map(read).collect()
    }

    /// The notes of the last replays of all shards, the last first, at most `most`.
    pub async fn latest_replays(&self, most: u64) -> Result<Vec<ReplayNote>, Error> {
        let find = entity::replay::Entity::find().order_by_desc(entity::replay::Column::At).limit(most);
        Ok(find.all(&self.db).await?.into_iter().map(replay_note).collect())
    }
}

/// The target in the first two columns of a row: its kind, and what is stored of it.
fn target(row: &super::sql::Row) -> Result<Target, Error> {
    let (kind, stored): (Option<i16>, String) = (row.get(0)?, row.get(1)?);
    Target::read(kind.unwrap_or(WEBHOOK), &stored)
        .map_err(|_| Error::Corrupt("a target cannot be read back".into()))
}

//! Looks at schedules: lists, and how many there are.

use super::{AFTER, COLUMNS, MAX_SCHEDULES, ScheduleRow};
use crate::cold::sql::{Row, Statement};
use crate::cold::{ColdStore, Error, Whose};
use crate::model::queue::To;
use crate::model::schedule::{Plan, ScheduleState};
use crate::model::time::UnixMs;

/// Which schedules a list contains: those that match every field given.
#[derive(Debug, Clone, Default)]
pub struct ScheduleFilter {
    /// In this state.
    pub state: Option<ScheduleState>,
    /// Of this owner.
    pub owner: Option<String>,
    /// To this destination.
    pub destination: Option<String>,
    /// For this queue.
    pub queue: Option<String>,
    /// With these labels.
    pub labels: Vec<(String, String)>,
}

/// When the nominal times of an active schedule are.
#[derive(Debug, Clone)]
pub struct Rhythm {
    /// The schedule's id.
    pub id: String,
    /// Its rule.
    pub plan: Plan,
    /// How many occurrences may still be made; `None` if any number.
    pub left: Option<i64>,
    /// Nominal times up to here are decided.
    pub last_nominal: UnixMs,
}

/// Rows beyond so many bytes are left to the next page.
const MOST_BYTES: i64 = 8 << 20;

/// One page of a list.
#[derive(Debug)]
pub struct SchedulePage {
    /// By id.
    pub rows: Vec<ScheduleRow>,
    /// The next page begins after this id; `None` after the last page.
    pub next: Option<String>,
}

impl ColdStore {
    /// One page of schedules, by id.
    pub async fn schedules(
        &self,
        filter: &ScheduleFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<SchedulePage, Error> {
        let mut s = Statement::new(self.dialect(), "schedules");
        let here = self.here(&mut s);
        let mut conditions = vec![format!("namespace = {here}")];
        conditions.extend(after.map(|id| format!("id > {}", s.text(id))));
        conditions.extend(filter.state.map(|state| format!("state = {}", state.code())));
        conditions.extend(filter.owner.as_deref().map(|owner| format!("owner = {}", s.text(owner))));
        conditions.extend(filter.destination.as_deref().map(|name| self.of_destination(name, &mut s)));
        conditions.extend(filter.queue.as_deref().map(|name| self.of_queue(name, &mut s)));
        conditions.extend(self.of_labels(&filter.labels, &mut s));
        let most = s.int(i64::try_from(limit).unwrap_or(MAX_SCHEDULES).saturating_add(1));
        let bytes = "octet_length(content) + octet_length(request)";
        s.push(&format!(
            "SELECT {COLUMNS}, matched FROM (SELECT x.*, sum({bytes}) OVER (ORDER BY id) - ({bytes}) AS before, \
               count(*) OVER () AS matched FROM (SELECT * FROM schedules WHERE {} ORDER BY id LIMIT {most}) x) y \
             WHERE before < {MOST_BYTES} ORDER BY id",
            conditions.join(" AND ")
        ));
        let found = self.pool.read(s).await?;
        let matched: i64 = found.first().map_or(Ok(0), |row| row.get(AFTER))?;
        let mut rows: Vec<ScheduleRow> = found.iter().map(ScheduleRow::read).collect::<Result<_, _>>()?;
        rows.truncate(limit);
        let is_cut = i64::try_from(rows.len()).unwrap_or(i64::MAX) < matched;
        let next = rows.last().filter(|_| is_cut).map(|row| row.id.clone());
        Ok(SchedulePage { rows, next })
    }

    /// The rhythms of all schedules that are active, by id; with a queue, or to whom they are given out there, only those.
    pub async fn rhythms(
        &self,
        whose: Whose,
        queue: Option<&str>,
        to: Option<&To>,
    ) -> Result<Vec<Rhythm>, Error> {
        let mut s = Statement::new(self.dialect(), "rhythms");
        let active = ScheduleState::Active.code();
        let mut which = vec![format!("state = {active}")];
        if let Whose::One(namespace) = whose {
            which.push(format!("namespace = {}", s.int(namespace.0.into())));
        }
        which.extend(queue.map(|name| self.of_queue(name, &mut s)));
        which.extend(to.map(|to| format!("given_to = {}", s.text(&to.to_string()))));
        s.push(&format!(
            "SELECT id, plan, made, last_nominal FROM schedules WHERE {} ORDER BY id LIMIT {MAX_SCHEDULES}",
            which.join(" AND ")
        ));
        let bad = |_| Error::Corrupt("a schedule's plan cannot be read back".into());
        let read = |row: &Row| {
            let plan: Plan = serde_json::from_str(&row.get::<String>(1)?).map_err(bad)?;
            let made: i64 = row.get(2)?;
            let left = plan.max_occurrences.map(|most| (most - made).max(0));
            Ok(Rhythm { id: row.get(0)?, plan, left, last_nominal: UnixMs::new(row.get(3)?) })
        };
        self.pool.read(s).await?.iter().map(read).collect()
    }

    /// How many schedules are in each state.
    pub async fn schedule_counts(&self) -> Result<Vec<(ScheduleState, i64)>, Error> {
        let mut s = Statement::new(self.dialect(), "schedule_counts");
        s.push("SELECT state, count(*) FROM schedules GROUP BY state");
        let mut counts = Vec::new();
        for row in self.pool.read(s).await? {
            counts.extend(ScheduleState::from_code(row.get(0)?).zip(Some(row.get(1)?)));
        }
        Ok(counts)
    }
}

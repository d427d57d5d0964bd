//! Re-drive: dead timers run again, as a new generation that is due now.
//!
//! They are taken in order of their death, from the index of dead timers, a bounded number of rows a step. The page is
//! read before the transaction: rows of history do not change. Within it each timer is inserted like a registration; an
//! id that is live again refuses its row. A timer whose id was registered again since, and ended, is found only after
//! the insert: from then on nobody else registers it until the commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use uuid::Uuid;

use super::super::columns::ALL;
use super::super::outbox::Happened;
use super::super::register::NewTimer;
use super::super::row::TimerRow;
use super::super::sql::{Column, Statement, Tx};
use super::super::totals::Counts;
use super::super::{ColdStore, Error};
use super::{Begun, OperationRow, Selection, Worker};
use crate::model::id::{TimerId, Uid};
use crate::model::operation::{OperationState, Refusal};
use crate::model::queue::Dispatch;
use crate::model::schedule::Occurrence;
use crate::model::target::Target;
use crate::model::template::TemplateUse;
use crate::model::time::UnixMs;
use crate::model::timer::State;

/// The most timers of one step.
pub const MAX_STEP: usize = 500;

/// The most rows that one step looks at.
const SCAN: usize = 2000;

/// A death gets its time before it is committed. So an operation looks only at those that are older than this: then what
/// it has not seen is not there, unless its transaction took longer.
pub const SETTLED: Duration = Duration::from_secs(2);

/// What a step came to.
#[derive(Debug)]
pub struct Stepped {
    /// The operation after it; `None`: it has ended, or another node works on it.
    pub operation: Option<OperationRow>,
    /// Timers that run again.
    pub made: Vec<TimerRow>,
    /// How many timers it looked at closely.
    pub looked_at: usize,
    /// How many rows it read to find them.
    pub scanned: usize,
    /// There is nothing to do before deaths near the end of its range have settled ([`SETTLED`]).
    pub waits: bool,
}

impl Stepped {
    /// A step that did nothing.
    pub(super) fn idle(operation: Option<OperationRow>) -> Self {
        Self { operation, made: Vec::new(), looked_at: 0, scanned: 0, waits: false }
    }
}

/// The key of a row of history: when it ended, its uid, its generation. Operations work in this order.
type Key = (i64, Uuid, i32);

/// A key as it is stored.
fn stored((ended_at, uid, generation): Key) -> String {
    format!("{ended_at}.{}.{generation}", uid.simple())
}

fn read(text: &str) -> Result<Key, Error> {
    let bad = || Error::Corrupt("the position of an operation".into());
    let mut fields = text.splitn(3, '.');
    let mut next = || fields.next().ok_or_else(bad);
    let ended_at = next()?.parse().map_err(|_| bad())?;
    let uid = Uuid::try_parse(next()?).map_err(|_| bad())?;
    Ok((ended_at, uid, next()?.parse().map_err(|_| bad())?))
}

/// The next rows of an operation.
struct Page {
    /// Those that match.
    keys: Vec<Key>,
    /// The last one looked at; `None` if there is none left.
    last: Option<Key>,
    /// There may be more.
    goes_on: bool,
    /// There may be more only later.
    waits: bool,
    /// How many rows were read.
    scanned: usize,
}

impl ColdStore {
    /// One step of a re-drive: at most `most` timers. In one transaction they are registered anew and the position is
    /// moved.
    pub async fn redrive(
        &self,
        operation: &OperationRow,
        worker: &Worker,
        most: usize,
    ) -> Result<Stepped, Error> {
        let page = self.page(&operation.selection()?, operation.position.as_deref(), most).await?;
        let (rows, mut refused) = self.dead_rows(&page.keys).await?;
        let (mut tx, mut now) = match self.begin_step(operation, worker).await? {
            Begun::Step(tx, now) => (tx, now),
            Begun::Nothing(after) => return Ok(Stepped::idle(after)),
        };
        let (made, more) = self.run_again(&mut tx, rows, operation.dry_run).await?;
        refused.extend(more);
        now.matched += i64::try_from(page.keys.len()).unwrap_or(0);
        refused.values().for_each(|why| now.refuse(*why));
        now.done += i64::try_from(made.len()).unwrap_or(0);
        now.position = page.last.map(stored).or(now.position);
        if !page.goes_on {
            now.state = OperationState::Done;
        }
        self.end_step(&mut tx, &now).await?;
        let set = self.listeners(&mut tx).await?;
        let late = self.tell(&mut tx, &set, Happened::registered(made.iter())).await?;
        let mut counts = Counts::default();
        counts.add(self.namespace(), "registered", made.len() as i64);
        self.count(&mut tx, &counts).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_late(late).await?;
        let Page { keys, waits, scanned, .. } = page;
        Ok(Stepped { operation: Some(now), made, looked_at: keys.len(), scanned, waits })
    }

    /// The keys of the next dead timers of a selection.
    async fn page(&self, selection: &Selection, position: Option<&str>, most: usize) -> Result<Page, Error> {
        let mut s = Statement::new(self.dialect(), "redrive_page");
        let matches = selection.matches(self, &mut s);
        // The state is written out: only then is the partial index used.
        let mut range = format!("state = {} AND ended_at < ", State::Dead.code());
        let settled = UnixMs::new(self.clock.now().get() - SETTLED.as_millis() as i64);
        range += &s.int(selection.ended_before.min(settled).get());
        if let Some(from) = selection.ended_from {
            range += &format!(" AND ended_at >= {}", s.int(from.get()));
        }
        if let Some((ended_at, uid, generation)) = position.map(read).transpose()? {
            let (at, uid, generation) = (s.int(ended_at), s.uuid(uid), s.int(i64::from(generation)));
            range += &format!(
                " AND ended_at >= {at} AND (ended_at, uid, generation) > ({at}, {uid}, {generation})"
            );
        }
        s.push(&format!(
            "SELECT ended_at, uid, generation, {matches} FROM history WHERE {range} \
             ORDER BY ended_at, uid, generation LIMIT {SCAN}"
        ));
        let rows = self.pool.read(s).await?;
        let (mut keys, mut last, scanned) = (Vec::new(), None, rows.len());
        for row in &rows {
            if keys.len() == most {
                return Ok(Page { keys, last, goes_on: true, waits: false, scanned });
            }
            let key = (row.get(0)?, row.get(1)?, row.get(2)?);
            last = Some(key);
            if row.get(3)? {
                keys.push(key);
            }
        }
        let (is_full, waits) = (scanned == SCAN, settled < selection.ended_before);
        Ok(Page { keys, last, goes_on: is_full || waits, waits: waits && !is_full, scanned })
    }

    /// The dead timers with these keys, and those that cannot be read back.
    async fn dead_rows(&self, keys: &[Key]) -> Result<(Vec<TimerRow>, BTreeMap<Key, Refusal>), Error> {
        if keys.is_empty() {
            return Ok((Vec::new(), BTreeMap::new()));
        }
        let mut s = Statement::new(self.dialect(), "redrive_rows");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(keys.iter().map(|key| key.1).collect())),
                ("b_ended", Column::Int(keys.iter().map(|key| key.0).collect())),
                ("b_generation", Column::Int(keys.iter().map(|key| i64::from(key.2)).collect())),
            ],
        );
        s.push(&format!(
            "WITH {batch} SELECT {ALL}, ended_at, last FROM b JOIN history ON uid = b_uid AND generation = b_generation \
             AND ended_at = b_ended AND state = {}",
            State::Dead.code()
        ));
        let mut refused: BTreeMap<Key, Refusal> = keys.iter().map(|key| (*key, Refusal::Removed)).collect();
        let mut rows = Vec::with_capacity(keys.len());
        for row in self.pool.read(s).await? {
            let key = |timer: &TimerRow| {
                (timer.ended_at.unwrap_or_default().get(), timer.uid.0, timer.life.generation.0)
            };
            match TimerRow::read(&row, true) {
                Ok(timer)
                    if matches!(timer.target, Target::Unknown { .. })
                        || TimerId::parse(&timer.id).is_err() =>
                {
                    refused.insert(key(&timer), Refusal::Unreadable);
                }
                Ok(timer) => {
                    refused.remove(&key(&timer));
                    rows.push(timer);
                }
                Err(_) => {
                    let uid: Uuid = row.get(0)?;
                    let unreadable = refused.iter_mut().filter(|(key, _)| key.1 == uid);
                    unreadable.for_each(|(_, why)| *why = Refusal::Unreadable);
                }
            }
        }
        Ok((rows, refused))
    }

    /// Registers dead timers anew; returns what it made, and what it refused. A dry run makes nothing.
    async fn run_again(
        &self,
        tx: &mut Tx,
        mut dead: Vec<TimerRow>,
        dry_run: bool,
    ) -> Result<(Vec<TimerRow>, BTreeMap<Key, Refusal>), Error> {
        if dead.is_empty() {
            return Ok((Vec::new(), BTreeMap::new()));
        }
        // Of one id that died twice only the later one may run. Sorted, so that two batches do not deadlock.
        dead.sort_unstable_by_key(|row| (row.uid, std::cmp::Reverse((row.ended_at, row.life.generation.0))));
        let key = |row: &TimerRow| (row.ended_at.unwrap_or_default().get(), row.uid.0, row.life.generation.0);
        let mut refused = BTreeMap::new();
        let mut last = None;
        dead.retain(|row| {
            let is_first = last.replace(row.uid) != Some(row.uid);
            if !is_first {
                refused.insert(key(row), Refusal::Superseded);
            }
            is_first
        });
        let missing =
            self.missing_destinations(tx, dead.iter().map(|row| (row.namespace, &row.target))).await?;
        dead.retain(|row| {
            let is_there = row
                .target
                .destination()
                .is_none_or(|name| !missing.contains(&(row.namespace, name.to_owned())));
            if !is_there {
                refused.insert(key(row), Refusal::NoDestination);
            }
            is_there
        });
        let now = self.clock.now();
        let fresh: Vec<TimerRow> = dead.iter().map(|row| self.fresh_row(&anew(row, now))).collect();
        let mut free = if dry_run {
            let live = self.live_of(tx, &fresh).await?;
            fresh.iter().filter(|row| !live.contains(&row.uid)).map(|row| (row.uid, now)).collect()
        } else {
            self.insert_anew(tx, &fresh).await?
        };
        let superseded = self.superseded(tx, &dead).await?;
        let (mut take_back, mut revived, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for (row, mut fresh) in dead.into_iter().zip(fresh) {
            let (uid, generation) = (row.uid, row.life.generation);
            match free.remove(&uid) {
                None => drop(refused.insert(key(&row), Refusal::IdTaken)),
                Some(_) if superseded.contains(&uid) => {
                    refused.insert(key(&row), Refusal::Superseded);
                    take_back.push(uid);
                }
                Some(wake_at) => {
                    revived.push((uid, generation.0));
                    fresh.life.wake_at = wake_at;
                    fresh.life.generation.0 = generation.0 + 1;
                    made.push(fresh);
                }
            }
        }
        if dry_run {
            return Ok((Vec::new(), refused));
        }
        self.take_back(tx, &take_back).await?;
        self.revive(tx, &revived).await?;
        Ok((made, refused))
    }

    /// Inserts dead timers as new ones; returns when each wakes. One whose id is live already is not among them.
    async fn insert_anew(&self, tx: &mut Tx, fresh: &[TimerRow]) -> Result<HashMap<Uid, UnixMs>, Error> {
        if fresh.is_empty() {
            return Ok(HashMap::new());
        }
        self.keep_namespaces(tx, &fresh.iter().map(|row| row.namespace).collect()).await?;
        // Their queue may have been removed since.
        self.keep_queues(tx, fresh.iter().map(|row| (row.namespace, &row.target))).await?;
        self.insert_rows(tx, fresh).await
    }

    /// Of these dead timers, those whose ids are live.
    async fn live_of(&self, tx: &mut Tx, rows: &[TimerRow]) -> Result<HashSet<Uid>, Error> {
        if rows.is_empty() {
            return Ok(HashSet::new());
        }
        let mut s = Statement::new(self.dialect(), "redrive_live");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(rows.iter().map(|row| row.uid.0).collect()))]);
        let is_it = self.dialect().keyed("uid", "b_uid");
        s.push(&format!("WITH {batch} SELECT uid, generation FROM b JOIN timers ON {is_it}"));
        tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// Of these dead timers, those whose ids were registered again and ended since. History may have lost that end, or be
    /// purged of it: then the id tells.
    async fn superseded(&self, tx: &mut Tx, dead: &[TimerRow]) -> Result<HashSet<Uid>, Error> {
        if dead.is_empty() {
            return Ok(HashSet::new());
        }
        let mut s = Statement::new(self.dialect(), "redrive_superseded");
        let ended = dead.iter().map(|row| row.ended_at.unwrap_or_default().get()).collect();
        let generations = dead.iter().map(|row| i64::from(row.life.generation.0)).collect();
        let is_it = self.dialect().keyed("uid", "b_uid");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(dead.iter().map(|row| row.uid.0).collect())),
                ("b_ended", Column::Int(ended)),
                ("b_generation", Column::Int(generations)),
            ],
        );
        s.push(&format!(
            "WITH {batch} SELECT uid FROM b JOIN history ON {is_it} AND (ended_at, generation) > (b_ended, b_generation) \
             UNION SELECT uid FROM b JOIN ended_ids ON {is_it} AND COALESCE(generation > b_generation, false)"
        ));
        tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }
}

/// The registration that makes a dead timer run again, due now.
fn anew(row: &TimerRow, now: UnixMs) -> NewTimer {
    let row = row.clone();
    NewTimer {
        uid: row.uid,
        namespace: row.namespace,
        // Others are not read ([`ColdStore::dead_rows`]).
        id: TimerId::parse(&row.id).unwrap_or_else(|_| TimerId::of_server(row.uid, row.namespace)),
        caller_id: row.caller_id,
        again: true,
        owner: row.owner,
        due_at: now,
        minute: row.minute,
        priority: row.priority,
        spread: row.spread,
        target: row.target,
        data: row.data,
        // The payload was fitted when it was registered, and does not change.
        template: row.template.map(TemplateUse::unfitted),
        labels: row.labels,
        policies: row.policies,
        // What was acked stays so: the places that died are given out again.
        dispatch: row.seats.map(|seats| {
            let times = seats.dispatch.times.saturating_sub(seats.acked).max(1);
            Dispatch { times, ..seats.dispatch }
        }),
        request_hash: row.request_hash,
        created_at: now,
        trace: row.trace,
        // It runs because somebody wants it to: nobody judges it.
        occurrence: row.occurrence.map(|one| Occurrence {
            turn: None,
            judge_after: None,
            skipped: None,
            ..one
        }),
    }
}

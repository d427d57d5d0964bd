//! Queues, as the store has them: their settings, whether they are paused, what waits in them.
//!
//! A queue comes into being with its first timer or lease. Whoever registers timers for it locks its row (`FOR KEY SHARE`)
//! until the commit, and a removal locks it before it counts the timers that use it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::audit::Deed;
use super::destinations::{AMONG, CHANGING, MOST_COUNTED, Named, is_for, named};
use super::places::QueueTerms;
use super::restore::MAY_FIRE;
use super::schedules::may_go;
use super::sql::{Column, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::clock::Monotonic;
use crate::model::namespace::Namespace;
use crate::model::queue::{Settings, lane};
use crate::model::target::{Kind, Target};
use crate::model::time::UnixMs;

/// A queue as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRow {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: Settings,
    /// Nothing is given out.
    pub paused: bool,
    /// Rises with every change.
    pub version: i32,
    /// When it came into being.
    pub created_at: UnixMs,
}

/// The columns of [`QueueRow`], in order.
const COLUMNS: &str = "namespace, name, settings, paused, version, created_at";

impl QueueRow {
    /// As the audit has it.
    fn audited(&self) -> Value {
        json!({"settings": self.settings, "paused": self.paused, "version": self.version})
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let settings: String = row.get(2)?;
        Ok(Self {
            namespace: Namespace(row.get(0)?),
            name: row.get(1)?,
            settings: settings_of(&settings)?,
            paused: row.get(3)?,
            version: row.get(4)?,
            created_at: UnixMs::new(row.get(5)?),
        })
    }
}

/// So many ready timers are looked at, the longest due first, for the one that has been ready longest.
const LOOKED_AT: i64 = 1000;

/// So many queues of a store may come into being because a worker asks for one.
const MOST_ASKED_FOR: i64 = 10_000;

/// So many may be there for a timer that names another one to make it. Beyond that it is in a queue that is not listed.
const MOST_NAMED: i64 = 100_000;

/// So many timers are counted in all when several queues are listed, and of each one at least [`LOOKED_AT`].
const MOST_COUNTED_IN_ALL: i64 = 1_000_000;

/// So many timers are counted of each of so many queues, where all are counted together.
pub fn most_counted(queues: usize) -> i64 {
    (MOST_COUNTED_IN_ALL / queues.max(1) as i64).clamp(LOOKED_AT, MOST_COUNTED)
}

/// What waits in a queue, each counted up to [`most_counted`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Timers of which a place may be given out now.
    pub ready: i64,
    /// Timers of which a place is out.
    pub leased: i64,
    /// Timers that are not due yet, if they were counted.
    pub scheduled: i64,
    /// Since when the one is ready that has been longest. One that came back is ready since then, so of more than a thousand
    /// that all came back it may be another.
    pub oldest_ready_at: Option<UnixMs>,
}

/// The outcome of removing a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRemoved {
    /// It is gone.
    Done,
    /// So many live timers, counted up to [`MOST_COUNTED`], and so many schedules are for it.
    InUse(i64, i64),
    /// There is none of this name.
    NoSuch,
}

impl ColdStore {
    /// The queues of all namespaces, at most `limit`.
    pub async fn queues_of_all(&self, limit: usize) -> Result<Vec<QueueRow>, Error> {
        let mut s = Statement::new(self.dialect(), "queues_of_all");
        let limit = s.int(limit as i64);
        s.push(&format!("SELECT {COLUMNS} FROM queues ORDER BY namespace, name LIMIT {limit}"));
        self.pool.read(s).await?.iter().map(QueueRow::read).collect()
    }

    /// The queues of all namespaces that say anything of themselves, at most `limit`. Most are made by the first timer for them,
    /// and say nothing.
    pub async fn queues_with_settings(&self, limit: usize) -> Result<Vec<QueueRow>, Error> {
        let mut s = Statement::new(self.dialect(), "queues_with_settings");
        let limit = s.int(limit as i64);
        s.push(&format!(
            "SELECT {COLUMNS} FROM queues WHERE settings <> '{{}}' ORDER BY namespace, name LIMIT {limit}"
        ));
        self.pool.read(s).await?.iter().map(QueueRow::read).collect()
    }

    /// All queues, by name, from the one after `after` on, at most `limit`.
    pub async fn queues(&self, after: &str, limit: usize) -> Result<Vec<QueueRow>, Error> {
        let mut s = Statement::new(self.dialect(), "queues");
        let here = self.here(&mut s);
        let (after, limit) = (s.text(after), s.int(limit as i64));
        s.push(&format!(
            "SELECT {COLUMNS} FROM queues WHERE namespace = {here} AND name > {after} ORDER BY name LIMIT {limit}"
        ));
        self.pool.read(s).await?.iter().map(QueueRow::read).collect()
    }

    /// The queue of this name.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueRow>, Error> {
        let mut s = Statement::new(self.dialect(), "queue");
        let here = self.here(&mut s);
        let name = s.text(name);
        s.push(&format!("SELECT {COLUMNS} FROM queues WHERE namespace = {here} AND name = {name}"));
        self.pool.read(s).await?.first().map(QueueRow::read).transpose()
    }

    /// Writes a queue; `paused` is kept where it is not given. Returns it, and whether it is new.
    pub async fn put_queue(
        &self,
        name: &str,
        settings: &Settings,
        paused: Option<bool>,
    ) -> Result<(QueueRow, bool), Error> {
        let (mut tx, object) = (self.pool.begin().await?, name);
        self.hold_here(&mut tx).await?;
        let before = self.lock_queue(&mut tx, name, CHANGING).await?;
        let mut s = Statement::new(self.dialect(), "put_queue");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (name, settings) = (s.text(name), s.text(&stored(settings)));
        let (initial, kept) = match paused {
            Some(paused) => (paused, paused.to_string()),
            None => (false, "queues.paused".to_owned()),
        };
        s.push(&format!(
            "INSERT INTO queues (namespace, name, settings, paused, version, created_at, changed_at) \
             VALUES ({here}, {name}, {settings}, {initial}, 1, {now}, {now}) \
             ON CONFLICT (namespace, name) DO UPDATE SET settings = excluded.settings, paused = {kept}, \
             version = queues.version + 1, changed_at = excluded.changed_at RETURNING {COLUMNS}"
        ));
        let row = tx.fetch(s).await?.first().map(QueueRow::read).transpose()?;
        let row = row.ok_or_else(|| Error::Corrupt("a queue that was written has no row".into()))?;
        let is_new = row.version == 1;
        let (was, became) = (before.map(|row| row.audited()), Some(row.audited()));
        self.audit(&mut tx, Deed { action: "queue.put", object, was, became }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok((row, is_new))
    }

    /// Pauses a queue, or resumes it; `None` if there is none of this name.
    pub async fn pause_queue(&self, name: &str, paused: bool) -> Result<Option<QueueRow>, Error> {
        let (mut tx, object) = (self.pool.begin().await?, name);
        let Some(before) = self.lock_queue(&mut tx, name, CHANGING).await? else { return Ok(None) };
        if before.paused == paused {
            return Ok(Some(before));
        }
        let mut s = Statement::new(self.dialect(), "pause_queue");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let name = s.text(name);
        s.push(&format!(
            "UPDATE queues SET changed_at = {now}, version = version + 1, paused = {paused} \
             WHERE namespace = {here} AND name = {name} RETURNING {COLUMNS}"
        ));
        let row = tx.fetch(s).await?.first().map(QueueRow::read).transpose()?;
        let action = if paused { "queue.pause" } else { "queue.resume" };
        let (was, became) = (Some(before.audited()), row.as_ref().map(QueueRow::audited));
        self.audit(&mut tx, Deed { action, object, was, became }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(row)
    }

    /// Removes a queue that no live timer and no schedule is for.
    pub async fn remove_queue(&self, name: &str) -> Result<QueueRemoved, Error> {
        let counted = |rows: Vec<Row>| rows.first().map_or(Ok(0), |row| row.get::<i64>(0));
        // Counted without the lock, for which registrations would wait.
        let timers = counted(self.pool.read(self.queue_uses(name, MOST_COUNTED)).await?)?;
        let schedules = counted(self.pool.read(self.scheduled_for_queue(name)).await?)?;
        if timers + schedules > 0 {
            return Ok(QueueRemoved::InUse(timers, schedules));
        }
        let mut tx = self.pool.begin().await?;
        let Some(before) = self.lock_queue(&mut tx, name, "FOR UPDATE").await? else {
            return Ok(QueueRemoved::NoSuch);
        };
        // A statement of its own, after the lock: it sees what was registered meanwhile.
        let timers = counted(tx.fetch(self.queue_uses(name, 1)).await?)?;
        let schedules = counted(tx.fetch(self.scheduled_for_queue(name)).await?)?;
        if timers + schedules > 0 {
            return Ok(QueueRemoved::InUse(timers, schedules));
        }
        let mut s = Statement::new(self.dialect(), "remove_queue");
        let here = self.here(&mut s);
        let bound = s.text(name);
        s.push(&format!("DELETE FROM queues WHERE namespace = {here} AND name = {bound}"));
        tx.execute(s).await?;
        let was = Some(before.audited());
        self.audit(&mut tx, Deed { action: "queue.remove", object: name, was, became: None }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(QueueRemoved::Done)
    }

    /// Reads a queue and keeps others from changing it until the end of the transaction, by this lock.
    async fn lock_queue(
        &self,
        tx: &mut Tx,
        name: &str,
        lock: &'static str,
    ) -> Result<Option<QueueRow>, Error> {
        let mut s = Statement::new(self.dialect(), "lock_queue");
        let here = self.here(&mut s);
        let (name, lock) = (s.text(name), self.dialect().lock(lock));
        s.push(&format!("SELECT {COLUMNS} FROM queues WHERE namespace = {here} AND name = {name} {lock}"));
        tx.fetch(s).await?.first().map(QueueRow::read).transpose()
    }

    fn queue_uses(&self, name: &str, most: i64) -> Statement {
        let mut s = Statement::new(self.dialect(), "queue_uses");
        let of = s.int(lane(self.namespace(), name));
        s.push(&format!(
            "SELECT CAST(count(*) AS BIGINT) FROM \
             (SELECT 1 FROM timers WHERE {} AND lane = {of} LIMIT {most}) x",
            is_for(Kind::Queue, self.dialect())
        ));
        s
    }

    /// What waits in these queues, in the order given.
    pub async fn queue_depths(&self, lanes: &[i64]) -> Result<Vec<QueueDepth>, Error> {
        self.depths(lanes, true).await
    }

    /// The same without what is scheduled, which is told as 0, and each counted up to [`MOST_COUNTED`]: to count it reads as many rows of each queue, too many
    /// for who looks again and again.
    pub async fn queue_depths_now(&self, lanes: &[i64]) -> Result<Vec<QueueDepth>, Error> {
        self.depths(lanes, false).await
    }

    async fn depths(&self, lanes: &[i64], with_scheduled: bool) -> Result<Vec<QueueDepth>, Error> {
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "queue_depths");
        let batch = s.batch(
            "b",
            vec![
                ("b_at", Column::Int((0..lanes.len() as i64).collect())),
                ("b_lane", Column::Int(lanes.to_vec())),
            ],
        );
        let now = s.now(self.bound_now());
        let is_for_queue = is_for(Kind::Queue, self.dialect());
        // The index of a lane is in due order: what is scheduled for later is not read to find what is ready. What workers have
        // is a few among many that wait, and has an index of its own.
        let of_lane = format!("{is_for_queue} AND lane = b_lane");
        // What workers may have, as a lease sees it.
        let may_go = may_go(&now, "timers", self.held());
        let ready =
            format!("{of_lane} AND due_at <= {now} AND ready_at <= {now} AND {MAY_FIRE} AND {may_go}");
        let most = if with_scheduled { most_counted(lanes.len()) } else { MOST_COUNTED };
        let count = |which: &str| {
            format!(
                "(SELECT CAST(count(*) AS BIGINT) FROM (SELECT 1 FROM timers WHERE {which} LIMIT {most}) x)"
            )
        };
        s.push(&format!(
            "WITH {batch} SELECT b_at, {}, {}, {}, (SELECT min(ready_at) FROM (SELECT ready_at FROM timers \
             WHERE {ready} ORDER BY due_at LIMIT {LOOKED_AT}) x) FROM b ORDER BY b_at",
            count(&ready),
            count("lane = b_lane AND state = 1 AND audience IS NOT NULL"),
            match with_scheduled {
                true => count(&format!("{of_lane} AND due_at > {now} AND state = 0")),
                false => "CAST(0 AS BIGINT)".to_owned(),
            },
        ));
        let depth = |row: &Row| {
            Ok(QueueDepth {
                ready: row.get(1)?,
                leased: row.get(2)?,
                scheduled: row.get(3)?,
                oldest_ready_at: row.get::<Option<i64>>(4)?.map(UnixMs::new),
            })
        };
        self.pool.read(s).await?.iter().map(depth).collect()
    }

    /// Makes those queues that these targets name, each in its namespace, and that there are not yet. All of them stay until the
    /// end of the transaction.
    pub(super) async fn keep_queues<'a>(
        &self,
        tx: &mut Tx,
        targets: impl Iterator<Item = (Namespace, &'a Target)>,
    ) -> Result<(), Error> {
        let of = |(namespace, target): (Namespace, &'a Target)| Some((namespace, target.queue()?.to_owned()));
        let mut names: BTreeSet<Named> = targets.filter_map(of).collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "apply_queues");
        let batch = s.batch("b", named(names.iter().map(|(namespace, name)| (*namespace, name))));
        let lock = self.dialect().lock("FOR KEY SHARE");
        s.push(&format!(
            "WITH {batch} SELECT namespace, name FROM queues WHERE {AMONG} ORDER BY namespace, name {lock}"
        ));
        for row in tx.fetch(s).await? {
            names.remove(&(Namespace(row.get(0)?), row.get::<String>(1)?));
        }
        self.make_queues(tx, names).await
    }

    /// Whether a lease call may make one more queue of this namespace.
    pub(super) async fn has_queue_room(&self, tx: &mut Tx) -> Result<bool, Error> {
        self.has_room_here(tx, "queues", MOST_ASKED_FOR).await
    }

    /// Makes queues with the usual settings, where there are none, and as long as there is room.
    pub(super) async fn make_queues(&self, tx: &mut Tx, names: BTreeSet<Named>) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "make_queues");
        let batch = s.batch("b", named(names.iter().map(|(namespace, name)| (*namespace, name))));
        let now = s.now(self.bound_now());
        s.push(&format!(
            "WITH {batch}, there AS (SELECT namespace AS of_namespace, count(*) AS n FROM queues \
               WHERE namespace IN (SELECT b_namespace FROM b) GROUP BY namespace) \
             INSERT INTO queues (namespace, name, settings, paused, version, created_at, changed_at) \
             SELECT b_namespace, b_name, '{{}}', false, 1, {now}, {now} FROM b LEFT JOIN there ON of_namespace = b_namespace \
             WHERE COALESCE(n, 0) < CASE WHEN b_namespace = {own} THEN {MOST_NAMED} ELSE {MOST_NAMED} / 10 END \
             ON CONFLICT (namespace, name) DO NOTHING",
            own = Namespace::OWN.0
        ));
        tx.execute(s).await.map(drop)
    }

    /// What these queues say of their timers.
    pub(super) async fn queue_terms(
        &self,
        tx: &mut Tx,
        names: &BTreeSet<Named>,
    ) -> Result<BTreeMap<Named, QueueTerms>, Error> {
        let mut s = Statement::new(self.dialect(), "apply_queue_terms");
        let batch = s.batch("b", named(names.iter().map(|(namespace, name)| (*namespace, name))));
        s.push(&format!("WITH {batch} SELECT {COLUMNS} FROM queues WHERE {AMONG}"));
        let mut terms = BTreeMap::new();
        for row in tx.fetch(s).await? {
            let QueueRow { namespace, name, settings, paused, .. } = QueueRow::read(&row)?;
            terms.insert((namespace, name), terms_of(settings, paused));
        }
        Ok(terms)
    }

    /// What the store and this queue of the namespace say before anything is given out.
    pub(super) async fn hear(&self, tx: &mut Tx, name: &str) -> Result<Heard, Error> {
        let mut s = Statement::new(self.dialect(), "lease_terms");
        let now = s.now(self.bound_now());
        let heard = self.heard(&mut s, &now, name);
        s.push(&heard);
        let sent = Monotonic::now();
        let rows = tx.fetch(s).await?;
        self.read_heard(sent, rows.first(), 0)
    }

    /// The query of that, with this expression of the store's time. It has one row.
    pub(super) fn heard(&self, s: &mut Statement, now: &str, name: &str) -> String {
        let (here, name) = (self.here(s), s.text(name));
        format!(
            "SELECT {now} AS heard_at, incarnation, settings, paused FROM store \
             LEFT JOIN queues ON queues.namespace = {here} AND queues.name = {name}"
        )
    }

    /// Reads it from its columns, which begin at `at`.
    pub(super) fn read_heard(&self, sent: Monotonic, row: Option<&Row>, at: usize) -> Result<Heard, Error> {
        let row = row.ok_or_else(|| Error::Corrupt("the store has no row of itself".into()))?;
        let now = UnixMs::new(row.get(at)?);
        self.clock.observe(sent, now);
        let terms = match row.get::<Option<String>>(at + 2)? {
            Some(settings) => Some(terms_of(settings_of(&settings)?, row.get(at + 3)?)),
            None => None,
        };
        Ok(Heard { now, incarnation: row.get(at + 1)?, terms })
    }
}

/// What the store and a queue say before anything is given out.
pub(super) struct Heard {
    /// The store's time.
    pub now: UnixMs,
    /// The store's building ([`ColdStore::seen`]).
    pub incarnation: i64,
    /// What the queue says, if there is one.
    pub terms: Option<QueueTerms>,
}

fn terms_of(settings: Settings, paused: bool) -> QueueTerms {
    QueueTerms { paused, lease: settings.lease, retry: settings.retry }
}

/// What a later version has written and this one does not know is left out.
fn settings_of(stored: &str) -> Result<Settings, Error> {
    serde_json::from_str(stored).map_err(|_| Error::Corrupt("a queue's settings cannot be read back".into()))
}

fn stored(settings: &Settings) -> String {
    serde_json::to_string(settings).unwrap_or_else(|_| "{}".to_owned())
}

//! Destinations, as the store has them. Their secrets are bytes that this room does not read.
//!
//! A registration and the removal of a destination exclude each other: whoever registers timers for it locks its row
//! (`FOR KEY SHARE`) until the commit, and a removal locks it before it counts the timers that use it. So does whoever
//! subscribes for it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::audit::Deed;
use super::columns::WEBHOOK;
use super::copies::{Copied, Mark};
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::destination::{Limits, lane};
use crate::model::namespace::Namespace;
use crate::model::policy::Retry;
use crate::model::target::{Kind, Target};
use crate::model::time::UnixMs;

/// A name and the namespace that has it.
pub type Named = (Namespace, String);

/// Names as the columns of a batch.
pub(super) fn named<'a>(names: impl Iterator<Item = (Namespace, &'a String)>) -> Vec<(&'static str, Column)> {
    let (namespaces, names) = names.map(|(namespace, name)| (i64::from(namespace.0), name.clone())).unzip();
    vec![("b_namespace", Column::Int(namespaces)), ("b_name", Column::Text(names))]
}

/// The condition that a row is one of such a batch.
pub(super) const AMONG: &str = "(namespace, name) IN (SELECT b_namespace, b_name FROM b)";

/// The most destinations of a store.
pub const MAX_DESTINATIONS: i64 = 10_000;

/// The most timers of one destination that are counted.
pub const MOST_COUNTED: i64 = 100_000;

/// The condition that a row's target is a destination.
pub(super) fn is_for_destination(dialect: Dialect) -> String {
    is_for(Kind::Destination, dialect)
}

/// The condition that a row's target is of this kind, which is none that nearly every row has. Partial indexes serve it,
/// by the first part.
pub(super) fn is_for(kind: Kind, dialect: Dialect) -> String {
    let code = kind.code();
    match dialect {
        Dialect::Postgres => format!("kind IS NOT NULL AND kind = {code}"),
        Dialect::Sqlite => format!("kind <> {WEBHOOK} AND kind = {code}"),
    }
}

/// A destination as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRow {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// The word of its kind.
    pub kind: String,
    /// Where it is and what it bears, as JSON.
    pub settings: String,
    /// Its secrets, sealed.
    pub secrets: Option<Vec<u8>>,
    /// What falls due for it is kept.
    pub paused: bool,
    /// Rises with every change.
    pub version: i32,
    /// When it was made.
    pub created_at: UnixMs,
    /// When it was last changed.
    pub changed_at: UnixMs,
}

/// The columns of [`DestinationRow`], in order.
const COLUMNS: &str = "namespace, name, kind, settings, secrets, paused, version, created_at, changed_at";

impl DestinationRow {
    /// As the audit has it. What the settings hold is no secret.
    fn audited(&self) -> Value {
        let settings: Value = serde_json::from_str(&self.settings).unwrap_or_default();
        json!({"kind": self.kind, "settings": settings, "has_secrets": self.secrets.is_some(), "paused": self.paused,
            "version": self.version})
    }

    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            namespace: Namespace(row.get(0)?),
            name: row.get(1)?,
            kind: row.get(2)?,
            settings: row.get(3)?,
            secrets: row.get(4)?,
            paused: row.get(5)?,
            version: row.get(6)?,
            created_at: UnixMs::new(row.get(7)?),
            changed_at: UnixMs::new(row.get(8)?),
        })
    }
}

/// What a destination shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationEdit {
    /// Its name.
    pub name: String,
    /// The word of its kind.
    pub kind: String,
    /// Where it is and what it bears, as JSON.
    pub settings: String,
    /// Its secrets, sealed.
    pub secrets: Option<Vec<u8>>,
    /// Written only if it has this version; 0 is that there is none of this name. `None` is whatever there is.
    pub if_version: Option<i32>,
}

/// The outcome of writing a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is so now; `true` if it is new.
    Done(DestinationRow, bool),
    /// It has another version, or (0) there is none.
    OtherVersion(i32),
    /// The store has as many as it takes ([`MAX_DESTINATIONS`]).
    Full,
}

/// The outcome of removing a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Done,
    /// It is used.
    InUse(Uses),
    /// There is none of this name.
    NoSuch,
}

/// What uses a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uses {
    /// Live timers that go there, counted up to [`MOST_COUNTED`].
    pub timers: i64,
    /// Schedules whose occurrences go there.
    pub schedules: i64,
    /// Subscriptions whose events go there.
    pub subscriptions: i64,
}

impl Uses {
    const fn is_none(self) -> bool {
        self.timers == 0 && self.schedules == 0 && self.subscriptions == 0
    }
}

/// Time at a destination that one node reserved: attempts may start from `start_us` on, one each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// The destination's lane.
    pub lane: i64,
    /// When the first attempt may start, in microseconds from the answer on.
    pub start_us: i64,
}

impl ColdStore {
    /// All destinations, by name; with `names`, only these.
    pub async fn destinations(&self, names: Option<&[String]>) -> Result<Vec<DestinationRow>, Error> {
        let mut s = Statement::new(self.dialect(), "destinations");
        match names {
            None => {
                let here = self.here(&mut s);
                s.push(&format!("SELECT {COLUMNS} FROM destinations WHERE namespace = {here} ORDER BY name"))
            }
            Some(names) => {
                let batch = s.batch("b", vec![("b_name", Column::Text(names.to_vec()))]);
                let here = self.here(&mut s);
                s.push(&format!(
                    "WITH {batch} SELECT {COLUMNS} FROM destinations WHERE namespace = {here} \
                     AND name IN (SELECT b_name FROM b) ORDER BY name"
                ))
            }
        };
        self.pool.read(s).await?.iter().map(DestinationRow::read).collect()
    }

    /// The destinations of all namespaces; with `which`, only these.
    pub async fn destinations_of_all(&self, which: Option<&[Named]>) -> Result<Vec<DestinationRow>, Error> {
        let mut s = Statement::new(self.dialect(), "destinations_of_all");
        match which {
            None => s.push(&format!("SELECT {COLUMNS} FROM destinations ORDER BY namespace, name")),
            Some(which) => {
                let batch = s.batch("b", named(which.iter().map(|(namespace, name)| (*namespace, name))));
                s.push(&format!(
                    "WITH {batch} SELECT {COLUMNS} FROM destinations WHERE {AMONG} ORDER BY namespace, name"
                ))
            }
        };
        self.urgent.read(s).await?.iter().map(DestinationRow::read).collect()
    }

    /// The versions of the destinations of all namespaces, each with when it was made: one that was removed and made again
    /// begins with version 1.
    pub async fn destination_versions(&self) -> Result<BTreeMap<Named, (i32, UnixMs)>, Error> {
        let mut s = Statement::new(self.dialect(), "destination_versions");
        s.push("SELECT namespace, name, version, created_at FROM destinations");
        let version =
            |row: &Row| Ok(((Namespace(row.get(0)?), row.get(1)?), (row.get(2)?, UnixMs::new(row.get(3)?))));
        self.urgent.read(s).await?.iter().map(version).collect()
    }

    /// The mark of destinations of these versions.
    pub fn mark_of_destinations(versions: &BTreeMap<Named, (i32, UnixMs)>) -> Mark {
        Mark::of(versions.values().map(|(version, created_at)| [(*version).into(), created_at.get()]))
    }

    /// Writes a destination, new or in place of the one of this name, which keeps whether it is paused. Other nodes are
    /// notified.
    pub async fn put_destination(&self, edit: &DestinationEdit) -> Result<Written, Error> {
        let mut tx = self.pool.begin().await?;
        self.hold_here(&mut tx).await?;
        let before = self.lock_destination(&mut tx, &edit.name, CHANGING).await?;
        let version = before.as_ref().map_or(0, |row| row.version);
        if edit.if_version.is_some_and(|wanted| wanted != version) {
            return Ok(Written::OtherVersion(version));
        }
        let mut s = Statement::new(self.dialect(), "put_destination");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (name, kind, settings) = (s.text(&edit.name), s.text(&edit.kind), s.text(&edit.settings));
        let secrets = s.bytes(edit.secrets.as_deref());
        s.push(&format!(
            "INSERT INTO destinations (namespace, name, kind, settings, secrets, paused, version, created_at, changed_at) \
             SELECT {here}, {name}, {kind}, {settings}, {secrets}, false, 1, {now}, {now} \
             WHERE {has} OR ((SELECT count(*) FROM destinations) < {MAX_DESTINATIONS} \
               AND (SELECT count(*) FROM destinations WHERE namespace = {here}) < {most}) \
             ON CONFLICT (namespace, name) DO UPDATE SET kind = excluded.kind, settings = excluded.settings, \
             secrets = excluded.secrets, version = destinations.version + 1, changed_at = excluded.changed_at \
             RETURNING {COLUMNS}",
            has = before.is_some(),
            most = self.most_here(MAX_DESTINATIONS),
        ));
        let Some(row) = tx.fetch(s).await?.first().map(DestinationRow::read).transpose()? else {
            return Ok(Written::Full);
        };
        let (was, became) = (before.map(|row| row.audited()), Some(row.audited()));
        self.audit(&mut tx, Deed { action: "destination.put", object: &edit.name, was, became }).await?;
        self.tell_changed(&mut tx, Copied::Destinations).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        let is_new = row.version == 1;
        Ok(Written::Done(row, is_new))
    }

    /// Pauses a destination, or resumes it; `None` if there is none of this name. Other nodes are notified.
    pub async fn pause_destination(&self, name: &str, paused: bool) -> Result<Option<DestinationRow>, Error> {
        let mut tx = self.pool.begin().await?;
        let Some(before) = self.lock_destination(&mut tx, name, CHANGING).await? else { return Ok(None) };
        if before.paused == paused {
            return Ok(Some(before));
        }
        let object = name;
        let mut s = Statement::new(self.dialect(), "pause_destination");
        let here = self.here(&mut s);
        let (now, name) = (s.now(self.bound_now()), s.text(name));
        s.push(&format!(
            "UPDATE destinations SET paused = {paused}, version = version + 1, changed_at = {now} \
             WHERE namespace = {here} AND name = {name} RETURNING {COLUMNS}"
        ));
        let row = tx.fetch(s).await?.first().map(DestinationRow::read).transpose()?;
        let action = if paused { "destination.pause" } else { "destination.resume" };
        let (was, became) = (Some(before.audited()), row.as_ref().map(DestinationRow::audited));
        self.audit(&mut tx, Deed { action, object, was, became }).await?;
        self.tell_changed(&mut tx, Copied::Destinations).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(row)
    }

    /// Removes a destination that no live timer, no schedule and no subscription uses. Other nodes are notified.
    pub async fn remove_destination(&self, name: &str) -> Result<Removed, Error> {
        // Counted without the lock, for which registrations would wait.
        let uses = Uses {
            timers: counted(&self.pool.read(self.uses_statement(name, MOST_COUNTED)).await?)?,
            schedules: counted(&self.pool.read(self.scheduled_statement(name)).await?)?,
            subscriptions: counted(&self.pool.read(self.subscribed_statement(name)).await?)?,
        };
        if !uses.is_none() {
            return Ok(Removed::InUse(uses));
        }
        let mut tx = self.pool.begin().await?;
        let Some(before) = self.lock_destination(&mut tx, name, "FOR UPDATE").await? else {
            return Ok(Removed::NoSuch);
        };
        // A statement of its own, after the lock: it sees what was registered meanwhile.
        let uses = Uses {
            timers: counted(&tx.fetch(self.uses_statement(name, 1)).await?)?,
            schedules: counted(&tx.fetch(self.scheduled_statement(name)).await?)?,
            subscriptions: counted(&tx.fetch(self.subscribed_statement(name)).await?)?,
        };
        if !uses.is_none() {
            return Ok(Removed::InUse(uses));
        }
        let mut s = Statement::new(self.dialect(), "remove_destination");
        let here = self.here(&mut s);
        let bound = s.text(name);
        s.push(&format!("DELETE FROM destinations WHERE namespace = {here} AND name = {bound}"));
        tx.execute(s).await?;
        let mut s = Statement::new(self.dialect(), "remove_destination_slots");
        let bound = s.int(lane(self.namespace(), name));
        s.push(&format!("DELETE FROM destination_slots WHERE lane = {bound}"));
        tx.execute(s).await?;
        let was = Some(before.audited());
        self.audit(&mut tx, Deed { action: "destination.remove", object: name, was, became: None }).await?;
        self.tell_changed(&mut tx, Copied::Destinations).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(Removed::Done)
    }

    /// The number of live timers that use a destination, counted up to `most`.
    fn uses_statement(&self, name: &str, most: i64) -> Statement {
        let mut s = Statement::new(self.dialect(), "destination_uses");
        let (of, is_used) = (s.int(lane(self.namespace(), name)), is_for_destination(self.dialect()));
        s.push(&format!(
            "SELECT CAST(count(*) AS BIGINT) FROM (SELECT 1 FROM timers WHERE {is_used} AND lane = {of} LIMIT {most}) x"
        ));
        s
    }

    /// The number of subscriptions whose events go to a destination.
    fn subscribed_statement(&self, name: &str) -> Statement {
        let mut s = Statement::new(self.dialect(), "destination_subscriptions");
        let here = self.here(&mut s);
        let name = s.text(name);
        s.push(&format!(
            "SELECT CAST(count(*) AS BIGINT) FROM subscriptions WHERE namespace = {here} \
             AND destination = {name} AND removed_at IS NULL"
        ));
        s
    }

    /// Reads a destination and keeps others from changing it until the end of the transaction, by this lock.
    async fn lock_destination(
        &self,
        tx: &mut Tx,
        name: &str,
        lock: &'static str,
    ) -> Result<Option<DestinationRow>, Error> {
        let mut s = Statement::new(self.dialect(), "lock_destination");
        let here = self.here(&mut s);
        let (name, lock) = (s.text(name), self.dialect().lock(lock));
        s.push(&format!(
            "SELECT {COLUMNS} FROM destinations WHERE namespace = {here} AND name = {name} {lock}"
        ));
        tx.fetch(s).await?.first().map(DestinationRow::read).transpose()
    }

    /// How many timers of each of these lanes of destinations are due and not under way, each counted up to `most`.
    pub async fn destinations_waiting(&self, lanes: &[i64], most: i64) -> Result<BTreeMap<i64, i64>, Error> {
        if lanes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut s = Statement::new(self.dialect(), "destinations_waiting");
        let batch = s.batch("b", vec![("b_lane", Column::Int(lanes.to_vec()))]);
        let now = s.now(self.bound_now());
        let is_for = is_for_destination(self.dialect());
        s.push(&format!(
            "WITH {batch} SELECT b_lane, (SELECT CAST(count(*) AS BIGINT) FROM (SELECT 1 FROM timers \
             WHERE {is_for} AND lane = b_lane AND due_at <= {now} AND state IN (0, 2) LIMIT {most}) x) FROM b"
        ));
        self.pool.read(s).await?.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// Of the destinations that these targets name, each in its namespace, those that there are not. The others stay until the
    /// end of the transaction.
    pub(super) async fn missing_destinations<'a>(
        &self,
        tx: &mut Tx,
        targets: impl Iterator<Item = (Namespace, &'a Target)>,
    ) -> Result<BTreeSet<Named>, Error> {
        let of = |(namespace, target): (Namespace, &'a Target)| {
            Some((namespace, target.destination()?.to_owned()))
        };
        let mut names: BTreeSet<Named> = targets.filter_map(of).collect();
        if names.is_empty() {
            return Ok(names);
        }
        let mut s = Statement::new(self.dialect(), "apply_destinations");
        let batch = s.batch("b", named(names.iter().map(|(namespace, name)| (*namespace, name))));
        let lock = self.dialect().lock("FOR KEY SHARE");
        s.push(&format!(
            "WITH {batch} SELECT namespace, name FROM destinations WHERE {AMONG} ORDER BY namespace, name {lock}"
        ));
        for row in tx.fetch(s).await? {
            names.remove(&(Namespace(row.get(0)?), row.get::<String>(1)?));
        }
        Ok(names)
    }

    /// The `retry` of these destinations, where they have one.
    pub(super) async fn destination_retries(
        &self,
        tx: &mut Tx,
        names: BTreeSet<Named>,
    ) -> Result<BTreeMap<Named, Retry>, Error> {
        let mut s = Statement::new(self.dialect(), "apply_retries");
        let batch = s.batch("b", named(names.iter().map(|(namespace, name)| (*namespace, name))));
        s.push(&format!("WITH {batch} SELECT namespace, name, settings FROM destinations WHERE {AMONG}"));
        let mut retries = BTreeMap::new();
        for row in tx.fetch(s).await? {
            if let Some(retry) = Limits::of_settings(&row.get::<String>(2)?).and_then(|limits| limits.retry) {
                retries.insert((Namespace(row.get(0)?), row.get(1)?), retry);
            }
        }
        Ok(retries)
    }

    /// Reserves time at destinations, for this node alone: `count` attempts, one each `step_us` microseconds, none sooner
    /// than `ahead_us` from now. The rows are `(lane, count, step_us)`.
    pub async fn reserve_slots(
        &self,
        wanted: &[(i64, i64, i64)],
        ahead_us: i64,
    ) -> Result<Vec<Reserved>, Error> {
        let mut sorted = wanted.to_vec();
        sorted.sort_unstable();
        let mut s = Statement::new(self.dialect(), "reserve_slots");
        let batch = s.batch(
            "b",
            vec![
                ("b_lane", Column::Int(sorted.iter().map(|(lane, ..)| *lane).collect())),
                ("b_span", Column::Int(sorted.iter().map(|(_, count, step)| count * step).collect())),
                ("b_step", Column::Int(sorted.iter().map(|(_, _, step)| *step).collect())),
            ],
        );
        let now = s.now_us(self.bound_now());
        let ahead = s.int(ahead_us);
        // What lies further ahead than the reserves of all nodes is from before the store's clock was set back.
        let far = format!("({FAR_US} + {FAR_STEPS} * (SELECT b_step FROM b WHERE b_lane = excluded.lane))");
        s.push(&format!(
            "WITH {batch} INSERT INTO destination_slots (lane, next_slot) SELECT b_lane, {now} + {ahead} + b_span FROM b \
             WHERE true ON CONFLICT (lane) DO UPDATE SET next_slot = excluded.next_slot + \
             CASE WHEN destination_slots.next_slot > {now} + {ahead} AND destination_slots.next_slot < {now} + {far} \
             THEN destination_slots.next_slot - {now} - {ahead} ELSE 0 END \
             RETURNING lane, next_slot - (SELECT b_span FROM b WHERE b_lane = lane) - {now}"
        ));
        let rows = self.urgent.write(s).await?;
        rows.iter().map(|row| Ok(Reserved { lane: row.get(0)?, start_us: row.get(1)? })).collect()
    }
}

/// The number in the only row of a count.
pub(super) fn counted(rows: &[Row]) -> Result<i64, Error> {
    rows.first().map_or(Ok(0), |row| row.get(0))
}

/// The lock of whoever changes a destination or a queue: those who register timers for it go on.
pub(super) const CHANGING: &str = "FOR NO KEY UPDATE";

/// A slot that lies so many microseconds and so many steps ahead was reserved before the store's clock was set back: nodes
/// reserve a quarter of a second each, or one step.
const FAR_US: i64 = 10_000_000;
const FAR_STEPS: i64 = 100;

//! Namespaces, as the store has them: their numbers, their names and their terms. The store's own is among them, whether or
//! not anything was ever said of it.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};

use super::audit::Deed;
use super::copies::{Copied, Mark};
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::namespace::{Namespace, Sender, Terms};
use crate::model::time::UnixMs;

/// The most namespaces of a store at a time, its own included.
pub const MAX_NAMESPACES: i64 = 10_000;

/// A namespace as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceRow {
    /// Its number, which no other one gets.
    pub number: Namespace,
    /// Its name.
    pub name: String,
    /// What it may use, and reach.
    pub terms: Terms,
    /// Rises with every change; 0 of the store's own while nothing was said of it.
    pub version: i32,
    /// When it was made.
    pub created_at: UnixMs,
}

const COLUMNS: &str = "number, name, terms, version, created_at";

impl NamespaceRow {
    fn read(row: &Row) -> Result<Self, Error> {
        let terms: String = row.get(2)?;
        Ok(Self {
            number: Namespace(row.get(0)?),
            name: row.get(1)?,
            // What this version cannot read would be without limits.
            terms: serde_json::from_str(&terms)
                .map_err(|_| Error::Corrupt("the terms of a namespace; another version wrote them".into()))?,
            version: row.get(3)?,
            created_at: UnixMs::new(row.get(4)?),
        })
    }

    fn audited(&self) -> Value {
        json!({"terms": self.terms, "version": self.version})
    }
}

/// The outcome of writing a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceWritten {
    /// It is so now; `true` if it is new.
    Done(NamespaceRow, bool),
    /// The store has as many as it takes ([`MAX_NAMESPACES`]), or has given all numbers.
    Full,
    /// These nodes are of a release that knows no namespaces.
    OlderNodes(Vec<String>),
}

/// The outcome of removing a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceRemoved {
    /// It is gone.
    Done,
    /// It has something: what, in words.
    InUse(String),
    /// It is the store's own.
    Own,
    /// There is none of this name.
    NoSuch,
}

/// One lock for all: who registers for some namespace shares it, and a removal, which is rare, has it alone. It stands in the
/// memory of the database; a lock of each one's row would be written. The number is `mainsnam`; the function `keep_namespaces` of
/// PostgreSQL's schema has it, too.
const SHARE_REMOVALS: &str = "SELECT pg_advisory_xact_lock_shared(7881696745979011437)";
const LOCK_REMOVALS: &str = "SELECT pg_advisory_xact_lock(7881696745979011437)";

/// The numbers of those that are not the store's own.
pub(super) fn others(which: &BTreeSet<Namespace>) -> Vec<i64> {
    which.iter().filter(|one| **one != Namespace::OWN).map(|one| one.0.into()).collect()
}

/// How many of these numbers, `b_number`, are namespaces. Each is looked up for itself, as a join might read them all.
const THOSE_THERE: &str = "count((SELECT 1 FROM namespaces WHERE number = b_number AND removed_at IS NULL))";

/// Binds numbers; returns the condition of PostgreSQL that all of them are namespaces, which keeps them from being removed until
/// the end of the transaction, like [`SHARE_REMOVALS`]. It sees a removal that it has waited for.
pub(super) fn all_kept(s: &mut Statement, numbers: Vec<i64>) -> String {
    let batch = s.batch("n", vec![("b_number", Column::Int(numbers))]);
    format!("(WITH {batch} SELECT keep_namespaces(array_agg(b_number)) FROM n)")
}

impl ColdStore {
    /// Of what a store has so many of at most, how many this namespace may have: all of them the store's own; another one a
    /// tenth, so that it does not use up what is there for all.
    pub fn most_here(&self, of_store: i64) -> i64 {
        if self.namespace() == Namespace::OWN { of_store } else { of_store / 10 }
    }

    /// Whether this namespace may have one more row of a table of which a store takes so many.
    pub(super) async fn has_room_here(&self, tx: &mut Tx, table: &str, of_store: i64) -> Result<bool, Error> {
        let most = self.most_here(of_store);
        let mut s = Statement::new(self.dialect(), "rows_here");
        let here = self.here(&mut s);
        s.push(&format!(
            "SELECT count(*) FROM (SELECT 1 FROM {table} WHERE namespace = {here} LIMIT {most}) x"
        ));
        Ok(tx.fetch(s).await?.first().map_or(Ok(0), |row| row.get::<i64>(0))? < most)
    }

    /// The namespaces, by name.
    pub async fn namespaces(&self) -> Result<Vec<NamespaceRow>, Error> {
        self.read_namespaces("WHERE removed_at IS NULL").await
    }

    /// The same, and their mark.
    pub async fn copy_of_namespaces(&self) -> Result<(Vec<NamespaceRow>, Mark), Error> {
        let rows = self.namespaces().await?;
        // The store's own has no row while nothing was said of it.
        let stored = rows.iter().filter(|row| row.version > 0);
        let mark = Mark::of(stored.map(|row| [row.version.into(), row.created_at.get()]));
        Ok((rows, mark))
    }

    /// Those, and those that were removed.
    pub(super) async fn namespaces_ever(&self) -> Result<Vec<NamespaceRow>, Error> {
        self.read_namespaces("").await
    }

    async fn read_namespaces(&self, which: &str) -> Result<Vec<NamespaceRow>, Error> {
        let mut s = Statement::new(self.dialect(), "namespaces");
        let own = s.text(self.own_name());
        // The store's own has no row while nothing was said of it.
        s.push(&format!(
            "SELECT {COLUMNS} FROM namespaces {which} UNION ALL \
             SELECT CAST({own_number} AS SMALLINT), {own}, '{{}}', 0, COALESCE((SELECT created_at FROM store), 0) \
             WHERE NOT EXISTS (SELECT 1 FROM namespaces WHERE number = {own_number})",
            own_number = Namespace::OWN.0
        ));
        let mut rows: Vec<NamespaceRow> =
            self.urgent.read(s).await?.iter().map(NamespaceRow::read).collect::<Result<_, Error>>()?;
        rows.sort_by(|a, b| (&a.name, a.number).cmp(&(&b.name, b.number)));
        self.keep_senders(&rows);
        Ok(rows)
    }

    /// A namespace as a sender, also one that was removed; as it was when this node last read the namespaces.
    pub async fn sender(&self, namespace: Namespace) -> Result<Arc<Sender>, Error> {
        let known = || self.senders.read().unwrap_or_else(PoisonError::into_inner).get(&namespace).cloned();
        if let Some(sender) = known() {
            return Ok(sender);
        }
        self.namespaces_ever().await?;
        known().ok_or_else(|| Error::Corrupt(format!("there is no namespace of the number {}", namespace.0)))
    }

    fn keep_senders(&self, rows: &[NamespaceRow]) {
        let mut senders = self.senders.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let now = Sender::new(&row.name, &row.terms.networks);
            if senders.get(&row.number).is_none_or(|sender| **sender != now) {
                senders.insert(row.number, Arc::new(now));
            }
        }
    }

    /// Writes a namespace, new or in place of the one of this name. Other nodes are notified.
    ///
    /// With the first one of another name nodes of older releases cannot enter the store any more: they would take its timers
    /// for the store's own.
    pub async fn put_namespace(&self, name: &str, terms: &Terms) -> Result<NamespaceWritten, Error> {
        let older = self.nodes_without_namespaces().await?;
        let mut tx = self.pool.begin().await?;
        // Changes take turns, and each sees what the one before has done.
        let mut s = Statement::new(self.dialect(), "lock_store");
        s.push(&format!("SELECT 1 FROM store {}", self.dialect().lock("FOR UPDATE")));
        tx.fetch(s).await?;
        let mut s = Statement::new(self.dialect(), "namespace");
        let named = s.text(name);
        s.push(&format!("SELECT {COLUMNS} FROM namespaces WHERE name = {named} AND removed_at IS NULL"));
        let before = tx.fetch(s).await?.first().map(NamespaceRow::read).transpose()?;
        if let Some(same) = before.as_ref().filter(|row| row.terms == *terms) {
            return Ok(NamespaceWritten::Done(same.clone(), false));
        }
        let is_own = name == self.own_name();
        if before.is_none() && !is_own && !older.is_empty() {
            return Ok(NamespaceWritten::OlderNodes(older));
        }
        let mut s = Statement::new(self.dialect(), "put_namespace");
        let now = s.now(self.bound_now());
        let (named, terms) = (s.text(name), s.text(&serde_json::to_string(terms).unwrap_or_default()));
        match (&before, is_own) {
            (Some(row), _) => s.push(&format!(
                "UPDATE namespaces SET terms = {terms}, version = version + 1, changed_at = {now} \
                 WHERE number = {} RETURNING {COLUMNS}",
                row.number.0
            )),
            (None, true) => s.push(&format!(
                "INSERT INTO namespaces (number, name, terms, version, created_at, changed_at) \
                 SELECT 0, {named}, {terms}, 1, created_at, {now} FROM store RETURNING {COLUMNS}"
            )),
            (None, false) => s.push(&format!(
                "INSERT INTO namespaces (number, name, terms, version, created_at, changed_at) \
                 SELECT COALESCE(max(number), 0) + 1, {named}, {terms}, 1, {now}, {now} FROM namespaces \
                 HAVING COALESCE(max(number), 0) < {last} \
                   AND COALESCE(sum(CASE WHEN removed_at IS NULL AND number > 0 THEN 1 ELSE 0 END), 0) < {MAX_NAMESPACES} - 1 \
                 RETURNING {COLUMNS}",
                last = i16::MAX
            )),
        };
        let Some(row) = tx.fetch(s).await?.first().map(NamespaceRow::read).transpose()? else {
            return Ok(NamespaceWritten::Full);
        };
        if !is_own {
            self.keep_older_out(&mut tx).await?;
        }
        let is_new = before.is_none() && !is_own;
        let (was, became) = (before.map(|row| row.audited()), Some(row.audited()));
        self.audit(&mut tx, Deed { action: "namespace.put", object: name, was, became }).await?;
        self.tell_changed(&mut tx, Copied::Namespaces).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(NamespaceWritten::Done(row, is_new))
    }

    /// From the commit on, nodes of releases that know neither namespaces nor sealed secrets of timers cannot enter the store.
    async fn keep_older_out(&self, tx: &mut Tx) -> Result<(), Error> {
        const FIRST: i16 = mainspring_migrations::WITH_NAMESPACES as i16;
        let mut s = Statement::new(self.dialect(), "bears");
        s.push(&format!("UPDATE store SET bears = {FIRST} WHERE bears < {FIRST}"));
        tx.execute(s).await?;
        // Nodes of older releases that were silent: if one of them wakes, it finds itself superseded.
        let mut s = Statement::new(self.dialect(), "supersede_older");
        s.push(&format!("DELETE FROM nodes WHERE COALESCE(release, 0) < {FIRST}"));
        tx.execute(s).await.map(drop)
    }

    /// The same by itself, unless nodes of such releases are at work: returns whether none can be there from now on.
    pub async fn without_older(&self) -> Result<bool, Error> {
        let older = self.nodes_without_namespaces().await?;
        if !older.is_empty() {
            return Ok(false);
        }
        let mut tx = self.pool.begin().await?;
        self.keep_older_out(&mut tx).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(true)
    }

    /// Keeps these namespaces from being removed until the end of the transaction. An error if one of them is.
    pub(super) async fn hold_namespaces(
        &self,
        tx: &mut Tx,
        which: &BTreeSet<Namespace>,
    ) -> Result<(), Error> {
        self.keep_namespaces(tx, which).await?;
        self.check_namespaces(tx, which).await
    }

    /// Keeps these namespaces from being removed until the end of the transaction. Whether they are there is for its next
    /// statement to see, which comes after the lock.
    pub(super) async fn keep_namespaces(
        &self,
        tx: &mut Tx,
        which: &BTreeSet<Namespace>,
    ) -> Result<(), Error> {
        match others(which).is_empty() {
            true => Ok(()),
            false => self.lock_removals(tx, SHARE_REMOVALS).await,
        }
    }

    async fn lock_removals(&self, tx: &mut Tx, lock: &str) -> Result<(), Error> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "lock_removals");
        s.push(lock);
        tx.execute(s).await.map(drop)
    }

    /// An error if one of these was removed: a statement of its own, after the lock, so that it sees the removal that the lock
    /// waited for.
    pub(super) async fn check_namespaces(
        &self,
        tx: &mut Tx,
        which: &BTreeSet<Namespace>,
    ) -> Result<(), Error> {
        let others = others(which);
        if others.is_empty() {
            return Ok(());
        }
        let count = others.len() as i64;
        let mut s = Statement::new(self.dialect(), "check_namespaces");
        let batch = s.batch("b", vec![("b_number", Column::Int(others))]);
        s.push(&format!("WITH {batch} SELECT {THOSE_THERE} FROM b"));
        match tx.fetch(s).await?.first().map_or(Ok(0), |row| row.get::<i64>(0))? == count {
            true => Ok(()),
            false => Err(Error::NoNamespace),
        }
    }

    /// Keeps the namespace of this view from being removed until the end of the transaction. First of all it locks, so that a
    /// removal, which locks all namespaces and then what is in this one, waits and does not deadlock.
    pub(super) async fn hold_here(&self, tx: &mut Tx) -> Result<(), Error> {
        self.hold_namespaces(tx, &BTreeSet::from([self.namespace()])).await
    }

    /// Removes a namespace that has no live timer, no schedule, no running operation and no key. What else it has goes with it;
    /// what is kept of its ended timers stays until its retention is over, and nobody sees it. Other nodes are notified.
    pub async fn remove_namespace(&self, name: &str) -> Result<NamespaceRemoved, Error> {
        if name == self.own_name() {
            return Ok(NamespaceRemoved::Own);
        }
        for _ in 0..3 {
            match Box::pin(self.remove_namespace_once(name)).await {
                Err(why) if why.is_deadlock() => {}
                other => return other,
            }
        }
        Err(Error::Busy)
    }

    async fn remove_namespace_once(&self, name: &str) -> Result<NamespaceRemoved, Error> {
        let mut tx = self.pool.begin().await?;
        // Changes of subscriptions lock their set first.
        self.lock_set(&mut tx).await?;
        // Whoever registers for one holds them until the commit.
        self.lock_removals(&mut tx, LOCK_REMOVALS).await?;
        let mut s = Statement::new(self.dialect(), "remove_namespace");
        let (now, named) = (s.now(self.bound_now()), s.text(name));
        s.push(&format!(
            "UPDATE namespaces SET removed_at = {now}, changed_at = {now} WHERE name = {named} AND removed_at IS NULL \
             RETURNING {COLUMNS}"
        ));
        let Some(before) = tx.fetch(s).await?.first().map(NamespaceRow::read).transpose()? else {
            return Ok(NamespaceRemoved::NoSuch);
        };
        let number = before.number.0;
        for (what, condition) in [
            ("live timers", format!("timers WHERE namespace IS NOT NULL AND namespace = {number}")),
            ("schedules", format!("schedules WHERE namespace = {number}")),
            ("running operations", format!("operations WHERE namespace = {number} AND state = 0")),
            ("keys", format!("api_keys WHERE namespace = {number}")),
        ] {
            let mut s = Statement::new(self.dialect(), "namespace_uses");
            s.push(&format!(
                "SELECT CAST(count(*) AS BIGINT) FROM (SELECT 1 FROM {condition} LIMIT 100000) x"
            ));
            let count: i64 = tx.fetch(s).await?.first().map_or(Ok(0), |row| row.get(0))?;
            if count > 0 {
                return Ok(NamespaceRemoved::InUse(format!("{count} {what}")));
            }
        }
        for table in ["destinations", "queues", "templates", "operations"] {
            let mut s = Statement::new(self.dialect(), "remove_of_namespace");
            s.push(&format!("DELETE FROM {table} WHERE namespace = {number}"));
            tx.execute(s).await?;
        }
        let mut s = Statement::new(self.dialect(), "remove_of_namespace");
        let now = s.now(self.bound_now());
        s.push(&format!(
            "UPDATE subscriptions SET removed_at = {now}, changed_at = {now} \
             WHERE namespace = {number} AND removed_at IS NULL"
        ));
        tx.execute(s).await?;
        self.raise_set(&mut tx).await?;
        let was = Some(before.audited());
        self.audit(&mut tx, Deed { action: "namespace.remove", object: name, was, became: None }).await?;
        for copied in [Copied::Namespaces, Copied::Destinations, Copied::Subscriptions] {
            self.tell_changed(&mut tx, copied).await?;
        }
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(NamespaceRemoved::Done)
    }
}

//! Subscriptions, and the set of them that this node writes events for.
//!
//! Who subscribes is told of everything that becomes true from then on, by whichever node. So a subscription is not
//! acknowledged before every live node writes events for it ([`ColdStore::behind`]), and:
//!
//! 1. A node knows the set, and its version, from a read that came after a heartbeat of its own was committed. Within one
//!    lease of that heartbeat the others count the node as alive and wait for it, so until then it may use what it knows.
//! 2. Beyond that (no heartbeat comes through, or none has been sent) each transaction reads the version itself, under a
//!    lock that a change of the set waits for.
//! 3. So does a node that leaves, before it is no longer counted ([`ColdStore::doubt_subscriptions`]): it still writes.
//! 4. A node tells which version it works with when no transaction that used the one before is under way
//!    ([`ColdStore::take_subscriptions`]), and only if it knows everything that is asked for: one of an earlier version may
//!    not, and while it lives no change of the set is acknowledged.
//!
//! Without subscriptions this costs a node nothing: the version comes with the heartbeat.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::audit::Deed;
use super::copies::Copied;
use super::sql::{Row, Statement, Tx};
use super::{ColdStore, Error, Identity};
use crate::clock::Monotonic;
use crate::model::namespace::Namespace;
use crate::model::subscription::{Asked, Lifecycle, Subscription};
use crate::model::time::UnixMs;

/// The most subscriptions of a store: each event is compared with every one.
pub const MAX_SUBSCRIPTIONS: i64 = 100;

/// And of all other namespaces together: each costs every node a line of its own.
pub const MOST_IN_ALL: i64 = 1000;

/// The pause between two looks whether transactions that use the former set are under way.
const IN_USE_PAUSE: Duration = Duration::from_millis(2);

/// A subscription as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// Its number, which no other has in the store.
    pub id: i64,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// Where its events go.
    pub destination: String,
    /// What it asks for, as JSON ([`Asked`]).
    pub settings: String,
    /// Rises with every change.
    pub version: i32,
    /// When it was made.
    pub created_at: UnixMs,
    /// When it was last changed.
    pub changed_at: UnixMs,
}

const COLUMNS: &str = "id, namespace, name, destination, settings, version, created_at, changed_at";

impl SubscriptionRow {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get(0)?,
            namespace: Namespace(row.get(1)?),
            name: row.get(2)?,
            destination: row.get(3)?,
            settings: row.get(4)?,
            version: row.get(5)?,
            created_at: UnixMs::new(row.get(6)?),
            changed_at: UnixMs::new(row.get(7)?),
        })
    }

    /// As the audit has it.
    fn audited(&self) -> Value {
        let settings: Value = serde_json::from_str(&self.settings).unwrap_or_default();
        json!({"destination": self.destination, "settings": settings, "version": self.version})
    }

    fn compiled(self) -> Subscription {
        let asked: Option<Asked> = serde_json::from_str(&self.settings).ok();
        Subscription::new(self.id, self.namespace, self.name, self.destination, asked.as_ref())
    }
}

/// The outcome of writing a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subscribed {
    /// It is so now; `true` if it is new. The number is the version of the set.
    Done(SubscriptionRow, bool, i64),
    /// There is no such destination.
    NoDestination,
    /// The store has as many as it takes ([`MAX_SUBSCRIPTIONS`]).
    Full,
}

/// The subscriptions of one version of the set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionSet {
    /// The version; 0 before the first change.
    pub version: i64,
    /// The subscriptions.
    pub all: Vec<Subscription>,
}

impl SubscriptionSet {
    /// Those of this namespace.
    pub fn of(&self, namespace: Namespace) -> &[Subscription] {
        let from = self.all.partition_point(|one| one.namespace < namespace);
        let until = self.all.partition_point(|one| one.namespace <= namespace);
        &self.all[from..until]
    }

    /// Whether somebody asks for this kind.
    pub fn asks_for(&self, kind: Lifecycle) -> bool {
        self.all.iter().any(|one| one.asks_for(kind))
    }

    /// The names of those that ask for what this version does not know.
    fn unknown(&self) -> Vec<&str> {
        self.all.iter().filter(|one| !one.is_whole()).map(|one| one.name.as_str()).collect()
    }
}

/// The set that this node writes events for.
#[derive(Debug, Default)]
pub(super) struct KnownSet {
    known: Mutex<Known>,
    /// The set has changed, or may have.
    pub changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    set: Arc<SubscriptionSet>,
    /// Until then it may be used without a look.
    until: Option<Monotonic>,
}

impl KnownSet {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // A panic while the lock is held leaves plain data, which stays usable.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set, and whether it may be used without a look.
    fn get(&self) -> (Arc<SubscriptionSet>, bool) {
        let known = self.lock();
        (Arc::clone(&known.set), known.until.is_some_and(|until| Monotonic::now() < until))
    }

    fn put(&self, set: SubscriptionSet) -> Arc<SubscriptionSet> {
        let mut known = self.lock();
        if known.set.version != set.version {
            known.set = Arc::new(set);
        }
        Arc::clone(&known.set)
    }

    /// Notes the version that was read after a heartbeat: what is known of it may be used until then.
    pub fn confirm(&self, version: i64, until: Monotonic) {
        let mut known = self.lock();
        if known.set.version == version {
            known.until = known.until.max(Some(until));
        } else {
            self.changed.notify_one();
        }
    }

    /// From now on the set is not used without a look. Returns what those hold that may have begun to use it so.
    fn doubt(&self) -> Arc<SubscriptionSet> {
        let mut known = self.lock();
        known.until = None;
        let same = Arc::new(SubscriptionSet::clone(&known.set));
        std::mem::replace(&mut known.set, same)
    }
}

impl ColdStore {
    /// The set that this transaction writes events for. It must be kept until the transaction has ended.
    pub(super) async fn listeners(&self, tx: &mut Tx) -> Result<Arc<SubscriptionSet>, Error> {
        let (set, is_confirmed) = self.known_set.get();
        if is_confirmed {
            return Ok(set);
        }
        let mut s = Statement::new(self.dialect(), "subscription_version");
        // A change of the set waits for this transaction.
        let lock = self.dialect().lock("FOR SHARE");
        s.push(&format!("SELECT version FROM subscription_set {lock}"));
        let version = version_of(&tx.fetch(s).await?)?;
        if version == set.version {
            return Ok(set);
        }
        let all = tx.fetch(self.subscriptions_statement()).await?;
        // Known to this transaction alone: which ones use what the loop has put in force is told by that alone.
        Ok(Arc::new(set_of(version, &all)?))
    }

    /// The set, if it is known without a look. It must be kept until the transaction that uses it has ended. A node that stands
    /// still before it sends a statement, for longer than others wait for it, cannot be helped by that: the statement asks whether
    /// the set is [`still`](Self::is_still) the same.
    pub(super) fn confirmed_set(&self) -> Option<Arc<SubscriptionSet>> {
        let (set, is_confirmed) = self.known_set.get();
        is_confirmed.then_some(set)
    }

    /// The set, if it is known without a look that nobody subscribes to anything ([`ColdStore::confirmed_set`]).
    pub(super) fn nobody_subscribes(&self) -> Option<Arc<SubscriptionSet>> {
        self.confirmed_set().filter(|set| set.all.is_empty())
    }

    /// The condition that the set is of this version when the statement begins.
    pub(super) fn is_still(s: &mut Statement, set: &SubscriptionSet) -> String {
        format!("(SELECT version FROM subscription_set) = {}", s.int(set.version))
    }

    /// The subscriptions as this node writes events for them.
    pub fn subscription_set(&self) -> Arc<SubscriptionSet> {
        self.known_set.get().0
    }

    /// Completes when the subscriptions have changed, or may have.
    pub async fn subscriptions_changed(&self) {
        self.known_set.changed.notified().await;
    }

    /// Lets [`ColdStore::subscriptions_changed`] complete.
    pub fn look_at_subscriptions(&self) {
        self.known_set.changed.notify_one();
    }

    /// Each transaction reads the set's version itself from now on, until the next heartbeat. Returns when none is under way
    /// that does not.
    pub(super) async fn doubt_subscriptions(&self) {
        if self.is_shared() {
            self.until_unused(&self.known_set.doubt()).await;
        }
    }

    /// Returns when no transaction uses this set, but for the reference given.
    async fn until_unused(&self, set: &Arc<SubscriptionSet>) {
        while Arc::strong_count(set) > 1 {
            self.clock.sleep(IN_USE_PAUSE).await;
        }
    }

    fn subscriptions_statement(&self) -> Statement {
        let mut s = Statement::new(self.dialect(), "subscriptions");
        s.push(&format!(
            "SELECT {COLUMNS} FROM subscriptions WHERE removed_at IS NULL ORDER BY namespace, name"
        ));
        s
    }

    /// The subscriptions of the namespace, by name.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionRow>, Error> {
        let rows = self.pool.read(self.subscriptions_statement()).await?;
        let rows = rows.iter().map(SubscriptionRow::read).collect::<Result<Vec<_>, Error>>()?;
        Ok(rows.into_iter().filter(|row| row.namespace == self.namespace()).collect())
    }

    /// Reads the set, writes events for it from now on, and tells the others so, once no transaction that used the one
    /// before is under way. Of a set that this version does not know in whole it tells nothing: it does not write all of its
    /// events. Returns the set's version.
    pub async fn take_subscriptions(&self, me: &Identity) -> Result<i64, Error> {
        let mut tx = self.urgent.begin().await?;
        let mut s = Statement::new(self.dialect(), "subscription_version");
        // The subscriptions are read as of this version: a change waits.
        let lock = self.dialect().lock("FOR SHARE");
        s.push(&format!("SELECT version FROM subscription_set {lock}"));
        let version = version_of(&tx.fetch(s).await?)?;
        let all = tx.fetch(self.subscriptions_statement()).await?;
        let set = set_of(version, &all)?;
        tx.commit().await?;
        // Only now: after a failure the next call finds that it has changed, and waits for those that use it.
        let before = self.subscription_set();
        let now = self.known_set.put(set);
        if !self.is_shared() {
            // Nobody else changes it.
            self.known_set.lock().until = Some(Monotonic::now().plus(Duration::MAX));
        }
        if before.version != now.version {
            self.until_unused(&before).await;
        }
        let unknown = now.unknown();
        if !unknown.is_empty() {
            tracing::error!(
                subscriptions = unknown.join(", "),
                "these ask for what this version does not know; this node writes only those of their events that it \
                 knows, and who subscribes is answered `not_taken` while it lives"
            );
        } else if self.is_shared() {
            let mut s = Statement::new(self.dialect(), "subscription_taken");
            let (incarnation, version) = (s.text(&me.incarnation), s.int(version));
            s.push(&format!(
                "INSERT INTO subscription_nodes (incarnation, version) VALUES ({incarnation}, {version}) \
                 ON CONFLICT (incarnation) DO UPDATE SET version = excluded.version"
            ));
            self.urgent.write(s).await?;
        }
        Ok(version)
    }

    /// The names of the live nodes that do not yet work with this version of the set. A node is alive if its last
    /// heartbeat came within `within_ms`.
    pub async fn behind(&self, version: i64, within_ms: i64) -> Result<BTreeSet<String>, Error> {
        if !self.is_shared() {
            return Ok(BTreeSet::new());
        }
        let mut s = Statement::new(self.dialect(), "subscription_behind");
        let now = s.now(self.bound_now());
        let (version, within) = (s.int(version), s.int(within_ms));
        s.push(&format!(
            "SELECT name FROM nodes LEFT JOIN subscription_nodes t ON t.incarnation = nodes.incarnation \
             WHERE beat_at > {now} - {within} AND COALESCE(t.version, -1) < {version}"
        ));
        self.pool.read(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Writes a subscription, new or in place of the one of this name. Other nodes are notified.
    pub async fn put_subscription(
        &self,
        name: &str,
        destination: &str,
        settings: &str,
    ) -> Result<Subscribed, Error> {
        let mut tx = self.pool.begin().await?;
        // First, so that two changes of the set take turns, and neither waits with the other's rows locked.
        let version = self.lock_set(&mut tx).await?;
        self.hold_here(&mut tx).await?;
        if let Some(same) = self.same_subscription(&mut tx, name, destination, settings).await? {
            return Ok(Subscribed::Done(same, false, version));
        }
        let version = self.raise_set(&mut tx).await?;
        let mut s = Statement::new(self.dialect(), "subscription_destination");
        let here = self.here(&mut s);
        let (to, lock) = (s.text(destination), self.dialect().lock("FOR KEY SHARE"));
        s.push(&format!("SELECT 1 FROM destinations WHERE namespace = {here} AND name = {to} {lock}"));
        if tx.fetch(s).await?.is_empty() {
            return Ok(Subscribed::NoDestination);
        }
        let before = self.live_subscription(&mut tx, name).await?;
        let mut s = Statement::new(self.dialect(), "put_subscription");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (named, to, asked) = (s.text(name), s.text(destination), s.text(settings));
        s.push(&format!(
            "UPDATE subscriptions SET destination = {to}, settings = {asked}, version = version + 1, \
             changed_at = {now} WHERE namespace = {here} AND name = {named} AND removed_at IS NULL \
             RETURNING {COLUMNS}"
        ));
        let mut rows = tx.fetch(s).await?;
        let is_new = rows.is_empty();
        if is_new {
            let mut s = Statement::new(self.dialect(), "add_subscription");
            let here = self.here(&mut s);
            let now = s.now(self.bound_now());
            let (named, to, asked) = (s.text(name), s.text(destination), s.text(settings));
            let most = self.most_here(MAX_SUBSCRIPTIONS);
            s.push(&format!(
                "INSERT INTO subscriptions (namespace, name, destination, settings, version, created_at, changed_at) \
                 SELECT {here}, {named}, {to}, {asked}, 1, {now}, {now} \
                 WHERE (SELECT count(*) FROM subscriptions WHERE namespace = {here} AND removed_at IS NULL) < {most} \
                 AND ({here} = 0 OR (SELECT count(*) FROM subscriptions WHERE namespace <> 0 AND removed_at IS NULL) < {MOST_IN_ALL}) \
                 RETURNING {COLUMNS}"
            ));
            rows = tx.fetch(s).await?;
        }
        let Some(row) = rows.first().map(SubscriptionRow::read).transpose()? else {
            return Ok(Subscribed::Full);
        };
        let (was, became) = (before.map(|row| row.audited()), Some(row.audited()));
        self.audit(&mut tx, Deed { action: "subscription.put", object: name, was, became }).await?;
        self.tell_changed(&mut tx, Copied::Subscriptions).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(Subscribed::Done(row, is_new, version))
    }

    /// Removes a subscription; `None` if there is none of this name, otherwise the version of the set. Its events that are
    /// not sent yet go later ([`ColdStore::clear_removed`]). Other nodes are notified.
    pub async fn remove_subscription(&self, name: &str) -> Result<Option<i64>, Error> {
        let mut tx = self.pool.begin().await?;
        let version = self.raise_set(&mut tx).await?;
        let (before, object) = (self.live_subscription(&mut tx, name).await?, name);
        let mut s = Statement::new(self.dialect(), "remove_subscription");
        let here = self.here(&mut s);
        let (now, name) = (s.now(self.bound_now()), s.text(name));
        s.push(&format!(
            "UPDATE subscriptions SET removed_at = {now} WHERE namespace = {here} AND name = {name} \
             AND removed_at IS NULL RETURNING id"
        ));
        if tx.fetch(s).await?.is_empty() {
            return Ok(None);
        }
        let was = before.map(|row| row.audited());
        self.audit(&mut tx, Deed { action: "subscription.remove", object, was, became: None }).await?;
        self.tell_changed(&mut tx, Copied::Subscriptions).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(Some(version))
    }

    /// Locks the set; returns its version.
    pub(super) async fn lock_set(&self, tx: &mut Tx) -> Result<i64, Error> {
        let mut s = Statement::new(self.dialect(), "lock_subscriptions");
        let lock = self.dialect().lock("FOR UPDATE");
        s.push(&format!("SELECT version FROM subscription_set {lock}"));
        version_of(&tx.fetch(s).await?)
    }

    /// Raises the version of the set, past the store's time: a store that was restored gives none again.
    pub(super) async fn raise_set(&self, tx: &mut Tx) -> Result<i64, Error> {
        let mut s = Statement::new(self.dialect(), "raise_subscriptions");
        let now = s.now(self.bound_now());
        s.push(&format!(
            "UPDATE subscription_set SET version = CASE WHEN version >= {now} THEN version + 1 ELSE {now} END \
             RETURNING version"
        ));
        version_of(&tx.fetch(s).await?)
    }

    async fn same_subscription(
        &self,
        tx: &mut Tx,
        name: &str,
        destination: &str,
        settings: &str,
    ) -> Result<Option<SubscriptionRow>, Error> {
        let live = self.live_subscription(tx, name).await?;
        Ok(live.filter(|row| row.destination == destination && row.settings == settings))
    }

    /// The subscription of this name that was not removed.
    async fn live_subscription(&self, tx: &mut Tx, name: &str) -> Result<Option<SubscriptionRow>, Error> {
        let rows = tx.fetch(self.subscriptions_statement()).await?;
        let rows = rows.iter().map(SubscriptionRow::read).collect::<Result<Vec<_>, Error>>()?;
        Ok(rows.into_iter().find(|row| row.namespace == self.namespace() && row.name == name))
    }
}

fn version_of(rows: &[Row]) -> Result<i64, Error> {
    match rows.first() {
        Some(row) => row.get(0),
        None => Err(Error::Corrupt("the row of the subscriptions' version is missing".into())),
    }
}

fn set_of(version: i64, rows: &[Row]) -> Result<SubscriptionSet, Error> {
    let rows = rows.iter().map(SubscriptionRow::read).collect::<Result<Vec<_>, Error>>()?;
    Ok(SubscriptionSet { version, all: rows.into_iter().map(SubscriptionRow::compiled).collect() })
}

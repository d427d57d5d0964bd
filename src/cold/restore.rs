//! A restored store: it went back in time, and what fell due since may have fired already.
//!
//! Each heartbeat raises `store.incarnation`. What the nodes, and a *witness* outside the database, have seen of it only
//! rises: Redis, or the lock file beside SQLite. A store that shows less than was seen was restored. Then what fell due
//! from the last heartbeat in the backup until the restore was found is *held*: no claim, no scan of the loader and no
//! sweep takes it, until an operator has accepted it (`mainspring restore accept`), all or what is not older than a
//! moment. The rest expires. What was registered after the restore is not concerned.
//!
//! The claim itself compares the incarnation and the held range, so it does not matter which node knows of the restore.

use std::os::unix::fs::FileExt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde_json::json;

use super::audit::Deed;
use super::sql::{Row, Statement};
use super::{ColdStore, Error};
use crate::clock::Monotonic;
use crate::model::time::UnixMs;

/// The condition that a row of `timers` is not held, and not given up by an operator either. Its sub-selects are run
/// once a statement.
pub(super) const MAY_FIRE: &str = "(due_at < COALESCE((SELECT held_from FROM store), 9223372036854775807) \
     OR due_at > (SELECT held_until FROM store) OR created_at > (SELECT held_until FROM store) \
     OR due_at >= (SELECT accepted_from FROM store))";

/// The condition that an operator has accepted what is held, or a part of it.
pub(super) const IS_ACCEPTED: &str = "(SELECT accepted_from FROM store) IS NOT NULL";

/// So much further than anybody has seen is the incarnation of a store that was found restored: other nodes may have
/// seen a little more than the one that found it.
const BEYOND: i64 = 1000;

/// What is held since a store was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The store is as it was then.
    pub from: UnixMs,
    /// The restore was found then.
    pub until: UnixMs,
    /// What is due from here on may fire, by an operator's word.
    pub accepted_from: Option<UnixMs>,
}

impl Held {
    /// Whether an operator has not decided yet.
    pub const fn is_open(&self) -> bool {
        self.accepted_from.is_none()
    }

    /// Whether a timer is held: it was due in this time, and registered before its end.
    pub fn holds(&self, due_at: UnixMs, created_at: UnixMs) -> bool {
        self.is_open() && (self.from..=self.until).contains(&due_at) && created_at <= self.until
    }

    /// Reads `held_from`, `held_until` and `accepted_from` at this position.
    fn read(row: &Row, at: usize) -> Result<Option<Self>, Error> {
        let (from, until): (Option<i64>, Option<i64>) = (row.get(at)?, row.get(at + 1)?);
        let accepted_from = row.get::<Option<i64>>(at + 2)?.map(UnixMs::new);
        Ok(from.zip(until).map(|(from, until)| Self {
            from: UnixMs::new(from),
            until: UnixMs::new(until),
            accepted_from,
        }))
    }
}

impl ColdStore {
    /// The highest incarnation of the store that this node knows of.
    pub fn seen(&self) -> i64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Notes that this incarnation was seen, here or by a witness. On SQLite the lock file is the witness.
    pub fn see(&self, incarnation: i64) {
        if self.seen.fetch_max(incarnation, Ordering::AcqRel) < incarnation
            && let Some(lock) = &self.lock
        {
            // Lost at worst in a crash of the machine: then the store has seen more than the file, which does no harm.
            let _ = lock.write_at(&incarnation.to_be_bytes(), 0);
        }
    }

    /// What is held since the store was restored, as of the last heartbeat.
    pub fn held(&self) -> Option<Held> {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The statement of a heartbeat that raises the incarnation, unless the store shows less than was seen.
    pub(super) fn beat(&self) -> Statement {
        let mut s = Statement::new(self.dialect(), "heartbeat_store");
        let now = s.now(self.bound_now());
        let seen = s.int(self.seen());
        s.push(&format!(
            "UPDATE store SET incarnation = incarnation + 1, beat_at = {now} WHERE incarnation >= {seen} \
             RETURNING incarnation, held_from, held_until, accepted_from, (SELECT version FROM subscription_set)"
        ));
        s
    }

    /// Notes what [`ColdStore::beat`] has returned, once it is committed: what is known of the subscriptions may be used
    /// until `known_until`. Returns whether the store went back in time:
    /// then nothing was raised.
    pub(super) fn note_beat(&self, raised: &[Row], known_until: Option<Monotonic>) -> Result<bool, Error> {
        let Some(row) = raised.first() else { return Ok(true) };
        self.see(row.get(0)?);
        if let Some(until) = known_until.filter(|_| self.is_shared()) {
            self.known_set.confirm(row.get(4)?, until);
        }
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Held::read(row, 1)?;
        Ok(false)
    }

    /// Holds what fell due since the store was as it is, because it went back in time. Its shards are free, under epochs
    /// that were never given before, and their wheels are to be built anew. Does nothing if another node was first.
    pub async fn hold(&self) -> Result<(), Error> {
        let mut tx = self.urgent.begin().await?;
        let mut s = Statement::new(self.dialect(), "hold_look");
        let lock = self.dialect().lock("FOR UPDATE");
        s.push(&format!(
            "SELECT incarnation, beat_at, held_from, held_until, accepted_from FROM store {lock}"
        ));
        let rows = tx.fetch(s).await?;
        let Some(row) = rows.first() else {
            return Err(Error::Corrupt("the store's own row is missing".into()));
        };
        let (incarnation, beat_at): (i64, i64) = (row.get(0)?, row.get(1)?);
        let seen = self.seen();
        if incarnation >= seen {
            return tx.commit().await;
        }
        let before = Held::read(row, 2)?.filter(Held::is_open);
        let from = before.map_or(beat_at, |held| held.from.get().min(beat_at));
        let mut s = Statement::new(self.dialect(), "hold");
        let now = s.now(self.bound_now());
        let (from, beyond) = (s.int(from), s.int(seen + BEYOND));
        s.push(&format!(
            "UPDATE store SET incarnation = {beyond}, beat_at = {now}, held_from = {from}, held_until = {now}, \
             accepted_from = NULL"
        ));
        tx.execute(s).await?;
        // An epoch rises by one in a round, and each round raises the incarnation.
        let mut s = Statement::new(self.dialect(), "hold_shards");
        let lost = s.int(seen - incarnation + 1);
        s.push(&format!(
            "UPDATE shards SET epoch = epoch + {lost}, owner = NULL, lease_until = 0, watermark = 0, wheel = '', spared = -1"
        ));
        tx.execute(s).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        self.see(seen + BEYOND);
        Ok(())
    }

    /// What is held in the store, and how many timers these are; `None` if nothing waits for an operator.
    pub async fn held_now(&self) -> Result<Option<(Held, i64)>, Error> {
        let mut s = Statement::new(self.dialect(), "held");
        let held = "t.due_at >= held_from AND t.due_at <= held_until AND t.created_at <= held_until";
        // Those of the store's own namespace and of the others stand in an index each.
        s.push(&format!(
            "SELECT held_from, held_until, accepted_from, \
             (SELECT count(*) FROM timers t WHERE t.namespace IS NULL AND {held}) \
             + (SELECT count(*) FROM namespaces n CROSS JOIN timers t WHERE t.namespace = n.number \
               AND t.namespace IS NOT NULL AND {held}) FROM store"
        ));
        s.without_timeout();
        let rows = self.pool.read(s).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let count = row.get(3)?;
        Ok(Held::read(row, 0)?.filter(Held::is_open).map(|held| (held, count)))
    }

    /// Lets what is held fire if it is due at `from` or later; the rest expires. Returns whether something was held.
    pub async fn accept_held(&self, from: UnixMs) -> Result<bool, Error> {
        let accepted = from;
        let mut s = Statement::new(self.dialect(), "accept_held");
        let from = s.int(from.get());
        s.push(&format!(
            "UPDATE store SET accepted_from = {from} WHERE held_until IS NOT NULL AND accepted_from IS NULL RETURNING 1"
        ));
        let mut tx = self.pool.begin().await?;
        if tx.fetch(s).await?.is_empty() {
            return Ok(false);
        }
        let became = Some(json!({ "accepted_from": accepted }));
        self.audit(&mut tx, Deed { action: "restore.accept", object: "store", was: None, became }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(true)
    }
}

impl ColdStore {
    /// The lock file beside SQLite is the witness of one store, of this id from now on. Of another one, which was there before,
    /// it says nothing about this.
    pub(super) fn be_witness_of(&self, id: &str) {
        let Some(lock) = &self.lock else { return };
        let mut known = vec![0; id.len()];
        if lock.read_exact_at(&mut known, ID_AT).is_ok() && known != id.as_bytes() {
            self.seen.store(0, Ordering::Release);
            let _ = lock.write_at(&0_i64.to_be_bytes(), 0);
        }
        // If it cannot be written, the next start finds the former one again.
        let _ = lock.write_at(id.as_bytes(), ID_AT);
    }
}

/// Where the store's id stands in the lock file, behind the incarnation.
const ID_AT: u64 = 8;

/// The incarnation that the lock file beside SQLite is the witness of; 0 for a new one.
pub(super) fn witnessed_by(lock: &std::fs::File) -> i64 {
    let mut bytes = [0; 8];
    lock.read_exact_at(&mut bytes, 0).map_or(0, |()| i64::from_be_bytes(bytes))
}

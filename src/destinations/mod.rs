//! The destinations of the store as this node knows them.
//!
//! A node reads them at its start, when another node tells of a change (`NOTIFY`), and when their mark has changed
//! ([`ColdStore::watch_marks`]). Whoever sends looks a destination up here, at the attempt. Nothing is asked of the store
//! for it, but where the name is not known yet.

mod inline;
pub mod vault;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Monotonic;
use crate::cold::{
    ColdStore, Copied, DestinationEdit, DestinationRow, Error, Named, Removed, Reserved, Written,
};
use crate::model::destination::{Closed, Destination, Limits, Settings};
use crate::model::namespace::Namespace;
use crate::model::place::Place;
use crate::model::time::{Span, UnixMs};
use vault::{Locked, Vault};

/// All destinations, by their qualified names ([`Namespace::qualified`]).
pub type Known = HashMap<String, Arc<Destination>>;

/// The destinations.
pub struct Destinations {
    store: ColdStore,
    vault: Vault,
    sealing: inline::Sealing,
    known: RwLock<Arc<Known>>,
    /// Counts the changes of `known`.
    changed: watch::Sender<u64>,
    /// One reads at a time, so that an older answer does not replace a newer one.
    reading: tokio::sync::Mutex<()>,
    /// The next slot of each lane, where no other node shares the store, in microseconds of this process's clock.
    slots: Mutex<HashMap<i64, i64>>,
}

/// What a destination shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Where it is.
    pub place: Place,
    /// What it bears.
    pub limits: Limits,
}

/// Why a destination was not written.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It has secrets, and this node has no key to seal them.
    #[error(
        "secrets are kept encrypted, and this node has no key: set `server.secrets_key` (`openssl rand -base64 32`); \
         without one only destinations on this machine (loopback) may have secrets"
    )]
    NoKey {
        /// The word of its kind.
        kind: &'static str,
    },
    /// They could not be sealed.
    #[error("the secrets could not be sealed")]
    NotSealed,
    /// In the cold store.
    #[error(transparent)]
    Cold(#[from] Error),
}

/// Secrets in the store that this node cannot open.
#[derive(Debug, thiserror::Error)]
#[error(
    "`server.secrets_key`: the secrets of {count} destinations cannot be opened ({first}: {why}); give the key that they \
     were sealed under, beside a new one if it is being changed (docs/operations.md, \"Secrets\")"
)]
pub struct WrongKey {
    count: usize,
    first: String,
    why: Locked,
}

/// The name under which the secrets of a destination are sealed, so that no row can be given another one's.
fn sealed_as(row: &DestinationRow) -> Cow<'_, str> {
    row.namespace.qualified(&row.name)
}

impl Destinations {
    /// The destinations of this store, none read yet.
    pub fn new(store: ColdStore, vault: Vault) -> Self {
        Self {
            store,
            vault,
            sealing: inline::Sealing::default(),
            known: RwLock::default(),
            changed: watch::Sender::new(0),
            reading: tokio::sync::Mutex::default(),
            slots: Mutex::default(),
        }
    }

    /// Reads all destinations at the start, checks that their secrets can be opened, and seals those anew that the first
    /// key has not sealed.
    pub async fn open(&self) -> anyhow::Result<()> {
        let rows = self.store.destinations_of_all(None).await?;
        let locked: Vec<(&str, Locked)> = rows
            .iter()
            .filter_map(|row| {
                Some((row.name.as_str(), self.vault.open(&sealed_as(row), row.secrets.as_deref()).err()?))
            })
            .collect();
        // One that is damaged can be put anew only while nodes work.
        let other_key: Vec<_> = locked.iter().filter(|(_, why)| *why == Locked::OtherKey).collect();
        if let Some((first, why)) = other_key.first() {
            return Err(WrongKey { count: other_key.len(), first: (*first).to_owned(), why: *why }.into());
        }
        for row in rows.iter().filter(|row| !self.vault.is_current(row.secrets.as_deref())) {
            let Ok(secrets) = self.vault.open(&sealed_as(row), row.secrets.as_deref()) else { continue };
            let edit = DestinationEdit {
                name: row.name.clone(),
                kind: row.kind.clone(),
                settings: row.settings.clone(),
                secrets: self.vault.seal(&sealed_as(row), &secrets).map_err(|_| Refused::NotSealed)?,
                if_version: Some(row.version),
            };
            // If another node changes it meanwhile, that one seals it.
            self.store.within(row.namespace).put_destination(&edit).await?;
            tracing::info!(
                destination = row.name,
                "its secrets are sealed under the first of `server.secrets_key`"
            );
        }
        self.read().await?;
        Ok(())
    }

    /// Keeps them current. Runs until dropped.
    pub async fn run(self: Arc<Self>) {
        let this = &self;
        let read = |is_old| async move { if is_old { this.read().await } else { Ok(()) } };
        self.store.keep_current(Copied::Destinations, read).await;
    }

    /// Reads what has changed.
    pub async fn read(&self) -> Result<(), Error> {
        let _reading = self.reading.lock().await;
        let versions = self.store.destination_versions().await?;
        let known = self.known();
        let is_current = |(namespace, name): &Named, version: (i32, UnixMs)| {
            known.get(&*namespace.qualified(name)).is_some_and(|one| (one.version, one.created_at) == version)
        };
        let stale: Vec<Named> = versions
            .iter()
            .filter(|(named, version)| !is_current(named, **version))
            .map(|(named, _)| named.clone())
            .collect();
        let is_there = |one: &Arc<Destination>| versions.contains_key(&(one.namespace, one.name.clone()));
        let is_gone = !known.values().all(is_there);
        let mark = ColdStore::mark_of_destinations(&versions);
        if stale.is_empty() && !is_gone {
            self.store.note_copy(Copied::Destinations, mark);
            return Ok(());
        }
        let rows = match stale.as_slice() {
            [] => Vec::new(),
            some => self.store.destinations_of_all(Some(some)).await?,
        };
        let mut next: Known =
            known.iter().filter(|(_, one)| is_there(one)).map(|(n, d)| (n.clone(), Arc::clone(d))).collect();
        for row in rows {
            if let Err(why) = self.vault.open(&sealed_as(&row), row.secrets.as_deref()) {
                tracing::error!(
                    destination = row.name,
                    %why,
                    "its secrets cannot be opened with this node's `server.secrets_key`; this node sends nothing there"
                );
            }
            next.insert(sealed_as(&row).into_owned(), Arc::new(self.opened(&row)));
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        self.store.note_copy(Copied::Destinations, mark);
        self.store.set_longest_attempt(self.longest_attempt());
        self.changed.send_modify(|count| *count += 1);
        Ok(())
    }

    /// A stored destination, with its secrets.
    pub fn opened(&self, row: &DestinationRow) -> Destination {
        let place = match serde_json::from_str(&row.settings) {
            Ok(Settings { mut place, .. }) if place.kind() == row.kind && place.lacks().is_none() => {
                self.vault.open(&sealed_as(row), row.secrets.as_deref()).map_err(|_| Closed::Locked).map(
                    |secrets| {
                        place.put_secrets(secrets);
                        place
                    },
                )
            }
            _ => Err(Closed::Unknown),
        };
        let limits = Limits::of_settings(&row.settings).unwrap_or_default();
        let DestinationRow { paused, version, created_at, .. } = *row;
        Destination {
            namespace: row.namespace,
            name: row.name.clone(),
            kind: row.kind.clone(),
            place,
            limits,
            paused,
            version,
            created_at,
        }
    }

    /// The longest attempt that a destination allows.
    pub fn longest_attempt(&self) -> Duration {
        self.known().values().filter_map(|one| one.limits.timeout).max().map(Span::get).unwrap_or_default()
    }

    /// All destinations.
    pub fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells when they have changed.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A destination as it is known here.
    pub fn get(&self, namespace: Namespace, name: &str) -> Option<Arc<Destination>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&*namespace.qualified(name)).cloned()
    }

    /// The same; one that is not known here is looked up in the store.
    pub async fn find(&self, namespace: Namespace, name: &str) -> Result<Option<Arc<Destination>>, Error> {
        if let Some(known) = self.get(namespace, name) {
            return Ok(Some(known));
        }
        self.read().await?;
        Ok(self.get(namespace, name))
    }

    /// Writes a destination, new or in place of the one of this name; only if it has `if_version`, where that is given.
    /// It is in force on this node when this returns.
    pub async fn put(
        &self,
        namespace: Namespace,
        name: &str,
        wanted: Wanted,
        if_version: Option<i32>,
    ) -> Result<Written, Refused> {
        let store = self.store.within(namespace);
        if let Some(same) = self.as_wanted(&store, name, &wanted, if_version).await? {
            return Ok(Written::Done(same, false));
        }
        let Wanted { mut place, limits } = wanted;
        let (kind, secrets) = (place.kind(), place.take_secrets());
        if !secrets.is_empty() && !place.is_loopback() && !self.vault.has_key() {
            return Err(Refused::NoKey { kind });
        }
        let secrets =
            self.vault.seal(&namespace.qualified(name), &secrets).map_err(|_| Refused::NotSealed)?;
        let settings = serde_json::to_string(&Settings { limits, place }).unwrap_or_default();
        let edit =
            DestinationEdit { name: name.to_owned(), kind: kind.into(), settings, secrets, if_version };
        let written = store.put_destination(&edit).await?;
        self.read_after_write().await;
        Ok(written)
    }

    /// The destination as it is, if it is as wanted: a repeat changes nothing.
    async fn as_wanted(
        &self,
        store: &ColdStore,
        name: &str,
        wanted: &Wanted,
        if_version: Option<i32>,
    ) -> Result<Option<DestinationRow>, Error> {
        let row = store.destinations(Some(&[name.to_owned()])).await?.into_iter().next();
        Ok(row.filter(|row| {
            let Destination { place, limits, version, .. } = self.opened(row);
            limits == wanted.limits
                && if_version.is_none_or(|wanted| wanted == version)
                && place.is_ok_and(|place| place == wanted.place)
        }))
    }

    /// Pauses a destination, or resumes it; `None` if there is none of this name.
    pub async fn pause(
        &self,
        namespace: Namespace,
        name: &str,
        paused: bool,
    ) -> Result<Option<DestinationRow>, Error> {
        let row = self.store.within(namespace).pause_destination(name, paused).await?;
        self.read_after_write().await;
        Ok(row)
    }

    /// Removes a destination that no live timer uses.
    pub async fn remove(&self, namespace: Namespace, name: &str) -> Result<Removed, Error> {
        let removed = self.store.within(namespace).remove_destination(name).await?;
        self.read_after_write().await;
        Ok(removed)
    }

    /// What was written is in the store; that it cannot be read back now is no failure of the change.
    async fn read_after_write(&self) {
        if let Err(why) = self.read().await {
            tracing::debug!(%why, "destinations were written and could not be read back yet");
        }
    }

    /// Reserves time at destinations: `(lane, count, step in µs)`. The first of `count` attempts may start so many
    /// microseconds from now, none sooner than `ahead`.
    pub async fn reserve(&self, wanted: &[(i64, i64, i64)], ahead: Duration) -> Result<Vec<Reserved>, Error> {
        let ahead_us = i64::try_from(ahead.as_micros()).unwrap_or(i64::MAX);
        if self.store.is_shared() {
            return self.store.reserve_slots(wanted, ahead_us).await;
        }
        let now_us = Monotonic::now().as_us();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let reserve = |(lane, count, step): &(i64, i64, i64)| {
            let next = slots.entry(*lane).or_default();
            let start = (*next).max(now_us + ahead_us);
            *next = start + count * step;
            Reserved { lane: *lane, start_us: start - now_us }
        };
        Ok(wanted.iter().map(reserve).collect())
    }
}

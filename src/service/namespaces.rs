//! The namespaces, as this node knows them: by name for calls, with what each may use.
//!
//! A node reads them at its start, when another node tells of a change (`NOTIFY`), and when their mark has changed
//! ([`ColdStore::watch_marks`]). One that is not known yet is looked for in the store.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use super::density::{Density, Seconds};
use super::keys::Refusal;
use super::quotas::{Left, Over};
use crate::cold::{ColdStore, Copied, Error, NamespaceRow};
use crate::model::id::Uid;
use crate::model::namespace::{Namespace, Quotas};
use crate::model::networks::Networks;
use crate::model::spread::Spread;
use crate::model::time::UnixMs;

/// The pause before calls that can wait are tried again.
const AGAIN: Duration = Duration::from_millis(25);

/// The longest wait that a caller is told, in seconds: timers of a full second may be cancelled meanwhile.
const LONGEST_WAIT_S: u64 = 3600;

/// What a node knows of them.
#[derive(Default)]
struct Known {
    by_name: HashMap<String, Arc<NamespaceRow>>,
    by_number: HashMap<Namespace, Arc<NamespaceRow>>,
    /// In order.
    names: Arc<[String]>,
}

/// The namespaces of the store.
#[derive(Default)]
pub struct Namespaces {
    store: OnceLock<ColdStore>,
    known: RwLock<Arc<Known>>,
    /// One reads at a time, so that an older answer does not replace a newer one.
    reading: tokio::sync::Mutex<()>,
    left: Left,
    density: Density,
}

impl Namespaces {
    /// Reads the namespaces of the store at the start.
    pub async fn open(&self, store: &ColdStore) -> Result<(), Error> {
        let _ = self.store.set(store.clone());
        self.read().await
    }

    /// Keeps them current. Runs until dropped.
    pub async fn run(self: Arc<Self>) {
        let Some(store) = self.store.get().map(ColdStore::urgently) else { return };
        let (this, store) = (&self, &store);
        let read = |is_old| async move {
            if is_old {
                this.read().await?;
            }
            let known = this.known();
            let with_quota = known.by_number.values().filter(|row| row.terms.quotas.live_timers.is_some());
            this.left.count(store, &with_quota.map(|row| row.number).collect::<Vec<_>>()).await
        };
        store.keep_current(Copied::Namespaces, read).await;
    }

    /// Reads them.
    pub async fn read(&self) -> Result<(), Error> {
        let Some(store) = self.store.get() else { return Ok(()) };
        let _reading = self.reading.lock().await;
        let (rows, mark) = store.copy_of_namespaces().await?;
        let rows: Vec<Arc<NamespaceRow>> = rows.into_iter().map(Arc::new).collect();
        store.set_has_others(rows.len() > 1);
        let mut names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        names.sort_unstable();
        let names = names.into();
        let by_name = rows.iter().map(|row| (row.name.clone(), Arc::clone(row))).collect();
        let by_number = rows.into_iter().map(|row| (row.number, row)).collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(Known { by_name, by_number, names });
        store.note_copy(Copied::Namespaces, mark);
        Ok(())
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is asked of the namespace of this number, if it is known.
    fn of<T>(&self, number: Namespace, ask: impl FnOnce(&Arc<NamespaceRow>) -> T) -> Option<T> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).by_number.get(&number).map(ask)
    }

    /// The namespace of this number, if it is known.
    pub fn get(&self, number: Namespace) -> Option<Arc<NamespaceRow>> {
        self.of(number, Arc::clone)
    }

    /// The names of all that are known, in order.
    pub fn names(&self) -> Arc<[String]> {
        Arc::clone(&self.known().names)
    }

    /// The quotas of a namespace.
    pub fn quotas(&self, number: Namespace) -> Quotas {
        self.of(number, |row| row.terms.quotas.clone()).unwrap_or_default()
    }

    /// Where a namespace may send to, if not wherever the settings allow.
    pub fn networks(&self, number: Namespace) -> Option<Arc<Networks>> {
        let own = |row: &Arc<NamespaceRow>| {
            let networks = &row.terms.networks;
            (!networks.is_none()).then(|| Arc::new(networks.clone()))
        };
        self.of(number, own)?
    }

    /// Takes so many calls from a namespace's quota of calls a second.
    pub async fn charge(&self, number: Namespace, calls: usize) -> Result<(), Refusal> {
        let Some(per_second) = self.of(number, |row| row.terms.quotas.requests_per_second).flatten() else {
            return Ok(());
        };
        // In a box, as all that asks the store: every call would carry the room for it.
        Box::pin(self.charge_quota(number, per_second, calls)).await
    }

    async fn charge_quota(&self, number: Namespace, per_second: u32, calls: usize) -> Result<(), Refusal> {
        let (Some(store), Ok(calls)) = (self.store.get(), u32::try_from(calls)) else { return Ok(()) };
        match self.left.take(store, number, per_second, calls).await {
            // Without its store a call comes to nothing anyway.
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(Over::Wait(wait))) => {
                let seconds = u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1);
                let detail = format!(
                    "this namespace's quota `requests_per_second` is {per_second}, and these are used up"
                );
                Err(Refusal { retry_after: Some(seconds), ..Refusal::new("quota", detail) })
            }
            Ok(Err(Over::TooLarge)) => {
                let detail = format!(
                    "one call holds more timers than this namespace's quota `requests_per_second` ({per_second}) admits in \
                     a second; send smaller batches"
                );
                Err(Refusal::new("quota", detail))
            }
        }
    }

    /// The same for what can wait: takes them as they come.
    pub async fn charge_patiently(&self, number: Namespace, calls: usize) {
        let mut left = calls;
        while left > 0 {
            let most = self.of(number, |row| row.terms.quotas.requests_per_second).flatten();
            let Some(most) = most else { return };
            // Half of what is reserved at once: calls of its namespace that come one by one pass beside it.
            let some = left.min(usize::try_from(most / 40).unwrap_or(left).max(1));
            match self.charge(number, some).await {
                Ok(()) => left -= some,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Asks the quotas of a store's namespace whether new timers may be there, each due in its seconds. Answers in the order
    /// given. What does not become a new timer is given back ([`Namespaces::give_back`]).
    pub async fn admit(
        &self,
        store: &ColdStore,
        timers: &[Option<Seconds>],
    ) -> Result<Vec<Result<(), Refusal>>, Error> {
        let number = store.namespace();
        let quotas = self.quotas(number);
        let mut answers = self.admit_due(store, timers).await?;
        if let Some(most) = quotas.live_timers {
            let asked: Vec<usize> = (0..timers.len()).filter(|&i| answers[i].is_ok()).collect();
            let admitted = self.left.admit(number, most, asked.len());
            for &i in &asked[admitted..] {
                if let Some(seconds) = timers[i] {
                    self.density.give_back(number, seconds);
                }
                let detail = format!(
                    "this namespace's quota `live_timers` is {most}, and it has as many; end some, or wait until some have ended"
                );
                answers[i] = Err(Refusal { retry_after: Some(2), ..Refusal::new("quota", detail) });
            }
        }
        Ok(answers)
    }

    /// The same for timers that are there already, and are to be due in other seconds.
    async fn admit_due(
        &self,
        store: &ColdStore,
        timers: &[Option<Seconds>],
    ) -> Result<Vec<Result<(), Refusal>>, Error> {
        let Some(most) = self.quotas(store.namespace()).due_per_second else {
            return Ok(timers.iter().map(|_| Ok(())).collect());
        };
        let now = store.clock().now();
        let admitted = Box::pin(self.density.admit(store, most, timers)).await?;
        let answer = |(seconds, has_room): (&Option<Seconds>, bool)| match seconds {
            Some(seconds) if !has_room => Err(too_dense(most, *seconds, now)),
            _ => Ok(()),
        };
        Ok(timers.iter().zip(admitted).map(answer).collect())
    }

    /// The same for timers that are there, and are moved to be due then, or now: all of them, or none. Returns what is to be given back
    /// ([`Namespaces::give_back_due`]) if nothing comes of the move of each; one that is due in that second already may stay, and
    /// what is not live is answered by the change.
    pub async fn admit_moves(
        &self,
        store: &ColdStore,
        timers: &[Uid],
        due_at: Option<UnixMs>,
    ) -> Result<Result<Vec<Option<Seconds>>, Refusal>, Error> {
        if self.quotas(store.namespace()).due_per_second.is_none() {
            return Ok(Ok(vec![None; timers.len()]));
        }
        let (rows, now) = (Box::pin(store.find_many(timers)).await?, store.clock().now());
        let moved = |uid| {
            let row = rows.get(uid).filter(|row| !row.life.state.is_end())?;
            let to = match (due_at, &row.spread) {
                (None, _) => Seconds::of(now, None, now),
                // It may stay where it was chosen to be.
                (Some(at), Some(spread)) if spread.from == at => None,
                (Some(from), Some(spread)) => Seconds::of(from, Some(&Spread { from, ..*spread }), now),
                (Some(at), None) => Seconds::of(if row.minute { at.ceil_minute() } else { at }, None, now),
            };
            to.filter(|_| to != Seconds::of(row.life.due_at, None, now))
        };
        let seconds: Vec<Option<Seconds>> = timers.iter().map(moved).collect();
        let answers = self.admit_due(store, &seconds).await?;
        let Some(why) = answers.iter().find_map(|answer| answer.as_ref().err()).cloned() else {
            return Ok(Ok(seconds));
        };
        for (_, seconds) in answers.iter().zip(seconds).filter(|(answer, _)| answer.is_ok()) {
            self.give_back_due(store.namespace(), seconds);
        }
        Ok(Err(why))
    }

    /// Timers that were admitted, each due in its seconds, did not become new ones.
    pub fn give_back(&self, number: Namespace, timers: &[Option<Seconds>]) {
        self.left.give_back(number, timers.len());
        timers.iter().for_each(|seconds| self.give_back_due(number, *seconds));
    }

    /// A timer that was admitted to these seconds is not due in them after all.
    pub fn give_back_due(&self, number: Namespace, seconds: Option<Seconds>) {
        if let Some(seconds) = seconds {
            self.density.give_back(number, seconds);
        }
    }

    /// The namespace of this name.
    pub async fn find(&self, name: &str) -> Result<Option<Arc<NamespaceRow>>, Error> {
        if let Some(known) = self.known().by_name.get(name) {
            return Ok(Some(Arc::clone(known)));
        }
        Box::pin(self.read()).await?;
        Ok(self.known().by_name.get(name).cloned())
    }
}

/// A second has no room: there is some when it is over, or when timers of it have ended.
fn too_dense(most: u32, seconds: Seconds, now: UnixMs) -> Refusal {
    let detail = format!(
        "this namespace's quota `due_per_second` is {most}, and so many timers are due at {} already; choose another second, or \
         give a `spread`",
        seconds.begin()
    );
    let left_s = seconds.end().since(now).as_secs().clamp(1, LONGEST_WAIT_S);
    Refusal { retry_after: u32::try_from(left_s).ok(), ..Refusal::new("quota", detail) }
}

//! Promotion by whoever writes a timer: what is due within the window already goes into the wheels at once.
//!
//! The other half of the watermark's cure ([`crate::cold`], `window.rs`): a timer is committed first, and
//! its shard's watermark is read *afterwards*. For this node's own shards the watermark in memory will do,
//! which the loader raises before it scans, as long as the lease still holds when it is read; for others it
//! is read from SQL, once a batch.
//!
//! Nobody waits for this: callers were answered at the commit. A pointer that the wheels do not take is tried
//! again until it is due. One that does not fit is dropped; its timer is in SQL and the sweep finds it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::last_mile::LastMile;
use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, ShardRow};
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::ownership::Ownership;
use crate::positions::{Goes, Positions};
use crate::promotion::QUEUE;
use crate::wheel::{APPEND, Append, Appended, HotWheel, Level, Slot};

/// The most pointers promoted in one step.
const BATCH: usize = 4000;

/// How often it is tried again to reach another node's wheels.
const AGAIN: Duration = Duration::from_millis(500);

/// Why a wheel is lost: what should be in it is not.
const NOT_ADDED: &str = "pointers could not be added to it";

/// Promotes what comes through the door.
pub struct Promoter {
    /// The cold store.
    pub store: ColdStore,
    /// The wheels.
    pub hot: Arc<dyn HotWheel>,
    /// This node's shards.
    pub ownership: Arc<Ownership>,
    /// Where their wheels stand.
    pub positions: Arc<Positions>,
    /// Reach of the second wheel.
    pub near: Duration,
    /// For what is due at once.
    pub last_mile: Arc<LastMile>,
    /// Counters.
    pub metrics: Metrics,
}

impl Promoter {
    /// Promotes until the doors are closed, or until stopped and everything that came before is promoted. What
    /// was left is tried again until it is due: this node may have been paused, or cut off from the stores
    /// alone, so that nobody else knows what is missing. What the wheels have by then they have twice.
    pub async fn run(self: Arc<Self>, mut inbox: mpsc::Receiver<Pointer>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        let (mut again, mut tried_at) = (Vec::new(), Monotonic::now());
        loop {
            batch.clear();
            tokio::select! {
                biased;
                came = inbox.recv_many(&mut batch, BATCH) => if came == 0 {
                    return;
                },
                () = stop.cancelled() => return,
                () = self.store.clock().sleep(AGAIN.saturating_sub(tried_at.elapsed())), if !again.is_empty() => {}
            }
            if tried_at.elapsed() >= AGAIN {
                let (now, before) = (self.store.clock().now(), again.len());
                again.retain(|pointer: &Pointer| pointer.wake_at > now);
                self.metrics.unpromoted.inc_by((before - again.len()) as u64);
                batch.extend(again.drain(..again.len().min(BATCH)));
            }
            let left = self.promote(&batch).await;
            if !left.is_empty() {
                tried_at = Monotonic::now();
            }
            let room = if self.hot.is_shared() { QUEUE - again.len() } else { 0 };
            self.metrics.unpromoted.inc_by(left.len().saturating_sub(room) as u64);
            again.extend(left.into_iter().take(room));
        }
    }

    /// Promotes a batch; returns what was left.
    pub async fn promote(&self, pointers: &[Pointer]) -> Vec<Pointer> {
        let (mut own, mut foreign, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (pointer, (goes, epoch)) in pointers.iter().zip(self.positions.place(pointers)) {
            // While it is this node's, judged after the place was looked up, nobody else has scanned.
            let still = self.ownership.owns(pointer.shard, epoch);
            match goes {
                Goes::LastMile if still => own.push((*pointer, None)),
                Goes::Slot(slot) if still => own.push((*pointer, Some(slot))),
                Goes::Cold if still => {}
                // Found in SQL by this node when it builds the wheel; but another may have it by then.
                Goes::NoWheel if still => left.push(*pointer),
                _ => foreign.push(*pointer),
            }
        }
        left.extend(self.keep(own).await);
        left.extend(self.pass_on(foreign).await);
        left
    }

    /// Promotes timers of other nodes' shards, where they can be reached; returns those that were left.
    async fn pass_on(&self, foreign: Vec<Pointer>) -> Vec<Pointer> {
        match self.hot.is_shared() {
            _ if foreign.is_empty() => foreign,
            true => self.promote_foreign(&foreign).await.unwrap_or(foreign),
            // Another node's wheels are out of reach; its sweep finds them.
            false => foreign,
        }
    }

    /// Puts pointers of own shards where they belong: into slots, or to the last mile when their slot is
    /// taken. A shard whose append failed has lost its wheel. Returns what was left.
    pub async fn keep(&self, pointers: Vec<(Pointer, Option<Slot>)>) -> Vec<Pointer> {
        let mut near: Vec<Pointer> = Vec::new();
        let mut slots: BTreeMap<(i32, Slot), Vec<Pointer>> = BTreeMap::new();
        for (pointer, slot) in pointers {
            match slot {
                None => near.push(pointer),
                Some(slot) => slots.entry((pointer.shard, slot)).or_default().push(pointer),
            }
        }
        self.last_mile.push(&near);
        let appends = appends(slots);
        if appends.is_empty() {
            return Vec::new();
        }
        let shards: Vec<i32> = appends.iter().map(|append| append.shard).collect();
        let (mut left, mut ceded) = (Vec::new(), Vec::new());
        match self.hot.append(&appends).await {
            Ok(answers) => {
                for (append, appended) in appends.iter().zip(answers) {
                    match appended {
                        Appended::Kept => self.metrics.promoted.inc_by(append.pointers.len() as u64),
                        // A minute is cascaded just now: its seconds are open still, or their slot is taken.
                        Appended::Taken if append.slot.level == Level::Minute => {
                            left.extend(Box::pin(self.keep(in_seconds(&append.pointers))).await);
                        }
                        // It may be the next owner who has taken it.
                        Appended::Taken if self.ownership.begin(append.shard).is_none() => {
                            ceded.extend_from_slice(&append.pointers);
                        }
                        Appended::Taken => self.last_mile.push(&append.pointers),
                        Appended::Away(why) => {
                            tracing::debug!(%why, append.shard, "pointers not promoted");
                            self.positions.lose(&[append.shard], NOT_ADDED);
                            left.extend_from_slice(&append.pointers);
                        }
                        Appended::NoWheel => {
                            self.positions.lose(&[append.shard], "it was emptied");
                            left.extend_from_slice(&append.pointers);
                        }
                    }
                }
            }
            Err(why) => {
                tracing::debug!(%why, "pointers not promoted");
                self.positions.lose(&shards, NOT_ADDED);
                left.extend(appends.into_iter().flat_map(|append| append.pointers));
            }
        }
        left.extend(self.pass_on(ceded).await);
        left
    }

    /// Promotes timers of other nodes' shards: into the shared wheels, or to their owner's last mile. Returns
    /// those that were left.
    async fn promote_foreign(&self, pointers: &[Pointer]) -> Result<Vec<Pointer>, Error> {
        let mut shards: Vec<i32> = pointers.iter().map(|pointer| pointer.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let rows: HashMap<i32, ShardRow> = self
            .store
            .shard_rows(&shards)
            .await?
            .into_iter()
            .map(|row| {
                self.positions.learn(row.shard, row.watermark);
                (row.shard, row)
            })
            .collect();
        let near =
            |pointer: &&Pointer| rows.get(&pointer.shard).is_some_and(|row| pointer.wake_at < row.watermark);
        let mut express: BTreeMap<&str, Vec<Pointer>> = BTreeMap::new();
        let mut left = Vec::new();
        // Only their owner knows which minutes are cascaded: what is refused as a minute is tried as a second.
        let cascaded = self.store.clock().now().plus(self.near);
        let mut open: Vec<(Pointer, Slot)> = pointers
            .iter()
            .filter(near)
            .map(|pointer| {
                let minute = Level::Minute.slot_of(pointer.wake_at);
                let second = Level::Second.slot_of(pointer.wake_at);
                (*pointer, if minute.starts_at() > cascaded { minute } else { second })
            })
            .collect();
        while !open.is_empty() {
            let mut slots: BTreeMap<(i32, Slot), Vec<Pointer>> = BTreeMap::new();
            for (pointer, slot) in open.drain(..) {
                slots.entry((pointer.shard, slot)).or_default().push(pointer);
            }
            let appends = appends(slots);
            let Ok(answers) = self.hot.append(&appends).await else {
                left.extend(appends.into_iter().flat_map(|append| append.pointers));
                return Ok(left);
            };
            for (append, appended) in appends.into_iter().zip(answers) {
                let owner = rows.get(&append.shard).and_then(|row| row.owner.as_deref());
                match (appended, owner) {
                    (Appended::Kept, _) => self.metrics.promoted.inc_by(append.pointers.len() as u64),
                    (Appended::Taken, _) if append.slot.level == Level::Minute => {
                        let second = |pointer: Pointer| (pointer, Level::Second.slot_of(pointer.wake_at));
                        open.extend(append.pointers.into_iter().map(second));
                    }
                    (Appended::Taken, Some(owner)) => {
                        express.entry(owner).or_default().extend(append.pointers);
                    }
                    _ => left.extend(append.pointers),
                }
            }
        }
        for (owner, pointers) in express {
            if !self.hot.send_express(owner, &pointers).await.unwrap_or(false) {
                left.extend(pointers);
            }
        }
        Ok(left)
    }
}

/// The second slots of pointers whose minute is taken.
fn in_seconds(pointers: &[Pointer]) -> Vec<(Pointer, Option<Slot>)> {
    pointers.iter().map(|pointer| (*pointer, Some(Level::Second.slot_of(pointer.wake_at)))).collect()
}

/// Appends of bounded size, in order of shard and slot.
fn appends(slots: BTreeMap<(i32, Slot), Vec<Pointer>>) -> Vec<Append> {
    let chunks = |((shard, slot), pointers): ((i32, Slot), Vec<Pointer>)| {
        let chunk = |part: &[Pointer]| Append { shard, slot, pointers: part.to_vec() };
        pointers.chunks(APPEND).map(chunk).collect::<Vec<_>>()
    };
    slots.into_iter().flat_map(chunks).collect()
}

/// Brings what other nodes gave to this one's last mile, until stopped.
pub async fn receive_express(
    hot: Arc<dyn HotWheel>,
    ownership: Arc<Ownership>,
    last_mile: Arc<LastMile>,
    stop: CancellationToken,
) {
    loop {
        let came = tokio::select! {
            () = stop.cancelled() => return,
            came = hot.receive_express(&ownership.me().name) => came,
        };
        match came {
            Ok(pointers) => last_mile.push(&pointers),
            // The ticker tells what is wrong with the wheels.
            Err(_) => tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            },
        }
    }
}

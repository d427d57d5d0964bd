//! Promotion of timers that were just written: a timer due within the window is promoted at once, after its commit.
//!
//! The second half of the watermark's protocol ([`crate::cold`], `watermark.rs`): a timer is committed first, and the
//! watermark of its shard is read *afterwards*. For this node's own shards the watermark in memory will do, which the
//! loader raises before it scans, as long as the lease still holds when it is read. For other shards it is read from
//! SQL, once a batch.
//!
//! No caller waits for this: callers were answered at the commit. A pointer that the wheels do not take is tried again
//! until it is due. A pointer that finds no room in the queue is dropped; the sweep finds its timer in SQL.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::last_mile::LastMile;
use super::{refused, some_refused};
use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, ShardRow};
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;
use crate::ownership::Ownership;
use crate::positions::{Positions, Route};
use crate::promotion::QUEUE;
use crate::wheel::{APPEND, Append, Appended, HotWheel, Level, Slot};

/// The most pointers promoted in one step.
const BATCH: usize = 4000;

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Why a wheel is lost: pointers that should be in it are not.
const NOT_ADDED: &str = "pointers could not be added to it";

/// Promotes timers that were just written.
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
    /// For pointers whose slot is taken already.
    pub last_mile: Arc<LastMile>,
    /// Counters.
    pub metrics: Metrics,
}

impl Promoter {
    /// Promotes until every handle of the queue is dropped, or until stopped; then what was queued before is promoted.
    ///
    /// Failed pointers are tried again until they are due: this node may have been paused, or cut off from the stores
    /// alone, so that no other node knows of them. Pointers that the wheels have by then are in them twice.
    pub async fn run(self: Arc<Self>, inbox: mpsc::Receiver<Pointer>, stop: CancellationToken) {
        let retries = Retries::new(if self.hot.is_shared() { QUEUE } else { 0 });
        PromotionLoop { promoter: self, inbox, retries }.run(stop).await;
    }

    /// Promotes a batch; returns the pointers that failed.
    pub async fn promote(&self, pointers: &[Pointer]) -> Vec<Pointer> {
        let (mut own, mut foreign, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (pointer, (route, epoch)) in pointers.iter().zip(self.positions.route(pointers)) {
            // Checked after the watermark was read: as long as this node owns the shard, no other has scanned it.
            let is_own = self.ownership.owns(pointer.shard, epoch);
            match route {
                Route::LastMile if is_own => own.push((*pointer, None)),
                Route::Slot(slot) if is_own => own.push((*pointer, Some(slot))),
                Route::Cold if is_own => {}
                // This node reads it from SQL when it builds the wheel; but another may own the shard by then.
                Route::NoWheel if is_own => failed.push(*pointer),
                _ => foreign.push(*pointer),
            }
        }
        failed.extend(self.insert(own, Source::Sql).await);
        failed.extend(self.promote_foreign(foreign).await);
        failed
    }

    /// Inserts pointers of own shards into their slots, or into the last mile when their slot is taken (`None`). A shard
    /// whose append failed has lost its wheel. Returns the pointers that failed.
    pub async fn insert(&self, pointers: Vec<(Pointer, Option<Slot>)>, source: Source) -> Vec<Pointer> {
        let mut due_now: Vec<Pointer> = Vec::new();
        let mut slots: BTreeMap<(i32, Slot), Vec<Pointer>> = BTreeMap::new();
        for (pointer, slot) in pointers {
            match slot {
                None => due_now.push(pointer),
                Some(slot) => slots.entry((pointer.shard, slot)).or_default().push(pointer),
            }
        }
        self.express(&due_now);
        let appends = appends(slots);
        if appends.is_empty() {
            return Vec::new();
        }
        let shards: Vec<i32> = appends.iter().map(|append| append.shard).collect();
        let (mut failed, mut ceded, mut refused_shards) = (Vec::new(), Vec::new(), Vec::new());
        match self.hot.append(&appends).await {
            Ok(answers) => {
                for (append, appended) in appends.iter().zip(answers) {
                    match appended {
                        Appended::Kept => self.count(source.step(append.slot), append.pointers.len()),
                        // The minute has just been cascaded: its seconds are still open, or taken too.
                        Appended::Taken if append.slot.level == Level::Minute => {
                            failed.extend(Box::pin(self.insert(in_seconds(&append.pointers), source)).await);
                        }
                        // The next owner may have taken it.
                        Appended::Taken if self.ownership.begin(append.shard).is_none() => {
                            ceded.extend_from_slice(&append.pointers);
                        }
                        Appended::Taken => self.express(&append.pointers),
                        Appended::Unreachable(why) => {
                            tracing::debug!(%why, append.shard, "pointers not promoted");
                            refused_shards.push((append.shard, why));
                            failed.extend_from_slice(&append.pointers);
                        }
                        Appended::NoWheel => {
                            self.positions.lose(&[append.shard], "it was emptied");
                            failed.extend_from_slice(&append.pointers);
                        }
                    }
                }
            }
            Err(why) => {
                tracing::debug!(%why, "pointers not promoted");
                refused(&self.positions, self.store.clock(), &self.positions.owned(), &why);
                self.positions.lose(&shards, NOT_ADDED);
                failed.extend(appends.into_iter().flat_map(|append| append.pointers));
            }
        }
        some_refused(
            &self.positions,
            self.store.clock(),
            refused_shards.iter().map(|(shard, why)| (*shard, why)),
        );
        let shards: Vec<i32> = refused_shards.into_iter().map(|(shard, _)| shard).collect();
        self.positions.lose(&shards, NOT_ADDED);
        failed.extend(self.promote_foreign(ceded).await);
        failed
    }

    /// Hands pointers whose slot is taken to the last mile.
    fn express(&self, pointers: &[Pointer]) {
        self.count("express", pointers.len());
        self.last_mile.push(pointers);
    }

    fn count(&self, step: &str, pointers: usize) {
        self.metrics.promoted.with_label_values(&[step]).inc_by(pointers as u64);
    }

    /// Promotes timers of other nodes' shards, if the wheels are shared; returns the pointers that failed.
    async fn promote_foreign(&self, foreign: Vec<Pointer>) -> Vec<Pointer> {
        // Wheels in process are out of reach for other nodes; the sweep of the owner finds the timers.
        if foreign.is_empty() || !self.hot.is_shared() {
            return foreign;
        }
        self.append_foreign(&foreign).await.unwrap_or(foreign)
    }

    /// Appends pointers of other nodes' shards to the shared wheels, or sends them to the last mile of the owner when
    /// their slot is taken. Returns the pointers that failed.
    async fn append_foreign(&self, pointers: &[Pointer]) -> Result<Vec<Pointer>, Error> {
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
        let is_promoted =
            |pointer: &&Pointer| rows.get(&pointer.shard).is_some_and(|row| pointer.wake_at < row.watermark);
        let mut express: BTreeMap<&str, Vec<Pointer>> = BTreeMap::new();
        let mut failed = Vec::new();
        // Only the owner knows which minutes are cascaded: a pointer whose minute is taken is appended to its second.
        let cascaded = self.store.clock().now().plus(self.near);
        let mut open: Vec<(Pointer, Slot)> = pointers
            .iter()
            .filter(is_promoted)
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
                failed.extend(appends.into_iter().flat_map(|append| append.pointers));
                return Ok(failed);
            };
            for (append, appended) in appends.into_iter().zip(answers) {
                let owner = rows.get(&append.shard).and_then(|row| row.owner.as_deref());
                match (appended, owner) {
                    (Appended::Kept, _) => self.count(Source::Sql.step(append.slot), append.pointers.len()),
                    (Appended::Taken, _) if append.slot.level == Level::Minute => {
                        let second = |pointer: Pointer| (pointer, Level::Second.slot_of(pointer.wake_at));
                        open.extend(append.pointers.into_iter().map(second));
                    }
                    (Appended::Taken, Some(owner)) => {
                        express.entry(owner).or_default().extend(append.pointers);
                    }
                    _ => failed.extend(append.pointers),
                }
            }
        }
        for (owner, pointers) in express {
            if !self.hot.send_express(owner, &pointers).await.unwrap_or(false) {
                failed.extend(pointers);
            }
        }
        Ok(failed)
    }
}

/// Where pointers come from that are put into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The cold store.
    Sql,
    /// A minute slot that was taken.
    Minute,
}

impl Source {
    /// The step that a pointer makes into this slot, as a word in metrics.
    const fn step(self, slot: Slot) -> &'static str {
        match (self, slot.level) {
            (_, Level::Minute | Level::WholeMinute) => "minute",
            (Self::Sql, Level::Second) => "second",
            (Self::Minute, Level::Second) => "cascade",
        }
    }
}

/// The promoter as a loop.
struct PromotionLoop {
    promoter: Arc<Promoter>,
    inbox: mpsc::Receiver<Pointer>,
    retries: Retries,
}

impl PromotionLoop {
    async fn run(mut self, stop: CancellationToken) {
        let clock = self.promoter.store.clock().clone();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            batch.clear();
            tokio::select! {
                biased;
                received = self.inbox.recv_many(&mut batch, BATCH) => if received == 0 {
                    return;
                },
                () = stop.cancelled() => return,
                () = clock.sleep(self.retries.wait()), if !self.retries.is_empty() => {}
            }
            self.add_retries(&mut batch, clock.now());
            if batch.is_empty() {
                continue;
            }
            let began = Monotonic::now();
            let failed = self.promoter.promote(&batch).await;
            self.promoter.metrics.promotion_seconds.observe(began.elapsed().as_secs_f64());
            self.keep_failed(failed);
        }
    }

    /// Adds pointers that failed before to the batch. Those that are due by now are dropped: the sweep finds them.
    fn add_retries(&mut self, batch: &mut Vec<Pointer>, now: UnixMs) {
        if self.retries.wait().is_zero() {
            let dropped = self.retries.drop_due(now);
            self.promoter.metrics.unpromoted.inc_by(dropped as u64);
            batch.extend(self.retries.take(BATCH));
        }
    }

    /// Keeps failed pointers for another try, as far as there is room.
    fn keep_failed(&mut self, failed: Vec<Pointer>) {
        let dropped = self.retries.add(failed);
        self.promoter.metrics.unpromoted.inc_by(dropped as u64);
    }
}

/// Pointers that failed and are tried again.
struct Retries {
    pointers: Vec<Pointer>,
    capacity: usize,
    /// When pointers last failed.
    failed_at: Monotonic,
}

impl Retries {
    fn new(capacity: usize) -> Self {
        Self { pointers: Vec::new(), capacity, failed_at: Monotonic::now() }
    }

    fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// How long until the next try.
    fn wait(&self) -> Duration {
        RETRY.saturating_sub(self.failed_at.elapsed())
    }

    /// Drops the pointers that are due; returns how many.
    fn drop_due(&mut self, now: UnixMs) -> usize {
        let before = self.pointers.len();
        self.pointers.retain(|pointer| pointer.wake_at > now);
        before - self.pointers.len()
    }

    /// Takes up to `most` pointers, in the order in which they failed.
    fn take(&mut self, most: usize) -> impl Iterator<Item = Pointer> {
        self.pointers.drain(..most.min(self.pointers.len()))
    }

    /// Adds pointers that failed just now; returns how many are dropped because there is no room for them.
    fn add(&mut self, failed: Vec<Pointer>) -> usize {
        if !failed.is_empty() {
            self.failed_at = Monotonic::now();
        }
        let room = self.capacity - self.pointers.len();
        let dropped = failed.len().saturating_sub(room);
        self.pointers.extend(failed.into_iter().take(room));
        dropped
    }
}

/// The second slots of pointers whose minute is taken.
fn in_seconds(pointers: &[Pointer]) -> Vec<(Pointer, Option<Slot>)> {
    pointers.iter().map(|pointer| (*pointer, Some(Level::Second.slot_of(pointer.wake_at)))).collect()
}

/// Appends of bounded size, in order of shard and slot.
fn appends(slots: BTreeMap<(i32, Slot), Vec<Pointer>>) -> Vec<Append> {
    let chunks = |((shard, slot), pointers): ((i32, Slot), Vec<Pointer>)| {
        let append = |chunk: &[Pointer]| Append { shard, slot, pointers: chunk.to_vec() };
        pointers.chunks(APPEND).map(append).collect::<Vec<_>>()
    };
    slots.into_iter().flat_map(chunks).collect()
}

/// Moves the pointers that other nodes sent to this one into the last mile, until stopped.
pub async fn receive_express(
    hot: Arc<dyn HotWheel>,
    ownership: Arc<Ownership>,
    last_mile: Arc<LastMile>,
    stop: CancellationToken,
) {
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = hot.receive_express(&ownership.me().name) => received,
        };
        match received {
            Ok(pointers) => last_mile.push(&pointers),
            // The ticker logs what is wrong with the wheels.
            Err(_) => tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            },
        }
    }
}

//! Promotion from SQL: the cold store into the minute wheel, the minute wheel into the second wheel.
//!
//! Per shard the loader raises the watermark a step at a time, commits it, and only then scans the slice below it.
//! Timers that are written meanwhile are promoted by their writers ([`crate::hot::promoter`]). Shards that are new on
//! this node, or whose wheel was lost, are first replayed ([`crate::hot::replay`]), which may order further ranges.
//! Ranges are scanned in order of `wake_at`, a page of each shard at a time, no faster than the settings allow. Minutes
//! that begin within `wheel.near` are cascaded into seconds.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::promoter::{Promoter, Source};
use super::{AHEAD_MS, Error, UnreachableShards, replay, take_all, window_end};
use crate::clock::Monotonic;
use crate::cold::{ColdStore, FUTURE_MS, Range, ScanPosition, Scanned};
use crate::dispatch::{Dispatcher, OVERDUE};
use crate::model::pointer::{Pointer, Via};
use crate::model::time::{LAST, Span, UnixMs};
#[cfg(feature = "planted")]
use crate::planted::Defect;
use crate::positions::{Replay, Route};
use crate::telemetry::Streak;
use crate::wheel::{Level, Slot, Take};

/// Rows of one scan, all shards together.
const PAGE: usize = 8192;

/// How often it looks when there is nothing to do.
const TICK: Duration = Duration::from_millis(200);

/// How often it tries again while the wheels or the store do not answer.
const RETRY: Duration = Duration::from_millis(500);

/// With so many queued pointers nothing is scanned. Lanes with a backlog do not count, so that a few receivers do not
/// hold up the scan.
const MAX_QUEUED: usize = 50_000;

/// Promotes from SQL.
pub struct Loader {
    /// Inserts pointers into the wheels and the last mile.
    pub promoter: Arc<Promoter>,
    /// Knows how many pointers are queued.
    pub dispatcher: Arc<Dispatcher>,
    /// How fast it works.
    pub rates: Arc<Rates>,
}

/// How fast the loader works, in timers a second; both may change while it does.
#[derive(Debug)]
pub struct Rates {
    load: AtomicU32,
    catch_up: AtomicU32,
}

impl Rates {
    /// At most so many timers a second are promoted, and so many overdue ones handed out.
    pub const fn new(load: u32, catch_up: u32) -> Self {
        Self { load: AtomicU32::new(load), catch_up: AtomicU32::new(catch_up) }
    }

    /// Changes both, from the next page on.
    pub fn set(&self, load: u32, catch_up: u32) {
        self.load.store(load, Ordering::Relaxed);
        self.catch_up.store(catch_up, Ordering::Relaxed);
    }

    fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    fn catch_up(&self) -> u32 {
        self.catch_up.load(Ordering::Relaxed)
    }
}

impl Loader {
    /// Promotes until stopped.
    pub async fn run(self, stop: CancellationToken) {
        LoaderLoop { loader: self, streak: Streak::default() }.run(stop).await;
    }

    /// One round; returns how long to wait before the next.
    pub async fn run_once(&self) -> Result<Duration, Error> {
        let Promoter { ownership, positions, .. } = &*self.promoter;
        positions.sync(&ownership.kept());
        self.lose_astray();
        // A step that one server refuses does not keep the shards of the others from the next step.
        self.lengthen().await;
        let replayed = replay::run_once(&self.promoter).await;
        let raised = self.raise().await;
        let scanned = self.scan().await;
        let cascaded = self.cascade().await;
        replayed.and(raised).and(cascaded).and(scanned)
    }

    /// Lets the wheels reach further again after they found no room, if there is room now.
    async fn lengthen(&self) {
        let Promoter { store, positions, hot, .. } = &*self.promoter;
        let now = store.clock().now();
        let is_loaded = positions.waiting().is_empty() && positions.ranges().is_empty();
        if is_loaded && positions.reach.may_lengthen(now) {
            // One that does not say how much it uses counts as full.
            let used = hot.used().await.unwrap_or(1.0);
            if let Some(reach) = positions.reach.lengthen(used, now) {
                let reach = Span::from_duration(reach);
                tracing::info!(used, "Redis has room again: the wheels reach {reach} ahead");
            }
        }
    }

    /// A wheel that was taken further than the ticker can be is from before the store's clock was set back. It is built
    /// anew: all that is written for the time between would go to the last mile, which is in memory. So is one that has
    /// stood still for long, as when the clock has jumped forward or Redis was away: to take slot after slot of an hour
    /// takes seconds, in which everything is late. A last mile without room is no reason: there the ticker waits for it.
    fn lose_astray(&self) {
        let Promoter { store, positions, last_mile, near, .. } = &*self.promoter;
        let now = store.clock().now();
        let furthest = UnixMs::new(now.get() + AHEAD_MS + Level::Second.tick_ms() + FUTURE_MS);
        let oldest = replay::oldest(now, *near);
        let beyond = positions.astray(UnixMs::default()..=furthest);
        if !beyond.is_empty() {
            positions.lose(&beyond, "the store's clock was set back");
        }
        let behind = positions.astray(oldest..=LAST);
        if !behind.is_empty() && last_mile.has_room() {
            positions.lose(&behind, replay::STOOD_STILL);
        }
    }

    /// Commits a new watermark for shards whose window has moved on, then orders the scan of the slice below it.
    pub async fn raise(&self) -> Result<(), Error> {
        let Promoter { store, positions, .. } = &*self.promoter;
        let now = store.clock().now();
        let window = positions.reach.get();
        let due = positions.below(now.plus(window));
        if !due.is_empty() {
            let target = window_end(now, window);
            #[cfg(feature = "planted")]
            if store.planted().is(Defect::NaiveLoader) {
                return self.scan_then_raise(&due, target).await;
            }
            let raised = store.raise_watermarks(&due, target).await?;
            positions.raise(&raised, target);
        }
        Ok(())
    }

    /// The wrong order: a timer that is committed after the scan, by a writer that reads the watermark before the raise,
    /// is promoted by nobody.
    #[cfg(feature = "planted")]
    async fn scan_then_raise(
        &self,
        due: &[(i32, crate::model::id::Epoch)],
        target: crate::model::time::UnixMs,
    ) -> Result<(), Error> {
        let Promoter { store, positions, .. } = &*self.promoter;
        let slice = |(shard, _): &(i32, _)| Range::new(*shard, positions.watermark(*shard).get(), target);
        let slices: Vec<Range> = due.iter().map(slice).collect();
        let found = store.scan(&slices, PAGE).await?;
        let found: Vec<Pointer> = found.into_iter().map(|row| row.pointer).collect();
        let raised = store.raise_watermarks(due, target).await?;
        positions.raise_unscanned(&raised, target);
        self.promoter.insert(self.destinations(&found), Source::Sql).await;
        Ok(())
    }

    /// Where these pointers go: into a slot, or to the last mile (`None`). Without those whose shard was lost or given up
    /// meanwhile: the next replay of the shard scans them again.
    fn destinations(&self, pointers: &[Pointer]) -> Vec<(Pointer, Option<Slot>)> {
        let routed = pointers.iter().zip(self.promoter.positions.route(pointers));
        let destination = |(pointer, (route, _)): (&Pointer, _)| match route {
            Route::Slot(slot) => Some((*pointer, Some(slot))),
            Route::LastMile => Some((*pointer, None)),
            Route::NoWheel | Route::Foreign | Route::Cold => None,
        };
        routed.filter_map(destination).collect()
    }

    /// Scans one page of every range; returns how long to wait so that the rates are kept.
    pub async fn scan(&self) -> Result<Duration, Error> {
        let Promoter { store, positions, .. } = &*self.promoter;
        let ranges = positions.ranges();
        let queued = self.dispatcher.queued_without_backlog();
        if ranges.is_empty() || !self.promoter.last_mile.has_room() || queued > MAX_QUEUED {
            return Ok(TICK);
        }
        let began = Monotonic::now();
        // Overdue pointers are handed out as they are found, so their pages are as small as their rate asks for.
        let is_past = ranges.iter().any(|range| range.after.wake_at < store.clock().now().get());
        let page_size = if is_past { PAGE.min(self.rates.catch_up() as usize / 4) } else { PAGE };
        let per_range = (page_size / ranges.len()).max(1);
        let mut found: HashMap<i32, Vec<Scanned>> = HashMap::new();
        for row in store.scan(&ranges, per_range).await? {
            found.entry(row.pointer.shard).or_default().push(row);
        }
        let now = store.clock().now();
        let mut pages: Vec<Page> = Vec::new();
        let mut insert: Vec<(Pointer, Option<Slot>)> = Vec::new();
        for range in ranges {
            let rows = found.remove(&range.shard).unwrap_or_default();
            let next = rows.last().filter(|_| rows.len() >= per_range).map(|row| row.position);
            let mut pointers: Vec<Pointer> = rows.iter().map(|row| row.pointer).collect();
            for pointer in pointers.iter_mut().filter(|pointer| pointer.wake_at < now) {
                pointer.via = Via::Replay;
                pointer.overdue = now.since(pointer.wake_at) > OVERDUE;
            }
            let overdue = pointers.iter().filter(|pointer| pointer.via == Via::Replay).count() as u64;
            let loaded = pointers.len() as u64 - overdue;
            insert.extend(self.destinations(&pointers));
            pages.push(Page { range, next, overdue, loaded });
        }
        self.promoter.insert(insert, Source::Sql).await;
        // A page counts as scanned only now. The shard of a pointer that could not be inserted has lost its wheel.
        let (mut loaded_until, mut done) = (Vec::new(), Vec::new());
        for Page { range, next, overdue, loaded } in &pages {
            if let Some((until, epoch, replay)) = positions.scanned(range, *next, *overdue, *loaded) {
                loaded_until.push((range.shard, epoch, until.get()));
                done.extend(replay.map(|replay| (range.shard, replay)));
            }
        }
        // Reported first: a replay is done even if the wheels no longer take its end.
        self.report(store, done).await;
        self.promoter.hot.set_loaded(&loaded_until).await?;
        let overdue: u64 = pages.iter().map(|page| page.overdue).sum();
        let loaded: u64 = pages.iter().map(|page| page.loaded).sum();
        let least = Duration::from_secs_f64(
            overdue as f64 / f64::from(self.rates.catch_up()) + loaded as f64 / f64::from(self.rates.load()),
        );
        Ok(least.saturating_sub(began.elapsed()))
    }

    /// Takes the minutes that begin within `wheel.near` and inserts their pointers into second slots.
    pub async fn cascade(&self) -> Result<(), Error> {
        let Promoter { store, positions, hot, .. } = &*self.promoter;
        // The ticker reports these.
        let mut unreachable = UnreachableShards::new();
        loop {
            let mut takes = positions.takes(Level::Minute, store.clock().now().plus(self.promoter.near));
            takes.retain(|take| !unreachable.contains_key(&take.shard));
            if takes.is_empty() {
                return Ok(());
            }
            let mut taken: Vec<Take> = Vec::new();
            let mut pointers: Vec<Pointer> = Vec::new();
            let failed = take_all(hot, positions, store.clock(), takes, |take, page| {
                pointers.extend(page);
                taken.extend(take.cloned());
            })
            .await?;
            unreachable.extend(failed);
            let mut insert = self.destinations(&pointers);
            for (pointer, slot) in &mut insert {
                // The minute is taken; its mark here moves only below.
                *slot = slot.map(|_| Level::Second.slot_of(pointer.wake_at));
            }
            self.promoter.insert(insert, Source::Minute).await;
            // Only now: a round that fails before takes the same minutes again, which still hold their pointers.
            taken.iter().for_each(|take| positions.handed_over(take.shard, &take.incarnation, take.slot));
            let slots: Vec<(i32, Slot)> = taken.iter().map(|take| (take.shard, take.slot)).collect();
            hot.hand_over(&slots).await?;
        }
    }

    /// Reports what replays found: a log line for each cause, counters, and a note for `explain`.
    async fn report(&self, store: &ColdStore, done: Vec<(i32, Replay)>) {
        let mut by_cause: BTreeMap<String, (usize, u64, u64)> = BTreeMap::new();
        let mut notes = Vec::new();
        let metrics = &self.promoter.metrics;
        for (shard, replay) in done {
            let kind = if replay.rebuilt { "rebuilt" } else { "resumed" };
            metrics.replays.with_label_values(&[kind]).inc();
            metrics.replayed.with_label_values(&["overdue"]).inc_by(replay.overdue);
            metrics.replayed.with_label_values(&["loaded"]).inc_by(replay.loaded);
            let sums = by_cause.entry(format!("{} ({kind})", replay.cause)).or_default();
            *sums = (sums.0 + 1, sums.1 + replay.overdue, sums.2 + replay.loaded);
            if replay.overdue + replay.loaded > 0 {
                notes.push(replay::note(shard, replay, &self.promoter.ownership.me().name));
            }
        }
        for (cause, (shards, overdue, loaded)) in by_cause {
            tracing::info!(shards, overdue, loaded, cause, "replayed");
        }
        for chunk in notes.chunks(1000) {
            if let Err(why) = store.note_replays(chunk).await {
                tracing::warn!(%why, "the notes of a replay are not kept for `explain`");
            }
        }
    }
}

/// The loader as a loop.
struct LoaderLoop {
    loader: Loader,
    streak: Streak,
}

impl LoaderLoop {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let wait = match self.loader.run_once().await {
                Ok(wait) => {
                    self.succeeded();
                    wait
                }
                Err(why) => self.failed(&why),
            };
            tokio::select! {
                () = stop.cancelled() => {}
                // A new shard has timers that are due by now; those of a lost shard are another node's.
                () = self.loader.promoter.ownership.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn succeeded(&mut self) {
        if self.streak.succeeded() {
            tracing::info!("timers are promoted again");
        }
    }

    /// A round failed. Returns how long to wait for the next.
    fn failed(&mut self, why: &Error) -> Duration {
        let Promoter { store, positions, .. } = &*self.loader.promoter;
        // The ticker logs what is wrong with the wheels.
        if self.streak.failed(store.is_away() || !positions.unreachable().is_empty()) {
            tracing::warn!(%why, "timers cannot be promoted; the sweep fires them meanwhile");
        } else {
            tracing::debug!(%why, "a round of the loader failed");
        }
        RETRY
    }
}

/// A page of a range that was scanned.
struct Page {
    range: Range,
    /// Where the next page begins; `None` at the end of the range.
    next: Option<ScanPosition>,
    /// Timers past their due time.
    overdue: u64,
    /// All others.
    loaded: u64,
}

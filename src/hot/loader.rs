//! Promotion from SQL: the cold store into the minute wheel, the minute wheel into the second wheel.
//!
//! Per shard the loader raises the watermark a step at a time, commits it, and only then scans the slice
//! below it; what is written meanwhile is promoted by its writer ([`crate::hot::promoter`]). Shards that are new
//! here, or whose wheel was lost, are looked at by [`crate::hot::replay`] first, which may order further ranges.
//! Ranges are scanned in the order of waking, a page of each shard at a time, no faster than the settings
//! allow. Minutes that begin within `wheel.near` are cascaded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::promoter::Promoter;
use super::{Error, Missing, replay, take_all, window_end};
use crate::clock::Monotonic;
use crate::cold::{ColdStore, Range, ScanPlace};
use crate::dispatch::{Dispatcher, OVERDUE};
use crate::model::pointer::{Pointer, Via};
use crate::model::time::UnixMs;
#[cfg(feature = "planted")]
use crate::planted::Defect;
use crate::positions::{Goes, Replay};
use crate::wheel::{Level, Slot, Take};

/// Rows of one scan, all shards together.
const PAGE: usize = 8192;

/// How often it looks when there is nothing to do.
const TICK: Duration = Duration::from_millis(200);

/// How often it tries while the wheels or the store do not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Pointers that may wait for room before a scan goes on; what waits in crowded lanes does not count, so that
/// a few receivers do not hold it up.
const BACKLOG: usize = 50_000;

/// Promotes.
pub struct Loader {
    /// Puts pointers where they belong.
    pub promoter: Arc<Promoter>,
    /// Tells how much waits to be sent.
    pub dispatcher: Arc<Dispatcher>,
    /// Reach of the minute wheel.
    pub window: Duration,
    /// Timers a second that it moves at most.
    pub load_per_second: u32,
    /// Overdue timers a second that it hands out at most.
    pub catch_up_per_second: u32,
}

impl Loader {
    /// Promotes until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let mut failing = false;
        while !stop.is_cancelled() {
            let wait = match self.run_once().await {
                Ok(wait) => {
                    failing = false;
                    wait
                }
                Err(why) => {
                    if !failing {
                        tracing::warn!(%why, "timers cannot be promoted; the sweep fires them meanwhile");
                    }
                    failing = true;
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                // A shard that came has timers due by now; those of one that went are none of ours.
                () = self.promoter.ownership.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// One round; tells how long to wait before the next.
    pub async fn run_once(&self) -> Result<Duration, Error> {
        let Promoter { ownership, positions, .. } = &*self.promoter;
        positions.sync(&ownership.kept());
        // What one server refuses does not keep the shards of the others from the next step.
        let replayed = replay::run_once(&self.promoter, self.window).await;
        let raised = self.raise().await;
        let scanned = self.scan().await;
        let cascaded = self.cascade().await;
        replayed.and(raised).and(cascaded).and(scanned)
    }

    /// Commits the new watermark of shards whose window has moved on, then orders the slice to be scanned.
    pub async fn raise(&self) -> Result<(), Error> {
        let Promoter { store, positions, .. } = &*self.promoter;
        let now = store.clock().now();
        let due = positions.below(now.plus(self.window));
        if !due.is_empty() {
            let target = window_end(now, self.window);
            #[cfg(feature = "planted")]
            if store.planted().is(Defect::NaiveLoader) {
                return self.scan_then_raise(&due, target).await;
            }
            let raised = store.raise_watermarks(&due, target).await?;
            positions.raise(&raised, target);
        }
        Ok(())
    }

    /// The wrong order: what is committed after the scan, by somebody who reads the watermark before the
    /// raise, is seen by nobody.
    #[cfg(feature = "planted")]
    async fn scan_then_raise(
        &self,
        due: &[(i32, crate::model::id::Epoch)],
        target: UnixMs,
    ) -> Result<(), Error> {
        let Promoter { store, positions, .. } = &*self.promoter;
        let slice = |(shard, _): &(i32, _)| {
            let after = ScanPlace::before(positions.watermark(*shard).get());
            Range { shard: *shard, after, until: target.get() }
        };
        let slices: Vec<Range> = due.iter().map(slice).collect();
        let found = store.scan(&slices, PAGE).await?;
        let raised = store.raise_watermarks(due, target).await?;
        positions.raise_unscanned(&raised, target);
        let placed = found.iter().zip(positions.place(&found));
        let keep = placed.filter_map(|(pointer, (goes, _))| match goes {
            Goes::Slot(slot) => Some((*pointer, Some(slot))),
            Goes::LastMile => Some((*pointer, None)),
            Goes::NoWheel | Goes::Foreign | Goes::Cold => None,
        });
        self.promoter.keep(keep.collect()).await;
        Ok(())
    }

    /// Scans one page of every range; tells how long to wait so that the set rates are kept.
    pub async fn scan(&self) -> Result<Duration, Error> {
        let Promoter { store, positions, .. } = &*self.promoter;
        let ranges = positions.ranges();
        if ranges.is_empty()
            || !self.promoter.last_mile.has_room()
            || self.dispatcher.queued_without_backlog() > BACKLOG
        {
            return Ok(TICK);
        }
        let began = Monotonic::now();
        // What is past due goes out as it is found, so its pages are as small as its rate asks for.
        let past = ranges.iter().any(|range| range.after.wake_at < store.clock().now().get());
        let page = if past { PAGE.min(self.catch_up_per_second as usize / 4) } else { PAGE };
        let per_range = (page / ranges.len()).max(1);
        let mut found: HashMap<i32, Vec<Pointer>> = HashMap::new();
        for pointer in store.scan(&ranges, per_range).await? {
            found.entry(pointer.shard).or_default().push(pointer);
        }
        let now = store.clock().now();
        let (mut all_overdue, mut all_loaded, mut pages) = (0, 0, Vec::new());
        let mut keep: Vec<(Pointer, Option<Slot>)> = Vec::new();
        for range in ranges {
            let mut page = found.remove(&range.shard).unwrap_or_default();
            let next = (page.len() >= per_range).then(|| page.last().map(place_of)).flatten();
            for pointer in page.iter_mut().filter(|pointer| pointer.wake_at < now) {
                pointer.via = Via::Replay;
                pointer.overdue = now.since(pointer.wake_at) > OVERDUE;
            }
            let overdue = page.iter().filter(|pointer| pointer.via == Via::Replay).count() as u64;
            let loaded = page.len() as u64 - overdue;
            for (pointer, (goes, _)) in page.iter().zip(positions.place(&page)) {
                match goes {
                    Goes::Slot(slot) => keep.push((*pointer, Some(slot))),
                    Goes::LastMile => keep.push((*pointer, None)),
                    // Lost or given up meanwhile: whoever builds the wheel next scans again.
                    Goes::NoWheel | Goes::Foreign | Goes::Cold => {}
                }
            }
            all_overdue += overdue;
            all_loaded += loaded;
            pages.push((range, next, overdue, loaded));
        }
        self.promoter.keep(keep).await;
        // A page counts as scanned only now: what could not be kept has lost its shard the wheel.
        let (mut loaded_until, mut done) = (Vec::new(), Vec::new());
        for (range, next, overdue, loaded) in pages {
            if let Some((until, replay)) = positions.scanned(&range, next, overdue, loaded) {
                loaded_until.push((range.shard, until.get()));
                done.extend(replay.map(|replay| (range.shard, replay)));
            }
        }
        // Told first: that a replay is done holds even if the wheels do not take its end any more.
        self.report(store, done).await;
        self.promoter.hot.set_loaded(&loaded_until).await?;
        let least = Duration::from_secs_f64(
            all_overdue as f64 / f64::from(self.catch_up_per_second)
                + all_loaded as f64 / f64::from(self.load_per_second),
        );
        Ok(least.saturating_sub(began.elapsed()))
    }

    /// Takes minutes that have come near and puts their pointers into second slots.
    pub async fn cascade(&self) -> Result<(), Error> {
        let Promoter { store, positions, hot, .. } = &*self.promoter;
        // What the ticker tells as well.
        let mut missing = Missing::new();
        loop {
            let mut takes = positions.takes(Level::Minute, store.clock().now().plus(self.promoter.near));
            takes.retain(|take| !missing.contains_key(&take.shard));
            if takes.is_empty() {
                return Ok(());
            }
            let mut taken: Vec<Take> = Vec::new();
            let mut pointers: Vec<Pointer> = Vec::new();
            let away = take_all(hot, positions, takes, |take, page| {
                pointers.extend(page);
                taken.extend(take.cloned());
            })
            .await?;
            missing.extend(away);
            let placed = positions.place(&pointers);
            let keep = pointers.iter().zip(placed).filter_map(|(pointer, (goes, _))| match goes {
                // The minute is taken, whatever its mark says here, which moves only below.
                Goes::Slot(_) => Some((*pointer, Some(Level::Second.slot_of(pointer.wake_at)))),
                Goes::LastMile => Some((*pointer, None)),
                Goes::NoWheel | Goes::Foreign | Goes::Cold => None,
            });
            self.promoter.keep(keep.collect()).await;
            // Only now: a round that fails before takes the same minutes again, which still hold theirs.
            taken.iter().for_each(|take| positions.handed_over(take.shard, &take.incarnation, take.slot));
            let slots: Vec<(i32, Slot)> = taken.iter().map(|take| (take.shard, take.slot)).collect();
            hot.hand_over(&slots).await?;
        }
    }

    /// Tells what replays found: a line for each cause, counters, and a note for `explain`.
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
                tracing::warn!(%why, "what a replay found is not kept for `explain`");
            }
        }
    }
}

fn place_of(pointer: &Pointer) -> ScanPlace {
    ScanPlace { wake_at: pointer.wake_at.get(), uid: pointer.uid.0 }
}

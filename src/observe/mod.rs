//! What people look at: gauges at a scrape, the overview, and the frames of the live picture.
//!
//! Nothing here decides anything, and nothing that fires waits for it. Once a second this node's counters are noted for
//! the last minute ([`recent`]). While somebody watches, slots are counted four times a second, once for all who watch
//! ([`slots`]), and what changed is sent to each. Where several nodes share the store each writes a report of itself every
//! other second, so that any of them can show all ([`report`]).

pub mod destinations;
pub mod forecast;
pub mod frame;
pub mod recent;
pub mod report;
pub mod sentence;
pub mod slots;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error, Whose};
use crate::config::Config;
use crate::destinations::Destinations;
use crate::dispatch::{Dispatcher, ReceiverLoad, States};
use crate::metrics::Metrics;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::wheel::{HotWheel, Level};
use frame::{Frame, Frames};
use recent::{Counts, Recent};
use report::Report;
use sentence::{Degraded, Facts, Sentence, sentence};
use slots::Slots;

/// Frames a second, while somebody watches.
const FRAMES: u32 = 4;

/// How often a frame has everything, in seconds: one who has missed frames is right again then.
const FULL_EVERY_S: u64 = 30;

/// In which second of every [`FULL_EVERY_S`] the gauges of the slots are counted.
const SLOTS_AT_S: u64 = 5;

/// How often a node reports of itself to its peers, in seconds.
const REPORT_EVERY_S: u64 = 2;

/// A report that is older counts no more, in milliseconds.
const REPORT_VALID_MS: i64 = 15_000;

/// How long what was read from SQL for the overview is good.
const FACTS_VALID: Duration = Duration::from_secs(2);

/// Frames that one who watches may be behind, until some are left out.
const BEHIND: usize = 16;

/// The handles that an observer reads from.
pub struct Sources {
    /// The settings.
    pub config: Arc<Config>,
    /// The cold store.
    pub store: ColdStore,
    /// The wheels.
    pub hot: Arc<dyn HotWheel>,
    /// The positions of this node's wheels.
    pub positions: Arc<Positions>,
    /// This node's shards.
    pub ownership: Arc<Ownership>,
    /// The lanes.
    pub dispatcher: Arc<Dispatcher>,
    /// The destinations.
    pub destinations: Arc<Destinations>,
    /// The series.
    pub metrics: Metrics,
}

/// What the store was asked for last.
#[derive(Debug, Clone, Default)]
struct Stored {
    read_at: Option<Monotonic>,
    live: i64,
    retrying: i64,
    dead: i64,
    bins: [i64; 5],
    peers: Vec<Report>,
}

#[derive(Default)]
struct Noted {
    recent: Recent,
    stored: Stored,
}

/// The slots as they were counted last, and what those who watch have of them.
#[derive(Default)]
struct Picture {
    slots: Slots,
    frames: Frames,
}

/// Watches the service, for people.
pub struct Observer {
    sources: Sources,
    noted: Mutex<Noted>,
    picture: tokio::sync::Mutex<Picture>,
    sender: broadcast::Sender<Frame>,
    /// Held by whoever reads the store for the overview.
    reading: tokio::sync::Mutex<()>,
}

/// The overview: the answer first, then the numbers.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The answer in words.
    pub sentence: Sentence,
    /// What does not work.
    pub degraded: Vec<Degraded>,
    /// How far the counters of all nodes rose in the last minute.
    pub minute: Counts,
    /// The same a second, over the last ten seconds.
    pub rates: Rates,
    /// Lateness of the last ten seconds at p99, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Live timers.
    pub live: i64,
    /// Live timers that wake in the next hour, day, week, 30 days, and later; each without those before it.
    pub bins: [i64; 5],
    /// Pointers in the last mile.
    pub last_mile: i64,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
    /// Due timers that wait in lanes.
    pub waiting: usize,
    /// Timers whose last attempt failed.
    pub retrying: i64,
    /// Timers that ended dead, in all.
    pub dead: i64,
    /// The nodes, this one first.
    pub nodes: Vec<Report>,
    /// When this was true.
    pub now: UnixMs,
}

/// Events a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Rates {
    /// First attempts.
    #[serde(skip)]
    pub fired: f64,
    /// New timers.
    pub registered: f64,
    /// SQL → minute slot.
    pub minute: f64,
    /// SQL → second slot.
    pub second: f64,
    /// Minute slot → second slot.
    pub cascade: f64,
    /// Slot → last mile.
    pub last_mile: f64,
    /// SQL → last mile.
    pub express: f64,
    /// Claims of what the sweep found.
    pub swept: f64,
    /// Timers delivered.
    pub delivered: f64,
}

impl Rates {
    fn of(counts: &Counts, seconds: f64) -> Self {
        let per = |count: u64| (count as f64 / seconds * 10.0).round() / 10.0;
        let [minute, second, cascade, last_mile, express] = counts.promoted.map(per);
        Self {
            fired: per(counts.fired()),
            registered: per(counts.registered),
            minute,
            second,
            cascade,
            last_mile,
            express,
            swept: per(counts.swept),
            delivered: per(counts.delivered),
        }
    }
}

impl Observer {
    /// An observer that has seen nothing yet.
    pub fn new(sources: Sources) -> Self {
        let near = sources.config.wheel.near.get();
        sources.metrics.wheel_reach.with_label_values(&["second"]).set(near.as_secs_f64());
        let (sender, _) = broadcast::channel(BEHIND);
        Self {
            sources,
            noted: Mutex::default(),
            picture: tokio::sync::Mutex::default(),
            sender,
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Watches until stopped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut second = 0;
        let mut frames = tokio::time::interval(Duration::from_secs(1) / FRAMES);
        // After a standstill the rhythm begins anew.
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.note(second).await;
            for turn in 0..FRAMES {
                if self.sender.receiver_count() > 0 {
                    self.send_frame(turn == 0, turn == 0 && second.is_multiple_of(FULL_EVERY_S)).await;
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = frames.tick() => {}
                }
            }
            second += 1;
        }
    }

    /// Once a second: the counters of the last minute; from time to time the report to the peers, and the gauges of the
    /// slots.
    async fn note(&self, second: u64) {
        let Sources { store, metrics, ownership, .. } = &self.sources;
        self.noted().recent.push(Counts::now(metrics));
        if ownership.has_peers() && second.is_multiple_of(REPORT_EVERY_S) {
            let text = serde_json::to_string(&self.report()).unwrap_or_default();
            if let Err(why) = store.put_report(&ownership.me().name, &text).await {
                tracing::debug!(%why, "the report to the other nodes was not written");
            }
        }
        // Not at once: a node that starts owns its shards only a moment later.
        if second % FULL_EVERY_S == SLOTS_AT_S {
            let mut picture = self.picture.lock().await;
            self.count_slots(&mut picture.slots).await;
        }
    }

    /// Counts every slot, and shows the gauges of this node's.
    async fn count_slots(&self, slots: &mut Slots) {
        let Sources { hot, positions, ownership, metrics, .. } = &self.sources;
        let looked = slots.look(&**hot, positions, ownership).await;
        // The ticker logs what is wrong with the wheels.
        if looked.is_err() || slots.count_all(&**hot).await.is_err() {
            return;
        }
        for level in Level::ALL {
            let own =
                slots.counts().iter().filter(|(slot, _)| slot.level == level).map(|(_, count)| count.own);
            let (all, largest) = own.fold((0, 0), |(all, largest), own| (all + own, own.max(largest)));
            metrics.wheel_pointers.with_label_values(&[level.word()]).set(all as i64);
            metrics.largest_slot.with_label_values(&[level.word()]).set(largest as i64);
        }
    }

    /// Counts some slots and sends what changed to all who watch.
    async fn send_frame(&self, with_overview: bool, full: bool) {
        let Sources { hot, positions, ownership, store, config, .. } = &self.sources;
        let overview = if with_overview { Some(self.overview().await) } else { None };
        let now = store.clock().now();
        let mut picture = self.picture.lock().await;
        let Picture { slots, frames } = &mut *picture;
        if !with_overview || slots.look(&**hot, positions, ownership).await.is_ok() {
            // A wheel that does not answer leaves the last counts; the overview says that it does not answer.
            let _ = slots.count_turn(&**hot, now).await;
        }
        let frame = frames.next(slots, now, overview.as_ref(), full.then_some(&config.wheel));
        // Fails only when nobody watches any more.
        let _ = self.sender.send(frame);
    }

    /// The present picture, and the frames that follow it.
    pub async fn watch(&self) -> (Frame, broadcast::Receiver<Frame>) {
        let overview = self.overview().await;
        let mut picture = self.picture.lock().await;
        let alone = self.sender.receiver_count() == 0;
        if alone {
            self.count_slots(&mut picture.slots).await;
        }
        let Picture { slots, frames } = &mut *picture;
        let first = frames.first(alone, slots, &overview, &self.sources.config.wheel);
        (first, self.sender.subscribe())
    }

    /// The same as one stream. It does not end by itself.
    pub async fn frames(&self) -> impl Stream<Item = Frame> + Send + use<> {
        let (first, frames) = self.watch().await;
        let following = futures::stream::unfold(frames, |mut frames| async move {
            loop {
                match frames.recv().await {
                    Ok(frame) => return Some((frame, frames)),
                    // One who was behind has missed some; the next `full` makes it right.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        futures::stream::once(std::future::ready(first)).chain(following)
    }

    /// Sets the gauges of what the rooms hold now.
    pub fn refresh(&self) {
        let Sources { store, hot, positions, ownership, dispatcher, metrics, .. } = &self.sources;
        let load = dispatcher.load();
        metrics.held.set(load.queued as i64);
        metrics.in_flight.set(load.in_flight as i64);
        let States { idle, sending, waiting } = load.states;
        for (state, lanes) in
            [("idle", idle), ("sending", sending), ("waiting", waiting), ("failing", load.failing)]
        {
            metrics.lanes.with_label_values(&[state]).set(lanes as i64);
        }
        let known = self.sources.destinations.known();
        destinations::show(metrics, dispatcher.receivers(usize::MAX), &known);
        for (pool, connections) in store.connections() {
            metrics.show_pool(pool, connections);
        }
        if let Some(connections) = hot.connections() {
            metrics.show_pool("hot", connections);
        }
        let now = store.clock().now();
        for level in Level::ALL {
            let behind = positions.behind(level, now).as_secs_f64();
            metrics.cursor_lag.with_label_values(&[level.word()]).set(behind);
        }
        let ahead = positions.lowest_watermark().map_or(0, |watermark| watermark.get() - now.get());
        metrics.watermark_ahead.set(ahead as f64 / 1000.0);
        let reach = &positions.reach;
        metrics.wheel_reach.with_label_values(&["minute"]).set(reach.get().as_secs_f64());
        metrics.wheels_short.set(i64::from(reach.is_short()));
        metrics.shards_owned.set(ownership.claimable().len() as i64);
    }

    /// The receivers that the nodes have sent to, worst first.
    pub async fn receivers(&self) -> Result<Vec<ReceiverLoad>, Error> {
        self.read_stored().await?;
        let peers = self.noted().stored.peers.clone();
        let own = self.sources.dispatcher.receivers(usize::MAX);
        Ok(report::merge_receivers(own, &peers))
    }

    /// The overview, of all nodes. What the store does not tell in time is left as it was.
    pub async fn overview(&self) -> Overview {
        if let Err(why) = self.read_stored().await {
            tracing::debug!(%why, "the overview shows what the store told before");
        }
        let own = self.report();
        let (stored, now) = (self.noted().stored.clone(), self.sources.store.clock().now());
        let nodes: Vec<Report> = std::iter::once(own).chain(stored.peers).collect();
        let (mut minute, mut ten) = (Counts::default(), Counts::default());
        for node in &nodes {
            minute.add(&node.minute);
            ten.add(&node.ten_seconds);
        }
        let degraded = self.degraded();
        let facts = Facts {
            degraded: degraded.clone(),
            fired: minute.fired(),
            p99_ms: minute.late_ms(0.99),
            oldest_due: nodes.iter().filter_map(|node| node.oldest_due).min(),
            waiting: nodes
                .iter()
                .flat_map(|node| &node.receivers)
                .max_by_key(|one| one.waiting)
                .map(|one| (one.receiver.clone(), one.waiting)),
            failing: report::merge_receivers(Vec::new(), &nodes).iter().filter(|one| one.failing).count(),
            now,
        };
        Overview {
            sentence: sentence(&facts),
            degraded,
            p99_ms: ten.late_ms(0.99),
            rates: Rates::of(&ten, 10.0),
            minute,
            live: stored.live,
            bins: stored.bins,
            last_mile: nodes.iter().map(|node| node.last_mile).sum(),
            in_flight: nodes.iter().map(|node| node.in_flight).sum(),
            waiting: nodes.iter().map(|node| node.waiting).sum(),
            retrying: stored.retrying,
            dead: stored.dead,
            nodes,
            now,
        }
    }

    /// What does not work now.
    pub fn degraded(&self) -> Vec<Degraded> {
        let Sources { config, positions, ownership, metrics, store, .. } = &self.sources;
        let redis = config.wheel.enabled && !positions.unreachable().is_empty();
        [
            (Degraded::Starting, !ownership.has_entered()),
            (Degraded::Store, ownership.has_entered() && metrics.store_up.get() == 0),
            (Degraded::Redis, ownership.has_entered() && redis),
            (Degraded::Restored, store.held().is_some_and(|held| held.is_open())),
            (Degraded::NoRoom, positions.reach.is_short()),
        ]
        .into_iter()
        .filter_map(|(what, is_so)| is_so.then_some(what))
        .collect()
    }

    /// What this node tells of itself.
    fn report(&self) -> Report {
        let Sources { dispatcher, metrics, ownership, store, .. } = &self.sources;
        let load = dispatcher.load();
        let noted = self.noted();
        let oldest_ms = metrics.oldest_due.get() * 1000.0;
        Report {
            name: ownership.me().name.clone(),
            minute: noted.recent.over(60),
            ten_seconds: noted.recent.over(10),
            in_flight: load.in_flight,
            waiting: load.queued,
            last_mile: metrics.last_mile.get(),
            unrecorded: metrics.unrecorded.get(),
            oldest_due: (oldest_ms > 0.0).then(|| UnixMs::new(store.clock().now().get() - oldest_ms as i64)),
            skew_ms: store.clock().skew_ms(),
            replays: metrics.replays.with_label_values(&["rebuilt"]).get(),
            wheels_up: metrics.hot_up.get() == 1,
            receivers: dispatcher.receivers(report::RECEIVERS),
        }
    }

    /// Reads what the overview needs from the store, if it is not fresh.
    async fn read_stored(&self) -> Result<(), Error> {
        let _reading = self.reading.lock().await;
        if self.noted().stored.read_at.is_some_and(|at| at.elapsed() < FACTS_VALID) {
            return Ok(());
        }
        let Sources { store, ownership, .. } = &self.sources;
        let now = store.clock().now();
        let tally = store.ledger(Whose::All).await?;
        let held_back = store.held_back().await?;
        let bins =
            store.summary().await?.map_or([0; 5], |summary| summary.horizons(now).map(|(_, count)| count));
        let peers = if ownership.has_peers() {
            let since = UnixMs::new(now.get() - REPORT_VALID_MS);
            let reports = store.reports(since).await?;
            let others = reports.iter().filter(|report| report.name != ownership.me().name);
            // One of another version is left out.
            others.filter_map(|report| serde_json::from_str(&report.text).ok()).collect()
        } else {
            Vec::new()
        };
        self.noted().stored = Stored {
            read_at: Some(Monotonic::now()),
            live: tally.pending,
            retrying: held_back.get(&State::Retrying).copied().unwrap_or(0),
            dead: tally.dead,
            bins,
            peers,
        };
        Ok(())
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The guarantee: every timer that is past its `wake_at` and in nobody's hands is found here, at every tick.
//!
//! One index probe per owned shard, from a floor that follows what was seen; once a minute from the very bottom. While
//! a shard's wheel turns, only rows that are a second overdue are read, and in a healthy run there are none; without
//! its wheel every timer of the shard fires from here. Found rows are offered to the dispatcher. Expired claims become
//! retries. Timers later than their grace expire. Rows that the full lane of a slow receiver cannot queue are
//! postponed. Lanes with a backlog of a priority are skipped until it is gone, and lanes that are held until they are
//! not. While a lane has a backlog, timers of high priority are looked for by themselves.
//!
//! The rows of skipped lanes are read past in SQL, and may be millions. So rows that woke within the last two minutes
//! are queried by themselves. Deeper rows are queried in as many statements as it takes, with queries for recent
//! rows in between.

mod batch_size;
mod floors;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::cold::{Change, ChangeEvent, ColdStore, DueRow, Error, MAX_APPLY_BATCH, Probe};
use crate::dispatch::{Dispatcher, OVERDUE, Offer};
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;
use crate::model::timer::{State, Token};
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::telemetry::{Rarely, Streak};
use crate::writer::Writer;
use batch_size::BatchSize;
use floors::{FULL_DEPTH, Floors};

/// How often the sweep looks while the wheels turn.
const TICK: Duration = Duration::from_secs(1);

/// How often it looks while timers fire from SQL.
const WITHOUT_WHEELS: Duration = Duration::from_millis(250);

/// The pause after a sweep, as a multiple of the time that it took: it reads the queued rows too, each time.
const PAUSE_FACTOR: u32 = 10;

/// The longest such pause, even after a sweep that the store held up: every timer may have to fire from here.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Rows read in one query beyond those that are queued already.
const PAGE: usize = 2048;

/// How long before a replay began, in milliseconds, claims may have been made due by the take-over.
const BEFORE_REPLAY_MS: i64 = 2000;

/// For how long, in milliseconds, a timer of an unknown kind is postponed.
const UNKNOWN_KIND_MS: i64 = 10_000;

/// Finds timers that are due.
pub struct Sweep {
    store: ColdStore,
    ownership: Arc<Ownership>,
    dispatcher: Arc<Dispatcher>,
    positions: Arc<Positions>,
    writer: Writer,
    metrics: Metrics,
    progress: Mutex<Progress>,
    /// Limits the warning that timers wait for a newer node.
    unknown_logged: Mutex<Rarely>,
}

/// How far down everything was seen, and how many shards one statement takes.
#[derive(Default)]
struct Progress {
    floors: Floors,
    recent: BatchSize,
    deep: BatchSize,
    /// The last query for deep rows that saw all of them.
    last_deep: Option<DeepQuery>,
    /// When a pass last saw everything: the recent rows, and the deep ones if these were due to be queried.
    complete_at: Option<Monotonic>,
    /// The store's clock was set back not long ago.
    set_back: Option<SetBack>,
    /// How often a lane had ceased to be held as the floors began to rise.
    released: u64,
}

impl Progress {
    const fn batch_size(&mut self, rows: Rows) -> &mut BatchSize {
        match rows {
            Rows::Recent => &mut self.recent,
            Rows::Deep => &mut self.deep,
        }
    }
}

/// Which rows a query is for: each sort has a batch size of its own.
#[derive(Clone, Copy)]
enum Rows {
    /// Those that woke within the last two minutes.
    Recent,
    /// All others.
    Deep,
}

/// The store's clock was set back, and what lies in the future is brought back.
#[derive(Clone, Copy)]
struct SetBack {
    /// By so many milliseconds at most.
    by_ms: i64,
    /// How often it was looked for already.
    looks: u32,
    /// When to look again, by the store's clock.
    next_at: UnixMs,
}

/// How often what lies in the future is looked for.
const LOOKS_BACK: u32 = 6;

/// A query for deep rows.
struct DeepQuery {
    /// When the next is due at the latest.
    next_at: Monotonic,
    /// How many backlogs had been cleared before it: a lane that was skipped may have room since.
    backlogs_cleared: u64,
    /// Its shards, in order.
    shards: Vec<i32>,
}

/// What one pass over all shards has done.
#[derive(Default)]
struct Pass {
    /// Rows that were queued, ended or postponed.
    handled: usize,
    /// A page was full: there is more.
    more: bool,
    /// When the oldest row found was due that nobody had in hand.
    oldest: Option<UnixMs>,
}

impl Sweep {
    /// A sweep over the shards that `ownership` holds.
    pub fn new(
        store: ColdStore,
        ownership: Arc<Ownership>,
        dispatcher: Arc<Dispatcher>,
        positions: Arc<Positions>,
        writer: Writer,
        metrics: Metrics,
    ) -> Self {
        let (progress, unknown_logged) = (Mutex::default(), Mutex::default());
        Self { store, ownership, dispatcher, positions, writer, metrics, progress, unknown_logged }
    }

    /// Sweeps until stopped; calls `on_first` after the first sweep that succeeds.
    pub async fn run(self, stop: CancellationToken, on_first: impl FnOnce()) {
        let sweep = Arc::new(self);
        let looping = SweepLoop {
            sweep: Arc::clone(&sweep),
            failing: false,
            streak: Streak::default(),
            on_first: Some(on_first),
        };
        tokio::select! {
            () = looping.run(stop) => {}
            () = sweep.look_for_high() => {}
        }
    }

    /// Looks for high timers by themselves while some lane has a backlog: the sweep may need a second to read past it, and
    /// rests then. Runs until dropped. A failure is the sweep's to tell.
    async fn look_for_high(&self) {
        loop {
            tokio::time::sleep(WITHOUT_WHEELS).await;
            let backlogged = self.dispatcher.backlogged();
            if backlogged.is_empty() {
                continue;
            }
            let now = self.store.clock().now();
            let probe = |(shard, _): (i32, _)| Probe {
                shard,
                floor: self.floor(shard, &Floors::default()),
                grace_ms: self.positions.grace_ms(shard, now),
            };
            let probes: Vec<Probe> = self.ownership.claimable().into_iter().map(probe).collect();
            if let Ok(found) = self.store.due_high(&probes, &backlogged, PAGE, PAGE).await {
                let _ = self.handle(found.rows).await;
            }
        }
    }

    /// Ends the claims that crashed owners left, then queries all owned shards, pass after pass while there is more and
    /// room for it. Returns how many rows it handled.
    pub async fn run_once(&self) -> Result<usize, Error> {
        // What is due is found though this fails.
        let brought = self.bring_back().await;
        let handled = self.sweep().await?;
        brought.map(|()| handled)
    }

    async fn sweep(&self) -> Result<usize, Error> {
        let recalled = self.ownership.take_recalled().into_iter();
        let recalled = recalled.map(|(uid, token)| Change {
            uid,
            caller: None,
            event: ChangeEvent::ClaimExpired(token),
        });
        self.end(recalled.collect()).await?;
        let mut handled = 0;
        loop {
            let mut pass = Pass::default();
            // The recent probes are of all shards, in order.
            let (recent, deep) = self.probes();
            if recent.is_empty() {
                return Ok(handled);
            }
            self.query_all(Rows::Recent, recent.clone(), &mut pass).await?;
            if self.is_deep_due(&recent) {
                self.query_deep(deep, &recent, &mut pass).await?;
            }
            if !pass.more {
                self.progress().complete_at = Some(Monotonic::now());
            }
            handled += pass.handled;
            self.show_oldest(pass.oldest);
            if !pass.more || pass.handled == 0 || self.may_pause() {
                return Ok(handled);
            }
        }
    }

    /// After the store's clock was set back: claims and retries that lie in the future count from now, in all shards of
    /// the store, because it may be that one node alone has noticed. Begins again after a failure.
    ///
    /// It looks again after 1, 2, 4, 8 and 16 seconds: a transaction that began before the clock was set back may commit
    /// after a look, and other nodes learn of it with their next heartbeat.
    async fn bring_back(&self) -> Result<(), Error> {
        let now = self.store.clock().now();
        if let Some(by_ms) = self.ownership.take_set_back() {
            let by_ms = self.progress().set_back.as_ref().map_or(by_ms, |before| before.by_ms.max(by_ms));
            self.progress().set_back = Some(SetBack { by_ms, looks: 0, next_at: now });
        }
        let Some(SetBack { by_ms, looks, .. }) = self.progress().set_back.filter(|one| one.next_at <= now)
        else {
            return Ok(());
        };
        for shard in self.store.shards() {
            self.writer.promote(self.store.bring_claims_back(shard, by_ms).await?);
        }
        let (mut brought, mut from) = (PAGE, i64::MIN);
        while brought == PAGE {
            let (retries, last) = self.store.bring_retries_back(from, PAGE).await?;
            (brought, from) = (retries.len(), last);
            self.writer.promote(retries);
        }
        // The round that found the set-back has tried this once.
        self.store.end_old_waits().await?;
        let pause = Duration::from_secs(1 << looks);
        let next = SetBack { by_ms, looks: looks + 1, next_at: now.plus(pause) };
        self.progress().set_back = (next.looks < LOOKS_BACK).then_some(next);
        self.ownership.recall_again();
        Ok(())
    }

    /// Shows the age of the oldest due timer: a row that was found, or a pointer that waits in a lane.
    fn show_oldest(&self, found: Option<UnixMs>) {
        let oldest = found.into_iter().chain(self.dispatcher.oldest_queued()).min();
        let age = oldest.map(|at| self.store.clock().now().since(at)).unwrap_or_default();
        self.metrics.oldest_due.set(age.as_secs_f64());
    }

    /// Whether there may be deep rows that were not seen. A query that took long is not repeated at once. A row that was
    /// offered since and not queued waits for as long, if it is no longer recent.
    fn is_deep_due(&self, shards: &[Probe]) -> bool {
        let cleared = self.dispatcher.backlogs_cleared();
        self.progress().last_deep.as_ref().is_none_or(|last| {
            let is_new = |probe: &Probe| last.shards.binary_search(&probe.shard).is_err();
            last.backlogs_cleared != cleared || Monotonic::now() >= last.next_at || shards.iter().any(is_new)
        })
    }

    /// Queries deep rows, a batch of shards at a time; recent rows do not wait for the end.
    async fn query_deep(&self, mut deep: Vec<Probe>, all: &[Probe], pass: &mut Pass) -> Result<(), Error> {
        let (began, backlogs_cleared) = (Monotonic::now(), self.dispatcher.backlogs_cleared());
        self.progress().deep.rotate(&mut deep);
        let mut recent_at = began;
        while !deep.is_empty() {
            let remaining = self.query(Rows::Deep, &deep, pass).await?.len();
            deep.drain(..deep.len() - remaining);
            if remaining > 0 && recent_at.elapsed() >= WITHOUT_WHEELS {
                let (recent, _) = self.probes();
                // Shards that another node owns meanwhile are its own to sweep.
                deep.retain(|probe| recent.iter().any(|one| one.shard == probe.shard));
                self.query_all(Rows::Recent, recent, pass).await?;
                recent_at = Monotonic::now();
            }
        }
        let shards = all.iter().map(|probe| probe.shard).collect();
        let next_at = Monotonic::now().plus((began.elapsed() * PAUSE_FACTOR).min(FULL_DEPTH));
        self.progress().last_deep = (!pass.more).then_some(DeepQuery { next_at, backlogs_cleared, shards });
        Ok(())
    }

    async fn query_all(&self, rows: Rows, mut probes: Vec<Probe>, pass: &mut Pass) -> Result<(), Error> {
        self.progress().batch_size(rows).rotate(&mut probes);
        let mut remaining = &probes[..];
        while !remaining.is_empty() {
            remaining = self.query(rows, remaining, pass).await?;
        }
        Ok(())
    }

    /// Queries as many of these shards as one statement takes, and handles the rows found. Returns the other shards.
    async fn query<'a>(
        &self,
        rows: Rows,
        probes: &'a [Probe],
        pass: &mut Pass,
    ) -> Result<&'a [Probe], Error> {
        let (probes, remaining) = self.progress().batch_size(rows).split(probes);
        let (released, backlogged) = (self.dispatcher.released(), self.dispatcher.backlogged());
        // Rows that are queued are found here too.
        let queued = self.dispatcher.queued_without_backlog();
        let limit = queued + PAGE;
        // All that is queued may be of one shard, whose rows would then hide those behind them.
        let per_shard = queued + (4 * PAGE / probes.len()).max(256);
        let began = Monotonic::now();
        let found = self.store.due(probes, &backlogged, limit, per_shard).await;
        let found = found.inspect_err(|_| self.progress().batch_size(rows).failed(probes, remaining))?;
        self.progress().batch_size(rows).took(probes.len(), began.elapsed());
        let now = found.store_now.unwrap_or_else(|| self.store.clock().now());
        let mut of_shard: HashMap<i32, usize> = HashMap::new();
        found.rows.iter().for_each(|due| *of_shard.entry(due.pointer.shard).or_default() += 1);
        let all = found.rows.len() < limit && of_shard.values().all(|rows| *rows < per_shard);
        // The rows of lanes that are held are below the floors; once one is not, these are read from the bottom.
        if all && backlogged.is_empty() && released == self.dispatcher.released() {
            self.progress().floors.rise(probes, &found.rows, now.get());
        }
        pass.more |= !all;
        let waits =
            |due: &&DueRow| due.state != State::Delivering && !self.dispatcher.has_in_hand(&due.pointer.uid);
        let oldest = found.rows.iter().filter(waits).map(|due| due.pointer.wake_at).min();
        pass.oldest = pass.oldest.into_iter().chain(oldest).min();
        pass.handled += self.handle(found.rows).await?;
        Ok(remaining)
    }

    /// Offers, ends or postpones these rows; returns how many of them are not in hand and not queued already.
    async fn handle(&self, rows: Vec<DueRow>) -> Result<usize, Error> {
        let (rows, unknown): (Vec<DueRow>, Vec<DueRow>) = rows.into_iter().partition(|due| due.is_known_kind);
        let (queued, rows): (Vec<DueRow>, Vec<DueRow>) =
            rows.into_iter().partition(|due| due.pointer.is_for_queue && !due.is_discarded);
        let parked = self.park(queued).await?;
        let mut postponed: Vec<(Pointer, i64)> = self.postpone_unknown(&unknown);
        let is_sent = |due: &DueRow| due.state != State::Delivering && !due.too_late && !due.is_discarded;
        let (sending, ending): (Vec<DueRow>, Vec<DueRow>) = rows.into_iter().partition(is_sent);
        let ended = self.end(ending.iter().map(ending_change).collect()).await?;
        let mut queued = 0;
        let now = self.store.clock().now();
        let is_overdue = |pointer: &Pointer| now.since(pointer.wake_at) > OVERDUE;
        let sending: Vec<Pointer> = sending
            .into_iter()
            .map(|due| Pointer { overdue: is_overdue(&due.pointer), ..due.pointer })
            .collect();
        for (pointer, offer) in sending.iter().zip(self.dispatcher.offer(&sending)) {
            match offer {
                Offer::Queued => queued += 1,
                Offer::Postpone(ms) => postponed.push((*pointer, ms)),
                Offer::Duplicate | Offer::Dropped | Offer::Held => {}
            }
        }
        for chunk in postponed.chunks(1000) {
            self.store.postpone(chunk).await?;
            self.metrics.postponed.inc_by(chunk.len() as u64);
        }
        Ok(queued + ended + postponed.len() + parked)
    }

    /// What is for queues needs no further look once it is ready: it waits for a worker. Those that somebody has had, or
    /// that may be too late, are looked at one by one. Returns how many there were.
    async fn park(&self, rows: Vec<DueRow>) -> Result<usize, Error> {
        let count = rows.len();
        let is_plain =
            |due: &DueRow| due.state == State::Scheduled && due.pointer.attempt == 0 && !due.too_late;
        let (plain, others): (Vec<DueRow>, Vec<DueRow>) = rows.into_iter().partition(is_plain);
        let plain: Vec<Pointer> = plain.into_iter().map(|due| due.pointer).collect();
        // Without a wheel, or after a loss, nobody has told the workers that wait.
        plain.iter().for_each(|pointer| self.store.note_ready(pointer.lane, pointer.wake_at));
        for chunk in plain.chunks(1000) {
            self.store.park(chunk).await?;
        }
        let look = |due: DueRow| Change { uid: due.pointer.uid, caller: None, event: ChangeEvent::Look };
        self.end(others.into_iter().map(look).collect()).await?;
        Ok(count)
    }

    /// Timers whose target is of a kind that only newer nodes know are logged and postponed, so that they do not stand
    /// before others.
    fn postpone_unknown(&self, unknown: &[DueRow]) -> Vec<(Pointer, i64)> {
        let mut logged = self.unknown_logged.lock().unwrap_or_else(PoisonError::into_inner);
        if !unknown.is_empty() && logged.is_due() {
            tracing::warn!(
                timers = unknown.len(),
                "overdue timers have targets of a kind that this version does not know; \
                 they wait until their shards are owned by a node of the version that registered them"
            );
        }
        unknown.iter().map(|due| (due.pointer, UNKNOWN_KIND_MS)).collect()
    }

    /// Applies these changes to timers that are not in hand; returns how many these are.
    async fn end(&self, mut changes: Vec<Change>) -> Result<usize, Error> {
        // The result of a timer in hand may be known and only not recorded yet.
        changes.retain(|change| !self.dispatcher.has_in_hand(&change.uid));
        for chunk in changes.chunks(MAX_APPLY_BATCH) {
            let applied: Result<Vec<_>, Error> = self.writer.apply(chunk).await.into_iter().collect();
            applied?;
        }
        Ok(changes.len())
    }

    /// The probes for recent rows, of every owned shard in order, and those for deep rows.
    fn probes(&self) -> (Vec<Probe>, Vec<Probe>) {
        let now = self.store.clock().now();
        let shards: Vec<i32> = self.ownership.claimable().into_iter().map(|(shard, _)| shard).collect();
        let mut progress = self.progress();
        let released = self.dispatcher.released();
        if std::mem::replace(&mut progress.released, released) != released {
            progress.floors = Floors::default();
        }
        progress.floors.begin(now.get(), &shards);
        let probe = |shard| Probe {
            shard,
            floor: self.floor(shard, &progress.floors),
            grace_ms: self.positions.grace_ms(shard, now),
        };
        floors::split_recent(shards.into_iter().map(probe).collect(), now.get())
    }

    /// From where to read a shard. Rows that a replay is reading, in order and at its rate, are not read here, except
    /// those that woke just before it began (claims of a dead owner, made due by the take-over).
    fn floor(&self, shard: i32, floors: &Floors) -> i64 {
        let floor = floors.of(shard);
        let replaying = self.positions.replaying_since(shard);
        replaying.map_or(floor, |since| floor.max(since.get() - BEFORE_REPLAY_MS))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next pass may wait for the next tick: some lanes have a backlog, and everything was seen a moment ago.
    /// To read past the rows of a large backlog takes long, and once a tick is often enough for the other lanes.
    fn may_pause(&self) -> bool {
        let complete_at = self.progress().complete_at;
        !self.dispatcher.backlogged().is_empty()
            && complete_at.is_some_and(|at| at.elapsed() < WITHOUT_WHEELS)
    }

    /// How long to wait after a sweep that took so long.
    fn pause_after(&self, took: Duration) -> Duration {
        let now = self.store.clock().now();
        let fires_here = |(shard, _): (i32, _)| self.positions.grace_ms(shard, now) == 0;
        let fires_here = self.ownership.claimable().into_iter().any(fires_here);
        let tick = if fires_here { WITHOUT_WHEELS } else { TICK };
        tick.max((took * PAUSE_FACTOR).min(LONGEST_PAUSE))
    }
}

/// The sweep as a loop.
struct SweepLoop<F> {
    sweep: Arc<Sweep>,
    /// The last sweep failed.
    failing: bool,
    streak: Streak,
    /// To be called after the first sweep that succeeds.
    on_first: Option<F>,
}

impl<F: FnOnce()> SweepLoop<F> {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let began = Monotonic::now();
            match self.sweep.run_once().await {
                Ok(_) => self.succeeded(),
                Err(why) => self.failed(&why),
            }
            // A store that is away is tried again soon, however long the failure took.
            let took = if self.failing { Duration::ZERO } else { began.elapsed() };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(self.sweep.pause_after(took)) => {}
                () = self.sweep.dispatcher.backlog_cleared(), if !self.failing => {}
                () = self.sweep.ownership.recalled() => {}
            }
        }
    }

    fn succeeded(&mut self) {
        // Without shards the store was not asked, so nothing is known of it.
        if self.failing && !self.sweep.ownership.claimable().is_empty() {
            self.failing = false;
            if self.streak.succeeded() {
                tracing::info!("the sweep works again");
            }
        }
        if let Some(on_first) = self.on_first.take() {
            on_first();
        }
    }

    fn failed(&mut self, why: &Error) {
        self.failing = true;
        if self.streak.failed(self.sweep.store.is_away()) {
            tracing::warn!(%why, "the sweep fails; trying again");
        } else {
            tracing::debug!(%why, "the sweep failed; trying again");
        }
    }
}

fn ending_change(due: &DueRow) -> Change {
    let pointer = due.pointer;
    let event = if due.state == State::Delivering {
        ChangeEvent::ClaimExpired(Token { generation: pointer.generation, attempt: pointer.attempt })
    } else if due.is_discarded {
        ChangeEvent::Discarded(pointer.generation)
    } else {
        ChangeEvent::TooLate(pointer.generation)
    };
    Change { uid: pointer.uid, caller: None, event }
}

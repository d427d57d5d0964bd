//! The guarantee: whatever is past its `wake_at` and in nobody's hands is found here, at every tick.
//!
//! One index probe per owned shard, from a lower bound that follows what was seen; once a minute from the
//! very bottom. While a shard's wheel turns, only what is a second overdue is looked at, and in a healthy run
//! there is none; without its wheel everything fires from here. Found rows are offered to the dispatcher;
//! claims that ran out become retries; what is later than its grace expires; rows that a slow receiver's full
//! lane cannot hold are put off. Receivers for which much waits already are passed over until it has gone.
//!
//! What they have waiting in SQL is read past, and may be millions of rows. So what woke within the last two
//! minutes is looked at by itself, and what lies deeper in as many statements as it takes, with looks at what
//! is recent in between.

mod floors;
mod stride;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::cold::{Change, ChangeEvent, ColdStore, Due, Error, MAX_APPLY_BATCH, Probe};
use crate::dispatch::{Dispatcher, OVERDUE, Offer};
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::model::timer::{State, Token};
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::writer::Writer;
use floors::{FULL_DEPTH, Floors};
use stride::Stride;

/// How often the sweep looks while the wheels turn.
const TICK: Duration = Duration::from_secs(1);

/// How often it looks while everything fires from here.
const ALONE: Duration = Duration::from_millis(250);

/// How much longer than a sweep took it waits at least: what is held waits in the rows that it reads.
const REST: u32 = 10;

/// The longest it rests, even after a look that the store held up: everything may have to fire from here.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Rows looked at in one probe beyond those that are held already.
const PROBE: usize = 2048;

/// How long before a replay began, in milliseconds, claims may have been made due by the take-over.
const BEFORE_REPLAY_MS: i64 = 2000;

/// How long, in milliseconds, a timer of an unknown kind is not looked at again.
const UNKNOWN_KIND_MS: i64 = 10_000;

/// Finds what is due.
pub struct Sweep {
    store: ColdStore,
    ownership: Arc<Ownership>,
    dispatcher: Arc<Dispatcher>,
    positions: Arc<Positions>,
    writer: Writer,
    metrics: Metrics,
    depth: Mutex<Depth>,
}

/// How deep to look, and in how many statements.
#[derive(Default)]
struct Depth {
    floors: Floors,
    recent: Stride,
    deep: Stride,
    /// The last look at all that lies deep, if that was not too much for one look.
    deepest: Option<DeepLook>,
    /// When a round of looks last saw all there was to see: what woke of late, and what lies deep if that was due.
    complete_at: Option<Monotonic>,
}

/// A look at what lies deep.
struct DeepLook {
    /// When the next is due at the latest.
    next: Monotonic,
    /// How often a lane had eased before: what was passed over may have room since.
    eased: u64,
    shards: Vec<i32>,
}

/// Which of its strides a look takes.
type Pace = fn(&mut Depth) -> &mut Stride;

/// What a round of looks came to.
#[derive(Default)]
struct Round {
    handed_on: usize,
    /// A look was full: there is more.
    more: bool,
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
        Self { store, ownership, dispatcher, positions, writer, metrics, depth: Mutex::default() }
    }

    /// Sweeps until stopped; tells when everything was looked at once.
    pub async fn run(self, stop: CancellationToken, looked: impl FnOnce()) {
        let mut failing = false;
        let mut looked = Some(looked);
        while !stop.is_cancelled() {
            let began = Monotonic::now();
            match self.run_once().await {
                Ok(_) => {
                    // Without shards nothing was asked of the store, so nothing is known of it.
                    if failing && !self.ownership.claimable().is_empty() {
                        failing = false;
                        tracing::info!("sweeping again");
                    }
                    if let Some(tell) = looked.take() {
                        tell();
                    }
                }
                Err(why) => {
                    self.metrics.store_errors.inc();
                    if !failing {
                        tracing::warn!(%why, "sweep failed; trying on");
                    }
                    failing = true;
                }
            }
            let now = self.store.clock().now();
            let alone = |(shard, _): (i32, _)| self.positions.grace_ms(shard, now) == 0;
            let alone = self.ownership.claimable().into_iter().any(alone);
            let tick = if alone { ALONE } else { TICK };
            let rest = if failing { Duration::ZERO } else { (began.elapsed() * REST).min(LONGEST_REST) };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(tick.max(rest)) => {}
                () = self.dispatcher.has_room(), if !failing => {}
                () = self.ownership.recalled() => {}
            }
        }
    }

    /// Looks once through all owned shards, on and on while there is more and room for it; what crashed owners
    /// had claimed first. Returns how many rows it handed on.
    pub async fn run_once(&self) -> Result<usize, Error> {
        let recalled = self.ownership.take_recalled().into_iter();
        let recalled = recalled.map(|(uid, token)| Change { uid, event: ChangeEvent::ClaimExpired(token) });
        self.end(recalled.collect()).await?;
        let mut handed_on = 0;
        loop {
            let mut round = Round::default();
            let (recent, deep) = self.probes();
            if recent.is_empty() {
                return Ok(handed_on);
            }
            self.look_through(|depth| &mut depth.recent, recent.clone(), &mut round).await?;
            // All shards, in order.
            if self.is_deep_due(&recent) {
                self.look_deep(deep, &recent, &mut round).await?;
            }
            if !round.more {
                self.depth().complete_at = Some(Monotonic::now());
            }
            handed_on += round.handed_on;
            if !round.more || round.handed_on == 0 || self.may_wait() {
                return Ok(handed_on);
            }
        }
    }

    /// Whether there may be something deep down that was not seen. A look that took long is not repeated at
    /// once; what was handed on in vain since waits so long, if it is older than what is looked at each time.
    fn is_deep_due(&self, shards: &[Probe]) -> bool {
        let eased = self.dispatcher.eased();
        self.depth().deepest.as_ref().is_none_or(|last| {
            let is_new = |probe: &Probe| last.shards.binary_search(&probe.shard).is_err();
            last.eased != eased || Monotonic::now() >= last.next || shards.iter().any(is_new)
        })
    }

    /// Looks at what lies deep, part by part; what falls due meanwhile does not wait for the end.
    async fn look_deep(&self, mut deep: Vec<Probe>, all: &[Probe], round: &mut Round) -> Result<(), Error> {
        let (began, eased) = (Monotonic::now(), self.dispatcher.eased());
        let pace: Pace = |depth| &mut depth.deep;
        self.depth().deep.turn(&mut deep);
        let mut recent_at = began;
        while !deep.is_empty() {
            let left = self.look(pace, &deep, round).await?.len();
            deep.drain(..deep.len() - left);
            if left > 0 && recent_at.elapsed() >= ALONE {
                let (recent, _) = self.probes();
                // What another node has got meanwhile is its own.
                deep.retain(|probe| recent.iter().any(|one| one.shard == probe.shard));
                self.look_through(|depth| &mut depth.recent, recent, round).await?;
                recent_at = Monotonic::now();
            }
        }
        let shards = all.iter().map(|probe| probe.shard).collect();
        let next = Monotonic::now().plus((began.elapsed() * REST).min(FULL_DEPTH));
        self.depth().deepest = (!round.more).then_some(DeepLook { next, eased, shards });
        Ok(())
    }

    async fn look_through(&self, pace: Pace, mut probes: Vec<Probe>, round: &mut Round) -> Result<(), Error> {
        pace(&mut self.depth()).turn(&mut probes);
        let mut left = &probes[..];
        while !left.is_empty() {
            left = self.look(pace, left, round).await?;
        }
        Ok(())
    }

    /// Looks at as many of these as one statement takes, and hands on what it finds. Returns the others.
    async fn look<'a>(
        &self,
        pace: Pace,
        probes: &'a [Probe],
        round: &mut Round,
    ) -> Result<&'a [Probe], Error> {
        let (probes, left) = pace(&mut self.depth()).part(probes);
        let crowded = self.dispatcher.crowded();
        // What waits in the lanes is found here too.
        let held = self.dispatcher.uncrowded();
        let limit = held + PROBE;
        // All that is held may be of one shard, whose rows would then hide those behind them.
        let per_shard = held + (4 * PROBE / probes.len()).max(256);
        let began = Monotonic::now();
        let found = self.store.due(probes, &crowded, limit, per_shard).await;
        let found = found.inspect_err(|_| pace(&mut self.depth()).failed(probes, left))?;
        pace(&mut self.depth()).took(probes.len(), began.elapsed());
        let now = found.store_now.unwrap_or_else(|| self.store.clock().now());
        let mut of_shard: HashMap<i32, usize> = HashMap::new();
        found.rows.iter().for_each(|due| *of_shard.entry(due.pointer.shard).or_default() += 1);
        let all = found.rows.len() < limit && of_shard.values().all(|rows| *rows < per_shard);
        if all && crowded.is_empty() {
            self.depth().floors.rise(probes, &found.rows, now.get());
        }
        round.more |= !all;
        round.handed_on += self.hand_on(found.rows).await?;
        Ok(left)
    }

    async fn hand_on(&self, rows: Vec<Due>) -> Result<usize, Error> {
        let (rows, unknown): (Vec<Due>, Vec<Due>) = rows.into_iter().partition(|due| due.is_known_kind);
        let mut put_off: Vec<(Pointer, i64)> = self.leave_to_others(&unknown);
        let (fresh, ending): (Vec<Due>, Vec<Due>) =
            rows.into_iter().partition(|due| due.state != State::Delivering && !due.too_late);
        let ended = self.end(ending.iter().map(ending_change).collect()).await?;
        let mut held = 0;
        let now = self.store.clock().now();
        let late = |pointer: &Pointer| now.since(pointer.wake_at) > OVERDUE;
        let fresh: Vec<Pointer> =
            fresh.into_iter().map(|due| Pointer { overdue: late(&due.pointer), ..due.pointer }).collect();
        for (pointer, offer) in fresh.iter().zip(self.dispatcher.offer(&fresh)) {
            match offer {
                Offer::Held => held += 1,
                Offer::Later(ms) => put_off.push((*pointer, ms)),
                Offer::Known | Offer::Left => {}
            }
        }
        for chunk in put_off.chunks(1000) {
            self.store.postpone(chunk).await?;
            self.metrics.postponed.inc_by(chunk.len() as u64);
        }
        Ok(usize::try_from(held).unwrap_or(0) + ended + put_off.len())
    }

    /// Timers whose target's kind only newer nodes know: told, and not looked at again for a while, so that they
    /// do not stand before others.
    fn leave_to_others(&self, unknown: &[Due]) -> Vec<(Pointer, i64)> {
        if !unknown.is_empty() {
            tracing::warn!(
                timers = unknown.len(),
                "overdue timers have targets of a kind that this version does not know; \
                 they wait until their shards are owned by a node of the version that registered them"
            );
        }
        unknown.iter().map(|due| (due.pointer, UNKNOWN_KIND_MS)).collect()
    }

    /// Ends these; tells how many of them were not in hand.
    async fn end(&self, mut changes: Vec<Change>) -> Result<usize, Error> {
        // The result may be known here and only not recorded yet.
        changes.retain(|change| !self.dispatcher.has_in_hand(&change.uid));
        for chunk in changes.chunks(MAX_APPLY_BATCH) {
            let applied: Result<Vec<_>, Error> = self.writer.apply(chunk).await.into_iter().collect();
            applied?;
        }
        Ok(changes.len())
    }

    /// Where to look: at what woke of late, and at what lies deeper.
    fn probes(&self) -> (Vec<Probe>, Vec<Probe>) {
        let now = self.store.clock().now();
        let shards: Vec<i32> = self.ownership.claimable().into_iter().map(|(shard, _)| shard).collect();
        let mut depth = self.depth();
        depth.floors.begin(now.get(), &shards);
        let probe = |shard| Probe {
            shard,
            floor: self.floor(shard, &depth.floors),
            grace_ms: self.positions.grace_ms(shard, now),
        };
        floors::part(shards.into_iter().map(probe).collect(), now.get())
    }

    /// From where to look: what a replay is reading, in order and at its rate, is left to it, but for what
    /// woke just before it began (claims of a dead owner, made due by the take-over).
    fn floor(&self, shard: i32, floors: &Floors) -> i64 {
        let floor = floors.of(shard);
        let replaying = self.positions.replaying_since(shard);
        replaying.map_or(floor, |since| floor.max(since.get() - BEFORE_REPLAY_MS))
    }

    fn depth(&self) -> MutexGuard<'_, Depth> {
        self.depth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether those for which enough was brought now may have their turn: to look past all that is due for them
    /// takes long when it is much, and every tick is often enough for the others.
    fn may_wait(&self) -> bool {
        let complete_at = self.depth().complete_at;
        !self.dispatcher.crowded().is_empty() && complete_at.is_some_and(|at| at.elapsed() < ALONE)
    }
}

fn ending_change(due: &Due) -> Change {
    let pointer = due.pointer;
    let event = if due.too_late {
        ChangeEvent::TooLate(pointer.generation)
    } else {
        ChangeEvent::ClaimExpired(Token { generation: pointer.generation, attempt: pointer.attempt })
    };
    Change { uid: pointer.uid, event }
}

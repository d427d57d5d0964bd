//! The guarantee: whatever is past its `wake_at` and in nobody's hands is found here, at every tick.
//!
//! One index probe per owned shard, from a lower bound that follows what was seen; once a minute from the
//! very bottom. While a shard's wheel turns, only what is a second overdue is looked at, and in a healthy run
//! there is none; without its wheel everything fires from here. Found rows are offered to the dispatcher;
//! claims that ran out become retries; what is later than its grace expires; rows that a slow receiver's full
//! lane cannot hold are put off. Receivers for which much waits already are passed over until it has gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::cold::{Applied, Change, ChangeEvent, ColdStore, Crowded, Due, Error, MAX_APPLY_BATCH, Probe};
use crate::dispatch::{Dispatcher, Offer};
use crate::loader::OVERDUE;
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::model::timer::{Answer, State, Token};
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::promote::Promotion;

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

/// A row's `wake_at` lies at or after the store's time at the start of the statement that wrote it; such a
/// transaction is over, or given up, well within this.
const SETTLED_MS: i64 = 60_000;

/// How long before a replay began, in milliseconds, claims may have been made due by the take-over.
const BEFORE_REPLAY_MS: i64 = 2000;

/// How often every shard is looked through from the bottom.
const FULL_DEPTH: Duration = Duration::from_secs(60);

/// Finds what is due.
pub struct Sweep {
    store: ColdStore,
    ownership: Arc<Ownership>,
    dispatcher: Arc<Dispatcher>,
    positions: Arc<Positions>,
    promotion: Promotion,
    metrics: Metrics,
    floors: Mutex<Floors>,
}

#[derive(Default)]
struct Floors {
    by_shard: HashMap<i32, i64>,
    full_at: Option<Monotonic>,
    /// The store's time at the last look. When its clock is set back, new rows lie below the old floors.
    looked_at: i64,
    /// When everything was last seen that is due for lanes that are not crowded.
    complete_at: Option<Monotonic>,
}

impl Sweep {
    /// A sweep over the shards that `ownership` holds.
    pub fn new(
        store: ColdStore,
        ownership: Arc<Ownership>,
        dispatcher: Arc<Dispatcher>,
        positions: Arc<Positions>,
        promotion: Promotion,
        metrics: Metrics,
    ) -> Self {
        Self { store, ownership, dispatcher, positions, promotion, metrics, floors: Mutex::default() }
    }

    /// Sweeps until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let mut failing = false;
        while !stop.is_cancelled() {
            let began = Monotonic::now();
            match self.run_once().await {
                // Without shards nothing was asked of the store, so nothing is known of it.
                Ok(_) if failing && !self.ownership.claimable().is_empty() => {
                    failing = false;
                    tracing::info!("sweeping again");
                }
                Ok(_) => {}
                Err(why) => {
                    self.metrics.store_errors.inc();
                    if !failing {
                        tracing::warn!(%why, "sweep failed; nothing fires until the cold store is back");
                    }
                    failing = true;
                }
            }
            let alone = self.probes_now().iter().any(|probe| probe.grace_ms == 0);
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
            let probes = self.probes();
            if probes.is_empty() {
                return Ok(handed_on);
            }
            let crowded = self.dispatcher.crowded();
            // What waits in the lanes is found here too.
            let held = self.dispatcher.uncrowded();
            let limit = held + PROBE;
            // All that is held may be of one shard, whose rows would then hide those behind them.
            let per_shard = held + (4 * PROBE / probes.len()).max(256);
            let found = self.store.due(&probes, &crowded, limit, per_shard).await?;
            let now = found.store_now.unwrap_or_else(|| self.store.clock().now());
            let mut of_shard: HashMap<i32, usize> = HashMap::new();
            found.rows.iter().for_each(|due| *of_shard.entry(due.pointer.shard).or_default() += 1);
            let more = found.rows.len() >= limit || of_shard.values().any(|rows| *rows >= per_shard);
            if !more {
                self.complete(&probes, &found.rows, now.get(), &crowded);
            }
            let moved = self.hand_on(found.rows).await?;
            handed_on += moved;
            if !more || moved == 0 || self.may_wait() {
                return Ok(handed_on);
            }
        }
    }

    async fn hand_on(&self, rows: Vec<Due>) -> Result<usize, Error> {
        let (fresh, ending): (Vec<Due>, Vec<Due>) =
            rows.into_iter().partition(|due| due.state != State::Delivering && !due.too_late);
        let ended = self.end(ending.iter().map(ending_change).collect()).await?;
        let mut held = 0;
        let mut put_off: Vec<(Pointer, i64)> = Vec::new();
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

    /// Ends these; tells how many of them were not in hand.
    async fn end(&self, mut changes: Vec<Change>) -> Result<usize, Error> {
        // The result may be known here and only not recorded yet.
        changes.retain(|change| !self.dispatcher.has_in_hand(&change.uid));
        for chunk in changes.chunks(MAX_APPLY_BATCH) {
            let mut failed = None;
            for (applied, change) in self.store.apply(chunk).await.into_iter().zip(chunk) {
                let row = match applied {
                    Ok(Applied::Live(row, Answer::Done)) => row,
                    Ok(_) => continue,
                    Err(why) => {
                        failed = Some(why);
                        continue;
                    }
                };
                if matches!(change.event, ChangeEvent::ClaimExpired(_)) {
                    self.metrics.claims_expired.inc();
                }
                self.promotion.written([&*row]);
                if row.life.state.is_end() {
                    self.metrics.ended.with_label_values(&[row.life.state.word()]).inc();
                }
            }
            if let Some(why) = failed {
                return Err(why);
            }
        }
        Ok(changes.len())
    }

    fn probes(&self) -> Vec<Probe> {
        self.settle_floors();
        self.probes_now()
    }

    fn probes_now(&self) -> Vec<Probe> {
        let floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.store.clock().now();
        let claimable = self.ownership.claimable().into_iter();
        claimable
            .map(|(shard, _)| Probe {
                shard,
                floor: self.floor(shard, &floors),
                grace_ms: self.positions.grace_ms(shard, now),
            })
            .collect()
    }

    /// From where to look: what a replay is reading, in order and at its rate, is left to it, but for what
    /// woke just before it began (claims of a dead owner, made due by the take-over).
    fn floor(&self, shard: i32, floors: &Floors) -> i64 {
        let floor = floors.by_shard.get(&shard).copied().unwrap_or(i64::MIN);
        let replaying = self.positions.replaying_since(shard);
        replaying.map_or(floor, |since| floor.max(since.get() - BEFORE_REPLAY_MS))
    }

    fn settle_floors(&self) {
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.store.clock().now().get();
        let set_back = now < floors.looked_at - SETTLED_MS / 2;
        floors.looked_at = now;
        if set_back || floors.full_at.is_none_or(|at| at.elapsed() >= FULL_DEPTH) {
            floors.by_shard.clear();
            floors.full_at = Some(Monotonic::now());
        }
        let claimable = self.ownership.claimable();
        // A shard that was lost and came back is looked through from the bottom.
        floors.by_shard.retain(|shard, _| claimable.iter().any(|(one, _)| one == shard));
    }

    /// Whether those for which enough was brought now may have their turn: to look past all that is due for them
    /// takes long when it is much, and every tick is often enough for the others.
    fn may_wait(&self) -> bool {
        let floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        !self.dispatcher.crowded().is_empty() && floors.complete_at.is_some_and(|at| at.elapsed() < ALONE)
    }

    /// All that is due was seen, but for crowded lanes. Everything below what was found, and settled, need not be
    /// looked at again.
    fn complete(&self, probes: &[Probe], rows: &[Due], now: i64, crowded: &Crowded) {
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        floors.complete_at = Some(Monotonic::now());
        if !crowded.is_empty() {
            return;
        }
        for probe in probes {
            // What lies below a higher one was left to a replay, which may be over by now.
            if probe.floor == floors.by_shard.get(&probe.shard).copied().unwrap_or(i64::MIN) {
                floors.by_shard.insert(probe.shard, now - SETTLED_MS);
            }
        }
        for due in rows {
            let wake_at = due.pointer.wake_at.get();
            floors.by_shard.entry(due.pointer.shard).and_modify(|floor| *floor = wake_at.min(*floor));
        }
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

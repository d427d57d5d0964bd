//! The ticker: takes each slot as its time comes and hands it to the last mile. It never delivers.
//!
//! A slot is taken half a second before it begins, so that a slow answer costs nothing. The next slot is always the one
//! after the last that was taken, never derived from now: a ticker that was held up takes every slot it missed, at
//! once. The mark moves only after the slot was handed to the last mile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::last_mile::LastMile;
use super::{AHEAD_MS, UnreachableShards, take_all};
use crate::clock::StoreClock;
use crate::metrics::Metrics;
use crate::model::time::UnixMs;
use crate::positions::Positions;
use crate::wheel::{Error, HotWheel, Level, Slot, Unreachable};

/// How often it tries again while wheels do not answer.
const RETRY: Duration = Duration::from_millis(250);

/// How often it looks for room while the last mile is full.
const FULL_WAIT: Duration = Duration::from_millis(50);

/// Takes the slots of this node's wheels.
pub struct Ticker {
    hot: Arc<dyn HotWheel>,
    positions: Arc<Positions>,
    last_mile: Arc<LastMile>,
    clock: StoreClock,
    metrics: Metrics,
}

impl Ticker {
    /// A ticker of these wheels.
    pub fn new(
        hot: Arc<dyn HotWheel>,
        positions: Arc<Positions>,
        last_mile: Arc<LastMile>,
        clock: StoreClock,
        metrics: Metrics,
    ) -> Self {
        Self { hot, positions, last_mile, clock, metrics }
    }

    /// Ticks until stopped.
    pub async fn run(self, stop: CancellationToken) {
        TickerLoop { ticker: self, servers: HashMap::new(), looked: false }.run(stop).await;
    }

    /// Compares the servers of all shards with the known ones. Another server, or the same one started again, may hold
    /// other contents or older ones, so the wheels in it are lost. Returns the shards whose servers do not answer.
    pub async fn check_servers(&self, known: &mut HashMap<i32, String>) -> Result<UnreachableShards, Error> {
        let shards = self.positions.shards();
        let (mut changed, mut unreachable) = (Vec::new(), UnreachableShards::new());
        for (shard, server) in shards.iter().zip(self.hot.servers(&shards).await?) {
            match server {
                Ok(server) if known.get(shard) == Some(&server) => {}
                Ok(server) => changed.extend(known.insert(*shard, server).map(|_| *shard)),
                Err(why) => drop(unreachable.insert(*shard, why)),
            }
        }
        self.positions.lose(&changed, "Redis was restarted or replaced by another");
        Ok(unreachable)
    }

    /// Notes which shards' wheels do not answer; logs when that changes between all, some and none, and at the first look.
    fn set_unreachable(&self, shards: &[i32], why: Option<&Error>, is_first: bool) {
        self.metrics.hot_up.set(i64::from(shards.is_empty()));
        if self.positions.set_unreachable(shards.iter().copied().collect()) || is_first {
            match why {
                None => tracing::info!("the wheels turn"),
                Some(why @ Error::SomeShards { .. }) => {
                    tracing::warn!(%why, "some wheels do not answer; their timers fire from SQL, up to a second late");
                }
                Some(why) => {
                    tracing::warn!(%why, "the wheels do not answer; timers fire from SQL, up to a second late");
                }
            }
        }
    }

    fn until_next_slot(&self) -> Duration {
        let reached = Level::Second.slot_of(UnixMs::new(self.clock.now().get() + AHEAD_MS));
        let next = UnixMs::new(reached.ends_at().get() - AHEAD_MS);
        self.clock.until(next).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// Takes every slot that begins within [`AHEAD_MS`], oldest first, and hands it to the last mile. Returns the shards
    /// whose wheels do not answer; the slots of the others are taken.
    pub async fn run_once(&self, now: UnixMs) -> Result<UnreachableShards, Error> {
        let mut unreachable = UnreachableShards::new();
        let promoted = self.metrics.promoted.with_label_values(&["last_mile"]);
        let target = UnixMs::new(now.get() + AHEAD_MS);
        for level in [Level::Second, Level::WholeMinute] {
            loop {
                let mut takes = self.positions.takes(level, target);
                takes.retain(|take| !unreachable.contains_key(&take.shard));
                if takes.is_empty() {
                    break;
                }
                while !self.last_mile.has_room() {
                    tokio::time::sleep(FULL_WAIT).await;
                }
                let mut done: Vec<(i32, Slot)> = Vec::new();
                let failed = take_all(&self.hot, &self.positions, &self.clock, takes, |take, page| {
                    self.last_mile.push(&page);
                    promoted.inc_by(page.len() as u64);
                    if let Some(take) = take {
                        self.positions.handed_over(take.shard, &take.incarnation, take.slot);
                        done.push((take.shard, take.slot));
                    }
                })
                .await?;
                unreachable.extend(failed);
                self.hot.hand_over(&done).await?;
            }
        }
        Ok(unreachable)
    }
}

/// The ticker as a loop.
struct TickerLoop {
    ticker: Ticker,
    /// The server that each shard's wheels were last seen in.
    servers: HashMap<i32, String>,
    /// Whether the wheels were asked before.
    looked: bool,
}

impl TickerLoop {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let outcome = self.round().await;
            let wait = match outcome {
                Ok(unreachable) => self.answered(&unreachable),
                Err(why) => self.failed(&why),
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn round(&mut self) -> Result<UnreachableShards, Error> {
        let mut unreachable = self.ticker.check_servers(&mut self.servers).await?;
        unreachable.extend(self.ticker.run_once(self.ticker.clock.now()).await?);
        // Redis answers, but their timers fire from SQL.
        let without_room = self.ticker.positions.without_room().into_iter();
        unreachable.extend(without_room.map(|shard| (shard, Unreachable::no_room())));
        Ok(unreachable)
    }

    /// The wheels answered, except these. Returns how long to wait for the next round.
    fn answered(&mut self, unreachable: &UnreachableShards) -> Duration {
        let is_first = !std::mem::replace(&mut self.looked, true);
        let Some((_, why)) = unreachable.first_key_value() else {
            self.ticker.set_unreachable(&[], None, is_first);
            return self.ticker.until_next_slot();
        };
        let why = Error::SomeShards { shards: unreachable.len(), why: why.clone() };
        let shards: Vec<i32> = unreachable.keys().copied().collect();
        self.ticker.set_unreachable(&shards, Some(&why), is_first);
        RETRY
    }

    /// No wheel answered. Returns how long to wait for the next round.
    fn failed(&mut self, why: &Error) -> Duration {
        let is_first = !std::mem::replace(&mut self.looked, true);
        self.ticker.set_unreachable(&self.ticker.positions.shards(), Some(why), is_first);
        RETRY
    }
}

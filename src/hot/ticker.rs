//! The ticker: takes each slot as its time comes and hands it to the last mile. It never delivers.
//!
//! A slot is taken half a second before it begins, so that a slow answer costs nothing. The next slot is
//! always the one after the last that was taken, never derived from now: a ticker that was held up goes
//! through every slot it missed, at once. The mark moves only after the hand-over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::last_mile::LastMile;
use super::{AHEAD_MS, Missing, take_all};
use crate::clock::StoreClock;
use crate::metrics::Metrics;
use crate::model::time::UnixMs;
use crate::positions::Positions;
use crate::wheel::{Error, HotWheel, Level, Slot};

/// How often it tries while the wheels do not answer.
const RETRY: Duration = Duration::from_millis(250);

/// How often it looks for room in a last mile that is full.
const FULL: Duration = Duration::from_millis(50);

/// Lets the wheels turn.
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
        let mut servers = HashMap::new();
        while !stop.is_cancelled() {
            let outcome = match self.check_servers(&mut servers).await {
                Ok(mut missing) => self.run_once(self.clock.now()).await.map(|more| {
                    missing.extend(more);
                    missing
                }),
                failed => failed,
            };
            self.metrics.cursor_lag.set(self.positions.behind(self.clock.now()).as_secs_f64());
            let wait = match outcome {
                Ok(missing) => match missing.first_key_value() {
                    None => {
                        self.note(&[], None);
                        self.until_next_slot()
                    }
                    Some((_, why)) => {
                        let why = Error::Part { shards: missing.len(), why: why.clone() };
                        self.note(&missing.keys().copied().collect::<Vec<_>>(), Some(&why));
                        RETRY
                    }
                },
                Err(why) => {
                    self.note(&self.positions.shards(), Some(&why));
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Another server, or the same one started again, may hold other contents, or older ones. Tells which
    /// shards' servers do not answer.
    pub async fn check_servers(&self, known: &mut HashMap<i32, String>) -> Result<Missing, Error> {
        let shards = self.positions.shards();
        let (mut changed, mut missing) = (Vec::new(), Missing::new());
        for (shard, server) in shards.iter().zip(self.hot.servers(&shards).await?) {
            match server {
                Ok(server) if known.get(shard) == Some(&server) => {}
                Ok(server) => changed.extend(known.insert(*shard, server).map(|_| *shard)),
                Err(why) => drop(missing.insert(*shard, why)),
            }
        }
        self.positions.lose(&changed, "Redis was restarted or replaced by another");
        Ok(missing)
    }

    fn note(&self, away: &[i32], why: Option<&Error>) {
        self.metrics.hot_up.set(i64::from(away.is_empty()));
        if self.positions.set_away(away.iter().copied().collect()) {
            match why {
                None => tracing::info!("the wheels turn"),
                Some(why @ Error::Part { .. }) => {
                    tracing::warn!(%why, "part of the wheels does not answer; its timers fire from SQL, up to a second late");
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

    /// Takes every slot that begins within the time ahead, oldest first, and hands it over. Tells which
    /// shards' slots are out of reach; those of the others are taken.
    pub async fn run_once(&self, now: UnixMs) -> Result<Missing, Error> {
        let mut missing = Missing::new();
        let target = UnixMs::new(now.get() + AHEAD_MS);
        for level in [Level::Second, Level::WholeMinute] {
            loop {
                let mut takes = self.positions.takes(level, target);
                takes.retain(|take| !missing.contains_key(&take.shard));
                if takes.is_empty() {
                    break;
                }
                while !self.last_mile.has_room() {
                    tokio::time::sleep(FULL).await;
                }
                let mut done: Vec<(i32, Slot)> = Vec::new();
                let away = take_all(&self.hot, &self.positions, takes, |take, page| {
                    self.last_mile.push(&page);
                    if let Some(take) = take {
                        self.positions.handed_over(take.shard, &take.incarnation, take.slot);
                        done.push((take.shard, take.slot));
                    }
                })
                .await?;
                missing.extend(away);
                self.hot.hand_over(&done).await?;
            }
        }
        Ok(missing)
    }
}

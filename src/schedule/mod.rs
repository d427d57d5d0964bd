//! The maker: occurrences of schedules are made ahead of their times, and those that wait for a judgement are judged.
//!
//! Each second one look over the shards of this node, if it knows of a schedule. What it finds is decided in transactions that lock the schedules
//! (`src/cold/schedules`), so a second maker changes nothing, and one that is killed leaves nothing half done. Nominal times
//! come from [`crate::model::rule`]; what becomes of one that was missed is [`crate::model::schedule::fires`].
//!
//! Occurrences that another build has made ahead, by older data of the time zones, follow this build's data: a maker looks for
//! such schedules when it has got a shard.
//!
//! The maker never delivers and never claims: an occurrence is a timer like any other.

pub mod upcoming;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::StoreClock;
use crate::cold::{Error, MadeOccurrences};
use crate::model::id::Epoch;
use crate::model::schedule::AHEAD;
use crate::ownership::Ownership;
use crate::telemetry::{Rarely, Streak};
use crate::writer::Writer;

/// How often the maker looks.
const TICK: Duration = Duration::from_secs(1);

/// The most transactions of one look.
const MOST_ROUNDS: usize = 50;

/// So many schedules a look has follow this build's data of the time zones.
const MOST_FOLLOWING: usize = 50;

/// How far ahead occurrences are made: no further than the wheels reach.
pub fn reach(window: Duration) -> Duration {
    window.min(AHEAD)
}

/// Makes occurrences for the shards of this node.
pub struct Maker {
    writer: Writer,
    ownership: Arc<Ownership>,
    clock: StoreClock,
    reach: Duration,
    streak: Mutex<Streak>,
    unreadable: Mutex<Rarely>,
    /// Shards in which every schedule follows this build's data of the time zones.
    following: Mutex<HashMap<i32, Epoch>>,
}

impl Maker {
    /// A maker for the shards that `ownership` holds. `window` is the reach of the wheels.
    pub fn new(writer: Writer, ownership: Arc<Ownership>, clock: StoreClock, window: Duration) -> Self {
        let (streak, unreadable, following) = Default::default();
        Self { writer, ownership, clock, reach: reach(window), streak, unreadable, following }
    }

    /// Looks each second until stopped. The transaction under way is finished.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            match self.run_once().await {
                Ok(_) => {
                    if self.streak().succeeded() {
                        tracing::info!("schedules make their occurrences again");
                    }
                }
                Err(why) if self.streak().failed(self.writer.is_away()) => {
                    tracing::warn!(%why, "schedules make no occurrences; trying again");
                }
                Err(why) => tracing::debug!(%why, "a look at schedules failed"),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(TICK) => {}
            }
        }
    }

    /// One look, in as many transactions as it takes. Returns what it did.
    pub async fn run_once(&self) -> Result<MadeOccurrences, Error> {
        let mut all = MadeOccurrences::default();
        for _ in 0..MOST_ROUNDS {
            let owned = self.ownership.claimable();
            let made = self.writer.make_occurrences(&owned, self.reach).await?;
            let is_cut = made.is_cut;
            self.log(&made);
            all.add(made);
            if !is_cut {
                break;
            }
        }
        self.follow_zones().await?;
        Ok(all)
    }

    /// Looks once in each shard for schedules that another build has made, by older data of the time zones.
    async fn follow_zones(&self) -> Result<(), Error> {
        let is_new = |(shard, epoch): &(i32, Epoch)| self.following().get(shard) != Some(epoch);
        let shards: Vec<(i32, Epoch)> = self.ownership.claimable().into_iter().filter(is_new).collect();
        if shards.is_empty() {
            return Ok(());
        }
        let count = self.writer.follow_zones(&shards, MOST_FOLLOWING, self.reach).await?;
        if count < MOST_FOLLOWING {
            self.following().extend(shards);
        }
        Ok(())
    }

    fn log(&self, made: &MadeOccurrences) {
        for (schedule, why) in &made.failures {
            // It is looked at again after a minute at the earliest.
            tracing::error!(schedule, %why, "the next nominal time of a schedule was not found; it is tried again");
        }
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schedule) = made.unreadable.first().filter(|_| unreadable.is_due()) {
            tracing::warn!(
                schedule,
                "a schedule cannot be read by this version and makes nothing; run a newer version"
            );
        }
    }

    fn following(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Epoch>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streak(&self) -> std::sync::MutexGuard<'_, Streak> {
        self.streak.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

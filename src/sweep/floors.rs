//! From where the sweep looks in each shard.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Monotonic;
use crate::cold::{Due, Probe};

/// A row's `wake_at` lies at or after the store's time at the start of the statement that wrote it; such a
/// transaction is over, or given up, well within this. A retry may lie before: its result is written when the
/// store is back. Then the look from the bottom finds it.
const SETTLED_MS: i64 = 60_000;

/// What woke within this is looked at first, and by itself: what falls due now does not wait for a look at all
/// that lies below. A floor that has risen lies within it until the next look.
const RECENT_MS: i64 = 2 * SETTLED_MS;

/// How often every shard is looked through from the bottom.
pub(super) const FULL_DEPTH: Duration = Duration::from_secs(60);

/// The lowest `wake_at`, by shard, below which nothing is due that was not seen and handed on.
#[derive(Debug, Default)]
pub(super) struct Floors {
    by_shard: HashMap<i32, i64>,
    full_at: Option<Monotonic>,
    /// The store's time at the last look. When its clock is set back, new rows lie below the old floors.
    looked_at: i64,
}

impl Floors {
    /// A look begins, at this time of the store, at these shards.
    pub fn begin(&mut self, now: i64, shards: &[i32]) {
        let set_back = now < self.looked_at - SETTLED_MS / 2;
        self.looked_at = now;
        if set_back || self.full_at.is_none_or(|at| at.elapsed() >= FULL_DEPTH) {
            self.by_shard.clear();
            self.full_at = Some(Monotonic::now());
        }
        // A shard that was lost and came back is looked through from the bottom.
        self.by_shard.retain(|shard, _| shards.contains(shard));
    }

    /// From where to look.
    pub fn of(&self, shard: i32) -> i64 {
        self.by_shard.get(&shard).copied().unwrap_or(i64::MIN)
    }

    /// All that is due in these shards was seen. Everything below what was found, and settled, need not be
    /// looked at again.
    pub fn rise(&mut self, probes: &[Probe], rows: &[Due], now: i64) {
        for probe in probes {
            // What lies below a higher one was left: to a replay, which may be over by now, or to another look.
            if probe.floor == self.of(probe.shard) {
                self.by_shard.insert(probe.shard, now - SETTLED_MS);
            }
        }
        for due in rows {
            let wake_at = due.pointer.wake_at.get();
            self.by_shard.entry(due.pointer.shard).and_modify(|floor| *floor = wake_at.min(*floor));
        }
    }
}

/// Parts these into what woke of late, of all shards, and what lies deeper, of those where something may.
pub(super) fn part(probes: Vec<Probe>, now: i64) -> (Vec<Probe>, Vec<Probe>) {
    let recent = now - RECENT_MS;
    let deep = probes.iter().filter(|probe| probe.floor < recent).copied().collect();
    let above = |probe: Probe| Probe { floor: probe.floor.max(recent), ..probe };
    (probes.into_iter().map(above).collect(), deep)
}

//! From which `wake_at` on the sweep reads each shard.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Monotonic;
use crate::cold::{DueRow, Probe};

/// A row's `wake_at` is at or after the store's time at the start of the statement that wrote it, and such a
/// transaction has committed or failed well within this time. The `wake_at` of a retry may be earlier, because its
/// result is written when the store is back; the query from the bottom finds it.
const SETTLED_MS: i64 = 60_000;

/// Rows that woke within this time are queried first and by themselves, so that a timer that falls due now does not wait
/// for a query of all deeper rows. A floor that has risen is within it until the next query.
const RECENT_MS: i64 = 2 * SETTLED_MS;

/// How often every shard is read from the bottom.
pub(super) const FULL_DEPTH: Duration = Duration::from_secs(60);

/// By shard: every due row whose `wake_at` is below the floor was seen and handled.
#[derive(Debug, Default)]
pub(super) struct Floors {
    by_shard: HashMap<i32, i64>,
    full_at: Option<Monotonic>,
    /// The store's time at the last query. When its clock is set back, new rows are below the old floors.
    queried_at: i64,
}

impl Floors {
    /// A query of these shards begins, at this time of the store.
    pub fn begin(&mut self, now: i64, shards: &[i32]) {
        let set_back = now < self.queried_at - SETTLED_MS / 2;
        self.queried_at = now;
        if set_back || self.full_at.is_none_or(|at| at.elapsed() >= FULL_DEPTH) {
            self.by_shard.clear();
            self.full_at = Some(Monotonic::now());
        }
        // A shard that was lost and is owned again is read from the bottom.
        self.by_shard.retain(|shard, _| shards.contains(shard));
    }

    /// From which `wake_at` on to read this shard.
    pub fn of(&self, shard: i32) -> i64 {
        self.by_shard.get(&shard).copied().unwrap_or(i64::MIN)
    }

    /// All due rows of these shards were seen. Rows below the earliest of them need not be read again, once no open
    /// transaction can add one there.
    pub fn rise(&mut self, probes: &[Probe], rows: &[DueRow], now: i64) {
        for probe in probes {
            // Rows below a probe's higher floor were not read: they are a replay's, which may be over by now, or another
            // query's.
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

/// Splits probes into those for recent rows, of all shards, and those for deep rows, of the shards that may have some.
pub(super) fn split_recent(probes: Vec<Probe>, now: i64) -> (Vec<Probe>, Vec<Probe>) {
    let recent = now - RECENT_MS;
    let deep = probes.iter().filter(|probe| probe.floor < recent).copied().collect();
    let above = |probe: Probe| Probe { floor: probe.floor.max(recent), ..probe };
    (probes.into_iter().map(above).collect(), deep)
}

//! How many shards one statement of the sweep queries.

use std::time::Duration;

use crate::cold::Probe;

/// A statement that takes longer has too many shards. Far below the store's timeout.
const LONG: Duration = Duration::from_secs(1);

/// How many shards one statement queries, and which shard comes first.
///
/// A query reads past the rows of lanes with a backlog. Where these are millions, a statement for all shards would meet
/// the store's timeout each time, and nothing would be found for any receiver. Then a statement gets fewer shards, and
/// the next query begins behind the shard that failed.
#[derive(Debug)]
pub(super) struct BatchSize {
    shards: usize,
    first: i32,
}

impl Default for BatchSize {
    fn default() -> Self {
        // Nothing is known yet. While statements are quick, one does for all shards after a few of them.
        Self { shards: 1, first: i32::MIN }
    }
}

impl BatchSize {
    /// Rotates probes, which are in order of shards, so that the shard that comes first is in front.
    pub fn rotate(&self, probes: &mut [Probe]) {
        probes.rotate_left(probes.partition_point(|probe| probe.shard < self.first));
    }

    /// Splits off the probes of the next statement; returns these and the others.
    pub fn split<'a>(&self, probes: &'a [Probe]) -> (&'a [Probe], &'a [Probe]) {
        probes.split_at(self.shards.min(probes.len()))
    }

    /// A statement for so many shards took so long.
    pub fn took(&mut self, shards: usize, time: Duration) {
        self.shards = if time > LONG {
            (shards / 2).max(1)
        } else if time < LONG / 4 {
            self.shards.saturating_mul(2)
        } else {
            // A store that is slow for every statement does not get more of them.
            self.shards.max(shards + shards.div_ceil(4))
        };
    }

    /// The statement for `batch` failed, before `remaining`. The next one has half as many shards. It begins with the same
    /// shard, or behind it if that one failed alone.
    pub fn failed(&mut self, batch: &[Probe], remaining: &[Probe]) {
        self.shards = (batch.len() / 2).max(1);
        let next = if batch.len() > 1 { batch } else { remaining };
        if let Some(next) = next.first() {
            self.first = next.shard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries so many shards once, of which one fails. Returns those that were seen.
    fn query(size: &mut BatchSize, shards: i32, broken: i32) -> Vec<i32> {
        let mut probes: Vec<_> = (0..shards).map(|shard| Probe { shard, floor: 0, grace_ms: 0 }).collect();
        size.rotate(&mut probes);
        let (mut seen, mut remaining) = (Vec::new(), &probes[..]);
        while !remaining.is_empty() {
            let (batch, rest) = size.split(remaining);
            if batch.iter().any(|probe| probe.shard == broken) {
                size.failed(batch, rest);
                break;
            }
            size.took(batch.len(), Duration::from_millis(20));
            seen.extend(batch.iter().map(|probe| probe.shard));
            remaining = rest;
        }
        seen
    }

    #[test]
    fn a_shard_that_cannot_be_queried_hides_no_other() {
        for shards in 2..=70 {
            for broken in 0..shards {
                let mut size = BatchSize::default();
                query(&mut size, shards, -1);
                for _ in 0..5 {
                    let seen = (0..30).flat_map(|_| query(&mut size, shards, broken));
                    let seen: std::collections::BTreeSet<i32> = seen.collect();
                    assert_eq!(seen.len() as i32, shards - 1, "{broken} of {shards}: {seen:?}");
                }
                // Once it can be queried, one statement does for all again.
                assert_eq!(query(&mut size, shards, -1).len() as i32, shards);
                assert!(size.shards >= shards as usize);
            }
        }
    }

    #[test]
    fn a_store_that_answers_slowly_is_not_asked_more_often_for_long() {
        let mut size = BatchSize::default();
        let probes: Vec<_> = (0..64).map(|shard| Probe { shard, floor: 0, grace_ms: 0 }).collect();
        let mut statements = 0;
        while size.split(&probes).0.len() < 64 {
            statements += 1;
            size.took(size.split(&probes).0.len(), Duration::from_millis(300));
            assert!(statements < 20);
        }
        size.took(64, Duration::from_secs(2));
        assert_eq!(size.split(&probes).0.len(), 32);
    }
}

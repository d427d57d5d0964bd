//! How many shards one statement of the sweep looks at.

use std::time::Duration;

use crate::cold::Probe;

/// What took longer is looked at in parts; far below the store's timeout.
const LONG: Duration = Duration::from_secs(1);

/// How many shards are looked at in one statement, and which comes first.
///
/// A look reads past what is due for crowded lanes. Where that is millions of rows, a statement for all shards
/// would meet the store's timeout each time, and nothing would be found for anybody. So it is fewer shards then,
/// and the next look goes on behind the one that failed.
#[derive(Debug)]
pub(super) struct Stride {
    shards: usize,
    first: i32,
}

impl Default for Stride {
    fn default() -> Self {
        // Nothing is known yet; while it goes quickly, a few statements later one does for all.
        Self { shards: 1, first: i32::MIN }
    }
}

impl Stride {
    /// Puts these, which are in order, into the order in which they are to be looked at.
    pub fn turn(&self, probes: &mut [Probe]) {
        probes.rotate_left(probes.partition_point(|probe| probe.shard < self.first));
    }

    /// What to look at in one statement, and what is left.
    pub fn part<'a>(&self, probes: &'a [Probe]) -> (&'a [Probe], &'a [Probe]) {
        probes.split_at(self.shards.min(probes.len()))
    }

    /// A look at so many shards took so long.
    pub fn took(&mut self, shards: usize, time: Duration) {
        self.shards = if time > LONG {
            (shards / 2).max(1)
        } else if time < LONG / 4 {
            self.shards.saturating_mul(2)
        } else {
            // A store that is slow whatever it is asked is not asked more often for it.
            self.shards.max(shards + shards.div_ceil(4))
        };
    }

    /// A look at these failed, and these were left: the next begins with half of them, and goes on behind one
    /// that fails alone.
    pub fn failed(&mut self, part: &[Probe], left: &[Probe]) {
        self.shards = (part.len() / 2).max(1);
        let next = if part.len() > 1 { part } else { left };
        if let Some(next) = next.first() {
            self.first = next.shard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks once through so many shards, of which one cannot be looked at. Returns what was seen.
    fn look(stride: &mut Stride, shards: i32, broken: i32) -> Vec<i32> {
        let mut probes: Vec<_> = (0..shards).map(|shard| Probe { shard, floor: 0, grace_ms: 0 }).collect();
        stride.turn(&mut probes);
        let (mut seen, mut left) = (Vec::new(), &probes[..]);
        while !left.is_empty() {
            let (part, rest) = stride.part(left);
            if part.iter().any(|probe| probe.shard == broken) {
                stride.failed(part, rest);
                break;
            }
            stride.took(part.len(), Duration::from_millis(20));
            seen.extend(part.iter().map(|probe| probe.shard));
            left = rest;
        }
        seen
    }

    #[test]
    fn a_shard_that_cannot_be_looked_at_hides_no_other() {
        for shards in 2..=70 {
            for broken in 0..shards {
                let mut stride = Stride::default();
                look(&mut stride, shards, -1);
                for _ in 0..5 {
                    let seen = (0..30).flat_map(|_| look(&mut stride, shards, broken));
                    let seen: std::collections::BTreeSet<i32> = seen.collect();
                    assert_eq!(seen.len() as i32, shards - 1, "{broken} of {shards}: {seen:?}");
                }
                // Once it can be, one statement does for all again.
                assert_eq!(look(&mut stride, shards, -1).len() as i32, shards);
                assert!(stride.shards >= shards as usize);
            }
        }
    }

    #[test]
    fn a_store_that_answers_slowly_is_not_asked_more_often_for_long() {
        let mut stride = Stride::default();
        let probes: Vec<_> = (0..64).map(|shard| Probe { shard, floor: 0, grace_ms: 0 }).collect();
        let mut statements = 0;
        while stride.part(&probes).0.len() < 64 {
            statements += 1;
            stride.took(stride.part(&probes).0.len(), Duration::from_millis(300));
            assert!(statements < 20);
        }
        stride.took(64, Duration::from_secs(2));
        assert_eq!(stride.part(&probes).0.len(), 32);
    }
}

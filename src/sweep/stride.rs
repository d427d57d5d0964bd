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
        if time > LONG {
            self.shards = (shards / 2).max(1);
        } else if time < LONG / 4 {
            self.shards = self.shards.saturating_mul(2);
        }
    }

    /// A look at so many shards failed; these were left.
    pub fn failed(&mut self, shards: usize, left: &[Probe]) {
        self.shards = (shards / 2).max(1);
        if let Some(next) = left.first() {
            self.first = next.shard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks once through shards 0 to 7, of which one cannot be looked at. Returns what was seen.
    fn look(stride: &mut Stride, broken: i32) -> Vec<i32> {
        let mut probes: Vec<_> = (0..8).map(|shard| Probe { shard, floor: 0, grace_ms: 0 }).collect();
        stride.turn(&mut probes);
        let (mut seen, mut left) = (Vec::new(), &probes[..]);
        while !left.is_empty() {
            let (part, rest) = stride.part(left);
            let fails = part.iter().any(|probe| probe.shard == broken);
            if fails {
                stride.failed(part.len(), rest);
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
        let mut stride = Stride::default();
        let mut seen = std::collections::BTreeSet::new();
        look(&mut stride, -1);
        let looks = (0..20).take_while(|_| {
            seen.extend(look(&mut stride, 2));
            seen.len() < 7
        });
        assert!(looks.count() < 8, "{stride:?}");
        assert!(!seen.contains(&2));
        // Once it can be, one statement does for all again.
        let mut all = look(&mut stride, -1);
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
        let probes: Vec<_> = (0..8).map(|shard| Probe { shard, floor: 0, grace_ms: 0 }).collect();
        assert_eq!(stride.part(&probes).0.len(), 8);
    }
}

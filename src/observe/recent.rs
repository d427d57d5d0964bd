//! The last minute of this node's counters, second by second.

use std::collections::VecDeque;

use prometheus::core::Metric;
use serde::{Deserialize, Serialize};

use crate::metrics::{LATENESS, Metrics};

/// Seconds that are kept.
const KEPT: usize = 60;

/// Counters at one moment, or how far they rose in a span.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// New timers.
    pub registered: u64,
    /// Timers delivered.
    pub delivered: u64,
    /// Claims of timers that the sweep had found.
    pub swept: u64,
    /// Pointers promoted, by step: see [`STEPS`].
    pub promoted: [u64; STEPS.len()],
    /// First attempts by lateness: the number in each bucket of [`LATENESS`], and above the last.
    pub late: Vec<u64>,
}

/// The steps of a pointer, as in `mainspring_promoted_total`.
pub const STEPS: [&str; 5] = ["minute", "second", "cascade", "last_mile", "express"];

impl Counts {
    /// The counters now.
    pub fn now(metrics: &Metrics) -> Self {
        let lateness = metrics.lateness.metric();
        let lateness = lateness.get_histogram();
        let mut below = 0;
        let mut late: Vec<u64> = lateness
            .get_bucket()
            .iter()
            .map(|bucket| {
                let count = bucket.cumulative_count() - below;
                below = bucket.cumulative_count();
                count
            })
            .collect();
        late.push(lateness.get_sample_count() - below);
        Self {
            registered: metrics.registered.get(),
            delivered: metrics.ended.with_label_values(&["delivered"]).get(),
            swept: metrics.swept.get(),
            promoted: STEPS.map(|step| metrics.promoted.with_label_values(&[step]).get()),
            late,
        }
    }

    /// First attempts.
    pub fn fired(&self) -> u64 {
        self.late.iter().sum()
    }

    /// Adds those of another node.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, |a, b| a + b);
    }

    fn since(mut self, earlier: &Self) -> Self {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.late.resize(self.late.len().max(other.late.len()), 0);
        let pairs = [
            (&mut self.registered, other.registered),
            (&mut self.delivered, other.delivered),
            (&mut self.swept, other.swept),
        ];
        let promoted = self.promoted.iter_mut().zip(other.promoted);
        let late = self.late.iter_mut().zip(other.late.iter().copied());
        pairs.into_iter().chain(promoted).chain(late).for_each(|(mine, theirs)| *mine = with(*mine, theirs));
    }

    /// The lateness that a share `q` of the first attempts did not exceed, in milliseconds, by interpolation within a
    /// bucket; `None` without any. Above the last bucket it is that bucket's bound.
    pub fn late_ms(&self, q: f64) -> Option<f64> {
        let wanted = q * self.fired() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (count, upper) in self.late.iter().zip(LATENESS) {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                return Some((lower + (upper - lower) * ((wanted - below) / count)) * 1000.0);
            }
            (below, lower) = (below + count, *upper);
        }
        (self.fired() > 0).then_some(lower * 1000.0)
    }
}

/// The last minute.
#[derive(Debug, Default)]
pub struct Recent {
    seconds: VecDeque<Counts>,
}

impl Recent {
    /// Adds the counters of now; to be called once a second.
    pub fn push(&mut self, counts: Counts) {
        self.seconds.push_back(counts);
        while self.seconds.len() > KEPT + 1 {
            self.seconds.pop_front();
        }
    }

    /// How far the counters rose in the last `seconds`, at most a minute; less after a start.
    pub fn over(&self, seconds: usize) -> Counts {
        let first = self.seconds.len().saturating_sub(seconds + 1);
        match (self.seconds.back(), self.seconds.get(first)) {
            (Some(last), Some(earlier)) => last.clone().since(earlier),
            _ => Counts::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_of_the_seconds_that_were_asked_for() {
        let mut recent = Recent::default();
        assert_eq!(recent.over(10), Counts::default());
        for second in 0..100_u64 {
            recent.push(Counts { registered: second * second, ..Counts::default() });
        }
        assert_eq!(recent.over(10).registered, 99 * 99 - 89 * 89);
        assert_eq!(recent.over(1000).registered, 99 * 99 - 39 * 39);
    }

    #[test]
    fn a_quantile_lies_in_the_bucket_that_holds_it() {
        let mut counts = Counts { late: vec![0; LATENESS.len() + 1], ..Counts::default() };
        assert_eq!(counts.late_ms(0.99), None);
        // 90 within (2, 3] ms, 10 within (25, 50] ms.
        counts.late[2] = 90;
        counts.late[8] = 10;
        let close = |q: f64, ms: f64| assert!((counts.late_ms(q).unwrap() - ms).abs() < 0.001, "{q}");
        close(0.45, 2.5);
        close(0.9, 3.0);
        close(0.95, 37.5);
        counts.late = vec![0; LATENESS.len() + 1];
        counts.late[LATENESS.len()] = 1;
        assert_eq!(counts.late_ms(0.5), Some(3_600_000.0));
    }
}

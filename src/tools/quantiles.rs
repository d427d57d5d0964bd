//! Quantiles of durations, by HdrHistogram: right to a thousandth of the value, the largest exactly.

use hdrhistogram::Histogram;

/// As many digits of each value are kept.
const DIGITS: u8 = 3;

/// Quantiles by nearest rank, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Quantiles {
    /// How many durations there are.
    pub count: u64,
    /// Half of them are at most this.
    pub p50_ms: f64,
    /// 95 % are.
    pub p95_ms: f64,
    /// 99 % are.
    pub p99_ms: f64,
    /// 99.9 % are.
    pub p999_ms: f64,
    /// The largest.
    pub max_ms: f64,
}

impl Quantiles {
    /// Of microseconds in any order; one below zero counts as zero. All zero if there are none.
    pub fn of(us: impl IntoIterator<Item = i64>) -> Self {
        let mut histogram = Histogram::<u64>::new(DIGITS).expect("three digits are allowed");
        let mut max_us = 0;
        for us in us {
            let us = u64::try_from(us).unwrap_or_default();
            // `saturating_record` would cut it down to the largest value so far.
            histogram.record(us).expect("a histogram without bounds grows to any value");
            max_us = max_us.max(us);
        }
        let max_ms = max_us as f64 / 1000.0;
        // A quantile is told as the upper end of its class, which may lie above the largest value.
        let at = |share: f64| (histogram.value_at_quantile(share) as f64 / 1000.0).min(max_ms);
        Self {
            count: histogram.len(),
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank_and_right_to_a_thousandth() {
        assert_eq!(Quantiles::of([]), Quantiles::default());
        let one = Quantiles::of([1500]);
        assert_eq!((one.count, one.p50_ms, one.p999_ms, one.max_ms), (1, 1.5, 1.5, 1.5));
        let many = Quantiles::of((1..=1000).rev().map(|n| n * 1000));
        let told = [many.p50_ms, many.p95_ms, many.p99_ms, many.p999_ms];
        for (told, exact) in told.into_iter().zip([500.0, 950.0, 990.0, 999.0]) {
            assert!((exact..=exact * 1.001).contains(&told), "{told} for {exact}");
        }
        assert_eq!((many.count, many.max_ms), (1000, 1000.0));
        let few = Quantiles::of([10_000, 20_000, -1000]);
        assert!((few.p50_ms - 10.0).abs() <= 0.01 && few.max_ms == 20.0, "{few:?}");
        let hours = Quantiles::of([3_600_000_000 * 24]);
        assert_eq!(hours.max_ms, hours.p50_ms, "as long as a day");
    }
}

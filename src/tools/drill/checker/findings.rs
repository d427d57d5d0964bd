//! What the checker found, and which of it breaks a promise.

use serde::Serialize;

/// An attempt may be paused between its last look at the lease and its first byte; so many a fault are chance.
const UNFENCED_A_FAULT: u64 = 1;
/// So many stragglers are chance, or one of so many first attempts: a row locked by another transaction is left
/// to the sweep.
const STRAGGLERS: u64 = 3;
const ONE_OF: u64 = 1000;

/// Lateness of first attempts, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// Of a hundred, the second worst.
    pub p99_ms: f64,
    /// The worst.
    pub max_ms: f64,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Findings {
    /// Timers acknowledged.
    pub registered: u64,
    /// Accepted by their receiver.
    pub delivered: u64,
    /// Ended by a cancel.
    pub cancelled: u64,
    /// Not sent, because they were found later than their grace.
    pub expired: u64,
    /// Out of attempts.
    pub dead: u64,
    /// Not due yet.
    pub pending: u64,
    /// Undecided: a call about them was never answered.
    pub open: u64,
    /// Acknowledged and gone.
    pub lost: u64,
    /// Attempts before the due time.
    pub early: u64,
    /// Attempts that nobody asked for.
    pub stray: u64,
    /// Repeats after a crash, pause or cut that explains them.
    pub duplicates_explained: u64,
    /// Repeats that nothing explains.
    pub duplicates_unexplained: u64,
    /// Attempts that came after a later one.
    pub unfenced: u64,
    /// Firings under two delivery ids, delivery ids of two firings.
    pub mistaken_identity: u64,
    /// Answers to cancels that were not true.
    pub untrue_cancels: u64,
    /// Answers to changes that were not true.
    pub untrue_changes: u64,
    /// Left behind by the wheel in healthy times.
    pub stragglers: u64,
    /// Answers that make no sense.
    pub nonsense: u64,
    /// Cancels and changes answered within 50 ms of the due time.
    pub raced: u64,
    /// All cancels and changes answered.
    pub answered: u64,
    /// Calls without an answer, made again.
    pub unanswered: u64,
    /// First attempts due while nothing was wrong.
    pub healthy: Lateness,
    /// Due while a fault lasted.
    pub faulted: Lateness,
    /// Due soon after one.
    pub recovering: Lateness,
    /// From the end of a fault until nothing came a second late any more; the longest.
    pub recovered_ms: Option<f64>,
    /// The first findings of each kind, in words.
    pub told: Vec<String>,
}

impl Findings {
    /// What breaks a promise, by name, with its number.
    pub fn violations(&self, faults: usize) -> Vec<(&'static str, u64)> {
        let unfenced = self.unfenced.saturating_sub(UNFENCED_A_FAULT * faults as u64);
        let stragglers =
            if self.stragglers > STRAGGLERS.max(self.healthy.count / ONE_OF) { self.stragglers } else { 0 };
        [
            ("lost", self.lost),
            ("early", self.early),
            ("stray", self.stray),
            ("untrue cancels", self.untrue_cancels),
            ("untrue changes", self.untrue_changes),
            ("unexplained duplicates", self.duplicates_unexplained),
            ("unfenced", unfenced),
            ("mistaken identity", self.mistaken_identity),
            ("stragglers", stragglers),
            ("nonsense", self.nonsense),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect()
    }
}

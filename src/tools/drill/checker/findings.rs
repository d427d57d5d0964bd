//! What the checker found, and which of it breaks a promise.

use serde::Serialize;

use crate::tools::quantiles::Quantiles;

/// Whether a finding fails the drill.
enum Weight {
    /// It is only counted.
    Counted,
    /// One is enough to fail the drill, under this name.
    Violation(&'static str),
}
use Weight::{Counted, Violation};

/// Declares [`Findings`]: every count has a weight, so that none can be added without saying whether it fails the
/// drill.
macro_rules! findings {
    ($($(#[$doc:meta])* $count:ident: $weight:expr;)*) => {
        /// What was found.
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        pub struct Findings {
            $($(#[$doc])* pub $count: u64,)*
            /// Lateness of first attempts that were due while nothing was wrong.
            pub healthy: Quantiles,
            /// Of those due while a fault lasted.
            pub faulted: Quantiles,
            /// Of those due soon after one.
            pub recovering: Quantiles,
            /// From due to read of what workers fetched first, while nothing was wrong.
            pub fetched: Quantiles,
            /// From the end of a fault until nothing came a second late any more; the longest.
            pub recovered_ms: Option<f64>,
            /// The first findings of each kind, in words.
            #[serde(rename = "told")]
            pub examples: Vec<String>,
        }

        impl Findings {
            /// The findings that break a promise: name and number, which is above zero.
            pub fn violations(&self) -> Vec<(&'static str, u64)> {
                let all = [$(($weight, self.$count)),*];
                let failing = all.into_iter().filter_map(|(weight, count)| match weight {
                    Violation(name) => Some((name, count)),
                    Counted => None,
                });
                failing.filter(|(_, count)| *count > 0).collect()
            }
        }
    };
}

findings! {
    /// Timers acknowledged.
    registered: Counted;
    /// Accepted by their receiver.
    delivered: Counted;
    /// Ended by a cancel.
    cancelled: Counted;
    /// Not sent, because they were found later than their grace.
    expired: Counted;
    /// Out of attempts.
    dead: Counted;
    /// Not due yet.
    pending: Counted;
    /// Undecided: a call about them was never answered.
    open: Counted;
    /// Acknowledged and gone.
    lost: Violation("lost");
    /// Attempts before the due time.
    early: Violation("early");
    /// Timers that a restore of the cold store may have undone something of: judged by less than the others.
    restored: Counted;
    /// Sent although they were held after a restore.
    unheld: Violation("unheld");
    /// Attempts that nobody asked for.
    stray: Violation("stray");
    /// Answers to cancels that were not true.
    untrue_cancels: Violation("untrue cancels");
    /// Answers to changes that were not true.
    untrue_changes: Violation("untrue changes");
    /// Repeats of an accepted attempt that a fault of its node or of the store explains.
    duplicates_explained: Counted;
    /// Repeats that nothing explains.
    duplicates_unexplained: Violation("unexplained duplicates");
    /// Attempts that came after a later one, and whose node had stood still meanwhile: one for each time.
    unfenced_explained: Counted;
    /// Attempts that came after a later one for no such reason.
    unfenced: Violation("unfenced");
    /// Firings under two delivery ids, delivery ids of two firings.
    mistaken_identity: Violation("mistaken identity");
    /// Merged sets that came.
    sets: Counted;
    /// Timers that came in them.
    merged: Counted;
    /// Timers that came with a merged set which had come without them before.
    joined: Violation("joined");
    /// Left to the sweep in healthy times, with no fault when they were registered or changed.
    stragglers: Violation("stragglers");
    /// Late by more than that in healthy times, with those beside them, while the machine was not busy.
    late: Violation("late");
    /// Answers that the contract does not have.
    nonsense: Violation("nonsense");
    /// Items that workers were given.
    given: Counted;
    /// Settlements that count.
    settled: Counted;
    /// Settlements that were told that their lease is lost.
    leases_lost: Counted;
    /// More places than there are, by their delivery ids.
    too_many_places: Violation("too many places");
    /// Places that were given out while a worker had them or after it had settled them, and workers that got a timer twice.
    given_twice: Violation("given twice");
    /// Settlements that were answered falsely.
    untrue_settlements: Violation("untrue settlements");
    /// Places that workers got, or got again, too late.
    fetched_late: Violation("fetched late");
    /// Attempts that were counted though nothing was written to any worker.
    unseen_attempts: Violation("unseen attempts");
    /// Calls to the store beyond what the time and the items allow.
    polls: Violation("polls");
    /// Nominal times of schedules.
    nominals: Counted;
    /// Those whose occurrence was accepted.
    nominals_fired: Counted;
    /// Those that were recorded as skipped.
    nominals_skipped: Counted;
    /// Of these, those that were never made.
    never_made: Counted;
    /// Further occurrences, or records of a skip, of one nominal time.
    made_twice: Violation("nominals made twice");
    /// Nominal times that neither fired nor were skipped.
    nominals_lost: Violation("nominals lost");
    /// Nominal times that did both.
    fired_and_skipped: Violation("fired and skipped");
    /// Nominal times that were skipped for no such reason.
    untrue_skips: Violation("untrue skips");
    /// Nominal times that were to be skipped, and fired.
    unskipped: Violation("not skipped");
    /// Cancels and changes answered within 50 ms of the due time.
    raced: Counted;
    /// All cancels and changes answered.
    answered: Counted;
    /// Calls without an answer, made again.
    unanswered: Counted;
}

//! What was asked about schedules, and what became of their nominal times.

use super::Micros;
use crate::model::time::UnixMs;

/// A rule by plain arithmetic: one nominal time each `step_ms`, counted from `origin_ms`, in milliseconds since the Unix
/// epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    /// One of them; it need not be the first.
    pub origin_ms: i64,
    /// The distance.
    pub step_ms: i64,
}

impl Rhythm {
    /// Whether this is a nominal time, as far as the rhythm alone says.
    pub const fn has(self, at_ms: i64) -> bool {
        (at_ms - self.origin_ms).rem_euclid(self.step_ms) == 0
    }

    /// Nominal times after `after_us`, and not after `until_us`; in milliseconds, in order.
    pub fn times(self, after_us: Micros, until_us: Micros) -> impl Iterator<Item = i64> {
        let after_ms = after_us.div_euclid(1000);
        let first = after_ms + self.step_ms - (after_ms - self.origin_ms).rem_euclid(self.step_ms);
        (first..=until_us.div_euclid(1000)).step_by(usize::try_from(self.step_ms).unwrap_or(1))
    }
}

/// What was planned of a schedule that bears on its nominal times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleTerms {
    /// Its rule.
    pub rule: Rhythm,
    /// The rule that it gets by a change, if it is changed.
    pub changed: Option<Rhythm>,
    /// No nominal time is before this moment, in milliseconds since the Unix epoch.
    pub start_ms: i64,
    /// None is after this one.
    pub end_ms: i64,
    /// A nominal time is skipped at which the occurrence before has not ended.
    pub is_exclusive: bool,
    /// Its receiver does not always accept at once.
    pub is_difficult: bool,
    /// All its occurrences have one owner, and so one shard.
    pub has_owner: bool,
}

/// What a caller asked about a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleAsk {
    /// To make it.
    Make,
    /// To give it another rule.
    Change,
    /// To pause it.
    Pause,
    /// To resume it.
    Resume,
}

/// One call about a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleCall {
    /// The schedule's number.
    pub schedule: u32,
    /// What was asked.
    pub ask: ScheduleAsk,
    /// When it was sent.
    pub asked_us: Micros,
    /// When its answer was there, or it was given up.
    pub answered_us: Micros,
    /// The status; `None` without an answer, or with one that promises nothing.
    pub status: Option<u16>,
}

impl ScheduleCall {
    /// Whether it was acknowledged.
    pub fn is_done(&self) -> bool {
        matches!(self.status, Some(200 | 201))
    }
}

/// For which nominal time a timer was made, as its delivery says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// The schedule's number.
    pub schedule: u32,
    /// `ce-nominal`, in milliseconds since the Unix epoch.
    pub nominal_ms: i64,
    /// The timer's id, hashed.
    pub timer: u64,
    /// Whether the timer's id is the one that the nominal time has.
    pub is_named_so: bool,
}

/// Why a nominal time was skipped, as it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody could fire it in time.
    Missed,
    /// The one before had not ended.
    Overlap,
    /// The schedule was paused.
    Paused,
    /// A word that the contract does not have.
    Other,
}

impl Reason {
    /// The reason of a word.
    pub fn of(word: &str) -> Self {
        match word {
            "missed" => Self::Missed,
            "overlap" => Self::Overlap,
            "paused" => Self::Paused,
            _ => Self::Other,
        }
    }
}

/// A lifecycle event that tells of nominal times that were skipped: of one, or of all of a rule from a first to a last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldSkip {
    /// The event's id, hashed: it may come more than once.
    pub event: u64,
    /// The schedule's number.
    pub schedule: u32,
    /// The first nominal time, in milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// The last one.
    pub last_ms: i64,
    /// How many they are.
    pub count: u64,
    /// It was an occurrence; else none of them was ever made.
    pub was_made: bool,
    /// Why.
    pub reason: Reason,
    /// When it was told.
    pub at_us: Micros,
}

impl ToldSkip {
    /// An event that cannot be read: of no schedule, for no reason.
    pub const fn nonsense(at_us: Micros) -> Self {
        let (schedule, reason) = (u32::MAX, Reason::Other);
        Self { event: 0, schedule, first_ms: 0, last_ms: 0, count: 0, was_made: false, reason, at_us }
    }
}

/// An occurrence in a list, when the drill was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The schedule's number.
    pub schedule: u32,
    /// The nominal time in its id, in milliseconds since the Unix epoch.
    pub nominal_ms: i64,
    /// Whether it is shown as `delivered`.
    pub is_delivered: bool,
    /// Whether it is shown as `cancelled`.
    pub is_cancelled: bool,
    /// Why it was skipped, if it was.
    pub skipped: Option<Reason>,
    /// When it was made, by the store's clock.
    pub made_us: Micros,
}

/// What the ids of schedules begin with, before their numbers.
const ID: &str = "drill-rule-";

/// The id of a schedule.
pub fn schedule_id(number: u32) -> String {
    format!("{ID}{number}")
}

/// The number of the schedule with this id.
pub fn schedule_of(id: &str) -> Option<u32> {
    id.strip_prefix(ID)?.parse().ok()
}

/// The id that the timer of a nominal time has.
pub fn occurrence_id(schedule: &str, nominal_ms: i64) -> String {
    let text = UnixMs::new(nominal_ms).rfc3339();
    let compact: String = text.chars().filter(|one| !matches!(one, '-' | ':' | '.')).collect();
    format!("{schedule}:{compact}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rhythm_has_each_time_once_after_a_moment_and_up_to_another() {
        let rhythm = Rhythm { origin_ms: 500, step_ms: 2000 };
        let times = |after_us, until_us| rhythm.times(after_us, until_us).collect::<Vec<_>>();
        assert_eq!(times(2_499_999, 6_500_000), [2500, 4500, 6500]);
        assert_eq!(times(2_500_000, 6_499_999), [4500]);
        assert_eq!(times(-5_000_000, -1_000_000), [-3500, -1500], "before its origin too");
        assert!(rhythm.has(-1500) && rhythm.has(4500) && !rhythm.has(4000));
    }

    #[test]
    fn an_occurrence_is_named_as_the_contract_says() {
        let at = UnixMs::parse_rfc3339("2026-12-01T09:00:00.5Z").unwrap().get();
        assert_eq!(occurrence_id(&schedule_id(7), at), "drill-rule-7:20261201T090000500Z");
        assert_eq!((schedule_of("drill-rule-7"), schedule_of("drill-7")), (Some(7), None));
    }
}

//! Schedules: what a rule is made of, what an occurrence has of it, and which nominal times fire. No I/O.
//!
//! The nominal times themselves come from [`super::rule`]. What becomes of one that was missed ([`fires`]) depends on that
//! time, on the present, and for `fire_once` on whether a later one was missed too; never on how many were.

mod plan;

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime};
use serde::{Deserialize, Serialize};

pub use plan::{Plan, Times, Timing, When};

use super::id::{MAX_ID_LEN, TimerId};
use super::time::{Span, UnixMs};

/// The longest id of a schedule, in bytes: that of an occurrence has to fit.
pub const MAX_SCHEDULE_ID: usize = 100;

/// The most occurrences of one schedule that are made ahead.
pub const MOST_AHEAD: usize = 100;

/// Occurrences are made ahead as far as this reaches, and no further than the wheels do.
pub const AHEAD: Duration = Duration::from_secs(600);

/// The end of an occurrence's id: its nominal time in UTC.
const NOMINAL: &str = "%Y%m%dT%H%M%S%3fZ";

/// The length of a colon and a nominal time.
const SUFFIX: usize = ":20261201T090000000Z".len();

const _: () = assert!(MAX_SCHEDULE_ID + SUFFIX <= MAX_ID_LEN);

/// Whether a schedule can have this id.
pub fn is_schedule_id(id: &str) -> bool {
    id.len() <= MAX_SCHEDULE_ID && TimerId::parse(id).is_ok()
}

/// The id of the occurrence that a schedule makes for a nominal time.
pub fn occurrence_id(schedule: &str, nominal: UnixMs) -> Option<TimerId> {
    let at = DateTime::from_timestamp_millis(nominal.get())?.format(NOMINAL);
    TimerId::parse(&format!("{schedule}:{at}")).ok()
}

/// Whether an id ends as those of occurrences do, so that no caller may choose it.
pub fn is_reserved(id: &str) -> bool {
    let Some(at) = id.len().checked_sub(SUFFIX).and_then(|start| id.get(start..)) else { return false };
    let digits = |text: Option<&str>| text.is_some_and(|text| text.bytes().all(|b| b.is_ascii_digit()));
    at.starts_with(':')
        && digits(at.get(1..9))
        && at.get(9..10) == Some("T")
        && digits(at.get(10..19))
        && at.ends_with('Z')
        && NaiveDateTime::parse_from_str(&at[1..], NOMINAL).is_ok()
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $all:literal { $($(#[$one:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$one])* $variant),*
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; $all] = [$(Self::$variant),*];

            /// The word of the contract.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),*
                }
            }

            /// The one with this word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.word() == word)
            }
        }
    };
}

words! {
    /// Which of the nominal times fire that nobody could fire in time.
    MissedPolicy, 3 {
        /// Those that are not older than `within`.
        #[default]
        FireAll = "fire_all",
        /// The latest of those.
        FireOnce = "fire_once",
        /// None.
        Skip = "skip",
    }
}

words! {
    /// What happens at a nominal time while the occurrence before has not ended.
    Overlap, 3 {
        /// The nominal time is skipped.
        Skip = "skip",
        /// One waits until the one before has ended.
        QueueOne = "queue_one",
        /// It fires all the same.
        #[default]
        Allow = "allow",
    }
}

words! {
    /// The state of a schedule.
    ScheduleState, 3 {
        /// It makes occurrences.
        #[default]
        Active = "active",
        /// Its nominal times are skipped.
        Paused = "paused",
        /// There is no nominal time left.
        Ended = "ended",
    }
}

impl ScheduleState {
    /// Its number in SQL.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The one with this number in SQL.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.code() == code)
    }
}

/// Why a nominal time did not fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skipped {
    /// Nobody could fire it in time.
    Missed = 1,
    /// The occurrence before had not ended.
    Overlap = 2,
    /// The schedule was paused.
    Paused = 3,
    /// The rule was changed, or removed. It is not shown: such an occurrence is `cancelled`.
    Changed = 4,
}

impl Skipped {
    /// Those that are shown.
    pub const SHOWN: [Self; 3] = [Self::Missed, Self::Overlap, Self::Paused];

    /// Its number in SQL.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The one with this number in SQL.
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Missed, Self::Overlap, Self::Paused, Self::Changed].into_iter().find(|one| one.code() == code)
    }

    /// The word of the contract; `None` if it is not shown.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Self::Missed => Some("missed"),
            Self::Overlap => Some("overlap"),
            Self::Paused => Some("paused"),
            Self::Changed => None,
        }
    }
}

/// What an occurrence does while another of its schedule has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    /// It is skipped.
    Skip = 1,
    /// It waits, if no other waits.
    QueueOne = 2,
    /// It waits, however many wait: it was made afterwards, at somebody's wish.
    InLine = 3,
}

impl Turn {
    /// That of an occurrence under a policy; `None` if it fires all the same.
    pub const fn of(overlap: Overlap) -> Option<Self> {
        match overlap {
            Overlap::Skip => Some(Self::Skip),
            Overlap::QueueOne => Some(Self::QueueOne),
            Overlap::Allow => None,
        }
    }

    /// Its number in SQL.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The one with this number in SQL.
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Skip, Self::QueueOne, Self::InLine].into_iter().find(|one| one.code() == code)
    }
}

/// What a timer has of the schedule that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence {
    /// The schedule's id.
    pub schedule: String,
    /// The nominal time; `None` if somebody had it made now, outside the rule.
    pub nominal: Option<UnixMs>,
    /// What it does while another has not ended; `None` if it fires all the same.
    pub turn: Option<Turn>,
    /// From this moment on it is not claimed before it is judged. Before its due time: its schedule is paused. At its due
    /// time: it is to be judged whose turn it is. The last moment of all: it waits for another of its schedule.
    pub judge_after: Option<UnixMs>,
    /// Why it did not fire.
    pub skipped: Option<Skipped>,
}

/// `missed`: what happens to nominal times that nobody could fire in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Which of them fire.
    pub policy: MissedPolicy,
    /// None that is older fires.
    pub within: Span,
}

impl Default for Missed {
    fn default() -> Self {
        Self { policy: MissedPolicy::default(), within: Span::from_duration(Duration::from_secs(3600)) }
    }
}

/// Which of these nominal times fire: all were missed, and they are in order. `more_follow`: a later one was missed too.
pub fn fires(missed: &[UnixMs], more_follow: bool, now: UnixMs, policy: Missed) -> Vec<bool> {
    let is_within = |at: UnixMs| now.since(at) <= policy.within.get();
    let latest = missed.last().filter(|_| !more_follow).copied();
    let fires = |at: &UnixMs| match policy.policy {
        MissedPolicy::FireAll => is_within(*at),
        MissedPolicy::FireOnce => latest == Some(*at) && is_within(*at),
        MissedPolicy::Skip => false,
    };
    missed.iter().map(fires).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> UnixMs {
        UnixMs::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn an_occurrence_is_named_after_its_nominal_time() {
        let id = occurrence_id("daily", at("2026-12-01T09:00:00.5Z")).unwrap();
        assert_eq!(id.as_str(), "daily:20261201T090000500Z");
        assert!(is_reserved(id.as_str()));
        let longest = "s".repeat(MAX_SCHEDULE_ID);
        assert!(is_schedule_id(&longest) && occurrence_id(&longest, UnixMs::new(0)).is_some());
        assert!(!is_schedule_id(&format!("{longest}s")) && !is_schedule_id("") && !is_schedule_id("a b"));
    }

    #[test]
    fn only_ids_that_end_in_a_moment_are_reserved() {
        for free in [
            "a",
            "",
            "a:20261201",
            "a-20261201T090000000Z",
            "a:20261201T0900000Z",
            "a:20261301T090000000Z",
            "a:20261201T090000000Zz",
            "a:2026+201T090000000Z",
            "ü:0261201T090000000Z",
        ] {
            assert!(!is_reserved(free), "{free}");
        }
        assert!(is_reserved("a:b:20261201T090000000Z") && is_reserved(":20261201T235959999Z"));
    }

    #[test]
    fn words_and_numbers_lead_back() {
        for one in MissedPolicy::ALL {
            assert_eq!(serde_json::to_value(one).unwrap(), one.word());
        }
        for one in Overlap::ALL {
            assert_eq!(
                (Overlap::from_word(one.word()), serde_json::to_value(one).unwrap()),
                (Some(one), one.word().into())
            );
        }
        assert!(ScheduleState::ALL.into_iter().all(|one| ScheduleState::from_code(one.code()) == Some(one)));
        assert!([1, 2, 3, 4].into_iter().all(|code| Skipped::from_code(code).unwrap().code() == code));
        assert!([1, 2, 3].into_iter().all(|code| Turn::from_code(code).unwrap().code() == code));
        assert!(
            Skipped::SHOWN.into_iter().all(|one| one.word().is_some()) && Skipped::Changed.word().is_none()
        );
    }

    fn policy(policy: MissedPolicy, within_ms: u64) -> Missed {
        Missed { policy, within: Span::from_duration(Duration::from_millis(within_ms)) }
    }

    #[test]
    fn what_was_missed_fires_by_its_policy() {
        let times: Vec<UnixMs> = [0, 100, 200].map(UnixMs::new).to_vec();
        let now = UnixMs::new(250);
        for (which, within, more, expected) in [
            (MissedPolicy::FireAll, 250, false, [true, true, true]),
            (MissedPolicy::FireAll, 149, false, [false, false, true]),
            (MissedPolicy::FireAll, 10, false, [false, false, false]),
            (MissedPolicy::FireOnce, 250, false, [false, false, true]),
            (MissedPolicy::FireOnce, 10, false, [false, false, false]),
            (MissedPolicy::FireOnce, 250, true, [false, false, false]),
            (MissedPolicy::Skip, 250, false, [false, false, false]),
        ] {
            assert_eq!(
                fires(&times, more, now, policy(which, within)),
                expected,
                "{which:?} {within} {more}"
            );
        }
    }

    proptest! {
        /// However the missed times are cut into pieces, each comes out as it does among all of them.
        #[test]
        fn a_missed_time_fires_whatever_was_missed_beside_it(
            mut times in proptest::collection::btree_set(0..10_000_i64, 1..40),
            cut in 0..40_usize, within in 0..12_000_u64, which in 0..3_usize,
        ) {
            let times: Vec<UnixMs> = std::mem::take(&mut times).into_iter().map(UnixMs::new).collect();
            let (now, policy) = (UnixMs::new(10_000), policy(MissedPolicy::ALL[which], within));
            let whole = fires(&times, false, now, policy);
            let (first, second) = times.split_at(cut.min(times.len()));
            let mut parts = fires(first, !second.is_empty(), now, policy);
            parts.extend(fires(second, false, now, policy));
            prop_assert_eq!(&whole, &parts);
            let fired = whole.iter().filter(|fires| **fires).count();
            prop_assert!(policy.policy != MissedPolicy::Skip || fired == 0);
            prop_assert!(policy.policy != MissedPolicy::FireOnce || fired <= 1);
            let is_old = |at: &UnixMs| now.since(*at).as_millis() > u128::from(within);
            prop_assert!(times.iter().zip(&whole).all(|(at, fires)| !(*fires && is_old(at))));
        }
    }
}

//! What a drill asks of the service: timers, their cancels and changes, and how their receivers behave, all from
//! one seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::history::Terms;
use crate::model::priority::Priority;

/// The wheels' reach in drills: short, so that timers pass cold store, minute wheel and second wheel within
/// seconds. In milliseconds.
pub const WINDOW_MS: i64 = 12_000;
/// Reach of the second wheel.
pub const NEAR_MS: i64 = 4_000;
/// How long an attempt may take.
pub const TIMEOUT_MS: u64 = 6_000;
/// The longest time from a registration to its due time.
const AHEAD_MS: i64 = 20_000;
/// The longest time from a change to the due time that it asks for.
const MOVE_MS: i64 = 5_000;
/// How long after the last registration timers come due: beyond what counts as recovery from the last fault
/// (a lease of 3 s and 4 s more), so that some fire in healthy times again.
pub const TAIL_MS: i64 = 8_000;
/// Grace of the timers that may expire.
pub const GRACE_MS: i64 = 3_000;

/// Timers that merge are due within one window after one of these moments.
const MERGE_GRID_MS: i64 = 500;
/// How far apart timers may be due that go out together.
pub const MERGE_WINDOW_MS: i64 = 300;

/// How a receiver treats a timer's attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Accepts at once.
    Accepts,
    /// Accepts after a while.
    AcceptsSlowly,
    /// Fails the first attempt after seconds; accepts the second after more.
    FailsOnceSlowly,
    /// Fails the first attempt at once.
    FailsOnce,
    /// Never answers the first attempt.
    HangsOnce,
    /// Accepts, with an answer that comes byte by byte and does not end.
    DripsAnswer,
    /// Accepts, with an answer far larger than anybody wants.
    HugeAnswer,
    /// Redirects the first attempt.
    RedirectsOnce,
    /// Fails every attempt.
    AlwaysFails,
    /// Answers 410.
    Gone,
    /// Accepts at once; it has an address of its own, and can fall silent with others of its kind.
    Distant,
    /// Accepts at once; it has an address of its own and one timer, and closes the connection.
    Crowd,
    /// Accepts at once; it has an address of its own and one timer, and keeps the connection. Its timer has few
    /// attempts: what a node lacks is none.
    Kept,
    /// A destination at one of the drill's brokers, which is read.
    Queued,
}

impl Behaviour {
    /// All of them; the one that accepts at once comes first.
    const ALL: [Self; 14] = [
        Self::Accepts,
        Self::AcceptsSlowly,
        Self::FailsOnceSlowly,
        Self::FailsOnce,
        Self::HangsOnce,
        Self::DripsAnswer,
        Self::HugeAnswer,
        Self::RedirectsOnce,
        Self::AlwaysFails,
        Self::Gone,
        Self::Distant,
        Self::Crowd,
        Self::Kept,
        Self::Queued,
    ];

    /// How many of them, after the first, are those of bad receivers.
    const BAD: usize = 9;

    /// The path segment that stands for it.
    pub fn letter(self) -> char {
        char::from(b'a' + Self::ALL.iter().position(|one| *one == self).unwrap_or_default() as u8)
    }

    /// The behaviour of a path segment.
    pub fn of(letter: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| letter == one.letter().to_string())
    }

    /// How many attempts its timers have; `None`: more than are needed.
    pub fn attempts(self) -> Option<i32> {
        match self {
            Self::AlwaysFails => Some(3),
            Self::Kept => Some(2),
            Self::Gone => Some(12),
            _ => None,
        }
    }
}

/// The second call about a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowUp {
    /// Cancels it.
    Cancel,
    /// Moves it to so many milliseconds after the call.
    Move(i64),
}

/// One timer of a plan; times are milliseconds since the load began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// When it is registered.
    pub asked_at: i64,
    /// When it is due.
    pub due_at: i64,
    /// How its receiver behaves.
    pub behaviour: Behaviour,
    /// Whether it expires when it is found too late.
    pub expires: bool,
    /// Who goes first.
    pub priority: Priority,
    /// It may go out with others that are due from this moment on; they have one owner and one receiver.
    pub merges: Option<i64>,
    /// The second call about it, and when it is made.
    pub follow_up: Option<(i64, FollowUp)>,
}

impl Planned {
    /// What bears on how it may end.
    pub fn terms(&self) -> Terms {
        Terms {
            grace_ms: self.expires.then_some(GRACE_MS),
            attempts: self.behaviour.attempts(),
            // A timer that merges waits for others, which may be moved away.
            difficult: self.behaviour != Behaviour::Accepts || self.merges.is_some(),
            places: None,
        }
    }
}

/// What sort of load a drill has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadShape {
    /// Timers registered a second.
    pub rate: u32,
    /// For so many seconds.
    pub seconds: u32,
    /// How many of a hundred have a receiver of any behaviour but the accepting one.
    pub bad_receivers: u32,
    /// How many of a hundred have a receiver that can fall silent.
    pub distant: u32,
    /// How many of a hundred go to brokers.
    pub queued: u32,
    /// How many of a hundred fail slowly at first, then accept slowly: a pause meets them under way.
    pub failing_slowly: u32,
    /// How many of a hundred expire when found too late.
    pub expiring: u32,
    /// How many of a hundred merge.
    pub merging: u32,
}

impl LoadShape {
    /// The latest due time, in milliseconds since the load began.
    fn last_due_at(self) -> i64 {
        i64::from(self.seconds) * 1000 + TAIL_MS
    }
}

/// The timers of a drill, in the order of their registration. All are due by [`TAIL_MS`] after the last one is
/// registered, but for those whose change is made late because a node was away.
pub fn timers(seed: u64, shape: LoadShape) -> Vec<Planned> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let count = i64::from(shape.rate) * i64::from(shape.seconds);
    (0..count).map(|number| one(&mut rng, number * 1000 / i64::from(shape.rate.max(1)), shape)).collect()
}

fn one(rng: &mut SmallRng, asked_at: i64, shape: LoadShape) -> Planned {
    let longest = shape.last_due_at() - asked_at;
    let tier = match rng.random_range(0..100) {
        // At once, or nearly: past the wheels.
        0..20 => 0..1500,
        // Into slots, by the node that writes them.
        20..55 => 1500..WINDOW_MS - 1500,
        // At the very edge of the window, where writer and loader may each leave it to the other.
        55..85 => WINDOW_MS - 100..WINDOW_MS + 1400,
        // Cold, until the loader comes.
        _ => WINDOW_MS + 2000..AHEAD_MS,
    };
    let tier = tier.start..tier.end.min(longest);
    let ahead = rng.random_range(if tier.is_empty() { 0..longest } else { tier });
    let mut due_at = asked_at + ahead;
    let hundredth = rng.random_range(0..100);
    let mut behaviour = if hundredth < shape.bad_receivers {
        Behaviour::ALL[rng.random_range(1..=Behaviour::BAD)]
    } else if hundredth < shape.bad_receivers + shape.failing_slowly {
        Behaviour::FailsOnceSlowly
    } else if hundredth < shape.bad_receivers + shape.failing_slowly + shape.distant {
        Behaviour::Distant
    } else if hundredth < shape.bad_receivers + shape.failing_slowly + shape.distant + shape.queued {
        Behaviour::Queued
    } else {
        Behaviour::Accepts
    };
    let mut expires = rng.random_range(0..100) < shape.expiring;
    let priority = match rng.random_range(0..10) {
        0 => Priority::High,
        1 => Priority::Low,
        _ => Priority::Normal,
    };
    let merges = (rng.random_range(0..100) < shape.merging).then(|| due_at - due_at % MERGE_GRID_MS);
    if let Some(from) = merges {
        due_at = from + rng.random_range(0..=MERGE_WINDOW_MS);
        behaviour = if (from / MERGE_GRID_MS) % 3 == 0 { Behaviour::FailsOnce } else { Behaviour::Accepts };
        expires = false;
    }
    let follow_up = (rng.random_range(0..100) < 40).then(|| {
        let near = rng.random_bool(0.5);
        let at = if near {
            due_at + rng.random_range(-50..=50)
        } else {
            asked_at + rng.random_range(0..=ahead + 300)
        };
        let at = at.max(asked_at);
        let follow_up = if rng.random_bool(0.5) {
            FollowUp::Cancel
        } else {
            let longest = (shape.last_due_at() - at).clamp(200, MOVE_MS);
            FollowUp::Move(rng.random_range(100..longest))
        };
        (at, follow_up)
    });
    Planned { asked_at, due_at, behaviour, expires, priority, merges, follow_up }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LoadShape = LoadShape {
        rate: 500,
        seconds: 20,
        bad_receivers: 20,
        distant: 0,
        queued: 0,
        failing_slowly: 5,
        expiring: 10,
        merging: 0,
    };

    #[test]
    fn one_seed_is_one_plan() {
        assert_eq!(timers(7, SHAPE), timers(7, SHAPE));
        assert_ne!(timers(7, SHAPE), timers(8, SHAPE));
    }

    #[test]
    fn half_of_the_follow_ups_come_within_50_ms_of_due() {
        let plan = timers(1, SHAPE);
        assert_eq!(plan.len(), 10_000);
        let follow_ups: Vec<_> = plan.iter().filter_map(|t| Some((t.due_at, t.follow_up?.0))).collect();
        let near = follow_ups.iter().filter(|(due, at)| (due - at).abs() <= 50).count();
        assert!(
            near * 2 > follow_ups.len() && near * 10 < follow_ups.len() * 6,
            "{near} of {}",
            follow_ups.len()
        );
        assert!(plan.iter().all(|t| t.follow_up.is_none_or(|(at, _)| at >= t.asked_at)));
    }

    #[test]
    fn all_is_due_soon_after_the_load_and_passes_every_tier() {
        for seconds in [8, 10, 24] {
            let shape = LoadShape { seconds, ..SHAPE };
            let plan = timers(1, shape);
            let due = |t: &Planned| match t.follow_up {
                // A change may be made 300 ms after the due time, and asks for 200 ms more at least.
                Some((at, FollowUp::Move(ahead))) => t.due_at.max(at + ahead - 500),
                _ => t.due_at,
            };
            assert!(plan.iter().all(|t| due(t) <= shape.last_due_at()), "{seconds}");
            let tiers: [fn(i64) -> bool; 4] =
                [|ms| ms < 1500, |ms| ms < WINDOW_MS, |ms| ms < WINDOW_MS + 1400, |ms| ms > WINDOW_MS + 2000];
            for (tier, is_in) in tiers.iter().enumerate() {
                let count = plan.iter().filter(|t| is_in(t.due_at - t.asked_at)).count();
                assert!(count * 50 > plan.len(), "tier {tier} of {seconds} s: {count} of {}", plan.len());
            }
        }
    }

    #[test]
    fn timers_that_merge_are_due_close_to_others() {
        let plan = timers(1, LoadShape { merging: 10, ..SHAPE });
        let merging: Vec<_> = plan.iter().filter_map(|t| Some((t.merges?, t.due_at))).collect();
        assert!(merging.len() * 12 > plan.len(), "{}", merging.len());
        assert!(merging.iter().all(|(from, due)| (*from..=from + MERGE_WINDOW_MS).contains(due)));
        let groups: std::collections::BTreeSet<i64> = merging.iter().map(|(from, _)| *from).collect();
        assert!(groups.len() * 3 < merging.len(), "{} sets", groups.len());
    }

    #[test]
    fn a_behaviour_is_read_back_from_its_letter() {
        assert!(Behaviour::ALL.iter().all(|one| Behaviour::of(&one.letter().to_string()) == Some(*one)));
        assert_eq!(Behaviour::of("z"), None);
    }
}

//! What a drill asks of the service: timers, their cancels and changes, and their receivers' moods, all from
//! one seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::history::Terms;

/// The wheels' reach in drills: short, so that timers pass cold store, minute wheel and second wheel within
/// seconds. In milliseconds.
pub const WINDOW_MS: i64 = 12_000;
/// Reach of the second wheel.
pub const NEAR_MS: i64 = 4_000;
/// How long an attempt may take.
pub const TIMEOUT_MS: u64 = 6_000;
/// The latest that a timer is due after its registration.
pub const AHEAD_MS: i64 = 20_000;
/// The latest that a change moves one to.
pub const MOVE_MS: i64 = 5_000;
/// Grace of the timers that may expire.
pub const GRACE_MS: i64 = 3_000;

/// How a receiver treats a timer's attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Accepts at once.
    Fine,
    /// Accepts after a while.
    Slow,
    /// Fails the first attempt, late; accepts the second, later still.
    Grudging,
    /// Fails the first attempt at once.
    Moody,
    /// Never answers the first attempt.
    Silent,
    /// Accepts, with an answer that comes byte by byte and does not end.
    Dripping,
    /// Accepts, with an answer far larger than anybody wants.
    Giant,
    /// Sends the first attempt elsewhere.
    Redirecting,
    /// Fails every attempt.
    Refusing,
    /// Is gone: 410.
    Gone,
}

impl Mood {
    /// All of them, the fine one first.
    const ALL: [Self; 10] = [
        Self::Fine,
        Self::Slow,
        Self::Grudging,
        Self::Moody,
        Self::Silent,
        Self::Dripping,
        Self::Giant,
        Self::Redirecting,
        Self::Refusing,
        Self::Gone,
    ];

    /// A path segment that stands for it.
    pub fn letter(self) -> char {
        char::from(b'a' + Self::ALL.iter().position(|mood| *mood == self).unwrap_or_default() as u8)
    }

    /// The mood of a path segment.
    pub fn of(letter: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mood| letter == mood.letter().to_string())
    }

    /// How many attempts its timers have; `None` for more than are needed.
    fn attempts(self) -> Option<i32> {
        match self {
            Self::Refusing => Some(3),
            Self::Gone => Some(12),
            _ => None,
        }
    }
}

/// What else is asked about a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Not to be woken.
    Cancel,
    /// To be woken so many milliseconds after asking.
    Move(i64),
}

/// One timer of a plan; times are milliseconds since the load began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// When it is registered.
    pub asked_at: i64,
    /// When it is due.
    pub due_at: i64,
    /// How its receiver treats it.
    pub mood: Mood,
    /// Whether it expires when it is found too late.
    pub expires: bool,
    /// What else is asked, and when.
    pub wish: Option<(i64, Wish)>,
}

impl Planned {
    /// What bears on what may become of it.
    pub fn terms(&self) -> Terms {
        Terms {
            grace_ms: self.expires.then_some(GRACE_MS),
            attempts: self.mood.attempts(),
            difficult: self.mood != Mood::Fine,
        }
    }
}

/// What sort of load a drill has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Timers registered a second.
    pub rate: u32,
    /// For so many seconds.
    pub seconds: u32,
    /// How many of a hundred have a receiver that is not fine.
    pub bad_receivers: u32,
    /// How many of a hundred are slow and fail at first: what a pause meets half done.
    pub grudging: u32,
    /// How many of a hundred expire when found too late.
    pub expiring: u32,
}

/// The timers of a drill, in the order of their registration.
pub fn timers(seed: u64, shape: Shape) -> Vec<Planned> {
    let mut dice = SmallRng::seed_from_u64(seed);
    let count = i64::from(shape.rate) * i64::from(shape.seconds);
    (0..count).map(|number| one(&mut dice, number * 1000 / i64::from(shape.rate.max(1)), shape)).collect()
}

fn one(dice: &mut SmallRng, asked_at: i64, shape: Shape) -> Planned {
    let ahead = match dice.random_range(0..100) {
        // At once, or nearly: past the wheels.
        0..20 => dice.random_range(0..1500),
        // Into slots by whoever writes them.
        20..55 => dice.random_range(1500..WINDOW_MS - 1500),
        // At the very edge of the window, where writer and loader may each think the other will.
        55..85 => WINDOW_MS + dice.random_range(-100..1400),
        // Cold, until the loader comes.
        _ => dice.random_range(WINDOW_MS + 2000..AHEAD_MS),
    };
    let due_at = asked_at + ahead;
    let hundred = dice.random_range(0..100);
    let mood = if hundred < shape.bad_receivers {
        Mood::ALL[dice.random_range(1..Mood::ALL.len())]
    } else if hundred < shape.bad_receivers + shape.grudging {
        Mood::Grudging
    } else {
        Mood::Fine
    };
    let expires = dice.random_range(0..100) < shape.expiring;
    let wish = (dice.random_range(0..100) < 40).then(|| {
        let near = dice.random_bool(0.5);
        let at = if near {
            due_at + dice.random_range(-50..=50)
        } else {
            asked_at + dice.random_range(0..=ahead + 300)
        };
        let wish =
            if dice.random_bool(0.5) { Wish::Cancel } else { Wish::Move(dice.random_range(100..MOVE_MS)) };
        (at.max(asked_at), wish)
    });
    Planned { asked_at, due_at, mood, expires, wish }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { rate: 500, seconds: 20, bad_receivers: 20, grudging: 5, expiring: 10 };

    #[test]
    fn one_seed_is_one_plan() {
        assert_eq!(timers(7, SHAPE), timers(7, SHAPE));
        assert_ne!(timers(7, SHAPE), timers(8, SHAPE));
    }

    #[test]
    fn half_of_the_wishes_come_within_50_ms_of_due() {
        let plan = timers(1, SHAPE);
        assert_eq!(plan.len(), 10_000);
        let wishes: Vec<_> = plan.iter().filter_map(|t| Some((t.due_at, t.wish?.0))).collect();
        let near = wishes.iter().filter(|(due, at)| (due - at).abs() <= 50).count();
        assert!(near * 2 > wishes.len() && near * 10 < wishes.len() * 6, "{near} of {}", wishes.len());
        assert!(plan.iter().all(|t| t.wish.is_none_or(|(at, _)| at >= t.asked_at)));
    }

    #[test]
    fn a_mood_is_read_back_from_its_letter() {
        assert!(Mood::ALL.iter().all(|mood| Mood::of(&mood.letter().to_string()) == Some(*mood)));
        assert_eq!(Mood::of("z"), None);
    }
}

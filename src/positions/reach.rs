//! How far ahead of now the wheels are filled.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::time::UnixMs;

/// How long the wheels rest that found no room although they reach no further than they must.
const REST: Duration = Duration::from_secs(30);

/// The first pause before it is lengthened again. Each shortening soon after a change makes it four times as long.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest pause before it is lengthened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(900);

/// It is doubled when no more than this share of the memory is used, so that twice as much is less than all of it.
const ROOM: f64 = 0.45;

/// `wheel.window`, or less while Redis has no room for so much.
///
/// It is halved each time Redis has no room, down to `wheel.near`, and doubled when Redis says that it has room for
/// twice as much. What lies in the added half is not known before, so that may be too much after all: the pauses grow.
#[derive(Debug)]
pub struct Reach {
    full: Duration,
    least: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    now: Duration,
    /// When it was last changed, or was to be changed.
    at: UnixMs,
    pause: Duration,
    /// There was no room for the least reach.
    rests: bool,
}

impl Reach {
    /// It reaches `full`, and never less than `least`.
    pub fn new(full: Duration, least: Duration) -> Self {
        let state = State { now: full, at: UnixMs::new(0), pause: PAUSE, rests: false };
        Self { full, least: least.min(full), state: Mutex::new(state) }
    }

    /// How far the wheels are filled now.
    pub fn get(&self) -> Duration {
        self.state().now
    }

    /// How far they are filled while there is room.
    pub const fn full(&self) -> Duration {
        self.full
    }

    /// Whether there was no room for all.
    pub fn is_short(&self) -> bool {
        self.state().now < self.full
    }

    /// There was no room. Returns the new reach.
    pub fn shorten(&self, now: UnixMs) -> Duration {
        let mut state = self.state();
        let soon = state.elapsed(now) < self.full;
        state.pause = if soon { (state.pause * 4).min(LONGEST_PAUSE) } else { PAUSE };
        state.rests = state.now == self.least;
        state.now = (state.now / 2).max(self.least);
        state.at = now;
        state.now
    }

    /// Whether wheels that found no room may be built again.
    pub fn may_build(&self, now: UnixMs) -> bool {
        let state = self.state();
        !state.rests || state.elapsed(now) >= REST
    }

    /// Whether it is short, and the pause since the last change is over.
    pub fn may_lengthen(&self, now: UnixMs) -> bool {
        let state = self.state();
        state.now < self.full && state.elapsed(now) >= state.pause
    }

    /// Doubles it, if there is room: `used` is the share of the memory that is in use. Returns the new reach.
    pub fn lengthen(&self, used: f64, now: UnixMs) -> Option<Duration> {
        let mut state = self.state();
        state.at = now;
        if used > ROOM {
            return None;
        }
        state.now = (state.now * 2).min(self.full);
        Some(state.now)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How long ago it was changed; also after the store's clock was set back.
    fn elapsed(&self, now: UnixMs) -> Duration {
        Duration::from_millis(now.get().abs_diff(self.at.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> UnixMs {
        UnixMs::new(1_800_000_000_000 + seconds * 1000)
    }

    fn an_hour() -> Reach {
        Reach::new(60 * MINUTE, 2 * MINUTE)
    }

    #[test]
    fn it_is_halved_down_to_the_least_and_rests_there() {
        let reach = an_hour();
        assert!(!reach.is_short() && !reach.may_lengthen(at(0)) && reach.may_build(at(0)));
        let halves: Vec<u64> = (0..6).map(|n| reach.shorten(at(n)).as_secs()).collect();
        assert_eq!(halves, [1800, 900, 450, 225, 120, 120]);
        assert!(!reach.may_build(at(5 + 29)), "there is no room for the least either");
        assert!(reach.may_build(at(5 + 30)) && reach.is_short());
    }

    #[test]
    fn it_is_doubled_only_into_room() {
        let reach = an_hour();
        reach.shorten(at(0));
        reach.shorten(at(7200));
        assert!(!reach.may_lengthen(at(7201)) && reach.may_lengthen(at(7202)));
        assert_eq!(reach.lengthen(0.46, at(7202)), None);
        assert!(!reach.may_lengthen(at(7203)), "it is not asked for all the time");
        assert_eq!(reach.lengthen(0.45, at(7204)), Some(30 * MINUTE));
        assert_eq!(reach.lengthen(0.0, at(7206)), Some(60 * MINUTE));
        assert!(!reach.is_short() && !reach.may_lengthen(at(9999)));
    }

    #[test]
    fn what_fails_again_and_again_is_tried_less_and_less_often() {
        let (reach, mut now, mut tries) = (an_hour(), 0, 0);
        reach.shorten(at(now));
        while now < 86_400 {
            now += 1;
            if reach.may_lengthen(at(now)) {
                reach.lengthen(0.2, at(now)).expect("it says that there is room");
                reach.shorten(at(now));
                tries += 1;
            }
        }
        assert!((90..110).contains(&tries), "{tries} a day");
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_hold_it() {
        let reach = Reach::new(60 * MINUTE, 60 * MINUTE);
        reach.shorten(at(7200));
        assert!(!reach.may_build(at(7201)));
        assert!(reach.may_build(at(3600)));
    }
}

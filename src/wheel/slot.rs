//! Levels, ticks, slots and marks: pure arithmetic.

use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;

const SECOND_MS: i64 = 1000;
const MINUTE_MS: i64 = 60_000;

/// One of the wheels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Slots of one second; the pointers taken are handed to the last mile.
    Second,
    /// Slots of one minute; the pointers taken are cascaded into second slots.
    Minute,
    /// Slots of one minute, for timers due at its first millisecond; the pointers taken are handed to the last
    /// mile.
    WholeMinute,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::Second, Self::Minute, Self::WholeMinute];

    /// The length of a slot, in milliseconds.
    pub const fn tick_ms(self) -> i64 {
        match self {
            Self::Second => SECOND_MS,
            Self::Minute | Self::WholeMinute => MINUTE_MS,
        }
    }

    /// Its word in answers and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::WholeMinute => "whole_minute",
        }
    }

    /// The slot that contains a moment.
    pub const fn slot_of(self, at: UnixMs) -> Slot {
        Slot { level: self, tick: Tick(at.get().div_euclid(self.tick_ms())) }
    }
}

/// The number of a slot, counted from the Unix epoch. It is absolute and never wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tick(pub i64);

impl Tick {
    /// The tick after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One slot of one wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The wheel.
    pub level: Level,
    /// Its number.
    pub tick: Tick,
}

impl Slot {
    /// The moment at which it begins.
    pub const fn starts_at(self) -> UnixMs {
        UnixMs::new(self.tick.0 * self.level.tick_ms())
    }

    /// The moment at which the next one begins.
    pub const fn ends_at(self) -> UnixMs {
        UnixMs::new((self.tick.0 + 1) * self.level.tick_ms())
    }
}

/// The last tick of each level that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marks {
    /// Of the second wheel.
    pub second: Tick,
    /// Of the minute wheel: minutes up to here are cascaded.
    pub minute: Tick,
    /// Of the wheel of whole minutes.
    pub whole: Tick,
}

impl Marks {
    /// The marks of a wheel that starts at `now`: slots that begin within `ahead_ms` count as taken, minutes
    /// that begin within `near_ms` count as cascaded.
    pub fn starting(now: UnixMs, ahead_ms: i64, near_ms: i64) -> Self {
        let at = |level: Level, by: i64| level.slot_of(UnixMs::new(now.get() + by)).tick;
        Self {
            second: at(Level::Second, ahead_ms),
            minute: at(Level::Minute, near_ms.max(ahead_ms)),
            whole: at(Level::WholeMinute, ahead_ms),
        }
    }

    /// The mark of a level.
    pub const fn of(&self, level: Level) -> Tick {
        match level {
            Level::Second => self.second,
            Level::Minute => self.minute,
            Level::WholeMinute => self.whole,
        }
    }

    /// The mark of a level, to be raised.
    pub const fn of_mut(&mut self, level: Level) -> &mut Tick {
        match level {
            Level::Second => &mut self.second,
            Level::Minute => &mut self.minute,
            Level::WholeMinute => &mut self.whole,
        }
    }

    /// The coarsest slot for a pointer that is not taken yet; `None` if its slot was taken: then the pointer is
    /// for the last mile.
    pub fn open_slot(&self, pointer: &Pointer) -> Option<Slot> {
        let at = pointer.wake_at;
        let whole = pointer.minute && pointer.attempt == 0 && at.get() % MINUTE_MS == 0;
        let open = |level: Level| {
            let slot = level.slot_of(at);
            (slot.tick > self.of(level)).then_some(slot)
        };
        if whole { open(Level::WholeMinute) } else { open(Level::Minute).or(open(Level::Second)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::{Generation, Uid};
    use crate::model::namespace::Namespace;
    use crate::model::pointer::Via;
    use crate::model::priority::Priority;

    fn at(wake_ms: i64, minute: bool, attempt: i32) -> Pointer {
        Pointer {
            uid: Uid(uuid::Uuid::nil()),
            shard: 0,
            namespace: Namespace::OWN,
            generation: Generation(1),
            attempt,
            wake_at: UnixMs::new(wake_ms),
            lane: 0,
            minute,
            is_for_queue: false,
            priority: Priority::Normal,
            change: 0,
            overdue: false,
            via: Via::Loader,
        }
    }

    #[test]
    fn a_moment_lies_in_one_slot_of_each_level() {
        for (ms, second, minute) in
            [(0, 0, 0), (999, 0, 0), (1000, 1, 0), (59_999, 59, 0), (60_000, 60, 1), (-1, -1, -1)]
        {
            assert_eq!(Level::Second.slot_of(UnixMs::new(ms)).tick, Tick(second), "{ms}");
            assert_eq!(Level::Minute.slot_of(UnixMs::new(ms)).tick, Tick(minute), "{ms}");
        }
        let slot = Level::Minute.slot_of(UnixMs::new(90_000));
        assert_eq!((slot.starts_at().get(), slot.ends_at().get()), (60_000, 120_000));
    }

    #[test]
    fn a_pointer_gets_the_coarsest_slot_that_is_not_taken_yet() {
        // 00:10:00.000; slots up to half a second ahead are taken, minutes up to two ahead cascaded.
        let marks = Marks::starting(UnixMs::new(600_000), 500, 120_000);
        let open = |level, tick| Some(Slot { level, tick: Tick(tick) });
        for (pointer, slot) in [
            (at(599_000, false, 0), None),
            (at(600_999, false, 0), None),
            (at(601_000, false, 0), open(Level::Second, 601)),
            (at(779_999, false, 0), open(Level::Second, 779)),
            (at(780_000, false, 0), open(Level::Minute, 13)),
            (at(3_600_000, false, 0), open(Level::Minute, 60)),
            (at(600_000, true, 0), None),
            (at(660_000, true, 0), open(Level::WholeMinute, 11)),
            (at(660_001, true, 0), open(Level::Second, 660)),
            (at(660_000, true, 1), open(Level::Second, 660)),
        ] {
            assert_eq!(marks.open_slot(&pointer), slot, "{pointer:?}");
        }
    }
}

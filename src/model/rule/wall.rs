//! What the clocks on a zone's walls show, and when.
//!
//! Clocks go forward (a gap: readings that never come) and back (an overlap: readings that come twice). Both are
//! one event here, a change of the offset, and only the way from an instant to its offset is asked of the zone data:
//! that way is never in doubt. A change is found by bisection in a window with at most one. No zone ever changed
//! its offset twice within six days (the closest: Brazil's north-east in October 2000, a week), and none ever by more
//! than 24 hours (Alaska 1867, Manila 1844, Samoa 2011).

use chrono::{DateTime, Offset, TimeZone};
use chrono_tz::Tz;

use crate::model::time::UnixMs;

pub(super) const DAY_MS: i64 = 86_400_000;

/// A reading of a clock on the wall: milliseconds since it would have shown 1970-01-01T00:00:00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wall(pub i64);

/// The zone's offset at an instant: what its clocks are ahead of UTC.
pub(super) fn offset_ms(zone: Tz, at: UnixMs) -> i64 {
    // Chrono writes 260,000 years either way; the first and the last instant of the model are far inside.
    DateTime::from_timestamp_millis(at.get()).map_or(0, |at| {
        i64::from(zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()) * 1000
    })
}

/// What the clocks show at an instant.
pub(super) fn wall(zone: Tz, at: UnixMs) -> Wall {
    Wall(at.get() + offset_ms(zone, at))
}

/// The latest reading that the clocks have shown up to and at an instant: after they went back, for as long as the
/// overlap lasts, one that they no longer show.
pub(super) fn latest(zone: Tz, at: UnixMs) -> Wall {
    let shown = wall(zone, at);
    // An overlap lasts at most 24 hours after its change.
    let turned = change(zone, UnixMs::new(at.get() - DAY_MS), at);
    turned.map_or(shown, |turned| shown.max(wall(zone, UnixMs::new(turned.get() - 1))))
}

/// The first instant at which the clocks show this reading or a later one: of an overlap the first of the two, for a
/// gap its end. A later reading never has an earlier instant.
pub(super) fn first(zone: Tz, reading: Wall) -> UnixMs {
    // Offsets are less than a day, so the instant is in here.
    let (from, to) = (UnixMs::new(reading.0 - DAY_MS), UnixMs::new(reading.0 + DAY_MS));
    let before = reading.0 - offset_ms(zone, from);
    match change(zone, from, to) {
        Some(turned) if turned.get() <= before => {
            UnixMs::new(turned.get().max(reading.0 - offset_ms(zone, to)))
        }
        _ => UnixMs::new(before),
    }
}

/// The first instant after `from` and not after `to`, at most two days later, that has another offset than `from`.
pub(super) fn change(zone: Tz, from: UnixMs, to: UnixMs) -> Option<UnixMs> {
    let old = offset_ms(zone, from);
    if offset_ms(zone, to) == old {
        return None;
    }
    let (mut before, mut after) = (from.get(), to.get());
    // Halves what is between, 28 times for two days.
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        if offset_ms(zone, UnixMs::new(middle)) == old {
            before = middle;
        } else {
            after = middle;
        }
    }
    Some(UnixMs::new(after))
}

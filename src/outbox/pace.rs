//! How fast a node sends events while it has more important things to do: timers to send, callers to answer.
//!
//! Events may trail. So a busy node sends few of them, until the oldest has waited for long.

use std::time::Duration;

use super::Outbox;
use crate::clock::Monotonic;
use crate::model::time::UnixMs;

/// A node is busy when it has so many attempts under way, or writes so many events a second.
const BUSY_IN_FLIGHT: usize = 32;
const BUSY_WRITING: f64 = 2000.0;

/// Over so long the rate of writing is taken.
const BUSY_OVER: Duration = Duration::from_millis(100);

/// A busy node sends so many events of a subscription at a time, and no sooner than so long after the last.
const BUSY_SHARE: usize = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Events that have waited for longer are sent also by a busy node as fast as they can be.
const TRAIL: Duration = Duration::from_secs(20);

/// The pace of one subscription's events.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How many events this process had written then, and when.
    written: Option<(u64, Monotonic)>,
    is_writing: bool,
    /// When something was sent last.
    sent_at: Option<Monotonic>,
}

impl Pace {
    /// Of `room` for events, how many may be sent now. `oldest_at` is when the oldest of them became true.
    pub fn share(&mut self, room: usize, oldest_at: Option<UnixMs>, outbox: &Outbox) -> usize {
        let now = outbox.store.clock().now();
        let may_trail = oldest_at.is_none_or(|at| now.since(at) < TRAIL);
        let is_busy =
            self.is_writing(outbox.store.told()) || outbox.dispatcher.is_busier_than(BUSY_IN_FLIGHT);
        if !(may_trail && is_busy) {
            return room;
        }
        let is_soon = self.sent_at.is_some_and(|at| at.elapsed() < BUSY_PAUSE);
        if is_soon { 0 } else { room.min(BUSY_SHARE) }
    }

    /// Events are sent now.
    pub fn sends(&mut self) {
        self.sent_at = Some(Monotonic::now());
    }

    /// Whether this process, which has written so many events, writes many a second.
    fn is_writing(&mut self, told: u64) -> bool {
        match self.written {
            Some((_, at)) if at.elapsed() < BUSY_OVER => {}
            before => {
                let rate = before.map_or(0.0, |(written, at)| {
                    told.saturating_sub(written) as f64 / at.elapsed().as_secs_f64().max(0.001)
                });
                self.is_writing = rate > BUSY_WRITING;
                self.written = Some((told, Monotonic::now()));
            }
        }
        self.is_writing
    }
}

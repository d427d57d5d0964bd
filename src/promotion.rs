//! The way into the wheels for those who write timers: what is due within the window goes there at once.
//!
//! A handle and a bounded queue. [`crate::hot::promoter`] takes from it. Nobody waits for it: callers were
//! answered at the commit, and what does not fit is dropped; its timer is in SQL and the sweep finds it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::clock::StoreClock;
use crate::cold::TimerRow;
use crate::metrics::Metrics;
use crate::model::pointer::{Pointer, Via};
use crate::positions::Positions;

/// Pointers that wait to be promoted.
pub const QUEUE: usize = 65_536;

/// How far beyond the window a watermark can lie, at most, as seen by another node.
const SLACK: Duration = Duration::from_secs(120);

/// The door for those who write timers.
#[derive(Clone)]
pub struct Promotion {
    queue: Option<(mpsc::Sender<Pointer>, Arc<Positions>)>,
    clock: StoreClock,
    reach: Duration,
    metrics: Metrics,
}

impl Promotion {
    /// A door, and the queue behind it; without wheels, which have positions, nothing is promoted.
    pub fn new(
        clock: StoreClock,
        window: Duration,
        wheels: Option<Arc<Positions>>,
        metrics: Metrics,
    ) -> (Self, mpsc::Receiver<Pointer>) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let queue = wheels.map(|positions| (queue, positions));
        (Self { queue, clock, reach: window + SLACK, metrics }, inbox)
    }

    /// Takes in timers that were just written, after their commit.
    pub fn written<'a>(&self, rows: impl IntoIterator<Item = &'a TimerRow>) {
        let Some((queue, positions)) = &self.queue else { return };
        let horizon = self.clock.now().plus(self.reach);
        // After the window was shortened a watermark lies further ahead for a while.
        let near = |one: &Pointer| one.wake_at < horizon || one.wake_at < positions.watermark(one.shard);
        for row in rows {
            let Some(pointer) = row.pointer(Via::Express).filter(near) else { continue };
            if queue.try_send(pointer).is_err() {
                self.metrics.unpromoted.inc();
            }
        }
    }
}

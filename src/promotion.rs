//! Promotion of timers that were just written: those due within the window are promoted at once, unless a pointer that
//! lies in a wheel comes up before them. What that one finds then is promoted too.
//!
//! A handle and a bounded queue, which [`crate::hot::promoter`] reads. No caller waits for it: callers are
//! answered at the commit. When the queue is full, a pointer is dropped; the sweep finds its timer in SQL.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::clock::StoreClock;
use crate::cold::TimerRow;
use crate::metrics::Metrics;
use crate::model::pointer::{Pointer, Via};
use crate::positions::Positions;

/// The length of the queue, in pointers.
pub const QUEUE: usize = 65_536;

/// How far beyond the window the watermark of another node's shard can lie, at most.
const SLACK: Duration = Duration::from_secs(120);

/// The writers' handle.
#[derive(Clone)]
pub struct Promotion {
    queue: Option<(mpsc::Sender<Pointer>, Arc<Positions>)>,
    clock: StoreClock,
    reach: Duration,
    metrics: Metrics,
}

impl Promotion {
    /// The handle and the receiving end of its queue. Without `wheels` nothing is promoted.
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

    /// Queues pointers to timers that were just written, after their commit, if they are due within the window and no
    /// other pointer leads to them.
    pub fn written<'a>(&self, rows: impl IntoIterator<Item = &'a TimerRow>) {
        let rows = rows.into_iter().filter(|row| row.pointed_at.is_none());
        self.promote(rows.filter_map(|row| row.pointer(Via::Express)));
    }

    /// Queues pointers, if their timers are due within the window.
    pub fn promote(&self, pointers: impl IntoIterator<Item = Pointer>) {
        let Some((queue, positions)) = &self.queue else { return };
        let horizon = self.clock.now().plus(self.reach);
        // After the window was shortened, watermarks lie further ahead than it for a while.
        let near = |one: &Pointer| one.wake_at < horizon || one.wake_at < positions.watermark(one.shard);
        for pointer in pointers.into_iter().filter(near) {
            if queue.try_send(pointer).is_err() {
                self.metrics.unpromoted.inc();
            }
        }
    }
}

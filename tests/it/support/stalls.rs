//! Moments at which a node, or a store behind it, was slow to answer. A test that demands punctuality knows by
//! them what was the machine's doing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use tokio::task::JoinHandle;

use super::{Api, wall_ms};

/// How long a node rests between two answers.
const EVERY: Duration = Duration::from_millis(100);

/// An answer that takes longer, in milliseconds, is a stall: on a machine that keeps up it takes about ten.
const SLOW_MS: i64 = 300;

/// Asks nodes for answers that go through their SQL and their wheels.
pub struct Watch {
    stop: Arc<AtomicBool>,
    asking: Vec<JoinHandle<Vec<Range<i64>>>>,
}

impl Watch {
    /// Asks each of these nodes, all the time, until [`Watch::end`].
    pub fn start(apis: &[Api]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ask = |api: &Api| tokio::spawn(ask(api.clone(), Arc::clone(&stop)));
        Self { asking: apis.iter().map(ask).collect(), stop }
    }

    /// Returns every stall since the start.
    pub async fn end(self) -> Stalls {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for asking in self.asking {
            all.extend(asking.await.expect("asking does not panic"));
        }
        Stalls(all)
    }
}

/// Stalls, in wall time, Unix milliseconds.
#[derive(Debug)]
pub struct Stalls(Vec<Range<i64>>);

impl Stalls {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any of them overlaps this span.
    pub fn touch(&self, span: Range<i64>) -> bool {
        self.0.iter().any(|stall| stall.start < span.end && span.start < stall.end)
    }

    /// How long the nodes stood still within this span, in milliseconds: the sum of all stalls.
    pub fn within(&self, span: Range<i64>) -> i64 {
        let part = |stall: &Range<i64>| stall.end.min(span.end) - stall.start.max(span.start);
        self.0.iter().map(part).filter(|ms| *ms > 0).sum()
    }
}

async fn ask(api: Api, stop: Arc<AtomicBool>) -> Vec<Range<i64>> {
    let mut slow = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let from = wall_ms();
        for path in ["/v1/timers?limit=1", "/v1/wheels"] {
            // A node that refuses is not slow, and one that is gone is no machine that stands still.
            api.try_send(Method::GET, path, &[], None).await.ok();
        }
        // A rest that lasts longer than it should is a stall as well.
        tokio::time::sleep(EVERY).await;
        let until = wall_ms();
        if until - from > SLOW_MS + i64::try_from(EVERY.as_millis()).expect("short") {
            slow.push(from..until);
        }
    }
    slow
}

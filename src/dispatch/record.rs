//! Results are written to the cold store, in batches, and tried again until they are written.
//!
//! While the store is away, results wait here and further ones in the channel. Memory stays bounded by the node's
//! concurrency: nothing new is claimed meanwhile, because a claim needs the store.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::lanes::Lanes;
use crate::clock::{Monotonic, StoreClock};
use crate::cold::{AttemptRecord, Change, ChangeEvent, Error, MAX_APPLY_BATCH};
use crate::metrics::Metrics;
use crate::model::id::{Epoch, Uid};
use crate::model::time::UnixMs;
use crate::model::timer::{AttemptResult, Next, Token};
use crate::telemetry::Streak;
use crate::writer::Writer;

/// How often a stop tries again while the store is away, before it ends without recording the results.
const STOP_PATIENCE: u32 = 10;

/// The outcome of a claim.
#[derive(Debug)]
pub(super) enum Report {
    /// An attempt was made: what follows unless it succeeded, its record, and when its timer was due, or was
    /// registered if that was later.
    Attempted { uid: Uid, next: Next, record: AttemptRecord, due_at: UnixMs },
    /// The timer is claimed, or may be, and surely nothing was sent.
    Unsent(Uid, Token, Epoch),
}

impl Report {
    const fn uid(&self) -> Uid {
        match self {
            Self::Attempted { uid, .. } | Self::Unsent(uid, ..) => *uid,
        }
    }

    /// The record of an attempt that succeeded.
    fn succeeded(&self) -> Option<(Uid, AttemptRecord)> {
        match self {
            Self::Attempted { uid, record, .. } if record.result == AttemptResult::Ok => {
                Some((*uid, record.clone()))
            }
            _ => None,
        }
    }

    /// The due time of a timer whose first attempt succeeded.
    fn succeeded_first(&self) -> Option<UnixMs> {
        match self {
            Self::Attempted { record, due_at, .. } if record.attempt == 1 => {
                (record.result == AttemptResult::Ok).then_some(*due_at)
            }
            _ => None,
        }
    }

    fn change(&self) -> Change {
        match self {
            Self::Attempted { uid, next, record, .. } => {
                Change { uid: *uid, event: ChangeEvent::Attempted(*next, record.clone()) }
            }
            Self::Unsent(uid, token, epoch) => {
                Change { uid: *uid, event: ChangeEvent::Released(*token, *epoch) }
            }
        }
    }
}

/// Writes results, batch by batch.
pub(super) struct Recorder {
    pub writer: Writer,
    pub metrics: Metrics,
    pub clock: StoreClock,
    /// A timer whose outcome is recorded is no longer in hand.
    pub lanes: Arc<Mutex<Lanes>>,
    /// Notified when that queues a pointer.
    pub work: Arc<Notify>,
    pub inbox: mpsc::Receiver<Report>,
    /// Nothing more will be reported.
    pub all_reported: CancellationToken,
}

impl Recorder {
    /// Records until `all_reported`, or until the last handle of the dispatcher is dropped.
    pub async fn run(mut self) {
        let (mut reports, mut streak) = (Vec::new(), Streak::default());
        loop {
            reports.clear();
            tokio::select! {
                biased;
                received = self.inbox.recv_many(&mut reports, MAX_APPLY_BATCH) => if received == 0 {
                    return;
                },
                () = self.all_reported.cancelled() => return,
            }
            self.record_all(&reports, &mut streak).await;
            self.metrics.unrecorded.sub(i64::try_from(reports.len()).unwrap_or_default());
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            for report in &reports {
                if lanes.recorded(&report.uid(), Monotonic::now().as_ms()) {
                    self.work.notify_one();
                }
            }
        }
    }

    /// Writes a batch, and tries again while the store is away. A batch with a result that can never be written is
    /// halved until that result stands alone.
    async fn record_all(&self, reports: &[Report], streak: &mut Streak) {
        let mut failures = 0;
        let mut batches = vec![reports];
        while let Some(batch) = batches.pop() {
            let Err(why) = self.record(batch).await else {
                if streak.succeeded() {
                    tracing::info!("results are recorded again");
                }
                continue;
            };
            if !why.is_passing() || why.is_data() {
                match batch {
                    [_] => tracing::error!(%why, "a result cannot be recorded; its claim expires"),
                    _ => batches.extend(<[_; 2]>::from(batch.split_at(batch.len() / 2))),
                }
                continue;
            }
            failures += 1;
            if streak.failed(self.writer.is_away()) {
                tracing::warn!(%why, results = batch.len(), "results cannot be recorded yet; trying again");
            } else {
                tracing::debug!(%why, results = batch.len(), "results were not recorded; trying again");
            }
            batches.push(batch);
            let stopping = self.inbox.is_closed() || self.all_reported.is_cancelled();
            if stopping && failures > STOP_PATIENCE {
                let results: usize = batches.iter().map(|batch| batch.len()).sum();
                tracing::error!(results, "stopping without recording results; their claims expire");
                return;
            }
            self.clock.sleep(Duration::from_millis(u64::from(failures.min(10)) * 100)).await;
        }
    }

    /// Writes a batch. The same batch again changes nothing: until its outcome is recorded the timer is not claimed again
    /// on this node, and on another node a claim has another epoch.
    async fn record(&self, reports: &[Report]) -> Result<(), Error> {
        let succeeded: Vec<(Uid, AttemptRecord)> = reports.iter().filter_map(Report::succeeded).collect();
        let mut ended = HashSet::new();
        if !succeeded.is_empty() {
            ended.extend(self.writer.finish_delivered(&succeeded).await?);
            let now = self.clock.now();
            let confirmed = reports.iter().filter(|report| ended.contains(&report.uid()));
            for due_at in confirmed.filter_map(Report::succeeded_first) {
                self.metrics.confirmed.observe(now.since(due_at).as_secs_f64());
            }
        }
        let is_open =
            |report: &&Report| matches!(report, Report::Unsent(..)) || !ended.contains(&report.uid());
        let changes: Vec<Change> = reports.iter().filter(is_open).map(Report::change).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let applied: Result<Vec<_>, Error> = self.writer.apply(&changes).await.into_iter().collect();
        applied.map(drop)
    }
}

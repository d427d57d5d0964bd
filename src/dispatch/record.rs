//! Results are written to the cold store, in batches, and tried again until they are written.
//!
//! A timer takes one of the node's places (`dispatch.concurrency`) until its result is written ([`Lanes::recorded`]). So
//! results that cannot be written slow the node down, at last to a stop, and no more than these are made again after a
//! crash. The result of a timer whose row a stranger has locked waits by itself, and the others are written.

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

/// The pause before results of locked timers are tried again.
const LOCKED_PAUSE: Duration = Duration::from_millis(250);

/// How long results are gathered before they are written, if there are fewer than [`MANY`]: a statement costs as much as twenty
/// of its rows.
const GATHER: Duration = Duration::from_millis(5);

/// So many results are written at once.
const MANY: usize = MAX_APPLY_BATCH / 2;

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
                Change { uid: *uid, caller: None, event: ChangeEvent::Attempted(*next, record.clone()) }
            }
            Self::Unsent(uid, token, epoch) => {
                Change { uid: *uid, caller: None, event: ChangeEvent::Released(*token, *epoch) }
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
        // Results of timers that a stranger has locked, and when they are tried again.
        let (mut locked, mut again_at) = (Vec::new(), Monotonic::now());
        loop {
            let wait = again_at.since(Monotonic::now());
            tokio::select! {
                biased;
                () = self.clock.sleep(wait), if !locked.is_empty() => {}
                received = self.inbox.recv_many(&mut reports, MAX_APPLY_BATCH) => if received == 0 {
                    break;
                },
                () = self.all_reported.cancelled() => break,
            }
            if !reports.is_empty() && reports.len() < MANY && !self.is_full() {
                self.gather(&mut reports).await;
            }
            if !locked.is_empty() && again_at <= Monotonic::now() {
                locked = self.record_all(locked, &mut streak).await;
                again_at = Monotonic::now().plus(LOCKED_PAUSE);
            }
            if !reports.is_empty() {
                if locked.is_empty() {
                    again_at = Monotonic::now().plus(LOCKED_PAUSE);
                }
                locked.extend(self.record_all(std::mem::take(&mut reports), &mut streak).await);
            }
        }
        let locked = self.record_all(locked, &mut streak).await;
        if !locked.is_empty() {
            let results = locked.len();
            tracing::error!(
                results,
                "stopping without recording results of locked rows; their claims expire"
            );
        }
    }

    /// Whether no attempt can begin before results are written.
    fn is_full(&self) -> bool {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).is_full()
    }

    /// Waits a moment for more results, and takes those that have come.
    async fn gather(&mut self, reports: &mut Vec<Report>) {
        tokio::select! {
            () = self.clock.sleep(GATHER) => {}
            () = self.all_reported.cancelled() => {}
        }
        while reports.len() < MAX_APPLY_BATCH
            && let Ok(report) = self.inbox.try_recv()
        {
            reports.push(report);
        }
    }

    /// Writes results, and tries again while the store is away. A batch with a result that can never be written is halved
    /// until that result stands alone. Returns the results of timers that others have locked.
    async fn record_all(&self, reports: Vec<Report>, streak: &mut Streak) -> Vec<Report> {
        let (mut failures, mut locked) = (0, Vec::new());
        let mut batches: Vec<Vec<Report>> =
            if reports.len() <= MAX_APPLY_BATCH { vec![reports] } else { in_batches(reports) };
        while let Some(mut batch) = batches.pop() {
            let why = match self.record(&batch).await {
                Ok(locked_now) => {
                    if streak.succeeded() {
                        tracing::info!("results are recorded again");
                    }
                    let (stay, done): (Vec<Report>, Vec<Report>) =
                        batch.into_iter().partition(|report| locked_now.contains(&report.uid()));
                    self.recorded(&done);
                    locked.extend(stay);
                    continue;
                }
                Err(why) => why,
            };
            if !why.is_passing() || why.is_data() {
                if batch.len() == 1 {
                    tracing::error!(%why, "a result cannot be recorded; its claim expires");
                    self.recorded(&batch);
                } else {
                    let rest = batch.split_off(batch.len() / 2);
                    batches.extend([batch, rest]);
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
                let results: usize = batches.iter().map(Vec::len).sum();
                tracing::error!(results, "stopping without recording results; their claims expire");
                return locked;
            }
            self.clock.sleep(Duration::from_millis(u64::from(failures.min(10)) * 100)).await;
        }
        locked
    }

    /// Timers whose outcome is recorded are no longer in hand.
    fn recorded(&self, reports: &[Report]) {
        self.metrics.unrecorded.sub(i64::try_from(reports.len()).unwrap_or_default());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut has_work = false;
        for report in reports {
            has_work |= lanes.recorded(&report.uid(), Monotonic::now().as_ms());
        }
        drop(lanes);
        if has_work {
            self.work.notify_one();
        }
    }

    /// Writes a batch; returns the timers that others have locked, whose results were not written. The same batch again
    /// changes nothing: until its outcome is recorded the timer is not claimed again on this node, and on another node a
    /// claim has another epoch.
    async fn record(&self, reports: &[Report]) -> Result<HashSet<Uid>, Error> {
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
        let mut locked = HashSet::new();
        if changes.is_empty() {
            return Ok(locked);
        }
        for (change, applied) in changes.iter().zip(self.writer.apply_unlocked(&changes).await) {
            match applied {
                Ok(_) => {}
                Err(Error::Busy) => drop(locked.insert(change.uid)),
                Err(why) => return Err(why),
            }
        }
        Ok(locked)
    }
}

/// Batches of the size that one transaction takes.
fn in_batches(mut reports: Vec<Report>) -> Vec<Vec<Report>> {
    let mut batches = Vec::new();
    while reports.len() > MAX_APPLY_BATCH {
        batches.push(reports.split_off(reports.len() - MAX_APPLY_BATCH));
    }
    batches.push(reports);
    batches
}

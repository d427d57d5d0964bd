//! Results into the cold store, in batches, until they are in.
//!
//! While the store is away the results wait here and the attempts behind them in the channel, so memory
//! stays bounded by the node's concurrency; nothing new is claimed meanwhile, for a claim needs the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::lanes::Lanes;
use crate::clock::Monotonic;
use crate::cold::{Applied, AttemptRecord, Change, ChangeEvent, ColdStore, Error, MAX_APPLY_BATCH};
use crate::metrics::Metrics;
use crate::model::id::{Epoch, Uid};
use crate::model::timer::{Answer, AttemptResult, Next, Token};
use crate::promotion::Promotion;

/// How long a stop waits for a store that is away before it leaves results behind.
const STOP_PATIENCE: u32 = 10;

/// What became of a claim.
#[derive(Debug)]
pub(super) struct Report {
    uid: Uid,
    what: What,
}

#[derive(Debug)]
enum What {
    Attempted(Next, AttemptRecord),
    Unsent(Token, Epoch),
}

impl Report {
    /// An attempt was made.
    pub fn attempted(uid: Uid, next: Next, record: AttemptRecord) -> Self {
        Self { uid, what: What::Attempted(next, record) }
    }

    /// Claimed, or perhaps claimed, and surely not sent.
    pub fn unsent(uid: Uid, token: Token, epoch: Epoch) -> Self {
        Self { uid, what: What::Unsent(token, epoch) }
    }
}

/// Records until everything has been reported that ever will be, or the last dispatcher handle is gone.
pub(super) async fn run(
    store: ColdStore,
    metrics: Metrics,
    promotion: Promotion,
    (lanes, work): (Arc<Mutex<Lanes>>, Arc<Notify>),
    mut inbox: mpsc::Receiver<Report>,
    all_reported: CancellationToken,
) {
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            came = inbox.recv_many(&mut batch, MAX_APPLY_BATCH) => if came == 0 {
                return;
            },
            () = all_reported.cancelled() => return,
        }
        let reports = std::mem::take(&mut batch);
        let mut failures = 0;
        let mut parts = vec![&reports[..]];
        while let Some(part) = parts.pop() {
            let Err(why) = record(&store, &metrics, &promotion, part).await else { continue };
            metrics.store_errors.inc();
            if !why.is_passing() || why.is_data() {
                // Something cannot be written, however often it is tried: the others are.
                match part {
                    [_] => tracing::error!(%why, "a result cannot be recorded; its claim runs out"),
                    _ => parts.extend(<[_; 2]>::from(part.split_at(part.len() / 2))),
                }
                continue;
            }
            failures += 1;
            if failures == 1 {
                tracing::warn!(%why, results = part.len(), "results not recorded yet; trying on");
            }
            parts.push(part);
            if (inbox.is_closed() || all_reported.is_cancelled()) && failures > STOP_PATIENCE {
                let results: usize = parts.iter().map(|part| part.len()).sum();
                tracing::error!(results, "stopping without recording results; their claims run out");
                break;
            }
            store.clock().sleep(Duration::from_millis(u64::from(failures.min(10)) * 100)).await;
        }
        let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for report in &reports {
            if lanes.recorded(&report.uid, Monotonic::now().as_ms()) {
                work.notify_one();
            }
        }
    }
}

/// Writes a batch down. Doing it twice changes nothing the second time: until it is recorded, nobody else on
/// this node claims the timer, and on another node a claim has another epoch.
async fn record(
    store: &ColdStore,
    metrics: &Metrics,
    promotion: &Promotion,
    reports: &[Report],
) -> Result<(), Error> {
    let taken: Vec<(Uid, AttemptRecord)> = reports
        .iter()
        .filter_map(|report| match &report.what {
            What::Attempted(_, record) if record.result == AttemptResult::Ok => {
                Some((report.uid, record.clone()))
            }
            _ => None,
        })
        .collect();
    let mut ended = std::collections::HashSet::new();
    if !taken.is_empty() {
        ended.extend(store.finish_delivered(&taken).await?);
        metrics.ended.with_label_values(&["delivered"]).inc_by(ended.len() as u64);
    }
    let changes: Vec<Change> = reports
        .iter()
        .filter(|report| !ended.contains(&report.uid) || matches!(report.what, What::Unsent(..)))
        .map(|report| {
            let event = match &report.what {
                What::Attempted(next, record) => ChangeEvent::Attempted(*next, record.clone()),
                What::Unsent(token, epoch) => ChangeEvent::Released(*token, *epoch),
            };
            Change { uid: report.uid, event }
        })
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    let mut failed = None;
    for (applied, report) in store.apply(&changes).await.into_iter().zip(&changes) {
        match applied {
            Ok(Applied::Live(row, Answer::Done)) => {
                if row.life.state.is_end() {
                    metrics.ended.with_label_values(&[row.life.state.word()]).inc();
                }
                promotion.written([&*row]);
                if matches!(report.event, ChangeEvent::Released(..)) {
                    metrics.released.inc();
                }
            }
            Ok(_) => {}
            Err(why) => failed = Some(why),
        }
    }
    failed.map_or(Ok(()), Err)
}

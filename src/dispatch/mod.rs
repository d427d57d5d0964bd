//! From due to sent to recorded: lanes, claim, attempt, result.
//!
//! Three duties, each with a loop of its own. *Claim* takes pointers that have room to be sent, claims them
//! in one statement and starts their attempts. *Attempts* run each as a task. *Record* writes results in
//! batches. A claim comes a moment (`wheel.lead`) before the due time, and its attempt waits for the due
//! millisecond: that is what keeps lateness small and never lets an attempt start early.
//! A claim that came back without its row is dropped; a claim whose answer was lost is given back
//! if it turns out to have happened, for nothing was sent. From the moment it is taken until its outcome is
//! recorded a timer is *in hand*: this node neither claims it again nor gives its attempt up.

mod attempt;
mod lanes;
mod record;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use lanes::Offer;
use lanes::{Class, LaneKey, Lanes};
use record::{Recorder, Report};

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Crowded, Error, MAX_CLAIM_BATCH};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::model::id::{Epoch, Uid};
use crate::model::pointer::{Pointer, Via};
use crate::model::timer::Token;
use crate::ownership::{Ownership, PARTING_REACH};
use crate::sink::Sink;
use crate::writer::Writer;

/// How long past its time what is found counts as left behind by an outage.
pub const OVERDUE: Duration = Duration::from_secs(5);

/// Sends what is due.
pub struct Dispatcher {
    store: ColdStore,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    sink: Arc<dyn Sink>,
    lanes: Arc<Mutex<Lanes>>,
    /// Somebody waits, or a place became free.
    work: Arc<Notify>,
    /// A lane that the sweep has passed over has room.
    room: Notify,
    /// How often that had happened when it was last told.
    eased: AtomicU64,
    reports: mpsc::Sender<Report>,
    attempts: TaskTracker,
    /// Nothing more is claimed, and nobody waits for a place.
    stop: CancellationToken,
    /// Attempts under way are given up.
    abandon: CancellationToken,
    /// Nothing more will be reported.
    all_reported: CancellationToken,
    lead: Duration,
}

impl Dispatcher {
    /// A dispatcher over this store, and the recorder to run beside it; that ends after a drain, or when the last
    /// handle is gone.
    pub fn new(
        config: &Config,
        store: ColdStore,
        writer: Writer,
        ownership: Arc<Ownership>,
        metrics: Metrics,
        sink: Arc<dyn Sink>,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let all_reported = CancellationToken::new();
        let (reports, inbox) = mpsc::channel(config.dispatch.concurrency.max(16));
        let work = Arc::new(Notify::new());
        let lanes = Arc::new(Mutex::new(Lanes::new(config.dispatch.concurrency, config.webhook.concurrency)));
        let recorder = Recorder {
            writer,
            metrics: metrics.clone(),
            clock: store.clock().clone(),
            lanes: Arc::clone(&lanes),
            work: Arc::clone(&work),
            inbox,
            all_reported: all_reported.clone(),
        };
        let this = Arc::new(Self {
            sink,
            lanes,
            work,
            room: Notify::new(),
            eased: AtomicU64::new(0),
            reports,
            attempts: TaskTracker::new(),
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            all_reported,
            lead: config.wheel.lead.get(),
            store,
            ownership,
            metrics,
        });
        (this, recorder.run())
    }

    /// Offers what is due; tells for each what became of it.
    pub fn offer(&self, due: &[Pointer]) -> Vec<Offer> {
        let now = Monotonic::now().as_ms();
        let offers = self.with(|lanes| due.iter().map(|due| lanes.offer(*due, now)).collect::<Vec<_>>());
        if offers.contains(&Offer::Held) {
            self.work.notify_one();
        }
        self.gauge();
        offers
    }

    /// What the sweep need not look for; [`Dispatcher::has_room`] tells when there is less of it.
    pub fn crowded(&self) -> Crowded {
        let mut crowded = Crowded::default();
        self.with(|lanes| {
            for key in lanes.crowded() {
                match key.class {
                    Class::First | Class::CatchUp => crowded.first.push(key.lane),
                    Class::Retry => crowded.retry.push(key.lane),
                }
            }
        });
        crowded
    }

    /// How many pointers wait in lanes that are not crowded.
    pub fn uncrowded(&self) -> usize {
        self.with(|lanes| lanes.uncrowded())
    }

    /// How many pointers wait.
    pub fn held(&self) -> usize {
        self.with(|lanes| lanes.held())
    }

    /// Whether this node has the timer in hand: taken, and its outcome not recorded yet.
    pub fn has_in_hand(&self, uid: &Uid) -> bool {
        self.with(|lanes| lanes.has_in_hand(uid))
    }

    /// The shards for which this node claims.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// How often a lane that was crowded has had room again.
    pub fn eased(&self) -> u64 {
        self.with(|lanes| lanes.eased())
    }

    /// Completes when a lane that was crowded has room again.
    pub async fn has_room(&self) {
        self.room.notified().await;
    }

    /// Claims and sends until stopped. Two may run side by side: while the one waits for its claim to be
    /// flushed, the other makes the next.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.work.notified() => {}
            }
            while !self.stop.is_cancelled() {
                match self.run_once().await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(_) => {
                        // Logged where it happened; the sweep finds the rows again when the store is back.
                        self.store.clock().sleep(Duration::from_millis(200)).await;
                        self.work.notify_one();
                        break;
                    }
                }
            }
        }
    }

    /// Claims one batch of what has room and starts its attempts. Returns how many pointers it took.
    pub async fn run_once(self: &Arc<Self>) -> Result<usize, Error> {
        // Counts as an attempt under way, so that a stop sees either this claim's attempts or no claim.
        let _under_way = self.attempts.token();
        if self.stop.is_cancelled() {
            return Ok(0);
        }
        let taken = self.with(|lanes| lanes.take(MAX_CLAIM_BATCH));
        let count = taken.len();
        if count > 0 {
            // There may be more than one claim's worth.
            self.work.notify_one();
        }
        let mut owned: Vec<(Pointer, Epoch)> = Vec::with_capacity(count);
        for pointer in taken {
            match self.ownership.begin(pointer.shard) {
                Some(epoch) => owned.push((pointer, epoch)),
                None => self.with(|lanes| lanes.dropped(&pointer, Monotonic::now().as_ms())),
            }
        }
        if !owned.is_empty() {
            self.claim(owned).await?;
        }
        let eased = self.eased();
        if self.eased.swap(eased, Ordering::Relaxed) != eased {
            self.room.notify_one();
        }
        self.gauge();
        Ok(count)
    }

    async fn claim(self: &Arc<Self>, owned: Vec<(Pointer, Epoch)>) -> Result<(), Error> {
        let parting = owned.iter().any(|(pointer, _)| self.ownership.is_parting(pointer.shard));
        let lead = if parting { self.lead.max(PARTING_REACH) } else { self.lead };
        let lead_ms = i64::try_from(lead.as_millis()).unwrap_or(0);
        let claimed = match self.store.claim(&owned, &self.ownership.me().name, lead_ms).await {
            Ok(claimed) => claimed,
            Err(why) => {
                self.metrics.store_errors.inc();
                tracing::warn!(%why, batch = owned.len(), "claim failed");
                for (pointer, epoch) in &owned {
                    self.with(|lanes| lanes.gave_up(LaneKey::of(pointer)));
                    let token = Token { generation: pointer.generation, attempt: pointer.attempt + 1 };
                    // It may have happened all the same; then it is given back.
                    self.report(Report::Unsent(pointer.uid, token, *epoch)).await;
                }
                return Err(why);
            }
        };
        let mut rows: HashMap<_, _> = claimed.rows.into_iter().map(|row| (row.uid, row)).collect();
        for (pointer, epoch) in owned {
            if claimed.unreadable.contains(&pointer.uid) {
                // Stays in hand: claimed again and again it would hold up the others.
                self.with(|lanes| lanes.gave_up(LaneKey::of(&pointer)));
                continue;
            }
            match rows.remove(&pointer.uid) {
                Some(row) => {
                    if pointer.via == Via::Sweep {
                        self.metrics.swept.inc();
                    }
                    if row.life.attempt == 1 {
                        self.metrics.fired.with_label_values(&[pointer.via.word()]).inc();
                    }
                    let this = Arc::clone(self);
                    self.attempts.spawn(async move { this.attempt(row, pointer, epoch).await });
                }
                None => {
                    self.metrics.claims_dropped.inc();
                    self.with(|lanes| lanes.dropped(&pointer, Monotonic::now().as_ms()));
                }
            }
        }
        Ok(())
    }

    async fn report(&self, report: Report) {
        // Fails only when the recorder is gone, at the end of a stop; the claim then runs out by itself.
        let _ = self.reports.send(report).await;
    }

    /// Stops: no further claim. What is claimed goes out when it is due, unless it waits for a place; what is
    /// under way gets `grace` to end, then is given up as unknown. Returns when every attempt has been
    /// reported.
    pub async fn drain(&self, grace: Duration) {
        self.stop.cancel();
        self.with(Lanes::clear);
        self.attempts.close();
        if tokio::time::timeout(grace, self.attempts.wait()).await.is_err() {
            self.abandon.cancel();
            // Bounded: with the store away their reports may find no room.
            let _ = tokio::time::timeout(Duration::from_secs(2), self.attempts.wait()).await;
        }
        self.all_reported.cancel();
        self.gauge();
    }

    fn gauge(&self) {
        let (held, in_flight) = self.with(|lanes| (lanes.held(), lanes.in_flight()));
        self.metrics.held.set(held as i64);
        self.metrics.in_flight.set(in_flight as i64);
    }

    fn with<T>(&self, run: impl FnOnce(&mut Lanes) -> T) -> T {
        run(&mut self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

//! From due to sent to recorded: lanes, claim, attempt, result.
//!
//! Three duties, each with a loop of its own. *Claim* takes pointers from lanes that have room, claims them in one
//! statement and starts their attempts. *Attempts* run each as a task. *Record* writes results in batches. A claim
//! comes a moment (`wheel.lead`) before the due time, and its attempt waits for the due millisecond: that keeps
//! lateness small and no attempt starts early.
//!
//! A pointer whose claim returns no row is dropped. A claim whose answer was lost is given back if it turns out to have
//! happened, because nothing was sent. From the moment it is taken until its outcome is recorded a timer is *in hand*:
//! this node does not claim it again, and the sweep does not end its claim.

mod attempt;
mod beside;
mod firing;
mod lanes;
mod receivers;
mod record;
mod terms;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use beside::Place;
use firing::Firing;
use lanes::{Class, LaneKey, Lanes};
pub use lanes::{LaneLoad, Offer, States};
use receivers::Receivers;
pub use receivers::{LastError, ReceiverLoad, sort_worst_first};
use record::{Recorder, Report};

use crate::clock::Monotonic;
use crate::cold::{Backlogged, ColdStore, Doubtful, Early, Error, MAX_CLAIM_BATCH};
use crate::config::Config;
use crate::destinations::Destinations;
use crate::metrics::Metrics;
use crate::model::id::{Epoch, Uid};
use crate::model::pointer::{Pointer, Via};
use crate::model::time::UnixMs;
use crate::model::timer::Token;
use crate::ownership::{CEDING_REACH, Ownership};
use crate::sink::{Lack, Sink};
use crate::telemetry::{Rarely, Streak};
use crate::writer::Writer;

/// The longest wait after which a pointer whose claim came too early is offered again.
const EARLY_WAIT: Duration = Duration::from_secs(1);

/// For how long nothing is claimed after an attempt for which this node lacked something.
const LACK_PAUSE: Duration = Duration::from_millis(250);

/// A timer that is found so long after its due time counts as overdue from an outage.
pub const OVERDUE: Duration = Duration::from_secs(5);

/// What the lanes of a node hold at one moment.
#[derive(Debug)]
pub struct Load {
    /// Pointers that wait, unclaimed.
    pub queued: usize,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
    /// Receivers by what their lanes do, without those that are failing.
    pub states: States,
    /// Receivers whose last attempts failed.
    pub failing: usize,
}

/// Sends what is due.
pub struct Dispatcher {
    store: ColdStore,
    writer: Writer,
    ownership: Arc<Ownership>,
    metrics: Metrics,
    sink: Arc<dyn Sink>,
    destinations: Arc<Destinations>,
    lanes: Arc<Mutex<Lanes>>,
    receivers: Receivers,
    /// A pointer was queued, or there is room in a lane.
    work: Arc<Notify>,
    /// A lane needs time at its destination.
    slots: Notify,
    /// A lane that the sweep skipped has no backlog any more.
    backlog_cleared: Notify,
    /// How often that had happened at the last notification.
    backlogs_cleared: AtomicU64,
    reports: mpsc::Sender<Report>,
    attempts: TaskTracker,
    /// Nothing more is claimed, and no attempt waits for a permit.
    stop: CancellationToken,
    /// Attempts under way are given up.
    abandon: CancellationToken,
    /// Nothing more will be reported.
    all_reported: CancellationToken,
    lead: Duration,
    /// Claims that failed in a row.
    failed_claims: Mutex<Streak>,
    lacking: Mutex<Lacking>,
}

/// This node lacks something that attempts need.
#[derive(Default)]
struct Lacking {
    /// Nothing is claimed until then.
    until: Option<Monotonic>,
    logged: Rarely,
}

impl Dispatcher {
    /// A dispatcher over this store, and the recorder to run beside it. The recorder ends after a drain, or when the last
    /// handle is dropped.
    pub fn new(
        config: &Config,
        store: ColdStore,
        writer: Writer,
        ownership: Arc<Ownership>,
        metrics: Metrics,
        sink: Arc<dyn Sink>,
        destinations: Arc<Destinations>,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let all_reported = CancellationToken::new();
        let (reports, inbox) = mpsc::channel(config.dispatch.concurrency.max(16));
        let work = Arc::new(Notify::new());
        let lanes = Arc::new(Mutex::new(Lanes::new(config.dispatch.concurrency, config.webhook.concurrency)));
        let recorder = Recorder {
            writer: writer.clone(),
            metrics: metrics.clone(),
            clock: store.clock().clone(),
            lanes: Arc::clone(&lanes),
            work: Arc::clone(&work),
            inbox,
            all_reported: all_reported.clone(),
        };
        let this = Arc::new(Self {
            sink,
            destinations,
            lanes,
            receivers: Receivers::default(),
            work,
            slots: Notify::new(),
            backlog_cleared: Notify::new(),
            backlogs_cleared: AtomicU64::new(0),
            reports,
            attempts: TaskTracker::new(),
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            all_reported,
            lead: config.wheel.lead.get(),
            failed_claims: Mutex::default(),
            lacking: Mutex::default(),
            store,
            writer,
            ownership,
            metrics,
        });
        (this, recorder.run())
    }

    /// Offers the pointers of due timers; returns for each what became of it.
    pub fn offer(&self, due: &[Pointer]) -> Vec<Offer> {
        let now = Monotonic::now().as_ms();
        // What is for a queue is fetched by workers: those that wait are woken.
        let for_queues = due.iter().filter(|due| due.is_for_queue);
        for_queues.for_each(|due| self.store.note_ready(due.lane, due.wake_at));
        let offer = |lanes: &mut Lanes, due: &Pointer| match due.is_for_queue {
            true => Offer::Dropped,
            false => lanes.offer(*due, now),
        };
        let offers = self.with(|lanes| due.iter().map(|due| offer(lanes, due)).collect::<Vec<_>>());
        if offers.contains(&Offer::Queued) {
            self.work.notify_one();
        }
        offers
    }

    /// The lanes with a backlog, which the sweep skips; [`Dispatcher::backlog_cleared`] completes when one of them has
    /// none any more.
    pub fn backlogged(&self) -> Backlogged {
        let mut backlogged = Backlogged::default();
        self.with(|lanes| {
            for (key, priority) in lanes.backlogged() {
                match key.class {
                    Class::First | Class::CatchUp => backlogged.first.push((key.lane, priority)),
                    Class::Retry => backlogged.retry.push((key.lane, priority)),
                }
            }
            backlogged.held.extend(lanes.held());
        });
        backlogged
    }

    /// How often a lane has ceased to be held.
    pub fn released(&self) -> u64 {
        self.with(|lanes| lanes.released())
    }

    /// How many pointers are queued in lanes without a backlog.
    pub fn queued_without_backlog(&self) -> usize {
        self.with(|lanes| lanes.queued_without_backlog())
    }

    /// How many pointers are queued.
    pub fn queued(&self) -> usize {
        self.with(|lanes| lanes.queued())
    }

    /// Whether this node has the timer in hand: it was taken, and its outcome is not recorded yet.
    pub fn has_in_hand(&self, uid: &Uid) -> bool {
        self.with(|lanes| lanes.has_in_hand(uid))
    }

    /// The shards for which this node claims.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// How often a lane has ceased to have a backlog.
    pub fn backlogs_cleared(&self) -> u64 {
        self.with(|lanes| lanes.backlogs_cleared())
    }

    /// From now on `total` timers are sent at once, `per_receiver` of them to one receiver.
    pub fn set_limits(&self, total: usize, per_receiver: usize) {
        self.with(|lanes| lanes.set_limits(total, per_receiver));
        self.work.notify_one();
    }

    /// Completes when a lane has ceased to have a backlog.
    pub async fn backlog_cleared(&self) {
        self.backlog_cleared.notified().await;
    }

    /// Claims and sends until stopped. Two may run side by side: while one waits for the flush of its claim, the other
    /// makes the next.
    pub async fn run(self: Arc<Self>) {
        loop {
            let trial = self.until_next_trial();
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.work.notified() => {}
                () = async { self.store.clock().sleep(trial.unwrap_or_default()).await }, if trial.is_some() => {}
            }
            while !self.stop.is_cancelled() {
                if let Some(pause) = self.pause() {
                    self.store.clock().sleep(pause).await;
                }
                match self.run_once().await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(_) => {
                        // Logged where it happened. The sweep finds the rows again when the store is back.
                        self.store.clock().sleep(Duration::from_millis(200)).await;
                        self.work.notify_one();
                        break;
                    }
                }
            }
        }
    }

    /// Claims one batch and starts its attempts. Returns how many pointers it took from the lanes.
    pub async fn run_once(self: &Arc<Self>) -> Result<usize, Error> {
        // Counts as an attempt under way: a stop sees either the attempts of this claim or no claim.
        let _under_way = self.attempts.token();
        if self.stop.is_cancelled() {
            return Ok(0);
        }
        let ((taken, more), needs_slots) =
            self.with(|lanes| (lanes.take(MAX_CLAIM_BATCH, Monotonic::now().as_ms()), lanes.needs_slots()));
        let count = taken.len();
        if needs_slots {
            self.slots.notify_one();
        }
        if more {
            // There are more pointers than fit into one claim.
            self.work.notify_one();
        }
        let mut owned: Vec<(Pointer, Epoch)> = Vec::with_capacity(count);
        let now = self.store.clock().now();
        for pointer in taken {
            // What may not be sent is not claimed: it would be given back, and come again at once.
            let may_send = |epoch: &Epoch| self.ownership.valid(pointer.shard, *epoch, now);
            match self.ownership.begin(pointer.shard).filter(may_send) {
                Some(epoch) => owned.push((pointer, epoch)),
                None => self.with(|lanes| lanes.claim_dropped(&pointer, Monotonic::now().as_ms())),
            }
        }
        if !owned.is_empty() {
            self.claim(owned).await?;
        }
        let cleared = self.backlogs_cleared();
        if self.backlogs_cleared.swap(cleared, Ordering::Relaxed) != cleared {
            self.backlog_cleared.notify_one();
        }
        Ok(count)
    }

    async fn claim(self: &Arc<Self>, owned: Vec<(Pointer, Epoch)>) -> Result<(), Error> {
        let ceding = owned.iter().any(|(pointer, _)| self.ownership.is_ceding(pointer.shard));
        let lead = if ceding { self.lead.max(CEDING_REACH) } else { self.lead };
        let lead_ms = i64::try_from(lead.as_millis()).unwrap_or(0);
        let began = Monotonic::now();
        let claimed = self.store.claim(&owned, &self.ownership.me().name, lead_ms).await;
        self.metrics.claim_seconds.observe(began.elapsed().as_secs_f64());
        let claimed = match claimed {
            Ok(claimed) => {
                if self.failed_claims().succeeded() {
                    tracing::info!("timers are claimed again");
                }
                claimed
            }
            Err(why) => {
                if self.failed_claims().failed(self.store.is_away()) {
                    tracing::warn!(%why, batch = owned.len(), "timers cannot be claimed; trying again");
                } else {
                    tracing::debug!(%why, batch = owned.len(), "a claim failed");
                }
                if !why.is_blocked() {
                    let owned = owned.iter().map(|(pointer, _)| (pointer.uid, pointer.revision()));
                    self.with(|lanes| lanes.join(owned, None));
                }
                for (pointer, epoch) in &owned {
                    if why.is_blocked() {
                        // Surely nothing was claimed. The sweep finds the rows again.
                        self.with(|lanes| lanes.claim_dropped(pointer, Monotonic::now().as_ms()));
                        continue;
                    }
                    self.with(|lanes| lanes.free_claim(LaneKey::of(pointer), Monotonic::now().as_ms()));
                    let token = Token { generation: pointer.generation, attempt: pointer.attempt + 1 };
                    // The claim may have happened all the same; then it is given back.
                    self.report(Report::Unsent(pointer.uid, token, *epoch)).await;
                }
                return Err(why);
            }
        };
        let answered = Monotonic::now();
        let early: HashMap<Uid, Early> =
            claimed.early.iter().map(|early| (early.pointer.uid, *early)).collect();
        let mut not_yet: Vec<(Pointer, Early)> = Vec::new();
        let mut started = Vec::new();
        let alone = claimed.rows.into_iter().map(|row| (row.uid, Firing::alone(row)));
        let sets = claimed.sets.into_iter();
        let sets = sets.filter_map(|set| Some((set.pointer, Firing::of(set.rows)?)));
        let mut firings: HashMap<_, _> = alone.chain(sets).collect();
        for (pointer, epoch) in owned {
            match firings.remove(&pointer.uid) {
                Some(firing) => {
                    if pointer.via == Via::Sweep {
                        self.metrics.swept.inc();
                    }
                    if !firing.has(pointer.uid) {
                        // It came up for an earlier set of its key, and comes again for its own.
                        not_yet.extend(early.get(&pointer.uid).map(|early| (pointer, *early)));
                    }
                    started.push((firing, pointer, epoch));
                }
                None if claimed.unreadable.contains(&pointer.uid) => {
                    self.with(|lanes| lanes.set_aside(&pointer, Monotonic::now().as_ms()));
                }
                None => {
                    self.with(|lanes| lanes.claim_dropped(&pointer, Monotonic::now().as_ms()));
                    match early.get(&pointer.uid) {
                        Some(early) => not_yet.push((pointer, *early)),
                        None => self.metrics.claims_dropped.inc(),
                    }
                }
            }
        }
        self.give_back_doubtful(claimed.doubtful).await;
        // After the pointers that got nothing, which may be of members.
        for (firing, pointer, epoch) in started {
            self.start(firing, pointer, epoch, answered).await;
        }
        self.bring_again(not_yet);
        Ok(())
    }

    /// Starts the attempt of what a pointer has claimed at this moment.
    async fn start(
        self: &Arc<Self>,
        firing: Firing,
        mut pointer: Pointer,
        epoch: Epoch,
        answered: Monotonic,
    ) {
        if firing.first.merge_key.is_some() {
            // A report of before would count for this claim: nothing but its epoch tells the two apart.
            let is_held = self.with(|lanes| firing.rows().any(|row| lanes.is_held(&row.uid)));
            let has_own = firing.has(pointer.uid);
            if is_held {
                let now_ms = Monotonic::now().as_ms();
                self.with(|lanes| match has_own {
                    true => lanes.free_claim(LaneKey::of(&pointer), now_ms),
                    false => lanes.claim_dropped(&pointer, now_ms),
                });
                self.with(|lanes| lanes.join(firing.members(), None));
                return self.give_back(&firing, epoch).await;
            }
            let slot_us = if has_own { None } else { self.with(|lanes| lanes.stands_in(&pointer.uid)) };
            if !has_own {
                pointer = Pointer { uid: firing.first.uid, wake_at: firing.due_at(), ..pointer };
            }
            self.with(|lanes| lanes.join(firing.members(), slot_us));
        }
        let this = Arc::clone(self);
        // In a box: it is large, and would be copied on its way into the task.
        self.attempts.spawn(Box::pin(async move {
            let slot_us = this.runs(&pointer, answered.elapsed());
            this.attempt(firing, pointer, epoch, slot_us).await;
        }));
    }

    /// Gives back timers that merge and may be claimed. As after any claim whose answer was lost they are in hand until
    /// that is recorded.
    async fn give_back_doubtful(&self, doubtful: Vec<Doubtful>) {
        self.with(|lanes| {
            lanes.join(doubtful.iter().map(|one| (one.pointer.uid, one.pointer.revision())), None);
        });
        for Doubtful { pointer, epoch } in doubtful {
            let token = Token { generation: pointer.generation, attempt: pointer.attempt + 1 };
            self.report(Report::Unsent(pointer.uid, token, epoch)).await;
        }
    }

    /// For how long nothing is to be claimed.
    fn pause(&self) -> Option<Duration> {
        let until = self.lacking.lock().unwrap_or_else(PoisonError::into_inner).until?;
        Some(until.since(Monotonic::now())).filter(|pause| !pause.is_zero())
    }

    /// Notes that this node lacks something that an attempt needed. Claims pause a moment; those that are under way end
    /// and give back what they hold.
    fn note_lack(&self, lack: Lack) {
        self.metrics.deferred.with_label_values(&[lack.word()]).inc();
        self.with(|lanes| lanes.lacks(LACK_PAUSE.as_millis() as i64, Monotonic::now().as_ms()));
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        lacking.until = Some(Monotonic::now().plus(LACK_PAUSE));
        if lacking.logged.is_due() {
            tracing::warn!(
                lack = lack.word(),
                "this node lacks what it needs to send: {}; the attempts are made later and do not count",
                lack.cure()
            );
        }
    }

    /// How long until a receiver that could not be reached may be tried again.
    fn until_next_trial(&self) -> Option<Duration> {
        let at_ms = self.with(|lanes| lanes.next_trial_ms())?;
        let wait_ms = at_ms.saturating_sub(Monotonic::now().as_ms());
        Some(Duration::from_millis(u64::try_from(wait_ms).unwrap_or_default()))
    }

    /// Sees to timers whose claim came too early, each beside the pointer that came up. Those that may be claimed soon are
    /// offered again. Of the others, those that were moved are promoted to where they belong now; the claim of the rest
    /// came too early because the node's lower bound of the store's clock was too high, or because that was set back, and
    /// they come back by their wheel or by the sweep.
    fn bring_again(self: &Arc<Self>, early: Vec<(Pointer, Early)>) {
        let (mut soon, mut moved) = (Vec::new(), Vec::new());
        for (came, early) in early {
            let wait = Duration::from_millis(u64::try_from(early.wait_ms).unwrap_or_default());
            if wait <= EARLY_WAIT {
                let overdue = came.overdue && !early.is_moved;
                soon.push((wait, Pointer { via: came.via, overdue, ..early.pointer }));
            } else if early.is_moved {
                moved.push(early.pointer);
            }
        }
        self.writer.promote(moved);
        if !soon.is_empty() {
            tokio::spawn(Arc::clone(self).offer_again(soon));
        }
    }

    /// Offers pointers again, each after its wait.
    async fn offer_again(self: Arc<Self>, mut soon: Vec<(Duration, Pointer)>) {
        soon.sort_unstable_by_key(|(wait, _)| *wait);
        let began = Monotonic::now();
        for together in soon.chunk_by(|(one, _), (other, _)| one == other) {
            // At least one millisecond: the store's clock has to move.
            let wait = together[0].0.max(Duration::from_millis(1));
            self.store.clock().sleep(wait.saturating_sub(began.elapsed())).await;
            self.offer(&together.iter().map(|(_, pointer)| *pointer).collect::<Vec<_>>());
        }
    }

    fn failed_claims(&self) -> MutexGuard<'_, Streak> {
        self.failed_claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn report(&self, report: Report) {
        self.metrics.unrecorded.inc();
        // Fails only when the recorder has ended, at the end of a stop; then the claim expires.
        let _ = self.reports.send(report).await;
    }

    /// Stops: nothing more is claimed. A claimed timer is sent when it is due, unless it waits for a permit. Attempts
    /// under way get `grace` to end; then their result is unknown. Returns when every attempt is reported.
    pub async fn drain(&self, grace: Duration) {
        self.stop.cancel();
        self.with(Lanes::clear);
        self.attempts.close();
        if tokio::time::timeout(grace, self.attempts.wait()).await.is_err() {
            self.abandon.cancel();
            // Bounded: while the store is away the channel of reports may be full.
            let _ = tokio::time::timeout(Duration::from_secs(2), self.attempts.wait()).await;
        }
        self.all_reported.cancel();
    }

    /// The earliest moment at which a queued pointer was due.
    pub fn oldest_queued(&self) -> Option<UnixMs> {
        self.with(|lanes| lanes.oldest_queued())
    }

    /// What the lanes hold now.
    pub fn load(&self) -> Load {
        let (queued, in_flight, mut states) =
            self.with(|lanes| (lanes.queued(), lanes.in_flight(), lanes.states()));
        let mut failing = 0;
        for load in self.loads(&self.receivers.failing()).into_iter().flatten() {
            failing += 1;
            // The counts are some moments older than this.
            let state = states.of(load);
            *state = state.saturating_sub(1);
        }
        Load { queued, in_flight, states, failing }
    }

    /// The receivers that this node has sent to, worst first, at most `most`.
    pub fn receivers(&self, most: usize) -> Vec<ReceiverLoad> {
        self.receivers.worst(|lanes| self.loads(lanes), self.store.clock().now(), most)
    }

    /// What these lanes hold, read a part at a time: nobody waits long for the lock.
    fn loads(&self, lanes: &[i64]) -> Vec<Option<LaneLoad>> {
        lanes.chunks(256).flat_map(|part| self.with(|lanes| lanes.loads(part))).collect()
    }

    fn with<T>(&self, run: impl FnOnce(&mut Lanes) -> T) -> T {
        run(&mut self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

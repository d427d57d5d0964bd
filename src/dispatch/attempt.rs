//! One attempt: the wait for the due time, the last check of the lease, the sending, the report.

use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use super::firing::Firing;
use super::lanes::{AttemptEnd, LaneKey};
use super::record::Report;
use crate::clock::Monotonic;
use crate::cold::{AttemptRecord, TimerRow};
use crate::metrics::Metrics;
use crate::model::destination::Destination;
use crate::model::id::Epoch;
use crate::model::namespace::Sender;
use crate::model::pointer::Pointer;
use crate::model::policy::Retry;
use crate::model::time::UnixMs;
use crate::model::timer::{AttemptResult, MISSED, Next};
use crate::planted::Defect;
use crate::sink::{Delivery, Outcome};
use crate::traces;

/// A first attempt that starts at most so long after the due time counts as on time.
const ON_TIME: Duration = Duration::from_secs(1);

/// The longest that a claimed timer waits for a permit of its lane.
const PERMIT_WAIT: Duration = Duration::from_secs(2);

/// How long a timer may wait for a permit and still use its slot.
const SLOT_KEEPS: Duration = Duration::from_millis(100);

/// The longest that a claimed timer waits for its due time: more than `wheel.lead` can be.
const DUE_WAIT: Duration = Duration::from_secs(2);

impl Dispatcher {
    /// An attempt begins to run, so long after its claim. Returns the slot before which it does not start, in
    /// microseconds.
    pub(super) fn runs(&self, pointer: &Pointer, waited: Duration) -> Option<i64> {
        let waited_ms = i64::try_from(waited.as_millis()).unwrap_or(i64::MAX);
        let (is_room, slot_us) = self.with(|lanes| {
            let is_room = lanes.runs(LaneKey::of(pointer), waited_ms, Monotonic::now().as_ms());
            (is_room, lanes.slot_of(&pointer.uid))
        });
        if is_room {
            self.work.notify_one();
        }
        slot_us
    }

    /// Makes one attempt for what was claimed, or gives the claim back.
    pub(super) async fn attempt(
        self: Arc<Self>,
        mut firing: Firing,
        pointer: Pointer,
        epoch: Epoch,
        slot_us: Option<i64>,
    ) {
        let key = LaneKey::of(&pointer);
        let mut due_at = pointer.wake_at.max(firing.due_at());
        if self.store.planted().is(Defect::ClaimWithoutGeneration) {
            due_at = pointer.wake_at;
        }
        let is_due = self.wait_for(due_at).await;
        if let Some(slot_us) = slot_us.filter(|_| is_due) {
            self.wait_for_slot(slot_us).await;
        }
        let waits_from = Monotonic::now();
        let has_permit = is_due && self.acquire(key).await;
        // Slots that all waited for one receiver would be used together.
        let has_slot = slot_us.is_none() || waits_from.elapsed() < SLOT_KEEPS;
        let place = match has_permit {
            true => self.place_of(&firing.first).await,
            false => None,
        };
        let may_send = place.is_some()
            && has_slot
            && !self.abandon.is_cancelled()
            && self.ownership.valid(pointer.shard, epoch, self.store.clock().now());
        let Some((destination, sender)) = place.filter(|_| may_send) else {
            match has_permit {
                true => self.ended(key, AttemptEnd::NotSent),
                false => self.with(|lanes| lanes.free_claim(key, Monotonic::now().as_ms())),
            }
            self.work.notify_one();
            self.give_back(&firing, epoch).await;
            return;
        };
        let clock = self.store.clock();
        let started_at = clock.now();
        let began = Monotonic::now();
        let mut delivery = firing.delivery(destination, sender);
        self.destinations.open_target(delivery.namespace, &mut delivery.target);
        let could_be_sent = firing.could_be_sent(&firing.first);
        let span = span(&delivery, started_at.since(pointer.wake_at.max(could_be_sent)));
        delivery.onward = span.onward();
        let sent = tokio::select! {
            sent = self.sink.send(&delivery) => sent,
            () = self.abandon.cancelled() => Ok(Outcome::without_answer(
                AttemptResult::Unknown,
                Some("the node was stopped before the answer came".into()),
            )),
        };
        let outcome = match sent {
            Ok(outcome) => outcome,
            Err(lack) => {
                span.end(AttemptResult::Refused, None, Some(lack.cure()));
                self.note_lack(lack);
                self.ended(key, AttemptEnd::NotSent);
                return self.give_back(&firing, epoch).await;
            }
        };
        self.count_attempt(&firing, &pointer, started_at);
        span.end(outcome.result, outcome.status, outcome.detail.as_deref());
        self.ended(
            key,
            match outcome.result {
                AttemptResult::Ok => AttemptEnd::Answered,
                AttemptResult::Failed => AttemptEnd::Refused,
                AttemptResult::Timeout | AttemptResult::Unknown => AttemptEnd::NoAnswer,
                AttemptResult::Refused if outcome.not_reached => AttemptEnd::NotReached,
                AttemptResult::Refused => AttemptEnd::NotSent,
            },
        );
        self.metrics.attempt_seconds.observe(began.elapsed().as_secs_f64());
        let ended_at = clock.now();
        self.metrics.attempts.with_label_values(&[delivery.target.kind_word(), outcome.result.word()]).inc();
        self.note_outcome((delivery.namespace, &delivery.target), &outcome, ended_at);
        let retry = delivery.destination.as_ref().and_then(|one| one.limits.retry);
        let next = next_after(&firing, retry, &outcome, ended_at);
        let record = AttemptRecord {
            generation: delivery.generation.0,
            attempt: delivery.attempt,
            started_at: started_at.get(),
            ended_at: ended_at.get(),
            result: outcome.result,
            status: outcome.status,
            reply: outcome.reply,
            detail: outcome.detail,
            node: self.ownership.me().name.clone(),
            delivery_id: None,
            worker: None,
        };
        let mut records = firing.records(record);
        if self.store.planted().is(Defect::FirstMemberEnds) {
            for (uid, ..) in records.drain(1..) {
                self.with(|lanes| lanes.recorded(&uid, Monotonic::now().as_ms()));
            }
        }
        for (uid, record, due_at) in records {
            self.report(Report::Attempted { uid, next, record, due_at }).await;
        }
    }

    /// Gives a claim back: surely nothing was sent.
    pub(super) async fn give_back(&self, firing: &Firing, epoch: Epoch) {
        for (uid, token) in firing.tokens() {
            self.report(Report::Unsent(uid, token, epoch)).await;
        }
    }

    /// The destination of a claimed row, if its target is one, and its namespace as the sender; `None` if nothing may be sent
    /// there now. What this node does not know is looked up in the store.
    async fn place_of(&self, row: &TimerRow) -> Option<(Option<Arc<Destination>>, Arc<Sender>)> {
        let destination = match row.target.destination() {
            None => None,
            // If there is none, the sink says so.
            Some(name) => self.destinations.find(row.namespace, name).await.ok()?,
        };
        if destination.as_ref().is_some_and(|one| one.is_held()) {
            return None;
        }
        Some((destination, self.store.sender(row.namespace).await.ok()?))
    }

    /// Counts an attempt and when it started. Each timer of a merged set counts.
    fn count_attempt(&self, firing: &Firing, pointer: &Pointer, started_at: UnixMs) {
        let Metrics { fired, lateness, early, missed, repeats, .. } = &self.metrics;
        early.inc_by(u64::from(started_at < pointer.wake_at.max(firing.due_at())));
        for row in firing.rows() {
            repeats.inc_by(u64::from(row.life.uncertain));
            if row.life.attempt > 1 {
                continue;
            }
            // A timer that was registered after its due time could not be sent before.
            let late = started_at.since(firing.could_be_sent(row));
            lateness.observe(late.as_secs_f64());
            let class = match pointer.overdue {
                true => "catch_up",
                false if late <= ON_TIME => "on_time",
                false => "late",
            };
            fired.with_label_values(&[pointer.via.word(), class]).inc();
            missed.inc_by(u64::from(pointer.overdue && late > MISSED));
        }
    }

    /// Waits for a permit to send; returns whether it got one. The wait is short: a claim without a permit is given
    /// back.
    async fn acquire(&self, key: LaneKey) -> bool {
        let Some(mut granted) = self.with(|lanes| lanes.acquire(key)) else { return true };
        tokio::select! {
            permit = &mut granted => return permit.is_ok(),
            () = self.store.clock().sleep(PERMIT_WAIT) => {}
            () = self.stop.cancelled() => {}
        }
        // A permit may have been given at this very moment.
        granted.close();
        granted.try_recv().is_ok()
    }

    /// Waits for the due time by the store's clock; returns whether that is worth it. Where it is far, the clock was set
    /// back since the claim, and the claim is given back: this wait could take as long, and a timer in hand is left
    /// alone by sweep and wheel. A stop waits too: it is at most `wheel.lead`. The clock is read
    /// again after every sleep: a sleep may end early, and the lower bound of the store's clock may fall.
    async fn wait_for(&self, due_at: UnixMs) -> bool {
        loop {
            let wait = self.store.clock().until(due_at);
            if wait.is_zero() || wait > DUE_WAIT {
                return wait.is_zero();
            }
            tokio::select! {
                () = self.store.clock().sleep(wait) => {}
                () = self.abandon.cancelled() => return false,
            }
        }
    }

    fn ended(&self, key: LaneKey, end: AttemptEnd) {
        self.with(|lanes| lanes.attempt_ended(key, end, Monotonic::now().as_ms()));
        self.work.notify_one();
    }
}

/// The span of an attempt that starts `late` after its time.
fn span(delivery: &Delivery, late: Duration) -> traces::Attempt {
    traces::Attempt::begin(traces::Started {
        registered: delivery.trace,
        timer: &delivery.subject,
        delivery: &delivery.id,
        generation: delivery.generation,
        attempt: delivery.attempt,
        due_at: delivery.due_at,
        late,
        target: &delivery.target,
    })
}

/// What follows unless the attempt succeeded. `retry` is that of the destination.
fn next_after(firing: &Firing, retry: Option<Retry>, outcome: &Outcome, now: UnixMs) -> Next {
    let retry = firing.retry(retry).unwrap_or_default();
    let attempt = u32::try_from(firing.attempt()).unwrap_or(1);
    if outcome.gone || attempt >= retry.attempts {
        return Next::GiveUp;
    }
    Next::Retry(now.plus(match outcome.retry_after {
        Some(wait) => wait,
        None => retry.wait_after(attempt, firing.first.uid.jitter(attempt)),
    }))
}

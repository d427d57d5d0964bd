//! One attempt: from the wait for its due time and the last look at the lease to the report.

use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use super::lanes::{LaneKey, Left};
use super::record::Report;
use crate::clock::Monotonic;
use crate::cold::{AttemptRecord, TimerRow};
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;
use crate::model::timer::{AttemptResult, Next, Token};
use crate::planted::Defect;
use crate::sink::{Claim, Delivery, Outcome};

/// How long what was claimed waits for its lane to have a place.
const AT_GATE: Duration = Duration::from_secs(2);

impl Dispatcher {
    /// One attempt, from the wait for its due time and the last look at the lease to the report.
    pub(super) async fn attempt(self: Arc<Self>, mut row: TimerRow, pointer: Pointer, epoch: Epoch) {
        let key = LaneKey::of(&pointer);
        let token = Token { generation: row.life.generation, attempt: row.life.attempt };
        let mut due_at = pointer.wake_at.max(row.life.due_at);
        if self.store.planted().is(Defect::ClaimWithoutGeneration) {
            due_at = pointer.wake_at;
        }
        self.wait_for(due_at).await;
        let entered = self.enter(key).await;
        if !entered || self.abandon.is_cancelled() || !self.ownership.valid(row.shard, epoch) {
            match entered {
                true => self.leave(key, Left::Unused),
                false => self.with(|lanes| lanes.gave_up(key)),
            }
            self.work.notify_one();
            self.report(Report::Unsent(row.uid, token, epoch)).await;
            return;
        }
        let clock = self.store.clock();
        let started_at = clock.now();
        let began = Monotonic::now();
        if row.life.attempt == 1 {
            self.metrics.lateness.observe(started_at.since(row.life.due_at).as_secs_f64());
        }
        let delivery = delivery(&mut row);
        let outcome = tokio::select! {
            outcome = self.sink.send(&delivery) => outcome,
            () = self.abandon.cancelled() => Outcome::without_answer(
                AttemptResult::Unknown,
                Some("the node was stopped before the answer came".into()),
            ),
        };
        self.leave(
            key,
            match outcome.result {
                AttemptResult::Ok | AttemptResult::Failed => Left::Answered,
                AttemptResult::Timeout | AttemptResult::Unknown => Left::Silent,
                AttemptResult::Refused => Left::Unused,
            },
        );
        self.metrics.attempt_seconds.observe(began.elapsed().as_secs_f64());
        self.metrics.attempts.with_label_values(&[outcome.result.word()]).inc();
        let ended_at = clock.now();
        let next = next_after(&row, &outcome, ended_at);
        let record = AttemptRecord {
            generation: row.life.generation.0,
            attempt: row.life.attempt,
            started_at: started_at.get(),
            ended_at: ended_at.get(),
            result: outcome.result,
            status: outcome.status,
            reply: outcome.reply,
            detail: outcome.detail,
            node: self.ownership.me().name.clone(),
        };
        self.report(Report::Attempted(row.uid, next, record)).await;
    }

    /// Waits for a place among those that may be sent at once; tells whether it got one. Nobody waits long:
    /// what was claimed and finds no place is given back.
    async fn enter(&self, key: LaneKey) -> bool {
        let Some(mut told) = self.with(|lanes| lanes.enter(key)) else { return true };
        tokio::select! {
            place = &mut told => return place.is_ok(),
            () = self.store.clock().sleep(AT_GATE) => {}
            () = self.stop.cancelled() => {}
        }
        // A place may have been given at this very moment.
        told.close();
        told.try_recv().is_ok()
    }

    /// Waits until it is due by the store's clock; a stop waits with it, for it is a matter of `wheel.lead`.
    /// The clock is looked at again after every sleep: a sleep may end early, and the bound of the store's
    /// clock may fall.
    async fn wait_for(&self, due_at: UnixMs) {
        loop {
            let wait = self.store.clock().until(due_at);
            if wait.is_zero() {
                return;
            }
            tokio::select! {
                () = self.store.clock().sleep(wait) => {}
                () = self.abandon.cancelled() => return,
            }
        }
    }

    fn leave(&self, key: LaneKey, how: Left) {
        self.with(|lanes| lanes.left(key, how, Monotonic::now().as_ms()));
        self.work.notify_one();
    }
}

/// What a claimed row says to its receiver; takes the payload out of the row.
fn delivery(row: &mut TimerRow) -> Delivery {
    Delivery {
        id: row.delivery_id(),
        timer: row.id.clone(),
        due_at: row.life.due_at,
        generation: row.life.generation,
        attempt: row.life.attempt,
        target: row.target.clone(),
        data: row.data.take().unwrap_or_else(|| b"null".to_vec()),
        claim: Claim { shard: row.shard, epoch: row.epoch, via: row.via },
    }
}

/// What follows if the attempt was not taken.
fn next_after(row: &TimerRow, outcome: &Outcome, now: UnixMs) -> Next {
    let retry = row.policies.retry.unwrap_or_default();
    let attempt = u32::try_from(row.life.attempt).unwrap_or(1);
    if outcome.gone || attempt >= retry.attempts {
        return Next::GiveUp;
    }
    Next::Retry(now.plus(match outcome.retry_after {
        Some(wait) => wait,
        None => retry.wait_after(attempt, dice(row, attempt)),
    }))
}

/// A number in 0–1 that differs between timers and attempts. Spreading needs no secrecy, and a number that
/// follows from the timer keeps a replayed run the same.
fn dice(row: &TimerRow, attempt: u32) -> f64 {
    let hash = crate::model::id::digest16(&[b"dice", row.uid.0.as_bytes(), &attempt.to_be_bytes()]);
    f64::from(u16::from_be_bytes([hash[0], hash[1]])) / f64::from(u16::MAX)
}

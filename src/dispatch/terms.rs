//! What destinations bear, put in force in the lanes: concurrency, rate, and whether they are held.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use super::lanes::Terms;
use crate::clock::Monotonic;
use crate::model::destination::Destination;
use crate::telemetry::Streak;

/// Slots are reserved no sooner than so long from now: a timer is offered as long before it is due, and slots before that
/// would be used all at once.
const SLOTS_AHEAD: Duration = Duration::from_millis(50);

/// The furthest ahead that slots are reserved, where the store is slow.
const SLOTS_FAR_AHEAD: Duration = Duration::from_secs(2);

/// The pause after slots could not be reserved.
const SLOTS_AGAIN: Duration = Duration::from_millis(200);

impl Dispatcher {
    /// Puts the terms of the destinations in force, now and whenever they change. Runs until dropped.
    pub async fn follow_destinations(self: Arc<Self>) {
        let mut changed = self.destinations.subscribe();
        loop {
            changed.borrow_and_update();
            self.take_terms();
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Puts the terms of the destinations in force.
    pub fn take_terms(&self) {
        let known = self.destinations.known();
        let terms: HashMap<i64, Terms> = known.values().map(|one| (one.lane(), terms_of(one))).collect();
        self.with(|lanes| lanes.set_terms(terms, Monotonic::now().as_ms()));
        self.work.notify_one();
        self.backlog_cleared.notify_one();
    }

    /// Reserves time at destinations that have a rate, for what waits. Runs until dropped.
    pub async fn reserve_slots(self: Arc<Self>) {
        let (mut streak, mut ahead) = (Streak::default(), SLOTS_AHEAD);
        loop {
            self.slots.notified().await;
            let wanted = self.with(super::lanes::Lanes::wanted_slots);
            if wanted.is_empty() {
                continue;
            }
            let asked_us = Monotonic::now().as_us();
            match self.destinations.reserve(&wanted, ahead).await {
                Ok(reserved) => {
                    streak.succeeded();
                    // Slots that are past when they are told would be of no use.
                    let took = u64::try_from(Monotonic::now().as_us() - asked_us).unwrap_or(0);
                    let took = Duration::from_micros(took + took / 2);
                    ahead = (SLOTS_AHEAD + took).min(SLOTS_FAR_AHEAD);
                    let now_ms = Monotonic::now().as_ms();
                    self.with(|lanes| {
                        for (lane, count, step_us) in &wanted {
                            // Counted from before the question, so that it is not later than the store means it.
                            for one in reserved.iter().filter(|one| one.lane == *lane) {
                                lanes.grant_slots(*lane, asked_us + one.start_us, *count, *step_us, now_ms);
                            }
                        }
                    });
                    self.work.notify_one();
                }
                Err(why) => {
                    if streak.failed(self.store.is_away()) {
                        tracing::warn!(%why, "no time at destinations can be reserved; what has a rate waits");
                    }
                    self.with(|lanes| lanes.want_slots_again(wanted.iter().map(|(lane, ..)| *lane)));
                    self.store.clock().sleep(SLOTS_AGAIN).await;
                    self.slots.notify_one();
                }
            }
        }
    }

    /// Waits until the slot of a timer in hand.
    pub(super) async fn wait_for_slot(&self, slot_us: i64) {
        let wait_us = u64::try_from(slot_us - Monotonic::now().as_us()).unwrap_or(0);
        if wait_us > 0 {
            self.store.clock().sleep(Duration::from_micros(wait_us)).await;
        }
    }
}

/// What a destination bears.
pub(super) fn terms_of(one: &Destination) -> Terms {
    Terms {
        concurrency: one.limits.concurrency,
        step_us: one.limits.rate_per_second.map(|rate| i64::from(1_000_000_u32.div_ceil(rate.max(1)))),
        held: one.is_held(),
    }
}

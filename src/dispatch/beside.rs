//! What those see who send beside firings ([`crate::outbox`]), and what is told of destinations.

use std::sync::Arc;

use super::Dispatcher;
use super::terms::terms_of;
use crate::clock::Monotonic;
use crate::model::destination::Destination;
use crate::model::namespace::Namespace;
use crate::model::subscription::Lifecycle;
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::sink::Outcome;

/// How often it is tried to tell that a destination is failing, or has recovered.
const TELL_TRIES: u32 = 3;

/// A place at a destination that an event has, one of those that its concurrency allows. It is free once this is dropped.
pub struct Place {
    dispatcher: Arc<Dispatcher>,
    lane: i64,
    slot_us: Option<i64>,
}

impl Place {
    /// Waits for the event's slot, if the destination has a rate.
    pub async fn wait(&self) {
        if let Some(slot_us) = self.slot_us {
            self.dispatcher.wait_for_slot(slot_us).await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now_ms = Monotonic::now().as_ms();
        if self.dispatcher.with(|lanes| lanes.end_beside(self.lane, now_ms)) {
            self.dispatcher.work.notify_one();
        }
    }
}

impl Dispatcher {
    /// Takes places for events at a destination: at most `most` of those that firings and other events leave, where
    /// `waiting` wait. Also returns whether other events have some that these could have.
    pub fn places(
        self: &Arc<Self>,
        destination: &Destination,
        waiting: usize,
        most: usize,
    ) -> (Vec<Place>, bool) {
        let (lane, terms, now_ms) = (destination.lane(), terms_of(destination), Monotonic::now().as_ms());
        let (granted, needs_slots) = self.with(|lanes| {
            let granted = lanes.take_beside(lane, &terms, waiting, most, now_ms);
            (granted, lanes.needs_slots())
        });
        if needs_slots {
            self.slots.notify_one();
        }
        let place = |slot_us| Place { dispatcher: Arc::clone(self), lane, slot_us };
        (granted.slots.into_iter().map(place).collect(), granted.is_crowded)
    }

    /// Whether more attempts are under way, or any timer waits to be sent.
    pub fn is_busier_than(&self, in_flight: usize) -> bool {
        self.with(|lanes| lanes.queued() > 0 || lanes.in_flight() > in_flight)
    }

    /// Notes how a delivery ended that was no firing.
    pub fn note_beside(&self, of: (Namespace, &Target), outcome: &Outcome) {
        self.note_outcome(of, outcome, self.store.clock().now());
    }

    /// Notes how an attempt ended. Who subscribes is told when a destination begins to fail, and when it has recovered, as
    /// this node sees it.
    pub(super) fn note_outcome(
        &self,
        (namespace, target): (Namespace, &Target),
        outcome: &Outcome,
        at: UnixMs,
    ) {
        let Some(failing) = self.receivers.note((namespace, target), outcome, at) else { return };
        let Some(name) = target.destination().map(str::to_owned) else { return };
        let kind = if failing { Lifecycle::DestinationFailing } else { Lifecycle::DestinationRecovered };
        if !self.store.subscription_set().asks_for(kind) {
            return;
        }
        let (store, node) = (self.store.clone(), self.ownership.me().name.clone());
        let detail = outcome.detail.clone().filter(|_| failing);
        tokio::spawn(async move {
            for try_ in 1..=TELL_TRIES {
                match store.tell_destination(kind, (namespace, &name), &node, detail.as_deref()).await {
                    Ok(()) => return,
                    Err(why) if try_ == TELL_TRIES => {
                        tracing::warn!(destination = name, kind = kind.word(), %why, "an event could not be written");
                    }
                    Err(_) => store.clock().sleep(std::time::Duration::from_secs(1)).await,
                }
            }
        });
    }
}

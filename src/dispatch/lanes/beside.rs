//! What is sent to destinations beside firings: lifecycle events, of any number of subscriptions.
//!
//! All of it has the destination's terms in common with the firings there, and firings go first:
//!
//! - **Concurrency.** An event takes one of the destination's places, as an attempt does. It gets none while a timer waits
//!   in the lane. Where a concurrency of its own is agreed, so that a firing has to wait for a place, events leave a quarter
//!   of the places free (but never the only one) at a destination that timers fire at.
//! - **Rate.** An event takes one of the lane's slots, as an attempt does. There is one reservation, and a timer that comes
//!   up before its slot does has it.

use std::collections::HashMap;

use super::turns::SLOT_LEAD_MS;
use super::{Class, LaneKey, Lanes, Terms};

/// Events by the lane of their destination.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Under way.
    in_flight: HashMap<i64, usize>,
    /// Waiting for slots, as was told since slots were last asked for.
    waiting: HashMap<i64, usize>,
}

impl Beside {
    /// How many events are under way.
    pub fn in_flight(&self, lane: i64) -> usize {
        self.in_flight.get(&lane).copied().unwrap_or(0)
    }

    /// Takes out how many events wait for slots.
    pub fn take_waiting(&mut self) -> HashMap<i64, usize> {
        std::mem::take(&mut self.waiting)
    }
}

/// Places that were taken for events.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// For each the time before which it is not sent, in microseconds, if the destination has a rate.
    pub slots: Vec<Option<i64>>,
    /// Other events have places that these could have.
    pub is_crowded: bool,
}

impl Lanes {
    /// Takes places for events at a destination with these terms, at most `most`, where `waiting` wait. Each is given back by
    /// [`Lanes::end_beside`].
    pub fn take_beside(
        &mut self,
        lane: i64,
        terms: &Terms,
        waiting: usize,
        most: usize,
        now_ms: i64,
    ) -> Granted {
        let load = self.receivers.get(&lane).map(super::Receiver::load);
        let firing = load.unwrap_or_default();
        // Terms that are not in force here yet are so in a moment.
        if terms.held || !self.agreed.are(lane, terms) || firing.waiting > 0 {
            return Granted::default();
        }
        let all = self.agreed.concurrency(lane, self.per_lane);
        let kept = match (load, terms.concurrency) {
            (Some(_), Some(all)) => all.div_ceil(4).min(all.saturating_sub(1)),
            _ => 0,
        };
        let under_way = self.beside.in_flight(lane);
        let free = (all - kept).min(all.saturating_sub(firing.in_flight)).saturating_sub(under_way);
        let count = free.min(most);
        let mut slots = vec![None; count];
        let until_us = (now_ms + SLOT_LEAD_MS) * 1000;
        if count > 0
            && let Some(ready) = self.agreed.ready(lane, until_us, now_ms * 1000, count)
        {
            let asked = self.beside.waiting.entry(lane).or_default();
            *asked = waiting.max(*asked);
            slots = (0..ready).filter_map(|_| self.agreed.take(lane, until_us)).map(Some).collect();
        }
        if !slots.is_empty() {
            *self.beside.in_flight.entry(lane).or_default() += slots.len();
        }
        Granted { is_crowded: under_way > 0 && slots.len() < most, slots }
    }

    /// An event at this destination is no longer under way. Returns whether a timer waits in the lane.
    pub fn end_beside(&mut self, lane: i64, now_ms: i64) -> bool {
        if let Some(in_flight) = self.beside.in_flight.get_mut(&lane) {
            *in_flight -= 1;
            if *in_flight == 0 {
                self.beside.in_flight.remove(&lane);
            }
        }
        self.grant(lane);
        for class in Class::ALL {
            self.wake(LaneKey { lane, class }, now_ms);
        }
        self.receivers.get(&lane).is_some_and(|receiver| receiver.waiting > 0)
    }
}

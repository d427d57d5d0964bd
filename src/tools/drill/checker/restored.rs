//! What a restore of the cold store may have undone, and what has to be held after it.
//!
//! A timer is *touched* by a restore if it was asked about, sent or due between the backup and the accept. Its calls may
//! be undone and its attempts repeated, so of what is promised three things are left: nothing is early, nothing that fell
//! due since the backup is sent before it is accepted, and what was in the backup is delivered in the end.

use super::{Check, dues};
use crate::tools::drill::history::{
    Affected, Answer, Arrival, Ask, Call, Fault, History, Micros, Restored, Terms,
};

/// How long before the backup something may have been done that is not in it: a result that was not yet recorded.
const BEFORE_US: Micros = 2_000_000;

/// One restore.
#[derive(Clone, Copy)]
pub(super) struct Restore {
    from_us: Micros,
    until_us: Micros,
    at: Restored,
}

impl Restore {
    /// All of a history.
    pub(super) fn all(history: &History) -> Vec<Self> {
        let restore = |fault: &Fault| match fault.affected {
            Affected::Restored(at) => Some(Self { from_us: fault.from_us, until_us: fault.until_us, at }),
            _ => None,
        };
        history.faults.iter().filter_map(restore).collect()
    }

    /// Whether it may have undone, or holds, something of a timer.
    pub(super) fn touches(&self, calls: &[&Call], arrivals: &[&Arrival]) -> bool {
        let since = self.from_us - BEFORE_US;
        let asked = |call: &&Call| call.asked_us <= self.at.ended_us && call.answered_us >= since;
        let sent = |arrival: &&Arrival| (since..=self.at.ended_us).contains(&arrival.at_us);
        let was_there = calls.iter().any(|call| call.asked_us <= self.at.ended_us);
        let due = |due_ms: &i64| (since..=self.until_us).contains(&(due_ms * 1000));
        calls.iter().any(asked)
            || arrivals.iter().any(sent)
            || (was_there && dues(calls).values().flatten().any(due))
    }

    /// Whether this was held, and sent all the same.
    fn is_broken_by(&self, arrival: &Arrival) -> bool {
        let due = (self.at.backed_up_us..=self.at.ended_us).contains(&(arrival.due_ms * 1000));
        due && (self.at.found_us..self.at.accepting_us).contains(&arrival.at_us)
    }

    /// Whether the backup had it, and nobody has asked for anything else.
    fn must_deliver(&self, calls: &[&Call], terms: Terms) -> bool {
        let [only] = calls else { return false };
        matches!((only.ask, only.answer), (Ask::Register { .. }, Answer::Done { .. }))
            && only.answered_us < self.from_us
            && terms == Terms::default()
    }
}

impl Check<'_> {
    /// Judges a timer that a restore has touched.
    pub(super) fn restored(
        &mut self,
        restore: Restore,
        calls: &[&Call],
        arrivals: &[&Arrival],
        terms: Terms,
    ) {
        let number = calls[0].timer;
        self.found.restored += 1;
        // One that was asked for again after the restore is new.
        let was_registered = calls.iter().any(|call| {
            matches!((call.ask, call.answer), (Ask::Register { .. }, Answer::Done { .. }))
                && call.answered_us <= restore.at.ended_us
        });
        for arrival in arrivals {
            self.early(number, arrival);
            if was_registered && restore.is_broken_by(arrival) {
                self.found.unheld += 1;
                let before = restore.at.accepting_us - arrival.at_us;
                self.describe("unheld", number, || {
                    format!("due {}, sent {} ms before it was accepted", arrival.due_ms, before / 1000)
                });
            }
        }
        if !restore.must_deliver(calls, terms) {
            return;
        }
        self.found.registered += 1;
        if arrivals.iter().any(|arrival| arrival.accepted()) {
            self.found.delivered += 1;
        } else {
            self.found.lost += 1;
            self.describe("lost", number, || super::story(calls, arrivals));
        }
    }
}

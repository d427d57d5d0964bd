//! How late first attempts were, by what was wrong when they were due; which of them straggled or were late together,
//! and which timers may have expired.

use std::collections::HashMap;

use super::recurring::life_of_nominal;
use super::{Check, FirstAttempt, LateOrLost, SCHEDULES, story};
use crate::tools::drill::history::{Arrival, Call, Fault, History, Micros};
use crate::tools::quantiles::Quantiles;

/// Only the sweep is that late: what the wheel knows comes within milliseconds.
const STRAGGLES_US: Micros = 900_000;
/// A neighbour that is less late was in time, and a call that takes no longer is no slow one.
const IN_TIME_US: Micros = 400_000;
/// How far apart neighbours are, by the moments from which on they could be fired.
const NEAR_US: Micros = 250_000;
/// How soon after its answer the pointer of a timer is surely in its slot.
const PROMOTED_US: Micros = 1_000_000;

impl Check<'_> {
    /// Timers that were to expire when found too late, and did not come: others of their time show whether all
    /// were late.
    fn expired(&mut self, firsts: &[FirstAttempt]) {
        for LateOrLost { timer, dues, grace_us, story } in std::mem::take(&mut self.late_or_lost) {
            if dues.iter().any(|(due_us, _)| others_were_late(firsts, *due_us, grace_us)) {
                self.found.expired += 1;
            } else {
                self.found.lost += 1;
                self.describe("lost", timer, || {
                    format!("to expire when late, and nothing was late: {story}")
                });
            }
        }
    }

    /// Lateness by what was wrong when a timer was due, and what of it nothing excuses.
    pub(super) fn lateness(&mut self) {
        let mut firsts = std::mem::take(&mut self.firsts);
        firsts.sort_by_key(|first| first.from_us);
        self.expired(&firsts);
        let faults: Vec<&Fault> = self.history.faults.iter().filter(|fault| fault.may_delay()).collect();
        let recovery = self.limits.recovery_us;
        let mut late: [Vec<Micros>; 3] = Default::default();
        let mut too_late = Vec::new();
        let mut recovered: Option<Micros> = None;
        for (index, first) in firsts.iter().enumerate() {
            let lateness = first.at_us - first.from_us;
            let during = faults.iter().any(|f| f.overlaps(first.from_us, first.from_us));
            let since = faults
                .iter()
                .filter(|f| f.from_us <= first.at_us && first.from_us <= f.until_us + recovery)
                .max_by_key(|f| f.until_us);
            let phase = match (during, since) {
                (true, _) => 1,
                (false, Some(_)) => 2,
                (false, None) => 0,
            };
            late[phase].push(lateness);
            if let Some(fault) = since.filter(|_| lateness > 1_000_000) {
                recovered = recovered.max(Some((first.at_us - fault.until_us).max(0)));
            }
            if phase == 0 && lateness > STRAGGLES_US {
                too_late.push((*first, neighbours_in_time(&firsts, index)));
            }
        }
        self.unexcused(&too_late, &faults);
        let [healthy, faulted, recovering] = late.map(Quantiles::of);
        (self.found.healthy, self.found.faulted, self.found.recovering) = (healthy, faulted, recovering);
        self.found.recovered_ms = recovered.map(|us| us as f64 / 1000.0);
    }

    /// Counts what was too late in healthy times, each with whether its neighbours were in time: alone it straggles,
    /// together with them it is late.
    fn unexcused(&mut self, too_late: &[(FirstAttempt, bool)], faults: &[&Fault]) {
        let history = self.history;
        let busy = self.busy();
        let began = || history.calls.iter().map(|call| call.asked_us).min();
        let origin = faults.iter().map(|fault| fault.from_us).min().or_else(began).unwrap_or_default();
        // When calls were under way, of each of them: those about its schedule, too.
        let mut asked: HashMap<u32, Vec<(Micros, Micros)>> =
            too_late.iter().map(|(first, _)| (first.timer, Vec::new())).collect();
        let of_timers = history.calls.iter().map(|call| (call.timer, call.asked_us, call.answered_us));
        let of_schedules = history.schedule_calls.iter();
        let of_schedules =
            of_schedules.map(|call| (SCHEDULES + call.schedule, call.asked_us, call.answered_us));
        for (timer, from_us, until_us) in of_timers.chain(of_schedules) {
            if let Some(calls) = asked.get_mut(&timer) {
                calls.push((from_us, until_us));
            }
        }
        for (FirstAttempt { timer, due_ms, from_us, at_us, made_us }, alone) in too_late.iter().copied() {
            let asked = asked.get(&timer).map(Vec::as_slice).unwrap_or_default();
            if self.may_lack_pointer(asked, made_us, faults)
                || covers_half(&busy, from_us, at_us)
                || (alone && self.calls_were_slow(from_us, at_us))
            {
                continue;
            }
            let (kind, count) = match alone {
                true => ("straggler", &mut self.found.stragglers),
                false => ("late", &mut self.found.late),
            };
            *count += 1;
            self.describe(kind, timer, || {
                let (late, due) = ((at_us - from_us) / 1000, (due_ms * 1000 - origin) as f64 / 1e6);
                format!("{late} ms late, due at {due:+.1} s: {}", life(history, timer, due_ms))
            });
        }
    }

    /// When the machine was busy with something else, in order.
    pub(super) fn busy(&self) -> Vec<(Micros, Micros)> {
        let mut busy = [&self.history.held_up[..], &self.history.crowded[..]].concat();
        busy.sort_unstable();
        busy
    }

    /// Whether half of the calls that were answered between two moments were slow: then the machine is too small for
    /// the load, or for what else runs on it, and full lanes drop pointers, whose timers the sweep finds. It excuses
    /// no lateness of all together: a service that is slow in everything would excuse itself.
    fn calls_were_slow(&self, from_us: Micros, until_us: Micros) -> bool {
        let answered =
            self.history.calls.iter().filter(|call| (from_us..=until_us).contains(&call.answered_us));
        let is_slow = |call: &Call| call.answered_us - call.asked_us > IN_TIME_US;
        let (all, slow) =
            answered.fold((0, 0), |(all, slow), call| (all + 1, slow + usize::from(is_slow(call))));
        all > 0 && slow * 2 >= all
    }

    /// Whether a fault came between the commit of a call and the pointer that follows it, or between that of an occurrence
    /// and its pointer: one that was made ahead, or that a call about its schedule made anew. A node that dies there
    /// leaves the timer to the sweep: that is what the sweep is for.
    fn may_lack_pointer(
        &self,
        asked: &[(Micros, Micros)],
        made_us: Option<Micros>,
        faults: &[&Fault],
    ) -> bool {
        asked.iter().copied().chain(made_us.zip(made_us)).any(|(from_us, until_us)| {
            let until_us = until_us + PROMOTED_US;
            faults.iter().any(|fault| fault.may_lose_pointers() && fault.overlaps(from_us, until_us))
        })
    }
}

/// What happened about a timer, or about the occurrence of a schedule, in a line.
fn life(history: &History, timer: u32, due_ms: i64) -> String {
    if let Some(schedule) = timer.checked_sub(SCHEDULES) {
        return life_of_nominal(history, schedule, due_ms);
    }
    let calls: Vec<&Call> = history.calls.iter().filter(|call| call.timer == timer).collect();
    let arrivals: Vec<&Arrival> = history.arrivals.iter().filter(|arrival| arrival.timer == timer).collect();
    story(&calls, &arrivals)
}

/// Whether these spans, in the order of their beginnings, cover half of the time between two moments. How late the
/// timers were, or how slow the calls, has no part in it.
pub(super) fn covers_half(spans: &[(Micros, Micros)], from_us: Micros, until_us: Micros) -> bool {
    let (mut covered_us, mut upto_us) = (0, from_us);
    for (from, until) in spans {
        let (from, until) = ((*from).max(upto_us), (*until).min(until_us));
        if from < until {
            covered_us += until - from;
            upto_us = until;
        }
    }
    covered_us * 2 >= until_us - from_us
}

/// Whether others that were due at about the same time came late by more than half of a grace.
fn others_were_late(firsts: &[FirstAttempt], due_us: Micros, grace_us: Micros) -> bool {
    let about = |first: &&FirstAttempt| (first.due_ms * 1000 - due_us).abs() <= 1_000_000;
    firsts.iter().filter(about).any(|first| first.at_us - first.from_us > grace_us / 2)
}

/// Whether half of those that could be fired a moment before came in time, and half of those a moment later: then
/// the machine did not stand still. A timer that is due when a standstill begins has neighbours in time on one side
/// only. One that was registered after its due time has those for neighbours that were due when it was.
fn neighbours_in_time(firsts: &[FirstAttempt], index: usize) -> bool {
    let from = firsts[index].from_us;
    let before = firsts[..index].iter().rev().take_while(|first| from - first.from_us <= NEAR_US);
    let after = firsts[index + 1..].iter().take_while(|first| first.from_us - from <= NEAR_US);
    let in_time = |first: &FirstAttempt| first.at_us - first.from_us < IN_TIME_US;
    let neighbours: Vec<&FirstAttempt> = before.chain(after).collect();
    let half = |side: fn(Micros, Micros) -> bool| {
        let side = neighbours.iter().filter(|first| side(first.from_us, from));
        let (all, in_time) = side.fold((0, 0), |(all, n), first| (all + 1, n + usize::from(in_time(first))));
        in_time * 2 >= all
    };
    let some = neighbours.iter().filter(|first| in_time(first)).count() >= 3;
    some && half(|theirs, from| theirs <= from) && half(|theirs, from| theirs >= from)
}

//! How late first attempts were, by what was wrong when they were due; who straggled, and what may have expired.

use super::{Check, First, LateOrLost, Lateness, story};
use crate::tools::drill::history::{Arrival, Call, Fault, Struck, Us};

/// Lateness that only the sweep gives: what the wheel knows comes within milliseconds.
const STRAGGLES_US: Us = 900_000;
/// Lateness of a neighbour that was in time.
const IN_TIME_US: Us = 400_000;
/// How far apart, by due time, neighbours are.
const NEAR_MS: i64 = 250;

impl Check<'_> {
    /// What was to expire when found too late, and did not come: others of its time tell whether all were late.
    fn expired(&mut self, firsts: &[First]) {
        for LateOrLost { timer, dues, grace_us, story } in std::mem::take(&mut self.late_or_lost) {
            if dues.iter().any(|(due_us, _)| others_were_late(firsts, *due_us, grace_us)) {
                self.found.expired += 1;
            } else {
                self.found.lost += 1;
                self.tell("lost", timer, || format!("to expire when late, and nothing was late: {story}"));
            }
        }
    }

    /// Lateness by what was wrong when a timer was due, and who straggled.
    pub(super) fn lateness(&mut self) {
        let mut firsts = std::mem::take(&mut self.firsts);
        firsts.sort_by_key(|first| first.due_ms);
        self.expired(&firsts);
        let lasting = |fault: &&Fault| !matches!(fault.struck, Struck::Receivers | Struck::Slow(_));
        let faults: Vec<&Fault> = self.history.faults.iter().filter(lasting).collect();
        let recovery = self.patience.recovery_us;
        let mut late: [Vec<f64>; 3] = Default::default();
        let mut straggling = Vec::new();
        let mut recovered: Option<Us> = None;
        for (place, first) in firsts.iter().enumerate() {
            let lateness = first.at_us - first.from_us;
            let during = faults.iter().any(|f| f.from_us <= first.from_us && first.from_us <= f.until_us);
            let since = faults
                .iter()
                .filter(|f| f.from_us <= first.at_us && first.from_us <= f.until_us + recovery)
                .max_by_key(|f| f.until_us);
            let phase = match (during, since) {
                (true, _) => 1,
                (false, Some(_)) => 2,
                (false, None) => 0,
            };
            late[phase].push(lateness as f64 / 1000.0);
            if let Some(fault) = since.filter(|_| lateness > 1_000_000) {
                recovered = recovered.max(Some((first.at_us - fault.until_us).max(0)));
            }
            if phase == 0 && lateness > STRAGGLES_US && neighbours_in_time(&firsts, place) {
                straggling.push(place);
            }
        }
        self.found.stragglers = straggling.len() as u64;
        let began = || self.history.calls.iter().map(|call| call.asked_us).min();
        let origin = faults.iter().map(|fault| fault.from_us).min().or_else(began).unwrap_or_default();
        for place in straggling {
            let First { timer, due_ms, from_us, at_us } = firsts[place];
            let history = self.history;
            self.tell("straggler", timer, || {
                let calls: Vec<&Call> = history.calls.iter().filter(|call| call.timer == timer).collect();
                let arrivals: Vec<&Arrival> = history.arrivals.iter().filter(|a| a.timer == timer).collect();
                let (late, due) = ((at_us - from_us) / 1000, (due_ms * 1000 - origin) as f64 / 1e6);
                format!("{late} ms late, due at {due:+.1} s: {}", story(&calls, &arrivals))
            });
        }
        let [healthy, faulted, recovering] = late.map(summary);
        (self.found.healthy, self.found.faulted, self.found.recovering) = (healthy, faulted, recovering);
        self.found.recovered_ms = recovered.map(|us| us as f64 / 1000.0);
    }
}

/// Whether others that were due at about the same time came late by more than half of a grace.
fn others_were_late(firsts: &[First], due_us: Us, grace_us: Us) -> bool {
    let about = |first: &&First| (first.due_ms * 1000 - due_us).abs() <= 1_000_000;
    firsts.iter().filter(about).any(|first| first.at_us - first.from_us > grace_us / 2)
}

/// Whether half of those due a moment before came in time, and half of those due a moment later: then it was not
/// the machine that stood still. What is due when that begins has neighbours in time on one side only.
fn neighbours_in_time(firsts: &[First], place: usize) -> bool {
    let due = firsts[place].due_ms;
    let before = firsts[..place].iter().rev().take_while(|first| due - first.due_ms <= NEAR_MS);
    let after = firsts[place + 1..].iter().take_while(|first| first.due_ms - due <= NEAR_MS);
    let in_time = |first: &First| first.at_us - first.from_us < IN_TIME_US;
    let neighbours: Vec<&First> = before.chain(after).collect();
    let half = |side: fn(i64, i64) -> bool| {
        let side = neighbours.iter().filter(|first| side(first.due_ms, due));
        let (all, in_time) = side.fold((0, 0), |(all, n), first| (all + 1, n + usize::from(in_time(first))));
        in_time * 2 >= all
    };
    let some = neighbours.iter().filter(|first| in_time(first)).count() >= 3;
    some && half(|theirs, due| theirs <= due) && half(|theirs, due| theirs >= due)
}

fn summary(mut late: Vec<f64>) -> Lateness {
    late.sort_by(f64::total_cmp);
    let at = |part: f64| late.get(((late.len() as f64 * part) as usize).min(late.len().saturating_sub(1)));
    let at = |part| at(part).copied().unwrap_or_default();
    Lateness { count: late.len() as u64, p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

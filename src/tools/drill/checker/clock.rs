//! The cold store's clock, by which timers are due: this machine's, but for what a drill has done to it.

use crate::tools::drill::history::{Affected, Fault, Micros};

/// How long after its claim an attempt may be sent, though the store's clock was set back meanwhile: it was due by the
/// clock of the claim.
const CLAIMED_US: Micros = 2_000_000;
/// How long before its due time a timer is claimed (`wheel.lead`). Then the node waits by what it knows of the clock,
/// and it learns of a jump only by the store's next answer.
const LEAD_US: Micros = 50_000;

/// When the store's clock jumped, by this machine's, and how far; in the order of time.
pub(super) struct StoreClock(Vec<(Micros, Micros)>);

impl StoreClock {
    /// The clock as the faults have set it.
    pub fn of(faults: &[Fault]) -> Self {
        let jump = |fault: &Fault| match fault.affected {
            Affected::Clock(by_us) => Some((fault.from_us, by_us)),
            _ => None,
        };
        let mut jumps: Vec<(Micros, Micros)> = faults.iter().filter_map(jump).collect();
        jumps.sort_unstable();
        Self(jumps)
    }

    /// What it shows at a moment of this machine's clock.
    fn at(&self, at_us: Micros) -> Micros {
        let jumped = self.0.iter().take_while(|(jumped_at, _)| *jumped_at <= at_us);
        at_us + jumped.map(|(_, by_us)| by_us).sum::<Micros>()
    }

    /// The highest by which an attempt that comes at a moment may have been claimed. It falls only where the clock jumps
    /// back; what was claimed before is sent, for a moment also what became due by the clock as it was.
    pub fn of_claim(&self, at_us: Micros) -> Micros {
        let jumps = self.0.iter().map(|(jumped_at, _)| *jumped_at);
        let before = jumps.filter(|jumped_at| (at_us - CLAIMED_US..=at_us).contains(jumped_at));
        let as_it_was = before.map(|jumped_at| self.at(jumped_at - 1) + (at_us - jumped_at).min(LEAD_US));
        as_it_was.fold(self.at(at_us), Micros::max)
    }

    /// Since when a timer that came at a moment had been due, if it could be fired from `from_us` on. What was due by a
    /// clock that was set back since, and is due again, has been due only since then.
    pub fn due_since(&self, due_us: Micros, from_us: Micros, at_us: Micros) -> Micros {
        let jumps = || self.0.iter().map(|(jumped_at, _)| *jumped_at);
        let not_due = jumps().filter(|jumped_at| *jumped_at <= at_us && self.at(*jumped_at) < due_us).max();
        let from_us = match not_due {
            Some(jumped_at) if self.at(at_us) >= due_us => from_us.max(jumped_at),
            _ => from_us,
        };
        // It is due already, becomes so by a jump, or as time goes by, before the first jump or after one.
        let runs = jumps().map(|jumped_at| due_us - (self.at(jumped_at) - jumped_at));
        let moments = [from_us, due_us].into_iter().chain(jumps()).chain(runs);
        let due = moments.filter(|moment| *moment >= from_us && self.at(*moment) >= due_us);
        due.min().unwrap_or_else(|| due_us.max(from_us))
    }
}

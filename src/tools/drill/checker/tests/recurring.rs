//! Schedules: which nominal times there are, and what becomes of them.

use super::*;
use crate::tools::drill::history::{
    Listed, Occurrence, Reason, Rhythm, ScheduleAsk, ScheduleCall, ScheduleTerms, ToldSkip,
};

const SECOND: i64 = 1000;
/// From 10 s on, every second until 13 s.
const TERMS: ScheduleTerms = ScheduleTerms {
    rule: Rhythm { origin_ms: DUE, step_ms: SECOND },
    changed: None,
    start_ms: DUE,
    end_ms: DUE + 3 * SECOND,
    is_exclusive: false,
    is_difficult: false,
    has_owner: false,
};

/// A schedule made at 9 s, of which nothing is seen yet.
fn schedule(terms: ScheduleTerms) -> Seen {
    let mut seen = Seen::new();
    seen.history.schedules.push(terms);
    seen.asked(ScheduleAsk::Make, 9000, Some(201))
}

/// All of its nominal times fired, but for these.
fn fired_but(terms: ScheduleTerms, but: &[i64]) -> Seen {
    let times = terms.rule.times(DUE * MS - 1, terms.end_ms * MS).filter(|at| !but.contains(at));
    times.fold(schedule(terms), |seen, at| seen.fired(at, at))
}

fn occurrence(nominal_ms: i64, at_ms: i64) -> Arrival {
    let of = Occurrence { schedule: 0, nominal_ms, timer: nominal_ms.unsigned_abs(), is_named_so: true };
    let delivery = nominal_ms.unsigned_abs();
    Arrival { of: Some(of), delivery, due_ms: nominal_ms, ..attempt_at(1, at_ms) }
}

impl Seen {
    /// A call that is answered 20 ms later.
    fn asked(mut self, ask: ScheduleAsk, at_ms: i64, status: Option<u16>) -> Self {
        let (asked_us, answered_us) = (at_ms * MS, (at_ms + 20) * MS);
        self.history.schedule_calls.push(ScheduleCall { schedule: 0, ask, asked_us, answered_us, status });
        self
    }

    fn fired(self, nominal_ms: i64, at_ms: i64) -> Self {
        self.came(occurrence(nominal_ms, at_ms))
    }

    fn came(mut self, arrival: Arrival) -> Self {
        self.history.arrivals.push(arrival);
        self
    }

    fn told(mut self, first_ms: i64, last_ms: i64, count: u64, reason: Reason) -> Self {
        let (event, was_made) = (self.history.skips.len() as u64, count == 1);
        let at_us = last_ms * MS + 50 * MS;
        let told = ToldSkip { event, schedule: 0, first_ms, last_ms, count, was_made, reason, at_us };
        self.history.skips.push(told);
        self
    }

    fn skipped(self, at_ms: i64, reason: Reason) -> Self {
        self.told(at_ms, at_ms, 1, reason)
    }

    fn listed(mut self, nominal_ms: i64, skipped: Option<Reason>) -> Self {
        let made_us = nominal_ms * MS - 500 * MS;
        let is_delivered = skipped.is_none();
        let one = Listed { schedule: 0, nominal_ms, is_delivered, is_cancelled: false, skipped, made_us };
        self.history.listed.push(one);
        self
    }
}

#[test]
fn each_nominal_time_fires_once() {
    let seen = fired_but(TERMS, &[]);
    let found = seen.found();
    assert_eq!((found.nominals, found.nominals_fired, found.healthy.count), (4, 4, 4));
    assert_eq!((seen.violations(), found.registered), (vec![], 0));
    let lost = fired_but(TERMS, &[DUE + SECOND]);
    assert_eq!(lost.violations(), [("nominals lost", 1)]);
    let failed = lost.came(Arrival { replied: Some(500), ..occurrence(DUE + SECOND, DUE + SECOND) });
    assert_eq!(failed.violations(), [("nominals lost", 1)], "no attempt was accepted");
    let early = fired_but(TERMS, &[DUE + SECOND]).fired(DUE + SECOND, DUE + SECOND - 1);
    assert_eq!(early.violations(), [("early", 1)]);
    let mut unmade = schedule(TERMS);
    unmade.history.schedule_calls[0].status = None;
    assert_eq!(unmade.violations(), [], "nobody knows whether there is such a schedule");
    assert_eq!(unmade.fired(DUE, DUE).violations(), []);
}

#[test]
fn a_nominal_time_that_makes_two_is_found() {
    let twice = [("nominals made twice", 1)];
    let other = |of: fn(Arrival) -> Arrival| fired_but(TERMS, &[]).came(of(occurrence(DUE, DUE + 5)));
    let delivery = other(|one| Arrival { delivery: 1, generation: 2, ..one });
    assert_eq!(delivery.violations(), twice, "under another delivery id");
    let timer = |arrival: Arrival| {
        let of = arrival.of.map(|of| Occurrence { timer: 1, ..of });
        Arrival { of, generation: 2, ..arrival }
    };
    assert_eq!(other(timer).violations(), twice, "by another timer");
    let skipped = fired_but(TERMS, &[]).asked(ScheduleAsk::Pause, DUE - 5, Some(200));
    let skipped = skipped.asked(ScheduleAsk::Resume, DUE + 5, Some(200)).skipped(DUE, Reason::Paused);
    assert_eq!(skipped.violations(), [("fired and skipped", 1)]);
    assert_eq!(fired_but(TERMS, &[]).listed(DUE, Some(Reason::Paused)).found().fired_and_skipped, 1);
    let again = fired_but(TERMS, &[]).came(Arrival { attempt: 2, ..occurrence(DUE, DUE + 5) });
    assert_eq!(again.violations(), [("unexplained duplicates", 1)]);
    assert_eq!(again.fault(Affected::Nodes(vec![0]), DUE, DUE + 4).violations(), [], "its node was killed");
}

#[test]
fn what_is_no_nominal_time_is_stray() {
    let stray = |at: i64| fired_but(TERMS, &[]).fired(at, at).violations();
    for at in [DUE + 1, DUE - SECOND, DUE + 4 * SECOND] {
        assert_eq!(stray(at), [("stray", 1)], "{at}");
    }
    let before = ScheduleTerms { start_ms: 0, ..TERMS };
    assert_eq!(fired_but(before, &[]).fired(8000, 9050).violations(), [("stray", 1)], "before it was made");
    assert_eq!(fired_but(before, &[]).fired(9000, 9050).violations(), [], "it was made at that moment");
    let mut nobody = fired_but(TERMS, &[]).fired(DUE, DUE);
    nobody.history.schedules.clear();
    assert_eq!(nobody.violations(), [("stray", 1)]);
    let of = occurrence(DUE, DUE).of.map(|of| Occurrence { is_named_so: false, ..of });
    let named = fired_but(TERMS, &[DUE]).came(Arrival { of, ..occurrence(DUE, DUE) });
    assert_eq!(named.violations(), [("mistaken identity", 1)]);
    let shared = fired_but(TERMS, &[DUE]).came(Arrival { delivery: 11_000, ..occurrence(DUE, DUE) });
    assert_eq!(shared.violations(), [("mistaken identity", 1)], "a delivery id of two nominal times");
}

/// Paused from 10.5 s to 12.5 s.
fn paused(but: &[i64]) -> Seen {
    let seen = fired_but(TERMS, but).asked(ScheduleAsk::Pause, DUE + 500, Some(200));
    seen.asked(ScheduleAsk::Resume, DUE + 2500, Some(200))
}

#[test]
fn nominal_times_of_a_pause_are_skipped_and_no_others() {
    let both = [DUE + SECOND, DUE + 2 * SECOND];
    assert_eq!(paused(&both).violations(), [("nominals lost", 2)]);
    let skipped = paused(&both).told(both[0], both[1], 2, Reason::Paused);
    let found = skipped.found();
    assert_eq!((found.nominals_skipped, found.never_made, skipped.violations()), (2, 2, vec![]));
    let one = || paused(&both).skipped(both[0], Reason::Paused);
    assert_eq!(one().skipped(both[1], Reason::Paused).violations(), []);
    assert_eq!(one().listed(both[1], Some(Reason::Paused)).violations(), [], "the list says so");
    assert_eq!(one().fired(both[1], both[1]).violations(), [("not skipped", 1)]);
    let twice = one().told(both[0], both[1], 2, Reason::Paused);
    assert_eq!(twice.violations(), [("nominals made twice", 1)], "recorded twice");
    let mut again = skipped.clone_skips();
    assert_eq!(again.violations(), [], "one event, told twice");
    again.history.skips[1].count = 3;
    assert_eq!(again.found().untrue_skips, 1, "no rule has three there");
    let after =
        paused(&[both[0], both[1], DUE + 3 * SECOND]).told(both[0], DUE + 3 * SECOND, 3, Reason::Paused);
    assert_eq!(after.violations(), [("untrue skips", 1)]);
    let open = fired_but(TERMS, &both).asked(ScheduleAsk::Pause, DUE + 500, None);
    assert_eq!(open.told(both[0], both[1], 2, Reason::Paused).violations(), [], "it may have happened");
}

impl Seen {
    /// What was told once comes again.
    fn clone_skips(mut self) -> Self {
        self.history.skips.extend(self.history.skips.clone());
        self
    }
}

#[test]
fn between_a_call_and_its_answer_either_may_be_and_not_both() {
    let at = DUE + SECOND;
    let seen = |but: &[i64]| {
        let seen = fired_but(TERMS, but).asked(ScheduleAsk::Pause, at - 5, Some(200));
        seen.asked(ScheduleAsk::Resume, at + 30, Some(200))
    };
    assert_eq!(seen(&[]).violations(), []);
    assert_eq!(seen(&[at]).skipped(at, Reason::Paused).violations(), []);
    assert_eq!(seen(&[]).skipped(at, Reason::Paused).violations(), [("fired and skipped", 1)]);
    assert_eq!(seen(&[at]).violations(), [("nominals lost", 1)]);
}

#[test]
fn a_change_puts_other_nominal_times_in_place_of_those_ahead() {
    let rule = Rhythm { origin_ms: DUE + 500, step_ms: SECOND };
    let terms = ScheduleTerms { changed: Some(rule), ..TERMS };
    let changed = |at_ms| schedule(terms).asked(ScheduleAsk::Change, at_ms, Some(200)).fired(DUE, DUE);
    let news = [DUE + 1500, DUE + 2500];
    let fired = |seen: Seen, at: &[i64]| at.iter().fold(seen, |seen, at| seen.fired(*at, *at));
    let seen = || fired(changed(DUE + 700), &news);
    assert_eq!(seen().violations(), []);
    assert_eq!(seen().fired(DUE + SECOND, DUE + SECOND).violations(), [("stray", 1)], "of the former rule");
    assert_eq!(seen().fired(DUE + 500, DUE + 500).violations(), [("stray", 1)], "it was not the rule then");
    assert_eq!(fired(changed(DUE + 700), &news[..1]).violations(), [("nominals lost", 1)]);
    let near = || fired(changed(DUE + 990), &news);
    assert_eq!(near().violations(), [], "it was changed before its time");
    assert_eq!(near().fired(DUE + SECOND, DUE + SECOND).violations(), [], "or after");
    let claimed = || fired(changed(DUE + 930), &news).fired(DUE + SECOND, DUE + SECOND);
    assert_eq!(claimed().violations(), [], "it was claimed before");
    let handed_over = seen().fired(DUE + SECOND, DUE + SECOND);
    let handed_over = handed_over.fault(Affected::Orderly(vec![0]), DUE, DUE + 300);
    assert_eq!(handed_over.violations(), [], "claimed further ahead");
    let refused = fired_but(terms, &[]).asked(ScheduleAsk::Change, DUE + 700, Some(500));
    assert_eq!(refused.violations(), [("nonsense", 1)]);
}

#[test]
fn where_none_may_overlap_the_one_before_has_ended_or_it_is_skipped() {
    let terms = ScheduleTerms { is_exclusive: true, ..TERMS };
    let next = DUE + SECOND;
    let long = |took_ms: i64, but: &[i64]| {
        let seen = fired_but(terms, but);
        seen.came(Arrival { took_us: took_ms * MS, ..occurrence(DUE, DUE) })
    };
    assert_eq!(long(1200, &[DUE]).violations(), [("not skipped", 1)], "one ran over it");
    assert_eq!(long(1200, &[DUE, next]).skipped(next, Reason::Overlap).violations(), []);
    assert_eq!(long(900, &[DUE]).violations(), []);
    assert_eq!(long(900, &[DUE, next]).skipped(next, Reason::Overlap).violations(), [], "not recorded yet");
    let last = DUE + 3 * SECOND;
    let only = |but: &[i64]| fired_but(terms, but).skipped(last, Reason::Overlap);
    let but = [DUE + SECOND, DUE + 2 * SECOND, last];
    let untrue = only(&but).skipped(but[0], Reason::Overlap).skipped(but[1], Reason::Overlap);
    assert_eq!(untrue.violations(), [("untrue skips", 1)], "nothing had run for three seconds");
    let killed = untrue.fault(Affected::Nodes(vec![0]), DUE + 1000, DUE + 2000);
    assert_eq!(killed.violations(), [], "its node could not record it");
    let allowed = fired_but(TERMS, &[next]).skipped(next, Reason::Overlap);
    assert_eq!(allowed.violations(), [("untrue skips", 1)], "these may");
}

#[test]
fn what_was_missed_was_so_for_a_minute() {
    let seen = || fired_but(TERMS, &[DUE]).skipped(DUE, Reason::Missed);
    assert_eq!(seen().violations(), [("untrue skips", 1)]);
    let down = |until_ms| {
        let mut seen = seen().fault(Affected::Nodes(vec![0]), DUE - SECOND, until_ms);
        seen.history.skips[0].at_us = until_ms * MS;
        seen.violations()
    };
    assert_eq!(down(DUE + 59 * SECOND), [("untrue skips", 1)]);
    assert_eq!(down(DUE + 61 * SECOND), []);
}

#[test]
fn an_occurrence_that_only_the_sweep_brings_straggles() {
    let at = DUE + SECOND;
    let beside = (0..12).fold(fired_but(TERMS, &[at]).fired(at, at + 950), |seen, n| {
        let seen = seen.next().register(at + n * 20 - 120);
        let one = Arrival {
            due_ms: at + n * 20 - 120,
            delivery: 1 + n.unsigned_abs(),
            ..attempt_at(1, at + n * 20 - 120)
        };
        seen.arrival(one)
    });
    assert_eq!(beside.violations(), [("stragglers", 1)]);
    let died = beside.clone().fault(Affected::Nodes(vec![0]), at - 6000, at - 5500);
    assert_eq!(died.violations(), [("stragglers", 1)], "long before");
    let changed = died.clone().asked(ScheduleAsk::Change, at - 7500, Some(200));
    assert_eq!(
        changed.violations(),
        [("stragglers", 1)],
        "the pointers of what the call made were in the wheel"
    );
    let changed = died.asked(ScheduleAsk::Change, at - 6010, Some(200));
    assert_eq!(changed.violations(), [], "its node died between the commit of the call and the pointers");
}

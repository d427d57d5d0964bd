//! Planted anomalies: every class is found, a healthy history has none, and what is excused stays excused.

use super::*;

const MS: Us = 1000;
/// Due times in these histories, in milliseconds.
const DUE: i64 = 10_000;
const PATIENCE: Patience = Patience { recovery_us: 5_000 * MS, answer_us: 4_500 * MS };

/// Calls and arrivals of one timer after another, written as they happen.
#[derive(Default)]
struct Told {
    history: History,
    timer: u32,
}

impl Told {
    fn new() -> Self {
        let history = History { ended_us: 100_000 * MS, ..History::default() };
        Self { history, timer: 0 }
    }

    /// A timer registered at 1 s, due at 10 s.
    fn one() -> Self {
        Self::new().register(DUE)
    }

    fn call(mut self, ask: Ask, at_ms: i64, answer: Answer) -> Self {
        let (asked_us, answered_us) = (at_ms * MS, at_ms * MS + 500);
        self.history.calls.push(Call { timer: self.timer, ask, asked_us, answered_us, answer });
        self
    }

    fn register(self, due_ms: i64) -> Self {
        self.call(Ask::Register { due_ms }, 1000, Answer::Done { generation: 1 })
    }

    fn cancel(self, at_ms: i64, answer: Answer) -> Self {
        self.call(Ask::Cancel, at_ms, answer)
    }

    fn moved(self, at_ms: i64, due_ms: i64, answer: Answer) -> Self {
        self.call(Ask::Move { due_ms }, at_ms, answer)
    }

    fn arrival(mut self, arrival: Arrival) -> Self {
        self.history.arrivals.push(Arrival { timer: self.timer, ..arrival });
        self
    }

    /// An attempt of generation 1, of node 0, accepted.
    fn sent(self, attempt: i32, at_ms: i64) -> Self {
        self.arrival(attempt_at(attempt, at_ms))
    }

    fn failed(self, attempt: i32, at_ms: i64) -> Self {
        self.arrival(Arrival { replied: Some(500), ..attempt_at(attempt, at_ms) })
    }

    fn fault(mut self, struck: Struck, from_ms: i64, until_ms: i64) -> Self {
        let (from_us, until_us) = (from_ms * MS, until_ms * MS);
        self.history.faults.push(Fault { kind: "a fault", struck, from_us, until_us, landed: None });
        self
    }

    fn terms(mut self, terms: Terms) -> Self {
        self.history.terms.resize(self.timer as usize + 1, Terms::default());
        self.history.terms[self.timer as usize] = terms;
        self
    }

    fn next(mut self) -> Self {
        self.timer += 1;
        self
    }

    fn found(&self) -> Findings {
        check(&self.history, PATIENCE)
    }

    /// The findings that break a promise, by name.
    fn violations(&self) -> Vec<(&'static str, u64)> {
        self.found().violations(self.history.faults.len())
    }
}

fn attempt_at(attempt: i32, at_ms: i64) -> Arrival {
    let at_us = at_ms * MS + 300;
    let (timer, node, replied) = (0, Some(0), Some(204));
    Arrival { timer, generation: 1, attempt, delivery: 1, due_ms: DUE, node, at_us, replied, took_us: 300 }
}

#[test]
fn a_life_as_promised_has_no_findings() {
    let told = Told::one().sent(1, DUE);
    let found = told.found();
    assert_eq!((found.registered, found.delivered, found.healthy.count), (1, 1, 1));
    assert!(found.told.is_empty() && told.violations().is_empty());
    let told = Told::one().cancel(DUE - 5, Answer::Cancelled);
    assert_eq!((told.found().cancelled, told.found().raced, told.violations()), (1, 1, vec![]));
    let told = Told::one().failed(1, DUE).cancel(DUE + 10, Answer::Stopped);
    assert_eq!((told.found().cancelled, told.violations()), (1, vec![]));
    let told = Told::one().cancel(DUE, Answer::InFlight).sent(1, DUE + 1);
    assert_eq!((told.found().delivered, told.violations()), (1, vec![]));
    let told = Told::one().sent(1, DUE).cancel(DUE + 5, Answer::AlreadyFired);
    assert_eq!((told.found().delivered, told.violations()), (1, vec![]));
}

#[test]
fn a_timer_that_never_comes_is_lost() {
    assert_eq!(Told::one().violations(), [("lost", 1)]);
    assert_eq!(Told::one().failed(1, DUE).violations(), [("lost", 1)], "no attempt was accepted");
}

#[test]
fn a_registration_that_was_never_acknowledged_may_come_or_not() {
    let unknown = || Told::new().call(Ask::Register { due_ms: DUE }, 1000, Answer::Unknown);
    assert_eq!((unknown().violations(), unknown().found().registered), (vec![], 0));
    assert_eq!(unknown().sent(1, DUE).violations(), []);
}

#[test]
fn an_attempt_before_its_due_time_is_early() {
    let early = Arrival { at_us: DUE * MS - 1, ..attempt_at(1, DUE) };
    assert_eq!(Told::one().arrival(early).violations(), [("early", 1)]);
}

#[test]
fn an_attempt_that_nobody_asked_for_is_stray() {
    let told = Told::one().sent(1, DUE);
    let other_due = Arrival { due_ms: DUE + 1, ..attempt_at(1, DUE + 1) };
    assert_eq!(Told::one().arrival(other_due).violations(), [("stray", 1)]);
    let other_generation = Arrival { generation: 2, delivery: 2, ..attempt_at(1, DUE + 1) };
    assert_eq!(told.arrival(other_generation).violations(), [("stray", 1)]);
    assert_eq!(Told::new().sent(1, DUE).violations(), [("stray", 1)], "never registered");
}

#[test]
fn cancelled_and_yet_sent_is_untrue() {
    let untrue = [("untrue cancels", 1)];
    assert_eq!(Told::one().cancel(DUE - 5, Answer::Cancelled).sent(1, DUE).violations(), untrue);
    assert_eq!(Told::one().failed(1, DUE).cancel(DUE + 5, Answer::Cancelled).violations(), untrue);
}

#[test]
fn stopped_and_yet_sent_or_accepted_is_untrue() {
    let untrue = [("untrue cancels", 1)];
    let told = Told::one().failed(1, DUE).cancel(DUE + 5, Answer::Stopped).sent(2, DUE + 200);
    assert_eq!(told.violations(), untrue);
    assert_eq!(Told::one().sent(1, DUE).cancel(DUE + 5, Answer::Stopped).violations(), untrue);
}

#[test]
fn in_flight_lets_one_attempt_end_and_starts_no_other() {
    let told = Told::one().failed(1, DUE).cancel(DUE + 5, Answer::InFlight).failed(2, DUE + 200);
    assert_eq!(told.violations(), []);
    assert_eq!(told.failed(3, DUE + 400).violations(), [("untrue cancels", 1)]);
}

#[test]
fn already_fired_with_nothing_accepted_is_untrue() {
    let told = Told::one().cancel(DUE + 5, Answer::AlreadyFired).sent(1, DUE + 10);
    assert_eq!(told.violations(), [("untrue cancels", 1)]);
    let told = Told::one().moved(DUE + 5, DUE + 999, Answer::AlreadyFired).sent(1, DUE + 10);
    assert_eq!(told.violations(), [("untrue changes", 1)]);
}

#[test]
fn an_acknowledged_timer_is_found() {
    let told = Told::one().cancel(DUE - 5, Answer::NotFound).sent(1, DUE);
    assert_eq!(told.violations(), [("untrue cancels", 1)]);
    let told = Told::one().moved(DUE - 5, DUE + 999, Answer::NotFound).sent(1, DUE);
    assert_eq!(told.violations(), [("untrue changes", 1)]);
}

#[test]
fn a_change_that_still_fires_at_the_old_time_is_untrue() {
    let second = Arrival { generation: 2, delivery: 2, due_ms: DUE + 500, ..attempt_at(1, DUE + 500) };
    let told = Told::one().moved(DUE - 5, DUE + 500, Answer::Done { generation: 2 }).arrival(second);
    assert_eq!(told.violations(), []);
    assert_eq!(told.sent(1, DUE).violations(), [("untrue changes", 1)]);
}

#[test]
fn a_change_whose_answer_was_lost_may_have_been_made_or_not() {
    let lost = || Told::one().moved(DUE - 5, DUE + 500, Answer::Unknown);
    let second = Arrival { generation: 2, delivery: 2, due_ms: DUE + 500, ..attempt_at(1, DUE + 500) };
    assert_eq!(lost().sent(1, DUE).violations(), []);
    assert_eq!(lost().arrival(second).violations(), []);
    let again = lost().moved(DUE + 100, DUE + 500, Answer::Done { generation: 2 }).arrival(second);
    assert_eq!(again.violations(), []);
}

#[test]
fn a_repeat_is_explained_by_a_fault_of_its_first_node_and_by_nothing_else() {
    let twice = || Told::one().sent(1, DUE).sent(2, DUE + 3000);
    let node = |number| Struck::Nodes(vec![number]);
    assert_eq!(twice().violations(), [("unexplained duplicates", 1)]);
    for struck in [node(0), Struck::Cold, Struck::Machine] {
        let told = twice().fault(struck, DUE, DUE + 1000);
        assert_eq!((told.violations(), told.found().duplicates_explained), (vec![], 1));
    }
    for struck in [node(1), Struck::Hot, Struck::Receivers, Struck::Orderly(vec![0])] {
        let told = twice().fault(struck, DUE, DUE + 1000);
        assert_eq!(told.violations(), [("unexplained duplicates", 1)]);
    }
    let long_ago = twice().fault(node(0), 2000, 3000);
    assert_eq!(long_ago.violations(), [("unexplained duplicates", 1)]);
}

#[test]
fn one_attempt_number_is_sent_once() {
    let told = Told::one().sent(1, DUE).sent(1, DUE + 900).fault(Struck::Cold, DUE, DUE + 100);
    assert_eq!(told.violations(), [("unexplained duplicates", 1)]);
}

#[test]
fn a_retry_of_what_was_not_accepted_is_no_duplicate() {
    let told = Told::one().failed(1, DUE).sent(2, DUE + 300);
    assert_eq!((told.found().duplicates_explained, told.violations()), (0, vec![]));
    let late_answer = Arrival { took_us: 5_000 * MS, ..attempt_at(1, DUE) };
    assert_eq!(Told::one().arrival(late_answer).sent(2, DUE + 6000).violations(), [], "nobody waited for it");
    let silent = Arrival { replied: None, ..attempt_at(1, DUE) };
    assert_eq!(Told::one().arrival(silent).sent(2, DUE + 4000).violations(), []);
}

#[test]
fn more_than_chance_attempts_after_a_later_one_are_unfenced() {
    let mut told = Told::new().fault(Struck::Nodes(vec![0]), DUE, DUE + 3000);
    for timer in 0_u32..4 {
        let delivery = u64::from(timer) + 1;
        let other = Arrival { delivery, node: Some(1), ..attempt_at(2, DUE + 2000) };
        let late = Arrival { delivery, ..attempt_at(1, DUE + 3000) };
        told = told.register(DUE).arrival(other).arrival(late);
        let expected = if timer < 1 { vec![] } else { vec![("unfenced", u64::from(timer))] };
        assert_eq!(told.violations(), expected);
        told = told.next();
    }
}

#[test]
fn two_delivery_ids_for_one_firing_and_one_for_two_are_mistaken() {
    let told = Told::one().failed(1, DUE).arrival(Arrival { delivery: 2, ..attempt_at(2, DUE + 300) });
    assert_eq!(told.violations(), [("mistaken identity", 1)]);
    let told = Told::one().sent(1, DUE).next().register(DUE).sent(1, DUE);
    assert_eq!(told.violations(), [("mistaken identity", 1)]);
}

#[test]
fn a_straggler_is_late_alone_and_in_healthy_times() {
    let many = |late_ms: i64, late: u32, of: u32| {
        let mut told = Told::new();
        for timer in 0..of {
            let by = if timer < late { late_ms } else { 1 };
            let arrival = Arrival { delivery: u64::from(timer), ..attempt_at(1, DUE + by) };
            told = told.register(DUE).arrival(arrival).next();
        }
        told
    };
    assert_eq!(many(1200, 10, 50).violations(), [("stragglers", 10)]);
    assert_eq!(many(1200, 3, 50).violations(), [], "chance");
    assert_eq!(many(1200, 48, 50).violations(), [], "the machine stalled");
    assert_eq!(many(700, 10, 50).violations(), [], "not the sweep's grain");
    for struck in [Struck::Hot, Struck::Machine] {
        assert_eq!(many(1200, 10, 50).fault(struck, DUE - 100, DUE).violations(), []);
    }
    let bad_receivers = many(1200, 10, 50).fault(Struck::Receivers, 0, 99_999);
    assert_eq!(bad_receivers.violations(), [("stragglers", 10)]);
}

#[test]
fn what_is_due_when_the_machine_stands_still_does_not_straggle() {
    let mut told = Told::new();
    // More are due before it stands still than while it does.
    let due = (0..50).map(|n| DUE - 500 + 10 * n).chain((0..75).map(|n| DUE + 20 * n));
    for (delivery, due) in (1..).zip(due) {
        let goes_on = DUE + 1400;
        let at = if (DUE..goes_on).contains(&due) { goes_on } else { due };
        told = told.register(due).arrival(Arrival { delivery, due_ms: due, ..attempt_at(1, at) }).next();
    }
    let found = told.found();
    assert!(found.healthy.max_ms > 1300.0 && found.healthy.p50_ms < 600.0, "{:?}", found.healthy);
    assert_eq!(told.violations(), []);
}

#[test]
fn what_ends_by_its_terms_is_not_lost() {
    let refusing = Terms { attempts: Some(2), difficult: true, ..Terms::default() };
    let told = Told::one().terms(refusing).failed(1, DUE).failed(2, DUE + 200);
    assert_eq!((told.found().dead, told.violations()), (1, vec![]));
    let told = Told::one().terms(refusing).failed(1, DUE);
    assert_eq!(told.violations(), [("lost", 1)]);
    let gone = Arrival { replied: Some(410), ..attempt_at(1, DUE) };
    let told = Told::one().terms(Terms { attempts: Some(9), ..refusing }).arrival(gone);
    assert_eq!((told.found().dead, told.violations()), (1, vec![]));
    let expiring = Terms { grace_ms: Some(1500), ..Terms::default() };
    let told = Told::one().terms(expiring).fault(Struck::Cold, DUE, DUE + 3000);
    assert_eq!((told.found().expired, told.violations()), (1, vec![]));
    assert_eq!(Told::one().terms(expiring).violations(), [("lost", 1)], "nothing held it up");
    let moved = |answer| {
        let held_up = Told::one().terms(expiring).fault(Struck::Cold, DUE, DUE + 3000);
        held_up.moved(DUE + 1000, DUE + 40_000, answer)
    };
    let untold = moved(Answer::Unknown);
    assert_eq!((untold.found().expired, untold.violations()), (1, vec![]), "maybe it was never moved");
    let told = moved(Answer::Done { generation: 2 });
    assert_eq!(told.violations(), [("lost", 1)], "nothing held it up where it was moved to");
    let back = Told::one().terms(expiring).moved(DUE - 1000, DUE - 2000, Answer::Done { generation: 2 });
    assert_eq!((back.found().expired, back.violations()), (1, vec![]), "it was told when it was late");
}

#[test]
fn an_answer_that_makes_no_sense_is_told() {
    assert_eq!(Told::one().cancel(5000, Answer::Nonsense(500)).sent(1, DUE).violations(), [("nonsense", 1)]);
}

#[test]
fn the_sum_of_what_became_is_what_was_registered() {
    let told = Told::one().sent(1, DUE).next().register(DUE).cancel(9000, Answer::Cancelled).next();
    let found = told.register(DUE).next().register(200_000).found();
    assert_eq!(found.registered, found.delivered + found.cancelled + found.lost + found.pending);
    assert_eq!((found.registered, found.lost, found.pending), (4, 1, 1));
}

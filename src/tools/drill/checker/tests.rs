//! Planted anomalies: every class is found, a healthy history has none, and what is excused stays excused.

mod brokers;
mod clock;
mod places;
mod recurring;
mod restored;

use super::*;

const MS: Micros = 1000;
/// Due times in these histories, in milliseconds.
const DUE: i64 = 10_000;
const LIMITS: Limits = Limits { recovery_us: 5_000 * MS, answer_us: 4_500 * MS };

/// Calls and arrivals of one timer after another, written as they happen.
#[derive(Clone, Default)]
struct Seen {
    history: History,
    timer: u32,
}

impl Seen {
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

    fn fault(mut self, affected: Affected, from_ms: i64, until_ms: i64) -> Self {
        let (from_us, until_us) = (from_ms * MS, until_ms * MS);
        self.history.faults.push(Fault { kind: "a fault", affected, from_us, until_us, landed: None });
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
        check(&self.history, LIMITS)
    }

    /// The findings that break a promise, by name.
    fn violations(&self) -> Vec<(&'static str, u64)> {
        self.found().violations()
    }
}

fn attempt_at(attempt: i32, at_ms: i64) -> Arrival {
    let at_us = at_ms * MS + 300;
    let (timer, node, replied) = (0, Some(0), Some(204));
    Arrival {
        timer,
        generation: 1,
        attempt,
        delivery: 1,
        due_ms: DUE,
        moment_ms: 0,
        merged: false,
        of: None,
        node,
        broker: None,
        at_us,
        replied,
        took_us: 300,
    }
}

#[test]
fn a_life_as_promised_has_no_findings() {
    let seen = Seen::one().sent(1, DUE);
    let found = seen.found();
    assert_eq!((found.registered, found.delivered, found.healthy.count), (1, 1, 1));
    assert!(found.examples.is_empty() && seen.violations().is_empty());
    let seen = Seen::one().cancel(DUE - 5, Answer::Cancelled);
    assert_eq!((seen.found().cancelled, seen.found().raced, seen.violations()), (1, 1, vec![]));
    let seen = Seen::one().failed(1, DUE).cancel(DUE + 10, Answer::Stopped);
    assert_eq!((seen.found().cancelled, seen.violations()), (1, vec![]));
    let seen = Seen::one().cancel(DUE, Answer::InFlight).sent(1, DUE + 1);
    assert_eq!((seen.found().delivered, seen.violations()), (1, vec![]));
    let seen = Seen::one().sent(1, DUE).cancel(DUE + 5, Answer::AlreadyFired);
    assert_eq!((seen.found().delivered, seen.violations()), (1, vec![]));
}

#[test]
fn a_timer_that_never_comes_is_lost() {
    assert_eq!(Seen::one().violations(), [("lost", 1)]);
    assert_eq!(Seen::one().failed(1, DUE).violations(), [("lost", 1)], "no attempt was accepted");
}

#[test]
fn a_registration_that_was_never_acknowledged_may_come_or_not() {
    let unknown = || Seen::new().call(Ask::Register { due_ms: DUE }, 1000, Answer::Unknown);
    assert_eq!((unknown().violations(), unknown().found().registered), (vec![], 0));
    assert_eq!(unknown().sent(1, DUE).violations(), []);
}

#[test]
fn an_attempt_before_its_due_time_is_early() {
    let early = Arrival { at_us: DUE * MS - 1, ..attempt_at(1, DUE) };
    assert_eq!(Seen::one().arrival(early).violations(), [("early", 1)]);
}

#[test]
fn an_attempt_that_nobody_asked_for_is_stray() {
    let seen = Seen::one().sent(1, DUE);
    let other_due = Arrival { due_ms: DUE + 1, ..attempt_at(1, DUE + 1) };
    assert_eq!(Seen::one().arrival(other_due).violations(), [("stray", 1)]);
    let other_generation = Arrival { generation: 2, delivery: 2, ..attempt_at(1, DUE + 1) };
    assert_eq!(seen.arrival(other_generation).violations(), [("stray", 1)]);
    assert_eq!(Seen::new().sent(1, DUE).violations(), [("stray", 1)], "never registered");
}

#[test]
fn cancelled_and_yet_sent_is_untrue() {
    let untrue = [("untrue cancels", 1)];
    assert_eq!(Seen::one().cancel(DUE - 5, Answer::Cancelled).sent(1, DUE).violations(), untrue);
    assert_eq!(Seen::one().failed(1, DUE).cancel(DUE + 5, Answer::Cancelled).violations(), untrue);
}

#[test]
fn stopped_and_yet_sent_or_accepted_is_untrue() {
    let untrue = [("untrue cancels", 1)];
    let seen = Seen::one().failed(1, DUE).cancel(DUE + 5, Answer::Stopped).sent(2, DUE + 200);
    assert_eq!(seen.violations(), untrue);
    assert_eq!(Seen::one().sent(1, DUE).cancel(DUE + 5, Answer::Stopped).violations(), untrue);
}

#[test]
fn in_flight_lets_one_attempt_end_and_starts_no_other() {
    let seen = Seen::one().failed(1, DUE).cancel(DUE + 5, Answer::InFlight).failed(2, DUE + 200);
    assert_eq!(seen.violations(), []);
    assert_eq!(seen.failed(3, DUE + 400).violations(), [("untrue cancels", 1)]);
}

#[test]
fn already_fired_with_nothing_accepted_is_untrue() {
    let seen = Seen::one().cancel(DUE + 5, Answer::AlreadyFired).sent(1, DUE + 10);
    assert_eq!(seen.violations(), [("untrue cancels", 1)]);
    let seen = Seen::one().moved(DUE + 5, DUE + 999, Answer::AlreadyFired).sent(1, DUE + 10);
    assert_eq!(seen.violations(), [("untrue changes", 1)]);
}

#[test]
fn an_acknowledged_timer_is_found() {
    let seen = Seen::one().cancel(DUE - 5, Answer::NotFound).sent(1, DUE);
    assert_eq!(seen.violations(), [("untrue cancels", 1)]);
    let seen = Seen::one().moved(DUE - 5, DUE + 999, Answer::NotFound).sent(1, DUE);
    assert_eq!(seen.violations(), [("untrue changes", 1)]);
}

#[test]
fn a_change_that_still_fires_at_the_old_time_is_untrue() {
    let second = Arrival { generation: 2, delivery: 2, due_ms: DUE + 500, ..attempt_at(1, DUE + 500) };
    let seen = Seen::one().moved(DUE - 5, DUE + 500, Answer::Done { generation: 2 }).arrival(second);
    assert_eq!(seen.violations(), []);
    assert_eq!(seen.sent(1, DUE).violations(), [("untrue changes", 1)]);
}

#[test]
fn a_change_whose_answer_was_lost_may_have_been_made_or_not() {
    let lost = || Seen::one().moved(DUE - 5, DUE + 500, Answer::Unknown);
    let second = Arrival { generation: 2, delivery: 2, due_ms: DUE + 500, ..attempt_at(1, DUE + 500) };
    assert_eq!(lost().sent(1, DUE).violations(), []);
    assert_eq!(lost().arrival(second).violations(), []);
    let again = lost().moved(DUE + 100, DUE + 500, Answer::Done { generation: 2 }).arrival(second);
    assert_eq!(again.violations(), []);
}

#[test]
fn a_repeat_is_explained_by_a_fault_of_its_first_node_and_by_nothing_else() {
    let twice = || Seen::one().sent(1, DUE).sent(2, DUE + 3000);
    let node = |number| Affected::Nodes(vec![number]);
    assert_eq!(twice().violations(), [("unexplained duplicates", 1)]);
    for affected in [node(0), Affected::Paused(vec![0]), Affected::Cold, Affected::Machine] {
        let seen = twice().fault(affected, DUE, DUE + 1000);
        assert_eq!((seen.violations(), seen.found().duplicates_explained), (vec![], 1));
    }
    for affected in [
        node(1),
        Affected::Paused(vec![1]),
        Affected::Hot,
        Affected::Receivers,
        Affected::Orderly(vec![0]),
        Affected::Slow(vec![0]),
        Affected::Callers,
        Affected::Rows,
        Affected::Ends,
    ] {
        let seen = twice().fault(affected, DUE, DUE + 1000);
        assert_eq!(seen.violations(), [("unexplained duplicates", 1)]);
    }
}

#[test]
fn a_repeat_is_explained_only_by_a_fault_that_covers_the_recording() {
    let node = || Affected::Nodes(vec![0]);
    // Accepted at 10 s, and sent again ten seconds later.
    let twice = || Seen::one().sent(1, DUE).sent(2, DUE + 10_000);
    for (from, until) in [(2000, 3000), (DUE + 5000, DUE + 6000), (DUE + 10_500, DUE + 11_000)] {
        let seen = twice().fault(node(), from, until);
        assert_eq!(seen.violations(), [("unexplained duplicates", 1)], "{from} to {until}");
    }
    for (from, until) in [(DUE - 2000, DUE - 1000), (DUE - 50, DUE + 50), (DUE + 1500, DUE + 4000)] {
        let seen = twice().fault(node(), from, until);
        assert_eq!((seen.violations(), seen.found().duplicates_explained), (vec![], 1), "{from} to {until}");
    }
    // The receiver took 4 s to accept it: only then is there something to record.
    let slow = Arrival { took_us: 4_000 * MS, ..attempt_at(1, DUE) };
    let seen = Seen::one().arrival(slow).sent(2, DUE + 10_000).fault(node(), DUE + 5000, DUE + 6000);
    assert_eq!((seen.violations(), seen.found().duplicates_explained), (vec![], 1));
}

#[test]
fn a_repeat_is_explained_for_every_attempt_that_was_accepted_before() {
    let twice = |second_node| {
        let second = Arrival { node: Some(second_node), ..attempt_at(2, DUE + 3000) };
        let faulted =
            Seen::one().sent(1, DUE).arrival(second).fault(Affected::Nodes(vec![0]), DUE, DUE + 1000);
        faulted.sent(3, DUE + 6000)
    };
    assert_eq!(twice(1).violations(), [("unexplained duplicates", 1)], "nothing kept node 1 from recording");
    let both = twice(1).fault(Affected::Nodes(vec![1]), DUE + 3000, DUE + 4000);
    assert_eq!((both.violations(), both.found().duplicates_explained), (vec![], 2));
}

#[test]
fn no_fault_explains_what_a_stranger_sent() {
    let stranger = Arrival { node: None, ..attempt_at(1, DUE) };
    for affected in [Affected::Nodes(vec![0]), Affected::Cold, Affected::Machine] {
        let seen = Seen::one().arrival(stranger).sent(2, DUE + 3000).fault(affected, DUE, DUE + 1000);
        assert_eq!(seen.violations(), [("unexplained duplicates", 1)]);
    }
}

#[test]
fn one_attempt_number_is_sent_once() {
    let seen = Seen::one().sent(1, DUE).sent(1, DUE + 900).fault(Affected::Cold, DUE, DUE + 100);
    assert_eq!(seen.violations(), [("unexplained duplicates", 1)]);
}

#[test]
fn a_retry_of_what_was_not_accepted_is_no_duplicate() {
    let seen = Seen::one().failed(1, DUE).sent(2, DUE + 300);
    assert_eq!((seen.found().duplicates_explained, seen.violations()), (0, vec![]));
    let late_answer = Arrival { took_us: 5_000 * MS, ..attempt_at(1, DUE) };
    assert_eq!(Seen::one().arrival(late_answer).sent(2, DUE + 6000).violations(), [], "nobody waited for it");
    let silent = Arrival { replied: None, ..attempt_at(1, DUE) };
    assert_eq!(Seen::one().arrival(silent).sent(2, DUE + 4000).violations(), []);
}

#[test]
fn each_standstill_explains_one_attempt_after_a_later_one() {
    let unfenced = |faults: &[(Affected, i64, i64)], count: u32| {
        let mut seen = Seen::new();
        for (affected, from, until) in faults {
            seen = seen.fault(affected.clone(), *from, *until);
        }
        for timer in 0..count {
            let delivery = u64::from(timer) + 1;
            let other = Arrival { delivery, node: Some(1), ..attempt_at(2, DUE + 2000) };
            let late = Arrival { delivery, ..attempt_at(1, DUE + 3000) };
            seen = seen.register(DUE).arrival(other).arrival(late).next();
        }
        (seen.violations(), seen.found().unfenced_explained)
    };
    let slept = |node| (Affected::Paused(vec![node]), DUE, DUE + 2900);
    assert_eq!(unfenced(&[slept(0)], 1), (vec![], 1));
    assert_eq!(unfenced(&[slept(0)], 3), (vec![("unfenced", 2)], 1));
    let machine = (Affected::Machine, DUE + 1500, DUE + 2900);
    assert_eq!(unfenced(&[slept(0), machine.clone()], 2), (vec![], 2));
    assert_eq!(unfenced(&[machine], 1), (vec![], 1));
    let long_ago = (Affected::Paused(vec![0]), 2000, 3000);
    let dead = (Affected::Nodes(vec![0]), DUE, DUE + 2900);
    for other in [slept(1), dead, long_ago, (Affected::Cold, DUE, DUE + 2900)] {
        assert_eq!(unfenced(std::slice::from_ref(&other), 1), (vec![("unfenced", 1)], 0), "{other:?}");
    }
}

#[test]
fn two_delivery_ids_for_one_firing_and_one_for_two_are_mistaken() {
    let seen = Seen::one().failed(1, DUE).arrival(Arrival { delivery: 2, ..attempt_at(2, DUE + 300) });
    assert_eq!(seen.violations(), [("mistaken identity", 1)]);
    let seen = Seen::one().sent(1, DUE).next().register(DUE).sent(1, DUE);
    assert_eq!(seen.violations(), [("mistaken identity", 1)]);
}

#[test]
fn a_straggler_is_late_alone_and_in_healthy_times() {
    let many = |late_ms: i64, late: u32, of: u32| {
        let mut seen = Seen::new();
        for timer in 0..of {
            let by = if timer < late { late_ms } else { 1 };
            let arrival = Arrival { delivery: u64::from(timer), ..attempt_at(1, DUE + by) };
            seen = seen.register(DUE).arrival(arrival).next();
        }
        seen
    };
    assert_eq!(many(1200, 10, 50).violations(), [("stragglers", 10)]);
    assert_eq!(many(1200, 1, 50).violations(), [("stragglers", 1)], "nothing explains it");
    assert_eq!(many(700, 10, 50).violations(), [], "not the sweep's grain");
    for affected in [Affected::Hot, Affected::Machine] {
        assert_eq!(many(1200, 10, 50).fault(affected, DUE - 100, DUE).violations(), []);
    }
    // All were registered at 1 s.
    for (affected, from, until) in [
        (Affected::Nodes(vec![0]), 1200, 1900),
        (Affected::Paused(vec![2]), 400, 1000),
        (Affected::Cold, 900, 1100),
    ] {
        let seen = many(1200, 10, 50).fault(affected, from, until);
        assert_eq!(seen.violations(), [], "its pointer may have gone with the node that wrote it");
    }
    for (affected, from, until) in [
        (Affected::Nodes(vec![0]), 2100, 2900),
        (Affected::Hot, 900, 1100),
        (Affected::Slow(vec![0]), 900, 1100),
    ] {
        let seen = many(1200, 10, 50).fault(affected, from, until);
        assert_eq!(seen.violations(), [("stragglers", 10)]);
    }
    let bad_receivers = many(1200, 10, 50).fault(Affected::Receivers, 0, 99_999);
    assert_eq!(bad_receivers.violations(), [("stragglers", 10)]);
}

/// Timers due at 10 s, all of them late by so many milliseconds.
fn all_late_by(late_ms: i64) -> Seen {
    (0..50_u32).fold(Seen::new(), |seen, timer| {
        let arrival = Arrival { delivery: u64::from(timer), ..attempt_at(1, DUE + late_ms) };
        seen.register(DUE).arrival(arrival).next()
    })
}

#[test]
fn what_is_late_together_in_healthy_times_is_late() {
    assert_eq!(all_late_by(850).violations(), []);
    assert_eq!(all_late_by(1200).violations(), [("late", 50)]);
    let others = [Affected::Receivers, Affected::Callers, Affected::Slow(vec![0]), Affected::Rows];
    for affected in others {
        let seen = all_late_by(1200).fault(affected, 0, 99_999);
        assert_eq!(seen.violations(), [("late", 50)], "receivers that are well are not to wait for others");
    }
    for affected in [Affected::Machine, Affected::Cold, Affected::Ends, Affected::Nodes(vec![0])] {
        assert_eq!(all_late_by(1200).fault(affected, DUE - 100, DUE).violations(), []);
    }
    // Slow calls say that the service is slow, not that the machine is.
    let mut seen = all_late_by(1200);
    let (asked_us, answered_us) = (DUE * MS, (DUE + 1100) * MS);
    let (ask, answer) = (Ask::Register { due_ms: 200_000 }, Answer::Done { generation: 1 });
    seen.history.calls.push(Call { timer: seen.timer, ask, asked_us, answered_us, answer });
    assert_eq!(seen.violations(), [("late", 50)]);
}

#[test]
fn lateness_is_excused_by_a_machine_that_was_busy_for_half_of_it() {
    let with = |held_up: &[(i64, i64)]| {
        let mut seen = all_late_by(1200);
        // One in turn held everything up or was a load of others.
        let spans = || held_up.iter().map(|(from, until)| (from * MS, until * MS));
        seen.history.held_up = spans().step_by(2).collect();
        seen.history.crowded = spans().skip(1).step_by(2).collect();
        seen.violations()
    };
    // 1,200.3 ms late: 601 ms are half of it.
    assert_eq!(with(&[(DUE, DUE + 601)]), []);
    assert_eq!(with(&[(DUE - 500, DUE + 300), (DUE + 400, DUE + 500), (DUE + 990, DUE + 9000)]), []);
    assert_eq!(
        with(&[(DUE, DUE + 400), (DUE, DUE + 400), (DUE + 100, DUE + 500)]),
        [("late", 50)],
        "one time"
    );
    for too_little in [(DUE, DUE + 599), (DUE - 5000, DUE + 300), (DUE + 1000, DUE + 9000)] {
        assert_eq!(with(&[too_little]), [("late", 50)], "{too_little:?}");
    }
}

#[test]
fn what_is_due_when_the_machine_stands_still_does_not_straggle() {
    let mut seen = Seen::new();
    // More are due before it stands still than while it does.
    let due = (0..50).map(|n| DUE - 500 + 10 * n).chain((0..75).map(|n| DUE + 20 * n));
    for (delivery, due) in (1..).zip(due) {
        let goes_on = DUE + 1400;
        let at = if (DUE..goes_on).contains(&due) { goes_on } else { due };
        seen = seen.register(due).arrival(Arrival { delivery, due_ms: due, ..attempt_at(1, at) }).next();
    }
    let found = seen.found();
    assert!(found.healthy.max_ms > 1300.0 && found.healthy.p50_ms < 600.0, "{:?}", found.healthy);
    assert_eq!((found.stragglers, found.late), (0, 26), "as nobody saw it stand still");
    seen.history.held_up = vec![(DUE * MS, (DUE + 1400) * MS)];
    assert_eq!(seen.violations(), []);
}

/// Ten of fifty are late by 1.2 s.
fn ten_straggle() -> Seen {
    (0..50_u32).fold(Seen::new(), |seen, timer| {
        let by = if timer < 10 { 1200 } else { 1 };
        let arrival = Arrival { delivery: u64::from(timer), ..attempt_at(1, DUE + by) };
        seen.register(DUE).arrival(arrival).next()
    })
}

#[test]
fn a_straggler_is_excused_while_half_of_the_calls_are_slow() {
    let with_calls = |slow: u32, quick: u32| {
        let mut seen = ten_straggle();
        for number in 0..slow + quick {
            let took_ms = if number < slow { 450 } else { 20 };
            let asked_us = (DUE + 600) * MS;
            let (ask, answer) = (Ask::Register { due_ms: 200_000 }, Answer::Done { generation: 1 });
            let answered_us = asked_us + took_ms * MS;
            seen.history.calls.push(Call { timer: seen.timer, ask, asked_us, answered_us, answer });
            seen = seen.next();
        }
        seen.violations()
    };
    assert_eq!(with_calls(5, 5), []);
    assert_eq!(with_calls(4, 6), [("stragglers", 10)]);
    assert_eq!(with_calls(0, 0), [("stragglers", 10)], "no call says that the service was slow");
}

#[test]
fn a_burst_registered_after_its_due_time_is_late_together_and_does_not_straggle() {
    let mut seen = Seen::new();
    for number in 0..100_u32 {
        let delivery = u64::from(number) + 1;
        // Half are registered in time and fire in time; half are acknowledged 5 s after their due time, all at once,
        // and come a second after that.
        let late = number % 2 == 1;
        let at = if late { DUE + 6200 } else { DUE };
        let asked_at = if late { DUE + 5000 } else { 1000 };
        let ask = Ask::Register { due_ms: DUE };
        seen = seen.call(ask, asked_at, Answer::Done { generation: 1 });
        seen = seen.arrival(Arrival { delivery, ..attempt_at(1, at) }).next();
    }
    assert_eq!(seen.violations(), [("late", 50)]);
}

#[test]
fn what_ends_by_its_terms_is_not_lost() {
    let refusing = Terms { attempts: Some(2), difficult: true, ..Terms::default() };
    let seen = Seen::one().terms(refusing).failed(1, DUE).failed(2, DUE + 200);
    assert_eq!((seen.found().dead, seen.violations()), (1, vec![]));
    let seen = Seen::one().terms(refusing).failed(1, DUE);
    assert_eq!(seen.violations(), [("lost", 1)]);
    let gone = Arrival { replied: Some(410), ..attempt_at(1, DUE) };
    let seen = Seen::one().terms(Terms { attempts: Some(9), ..refusing }).arrival(gone);
    assert_eq!((seen.found().dead, seen.violations()), (1, vec![]));
    let expiring = Terms { grace_ms: Some(1500), ..Terms::default() };
    let seen = Seen::one().terms(expiring).fault(Affected::Cold, DUE, DUE + 3000);
    assert_eq!((seen.found().expired, seen.violations()), (1, vec![]));
    assert_eq!(Seen::one().terms(expiring).violations(), [("lost", 1)], "nothing held it up");
    let moved = |answer| {
        let held_up = Seen::one().terms(expiring).fault(Affected::Cold, DUE, DUE + 3000);
        held_up.moved(DUE + 1000, DUE + 40_000, answer)
    };
    let unanswered = moved(Answer::Unknown);
    assert_eq!(
        (unanswered.found().expired, unanswered.violations()),
        (1, vec![]),
        "maybe it was never moved"
    );
    let seen = moved(Answer::Done { generation: 2 });
    assert_eq!(seen.violations(), [("lost", 1)], "nothing held it up where it was moved to");
    let back = Seen::one().terms(expiring).moved(DUE - 1000, DUE - 2000, Answer::Done { generation: 2 });
    assert_eq!((back.found().expired, back.violations()), (1, vec![]), "it was seen when it was late");
}

#[test]
fn an_answer_that_the_contract_does_not_have_is_a_violation() {
    assert_eq!(Seen::one().cancel(5000, Answer::Nonsense(500)).sent(1, DUE).violations(), [("nonsense", 1)]);
}

#[test]
fn the_sum_of_what_became_is_what_was_registered() {
    let seen = Seen::one().sent(1, DUE).next().register(DUE).cancel(9000, Answer::Cancelled).next();
    let found = seen.register(DUE).next().register(200_000).found();
    assert_eq!(found.registered, found.delivered + found.cancelled + found.lost + found.pending);
    assert_eq!((found.registered, found.lost, found.pending), (4, 1, 1));
}

#[test]
fn a_merged_set_has_one_delivery_and_nobody_joins_it() {
    let in_set = |attempt, at| Arrival { merged: true, moment_ms: DUE + 50, ..attempt_at(attempt, at) };
    let failed = |at| Arrival { replied: Some(500), ..in_set(1, at) };
    let seen = Seen::one().arrival(failed(DUE + 50)).arrival(in_set(2, DUE + 300));
    let both = seen.next().register(DUE).arrival(failed(DUE + 50)).arrival(in_set(2, DUE + 300));
    assert_eq!(both.violations(), []);
    assert_eq!((both.found().sets, both.found().merged, both.found().delivered), (1, 2, 2));
    // Cancelled after the first attempt, it is left out; one that was not there is not let in.
    let seen = Seen::one().arrival(failed(DUE + 50)).arrival(in_set(2, DUE + 300));
    let left = seen.next().register(DUE).arrival(failed(DUE + 50)).cancel(DUE + 200, Answer::Stopped);
    assert_eq!(left.violations(), []);
    let joined = left.next().register(DUE).arrival(in_set(2, DUE + 300));
    assert_eq!(joined.violations(), [("joined", 1)]);
    // Before its moment nothing of it comes, though the timer itself is due.
    assert_eq!(Seen::one().arrival(in_set(1, DUE + 20)).violations(), [("early", 1)]);
}

//! Timers for queues: what workers may have, and what they are told.

use super::*;
use crate::tools::drill::history::{Giving, Looks, Places, Settled, Settlement, Wish};

const SECOND: Micros = 1_000_000;
const TERMS: Places = Places { times: 1, repeat: false, is_all_seen: false, within_us: SECOND };

/// A timer for a queue, registered at 1 s and due at 10 s.
fn task(places: Places) -> Seen {
    Seen::one().terms(Terms { places: Some(places), ..Terms::default() })
}

/// What each worker was given for two seconds; the token is named by delivery and attempt.
fn token(delivery: u64, attempt: i32) -> u64 {
    delivery * 100 + attempt.unsigned_abs() as u64
}

impl Seen {
    /// A worker reads at a moment that it has a place, which was given out 5 ms before.
    fn given(self, worker: u32, delivery: u64, attempt: i32, at_ms: i64) -> Self {
        self.given_at(worker, delivery, attempt, (at_ms - 5, at_ms))
    }

    fn given_at(mut self, worker: u32, delivery: u64, attempt: i32, (given, read): (i64, i64)) -> Self {
        let (timer, due_ms, given_us) = (self.timer, DUE, given * MS);
        let (token, until_us, at_us) = (token(delivery, attempt), given_us + 2 * SECOND, read * MS);
        let giving = Giving { timer, worker, delivery, attempt, token, due_ms, given_us, until_us, at_us };
        self.history.givings.push(giving);
        self
    }

    /// The last that was given is settled, within a millisecond.
    fn settled(mut self, wish: Wish, at_ms: i64, answer: Settled) -> Self {
        let giving = self.history.givings.last().expect("one was given");
        let (timer, token, asked_us) = (giving.timer, giving.token, at_ms * MS);
        let answered_us = asked_us + MS;
        self.history.settlements.push(Settlement { timer, token, wish, asked_us, answered_us, answer });
        self
    }

    fn acked(self, at_ms: i64) -> Self {
        self.settled(Wish::Ack, at_ms, Settled::Counts)
    }
}

#[test]
fn what_is_fetched_and_acked_in_order_is_delivered() {
    let one = task(TERMS).given(1, 7, 1, DUE + 20).acked(DUE + 100);
    let found = one.found();
    assert_eq!((found.delivered, found.given, found.settled, one.violations()), (1, 1, 1, vec![]));
    assert!((found.fetched.p50_ms - 20.0).abs() < 0.1, "{:?}", found.fetched);
    let lost = task(TERMS).given(1, 7, 1, DUE + 20).given(2, 7, 2, DUE + 2500).acked(DUE + 2600);
    assert_eq!(
        (lost.found().delivered, lost.violations()),
        (1, vec![]),
        "its lease ended, another has done it"
    );
    let two = task(Places { times: 2, ..TERMS }).given(1, 7, 1, DUE + 20).acked(DUE + 50);
    let two = two.given(2, 8, 1, DUE + 30).acked(DUE + 60);
    assert_eq!((two.found().delivered, two.violations()), (1, vec![]));
    let dead = task(TERMS).given(1, 7, 1, DUE + 20).settled(Wish::Dead, DUE + 30, Settled::Counts);
    assert_eq!((dead.found().dead, dead.violations()), (1, vec![]));
    let doubtful = task(TERMS).given(1, 7, 1, DUE + 20).settled(Wish::Ack, DUE + 30, Settled::Unknown);
    assert_eq!((doubtful.found().delivered, doubtful.violations()), (1, vec![]), "nobody can say more");
}

#[test]
fn a_place_that_nobody_settles_is_lost() {
    assert_eq!(task(TERMS).violations(), [("lost", 1)]);
    let unsettled = task(TERMS).given(1, 7, 1, DUE + 20);
    assert_eq!(unsettled.violations(), [("lost", 1)]);
    let one_of_two = task(Places { times: 2, ..TERMS }).given(1, 7, 1, DUE + 20).acked(DUE + 30);
    assert_eq!(one_of_two.violations(), [("lost", 1)]);
    let late = unsettled.settled(Wish::Ack, DUE + 2100, Settled::Lost);
    assert_eq!(late.violations(), [("lost", 1)], "what was told lost counts for nothing");
}

#[test]
fn a_place_is_given_to_one_worker_at_a_time() {
    let at_once = task(TERMS).given(1, 7, 1, DUE + 20).given(2, 7, 2, DUE + 100).acked(DUE + 200);
    assert_eq!(at_once.violations(), [("given twice", 1)]);
    let settled = task(TERMS).given(1, 7, 1, DUE + 20).acked(DUE + 30).given(2, 7, 2, DUE + 2500);
    assert_eq!(settled.acked(DUE + 2600).violations(), [("given twice", 1)]);
    let one_number = task(TERMS).given(1, 7, 1, DUE + 20).given(2, 7, 2, DUE + 2100);
    let one_number = one_number.given_at(3, 7, 2, (DUE + 4300, DUE + 4300));
    assert_eq!(one_number.acked(DUE + 4400).found().given_twice, 0, "one lease, told twice");
    let back = task(TERMS).given(1, 7, 1, DUE + 20);
    let back = back.settled(Wish::Retry(SECOND), DUE + 30, Settled::Counts);
    assert_eq!(back.given(2, 7, 2, DUE + 1100).acked(DUE + 1200).violations(), []);
    let early = task(TERMS).given(1, 7, 1, DUE + 20);
    let early = early.settled(Wish::Retry(SECOND), DUE + 30, Settled::Counts);
    let early = early.given(2, 7, 2, DUE + 500).acked(DUE + 600);
    assert_eq!(early.violations(), [("given twice", 1)], "before the wait that its worker asked for");
    let extended = task(TERMS).given(1, 7, 1, DUE + 20);
    let extended = extended.settled(Wish::Extend(2 * SECOND), DUE + 1000, Settled::Counts);
    let extended = extended.given(2, 7, 2, DUE + 2100).acked(DUE + 2200);
    assert_eq!(extended.violations(), [("given twice", 1)]);
}

#[test]
fn a_worker_has_a_timer_once_or_one_place_after_the_other() {
    let twice = |repeat, second| {
        let seen = task(Places { times: 2, repeat, ..TERMS }).given(1, 7, 1, DUE + 20).acked(DUE + 300);
        seen.given(1, 8, 1, second).acked(second + 10)
    };
    assert_eq!(twice(false, DUE + 400).violations(), [("given twice", 1)]);
    assert_eq!(twice(true, DUE + 400).violations(), []);
    let lost = task(Places { times: 2, ..TERMS }).given(1, 7, 1, DUE + 20).given(1, 8, 1, DUE + 100);
    assert_eq!(lost.found().given_twice, 1, "two at once");
}

#[test]
fn there_are_as_many_places_as_were_asked_for() {
    let three = task(Places { times: 2, ..TERMS }).given(1, 7, 1, DUE + 20).acked(DUE + 30);
    let three = three.given(2, 8, 1, DUE + 20).acked(DUE + 30).given(3, 9, 1, DUE + 20).acked(DUE + 30);
    assert_eq!(three.violations(), [("too many places", 1)]);
    let early = task(TERMS).given(1, 7, 1, DUE - 1).acked(DUE + 30);
    assert_eq!(early.violations(), [("early", 1)]);
    let two_timers = task(TERMS).given(1, 7, 1, DUE + 20).acked(DUE + 30).next().register(DUE);
    let two_timers = two_timers.terms(Terms { places: Some(TERMS), ..Terms::default() });
    let mut two_timers = two_timers.given(1, 7, 2, DUE + 20).acked(DUE + 30);
    assert_eq!(two_timers.violations(), [("mistaken identity", 1)]);
    two_timers.history.strange.push("500 to a lease".into());
    assert_eq!(two_timers.found().nonsense, 1);
}

#[test]
fn a_settlement_is_answered_truly() {
    let untrue = [("untrue settlements", 1)];
    let late = task(TERMS).given(1, 7, 1, DUE + 20).acked(DUE + 2100);
    assert_eq!(late.violations(), untrue, "its lease had ended");
    let refused = || task(TERMS).given(1, 7, 1, DUE + 20).settled(Wish::Ack, DUE + 100, Settled::Lost);
    assert_eq!(refused().given(2, 7, 2, DUE + 2100).acked(DUE + 2200).violations(), untrue, "it had not");
    let again = task(TERMS).given(1, 7, 1, DUE + 20).settled(Wish::Ack, DUE + 100, Settled::Unknown);
    let again = again.settled(Wish::Ack, DUE + 150, Settled::Lost);
    assert_eq!(again.violations(), [], "the first one counted");
    let twice = task(TERMS).given(1, 7, 1, DUE + 20).acked(DUE + 100).acked(DUE + 200);
    assert_eq!(twice.violations(), untrue);
    let extended = task(TERMS).given(1, 7, 1, DUE + 20);
    let extended = extended.settled(Wish::Extend(2 * SECOND), DUE + 1000, Settled::Counts);
    assert_eq!(extended.acked(DUE + 2900).violations(), []);
}

#[test]
fn what_is_due_or_comes_back_is_fetched_in_time() {
    let late = [("fetched late", 1)];
    let due = || task(TERMS).given(1, 7, 1, DUE + 1200).acked(DUE + 1300);
    assert_eq!(due().violations(), late);
    assert_eq!(due().fault(Affected::Nodes(vec![0]), DUE - 2000, DUE).violations(), [], "a node was killed");
    assert_eq!(due().fault(Affected::Callers, DUE - 2000, DUE).violations(), late, "workers were");
    let mut busy = due();
    busy.history.held_up.push((DUE * MS, (DUE + 1200) * MS));
    assert_eq!(busy.violations(), [], "the machine stood still");
    let back = |attempt, at| task(TERMS).given(1, 7, 1, DUE + 20).given(2, 7, attempt, at).acked(at + 10);
    assert_eq!(back(2, DUE + 6900).violations(), []);
    assert_eq!(back(2, DUE + 7100).violations(), late, "five seconds after its lease");
    assert_eq!(back(3, DUE + 7100).violations(), [], "one that nobody has read was between");
    assert_eq!(back(3, DUE + 14_200).violations(), late);
    let killed = |until| back(2, DUE + 13_000).fault(Affected::Nodes(vec![0]), DUE + 1500, until);
    assert_eq!(killed(DUE + 4000).violations(), []);
    assert_eq!(killed(DUE + 2500).violations(), late, "recovered from long ago");
}

#[test]
fn an_attempt_that_was_written_to_nobody_does_not_count() {
    let seen = |attempt| {
        let seen = task(Places { is_all_seen: true, ..TERMS });
        seen.given(1, 7, attempt, DUE + 20).acked(DUE + 30)
    };
    assert_eq!(seen(1).violations(), []);
    assert_eq!(seen(2).violations(), [("unseen attempts", 1)]);
    let mut polled = seen(1);
    let looks = Looks { from_us: 0, until_us: SECOND, nodes: 1, calls: 130, items: 0, most: 100 };
    polled.history.looks.push(looks);
    assert_eq!(polled.violations(), [("polls", 30)]);
}

#[test]
fn a_cancel_tells_the_truth_about_places() {
    let untrue = [("untrue cancels", 1)];
    let at = DUE + 200;
    let two = Places { times: 2, ..TERMS };
    assert_eq!(task(two).cancel(at, Answer::Cancelled).violations(), []);
    let given = || task(two).given(1, 7, 1, DUE + 20);
    let acked = || given().acked(DUE + 100);
    assert_eq!(given().cancel(at, Answer::Cancelled).violations(), untrue);
    assert_eq!(acked().cancel(at, Answer::StoppedAfter { acked: 1 }).violations(), []);
    assert_eq!(acked().cancel(at, Answer::StoppedAfter { acked: 2 }).violations(), untrue);
    assert_eq!(acked().cancel(at, Answer::Stopped).violations(), untrue, "one was acked");
    assert_eq!(given().cancel(at, Answer::Stopped).violations(), untrue, "a worker had it");
    assert_eq!(acked().cancel(at, Answer::Cancelled).violations(), untrue, "one was acked");
    let lost = || given().cancel(DUE + 2100, Answer::Cancelled);
    assert_eq!(lost().violations(), [], "its lease had ended");
    assert_eq!(lost().given(2, 7, 2, DUE + 2300).violations(), untrue, "given out once more");
    let in_flight = || given().cancel(at, Answer::InFlight);
    assert_eq!((in_flight().found().cancelled, in_flight().violations()), (1, vec![]));
    assert_eq!(in_flight().given(2, 8, 1, DUE + 300).violations(), untrue);
    assert_eq!(acked().cancel(at, Answer::AlreadyFired).found().untrue_cancels, 1, "a place is left");
    let all = acked().given(2, 8, 1, DUE + 30).acked(DUE + 100).cancel(at, Answer::AlreadyFired);
    assert_eq!((all.found().delivered, all.violations()), (1, vec![]));
    assert_eq!(acked().cancel(at, Answer::NotFound).found().untrue_cancels, 1);
    assert_eq!(acked().cancel(at, Answer::AlreadyCancelled).found().untrue_cancels, 1);
}

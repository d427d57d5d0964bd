//! What comes to brokers, and what their faults explain.

use super::*;
use crate::tools::brokers::Kind;

/// An attempt as it was read from a broker.
fn read_at(attempt: i32, at_ms: i64) -> Arrival {
    Arrival { node: None, broker: Some(Kind::Amqp), took_us: 0, ..attempt_at(attempt, at_ms) }
}

/// A timer for a broker, as in the drills: how late it is read says nothing.
fn one() -> Seen {
    Seen::one().terms(Terms { difficult: true, ..Terms::default() })
}

fn of(kind: Kind) -> Affected {
    Affected::Broker(kind)
}

#[test]
fn what_a_broker_has_is_delivered() {
    let seen = one().arrival(read_at(1, DUE));
    assert_eq!((seen.found().delivered, seen.violations()), (1, vec![]));
    let lost = one().fault(of(Kind::Amqp), DUE, DUE + 3000);
    assert_eq!(lost.violations(), [("lost", 1)], "its fault explains no loss");
    let cancelled = one().cancel(DUE + 50, Answer::Cancelled).arrival(read_at(1, DUE + 4000));
    let held = cancelled.fault(of(Kind::Amqp), DUE, DUE + 3000);
    assert_eq!(held.violations(), [("untrue cancels", 1)], "however late it is read");
}

#[test]
fn a_repeat_is_explained_by_a_fault_of_the_broker_that_had_it() {
    let twice = || one().arrival(read_at(1, DUE)).arrival(read_at(2, DUE + 8000));
    assert_eq!(twice().violations(), [("unexplained duplicates", 1)]);
    for affected in [of(Kind::Amqp), Affected::Cold, Affected::Machine] {
        let seen = twice().fault(affected.clone(), DUE, DUE + 4000);
        assert_eq!((seen.violations(), seen.found().duplicates_explained), (vec![], 1), "{affected:?}");
    }
    for affected in [of(Kind::Kafka), Affected::Nodes(vec![0]), Affected::Receivers, Affected::Hot] {
        let seen = twice().fault(affected.clone(), DUE, DUE + 4000);
        assert_eq!(seen.violations(), [("unexplained duplicates", 1)], "{affected:?}");
    }
    // It was read when the broker was back.
    assert_eq!(twice().fault(of(Kind::Amqp), DUE - 9000, DUE - 5000).violations(), []);
    let long_ago = twice().fault(of(Kind::Amqp), DUE - 9000, DUE - 7000);
    assert_eq!(long_ago.violations(), [("unexplained duplicates", 1)]);
    let at_a_receiver = Seen::one().sent(1, DUE).sent(2, DUE + 3000).fault(of(Kind::Amqp), DUE, DUE + 1000);
    assert_eq!(at_a_receiver.violations(), [("unexplained duplicates", 1)]);
}

#[test]
fn a_broker_that_stood_still_may_take_attempts_in_another_order_and_tell_of_them_late() {
    let swapped = |fault: Affected| {
        let swapped = one().arrival(read_at(2, DUE + 4000)).arrival(read_at(1, DUE + 4000));
        swapped.fault(fault, DUE, DUE + 3900)
    };
    let seen = swapped(of(Kind::Amqp));
    assert_eq!((seen.violations(), seen.found().unfenced_explained), (vec![], 1));
    assert_eq!(swapped(of(Kind::Mqtt)).violations(), [("unfenced", 1)]);

    // Both had been sent when the cancel was answered.
    let told = |fault: Affected| {
        let seen = one().cancel(DUE + 3500, Answer::InFlight);
        seen.arrival(read_at(1, DUE + 4000)).arrival(read_at(2, DUE + 4001)).fault(fault, DUE, DUE + 3900)
    };
    assert_eq!(told(of(Kind::Amqp)).violations(), []);
    let others = [("untrue cancels", 1), ("unexplained duplicates", 1)];
    assert_eq!(told(of(Kind::Nats)).violations(), others);
}

#[test]
fn a_broker_that_stands_still_delays_nobody_else() {
    let mut seen = Seen::new();
    for timer in 0..20_u32 {
        let delivery = u64::from(timer) + 1;
        let late = Arrival { delivery, ..attempt_at(1, DUE + 1500) };
        seen = seen.register(DUE).arrival(late).next();
    }
    assert_eq!(seen.fault(of(Kind::Amqp), DUE - 500, DUE + 3000).violations(), [("late", 20)]);
}

//! A store whose clock jumps: what is due is due by its clock.

use super::*;

const HOUR: Micros = 3600 * 1000 * MS;

/// The store's clock jumps by an hour at this moment.
fn jumps(seen: Seen, at_ms: i64, by_us: Micros) -> Seen {
    seen.fault(Affected::Clock(by_us), at_ms, at_ms)
}

#[test]
fn what_a_jump_forward_made_due_is_not_early_and_what_is_due_by_no_clock_is() {
    let seen = jumps(Seen::one().sent(1, DUE - 500), DUE - 1000, HOUR);
    assert_eq!(seen.violations(), []);
    let seen = jumps(Seen::one().sent(1, DUE - 500), DUE - 100, HOUR);
    assert_eq!(seen.violations(), [("early", 1)], "it came before the jump");
    let seen = jumps(Seen::one().sent(1, DUE + 500), DUE - 1000, -HOUR);
    assert_eq!(seen.violations(), [("early", 1)], "due by this machine's clock, and not by the store's");
}

#[test]
fn what_was_claimed_by_a_clock_that_is_set_back_may_be_sent_for_a_moment() {
    // Due from 5 s to 7 s, and from 10 s on.
    let set_back = |at_ms| jumps(jumps(Seen::one().sent(1, at_ms), 5000, HOUR), 7000, -HOUR);
    for (at_ms, violations) in [(6000, vec![]), (8900, vec![]), (9500, vec![("early", 1)]), (DUE, vec![])] {
        assert_eq!(set_back(at_ms).violations(), violations, "{at_ms}");
    }
    // Claimed ahead, and sent by the clock as it was.
    let ahead = |jump_ms| jumps(Seen::one().sent(1, DUE), jump_ms, -HOUR);
    assert_eq!(ahead(DUE - 40).violations(), []);
    assert_eq!(ahead(DUE - 60).violations(), [("early", 1)], "it was not to be claimed yet");
}

#[test]
fn lateness_counts_from_when_the_timer_became_due_by_the_stores_clock() {
    let max = |seen: &Seen| {
        let found = seen.found();
        found.healthy.max_ms.max(found.faulted.max_ms).max(found.recovering.max_ms)
    };
    let forward = jumps(Seen::one().sent(1, DUE - 1000), DUE - 3000, HOUR);
    assert_eq!((max(&forward), forward.violations()), (2000.3, vec![]), "two seconds after the jump");
    let back = jumps(jumps(Seen::one().sent(1, DUE), 5000, HOUR), 7000, -HOUR);
    assert_eq!(max(&back), 0.3, "not due any more, and then due again");
    let away = jumps(jumps(Seen::one().sent(1, 40_000), 5000, -HOUR), 20_000, HOUR);
    assert_eq!(max(&away), 20_000.3, "since its clock came back");
    // A jump excuses what is late for seconds, and nothing that becomes due later.
    let stuck = jumps(jumps(Seen::new(), 2000, HOUR), 3000, -HOUR).register(DUE).sent(1, DUE + 2000);
    assert_eq!(stuck.violations(), [("late", 1)]);
}

//! What a restore excuses, and what it does not.

use super::*;
use crate::tools::drill::history::Restored;

/// A backup from 5 s to 5.5 s; the nodes were ended at 20 s, found the restore at 22 s, and it was accepted at 25 s.
fn restored(seen: Seen) -> Findings {
    let s = 1000 * MS;
    let at =
        Restored { backed_up_us: 5 * s + 500 * MS, ended_us: 20 * s, found_us: 22 * s, accepting_us: 25 * s };
    let mut history = seen.history;
    let affected = Affected::Restored(at);
    history.faults.push(Fault { kind: "restore", affected, from_us: 5 * s, until_us: 26 * s, landed: None });
    check(&history, LIMITS)
}

#[test]
fn what_was_sent_between_backup_and_restore_is_sent_again_after_the_accept() {
    let found = restored(Seen::one().sent(1, DUE).sent(1, 25_500));
    assert_eq!(found.violations(), []);
    assert_eq!((found.restored, found.registered, found.delivered), (1, 1, 1));
}

#[test]
fn what_is_held_is_not_sent_before_the_accept() {
    let found = restored(Seen::one().sent(1, DUE).sent(1, 23_000).sent(1, 25_500));
    assert_eq!(found.violations(), [("unheld", 1)]);
    // Asked for again after the restore: the first answer never came.
    let again = Seen::new().call(Ask::Register { due_ms: DUE }, 9000, Answer::Unknown);
    let again = again.call(Ask::Register { due_ms: DUE }, 22_500, Answer::Done { generation: 1 });
    assert_eq!(restored(again.sent(1, 22_600)).violations(), []);
}

#[test]
fn what_the_backup_had_is_not_lost() {
    assert_eq!(restored(Seen::one()).violations(), [("lost", 1)]);
    // Nobody knows it any more.
    let later = Seen::new().call(Ask::Register { due_ms: DUE }, 7000, Answer::Done { generation: 1 });
    assert_eq!(restored(later).violations(), []);
}

#[test]
fn a_cancel_that_the_restore_has_undone_is_not_untrue() {
    let found = restored(Seen::one().cancel(8000, Answer::Cancelled).sent(1, 25_500));
    assert_eq!(found.violations(), []);
}

#[test]
fn nothing_excuses_what_is_early() {
    let found = restored(Seen::one().sent(1, DUE - 1).sent(1, 25_500));
    assert_eq!(found.violations(), [("early", 1)]);
}

#[test]
fn what_was_registered_after_the_restore_or_is_due_after_the_accept_is_judged_as_ever() {
    let new = Seen::new().call(Ask::Register { due_ms: 24_000 }, 22_500, Answer::Done { generation: 1 });
    assert_eq!(restored(new).violations(), [("lost", 1)]);
    let sent = |attempt, at| Arrival { due_ms: 40_000, ..attempt_at(attempt, at) };
    let twice = Seen::new().register(40_000).arrival(sent(1, 40_000)).arrival(sent(2, 41_000));
    assert_eq!(restored(twice).violations(), [("unexplained duplicates", 1)]);
}

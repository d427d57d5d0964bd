//! One step of an operation in the store: what fences it, and what bounds it.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring::cold::Whose;
use mainspring::cold::{
    ChangeEvent, NewOperation, NewTimer, OperationRow, Registered, SETTLED, Selection, Worker,
};
use mainspring::model::id::{Epoch, Uid};
use mainspring::model::operation::{Action, OperationId, OperationState};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{AttemptResult, Next, State};
use uuid::Uuid;

use super::fixture::{Fixture, behind_its_back, on_both_stores, record};

fn worker(n: u128) -> Worker {
    Worker { node: format!("w{n}"), token: Uuid::from_u128(n), lease_ms: 5000 }
}

/// Registers timers and lets them die.
async fn dead(f: &Fixture, owned: &[(i32, Epoch)], ids: &[&str]) {
    for id in ids {
        f.put(id, 0).await;
    }
    assert_eq!(die(f, owned).await.len(), ids.len());
}

/// Whatever is due dies.
async fn die(f: &Fixture, owned: &[(i32, Epoch)]) -> Vec<Uid> {
    let mut died = Vec::new();
    for row in f.claim_due(owned).await {
        let event = ChangeEvent::Attempted(Next::GiveUp, record(&row, AttemptResult::Failed));
        assert_eq!(f.change(row.uid, event).await.0.life.state, State::Dead);
        died.push(row.uid);
    }
    died
}

async fn begin(f: &Fixture, n: u128) -> OperationRow {
    let selection = Selection { ended_before: f.now(), ..Selection::default() };
    let new = NewOperation {
        id: OperationId(Uuid::from_u128(n)),
        action: Action::Redrive,
        filter: "{}".into(),
        selection,
        dry_run: false,
    };
    f.store.create_operation(&new).await.expect("begins").expect("there is room")
}

async fn a_step_without_the_lease_changes_nothing(f: Fixture) {
    let owned = f.own_all().await;
    dead(&f, &owned, &["a", "b", "c", "d"]).await;
    f.clock.advance(Duration::from_millis(10));
    begin(&f, 1).await;
    f.clock.advance(SETTLED);
    let (one, other) = (worker(1), worker(2));
    let leased = f.store.lease_operations(&one, &[], 9).await.expect("leases").remove(0);
    assert!(f.store.lease_operations(&other, &[], 9).await.expect("leases").is_empty(), "one node at a time");
    let first = f.store.redrive(&leased, &one, 1).await.expect("steps");
    assert_eq!((first.made.len(), first.looked_at), (1, 1));
    let after = first.operation.expect("it goes on");
    assert_eq!((after.matched, after.done, after.state), (1, 1, OperationState::Running));
    // The step is told to have failed, and is run again: what was committed counts.
    let repeated = f.store.redrive(&leased, &one, 1).await.expect("steps");
    assert_eq!((repeated.made.len(), repeated.operation.expect("is there").done), (0, 1));

    f.clock.advance(Duration::from_millis(5001));
    let taken = f.store.lease_operations(&other, &[], 9).await.expect("leases").remove(0);
    let late = f.store.redrive(&after, &one, 9).await.expect("steps");
    assert!(late.operation.is_none() && late.made.is_empty(), "{late:?}");
    let second = f.store.redrive(&taken, &other, 9).await.expect("steps");
    let after = second.operation.expect("is there");
    assert_eq!((after.matched, after.done, after.state), (4, 4, OperationState::Done));
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.dead, ledger.pending), (8, 4, 4));
    f.balanced().await;
    let rows = f.store.operations().await.expect("reads");
    assert_eq!((rows.len(), rows[0].ended_at.is_some()), (1, true));
    assert!(f.store.lease_operations(&other, &[], 9).await.expect("leases").is_empty(), "it has ended");
}

async fn what_dies_after_the_begin_is_not_taken(f: Fixture) {
    let owned = f.own_all().await;
    dead(&f, &owned, &["a", "b"]).await;
    f.clock.advance(Duration::from_millis(10));
    begin(&f, 1).await;
    f.clock.advance(SETTLED);
    let one = worker(1);
    let leased = f.store.lease_operations(&one, &[], 9).await.expect("leases").remove(0);
    let first = f.store.redrive(&leased, &one, 1).await.expect("steps").operation.expect("goes on");
    // What it has made run again dies once more, at the moment of the begin's bound and later.
    f.clock.advance(Duration::from_millis(10));
    assert_eq!(die(&f, &owned).await.len(), 1);
    dead(&f, &owned, &["c"]).await;
    let second = f.store.redrive(&first, &one, 9).await.expect("steps").operation.expect("goes on");
    assert_eq!((second.matched, second.done, second.state), (2, 2, OperationState::Done));
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!(
        (ledger.registered, ledger.dead, ledger.pending),
        (5, 4, 1),
        "one runs again, one has died twice"
    );
    f.balanced().await;
}

/// A death has its time from before its commit.
async fn a_death_that_is_committed_late_is_taken(f: Fixture) {
    let (owned, died_at) = (f.own_all().await, f.now());
    f.clock.advance(Duration::from_millis(10));
    begin(&f, 1).await;
    let one = worker(1);
    let leased = f.store.lease_operations(&one, &[], 9).await.expect("leases").remove(0);
    let first = f.store.redrive(&leased, &one, 9).await.expect("steps");
    let after = first.operation.expect("it goes on");
    assert_eq!((first.waits, after.matched, after.state), (true, 0, OperationState::Running));
    let begun_at = f.now();
    f.clock.set(died_at);
    dead(&f, &owned, &["a"]).await;
    f.clock.set(begun_at);
    f.clock.advance(SETTLED);
    let second = f.store.redrive(&after, &one, 9).await.expect("steps");
    let after = second.operation.expect("it is there");
    assert_eq!((second.waits, after.matched, after.done, after.state), (false, 1, 1, OperationState::Done));
}

/// Its id was registered again and ended since; history has lost that, as by a purge, and the id remembers it.
async fn a_timer_that_was_superseded_is_refused_though_history_has_lost_it(f: Fixture) {
    let owned = f.own_all().await;
    dead(&f, &owned, &["a", "b"]).await;
    f.clock.advance(Duration::from_millis(10));
    let again = NewTimer { again: true, ..f.timer("a", 60_000) };
    assert!(matches!(f.register(std::slice::from_ref(&again)).await[..], [Registered::New(_)]));
    f.change(again.uid, ChangeEvent::Cancel).await;
    behind_its_back(&f, "DELETE FROM history WHERE id = 'a' AND generation = 2").await;
    f.clock.advance(Duration::from_millis(10));
    begin(&f, 1).await;
    f.clock.advance(SETTLED);
    let one = worker(1);
    let leased = f.store.lease_operations(&one, &[], 9).await.expect("leases").remove(0);
    let done = f.store.redrive(&leased, &one, 9).await.expect("steps").operation.expect("is there");
    assert_eq!((done.matched, done.done), (2, 1), "{done:?}");
    assert_eq!(done.refused, BTreeMap::from([("superseded".to_owned(), 1)]));
}

/// An older node leaves it to a newer one, and goes on with others.
async fn an_operation_of_a_newer_version_is_left_alone(f: Fixture) {
    for n in 1..=6 {
        begin(&f, n).await;
    }
    behind_its_back(
        &f,
        "UPDATE operations SET selection = replace(selection, '{', '{\"planet\":\"mars\",') \
         WHERE id IN (SELECT id FROM operations ORDER BY id LIMIT 3)",
    )
    .await;
    behind_its_back(
        &f,
        "UPDATE operations SET action = 'explode' WHERE id IN (SELECT id FROM operations ORDER BY id LIMIT 1 OFFSET 3)",
    )
    .await;
    let leased = f.store.lease_operations(&worker(1), &[], 1).await.expect("leases");
    assert_eq!(leased.iter().map(|one| one.id.0.as_u128()).collect::<Vec<_>>(), [5]);
    let leased = f.store.lease_operations(&worker(1), &[], 9).await.expect("leases");
    assert_eq!(leased.iter().map(|one| one.id.0.as_u128()).collect::<Vec<_>>(), [6]);
    let rows = f.store.operations().await.expect("reads");
    assert!(rows.iter().all(|row| row.state == OperationState::Running), "{rows:?}");
    assert_eq!(rows.iter().filter(|row| row.node.is_some()).count(), 2, "{rows:?}");
}

async fn a_stop_and_an_end_are_final(f: Fixture) {
    let owned = f.own_all().await;
    dead(&f, &owned, &["a", "b"]).await;
    f.clock.advance(Duration::from_millis(10));
    let (one, operation) = (worker(1), begin(&f, 1).await);
    let leased = f.store.lease_operations(&one, &[], 9).await.expect("leases").remove(0);
    let stopped = f.store.stop_operation(operation.id).await.expect("stops").expect("is there");
    assert_eq!(stopped.state, OperationState::Stopped);
    assert!(f.store.redrive(&leased, &one, 9).await.expect("steps").operation.is_none());
    f.store.fail_operation(operation.id, "too late").await.expect("answers");
    let row = f.store.operation(operation.id).await.expect("reads").expect("is there");
    assert_eq!((row.state, row.failure), (OperationState::Stopped, None));
    let other = begin(&f, 2).await;
    f.store.fail_operation(other.id, "it is broken").await.expect("fails");
    let row = f.store.operation(other.id).await.expect("reads").expect("is there");
    assert_eq!((row.state, row.failure.as_deref()), (OperationState::Failed, Some("it is broken")));
    let none = OperationId(Uuid::from_u128(9));
    assert!(f.store.stop_operation(none).await.expect("answers").is_none());
    assert_eq!(f.store.ledger(Whose::All).await.expect("reads").pending, 0);
}

async fn what_ran_is_forgotten_in_the_end_and_what_runs_is_bounded(f: Fixture) {
    for n in 1..=300 {
        let operation = begin(&f, n).await;
        f.store.stop_operation(operation.id).await.expect("stops");
    }
    let kept = f.store.operations().await.expect("reads");
    assert_eq!((kept.len(), kept[0].id), (201, OperationId(Uuid::from_u128(300))));
    for n in 301..=400 {
        begin(&f, n).await;
    }
    let selection = Selection { ended_before: UnixMs::new(0), ..Selection::default() };
    let (id, action) = (OperationId(Uuid::from_u128(999)), Action::Redrive);
    let more = NewOperation { id, action, filter: "{}".into(), selection, dry_run: true };
    assert!(f.store.create_operation(&more).await.expect("answers").is_none(), "there is no room");
}

on_both_stores!(
    a_step_without_the_lease_changes_nothing,
    what_dies_after_the_begin_is_not_taken,
    a_death_that_is_committed_late_is_taken,
    an_operation_of_a_newer_version_is_left_alone,
    a_timer_that_was_superseded_is_refused_though_history_has_lost_it,
    a_stop_and_an_end_are_final,
    what_ran_is_forgotten_in_the_end_and_what_runs_is_bounded,
);

//! Steps of operations on live and ended timers: what they take, that they take nothing twice, and that they wait for no
//! stranger.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring::cold::Whose;
use mainspring::cold::{
    ChangeEvent, Edit, Filter, NewOperation, NewTimer, OperationRow, Registered, SETTLED, Selection,
    TimerRow, Worker,
};
use mainspring::model::id::Uid;
use mainspring::model::operation::{Action, OperationId, OperationState};
use mainspring::model::time::{LAST, UnixMs};
use mainspring::model::timer::{AttemptResult, Next, State};
use sea_orm::sqlx::query;
use uuid::Uuid;

use super::fixture::{Fixture, behind_its_back, held_open, on_both_stores, record, somebody_waits};

fn worker(n: u128) -> Worker {
    Worker { node: format!("w{n}"), token: Uuid::from_u128(n), lease_ms: 5000 }
}

/// Begins an operation on the timers of `me`.
async fn create(f: &Fixture, n: u128, action: Action, by_ms: Option<i64>, dry_run: bool) -> OperationId {
    let filter = Filter { owner: Some("me".into()), ..Filter::default() };
    let selection = Selection { filter, ended_before: LAST, by_ms, ..Selection::default() };
    let id = OperationId(Uuid::from_u128(n));
    let new = NewOperation { id, action, filter: "{}".into(), selection, dry_run };
    f.store.create_operation(&new).await.expect("begins").expect("there is room");
    id
}

/// The same, and leases it.
async fn begin(f: &Fixture, n: u128, action: Action, by_ms: Option<i64>, dry_run: bool) -> OperationRow {
    let id = create(f, n, action, by_ms, dry_run).await;
    let leased = f.store.lease_operations(&worker(1), &[], 99).await.expect("leases");
    leased.into_iter().find(|row| row.id == id).expect("it is leased")
}

/// Steps until it has ended; returns it, and how many steps it took.
async fn run(f: &Fixture, mut operation: OperationRow, most: usize) -> (OperationRow, usize) {
    for steps in 1..1000 {
        let operated = f.store.operate(&operation, &worker(1), most).await.expect("steps");
        operation = operated.stepped.operation.expect("it is there");
        if operation.state != OperationState::Running {
            return (operation, steps);
        }
    }
    panic!("it has no end");
}

/// Timers of `me`, one due each second, and one of somebody else.
async fn mine(f: &Fixture, count: i64) -> Vec<Uid> {
    let owned = |timer: NewTimer, owner: &str| NewTimer { owner: Some(owner.into()), ..timer };
    let mut timers: Vec<_> = (1..=count).map(|n| owned(f.timer(&format!("t{n}"), n * 1000), "me")).collect();
    timers.push(owned(f.timer("other", 1500), "you"));
    f.register(&timers).await;
    timers.into_iter().map(|timer| timer.uid).collect()
}

async fn states(f: &Fixture, uids: &[Uid]) -> BTreeMap<&'static str, usize> {
    let mut states = BTreeMap::new();
    for uid in uids {
        *states.entry(f.find(*uid).await.life.state.word()).or_default() += 1;
    }
    states
}

async fn each_action_takes_what_it_may(f: Fixture) {
    let owned = f.own_all().await;
    let uids = mine(&f, 10).await;
    f.change(uids[0], ChangeEvent::Pause(None)).await;
    f.clock.advance(Duration::from_secs(2));
    let under_way = f.claim_due(&owned).await;
    assert_eq!(under_way.len(), 2, "t2 and the one of somebody else");

    let (foretold, _) = run(&f, begin(&f, 1, Action::Pause, None, true).await, 3).await;
    assert_eq!((foretold.matched, foretold.done), (9, 0), "{foretold:?}");
    assert_eq!(foretold.refused, BTreeMap::from([("in_flight".to_owned(), 1)]));
    assert_eq!(states(&f, &uids).await, BTreeMap::from([("scheduled", 8), ("delivering", 2), ("paused", 1)]));

    let (paused, steps) = run(&f, begin(&f, 2, Action::Pause, None, false).await, 3).await;
    assert_eq!((paused.matched, paused.done, &paused.refused), (9, 8, &foretold.refused));
    assert!(steps >= 3, "{steps}");
    assert_eq!(states(&f, &uids).await, BTreeMap::from([("delivering", 2), ("paused", 9)]));

    let (resumed, _) = run(&f, begin(&f, 3, Action::Resume, None, false).await, 3).await;
    assert_eq!((resumed.matched, resumed.done), (9, 9));
    let (cancelled, _) = run(&f, begin(&f, 4, Action::Cancel, None, false).await, 3).await;
    assert_eq!((cancelled.matched, cancelled.done), (10, 9));
    assert_eq!(states(&f, &uids).await, BTreeMap::from([("delivering", 2), ("cancelled", 9)]));
    // The cancel of the one under way is recorded: no further attempt starts.
    let mine = under_way.iter().find(|row| row.owner.as_deref() == Some("me")).expect("t2");
    let failed = ChangeEvent::Attempted(Next::Retry(LAST), record(mine, AttemptResult::Failed));
    assert_eq!(f.change(mine.uid, failed).await.0.life.state, State::Cancelled);
    f.balanced().await;
}

/// Each timer is moved by exactly so much, though it comes up again at its new time.
async fn a_shift_moves_each_timer_once(f: Fixture) {
    let uids = mine(&f, 20).await;
    let (due, others) = (f.find(uids[0]).await.life.due_at, f.find(uids[20]).await.life.due_at);
    for (n, by) in [(1, 5500), (2, -5500), (3, 100)] {
        let (done, _) = run(&f, begin(&f, n, Action::Shift, Some(by), false).await, 3).await;
        assert_eq!((done.matched, done.done), (20, 20), "by {by}: {done:?}");
    }
    for (n, uid) in uids[..20].iter().enumerate() {
        let life = f.find(*uid).await.life;
        assert_eq!(
            (life.due_at.get(), life.generation.0),
            (due.get() + n as i64 * 1000 + 100, 4),
            "t{}",
            n + 1
        );
    }
    assert_eq!(f.find(uids[20]).await.life.due_at, others);
}

/// Lets two nodes work on what there is, in turn, each on one operation at a time; returns all operations, the oldest first.
async fn worked_on_by_two(f: &Fixture) -> Vec<OperationRow> {
    let mut held: [Option<OperationRow>; 2] = [None, None];
    for _ in 0..200 {
        for (n, held) in (1..).zip(&mut held) {
            if held.is_none() {
                *held = f.store.lease_operations(&worker(n), &[], 1).await.expect("leases").pop();
            }
            if let Some(operation) = held.take() {
                let stepped = f.store.operate(&operation, &worker(n), 3).await.expect("steps").stepped;
                *held = stepped.operation.filter(|row| row.state == OperationState::Running);
            }
        }
        f.clock.advance(Duration::from_millis(10));
    }
    let mut all = f.store.operations().await.expect("reads");
    all.sort_unstable_by_key(|row| row.id);
    all
}

/// A timer names only the last one that moved it. So two that take the same timers do not work at the same time.
async fn operations_that_move_the_same_timers_move_each_once(f: Fixture) {
    let uids = mine(&f, 20).await;
    let due = f.find(uids[0]).await.life.due_at.get();
    let lives = async || {
        let mut lives = Vec::new();
        for uid in &uids[..20] {
            lives.push(f.find(*uid).await.life);
        }
        lives
    };
    for (n, by) in [(1, 5500), (2, 100)] {
        create(&f, n, Action::Shift, Some(by), false).await;
    }
    let all = worked_on_by_two(&f).await;
    for (n, life) in (0..).zip(lives().await) {
        assert_eq!((life.due_at.get(), life.generation.0), (due + n * 1000 + 5600, 3), "t{}", n + 1);
    }
    create(&f, 3, Action::Shift, Some(5500), false).await;
    create(&f, 4, Action::Fire, None, false).await;
    let more = worked_on_by_two(&f).await;
    for life in lives().await {
        assert_eq!((life.due_at <= f.now(), life.generation.0), (true, 5));
    }
    assert_eq!((all.len(), more.len()), (2, 4));
    for row in all.iter().chain(&more) {
        assert_eq!((row.matched, row.done, row.state), (20, 20, OperationState::Done), "{row:?}");
    }
    assert!(more[2].ended_at <= more[3].ended_at, "the older one goes first");
}

async fn an_operation_that_moves_timers_waits_until_the_one_before_it_has_ended(f: Fixture) {
    mine(&f, 4).await;
    for (n, action, dry_run) in [
        (3, Action::Shift, false),
        (4, Action::Fire, false),
        (5, Action::Shift, true),
        (6, Action::Cancel, false),
    ] {
        create(&f, n, action, Some(1000), dry_run).await;
    }
    let leased = async |n: u128| {
        let leased = f.store.lease_operations(&worker(n), &[], 9).await.expect("leases");
        leased.into_iter().map(|row| row.id.0.as_u128()).collect::<Vec<_>>()
    };
    let id = |n: u128| OperationId(Uuid::from_u128(n));
    assert_eq!(leased(1).await, [3, 5, 6]);
    let waits = f.store.operation(id(4)).await.expect("reads").expect("is there");
    assert_eq!((waits.state, waits.node, waits.matched), (OperationState::Running, None, 0));
    // One with an older id that comes later, as from a node with another clock, does not go before one that has begun.
    create(&f, 2, Action::Shift, Some(1000), false).await;
    assert!(leased(2).await.is_empty());
    f.clock.advance(Duration::from_millis(5001));
    assert_eq!(leased(2).await, [3, 5, 6], "the node was silent: another goes on with the same ones");
    f.store.stop_operation(id(3)).await.expect("stops");
    assert_eq!(leased(1).await, [2]);
    assert!(leased(2).await.is_empty());
    f.store.fail_operation(id(2), "it is broken").await.expect("fails");
    assert_eq!(leased(1).await, [4]);
    // A version without turns had begun two: the older one goes on.
    for n in [7, 8] {
        create(&f, n, Action::Shift, Some(1000), false).await;
    }
    f.store.stop_operation(id(4)).await.expect("stops");
    behind_its_back(&f, "UPDATE operations SET node = 'w1' WHERE state = 0").await;
    assert_eq!(leased(1).await, [7]);
    f.store.stop_operation(id(7)).await.expect("stops");
    assert_eq!(leased(1).await, [8]);
}

/// A cancel looks once more from the begin: what somebody has moved in front of it meanwhile is not left out.
async fn a_cancel_takes_what_was_moved_in_front_of_it(f: Fixture) {
    let owned = f.own_all().await;
    let uids = mine(&f, 6).await;
    f.clock.advance(Duration::from_secs(2));
    assert_eq!(f.claim_due(&owned).await.len(), 3, "t1, t2 and the one of somebody else");
    let operation = begin(&f, 1, Action::Cancel, None, false).await;
    let first = f.store.operate(&operation, &worker(1), 2).await.expect("steps").stepped;
    let second = f.store.operate(&first.operation.expect("goes on"), &worker(1), 2).await.expect("steps");
    let second = second.stepped.operation.expect("goes on");
    assert_eq!((second.matched, second.done), (4, 2));
    let sooner = Edit { due_at: Some(UnixMs::new(f.now().get() + 1)), ..Edit::default() };
    f.change(uids[5], ChangeEvent::Edit(sooner)).await;
    let (done, _) = run(&f, second, 2).await;
    assert_eq!((done.matched, done.done), (6, 4), "{done:?}");
    assert_eq!(done.refused, BTreeMap::from([("in_flight".to_owned(), 2)]), "they are counted once");
    assert_eq!(states(&f, &uids[..6]).await, BTreeMap::from([("delivering", 2), ("cancelled", 4)]));
}

/// A newer version has written it.
async fn a_timer_that_cannot_be_read_is_counted_and_left(f: Fixture) {
    let uids = mine(&f, 5).await;
    behind_its_back(&f, "UPDATE timers SET policies = '{]' WHERE id = 't3'").await;
    let unreadable = BTreeMap::from([("unreadable".to_owned(), 1)]);
    let (foretold, _) = run(&f, begin(&f, 1, Action::Pause, None, true).await, 2).await;
    assert_eq!((foretold.matched, foretold.done, &foretold.refused), (5, 0, &unreadable));
    let (paused, _) = run(&f, begin(&f, 2, Action::Pause, None, false).await, 2).await;
    assert_eq!((paused.matched, paused.done, &paused.refused), (5, 4, &unreadable));
    let (cancelled, _) = run(&f, begin(&f, 3, Action::Cancel, None, false).await, 2).await;
    assert_eq!((cancelled.matched, cancelled.done, &cancelled.refused), (5, 4, &unreadable));
    behind_its_back(&f, "UPDATE history SET policies = '{]' WHERE id = 't4'").await;
    f.clock.advance(Duration::from_millis(10));
    let purged = begin(&f, 4, Action::Purge, None, false).await;
    f.clock.advance(SETTLED);
    let purged = purge(&f, purged).await;
    assert_eq!((purged.matched, purged.done, &purged.refused), (4, 3, &unreadable));
    behind_its_back(&f, "UPDATE timers SET policies = NULL WHERE id = 't3'").await;
    assert_eq!(f.find(uids[2]).await.life.state, State::Scheduled);
}

async fn a_firing_makes_each_timer_due_once(f: Fixture) {
    let uids = mine(&f, 20).await;
    f.clock.advance(Duration::from_secs(10));
    let operation = begin(&f, 1, Action::Fire, None, false).await;
    let mut now = operation;
    // Time goes on between its steps, and so do the due times that it gives.
    let mut done = Vec::new();
    for _ in 0..100 {
        if now.state != OperationState::Running {
            break;
        }
        f.clock.advance(Duration::from_secs(1));
        let operated = f.store.operate(&now, &worker(1), 3).await.expect("steps");
        done.extend(operated.changes.iter().map(|change| change.uid));
        now = operated.stepped.operation.expect("it is there");
    }
    assert_eq!((now.matched, now.done, done.len()), (20, 20, 20));
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), 20);
    for uid in &uids[..20] {
        assert_eq!(f.find(*uid).await.life.generation.0, 2);
    }
}

async fn what_is_registered_after_the_begin_is_left(f: Fixture) {
    let uids = mine(&f, 4).await;
    let operation = begin(&f, 1, Action::Cancel, None, false).await;
    f.clock.advance(Duration::from_millis(1));
    let late = NewTimer { owner: Some("me".into()), ..f.timer("late", 9000) };
    f.register(std::slice::from_ref(&late)).await;
    let (done, _) = run(&f, operation, 2).await;
    assert_eq!((done.matched, done.done), (4, 4));
    assert_eq!(f.find(late.uid).await.life.state, State::Scheduled);
    assert_eq!(states(&f, &uids[..4]).await, BTreeMap::from([("cancelled", 4)]));
}

async fn a_step_without_the_lease_changes_nothing(f: Fixture) {
    mine(&f, 6).await;
    let operation = begin(&f, 1, Action::Cancel, None, false).await;
    let first = f.store.operate(&operation, &worker(1), 2).await.expect("steps");
    assert_eq!((first.changes.len(), first.stepped.operation.expect("goes on").done), (2, 2));
    // Its answer was lost, and it is run again: what was committed counts.
    let repeated = f.store.operate(&operation, &worker(1), 2).await.expect("steps");
    assert_eq!((repeated.changes.len(), repeated.stepped.operation.expect("is there").done), (0, 2));
    f.clock.advance(Duration::from_millis(5001));
    let taken = f.store.lease_operations(&worker(2), &[], 9).await.expect("leases").remove(0);
    let late = f.store.operate(&operation, &worker(1), 2).await.expect("steps");
    assert!(late.changes.is_empty() && late.stepped.operation.is_none());
    let rest = f.store.operate(&taken, &worker(2), 9).await.expect("steps");
    let rest = rest.stepped.operation.expect("is there");
    assert_eq!((rest.matched, rest.done, rest.state), (6, 6, OperationState::Running));
    let closed = f.store.operate(&rest, &worker(2), 9).await.expect("steps");
    let closed = closed.stepped.operation.expect("is there");
    assert_eq!((closed.matched, closed.done, closed.state), (6, 6, OperationState::Done));
    f.balanced().await;
}

/// A due time that nobody can write is not made.
async fn a_shift_stays_within_the_years_that_can_be_written(f: Fixture) {
    let uids = mine(&f, 2).await;
    let (done, _) = run(&f, begin(&f, 1, Action::Shift, Some(i64::MAX), false).await, 9).await;
    assert_eq!(done.done, 2);
    assert_eq!(f.find(uids[0]).await.life.due_at, LAST);
}

/// Timers of `me` that died and were cancelled, one that is live, and one of somebody else that was cancelled.
async fn ended(f: &Fixture) -> [Uid; 4] {
    let owned = f.own_all().await;
    let of = |timer: NewTimer, owner: &str| NewTimer { owner: Some(owner.into()), ..timer };
    let timers = [
        of(f.timer("dead", 0), "me"),
        of(f.timer("cancelled", 5000), "me"),
        of(f.timer("live", 6000), "me"),
        of(f.timer("other", 7000), "you"),
    ];
    f.register(&timers).await;
    for next in [Next::Retry(f.now()), Next::GiveUp] {
        let row = f.claim_due(&owned).await.remove(0);
        f.change(row.uid, ChangeEvent::Attempted(next, record(&row, AttemptResult::Failed))).await;
    }
    let uids = timers.map(|timer| timer.uid);
    f.change(uids[1], ChangeEvent::Cancel).await;
    f.change(uids[3], ChangeEvent::Cancel).await;
    f.clock.advance(Duration::from_millis(10));
    uids
}

/// Steps of a purge until it has ended.
async fn purge(f: &Fixture, mut operation: OperationRow) -> OperationRow {
    for _ in 0..10 {
        let stepped = f.store.purge(&operation, &worker(1), 1).await.expect("steps");
        operation = stepped.operation.expect("it is there");
        if operation.state != OperationState::Running {
            break;
        }
    }
    operation
}

async fn a_purge_removes_what_is_kept_of_ended_timers(f: Fixture) {
    let [dead, cancelled, live, other] = ended(&f).await;
    let before = f.store.ledger(Whose::All).await.expect("reads");
    let row = f.find(dead).await;
    assert_eq!(f.store.attempts(&row).await.expect("reads").len(), 2);
    let (dry, operation) =
        (begin(&f, 1, Action::Purge, None, true).await, begin(&f, 2, Action::Purge, None, false).await);
    // What ends from now on is left alone.
    f.clock.advance(Duration::from_millis(10));
    f.change(live, ChangeEvent::Cancel).await;
    let early = f.store.purge(&operation, &worker(1), 9).await.expect("waits");
    assert!(early.waits, "an end that was under way at its begin may not be committed yet");
    f.clock.advance(SETTLED);
    let counted = purge(&f, dry).await;
    assert_eq!((counted.matched, counted.done), (2, 0), "{counted:?}");
    f.find(dead).await;
    let done = purge(&f, operation).await;
    assert_eq!((done.matched, done.done, done.state), (2, 2, OperationState::Done), "{done:?}");
    for gone in [dead, cancelled] {
        assert!(f.store.find(gone).await.expect("reads").is_none());
    }
    assert!(f.store.attempts(&TimerRow { last: None, ..row }).await.expect("reads").is_empty());
    f.find(live).await;
    f.find(other).await;
    // Its id stays taken, and the ledger remembers it.
    let again = NewTimer { owner: Some("me".into()), ..f.timer("cancelled", 5000) };
    assert!(matches!(f.register(std::slice::from_ref(&again)).await[..], [Registered::Taken]));
    let after = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((after.registered, after.dead, after.cancelled), (before.registered, 1, before.cancelled + 1));
    f.balanced().await;
    let nothing = begin(&f, 3, Action::Purge, None, false).await;
    f.clock.advance(SETTLED);
    assert_eq!(purge(&f, nothing).await.done, 1, "the one that ended since");
    f.balanced().await;
}

on_both_stores!(
    a_purge_removes_what_is_kept_of_ended_timers,
    each_action_takes_what_it_may,
    a_shift_moves_each_timer_once,
    operations_that_move_the_same_timers_move_each_once,
    an_operation_that_moves_timers_waits_until_the_one_before_it_has_ended,
    a_cancel_takes_what_was_moved_in_front_of_it,
    a_timer_that_cannot_be_read_is_counted_and_left,
    a_firing_makes_each_timer_due_once,
    what_is_registered_after_the_begin_is_left,
    a_step_without_the_lease_changes_nothing,
    a_shift_stays_within_the_years_that_can_be_written,
);

/// A step ends before a timer that a stranger has locked; the next one waits for it, and holds nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_a_stranger_has_locked_is_waited_for_alone() {
    let f = Fixture::postgres().await;
    let uids = mine(&f, 4).await;
    let mut stranger = held_open(&f.config.cold.url).await;
    let lock = query("SELECT 1 FROM timers WHERE uid = $1 FOR UPDATE").bind(uids[2].0);
    lock.execute(&mut *stranger).await.expect("locks");
    let operation = begin(&f, 1, Action::Cancel, None, false).await;
    let first = f.store.operate(&operation, &worker(1), 9).await.expect("steps");
    assert_eq!(first.changes.len(), 2, "what is before it");
    let after = first.stepped.operation.expect("goes on");
    assert_eq!((after.done, after.state), (2, OperationState::Running));
    let store = f.store.clone();
    let next = tokio::spawn(async move { store.operate(&after, &worker(1), 9).await });
    somebody_waits(&f.config.cold.url).await;
    // While it waits, others change the rest.
    f.change(uids[3], ChangeEvent::Pause(None)).await;
    stranger.rollback().await.expect("unlocks");
    let second = next.await.expect("runs").expect("steps");
    assert_eq!(second.changes.iter().map(|change| change.uid).collect::<Vec<_>>(), [uids[2]]);
    let (done, _) = run(&f, second.stepped.operation.expect("goes on"), 9).await;
    assert_eq!((done.matched, done.done), (4, 4));
    assert_eq!(states(&f, &uids[..4]).await, BTreeMap::from([("cancelled", 4)]));
}

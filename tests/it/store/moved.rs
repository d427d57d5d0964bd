//! Timers that are moved: which pointer they rely on, and what that one finds when it comes up.

use std::time::Duration;

use mainspring::cold::{Applied, Change, ChangeEvent, Early, Edit, Range, TimerRow};
use mainspring::model::id::{Epoch, Uid};
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{AttemptResult, Next, State};

use super::fixture::{Fixture, START, on_both_stores, record};

const MINUTE: i64 = 60_000;

fn at(ms: i64) -> UnixMs {
    UnixMs::new(START.get() + ms)
}

/// Owns all shards, whose wheels reach ten minutes.
async fn reaching_ten_minutes(f: &Fixture) -> Vec<(i32, Epoch)> {
    let owned = f.own_all().await;
    f.store.raise_watermarks(&owned, at(10 * MINUTE)).await.expect("raises");
    owned
}

async fn moved(f: &Fixture, uid: Uid, due_ms: i64) -> TimerRow {
    f.change(uid, ChangeEvent::Edit(Edit { due_at: Some(at(due_ms)), ..Edit::default() })).await.0
}

/// Where the row of a timer that is moved to this moment relies on a pointer, in milliseconds after the start.
async fn pointed(f: &Fixture, uid: Uid, due_ms: i64) -> Option<i64> {
    let row = moved(f, uid, due_ms).await;
    assert_eq!(row.pointed_at, f.find(uid).await.pointed_at, "as it is stored");
    row.pointed_at.map(|at| at.get() - START.get())
}

async fn a_moved_timer_relies_on_a_pointer_that_comes_up_before_it(f: Fixture) {
    reaching_ten_minutes(&f).await;
    let uid = f.put("t", MINUTE).await;
    assert_eq!(f.find(uid).await.pointed_at, None, "it has one of its own");
    for (due, relied_on, why) in [
        (2 * MINUTE, Some(MINUTE), "its own"),
        (5 * MINUTE, Some(MINUTE), "the same"),
        (2 * MINUTE, Some(MINUTE), "back, and still after it"),
        (MINUTE, Some(MINUTE), "to the very moment"),
        (20 * MINUTE, Some(MINUTE), "beyond the wheels"),
        (MINUTE - 1, None, "before it"),
        (2 * MINUTE, Some(MINUTE - 1), "the one of then"),
        (2000, None, "before it"),
        (MINUTE, None, "the last one comes up at any moment"),
        (30 * MINUTE, Some(MINUTE), "its own"),
    ] {
        assert_eq!(pointed(&f, uid, due).await, relied_on, "{due}: {why}");
    }
    f.clock.set(at(MINUTE - 2000));
    assert_eq!(pointed(&f, uid, 3 * MINUTE).await, None, "it may have come up already");
    assert_eq!(pointed(&f, uid, 4 * MINUTE).await, Some(3 * MINUTE));
    f.clock.set(at(3 * MINUTE));
    assert_eq!(
        pointed(&f, uid, 5 * MINUTE).await,
        None,
        "it has come up; whether it was promoted is not known"
    );
}

async fn a_timer_beyond_the_wheels_has_no_pointer_to_rely_on(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", MINUTE).await;
    assert_eq!(pointed(&f, uid, 2 * MINUTE).await, None, "nothing is in the wheels");
    f.store.raise_watermarks(&owned, at(2 * MINUTE)).await.expect("raises");
    assert_eq!(pointed(&f, uid, 3 * MINUTE).await, None, "nor what wakes just then");
    f.store.raise_watermarks(&owned, at(10 * MINUTE)).await.expect("raises");
    assert_eq!(pointed(&f, uid, 4 * MINUTE).await, Some(3 * MINUTE));
    f.store.raise_watermarks(&owned, at(2 * MINUTE)).await.expect("lowers");
    assert_eq!(pointed(&f, uid, 5 * MINUTE).await, None, "the wheel was built anew and reaches less far");
}

async fn any_change_keeps_the_pointer_and_one_that_changes_nothing_needs_none(f: Fixture) {
    reaching_ten_minutes(&f).await;
    let uid = f.put("t", MINUTE).await;
    let labels = Edit { labels: Some(Some(r#"{"a":"b"}"#.into())), ..Edit::default() };
    let change = |event| Change { uid, caller: None, event };
    let (row, _) = f.change(uid, ChangeEvent::Edit(labels.clone())).await;
    assert_eq!(row.pointed_at, Some(at(MINUTE)));
    let same = f.apply(&[change(ChangeEvent::Edit(labels))]).await.remove(0);
    assert!(matches!(same, Applied::Same(_)) && same.changed_row().is_none(), "{same:?}");
    let (row, _) = f.change(uid, ChangeEvent::Edit(Edit { data: Some(None), ..Edit::default() })).await;
    assert_eq!((row.life.wake_at, row.pointed_at), (at(MINUTE), Some(at(MINUTE))));
    let (row, _) = f.change(uid, ChangeEvent::Fire(None)).await;
    assert_eq!((row.life.wake_at, row.pointed_at), (START, None), "now");
}

async fn a_retry_has_a_pointer_of_its_own_and_a_moved_one_relies_on_that(f: Fixture) {
    let owned = reaching_ten_minutes(&f).await;
    let uid = f.put("t", MINUTE).await;
    moved(&f, uid, 2 * MINUTE).await;
    f.clock.set(at(2 * MINUTE));
    let row = f.claim_due(&owned).await.remove(0);
    let failed = record(&row, AttemptResult::Failed);
    let (row, _) = f.change(uid, ChangeEvent::Attempted(Next::Retry(at(4 * MINUTE)), failed)).await;
    assert_eq!((row.life.state, row.pointed_at), (State::Retrying, None));
    assert_eq!(pointed(&f, uid, 5 * MINUTE).await, Some(4 * MINUTE));
}

async fn a_postponed_row_is_the_sweeps(f: Fixture) {
    let owned = reaching_ten_minutes(&f).await;
    let uid = f.put("t", 0).await;
    let due = f.due(&owned).await;
    f.store.postpone(&[(due[0].0, MINUTE)]).await.expect("postpones");
    assert_eq!(pointed(&f, uid, 2 * MINUTE).await, None);
}

/// Claims with a pointer that was made when the timer was due so many milliseconds after the start.
async fn come_up(f: &Fixture, owned: &[(i32, Epoch)], then: &Pointer, due_ms: i64) -> Vec<Early> {
    let epoch = owned.iter().find(|(shard, _)| *shard == then.shard).expect("owned").1;
    let pointer = Pointer { wake_at: at(due_ms), ..*then };
    let claimed = f.store.claim(&[(pointer, epoch)], "a", 50).await.expect("claims");
    assert!(claimed.rows.is_empty());
    claimed.early
}

async fn the_pointer_relied_on_finds_where_its_timer_went(f: Fixture) {
    let owned = reaching_ten_minutes(&f).await;
    let (uid, gone) = (f.put("t", MINUTE).await, f.put("gone", MINUTE).await);
    let first = f.find(uid).await.pointer(Via::Loader).expect("it waits");
    let cancelled = f.find(gone).await.pointer(Via::Loader).expect("it waits");
    let row = moved(&f, uid, 3 * MINUTE).await;
    let now = row.pointer(Via::Express).expect("it waits");
    moved(&f, gone, 3 * MINUTE).await;
    f.change(gone, ChangeEvent::Cancel).await;
    f.clock.set(at(MINUTE - 50));
    let wait_ms = 2 * MINUTE;
    assert_eq!(
        come_up(&f, &owned, &first, MINUTE).await,
        [Early { pointer: now, wait_ms, is_moved: true }],
        "to be promoted again"
    );
    assert_eq!(come_up(&f, &owned, &first, MINUTE + 1).await, [], "only the one that it relies on");
    assert_eq!(come_up(&f, &owned, &cancelled, MINUTE).await, [], "cancelled");
    // A wheel that was built anew has it there under its present generation.
    let built = come_up(&f, &owned, &now, MINUTE).await;
    assert_eq!(built, [Early { pointer: now, wait_ms, is_moved: true }]);
    // Promoted, it is claimed like any other, and refused like any other.
    f.clock.set(at(3 * MINUTE));
    f.own_all().await;
    assert_eq!(come_up(&f, &owned, &first, MINUTE).await.len(), 1);
    f.clock.set(at(3 * MINUTE + 200));
    assert_eq!(come_up(&f, &owned, &now, 3 * MINUTE).await, [], "the epoch is an older one");
}

async fn a_timer_changed_for_the_same_moment_is_found_at_once(f: Fixture) {
    let owned = reaching_ten_minutes(&f).await;
    let uid = f.put("t", MINUTE).await;
    let first = f.find(uid).await.pointer(Via::Loader).expect("it waits");
    let (row, _) = f.change(uid, ChangeEvent::Edit(Edit { data: Some(None), ..Edit::default() })).await;
    let now = row.pointer(Via::Express).expect("it waits");
    f.clock.set(at(MINUTE - 50));
    assert_eq!(
        come_up(&f, &owned, &first, MINUTE).await,
        [Early { pointer: now, wait_ms: 0, is_moved: false }]
    );
    f.clock.advance(Duration::from_millis(50));
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn a_wheel_that_is_built_anew_gets_the_pointer_that_a_timer_relies_on(f: Fixture) {
    let owned = reaching_ten_minutes(&f).await;
    let uid = f.put("t", MINUTE).await;
    let row = moved(&f, uid, 5 * MINUTE).await;
    let pointer_at = async |from: i64, until: i64| {
        let ranges: Vec<_> = owned.iter().map(|(shard, _)| Range::new(*shard, from, at(until))).collect();
        let found = f.store.scan(&ranges, 10).await.expect("scans");
        assert!(found.iter().all(|one| one.position.wake_at == row.life.wake_at.get()), "{found:?}");
        found.iter().map(|one| one.pointer.wake_at.get() - START.get()).collect::<Vec<_>>()
    };
    assert_eq!(pointer_at(i64::MIN, 10 * MINUTE).await, [MINUTE]);
    assert_eq!(pointer_at(at(MINUTE).get(), 10 * MINUTE).await, [MINUTE]);
    assert_eq!(
        pointer_at(at(MINUTE + 1).get(), 10 * MINUTE).await,
        [5 * MINUTE],
        "the first is there already"
    );
    assert!(pointer_at(i64::MIN, 5 * MINUTE).await.is_empty(), "a range is of rows");
    f.clock.set(at(MINUTE - 2000));
    assert_eq!(pointer_at(i64::MIN, 10 * MINUTE).await, [5 * MINUTE], "the first may have come up");
}

on_both_stores!(
    a_moved_timer_relies_on_a_pointer_that_comes_up_before_it,
    a_timer_beyond_the_wheels_has_no_pointer_to_rely_on,
    any_change_keeps_the_pointer_and_one_that_changes_nothing_needs_none,
    a_retry_has_a_pointer_of_its_own_and_a_moved_one_relies_on_that,
    a_postponed_row_is_the_sweeps,
    the_pointer_relied_on_finds_where_its_timer_went,
    a_timer_changed_for_the_same_moment_is_found_at_once,
    a_wheel_that_is_built_anew_gets_the_pointer_that_a_timer_relies_on,
);

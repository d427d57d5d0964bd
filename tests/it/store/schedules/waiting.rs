//! Occurrences that wait for others, or for nobody: what is held, locked, removed or run outside the rule.

use mainspring::model::spread::Spread;

use super::*;
use crate::store::fixture::held_open;

async fn a_removal_cancels_all_that_wait_for_others(f: Fixture) {
    let owned = under(&f, Overlap::Skip, "PT0.5S").await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 20 * MINUTE).await;
    while make(&f, &owned).await.is_cut {}
    let mut made = 0;
    for from in [0, 8, 16] {
        made += backfilled(&f, from * MINUTE, (from + 8) * MINUTE - 1).await;
    }
    assert!(made > 2000, "{made}");
    serve(&f, &owned, 20 * MINUTE + 5000).await;
    f.store.remove_schedule("s").await.expect("removes").expect("is there");
    let left = Filter { schedule: Some("s".into()), state: Some(State::Scheduled), ..Filter::default() };
    let left = f.store.list(&left, None, 10).await.expect("lists").rows.len();
    assert!(left <= 1, "the one whose turn it is: {left} of {made}");
    f.balanced().await;
}

/// The store was restored, and nobody knows whether an occurrence has fired: it runs nowhere while it is held.
async fn one_that_is_held_does_not_keep_those_after_it(f: Fixture) {
    let owned = under(&f, Overlap::Skip, "PT1M").await;
    let until = at(90_000).get();
    behind_its_back(&f, &format!("UPDATE store SET held_from = {}, held_until = {until}", START.get())).await;
    // By its next heartbeat the node knows.
    f.alive().await;
    serve(&f, &owned, 2 * MINUTE).await;
    let claimed = f.claim_due(&owned).await;
    assert_eq!(nominals(&claimed), [120]);
    deliver(&f, &claimed).await;
    make(&f, &owned).await;
    assert_eq!(f.find(uid(MINUTE)).await.life.state, State::Scheduled, "it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_those_that_were_missed_one_fires_though_another_is_locked() {
    let f = Fixture::postgres().await;
    f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let missed = Missed { policy: MissedPolicy::FireOnce, ..one.plan.missed };
    put(&f, &with(&f, ScheduleEdit { plan: Plan { missed, ..one.plan.clone() }, ..one })).await;
    let owned = outage(&f, 4 * MINUTE + 90_000).await;
    let mut other = held_open(&f.config.cold.url).await;
    let lock = sea_orm::sqlx::query("SELECT 1 FROM timers WHERE uid = $1 FOR UPDATE").bind(uid(MINUTE).0);
    lock.execute(&mut *other).await.expect("locks");
    make(&f, &owned).await;
    assert!(states(&f).await.iter().all(|(_, state, _)| *state == State::Scheduled), "nothing is decided");
    other.commit().await.expect("commits");
    make(&f, &owned).await;
    make(&f, &owned).await;
    let fired = nominals(&f.claim_due(&owned).await);
    assert_eq!(fired, [240, 300], "the latest that was missed, and the one that was not");
    f.balanced().await;
}

async fn a_run_is_due_at_once_though_the_schedule_is_spread(f: Fixture) {
    let spread = Some(Spread { within: Span::parse("PT6H").expect("a span"), from: START });
    let one = edit(&f, every("P1D"));
    let content = Content::of(&NewTimer { spread, ..f.timer("content", 0) });
    let row = put(&f, &with(&f, ScheduleEdit { content, ..one })).await;
    assert!(f.store.specimen(&row).spread.is_some(), "that is what its occurrences are");
    let run = f.store.run_of(&row, uuid::Uuid::now_v7());
    assert_eq!((run.due_at, run.spread.is_none()), (f.now(), true));
}

/// A worker gets it when the one before has ended: until then it waits for that, and not for a worker.
async fn what_waits_for_its_turn_is_not_ready(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let content = Content::of(&for_queue(f.timer("content", 0), Dispatch::default()));
    let plan = Plan { overlap: Overlap::QueueOne, ..one.plan.clone() };
    put(&f, &with(&f, ScheduleEdit { plan, content, ..one })).await;
    let depth = async || f.store.queue_depths(&[lane(Namespace::OWN, "q")]).await.expect("counts").remove(0);
    serve(&f, &owned, MINUTE).await;
    assert_eq!(depth().await.ready, 1);
    let first = leased(&f).await;
    serve(&f, &owned, 2 * MINUTE).await;
    make(&f, &owned).await;
    let waits = depth().await;
    assert_eq!((waits.ready, waits.oldest_ready_at, waits.leased), (0, None, 1));
    drop(first);
}

on_both_stores! {
    a_removal_cancels_all_that_wait_for_others,
    one_that_is_held_does_not_keep_those_after_it,
    a_run_is_due_at_once_though_the_schedule_is_spread,
    what_waits_for_its_turn_is_not_ready,
}

//! Timers that merge: which go out together, when, and who is in a set after its claim.

use std::time::Duration;

use mainspring::cold::{Change, ChangeEvent, Claimed, Edit, NewTimer, TimerRow};
use mainspring::model::id::{Epoch, Uid};
use mainspring::model::merge::Merge;
use mainspring::model::pointer::Pointer;
use mainspring::model::policy::{Late, Policies, Retry, Then};
use mainspring::model::priority::Priority;
use mainspring::model::time::{Span, UnixMs};
use mainspring::model::timer::{Answer, AttemptResult, Next, State};

use super::fixture::{Fixture, START, held_open, identity, on_both_stores, record, token};

/// A timer of user `u` that merges with others within a second.
fn merging(f: &Fixture, id: &str, due_in_ms: i64) -> NewTimer {
    let merge = Some(Merge { window: Span::parse("PT1S").expect("a span") });
    let timer = f.timer(id, due_in_ms);
    NewTimer {
        owner: Some("u".into()),
        policies: Policies { merge, ..timer.policies },
        data: Some(id.as_bytes().to_vec()),
        ..timer
    }
}

async fn put(f: &Fixture, ids: &[(&str, i64)]) -> Vec<Uid> {
    let timers: Vec<NewTimer> = ids.iter().map(|(id, due)| merging(f, id, *due)).collect();
    f.register(&timers).await;
    timers.into_iter().map(|timer| timer.uid).collect()
}

async fn claim(f: &Fixture, pointers: &[(Pointer, Epoch)]) -> Claimed {
    f.store.claim(pointers, "a", 0).await.expect("claims")
}

/// Claims all that is due; returns the ids of each delivery, and when it goes out.
async fn claim_due(f: &Fixture, owned: &[(i32, Epoch)]) -> Vec<Vec<TimerRow>> {
    let mut sets = Vec::new();
    loop {
        let due = f.due(owned).await;
        let claimed = claim(f, &due).await;
        let claimed = sets_of(claimed);
        if claimed.is_empty() {
            return sets;
        }
        sets.extend(claimed);
    }
}

/// What goes out together; a timer that goes out alone is a set of one.
fn sets_of(claimed: Claimed) -> Vec<Vec<TimerRow>> {
    let alone = claimed.rows.into_iter().map(|row| vec![row]);
    claimed.sets.into_iter().map(|set| set.rows).chain(alone).collect()
}

fn ids(sets: &[Vec<TimerRow>]) -> Vec<String> {
    sets.iter().map(|set| set.iter().map(|row| row.id.as_str()).collect::<Vec<_>>().join(" ")).collect()
}

/// The attempt of these rows ended like this; another one follows in a second.
async fn ended(f: &Fixture, rows: &[TimerRow], result: AttemptResult) {
    let again = f.now().plus(Duration::from_secs(1));
    let change = |row: &TimerRow| Change {
        uid: row.uid,
        caller: None,
        event: ChangeEvent::Attempted(Next::Retry(again), record(row, result)),
    };
    f.apply(&rows.iter().map(change).collect::<Vec<_>>()).await;
}

async fn what_is_due_within_the_window_of_the_first_goes_out_at_the_last_due_time(f: Fixture) {
    let owned = f.own_all().await;
    let uids = put(&f, &[("a", 0), ("b", 500), ("c", 1000), ("d", 1001)]).await;
    assert!(claim_due(&f, &owned).await.is_empty(), "it waits for the others");
    assert!(f.due(&owned).await.is_empty(), "and the sweep does not find it");
    for (uid, wake) in uids.iter().zip([1000, 1000, 1000, 1001]) {
        assert_eq!(f.find(*uid).await.life.wake_at, START.plus(Duration::from_millis(wake)));
    }
    f.clock.advance(Duration::from_millis(999));
    assert!(claim_due(&f, &owned).await.is_empty());
    f.clock.advance(Duration::from_millis(1));
    let sets = claim_due(&f, &owned).await;
    assert_eq!(ids(&sets), ["a b c"]);
    let set = &sets[0];
    let delivery = set[0].delivery_id();
    for row in set {
        assert_eq!((row.life.state, row.life.attempt, row.life.tries), (State::Delivering, 1, 1));
        assert_eq!(row.delivery_id(), delivery);
        assert_eq!(row.delivery_due_at(), START.plus(Duration::from_secs(1)));
        assert_eq!(row.data.as_deref(), Some(row.id.as_bytes()));
    }
    f.clock.advance(Duration::from_millis(1));
    let sets = claim_due(&f, &owned).await;
    assert_eq!(ids(&sets), ["d"]);
    assert!(sets[0][0].merged.is_none(), "a set of one is an ordinary delivery");
    assert_ne!(sets[0][0].delivery_id(), delivery);
    let done: Vec<_> =
        set.iter().chain(&sets[0]).map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    assert_eq!(f.store.finish_delivered(&done).await.expect("ends").len(), 4);
    assert_eq!(f.find(uids[0]).await.delivery_id(), delivery, "also once it has ended");
    f.balanced().await;
}

async fn only_like_timers_go_out_together(f: Fixture) {
    let owned = f.own_all().await;
    let like = |id: &str| merging(&f, id, 0);
    let window = |span: &str| Some(Merge { window: Span::parse(span).expect("a span") });
    let timers = [
        like("a"),
        like("b"),
        NewTimer { owner: Some("v".into()), ..like("other-owner") },
        NewTimer { owner: None, ..like("its-own-owner") },
        NewTimer {
            policies: Policies { merge: window("PT2S"), ..Policies::default() },
            ..like("other-window")
        },
        NewTimer { policies: Policies::default(), ..like("plain") },
        NewTimer {
            target: mainspring::model::target::Target::Webhook(
                mainspring::model::target::Webhook::new(
                    "http://127.0.0.1:9/other",
                    None,
                    std::collections::BTreeMap::new(),
                )
                .expect("a webhook"),
            ),
            ..like("other-target")
        },
    ];
    f.register(&timers).await;
    let due = f.due(&owned).await;
    let claimed = claim(&f, &due).await;
    // Who has nobody to go out with costs what a timer costs that does not merge.
    assert_eq!(claimed.sets.len(), 1);
    let mut sets = ids(&sets_of(claimed));
    sets.sort();
    assert_eq!(sets, ["a b", "its-own-owner", "other-owner", "other-target", "other-window", "plain"]);
}

async fn who_waits_for_one_that_is_cancelled_or_moved_is_looked_at_again(f: Fixture) {
    let owned = f.own_all().await;
    let uids = put(&f, &[("a", 0), ("b", 600), ("c", 900)]).await;
    claim_due(&f, &owned).await;
    f.clock.advance(Duration::from_millis(10));
    let away = Edit { due_at: Some(f.now().plus(Duration::from_secs(60))), ..Edit::default() };
    for (uid, event, waits) in [(uids[2], ChangeEvent::Cancel, 600), (uids[1], ChangeEvent::Edit(away), 10)] {
        let (row, _) = f.change(uid, event).await;
        let pointers = f.store.regroup(&[row.left.expect("it merged")]).await.expect("looks again");
        assert!(pointers.iter().any(|pointer| pointer.uid == uids[0]), "{pointers:?}");
        let sets = claim_due(&f, &owned).await;
        match waits {
            10 => assert_eq!(ids(&sets), ["a"], "nobody is left to wait for"),
            _ => assert!(sets.is_empty(), "it waits for the next one"),
        }
        let wake = f.find(uids[0]).await.life.wake_at;
        assert!(waits == 10 || wake == START.plus(Duration::from_millis(waits)), "{wake:?}");
    }
}

async fn a_set_is_tried_again_less_who_left_it(f: Fixture) {
    let owned = f.own_all().await;
    let uids = put(&f, &[("a", -3), ("b", -2), ("c", -1), ("d", 0)]).await;
    let sets = claim_due(&f, &owned).await;
    assert_eq!(ids(&sets), ["a b c d"]);
    let delivery = sets[0][0].delivery_id();
    assert_eq!(f.change(uids[3], ChangeEvent::Cancel).await.1, Answer::InFlight);
    ended(&f, &sets[0], AttemptResult::Failed).await;
    assert_eq!(f.find(uids[3]).await.life.state, State::Cancelled);
    // One registered now is due with them, and cannot join.
    put(&f, &[("late", 0)]).await;
    assert_eq!(f.change(uids[1], ChangeEvent::Cancel).await.1, Answer::Stopped);
    let away = Edit { due_at: Some(f.now().plus(Duration::from_secs(1))), ..Edit::default() };
    let (moved, _) = f.change(uids[2], ChangeEvent::Edit(away)).await;
    assert!(moved.merged.is_none() && moved.delivery_id() != delivery);
    assert_eq!(
        ids(&claim_due(&f, &owned).await),
        Vec::<String>::new(),
        "the late one waits for the moved one"
    );
    f.clock.advance(Duration::from_secs(1));
    let mut sets = claim_due(&f, &owned).await;
    sets.sort_by_key(|set| set.len());
    assert_eq!(ids(&sets), ["a", "late c"]);
    assert_eq!((sets[0][0].delivery_id(), sets[0][0].life.attempt), (delivery.clone(), 2));
    assert!(sets[0][0].merged.is_some(), "what remains of a set is sent as one");
    assert_ne!(sets[1][0].delivery_id(), delivery);
    let attempts = f.store.attempts(&f.find(uids[0]).await).await.expect("reads");
    assert_eq!(attempts.len(), 1);
}

async fn a_set_has_at_most_a_hundred_members_and_the_rest_form_the_next(f: Fixture) {
    let owned = f.own_all().await;
    let timers: Vec<NewTimer> = (0..250).map(|n| merging(&f, &format!("t{n:03}"), n)).collect();
    f.register(&timers).await;
    f.clock.advance(Duration::from_secs(2));
    let sets = claim_due(&f, &owned).await;
    assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
    assert_eq!((sets[0][0].id.as_str(), sets[1][0].id.as_str()), ("t000", "t100"));
    let mut deliveries: Vec<String> = sets.iter().map(|set| set[0].delivery_id()).collect();
    deliveries.dedup();
    assert_eq!(deliveries.len(), 3);
}

async fn a_pointer_that_comes_up_for_another_set_comes_again(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &[("a", 0), ("z", 2000)]).await;
    f.clock.advance(Duration::from_secs(2));
    let due = f.due(&owned).await;
    let claimed = claim(&f, &due).await;
    let again: Vec<_> = claimed.early.iter().map(|early| (early.pointer, due[0].1)).collect();
    assert_eq!(again.len(), 1, "z is of the next set");
    assert_eq!(ids(&sets_of(claimed)), ["a"]);
    let epoch = owned.iter().find(|(shard, _)| *shard == again[0].0.shard).expect("owned").1;
    let claimed = claim(&f, &[(again[0].0, epoch)]).await;
    assert_eq!(ids(&sets_of(claimed)), ["z"]);
}

async fn a_set_whose_outcome_is_unknown_is_repeated_whole(f: Fixture) {
    let owned = f.own_all().await;
    let uids = put(&f, &[("a", 0), ("b", 0), ("c", 0)]).await;
    let first = claim_due(&f, &owned).await;
    f.clock.advance(Duration::from_secs(3600));
    let expired =
        |row: &TimerRow| Change { uid: row.uid, caller: None, event: ChangeEvent::ClaimExpired(token(row)) };
    // Of one the expiry is recorded later.
    f.apply(&[expired(&first[0][0]), expired(&first[0][2])]).await;
    let row = f.find(uids[0]).await;
    assert_eq!((row.life.state, row.life.uncertain), (State::Retrying, true));
    let due: Vec<_> = f.due(&owned).await;
    let claimed = claim(&f, &due).await;
    assert!(claimed.rows.is_empty() && claimed.sets.is_empty() && !claimed.early.is_empty(), "{claimed:?}");
    f.apply(&[expired(&first[0][1])]).await;
    let again = claim_due(&f, &owned).await;
    assert_eq!(ids(&again), ["a b c"]);
    assert_eq!(again[0][0].delivery_id(), first[0][0].delivery_id());
    assert!(again[0].iter().all(|row| row.life.attempt == 2 && row.life.uncertain));
}

async fn what_was_not_sent_is_made_into_a_set_anew(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &[("a", 0), ("b", 0)]).await;
    let sets = claim_due(&f, &owned).await;
    let released = |row: &TimerRow| Change {
        uid: row.uid,
        caller: None,
        event: ChangeEvent::Released(token(row), row.epoch),
    };
    f.apply(&sets[0].iter().map(released).collect::<Vec<_>>()).await;
    put(&f, &[("c", 0)]).await;
    let sets = claim_due(&f, &owned).await;
    assert_eq!(ids(&sets), ["a b c"]);
    assert!(sets[0].iter().all(|row| row.life.attempt == 1));
}

/// Of a set that was claimed some members were given back and one was not: what is left of it and what is made anew are two
/// deliveries.
async fn a_set_that_is_made_anew_is_another_delivery(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &[("a", -2), ("b", -1), ("c", 0)]).await;
    let first = claim_due(&f, &owned).await.remove(0);
    let released = |row: &TimerRow| Change {
        uid: row.uid,
        caller: None,
        event: ChangeEvent::Released(token(row), row.epoch),
    };
    f.apply(&[released(&first[0]), released(&first[2])]).await;
    ended(&f, &first[1..2], AttemptResult::Unknown).await;
    f.clock.advance(Duration::from_secs(1));
    let mut sets = claim_due(&f, &owned).await;
    sets.sort_by_key(|set| set.len());
    assert_eq!(ids(&sets), ["b", "a c"]);
    let deliveries = [sets[0][0].delivery_id(), sets[1][0].delivery_id()];
    assert_eq!(deliveries[0], first[1].delivery_id());
    assert_ne!(deliveries[0], deliveries[1]);
}

/// Somebody has locked a row: a set is not sent without it, and others go out.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_not_sent_in_part() {
    let f = Fixture::postgres().await;
    let owned = f.own_all().await;
    let uids = put(&f, &[("a", -1), ("b", 0)]).await;
    let sets = claim_due(&f, &owned).await;
    ended(&f, &sets[0], AttemptResult::Failed).await;
    f.clock.advance(Duration::from_secs(1));
    f.register(&[NewTimer { owner: Some("v".into()), ..merging(&f, "other", 0) }]).await;
    let mut lock = held_open(&f.config.cold.url).await;
    sea_orm::sqlx::query("SELECT 1 FROM timers WHERE uid = $1 FOR UPDATE")
        .bind(uids[1].0)
        .execute(&mut *lock)
        .await
        .expect("locks");
    let due = f.due(&owned).await;
    let claimed = claim(&f, &due).await;
    assert!(claimed.early.iter().any(|early| uids.contains(&early.pointer.uid)), "it comes again");
    assert_eq!(ids(&sets_of(claimed)), ["other"]);
    lock.rollback().await.expect("ends");
    assert_eq!(ids(&claim_due(&f, &owned).await), ["a b"]);
}

async fn the_grace_counts_from_the_moment_of_the_set(f: Fixture) {
    let owned = f.own_all().await;
    let late = Some(Late { grace: Span::parse("PT0.2S").expect("a span"), then: Then::Expire });
    let strict = |id: &str, due| {
        let timer = merging(&f, id, due);
        NewTimer { policies: Policies { late, ..timer.policies }, ..timer }
    };
    let timers = [strict("a", 0), strict("b", 900)];
    f.register(&timers).await;
    claim_due(&f, &owned).await;
    f.clock.advance(Duration::from_millis(1000));
    let due = f.look(&owned, &Default::default()).await;
    assert!(due.iter().all(|row| !row.too_late), "{due:?}");
    assert_eq!(ids(&claim_due(&f, &owned).await), ["a b"], "a is late by its own time only");
    // It is found late, as after an outage, and another one is due within its window still.
    f.register(&[strict("e", 0), strict("f", 700)]).await;
    f.clock.advance(Duration::from_millis(400));
    assert!(f.look(&owned, &Default::default()).await.iter().all(|row| !row.too_late));
    assert!(claim_due(&f, &owned).await.is_empty());
    f.clock.advance(Duration::from_millis(300));
    assert_eq!(ids(&claim_due(&f, &owned).await), ["e f"]);
    // The whole set is too late.
    f.register(&[strict("c", 0), strict("d", 500)]).await;
    f.clock.advance(Duration::from_secs(5));
    assert!(claim_due(&f, &owned).await.is_empty());
    assert!(f.look(&owned, &Default::default()).await.iter().all(|row| row.too_late));
}

async fn the_first_members_retry_holds_for_all(f: Fixture) {
    let owned = f.own_all().await;
    let once = Retry { attempts: 1, ..Retry::default() };
    let first = merging(&f, "a", 0);
    let second = merging(&f, "b", 1);
    let second = NewTimer { policies: Policies { retry: Some(once), ..second.policies }, ..second };
    f.register(&[first, second.clone()]).await;
    f.clock.advance(Duration::from_millis(1));
    let sets = claim_due(&f, &owned).await;
    assert_eq!(ids(&sets), ["a b"]);
    f.clock.advance(Duration::from_secs(3600));
    f.apply(&[Change {
        uid: second.uid,
        caller: None,
        event: ChangeEvent::ClaimExpired(token(&sets[0][1])),
    }])
    .await;
    let row = f.find(second.uid).await;
    assert_eq!((row.life.state, row.policies.retry), (State::Retrying, Some(once)), "its own is kept");
}

async fn the_highest_priority_comes_up_for_the_set(f: Fixture) {
    let owned = f.own_all().await;
    let high = NewTimer { priority: Priority::High, ..merging(&f, "a", 0) };
    let low = NewTimer { priority: Priority::Low, ..merging(&f, "b", 800) };
    f.register(&[high, low]).await;
    let due = f.due(&owned).await;
    let claimed = claim(&f, &due).await;
    assert!(claimed.rows.is_empty() && claimed.sets.is_empty());
    let early: Vec<_> =
        claimed.early.iter().map(|one| (one.pointer.priority, one.wait_ms, one.pointer.wake_at)).collect();
    assert_eq!(early, [(Priority::High, 800, UnixMs::new(START.get() + 800))]);
}

async fn an_older_epoch_claims_no_set(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &[("a", 0), ("b", 0)]).await;
    let stale = f.due(&owned).await;
    f.clock.advance(Duration::from_millis(3001));
    f.store.take_over(&identity("b"), 100, false, 3000).await.expect("takes");
    let claimed = claim(&f, &stale).await;
    assert!(claimed.sets.is_empty() && claimed.rows.is_empty());
}

on_both_stores!(
    what_is_due_within_the_window_of_the_first_goes_out_at_the_last_due_time,
    only_like_timers_go_out_together,
    who_waits_for_one_that_is_cancelled_or_moved_is_looked_at_again,
    a_set_is_tried_again_less_who_left_it,
    a_set_has_at_most_a_hundred_members_and_the_rest_form_the_next,
    a_pointer_that_comes_up_for_another_set_comes_again,
    a_set_whose_outcome_is_unknown_is_repeated_whole,
    what_was_not_sent_is_made_into_a_set_anew,
    a_set_that_is_made_anew_is_another_delivery,
    the_grace_counts_from_the_moment_of_the_set,
    the_first_members_retry_holds_for_all,
    the_highest_priority_comes_up_for_the_set,
    an_older_epoch_claims_no_set,
);

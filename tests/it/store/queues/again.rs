//! What a worker has, or had and lost, it gets again; what nobody got does not count.

use super::*;

async fn with_redo_a_worker_gets_what_it_has(f: Fixture) {
    f.own_all().await;
    f.put_for("a", 0, Dispatch::default()).await;
    f.clock.advance(Duration::from_millis(1));
    f.put_for("b", 0, Dispatch::default()).await;
    let redo = |worker: &str| Asking { redo: true, most: 10, ..asking(worker) };
    let one = f.lease(Asking { most: 1, ..redo("w1") }).await;
    let again = f.lease(redo("w1")).await;
    assert_eq!(again.len(), 1, "only what it has, though more is ready");
    assert_eq!((again[0].token, again[0].attempt), (one[0].token, 1), "the same token while the lease runs");
    assert_eq!(again[0].data, f.find(one[0].token.uid).await.body(), "and the same payload");
    f.settle(&one[0], Action::Extend(5000)).await.expect("counts");
    assert_eq!(f.lease(redo("w1")).await[0].token, one[0].token);
    // A millisecond is added whenever a worker is told of it again.
    f.after(6);
    f.swept().await;
    let third = f.lease(redo("w1")).await;
    assert_eq!((third.len(), third[0].timer.as_str(), third[0].attempt), (1, "a", 2));
    assert_ne!(third[0].token, one[0].token, "a new one after it ended");
    // Another worker takes it once it is lost again: the first has nothing left, and gets the next task.
    f.after(10);
    f.swept().await;
    let stolen = f.lease(Asking { most: 1, ..redo("w2") }).await;
    let next = f.lease(Asking { most: 1, ..redo("w1") }).await;
    let both: BTreeSet<_> = [&stolen[0], &next[0]].map(|item| item.timer.as_str()).into();
    assert_eq!(both, ["a", "b"].into());
    // Whoever settles by `retry` has settled.
    f.settle(&next[0], Action::Retry(Some(60_000))).await.expect("counts");
    assert!(f.lease(redo("w1")).await.is_empty());
}

/// Leases that ended, and at which nobody has looked yet, are found for whoever wants them again.
async fn a_redo_finds_leases_that_ended(f: Fixture) {
    f.put_for("a", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    assert!(f.store.ended_leases(Q, &["w1", "w2"]).await.expect("reads").is_empty());
    f.after(10);
    assert_eq!(f.store.ended_leases(Q, &["w1", "w2"]).await.expect("reads"), [item.token.uid]);
    assert!(f.store.ended_leases(Q, &["w2"]).await.expect("reads").is_empty());
}

/// A lease that ended a moment ago is no answer: it is looked at first, and the worker served again.
async fn a_redo_never_returns_a_token_that_is_over(f: Fixture) {
    f.own_all().await;
    f.put_for("a", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    f.put_for("b", 0, Dispatch::default()).await;
    f.after(10);
    let redo = Asking { redo: true, ..asking("w1") };
    let asked = [redo.clone()];
    let answer = f.store.lease(Q, &who_ask(Q, &asked), "a", &mut Turn::default()).await.expect("leases");
    assert!(answer.given[0].is_empty(), "neither a dead token nor another task: {:?}", answer.given);
    assert_eq!(answer.again, [0].into());
    f.swept().await;
    let again = f.lease(redo).await;
    assert_eq!((again[0].timer.as_str(), again[0].attempt), ("a", 2));
    assert_ne!(again[0].token, item.token);
    assert!(f.settle(&again[0], Action::Ack).await.is_some());
}

/// However much one worker has, another one finds what it has itself.
async fn a_redo_of_one_worker_hides_nothing_of_another(f: Fixture) {
    let mut timers: Vec<NewTimer> =
        (0..1005).map(|n| for_queue(f.timer(&format!("t{n}"), 0), only(To::Worker("w1".into())))).collect();
    timers.sort_by_key(|timer| timer.uid);
    let last = timers.last_mut().expect("many");
    last.dispatch = Some(only(To::Worker("w2".into())));
    let last = last.uid;
    for timers in timers.chunks(500) {
        f.register(timers).await;
    }
    let many = |most: usize| Asking { most, ..asking("w1") };
    assert_eq!((f.lease(many(1000)).await.len(), f.lease(many(1000)).await.len()), (1000, 4));
    assert_eq!(f.item("w2").await.token.uid, last);
    let redo = |worker: &str| Asking { redo: true, ..asking(worker) };
    let both = f.lease_all(&[redo("w1"), redo("w2")]).await;
    assert_eq!(both[1].iter().map(|item| item.token.uid).collect::<Vec<_>>(), [last]);
    assert_eq!(both[0].len(), 1);
}

async fn what_a_worker_had_before_is_not_taken_back(f: Fixture) {
    let uid = f.put_for("t", 0, Dispatch { times: 2, ..Dispatch::default() }).await;
    let first = f.item("w1").await;
    // It asks for that again, and this answer cannot be written.
    let again = f.lease(Asking { redo: true, ..asking("w1") }).await;
    assert_eq!(again.iter().map(|item| item.token).collect::<Vec<_>>(), [first.token]);
    assert!(taken_back(&again).is_empty(), "it may be at work on it");
    // Nor is there another answer than this to take back of.
    let other = f.lease(Asking { redo: true, ..asking("w2") }).await;
    f.apply(&taken_back(&other)).await;
    assert!(f.settle(&other[0], Action::Ack).await.is_none(), "nobody got it");
    assert!(f.settle(&first, Action::Ack).await.is_some(), "its first answer holds");
    assert_eq!(f.find(uid).await.seats.map(|seats| (seats.acked, seats.fresh)), Some((1, 1)));
}

/// The answer that gave it out got lost. Until that is noticed its worker has asked again, and is at work, or has extended it.
async fn what_a_worker_was_told_again_is_not_taken_back(f: Fixture) {
    for extends in [false, true] {
        let uid = f.put_for(&format!("t-{extends}"), 0, Dispatch::default()).await;
        let lost = f.lease(asking("w1")).await;
        let again = match extends {
            false => f.lease(Asking { redo: true, ..asking("w1") }).await.remove(0),
            true => {
                f.settle(&lost[0], Action::Extend(60_000)).await.expect("counts");
                lost[0].clone()
            }
        };
        assert_eq!(again.token, lost[0].token);
        assert!(matches!(f.apply(&taken_back(&lost)).await[..], [Applied::Live(_, Answer::Stale)]));
        f.nothing_for("w2").await;
        assert!(f.settle(&again, Action::Ack).await.is_some(), "extends: {extends}");
        assert_eq!(f.find(uid).await.life.state, State::Delivered);
    }
    f.balanced().await;
}

/// An old call of a worker waits still, whose connection is gone, when it asks anew: both are the same worker's.
async fn of_two_calls_of_one_worker_with_redo_one_gets_a_task(f: Fixture) {
    for id in ["a", "b"] {
        f.put_for(id, 0, Dispatch::default()).await;
    }
    let asked = [Asking { redo: true, ..asking("w1") }, Asking { redo: true, ..asking("w1") }];
    let answer = f.store.lease(Q, &who_ask(Q, &asked), "a", &mut Turn::default()).await.expect("leases");
    assert_eq!(answer.given.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(answer.again, [1].into());
    let next = f.lease(asked[1].clone()).await;
    assert_eq!(next.iter().map(|item| item.token).collect::<Vec<_>>(), [answer.given[0][0].token]);
}

/// What a worker had lost, and was given again in an answer that could not be written, it has lost as before.
async fn what_a_worker_had_lost_it_finds_though_an_answer_got_lost(f: Fixture) {
    f.own_all().await;
    f.put_for("a", 0, Dispatch::default()).await;
    f.item("w1").await;
    f.after(10);
    f.swept().await;
    f.put_for("b", 0, Dispatch::default()).await;
    let redo = Asking { redo: true, most: 10, ..asking("w1") };
    for attempt in [2, 2] {
        let again = f.lease(redo.clone()).await;
        let seen: Vec<_> = again.iter().map(|item| (item.timer.as_str(), item.attempt)).collect();
        assert_eq!(seen, [("a", attempt)], "what it had first, and nothing else");
        f.apply(&taken_back(&again)).await;
    }
    // Another worker's is no more than given back.
    let redo = Asking { redo: true, most: 10, ..asking("w2") };
    let other = f.lease(redo.clone()).await;
    let a = other.iter().find(|item| item.timer == "a").expect("it is free");
    f.apply(&taken_back(&other)).await;
    assert_eq!(f.store.places(a.token.uid).await.expect("reads")[0].held, Held::Returned);
    assert_eq!(f.lease(redo).await.len(), 2);
}

async fn what_nobody_got_is_taken_back_and_does_not_count(f: Fixture) {
    let uid = f.put_for("t", 0, times(2, false)).await;
    let item = f.item("w1").await;
    let back = |item: &Leased| {
        let event = ChangeEvent::TakeBack(item.token, item.lease_until, Held::Returned);
        Change { uid, caller: None, event }
    };
    f.apply(&[back(&item)]).await;
    let row = f.find(uid).await;
    assert_eq!((row.life.state, row.life.tries), (State::Scheduled, 0));
    assert_eq!(row.seats.as_ref().map(|seats| seats.fresh), Some(2));
    assert!(f.settle(&item, Action::Ack).await.is_none(), "its token means nothing any more");
    let again = f.item("w1").await;
    assert_eq!((again.attempt, again.delivery_id.as_str()), (1, item.delivery_id.as_str()));
    assert!(matches!(f.apply(&[back(&item)]).await[..], [Applied::Live(_, Answer::Stale)]));
    f.settle(&again, Action::Retry(Some(0))).await.expect("counts");
    let second = f.item("w1").await;
    assert_eq!(second.attempt, 2);
    f.apply(&[back(&second)]).await;
    let places = f.store.places(uid).await.expect("reads");
    assert_eq!((places.len(), places[0].held, places[0].attempt), (1, Held::Returned, 1));
    f.balanced().await;
}

/// As where an old copy of the store answers: a node that has seen a later one neither gives out nor tells what was given.
async fn a_node_that_has_seen_a_later_store_gives_nothing_out(f: Fixture) {
    f.put_for("t", 0, times(1, false)).await;
    f.put_for("u", 0, times(1, false)).await;
    f.item("w1").await;
    f.store.see(i64::MAX);
    for redo in [true, false] {
        let asked = [Asking { redo, most: 10, ..asking("w1") }, Asking { redo, ..asking("w2") }];
        let given = f.lease_all(&asked).await;
        assert!(given.iter().all(Vec::is_empty), "redo {redo}: {given:?}");
    }
}

on_both_stores! {
    a_node_that_has_seen_a_later_store_gives_nothing_out,
    with_redo_a_worker_gets_what_it_has,
    a_redo_finds_leases_that_ended,
    a_redo_never_returns_a_token_that_is_over,
    a_redo_of_one_worker_hides_nothing_of_another,
    what_a_worker_had_before_is_not_taken_back,
    what_a_worker_was_told_again_is_not_taken_back,
    of_two_calls_of_one_worker_with_redo_one_gets_a_task,
    what_a_worker_had_lost_it_finds_though_an_answer_got_lost,
    what_nobody_got_is_taken_back_and_does_not_count,
}

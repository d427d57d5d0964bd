//! What is claimed, and what its results count for.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use mainspring::cold::{Applied, Backlogged, Change, ChangeEvent, Edit, NewTimer};
use mainspring::model::id::{Epoch, Generation, Uid};
use mainspring::model::namespace::Namespace;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::policy::{Late, Policies, Then};
use mainspring::model::priority::Priority;
use mainspring::model::target::{Target, Webhook};
use mainspring::model::time::Span;
use mainspring::model::timer::{Answer, AttemptResult, Next, State};

use super::fixture::{Fixture, START, behind_its_back, identity, on_both_stores, record, token};

async fn a_timer_is_claimed_at_its_due_time_and_never_before(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 1000).await;
    f.clock.advance(Duration::from_millis(999));
    assert!(f.due(&owned).await.is_empty());
    let early = Pointer {
        uid,
        shard: f.find(uid).await.shard,
        namespace: Namespace::OWN,
        generation: Generation(1),
        attempt: 0,
        wake_at: f.now(),
        lane: 0,
        minute: false,
        is_for_queue: false,
        priority: Priority::Normal,
        change: 0,
        overdue: false,
        via: Via::Loader,
    };
    let epoch = owned[0].1;
    assert!(f.claim(&[(early, epoch)]).await.is_empty(), "the claim itself refuses what is not due");
    f.clock.advance(Duration::from_millis(1));
    let rows = f.claim_due(&owned).await;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].life.state, rows[0].life.attempt, rows[0].life.tries), (State::Delivering, 1, 1));
    assert_eq!(rows[0].data.as_deref(), Some(&br#"{"a":"\u0000"}"#[..]));
    assert!(f.claim(&f.due(&owned).await).await.is_empty(), "claimed once");
    assert_eq!(
        f.store.finish_delivered(&[(uid, record(&rows[0], AttemptResult::Ok))]).await.expect("ends"),
        [uid]
    );
    let row = f.find(uid).await;
    assert_eq!((row.life.state, row.ended_at), (State::Delivered, Some(f.now())));
    assert_eq!(f.store.attempts(&row).await.expect("reads").len(), 1);
    f.balanced().await;
}

async fn who_claims_too_early_is_told_when_to_come_again(f: Fixture) {
    let owned = f.own_all().await;
    let (due, soon, moved) = (f.put("due", 0).await, f.put("soon", 80).await, f.put("moved", 80).await);
    f.clock.advance(Duration::from_millis(80));
    let found = f.due(&owned).await;
    f.clock.set(START);
    let later = Edit { due_at: Some(f.now().plus(Duration::from_secs(5))), ..Edit::default() };
    f.change(moved, ChangeEvent::Edit(later)).await;
    assert_eq!(found.len(), 3);
    let claimed = f.store.claim(&found, "a", 50).await.expect("claims");
    assert_eq!(claimed.rows.iter().map(|row| row.uid).collect::<Vec<_>>(), [due]);
    let early: Vec<_> =
        claimed.early.iter().map(|one| (one.pointer.uid, one.wait_ms, one.is_moved)).collect();
    assert_eq!(early, [(soon, 30, false)], "what was moved has another generation");
    assert_eq!(f.find(soon).await.life.state, State::Scheduled);
    f.clock.advance(Duration::from_millis(30));
    let claimed = f.store.claim(&found, "a", 50).await.expect("claims");
    assert_eq!(claimed.rows.iter().map(|row| row.uid).collect::<Vec<_>>(), [soon]);
    assert_eq!(claimed.early, [], "stale and claimed already");
}

async fn who_is_refused_for_another_reason_than_the_time_is_not_early(f: Fixture) {
    let owned = f.own_all().await;
    f.put("t", 0).await;
    f.clock.advance(Duration::from_millis(200));
    let due = f.due(&owned).await;
    f.own_all().await;
    let claimed = f.store.claim(&due, "a", 50).await.expect("claims");
    assert_eq!((claimed.rows.len(), claimed.early.len()), (0, 0), "the epoch is an older one");
}

async fn a_claim_of_an_older_generation_gets_nothing(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let stale = f.due(&owned).await;
    let (row, answer) = f
        .change(
            uid,
            ChangeEvent::Edit(Edit {
                due_at: Some(f.now().plus(Duration::from_secs(0))),
                data: Some(None),
                ..Edit::default()
            }),
        )
        .await;
    assert_eq!((answer, row.life.generation), (Answer::Done, Generation(2)));
    assert!(f.claim(&stale).await.is_empty(), "the old generation is due in the pointer only");
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn a_claim_under_an_older_epoch_gets_nothing(f: Fixture) {
    let owned = f.own_all().await;
    f.put("t", 0).await;
    let stale = f.due(&owned).await;
    f.clock.advance(Duration::from_millis(3001));
    let other = identity("b");
    let taken = f.store.take_over(&other, 100, false, 3000).await.expect("takes");
    assert_eq!(taken.len(), 8, "the lease has run out");
    assert!(f.claim(&stale).await.is_empty(), "fenced");
    assert_eq!(f.claim_due(&taken).await.len(), 1);
    assert!(
        f.store.renew(&f.me, &owned, |_| 0, 3000).await.expect("asks").is_empty(),
        "renewing an old epoch renews nothing"
    );
}

async fn a_late_result_counts_only_for_its_own_attempt(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let first = f.claim_due(&owned).await.remove(0);
    f.clock.advance(Duration::from_secs(60));
    f.change(uid, ChangeEvent::ClaimExpired(token(&first))).await;
    let second = f.claim_due(&owned).await.remove(0);
    assert_eq!(second.life.attempt, 2);
    let late = record(&first, AttemptResult::Ok);
    assert!(
        f.store.finish_delivered(&[(uid, late.clone())]).await.expect("asks").is_empty(),
        "not the current attempt"
    );
    let (row, answer) = f.change(uid, ChangeEvent::Attempted(Next::GiveUp, late)).await;
    assert_eq!((answer, row.life.state), (Answer::Done, State::Delivering));
    let failed = record(&second, AttemptResult::Failed);
    let (row, _) = f.change(uid, ChangeEvent::Attempted(Next::Retry(f.now()), failed)).await;
    assert_eq!(row.life.state, State::Delivered, "the late success was not thrown away");
    let results: Vec<_> = f
        .store
        .attempts(&f.find(uid).await)
        .await
        .expect("reads")
        .iter()
        .map(|a| (a.attempt, a.result))
        .collect();
    assert_eq!(results, [(1, AttemptResult::Ok), (2, AttemptResult::Failed)]);
    f.balanced().await;
}

async fn a_claim_that_runs_out_is_found_and_only_then(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let row = f.claim_due(&owned).await.remove(0);
    let (_, early) = f.change(uid, ChangeEvent::ClaimExpired(token(&row))).await;
    assert_eq!(early, Answer::Stale, "it has not run out");
    f.clock.set(row.life.wake_at);
    let due = f.due(&owned).await;
    assert_eq!((due.len(), due[0].0.attempt), (1, 1));
    assert!(f.claim(&due).await.is_empty(), "it is not claimed before it is given up");
}

async fn of_a_claim_and_a_cancel_exactly_one_wins(f: Fixture) {
    let owned = f.own_all().await;
    let timers: Vec<_> = (0..200).map(|n| f.timer(&format!("t{n}"), 0)).collect();
    f.register(&timers).await;
    let due = f.due(&owned).await;
    assert_eq!(due.len(), 200);
    let claims = async |range: Range<usize>| {
        let rows = f.claim(&due[range]).await;
        rows.into_iter().map(|row| row.uid).collect::<HashSet<_>>()
    };
    let cancels = async |range: Range<usize>| {
        let mut cancelled = HashSet::new();
        let pointed = due[range].iter().map(|(pointer, _)| pointer.uid);
        let changes: Vec<_> =
            pointed.map(|uid| Change { uid, caller: None, event: ChangeEvent::Cancel }).collect();
        for (applied, change) in f.apply(&changes).await.into_iter().zip(&changes) {
            match applied {
                Applied::Live(_, Answer::Cancelled) => drop(cancelled.insert(change.uid)),
                Applied::Live(row, Answer::InFlight) => assert_eq!(row.life.state, State::Delivering),
                other => panic!("{other:?}"),
            }
        }
        cancelled
    };
    // Whoever comes first has a batch of rows; then both come at once, each first with every other batch.
    assert_eq!((claims(0..20).await.len(), cancels(0..20).await.len()), (20, 0));
    assert_eq!((cancels(20..40).await.len(), claims(20..40).await.len()), (20, 0));
    for from in (40..200).step_by(20) {
        let (claimed, cancelled) = if from % 40 == 0 {
            tokio::join!(claims(from..from + 20), cancels(from..from + 20))
        } else {
            let (cancelled, claimed) = tokio::join!(cancels(from..from + 20), claims(from..from + 20));
            (claimed, cancelled)
        };
        assert!(claimed.is_disjoint(&cancelled));
        assert_eq!(claimed.len() + cancelled.len(), 20);
    }
    f.balanced().await;
}

async fn what_is_found_later_than_its_grace_expires_unattempted(f: Fixture) {
    let owned = f.own_all().await;
    let late = Late { grace: Span::parse("PT10S").expect("a span"), then: Then::Expire };
    let timer =
        NewTimer { policies: Policies { late: Some(late), ..Policies::default() }, ..f.timer("t", 0) };
    f.register(&[timer.clone(), f.timer("u", 0)]).await;
    f.clock.advance(Duration::from_secs(11));
    let claimed = f.claim_due(&owned).await;
    assert_eq!(
        claimed.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
        ["u"],
        "the claim itself refuses it"
    );
    let (row, _) = f.change(timer.uid, ChangeEvent::TooLate(Generation(1))).await;
    assert_eq!((row.life.state, row.life.tries), (State::Expired, 0));
    f.balanced().await;
}

async fn a_release_is_only_for_the_holder_of_the_epoch(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let row = f.claim_due(&owned).await.remove(0);
    let (_, answer) = f.change(uid, ChangeEvent::Released(token(&row), Epoch(row.epoch.0 - 1))).await;
    assert_eq!(answer, Answer::Stale);
    let (back, answer) = f.change(uid, ChangeEvent::Released(token(&row), row.epoch)).await;
    assert_eq!((answer, back.life.state, back.life.attempt), (Answer::Done, State::Scheduled, 0));
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn postponed_rows_leave_the_head_and_keep_their_due_time(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let due = f.due(&owned).await;
    f.store.postpone(&[(due[0].0, 5000)]).await.expect("postpones");
    assert!(f.due(&owned).await.is_empty());
    assert_eq!(f.find(uid).await.life.due_at, START);
    f.clock.advance(Duration::from_secs(5));
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn rows_of_a_lane_with_a_backlog_are_skipped_and_ends_are_not(f: Fixture) {
    let owned = f.own_all().await;
    let Target::Webhook(hook) = f.timer("t", 0).target else { panic!("a webhook") };
    let lane = hook.lane(Namespace::OWN);
    let elsewhere = Webhook { url: "http://elsewhere/".parse().expect("a URL"), ..hook };
    let other = NewTimer { target: Target::Webhook(elsewhere), ..f.timer("other", 0) };
    let (claimed, other, first) = (f.put("claimed", 0).await, other, f.put("first", 60_000).await);
    let row = f.claim_due(&owned).await.remove(0);
    let grace = Late { grace: Span::parse("PT1S").expect("a span"), then: Then::Expire };
    let late = NewTimer {
        policies: Policies { late: Some(grace), ..Policies::default() },
        ..f.timer("late", 60_000)
    };
    f.register(&[other.clone(), late.clone()]).await;
    f.clock.set(row.life.wake_at.plus(Duration::from_secs(60)));
    let normal = |lanes: &[i64]| lanes.iter().map(|lane| (*lane, Priority::Normal)).collect();
    let but = async |first: &[i64], retry: &[i64]| {
        let found = f
            .due_but(&owned, &Backlogged { first: normal(first), retry: normal(retry), held: Vec::new() })
            .await;
        let mut found: Vec<_> = found.into_iter().map(|(pointer, _)| pointer.uid).collect();
        for always in [&other, &late] {
            assert!(found.contains(&always.uid), "another receiver's and what is to expire: {}", always.id);
            found.retain(|uid| *uid != always.uid);
        }
        found
    };
    assert_eq!(but(&[], &[lane]).await, [claimed, first], "it is no retry");
    assert_eq!(but(&[1, lane], &[lane]).await, [claimed], "its claim has run out");
    f.change(claimed, ChangeEvent::ClaimExpired(token(&row))).await;
    f.clock.advance(Duration::from_secs(60));
    assert_eq!(but(&[lane], &[1]).await, [claimed], "it is a retry now");
    assert!(but(&[lane], &[lane, 1]).await.is_empty());
}

/// A backlog is of one priority, and one that is held is of all; what is held does not expire either.
async fn a_backlog_of_low_ones_hides_no_high_one(f: Fixture) {
    let owned = f.own_all().await;
    let ranked = |id: &str, priority| NewTimer { priority, ..f.timer(id, 0) };
    let grace = Late { grace: Span::parse("PT1S").expect("a span"), then: Then::Expire };
    let policies = Policies { late: Some(grace), ..Policies::default() };
    let timers = [
        ranked("high", Priority::High),
        ranked("low", Priority::Low),
        f.timer("normal", 0),
        NewTimer { policies, ..ranked("late", Priority::Low) },
    ];
    f.register(&timers).await;
    f.clock.advance(Duration::from_secs(60));
    let lane = timers[0].target.lane(Namespace::OWN);
    let found = async |backlogged: Backlogged| {
        let found = f.due_but(&owned, &backlogged).await;
        let id = |uid: Uid| timers.iter().find(|timer| timer.uid == uid).map(|timer| timer.id.to_string());
        let mut ids: Vec<String> = found.into_iter().filter_map(|(pointer, _)| id(pointer.uid)).collect();
        ids.sort();
        ids.join(" ")
    };
    let of = |first: &[Priority]| Backlogged {
        first: first.iter().map(|priority| (lane, *priority)).collect(),
        ..Backlogged::default()
    };
    assert_eq!(found(of(&[])).await, "high late low normal");
    assert_eq!(found(of(&[Priority::Low])).await, "high late normal", "what has to expire is no attempt");
    assert_eq!(found(of(&[Priority::Normal])).await, "high late low");
    assert_eq!(found(of(&[Priority::Normal, Priority::Low])).await, "high late");
    assert_eq!(found(Backlogged { held: vec![lane], ..Backlogged::default() }).await, "");
}

/// One unreadable row (of a newer version, or damaged) holds nobody else up.
async fn an_unreadable_timer_is_left_alone(f: Fixture) {
    let owned = f.own_all().await;
    let (bad, good) = (f.put("bad", 0).await, f.put("good", 0).await);
    behind_its_back(&f, "UPDATE timers SET policies = '{]' WHERE id = 'bad'").await;
    let due = f.due(&owned).await;
    let claimed = f.store.claim(&due, "a", 0).await.expect("claims");
    assert_eq!(claimed.rows.iter().map(|row| row.uid).collect::<Vec<_>>(), [good]);
    assert_eq!(claimed.unreadable, [bad]);
    let cancel = |uid| Change { uid, caller: None, event: ChangeEvent::Cancel };
    let answers = f.apply(&[cancel(bad), cancel(good)]).await;
    assert!(matches!(answers[..], [Applied::Unreadable, Applied::Live(_, Answer::InFlight)]), "{answers:?}");
}

/// A node of an older version, beside newer ones that register targets of a new kind.
async fn a_timer_of_an_unknown_kind_is_never_claimed_and_can_be_cancelled(f: Fixture) {
    let owned = f.own_all().await;
    let (strange, cancelled) = (f.put("strange", 0).await, f.put("cancelled", 0).await);
    let known = f.put("known", 0).await;
    let pointers = f.due(&owned).await;
    behind_its_back(
        &f,
        "UPDATE timers SET kind = 9, target = '{\"carrier_pigeon\":{}}' WHERE id IN ('strange', 'cancelled')",
    )
    .await;
    assert_eq!(pointers.len(), 3);
    let claimed = f.store.claim(&pointers, "a", 0).await.expect("claims");
    assert_eq!(claimed.rows.iter().map(|row| row.uid).collect::<Vec<_>>(), [known]);
    assert!(claimed.unreadable.is_empty());
    let found = f.look(&owned, &Backlogged::default()).await;
    let mut unknown: Vec<_> = found.iter().filter(|due| !due.is_known_kind).collect();
    unknown.sort_by_key(|due| due.pointer.uid != strange);
    assert_eq!(unknown.iter().map(|due| due.pointer.uid).collect::<Vec<_>>(), [strange, cancelled]);
    f.store.postpone(&[(unknown[0].pointer, 10_000)]).await.expect("puts off");
    let row = f.find(strange).await;
    assert_eq!((row.life.state, &row.target), (State::Scheduled, &Target::Unknown { kind: 9 }));
    let (row, answer) = f.change(cancelled, ChangeEvent::Cancel).await;
    assert_eq!((row.life.state, answer), (State::Cancelled, Answer::Cancelled));
    assert_eq!(f.find(cancelled).await.target, Target::Unknown { kind: 9 });
    let strange_is_due = async || f.due(&owned).await.iter().any(|(pointer, _)| pointer.uid == strange);
    assert!(!strange_is_due().await, "it is not looked at again for a while");
    f.clock.advance(Duration::from_secs(60));
    assert!(strange_is_due().await);
    behind_its_back(&f, "UPDATE timers SET state = 1 WHERE id = 'strange'").await;
    assert!(!strange_is_due().await, "another node's claim of it is its own");
}

on_both_stores!(
    a_timer_is_claimed_at_its_due_time_and_never_before,
    who_claims_too_early_is_told_when_to_come_again,
    who_is_refused_for_another_reason_than_the_time_is_not_early,
    a_claim_of_an_older_generation_gets_nothing,
    a_claim_under_an_older_epoch_gets_nothing,
    a_late_result_counts_only_for_its_own_attempt,
    a_claim_that_runs_out_is_found_and_only_then,
    of_a_claim_and_a_cancel_exactly_one_wins,
    what_is_found_later_than_its_grace_expires_unattempted,
    a_release_is_only_for_the_holder_of_the_epoch,
    postponed_rows_leave_the_head_and_keep_their_due_time,
    rows_of_a_lane_with_a_backlog_are_skipped_and_ends_are_not,
    a_backlog_of_low_ones_hides_no_high_one,
    an_unreadable_timer_is_left_alone,
    a_timer_of_an_unknown_kind_is_never_claimed_and_can_be_cancelled,
);

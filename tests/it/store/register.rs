//! What is written: registrations, changes, ids.

use std::time::Duration;

use mainspring::cold::Whose;
use mainspring::cold::{Applied, Change, ChangeEvent, Edit, NewTimer, Registered};
use mainspring::model::id::{Generation, Uid, Version};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{Answer, AttemptResult, State};

use super::fixture::{Fixture, held_open, on_both_stores, record, somebody_waits};
use crate::support::psql;

async fn an_ended_id_stays_taken_and_again_starts_the_next_generation(f: Fixture) {
    let owned = f.own_all().await;
    f.alive().await;
    let uid = f.put("t", 0).await;
    let first = f.claim_due(&owned).await.remove(0);
    f.store.finish_delivered(&[(uid, record(&first, AttemptResult::Ok))]).await.expect("ends");
    let same = f.timer("t", 0);
    assert!(
        matches!(&f.register(std::slice::from_ref(&same)).await[..], [Registered::Same(row)] if row.life.state == State::Delivered)
    );
    let other = NewTimer { request_hash: [8; 16], ..same.clone() };
    assert!(matches!(f.register(std::slice::from_ref(&other)).await[..], [Registered::Taken]));
    let again = NewTimer { again: true, ..other };
    let answers = f.register(std::slice::from_ref(&again)).await;
    let [Registered::New(row)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(row.life.generation, Generation(2));
    assert_ne!(row.delivery_id(), first.delivery_id(), "no two firings share an id");
    assert!(matches!(f.register(&[again]).await[..], [Registered::Same(_)]), "again is repeated safely");
    let (_, answer) = f.change(uid, ChangeEvent::Cancel).await;
    assert_eq!(answer, Answer::Cancelled, "nothing of this registration was sent");
    f.balanced().await;
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending), (2, 1, 1, 0));
}

async fn a_timer_wakes_by_the_stores_clock_whatever_its_node_believes(f: Fixture) {
    // The store's clock was set back by an hour, and the node has not heard of it.
    let believed = UnixMs::new(f.now().get() + 3_600_000);
    for (id, due_in, wakes_in) in [("soon", 1000, 1000), ("past", -1000, 0)] {
        let timer = NewTimer { created_at: believed, ..f.timer(id, due_in) };
        f.register(std::slice::from_ref(&timer)).await;
        assert_eq!(f.find(timer.uid).await.life.wake_at.get() - f.now().get(), wakes_in, "{id}");
    }
}

async fn of_equal_ids_in_one_batch_the_first_is_new(f: Fixture) {
    let one = f.timer("t", 1000);
    let other = NewTimer { request_hash: [9; 16], ..one.clone() };
    let answers = f.register(&[f.timer("x", 1), one.clone(), one.clone(), other, one.clone()]).await;
    assert!(
        matches!(
            answers[..],
            [
                Registered::New(_),
                Registered::New(_),
                Registered::Same(_),
                Registered::Taken,
                Registered::Same(_)
            ]
        ),
        "{answers:?}"
    );
    assert_eq!(f.store.ledger(Whose::All).await.expect("reads").registered, 2);
    f.balanced().await;
}

async fn many_callers_of_one_id_make_one_timer(f: Fixture) {
    let store = &f.store;
    let timer = f.timer("t", 1000);
    let answers = futures::future::join_all((0..50).map(|_| {
        let timer = [timer.clone()];
        async move { store.register(&timer).await.remove(0).expect("registers") }
    }))
    .await;
    assert_eq!(answers.iter().filter(|a| matches!(a, Registered::New(_))).count(), 1);
    assert_eq!(answers.iter().filter(|a| matches!(a, Registered::Same(_))).count(), 49);
}

async fn changes_of_one_timer_in_one_batch_see_each_other(f: Fixture) {
    let uid = f.put("t", 60_000).await;
    let later = f.now().plus(Duration::from_secs(120));
    let edit = |due_at| ChangeEvent::Edit(Edit { due_at: Some(due_at), ..Edit::default() });
    let batch = [edit(later), ChangeEvent::Fire(None), ChangeEvent::Cancel, ChangeEvent::Cancel]
        .map(|event| Change { uid, caller: None, event });
    let answers = f.apply(&batch).await;
    assert!(
        matches!(&answers[..], [Applied::Live(a, Answer::Done), Applied::Live(b, Answer::Done), Applied::Live(c, Answer::Cancelled), Applied::NotLive]
            if a.life.due_at == later && b.life.generation == Generation(3) && c.life.state == State::Cancelled),
        "{answers:?}"
    );
    let row = f.find(uid).await;
    assert_eq!((row.life.state, row.life.generation), (State::Cancelled, Generation(3)));
    f.balanced().await;
}

async fn an_edit_changes_only_what_it_names(f: Fixture) {
    let uid = f.put("t", 60_000).await;
    let labels = Edit { labels: Some(Some(r#"{"a":"b"}"#.into())), ..Edit::default() };
    let (row, _) = f.change(uid, ChangeEvent::Edit(labels.clone())).await;
    assert_eq!(
        (row.life.generation, row.life.version),
        (Generation(1), Version(2)),
        "labels make no new generation"
    );
    let (row, answer) = f.change(uid, ChangeEvent::Edit(labels)).await;
    assert_eq!((answer, row.life.version), (Answer::Done, Version(2)), "nothing changed");
    let data = Edit { data: Some(Some(b"[1]".to_vec())), if_version: Some(Version(2)), ..Edit::default() };
    let (row, _) = f.change(uid, ChangeEvent::Edit(data.clone())).await;
    assert_eq!((row.life.generation, row.life.version), (Generation(2), Version(3)));
    let again = f.apply(&[Change { uid, caller: None, event: ChangeEvent::Edit(data) }]).await;
    assert!(matches!(again[..], [Applied::OtherVersion(Version(3))]), "{again:?}");
    let row = f.find(uid).await;
    assert_eq!((row.data.as_deref(), row.labels.as_deref()), (Some(&b"[1]"[..]), Some(r#"{"a":"b"}"#)));
}

/// Whoever waits for a timer holds no other: claims and ends lock theirs in any order, and would wait in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_timer_holds_no_other() {
    let f = Fixture::postgres().await;
    let mut uids = [f.put("a", 1000).await, f.put("b", 1000).await, f.put("c", 1000).await];
    uids.sort_unstable();
    let mut other = held_open(&f.config.cold.url).await;
    let lock =
        |uid: Uid| sea_orm::sqlx::query("SELECT 1 FROM timers WHERE uid = $1 FOR UPDATE NOWAIT").bind(uid.0);
    lock(uids[1]).execute(&mut *other).await.expect("locks");
    let cancel = |uid| Change { uid, caller: None, event: ChangeEvent::Cancel };
    let (store, changes) = (f.store.clone(), uids.map(cancel));
    let applying = tokio::spawn(async move { store.apply(&changes).await });
    somebody_waits(&f.config.cold.url).await;
    for free in [uids[0], uids[2]] {
        lock(free).execute(&mut *other).await.expect("nobody holds it");
    }
    other.commit().await.expect("commits");
    for applied in applying.await.expect("runs") {
        let Ok(Applied::Live(row, Answer::Cancelled)) = applied else { panic!("{applied:?}") };
        assert_eq!(row.life.state, State::Cancelled);
    }
    f.balanced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_waited_for_its_own_row_to_end_is_not_new() {
    let f = Fixture::postgres().await;
    let uid = f.put("t", 0).await;
    let mut ending = held_open(&f.config.cold.url).await;
    for sql in [
        "INSERT INTO history (uid, id, caller_id, shard, state, due_at, wake_at, generation, attempt, tries, \
         version, epoch, lane, minute, uncertain, cancel_requested, acked_late, target, request_hash, created_at, \
         ended_at) SELECT uid, id, caller_id, shard, state, due_at, wake_at, generation, attempt, tries, \
         version, epoch, lane, minute, uncertain, cancel_requested, acked_late, target, request_hash, created_at, 5 \
         FROM timers WHERE uid = $1",
        "INSERT INTO ended_ids SELECT uid, request_hash, generation, 1900000000000 FROM timers WHERE uid = $1",
        "DELETE FROM timers WHERE uid = $1",
    ] {
        sea_orm::sqlx::query(sql).bind(uid.0).execute(&mut *ending).await.expect("ends by hand");
    }
    let (store, timer) = (f.store.clone(), f.timer("t", 0));
    let put = tokio::spawn(async move { store.register(&[timer]).await.remove(0) });
    somebody_waits(&f.config.cold.url).await;
    ending.commit().await.expect("commits");
    let answer = put.await.expect("runs").expect("registers");
    assert!(matches!(answer, Registered::Same(_)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_the_database_refuses_fails_alone() {
    let f = Fixture::postgres().await;
    let mut timers: Vec<_> = (0..100).map(|n| f.timer(&format!("t{n}"), 1000)).collect();
    timers[37].owner = Some("nul\0inside".into());
    let answers = f.store.register(&timers).await;
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(Registered::New(_)) => assert_ne!(n, 37),
            Err(why) => assert!(n == 37 && why.is_data(), "{n}: {why}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(f.store.ledger(Whose::All).await.expect("reads").registered, 99);
}

/// What is committed stays told when a later transaction of the same batch fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_takes_nothing_back_that_was_made_before_it() {
    let f = Fixture::postgres().await;
    let uids = [f.put("a", 1000).await, f.put("b", 1000).await, f.put("c", 1000).await];
    let mut other = held_open(&f.config.cold.url).await;
    let lock = sea_orm::sqlx::query("SELECT 1 FROM timers WHERE uid = $1 FOR UPDATE").bind(uids[1].0);
    lock.execute(&mut *other).await.expect("locks");
    let changes = uids.map(|uid| Change { uid, caller: None, event: ChangeEvent::Cancel });
    let store = f.store.clone();
    let applying = tokio::spawn(async move { store.apply(&changes).await });
    somebody_waits(&f.config.cold.url).await;
    let database = f.config.cold.url.rsplit('/').next().expect("a name");
    let sql = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    );
    psql(&f.config.cold.url, &sql).await;
    let answers = applying.await.expect("runs");
    assert!(
        matches!(
            &answers[..],
            [Ok(Applied::Live(_, Answer::Cancelled)), Err(_), Ok(Applied::Live(_, Answer::Cancelled))]
        ),
        "{answers:?}"
    );
    other.commit().await.expect("commits");
    assert_eq!(f.find(uids[1]).await.life.state, State::Scheduled);
    f.balanced().await;
}

on_both_stores!(
    an_ended_id_stays_taken_and_again_starts_the_next_generation,
    a_timer_wakes_by_the_stores_clock_whatever_its_node_believes,
    of_equal_ids_in_one_batch_the_first_is_new,
    many_callers_of_one_id_make_one_timer,
    changes_of_one_timer_in_one_batch_see_each_other,
    an_edit_changes_only_what_it_names,
);

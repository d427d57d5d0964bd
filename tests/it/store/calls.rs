//! How many calls of the store most timers cost, and that one call keeps what several do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::cold::{
    Call, Change, ChangeEvent, ColdStore, DestinationEdit, Error, FailPoint, NamespaceRemoved, NewTimer,
    Registered, Whose,
};
use mainspring::model::id::{TimerId, Uid};
use mainspring::model::namespace::Namespace;
use mainspring::model::timer::{AttemptResult, State};

use super::fixture::{Fixture, held_open, on_both_stores, record, so_many_wait, somebody_waits};
use super::namespaces::made;
use crate::support::psql;

/// Notes the calls, and breaks the connection once, after a call of this kind and name was made.
#[derive(Default)]
pub struct Calls {
    made: Mutex<Vec<&'static str>>,
    breaks_after: Mutex<Option<(Call, &'static str)>>,
}

impl FailPoint for Calls {
    fn before(&self, _: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        self.made.lock().expect("no panic").push(name);
        Box::pin(async { Ok(()) })
    }

    fn after(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        let breaks =
            self.breaks_after.lock().expect("no panic").take_if(|one| *one == (call, name)).is_some();
        let why = || Error::Ambiguous(Arc::new(sea_orm::sqlx::Error::PoolClosed));
        Box::pin(async move { if breaks { Err(why()) } else { Ok(()) } })
    }

    fn begin(&self) -> Box<dyn std::any::Any + Send + Sync> {
        Box::new(())
    }
}

impl Calls {
    pub fn of(f: &Fixture) -> (ColdStore, Arc<Self>) {
        let calls = Arc::new(Self::default());
        (f.store.with_fail_point(calls.clone(), f.clock.clone()), calls)
    }

    pub fn made(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.made.lock().expect("no panic"))
    }
}

fn is_postgres(f: &Fixture) -> bool {
    f.config.cold.url.starts_with("postgres")
}

/// A timer whose id the service makes.
fn of_server(f: &Fixture, due_in_ms: i64) -> NewTimer {
    of_server_in(f, Namespace::OWN, due_in_ms)
}

fn of_server_in(f: &Fixture, namespace: Namespace, due_in_ms: i64) -> NewTimer {
    let uid = Uid(uuid::Uuid::now_v7());
    let id = TimerId::of_server(uid, namespace);
    NewTimer { uid, namespace, id, caller_id: false, ..f.timer("x", due_in_ms) }
}

async fn all_new(store: &ColdStore, timers: &[NewTimer]) {
    for answer in store.register(timers).await {
        assert!(matches!(answer, Ok(Registered::New(_))), "{answer:?}");
    }
}

async fn most_timers_take_one_call_to_register_and_one_to_end(f: Fixture) {
    let owned = f.own_all().await;
    f.alive().await;
    let (store, calls) = Calls::of(&f);
    let timers: Vec<_> = (0..3).map(|_| of_server(&f, 0)).collect();
    all_new(&store, &timers).await;
    let registering = calls.made();
    let claimed = f.claim_due(&owned).await;
    let done: Vec<_> = claimed.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    assert_eq!(store.finish_delivered(&done).await.expect("ends").len(), 3);
    let ending = calls.made();
    if is_postgres(&f) {
        assert_eq!((registering, ending), (vec!["register_insert"], vec!["end"]));
    } else {
        assert_eq!((registering.last(), ending.last()), (Some(&"commit"), Some(&"commit")));
    }
    // Its attempt is not under way any more.
    assert_eq!(store.finish_delivered(&done[..1]).await.expect("looks"), []);
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.delivered, ledger.pending), (3, 3, 0));
    f.balanced().await;
}

async fn timers_of_several_namespaces_take_one_call_and_are_counted_for_each(f: Fixture) {
    let (a, b) = (made(&f, "a").await, made(&f, "b").await);
    // As a node does that has read them.
    f.store.set_has_others(true);
    let owned = f.own_all().await;
    f.alive().await;
    let (store, calls) = Calls::of(&f);
    let timers = [Namespace::OWN, a, b, a].map(|namespace| of_server_in(&f, namespace, 0));
    all_new(&store, &timers).await;
    let registering = calls.made();
    let caller = f.timer("callers", 60_000);
    let caller = NewTimer { uid: caller.id.uid(f.store.within(b).salt()), namespace: b, ..caller };
    all_new(&store, &[caller]).await;
    let by_caller = calls.made();
    let claimed = f.claim_due(&owned).await;
    let done: Vec<_> = claimed.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    calls.made();
    assert_eq!(store.finish_delivered(&done).await.expect("ends").len(), 4);
    if is_postgres(&f) {
        assert_eq!((registering, calls.made()), (vec!["register_insert"], vec!["end"]));
        assert_eq!(by_caller, ["begin", "register_insert", "register_ended_ids", "commit"]);
    }
    for (whose, registered, delivered) in
        [(Whose::All, 5, 4), (Whose::One(Namespace::OWN), 1, 1), (Whose::One(a), 2, 2), (Whose::One(b), 2, 1)]
    {
        let ledger = f.store.ledger(whose).await.expect("reads");
        assert_eq!((ledger.registered, ledger.delivered), (registered, delivered), "{whose:?}");
    }
    f.balanced().await;
}

async fn ids_of_callers_are_counted_once_whatever_became_of_them(f: Fixture) {
    f.alive().await;
    let (store, calls) = Calls::of(&f);
    let ended: Vec<_> = ["taken", "again"].iter().map(|id| f.timer(id, 60_000)).collect();
    all_new(&store, &ended).await;
    let registering = calls.made();
    if is_postgres(&f) {
        assert_eq!(registering, ["begin", "register_insert", "register_ended_ids", "commit"]);
    }
    let cancel = |timer: &NewTimer| Change { uid: timer.uid, caller: None, event: ChangeEvent::Cancel };
    for answer in store.apply(&ended.iter().map(cancel).collect::<Vec<_>>()).await {
        answer.expect("cancels");
    }
    let cancelling = calls.made();
    if is_postgres(&f) {
        assert_eq!(cancelling.last_chunk(), Some(&["end", "commit"]), "{cancelling:?}");
    }
    let again = NewTimer { again: true, ..ended[1].clone() };
    let mixed = [ended[0].clone(), f.timer("new", 60_000), again, of_server(&f, 60_000)];
    let answers: Vec<_> = store.register(&mixed).await.into_iter().map(|one| one.expect("answers")).collect();
    assert!(
        matches!(&answers[..], [Registered::Same(row), Registered::New(_), Registered::New(second), Registered::New(_)]
            if row.life.state == State::Cancelled && second.life.generation.0 == 2),
        "{answers:?}"
    );
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.cancelled, ledger.pending), (5, 2, 3));
    f.balanced().await;
}

async fn a_write_whose_answer_is_lost_is_recognised_and_counted_once(f: Fixture) {
    let owned = f.own_all().await;
    f.alive().await;
    let (store, calls) = Calls::of(&f);
    let lost = |name| match is_postgres(&f) {
        true => (Call::Write, name),
        false => (Call::Commit, "commit"),
    };
    let timers: Vec<_> = (0..2).map(|_| of_server(&f, 0)).collect();
    *calls.breaks_after.lock().expect("no panic") = Some(lost("register_insert"));
    all_new(&store, &timers).await;
    let done: Vec<_> =
        f.claim_due(&owned).await.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    *calls.breaks_after.lock().expect("no panic") = Some(lost("end"));
    let answer = store.finish_delivered(&done).await;
    assert!(
        matches!(answer, Err(Error::Ambiguous(_))),
        "whoever asked looks what became of them: {answer:?}"
    );
    assert_eq!(store.finish_delivered(&done).await.expect("looks"), [], "they have ended");
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.delivered, ledger.pending), (2, 2, 0));
    f.balanced().await;
}

on_both_stores!(
    most_timers_take_one_call_to_register_and_one_to_end,
    timers_of_several_namespaces_take_one_call_and_are_counted_for_each,
    ids_of_callers_are_counted_once_whatever_became_of_them,
    a_write_whose_answer_is_lost_is_recognised_and_counted_once,
);

/// Who subscribes waits for a registration of one call as for a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_set_of_subscribers_waits_for_a_call_that_went_by_the_former() {
    let f = Fixture::postgres().await;
    f.alive().await;
    let url = f.config.cold.url.clone();
    let mut held = held_open(&url).await;
    sea_orm::sqlx::query("LOCK TABLE timers IN SHARE MODE").execute(&mut *held).await.expect("locks");
    let (store, timer) = (f.store.clone(), of_server(&f, 60_000));
    let registering = tokio::spawn(async move { store.register(&[timer]).await.remove(0) });
    somebody_waits(&url).await;
    let edit = DestinationEdit {
        name: "log".into(),
        kind: "webhook".into(),
        settings: r#"{"webhook":{"url":"http://127.0.0.1:9/"}}"#.into(),
        secrets: None,
        if_version: None,
    };
    f.store.put_destination(&edit).await.expect("writes");
    f.store.put_subscription("s", "log", r#"{"events":["*"]}"#).await.expect("subscribes");
    let mut taking = Box::pin(f.store.take_subscriptions(&f.me));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut taking).await;
    assert!(early.is_err(), "the call has not ended");
    assert!(!registering.is_finished());
    held.rollback().await.expect("unlocks");
    assert!(matches!(registering.await.expect("no panic"), Ok(Registered::New(_))));
    taking.await.expect("takes");
}

/// A node that stood still before it sent the call: others have not waited for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_by_a_former_set_of_subscribers_writes_nothing_and_a_transaction_tells_them() {
    let f = Fixture::postgres().await;
    let owned = f.own_all().await;
    f.alive().await;
    let due = of_server(&f, 0);
    all_new(&f.store, std::slice::from_ref(&due)).await;
    let row = f.claim_due(&owned).await.remove(0);
    // What it knows is confirmed still, and is the past.
    let url = &f.config.cold.url;
    psql(url, "UPDATE subscription_set SET version = version + 1").await;
    let (store, calls) = Calls::of(&f);
    all_new(&store, &[of_server(&f, 60_000)]).await;
    assert_eq!(calls.made(), ["register_insert", "begin", "register_insert", "count", "commit"]);
    let done = [(row.uid, record(&row, AttemptResult::Ok))];
    assert_eq!(store.finish_delivered(&done).await.expect("ends"), [row.uid]);
    assert_eq!(calls.made(), ["end", "begin", "end", "count", "commit"]);
    f.balanced().await;
}

/// A removal and a call that registers wait for each other, and the call sees the removal that it has waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_kept_by_the_call_that_registers_or_is_seen_to_have_gone() {
    let f = Fixture::postgres().await;
    f.alive().await;
    let url = f.config.cold.url.clone();
    let a = made(&f, "a").await;
    let register = |timer: &NewTimer| {
        let (store, timer) = (f.store.clone(), timer.clone());
        tokio::spawn(async move { store.register(&[timer]).await.remove(0) })
    };
    // The row is there until the other transaction has ended: so long the call waits.
    let timer = of_server_in(&f, a, 60_000);
    all_new(&f.store, std::slice::from_ref(&timer)).await;
    let mut held = held_open(&url).await;
    sea_orm::sqlx::query("DELETE FROM timers WHERE uid = $1")
        .bind(timer.uid.0)
        .execute(&mut *held)
        .await
        .expect("deletes");
    let registering = register(&timer);
    somebody_waits(&url).await;
    let store = f.store.clone();
    let mut removing = tokio::spawn(async move { store.remove_namespace("a").await });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut removing).await;
    assert!(early.is_err(), "the call keeps it: {early:?}");
    held.commit().await.expect("deletes");
    assert!(matches!(registering.await.expect("no panic"), Ok(Registered::New(_))));
    let removed = removing.await.expect("no panic").expect("answers");
    assert_eq!(removed, NamespaceRemoved::InUse("1 live timers".into()));
    // Now the removal is first.
    let mut held = held_open(&url).await;
    for step in [
        "SELECT pg_advisory_xact_lock(7881696745979011437)",
        "UPDATE namespaces SET removed_at = 1 WHERE name = 'a'",
    ] {
        sea_orm::sqlx::query(step).execute(&mut *held).await.expect("removes");
    }
    let others = [false, true].map(|caller_id| NewTimer { caller_id, ..of_server_in(&f, a, 60_000) });
    let registering = others.each_ref().map(register);
    so_many_wait(&url, 2).await;
    held.commit().await.expect("removes");
    for one in registering {
        let answer = one.await.expect("no panic");
        assert!(matches!(answer, Err(Error::NoNamespace)), "{answer:?}");
    }
}

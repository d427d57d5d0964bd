//! What is asked while nothing happens, and that it tells of every change that another node makes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::cold::{
    Call, ColdStore, Copied, DestinationEdit, Error, FailPoint, KeyRevoked, NamespaceRemoved, Removed,
    Written,
};
use mainspring::model::key::{KeyId, Scope};
use mainspring::model::namespace::Terms;
use mainspring::model::schedule::AHEAD;

use super::calls::Calls;
use super::fixture::{Fixture, on_both_stores};
use super::{keys, namespaces, schedules};

fn destination(url: &str) -> DestinationEdit {
    DestinationEdit {
        name: "log".into(),
        kind: "webhook".into(),
        settings: format!(r#"{{"webhook":{{"url":"{url}"}}}}"#),
        secrets: None,
        if_version: None,
    }
}

async fn put_destination(f: &Fixture, url: &str) {
    assert!(matches!(f.store.put_destination(&destination(url)).await, Ok(Written::Done { .. })));
}

/// Reads all copies, as a node does.
async fn read_all(f: &Fixture) {
    let (_, keys) = f.store.copy_of_keys().await.expect("reads");
    f.store.note_copy(Copied::Keys, keys.into());
    let (_, namespaces) = f.store.copy_of_namespaces().await.expect("reads");
    f.store.note_copy(Copied::Namespaces, namespaces);
    let versions = f.store.destination_versions().await.expect("reads");
    f.store.note_copy(Copied::Destinations, ColdStore::mark_of_destinations(&versions));
}

async fn every_change_has_another_mark(f: Fixture) {
    let looked = || async {
        let old = f.store.look_at_marks().await.expect("reads");
        assert_eq!(f.store.look_at_marks().await.expect("reads"), old, "until it is read");
        read_all(&f).await;
        old
    };
    assert_eq!(
        looked().await,
        [Copied::Keys, Copied::Namespaces, Copied::Destinations],
        "nothing is read yet"
    );
    assert_eq!(looked().await, []);
    // Time passes, as it does between two changes of one thing.
    let later = || f.clock.advance(Duration::from_millis(1));

    keys::made(&f, keys::key(1, Scope::View)).await;
    assert_eq!(looked().await, [Copied::Keys]);
    later();
    keys::made(&f, keys::key(2, Scope::View)).await;
    assert_eq!(f.store.revoke_key(KeyId::new(1), true).await.expect("writes"), KeyRevoked::Done);
    assert_eq!(looked().await, [Copied::Keys], "one came and one went");
    f.store.note_keys_used(&[(KeyId::new(2), f.now())]).await.expect("writes");
    assert_eq!(looked().await, [], "when a key was used is no change of it");

    let a = namespaces::made(&f, "a").await;
    assert_eq!(looked().await, [Copied::Namespaces]);
    let mut terms = Terms::default();
    terms.quotas.live_timers = Some(5);
    f.store.put_namespace("a", &terms).await.expect("writes");
    assert_eq!(looked().await, [Copied::Namespaces]);
    terms.quotas.live_timers = Some(6);
    f.store.put_namespace("default", &terms).await.expect("writes");
    assert_eq!(looked().await, [Copied::Namespaces], "the store's own");
    let edit = destination("http://127.0.0.1:6/");
    let of_a = f.store.within(a);
    assert!(matches!(of_a.put_destination(&edit).await, Ok(Written::Done { .. })));
    assert_eq!(looked().await, [Copied::Destinations]);
    assert!(matches!(f.store.remove_namespace("a").await, Ok(NamespaceRemoved::Done)));
    assert_eq!(looked().await, [Copied::Namespaces, Copied::Destinations], "with all that it has");

    put_destination(&f, "http://127.0.0.1:9/").await;
    assert_eq!(looked().await, [Copied::Destinations]);
    put_destination(&f, "http://127.0.0.1:8/").await;
    assert_eq!(looked().await, [Copied::Destinations]);
    for paused in [true, false] {
        f.store.pause_destination("log", paused).await.expect("writes");
        assert_eq!(looked().await, [Copied::Destinations], "paused: {paused}");
    }
    later();
    assert!(matches!(f.store.remove_destination("log").await, Ok(Removed::Done)));
    put_destination(&f, "http://127.0.0.1:7/").await;
    for paused in [true, false, true] {
        f.store.pause_destination("log", paused).await.expect("writes");
    }
    assert_eq!(looked().await, [Copied::Destinations], "another, as often changed");
    assert_eq!(looked().await, []);
}

/// A node reads a copy for other reasons, too: it was asked by a key that it did not know.
async fn what_was_read_between_two_looks_and_taken_back_is_found(f: Fixture) {
    read_all(&f).await;
    assert_eq!(f.store.look_at_marks().await.expect("reads"), []);
    keys::made(&f, keys::key(1, Scope::View)).await;
    namespaces::made(&f, "a").await;
    put_destination(&f, "http://127.0.0.1:9/").await;
    read_all(&f).await;
    assert_eq!(f.store.revoke_key(KeyId::new(1), true).await.expect("writes"), KeyRevoked::Done);
    assert!(matches!(f.store.remove_namespace("a").await, Ok(NamespaceRemoved::Done)));
    assert!(matches!(f.store.remove_destination("log").await, Ok(Removed::Done)));
    let old = f.store.look_at_marks().await.expect("reads");
    assert_eq!(old, [Copied::Keys, Copied::Namespaces, Copied::Destinations]);
}

async fn a_store_without_schedules_is_asked_nothing_of_them(f: Fixture) {
    let owned = f.own_all().await;
    let (store, calls) = Calls::of(&f);
    let asked = || async {
        store.make_occurrences(&owned, AHEAD).await.expect("looks");
        calls.made()
    };
    let look = || async {
        store.look_at_marks().await.expect("reads");
        calls.made();
    };
    assert!(asked().await.contains(&"schedule_look"), "it is not known yet that there are none");
    look().await;
    assert_eq!(asked().await, [] as [&str; 0]);

    // This node makes one: that counts at once.
    schedules::put(&f, &schedules::edit(&f, schedules::every("PT1H"))).await;
    assert!(asked().await.contains(&"schedule_look"));
    look().await;
    look().await;
    assert!(asked().await.contains(&"schedule_look"), "and stays");
    store.remove_schedule("s").await.expect("writes").expect("is there");
    // It has written of schedules, and a look may begin before that is committed: the first that finds none is not believed.
    look().await;
    assert!(asked().await.contains(&"schedule_look"));
    look().await;
    assert_eq!(asked().await, [] as [&str; 0]);
}

on_both_stores!(
    every_change_has_another_mark,
    what_was_read_between_two_looks_and_taken_back_is_found,
    a_store_without_schedules_is_asked_nothing_of_them
);

/// SQLite has one node.
#[tokio::test(flavor = "multi_thread")]
async fn another_node_learns_of_the_first_schedule() {
    let f = Fixture::postgres().await;
    let owned = f.own_all().await;
    let (store, calls) = Calls::of(&f);
    store.look_at_marks().await.expect("reads");
    let other = f.other_process();
    other.put_schedule(&schedules::edit(&f, schedules::every("PT1H")), AHEAD).await.expect("writes");
    calls.made();
    store.make_occurrences(&owned, AHEAD).await.expect("looks");
    assert_eq!(calls.made(), [] as [&str; 0], "it cannot know");
    store.look_at_marks().await.expect("reads");
    store.make_occurrences(&owned, AHEAD).await.expect("looks");
    assert!(calls.made().contains(&"schedule_look"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_three_calls_of_postgresql() {
    let f = Fixture::postgres().await;
    f.alive().await;
    let (store, calls) = Calls::of(&f);
    store.heartbeat(&f.me, 3000).await.expect("beats");
    assert_eq!(calls.made(), ["heartbeat", "heartbeat_alive", "heartbeat_store"]);
}

#[tokio::test]
async fn what_could_not_be_read_is_read_again() {
    let f = Fixture::sqlite().await;
    f.store.look_at_marks().await.expect("reads");
    let asked = Mutex::new(Vec::new());
    let read = |is_old| {
        let is_first = asked.lock().expect("no panic").is_empty();
        asked.lock().expect("no panic").push(is_old);
        async move { if is_first { Err(Error::Busy) } else { Ok(()) } }
    };
    // Nothing is asked of the store from here on: seven seconds pass at once.
    tokio::time::pause();
    let copy = f.store.keep_current(Copied::Keys, read);
    tokio::time::timeout(Duration::from_secs(7), copy).await.expect_err("it runs on");
    assert_eq!(*asked.lock().expect("no panic"), [true, true, false, false]);
}

/// No call of the store comes to anything.
struct Away;

impl FailPoint for Away {
    fn before(&self, _: Call, _: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Err(Error::Busy) })
    }

    fn after(&self, _: Call, _: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn begin(&self) -> Box<dyn std::any::Any + Send + Sync> {
        Box::new(())
    }
}

#[tokio::test]
async fn while_the_marks_cannot_be_read_each_copy_is_read_by_itself() {
    let f = Fixture::sqlite().await;
    let owned = f.own_all().await;
    f.store.look_at_marks().await.expect("reads");
    let asked = Mutex::new(Vec::new());
    let read = |is_old| {
        asked.lock().expect("no panic").push(is_old);
        async { Ok(()) }
    };
    let away = f.store.with_fail_point(Arc::new(Away), f.clock.clone());
    tokio::time::pause();
    let both = futures::future::join(f.store.keep_current(Copied::Namespaces, read), away.watch_marks());
    tokio::time::timeout(Duration::from_secs(7), both).await.expect_err("they run on");
    tokio::time::resume();
    let read = asked.into_inner().expect("no panic").into_iter().filter(|is_old| *is_old).count();
    assert!(read >= 4, "once each two seconds: {read}");
    let (store, calls) = Calls::of(&f);
    store.make_occurrences(&owned, AHEAD).await.expect("looks");
    assert!(calls.made().contains(&"schedule_look"), "nothing is known of schedules");
}

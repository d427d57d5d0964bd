//! Lifecycle events, as the store writes them: in the transaction that makes them true, for those who asked.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::cold::{
    Backlog, Call, Change, ChangeEvent, ColdStore, DestinationEdit, Edit, Error, EventRow, FailPoint,
    LeftOut, Removed, Subscribed, SubscriptionRow, Uses,
};
use mainspring::model::id::Uid;
use mainspring::model::namespace::Namespace;
use mainspring::model::policy::{Late, Policies, Then};
use mainspring::model::subscription::{Asked, Lifecycle, Subscription};
use mainspring::model::target::Target;
use mainspring::model::time::Span;
use mainspring::model::timer::{AttemptResult, Next};
use serde_json::{Value, json};

use super::fixture::{Fixture, behind_its_back, held_open, identity, on_both_stores, record};

async fn destination(f: &Fixture, name: &str) {
    let edit = DestinationEdit {
        name: name.into(),
        kind: "webhook".into(),
        settings: r#"{"webhook":{"url":"http://127.0.0.1:9/"}}"#.into(),
        secrets: None,
        if_version: None,
    };
    f.store.put_destination(&edit).await.expect("writes");
}

fn asked(events: &[&str], filter: Value, include_data: bool) -> Asked {
    let events = events.iter().map(|word| (*word).to_owned()).collect();
    Asked { events, filter: filter.as_object().cloned(), include_data, ..Asked::default() }
}

async fn subscribe(f: &Fixture, name: &str, asked: &Asked) -> SubscriptionRow {
    destination(f, "log").await;
    let settings = serde_json::to_string(asked).expect("JSON");
    match f.store.put_subscription(name, "log", &settings).await.expect("writes") {
        Subscribed::Done(row, ..) => row,
        other => panic!("{other:?}"),
    }
}

async fn all(f: &Fixture, name: &str) -> SubscriptionRow {
    subscribe(f, name, &asked(&["*"], Value::Null, false)).await
}

/// What waits of a subscription, in order.
async fn waiting(f: &Fixture, subscription: &SubscriptionRow) -> Vec<EventRow> {
    but(f, subscription, &[]).await
}

async fn but(f: &Fixture, subscription: &SubscriptionRow, in_hand: &[i64]) -> Vec<EventRow> {
    let shards: Vec<i32> = f.store.shards().collect();
    let left_out = LeftOut { seqs: in_hand.to_vec(), ..LeftOut::default() };
    f.store.outbox(subscription.id, &shards, &left_out, 1000, 10_000).await.expect("reads")
}

/// The words of the kinds, by subject, in order.
fn words(events: &[EventRow]) -> BTreeMap<&str, Vec<&'static str>> {
    let mut words: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
    for event in events {
        let kind = Lifecycle::from_code(event.kind).expect("a kind");
        words.entry(&event.subject).or_default().push(kind.word());
    }
    words
}

fn body(event: &EventRow) -> Value {
    serde_json::from_slice(&event.body).expect("JSON")
}

fn relabel(labels: &str) -> ChangeEvent {
    ChangeEvent::Edit(Edit { labels: Some(Some(labels.into())), ..Edit::default() })
}

async fn what_happens_to_a_timer_is_told_in_order(f: Fixture) {
    let owned = f.own_all().await;
    let subscription = all(&f, "s").await;
    let delivered = f.put("delivered", 0).await;
    f.change(delivered, relabel(r#"{"app":"shop"}"#)).await;
    f.change(delivered, ChangeEvent::Fire(None)).await;
    let row = f.claim_due(&owned).await.remove(0);
    let done = f.store.finish_delivered(&[(delivered, record(&row, AttemptResult::Ok))]).await.expect("ends");
    assert_eq!(done, [delivered]);

    let cancelled = f.put("cancelled", 60_000).await;
    let twice =
        [relabel("{}"), ChangeEvent::Cancel].map(|event| Change { uid: cancelled, caller: None, event });
    f.apply(&twice).await;
    f.change(f.put("dead", 0).await, relabel("{}")).await;
    let row = f.claim_due(&owned).await.remove(0);
    f.change(row.uid, ChangeEvent::Attempted(Next::GiveUp, record(&row, AttemptResult::Failed))).await;
    let late = Late { grace: Span::parse("PT1S").expect("a span"), then: Then::Expire };
    let mut expires = f.timer("expired", 0);
    expires.policies = Policies { late: Some(late), ..Policies::default() };
    f.register(&[expires.clone()]).await;
    f.clock.advance(Duration::from_secs(5));
    let generation = f.find(expires.uid).await.life.generation;
    f.change(expires.uid, ChangeEvent::TooLate(generation)).await;

    let events = waiting(&f, &subscription).await;
    let told = words(&events);
    for (subject, kinds) in [
        ("delivered", &["registered", "changed", "changed", "delivered"][..]),
        ("cancelled", &["registered", "changed", "cancelled"]),
        ("dead", &["registered", "changed", "dead"]),
        ("expired", &["registered", "expired"]),
    ] {
        let kinds: Vec<String> = kinds.iter().map(|kind| format!("timer.{kind}")).collect();
        assert_eq!(told[subject], kinds, "{subject}");
    }
    let of =
        |subject: &str| events.iter().filter(|event| event.subject == subject).map(body).collect::<Vec<_>>();
    let last = of("delivered").pop().expect("some");
    assert_eq!(
        [&last["state"], &last["attempt"], &last["generation"], &last["result"], &last["labels"]],
        [&json!("delivered"), &json!(1), &json!(2), &json!("ok"), &json!({"app": "shop"})]
    );
    let [first, second, third] = of("cancelled").try_into().expect("three");
    assert_eq!(
        [&first["state"], &second["labels"], &third["state"]],
        [&json!("scheduled"), &json!({}), &json!("cancelled")]
    );
    assert_eq!(of("dead")[2]["result"], "failed");
    let mut ids: Vec<_> = events.iter().map(|event| event.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), events.len(), "each has a number of its own");
    f.balanced().await;
}

async fn a_registration_that_is_repeated_tells_nothing(f: Fixture) {
    let subscription = all(&f, "s").await;
    let timer = f.timer("t", 60_000);
    f.register(std::slice::from_ref(&timer)).await;
    f.register(std::slice::from_ref(&timer)).await;
    assert_eq!(waiting(&f, &subscription).await.len(), 1);
    f.change(timer.uid, ChangeEvent::Cancel).await;
    f.change_nothing(timer.uid).await;
    f.register(std::slice::from_ref(&timer)).await;
    assert_eq!(waiting(&f, &subscription).await.len(), 2, "nor does an id that is taken by what has ended");
    let again = mainspring::cold::NewTimer { again: true, ..timer };
    f.register(&[again]).await;
    let events = waiting(&f, &subscription).await;
    assert_eq!(words(&events)["t"], ["timer.registered", "timer.cancelled", "timer.registered"]);
    assert_eq!(body(&events[2])["generation"], 2);
}

async fn without_subscribers_nothing_is_written(f: Fixture) {
    let before = f.put("before", 60_000).await;
    f.change(before, ChangeEvent::Cancel).await;
    assert_eq!(f.store.told(), 0, "no statement");
    let subscription = all(&f, "s").await;
    assert_eq!(waiting(&f, &subscription).await, [], "from its creation on");
    assert!(f.store.remove_subscription("s").await.expect("removes").is_some());
    f.put("after", 60_000).await;
    assert_eq!((f.store.told(), f.store.backlog(subscription.id, 10).await.expect("counts")), (0, None));
    let other = all(&f, "s").await;
    assert_ne!(other.id, subscription.id, "one of the same name is another one");
}

async fn each_gets_what_it_asked_for(f: Fixture) {
    let owned = f.own_all().await;
    let dead = subscribe(&f, "dead", &asked(&["timer.dead", "timer.delivered"], Value::Null, false)).await;
    let mine = subscribe(&f, "mine", &asked(&["*"], json!({"owner": "me", "label.app": "shop"}), true)).await;
    let shop =
        subscribe(&f, "shop", &asked(&["timer.registered"], json!({"destination": "log"}), false)).await;
    let with = |id: &str, owner: Option<&str>, labels: Option<&str>| {
        let mut timer = f.timer(id, 0);
        (timer.owner, timer.labels) = (owner.map(str::to_owned), labels.map(str::to_owned));
        timer
    };
    let mut sent = with("sent", None, None);
    sent.target = Target::Destination("log".into());
    let labels = Some(r#"{"app":"shop","x":"y"}"#);
    f.register(&[
        with("plain", None, None),
        with("other", Some("me"), None),
        with("mine", Some("me"), labels),
        sent,
    ])
    .await;
    let rows = f.claim_due(&owned).await;
    let done: Vec<_> = rows.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    f.store.finish_delivered(&done).await.expect("ends");
    assert_eq!([&dead, &mine, &shop].map(|one| f.store.told_to(one.id)), [4, 2, 1]);
    assert_eq!(f.store.told(), 7);
    let dead = waiting(&f, &dead).await;
    assert_eq!(dead.len(), 4);
    assert!(
        dead.iter()
            .all(|event| event.kind == Lifecycle::TimerDelivered.code() && body(event).get("data").is_none())
    );
    let mine = waiting(&f, &mine).await;
    assert_eq!(words(&mine), BTreeMap::from([("mine", vec!["timer.registered", "timer.delivered"])]));
    for event in &mine {
        assert_eq!(
            body(event)["data"],
            json!({"a": "\u{0}"}),
            "the payload, also from the row that is removed"
        );
    }
    assert_eq!(words(&waiting(&f, &shop).await), BTreeMap::from([("sent", vec!["timer.registered"])]));
}

async fn what_was_taken_goes_and_its_number_is_never_given_again(f: Fixture) {
    let subscription = all(&f, "s").await;
    for id in ["a", "b", "c"] {
        f.put(id, 60_000).await;
    }
    let events = waiting(&f, &subscription).await;
    let highest = events.last().expect("three").clone();
    let keys: Vec<_> = events[1..].iter().map(|event| (event.shard, event.seq, event.id)).collect();
    // As after a restore, when the number was given to another one since.
    let others: Vec<_> = keys.iter().map(|(shard, seq, _)| (*shard, *seq, uuid::Uuid::nil())).collect();
    f.store.remove_events(subscription.id, &others).await.expect("finds none");
    assert_eq!(waiting(&f, &subscription).await, events);
    f.store.remove_events(subscription.id, &keys).await.expect("removes");
    assert_eq!(waiting(&f, &subscription).await, events[..1]);
    f.put("d", 60_000).await;
    let next = but(&f, &subscription, &[events[0].seq]).await;
    assert_eq!(next.len(), 1, "what is in hand is not read again");
    assert!(next[0].seq > highest.seq, "{} after {}", next[0].seq, highest.seq);
    // Two shards at most one each, the oldest of all first.
    let shards: Vec<i32> = f.store.shards().collect();
    let one = f.store.outbox(subscription.id, &shards, &LeftOut::default(), 1, 1).await.expect("reads");
    assert_eq!(one, events[..1]);
    let left_out = LeftOut { subjects: vec!["a".into(), "c\"'".into()], ..LeftOut::default() };
    let rest = f.store.outbox(subscription.id, &shards, &left_out, 10, 10).await.expect("reads");
    assert_eq!(rest, next, "nor what is of a timer that rests");
}

async fn of_too_many_the_oldest_are_dropped_and_that_is_told(f: Fixture) {
    let subscription = all(&f, "s").await;
    let beside = subscribe(&f, "beside", &asked(&["timer.dead"], Value::Null, false)).await;
    let timers: Vec<_> = (0..50).map(|n| f.timer(&format!("t{n}"), 60_000)).collect();
    f.register(&timers).await;
    let before = waiting(&f, &subscription).await;
    let all = asked(&["*"], Value::Null, false);
    let compiled = Subscription::new(subscription.id, Namespace::OWN, "s".into(), "log".into(), Some(&all));
    let dropped = async |count| {
        let mut dropped = Vec::new();
        f.store.drop_oldest(&compiled, count, |some| dropped.push(some)).await.expect("drops");
        dropped
    };
    assert_eq!((dropped(-50).await, dropped(0).await), (vec![], vec![]));
    assert_eq!(dropped(30).await, [30]);
    let after = waiting(&f, &subscription).await;
    assert_eq!(after[..20], before[30..], "the newest stay");
    assert_eq!(Lifecycle::from_code(after[20].kind), Some(Lifecycle::SubscriptionDropped));
    let told = body(&after[20]);
    assert_eq!([&told["subscription"], &told["dropped"]], [&json!("s"), &json!(30)]);
    let backlog = async |id, most| f.store.backlog(id, most).await.expect("counts");
    let counted = |events| Some(Backlog { events, oldest_at: f.now() });
    assert_eq!(backlog(subscription.id, 100).await, counted(21));
    assert_eq!(backlog(subscription.id, 7).await, counted(7), "no further");
    assert_eq!(backlog(beside.id, 100).await, None);
    // What told of a gap is dropped with the rest, and the next one tells of the whole gap.
    assert_eq!(dropped(21).await, [21], "rows");
    let last = waiting(&f, &subscription).await;
    assert_eq!(last.iter().map(body).map(|told| told["dropped"].clone()).collect::<Vec<_>>(), [json!(50)]);
}

/// Counts the calls of each name, and fails one of them.
#[derive(Default)]
struct Point {
    calls: Mutex<HashMap<&'static str, usize>>,
    fails: Option<(&'static str, usize)>,
}

impl FailPoint for Point {
    fn before(&self, _: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        let mut calls = self.calls.lock().expect("no panic");
        let count = calls.entry(name).or_default();
        *count += 1;
        let fails = self.fails == Some((name, *count));
        Box::pin(async move { if fails { Err(Error::Busy) } else { Ok(()) } })
    }

    fn after(&self, _: Call, _: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn begin(&self) -> Box<dyn std::any::Any + Send + Sync> {
        Box::new(())
    }
}

fn behind_point(f: &Fixture, fails: Option<(&'static str, usize)>) -> (ColdStore, Arc<Point>) {
    let point = Arc::new(Point { fails, ..Point::default() });
    (f.store.with_fail_point(point.clone(), f.clock.clone()), point)
}

async fn large_events_go_in_several_statements(f: Fixture) {
    let subscription = subscribe(&f, "s", &asked(&["*"], Value::Null, true)).await;
    let data = format!("\"{}\"", "x".repeat(1 << 20)).into_bytes();
    let large =
        |n: i32| mainspring::cold::NewTimer { data: Some(data.clone()), ..f.timer(&format!("t{n}"), 60_000) };
    let timers: Vec<_> = (0..20).map(large).collect();
    let (store, point) = behind_point(&f, None);
    assert!(store.register(&timers).await.iter().all(Result::is_ok));
    assert_eq!(waiting(&f, &subscription).await.len(), 20);
    let writes = point.calls.lock().expect("no panic")["outbox_write"];
    assert_eq!(writes, 3, "of eight megabytes each");
}

async fn a_set_whose_transaction_failed_is_not_in_force(f: Fixture) {
    f.store.take_subscriptions(&f.me).await.expect("takes");
    let before = f.store.subscription_set().version;
    all(&f, "s").await;
    let (store, _) = behind_point(&f, Some(("commit", 1)));
    store.take_subscriptions(&f.me).await.expect_err("fails");
    assert_eq!(store.subscription_set().version, before);
    let version = store.take_subscriptions(&f.me).await.expect("takes");
    assert!(version > before && store.subscription_set().version == version);
}

async fn what_was_dropped_is_told_also_when_the_rest_fails(f: Fixture) {
    let subscription = all(&f, "s").await;
    let id = if f.config.cold.url.starts_with("sqlite") { "randomblob(16)" } else { "gen_random_uuid()" };
    let many = format!(
        "INSERT INTO outbox (namespace, subscription, shard, id, kind, subject, at, body) \
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 10499) \
         SELECT 0, {}, i % 8, {id}, 0, 't' || i, 0, '{{}}' FROM n",
        subscription.id
    );
    behind_its_back(&f, &many).await;
    let all = asked(&["*"], Value::Null, false);
    let one = Subscription::new(subscription.id, Namespace::OWN, "s".into(), "log".into(), Some(&all));
    let (store, _) = behind_point(&f, Some(("begin", 2)));
    let mut dropped = Vec::new();
    let rest = store.drop_oldest(&one, 10_400, |some| dropped.push(some)).await;
    assert!(rest.is_err(), "it could not begin");
    assert_eq!(dropped, [10_000]);
    let left = waiting(&f, &subscription).await;
    let told: Vec<_> = left.iter().filter(|one| one.subject == "s").map(body).collect();
    assert_eq!((left.len(), told.len(), &told[0]["dropped"]), (501, 1, &json!(10_000)));
}

async fn a_removed_subscription_leaves_nothing(f: Fixture) {
    let (gone, stays) = (all(&f, "gone").await, all(&f, "stays").await);
    f.put("t", 60_000).await;
    f.store.remove_subscription("gone").await.expect("removes");
    assert_eq!(f.store.remove_subscription("gone").await.expect("looks"), None);
    assert_eq!(f.store.clear_removed(60_000).await.expect("clears"), 1);
    assert_eq!((waiting(&f, &gone).await.len(), waiting(&f, &stays).await.len()), (0, 1));
    let count = "SELECT CAST(count(*) AS TEXT) FROM subscriptions";
    assert_eq!(
        crate::support::ask_sql(&f.config.cold.url, count).await,
        "2",
        "a node may still write for it"
    );
    f.clock.advance(Duration::from_secs(61));
    f.store.clear_removed(60_000).await.expect("clears");
    assert_eq!(crate::support::ask_sql(&f.config.cold.url, count).await, "1");
}

async fn a_destination_that_is_subscribed_for_stays(f: Fixture) {
    all(&f, "s").await;
    let in_use = Removed::InUse(Uses { timers: 0, schedules: 0, subscriptions: 1 });
    assert_eq!(f.store.remove_destination("log").await.expect("looks"), in_use);
    f.store.remove_subscription("s").await.expect("removes");
    assert_eq!(f.store.remove_destination("log").await.expect("removes"), Removed::Done);
    let settings = serde_json::to_string(&asked(&["*"], Value::Null, false)).expect("JSON");
    let refused = f.store.put_subscription("s", "log", &settings).await.expect("asks");
    assert_eq!(refused, Subscribed::NoDestination);
    assert_eq!(f.store.subscriptions().await.expect("reads"), []);
}

async fn a_repeat_changes_nothing_and_a_change_keeps_what_waits(f: Fixture) {
    let first = all(&f, "s").await;
    f.put("t", 60_000).await;
    assert_eq!(all(&f, "s").await, first);
    // More at once than there are connections: none needs a second one.
    let settings = serde_json::to_string(&asked(&["*"], Value::Null, false)).expect("JSON");
    let repeats = (0..40).map(|_| f.store.put_subscription("s", "log", &settings));
    for answer in futures::future::join_all(repeats).await {
        assert!(matches!(answer, Ok(Subscribed::Done(row, false, _)) if row == first));
    }
    let changed = subscribe(&f, "s", &asked(&["timer.dead"], Value::Null, true)).await;
    assert_eq!((changed.id, changed.version), (first.id, 2));
    f.put("u", 60_000).await;
    assert_eq!(words(&waiting(&f, &changed).await).keys().collect::<Vec<_>>(), [&"t"]);
}

async fn a_destination_that_fails_is_told(f: Fixture) {
    let subscription =
        subscribe(&f, "s", &asked(&["destination.failing", "destination.recovered"], Value::Null, false))
            .await;
    // As a node knows the set.
    f.store.take_subscriptions(&f.me).await.expect("takes");
    let tell = async |kind, name: &str| {
        f.store
            .tell_destination(kind, (Namespace::OWN, name), "a", Some("answered 500"))
            .await
            .expect("writes")
    };
    tell(Lifecycle::DestinationFailing, "shop").await;
    tell(Lifecycle::DestinationRecovered, "shop").await;
    let events = waiting(&f, &subscription).await;
    assert_eq!(words(&events)["shop"], ["destination.failing", "destination.recovered"]);
    let told = body(&events[0]);
    assert_eq!(
        [&told["destination"], &told["state"], &told["detail"]],
        [&json!("shop"), &json!("failing"), &json!("answered 500")]
    );
}

on_both_stores!(
    what_happens_to_a_timer_is_told_in_order,
    a_registration_that_is_repeated_tells_nothing,
    without_subscribers_nothing_is_written,
    each_gets_what_it_asked_for,
    what_was_taken_goes_and_its_number_is_never_given_again,
    of_too_many_the_oldest_are_dropped_and_that_is_told,
    large_events_go_in_several_statements,
    a_set_whose_transaction_failed_is_not_in_force,
    what_was_dropped_is_told_also_when_the_rest_fails,
    a_removed_subscription_leaves_nothing,
    a_destination_that_is_subscribed_for_stays,
    a_repeat_changes_nothing_and_a_change_keeps_what_waits,
    a_destination_that_fails_is_told,
);

/// A transaction that was given the lower number commits last: a cursor would have passed it.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_is_read_all_the_same() {
    let f = Fixture::postgres().await;
    let subscription = all(&f, "s").await;
    let mut open = held_open(&f.config.cold.url).await;
    let late = format!(
        "INSERT INTO outbox (namespace, subscription, shard, id, kind, subject, at, body) \
         VALUES (0, {}, 0, gen_random_uuid(), 0, 'late', 0, '{{}}')",
        subscription.id
    );
    sea_orm::sqlx::query(sea_orm::sqlx::AssertSqlSafe(late)).execute(&mut *open).await.expect("writes");
    f.put("early", 60_000).await;
    let seen = waiting(&f, &subscription).await;
    assert_eq!(words(&seen).keys().collect::<Vec<_>>(), [&"early"]);
    f.store
        .remove_events(subscription.id, &[(seen[0].shard, seen[0].seq, seen[0].id)])
        .await
        .expect("removes");
    open.commit().await.expect("commits");
    let then = waiting(&f, &subscription).await;
    assert_eq!(words(&then).keys().collect::<Vec<_>>(), [&"late"]);
    assert!(then[0].seq < seen[0].seq, "it was given its number first");
}

/// A subscription is acknowledged only once every live node writes events for it.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_do_not_know_of_a_subscription_are_waited_for() {
    let f = Fixture::postgres().await;
    let (other, b) = (f.other_process(), identity("b"));
    other.enter(&b).await.expect("enters");
    destination(&f, "log").await;
    let settings = serde_json::to_string(&asked(&["*"], Value::Null, false)).expect("JSON");
    let Subscribed::Done(_, true, version) =
        f.store.put_subscription("s", "log", &settings).await.expect("writes")
    else {
        panic!("it is new")
    };
    let behind = async || f.store.behind(version, 3000).await.expect("asks").into_iter().collect::<Vec<_>>();
    assert_eq!(behind().await, ["a", "b"]);
    assert_eq!(f.store.take_subscriptions(&f.me).await.expect("takes"), version);
    assert_eq!(behind().await, ["b"]);
    // Started again under its name it has to say so again.
    other.take_subscriptions(&b).await.expect("takes");
    assert_eq!(behind().await, [""; 0]);
    let restarted = mainspring::cold::Identity { incarnation: "b-2".into(), ..b };
    other.enter(&restarted).await.expect("enters");
    assert_eq!(behind().await, ["b"]);
    // Dead nodes are not waited for.
    f.clock.advance(Duration::from_millis(3001));
    assert_eq!(behind().await, [""; 0]);
}

/// A node of an earlier version, during an upgrade: it cannot write all that a later one is asked for, and does not count as
/// one that does.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_know_all_that_is_asked_for_is_waited_for() {
    let f = Fixture::postgres().await;
    destination(&f, "log").await;
    let put = async |name: &str, settings: &str| match f
        .store
        .put_subscription(name, "log", settings)
        .await
        .expect("writes")
    {
        Subscribed::Done(row, _, version) => (row, version),
        other => panic!("{other:?}"),
    };
    let taken_by_all = async |version| {
        assert_eq!(f.store.take_subscriptions(&f.me).await.expect("takes"), version);
        f.store.behind(version, 60_000).await.expect("asks").is_empty()
    };
    let (known, version) = put("known", r#"{"events":["timer.registered"]}"#).await;
    assert!(taken_by_all(version).await);
    let filtered = r#"{"events":["*"],"filter":{"colour":"red"}}"#;
    let (filtered, version) = put("filtered", filtered).await;
    assert!(!taken_by_all(version).await);
    let (mixed, version) = put("mixed", r#"{"events":["timer.eaten","timer.registered"]}"#).await;
    assert!(!taken_by_all(version).await);
    // What it knows it writes, and what it sends for others it sends.
    f.put("t", 60_000).await;
    let mut counts = Vec::new();
    for one in [&known, &filtered, &mixed] {
        counts.push(waiting(&f, one).await.len());
    }
    assert_eq!(counts, [1, 0, 1]);
    let names: Vec<String> = f.store.subscription_set().all.iter().map(|one| one.name.clone()).collect();
    assert_eq!(names, ["filtered", "known", "mixed"]);
    f.store.remove_subscription("filtered").await.expect("removes");
    let version = f.store.remove_subscription("mixed").await.expect("removes").expect("there was one");
    assert!(taken_by_all(version).await, "now it knows all");
}

/// A node that others may count as dead does not rely on what it knows.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_heartbeat_each_transaction_looks_itself() {
    let f = Fixture::postgres().await;
    let (other, b) = (f.other_process(), identity("b"));
    other.enter(&b).await.expect("enters");
    other.take_subscriptions(&b).await.expect("takes");
    // Alive: who subscribes waits for it, so it may go by what it knows.
    other.heartbeat(&b, 60_000).await.expect("beats");
    let subscription = all(&f, "s").await;
    let put = async |store: &ColdStore, id: &str| {
        let timer = f.timer(id, 60_000);
        assert!(store.register(&[timer]).await.remove(0).is_ok());
    };
    put(&other, "known").await;
    assert_eq!(waiting(&f, &subscription).await, [], "the subscription is not acknowledged yet");
    other.take_subscriptions(&b).await.expect("takes");
    put(&other, "taken").await;
    let second = all(&f, "second").await;
    let third = f.other_process();
    // It has sent no heartbeat, or none for a lease.
    put(&third, "looked").await;
    assert_eq!(words(&waiting(&f, &subscription).await).keys().collect::<Vec<_>>(), [&"looked", &"taken"]);
    assert_eq!(words(&waiting(&f, &second).await).keys().collect::<Vec<_>>(), [&"looked"]);
}

/// A node that leaves writes on for a while, and nobody waits for it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_left_looks_before_it_writes() {
    let f = Fixture::postgres().await;
    let (other, b) = (f.other_process(), identity("b"));
    other.enter(&b).await.expect("enters");
    other.take_subscriptions(&b).await.expect("takes");
    other.heartbeat(&b, 60_000).await.expect("beats");
    other.leave(&b).await.expect("leaves");
    let subscription = all(&f, "s").await;
    let put = async |id: &str| assert!(other.register(&[f.timer(id, 60_000)]).await.remove(0).is_ok());
    put("after").await;
    // A heartbeat that finds no row of this process tells nobody that it is there.
    other.take_subscriptions(&b).await.expect("takes");
    assert!(other.heartbeat(&b, 60_000).await.expect("beats").superseded);
    let second = all(&f, "second").await;
    put("superseded").await;
    assert_eq!(
        words(&waiting(&f, &subscription).await).keys().collect::<Vec<_>>(),
        [&"after", &"superseded"]
    );
    assert_eq!(words(&waiting(&f, &second).await).keys().collect::<Vec<_>>(), [&"superseded"]);
}

impl Fixture {
    /// A change that is answered and changes nothing.
    async fn change_nothing(&self, uid: Uid) {
        self.apply(&[Change { uid, caller: None, event: ChangeEvent::Cancel }]).await;
    }
}

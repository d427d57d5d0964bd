//! What is sent, in which order, and what becomes of events that are not taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, at, call, kind, log_at, shown, subscribed, told};
use crate::support::{
    Api, NodeBuilder, Receiver, Reply, densest, eventually, in_state, on_both, settled, to,
};

/// Registers timers for a receiver, due at once.
async fn burst(api: &Api, prefix: &str, count: usize, url: &str) {
    let timer = |n: usize| json!({"id": format!("{prefix}{n}"), "delay": "PT0S", "target": to(url), "data": {"n": n}});
    let timers: Vec<Value> = (0..count).map(timer).collect();
    for part in timers.chunks(500) {
        let (status, body) = api.post("/v1/timers/batch", &json!({ "timers": part })).await;
        assert_eq!(status, 200, "{body}");
    }
}

async fn who_subscribes_is_told_what_happens(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |_| Reply::ok());
    api.put("before", &json!({"delay": "PT1H", "target": to(receiver.url("/ok"))})).await;
    log_at(&api, &receiver.url("/log")).await;
    let body =
        json!({"destination": "log", "events": ["*"], "filter": {"label.app": "shop"}, "include_data": true});
    assert_eq!(call(&api, Method::PUT, "s", Some(&body)).await.status, 201);
    let timer = json!({"delay": "PT1H", "owner": "me", "labels": {"app": "shop"}, "data": {"order": 1},
        "target": to(receiver.url("/ok"))});
    api.put("t", &timer).await;
    api.put("beside", &json!({"delay": "PT1H", "target": to(receiver.url("/ok"))})).await;
    assert_eq!(api.patch("t", &json!({"data": {"order": 2}})).await.0, 200);
    assert_eq!(api.post("/v1/timers/t/fire", &Value::Null).await.0, 202);
    in_state(&api, "t", "delivered").await;
    api.put("c", &timer).await;
    api.delete("c").await;
    receiver.wait_until(|all| all.iter().filter(|one| one.path == "/log").count() >= 6, LONG).await;
    let events = at(&receiver, "/log");
    let all = told(&events);
    assert_eq!(all.keys().collect::<Vec<_>>(), ["c", "t"], "those that match, from its creation on");
    assert_eq!(all["t"], ["timer.registered", "timer.changed", "timer.changed", "timer.delivered"]);
    assert_eq!(all["c"], ["timer.registered", "timer.cancelled"]);
    let fired = receiver.of("t").into_iter().find(|one| one.path == "/ok").expect("it fired");
    let last = events.iter().rfind(|one| one.timer == "t").expect("some");
    let (body, timer) = (last.json(), api.timer("t").await.1);
    assert_eq!(
        body,
        json!({"timer": "t", "owner": "me", "state": "delivered", "due_at": timer["due_at"], "generation": 3,
            "attempt": 1, "delivery_id": fired.delivery_id, "result": "ok", "labels": {"app": "shop"},
            "data": {"order": 2}, "at": body["at"]})
    );
    let header = |name: &str| last.headers[name].to_str().expect("text").to_owned();
    assert_eq!(header("ce-source"), "/mainspring/default");
    assert_eq!(header("ce-time"), body["at"].as_str().expect("a time"));
    assert!(header("ce-id").starts_with("evt_") && header("webhook-id") == header("ce-id"));
    assert!(
        last.headers.get("ce-attempt").is_none() && last.headers.get("ce-dueat").is_none(),
        "not of a firing"
    );
    eventually("nothing waits", LONG, async || {
        let shown = shown(&api, "s").await;
        if shown["waiting"] == 0 && shown["oldest_at"].is_null() { Ok(()) } else { Err(shown) }
    })
    .await;
    assert!((api.metric("mainspring_outbox_sends_total{result=\"ok\"}").await - 6.0).abs() < 0.1);
}

/// A timer whose event is not taken holds up itself alone; it is sent again under its number, and the rest follows it.
async fn events_of_one_timer_stay_in_order_when_one_is_not_taken(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    receiver.on("/log", move |one| {
        let fails =
            one.timer == "a" && kind(one) == "timer.registered" && count.fetch_add(1, Ordering::SeqCst) < 2;
        if fails { Reply::status(500) } else { Reply::ok() }
    });
    log_at(&api, &receiver.url("/log")).await;
    subscribed(&api, "s", &["*"], json!({"owner": "me"})).await;
    for id in ["a", "b"] {
        api.put(id, &json!({"delay": "PT0S", "owner": "me", "target": to(receiver.url("/ok"))})).await;
    }
    let ended = |all: &[crate::support::Received]| {
        all.iter().filter(|one| one.path == "/log" && kind(one) == "timer.delivered").count() == 2
    };
    receiver.wait_until(ended, LONG).await;
    let events = at(&receiver, "/log");
    let of_a: Vec<_> = events.iter().filter(|one| one.timer == "a").collect();
    assert_eq!(
        of_a.iter().map(|one| kind(one)).collect::<Vec<_>>(),
        ["timer.registered", "timer.registered", "timer.registered", "timer.delivered"]
    );
    assert!(of_a[..3].iter().all(|one| one.delivery_id == of_a[0].delivery_id), "one number for all tries");
    assert_eq!(of_a[0].headers["ce-time"], of_a[2].headers["ce-time"], "when it happened");
    let place = |id: &str| events.iter().position(|one| one.timer == id && kind(one) == "timer.delivered");
    assert!(place("b") < place("a"), "b does not wait for a");
}

/// However many events of a timer wait behind one that is never taken, those of others are sent.
async fn a_timer_whose_events_are_refused_takes_no_room_of_others(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |one| if one.timer == "a" { Reply::status(422) } else { Reply::ok() });
    log_at(&api, &receiver.url("/log")).await;
    subscribed(&api, "s", &["timer.registered", "timer.changed"], Value::Null).await;
    let later = json!({"delay": "PT1H", "target": to(receiver.url("/ok"))});
    api.put("a", &later).await;
    // More than a node has in hand.
    let change = async |n: usize| api.patch("a", &json!({"data": n})).await.0;
    let changed: Vec<u16> = futures::stream::iter(0..1100).map(change).buffer_unordered(8).collect().await;
    assert!(changed.iter().all(|status| *status == 200), "{changed:?}");
    eventually("all of them wait", LONG, async || {
        let shown = shown(&api, "s").await;
        if shown["waiting"] == 1101 { Ok(()) } else { Err(shown) }
    })
    .await;
    receiver.wait_for(3, LONG).await;
    api.put("b", &later).await;
    receiver.wait_until(|all| all.iter().any(|one| one.timer == "b"), LONG).await;
    let of_a = receiver.of("a");
    assert!(of_a.iter().all(|one| one.delivery_id == of_a[0].delivery_id), "the oldest alone is tried");
}

async fn what_is_refused_for_good_is_dropped_and_counted(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |one| if one.timer == "gone" { Reply::status(410) } else { Reply::ok() });
    log_at(&api, &receiver.url("/log")).await;
    subscribed(&api, "s", &["timer.registered", "timer.cancelled"], Value::Null).await;
    let later = json!({"delay": "PT1H", "target": to(receiver.url("/ok"))});
    for id in ["gone", "other"] {
        api.put(id, &later).await;
    }
    api.delete("gone").await;
    receiver.wait_for(3, LONG).await;
    eventually("nothing waits", LONG, async || {
        let shown = shown(&api, "s").await;
        if shown["waiting"] == 0 { Ok(()) } else { Err(shown) }
    })
    .await;
    assert!((api.metric("mainspring_outbox_dropped_total{reason=\"gone\"}").await - 2.0).abs() < 0.1);
    assert_eq!(receiver.of("gone").len(), 2, "each once");
}

async fn a_paused_destination_keeps_its_events(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |_| Reply::ok());
    log_at(&api, &receiver.url("/log")).await;
    subscribed(&api, "s", &["timer.registered", "timer.delivered"], Value::Null).await;
    let set = async |api: &Api, verb: &str| {
        let answer = api.send(Method::POST, &format!("/v1/destinations/log/{verb}"), &[], None).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    };
    set(&api, "pause").await;
    burst(&api, "t", 40, &receiver.url("/ok")).await;
    settled(&api, 40, 0).await;
    assert_eq!(shown(&api, "s").await["waiting"], 80);
    assert!(shown(&api, "s").await["oldest_at"].is_string());
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    eventually("the gauge shows them", LONG, async || {
        let (events, oldest) = (
            api.metric("mainspring_outbox_events").await,
            api.metric("mainspring_outbox_oldest_seconds").await,
        );
        if events > 79.0 && oldest > 0.0 { Ok(()) } else { Err((events, oldest)) }
    })
    .await;
    assert_eq!(at(&receiver, "/log").len(), 0);
    set(&api, "resume").await;
    receiver.wait_for(120, LONG).await;
    let all = told(&at(&receiver, "/log"));
    assert_eq!(all.len(), 40);
    assert!(all.values().all(|kinds| kinds == &["timer.registered", "timer.delivered"]), "{all:?}");
}

/// A destination that is away for long costs the oldest events, never a firing; the subscription is told.
async fn a_backlog_is_bounded(builder: NodeBuilder) {
    let node = builder.env("MAINSPRING__OUTBOX__MAX_EVENTS", "1000").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let is_back = Arc::new(AtomicBool::new(false));
    let back = Arc::clone(&is_back);
    receiver.on("/log", move |_| if back.load(Ordering::SeqCst) { Reply::ok() } else { Reply::status(503) });
    log_at(&api, &receiver.url("/log")).await;
    subscribed(&api, "s", &["timer.delivered"], Value::Null).await;
    burst(&api, "t", 1500, &receiver.url("/ok")).await;
    settled(&api, 1500, 0).await;
    eventually("the oldest are dropped", LONG, async || {
        let dropped = api.metric("mainspring_outbox_dropped_total{reason=\"overflow\"}").await;
        if dropped > 499.0 { Ok(()) } else { Err(dropped) }
    })
    .await;
    is_back.store(true, Ordering::SeqCst);
    let is_told = |all: &[crate::support::Received]| {
        all.iter().any(|one| one.path == "/log" && kind(one) == "subscription.dropped")
    };
    receiver.wait_until(is_told, LONG * 2).await;
    let events = at(&receiver, "/log");
    let told = events.iter().find(|one| kind(one) == "subscription.dropped").expect("it came").json();
    assert_eq!([&told["subscription"], &told["dropped"]], [&json!("s"), &json!(500)]);
    eventually("nothing waits", LONG * 2, async || {
        let shown = shown(&api, "s").await;
        if shown["waiting"] == 0 { Ok(()) } else { Err(shown) }
    })
    .await;
}

/// A destination with a rate and few attempts at once gets its events so, and its firings first.
async fn what_a_destination_bears_holds_for_events_too(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |_| Reply::ok());
    let body = json!({"webhook": {"url": receiver.url("/log")}, "rate_per_second": 100});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/log", &[], Some(&body)).await.status, 201);
    subscribed(&api, "s", &["timer.registered"], Value::Null).await;
    burst(&api, "t", 200, &receiver.url("/ok")).await;
    receiver.wait_until(|all| all.iter().filter(|one| one.path == "/log").count() >= 200, LONG).await;
    let mut arrived: Vec<i64> = at(&receiver, "/log").iter().map(|one| one.at_ms).collect();
    arrived.sort_unstable();
    let took = arrived[199] - arrived[0];
    println!("200 events in {took} ms");
    assert!((1800..6000).contains(&took), "{took} ms for 200 events at 100 a second");
}

/// Events of several subscriptions and firings at one destination are never more at once than it bears.
async fn subscriptions_share_what_a_destination_bears(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |_| Reply::ok().after(Duration::from_millis(50)));
    let log = json!({"webhook": {"url": receiver.url("/log")}, "concurrency": 3});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/log", &[], Some(&log)).await.status, 201);
    for n in 0..4 {
        subscribed(&api, &format!("s{n}"), &["timer.registered"], Value::Null).await;
    }
    burst(&api, "t", 20, &receiver.url("/ok")).await;
    let timer = |n: usize| json!({"id": format!("u{n}"), "delay": format!("PT0.{}S", n % 10), "target": {"destination": "log"}});
    let timers: Vec<Value> = (0..20).map(timer).collect();
    assert_eq!(api.post("/v1/timers/batch", &json!({ "timers": timers })).await.0, 200);
    settled(&api, 40, 0).await;
    let came = |all: &[crate::support::Received]| all.iter().filter(|one| one.path == "/log").count() >= 180;
    receiver.wait_until(came, LONG).await;
    let all = at(&receiver, "/log");
    let firings = all.iter().filter(|one| kind(one) == "timer.fired").count();
    // Each arrival was answered 50 ms later, so those within less were there together.
    let most = densest(&all, 45);
    println!("{firings} firings and {} events, {most} at once", all.len() - firings);
    assert_eq!(firings, 20);
    assert!((2..=3).contains(&most), "{most} at once");
}

/// However many subscriptions have events for a slow destination: a timer waits for the next slot there, not behind them.
async fn events_reserve_no_time_before_a_timer(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |_| Reply::ok());
    let log = json!({"webhook": {"url": receiver.url("/log")}, "rate_per_second": 2});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/log", &[], Some(&log)).await.status, 201);
    for n in 0..8 {
        subscribed(&api, &format!("s{n}"), &["timer.registered"], Value::Null).await;
    }
    burst(&api, "t", 10, &receiver.url("/ok")).await;
    receiver.wait_until(|all| all.iter().filter(|one| one.path == "/log").count() >= 2, LONG).await;
    api.put("fires", &json!({"delay": "PT1S", "target": {"destination": "log"}})).await;
    let fired = |one: &crate::support::Received| one.path == "/log" && kind(one) == "timer.fired";
    let all = receiver.wait_until(|all| all.iter().any(fired), LONG).await;
    let late = all.iter().find(|one| fired(one)).expect("it came").lateness_ms();
    println!("{late} ms late");
    // The events before it take forty seconds.
    assert!((0..10_000).contains(&late), "{late} ms late at two a second");
}

/// Also one that gets nothing but events.
async fn a_destination_that_fails_and_recovers_is_told(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/log", |_| Reply::ok());
    let is_back = Arc::new(AtomicBool::new(false));
    let back = Arc::clone(&is_back);
    receiver.on("/shop", move |_| if back.load(Ordering::SeqCst) { Reply::ok() } else { Reply::status(500) });
    log_at(&api, &receiver.url("/log")).await;
    let shop = json!({"webhook": {"url": receiver.url("/shop")}});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/shop", &[], Some(&shop)).await.status, 201);
    subscribed(&api, "s", &["destination.failing", "destination.recovered"], json!({"destination": "shop"}))
        .await;
    let retry = json!({"attempts": 20, "first": "PT0.1S", "cap": "PT0.2S"});
    api.put("t", &json!({"delay": "PT0S", "target": {"destination": "shop"}, "retry": retry})).await;
    receiver.wait_until(|all| all.iter().any(|one| one.path == "/log"), LONG).await;
    is_back.store(true, Ordering::SeqCst);
    in_state(&api, "t", "delivered").await;
    receiver.wait_until(|all| all.iter().filter(|one| one.path == "/log").count() >= 2, LONG).await;
    let events = at(&receiver, "/log");
    assert_eq!(told(&events)["shop"], ["destination.failing", "destination.recovered"]);
    let body = events[0].json();
    assert_eq!([&body["destination"], &body["state"]], [&json!("shop"), &json!("failing")]);
    assert!(body["detail"].as_str().is_some_and(|text| text.contains("500")), "{body}");
}

on_both!(
    who_subscribes_is_told_what_happens,
    events_of_one_timer_stay_in_order_when_one_is_not_taken,
    a_timer_whose_events_are_refused_takes_no_room_of_others,
    what_is_refused_for_good_is_dropped_and_counted,
    a_paused_destination_keeps_its_events,
    a_backlog_is_bounded,
    what_a_destination_bears_holds_for_events_too,
    subscriptions_share_what_a_destination_bears,
    events_reserve_no_time_before_a_timer,
    a_destination_that_fails_and_recovers_is_told,
);

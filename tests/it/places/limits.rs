//! What a destination bears: a rate for all nodes together, attempts at once for each, and its failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{LONG, call, get, made, now};
use crate::support::{
    Api, Node, NodeBuilder, Receiver, Reply, Stalls, Watch, densest, eventually, fresh_database, in_state,
    on_both, settled,
};

/// Registers timers for a destination that are due at once, of as many owners.
async fn burst(api: &Api, name: &str, count: usize, owner: Option<&str>) {
    let timer = |n: usize| {
        let mut timer = now(name);
        timer["id"] = json!(format!("{name}-{n}"));
        if let Some(owner) = owner {
            timer["owner"] = json!(owner);
        }
        timer
    };
    let timers: Vec<Value> = (0..count).map(timer).collect();
    let (status, body) = api.post("/v1/timers/batch", &json!({ "timers": timers })).await;
    assert_eq!(status, 200, "{body}");
    assert!(body["results"].as_array().expect("a list").iter().all(|one| one["status"] == 201), "{body}");
}

/// A stall up to this long, in milliseconds, is not seen by a [`Watch`].
const UNSEEN_MS: i64 = 400;

/// 300 timers at 150 a second take two seconds, and no second has more than its share. On a quiet machine that is 151 in
/// the fullest one. What came later because a node stood still came with as many more, whether that was seen or not.
#[track_caller]
fn judge(receiver: &Receiver, stalls: &Stalls) {
    let all = receiver.received();
    let took = all.iter().map(|one| one.at_ms).max().expect("some")
        - all.iter().map(|one| one.at_ms).min().expect("some");
    let most = densest(&all, 1000);
    let stalled = stalls.within(0..i64::MAX);
    println!("300 arrivals in {took} ms, at most {most} in a second; the nodes stood still for {stalled} ms");
    let stalled = UNSEEN_MS + stalled;
    assert!(most as i64 <= 151 + 150 * stalled / 1000, "{most} arrivals in one second");
    assert!((1990 - stalled..10_000 + stalled).contains(&took), "{took} ms");
}

async fn a_rate_holds(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/ok")}, "rate_per_second": 150})).await;
    let watch = Watch::start(std::slice::from_ref(&api));
    burst(&api, "a", 300, None).await;
    settled(&api, 300, 0).await;
    judge(&receiver, &watch.end().await);
    // A timer that finds nothing before it is on time. One may meet a pause of the machine; five in a row do not.
    let due = json!({"delay": "PT0.5S", "target": {"destination": "a"}});
    let mut lates: Vec<i64> = Vec::new();
    while lates.len() < 5 && lates.iter().all(|late| *late >= 500) {
        let id = format!("alone{}", lates.len());
        assert_eq!(api.put(&id, &due).await.0, 201);
        in_state(&api, &id, "delivered").await;
        lates.push(receiver.of(&id)[0].lateness_ms());
    }
    let least = lates.iter().copied().min().expect("one at least");
    assert!((0..500).contains(&least), "{lates:?} ms late");
}

/// Three nodes, whose timers are spread evenly, or all of one owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_for_all_nodes_together() {
    for owner in [None, Some("me")] {
        let (url, receiver) = (fresh_database().await, Receiver::start().await);
        let node = |name| Node::builder().name(name).cold(&url).start_ready();
        let (a, b, c) = tokio::join!(node("a"), node("b"), node("c"));
        crate::support::shared_as(&a.api(), &[("a", 22), ("b", 21), ("c", 21)], LONG).await;
        let api = b.api();
        made(&api, "d", &json!({"webhook": {"url": receiver.url("/ok")}, "rate_per_second": 150})).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let watch = Watch::start(&[a.api(), b.api(), c.api()]);
        burst(&api, "d", 300, owner).await;
        settled(&c.api(), 300, 0).await;
        judge(&receiver, &watch.end().await);
    }
}

async fn a_new_rate_holds_for_what_waits(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/ok")}, "rate_per_second": 1})).await;
    burst(&api, "a", 60, None).await;
    receiver.wait_for(1, LONG).await;
    let (_, explained) = api.get("/v1/timers/a-59/explain").await;
    println!("{}", explained["waiting_for"]);
    assert_eq!(
        call(&api, reqwest::Method::PATCH, "a", "", Some(&json!({"rate_per_second": 1000}))).await.status,
        200
    );
    settled(&api, 60, 0).await;
    assert!(densest(&receiver.received(), 1000) > 20, "they would have taken a minute");
}

async fn no_more_at_once_than_it_bears(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/slow/50")}, "concurrency": 3})).await;
    burst(&api, "a", 30, None).await;
    settled(&api, 30, 0).await;
    // Each arrival was answered 50 ms later, so those within less were there together.
    let most = densest(&receiver.received(), 45);
    println!("{most} at once");
    assert!((2..=3).contains(&most), "{most} at once");
}

/// One that fails again and again is tried by one attempt at a time, and comes back by itself.
async fn one_that_fails_is_tried_singly_and_comes_back(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (is_back, tried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (back, count) = (Arc::clone(&is_back), Arc::clone(&tried));
    receiver.on("/in", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        if back.load(Ordering::SeqCst) { Reply::ok() } else { Reply::status(500) }
    });
    let retry = json!({"attempts": 20, "first": "PT0.1S", "cap": "PT0.2S"});
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/in")}, "retry": retry})).await;
    burst(&api, "a", 100, None).await;
    eventually("it is failing", LONG, async || {
        let shown = get(&api, "a").await;
        if shown["state"] == "failing" { Ok(()) } else { Err(shown) }
    })
    .await;
    let shown = get(&api, "a").await;
    assert_eq!(shown["last_error"], "answered 500 Internal Server Error");
    let before = tried.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let in_two_seconds = tried.load(Ordering::SeqCst) - before;
    // By itself each timer would be tried every fifth of a second: a thousand attempts.
    assert!((1..=100).contains(&in_two_seconds), "{in_two_seconds} attempts in two seconds");
    is_back.store(true, Ordering::SeqCst);
    settled(&api, 100, 0).await;
    eventually("it is well", LONG, async || {
        let shown = get(&api, "a").await;
        if shown["state"] == "ok" && shown["waiting"] == 0 { Ok(()) } else { Err(shown) }
    })
    .await;
}

on_both!(
    a_rate_holds,
    a_new_rate_holds_for_what_waits,
    no_more_at_once_than_it_bears,
    one_that_fails_is_tried_singly_and_comes_back,
);

//! A destination that is paused keeps what falls due; resumed, it gets it, oldest first.

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{LONG, get, later, made, now, set};
use crate::support::{
    Api, Node, NodeBuilder, Receiver, Reply, eventually, fresh_database, in_state, on_both, settled, to,
};

/// Timers of one destination are waiting, and this many.
async fn waiting(api: &Api, name: &str, count: usize) {
    eventually("they wait", LONG, async || {
        let shown = get(api, name).await;
        if shown["waiting"] == count { Ok(()) } else { Err(shown) }
    })
    .await;
}

/// Returns when the sweep has read the shards of these owners, and so everything there that was due before: in each it
/// ends a timer that comes too late.
async fn swept(api: &Api, owners: impl IntoIterator<Item = String>) {
    let ids: Vec<(String, String)> =
        owners.into_iter().map(|owner| (format!("too-late-of-{owner}"), owner)).collect();
    for (id, owner) in &ids {
        let late = json!({"grace": "PT1S", "then": "expire"});
        let timer = json!({"fire_at": "2020-01-01T00:00:00Z", "late": late, "owner": owner, "target": to("http://127.0.0.1:9/")});
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    for (id, _) in &ids {
        in_state(api, id, "expired").await;
    }
}

async fn what_falls_due_is_kept_until_it_is_resumed(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for name in ["a", "b"] {
        made(&api, name, &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    }
    assert_eq!(set(&api, "a", "pause").await["state"], "paused");
    assert_eq!(set(&api, "a", "pause").await["version"], 2, "a repeat changes nothing");
    for n in 0..30 {
        assert_eq!(api.put(&format!("t{n}"), &now("a")).await.0, 201);
    }
    assert_eq!(api.put("beside", &now("b")).await.0, 201);
    in_state(&api, "beside", "delivered").await;
    waiting(&api, "a", 30).await;
    // From the wheels, from the sweep, and through a restart.
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    swept(&api, (0..30).map(|n| format!("t{n}"))).await;
    assert_eq!(api.put("beside-2", &now("b")).await.0, 201);
    in_state(&api, "beside-2", "delivered").await;
    assert!(receiver.received().iter().all(|one| one.timer.starts_with("beside")), "nothing is sent");
    let (_, explained) = api.get("/v1/timers/t0/explain").await;
    assert_eq!(explained["timer"]["state"], "scheduled", "its state stays");
    let why = explained["waiting_for"].as_str().expect("a text");
    assert!(why.contains("destination `a`") && why.contains("paused"), "{why}");
    assert_eq!(get(&api, "a").await["waiting"], 30);

    assert_eq!(set(&api, "a", "resume").await["state"], "ok");
    settled(&api, 32, 0).await;
    let sent: Vec<_> = receiver.received().into_iter().filter(|one| one.timer.starts_with('t')).collect();
    assert_eq!(sent.len(), 30, "each once");
    waiting(&api, "a", 0).await;
}

/// Oldest first: one attempt at a time shows the order.
async fn the_oldest_goes_first(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/ok")}, "concurrency": 1})).await;
    set(&api, "a", "pause").await;
    for n in 0..20 {
        // All of one shard; the last is registered first.
        let due = crate::support::rfc3339(crate::support::wall_ms() - 60_000 - n * 1000);
        let timer = json!({"fire_at": due, "owner": "me", "target": {"destination": "a"}});
        assert_eq!(api.put(&format!("t{n:02}"), &timer).await.0, 201);
    }
    waiting(&api, "a", 20).await;
    // Their pointers have come up, and were not taken: one that was registered after them is delivered.
    made(&api, "b", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    assert_eq!(api.put("beside", &now("b")).await.0, 201);
    in_state(&api, "beside", "delivered").await;
    set(&api, "a", "resume").await;
    let mut sent = receiver.wait_for(21, LONG).await;
    sent.retain(|one| one.timer != "beside");
    // Three are claimed at a time; which of them has the permit first is the runtime's to choose, and on a busy machine one
    // may wait while a few others pass. Any other order has some much farther from their places.
    // Registered after they were due, they woke when they were registered: that is the order.
    let order: Vec<&str> = sent.iter().map(|one| one.timer.as_str()).collect();
    let is_near =
        |(place, id): (usize, &&str)| id[1..].parse::<usize>().is_ok_and(|n| n.abs_diff(place) <= 6);
    assert!(order.iter().enumerate().all(is_near), "{order:?}");
}

/// Whether a timer is too late is judged when its destination is resumed.
async fn lateness_is_judged_at_the_resume(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    set(&api, "a", "pause").await;
    let expiring = |mut timer: Value, grace: &str| {
        timer["late"] = json!({"grace": grace, "then": "expire"});
        timer
    };
    // Its grace is over already: a sweep may come, and the pause be over, within any time that it could still have.
    let long_ago = json!({"fire_at": "2020-01-01T00:00:00Z", "target": {"destination": "a"}});
    assert_eq!(api.put("short", &expiring(long_ago, "PT1S")).await.0, 201);
    assert_eq!(api.put("long", &expiring(now("a"), "PT10M")).await.0, 201);
    swept(&api, ["short".to_owned()]).await;
    assert_eq!(api.timer("short").await.1["state"], "scheduled", "nothing expires while it is paused");
    set(&api, "a", "resume").await;
    in_state(&api, "short", "expired").await;
    in_state(&api, "long", "delivered").await;
    assert_eq!(receiver.of("short").len(), 0);
}

/// What waits can be cancelled, changed and fired while its destination is paused; a retry waits, too.
async fn what_waits_can_be_cancelled_and_changed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (release, released) = watch::channel(false);
    receiver.on("/late", move |one| match one.attempt {
        1 => Reply::status(500).until(released.clone()),
        _ => Reply::ok(),
    });
    let retry = json!({"attempts": 5, "first": "PT0.3S", "cap": "PT0.3S"});
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/late")}, "retry": retry})).await;
    api.put("retried", &now("a")).await;
    receiver.wait_for(1, LONG).await;
    // Its first attempt fails once its destination is paused, so no retry comes before.
    set(&api, "a", "pause").await;
    release.send_replace(true);
    in_state(&api, "retried", "retrying").await;
    for id in ["cancelled", "moved", "fired"] {
        api.put(id, &now("a")).await;
    }
    api.put("later", &later("a")).await;
    waiting(&api, "a", 4).await;
    let (status, body) = api.delete("cancelled").await;
    assert_eq!((status, &body["outcome"]), (200, &json!("cancelled")));
    assert_eq!(api.patch("moved", &json!({"delay": "PT1H"})).await.0, 200);
    assert_eq!(api.post("/v1/timers/fired/fire", &Value::Null).await.0, 202);
    let before = receiver.received().len();
    set(&api, "a", "resume").await;
    in_state(&api, "retried", "delivered").await;
    in_state(&api, "fired", "delivered").await;
    assert_eq!(before, 1, "nothing was sent while it was paused");
    assert_eq!(receiver.of("cancelled").len() + receiver.of("moved").len() + receiver.of("later").len(), 0);
}

/// Both nodes keep what falls due for them, and both send it.
#[tokio::test]
async fn all_nodes_keep_it() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    let (a, b) = tokio::join!(node("a"), node("b"));
    let (a, b) = (a.api(), b.api());
    made(&a, "d", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    // A node that is told of the pause itself follows at once. Of the resume one of them learns from the other.
    for api in [&a, &b] {
        assert_eq!(set(api, "d", "pause").await["state"], "paused");
    }
    for n in 0..40 {
        assert_eq!(b.put(&format!("t{n}"), &now("d")).await.0, 201);
    }
    waiting(&b, "d", 40).await;
    swept(&b, (0..40).map(|n| format!("t{n}"))).await;
    assert!(receiver.received().is_empty());
    set(&b, "d", "resume").await;
    settled(&a, 40, 0).await;
    assert_eq!(receiver.received().len(), 40);
}

on_both!(
    what_falls_due_is_kept_until_it_is_resumed,
    the_oldest_goes_first,
    lateness_is_judged_at_the_resume,
    what_waits_can_be_cancelled_and_changed,
);

//! Timers that go out together: what the receiver gets, and what callers are told.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::{LONG, made};
use crate::support::{
    Node, NodeBuilder, Received, Receiver, Reply, fresh_database, in_state, on_both, register,
};

/// A timer with its id, for a batch: what is registered together is known before any of it goes out.
fn item(id: &str, mut timer: Value) -> Value {
    timer["id"] = json!(id);
    timer
}

/// A timer of one user that merges with others of his.
fn merging(receiver: &Receiver, path: &str, delay: &str, data: &Value) -> Value {
    json!({"delay": delay, "owner": "user:1", "merge": {"window": "PT2S"}, "data": data,
        "target": {"webhook": {"url": receiver.url(path)}}})
}

/// The ids of a delivery's members, in order.
fn members(received: &Received) -> Vec<String> {
    let body = received.json();
    let of = |member: &Value| member["timer"].as_str().expect("an id").to_owned();
    body["merged"].as_array().expect("a merged set").iter().map(of).collect()
}

async fn one_delivery_stands_for_all(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timers = [
        ("a", "PT1S", json!({"say": "\"hello\" \u{1F514}"})),
        ("b", "PT1.2S", Value::Null),
        ("c", "PT1.4S", json!(3)),
    ]
    .map(|(id, delay, data)| item(id, merging(&receiver, "/ok", delay, &data)));
    register(&api, &timers).await;
    let mut due = Vec::new();
    for id in ["a", "b", "c"] {
        let (status, body) = api.timer(id).await;
        assert_eq!((status, &body["merge"]), (200, &json!({"window": "PT2S"})), "{body}");
        due.push(body["due_at"].clone());
    }
    for id in ["a", "b", "c"] {
        in_state(&api, id, "delivered").await;
    }
    let all = receiver.received();
    assert_eq!(all.len(), 1, "{all:?}");
    let one = &all[0];
    assert_eq!(one.headers["ce-type"], "mainspring.timer.merged.v1");
    assert_eq!((one.timer.as_str(), one.attempt), ("user:1", 1));
    assert!(!one.headers.contains_key("ce-generation"));
    assert_eq!(one.headers["ce-dueat"].to_str().expect("text"), due[2].as_str().expect("a time"));
    assert!(one.lateness_ms() >= 0);
    assert_eq!(
        one.json(),
        json!({"merged": [
            {"timer": "a", "due_at": due[0], "generation": 1, "data": {"say": "\"hello\" \u{1F514}"}},
            {"timer": "b", "due_at": due[1], "generation": 1, "data": null},
            {"timer": "c", "due_at": due[2], "generation": 1, "data": 3},
        ]})
    );
    for id in ["a", "b", "c"] {
        let (_, attempts) = api.get(&format!("/v1/timers/{id}/attempts")).await;
        assert_eq!(attempts["items"][0]["delivery_id"], one.delivery_id.as_str(), "{attempts}");
        let (_, explained) = api.get(&format!("/v1/timers/{id}/explain")).await;
        let told = explained["events"].to_string();
        assert!(told.contains("with 2 others") && told.contains(&one.delivery_id), "{told}");
    }
    assert_eq!(
        api.put("a", &merging(&receiver, "/ok", "PT1S", &json!({"say": "\"hello\" \u{1F514}"}))).await.0,
        200
    );
    let ledger = api.ledger().await;
    assert!(ledger.balances() && ledger.delivered == 3, "{ledger:?}");
}

async fn a_set_that_failed_is_sent_again_under_its_id_less_who_was_cancelled(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let calls = AtomicU32::new(0);
    receiver.on("/first-fails", move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::status(500),
        _ => Reply::ok(),
    });
    // One is cancelled before the second attempt, also on a busy machine.
    let timers = [("a", "PT0.6S"), ("b", "PT0.7S"), ("c", "PT0.8S")].map(|(id, delay)| {
        let mut timer = merging(&receiver, "/first-fails", delay, &json!(id));
        timer["retry"] = json!({"attempts": 3, "first": "PT4S", "cap": "PT4S"});
        item(id, timer)
    });
    register(&api, &timers).await;
    in_state(&api, "b", "retrying").await;
    let (status, body) = api.delete("b").await;
    assert_eq!((status, &body["outcome"]), (200, &json!("stopped")), "{body}");
    for id in ["a", "c"] {
        assert_eq!(in_state(&api, id, "delivered").await["attempts"], 2, "{id}");
    }
    let all = receiver.received();
    assert_eq!(all.iter().map(members).collect::<Vec<_>>(), [vec!["a", "b", "c"], vec!["a", "c"]]);
    assert_eq!(all[0].delivery_id, all[1].delivery_id);
    assert_eq!((all[0].attempt, all[1].attempt), (1, 2));
}

async fn a_cancelled_last_one_is_not_waited_for(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timers = [("a", "PT0.3S"), ("last", "PT2M")].map(|(id, delay)| {
        let mut timer = merging(&receiver, "/ok", delay, &json!(id));
        timer["merge"]["window"] = json!("PT5M");
        item(id, timer)
    });
    register(&api, &timers).await;
    crate::support::eventually("a waits for the last one", LONG, async || {
        let (_, explained) = api.get("/v1/timers/a/explain").await;
        let waits = explained["waiting_for"].as_str().unwrap_or_default().to_owned();
        if waits.contains("that it goes out with") { Ok(()) } else { Err(waits) }
    })
    .await;
    let (status, body) = api.delete("last").await;
    assert_eq!((status, &body["outcome"]), (200, &json!("cancelled")), "{body}");
    in_state(&api, "a", "delivered").await;
    let all = receiver.received();
    assert_eq!((all.len(), all[0].timer.as_str()), (1, "a"), "a set of one is an ordinary delivery");
    assert_eq!(all[0].headers["ce-type"], "mainspring.timer.fired.v1");
}

async fn what_cannot_merge_is_refused(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for (merge, pointer, code) in [
        (json!({"window": "PT5M1S"}), "/merge/window", "range"),
        (json!({"window": "soon"}), "/merge/window", "bad_duration"),
        (json!({"window": "P1M"}), "/merge/window", "bad_duration"),
        (json!({}), "/merge", "wrong_type"),
        (json!("PT1S"), "/merge", "wrong_type"),
        (json!({"window": "PT1S", "by": "owner"}), "/merge/by", "unknown_field"),
    ] {
        let mut timer = merging(&receiver, "/ok", "PT1H", &Value::Null);
        timer["merge"] = merge.clone();
        let (status, body) = api.put("t", &timer).await;
        let error = &body["errors"][0];
        assert_eq!(
            (status, &error["pointer"], &error["code"]),
            (422, &json!(pointer), &json!(code)),
            "{merge}: {body}"
        );
    }
    let mut timer = merging(&receiver, "/ok", "PT1H", &Value::Null);
    timer["merge"] = Value::Null;
    assert_eq!(api.put("t", &timer).await.1["merge"], Value::Null, "as left out");
}

async fn members_of_a_destination_merge_and_a_changed_target_leaves(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "d", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    // So far ahead that one leaves before, also on a busy machine.
    let timers = [("a", "PT3S"), ("b", "PT3.1S"), ("c", "PT3.2S")].map(|(id, delay)| {
        let mut timer = merging(&receiver, "/ok", delay, &json!(id));
        timer["target"] = json!({"destination": "d"});
        item(id, timer)
    });
    register(&api, &timers).await;
    let target = json!({"target": {"webhook": {"url": receiver.url("/ok")}}});
    assert_eq!(api.patch("c", &target).await.0, 200);
    for id in ["a", "b", "c"] {
        in_state(&api, id, "delivered").await;
    }
    let all = receiver.received();
    let merged: Vec<&Received> = all.iter().filter(|one| one.timer == "user:1").collect();
    assert_eq!((all.len(), merged.len()), (2, 1), "{all:?}");
    assert_eq!(members(merged[0]), ["a", "b"]);
    assert_eq!(receiver.of("c")[0].generation, 2);
}

/// A node is killed while its receiver holds a set: the next one sends the same set again.
#[tokio::test]
async fn a_set_under_way_at_a_kill_comes_again_as_it_was() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let mut node = Node::builder().cold(&url).start_ready().await;
    let api = node.api();
    receiver.on("/held", |_| Reply::hang());
    let timers = ["a", "b", "c"].map(|id| item(id, merging(&receiver, "/held", "PT0.5S", &json!(id))));
    register(&api, &timers).await;
    let held = receiver.wait_for(1, LONG).await;
    node.kill9().await;
    receiver.on("/held", |_| Reply::ok());
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    // One that is registered now does not join.
    assert_eq!(api.put("later", &merging(&receiver, "/held", "PT0S", &json!("later"))).await.0, 201);
    for id in ["a", "b", "c", "later"] {
        in_state(&api, id, "delivered").await;
    }
    let again: Vec<Received> =
        receiver.received().into_iter().skip(1).filter(|one| one.timer == "user:1").collect();
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(
        (again[0].delivery_id.as_str(), members(&again[0])),
        (held[0].delivery_id.as_str(), members(&held[0]))
    );
    assert_eq!(again[0].attempt, 2);
}

/// Many sets at once, on two nodes: each timer is in one delivery, and none is early.
#[tokio::test]
async fn many_sets_on_two_nodes_have_each_timer_once() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    let (a, _b) = tokio::join!(node("a"), node("b"));
    let api = a.api();
    let timers: Vec<Value> = (0..600)
        .map(|n| {
            let mut timer =
                merging(&receiver, "/ok", &format!("PT{}S", 1.0 + f64::from(n % 3) * 0.2), &json!(n));
            timer["owner"] = json!(format!("user:{}", n / 3));
            timer["id"] = json!(format!("t{n}"));
            timer
        })
        .collect();
    let (status, _) = api.post("/v1/timers/batch", &json!({ "timers": timers })).await;
    assert_eq!(status, 200);
    crate::support::settled(&api, 600, 0).await;
    let all = receiver.received();
    let mut seen = BTreeSet::new();
    for one in &all {
        assert!(one.lateness_ms() >= 0, "{one:?}");
        for id in members(one) {
            assert!(seen.insert(id.clone()), "{id} is in two deliveries");
        }
    }
    assert_eq!((seen.len(), all.len()), (600, 200));
}

on_both!(
    one_delivery_stands_for_all,
    a_set_that_failed_is_sent_again_under_its_id_less_who_was_cancelled,
    a_cancelled_last_one_is_not_waited_for,
    what_cannot_merge_is_refused,
    members_of_a_destination_merge_and_a_changed_target_leaves,
);

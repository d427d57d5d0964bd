//! Queues across restarts and crashes of nodes: what a worker has stays its own, and what nobody has is not lost.

use serde_json::{Value, json};

use super::{LONG, ack, item, lease};
use crate::support::{Node, NodeBuilder, fresh_database, in_state, on_both};

/// What a worker has outlives the node that gave it.
async fn a_lease_outlives_its_node(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let api = node.api();
    for id in ["held", "waits"] {
        assert_eq!(api.put(id, &json!({"delay": "PT0S", "target": {"queue": "q"}})).await.0, 201);
    }
    let held = item(&api, "q", "w1").await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let other = item(&api, "q", "w2").await;
    assert_ne!(other["timer"], held["timer"]);
    assert!(lease(&api, "q", json!({"worker": "w3"})).await.is_empty(), "nobody takes it away");
    let again = lease(&api, "q", json!({"worker": "w1", "redo": true})).await;
    assert_eq!(again[0]["lease_token"], held["lease_token"], "who asks again gets the same");
    for one in [&held, &other] {
        assert_eq!(ack(&api, "q", one).await, 200);
    }
    for id in ["held", "waits"] {
        in_state(&api, id, "delivered").await;
    }
    assert!(api.ledger().await.balances());
}

/// A node that is killed leaves its workers' leases to the others, and its waiting timers too.
#[tokio::test]
async fn another_node_goes_on_where_one_was_killed() {
    let cold = fresh_database().await;
    let killed = Node::builder().cold(&cold).start_ready().await;
    let heir = Node::builder().cold(&cold).start_ready().await;
    for n in 0..20 {
        let timer = json!({"delay": format!("PT{}S", n % 3), "target": {"queue": "q"}});
        assert_eq!(killed.api().put(&format!("t{n}"), &timer).await.0, 201);
    }
    let mut held: Vec<Value> = Vec::new();
    for n in 0..5 {
        held.push(item(&killed.api(), "q", &format!("w{n}")).await);
    }
    killed.kill9().await;
    let api = heir.api();
    for one in &held {
        assert_eq!(ack(&api, "q", one).await, 200, "its token holds at any node");
    }
    let mut got = Vec::new();
    while got.len() < 15 {
        let items = lease(&api, "q", json!({"worker": "late", "max": 20, "wait": "PT20S"})).await;
        assert!(!items.is_empty(), "only {} of 15 came", got.len());
        for one in &items {
            assert_eq!(ack(&api, "q", one).await, 200);
            assert_eq!(one["attempt"], 1, "nobody had it before");
        }
        got.extend(items);
    }
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.delivered, ledger.pending), (20, 20, 0));
}

/// A stop answers whoever waits, and takes back what nobody got.
async fn a_stop_answers_who_waits(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let waits = {
        let api = api.clone();
        tokio::spawn(async move { lease(&api, "q", json!({"worker": "w", "wait": "PT60S"})).await })
    };
    crate::support::eventually("it waits", LONG, async || {
        let (_, text) = api.get("/metrics").await;
        let is_there = text.as_str().is_some_and(|text| text.contains("mainspring_queue_waiting_workers 1"));
        if is_there { Ok(()) } else { Err(()) }
    })
    .await;
    let (status, took) = node.sigterm().await;
    assert!(status.success() && took.as_secs() < 20, "{took:?}");
    assert!(waits.await.expect("ends").is_empty());
}

on_both!(a_lease_outlives_its_node, a_stop_answers_who_waits);

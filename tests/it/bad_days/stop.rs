//! SIGTERM in the midst of work: what is under way ends, what waits is there after the restart.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use super::{LONG, all_delivered, due_in};
use crate::support::{Node, NodeBuilder, Receiver, Reply, in_state, on_both};

/// Attempts under way take one second here; the rest of a stop takes a moment.
const STOPPED: Duration = Duration::from_secs(8);

async fn a_stop_finishes_what_is_under_way_and_keeps_the_rest(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let api = node.api();
    // A new receiver gets a few attempts at once; four get more than fifty together.
    let mut receivers = Vec::new();
    for _ in 0..4 {
        receivers.push(Receiver::start().await);
    }
    let timers: Vec<_> = (0..160)
        .map(|n| {
            let mut timer = due_in(0, receivers[n % 4].url("/slow/1000"));
            timer["id"] = json!(format!("t{n}"));
            timer
        })
        .collect();
    assert_eq!(api.post("/v1/timers/batch", &json!({"timers": timers})).await.0, 200);
    for receiver in &receivers {
        receiver.wait_for(13, LONG).await;
    }
    let (status, took) = node.sigterm().await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < STOPPED, "{took:?}");
    let arrived = |timers: &mut HashMap<String, usize>| {
        for one in receivers.iter().flat_map(Receiver::received) {
            *timers.entry(one.timer).or_default() += 1;
        }
    };
    let mut before = HashMap::new();
    arrived(&mut before);
    assert!(
        (50..160).contains(&before.len()),
        "{} had arrived: some were under way, some waited",
        before.len()
    );
    let log = node.log();
    assert!(log.contains("stopped") && !log.contains("panicked") && !log.contains("WARN"), "{log}");

    node.restart().await;
    node.wait_ready(LONG).await;
    all_delivered(&api, 160).await;
    let mut after = HashMap::new();
    arrived(&mut after);
    assert_eq!(after.len(), 160);
    assert!(after.values().all(|count| *count == 1), "nothing twice");
}

/// Ten attempts hang while the node ends by `end`; after the restart they are tried again, and the first ones
/// are on record as `first`. Returns the node.
async fn what_hangs_is_tried_again(builder: NodeBuilder, end: impl AsyncFnOnce(&Node), first: &str) -> Node {
    let mut node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/first-hangs", |one| if one.attempt == 1 { Reply::hang() } else { Reply::ok() });
    for n in 0..10 {
        assert_eq!(api.put(&format!("t{n}"), &due_in(0, receiver.url("/first-hangs"))).await.0, 201);
    }
    receiver.wait_for(10, LONG).await;
    end(&node).await;
    assert_eq!(receiver.received().len(), 10, "a node that stops starts nothing");

    node.restart().await;
    node.wait_ready(LONG).await;
    for n in 0..10 {
        let id = format!("t{n}");
        let ended = in_state(&api, &id, "delivered").await;
        let (_, body) = api.get(&format!("/v1/timers/{id}/attempts")).await;
        let results: Vec<_> =
            body["items"].as_array().expect("items").iter().map(|one| one["result"].clone()).collect();
        assert_eq!(results, [first, "ok"], "{body}");
        assert_eq!(ended["uncertain"], true, "the first may have arrived");
        let arrivals = receiver.of(&id);
        assert_eq!(arrivals.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(arrivals[0].delivery_id, arrivals[1].delivery_id);
    }
    all_delivered(&api, 10).await;
    node
}

async fn a_stop_waits_for_what_hangs_until_its_timeout(builder: NodeBuilder) {
    let stop = async |node: &Node| {
        let (status, took) = node.sigterm().await;
        assert_eq!(status.code(), Some(0), "{status}");
        assert!(took < Duration::from_secs(8), "{took:?}");
    };
    let short = builder.env("MAINSPRING__WEBHOOK__TIMEOUT", "PT2S");
    let node = what_hangs_is_tried_again(short, stop, "timeout").await;
    assert_eq!(node.api().metric("mainspring_claims_expired_total").await, 0.0, "each was reported");
}

async fn a_kill_leaves_attempts_that_nobody_knows_of(builder: NodeBuilder) {
    let node = what_hangs_is_tried_again(builder, async |node: &Node| node.kill9().await, "unknown").await;
    assert_eq!(node.api().metric("mainspring_claims_expired_total").await, 10.0);
}

#[tokio::test]
async fn a_stop_while_nothing_happens_is_quick() {
    let node = Node::builder().start_ready().await;
    // A connection that is kept open does not hold up the stop.
    assert_eq!(node.api().get("/livez").await.0, 200);
    let (status, took) = node.sigterm().await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

on_both!(
    a_stop_finishes_what_is_under_way_and_keeps_the_rest,
    a_stop_waits_for_what_hangs_until_its_timeout,
    a_kill_leaves_attempts_that_nobody_knows_of,
);

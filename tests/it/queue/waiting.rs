//! Workers that wait: they get what falls due at once, whichever node they ask, and cost nobody anything.

use std::time::Duration;

use mainspring::clock::Monotonic;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{LONG, ack, item, lease, settle};
use crate::support::{Node, NodeBuilder, Watch, eventually, fresh_database, in_state, on_both, wall_ms};

fn ms(moment: &Value) -> i64 {
    let text = moment.as_str().expect("a moment");
    mainspring::model::time::UnixMs::parse_rfc3339(text).expect("a moment").get()
}

fn waits(worker: &str) -> Value {
    json!({"worker": worker, "wait": "PT30S"})
}

async fn who_waits_gets_it_when_it_is_due(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let first = {
        let api = api.clone();
        tokio::spawn(async move { item(&api, "q", "w1").await })
    };
    waiting(&node, 1).await;
    let second = lease(&api, "q", json!({"worker": "w2", "wait": "PT0.4S"})).await;
    assert!(second.is_empty(), "its time is over before there is anything");
    let watch = Watch::start(std::slice::from_ref(&api));
    let (_, put) = api.put("t", &json!({"delay": "PT1S", "target": {"queue": "q"}})).await;
    let one = first.await.expect("ends");
    let (due, got) = (ms(&put["due_at"]), wall_ms());
    let stalls = watch.end().await;
    let late = got - due;
    // A second and a half, and as long as the node stood still.
    let most = 1500 + stalls.within(due..got);
    assert!((0..most).contains(&late), "{late} ms after its due time; {stalls:?}");
    // What comes back is given at once to whoever waits.
    let third = {
        let api = api.clone();
        tokio::spawn(async move { item(&api, "q", "w3").await })
    };
    waiting(&node, 1).await;
    assert_eq!(settle(&api, "q", &one, json!({"action": "retry", "delay": "PT0S"})).await, 200);
    let again = third.await.expect("ends");
    assert_eq!((&again["attempt"], &again["delivery_id"]), (&json!(2), &one["delivery_id"]));
    assert_eq!(ack(&api, "q", &again).await, 200);
    // So is what is fired, resumed, or moved to now.
    for what in ["fire", "resume"] {
        let id = format!("by-{what}");
        assert_eq!(api.put(&id, &json!({"delay": "PT1H", "target": {"queue": "q"}})).await.0, 201);
        if what == "resume" {
            assert_eq!(api.post(&format!("/v1/timers/{id}/pause"), &Value::Null).await.0, 200);
            assert_eq!(api.patch(&id, &json!({"delay": "PT0S"})).await.0, 200);
        }
        let waits = {
            let api = api.clone();
            tokio::spawn(async move { item(&api, "q", "w4").await })
        };
        waiting(&node, 1).await;
        let act = api.send(Method::POST, &format!("/v1/timers/{id}/{what}"), &[], None).await;
        assert!(act.status < 300, "{}", act.body);
        let one = waits.await.expect("ends");
        assert_eq!(one["timer"], json!(id));
        assert_eq!(ack(&api, "q", &one).await, 200);
    }
}

/// Waits until so many workers wait on this node.
async fn waiting(node: &Node, count: usize) {
    let api = node.api();
    eventually("workers wait", LONG, async || {
        let (_, text) = api.get("/metrics").await;
        let line = format!("mainspring_queue_waiting_workers {count}");
        if text.as_str().is_some_and(|text| text.lines().any(|one| one == line)) {
            Ok(())
        } else {
            Err(count)
        }
    })
    .await;
}

/// Whoever hangs up while it waits gets nothing, and nobody loses anything by it.
async fn who_hangs_up_gets_nothing_and_it_does_not_count(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let gone = {
        let api = api.clone();
        tokio::spawn(async move { item(&api, "q", "gone").await })
    };
    waiting(&node, 1).await;
    gone.abort();
    let _ = gone.await;
    assert_eq!(api.put("t", &json!({"delay": "PT0S", "target": {"queue": "q"}})).await.0, 201);
    let one = item(&api, "q", "w").await;
    assert_eq!(one["attempt"], 1, "{one}");
    assert_eq!(ack(&api, "q", &one).await, 200);
}

/// An answer that is larger than what lies between the two: whoever hangs up within it has not got it.
async fn who_hangs_up_within_an_answer_has_got_nothing_of_it(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let data = "x".repeat(60_000);
    for from in [0, 150] {
        let timer =
            |n| json!({"id": format!("t-{n}"), "delay": "PT0S", "target": {"queue": "q"}, "data": data});
        let timers: Vec<Value> = (from..from + 150).map(timer).collect();
        assert_eq!(api.post("/v1/timers/batch", &json!({"timers": timers})).await.0, 200);
    }
    let count = async |field: &str| {
        let (_, queue) = api.get("/v1/queues/q").await;
        if queue[field] == json!(300) { Ok(()) } else { Err(queue) }
    };
    eventually("all are ready", LONG, async || count("ready").await).await;
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let address = node.base().trim_start_matches("http://").parse().expect("an address");
    let mut slow = socket.connect(address).await.expect("connects");
    let asked = json!({"worker": "w1", "max": 1000, "lease": "PT1H"}).to_string();
    let request = format!(
        "POST /v1/queues/q/lease HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{asked}",
        asked.len()
    );
    slow.write_all(request.as_bytes()).await.expect("writes");
    eventually("all are given out", LONG, async || count("leased").await).await;
    slow.read_exact(&mut [0; 100]).await.expect("the answer begins");
    drop(slow);
    eventually("all are free again", LONG, async || count("ready").await).await;
    let items = lease(&api, "q", json!({"worker": "w2", "max": 300})).await;
    assert!(items.len() == 300 && items.iter().all(|item| item["attempt"] == 1), "{}", items.len());
}

/// A lease that ends is given to whoever waits, though nobody settles it.
async fn a_lease_that_ends_goes_to_who_waits(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    assert_eq!(api.put("t", &json!({"delay": "PT0S", "target": {"queue": "q"}})).await.0, 201);
    let first = lease(&api, "q", json!({"worker": "w1", "lease": "PT1S", "wait": "PT10S"})).await.remove(0);
    let second = item(&api, "q", "w2").await;
    assert_eq!((&second["attempt"], &second["delivery_id"]), (&json!(2), &first["delivery_id"]));
    assert_eq!(ack(&api, "q", &first).await, 409, "it slept beyond its lease");
    assert_eq!(ack(&api, "q", &second).await, 200);
    in_state(&api, "t", "delivered").await;
    let attempts = api.get("/v1/timers/t/attempts").await.1;
    let results: Vec<_> =
        attempts["items"].as_array().expect("items").iter().map(|one| &one["result"]).collect();
    assert_eq!(results, [&json!("unknown"), &json!("ok")]);
}

/// Thousands of workers that wait are one call to the store every few seconds.
#[tokio::test]
async fn workers_that_wait_cost_no_polling() {
    let node = Node::builder().cold(fresh_database().await).start_ready().await;
    let api = node.api();
    let many: Vec<_> = (0..400)
        .map(|n| {
            let api = api.clone();
            tokio::spawn(
                async move { lease(&api, "q", json!({"worker": format!("w{n}"), "wait": "PT8S"})).await },
            )
        })
        .collect();
    waiting(&node, 400).await;
    let calls = async || {
        let (_, text) = api.get("/metrics").await;
        let text = text.as_str().expect("text").to_owned();
        let of = "mainspring_store_seconds_count{operation=\"lease_items\",store=\"cold\"} ";
        text.lines()
            .find_map(|line| line.strip_prefix(of))
            .expect("the series")
            .parse::<u64>()
            .expect("a number")
    };
    let (before, began) = (calls().await, Monotonic::now());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let made = calls().await - before;
    let bound = 4 * (2 + began.elapsed().as_secs() / 5 * 2);
    assert!(made <= 2 * bound, "{made} calls for leases in {:?}", began.elapsed());
    for one in many {
        assert!(one.await.expect("ends").is_empty());
    }
}

/// Registered on one node, fetched at the other.
#[tokio::test]
async fn whichever_node_a_worker_asks_it_gets_what_is_due() {
    let cold = fresh_database().await;
    let one = Node::builder().cold(&cold).start_ready().await;
    let other = Node::builder().cold(&cold).start_ready().await;
    let mut late = Vec::new();
    for n in 0..12 {
        let (asked, put) = if n % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let api = asked.api();
        let waits = {
            let api = api.clone();
            let worker = format!("w{n}");
            tokio::spawn(async move { lease(&api, "q", waits(&worker)).await.remove(0) })
        };
        waiting(asked, 1).await;
        let (_, timer) =
            put.api().put(&format!("t{n}"), &json!({"delay": "PT0.5S", "target": {"queue": "q"}})).await;
        let item = waits.await.expect("ends");
        late.push(wall_ms() - ms(&timer["due_at"]));
        assert_eq!(ack(&put.api(), "q", &item).await, 200, "settled at the other node");
    }
    late.sort_unstable();
    // By the store's clock it is never early. Nobody waits for a look that comes every few seconds.
    assert!(late[late.len() / 2] < 1000, "{late:?}");
}

on_both!(
    who_waits_gets_it_when_it_is_due,
    who_hangs_up_gets_nothing_and_it_does_not_count,
    who_hangs_up_within_an_answer_has_got_nothing_of_it,
    a_lease_that_ends_goes_to_who_waits
);

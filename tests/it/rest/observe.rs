//! What people look at: the forecast, the receivers, the stream of the wheels, the filters that lead to one timer.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{LONG, later, now, quick, with};
use crate::support::{
    Api, Node, NodeBuilder, Receiver, eventually, free_port, fresh_database, in_state, on_both, register,
    rfc3339, shared_as, to, wall_ms,
};

const HOUR_MS: i64 = 3_600_000;

fn due_at(id: usize, ms: i64) -> Value {
    with(with(later(), "fire_at", json!(rfc3339(ms))), "id", json!(format!("t{id}")))
        .as_object()
        .map(|fields| {
            fields.iter().filter(|(name, _)| *name != "delay").map(|(n, v)| (n.clone(), v.clone())).collect()
        })
        .expect("an object")
}

async fn forecast(api: &Api, query: &str) -> (Vec<(String, i64)>, Value) {
    let (status, body) = api.get(&format!("/v1/forecast?{query}")).await;
    assert_eq!(status, 200, "{body}");
    let items = body["items"].as_array().expect("items").iter();
    let items = items.map(|item| {
        (item["from"].as_str().expect("a time").to_owned(), item["count"].as_i64().expect("a count"))
    });
    (items.collect(), body["peak"].clone())
}

async fn a_forecast_counts_what_is_due_in_steps_and_names_the_peak(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    // The next whole day but one, so that steps are whole hours.
    let from = (wall_ms() / HOUR_MS + 24) * HOUR_MS;
    let offsets = [
        0,
        1,
        HOUR_MS - 1,
        HOUR_MS,
        5 * HOUR_MS,
        5 * HOUR_MS + 1,
        5 * HOUR_MS + 2,
        5 * HOUR_MS + 3,
        24 * HOUR_MS,
    ];
    let timers: Vec<Value> =
        offsets.iter().enumerate().map(|(id, offset)| due_at(id, from + offset)).collect();
    register(&api, &timers).await;
    assert_eq!(api.delete("t8").await.0, 200);
    let at = |hours: i64| rfc3339(from + hours * HOUR_MS);
    let query = |to: i64, step: &str| format!("from={}&to={}&step={step}", at(0), at(to));
    let (items, peak) = forecast(&api, &query(24, "PT1H")).await;
    assert_eq!(items, [(at(0), 3), (at(1), 1), (at(5), 4)]);
    assert_eq!(peak, json!({"from": at(5), "count": 4}));
    let (items, peak) = forecast(&api, &query(5, "PT1M")).await;
    assert_eq!(items, [(at(0), 2), (rfc3339(from + 59 * 60_000), 1), (at(1), 1)]);
    assert_eq!(peak["from"], at(0), "the first of the fullest");
    let (items, peak) = forecast(&api, &format!("from={}&to={}", at(100), at(124))).await;
    assert_eq!((items, peak), (Vec::new(), Value::Null));
    let (items, _) = forecast(&api, "").await;
    assert!(items.iter().map(|(_, count)| count).sum::<i64>() >= 2, "the next day, from now: {items:?}");

    for (query, pointer) in [
        ("from=tomorrow".to_owned(), "?from"),
        (format!("from={}&to={}", at(1), at(0)), "?to"),
        (query(24, "PT0.01S"), "?step"),
        (query(24, "soon"), "?step"),
        ("steps=PT1H".to_owned(), "?"),
    ] {
        let (status, body) = api.get(&format!("/v1/forecast?{query}")).await;
        assert_eq!((status, &body["errors"][0]["pointer"]), (422, &json!(pointer)), "{query}: {body}");
    }
}

/// What is kept of a large store is counted in the background; the bins are in the metrics.
#[tokio::test]
async fn the_bins_of_the_forecast_are_shown_to_prometheus() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let start = wall_ms();
    let ahead = [HOUR_MS / 2, HOUR_MS / 2, 2 * HOUR_MS, 48 * HOUR_MS, 20 * 24 * HOUR_MS, 20_000 * HOUR_MS];
    let timers: Vec<Value> = ahead.iter().enumerate().map(|(id, ms)| due_at(id, start + ms)).collect();
    register(&api, &timers).await;
    let wanted = [("1h", 2.0), ("1d", 1.0), ("7d", 1.0), ("30d", 1.0), ("later", 1.0)];
    for (within, count) in wanted {
        eventually("the bins are counted", LONG, async || {
            let found = api.metric(&format!("mainspring_forecast_timers{{within=\"{within}\"}}")).await;
            if found == count { Ok(()) } else { Err((within, found)) }
        })
        .await;
    }
}

fn receivers(body: &Value) -> BTreeMap<String, Value> {
    let items = body["items"].as_array().expect("items").iter();
    items.map(|item| (item["receiver"].as_str().expect("a name").to_owned(), item.clone())).collect()
}

#[tokio::test]
async fn receivers_are_listed_worst_first_with_their_last_error() {
    let node = Node::builder().start_ready().await;
    let (api, receiver, slow) = (node.api(), Receiver::start().await, Receiver::start().await);
    let gone = format!("http://127.0.0.1:{}", free_port());
    assert_eq!(api.get("/v1/receivers").await, (200, json!({"items": []})));
    // Thirty at once are three a second on average, and still seen to be some half a minute later.
    let thirty = (0..30).map(|n| with(now(receiver.url("/ok")), "id", json!(format!("ok-{n}"))));
    register(&api, &thirty.collect::<Vec<_>>()).await;
    receiver.wait_for(30, LONG).await;
    in_state(&api, "ok-29", "delivered").await;
    let before = wall_ms();
    assert_eq!(api.put("gone", &with(now(format!("{gone}/x")), "retry", quick(1))).await.0, 201);
    in_state(&api, "gone", "dead").await;
    assert_eq!(api.put("hangs", &now(slow.url("/hang"))).await.0, 201);
    slow.wait_for(1, LONG).await;
    let (status, body) = api.get("/v1/receivers").await;
    assert_eq!((status, &body["items"][0]["receiver"]), (200, &json!(gone)), "{body}");
    let all = receivers(&body);
    let failing = &all[&gone];
    assert_eq!(failing["state"], "failing");
    assert!(failing["last_error"].as_str().is_some_and(|why| why.contains("no connection")), "{failing}");
    let since = failing["since"].as_str().expect("a time");
    assert!(since >= rfc3339(before).as_str() && failing["last_error_at"] == since, "{failing}");
    let well = &all[receiver.url("").trim_end_matches('/')];
    assert_eq!(
        (&well["state"], &well["last_error"], &well["in_flight"]),
        (&json!("ok"), &Value::Null, &json!(0))
    );
    assert!(well["rate"].as_f64().is_some_and(|rate| rate > 0.0 && rate <= 3.0), "{well}");
    assert!(!all.contains_key(slow.url("").trim_end_matches('/')), "no attempt has ended there yet");
    assert_eq!(api.metric("mainspring_lanes{state=\"sending\"}").await, 1.0);
    assert_eq!(api.metric("mainspring_attempts_in_flight").await, 1.0);
}

/// A node shows what the other has sent to as well.
#[tokio::test(flavor = "multi_thread")]
async fn any_node_lists_the_receivers_of_all() {
    let store = fresh_database().await;
    let build = |name: &str| Node::builder().cold(&store).name(name).start_ready();
    let (one, two) = (build("one").await, build("two").await);
    let (a, b) = (one.api(), two.api());
    shared_as(&a, &[("one", 32), ("two", 32)], LONG).await;
    let receiver = Receiver::start().await;
    // One timer is in one shard, so one of the two nodes has sent it, and the other knows it from that one's report.
    assert_eq!(a.put("t", &with(now(receiver.url("/status/500")), "retry", quick(1))).await.0, 201);
    in_state(&b, "t", "dead").await;
    let name = receiver.url("").trim_end_matches('/').to_owned();
    for api in [&a, &b] {
        eventually("both know it", LONG, async || {
            let (_, body) = api.get("/v1/receivers").await;
            match receivers(&body).get(&name) {
                Some(one) if one["state"] == "failing" => Ok(()),
                other => Err(other.cloned()),
            }
        })
        .await;
    }
}

/// Frames of the stream, as (event, data).
async fn frames(api: &Api, until: impl Fn(&str, &Value) -> bool) -> Vec<(String, Value)> {
    let client = crate::support::http_client(LONG);
    let mut response = client.get(format!("{}/v1/wheels/stream", api.base)).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut text, mut found) = (String::new(), Vec::new());
    while let Some(bytes) = response.chunk().await.expect("a chunk") {
        text.push_str(std::str::from_utf8(&bytes).expect("text"));
        while let Some((one, rest)) = text.split_once("\n\n") {
            let field =
                |name: &str| one.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
            if !field("event:").is_empty() {
                let data: Value = serde_json::from_str(field("data:")).expect("JSON");
                found.push((field("event:").to_owned(), data));
            }
            text = rest.to_owned();
            if found.last().is_some_and(|(event, data)| until(event, data)) {
                return found;
            }
        }
    }
    panic!("the stream ended: {found:?}")
}

fn count_in(data: &Value, ring: &str, tick: i64) -> Option<i64> {
    let slots = data[ring].as_array().expect("slots");
    slots.iter().find(|slot| slot[0] == tick).and_then(|slot| slot[1].as_i64())
}

async fn the_stream_shows_the_wheels_as_they_are_and_what_changes(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let due = (wall_ms() / 1000 + 8) * 1000;
    let far = (wall_ms() / 60_000 + 20) * 60_000 + 30_000;
    let mut timers: Vec<Value> = (0..5).map(|id| due_at(id, far)).collect();
    for id in 5..12 {
        timers.push(with(due_at(id, due + 500), "target", to(receiver.url("/ok"))));
    }
    register(&api, &timers).await;
    eventually("they are in the wheels", LONG, async || {
        let wheels = api.wheels().await;
        if crate::support::in_wheels(&wheels) == 12 { Ok(()) } else { Err(wheels) }
    })
    .await;
    let seen =
        frames(&api, |event, data| event == "delta" && count_in(data, "s", due / 1000) == Some(0)).await;
    let (event, full) = &seen[0];
    assert_eq!(event, "full");
    assert_eq!((full["near"].as_i64(), full["window"].as_i64()), (Some(120), Some(3600)));
    assert_eq!(count_in(full, "s", due / 1000), Some(7), "{full}");
    assert_eq!(count_in(full, "m", far / 60_000), Some(5), "{full}");
    let x = &full["x"];
    assert_eq!((&x["level"], &x["cold"], &x["redis"]), (&json!("ok"), &json!(12), &json!(true)), "{x}");
    assert!(x["sentence"].as_str().is_some_and(|text| text.starts_with("On time.")), "{x}");
    let deltas: Vec<&Value> = seen[1..].iter().map(|(_, data)| data).collect();
    assert!(deltas.windows(2).all(|two| two[0]["now"].as_i64() < two[1]["now"].as_i64()));
    assert!(deltas.iter().any(|data| data["x"].is_object()), "the overview comes once a second");
    assert_eq!(
        count_in(deltas[deltas.len() - 1], "m", far / 60_000),
        None,
        "what did not change is not sent again"
    );
    assert_eq!(api.metric("mainspring_wheel_largest_slot_pointers{wheel=\"second\"}").await, 7.0);
    assert_eq!(api.metric("mainspring_wheel_pointers{wheel=\"minute\"}").await, 5.0);
}

#[tokio::test]
async fn a_stream_ends_when_the_node_stops() {
    let node = Node::builder().start_ready().await;
    let client = crate::support::http_client(LONG);
    let mut response =
        client.get(format!("{}/v1/wheels/stream", node.base())).send().await.expect("an answer");
    assert!(response.chunk().await.expect("a first frame").is_some());
    let (status, took) = node.sigterm().await;
    assert!(status.success());
    assert!(took < LONG, "{took:?}");
    // It ends in order: an error would be a connection that was cut.
    while response.chunk().await.expect("an end").is_some() {}
}

async fn a_list_finds_timers_by_id_and_by_receiver(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for (id, url) in
        [("a", "http://127.0.0.1:9/x"), ("b", "http://127.0.0.1:9/y?z"), ("c", "http://127.0.0.1:8/x")]
    {
        assert_eq!(api.put(id, &with(later(), "target", to(url))).await.0, 201);
    }
    assert_eq!(api.put("d", &now(receiver.url("/ok"))).await.0, 201);
    in_state(&api, "d", "delivered").await;
    let ids = async |query: &str| -> Vec<String> {
        let (status, body) = api.get(&format!("/v1/timers?{query}")).await;
        assert_eq!(status, 200, "{body}");
        let mut ids: Vec<String> = body["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| item["id"].as_str().expect("an id").to_owned())
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(ids("id=a&id=d&id=nobody").await, ["a", "d"]);
    assert_eq!(ids("id=a&id=c&receiver=http://127.0.0.1:8").await, ["c"]);
    assert_eq!(ids("receiver=http://127.0.0.1:9").await, ["a", "b"]);
    assert_eq!(ids("receiver=http://127.0.0.1:9/any").await, ["a", "b"]);
    assert_eq!(ids("receiver=https://127.0.0.1:9").await, [""; 0]);
    assert_eq!(ids(&format!("receiver={}&state=delivered", receiver.url(""))).await, ["d"]);
    let many: Vec<String> = (0..101).map(|n| format!("id=t{n}")).collect();
    for (query, pointer) in
        [("receiver=shop.example", "?receiver"), ("id=%20", "?id"), (many.join("&").as_str(), "?id")]
    {
        let (status, body) = api.get(&format!("/v1/timers?{query}")).await;
        assert_eq!((status, &body["errors"][0]["pointer"]), (422, &json!(pointer)), "{body}");
    }
}

on_both!(
    a_forecast_counts_what_is_due_in_steps_and_names_the_peak,
    the_stream_shows_the_wheels_as_they_are_and_what_changes,
    a_list_finds_timers_by_id_and_by_receiver,
);

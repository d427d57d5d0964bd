//! What is shown of the wheels, and of a single timer's way through them.

use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, NOWHERE, now, quick, with};
use crate::support::{
    Api, Node, NodeBuilder, Receiver, Reply, eventually, in_state, in_wheels, on_both, problem, register,
    rfc3339, to, wall_ms,
};

const MINUTE_MS: i64 = 60_000;

fn level<'a>(wheels: &'a Value, name: &str) -> &'a Value {
    let levels = wheels["wheels"].as_array().expect("wheels");
    levels.iter().find(|level| level["level"] == name).unwrap_or_else(|| panic!("no {name} in {wheels}"))
}

/// The slots of a wheel with something in them: when they start, and how much they hold.
fn slots(wheels: &Value, name: &str) -> Vec<(i64, u64)> {
    let level = level(wheels, name);
    let slots: Vec<_> = level["slots"]
        .as_array()
        .expect("slots")
        .iter()
        .map(|slot| (at(&slot["starts_at"]), slot["count"].as_u64().expect("a count")))
        .collect();
    assert_eq!(level["count"], slots.iter().map(|(_, count)| count).sum::<u64>(), "{level}");
    slots
}

/// A time of an answer in Unix milliseconds.
fn at(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_else(|| panic!("no time but {value}"));
    assert!(text.ends_with('Z') && text.len() == 24, "UTC with milliseconds: {text}");
    chrono::DateTime::parse_from_rfc3339(text).expect("RFC 3339").timestamp_millis()
}

fn due(id: String, at: i64) -> Value {
    json!({"id": id, "fire_at": rfc3339(at), "target": to(NOWHERE)})
}

/// Every timer within the window is counted in the slot of its second or minute, and nowhere else.
async fn the_wheels_are_shown_slot_by_slot(builder: NodeBuilder) {
    let node = builder.name("shown").start_ready().await;
    let api = node.api();
    let empty = api.wheels().await;
    assert_eq!((&empty["window"], &empty["near"]), (&json!("PT1H"), &json!("PT2M")));
    assert!(empty["shared"].is_boolean() && empty["last_mile"] == 0, "{empty}");
    let names: Vec<_> = empty["wheels"].as_array().expect("wheels").iter().map(|one| &one["level"]).collect();
    assert_eq!(names, ["second", "minute", "whole_minute"]);
    assert_eq!(in_wheels(&empty), 0);
    let shards = empty["shards"].as_array().expect("shards");
    assert_eq!(shards.len(), 64);
    for (n, shard) in shards.iter().enumerate() {
        assert_eq!((&shard["shard"], &shard["node"]), (&json!(n), &json!("shown")));
        assert!(shard["epoch"].as_i64().is_some_and(|epoch| epoch >= 1), "{shard}");
        let (ahead, cursor) = (at(&shard["watermark"]) - wall_ms(), at(&shard["cursor"]) - wall_ms());
        assert!((3_500_000..3_780_000).contains(&ahead), "the window and a step: {ahead}");
        assert!((-3000..3000).contains(&cursor), "{cursor}");
    }

    // Two minutes that neither begin nor end while the test runs, a second within reach, and the cold.
    let start = wall_ms();
    let second = (start / 1000 + 40) * 1000;
    let minutes = [(start / MINUTE_MS + 10) * MINUTE_MS, (start / MINUTE_MS + 30) * MINUTE_MS];
    let mut timers: Vec<Value> = (0..12).map(|n| due(format!("s{n}"), second + 80 * n)).collect();
    timers.extend((0..20).map(|n| due(format!("m{n}"), minutes[0] + 1 + 2900 * n)));
    timers.extend((0..7).map(|n| due(format!("n{n}"), minutes[1] + 59_999)));
    timers.extend(
        (0..5).map(|n| with(due(format!("p{n}"), minutes[1] - 30_000 + n), "precision", json!("minute"))),
    );
    timers.extend((0..9).map(|n| due(format!("c{n}"), start + 5_000_000 + n)));
    register(&api, &timers).await;
    let full = eventually("all are in their slots", LONG, async || {
        let wheels = api.wheels().await;
        if in_wheels(&wheels) == 44 { Ok(wheels) } else { Err(wheels["wheels"].clone()) }
    })
    .await;
    assert_eq!(slots(&full, "second"), [(second, 12)]);
    assert_eq!(slots(&full, "minute"), [(minutes[0], 20), (minutes[1], 7)]);
    assert_eq!(slots(&full, "whole_minute"), [(minutes[1], 5)]);
    for (id, tier) in [("s0", "second"), ("m0", "minute"), ("n0", "minute"), ("p0", "minute"), ("c0", "cold")]
    {
        assert_eq!(api.timer(id).await.1["tier"], tier, "{id}");
        // A cancel leaves its pointer where it is: a stale one is dropped by its claim.
        assert_eq!(api.delete(id).await.0, 200);
        assert_eq!(api.timer(id).await.1["tier"], json!(null), "{id}");
    }
    let before = at(&level(&full, "second")["cursor"]);
    eventually("the cursor moves", LONG, async || {
        let wheels = api.wheels().await;
        let cursor = at(&level(&wheels, "second")["cursor"]);
        let all = wheels["shards"].as_array().expect("shards");
        assert!(all.iter().all(|shard| at(&shard["cursor"]) >= before), "no shard's goes back");
        if cursor >= before + 2000 { Ok(()) } else { Err(cursor) }
    })
    .await;
}

/// A timer's words and deeds: events in order of time, and what it waits for.
async fn explained(api: &Api, id: &str) -> (Vec<String>, Value) {
    let (status, life) = api.get(&format!("/v1/timers/{id}/explain")).await;
    assert_eq!(status, 200, "{life}");
    assert_eq!(life["timer"], api.timer(id).await.1, "the timer as it stands");
    let events = life["events"].as_array().expect("events");
    let times: Vec<_> = events.iter().map(|event| at(&event["at"])).collect();
    assert!(times.is_sorted(), "{life}");
    (events.iter().map(|event| event["event"].as_str().expect("a word").to_owned()).collect(), life)
}

fn waits(life: &Value) -> &str {
    life["waiting_for"].as_str().unwrap_or_else(|| panic!("it waits for nothing: {life}"))
}

fn detail<'a>(life: &'a Value, event: &str) -> &'a str {
    let events = life["events"].as_array().expect("events");
    let found = events.iter().find(|one| one["event"] == event);
    found.and_then(|one| one["detail"].as_str()).unwrap_or_else(|| panic!("no {event} told in {life}"))
}

async fn a_timers_life_is_told_in_order(builder: NodeBuilder) {
    let node = builder.name("teller").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let ok = receiver.url("/ok");
    receiver.on("/hang", |_| Reply::hang());
    let later = |ms| json!({"fire_at": rfc3339(wall_ms() + ms), "target": to(&ok)});
    let failing = with(
        now(receiver.url("/status/500")),
        "retry",
        json!({"attempts": 4, "first": "PT0.05S", "cap": "PT1H"}),
    );
    let expired = json!({"fire_at": "2020-01-01T00:00:00Z", "late": {"grace": "PT1S", "then": "expire"}, "target": to(&ok)});
    for (id, timer) in [
        ("cold", later(7_200_000)),
        ("minute", later(1_800_000)),
        ("second", later(60_000)),
        ("cancelled", later(1_800_000)),
        ("delivered", later(1500)),
        ("moved", later(7_200_000)),
        ("claimed", now(receiver.url("/hang"))),
        ("dead", with(now(receiver.url("/status/500")), "retry", quick(3))),
        ("expired", expired),
        (
            "retrying",
            with(now(receiver.url("/status/503?retry_after=600")), "retry", failing["retry"].clone()),
        ),
    ] {
        assert_eq!(api.put(id, &timer).await.0, 201, "{id}");
    }
    assert_eq!(api.delete("cancelled").await.0, 200);
    assert_eq!(api.patch("moved", &json!({"delay": "PT1H30M"})).await.0, 200);
    for (id, state) in [
        ("delivered", "delivered"),
        ("dead", "dead"),
        ("expired", "expired"),
        ("retrying", "retrying"),
        ("claimed", "delivering"),
    ] {
        in_state(&api, id, state).await;
    }

    let (events, life) = explained(&api, "cold").await;
    assert_eq!((&events[..], &life["timer"]["tier"]), (&["registered".to_owned()][..], &json!("cold")));
    assert!(waits(&life).contains("rests in SQL until PT1H before"), "{life}");
    assert!(
        detail(&life, "registered").contains(life["timer"]["due_at"].as_str().expect("a time")),
        "{life}"
    );
    for id in ["minute", "second"] {
        let (events, life) = explained(&api, id).await;
        assert_eq!(events, ["registered", "promoted"], "{life}");
        assert_eq!(life["timer"]["tier"], id);
        assert!(waits(&life).ends_with(&format!("in the {id} wheel")), "{life}");
        assert!(waits(&life).contains(life["timer"]["due_at"].as_str().expect("a time")), "{life}");
    }
    let (events, life) = explained(&api, "moved").await;
    assert_eq!(events, ["registered"], "{life}");
    assert!(detail(&life, "registered").contains("generation 2"), "{life}");

    let (events, life) = explained(&api, "delivered").await;
    assert_eq!(events.len(), 6, "{life}");
    assert_eq!(events[..2], ["registered", "promoted"], "{life}");
    assert_eq!(events[4..], ["attempt", "delivered"], "{life}");
    for event in ["claimed", "due"] {
        assert!(events[2..4].contains(&event.to_owned()), "claimed a moment before it is due: {life}");
    }
    assert!(detail(&life, "claimed").starts_with("attempt 1: its slot came up"), "{life}");
    assert_eq!(life["waiting_for"], json!(null));
    let claimed = life["events"].as_array().expect("events").iter().find(|event| event["event"] == "claimed");
    assert_eq!(claimed.expect("claimed")["node"], "teller");

    let (events, life) = explained(&api, "claimed").await;
    assert_eq!(
        (events.last().map(String::as_str), &life["timer"]["tier"]),
        (Some("claimed"), &json!("claimed"))
    );
    assert!(waits(&life).starts_with("the outcome of attempt 1, made by teller"), "{life}");

    let (events, life) = explained(&api, "retrying").await;
    assert_eq!(events.iter().filter(|event| *event == "attempt").count(), 1, "{life}");
    assert!(detail(&life, "attempt").contains("(HTTP 503)"), "{life}");
    assert!(waits(&life).starts_with("attempt 2 of 4, at "), "{life}");
    assert!(waits(&life).contains("the last one failed: answered 503"), "{life}");

    let (events, life) = explained(&api, "dead").await;
    assert_eq!(events.iter().filter(|event| *event == "attempt").count(), 3, "{life}");
    assert_eq!((events.last().map(String::as_str), &life["waiting_for"]), (Some("dead"), &json!(null)));

    let (events, life) = explained(&api, "cancelled").await;
    assert_eq!((&events[0][..], events.last().map(String::as_str)), ("registered", Some("cancelled")));
    assert!(!events.contains(&"due".to_owned()) && life["waiting_for"].is_null(), "{life}");

    let (_, life) = explained(&api, "expired").await;
    let events: Vec<_> = life["events"].as_array().expect("events").iter().map(|one| &one["event"]).collect();
    assert!(events.contains(&&json!("expired")) && !events.contains(&&json!("claimed")), "{life}");

    problem(&api.send(Method::GET, "/v1/timers/nobody/explain", &[], None).await, 404, "not_found");
    let bad = api.send(Method::GET, "/v1/timers/a%20b/explain", &[], None).await;
    assert!(matches!(bad.status, 404 | 422), "{}", bad.body);
    problem(&bad, bad.status, bad.body["code"].as_str().expect("a code"));
    the_command_tells_it_too(&node).await;
}

/// Runs `mainspring timer …` against a node; returns its exit code, stdout and stderr.
async fn command(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.arg("timer").args(args).env("MAINSPRING_SERVER", node.base()).stdin(Stdio::null());
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = run.await.expect("it runs").expect("the binary is there");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn the_command_tells_it_too(node: &Node) {
    let (code, out, _) = command(node, &["explain", "dead"]).await;
    assert_eq!(code, Some(0));
    assert!(out.starts_with("explain dead: dead, due "), "{out}");
    assert!(out.lines().any(|line| line.contains("attempt 3 of generation 1: failed (HTTP 500)")), "{out}");
    assert!(!out.contains("waits for"), "{out}");
    let (code, out, _) = command(node, &["explain", "cold"]).await;
    assert_eq!(code, Some(0));
    let last = out.lines().last().expect("lines");
    assert!(last.starts_with("waits for its due time") && last.contains("rests in SQL"), "{out}");
    let (code, out, _) = command(node, &["explain", "minute", "--json"]).await;
    let told: Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!((code, &told), (Some(0), &node.api().get("/v1/timers/minute/explain").await.1));
    let (code, out, errors) = command(node, &["explain", "nobody"]).await;
    assert_eq!((code, out.as_str()), (Some(3), ""), "{errors}");
    let (code, out, errors) = command(node, &["explain", "a b"]).await;
    assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
}

on_both!(the_wheels_are_shown_slot_by_slot, a_timers_life_is_told_in_order);

//! `spread`: the service chooses the moment, by what is due around it, and keeps it.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Api, Node, NodeBuilder, eventually, fresh_database, in_state, on_both, problem, rfc3339, to, wall_ms,
};

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(20);

const NOWHERE: &str = "http://127.0.0.1:9/x";

/// The span, in seconds.
const SPAN: i64 = 300;

/// How many are asked for one moment.
fn many() -> i64 {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_some() { 100_000 } else { 20_000 }
}

fn spread(fire_at: i64) -> Value {
    json!({"fire_at": rfc3339(fire_at), "spread": "PT5M", "target": to(NOWHERE)})
}

fn due_ms(timer: &Value) -> i64 {
    let at = timer["due_at"].as_str().expect("a time");
    mainspring::model::time::UnixMs::parse_rfc3339(at).expect("a time").get()
}

/// A whole minute, an hour ahead.
fn an_hour_ahead() -> i64 {
    (wall_ms() / 60_000 + 60) * 60_000
}

async fn a_moment_is_chosen_shown_and_kept(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let from = an_hour_ahead();
    let ok = |timer: &Value, from: i64| {
        assert!((from..=from + SPAN * 1000).contains(&due_ms(timer)), "{timer}");
        assert_eq!(timer["spread"], "PT5M");
    };
    let (status, made) = node.api().put("t", &spread(from)).await;
    assert_eq!(status, 201);
    ok(&made, from);
    let due = &made["due_at"];
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    let (status, same) = api.put("t", &spread(from)).await;
    assert_eq!((status, &same["due_at"]), (200, due), "the same request is the same timer");
    let other = json!({"fire_at": rfc3339(from), "spread": "PT4M", "target": to(NOWHERE)});
    assert_eq!(api.put("t", &other).await.0, 409, "another spread is other content");

    let (_, same) = api.patch("t", &json!({"fire_at": rfc3339(from)})).await;
    assert_eq!((&same["due_at"], &same["version"]), (due, &json!(1)), "no new time");
    let (_, relabelled) =
        api.patch("t", &json!({"fire_at": rfc3339(from), "labels": {"a": "b"}, "data": 1})).await;
    assert_eq!((&relabelled["due_at"], &relabelled["generation"]), (due, &json!(2)));
    let (_, explained) = api.get("/v1/timers/t/explain").await;
    let story = explained["events"][0]["detail"].as_str().expect("a text");
    assert!(story.contains(&format!("chosen from {} to PT5M later", rfc3339(from))), "{story}");

    let later = from + 3_600_000;
    let (status, moved) = api.patch("t", &json!({"fire_at": rfc3339(later)})).await;
    assert_eq!((status, &moved["generation"]), (200, &json!(3)));
    ok(&moved, later);
    let (_, same) = api.patch("t", &json!({"fire_at": rfc3339(later)})).await;
    assert_eq!(same["version"], moved["version"]);
    assert_eq!(api.post("/v1/timers/t/fire", &Value::Null).await.0, 202);
    // The attempt that the fire began fails in a moment.
    let back = eventually("it may be changed", LONG, async || {
        let (status, back) = api.patch("t", &json!({"fire_at": rfc3339(later), "target": to(NOWHERE)})).await;
        if status == 200 { Ok(back) } else { Err(back) }
    })
    .await;
    ok(&back, later);
    let listed = api.get("/v1/timers?id=t").await.1;
    assert_eq!(listed["items"][0], back);
}

async fn a_minute_is_rounded_to_after_the_choice(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, from) = (node.api(), an_hour_ahead() + 1);
    let mut timer = spread(from);
    timer["precision"] = json!("minute");
    let mut minutes = BTreeMap::new();
    for n in 0..30 {
        let (status, made) = api.put(&format!("t{n}"), &timer).await;
        assert_eq!(status, 201);
        assert_eq!(due_ms(&made) % 60_000, 0);
        *minutes.entry((due_ms(&made) - from) / 60_000).or_insert(0) += 1;
    }
    assert!(minutes.keys().all(|minute| (0..=5).contains(minute)), "{minutes:?}");
    assert!(minutes.len() >= 5 && minutes.values().all(|count| *count <= 10), "{minutes:?}");
    let (_, moved) = api.patch("t0", &json!({"fire_at": rfc3339(from + 3_600_000)})).await;
    assert_eq!(due_ms(&moved) % 60_000, 0);
}

async fn one_that_is_over_fires_at_once(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), crate::support::Receiver::start().await);
    let past = json!({"fire_at": rfc3339(wall_ms() - 3_600_000), "spread": "PT1S", "target": to(receiver.url("/ok"))});
    assert_eq!(api.put("past", &past).await.0, 201);
    let now = json!({"delay": "PT0S", "spread": "PT2S", "target": to(receiver.url("/ok"))});
    let (_, soon) = api.put("now", &now).await;
    in_state(&api, "past", "delivered").await;
    in_state(&api, "now", "delivered").await;
    assert!(receiver.of("now")[0].at_ms >= due_ms(&soon), "never early");
    for (spread, code) in [("P1DT0.001S", "range"), ("soon", "bad_duration"), ("P1M", "bad_duration")] {
        let timer = json!({"delay": "PT1S", "spread": spread, "target": to(NOWHERE)});
        let answer = api.send(Method::PUT, "/v1/timers/t", &[], Some(&timer)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(answer.body["errors"][0]["code"], code, "{}", answer.body);
        assert_eq!(answer.body["errors"][0]["pointer"], "/spread");
    }
}

/// Registers timers by a stream.
async fn register(api: &Api, lines: impl Iterator<Item = Value>) {
    let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
    let kind = [("content-type", "application/x-ndjson")];
    for part in lines.chunks(10_000) {
        let answer = api.send_bytes(Method::POST, "/v1/timers/stream", &kind, part.join("\n")).await;
        assert_eq!(answer.status, 200);
        let results = answer.body.as_str().expect("lines");
        assert_eq!(results.matches("\"status\":201").count(), part.len(), "all are registered");
    }
}

/// How many are due in each second of the span. Asked for by the minute: so few are counted exactly.
async fn by_second(api: &Api, from: i64) -> Vec<i64> {
    let mut due = vec![0; usize::try_from(SPAN).expect("small")];
    for minute in 0..SPAN / 60 {
        let begins = from + minute * 60_000;
        let (begin, end) = (rfc3339(begins), rfc3339(begins + 60_000));
        let (status, found) = api.get(&format!("/v1/forecast?from={begin}&to={end}&step=PT1S")).await;
        assert_eq!(status, 200, "{found}");
        for item in found["items"].as_array().expect("items") {
            let at = item["from"].as_str().expect("a time");
            let at = mainspring::model::time::UnixMs::parse_rfc3339(at).expect("a time").get();
            due[usize::try_from((at - from) / 1000).expect("in the span")] =
                item["count"].as_i64().expect("a number");
        }
    }
    due
}

/// Of ten seconds three were full before.
fn was_full(second: i64) -> bool {
    second % 10 < 3
}

/// Fills three of ten seconds, then spreads many over all by these nodes, and looks where they came.
async fn fills_up_around(apis: &[Api]) {
    let (from, many) = (an_hour_ahead(), many());
    let each = many / 130;
    let full = (0..SPAN).filter(|second| was_full(*second)).flat_map(|second| {
        (0..each).map(move |n| {
            json!({"id": format!("f{second}-{n}"), "target": to(NOWHERE),
            "fire_at": rfc3339(from + second * 1000 + n % 1000)})
        })
    });
    register(&apis[0], full).await;
    let share = many / apis.len() as i64;
    let spreading = apis.iter().enumerate().map(|(node, api)| {
        let lines = (0..share).map(move |n| {
            let mut timer = spread(from);
            timer["id"] = json!(format!("s{node}-{n}"));
            timer
        });
        register(api, lines)
    });
    futures::future::join_all(spreading).await;
    let all = by_second(&apis[0], from).await;
    let new = |second: &i64| all[*second as usize] - if was_full(*second) { each } else { 0 };
    let (most, mean) = ((0..SPAN).map(|second| new(&second)).max().expect("seconds"), many / SPAN);
    let in_full: i64 = (0..SPAN).filter(|second| was_full(*second)).map(|second| new(&second)).sum();
    let fullest = all.iter().max().expect("seconds");
    println!(
        "{many} by {} nodes: at most {most} of them in a second, mean {mean}; {in_full} where {each} were",
        apis.len()
    );
    println!("the fullest second has {fullest}, all have {} in the mean", all.iter().sum::<i64>() / SPAN);
    // Some of the last second's moments are in the next, which is not asked for.
    assert!((0..SPAN).map(|second| new(&second)).sum::<i64>() >= many * 99 / 100);
    assert!(most <= 2 * mean, "{most} in one second, {mean} in the mean");
    // Spread without a look, 30 % would be there.
    assert!(in_full < many / 10, "{in_full} of {many} came where {each} were in each second");
}

async fn many_for_one_moment_come_out_even_beside_an_uneven_load(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, from) = (node.api(), an_hour_ahead() + 1_800_000);
    let timers = (0..many()).map(|n| {
        let mut timer = spread(from);
        (timer["id"], timer["owner"]) = (json!(format!("e{n}")), json!(format!("user:{}", n % 7)));
        timer
    });
    register(&api, timers).await;
    let (due, mean) = (by_second(&api, from).await, many() / SPAN);
    println!("alone: {:?} to {:?}, mean {mean}", due.iter().min(), due.iter().max());
    assert!(due.iter().all(|count| (mean / 2..=2 * mean).contains(count)), "{due:?}");
    fills_up_around(&[api]).await;
}

/// What the other node registers, this one learns in the background.
#[tokio::test]
async fn two_nodes_fill_up_around_an_uneven_load_together() {
    let url = fresh_database().await;
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    let (a, b) = tokio::join!(node("a"), node("b"));
    fills_up_around(&[a.api(), b.api()]).await;
}

on_both!(
    a_moment_is_chosen_shown_and_kept,
    a_minute_is_rounded_to_after_the_choice,
    one_that_is_over_fires_at_once,
    many_for_one_moment_come_out_even_beside_an_uneven_load,
);

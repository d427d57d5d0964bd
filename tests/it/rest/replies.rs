//! How a receiver may answer, and what each answer means.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, now, quick, results, with};
use crate::support::{Node, NodeBuilder, Receiver, Reply, free_port, in_state, on_both, problem};

/// What became of one timer at a receiver that answers in one way.
struct Row {
    path: &'static str,
    state: &'static str,
    results: &'static [&'static str],
    status: Option<u16>,
}

async fn each_answer_has_its_meaning(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    // This one alone is given up soon: to others, which do answer, a pause of the machine must be no timeout.
    let hangs = json!({"webhook": {"url": receiver.url("/hang")}, "timeout": "PT0.5S"});
    let made = api.send(Method::PUT, "/v1/destinations/hangs", &[], Some(&hangs)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    receiver.on("/204", |_| Reply::status(204));
    receiver.on("/299", |_| Reply::status(299));
    let row = |path, state, results, status| Row { path, state, results, status };
    let rows = [
        row("/ok", "delivered", &["ok"], Some(200)),
        row("/204", "delivered", &["ok"], Some(204)),
        row("/299", "delivered", &["ok"], Some(299)),
        row("/flaky/1", "delivered", &["failed", "ok"], Some(500)),
        row("/status/410", "dead", &["failed"], Some(410)),
        row("/status/500", "dead", &["failed", "failed"], Some(500)),
        row("/status/400", "dead", &["failed", "failed"], Some(400)),
        row("/redirect", "dead", &["failed", "failed"], Some(302)),
        row("/status/304", "dead", &["failed", "failed"], Some(304)),
        row("/close", "dead", &["unknown", "unknown"], None),
        row("/hang", "dead", &["timeout", "timeout"], None),
    ];
    for (n, row) in rows.iter().enumerate() {
        let timer = with(now(receiver.url(row.path)), "retry", quick(2));
        let timer = match row.path {
            "/hang" => with(timer, "target", json!({"destination": "hangs"})),
            _ => timer,
        };
        assert_eq!(api.put(&format!("t{n}"), &timer).await.0, 201);
    }
    for (n, row) in rows.iter().enumerate() {
        let id = format!("t{n}");
        let ended = in_state(&api, &id, row.state).await;
        assert_eq!(results(&api, &id).await, row.results, "{}", row.path);
        assert_eq!(ended["attempts"], row.results.len());
        let (_, body) = api.get(&format!("/v1/timers/{id}/attempts")).await;
        assert_eq!(body["items"][0]["status"], row.status.map_or(Value::Null, Value::from), "{}", row.path);
        let unsure = matches!(row.results[0], "timeout" | "unknown");
        assert_eq!(ended["uncertain"] == true, unsure, "{}", row.path);
        let arrived = receiver.of(&id);
        assert_eq!(arrived.len(), row.results.len(), "{}", row.path);
        assert!(arrived.iter().all(|one| one.path == row.path), "{}: nothing was followed", row.path);
    }
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.delivered, ledger.dead, ledger.pending), (11, 4, 7, 0));
}

#[tokio::test]
async fn a_receiver_that_is_not_there_refuses_and_is_tried_again() {
    let node = Node::builder().start_ready().await;
    let (api, port) = (node.api(), free_port());
    let timer = with(now(format!("http://127.0.0.1:{port}/ok")), "retry", quick(100));
    assert_eq!(api.put("t", &timer).await.0, 201);
    crate::support::eventually("it was tried", LONG, async || {
        let (_, timer) = api.timer("t").await;
        // The latest may be claimed only, a moment ahead.
        if timer["attempts"].as_i64() >= Some(3) { Ok(()) } else { Err(timer) }
    })
    .await;
    let receiver = Receiver::start_on(port).await;
    let ended = in_state(&api, "t", "delivered").await;
    let all = receiver.received();
    assert_eq!((all.len(), &json!(all[0].attempt)), (1, &ended["attempts"]));
    assert!(ended["uncertain"].is_null(), "nothing was sent to nobody");
    let results = results(&api, "t").await;
    let (last, refused) = results.split_last().expect("attempts");
    assert!(last == "ok" && refused.len() >= 2 && refused.iter().all(|one| one == "refused"), "{results:?}");
}

/// 429 and 503 say themselves when to come back, in seconds or as a date.
async fn a_busy_receiver_is_left_alone_as_long_as_it_asks(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for (path, status) in [("/429", 429), ("/503", 503)] {
        receiver.on(path, move |one| match one.attempt {
            1 => Reply::status(status).header("retry-after", "2"),
            _ => Reply::ok(),
        });
    }
    receiver.on("/date", |one| match one.attempt {
        1 => {
            // HTTP dates are whole seconds; the next but two is at least two away.
            let at = std::time::SystemTime::now() + Duration::from_secs(3);
            Reply::status(503).header("retry-after", &httpdate::fmt_http_date(at))
        }
        _ => Reply::ok(),
    });
    receiver.on("/500", |one| match one.attempt {
        1 => Reply::status(500).header("retry-after", "3600"),
        _ => Reply::ok(),
    });
    for id in ["429", "503", "date", "500"] {
        let timer = with(now(receiver.url(&format!("/{id}"))), "retry", quick(5));
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    receiver.wait_for(8, LONG).await;
    for id in ["429", "503", "date"] {
        let all = receiver.of(id);
        let waited = all[1].at_ms - all[0].at_ms;
        assert!((1990..5000).contains(&waited), "{id}: {waited} ms");
        in_state(&api, id, "delivered").await;
        assert_eq!(results(&api, id).await, ["failed", "ok"]);
    }
    let other = receiver.of("500");
    assert!(other[1].at_ms - other[0].at_ms < 1900, "other answers keep to the backoff");
}

#[tokio::test]
async fn a_busy_receiver_counts_as_surely_failed_and_its_wait_is_shown() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = with(now(receiver.url("/status/429?retry_after=3600")), "retry", quick(5));
    assert_eq!(api.put("t", &timer).await.0, 201);
    let waiting = in_state(&api, "t", "retrying").await;
    let ms = |name: &str| {
        let text = waiting[name].as_str().unwrap_or_else(|| panic!("no {name} in {waiting}"));
        chrono::DateTime::parse_from_rfc3339(text).expect("a time").timestamp_millis()
    };
    let wait = ms("next_attempt_at") - ms("due_at");
    assert!((3_600_000..3_620_000).contains(&wait), "{wait}");
    let (status, outcome) = api.delete("t").await;
    assert_eq!((status, outcome), (200, json!({"outcome": "stopped"})));
}

/// The status is known as soon as it has arrived; whatever follows is not waited for.
async fn a_giant_or_dripping_reply_is_ok_at_once(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let began = Instant::now();
    for id in ["giant", "drip"] {
        assert_eq!(api.put(id, &now(receiver.url(&format!("/{id}")))).await.0, 201);
    }
    for id in ["giant", "drip"] {
        in_state(&api, id, "delivered").await;
        assert_eq!(results(&api, id).await, ["ok"]);
    }
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "less than an attempt's timeout: {:?}",
        began.elapsed()
    );
    let (_, body) = api.get("/v1/timers/giant/attempts").await;
    assert_eq!(body["items"][0]["reply"], "x".repeat(1024));
    assert_eq!(receiver.received().len(), 2);
}

/// An address that is refused now, though it was allowed when the timer was registered.
#[tokio::test]
async fn an_address_that_is_not_public_is_refused_at_the_attempt_too() {
    let mut node =
        Node::builder().env("MAINSPRING__WEBHOOK__ALLOW_NETWORKS", "10.0.0.0/8").start_ready().await;
    let api = node.api();
    let timer =
        json!({"delay": "PT1H", "target": crate::support::to("http://10.255.255.1:9/"), "retry": quick(1)});
    assert_eq!(api.put("t", &timer).await.0, 201);
    node.restart_with("MAINSPRING__WEBHOOK__ALLOW_NETWORKS", "").await;
    node.wait_ready(LONG).await;
    let again = api.send(Method::PUT, "/v1/timers/u", &[], Some(&timer)).await;
    problem(&again, 422, "invalid");
    assert_eq!(api.post("/v1/timers/t/fire", &Value::Null).await.0, 202);
    let ended = in_state(&api, "t", "dead").await;
    assert!(ended["uncertain"].is_null());
    let (_, body) = api.get("/v1/timers/t/attempts").await;
    assert_eq!(body["items"][0]["result"], "refused", "{body}");
    assert!(body["items"][0]["detail"].as_str().is_some_and(|why| why.contains("allow_networks")), "{body}");
}

on_both!(
    each_answer_has_its_meaning,
    a_busy_receiver_is_left_alone_as_long_as_it_asks,
    a_giant_or_dripping_reply_is_ok_at_once,
);

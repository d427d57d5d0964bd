//! The log of a real node, read line by line: one line a failure, and nothing in it that is not for a log.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Node, NodeBuilder, Postgres, Receiver, Redis, eventually, in_state, problem, to};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn logging_json() -> NodeBuilder {
    Node::builder().env("MAINSPRING__LOG__FORMAT", "json")
}

/// The lines so far. Each must be a JSON object with time, level, target and a message.
#[track_caller]
fn lines(node: &Node) -> Vec<Value> {
    let line = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"));
        for field in ["timestamp", "level", "target"] {
            assert!(line[field].is_string(), "no {field}: {text}");
        }
        assert!(line["fields"]["message"].is_string(), "no message: {text}");
        line
    };
    node.log().lines().map(line).collect()
}

fn of_level<'a>(lines: &'a [Value], levels: &[&str]) -> Vec<&'a Value> {
    lines.iter().filter(|line| levels.iter().any(|level| line["level"] == *level)).collect()
}

/// The lines about the request with this id.
fn about<'a>(lines: &'a [Value], request_id: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["fields"]["request_id"] == request_id).collect()
}

#[tokio::test]
async fn no_line_has_a_payload_a_secret_or_the_path_of_a_url() {
    let key = "key-0123456789abcdef";
    // With `debug` libraries log what they do; that must hold there too.
    let node = logging_json()
        .env("MAINSPRING__LOG__FILTER", "debug")
        .env("MAINSPRING__SERVER__API_KEYS", key)
        .start_ready()
        .await;
    let (api, receiver) = (node.api().with_key(key), Receiver::start().await);
    let timer = |path: &str| {
        json!({"delay": "PT0S", "owner": "owner-of-it", "data": {"card": "payload-4111"},
            "labels": {"label-name": "label-value"},
            "target": {"webhook": {"url": receiver.url(path), "secret": "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LQ==",
                "headers": {"x-token": "header-token"}}},
            "retry": {"attempts": 2, "first": "PT0.1S", "cap": "PT0.1S"}})
    };
    for (id, path, end) in [
        ("told", "/ok?query-of-it=1", "delivered"),
        ("refused", "/status/500?path-of-it=1", "dead"),
        ("broken", "/close?closed-of-it=1", "dead"),
    ] {
        assert_eq!(api.put(id, &timer(path)).await.0, 201);
        in_state(&api, id, end).await;
    }
    assert_eq!(
        api.post("/v1/timers/batch", &json!({"timers": [timer("/ok"), {"bad": "payload-4111"}]})).await.0,
        200
    );
    problem(
        &api.send(Method::PUT, "/v1/timers/bad", &[], Some(&json!({"data": "payload-4111"}))).await,
        422,
        "invalid",
    );
    assert!(node.sigterm().await.0.success());
    let log = node.log();
    let all = lines(&node);
    assert!(!of_level(&all, &["DEBUG"]).is_empty(), "libraries are heard: {log}");
    for secret in [
        "payload-4111",
        "whsec",
        "c2VjcmV0",
        "header-token",
        key,
        "query-of-it",
        "path-of-it",
        "closed-of-it",
        "label-value",
        "owner-of-it",
        "/status/500",
    ] {
        assert!(!log.contains(secret), "{secret} in the log:\n{log}");
    }
}

#[tokio::test]
async fn at_info_mainspring_is_heard_and_its_libraries_are_not() {
    let node = logging_json().start_ready().await;
    assert!(node.sigterm().await.0.success());
    let all = lines(&node);
    let messages: Vec<&str> = all.iter().filter_map(|line| line["fields"]["message"].as_str()).collect();
    for told in ["listening on", "replayed", "ready", "stopping", "stopped"] {
        assert!(messages.iter().any(|message| message.starts_with(told)), "no {told}: {messages:?}");
    }
    for line in &all {
        let target = line["target"].as_str().expect("text");
        assert!(target.starts_with("mainspring::"), "a library: {line}");
        assert_eq!(line["level"], "INFO", "nothing is wrong: {line}");
    }

    let node = logging_json().env("MAINSPRING__LOG__FILTER", "debug").start_ready().await;
    assert!(node.sigterm().await.0.success());
    let all = lines(&node);
    let migrations =
        |line: &&Value| line["target"].as_str().is_some_and(|target| target.contains("migration"));
    assert!(all.iter().any(|line| migrations(&line)), "with debug they are: {}", node.log());
}

#[tokio::test]
async fn a_store_that_is_away_is_one_line_and_each_failed_call_one() {
    let mut server = Postgres::start().await;
    let node = logging_json().cold(server.create_database().await).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    // Due in the outage, one after another: their claims fail, and their results cannot be written.
    for n in 0..30 {
        let timer =
            json!({"delay": format!("PT{}.{}S", 1 + n / 2, n % 2 * 5), "target": to(receiver.url("/ok"))});
        assert_eq!(api.put(&format!("t{n}"), &timer).await.0, 201);
    }
    let before = lines(&node).len();
    server.stop_fast().await;
    let stopped = Instant::now();
    let mut calls = 0;
    // Longer than any loop waits before it logs a failure of its own.
    while stopped.elapsed() < Duration::from_secs(20) {
        let id = format!("call-{calls}");
        let answer = api.send(Method::GET, "/v1/timers/t1?secret=1", &[("x-request-id", &id)], None).await;
        problem(&answer, 503, "store_unavailable");
        calls += 1;
    }
    assert_eq!(api.get("/readyz").await.0, 503, "a health check is no failed call");
    let during = lines(&node).split_off(before);
    let warned = of_level(&during, &["WARN", "ERROR"]);
    assert_eq!(warned.len(), 1, "one line: {warned:#?}");
    assert!(warned[0]["fields"]["why"].is_string(), "with its cause: {}", warned[0]);
    for n in 0..calls {
        let told = about(&during, &format!("call-{n}"));
        assert_eq!(told.len(), 1, "call {n}: {told:#?}");
        let fields = &told[0]["fields"];
        assert_eq!(
            (&fields["status"], &fields["code"], &fields["route"], &fields["method"]),
            (&json!(503), &json!("store_unavailable"), &json!("/v1/timers/{id}"), &json!("GET"))
        );
        assert!(fields["why"].is_string(), "{fields}");
    }
    assert_eq!(during.len(), 1 + calls, "and nothing else: {during:#?}");

    let batch = json!({"timers": [{"delay": "PT1H", "target": to(receiver.url("/ok"))}]});
    let answer =
        api.send(Method::POST, "/v1/timers/batch", &[("x-request-id", "batch-1")], Some(&batch)).await;
    assert_eq!((answer.status, &answer.body["results"][0]["status"]), (200, &json!(503)));
    let all = lines(&node);
    let told = about(&all, "batch-1");
    assert_eq!((told.len(), &told[0]["fields"]["timers"]), (1, &json!(1)), "{told:#?}");

    server.start_again().await;
    node.wait_ready(LONG).await;
    receiver.wait_for(30, LONG).await;
    let after = lines(&node).split_off(all.len());
    let messages: Vec<&str> = after.iter().filter_map(|line| line["fields"]["message"].as_str()).collect();
    assert_eq!(
        messages.iter().filter(|message| message.contains("answers again")).count(),
        1,
        "{messages:?}"
    );
    assert!(of_level(&after, &["WARN", "ERROR"]).is_empty(), "{after:#?}");
}

#[tokio::test]
async fn a_redis_that_is_away_is_one_line() {
    let redis = Redis::private().await;
    let node =
        logging_json().cold(crate::support::fresh_database().await).hot(redis.url()).start_ready().await;
    let api = node.api();
    let before = lines(&node).len();
    redis.kill().await;
    eventually("the node notices", LONG, async || {
        let up = api.metric("mainspring_wheels_up").await;
        if up == 0.0 { Ok(()) } else { Err(up) }
    })
    .await;
    let answer = api.send(Method::GET, "/v1/wheels", &[("x-request-id", "look-1")], None).await;
    problem(&answer, 503, "wheels_unavailable");
    let timer = json!({"delay": "PT30S", "target": to("http://127.0.0.1:9/")});
    for n in 0..5 {
        assert_eq!(api.put(&format!("t{n}"), &timer).await.0, 201);
    }
    let until = Instant::now() + Duration::from_secs(12);
    eventually("longer than any loop waits before it logs a failure of its own", LONG, async || {
        if Instant::now() > until { Ok(()) } else { Err("not yet") }
    })
    .await;
    let during = lines(&node).split_off(before);
    let warned = of_level(&during, &["WARN", "ERROR"]);
    assert_eq!(warned.len(), 1, "one line: {warned:#?}");
    assert_eq!(about(&during, "look-1").len(), 1, "{during:#?}");
}

/// What a build with the export does instead is in `traces.rs`.
#[cfg(not(feature = "otlp"))]
#[tokio::test]
async fn an_endpoint_for_traces_is_one_warning_in_a_build_without_their_export() {
    let node = logging_json().env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318").start_ready().await;
    let all = lines(&node);
    let warned = of_level(&all, &["WARN", "ERROR"]);
    assert_eq!(warned.len(), 1, "{all:#?}");
    let text = warned[0]["fields"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("`OTEL_EXPORTER_OTLP_ENDPOINT`") && text.contains("--features otlp"), "{text}");
}

#[tokio::test]
async fn the_last_line_of_a_node_that_fails_is_json_too() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let node = logging_json()
        .env("MAINSPRING__SERVER__LISTEN", taken.local_addr().expect("an address").to_string())
        .start();
    assert_eq!(node.wait_exit(LONG).await.and_then(|exit| exit.code()), Some(1));
    let all = lines(&node);
    let errors = of_level(&all, &["ERROR"]);
    assert_eq!(errors.len(), 1, "{all:#?}");
    assert!(errors[0]["fields"]["message"].as_str().is_some_and(|text| text.contains("server.listen")));

    // Before the log is set up there is no format yet.
    let node = logging_json().env("MAINSPRING__LOG__FILTER", "info,=").start();
    assert!(node.wait_exit(LONG).await.is_some_and(|exit| !exit.success()));
    assert!(node.log().starts_with("mainspring: settings: `log.filter`"), "{}", node.log());
}

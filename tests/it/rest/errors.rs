//! Every row of the contract's list of errors but 422, which has a file of its own, and 503, which needs a
//! bad day.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{LONG, NOWHERE, later, now, quick, with};
use crate::support::{Answer, Api, Node, NodeBuilder, Receiver, eventually, in_state, on_both, problem, to};

const KEY: &str = "first-key-0123456789";
const OTHER_KEY: &str = "other-key-0123456789";

async fn call(api: &Api, method: Method, path: &str, body: Option<&Value>) -> Answer {
    api.send(method, path, &[], body).await
}

#[tokio::test]
async fn what_is_no_json_is_400_everywhere() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    assert_eq!(api.put("t", &later()).await.0, 201);
    let bodies: [&[u8]; 9] = [
        b"",
        b" ",
        b"{",
        b"{'delay':'PT1S'}",
        b"{\"delay\":NaN}",
        b"{\"delay\":\"PT1H\"} {}",
        b"{\"delay\":\"PT1H\"}x",
        b"{\"delay\":\"\xff\"}",
        b"{\"delay\":\"PT1H\",\"data\":[\"\xff\"]}",
    ];
    for (method, path) in [
        (Method::PUT, "/v1/timers/new"),
        (Method::POST, "/v1/timers"),
        (Method::POST, "/v1/timers/batch"),
        (Method::PATCH, "/v1/timers/t"),
    ] {
        for body in bodies {
            let answer = api.send_bytes(method.clone(), path, &[], body).await;
            println!("{method} {path} {:?}", String::from_utf8_lossy(body));
            problem(&answer, 400, "malformed");
        }
    }
    assert_eq!(api.timer("t").await.1["version"], 1, "nothing was changed");
    assert_eq!(api.ledger().await.registered, 1, "nothing was registered");
}

#[tokio::test]
async fn without_a_known_key_all_but_the_health_checks_is_401() {
    let keys = format!("{KEY},{OTHER_KEY}");
    let node = Node::builder().env("MAINSPRING__SERVER__API_KEYS", keys).start_ready().await;
    let open = node.api();
    let wrong = node.api().with_key("wrong-key-0123456789");
    let cut = node.api().with_key(&KEY[..KEY.len() - 1]);
    for (method, path) in [
        (Method::PUT, "/v1/timers/t"),
        (Method::GET, "/v1/timers/t"),
        (Method::GET, "/v1/timers"),
        (Method::POST, "/v1/timers/batch"),
        (Method::POST, "/v1/timers/stream"),
        (Method::GET, "/v1/ledger"),
        (Method::GET, "/openapi.json"),
        (Method::GET, "/docs"),
        (Method::GET, "/nowhere"),
    ] {
        problem(&call(&open, method.clone(), path, Some(&later())).await, 401, "no_key");
        for api in [&wrong, &cut] {
            problem(&call(api, method.clone(), path, Some(&later())).await, 401, "unknown_key");
        }
    }
    for path in ["/livez", "/readyz", "/startupz", "/metrics"] {
        assert_eq!(open.get(path).await.0, 200, "{path} is open");
    }
    assert_eq!(node.api().with_key(KEY).put("t", &later()).await.0, 201);
    assert_eq!(node.api().with_key(OTHER_KEY).timer("t").await.0, 200);
    assert!(!node.log().contains("-key-0123456789"), "keys never reach the log");
}

#[tokio::test]
async fn an_open_server_answers_no_other_sites_page() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    for (header, value, code) in [
        ("origin", "https://evil.example", "foreign_origin"),
        ("origin", "null", "foreign_origin"),
        ("host", "evil.example", "foreign_host"),
    ] {
        let answer = api.send(Method::PUT, "/v1/timers/t", &[(header, value)], Some(&later())).await;
        problem(&answer, 403, code);
    }
    let own = [("origin", api.base.as_str())];
    assert_eq!(api.timer("t").await.0, 404);
    assert_eq!(api.send(Method::PUT, "/v1/timers/t", &own, Some(&later())).await.status, 201, "its own page");
}

#[tokio::test]
async fn what_is_not_there_is_404_and_a_wrong_method_405() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let change = json!({"delay": "PT1H"});
    for (method, path) in [
        (Method::GET, "/v1/timers/none"),
        (Method::GET, "/v1/timers/none/attempts"),
        (Method::PATCH, "/v1/timers/none"),
        (Method::DELETE, "/v1/timers/none"),
        (Method::POST, "/v1/timers/none/fire"),
        (Method::GET, "/v1/timers/tmr_00000000000000000000000000000000"),
        (Method::GET, "/v1"),
        (Method::GET, "/v1/nothing"),
        (Method::GET, "/v1/timers/a/b/c"),
        (Method::GET, "/v1/schedules/none"),
    ] {
        println!("{method} {path}");
        problem(&call(&api, method, path, Some(&change)).await, 404, "not_found");
    }
    for (method, path, allowed) in [
        (Method::DELETE, "/v1/timers", "POST"),
        (Method::POST, "/v1/timers/t", "PUT"),
        (Method::GET, "/v1/timers/t/fire", "POST"),
        (Method::POST, "/v1/ledger", "GET"),
        (Method::POST, "/v1/schedules", "GET"),
    ] {
        let answer = call(&api, method, path, None).await;
        problem(&answer, 405, "method_not_allowed");
        assert!(answer.header("allow").is_some_and(|list| list.contains(allowed)), "{:?}", answer.headers);
    }
}

#[tokio::test]
async fn the_request_id_of_the_caller_comes_back() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let asked = [("x-request-id", "mine-1")];
    let good = api.send(Method::PUT, "/v1/timers/t", &asked, Some(&later())).await;
    assert_eq!((good.status, good.header("x-request-id")), (201, Some("mine-1")));
    let bad = api.send(Method::GET, "/v1/timers/none", &asked, None).await;
    problem(&bad, 404, "not_found");
    assert_eq!(bad.body["request_id"], "mine-1");
    let long = "x".repeat(129);
    let other = api.send(Method::GET, "/v1/timers/t", &[("x-request-id", &long)], None).await;
    assert!(other.header("x-request-id").is_some_and(|id| id.starts_with("req_")), "too long to be carried");
}

/// Each conflict of the contract, on a timer that is in the way.
async fn a_conflict_is_409_and_says_which(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let change = json!({"delay": "PT1H"});
    let changes = async |id: &str, code: &str| {
        let path = format!("/v1/timers/{id}");
        problem(&call(&api, Method::PATCH, &path, Some(&change)).await, 409, code);
        problem(&call(&api, Method::POST, &format!("{path}/fire"), None).await, 409, code);
    };
    let delete = async |id: &str| call(&api, Method::DELETE, &format!("/v1/timers/{id}"), None).await;

    assert_eq!(api.put("taken", &later()).await.0, 201);
    let other = with(later(), "data", json!(1));
    problem(&call(&api, Method::PUT, "/v1/timers/taken", Some(&other)).await, 409, "id_taken");
    assert_eq!(api.timer("taken").await.1["data"], Value::Null, "the first stands");

    assert_eq!(api.put("hanging", &now(receiver.url("/hang"))).await.0, 201);
    receiver.wait_until(|all| all.iter().any(|one| one.timer == "hanging"), LONG).await;
    changes("hanging", "in_flight").await;
    problem(&delete("hanging").await, 409, "in_flight");
    changes("hanging", "in_flight").await;

    let dead = with(now(receiver.url("/status/500")), "retry", quick(1));
    let expired = json!({"fire_at": "2020-01-01T00:00:00Z", "target": to(NOWHERE),
        "late": {"grace": "PT1M", "then": "expire"}});
    for (id, timer) in [("delivered", &now(receiver.url("/ok"))), ("dead", &dead), ("expired", &expired)] {
        assert_eq!(api.put(id, timer).await.0, 201);
        in_state(&api, id, id).await;
        changes(id, "already_fired").await;
        problem(&delete(id).await, 409, "already_fired");
    }

    assert_eq!(api.put("cancelled", &later()).await.0, 201);
    assert_eq!(delete("cancelled").await.status, 200);
    changes("cancelled", "already_cancelled").await;
    assert_eq!(delete("cancelled").await.status, 200, "a cancel repeats");
    assert_eq!(receiver.received().len(), 3, "no refused fire sent anything");
}

#[tokio::test]
async fn a_body_over_its_limit_is_413() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let data = |bytes: usize| {
        format!(r#"{{"delay":"PT1H","target":{},"data":"{}"}}"#, to(NOWHERE), "x".repeat(bytes - 2))
    };
    let put = async |id: &str, body: String| {
        api.send_bytes(Method::PUT, &format!("/v1/timers/{id}"), &[], body).await
    };
    assert_eq!(put("just", data(64 * 1024)).await.status, 201, "64 KiB are allowed");
    let over = put("over", data(64 * 1024 + 1)).await;
    problem(&over, 413, "too_large");
    assert_eq!(over.body["errors"][0]["pointer"], "/data");
    problem(&put("over", data(1024 * 1024)).await, 413, "too_large");
    let padded = format!("{}{}", later(), " ".repeat(128 * 1024));
    problem(&put("over", padded).await, 413, "too_large");
    let change = format!(r#"{{"data":"{}"}}"#, "x".repeat(64 * 1024));
    problem(&api.send_bytes(Method::PATCH, "/v1/timers/just", &[], change).await, 413, "too_large");

    let batch = format!(r#"{{"timers":[{}]}}{}"#, later(), " ".repeat(16 * 1024 * 1024));
    problem(&api.send_bytes(Method::POST, "/v1/timers/batch", &[], batch).await, 413, "too_large");
    let many = json!({"timers": vec![later(); 5001]});
    let many = call(&api, Method::POST, "/v1/timers/batch", Some(&many)).await;
    problem(&many, 413, "too_large");
    assert_eq!(many.body["errors"][0]["pointer"], "/timers");
    assert_eq!((api.timer("over").await.0, api.ledger().await.registered), (404, 1));
}

#[tokio::test]
async fn a_body_over_its_limit_is_answered_before_it_has_arrived() {
    let node = Node::builder().start_ready().await;
    let address = node.base().replace("http://", "");
    for head in [
        "PUT /v1/timers/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n",
        "PUT /v1/timers/t HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n40000\r\n",
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.expect("connects");
        stream.write_all(head.as_bytes()).await.expect("sends the head");
        // Beyond the limit, and far from all that was announced.
        stream.write_all(&vec![b' '; 0x30000]).await.expect("sends the beginning");
        let mut seen = Vec::new();
        let answer = async {
            while !String::from_utf8_lossy(&seen).contains("too_large") {
                let read = stream.read_buf(&mut seen).await.expect("reads");
                assert_ne!(read, 0, "closed after {:?}", String::from_utf8_lossy(&seen));
            }
        };
        tokio::time::timeout(Duration::from_secs(5), answer)
            .await
            .expect("answered while the rest is awaited");
        assert!(seen.starts_with(b"HTTP/1.1 413 "), "{:?}", String::from_utf8_lossy(&seen));
    }
    assert_eq!(node.api().timer("t").await.0, 404);
}

/// Refused early, a client goes on sending for a while. A connection closed under it would tell it nothing.
#[tokio::test]
async fn a_client_that_is_still_sending_learns_why_it_is_refused() {
    let node = Node::builder().env("MAINSPRING__SERVER__API_KEYS", KEY).start_ready().await;
    let (api, unknown) = (node.api().with_key(KEY), node.api().with_key(OTHER_KEY));
    let body = vec![b' '; 2 * 1024 * 1024];
    for _ in 0..20 {
        let put = async |api: &Api| api.send_bytes(Method::PUT, "/v1/timers/t", &[], body.clone()).await;
        problem(&put(&unknown).await, 401, "unknown_key");
        problem(&put(&api).await, 413, "too_large");
        let stream = api.send_bytes(Method::POST, "/v1/timers/stream", &[], body.clone()).await;
        problem(&stream, 415, "not_ndjson");
    }
}

#[tokio::test]
async fn a_spent_quota_is_429_and_comes_back() {
    let node = Node::builder()
        .env("MAINSPRING__SERVER__API_KEYS", format!("{KEY},{OTHER_KEY}"))
        .env("MAINSPRING__SERVER__RATE_PER_SECOND", "5")
        .start_ready()
        .await;
    let (api, other) = (node.api().with_key(KEY), node.api().with_key(OTHER_KEY));
    let mut spent = None;
    for n in 0..50 {
        let answer = call(&api, Method::PUT, &format!("/v1/timers/t{n}"), Some(&later())).await;
        if answer.status != 201 {
            spent = Some((n, answer));
            break;
        }
    }
    let (n, answer) = spent.expect("50 calls are more than 5 a second");
    assert!(n >= 5, "the quota holds 5");
    problem(&answer, 429, "rate_exceeded");
    assert_eq!(api.timer(&format!("t{n}")).await.0, 404, "reading is free, and what was refused is not kept");
    assert_eq!(other.put("other", &later()).await.0, 201, "each key has its own quota");
    eventually("the quota comes back", LONG, async || {
        let answer = call(&api, Method::PUT, "/v1/timers/again", Some(&later())).await;
        if answer.status == 201 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    let batch = json!({"timers": vec![later(); 5]});
    // Asking costs too; whoever waits as told gets through.
    let taken = eventually("a batch costs what it holds", LONG, async || {
        let answer = call(&api, Method::POST, "/v1/timers/batch", Some(&batch)).await;
        if answer.status == 200 {
            return Ok(answer);
        }
        problem(&answer, 429, "rate_exceeded");
        let wait = answer.header("retry-after").and_then(|wait| wait.parse().ok()).expect("seconds");
        tokio::time::sleep(Duration::from_secs(wait)).await;
        Err(answer.status)
    })
    .await;
    assert_eq!(taken.body["results"].as_array().map(Vec::len), Some(5));
    // Of many at once so many get through as the quota holds, and as come back meanwhile, however long that takes.
    let began = Instant::now();
    let calls = (0..8).map(|_| call(&api, Method::POST, "/v1/timers/batch", Some(&batch)));
    let answers = futures::future::join_all(calls).await;
    let allowed = 5.0 + 5.0 * began.elapsed().as_secs_f64();
    let (through, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    let registered: f64 = through.iter().map(|_| 5.0_f64).sum();
    assert!(registered <= allowed && !refused.is_empty(), "{registered} of {allowed}");
    for answer in &refused {
        problem(answer, 429, "rate_exceeded");
    }
}

on_both!(a_conflict_is_409_and_says_which);

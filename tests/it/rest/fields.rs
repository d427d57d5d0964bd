//! 422: each field of a request, each way it can be wrong, with the pointer that leads there.

use reqwest::Method;
use serde_json::{Value, json};

use super::document::Document;
use super::{NOWHERE, later, with};
use crate::support::{Answer, Node, problem, to};

/// The pointers and codes of what is wrong.
fn errors(answer: &Answer) -> Vec<(&str, &str)> {
    let errors = answer.body["errors"].as_array().expect("errors");
    errors
        .iter()
        .map(|error| {
            assert!(error["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{error}");
            (error["pointer"].as_str().expect("a pointer"), error["code"].as_str().expect("a code"))
        })
        .collect()
}

/// A valid timer without its time, and then with these fields.
fn at(fields: Value) -> Value {
    let mut timer = json!({"target": to(NOWHERE)});
    for (name, value) in fields.as_object().expect("an object") {
        timer[name] = value.clone();
    }
    timer
}

fn hook(fields: Value) -> Value {
    let mut timer = later();
    for (name, value) in fields.as_object().expect("an object") {
        timer["target"]["webhook"][name] = value.clone();
    }
    timer
}

fn numbered(count: usize) -> Value {
    (0..count).map(|n| (format!("x-{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
}

/// Whether the document can say that this is refused. It can count and match texts, but not compare fields or look
/// into a time, an address or the list of reserved headers.
fn can_be_documented(timer: &Value, pointer: &str, code: &str) -> bool {
    let reserved = ["Host", "content-type", "ce-id", "webhook-signature"];
    let too_far = timer["delay"] == "P3650000D";
    let reserved = reserved.iter().any(|name| pointer.ends_with(&format!("/headers/{name}")));
    let retry_wait = code == "range" && ["/retry/first", "/retry/cap", "/spread"].contains(&pointer);
    !(too_far || reserved || retry_wait || code == "address_refused")
}

/// Registers each and demands exactly this one error; the document refuses it, too.
async fn each_is_refused(rows: Vec<(Value, &str, &str)>) {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let document = Document::of(&api).await;
    for (timer, pointer, code) in rows {
        assert!(!(document.allows_put(&timer) && can_be_documented(&timer, pointer, code)), "{timer}");
        println!("{timer}");
        let answer = api.send(Method::PUT, "/v1/timers/t", &[], Some(&timer)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(errors(&answer), [(pointer, code)], "{}", answer.body);
    }
    assert_eq!(api.timer("t").await.0, 404);
    assert_eq!(api.put("t", &later()).await.0, 201, "without all this it is valid");
}

#[tokio::test]
async fn a_time_that_cannot_be_is_refused() {
    each_is_refused(vec![
        (at(json!({})), "", "when"),
        (at(json!({"delay": "PT1H", "fire_at": "2030-01-01T00:00:00Z"})), "/fire_at", "when"),
        (at(json!({"delay": "PT1H", "local": "2030-01-01T00:00:00", "zone": "UTC"})), "/delay", "when"),
        (at(json!({"delay": "P3650000D"})), "/delay", "bad_time"),
        (at(json!({"delay": "P1Y"})), "/delay", "bad_time"),
        (at(json!({"delay": "P1M"})), "/delay", "bad_time"),
        (at(json!({"delay": "-PT5S"})), "/delay", "bad_time"),
        (at(json!({"delay": "5s"})), "/delay", "bad_time"),
        (at(json!({"delay": 5})), "/delay", "wrong_type"),
        (at(json!({"fire_at": "2030-01-01T00:00:00"})), "/fire_at", "bad_time"),
        (at(json!({"fire_at": "2030-02-30T00:00:00Z"})), "/fire_at", "bad_time"),
        (at(json!({"fire_at": "+10000-01-01T00:00:00Z"})), "/fire_at", "bad_time"),
        (at(json!({"fire_at": null, "delay": null})), "", "when"),
        (at(json!({"fire_at": 1_900_000_000})), "/fire_at", "wrong_type"),
        (at(json!({"local": "2030-01-01T00:00:00"})), "/zone", "when"),
        (at(json!({"local": "2030-01-01T00:00:00", "zone": "Mars/Olympus"})), "/zone", "bad_time"),
        (at(json!({"local": "2030-01-01T00:00:00Z", "zone": "UTC"})), "/local", "bad_time"),
        (at(json!({"delay": "PT1H", "zone": "UTC"})), "/zone", "when"),
        (with(later(), "precision", json!("hour")), "/precision", "wrong_type"),
    ])
    .await;
}

#[tokio::test]
async fn a_target_that_cannot_be_is_refused() {
    let url = |url: &str| hook(json!({"url": url}));
    let header = |name: &str, value: &str| hook(json!({"headers": {name: value}}));
    let (place, refused) = ("/target/webhook/url", "address_refused");
    each_is_refused(vec![
        (json!({"delay": "PT1H"}), "/target", "missing"),
        (with(later(), "target", json!({})), "/target", "missing"),
        (with(later(), "target", json!("x")), "/target", "wrong_type"),
        (with(later(), "target", json!([{"url": NOWHERE}, null, null])), "/target", "wrong_type"),
        (with(later(), "target", json!({"webhook": [NOWHERE, null, {}]})), "/target/webhook", "wrong_type"),
        (with(later(), "target", json!({"webhook": {}})), "/target/webhook", "wrong_type"),
        (with(later(), "target", json!({"carrier": 1})), "/target/carrier", "unknown_field"),
        (hook(json!({"colour": 1})), "/target/webhook/colour", "unknown_field"),
        (url(""), place, "bad_webhook"),
        (url("shop.example/hook"), place, "bad_webhook"),
        (url("ftp://shop.example/"), place, "bad_webhook"),
        (url("http://user:word@shop.example/"), place, "bad_webhook"),
        (url("http://shop.example/#part"), place, "bad_webhook"),
        (url(&format!("http://shop.example/{}", "x".repeat(2048))), place, "bad_webhook"),
        (url("http://10.0.0.1/"), place, refused),
        (url("http://192.168.1.1/"), place, refused),
        (url("http://169.254.169.254/latest/meta-data"), place, refused),
        (url("http://0xa9fea9fe/"), place, refused),
        (url("http://[fd00:ec2::254]/"), place, refused),
        (url("http://[::ffff:10.0.0.1]/"), place, refused),
        (hook(json!({"secret": "not base64!"})), "/target/webhook/secret", "bad_webhook"),
        (hook(json!({"secret": "whsec_"})), "/target/webhook/secret", "bad_webhook"),
        (hook(json!({"headers": numbered(17)})), "/target/webhook/headers", "bad_webhook"),
        (header("Host", "x"), "/target/webhook/headers/Host", "bad_webhook"),
        (header("content-type", "x"), "/target/webhook/headers/content-type", "bad_webhook"),
        (header("ce-id", "x"), "/target/webhook/headers/ce-id", "bad_webhook"),
        (header("webhook-signature", "x"), "/target/webhook/headers/webhook-signature", "bad_webhook"),
        (header("x-a", "1\r\nx-b: 2"), "/target/webhook/headers/x-a", "bad_webhook"),
        (header("a/b~c", "x"), "/target/webhook/headers/a~1b~0c", "bad_webhook"),
        (header("x-a", &"x".repeat(1100)), "/target/webhook/headers/x-a", "bad_webhook"),
    ])
    .await;
}

#[tokio::test]
async fn any_other_field_that_cannot_be_is_refused() {
    let field = |name: &str, value: Value| with(later(), name, value);
    let label = |name: &str, value: Value| field("labels", json!({name: value}));
    let retry = |name: &str, value: Value| field("retry", json!({name: value}));
    each_is_refused(vec![
        (field("colour", json!(1)), "/colour", "unknown_field"),
        (field("id", json!("other")), "/id", "mismatch"),
        (field("owner", json!("")), "/owner", "length"),
        (field("owner", json!("x".repeat(257))), "/owner", "length"),
        (field("owner", json!("a\nb")), "/owner", "control_character"),
        (field("owner", json!(1)), "/owner", "wrong_type"),
        (field("labels", numbered(17)), "/labels", "too_many"),
        (label("a b", json!("x")), "/labels/a b", "bad_label"),
        (label("~a", json!("x")), "/labels/~0a", "bad_label"),
        (label("", json!("x")), "/labels/", "bad_label"),
        (label("a", json!(1)), "/labels/a", "wrong_type"),
        (label("a", json!("x".repeat(257))), "/labels/a", "length"),
        (label("a", json!("\u{0}")), "/labels/a", "control_character"),
        (retry("attempts", json!(0)), "/retry/attempts", "range"),
        (retry("attempts", json!(101)), "/retry/attempts", "range"),
        (retry("attempts", json!(-1)), "/retry/attempts", "wrong_type"),
        (retry("first", json!("PT0S")), "/retry/first", "range"),
        (retry("first", json!("P1Y")), "/retry/first", "bad_duration"),
        (retry("cap", json!("P8D")), "/retry/cap", "range"),
        (retry("cap", json!("an hour")), "/retry/cap", "bad_duration"),
        (retry("colour", json!(1)), "/retry/colour", "unknown_field"),
        (retry("attempts", json!("8")), "/retry/attempts", "wrong_type"),
        (field("retry", json!({"first": "PT2S", "cap": "PT1S"})), "/retry/first", "range"),
        (field("late", json!({})), "/late", "wrong_type"),
        (field("late", json!(["P1D", "expire"])), "/late", "wrong_type"),
        (field("retry", json!([1, null, null])), "/retry", "wrong_type"),
        (field("late", json!({"then": "expire"})), "/late", "wrong_type"),
        // JSON, though the reader of a word takes a `null` for bad syntax.
        (field("late", json!({"grace": "PT1S", "then": null})), "/late/then", "wrong_type"),
        (field("priority", json!("urgent")), "/priority", "wrong_type"),
        (field("priority", json!(1)), "/priority", "wrong_type"),
        (field("late", json!({"grace": "P1Y"})), "/late/grace", "bad_duration"),
        (field("spread", json!("P1DT0.001S")), "/spread", "range"),
        (field("spread", json!("P1M")), "/spread", "bad_duration"),
        (field("spread", json!(5)), "/spread", "wrong_type"),
        (field("late", json!({"grace": "PT1S", "then": "explode"})), "/late/then", "wrong_type"),
    ])
    .await;
}

#[tokio::test]
async fn data_nested_deeper_than_parsers_follow_is_refused() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let put = async |depth: usize| {
        let data = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let body = format!(r#"{{"delay":"PT1H","target":{},"data":{data}}}"#, to(NOWHERE));
        api.send_bytes(Method::PUT, &format!("/v1/timers/d{depth}"), &[], body).await
    };
    assert_eq!(put(100).await.status, 201);
    for depth in [200, 32_000] {
        let answer = put(depth).await;
        problem(&answer, 422, "invalid");
        assert_eq!(errors(&answer), [("/data", "too_deep")]);
    }
}

#[tokio::test]
async fn everything_wrong_is_told_at_once() {
    let node = Node::builder().start_ready().await;
    let timer = json!({"delay": "P1Y", "owner": "", "target": to("http://10.0.0.1/"), "spread": "a while",
        "labels": {"": "x"}, "retry": {"attempts": 0, "first": "x"}, "late": {"grace": "x"}});
    let answer = node.api().send(Method::PUT, "/v1/timers/t", &[], Some(&timer)).await;
    problem(&answer, 422, "invalid");
    let mut pointers: Vec<_> = errors(&answer).into_iter().map(|(pointer, _)| pointer).collect();
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        [
            "/delay",
            "/labels/",
            "/late/grace",
            "/owner",
            "/retry/attempts",
            "/retry/first",
            "/spread",
            "/target/webhook/url"
        ]
    );
}

#[tokio::test]
async fn the_edge_of_each_range_is_accepted() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let document = Document::of(&api).await;
    let field = |name: &str, value: Value| with(later(), name, value);
    for (n, timer) in [
        hook(json!({"url": "http://localhost:9/"})),
        hook(json!({"url": "http://[::1]:9/"})),
        hook(json!({"url": "https://shop.example/?a=b"})),
        hook(json!({"secret": "whsec_c2VjcmV0"})),
        hook(json!({"headers": numbered(16)})),
        at(json!({"fire_at": "9999-12-31T23:59:59.999Z"})),
        at(json!({"fire_at": "1970-01-01T00:00:00Z", "late": {"grace": "PT0S", "then": "expire"}})),
        at(json!({"local": "2030-01-01T00:00", "zone": "Asia/Shanghai"})),
        field("owner", json!("ü".repeat(128))),
        field("labels", numbered(16)),
        field("labels", json!({"a/b.c_d-e": ""})),
        field("retry", json!({"attempts": 100, "first": "PT0.01S", "cap": "P7D"})),
        field("retry", json!({"first": "PT2H"})),
        field("late", json!({"grace": "P1D"})),
        field("priority", json!("normal")),
        field("priority", Value::Null),
        field("spread", json!("P1D")),
        field("spread", json!("PT0S")),
        field("delay", json!("P1W2DT3H4M5,006S")),
        hook(json!({"url": "http://xn--bcher-kva.example:65535/a%20b?c=d;e"})),
        hook(json!({"secret": null})),
        hook(json!({"url": format!("http://shop.example/{}", "x".repeat(2028))})),
        field("data", Value::Null),
        field("data", json!("\u{0}")),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, body) = api.put(&format!("t{n}"), &timer).await;
        assert_eq!(status, 201, "{timer} {body}");
        assert!(document.allows_put(&timer), "{timer}");
    }
    for id in ["x".repeat(128), "A.b_c:9-".to_owned()] {
        assert_eq!(api.put(&id, &later()).await.0, 201, "{id}");
    }
}

#[tokio::test]
async fn an_id_that_cannot_be_is_refused() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let long = "x".repeat(129);
    let answer = api.send(Method::GET, "/v1/timers/%FF", &[], None).await;
    problem(&answer, 400, "malformed");
    for id in [long.as_str(), "a%20b", "a%2Fb", "%C3%A4", "a%00"] {
        let path = format!("/v1/timers/{id}");
        for (method, body) in [
            (Method::PUT, Some(later())),
            (Method::GET, None),
            (Method::PATCH, Some(json!({"delay": "PT1S"}))),
            (Method::DELETE, None),
        ] {
            let answer = api.send(method, &path, &[], body.as_ref()).await;
            problem(&answer, 422, "invalid");
            assert_eq!(errors(&answer), [("?id", "bad_id")]);
        }
    }
    let own = format!("/v1/timers/tmr_{}", "0".repeat(32));
    let answer = api.send(Method::PUT, &own, &[], Some(&later())).await;
    problem(&answer, 422, "invalid");
    assert_eq!(errors(&answer), [("?id", "reserved")], "the service's own form");
    let answer = api.send(Method::POST, "/v1/timers", &[], Some(&with(later(), "id", json!("mine")))).await;
    problem(&answer, 422, "invalid");
    assert_eq!(errors(&answer), [("/id", "not_here")]);
    let answer = api.send(Method::PUT, "/v1/timers/t?again=perhaps", &[], Some(&later())).await;
    problem(&answer, 422, "invalid");
}

#[tokio::test]
async fn a_change_that_cannot_be_is_refused() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let document = Document::of(&api).await;
    assert_eq!(api.put("t", &later()).await.0, 201);
    for (change, pointer, code) in [
        (json!({}), "", "empty"),
        (json!({"colour": 1}), "/colour", "unknown_field"),
        (json!({"owner": "x"}), "/owner", "unknown_field"),
        (json!({"delay": "P1Y"}), "/delay", "bad_time"),
        (json!({"fire_at": "tomorrow"}), "/fire_at", "bad_time"),
        (json!({"fire_at": "2030-01-01T00:00:00Z", "delay": "PT1S"}), "/fire_at", "when"),
        (json!({"local": "2030-01-01T09:00"}), "/zone", "when"),
        (json!({"zone": "UTC"}), "", "when"),
        (json!({"delay": "PT1S", "zone": "UTC"}), "/zone", "when"),
        (json!({"labels": {"": "x"}}), "/labels/", "bad_label"),
        (json!({"labels": []}), "/labels", "wrong_type"),
        (json!({"priority": "urgent"}), "/priority", "wrong_type"),
        (json!({"priority": 0}), "/priority", "wrong_type"),
        (json!({"spread": "PT1S"}), "/spread", "unknown_field"),
        (json!({"delay": null, "labels": null, "priority": null}), "", "empty"),
    ] {
        assert!(!document.allows_patch(&change), "{change}");
        let answer = api.send(Method::PATCH, "/v1/timers/t", &[], Some(&change)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(errors(&answer), [(pointer, code)], "{change}");
    }
    // The last are the fields of a change and of a batch in their order, without the object around them.
    for body in ["[]", "1", "null", "\"x\"", r#"[null,"PT2H",null,null,null]"#, "[[]]"] {
        problem(&api.send_bytes(Method::PATCH, "/v1/timers/t", &[], body).await, 422, "invalid");
        problem(&api.send_bytes(Method::PUT, "/v1/timers/u", &[], body).await, 422, "invalid");
        problem(&api.send_bytes(Method::POST, "/v1/timers/batch", &[], body).await, 422, "invalid");
    }
    assert_eq!(api.timer("t").await.1["version"], 1);
}

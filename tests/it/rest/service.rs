//! What operators and programs read: health, ledger, nodes, metrics, the OpenAPI document, the page.

use std::collections::{BTreeSet, HashSet};

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, later, now, quick, with};
use crate::support::{Ledger, Node, NodeBuilder, Receiver, eventually, in_state, on_both, to};

async fn the_ledger_accounts_for_every_timer(builder: NodeBuilder) {
    let node = builder.name("counting").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let zero = Ledger { registered: 0, delivered: 0, cancelled: 0, expired: 0, dead: 0, pending: 0 };
    assert_eq!(api.ledger().await, zero);
    let expired = json!({"fire_at": "2020-01-01T00:00:00Z", "late": {"grace": "PT1S", "then": "expire"},
        "target": to(receiver.url("/ok"))});
    for n in 0..3 {
        assert_eq!(api.put(&format!("delivered-{n}"), &now(receiver.url("/ok"))).await.0, 201);
        assert_eq!(api.put(&format!("pending-{n}"), &later()).await.0, 201);
    }
    let dead = with(now(receiver.url("/status/500")), "retry", quick(2));
    for (id, timer) in [("cancelled", later()), ("expired", expired), ("dead", dead)] {
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    assert_eq!(api.delete("cancelled").await.0, 200);
    let wanted = Ledger { registered: 9, delivered: 3, cancelled: 1, expired: 1, dead: 1, pending: 3 };
    eventually("all has ended", LONG, async || {
        let ledger = api.ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        if ledger == wanted { Ok(()) } else { Err(ledger) }
    })
    .await;

    let (status, nodes) = api.get("/v1/nodes").await;
    let items = nodes["items"].as_array().expect("items");
    assert_eq!((status, items.len()), (200, 1), "{nodes}");
    assert_eq!((&items[0]["name"], &items[0]["me"]), (&json!("counting"), &json!(true)));
    assert_eq!(items[0]["address"], node.base().replace("http://", ""));
    assert_eq!(items[0]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(items[0]["shards"], json!((0..64).collect::<Vec<_>>()));
    for name in ["started_at", "beat_at"] {
        let text = items[0][name].as_str().expect("a time");
        assert!(text.ends_with('Z') && chrono::DateTime::parse_from_rfc3339(text).is_ok(), "{text}");
    }
}

#[tokio::test]
async fn health_says_what_is_well() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    assert_eq!(api.get("/livez").await, (200, json!({"status": "ok"})));
    assert_eq!(api.get("/startupz").await, (200, json!({"status": "ok"})));
    let (status, ready) = api.get("/readyz").await;
    assert_eq!((status, &ready["status"]), (200, &json!("ok")));
    assert!(ready["checks"].as_object().is_some_and(|checks| !checks.is_empty()), "{ready}");
}

/// The value of a series, as Prometheus reads it.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn metrics_hold_every_series_and_count_what_happened() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    assert_eq!(api.put("t", &with(now(receiver.url("/flaky/1")), "retry", quick(2))).await.0, 201);
    assert_eq!(api.put("u", &later()).await.0, 201);
    assert_eq!(api.delete("u").await.0, 200);
    in_state(&api, "t", "delivered").await;
    let answer = eventually("it is counted", LONG, async || {
        let answer = api.send(Method::GET, "/metrics", &[], None).await;
        let text = answer.body.as_str().expect("text");
        let delivered = value(text, r#"mainspring_ended_total{state="delivered"}"#);
        if delivered == Some(1.0) { Ok(answer) } else { Err(delivered) }
    })
    .await;
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")));
    let text = answer.body.as_str().expect("text");
    let source = include_str!("../../../src/metrics.rs");
    let named: BTreeSet<_> = source
        .split('"')
        .filter(|part| {
            part.starts_with("mainspring_") && part.bytes().all(|b| b == b'_' || b.is_ascii_lowercase())
        })
        .collect();
    assert!(named.len() >= 50, "{named:?}");
    // Those of destinations come and go with what is the matter with one, those of queues with what is in them.
    let comes_and_goes = |name: &&str| {
        name.starts_with("mainspring_destination_")
            || ["ready_timers", "leased_timers", "oldest_ready_seconds"]
                .iter()
                .any(|one| *name == format!("mainspring_queue_{one}"))
    };
    for name in named.into_iter().filter(|name| !comes_and_goes(name)) {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} is missing");
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} has no type");
    }
    assert!(text.contains("process_resident_memory_bytes"));
    for (series, expected) in [
        ("mainspring_registered_total", 2.0),
        (r#"mainspring_ended_total{state="cancelled"}"#, 1.0),
        (r#"mainspring_ended_total{state="dead"}"#, 0.0),
        (r#"mainspring_attempts_total{result="ok",sink="webhook"}"#, 1.0),
        (r#"mainspring_attempts_total{result="failed",sink="webhook"}"#, 1.0),
        ("mainspring_lateness_seconds_count", 1.0),
        ("mainspring_attempt_seconds_count", 2.0),
        ("mainspring_attempts_in_flight", 0.0),
        ("mainspring_shards_owned", 64.0),
        ("mainspring_store_up", 1.0),
        (r#"mainspring_http_requests_total{method="PUT",route="/v1/timers/{id}",status="201"}"#, 2.0),
        // Failures are in a rate from the first on.
        (r#"mainspring_http_requests_total{method="PUT",route="/v1/timers/{id}",status="503"}"#, 0.0),
        (r#"mainspring_http_requests_total{method="POST",route="/v1/timers",status="500"}"#, 0.0),
    ] {
        assert_eq!(value(text, series), Some(expected), "{series}");
    }
}

/// Every `$ref` in a document.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == "$ref" => found.push(text.clone()),
            other => references(other, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_openapi_document_is_sound_and_tells_what_is_there() {
    let node = Node::builder().start_ready().await;
    let (status, document) = node.api().get("/openapi.json").await;
    assert_eq!(status, 200);
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")));
    assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a reference into the document itself");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    let mut operations = HashSet::new();
    let mut calls = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            calls.insert(format!("{} {path}", method.to_uppercase()));
            let id = operation["operationId"].as_str().expect("an operation id");
            assert!(operations.insert(id.to_owned()), "{id} twice");
            let named: BTreeSet<_> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_path: BTreeSet<_> = parameters
                .iter()
                .filter(|one| one["in"] == "path")
                .map(|one| one["name"].as_str().expect("a name"))
                .collect();
            assert_eq!(named, in_path, "{method} {path}");
            assert!(parameters.iter().all(|one| one["in"] != "path" || one["required"] == true));
            let responses = operation["responses"].as_object().expect("responses");
            assert!(responses.keys().any(|status| status.starts_with('2')));
            for (status, response) in responses {
                assert!(response["description"].is_string(), "{method} {path} {status} needs a description");
                let kinds: Vec<_> =
                    response["content"].as_object().into_iter().flat_map(|kinds| kinds.keys()).collect();
                let error = status.starts_with(['4', '5']) && path.starts_with("/v1/");
                assert!(
                    !error || kinds == ["application/problem+json"],
                    "{method} {path} {status}: {kinds:?}"
                );
            }
        }
    }
    for call in [
        "GET /v1/timers/{id}/explain",
        "GET /v1/wheels",
        "PUT /v1/timers/{id}",
        "GET /v1/timers/{id}",
        "PATCH /v1/timers/{id}",
        "DELETE /v1/timers/{id}",
        "POST /v1/timers",
        "GET /v1/timers",
        "POST /v1/timers/batch",
        "POST /v1/timers/stream",
        "POST /v1/timers/{id}/fire",
        "GET /v1/timers/{id}/attempts",
        "GET /v1/ledger",
        "GET /v1/nodes",
        "GET /livez",
        "GET /readyz",
        "GET /startupz",
        "GET /metrics",
    ] {
        assert!(calls.contains(call), "{call} is not in {calls:?}");
    }
}

/// Every call but the health checks may take a key, and may be refused without one.
#[tokio::test]
async fn the_openapi_document_knows_keys_and_errors() {
    let node = Node::builder().start_ready().await;
    let (_, document) = node.api().get("/openapi.json").await;
    let scheme = &document["components"]["securitySchemes"]["key"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    assert_eq!(document["security"], json!([{}, {"key": []}]));
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let v1 = path.starts_with("/v1/");
            assert_eq!(operation["security"] == json!([]), !v1, "{method} {path}");
            assert_eq!(operation["responses"]["401"].is_object(), v1, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_openapi_document_promises_nothing_unsupported() {
    let node = Node::builder().start_ready().await;
    let (_, document) = node.api().get("/openapi.json").await;
    let schemas = &document["components"]["schemas"];
    let timer = &schemas["Timer"];
    assert_eq!(timer["additionalProperties"], false, "unknown fields are refused");
    assert_eq!(timer["required"], json!(["target"]), "all else may be left out");
    for (schema, field) in [("Timer", "data"), ("Patch", "data"), ("TimerView", "data")] {
        let data = &schemas[schema]["properties"][field];
        assert!(data.is_object() && data["type"].is_null(), "{schema}.{field} is any JSON: {data}");
    }
    let attempts = &document["paths"]["/v1/timers/{id}/attempts"]["get"]["responses"]["200"];
    let schema = &attempts["content"]["application/json"]["schema"]["$ref"];
    let schema =
        document.pointer(schema.as_str().expect("a reference").trim_start_matches('#')).expect("there");
    assert!(schema["properties"]["items"].is_object(), "as it is answered: {schema}");
}

#[tokio::test]
async fn the_page_needs_nothing_from_outside() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    for (path, base) in [("/docs", true), ("/docs/", false)] {
        let page = api.send(Method::GET, path, &[], None).await;
        assert_eq!(page.status, 200, "{path} answers itself");
        assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
        let html = page.body.as_str().expect("text");
        assert!(html.contains("<html"));
        // The files are named relative to `/docs/`.
        assert_eq!(html.contains("<head><base href=\"docs/\">"), base, "{path}: {html}");
    }
    assert_eq!(api.get("/docs/none.js").await.0, 404);
    let page = api.send(Method::GET, "/docs/", &[], None).await;
    let html = page.body.as_str().expect("text");
    let mut assets = 0;
    for part in html.split(['"', '\'']) {
        assert!(!part.contains("://") && !part.starts_with("//"), "the page asks for {part}");
        if part.ends_with(".js") || part.ends_with(".css") || part.ends_with(".png") {
            let asset =
                api.send(Method::GET, &format!("/docs/{}", part.trim_start_matches("./")), &[], None).await;
            assert_eq!(asset.status, 200, "{part}");
            assets += 1;
        }
    }
    assert!(assets >= 3, "{assets} assets");
    let start = api.send(Method::GET, "/docs/swagger-initializer.js", &[], None).await;
    let start = start.body.as_str().expect("text");
    assert!(start.contains("/openapi.json"), "{start}");
    // Left to itself the page sends the document's address to a validator on the net.
    assert!(start.contains(r#""validatorUrl": "none""#), "{start}");
}

on_both!(the_ledger_accounts_for_every_timer);

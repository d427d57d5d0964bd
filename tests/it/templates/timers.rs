//! Timers by a template: what is kept and sent, what is refused, and which template holds.

use reqwest::Method;
use serde_json::{Value, json};

use super::{by, call, errors, orders, put, wrong};
use crate::support::{NodeBuilder, Receiver, Reply, eventually, in_state, on_both, problem, to};

/// What is kept of an order that says no more than its number.
fn kept(order: i64) -> Value {
    json!({"kind": "review", "shop": {"id": 7, "open": true}, "order": order})
}

async fn what_is_sent_is_the_defaults_with_the_data_merged_over_them(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    put(&api, "order", &orders()).await;
    let mut timer = by("order", json!({"order": 1, "shop": {"open": null, "name": "x"}}));
    timer["delay"] = json!("PT0S");
    timer["target"] = to(receiver.url("/ok"));
    let (status, shown) = api.put("t", &timer).await;
    let merged = json!({"kind": "review", "shop": {"id": 7, "name": "x"}, "order": 1});
    assert_eq!((status, &shown["template"], &shown["data"]), (201, &json!("order"), &merged));
    in_state(&api, "t", "delivered").await;
    assert_eq!(receiver.of("t")[0].json(), merged);
    assert_eq!(api.timer("t").await.1["template"], "order");
    let (_, told) = api.get("/v1/timers/t/explain").await;
    let registered = told["events"][0]["detail"].as_str().expect("a text");
    assert!(registered.contains("by template `order`"), "{registered}");
    // Digits stay as they are written, of the data and of the defaults.
    put(&api, "exact", &json!({"schema": true, "defaults": {"a": 1}})).await;
    let body = r#"{"delay":"PT1H","target":{"webhook":{"url":"http://127.0.0.1:9/"}},"template":"exact","data":{"n":12345678901234567890123.10}}"#;
    assert_eq!(api.send_bytes(Method::PUT, "/v1/timers/exact", &[], body).await.status, 201);
    let text = api.client.get(format!("{}/v1/timers/exact", api.base)).send().await.expect("an answer");
    assert!(text.text().await.expect("a text").contains(r#""data":{"a":1,"n":12345678901234567890123.10}"#));
    // Without data the defaults are sent; without a template nothing has changed.
    put(&api, "whole", &json!({"schema": {"required": ["a"]}, "defaults": {"a": 1}})).await;
    let mut timer = by("whole", json!(null));
    assert_eq!(api.put("null", &timer).await.1["data"], json!({"a": 1}));
    timer.as_object_mut().expect("an object").remove("data");
    assert_eq!(api.put("absent", &timer).await.1["data"], json!({"a": 1}));
    timer.as_object_mut().expect("an object").remove("template");
    let (_, plain) = api.put("plain", &timer).await;
    assert_eq!((&plain["data"], &plain["template"]), (&json!(null), &json!(null)));
}

async fn data_that_does_not_fit_is_refused_by_every_call(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    put(&api, "order", &orders()).await;
    let bad = by("order", json!({"order": "s3cret", "kind": "sing", "items": ["a", 7]}));
    let expected = wrong(&[("/data/items/1", "type"), ("/data/kind", "enum"), ("/data/order", "type")]);
    let (status, body) = api.put("bad", &bad).await;
    assert_eq!((status, errors(&body)), (422, expected.clone()));
    assert!(!body.to_string().contains("s3cret"), "no value of the payload: {body}");
    let (status, body) = api.post("/v1/timers", &bad).await;
    assert_eq!((status, errors(&body)), (422, expected.clone()));
    // Of a batch and of a stream only those fail, in their places.
    let with_id = |id: &str, mut timer: Value| {
        timer["id"] = json!(id);
        timer
    };
    let items = [
        with_id("b1", by("order", json!({"order": 1}))),
        with_id("b2", bad.clone()),
        with_id("b3", by("none", json!(1))),
        with_id("b4", json!({"delay": "PT1H", "target": to("http://127.0.0.1:9/")})),
        with_id("b5", by("order", json!({}))),
        // Of one id the first that fits is registered.
        with_id("twice", bad.clone()),
        with_id("twice", by("order", json!({"order": 2}))),
    ];
    let (_, batch) = api.post("/v1/timers/batch", &json!({"timers": items})).await;
    let lines: String = items
        .iter()
        .map(|item| format!("{}\n", item.to_string().replace("\"b", "\"s").replace("twice", "again")))
        .collect();
    let headers = [("content-type", "application/x-ndjson")];
    let stream = api
        .client
        .post(format!("{}/v1/timers/stream", api.base))
        .header(headers[0].0, headers[0].1)
        .body(lines);
    let stream = stream.send().await.expect("an answer").text().await.expect("lines");
    let stream: Vec<Value> = stream.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for results in [batch["results"].as_array().expect("results"), &stream] {
        let statuses: Vec<&Value> = results.iter().map(|one| &one["status"]).collect();
        assert_eq!(statuses, [201, 422, 422, 201, 422, 422, 201], "{results:?}");
        assert_eq!(errors(&results[1]["error"]), expected);
        assert_eq!(errors(&results[2]["error"]), wrong(&[("/template", "unknown_template")]));
        assert_eq!(errors(&results[4]["error"]), wrong(&[("/data/order", "required")]));
    }
    assert_eq!(api.timer("b1").await.1["data"], kept(1));
    assert_eq!(api.timer("s1").await.1["data"], kept(1));
    assert_eq!(api.ledger().await.registered, 6, "nothing else was registered");
    // There is none of this name; or nothing can have it.
    for name in ["none", "no such name", ""] {
        let (status, body) = api.put("bad", &by(name, json!(1))).await;
        assert_eq!((status, errors(&body)), (422, wrong(&[("/template", "unknown_template")])), "{name}");
    }
    let (status, body) = api.put("bad", &by("order", json!({"order": 1, "note": "x".repeat(65_500)}))).await;
    assert_eq!(
        (status, errors(&body)),
        (413, wrong(&[("/data", "too_large")])),
        "with the defaults it is too large"
    );
    let answer = api
        .send_bytes(
            Method::PUT,
            "/v1/timers/bad",
            &[],
            by("order", json!("HERE")).to_string().replace("\"HERE\"", "1e400"),
        )
        .await;
    assert_eq!((answer.status, errors(&answer.body)), (422, wrong(&[("/data", "not_readable")])));
}

async fn a_large_batch_is_fitted_piece_by_piece(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    put(&api, "order", &orders()).await;
    let item = |n: i64| {
        let order = if n % 100 == 0 { json!("x") } else { json!(n) };
        by("order", json!({"order": order, "items": vec!["some text"; 200]}))
    };
    let (status, body) =
        api.post("/v1/timers/batch", &json!({"timers": (0..1500).map(item).collect::<Vec<_>>()})).await;
    assert_eq!(status, 200, "{body}");
    let results = body["results"].as_array().expect("results");
    for (n, one) in results.iter().enumerate() {
        assert_eq!(one["status"], if n % 100 == 0 { 422 } else { 201 }, "{n}: {one}");
    }
    assert_eq!(results.len(), 1500);
}

async fn a_change_holds_for_what_comes_after_it(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    put(&api, "order", &orders()).await;
    let timer = by("order", json!({"order": 1}));
    assert_eq!(api.put("before", &timer).await.0, 201);
    let mut ends = timer.clone();
    ends["delay"] = json!("PT0S");
    ends["target"] = to(receiver.url("/ok"));
    assert_eq!(api.put("ended", &ends).await.0, 201);
    let key = [("idempotency-key", "k")];
    let posted = api.send(Method::POST, "/v1/timers", &key, Some(&timer)).await;
    assert_eq!(posted.status, 201);
    in_state(&api, "ended", "delivered").await;
    put(&api, "order", &json!({"schema": {"required": ["number"]}, "defaults": {"v": 2}})).await;
    // What is registered already stays as it is, and the same request is the same timer, by each call.
    assert_eq!(api.timer("before").await.1["data"], kept(1));
    let (status, same) = api.put("before", &timer).await;
    assert_eq!((status, &same["data"], &same["version"]), (200, &kept(1), &json!(1)));
    assert_eq!(api.put("ended", &ends).await.0, 200);
    assert_eq!(api.send(Method::POST, "/v1/timers", &key, Some(&timer)).await.status, 200);
    let mut named = timer.clone();
    named["id"] = json!("before");
    let (_, batch) = api.post("/v1/timers/batch", &json!({"timers": [named.clone(), named]})).await;
    assert_eq!(
        (&batch["results"][0]["status"], &batch["results"][1]["status"]),
        (&json!(200), &json!(200)),
        "{batch}"
    );
    // Other content is not, and a new one is held against what the template says now.
    let missing = wrong(&[("/data/number", "required")]);
    let (status, body) = api.put("after", &timer).await;
    assert_eq!((status, errors(&body)), (422, missing.clone()));
    let (status, body) = api.put("before", &by("order", json!({"order": 2}))).await;
    assert_eq!((status, errors(&body)), (422, missing.clone()));
    assert_eq!(api.put("before", &by("order", json!({"number": 2}))).await.1["code"], "id_taken");
    let again = api.send(Method::PUT, "/v1/timers/ended?again=true", &[], Some(&ends)).await;
    assert_eq!((again.status, errors(&again.body)), (422, missing), "a new generation is new");
    assert_eq!(
        api.put("after", &by("order", json!({"number": 3}))).await.1["data"],
        json!({"v": 2, "number": 3})
    );
    // Nor does its removal make an old request another one.
    for id in ["before", "after", posted.body["id"].as_str().expect("an id")] {
        assert_eq!(api.delete(id).await.0, 200);
    }
    assert_eq!(call(&api, Method::DELETE, "order", None).await.status, 200);
    assert_eq!(api.put("ended", &ends).await.0, 200);
    let (status, body) = api.put("new", &timer).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/template", "unknown_template")])));
}

async fn new_data_is_fitted_to_the_template_as_it_is_now(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    put(&api, "order", &orders()).await;
    assert_eq!(api.put("t", &by("order", json!({"order": 1}))).await.0, 201);
    let (status, changed) = api.patch("t", &json!({"data": {"order": 2, "kind": "cancel"}})).await;
    let mut merged = kept(2);
    merged["kind"] = json!("cancel");
    assert_eq!((status, &changed["data"], &changed["generation"]), (200, &merged, &json!(2)));
    // The same again changes nothing.
    let (status, same) = api.patch("t", &json!({"data": {"order": 2, "kind": "cancel"}})).await;
    assert_eq!((status, &same["version"]), (200, &changed["version"]));
    let (status, body) = api.patch("t", &json!({"data": {"order": "x"}, "labels": {"a": "b"}})).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/data/order", "type")])));
    let (status, body) = api.patch("t", &json!({"data": null})).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/data/order", "required")])), "null is no data");
    let (_, kept_so_far) = api.timer("t").await;
    assert_eq!((&kept_so_far["data"], &kept_so_far["labels"]), (&merged, &json!({})), "nothing was changed");
    // What is not data is not checked, whatever the template says by now.
    put(&api, "order", &json!({"schema": {"required": ["number"]}, "defaults": {"v": 2}})).await;
    assert_eq!(api.patch("t", &json!({"delay": "PT2H", "labels": {"a": "b"}})).await.0, 200);
    let (status, body) = api.patch("t", &json!({"data": {"order": 2}})).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/data/number", "required")])));
    let (status, changed) = api.patch("t", &json!({"data": {"number": 5}})).await;
    assert_eq!((status, &changed["data"]), (200, &json!({"v": 2, "number": 5})));
    put(&api, "order", &json!({"schema": {"type": "null"}})).await;
    assert_eq!(api.patch("t", &json!({"data": null})).await.1["data"], json!(null));
    // The conflicts of any change.
    let old =
        api.send(Method::PATCH, "/v1/timers/t", &[("if-match", "\"1\"")], Some(&json!({"data": null}))).await;
    problem(&old, 412, "version_changed");
    assert_eq!(api.delete("t").await.0, 200);
    assert_eq!(api.patch("t", &json!({"data": null})).await.1["code"], "already_cancelled");
    // Of a timer without one, nothing is asked.
    assert_eq!(api.put("plain", &json!({"delay": "PT1H", "target": to("http://127.0.0.1:9/")})).await.0, 201);
    assert_eq!(api.patch("plain", &json!({"data": {"any": 1}})).await.1["data"], json!({"any": 1}));
}

async fn a_dead_one_is_redriven_as_it_is(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    put(&api, "order", &orders()).await;
    receiver.on("/x", |_| Reply::status(410));
    let mut timer = by("order", json!({"order": 1}));
    timer["delay"] = json!("PT0S");
    timer["target"] = to(receiver.url("/x"));
    timer["labels"] = json!({"app": "shop"});
    assert_eq!(api.put("t", &timer).await.0, 201);
    in_state(&api, "t", "dead").await;
    // What its template says by now, and whether there is one, is not asked: its data does not change.
    assert_eq!(call(&api, Method::DELETE, "order", None).await.status, 200);
    receiver.on("/x", |_| Reply::ok());
    let body = json!({"action": "redrive", "filter": {"label.app": "shop"}, "dry_run": false});
    assert_eq!(api.post("/v1/operations", &body).await.0, 202);
    let again = in_state(&api, "t", "delivered").await;
    assert_eq!(
        (&again["generation"], &again["template"], &again["data"]),
        (&json!(2), &json!("order"), &kept(1))
    );
    eventually("it has arrived", std::time::Duration::from_secs(5), async || {
        let sent = receiver.of("t");
        if sent.last().is_some_and(|last| last.json() == kept(1)) { Ok(()) } else { Err(sent.len()) }
    })
    .await;
}

on_both!(
    what_is_sent_is_the_defaults_with_the_data_merged_over_them,
    data_that_does_not_fit_is_refused_by_every_call,
    a_large_batch_is_fitted_piece_by_piece,
    a_change_holds_for_what_comes_after_it,
    new_data_is_fitted_to_the_template_as_it_is_now,
    a_dead_one_is_redriven_as_it_is,
);

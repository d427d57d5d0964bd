//! The calls on templates: made, shown, changed, listed, removed; and what is refused.

use reqwest::Method;
use serde_json::{Value, json};

use super::{by, call, errors, orders, put, wrong};
use crate::support::{NodeBuilder, in_state, on_both, problem};

async fn one_is_made_shown_changed_and_removed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let new = call(&api, Method::PUT, "order", Some(&orders())).await;
    assert_eq!((new.status, new.header("etag")), (201, Some("\"1\"")), "{:?}", new.body);
    assert_eq!(new.body["schema"], orders()["schema"]);
    assert_eq!(new.body["defaults"], orders()["defaults"]);
    let shown = call(&api, Method::GET, "order", None).await;
    assert_eq!((shown.status, &shown.body), (200, &new.body));
    // The same again, written otherwise, changes nothing.
    let text = format!(r#" {{"defaults" : {}, "schema":{}}}"#, orders()["defaults"], orders()["schema"]);
    let same = api.send_bytes(Method::PUT, "/v1/templates/order", &[], text).await;
    assert_eq!((same.status, &same.body), (200, &new.body));
    let changed = call(&api, Method::PUT, "order", Some(&json!({"schema": true}))).await;
    assert_eq!((changed.status, changed.header("etag")), (200, Some("\"2\"")), "{:?}", changed.body);
    assert_eq!((&changed.body["schema"], &changed.body["defaults"]), (&json!(true), &json!(null)));
    assert_eq!(changed.body["created_at"], new.body["created_at"]);
    // Digits stay as they are written.
    let exact = r#"{"schema":{"maximum":12345678901234567890123.10},"defaults":null}"#;
    assert_eq!(api.send_bytes(Method::PUT, "/v1/templates/a", &[], exact).await.status, 201);
    let text = api.client.get(format!("{}/v1/templates/a", api.base)).send().await.expect("an answer");
    assert!(text.text().await.expect("a text").contains("12345678901234567890123.10"));
    let (_, list) = api.get("/v1/templates").await;
    let names: Vec<&Value> =
        list["items"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["a", "order"]);
    assert_eq!(list["items"][1], changed.body);
    let gone = call(&api, Method::DELETE, "order", None).await;
    assert_eq!((gone.status, &gone.body), (200, &json!({"outcome": "removed"})));
    for method in [Method::GET, Method::DELETE] {
        problem(&call(&api, method, "order", None).await, 404, "not_found");
    }
}

async fn what_is_wrong_with_one_is_told_at_its_pointer(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    for name in ["a%20b", ".hidden", "a:b", &"x".repeat(65), "%C3%BC"] {
        let answer = call(&api, Method::PUT, name, Some(&orders())).await;
        problem(&answer, 422, "invalid");
        assert_eq!(errors(&answer.body), wrong(&[("?name", "bad_name")]), "{name}");
    }
    let remote = json!({"$defs": {"a": {"items": {"$ref": "http://169.254.169.254/latest"}}}});
    let endless = json!({"anyOf": [{"$ref": "#"}]});
    let too_deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    for (body, expected) in [
        (json!({}), ("/schema", "missing")),
        (json!({"schema": 7}), ("/schema", "wrong_type")),
        (json!({"schema": {"type": "thing"}}), ("/schema/type", "bad_schema")),
        (json!({"schema": {"required": "a"}}), ("/schema/required", "bad_schema")),
        (json!({"schema": remote}), ("/schema/$defs/a/items/$ref", "remote_reference")),
        (
            json!({"schema": {"$schema": "http://json-schema.org/draft-04/schema#"}}),
            ("/schema/$schema", "not_supported"),
        ),
        (json!({"schema": endless}), ("/schema", "endless")),
        (json!({"schema": too_deep}), ("/schema", "too_deep")),
        // Neither one that a matcher would go through in endless ways, nor one that it could not keep.
        (json!({"schema": {"pattern": "^(a+)+\\1$"}}), ("/schema/pattern", "bad_pattern")),
        (json!({"schema": {"pattern": "((a{200}){200}){200}"}}), ("/schema/pattern", "bad_pattern")),
        (json!({"schema": true, "defaults": [1]}), ("/defaults", "wrong_type")),
        (json!({"schema": true, "colour": 1}), ("/colour", "unknown_field")),
    ] {
        let answer = call(&api, Method::PUT, "bad", Some(&body)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(errors(&answer.body), wrong(&[expected]), "{body}");
        assert!(answer.body["errors"][0]["detail"].as_str().is_some_and(|why| !why.is_empty()));
    }
    for body in [
        json!({"schema": {"title": "x".repeat(64 * 1024)}}),
        json!({"schema": true, "defaults": {"a": "x".repeat(64 * 1024)}}),
        json!({"schema": {"title": "x".repeat(200 * 1024)}}),
    ] {
        problem(&call(&api, Method::PUT, "bad", Some(&body)).await, 413, "too_large");
    }
    for body in [
        r#"{"schema":{"const":1e400}}"#,
        r#"{"schema":{"\ud800":1}}"#,
        r#"{"schema":true,"defaults":{"\ud800":1}}"#,
    ] {
        let answer = api.send_bytes(Method::PUT, "/v1/templates/bad", &[], body).await;
        assert_eq!(
            (answer.status, &answer.body["errors"][0]["code"]),
            (422, &json!("not_readable")),
            "{body}"
        );
    }
    problem(&call(&api, Method::GET, "bad", None).await, 404, "not_found");
    // A pattern that costs others time beyond all bounds costs the matcher here a walk over the text.
    put(&api, "linear", &json!({"schema": {"pattern": "^(a+)+$"}})).await;
    let data = json!(format!("{}!", "a".repeat(60_000)));
    let (status, body) = api.put("t", &by("linear", data)).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/data", "pattern")])));
}

async fn one_in_use_is_not_removed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    put(&api, "order", &orders()).await;
    for id in ["a", "b", "c"] {
        assert_eq!(api.put(id, &by("order", json!({"order": 1}))).await.0, 201);
    }
    let in_use = async || {
        let answer = call(&api, Method::DELETE, "order", None).await;
        problem(&answer, 409, "in_use");
        answer.body["detail"].as_str().expect("a text").to_owned()
    };
    assert!(in_use().await.starts_with("3 live timers use `order`"));
    assert_eq!(api.post("/v1/timers/a/pause", &Value::Null).await.0, 200);
    assert_eq!(api.delete("b").await.0, 200);
    assert_eq!(api.delete("c").await.0, 200);
    assert!(in_use().await.starts_with("1 live timer uses `order`"), "a paused one is live");
    assert_eq!(api.delete("a").await.0, 200);
    assert_eq!(call(&api, Method::DELETE, "order", None).await.status, 200);
    // What has ended keeps its name.
    assert_eq!(in_state(&api, "a", "cancelled").await["template"], "order");
}

on_both!(
    one_is_made_shown_changed_and_removed,
    what_is_wrong_with_one_is_told_at_its_pointer,
    one_in_use_is_not_removed,
);

//! Requests for operations that are not valid.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Node, problem};

fn first(answer: &crate::support::Answer) -> (String, String) {
    let error = &answer.body["errors"][0];
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (text("pointer"), text("code"))
}

#[tokio::test]
async fn what_is_not_valid_is_refused_by_field() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let some = json!({"destination": "a"});
    for (body, pointer, code) in [
        (json!({"action": "redrive", "filter": {}}), "/filter", "empty"),
        (json!({"action": "redrive"}), "", "wrong_type"),
        (json!({"filter": some}), "", "wrong_type"),
        (json!({"action": "redrive", "filter": []}), "/filter", "wrong_type"),
        (json!({"action": "explode", "filter": some}), "/action", "unknown_action"),
        (json!({"action": "cancel", "filter": {}}), "/filter", "empty"),
        (json!({"action": "cancel", "filter": {"state": "dead"}}), "/filter/state", "range"),
        (json!({"action": "pause", "filter": {"state": "paused"}}), "/filter/state", "range"),
        (json!({"action": "resume", "filter": {"state": "scheduled"}}), "/filter/state", "range"),
        (json!({"action": "cancel", "filter": some, "by": "PT1H"}), "/by", "not_here"),
        (json!({"action": "shift", "filter": some}), "/by", "missing"),
        (json!({"action": "shift", "filter": some, "by": "soon"}), "/by", "bad_duration"),
        (json!({"action": "shift", "filter": some, "by": "P1M"}), "/by", "bad_duration"),
        (json!({"action": "shift", "filter": some, "by": "-PT0S"}), "/by", "bad_duration"),
        (json!({"action": "shift", "filter": some, "by": "--PT1S"}), "/by", "bad_duration"),
        (json!({"action": "shift", "filter": some, "by": 3600}), "/by", "wrong_type"),
        (json!({"action": "purge", "filter": {}}), "/filter", "empty"),
        (json!({"action": "purge", "filter": {"state": "scheduled"}}), "/filter/state", "range"),
        (json!({"action": "redrive", "filter": some, "by": "PT1H"}), "/by", "not_here"),
        (json!({"action": "redrive", "filter": some, "dry_run": 1}), "/dry_run", "wrong_type"),
        (json!({"action": "redrive", "filter": some, "colour": 1}), "/colour", "unknown_field"),
        (json!({"action": "redrive", "filter": {"colour": "red"}}), "/filter/colour", "unknown_field"),
        (json!({"action": "redrive", "filter": {"limit": "5"}}), "/filter/limit", "unknown_field"),
        (json!({"action": "redrive", "filter": {"state": "scheduled"}}), "/filter/state", "range"),
        (json!({"action": "redrive", "filter": {"state": "asleep"}}), "/filter/state", "unknown_state"),
        (json!({"action": "redrive", "filter": {"owner": 7}}), "/filter/owner", "wrong_type"),
        (json!({"action": "redrive", "filter": {"owner": ["a"]}}), "/filter/owner", "wrong_type"),
        (json!({"action": "redrive", "filter": {"id": []}}), "/filter/id", "wrong_type"),
        (json!({"action": "redrive", "filter": {"id": ["a b"]}}), "/filter/id", "bad_id"),
        (json!({"action": "redrive", "filter": {"due_after": "soon"}}), "/filter/due_after", "bad_time"),
        (json!({"action": "redrive", "filter": {"queue": ".q"}}), "/filter/queue", "bad_name"),
        (json!({"action": "redrive", "filter": {"to": "team"}}), "/filter/to", "bad_to"),
        (json!({"action": "redrive", "filter": {"label.a\\": "x"}}), "/filter/label.a\\", "bad_label"),
        (json!({"action": "redrive", "filter": {"label.": "x"}}), "/filter/label.", "bad_label"),
    ] {
        let answer = api.send(Method::POST, "/v1/operations", &[], Some(&body)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(first(&answer), (pointer.to_owned(), code.to_owned()), "{body}: {}", answer.body);
    }
    // The first of two owners would be lost.
    let twice = r#"{"action": "cancel", "filter": {"owner": "a", "state": "paused", "owner": "b"}}"#;
    let answer = api.send_bytes(Method::POST, "/v1/operations", &[], twice).await;
    problem(&answer, 422, "invalid");
    assert_eq!(first(&answer), ("/filter/owner".to_owned(), "repeated".to_owned()), "{}", answer.body);
    let hook = json!({"webhook": {"url": "http://127.0.0.1:9/"}});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/a", &[], Some(&hook)).await.status, 201);
    for (body, pointer, code) in [
        (json!({}), "", "wrong_type"),
        (json!({"since": "yesterday"}), "/since", "bad_time"),
        (json!({"since": "2026-01-01T00:00:00Z", "until": "x"}), "/until", "bad_time"),
        (json!({"since": "2026-01-02T00:00:00Z", "until": "2026-01-02T00:00:00Z"}), "/until", "range"),
        (json!({"since": "2026-01-01T00:00:00Z", "dry_run": true}), "/dry_run", "unknown_field"),
    ] {
        let answer = api.send(Method::POST, "/v1/destinations/a/redrive", &[], Some(&body)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(first(&answer), (pointer.to_owned(), code.to_owned()), "{body}: {}", answer.body);
    }
    assert_eq!(api.get("/v1/operations").await, (200, json!({"items": []})), "nothing has begun");
    for (id, status, code) in [("7", 422, "invalid"), (&format!("op_{}", "0".repeat(32)), 404, "not_found")] {
        for (method, rest) in [(Method::GET, ""), (Method::POST, "/stop")] {
            let path = format!("/v1/operations/{id}{rest}");
            problem(&api.send(method, &path, &[], None::<&Value>).await, status, code);
        }
    }
}

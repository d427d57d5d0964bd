//! `GET /v1/timers`: every filter, pages that neither miss nor repeat, refusals.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{NOWHERE, later, now, quick, with};
use crate::support::{Api, Node, NodeBuilder, Receiver, in_state, on_both, problem, to};

/// The ids of one page, in its order, and where the next one starts.
async fn page(api: &Api, query: &str) -> (Vec<String>, Option<String>) {
    let (status, body) = api.get(&format!("/v1/timers?{query}")).await;
    assert_eq!(status, 200, "{query}: {body}");
    let items = body["items"].as_array().expect("items");
    let ids = items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect();
    (ids, body["next"].as_str().map(str::to_owned))
}

/// All ids that a filter finds, over as many pages as it takes.
async fn all(api: &Api, query: &str) -> Vec<String> {
    let (mut ids, mut next) = page(api, query).await;
    while let Some(cursor) = next {
        let more;
        (more, next) = page(api, &format!("{query}&cursor={cursor}")).await;
        ids.extend(more);
    }
    ids
}

fn due(second: u32) -> String {
    format!("2030-01-01T00:00:{second:02}Z")
}

async fn a_filter_finds_what_fits_and_nothing_else(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for (id, second, owner, labels) in [
        ("a", 1, Some("user:1"), json!({"app": "shop", "kind": "x"})),
        ("b", 2, Some("user:1"), json!({"app": "shop", "kind": "y"})),
        ("c", 3, Some("user:2"), json!({"app": "blog"})),
        ("d", 4, None, json!({})),
        ("e", 5, None, json!({"odd/na.me": "ü & =?"})),
    ] {
        let mut timer = json!({"fire_at": due(second), "target": to(NOWHERE), "labels": labels});
        if let Some(owner) = owner {
            timer["owner"] = json!(owner);
        }
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    for (id, path) in [("ok", "/ok"), ("dead", "/status/410"), ("retrying", "/status/500")] {
        let retry = json!({"attempts": 2, "first": "PT1H"});
        assert_eq!(api.put(id, &with(now(receiver.url(path)), "retry", retry)).await.0, 201);
    }
    in_state(&api, "ok", "delivered").await;
    in_state(&api, "dead", "dead").await;
    in_state(&api, "retrying", "retrying").await;
    assert_eq!(api.put("gone", &later()).await.0, 201);
    assert_eq!(api.delete("gone").await.0, 200);
    for (query, expected) in [
        ("state=scheduled", vec!["a", "b", "c", "d", "e"]),
        ("state=delivered", vec!["ok"]),
        ("state=dead", vec!["dead"]),
        ("state=retrying", vec!["retrying"]),
        ("state=cancelled", vec!["gone"]),
        ("state=expired", vec![]),
        ("owner=user:1", vec!["a", "b"]),
        ("owner=d", vec!["d"]),
        ("owner=nobody", vec![]),
        ("owner=no/id", vec![]),
        ("label.app=shop", vec!["a", "b"]),
        ("label.app=shop&label.kind=y", vec!["b"]),
        ("label.app=shop&owner=user:2", vec![]),
        ("label.odd/na.me=%C3%BC%20%26%20%3D%3F", vec!["e"]),
        ("label.none=x", vec![]),
        ("due_after=2030-01-01T00:00:02Z&due_before=2030-01-01T00:00:04Z", vec!["b", "c"]),
        ("due_after=2030-01-01T08:00:05%2B08:00", vec!["e"]),
        ("due_after=2030-01-01T00:00:06Z", vec![]),
    ] {
        let mut found = all(&api, query).await;
        if !query.contains("due_") && !query.contains("state=scheduled") {
            found.sort_unstable();
        }
        assert_eq!(found, expected, "{query}");
    }
    let everything: BTreeSet<_> = all(&api, "").await.into_iter().collect();
    assert_eq!(everything.len(), 9, "live and ended: {everything:?}");
}

async fn pages_miss_nothing_and_repeat_nothing(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    // Few due times for many timers: a page often ends among equals.
    let timers: Vec<Value> = (0..230)
        .map(|n| json!({"id": format!("t{n:03}"), "fire_at": due(n % 5), "target": to(NOWHERE)}))
        .collect();
    assert_eq!(api.post("/v1/timers/batch", &json!({"timers": timers})).await.0, 200);
    for n in 0..60 {
        assert_eq!(api.delete(&format!("t{:03}", n * 3)).await.0, 200);
    }
    for limit in [7, 100, 1000] {
        let (first, next) = page(&api, &format!("limit={limit}")).await;
        assert!(first.len() <= limit && next.is_some() == (limit < 230), "{limit}");
        let ids = all(&api, &format!("limit={limit}")).await;
        assert_eq!(ids.len(), 230, "limit {limit}: none twice");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 230, "limit {limit}: none missing");
        let seconds: Vec<_> = ids.iter().map(|id| id[1..].parse::<u32>().expect("a number") % 5).collect();
        assert!(seconds.is_sorted(), "limit {limit}: in due order");
    }
    let (default, next) = page(&api, "").await;
    assert!(default.len() <= 100 && next.is_some(), "{} without a limit", default.len());
    assert_eq!(all(&api, "limit=9&state=cancelled").await.len(), 60);
}

#[tokio::test]
async fn a_list_shows_what_a_get_shows() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let hook = json!({"webhook": {"url": NOWHERE, "secret": "whsec_c2VjcmV0", "headers": {"X-A": "1"}}});
    let timer = json!({"fire_at": due(0), "target": hook, "owner": "o", "labels": {"a": "b"},
        "precision": "minute", "late": {"grace": "PT1M", "then": "expire"}, "retry": quick(3)});
    assert_eq!(api.put("t", &timer).await.0, 201);
    let (_, one) = api.timer("t").await;
    let (_, list) = api.get("/v1/timers").await;
    assert_eq!(list, json!({"items": [one], "next": null}));
    assert!(!one.to_string().contains("c2VjcmV0"), "a secret is write-only: {one}");
    for (name, value) in [
        ("state", json!("scheduled")),
        ("due_at", json!("2030-01-01T00:00:00.000Z")),
        ("next_attempt_at", json!("2030-01-01T00:00:00.000Z")),
        ("owner", json!("o")),
        ("labels", json!({"a": "b"})),
        ("data", json!(null)),
        ("precision", json!("minute")),
        ("late", json!({"grace": "PT1M", "then": "expire"})),
        ("retry", json!({"attempts": 3, "first": "PT0.05S", "cap": "PT0.05S"})),
        ("generation", json!(1)),
        ("version", json!(1)),
        ("attempts", json!(0)),
        ("tier", json!("cold")),
        ("schedule", json!(null)),
    ] {
        assert_eq!(one[name], value, "{name}");
    }
}

#[tokio::test]
async fn a_filter_that_cannot_be_is_422() {
    let node = Node::builder().start_ready().await;
    for (query, pointer) in [
        ("colour=red", "?colour"),
        ("state=asleep", "?state"),
        ("state=dead&state=scheduled", "?state"),
        ("limit=0", "?limit"),
        ("limit=1001", "?limit"),
        ("limit=many", "?limit"),
        ("cursor=nonsense", "?cursor"),
        ("due_after=yesterday", "?due_after"),
        ("due_before=2030-01-01T00:00:00+08:00", "?due_before"),
        ("destination=no%20name", "?destination"),
        ("queue=.x", "?queue"),
        ("to=team:a", "?to"),
        ("worker=a%20b", "?worker"),
        ("schedule=a%20b", "?schedule"),
    ] {
        let answer = node.api().send(Method::GET, &format!("/v1/timers?{query}"), &[], None).await;
        problem(&answer, 422, "invalid");
        assert_eq!(answer.body["errors"][0]["pointer"], pointer, "{query}");
    }
}

/// No timer has such a label, and a database may take it for something else.
async fn a_filter_by_a_label_that_cannot_be_is_422(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let long = "a".repeat(65);
    for list in ["timers", "schedules"] {
        for (name, shown) in
            [("a%5C", "a\\"), ("%22a%22", "\"a\""), ("", ""), ("a%00", "a\0"), (&*long, &*long)]
        {
            let path = format!("/v1/{list}?label.{name}=x");
            let answer = node.api().send(Method::GET, &path, &[], None).await;
            problem(&answer, 422, "invalid");
            let error = &answer.body["errors"][0];
            assert_eq!(
                (&error["pointer"], &error["code"]),
                (&json!(format!("?label.{shown}")), &json!("bad_label")),
                "{path}"
            );
        }
        let path = format!("/v1/{list}?label.a._-/Z9=x");
        assert_eq!(node.api().get(&path).await.1["items"], json!([]), "{path}");
    }
}

on_both!(
    a_filter_finds_what_fits_and_nothing_else,
    a_filter_by_a_label_that_cannot_be_is_422,
    pages_miss_nothing_and_repeat_nothing,
);

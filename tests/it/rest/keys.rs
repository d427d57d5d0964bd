//! Keys: who may call, what each may do, and until when. Every route of the OpenAPI document is called with every scope.

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, NOWHERE, later, with};
use crate::support::{Answer, Api, Node, eventually, fresh_database, to};

/// Calls that change what `register` may change. Those that read take `view`, but for what is named below.
pub const REGISTER: [&str; 11] = [
    "POST /v1/timers",
    "POST /v1/timers/batch",
    "POST /v1/timers/stream",
    "PUT /v1/timers/{id}",
    "PATCH /v1/timers/{id}",
    "DELETE /v1/timers/{id}",
    "POST /v1/timers/{id}/fire",
    "POST /v1/timers/{id}/pause",
    "POST /v1/timers/{id}/resume",
    "POST /v1/queues/{name}/lease",
    "POST /v1/queues/{name}/settle",
];

const OPERATE: [&str; 24] = [
    "PUT /v1/destinations/{name}",
    "PATCH /v1/destinations/{name}",
    "DELETE /v1/destinations/{name}",
    "POST /v1/destinations/{name}/test",
    "POST /v1/destinations/{name}/pause",
    "POST /v1/destinations/{name}/resume",
    "POST /v1/destinations/{name}/redrive",
    "PUT /v1/queues/{name}",
    "DELETE /v1/queues/{name}",
    "POST /v1/queues/{name}/pause",
    "POST /v1/queues/{name}/resume",
    "PUT /v1/schedules/{id}",
    "PATCH /v1/schedules/{id}",
    "DELETE /v1/schedules/{id}",
    "POST /v1/schedules/{id}/pause",
    "POST /v1/schedules/{id}/resume",
    "POST /v1/schedules/{id}/run",
    "POST /v1/schedules/{id}/backfill",
    "PUT /v1/templates/{name}",
    "DELETE /v1/templates/{name}",
    "PUT /v1/subscriptions/{name}",
    "DELETE /v1/subscriptions/{name}",
    "POST /v1/operations",
    "POST /v1/operations/{id}/stop",
];

/// Calls that read and take more than `view`.
const AUDIT: &str = "GET /v1/audit";

/// Calls on what only `admin` may see.
const ADMIN: [&str; 7] = [
    "GET /v1/keys",
    "POST /v1/keys",
    "DELETE /v1/keys/{id}",
    "GET /v1/namespaces",
    "GET /v1/namespaces/{name}",
    "PUT /v1/namespaces/{name}",
    "DELETE /v1/namespaces/{name}",
];

/// Calls on the service as a whole: of a key of one namespace they are hidden.
const OF_ALL: [&str; 8] = [
    "GET /v1/wheels",
    "GET /v1/wheels/stream",
    "GET /v1/nodes",
    "GET /v1/receivers",
    "GET /v1/namespaces",
    "GET /v1/namespaces/{name}",
    "PUT /v1/namespaces/{name}",
    "DELETE /v1/namespaces/{name}",
];

const SCOPES: [&str; 4] = ["view", "register", "operate", "admin"];

/// Makes a key; returns its id and its text.
pub async fn made(api: &Api, body: &Value) -> (String, String) {
    let (status, key) = api.post("/v1/keys", body).await;
    assert_eq!(status, 201, "{key}");
    let text = |field: &str| key[field].as_str().expect("a text").to_owned();
    (text("id"), text("key"))
}

pub fn key(name: &str, scope: &str, namespace: &str) -> Value {
    json!({"name": name, "scopes": [scope], "namespace": namespace})
}

/// A node with a first key, which may do everything.
pub async fn keyed() -> (Node, Api) {
    let node = Node::builder().start_ready().await;
    let (_, first) = made(&node.api(), &key("first", "admin", "*")).await;
    let api = node.api().with_key(first);
    (node, api)
}

fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.body["code"].as_str()), (status, Some(code)), "{}", answer.body);
}

/// The status of a call and its problem, where it is one. A stream that goes on is not read.
async fn called(base: &str, key: &str, method: &Method, path: &str) -> (u16, Value) {
    let url = format!("{base}{}", path.replace("{id}", "t").replace("{name}", "t"));
    let request = crate::support::http_client(LONG).request(method.clone(), url).bearer_auth(key);
    let answer =
        request.header("content-type", "application/json").body("{").send().await.expect("an answer");
    let status = answer.status().as_u16();
    if status < 400 {
        return (status, Value::Null);
    }
    (status, answer.json().await.unwrap_or(Value::Null))
}

#[tokio::test]
async fn every_call_takes_the_scope_that_the_document_says_and_no_less() {
    let (node, admin) = keyed().await;
    let (_, document) = admin.get("/openapi.json").await;
    let mut keys = Vec::new();
    for namespace in ["default", "*"] {
        for scope in SCOPES {
            keys.push((scope, namespace, made(&admin, &key("k", scope, namespace)).await.1));
        }
    }
    let paths = document["paths"].as_object().expect("paths");
    let mut calls = 0;
    for (path, methods) in paths.iter().filter(|(path, _)| path.starts_with("/v1/")) {
        for (method, operation) in methods.as_object().expect("methods") {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let call = format!("{method} {path}");
            let takes = match call.as_str() {
                call if ADMIN.contains(&call) => "admin",
                AUDIT => "operate",
                call if REGISTER.contains(&call) => "register",
                call if OPERATE.contains(&call) => "operate",
                _ if method == Method::GET => "view",
                other => panic!("{other}: say here what it takes"),
            };
            assert_eq!(operation["security"], json!([{}, {"key": [takes]}]), "{call}");
            calls += 1;
            for (scope, namespace, text) in &keys {
                let rank = |word: &str| SCOPES.iter().position(|scope| *scope == word);
                let (status, problem) = called(&node.base(), text, &method, path).await;
                let hidden = OF_ALL.contains(&call.as_str()) && *namespace != "*"
                    || takes == "admin" && *scope != "admin"
                    || call == AUDIT && rank(scope) < rank(takes);
                let detail = problem["detail"].as_str().unwrap_or_default();
                let is_hidden = status == 404 && detail.starts_with("there is nothing here for this key");
                let is_forbidden = status == 403 && problem["code"] == "scope";
                let expected = (hidden, !hidden && rank(scope) < rank(takes));
                assert_eq!((is_hidden, is_forbidden), expected, "{call} {scope} {namespace}: {problem}");
                assert!(!matches!(status, 401 | 500..), "{call} {scope} {namespace}: {problem}");
            }
        }
    }
    assert!(calls >= 60, "{calls}");
    // The log names no key.
    let log = node.log();
    assert!(keys.iter().all(|(_, _, text)| !log.contains(text.as_str())));
}

#[tokio::test]
async fn a_server_is_open_until_its_first_key_is_made_and_answers_nobody_else_from_then_on() {
    let mut node = Node::builder().start_ready().await;
    let open = node.api();
    assert_eq!(open.put("before", &later()).await.0, 201);
    let (id, text) = made(&open, &key("first", "admin", "*")).await;
    let api = node.api().with_key(&text);
    refused(&open.send(Method::GET, "/v1/timers/before", &[], None).await, 401, "no_key");
    assert_eq!(api.timer("before").await.0, 200);
    // Its store says so at the next start, too: it is not open for a moment.
    node.restart().await;
    let ready = node.wait_ready(LONG);
    tokio::pin!(ready);
    let client = crate::support::http_client(LONG);
    let url = format!("{}/v1/timers/before", open.base);
    let mut seen = std::collections::BTreeSet::new();
    loop {
        tokio::select! {
            () = &mut ready => break,
            answer = client.get(&url).send() => match answer {
                Ok(answer) => drop(seen.insert(answer.status().as_u16())),
                Err(_) => tokio::task::yield_now().await,
            },
        }
    }
    assert!(seen.iter().all(|status| matches!(status, 401 | 503)), "{seen:?}");
    refused(&node.api().send(Method::GET, "/v1/timers/before", &[], None).await, 401, "no_key");
    assert_eq!(api.timer("before").await.0, 200);
    // Without its last key nobody could make another one.
    refused(&api.send(Method::DELETE, &format!("/v1/keys/{id}"), &[], None).await, 409, "last_admin");
    let (_, second) = made(&api, &key("second", "admin", "*")).await;
    assert_eq!(api.send(Method::DELETE, &format!("/v1/keys/{id}"), &[], None).await.status, 200);
    refused(&api.send(Method::GET, "/v1/timers", &[], None).await, 401, "unknown_key");
    assert_eq!(node.api().with_key(second).get("/v1/timers").await.0, 200);
}

#[tokio::test]
async fn a_key_is_shown_once_and_the_store_has_its_hash_alone() {
    let (node, admin) = keyed().await;
    let wanted =
        json!({"name": "shop", "scopes": ["register", "view"], "expires_at": "2100-01-01T00:00:00Z"});
    let (status, made) = admin.post("/v1/keys", &wanted).await;
    assert_eq!(status, 201);
    let text = made["key"].as_str().expect("a key");
    // It may have `_` in it, so it is no part between two of them.
    let secret = &text[text.len() - 32..];
    let (_, all) = admin.get("/v1/keys").await;
    let items = all["items"].as_array().expect("items");
    let mut shown = made.clone();
    shown.as_object_mut().expect("a key").remove("key");
    assert!(items.contains(&shown), "the list has all but the key itself");
    assert_eq!(shown["scopes"], json!(["view", "register"]));
    assert_eq!((&shown["namespace"], &shown["last_used_at"]), (&json!("default"), &Value::Null));
    assert_eq!(items.len(), 2);
    assert!(!all.to_string().contains(secret));

    assert_eq!(node.api().with_key(text).put("t", &later()).await.0, 201);
    eventually("its use is told", LONG, async || {
        let (_, all) = admin.get("/v1/keys").await;
        let items = all["items"].as_array().expect("items");
        let used = items.iter().any(|key| key["name"] == "shop" && key["last_used_at"].is_string());
        if used { Ok(()) } else { Err(all) }
    })
    .await;
    for file in std::fs::read_dir(node.dir()).expect("files") {
        let path = file.expect("a file").path();
        let bytes = std::fs::read(&path).unwrap_or_default();
        let has = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!has, "{} holds the secret", path.display());
    }
}

#[tokio::test]
async fn a_key_is_refused_once_its_time_is_over() {
    let (node, admin) = keyed().await;
    let (_, now) = admin.get("/v1/keys").await;
    let at = mainspring::model::time::UnixMs::parse_rfc3339(
        now["items"][0]["created_at"].as_str().expect("a time"),
    );
    let soon = at.expect("RFC 3339").plus(std::time::Duration::from_secs(2)).rfc3339();
    let (_, text) = made(&admin, &json!({"name": "short", "scopes": ["view"], "expires_at": soon})).await;
    let api = node.api().with_key(text);
    let mut seen = vec![];
    eventually("it expires", LONG, async || {
        let answer = api.send(Method::GET, "/v1/timers", &[], None).await;
        seen.push(answer.status);
        if answer.status == 401 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    assert!(seen.iter().all(|status| matches!(status, 200 | 401)), "{seen:?}");
    let (_, keys) = admin.get("/v1/keys").await;
    assert_eq!(keys["items"].as_array().map(Vec::len), Some(2), "it is listed until it is revoked");
}

#[tokio::test]
async fn a_key_holds_on_every_node_at_once_and_is_refused_by_all_when_it_is_revoked() {
    let url = fresh_database().await;
    let a = Node::builder().cold(&url).name("a").start_ready().await;
    let b = Node::builder().cold(&url).name("b").start_ready().await;
    let (_, first) = made(&a.api(), &key("first", "admin", "*")).await;
    let admin = a.api().with_key(&first);
    eventually("the other node is closed too", LONG, async || {
        let (status, body) = b.api().get("/v1/timers").await;
        if status == 401 { Ok(()) } else { Err(body) }
    })
    .await;
    for n in 0..5 {
        let (id, text) = made(&admin, &key(&format!("k{n}"), "view", "default")).await;
        let there = b.api().with_key(&text);
        assert_eq!(there.get("/v1/timers").await.0, 200, "it is looked for in the store");
        assert_eq!(admin.send(Method::DELETE, &format!("/v1/keys/{id}"), &[], None).await.status, 200);
        assert_eq!(a.api().with_key(&text).get("/v1/timers").await.0, 401);
        eventually("it is refused", LONG, async || {
            let (status, body) = there.get("/v1/timers").await;
            if status == 401 { Ok(()) } else { Err(body) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_key_of_one_namespace_neither_sees_nor_makes_one_of_all() {
    let (node, admin) = keyed().await;
    let (own, text) = made(&admin, &key("own", "admin", "default")).await;
    let api = node.api().with_key(text);
    let (_, seen) = api.get("/v1/keys").await;
    let ids: Vec<_> = seen["items"].as_array().expect("items").iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, [json!(own)]);
    let (_, all) = admin.get("/v1/keys").await;
    let first = all["items"].as_array().expect("items").iter().find(|key| key["name"] == "first");
    let first = first.expect("it is listed")["id"].as_str().expect("an id").to_owned();
    refused(&api.send(Method::DELETE, &format!("/v1/keys/{first}"), &[], None).await, 404, "not_found");
    let (status, problem) = api.post("/v1/keys", &key("more", "view", "*")).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!("/namespace")), "{problem}");
    assert_eq!(api.post("/v1/keys", &key("less", "view", "default")).await.0, 201);
    for (bad, pointer) in [
        (json!({"name": "a", "scopes": ["view"], "namespace": "nowhere"}), "/namespace"),
        (json!({"name": "a", "scopes": ["root"]}), "/scopes/0"),
        (json!({"scopes": ["view"]}), "/name"),
        (json!({"name": "a", "scopes": ["view"], "expires_at": "2000-01-01T00:00:00Z"}), "/expires_at"),
    ] {
        let (status, problem) = admin.post("/v1/keys", &bad).await;
        assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!(pointer)), "{problem}");
    }
}

/// A viewer is refused before anything is looked at: what he would change stays as it is.
#[tokio::test]
async fn what_a_key_may_not_do_is_not_done() {
    let (node, admin) = keyed().await;
    assert_eq!(admin.put("t", &later()).await.0, 201);
    let viewer = node.api().with_key(made(&admin, &key("v", "view", "default")).await.1);
    let changed = with(later(), "data", json!(1));
    for (method, path, body) in [
        (Method::PUT, "/v1/timers/u", Some(&changed)),
        (Method::PATCH, "/v1/timers/t", Some(&json!({"delay": "PT2H"}))),
        (Method::DELETE, "/v1/timers/t", None),
        (Method::POST, "/v1/timers/t/fire", None),
        (Method::PUT, "/v1/destinations/d", Some(&json!({"webhook": {"url": NOWHERE}}))),
        (Method::PUT, "/v1/schedules/s", Some(&json!({"cron": "@daily", "target": to(NOWHERE)}))),
    ] {
        refused(&viewer.send(method, path, &[], body).await, 403, "scope");
    }
    let (_, timer) = viewer.timer("t").await;
    assert_eq!((&timer["state"], &timer["version"]), (&json!("scheduled"), &json!(1)));
    assert_eq!(viewer.timer("u").await.0, 404);
    assert_eq!(admin.ledger().await.registered, 1);
    for list in ["destinations", "schedules"] {
        let (_, all) = viewer.get(&format!("/v1/{list}")).await;
        assert_eq!(all["items"], json!([]), "{list}");
    }
}

/// A worker waits for a task while its key is revoked: the task goes to the next one as if it had not been there.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_task_gets_none_once_its_key_is_revoked() {
    let (node, admin) = keyed().await;
    let (id, text) = made(&admin, &key("w1", "register", "default")).await;
    let worker = node.api().with_key(text);
    let waits = tokio::spawn(async move {
        let asked = json!({"worker": "w1", "wait": "PT30S"});
        worker.send(Method::POST, "/v1/queues/q/lease", &[], Some(&asked)).await
    });
    eventually("it waits", LONG, async || {
        let (_, text) = admin.get("/metrics").await;
        let waits = text.as_str().is_some_and(|text| text.contains("mainspring_queue_waiting_workers 1"));
        if waits { Ok(()) } else { Err("nobody waits") }
    })
    .await;
    assert_eq!(admin.send(Method::DELETE, &format!("/v1/keys/{id}"), &[], None).await.status, 200);
    let timer = json!({"delay": "PT0S", "target": {"queue": "q"}});
    assert_eq!(admin.put("t", &timer).await.0, 201);
    refused(&waits.await.expect("ends"), 401, "unknown_key");
    let (_, next) = admin.post("/v1/queues/q/lease", &json!({"worker": "w2", "wait": "PT30S"})).await;
    assert_eq!(
        (&next["items"][0]["timer"], &next["items"][0]["attempt"]),
        (&json!("t"), &json!(1)),
        "{next}"
    );
}

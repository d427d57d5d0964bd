//! Every call of the OpenAPI document with paths, queries and bodies that nobody should send: each is answered as the document
//! says, and none by a 500. The inputs are the same at each run.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use reqwest::Method;
use serde_json::{Value, json};
use url::form_urlencoded::byte_serialize;

use super::document::{Document, body_for};
use crate::hostile::{TEXTS, mutated};
use crate::support::{Node, fresh_database};

const KEY: &str = "hostile-input-key-0123456789";

/// How often each call is made.
const TIMES: usize = 24;

/// What stands in a path where a name or an id is expected, or in a query; as it is sent.
fn text() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        4 => select(TEXTS.to_vec()).prop_map(str::to_owned),
        2 => any::<String>(),
        2 => select(vec!["1", "1000", "order-1", "tasks", "true", "delivered", "2026-12-01T09:00:00Z", "PT5M"]).prop_map(str::to_owned),
    ];
    text.prop_map(|text| byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20"))
}

/// Whether a call is left out: it does not end by itself.
fn is_endless(path: &str) -> bool {
    path.ends_with("/stream") || path.ends_with("/live")
}

async fn each_call_is_answered(node: Node) {
    let api = node.api().with_key(KEY);
    let document = Document::of(&api).await;
    let mut runner = TestRunner::deterministic();
    let mut draw =
        |strategy: &BoxedStrategy<String>| strategy.new_tree(&mut runner).expect("a text").current();
    let text = text().boxed();
    let mut runner = TestRunner::deterministic();
    let mut answers = 0;
    for (method, path) in document.calls() {
        if is_endless(&path) {
            continue;
        }
        let body = body_for(&method, &path).1.and_then(|body| serde_json::from_str::<Value>(&body).ok());
        let bodies = mutated(vec![body.unwrap_or_else(|| json!({"of": "nobody"}))]);
        let parameters = document.parameters(&method, &path);
        for n in 0..TIMES {
            let (mut url, mut query) = (path.clone(), String::new());
            for (name, place) in &parameters {
                let value = draw(&text);
                match place.as_str() {
                    // Without one it would be another call.
                    "path" if ["", ".", "..", "%2E", "%2E%2E"].contains(&value.as_str()) => {
                        url = url.replace(&format!("{{{name}}}"), "x")
                    }
                    "path" => url = url.replace(&format!("{{{name}}}"), &value),
                    "query" if n % 3 != 0 => query.push_str(&format!("&{name}={value}")),
                    _ => {}
                }
            }
            if let Some(first) = query.get(1..) {
                url = format!("{url}?{first}");
            }
            let bytes = bodies.new_tree(&mut runner).expect("a body").current();
            let bytes = if method == Method::GET { Vec::new() } else { bytes };
            let answer = api.send_bytes(method.clone(), &url, &[], bytes.clone()).await;
            assert!(
                answer.status < 500,
                "{method} {url} {}: {}",
                String::from_utf8_lossy(&bytes),
                answer.body
            );
            if let Err(why) = document.knows(&method, &path, &answer) {
                let bytes = String::from_utf8_lossy(&bytes).into_owned();
                panic!("{method} {url} {bytes}: {} {why} in {:#}", answer.status, answer.body);
            }
            answers += 1;
        }
    }
    assert!(answers > 50 * TIMES, "{answers}");
    let (status, health) = api.get("/readyz").await;
    assert_eq!(status, 200, "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_answered_on_sqlite() {
    each_call_is_answered(Node::builder().env("MAINSPRING__SERVER__API_KEYS", KEY).start_ready().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_answered_on_postgres() {
    let url = fresh_database().await;
    let node = Node::builder().cold(&url).env("MAINSPRING__SERVER__API_KEYS", KEY);
    each_call_is_answered(node.start_ready().await).await;
}

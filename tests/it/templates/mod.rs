//! Templates: named JSON Schemas with defaults, which the data of timers is fitted to.

mod calls;
mod nodes;
mod timers;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api, to};

/// A call on a template.
async fn call(api: &Api, method: Method, name: &str, body: Option<&Value>) -> Answer {
    api.send(method, &format!("/v1/templates/{name}"), &[], body).await
}

/// Makes a template, or puts another in its place; it must be taken.
async fn put(api: &Api, name: &str, body: &Value) -> Value {
    let answer = call(api, Method::PUT, name, Some(body)).await;
    assert!(matches!(answer.status, 200 | 201), "{:?}", answer.body);
    answer.body
}

/// A timer by a template, which is not due while its test runs.
fn by(template: &str, data: Value) -> Value {
    json!({"delay": "PT1H", "target": to("http://127.0.0.1:9/"), "template": template, "data": data})
}

/// An order has a number; it is reviewed, unless it is said otherwise.
fn orders() -> Value {
    json!({
        "schema": {"type": "object", "required": ["order"], "properties": {
            "order": {"type": "integer"}, "kind": {"enum": ["review", "cancel"]}, "items": {"items": {"type": "string"}}}},
        "defaults": {"kind": "review", "shop": {"id": 7, "open": true}},
    })
}

/// Where the errors of a problem or of an item stand, and their codes.
fn errors(body: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let all = body["errors"].as_array().unwrap_or_else(|| panic!("no errors in {body}"));
    let mut found: Vec<_> = all.iter().map(|one| (text(&one["pointer"]), text(&one["code"]))).collect();
    found.sort_unstable();
    found
}

fn wrong(errors: &[(&str, &str)]) -> Vec<(String, String)> {
    errors.iter().map(|(pointer, code)| ((*pointer).to_owned(), (*code).to_owned())).collect()
}

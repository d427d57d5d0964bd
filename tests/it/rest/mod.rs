//! The REST door as a caller meets it: the real binary, real databases, a real receiver.

mod answers;
mod audit;
mod bodies;
mod canaries;
mod cancel;
mod change;
mod connections;
mod deliver;
mod document;
mod errors;
mod fields;
mod hostile;
mod keys;
mod list;
mod namespaces;
mod networks;
mod observe;
mod pause;
mod quotas;
mod register;
mod replies;
mod retry;
mod schedules;
mod service;
mod stream;
mod tls;
mod wheels;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::to;

/// Long enough for a busy machine; nothing takes it unless it is broken.
const LONG: Duration = Duration::from_secs(20);

/// Nobody listens there, and no test's timer to it becomes due.
const NOWHERE: &str = "http://127.0.0.1:9/x";

/// A timer that is due at once.
fn now(url: impl AsRef<str>) -> Value {
    json!({"delay": "PT0S", "target": to(url)})
}

/// A timer that is not due while its test runs.
fn later() -> Value {
    json!({"delay": "PT1H", "target": to(NOWHERE)})
}

/// The same with one more field, or another value in it.
fn with(mut timer: Value, field: &str, value: Value) -> Value {
    timer[field] = value;
    timer
}

/// Retries that follow quickly, at most `attempts` in all.
fn quick(attempts: u32) -> Value {
    json!({"attempts": attempts, "first": "PT0.05S", "cap": "PT0.05S"})
}

/// The results of a timer's attempts, in order.
async fn results(api: &crate::support::Api, id: &str) -> Vec<String> {
    let (status, body) = api.get(&format!("/v1/timers/{id}/attempts")).await;
    assert_eq!(status, 200, "{body}");
    let items = body["items"].as_array().expect("items");
    items.iter().map(|item| item["result"].as_str().expect("a result").to_owned()).collect()
}

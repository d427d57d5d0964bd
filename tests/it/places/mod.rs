//! Destinations: named places that deliveries go to.

mod brokers;
mod calls;
mod limits;
mod merge;
mod pausing;
mod priority;
mod secrets;
mod timers;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api};

/// Long enough for a busy machine; nothing takes it unless it is broken.
const LONG: Duration = Duration::from_secs(20);

/// A call on a destination: `rest` follows its name.
async fn call(api: &Api, method: Method, name: &str, rest: &str, body: Option<&Value>) -> Answer {
    api.send(method, &format!("/v1/destinations/{name}{rest}"), &[], body).await
}

/// Makes a destination, or puts another in its place.
async fn put(api: &Api, name: &str, body: &Value) -> Answer {
    call(api, Method::PUT, name, "", Some(body)).await
}

async fn get(api: &Api, name: &str) -> Value {
    let answer = call(api, Method::GET, name, "", None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body
}

/// Makes a destination that must be taken.
async fn made(api: &Api, name: &str, body: &Value) -> Value {
    let answer = put(api, name, body).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    answer.body
}

/// Pauses a destination, or resumes it.
async fn set(api: &Api, name: &str, verb: &str) -> Value {
    let answer = call(api, Method::POST, name, &format!("/{verb}"), None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body
}

/// A timer for a destination, due at once.
fn now(destination: &str) -> Value {
    json!({"delay": "PT0S", "target": {"destination": destination}})
}

/// One that is not due while its test runs.
fn later(destination: &str) -> Value {
    json!({"delay": "PT1H", "target": {"destination": destination}})
}

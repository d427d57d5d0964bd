//! Lifecycle events: who subscribes gets them, in order, at least once, and nobody else pays.

mod calls;
mod nodes;
mod sending;

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Received, Receiver};

/// Long enough for a busy machine; nothing takes it unless it is broken.
const LONG: Duration = Duration::from_secs(30);

async fn call(api: &Api, method: Method, name: &str, body: Option<&Value>) -> Answer {
    api.send(method, &format!("/v1/subscriptions/{name}"), &[], body).await
}

/// Makes a destination `log` at this URL.
async fn log_at(api: &Api, url: &str) {
    let body = json!({"webhook": {"url": url}});
    let answer = api.send(Method::PUT, "/v1/destinations/log", &[], Some(&body)).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
}

/// Subscribes for `log`.
async fn subscribed(api: &Api, name: &str, events: &[&str], filter: Value) -> Value {
    let body = json!({"destination": "log", "events": events, "filter": filter});
    let answer = call(api, Method::PUT, name, Some(&body)).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    answer.body
}

async fn shown(api: &Api, name: &str) -> Value {
    let answer = call(api, Method::GET, name, None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body
}

/// The kind of an event, without what all have in common.
fn kind(event: &Received) -> String {
    let kind = event.headers["ce-type"].to_str().expect("text");
    kind.trim_start_matches("mainspring.").trim_end_matches(".v1").to_owned()
}

/// The kinds of the events of each subject, in order of arrival; what came again is left out.
fn told(events: &[Received]) -> BTreeMap<String, Vec<String>> {
    let mut seen = std::collections::HashSet::new();
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in events.iter().filter(|event| seen.insert(event.delivery_id.clone())) {
        told.entry(event.timer.clone()).or_default().push(kind(event));
    }
    told
}

/// What arrived at one path.
fn at(receiver: &Receiver, path: &str) -> Vec<Received> {
    receiver.received().into_iter().filter(|one| one.path == path).collect()
}

//! Queues over REST: what workers ask, what they get, and when.

mod calls;
mod crowd;
mod desk;
mod nodes;
mod waiting;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api};

/// Every wait for something that is to come ends by then.
const LONG: Duration = Duration::from_secs(30);

async fn lease_answer(api: &Api, queue: &str, asked: &Value) -> Answer {
    api.send(Method::POST, &format!("/v1/queues/{queue}/lease"), &[], Some(asked)).await
}

/// The items of a lease.
async fn lease(api: &Api, queue: &str, asked: Value) -> Vec<Value> {
    let answer = lease_answer(api, queue, &asked).await;
    assert_eq!(answer.status, 200, "{asked}: {}", answer.body);
    answer.body["items"].as_array().expect("items").clone()
}

/// The only item that a worker gets, if it waits for it.
async fn item(api: &Api, queue: &str, worker: &str) -> Value {
    let mut items = lease(api, queue, json!({"worker": worker, "wait": "PT30S"})).await;
    assert_eq!(items.len(), 1, "{items:?}");
    items.remove(0)
}

async fn settle_answer(api: &Api, queue: &str, settlements: Value) -> Answer {
    let body = json!({"settlements": settlements});
    api.send(Method::POST, &format!("/v1/queues/{queue}/settle"), &[], Some(&body)).await
}

/// Settles one item; returns the status of the settlement.
async fn settle(api: &Api, queue: &str, item: &Value, action: Value) -> u64 {
    let mut one = action;
    one["lease_token"] = item["lease_token"].clone();
    let answer = settle_answer(api, queue, json!([one])).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let result = &answer.body["results"][0];
    assert_eq!(result["lease_token"], item["lease_token"]);
    let status = result["status"].as_u64().expect("a status");
    assert_eq!(result["code"] == "lease_lost", status == 409, "{result}");
    status
}

async fn ack(api: &Api, queue: &str, item: &Value) -> u64 {
    settle(api, queue, item, json!({"action": "ack"})).await
}

//! What every answer shows of a timer, whichever call gave it and however the timer was registered.

use reqwest::Method;
use serde_json::{Value, json};

use super::{NOWHERE, later, now};
use crate::support::{Api, NodeBuilder, Receiver, in_state, on_both, to};

/// What an answer shows for the optional fields of a request that has none of them.
fn defaults(id: &str) -> Value {
    json!({"owner": id, "data": null, "labels": {}, "priority": "normal", "precision": "second", "spread": null,
        "late": {"grace": "PT0S", "then": "deliver"}, "retry": {"attempts": 8, "first": "PT1S", "cap": "PT1H"},
        "schedule": null})
}

/// Demands these values, and that what the service adds is there.
#[track_caller]
fn shows(what: &str, timer: &Value, expected: &Value) {
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&timer[name], value, "{what}: {name} in {timer:#}");
    }
    for name in ["id", "state", "due_at", "generation", "version", "created_at", "delivery_id", "attempts"] {
        assert!(!timer[name].is_null(), "{what} has no {name}: {timer:#}");
    }
    // These may be null, but are there.
    for name in ["next_attempt_at", "tier", "schedule", "spread"] {
        assert!(timer.get(name).is_some(), "{what} has no {name}: {timer:#}");
    }
}

/// Demands these values in all answers that show the timer.
async fn all_show(api: &Api, id: &str, expected: &Value) {
    let (_, timer) = api.timer(id).await;
    shows("GET", &timer, expected);
    let (_, list) = api.get("/v1/timers").await;
    let items = list["items"].as_array().expect("items");
    let item = items.iter().find(|item| item["id"] == id).expect("it is in the list");
    shows("the list", item, expected);
    let (_, explained) = api.get(&format!("/v1/timers/{id}/explain")).await;
    shows("explain", &explained["timer"], expected);
}

async fn every_answer_shows_every_field_with_the_value_in_force(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let target = |signed: bool, headers: Value| json!({"webhook": {"url": NOWHERE, "headers": headers, "signed": signed}});

    for status in [201, 200] {
        let (given, timer) = api.put("plain", &later()).await;
        assert_eq!(given, status);
        shows("PUT", &timer, &defaults("plain"));
        assert_eq!(timer["target"], target(false, json!({})));
    }
    let (_, changed) = api.patch("plain", &json!({"priority": "normal"})).await;
    shows("PATCH", &changed, &defaults("plain"));
    let key = [("idempotency-key", "k")];
    for status in [201, 200] {
        let made = api.send(Method::POST, "/v1/timers", &key, Some(&later())).await;
        assert_eq!(made.status, status);
        shows("POST", &made.body, &defaults(made.body["id"].as_str().expect("an id")));
    }
    all_show(&api, "plain", &defaults("plain")).await;
    let (status, fired) = api.post("/v1/timers/plain/fire", &Value::Null).await;
    assert_eq!(status, 202);
    shows("fire", &fired, &defaults("plain"));

    // Registered in a batch and in a stream, they are shown like any other.
    let item = |id: &str| json!({"id": id, "delay": "PT1H", "target": to(NOWHERE)});
    assert_eq!(api.post("/v1/timers/batch", &json!({"timers": [item("of-batch")]})).await.0, 200);
    let lines = [("content-type", "application/x-ndjson")];
    let stream = api.send(Method::POST, "/v1/timers/stream", &lines, Some(&item("of-stream"))).await;
    assert_eq!((stream.status, &stream.body["status"]), (200, &json!(201)));
    for id in ["of-batch", "of-stream"] {
        all_show(&api, id, &defaults(id)).await;
    }

    let full = json!({"delay": "PT1H", "owner": "user:1", "data": {"n": 1}, "labels": {"app": "shop"},
        "priority": "normal", "precision": "minute", "spread": "PT5M", "late": {"grace": "P1D", "then": "expire"},
        "retry": {"attempts": 3, "cap": "PT2H"},
        "target": {"webhook": {"url": NOWHERE, "secret": "whsec_c2VjcmV0", "headers": {"X-Tenant": "shop"}}}});
    let mut expected = full.clone();
    expected.as_object_mut().expect("an object").remove("delay");
    expected["target"] = target(true, json!({"x-tenant": "shop"}));
    expected["retry"]["first"] = json!("PT1S");
    let (_, timer) = api.put("full", &full).await;
    shows("PUT", &timer, &expected);
    all_show(&api, "full", &expected).await;

    // Ended, they are shown like live ones.
    assert_eq!(api.put("delivered", &now(receiver.url("/ok"))).await.0, 201);
    in_state(&api, "delivered", "delivered").await;
    all_show(&api, "delivered", &defaults("delivered")).await;
    assert_eq!(api.delete("full").await.0, 200);
    all_show(&api, "full", &expected).await;
    let (status, ended) = api.put("full", &full).await;
    assert_eq!(status, 200);
    shows("PUT of an ended id", &ended, &expected);
}

on_both!(every_answer_shows_every_field_with_the_value_in_force);

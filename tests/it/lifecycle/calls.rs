//! The calls on subscriptions: what is taken, shown and refused.

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, log_at, shown, subscribed};
use crate::support::{NodeBuilder, Receiver, on_both, problem};

async fn a_subscription_is_made_shown_changed_and_removed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    log_at(&api, &receiver.url("/ok")).await;
    let filter = json!({"label.app": "shop", "id": ["a", "b"], "owner": "me", "queue": "q"});
    let made =
        subscribed(&api, "s", &["timer.dead", "queue.leased", "schedule.skipped"], filter.clone()).await;
    assert_eq!(
        [
            &made["name"],
            &made["destination"],
            &made["filter"],
            &made["include_data"],
            &made["waiting"],
            &made["version"]
        ],
        [&json!("s"), &json!("log"), &filter, &json!(false), &json!(0), &json!(1)]
    );
    assert_eq!(shown(&api, "s").await, made);
    let all = json!({"destination": "log", "events": ["*"], "include_data": true});
    let answer = call(&api, Method::PUT, "s", Some(&all)).await;
    assert_eq!((answer.status, answer.header("etag")), (200, Some("\"2\"")), "{:?}", answer.body);
    assert_eq!([&answer.body["filter"], &answer.body["created_at"]], [&Value::Null, &made["created_at"]]);
    let again = call(&api, Method::PUT, "s", Some(&all)).await;
    assert_eq!((again.status, &again.body["version"]), (200, &json!(2)), "a repeat changes nothing");
    subscribed(&api, "r", &["*"], json!({})).await;
    let (_, list) = api.get("/v1/subscriptions").await;
    let names: Vec<_> =
        list["items"].as_array().expect("items").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["r", "s"]);
    let removed = call(&api, Method::DELETE, "s", None).await;
    assert_eq!((removed.status, &removed.body), (200, &json!({"outcome": "removed"})));
    for method in [Method::GET, Method::DELETE] {
        problem(&call(&api, method, "s", None).await, 404, "not_found");
    }
}

async fn a_subscription_that_is_not_valid_names_each_field(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    log_at(&api, &receiver.url("/ok")).await;
    for (body, pointer, code) in [
        (json!({"events": ["*"]}), "/destination", "missing"),
        (json!({"destination": "..", "events": ["*"]}), "/destination", "bad_name"),
        (json!({"destination": "nowhere", "events": ["*"]}), "/destination", "no_destination"),
        (json!({"destination": "log"}), "/events", "missing"),
        (json!({"destination": "log", "events": []}), "/events", "missing"),
        (json!({"destination": "log", "events": ["timer.eaten"]}), "/events/0", "unknown_event"),
        (json!({"destination": "log", "events": ["timer.dead", "*"]}), "/events/1", "not_alone"),
        (json!({"destination": "log", "events": ["timer.dead", "timer.dead"]}), "/events/1", "repeated"),
        (json!({"destination": "log", "events": "*"}), "/events", "wrong_type"),
        (json!({"destination": "log", "events": ["*"], "colour": 1}), "/colour", "unknown_field"),
        (
            json!({"destination": "log", "events": ["*"], "filter": {"colour": "red"}}),
            "/filter/colour",
            "unknown_field",
        ),
        (json!({"destination": "log", "events": ["*"], "filter": {"owner": ""}}), "/filter/owner", "empty"),
        (
            json!({"destination": "log", "events": ["*"], "filter": {"schedule": ""}}),
            "/filter/schedule",
            "empty",
        ),
        (
            json!({"destination": "log", "events": ["*"], "filter": {"label.a/b": 1}}),
            "/filter/label.a~1b",
            "wrong_type",
        ),
        (json!({"destination": "log", "events": ["*"], "filter": ["a"]}), "/filter", "wrong_type"),
        (
            json!({"destination": "log", "events": ["*"], "include_data": "yes"}),
            "/include_data",
            "wrong_type",
        ),
    ] {
        let answer = call(&api, Method::PUT, "s", Some(&body)).await;
        problem(&answer, 422, "invalid");
        let errors = answer.body["errors"].as_array().expect("errors");
        assert_eq!(errors.len(), 1, "{body}: {errors:?}");
        assert_eq!([&errors[0]["pointer"], &errors[0]["code"]], [pointer, code], "{body}: {errors:?}");
    }
    let both = json!({"events": ["x"], "filter": {"id": []}});
    let errors = call(&api, Method::PUT, "s", Some(&both)).await.body["errors"].clone();
    assert_eq!(errors.as_array().map(Vec::len), Some(3), "all at once: {errors}");
    let text = api.send_bytes(Method::PUT, "/v1/subscriptions/s", &[], "{").await;
    assert_eq!(text.status, 400);
    problem(
        &call(&api, Method::PUT, "a:b", Some(&json!({"destination": "log", "events": ["*"]}))).await,
        422,
        "invalid",
    );
    let (_, list) = api.get("/v1/subscriptions").await;
    assert_eq!(list["items"], json!([]), "nothing was made");
}

async fn a_destination_that_is_subscribed_for_cannot_be_removed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    log_at(&api, &receiver.url("/ok")).await;
    subscribed(&api, "s", &["timer.dead"], Value::Null).await;
    let remove = async || api.send(Method::DELETE, "/v1/destinations/log", &[], None).await;
    let refused = remove().await;
    problem(&refused, 409, "in_use");
    assert!(
        refused.body["detail"].as_str().is_some_and(|text| text.starts_with("1 subscription goes to `log`")),
        "{refused:?}"
    );
    api.put("t", &json!({"delay": "PT1H", "target": {"destination": "log"}})).await;
    let refused = remove().await;
    let detail = refused.body["detail"].as_str().expect("a text");
    assert!(detail.starts_with("1 live timer and 1 subscription go to `log`"), "{detail}");
    call(&api, Method::DELETE, "s", None).await;
    api.delete("t").await;
    assert_eq!(remove().await.status, 200);
}

on_both!(
    a_subscription_is_made_shown_changed_and_removed,
    a_subscription_that_is_not_valid_names_each_field,
    a_destination_that_is_subscribed_for_cannot_be_removed,
);

//! The calls on destinations: made, shown, changed, tried, removed; and what is refused.

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, get, later, made, put};
use crate::support::{NodeBuilder, Receiver, Reply, on_both, problem};

async fn one_is_made_shown_changed_and_removed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let hook = json!({"url": "http://127.0.0.1:9/in", "secret": "whsec_c2VjcmV0",
        "headers": {"X-Tenant": "shop", "Authorization": "Bearer t0p"}});
    let body = json!({"webhook": hook, "concurrency": 7, "rate_per_second": 500, "timeout": "PT3S",
        "retry": {"attempts": 3, "first": "PT1S", "cap": "PT1M"}});
    let new = put(&api, "shop-orders", &body).await;
    assert_eq!((new.status, new.header("etag")), (201, Some("\"1\"")), "{:?}", new.body);
    let shown = get(&api, "shop-orders").await;
    assert_eq!(shown, new.body);
    assert!(!shown.to_string().contains("t0p") && !shown.to_string().contains("c2Vj"), "{shown}");
    let hook = json!({"url": "http://127.0.0.1:9/in", "headers": {"x-tenant": "shop", "authorization": null}, "signed": true});
    let wanted = [
        ("webhook", hook),
        ("concurrency", json!(7)),
        ("rate_per_second", json!(500)),
        ("timeout", json!("PT3S")),
        ("retry", json!({"attempts": 3, "first": "PT1S", "cap": "PT1M"})),
        ("state", json!("ok")),
        ("in_flight", json!(0)),
        ("waiting", json!(0)),
        ("last_error", json!(null)),
        ("version", json!(1)),
    ];
    wanted.iter().for_each(|(field, value)| assert_eq!(shown[field], *value, "{field}"));

    // A part is changed; the rest, its secrets too, stays.
    let part = json!({"webhook": {"url": "http://127.0.0.1:9/out"}, "rate_per_second": null});
    let changed = call(&api, Method::PATCH, "shop-orders", "", Some(&part)).await;
    assert_eq!((changed.status, changed.header("etag")), (200, Some("\"2\"")), "{:?}", changed.body);
    assert_eq!(changed.body["webhook"]["url"], "http://127.0.0.1:9/out");
    assert_eq!(changed.body["webhook"]["signed"], true);
    assert_eq!(changed.body["rate_per_second"], Value::Null);
    assert_eq!(changed.body["concurrency"], 7);

    // To another host no secret goes along by itself.
    let away = json!({"webhook": {"url": "http://127.0.0.2:9/"}});
    let refused = call(&api, Method::PATCH, "shop-orders", "", Some(&away)).await;
    problem(&refused, 422, "invalid");
    let pointers: Vec<&Value> =
        refused.body["errors"].as_array().expect("a list").iter().map(|error| &error["pointer"]).collect();
    assert_eq!(pointers, ["/webhook/secret", "/webhook/headers/authorization"]);

    // Names of headers are the same in upper and lower case; a repeat changes nothing.
    let part = json!({"webhook": {"headers": {"X-TENANT": "mall", "Authorization": null}}});
    for _ in 0..2 {
        let changed = call(&api, Method::PATCH, "shop-orders", "", Some(&part)).await;
        assert_eq!((changed.status, &changed.body["version"]), (200, &json!(3)), "{:?}", changed.body);
        assert_eq!(changed.body["webhook"]["headers"], json!({"x-tenant": "mall"}));
    }

    // A PUT replaces all of it.
    let replaced = put(&api, "shop-orders", &json!({"webhook": {"url": "http://127.0.0.1:9/in"}})).await;
    assert_eq!((replaced.status, &replaced.body["webhook"]["signed"]), (200, &json!(false)));
    assert_eq!(replaced.body["concurrency"], 128, "the value in force");

    made(&api, "a", &json!({"webhook": {"url": "http://127.0.0.1:9/"}})).await;
    let (_, list) = api.get("/v1/destinations").await;
    let names: Vec<&str> = list["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["name"].as_str().expect("a text"))
        .collect();
    assert_eq!(names, ["a", "shop-orders"]);
    assert_eq!(list["items"][1], get(&api, "shop-orders").await);

    let gone = call(&api, Method::DELETE, "a", "", None).await;
    assert_eq!((gone.status, &gone.body["outcome"]), (200, &json!("removed")));
    for method in [Method::GET, Method::DELETE] {
        problem(&call(&api, method, "a", "", None).await, 404, "not_found");
    }
    problem(&call(&api, Method::PATCH, "a", "", Some(&json!({}))).await, 404, "not_found");
    for verb in ["/test", "/pause", "/resume"] {
        problem(&call(&api, Method::POST, "a", verb, None).await, 404, "not_found");
    }
}

async fn only_what_it_was_is_replaced(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let body = json!({"webhook": {"url": "http://127.0.0.1:9/"}});
    made(&api, "a", &body).await;
    let at = |tag: &'static str| [("if-match", tag)];
    for method in [Method::PUT, Method::PATCH] {
        let stale = api.send(method, "/v1/destinations/a", &at("\"7\""), Some(&body)).await;
        problem(&stale, 412, "version_changed");
    }
    let none = api.send(Method::PUT, "/v1/destinations/b", &at("\"1\""), Some(&body)).await;
    problem(&none, 412, "version_changed");
    let none = api.send(Method::PUT, "/v1/destinations/b", &at("*"), Some(&body)).await;
    problem(&none, 412, "version_changed");
    let other = json!({"webhook": {"url": "http://127.0.0.1:9/other"}});
    let known = api.send(Method::PUT, "/v1/destinations/a", &at("\"1\""), Some(&other)).await;
    assert_eq!((known.status, &known.body["version"]), (200, &json!(2)));
    let same = api.send(Method::PUT, "/v1/destinations/a", &at("*"), Some(&other)).await;
    assert_eq!((same.status, &same.body["version"]), (200, &json!(2)), "a repeat");
}

async fn what_is_not_valid_is_refused_by_field(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let hook = json!({"url": "http://127.0.0.1:9/"});
    let stream = json!({"url": "redis://127.0.0.1:9", "stream": "s"});
    for (body, pointer, code) in [
        (json!({}), "", "missing"),
        (json!({"webhook": null}), "", "missing"),
        (json!({"webhook": hook, "kafka": {"brokers": "a:9092", "topic": "t"}}), "", "missing"),
        (
            json!({"kafka": {"brokers": "127.0.0.1,10.0.0.1", "topic": "t"}}),
            "/kafka/brokers",
            "address_refused",
        ),
        (
            json!({"kafka": {"brokers": "169.254.169.254:1", "topic": "t"}}),
            "/kafka/brokers",
            "address_refused",
        ),
        (json!({"kafka": {"brokers": "kafka://127.0.0.1", "topic": "t"}}), "/kafka/brokers", "bad_brokers"),
        (json!({"kafka": {"brokers": "127.0.0.1", "topic": ""}}), "/kafka/topic", "bad_name"),
        (json!({"kafka": {"brokers": "127.0.0.1", "topic": "t", "password": "p"}}), "/kafka/user", "missing"),
        (
            json!({"kafka": {"brokers": "a.example", "topic": "t", "user": "u", "password": "p"}}),
            "/kafka/mechanism",
            "password_in_clear",
        ),
        (json!({"nats": {"url": "nats://t0ken@127.0.0.1", "subject": "a"}}), "/nats/url", "password_needed"),
        (
            json!({"kafka": {"brokers": "127.0.0.1", "topic": "t", "user": "u", "mechanism": "x"}}),
            "/kafka/mechanism",
            "wrong_type",
        ),
        (json!({"webhook": hook, "redis_stream": stream}), "", "missing"),
        (json!({"webhook": hook, "amqp": {"url": "amqp://127.0.0.1", "exchange": "x"}}), "", "missing"),
        (json!({"redis_stream": {"url": "http://a/", "stream": "s"}}), "/redis_stream/url", "bad_url"),
        (
            json!({"redis_stream": {"url": "redis://10.0.0.1", "stream": "s"}}),
            "/redis_stream/url",
            "address_refused",
        ),
        (
            json!({"redis_stream": {"url": "redis://169.254.169.254", "stream": "s"}}),
            "/redis_stream/url",
            "address_refused",
        ),
        (
            json!({"redis_stream": {"url": "redis://127.0.0.1", "stream": ""}}),
            "/redis_stream/stream",
            "bad_name",
        ),
        (
            json!({"redis_stream": {"url": "redis://127.0.0.1", "stream": "s", "max_len": 0}}),
            "/redis_stream/max_len",
            "range",
        ),
        (json!({"redis_stream": {"url": "redis://127.0.0.1"}}), "/redis_stream", "wrong_type"),
        (json!({"amqp": {"url": "amqp://10.0.0.1", "exchange": "x"}}), "/amqp/url", "address_refused"),
        (json!({"amqp": {"url": "redis://127.0.0.1", "exchange": "x"}}), "/amqp/url", "bad_url"),
        (json!({"amqp": {"url": "amqp://127.0.0.1", "exchange": ""}}), "/amqp/routing_key", "bad_name"),
        (json!({"amqp": {"url": "amqp://127.0.0.1", "exchange": "a\n"}}), "/amqp/exchange", "bad_name"),
        (json!({"amqp": {"url": "amqp://127.0.0.1", "queue": "q"}}), "/amqp/queue", "unknown_field"),
        (json!({"mqtt": {"url": "mqtt://10.0.0.1", "topic": "a"}}), "/mqtt/url", "address_refused"),
        (json!({"mqtt": {"url": "mqtt://127.0.0.1", "topic": "a/+"}}), "/mqtt/topic", "bad_name"),
        (json!({"mqtt": {"url": "mqtt://127.0.0.1", "topic": "a", "qos": 0}}), "/mqtt/qos", "range"),
        (json!({"mqtt": {"url": "mqtt://127.0.0.1", "topic": "a", "qos": 300}}), "/mqtt/qos", "wrong_type"),
        (json!({"mqtt": {"url": "mqtt://127.0.0.1", "topic": "a", "version": 4}}), "/mqtt/version", "range"),
        (json!({"nats": {"url": "nats://10.0.0.1", "subject": "a"}}), "/nats/url", "address_refused"),
        (json!({"nats": {"url": "nats://169.254.169.254", "subject": "a"}}), "/nats/url", "address_refused"),
        (json!({"nats": {"url": "http://127.0.0.1", "subject": "a"}}), "/nats/url", "bad_url"),
        (json!({"nats": {"url": "nats://127.0.0.1", "subject": "a.*"}}), "/nats/subject", "bad_name"),
        (
            json!({"nats": {"url": "nats://127.0.0.1", "subject": "a", "jetstream": 1}}),
            "/nats/jetstream",
            "wrong_type",
        ),
        (json!({"webhook": {"url": "ftp://a/"}}), "/webhook/url", "bad_webhook"),
        (json!({"webhook": {"url": "http://10.0.0.1/"}}), "/webhook/url", "address_refused"),
        (json!({"webhook": {"url": "http://169.254.169.254/"}}), "/webhook/url", "address_refused"),
        (json!({"webhook": {"url": "http://127.0.0.1/", "secret": "!"}}), "/webhook/secret", "bad_webhook"),
        (
            json!({"webhook": {"url": "http://127.0.0.1/", "headers": {"host": "x"}}}),
            "/webhook/headers/host",
            "bad_webhook",
        ),
        (
            json!({"webhook": {"url": "http://127.0.0.1/", "headers": {"X-A": "1", "x-a": "2"}}}),
            "/webhook/headers",
            "bad_webhook",
        ),
        (json!({"webhook": hook, "concurrency": 0}), "/concurrency", "range"),
        (json!({"webhook": hook, "concurrency": -1}), "/concurrency", "wrong_type"),
        (json!({"webhook": hook, "rate_per_second": 0}), "/rate_per_second", "range"),
        (json!({"webhook": hook, "rate_per_second": 1_000_000}), "/rate_per_second", "range"),
        (json!({"webhook": hook, "timeout": "PT2M"}), "/timeout", "range"),
        (json!({"webhook": hook, "timeout": "soon"}), "/timeout", "bad_duration"),
        (json!({"webhook": hook, "retry": {"attempts": 0}}), "/retry/attempts", "range"),
        (json!({"webhook": hook, "colour": "red"}), "/colour", "unknown_field"),
    ] {
        let answer = put(&api, "a", &body).await;
        problem(&answer, 422, "invalid");
        let error = &answer.body["errors"][0];
        assert_eq!(
            (&error["pointer"], &error["code"]),
            (&json!(pointer), &json!(code)),
            "{body}: {:?}",
            answer.body
        );
    }
    for name in ["a%20b", ".a"] {
        problem(&put(&api, name, &json!({"webhook": hook})).await, 422, "invalid");
    }
    problem(&api.send_bytes(Method::PUT, "/v1/destinations/a", &[], "{").await, 400, "malformed");
    problem(&api.send_bytes(Method::PATCH, "/v1/destinations/a", &[], "[]").await, 422, "invalid");
    made(&api, "a", &json!({"webhook": hook})).await;
    let emptied = call(&api, Method::PATCH, "a", "", Some(&json!({"webhook": null}))).await;
    problem(&emptied, 422, "invalid");
    assert_eq!(get(&api, "a").await["version"], 1, "nothing was changed");
}

async fn a_test_says_what_came_back(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/sorry", |_| Reply::status(418).body("a teapot"));
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/ok"), "secret": "whsec_c2VjcmV0"}})).await;
    let test = async || call(&api, Method::POST, "a", "/test", None).await;
    let fine = test().await;
    assert_eq!((fine.status, &fine.body["result"], &fine.body["status"]), (200, &json!("ok"), &json!(200)));
    let got = &receiver.received()[0];
    let header = |name: &str| got.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("ce-type"), Some("mainspring.test.v1"));
    assert_eq!(header("ce-subject"), Some("a"));
    assert_eq!(header("ce-id"), fine.body["delivery_id"].as_str());
    assert!(header("webhook-signature").is_some() && header("ce-generation").is_none());

    // Also while it is paused, and when it fails.
    super::set(&api, "a", "pause").await;
    put(&api, "a", &json!({"webhook": {"url": receiver.url("/sorry")}})).await;
    let sorry = test().await;
    let told = ["result", "status", "reply", "detail"].map(|field| sorry.body[field].clone());
    assert_eq!(told, [json!("failed"), json!(418), json!("a teapot"), json!("answered 418 I'm a teapot")]);
    put(&api, "a", &json!({"webhook": {"url": "http://127.0.0.1:9/"}})).await;
    assert_eq!(test().await.body["result"], "refused");
    assert_eq!(api.ledger().await.registered, 0, "a test is no timer");
}

async fn one_in_use_is_not_removed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    made(&api, "a", &json!({"webhook": {"url": "http://127.0.0.1:9/"}})).await;
    for id in ["x", "y"] {
        assert_eq!(api.put(id, &later("a")).await.0, 201);
    }
    let refused = call(&api, Method::DELETE, "a", "", None).await;
    problem(&refused, 409, "in_use");
    assert!(
        refused.body["detail"].as_str().expect("a text").starts_with("2 live timers"),
        "{:?}",
        refused.body
    );
    assert_eq!(api.delete("x").await.0, 200);
    assert_eq!(api.patch("y", &json!({"target": {"webhook": {"url": "http://127.0.0.1:9/"}}})).await.0, 200);
    assert_eq!(call(&api, Method::DELETE, "a", "", None).await.status, 200);
    assert_eq!(api.timer("x").await.0, 200, "what has ended stays readable");
    assert_eq!(
        api.put("x", &later("a")).await.0,
        200,
        "the same content again, though its destination is gone"
    );
}

/// A registration and a removal at the same time: never both.
async fn a_registration_and_a_removal_exclude_each_other(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let body = json!({"webhook": {"url": "http://127.0.0.1:9/"}});
    let (mut registered, mut removed) = (0, 0);
    for round in 0..60 {
        let name = format!("d{round}");
        made(&api, &name, &body).await;
        let ids: Vec<String> = (0..4).map(|n| format!("{name}-{n}")).collect();
        let timer = later(&name);
        let registrations = futures::future::join_all(ids.iter().map(|id| api.put(id, &timer)));
        let (answers, removal) = tokio::join!(registrations, call(&api, Method::DELETE, &name, "", None));
        let taken = answers.iter().filter(|(status, _)| *status == 201).count();
        match removal.status {
            200 => {
                removed += 1;
                assert_eq!(taken, 0, "{name} was removed and has timers");
                assert!(answers.iter().all(|(status, body)| *status == 422 && body["errors"][0]["code"] == "no_destination"));
            }
            409 => registered += 1,
            other => panic!("{other}: {:?}", removal.body),
        }
    }
    println!("{registered} times in use, {removed} times removed");
}

on_both!(
    one_is_made_shown_changed_and_removed,
    only_what_it_was_is_replaced,
    what_is_not_valid_is_refused_by_field,
    a_test_says_what_came_back,
    one_in_use_is_not_removed,
    a_registration_and_a_removal_exclude_each_other,
);

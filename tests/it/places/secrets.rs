//! The secrets of destinations: sealed in the store, and a node without the key does not start.

use base64::Engine;
use serde_json::json;

use super::{LONG, get, made, now, put};
use crate::support::{
    Node, NodeBuilder, Receiver, ask_sql, fresh_database, in_state, on_both, problem, run_sql,
};

const KEY: &str = "MAINSPRING__SERVER__SECRETS_KEY";

fn key(byte: u8) -> String {
    base64::engine::general_purpose::STANDARD.encode([byte; 32])
}

async fn without_a_key_only_this_machine_may_have_secrets(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let secret = json!({"webhook": {"url": "https://shop.example/in", "secret": "whsec_c2VjcmV0"}});
    let header = json!({"webhook": {"url": "https://shop.example/in", "headers": {"authorization": "t0p"}}});
    for body in [secret, header] {
        let answer = put(&api, "a", &body).await;
        problem(&answer, 422, "invalid");
        let error = &answer.body["errors"][0];
        assert_eq!(error["code"], "no_secrets_key");
        assert!(error["detail"].as_str().expect("a text").contains("server.secrets_key"), "{error}");
    }
    made(&api, "a", &json!({"webhook": {"url": "https://shop.example/in", "headers": {"x-tenant": "shop"}}}))
        .await;
    made(&api, "here", &json!({"webhook": {"url": "http://127.0.0.1:9/", "secret": "whsec_c2VjcmV0"}})).await;
}

#[tokio::test]
async fn they_are_sealed_in_the_store_and_keys_can_be_changed() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let start = |keys: String| Node::builder().cold(&url).env(KEY, keys);
    let hook = json!({"url": receiver.url("/ok"), "secret": "whsec_c2VjcmV0LXRleHQ=", "headers": {"authorization": "t0p-secret"}});
    let kept = "SELECT encode(secrets, 'escape') || settings FROM destinations";

    // Before there is a key, one on this machine has its secrets in the clear.
    let node = start(String::new()).start_ready().await;
    made(&node.api(), "a", &json!({"webhook": hook})).await;
    assert!(ask_sql(&url, kept).await.contains("t0p-secret"));
    node.sigterm().await;

    // With the first key they are sealed, with the next one sealed anew, and the old one is not needed any more.
    let mut seen = Vec::new();
    for keys in [key(1), format!("{},{}", key(2), key(1)), key(2)] {
        let node = start(keys).start_ready().await;
        let api = node.api();
        assert_eq!(get(&api, "a").await["webhook"]["signed"], true);
        let id = format!("t{}", seen.len());
        assert_eq!(api.put(&id, &now("a")).await.0, 201);
        in_state(&api, &id, "delivered").await;
        assert_eq!(receiver.of(&id)[0].headers["authorization"], "t0p-secret");
        let stored = ask_sql(&url, kept).await;
        assert!(!stored.contains("t0p") && !stored.contains("c2Vj"), "{stored}");
        seen.push(stored);
        node.sigterm().await;
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2]);

    // Without it, or with another, a node does not start, and says what it lacks.
    for keys in [String::new(), key(1)] {
        let node = start(keys).start();
        let status = node.wait_exit(LONG).await.expect("it ends by itself");
        assert_eq!(status.code(), Some(1));
        let log = node.log();
        assert!(
            log.contains("server.secrets_key") && log.contains("a: they were sealed under another key"),
            "{log}"
        );
    }
}

/// One damaged row is held, and can be put anew; the others work.
/// Those of timers and schedules, which stand in their rows.
#[tokio::test]
async fn those_of_inline_webhooks_are_sealed_and_sign_what_is_sent() {
    const SECRET: &str = "whsec_c2VjcmV0LXRleHQ=";
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let start = |keys: String| Node::builder().cold(&url).env(KEY, keys);
    let later = |url: &str| json!({"delay": "PT1H", "owner": "o", "target": {"webhook": {"url": url, "secret": SECRET}}});
    let signed = |id: &str| {
        let one = &receiver.of(id)[0];
        let oracle = standardwebhooks::Webhook::new(SECRET).expect("a secret");
        oracle.verify(&one.body, &one.headers).expect("signed with it");
    };
    let node = start(key(1)).start_ready().await;
    let api = node.api();
    for id in ["first", "second", "patched"] {
        let body =
            if id == "patched" { later("http://127.0.0.1:9/other") } else { later(&receiver.url("/ok")) };
        assert_eq!(api.put(id, &body).await.0, 201);
        assert_eq!(api.put(id, &body).await.0, 200, "the same request again");
    }
    let target = later(&receiver.url("/ok"))["target"].clone();
    assert_eq!(api.patch("patched", &json!({"target": target})).await.0, 200);
    let rule =
        json!({"every": "PT1H", "start_at": "2036-01-01T00:00:00Z", "target": target, "data": {"n": 1.50}});
    let put = async |rule: &serde_json::Value| {
        api.send(reqwest::Method::PUT, "/v1/schedules/hourly", &[], Some(rule)).await
    };
    assert_eq!(put(&rule).await.status, 201);
    let same = put(&rule).await;
    assert_eq!((same.status, &same.body["version"]), (200, &json!(1)), "{}", same.body);
    let changed =
        api.send(reqwest::Method::PATCH, "/v1/schedules/hourly", &[], Some(&json!({"every": "PT2H"}))).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let stored = "SELECT string_agg(target, ' ') || (SELECT string_agg(content || request, ' ') FROM schedules) FROM timers";
    let text = ask_sql(&url, stored).await;
    assert!(text.matches("sealed:").count() >= 5 && !text.contains("c2Vj"), "{text}");
    let same = "SELECT count(DISTINCT target)::text FROM timers WHERE schedule IS NULL";
    assert_eq!(ask_sql(&url, same).await, "1", "timers with the same target have the same text");
    assert_eq!(api.timer("first").await.1["target"]["webhook"]["signed"], true);
    let bears = ask_sql(&url, "SELECT bears::text FROM store").await;
    assert_eq!(
        bears,
        mainspring_migrations::WITH_NAMESPACES.to_string(),
        "a node that cannot open them does not come in"
    );
    let ran = api.send(reqwest::Method::POST, "/v1/schedules/hourly/run", &[], None).await;
    assert_eq!(ran.status, 201, "{}", ran.body);
    let occurrence = ran.body["id"].as_str().expect("an id").to_owned();
    for id in ["first", "patched"] {
        assert_eq!(api.post(&format!("/v1/timers/{id}/fire"), &json!({})).await.0, 202);
    }
    for id in ["first", "patched", occurrence.as_str()] {
        in_state(&api, id, "delivered").await;
        signed(id);
    }
    node.sigterm().await;

    // A node with another key sends nothing that is not signed; with both it goes on.
    let node = start(key(2)).start_ready().await;
    let api = node.api();
    assert_eq!(api.post("/v1/timers/second/fire", &json!({})).await.0, 202);
    crate::support::eventually("it is refused", LONG, async || {
        let (_, body) = api.get("/v1/timers/second/attempts").await;
        let refused =
            body["items"][0]["detail"].as_str().is_some_and(|text| text.contains("server.secrets_key"));
        if refused { Ok(()) } else { Err(body) }
    })
    .await;
    assert_eq!(receiver.of("second").len(), 0);
    let unreadable =
        api.send(reqwest::Method::PATCH, "/v1/schedules/hourly", &[], Some(&json!({"every": "PT3H"}))).await;
    problem(&unreadable, 422, "invalid");
    node.sigterm().await;
    let node = start(format!("{},{}", key(2), key(1))).start_ready().await;
    in_state(&node.api(), "second", "delivered").await;
    signed("second");
}

#[tokio::test]
async fn a_damaged_secret_keeps_no_node_from_its_work() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let mut node = Node::builder().cold(&url).env(KEY, key(1)).start_ready().await;
    let hook = json!({"url": receiver.url("/ok"), "secret": "whsec_c2VjcmV0"});
    for name in ["whole", "damaged"] {
        made(&node.api(), name, &json!({"webhook": hook})).await;
    }
    let damage = "UPDATE destinations SET secrets = set_byte(secrets, 30, 255 - get_byte(secrets, 30)) WHERE name = 'damaged'";
    run_sql(&url, damage).await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    for name in ["whole", "damaged"] {
        assert_eq!(api.put(name, &now(name)).await.0, 201);
    }
    in_state(&api, "whole", "delivered").await;
    let shown = get(&api, "damaged").await;
    assert_eq!((&shown["kind"], &shown["webhook"]), (&json!("webhook"), &json!(null)));
    let (_, explained) = api.get("/v1/timers/damaged/explain").await;
    assert!(
        explained["waiting_for"].as_str().expect("a reason").contains("destination `damaged`"),
        "{explained}"
    );
    assert_eq!(put(&api, "damaged", &json!({"webhook": hook})).await.status, 200);
    in_state(&api, "damaged", "delivered").await;
}

#[tokio::test]
async fn a_key_that_is_none_is_told_by_its_setting() {
    let node = Node::builder().env(KEY, "short").start();
    let status = node.wait_exit(LONG).await.expect("it ends by itself");
    assert!(!status.success());
    let log = node.log();
    assert!(log.contains("server.secrets_key") && log.contains("openssl rand -base64 32"), "{log}");
    assert!(!log.contains("short"), "{log}");
}

on_both!(without_a_key_only_this_machine_may_have_secrets);

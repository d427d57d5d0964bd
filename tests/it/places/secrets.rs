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

//! Several nodes: what one is told holds on the others, from its answer on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use super::{by, call, errors, put, wrong};
use crate::support::{Api, Node, eventually, fresh_database};

async fn two() -> (Node, Node) {
    let url = fresh_database().await;
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    tokio::join!(node("a"), node("b"))
}

#[tokio::test]
async fn a_change_holds_on_every_node_from_its_answer_on() {
    let (a, b) = two().await;
    let (a, b) = (a.api(), b.api());
    let only = |version: u32| json!({"schema": {"properties": {"v": {"const": version}}}, "defaults": {"seen": version}});
    for version in 1..20 {
        put(&a, "t", &only(version)).await;
        // Both know the version before, and each has its own reason to look again: what fitted does not, and what did not
        // fit does.
        let (status, body) = b.put(&format!("old{version}"), &by("t", json!({"v": version - 1}))).await;
        assert_eq!((status, errors(&body)), (422, wrong(&[("/data/v", "const")])));
        let (status, body) = b.put(&format!("new{version}"), &by("t", json!({"v": version}))).await;
        assert_eq!((status, &body["data"]), (201, &json!({"seen": version, "v": version})));
        let (status, body) = b.put(&format!("any{version}"), &by("t", json!({}))).await;
        assert_eq!((status, &body["data"]), (201, &json!({"seen": version})), "the defaults of now");
        let (status, body) = b.patch("any1", &json!({"data": {"n": version}})).await;
        assert_eq!((status, &body["data"]), (200, &json!({"seen": version, "n": version})));
    }
    // One that is removed is gone everywhere, and one that is made again is another.
    put(&a, "u", &json!({"schema": {"required": ["old"]}})).await;
    assert_eq!(b.put("u1", &by("u", json!({"old": 1}))).await.0, 201);
    assert_eq!(b.delete("u1").await.0, 200);
    assert_eq!(call(&a, Method::DELETE, "u", None).await.status, 200);
    let (status, body) = b.put("u2", &by("u", json!({"old": 1}))).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/template", "unknown_template")])));
    put(&a, "u", &json!({"schema": {"required": ["new"]}})).await;
    let (status, body) = b.put("u3", &by("u", json!({"old": 1}))).await;
    assert_eq!((status, errors(&body)), (422, wrong(&[("/data/new", "required")])));
}

/// While callers register as fast as they can, on two nodes, a change is not kept waiting; and whoever begins after its
/// answer is served by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_amid_registrations_is_made_and_holds() {
    let (a, b) = two().await;
    let apis = [a.api(), b.api()];
    let says = |version: u32| json!({"schema": true, "defaults": {"seen": version}});
    put(&apis[0], "t", &says(0)).await;
    let (answered, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let all_made = Arc::new(AtomicU64::new(0));
    let registering = (0..8).map(|caller: usize| {
        let (api, answered, stop): (Api, _, _) =
            (apis[caller % 2].clone(), Arc::clone(&answered), Arc::clone(&stop));
        let all_made = Arc::clone(&all_made);
        tokio::spawn(async move {
            let mut made = 0;
            while !stop.load(Ordering::SeqCst) {
                let before = answered.load(Ordering::SeqCst);
                let (status, body) =
                    api.put(&format!("c{caller}-{made}"), &by("t", json!({"n": made}))).await;
                assert_eq!(status, 201, "{body}");
                let seen = body["data"]["seen"].as_u64().expect("a number");
                assert!(seen >= u64::from(before), "version {before} was answered, and {seen} was taken");
                made += 1;
                all_made.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let registering: Vec<_> = registering.collect();
    for version in 1..=30 {
        put(&apis[version as usize % 2], "t", &says(version)).await;
        answered.store(version, Ordering::SeqCst);
        let so_far = all_made.load(Ordering::SeqCst);
        eventually("callers are served by it", Duration::from_secs(20), async || {
            let made = all_made.load(Ordering::SeqCst);
            if made > so_far + 8 { Ok(()) } else { Err(made) }
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    for caller in registering {
        caller.await.expect("no assertion failed");
    }
    assert_eq!(apis[0].ledger().await.registered, all_made.load(Ordering::SeqCst));
}

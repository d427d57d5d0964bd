//! Operations on many timers: live ones are cancelled, moved, fired, paused and resumed, and dead ones run again.

mod crash;
mod live;
mod redrive;
mod refused;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Node, Receiver, Reply, eventually, fresh_database, rfc3339, wall_ms};

/// Long enough for a busy machine; nothing takes it unless it is broken.
const LONG: Duration = Duration::from_secs(60);

/// A receiver that refuses for good until it is mended.
struct Mendable {
    receiver: Receiver,
    is_mended: Arc<AtomicBool>,
}

impl Mendable {
    async fn start() -> Self {
        let (receiver, is_mended) = (Receiver::start().await, Arc::new(AtomicBool::new(false)));
        let mended = Arc::clone(&is_mended);
        receiver.on("/in", move |_| match mended.load(Ordering::SeqCst) {
            true => Reply::ok(),
            false => Reply::status(410),
        });
        Self { receiver, is_mended }
    }

    fn mend(&self) {
        self.is_mended.store(true, Ordering::SeqCst);
    }

    /// Makes a destination that leads here.
    async fn destination(&self, api: &Api, name: &str) {
        let body = json!({"webhook": {"url": self.receiver.url("/in")}});
        let made = api.send(Method::PUT, &format!("/v1/destinations/{name}"), &[], Some(&body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
}

fn for_destination(name: &str) -> Value {
    json!({"delay": "PT0S", "target": {"destination": name}})
}

/// Registers `count` timers like this one that a receiver refuses, under ids with this prefix, and waits until they are
/// dead. A destination that refuses is tried one at a time, so only few of one.
async fn dead(api: &Api, timer: &Value, prefix: &str, count: usize) {
    let before = api.ledger().await.dead;
    let with_id = |n: usize| {
        let mut timer = timer.clone();
        timer["id"] = json!(format!("{prefix}-{n}"));
        timer
    };
    let items: Vec<Value> = (0..count).map(with_id).collect();
    let (status, answer) = api.post("/v1/timers/batch", &json!({"timers": items})).await;
    assert_eq!(status, 200, "{answer}");
    eventually("they die", LONG, async || {
        let ledger = api.ledger().await;
        if ledger.dead == before + count as u64 { Ok(()) } else { Err(ledger) }
    })
    .await;
}

/// Begins a re-drive of a destination; returns the operation.
async fn redrive(api: &Api, name: &str, since: i64) -> Value {
    let path = format!("/v1/destinations/{name}/redrive");
    begun(api, api.send(Method::POST, &path, &[], Some(&json!({"since": rfc3339(since)}))).await)
}

/// Begins an operation.
async fn begin(api: &Api, filter: Value, dry_run: bool) -> Value {
    let body = json!({"action": "redrive", "filter": filter, "dry_run": dry_run});
    begun(api, api.send(Method::POST, "/v1/operations", &[], Some(&body)).await)
}

fn begun(_: &Api, answer: Answer) -> Value {
    assert_eq!(answer.status, 202, "{}", answer.body);
    let id = answer.body["id"].as_str().expect("an id");
    assert_eq!(answer.header("location"), Some(format!("/v1/operations/{id}").as_str()));
    answer.body
}

async fn shown(api: &Api, operation: &Value) -> Value {
    let id = operation["id"].as_str().expect("an id");
    let (status, body) = api.get(&format!("/v1/operations/{id}")).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// Waits until an operation has ended by itself.
async fn ended(api: &Api, operation: &Value) -> Value {
    eventually("the operation ends", LONG, async || {
        let now = shown(api, operation).await;
        if now["state"] == "done" { Ok(now) } else { Err(now) }
    })
    .await
}

/// Two nodes: the one that works on the operation that `begin` begins is killed. Returns the other one, what `begin` keeps,
/// and the operation once it has ended.
async fn ended_by_the_other<T>(begin: impl AsyncFnOnce(&Api) -> (T, Value)) -> (Node, T, Value) {
    let url = fresh_database().await;
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    let (a, b) = tokio::join!(node("a"), node("b"));
    let (kept, operation) = begin(&a.api()).await;
    // Whichever works on it: both may.
    let (victim, heir) = match shown(&a.api(), &operation).await["node"].as_str() {
        Some("a") => (a, b),
        _ => (b, a),
    };
    victim.kill9().await;
    let done = ended(&heir.api(), &operation).await;
    (heir, kept, done)
}

/// What an operation came to: matched, done, and refused by reason.
fn counts(operation: &Value) -> (i64, i64, &Value) {
    let number = |name: &str| operation[name].as_i64().expect("a number");
    (number("matched"), number("done"), &operation["refused"])
}

/// A moment before everything that a test does.
fn before() -> i64 {
    wall_ms() - 1000
}

//! Several nodes on one PostgreSQL and one Redis: who has which shards, how they are handed over, and what
//! becomes of timers meanwhile.

mod hand_over;
mod isolation;
mod shares;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Api, Node, NodeBuilder, Verdict, rfc3339, to, wall_ms};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(40);

/// A node of a fleet: all share the store and the Redis of the test run.
fn node(name: &str, cold: &str) -> NodeBuilder {
    Node::builder().name(name).cold(cold)
}

/// A steady stream of timers for nodes that come and go: a batch that one does not take is registered at the next.
struct Stream {
    stop: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

impl Stream {
    /// Registers so many a second, `NAME0`, `NAME1`, …, each due 0.8 to 2.3 s after it is registered first.
    fn start(name: &'static str, apis: Vec<Api>, url: String, per_second: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut beats = tokio::time::interval(Duration::from_millis(100));
            let (mut count, batch) = (0, per_second / 10);
            while !stopped.load(Ordering::SeqCst) {
                beats.tick().await;
                let now = wall_ms();
                let timer = |n: usize| {
                    let due = now + 800 + (n * 1500 / batch) as i64;
                    json!({"id": format!("{name}{}", count + n), "fire_at": rfc3339(due), "target": to(&url),
                        "retry": {"attempts": 20, "first": "PT0.1S", "cap": "PT1S"}})
                };
                let timers: Vec<Value> = (0..batch).map(timer).collect();
                register(&apis, count / batch, &json!({ "timers": timers })).await;
                count += batch;
            }
            count
        });
        Self { stop, task }
    }

    /// Stops registering; returns how many timers were acknowledged.
    async fn end(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("every timer was taken by some node")
    }
}

/// Registers a batch at one of the nodes; whether another had it already is not known when its answer was lost.
async fn register(apis: &[Api], turn: usize, batch: &Value) {
    for api in apis.iter().cycle().skip(turn % apis.len()).take(100 * apis.len()) {
        match api.try_send(Method::POST, "/v1/timers/batch", &[], Some(batch)).await {
            Ok(answer) if answer.status == 200 => {
                let results = answer.body["results"].as_array().expect("results").clone();
                let taken = |result: &&Value| matches!(result["status"].as_u64(), Some(200 | 201));
                assert_eq!(results.iter().filter(taken).count(), results.len(), "{results:?}");
                return;
            }
            Ok(answer) => assert_eq!(answer.status, 503, "{:?}", answer.body),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    panic!("no node takes timers");
}

/// Waits until so many timers of a stream have arrived, and judges them.
async fn verdict(receiver: &crate::support::Receiver, wanted: usize) -> Verdict {
    let all = receiver
        .wait_until(
            |all| {
                all.len() >= wanted
                    && all.iter().map(|one| &one.timer).collect::<HashSet<_>>().len() >= wanted
            },
            LONG,
        )
        .await;
    Verdict::on(&all)
}

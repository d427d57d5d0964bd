//! A steady stream of timers, and the verdict on what became of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Api, Received, to, wall_ms};

/// How often a batch of the stream is registered.
const BEAT: Duration = Duration::from_millis(100);

/// A timer of the stream is due between these many milliseconds after it was registered.
const AHEAD_MS: std::ops::Range<i64> = 800..2300;

/// `t` in RFC 3339.
pub fn rfc3339(ms: i64) -> String {
    mainspring::model::time::UnixMs::new(ms).rfc3339()
}

/// Registers timers in batches; every one of them must be taken.
pub async fn register(api: &Api, timers: &[Value]) {
    for chunk in timers.chunks(1000) {
        let (status, answer) = api.post("/v1/timers/batch", &json!({ "timers": chunk })).await;
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().expect("results");
        let refused = results.iter().find(|result| result["status"] != 201);
        assert!(results.len() == chunk.len() && refused.is_none(), "{refused:?}");
    }
}

/// Timers that are registered, and fall due, at a steady rate, until told to stop: `s0`, `s1`, … Every
/// registration must be taken.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(usize, Duration)>,
}

impl Traffic {
    /// Starts to register at these nodes in turn.
    pub fn start(apis: Vec<Api>, url: String, per_second: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(write(apis, url, per_second / 10, Arc::clone(&stop)));
        Self { stop, task }
    }

    /// Registers nothing more; returns how many were acknowledged, and the longest that a batch took.
    pub async fn end(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("every registration was taken")
    }
}

async fn write(apis: Vec<Api>, url: String, batch: usize, stop: Arc<AtomicBool>) -> (usize, Duration) {
    let mut beats = tokio::time::interval(BEAT);
    let (mut acknowledged, mut slowest) = (0, Duration::ZERO);
    for api in apis.iter().cycle() {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        beats.tick().await;
        let (now, step) = (wall_ms(), (AHEAD_MS.end - AHEAD_MS.start) / batch as i64);
        let timer = |n: usize| {
            let due = now + AHEAD_MS.start + n as i64 * step;
            json!({"id": format!("s{}", acknowledged + n), "fire_at": rfc3339(due), "target": to(&url),
                "retry": {"attempts": 8, "first": "PT0.1S", "cap": "PT1S"}})
        };
        let timers: Vec<Value> = (0..batch).map(timer).collect();
        let asked = Instant::now();
        register(api, &timers).await;
        slowest = slowest.max(asked.elapsed());
        acknowledged += batch;
    }
    (acknowledged, slowest)
}

/// What a receiver saw of the timers of a stream, or of any others that were to arrive once.
#[derive(Debug)]
pub struct Verdict {
    pub arrived: usize,
    pub early: usize,
    pub duplicates: usize,
    /// Due and arrival of each, by its first arrival.
    times: Vec<(i64, i64)>,
}

impl Verdict {
    pub fn on(received: &[Received]) -> Self {
        let mut first: HashMap<&str, &Received> = HashMap::new();
        for one in received {
            first.entry(&one.timer).or_insert(one);
        }
        let times = first.values().map(|one| (one.at_ms - one.lateness_ms(), one.at_ms)).collect();
        Self {
            arrived: first.len(),
            early: received.iter().filter(|one| one.lateness_ms() < 0).count(),
            duplicates: received.len() - first.len(),
            times,
        }
    }

    /// Every one of `wanted` timers arrived, once and not early.
    #[track_caller]
    pub fn is_clean(&self, wanted: usize) {
        let seen = (self.arrived, self.early, self.duplicates);
        assert_eq!(seen, (wanted, 0, 0), "of {wanted}: arrived, early, duplicates");
    }

    /// The most that a timer due from one moment until the other was late, in milliseconds; 0 without any.
    pub fn latest_ms(&self, due: std::ops::Range<i64>) -> i64 {
        let late = self.times.iter().filter(|(at, _)| due.contains(at)).map(|(at, arrived)| arrived - at);
        late.max().unwrap_or(0)
    }
}

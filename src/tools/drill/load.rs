//! The callers of a drill: they register, cancel and move timers as planned, and note every call.
//!
//! Every timer has one caller, which makes one call at a time, to any node. A call that is not answered may or may
//! not have happened; the caller makes it again, to another node, until it is answered or the drill gives up.

mod recurring;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::history::{Answer, Ask, Call, Micros, Recorder};
use super::plan::{Behaviour, FollowUp, GRACE_MS, MERGE_WINDOW_MS, Planned};
use super::receiver::Receivers;
use super::wait_until;
use crate::clock::wall_us;
use crate::model::priority::Priority;
use crate::model::time::UnixMs;

/// How long a caller waits for an answer; a node that is paused gives none.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits before it calls again, at first and at most. Thousands of calls at once would take the
/// processors from the nodes that recover.
const AGAIN: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(1000)];
/// Calls under way at once.
const CALLS: usize = 256;
/// Timers in a batch of those that only fill the window.
const BATCH: usize = 1000;
/// Batches under way at once.
const BATCHES: usize = 4;

/// What the id of a timer begins with, before its number.
const ID: &str = "drill-";

/// The callers.
pub struct Callers {
    http: Client,
    /// The nodes' addresses, `http://host:port`.
    nodes: Vec<String>,
    recorder: Arc<Recorder>,
    receivers: Arc<Receivers>,
    /// Destinations at brokers.
    destinations: Vec<String>,
    calls: Semaphore,
    turn: AtomicU64,
    /// Cancelled: no call is made again.
    give_up: CancellationToken,
}

impl Callers {
    /// Callers of these nodes, who know these destinations.
    pub fn new(
        nodes: Vec<String>,
        recorder: Arc<Recorder>,
        receivers: Arc<Receivers>,
        destinations: Vec<String>,
    ) -> anyhow::Result<Arc<Self>> {
        let http = Client::builder()
            .no_proxy()
            .timeout(CALL_TIMEOUT)
            .connect_timeout(Duration::from_secs(1))
            .pool_max_idle_per_host(64)
            .tcp_nodelay(true)
            .build()
            .context("the HTTP client cannot be made")?;
        let (calls, turn, give_up) = (Semaphore::new(CALLS), AtomicU64::new(0), CancellationToken::new());
        Ok(Arc::new(Self { http, nodes, recorder, receivers, destinations, calls, turn, give_up }))
    }

    /// Makes the calls of a plan, which begins now; returns when the last one is answered or given up.
    pub async fn run(self: &Arc<Self>, plan: &[Planned], began_us: Micros) {
        let tasks = TaskTracker::new();
        for (number, planned) in plan.iter().enumerate() {
            wait_until(began_us + planned.asked_at * 1000).await;
            let (this, planned) = (Arc::clone(self), *planned);
            tasks.spawn(async move { this.one(number as u32, planned, began_us).await });
        }
        tasks.close();
        tasks.wait().await;
    }

    /// From now on no call is made again.
    pub fn give_up(&self) {
        self.give_up.cancel();
    }

    async fn one(&self, number: u32, planned: Planned, began_us: Micros) {
        let due_ms = began_us / 1000 + planned.due_at;
        let body = self.timer(number, due_ms, &planned);
        let done = self.ask(number, Ask::Register { due_ms }, Method::PUT, Some(&body)).await;
        let (Answer::Done { .. }, Some((at, follow_up))) = (done, planned.follow_up) else { return };
        wait_until(began_us + at * 1000).await;
        match follow_up {
            FollowUp::Cancel => self.ask(number, Ask::Cancel, Method::DELETE, None).await,
            FollowUp::Move(ahead) => {
                let due_ms = wall_us() / 1000 + ahead;
                let body = json!({ "fire_at": UnixMs::new(due_ms).rfc3339() });
                self.ask(number, Ask::Move { due_ms }, Method::PATCH, Some(&body)).await
            }
        };
    }

    /// Registers a timer for a queue, and cancels it at a later moment if there is one.
    pub async fn task(&self, number: u32, due_ms: i64, timer: &Value, cancel_us: Option<Micros>) {
        let done = self.ask(number, Ask::Register { due_ms }, Method::PUT, Some(timer)).await;
        let (Answer::Done { .. }, Some(at_us)) = (done, cancel_us) else { return };
        wait_until(at_us).await;
        self.ask(number, Ask::Cancel, Method::DELETE, None).await;
    }

    /// Makes one call until it is answered.
    async fn ask(&self, timer: u32, ask: Ask, method: Method, body: Option<&Value>) -> Answer {
        let mut wait = AGAIN[0];
        loop {
            let Ok(permit) = self.calls.acquire().await else { return Answer::Unknown };
            let asked_us = wall_us();
            let answer = self.call(timer, ask, method.clone(), body).await;
            self.recorder.call(Call { timer, ask, asked_us, answered_us: wall_us(), answer });
            drop(permit);
            if answer != Answer::Unknown || self.give_up.is_cancelled() {
                return answer;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.give_up.cancelled() => {}
            }
            wait = (wait * 2).min(AGAIN[1]);
        }
    }

    async fn call(&self, timer: u32, ask: Ask, method: Method, body: Option<&Value>) -> Answer {
        let mut request = self.http.request(method, format!("{}/v1/timers/{}", self.node(), id(timer)));
        if let Some(body) = body {
            request = request.json(body);
        }
        let Ok(response) = request.send().await else { return Answer::Unknown };
        let status = response.status();
        let says_when = response.headers().contains_key(RETRY_AFTER);
        if status == StatusCode::SERVICE_UNAVAILABLE && says_when {
            self.recorder.refusal();
        }
        let Ok(text) = response.bytes().await else { return Answer::Unknown };
        judge(ask, status, says_when, &serde_json::from_slice(&text).unwrap_or(Value::Null))
    }

    /// The next node in turn.
    fn node(&self) -> &str {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.nodes[usize::try_from(turn).unwrap_or(0) % self.nodes.len()]
    }

    /// Registers timers in batches, beside those of a plan: numbers from `first` on, at these moments, for receivers
    /// of one behaviour.
    pub async fn fill(self: &Arc<Self>, first: u32, dues_ms: Vec<i64>, behaviour: Behaviour) {
        let tasks = TaskTracker::new();
        let permits = Arc::new(Semaphore::new(BATCHES));
        let mut number = first;
        for dues in dues_ms.chunks(BATCH) {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let (this, dues, from) = (Arc::clone(self), dues.to_vec(), number);
            number += dues.len() as u32;
            tasks.spawn(async move {
                this.batch(from, &dues, behaviour).await;
                drop(permit);
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn batch(&self, first: u32, dues_ms: &[i64], behaviour: Behaviour) {
        let planned = Planned {
            asked_at: 0,
            due_at: 0,
            behaviour,
            expires: false,
            priority: Priority::default(),
            merges: None,
            follow_up: None,
        };
        let numbers = || (first..).zip(dues_ms);
        let timers: Vec<Value> = numbers()
            .map(|(number, due_ms)| {
                let mut one = self.timer(number, *due_ms, &planned);
                one["id"] = id(number).into();
                one
            })
            .collect();
        let body = json!({ "timers": timers });
        loop {
            let asked_us = wall_us();
            let answers = self.call_batch(&body).await;
            let answered_us = wall_us();
            for (number, due_ms) in numbers() {
                let answer = answers.as_ref().map_or(Answer::Unknown, |answers| {
                    match answers.get(&id(number)).copied() {
                        Some(200 | 201) => Answer::Done { generation: 1 },
                        status => Answer::Nonsense(status.unwrap_or_default()),
                    }
                });
                let ask = Ask::Register { due_ms: *due_ms };
                self.recorder.call(Call { timer: number, ask, asked_us, answered_us, answer });
            }
            if answers.is_some() || self.give_up.is_cancelled() {
                return;
            }
            tokio::time::sleep(AGAIN[1]).await;
        }
    }

    async fn call_batch(&self, body: &Value) -> Option<HashMap<String, u16>> {
        let request = self.http.post(format!("{}/v1/timers/batch", self.node())).json(body);
        let response = request.send().await.ok().filter(|response| response.status() == StatusCode::OK)?;
        let answer: Value = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
        let one = |item: &Value| {
            Some((item["id"].as_str()?.to_owned(), u16::try_from(item["status"].as_u64()?).ok()?))
        };
        Some(answer["results"].as_array()?.iter().filter_map(one).collect())
    }

    /// The request that registers a timer. Those that merge have one owner and one receiver.
    fn timer(&self, number: u32, due_ms: i64, planned: &Planned) -> Value {
        let group = planned.merges.and_then(|from| u32::try_from(from).ok());
        let mut timer = timer(&self.target(group.unwrap_or(number), planned.behaviour), due_ms, planned);
        if let Some(group) = group {
            timer["owner"] = json!(format!("drill-owner-{group}"));
            timer["merge"] = json!({ "window": format!("PT{}S", MERGE_WINDOW_MS as f64 / 1000.0) });
        }
        timer
    }

    fn target(&self, number: u32, behaviour: Behaviour) -> Value {
        match behaviour {
            Behaviour::Queued if !self.destinations.is_empty() => {
                json!({"destination": self.destinations[number as usize % self.destinations.len()]})
            }
            _ => json!({"webhook": {"url": self.receivers.url(number, behaviour)}}),
        }
    }

    /// Makes a destination. Fails when a node does not.
    pub async fn destination(&self, name: &str, body: &Value) -> anyhow::Result<()> {
        let url = format!("{}/v1/destinations/{name}", self.node());
        let answer = self.http.put(url).json(body).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "the destination {name} is not made: {text}");
        Ok(())
    }

    /// The ledger, from the next node in turn. `None` when that node does not answer.
    pub async fn ledger(&self) -> Option<Value> {
        let response = self.http.get(format!("{}/v1/ledger", self.node())).send().await.ok()?;
        serde_json::from_slice(&response.error_for_status().ok()?.bytes().await.ok()?).ok()
    }
}

/// The id of a timer.
fn id(number: u32) -> String {
    format!("{ID}{number}")
}

/// The number of the timer with this id.
pub(super) fn number_of(id: &str) -> Option<u32> {
    id.strip_prefix(ID)?.parse().ok()
}

fn timer(target: &Value, due_ms: i64, planned: &Planned) -> Value {
    let attempts = planned.terms().attempts.unwrap_or(20);
    let mut timer = json!({
        "fire_at": UnixMs::new(due_ms).rfc3339(),
        "target": target,
        "retry": { "attempts": attempts, "first": "PT0.2S", "cap": "PT2S" },
        "priority": planned.priority,
        "data": { "drill": true },
    });
    if planned.expires {
        let grace = format!("PT{}S", GRACE_MS as f64 / 1000.0);
        timer["late"] = json!({ "grace": grace, "then": "expire" });
    }
    timer
}

/// What an answer tells; `says_when`: it has a `Retry-After`.
fn judge(ask: Ask, status: StatusCode, says_when: bool, body: &Value) -> Answer {
    match (ask, status.as_u16()) {
        (Ask::Register { .. }, 200 | 201) | (Ask::Move { .. }, 200) => match body["generation"].as_i64() {
            Some(generation) => Answer::Done { generation: i32::try_from(generation).unwrap_or(0) },
            None => Answer::Nonsense(status.as_u16()),
        },
        (Ask::Cancel, 200) => match body["outcome"].as_str() {
            Some("cancelled") => Answer::Cancelled,
            Some("stopped") => match body["acked"].as_u64() {
                None => Answer::Stopped,
                Some(acked) => Answer::StoppedAfter { acked: u32::try_from(acked).unwrap_or(u32::MAX) },
            },
            _ => Answer::Nonsense(200),
        },
        (Ask::Cancel | Ask::Move { .. }, 404) => Answer::NotFound,
        (Ask::Cancel | Ask::Move { .. }, 409) => match body["code"].as_str() {
            Some("in_flight") => Answer::InFlight,
            Some("already_fired") => Answer::AlreadyFired,
            Some("already_cancelled") => Answer::AlreadyCancelled,
            _ => Answer::Nonsense(409),
        },
        // Others from 500 on are not in the contract, nor is a refusal that does not say when to come back.
        (_, 429 | 503) if says_when => Answer::Unknown,
        (_, status) => Answer::Nonsense(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_when_to_come_back_and_no_other_failure_is_in_the_contract() {
        let judge = |status, says_when| {
            judge(Ask::Cancel, StatusCode::from_u16(status).expect("a status"), says_when, &Value::Null)
        };
        assert_eq!([judge(503, true), judge(429, true)], [Answer::Unknown; 2]);
        for (status, says_when) in [(503, false), (429, false), (500, true), (502, false)] {
            assert_eq!(judge(status, says_when), Answer::Nonsense(status));
        }
    }
}

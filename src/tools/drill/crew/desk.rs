//! The calls of workers: how they are made, and what is noted of their answers.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::LEASE_US;
use crate::clock::wall_us;
use crate::model::time::UnixMs;
use crate::tools::drill::history::{Giving, Micros, Recorder, Settled, Settlement, Wish};
use crate::tools::drill::load::number_of;

/// The queue.
pub const QUEUE: &str = "drill";
/// How long a worker waits for something.
const WAIT: &str = "PT2S";
/// How long it waits for an answer: longer than that.
const CALL_TIMEOUT: Duration = Duration::from_secs(6);

/// Where workers fetch and settle.
pub struct Desk {
    http: Client,
    nodes: Vec<SocketAddr>,
}

/// An answer to a lease.
#[derive(Deserialize)]
pub struct Leased {
    /// What was given.
    pub items: Vec<Item>,
}

/// One item of it.
#[derive(Debug, Clone, Deserialize)]
pub struct Item {
    delivery_id: String,
    timer: String,
    due_at: UnixMs,
    attempt: i32,
    /// What it is settled with.
    pub lease_token: String,
    lease_until: UnixMs,
}

impl Item {
    /// When its lease ends.
    pub const fn until_us(&self) -> Micros {
        self.lease_until.get() * 1000
    }

    /// Notes that a worker was given it.
    pub fn note(&self, worker: u32, recorder: &Recorder) {
        let Some(timer) = number_of(&self.timer) else {
            recorder.strange(format!("with a timer that nobody registered: {}", self.timer));
            return;
        };
        recorder.gave(Giving {
            timer,
            worker,
            delivery: hash(&self.delivery_id),
            attempt: self.attempt,
            token: hash(&self.lease_token),
            due_ms: self.due_at.get(),
            given_us: self.until_us() - LEASE_US,
            until_us: self.until_us(),
            at_us: wall_us(),
        });
    }

    /// Notes how its settlement was answered.
    pub fn note_settled(&self, wish: Wish, asked_us: Micros, answer: Settled, recorder: &Recorder) {
        let Some(timer) = number_of(&self.timer) else { return };
        let (token, answered_us) = (hash(&self.lease_token), wall_us());
        recorder.settled(Settlement { timer, token, wish, asked_us, answered_us, answer });
    }
}

/// The body of a lease.
pub fn lease_body(worker: u32, max: u32, redo: bool) -> Value {
    let mut body = json!({
        "worker": name(worker), "max": max, "wait": WAIT, "lease": duration(LEASE_US),
    });
    if redo {
        body["redo"] = true.into();
    }
    body
}

/// The body of settlements.
pub fn settle_body<'a>(settled: impl IntoIterator<Item = (&'a Item, Wish)>) -> Value {
    let one = |(item, wish): (&Item, Wish)| {
        let token = &item.lease_token;
        match wish {
            Wish::Ack => json!({"lease_token": token, "action": "ack", "result": {"done": true}}),
            Wish::Dead => json!({"lease_token": token, "action": "dead"}),
            Wish::Retry(us) => json!({"lease_token": token, "action": "retry", "delay": duration(us)}),
            Wish::Extend(us) => json!({"lease_token": token, "action": "extend", "lease": duration(us)}),
        }
    };
    json!({ "settlements": settled.into_iter().map(one).collect::<Vec<_>>() })
}

/// The answers to `count` settlements; all unknown if there are others.
pub fn settled_of(body: &Value, count: usize) -> Option<Vec<Settled>> {
    let results = body["results"].as_array().filter(|results| results.len() == count)?;
    results
        .iter()
        .map(|result| match (result["status"].as_u64()?, result["code"].as_str()) {
            (200, _) => Some(Settled::Counts),
            (409, Some("lease_lost")) => Some(Settled::Lost),
            (503, _) => Some(Settled::Unknown),
            _ => None,
        })
        .collect()
}

/// The name of a worker.
pub fn name(worker: u32) -> String {
    format!("w{worker}")
}

fn duration(us: Micros) -> String {
    format!("PT{}S", us as f64 / 1e6)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Desk {
    /// Of these nodes.
    pub fn new(nodes: Vec<SocketAddr>) -> anyhow::Result<Self> {
        let http = Client::builder()
            .no_proxy()
            .timeout(CALL_TIMEOUT)
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            .build()
            .context("the HTTP client cannot be made")?;
        Ok(Self { http, nodes })
    }

    /// Asks one of the nodes for items. `None` if there is no answer, or one that promises nothing.
    pub async fn lease(&self, turn: usize, body: &Value, recorder: &Recorder) -> Option<Vec<Item>> {
        let answer = self.call(turn, "lease", body, recorder).await?;
        let leased = serde_json::from_value::<Leased>(answer);
        if let Err(why) = &leased {
            recorder.strange(format!("to a lease: {why}"));
        }
        leased.ok().map(|leased| leased.items)
    }

    /// Settles at one of the nodes, and notes the answers. Returns them, in order.
    pub async fn settle(&self, turn: usize, settled: &[(Item, Wish)], recorder: &Recorder) -> Vec<Settled> {
        let asked_us = wall_us();
        let body = settle_body(settled.iter().map(|(item, wish)| (item, *wish)));
        let mut answers = vec![Settled::Unknown; settled.len()];
        if let Some(answer) = self.call(turn, "settle", &body, recorder).await {
            match settled_of(&answer, settled.len()) {
                Some(told) => answers = told,
                None => recorder.strange(format!("to settlements: {answer}")),
            }
        }
        for ((item, wish), answer) in settled.iter().zip(&answers) {
            item.note_settled(*wish, asked_us, *answer, recorder);
        }
        answers
    }

    async fn call(&self, turn: usize, what: &str, body: &Value, recorder: &Recorder) -> Option<Value> {
        let node = self.nodes[turn % self.nodes.len()];
        let url = format!("http://{node}/v1/queues/{QUEUE}/{what}");
        let response = self.http.post(url).json(body).send().await.ok()?;
        let (status, says_when) = (response.status(), response.headers().contains_key(RETRY_AFTER));
        match status {
            StatusCode::OK => serde_json::from_slice(&response.bytes().await.ok()?).ok(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE if says_when => None,
            _ => {
                recorder.strange(format!("{status} to a {what}"));
                None
            }
        }
    }

    /// Calls of all nodes to the store for leases, by their own count; `None` if one does not answer.
    pub async fn looks(&self) -> Option<u64> {
        let mut sum = 0;
        for node in &self.nodes {
            let response = self.http.get(format!("http://{node}/metrics")).send().await.ok()?;
            sum += looks_of(&response.error_for_status().ok()?.text().await.ok()?);
        }
        Some(sum)
    }
}

/// The calls to the store for leases that a page of metrics counts.
fn looks_of(metrics: &str) -> u64 {
    let is_it = |line: &&str| {
        line.starts_with("mainspring_store_seconds_count{") && line.contains("operation=\"lease_items\"")
    };
    let values =
        metrics.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_settlements_are_read_or_refused_as_a_whole() {
        let lost = json!({"lease_token": "a", "status": 409, "code": "lease_lost"});
        let counts = json!({"lease_token": "b", "status": 200});
        let unknown = json!({"lease_token": "b", "status": 503, "code": "unavailable"});
        let of = |results: &[&Value]| settled_of(&json!({"results": results}), 2);
        assert_eq!(of(&[&lost, &counts]), Some(vec![Settled::Lost, Settled::Counts]));
        assert_eq!(of(&[&unknown, &counts]), Some(vec![Settled::Unknown, Settled::Counts]));
        assert_eq!(of(&[&counts]), None, "one is missing");
        assert_eq!(of(&[&counts, &json!({"status": 409, "code": "in_flight"})]), None);
    }

    #[test]
    fn calls_for_leases_are_counted_over_all_stores() {
        let metrics = "# HELP mainspring_store_seconds x\n\
            mainspring_store_seconds_count{operation=\"lease_items\",store=\"cold\"} 41\n\
            mainspring_store_seconds_count{operation=\"lease\",store=\"cold\"} 7\n\
            mainspring_store_seconds_sum{operation=\"lease_items\",store=\"cold\"} 3.5\n";
        assert_eq!(looks_of(metrics), 41);
    }
}

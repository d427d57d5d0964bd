//! Very many workers at once, on two nodes of which one is killed again and again: `times` is kept exactly, nobody gets a
//! place twice, nothing is lost, and every settlement was answered truly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::LONG;
use crate::support::{Api, Node, fresh_database, settled};

/// Places in all: enough that a kill falls between any two steps.
fn places() -> usize {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_some() { 20_000 } else { 3000 }
}

const WORKERS: usize = 200;
const KILLS: usize = 3;

/// A giving-out, as a worker saw it.
#[derive(Debug, Clone)]
struct Got {
    worker: usize,
    timer: String,
    delivery: String,
    /// The settlement was answered with 200.
    acked: bool,
    /// No answer to the settlement came: it may have counted.
    is_doubtful: bool,
}

struct Crowd {
    bases: Vec<String>,
    got: Mutex<Vec<Got>>,
    acked: AtomicUsize,
    done: AtomicBool,
}

impl Crowd {
    /// One worker: asks either node, settles at either.
    async fn work(self: Arc<Self>, worker: usize) {
        let apis: Vec<Api> = self.bases.iter().map(Api::new).collect();
        let asked = json!({"worker": format!("w{worker}"), "max": 3, "wait": "PT2S", "lease": "PT5S"});
        let mut round = worker;
        while !self.done.load(Ordering::Relaxed) {
            round += 1;
            let leased =
                apis[round % 2].try_send(Method::POST, "/v1/queues/q/lease", &[], Some(&asked)).await;
            let items = match leased {
                Ok(answer) if answer.status == 200 => {
                    answer.body["items"].as_array().cloned().unwrap_or_default()
                }
                // That node is down; an item that was given in an answer which got lost comes back when its lease ends.
                _ => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            for item in items {
                let one = json!({"settlements": [{"lease_token": item["lease_token"], "action": "ack"}]});
                let text = |field: &str| item[field].as_str().expect("a text").to_owned();
                let settled = apis[(round + 1) % 2]
                    .try_send(Method::POST, "/v1/queues/q/settle", &[], Some(&one))
                    .await;
                let (acked, is_doubtful) = match settled {
                    Ok(answer) if answer.status == 200 => {
                        match answer.body["results"][0]["status"].as_u64() {
                            Some(200) => (true, false),
                            Some(409) => (false, false),
                            _ => (false, true),
                        }
                    }
                    _ => (false, true),
                };
                if acked || is_doubtful {
                    self.acked.fetch_add(1, Ordering::Relaxed);
                }
                let (timer, delivery) = (text("timer"), text("delivery_id"));
                self.got.lock().await.push(Got { worker, timer, delivery, acked, is_doubtful });
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hundred_workers_on_two_nodes_each_place_goes_to_one() {
    let cold = fresh_database().await;
    let safe = Node::builder().cold(&cold).start_ready().await;
    let mut harmed = Node::builder().cold(&cold).start_ready().await;
    let api = safe.api();
    let (mut timers, mut wanted, mut total) = (Vec::new(), BTreeMap::new(), 0);
    while total < places() {
        let n = timers.len();
        let (times, repeat) = ([1, 1, 2, 5][n % 4], n % 3 == 0);
        let id = format!("t{n}");
        timers.push(json!({"id": id, "delay": "PT0S", "target": {"queue": "q"}, "retry": {"attempts": 100},
            "dispatch": {"times": times, "repeat": repeat}}));
        wanted.insert(id, (times, repeat));
        total += times;
    }
    for batch in timers.chunks(1000) {
        assert_eq!(api.post("/v1/timers/batch", &json!({"timers": batch})).await.0, 200);
    }
    let crowd = Arc::new(Crowd {
        bases: vec![safe.base(), harmed.base()],
        got: Mutex::default(),
        acked: AtomicUsize::new(0),
        done: AtomicBool::new(false),
    });
    let workers: Vec<_> = (0..WORKERS).map(|n| tokio::spawn(Arc::clone(&crowd).work(n))).collect();
    // Kills by how much is done, so that they fall into the work on any machine.
    for part in 1..=KILLS {
        let until = total * part / (KILLS + 2);
        crate::support::eventually("the work goes on", LONG * 4, async || {
            let now = crowd.acked.load(Ordering::Relaxed);
            if now >= until { Ok(()) } else { Err(now) }
        })
        .await;
        harmed.restart().await;
        harmed.wait_ready(LONG).await;
    }
    settled(&api, timers.len(), 0).await;
    crowd.done.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("a worker ends");
    }
    let ledger = api.ledger().await;
    assert_eq!(
        (ledger.registered, ledger.delivered),
        (timers.len() as u64, timers.len() as u64),
        "nothing is lost"
    );

    let got = crowd.got.lock().await;
    let mut by_delivery: BTreeMap<&str, Vec<&Got>> = BTreeMap::new();
    got.iter().for_each(|one| by_delivery.entry(&one.delivery).or_default().push(one));
    let mut acks: BTreeMap<&str, (usize, usize, BTreeSet<usize>)> = BTreeMap::new();
    for (delivery, all) in &by_delivery {
        let acked: Vec<_> = all.iter().filter(|one| one.acked).collect();
        let doubtful = all.iter().filter(|one| one.is_doubtful).count();
        assert!(acked.len() <= 1, "{delivery} was acked twice: {all:?}");
        let of = acks.entry(&all[0].timer).or_default();
        of.0 += usize::from(!acked.is_empty());
        of.1 += usize::from(acked.is_empty() && doubtful > 0);
        if let Some(one) = acked.first() {
            let is_new = of.2.insert(one.worker);
            assert!(is_new || wanted[&one.timer].1, "{delivery}: a worker had {} twice: {all:?}", one.timer);
        }
    }
    let mut in_doubt = 0;
    for (timer, (times, _)) in &wanted {
        let (acked, doubtful, _) = acks.remove(timer.as_str()).unwrap_or_default();
        assert!(
            acked <= *times && acked + doubtful >= *times,
            "{timer}: {acked} acked, {doubtful} in doubt, {times} wanted"
        );
        in_doubt += times - acked;
    }
    // A kill takes one answer of each worker at most.
    assert!(in_doubt <= KILLS * WORKERS, "{in_doubt} of {total} settlements counted without an answer");
    // What SQL knows is the same: as many acks as places, and each place with one.
    let mut counted = 0;
    for one in wanted.keys().take(50) {
        let (_, attempts): (u16, Value) = api.get(&format!("/v1/timers/{one}/attempts")).await;
        let ok: Vec<_> = attempts["items"]
            .as_array()
            .expect("items")
            .iter()
            .filter(|a| a["result"] == "ok")
            .cloned()
            .collect();
        assert_eq!(ok.len(), wanted[one].0, "{one}: {attempts}");
        let deliveries: BTreeSet<_> = ok.iter().map(|a| a["delivery_id"].as_str().expect("an id")).collect();
        assert_eq!(deliveries.len(), ok.len());
        counted += ok.len();
    }
    assert!(counted > 50);
}

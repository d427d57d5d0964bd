//! SIGKILL at random, over and over, while timers are registered and fire: nothing acknowledged is lost,
//! nothing fires early, and what arrives twice was in flight at a kill.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::support::{Api, Node, Received, Receiver, fresh_database, wall_ms};

/// Attempts under way at once on one node; bounds how many a kill can leave behind.
const CONCURRENCY: usize = 64;
const WRITERS: usize = 8;
/// What a killed node had sent may still be on its way to the receiver's eyes.
const ON_THE_WAY_MS: i64 = 200;

pub fn long() -> bool {
    std::env::var_os("MAINSPRING_TEST_LONG").is_some()
}

fn node(name: &str, cold: Option<&str>) -> crate::support::NodeBuilder {
    let builder = Node::builder()
        .name(name)
        .env("MAINSPRING__LEASE", "PT1S")
        .env("MAINSPRING__DISPATCH__CONCURRENCY", CONCURRENCY.to_string());
    match cold {
        Some(url) => builder.cold(url),
        None => builder,
    }
}

/// Registers on and on until told to stop; each id is repeated until it is acknowledged.
async fn write(
    worker: usize,
    seed: u64,
    apis: Vec<Api>,
    url: String,
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicUsize>,
) {
    let mut dice = SmallRng::seed_from_u64(seed + worker as u64);
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let body = json!({
            "delay": format!("PT{}.{:03}S", dice.random_range(0..3), dice.random_range(0..1000)),
            "target": {"webhook": {"url": url}},
            "retry": {"attempts": 20, "first": "PT0.1S", "cap": "PT1S"},
            "data": {"n": n},
        });
        let path = format!("/v1/timers/w{worker}-{n}");
        loop {
            let api = &apis[dice.random_range(0..apis.len())];
            match api.try_send(reqwest::Method::PUT, &path, &[], Some(&body)).await {
                Ok(answer) if matches!(answer.status, 200 | 201) => break,
                Ok(answer) => assert_eq!(answer.status, 503, "{:?}", answer.body),
                // The node is down, or died with the call in hand.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        acked.fetch_add(1, Ordering::SeqCst);
    }
}

/// Kills nodes at random moments, restarts them, and checks the whole history.
async fn nothing_is_lost_when_nodes_are_killed(mut nodes: Vec<Node>) {
    let seed: u64 =
        std::env::var("MAINSPRING_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(wall_ms() as u64);
    println!("seed {seed} (MAINSPRING_TEST_SEED repeats it)");
    let kills = if long() { 100 } else { 20 };
    let receiver = Receiver::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let acked = Arc::new(AtomicUsize::new(0));
    let apis: Vec<Api> = nodes.iter().map(Node::api).collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|worker| {
            let (url, stop, acked) = (receiver.url("/slow/5"), Arc::clone(&stop), Arc::clone(&acked));
            tokio::spawn(write(worker, seed, apis.clone(), url, stop, acked))
        })
        .collect();
    let mut dice = SmallRng::seed_from_u64(seed);
    let mut killed_at = Vec::new();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(dice.random_range(100..900))).await;
        let victim = dice.random_range(0..nodes.len());
        let before = wall_ms();
        nodes[victim].kill9().await;
        killed_at.push((before, wall_ms() + ON_THE_WAY_MS));
        nodes[victim].restart().await;
        nodes[victim].wait_ready(Duration::from_secs(20)).await;
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.expect("writers go on until told to stop");
    }
    let acked = acked.load(Ordering::SeqCst);
    assert!(acked > kills * 10, "only {acked} timers: no load worth the name");

    let everything = |all: &[Received]| {
        all.iter().map(|r| r.timer.as_str()).collect::<std::collections::HashSet<_>>().len() >= acked
    };
    let all = receiver.wait_until(everything, Duration::from_secs(60)).await;
    let mut by_timer: HashMap<&str, Vec<&Received>> = HashMap::new();
    for received in &all {
        assert!(received.lateness_ms() >= 0, "early: {received:?}");
        by_timer.entry(&received.timer).or_default().push(received);
    }
    assert_eq!(by_timer.len(), acked, "every acknowledged timer arrived, and nothing else");
    let mut duplicates = 0;
    for (timer, arrivals) in &by_timer {
        for pair in arrivals.windows(2) {
            duplicates += 1;
            assert_eq!(pair[0].delivery_id, pair[1].delivery_id, "{timer}: one firing, one id");
            assert!(pair[0].attempt < pair[1].attempt, "{timer}: attempts are counted");
            // In flight at a kill: it had arrived, and its result was not recorded yet.
            let explained = killed_at.iter().any(|(from, to)| pair[0].at_ms <= *to && *from <= pair[1].at_ms);
            assert!(explained, "{timer} arrived twice without a kill in between: {pair:?}");
        }
    }
    assert!(duplicates <= kills * CONCURRENCY, "{duplicates} duplicates, more than can have been in flight");
    let ledger = settled(&apis[0], acked as u64).await;
    println!("{kills} kills, {acked} timers, 0 lost, 0 early, {duplicates} duplicates; {ledger:?}");
}

/// Waits until the ledger says that everything was delivered.
async fn settled(api: &Api, acked: u64) -> crate::support::Ledger {
    for _ in 0..200 {
        let ledger = api.ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        if ledger.delivered == acked {
            assert_eq!((ledger.registered, ledger.pending), (acked, 0));
            return ledger;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not all delivered: {:?}", api.ledger().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_sqlite() {
    nothing_is_lost_when_nodes_are_killed(vec![node("one", None).start_ready().await]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_postgres() {
    let url = fresh_database().await;
    nothing_is_lost_when_nodes_are_killed(vec![node("one", Some(&url)).start_ready().await]).await;
}

/// Two nodes on one new database.
async fn two_nodes() -> (Node, Node) {
    let url = fresh_database().await;
    (node("one", Some(&url)).start_ready().await, node("two", Some(&url)).start_ready().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_postgres_with_two_nodes() {
    nothing_is_lost_when_nodes_are_killed(<[Node; 2]>::from(two_nodes().await).into()).await;
}

/// Two nodes share the shards; when one dies for good the other takes all, and the timers of both fire.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_is_taken_over() {
    let (one, two) = two_nodes().await;
    let (receiver, api) = (Receiver::start().await, two.api());
    shares(&api, &[("one", 32), ("two", 32)]).await;
    for n in 0..100 {
        let body = json!({"delay": "PT2S", "target": {"webhook": {"url": receiver.url("/ok")}}});
        assert_eq!(api.put(&format!("t{n}"), &body).await.0, 201);
    }
    one.kill9().await;
    let all = receiver.wait_for(100, Duration::from_secs(15)).await;
    assert!(all.iter().all(|r| r.lateness_ms() >= 0));
    shares(&api, &[("two", 64)]).await;
    assert_eq!(settled(&api, 100).await.delivered, 100);
    assert_eq!(receiver.received().len(), 100, "each once");
}

/// Waits until the nodes own this many shards each.
async fn shares(api: &Api, wanted: &[(&str, usize)]) {
    let mut seen = Vec::new();
    for _ in 0..150 {
        let (_, nodes) = api.get("/v1/nodes").await;
        seen = nodes["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|node| {
                (
                    node["name"].as_str().unwrap_or_default().to_owned(),
                    node["shards"].as_array().map_or(0, Vec::len),
                )
            })
            .collect();
        if wanted.iter().all(|(name, count)| seen.iter().any(|(n, c)| n == name && c == count)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("shares are {seen:?}, wanted {wanted:?}");
}

/// A node that stands still beyond its lease and wakes up can claim nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_slept_beyond_its_lease_fires_nothing_twice() {
    let (one, two) = two_nodes().await;
    let (receiver, api) = (Receiver::start().await, two.api());
    shares(&api, &[("one", 32), ("two", 32)]).await;
    for n in 0..200 {
        let body = json!({"delay": format!("PT{}.{:03}S", 1 + n / 50, n % 50 * 20), "target": {"webhook": {"url": receiver.url("/ok")}}});
        assert_eq!(api.put(&format!("t{n}"), &body).await.0, 201);
    }
    receiver.wait_for(20, Duration::from_secs(10)).await;
    one.pause();
    receiver.wait_for(190, Duration::from_secs(20)).await;
    one.resume();
    let delivered = settled(&api, 200).await.delivered;
    shares(&api, &[("one", 32), ("two", 32)]).await;
    let all = receiver.received();
    let mut ids: Vec<_> = all.iter().map(|r| (r.timer.clone(), r.attempt)).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((delivered, ids.len()), (200, all.len()), "no attempt was made twice");
    assert!(all.len() <= 200 + CONCURRENCY, "only what was in flight when it stood still came again");
}

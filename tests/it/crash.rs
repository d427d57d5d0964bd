//! SIGKILL at random, over and over, while timers are registered and fire: nothing acknowledged is lost,
//! nothing fires early, and what arrives twice was in flight at a kill.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::support::{
    Api, Node, Received, Receiver, Watch, eventually, fresh_database, psql, register, rfc3339, settled,
    shared_as, to, wall_ms,
};

/// Attempts under way at once on one node: the most duplicates that one kill explains.
const CONCURRENCY: usize = 64;
const WRITERS: usize = 8;

/// The nodes, by their place in a test's list.
const NAMES: [&str; 2] = ["one", "two"];

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A request that a killed node had sent may reach the receiver this much later.
const ON_THE_WAY_MS: i64 = 200;

/// The lease of every node here: `PT1S`.
const LEASE_MS: i64 = 1000;

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

/// Registers timers until told to stop. Each registration is repeated until it is acknowledged.
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
    let watch = Watch::start(&apis);
    let writers: Vec<_> = (0..WRITERS)
        .map(|worker| {
            let (url, stop, acked) = (receiver.url("/slow/5"), Arc::clone(&stop), Arc::clone(&acked));
            tokio::spawn(write(worker, seed, apis.clone(), url, stop, acked))
        })
        .collect();
    let mut dice = SmallRng::seed_from_u64(seed);
    // Of each kill: the node, and from when to when it may explain a duplicate.
    let mut kills_seen: Vec<(String, i64, i64)> = Vec::new();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(dice.random_range(100..900))).await;
        let victim = dice.random_range(0..nodes.len());
        let before = wall_ms();
        nodes[victim].kill9().await;
        kills_seen.push((NAMES[victim].to_owned(), before, wall_ms() + ON_THE_WAY_MS));
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
    let stalls = watch.end().await;
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
            let node = node_of(&apis[0], timer, pair[0].attempt).await;
            assert_eq!(pair[0].delivery_id, pair[1].delivery_id, "{timer}: one firing, one id");
            assert!(pair[0].attempt < pair[1].attempt, "{timer}: attempts are counted");
            // In flight when its node was killed: it had arrived, and its result was not recorded yet.
            let explains = |(killed, from, to): &(String, i64, i64)| {
                *killed == node && pair[0].at_ms <= *to && *from <= pair[1].at_ms
            };
            // A node that stands still for most of its lease loses its shards to the other, and what it had in
            // flight comes again. One that is alone loses them to nobody.
            let stood_still = apis.len() > 1 && stalls.touch(pair[0].at_ms - LEASE_MS..pair[1].at_ms);
            let explained = kills_seen.iter().any(explains) || stood_still;
            assert!(explained, "{timer} arrived twice without a kill of {node} in between: {pair:?}");
        }
    }
    assert!(duplicates <= kills * CONCURRENCY, "{duplicates} duplicates, more than can have been in flight");
    let ledger = settled(&apis[0], acked, 0).await;
    assert_eq!(ledger.registered, acked as u64);
    println!("{kills} kills, {acked} timers, 0 lost, 0 early, {duplicates} duplicates; {ledger:?}");
}

/// The node that made an attempt.
async fn node_of(api: &Api, timer: &str, attempt: u32) -> String {
    let (status, attempts) = api.get(&format!("/v1/timers/{timer}/attempts")).await;
    assert_eq!(status, 200, "{attempts}");
    let mut made = attempts["items"].as_array().expect("items").iter();
    let this = made.find(|one| one["attempt"] == attempt).unwrap_or_else(|| panic!("{attempt}: {attempts}"));
    this["node"].as_str().expect("a node").to_owned()
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

/// Fires from two nodes of which one stands still beyond its lease, with claims in hand that it has not sent
/// yet, and goes on when the other has sent all of them. Returns what it had in hand, and what it sent late: an
/// attempt that arrives after a later one of its timer.
async fn a_sleeper_wakes_up(planted: Option<&str>) -> (usize, Vec<Received>) {
    const TIMERS: usize = 200;
    const WARM: usize = 200;
    let url = fresh_database().await;
    // Claimed a second ahead, and sent when due: in between there is time to stop it.
    let build = |name: &str| {
        let builder = node(name, Some(&url)).env("MAINSPRING__WHEEL__LEAD", "PT1S");
        match planted {
            Some(defect) => builder.env("MAINSPRING__PLANTED", defect),
            None => builder,
        }
    };
    let (one, two) = (build("one").start_ready().await, build("two").start_ready().await);
    let (receiver, api) = (Receiver::start().await, two.api());
    shared_as(&api, &[("one", 32), ("two", 32)], LONG).await;
    // A receiver that has answered is sent more at once than one of which nothing is known.
    let warm = |n| json!({"id": format!("warm{n}"), "delay": "PT0S", "target": to(receiver.url("/ok"))});
    register(&api, &(0..WARM).map(warm).collect::<Vec<_>>()).await;
    settled(&api, WARM, 0).await;
    let claimed = "SELECT count(*)::text FROM timers WHERE state = 1 AND node = 'one'";
    // On a busy machine they may be due before it stands still: then it goes on, and others are tried.
    let mut turn = 0;
    let (name, in_hand) = loop {
        turn += 1;
        let (name, due) = (format!("t{turn}-"), wall_ms() + 3000);
        let timers: Vec<_> = (0..TIMERS)
            .map(|n| json!({"id": format!("{name}{n}"), "fire_at": rfc3339(due), "target": to(receiver.url("/ok"))}))
            .collect();
        register(&api, &timers).await;
        eventually("it claims what is due in a second", LONG, async || {
            let count: usize = psql(&url, claimed).await.parse().expect("a count");
            if count >= CONCURRENCY / 2 || wall_ms() >= due { Ok(()) } else { Err(count) }
        })
        .await;
        one.pause();
        let sent = receiver.received().iter().filter(|received| received.timer.starts_with(&name)).count();
        if wall_ms() < due {
            assert_eq!(sent, 0, "nothing is sent before it is due");
            let in_hand: usize = psql(&url, claimed).await.parse().expect("a count");
            break (name, in_hand);
        }
        one.resume();
        assert!(turn < 5, "too busy a machine: five times they were due before it stood still");
        settled(&api, WARM + turn * TIMERS, 0).await;
        shared_as(&api, &[("one", 32), ("two", 32)], LONG).await;
    };
    settled(&api, WARM + turn * TIMERS, 0).await;
    one.resume();
    shared_as(&api, &[("one", 32), ("two", 32)], LONG).await;
    // A stop waits for every attempt that is under way.
    assert!(one.sigterm().await.0.success());

    let mut all = receiver.received();
    all.retain(|received| received.timer.starts_with(&name));
    let mut latest: HashMap<&str, u32> = HashMap::new();
    let mut late = Vec::new();
    for received in &all {
        assert!(received.lateness_ms() >= 0, "early: {received:?}");
        let before = latest.entry(&received.timer).or_default();
        if received.attempt <= *before {
            late.push(received.clone());
        }
        *before = received.attempt.max(*before);
    }
    assert_eq!(latest.len(), TIMERS, "each arrived");
    let again = latest.values().filter(|attempt| **attempt > 1).count();
    assert!(again >= in_hand, "what the sleeper had in hand was made again: {again} of {in_hand}");
    settled(&api, WARM + turn * TIMERS, 0).await;
    (in_hand, late)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_slept_beyond_its_lease_fires_nothing_twice() {
    let (in_hand, late) = a_sleeper_wakes_up(None).await;
    assert!(late.is_empty(), "of {in_hand} in hand it sent when its shards were another's: {late:?}");
}

/// The test above sees a node that looks neither at epochs nor at its lease.
#[cfg(feature = "planted")]
#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_that_does_not_look_at_its_lease_is_seen() {
    let (in_hand, late) = a_sleeper_wakes_up(Some("claim-without-epoch")).await;
    assert!(!late.is_empty(), "nothing of {in_hand} was sent late");
}

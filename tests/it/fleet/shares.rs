//! Fair shares, and how soon they are reached.

use std::time::Duration;

use super::{LONG, Stream, node, verdict};
use crate::support::{Node, Receiver, Watch, eventually, fresh_database, psql, shared_as, wall_ms};

/// A lease whose rounds, three of them, are too far apart for any of these tests.
const SLOW_ROUNDS: (&str, &str) = ("MAINSPRING__LEASE", "PT60S");

/// A fraction of a round of [`SLOW_ROUNDS`], and long enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_or_goes_is_noticed_at_once() {
    let url = fresh_database().await;
    let slow = |name| node(name, &url).env(SLOW_ROUNDS.0, SLOW_ROUNDS.1);
    let a = slow("a").start_ready().await;
    let b = slow("b").start_ready().await;
    shared_as(&a.api(), &[("a", 32), ("b", 32)], AT_ONCE).await;
    let c = slow("c").start_ready().await;
    shared_as(&a.api(), &[("a", 22), ("b", 21), ("c", 21)], AT_ONCE).await;
    assert!(b.sigterm().await.0.success());
    shared_as(&a.api(), &[("a", 32), ("c", 32)], AT_ONCE).await;
    drop(c);
}

/// As behind a proxy that gives each transaction another connection: everything is accepted, and nothing heard.
#[tokio::test(flavor = "multi_thread")]
async fn without_news_shares_are_found_in_the_next_round() {
    /// Three to a lease.
    const ROUND: Duration = Duration::from_secs(4);
    let url = fresh_database().await;
    let database = url.rsplit('/').next().expect("a name").to_owned();
    psql(&url, "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''").await;
    psql(&url, &format!("ALTER DATABASE {database} SET search_path = public, pg_catalog")).await;
    let slow = |name| node(name, &url).env("MAINSPRING__LEASE", "PT12S");
    let a = slow("a").start_ready().await;
    let b = slow("b").start_ready().await;
    shared_as(&b.api(), &[("a", 32), ("b", 32)], ROUND + Duration::from_secs(5)).await;
    let asked = std::time::Instant::now();
    assert!(a.sigterm().await.0.success());
    shared_as(&b.api(), &[("b", 64)], ROUND + Duration::from_secs(5)).await;
    println!("found after {:?}; a round is {ROUND:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fourth_node_gets_its_share_and_leaves_without_a_loss() {
    let (receiver, url) = (Receiver::start().await, fresh_database().await);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(node(name, &url).start_ready().await);
    }
    let stream = Stream::start("s", nodes.iter().map(Node::api).collect(), receiver.url("/ok"), 200);
    let api = nodes[0].api();
    let three = [("a", 22), ("b", 21), ("c", 21)];
    shared_as(&api, &three, LONG).await;
    let fourth: Node = node("d", &url).start_ready().await;
    shared_as(&api, &[("a", 16), ("b", 16), ("c", 16), ("d", 16)], LONG).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(fourth.sigterm().await.0.success());
    shared_as(&api, &three, LONG).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let count = stream.end().await;
    verdict(&receiver, count).await.is_clean(count);
}

/// Callers who keep every connection of theirs busy for longer than two leases cost no node a shard. Longer than
/// the five seconds, too, that a call waits for a connection.
#[tokio::test(flavor = "multi_thread")]
async fn slow_calls_cost_no_node_its_shards() {
    let url = fresh_database().await;
    // Long enough that a machine which stands still for two seconds costs none.
    let busy = |name| {
        node(name, &url)
            .env("MAINSPRING__COLD__CONNECTIONS", "2")
            .env("MAINSPRING__LEASE", "PT4S")
            .start_ready()
    };
    let nodes = [busy("a").await, busy("b").await];
    shared_as(&nodes[0].api(), &[("a", 32), ("b", 32)], LONG).await;
    let taken = async |node: &Node| node.api().metric("mainspring_shards_taken_total").await;
    let before = [taken(&nodes[0]).await, taken(&nodes[1]).await];
    // Less than the ten seconds that a statement may take.
    let sql = "BEGIN; LOCK TABLE totals; SELECT pg_sleep(9); COMMIT";
    let locked = tokio::spawn({
        let url = url.clone();
        async move { psql(&url, sql).await }
    });
    eventually("the table is locked", LONG, async || {
        let held = "SELECT count(*)::text FROM pg_locks WHERE relation = 'totals'::regclass AND granted";
        let held = psql(&url, held).await;
        if held == "0" { Err(held) } else { Ok(()) }
    })
    .await;
    let calls: Vec<_> = nodes
        .iter()
        .flat_map(|node| (0..6).map(|_| node.api()))
        .map(|api| tokio::spawn(async move { api.get("/v1/ledger").await.0 }))
        .collect();
    while !locked.is_finished() {
        for node in &nodes {
            assert_eq!(node.api().metric("mainspring_shards_owned").await, 32.0);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut slow = 0;
    for call in calls {
        slow += usize::from(call.await.expect("is answered") == 503);
    }
    assert!(slow > 0, "some waited for a connection in vain");
    assert_eq!([taken(&nodes[0]).await, taken(&nodes[1]).await], before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_had_is_taken_within_a_lease_and_two_seconds() {
    const LEASE_MS: i64 = 1000;
    let url = fresh_database().await;
    let short = |name| node(name, &url).env("MAINSPRING__LEASE", "PT1S").start_ready();
    let (a, b) = (short("a").await, short("b").await);
    let api = a.api();
    shared_as(&api, &[("a", 32), ("b", 32)], LONG).await;
    let watch = Watch::start(std::slice::from_ref(&api));
    let killed = wall_ms();
    b.kill9().await;
    shared_as(&api, &[("a", 64)], LONG).await;
    let taken = wall_ms();
    let stalled = watch.end().await.within(killed..taken);
    println!("taken after {} ms, of which the machine stood still for {stalled} ms", taken - killed);
    assert!(taken - killed - stalled <= LEASE_MS + 2000, "{} ms, stalled {stalled} ms", taken - killed);
}

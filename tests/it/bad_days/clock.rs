//! A node whose wall clock is not the store's. Both run on one machine, so the store's is moved: this database
//! finds a `statement_timestamp()` of its own before PostgreSQL's.

use serde_json::{Value, json};

use super::LONG;
use crate::support::{
    Node, Receiver, eventually, fresh_database, psql, register, rfc3339, settled, to, wall_ms,
};

/// Timers of a test.
const TIMERS: i64 = 40;

/// What fires at all fires with this much delay, also on a busy machine; far less than any skew here.
const PUNCTUAL_MS: i64 = 1500;

/// A new database whose clock is so much ahead of this machine's, or behind.
async fn with_its_clock_off_by(ms: i64) -> String {
    let store = fresh_database().await;
    let database = store.rsplit('/').next().expect("a name");
    let clock = format!(
        "CREATE FUNCTION public.statement_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         $$ SELECT pg_catalog.statement_timestamp() + {ms} * interval '1 millisecond' $$"
    );
    psql(&store, &clock).await;
    psql(&store, &format!("ALTER DATABASE {database} SET search_path = public, pg_catalog")).await;
    store
}

/// Fires timers on a node whose clock differs from the store's by `skew` (its own − the store's), and demands
/// that they fire on time by the store's.
async fn fires_by_the_stores_clock(skew: i64) {
    let store = with_its_clock_off_by(-skew).await;
    let node = Node::builder().cold(&store).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let shown = eventually("the skew is shown", LONG, async || {
        let shown = (api.metric("mainspring_clock_skew_seconds").await * 1000.0).round() as i64;
        // The store's time is known from below, so the skew is shown too high rather than too low.
        if (skew - 5..skew + 500).contains(&shown) { Ok(shown) } else { Err(shown) }
    })
    .await;
    println!("{skew} ms off, {shown} ms shown");
    let log = node.log();
    let warned = log.lines().any(|line| {
        line.contains("WARN")
            && line.contains("this node's clock is not the store's")
            && line.contains("skew_ms")
    });
    assert!(warned, "{log}");

    let by_the_store = wall_ms() - skew;
    let timers: Vec<Value> = (0..TIMERS)
        .map(|n| json!({"id": format!("t{n}"), "fire_at": rfc3339(by_the_store + 1500 + n * 50), "target": to(receiver.url("/ok"))}))
        .collect();
    register(&api, &timers).await;
    receiver.wait_for(timers.len(), LONG).await;
    settled(&api, timers.len(), 0).await;
    for one in receiver.received() {
        // Arrivals are noted by this machine's clock.
        let late = one.lateness_ms() - skew;
        assert!((0..PUNCTUAL_MS).contains(&late), "{late} ms late by the store's clock: {one:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_ahead_of_the_store_warns_and_fires_by_the_stores_clock() {
    fires_by_the_stores_clock(3000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_behind_the_store_warns_and_fires_by_the_stores_clock() {
    fires_by_the_stores_clock(-3000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_is_the_stores_does_not_warn() {
    let node = Node::builder().cold(fresh_database().await).start_ready().await;
    let skew = node.api().metric("mainspring_clock_skew_seconds").await * 1000.0;
    assert!((-5.0..500.0).contains(&skew), "{skew}");
    assert!(!node.log().contains("this node's clock is not the store's"), "{}", node.log());
}

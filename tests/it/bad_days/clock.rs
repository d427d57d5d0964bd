//! A node whose wall clock is not the store's. Both run on one machine, so the store's is moved: this database
//! finds a `statement_timestamp()` of its own before PostgreSQL's.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::LONG;
use crate::support::{
    Api, Node, Received, Receiver, eventually, fresh_database, psql, register, rfc3339, settled, to, wall_ms,
};

/// Timers of a test.
const TIMERS: i64 = 40;

/// What fires at all fires with this much delay, also on a busy machine; far less than any skew here.
const PUNCTUAL_MS: i64 = 10_000;

/// A new database whose clock is so much ahead of this machine's, or behind.
async fn with_its_clock_off_by(ms: i64) -> String {
    let store = fresh_database().await;
    let database = store.rsplit('/').next().expect("a name");
    set_clock(&store, ms).await;
    psql(&store, &format!("ALTER DATABASE {database} SET search_path = public, pg_catalog")).await;
    store
}

/// Sets the database's clock so much ahead of this machine's, or behind.
async fn set_clock(store: &str, ms: i64) {
    let clock = format!(
        "CREATE OR REPLACE FUNCTION public.statement_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         $$ SELECT pg_catalog.statement_timestamp() + {ms} * interval '1 millisecond' $$"
    );
    psql(store, &clock).await;
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
    fires_by_the_stores_clock(30_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_behind_the_store_warns_and_fires_by_the_stores_clock() {
    fires_by_the_stores_clock(-30_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_is_the_stores_does_not_warn() {
    let node = Node::builder().cold(fresh_database().await).start_ready().await;
    let skew = node.api().metric("mainspring_clock_skew_seconds").await * 1000.0;
    assert!((-5.0..500.0).contains(&skew), "{skew}");
    assert!(!node.log().contains("this node's clock is not the store's"), "{}", node.log());
}

/// An hour in milliseconds.
const HOUR_MS: i64 = 3_600_000;

/// What fires after a step of the clock is late by a lease or two, and by what it takes to build the wheels anew.
const AFTER_A_STEP_MS: i64 = 8000;

/// Registers timers of many shards that are due soon by the store's clock, which is `ahead` of this machine's, and
/// demands that they fire by it: never early, and late by seconds at most.
async fn fire_by_this_clock(name: &str, api: &Api, receiver: &Receiver, ahead: i64) {
    let by_the_store = wall_ms() + ahead;
    let timers: Vec<Value> = (0..TIMERS)
        .map(|n| json!({"id": format!("{name}{n}"), "fire_at": rfc3339(by_the_store + 500 + n * 50), "target": to(receiver.url("/ok"))}))
        .collect();
    register(api, &timers).await;
    // Some may come twice: their shard changed hands while they were sent.
    let mine = |one: &&Received| one.timer.starts_with(name);
    let each = |all: &[Received]| all.iter().filter(mine).map(|one| &one.timer).collect::<HashSet<_>>().len();
    let all = receiver.wait_until(|all| each(all) == timers.len(), LONG).await;
    for one in all.iter().filter(mine) {
        let late = one.lateness_ms() + ahead;
        assert!((0..AFTER_A_STEP_MS).contains(&late), "{late} ms late by the store's clock: {one:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_clock_jumps_by_an_hour_and_back_costs_seconds() {
    let store = with_its_clock_off_by(0).await;
    let node = |name| Node::builder().name(name).cold(&store).env("MAINSPRING__LEASE", "PT1S");
    let (a, b) = (node("clock-a").start_ready().await, node("clock-b").start_ready().await);
    let (api, receiver) = (a.api(), Receiver::start().await);
    fire_by_this_clock("before-", &api, &receiver, 0).await;
    let far = wall_ms() + HOUR_MS / 2;
    register(
        &api,
        &[json!({"id": "far", "fire_at": rfc3339(far + HOUR_MS), "target": to(receiver.url("/ok"))})],
    )
    .await;

    set_clock(&store, HOUR_MS).await;
    fire_by_this_clock("ahead-", &api, &receiver, HOUR_MS).await;
    settled(&api, 2 * TIMERS as usize, 1).await;

    // The other node dies by the clock that is an hour ahead, and its leases with it.
    b.kill9().await;
    set_clock(&store, 0).await;
    fire_by_this_clock("after-", &api, &receiver, 0).await;

    settled(&api, 3 * TIMERS as usize, 1).await;
    assert_eq!(api.timer("far").await.1["state"], "scheduled");
    assert!(a.log().contains("the store's clock was set back"), "{}", a.log());
    assert_eq!(api.metric("mainspring_shards_owned").await, 64.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waits_while_the_clock_is_set_back_is_given_back() {
    let store = with_its_clock_off_by(HOUR_MS).await;
    let node =
        Node::builder().cold(&store).env("MAINSPRING__LEASE", "PT1S").env("MAINSPRING__WHEEL__LEAD", "PT1S");
    let node = node.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let becomes = async |id: &str, states: &[&str]| {
        eventually(&format!("{id} is one of {states:?}"), LONG, async || {
            let (_, timer) = api.timer(id).await;
            let state = timer["state"].as_str().unwrap_or_default().to_owned();
            if states.contains(&&*state) { Ok(state) } else { Err(timer) }
        })
        .await
    };
    let knows = async |is_ahead: bool| {
        eventually("the node knows of the clock", LONG, async || {
            let skew = api.metric("mainspring_clock_skew_seconds").await;
            if (skew.abs() > 60.0) == is_ahead { Ok(()) } else { Err(skew) }
        })
        .await;
    };
    let mut tries = 0;
    loop {
        tries += 1;
        knows(true).await;
        let (id, due) = (format!("waits{tries}"), wall_ms() + HOUR_MS + 2500);
        register(&api, &[json!({"id": id, "fire_at": rfc3339(due), "target": to(receiver.url("/ok"))})])
            .await;
        becomes(&id, &["delivering", "delivered"]).await;
        set_clock(&store, 0).await;
        knows(false).await;
        let knew_in_time = wall_ms() + HOUR_MS < due;
        let state = becomes(&id, &["scheduled", "delivered"]).await;
        if state == "scheduled" {
            assert_eq!(receiver.of(&id).len(), 0, "it is due in an hour");
            break;
        }
        // On a busy machine its time may come by the old clock before the node knows of the new one. That proves nothing.
        assert!(!knew_in_time, "it was sent an hour early");
        assert!(tries < 5, "too busy a machine: five times in a row it was sent before the node knew");
        set_clock(&store, HOUR_MS).await;
    }
    set_clock(&store, HOUR_MS).await;
    settled(&api, tries, 0).await;
}

//! Attempts over time: backoff, the last one, lateness, and receivers that must not disturb each other.

use std::time::Duration;

use serde_json::{Value, json};

use super::{LONG, now, quick, results, with};
use crate::support::{
    Api, Node, NodeBuilder, Received, Receiver, Reply, in_state, on_both, run_sql, to, wall_ms,
};

async fn retries_carry_one_id_and_count_up_to_the_last(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let retry = json!({"attempts": 4, "first": "PT0.2S", "cap": "PT0.4S"});
    let (_, kept) = api.put("t", &with(now(receiver.url("/status/500")), "retry", retry)).await;
    let dead = in_state(&api, "t", "dead").await;
    let all = receiver.received();
    let attempts: Vec<_> = all.iter().map(|one| one.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4], "as many as it has, then a dead letter");
    assert!(all.iter().all(|one| one.delivery_id == kept["delivery_id"] && one.generation == 1));
    assert!(all.iter().all(|one| one.due_at_ms == all[0].due_at_ms), "its due time stays");
    // Nominal waits 0.2, 0.4, 0.4 s, spread over three to five quarters.
    for (pair, nominal) in all.windows(2).zip([200, 400, 400]) {
        let waited = pair[1].at_ms - pair[0].at_ms;
        assert!(waited >= nominal * 3 / 4 - 2, "{waited} ms instead of {nominal}");
    }
    assert_eq!((&dead["attempts"], results(&api, "t").await.len()), (&json!(4), 4));
    assert!(dead["uncertain"].is_null(), "all failed surely");
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.dead, ledger.pending), (1, 1, 0));
}

#[tokio::test]
async fn without_a_policy_there_are_eight_attempts_from_one_second_on() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (_, kept) = api.put("t", &now(receiver.url("/flaky/1"))).await;
    assert_eq!(kept["retry"], json!({"attempts": 8, "first": "PT1S", "cap": "PT1H"}));
    let all = receiver.wait_for(2, LONG).await;
    let waited = all[1].at_ms - all[0].at_ms;
    assert!((748..3000).contains(&waited), "{waited} ms");
}

/// What is found later than its grace expires, unless it shall be delivered all the same.
async fn grace_decides_over_what_is_found_late(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let past =
        |ms: i64| chrono::DateTime::from_timestamp_millis(wall_ms() - ms).expect("a time").to_rfc3339();
    let timer = |ago: i64, late: Value| {
        let timer = json!({"fire_at": past(ago), "target": to(receiver.url("/ok"))});
        if late.is_null() { timer } else { with(timer, "late", late) }
    };
    let expire = |grace: &str| json!({"grace": grace, "then": "expire"});
    for (id, timer) in [
        ("expired", timer(120_000, expire("PT1M"))),
        ("in-time", timer(30_000, expire("PT1M"))),
        ("delivered", timer(120_000, json!({"grace": "PT1M", "then": "deliver"}))),
        ("default", timer(120_000, json!({"grace": "PT1M"}))),
        ("without", timer(120_000, Value::Null)),
    ] {
        assert_eq!(api.put(id, &timer).await.0, 201, "a time in the past is accepted");
    }
    let expired = in_state(&api, "expired", "expired").await;
    assert_eq!((&expired["attempts"], results(&api, "expired").await.len()), (&json!(0), 0));
    for id in ["in-time", "delivered", "default", "without"] {
        in_state(&api, id, "delivered").await;
    }
    assert_eq!(receiver.received().len(), 4);
    assert!(receiver.of("expired").is_empty(), "nothing was sent");
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.expired, ledger.delivered, ledger.pending), (5, 1, 4, 0));
}

/// An outage of two seconds, made by moving what is due into the past while no node runs: the grace of one timer is over when
/// the node comes back, that of the other is not.
#[tokio::test]
async fn an_outage_longer_than_the_grace_expires_and_a_shorter_one_delivers() {
    let mut node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = |grace: &str| json!({"delay": "PT1H", "target": to(receiver.url("/ok")), "late": {"grace": grace, "then": "expire"}});
    for (id, grace) in [("short", "PT0.5S"), ("long", "PT1H")] {
        assert_eq!(api.put(id, &timer(grace)).await.0, 201);
    }
    node.kill9().await;
    let store = format!("sqlite://{}/mainspring.db", node.dir().display());
    let moved = ["due_at", "wake_at", "expire_at", "created_at"].map(|at| format!("{at} = {at} - 3602000"));
    run_sql(&store, &format!("UPDATE timers SET {}", moved.join(", "))).await;
    node.restart().await;
    node.wait_ready(LONG).await;
    in_state(&api, "short", "expired").await;
    in_state(&api, "long", "delivered").await;
    let all = receiver.received();
    assert_eq!(all.iter().map(|one| one.timer.as_str()).collect::<Vec<_>>(), ["long"]);
    assert!(all[0].lateness_ms() >= 2000);
}

/// Registers `count` timers that are due now, as one batch.
async fn burst(api: &Api, name: &str, count: usize, url: String, attempts: u32) {
    let timers: Vec<_> = (0..count)
        .map(|n| with(with(now(&url), "id", json!(format!("{name}-{n}"))), "retry", quick(attempts)))
        .collect();
    let (status, body) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
    assert_eq!(status, 200, "{body}");
}

async fn a_hanging_receiver_does_not_delay_another(builder: NodeBuilder) {
    let node = builder.env("MAINSPRING__DISPATCH__CONCURRENCY", "64").start_ready().await;
    let (api, hanging, quick) = (node.api(), Receiver::start().await, Receiver::start().await);
    burst(&api, "hang", 300, hanging.url("/hang"), 8).await;
    hanging.wait_for(1, LONG).await;
    for round in 1..=3 {
        burst(&api, &format!("quick-{round}"), 50, quick.url("/ok"), 1).await;
        let all = quick.wait_for(50 * round, Duration::from_secs(6)).await;
        assert!(all.iter().all(|one| (0..4000).contains(&one.lateness_ms())), "round {round}");
    }
    let (_, first) = api.timer("hang-0").await;
    assert_ne!(first["state"], "delivered");
    let waiting = hanging.received().len();
    assert!((1..=64).contains(&waiting), "{waiting} of 300 hang, not more than one receiver gets");
    let ledger = api.ledger().await;
    assert!(ledger.balances() && ledger.pending >= 300, "{ledger:?}");
}

#[tokio::test]
async fn retries_do_not_delay_first_firings_to_the_same_receiver() {
    let node = Node::builder().env("MAINSPRING__DISPATCH__CONCURRENCY", "64").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    // Fails at once, and from then on hangs for as long as an attempt may take.
    receiver.on("/worse", |one| if one.attempt == 1 { Reply::status(500) } else { Reply::hang() });
    burst(&api, "worse", 200, receiver.url("/worse"), 50).await;
    let retried = |all: &[Received]| all.iter().any(|one| one.attempt > 1);
    receiver.wait_until(retried, LONG).await;
    burst(&api, "first", 50, receiver.url("/ok"), 1).await;
    let firsts = |all: &[Received]| all.iter().filter(|one| one.path == "/ok").count() == 50;
    let all = receiver.wait_until(firsts, Duration::from_secs(6)).await;
    assert!(all.iter().filter(|one| one.path == "/ok").all(|one| one.lateness_ms() < 5000));
}

on_both!(
    retries_carry_one_id_and_count_up_to_the_last,
    grace_decides_over_what_is_found_late,
    a_hanging_receiver_does_not_delay_another,
);

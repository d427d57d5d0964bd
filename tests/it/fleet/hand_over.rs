//! Shards change hands while attempts are under way.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::watch;

use super::{LONG, Stream, node, verdict};
use crate::support::{
    Api, Node, Receiver, Reply, fresh_database, in_state, register, rfc3339, shared_as, to, wall_ms,
};

/// A receiver whose `/late` answers 204 once it is told to.
async fn receiver() -> (Receiver, watch::Sender<bool>) {
    let (receiver, (release, released)) = (Receiver::start().await, watch::channel(false));
    receiver.on("/late", move |_| Reply::status(204).until(released.clone()));
    (receiver, release)
}

/// Eight timers whose attempts are under way, in as many shards, when this returns; `late0` to `late7`.
async fn eight_under_way(api: &Api, receiver: &Receiver) {
    for n in 0..8 {
        assert_eq!(
            api.put(&format!("late{n}"), &json!({"delay": "PT0S", "target": to(receiver.url("/late"))}))
                .await
                .0,
            201
        );
    }
    receiver.wait_for(8, LONG).await;
}

/// All eight ended at their first attempt.
async fn eight_delivered_once(api: &Api, receiver: &Receiver) {
    for n in 0..8 {
        let id = format!("late{n}");
        let timer = in_state(api, &id, "delivered").await;
        assert_eq!((&timer["attempts"], receiver.of(&id).len()), (&json!(1), 1), "{timer}");
    }
}

/// Registers 200 timers in every shard that fall due in the next two seconds, and returns when they and the eight
/// have arrived.
async fn others_arrive_meanwhile(api: &Api, receiver: &Receiver) {
    let now = wall_ms();
    let timers: Vec<_> = (0..200)
        .map(|n| json!({"id": format!("x{n}"), "fire_at": rfc3339(now + 300 + n * 8), "target": to(receiver.url("/ok"))}))
        .collect();
    register(api, &timers).await;
    receiver.wait_for(8 + 200, LONG).await;
}

/// Two nodes, and attempts under way on the first, which had all shards when they began.
async fn two(receiver: &Receiver, env: &[(&str, &str)]) -> (Node, Node, String) {
    let url = fresh_database().await;
    let env = [&[("MAINSPRING__WEBHOOK__TIMEOUT", "PT25S")], env].concat();
    let build = |name| env.iter().fold(node(name, &url), |node, (key, value)| node.env(*key, *value));
    let a = build("a").start_ready().await;
    eight_under_way(&a.api(), receiver).await;
    let b = build("b").start_ready().await;
    (a, b, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_handed_over_while_its_attempts_are_under_way() {
    let (receiver, release) = receiver().await;
    let (a, b, _) = two(&receiver, &[]).await;
    // Rebalancing does not wait for them.
    shared_as(&b.api(), &[("a", 32), ("b", 32)], LONG).await;
    // Neither does the hand-over of a node that stops.
    let stop = tokio::spawn(async move { a.sigterm().await });
    shared_as(&b.api(), &[("b", 64)], LONG).await;
    others_arrive_meanwhile(&b.api(), &receiver).await;
    assert!(!stop.is_finished(), "it waits for its attempts");
    release.send_replace(true);
    let released = Instant::now();
    eight_delivered_once(&b.api(), &receiver).await;
    let (status, _) = stop.await.expect("stops");
    assert!(status.success() && released.elapsed() < Duration::from_secs(5), "{status}");
    let others = receiver.received().into_iter().filter(|one| one.timer.starts_with('x'));
    let late: Vec<_> = others.map(|one| one.lateness_ms()).collect();
    assert!(late.len() == 200 && late.iter().all(|late| *late >= 0), "each once, none early: {late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ceded_is_spared_when_the_next_owner_dies_too() {
    let (receiver, release) = receiver().await;
    let (a, b, url) = two(&receiver, &[("MAINSPRING__LEASE", "PT1S")]).await;
    let c = node("c", &url).env("MAINSPRING__LEASE", "PT1S").start_ready().await;
    let stop = tokio::spawn(async move { a.sigterm().await });
    shared_as(&c.api(), &[("b", 32), ("c", 32)], LONG).await;
    b.kill9().await;
    shared_as(&c.api(), &[("c", 64)], LONG).await;
    // By then the sweep has looked at every shard, and would have found what is not spared.
    others_arrive_meanwhile(&c.api(), &receiver).await;
    assert!(!stop.is_finished(), "it waits for its attempts");
    release.send_replace(true);
    eight_delivered_once(&c.api(), &receiver).await;
    assert!(stop.await.expect("stops").0.success());
}

/// The first attempts hang, and the node that made them is killed while it stops.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_leaver_had_under_way_when_it_was_killed_comes_again() {
    let receiver = Receiver::start().await;
    receiver.on("/late", |one| if one.attempt == 1 { Reply::hang() } else { Reply::ok() });
    // The first node is killed before its attempts end, on a busy machine too.
    let (a, b, _) = two(&receiver, &[("MAINSPRING__WEBHOOK__TIMEOUT", "PT8S")]).await;
    let pid = rustix::process::Pid::from_raw(a.pid().cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    shared_as(&b.api(), &[("b", 64)], LONG).await;
    a.kill9().await;
    let api = b.api();
    for n in 0..8 {
        let id = format!("late{n}");
        let timer = in_state_within(&api, &id, "delivered", LONG).await;
        assert_eq!(timer["uncertain"], true, "the first may have arrived: {timer}");
        let seen = receiver.of(&id);
        assert_eq!(seen.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(seen[0].delivery_id, seen[1].delivery_id);
        // Timeout and margin: not before the claim has run out, for the leaver might have lived.
        assert!(seen[1].at_ms - seen[0].at_ms > 17_000, "{seen:?}");
    }
}

async fn in_state_within(api: &Api, id: &str, state: &str, within: Duration) -> serde_json::Value {
    crate::support::eventually(&format!("{id} is {state}"), within, async || {
        let (status, timer) = api.timer(id).await;
        if status == 200 && timer["state"] == state { Ok(timer) } else { Err(timer) }
    })
    .await
}

/// Each of three nodes in turn is stopped and started again, twice, under load.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_loses_nothing_and_sends_nothing_twice() {
    let (receiver, url) = (Receiver::start().await, fresh_database().await);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(node(name, &url).start_ready().await);
    }
    let stream = Stream::start("s", nodes.iter().map(Node::api).collect(), receiver.url("/ok"), 300);
    for turn in 0..6 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let node = &mut nodes[turn % 3];
        let (status, _) = node.sigterm().await;
        assert!(status.success(), "{status}");
        node.restart().await;
        node.wait_ready(LONG).await;
    }
    let count = stream.end().await;
    let verdict = verdict(&receiver, count).await;
    verdict.is_clean(count);
    println!("{count} timers; the latest was {} ms late", verdict.latest_ms(0..i64::MAX));
    let ledger = nodes[0].api().ledger().await;
    assert!(ledger.balances() && ledger.registered == count as u64, "{ledger:?}");
}

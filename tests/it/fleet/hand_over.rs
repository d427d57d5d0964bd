//! Shards change hands while attempts are under way.

use std::time::Duration;

use serde_json::json;

use super::{LONG, Stream, node, verdict};
use crate::support::{
    Api, Node, Receiver, Reply, fresh_database, in_state, register, rfc3339, shared_as, to, wall_ms,
};

/// How long the receiver of this room takes for an answer: well beyond what a hand-over may take.
const SLOW: Duration = Duration::from_secs(15);

/// A receiver whose `/late` answers 204 after [`SLOW`].
async fn receiver() -> Receiver {
    let receiver = Receiver::start().await;
    receiver.on("/late", |_| Reply::status(204).after(SLOW));
    receiver
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

/// Timers in every shard that fall due in the next two seconds; they arrive before the slow answers do.
async fn others_arrive_meanwhile(api: &Api, receiver: &Receiver, name: &str) {
    let now = wall_ms();
    let timers: Vec<_> = (0..200)
        .map(|n| json!({"id": format!("{name}{n}"), "fire_at": rfc3339(now + 300 + n * 8), "target": to(receiver.url("/ok"))}))
        .collect();
    register(api, &timers).await;
}

fn arrived(receiver: &Receiver, name: &str) -> Vec<i64> {
    let of = receiver.received().into_iter().filter(|one| one.timer.starts_with(name));
    of.map(|one| one.lateness_ms()).collect()
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
    let receiver = receiver().await;
    let began = wall_ms();
    let (a, b, _) = two(&receiver, &[]).await;
    // Rebalancing does not wait for them.
    shared_as(&b.api(), &[("a", 32), ("b", 32)], LONG).await;
    let in_time = |what| {
        assert!(wall_ms() - began < SLOW.as_millis() as i64, "{what}: the machine is too slow to tell")
    };
    in_time("rebalanced");
    // Neither does a stop.
    others_arrive_meanwhile(&b.api(), &receiver, "x").await;
    let stop = tokio::spawn(async move { a.sigterm().await });
    shared_as(&b.api(), &[("b", 64)], LONG).await;
    in_time("stopped");
    receiver.wait_for(8 + 200, LONG).await;
    in_time("all the others arrived");
    eight_delivered_once(&b.api(), &receiver).await;
    let (status, took) = stop.await.expect("stops");
    assert!(status.success() && took < SLOW + Duration::from_secs(5), "{status} {took:?}");
    let mut late = arrived(&receiver, "x");
    late.sort_unstable();
    assert!(late.len() == 200 && late[0] >= 0, "each once, none early: {late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ceded_is_spared_when_the_next_owner_dies_too() {
    let receiver = receiver().await;
    let began = wall_ms();
    let (a, b, url) = two(&receiver, &[("MAINSPRING__LEASE", "PT1S")]).await;
    let c = node("c", &url).env("MAINSPRING__LEASE", "PT1S").start_ready().await;
    let stop = tokio::spawn(async move { a.sigterm().await });
    shared_as(&c.api(), &[("b", 32), ("c", 32)], LONG).await;
    b.kill9().await;
    // It stays on the list, with nothing.
    shared_as(&c.api(), &[("b", 0), ("c", 64)], LONG).await;
    assert!(wall_ms() - began < SLOW.as_millis() as i64, "the machine is too slow to tell");
    eight_delivered_once(&c.api(), &receiver).await;
    assert!(stop.await.expect("stops").0.success());
}

/// The first attempts hang for good; the node that made them is killed in the midst of its stop.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_leaver_had_under_way_when_it_was_killed_comes_again() {
    let receiver = Receiver::start().await;
    receiver.on("/late", |one| if one.attempt == 1 { Reply::hang() } else { Reply::ok() });
    let (a, b, _) = two(&receiver, &[("MAINSPRING__WEBHOOK__TIMEOUT", "PT5S")]).await;
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
        assert!(seen[1].at_ms - seen[0].at_ms > 14_000, "{seen:?}");
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

//! SIGHUP: the capacity of a node is changed while it works.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Node, Received, Receiver, eventually, register, rfc3339, settled, to, wall_ms};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// How long the receiver takes to answer, in milliseconds.
const SLOW_MS: i64 = 400;

/// Writes these settings, tells the node, and waits until its log says this once more.
async fn take_over(node: &Node, settings: &str, said: &str) {
    let before = node.log().matches(said).count();
    fs::write(node.dir().join("config.toml"), settings).expect("written");
    let pid = Pid::from_raw(i32::try_from(node.pid()).expect("a pid")).expect("not 0");
    kill_process(pid, Signal::HUP).expect("it is there");
    eventually(said, LONG, async || {
        let log = node.log();
        if log.matches(said).count() > before { Ok(()) } else { Err(log) }
    })
    .await;
}

fn soon(name: &str, count: usize, url: &str) -> Vec<Value> {
    let at = rfc3339(wall_ms() + 500);
    (0..count).map(|n| json!({"id": format!("{name}{n}"), "fire_at": at, "target": to(url)})).collect()
}

/// The most that were under way at once: they arrived within the time that an answer takes.
fn at_once(received: &[Received], name: &str) -> usize {
    let mine = || received.iter().filter(|one| one.timer.starts_with(name));
    let beside = |one: &Received| {
        let within = one.at_ms..one.at_ms + SLOW_MS;
        mine().filter(|other| within.contains(&other.at_ms)).count()
    };
    mine().map(beside).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_takes_its_capacity_over_while_it_works() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let url = receiver.url(&format!("/slow/{SLOW_MS}"));

    take_over(&node, "[webhook]\nconcurrency = 2\n", "changed while it runs").await;
    register(&api, &soon("few", 12, &url)).await;
    settled(&api, 12, 0).await;
    assert!(at_once(&receiver.received(), "few") <= 2, "{:?}", receiver.received());

    let more = "[webhook]\nconcurrency = 40\n[wheel]\ncatch_up_per_second = 500\n";
    take_over(&node, more, "key=\"wheel.catch_up_per_second\" before=\"10000\" now=\"500\"").await;
    register(&api, &soon("many", 120, &url)).await;
    settled(&api, 132, 0).await;
    assert!(at_once(&receiver.received(), "many") > 2, "{:?}", receiver.received());

    take_over(&node, "[webhook]\nconcurrency = \"many\"\n", "the settings in force stay as they are").await;
    take_over(&node, more, "the capacity is as it was").await;
    let others = format!("shards = 8\n{more}");
    take_over(&node, &others, "taken over by a restart only").await;
    assert!(node.log().contains("keys=\"shards\""), "{}", node.log());
    assert_eq!(api.get("/readyz").await.0, 200);
}

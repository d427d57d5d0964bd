//! A Redis that has no room for all that is due within the window.

use super::parts::{MINUTE, SECOND};
use super::rig::{Node, Rig, TestWheel};
use super::space::START_MS;
use crate::support::Redis;

/// More than the room, and some pages of the loader.
const TIMERS: i64 = 60_000;

/// What Redis has room for beyond what it needs for itself: half of the pointers, about, and what is on its way.
const ROOM: u64 = 1_600_000;

/// Timers that are due at even distances until so many milliseconds after the start, and a node in whose Redis they find
/// no room.
async fn crowded(redis: &Redis, sets: &[&str], until: i64) -> (Rig, Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let cold = format!("sqlite://{}", dir.path().join("t.db").display());
    let rig = Rig::new(&cold, TestWheel::in_server(&redis.url()).await, sets).await;
    let timers: Vec<_> = (1..=TIMERS).map(|n| rig.timer(&format!("t{n}"), n * until / TIMERS)).collect();
    for batch in timers.chunks(1000) {
        rig.commit(batch).await;
    }
    let node = rig.start("a").await;
    let memory = redis.cli(&["INFO", "memory"]).await;
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a figure");
    let limit = used.trim().parse::<u64>().expect("bytes") + ROOM;
    redis.cli(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).await;
    (rig, node, dir)
}

/// Rounds until nothing is left to do at this moment, or until the wheels rest.
async fn rounds(node: &mut Node) {
    for _ in 0..300 {
        // It may say that there is no room.
        let _ = node.loader.run_once().await;
        let _ = node.tick().await;
        if node.is_still() {
            return;
        }
    }
    assert!(!node.positions().without_room().is_empty(), "it never comes to rest");
}

fn rebuilt(rig: &Rig) -> u64 {
    rig.metrics.replays.with_label_values(&["rebuilt"]).get()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_too_small_settles_and_reaches_further_when_it_has_room() {
    let redis = Redis::private().await;
    let sets = ["shards=4", "wheel.window=PT1H", "wheel.near=PT2M"];
    let (rig, mut node, _dir) = crowded(&redis, &sets, 60 * MINUTE).await;
    rounds(&mut node).await;
    assert!(node.is_still() && node.positions().reach.is_short());
    assert!(node.positions().reach.get().as_secs() >= 225, "a quarter of an hour has room");

    let settled = rebuilt(&rig);
    let mut came = 0;
    for second in 1..=180 {
        rig.at(second * SECOND);
        rounds(&mut node).await;
        came += node.due().len() as i64;
    }
    assert_eq!(rebuilt(&rig), settled, "it does not load again and again");
    // The last mile lets go of them a little ahead.
    assert!(came >= 3 * MINUTE * TIMERS / (60 * MINUTE), "{came} were brought by the wheels");
    assert!(node.positions().reach.is_short(), "more than half of the memory is in use");

    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for minute in 4..=9 {
        rig.at(minute * MINUTE);
        rounds(&mut node).await;
    }
    assert!(!node.positions().reach.is_short());
    let watermark = node.positions().lowest_watermark().expect("they turn").get();
    assert!(watermark >= START_MS + 69 * MINUTE);
    assert_eq!(rebuilt(&rig), settled, "a longer reach is added to what is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn wheels_that_cannot_reach_less_far_rest() {
    let redis = Redis::private().await;
    let sets = ["shards=4", "wheel.window=PT10M", "wheel.near=PT10M"];
    let (rig, mut node, _dir) = crowded(&redis, &sets, 10 * MINUTE).await;
    rounds(&mut node).await;
    assert!(!node.positions().without_room().is_empty());
    let before = node.positions().waiting();
    assert_eq!(before.len(), 4);
    for _ in 0..20 {
        node.loader.run_once().await.expect("there is nothing to do");
    }
    assert_eq!(node.positions().waiting(), before);

    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    rig.at(31 * SECOND);
    rounds(&mut node).await;
    assert!(node.is_still() && node.positions().without_room().is_empty());
}

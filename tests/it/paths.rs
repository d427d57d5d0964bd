//! By which path a due timer is noticed: the wheels when all is well, the sweep when they are off or lost, a
//! replay after a restart or a take-over.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Api, Cluster, Node, NodeBuilder, Received, Receiver, Traffic, Verdict, Watch, eventually, fresh_database,
    register, rfc3339, settled, shared_as, to, wall_ms,
};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// How many first attempts each path brought: loader, express, sweep, replay.
async fn fired(apis: &[Api]) -> [u64; 4] {
    let mut sums = [0; 4];
    for api in apis {
        for (sum, path) in sums.iter_mut().zip(["loader", "express", "sweep", "replay"]) {
            *sum += api.metric(&format!("mainspring_fired_total{{path=\"{path}\"}}")).await as u64;
        }
    }
    sums
}

async fn swept(apis: &[Api]) -> u64 {
    let mut sum = 0;
    for api in apis {
        sum += api.metric("mainspring_swept_total").await as u64;
    }
    sum
}

fn apis(nodes: &[Node]) -> Vec<Api> {
    nodes.iter().map(Node::api).collect()
}

/// Two nodes on one new database and one Redis, which share the shards.
async fn two_nodes(with: impl Fn(NodeBuilder) -> NodeBuilder) -> Vec<Node> {
    let cold = fresh_database().await;
    let node = |name: &str| with(Node::builder().cold(&cold).name(name));
    let nodes = vec![node("one").start_ready().await, node("two").start_ready().await];
    shared_as(&nodes[0].api(), &[("one", 32), ("two", 32)], LONG).await;
    nodes
}

/// `count` timers, named by `name`, that fall due one after another from `from` until `until` milliseconds
/// from now.
fn due_between(name: &str, count: usize, from: i64, until: i64, url: &str) -> Vec<Value> {
    let now = wall_ms();
    let timer = |n: usize| {
        let due = now + from + (until - from) * n as i64 / count as i64;
        json!({"id": format!("{name}{n}"), "fire_at": rfc3339(due), "target": to(url),
            "retry": {"attempts": 5, "first": "PT1.2S", "cap": "PT1.2S"}})
    };
    (0..count).map(timer).collect()
}

/// Everything arrives, each once unless its first attempt is made to fail, and the wheels bring it. The sweep
/// brings what is a second overdue; a timer so late is the wheels' loss, unless the nodes were slow to answer
/// their calls just then: a machine that stands still makes the sweep come first.
async fn the_wheels_bring_everything(nodes: Vec<Node>) {
    const PACED: usize = 1200;
    const BURST: usize = 400;
    const MOVED: usize = 60;
    /// How often a timer is pushed back that keeps its first pointer.
    const BEATS: usize = 4;
    /// What the sweep brings is overdue by this much, in milliseconds.
    const SWEPT_MS: i64 = 1000;
    let (apis, receiver) = (apis(&nodes), Receiver::start().await);
    let (ok, flaky) = (receiver.url("/ok"), receiver.url("/flaky/1"));
    let other = apis.last().expect("a node");
    let watch = Watch::start(&apis);
    register(&apis[0], &due_between("far", MOVED * 2, 3_000_000, 3_100_000, &ok)).await;
    register(other, &due_between("paced", PACED, 1500, 5500, &ok)).await;
    register(&apis[0], &due_between("burst", BURST, 3500, 3501, &ok)).await;
    register(other, &due_between("retried", MOVED, 1000, 3000, &flaky)).await;
    for n in 0..MOVED {
        let moved = json!({"fire_at": rfc3339(wall_ms() + 1000 + n as i64 * 50)});
        assert_eq!(other.patch(&format!("far{n}"), &moved).await.0, 200);
        let fire = format!("/v1/timers/far{}/fire", MOVED + n);
        assert_eq!(apis[0].post(&fire, &json!({})).await.0, 202);
    }
    let beats = wall_ms() + 8000;
    register(&apis[0], &due_between("beat", MOVED, 8000, 8001, &ok)).await;
    // Half of them to less than a second after their pointer comes up, half to more. Each a call after the other.
    let pushed_back = async |n: usize| {
        for beat in 1..=BEATS {
            let due = beats + (beat * (200 + 200 * (n % 2))) as i64;
            assert_eq!(other.patch(&format!("beat{n}"), &json!({"fire_at": rfc3339(due)})).await.0, 200);
        }
    };
    futures::future::join_all((0..MOVED).map(pushed_back)).await;
    let all = PACED + BURST + MOVED * 4;
    settled(&apis[0], all, 0).await;
    let stalls = watch.end().await;
    let (failing, once): (Vec<Received>, Vec<Received>) =
        receiver.received().into_iter().partition(|one| one.path.starts_with("/flaky"));
    Verdict::on(&once).is_clean(all - MOVED);
    assert_eq!(failing.len(), MOVED * 2, "each of them twice");
    let [loader, express, sweep, replay] = fired(&apis).await;
    println!("{all} fired: {loader} by the loader, {express} at once, {sweep} by sweep, {replay} by replay");
    assert_eq!((loader + express + sweep + replay) as usize, all);

    let first = || once.iter().chain(&failing).filter(|one| one.attempt == 1);
    let stood_still = |one: &&Received| stalls.touch(one.at_ms - one.lateness_ms() - 500..one.at_ms);
    let lost: Vec<_> = first().filter(|one| one.lateness_ms() >= SWEPT_MS && !stood_still(one)).collect();
    assert!(lost.is_empty(), "the wheels lost these: {lost:?}");
    // Where a wheel does not keep up, the sweep waits for no second.
    let excused = first().filter(stood_still).count();
    assert!(sweep as usize <= excused, "{sweep} by sweep, but only {excused} while the nodes stood still");
    assert!(sweep as usize <= all / 2, "the machine stood still most of the time: {sweep} by sweep");
    let retries_swept = swept(&apis).await - sweep;
    assert!(retries_swept == 0 || !stalls.is_empty(), "{retries_swept} retries came by the sweep");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_node_leaves_nothing_to_the_sweep() {
    let embedded = Node::builder().start_ready().await;
    let shared = Node::builder().cold(fresh_database().await).start_ready().await;
    tokio::join!(the_wheels_bring_everything(vec![embedded]), the_wheels_bring_everything(vec![shared]));
}

#[tokio::test(flavor = "multi_thread")]
async fn healthy_nodes_leave_nothing_to_the_sweep() {
    the_wheels_bring_everything(two_nodes(|node| node).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn healthy_nodes_on_a_redis_cluster_leave_nothing_to_the_sweep() {
    let cluster = Cluster::shared().await;
    the_wheels_bring_everything(two_nodes(|node| node.hot(cluster.url())).await).await;
}

/// A window of three seconds: what is due later comes through the loader, what is due sooner at once.
async fn each_takes_its_way(nodes: Vec<Node>) {
    const EACH: usize = 300;
    let (apis, receiver) = (apis(&nodes), Receiver::start().await);
    let (ok, watch) = (receiver.url("/ok"), Watch::start(&apis));
    for (n, api) in apis.iter().enumerate() {
        register(api, &due_between(&format!("late{n}-"), EACH, 4500, 6500, &ok)).await;
        register(api, &due_between(&format!("soon{n}-"), EACH, 300, 1500, &ok)).await;
    }
    let each = EACH * apis.len();
    let received = receiver.wait_for(each * 2, LONG).await;
    Verdict::on(&received).is_clean(each * 2);
    settled(&apis[0], each * 2, 0).await;
    let ways @ [loader, express, sweep, replay] = fired(&apis).await;
    if watch.end().await.is_empty() {
        assert_eq!(ways, [each as u64, each as u64, 0, 0], "loader, express, sweep, replay");
        assert_eq!(swept(&apis).await, 0);
    }
    // A machine that stands still makes the sweep come first, and what it is late to register goes at once.
    assert!(loader <= each as u64 && replay == 0, "{ways:?}");
    assert_eq!((loader + express + sweep) as usize, each * 2);
}

fn short(builder: NodeBuilder) -> NodeBuilder {
    builder.env("MAINSPRING__WHEEL__WINDOW", "PT3S").env("MAINSPRING__WHEEL__NEAR", "PT1S")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_beyond_the_window_comes_through_the_loader_of_its_owner() {
    let embedded = vec![short(Node::builder()).start_ready().await];
    let shared = vec![short(Node::builder().cold(fresh_database().await)).start_ready().await];
    let two = two_nodes(short).await;
    tokio::join!(each_takes_its_way(embedded), each_takes_its_way(shared), each_takes_its_way(two));
}

fn without_wheels(builder: NodeBuilder) -> NodeBuilder {
    builder.env("MAINSPRING__WHEEL__ENABLED", "false")
}

async fn the_sweep_alone_brings_everything(builder: NodeBuilder) {
    let node = without_wheels(builder).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (status, ready) = api.get("/readyz").await;
    assert_eq!((status, &ready["status"]), (200, &json!("degraded")), "{ready}");
    let wheels = ready["checks"]["wheels"].as_str().expect("text");
    assert!(wheels.starts_with("off"), "{wheels}");
    assert!(node.log().contains("`wheel.enabled` is false"));
    let watch = Watch::start(std::slice::from_ref(&api));
    register(&api, &due_between("t", 800, 500, 4500, &receiver.url("/ok"))).await;
    let received = receiver.wait_for(800, LONG).await;
    settled(&api, 800, 0).await;
    let stalls = watch.end().await;
    Verdict::on(&received).is_clean(800);
    // A second, and as much as a busy machine adds beside the time that it stands still.
    let is_late =
        |one: &&Received| one.lateness_ms() > 3000 + stalls.within(one.at_ms - one.lateness_ms()..one.at_ms);
    let late: Vec<_> = received.iter().filter(is_late).collect();
    assert!(late.is_empty(), "{late:?}; {stalls:?}");
    assert_eq!(fired(std::slice::from_ref(&api)).await, [0, 0, 800, 0], "loader, express, sweep, replay");
    assert_eq!(api.metric("mainspring_swept_total").await, 800.0);
}

/// Without wheels everything fires from the sweep, so a look that took long is not followed by a long rest.
#[tokio::test]
async fn a_store_that_stalls_delays_the_sweep_no_longer_than_it_stalls() {
    let cold = fresh_database().await;
    let node = without_wheels(Node::builder().cold(&cold)).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    register(&api, &due_between("t", 400, 500, 8000, &receiver.url("/ok"))).await;
    receiver.wait_for(20, LONG).await;
    let before = wall_ms();
    crate::support::psql(&cold, "BEGIN; LOCK TABLE timers; SELECT pg_sleep(2); COMMIT").await;
    let (after, received) = (wall_ms(), receiver.wait_for(400, LONG).await);
    let verdict = Verdict::on(&received);
    verdict.is_clean(400);
    let late = verdict.latest_ms(0..i64::MAX);
    assert!(late <= after - before + 3000, "{late} ms late, of a stall of {} ms", after - before);
}

/// Timers lie in the wheels when the node goes: those that fall due meanwhile, and those after.
async fn a_restart_loses_nothing(builder: NodeBuilder, end: impl AsyncFnOnce(&Node)) {
    const EACH: usize = 150;
    let mut node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (ok, shared) = (receiver.url("/ok"), api.wheels().await["shared"] == true);
    let meanwhile = due_between("meanwhile", EACH, 6500, 7000, &ok);
    let due: i64 = wall_ms() + 7000;
    register(&api, &meanwhile).await;
    register(&api, &due_between("after", EACH, 11_000, 12_000, &ok)).await;
    register(&api, &due_between("waits", EACH, 3_000_000, 3_100_000, &ok)).await;
    eventually("they are in the wheels", LONG, async || {
        let held = crate::support::in_wheels(&api.wheels().await);
        if held >= EACH as u64 { Ok(()) } else { Err(held) }
    })
    .await;
    end(&node).await;
    assert!(wall_ms() < due - 500, "too busy a machine: they were due before the node had gone");
    assert_eq!(receiver.received().len(), 0);
    // No node runs whose answer would tell that they are overdue, so the time is waited for.
    tokio::time::sleep(Duration::from_millis(u64::try_from(due + 100 - wall_ms()).unwrap_or(0))).await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let verdict = Verdict::on(&receiver.wait_for(EACH * 2, LONG).await);
    settled(&api, EACH * 2, EACH).await;
    verdict.is_clean(EACH * 2);
    let [loader, express, sweep, replay] = fired(std::slice::from_ref(&api)).await;
    println!(
        "after the restart: {loader} by the loader, {express} at once, {sweep} by sweep, {replay} by replay"
    );
    assert_eq!((loader + express + sweep + replay) as usize, EACH * 2, "by the new process");
    // A wheel in Redis outlives its node and still holds them: the ticker and the replay both find them. While the
    // machine stands still, the sweep finds some that are due afterwards, too.
    assert!(shared || (replay > 0 && (sweep + replay) as usize >= EACH), "what was overdue is found in SQL");
    assert!(node.log().lines().any(|line| line.contains("replayed") && line.contains("cause")));
    eventually("what waits is in the wheels", LONG, async || {
        let held = crate::support::in_wheels(&api.wheels().await);
        if held >= EACH as u64 { Ok(()) } else { Err(held) }
    })
    .await;
}

async fn a_node_that_was_stopped_or_killed_finds_its_timers_again(stopped: NodeBuilder, killed: NodeBuilder) {
    let stop = async |node: &Node| assert!(node.sigterm().await.0.success());
    let kill = async |node: &Node| node.kill9().await;
    tokio::join!(a_restart_loses_nothing(stopped, stop), a_restart_loses_nothing(killed, kill));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_node_finds_its_timers_again() {
    a_node_that_was_stopped_or_killed_finds_its_timers_again(Node::builder(), Node::builder()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_redis_finds_its_timers_again() {
    let (stopped, killed) = (fresh_database().await, fresh_database().await);
    let (stopped, killed) = (Node::builder().cold(stopped), Node::builder().cold(killed));
    a_node_that_was_stopped_or_killed_finds_its_timers_again(stopped, killed).await;
}

/// Attempts under way at once on one node: the most duplicates that a kill explains.
const CONCURRENCY: usize = 64;

/// What a dead node's shards held fires on the other, as soon as its leases have run out.
#[tokio::test(flavor = "multi_thread")]
async fn the_shards_of_a_killed_node_fire_on_the_other() {
    const LEASE_MS: i64 = 2000;
    let nodes = two_nodes(|node| {
        node.env("MAINSPRING__LEASE", "PT2S")
            .env("MAINSPRING__DISPATCH__CONCURRENCY", CONCURRENCY.to_string())
    })
    .await;
    let (apis, receiver) = (apis(&nodes), Receiver::start().await);
    let traffic = Traffic::start(vec![apis[1].clone()], receiver.url("/ok"), 200);
    register(&apis[1], &due_between("waits", 400, 3_000_000, 3_100_000, "http://127.0.0.1:9/")).await;
    receiver.wait_for(300, LONG).await;
    let hit = wall_ms();
    nodes[0].kill9().await;
    shared_as(&apis[1], &[("two", 64)], LONG).await;
    let taken = wall_ms();
    let seen = receiver.received().len();
    receiver.wait_for(seen + 500, LONG).await;
    let (acknowledged, slowest) = traffic.end().await;
    settled(&apis[1], acknowledged, 400).await;
    let verdict = Verdict::on(&receiver.received());
    let (away, after) =
        (verdict.latest_ms(hit - 1000..taken + 2000), verdict.latest_ms(taken + 2000..i64::MAX));
    println!(
        "{acknowledged} fired, taken over after {} ms: lost {}, early {}, duplicates {}, latest meanwhile {away} ms, \
         afterwards {after} ms; {:?} by loader, express, sweep, replay on the other; slowest registration {slowest:?}",
        taken - hit,
        acknowledged - verdict.arrived,
        verdict.early,
        verdict.duplicates,
        fired(&apis[1..]).await,
    );
    assert_eq!((verdict.arrived, verdict.early), (acknowledged, 0));
    assert!(verdict.duplicates <= CONCURRENCY, "only what was in flight: {}", verdict.duplicates);
    let stalled = i64::try_from(slowest.as_millis()).expect("short");
    let first: Vec<Received> = receiver.received().into_iter().filter(|one| one.attempt == 1).collect();
    let first = Verdict::on(&first).latest_ms(hit - 1000..taken + 2000);
    assert!(first <= LEASE_MS + 2000 + stalled, "{first} ms late");
    // What the dead node had claimed is taken up by the sweep, and is a second attempt.
    assert!(away <= LEASE_MS + 3000 + stalled, "{away} ms late");
    assert!(after <= 2000 + stalled, "{after} ms late after the take-over");
    let log = nodes[1].log();
    let told = log.lines().any(|line| line.contains("replayed") && line.contains("with its wheel (resumed)"));
    assert!(told, "{log}");
    assert!(crate::support::in_wheels(&apis[1].wheels().await) >= 400);
}

/// A node that is stopped under load hands its shards over: nothing is lost and nothing comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_hands_its_shards_over() {
    let nodes = two_nodes(|node| node).await;
    let (apis, receiver) = (apis(&nodes), Receiver::start().await);
    let traffic = Traffic::start(vec![apis[1].clone()], receiver.url("/ok"), 200);
    receiver.wait_for(300, LONG).await;
    let (asked, before) = (wall_ms(), swept(&apis).await);
    let (status, took) = nodes[0].sigterm().await;
    assert!(status.success(), "{status}");
    shared_as(&apis[1], &[("two", 64)], LONG).await;
    let taken = wall_ms();
    let seen = receiver.received().len();
    receiver.wait_for(seen + 500, LONG).await;
    let (acknowledged, slowest) = traffic.end().await;
    settled(&apis[1], acknowledged, 0).await;
    let verdict = Verdict::on(&receiver.received());
    let late = verdict.latest_ms(asked - 1000..i64::MAX);
    println!(
        "{acknowledged} fired, stopped within {took:?}, taken over after {} ms: lost {}, early {}, duplicates {}, \
         latest {late} ms; {} swept before the stop, {} on the other in all; slowest registration {slowest:?}",
        taken - asked,
        acknowledged - verdict.arrived,
        verdict.early,
        verdict.duplicates,
        before,
        swept(&apis[1..]).await,
    );
    verdict.is_clean(acknowledged);
    let stalled = i64::try_from(slowest.as_millis()).expect("short");
    assert!(late <= 4000 + stalled, "{late} ms late");
}

crate::support::on_both!(the_sweep_alone_brings_everything);

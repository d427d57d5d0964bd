//! Redis that is emptied, replaced, rolled back, stopped, full, away or misnamed while timers fire: it costs
//! lateness, never a timer, and the replay's report says what was done about it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, due_in, refused, to};
use crate::support::{
    Api, Cluster, Keeps, Node, Received, Receiver, Redis, Traffic, Verdict, Watch, eventually, free_port,
    fresh_database, in_wheels, problem, register, rfc3339, wall_ms,
};

/// Without Redis everything fires from SQL, which is looked through every second.
const WHILE_AWAY_MS: i64 = 4000;

/// What is due this long after the wheels turn again, and later, is at most so late again. How soon they do once
/// Redis is back depends on the machine.
const ONCE_BACK_MS: i64 = 2000;

/// No batch takes as long as this, whatever Redis does.
const STALLED: Duration = Duration::from_secs(5);

/// The load of a test.
struct Load {
    /// Timers that lie in the wheels all the time.
    window: usize,
    /// Timers a second that fire.
    rate: usize,
    /// How long Redis is away.
    away: Duration,
    /// How long the stream goes on before and after.
    around: Duration,
}

fn load(nodes: usize) -> Load {
    match crate::crash::long() {
        true => {
            Load { window: 50_000, rate: 500, away: Duration::from_secs(10), around: Duration::from_secs(10) }
        }
        false => Load {
            window: 3000,
            rate: 120 / nodes,
            away: Duration::from_secs(4),
            around: Duration::from_secs(2),
        },
    }
}

/// A running service, its stream, and the Redis that something is done to.
struct Scene {
    redis: Redis,
    nodes: Vec<Node>,
    receiver: Receiver,
    load: Load,
}

impl Scene {
    async fn start(keeps: Keeps, nodes: usize) -> Self {
        let (redis, cold, load) = (Redis::private_keeping(keeps).await, fresh_database().await, load(nodes));
        let mut all = Vec::new();
        for _ in 0..nodes {
            all.push(Node::builder().cold(&cold).hot(redis.url()).start_ready().await);
        }
        Self { redis, nodes: all, receiver: Receiver::start().await, load }
    }

    fn apis(&self) -> Vec<Api> {
        self.nodes.iter().map(Node::api).collect()
    }

    /// Waits until timers have arrived that were due so much later.
    async fn fires_for(&self, span: Duration) {
        let until = wall_ms() + i64::try_from(span.as_millis()).expect("short");
        let later = |all: &[Received]| all.iter().rev().take(100).any(|one| one.due_at_ms >= Some(until));
        self.receiver.wait_until(later, span + LONG).await;
    }

    async fn all_are(&self, status: &str) {
        for api in self.apis() {
            eventually(&format!("/readyz says {status}"), LONG, async || {
                let seen = api.readiness().await;
                if seen == status { Ok(()) } else { Err(seen) }
            })
            .await;
        }
    }

    async fn sum(&self, series: &str) -> f64 {
        let mut sum = 0.0;
        for api in self.apis() {
            sum += api.metric(series).await;
        }
        sum
    }
}

/// Lets `fault` happen while the wheels are full and timers fire, and checks all that is promised. The
/// replay's report names one of `causes`. `every_shard` is replayed, or those that a pointer was for.
async fn redis_is_disposable(
    mut scene: Scene,
    before: impl AsyncFnOnce(&Redis),
    fault: impl AsyncFnOnce(&mut Scene),
    causes: &[&str],
    every_shard: bool,
) {
    let (window, rate, around) = (scene.load.window, scene.load.rate, scene.load.around);
    let apis = scene.apis();
    let waiting: Vec<Value> = (0..window)
        .map(|n| {
            let due = 1200 + 1800 * n / window;
            json!({"id": format!("w{n}"), "delay": format!("PT{due}S"), "target": to("http://127.0.0.1:9/")})
        })
        .collect();
    register(&apis[0], &waiting).await;
    let full = async |what: &str| {
        eventually(what, LONG, async || {
            let held = in_wheels(&apis[0].wheels().await);
            if held >= window as u64 { Ok(()) } else { Err(held) }
        })
        .await;
    };
    full("the window is in the wheels").await;
    before(&scene.redis).await;
    let replays = scene.sum("mainspring_replays_total").await;

    let traffic = Traffic::start(apis.clone(), scene.receiver.url("/ok"), rate);
    scene.fires_for(around).await;
    let hit = wall_ms();
    fault(&mut scene).await;
    let back = wall_ms();
    scene.all_are("ok").await;
    let turning = wall_ms();
    scene.fires_for(around).await;
    for api in &apis {
        assert_eq!(api.metric("mainspring_wheels_up").await, 1.0);
        eventually("the cursor has caught up", LONG, async || {
            let lag = api.metric("mainspring_cursor_lag_seconds").await;
            if lag < 1.0 { Ok(()) } else { Err(lag) }
        })
        .await;
    }
    full("the window is in the wheels again").await;
    let (acknowledged, slowest) = traffic.end().await;

    let distinct = |all: &[Received]| {
        let timers: std::collections::HashSet<_> = all.iter().map(|one| &one.timer).collect();
        timers.len() >= acknowledged
    };
    let received = scene.receiver.wait_until(distinct, LONG).await;
    eventually("the ledger settles", LONG, async || {
        let ledger = apis[0].ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        let seen = (ledger.delivered, ledger.pending);
        if seen == (acknowledged as u64, window as u64) { Ok(()) } else { Err(ledger) }
    })
    .await;
    let verdict = Verdict::on(&received);
    let calm = verdict.latest_ms(0..hit);
    let away = verdict.latest_ms(hit..turning + ONCE_BACK_MS);
    let after = verdict.latest_ms(turning + ONCE_BACK_MS..i64::MAX);
    println!(
        "{window} in the window, {acknowledged} fired at {rate}/s on {} nodes, Redis hit for {} ms, wheels \
         turn {} ms later: lost {}, early {}, duplicates {}, latest before {calm} ms, meanwhile {away} ms, once \
         back {after} ms; by sweep {}, by replay {}; slowest registration {slowest:?}",
        apis.len(),
        back - hit,
        turning - back,
        acknowledged - verdict.arrived,
        verdict.early,
        verdict.duplicates,
        scene.sum("mainspring_fired_total{path=\"sweep\"}").await,
        scene.sum("mainspring_fired_total{path=\"replay\"}").await,
    );
    verdict.is_clean(acknowledged);
    // A busy machine stalls the store too, and that is not Redis's doing.
    assert!(slowest < STALLED, "registering does not wait for Redis: {slowest:?}");
    let stalled = i64::try_from(slowest.as_millis()).expect("short");
    assert!(away <= WHILE_AWAY_MS + stalled, "{away} ms late while Redis was away");
    assert!(after <= ONCE_BACK_MS + stalled, "{after} ms late once the wheels turned again");
    let replayed = scene.sum("mainspring_replays_total").await - replays;
    assert!(replayed >= if every_shard { 64.0 } else { 1.0 }, "{replayed} shards were replayed");
    let named = |text: &str| causes.iter().any(|cause| text.contains(cause));
    for node in &scene.nodes {
        let log = node.log();
        let told = log.lines().filter(|line| line.contains("replayed")).any(named);
        assert!(told, "no replay for any of {causes:?}: {log}");
    }
    let mut told = None;
    for n in 0..if every_shard { 1 } else { window } {
        let (_, life) = apis[0].get(&format!("/v1/timers/w{n}/explain")).await;
        let since = rfc3339(hit);
        let mut events = life["events"].as_array().expect("events").iter();
        told = events.find(|one| one["event"] == "replayed" && one["at"].as_str() >= Some(&since)).cloned();
        if told.is_some() {
            break;
        }
    }
    let told = told.expect("a timer in the window tells of its replay");
    let detail = told["detail"].as_str().expect("a detail");
    assert!(named(detail) && detail.contains("built anew from SQL"), "{detail}");
}

async fn flushed(nodes: usize) {
    let scene = Scene::start(Keeps::Writes, nodes).await;
    let fault = async |scene: &mut Scene| scene.redis.flush_all().await;
    redis_is_disposable(scene, async |_| {}, fault, &["it was emptied"], true).await;
}

/// Kills Redis, waits until the nodes say so and timers fire without it, then starts it by `again`.
async fn gone_then(scene: &mut Scene, again: impl AsyncFnOnce(&mut Redis)) {
    scene.redis.kill().await;
    scene.all_are("degraded").await;
    scene.fires_for(Duration::from_secs(2)).await;
    again(&mut scene.redis).await;
}

/// A shard whose pointer Redis did not take is built anew, whatever comes of Redis.
const NOT_ADDED: &[&str] = &["pointers could not be added to it"];

/// A restarted server is recognised by its `run_id`, or by what its wheels lack if a write or a take comes first.
const RESTARTED: &[&str] =
    &["Redis was restarted or replaced by another", NOT_ADDED[0], "it was emptied", "it was rolled back"];

async fn restarted_empty(nodes: usize) {
    let scene = Scene::start(Keeps::Snapshots, nodes).await;
    let fault = async |scene: &mut Scene| gone_then(scene, async |redis| redis.start_empty().await).await;
    redis_is_disposable(scene, async |_| {}, fault, RESTARTED, true).await;
}

async fn rolled_back(nodes: usize) {
    let scene = Scene::start(Keeps::Snapshots, nodes).await;
    let fault = async |scene: &mut Scene| gone_then(scene, async |redis| redis.roll_back().await).await;
    redis_is_disposable(scene, async |redis| redis.save_copy().await, fault, RESTARTED, true).await;
}

/// The process of Redis is stopped, so its connections stay open and nothing answers.
async fn stopped(nodes: usize) {
    let scene = Scene::start(Keeps::Writes, nodes).await;
    let fault = async |scene: &mut Scene| {
        scene.redis.stop_process();
        scene.all_are("degraded").await;
        scene.fires_for(scene.load.away).await;
        for api in scene.apis() {
            assert_eq!(api.readiness().await, "degraded");
            assert_eq!(api.metric("mainspring_wheels_up").await, 0.0);
            let lag = api.metric("mainspring_cursor_lag_seconds").await;
            assert!(lag >= 2.0, "{lag} s behind after {:?}", scene.load.away);
        }
        scene.redis.continue_process();
    };
    redis_is_disposable(scene, async |_| {}, fault, NOT_ADDED, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_emptied_costs_no_timer() {
    flushed(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_emptied_costs_two_nodes_no_timer() {
    flushed(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_empty_costs_no_timer() {
    restarted_empty(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_rolled_back_costs_no_timer() {
    rolled_back(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_stopped_costs_no_timer() {
    stopped(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_stopped_costs_two_nodes_no_timer() {
    stopped(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_replaced_costs_two_nodes_no_timer() {
    restarted_empty(2).await;
    if crate::crash::long() {
        rolled_back(2).await;
    }
}

/// It refuses every write; reading goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_costs_no_timer() {
    let scene = Scene::start(Keeps::Writes, 1).await;
    let fault = async |scene: &mut Scene| {
        scene.redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
        scene.redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
        scene.all_are("degraded").await;
        scene.fires_for(Duration::from_secs(2)).await;
        let log = scene.nodes[0].log();
        let told = log.lines().any(|line| line.contains("WARN") && line.contains("OOM"));
        assert!(told, "the log says that Redis is full: {log}");
        assert!(log.lines().all(|line| line.len() < 1000), "and says it once: {log}");

        // More than half of this is in use: the wheels turn again, and reach less far.
        let memory = scene.redis.cli(&["INFO", "memory"]).await;
        let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a figure");
        let limit = used.trim().parse::<u64>().expect("bytes") * 3 / 2;
        scene.redis.cli(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).await;
        let api = scene.nodes[0].api();
        eventually("the wheels turn, and reach less far", LONG, async || {
            let (_, ready) = api.get("/readyz").await;
            let wheels = ready["checks"]["wheels"].as_str().expect("text").to_owned();
            if wheels.starts_with("reach PT30M ahead instead of PT1H") { Ok(()) } else { Err(wheels) }
        })
        .await;
        assert_eq!(api.readiness().await, "degraded");
        assert_eq!(api.metric("mainspring_wheels_short").await, 1.0);
        let (_, banner) = api.get("/banner").await;
        let told = banner
            .as_str()
            .is_some_and(|text| text.contains(r#"data-degraded="no_room">Redis has too little"#));
        assert!(told, "{banner}");
        scene.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    };
    let causes = ["Redis had no room for its pointers"];
    redis_is_disposable(scene, async |_| {}, fault, &causes, true).await;
}

/// Starts a node whose Redis cannot be used, and lets a few timers fire from SQL.
async fn fires_without_redis(hot: String) -> (Node, Receiver) {
    let node = Node::builder().cold(fresh_database().await).hot(hot).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    assert_eq!(api.readiness().await, "degraded");
    let (_, ready) = api.get("/readyz").await;
    assert_eq!(ready["checks"]["cold_store"], "ok", "{ready}");
    let wheels = ready["checks"]["wheels"].as_str().expect("text");
    assert!(wheels.contains("unavailable") && wheels.contains("SQL"), "{wheels}");
    problem(&api.send(Method::GET, "/v1/wheels", &[], None).await, 503, "wheels_unavailable");
    let watch = Watch::start(std::slice::from_ref(&api));
    let timers: Vec<Value> = (0..40)
        .map(|n| json!({"id": format!("t{n}"), "fire_at": rfc3339(wall_ms() + n * 50), "target": to(receiver.url("/ok"))}))
        .collect();
    register(&api, &timers).await;
    assert_eq!(api.put("later", &due_in(3_000_000, receiver.url("/ok"))).await.0, 201);
    let received = receiver.wait_for(40, LONG).await;
    let stalls = watch.end().await;
    Verdict::on(&received).is_clean(40);
    // For as long as the machine stands still, nothing fires.
    let is_late = |one: &&Received| {
        let due = one.at_ms - one.lateness_ms();
        one.lateness_ms() > WHILE_AWAY_MS + stalls.within(due..one.at_ms)
    };
    let late: Vec<_> = received.iter().filter(is_late).collect();
    assert!(late.is_empty(), "{late:?}; {stalls:?}");
    // Counted when its answer has come.
    eventually("each is counted", LONG, async || {
        let swept = api.metric("mainspring_fired_total{path=\"sweep\"}").await;
        if swept == 40.0 { Ok(()) } else { Err(swept) }
    })
    .await;
    let (_, life) = api.get("/v1/timers/later/explain").await;
    let waits = life["waiting_for"].as_str().expect("it waits");
    assert!(waits.contains("the wheels do not answer"), "{waits}");
    (node, receiver)
}

/// The log warns once that the wheels cannot be had, names the setting, and keeps the password.
fn warned_once(node: &Node, secret: &str, why: &str) {
    let log = node.log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("`hot.url`") && warnings[0].contains(why), "{log}");
    assert!(!log.contains(secret) && !log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn redis_that_is_away_at_the_start_is_waited_for() {
    let mut redis = Redis::private().await;
    redis.kill().await;
    let (node, receiver) = fires_without_redis(redis.url()).await;
    warned_once(&node, "no secret", "refused");
    redis.start_again().await;
    let api = node.api();
    eventually("the wheels turn", LONG, async || {
        let seen = api.readiness().await;
        if seen == "ok" { Ok(()) } else { Err(seen) }
    })
    .await;
    eventually("what waits is in the wheels", LONG, async || {
        let held = in_wheels(&api.wheels().await);
        if held == 1 { Ok(()) } else { Err(held) }
    })
    .await;
    let before = api.metric("mainspring_swept_total").await;
    let watch = Watch::start(std::slice::from_ref(&api));
    for n in 0..20 {
        assert_eq!(api.put(&format!("u{n}"), &due_in(1500 + n * 20, receiver.url("/ok"))).await.0, 201);
    }
    let received = receiver.wait_for(60, LONG).await;
    let stalls = watch.end().await;
    Verdict::on(&received).is_clean(60);
    // A machine that stands still while they are due makes the sweep come first.
    let stood_still = |one: &&Received| {
        let due = one.at_ms - one.lateness_ms();
        one.timer.starts_with('u') && stalls.touch(due - 500..one.at_ms)
    };
    let excused = received.iter().filter(stood_still).count();
    let swept = api.metric("mainspring_swept_total").await - before;
    assert!(
        swept <= excused as f64,
        "the wheels bring them again: {swept} by sweep, {excused} while it stood still"
    );
    assert!(node.log().contains("the wheels turn"));
}

#[tokio::test]
async fn a_wrong_port_or_password_of_redis_is_told_by_the_name_of_its_setting() {
    let redis = Redis::private().await;
    redis.cli(&["CONFIG", "SET", "requirepass", "the-right-one"]).await;
    let with = |port: u16| format!("redis://:open-sesame@127.0.0.1:{port}");
    let (port, password) =
        tokio::join!(fires_without_redis(with(free_port())), fires_without_redis(with(redis.port())));
    warned_once(&port.0, "open-sesame", "refused");
    warned_once(&password.0, "open-sesame", "Password authentication failed");
}

#[tokio::test]
async fn a_url_of_the_wrong_kind_of_redis_is_told_with_the_right_one() {
    let (cluster, single) = (Cluster::shared().await, Redis::private().await);
    let named = format!("redis+cluster://:open-sesame@127.0.0.1:{}", single.port());
    single.cli(&["ACL", "SETUSER", "default", ">open-sesame"]).await;
    let (one, many) =
        tokio::join!(fires_without_redis(cluster.nodes().remove(0)), fires_without_redis(named));
    warned_once(
        &one.0,
        "no secret",
        &format!("give {}", cluster.nodes()[0].replace("redis://", "redis+cluster://")),
    );
    warned_once(&many.0, "open-sesame", &format!("give {}", single.url()));
}

#[tokio::test]
async fn a_url_of_redis_that_is_none_is_refused_without_its_password() {
    let dir = tempfile::tempdir().expect("a directory");
    for url in [
        "redis://:open-sesame@127.0.0.1:port",
        "redis://:open-sesame@",
        "redis://:open-sesame@h/no-number",
        "redis+cluster://:open-sesame@a:1,b:port",
        "redis+cluster://a,:open-sesame@b",
        "redis+cluster://:open-sesame@a,b/1",
    ] {
        let (code, said) = refused(dir.path(), &[("MAINSPRING__HOT__URL", url)]).await;
        assert_eq!(code, Some(2), "{url}: {said}");
        assert!(said.contains("hot.url") && !said.contains("open-sesame"), "{url}: {said}");
    }
}

//! A Redis Cluster that loses a master while timers fire: its shards come late, those of the others do not
//! notice, and no timer is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{LONG, to};
use crate::support::{
    Api, Cluster, Node, Received, Receiver, Stalls, Traffic, Verdict, Watch, eventually, fresh_database,
    in_wheels, psql, register, rfc3339, wall_ms,
};

/// Timers a second.
const RATE: usize = 200;

/// Timers that lie in the wheels all the time.
const WINDOW: usize = 2000;

/// What falls due this long after the wheels turn again comes from them.
const SETTLED_MS: i64 = 2000;

async fn status_is(apis: &[Api], wanted: &str) {
    for api in apis {
        eventually(&format!("/readyz says {wanted}"), LONG, async || {
            let seen = api.readiness().await;
            if seen == wanted { Ok(()) } else { Err(seen) }
        })
        .await;
    }
}

/// Waits until timers have arrived that were due so much later.
async fn fires_for(receiver: &Receiver, span: Duration) {
    let until = wall_ms() + i64::try_from(span.as_millis()).expect("short");
    let later = |all: &[Received]| all.iter().rev().take(100).any(|one| one.due_at_ms >= Some(until));
    receiver.wait_until(later, span + LONG).await;
}

/// The shards whose standing a master holds.
async fn shards_of(cluster: &Cluster, master: usize) -> BTreeSet<i64> {
    let keys = cluster.masters[master].cli(&["KEYS", "mainspring:{*}"]).await;
    let shard = |key: &str| key.trim_end_matches('}').rsplit(':').next()?.parse().ok();
    keys.lines().filter(|key| !key.contains(":express:")).filter_map(shard).collect()
}

/// A master with neither node's express list: what one gives to the other at the last moment goes through
/// those, whatever the shard, and would come late.
async fn victim(cluster: &Cluster, cold: &str) -> usize {
    let name = psql(cold, "SELECT namespace || ':' || id FROM store").await;
    let (one, two) = (format!("{{{name}:express:one}}"), format!("{{{name}:express:two}}"));
    let taken = [cluster.master_of(&one).await, cluster.master_of(&two).await];
    (0..3).find(|n| !taken.contains(n)).expect("there are more masters than nodes")
}

/// What was due between two moments and was first brought by the sweep: how much of these shards, and how much of
/// the others.
#[derive(Debug)]
struct Swept {
    its: usize,
    others: usize,
    /// The same, less what was due while the nodes stood still: then the sweep comes first.
    its_unexcused: usize,
    others_unexcused: usize,
}

async fn swept(cold: &str, shards: &BTreeSet<i64>, stalls: &Stalls, from: i64, until: i64) -> Swept {
    let rows = psql(
        cold,
        &format!("SELECT shard, due_at FROM history WHERE via = 2 AND due_at >= {from} AND due_at < {until}"),
    )
    .await;
    let number = |text: &str| text.parse::<i64>().expect("a number");
    let row = |row: &str| {
        let (shard, due) = row.split_once('|').expect("two columns");
        (number(shard), number(due))
    };
    let (its, others): (Vec<_>, Vec<_>) =
        rows.lines().map(row).partition(|(shard, _)| shards.contains(shard));
    // The sweep takes what is a second overdue.
    let unexcused =
        |rows: &[(i64, i64)]| rows.iter().filter(|(_, due)| !stalls.touch(due - 500..due + 1500)).count();
    Swept {
        its: its.len(),
        others: others.len(),
        its_unexcused: unexcused(&its),
        others_unexcused: unexcused(&others),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_lost_and_comes_back_empty_costs_its_shards_lateness_and_no_timer() {
    let mut cluster = Cluster::start().await;
    let cold = fresh_database().await;
    let mut nodes = Vec::new();
    for name in ["one", "two"] {
        nodes.push(Node::builder().cold(&cold).hot(cluster.url()).name(name).start_ready().await);
    }
    let apis: Vec<Api> = nodes.iter().map(Node::api).collect();
    let receiver = Receiver::start().await;
    status_is(&apis, "ok").await;
    let window: Vec<Value> = (0..WINDOW)
        .map(|n| {
            let due = 1200 + 1800 * n / WINDOW;
            json!({"id": format!("w{n}"), "delay": format!("PT{due}S"), "target": to("http://127.0.0.1:9/")})
        })
        .collect();
    register(&apis[0], &window).await;
    let full = async |what: &str| {
        eventually(what, LONG, async || {
            let held = in_wheels(&apis[0].wheels().await);
            if held >= WINDOW as u64 { Ok(()) } else { Err(held) }
        })
        .await;
    };
    full("the window is in the wheels").await;
    let victim = victim(&cluster, &cold).await;
    let its = shards_of(&cluster, victim).await;
    assert!(its.len() > 10 && its.len() < 40, "a third of 64 shards: {its:?}");

    let watch = Watch::start(&apis);
    let traffic = Traffic::start(apis.clone(), receiver.url("/ok"), RATE);
    fires_for(&receiver, Duration::from_secs(3)).await;
    let hit = wall_ms();
    cluster.masters[victim].kill().await;
    status_is(&apis, "degraded").await;
    for api in &apis {
        let (status, ready) = api.get("/readyz").await;
        let told = format!("unavailable for {} of 64 shards", its.len());
        let wheels = ready["checks"]["wheels"].as_str().expect("text");
        assert!(status == 200 && wheels.contains(&told), "{ready}");
        assert_eq!(api.metric("mainspring_wheels_up").await, 0.0);
        let shown = api.wheels().await;
        let shards = shown["shards"].as_array().expect("shards").iter();
        let dark: BTreeSet<i64> =
            shards.filter(|one| one["cursor"].is_null()).filter_map(|one| one["shard"].as_i64()).collect();
        assert_eq!(dark, its, "the others are shown");
    }
    fires_for(&receiver, Duration::from_secs(5)).await;
    let back = wall_ms();
    cluster.masters[victim].start_again().await;
    status_is(&apis, "ok").await;
    full("the window is in the wheels again").await;
    let turning = wall_ms();
    fires_for(&receiver, Duration::from_secs(5)).await;
    let (acknowledged, slowest) = traffic.end().await;

    let distinct = |all: &[Received]| {
        let timers: BTreeSet<_> = all.iter().map(|one| &one.timer).collect();
        timers.len() >= acknowledged
    };
    let received = receiver.wait_until(distinct, LONG).await;
    eventually("the ledger settles", LONG, async || {
        let ledger = apis[0].ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        let seen = (ledger.delivered, ledger.pending);
        if seen == (acknowledged as u64, WINDOW as u64) { Ok(()) } else { Err(ledger) }
    })
    .await;
    let stalls = watch.end().await;
    let verdict = Verdict::on(&received);
    let before = swept(&cold, &its, &stalls, 0, hit).await;
    let meanwhile = swept(&cold, &its, &stalls, hit, turning).await;
    let after = swept(&cold, &its, &stalls, turning + SETTLED_MS, i64::MAX).await;
    println!(
        "{acknowledged} fired at {RATE}/s, {} of 64 shards away for {} ms, turning {} ms later: lost {}, early {}, \
         duplicates {}, latest before {} ms, meanwhile {} ms, after {} ms; by sweep before {before:?}, \
         meanwhile {meanwhile:?}, after {after:?}; slowest registration {slowest:?}",
        its.len(),
        back - hit,
        turning - back,
        acknowledged - verdict.arrived,
        verdict.early,
        verdict.duplicates,
        verdict.latest_ms(0..hit),
        verdict.latest_ms(hit..turning),
        verdict.latest_ms(turning + SETTLED_MS..i64::MAX),
    );
    verdict.is_clean(acknowledged);
    assert!(meanwhile.its > RATE / 2, "what was on the lost master is swept: {meanwhile:?}");
    assert!(meanwhile.others_unexcused < RATE / 2, "the others go on by wheel: {meanwhile:?}; {stalls:?}");
    // Whatever the machine does, not nearly all of them are swept: they are two thirds of what was due.
    let due = RATE as i64 * (turning - hit) / 1000;
    assert!((meanwhile.others as i64) < due / 2, "the others go on by wheel: {meanwhile:?} of {due}");
    let unexcused = after.its_unexcused + after.others_unexcused;
    assert!(unexcused < RATE / 2, "all come by wheel again: {after:?}; {stalls:?}");
    let rebuilt = psql(&cold, &format!("SELECT DISTINCT shard FROM replays WHERE at >= {hit}")).await;
    let rebuilt: BTreeSet<i64> = rebuilt.lines().map(|row| row.parse().expect("a shard")).collect();
    assert_eq!(rebuilt, its, "those, and no others, are built anew");
    for node in &nodes {
        let log = node.log();
        assert!(log.contains("some wheels do not answer") && !log.contains("panicked"), "{log}");
    }
}

/// It still answers, so it does not count as away; its refusals are not those of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_full_does_not_keep_timers_from_the_wheels_of_the_others() {
    let cluster = Cluster::start().await;
    let cold = fresh_database().await;
    let node = Node::builder()
        .cold(&cold)
        .hot(cluster.url())
        .name("one")
        .env("MAINSPRING__WHEEL__WINDOW", "PT6S")
        .env("MAINSPRING__WHEEL__NEAR", "PT2S")
        .start_ready()
        .await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    status_is(std::slice::from_ref(&api), "ok").await;
    let its = shards_of(&cluster, 0).await;
    let watch = Watch::start(std::slice::from_ref(&api));
    // Beyond the window: they are brought by the loader, or by nobody but the sweep.
    let (from, until) = (wall_ms() + 10_000, wall_ms() + 16_000);
    let timers: Vec<Value> = (0..1200)
        .map(|n| {
            let due = rfc3339(from + 5 * n);
            json!({"id": format!("t{n}"), "fire_at": due, "target": to(receiver.url("/ok"))})
        })
        .collect();
    register(&api, &timers).await;
    cluster.masters[0].cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    status_is(std::slice::from_ref(&api), "degraded").await;
    let received = receiver.wait_for(timers.len(), LONG).await;
    Verdict::on(&received).is_clean(timers.len());
    eventually("the ledger settles", LONG, async || {
        let ledger = api.ledger().await;
        if ledger.delivered == timers.len() as u64 { Ok(()) } else { Err(ledger) }
    })
    .await;
    let stalls = watch.end().await;
    let swept = swept(&cold, &its, &stalls, from, until).await;
    println!("by sweep: {} of the full master's shards, {} of the others", swept.its, swept.others);
    assert!(swept.its > 200, "nothing could be written there: {swept:?}");
    assert!(swept.others_unexcused < 100, "the others go on by wheel: {swept:?}; {stalls:?}");
    assert!(swept.others < timers.len() / 2, "the others go on by wheel: {swept:?} of {}", timers.len());
}

/// What `mainspring doctor` says of the wheels: the result, and all of it.
async fn doctor(hot: &str) -> (String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.args(["doctor", "--json"]).current_dir(dir.path()).env_clear();
    command.env("MAINSPRING__HOT__URL", hot).stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("runs").expect("runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "the wheels are never fatal: {text}");
    let mut checks = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a check a line"));
    let wheels = checks.find(|check| check["check"] == "wheels").expect("the wheels are looked at");
    (wheels["result"].as_str().expect("a word").to_owned(), wheels.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_tells_how_a_cluster_stands_and_keeps_its_password() {
    let cluster = Cluster::start().await;
    let says = async |hot: &str, result: &str, told: &[&str]| {
        let (seen, all) = doctor(hot).await;
        assert!(seen == result && told.iter().all(|part| all.contains(part)), "{told:?}: {all}");
        assert!(!all.contains("open-sesame") && !all.contains("close-sesame"), "{all}");
    };
    let url = cluster.url();
    says(&url, "ok", &["3 masters", "cluster_state ok", "all 16384 hash slots", "noeviction"]).await;
    says(&cluster.nodes()[0], "warn", &["is a node of a Redis Cluster; give redis+cluster://"]).await;
    cluster.masters[0].cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let evicting = format!("allkeys-lru at 127.0.0.1:{}", cluster.masters[0].port());
    says(&url, "warn", &[&evicting, "set `maxmemory-policy noeviction`"]).await;
    cluster.masters[0].cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    cluster.masters[2].kill().await;
    says(&url, "warn", &[&format!("no answer from 127.0.0.1:{}", cluster.masters[2].port())]).await;
    for master in &cluster.masters[..2] {
        master.cli(&["CONFIG", "SET", "requirepass", "open-sesame"]).await;
    }
    says(&url, "warn", &["hot.url"]).await;
    let with = |password: &str| url.replace("://", &format!("://:{password}@"));
    says(&with("close-sesame"), "warn", &["hidden", "Password authentication failed"]).await;
    says(&with("open-sesame"), "warn", &["hidden", "no answer from"]).await;
}

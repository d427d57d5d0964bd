//! A bad receiver costs nobody else anything, and neither do retries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{LONG, Stream, node, register};
use crate::support::{
    Api, Node, Received, Receiver, Reply, Stalls, Watch, eventually, free_port, fresh_database, rfc3339,
    shared_as, to, wall_ms,
};

/// What a quiet machine's noise may add, in milliseconds: what hangs here hangs for ten seconds.
const NOISE_MS: i64 = 750;

/// How long timers are registered for the receiver that is judged, alone: two hundred of them.
const ALONE: Duration = Duration::from_secs(2);

/// And beside the others: three hundred.
const BESIDE: Duration = Duration::from_secs(3);

/// Two nodes that send so many attempts at once to one receiver, and wait so long for its answers.
async fn two_nodes(concurrency: u32, timeout: &str) -> (Node, Node, Vec<Api>) {
    let url = fresh_database().await;
    let build = |name| {
        node(name, &url)
            .env("MAINSPRING__WEBHOOK__CONCURRENCY", concurrency.to_string())
            .env("MAINSPRING__WEBHOOK__TIMEOUT", timeout)
            .start_ready()
    };
    let (a, b) = (build("a").await, build("b").await);
    shared_as(&a.api(), &[("a", 32), ("b", 32)], LONG).await;
    let apis = vec![a.api(), b.api()];
    (a, b, apis)
}

/// What arrived of a stream, once all of it has.
async fn all_of(receiver: &Receiver, name: &str, count: usize) -> Vec<Received> {
    let of = |one: &&Received| one.timer.starts_with(name);
    let all = receiver.wait_until(|all| all.iter().filter(of).count() >= count, LONG).await;
    all.into_iter().filter(|one| of(&one)).collect()
}

/// The lateness, in milliseconds, that 95 % of these did not exceed, less what the nodes stood still meanwhile.
fn p95(received: &[Received], stalls: &Stalls) -> i64 {
    let own = |one: &Received| {
        let late = one.lateness_ms();
        late - stalls.within(one.at_ms - late..one.at_ms).min(late)
    };
    let mut late: Vec<i64> = received.iter().map(own).collect();
    late.sort_unstable();
    late[(late.len() * 95 / 100).min(late.len() - 1)]
}

/// No worse than alone, within generous bounds.
#[track_caller]
fn not_delayed(alone: &[Received], beside: &[Received], stalls: &Stalls) {
    let (before, after) = (p95(alone, stalls), p95(beside, stalls));
    println!("p95 {before} ms alone, {after} ms beside the others");
    assert!(after <= 10 * before + NOISE_MS, "p95 {before} ms alone, {after} ms beside the others");
    assert!(beside.iter().all(|one| one.lateness_ms() >= 0 && one.attempt == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_hangs_and_one_that_refuses_do_not_delay_a_third() {
    let (_a, _b, apis) = two_nodes(64, "PT10S").await;
    let (fine, hangs) = (Receiver::start().await, Receiver::start().await);
    let watch = Watch::start(&apis);
    let alone = Stream::start("alone", apis.clone(), fine.url("/ok"), 100);
    tokio::time::sleep(ALONE).await;
    let alone = all_of(&fine, "alone", alone.end().await).await;

    let hanging = Stream::start("h", apis.clone(), hangs.url("/hang"), 100);
    let refused = Stream::start("r", apis.clone(), format!("http://127.0.0.1:{}/", free_port()), 100);
    // Until their lanes are full.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let beside = Stream::start("beside", apis, fine.url("/ok"), 100);
    tokio::time::sleep(BESIDE).await;
    let beside = all_of(&fine, "beside", beside.end().await).await;
    assert!(hanging.end().await > 400 && refused.end().await > 400, "there was a load");
    assert!(!hangs.received().is_empty());
    not_delayed(&alone, &beside, &watch.end().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_slow_and_much_in_demand_does_not_delay_another() {
    let (_a, _b, apis) = two_nodes(64, "PT1S").await;
    let (fine, slow) = (Receiver::start().await, Receiver::start().await);
    // Every third attempt finds no answer, so its lane stays small and moves all the same.
    let count = AtomicUsize::new(0);
    slow.on("/slow", move |_| match count.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => Reply::hang(),
        _ => Reply::ok().after(Duration::from_millis(200)),
    });
    let watch = Watch::start(&apis);
    let alone = Stream::start("alone", apis.clone(), fine.url("/ok"), 100);
    tokio::time::sleep(ALONE).await;
    let alone = all_of(&fine, "alone", alone.end().await).await;

    let wanted = Stream::start("s", apis.clone(), slow.url("/slow"), 800);
    // Until many find no room.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let beside = Stream::start("beside", apis, fine.url("/ok"), 100);
    tokio::time::sleep(BESIDE).await;
    let beside = all_of(&fine, "beside", beside.end().await).await;
    let (wanted, done) = (wanted.end().await, slow.received().len());
    assert!(done > 20 && done + 1000 < wanted, "{done} of {wanted}");
    not_delayed(&alone, &beside, &watch.end().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_wheels_what_waits_for_one_receiver_does_not_hide_what_is_due_for_another() {
    let url = fresh_database().await;
    let node = node("a", &url)
        .env("MAINSPRING__WHEEL__ENABLED", "false")
        .env("MAINSPRING__WEBHOOK__CONCURRENCY", "4")
        .start_ready()
        .await;
    let (fine, slow) = (Receiver::start().await, Receiver::start().await);
    slow.on("/slow", |_| Reply::ok().after(Duration::from_millis(500)));
    let due_at = rfc3339(wall_ms() + 1000);
    for batch in 0..4 {
        let timers: Vec<Value> = (0..2500)
            .map(|n| {
                json!({"id": format!("s{batch}-{n}"), "fire_at": due_at, "target": to(slow.url("/slow"))})
            })
            .collect();
        register(&[node.api()], batch, &json!({ "timers": timers })).await;
    }
    slow.wait_for(8, LONG).await;
    let watch = Watch::start(&[node.api()]);
    let beside = Stream::start("beside", vec![node.api()], fine.url("/ok"), 50);
    tokio::time::sleep(BESIDE).await;
    let beside = all_of(&fine, "beside", beside.end().await).await;
    let done = slow.received().len();
    assert!(done < 2000, "nothing waited: {done}");
    let p95 = p95(&beside, &watch.end().await);
    assert!(
        p95 <= 2000,
        "everything fires from SQL, which is looked through several times a second: {p95} ms"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_do_not_delay_first_attempts_at_the_same_receiver() {
    let (_a, _b, apis) = two_nodes(32, "PT10S").await;
    let receiver = Receiver::start().await;
    // Retries want several times the room that there is: fewer than 64 a second can be made.
    receiver.on("/fails", |_| Reply::status(500).after(Duration::from_secs(1)));
    let watch = Watch::start(&apis);
    let alone = Stream::start("alone", apis.clone(), receiver.url("/ok"), 100);
    tokio::time::sleep(ALONE).await;
    let alone = all_of(&receiver, "alone", alone.end().await).await;

    let so_far = apis[0].ledger().await.registered;
    let failing = Stream::start("f", apis.clone(), receiver.url("/fails"), 100);
    tokio::time::sleep(Duration::from_secs(4)).await;
    eventually("there is a load", LONG, async || {
        let registered = apis[0].ledger().await.registered - so_far;
        if registered >= 300 { Ok(()) } else { Err(registered) }
    })
    .await;
    let failing = failing.end().await;
    // Their first attempts are slow, too, and have the places of first attempts.
    let first = |one: &&Received| one.timer.starts_with('f') && one.attempt == 1;
    receiver.wait_until(|all| all.iter().filter(first).count() >= failing, LONG).await;
    let before = receiver.received().len();
    let beside = Stream::start("beside", apis, receiver.url("/ok"), 100);
    tokio::time::sleep(BESIDE).await;
    let beside = all_of(&receiver, "beside", beside.end().await).await;
    let retries = receiver.received()[before..].iter().filter(|one| one.attempt > 1).count();
    assert!(retries > 50, "only {retries} retries");
    not_delayed(&alone, &beside, &watch.end().await);
}

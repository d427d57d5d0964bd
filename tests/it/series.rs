//! The series that an alert would watch, each moved by making happen what it counts. Others are moved where that
//! happens anyway: `store_up` and `store_errors` by an outage (`bad_days::postgres`), `wheels_up`, `cursor_lag`
//! and `replays` by a Redis that is away (`bad_days::redis`), `claims_expired` by a kill (`bad_days::stop`),
//! `fired` and `swept` by nodes without wheels (`paths`), `clock_skew` by a clock that is off (`bad_days::clock`).

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Api, Node, Postgres, Receiver, Watch, eventually, free_port, fresh_database, in_state, register, rfc3339,
    run_sql, settled, shared_as, to, wall_ms,
};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn values(api: &Api, wanted: &[(&str, f64)]) {
    for (series, value) in wanted {
        assert_eq!(api.metric(series).await, *value, "{series}");
    }
}

/// Makes a destination that never answers and is given up soon; returns it as a target. To others, which do answer, a pause
/// of the machine must be no timeout.
async fn hanging(api: &Api, receiver: &Receiver) -> Value {
    let place = json!({"webhook": {"url": receiver.url("/hang")}, "timeout": "PT0.5S"});
    let made = api.send(Method::PUT, "/v1/destinations/hangs", &[], Some(&place)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    json!({"destination": "hangs"})
}

#[tokio::test]
async fn ends_and_attempts_are_counted_by_how_they_came_out() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    let put = async |id: &str, url: &str, more: Value| {
        let mut timer = json!({"delay": "PT0S", "target": to(url), "retry": {"attempts": 1}});
        timer.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        assert_eq!(api.put(id, &timer).await.0, 201);
    };
    for id in ["ok1", "ok2", "ok3"] {
        put(id, &receiver.url("/ok"), json!({})).await;
    }
    put("fails", &receiver.url("/status/500"), json!({})).await;
    put("hangs", "", json!({"target": hanging(&api, &receiver).await})).await;
    put("refused", &nobody, json!({})).await;
    // Due before it was registered, and later than its grace.
    let late = json!({"fire_at": rfc3339(wall_ms() - 60_000), "target": to(receiver.url("/ok")),
        "late": {"grace": "PT1S", "then": "expire"}});
    assert_eq!(api.put("late", &late).await.0, 201);
    put("cancelled", &receiver.url("/ok"), json!({"delay": "PT1H"})).await;
    assert_eq!(api.delete("cancelled").await.0, 200);
    put("pending", &receiver.url("/ok"), json!({"delay": "PT1H"})).await;

    for id in ["fails", "hangs", "refused"] {
        in_state(&api, id, "dead").await;
    }
    in_state(&api, "late", "expired").await;
    settled(&api, 3, 1).await;
    values(
        &api,
        &[
            ("mainspring_registered_total", 9.0),
            ("mainspring_ended_total{state=\"delivered\"}", 3.0),
            ("mainspring_ended_total{state=\"dead\"}", 3.0),
            ("mainspring_ended_total{state=\"expired\"}", 1.0),
            ("mainspring_ended_total{state=\"cancelled\"}", 1.0),
            ("mainspring_attempts_total{result=\"ok\"}", 3.0),
            ("mainspring_attempts_total{result=\"failed\"}", 1.0),
            ("mainspring_attempts_total{result=\"timeout\"}", 1.0),
            ("mainspring_attempts_total{result=\"refused\"}", 1.0),
            ("mainspring_lateness_seconds_count", 6.0),
            ("mainspring_attempts_in_flight", 0.0),
            ("mainspring_pointers_held", 0.0),
            ("mainspring_claims_expired_total", 0.0),
            ("mainspring_unpromoted_total", 0.0),
            ("mainspring_store_errors_total", 0.0),
            ("mainspring_wheels_up", 1.0),
        ],
    )
    .await;
    eventually("the live timers are counted", LONG, async || {
        let pending = api.metric("mainspring_pending_timers").await;
        if pending == 1.0 { Ok(()) } else { Err(pending) }
    })
    .await;
}

#[tokio::test]
async fn answers_to_callers_are_counted_by_what_they_said() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let later = |say: &str| json!({"delay": "PT1H", "target": to(receiver.url("/ok")), "data": say});
    for (say, status) in [("a", 201), ("a", 200), ("b", 409)] {
        assert_eq!(api.put("one", &later(say)).await.0, status);
    }
    assert_eq!(api.put("two", &later("")).await.0, 201);
    assert_eq!(api.patch("one", &json!({"delay": "PT2H"})).await.0, 200);
    let tag = [("if-match", "\"77\"")];
    let patched = api.send(Method::PATCH, "/v1/timers/one", &tag, Some(&json!({"delay": "PT3H"}))).await;
    assert_eq!(patched.status, 412);
    assert_eq!(api.patch("nobody", &json!({"delay": "PT2H"})).await.0, 404);
    assert_eq!(api.post("/v1/timers/one/fire", &json!({})).await.0, 202);
    in_state(&api, "one", "delivered").await;
    for (id, status) in [("one", 409), ("two", 200), ("two", 200), ("nobody", 404)] {
        assert_eq!(api.delete(id).await.0, status, "{id}");
    }
    assert_eq!(api.post("/v1/timers/two/fire", &json!({})).await.0, 409);
    values(
        &api,
        &[
            ("mainspring_registrations_total{result=\"new\"}", 2.0),
            ("mainspring_registrations_total{result=\"same\"}", 1.0),
            ("mainspring_registrations_total{result=\"taken\"}", 1.0),
            ("mainspring_registrations_total{result=\"failed\"}", 0.0),
            ("mainspring_registered_total", 2.0),
            ("mainspring_changes_total{action=\"change\",result=\"done\"}", 1.0),
            ("mainspring_changes_total{action=\"change\",result=\"precondition\"}", 1.0),
            ("mainspring_changes_total{action=\"change\",result=\"not_found\"}", 1.0),
            ("mainspring_changes_total{action=\"fire\",result=\"done\"}", 1.0),
            ("mainspring_changes_total{action=\"fire\",result=\"already_cancelled\"}", 1.0),
            ("mainspring_cancels_total{result=\"already_fired\"}", 1.0),
            ("mainspring_cancels_total{result=\"cancelled\"}", 2.0),
            ("mainspring_cancels_total{result=\"not_found\"}", 1.0),
            ("mainspring_cancels_total{result=\"in_flight\"}", 0.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_second_attempt_after_an_unknown_one_counts_as_a_repeat() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let retry = json!({"attempts": 3, "first": "PT0.05S", "cap": "PT0.05S"});
    let timer = |target: Value| json!({"delay": "PT0S", "target": target, "retry": retry});
    assert_eq!(api.put("fails", &timer(to(receiver.url("/status/500")))).await.0, 201);
    in_state(&api, "fails", "dead").await;
    values(&api, &[("mainspring_repeats_total", 0.0)]).await;
    assert_eq!(api.put("hangs", &timer(hanging(&api, &receiver).await)).await.0, 201);
    in_state(&api, "hangs", "dead").await;
    values(
        &api,
        &[
            ("mainspring_repeats_total", 2.0),
            ("mainspring_attempts_total{sink=\"webhook\"}", 3.0),
            ("mainspring_attempts_total{sink=\"destination\"}", 3.0),
        ],
    )
    .await;
}

/// An outage of two minutes and one of ten seconds, made by moving what is due into the past while no node runs.
#[tokio::test]
async fn a_timer_that_an_outage_left_overdue_is_caught_up_and_after_a_minute_missed() {
    let store = fresh_database().await;
    let mut node = Node::builder().cold(&store).start_ready().await;
    let receiver = Receiver::start().await;
    let timer = |id: &str, then: &str| json!({"id": id, "delay": "PT1H", "target": to(receiver.url("/ok")), "late": {"grace": "PT30S", "then": then}});
    let timers = [timer("minutes", "deliver"), timer("seconds", "expire"), timer("expires", "expire")];
    register(&node.api(), &timers).await;
    assert!(node.sigterm().await.0.success());
    for (ago_ms, ids) in [(120_000, "'minutes', 'expires'"), (10_000, "'seconds'")] {
        let by = 3_600_000 + ago_ms;
        let moved = ["due_at", "wake_at", "expire_at", "created_at"]
            .map(|at| format!("{at} = {at} - {by}"))
            .join(", ");
        run_sql(&store, &format!("UPDATE timers SET {moved} WHERE id IN ({ids})")).await;
    }
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    for (id, end) in [("minutes", "delivered"), ("seconds", "delivered"), ("expires", "expired")] {
        in_state(&api, id, end).await;
    }
    values(
        &api,
        &[
            ("mainspring_fired_total{lateness=\"catch_up\"}", 2.0),
            ("mainspring_fired_total{lateness=\"on_time\"}", 0.0),
            ("mainspring_missed_total", 2.0),
            ("mainspring_lateness_seconds_count", 2.0),
            ("mainspring_lateness_seconds_bucket{le=\"5\"}", 0.0),
            ("mainspring_lateness_seconds_bucket{le=\"60\"}", 1.0),
            ("mainspring_early_total", 0.0),
        ],
    )
    .await;
}

/// A receiver that takes one at a time, and a store that goes away while it has it.
#[tokio::test]
async fn what_waits_for_its_receiver_and_what_waits_for_the_store_is_shown() {
    let mut server = Postgres::start().await;
    let store = server.create_database().await;
    let node = Node::builder().cold(store).env("MAINSPRING__WEBHOOK__CONCURRENCY", "1").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let due = |n: usize| {
        json!({"id": format!("t{n}"), "delay": "PT0S", "target": to(receiver.url("/slow/500")),
            "retry": {"attempts": 1}})
    };
    register(&api, &(0..16).map(due).collect::<Vec<_>>()).await;
    receiver.wait_for(1, LONG).await;
    eventually("the oldest one waits for its turn", LONG, async || {
        match api.metric("mainspring_oldest_due_seconds").await {
            age if (0.5..20.0).contains(&age) => Ok(()),
            age => Err(age),
        }
    })
    .await;
    server.stop_fast().await;
    eventually("a result waits for the store", LONG, async || {
        match api.metric("mainspring_results_unrecorded").await {
            1.0.. => Ok(()),
            none => Err(none),
        }
    })
    .await;
    server.start_again().await;
    node.wait_ready(LONG).await;
    receiver.wait_for(16, LONG).await;
    settled(&api, 16, 0).await;
    values(&api, &[("mainspring_results_unrecorded", 0.0)]).await;
    eventually("nothing waits any more", LONG, async || {
        let age = api.metric("mainspring_oldest_due_seconds").await;
        if age == 0.0 { Ok(()) } else { Err(age) }
    })
    .await;
}

/// Every gauge and histogram that a healthy node has something to say about.
#[tokio::test]
async fn what_a_node_holds_and_how_long_its_calls_take_is_shown() {
    let node = Node::builder().cold(fresh_database().await).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let due = |id: &str, path: &str, ms: i64| {
        json!({"id": id, "fire_at": rfc3339(wall_ms() + ms), "target": to(receiver.url(path)),
            "retry": {"attempts": 2, "first": "PT1H", "cap": "PT1H"}})
    };
    let watch = Watch::start(std::slice::from_ref(&api));
    register(
        &api,
        &[due("soon", "/ok", 4000), due("minute", "/ok", 20 * 60_000), due("fails", "/status/500", 0)],
    )
    .await;
    in_state(&api, "soon", "delivered").await;
    in_state(&api, "fails", "retrying").await;
    let stalls = watch.end().await;
    let fired = async |how: &str| api.metric(&format!("mainspring_fired_total{{lateness=\"{how}\"}}")).await;
    let (on_time, late) = (fired("on_time").await, fired("late").await);
    // What a machine that stands still sends after more than a second is late.
    assert!(
        on_time + late == 2.0 && (late == 0.0 || !stalls.is_empty()),
        "{on_time} on time, {late} late; {stalls:?}"
    );
    values(
        &api,
        &[
            ("mainspring_fired_total{lateness=\"catch_up\"}", 0.0),
            ("mainspring_early_total", 0.0),
            ("mainspring_missed_total", 0.0),
            ("mainspring_confirmed_seconds_count", 1.0),
            ("mainspring_register_seconds_count", 1.0),
            ("mainspring_promoted_total{step=\"cascade\"}", 0.0),
            ("mainspring_lanes{state=\"failing\"}", 0.0),
            ("mainspring_oldest_due_seconds", 0.0),
            ("mainspring_results_unrecorded", 0.0),
            ("mainspring_wheel_reach_seconds{wheel=\"second\"}", 120.0),
            ("mainspring_wheel_reach_seconds{wheel=\"minute\"}", 3600.0),
            ("mainspring_cursor_lag_seconds", 0.0),
            ("mainspring_pool_max_connections{pool=\"cold_urgent\"}", 6.0),
            ("mainspring_build_info", 1.0),
        ],
    )
    .await;
    for (series, range) in [
        ("mainspring_claim_seconds_count", 2.0..100.0),
        ("mainspring_promotion_seconds_count", 1.0..100.0),
        // A pointer may come twice: from the writer, and from the loader that looks at the same time.
        ("mainspring_promoted_total{step=\"second\"}", 1.0..4.0),
        ("mainspring_promoted_total{step=\"last_mile\"}", 1.0..4.0),
        // The one in a minute slot, and the retry of the one that fails.
        ("mainspring_promoted_total{step=\"minute\"}", 1.0..3.0),
        ("mainspring_store_seconds_count{operation=\"claim\",store=\"cold\"}", 2.0..100.0),
        ("mainspring_store_seconds_count{operation=\"lease\",store=\"cold\"}", 1.0..10_000.0),
        ("mainspring_store_seconds_count{operation=\"append\",store=\"hot\"}", 1.0..10_000.0),
        ("mainspring_pool_connections{pool=\"cold_urgent\"}", 1.0..7.0),
        ("mainspring_pool_connections{pool=\"cold\"}", 1.0..100.0),
        ("mainspring_watermark_ahead_seconds", 3500.0..3700.0),
        ("mainspring_clock_skew_seconds", -0.5..0.5),
    ] {
        let value = api.metric(series).await;
        assert!(range.contains(&value), "{series} {value}");
    }
    eventually("the live timers are counted by state", LONG, async || {
        let of =
            async |state: &str| api.metric(&format!("mainspring_live_timers{{state=\"{state}\"}}")).await;
        let live = (of("scheduled").await, of("retrying").await, of("delivering").await, of("paused").await);
        if live == (1.0, 1.0, 0.0, 0.0) { Ok(()) } else { Err(live) }
    })
    .await;
    for duty in ["statistics", "forecast", "partitions", "retention"] {
        let series = format!("mainspring_housekeeping_last_success_timestamp_seconds{{duty=\"{duty}\"}}");
        let ago = wall_ms() as f64 / 1000.0 - api.metric(&series).await;
        assert!((-1.0..60.0).contains(&ago), "{duty} {ago} s ago");
    }
}

/// The shards' first owner rebuilds; the next process finds the wheels in Redis as they were.
#[tokio::test]
async fn replays_tell_wheels_that_were_rebuilt_from_those_that_were_resumed() {
    let mut node = Node::builder().cold(fresh_database().await).start_ready().await;
    let api = node.api();
    let (rebuilt, resumed) =
        ("mainspring_replays_total{kind=\"rebuilt\"}", "mainspring_replays_total{kind=\"resumed\"}");
    let (overdue, loaded) = (
        "mainspring_replayed_timers_total{what=\"overdue\"}",
        "mainspring_replayed_timers_total{what=\"loaded\"}",
    );
    let replayed = async |of: &str| {
        eventually("every shard is replayed", LONG, async || {
            let count = api.metric(of).await;
            if count == 64.0 { Ok(()) } else { Err(count) }
        })
        .await;
    };
    replayed(rebuilt).await;
    values(&api, &[(resumed, 0.0), (overdue, 0.0), (loaded, 0.0)]).await;

    let receiver = Receiver::start().await;
    let timers: Vec<Value> = (0..20)
        .map(|n| json!({"id": format!("t{n}"), "fire_at": rfc3339(wall_ms() + 2000), "target": to(receiver.url("/ok"))}))
        .collect();
    register(&api, &timers).await;
    assert!(node.sigterm().await.0.success());
    node.restart().await;
    node.wait_ready(LONG).await;
    replayed(resumed).await;
    values(&api, &[(rebuilt, 0.0), (loaded, 0.0), ("mainspring_shards_taken_total", 64.0)]).await;
    settled(&api, 20, 0).await;
}

/// Several nodes, each with wheels of its own: what one writes for another's shard is known to no wheel. The
/// writer counts it as unpromoted, and the owner's sweep brings it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_wheels_do_not_take_is_counted_and_comes_by_the_sweep() {
    const TIMERS: usize = 200;
    let store = fresh_database().await;
    let build = |name: &str| Node::builder().cold(&store).name(name).hot("memory://").start_ready();
    let (one, two) = (build("one").await, build("two").await);
    let (writer, owner) = (one.api(), two.api());
    shared_as(&writer, &[("one", 32), ("two", 32)], LONG).await;
    let receiver = Receiver::start().await;
    let watch = Watch::start(&[one.api(), two.api()]);
    let due = wall_ms() + 1500;
    let timers: Vec<Value> = (0..TIMERS)
        .map(|n| json!({"id": format!("t{n}"), "fire_at": rfc3339(due), "target": to(receiver.url("/ok"))}))
        .collect();
    register(&writer, &timers).await;
    settled(&writer, TIMERS, 0).await;
    let stalls = watch.end().await;
    let unpromoted = writer.metric("mainspring_unpromoted_total").await;
    assert!(unpromoted > 50.0 && unpromoted < 150.0, "about half: {unpromoted}");
    let swept = "mainspring_fired_total{path=\"sweep\"}";
    let (of_owner, of_writer) = (owner.metric(swept).await, writer.metric(swept).await);
    if stalls.is_empty() {
        assert_eq!((of_owner, of_writer), (unpromoted, 0.0));
    }
    // A machine that stands still makes the sweep bring more than that, also what a wheel has.
    assert!(of_owner >= unpromoted, "{of_owner} of {unpromoted}; {stalls:?}");
    values(&owner, &[("mainspring_swept_total", of_owner), ("mainspring_unpromoted_total", 0.0)]).await;
    assert!(one.log().contains("each has its own wheels"), "{}", one.log());
}

/// How a destination stands is told by its name, as long as something is the matter with it.
#[tokio::test]
async fn destinations_are_told_by_name_while_something_is_the_matter() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for (name, path) in [("bad", "/status/500"), ("kept", "/ok"), ("idle", "/ok")] {
        let body = json!({"webhook": {"url": receiver.url(path)}, "rate_per_second": 50});
        let made = api.send(Method::PUT, &format!("/v1/destinations/{name}"), &[], Some(&body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let kept = async |verb: &str| {
        let path = format!("/v1/destinations/kept/{verb}");
        assert_eq!(api.send(Method::POST, &path, &[], None).await.status, 200);
    };
    kept("pause").await;
    for (id, name) in [("b", "bad"), ("k1", "kept"), ("k2", "kept")] {
        let retry = json!({"attempts": 100, "first": "PT0.1S", "cap": "PT0.1S"});
        let timer = json!({"delay": "PT0S", "target": {"destination": name}, "retry": retry});
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    let text = async || api.get("/metrics").await.1.as_str().expect("text").to_owned();
    let until = async |wanted: &[&str], unwanted: &[&str]| {
        eventually("they are told", LONG, async || {
            let text = text().await;
            let lines = text.lines().filter(|line| line.starts_with("mainspring_destination_"));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            let has = |part: &&&str| lines.iter().any(|line| line.starts_with(**part));
            let is_so = wanted.iter().all(|part| has(&part)) && !unwanted.iter().any(|part| has(&part));
            if is_so { Ok(()) } else { Err(lines) }
        })
        .await;
    };
    until(
        &[
            "mainspring_destination_state{destination=\"bad\",state=\"failing\"} 1",
            "mainspring_destination_state{destination=\"bad\",state=\"ok\"} 0",
            "mainspring_destination_rate_limit{destination=\"bad\"} 50",
            "mainspring_destination_state{destination=\"kept\",state=\"paused\"} 1",
            "mainspring_destination_in_flight{destination=\"kept\"} 0",
            "mainspring_destination_waiting_timers{destination=\"kept\"} 2",
        ],
        &[
            "mainspring_destination_state{destination=\"idle\"",
            "mainspring_destination_waiting_timers{destination=\"idle\"",
        ],
    )
    .await;
    kept("resume").await;
    settled(&api, 2, 1).await;
    until(
        &["mainspring_destination_attempts_per_second{destination=\"bad\"}"],
        &[
            "mainspring_destination_waiting_timers{destination=\"kept\"",
            "mainspring_destination_state{destination=\"kept\",state=\"paused\"} 1",
        ],
    )
    .await;
}

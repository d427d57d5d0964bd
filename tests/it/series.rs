//! The series that an alert would watch, each moved by making happen what it counts. Others are moved where that
//! happens anyway: `store_up` and `store_errors` by an outage (`bad_days::postgres`), `wheels_up`, `cursor_lag`
//! and `replays` by a Redis that is away (`bad_days::redis`), `claims_expired` by a kill (`bad_days::stop`),
//! `fired` and `swept` by nodes without wheels (`paths`), `clock_skew` by a clock that is off (`bad_days::clock`).

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Api, Node, Receiver, eventually, free_port, fresh_database, in_state, register, rfc3339, settled,
    shared_as, to, wall_ms,
};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn values(api: &Api, wanted: &[(&str, f64)]) {
    for (series, value) in wanted {
        assert_eq!(api.metric(series).await, *value, "{series}");
    }
}

#[tokio::test]
async fn ends_and_attempts_are_counted_by_how_they_came_out() {
    let node = Node::builder().env("MAINSPRING__WEBHOOK__TIMEOUT", "PT0.5S").start_ready().await;
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
    put("hangs", &receiver.url("/hang"), json!({})).await;
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
    let due = wall_ms() + 1500;
    let timers: Vec<Value> = (0..TIMERS)
        .map(|n| json!({"id": format!("t{n}"), "fire_at": rfc3339(due), "target": to(receiver.url("/ok"))}))
        .collect();
    register(&writer, &timers).await;
    settled(&writer, TIMERS, 0).await;
    let unpromoted = writer.metric("mainspring_unpromoted_total").await;
    assert!(unpromoted > 50.0 && unpromoted < 150.0, "about half: {unpromoted}");
    let swept = "mainspring_fired_total{path=\"sweep\"}";
    assert_eq!((owner.metric(swept).await, writer.metric(swept).await), (unpromoted, 0.0));
    values(&owner, &[("mainspring_swept_total", unpromoted), ("mainspring_unpromoted_total", 0.0)]).await;
    assert!(one.log().contains("each has its own wheels"), "{}", one.log());
}

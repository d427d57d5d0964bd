//! DELETE: each outcome, and that it is the truth.

use reqwest::Method;
use serde_json::json;
use tokio::sync::watch;

use super::{LONG, later, now, quick, results, with};
use crate::support::{NodeBuilder, Receiver, Reply, in_state, on_both, problem};

async fn cancelled_means_nothing_was_or_will_be_sent(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    // So far ahead that it is cancelled before, also on a busy machine.
    let soon = json!({"delay": "PT3S", "target": crate::support::to(receiver.url("/ok"))});
    for (id, timer) in [("far", &later()), ("soon", &soon), ("kept", &soon)] {
        assert_eq!(api.put(id, timer).await.0, 201);
    }
    for id in ["soon", "far"] {
        for repeat in 0..3 {
            assert_eq!(api.delete(id).await, (200, json!({"outcome": "cancelled"})), "{id} {repeat}");
        }
        let (_, timer) = api.timer(id).await;
        assert_eq!((&timer["state"], &timer["attempts"]), (&json!("cancelled"), &json!(0)));
        assert!(timer["uncertain"].is_null() && timer["next_attempt_at"].is_null(), "{timer}");
    }
    // The one that was due at the same moment has arrived: so would the other have.
    let all = receiver.wait_for(1, LONG).await;
    in_state(&api, "kept", "delivered").await;
    assert_eq!(all.iter().map(|one| one.timer.as_str()).collect::<Vec<_>>(), ["kept"]);
    assert_eq!(receiver.received().len(), 1);
    let ledger = api.ledger().await;
    assert_eq!((ledger.cancelled, ledger.delivered, ledger.pending), (2, 1, 0));
}

async fn stopped_means_every_attempt_surely_failed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let refused = format!("http://127.0.0.1:{}/", crate::support::free_port());
    let retry = json!({"attempts": 5, "first": "PT1H"});
    for (id, url, result) in
        [("failed", receiver.url("/status/500"), "failed"), ("refused", refused, "refused")]
    {
        assert_eq!(api.put(id, &with(now(url), "retry", retry.clone())).await.0, 201);
        let waiting = in_state(&api, id, "retrying").await;
        assert!(waiting["next_attempt_at"].is_string() && waiting["uncertain"].is_null(), "{waiting}");
        for _ in 0..2 {
            assert_eq!(api.delete(id).await, (200, json!({"outcome": "stopped"})), "{id}");
        }
        assert_eq!(api.timer(id).await.1["state"], "cancelled");
        assert_eq!(results(&api, id).await, [result]);
    }
    assert_eq!(receiver.received().len(), 1);
    let ledger = api.ledger().await;
    assert_eq!((ledger.cancelled, ledger.pending), (2, 0));
}

async fn a_cancel_in_flight_stops_what_follows_and_stays_uncertain(builder: NodeBuilder) {
    // Three calls are made before it is over.
    let node = builder.env("MAINSPRING__WEBHOOK__TIMEOUT", "PT5S").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    assert_eq!(api.put("t", &with(now(receiver.url("/hang")), "retry", quick(5))).await.0, 201);
    receiver.wait_for(1, LONG).await;
    let cancel = async || api.send(Method::DELETE, "/v1/timers/t", &[], None).await;
    for _ in 0..2 {
        problem(&cancel().await, 409, "in_flight");
    }
    let (_, asked) = api.timer("t").await;
    assert_eq!((&asked["state"], &asked["cancel_requested"]), (&json!("delivering"), &json!(true)));
    let ended = in_state(&api, "t", "cancelled").await;
    assert_eq!((&ended["uncertain"], &ended["attempts"]), (&json!(true), &json!(1)));
    assert_eq!(results(&api, "t").await, ["timeout"]);
    problem(&cancel().await, 409, "in_flight");
    assert_eq!(receiver.received().len(), 1, "exactly one attempt");
    let ledger = api.ledger().await;
    assert_eq!((ledger.cancelled, ledger.pending), (1, 0));
}

async fn a_cancel_in_flight_of_what_arrives_ends_delivered(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (release, released) = watch::channel(false);
    receiver.on("/held", move |_| Reply::ok().until(released.clone()));
    assert_eq!(api.put("t", &now(receiver.url("/held"))).await.0, 201);
    receiver.wait_for(1, LONG).await;
    problem(&api.send(Method::DELETE, "/v1/timers/t", &[], None).await, 409, "in_flight");
    release.send_replace(true);
    let ended = in_state(&api, "t", "delivered").await;
    assert!(ended["uncertain"].is_null() && ended["cancel_requested"].is_null(), "{ended}");
    problem(&api.send(Method::DELETE, "/v1/timers/t", &[], None).await, 409, "already_fired");
    assert_eq!(receiver.received().len(), 1);
}

/// After an outcome that is not known no later answer may say that nothing was sent.
async fn an_unknown_outcome_bars_a_clean_cancel(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/broken", |one| match one.attempt {
        1 => Reply::close(),
        _ => Reply::status(503).header("retry-after", "3600"),
    });
    assert_eq!(api.put("t", &with(now(receiver.url("/broken")), "retry", quick(3))).await.0, 201);
    receiver.wait_for(2, LONG).await;
    in_state(&api, "t", "retrying").await;
    assert_eq!(results(&api, "t").await, ["unknown", "failed"]);
    problem(&api.send(Method::DELETE, "/v1/timers/t", &[], None).await, 409, "in_flight");
    let ended = in_state(&api, "t", "cancelled").await;
    assert_eq!(ended["uncertain"], true);
    problem(&api.send(Method::DELETE, "/v1/timers/t", &[], None).await, 409, "in_flight");
}

on_both!(
    cancelled_means_nothing_was_or_will_be_sent,
    stopped_means_every_attempt_surely_failed,
    a_cancel_in_flight_stops_what_follows_and_stays_uncertain,
    a_cancel_in_flight_of_what_arrives_ends_delivered,
    an_unknown_outcome_bars_a_clean_cancel,
);

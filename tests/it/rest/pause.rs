//! `pause` and `resume`: what is kept from firing, what it answers, and when its lateness is judged.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{LONG, NOWHERE, later, now, with};
use crate::support::{Answer, Api, NodeBuilder, Receiver, Reply, in_state, on_both, problem, to};

async fn act(api: &Api, id: &str, what: &str) -> Answer {
    api.send(Method::POST, &format!("/v1/timers/{id}/{what}"), &[], None::<&Value>).await
}

async fn done(api: &Api, id: &str, what: &str, state: &str) -> Value {
    let answer = act(api, id, what).await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!(state)), "{what} {id}: {}", answer.body);
    answer.body
}

/// Registers a timer, pauses it, and only then makes it due after `delay`: however slow the machine is, it is paused before.
async fn paused(api: &Api, id: &str, timer: Value, delay: &str) {
    assert_eq!(api.put(id, &with(timer, "delay", json!("PT1H"))).await.0, 201);
    done(api, id, "pause", "paused").await;
    let (status, moved) = api.patch(id, &json!({ "delay": delay })).await;
    assert_eq!((status, &moved["state"]), (200, &json!("paused")), "{moved}");
}

async fn a_paused_timer_fires_when_it_is_resumed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let due = |delay: &str| json!({"delay": delay, "target": to(receiver.url("/ok"))});
    assert_eq!(api.put("paused", &due("PT1H")).await.0, 201);
    let first = done(&api, "paused", "pause", "paused").await;
    assert_eq!(
        (&first["generation"], &first["version"], &first["next_attempt_at"]),
        (&json!(1), &json!(2), &Value::Null)
    );
    assert_eq!(done(&api, "paused", "pause", "paused").await, first, "a repeat");
    let explained = api.get("/v1/timers/paused/explain").await.1;
    assert_eq!(explained["waiting_for"], "its resume: it is paused");
    let listed = api.get("/v1/timers?state=paused").await.1;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");

    // Its time comes 0.3 s before that of another one, or more, and only the other one fires.
    let moved = api.patch("paused", &json!({"delay": "PT0.3S"})).await.1;
    assert_eq!((&moved["state"], &moved["generation"]), (&json!("paused"), &json!(2)));
    assert_eq!(api.put("other", &due("PT0.6S")).await.0, 201);
    receiver.wait_for(1, LONG).await;
    in_state(&api, "other", "delivered").await;
    let resumed = done(&api, "paused", "resume", "scheduled").await;
    assert_eq!((&resumed["due_at"], &resumed["delivery_id"]), (&moved["due_at"], &moved["delivery_id"]));
    let all = receiver.wait_for(2, LONG).await;
    assert_eq!((all[1].timer.as_str(), all[1].generation), ("paused", 2));
    assert!(all[1].lateness_ms() >= 200, "its age counts from its due time: {}", all[1].lateness_ms());
    in_state(&api, "paused", "delivered").await;
    problem(&act(&api, "paused", "pause").await, 409, "already_fired");
    problem(&act(&api, "paused", "resume").await, 409, "already_fired");
    assert_eq!(receiver.received().len(), 2);
}

async fn a_resume_judges_how_late_it_is(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = |then: &str| {
        let late = json!({"grace": "PT0.2S", "then": then});
        with(now(receiver.url("/ok")), "late", late)
    };
    for (id, then) in [("expires", "expire"), ("delivers", "deliver")] {
        paused(&api, id, timer(then), "PT0S").await;
    }
    // It is due when both are later than their grace.
    assert_eq!(api.put("after", &with(now(receiver.url("/ok")), "delay", json!("PT0.4S"))).await.0, 201);
    receiver.wait_for(1, LONG).await;
    in_state(&api, "after", "delivered").await;
    done(&api, "expires", "resume", "expired").await;
    done(&api, "delivers", "resume", "scheduled").await;
    in_state(&api, "delivers", "delivered").await;
    assert!(receiver.of("expires").is_empty());
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.delivered, ledger.expired), (3, 2, 1));
}

async fn what_cannot_be_paused_says_why(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (release, released) = watch::channel(false);
    receiver.on("/held", move |_| Reply::ok().until(released.clone()));
    for (id, timer) in [("gone", later()), ("fires", later()), ("under-way", now(receiver.url("/held")))] {
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    assert_eq!(api.delete("gone").await.0, 200);
    in_state(&api, "under-way", "delivering").await;
    for what in ["pause", "resume"] {
        problem(&act(&api, "gone", what).await, 409, "already_cancelled");
        problem(&act(&api, "under-way", what).await, 409, "in_flight");
        problem(&act(&api, "none", what).await, 404, "not_found");
        problem(&act(&api, "a%20b", what).await, 422, "invalid");
    }
    release.send_replace(true);
    // A paused timer is cancelled as truly as any, and can be fired.
    done(&api, "fires", "pause", "paused").await;
    let target = json!({"target": to(receiver.url("/ok"))});
    assert_eq!(api.patch("fires", &target).await.1["state"], "paused");
    assert_eq!(act(&api, "fires", "fire").await.status, 202);
    in_state(&api, "fires", "delivered").await;
    assert_eq!(api.put("cancelled", &json!({"delay": "PT1H", "target": to(NOWHERE)})).await.0, 201);
    done(&api, "cancelled", "pause", "paused").await;
    assert_eq!(api.delete("cancelled").await, (200, json!({"outcome": "cancelled"})));
}

/// What is paused stays so through a restart, and the wheels that are built anew do not bring it.
async fn a_pause_outlives_its_node(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let receiver = Receiver::start().await;
    paused(&node.api(), "paused", now(receiver.url("/ok")), "PT1S").await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    assert_eq!(api.put("other", &with(now(receiver.url("/ok")), "delay", json!("PT1.2S"))).await.0, 201);
    receiver.wait_for(1, LONG).await;
    assert_eq!(api.timer("paused").await.1["state"], "paused");
    done(&api, "paused", "resume", "scheduled").await;
    in_state(&api, "paused", "delivered").await;
    assert_eq!(receiver.received().len(), 2);
}

on_both!(
    a_paused_timer_fires_when_it_is_resumed,
    a_resume_judges_how_late_it_is,
    what_cannot_be_paused_says_why,
    a_pause_outlives_its_node,
);

//! What each call answers, also to what is wrong with it.

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, ack, item, lease, lease_answer, settle, settle_answer};
use crate::support::{Answer, NodeBuilder, in_state, on_both, problem};

fn pointers(answer: &Answer) -> Vec<(String, String)> {
    let errors = answer.body["errors"].as_array().cloned().unwrap_or_default();
    let text = |error: &Value, field: &str| error[field].as_str().unwrap_or_default().to_owned();
    errors.iter().map(|error| (text(error, "pointer"), text(error, "code"))).collect()
}

fn pair(pointer: &str, code: &str) -> (String, String) {
    (pointer.to_owned(), code.to_owned())
}

async fn a_task_is_fetched_done_and_told(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let timer =
        json!({"delay": "PT0.2S", "target": {"queue": "tasks"}, "data": {"room": 7}, "labels": {"of": "a"}});
    let (status, put) = api.put("clean", &timer).await;
    assert_eq!(
        (status, &put["dispatch"]),
        (201, &json!({"to": "any", "times": 1, "repeat": false})),
        "{put}"
    );
    assert_eq!((&put["target"], &put["acked"]), (&json!({"queue": "tasks"}), &json!(0)));
    assert_eq!(api.put("clean", &timer).await.0, 200, "the same content");
    let one = item(&api, "tasks", "w1").await;
    assert_eq!(
        (&one["timer"], &one["data"], &one["attempt"]),
        (&json!("clean"), &json!({"room": 7}), &json!(1))
    );
    assert_eq!((&one["due_at"], &one["delivery_id"]), (&put["due_at"], &put["delivery_id"]));
    let under_way = api.timer("clean").await.1;
    assert_eq!((&under_way["state"], &under_way["next_attempt_at"]), (&json!("delivering"), &Value::Null));
    let explained = api.get("/v1/timers/clean/explain").await.1;
    let waits = explained["waiting_for"].as_str().expect("waits");
    assert!(waits.starts_with("worker w1 to settle it, by "), "{waits}");
    problem(
        &api.send(Method::PATCH, "/v1/timers/clean", &[], Some(&json!({"delay": "PT1H"}))).await,
        409,
        "in_flight",
    );
    let queue = api.get("/v1/queues/tasks").await.1;
    assert_eq!((&queue["ready"], &queue["leased"], &queue["lease"]), (&json!(0), &json!(1), &json!("PT30S")));
    let listed = api.get("/v1/timers?worker=w1").await.1;
    assert_eq!(listed["items"][0]["id"], "clean", "{listed}");
    assert_eq!(settle(&api, "other", &one, json!({"action": "ack"})).await, 409, "of another queue");
    let done = json!({"action": "ack", "result": {"clean": true}});
    assert_eq!(settle(&api, "tasks", &one, done.clone()).await, 200);
    assert_eq!(settle(&api, "tasks", &one, done).await, 409, "settled twice");
    in_state(&api, "clean", "delivered").await;
    let attempts = api.get("/v1/timers/clean/attempts").await.1;
    let attempt = &attempts["items"][0];
    assert_eq!(
        (&attempt["worker"], &attempt["result"], &attempt["reply"]),
        (&json!("w1"), &json!("ok"), &json!("{\"clean\":true}"))
    );
    let ledger = api.ledger().await;
    assert!(ledger.balances() && ledger.delivered == 1, "{ledger:?}");
    assert_eq!(api.delete("clean").await.0, 409);
}

async fn what_is_wrong_is_told_with_its_place(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let (queue, hook) = (json!({"queue": "q"}), json!({"webhook": {"url": "http://127.0.0.1:9/"}}));
    for (timer, wrong) in [
        (json!({"target": {"queue": ".q"}}), pair("/target/queue", "bad_name")),
        (json!({"target": {"queue": "q", "destination": "d"}}), pair("/target", "missing")),
        (json!({"target": queue, "dispatch": {"times": 0}}), pair("/dispatch/times", "range")),
        (json!({"target": queue, "dispatch": {"times": 1001}}), pair("/dispatch/times", "range")),
        (json!({"target": queue, "dispatch": {"to": "everybody"}}), pair("/dispatch/to", "bad_to")),
        (json!({"target": queue, "dispatch": {"to": "group:"}}), pair("/dispatch/to", "bad_to")),
        (json!({"target": queue, "dispatch": {"often": 3}}), pair("/dispatch/often", "unknown_field")),
        (json!({"target": queue, "merge": {"window": "PT1S"}}), pair("/merge", "merge_and_queue")),
        (json!({"target": hook, "dispatch": {"times": 2}}), pair("/dispatch", "no_queue")),
    ] {
        let mut timer = timer;
        timer["delay"] = json!("PT1H");
        let answer = api.send(Method::PUT, "/v1/timers/t", &[], Some(&timer)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(pointers(&answer), [wrong], "{timer}");
    }
    for (asked, wrong) in [
        (json!({}), pair("/worker", "missing")),
        (json!({"worker": "a b"}), pair("/worker", "bad_name")),
        (json!({"worker": "w", "lease": "PT0S"}), pair("/lease", "range")),
        (json!({"worker": "w", "lease": "P365D"}), pair("/lease", "range")),
        (json!({"worker": "w", "lease": "soon"}), pair("/lease", "bad_duration")),
        (json!({"worker": "w", "wait": "PT61S"}), pair("/wait", "range")),
        (json!({"worker": "w", "max": 0}), pair("/max", "range")),
        (json!({"worker": "w", "max": 1001}), pair("/max", "range")),
        (json!({"worker": "w", "groups": ["ok", ""]}), pair("/groups/1", "bad_name")),
        (json!({"worker": "w", "exclude": ["a/b"]}), pair("/exclude/0", "bad_id")),
        (json!({"worker": "w", "block": true}), pair("/block", "unknown_field")),
    ] {
        let answer = lease_answer(&api, "q", &asked).await;
        problem(&answer, 422, "invalid");
        assert_eq!(pointers(&answer), [wrong], "{asked}");
    }
    for (settlements, wrong) in [
        (json!([]), pair("/settlements", "missing")),
        (json!([{"action": "ack"}]), pair("/settlements/0/lease_token", "missing")),
        (json!([{"lease_token": "x"}]), pair("/settlements/0/action", "missing")),
        (json!([{"lease_token": "x", "action": "eat"}]), pair("/settlements/0/action", "unknown_action")),
        (
            json!([{"lease_token": "x", "action": "ack", "delay": "PT1S"}]),
            pair("/settlements/0/delay", "not_here"),
        ),
        (
            json!([{"lease_token": "x", "action": "ack", "lease": "PT1S"}]),
            pair("/settlements/0/lease", "not_here"),
        ),
        (
            json!([{"lease_token": "x", "action": "extend", "result": 1}]),
            pair("/settlements/0/result", "not_here"),
        ),
        (
            json!([{"lease_token": "x", "action": "extend", "lease": "PT13H"}]),
            pair("/settlements/0/lease", "range"),
        ),
        (
            json!([{"lease_token": "x", "action": "ack"}, {"lease_token": "x", "action": 7}]),
            pair("/settlements/1/action", "wrong_type"),
        ),
    ] {
        let answer = settle_answer(&api, "q", settlements.clone()).await;
        problem(&answer, 422, "invalid");
        assert_eq!(pointers(&answer), [wrong], "{settlements}");
    }
    let large = json!([{"lease_token": "x", "action": "ack", "result": "x".repeat(5000)}]);
    let large = settle_answer(&api, "q", large).await;
    problem(&large, 413, "too_large");
    assert_eq!(pointers(&large), [pair("/settlements/0/result", "too_large")]);
    let many: Vec<Value> = (0..1001).map(|_| json!({"lease_token": "x", "action": "ack"})).collect();
    problem(&settle_answer(&api, "q", json!(many)).await, 422, "invalid");
    // What is no token is not current.
    let garbage = settle_answer(&api, "q", json!([{"lease_token": "x", "action": "ack"}])).await;
    assert_eq!(garbage.body["results"][0], json!({"lease_token": "x", "status": 409, "code": "lease_lost"}));
    // No name has that, on no store.
    for path in ["/v1/queues?after=%00", "/v1/audit?actor=%00"] {
        assert_eq!(api.get(path).await.0, 200, "{path}");
    }
    for (settings, wrong) in [
        (json!({"lease": "PT0.5S"}), pair("/lease", "range")),
        (json!({"retry": {"attempts": 0}}), pair("/retry/attempts", "range")),
        (json!({"paused": "yes"}), pair("/paused", "wrong_type")),
    ] {
        let answer = api.send(Method::PUT, "/v1/queues/q", &[], Some(&settings)).await;
        problem(&answer, 422, "invalid");
        assert_eq!(pointers(&answer), [wrong], "{settings}");
    }
    // A change that does not fit is refused, and nothing is changed.
    assert_eq!(api.put("hook", &json!({"delay": "PT1H", "target": hook})).await.0, 201);
    let answer =
        api.send(Method::PATCH, "/v1/timers/hook", &[], Some(&json!({"dispatch": {"times": 2}}))).await;
    problem(&answer, 422, "invalid");
    assert_eq!(pointers(&answer), [pair("/dispatch", "no_queue")]);
    let merging = json!({"delay": "PT1H", "target": hook, "merge": {"window": "PT1S"}});
    assert_eq!(api.put("merges", &merging).await.0, 201);
    let answer = api.send(Method::PATCH, "/v1/timers/merges", &[], Some(&json!({"target": queue}))).await;
    assert_eq!(pointers(&answer), [pair("/target/queue", "merge_and_queue")]);
    assert_eq!(api.timer("merges").await.1["version"], 1);
}

async fn a_manager_changes_whom_a_task_is_for(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let timer = json!({"delay": "PT0S", "target": {"queue": "tasks"}, "dispatch": {"to": "worker:ann"}});
    assert_eq!(api.put("t", &timer).await.0, 201);
    assert!(lease(&api, "tasks", json!({"worker": "bob"})).await.is_empty());
    let explained = api.get("/v1/timers/t/explain").await.1;
    assert_eq!(explained["waiting_for"], "worker ann, to fetch it from queue `tasks`");
    let (status, changed) = api.patch("t", &json!({"dispatch": {"to": "group:night", "times": 2}})).await;
    assert_eq!((status, &changed["generation"]), (200, &json!(2)), "{changed}");
    assert_eq!(changed["dispatch"], json!({"to": "group:night", "times": 2, "repeat": false}));
    assert!(lease(&api, "tasks", json!({"worker": "ann"})).await.is_empty());
    let night = |worker: &str| json!({"worker": worker, "groups": ["day", "night"], "wait": "PT10S"});
    let both = [lease(&api, "tasks", night("ann")).await, lease(&api, "tasks", night("bob")).await].concat();
    assert_eq!(both.len(), 2);
    assert_ne!(both[0]["delivery_id"], both[1]["delivery_id"]);
    let settlements: Vec<Value> =
        both.iter().map(|one| json!({"lease_token": one["lease_token"], "action": "ack"})).collect();
    let answer = settle_answer(&api, "tasks", json!(settlements)).await;
    assert!(
        answer.body["results"].as_array().expect("results").iter().all(|one| one["status"] == 200),
        "{}",
        answer.body
    );
    in_state(&api, "t", "delivered").await;
    // From a webhook to a queue and back.
    let hook = json!({"webhook": {"url": "http://127.0.0.1:9/"}});
    assert_eq!(api.put("moves", &json!({"delay": "PT1H", "target": hook})).await.0, 201);
    let to_queue = json!({"delay": "PT0S", "target": {"queue": "tasks"}, "dispatch": {"to": "worker:ann"}});
    assert_eq!(api.patch("moves", &to_queue).await.0, 200);
    let one = item(&api, "tasks", "ann").await;
    assert_eq!(settle(&api, "tasks", &one, json!({"action": "retry", "delay": "PT1H"})).await, 200);
    let (status, back) = api.patch("moves", &json!({"delay": "PT1H", "target": hook})).await;
    assert_eq!((status, back.get("dispatch"), &back["state"]), (200, None, &json!("scheduled")), "{back}");
    assert_eq!(
        api.delete("moves").await,
        (200, json!({"outcome": "stopped"})),
        "a place of it was out before"
    );
}

/// No worker is waited for while the schedule does not let it go.
async fn what_waits_for_its_schedule_says_so(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let rule = json!({"every": "PT1S", "target": {"queue": "tasks"}, "overlap": "queue_one"});
    let put = api.send(Method::PUT, "/v1/schedules/s", &[], Some(&rule)).await;
    assert_eq!(put.status, 201, "{}", put.body);
    let held = item(&api, "tasks", "w1").await;
    let held = held["timer"].as_str().expect("an id").to_owned();
    crate::support::eventually("the next one waits for it", LONG, async || {
        let listed = api.get("/v1/timers?queue=tasks").await.1;
        for timer in listed["items"].as_array().expect("items") {
            let id = timer["id"].as_str().expect("an id");
            let explained = api.get(&format!("/v1/timers/{id}/explain")).await.1;
            let why = explained["waiting_for"].as_str().unwrap_or_default().to_owned();
            if id != held && why.contains("the occurrence of schedule `s` before it") {
                return Ok(());
            }
        }
        Err(listed)
    })
    .await;
}

/// A cancel, a pause and an operation on what is for queues.
async fn operations_and_pauses_know_queues(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    for n in 0..5 {
        let timer = json!({"delay": "PT0S", "target": {"queue": "tasks"}, "dispatch": {"to": "group:g7"}});
        assert_eq!(api.put(&format!("t{n}"), &timer).await.0, 201);
    }
    let asked = json!({"worker": "w", "groups": ["g7"], "wait": "PT10S"});
    let held = lease(&api, "tasks", asked.clone()).await.remove(0);
    let id = held["timer"].as_str().expect("an id").to_owned();
    let (status, paused) = api.post("/v1/queues/tasks/pause", &Value::Null).await;
    assert_eq!((status, &paused["paused"]), (200, &json!(true)));
    assert!(lease(&api, "tasks", json!({"worker": "v", "groups": ["g7"]})).await.is_empty());
    let other = if id == "t0" { "t1" } else { "t0" };
    let explained = api.get(&format!("/v1/timers/{other}/explain")).await.1;
    assert_eq!(explained["waiting_for"], "the resume of queue `tasks`: it is paused");
    let begun = json!({"action": "cancel", "filter": {"queue": "tasks", "to": "group:g7"}});
    let (status, operation) = api.post("/v1/operations", &begun).await;
    assert_eq!(status, 202, "{operation}");
    let path = format!("/v1/operations/{}", operation["id"].as_str().expect("an id"));
    let done = crate::support::eventually("it is done", LONG, async || {
        let now = api.get(&path).await.1;
        if now["state"] == "done" { Ok(now) } else { Err(now) }
    })
    .await;
    assert_eq!(
        (&done["matched"], &done["done"], &done["refused"]),
        (&json!(5), &json!(4), &json!({"in_flight": 1})),
        "{done}"
    );
    assert_eq!(ack(&api, "tasks", &held).await, 200, "who has it finishes it");
    in_state(&api, &id, "delivered").await;
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.cancelled, ledger.delivered), (5, 4, 1));
    assert_eq!(api.send(Method::DELETE, "/v1/queues/tasks", &[], None).await.status, 200);
}

on_both!(
    a_task_is_fetched_done_and_told,
    what_is_wrong_is_told_with_its_place,
    a_manager_changes_whom_a_task_is_for,
    operations_and_pauses_know_queues,
    what_waits_for_its_schedule_says_so,
);

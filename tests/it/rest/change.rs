//! PATCH and fire: what changes, what becomes a new generation, and what `If-Match` guards.

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, NOWHERE, later, now, results, with};
use crate::support::{Api, Node, NodeBuilder, Receiver, in_state, on_both, problem, to};

/// Applies a change and demands its generation and version, the ETag too.
async fn changed(api: &Api, change: Value, generation: u32, version: u32) -> Value {
    let answer = api.send(Method::PATCH, "/v1/timers/t", &[], Some(&change)).await;
    assert_eq!(answer.status, 200, "{change}: {}", answer.body);
    let seen = (&answer.body["generation"], &answer.body["version"], answer.header("etag"));
    let tag = format!("\"{version}\"");
    assert_eq!(seen, (&json!(generation), &json!(version), Some(tag.as_str())), "{change}");
    assert_eq!(api.timer("t").await.1, answer.body, "what was answered is what is kept");
    answer.body
}

async fn due_time_and_data_make_a_generation_and_labels_do_not(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let timer = with(with(later(), "data", json!({"a": 1})), "labels", json!({"k": "v"}));
    let (_, first) = api.put("t", &timer).await;
    assert_eq!((&first["generation"], &first["version"]), (&json!(1), &json!(1)));

    let moved = changed(&api, json!({"fire_at": "2030-01-01T08:00:00+08:00"}), 2, 2).await;
    assert_eq!((&moved["due_at"], &moved["data"]), (&json!("2030-01-01T00:00:00.000Z"), &json!({"a": 1})));
    assert_ne!(moved["delivery_id"], first["delivery_id"], "another firing");
    let filled = changed(&api, json!({"data": [1, 2]}), 3, 3).await;
    assert_eq!((&filled["due_at"], &filled["data"]), (&moved["due_at"], &json!([1, 2])));
    let labelled = changed(&api, json!({"labels": {"x": "y"}}), 3, 4).await;
    assert_eq!((&labelled["labels"], &labelled["data"]), (&json!({"x": "y"}), &json!([1, 2])));
    assert_eq!(labelled["delivery_id"], filled["delivery_id"]);
    let emptied = changed(&api, json!({"data": null}), 4, 5).await;
    assert_eq!((&emptied["data"], &emptied["labels"]), (&Value::Null, &json!({"x": "y"})));
    changed(&api, json!({"data": null, "labels": {"x": "y"}, "priority": "normal"}), 4, 5).await;
    let all = changed(&api, json!({"delay": "PT2H", "data": 1, "labels": {}}), 5, 6).await;
    assert_eq!((&all["data"], &all["labels"]), (&json!(1), &json!({})));
    assert_eq!(api.put("t", &timer).await.0, 200, "the request it was made with is still its request");
}

async fn if_match_guards_a_change(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    assert_eq!(api.put("t", &later()).await.0, 201);
    let change = async |tag: &str, data: u32| {
        let body = json!({"data": data});
        api.send(Method::PATCH, "/v1/timers/t", &[("if-match", tag)], Some(&body)).await
    };
    assert_eq!(change("\"1\"", 1).await.status, 200);
    for stale in ["\"1\"", "\"3\"", "\"x\"", "W/\"2\"", ""] {
        problem(&change(stale, 2).await, 412, "version_changed");
    }
    let (_, kept) = api.timer("t").await;
    assert_eq!((&kept["data"], &kept["version"]), (&json!(1), &json!(2)), "a refused change changes nothing");
    let current = api.send(Method::GET, "/v1/timers/t", &[], None).await;
    assert_eq!(change(current.header("etag").expect("a tag"), 3).await.status, 200);
    assert_eq!(change("*", 4).await.status, 200);
    assert_eq!(api.timer("t").await.1["version"], 4);
    assert_eq!(api.delete("t").await.0, 200);
    problem(&change("\"1\"", 5).await, 409, "already_cancelled");
}

async fn a_change_fires_at_its_new_time_only(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = |delay: &str| json!({"delay": delay, "target": to(receiver.url("/ok")), "data": "old"});
    for id in ["later", "sooner"] {
        assert_eq!(api.put(id, &timer("PT1H")).await.0, 201);
    }
    // So far ahead that it is moved before, also on a busy machine.
    assert_eq!(api.put("away", &timer("PT3S")).await.0, 201);
    assert_eq!(api.patch("away", &json!({"delay": "PT2H"})).await.0, 200);
    assert_eq!(api.patch("sooner", &json!({"delay": "PT3.5S", "data": "new"})).await.0, 200);
    let all = receiver.wait_for(1, LONG).await;
    assert_eq!((all[0].timer.as_str(), all[0].generation, all[0].json()), ("sooner", 2, json!("new")));
    assert!(all[0].lateness_ms() >= 0);
    in_state(&api, "sooner", "delivered").await;
    let (_, away) = api.timer("away").await;
    assert_eq!(
        (&away["state"], &away["attempts"]),
        (&json!("scheduled"), &json!(0)),
        "its old time has passed"
    );
    assert_eq!(receiver.received().len(), 1);
}

async fn a_new_target_takes_the_place_of_the_former_one(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, before, after) = (node.api(), Receiver::start().await, Receiver::start().await);
    let signed =
        |receiver: &Receiver| json!({"webhook": {"url": receiver.url("/ok"), "secret": "whsec_c2VjcmV0"}});
    assert_eq!(api.put("t", &json!({"delay": "PT1H", "target": signed(&before)})).await.0, 201);
    changed(&api, json!({"target": signed(&before)}), 1, 1).await;
    let unsigned = changed(&api, json!({"target": to(before.url("/ok"))}), 2, 2).await;
    let elsewhere = changed(&api, json!({"target": to(after.url("/ok"))}), 3, 3).await;
    let hook = &elsewhere["target"]["webhook"];
    assert_eq!((&elsewhere["due_at"], &hook["url"]), (&unsigned["due_at"], &json!(after.url("/ok"))));
    assert_eq!((&hook["signed"], &unsigned["target"]["webhook"]["signed"]), (&json!(false), &json!(false)));
    let listed = async |receiver: &Receiver| {
        let (_, page) = api.get(&format!("/v1/timers?receiver={}", receiver.url(""))).await;
        page["items"].as_array().map(Vec::len)
    };
    assert_eq!((listed(&before).await, listed(&after).await), (Some(0), Some(1)));
    let refused = json!({"target": {"webhook": {"url": "http://169.254.169.254/latest"}}});
    let refused = api.send(Method::PATCH, "/v1/timers/t", &[], Some(&refused)).await;
    problem(&refused, 422, "invalid");
    assert_eq!(refused.body["errors"][0]["pointer"], "/target/webhook/url", "{}", refused.body);
    changed(&api, json!({"target": null, "delay": "PT0.2S"}), 4, 4).await;
    let all = after.wait_for(1, LONG).await;
    assert_eq!((all[0].generation, all[0].headers.get("webhook-signature")), (4, None), "without its secret");
    in_state(&api, "t", "delivered").await;
    assert_eq!(before.received().len(), 0);
}

/// A target that hangs holds its lane up. What was for it goes out at once to another.
#[tokio::test]
async fn what_waits_for_a_receiver_that_hangs_goes_to_another_at_once() {
    let node = Node::builder().start_ready().await;
    let (api, hangs, other) = (node.api(), Receiver::start().await, Receiver::start().await);
    for n in 0..100 {
        assert_eq!(api.put(&format!("h{n}"), &now(hangs.url("/hang"))).await.0, 201);
    }
    crate::support::eventually("the lane is full", LONG, async || {
        let (_, timer) = api.timer("h99").await;
        let waits = hangs.received().len() >= 20 && timer["state"] == "scheduled";
        if waits { Ok(()) } else { Err(timer) }
    })
    .await;
    assert_eq!(api.patch("h99", &json!({"target": to(other.url("/ok"))})).await.0, 200);
    let all = other.wait_for(1, LONG).await;
    assert_eq!((all[0].timer.as_str(), all[0].generation), ("h99", 2));
}

#[tokio::test]
async fn a_new_due_time_starts_the_attempts_anew() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let retry = json!({"attempts": 2, "first": "PT1H"});
    assert_eq!(api.put("t", &with(now(receiver.url("/flaky/2")), "retry", retry)).await.0, 201);
    let waiting = in_state(&api, "t", "retrying").await;
    for _ in 0..2 {
        let (status, moved) = api.patch("t", &json!({"delay": "PT0S"})).await;
        assert_eq!((status, &moved["state"]), (200, &json!("scheduled")), "{moved}");
        crate::support::eventually("it was tried again", LONG, async || {
            let (_, timer) = api.timer("t").await;
            let tried = timer["generation"] == moved["generation"] && timer["attempts"] != moved["attempts"];
            if tried && timer["state"] != "delivering" { Ok(()) } else { Err(timer) }
        })
        .await;
    }
    let ended = in_state(&api, "t", "delivered").await;
    assert_eq!(
        (&waiting["attempts"], &ended["attempts"], &ended["generation"]),
        (&json!(1), &json!(3), &json!(3))
    );
    let arrived: Vec<_> = receiver.received().iter().map(|one| (one.generation, one.attempt)).collect();
    assert_eq!(arrived, [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(results(&api, "t").await, ["failed", "failed", "ok"], "all generations are told");
}

async fn fire_is_now_and_once(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = json!({"delay": "PT1H", "target": to(receiver.url("/ok")), "data": 1});
    let (_, first) = api.put("t", &timer).await;
    let fired = api.send(Method::POST, "/v1/timers/t/fire", &[], None).await;
    assert_eq!(fired.status, 202, "{}", fired.body);
    assert_eq!((&fired.body["generation"], fired.header("etag")), (&json!(2), Some("\"2\"")));
    assert!(fired.body["due_at"].as_str() < first["due_at"].as_str());
    let all = receiver.wait_for(1, LONG).await;
    assert_eq!((all[0].timer.as_str(), all[0].generation, all[0].json()), ("t", 2, json!(1)));
    assert!((0..5000).contains(&all[0].lateness_ms()), "at once, not early: {}", all[0].lateness_ms());
    in_state(&api, "t", "delivered").await;
    let again = api.send(Method::POST, "/v1/timers/t/fire", &[], None).await;
    problem(&again, 409, "already_fired");
    assert_eq!(receiver.received().len(), 1);
}

#[tokio::test]
async fn minute_precision_rounds_up_to_the_minute() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let timer = |at: &str| json!({"fire_at": at, "precision": "minute", "target": to(NOWHERE)});
    for (n, (at, due)) in [
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00.000Z"),
        ("2030-01-01T00:00:00.001Z", "2030-01-01T00:01:00.000Z"),
        ("2030-01-01T00:00:59.999Z", "2030-01-01T00:01:00.000Z"),
        ("2030-12-31T23:59:01+00:00", "2031-01-01T00:00:00.000Z"),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, body) = api.put(&format!("t{n}"), &timer(at)).await;
        assert_eq!((status, &body["due_at"]), (201, &json!(due)), "{at}");
    }
    let (_, moved) = api.patch("t0", &json!({"fire_at": "2030-01-02T00:00:01Z"})).await;
    assert_eq!(moved["due_at"], "2030-01-02T00:01:00.000Z", "a change is rounded too");
}

#[tokio::test]
async fn local_time_means_what_the_zone_says() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    for (n, (local, zone, due)) in [
        ("2030-07-01T09:00:00", "Asia/Shanghai", "2030-07-01T01:00:00.000Z"),
        ("2030-01-01T09:00", "Europe/Berlin", "2030-01-01T08:00:00.000Z"),
        ("2030-07-01T09:00", "Europe/Berlin", "2030-07-01T07:00:00.000Z"),
        // A gap, from 02:00 to 03:00, gives its end; an overlap the first of the two.
        ("2030-03-31T02:30:00", "Europe/Berlin", "2030-03-31T01:00:00.000Z"),
        ("2030-10-27T02:30:00", "Europe/Berlin", "2030-10-27T00:30:00.000Z"),
        ("2030-01-01T00:00:00.0001", "UTC", "2030-01-01T00:00:00.001Z"),
    ]
    .into_iter()
    .enumerate()
    {
        let timer = json!({"local": local, "zone": zone, "target": to(NOWHERE)});
        let (status, body) = api.put(&format!("t{n}"), &timer).await;
        assert_eq!((status, &body["due_at"]), (201, &json!(due)), "{local} {zone}");
        api.put("moved", &later()).await;
        let change = json!({"local": local, "zone": zone});
        let moved = api.send(Method::PATCH, "/v1/timers/moved", &[], Some(&change)).await;
        assert_eq!((moved.status, &moved.body["due_at"]), (200, &json!(due)), "{local} {zone}");
    }
}

on_both!(
    due_time_and_data_make_a_generation_and_labels_do_not,
    if_match_guards_a_change,
    a_change_fires_at_its_new_time_only,
    a_new_target_takes_the_place_of_the_former_one,
    fire_is_now_and_once,
);

//! Registration: PUT, POST, batch, and what counts as the same again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{LONG, NOWHERE, later, now, with};
use crate::support::{Node, NodeBuilder, Receiver, Reply, eventually, in_state, on_both, problem, to};

async fn a_put_is_new_once_and_the_same_for_good(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = now(receiver.url("/ok"));
    let other = with(timer.clone(), "data", json!(1));
    let put = async |timer: &Value| api.send(Method::PUT, "/v1/timers/t", &[], Some(timer)).await;

    let first = put(&timer).await;
    assert_eq!((first.status, first.header("etag")), (201, Some("\"1\"")), "{}", first.body);
    assert_eq!(first.body["id"], "t");
    in_state(&api, "t", "delivered").await;
    let after = put(&timer).await;
    assert_eq!((after.status, &after.body["state"]), (200, &json!("delivered")));
    for name in ["due_at", "created_at", "generation", "delivery_id"] {
        assert_eq!(after.body[name], first.body[name], "{name}");
    }
    problem(&put(&other).await, 409, "id_taken");

    assert_eq!(api.put("u", &later()).await.0, 201);
    let (status, same) = api.put("u", &later()).await;
    assert_eq!((status, &same["state"]), (200, &json!("scheduled")));
    assert_eq!(api.delete("u").await.0, 200);
    let (status, same) = api.put("u", &later()).await;
    assert_eq!((status, &same["state"]), (200, &json!("cancelled")), "ended or not");
    assert_eq!(receiver.received().len(), 1);
    assert_eq!(api.ledger().await.registered, 2);
}

async fn again_starts_an_ended_id_anew_and_only_an_ended_one(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let again = async |timer: &Value| {
        let answer = api.send(Method::PUT, "/v1/timers/t?again=true", &[], Some(timer)).await;
        (answer.status, answer.body)
    };
    let (status, first) = again(&now(receiver.url("/ok"))).await;
    assert_eq!((status, &first["generation"]), (201, &json!(1)), "nothing there yet: as without");
    in_state(&api, "t", "delivered").await;

    let (status, second) = again(&later()).await;
    assert_eq!((status, &second["generation"], &second["state"]), (201, &json!(2), &json!("scheduled")));
    assert_ne!(second["delivery_id"], first["delivery_id"]);
    assert_eq!(again(&later()).await, (200, second.clone()), "a repeat is the same");
    let (status, refused) = again(&now(receiver.url("/ok"))).await;
    assert_eq!((status, &refused["code"]), (409, &json!("id_taken")), "it lives");

    let (_, outcome) = api.delete("t").await;
    assert_eq!(outcome, json!({"outcome": "cancelled"}), "nothing of this registration was sent");
    let (status, third) = again(&now(receiver.url("/ok"))).await;
    assert_eq!((status, &third["generation"]), (201, &json!(3)));
    let all = receiver.wait_for(2, LONG).await;
    let ids: HashSet<_> = all.iter().map(|one| (one.delivery_id.as_str(), one.generation)).collect();
    assert_eq!(ids.len(), 2, "subscribe, cancel, subscribe again: {ids:?}");
    in_state(&api, "t", "delivered").await;
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending), (3, 2, 1, 0));
}

#[tokio::test]
async fn the_same_content_is_the_same_canonical_json() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let put = async |body: &str| {
        let answer = api.send_bytes(Method::PUT, "/v1/timers/t", &[], body).await;
        (answer.status, answer.body["code"].clone())
    };
    let target = format!(r#""target":{{"webhook":{{"url":"{NOWHERE}","headers":{{"a":"1","b":"2"}}}}}}"#);
    let base = format!(r#"{{"delay":"PT1H",{target},"data":{{"x":[1,2.50,"ü"],"y":{{"p":1,"q":null}}}}}}"#);
    assert_eq!(put(&base).await, (201, Value::Null));
    for (what, same) in [
        ("the same bytes", base.clone()),
        (
            "another order of keys, at every depth",
            format!(
                r#"{{"data":{{"y":{{"q":null,"p":1}},"x":[1,2.50,"ü"]}},"target":{{"webhook":{{"headers":{{"b":"2","a":"1"}},"url":"{NOWHERE}"}}}},"delay":"PT1H"}}"#
            ),
        ),
        (
            "white space",
            base.replace(',', " ,\n\t")
                .replace(':', " : ")
                .replace("http : ", "http:")
                .replace("1 : 9", "1:9"),
        ),
        ("escapes", base.replace("ü", r"\u00fc")),
        ("another way to write a number", base.replace("2.50", "25e-1")),
        ("its own id", base.replacen('{', r#"{"id":"t","#, 1)),
    ] {
        assert_eq!(put(&same).await, (200, Value::Null), "{what}: {same}");
    }
    for (what, other) in [
        ("another value", base.replace("2.50", "2.51")),
        ("another order in an array", base.replace("1,2.50", "2.50,1")),
        ("a delay written in another way", base.replace("PT1H", "PT60M")),
        ("an owner", base.replacen('{', r#"{"owner":"t","#, 1)),
        ("another header", base.replace(r#""b":"2""#, r#""b":"3""#)),
    ] {
        assert_eq!(put(&other).await, (409, json!("id_taken")), "{what}: {other}");
    }
    assert_eq!(api.ledger().await.registered, 1);
}

#[tokio::test]
async fn numbers_that_differ_in_any_digit_are_other_content() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    for (n, (one, other)) in [
        ("12345678901234567890123", "12345678901234567890124"),
        ("0.1234567890123456789", "0.1234567890123456788"),
        ("18446744073709551616", "18446744073709551617"),
    ]
    .into_iter()
    .enumerate()
    {
        let put = async |number: &str| {
            let body = format!(r#"{{"delay":"PT1H","target":{},"data":[{number}]}}"#, to(NOWHERE));
            api.send_bytes(Method::PUT, &format!("/v1/timers/t{n}"), &[], body).await
        };
        assert_eq!(put(one).await.status, 201);
        assert_eq!(put(one).await.status, 200);
        problem(&put(other).await, 409, "id_taken");
    }
}

#[tokio::test]
async fn a_delay_counts_from_the_first_time() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let (_, first) = api.put("t", &later()).await;
    let (created, due) = (first["created_at"].clone(), first["due_at"].clone());
    let hour =
        |text: &Value| chrono::DateTime::parse_from_rfc3339(text.as_str().expect("a time")).expect("a time");
    assert_eq!(hour(&due) - hour(&created), chrono::TimeDelta::hours(1));
    // A later moment, by the server's own clock.
    eventually("time passes", LONG, async || {
        let (_, other) = api.post("/v1/timers", &later()).await;
        if hour(&other["created_at"]) > hour(&created) { Ok(()) } else { Err(other) }
    })
    .await;
    let (status, same) = api.put("t", &later()).await;
    assert_eq!((status, &same["due_at"]), (200, &due));
}

async fn a_post_makes_an_id_and_a_key_makes_it_once(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let post = async |key: Option<&str>, timer: &Value| {
        let headers: Vec<_> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
        api.send(Method::POST, "/v1/timers", &headers, Some(timer)).await
    };
    let one = post(None, &later()).await;
    let two = post(None, &later()).await;
    assert_eq!((one.status, two.status), (201, 201));
    assert_ne!(one.body["id"], two.body["id"], "each call without a key is a timer of its own");
    let location = one.header("location").expect("a location");
    assert_eq!(location, format!("/v1/timers/{}", one.body["id"].as_str().expect("an id")));
    let (status, found) = api.get(location).await;
    assert_eq!((status, &found), (200, &one.body));

    let timer = now(receiver.url("/ok"));
    let first = post(Some("k1"), &timer).await;
    let same = post(Some("k1"), &timer).await;
    assert_eq!((first.status, same.status), (201, 200));
    assert_eq!((&same.body["id"], same.header("location")), (&first.body["id"], first.header("location")));
    problem(&post(Some("k1"), &later()).await, 422, "key_reused");
    in_state(&api, first.body["id"].as_str().expect("an id"), "delivered").await;
    let ended = post(Some("k1"), &timer).await;
    assert_eq!((ended.status, &ended.body["state"]), (200, &json!("delivered")), "after its end too");
    problem(&post(Some("k1"), &later()).await, 422, "key_reused");
    assert_eq!(post(Some("k2"), &timer).await.status, 201, "another key, another timer");
    for key in ["", &"k".repeat(256)] {
        problem(&post(Some(key), &timer).await, 422, "invalid");
    }
    receiver.wait_for(2, LONG).await;
    assert_eq!(api.ledger().await.registered, 4);
}

async fn each_item_of_a_batch_stands_alone(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let item = |id: &str| with(now(receiver.url("/ok")), "id", json!(id));
    assert_eq!(api.put("there", &later()).await.0, 201);
    let items = json!([
        item("a"),
        item("b"),
        item("a"),
        with(item("b"), "data", json!(1)),
        with(item("c"), "delay", json!("soon")),
        item("there"),
        with(later(), "id", json!("there")),
        later(),
        with(item("d"), "colour", json!(1)),
        item("no id"),
        7,
        with(item("e"), "data", json!("x".repeat(64 * 1024))),
        item("f"),
    ]);
    let (status, body) = api.post("/v1/timers/batch", &json!({"timers": items})).await;
    assert_eq!(status, 200, "{body}");
    let results = body["results"].as_array().expect("results");
    let statuses: Vec<_> = results.iter().map(|one| one["status"].as_u64().expect("a status")).collect();
    assert_eq!(statuses, [201, 201, 200, 409, 422, 409, 200, 201, 422, 422, 422, 422, 201]);
    let ids: Vec<_> = results.iter().map(|one| one["id"].as_str().unwrap_or("-")).collect();
    let made = ids[7];
    assert!(made.starts_with("tmr_"), "{made}");
    assert_eq!(ids, ["a", "b", "a", "b", "c", "there", "there", made, "d", "no id", "-", "e", "f"]);
    for (n, code, pointer) in [
        (3, "id_taken", None),
        (4, "invalid", Some("/delay")),
        (8, "invalid", Some("/colour")),
        (9, "invalid", Some("/id")),
        (11, "too_large", Some("/data")),
    ] {
        let error = &results[n]["error"];
        assert_eq!(
            (&error["code"], error["errors"][0]["pointer"].as_str()),
            (&json!(code), pointer),
            "{error}"
        );
        assert!(error["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    }
    assert!(results.iter().all(|one| one["error"].is_null() == (one["status"].as_u64() < Some(300))));
    let all = receiver.wait_for(3, LONG).await;
    let arrived: HashSet<_> = all.iter().map(|one| one.timer.as_str()).collect();
    assert_eq!(arrived, HashSet::from(["a", "b", "f"]), "what was refused fires nothing");
    let ledger = api.ledger().await;
    assert!(ledger.balances() && ledger.registered == 5, "{ledger:?}");
    let (status, body) = api.post("/v1/timers/batch", &json!({"timers": []})).await;
    assert_eq!((status, body), (200, json!({"results": []})));
}

async fn a_batch_holds_up_to_5000(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let items: Vec<_> = (0..5000).map(|n| with(later(), "id", json!(format!("t{n}")))).collect();
    let (status, body) = api.post("/v1/timers/batch", &json!({"timers": items})).await;
    assert_eq!(status, 200);
    let results = body["results"].as_array().expect("results");
    assert_eq!(results.len(), 5000);
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result, &json!({"id": format!("t{n}"), "status": 201}));
    }
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.pending), (5000, 5000));
}

/// Fifty clients repeat one PUT while its timer fires and ends: one is new, none is a second firing.
async fn one_id_is_one_timer_for_any_number_of_callers(builder: NodeBuilder) {
    /// Its delivery is not answered before so many calls were, however slow the machine is.
    const CROWD: usize = 200;
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (release, released) = watch::channel(false);
    receiver.on("/held", move |_| Reply::ok().after(Duration::from_millis(100)).until(released.clone()));
    let timer = json!({"delay": "PT0.3S", "target": to(receiver.url("/held")), "data": [1]});
    let (release, answered) = (Arc::new(release), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let (api, timer) = (api.clone(), timer.clone());
            let (release, answered) = (Arc::clone(&release), Arc::clone(&answered));
            tokio::spawn(async move {
                let mut answers = Vec::new();
                loop {
                    let (status, body) = api.put("t", &timer).await;
                    if answered.fetch_add(1, Ordering::SeqCst) + 1 == CROWD {
                        release.send_replace(true);
                    }
                    let ended = body["state"] == "delivered";
                    answers.push((status, body["delivery_id"].as_str().unwrap_or("-").to_owned()));
                    if ended || answers.len() > 10_000 {
                        return answers;
                    }
                }
            })
        })
        .collect();
    let mut answers = Vec::new();
    for client in clients {
        let of_one = tokio::time::timeout(Duration::from_secs(60), client).await.expect("it ends");
        answers.extend(of_one.expect("a client runs"));
    }
    assert_eq!(answers.iter().filter(|(status, _)| *status == 201).count(), 1);
    assert!(answers.iter().all(|(status, _)| matches!(status, 200 | 201)), "{answers:?}");
    assert!(answers.len() >= CROWD, "{} calls are no crowd", answers.len());
    let ids: HashSet<_> = answers.iter().map(|(_, id)| id.as_str()).collect();
    let arrived = receiver.received();
    assert_eq!((ids.len(), arrived.len()), (1, 1), "{arrived:?}");
    assert!(ids.contains(arrived[0].delivery_id.as_str()));
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.delivered, ledger.pending), (1, 1, 0));
}

on_both!(
    a_put_is_new_once_and_the_same_for_good,
    again_starts_an_ended_id_anew_and_only_an_ended_one,
    a_post_makes_an_id_and_a_key_makes_it_once,
    each_item_of_a_batch_stands_alone,
    a_batch_holds_up_to_5000,
    one_id_is_one_timer_for_any_number_of_callers,
);

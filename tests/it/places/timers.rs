//! Timers for destinations: where they go, what holds for them, and how they are found.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, call, later, made, now, put};
use crate::support::{
    Node, NodeBuilder, Received, Receiver, Reply, eventually, fresh_database, in_state, on_both, problem,
};

async fn they_go_where_the_destination_is_at_the_attempt(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/old")}})).await;
    let timer = json!({"delay": "PT1H", "target": {"destination": "a"}, "data": 7});
    let (status, kept) = api.put("t", &timer).await;
    assert_eq!((status, &kept["target"]), (201, &json!({"destination": "a"})));
    // What it is now holds for what is registered already.
    let hook =
        json!({"url": receiver.url("/ok"), "secret": "whsec_c2VjcmV0", "headers": {"x-tenant": "shop"}});
    assert_eq!(put(&api, "a", &json!({"webhook": hook})).await.status, 200);
    assert_eq!(api.post("/v1/timers/t/fire", &Value::Null).await.0, 202);
    in_state(&api, "t", "delivered").await;
    let got = receiver.of("t");
    assert_eq!((got.len(), got[0].path.as_str(), got[0].json()), (1, "/ok", json!(7)));
    assert!(got[0].headers.contains_key("webhook-signature") && got[0].headers["x-tenant"] == "shop");
    assert!(got[0].lateness_ms() >= 0);
    assert_eq!(api.put("t", &timer).await.0, 200, "the same content again");
}

async fn one_that_there_is_not_is_422(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let code = |body: &Value| (body["errors"][0]["pointer"].clone(), body["errors"][0]["code"].clone());
    let wanted = (json!("/target/destination"), json!("no_destination"));
    for name in ["nowhere", "no such name"] {
        let (status, body) = api.put("t", &now(name)).await;
        assert_eq!((status, code(&body)), (422, wanted.clone()), "{body}");
    }
    let (status, body) = api.post("/v1/timers", &now("nowhere")).await;
    assert_eq!((status, code(&body)), (422, wanted.clone()), "{body}");
    made(&api, "a", &json!({"webhook": {"url": "http://127.0.0.1:9/"}})).await;
    // Of a batch only those fail.
    let timers = json!({"timers": [later("a"), later("nowhere"), later("a")]});
    let (_, body) = api.post("/v1/timers/batch", &timers).await;
    let statuses: Vec<&Value> =
        body["results"].as_array().expect("a list").iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [201, 422, 201]);
    assert_eq!(code(&body["results"][1]["error"]), wanted);
    // Of one id in a batch, the first that can be is registered.
    let mut twice = [later("nowhere"), later("a")];
    twice.iter_mut().for_each(|timer| timer["id"] = json!("twice"));
    let (_, body) = api.post("/v1/timers/batch", &json!({ "timers": twice })).await;
    let statuses: Vec<&Value> =
        body["results"].as_array().expect("a list").iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [422, 201], "{body}");
    assert_eq!(api.ledger().await.registered, 3);
    assert_eq!(api.put("t", &later("a")).await.0, 201);
    let (status, body) = api.patch("t", &json!({"target": {"destination": "nowhere"}})).await;
    assert_eq!((status, code(&body)), (422, wanted), "{body}");
    assert_eq!(api.timer("t").await.1["version"], 1, "nothing was changed");
}

async fn a_target_can_be_changed_to_one_and_away(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/a")}})).await;
    receiver.on("/a", |_| Reply::ok());
    assert_eq!(
        api.put("t", &json!({"delay": "PT1H", "target": {"webhook": {"url": "http://127.0.0.1:9/"}}}))
            .await
            .0,
        201
    );
    let (status, body) = api.patch("t", &json!({"target": {"destination": "a"}})).await;
    assert_eq!(
        (status, &body["target"], &body["generation"]),
        (200, &json!({"destination": "a"}), &json!(2))
    );
    assert_eq!(api.post("/v1/timers/t/fire", &Value::Null).await.0, 202);
    in_state(&api, "t", "delivered").await;
    assert_eq!(receiver.of("t")[0].path, "/a");
}

async fn its_retry_holds_where_a_timer_has_none(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let retry = json!({"attempts": 2, "first": "PT0.05S", "cap": "PT0.05S"});
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/status/500")}, "retry": retry})).await;
    assert_eq!(api.put("plain", &now("a")).await.1["retry"], retry, "the value in force");
    let mut own = now("a");
    own["retry"] = json!({"attempts": 3, "first": "PT0.05S", "cap": "PT0.05S"});
    api.put("own", &own).await;
    for (id, attempts) in [("plain", 2), ("own", 3)] {
        assert_eq!(in_state(&api, id, "dead").await["attempts"], attempts, "{id}");
    }
    // At the attempt, not at the registration.
    let more = json!({"retry": {"attempts": 4}});
    api.put("later", &later("a")).await;
    assert_eq!(call(&api, Method::PATCH, "a", "", Some(&more)).await.status, 200);
    api.post("/v1/timers/later/fire", &Value::Null).await;
    assert_eq!(in_state(&api, "later", "dead").await["attempts"], 4);
}

async fn its_timeout_is_that_of_each_attempt(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let body =
        json!({"webhook": {"url": receiver.url("/hang")}, "timeout": "PT0.2S", "retry": {"attempts": 1}});
    made(&api, "a", &body).await;
    api.put("t", &now("a")).await;
    in_state(&api, "t", "dead").await;
    let (_, attempts) = api.get("/v1/timers/t/attempts").await;
    let one = &attempts["items"][0];
    assert_eq!((&one["result"], &one["detail"]), (&json!("timeout"), &json!("no answer within 0.2 s")));
}

async fn a_list_finds_those_of_one(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    for name in ["a", "b"] {
        made(&api, name, &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    }
    api.put("a-ended", &now("a")).await;
    in_state(&api, "a-ended", "delivered").await;
    let mut owned = later("a");
    owned["owner"] = json!("me");
    for (id, body) in [("a-live", later("a")), ("a-mine", owned), ("b-live", later("b"))] {
        assert_eq!(api.put(id, &body).await.0, 201);
    }
    api.put("hook", &json!({"delay": "PT1H", "target": {"webhook": {"url": receiver.url("/ok")}}})).await;
    let ids = async |query: &str| {
        let (status, body) = api.get(&format!("/v1/timers?{query}")).await;
        assert_eq!(status, 200, "{body}");
        let ids = body["items"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].as_str().expect("a text").to_owned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort();
        ids.join(" ")
    };
    assert_eq!(ids("destination=a").await, "a-ended a-live a-mine");
    assert_eq!(ids("destination=a&state=scheduled").await, "a-live a-mine");
    assert_eq!(ids("destination=a&state=delivered").await, "a-ended");
    assert_eq!(ids("destination=a&owner=me").await, "a-mine");
    assert_eq!(ids("destination=b&id=b-live&id=a-live").await, "b-live");
    assert_eq!(ids("destination=none").await, "");
    problem(&api.send(Method::GET, "/v1/timers?destination=no%20name", &[], None).await, 422, "invalid");
    let (_, receivers) = api.get("/v1/receivers").await;
    assert_eq!(receivers["items"], json!([]), "destinations are no receivers of inline webhooks");
}

/// What one node is told holds on the others.
#[tokio::test]
async fn every_node_learns_of_a_change() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    let (a, b) = tokio::join!(node("a"), node("b"));
    let (a, b) = (a.api(), b.api());
    receiver.on("/old", |_| Reply::ok());
    made(&a, "d", &json!({"webhook": {"url": receiver.url("/old")}})).await;
    let mut round = 0;
    // Timers of many owners: each node has some of them.
    let mut all_at = async |path: &str| {
        round += 1;
        let ids: Vec<String> = (0..16).map(|n| format!("t{round}-{n}")).collect();
        for id in &ids {
            assert_eq!(b.put(id, &now("d")).await.0, 201);
        }
        let has = |all: &[Received], id: &String| all.iter().any(|one| one.timer == *id);
        receiver.wait_until(|all| ids.iter().all(|id| has(all, id)), LONG).await;
        let paths: BTreeSet<String> = ids.iter().map(|id| receiver.of(id)[0].path.clone()).collect();
        if paths.iter().eq([path]) { Ok(()) } else { Err(paths) }
    };
    all_at("/old").await.expect("it is known everywhere at once");
    put(&a, "d", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    eventually("both nodes send to the new place", LONG, async || all_at("/ok").await).await;
}

/// One that is removed and made again is another one, also for a node that saw neither.
#[tokio::test]
async fn one_that_was_made_again_is_another() {
    let (url, receiver) = (fresh_database().await, Receiver::start().await);
    let node = |name| Node::builder().name(name).cold(&url).start_ready();
    let (a, b) = tokio::join!(node("a"), node("b"));
    let (api, there) = (a.api(), b.api());
    receiver.on("/old", |_| Reply::ok());
    made(&api, "d", &json!({"webhook": {"url": receiver.url("/old")}})).await;
    assert_eq!(there.put("first", &now("d")).await.0, 201);
    in_state(&there, "first", "delivered").await;
    b.pause();
    assert_eq!(call(&api, Method::DELETE, "d", "", None).await.status, 200);
    made(&api, "d", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    b.resume();
    let mut round = 0;
    eventually("both nodes send to the new place", LONG, async || {
        round += 1;
        let ids: Vec<String> = (0..16).map(|n| format!("t{round}-{n}")).collect();
        for id in &ids {
            assert_eq!(there.put(id, &now("d")).await.0, 201);
        }
        for id in &ids {
            in_state(&there, id, "delivered").await;
        }
        let paths: BTreeSet<String> = ids.iter().map(|id| receiver.of(id)[0].path.clone()).collect();
        if paths.iter().eq(["/ok"]) { Ok(()) } else { Err(paths) }
    })
    .await;
}

on_both!(
    they_go_where_the_destination_is_at_the_attempt,
    one_that_there_is_not_is_422,
    a_target_can_be_changed_to_one_and_away,
    its_retry_holds_where_a_timer_has_none,
    its_timeout_is_that_of_each_attempt,
    a_list_finds_those_of_one,
);

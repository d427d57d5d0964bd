//! Schedules as a caller meets them: the calls, what they refuse, what a receiver gets.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, NOWHERE, with};
use crate::support::{
    Answer, Api, NodeBuilder, Receiver, Reply, eventually, in_state, on_both, problem, to, wall_ms,
};

async fn call(api: &Api, method: Method, path: &str, body: Option<&Value>) -> Answer {
    api.send(method, &format!("/v1/schedules{path}"), &[], body).await
}

async fn put(api: &Api, id: &str, body: &Value) -> Answer {
    call(api, Method::PUT, &format!("/{id}"), Some(body)).await
}

async fn act(api: &Api, id: &str, what: &str) -> Answer {
    call(api, Method::POST, &format!("/{id}/{what}"), None).await
}

/// A rule whose next nominal time is far away.
fn yearly() -> Value {
    json!({"cron": "0 0 1 1 *", "target": to(NOWHERE)})
}

fn every(text: &str, url: impl AsRef<str>) -> Value {
    json!({"every": text, "target": to(url), "data": {"kind": "tick"}, "labels": {"app": "shop"}})
}

async fn occurrences_arrive_with_their_schedule_and_nominal_time(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let made = put(&api, "tick", &every("PT1S", receiver.url("/ok"))).await;
    assert_eq!((made.status, made.header("etag")), (201, Some("\"1\"")), "{}", made.body);
    let start = made.body["start_at"].as_str().expect("a time").to_owned();
    assert_eq!(made.body["start_at"], made.body["created_at"]);
    let arrived = receiver.wait_for(3, LONG).await;
    let mut nominal = Vec::new();
    for one in &arrived[..3] {
        let header = |name: &str| one.headers.get(name).expect(name).to_str().expect("text").to_owned();
        assert_eq!(header("ce-schedule"), "tick");
        let at = header("ce-nominal");
        assert_eq!(at, header("ce-dueat"));
        let digits: String = at.chars().filter(|c| c.is_ascii_digit()).collect();
        assert_eq!(one.timer, format!("tick:{}T{}Z", &digits[..8], &digits[8..]));
        assert_eq!(one.json(), json!({"kind": "tick"}));
        nominal.push(at);
    }
    nominal.sort();
    nominal.dedup();
    assert_eq!(nominal.len(), 3, "each has its own");
    assert!(nominal[0] > start);
    let id = &arrived[0].timer;
    let timer = in_state(&api, id, "delivered").await;
    assert_eq!((&timer["schedule"], timer.get("skipped")), (&json!("tick"), None));
    let explained = api.get(&format!("/v1/timers/{id}/explain")).await.1;
    let told = explained["events"][0]["detail"].as_str().expect("a text");
    assert!(told.contains("made by schedule `tick` for its nominal time"), "{told}");
    let listed = async || {
        let listed = api.get("/v1/timers?schedule=tick&state=delivered").await.1;
        if listed["items"].as_array().is_some_and(|items| items.len() >= 3) { Ok(()) } else { Err(listed) }
    };
    eventually("they are listed", LONG, listed).await;
    assert_eq!(api.get("/v1/timers?schedule=other").await.1["items"], json!([]));
    assert_eq!(call(&api, Method::DELETE, "/tick", None).await.status, 200);
    let ahead = api.get("/v1/timers?schedule=tick&state=scheduled").await.1;
    assert_eq!(ahead["items"], json!([]));
    problem(&call(&api, Method::GET, "/tick", None).await, 404, "not_found");
    let ledger = api.ledger().await;
    assert!(ledger.balances() && ledger.cancelled > 0, "{ledger:?}");
}

async fn a_schedule_shows_what_is_in_force(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let made = put(&api, "s", &yearly()).await.body;
    assert_eq!(
        (&made["missed"], &made["overlap"], &made["zone"], &made["state"]),
        (&json!({"policy": "fire_all", "within": "PT1H"}), &json!("allow"), &json!("UTC"), &json!("active"))
    );
    assert_eq!((&made["made"], &made["version"], &made["every"]), (&json!(1), &json!(1), &Value::Null));
    assert_eq!((&made["retry"]["attempts"], &made["late"]["then"]), (&json!(8), &json!("deliver")));
    let next = made["next_at"].as_str().expect("a time");
    assert!(next.ends_with("-01-01T00:00:00.000Z"), "{next}");
    assert_eq!(call(&api, Method::GET, "/s", None).await.body, made);
    let daily = with(with(yearly(), "cron", Value::Null), "daily", json!({"at": "09:00", "every_days": 2}));
    let daily = with(daily, "zone", json!("Asia/Shanghai"));
    let daily = with(with(daily, "owner", json!("user:1")), "priority", json!("high"));
    let shown = put(&api, "d", &with(daily, "precision", json!("minute"))).await.body;
    assert_eq!(
        (&shown["daily"], &shown["owner"], &shown["priority"], &shown["precision"]),
        (&json!({"at": "09:00", "every_days": 2}), &json!("user:1"), &json!("high"), &json!("minute"))
    );
    let times = call(&api, Method::GET, "/d/next?count=3", None).await.body;
    let times: Vec<&str> =
        times["items"].as_array().expect("items").iter().filter_map(Value::as_str).collect();
    assert_eq!(times.len(), 3);
    assert!(times.iter().all(|at| at.ends_with("T01:00:00.000Z")), "{times:?}");
    assert_eq!(
        call(&api, Method::GET, "/d/next", None).await.body["items"].as_array().map(Vec::len),
        Some(10)
    );
    // Lists: by state, owner, label and page.
    assert_eq!(act(&api, "d", "pause").await.body["state"], "paused");
    assert_eq!(call(&api, Method::GET, "/d/next", None).await.body, json!({"items": []}));
    let ids = async |query: &str| {
        let (_, list) = api.get(&format!("/v1/schedules{query}")).await;
        let id = |one: &Value| one["id"].as_str().expect("an id").to_owned();
        let all: Vec<String> = list["items"].as_array().expect("items").iter().map(id).collect();
        (all.join(" "), list["next"].clone())
    };
    put(&api, "t", &every("P1D", NOWHERE)).await;
    assert_eq!(ids("").await, ("d s t".to_owned(), Value::Null));
    assert_eq!(ids("?state=paused").await.0, "d");
    assert_eq!(ids("?owner=user:1").await.0, "d");
    assert_eq!(ids("?label.app=shop").await.0, "t");
    assert_eq!(ids("?destination=none").await.0, "");
    assert_eq!(ids("?limit=2").await, ("d s".to_owned(), json!("s")));
    assert_eq!(ids("?limit=2&cursor=s").await, ("t".to_owned(), Value::Null));
}

async fn a_change_is_merged_and_the_same_again_changes_nothing(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let first = put(&api, "s", &every("PT1H", NOWHERE)).await;
    let before = api.get("/v1/timers?schedule=s").await.1["items"].clone();
    let same = put(&api, "s", &every("PT1H", NOWHERE)).await;
    assert_eq!((same.status, &same.body), (200, &first.body));
    let nothing = call(&api, Method::PATCH, "/s", Some(&json!({"data": {"kind": "tick"}}))).await;
    assert_eq!((nothing.status, &nothing.body["version"]), (200, &json!(1)));
    assert_eq!(api.get("/v1/timers?schedule=s").await.1["items"], before, "its occurrence stays");
    let patch = json!({"labels": {"kind": "x"}, "overlap": "skip", "missed": {"policy": "fire_once"}});
    let changed = call(&api, Method::PATCH, "/s", Some(&patch)).await;
    assert_eq!((changed.status, &changed.body["version"]), (200, &json!(2)), "{}", changed.body);
    assert_eq!(changed.body["labels"], json!({"app": "shop", "kind": "x"}));
    assert_eq!(changed.body["missed"], json!({"policy": "fire_once", "within": "PT1H"}));
    assert_eq!(
        (&changed.body["next_at"], &changed.body["start_at"]),
        (&first.body["next_at"], &first.body["start_at"])
    );
    let timers = api.get("/v1/timers?schedule=s&state=scheduled").await.1["items"].clone();
    assert_eq!((&timers[0]["labels"]["kind"], &timers[0]["generation"]), (&json!("x"), &json!(2)));
    let to_cron = call(&api, Method::PATCH, "/s", Some(&json!({"cron": "0 0 1 1 *"}))).await;
    assert_eq!((&to_cron.body["every"], &to_cron.body["cron"]), (&Value::Null, &json!("0 0 1 1 *")));
    let old = api
        .send(Method::PATCH, "/v1/schedules/s", &[("if-match", "\"1\"")], Some(&json!({"zone": "UTC"})))
        .await;
    problem(&old, 412, "version_changed");
    let old = api.send(Method::PUT, "/v1/schedules/s", &[("if-match", "\"1\"")], Some(&yearly())).await;
    problem(&old, 412, "version_changed");
    let none = api.send(Method::PUT, "/v1/schedules/n", &[("if-match", "*")], Some(&yearly())).await;
    problem(&none, 412, "version_changed");
    problem(&call(&api, Method::PATCH, "/n", Some(&json!({"zone": "UTC"}))).await, 404, "not_found");
}

async fn what_is_not_valid_is_told_with_its_cure(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let some = |field: &str, value: Value| with(yearly(), field, value);
    let without = |field: &str, value: Value| with(with(yearly(), "cron", Value::Null), field, value);
    for (body, pointer, code) in [
        (json!({"target": to(NOWHERE)}), "", "when"),
        (some("every", json!("PT1H")), "/cron", "when"),
        (some("cron", json!("0 0 30 2 *")), "/cron", "bad_rule"),
        (some("cron", json!("0 9 * *")), "/cron", "bad_rule"),
        (some("cron", json!("60 9 * * *")), "/cron", "bad_rule"),
        (some("zone", json!("Asia/Peking")), "/zone", "bad_rule"),
        (some("zone", json!("shanghai")), "/zone", "bad_rule"),
        (without("every", json!("PT0.4S")), "/every", "bad_rule"),
        (without("every", json!("P1M")), "/every", "bad_duration"),
        (without("daily", json!({"at": "25:00"})), "/daily/at", "bad_rule"),
        (without("daily", json!({"at": "09:00", "every_days": 0})), "/daily/every_days", "bad_rule"),
        (without("daily", json!({"at": "09:00", "days": 1})), "/daily/days", "unknown_field"),
        (some("start_at", json!("tomorrow")), "/start_at", "bad_time"),
        (some("end_at", json!("2020-01-01T00:00:00Z")), "/end_at", "range"),
        (
            with(some("start_at", json!("2030-01-02T00:00:00Z")), "end_at", json!("2030-01-01T00:00:00Z")),
            "/end_at",
            "range",
        ),
        (some("max_occurrences", json!(0)), "/max_occurrences", "range"),
        (some("missed", json!({"policy": "fire_twice"})), "/missed/policy", "unknown_policy"),
        (some("missed", json!({"within": "soon"})), "/missed/within", "bad_duration"),
        (some("overlap", json!("maybe")), "/overlap", "unknown_policy"),
        (some("target", json!({"destination": "none"})), "/target/destination", "no_destination"),
        (some("target", Value::Null), "/target", "missing"),
        (some("owner", json!("")), "/owner", "length"),
        (some("retry", json!({"attempts": 0})), "/retry/attempts", "range"),
        (some("fire_at", json!("2030-01-01T00:00:00Z")), "/fire_at", "unknown_field"),
        (some("id", json!("other")), "/id", "mismatch"),
        (some("colour", json!("red")), "/colour", "unknown_field"),
    ] {
        let refused = put(&api, "s", &body).await;
        problem(&refused, 422, "invalid");
        let error = &refused.body["errors"][0];
        assert_eq!(
            (&error["pointer"], &error["code"]),
            (&json!(pointer), &json!(code)),
            "{body}: {}",
            refused.body
        );
        assert!(error["detail"].as_str().is_some_and(|text| !text.is_empty()));
    }
    for id in ["a".repeat(101), "a%20b".to_owned()] {
        problem(&put(&api, &id, &yearly()).await, 422, "invalid");
    }
    assert_eq!(put(&api, &"a".repeat(100), &yearly()).await.status, 201);
    for path in [
        "/s/next?count=0",
        "/s/next?count=1001",
        "/s/next?n=1",
        "/s/skipped?limit=0",
        "/s/skipped?limit=1001",
        "/s/skipped?n=1",
        "?limit=0",
        "?colour=red",
        "?cursor=a%20b",
        "/upcoming?from=soon",
        "/upcoming?from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z",
    ] {
        problem(&call(&api, Method::GET, path, None).await, 422, "invalid");
    }
    for body in [
        json!({"from": "soon", "to": "2030-01-01T00:00:00Z"}),
        json!({}),
        json!({"from": "2030-01-02T00:00:00Z", "to": "2030-01-01T00:00:00Z"}),
    ] {
        problem(&call(&api, Method::POST, "/s/backfill", Some(&body)).await, 422, "invalid");
    }
    for what in ["pause", "resume", "run"] {
        problem(&act(&api, "none", what).await, 404, "not_found");
    }
    assert_eq!(call(&api, Method::GET, "", None).await.body["items"].as_array().map(Vec::len), Some(1));
}

async fn ids_of_occurrences_are_reserved(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let id = "a:20261201T090000000Z";
    let timer = json!({"delay": "PT1H", "target": to(NOWHERE)});
    let refused = api.send(Method::PUT, &format!("/v1/timers/{id}"), &[], Some(&timer)).await;
    problem(&refused, 422, "invalid");
    assert_eq!(refused.body["errors"][0]["code"], "reserved_id");
    let (_, batch) =
        api.post("/v1/timers/batch", &json!({"timers": [with(timer.clone(), "id", json!(id)), timer]})).await;
    assert_eq!(
        (&batch["results"][0]["status"], &batch["results"][1]["status"]),
        (&json!(422), &json!(201)),
        "{batch}"
    );
    assert_eq!(batch["results"][0]["error"]["errors"][0]["code"], "reserved_id", "{batch}");
}

async fn run_pause_and_backfill_make_what_they_say(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    put(&api, "s", &every("PT1S", receiver.url("/ok"))).await;
    let paused = act(&api, "s", "pause").await;
    let paused_by = wall_ms();
    assert_eq!(
        (paused.status, &paused.body["state"], &paused.body["next_at"]),
        (200, &json!("paused"), &Value::Null)
    );
    assert_eq!(act(&api, "s", "pause").await.body["version"], paused.body["version"], "a repeat");
    let run = act(&api, "s", "run").await;
    assert_eq!(run.status, 201);
    let id = run.body["id"].as_str().expect("an id");
    assert_eq!(run.header("location"), Some(format!("/v1/timers/{id}").as_str()));
    assert_eq!(run.body["schedule"], "s");
    receiver.wait_until(|all| all.iter().any(|one| one.timer == id), LONG).await;
    let ran = receiver.of(id).remove(0);
    assert!(ran.headers.contains_key("ce-schedule") && !ran.headers.contains_key("ce-nominal"));
    // Those that were made ahead end as skipped when their time comes.
    let skipped = async || {
        let (_, list) = api.get("/v1/timers?schedule=s&state=expired").await;
        let items = list["items"].as_array().expect("items").clone();
        (items.len() >= 2).then_some(items).ok_or("not two yet")
    };
    let items = eventually("two are skipped", LONG, skipped).await;
    assert!(items.iter().all(|one| one["skipped"] == "paused"), "{items:?}");
    // The first may have been due before the pause was made, and a claim comes 50 ms ahead.
    let mut others = receiver.received();
    others.retain(|one| one.timer != id && one.due_at_ms.is_none_or(|nominal| nominal > paused_by + 55));
    assert!(others.is_empty(), "nothing else fires: {others:?}");
    let id = items[0]["id"].as_str().expect("an id").to_owned();
    let explained = api.get(&format!("/v1/timers/{id}/explain")).await.1;
    let last = explained["events"].as_array().expect("events").last().expect("one").clone();
    assert_eq!(last["detail"], "skipped: its schedule was paused");
    // None of those became no occurrence.
    let range = json!({"from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"});
    let none = call(&api, Method::POST, "/s/backfill", Some(&range)).await;
    assert_eq!((none.status, &none.body), (200, &json!({"made": 0})));
    assert_eq!(api.get("/v1/schedules/s/skipped").await, (200, json!({"items": []})));
    // What the changed rule names while it is paused is never made. It is recorded when it is resumed at the latest.
    let half = json!({"every": "PT0.5S"});
    let changed = call(&api, Method::PATCH, "/s", Some(&half)).await;
    assert_eq!((changed.status, &changed.body["state"]), (200, &json!("paused")));
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let before = receiver.received().len();
    assert_eq!(act(&api, "s", "resume").await.body["state"], "active");
    let never_made = async || {
        let (_, list) = api.get("/v1/schedules/s/skipped").await;
        let items = list["items"].as_array().expect("items").clone();
        if items.is_empty() { Err(list) } else { Ok(items) }
    };
    let ranges = eventually("a time is skipped that became no occurrence", LONG, never_made).await;
    assert_eq!(ranges.len(), 1, "one range that grows: {ranges:?}");
    assert!(ranges[0]["skipped"] == "paused" && ranges[0]["count"].as_u64() >= Some(2), "{ranges:?}");
    let (first, last) = (&ranges[0]["first"], &ranges[0]["last"]);
    let range = json!({"from": first, "to": first});
    let made = call(&api, Method::POST, "/s/backfill", Some(&range)).await;
    assert_eq!(made.body, json!({"made": 1}), "{first} to {last}");
    let (_, rest) = api.get("/v1/schedules/s/skipped").await;
    assert!(rest["items"].as_array().expect("items").iter().all(|one| one["first"] != *first), "{rest}");
    receiver.wait_for(before + 2, LONG).await;
}

async fn upcoming_and_the_forecast_know_what_is_not_made_yet(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let daily = json!({"daily": {"at": "09:00"}, "target": to(NOWHERE)});
    put(&api, "d", &daily).await;
    put(&api, "e", &every("P2D", NOWHERE)).await;
    act(&api, "e", "run").await;
    put(&api, "p", &daily).await;
    act(&api, "p", "pause").await;
    let (_, next) = api.get("/v1/schedules/d/next?count=3").await;
    let (from, to) = (next["items"][0].as_str().expect("one"), next["items"][2].as_str().expect("three"));
    let upcoming = api.get(&format!("/v1/schedules/upcoming?from={from}&to={to}")).await.1;
    let items = upcoming["items"].as_array().expect("items");
    assert!(items.is_sorted_by_key(|one| one["at"].as_str().expect("a time").to_owned()), "{items:?}");
    let of_d: Vec<_> =
        items.iter().filter(|one| one["schedule"] == "d").map(|one| one["made"] == true).collect();
    assert_eq!(of_d, [true, false], "{items:?}");
    assert!(items.iter().any(|one| one["schedule"] == "e") && items.iter().all(|one| one["schedule"] != "p"));
    let timer = items.iter().find(|one| one["made"] == true).expect("one that is made");
    assert_eq!(api.timer(timer["timer"].as_str().expect("an id")).await.0, 200);
    assert_eq!(upcoming["more"], false);
    let (_, forecast) = api.get(&format!("/v1/forecast?from={from}&to={to}&step=P1D")).await;
    let counts: i64 =
        forecast["items"].as_array().expect("items").iter().filter_map(|one| one["count"].as_i64()).sum();
    // Of `p` the one that was made is a live timer still.
    assert_eq!(counts, i64::try_from(items.len()).expect("few") + 1, "{forecast} {items:?}");
}

async fn a_destination_that_a_schedule_uses_stays(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let shop = json!({"webhook": {"url": receiver.url("/ok")}});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/shop", &[], Some(&shop)).await.status, 201);
    let body = with(every("PT1S", NOWHERE), "target", json!({"destination": "shop"}));
    put(&api, "s", &body).await;
    receiver.wait_for(1, LONG).await;
    let listed = api.get("/v1/schedules?destination=shop").await.1;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    act(&api, "s", "pause").await;
    let refused = api.send(Method::DELETE, "/v1/destinations/shop", &[], None).await;
    problem(&refused, 409, "in_use");
    assert!(
        refused.body["detail"].as_str().is_some_and(|text| text.contains("1 schedule ")),
        "{}",
        refused.body
    );
    assert_eq!(call(&api, Method::DELETE, "/s", None).await.status, 200);
    let gone = async || {
        let answer = api.send(Method::DELETE, "/v1/destinations/shop", &[], None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    };
    eventually("nothing uses it any more", LONG, gone).await;
}

async fn workers_of_a_queue_get_occurrences_for_them(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let target = json!({"queue": "tasks"});
    let body = with(every("PT1S", NOWHERE), "target", target.clone());
    let body = with(body, "dispatch", json!({"to": "group:packers"}));
    let made = put(&api, "s", &with(body, "overlap", json!("skip"))).await;
    assert_eq!((made.status, &made.body["dispatch"]["to"]), (201, &json!("group:packers")), "{}", made.body);
    let far = json!({"cron": "0 0 1 1 *", "target": target});
    assert_eq!(put(&api, "far", &far).await.status, 201);
    put(&api, "web", &every("PT1M", NOWHERE)).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let asked = json!({"worker": "ann", "groups": ["packers"], "wait": "PT30S"});
        let leased = api.send(Method::POST, "/v1/queues/tasks/lease", &[], Some(&asked)).await;
        let item = &leased.body["items"][0];
        let id = item["timer"].as_str().expect("an id");
        assert!(id.starts_with("s:") && seen.insert(id.to_owned()), "{}", leased.body);
        assert_eq!(item["data"], json!({"kind": "tick"}));
        let done = json!({"settlements": [{"lease_token": item["lease_token"], "action": "ack"}]});
        let settled = api.send(Method::POST, "/v1/queues/tasks/settle", &[], Some(&done)).await;
        assert_eq!(settled.body["results"][0]["status"], 200, "{}", settled.body);
    }
    let schedules = async |query: &str| {
        let (status, found) = api.get(&format!("/v1/schedules/upcoming{query}")).await;
        assert_eq!(status, 200, "{found}");
        let items = found["items"].as_array().expect("items");
        let of: std::collections::BTreeSet<_> =
            items.iter().map(|one| one["schedule"].as_str().expect("one").to_owned()).collect();
        of.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(schedules("").await, ["s", "web"]);
    assert_eq!(schedules("?queue=tasks").await, ["s"]);
    assert_eq!(schedules("?queue=tasks&to_group=packers").await, ["s"]);
    assert!(schedules("?queue=tasks&to_group=others").await.is_empty());
    assert!(schedules("?queue=other").await.is_empty());
    let refused = api.send(Method::DELETE, "/v1/queues/tasks", &[], None).await;
    problem(&refused, 409, "in_use");
}

/// Cancels a timer that is due and that nobody takes. An attempt may be under way: then it ends once that has failed.
async fn cancel(api: &Api, made: &Answer) {
    let id = made.body["id"].as_str().expect("an id");
    let (status, answer) = api.delete(id).await;
    assert!(status == 200 || (status == 409 && answer["code"] == "in_flight"), "{status} {answer}");
    in_state(api, id, "cancelled").await;
}

async fn occurrences_have_what_a_template_says(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let template = async |schema: Value| {
        let body = json!({"schema": schema, "defaults": {"size": 1}});
        api.send(Method::PUT, "/v1/templates/order", &[], Some(&body)).await.status
    };
    assert_eq!(template(json!({"required": ["order"]})).await, 201);
    let with_template = |data: Value| with(with(yearly(), "data", data), "template", json!("order"));
    let refused = put(&api, "s", &with_template(json!({"size": 2}))).await;
    problem(&refused, 422, "invalid");
    assert_eq!(refused.body["errors"][0]["pointer"].as_str().map(|at| at.starts_with("/data")), Some(true));
    problem(&put(&api, "s", &with(yearly(), "template", json!("none"))).await, 422, "invalid");
    let made = put(&api, "s", &with_template(json!({"order": 7}))).await;
    assert_eq!((made.status, &made.body["template"]), (201, &json!("order")), "{}", made.body);
    assert_eq!(made.body["data"], json!({"size": 1, "order": 7}));
    let run = act(&api, "s", "run").await;
    assert_eq!((run.status, &run.body["template"]), (201, &json!("order")), "{}", run.body);
    assert_eq!(run.body["data"], json!({"size": 1, "order": 7}));
    // It was fitted once: what was taken away from the defaults does not come back.
    let without = put(&api, "without", &with_template(json!({"order": 7, "size": null}))).await;
    let once = act(&api, "without", "run").await;
    assert_eq!((&without.body["data"], &once.body["data"]), (&json!({"order": 7}), &json!({"order": 7})));
    assert_eq!(call(&api, Method::DELETE, "/without", None).await.status, 200);
    cancel(&api, &once).await;

    // What the template says later is asked of a change, and not of the same request again.
    assert_eq!(template(json!({"required": ["customer"]})).await, 200);
    assert_eq!(put(&api, "s", &with_template(json!({"order": 7}))).await.status, 200);
    let patch = json!({"data": {"order": 8}});
    problem(&call(&api, Method::PATCH, "/s", Some(&patch)).await, 422, "invalid");
    let patch = json!({"data": {"customer": "c"}});
    let changed = call(&api, Method::PATCH, "/s", Some(&patch)).await;
    assert_eq!(changed.body["data"], json!({"size": 1, "order": 7, "customer": "c"}), "{}", changed.body);
    assert_eq!(changed.body["version"], 2);
    cancel(&api, &run).await;
    let remove = async || api.send(Method::DELETE, "/v1/templates/order", &[], None).await;
    let refused = remove().await;
    problem(&refused, 409, "in_use");
    assert!(
        refused.body["detail"].as_str().is_some_and(|text| text.contains("schedules")),
        "{}",
        refused.body
    );
    assert_eq!(call(&api, Method::DELETE, "/s", None).await.status, 200);
    let gone = async || if remove().await.status == 200 { Ok(()) } else { Err(()) };
    eventually("nothing uses it any more", LONG, gone).await;
}

async fn what_overlaps_is_skipped_and_told(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    receiver.on("/slow", |_| Reply::ok().after(std::time::Duration::from_millis(2500)));
    let log = json!({"webhook": {"url": receiver.url("/log")}});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/log", &[], Some(&log)).await.status, 201);
    let asked = json!({"destination": "log", "events": ["schedule.skipped"]});
    assert_eq!(api.send(Method::PUT, "/v1/subscriptions/log", &[], Some(&asked)).await.status, 201);
    put(&api, "s", &with(every("PT1S", receiver.url("/slow")), "overlap", json!("skip"))).await;
    let told = |all: &[crate::support::Received]| all.iter().filter(|one| one.path == "/log").count() >= 2;
    let all = receiver.wait_until(told, LONG).await;
    let event = all.iter().find(|one| one.path == "/log").expect("one").json();
    assert_eq!(
        (&event["schedule"], &event["skipped"], &event["state"]),
        (&json!("s"), &json!("overlap"), &json!("expired"))
    );
    assert!(event["timer"].as_str().is_some_and(|id| id.starts_with("s:")), "{event}");
    let counted = async || {
        let count = api.metric("mainspring_occurrences_skipped_total{reason=\"overlap\"}").await;
        if count >= 2.0 { Ok(()) } else { Err(count) }
    };
    eventually("they are counted", LONG, counted).await;
    assert!(api.metric("mainspring_occurrences_total").await >= 3.0);
}

on_both! {
    occurrences_arrive_with_their_schedule_and_nominal_time,
    a_schedule_shows_what_is_in_force,
    a_change_is_merged_and_the_same_again_changes_nothing,
    what_is_not_valid_is_told_with_its_cure,
    ids_of_occurrences_are_reserved,
    run_pause_and_backfill_make_what_they_say,
    upcoming_and_the_forecast_know_what_is_not_made_yet,
    a_destination_that_a_schedule_uses_stays,
    workers_of_a_queue_get_occurrences_for_them,
    occurrences_have_what_a_template_says,
    what_overlaps_is_skipped_and_told,
}

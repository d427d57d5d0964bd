//! Quotas of namespaces: what is over one is told which, and nobody else is held up.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::keys::{key, made};
use super::{LONG, later, with};
use crate::support::{Answer, Api, Node, Watch, eventually, fresh_database, wall_ms};

/// Makes a namespace with these quotas, or gives it others; and a key of it.
async fn team(node: &Node, admin: &Api, name: &str, quotas: Value) -> Api {
    let terms = json!({ "quotas": quotas });
    let answer = admin.send(Method::PUT, &format!("/v1/namespaces/{name}"), &[], Some(&terms)).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
    node.api().with_key(made(admin, &key(name, "register", name)).await.1)
}

async fn first(node: &Node) -> Api {
    node.api().with_key(made(&node.api(), &key("first", "admin", "*")).await.1)
}

async fn put(api: &Api, id: &str, timer: &Value) -> Answer {
    api.send(Method::PUT, &format!("/v1/timers/{id}"), &[], Some(timer)).await
}

fn batch(name: &str, count: usize) -> Value {
    let timers: Vec<Value> = (0..count).map(|n| with(later(), "id", json!(format!("{name}-{n}")))).collect();
    json!({ "timers": timers })
}

fn over(answer: &Answer, quota: &str) {
    assert_eq!((answer.status, &answer.body["code"]), (429, &json!("quota")), "{}", answer.body);
    assert!(answer.body["detail"].as_str().expect("a detail").contains(quota), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_and_horizon_have_their_limits() {
    let node = Node::builder().start_ready().await;
    let admin = first(&node).await;
    let api = team(&node, &admin, "small", json!({"payload_bytes": 10, "horizon": "P1D"})).await;
    let fits = with(later(), "data", json!({"n": 1}));
    assert_eq!(put(&api, "fits", &fits).await.status, 201);
    let large = with(later(), "data", json!({"text": "longer than ten"}));
    let far = with(later(), "delay", json!("P2D"));
    for (timer, pointer, quota) in [(&large, "/data", "payload_bytes"), (&far, "", "horizon")] {
        let error = |body: &Value| {
            let error = &body["errors"][0];
            assert_eq!((&error["pointer"], &error["code"]), (&json!(pointer), &json!("quota")), "{body}");
            assert!(error["detail"].as_str().expect("a detail").contains(quota), "{body}");
        };
        let answer = put(&api, "over", timer).await;
        assert_eq!(answer.status, 422);
        error(&answer.body);
        let change =
            if quota == "horizon" { json!({"delay": "P2D"}) } else { json!({"data": timer["data"]}) };
        let answer = api.send(Method::PATCH, "/v1/timers/fits", &[], Some(&change)).await;
        assert_eq!(answer.status, 422);
        error(&answer.body);
        // Those of others have none.
        assert_eq!(put(&admin, quota, timer).await.status, 201);
    }
    // What a template adds counts.
    let template = json!({"schema": true, "defaults": {"text": "longer than ten"}});
    let small = [("X-Mainspring-Namespace", "small")];
    let answer = admin.send(Method::PUT, "/v1/templates/adds", &small, Some(&template)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let answer = put(&api, "added", &with(with(later(), "template", json!("adds")), "data", json!({}))).await;
    assert_eq!((answer.status, &answer.body["errors"][0]["code"]), (422, &json!("quota")), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn live_timers_are_bounded_and_room_comes_back() {
    let node = Node::builder().start_ready().await;
    let admin = first(&node).await;
    let api = team(&node, &admin, "few", json!({"live_timers": 5})).await;
    let (status, answer) = api.post("/v1/timers/batch", &batch("t", 8)).await;
    assert_eq!(status, 200);
    let statuses: Vec<u64> = answer["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|one| one["status"].as_u64())
        .collect();
    assert_eq!(statuses, [201, 201, 201, 201, 201, 429, 429, 429]);
    let refused = put(&api, "one-more", &later()).await;
    over(&refused, "live_timers");
    assert_eq!(refused.header("retry-after"), Some("2"));
    let (_, again) = api.post("/v1/timers/batch", &batch("t", 6)).await;
    let statuses: Vec<_> = again["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|one| one["status"].as_u64())
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429], "what is there already is answered as before");
    assert_eq!(put(&admin, "elsewhere", &later()).await.status, 201, "another namespace has its own room");
    for n in 0..3 {
        assert_eq!(api.send(Method::DELETE, &format!("/v1/timers/t-{n}"), &[], None).await.status, 200);
    }
    eventually("there is room again", LONG, async || {
        let answer = put(&api, "one-more", &later()).await;
        if answer.status == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_are_due_in_one_second_and_the_next_one_has_room() {
    for node in [Node::builder(), Node::builder().cold(&fresh_database().await)] {
        let node = node.start_ready().await;
        let admin = first(&node).await;
        let api = team(&node, &admin, "dense", json!({"due_per_second": 3})).await;
        let at = |text: &str| with(json!({"target": later()["target"]}), "fire_at", json!(text));
        let due = |n: u32| at(&format!("2036-12-01T09:00:00.{n:03}Z"));
        let statuses = |answer: &Value| -> Vec<u64> {
            let results = answer["results"].as_array().expect("results");
            results.iter().map(|one| one["status"].as_u64().expect("a status")).collect()
        };
        let timers: Vec<Value> = (0..6)
            .map(|n| {
                with(if n == 1 { at("2036-12-01T09:00:01Z") } else { due(n) }, "id", json!(format!("t-{n}")))
            })
            .collect();
        let (_, answer) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
        assert_eq!(statuses(&answer), [201, 201, 201, 201, 429, 429], "the second one is due a second later");
        let (_, again) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
        assert_eq!(
            statuses(&again),
            [200, 200, 200, 200, 429, 429],
            "what is there already is answered as before"
        );
        let refused = put(&api, "one-more", &due(999)).await;
        over(&refused, "due_per_second");
        let detail = refused.body["detail"].as_str().expect("a detail");
        assert!(detail.contains("2036-12-01T09:00:00"), "{detail}");
        assert_eq!(refused.header("retry-after"), Some("3600"), "it is years until that second is over");
        let refused = api
            .send(Method::PATCH, "/v1/timers/t-1", &[], Some(&json!({"fire_at": "2036-12-01T09:00:00Z"})))
            .await;
        over(&refused, "due_per_second");
        let stays = json!({"fire_at": "2036-12-01T09:00:00.777Z"});
        assert_eq!(
            api.send(Method::PATCH, "/v1/timers/t-0", &[], Some(&stays)).await.status,
            200,
            "it is due then already"
        );
        // A short span has the room of its seconds, of which the second one has one timer.
        for (n, status) in [(0, 201), (1, 201), (2, 429)] {
            let spread = with(due(0), "spread", json!("PT1S"));
            assert_eq!(put(&api, &format!("spread-{n}"), &spread).await.status, status, "{n}");
        }
        assert_eq!(put(&api, "wide", &with(due(0), "spread", json!("PT1H"))).await.status, 201);
        assert_eq!(put(&admin, "elsewhere", &due(0)).await.status, 201, "another namespace has its own room");
        for id in ["t-0", "t-2", "t-3"] {
            assert_eq!(api.send(Method::DELETE, &format!("/v1/timers/{id}"), &[], None).await.status, 200);
        }
        eventually("there is room again", LONG, async || {
            let answer = put(&api, "one-more", &due(999)).await;
            if answer.status == 201 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_a_second_are_counted_on_all_nodes_together() {
    const RATE: u32 = 100;
    let url = fresh_database().await;
    let one = Node::builder().cold(&url).name("one").start_ready().await;
    let two = Node::builder().cold(&url).name("two").start_ready().await;
    let admin = first(&one).await;
    let quotas = json!({ "requests_per_second": RATE });
    let busy = team(&one, &admin, "busy", quotas).await;
    let calm = team(&one, &admin, "calm", json!({})).await;
    let mut both = vec![busy.clone(), busy.clone()];
    both[1].base = two.base();
    // Both know the quota.
    eventually("both count", LONG, async || {
        let too_many = batch("x", RATE as usize + 2);
        for api in &both {
            let answer = api.send(Method::POST, "/v1/timers/batch", &[], Some(&too_many)).await;
            if answer.status != 422 || answer.body["code"] != "quota" {
                return Err(answer.body);
            }
            assert!(answer.body["detail"].as_str().expect("a detail").contains("smaller"), "{}", answer.body);
        }
        Ok(())
    })
    .await;
    let mut watched = [admin.clone(), admin];
    watched[1].base = two.base();
    let (watch, from) = (Watch::start(&watched), wall_ms());
    let began = Instant::now();
    // On each node more than may pass with a part of the quota, which is as many as may wait for it.
    let flood = both.iter().cycle().take(16).enumerate().map(|(n, api)| {
        let api = api.clone();
        async move {
            let (mut taken, mut refused) = (0_u32, 0_u32);
            while began.elapsed() < Duration::from_secs(4) {
                let answer = api.send(Method::GET, &format!("/v1/timers/none-{n}"), &[], None).await;
                match answer.status {
                    404 => taken += 1,
                    _ => {
                        over(&answer, "requests_per_second");
                        assert!(answer.header("retry-after").is_some());
                        refused += 1;
                        tokio::time::sleep(Duration::from_millis(8)).await;
                    }
                }
            }
            (taken, refused)
        }
    });
    let others = async {
        let mut answered = 0;
        while began.elapsed() < Duration::from_secs(4) {
            assert_eq!(calm.get("/v1/timers/none").await.0, 404);
            answered += 1;
        }
        answered
    };
    let (each, answered) = tokio::join!(futures::future::join_all(flood), others);
    let (elapsed, until) = (began.elapsed().as_secs_f64(), wall_ms());
    // A node that stands still takes nothing of its half.
    let stalled = watch.end().await.within(from..until) as f64 / 2000.0;
    let (taken, refused) = each.iter().fold((0, 0), |(taken, refused), one| (taken + one.0, refused + one.1));
    let allowed = f64::from(RATE) * elapsed;
    println!(
        "{taken} of {allowed:.0} taken, {refused} refused, {answered} of another namespace; stalled {stalled} s"
    );
    assert!(f64::from(taken) <= 1.1 * allowed, "{taken} of {allowed}");
    let least = 0.5 * f64::from(RATE) * (elapsed - stalled);
    assert!(f64::from(taken) >= least && refused > 0, "{taken} of {allowed}, {refused} refused");
    assert!(answered > 20, "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_waits_for_its_quota() {
    let node = Node::builder().start_ready().await;
    let admin = first(&node).await;
    let api = team(&node, &admin, "slow", json!({"requests_per_second": 100})).await;
    let lines: String = batch("t", 180)["timers"]
        .as_array()
        .expect("timers")
        .iter()
        .fold(String::new(), |all, one| all + &one.to_string() + "\n");
    let began = Instant::now();
    let headers = [("content-type", "application/x-ndjson")];
    let answer = api.send_bytes(Method::POST, "/v1/timers/stream", &headers, lines).await;
    assert_eq!(answer.status, 200);
    let text = answer.body.as_str().expect("lines").to_owned();
    let taken = text.lines().filter(|line| line.contains("\"status\":201")).count();
    assert_eq!((taken, text.lines().count()), (180, 180));
    assert!(began.elapsed() >= Duration::from_millis(1500), "180 of 100 a second: {:?}", began.elapsed());
}

/// What is overdue fires now, and so does what is fired: both count for the second of the call.
#[tokio::test(flavor = "multi_thread")]
async fn what_fires_now_counts_for_now() {
    let node = Node::builder().start_ready().await;
    let admin = first(&node).await;
    let api = team(&node, &admin, "dense", json!({"due_per_second": 2})).await;
    let overdue = |n: u32| {
        let at = format!("2020-01-01T00:00:{n:02}Z");
        json!({"id": format!("o-{n}"), "fire_at": at, "target": later()["target"]})
    };
    let timers: Vec<Value> = (0..6).map(overdue).collect();
    let (_, answer) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
    let results = answer["results"].as_array().expect("results");
    let statuses: Vec<_> = results.iter().map(|one| one["status"].as_u64()).collect();
    assert_eq!(statuses, [201, 201, 429, 429, 429, 429].map(Some), "{answer}");
    for n in 0..10 {
        let timer = with(later(), "delay", json!(format!("PT{}H", n + 1)));
        assert_eq!(put(&api, &format!("f-{n}"), &timer).await.status, 201);
    }
    let fire = async |n: u32| api.send(Method::POST, &format!("/v1/timers/f-{n}/fire"), &[], None).await;
    eventually("there is room in another second", LONG, async || {
        let answer = fire(0).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let mut refused = 0;
    for n in 1..10 {
        let answer = fire(n).await;
        if answer.status != 202 {
            over(&answer, "due_per_second");
            refused += 1;
        }
    }
    assert!(refused > 0, "ten within a second or two, of which each has room for two");
}

/// A change asks for the second in which its timer will be due, and what comes to nothing takes no room.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_counts_for_the_second_that_it_moves_a_timer_to() {
    let node = Node::builder().start_ready().await;
    let admin = first(&node).await;
    let api = team(&node, &admin, "dense", json!({"due_per_second": 2})).await;
    let at = |time: &str| json!({"fire_at": format!("2036-12-01T{time}Z")});
    let by_minute = |time: &str| {
        let mut timer = at(time);
        (timer["target"], timer["precision"]) = (later()["target"].clone(), json!("minute"));
        timer
    };
    let patch = async |id: &str, to: &Value| {
        api.send(Method::PATCH, &format!("/v1/timers/{id}"), &[], Some(to)).await
    };
    for n in 0..3 {
        assert_eq!(put(&api, &format!("m-{n}"), &by_minute(&format!("09:0{n}:00"))).await.status, 201);
    }
    assert_eq!(patch("m-0", &at("09:30:01")).await.status, 200);
    assert_eq!(patch("m-1", &at("09:30:02")).await.status, 200);
    over(&patch("m-2", &at("09:30:03")).await, "due_per_second");
    for _ in 0..3 {
        assert_eq!(patch("nobody", &at("10:00:00")).await.status, 404);
        let stale = [("if-match", "\"77\"")];
        let answer = api.send(Method::PATCH, "/v1/timers/m-2", &stale, Some(&at("10:00:00"))).await;
        assert_eq!(answer.status, 412, "{}", answer.body);
    }
    for n in 0..2 {
        assert_eq!(patch(&format!("m-{n}"), &at("10:00:00")).await.status, 200, "{n}");
    }
}

/// Occurrences are made past the quotas, also by a run, and count.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_schedule_is_made_though_there_is_no_room() {
    let node = Node::builder().start_ready().await;
    let admin = first(&node).await;
    let api = team(&node, &admin, "few", json!({"live_timers": 1, "due_per_second": 1})).await;
    let few = [("X-Mainspring-Namespace", "few")];
    let schedule = json!({"cron": "0 0 1 1 *", "target": {"queue": "q"}});
    let answer = admin.send(Method::PUT, "/v1/schedules/s", &few, Some(&schedule)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    for _ in 0..3 {
        let run = admin.send(Method::POST, "/v1/schedules/s/run", &few, None).await;
        assert_eq!(run.status, 201, "{}", run.body);
    }
    let mut n = 0;
    // They count. Without them there would be room whenever what was put before is gone.
    eventually("there is no room", LONG, async || {
        n += 1;
        let path = format!("/v1/timers/more-{n}");
        let answer = api.send(Method::PUT, &path, &[], Some(&later())).await;
        assert!(answer.status == 429 || api.send(Method::DELETE, &path, &[], None).await.status == 200);
        if answer.status == 429 { Ok(()) } else { Err(answer.status) }
    })
    .await;
}

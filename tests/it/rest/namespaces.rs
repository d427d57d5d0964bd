//! Namespaces over REST: each call of the OpenAPI document, by a key of another namespace, is answered as if there were nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::{Value, json};

use super::keys::{key, keyed, made};
use super::{LONG, NOWHERE, later, now, with};
use crate::support::{
    Answer, Api, Node, NodeBuilder, Receiver, Reply, eventually, fresh_database, on_both, rfc3339, settled,
    to, wall_ms,
};

/// Names its namespace.
const IN_A: (&str, &str) = ("X-Mainspring-Namespace", "a");

async fn namespace(admin: &Api, name: &str, terms: &Value) {
    let answer = admin.send(Method::PUT, &format!("/v1/namespaces/{name}"), &[], Some(terms)).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
}

/// A node with the namespaces `a` and `b`, and an admin's key of each.
async fn two_teams(node: &Node, admin: &Api) -> [Api; 2] {
    let mut keys = Vec::new();
    for name in ["a", "b"] {
        namespace(admin, name, &json!({})).await;
        keys.push(node.api().with_key(made(admin, &key(name, "admin", name)).await.1));
    }
    keys.try_into().unwrap_or_else(|_| panic!("two"))
}

/// Something of every kind, called `t`; returns the ids of an operation and of a key.
async fn furnish(api: &Api) -> (String, String) {
    let put = async |path: &str, body: Value| {
        let answer = api.send(Method::PUT, path, &[], Some(&body)).await;
        assert!(matches!(answer.status, 200 | 201), "{path}: {}", answer.body);
    };
    put("/v1/destinations/t", json!({"webhook": {"url": NOWHERE}})).await;
    put("/v1/queues/t", json!({"lease": "PT1M"})).await;
    put("/v1/templates/t", json!({"schema": true})).await;
    put("/v1/subscriptions/t", json!({"destination": "t", "events": ["*"]})).await;
    put("/v1/schedules/t", json!({"cron": "@yearly", "target": to(NOWHERE)})).await;
    put("/v1/timers/t", later()).await;
    let (_, operation) = api
        .post("/v1/operations", &json!({"action": "cancel", "filter": {"owner": "nobody"}, "dry_run": true}))
        .await;
    let (id, _) = made(api, &json!({"name": "more", "scopes": ["view"]})).await;
    (operation["id"].as_str().expect("an operation").to_owned(), id)
}

/// The path of a thing of the other team, and of one that nobody has; `None` where the path names nothing.
fn paths(path: &str, operation: &str, key: &str) -> Option<[String; 2]> {
    let parameter = path.split('/').find(|part| part.starts_with('{'))?;
    let (theirs, nobodys) = match path.split('/').nth(2).expect("a kind") {
        "operations" => (operation.to_owned(), format!("op_{}", "0".repeat(32))),
        "keys" => (key.to_owned(), format!("key_{}", "0".repeat(16))),
        _ => ("t".to_owned(), "nobodys".to_owned()),
    };
    Some([theirs, nobodys].map(|id| path.replace(parameter, &id)))
}

/// What of an answer does not depend on the name that was asked for.
fn shape(answer: &Answer, name: &str) -> (u16, Value, String) {
    let detail = answer.body["detail"].as_str().unwrap_or_default().replace(name, "");
    (answer.status, answer.body["code"].clone(), detail)
}

fn body_of(method: &Method, path: &str) -> Option<Value> {
    let last = path.rsplit('/').next().expect("a part");
    match (method.as_str(), last) {
        ("PATCH", _) if path.starts_with("/v1/timers") => Some(json!({"delay": "PT2H"})),
        ("PATCH", _) if path.starts_with("/v1/schedules") => Some(json!({"cron": "@daily"})),
        ("PATCH", _) => Some(json!({"concurrency": 5})),
        ("POST", "redrive") => Some(json!({"since": "2026-01-01T00:00:00Z"})),
        ("POST", "backfill") => Some(json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"})),
        ("POST", "settle") => Some(json!({"settlements": []})),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_namespace_has_is_answered_as_if_it_were_not_there() {
    let (node, admin) = keyed().await;
    let [a, b] = two_teams(&node, &admin).await;
    let (operation, key) = furnish(&a).await;
    let (_, document) = admin.get("/openapi.json").await;
    let mut compared = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let Some([theirs, nobodys]) = paths(path, &operation, &key).filter(|_| path.starts_with("/v1/"))
        else {
            continue;
        };
        for method in methods.as_object().expect("methods").keys() {
            let method: Method = method.to_uppercase().parse().expect("a method");
            // What is put or leased is made, in the caller's own namespace.
            if method == Method::PUT || path.ends_with("/lease") {
                continue;
            }
            let body = body_of(&method, path);
            let [theirs, nobodys] = [&theirs, &nobodys].map(|path| {
                let (path, body) = (path.clone(), body.clone());
                let (b, method) = (b.clone(), method.clone());
                async move { b.send(method, &path, &[], body.as_ref()).await }
            });
            let (theirs, nobodys) = (theirs.await, nobodys.await);
            let names = if path.starts_with("/v1/operations") {
                [operation.clone(), format!("op_{}", "0".repeat(32))]
            } else if path.starts_with("/v1/keys") {
                [key.clone(), format!("key_{}", "0".repeat(16))]
            } else {
                ["`t`".to_owned(), "`nobodys`".to_owned()]
            };
            assert_eq!(shape(&theirs, &names[0]), shape(&nobodys, &names[1]), "{method} {path}");
            assert!(theirs.status == 404 || path.ends_with("/settle"), "{method} {path}: {}", theirs.body);
            compared += 1;
        }
    }
    assert!(compared >= 35, "{compared}");
    // And nothing has happened to what is theirs.
    assert_eq!(a.timer("t").await.1["state"], "scheduled");
    for (path, count) in [
        // One of them is of the schedule.
        ("/v1/timers", 2),
        ("/v1/destinations", 1),
        ("/v1/queues", 1),
        ("/v1/templates", 1),
        ("/v1/subscriptions", 1),
        ("/v1/schedules", 1),
        ("/v1/operations", 1),
        ("/v1/keys", 2),
    ] {
        let items = async |api: &Api| api.get(path).await.1["items"].as_array().expect("items").len();
        let of_b = usize::from(path == "/v1/keys");
        let in_a = admin.send(Method::GET, path, &[IN_A], None).await;
        assert_eq!((items(&a).await, items(&b).await), (count, of_b), "{path}");
        assert!(in_a.body["items"].as_array().expect("items").len() >= count, "{path}");
    }
    let registered = async |api: &Api| api.get("/v1/ledger").await.1["registered"].clone();
    assert_eq!(
        [registered(&a).await, registered(&b).await, registered(&admin).await],
        [2, 0, 2].map(Value::from)
    );
    let (_, audit) = b.get("/v1/audit").await;
    assert!(
        audit["items"].as_array().expect("items").iter().all(|row| row["action"] == "key.make"),
        "{audit}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_all_namespaces_says_which_one_it_means() {
    let (node, admin) = keyed().await;
    let [a, b] = two_teams(&node, &admin).await;
    let put = async |api: &Api, headers: &[(&str, &str)]| {
        let answer = api.send(Method::PUT, "/v1/timers/t", headers, Some(&later())).await;
        (answer.status, answer.body["code"].clone())
    };
    assert_eq!(put(&admin, &[]).await.0, 201);
    assert_eq!(put(&admin, &[IN_A]).await.0, 201, "the same id in another namespace");
    assert_eq!(put(&a, &[]).await.0, 200, "it is that one's");
    assert_eq!(put(&a, &[IN_A]).await.0, 200);
    let (unknown, foreign) = (("X-Mainspring-Namespace", "nobody"), (404, json!("not_found")));
    assert_eq!(put(&admin, &[unknown]).await, (422, json!("invalid")));
    assert_eq!(put(&b, &[IN_A]).await, foreign);
    assert_eq!(put(&b, &[unknown]).await, foreign, "whether there is one is not told");
    assert_eq!(b.timer("t").await.0, 404);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (status, refused) = b.post("/v1/keys", &key("k", "view", "a")).await;
    assert_eq!((status, text(&refused["errors"][0]["code"])), (422, Some("unknown_namespace".into())));
    let (status, refused) = b.post("/v1/keys", &key("k", "view", "*")).await;
    assert_eq!((status, text(&refused["errors"][0]["code"])), (422, Some("not_yours".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fires_from_its_own_and_is_told_of_its_own() {
    let url = fresh_database().await;
    let one = Node::builder().cold(&url).name("one").start_ready().await;
    let two = Node::builder().cold(&url).name("two").start_ready().await;
    let admin = one.api().with_key(made(&one.api(), &key("first", "admin", "*")).await.1);
    let [a, b] = two_teams(&one, &admin).await;
    let receiver = Receiver::start().await;
    for path in ["/a", "/b", "/log/a", "/log/b"] {
        receiver.on(path, |_| Reply::ok());
    }
    for (team, api) in [("a", &a), ("b", &b)] {
        let hook = json!({"webhook": {"url": receiver.url(&format!("/{team}"))}});
        assert_eq!(api.send(Method::PUT, "/v1/destinations/hook", &[], Some(&hook)).await.status, 201);
        let log = json!({"webhook": {"url": receiver.url(&format!("/log/{team}"))}});
        assert_eq!(api.send(Method::PUT, "/v1/destinations/log", &[], Some(&log)).await.status, 201);
        let all = json!({"destination": "log", "events": ["timer.delivered"]});
        assert_eq!(api.send(Method::PUT, "/v1/subscriptions/log", &[], Some(&all)).await.status, 201);
    }
    // By the other node, which has to learn of them.
    let [a, b] = [a, b].map(|mut api| {
        api.base = two.base();
        api
    });
    for (team, api) in [("a", &a), ("b", &b)] {
        let timer = with(now(NOWHERE), "target", json!({"destination": "hook"}));
        let timer = with(timer, "data", json!({"team": team}));
        let (status, answer) = api.put("same", &timer).await;
        assert_eq!(status, 201, "{answer}");
    }
    let all = receiver.wait_for(4, LONG).await;
    for team in ["a", "b"] {
        let of = |path: String| all.iter().filter(|one| one.path == path).collect::<Vec<_>>();
        let (fired, told) = (of(format!("/{team}")), of(format!("/log/{team}")));
        assert_eq!((fired.len(), told.len()), (1, 1), "{all:?}");
        for one in [fired[0], told[0]] {
            assert_eq!(one.headers["ce-source"], format!("/mainspring/{team}"), "{one:?}");
            assert_eq!(one.timer, "same");
        }
    }
    eventually("both are delivered", LONG, async || {
        let states = [a.timer("same").await.1["state"].clone(), b.timer("same").await.1["state"].clone()];
        if states == ["delivered", "delivered"] { Ok(()) } else { Err(states) }
    })
    .await;
}

/// Removals and registrations at once: a timer that was taken bars the removal until it has ended, so that it is there in the
/// namespace that it was registered for.
async fn what_was_taken_is_there_whatever_is_removed_beside(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let admin = node.api().with_key(made(&node.api(), &key("first", "admin", "*")).await.1);
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let call = |caller: usize| {
        let (admin, stop, taken) = (admin.clone(), Arc::clone(&stop), Arc::clone(&taken));
        tokio::spawn(async move {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let path = format!("/v1/timers/c{caller}-{n}");
                let put = admin.send(Method::PUT, &path, &[IN_A], Some(&later())).await;
                if put.status != 201 {
                    assert_eq!(put.body["errors"][0]["code"], "unknown_namespace", "{}", put.body);
                    continue;
                }
                taken.fetch_add(1, Ordering::Relaxed);
                for method in [Method::GET, Method::DELETE] {
                    let answer = admin.send(method.clone(), &path, &[IN_A], None).await;
                    assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
                }
            }
        })
    };
    let callers = [call(0), call(1)];
    let (mut removed, mut barred) = (0, 0);
    eventually("some are removed, some are barred", 3 * LONG, async || {
        namespace(&admin, "a", &json!({})).await;
        let gone = admin.send(Method::DELETE, "/v1/namespaces/a", &[], None).await;
        match gone.status {
            200 => removed += 1,
            409 => barred += 1,
            _ => panic!("{}", gone.body),
        }
        let seen = (removed, barred, taken.load(Ordering::Relaxed));
        if removed >= 2 && barred >= 2 && seen.2 >= 5 { Ok(()) } else { Err(seen) }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("what was taken is there");
    }
}
on_both!(what_was_taken_is_there_whatever_is_removed_beside);

/// Twelve namespaces have each a lane to one host, all under way at once: the second and the third time with the connections
/// of the first, though a lane may have but two.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_host_are_kept_for_all_namespaces() {
    const TIMES: usize = 3;
    let node = Node::builder().env("MAINSPRING__WEBHOOK__CONCURRENCY", "2").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let names: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
    for name in &names {
        namespace(&api, name, &json!({})).await;
    }
    for time in 0..TIMES {
        let due = rfc3339(wall_ms() + 1000);
        for (n, name) in names.iter().enumerate() {
            let timer = json!({"fire_at": due, "target": to(receiver.url("/slow/400"))});
            let path = format!("/v1/timers/t{n}-{time}");
            let put = api.send(Method::PUT, &path, &[("X-Mainspring-Namespace", name)], Some(&timer)).await;
            assert_eq!(put.status, 201, "{}", put.body);
        }
        settled(&api, names.len() * (time + 1), 0).await;
    }
    let all = receiver.received();
    let connections: HashSet<_> = all.iter().map(|one| one.peer).collect();
    println!("{} connections for {} attempts", connections.len(), all.len());
    assert!((5..=names.len() + 4).contains(&connections.len()), "{}", connections.len());
}

/// A certificate is public: who could make another team's certificate a key of his own namespace would get its timers.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_made_a_key_by_a_key_of_all_alone() {
    let (node, admin) = keyed().await;
    let [a, _] = two_teams(&node, &admin).await;
    let pem = rcgen::generate_simple_self_signed(["shop".to_owned()]).expect("a certificate").cert.pem();
    let wanted = json!({"name": "theirs", "scopes": ["register"], "certificate": pem});
    let refused = a.send(Method::POST, "/v1/keys", &[], Some(&wanted)).await;
    assert_eq!((refused.status, &refused.body["code"]), (403, &json!("scope")), "{}", refused.body);
    let made = admin.send(Method::POST, "/v1/keys", &[IN_A], Some(&wanted)).await;
    assert_eq!(made.status, 201, "{}", made.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_a_tenth_of_the_subscriptions_of_a_store() {
    let (node, admin) = keyed().await;
    let [a, b] = two_teams(&node, &admin).await;
    let put = async |api: &Api, n: usize| {
        let wanted = json!({"destination": "t", "events": ["*"]});
        api.send(Method::PUT, &format!("/v1/subscriptions/s{n}"), &[], Some(&wanted)).await
    };
    for api in [&a, &b] {
        let hook = json!({"webhook": {"url": NOWHERE}});
        let made = api.send(Method::PUT, "/v1/destinations/t", &[], Some(&hook)).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    for n in 0..10 {
        assert_eq!(put(&a, n).await.status, 201);
    }
    let refused = put(&a, 10).await;
    assert_eq!(
        (refused.status, &refused.body["errors"][0]["code"]),
        (422, &json!("too_many")),
        "{}",
        refused.body
    );
    assert_eq!(put(&b, 10).await.status, 201, "another one has its own");
}

/// A replay counts the timers of all namespaces. Who has a key of one is told that there was one, and why.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_replay_found_of_all_is_told_to_nobody_of_one() {
    let (mut node, admin) = keyed().await;
    let [a, _] = two_teams(&node, &admin).await;
    assert_eq!(a.put("t", &with(later(), "delay", json!("PT2M"))).await.0, 201);
    node.restart().await;
    node.wait_ready(LONG).await;
    let of_a = [("X-Mainspring-Namespace", "a")];
    let told = async |api: &Api| {
        let answer = api.send(Method::GET, "/v1/timers/t/explain", &of_a, None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let events = answer.body["events"].as_array().expect("events").clone();
        let replay = events.iter().find(|one| one["event"] == "replayed").ok_or("not yet")?;
        Ok::<_, &str>(replay["detail"].as_str().expect("a detail").to_owned())
    };
    let all = eventually("it is told", LONG, async || told(&admin).await).await;
    assert!(all.contains("1 put into slots"), "{all}");
    let own = told(&a).await.expect("it is there");
    assert!(own.contains("this process started") && !own.contains("slots"), "{own}");
}

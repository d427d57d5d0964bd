//! The audit: every change that operators and admins make leaves a row, with who made it, and none holds a secret.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::keys::{REGISTER, keyed};
use super::{NOWHERE, later};
use crate::support::{Api, Node, run_sql, to};

/// The last entries, latest first.
async fn audit(api: &Api, query: &str) -> Vec<Value> {
    let (status, page) = api.get(&format!("/v1/audit{query}")).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().expect("items").clone()
}

/// An operation that a node works on which never lets go: it can be stopped.
async fn running_operation(node: &Node) -> String {
    run_sql(
        &format!("sqlite://{}/mainspring.db", node.dir().display()),
        "INSERT INTO operations (namespace, id, action, filter, selection, dry_run, state, matched, done, refused, created_at, \
         lease_until) VALUES (0, unhex(printf('%032x', 7)), 'redrive', '{\"owner\":\"me\"}', '{}', false, 0, 0, 0, '{}', 1, \
         9000000000000)",
    )
    .await;
    format!("op_{:032x}", 7)
}

#[tokio::test]
async fn every_change_of_an_operator_leaves_a_row_with_who_made_it() {
    let (node, api) = keyed().await;
    let operation = running_operation(&node).await;
    let hook = json!({"webhook": {"url": NOWHERE}});
    let yearly = json!({"cron": "@yearly", "target": to(NOWHERE)});
    let since = json!({"since": "2026-01-01T00:00:00Z"});
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"});
    let redrive = json!({"action": "redrive", "filter": {"owner": "nobody"}, "dry_run": true});
    let steps: Vec<(&str, &str, Option<Value>, &str)> = vec![
        ("PUT /v1/destinations/{name}", "d", Some(hook.clone()), "destination.put"),
        ("PATCH /v1/destinations/{name}", "d", Some(json!({"concurrency": 5})), "destination.put"),
        ("POST /v1/destinations/{name}/test", "d", None, "destination.test"),
        ("POST /v1/destinations/{name}/pause", "d", None, "destination.pause"),
        ("POST /v1/destinations/{name}/resume", "d", None, "destination.resume"),
        ("POST /v1/destinations/{name}/redrive", "d", Some(since), "operation.begin"),
        ("PUT /v1/queues/{name}", "q", Some(json!({"lease": "PT1M"})), "queue.put"),
        ("POST /v1/queues/{name}/pause", "q", None, "queue.pause"),
        ("POST /v1/queues/{name}/resume", "q", None, "queue.resume"),
        ("DELETE /v1/queues/{name}", "q", None, "queue.remove"),
        ("PUT /v1/templates/{name}", "t", Some(json!({"schema": true})), "template.put"),
        ("DELETE /v1/templates/{name}", "t", None, "template.remove"),
        ("PUT /v1/schedules/{id}", "s", Some(yearly), "schedule.put"),
        ("PATCH /v1/schedules/{id}", "s", Some(json!({"cron": "@daily"})), "schedule.put"),
        ("POST /v1/schedules/{id}/pause", "s", None, "schedule.pause"),
        ("POST /v1/schedules/{id}/resume", "s", None, "schedule.resume"),
        ("POST /v1/schedules/{id}/run", "s", None, "schedule.run"),
        ("POST /v1/schedules/{id}/backfill", "s", Some(range), "schedule.backfill"),
        ("DELETE /v1/schedules/{id}", "s", None, "schedule.remove"),
        (
            "PUT /v1/subscriptions/{name}",
            "l",
            Some(json!({"destination": "d", "events": ["*"]})),
            "subscription.put",
        ),
        ("DELETE /v1/subscriptions/{name}", "l", None, "subscription.remove"),
        ("DELETE /v1/destinations/{name}", "d", None, "destination.remove"),
        ("POST /v1/operations", "", Some(redrive), "operation.begin"),
        ("POST /v1/operations/{id}/stop", &operation, None, "operation.stop"),
        ("PUT /v1/namespaces/{name}", "n", Some(json!({"quotas": {"live_timers": 5}})), "namespace.put"),
        ("DELETE /v1/namespaces/{name}", "n", None, "namespace.remove"),
        ("POST /v1/keys", "", Some(json!({"name": "k", "scopes": ["view"]})), "key.make"),
    ];
    let mut done: BTreeSet<String> = BTreeSet::new();
    let mut call = async |call: &str, id: &str, body: Option<&Value>| {
        let (method, path) = call.split_once(' ').expect("a method and a path");
        let path = path.replace("{id}", id).replace("{name}", id);
        let answer = api.send(method.parse::<Method>().expect("a method"), &path, &[], body).await;
        assert!((200..300).contains(&answer.status), "{call}: {}", answer.body);
        done.insert(call.to_owned());
        answer.body
    };
    let mut made = String::new();
    for (step, id, body, _) in &steps {
        let answer = call(step, id, body.as_ref()).await;
        if *step == "POST /v1/keys" {
            made = answer["id"].as_str().expect("an id").to_owned();
        }
    }
    call("DELETE /v1/keys/{id}", &made, None).await;

    // No call is forgotten: all that change something are there, but for what programs do to timers.
    let (_, document) = api.get("/openapi.json").await;
    let mut all = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys().filter(|method| *method != "get") {
            all.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let programs: BTreeSet<String> = REGISTER.iter().map(|call| (*call).to_owned()).collect();
    let all: BTreeSet<String> = all.difference(&programs).cloned().collect();
    assert_eq!(done, all);

    let mut expected: Vec<(&str, &str)> = steps.iter().map(|(_, id, _, action)| (*action, *id)).collect();
    expected.push(("key.revoke", &made));
    let mut found = audit(&api, "?limit=1000").await;
    found.reverse();
    // The first key was made while everybody was let in.
    assert_eq!((&found[0]["actor"], &found[0]["action"]), (&json!("anybody"), &json!("key.make")));
    let (_, keys) = api.get("/v1/keys").await;
    let actor = &keys["items"][0]["id"];
    assert_eq!(found.len(), expected.len() + 1, "{found:#?}");
    for (row, (action, id)) in found[1..].iter().zip(&expected) {
        assert_eq!(&row["action"], action, "{row}");
        assert_eq!((&row["actor"], &row["name"]), (actor, &json!("first")), "{row}");
        assert_eq!(row["from"], "127.0.0.1", "{row}");
        let object = row["object"].as_str().expect("a text");
        let is_made = matches!(*action, "operation.begin" | "key.make");
        assert!(object == *id || (is_made && !object.is_empty()), "{row}");
    }
    let of = |action: &str| found.iter().filter(|row| row["action"] == action).collect::<Vec<_>>();
    let puts = of("destination.put");
    assert!(puts[0].get("before").is_none() && puts[0]["after"]["version"] == 1);
    assert_eq!(puts[1]["before"], puts[0]["after"], "what it was is what it had become");
    assert!(of("destination.remove")[0].get("after").is_none());
    assert_eq!(of("key.revoke")[0]["before"]["name"], "k");
    let stop = &of("operation.stop")[0];
    assert_eq!((&stop["before"]["state"], &stop["after"]["state"]), (&json!("running"), &json!("stopped")));
}

#[tokio::test]
async fn what_changes_nothing_leaves_no_row_and_no_row_holds_a_secret_or_a_payload() {
    let (_node, api) = keyed().await;
    let viewer = super::keys::made(&api, &json!({"name": "v", "scopes": ["view"]})).await.1;
    let viewer = Api::new(api.base.clone()).with_key(viewer);
    let before = audit(&api, "").await.len();
    let put = |path: &str| (Method::PUT, path.to_owned());
    let hook = json!({"url": NOWHERE, "secret": "whsec_Y2FuYXJ5LXNlY3JldA==",
        "headers": {"authorization": "canary-header"}});
    let destination = json!({"webhook": hook});
    let schedule = json!({"cron": "@yearly", "target": {"webhook": hook}, "data": "canary-payload",
        "owner": "accounts", "labels": {"team": "billing"}});
    for (api, (method, path), body) in [
        (&viewer, put("/v1/destinations/d"), &destination),
        (&api, put("/v1/destinations/a%20b"), &destination),
        (&api, put("/v1/destinations/d"), &json!({"webhook": {"url": "ftp://x/"}})),
        (&api, (Method::DELETE, "/v1/queues/none".into()), &Value::Null),
        (&api, (Method::POST, "/v1/schedules/none/pause".into()), &Value::Null),
        (&api, put("/v1/timers/t"), &later()),
        (&api, (Method::DELETE, "/v1/timers/t".into()), &Value::Null),
    ] {
        let body = Some(body).filter(|body| !body.is_null());
        api.send(method, &path, &[], body).await;
    }
    assert_eq!(audit(&api, "").await.len(), before);
    for (path, body) in
        [("/v1/destinations/d", &destination), ("/v1/schedules/s", &schedule), ("/v1/schedules/s", &schedule)]
    {
        let answer = api.send(Method::PUT, path, &[], Some(body)).await;
        assert!((200..300).contains(&answer.status), "{}", answer.body);
    }
    for what in ["pause", "pause", "resume"] {
        let path = format!("/v1/schedules/s/{what}");
        assert_eq!(api.send(Method::POST, &path, &[], None).await.status, 200);
    }
    let rows = audit(&api, "").await;
    let actions: Vec<&str> =
        rows[..rows.len() - before].iter().filter_map(|row| row["action"].as_str()).collect();
    assert_eq!(
        actions,
        ["schedule.resume", "schedule.pause", "schedule.put", "destination.put"],
        "the same again is no change"
    );
    let text = Value::from(rows).to_string();
    for secret in ["Y2FuYXJ5LXNlY3JldA", "canary"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains("\"has_secrets\":true"));
    assert!(text.contains("\"owner\":\"accounts\"") && text.contains("\"team\":\"billing\""), "{text}");
}

#[tokio::test]
async fn the_audit_is_listed_by_time_actor_and_action_page_by_page() {
    let (_node, api) = keyed().await;
    let (_, second) = super::keys::made(&api, &json!({"name": "second", "scopes": ["operate"]})).await;
    let other = Api::new(api.base.clone()).with_key(second);
    for n in 0..5 {
        let by = if n % 2 == 0 { &api } else { &other };
        let put = by.send(Method::PUT, &format!("/v1/queues/q{n}"), &[], Some(&json!({}))).await;
        assert_eq!(put.status, 201);
    }
    assert_eq!(audit(&other, "?action=queue").await.len(), 5, "operate may read it");
    assert_eq!(audit(&other, "?action=key").await.len(), 0, "but not of keys");
    assert_eq!(audit(&api, "?action=key").await.len(), 2);
    let (_, of_one) =
        super::keys::made(&api, &json!({"name": "own", "scopes": ["admin"], "namespace": "default"})).await;
    let made = audit(&Api::new(api.base.clone()).with_key(of_one), "?action=key").await;
    let names: Vec<_> = made.iter().map(|row| row["after"]["name"].clone()).collect();
    assert_eq!(names, ["own", "second"], "keys of all namespaces are not his to see");
    assert_eq!(audit(&api, "?action=queue.put&actor=second").await.len(), 2);
    let of_second = audit(&api, "?actor=second").await;
    let id = of_second[0]["actor"].as_str().expect("an id");
    assert_eq!(audit(&api, &format!("?actor={id}")).await, of_second);
    assert_eq!(audit(&api, "?action=que").await.len(), 0, "a kind is a whole word");
    let all = audit(&api, "").await;
    let (mut paged, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let (_, page) = api.get(&format!("/v1/audit{query}")).await;
        paged.extend(page["items"].as_array().expect("items").iter().cloned());
        let Some(next) = page["next"].as_str() else { break };
        query = format!("?limit=2&cursor={next}");
    }
    assert_eq!(paged, all);
    let at = all[2]["at"].as_str().expect("a time");
    let since = audit(&api, &format!("?since={at}")).await.len();
    let until = audit(&api, &format!("?until={at}")).await.len();
    assert_eq!(since + until, all.len());
    assert!(since >= 3);
    for bad in ["?since=soon", "?limit=0", "?cursor=x", "?colour=1"] {
        assert_eq!(api.get(&format!("/v1/audit{bad}")).await.0, 422, "{bad}");
    }
}

//! `destination …`, and timers for destinations, against a running server.

use serde_json::{Value, json};

use super::{CONFLICT, FAILED, NOT_FOUND, OK, PATIENCE, Shell, USAGE};
use crate::support::{Node, Receiver, Reply, eventually, in_state};

/// The rows of a text, each split at blanks.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

/// A destination as the server shows it.
async fn shown(node: &Node, name: &str) -> Value {
    let (status, body) = node.api().get(&format!("/v1/destinations/{name}")).await;
    assert_eq!(status, 200, "{body}");
    body
}

#[tokio::test]
async fn one_is_made_shown_changed_and_removed() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    std::fs::write(shell.path().join("secret"), "whsec_c2VjcmV0\n").expect("writes");
    let put = "destination put shop-orders --webhook http://127.0.0.1:9/in --secret-file secret --header X-Tenant:shop \
               --header Authorization:t0p --concurrency 7 --rate 500 --attempts 3 --retry-first 1s --retry-cap 1m --timeout 3s";
    let said = shell.run(put).await.printed();
    assert_eq!(said, "put shop-orders: ok, http://127.0.0.1:9/in\n");
    let made = shown(&node, "shop-orders").await;
    let hook = json!({"url": "http://127.0.0.1:9/in", "headers": {"authorization": null, "x-tenant": "shop"}, "signed": true});
    for (field, value) in [
        ("webhook", hook),
        ("concurrency", json!(7)),
        ("rate_per_second", json!(500)),
        ("retry", json!({"attempts": 3, "first": "PT1S", "cap": "PT1M"})),
        ("timeout", json!("PT3S")),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    let text = shell.run("destination get shop-orders").await.printed();
    let found = rows(&text);
    for row in [&["shop-orders"][..], &["state", "ok"], &["concurrency", "7"], &["waiting", "0"]] {
        assert!(found.iter().any(|found| found == row), "no {row:?} in {text}");
    }
    assert!(!text.contains("t0p") && !text.contains("c2Vj"), "{text}");
    assert_eq!(shell.run("destination get shop-orders --json").await.json(), made);

    // `set` leaves alone what is not given, and means the same header whatever its case.
    let set = "destination set shop-orders --header X-TENANT:other --attempts 5 --no-rate --json";
    let changed = shell.run(set).await.json();
    let hook = json!({"url": "http://127.0.0.1:9/in", "headers": {"authorization": null, "x-tenant": "other"}, "signed": true});
    assert_eq!(
        [&changed["webhook"], &changed["rate_per_second"], &changed["concurrency"], &changed["retry"]],
        [&hook, &json!(null), &json!(7), &json!({"attempts": 5, "first": "PT1S", "cap": "PT1M"})]
    );
    let said = shell.run("destination set shop-orders --webhook http://127.0.0.1:9/out").await.printed();
    assert_eq!(said, "set shop-orders: ok, http://127.0.0.1:9/out\n");

    // `put` replaces all of it, and says so.
    let again = shell.run("destination put shop-orders --webhook http://127.0.0.1:9/new").await;
    assert_eq!(
        (again.code, again.stderr.as_str()),
        (OK, "(it took the place of the former one)\n"),
        "{again:?}"
    );
    assert_eq!(
        shown(&node, "shop-orders").await["webhook"],
        json!({"url": "http://127.0.0.1:9/new", "headers": {}, "signed": false})
    );

    assert_eq!(shell.run("destination rm shop-orders").await.printed(), "rm shop-orders: removed\n");
    shell.run("destination get shop-orders").await.refused(NOT_FOUND);
}

#[tokio::test]
async fn ls_prints_all_by_name() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let none = shell.run("destination ls").await;
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (OK, "", "no destination yet\n"));
    assert_eq!(shell.run("destination ls --json").await.printed(), "");
    for (name, rate) in [("b", "--rate 5"), ("a", "")] {
        let put = format!("destination put {name} --webhook http://127.0.0.1:9/{name} {rate} --json");
        assert_eq!(shell.run(&put).await.json()["name"], name);
    }
    let text = shell.run("destination ls").await.printed();
    assert_eq!(
        rows(&text)[1..],
        [
            vec!["a", "ok", "0.0", "0", "0", "http://127.0.0.1:9/a"],
            vec!["b", "ok", "0.0", "5", "0", "0", "http://127.0.0.1:9/b"],
        ],
        "{text}"
    );
    let lines = shell.run("destination ls --json").await.printed();
    let all: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(all, [shown(&node, "a").await, shown(&node, "b").await], "one object a line");
}

#[tokio::test]
async fn test_says_what_came_back_and_fails_if_it_was_not_taken() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    receiver.on("/sorry", |_| Reply::status(418).body("a teapot"));
    let shell = Shell::of(&node);
    let put = format!("destination put a --secret whsec_c2VjcmV0 --webhook {}", receiver.url("/ok"));
    assert_eq!(shell.run(&put).await.code, OK);
    let text = shell.run("destination test a").await.printed();
    let got = &receiver.received()[0];
    let header = |name: &str| got.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("ce-type"), Some("mainspring.test.v1"));
    assert!(header("webhook-signature").is_some(), "{:?}", got.headers);
    let delivery = header("ce-id").expect("an id");
    assert!(text.starts_with("test a: ok\n  status       200\n") && text.contains(delivery), "{text}");
    assert_eq!(shell.run("destination test a --json").await.json()["result"], "ok");

    let set = format!("destination set a --webhook {}", receiver.url("/sorry"));
    assert_eq!(shell.run(&set).await.code, OK);
    let failed = shell.run("destination test a").await;
    assert_eq!((failed.code, failed.stderr.as_str()), (FAILED, ""), "{failed:?}");
    assert!(failed.stdout.starts_with("test a: failed (answered 418 I'm a teapot)\n"), "{failed:?}");
    assert!(failed.stdout.contains("  reply        a teapot\n"), "{failed:?}");
    let failed = shell.run("destination test a --json").await;
    let answer: Value = serde_json::from_str(&failed.stdout).expect("JSON");
    assert_eq!((failed.code, &answer["result"], &answer["status"]), (FAILED, &json!("failed"), &json!(418)));
    assert_eq!(
        shell.run_unread("destination test a").await.code,
        FAILED,
        "the verdict stands though nobody reads it"
    );
}

#[tokio::test]
async fn a_timer_for_a_paused_one_waits_and_arrives_when_it_is_resumed() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    let shell = Shell::of(&node);
    for name in ["a", "b"] {
        let put = format!("destination put {name} --header X-Place:{name} --webhook {}", receiver.url("/ok"));
        assert_eq!(shell.run(&put).await.code, OK);
    }
    let said = shell.run("destination pause a").await.printed();
    assert_eq!(said, format!("pause a: paused, {}\n", receiver.url("/ok")));
    let put = "timer put kept --in 0s --destination a --priority high --data [7]";
    assert!(shell.run(put).await.printed().starts_with("put kept: scheduled, "));
    assert_eq!(shell.run("timer put beside --in 0s --destination b").await.code, OK);
    in_state(&node.api(), "beside", "delivered").await;
    eventually("it waits", PATIENCE, async || {
        let shown = shown(&node, "a").await;
        if shown["waiting"] == 1 { Ok(()) } else { Err(shown) }
    })
    .await;
    let said = shell.run("destination pause a").await.printed();
    assert_eq!(said, format!("pause a: paused, {}, 1 waiting\n", receiver.url("/ok")));
    let why = shell.run("timer explain kept").await.printed();
    assert!(why.contains("\nwaits for the resume of destination `a`"), "{why}");
    assert_eq!(receiver.of("kept").len(), 0);

    assert_eq!(shell.run("destination resume a --json").await.json()["state"], "ok");
    in_state(&node.api(), "kept", "delivered").await;
    let got = receiver.of("kept");
    assert_eq!(
        (got.len(), got[0].json(), &got[0].headers["x-place"]),
        (1, json!([7]), &"a".parse().unwrap())
    );

    let text = shell.run("timer get kept").await.printed();
    assert!(rows(&text).contains(&vec!["priority", "high"]), "{text}");
    assert!(rows(&text).contains(&vec!["target", "{\"destination\":\"a\"}"]), "{text}");
    let text = shell.run("timer ls --destination a").await.printed();
    let found = rows(&text);
    assert_eq!((found.len(), found[1].first(), found[1].last()), (2, Some(&"kept"), Some(&"a")), "{text}");
}

#[tokio::test]
async fn one_that_live_timers_use_is_not_removed() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    for line in ["destination put a --webhook http://127.0.0.1:9/", "timer put t --in 1h --destination a"] {
        assert_eq!(shell.run(line).await.code, OK);
    }
    let said = shell.run("destination rm a").await.refused(CONFLICT);
    assert!(said.contains("1 live timer goes"), "{said}");
    assert_eq!(shell.run("timer cancel t").await.code, OK);
    assert_eq!(shell.run("destination rm a --json").await.json(), json!({"outcome": "removed"}));
}

#[tokio::test]
async fn one_that_there_is_not_is_not_found() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    for verb in ["get", "set --rate 5", "test", "pause", "resume", "rm --json"] {
        let said = shell.run(&format!("destination {verb} nowhere")).await.refused(NOT_FOUND);
        assert!(said.contains("nowhere"), "{verb}: {said}");
    }
    let refused = shell.run("timer put t --in 1h --destination nowhere").await;
    assert_eq!((refused.code, refused.stdout.as_str()), (FAILED, ""), "{refused:?}");
    assert!(refused.stderr.contains("/target/destination: there is no destination `nowhere`"), "{refused:?}");
    let none = shell.run("timer ls --destination nowhere").await;
    assert_eq!((none.code, none.stderr.as_str()), (OK, "no such timers\n"));
}

#[tokio::test]
async fn what_cannot_be_meant_is_usage_and_what_is_refused_names_its_field() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let hook = "--webhook http://127.0.0.1:9/";
    for line in [
        "destination".to_owned(),
        "destination put a".to_owned(),
        format!("destination put a:b {hook}"),
        format!("destination put . {hook}"),
        format!("destination put a {hook} --timeout soon"),
        format!("destination put a {hook} --secret s --secret-file f"),
        format!("destination put a {hook} --header X-A:1 --header x-a:2"),
        "destination set a".to_owned(),
        "destination set a --rate 5 --no-rate".to_owned(),
        "timer put t --in 1h".to_owned(),
        format!("timer put t --in 1h --destination a {hook}"),
        "timer put t --in 1h --destination a --secret whsec_c2VjcmV0".to_owned(),
        "timer put t --in 1h --destination a --header X-A:1".to_owned(),
        format!("timer put t --in 1h {hook} --priority urgent"),
    ] {
        let ran = shell.run(&line).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (USAGE, ""), "{line}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{line}");
    }
    let refused = shell.run(&format!("destination put a {hook} --rate 0 --concurrency 0 --attempts 0")).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (FAILED, ""), "{refused:?}");
    for field in ["/rate_per_second", "/concurrency", "/retry/attempts"] {
        assert!(refused.stderr.contains(field), "no {field}: {}", refused.stderr);
    }
    assert_eq!(shell.run("destination ls --json").await.printed(), "", "nothing was made");
}

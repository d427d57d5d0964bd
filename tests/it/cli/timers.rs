//! `timer …` against a running server.

use serde_json::Value;

use super::{CONFLICT, FAILED, NOT_FOUND, OK, Shell};
use crate::support::{Node, Receiver, in_state};

const NOWHERE: &str = "--webhook http://127.0.0.1:9/";

fn ids(lines: &str) -> Vec<String> {
    let id =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["id"].as_str().map(str::to_owned);
    lines.lines().map(|line| id(line).expect("an id")).collect()
}

#[tokio::test]
async fn put_registers_once_and_says_so_when_it_is_repeated() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let line = format!("timer put order-1 --at 2099-01-01T00:00:00Z {NOWHERE} --data {{\"n\":1.10}}");
    let said = shell.run(&line).await.printed();
    assert!(said.starts_with("put order-1: scheduled, due 2099-01-01T00:00:00.000Z (in "), "{said}");
    let again = shell.run(&line).await;
    assert_eq!((again.code, again.stdout.lines().count()), (OK, 1), "{again:?}");
    assert_eq!(again.stderr, "(it was registered before, with the same content)\n");
    let made = shell.run(&format!("--json timer put --in 1h {NOWHERE}")).await.json();
    assert!(made["id"].as_str().is_some_and(|id| id.starts_with("tmr_")), "{made}");
    assert_eq!(node.api().ledger().await.registered, 2);
}

#[tokio::test]
async fn get_shows_what_the_server_answers() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let put = format!("timer put order-1 --in PT1H {NOWHERE} --owner user:1 --label kind=test --data [1.10]");
    assert_eq!(shell.run(&put).await.code, OK);
    let text = shell.run("timer get order-1").await.printed();
    let rows: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    for row in [&["order-1"][..], &["state", "scheduled"], &["owner", "user:1"], &["data", "[1.10]"]] {
        assert!(rows.iter().any(|found| found == row), "no {row:?} in {text}");
    }
    let (_, answer) = node.api().timer("order-1").await;
    assert_eq!(shell.run("timer get order-1 --json").await.json(), answer);
    let both = shell.run("timer get order-1 --attempts --json").await.json();
    assert_eq!((&both["timer"], &both["attempts"]), (&answer, &serde_json::json!([])));
}

#[tokio::test]
async fn ls_prints_matching_timers_in_due_order_and_says_when_there_are_more() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    for (id, hours, kind) in [("c", 3, "odd"), ("a", 1, "odd"), ("b", 2, "even")] {
        let line = format!("timer put {id} --in {hours}h {NOWHERE} --label kind={kind}");
        assert_eq!(shell.run(&line).await.code, OK);
    }
    assert_eq!(ids(&shell.run("timer ls --json").await.printed()), ["a", "b", "c"]);
    assert_eq!(ids(&shell.run("timer ls --json --label kind=odd").await.printed()), ["a", "c"]);
    let table = shell.run("timer ls").await.printed();
    let first: Vec<_> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, ["ID", "a", "b", "c"], "{table}");
    let some = shell.run("timer ls --limit 2 --json").await;
    assert_eq!((some.code, ids(&some.stdout)), (OK, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(some.stderr, "the first 2; there may be more, --limit shows them\n");
    let none = shell.run("timer ls --state dead").await;
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (OK, "", "no such timers\n"));
}

#[tokio::test]
async fn move_changes_the_due_time_and_fire_makes_it_now() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    let shell = Shell::of(&node);
    let put = format!("timer put order-1 --in 1h --webhook {}", receiver.url("/ok"));
    assert_eq!(shell.run(&put).await.code, OK);
    let moved =
        shell.run("timer move order-1 --local 2098-06-01T09:00 --zone Asia/Shanghai --json").await.json();
    assert_eq!((&moved["due_at"], &moved["generation"]), (&"2098-06-01T01:00:00.000Z".into(), &2.into()));
    let fired = shell.run("timer fire order-1").await.printed();
    assert!(fired.starts_with("fire order-1: "), "{fired}");
    receiver.wait_for(1, super::PATIENCE).await;
    in_state(&node.api(), "order-1", "delivered").await;

    let life = shell.run("timer explain order-1 --json").await.json();
    let events: Vec<_> = life["events"].as_array().expect("events").iter().map(|one| &one["event"]).collect();
    assert_eq!((events.first(), events.last()), (Some(&&"registered".into()), Some(&&"delivered".into())));
    assert_eq!((&life["timer"]["state"], &life["waiting_for"]), (&"delivered".into(), &Value::Null));
    let text = shell.run("timer explain order-1").await.printed();
    assert_eq!(text.lines().count(), events.len() + 1, "a line each after the first: {text}");
}

#[tokio::test]
async fn cancel_says_what_the_cancel_came_to() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    assert_eq!(shell.run(&format!("timer put order-1 --in 1h {NOWHERE}")).await.code, OK);
    let said = shell.run("timer cancel order-1").await.printed();
    assert_eq!(said, "cancel order-1: cancelled (nothing was sent, nothing will be)\n");
    let repeated = shell.run("timer cancel order-1 --json").await.json();
    assert_eq!(repeated["outcome"], "cancelled", "{repeated}");
}

#[tokio::test]
async fn an_unknown_id_is_not_found() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    for verb in ["get", "explain", "cancel", "fire", "move --in 1h", "get --attempts --json"] {
        let said = shell.run(&format!("timer {verb} nobody")).await.refused(NOT_FOUND);
        assert!(said.contains("nobody"), "{verb}: {said}");
    }
}

#[tokio::test]
async fn what_the_state_of_a_timer_does_not_allow_is_a_conflict() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    let shell = Shell::of(&node);
    let put = format!("timer put order-1 --in 0s --webhook {}", receiver.url("/ok"));
    assert_eq!(shell.run(&put).await.code, OK);
    in_state(&node.api(), "order-1", "delivered").await;
    for verb in ["cancel order-1", "fire order-1", "move order-1 --in 1h"] {
        shell.run(&format!("timer {verb}")).await.refused(CONFLICT);
    }
    let said = shell.run(&format!("timer put order-1 --in 1h {NOWHERE}")).await.refused(CONFLICT);
    assert!(said.contains("order-1"), "{said}");
}

#[tokio::test]
async fn what_the_server_refuses_fails_with_the_field_named() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let refused = shell.run("timer put order-1 --in 1h --webhook ftp://a/ --attempts 0").await;
    assert_eq!((refused.code, refused.stdout.as_str()), (FAILED, ""), "{refused:?}");
    for field in ["/target/webhook/url", "/retry/attempts"] {
        assert!(refused.stderr.contains(field), "no {field}: {}", refused.stderr);
    }
    assert_eq!(node.api().ledger().await.registered, 0);
}

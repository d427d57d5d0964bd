//! `operation …` and `destination redrive`, against a running server.

use serde_json::json;

use super::{CONFLICT, NOT_FOUND, OK, PATIENCE, Shell, USAGE};
use crate::support::{Node, Receiver, eventually, in_state};

#[tokio::test]
async fn dead_timers_are_counted_and_run_again() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    let shell = Shell::of(&node);
    assert_eq!(shell.run("operation ls").await.code, OK);
    shell.run(&format!("destination put a --webhook {}", receiver.url("/status/410"))).await.printed();
    for id in ["x", "y"] {
        shell.run(&format!("timer put {id} --in 0s --destination a --label n={id}")).await.printed();
        in_state(&node.api(), id, "dead").await;
    }
    let line = shell.run("operation redrive --destination a --label n=x --dry-run --json").await.json();
    assert_eq!(
        (&line["filter"], &line["dry_run"]),
        (&json!({"destination": "a", "label.n": "x"}), &json!(true))
    );
    let id = line["id"].as_str().expect("an id").to_owned();
    let done = async |id: &str| {
        eventually("it is done", PATIENCE, async || {
            let now = shell.run(&format!("operation get {id} --json")).await.json();
            if now["state"] == "done" { Ok(now) } else { Err(now) }
        })
        .await
    };
    assert_eq!(done(&id).await["matched"], 1);
    let text = shell.run(&format!("operation get {id}")).await.printed();
    assert!(text.starts_with(&format!("redrive {id}\n")) && text.contains("matched"), "{text}");
    shell.run(&format!("destination set a --webhook {}", receiver.url("/ok"))).await.printed();
    let began = shell.run("destination redrive a --since 2026-01-01T00:00:00Z").await;
    assert_eq!(began.code, OK, "{began:?}");
    assert!(began.stdout.starts_with("redrive op_") && began.stdout.contains(": running"), "{began:?}");
    for id in ["x", "y"] {
        in_state(&node.api(), id, "delivered").await;
    }
    let all = shell.run("operation ls").await.printed();
    assert_eq!(all.lines().count(), 3, "{all}");
    assert!(all.lines().nth(2).is_some_and(|row| row.contains(&id)), "the last one first: {all}");
    shell.run(&format!("operation stop {id}")).await.refused(CONFLICT);
    shell.run(&format!("operation get op_{}", "0".repeat(32))).await.refused(NOT_FOUND);
    shell.run("destination redrive b --since 2026-01-01T00:00:00Z").await.refused(NOT_FOUND);
    shell.run("operation redrive --dry-run").await.refused(USAGE);
}

#[tokio::test]
async fn live_timers_are_moved_paused_resumed_and_cancelled() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    for n in 1..=3 {
        let put =
            format!("timer put t{n} --at 2030-01-01T0{n}:00:00Z --webhook http://127.0.0.1:9/ --owner u");
        shell.run(&put).await.printed();
    }
    let paused = shell.run("timer pause t1").await.printed();
    assert!(paused.starts_with("pause t1: paused"), "{paused}");
    assert_eq!(shell.run("timer get t1 --json").await.json()["state"], "paused");
    assert_eq!(shell.run("timer resume t1 --json").await.json()["state"], "scheduled");
    let done = async |line: &str| {
        let id = shell.run(&format!("{line} --json")).await.json()["id"].as_str().expect("an id").to_owned();
        eventually("it is done", PATIENCE, async || {
            let now = shell.run(&format!("operation get {id} --json")).await.json();
            if now["state"] == "done" { Ok((now["matched"].clone(), now["done"].clone())) } else { Err(now) }
        })
        .await
    };
    assert_eq!(done("operation shift --by -30m --owner u --dry-run").await, (json!(3), json!(0)));
    assert_eq!(done("operation shift --by -30m --owner u").await, (json!(3), json!(3)));
    assert_eq!(shell.run("timer get t1 --json").await.json()["due_at"], "2030-01-01T00:30:00.000Z");
    assert_eq!(
        done("operation pause --owner u --due-before 2030-01-01T02:00:00Z").await,
        (json!(2), json!(2))
    );
    assert_eq!(done("operation resume --id t1").await, (json!(1), json!(1)));
    assert_eq!(done("operation cancel --state paused").await, (json!(1), json!(1)));
    assert_eq!(shell.run("timer get t2 --json").await.json()["state"], "cancelled");
    shell.run("timer pause t2").await.refused(CONFLICT);
    shell.run("timer resume none").await.refused(NOT_FOUND);
    shell.run("operation cancel").await.refused(USAGE);
    shell.run("operation cancel --label app=a --label app=b").await.refused(USAGE);
    assert_eq!(done("operation fire --id t3 --dry-run").await, (json!(1), json!(0)));
}

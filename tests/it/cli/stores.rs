//! `verify` and `migrate`: the verbs that read the database themselves.

use std::time::Duration;

use serde_json::json;

use super::{FAILED, LOSS, NOT_FOUND, OK, Shell};
use crate::support::{Node, run_sql, to};

fn store(node: &Node) -> String {
    format!("sqlite://{}/mainspring.db", node.dir().display())
}

/// A node with three timers, one of them cancelled.
async fn node_with_three() -> Node {
    let node = Node::builder().start_ready().await;
    for id in ["a", "b", "c"] {
        let (status, body) =
            node.api().put(id, &json!({"delay": "PT1H", "target": to("http://127.0.0.1:9/")})).await;
        assert_eq!(status, 201, "{body}");
    }
    assert_eq!(node.api().delete("c").await.0, 200);
    node
}

#[tokio::test]
async fn verify_counts_a_whole_store_beside_its_server() {
    let node = node_with_three().await;
    let shell = Shell::new().env("MAINSPRING__COLD__URL", store(&node));
    let found = shell.run("verify --json").await.json();
    let ledger =
        json!({"registered": 3, "delivered": 0, "cancelled": 1, "expired": 0, "dead": 0, "pending": 2});
    assert_eq!(
        (&found["ledger"], &found["balanced"], &found["mismatches"]),
        (&ledger, &true.into(), &json!([]))
    );
    let text = shell.run("verify").await.printed();
    assert!(text.ends_with("ok: every registered timer is pending or ended exactly once\n"), "{text}");
}

#[tokio::test]
async fn verify_finds_a_planted_loss() {
    for (planted, last) in [
        ("DELETE FROM timers WHERE id = 'a'", "LOSS: registered, but neither pending nor ended: 1"),
        ("DELETE FROM history", "LOSS: the ledger balances, but its counts differ from the rows"),
    ] {
        let node = node_with_three().await;
        let (status, _) = node.sigterm().await;
        assert!(status.success());
        run_sql(&store(&node), planted).await;
        let shell = Shell::new().env("MAINSPRING__COLD__URL", store(&node));
        let ran = shell.run("verify").await;
        assert_eq!(
            (ran.code, ran.stdout.lines().last(), ran.stderr.as_str()),
            (LOSS, Some(last), ""),
            "{ran:?}"
        );
        assert_eq!(shell.run("verify --json").await.code, LOSS);
        assert_eq!(shell.run_unread("verify").await.code, LOSS, "the verdict stands though nobody reads it");
    }
}

#[tokio::test]
async fn overdue_timers_are_a_warning_and_no_loss() {
    let node = node_with_three().await;
    node.kill9().await;
    run_sql(&store(&node), "UPDATE timers SET wake_at = wake_at - 7200000").await;
    let ran = Shell::new().env("MAINSPRING__COLD__URL", store(&node)).run("verify --json").await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (OK, 1), "{ran:?}");
    assert!(ran.stderr.starts_with("warning: ") && ran.stderr.contains(": 2;"), "{}", ran.stderr);
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(found["overdue"], 2);
}

#[tokio::test]
async fn looking_at_a_store_that_does_not_exist_does_not_make_it() {
    let shell = Shell::new();
    let said = shell.run("verify").await.refused(NOT_FOUND);
    assert!(said.contains("mainspring.db"), "{said}");
    let said = shell.run("migrate status").await.refused(FAILED);
    assert!(said.contains("mainspring.db") && said.contains("migrate up"), "{said}");
    assert!(!shell.path().join("mainspring.db").exists());
}

#[tokio::test]
async fn migrate_up_makes_the_schema_once_and_a_server_takes_it() {
    let shell = Shell::new();
    let first = shell.run("migrate up --json").await.json();
    let applied = first["applied"].as_array().expect("a list").clone();
    assert!(!applied.is_empty());
    assert_eq!(shell.run("migrate up").await.printed(), "up to date, nothing to do\n");
    let state = shell.run("migrate status --json").await.json();
    assert_eq!(state, json!({"applied": applied, "pending": [], "unknown": []}));
    assert!(shell.run("migrate status").await.printed().ends_with("\nup to date\n"));
    let url = format!("sqlite://{}/mainspring.db", shell.path().display());
    let node = Node::builder().cold(url).start();
    node.wait_ready(Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_schema_that_is_behind_is_told_apart_from_a_newer_one() {
    let shell = Shell::new();
    assert_eq!(shell.run("migrate up").await.code, OK);
    let url = format!("sqlite://{}/mainspring.db", shell.path().display());
    run_sql(&url, "INSERT INTO seaql_migrations VALUES ('m9999_later', 0)").await;
    let newer = shell.run("migrate status").await;
    assert_eq!(newer.code, FAILED, "{newer:?}");
    assert!(newer.stdout.contains("unknown  m9999_later\n") && newer.stdout.contains("newer mainspring"));
    let said = shell.run("migrate up").await.refused(FAILED);
    assert!(said.contains("m9999_later"), "{said}");

    std::fs::remove_file(shell.path().join("mainspring.db")).expect("removes");
    std::fs::write(shell.path().join("mainspring.db"), "").expect("writes");
    let behind = shell.run("migrate status --json").await;
    let state: serde_json::Value = serde_json::from_str(&behind.stdout).expect("JSON");
    assert_eq!((behind.code, &state["applied"], &state["unknown"]), (FAILED, &json!([]), &json!([])));
    assert!(!state["pending"].as_array().expect("a list").is_empty());
    let said = shell.run("verify").await.refused(FAILED);
    assert!(said.contains("migrate status"), "{said}");
}

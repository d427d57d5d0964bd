//! A store that went back in time: what fell due since is held until an operator has accepted it.

use std::process::Command;

use serde_json::{Value, json};

use super::LONG;
use crate::support::{
    Api, Node, NodeBuilder, Receiver, ask_sql, eventually, fresh_database, in_state, psql, run_sql, settled,
    to,
};

/// A store of which a copy can be made and brought back, while no node runs on it.
enum Copied {
    Sqlite(std::path::PathBuf),
    Postgres { url: String, copy: String },
}

impl Copied {
    fn url(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite://{}", path.display()),
            Self::Postgres { url, .. } => url.clone(),
        }
    }

    async fn back_up(&self) {
        match self {
            Self::Sqlite(path) => drop(std::fs::copy(path, path.with_extension("backup")).expect("copies")),
            Self::Postgres { url, copy } => template(copy, name_of(url)).await,
        }
    }

    async fn restore(&self) {
        match self {
            Self::Sqlite(path) => {
                for left in ["db-wal", "db-shm"] {
                    let _ = std::fs::remove_file(path.with_extension(left));
                }
                std::fs::copy(path.with_extension("backup"), path).expect("copies");
            }
            Self::Postgres { url, copy } => {
                psql(&server(), &format!("DROP DATABASE {} WITH (FORCE)", name_of(url))).await;
                template(name_of(url), copy).await;
            }
        }
    }
}

fn name_of(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

fn server() -> String {
    std::env::var("MAINSPRING_TEST_POSTGRES").expect("a server")
}

async fn template(database: &str, of: &str) {
    psql(&server(), &format!("CREATE DATABASE {database} TEMPLATE {of}")).await;
}

/// `mainspring restore …` on this store.
fn restore(store: &str, args: &[&str]) -> (Option<i32>, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_mainspring"))
        .args(["restore"])
        .args(args)
        .args(["--set", &format!("cold.url={store}"), "--json"])
        .output()
        .expect("runs");
    (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
}

async fn restored(api: &Api) -> Option<String> {
    let (code, ready) = api.get("/readyz").await;
    assert_eq!(code, 200, "{ready}");
    assert_eq!(ready["status"] == "degraded", ready["checks"]["restored"].is_string(), "{ready}");
    ready["checks"]["restored"].as_str().map(str::to_owned)
}

async fn wait_for(api: &Api, id: &str) -> String {
    let (_, life) = api.get(&format!("/v1/timers/{id}/explain")).await;
    life["waiting_for"].as_str().unwrap_or_default().to_owned()
}

fn timer(delay: &str, receiver: &Receiver) -> Value {
    json!({"delay": delay, "target": to(receiver.url("/ok"))})
}

async fn what_fell_due_since_the_restore_point_is_held(builder: NodeBuilder, store: Copied) {
    let receiver = Receiver::start().await;
    let mut node = builder.cold(store.url()).start_ready().await;
    let api = node.api();
    for (id, delay) in [("older", "PT2S"), ("newer", "PT4S"), ("far", "PT1H")] {
        assert_eq!(api.put(id, &timer(delay, &receiver)).await.0, 201);
    }
    let newer_due = api.timer("newer").await.1["due_at"].as_str().expect("a time").to_owned();
    assert!(node.sigterm().await.0.success());
    store.back_up().await;
    assert_eq!(restore(&store.url(), &["status"]).0, Some(3), "nothing is held");
    node.restart().await;
    node.wait_ready(LONG).await;
    settled(&api, 2, 1).await;
    let delivery = |id: &str| receiver.of(id).iter().map(|one| one.delivery_id.clone()).collect::<Vec<_>>();
    let first = delivery("newer");

    node.kill9().await;
    store.restore().await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let said = eventually("the restore is found", LONG, async || restored(&api).await.ok_or(())).await;
    assert!(said.contains("mainspring restore accept"), "{said}");
    // What is new fires, and so do the loops that would have brought the others.
    for round in 0..3 {
        let id = format!("fresh{round}");
        assert_eq!(api.put(&id, &timer("PT0.5S", &receiver)).await.0, 201);
        in_state(&api, &id, "delivered").await;
    }
    for id in ["older", "newer"] {
        assert!(wait_for(&api, id).await.contains("restore accept"), "{}", wait_for(&api, id).await);
        assert_eq!((delivery(id).len(), &api.timer(id).await.1["state"]), (1, &json!("scheduled")), "{id}");
    }
    let (code, status) = restore(&store.url(), &["status"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((code, &status["timers"], &status["accepted_from"]), (Some(0), &json!(2), &Value::Null));

    assert_eq!(restore(&store.url(), &["accept", "--not-older-than", "yesterday"]).0, Some(2));
    let (code, accepted) = restore(&store.url(), &["accept", "--not-older-than", &newer_due]);
    assert_eq!(code, Some(0), "{accepted}");
    in_state(&api, "newer", "delivered").await;
    in_state(&api, "older", "expired").await;
    assert_eq!(delivery("newer"), [&first[..], &first[..]].concat(), "under the same delivery id");
    assert_eq!(delivery("older").len(), 1, "it did not fire again");
    let accepted = async || restored(&api).await.map_or(Ok(()), Err);
    eventually("the node knows that it is accepted", LONG, accepted).await;
    assert_eq!(restore(&store.url(), &["accept"]).0, Some(3), "nothing is held any more");
    let ledger = settled(&api, 4, 1).await;
    assert_eq!((ledger.expired, ledger.registered), (1, 6));
    assert!(wait_for(&api, "far").await.contains("its due time"));
}

#[tokio::test]
async fn what_fell_due_since_the_restore_point_is_held_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Copied::Sqlite(dir.path().join("store.db"));
    what_fell_due_since_the_restore_point_is_held(Node::builder(), store).await;
}

/// Who begins anew removes the database and may leave the lock file: the new store was not restored.
#[tokio::test]
async fn a_new_store_beside_an_old_lock_file_was_not_restored() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store.db");
    let url = format!("sqlite://{}", path.display());
    let mut node = Node::builder().cold(&url).start_ready().await;
    let beaten = "SELECT CAST(incarnation AS TEXT) FROM store";
    eventually("it has sent heartbeats", LONG, async || {
        let beats: i64 = ask_sql(&url, beaten).await.trim().parse().expect("a number");
        if beats > 2 { Ok(()) } else { Err(beats) }
    })
    .await;
    for found_again in [false, true] {
        assert!(node.sigterm().await.0.success());
        if !found_again {
            for end in ["db", "db-wal", "db-shm"] {
                let _ = std::fs::remove_file(path.with_extension(end));
            }
        }
        node.restart().await;
        node.wait_ready(LONG).await;
        in_state_of_a_new_one(&node.api(), found_again).await;
    }
}

async fn in_state_of_a_new_one(api: &Api, found_again: bool) {
    let receiver = Receiver::start().await;
    let id = format!("t-{found_again}");
    assert_eq!(api.put(&id, &timer("PT1S", &receiver)).await.0, 201);
    in_state(api, &id, "delivered").await;
    assert_eq!(restored(api).await, None);
}

#[tokio::test]
async fn what_fell_due_since_the_restore_point_is_held_on_postgres() {
    let url = fresh_database().await;
    let copy = format!("{}_copy", name_of(&url));
    what_fell_due_since_the_restore_point_is_held(Node::builder(), Copied::Postgres { url, copy }).await;
}

/// Two nodes work while the store goes back by what a lost replica may lose. Both go on, under new epochs, and what was
/// due meanwhile is held.
#[tokio::test]
async fn a_store_that_goes_back_under_working_nodes_is_found_by_them() {
    let url = fresh_database().await;
    let receiver = Receiver::start().await;
    let nodes =
        [Node::builder().cold(&url).start_ready().await, Node::builder().cold(&url).start_ready().await];
    let api = nodes[0].api();
    assert_eq!(api.put("gap", &timer("PT2S", &receiver)).await.0, 201);
    in_state(&api, "gap", "delivered").await;
    let epochs = "SELECT max(epoch)::text FROM shards";
    let before: i64 = ask_sql(&url, epochs).await.trim().parse().expect("a number");
    // As it was some heartbeats ago: the timer is live again, and its end was forgotten.
    let back = "UPDATE store SET incarnation = incarnation - 20, beat_at = beat_at - 60000; \
                WITH gone AS (DELETE FROM history WHERE id = 'gap' RETURNING *), row AS (SELECT (jsonb_populate_record( \
                NULL::timers, to_jsonb(gone) || jsonb_build_object( \
                'state', 0, 'attempt', 0, 'tries', 0, 'wake_at', due_at))).* FROM gone) \
                INSERT INTO timers SELECT * FROM row; UPDATE totals SET value = 0 WHERE name = 'delivered'";
    run_sql(&url, back).await;
    for node in &nodes {
        eventually("each node knows", LONG, async || restored(&node.api()).await.ok_or(())).await;
    }
    assert_eq!(api.put("fresh", &timer("PT1S", &receiver)).await.0, 201);
    in_state(&api, "fresh", "delivered").await;
    assert_eq!(receiver.of("gap").len(), 1, "held");
    let after: i64 = ask_sql(&url, epochs).await.trim().parse().expect("a number");
    assert!(after > before + 20, "epochs {before} and {after}: none is given twice");
    assert_eq!(restore(&url, &["accept"]).0, Some(0));
    in_state(&api, "gap", "delivered").await;
    assert_eq!(receiver.of("gap").len(), 2);
}

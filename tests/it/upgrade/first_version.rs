//! A store as the first version wrote it.

use std::time::Duration;

use mainspring::model::id::{TimerId, shard_of};
use mainspring::model::namespace::Salt;
use mainspring_migrations::Migrator;
use sea_orm_migration::MigratorTrait;
use serde_json::json;

use crate::support::{
    Node, NodeBuilder, Receiver, Verdict, ask_sql, empty_database, in_state, run_sql, settled, to, wall_ms,
};

const HOUR_MS: i64 = 3_600_000;

const SHARDS: u16 = 64;

/// A timer as the first version wrote it: the columns that differ between its states.
struct Old<'a> {
    id: &'a str,
    state: i16,
    due_at: i64,
    wake_at: i64,
    attempt: i32,
    epoch: i64,
    /// When and by whom it was claimed last.
    claimed: Option<i64>,
}

/// Each was registered an hour before it was due; attempts repeat it.
fn created_at(due_at: i64) -> i64 {
    due_at - HOUR_MS
}

/// The literal of a binary column.
fn bytes(sqlite: bool, hex: &str) -> String {
    if sqlite { format!("x'{hex}'") } else { format!("'\\x{hex}'") }
}

fn uid_of(sqlite: bool, id: &str) -> String {
    let uid = TimerId::parse(id).expect("an id").uid(&Salt::own("default")).0;
    if sqlite { bytes(true, &uid.simple().to_string()) } else { format!("'{uid}'") }
}

/// The 28 columns of the first schema's `timers`, and first of its `history`, in their order.
fn columns(sqlite: bool, url: &str, old: &Old) -> String {
    let Old { id, state, due_at, wake_at, attempt, epoch, claimed } = old;
    let (uid, shard) = (uid_of(sqlite, id), shard_of(&Salt::own("default"), "user:1", SHARDS));
    let target = json!({"webhook": {"url": url, "headers": {"x-team": "blue"}}});
    let policies = json!({"retry": {"attempts": 5, "first": "PT0.1S", "cap": "PT1S"}});
    let data = bytes(sqlite, "7b226e223a317d");
    let hash = bytes(sqlite, "07070707070707070707070707070707");
    let lane = 7;
    let created = created_at(*due_at);
    let (claimed_at, node) = match claimed {
        Some(at) => (at.to_string(), "'old'"),
        None => ("NULL".to_owned(), "NULL"),
    };
    format!(
        "{uid}, 'default', '{id}', true, 'user:1', {shard}, {state}, {due_at}, {wake_at}, NULL, 1, {attempt}, \
         {attempt}, 1, {epoch}, {lane}, false, false, false, false, '{target}', {data}, '{{\"app\":\"shop\"}}', \
         '{policies}', {hash}, {created}, {claimed_at}, {node}"
    )
}

/// Makes the first schema and fills it as a node of the first version would have left it when it was killed.
async fn first_store(store: &str, url: &str) {
    let sqlite = store.starts_with("sqlite");
    let db = sea_orm::Database::connect(if sqlite { format!("{store}?mode=rwc") } else { store.to_owned() });
    let db = db.await.expect("connects");
    Migrator::up(&db, Some(1)).await.expect("the first step");
    db.close().await.expect("closes");
    let now = wall_ms();
    let waits =
        |id, due_at| Old { id, state: 0, due_at, wake_at: due_at, attempt: 0, epoch: 0, claimed: None };
    let claimed = now - 20_000;
    let live = [
        waits("far", now + HOUR_MS),
        waits("overdue", now - 5000),
        // Its first attempt was answered with 500.
        Old { state: 2, attempt: 1, epoch: 1, claimed: Some(claimed), ..waits("retrying", now - 60_000) },
        // Its attempt was under way when the node was killed; the claim has run out.
        Old { state: 1, attempt: 1, epoch: 1, claimed: Some(claimed), ..waits("claimed", now - 60_000) },
    ];
    let ended = [
        Old { state: 4, attempt: 1, epoch: 1, claimed: Some(claimed), ..waits("delivered", now - 60_000) },
        Old { state: 5, ..waits("cancelled", now + HOUR_MS) },
    ];
    let last = json!({"generation": 1, "attempt": 1, "started_at": claimed, "ended_at": claimed + 5,
        "result": "ok", "status": 200, "node": "old"});
    let mut sql = format!("INSERT INTO store VALUES (1, 1, 'default', {SHARDS}, {now});");
    for old in &live {
        sql += &format!("INSERT INTO timers VALUES ({});", columns(sqlite, url, old));
    }
    for old in &ended {
        let last = if old.state == 4 { format!("'{last}'") } else { "NULL".into() };
        sql += &format!("INSERT INTO history VALUES ({}, {claimed}, {last});", columns(sqlite, url, old));
        let (uid, hash) = (uid_of(sqlite, old.id), bytes(sqlite, "07070707070707070707070707070707"));
        sql += &format!("INSERT INTO ended_ids VALUES ({uid}, {hash}, 1, {});", now + 24 * HOUR_MS);
    }
    sql += &format!(
        "INSERT INTO attempts VALUES ({}, 1, 1, {claimed}, {claimed} + 5, 'failed', 500, 'no', NULL, 'old', {});",
        uid_of(sqlite, "retrying"),
        created_at(now - 60_000)
    );
    sql += "INSERT INTO totals VALUES ('registered', 4, 6), ('delivered', 5, 1), ('cancelled', 6, 1);";
    for shard in 0..SHARDS {
        sql += &format!("INSERT INTO shards VALUES ({shard}, 1, 'old', {claimed});");
    }
    let beat = now - 70_000;
    sql += &format!("INSERT INTO nodes VALUES ('old', 'old-1', '127.0.0.1:1', '0.1.0', {beat}, {beat});");
    run_sql(store, &sql).await;
}

/// Everything live fires or waits, everything ended can be read, and the ledger balances all the time.
async fn timers_of_the_first_version_fire(builder: NodeBuilder, store: &str) {
    let receiver = Receiver::start().await;
    first_store(store, &receiver.url("/ok")).await;
    let node = builder.cold(store).start_ready().await;
    let api = node.api();
    let steps = ask_sql(store, "SELECT version FROM seaql_migrations ORDER BY version").await;
    assert_eq!(steps.lines().count(), Migrator::migrations().len(), "{steps}");

    // `claimed`, `overdue` and `retrying` beside the one that was delivered before.
    let ledger = settled(&api, 4, 1).await;
    assert_eq!((ledger.registered, ledger.cancelled), (6, 1));
    let received = receiver.received();
    Verdict::on(&received).is_clean(3);
    for (id, attempt, uncertain) in [("overdue", 1, false), ("retrying", 2, false), ("claimed", 2, true)] {
        let one = &receiver.of(id)[0];
        assert_eq!((one.attempt, one.generation), (attempt, 1), "{id}");
        assert_eq!((one.json(), one.headers["x-team"].as_bytes()), (json!({"n": 1}), &b"blue"[..]));
        let timer = in_state(&api, id, "delivered").await;
        assert_eq!(timer["uncertain"] == true, uncertain, "{timer}");
        let (_, attempts) = api.get(&format!("/v1/timers/{id}/attempts")).await;
        assert_eq!(attempts["items"].as_array().map(Vec::len), Some(attempt as usize), "{attempts}");
    }

    let (status, far) = api.timer("far").await;
    assert_eq!((status, &far["state"], &far["owner"]), (200, &json!("scheduled"), &json!("user:1")));
    assert_eq!((&far["data"], &far["labels"]), (&json!({"n": 1}), &json!({"app": "shop"})));
    assert_eq!(far["retry"]["attempts"], 5, "{far}");
    let (status, delivered) = api.timer("delivered").await;
    assert_eq!((status, &delivered["state"]), (200, &json!("delivered")), "{delivered}");
    let (_, attempts) = api.get("/v1/timers/delivered/attempts").await;
    assert_eq!(
        (&attempts["items"][0]["result"], &attempts["items"][0]["node"]),
        (&json!("ok"), &json!("old"))
    );
    let (_, life) = api.get("/v1/timers/delivered/explain").await;
    assert!(life.to_string().contains("by an earlier version"), "{life}");
    assert_eq!(api.timer("cancelled").await.1["state"], "cancelled");
    let other = json!({"delay": "PT1H", "target": to(receiver.url("/ok"))});
    assert_eq!(api.put("delivered", &other).await.0, 409, "its id is still taken");

    assert_eq!(api.patch("far", &json!({"delay": "PT0S"})).await.0, 200);
    receiver.wait_until(|all| all.iter().any(|one| one.timer == "far"), Duration::from_secs(20)).await;
    settled(&api, 5, 0).await;
    assert!(node.sigterm().await.0.success());
}

#[tokio::test]
async fn timers_of_the_first_version_fire_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite://{}", dir.path().join("old.db").display());
    timers_of_the_first_version_fire(Node::builder(), &store).await;
}

#[tokio::test]
async fn timers_of_the_first_version_fire_on_postgres() {
    timers_of_the_first_version_fire(Node::builder(), &empty_database().await).await;
}

/// The rows above stand under keys of today's making, so these have to be those of the first version.
#[test]
fn keys_and_shards_are_those_of_the_first_version() {
    let uid = TimerId::parse("order-8841-review").expect("an id").uid(&Salt::own("default")).0;
    let key = uid.simple().to_string();
    assert_eq!(
        (key.as_str(), shard_of(&Salt::own("default"), "user:1", SHARDS)),
        ("a8ffc67886642ff88f372147f8b9ef04", 7)
    );
}

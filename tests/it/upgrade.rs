//! Stores of earlier releases, with what their nodes had written into them, under today's binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mainspring::model::id::{TimerId, shard_of};
use mainspring::model::namespace::Salt;
use mainspring_migrations::Migrator;
use reqwest::Method;
use sea_orm_migration::MigratorTrait;
use serde_json::json;

use crate::support::{
    Api, Node, NodeBuilder, Receiver, Verdict, ask_sql, empty_database, in_state, rfc3339, run_sql, settled,
    to, wall_ms,
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

/// A store as a node of release 1 left it when it was killed (`kill -9`; PostgreSQL's by `pg_dump --inserts`, SQLite's by
/// `.dump`), its receiver replaced by ours.
async fn release_1(store: &str, url: &str) {
    let recorded = match store.starts_with("sqlite") {
        true => include_str!("upgrade/release_1.sqlite.sql"),
        false => include_str!("upgrade/release_1.postgres.sql"),
    };
    let paths = ["ok", "fail", "gone", "hang"].map(|path| format!("http://receiver.invalid:1/{path}"));
    run_sql(store, &paths.iter().fold(recorded.to_owned(), |sql, path| sql.replace(path, url))).await;
}

async fn timers_of_release_1_fire(builder: NodeBuilder, store: &str) {
    let receiver = Receiver::start().await;
    release_1(store, &receiver.url("/ok")).await;
    // What had ended by then is still to be seen, whenever this runs.
    let node = builder.cold(store).env("MAINSPRING__HISTORY__RETENTION", "P36500D").start_ready().await;
    let api = node.api();
    // `retrying`, `claimed`, `moved`, `overdue` beside the one that was delivered before.
    let ledger = settled(&api, 5, 2).await;
    assert_eq!((ledger.registered, ledger.cancelled, ledger.dead), (9, 1, 1));
    let received = receiver.received();
    Verdict::on(&received).is_clean(4);
    for (id, attempt, generation) in
        [("overdue", 1, 1), ("moved", 1, 2), ("retrying", 2, 1), ("claimed", 2, 1)]
    {
        let one = &receiver.of(id)[0];
        assert_eq!((one.attempt, one.generation, one.json()), (attempt, generation, json!({"n": 1})), "{id}");
    }
    for (id, state) in
        [("far", "scheduled"), ("minute", "scheduled"), ("delivered", "delivered"), ("dead", "dead")]
    {
        assert_eq!(api.timer(id).await.1["state"], state, "{id}");
    }
    let (_, all) = api.get("/v1/timers?limit=4").await;
    let (_, rest) = api.get(&format!("/v1/timers?cursor={}", all["next"].as_str().expect("more"))).await;
    let ids = |page: &serde_json::Value| -> Vec<String> {
        page["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|t| t["id"].as_str().map(str::to_owned))
            .collect()
    };
    let ids = [ids(&all), ids(&rest)].concat();
    let in_due_order =
        ["delivered", "dead", "retrying", "claimed", "moved", "overdue", "cancelled", "far", "minute"];
    assert_eq!(ids, in_due_order);
    assert_eq!(api.patch("far", &json!({"delay": "PT0S"})).await.0, 200);
    settled(&api, 6, 1).await;
    assert!(node.sigterm().await.0.success());
}

#[tokio::test]
async fn timers_of_release_1_fire_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite://{}?mode=rwc", dir.path().join("old.db").display());
    let plain = store.trim_end_matches("?mode=rwc").to_owned();
    run_sql(&store, "SELECT 1").await;
    timers_of_release_1_fire(Node::builder(), &plain).await;
}

#[tokio::test]
async fn timers_of_release_1_fire_on_postgres() {
    let store = empty_database().await;
    timers_of_release_1_fire(Node::builder(), &store).await;
    let broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    assert_eq!(ask_sql(&store, broken).await, "");
    // Each partition of its time has the new index, bound to that of `history`.
    let partitions = "SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'history'::regclass";
    let bound = "SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'history_by_due'::regclass";
    assert_eq!(ask_sql(&store, partitions).await, ask_sql(&store, bound).await);
}

/// The program of release 1: the commit before its schema was changed, built from this repository's history.
fn program_of_release_1() -> PathBuf {
    const COMMIT: &str = "24e363c";
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = repository.join("target/release_1");
    let source = place.join("source");
    fs::create_dir_all(&source).expect("a folder");
    let step = |command: &mut Command, what: &str| {
        assert!(command.status().is_ok_and(|exit| exit.success()), "{what} of {COMMIT} failed");
    };
    let tar = place.join("source.tar");
    let archive = ["archive", "--format=tar", COMMIT, "--output"];
    step(Command::new("git").current_dir(repository).args(archive).arg(&tar), "git archive");
    step(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&source), "unpacking");
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo
        .current_dir(&source)
        .args(["build", "--locked", "--quiet", "--bin", "mainspring", "--target-dir"])
        .arg(&place);
    step(&mut cargo, "building");
    place.join("debug/mainspring")
}

/// Registers `timers` through these nodes in turn, each until it is acknowledged: a node that stops refuses, says when to
/// come back, or is not there.
async fn register_patiently(apis: &[Api], url: &str, caller: usize, timers: usize) {
    for n in 0..timers {
        let (id, fire_at) = (format!("/v1/timers/c{caller}-{n}"), rfc3339(wall_ms() + 1500));
        let body = json!({ "fire_at": fire_at, "target": to(url) });
        let mut ways = apis.iter().cycle().skip(caller + n).take(200);
        loop {
            let api = ways.next().expect("it is taken within ten seconds");
            match api.try_send(Method::PUT, &id, &[], Some(&body)).await {
                Ok(answer) if matches!(answer.status, 200 | 201) => break,
                Ok(answer) => {
                    assert_eq!(answer.status, 503, "{:?}", answer.body);
                    assert!(answer.header("retry-after").is_some(), "{:?}", answer.body);
                }
                Err(why) => assert!(why.is_request(), "{why:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Two nodes of release 1, and callers who go on while one after the other is replaced by today's
/// (`scripts/test --long`).
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_release_1_are_replaced_one_after_the_other() {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_none() {
        return;
    }
    let old = tokio::task::spawn_blocking(program_of_release_1).await.expect("builds");
    let (store, receiver) = (empty_database().await, Receiver::start().await);
    let start = || Node::builder().program(&old).cold(&store).start_ready();
    let mut nodes = [start().await, start().await];
    let (callers, timers) = (10, 150);
    let apis: Vec<Api> = nodes.iter().map(Node::api).collect();
    let url = receiver.url("/ok");
    let calling = (0..callers).map(|caller| {
        let (apis, url) = (apis.clone(), url.clone());
        tokio::spawn(async move { register_patiently(&apis, &url, caller, timers).await })
    });
    let calling: Vec<_> = calling.collect();
    let wanted = callers * timers;
    for (node, of) in nodes.iter_mut().zip([4, 2]) {
        receiver.wait_until(|all| all.len() > wanted / of, Duration::from_secs(60)).await;
        node.upgrade().await;
        node.wait_ready(Duration::from_secs(60)).await;
    }
    for caller in calling {
        caller.await.expect("every registration is taken in the end");
    }
    let ledger = settled(&nodes[0].api(), wanted, 0).await;
    assert_eq!(ledger.registered, wanted as u64);
    Verdict::on(&receiver.received()).is_clean(wanted);
    let releases = ask_sql(&store, "SELECT DISTINCT release::text FROM nodes").await;
    assert_eq!(releases, mainspring_migrations::RELEASE.to_string());
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

//! Ten million live timers: no statement reads a large table from one end to the other (`scripts/test --long`).
//!
//! PostgreSQL itself counts: `pg_stat_user_tables.seq_tup_read`. That sees every statement, also one that nobody has
//! listed. After each group of calls the counters of the large tables have to be where they were.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Api, Node, Receiver, ask_sql, eventually, fresh_database, in_state, run_sql, to};

/// Live timers. Fewer by `MAINSPRING_TEST_ROWS`, to try the test itself.
fn rows() -> u64 {
    std::env::var("MAINSPRING_TEST_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(10_000_000)
}

const LONG: Duration = Duration::from_secs(120);

/// When PostgreSQL's sessions tell what they have read: a second after they began to rest.
const TOLD: Duration = Duration::from_millis(2500);

/// A tenth as many ended timers as live ones. Of the live ones a tenth has one owner, a tenth is due at one millisecond,
/// and few retry; all are due in years.
fn fill(rows: u64) -> String {
    let ended = rows / 10;
    let target = r#"{"webhook":{"url":"http://127.0.0.1:1/"}}"#;
    let now = "(extract(epoch FROM now()) * 1000)::bigint";
    let columns = "uid, id, caller_id, owner, shard, state, due_at, wake_at, generation, attempt, tries, version, epoch, \
                   lane, minute, uncertain, cancel_requested, acked_late, target, data, request_hash, created_at";
    let values =
        "md5(g::text)::uuid, '', false, CASE WHEN g % 10 = 0 THEN 'heavy' ELSE 'o' || g % 1000 END, g % 64";
    let rest = format!(
        "1, 0, 0, 1, 0, 7, false, false, false, false, '{target}', '\\x31', decode(repeat('07', 16), 'hex'), {now}"
    );
    let due = format!("{now} + 31536000000 + CASE WHEN g % 10 = 1 THEN 0 ELSE g * 3 END");
    format!(
        "SET synchronous_commit = off; \
         INSERT INTO timers ({columns}) SELECT {values}, CASE WHEN g % 100000 = 0 THEN 2 ELSE 0 END, {due}, {due}, {rest} \
           FROM generate_series(1, {rows}) g; \
         INSERT INTO history ({columns}, ended_at) SELECT {values}, 4 + g % 4, {now} - g, {now} - g, {rest}, {now} - 1 \
           FROM generate_series({rows} + 1, {rows} + {ended}) g; \
         INSERT INTO ended_ids (uid, request_hash, generation, until) SELECT md5(g::text)::uuid, decode(repeat('07', 16), 'hex'), 1, \
           {now} + 86400000 FROM generate_series({rows} + 1, {rows} + {ended}) g; \
         INSERT INTO attempts (uid, generation, attempt, started_at, ended_at, result, node, created_at) \
           SELECT md5(g::text)::uuid, 1, 1, 0, {now}, 'failed', 'n', 0 FROM generate_series({rows} + 1, {rows} + {ended}) g; \
         INSERT INTO totals SELECT * FROM (VALUES ('registered', 900, {rows} + {ended}), ('delivered', 900, {ended} / 4), \
           ('cancelled', 900, {ended} / 4), ('expired', 900, {ended} / 4), ('dead', 900, {ended} / 4)) v"
    )
}

/// What PostgreSQL has counted: rows read in sequential scans, by table.
struct Scans<'a> {
    url: &'a str,
    before: BTreeMap<String, i64>,
}

impl Scans<'_> {
    async fn of_large_tables(&self) -> BTreeMap<String, i64> {
        tokio::time::sleep(TOLD).await;
        let sql = "SELECT relname || ' ' || COALESCE(seq_tup_read, 0) FROM pg_stat_user_tables \
                   WHERE n_live_tup + n_dead_tup > 50000";
        let lines = ask_sql(self.url, sql).await;
        let pair = |line: &str| {
            let (table, read) = line.trim().split_once(' ').expect("two words");
            (table.to_owned(), read.parse().expect("a number"))
        };
        lines.lines().filter(|line| !line.trim().is_empty()).map(pair).collect()
    }

    async fn begin(url: &str) -> Scans<'_> {
        let mut scans = Scans { url, before: BTreeMap::new() };
        scans.before = scans.of_large_tables().await;
        assert!(scans.before.contains_key("timers") && scans.before.len() >= 4, "{:?}", scans.before);
        scans
    }

    /// Fails if a large table was read from one end to the other since the last call.
    async fn none_since(&mut self, what: &str) {
        let now = self.of_large_tables().await;
        let read: Vec<_> = now.iter().filter(|(table, read)| self.before.get(*table) != Some(read)).collect();
        assert!(read.is_empty(), "{what}: {read:?}, before {:?}", self.before);
        self.before = now;
    }
}

/// The id of the timer of this number.
async fn numbered(url: &str, number: u64) -> String {
    format!("tmr_{}", ask_sql(url, &format!("SELECT md5('{number}')")).await.trim())
}

async fn registrations(api: &Api, url: &str, receiver: &Receiver) {
    let timer = |id: &str| json!({"id": id, "delay": "PT1S", "target": to(receiver.url("/ok"))});
    assert_eq!(api.put("one", &json!({"delay": "PT1S", "target": to(receiver.url("/ok"))})).await.0, 201);
    assert_eq!(
        api.post("/v1/timers", &json!({"delay": "PT1H", "target": to(receiver.url("/ok"))})).await.0,
        201
    );
    let many: Vec<Value> = (0..1000).map(|n| timer(&format!("many{n}"))).collect();
    assert_eq!(api.post("/v1/timers/batch", &json!({"timers": many})).await.0, 200);
    assert_eq!(api.put("again", &json!({"delay": "PT0S", "target": to(receiver.url("/ok"))})).await.0, 201);
    in_state(api, "again", "delivered").await;
    let failing = json!({"delay": "PT0S", "target": to(receiver.url("/fail")), "retry": {"attempts": 2, "first": "PT0.1S"}});
    assert_eq!(api.put("failing", &failing).await.0, 201);
    in_state(api, "failing", "dead").await;
    let moved = json!({"delay": "PT2S"});
    assert_eq!(api.patch(&numbered(url, 7).await, &moved).await.0, 200);
    assert_eq!(api.delete(&numbered(url, 9).await).await.0, 200);
    assert_eq!(api.post(&format!("/v1/timers/{}/fire", numbered(url, 12).await), &json!({})).await.0, 202);
    in_state(api, "many999", "delivered").await;
}

async fn looks(api: &Api, one: &str) {
    let lists = [
        "/v1/timers?limit=1000",
        "/v1/timers?owner=heavy",
        "/v1/timers?owner=heavy&state=retrying",
        "/v1/timers?owner=o7",
        "/v1/timers?state=scheduled",
        "/v1/timers?state=delivering",
        "/v1/timers?state=retrying",
        "/v1/timers?state=paused",
        "/v1/timers?state=delivered",
        "/v1/timers?state=dead",
        "/v1/timers?state=cancelled",
        "/v1/timers?state=expired",
        "/v1/timers?label.app=shop",
        "/v1/timers?receiver=http://127.0.0.1:1",
        "/v1/timers?id=big5&id=one",
        "/v1/timers?due_after=2030-01-01T00:00:00Z",
        "/v1/timers?due_before=2020-01-01T00:00:00Z",
        "/v1/timers/big5",
        "/v1/timers/big5/attempts",
        "/v1/timers/big5/explain",
        "/v1/timers/one/explain",
        "/v1/wheels",
        "/v1/nodes",
        "/v1/receivers",
        "/v1/ledger",
        "/v1/forecast",
        "/metrics",
        "/readyz",
        "/v1/forecast?from=2026-01-01T00:00:00Z&to=2035-01-01T00:00:00Z&step=P10D",
        "/",
        "/timers",
        "/timers?state=dead",
        "/timers?owner=heavy",
        "/timers/big5",
        "/ahead",
        "/late",
        "/receivers",
        "/nodes",
        "/wheels/table",
    ];
    for path in lists {
        let path = path.replace("big5", one);
        let (status, answer) = api.get(&path).await;
        assert!(status == 200, "{path}: {status} {answer}");
    }
    // Page by page through a million of one owner, and through a million of one millisecond.
    for filter in ["owner=heavy", "state=scheduled"] {
        let mut cursor = String::new();
        for _ in 0..30 {
            let (_, page) = api.get(&format!("/v1/timers?{filter}&limit=1000{cursor}")).await;
            cursor = format!("&cursor={}", page["next"].as_str().expect("more"));
        }
    }
}

/// Runs a verb of the command line that opens the store itself.
fn run(url: &str, verb: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.args(verb).args(["--set", &format!("cold.url={url}"), "--json"]);
    command.output().expect("runs").status.code()
}

#[tokio::test]
async fn nothing_reads_ten_million_rows() {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_none() {
        return;
    }
    let url = fresh_database().await;
    let receiver = Receiver::start().await;
    let mut node = Node::builder().cold(&url).start_ready().await;
    assert!(node.sigterm().await.0.success());
    run_sql(&url, &fill(rows())).await;
    run_sql(&url, "ANALYZE").await;
    for table in ["timers", "history", "ended_ids", "attempts"] {
        run_sql(&url, &format!("VACUUM {table}")).await;
    }
    let mut scans = Scans::begin(&url).await;

    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    scans.none_since("a start").await;
    registrations(&api, &url, &receiver).await;
    scans.none_since("registrations, changes and ends").await;
    looks(&api, &numbered(&url, 5).await).await;
    scans.none_since("lists and pages").await;
    let other = Node::builder().cold(&url).start_ready().await;
    eventually("shards are shared", LONG, async || {
        let (_, nodes) = api.get("/v1/nodes").await;
        let has_half = |node: &Value| node["shards"].as_array().is_some_and(|shards| shards.len() == 32);
        match nodes["items"].as_array() {
            Some(all) if all.iter().filter(|node| has_half(node)).count() == 2 => Ok(()),
            _ => Err(nodes),
        }
    })
    .await;
    other.kill9().await;
    node.kill9().await;
    node.restart().await;
    node.wait_ready(LONG).await;
    scans.none_since("a second node, crashes and a recovery").await;
    for verb in [&["verify"][..], &["migrate", "status"], &["doctor"], &["restore", "status"]] {
        let code = run(&url, verb);
        assert!(matches!(code, Some(0 | 1 | 3)), "{verb:?}: {code:?}");
    }
    assert_eq!(run(&url, &["verify"]), Some(0));
    scans.none_since("verbs that open the store").await;
    // The housekeeping has counted, looked at its partitions and cleaned up by now; it does so once more.
    tokio::time::sleep(Duration::from_secs(20)).await;
    scans.none_since("the housekeeping").await;
}

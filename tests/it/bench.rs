//! `bench` through the real binary, small: that it counts right and leaves nothing behind, never how fast.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use mainspring::model::time::UnixMs;
use mainspring::tools::proc::descendants;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Cluster, Node, Postgres, Process, empty_database, eventually, psql};

/// A whole quick run takes a tenth of this when nothing else runs.
const PATIENCE: Duration = Duration::from_secs(600);

async fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.arg("bench").args(args).arg("--json").stdin(Stdio::null());
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = tokio::time::timeout(PATIENCE, run).await.expect("it ends");
    output.expect("running a command does not panic").expect("the binary runs")
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON object")
}

/// The report of a bench that found nothing wrong.
async fn clean(args: &[&str]) -> Value {
    let output = bench(args).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let report = report(&output);
    assert_eq!(report["clean"], true, "{report}");
    report
}

/// Its rows.
async fn rows(args: &[&str]) -> Vec<Value> {
    clean(args).await["rows"].as_array().expect("rows").clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// Everything came, once and in time, and the quantiles are in order.
fn delivered(row: &Value, count: u64) {
    assert_eq!(row["count"], count, "{row}");
    for none in ["lost", "early", "refired"] {
        assert_eq!(row[none], 0, "{none}: {row}");
    }
    // What was in flight at a kill comes again.
    assert!(row["scenario"] == "crash" || row["duplicates"] == 0, "{row}");
    let keys = ["late_p50_ms", "late_p95_ms", "late_p99_ms", "late_p999_ms", "late_max_ms"];
    let late = keys.map(|key| number(row, key));
    assert!(late[0] >= 0.0 && late.is_sorted(), "{late:?}");
}

fn registered(row: &Value, count: u64) {
    // A server without streams is told apart from one that takes none of them in.
    if row["step"].as_str().is_some_and(|step| step.starts_with("stream")) && row["count"].is_null() {
        assert!(row["note"].as_str().is_some_and(|note| note.contains("no POST /v1/timers/stream")), "{row}");
        return;
    }
    assert_eq!((&row["count"], &row["failed"]), (&count.into(), &0.into()), "{row}");
    assert!(number(row, "per_second") > 0.0 && number(row, "cpu_server_s") >= 0.0, "{row}");
}

#[tokio::test]
async fn every_scenario_counts_what_it_did_embedded() {
    let rows = rows(&["all", "--quick"]).await;
    for row in &rows {
        match (row["scenario"].as_str().expect("text"), row["step"].as_str().expect("text")) {
            ("register", _) => registered(row, 200),
            ("parked", step) if step.starts_with("park ") => {
                registered(row, 1000);
                assert!(number(row, "sql_bytes_per_timer") > 100.0, "{row}");
            }
            ("parked", step) if step.starts_with("promote") => {
                registered(row, 100);
                assert!(row["redis_bytes_per_timer"].is_null(), "there is no Redis to weigh: {row}");
            }
            ("parked", step) if step.starts_with("put") => registered(row, 200),
            ("idle", _) => assert!(number(row, "cpu_percent_of_core") >= 0.0, "{row}"),
            ("crash", _) => {
                delivered(row, 200);
                assert!(number(row, "redelivered") >= number(row, "duplicates"), "{row}");
            }
            _ => delivered(row, 200),
        }
        assert!(row["cpu_postgres_s"].is_null(), "there is no PostgreSQL to watch: {row}");
    }
    let scenarios: Vec<&str> = rows.iter().filter_map(|row| row["scenario"].as_str()).collect();
    for scenario in ["register", "paced", "burst", "parked", "recover", "crash", "idle"] {
        assert!(scenarios.contains(&scenario), "{scenario} is missing");
    }
}

#[tokio::test]
async fn occurrences_of_rules_are_counted_each_under_its_nominal_time() {
    let args = ["schedules", "--count", "30", "--every", "1s", "--times", "3", "--idle", "0s"];
    let rows = rows(&args).await;
    assert_eq!(rows.len(), 2, "put and fire");
    assert_eq!(rows[0]["count"], 30, "{}", rows[0]);
    delivered(&rows[1], 90);
}

#[tokio::test]
async fn timers_go_to_namespaces_in_turn() {
    let server = empty_database().await;
    let stores = ["--cold-url", &server, "--reuse", "--namespaces", "7", "--batch", "10"];
    let steps = ["--connections", "4", "--steps", "post,batch-post,stream-post,cancel"];
    for row in rows(&[&["register", "--count", "105"], &steps[..], &stores[..]].concat()).await {
        registered(&row, 105);
    }
    // What stays is what was not cancelled: three steps of 105. A stream is all of one namespace.
    let by_namespace = "SELECT string_agg(n::text, ' ' ORDER BY n) FROM \
        (SELECT count(*) AS n FROM timers GROUP BY namespace) AS counted";
    let counts = psql(&server, by_namespace).await;
    let counts: Vec<u64> = counts.split(' ').map(|count| count.parse().expect("a number")).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (7, 315), "{counts:?}");
    let fired = empty_database().await;
    let stores = ["--cold-url", &fired, "--namespaces", "7", "--batch", "10"];
    let burst = rows(&[&["burst", "--count", "200", "--ahead", "3s"], &stores[..]].concat()).await;
    delivered(&burst[0], 200);
}

#[tokio::test]
async fn runs_on_postgres_have_a_median_and_leave_no_database() {
    let server = empty_database().await;
    let args = ["burst", "--count", "200", "--ahead", "3s", "--runs", "2", "--cold-url", &server];
    let rows = rows(&args).await;
    let runs: Vec<String> = rows.iter().map(|row| row["run"].to_string()).collect();
    assert_eq!(runs, ["1", "2", "\"median\""]);
    for row in &rows {
        delivered(row, 200);
        assert!(number(row, "cpu_postgres_s") >= 0.0 && number(row, "mem_postgres_mib") > 0.0, "{row}");
    }
    let tables = psql(&server, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await;
    assert_eq!(tables, "0", "the database given is left alone");
}

#[tokio::test]
async fn a_run_on_a_redis_cluster_leaves_no_key_on_any_master() {
    let cluster = Cluster::shared().await;
    let rows = rows(&["burst", "--count", "200", "--ahead", "3s", "--hot-url", &cluster.url()]).await;
    delivered(&rows[0], 200);
    assert!(number(&rows[0], "cpu_redis_s") > 0.0, "{}", rows[0]);
    for master in &cluster.masters {
        assert_eq!(master.cli(&["KEYS", "*bench-*"]).await, "");
    }
}

#[tokio::test]
async fn a_running_server_is_measured_and_never_killed() {
    let node = Node::builder().start_ready().await;
    let (base, server) = (node.base(), "--server");
    let paced = ["paced", "--rate", "100", "--seconds", "1", "--ahead-min", "0s", "--ahead-max", "1s"];
    let rows = rows(&[&paced[..], &[server, &base]].concat()).await;
    delivered(&rows[0], 100);
    for scenario in ["recover", "crash", "all"] {
        assert_eq!(bench(&[scenario, server, &base]).await.status.code(), Some(2), "{scenario}");
    }
    let nobody = bench(&["idle", server, "http://127.0.0.1:9"]).await;
    assert_eq!(nobody.status.code(), Some(5));
    node.wait_ready(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_an_answer_held_up_counts_from_the_moment_planned_for_it() {
    // It holds the first answer until all fifty calls should have been made.
    let first = AtomicBool::new(true);
    let register = async |State(first): State<Arc<AtomicBool>>| {
        if first.swap(false, Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        StatusCode::CREATED
    };
    let app = Router::new().route("/v1/timers", post(register)).fallback(async || axum::Json(Value::Null));
    let app = app.with_state(Arc::new(first));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("bound"));
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let paced = ["paced", "--rate", "100", "--seconds", "0.5", "--connections", "1"];
    let due = ["--ahead-min", "0s", "--ahead-max", "0s", "--wait", "0s", "--server", &base];
    let output = bench(&[&paced[..], &due[..]].concat()).await;
    server.abort();
    let report = report(&output);
    let row = &report["rows"][0];
    assert_eq!((&row["lost"], &row["failed"]), (&50.into(), &0.into()), "it delivers nothing: {row}");
    let keys = ["call_p50_ms", "call_p99_ms", "call_p999_ms", "call_max_ms"];
    let calls = keys.map(|key| number(row, key));
    assert!(calls[0] >= 300.0 && calls[3] >= 600.0 && calls.is_sorted(), "{calls:?}");
}

#[tokio::test]
async fn receivers_with_addresses_of_their_own_answer_later_and_hold_up_nobody() {
    let node = Node::builder().start_ready().await;
    let (api, base) = (node.api(), node.base());
    let burst = ["burst", "--count", "40", "--same-ms", "--ahead", "2s", "--server", &base];
    let report = clean(&[&burst[..], &["--hosts", "40", "--reply-delay", "500ms"]].concat()).await;
    assert_eq!((&report["hosts"], &report["reply_delay_ms"]), (&40.into(), &500.0.into()));
    delivered(&report["rows"][0], 40);
    // One after another they would take 20 s.
    assert!(number(&report["rows"][0], "late_max_ms") < 10_000.0, "{report}");

    let (_, listed) = api.get("/v1/timers?limit=100").await;
    let timers = listed["items"].as_array().expect("items");
    let urls: HashSet<&str> =
        timers.iter().filter_map(|timer| timer["target"]["webhook"]["url"].as_str()).collect();
    assert_eq!((timers.len(), urls.len()), (40, 40), "{listed}");
    for timer in timers {
        let id = timer["id"].as_str().expect("an id");
        let attempts = eventually("its attempt ends", PATIENCE, async || {
            let (_, attempts) = api.get(&format!("/v1/timers/{id}/attempts")).await;
            if attempts["items"][0]["ended_at"].is_string() { Ok(attempts) } else { Err(attempts) }
        })
        .await;
        let at = |key: &str| {
            UnixMs::parse_rfc3339(attempts["items"][0][key].as_str().expect("a time")).expect("a time").get()
        };
        assert!(at("ended_at") - at("started_at") >= 500, "{attempts}");
    }
}

#[tokio::test]
async fn a_bench_that_is_interrupted_leaves_nothing_behind() {
    let postgres = Postgres::start().await;
    let url = postgres.url("postgres");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.args(["bench", "burst", "--count", "10", "--ahead", "60s", "--cold-url", &url]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let bench = Process::spawn(&mut command).expect("it starts");
    let timers = async || {
        let made =
            psql(&url, "SELECT datname FROM pg_database WHERE datname LIKE 'mainspring_bench_%'").await;
        let table = "SELECT count(*) FROM pg_stat_user_tables WHERE relname = 'timers' AND n_live_tup = 10";
        match made.is_empty() {
            true => false,
            false => psql(&postgres.url(&made), table).await == "1",
        }
    };
    let began = Instant::now();
    while !timers().await {
        assert!(bench.ended().is_none() && began.elapsed() < PATIENCE, "nothing is registered");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let server = descendants(bench.pid()).pop().expect("a server of its own");
    let exit = bench.end_with(Signal::INT, Duration::from_secs(30)).await.expect("it stops");
    assert_eq!(exit.status.code(), Some(1));
    assert!(!Path::new(&format!("/proc/{server}")).exists(), "its server is gone");
    assert_eq!(psql(&url, "SELECT count(*) FROM pg_database WHERE datname LIKE 'mainspring%'").await, "0");
}

/// At brokers that start in no time, with a publisher beside each; the webhook has none.
#[tokio::test]
async fn sinks_count_what_was_delivered_at_brokers_of_their_own() {
    let rows = rows(&[
        "sinks",
        "--kinds",
        "webhook,redis-stream,mqtt,nats,jetstream,kafka",
        "--count",
        "200",
        "--rate",
        "100",
        "--seconds",
        "1",
    ])
    .await;
    let steps: Vec<&str> = rows.iter().filter_map(|row| row["step"].as_str()).collect();
    assert_eq!(rows.len(), 3 * 6 - 1, "{steps:?}");
    for row in &rows {
        let step = row["step"].as_str().expect("text");
        let count = if step.contains("/s") { 100 } else { 200 };
        assert_eq!(row["count"], count, "{row}");
        assert!(number(row, "per_second") > 0.0, "{row}");
        if !step.ends_with("bare") {
            assert!(row["lost"] == 0 && number(row, "late_p99_ms") >= 0.0, "{row}");
        }
    }
    for kind in
        ["webhook burst", "redis_stream bare", "mqtt 100/s", "nats burst", "jetstream bare", "kafka burst"]
    {
        assert!(steps.iter().any(|step| step.starts_with(kind)), "{kind}: {steps:?}");
    }
}

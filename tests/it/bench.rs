//! `bench` through the real binary, small: that it counts right and leaves nothing behind, never how fast.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mainspring::tools::proc::descendants;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Cluster, Node, Postgres, Process, fresh_database, psql};

/// A whole quick run takes a quarter of this when nothing else runs.
const PATIENCE: Duration = Duration::from_secs(240);

async fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.arg("bench").args(args).arg("--json").stdin(Stdio::null());
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = tokio::time::timeout(PATIENCE, run).await.expect("it ends");
    output.expect("running a command does not panic").expect("the binary runs")
}

/// The rows of a bench that found nothing wrong.
async fn rows(args: &[&str]) -> Vec<Value> {
    let output = bench(args).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON object");
    assert_eq!(report["clean"], true, "{report}");
    report["rows"].as_array().expect("rows").clone()
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
async fn runs_on_postgres_have_a_median_and_leave_no_database() {
    let server = fresh_database().await;
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

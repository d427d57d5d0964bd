//! Two busy nodes and a real Prometheus: what is written is what is exported, and every expression returns something.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mainspring::tools::process::log_tail;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::board::{Board, JOB, filled_in};
use super::rules::Rule;
use super::series::Exported;
use super::{Query, folder, promql};
use crate::support::{
    Api, Node, Process, Receiver, Traffic, eventually, free_port, fresh_database, http_client, shared_as,
};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Exported, and used by no dashboard and no rule on purpose, with the reason.
const UNUSED: [(&str, &str); 0] = [];

/// Selectors that find nothing while all is well, with the reason.
const ONLY_IN_A_FAULT: [(&str, &str); 2] = [
    ("status=~\"5..\"", "a status is a series from its first answer on, and no call fails here"),
    ("ALERTS", "an alert is a series while it is pending or fires"),
];

/// Alerts that a machine busy with other tests may bring about, and one that the restart of the test does.
const OF_SPEED: [&str; 6] = [
    "MainspringLate",
    "MainspringRegistrationsSlow",
    "MainspringStoreSlow",
    "MainspringSweepRescues",
    "MainspringPointersDropped",
    "MainspringClaimsExpired",
];

/// A Prometheus of this test's own. Dropping it ends the server and removes its data.
struct Prometheus {
    // Before `dir`: the server ends before its directory goes.
    process: Process,
    dir: TempDir,
    client: reqwest::Client,
    base: String,
}

impl Prometheus {
    /// Scrapes these nodes twice a second, and evaluates the repository's rules as often.
    async fn start(nodes: &[&Node]) -> Self {
        let dir = tempfile::Builder::new().prefix("prometheus").tempdir().expect("a temporary directory");
        let targets: Vec<String> = nodes.iter().map(|node| node.base().replace("http://", "")).collect();
        let config = serde_json::json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [folder().join("rules/*.yml")],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": targets}]}],
        });
        // JSON is YAML.
        fs::write(dir.path().join("config.yml"), config.to_string()).expect("it can be written");
        let log = fs::File::create(dir.path().join("log")).expect("a log file");
        let listen = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new("prometheus");
        command.current_dir(dir.path()).args(["--config.file=config.yml", "--storage.tsdb.path=data"]);
        command.arg(format!("--web.listen-address={listen}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = Process::spawn(&mut command).expect("prometheus (scripts/install-needs installs it)");
        let prometheus = Self {
            process,
            dir,
            client: http_client(Duration::from_secs(10)),
            base: format!("http://{listen}"),
        };
        eventually("Prometheus is ready", LONG, async || {
            if let Some(exit) = prometheus.process.ended() {
                panic!("it ended: {}\n{}", exit.status, prometheus.log());
            }
            let answer = prometheus.client.get(format!("{}/-/ready", prometheus.base)).send().await;
            answer.and_then(reqwest::Response::error_for_status).map(drop).map_err(|why| why.to_string())
        })
        .await;
        prometheus
    }

    fn log(&self) -> String {
        log_tail(&self.dir.path().join("log"), 20)
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, String> {
        let request = self.client.get(format!("{}/api/v1/{path}", self.base)).query(query);
        let answer: Value = request.send().await.expect("it answers").json().await.expect("JSON");
        if answer["status"] == "success" {
            Ok(answer["data"].clone())
        } else {
            Err(answer["error"].to_string())
        }
    }

    /// The result of an expression now. Panics if it cannot be evaluated.
    async fn ask(&self, query: &Query) -> Vec<Value> {
        let data = self.get("query", &[("query", &query.expr)]).await;
        let data = data.unwrap_or_else(|why| panic!("{}: {why}\n{}", query.place, query.expr));
        match data["result"].as_array() {
            Some(result) if data["resultType"] == "vector" => result.clone(),
            _ => vec![data["result"].clone()],
        }
    }

    async fn end(self) {
        self.process.end_with(Signal::TERM, LONG).await.expect("it ends");
    }
}

/// Every expression of dashboards and rules, with its variables replaced, and whether it is that of an alert.
fn queries() -> Vec<(Query, bool)> {
    let boards = Board::all();
    let dashboards = boards.iter().flat_map(Board::queries);
    let dashboards = dashboards.map(|query| (Query { expr: filled_in(&query.expr), ..query }, false));
    let rules = Rule::all();
    let rules = rules.iter().map(|rule| (rule.query(), rule.alert.is_some()));
    dashboards.chain(rules).collect()
}

/// What a node exports, Prometheus adds and the rules record.
async fn exported(api: &Api) -> Exported {
    let (status, text) = api.get("/metrics").await;
    assert_eq!(status, 200, "{text}");
    let mut exported = Exported::read(text.as_str().expect("Prometheus text")).with_prometheus_own();
    for name in Rule::all().iter().filter_map(|rule| rule.record.as_deref()) {
        let (level, _) = name.split_once(':').expect("level:metric:operations");
        exported.add(name, &level.split('_').collect::<Vec<_>>());
    }
    exported
}

/// Pauses a destination for which a timer is due: it has all series of destinations. So has a queue in which one waits.
async fn a_destination_is_shown(nodes: &[Api]) {
    let api = &nodes[0];
    let hook = serde_json::json!({"webhook": {"url": "http://127.0.0.1:9/"}, "rate_per_second": 5});
    assert_eq!(api.send(Method::PUT, "/v1/destinations/kept", &[], Some(&hook)).await.status, 201);
    assert_eq!(api.send(Method::POST, "/v1/destinations/kept/pause", &[], None).await.status, 200);
    let timer = serde_json::json!({"delay": "PT0S", "target": {"destination": "kept"}});
    assert_eq!(api.put("for-kept", &timer).await.0, 201);
    let task = serde_json::json!({"delay": "PT0S", "target": {"queue": "tasks"}});
    assert_eq!(api.put("for-workers", &task).await.0, 201);
    eventually("it is shown", LONG, async || {
        let shown = [
            "mainspring_destination_waiting_timers{destination=\"kept\"} 1",
            "mainspring_queue_ready_timers{queue=\"tasks\"} 1",
        ];
        // By the owner of shard 0.
        for node in nodes {
            let (_, text) = node.get("/metrics").await;
            if text.as_str().is_some_and(|text| shown.iter().all(|shown| text.contains(shown))) {
                return Ok(());
            }
        }
        Err(shown)
    })
    .await;
}

#[tokio::test]
async fn every_expression_names_series_that_a_node_exports_and_every_series_is_used() {
    let node = Node::builder().start_ready().await;
    a_destination_is_shown(&[node.api()]).await;
    let exported = exported(&node.api()).await;
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for (query, _) in queries() {
        match promql::read(&query.expr) {
            Ok(named) => {
                let unknown = exported.unknown(&named).into_iter();
                faults.extend(unknown.map(|fault| format!("{}: {fault}", query.place)));
                used.extend(named.selectors.iter().map(|selector| exported.metric_of(selector)));
            }
            Err(why) => faults.push(format!("{}: {why}", query.place)),
        }
    }
    for (metric, label) in Board::all().iter().flat_map(Board::label_values) {
        let expr = format!("sum by ({label}) ({})", filled_in(&metric));
        faults.extend(exported.unknown(&promql::read(&expr).expect("PromQL")));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));

    let ours = exported.metrics().into_iter().filter(|name| name.starts_with("mainspring_"));
    let unused: Vec<String> = ours.filter(|name| !used.contains(name)).collect();
    assert_eq!(unused, UNUSED.map(|(name, _)| name), "exported and never shown");
}

/// A node goes and comes back meanwhile, so that there are take-overs and replays to show.
#[tokio::test(flavor = "multi_thread")]
async fn every_expression_returns_something_while_two_nodes_are_busy() {
    let store = fresh_database().await;
    let build = |name: &str| Node::builder().cold(&store).name(name).start_ready();
    let (one, mut two) = (build("one").await, build("two").await);
    let api = one.api();
    let shares = async |one: usize, two: usize| shared_as(&api, &[("one", one), ("two", two)], LONG).await;
    shares(32, 32).await;
    a_destination_is_shown(&[one.api(), two.api()]).await;
    let prometheus = Prometheus::start(&[&one, &two]).await;
    let receiver = Receiver::start().await;
    let traffic = Traffic::start(vec![one.api()], receiver.url("/ok"), 100);
    assert_eq!(api.timer("nobody").await.0, 404);
    let seen = Query { place: "scrapes".into(), expr: "count_over_time(up[1m]) > 3".into() };
    eventually("both nodes are scraped", LONG, async || {
        let seen = prometheus.ask(&seen).await.len();
        if seen == 2 { Ok(()) } else { Err(seen) }
    })
    .await;
    assert!(two.sigterm().await.0.success());
    shares(64, 0).await;
    two.restart().await;
    two.wait_ready(LONG).await;
    shares(32, 32).await;

    let (alerts, mut silent): (Vec<_>, Vec<_>) = queries().into_iter().partition(|(_, is_alert)| *is_alert);
    let selectors = alerts.iter().chain(&silent).flat_map(|(query, _)| {
        let named = promql::read(&query.expr).expect("PromQL");
        named.selectors.iter().map(promql::plain).collect::<Vec<_>>()
    });
    let selectors: BTreeSet<String> = selectors.collect();
    let is_quiet = |expr: &String| !ONLY_IN_A_FAULT.iter().any(|(part, _)| expr.contains(part));
    silent.extend(
        selectors.into_iter().filter(is_quiet).map(|expr| (Query { place: "selector".into(), expr }, false)),
    );
    let end = Instant::now() + LONG;
    while !silent.is_empty() {
        let mut still = Vec::new();
        for (query, _) in silent {
            if prometheus.ask(&query).await.is_empty() {
                still.push((query, false));
            }
        }
        assert!(still.is_empty() || Instant::now() < end, "these return nothing: {still:#?}");
        silent = still;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let fired = Query { place: "busy".into(), expr: "sum(rate(mainspring_fired_total[30s]))".into() };
    eventually("the nodes are busy", LONG, async || {
        let found = prometheus.ask(&fired).await;
        let per_second: f64 = found[0]["value"][1].as_str().expect("a value").parse().expect("a number");
        if per_second > 10.0 { Ok(()) } else { Err(per_second) }
    })
    .await;
    traffic.end().await;

    eventually("every rule is evaluated", LONG, async || {
        let rules = prometheus.get("rules", &[]).await.expect("rules");
        let groups = rules["groups"].as_array().expect("groups").clone();
        let rules: Vec<Value> =
            groups.iter().flat_map(|group| group["rules"].as_array().cloned().expect("rules")).collect();
        assert_eq!(rules.len(), Rule::all().len());
        let bad: Vec<String> =
            rules.iter().filter(|rule| rule["health"] != "ok").map(Value::to_string).collect();
        if bad.is_empty() { Ok(()) } else { Err(bad) }
    })
    .await;
    let others = alerts.iter().filter(|(query, _)| !OF_SPEED.iter().any(|name| query.place.ends_with(name)));
    for (query, _) in others {
        eventually(&format!("{} is not true of nodes that are well", query.place), LONG, async || {
            let found = prometheus.ask(query).await;
            if found.is_empty() { Ok(()) } else { Err(found) }
        })
        .await;
    }
    prometheus.end().await;
}

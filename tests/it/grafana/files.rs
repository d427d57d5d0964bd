//! What holds of the files by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::board::{Board, RATE_INTERVAL_S, filled_in};
use super::promql;
use super::rules::{self, Rule};
use super::{folder, text};

/// `runbook_url` is relative to the repository.
const RUNBOOK: &str = "docs/runbook.md";

/// Panels of the store as a whole ignore the variable `instance`, and their description begins with this.
const WHOLE: &str = "Whole store. ";

/// Series of the whole store, which only the owner of shard 0 reports.
const OF_SHARD_0: [&str; 12] = [
    "mainspring_destination_waiting_timers",
    "mainspring_queue_ready_timers",
    "mainspring_queue_leased_timers",
    "mainspring_queue_oldest_ready_seconds",
    "mainspring_outbox_events",
    "mainspring_outbox_oldest_seconds",
    "mainspring_pending_timers",
    "mainspring_live_timers",
    "mainspring_forecast_timers",
    "mainspring_schedules",
    "mainspring_housekeeping_last_success_timestamp_seconds",
    "mainspring_retention_lag_seconds",
];

#[test]
fn every_panel_has_a_unit_and_says_what_good_looks_like() {
    let mut places = BTreeSet::new();
    for board in Board::all() {
        for panel in board.panels() {
            let (place, json) = (format!("{}: {}", board.name, panel.place()), panel.json);
            let unit = json["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
            assert!(!unit.is_empty(), "{place}: no unit");
            let good = panel.description().matches("Good: ").count();
            assert!(good == 1 && panel.description().ends_with('.'), "{place}: {}", panel.description());
            assert!(places.insert(place.clone()), "{place}: twice");
        }
    }
    assert!(places.len() > 80, "{} panels read", places.len());
}

/// Unique ids, and the places in the grid neither overlap nor leave it.
#[test]
fn panels_do_not_get_into_each_others_way() {
    for board in Board::all() {
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in board.json["panels"].as_array().expect("panels") {
            let title = &panel["title"];
            assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{}: the id of {title}", board.name);
            let at = |what: &str| panel["gridPos"][what].as_u64().expect("a place in the grid");
            assert!(at("x") + at("w") <= 24, "{title} leaves the grid");
            for cell in
                (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
            {
                assert!(cells.insert(cell), "{}: {title} overlaps", board.name);
            }
        }
    }
}

/// So that a change shows in the lines that it concerns: sorted keys, two spaces, as `jq -S .` writes it.
#[test]
fn the_dashboards_are_written_in_one_way() {
    for board in Board::all() {
        let written = serde_json::to_string_pretty(&board.json).expect("JSON") + "\n";
        assert!(board.text == written, "{}: not as `jq -S .` writes it", board.name);
        assert!(board.json.get("id").is_none() && board.json["uid"].is_string(), "{}: its id", board.name);
    }
}

/// Data source, job and instance are chosen at the top and hold for every panel.
#[test]
fn every_query_follows_the_variables() {
    for board in Board::all() {
        assert_eq!(
            board.json["templating"]["list"]
                .as_array()
                .expect("variables")
                .iter()
                .map(|one| &one["name"])
                .collect::<Vec<_>>(),
            match board.name.as_str() {
                "destinations" => vec!["datasource", "job", "instance", "destination"],
                _ => vec!["datasource", "job", "instance"],
            }
        );
        let sources = board.text.matches("\"uid\": \"").count()
            - board.text.matches("\"uid\": \"${datasource}\"").count();
        // The dashboard's own uid, and the two annotations that come from Grafana itself.
        assert_eq!(sources, 1 + board.text.matches("\"uid\": \"-- Grafana --\"").count(), "{}", board.name);
        let whole: BTreeSet<String> = board
            .panels()
            .iter()
            .filter(|panel| panel.description().starts_with(WHOLE))
            .map(|panel| format!("{}: {}", board.name, panel.place()))
            .collect();
        for query in board.queries() {
            let named =
                promql::read(&filled_in(&query.expr)).unwrap_or_else(|why| panic!("{}: {why}", query.place));
            assert!(
                named.rates_s.iter().all(|window| *window == RATE_INTERVAL_S),
                "{}: a rate over a window of its own",
                query.place
            );
            assert!(!query.expr.contains("avg("), "{}: an average", query.place);
            for selector in
                named.selectors.iter().filter(|selector| selector.name.as_deref() != Some("ALERTS"))
            {
                let has =
                    |label: &str| selector.matchers.matchers.iter().any(|matcher| matcher.name == label);
                let name = selector.name.as_deref().unwrap_or_default();
                let is_whole = whole.contains(&query.place) || OF_SHARD_0.contains(&name);
                assert!(
                    has("job") && has("instance") != is_whole,
                    "{}: job and instance of {name}",
                    query.place
                );
            }
        }
    }
}

#[test]
fn every_alert_says_how_bad_it_is_and_has_a_chapter_in_the_runbook() {
    let runbook = runbook();
    let mut chapters: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let alerts = Rule::alerts();
    assert!(alerts.len() > 20, "{} alerts read", alerts.len());
    for alert in &alerts {
        let name = alert.name();
        assert!(alert.holds.is_some(), "{name}: no `for`");
        assert!(
            ["critical", "warning"].contains(&alert.labels["severity"].as_str()),
            "{name}: {:?}",
            alert.labels
        );
        assert_eq!(
            alert.annotations.keys().collect::<Vec<_>>(),
            ["description", "runbook_url", "summary"],
            "{name}"
        );
        // GitHub makes the anchor of a heading of one word by writing it in lower case.
        assert_eq!(alert.annotations["runbook_url"], format!("{RUNBOOK}#{}", name.to_lowercase()), "{name}");
        assert!(chapters.remove(name), "{name}: no chapter in {RUNBOOK}");
    }
    assert!(chapters.is_empty(), "chapters without an alert: {chapters:?}");
    let listed: BTreeSet<&str> = section(&runbook, "`critical` alerts need")
        .split(['[', ']'])
        .filter(|word| word.starts_with("Mainspring"))
        .collect();
    let critical =
        alerts.iter().filter(|alert| alert.labels["severity"] == "critical").map(Rule::name).collect();
    assert_eq!(listed, critical, "the list of critical alerts in {RUNBOOK}");
}

/// Every alert has a test in which it fires and one in which it never does.
#[test]
fn every_rule_is_tested_both_ways() {
    let tests = rules::tests();
    let asked: Vec<&str> =
        tests.iter().flat_map(|group| &group.promql_expr_test).map(|test| test.expr.as_str()).collect();
    for rule in Rule::all() {
        let Some(alert) = &rule.alert else {
            let is_asked = asked.iter().any(|expr| expr.contains(rule.name()));
            assert!(is_asked, "{}: no test", rule.name());
            continue;
        };
        let of = |group: &rules::TestGroup| -> Vec<bool> {
            let of = group.alert_rule_test.iter().filter(|test| test.alertname == *alert);
            of.map(|test| !test.exp_alerts.is_empty()).collect()
        };
        let groups: Vec<Vec<bool>> = tests.iter().map(of).filter(|fires| !fires.is_empty()).collect();
        assert!(groups.iter().any(|fires| fires.contains(&true)), "{alert}: no test in which it fires");
        assert!(groups.iter().any(|fires| !fires.contains(&true)), "{alert}: no test in which it is silent");
    }
}

/// `*Row › Panel*`, `Log: …` and commands name what exists.
#[test]
fn the_runbook_names_panels_log_lines_and_commands_that_exist() {
    let runbook = runbook();
    let boards = Board::all();
    let panels: BTreeSet<String> =
        boards.iter().flat_map(|board| board.panels()).map(|panel| panel.place()).collect();
    let named: Vec<&str> = runbook.split('*').filter(|word| word.contains(" › ")).collect();
    for panel in &named {
        assert!(panels.contains(*panel) || *panel == "Row › Panel", "no panel {panel}");
    }
    assert!(named.len() > 40, "{} panels named", named.len());

    let source = source();
    let mut lines = 0;
    for line in runbook.lines().filter(|line| line.contains("Log") && line.contains(": `")) {
        for said in line.split('`').skip(1).step_by(2).filter(|said| said.contains(' ')) {
            assert!(source.contains(said), "no node logs {said:?}");
            lines += 1;
        }
    }
    assert!(lines > 15, "{lines} log lines named");

    let mut helps = BTreeMap::new();
    for code in runbook.split('`').skip(1).step_by(2).filter(|code| code.starts_with("mainspring ")) {
        let words: Vec<&str> = code.split(' ').skip(1).collect();
        let verbs = words.iter().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).count();
        let help = helps.entry(words[..verbs].join(" ")).or_insert_with(|| help(&words[..verbs]));
        let lacking: Vec<_> =
            words.iter().filter(|word| word.starts_with("--") && !help.contains(**word)).collect();
        assert!(lacking.is_empty(), "{code}: no {lacking:?}");
    }
    assert!(helps.len() >= 4, "{:?}", helps.keys());
}

#[test]
fn only_panels_that_grafana_ships_are_used() {
    const SHIPPED: [&str; 6] = ["bargauge", "heatmap", "stat", "state-timeline", "table", "timeseries"];
    for board in Board::all() {
        for panel in board.panels() {
            let kind = panel.json["type"].as_str().expect("a type");
            assert!(SHIPPED.contains(&kind), "{}: {kind}", panel.place());
        }
    }
}

fn runbook() -> String {
    text(&folder().parent().expect("the repository").join(RUNBOOK))
}

/// The line that begins like this.
fn section<'a>(text: &'a str, beginning: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(beginning)).unwrap_or_else(|| panic!("no line {beginning:?}…"))
}

/// All of `src/`, with strings that are continued on the next line put together.
fn source() -> String {
    fn read(folder: &std::path::Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                read(&path, all);
            } else {
                *all += &text(&path);
            }
        }
    }
    let mut all = String::new();
    read(&folder().parent().expect("the repository").join("src"), &mut all);
    let lines = all.split("\\\n").map(str::trim_start);
    lines.collect()
}

/// What a verb says of itself; there is none for a verb that does not exist.
fn help(verbs: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_mainspring")).args(verbs).arg("--help").output().expect("it runs");
    assert!(
        output.status.success(),
        "mainspring {}: {}",
        verbs.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

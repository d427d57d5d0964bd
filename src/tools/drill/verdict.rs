//! The verdict on a drill, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::checker::Findings;
use super::history::Fault;
use crate::tools::quantiles::Quantiles;

/// How a drill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every promise was kept.
    Passed,
    /// One was not.
    Violated,
    /// No fault really landed, so that nothing was rehearsed.
    Unknown,
}

/// The verdict on one drill.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The drill.
    pub drill: String,
    /// Where it took place.
    #[serde(rename = "ground")]
    pub environment: &'static str,
    /// Nodes.
    pub nodes: u8,
    /// What makes the same load and the same faults again.
    pub seed: u64,
    /// How long it took, from the first registration to the last look, in seconds.
    pub seconds: f64,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Broken promises: name and number.
    pub violations: Vec<(String, u64)>,
    /// What was found.
    pub findings: Findings,
    /// What was done to it.
    pub faults: Vec<Fault>,
    /// The server's own account, to compare: it is no evidence.
    pub ledger: Option<serde_json::Value>,
    /// Where the nodes' logs were kept, after a violation.
    pub logs: Option<String>,
}

impl Verdict {
    /// For people.
    pub fn text(&self) -> String {
        let found = &self.findings;
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {label:<22} {value}");
        };
        let outcome = match self.outcome {
            Outcome::Passed => "PASSED: every promise was kept".to_owned(),
            Outcome::Unknown => "UNKNOWN: no fault really landed; nothing was rehearsed".to_owned(),
            Outcome::Violated => {
                let all: Vec<String> =
                    self.violations.iter().map(|(name, n)| format!("{n} {name}")).collect();
                format!("VIOLATED: {}", all.join(", "))
            }
        };
        line("verdict", outcome);
        line("where", format!("{}, {} node(s), lease {} ms", self.environment, self.nodes, self.lease_ms));
        line(
            "timers",
            format!(
                "{} registered = {} delivered + {} cancelled + {} expired + {} dead + {} pending + {} open + {} lost",
                found.registered,
                found.delivered,
                found.cancelled,
                found.expired,
                found.dead,
                found.pending,
                found.open,
                found.lost
            ),
        );
        if found.restored > 0 {
            line("", format!("{} touched by a restore, of which less is promised", found.restored));
        }
        line("never early", format!("{} early", found.early));
        line(
            "duplicates",
            format!(
                "{} explained by a fault, {} not; {} came after a later attempt",
                found.duplicates_explained,
                found.duplicates_unexplained,
                found.unfenced + found.unfenced_explained
            ),
        );
        line(
            "cancels and changes",
            format!(
                "{} answered, {} within 50 ms of due; {} and {} untrue; {} calls had to be made again",
                found.answered, found.raced, found.untrue_cancels, found.untrue_changes, found.unanswered
            ),
        );
        if found.given > 0 {
            line(
                "queue",
                format!(
                    "{} items given, {} settlements count, {} were told that their lease is lost",
                    found.given, found.settled, found.leases_lost
                ),
            );
        }
        if found.nominals > 0 {
            line(
                "schedules",
                format!(
                    "{} nominal times = {} fired + {} skipped, {} of them never made, + {} lost; {} made twice",
                    found.nominals,
                    found.nominals_fired,
                    found.nominals_skipped,
                    found.never_made,
                    found.nominals_lost,
                    found.made_twice
                ),
            );
        }
        let lateness = |late: &Quantiles| match late.count {
            0 => "-".to_owned(),
            _ => format!("{:.1} / {:.1} / {:.0} ms of {}", late.p50_ms, late.p99_ms, late.max_ms, late.count),
        };
        line("late p50 / p99 / max", format!("healthy {}", lateness(&found.healthy)));
        line("", format!("faulted {}", lateness(&found.faulted)));
        line("", format!("recovering {}", lateness(&found.recovering)));
        if found.fetched.count > 0 {
            line("", format!("fetched {}", lateness(&found.fetched)));
        }
        let recovered = found.recovered_ms.map(|ms| format!("{ms:.0} ms until nothing came a second late"));
        line("time to recover", recovered.unwrap_or_else(|| "at once: nothing came a second late".into()));
        let began = self.faults.iter().map(|fault| fault.from_us).min().unwrap_or_default();
        for fault in &self.faults {
            let second = |us: i64| (us - began) as f64 / 1e6;
            let landed = fault.landed.as_deref().unwrap_or("did not land");
            line(
                "fault",
                format!(
                    "+{:.1} s to +{:.1} s {}: {landed}",
                    second(fault.from_us),
                    second(fault.until_us),
                    fault.kind
                ),
            );
        }
        for example in &found.examples {
            line("finding", example.clone());
        }
        if let Some(logs) = &self.logs {
            line("logs", logs.clone());
        }
        format!("{} seed {} ({:.0} s)\n{text}", self.drill, self.seed, self.seconds)
    }
}

/// Many verdicts as the cells of a table: a row for each, and their sums.
pub fn cells(verdicts: &[Verdict]) -> Vec<Vec<String>> {
    let head = [
        "drill",
        "ground",
        "seed",
        "verdict",
        "timers",
        "delivered",
        "lost",
        "early",
        "raced",
        "untrue",
        "dup",
        "unexplained",
        "healthy p99",
        "fault max",
        "recover ms",
    ];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    let mut sums = [0; 8];
    for verdict in verdicts {
        let f = &verdict.findings;
        let numbers = [
            f.registered,
            f.delivered,
            f.lost,
            f.early,
            f.raced,
            f.untrue_cancels + f.untrue_changes,
            f.duplicates_explained,
            f.duplicates_unexplained,
        ];
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        let environment = verdict.environment.split(' ').next().unwrap_or_default().to_owned();
        let outcome = format!("{:?}", verdict.outcome).to_lowercase();
        let mut row = vec![verdict.drill.clone(), environment, verdict.seed.to_string(), outcome];
        row.extend(numbers.map(|number| number.to_string()));
        row.push(format!("{:.1}", f.healthy.p99_ms));
        row.push(format!("{:.0}", f.faulted.max_ms.max(f.recovering.max_ms)));
        row.push(f.recovered_ms.map_or("-".into(), |ms| format!("{ms:.0}")));
        rows.push(row);
    }
    let mut sum = vec!["sum".to_owned(), String::new(), String::new(), String::new()];
    sum.extend(sums.map(|number| number.to_string()));
    sum.resize(head.len(), String::new());
    rows.push(sum);
    rows
}

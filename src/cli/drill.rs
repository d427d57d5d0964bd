//! `drill …`: the flags, the safety switch, and the verdicts as text, JSON and a file to keep.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::exit::{Exit, usage};
use super::{input, interrupted, out};
use crate::config::{ColdKind, Config, shown_url};
use crate::tools::brokers::Kind;
use crate::tools::drill::brokers::KINDS;
use crate::tools::drill::cluster::Environment;
use crate::tools::drill::schedule::Drill;
use crate::tools::drill::verdict::{Outcome, Verdict, cells};
use crate::tools::drill::{self, Options};

/// `drill …`
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  \
    mainspring drill kill\n    \
      three nodes on a PostgreSQL and a Redis of the drill's own; nothing else is touched\n  \
    mainspring drill all --embedded --seeds 5\n    \
      all that applies to one node on SQLite, with five seeds\n  \
    mainspring drill compound --seconds 600 --report drill.json\n    \
      two random faults every ten seconds for ten minutes, and a file to keep\n\n\
    Exit code 6 if a promise was broken. docs/drills.md tells how to read a verdict."
)]
pub struct DrillArgs {
    /// What to rehearse
    name: Name,
    /// What makes the same load and the same faults again [default: a new one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Do it with so many seeds, one after another
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// One node on SQLite with its wheels in process, instead of PostgreSQL and Redis
    #[arg(long, conflicts_with_all = ["cold_url", "nodes"])]
    embedded: bool,
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Timers registered a second
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(10..=20_000))]
    rate: u32,
    /// For so many seconds
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(8..=86_400))]
    seconds: u32,
    /// The nodes' lease
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = input::duration)]
    lease: Duration,
    /// Timers in the window beside those of the load
    #[arg(long, value_name = "N", default_value_t = 0)]
    window_timers: u32,
    /// The brokers of the drills that break brokers: redis-stream, jetstream, mqtt, kafka, amqp [default: all that are
    /// installed and that this build has]
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = broker)]
    brokers: Vec<Kind>,
    /// A PostgreSQL set aside for drills: a database is made beside this one and dropped afterwards
    #[arg(long, value_name = "URL", requires_all = ["hot_url", "destroy"])]
    cold_url: Option<String>,
    /// A Redis set aside for drills: IT IS EMPTIED
    #[arg(long, value_name = "URL", requires_all = ["cold_url", "destroy"])]
    hot_url: Option<String>,
    /// The safety switch for given servers: the host and port of --hot-url, typed once more
    #[arg(long, value_name = "HOST:PORT")]
    destroy: Option<String>,
    /// Write the verdicts, as JSON, into this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep the nodes' logs here after a violation [default: drill-logs]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Set one key of the nodes; repeatable
    #[arg(long = "set", id = "node_sets", value_name = "KEY=VALUE")]
    node_sets: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
enum Name {
    One(Drill),
    All,
}

/// The values of [`Name`], in the order in which they are shown.
static NAMES: LazyLock<Vec<Name>> =
    LazyLock::new(|| Drill::ALL.into_iter().map(Name::One).chain([Name::All]).collect());

impl ValueEnum for Name {
    fn value_variants<'a>() -> &'a [Self] {
        &NAMES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::One(drill) => drill.to_possible_value(),
            Self::All => Some(PossibleValue::new("all").help("All that apply, one after another")),
        }
    }
}

/// Rehearses, and prints the verdicts.
pub async fn run(args: &DrillArgs, json: bool) -> anyhow::Result<Exit> {
    let options = options(args)?;
    let drills = drills(args, &options)?;
    let first = args.seed.unwrap_or_else(|| uuid::Uuid::now_v7().as_u64_pair().1 % 1_000_000);
    let stop = interrupted()?;
    let bar = bar(json);
    let mut verdicts = Vec::new();
    for seed in first..first + args.seeds {
        for drill in &drills {
            let name = format!("{} seed {seed}", drill.name());
            let progress = |what: &str, done: u64, of: u64| {
                bar.set_length(of.max(1));
                bar.set_position(done.min(of));
                bar.set_message(format!("{name}: {what}"));
            };
            let verdict = drill::run(*drill, seed, &options, &progress, &stop).await;
            let verdict = verdict.with_context(|| format!("drill {name}"))?;
            bar.suspend(|| tell(&verdict, json))?;
            verdicts.push(verdict);
            if let Some(path) = &args.report {
                // After each, so that an hour's work outlives what comes after it.
                let text = serde_json::to_string_pretty(&verdicts)?;
                std::fs::write(path, text)
                    .with_context(|| format!("{} cannot be written", path.display()))?;
            }
        }
    }
    bar.finish_and_clear();
    let any = |outcome| verdicts.iter().any(|verdict| verdict.outcome == outcome);
    let exit = match (any(Outcome::Violated), any(Outcome::Unknown)) {
        (true, _) => Exit::Loss,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Ok,
    };
    match verdicts.len() > 1 && !json {
        true => out::verdict(&out::table(&cells(&verdicts)), exit),
        false => Ok(exit),
    }
}

fn tell(verdict: &Verdict, json: bool) -> anyhow::Result<()> {
    let text = if json { serde_json::to_string(verdict)? } else { verdict.text() };
    // A reader that went away is no reason to leave servers behind, or to forget how the drill ended.
    out::verdict(&text, Exit::Ok).map(drop)
}

fn options(args: &DrillArgs) -> anyhow::Result<Options> {
    let environment = match (&args.cold_url, &args.hot_url, &args.destroy) {
        (Some(cold), Some(hot), Some(typed)) => given(cold, hot, typed)?,
        _ if args.destroy.is_some() => return Err(usage("--destroy belongs to --cold-url and --hot-url")),
        _ if args.embedded => Environment::Embedded,
        _ => Environment::Own,
    };
    let lease_ms = u64::try_from(args.lease.as_millis())?;
    // The nodes would refuse them one by one, and later.
    Config::load(None, [], &args.node_sets).map_err(|why| usage(format!("--set: {why}")))?;
    if !(500..=60_000).contains(&lease_ms) {
        return Err(usage("--lease: from 500ms to 60s"));
    }
    Ok(Options {
        environment,
        nodes: if args.embedded { 1 } else { args.nodes },
        rate: args.rate,
        seconds: args.seconds,
        lease_ms,
        window_timers: args.window_timers,
        brokers: brokers(&args.brokers)?,
        sets: args.node_sets.clone(),
        keep: Some(args.keep.clone().unwrap_or_else(|| "drill-logs".into())),
    })
}

fn broker(text: &str) -> Result<Kind, String> {
    let known = Kind::from_str(text, false).ok().filter(|kind| KINDS.contains(kind));
    known.ok_or_else(|| "no drill breaks that; redis-stream, jetstream, mqtt, kafka or amqp".to_owned())
}

/// Those that are asked for, or all that are there.
fn brokers(asked: &[Kind]) -> anyhow::Result<Vec<Kind>> {
    if asked.is_empty() {
        return Ok(KINDS.into_iter().filter(|kind| kind.check().is_ok()).collect());
    }
    for kind in asked {
        kind.check().with_context(|| format!("--brokers {}", kind.word()))?;
    }
    Ok(asked.to_vec())
}

/// Given servers are used only if their Redis is named twice, so that no production host is taken by accident.
fn given(cold: &str, hot: &str, typed: &str) -> anyhow::Result<Environment> {
    let sets = [format!("cold.url={cold}"), format!("hot.url={hot}")];
    let config = Config::load(None, [], &sets).map_err(|why| usage(why.to_string()))?;
    if config.cold_kind()? != ColdKind::Postgres || !hot.starts_with("redis://") {
        return Err(usage("--cold-url is postgres://…, --hot-url redis://…; without them, see --embedded"));
    }
    let url = url::Url::parse(hot).map_err(|why| usage(format!("--hot-url: {why}")))?;
    let host = format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(6379));
    if typed != host {
        return Err(usage(format!(
            "--destroy is {typed}, but --hot-url {} is {host}; a drill empties that Redis: type it if that is meant",
            shown_url(hot)
        )));
    }
    Ok(Environment::Given { cold: cold.to_owned(), hot: hot.to_owned() })
}

fn drills(args: &DrillArgs, options: &Options) -> anyhow::Result<Vec<Drill>> {
    let applies = |drill: &Drill| match options.environment {
        Environment::Embedded => drill.is_embedded(),
        Environment::Own => true,
        Environment::Given { .. } => drill.is_for_given(),
    };
    match args.name {
        Name::All => {
            Ok(Drill::ALL.into_iter().filter(applies).filter(|drill| can_be_done(*drill, options)).collect())
        }
        Name::One(drill) if applies(&drill) => {
            drill
                .needs(&options.brokers)
                .check()
                .with_context(|| format!("drill {} cannot be done here", drill.name()))?;
            Ok(vec![drill])
        }
        Name::One(drill) => Err(usage(format!(
            "{} needs what is not there: {}",
            drill.name(),
            match options.environment {
                Environment::Embedded => "an embedded node has no servers; leave --embedded out",
                _ =>
                    "a drill stops only servers that it has started itself; leave --cold-url and --hot-url out",
            }
        ))),
    }
}

/// Whether this machine has what a drill needs; says so if not.
fn can_be_done(drill: Drill, options: &Options) -> bool {
    let lacks = drill.needs(&options.brokers).check().err();
    if let Some(why) = &lacks {
        out::note(&format!("drill {} is left out: {why:#}", drill.name()));
    }
    lacks.is_none()
}

/// A bar on a terminal, else nothing: the verdicts say enough.
fn bar(json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos:>3}/{len} s  {msg}");
    ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

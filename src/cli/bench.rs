//! `bench …`: the flags of the scenarios, and the report as a table or as JSON.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::client::Client;
use super::exit::{Exit, usage};
use super::{input, interrupted, out};
use crate::config::{ColdKind, Config};
use crate::tools::bench::figures::{Figure, cells};
use crate::tools::bench::load::Endpoint;
use crate::tools::bench::receiver::Receivers;
use crate::tools::bench::scenario::burst::Burst;
use crate::tools::bench::scenario::idle::Idle;
use crate::tools::bench::scenario::paced::Paced;
use crate::tools::bench::scenario::parked::Parked;
use crate::tools::bench::scenario::queue::Queue;
use crate::tools::bench::scenario::recover::Recover;
use crate::tools::bench::scenario::register::{Register, Step};
use crate::tools::bench::scenario::schedules::Schedules;
use crate::tools::bench::scenario::sinks::Sinks;
use crate::tools::bench::scenario::{Scenario, plan};
use crate::tools::bench::timers::{Ids, MIN_PAYLOAD, MOST_HOSTS, MOST_NAMESPACES};
use crate::tools::bench::{self, Options, Report};
use crate::tools::brokers::Kind;
use crate::tools::servers::Choice;

/// `bench …`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring bench all --quick\n    \
      everything once, small, on SQLite and the in-process wheel\n  \
    mainspring bench burst --count 20000,200000 --runs 3 --cold-url postgres://u@db/postgres --hot-url redis://r\n    \
      a server of its own, in a database that is made for it and dropped afterwards\n  \
    mainspring bench paced --rate 1000 --server http://127.0.0.1:7600\n    \
      against a running server\n\n\
    Exit code 6 if anything was lost or early. docs/benchmarks.md tells how to read the table.")]
pub struct Bench {
    #[command(flatten)]
    shared: Shared,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Args)]
struct Shared {
    /// The database of the bench's own server: an empty one is made beside it [default: a temporary SQLite file]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    cold_url: Option<String>,
    /// The wheels of the bench's own server [default: memory://]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    hot_url: Option<String>,
    /// Use the database at --cold-url as it is
    #[arg(long, global = true, requires = "cold_url", help_heading = "Server")]
    reuse: bool,
    /// Set one key of the bench's own server; repeatable, after the scenario
    #[arg(
        long = "set",
        id = "server_sets",
        global = true,
        value_name = "KEY=VALUE",
        help_heading = "Server"
    )]
    server_sets: Vec<String>,
    /// Use a running server on this machine; with --cold-url and --hot-url, its stores are weighed too
    #[arg(long, global = true, value_name = "URL", conflicts_with_all = ["server_sets", "reuse"], help_heading = "Server")]
    server: Option<String>,
    /// A file with the running server's API key [default: the key in $MAINSPRING_API_KEY]
    #[arg(long, global = true, value_name = "FILE", requires = "server", help_heading = "Server")]
    key_file: Option<PathBuf>,
    /// How often each step is done; more than one adds the median
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99), help_heading = "Measurement")]
    runs: u32,
    /// How long a timer's data is
    #[arg(long, global = true, value_name = "N", default_value_t = 100, help_heading = "Measurement")]
    payload_bytes: usize,
    /// How long a delivery may fail to come before it is lost
    #[arg(long, global = true, value_name = "DURATION", default_value = "60s", value_parser = input::duration, help_heading = "Measurement")]
    wait: Duration,
    /// How many receivers the timers go to in turn, each with an address of its own
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_HOSTS)), help_heading = "Measurement")]
    hosts: u32,
    /// How long a receiver takes to answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "0s", value_parser = input::duration, help_heading = "Measurement")]
    reply_delay: Duration,
    /// Let somebody subscribe to every lifecycle event, and wait after each step of register and burst until all are sent
    #[arg(long, global = true, help_heading = "Measurement")]
    subscribed: bool,
    /// Make so many namespaces, to which the timers go in turn, --batch in a row to each; not for sinks, queue and schedules
    #[arg(long, global = true, value_name = "N", default_value_t = 0, conflicts_with_all = ["server", "subscribed"], value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_NAMESPACES)), help_heading = "Measurement")]
    namespaces: u32,
    /// Timers in a batch
    #[arg(long, global = true, value_name = "N", default_value_t = 1000, value_parser = count, help_heading = "Measurement")]
    batch: u64,
    /// Connections that send batches and streams
    #[arg(long, global = true, value_name = "N", default_value_t = 4, value_parser = count, help_heading = "Measurement")]
    bulk_connections: u64,
}

#[derive(Subcommand)]
enum Verb {
    /// How fast timers are registered and cancelled
    Register(RegisterArgs),
    /// Lateness while timers are registered and come due at a steady rate
    Paced(PacedArgs),
    /// Lateness of many timers due within one second
    Burst(BurstArgs),
    /// What far-future timers weigh; then register, paced and burst beside them
    Parked(ParkedArgs),
    /// Many timers overdue before the process starts
    Recover(KilledArgs),
    /// SIGKILL in the middle of a burst
    Crash(KilledArgs),
    /// What it costs to do nothing beside far-future timers
    Idle(IdleArgs),
    /// Deliveries to destinations of each kind, at brokers of the bench's own, beside a publisher without a server
    Sinks(SinksArgs),
    /// Workers that fetch and settle, beside a bare table without a server
    Queue(QueueArgs),
    /// Rules that each make one occurrence a minute, and what they cost while nothing is due
    Schedules(SchedulesArgs),
    /// All of them but sinks, queue and schedules, as docs/benchmarks.md lists the figures
    All {
        /// With small numbers: whether it works, not how fast
        #[arg(long)]
        quick: bool,
    },
}

#[derive(Args)]
struct RegisterArgs {
    /// Timers a step
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count)]
    count: u64,
    /// Connections of single calls, one measurement each; cancels use the first
    #[arg(long, value_name = "N,…", default_value = "64,512", value_delimiter = ',', value_parser = count)]
    connections: Vec<u64>,
    /// Far-future timers, under callers' ids, registered before
    #[arg(long, value_name = "N", default_value_t = 0)]
    parked: u64,
    /// Only these
    #[arg(
        long,
        value_name = "STEP,…",
        value_delimiter = ',',
        default_value = "post,put,batch-post,batch-put,stream-post,stream-put,cancel"
    )]
    steps: Vec<Step>,
}

#[derive(Args)]
struct PacedArgs {
    /// Timers a second
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = positive)]
    rate: f64,
    /// How many seconds they are registered
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = positive)]
    seconds: f64,
    /// Connections that register
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count)]
    connections: u64,
    /// The shortest time from registration to due
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = input::duration)]
    ahead_min: Duration,
    /// The longest
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = input::duration)]
    ahead_max: Duration,
    /// Far-future timers registered before
    #[arg(long, value_name = "N", default_value_t = 0)]
    parked: u64,
}

#[derive(Args)]
struct BurstArgs {
    /// How many timers, one measurement each
    #[arg(long, value_name = "N,…", default_value = "20000", value_delimiter = ',', value_parser = count)]
    count: Vec<u64>,
    /// All due at one millisecond
    #[arg(long)]
    same_ms: bool,
    /// From the first registration to the first due time [default: 10s and a second for every 3000 timers]
    #[arg(long, value_name = "DURATION", value_parser = input::duration)]
    ahead: Option<Duration>,
    /// Far-future timers registered before
    #[arg(long, value_name = "N", default_value_t = 0)]
    parked: u64,
}

#[derive(Args)]
struct ParkedArgs {
    /// Far-future timers
    #[arg(long, value_name = "N", default_value_t = plan::MANY, value_parser = count)]
    parked: u64,
    /// Let the service name them
    #[arg(long)]
    server_ids: bool,
    /// Timers to weigh in Redis
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    promoted: u64,
    #[command(flatten)]
    beside: BesideArgs,
}

/// What is measured beside parked timers.
#[derive(Args)]
struct BesideArgs {
    /// Timers of each step of register
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count)]
    count: u64,
    /// Connections of single calls, one measurement each
    #[arg(long, value_name = "N,…", default_value = "512", value_delimiter = ',', value_parser = count)]
    connections: Vec<u64>,
    /// Timers a second, paced
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = positive)]
    rate: f64,
    /// How many seconds
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = positive)]
    seconds: f64,
    /// Timers of the burst
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count)]
    burst: u64,
}

#[derive(Args)]
struct KilledArgs {
    /// Timers due within one second
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count)]
    count: u64,
    /// From the first registration to the first due time [default: 10s and a second for every 3000 timers]
    #[arg(long, value_name = "DURATION", value_parser = input::duration)]
    ahead: Option<Duration>,
    /// Far-future timers registered before
    #[arg(long, value_name = "N", default_value_t = 0)]
    parked: u64,
}

#[derive(Args)]
struct SinksArgs {
    /// Only these kinds [default: all that this build has]
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Timers of a burst, due within one second
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count)]
    count: u64,
    /// Timers a second at a steady rate
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = count)]
    rate: u64,
    /// How many seconds that lasts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count)]
    seconds: u64,
}

#[derive(Args)]
struct QueueArgs {
    /// Timers that are ready, for each number of workers
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count)]
    count: u64,
    /// Workers, each on a connection of its own; one measurement each
    #[arg(long, value_name = "N,…", default_value = "1,16,200", value_delimiter = ',', value_parser = count)]
    workers: Vec<u64>,
    /// Items of a lease
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count)]
    max: u64,
    /// Timers a second at a steady rate
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = count)]
    rate: u64,
    /// How many seconds that lasts; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 20)]
    seconds: u64,
    /// Workers that wait then
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = count)]
    waiting: u64,
}

#[derive(Args)]
struct SchedulesArgs {
    /// Rules
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count)]
    count: u64,
    /// From one occurrence of a rule to its next
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = input::duration)]
    every: Duration,
    /// Occurrences of each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count)]
    times: u64,
    /// How long nothing is due first; 0s leaves it out
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = input::duration)]
    idle: Duration,
    /// Connections that put the rules
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count)]
    connections: u64,
}

#[derive(Args)]
struct IdleArgs {
    /// Far-future timers
    #[arg(long, value_name = "N", default_value_t = plan::MANY)]
    parked: u64,
    /// How many seconds nothing is done
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = positive)]
    seconds: f64,
    /// How long server and stores may get over being filled
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = input::duration)]
    settle: Duration,
}

/// Runs one `bench` verb.
pub async fn run(bench: &Bench, json: bool) -> anyhow::Result<Exit> {
    let options = bench.shared.options()?;
    let scenarios = bench.verb.scenarios();
    if let Some(scenario) = scenarios.iter().find(|scenario| scenario.restarts() && options.server.is_some())
    {
        return Err(usage(format!(
            "{} kills the server, and a running one is not the bench's to kill; leave --server out",
            scenario.name()
        )));
    }
    if let Some(scenario) =
        scenarios.iter().find(|scenario| options.namespaces > 0 && !scenario.has_namespaces())
    {
        return Err(usage(format!(
            "{} is measured in one namespace; leave --namespaces out",
            scenario.name()
        )));
    }
    if let Some(base) = &bench.shared.server {
        // A call that needs the key, so that neither a wrong one nor a wrong address is found out halfway.
        let key = options.server.as_ref().and_then(|endpoint| endpoint.key.as_deref());
        Client::of(base, key)?.ask(reqwest::Method::GET, "/v1/ledger", &[]).await?;
    }
    let report = bench::run(&options, &scenarios, &interrupted()?).await?;
    let text = if json { serde_json::to_string(&report)? } else { shown(&report) };
    out::verdict(&text, exit(&report))
}

/// A loss weighs more than a call that failed.
fn exit(report: &Report) -> Exit {
    let failed = report.rows.iter().any(|row| row.figures.get(Figure::Failed) > Some(0.0));
    match (report.clean, failed) {
        (false, _) => Exit::Loss,
        (true, true) => Exit::Failed,
        (true, false) => Exit::Ok,
    }
}

fn shown(report: &Report) -> String {
    let mut text = format!("{}, {}, {} bytes of data", report.cold, report.hot, report.payload_bytes);
    if report.hosts > 1 {
        text += &format!(", {} receivers", report.hosts);
    }
    if report.reply_delay_ms > 0.0 {
        text += &format!(", answered after {} ms", report.reply_delay_ms);
    }
    text += "\n\n";
    text += &out::table(&cells(&report.rows));
    for row in &report.rows {
        if let Some(note) = &row.note {
            text += &format!("\n{} {}: {}", row.scenario, row.step, out::short(note, 400));
        }
    }
    text
}

impl Shared {
    fn options(&self) -> anyhow::Result<Options> {
        if self.payload_bytes < MIN_PAYLOAD {
            return Err(usage(format!(
                "--payload-bytes: at least {MIN_PAYLOAD}, which hold a timer's number"
            )));
        }
        if let Some(url) = &self.cold_url {
            let mut config = Config::default();
            config.cold.url.clone_from(url);
            let kind = config.cold_kind()?;
            // Every node of the bench reads it from a directory of its own.
            if kind == ColdKind::Sqlite && !url.starts_with("sqlite:///") {
                return Err(usage("--cold-url: name the SQLite file from the root, sqlite:///DIR/FILE"));
            }
        }
        let server = match &self.server {
            Some(base) => {
                let key = match &self.key_file {
                    Some(path) => Some(input::secret_file("--key-file", path)?),
                    None => std::env::var("MAINSPRING_API_KEY").ok().filter(|key| !key.trim().is_empty()),
                };
                let key = key.map(|key| key.trim().to_owned());
                let endpoint = Endpoint::parse(base, key);
                Some(endpoint.ok_or_else(|| {
                    usage(format!("--server: `{base}` is no URL such as http://127.0.0.1:7600"))
                })?)
            }
            None => None,
        };
        Ok(Options {
            stores: Choice { cold: self.cold_url.clone(), hot: self.hot_url.clone(), reuse: self.reuse },
            server,
            sets: self.server_sets.clone(),
            runs: self.runs,
            payload_bytes: self.payload_bytes,
            receivers: Receivers { hosts: self.hosts, reply_delay: self.reply_delay },
            wait: self.wait,
            namespaces: self.namespaces,
            subscribed: self.subscribed,
            batch: usize::try_from(self.batch)?,
            bulk_connections: usize::try_from(self.bulk_connections)?,
            progress: out::note,
        })
    }
}

impl Verb {
    fn scenarios(&self) -> Vec<Scenario> {
        match self {
            Self::Register(args) => vec![Scenario::Register(args.scenario())],
            Self::Paced(args) => vec![Scenario::Paced(args.scenario())],
            Self::Burst(args) => vec![Scenario::Burst(args.scenario())],
            Self::Parked(args) => vec![Scenario::Parked(args.scenario())],
            Self::Recover(args) => {
                vec![Scenario::Recover(Recover { count: args.count, ahead: args.ahead, parked: args.parked })]
            }
            Self::Crash(args) => vec![plan::crash(args.count, args.ahead, args.parked)],
            Self::Idle(args) => vec![Scenario::Idle(args.scenario())],
            Self::Sinks(args) => vec![Scenario::Sinks(args.scenario())],
            Self::Queue(args) => vec![Scenario::Queue(args.scenario())],
            Self::Schedules(args) => vec![Scenario::Schedules(args.scenario())],
            Self::All { quick: true } => plan::quick(),
            Self::All { quick: false } => plan::figures(),
        }
    }
}

impl RegisterArgs {
    fn scenario(&self) -> Register {
        let connections = connections(&self.connections);
        Register { steps: self.steps.clone(), count: self.count, connections, parked: self.parked }
    }
}

impl PacedArgs {
    fn scenario(&self) -> Paced {
        Paced {
            rate: self.rate,
            seconds: self.seconds,
            connections: usize::try_from(self.connections).unwrap_or(1),
            ahead_min: self.ahead_min,
            ahead_max: self.ahead_max.max(self.ahead_min),
            parked: self.parked,
        }
    }
}

impl BurstArgs {
    fn scenario(&self) -> Burst {
        Burst { counts: self.count.clone(), same_ms: self.same_ms, ahead: self.ahead, parked: self.parked }
    }
}

impl ParkedArgs {
    fn scenario(&self) -> Parked {
        let beside = &self.beside;
        Parked {
            count: self.parked,
            ids: if self.server_ids { Ids::Server } else { Ids::Caller },
            promoted: self.promoted,
            register: Register {
                steps: vec![Step::Post, Step::Put, Step::BatchPut, Step::Cancel],
                count: beside.count,
                connections: connections(&beside.connections),
                parked: 0,
            },
            paced: plan::paced(beside.rate, beside.seconds),
            burst: Burst { counts: vec![beside.burst], same_ms: false, ahead: None, parked: 0 },
        }
    }
}

impl IdleArgs {
    fn scenario(&self) -> Idle {
        Idle { parked: self.parked, span: Duration::from_secs_f64(self.seconds), settle: self.settle }
    }
}

impl QueueArgs {
    fn scenario(&self) -> Queue {
        let many = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Queue {
            count: self.count,
            workers: self.workers.iter().copied().map(many).collect(),
            max: self.max,
            rate: self.rate,
            seconds: self.seconds,
            waiting: many(self.waiting),
        }
    }
}

impl SchedulesArgs {
    fn scenario(&self) -> Schedules {
        Schedules {
            count: self.count,
            every: self.every,
            times: self.times,
            idle: self.idle,
            connections: self.connections,
        }
    }
}

impl SinksArgs {
    fn scenario(&self) -> Sinks {
        let built = || Kind::ALL.into_iter().filter(|kind| kind.is_built()).collect();
        let kinds = if self.kinds.is_empty() { built() } else { self.kinds.clone() };
        Sinks { kinds, count: self.count, rate: self.rate, seconds: self.seconds }
    }
}

fn connections(given: &[u64]) -> Vec<usize> {
    given.iter().map(|&count| usize::try_from(count).unwrap_or(1)).collect()
}

/// At least one.
fn count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "a whole number from 1 up".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let positive = |number: &f64| number.is_finite() && *number > 0.0;
    text.parse().ok().filter(positive).ok_or_else(|| "a number above 0".to_owned())
}

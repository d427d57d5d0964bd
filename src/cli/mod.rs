//! The command line: `serve`, the client of the REST API, and the tools.
//!
//! Data goes to stdout, everything else to stderr. Exit codes are in `exit.rs`. When the reader of stdout goes away early
//! (`… | head`), the verb ends without a message.

mod arrival;
mod bench;
mod client;
mod completions;
mod config;
mod delivery;
mod destination;
mod doctor;
mod drill;
mod exit;
mod input;
mod key;
mod look;
mod man;
mod namespace;
mod operation;
mod out;
mod put;
mod queue;
mod receive;
mod report;
mod restore;
mod schedule;
mod show;
mod signature;
mod store;
mod subscription;
mod template;
mod timer;
mod watch;
mod which;

use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use client::Remote;
use config::Settings;
use exit::Exit;

use crate::config::LogFormat;

/// A durable alarm-clock service: register a wake-up over REST, be called back at the right second.
#[derive(Parser)]
#[command(
    name = "mainspring",
    version,
    max_term_width = 110,
    after_help = "\
Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 conflict, 5 unavailable, 6 verify, bench or drill found a loss."
)]
struct Cli {
    /// Print JSON: one object, or one object a line
    #[arg(long, global = true, display_order = 900)]
    json: bool,
    // For the verbs that read settings; `timer` and `receive` read none.
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the service
    Serve(Serve),
    /// Register, read, change and cancel timers on a running server
    Timer(Remote<timer::Verb>),
    /// Name places for deliveries, with their credentials and limits; try, pause and remove them
    Destination(Remote<destination::Verb>),
    /// Fetch what is due as a worker does, and settle it; see and pause queues
    Queue(Remote<queue::Verb>),
    /// Rules that make timers: cron, intervals, times of day
    Schedule(Remote<schedule::Verb>),
    /// Do one thing to every timer that a filter matches
    Operation(Remote<operation::Verb>),
    /// Subscribe to lifecycle events of timers, and see what waits to be sent
    Subscription(Remote<subscription::Verb>),
    /// Name JSON Schemas with defaults that the data of timers is checked against
    Template(Remote<template::Verb>),
    /// Let several teams share the store, and say what each may use
    Namespace(Remote<namespace::Verb>),
    /// Make, list and revoke API keys, in the database of the settings or on a running server
    Key(key::Key),
    /// Watch the wheels of a running server
    Wheel(Remote<watch::Verb>),
    /// Show which receiver fails, since when, and what waits for it
    Receivers(look::Receivers),
    /// Show how much is due when, on a running server
    Forecast(look::Forecast),
    /// Print deliveries as they arrive: a receiver for trials
    Receive(receive::Receive),
    /// Bring the database's schema up to this version
    #[command(subcommand)]
    Migrate(store::Migrate),
    /// Decide on what a restored store holds
    #[command(subcommand)]
    Restore(restore::Restore),
    /// Check from SQL that no timer is lost; exit code 6 if one is
    Verify(Settings),
    /// Measure rates, lateness and cost, on a server of its own or a running one
    Bench(Box<bench::Bench>),
    /// Rehearse a failure on nodes and servers of its own, and check the promises; exit code 6 if one is broken
    Drill(Box<drill::DrillArgs>),
    /// Print or check the settings
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Check everything that a server needs; exit code 1 if a check fails
    Doctor(doctor::Doctor),
    /// Print the completion script of a shell
    Completions(completions::Completions),
    /// Print mainspring(1), or write a manual page for each verb
    Man(man::Man),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring serve\n    \
      everything in one process, on SQLite in mainspring.db here\n  \
    mainspring serve --cold-url postgres://mainspring@db/mainspring --hot-url redis://cache --node-name n1\n    \
      one node of several that share a PostgreSQL and a Redis\n\n\
    On Ctrl-C or SIGTERM it finishes the attempts under way, then it stops.")]
struct Serve {
    /// Address and port of API, docs page and metrics; the same as --set server.listen=ADDR
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The database, sqlite://FILE or postgres://…; the same as --set cold.url=URL
    #[arg(long, value_name = "URL")]
    cold_url: Option<String>,
    /// The wheels, memory://, redis://… or redis+cluster://…; the same as --set hot.url=URL
    #[arg(long, value_name = "URL")]
    hot_url: Option<String>,
    /// This node's name among several; the same as --set node.name=NAME
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

/// Reads the command line and runs its verb. Must be called in a Tokio runtime with I/O and time.
pub async fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(why) => {
            // Help and version come here too. A stdout that nobody reads is no failure.
            let _ = why.print();
            return if why.use_stderr() { Exit::Usage } else { Exit::Ok }.into();
        }
    };
    let ended = dispatch(&cli).await.unwrap_or_else(|why| {
        report::show(&why);
        exit::of(&why)
    });
    ended.into()
}

async fn dispatch(cli: &Cli) -> anyhow::Result<Exit> {
    match &cli.verb {
        Verb::Serve(serve) => {
            let settings = serve.settings(cli);
            let config = settings.load()?;
            let format = config.log.format;
            match crate::app::serve(config, Box::new(move || settings.load())).await {
                // The last line of a log of JSON is JSON too. Before the log is set up there is only stderr.
                Err(why) if format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR) => {
                    tracing::error!("{}", report::message(&why));
                    Ok(exit::of(&why))
                }
                ended => ended.map(|()| Exit::Ok),
            }
        }
        Verb::Timer(at) => timer::run(at.client()?, &at.verb, cli.json).await,
        Verb::Destination(at) => destination::run(at.client()?, &at.verb, cli.json).await,
        Verb::Queue(at) => queue::run(at.client()?, &at.verb, cli.json).await,
        Verb::Schedule(at) => schedule::run(at.client()?, &at.verb, cli.json).await,
        Verb::Operation(at) => operation::run(at.client()?, &at.verb, cli.json).await,
        Verb::Subscription(at) => subscription::run(at.client()?, &at.verb, cli.json).await,
        Verb::Template(at) => template::run(at.client()?, &at.verb, cli.json).await,
        Verb::Namespace(at) => namespace::run(at.client()?, &at.verb, cli.json).await,
        Verb::Key(key) => key::run(key, &cli.settings, cli.json).await,
        Verb::Wheel(at) => watch::run(at.client()?, &at.verb, cli.json).await,
        Verb::Receivers(args) => look::receivers(args, cli.json).await,
        Verb::Forecast(args) => look::forecast(args, cli.json).await,
        Verb::Receive(receive) => receive::run(receive, cli.json).await,
        Verb::Migrate(verb) => store::migrate(verb, &cli.settings, cli.json).await,
        Verb::Restore(verb) => restore::run(verb, &cli.settings, cli.json).await,
        Verb::Verify(settings) => store::verify(&cli.settings.and(settings), cli.json).await,
        Verb::Bench(bench) => bench::run(bench, cli.json).await,
        Verb::Drill(args) => drill::run(args, cli.json).await,
        Verb::Config(verb) => config::run(verb, &cli.settings, cli.json),
        Verb::Doctor(doctor) => doctor::run(doctor, &cli.settings, cli.json).await,
        Verb::Completions(args) => completions::run(args, Cli::command(), cli.json),
        Verb::Man(args) => man::run(args, Cli::command(), cli.json),
    }
}

/// A token that Ctrl-C and SIGTERM cancel, so that a verb can end what it has started.
fn interrupted() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (asked, mut terminate) = (stop.clone(), signal(SignalKind::terminate())?);
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        out::note("stopping");
        asked.cancel();
    });
    Ok(stop)
}

impl Serve {
    /// The settings with those of its own flags. `--json` sets the format of the log: `serve` prints no data.
    fn settings(&self, cli: &Cli) -> Settings {
        let flags = [
            ("server.listen", &self.listen),
            ("cold.url", &self.cold_url),
            ("hot.url", &self.hot_url),
            ("node.name", &self.node_name),
        ];
        let sets = flags.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_deref()?)));
        let json = cli.json.then(|| "log.format=json".to_owned());
        cli.settings.and(&self.settings).and_sets(sets.chain(json).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("mainspring").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_line_is_read_or_refused() {
        for good in [
            "serve",
            "serve --listen 127.0.0.1:1 --hot-url redis://a --set shards=8",
            "--set shards=8 serve",
            "timer put a --in 5s --webhook http://a/",
            "timer put --at 2026-12-01T09:00:00Z --webhook http://a/ --json",
            "timer put a --local 2026-12-01T09:00 --zone Asia/Shanghai --webhook http://a/ --again",
            "timer put a --in 5s --webhook http://a/ --grace 1h --then expire --attempts 3 --precision minute --spread 5m",
            "timer get a --attempts --server http://a",
            "timer explain a --json",
            "timer --server http://a ls --state dead --label a=b --limit 5",
            "timer move a --in 1h",
            "timer cancel a",
            "timer ls --id a --id b --receiver http://a:81",
            "timer ls --destination a",
            "timer put a --in 5s --destination shop-orders --priority high --attempts 3",
            "destination put a --webhook http://a/ --secret s --concurrency 7 --rate 5 --timeout 3s",
            "destination put a --redis redis://h --stream s --max-len 9 --password-file f --rate 5",
            "destination set a --header X-A:b --attempts 3 --retry-first 1s --retry-cap 1m --no-rate",
            "destination get a --json",
            "destination --server http://a ls",
            "destination test a",
            "destination pause a",
            "destination resume a",
            "destination rm a",
            "destination redrive a --since 2026-12-01T09:00:00Z --until 2026-12-01T10:00:00Z",
            "operation redrive --destination a --label b=c --id d --dry-run",
            "operation ls --json",
            "schedule put a --cron @daily --webhook http://a",
            "schedule put a --every 15m --destination b --overlap queue_one --missed skip --missed-within 1h",
            "schedule put a --daily 09:00 --every-days 2 --zone UTC --webhook http://a --max-occurrences 3 --json",
            "schedule ls --state paused --label a=b --limit 5",
            "schedule backfill a --from 2026-12-01T00:00:00Z --to 2026-12-02T00:00:00Z",
            "schedule next a --count 3",
            "schedule skipped a --limit 5",
            "schedule upcoming",
            "operation get op_00000000000000000000000000000001",
            "operation --server http://a stop op_00000000000000000000000000000001",
            "subscription put a --destination log --event timer.dead --label app=shop --include-data",
            "subscription get a --json",
            "subscription --server http://a ls",
            "subscription rm a",
            "namespace put a --live-timers 5 --payload-bytes 9 --horizon 30d",
            "namespace get a",
            "namespace ls --in-namespace b",
            "namespace rm a",
            "template put a --schema {} --defaults {}",
            "template put a --schema-file s.json --defaults-file -",
            "template get a --json",
            "template --server http://a ls",
            "template rm a",
            "key create a --scope register --expires-in 90d",
            "key create a --scope admin --namespace * --expires-at 2099-01-01T00:00:00Z --set shards=8 --json",
            "key create a --scope view --certificate a.pem",
            "key --server http://a ls",
            "key revoke key_0123456789abcdef --config x.toml",
            "timer put a --in 5s --destination b --template review --data {}",
            "forecast",
            "forecast --from 2026-12-01T09:00:00Z --for 10m --step 1m --json",
            "receivers --server http://a",
            "wheel watch --json --server http://a",
            "receive --fail 2 --status 503 --delay 500ms --count 3",
            "migrate up",
            "verify --json",
            "config check",
            "doctor --config x.toml",
            "doctor --only server,wheels --set shards=8",
            "completions bash",
            "man",
            "man pages --json",
            "bench all --quick --json",
            "bench register --steps post,cancel --connections 8 --count 100 --set shards=8 --set lease=PT1S",
            "bench --runs 3 burst --count 20000,200000 --ahead 30s --cold-url postgres://a/b --hot-url redis://a",
            "bench paced --rate 50 --seconds 1 --server http://a",
            "drill kill",
            "drill all --embedded --seeds 5 --json --report a.json",
            "drill redis-flush --seed 7 --rate 1000 --window-timers 200000 --lease 1s --set dispatch.concurrency=8",
            "drill kill --cold-url postgres://a/b --hot-url redis://c --destroy c:6379",
        ] {
            assert!(parse(good).is_ok(), "{good}: {}", parse(good).err().unwrap());
        }
        for bad in [
            "",
            "drill",
            "timer schedule a",
            "timer put a --webhook http://a/",
            "timer put a --in 5s",
            "timer put a --in 5s --at 2026-12-01T09:00:00Z --webhook http://a/",
            "timer put a --local 2026-12-01T09:00 --webhook http://a/",
            "timer put a --in 5s --zone UTC --webhook http://a/",
            "timer put --in 5s --webhook http://a/ --again",
            "timer put a --in 5s --webhook http://a/ --grace 1h",
            "timer put a --in soon --webhook http://a/",
            "timer put a/b --in 5s --webhook http://a/",
            "timer move a",
            "timer ls --state asleep",
            "timer ls --destination a:b",
            "timer put a --in 5s --webhook http://a/ --destination b",
            "timer put a --in 5s --destination b --secret s",
            "timer put a --in 5s --destination b --secret-file s",
            "timer put a --in 5s --destination b --header X-A:b",
            "timer put a --in 5s --webhook http://a/ --priority urgent",
            "key",
            "key create a",
            "key create a --scope root",
            "key create a --scope view --expires-in 1d --expires-at 2099-01-01T00:00:00Z",
            "key revoke a",
            "destination",
            "destination put a",
            "destination put a b --webhook http://a/",
            "destination put .. --webhook http://a/",
            "destination put a --webhook http://a/ --secret s --secret-file f",
            "destination put a --webhook http://a/ --no-rate",
            "destination put a --redis redis://h --webhook http://a/",
            "destination put a --redis redis://h --stream s --secret x",
            "destination put a --webhook http://a/ --stream s",
            "destination set a --password-file f",
            "destination set a --rate 5 --no-rate",
            "destination set a --timeout soon",
            "destination get",
            "subscription put a",
            "subscription put a --destination b:c",
            "subscription put a --destination b --label x",
            "template put a",
            "template put a --schema {} --schema-file s.json",
            "template put a:b --schema {}",
            "timer put a --in 5s --destination b --template c:d",
            "destination get a:b",
            "destination redrive a",
            "destination redrive a --since yesterday",
            "operation",
            "operation explode --owner a",
            "schedule put a --webhook http://a",
            "schedule put a --every 15m --daily 09:00 --webhook http://a",
            "schedule put a --every 15m",
            "schedule put a --every soon --webhook http://a",
            "schedule backfill a",
            "schedule next a --count 0",
            "schedule get a/b",
            "operation shift --owner a",
            "operation shift --by soon --owner a",
            "operation get 7",
            "wheel",
            "forecast --from tomorrow",
            "forecast --to 2026-12-01T09:00:00Z --for 1h",
            "receive --status 99",
            "receive --count 0",
            "timer ls --set shards=8",
            "doctor --only redis",
            "completions",
            "completions tcsh",
            "man a b",
            "bench",
            "bench register --steps guess",
            "bench paced --rate 0",
            "bench burst --server http://a --set shards=8",
            "bench burst --reuse",
            "drill kil",
            "drill kill --cold-url postgres://a/b --hot-url redis://c",
            "drill kill --embedded --nodes 2",
            "drill kill --nodes 0",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_hold_before_and_after_the_verb() {
        let cli = parse("--config /dev/null --set lease=PT5S serve --set shards=8 --node-name 7");
        let cli = cli.unwrap_or_else(|why| panic!("{why}"));
        let Verb::Serve(serve) = &cli.verb else { panic!("another verb") };
        let config = serve.settings(&cli).load().unwrap();
        assert_eq!(
            (config.lease.to_string().as_str(), config.shards, config.node.name.as_str()),
            ("PT5S", 8, "7")
        );
    }
}

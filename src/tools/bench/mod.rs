//! Measures a server from outside, as its callers and its receivers see it.
//!
//! A *scenario* makes an [`Env`] (stores of its own, a server of its own or a running one, a receiver),
//! does its *steps* once for each run, and gives a [`Row`] for each. It believes only what it sees itself:
//! acknowledgements, and deliveries at its own receiver by this machine's clock. CPU and memory come from `/proc`
//! and from the stores. A figure that cannot be measured is left out, never zero.
//!
//! Load and receiver share the machine with the server, so both use little of it: prepared bytes over raw
//! connections, one thread each.
//!
//! | room | what it is for |
//! |---|---|
//! | [`scenario`] | the measurements, a file each |
//! | [`load`], [`timers`] | the calls: many connections, numbered timers |
//! | [`receiver`] | deliveries, counted and judged |
//! | [`cost`], [`figures`] | CPU and memory, medians, rows |

pub mod cost;
pub mod figures;
pub mod load;
pub mod receiver;
pub mod scenario;
mod subscribed;
pub mod timers;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::node::NodeProcess;
use super::proc::{used_by, used_by_postgres};
use super::servers::{Choice, RedisInfo, Stores, free_port};
use crate::clock::{Clock, SystemClock, wall_us};
use crate::limits;
use cost::Reading;
use figures::{Figure, Figures, Row, with_medians};
use load::{Endpoint, Job, LoadResult};
use receiver::{Receiver, Receivers, Verdict};
use scenario::Scenario;
use timers::{Due, Ids, Shape, mix, namespace};

/// A server with many parked timers reads nothing before it is ready, but the machine may be busy.
const READY: Duration = Duration::from_secs(120);
/// A server that takes longer to stop is killed.
const STOP: Duration = Duration::from_secs(30);
/// How long repeats are waited for after the last timer has come.
const LINGER: Duration = Duration::from_secs(1);

/// What all scenarios of a call have in common.
#[derive(Debug, Clone)]
pub struct Options {
    /// The stores of the server that the bench starts; of a running one, those to be weighed.
    pub stores: Choice,
    /// A running server; without one, each scenario starts its own.
    pub server: Option<Endpoint>,
    /// Settings of the own server, `section.key=value`.
    pub sets: Vec<String>,
    /// How often each step is done.
    pub runs: u32,
    /// How long the payload is, in bytes.
    pub payload_bytes: usize,
    /// Who receives.
    pub receivers: Receivers,
    /// How long a delivery may fail to come before it is lost.
    pub wait: Duration,
    /// Timers in a batch.
    pub batch: usize,
    /// Connections that send batches and streams.
    pub bulk_connections: usize,
    /// Namespaces that the own server gets, and the timers go to, `batch` in a row to each; 0 is none.
    pub namespaces: u32,
    /// Somebody subscribes to every lifecycle event.
    pub subscribed: bool,
    /// Shows a line of progress.
    pub progress: fn(&str),
}

/// What came out.
#[derive(Debug, serde::Serialize)]
pub struct Report {
    /// The cold store, without its password.
    pub cold: String,
    /// The hot store, likewise.
    pub hot: String,
    /// How long the payload was.
    pub payload_bytes: usize,
    /// How many receivers there were.
    pub hosts: u32,
    /// How long they took to answer, in milliseconds.
    pub reply_delay_ms: f64,
    /// Whether nothing was lost, early, or fired anew.
    pub clean: bool,
    /// The measurements.
    pub rows: Vec<Row>,
}

/// The bench was told to stop.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Does the scenarios one after another. When `stop` comes, it ends what it has started.
///
/// A scenario that fails fails alone if there are others: hours of figures are not thrown away for one.
pub async fn run(
    options: &Options,
    scenarios: &[Scenario],
    stop: &CancellationToken,
) -> anyhow::Result<Report> {
    // Callers and receivers need more files than a shell gives as a rule.
    limits::raise();
    let mut rows = Vec::new();
    for scenario in scenarios {
        match one(options, scenario, stop).await.with_context(|| scenario.name()) {
            Ok(measured) => rows.extend(measured),
            Err(why) if scenarios.len() == 1 => return Err(why),
            Err(why) => {
                let mut row = Row::new(scenario.name(), "not done");
                row.figures.set(Figure::Failed, 1.0);
                row.note = Some(format!("{why:#}"));
                rows.push(row);
            }
        }
        if stop.is_cancelled() {
            break;
        }
    }
    let bad = |row: &Row| {
        [Figure::Lost, Figure::Early, Figure::Refired].iter().any(|&bad| row.figures.get(bad) > Some(0.0))
    };
    let clean = !rows.iter().any(bad);
    let (cold, hot) = match (&options.server, options.stores.shown()) {
        (Some(_), _) if options.stores.cold.is_none() => ("of the server".into(), "of the server".into()),
        (_, shown) => shown,
    };
    let Options { payload_bytes, receivers: Receivers { hosts, reply_delay }, .. } = *options;
    let reply_delay_ms = reply_delay.as_secs_f64() * 1000.0;
    Ok(Report { cold, hot, payload_bytes, hosts, reply_delay_ms, clean, rows: with_medians(rows) })
}

async fn one(options: &Options, scenario: &Scenario, stop: &CancellationToken) -> anyhow::Result<Vec<Row>> {
    let mut env = Env::new(options)?;
    let measured = match env.open().await {
        // Opening is not interrupted: a database that is made has to be known to be dropped.
        Ok(()) => tokio::select! {
            rows = measure(&mut env, scenario) => rows,
            () = stop.cancelled() => Err(Interrupted.into()),
        },
        Err(why) => Err(why),
    };
    let closed = env.close().await;
    measured.and_then(|rows| closed.map(|()| rows))
}

async fn measure(env: &mut Env, scenario: &Scenario) -> anyhow::Result<Vec<Row>> {
    env.start().await?;
    env.subscribe().await?;
    scenario.run(env).await
}

/// What one scenario works with.
pub struct Env {
    options: Options,
    tag: String,
    dir: PathBuf,
    stores: Option<Stores>,
    node: Option<NodeProcess>,
    endpoint: Endpoint,
    receiver: Receiver,
    shape: Shape,
    postmaster: Option<u32>,
    next: u64,
}

impl Env {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let tag = uuid::Uuid::now_v7().simple().to_string();
        let tag = tag.get(..20).unwrap_or(&tag).to_owned();
        let seed = tag.bytes().fold(wall_us().unsigned_abs(), |seed, byte| mix(seed ^ u64::from(byte)));
        let receiver = Receiver::start(mix(seed), options.receivers)?;
        let (hosts, payload_bytes) = (options.receivers.hosts, options.payload_bytes);
        let target = serde_json::json!({"webhook": {"url": receiver.url()}}).to_string();
        let mut shape = Shape { target, hosts, namespaces: options.namespaces, turn: 1, payload_bytes, seed };
        shape.turn = load::batch_size(&shape, options.batch);
        let dir = std::env::temp_dir().join(format!("mainspring-bench-{tag}"));
        std::fs::create_dir(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
        let endpoint = options.server.clone().unwrap_or(Endpoint {
            address: String::new(),
            prefix: String::new(),
            key: None,
        });
        Ok(Self {
            options: options.clone(),
            tag,
            dir,
            stores: None,
            node: None,
            endpoint,
            receiver,
            shape,
            postmaster: None,
            next: 0,
        })
    }

    /// Opens the stores.
    async fn open(&mut self) -> anyhow::Result<()> {
        let mut choice = self.options.stores.clone();
        let running = self.options.server.is_some();
        if !running || choice.cold.is_some() {
            choice.reuse |= running;
            self.stores = Some(Stores::open(&choice, &self.tag, &self.dir).await?);
        }
        if let Some(stores) = &mut self.stores {
            self.postmaster = stores.postmaster().await;
        }
        Ok(())
    }

    /// Starts the server, or looks whether the running one answers.
    async fn start(&mut self) -> anyhow::Result<()> {
        if self.options.server.is_some() {
            self.endpoint.get("/readyz").await.context("the server is not ready")?;
            return Ok(());
        }
        let Some(stores) = &self.stores else { bail!("a server needs stores") };
        let mut sets = vec![
            format!("cold.url={}", stores.cold),
            format!("hot.url={}", stores.hot),
            format!("namespace={}", stores.namespace),
            "node.name=bench".to_owned(),
            "log.filter=warn".to_owned(),
        ];
        sets.extend(self.options.sets.iter().cloned());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        self.endpoint.address = address.to_string();
        let node = self.node.insert(NodeProcess::new(self.dir.clone(), address, sets));
        node.start()?;
        node.ready(READY).await?;
        for nth in 0..u64::from(self.options.namespaces) {
            self.endpoint.put(&format!("/v1/namespaces/{}", namespace(nth)), "{}").await?;
        }
        Ok(())
    }

    /// Ends the server and removes what was made.
    async fn close(&mut self) -> anyhow::Result<()> {
        let stopped = match &mut self.node {
            // One that does not stop in time is killed.
            Some(node) => match node.end(Signal::TERM, STOP).await {
                Ok(_) => Ok(()),
                Err(_) => node.end(Signal::KILL, STOP).await.map(drop),
            },
            None => Ok(()),
        };
        if let Some(tail) = self.node.as_ref().map(NodeProcess::log_tail).filter(|tail| !tail.is_empty()) {
            self.say(&format!("the end of the server's log:\n{tail}"));
        }
        let closed = match &mut self.stores {
            Some(stores) => stores.close().await,
            None => Ok(()),
        };
        // What stays is small and in the directory for such things.
        let _ = std::fs::remove_dir_all(&self.dir);
        stopped.and(closed)
    }

    fn say(&self, line: &str) {
        (self.options.progress)(line);
    }

    /// Kills the server.
    async fn kill(&mut self) -> anyhow::Result<()> {
        let node = self.node.as_mut().context("a running server is not killed")?;
        node.end(Signal::KILL, STOP).await.map(drop)
    }

    /// Starts the server after [`Env::kill`] and notes how long it takes to be ready. Returns the moment just
    /// before the start, in microseconds since the Unix epoch.
    async fn restart(&mut self, figures: &mut Figures) -> anyhow::Result<i64> {
        let node = self.node.as_mut().context("a running server is not started")?;
        let began_us = wall_us();
        node.start()?;
        node.ready(READY).await?;
        figures.set(Figure::Ready, (wall_us() - began_us) as f64 / 1e6);
        Ok(began_us)
    }

    /// The next `count` timers.
    fn job(&mut self, ids: Ids, due: Due, count: u64) -> Job {
        // A namespace's turn begins with the first of a job, so that a batch is all of one.
        let first = self.next.next_multiple_of(self.shape.turn);
        self.next = first + count;
        Job { endpoint: self.endpoint.clone(), shape: self.shape.clone(), ids, due, first, count }
    }

    /// Registers in batches.
    async fn batches(&self, job: Job) -> anyhow::Result<LoadResult> {
        load::batches(job, self.options.bulk_connections, self.options.batch).await
    }

    /// Registers timers that are due in one to three years. Fails if any of them is refused.
    async fn park(&mut self, count: u64, ids: Ids) -> anyhow::Result<Option<LoadResult>> {
        if count == 0 {
            return Ok(None);
        }
        self.say(&format!("parking {count} timers"));
        let job = self.job(ids, Due::FAR, count);
        let load = self.batches(job).await?;
        require_complete(&load)?;
        Ok(Some(load))
    }

    /// What server, stores and bench have used until now.
    async fn reading(&mut self) -> Reading {
        let metrics = self.endpoint.get("/metrics").await.unwrap_or_default();
        let metrics = String::from_utf8_lossy(&metrics);
        let server = match &self.node {
            Some(node) => node.process().map(|process| used_by(process.pid())).unwrap_or_default(),
            None => cost::used_by_metrics(&metrics),
        };
        let redis = match &mut self.stores {
            Some(stores) => stores.redis_info().await,
            None => RedisInfo::default(),
        };
        let postgres = self.postmaster.map(used_by_postgres).unwrap_or_default();
        Reading::now(server, postgres, redis, &metrics)
    }

    async fn sql_bytes(&mut self) -> Option<f64> {
        self.stores.as_mut()?.sql_bytes().await
    }

    /// Waits until `count` timers have come, or until none has for the time that makes it lost.
    async fn received(&self, count: u64, last_due: crate::model::time::UnixMs) {
        let patience = i64::try_from(self.options.wait.as_millis()).unwrap_or(i64::MAX);
        while self.receiver.distinct() < count {
            let last_ms = self.receiver.last_at_us().unwrap_or(0) / 1000;
            if SystemClock.now().get() > last_due.get().max(last_ms).saturating_add(patience) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits a moment for repeats, and judges what has come.
    async fn verdict(&self, load: &LoadResult) -> Verdict {
        tokio::time::sleep(LINGER).await;
        self.receiver.judge(&load.failed)
    }

    /// Live timers, by the server's own count.
    async fn pending(&self) -> anyhow::Result<i64> {
        #[derive(serde::Deserialize)]
        struct Ledger {
            pending: i64,
        }
        let ledger: Ledger = serde_json::from_slice(&self.endpoint.get("/v1/ledger").await?)?;
        Ok(ledger.pending)
    }
}

/// Fails unless all was acknowledged.
fn require_complete(load: &LoadResult) -> anyhow::Result<()> {
    match &load.why {
        Some(why) => bail!(
            "{} of {} were not registered: {why}",
            load.failed.len(),
            load.done + load.failed.len() as u64
        ),
        None => Ok(()),
    }
}

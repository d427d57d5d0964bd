//! The nodes and stores of a drill, with a fault proxy between each node and each store.
//!
//! By default the drill starts a PostgreSQL and a Redis itself, in a directory that goes when the drill ends. On
//! given servers it makes a database beside the one that is named; it can cut connections to them and empty Redis,
//! but not stop what it has not started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::lookup_host;
use url::Url;

use super::brokers::Brokers;
use super::history::source_of;
use super::plan::{NEAR_MS, TIMEOUT_MS, WINDOW_MS};
use super::proxy::Proxy;
use crate::tools::brokers::Kind;
use crate::tools::node::NodeProcess;
use crate::tools::process::Process;
use crate::tools::servers::{Choice, FakeClock, Keeps, Postgres, Redis, SmallDisk, Stores, free_port};

/// How long a node may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// How long a node may take to stop.
const STOP: Duration = Duration::from_secs(40);

/// The file of an embedded store.
const SQLITE: &str = "drill.db";

/// The size of a small disk in MiB: a new PostgreSQL with its log of changes, and what a drill writes.
const SMALL_DISK_MIB: u32 = 256;

/// How to have brokers.
const INSTALL: &str =
    "on Debian and Ubuntu: apt-get install rabbitmq-server mosquitto nats-server redis-server";

/// What a drill needs of its cluster beside nodes and stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// How many files each node may have open, if that is limited.
    pub files: Option<u64>,
    /// A PostgreSQL whose clock can be set.
    pub clock: bool,
    /// A cold store on a disk that can be filled.
    pub small_disk: bool,
    /// A broker of each of these kinds; `Some` of none where it needs one and there is none.
    pub brokers: Option<Vec<Kind>>,
}

impl Needs {
    /// Fails, with the reason, if this machine does not have it.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.clock {
            FakeClock::library()?;
        }
        if self.small_disk {
            SmallDisk::may_be_mounted()?;
        }
        let Some(brokers) = &self.brokers else { return Ok(()) };
        ensure!(!brokers.is_empty(), "there is none of the brokers that it can do this to; {INSTALL}");
        brokers.iter().try_for_each(|kind| kind.check())
    }
}

/// Where a drill takes place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// One node on SQLite with its wheels in process.
    Embedded,
    /// PostgreSQL and Redis of the drill's own.
    Own,
    /// A PostgreSQL and a Redis that were set aside for drills.
    Given {
        /// The database beside which one is made.
        cold: String,
        /// The Redis, which is emptied.
        hot: String,
    },
}

impl Environment {
    /// Its name in verdicts.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Own => "own PostgreSQL and Redis",
            Self::Given { .. } => "given PostgreSQL and Redis",
        }
    }
}

/// One node.
pub struct Node {
    /// Its number, from 0.
    pub number: u8,
    /// The proxy before the cold store; none on SQLite.
    pub to_cold: Option<Proxy>,
    /// The proxy before the wheels.
    pub to_hot: Option<Proxy>,
    process: NodeProcess,
}

/// Servers of the drill's own.
pub struct OwnServers {
    /// The cold store.
    pub postgres: Postgres,
    /// The wheels.
    pub redis: Redis,
}

/// Nodes and stores.
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The servers, if they are the drill's own.
    pub own: Option<OwnServers>,
    /// The brokers; none but in drills of brokers.
    pub brokers: Brokers,
    /// The disk of the cold store, if it is one that can be filled.
    pub disk: Option<SmallDisk>,
    /// What was made on given servers.
    given: Option<Stores>,
    /// The URL of the wheels, past any proxy.
    pub hot: Option<String>,
    /// The URL of PostgreSQL, past any proxy; none on SQLite.
    pub cold: Option<String>,
    // Last: everything else ends before its files go.
    dir: TempDir,
}

impl Cluster {
    /// Prepares stores and starts `nodes` nodes, all ready. `sets` are further settings for them.
    pub async fn open(
        environment: &Environment,
        nodes: u8,
        lease_ms: u64,
        sets: &[String],
        needs: &Needs,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("mainspring-drill").tempdir()?;
        // PostgreSQL runs as another user when we are root, and must be able to enter.
        #[cfg(unix)]
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let mut cluster = Self {
            nodes: Vec::new(),
            own: None,
            brokers: Brokers::start(needs.brokers.as_deref().unwrap_or_default(), dir.path()).await?,
            disk: None,
            given: None,
            hot: None,
            cold: None,
            dir,
        };
        let (cold, hot) = cluster.stores(environment, needs).await?;
        for number in 0..nodes {
            let mut node = cluster.node(number, &cold, hot.as_deref(), lease_ms, sets).await?;
            if let Some(files) = needs.files {
                node.process.limit_files(files);
            }
            cluster.nodes.push(node);
        }
        for node in &mut cluster.nodes {
            node.start()?;
        }
        for node in &cluster.nodes {
            node.ready().await?;
        }
        Ok(cluster)
    }

    /// A directory on the disk of nodes and stores; `None` if the stores may be on another machine. Not on one that the
    /// drill fills.
    pub fn dir(&self) -> Option<&Path> {
        self.given.is_none().then(|| self.dir.path())
    }

    /// The URLs of the cold store and of the wheels; no second one for wheels in process.
    async fn stores(
        &mut self,
        environment: &Environment,
        needs: &Needs,
    ) -> anyhow::Result<(String, Option<String>)> {
        let dir = self.dir.path().to_owned();
        let make_dir = |name: &str| -> anyhow::Result<PathBuf> {
            let path = dir.join(name);
            std::fs::create_dir(&path)?;
            Ok(path)
        };
        let cold_dir = make_dir("cold")?;
        if needs.small_disk {
            self.disk = Some(SmallDisk::mount(&cold_dir, SMALL_DISK_MIB)?);
        }
        let (cold, hot) = match environment {
            Environment::Embedded => (format!("sqlite://{}/{SQLITE}", cold_dir.display()), None),
            Environment::Own => {
                let redis_dir = make_dir("redis")?;
                let clock = needs.clock.then(|| FakeClock::new(&dir)).transpose()?;
                let (postgres, redis) = tokio::try_join!(
                    Postgres::start_with(&cold_dir, None, clock),
                    Redis::start(&redis_dir, None, Keeps::Writes)
                )?;
                let urls = (postgres.create_database("drill").await?, Some(redis.url()));
                self.own = Some(OwnServers { postgres, redis });
                urls
            }
            Environment::Given { cold, hot } => {
                let tag = uuid::Uuid::now_v7().simple().to_string();
                let choice = Choice { cold: Some(cold.clone()), hot: Some(hot.clone()), reuse: false };
                let stores = Stores::open(&choice, &tag[12..], self.dir.path()).await?;
                let urls = (stores.cold.clone(), Some(stores.hot.clone()));
                self.given = Some(stores);
                urls
            }
        };
        self.hot.clone_from(&hot);
        self.cold = hot.is_some().then(|| cold.clone());
        Ok((cold, hot))
    }

    /// The file of the cold store, if that is SQLite.
    pub fn sqlite(&self) -> PathBuf {
        self.dir.path().join("cold").join(SQLITE)
    }

    async fn node(
        &self,
        number: u8,
        cold: &str,
        hot: Option<&str>,
        lease_ms: u64,
        sets: &[String],
    ) -> anyhow::Result<Node> {
        let seconds = |ms: u64| format!("PT{}S", ms as f64 / 1000.0);
        let dir = self.dir.path().join(format!("node{number}"));
        std::fs::create_dir(&dir)?;
        let mut settings = vec![
            format!("node.name=node{number}"),
            format!("lease={}", seconds(lease_ms)),
            format!("wheel.window={}", seconds(WINDOW_MS.unsigned_abs())),
            format!("wheel.near={}", seconds(NEAR_MS.unsigned_abs())),
            format!("webhook.timeout={}", seconds(TIMEOUT_MS)),
            format!("webhook.source_address={}", source_of(number)),
            "log.filter=info".to_owned(),
        ];
        let (mut to_cold, mut to_hot) = (None, None);
        if let Some(hot) = hot {
            let (proxy, url) = through_proxy(cold, 5432).await?;
            settings.push(format!("cold.url={url}"));
            to_cold = Some(proxy);
            let (proxy, url) = through_proxy(hot, 6379).await?;
            settings.push(format!("hot.url={url}"));
            to_hot = Some(proxy);
        } else {
            settings.push(format!("cold.url={cold}"));
        }
        if let Some(given) = &self.given {
            settings.push(format!("namespace={}", given.namespace));
        }
        settings.extend_from_slice(sets);
        let process = NodeProcess::new(dir, SocketAddr::from(([127, 0, 0, 1], free_port()?)), settings);
        Ok(Node { number, to_cold, to_hot, process })
    }

    /// Where the nodes answer, `http://host:port`.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.process.address())).collect()
    }

    /// Where the nodes listen.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.process.address()).collect()
    }

    /// Stops all nodes in order, and removes what was made on given servers.
    pub async fn close(mut self) -> anyhow::Result<()> {
        // At once: none of them takes over what another gives up.
        futures::future::try_join_all(self.nodes.iter_mut().map(Node::stop)).await?;
        match &mut self.given {
            Some(given) => given.close().await,
            None => Ok(()),
        }
    }

    /// Keeps the nodes' logs in another directory.
    pub fn keep_logs(&self, to: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(to)?;
        self.nodes
            .iter()
            .try_for_each(|node| node.process.keep_log(&to.join(format!("node{}.log", node.number))))
    }
}

impl Node {
    /// Starts it; does not wait.
    pub fn start(&mut self) -> anyhow::Result<()> {
        self.process.start()
    }

    /// Waits until it is ready; fails when it ends instead.
    pub async fn ready(&self) -> anyhow::Result<()> {
        self.process.ready(READY).await.with_context(|| format!("node {}", self.number))
    }

    /// Its process. Fails when it does not run.
    pub fn process(&self) -> anyhow::Result<&Process> {
        self.process.process().context("the node does not run")
    }

    /// SIGKILL; returns how it ended, in words.
    pub async fn kill(&mut self) -> anyhow::Result<String> {
        self.end(Signal::KILL).await
    }

    /// SIGTERM; returns when it is gone, and how it ended.
    pub async fn stop(&mut self) -> anyhow::Result<String> {
        self.end(Signal::TERM).await
    }

    async fn end(&mut self, signal: Signal) -> anyhow::Result<String> {
        let ended = self.process.end(signal, STOP).await?;
        Ok(ended.map_or_else(|| "was gone".into(), |(pid, exit)| format!("pid {pid}: {}", exit.status)))
    }
}

/// A proxy before the server of a URL, and the URL through it.
async fn through_proxy(url: &str, port: u16) -> anyhow::Result<(Proxy, String)> {
    let mut url = Url::parse(url).context("the store's URL cannot be read")?;
    let host = url.host_str().context("the store's URL names no host")?.to_owned();
    let upstream = lookup_host((host.as_str(), url.port().unwrap_or(port))).await?.next();
    let proxy = Proxy::start(upstream.context("the store's host has no address")?).await?;
    let changed = url.set_host(Some(&proxy.address().ip().to_string())).is_ok()
        && url.set_port(Some(proxy.address().port())).is_ok();
    if !changed {
        bail!("the store's URL cannot be led through a proxy");
    }
    Ok((proxy, url.into()))
}

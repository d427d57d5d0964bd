//! The field of a drill: throwaway stores, nodes of its own, and a fault proxy between each node and each
//! store.
//!
//! On its own ground (the default) it starts PostgreSQL and Redis itself, in a directory that goes when the
//! drill ends. On given ground it makes a database beside the one that is named, and can cut ways to the
//! servers and empty Redis, but not stop what it has not started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::lookup_host;
use url::Url;

use super::ground::{Keeps, Postgres, Redis, free_port};
use super::history::source_of;
use super::plan::{NEAR_MS, TIMEOUT_MS, WINDOW_MS};
use super::process::{self, Process, log_tail};
use super::proxy::Proxy;
use crate::clock::Monotonic;
use crate::tools::bench::stores::{Choice, Stores};

/// How long a node may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// How long a node may take for an orderly stop.
const STOP: Duration = Duration::from_secs(40);

/// On what a drill takes place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ground {
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

impl Ground {
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
    /// The process, while there is one.
    pub process: Option<Process>,
    /// Its way to the cold store; none on SQLite.
    pub to_cold: Option<Proxy>,
    /// Its way to the wheels.
    pub to_hot: Option<Proxy>,
    listen: SocketAddr,
    log: PathBuf,
    dir: PathBuf,
    sets: Vec<String>,
}

/// Servers of the drill's own.
pub struct OwnServers {
    /// The cold store.
    pub postgres: Postgres,
    /// The wheels.
    pub redis: Redis,
}

/// Nodes and stores.
pub struct Field {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The servers, if they are the drill's own.
    pub own: Option<OwnServers>,
    /// What was made on given ground.
    given: Option<Stores>,
    /// The URL of the wheels, past any proxy.
    pub hot: Option<String>,
    // Last: everything else ends before its files go.
    dir: TempDir,
}

impl Field {
    /// Prepares stores and starts `nodes` nodes, all ready. `sets` are further settings for them.
    pub async fn open(ground: &Ground, nodes: u8, lease_ms: u64, sets: &[String]) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("mainspring-drill").tempdir()?;
        // PostgreSQL runs as another user when we are root, and must be able to enter.
        #[cfg(unix)]
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let mut field = Self { nodes: Vec::new(), own: None, given: None, hot: None, dir };
        let (cold, hot) = field.stores(ground).await?;
        for number in 0..nodes {
            let node = field.node(number, &cold, hot.as_deref(), lease_ms, sets).await?;
            field.nodes.push(node);
        }
        for node in &mut field.nodes {
            node.start()?;
        }
        for node in &field.nodes {
            node.ready().await?;
        }
        Ok(field)
    }

    /// A directory on the disk on which the stores are, if they are on this machine for all one can know.
    pub fn disk(&self) -> Option<&Path> {
        self.given.is_none().then(|| self.dir.path())
    }

    async fn stores(&mut self, ground: &Ground) -> anyhow::Result<(String, Option<String>)> {
        let tag = uuid::Uuid::now_v7().simple().to_string();
        Ok(match ground {
            Ground::Embedded => (format!("sqlite://{}/drill.db", self.dir.path().display()), None),
            Ground::Own => {
                let place = |name: &str| -> anyhow::Result<PathBuf> {
                    let path = self.dir.path().join(name);
                    std::fs::create_dir(&path)?;
                    Ok(path)
                };
                let (at_postgres, at_redis) = (place("postgres")?, place("redis")?);
                let (postgres, redis) = tokio::try_join!(
                    Postgres::start(&at_postgres, None),
                    Redis::start(&at_redis, None, Keeps::Writes)
                )?;
                let cold = postgres.create_database("drill").await?;
                let hot = redis.url();
                self.own = Some(OwnServers { postgres, redis });
                (cold, Some(hot))
            }
            Ground::Given { cold, hot } => {
                let choice = Choice { cold: Some(cold.clone()), hot: Some(hot.clone()), reuse: false };
                let stores = Stores::open(&choice, &tag[12..], self.dir.path()).await?;
                let urls = (stores.cold.clone(), Some(stores.hot.clone()));
                self.given = Some(stores);
                urls
            }
        })
        .inspect(|(_, hot)| self.hot.clone_from(hot))
    }

    async fn node(
        &self,
        number: u8,
        cold: &str,
        hot: Option<&str>,
        lease_ms: u64,
        sets: &[String],
    ) -> anyhow::Result<Node> {
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let seconds = |ms: u64| format!("PT{}S", ms as f64 / 1000.0);
        let dir = self.dir.path().join(format!("node{number}"));
        std::fs::create_dir(&dir)?;
        let (mut to_cold, mut to_hot) = (None, None);
        let mut cold = cold.to_owned();
        if let Some(hot) = hot {
            let (proxy, url) = through(&cold, 5432).await?;
            (to_cold, cold) = (Some(proxy), url);
            to_hot = Some(through(hot, 6379).await?);
        }
        let mut all = vec![
            format!("server.listen={listen}"),
            format!("node.name=node{number}"),
            format!("cold.url={cold}"),
            format!("lease={}", seconds(lease_ms)),
            format!("wheel.window={}", seconds(WINDOW_MS.unsigned_abs())),
            format!("wheel.near={}", seconds(NEAR_MS.unsigned_abs())),
            format!("webhook.timeout={}", seconds(TIMEOUT_MS)),
            format!("webhook.source_address={}", source_of(number)),
            "log.filter=info".to_owned(),
        ];
        if let Some(given) = &self.given {
            all.push(format!("namespace={}", given.namespace));
        }
        let to_hot = to_hot.map(|(proxy, url)| {
            all.push(format!("hot.url={url}"));
            proxy
        });
        all.extend_from_slice(sets);
        let log = dir.join("log");
        Ok(Node { number, process: None, to_cold, to_hot, listen, log, dir, sets: all })
    }

    /// Where the nodes answer, `http://host:port`.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.listen)).collect()
    }

    /// Stops all nodes in order, and removes what was made on given ground.
    pub async fn close(mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            node.stop().await?;
        }
        match &mut self.given {
            Some(given) => given.close().await,
            None => Ok(()),
        }
    }

    /// Keeps the nodes' logs in another directory.
    pub fn keep_logs(&self, to: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(to)?;
        for node in &self.nodes {
            std::fs::copy(&node.log, to.join(format!("node{}.log", node.number)))?;
        }
        Ok(())
    }
}

impl Node {
    /// Starts it; does not wait.
    pub fn start(&mut self) -> anyhow::Result<()> {
        self.process = Some(process::serve(&self.dir, &self.log, &self.sets)?);
        Ok(())
    }

    /// Waits until it is ready; fails when it ends instead.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
        let began = Monotonic::now();
        for path in ["startupz", "readyz"] {
            loop {
                let answer = http.get(format!("http://{}/{path}", self.listen)).send().await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    break;
                }
                let ended = self.process.as_ref().is_none_or(|process| process.ended().is_some());
                if ended || began.elapsed() > READY {
                    bail!(
                        "node {} does not get ready; the end of its log:\n{}",
                        self.number,
                        log_tail(&self.log, 20)
                    );
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// SIGKILL; returns how it ended, in words.
    pub async fn kill(&mut self) -> anyhow::Result<String> {
        self.end(Signal::KILL).await
    }

    /// SIGTERM, and returns when it is gone.
    pub async fn stop(&mut self) -> anyhow::Result<String> {
        self.end(Signal::TERM).await
    }

    async fn end(&mut self, signal: Signal) -> anyhow::Result<String> {
        let Some(process) = self.process.take() else { return Ok("was gone".into()) };
        let exit = process.end_with(signal, STOP).await?;
        Ok(format!("pid {}: {}", process.pid(), exit.status))
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.ended().is_none())
    }
}

/// A proxy before the server of a URL, and the URL through it.
async fn through(url: &str, port: u16) -> anyhow::Result<(Proxy, String)> {
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

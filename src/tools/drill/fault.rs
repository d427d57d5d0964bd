//! Faults: how each is injected and healed, and what proves that it landed.

use std::time::Duration;

use anyhow::{Context, bail};
use deadpool_redis::redis;

use super::cluster::{Cluster, Node, OwnServers};
use super::history::{Affected, Fault, Micros, Recorder};
use super::proxy::{Commits, Proxy};
use crate::clock::wall_us;

/// Deliveries of this long before a fault show that its node was at work.
const AT_WORK_US: Micros = 2_000_000;

/// How much longer a slow connection takes, in each direction.
const SLOW: Duration = Duration::from_millis(20);

/// One kind of fault, and which node it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// SIGTERM, and started again when it has stopped.
    Restart(u8),
    /// SIGKILL.
    Kill(u8),
    /// SIGSTOP.
    Pause(u8),
    /// FLUSHALL.
    RedisFlush,
    /// SIGKILL, and its files with it.
    RedisKill,
    /// Back to a copy that was made when the fault began. The rollback itself happens when it heals.
    RedisRollback,
    /// SIGSTOP.
    RedisStop,
    /// An immediate stop, as in a crash.
    PostgresKill,
    /// A fast stop.
    PostgresStop,
    /// A node's next transactions are committed, and it does not learn of it.
    CommitCut(u8),
    /// A node is cut off from the cold store: its connections break.
    CutFromCold(u8),
    /// A node's connections to the cold store stay open, and nothing passes.
    FrozenFromCold(u8),
    /// A node is cut off from the wheels.
    CutFromHot(u8),
    /// All nodes' connections to the cold store are slow.
    SlowCold,
    /// All nodes are killed.
    Outage,
}

impl FaultKind {
    /// Its name in verdicts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Restart(_) => "restart",
            Self::Kill(_) => "kill",
            Self::Pause(_) => "pause",
            Self::RedisFlush => "redis-flush",
            Self::RedisKill => "redis-kill",
            Self::RedisRollback => "redis-rollback",
            Self::RedisStop => "redis-stop",
            Self::PostgresKill => "postgres-kill",
            Self::PostgresStop => "postgres-stop",
            Self::CommitCut(_) => "commit-cut",
            Self::CutFromCold(_) => "cut from PostgreSQL",
            Self::FrozenFromCold(_) => "frozen from PostgreSQL",
            Self::CutFromHot(_) => "cut from Redis",
            Self::SlowCold => "slow to PostgreSQL",
            Self::Outage => "outage",
        }
    }

    /// What it needs for itself: two faults at once need two resources.
    pub const fn resource(self) -> Resource {
        match self {
            Self::Restart(node)
            | Self::Kill(node)
            | Self::Pause(node)
            | Self::CommitCut(node)
            | Self::CutFromCold(node)
            | Self::FrozenFromCold(node)
            | Self::CutFromHot(node) => Resource::Node(node),
            Self::RedisFlush | Self::RedisKill | Self::RedisRollback | Self::RedisStop => Resource::Redis,
            Self::PostgresKill | Self::PostgresStop => Resource::Postgres,
            Self::Outage | Self::SlowCold => Resource::All,
        }
    }

    /// Whether it needs servers that the drill has started itself.
    pub const fn needs_own_servers(self) -> bool {
        matches!(self.resource(), Resource::Redis | Resource::Postgres) && !matches!(self, Self::RedisFlush)
    }

    /// What it affects, for the checker.
    fn affected(self, cluster: &Cluster) -> Affected {
        match self {
            Self::Restart(node) => Affected::Orderly(vec![node]),
            Self::Pause(node) => Affected::Paused(vec![node]),
            Self::Kill(node)
            | Self::CommitCut(node)
            | Self::CutFromCold(node)
            | Self::FrozenFromCold(node) => Affected::Nodes(vec![node]),
            Self::CutFromHot(_)
            | Self::RedisFlush
            | Self::RedisKill
            | Self::RedisRollback
            | Self::RedisStop => Affected::Hot,
            Self::PostgresKill | Self::PostgresStop => Affected::Cold,
            Self::SlowCold => Affected::Slow(cluster.nodes.iter().map(|node| node.number).collect()),
            Self::Outage => Affected::Nodes(cluster.nodes.iter().map(|node| node.number).collect()),
        }
    }
}

/// What a fault needs for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// A node or its connections.
    Node(u8),
    /// The wheels.
    Redis,
    /// The cold store.
    Postgres,
    /// Everything.
    All,
}

/// A fault that was injected and is not healed yet.
#[derive(Debug)]
pub struct ActiveFault {
    kind: FaultKind,
    from_us: Micros,
    landed: Option<String>,
    /// A counter as it stood before.
    before: u64,
}

impl ActiveFault {
    /// Its kind.
    pub const fn kind(&self) -> FaultKind {
        self.kind
    }
}

/// Injects a fault.
pub async fn inject(
    cluster: &mut Cluster,
    recorder: &Recorder,
    kind: FaultKind,
) -> anyhow::Result<ActiveFault> {
    let mut active = ActiveFault { kind, from_us: wall_us(), landed: None, before: 0 };
    let at_work = |node: u8| recorder.arrived_from(node, wall_us() - AT_WORK_US);
    match kind {
        FaultKind::Restart(number) | FaultKind::Kill(number) => {
            let busy = at_work(number);
            let node = node(cluster, number)?;
            let end = match kind {
                FaultKind::Restart(_) => node.stop().await?,
                _ => node.kill().await?,
            };
            active.landed = (busy > 0).then(|| format!("{end}, after {busy} deliveries within 2 s"));
        }
        FaultKind::Outage => {
            let mut busy = 0;
            for number in cluster.nodes.iter().map(|node| node.number).collect::<Vec<_>>() {
                busy += at_work(number);
                node(cluster, number)?.kill().await?;
            }
            active.landed = (busy > 0).then(|| format!("all nodes gone, after {busy} deliveries within 2 s"));
        }
        FaultKind::Pause(number) => {
            let busy = at_work(number);
            let process = node(cluster, number)?.process()?;
            process.pause()?;
            let pid = process.pid();
            active.landed =
                (busy > 0).then(|| format!("pid {pid} stands, after {busy} deliveries within 2 s"));
        }
        FaultKind::RedisFlush => {
            let url = cluster.hot.clone().context("there is no Redis to empty")?;
            let (before, after) = flush(&url).await?;
            active.landed = (before > 0 && after < before).then(|| format!("{before} keys gone"));
        }
        FaultKind::RedisKill => {
            let own = own(cluster)?;
            let keys = own.redis.dbsize().await.unwrap_or(0);
            own.redis.kill_and_empty().await?;
            active.landed = (keys > 0).then(|| format!("gone with {keys} keys"));
        }
        FaultKind::RedisRollback => own(cluster)?.redis.save_copy().await?,
        FaultKind::RedisStop => {
            let own = own(cluster)?;
            own.redis.stop()?;
            active.landed = Some(format!("pid {} stands", own.redis.pid()));
        }
        FaultKind::PostgresKill => {
            own(cluster)?.postgres.kill_immediate().await?;
            active.landed = Some("ended as in a crash".into());
        }
        FaultKind::PostgresStop => {
            own(cluster)?.postgres.stop_fast().await?;
            active.landed = Some("ended".into());
        }
        FaultKind::CommitCut(number) => {
            let proxy = node(cluster, number)?.to_cold.as_ref().context("SQLite has no connection to cut")?;
            active.before = proxy.counts().commits_cut;
            proxy.cut_after_commit(3, Commits::AndWrites);
        }
        FaultKind::CutFromCold(number) | FaultKind::CutFromHot(number) => {
            let proxy = proxy(node(cluster, number)?, kind)?;
            active.before = proxy.counts().cut;
            proxy.cut();
        }
        FaultKind::FrozenFromCold(number) => proxy(node(cluster, number)?, kind)?.freeze(),
        FaultKind::SlowCold => {
            for node in &cluster.nodes {
                proxy(node, kind)?.delay(SLOW);
            }
        }
    }
    Ok(active)
}

/// Heals it. A node that was ended is started, and not waited for.
pub async fn heal(cluster: &mut Cluster, active: ActiveFault) -> anyhow::Result<Fault> {
    let ActiveFault { kind, mut from_us, mut landed, before } = active;
    match kind {
        FaultKind::Restart(number) | FaultKind::Kill(number) => node(cluster, number)?.start()?,
        FaultKind::Outage => {
            for node in &mut cluster.nodes {
                node.start()?;
            }
        }
        FaultKind::Pause(number) => {
            node(cluster, number)?.process()?.resume()?;
        }
        FaultKind::RedisFlush => {}
        FaultKind::RedisKill => own(cluster)?.redis.start_again().await?,
        FaultKind::RedisRollback => {
            from_us = wall_us();
            let redis = &mut own(cluster)?.redis;
            let now = redis.dbsize().await?;
            redis.roll_back().await?;
            let then = redis.dbsize().await?;
            landed = Some(format!("{now} keys became {then} older ones"));
        }
        FaultKind::RedisStop => own(cluster)?.redis.resume()?,
        FaultKind::PostgresKill | FaultKind::PostgresStop => own(cluster)?.postgres.start_again().await?,
        FaultKind::CommitCut(number) => {
            let proxy = node(cluster, number)?.to_cold.as_ref().context("SQLite has no connection to cut")?;
            proxy.pass();
            let cut = proxy.counts().commits_cut - before;
            landed = (cut > 0).then(|| format!("{cut} commits were not told"));
        }
        FaultKind::CutFromCold(number) | FaultKind::CutFromHot(number) => {
            let proxy = proxy(node(cluster, number)?, kind)?;
            proxy.pass();
            let cut = proxy.counts().cut - before;
            landed = (cut > 0).then(|| format!("{cut} connections were cut"));
        }
        FaultKind::SlowCold => {
            for node in &cluster.nodes {
                proxy(node, kind)?.pass();
            }
            landed = Some(format!("{} ms more, each way", SLOW.as_millis()));
        }
        FaultKind::FrozenFromCold(number) => {
            let proxy = proxy(node(cluster, number)?, kind)?;
            let held = proxy.counts().open;
            proxy.pass();
            landed = (held > 0).then(|| format!("{held} connections were held"));
        }
    }
    let affected = kind.affected(cluster);
    Ok(Fault { kind: kind.name(), affected, from_us, until_us: wall_us(), landed })
}

fn node(cluster: &mut Cluster, number: u8) -> anyhow::Result<&mut Node> {
    cluster.nodes.iter_mut().find(|node| node.number == number).context("there is no such node")
}

fn own(cluster: &mut Cluster) -> anyhow::Result<&mut OwnServers> {
    cluster.own.as_mut().context("only what the drill has started can be stopped")
}

fn proxy(node: &Node, kind: FaultKind) -> anyhow::Result<&Proxy> {
    let proxy = match kind {
        FaultKind::CutFromHot(_) => &node.to_hot,
        _ => &node.to_cold,
    };
    proxy.as_ref().context("an embedded store has no connection to cut")
}

/// Empties a Redis; returns how many keys it had before and after.
async fn flush(url: &str) -> anyhow::Result<(u64, u64)> {
    let client = redis::Client::open(url)?;
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let work = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let before: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await?;
        let () = redis::cmd("FLUSHALL").query_async(&mut connection).await?;
        let after: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await?;
        anyhow::Ok((before, after))
    };
    match tokio::time::timeout(Duration::from_secs(10), work).await {
        Ok(done) => done,
        Err(_) => bail!("Redis does not answer"),
    }
}

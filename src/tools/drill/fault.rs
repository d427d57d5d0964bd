//! Faults: how each is injected and healed, and what shows that it landed.

use std::time::Duration;

use anyhow::{Context, bail};
use deadpool_redis::redis;

use super::field::{Field, Node, OwnServers};
use super::history::{Book, Fault, Struck, Us};
use super::proxy::{Commits, Proxy};
use crate::clock::wall_us;

/// Deliveries of this long before a fault show that its node was at work.
const AT_WORK_US: Us = 2_000_000;

/// What a slow way takes longer, in each direction.
const SLOW: Duration = Duration::from_millis(20);

/// One kind of fault, and whom it strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
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
    /// Back to a copy that was made when the fault began; struck when it heals.
    RedisRollback,
    /// SIGSTOP.
    RedisStop,
    /// An immediate stop, as in a crash.
    PostgresKill,
    /// A fast stop.
    PostgresStop,
    /// A node's next transactions are committed, and it is not told.
    CommitCut(u8),
    /// A node is cut off from the cold store: its connections break.
    CutFromCold(u8),
    /// A node's way to the cold store swallows everything.
    FrozenFromCold(u8),
    /// A node is cut off from the wheels.
    CutFromHot(u8),
    /// All nodes' ways to the cold store are slow.
    SlowCold,
    /// All nodes are killed.
    Outage,
}

impl Strike {
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

    /// What it takes hold of; two strikes at once need two things.
    pub const fn hold(self) -> Hold {
        match self {
            Self::Restart(node)
            | Self::Kill(node)
            | Self::Pause(node)
            | Self::CommitCut(node)
            | Self::CutFromCold(node)
            | Self::FrozenFromCold(node)
            | Self::CutFromHot(node) => Hold::Node(node),
            Self::RedisFlush | Self::RedisKill | Self::RedisRollback | Self::RedisStop => Hold::Redis,
            Self::PostgresKill | Self::PostgresStop => Hold::Postgres,
            Self::Outage | Self::SlowCold => Hold::All,
        }
    }

    /// Whether it needs servers that the drill has started itself.
    pub const fn needs_own_servers(self) -> bool {
        matches!(self.hold(), Hold::Redis | Hold::Postgres) && !matches!(self, Self::RedisFlush)
    }

    fn struck(self, field: &Field) -> Struck {
        match self {
            Self::Restart(node) => Struck::Orderly(vec![node]),
            Self::Kill(node)
            | Self::Pause(node)
            | Self::CommitCut(node)
            | Self::CutFromCold(node)
            | Self::FrozenFromCold(node) => Struck::Nodes(vec![node]),
            Self::CutFromHot(_)
            | Self::RedisFlush
            | Self::RedisKill
            | Self::RedisRollback
            | Self::RedisStop => Struck::Hot,
            Self::PostgresKill | Self::PostgresStop => Struck::Cold,
            Self::SlowCold => Struck::Slow(field.nodes.iter().map(|node| node.number).collect()),
            Self::Outage => Struck::Nodes(field.nodes.iter().map(|node| node.number).collect()),
        }
    }
}

/// What a strike takes hold of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// A node or its ways.
    Node(u8),
    /// The wheels.
    Redis,
    /// The cold store.
    Postgres,
    /// Everything.
    All,
}

/// A fault that has been injected and not been healed.
#[derive(Debug)]
pub struct Open {
    strike: Strike,
    from_us: Us,
    landed: Option<String>,
    /// A counter as it stood before.
    before: u64,
}

impl Open {
    /// What was struck.
    pub const fn strike(&self) -> Strike {
        self.strike
    }
}

/// Injects a fault.
pub async fn inject(field: &mut Field, book: &Book, strike: Strike) -> anyhow::Result<Open> {
    let mut open = Open { strike, from_us: wall_us(), landed: None, before: 0 };
    let at_work = |node: u8| book.arrived_from(node, wall_us() - AT_WORK_US);
    match strike {
        Strike::Restart(number) => {
            let busy = at_work(number);
            let end = node(field, number)?.stop().await?;
            open.landed = (busy > 0).then(|| format!("{end}, after {busy} deliveries within 2 s"));
        }
        Strike::Kill(number) => {
            let busy = at_work(number);
            let end = node(field, number)?.kill().await?;
            open.landed = (busy > 0).then(|| format!("{end}, after {busy} deliveries within 2 s"));
        }
        Strike::Outage => {
            let mut busy = 0;
            for number in field.nodes.iter().map(|node| node.number).collect::<Vec<_>>() {
                busy += at_work(number);
                node(field, number)?.kill().await?;
            }
            open.landed = (busy > 0).then(|| format!("all nodes gone, after {busy} deliveries within 2 s"));
        }
        Strike::Pause(number) => {
            let busy = at_work(number);
            let process = node(field, number)?.process.as_ref().context("the node does not run")?;
            process.pause()?;
            let pid = process.pid();
            open.landed = (busy > 0).then(|| format!("pid {pid} stands, after {busy} deliveries within 2 s"));
        }
        Strike::RedisFlush => {
            let url = field.hot.clone().context("there is no Redis to empty")?;
            let (before, after) = flush(&url).await?;
            open.landed = (before > 0 && after < before).then(|| format!("{before} keys gone"));
        }
        Strike::RedisKill => {
            let own = own(field)?;
            let keys = own.redis.dbsize().await.unwrap_or(0);
            own.redis.kill_and_empty().await?;
            open.landed = (keys > 0).then(|| format!("gone with {keys} keys"));
        }
        Strike::RedisRollback => own(field)?.redis.save_copy().await?,
        Strike::RedisStop => {
            let own = own(field)?;
            own.redis.stop()?;
            open.landed = Some(format!("pid {} stands", own.redis.pid()));
        }
        Strike::PostgresKill => {
            own(field)?.postgres.kill_immediate().await?;
            open.landed = Some("ended as in a crash".into());
        }
        Strike::PostgresStop => {
            own(field)?.postgres.stop_fast().await?;
            open.landed = Some("ended".into());
        }
        Strike::CommitCut(number) => {
            let proxy = node(field, number)?.to_cold.as_ref().context("SQLite has no connection to cut")?;
            open.before = proxy.counts().commits_cut;
            proxy.cut_after_commit(3, Commits::AndWrites);
        }
        Strike::CutFromCold(number) | Strike::CutFromHot(number) => {
            let proxy = way(node(field, number)?, strike)?;
            open.before = proxy.counts().cut;
            proxy.cut();
        }
        Strike::FrozenFromCold(number) => way(node(field, number)?, strike)?.freeze(),
        Strike::SlowCold => {
            for node in &field.nodes {
                way(node, strike)?.delay(SLOW);
            }
        }
    }
    Ok(open)
}

/// Heals it: what was stopped is started, not waited for.
pub async fn heal(field: &mut Field, open: Open) -> anyhow::Result<Fault> {
    let Open { strike, mut from_us, mut landed, before } = open;
    match strike {
        Strike::Restart(number) | Strike::Kill(number) => node(field, number)?.start()?,
        Strike::Outage => {
            for node in &mut field.nodes {
                node.start()?;
            }
        }
        Strike::Pause(number) => {
            node(field, number)?.process.as_ref().context("the node does not run")?.resume()?;
        }
        Strike::RedisFlush => {}
        Strike::RedisKill => own(field)?.redis.start_again().await?,
        Strike::RedisRollback => {
            from_us = wall_us();
            let redis = &mut own(field)?.redis;
            let now = redis.dbsize().await?;
            redis.roll_back().await?;
            let then = redis.dbsize().await?;
            landed = Some(format!("{now} keys became {then} older ones"));
        }
        Strike::RedisStop => own(field)?.redis.resume()?,
        Strike::PostgresKill | Strike::PostgresStop => own(field)?.postgres.start_again().await?,
        Strike::CommitCut(number) => {
            let proxy = node(field, number)?.to_cold.as_ref().context("SQLite has no connection to cut")?;
            proxy.pass();
            let cut = proxy.counts().commits_cut - before;
            landed = (cut > 0).then(|| format!("{cut} commits were not told"));
        }
        Strike::CutFromCold(number) | Strike::CutFromHot(number) => {
            let proxy = way(node(field, number)?, strike)?;
            proxy.pass();
            let cut = proxy.counts().cut - before;
            landed = (cut > 0).then(|| format!("{cut} connections were cut"));
        }
        Strike::SlowCold => {
            for node in &field.nodes {
                way(node, strike)?.pass();
            }
            landed = Some(format!("{} ms more, each way", SLOW.as_millis()));
        }
        Strike::FrozenFromCold(number) => {
            let proxy = way(node(field, number)?, strike)?;
            let held = proxy.counts().open;
            proxy.pass();
            landed = (held > 0).then(|| format!("{held} connections were held"));
        }
    }
    let struck = strike.struck(field);
    Ok(Fault { kind: strike.name(), struck, from_us, until_us: wall_us(), landed })
}

fn node(field: &mut Field, number: u8) -> anyhow::Result<&mut Node> {
    field.nodes.iter_mut().find(|node| node.number == number).context("there is no such node")
}

fn own(field: &mut Field) -> anyhow::Result<&mut OwnServers> {
    field.own.as_mut().context("only what the drill has started can be stopped")
}

fn way(node: &Node, strike: Strike) -> anyhow::Result<&Proxy> {
    let way = match strike {
        Strike::CutFromHot(_) => &node.to_hot,
        _ => &node.to_cold,
    };
    way.as_ref().context("an embedded store has no connection to cut")
}

/// Empties a Redis; tells how many keys there were before and after.
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

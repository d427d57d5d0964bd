//! Faults: how each is injected and healed, and what proves that it landed.

mod broker;
mod storm;
mod stranger;

use std::time::Duration;

use anyhow::{Context, bail};
use deadpool_redis::redis;
use tokio::net::TcpStream;

use super::backup;
use super::cluster::{Cluster, Node, OwnServers};
use super::history::{Affected, Fault, Micros, Recorder};
use super::proxy::{Commits, Proxy};
use super::receiver::Receivers;
use crate::clock::wall_us;
use crate::tools::brokers::{Full, Kind};
use broker::Broken;
use storm::{Raged, Storm};
use stranger::Stranger;

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
    /// Receivers answer no SYN.
    Blackhole,
    /// A thousand callers connect at once, again and again.
    Storm,
    /// A foreign session locks timers whose attempt is under way.
    LockRows,
    /// A foreign session locks the table of what has ended.
    LockHistory,
    /// PostgreSQL's clock is set an hour further.
    ClockForward,
    /// PostgreSQL's clock is set back by an hour.
    ClockBack,
    /// The disk of the cold store is full.
    DiskFull,
    /// The same, and PostgreSQL has used up the room of its log of changes: it goes down, and comes back when there is
    /// room.
    LogFull,
    /// The cold store is restored from a backup that was made when the fault began. The restore itself happens when it
    /// heals, and what is held is accepted a while later.
    Restore,
    /// SIGKILL of a broker.
    BrokerKill(Kind),
    /// SIGSTOP of a broker.
    BrokerStop(Kind),
    /// A broker refuses what it is sent.
    BrokerFull(Kind, Full),
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
            Self::Blackhole => "receivers silent",
            Self::Storm => "storm of callers",
            Self::LockRows => "claimed rows locked",
            Self::LockHistory => "history locked",
            Self::ClockForward => "clock set forward",
            Self::ClockBack => "clock set back",
            Self::DiskFull => "disk full",
            Self::LogFull => "disk full, log used up",
            Self::Restore => "restore",
            Self::BrokerKill(_) => "broker-kill",
            Self::BrokerStop(_) => "broker-stop",
            Self::BrokerFull(_, Full::Limit) => "broker full",
            Self::BrokerFull(_, Full::Alarm) => "broker short of disk",
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
            Self::PostgresKill
            | Self::PostgresStop
            | Self::LockRows
            | Self::LockHistory
            | Self::ClockForward
            | Self::ClockBack
            | Self::DiskFull
            | Self::LogFull => Resource::Postgres,
            Self::Blackhole => Resource::Receivers,
            Self::Storm => Resource::Callers,
            Self::BrokerKill(kind) | Self::BrokerStop(kind) | Self::BrokerFull(kind, _) => {
                Resource::Broker(kind)
            }
            Self::Outage | Self::SlowCold | Self::Restore => Resource::All,
        }
    }

    /// The broker that it is for.
    pub const fn broker(self) -> Option<Kind> {
        match self.resource() {
            Resource::Broker(kind) => Some(kind),
            _ => None,
        }
    }

    /// Whether it needs servers that the drill has started itself.
    pub const fn needs_own_servers(self) -> bool {
        matches!(self.resource(), Resource::Redis | Resource::Postgres)
            && !matches!(self, Self::RedisFlush | Self::LockRows | Self::LockHistory | Self::DiskFull)
    }

    /// How many seconds further PostgreSQL's clock is set.
    const fn jumps_s(self) -> i64 {
        match self {
            Self::ClockForward => 3600,
            Self::ClockBack => -3600,
            _ => 0,
        }
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
            // A restore says more of itself.
            Self::PostgresKill | Self::PostgresStop | Self::DiskFull | Self::LogFull | Self::Restore => {
                Affected::Cold
            }
            Self::ClockForward | Self::ClockBack => Affected::Clock(self.jumps_s() * 1_000_000),
            Self::SlowCold => Affected::Slow(cluster.nodes.iter().map(|node| node.number).collect()),
            Self::Blackhole => Affected::Receivers,
            Self::Storm => Affected::Callers,
            Self::BrokerKill(kind) | Self::BrokerStop(kind) | Self::BrokerFull(kind, _) => {
                Affected::Broker(kind)
            }
            Self::LockRows => Affected::Rows,
            Self::LockHistory => Affected::Ends,
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
    /// The receivers.
    Receivers,
    /// The callers.
    Callers,
    /// A broker.
    Broker(Kind),
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
    /// The foreign session.
    stranger: Option<Stranger>,
    /// When a backup was made.
    backed_up_us: Micros,
    /// The broker.
    broken: Option<Broken>,
    /// What fills the queue of receivers that are silent.
    filling: Vec<TcpStream>,
    /// The callers.
    storm: Option<Storm>,
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
    receivers: &Receivers,
    kind: FaultKind,
) -> anyhow::Result<ActiveFault> {
    let mut active = ActiveFault {
        kind,
        from_us: wall_us(),
        landed: None,
        before: 0,
        stranger: None,
        backed_up_us: 0,
        broken: None,
        filling: Vec::new(),
        storm: None,
    };
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
        FaultKind::Blackhole => active.filling = receivers.distant().close().await?,
        FaultKind::Storm => active.storm = Some(Storm::begin(cluster.listening())),
        FaultKind::LockRows | FaultKind::LockHistory => {
            let url = cluster.cold.as_ref().context("SQLite has no foreign sessions")?;
            let mut stranger = Stranger::begin(url).await?;
            if kind == FaultKind::LockRows {
                let rows = stranger.lock_claimed_rows().await?;
                active.landed = (rows > 0).then(|| format!("{rows} claimed rows locked"));
            } else {
                stranger.lock_history().await?;
            }
            // Not the time in which it looked for rows.
            active.from_us = wall_us();
            active.stranger = Some(stranger);
        }
        FaultKind::Restore => {
            backup::take(cluster).await?;
            active.backed_up_us = wall_us();
        }
        FaultKind::BrokerKill(of) | FaultKind::BrokerStop(of) | FaultKind::BrokerFull(of, _) => {
            let broken = Broken::begin(&mut cluster.brokers, recorder, kind, of).await?;
            active.from_us = broken.from_us;
            active.broken = Some(broken);
        }
        FaultKind::ClockForward | FaultKind::ClockBack => {
            let ahead_s = own(cluster)?.postgres.jump(kind.jumps_s()).await?;
            active.landed = Some(format!("it is {ahead_s:.1} s ahead of this machine's now"));
        }
        FaultKind::DiskFull | FaultKind::LogFull => {
            active.before = recorder.refused();
            cluster.disk.as_mut().context("this disk cannot be filled")?.fill()?;
            if kind == FaultKind::LogFull {
                let down = own(cluster)?.postgres.use_up_log().await;
                active.landed = down.then(|| "PostgreSQL went down".into());
            }
        }
    }
    Ok(active)
}

/// Heals it. A node that was ended is started, and not waited for.
pub async fn heal(
    cluster: &mut Cluster,
    recorder: &Recorder,
    receivers: &Receivers,
    active: ActiveFault,
) -> anyhow::Result<Fault> {
    let ActiveFault { kind, mut from_us, mut landed, before, stranger, backed_up_us, broken, filling, storm } =
        active;
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
        FaultKind::Blackhole => {
            let gate = receivers.distant();
            let (knocking, silent) = (gate.knocking().await, gate.is_silent().await);
            landed = (silent && knocking > 0).then(|| {
                format!("{knocking} connections of nodes waited at once for an answer to their SYN")
            });
            drop(filling);
            gate.open();
        }
        FaultKind::Storm => {
            let Raged { rounds, answered, idle } = storm.context("there is no storm")?.end().await?;
            landed = (answered > 0 && idle > 0).then(|| {
                format!(
                    "{rounds} times, {answered} calls answered, beside {idle} connections that said nothing"
                )
            });
        }
        FaultKind::LockRows | FaultKind::LockHistory => {
            let mut stranger = stranger.context("there is no foreign session")?;
            if kind == FaultKind::LockHistory {
                let waiting = stranger.waiting().await?;
                landed = (waiting > 0).then(|| format!("{waiting} sessions waited for it"));
            }
            stranger.leave().await?;
        }
        FaultKind::BrokerKill(_) | FaultKind::BrokerStop(_) | FaultKind::BrokerFull(..) => {
            let broken = broken.context("no broker is broken")?;
            landed = broken.end(&mut cluster.brokers, recorder, kind).await?;
        }
        FaultKind::ClockForward | FaultKind::ClockBack => {}
        FaultKind::Restore => return backup::restored(cluster, from_us, backed_up_us).await,
        FaultKind::DiskFull | FaultKind::LogFull => {
            let refused = recorder.refused() - before;
            cluster.disk.as_mut().context("this disk cannot be filled")?.make_room()?;
            // As an operator does once there is room. A PostgreSQL that found none for its log has ended.
            if let Some(own) = &mut cluster.own
                && !own.postgres.runs()
            {
                own.postgres.start_again().await?;
            }
            landed = match landed {
                None if kind == FaultKind::LogFull => None,
                None => (refused > 0).then(|| format!("{refused} calls were refused with 503")),
                Some(down) => Some(format!("{down}, {refused} calls were refused with 503")),
            };
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

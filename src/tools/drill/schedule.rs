//! The drills: the load of each, and the schedule of its faults.

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::brokers::TIMEOUT_MS;
use super::cluster::Needs;
use super::extra::FEW_FILES;
use super::fault::{FaultKind, Resource};
use super::plan::LoadShape;
use crate::tools::brokers::{Full, Kind};

/// The most timers a second whose receiver fails slowly.
const SLOW_FAILURES_PER_SECOND: u32 = 20;

/// The drills by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Drill {
    /// Each node in turn is asked to stop and started again
    Restart,
    /// Nodes are killed and come back, soon or after their lease
    Kill,
    /// Nodes stand still for half a lease to three
    Pause,
    /// Redis is emptied
    RedisFlush,
    /// Redis is killed and comes back empty
    RedisKill,
    /// Redis goes back to an older copy
    RedisRollback,
    /// Redis stands still
    RedisStop,
    /// PostgreSQL crashes
    PostgresKill,
    /// PostgreSQL is stopped for seconds
    PostgresStop,
    /// Connections break after the COMMIT, before its reply
    CommitCut,
    /// A node is cut off from one store
    Partition,
    /// The way to the cold store is slow, which makes every race wider
    SlowStore,
    /// Everything is down while timers come due
    Outage,
    /// Receivers hang, drip, fail, redirect, answer too much
    SlowHook,
    /// Many receivers answer no SYN
    Blackhole,
    /// Thousands of receivers are due in one second
    Crowd,
    /// Nodes may have few files open, and receivers keep their connections
    Fds,
    /// A thousand callers connect at once, again and again
    Storm,
    /// A foreign session locks rows, then a table
    Lock,
    /// PostgreSQL's clock jumps by an hour, forward and back
    ClockJump,
    /// The disk of the cold store is full for seconds
    DiskFull,
    /// The cold store is restored from a backup of seconds ago
    Restore,
    /// Brokers are killed and started again
    BrokerKill,
    /// Brokers stand still
    BrokerStop,
    /// Brokers are full, or short of disk
    BrokerFull,
    /// Workers of a queue are killed at work, settle too late or hang up; nodes are killed, too
    WorkerKill,
    /// Hundreds of workers wait, hang up and come again at once
    LeaseStorm,
    /// Nodes that make occurrences of schedules are killed, stand still or are asked to stop
    ScheduleTakeOver,
    /// Two random faults every ten seconds
    Compound,
}

/// One fault of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledFault {
    /// When the fault is injected, in milliseconds since the load began.
    pub from_ms: i64,
    /// When it is healed.
    pub until_ms: i64,
    /// The fault.
    pub kind: FaultKind,
}

impl Drill {
    /// All of them, in the order in which `all` runs them.
    pub const ALL: [Self; 29] = [
        Self::Restart,
        Self::Kill,
        Self::Pause,
        Self::RedisFlush,
        Self::RedisKill,
        Self::RedisRollback,
        Self::RedisStop,
        Self::PostgresKill,
        Self::PostgresStop,
        Self::CommitCut,
        Self::Partition,
        Self::SlowStore,
        Self::Outage,
        Self::SlowHook,
        Self::Blackhole,
        Self::Crowd,
        Self::Fds,
        Self::Storm,
        Self::Lock,
        Self::ClockJump,
        Self::DiskFull,
        Self::Restore,
        Self::BrokerKill,
        Self::BrokerStop,
        Self::BrokerFull,
        Self::WorkerKill,
        Self::LeaseStorm,
        Self::ScheduleTakeOver,
        Self::Compound,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether it can be done with one node on SQLite and wheels in process.
    pub const fn is_embedded(self) -> bool {
        matches!(
            self,
            Self::Restart
                | Self::Kill
                | Self::Pause
                | Self::Outage
                | Self::SlowHook
                | Self::Blackhole
                | Self::Crowd
                | Self::Fds
                | Self::Storm
                | Self::DiskFull
                | Self::Restore
                | Self::BrokerKill
                | Self::BrokerStop
                | Self::BrokerFull
                | Self::WorkerKill
                | Self::LeaseStorm
                | Self::ScheduleTakeOver
                | Self::Compound
        )
    }

    /// Whether it can be done on servers that the drill has not started.
    pub const fn is_for_given(self) -> bool {
        match self {
            Self::RedisFlush | Self::CommitCut | Self::Partition | Self::SlowStore | Self::Lock => true,
            Self::DiskFull | Self::Restore => false,
            _ => self.is_embedded(),
        }
    }

    /// What it does to brokers, in this order; nothing where it is no drill of brokers.
    const fn of_brokers(self) -> &'static [FaultKind] {
        use FaultKind::{BrokerFull, BrokerKill, BrokerStop};
        match self {
            // Mosquitto and Tansu keep what they have confirmed in memory: killed, they have lost it.
            Self::BrokerKill => &[
                BrokerKill(Kind::RedisStream),
                BrokerKill(Kind::Jetstream),
                // It takes longest to start.
                BrokerKill(Kind::Amqp),
            ],
            Self::BrokerStop => &[
                BrokerStop(Kind::RedisStream),
                BrokerStop(Kind::Jetstream),
                BrokerStop(Kind::Mqtt),
                BrokerStop(Kind::Kafka),
                BrokerStop(Kind::Amqp),
            ],
            // Mosquitto and Tansu have no limit at which they refuse.
            Self::BrokerFull => &[
                BrokerFull(Kind::RedisStream, Full::Limit),
                BrokerFull(Kind::Jetstream, Full::Limit),
                BrokerFull(Kind::Amqp, Full::Limit),
                BrokerFull(Kind::Amqp, Full::Alarm),
            ],
            _ => &[],
        }
    }

    /// The kinds of brokers that it can be done to; none where it is no drill of brokers.
    pub fn brokers(self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.of_brokers().iter().filter_map(|fault| fault.broker()).collect();
        kinds.dedup();
        kinds
    }

    /// What it needs of its cluster, where it may have brokers of these kinds.
    pub fn needs(self, brokers: &[Kind]) -> Needs {
        let theirs = self.brokers();
        let possible = || theirs.iter().copied().filter(|kind| brokers.contains(kind)).collect();
        Needs {
            brokers: (!theirs.is_empty()).then(possible),
            files: (self == Self::Fds).then_some(FEW_FILES.into()),
            clock: self == Self::ClockJump,
            small_disk: self == Self::DiskFull,
        }
    }

    /// The load.
    pub fn shape(self, rate: u32, seconds: u32) -> LoadShape {
        let (bad_receivers, failing_slowly, expiring) = match self {
            Self::SlowHook => (30, 0, 0),
            Self::Outage => (0, 0, 15),
            Self::Pause => (0, 20, 2),
            // What is an hour late by a clock that jumped may expire, and nobody can say from outside what did.
            Self::ClockJump => (0, 0, 0),
            // What is locked is claimed for seconds: those that fail slowly are.
            Self::Partition | Self::Kill | Self::PostgresStop | Self::Lock | Self::Compound => (0, 6, 2),
            _ => (0, 0, 2),
        };
        // More than these, and they keep each other waiting.
        let failing_slowly = failing_slowly.min(SLOW_FAILURES_PER_SECOND * 100 / rate.max(1));
        let distant = if self == Self::Blackhole { 40 } else { 0 };
        // Which of them go out together is known only where the clock does not jump.
        let merging = if self == Self::ClockJump { 0 } else { 6 };
        let queued = if self.of_brokers().is_empty() { 0 } else { 50 };
        LoadShape { rate, seconds, bad_receivers, distant, queued, failing_slowly, expiring, merging }
    }

    /// The faults of a seed, in order: after three seconds of health, and the last healed when the load ends.
    pub fn schedule(
        self,
        seed: u64,
        seconds: u32,
        lease_ms: i64,
        nodes: u8,
        breakable: Breakable,
        brokers: &[Kind],
    ) -> Vec<ScheduledFault> {
        // Other random numbers than the plan's: the same load meets other faults.
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x00d1_211e);
        let rng = &mut rng;
        let (first, last) = (3000, i64::from(seconds) * 1000 - 1000);
        let mut order: Vec<u8> = (0..nodes).collect();
        order.shuffle(rng);
        let node = move |round: usize| order[round % order.len()];
        let short = |rng: &mut SmallRng| rng.random_range(200..900);
        match self {
            Self::Restart => {
                let rounds = usize::from(nodes).max(2);
                let each = (last - first) / rounds as i64;
                let at = |round: usize| first + each * round as i64;
                (0..rounds).map(|round| scheduled(at(round), 100, FaultKind::Restart(node(round)))).collect()
            }
            Self::Kill => rounds(rng, first, last, 3, |round, rng| {
                let down = match round % 2 {
                    0 => lease_ms + rng.random_range(1500..2500),
                    _ => rng.random_range(100..lease_ms),
                };
                (down, FaultKind::Kill(node(round)))
            }),
            // The workers need nodes to do harm at: a single one is killed once.
            Self::WorkerKill => rounds(rng, first, last, usize::from(nodes).min(2), |round, rng| {
                let down = match round % 2 {
                    0 => rng.random_range(100..1000),
                    _ => lease_ms + rng.random_range(500..1500),
                };
                (down, FaultKind::Kill(node(round)))
            }),
            // Each is away for long enough that its shards are taken over.
            Self::ScheduleTakeOver => rounds(rng, first, last, 3, |round, rng| {
                let node = node(round);
                match round % 3 {
                    0 => (lease_ms + rng.random_range(500..1500), FaultKind::Kill(node)),
                    1 => ((lease_ms as f64 * rng.random_range(1.35..1.8)) as i64, FaultKind::Pause(node)),
                    _ => (100, FaultKind::Restart(node)),
                }
            }),
            // The first has any length. The second comes when much is under way and is just long enough for a
            // take-over: the second attempts have not ended when the node goes on.
            Self::Pause => rounds(rng, first, last, 2, |round, rng| {
                let leases =
                    if round == 1 { rng.random_range(1.35..1.55) } else { rng.random_range(0.5..3.0) };
                ((lease_ms as f64 * leases) as i64, FaultKind::Pause(node(round)))
            }),
            Self::RedisFlush => rounds(rng, first, last, 3, |_, _| (100, FaultKind::RedisFlush)),
            Self::RedisKill => rounds(rng, first, last, 2, |_, rng| (short(rng), FaultKind::RedisKill)),
            Self::RedisRollback => {
                rounds(rng, first, last, 2, |_, rng| (rng.random_range(1500..4000), FaultKind::RedisRollback))
            }
            Self::RedisStop => {
                rounds(rng, first, last, 1, |_, rng| (rng.random_range(3000..8000), FaultKind::RedisStop))
            }
            Self::PostgresKill => rounds(rng, first, last, 2, |_, rng| (short(rng), FaultKind::PostgresKill)),
            Self::PostgresStop => {
                rounds(rng, first, last, 1, |_, rng| (rng.random_range(2000..6000), FaultKind::PostgresStop))
            }
            Self::CommitCut => {
                rounds(rng, first, last, 8, |round, _| (700, FaultKind::CommitCut(node(round))))
            }
            Self::Partition => rounds(rng, first, last, 3, |round, rng| {
                let down = (lease_ms as f64 * rng.random_range(0.5..2.5)) as i64;
                let kinds = [FaultKind::CutFromCold, FaultKind::FrozenFromCold, FaultKind::CutFromHot];
                (down, kinds[round % kinds.len()](node(round)))
            }),
            Self::SlowStore => vec![scheduled(first, last - first, FaultKind::SlowCold)],
            Self::Outage => {
                rounds(rng, first, last, 1, |_, rng| (rng.random_range(6000..9000), FaultKind::Outage))
            }
            Self::SlowHook | Self::Crowd | Self::Fds | Self::LeaseStorm => Vec::new(),
            Self::Storm => vec![scheduled(first, last - first, FaultKind::Storm)],
            Self::Blackhole => vec![scheduled(first, last - first, FaultKind::Blackhole)],
            Self::Lock => rounds(rng, first, last, 2, |round, rng| {
                (rng.random_range(2000..8000), [FaultKind::LockRows, FaultKind::LockHistory][round % 2])
            }),
            // It jumps forward and back, then back and forward: at last it is right.
            Self::ClockJump => rounds(rng, first, last, 4, |round, _| {
                let jump =
                    [FaultKind::ClockForward, FaultKind::ClockBack][usize::from(matches!(round, 1 | 2))];
                (100, jump)
            }),
            Self::DiskFull => rounds(rng, first, last, 2, |round, rng| {
                let full = match (breakable, round) {
                    (Breakable::Servers, 1) => FaultKind::LogFull,
                    _ => FaultKind::DiskFull,
                };
                (rng.random_range(1500..4000), full)
            }),
            Self::Restore => {
                rounds(rng, first, last, 1, |_, rng| (rng.random_range(2500..5000), FaultKind::Restore))
            }
            Self::BrokerKill | Self::BrokerStop | Self::BrokerFull => {
                let faults = self.of_brokers().iter().copied();
                let theirs = |fault: &FaultKind| fault.broker().is_some_and(|kind| brokers.contains(&kind));
                of_brokers(rng, first, last, faults.filter(theirs).collect())
            }
            Self::Compound => compound(rng, first, last, lease_ms, nodes, breakable),
        }
    }
}

/// What a drill can break in its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakable {
    /// Nodes only.
    Nodes,
    /// Connections to stores, too.
    Connections,
    /// Stores that can be stopped, too.
    Servers,
}

const fn scheduled(from_ms: i64, lasts_ms: i64, kind: FaultKind) -> ScheduledFault {
    ScheduledFault { from_ms, until_ms: from_ms + lasts_ms, kind }
}

/// Faults one after another: each at a random moment of its share of the time, healed before the next.
fn rounds(
    rng: &mut SmallRng,
    first: i64,
    last: i64,
    rounds: usize,
    mut one: impl FnMut(usize, &mut SmallRng) -> (i64, FaultKind),
) -> Vec<ScheduledFault> {
    let each = (last - first).max(1000) / rounds as i64;
    let begin = |round: usize| first + each * round as i64;
    let mut schedule = Vec::new();
    for round in 0..rounds {
        let (lasts, kind) = one(round, rng);
        let lasts = lasts.min(each - 200).max(100);
        let from = begin(round) + rng.random_range(0..=(each - lasts).max(1) / 2);
        schedule.push(scheduled(from, lasts, kind));
    }
    schedule
}

/// One after another where they are of one broker; those of several may last at the same time: each is longer than an
/// attempt may take, if the load is long enough.
fn of_brokers(rng: &mut SmallRng, first: i64, last: i64, faults: Vec<FaultKind>) -> Vec<ScheduledFault> {
    let mut schedule: Vec<ScheduledFault> = Vec::new();
    let longest = TIMEOUT_MS + 1500;
    // Enough comes by then to see that nothing comes.
    let first = (first + 2000).min(last - longest).max(first);
    let each = (last - first - longest).max(0) / faults.len().max(1) as i64;
    for (number, kind) in faults.into_iter().enumerate() {
        let before = schedule.last().filter(|before| before.kind.resource() == kind.resource());
        let from = first + each * number as i64 + rng.random_range(0..500);
        let from = before.map_or(from, |before| before.until_ms + 2500).min(last - 200);
        let lasts = match kind {
            FaultKind::BrokerKill(_) => rng.random_range(500..2000),
            FaultKind::BrokerFull(Kind::Amqp, _) => rng.random_range(1500..2500),
            _ => rng.random_range(TIMEOUT_MS + 300..longest),
        };
        schedule.push(scheduled(from, lasts.min(last - from).max(100), kind));
    }
    schedule
}

/// Two at once, of two resources, every ten seconds.
fn compound(
    rng: &mut SmallRng,
    first: i64,
    last: i64,
    lease_ms: i64,
    nodes: u8,
    breakable: Breakable,
) -> Vec<ScheduledFault> {
    let mut schedule = Vec::new();
    let mut from = first;
    while from < last {
        let until = (from + 10_000).min(last + 1000);
        let mut taken: Vec<Resource> = Vec::new();
        for _ in 0..2 {
            let kinds: Vec<FaultKind> = possible(nodes, breakable)
                .into_iter()
                .filter(|kind| !taken.contains(&kind.resource()))
                .collect();
            let Some(kind) = kinds.choose(rng).copied() else { break };
            taken.push(kind.resource());
            let at = from + rng.random_range(0..3000);
            let lasts = rng.random_range(200..=lease_ms * 2).min(until - at - 500).max(100);
            schedule.push(scheduled(at, lasts, kind));
        }
        from += 10_000;
    }
    schedule
}

fn possible(nodes: u8, breakable: Breakable) -> Vec<FaultKind> {
    let of_nodes =
        (0..nodes).flat_map(|node| [FaultKind::Restart(node), FaultKind::Kill(node), FaultKind::Pause(node)]);
    let of_connections = (0..nodes).flat_map(|node| {
        [
            FaultKind::CommitCut(node),
            FaultKind::CutFromCold(node),
            FaultKind::FrozenFromCold(node),
            FaultKind::CutFromHot(node),
        ]
    });
    let of_servers = [
        FaultKind::RedisKill,
        FaultKind::RedisRollback,
        FaultKind::RedisStop,
        FaultKind::PostgresKill,
        FaultKind::PostgresStop,
    ];
    let mut all: Vec<FaultKind> = of_nodes.collect();
    if breakable != Breakable::Nodes {
        all.extend(of_connections);
        all.push(FaultKind::RedisFlush);
    }
    if breakable == Breakable::Servers {
        all.extend(of_servers);
    }
    all
}

#[cfg(test)]
mod tests;

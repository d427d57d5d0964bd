//! The drills: what load each has, which faults come when.

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::fault::{Hold, Strike};
use super::plan::Shape;

/// The most timers a second whose receiver is grudging.
const GRUDGING_PER_SECOND: u32 = 20;

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
    /// Two random faults every ten seconds
    Compound,
}

/// A moment of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scene {
    /// When the fault is injected, in milliseconds since the load began.
    pub from_ms: i64,
    /// When it is healed.
    pub until_ms: i64,
    /// The fault.
    pub strike: Strike,
}

impl Drill {
    /// All of them, in the order in which `all` runs them.
    pub const ALL: [Self; 15] = [
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
            Self::Restart | Self::Kill | Self::Pause | Self::Outage | Self::SlowHook | Self::Compound
        )
    }

    /// Whether it can be done on servers that the drill has not started.
    pub const fn is_for_given(self) -> bool {
        self.is_embedded()
            || matches!(self, Self::RedisFlush | Self::CommitCut | Self::Partition | Self::SlowStore)
    }

    /// The load.
    pub fn shape(self, rate: u32, seconds: u32) -> Shape {
        let (bad_receivers, grudging, expiring) = match self {
            Self::SlowHook => (30, 0, 0),
            Self::Outage => (0, 0, 15),
            Self::Pause => (0, 20, 2),
            Self::Partition | Self::Kill | Self::PostgresStop | Self::Compound => (0, 6, 2),
            _ => (0, 0, 2),
        };
        // More than these, and they keep each other waiting.
        let grudging = grudging.min(GRUDGING_PER_SECOND * 100 / rate.max(1));
        Shape { rate, seconds, bad_receivers, grudging, expiring }
    }

    /// The faults of a seed, in order: after three seconds of health, and the last healed when the load ends.
    pub fn scenes(self, seed: u64, seconds: u32, lease_ms: i64, nodes: u8, ground: Has) -> Vec<Scene> {
        // Not the plan's own dice: the same load meets other faults.
        let mut dice = SmallRng::seed_from_u64(seed ^ 0x00d1_211e);
        let dice = &mut dice;
        let (first, last) = (3000, i64::from(seconds) * 1000 - 1000);
        let mut order: Vec<u8> = (0..nodes).collect();
        order.shuffle(dice);
        let node = move |round: usize| order[round % order.len()];
        let short = |dice: &mut SmallRng| dice.random_range(200..900);
        match self {
            Self::Restart => {
                let rounds = usize::from(nodes).max(2);
                let each = (last - first) / rounds as i64;
                let at = |round: usize| first + each * round as i64;
                (0..rounds).map(|round| scene(at(round), 100, Strike::Restart(node(round)))).collect()
            }
            Self::Kill => rounds(dice, first, last, 3, |round, dice| {
                let down = match round % 2 {
                    0 => lease_ms + dice.random_range(1500..2500),
                    _ => dice.random_range(100..lease_ms),
                };
                (down, Strike::Kill(node(round)))
            }),
            // One of any length; and when much is under way one that is long enough for a take-over, whose second
            // attempts have not ended when the node wakes.
            Self::Pause => rounds(dice, first, last, 2, |round, dice| {
                let leases =
                    if round == 1 { dice.random_range(1.35..1.55) } else { dice.random_range(0.5..3.0) };
                ((lease_ms as f64 * leases) as i64, Strike::Pause(node(round)))
            }),
            Self::RedisFlush => rounds(dice, first, last, 3, |_, _| (100, Strike::RedisFlush)),
            Self::RedisKill => rounds(dice, first, last, 2, |_, dice| (short(dice), Strike::RedisKill)),
            Self::RedisRollback => {
                rounds(dice, first, last, 2, |_, dice| (dice.random_range(1500..4000), Strike::RedisRollback))
            }
            Self::RedisStop => {
                rounds(dice, first, last, 1, |_, dice| (dice.random_range(3000..8000), Strike::RedisStop))
            }
            Self::PostgresKill => rounds(dice, first, last, 2, |_, dice| (short(dice), Strike::PostgresKill)),
            Self::PostgresStop => {
                rounds(dice, first, last, 1, |_, dice| (dice.random_range(2000..6000), Strike::PostgresStop))
            }
            Self::CommitCut => rounds(dice, first, last, 8, |round, _| (700, Strike::CommitCut(node(round)))),
            Self::Partition => rounds(dice, first, last, 3, |round, dice| {
                let down = (lease_ms as f64 * dice.random_range(0.5..2.5)) as i64;
                let ways = [Strike::CutFromCold, Strike::FrozenFromCold, Strike::CutFromHot];
                (down, ways[round % ways.len()](node(round)))
            }),
            Self::SlowStore => vec![scene(first, last - first, Strike::SlowCold)],
            Self::Outage => {
                rounds(dice, first, last, 1, |_, dice| (dice.random_range(6000..9000), Strike::Outage))
            }
            Self::SlowHook => Vec::new(),
            Self::Compound => compound(dice, first, last, lease_ms, nodes, ground),
        }
    }
}

/// What a ground has that can be struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    /// Nodes only.
    Nodes,
    /// Ways to stores, too.
    Ways,
    /// Stores that can be stopped, too.
    Servers,
}

const fn scene(from_ms: i64, lasts_ms: i64, strike: Strike) -> Scene {
    Scene { from_ms, until_ms: from_ms + lasts_ms, strike }
}

/// Faults one after another: each at a random moment of its part of the time, healed before the next.
fn rounds(
    dice: &mut SmallRng,
    first: i64,
    last: i64,
    rounds: usize,
    mut one: impl FnMut(usize, &mut SmallRng) -> (i64, Strike),
) -> Vec<Scene> {
    let each = (last - first).max(1000) / rounds as i64;
    let begin = |round: usize| first + each * round as i64;
    let mut scenes = Vec::new();
    for round in 0..rounds {
        let (lasts, strike) = one(round, dice);
        let lasts = lasts.min(each - 200).max(100);
        let from = begin(round) + dice.random_range(0..=(each - lasts).max(1) / 2);
        scenes.push(scene(from, lasts, strike));
    }
    scenes
}

/// Two at once, of two different things, every ten seconds.
fn compound(dice: &mut SmallRng, first: i64, last: i64, lease_ms: i64, nodes: u8, ground: Has) -> Vec<Scene> {
    let mut scenes = Vec::new();
    let mut from = first;
    while from < last {
        let until = (from + 10_000).min(last + 1000);
        let mut held: Vec<Hold> = Vec::new();
        for _ in 0..2 {
            let strikes: Vec<Strike> =
                possible(nodes, ground).into_iter().filter(|strike| !held.contains(&strike.hold())).collect();
            let Some(strike) = strikes.choose(dice).copied() else { break };
            held.push(strike.hold());
            let at = from + dice.random_range(0..3000);
            let lasts = dice.random_range(200..=lease_ms * 2).min(until - at - 500).max(100);
            scenes.push(scene(at, lasts, strike));
        }
        from += 10_000;
    }
    scenes
}

fn possible(nodes: u8, ground: Has) -> Vec<Strike> {
    let of_nodes =
        (0..nodes).flat_map(|node| [Strike::Restart(node), Strike::Kill(node), Strike::Pause(node)]);
    let of_ways = (0..nodes).flat_map(|node| {
        [
            Strike::CommitCut(node),
            Strike::CutFromCold(node),
            Strike::FrozenFromCold(node),
            Strike::CutFromHot(node),
        ]
    });
    let of_servers = [
        Strike::RedisKill,
        Strike::RedisRollback,
        Strike::RedisStop,
        Strike::PostgresKill,
        Strike::PostgresStop,
    ];
    let mut all: Vec<Strike> = of_nodes.collect();
    if ground != Has::Nodes {
        all.extend(of_ways);
        all.push(Strike::RedisFlush);
    }
    if ground == Has::Servers {
        all.extend(of_servers);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_after_three_seconds_of_health_and_heal_before_the_load_ends() {
        for drill in Drill::ALL {
            for seed in 0..200 {
                let scenes = drill.scenes(seed, 24, 3000, 3, Has::Servers);
                assert!(scenes.iter().all(|s| s.from_ms >= 3000 && s.from_ms < s.until_ms), "{drill:?}");
                assert!(scenes.iter().all(|s| s.until_ms <= 24_000), "{drill:?} {seed} {scenes:?}");
                assert_eq!(scenes.is_empty(), drill == Drill::SlowHook);
            }
        }
    }

    #[test]
    fn nothing_is_struck_twice_at_once() {
        for drill in Drill::ALL {
            for seed in 0..200 {
                let scenes = drill.scenes(seed, 60, 3000, 3, Has::Servers);
                for (place, one) in scenes.iter().enumerate() {
                    let clash = scenes[..place].iter().any(|other| {
                        let apart = other.until_ms < one.from_ms || one.until_ms < other.from_ms;
                        !apart && other.strike.hold() == one.strike.hold()
                    });
                    assert!(!clash, "{drill:?} {seed} {scenes:?}");
                }
            }
        }
    }

    #[test]
    fn compound_strikes_only_what_the_ground_has() {
        for seed in 0..200 {
            let embedded = Drill::Compound.scenes(seed, 60, 3000, 1, Has::Nodes);
            let nodes =
                |s: &Scene| matches!(s.strike, Strike::Restart(_) | Strike::Kill(_) | Strike::Pause(_));
            assert!(embedded.iter().all(nodes));
            let given = Drill::Compound.scenes(seed, 60, 3000, 3, Has::Ways);
            assert!(given.iter().all(|s| !s.strike.needs_own_servers()));
        }
    }
}

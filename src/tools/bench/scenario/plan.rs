//! All scenarios with their numbers: those of the figures, and small ones to see whether everything works.

use std::time::Duration;

use super::Scenario;
use super::burst::Burst;
use super::crash::Crash;
use super::idle::Idle;
use super::paced::Paced;
use super::parked::Parked;
use super::recover::Recover;
use super::register::{Register, Step};
use crate::tools::bench::timers::Ids;

/// How many timers the figures speak of as parked.
pub const MANY: u64 = 1_000_000;
/// And in a quick run.
const FEW: u64 = 200;

/// The figures that docs/benchmarks.md lists.
pub fn figures() -> Vec<Scenario> {
    let register = |steps: &[Step], connections: &[usize], parked| {
        let (steps, connections) = (steps.to_vec(), connections.to_vec());
        Scenario::Register(Register { steps, count: 100_000, connections, parked })
    };
    let burst = |counts: &[u64], same_ms| {
        Scenario::Burst(Burst { counts: counts.to_vec(), same_ms, ahead: None, parked: 0 })
    };
    vec![
        register(&[Step::Post, Step::BatchPost, Step::StreamPost, Step::Cancel], &[64, 512], 0),
        register(&[Step::Put, Step::BatchPut, Step::StreamPut], &[512], MANY),
        Scenario::Paced(paced(1000.0, 60.0)),
        burst(&[20_000, 200_000], false),
        burst(&[20_000], true),
        Scenario::Parked(Parked {
            count: MANY,
            ids: Ids::Caller,
            promoted: 100_000,
            register: Register {
                steps: vec![Step::Post, Step::Put],
                count: 100_000,
                connections: vec![512],
                parked: 0,
            },
            paced: paced(1000.0, 60.0),
            burst: Burst { counts: vec![20_000], same_ms: false, ahead: None, parked: 0 },
        }),
        Scenario::Recover(Recover { count: 20_000, ahead: None, parked: 0 }),
        crash(20_000, None, 0),
        Scenario::Idle(Idle { parked: MANY, span: Duration::from_secs(60), settle: Duration::from_secs(60) }),
    ]
}

/// Everything once, small.
pub fn quick() -> Vec<Scenario> {
    let ahead = Some(Duration::from_secs(2));
    let paced = Paced {
        connections: 4,
        ahead_min: Duration::from_millis(200),
        ahead_max: Duration::from_secs(1),
        ..paced(100.0, 2.0)
    };
    let burst = Burst { counts: vec![FEW], same_ms: false, ahead, parked: 0 };
    let steps = [
        Step::Post,
        Step::Put,
        Step::BatchPost,
        Step::BatchPut,
        Step::StreamPost,
        Step::StreamPut,
        Step::Cancel,
    ];
    vec![
        Scenario::Register(Register {
            steps: steps.to_vec(),
            count: FEW,
            connections: vec![4, 16],
            parked: 100,
        }),
        Scenario::Paced(paced.clone()),
        Scenario::Burst(Burst { same_ms: true, ..burst.clone() }),
        Scenario::Parked(Parked {
            count: 1000,
            ids: Ids::Caller,
            promoted: 100,
            register: Register { steps: vec![Step::Put], count: FEW, connections: vec![4], parked: 0 },
            paced,
            burst,
        }),
        Scenario::Recover(Recover { count: FEW, ahead, parked: 100 }),
        crash(FEW, ahead, 100),
        Scenario::Idle(Idle { parked: 100, span: Duration::from_secs(1), settle: Duration::ZERO }),
    ]
}

/// A steady rate as the figures have it: due in 2 to 10 seconds.
pub fn paced(rate: f64, seconds: f64) -> Paced {
    let (ahead_min, ahead_max) = (Duration::from_secs(2), Duration::from_secs(10));
    Paced { rate, seconds, connections: 16, ahead_min, ahead_max, parked: 0 }
}

/// A crash when a third of the burst has arrived.
pub fn crash(count: u64, ahead: Option<Duration>, parked: u64) -> Scenario {
    Scenario::Crash(Crash { count, ahead, kill_at: 1.0 / 3.0, parked })
}

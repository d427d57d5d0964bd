//! Timers beside those of the plan, registered in batches before the load begins: those that only fill the window, and
//! those of a crowd of receivers, which have one timer each.

use std::ops::Range;
use std::sync::Arc;

use super::cluster::{Cluster, Node};
use super::history::{Affected, Fault, Recorder, Terms};
use super::load::Callers;
use super::plan::Behaviour;
use super::{Drill, Options};
use crate::clock::wall_us;
use crate::tools::proc::most_files;

/// The receivers of a crowd for each timer that the load registers in a second, and the most of them.
const CROWD_BY_RATE: u32 = 100;
const CROWD_MAX: u32 = 60_000;

/// How many files each node may have open where that is the fault: enough to work with, and for a few hundred
/// connections to receivers.
pub const FEW_FILES: u32 = 512;
/// Receivers that keep their connections, for each file of all nodes.
const KEPT_BY_FILE: u32 = 2;

/// The numbers of these timers.
pub struct Extra {
    window: Range<u32>,
    crowd: Range<u32>,
    /// How the receivers of the crowd behave.
    behaviour: Behaviour,
    /// Within how many milliseconds their timers are due.
    within_ms: i64,
}

impl Extra {
    /// What a drill has of them; their numbers begin at `first`.
    pub fn of(drill: Drill, first: u32, options: &Options, nodes: u8) -> Self {
        let (crowd, behaviour, within_ms) = match drill {
            Drill::Crowd => ((options.rate * CROWD_BY_RATE).min(CROWD_MAX), Behaviour::Crowd, 1000),
            Drill::Fds => (u32::from(nodes) * FEW_FILES * KEPT_BY_FILE, Behaviour::Kept, 3000),
            _ => (0, Behaviour::Crowd, 0),
        };
        let from = first + options.window_timers;
        Self { window: first..from, crowd: from..from + crowd, behaviour, within_ms }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty() && self.crowd.is_empty()
    }

    /// Registers them. The window's are due all through the load, so that a fault meets them in every tier; the crowd's
    /// within a second or a few, when half of the load is over.
    pub async fn register(&self, callers: &Arc<Callers>, options: &Options) {
        let load_ms = i64::from(options.seconds) * 1000;
        // Registering them takes no longer than that.
        let from_ms = wall_us() / 1000 + 3000 + (self.window.len() + self.crowd.len()) as i64 / 10;
        let spread = |timers: &Range<u32>, from_ms: i64, over_ms: i64| {
            let count = timers.len() as i64;
            (0..count).map(|n| from_ms + n * over_ms / count).collect::<Vec<_>>()
        };
        callers.fill(self.window.start, spread(&self.window, from_ms, load_ms), Behaviour::Accepts).await;
        let crowd = spread(&self.crowd, from_ms + load_ms / 2, self.within_ms);
        callers.fill(self.crowd.start, crowd, self.behaviour).await;
    }

    /// Adds their terms to those of the plan. How late each of a crowd is says nothing: all of them are due at once.
    pub fn add_terms(&self, terms: &mut Vec<Terms>) {
        terms.resize(self.window.end as usize, Terms::default());
        terms.resize(
            self.crowd.end as usize,
            Terms { difficult: true, attempts: self.behaviour.attempts(), ..Terms::default() },
        );
    }

    /// The crowd as a fault, from its first attempt to its last. It landed if more than half of its receivers were
    /// reached; where the nodes are to have few files, also if that is their limit, and more receivers were reached
    /// than they have files.
    pub fn came(&self, recorder: &Recorder, cluster: &Cluster) -> Option<Fault> {
        let (from_us, until_us, reached) = recorder.arrived_for(self.crowd.clone())?;
        let (kind, landed) = if self.behaviour == Behaviour::Kept {
            let limit = |node: &Node| most_files(node.process().ok()?.pid());
            let few = cluster.nodes.iter().all(|node| limit(node) == Some(FEW_FILES.into()));
            let landed = few && reached > cluster.nodes.len() * FEW_FILES as usize;
            (
                "few files",
                landed.then(|| {
                    format!("{reached} receivers kept the connections of nodes with {FEW_FILES} files each")
                }),
            )
        } else {
            let landed = reached * 2 > self.crowd.len();
            (
                "crowd",
                landed.then(|| format!("{reached} receivers had a timer each, all due within a second")),
            )
        };
        Some(Fault { kind, affected: Affected::Receivers, from_us, until_us, landed })
    }
}

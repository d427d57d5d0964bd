//! Which lanes have a backlog: more pointers than the sweep should read again at each look.
//!
//! A lane has one for each priority, from a number of pointers on until a quarter of it is left; the more lanes have
//! something queued, the smaller the number. The sweep skips what has a backlog.

use std::collections::HashSet;

use super::lane::Lane;
use super::{LaneKey, Lanes};
use crate::model::priority::Priority;

/// The highest threshold of a backlog: a lane with so many pointers has a backlog, until a quarter of them are left.
pub(super) const BACKLOG_MAX: usize = 2048;

/// The lowest threshold of a backlog, where many lanes have a queue.
const BACKLOG_MIN: usize = 64;

/// Lanes without a backlog queue about so many pointers together: the sweep reads them all, each time it looks.
pub(super) const QUEUED_WITHOUT_BACKLOG: usize = 32_768;

/// All backlogs.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    of: HashSet<(LaneKey, Priority)>,
    /// How often the sweep had cause to look again at lanes that it skipped.
    cleared: u64,
    /// Pointers in them.
    pub queued: usize,
}

impl Backlogs {
    /// A pointer of this priority was queued in a lane, which has a backlog from `threshold` on.
    pub fn add(&mut self, key: LaneKey, lane: &mut Lane, priority: Priority, threshold: usize) {
        let waiting = lane.queue.len_of(priority);
        if lane.is_backlogged[priority as usize] {
            self.queued += 1;
        } else if waiting >= threshold {
            lane.is_backlogged[priority as usize] = true;
            self.of.insert((key, priority));
            self.queued += waiting;
        }
    }

    /// A pointer of this priority is no longer queued in a lane.
    pub fn remove(&mut self, key: LaneKey, priority: Priority) {
        if self.of.contains(&(key, priority)) {
            self.queued -= 1;
        }
    }

    /// Ends the backlogs of a lane's priorities of which fewer than `least` pointers wait.
    fn end(&mut self, key: LaneKey, lane: &mut Lane, least: usize) {
        for priority in Priority::ALL {
            let waiting = lane.queue.len_of(priority);
            let is_backlogged = &mut lane.is_backlogged[priority as usize];
            if *is_backlogged && waiting < least {
                *is_backlogged = false;
                self.of.remove(&(key, priority));
                self.cleared += 1;
                self.queued -= waiting;
            }
        }
    }

    /// The sweep is to look at lanes again that it skipped.
    pub fn call_sweep(&mut self) {
        self.cleared += 1;
    }

    /// All lanes are empty.
    pub fn clear(&mut self) {
        self.of.clear();
        self.queued = 0;
        self.call_sweep();
    }
}

impl Lanes {
    /// With how many queued pointers a lane has a backlog: the fewer, the more lanes there are.
    pub(super) fn backlog_threshold(&self) -> usize {
        (QUEUED_WITHOUT_BACKLOG / self.lanes_queued.max(1)).clamp(BACKLOG_MIN, BACKLOG_MAX)
    }

    /// Ends the backlogs of a lane's priorities of which fewer than `least` pointers wait.
    pub(super) fn clear_backlogs(&mut self, key: LaneKey, least: usize) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            self.backlogs.end(key, lane, least);
        }
    }

    /// The lanes with a backlog, but for those that are held: the sweep skips them until [`Lanes::backlogs_cleared`] rises.
    pub fn backlogged(&self) -> impl Iterator<Item = (LaneKey, Priority)> {
        self.backlogs.of.iter().copied()
    }

    /// How often a lane has ceased to have a backlog.
    pub fn backlogs_cleared(&self) -> u64 {
        self.backlogs.cleared
    }

    /// How many pointers are queued in lanes without a backlog.
    pub fn queued_without_backlog(&self) -> usize {
        self.queued - self.backlogs.queued
    }
}

//! Whose a delivery is: one firing has one delivery id, and no other has it but those of its merged set.

use std::collections::{HashMap, HashSet};

use super::Check;
use crate::tools::drill::history::Arrival;

impl Check<'_> {
    /// A merged set is never larger than when it came first.
    pub(super) fn sets(&mut self, arrivals: &[&Arrival]) {
        let mut merged: Vec<&Arrival> = arrivals.iter().filter(|arrival| arrival.merged).copied().collect();
        merged.sort_by_key(|arrival| (arrival.delivery, arrival.at_us, arrival.attempt));
        for set in merged.chunk_by(|a, b| a.delivery == b.delivery) {
            let together = |a: &Arrival, b: &Arrival| (a.at_us, a.attempt) == (b.at_us, b.attempt);
            let mut attempts = set.chunk_by(|a, b| together(a, b));
            let Some(first) = attempts.next() else { continue };
            self.found.sets += 1;
            self.found.merged += first.len() as u64;
            let members: HashSet<u32> = first.iter().map(|arrival| arrival.timer).collect();
            for joined in attempts.flatten().filter(|arrival| !members.contains(&arrival.timer)) {
                self.found.joined += 1;
                self.describe("joined", joined.timer, || {
                    format!("attempt {} of a set of {} came with it", joined.attempt, members.len())
                });
            }
        }
    }

    /// One firing has one delivery id, and no other firing has it but those of its merged set.
    pub(super) fn identities(&mut self, arrivals: &[&Arrival]) {
        let mut of_firing: HashMap<(u32, i32), u64> = HashMap::new();
        let mut of_delivery: HashMap<u64, (u32, i32)> = HashMap::new();
        for arrival in arrivals {
            let firing = (arrival.timer, arrival.generation);
            let one_id = *of_firing.entry(firing).or_insert(arrival.delivery) == arrival.delivery;
            let one_firing =
                arrival.merged || *of_delivery.entry(arrival.delivery).or_insert(firing) == firing;
            if !one_id || !one_firing {
                self.found.mistaken_identity += 1;
                self.describe("mistaken identity", arrival.timer, || {
                    format!("generation {} attempt {}", arrival.generation, arrival.attempt)
                });
            }
        }
    }
}

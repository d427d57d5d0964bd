//! What a node tells the others of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::recent::Counts;
use crate::dispatch::{ReceiverLoad, sort_worst_first};
use crate::model::time::UnixMs;

/// The most receivers in a report: the worst.
pub const RECEIVERS: usize = 100;

/// A node, as it describes itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// How far its counters rose in the last minute.
    pub minute: Counts,
    /// The same in the last ten seconds.
    pub ten_seconds: Counts,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
    /// Due timers that wait in lanes.
    pub waiting: usize,
    /// Pointers in the last mile.
    pub last_mile: i64,
    /// Results that are not written yet.
    pub unrecorded: i64,
    /// When the oldest due timer of its shards was due that nobody had in hand.
    pub oldest_due: Option<UnixMs>,
    /// Its clock − the store's, in milliseconds.
    pub skew_ms: i64,
    /// Shards that it replayed.
    pub replays: u64,
    /// Whether all wheels answered it.
    pub wheels_up: bool,
    /// The receivers it has sent to, worst first, at most [`RECEIVERS`].
    pub receivers: Vec<ReceiverLoad>,
}

/// The receivers of all nodes, worst first. A receiver fails if it fails for one of them.
pub fn merge_receivers(own: Vec<ReceiverLoad>, peers: &[Report]) -> Vec<ReceiverLoad> {
    let mut merged: BTreeMap<(bool, String), ReceiverLoad> = BTreeMap::new();
    for one in own.into_iter().chain(peers.iter().flat_map(|peer| peer.receivers.iter().cloned())) {
        let key = (one.is_destination, one.receiver.clone());
        match merged.get_mut(&key) {
            None => drop(merged.insert(key, one)),
            Some(known) => {
                known.since = match (known.failing, one.failing) {
                    (false, true) => one.since,
                    (true, false) => known.since,
                    _ => known.since.min(one.since),
                };
                known.failing |= one.failing;
                known.rate += one.rate;
                known.in_flight += one.in_flight;
                known.waiting += one.waiting;
                let at = |error: &Option<crate::dispatch::LastError>| error.as_ref().map(|error| error.at);
                if at(&one.last_error) > at(&known.last_error) {
                    known.last_error = one.last_error;
                }
            }
        }
    }
    let mut all: Vec<ReceiverLoad> = merged.into_values().collect();
    sort_worst_first(&mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_of_two_nodes_is_one_that_fails_if_it_fails_for_either() {
        let load = |receiver: &str, failing, since, waiting| ReceiverLoad {
            receiver: receiver.into(),
            is_destination: false,
            failing,
            since: UnixMs::new(since),
            rate: 1.5,
            in_flight: 1,
            waiting,
            last_error: None,
        };
        let report = |receivers| Report {
            name: "b".into(),
            minute: Counts::default(),
            ten_seconds: Counts::default(),
            in_flight: 0,
            waiting: 0,
            last_mile: 0,
            unrecorded: 0,
            oldest_due: None,
            skew_ms: 0,
            replays: 0,
            wheels_up: true,
            receivers,
        };
        let own = vec![load("x", false, 5, 1), load("y", false, 5, 9)];
        let merged = merge_receivers(own, &[report(vec![load("x", true, 7, 2)])]);
        let x = &merged[0];
        assert_eq!(
            (x.receiver.as_str(), x.failing, x.since.get(), x.rate, x.in_flight, x.waiting),
            ("x", true, 7, 3.0, 2, 3)
        );
        assert_eq!(merged[1].receiver, "y");
    }
}

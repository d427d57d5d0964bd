//! What is known of each receiver: whether its last attempts failed, since when, and the last error.
//!
//! This is for people ([`crate::dispatch::Dispatcher::receivers`]); nothing is decided by it. A receiver is the scheme,
//! host and port of an inline webhook. The receivers that were used last are remembered.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use super::lanes::LaneLoad;
use crate::model::namespace::Namespace;
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::AttemptResult;
use crate::sink::Outcome;

/// Receivers that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not 0");

/// A receiver is failing when so many attempts in a row failed, or all of fewer.
const FAILING_AFTER: u32 = 3;

/// The time over which the rate of attempts is averaged, in milliseconds: an attempt counts the less the longer ago it
/// ended.
const RATE_OVER_MS: f64 = 10_000.0;

/// A receiver: what it holds up now, and how its last attempts ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiverLoad {
    /// Scheme, host and port; or the name of a destination.
    pub receiver: String,
    /// It is a destination.
    #[serde(default)]
    pub is_destination: bool,
    /// Its last attempts failed.
    pub failing: bool,
    /// When this began: the first of the failures, or the first success after them.
    pub since: UnixMs,
    /// Attempts that ended, a second, over about the last ten seconds.
    pub rate: f64,
    /// Claimed timers whose attempt has not ended.
    pub in_flight: usize,
    /// Due timers that wait in its lanes.
    pub waiting: usize,
    /// Why the last attempt that failed did so, and when.
    pub last_error: Option<LastError>,
}

/// The last failure of a receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// When the attempt ended.
    pub at: UnixMs,
    /// The cause in words.
    pub detail: String,
}

#[derive(Debug)]
struct Known {
    receiver: String,
    is_destination: bool,
    attempts: u64,
    /// Attempts in a row that failed.
    failures: u32,
    failing: bool,
    /// When `failing` last changed.
    since: UnixMs,
    /// When the failures in a row began.
    failures_since: UnixMs,
    last_error: Option<LastError>,
    rate: Rate,
}

/// Attempts a second: an average that forgets with time.
#[derive(Debug)]
struct Rate {
    per_second: f64,
    at: UnixMs,
}

impl Rate {
    /// The average as it is at `now`, in attempts a second.
    fn read(&self, now: UnixMs) -> f64 {
        self.per_second * (-(now.since(self.at).as_millis() as f64) / RATE_OVER_MS).exp()
    }

    /// Counts an attempt that ended.
    fn count(&mut self, at: UnixMs) {
        self.per_second = self.read(at) + 1000.0 / RATE_OVER_MS;
        self.at = self.at.max(at);
    }
}

/// The receivers that this node has sent to, by lane.
#[derive(Debug)]
pub(super) struct Receivers {
    known: Mutex<LruCache<i64, Known>>,
}

impl Default for Receivers {
    fn default() -> Self {
        Self { known: Mutex::new(LruCache::new(REMEMBERED)) }
    }
}

impl Receivers {
    /// Notes how an attempt ended; returns whether the receiver is failing, if that has changed.
    pub fn note(
        &self,
        (namespace, target): (Namespace, &Target),
        outcome: &Outcome,
        at: UnixMs,
    ) -> Option<bool> {
        let mut receiver = target.shown()?;
        if target.receiver().is_none() {
            receiver = namespace.qualified(&receiver).into_owned();
        }
        let mut known = self.lock();
        let one = known.get_or_insert_mut(target.lane(namespace), || Known {
            receiver,
            is_destination: target.destination().is_some(),
            attempts: 0,
            failures: 0,
            failing: false,
            since: at,
            failures_since: at,
            last_error: None,
            rate: Rate { per_second: 0.0, at },
        });
        one.attempts += 1;
        one.rate.count(at);
        let failing = if outcome.result == AttemptResult::Ok {
            one.failures = 0;
            false
        } else {
            one.failures += 1;
            if one.failures == 1 {
                one.failures_since = at;
            }
            let detail = outcome.detail.clone().unwrap_or_else(|| outcome.result.word().to_owned());
            one.last_error = Some(LastError { at, detail });
            one.failures >= FAILING_AFTER || u64::from(one.failures) == one.attempts
        };
        let has_changed = failing != one.failing;
        if has_changed {
            one.failing = failing;
            one.since = if failing { one.failures_since } else { at };
        }
        has_changed.then_some(failing)
    }

    /// The lanes of receivers that are failing.
    pub fn failing(&self) -> Vec<i64> {
        self.lock().iter().filter(|(_, one)| one.failing).map(|(lane, _)| *lane).collect()
    }

    /// The receivers, worst first: failing before others, then by what waits, then by name. `loads` tells what these lanes
    /// hold.
    pub fn worst(
        &self,
        loads: impl FnOnce(&[i64]) -> Vec<Option<LaneLoad>>,
        now: UnixMs,
        most: usize,
    ) -> Vec<ReceiverLoad> {
        let (lanes, mut all): (Vec<i64>, Vec<ReceiverLoad>) = self
            .lock()
            .iter()
            .map(|(lane, one)| {
                let one = ReceiverLoad {
                    receiver: one.receiver.clone(),
                    is_destination: one.is_destination,
                    failing: one.failing,
                    since: one.since,
                    // To a tenth: more digits would say more than is known.
                    rate: (one.rate.read(now) * 10.0).round() / 10.0,
                    in_flight: 0,
                    waiting: 0,
                    last_error: one.last_error.clone(),
                };
                (*lane, one)
            })
            .unzip();
        for (one, load) in all.iter_mut().zip(loads(&lanes)) {
            LaneLoad { waiting: one.waiting, in_flight: one.in_flight } = load.unwrap_or_default();
        }
        sort_worst_first(&mut all);
        all.truncate(most);
        all
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<i64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Orders receivers: failing before others, then by what waits, then by name.
pub fn sort_worst_first(receivers: &mut [ReceiverLoad]) {
    receivers.sort_unstable_by(|a, b| {
        let rank = |one: &ReceiverLoad| (!one.failing, std::cmp::Reverse(one.waiting + one.in_flight));
        rank(a).cmp(&rank(b)).then_with(|| a.receiver.cmp(&b.receiver))
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::target::Webhook;

    fn target(url: &str) -> Target {
        Target::Webhook(Webhook::new(url, None, BTreeMap::new()).expect("a webhook"))
    }

    fn idle(lanes: &[i64]) -> Vec<Option<LaneLoad>> {
        vec![None; lanes.len()]
    }

    fn outcome(result: AttemptResult) -> Outcome {
        Outcome::without_answer(result, (result != AttemptResult::Ok).then(|| "answered 500".to_owned()))
    }

    #[test]
    fn a_receiver_fails_after_three_failures_in_a_row_and_recovers_with_a_success() {
        let receivers = Receivers::default();
        let (hook, ok, failed) = (target("http://a:81/x"), AttemptResult::Ok, AttemptResult::Failed);
        let mut seen = Vec::new();
        for (at, result) in [(1, ok), (2, failed), (3, failed), (4, failed), (5, ok), (6, failed)] {
            receivers.note((Namespace::OWN, &hook), &outcome(result), UnixMs::new(at));
            let one = receivers.worst(idle, UnixMs::new(6), 10).remove(0);
            seen.push((one.failing, one.since.get()));
        }
        assert_eq!(seen, [(false, 1), (false, 1), (false, 1), (true, 2), (false, 5), (false, 5)]);
        let one = receivers.worst(idle, UnixMs::new(6), 10).remove(0);
        assert_eq!(one.receiver, "http://a:81");
        assert_eq!(one.last_error, Some(LastError { at: UnixMs::new(6), detail: "answered 500".into() }));
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let receivers = Receivers::default();
        let rate = |now| receivers.worst(idle, UnixMs::new(now), 1)[0].rate;
        // Fifty a second, for a minute.
        (0..3000).for_each(|n| {
            receivers.note(
                (Namespace::OWN, &target("http://a/")),
                &outcome(AttemptResult::Ok),
                UnixMs::new(n * 20),
            );
        });
        assert!((48.0..52.0).contains(&rate(60_000)), "{}", rate(60_000));
        assert!((16.0..20.0).contains(&rate(70_000)), "{}", rate(70_000));
        assert_eq!(rate(200_000), 0.0, "it is forgotten");
    }

    #[test]
    fn a_receiver_that_never_answered_well_is_failing_and_comes_first() {
        let receivers = Receivers::default();
        receivers.note(
            (Namespace::OWN, &target("http://busy/")),
            &outcome(AttemptResult::Ok),
            UnixMs::new(1),
        );
        receivers.note(
            (Namespace::OWN, &target("http://idle/")),
            &outcome(AttemptResult::Ok),
            UnixMs::new(1),
        );
        receivers.note(
            (Namespace::OWN, &target("http://new/")),
            &outcome(AttemptResult::Timeout),
            UnixMs::new(2),
        );
        let busy = target("http://busy/").lane(Namespace::OWN);
        let load = |lane: &i64| (*lane == busy).then_some(LaneLoad { waiting: 3, in_flight: 1 });
        let worst = receivers.worst(|lanes| lanes.iter().map(load).collect(), UnixMs::new(2), 2);
        let names: Vec<&str> = worst.iter().map(|one| one.receiver.as_str()).collect();
        assert_eq!(names, ["http://new", "http://busy"]);
        assert_eq!((worst[1].waiting, worst[1].in_flight), (3, 1));
        assert_eq!(receivers.failing(), [target("http://new/").lane(Namespace::OWN)]);
    }
}

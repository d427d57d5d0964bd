//! Which queues have something ready: noted by whoever sees the pointer of a timer come up, here or on another node, and
//! taken by the room that lets workers wait ([`crate::queue`]).
//!
//! Nothing depends on it: what is ready stands in SQL, and a note that is lost costs a waiting worker some seconds.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::notify;
use super::sql::{Dialect, Statement};
use super::{ColdStore, Error};
use crate::model::time::UnixMs;

/// The most moments that are kept; further ones are dropped.
const MAX_PENDING: usize = 100_000;

/// The most lanes of one notification: its text is limited.
const MAX_TOLD: usize = 300;

/// The longest sleep. A clock that is set forward is noticed after this time at the latest.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The queues of which something is or becomes ready, by their lanes.
#[derive(Debug, Default)]
pub(super) struct ReadyLanes {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    /// Here, and when.
    here: BTreeSet<(UnixMs, i64)>,
    /// Another node has said so.
    elsewhere: BTreeSet<i64>,
    /// Another node may have said so of any.
    any: bool,
}

/// What is ready now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadyNow {
    /// Lanes whose pointers came up here: other nodes do not know.
    pub here: BTreeSet<i64>,
    /// Lanes that another node has told.
    pub elsewhere: BTreeSet<i64>,
    /// Notifications may have been lost: any lane.
    pub any: bool,
}

impl ReadyLanes {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        // A panic while the lock is held leaves plain sets.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another node says that these lanes have something ready.
    pub(super) fn told(&self, text: &str, me: &str) {
        let Some((sender, lanes)) = text.split_once(' ') else { return };
        if sender == me {
            return;
        }
        self.pending().elsewhere.extend(lanes.split(',').filter_map(|lane| lane.parse::<i64>().ok()));
        self.changed.notify_one();
    }

    /// Another node may have said that something is ready.
    pub(super) fn told_any(&self) {
        self.pending().any = true;
        self.changed.notify_one();
    }
}

impl Pending {
    /// Takes out what is ready by then; also returns when the next one is.
    fn take(&mut self, now: UnixMs) -> (ReadyNow, Option<UnixMs>) {
        let later = self.here.split_off(&(now.shifted(1), i64::MIN));
        let here = std::mem::replace(&mut self.here, later).into_iter().map(|(_, lane)| lane).collect();
        let ready = ReadyNow {
            here,
            elsewhere: std::mem::take(&mut self.elsewhere),
            any: std::mem::take(&mut self.any),
        };
        (ready, self.here.first().map(|(at, _)| *at))
    }
}

impl ColdStore {
    /// Notes that a queue has something ready from then on.
    pub fn note_ready(&self, lane: i64, at: UnixMs) {
        let mut pending = self.ready.pending();
        let is_first = pending.here.first().is_none_or(|first| (at, lane) < *first);
        if pending.here.len() < MAX_PENDING {
            pending.here.insert((at, lane));
        }
        drop(pending);
        if is_first {
            self.ready.changed.notify_one();
        }
    }

    /// Waits until a queue has something ready; returns which.
    pub async fn next_ready(&self) -> ReadyNow {
        loop {
            let (ready, next) = self.ready.pending().take(self.clock.now());
            if ready != ReadyNow::default() {
                return ready;
            }
            let wait = next.map_or(LONGEST_SLEEP, |at| self.clock.until(at).min(LONGEST_SLEEP));
            tokio::select! {
                () = self.ready.changed.notified() => {}
                () = self.clock.sleep(wait.max(Duration::from_millis(1))) => {}
            }
        }
    }

    /// Tells other nodes that these queues have something ready. Not durable, and not in a transaction with anything else:
    /// notifications take turns at a lock of the whole instance until they are committed.
    pub async fn tell_ready(&self, lanes: &[i64], me: &str) -> Result<(), Error> {
        if self.dialect() != Dialect::Postgres {
            return Ok(());
        }
        for lanes in lanes.chunks(MAX_TOLD) {
            let lanes: Vec<String> = lanes.iter().map(i64::to_string).collect();
            let mut s = Statement::new(self.dialect(), "tell_ready");
            let text = s.text(&format!("{me} {}", lanes.join(",")));
            s.push(&format!(
                "SELECT set_config('synchronous_commit', 'off', true), {}",
                notify::queues_ready(&text)
            ));
            self.urgent.write(s).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_due_yet_stays() {
        let lanes = ReadyLanes::default();
        lanes.pending().here.extend([(UnixMs::new(5), 1), (UnixMs::new(5), 2), (UnixMs::new(6), 1)]);
        let (ready, next) = lanes.pending().take(UnixMs::new(5));
        assert_eq!((ready.here, next), (BTreeSet::from([1, 2]), Some(UnixMs::new(6))));
        let (ready, next) = lanes.pending().take(UnixMs::new(6));
        assert_eq!((ready.here, next), (BTreeSet::from([1]), None));
    }

    #[test]
    fn what_this_node_has_told_is_no_news() {
        let lanes = ReadyLanes::default();
        lanes.told("me 1,2", "me");
        assert!(lanes.pending().elsewhere.is_empty());
        lanes.told("other -3,4,x", "me");
        assert_eq!(lanes.pending().elsewhere, BTreeSet::from([-3, 4]));
    }
}

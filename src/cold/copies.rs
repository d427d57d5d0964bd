//! What every node knows a copy of: destinations, subscriptions, keys, namespaces, and whether there are schedules.
//!
//! A node that changes one of them notifies the others at its commit ([`super::notify`]). Notifications can be lost; so every
//! two seconds one statement asks for a mark of each ([`ColdStore::watch_marks`]), and what has another mark than before is
//! read. (Subscriptions have a version that writes are fenced by, and are asked for by their own loop.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::sql::{Dialect, Statement, Tx};
use super::{ColdStore, Error};
use crate::telemetry::Streak;

/// How often the marks are asked for. With the time of a read it is how long a change may count on one node only.
const EVERY: Duration = Duration::from_secs(2);

/// What every node knows a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// The destinations.
    Destinations,
    /// The subscriptions.
    Subscriptions,
    /// The keys.
    Keys,
    /// The namespaces.
    Namespaces,
}

impl Copied {
    pub(super) const ALL: [Self; 4] = [Self::Destinations, Self::Subscriptions, Self::Keys, Self::Namespaces];

    /// Its word in log lines.
    const fn word(self) -> &'static str {
        match self {
            Self::Destinations => "destinations",
            Self::Subscriptions => "subscriptions",
            Self::Keys => "keys",
            Self::Namespaces => "namespaces",
        }
    }

    pub(super) const fn channel(self) -> &'static str {
        match self {
            Self::Destinations => "mainspring_destinations",
            Self::Subscriptions => "mainspring_subscriptions",
            Self::Keys => "mainspring_keys",
            Self::Namespaces => "mainspring_namespaces",
        }
    }
}

/// Queries for a mark of each, a text that differs when that has changed. Sums differ after every commit, in whatever order
/// commits come; the highest time need not. Rows of namespaces are never deleted.
const MARKS: [(Copied, &str); 3] = [
    (Copied::Keys, "count(*) || ' ' || COALESCE(sum(created_at), 0) FROM api_keys"),
    (
        Copied::Namespaces,
        "count(*) || ' ' || count(removed_at) || ' ' || COALESCE(sum(version), 0) FROM namespaces",
    ),
    (
        Copied::Destinations,
        "count(*) || ' ' || COALESCE(sum(version), 0) || ' ' || COALESCE(sum(created_at), 0) FROM destinations",
    ),
];

/// What this process knows of the copies.
pub(super) struct Copies {
    destinations: Notify,
    keys: Notify,
    namespaces: Notify,
    /// Those of [`MARKS`], as they were last read.
    marks: Mutex<[Option<String>; MARKS.len()]>,
    has_schedules: AtomicBool,
}

impl Default for Copies {
    fn default() -> Self {
        let (destinations, keys, namespaces, marks) = Default::default();
        // Until it is asked.
        Self { destinations, keys, namespaces, marks, has_schedules: AtomicBool::new(true) }
    }
}

impl ColdStore {
    /// Wakes who reads these when another node has changed them, or may have.
    pub(super) fn changed(&self, what: Copied) -> &Notify {
        match what {
            Copied::Destinations => &self.copies.destinations,
            Copied::Subscriptions => &self.known_set.changed,
            Copied::Keys => &self.copies.keys,
            Copied::Namespaces => &self.copies.namespaces,
        }
    }

    /// Tells all nodes, at the commit of this transaction, that what they know a copy of has changed.
    pub(super) async fn tell_changed(&self, tx: &mut Tx, what: Copied) -> Result<(), Error> {
        if self.dialect() == Dialect::Postgres {
            let mut s = Statement::new(self.dialect(), "tell_changed");
            s.push(&format!("SELECT pg_notify('{}', '')", what.channel()));
            tx.fetch(s).await?;
        }
        Ok(())
    }

    /// Keeps a copy current. Calls `read` when another node has changed what it is of, or may have, with `true` until that
    /// succeeds; and every two seconds, for what else there is to do, with `false`. Runs until dropped, beside
    /// [`watch_marks`](Self::watch_marks).
    pub async fn keep_current<F>(&self, what: Copied, read: impl Fn(bool) -> F)
    where
        F: Future<Output = Result<(), Error>>,
    {
        let (mut streak, mut is_old) = (Streak::default(), false);
        loop {
            tokio::select! {
                () = self.changed(what).notified() => is_old = true,
                () = self.clock.sleep(EVERY) => {}
            }
            match read(is_old).await {
                Ok(()) => {
                    is_old = false;
                    streak.succeeded();
                }
                Err(why) if streak.failed(self.is_away()) => {
                    tracing::warn!(%why, "{} cannot be read; those that are known stay in force", what.word());
                }
                Err(_) => {}
            }
        }
    }

    /// Asks every two seconds whether what this node knows a copy of has changed, and has it read then. Runs until dropped.
    pub async fn watch_marks(&self) {
        let mut streak = Streak::default();
        loop {
            match self.look_at_marks().await {
                Ok(_) => drop(streak.succeeded()),
                Err(why) if streak.failed(self.is_away()) => {
                    tracing::warn!(
                        %why,
                        "it cannot be asked what other nodes have changed; keys, namespaces and destinations that are \
                         known stay in force"
                    );
                }
                Err(_) => {}
            }
            self.clock.sleep(EVERY).await;
        }
    }

    /// One look, and what it found changed; that is everything when it is the first.
    pub async fn look_at_marks(&self) -> Result<Vec<Copied>, Error> {
        let mut s = Statement::new(self.dialect(), "marks");
        let marks = MARKS.map(|(_, mark)| format!("(SELECT {mark}), ")).concat();
        s.push(&format!(
            "SELECT {marks} CASE WHEN EXISTS (SELECT 1 FROM schedules WHERE make_at IS NOT NULL) \
             OR EXISTS (SELECT 1 FROM timers WHERE schedule IS NOT NULL) THEN true ELSE false END"
        ));
        let rows = self.urgent.read(s).await?;
        let Some(row) = rows.first() else {
            return Err(Error::Corrupt("nothing tells what has changed".into()));
        };
        let mut changed = Vec::new();
        let mut marks = self.copies.marks.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, ((what, _), known)) in MARKS.iter().zip(marks.iter_mut()).enumerate() {
            let mark = Some(row.get(at)?);
            if *known != mark {
                *known = mark;
                self.changed(*what).notify_one();
                changed.push(*what);
            }
        }
        self.copies.has_schedules.store(row.get(MARKS.len())?, Ordering::SeqCst);
        Ok(changed)
    }

    /// Whether there is any schedule that makes occurrences, or any occurrence, as far as this node knows: of the first one,
    /// which another node has made, it learns within two seconds.
    pub(super) fn has_schedules(&self) -> bool {
        self.copies.has_schedules.load(Ordering::SeqCst)
    }

    /// This node makes one.
    pub(super) fn set_has_schedules(&self) {
        self.copies.has_schedules.store(true, Ordering::SeqCst);
    }
}

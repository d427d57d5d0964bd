//! What every node knows a copy of: destinations, subscriptions, keys and namespaces.
//!
//! A node that changes one of them notifies the others at its commit ([`super::notify`]). Notifications can be lost; so every
//! two seconds one statement asks for a mark of each ([`ColdStore::watch_marks`]), and a copy that has another one is read.
//! While that statement fails, each is read by itself. (Subscriptions have a version that writes are fenced by, and are asked
//! for by their own loop.)
//!
//! The same statement tells whether there are schedules. Nobody is notified of those: other nodes know of a store's first one
//! after their next look.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::sql::{Dialect, Statement, Tx};
use super::{ColdStore, Error};
use crate::telemetry::Streak;

/// How often the marks are asked for. With the time of that and of a read, it is how long a change may count on one node
/// only.
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

/// Tells a copy from another: how many rows it has, and sums of what differs after a change. It is made of the rows, by the
/// store and by who read them. So it is the same again when a change was taken back, and a copy is set against its own mark,
/// never against the mark of the look before: in between it may have been read for another reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// The mark of these rows.
    pub(super) fn of<const N: usize>(rows: impl Iterator<Item = [i64; N]>) -> Self {
        let (mut count, mut sums) = (0, [0; N]);
        for row in rows {
            count += 1;
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        Self::summed(count, sums)
    }

    /// The mark of so many rows.
    pub(super) fn summed<const N: usize>(count: i64, sums: [i64; N]) -> Self {
        Self(sums.iter().fold(count.to_string(), |mark, sum| format!("{mark} {sum}")))
    }
}

/// Queries for the mark of each.
const MARKS: [(Copied, &str); 3] = [
    (Copied::Keys, "count(*) || ' ' || COALESCE(sum(created_at), 0) FROM api_keys"),
    (
        Copied::Namespaces,
        "count(*) || ' ' || COALESCE(sum(version), 0) || ' ' || COALESCE(sum(created_at), 0) \
         FROM namespaces WHERE removed_at IS NULL",
    ),
    (
        Copied::Destinations,
        "count(*) || ' ' || COALESCE(sum(version), 0) || ' ' || COALESCE(sum(created_at), 0) FROM destinations",
    ),
];

/// What this process knows of the copies.
#[derive(Default)]
pub(super) struct Copies {
    destinations: Notify,
    keys: Notify,
    namespaces: Notify,
    found: Mutex<Found>,
}

/// What was found in the store.
#[derive(Default)]
struct Found {
    /// The marks of this process's copies, in the order of [`MARKS`].
    marks: [Option<Mark>; MARKS.len()],
    /// There are no schedules.
    has_none: bool,
    /// How often this process has written schedules.
    written: u64,
    /// The same when the last look began.
    written_before: u64,
}

impl Copies {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
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
                Err(why) => {
                    self.doubt_all();
                    if streak.failed(self.is_away()) {
                        tracing::warn!(
                            %why,
                            "what other nodes have changed cannot be asked in one; keys, namespaces and destinations are \
                             read each by itself"
                        );
                    }
                }
            }
            self.clock.sleep(EVERY).await;
        }
    }

    /// Tells the mark of a copy that was read.
    pub fn note_copy(&self, what: Copied, mark: Mark) {
        let mut found = self.copies.found();
        for ((one, _), known) in MARKS.iter().zip(&mut found.marks) {
            if *one == what {
                *known = Some(mark);
                return;
            }
        }
    }

    /// One look. Returns which copies have another mark than the store's rows, or none yet; they are read.
    pub async fn look_at_marks(&self) -> Result<Vec<Copied>, Error> {
        let mut s = Statement::new(self.dialect(), "marks");
        let marks = MARKS.map(|(_, mark)| format!("(SELECT {mark}), ")).concat();
        s.push(&format!(
            "SELECT {marks} CASE WHEN EXISTS (SELECT 1 FROM schedules WHERE make_at IS NOT NULL) \
             OR EXISTS (SELECT 1 FROM timers WHERE schedule IS NOT NULL) THEN true ELSE false END"
        ));
        let written = self.copies.found().written;
        let rows = self.urgent.read(s).await?;
        let row = rows.first().ok_or_else(|| Error::Corrupt("nothing tells what has changed".into()))?;
        let has_schedules: bool = row.get(MARKS.len())?;
        let (mut changed, mut found) = (Vec::new(), self.copies.found());
        for (at, ((what, _), known)) in MARKS.iter().zip(&found.marks).enumerate() {
            if *known != Some(Mark(row.get(at)?)) {
                self.changed(*what).notify_one();
                changed.push(*what);
            }
        }
        // What is written since the look before may be committed after this one.
        found.has_none = !has_schedules && found.written == found.written_before;
        found.written_before = written;
        Ok(changed)
    }

    /// What the marks do not tell is read by who knows it, and the maker asks for schedules.
    fn doubt_all(&self) {
        MARKS.iter().for_each(|(what, _)| self.changed(*what).notify_one());
        self.copies.found().has_none = false;
    }

    /// Whether there may be a schedule that makes occurrences, or an occurrence.
    pub(super) fn may_have_schedules(&self) -> bool {
        !self.copies.found().has_none
    }

    /// This process writes a schedule, in a transaction that is open.
    pub(super) fn note_schedule(&self) {
        let mut found = self.copies.found();
        found.written += 1;
        found.has_none = false;
    }
}

//! Chooses the moments of timers that are spread, by what is due around them.
//!
//! No registration waits for a count: it is chosen by what is in memory ([`counts`]). A range that is new there is read
//! by [`ColdStore::follow_spread`] a moment later; until then this node's own registrations are all that is known of it.
//! Two nodes that spread over one range at the same time even out each by itself, so their sum is even, too.

mod counts;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use self::counts::{Counts, Key, Scale, Todo};
use super::apply::{ChangeEvent, Edit};
use super::register::{NewTimer, Registered};
use super::row::TimerRow;
use super::{ColdStore, Error};
use crate::clock::Monotonic;
use crate::model::id::Uid;
use crate::model::spread::Spread;
use crate::model::time::UnixMs;

/// A block with more timers is not counted row by row but taken from the forecast's summary.
const MOST_COUNTED: i64 = 2_000_000;

/// A bin of the summary is taken to be this long at most, in milliseconds.
const HOUR_MS: i64 = 3_600_000;

/// What is known of the ranges that timers are spread over.
#[derive(Clone, Default)]
pub(super) struct Spreads {
    counts: Arc<Mutex<Counts>>,
    /// There is a new range to read.
    is_new: Arc<Notify>,
}

impl Spreads {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, spread: &Spread, owner: &str, uid: Uid, now: UnixMs, minute: bool) -> UnixMs {
        let candidates: Vec<UnixMs> = spread.candidates(owner, uid, now, minute).collect();
        let scale = Scale::of(spread.within.get());
        let (chosen, is_new) = self.counts().choose(scale, &candidates, Monotonic::now());
        if is_new {
            self.is_new.notify_one();
        }
        chosen
    }
}

impl ColdStore {
    /// Chooses the due times of those timers that are spread. What becomes of them is told by
    /// [`ColdStore::note_registered`].
    pub fn choose_moments<'a>(&self, timers: &'a [NewTimer]) -> Cow<'a, [NewTimer]> {
        if timers.iter().all(|timer| timer.spread.is_none()) {
            return Cow::Borrowed(timers);
        }
        let mut timers = timers.to_vec();
        for timer in &mut timers {
            if let Some(spread) = &timer.spread {
                let owner = timer.owner.as_deref().unwrap_or(timer.id.as_str());
                timer.due_at = self.spreads.choose(spread, owner, timer.uid, timer.created_at, timer.minute);
            }
        }
        Cow::Owned(timers)
    }

    /// Counts what was registered, where timers are spread, and no longer counts what was spread and not registered.
    pub fn note_registered(&self, timers: &[NewTimer], answers: &[Result<Registered, Error>]) {
        let mut counts = self.spreads.counts();
        if counts.is_empty() {
            return;
        }
        for (timer, answer) in timers.iter().zip(answers) {
            match (Registered::new_row(answer).is_some(), timer.spread.is_some()) {
                (true, false) => counts.note(timer.due_at, 1),
                (false, true) => counts.note(timer.due_at, -1),
                (true, true) | (false, false) => {}
            }
        }
    }

    /// The change with the due time chosen, if it gives a new one to a timer that is spread. The due time that it was
    /// spread from before is none: its moment stays.
    pub(super) fn spread_anew<'a>(
        &self,
        row: &TimerRow,
        event: &'a ChangeEvent,
        now: UnixMs,
    ) -> Cow<'a, ChangeEvent> {
        let (Some(before), ChangeEvent::Edit(Edit { due_at: Some(from), .. })) = (row.spread, event) else {
            return Cow::Borrowed(event);
        };
        let mut event = event.clone();
        if let ChangeEvent::Edit(edit) = &mut event {
            let is_same = *from == before.from && before.holds(row.life.due_at, row.minute);
            let spread = Spread { from: *from, ..before };
            let owner = row.owner.as_deref().unwrap_or(&row.id);
            (edit.due_at, edit.spread_from) = match is_same {
                true => (None, None),
                false => {
                    let at = self.spreads.choose(&spread, owner, row.uid, now, row.minute);
                    (Some(at), Some(*from))
                }
            };
        }
        Cow::Owned(event)
    }

    /// Reads the ranges that timers are spread over, for ever.
    pub async fn follow_spread(self) {
        loop {
            let todo = self.spreads.counts().next(Monotonic::now());
            match todo {
                Todo::Nothing => self.spreads.is_new.notified().await,
                Todo::Wait(pause) => {
                    tokio::select! {
                        () = self.clock.sleep(pause) => {}
                        () = self.spreads.is_new.notified() => {}
                    }
                }
                Todo::Read(key) => {
                    let began = Monotonic::now();
                    let found = self.due_by_cell(key).await;
                    if let Err(why) = &found {
                        tracing::debug!(%why, "what is due in a range that timers are spread over cannot be read; tried again");
                    }
                    let ended = Monotonic::now();
                    self.spreads.counts().read(key, found.as_ref().ok(), ended, ended.since(began));
                }
            }
        }
    }

    /// How many timers are due in each cell of a block.
    async fn due_by_cell(&self, key: Key) -> Result<BTreeMap<i64, i64>, Error> {
        let ((from, to), cell_ms) = (key.range(), key.scale.cell_ms());
        if let Some(counted) = self.count_due(from, to, cell_ms, MOST_COUNTED).await? {
            return Ok(counted);
        }
        // By the minute or by the hour: a bin is shared out evenly among its cells.
        let summary = self.summary().await?.unwrap_or_default();
        let bins: Vec<_> = summary.bins().filter(|(at, _)| (from..to).contains(at)).collect();
        let mut counted = BTreeMap::new();
        for (n, (at, count)) in bins.iter().enumerate() {
            let end = bins.get(n + 1).map_or(to, |(next, _)| *next).min(UnixMs::new(at.get() + HOUR_MS));
            let cells = ((at.get() - from.get()) / cell_ms)..((end.get() - from.get()) / cell_ms);
            let each = count / (cells.end - cells.start).max(1);
            counted.extend(cells.map(|cell| (cell, each)));
        }
        Ok(counted)
    }
}

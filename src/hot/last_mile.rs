//! The last mile: the pointers of taken slots, in order of their due milliseconds.
//!
//! Nothing here is durable and nothing has to be: the sweep finds the timer of a pointer that is lost here. A pointer is
//! handed out `lead` before it is due, together with those of a few milliseconds, so that claims come in batches; the
//! attempt itself waits for the due millisecond ([`crate::dispatch`]). Pointers of a shard that is about to be handed
//! over are handed out earlier ([`LastMile::hand_out_ceding`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock::StoreClock;
use crate::dispatch::{Dispatcher, OVERDUE};
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;
use crate::ownership::CEDING_REACH;

/// With so many pointers the last mile is full, and the ticker takes no further slot.
const MAX_HELD: usize = 500_000;

/// How long pointers are gathered between two hand-outs.
const GATHER: Duration = Duration::from_millis(5);

/// The longest sleep. A clock that is set forward is noticed after this time at the latest.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The most pointers offered at once: the lanes are locked meanwhile.
const BATCH: usize = 1000;

#[derive(Debug)]
struct Entry {
    wake_at: UnixMs,
    uid: Uuid,
    pointer: Pointer,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.wake_at, self.uid) == (other.wake_at, other.uid)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.wake_at, self.uid).cmp(&(other.wake_at, other.uid))
    }
}

/// Holds the pointers of timers that are due within moments, and hands them to the dispatcher in time.
pub struct LastMile {
    heap: Mutex<BinaryHeap<Reverse<Entry>>>,
    /// A pointer came that is due earlier than all others.
    earlier: Notify,
    dispatcher: Arc<Dispatcher>,
    clock: StoreClock,
    lead: Duration,
    metrics: Metrics,
}

impl LastMile {
    /// A last mile before this dispatcher, which claims `lead` ahead.
    pub fn new(
        dispatcher: Arc<Dispatcher>,
        clock: StoreClock,
        lead: Duration,
        metrics: Metrics,
    ) -> Arc<Self> {
        let heap = Mutex::default();
        Arc::new(Self { heap, earlier: Notify::new(), dispatcher, clock, lead, metrics })
    }

    /// Adds pointers.
    pub fn push(&self, pointers: &[Pointer]) {
        if pointers.is_empty() {
            return;
        }
        let earlier = self.with(|heap| {
            let before = heap.peek().map(|Reverse(first)| first.wake_at);
            heap.extend(pointers.iter().map(|pointer| {
                Reverse(Entry { wake_at: pointer.wake_at, uid: pointer.uid.0, pointer: *pointer })
            }));
            before.is_none_or(|before| heap.peek().is_some_and(|Reverse(first)| first.wake_at < before))
        });
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// Whether there is room for another slot of pointers.
    pub fn has_room(&self) -> bool {
        self.held() < MAX_HELD
    }

    /// How many pointers it holds.
    pub fn held(&self) -> usize {
        self.with(|heap| heap.len())
    }

    /// Hands out until stopped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let next = self.run_once(self.clock.now());
            self.metrics.last_mile.set(i64::try_from(self.held()).unwrap_or(i64::MAX));
            let wait = next.map_or(LONGEST_SLEEP, |at| {
                self.clock.until(at).saturating_sub(self.lead).clamp(GATHER, LONGEST_SLEEP)
            });
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.dispatcher.ownership().ceding() => self.hand_out_ceding(self.clock.now()),
                // Even a pointer that is due at once waits a moment for others.
                () = self.earlier.notified() => tokio::time::sleep(GATHER.min(wait) / 2).await,
            }
        }
    }

    /// Takes out up to `most` pointers that are due by `until`, earliest first. Also returns when the next one is due.
    pub fn take_due(&self, until: UnixMs, most: usize) -> (Vec<Pointer>, Option<UnixMs>) {
        self.with(|heap| {
            let mut due = Vec::new();
            while due.len() < most && heap.peek().is_some_and(|Reverse(first)| first.wake_at <= until) {
                due.extend(heap.pop().map(|Reverse(entry)| entry.pointer));
            }
            (due, heap.peek().map(|Reverse(first)| first.wake_at))
        })
    }

    /// Hands out the pointers that are due by `now` and the lead; returns when the next one is due. A pointer whose lane
    /// is full is dropped, and the sweep finds its timer: kept here, it would stand before pointers for other
    /// receivers.
    pub fn run_once(&self, now: UnixMs) -> Option<UnixMs> {
        let until = now.plus(self.lead);
        loop {
            let (mut due, next) = self.take_due(until, BATCH);
            if due.is_empty() {
                return next;
            }
            // Pointers of slots that were taken late: timers that fall due now do not wait behind them.
            due.iter_mut().for_each(|pointer| pointer.overdue |= now.since(pointer.wake_at) > OVERDUE);
            self.dispatcher.offer(&due);
        }
    }

    /// Hands out the pointers that are due soon in shards that are about to be handed over. A pointer whose lane is full is
    /// dropped: the next owner reads its timer from SQL.
    pub fn hand_out_ceding(&self, now: UnixMs) {
        let until = now.plus(CEDING_REACH);
        let ownership = self.dispatcher.ownership();
        let is_ceding = |entry: &Entry| entry.wake_at <= until && ownership.is_ceding(entry.pointer.shard);
        let mut ceding: Vec<Entry> = self.with(|heap| {
            let (ceding, others): (Vec<_>, Vec<_>) =
                std::mem::take(heap).into_iter().partition(|Reverse(entry)| is_ceding(entry));
            *heap = others.into();
            ceding.into_iter().map(|Reverse(entry)| entry).collect()
        });
        ceding.sort_unstable();
        let ceding: Vec<Pointer> = ceding.into_iter().map(|entry| entry.pointer).collect();
        self.dispatcher.offer(&ceding);
    }

    fn with<T>(&self, run: impl FnOnce(&mut BinaryHeap<Reverse<Entry>>) -> T) -> T {
        run(&mut self.heap.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

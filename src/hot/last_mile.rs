//! The last mile: pointers whose slot was taken, in order of their due milliseconds.
//!
//! Nothing here is durable and nothing has to be: a pointer that is lost here is found by the sweep. A
//! pointer is let go `lead` before it is due, a few milliseconds' worth at a time, so that claims come in
//! batches; the attempt itself waits for the due millisecond ([`crate::dispatch`]). Those of a shard that is
//! about to be handed over are let go earlier ([`LastMile::part`]).

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
use crate::ownership::PARTING_REACH;

/// Pointers that the last mile holds before the ticker waits with further slots.
const HELD: usize = 500_000;

/// How long pointers gather between two hand-outs.
const GATHER: Duration = Duration::from_millis(5);

/// The longest sleep: a clock that is set forward is noticed this late.
const LONGEST: Duration = Duration::from_secs(1);

/// The most pointers handed out before others may have the lanes.
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

/// Holds what is due within moments, and hands it to the dispatcher in time.
pub struct LastMile {
    heap: Mutex<BinaryHeap<Reverse<Entry>>>,
    /// Something came that is due earlier than all before.
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

    /// Takes pointers over.
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

    /// Whether there is room for another slot.
    pub fn has_room(&self) -> bool {
        self.held() < HELD
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
            let wait = next
                .map_or(LONGEST, |at| self.clock.until(at).saturating_sub(self.lead).clamp(GATHER, LONGEST));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.dispatcher.ownership().parting() => self.part(self.clock.now()),
                // Even what is due at once lets others gather for a moment.
                () = self.earlier.notified() => tokio::time::sleep(GATHER.min(wait) / 2).await,
            }
        }
    }

    /// Takes out what is due by `until`, earliest first and at most so many; tells when the next is due.
    pub fn take_due(&self, until: UnixMs, most: usize) -> (Vec<Pointer>, Option<UnixMs>) {
        self.with(|heap| {
            let mut due = Vec::new();
            while due.len() < most && heap.peek().is_some_and(|Reverse(first)| first.wake_at <= until) {
                due.extend(heap.pop().map(|Reverse(entry)| entry.pointer));
            }
            (due, heap.peek().map(|Reverse(first)| first.wake_at))
        })
    }

    /// Hands out what is due by `now` and the lead, and tells when the next is due. What finds its lane full is
    /// left to the sweep: kept here it would stand before what is due for others.
    pub fn run_once(&self, now: UnixMs) -> Option<UnixMs> {
        let until = now.plus(self.lead);
        loop {
            let (mut due, next) = self.take_due(until, BATCH);
            if due.is_empty() {
                return next;
            }
            // Slots that nobody took for a while: what falls due now does not wait behind what lay in them.
            due.iter_mut().for_each(|one| one.overdue |= now.since(one.wake_at) > OVERDUE);
            self.dispatcher.offer(&due);
        }
    }

    /// Hands out what is due soon in shards that are about to be handed over. What finds no room is dropped: the
    /// next owner reads it from SQL.
    pub fn part(&self, now: UnixMs) {
        let until = now.plus(PARTING_REACH);
        let ownership = self.dispatcher.ownership();
        let goes = |entry: &Entry| entry.wake_at <= until && ownership.is_parting(entry.pointer.shard);
        let mut parting: Vec<Entry> = self.with(|heap| {
            let (parting, rest): (Vec<_>, Vec<_>) =
                std::mem::take(heap).into_iter().partition(|Reverse(entry)| goes(entry));
            *heap = rest.into();
            parting.into_iter().map(|Reverse(entry)| entry).collect()
        });
        parting.sort_unstable();
        let parting: Vec<Pointer> = parting.into_iter().map(|entry| entry.pointer).collect();
        self.dispatcher.offer(&parting);
    }

    fn with<T>(&self, run: impl FnOnce(&mut BinaryHeap<Reverse<Entry>>) -> T) -> T {
        run(&mut self.heap.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

//! What the quotas of a namespace leave to it now: calls a second, and live timers.
//!
//! *Calls*, all nodes together: time is reserved in the store, as for a destination with a rate. A node that gets calls reserves
//! the time of a twentieth of a second's calls; once that time has come, so many calls may pass. So all nodes together let pass
//! what the quota says, and each is at most one such part ahead.
//!
//! *Live timers*: the ledger is read every two seconds, and what this node has admitted since counts too. Several nodes may
//! exceed the quota by what they register within that time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error};
use crate::model::id::digest16;
use crate::model::namespace::Namespace;

/// Reserved at once: the calls of a second divided by this.
const PARTS: u32 = 20;

/// A call waits so long for the time that was reserved, before it is refused.
const SOON: Duration = Duration::from_millis(50);

/// By then those that waited have come.
const MOMENT: Duration = Duration::from_millis(2);

/// A call that a quota does not admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It may be made again after so long.
    Wait(Duration),
    /// It holds more timers than the quota admits in a second.
    TooLarge,
}

/// The calls of one namespace that may pass on this node.
#[derive(Debug, Default)]
struct Calls {
    /// How many.
    passes: u32,
    /// From when on.
    from: Option<Monotonic>,
    /// Where no other node shares the store: when the next ones may, in microseconds of this process's clock.
    next_us: i64,
}

/// The live timers of one namespace.
#[derive(Debug, Clone, Copy, Default)]
struct Live {
    counted: i64,
    admitted: i64,
}

/// One namespace's calls, and how many wait for the next that may pass.
#[derive(Debug, Default)]
struct OfOne {
    calls: tokio::sync::Mutex<Calls>,
    waiting: AtomicU32,
}

/// Calls that wait count until this is dropped.
#[derive(Debug)]
struct Waits<'a> {
    of: &'a OfOne,
    count: u32,
}

/// What is left of quotas.
#[derive(Debug, Default)]
pub struct Left {
    calls: Mutex<HashMap<Namespace, Arc<OfOne>>>,
    live: Mutex<HashMap<Namespace, Live>>,
}

/// By this the time of a namespace's calls is reserved, among the lanes of destinations.
fn lane(namespace: Namespace) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = digest16(&[b"calls", &namespace.0.to_be_bytes()]);
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl Left {
    /// Takes `count` of the calls of a namespace that has `per_second` of them. Waits a moment for what is about to be free.
    pub async fn take(
        &self,
        store: &ColdStore,
        namespace: Namespace,
        per_second: u32,
        count: u32,
    ) -> Result<Result<(), Over>, Error> {
        if count == 0 {
            return Ok(Ok(()));
        }
        if count > per_second {
            return Ok(Err(Over::TooLarge));
        }
        let of_one = Arc::clone(lock(&self.calls).entry(namespace).or_default());
        let wait = of_one.take(store, namespace, per_second, (count, false)).await?;
        if wait.is_zero() {
            return Ok(Ok(()));
        }
        // Other calls have just taken the rest of a part, and the next is free in a moment. No more wait for it than may pass
        // then: the others of a flood are refused at once, and do not come again all together.
        let waits = (wait <= SOON).then(|| of_one.wait(count, part(per_second).max(count))).flatten();
        if waits.is_none() {
            return Ok(Err(Over::Wait(wait)));
        }
        tokio::time::sleep(wait).await;
        let wait = of_one.take(store, namespace, per_second, (count, true)).await?;
        Ok(if wait.is_zero() { Ok(()) } else { Err(Over::Wait(wait)) })
    }

    /// Admits up to `count` more live timers to a namespace that may have `most`; returns how many.
    pub fn admit(&self, namespace: Namespace, most: u64, count: usize) -> usize {
        let mut live = lock(&self.live);
        let one = live.entry(namespace).or_default();
        let room = i64::try_from(most).unwrap_or(i64::MAX).saturating_sub(one.counted + one.admitted).max(0);
        let admitted = i64::try_from(count).unwrap_or(i64::MAX).min(room);
        one.admitted += admitted;
        usize::try_from(admitted).unwrap_or(count)
    }

    /// Of the timers that were admitted to a namespace, so many did not become new ones.
    pub fn give_back(&self, namespace: Namespace, count: usize) {
        if let Some(one) = lock(&self.live).get_mut(&namespace) {
            // They may have been counted away meanwhile.
            one.admitted = one.admitted.saturating_sub(i64::try_from(count).unwrap_or(i64::MAX)).max(0);
        }
    }

    /// Reads how many live timers these namespaces have.
    pub async fn count(&self, store: &ColdStore, which: &[Namespace]) -> Result<(), Error> {
        // What is admitted from here on may be in the count already: it counts twice for two seconds.
        let before: HashMap<Namespace, i64> =
            lock(&self.live).iter().map(|(namespace, one)| (*namespace, one.admitted)).collect();
        let counted = if which.is_empty() { Vec::new() } else { store.live_counts(which).await? };
        let mut live = lock(&self.live);
        live.retain(|namespace, _| which.contains(namespace));
        for (namespace, counted) in which.iter().zip(counted) {
            let one = live.entry(*namespace).or_default();
            let admitted = one.admitted - before.get(namespace).copied().unwrap_or(0);
            *one = Live { counted, admitted: admitted.max(0) };
        }
        Ok(())
    }
}

impl OfOne {
    /// Takes so many, which have waited or not; returns how long that is too early, and then has taken none.
    async fn take(
        &self,
        store: &ColdStore,
        namespace: Namespace,
        per_second: u32,
        (count, has_waited): (u32, bool),
    ) -> Result<Duration, Error> {
        let mut calls = self.calls.lock().await;
        loop {
            // What was kept for those that wait is theirs, if they come a moment later than a new one.
            let before = if has_waited { 0 } else { self.waiting.load(Relaxed) };
            match calls.take(count, before, per_second, Monotonic::now()) {
                Take::Taken => return Ok(Duration::ZERO),
                Take::Early(wait) => return Ok(wait),
                Take::Reserve(part) => {
                    let start_us = calls.reserve(store, lane(namespace), span_us(part, per_second)).await?;
                    let wait = Duration::from_micros(u64::try_from(start_us).unwrap_or(0));
                    calls.from = Some(Monotonic::now().plus(wait));
                    calls.passes += part;
                }
            }
        }
    }

    /// Has so many calls wait, unless more than `most` would.
    fn wait(&self, count: u32, most: u32) -> Option<Waits<'_>> {
        let more = |waiting: u32| waiting.checked_add(count).filter(|all| *all <= most);
        self.waiting.fetch_update(Relaxed, Relaxed, more).ok().map(|_| Waits { of: self, count })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.of.waiting.fetch_sub(self.count, Relaxed);
    }
}

/// What may be done for a call.
#[derive(Debug, PartialEq, Eq)]
enum Take {
    /// It may pass.
    Taken,
    /// It is too early, by so long.
    Early(Duration),
    /// So many more have to be reserved first.
    Reserve(u32),
}

impl Calls {
    /// Takes `count` of those that may pass, if there are as many beside those for which `before` calls wait.
    fn take(&mut self, count: u32, before: u32, per_second: u32, now: Monotonic) -> Take {
        let wait = self.from.map_or(Duration::ZERO, |from| from.since(now));
        if !wait.is_zero() {
            return Take::Early(wait);
        }
        if self.passes >= count.saturating_add(before) {
            self.passes -= count;
            return Take::Taken;
        }
        if before > 0 {
            return Take::Early(MOMENT);
        }
        Take::Reserve(part(per_second).max(count - self.passes))
    }

    /// Reserves a span of time, in microseconds; returns in how many it begins.
    async fn reserve(&mut self, store: &ColdStore, lane: i64, span: i64) -> Result<i64, Error> {
        if store.is_shared() {
            // As one step: what lies so many steps ahead that no set of nodes can have reserved it is told by it.
            let reserved = store.reserve_slots(&[(lane, 1, span)], 0).await?;
            return Ok(reserved.first().map_or(0, |one| one.start_us).max(0));
        }
        let now_us = Monotonic::now().as_us();
        let start = self.next_us.max(now_us);
        self.next_us = start + span;
        Ok(start - now_us)
    }
}

/// How many calls are reserved at once.
fn part(per_second: u32) -> u32 {
    (per_second / PARTS).max(1)
}

/// The time of so many calls, in microseconds, where `per_second` may pass. Of all together: that of a single one may be a
/// fraction.
fn span_us(count: u32, per_second: u32) -> i64 {
    let span = (u64::from(count) * 1_000_000).div_ceil(u64::from(per_second.max(1)));
    i64::try_from(span).unwrap_or(i64::MAX)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock is held leaves plain numbers.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_calls_is_that_of_their_rate() {
        for rate in [1, 3, 100, 7000, 150_000, 600_000, 1_000_000] {
            for count in [rate, part(rate)] {
                let span = span_us(count, rate) as f64 / 1e6;
                let passed = f64::from(count) / span;
                assert!((0.99..=1.0).contains(&(passed / f64::from(rate))), "{passed} of {rate}");
            }
        }
    }

    #[test]
    fn no_more_calls_wait_than_may_pass_then() {
        let one = OfOne::default();
        let waiting: Vec<_> = (0..3).map(|_| one.wait(3, 10).expect("room")).collect();
        assert!(one.wait(3, 10).is_none());
        let last = one.wait(1, 10).expect("room for one");
        drop(waiting);
        drop(last);
        assert!(one.wait(11, 10).is_none() && one.wait(10, 10).is_some());
    }

    #[test]
    fn what_is_kept_for_those_that_wait_is_theirs() {
        let mut calls = Calls::default();
        let now = Monotonic::now();
        assert_eq!(calls.take(1, 0, 100, now), Take::Reserve(5));
        (calls.passes, calls.from) = (5, Some(now.plus(SOON)));
        assert_eq!(calls.take(1, 0, 100, now), Take::Early(SOON));
        let then = now.plus(SOON);
        assert_eq!(calls.take(1, 4, 100, then), Take::Taken, "one is free");
        assert_eq!(calls.take(1, 4, 100, then), Take::Early(MOMENT), "the others are not");
        assert_eq!(calls.take(9, 4, 100, then), Take::Early(MOMENT), "nor is their time moved");
        for _ in 0..4 {
            assert_eq!(calls.take(1, 0, 100, then), Take::Taken);
        }
        assert_eq!(calls.take(9, 0, 100, then), Take::Reserve(9));
    }

    #[test]
    fn no_more_live_timers_are_admitted_than_there_is_room_for() {
        let left = Left::default();
        let one = Namespace(1);
        assert_eq!([left.admit(one, 10, 4), left.admit(one, 10, 4), left.admit(one, 10, 4)], [4, 4, 2]);
        assert_eq!([left.admit(one, 10, 1), left.admit(Namespace(2), 10, 1)], [0, 1]);
        assert_eq!(left.admit(one, 5, 1), 0, "the quota is smaller now");
    }
}

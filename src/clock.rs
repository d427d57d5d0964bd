//! The only module that reads a clock.
//!
//! Two kinds of time exist and never mix. *Wall time* ([`UnixMs`]) decides what is due. *Monotonic time*
//! ([`Monotonic`], `CLOCK_BOOTTIME`, which keeps counting while the machine is suspended) measures durations and
//! ends waits. All other modules take `now` as an argument.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::model::time::UnixMs;

/// Reads wall time. There are two implementations: the machine's clock, and one that tests set by hand.
pub trait Clock: Send + Sync + 'static {
    /// Wall time, in milliseconds since the Unix epoch.
    fn now(&self) -> UnixMs;

    /// Completes when this much time has passed, or a little later.
    fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(by))
    }
}

/// The machine's wall clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMs {
        #[expect(clippy::disallowed_methods, reason = "this is the module that reads the clock")]
        let now = std::time::SystemTime::now();
        match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => UnixMs::new(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
            Err(before) => UnixMs::new(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

/// Wall time in microseconds since the Unix epoch. For measurements only; due times are compared in milliseconds.
pub fn wall_us() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    t.tv_sec * 1_000_000 + t.tv_nsec / 1000
}

/// A clock that moves only when a test moves it.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: UnixMs) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(start.get())))
    }

    /// Moves the clock forward by `by` and returns the new time.
    pub fn advance(&self, by: Duration) -> UnixMs {
        let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        UnixMs::new(self.0.fetch_add(ms, Ordering::SeqCst).saturating_add(ms))
    }

    /// Sets the clock, backwards too.
    pub fn set(&self, to: UnixMs) {
        self.0.store(to.get(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMs {
        UnixMs::new(self.0.load(Ordering::SeqCst))
    }
}

/// A moment of monotonic time, microseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(i64);

impl Monotonic {
    /// Reads the clock.
    pub fn now() -> Self {
        #[cfg(feature = "planted")]
        if let Some(set) = SET.get() {
            return set;
        }
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(t.tv_sec * 1_000_000 + t.tv_nsec / 1000)
    }

    /// From now on [`Monotonic::now`] returns this time on the calling thread, counted from an arbitrary zero. The
    /// simulation sets wall time and monotonic time together, and each of its runs has a thread of its own.
    #[cfg(feature = "planted")]
    pub fn turn(to: Duration) {
        SET.set(Some(Self(0).plus(to)));
    }

    /// How long ago this was; zero if it lies ahead.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// How long after `earlier` this is; zero if it is before.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This moment, `by` later.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Whole milliseconds; comparable only within one boot of one machine.
    pub fn as_ms(self) -> i64 {
        self.0.div_euclid(1000)
    }
}

#[cfg(feature = "planted")]
thread_local! {
    static SET: std::cell::Cell<Option<Monotonic>> = const { std::cell::Cell::new(None) };
}

/// A node's estimate of the cold store's clock: a lower bound, never ahead of it.
///
/// Every answer that carries the store's time gives a bound: that time plus the monotonic time since the
/// answer *arrived*. Time on the network, or a wait for a lock, only makes the bound lower, so the highest bound
/// of the last ten to twenty seconds is the best one. Older bounds are dropped; otherwise the estimate would be
/// ahead of a store whose clock was set back. On SQLite the store's clock is this process's own.
#[derive(Clone)]
pub struct StoreClock {
    wall: Arc<dyn Clock>,
    bounds: Option<Arc<Mutex<Bounds>>>,
}

/// Bounds as offsets: store time − monotonic time, in microseconds.
struct Bounds {
    current: i64,
    previous: i64,
    since: Monotonic,
}

/// How long bounds are collected; those of the window before are kept, older ones are dropped.
const WINDOW: Duration = Duration::from_secs(10);

impl StoreClock {
    /// For a store in this process (SQLite), and for tests that set its clock: `wall` is the store's clock.
    pub fn local(wall: Arc<dyn Clock>) -> Self {
        Self { wall, bounds: None }
    }

    /// For a store that has a clock of its own. Until its first answer, `wall` is used in its place.
    pub fn remote(wall: Arc<dyn Clock>) -> Self {
        let now = Monotonic::now();
        let guess = wall.now().get() * 1000 - now.0;
        // `since` is so long ago that the first answer replaces this guess.
        let bounds = Bounds { current: guess, previous: guess, since: Monotonic(i64::MIN / 2) };
        Self { wall, bounds: Some(Arc::new(Mutex::new(bounds))) }
    }

    /// Records the store's time from an answer that has just arrived.
    pub fn observe(&self, store: UnixMs) {
        let Some(bounds) = &self.bounds else { return };
        let now = Monotonic::now();
        // The store truncates its time to whole milliseconds, so the bound stays below the true time.
        let bound = store.get() * 1000 - now.0;
        let mut bounds = bounds.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= bounds.since.plus(WINDOW) {
            let stale = now >= bounds.since.plus(WINDOW * 2);
            bounds.previous = if stale { bound } else { bounds.current };
            bounds.current = bound;
            bounds.since = now;
        } else {
            bounds.current = bounds.current.max(bound);
        }
    }

    /// The store's time: exact, or a little behind it.
    pub fn now(&self) -> UnixMs {
        match self.micros() {
            None => self.wall.now(),
            Some(micros) => UnixMs::new(micros.div_euclid(1000)),
        }
    }

    /// The time, at least, until the store's clock shows `at`; zero if that is past.
    pub fn until(&self, at: UnixMs) -> Duration {
        match self.micros() {
            None => at.since(self.wall.now()),
            Some(micros) => Duration::from_micros(u64::try_from(at.get() * 1000 - micros).unwrap_or(0)),
        }
    }

    /// Sleeps this long by this node's own clock.
    pub fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.wall.sleep(by)
    }

    fn micros(&self) -> Option<i64> {
        let bounds = self.bounds.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Monotonic::now().0 + bounds.current.max(bounds.previous))
    }

    /// This node's wall clock minus the store's, in milliseconds; positive when the node is ahead.
    pub fn skew_ms(&self) -> i64 {
        self.wall.now().get() - self.now().get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_does_not_set_the_stores_clock_back() {
        let clock = StoreClock::remote(ManualClock::new(UnixMs::new(5_000_000)));
        clock.observe(UnixMs::new(1_000_000));
        assert!(clock.now() < UnixMs::new(1_001_000), "the guess is replaced");
        clock.observe(UnixMs::new(990_000));
        assert!(clock.now() >= UnixMs::new(1_000_000));
        clock.observe(UnixMs::new(1_005_000));
        assert!(clock.now() >= UnixMs::new(1_005_000));
        assert!(clock.skew_ms() > 3_000_000);
    }
}

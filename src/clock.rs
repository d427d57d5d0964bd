//! The only room that reads a clock.
//!
//! Two kinds of time exist and never mix. *Wall time* ([`UnixMs`]) decides what is due; *monotonic time*
//! ([`Monotonic`], `CLOCK_BOOTTIME`, which keeps counting while the machine is suspended) measures and
//! bounds. Everything else takes `now` as an argument.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::model::time::UnixMs;

/// Reads wall time. Two real versions exist: the machine's clock and the one that tests turn by hand.
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
        #[expect(clippy::disallowed_methods, reason = "this is the room that reads the clock")]
        let now = std::time::SystemTime::now();
        match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => UnixMs::new(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
            Err(before) => UnixMs::new(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

/// Wall time in microseconds since the Unix epoch, for measuring only: what is due is decided in milliseconds.
pub fn wall_us() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    t.tv_sec * 1_000_000 + t.tv_nsec / 1000
}

/// A clock that only moves when told to.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock standing at `start`.
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
        if let Some(turned) = TURNED.get() {
            return turned;
        }
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(t.tv_sec * 1_000_000 + t.tv_nsec / 1000)
    }

    /// From here on the calling thread reads this moment, so long after an arbitrary beginning: the simulation
    /// turns both kinds of time together, one run a thread.
    #[cfg(feature = "planted")]
    pub fn turn(to: Duration) {
        TURNED.set(Some(Self(0).plus(to)));
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
    static TURNED: std::cell::Cell<Option<Monotonic>> = const { std::cell::Cell::new(None) };
}

/// What a node knows of the cold store's clock: a lower bound, never ahead of it.
///
/// Every answer that carries the store's time gives a bound: that time plus the monotonic time since the
/// answer *arrived*. The way it travelled, or a wait for a lock, only makes the bound lower, so the highest
/// of the last ten to twenty seconds is the best; older ones are forgotten, lest a store whose clock is set
/// back be overtaken. On SQLite the store's clock is this process's own.
#[derive(Clone)]
pub struct StoreClock {
    wall: Arc<dyn Clock>,
    bounds: Option<Arc<Mutex<Bounds>>>,
}

/// Bounds as offsets: store time − monotonic time, microseconds.
struct Bounds {
    current: i64,
    previous: i64,
    since: Monotonic,
}

/// How long bounds are gathered before the older ones are forgotten.
const WINDOW: Duration = Duration::from_secs(10);

impl StoreClock {
    /// The store lives in this process (SQLite) or the tests turn its clock: `wall` is the store's clock.
    pub fn local(wall: Arc<dyn Clock>) -> Self {
        Self { wall, bounds: None }
    }

    /// The store has a clock of its own; until it is first heard, `wall` stands in for it.
    pub fn remote(wall: Arc<dyn Clock>) -> Self {
        let now = Monotonic::now();
        let guess = wall.now().get() * 1000 - now.0;
        // So long ago that the first answer replaces the guess.
        let bounds = Bounds { current: guess, previous: guess, since: Monotonic(i64::MIN / 2) };
        Self { wall, bounds: Some(Arc::new(Mutex::new(bounds))) }
    }

    /// Takes in the time that the store gave in an answer which has just arrived.
    pub fn observe(&self, store: UnixMs) {
        let Some(bounds) = &self.bounds else { return };
        let now = Monotonic::now();
        // The store cuts its time down to whole milliseconds, which keeps the bound below the truth.
        let heard = store.get() * 1000 - now.0;
        let mut bounds = bounds.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= bounds.since.plus(WINDOW) {
            let stale = now >= bounds.since.plus(WINDOW * 2);
            bounds.previous = if stale { heard } else { bounds.current };
            bounds.current = heard;
            bounds.since = now;
        } else {
            bounds.current = bounds.current.max(heard);
        }
    }

    /// The store's time, at or just before the truth.
    pub fn now(&self) -> UnixMs {
        match self.micros() {
            None => self.wall.now(),
            Some(micros) => UnixMs::new(micros.div_euclid(1000)),
        }
    }

    /// How long it is, at least, until the store's clock shows `at`; zero if it does.
    pub fn until(&self, at: UnixMs) -> Duration {
        match self.micros() {
            None => at.since(self.wall.now()),
            Some(micros) => Duration::from_micros(u64::try_from(at.get() * 1000 - micros).unwrap_or(0)),
        }
    }

    /// Sleeps for so long, by this node's own clock.
    pub fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.wall.sleep(by)
    }

    fn micros(&self) -> Option<i64> {
        let bounds = self.bounds.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Monotonic::now().0 + bounds.current.max(bounds.previous))
    }

    /// How far this node's wall clock is from the store's; positive when the node is ahead.
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
        assert!(clock.now() < UnixMs::new(1_001_000), "the guess is gone");
        clock.observe(UnixMs::new(990_000));
        assert!(clock.now() >= UnixMs::new(1_000_000));
        clock.observe(UnixMs::new(1_005_000));
        assert!(clock.now() >= UnixMs::new(1_005_000));
        assert!(clock.skew_ms() > 3_000_000);
    }
}

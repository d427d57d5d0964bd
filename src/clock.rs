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

    /// Microseconds; comparable only within one boot of one machine.
    pub const fn as_us(self) -> i64 {
        self.0
    }

    /// Whole milliseconds, likewise.
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
/// Every answer that carries the store's time gives a bound: that time, plus the monotonic time since the answer
/// *arrived*, less what the two clocks may have drifted apart since (`DRIFT_PPM`). Time on the network, or a wait
/// for a lock, only makes a bound lower, so the highest one is kept; the drift makes it fall, and a newer answer
/// takes its place.
///
/// A store whose clock was set back is recognised at once, and without a threshold: its time is below what the bound
/// says of the moment at which the question was *sent*. Then the new bound counts, though it is lower.
///
/// On SQLite the store's clock is this process's own.
#[derive(Clone)]
pub struct StoreClock {
    wall: Arc<dyn Clock>,
    /// `None` where the store has no clock of its own. Empty until the store's first answer.
    bound: Option<Arc<Mutex<Option<Bound>>>>,
    /// The latest time that the store has shown since the last [`Self::take_set_back_ms`], in milliseconds.
    latest: Arc<AtomicI64>,
}

/// How far two clocks may drift apart, in microseconds a second: the most by which NTP slews a clock.
const DRIFT_PPM: i64 = 500;

/// In most answers the store's time is truncated to whole milliseconds: the true time is less than so many
/// microseconds later.
const TRUNCATED_US: i64 = 1000;

/// The store's time, in microseconds, was at least this at that moment.
#[derive(Debug, Clone, Copy)]
struct Bound {
    store_us: i64,
    at: Monotonic,
}

impl Bound {
    /// The store's time at least at another moment, in microseconds; also at one before, if the clock was not set
    /// back between them.
    const fn at(self, other: Monotonic) -> i64 {
        let since = other.0 - self.at.0;
        self.store_us + since
            - since.abs() / 1_000_000 * DRIFT_PPM
            - since.abs() % 1_000_000 * DRIFT_PPM / 1_000_000
    }
}

impl StoreClock {
    /// For a store in this process (SQLite), and for tests that set its clock: `wall` is the store's clock.
    pub fn local(wall: Arc<dyn Clock>) -> Self {
        Self { wall, bound: None, latest: Arc::default() }
    }

    /// For a store that has a clock of its own. Until its first answer, `wall` is used in its place.
    pub fn remote(wall: Arc<dyn Clock>) -> Self {
        Self { wall, bound: Some(Arc::default()), latest: Arc::default() }
    }

    /// Records the store's time from an answer that has just arrived. The question was sent at `sent` or later.
    pub fn observe(&self, sent: Monotonic, store: UnixMs) {
        self.observe_us(sent, store.get() * 1000);
    }

    /// The same, where the store told its time in microseconds.
    pub fn observe_us(&self, sent: Monotonic, store_us: i64) {
        let Some(bound) = &self.bound else { return };
        self.latest.fetch_max(store_us / 1000, Ordering::SeqCst);
        let fresh = Bound { store_us, at: Monotonic::now() };
        let mut bound = bound.lock().unwrap_or_else(PoisonError::into_inner);
        let keeps = |known: &Bound| {
            let was_set_back = fresh.store_us + TRUNCATED_US <= known.at(sent);
            known.at(fresh.at) > fresh.store_us && !was_set_back
        };
        if !bound.as_ref().is_some_and(keeps) {
            *bound = Some(fresh);
        }
    }

    /// The store's time: exact, or a little behind it.
    pub fn now(&self) -> UnixMs {
        match self.micros() {
            None => {
                let now = self.wall.now();
                // Before a store's first answer it is a guess.
                if self.bound.is_none() {
                    self.latest.fetch_max(now.get(), Ordering::SeqCst);
                }
                now
            }
            Some(micros) => UnixMs::new(micros.div_euclid(1000)),
        }
    }

    /// By how many milliseconds the store's clock is behind the latest time that it has shown since the last call; 0 or
    /// less if it was not set back.
    pub fn take_set_back_ms(&self) -> i64 {
        let now = self.now().get();
        self.latest.swap(now, Ordering::SeqCst) - now
    }

    /// The time, at least, until the store's clock shows `at`; zero if that is past.
    pub fn until(&self, at: UnixMs) -> Duration {
        match self.micros() {
            None => at.since(self.wall.now()),
            Some(micros) => {
                let left = Duration::from_micros(u64::try_from(at.get() * 1000 - micros).unwrap_or(0));
                // The bound falls meanwhile. Without this a wait would end just before its time, and be followed
                // by another.
                left + left * DRIFT_PPM as u32 / 999_000
            }
        }
    }

    /// Sleeps this long by this node's own clock.
    pub fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.wall.sleep(by)
    }

    fn micros(&self) -> Option<i64> {
        let bound = self.bound.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some((*bound)?.at(Monotonic::now()))
    }

    /// This node's wall clock minus the store's, in milliseconds; positive when the node is ahead.
    pub fn skew_ms(&self) -> i64 {
        self.wall.now().get() - self.now().get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Monotonic {
        Monotonic(ms * 1000)
    }

    /// A clock that has just got an answer with this time of the store, to a question sent so long ago.
    fn observed(store_ms: i64) -> StoreClock {
        let clock = StoreClock::remote(ManualClock::new(UnixMs::new(5_000_000)));
        assert_eq!(clock.now(), UnixMs::new(5_000_000), "a guess until the store has answered");
        clock.observe(Monotonic::now(), UnixMs::new(store_ms));
        clock
    }

    fn asked_before(by: Duration) -> Monotonic {
        Monotonic(Monotonic::now().0 - by.as_micros() as i64)
    }

    #[test]
    fn a_slow_answer_does_not_set_the_stores_clock_back() {
        let clock = observed(1_000_000);
        assert!(clock.now() < UnixMs::new(1_001_000), "the guess is replaced");
        clock.observe(asked_before(Duration::from_secs(11)), UnixMs::new(990_000));
        assert!(clock.now() >= UnixMs::new(1_000_000));
        clock.observe(asked_before(Duration::from_secs(1)), UnixMs::new(1_005_000));
        assert!(clock.now() >= UnixMs::new(1_005_000));
        assert!(clock.skew_ms() > 3_000_000);
    }

    #[test]
    fn a_store_whose_clock_was_set_back_is_followed_at_once() {
        for (back_ms, slow_ms) in [(3_600_000, 0), (3_600_000, 15_000), (20, 5)] {
            let clock = observed(10_000_000);
            let store = UnixMs::new(10_000_000 - back_ms);
            clock.observe(asked_before(Duration::from_millis(slow_ms)), store);
            let ahead = clock.now().get() - store.get();
            assert!((0..back_ms).contains(&ahead), "{back_ms} ms back: {ahead} ms ahead");
        }
    }

    #[test]
    fn a_set_back_is_told_once_and_by_how_much() {
        let remote = observed(10_000_000);
        assert!(remote.take_set_back_ms() <= 0);
        // It was ahead for a moment only.
        remote.observe(Monotonic::now(), UnixMs::new(13_600_000));
        remote.observe(Monotonic::now(), UnixMs::new(10_000_000));
        assert!((3_599_000..=3_600_000).contains(&remote.take_set_back_ms()));
        assert!(remote.take_set_back_ms() <= 0);
        let wall = ManualClock::new(UnixMs::new(20_000));
        let local = StoreClock::local(wall.clone());
        assert_eq!(local.now(), UnixMs::new(20_000));
        wall.set(UnixMs::new(5_000));
        assert_eq!((local.take_set_back_ms(), local.take_set_back_ms()), (15_000, 0));
    }

    #[test]
    fn a_bound_falls_by_the_drift() {
        let bound = Bound { store_us: 7_000_000, at: at(1000) };
        for (ms, micros) in [
            (1000, 7_000_000),
            (2000, 7_999_500),
            (1100, 7_099_950),
            (3_601_000, 3_605_200_000),
            (0, 5_999_500),
        ] {
            assert_eq!(bound.at(at(ms)), micros, "{ms}");
        }
    }

    #[test]
    fn after_a_wait_the_time_has_come() {
        let clock = observed(1_000_000);
        let due = UnixMs::new(1_000_000 + 3_600_000);
        let (asked, wait) = (Monotonic::now(), clock.until(due));
        let bound = clock.bound.expect("remote").lock().expect("plain").expect("known");
        let over = bound.at(asked.plus(wait)) - due.get() * 1000;
        assert!((0..10_000).contains(&over), "{over} us");
    }
}

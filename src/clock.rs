//! The only room that reads a clock.
//!
//! Two kinds of time exist and never mix. *Wall time* ([`UnixMs`]) decides what is due; *monotonic time*
//! ([`Monotonic`], `CLOCK_BOOTTIME`, which keeps counting while the machine is suspended) measures and
//! bounds. Everything else takes `now` as an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::model::time::UnixMs;

/// Reads wall time. Two real versions exist: the machine's clock and the one that tests turn by hand.
pub trait Clock: Send + Sync + 'static {
    /// Wall time, in milliseconds since the Unix epoch.
    fn now(&self) -> UnixMs;
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

/// A moment of monotonic time, milliseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(i64);

impl Monotonic {
    /// Reads the clock.
    pub fn now() -> Self {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(t.tv_sec * 1000 + t.tv_nsec / 1_000_000)
    }

    /// How long ago this was; zero if it lies ahead.
    pub fn elapsed(self) -> Duration {
        Duration::from_millis(u64::try_from(Self::now().0 - self.0).unwrap_or(0))
    }

    /// This moment, `by` later.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The raw milliseconds; comparable only within one boot of one machine.
    pub fn as_ms(self) -> i64 {
        self.0
    }
}

/// What a node knows of the cold store's clock: a lower bound, never ahead of it.
///
/// The store's time in its last answer plus the monotonic time since that answer *arrived*; the way the
/// answer travelled only makes the bound lower. On SQLite the store's clock is this process's own.
#[derive(Clone)]
pub struct StoreClock {
    wall: Arc<dyn Clock>,
    offset: Option<Arc<AtomicI64>>,
}

impl StoreClock {
    /// The store lives in this process (SQLite) or the tests turn its clock: `wall` is the store's clock.
    pub fn local(wall: Arc<dyn Clock>) -> Self {
        Self { wall, offset: None }
    }

    /// The store has a clock of its own; until it is first heard, `wall` stands in for it.
    pub fn remote(wall: Arc<dyn Clock>) -> Self {
        let offset = wall.now().get() - Monotonic::now().as_ms();
        Self { wall, offset: Some(Arc::new(AtomicI64::new(offset))) }
    }

    /// Takes in the time that the store gave in an answer which has just arrived.
    pub fn observe(&self, store: UnixMs) {
        if let Some(offset) = &self.offset {
            offset.store(store.get() - Monotonic::now().as_ms(), Ordering::SeqCst);
        }
    }

    /// The store's time, at or just before the truth.
    pub fn now(&self) -> UnixMs {
        match &self.offset {
            None => self.wall.now(),
            Some(offset) => UnixMs::new(Monotonic::now().as_ms() + offset.load(Ordering::SeqCst)),
        }
    }

    /// How far this node's wall clock is from the store's; positive when the node is ahead.
    pub fn skew_ms(&self) -> i64 {
        self.wall.now().get() - self.now().get()
    }

    /// The time to hand to a store that has no clock of its own; `None` when it reads its own.
    pub fn given(&self) -> Option<UnixMs> {
        self.offset.is_none().then(|| self.wall.now())
    }
}

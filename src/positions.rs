//! Where the wheels of this node's shards stand: what loader, ticker, promotion and replay know together.
//!
//! A plain structure behind one lock; it never waits and never reads a clock. It is memory only: the
//! watermark is also in SQL, the marks are also in the wheel, and after a restart both are read back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::cold::Range;
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;
use crate::wheel::{Level, Place, Slot, Standing, Take};

/// How long, in milliseconds, a row may be overdue before the sweep takes it from a wheel that turns.
pub const GRACE_MS: i64 = 1000;

/// Where a pointer of this node's own shards goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goes {
    /// Beyond the watermark: the loader will find it in SQL.
    Cold,
    /// Into this slot.
    Slot(Slot),
    /// Its slot is taken already.
    LastMile,
    /// The wheel does not turn; what builds it will find the timer in SQL.
    NoWheel,
    /// The shard is not this node's, or not yet.
    Foreign,
}

/// What a replay has found so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Why, in words.
    pub cause: String,
    /// When it began.
    pub at: UnixMs,
    /// How far the wheels had been handed over before.
    pub cursor_at: UnixMs,
    /// Whether the wheel was built anew.
    pub rebuilt: bool,
    /// Timers found past their due time.
    pub overdue: u64,
    /// Timers put into slots.
    pub loaded: u64,
}

#[derive(Debug)]
enum Phase {
    /// To be looked at: newly owned, or lost for this reason.
    Waiting(Option<String>),
    /// It turns.
    Turning,
}

#[derive(Debug)]
struct Position {
    epoch: Epoch,
    phase: Phase,
    watermark: UnixMs,
    standing: Option<Standing>,
    /// What is still to be scanned, in order.
    ranges: VecDeque<Range>,
    replay: Option<Replay>,
}

/// The positions of all shards of this node.
#[derive(Debug)]
pub struct Positions {
    own: Mutex<BTreeMap<i32, Position>>,
    /// The last known watermark of every shard of the store, for `tier`.
    watermarks: Vec<AtomicI64>,
    /// The shards of the store whose wheels did not answer last time.
    away: Mutex<BTreeSet<i32>>,
}

impl Positions {
    /// No shard is owned yet.
    pub fn new(shards: u16) -> Self {
        Self {
            own: Mutex::default(),
            watermarks: (0..shards).map(|_| AtomicI64::new(0)).collect(),
            away: Mutex::new((0..i32::from(shards)).collect()),
        }
    }

    /// Takes in which shards are owned: new ones wait to be looked at, lost ones are forgotten.
    pub fn sync(&self, owned: &[(i32, Epoch)]) {
        self.with(|own| {
            own.retain(|shard, position| owned.contains(&(*shard, position.epoch)));
            for (shard, epoch) in owned {
                own.entry(*shard).or_insert_with(|| Position {
                    epoch: *epoch,
                    phase: Phase::Waiting(None),
                    watermark: UnixMs::default(),
                    standing: None,
                    ranges: VecDeque::new(),
                    replay: None,
                });
            }
        });
    }

    /// Shards whose wheel is to be looked at, and why if it was lost.
    pub fn waiting(&self) -> Vec<(i32, Epoch, Option<String>)> {
        self.with(|own| {
            let mut waiting: Vec<_> = own
                .iter()
                .filter_map(|(shard, position)| match &position.phase {
                    Phase::Waiting(cause) => Some((*shard, position.epoch, cause.clone())),
                    Phase::Turning => None,
                })
                .collect();
            waiting.sort_unstable_by_key(|(shard, ..)| *shard);
            waiting
        })
    }

    /// A wheel turns from now on, after it was looked at or built; `ranges` are to be scanned into it.
    pub fn turn(
        &self,
        shard: i32,
        standing: Standing,
        watermark: UnixMs,
        ranges: Vec<Range>,
        replay: Option<Replay>,
    ) {
        self.with(|own| {
            if let Some(position) = own.get_mut(&shard).filter(|position| position.epoch == standing.epoch) {
                position.standing = Some(standing);
                position.phase = Phase::Turning;
                position.watermark = watermark;
                position.ranges = ranges.into();
                position.replay = replay;
            }
        });
        self.learn(shard, watermark);
    }

    /// These shards' wheels hold no longer what they should.
    pub fn lose(&self, shards: &[i32], cause: &str) {
        self.with(|own| {
            for position in own.iter_mut().filter(|(shard, _)| shards.contains(shard)).map(|(_, one)| one) {
                if matches!(position.phase, Phase::Turning) {
                    position.phase = Phase::Waiting(Some(cause.to_owned()));
                }
                position.ranges.clear();
            }
        });
    }

    /// Where these pointers go, in order.
    pub fn place(&self, pointers: &[Pointer]) -> Vec<(Goes, Epoch)> {
        self.with(|own| pointers.iter().map(|pointer| place(own, pointer)).collect())
    }

    /// The next take of each wheel of this level that has not come up to `target` yet.
    pub fn takes(&self, level: Level, target: UnixMs) -> Vec<Take> {
        let target = level.slot_of(target).tick;
        self.with(|own| {
            let mut takes: Vec<Take> = own
                .iter()
                .filter_map(|(shard, position)| {
                    let standing = position.turning()?;
                    let mark = standing.marks.of(level);
                    (mark < target).then(|| Take {
                        shard: *shard,
                        epoch: position.epoch,
                        incarnation: standing.incarnation.clone(),
                        beat: standing.beat,
                        slot: Slot { level, tick: mark.next() },
                        skip: 0,
                    })
                })
                .collect();
            takes.sort_unstable_by_key(|take| take.shard);
            takes
        })
    }

    /// A page was taken: the beat rose.
    pub fn beat(&self, shard: i32, incarnation: &str, beat: i64) {
        self.with(|own| {
            if let Some(standing) = turning_mut(own, shard, incarnation) {
                standing.beat = beat.max(standing.beat);
            }
        });
    }

    /// A slot of this building of the wheel was taken and handed over: the mark moves.
    pub fn handed_over(&self, shard: i32, incarnation: &str, slot: Slot) {
        self.with(|own| {
            if let Some(standing) = turning_mut(own, shard, incarnation) {
                let mark = standing.marks.of_mut(slot.level);
                *mark = slot.tick.max(*mark);
            }
        });
    }

    /// Turning shards whose watermark lies below `target`, with their epochs.
    pub fn below(&self, target: UnixMs) -> Vec<(i32, Epoch)> {
        self.with(|own| {
            own.iter()
                .filter(|(_, position)| position.turning().is_some() && position.watermark < target)
                .map(|(shard, position)| (*shard, position.epoch))
                .collect()
        })
    }

    /// The new watermark is committed: what lies between the old one and it is to be scanned.
    pub fn raise(&self, shards: &[i32], watermark: UnixMs) {
        self.with(|own| {
            for shard in shards {
                if let Some(position) = own.get_mut(shard) {
                    let from = crate::cold::ScanPlace::before(position.watermark.get());
                    let range = Range { shard: *shard, after: from, until: watermark.get() };
                    position.watermark = watermark;
                    position.ranges.push_back(range);
                }
            }
        });
        shards.iter().for_each(|shard| self.learn(*shard, watermark));
    }

    /// The new watermark is committed, and nothing is ordered to be scanned ([`crate::planted`]).
    #[cfg(feature = "planted")]
    pub fn raise_unscanned(&self, shards: &[i32], watermark: UnixMs) {
        self.with(|own| {
            own.iter_mut()
                .filter(|(shard, _)| shards.contains(shard))
                .for_each(|(_, position)| position.watermark = watermark);
        });
        shards.iter().for_each(|shard| self.learn(*shard, watermark));
    }

    /// The next range of each turning shard that has one.
    pub fn ranges(&self) -> Vec<Range> {
        self.with(|own| {
            let turning = own.values().filter(|position| position.turning().is_some());
            let mut ranges: Vec<Range> =
                turning.filter_map(|position| position.ranges.front().copied()).collect();
            ranges.sort_unstable_by_key(|range| range.shard);
            ranges
        })
    }

    /// A range was scanned up to `next`, or to its end. Tells up to where the shard is loaded when nothing is
    /// left to scan, and the replay that has thereby come to its end.
    pub fn scanned(
        &self,
        range: &Range,
        next: Option<crate::cold::ScanPlace>,
        overdue: u64,
        loaded: u64,
    ) -> Option<(UnixMs, Option<Replay>)> {
        self.with(|own| {
            let position = own.get_mut(&range.shard)?;
            let front = position.ranges.front_mut().filter(|front| **front == *range)?;
            if let Some(replay) = &mut position.replay {
                replay.overdue += overdue;
                replay.loaded += loaded;
            }
            match next {
                Some(next) => {
                    front.after = next;
                    None
                }
                None => {
                    position.ranges.pop_front();
                    let done = position.ranges.is_empty();
                    done.then(|| (position.watermark, position.replay.take()))
                }
            }
        })
    }

    /// Up to where a shard's wheel was handed over, milliseconds since the Unix epoch; 0 when it does not turn.
    pub fn cursor(&self, shard: i32) -> i64 {
        self.with(|own| {
            let standing = own.get(&shard).and_then(Position::turning);
            standing.map_or(0, |standing| {
                Slot { level: Level::Second, tick: standing.marks.second }.ends_at().get()
            })
        })
    }

    /// How far the slowest wheel is behind; a wheel that does not turn is as far behind as it was.
    pub fn behind(&self, now: UnixMs) -> std::time::Duration {
        self.with(|own| {
            let marks = own.values().filter_map(|position| Some(position.standing.as_ref()?.marks.second));
            let cursor = marks.min().map(|tick| Slot { level: Level::Second, tick }.ends_at());
            cursor.map_or(std::time::Duration::ZERO, |cursor| now.since(cursor))
        })
    }

    /// Since when, at most, the sweep has to look at this shard: what woke before is being replayed.
    pub fn replaying_since(&self, shard: i32) -> Option<UnixMs> {
        self.with(|own| {
            let position = own.get(&shard).filter(|position| position.turning().is_some())?;
            let at = position.replay.as_ref()?.at;
            let range = position.ranges.front()?;
            (range.after.wake_at < at.get()).then_some(at)
        })
    }

    /// How long a row of this shard may be overdue before the sweep takes it: a second while its wheel
    /// turns and keeps up.
    pub fn grace_ms(&self, shard: i32, now: UnixMs) -> i64 {
        if self.cursor(shard) > now.get() { GRACE_MS } else { 0 }
    }

    /// How these shards' wheels stand: watermark and marks of those that turn, and whether nothing is left
    /// to scan.
    pub fn standings(&self) -> Vec<(i32, Epoch, UnixMs, Option<Standing>, bool)> {
        self.with(|own| {
            let mut all: Vec<_> = own
                .iter()
                .map(|(shard, position)| {
                    let standing = position.turning().cloned();
                    (*shard, position.epoch, position.watermark, standing, position.ranges.is_empty())
                })
                .collect();
            all.sort_unstable_by_key(|(shard, ..)| *shard);
            all
        })
    }

    /// Whether every owned shard was looked at and the first page of what is overdue in it was read.
    pub fn has_looked(&self) -> bool {
        self.with(|own| {
            let looked = |position: &Position| {
                let after = position.ranges.front().map(|range| range.after.wake_at);
                position.turning().is_some() && after != Some(i64::MIN)
            };
            !own.is_empty() && own.values().all(looked)
        })
    }

    /// The last known watermark of a shard, whoever owns it.
    pub fn watermark(&self, shard: i32) -> UnixMs {
        let known = usize::try_from(shard).ok().and_then(|shard| self.watermarks.get(shard));
        UnixMs::new(known.map_or(0, |known| known.load(Ordering::Relaxed)))
    }

    /// Takes in a shard's watermark.
    pub fn learn(&self, shard: i32, watermark: UnixMs) {
        if let Some(known) = usize::try_from(shard).ok().and_then(|shard| self.watermarks.get(shard)) {
            known.store(watermark.get(), Ordering::Relaxed);
        }
    }

    /// Every shard of the store, whoever owns it.
    pub fn shards(&self) -> Vec<i32> {
        self.watermarks.iter().zip(0..).map(|(_, shard)| shard).collect()
    }

    /// Which shards' wheels did not answer last time, of all of the store.
    pub fn away(&self) -> BTreeSet<i32> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes which did not answer; tells whether it is news that all do, or none, or some.
    pub fn set_away(&self, away: BTreeSet<i32>) -> bool {
        let kind = |away: &BTreeSet<i32>| (away.is_empty(), away.len() < self.watermarks.len());
        let mut known = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let news = kind(&known) != kind(&away);
        *known = away;
        news
    }

    fn with<T>(&self, run: impl FnOnce(&mut BTreeMap<i32, Position>) -> T) -> T {
        // A panic while holding the lock leaves plain data; go on with it.
        run(&mut self.own.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Position {
    fn turning(&self) -> Option<&Standing> {
        match self.phase {
            Phase::Turning => self.standing.as_ref(),
            Phase::Waiting(_) => None,
        }
    }
}

fn turning_mut<'a>(
    own: &'a mut BTreeMap<i32, Position>,
    shard: i32,
    incarnation: &str,
) -> Option<&'a mut Standing> {
    let position = own.get_mut(&shard)?;
    position.turning()?;
    position.standing.as_mut().filter(|standing| standing.incarnation == incarnation)
}

fn place(own: &BTreeMap<i32, Position>, pointer: &Pointer) -> (Goes, Epoch) {
    let Some(position) = own.get(&pointer.shard) else { return (Goes::Foreign, Epoch(0)) };
    let goes = match position.turning() {
        // Its wheel may be another's that goes on turning, and then nobody scans for what is written now.
        None if matches!(position.phase, Phase::Waiting(None)) => Goes::Foreign,
        None => Goes::NoWheel,
        Some(_) if pointer.wake_at >= position.watermark => Goes::Cold,
        Some(standing) => match standing.marks.place(pointer) {
            Place::Slot(slot) => Goes::Slot(slot),
            Place::LastMile => Goes::LastMile,
        },
    };
    (goes, position.epoch)
}

//! Positions: for each shard of this node its watermark, the marks of its wheel, and the ranges that are still
//! to be scanned. Loader, ticker, promoter and replay share them.
//!
//! A plain structure behind one lock; it never waits and never reads a clock. It is in memory only: the
//! watermark is also in SQL, the marks are also in the wheel, and a restart reads both back.
//!
//! A wheel *turns* from the moment at which it was inspected or built until it is lost: only then its slots are
//! taken.

mod reach;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use reach::Reach;

use crate::cold::{Range, ScanPosition};
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;
use crate::model::time::UnixMs;
use crate::wheel::{Level, Slot, Standing, Take};

/// How long, in milliseconds, a row may be overdue before the sweep fires it in place of a wheel that turns.
pub const GRACE_MS: i64 = 1000;

/// Why a wheel is lost: Redis has no memory left for its pointers.
const NO_ROOM: &str = "Redis had no room for its pointers";

/// Where a pointer is routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Beyond the watermark: nowhere; the loader will find the timer in SQL.
    Cold,
    /// Into this slot.
    Slot(Slot),
    /// To the last mile: its slot was taken already.
    LastMile,
    /// Nowhere: the wheel was lost. The replay that builds it anew will find the timer in SQL.
    NoWheel,
    /// To another node: the shard is not this node's, or its wheel was not inspected yet.
    Foreign,
}

/// A replay that has begun, and its counts so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Why, in words.
    pub cause: String,
    /// When it began.
    pub at: UnixMs,
    /// How far the wheels had been handed over before it.
    pub cursor_at: UnixMs,
    /// Whether the wheel was built anew.
    pub rebuilt: bool,
    /// Timers found overdue.
    pub overdue: u64,
    /// Timers promoted into slots.
    pub loaded: u64,
}

#[derive(Debug)]
enum Phase {
    /// Its wheel is to be inspected: the shard is newly owned, or the wheel was lost for this reason.
    Waiting(Option<String>),
    /// Its wheel turns.
    Turning,
}

#[derive(Debug)]
struct Position {
    epoch: Epoch,
    phase: Phase,
    watermark: UnixMs,
    /// How far the wheel reached when it began to turn.
    reach: std::time::Duration,
    standing: Option<Standing>,
    /// The ranges that are still to be scanned, in order.
    ranges: VecDeque<Range>,
    replay: Option<Replay>,
}

/// The positions of all shards of this node.
#[derive(Debug)]
pub struct Positions {
    /// How far ahead of now the wheels are filled.
    pub reach: Reach,
    own: Mutex<BTreeMap<i32, Position>>,
    /// The last known watermark of every shard of the store; `tier` in answers is computed from it.
    watermarks: Vec<AtomicI64>,
    /// The shards of the store whose wheels did not answer the last time they were asked.
    unreachable: Mutex<BTreeSet<i32>>,
}

impl Positions {
    /// No shard is owned yet.
    pub fn new(shards: u16, reach: Reach) -> Self {
        Self {
            reach,
            own: Mutex::default(),
            watermarks: (0..shards).map(|_| AtomicI64::new(0)).collect(),
            unreachable: Mutex::new((0..i32::from(shards)).collect()),
        }
    }

    /// Sets the owned shards. The wheels of new ones wait for their inspection; lost shards are forgotten.
    pub fn sync(&self, owned: &[(i32, Epoch)]) {
        self.with(|own| {
            own.retain(|shard, position| owned.contains(&(*shard, position.epoch)));
            for (shard, epoch) in owned {
                own.entry(*shard).or_insert_with(|| Position {
                    epoch: *epoch,
                    phase: Phase::Waiting(None),
                    watermark: UnixMs::default(),
                    reach: self.reach.full(),
                    standing: None,
                    ranges: VecDeque::new(),
                    replay: None,
                });
            }
        });
    }

    /// Shards whose wheel is to be inspected, with the reason if it was lost; in order.
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

    /// Lets a wheel turn, after it was inspected or built. `ranges` are to be scanned into it.
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
                position.reach = self.reach.get();
                position.ranges = ranges.into();
                position.replay = replay;
            }
        });
        self.learn(shard, watermark);
    }

    /// Marks the wheels of these shards as lost: they are to be inspected and replayed.
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

    /// The server of these shards' wheels has no room for them: they are to be built anew, and not to reach as far. Returns
    /// the new reach, unless they wait for that already, or were built when it was longer.
    pub fn no_room(&self, shards: &[i32], now: UnixMs) -> Option<std::time::Duration> {
        let reach = self.reach.get();
        let too_far = self.with(|own| {
            let mut too_far = false;
            for position in own.iter_mut().filter(|(shard, _)| shards.contains(shard)).map(|(_, one)| one) {
                let waits =
                    matches!(&position.phase, Phase::Waiting(cause) if cause.as_deref() == Some(NO_ROOM));
                if !waits {
                    position.phase = Phase::Waiting(Some(NO_ROOM.to_owned()));
                    position.ranges.clear();
                    too_far |= position.reach <= reach;
                }
            }
            too_far
        });
        too_far.then(|| self.reach.shorten(now))
    }

    /// The shards whose wheels found no room and were not built again yet.
    pub fn without_room(&self) -> Vec<i32> {
        let is_it = |(shard, _, cause): (i32, Epoch, Option<String>)| {
            (cause.as_deref() == Some(NO_ROOM)).then_some(shard)
        };
        self.waiting().into_iter().filter_map(is_it).collect()
    }

    /// The routes of these pointers, in order, each with the epoch of its shard.
    pub fn route(&self, pointers: &[Pointer]) -> Vec<(Route, Epoch)> {
        self.with(|own| pointers.iter().map(|pointer| route(own, pointer)).collect())
    }

    /// The next take of each wheel whose mark of this level lies before `target`.
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

    /// Notes the beat of a wheel after a page was taken.
    pub fn beat(&self, shard: i32, incarnation: &str, beat: i64) {
        self.with(|own| {
            if let Some(standing) = turning_mut(own, shard, incarnation) {
                standing.beat = beat.max(standing.beat);
            }
        });
    }

    /// Notes that a slot of this incarnation of the wheel was taken and handed over: its mark rises.
    pub fn handed_over(&self, shard: i32, incarnation: &str, slot: Slot) {
        self.with(|own| {
            if let Some(standing) = turning_mut(own, shard, incarnation) {
                let mark = standing.marks.of_mut(slot.level);
                *mark = slot.tick.max(*mark);
            }
        });
    }

    /// Shards whose wheel turns and whose watermark lies below `target`, with their epochs.
    pub fn below(&self, target: UnixMs) -> Vec<(i32, Epoch)> {
        self.with(|own| {
            own.iter()
                .filter(|(_, position)| position.turning().is_some() && position.watermark < target)
                .map(|(shard, position)| (*shard, position.epoch))
                .collect()
        })
    }

    /// Notes that a new watermark is committed: the range between the old one and the new one is to be scanned.
    pub fn raise(&self, shards: &[i32], watermark: UnixMs) {
        self.with(|own| {
            for shard in shards {
                if let Some(position) = own.get_mut(shard) {
                    let range = Range::new(*shard, position.watermark.get(), watermark);
                    position.watermark = watermark;
                    position.ranges.push_back(range);
                }
            }
        });
        shards.iter().for_each(|shard| self.learn(*shard, watermark));
    }

    /// The same, but no range is to be scanned ([`crate::planted`]).
    #[cfg(feature = "planted")]
    pub fn raise_unscanned(&self, shards: &[i32], watermark: UnixMs) {
        self.with(|own| {
            own.iter_mut()
                .filter(|(shard, _)| shards.contains(shard))
                .for_each(|(_, position)| position.watermark = watermark);
        });
        shards.iter().for_each(|shard| self.learn(*shard, watermark));
    }

    /// The next range to scan of each shard whose wheel turns.
    pub fn ranges(&self) -> Vec<Range> {
        self.with(|own| {
            let turning = own.values().filter(|position| position.turning().is_some());
            let mut ranges: Vec<Range> =
                turning.filter_map(|position| position.ranges.front().copied()).collect();
            ranges.sort_unstable_by_key(|range| range.shard);
            ranges
        })
    }

    /// Notes that a range was scanned up to `next`, or to its end. After the last range of the shard it returns
    /// up to where the shard is loaded, under which epoch, and the replay that has ended with it.
    pub fn scanned(
        &self,
        range: &Range,
        next: Option<ScanPosition>,
        overdue: u64,
        loaded: u64,
    ) -> Option<(UnixMs, Epoch, Option<Replay>)> {
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
                    done.then(|| (position.watermark, position.epoch, position.replay.take()))
                }
            }
        })
    }

    /// Up to where a shard's wheel was handed over, in milliseconds since the Unix epoch; 0 if it does not
    /// turn.
    pub fn cursor(&self, shard: i32) -> i64 {
        self.with(|own| {
            let standing = own.get(&shard).and_then(Position::turning);
            standing.map_or(0, |standing| {
                Slot { level: Level::Second, tick: standing.marks.second }.ends_at().get()
            })
        })
    }

    /// The shards whose wheel turns and was handed over up to a moment outside of `range`, in order.
    pub fn astray(&self, range: std::ops::RangeInclusive<UnixMs>) -> Vec<i32> {
        let cursor = |shard: &i32| UnixMs::new(self.cursor(*shard));
        let turns = |shard: &i32| cursor(shard) > UnixMs::default();
        self.owned().into_iter().filter(|shard| turns(shard) && !range.contains(&cursor(shard))).collect()
    }

    /// How far the slowest wheel is behind `now`, by its level. A wheel that was lost counts with its last cursor.
    pub fn behind(&self, level: Level, now: UnixMs) -> std::time::Duration {
        self.with(|own| {
            let marks = own.values().filter_map(|position| Some(position.standing.as_ref()?.marks.of(level)));
            let cursor = marks.min().map(|tick| Slot { level, tick }.ends_at());
            cursor.map_or(std::time::Duration::ZERO, |cursor| now.since(cursor))
        })
    }

    /// The lowest watermark of the owned shards whose wheel turns.
    pub fn lowest_watermark(&self) -> Option<UnixMs> {
        self.with(|own| {
            let turning = own.values().filter(|position| position.turning().is_some());
            turning.map(|position| position.watermark).min()
        })
    }

    /// The beginning of a replay whose overdue rows are still being read: the sweep leaves rows with an earlier
    /// `wake_at` to it. `None` without such a replay.
    pub fn replaying_since(&self, shard: i32) -> Option<UnixMs> {
        self.with(|own| {
            let position = own.get(&shard).filter(|position| position.turning().is_some())?;
            let at = position.replay.as_ref()?.at;
            let range = position.ranges.front()?;
            (range.after.wake_at < at.get()).then_some(at)
        })
    }

    /// How long, in milliseconds, a row of this shard may be overdue before the sweep fires it: [`GRACE_MS`]
    /// while the wheel turns and is not behind, else 0.
    pub fn grace_ms(&self, shard: i32, now: UnixMs) -> i64 {
        if self.cursor(shard) > now.get() { GRACE_MS } else { 0 }
    }

    /// For each shard, in order: its epoch, its watermark, the standing of a wheel that turns, and whether no
    /// range is to be scanned.
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

    /// Whether the wheel of every owned shard was inspected and the first page of its overdue timers was read.
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

    /// Notes a shard's watermark.
    pub fn learn(&self, shard: i32, watermark: UnixMs) {
        if let Some(known) = usize::try_from(shard).ok().and_then(|shard| self.watermarks.get(shard)) {
            known.store(watermark.get(), Ordering::Relaxed);
        }
    }

    /// The shards of this node, in order.
    pub fn owned(&self) -> Vec<i32> {
        self.with(|own| own.keys().copied().collect())
    }

    /// Every shard of the store, whoever owns it.
    pub fn shards(&self) -> Vec<i32> {
        self.watermarks.iter().zip(0..).map(|(_, shard)| shard).collect()
    }

    /// The shards of the store whose wheels did not answer the last time they were asked.
    pub fn unreachable(&self) -> BTreeSet<i32> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the shards whose wheels did not answer. Returns whether that is a change between all, some and none
    /// of them.
    pub fn set_unreachable(&self, unreachable: BTreeSet<i32>) -> bool {
        let kind = |shards: &BTreeSet<i32>| (shards.is_empty(), shards.len() < self.watermarks.len());
        let mut known = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = kind(&known) != kind(&unreachable);
        *known = unreachable;
        changed
    }

    fn with<T>(&self, run: impl FnOnce(&mut BTreeMap<i32, Position>) -> T) -> T {
        // A panic while the lock is held leaves plain data, which stays usable.
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

fn route(own: &BTreeMap<i32, Position>, pointer: &Pointer) -> (Route, Epoch) {
    let Some(position) = own.get(&pointer.shard) else { return (Route::Foreign, Epoch(0)) };
    let route = match position.turning() {
        // The wheel that the owner before left may be taken over as it is; then no scan finds a timer written
        // now.
        None if matches!(position.phase, Phase::Waiting(None)) => Route::Foreign,
        None => Route::NoWheel,
        Some(_) if pointer.wake_at >= position.watermark => Route::Cold,
        Some(standing) => standing.marks.open_slot(pointer).map_or(Route::LastMile, Route::Slot),
    };
    (route, position.epoch)
}

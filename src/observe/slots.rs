//! How many pointers each slot of the wheels holds, counted a few slots at a time.
//!
//! To count every slot of every shard takes thousands of commands. The slots that are about to be taken are counted each
//! time, the others in turn.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::time::UnixMs;
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::wheel::{Error, HotWheel, Level, Slot, Standing, Tick};

/// How far ahead second slots are counted each time, in milliseconds.
const CLOSE_MS: i64 = 3000;

/// In how many turns the second slots are counted, and the minutes.
const TURNS: [i64; 2] = [8, 16];

/// The slots of a wheel that may hold pointers: from the last one taken on, which may not be handed over yet.
pub fn reach(level: Level, standing: &Standing, watermark: UnixMs) -> impl Iterator<Item = Slot> {
    let end = match level {
        Level::Second => Slot { level: Level::Minute, tick: standing.marks.minute }.ends_at(),
        Level::Minute | Level::WholeMinute => watermark,
    };
    (standing.marks.of(level).0..=level.slot_of(end).tick.0).map(move |tick| Slot { level, tick: Tick(tick) })
}

#[derive(Debug)]
struct Shard {
    shard: i32,
    is_own: bool,
    standing: Standing,
    watermark: UnixMs,
}

/// Pointers of one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Of all shards whose wheel answers.
    pub all: usize,
    /// Of this node's shards.
    pub own: usize,
}

/// The slots of all shards together, as they were counted last. Empty slots are missing.
#[derive(Debug, Default)]
pub struct Slots {
    shards: Vec<Shard>,
    counts: BTreeMap<Slot, Count>,
    turn: i64,
}

impl Slots {
    /// Looks at the wheels of all shards: which slots there are.
    pub async fn look(
        &mut self,
        hot: &dyn HotWheel,
        positions: &Positions,
        ownership: &Ownership,
    ) -> Result<(), Error> {
        let own: BTreeSet<i32> = ownership.kept().into_iter().map(|(shard, _)| shard).collect();
        let missing = positions.unreachable();
        let shards: Vec<i32> =
            positions.shards().into_iter().filter(|shard| !missing.contains(shard)).collect();
        let standings = if shards.is_empty() { Vec::new() } else { hot.look(&shards).await? };
        self.shards = shards
            .into_iter()
            .zip(standings)
            .filter_map(|(shard, standing)| {
                let watermark = positions.watermark(shard);
                Some(Shard { shard, is_own: own.contains(&shard), standing: standing?, watermark })
            })
            .collect();
        Ok(())
    }

    /// The last slot of a level that every shard has taken.
    pub fn taken(&self, level: Level) -> Option<Tick> {
        self.shards.iter().map(|shard| shard.standing.marks.of(level)).min()
    }

    /// The counts, in order.
    pub fn counts(&self) -> &BTreeMap<Slot, Count> {
        &self.counts
    }

    /// Counts every slot.
    pub async fn count_all(&mut self, hot: &dyn HotWheel) -> Result<(), Error> {
        self.count(hot, |_| true).await
    }

    /// Counts the slots that are about to be taken, and those of the others whose turn it is.
    pub async fn count_turn(&mut self, hot: &dyn HotWheel, now: UnixMs) -> Result<(), Error> {
        self.turn += 1;
        let turn = self.turn;
        let close = Level::Second.slot_of(UnixMs::new(now.get() + CLOSE_MS)).tick;
        let has_turn = |slot: &Slot| match slot.level {
            Level::Second => slot.tick <= close || (slot.tick.0 - turn).rem_euclid(TURNS[0]) == 0,
            Level::Minute | Level::WholeMinute => (slot.tick.0 - turn).rem_euclid(TURNS[1]) == 0,
        };
        self.count(hot, has_turn).await
    }

    async fn count(&mut self, hot: &dyn HotWheel, is_wanted: impl Fn(&Slot) -> bool) -> Result<(), Error> {
        let mut asked: Vec<(i32, Slot)> = Vec::new();
        let mut own: Vec<bool> = Vec::new();
        for Shard { shard, is_own, standing, watermark } in &self.shards {
            for level in Level::ALL {
                for slot in reach(level, standing, *watermark).filter(&is_wanted) {
                    asked.push((*shard, slot));
                    own.push(*is_own);
                }
            }
        }
        let counted = hot.counts(&asked).await?;
        let mut counts: BTreeMap<Slot, Count> = BTreeMap::new();
        for (((_, slot), is_own), count) in asked.into_iter().zip(own).zip(counted) {
            let of = counts.entry(slot).or_default();
            of.all += count;
            of.own += if is_own { count } else { 0 };
        }
        let first: BTreeMap<Level, Tick> =
            Level::ALL.into_iter().filter_map(|level| Some((level, self.taken(level)?))).collect();
        // What every shard has taken and handed over is not asked for any more.
        self.counts.retain(|slot, _| first.get(&slot.level).is_some_and(|first| slot.tick >= *first));
        self.counts.extend(counts);
        self.counts.retain(|_, count| count.all > 0);
        Ok(())
    }
}

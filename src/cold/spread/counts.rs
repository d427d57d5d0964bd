//! How many timers are due when, in memory, for the ranges that timers are spread over.
//!
//! A *block* is a range of cells: ten minutes by the second, or a day by the minute. It comes into being with the first
//! timer that is spread over it, is read from SQL by the loop of [`super`], and read again from time to time for what
//! others register. Meanwhile this node's own registrations are added. Blocks that nobody uses go.
//!
//! Counts are a help, not a truth: a timer that is counted twice or not at all for some seconds costs evenness.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Monotonic;
use crate::model::time::UnixMs;

/// The most blocks; one takes about 10 KB.
const MAX_BLOCKS: usize = 256;

/// A block that no timer was spread over for so long goes.
const UNUSED: Duration = Duration::from_secs(60);

/// The shortest time between two reads of a block.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// A block is not read again before so many times as long as the last read took.
const READ_COST: u32 = 20;

/// After a read no block is read for so many times as long as it took, so that all blocks together keep the database
/// busy for a fifth of the time at most.
const REST_COST: u32 = 4;

/// The longest such rest.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// How finely is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scale {
    Second,
    Minute,
}

impl Scale {
    const ALL: [Self; 2] = [Self::Second, Self::Minute];

    /// The scale for a span: a count by the second where that is at most an hour.
    pub fn of(within: Duration) -> Self {
        if within <= Duration::from_secs(3600) { Self::Second } else { Self::Minute }
    }

    /// The length of a cell, in milliseconds.
    pub const fn cell_ms(self) -> i64 {
        match self {
            Self::Second => 1000,
            Self::Minute => 60_000,
        }
    }

    /// How many cells a block has.
    pub const fn cells(self) -> usize {
        match self {
            Self::Second => 600,
            Self::Minute => 1440,
        }
    }

    const fn block_ms(self) -> i64 {
        self.cell_ms() * self.cells() as i64
    }

    /// The block that this moment lies in, and its cell there.
    fn place(self, at: UnixMs) -> (Key, usize) {
        let within = at.get().rem_euclid(self.block_ms()) / self.cell_ms();
        let number = at.get().div_euclid(self.block_ms());
        (Key { scale: self, number }, usize::try_from(within).unwrap_or(0))
    }
}

/// The name of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub scale: Scale,
    /// Counted from the Unix epoch.
    number: i64,
}

impl Key {
    /// Where the block begins, and where it ends.
    pub fn range(self) -> (UnixMs, UnixMs) {
        let begin = self.number * self.scale.block_ms();
        (UnixMs::new(begin), UnixMs::new(begin + self.scale.block_ms()))
    }
}

struct Block {
    /// Timers due in each cell, as far as is known.
    due: Vec<u32>,
    /// What this node registered since the read under way began; empty while none is.
    since: Vec<u32>,
    used_at: Monotonic,
    /// When it is read next.
    read_at: Monotonic,
}

impl Block {
    fn add(&mut self, cell: usize, by: i32) {
        for counts in [&mut self.due, &mut self.since] {
            if let Some(count) = counts.get_mut(cell) {
                *count = count.saturating_add_signed(by);
            }
        }
    }
}

/// What the loop that reads blocks is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// Read this block.
    Read(Key),
    /// Nothing for so long.
    Wait(Duration),
    /// Nothing until a timer is spread.
    Nothing,
}

/// The blocks.
#[derive(Default)]
pub(super) struct Counts {
    blocks: BTreeMap<Key, Block>,
    /// Nothing is read before this.
    rests_until: Option<Monotonic>,
}

impl Counts {
    /// The candidate with the fewest due around it, of equal ones the first. It is counted. `true` if there is a block
    /// that was not there before.
    pub fn choose(&mut self, scale: Scale, candidates: &[UnixMs], now: Monotonic) -> (UnixMs, bool) {
        let mut is_new = false;
        let mut best: Option<(u32, UnixMs)> = None;
        for &at in candidates {
            let (key, cell) = scale.place(at);
            is_new |= self.make(key, now);
            let Some(block) = self.blocks.get_mut(&key) else { continue };
            block.used_at = now;
            let due = block.due[cell];
            if best.is_none_or(|(fewest, _)| due < fewest) {
                best = Some((due, at));
            }
        }
        // Without counts chance decides: the first candidates of one owner's timers are near each other.
        let chance = candidates.get(1).or(candidates.first()).copied().unwrap_or_default();
        let chosen = best.map_or(chance, |(_, at)| at);
        self.note(chosen, 1);
        (chosen, is_new)
    }

    /// Counts a timer that is due then: `by` 1, or −1 if it is not registered after all.
    pub fn note(&mut self, at: UnixMs, by: i32) {
        for scale in Scale::ALL {
            let (key, cell) = scale.place(at);
            if let Some(block) = self.blocks.get_mut(&key) {
                block.add(cell, by);
            }
        }
    }

    /// Whether there is any block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Makes a block if it is not there, and there is room; returns whether it did.
    fn make(&mut self, key: Key, now: Monotonic) -> bool {
        if self.blocks.contains_key(&key) || self.blocks.len() >= MAX_BLOCKS {
            return false;
        }
        let block = Block { due: vec![0; key.scale.cells()], since: Vec::new(), used_at: now, read_at: now };
        self.blocks.insert(key, block);
        true
    }

    /// What is to be read next; blocks that nobody uses go. A block to read counts from now on what is registered.
    pub fn next(&mut self, now: Monotonic) -> Todo {
        self.blocks.retain(|_, block| now.since(block.used_at) < UNUSED);
        let Some((&key, block)) = self.blocks.iter_mut().min_by_key(|(_, block)| block.read_at) else {
            return Todo::Nothing;
        };
        let read_at = self.rests_until.map_or(block.read_at, |until| until.max(block.read_at));
        if read_at > now {
            return Todo::Wait(read_at.since(now));
        }
        block.since = vec![0; key.scale.cells()];
        Todo::Read(key)
    }

    /// Takes over what a read that took `took` has found: counts by cell. `None`: it failed.
    pub fn read(&mut self, key: Key, found: Option<&BTreeMap<i64, i64>>, now: Monotonic, took: Duration) {
        self.rests_until = Some(now.plus((took * REST_COST).min(LONGEST_REST)));
        let Some(block) = self.blocks.get_mut(&key) else { return };
        let since = std::mem::take(&mut block.since);
        block.read_at = now.plus((took * READ_COST).max(READ_AGAIN));
        let Some(found) = found else { return };
        block.due = since;
        for (cell, count) in found {
            let due = usize::try_from(*cell).ok().and_then(|cell| block.due.get_mut(cell));
            if let Some(due) = due {
                *due = due.saturating_add(u32::try_from(*count).unwrap_or(u32::MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::Uid;
    use crate::model::spread::Spread;
    use crate::model::time::Span;

    const FROM: UnixMs = UnixMs::new(1_800_000_000_000);

    /// Spreads timers over five minutes from [`FROM`] on; returns how many are due in each second.
    fn spread(counts: &mut Counts, timers: u128) -> Vec<u32> {
        let now = Monotonic::now();
        let spread = Spread { from: FROM, within: Span::from_duration(Duration::from_secs(300)) };
        let mut due = vec![0; 301];
        for n in 0..timers {
            let uid = Uid(uuid::Uuid::from_u128(n));
            let candidates: Vec<_> = spread.candidates("me", uid, UnixMs::new(0), false).collect();
            let (at, _) = counts.choose(Scale::Second, &candidates, now);
            due[usize::try_from((at.get() - FROM.get()) / 1000).unwrap()] += 1;
        }
        due
    }

    fn the_block() -> Key {
        Scale::Second.place(FROM).0
    }

    /// Reads the block as if these were due in it, by second.
    fn read(counts: &mut Counts, found: impl Fn(i64) -> i64) {
        let now = Monotonic::now();
        let (at, _) = counts.choose(Scale::Second, &[FROM], now);
        counts.note(at, -1);
        while let Todo::Read(key) = counts.next(now) {
            let found = (key == the_block()).then(|| (0..301).map(|cell| (cell, found(cell))).collect());
            counts.read(key, found.as_ref(), now, Duration::ZERO);
        }
    }

    #[test]
    fn one_moment_is_spread_evenly() {
        let due = spread(&mut Counts::default(), 100_000);
        let most = due[..300].iter().max().unwrap();
        assert!(*most < 350, "{most}; the mean is 333");
    }

    #[test]
    fn an_uneven_load_is_filled_up_around() {
        let mut counts = Counts::default();
        read(&mut counts, |cell| if cell % 10 < 3 { 1000 } else { 0 });
        let due = spread(&mut counts, 100_000);
        let full: u32 = due[..300].iter().enumerate().filter(|(cell, _)| cell % 10 < 3).map(|(_, n)| n).sum();
        // Of 2.7 % all three candidates of their own lie where it is full; the fourth is near their owner's place.
        assert!(full < 3000, "{full} came where there were a thousand each");
        assert!(due[..300].iter().all(|n| *n < 667), "{:?}", due.iter().max());
    }

    #[test]
    fn what_is_registered_during_a_read_is_counted_once() {
        let mut counts = Counts::default();
        let now = Monotonic::now();
        let cell = |counts: &Counts| counts.blocks[&the_block()].due[0];
        counts.choose(Scale::Second, &[FROM], now);
        assert_eq!(counts.next(now), Todo::Read(the_block()));
        counts.note(FROM, 1);
        assert_eq!(cell(&counts), 2, "while it is read, what was known counts");
        counts.read(the_block(), Some(&BTreeMap::from([(0, 1)])), now, Duration::ZERO);
        assert_eq!(cell(&counts), 2, "one that was read and one since");
        assert_eq!(counts.next(now), Todo::Wait(READ_AGAIN));
        counts.next(now.plus(READ_AGAIN));
        counts.read(the_block(), None, now, Duration::from_secs(1));
        assert_eq!(cell(&counts), 2, "a read that failed changes nothing");
        assert!(matches!(counts.next(now), Todo::Wait(_)));
        assert_eq!(counts.next(now.plus(UNUSED)), Todo::Nothing);
        assert!(counts.is_empty());
    }

    #[test]
    fn many_blocks_are_read_with_a_rest_after_each() {
        let mut counts = Counts::default();
        let (now, took) = (Monotonic::now(), Duration::from_millis(100));
        let at = |n: i64| UnixMs::new(FROM.get() + n * Scale::Second.block_ms());
        for n in 0..3 {
            counts.choose(Scale::Second, &[at(n)], now);
        }
        let Todo::Read(first) = counts.next(now) else { panic!("there are new ones") };
        counts.read(first, None, now, took);
        assert_eq!(counts.next(now), Todo::Wait(took * REST_COST));
        let Todo::Read(second) = counts.next(now.plus(took * REST_COST)) else { panic!("it has rested") };
        assert_ne!(first, second);
        counts.read(second, None, now, Duration::from_secs(3600));
        assert_eq!(counts.next(now), Todo::Wait(LONGEST_REST));
    }

    #[test]
    fn memory_is_bounded_and_chance_decides_beyond() {
        let mut counts = Counts::default();
        let now = Monotonic::now();
        let at = |n: i64| UnixMs::new(FROM.get() + n * Scale::Second.block_ms());
        for n in 0..1000 {
            counts.choose(Scale::Second, &[at(n)], now);
        }
        assert_eq!(counts.blocks.len(), MAX_BLOCKS);
        assert_eq!(counts.choose(Scale::Second, &[at(998), at(999)], now), (at(999), false));
    }
}

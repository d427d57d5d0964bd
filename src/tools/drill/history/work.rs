//! What workers of a queue saw and did.

use super::Micros;

/// What is asked of a timer for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// How often it is to be given out.
    pub times: u32,
    /// Whether a worker may have it again after it has settled a place.
    pub repeat: bool,
    /// Everything that was written to a worker is known, so that attempts can be counted.
    pub is_all_seen: bool,
    /// How soon a worker has it once it is due, while nothing is wrong.
    pub within_us: Micros,
}

/// One place of a timer for a queue, given to a worker: an item of an answer that the worker has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Giving {
    /// The timer's number.
    pub timer: u32,
    /// The number in the worker's name.
    pub worker: u32,
    /// The delivery id, hashed.
    pub delivery: u64,
    /// How often this delivery was given out, as the worker was told.
    pub attempt: i32,
    /// The lease's token, hashed. A worker may be told of one lease twice.
    pub token: u64,
    /// The timer's due time, in milliseconds since the Unix epoch.
    pub due_ms: i64,
    /// When it was given out by the store's clock: the end of the lease that the worker was told, less what it had asked for.
    pub given_us: Micros,
    /// When the lease ends.
    pub until_us: Micros,
    /// When the answer was read.
    pub at_us: Micros,
}

/// One settlement, as its worker made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    /// The timer's number.
    pub timer: u32,
    /// The lease's token, hashed.
    pub token: u64,
    /// What the worker wanted.
    pub wish: Wish,
    /// When it was sent.
    pub asked_us: Micros,
    /// When its answer was there, or it was given up.
    pub answered_us: Micros,
    /// The answer.
    pub answer: Settled,
}

/// What a worker wanted of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// It is done.
    Ack,
    /// Again after so long.
    Retry(Micros),
    /// Never again.
    Dead,
    /// To keep it for so long from now.
    Extend(Micros),
}

/// What a worker was told of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// 200: it counts.
    Counts,
    /// 409: somebody else may have it.
    Lost,
    /// No answer, or one that promises nothing.
    Unknown,
}

/// How often nodes asked the store for what they could give to workers, between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looks {
    /// The first moment.
    pub from_us: Micros,
    /// The last.
    pub until_us: Micros,
    /// How many nodes.
    pub nodes: u32,
    /// Calls to the store, by the nodes' own count: they measure a cost, and prove no promise.
    pub calls: u64,
    /// Items that were given meanwhile.
    pub items: u64,
    /// The most calls that may be, by the time and by the items.
    pub most: u64,
}

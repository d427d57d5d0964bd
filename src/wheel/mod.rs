//! The wheels: an index of the timers that are due soon, by time slot. It may be lost at any moment.
//!
//! # Theory
//!
//! A timing wheel (G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987) keeps timers
//! in slots, one slot for each tick. To start a timer is one append, and a tick is one take of a whole slot;
//! the cost of either does not depend on the number of timers. A hierarchy of wheels covers a long span with
//! few slots: a timer waits in a coarse slot first and is *cascaded* into a finer one when its time comes near.
//!
//! These wheels are of the hierarchical kind (the paper's scheme 7), with three differences. Slots are named by
//! absolute tick instead of an index modulo the wheel's size, so they never wrap, and a wheel that is built
//! twice has the same slots. Timers beyond the coarsest wheel wait in SQL, which is the third level. And a
//! cancelled timer stays in its slot: entries are pointers ([`Pointer`]), and the claim drops a stale one.
//!
//! | level | slot | reach | taken | then |
//! |---|---|---|---|---|
//! | cold store (SQL) | – | years | when `wake_at` comes into `wheel.window` | into a minute slot |
//! | [`Level::Minute`] | 60 s | `wheel.window`, 1 h | when the minute begins within `wheel.near` | into its second slots |
//! | [`Level::Second`] | 1 s | `wheel.near`, 2 min, up to the whole minute | half a second before it begins | to the last mile |
//! | [`Level::WholeMinute`] | 60 s | `wheel.window` | half a second before the minute begins | to the last mile |
//!
//! The last level holds timers of `precision: minute`: they are due at the whole minute and need no second
//! slot.
//!
//! # Worked example
//!
//! Window 1 h, near 2 min. At 12:00:00 a timer is registered for 13:30:07.250. It is due beyond the watermark
//! (13:00) and stays in SQL. At 12:31:00 the loader raises the shard's watermark to 13:31:00, scans the minute
//! below it, and appends a pointer to the minute slot of 13:30, tick 810 of the day. At 13:28:00 that minute
//! begins within `near`: the slot is taken, and its pointers are cascaded into second slots, this one into
//! 13:30:07. At 13:30:06.5 that slot is taken and handed to the last mile, which claims the timer at
//! 13:30:07.200 (`wheel.lead` before it is due) and sends it at 13:30:07.250. A timer registered at
//! 13:30:07.100 for 13:30:07.900 comes after the take of its slot: the append is refused, and its pointer is
//! handed to the last mile directly.
//!
//! # Marks, cursor, incarnation
//!
//! For each shard a wheel keeps the following beside its slots.
//!
//! - A *mark* for each level: the last tick that was taken. Append and take compare it in one atomic step, so a
//!   pointer is either in a slot that will be taken, or its append is refused.
//! - The *incarnation*: a name that is new whenever the wheel is built.
//! - The *beat*: a number that rises with every take.
//! - The *epoch* of the shard's owner.
//!
//! The *cursor* of a level is the last tick that was handed over in full; a slot that was taken is dropped only
//! then. A wheel that answers with another incarnation, or with an older beat, is not the one that was filled:
//! it is built anew from SQL ([`crate::hot::replay`]).
//!
//! # Servers, and a Redis Cluster
//!
//! A wheel also belongs to a *server*: one run of one Redis process. In a Redis Cluster that is the master that
//! serves the hash slot of the shard's keys, so shards have different servers. Replication is asynchronous, so
//! a failover may lose the last writes: appends, takes, or the building of a whole wheel. A promoted replica is
//! another server, and so are a restarted master and one to which a hash slot was moved. The wheels of its
//! shards, and only those, are built anew from SQL. A take that comes first finds an older beat or another
//! incarnation, with the same result.
//!
//! This room never reads a clock, never speaks SQL and never decides what fires: the claim in SQL does. So a
//! pointer that is lost, repeated or restored here costs lateness only.

mod keys;
mod measured;
mod memory;
mod redis;
mod scripts;
mod server;
mod servers;
pub mod slot;
mod topology;

use std::sync::Arc;

pub use measured::Measured;
pub use memory::{MemoryWheel, Snapshot};
pub use redis::RedisWheel;
pub use server::{Server, field};
pub use servers::Servers;
pub use slot::{Level, Marks, Slot, Tick};
pub use topology::{SLOTS, Topology};

use crate::config::{Config, HotUrl};
use crate::metrics::Connections;
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;

/// The most pointers that one take returns; a larger slot is taken in several pages.
pub const PAGE: usize = 10_000;

/// The most pointers of one [`Append`].
pub const APPEND: usize = 1000;

/// The most pointers in a node's express list. When it is full, further ones are refused; the sweep finds their
/// timers.
pub const EXPRESS: usize = 100_000;

/// A failure of the wheels.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis cannot be reached, did not answer in time, or answered with an error.
    #[error("Redis (`hot.url`): {}", brief(.0))]
    Redis(#[from] deadpool_redis::redis::RedisError),
    /// No connection to Redis was free or made in time.
    #[error("no connection to Redis (`hot.url`): {0}")]
    Pool(#[from] deadpool_redis::PoolError),
    /// The setting names no wheels.
    #[error("`hot.url`: {0}")]
    Url(String),
    /// An answer of Redis that this version does not understand.
    #[error("Redis answered {0}")]
    Answer(String),
    /// The server did not answer the last time its identity was asked for, so nothing else was sent to it.
    #[error("Redis (`hot.url`): no answer")]
    Unreachable,
    /// One of several masters failed.
    #[error("master {address}: {source}")]
    Master {
        /// Host and port.
        address: String,
        /// Its failure.
        source: Box<Error>,
    },
    /// No master serves this hash slot.
    #[error("Redis Cluster (`hot.url`): no master serves hash slot {0}")]
    Uncovered(u16),
    /// The setting names a cluster, and this server is not part of one.
    #[error("`hot.url`: {0} is a single Redis, not a Redis Cluster; give redis://{0}")]
    NotCluster(String),
    /// The setting names a single server, and this server is part of a cluster.
    #[error("`hot.url`: {0} is a node of a Redis Cluster; give redis+cluster://{0}")]
    IsCluster(String),
    /// One failure of several calls of a batch.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// The wheels of some shards are unreachable, while others answer.
    #[error("the wheels of {shards} shards: {why}")]
    SomeShards {
        /// The number of these shards.
        shards: usize,
        /// The failure of one of them.
        why: Unreachable,
    },
}

/// Why the wheel of a shard was unreachable while others answered, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable(Arc<str>);

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Unreachable {
    /// Redis answers, and has no memory left for the wheels.
    pub fn no_room() -> Self {
        Self("Redis has no room for them".into())
    }

    /// Whether Redis had no memory left.
    pub fn is_no_room(&self) -> bool {
        self.0.contains(NO_ROOM)
    }
}

impl From<Arc<Error>> for Unreachable {
    fn from(why: Arc<Error>) -> Self {
        Self(why.to_string().into())
    }
}

impl Error {
    /// Whether Redis had no memory left for what was to be written.
    pub fn is_no_room(&self) -> bool {
        self.to_string().contains(NO_ROOM)
    }

    /// Host and port of the node that serves a hash slot, according to a `MOVED` redirection.
    fn moved_to(&self) -> Option<(String, u16)> {
        match self {
            Self::Redis(why) if why.code() == Some("MOVED") => {
                let (host, port) = why.redirect_node()?.0.rsplit_once(':')?;
                Some((host.to_owned(), port.parse().ok()?))
            }
            Self::Master { source, .. } => source.moved_to(),
            Self::Shared(why) => why.moved_to(),
            _ => None,
        }
    }
}

/// What Redis says when it is full, on its own or from within a script.
const NO_ROOM: &str = "command not allowed when used memory";

/// Why a wheel is lost: the incarnation is not the one that was filled.
const OTHER_INCARNATION: &str = "it was emptied, or built anew by another process";

/// Why a wheel is lost: its beat is lower than that of a take that it answered.
const BEAT_WENT_BACK: &str = "it was rolled back";

/// The beginning of an error text of Redis: that of a pipeline repeats itself for every command.
fn brief(why: &deadpool_redis::redis::RedisError) -> String {
    let mut text = why.to_string();
    if let Some((end, _)) = text.char_indices().nth(300) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The state of a shard's wheel, as the wheel itself keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The name of this building of the wheel.
    pub incarnation: String,
    /// The epoch of the shard's owner.
    pub epoch: Epoch,
    /// Rises with every take.
    pub beat: i64,
    /// The last tick that was taken of each level.
    pub marks: Marks,
    /// The shard was loaded up to here, in milliseconds since the Unix epoch.
    pub loaded: i64,
}

/// Pointers to append to one slot of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The shard.
    pub shard: i32,
    /// The slot.
    pub slot: Slot,
    /// At most [`APPEND`].
    pub pointers: Vec<Pointer>,
}

/// The outcome of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// The pointers are in the slot, which was not taken yet.
    Kept,
    /// Refused: the slot was taken already. The pointers are for the owner's last mile.
    Taken,
    /// The shard has no wheel.
    NoWheel,
    /// The shard's wheel was unreachable, or its server refused, while others answered.
    Unreachable(Unreachable),
}

/// A take of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// The shard.
    pub shard: i32,
    /// Its owner's epoch. The take is refused if the wheel has another one.
    pub epoch: Epoch,
    /// The incarnation that the owner built or took over.
    pub incarnation: String,
    /// The beat after the last take.
    pub beat: i64,
    /// The slot.
    pub slot: Slot,
    /// How many of its pointers were taken already, in earlier pages.
    pub skip: usize,
}

/// The outcome of a take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// A page of the slot's pointers.
    Page {
        /// The pointers that this version can read, in the order of their appends.
        pointers: Vec<Pointer>,
        /// The new beat.
        beat: i64,
        /// Whether another page may follow.
        more: bool,
    },
    /// The wheel has another owner's epoch.
    NotMine,
    /// The wheel is not the one that was filled; why, in words.
    Lost(&'static str),
    /// The shard's wheel was unreachable while others answered.
    Unreachable(Unreachable),
}

/// The wheels of all shards. Two versions exist: in Redis, and in this process.
///
/// Every call is a batch. It is atomic for each shard, not across shards. After an error it is unknown which
/// calls of the batch took effect; repeating the batch is safe. If the wheels are spread over several servers,
/// those of some shards may be unreachable while others answer; so the calls that a loop has to continue after
/// return an outcome for each shard.
#[async_trait::async_trait]
pub trait HotWheel: Send + Sync {
    /// The names of the servers of these shards' wheels, in order. A name that has changed means other
    /// contents, or older ones. Fails if no server answers.
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Unreachable>>, Error>;

    /// The states of the wheels of these shards, in order; `None` for a shard without a wheel.
    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error>;

    /// Builds wheels with these states; whether each was built, in order. One is not where the wheel has a higher epoch:
    /// a later owner has it. Their minute slots from the marks up to `until` (ms) are emptied, and so are the second
    /// slots of minutes that count as cascaded. Later second slots may keep pointers of an earlier building; they come
    /// twice, and claims drop the second ones.
    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<Vec<bool>, Error>;

    /// Raises the epoch of these shards' wheels, so that only the owner of this epoch can take from them. A
    /// higher epoch stays: a node that has lost a shard without knowing it does not lock out the new owner.
    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error>;

    /// Stores up to where each shard was loaded (ms) by its owner under this epoch.
    async fn set_loaded(&self, shards: &[(i32, Epoch, i64)]) -> Result<(), Error>;

    /// Appends pointers to slots; answers in order.
    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error>;

    /// Takes slots: their marks rise, and from then on appends to them are refused. The pointers stay until
    /// [`HotWheel::hand_over`]; a second take returns them again. Answers in order.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error>;

    /// Drops slots that were handed over in full.
    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error>;

    /// The number of pointers in each of these slots, in order.
    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error>;

    /// Appends pointers to another node's express list, for its last mile. `false` if the list is full.
    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error>;

    /// Takes the pointers of this node's express list. Waits a few seconds for one to arrive; may be empty.
    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error>;

    /// Remembers that the cold store has shown this incarnation, beyond the life of any node, and returns the highest
    /// that is remembered. Wheels in process remember nothing.
    async fn witness(&self, incarnation: i64) -> Result<i64, Error> {
        Ok(incarnation)
    }

    /// The share of its memory limit that the fullest server uses; 0 without a limit, and for wheels in process.
    async fn used(&self) -> Result<f64, Error> {
        Ok(0.0)
    }

    /// Whether other nodes share these wheels.
    fn is_shared(&self) -> bool;

    /// The connections to the servers, all together; `None` for wheels in process.
    fn connections(&self) -> Option<Connections> {
        None
    }
}

/// Opens the wheels that `hot.url` names, under the store's own name. No connection to Redis is made yet.
pub fn open(config: &Config, name: &str) -> Result<Arc<dyn HotWheel>, Error> {
    match config.hot_url().map_err(|why| Error::Url(why.to_string()))? {
        HotUrl::Memory => Ok(Arc::new(MemoryWheel::default())),
        url => Ok(Arc::new(RedisWheel::open(&url, config.hot.connections, name)?)),
    }
}

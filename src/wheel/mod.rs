//! The wheels: an index of what is due soon, by time slot, that may be lost at any moment.
//!
//! # Theory
//!
//! A timing wheel (G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987) keeps timers
//! in slots, one slot a tick. Starting a timer is one append, a tick is one take of a whole slot: both cost
//! the same however many timers there are. A hierarchy of wheels covers a long span with few slots: a
//! timer waits in a coarse slot first and is *cascaded* into finer ones when its time comes near.
//!
//! Ours is the hierarchical kind (the paper's scheme 7), with three liberties. Slots are named by absolute
//! tick instead of an index modulo the wheel's size, so nothing ever wraps and building a wheel twice gives
//! the same slots. What lies beyond the coarsest wheel waits in SQL, which is the third level. And a
//! cancelled timer stays in its slot: entries are pointers ([`Pointer`]), and a stale one is dropped by its
//! claim.
//!
//! | level | slot | reach | taken | then |
//! |---|---|---|---|---|
//! | cold store (SQL) | – | years | when `wake_at` comes into `wheel.window` | into a minute slot |
//! | [`Level::Minute`] | 60 s | `wheel.window`, 1 h | when the minute begins within `wheel.near` | into its second slots |
//! | [`Level::Second`] | 1 s | `wheel.near`, 2 min, up to the whole minute | half a second before it begins | to the last mile |
//! | [`Level::WholeMinute`] | 60 s | `wheel.window` | half a second before the minute begins | to the last mile |
//!
//! The last level holds what asked for `precision: minute`: due at the whole minute, it needs no second slot.
//!
//! # Worked example
//!
//! Window 1 h, near 2 min. At 12:00:00 a timer is registered for 13:30:07.250. It is due beyond the
//! watermark (13:00) and stays in SQL. At 12:31:00 the loader raises its shard's watermark to 13:31:00,
//! scans the minute before it, and appends a pointer to the minute slot of 13:30, tick 810 of the day. At
//! 13:28:00 that minute begins within `near`: the slot is taken and its pointers go to second slots, ours to
//! 13:30:07. At 13:30:06.5 that slot is taken and handed to the last mile, which claims the timer at
//! 13:30:07.200 (`wheel.lead` before) and sends it at 13:30:07.250. A timer registered at 13:30:07.100 for
//! 13:30:07.900 finds its slot taken, the append is refused, and its pointer goes straight to the last mile.
//!
//! # Marks, cursor, incarnation
//!
//! For each shard a wheel keeps, beside its slots, a *mark* per level: the last tick that was taken. Append
//! and take compare it in one atomic step, so a pointer is either in a slot that will be taken or refused to
//! the one who brings it. The *cursor* of a level is the last tick that was handed over in full; a taken slot
//! is dropped only then. The *incarnation* names this building of the wheel, the *beat* rises with every
//! take, the *epoch* is that of the shard's owner. A wheel that answers with another incarnation, or with an
//! older beat, is not the one that was filled: it is built anew from SQL ([`crate::hot::replay`]).
//!
//! # Servers, and a Redis Cluster
//!
//! A wheel also belongs to a *server*, the run of one Redis process. In a Redis Cluster that is the master
//! that serves the hash slot of the shard's keys, so shards have different ones. A failover there may lose
//! the last writes, for replication is asynchronous: appends, takes, or a whole building of the wheel. The
//! replica that was promoted is another server, and so is a master that was started again and one to which a
//! slot was moved; the wheels of its shards, and only those, are built anew from SQL. A beat that went back
//! and a foreign incarnation tell the same if a take meets them first.
//!
//! This room never reads a clock, never speaks SQL and never decides what fires: SQL does, in the claim. So
//! whatever is lost, repeated or resurrected here costs lateness only.

mod keys;
mod memory;
mod redis;
mod scripts;
mod server;
mod servers;
pub mod slot;
mod topology;

use std::sync::Arc;

pub use memory::{MemoryWheel, Snapshot};
pub use redis::RedisWheel;
pub use server::{Server, field};
pub use servers::Servers;
pub use slot::{Level, Marks, Place, Slot, Tick};
pub use topology::{SLOTS, Topology};

use crate::config::{Config, HotUrl};
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;

/// The most pointers one take returns; more are taken in further pages.
pub const PAGE: usize = 10_000;

/// The most pointers one append adds to one slot in one step.
pub const APPEND: usize = 1000;

/// The most pointers that wait in a node's express list; further ones are left to the sweep.
pub const EXPRESS: usize = 100_000;

/// Why the wheels did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis cannot be reached, did not answer in time, or refused.
    #[error("Redis (`hot.url`): {}", brief(.0))]
    Redis(#[from] deadpool_redis::redis::RedisError),
    /// No connection to Redis within the time allowed.
    #[error("no connection to Redis (`hot.url`): {0}")]
    Pool(#[from] deadpool_redis::PoolError),
    /// The pool cannot be made from the settings.
    #[error("`hot.url`: {0}")]
    Url(String),
    /// Redis answered what this version does not understand.
    #[error("Redis answered {0}")]
    Answer(String),
    /// Nothing was asked: it did not even say who it is.
    #[error("Redis (`hot.url`): it does not answer")]
    Away,
    /// One of several went wrong.
    #[error("master {address}: {source}")]
    Master {
        /// Host and port.
        address: String,
        /// What went wrong.
        source: Box<Error>,
    },
    /// Nobody serves this hash slot.
    #[error("Redis Cluster (`hot.url`): no master serves hash slot {0}")]
    Uncovered(u16),
    /// A cluster was named, and this is none.
    #[error("`hot.url`: {0} is a single Redis and no Redis Cluster; give redis://{0}")]
    NotCluster(String),
    /// One server was named, and it is one of a cluster.
    #[error("`hot.url`: {0} is a node of a Redis Cluster; give redis+cluster://{0}")]
    IsCluster(String),
    /// What several parts of a batch met.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// Others turn, but not the wheels of so many shards.
    #[error("the wheels of {shards} shards: {why}")]
    Part {
        /// How many.
        shards: usize,
        /// Why not, for one of them.
        why: Away,
    },
}

/// Why a part of the wheels was out of reach while others answered, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away(Arc<str>);

impl std::fmt::Display for Away {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Arc<Error>> for Away {
    fn from(why: Arc<Error>) -> Self {
        Self(why.to_string().into())
    }
}

impl Error {
    /// Where the node of a cluster that was asked says that a slot is.
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

/// Why a wheel is lost: there is none of the incarnation that was filled.
const GONE: &str = "it was emptied or built by somebody else";

/// Why a wheel is lost: it has forgotten takes.
const WENT_BACK: &str = "it went back in time";

/// The beginning of what Redis says: a pipeline tells the same of every command.
fn brief(why: &deadpool_redis::redis::RedisError) -> String {
    let mut text = why.to_string();
    if let Some((end, _)) = text.char_indices().nth(300) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// How a shard's wheel stands, as the wheel itself knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Which building of the wheel this is.
    pub incarnation: String,
    /// The epoch of the shard's owner.
    pub epoch: Epoch,
    /// Rises with every take.
    pub beat: i64,
    /// The last tick taken of each level.
    pub marks: Marks,
    /// The shard was loaded up to here, milliseconds since the Unix epoch.
    pub loaded: i64,
}

/// Pointers on their way into one slot of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The shard.
    pub shard: i32,
    /// The slot.
    pub slot: Slot,
    /// At most [`APPEND`].
    pub pointers: Vec<Pointer>,
}

/// What became of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// It is in its slot, which has not been taken yet.
    Kept,
    /// The slot was taken before: the pointers are for the owner's last mile.
    Taken,
    /// There is no wheel of this shard.
    NoWheel,
    /// The shard's part of the wheels did not answer, or refused, while others took theirs.
    Away(Away),
}

/// A take of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// The shard.
    pub shard: i32,
    /// Its owner's epoch: another owner's wheel is not touched.
    pub epoch: Epoch,
    /// The incarnation that the owner built or found.
    pub incarnation: String,
    /// The beat that the last take left behind.
    pub beat: i64,
    /// The slot.
    pub slot: Slot,
    /// How many of its pointers were taken already, in pages of [`PAGE`].
    pub skip: usize,
}

/// What a take got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// A page of the slot's pointers.
    Page {
        /// Those that this version can read, in the order of their appends.
        pointers: Vec<Pointer>,
        /// The new beat.
        beat: i64,
        /// Whether there may be another page behind it.
        more: bool,
    },
    /// The shard's wheel is another owner's now.
    NotMine,
    /// The wheel is not the one that was filled: why, in words.
    Lost(&'static str),
    /// The shard's part of the wheels did not answer while others did.
    Away(Away),
}

/// A place that keeps wheels. Two exist: Redis, and this process.
///
/// Every call is a batch; what belongs to one shard happens atomically, what belongs to several does not.
/// An error leaves open what of the batch happened, and repeating it does no harm. Where wheels are spread
/// over several servers, those of some shards may be away while others turn; what a loop needs to go on with
/// the others is told by shard.
#[async_trait::async_trait]
pub trait HotWheel: Send + Sync {
    /// Names the server that each of these shards' wheels is in, in order: another name than before means
    /// other contents, or older ones. Fails if none answers.
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Away>>, Error>;

    /// How the wheels of these shards stand, in order; `None` where there is none.
    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error>;

    /// Starts wheels anew, as given. Minute slots from the marks on up to `until` (ms) are emptied, and so are
    /// the seconds of minutes that count as cascaded. What others put into later seconds may stay: those
    /// pointers come twice, and claims drop them.
    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<(), Error>;

    /// Makes the owner of this epoch the one that may take from these shards' wheels, unless an owner of a
    /// higher epoch is already: who lost a shard and does not know it yet does not disturb who took it over.
    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error>;

    /// Keeps up to where each shard was loaded (ms).
    async fn set_loaded(&self, shards: &[(i32, i64)]) -> Result<(), Error>;

    /// Adds pointers to slots; answers in order.
    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error>;

    /// Takes slots, whose marks rise: from now on appends to them are refused. The pointers stay until
    /// [`HotWheel::hand_over`]; taking again returns them again. Answers in order.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error>;

    /// Drops slots that were handed over in full.
    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error>;

    /// How many pointers lie in each of these slots, in order.
    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error>;

    /// Gives pointers to another node's last mile; refuses (false) when too many wait there.
    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error>;

    /// Takes what others gave to this node; waits a few seconds for something to come, then returns nothing.
    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error>;

    /// Whether other nodes see the same wheels.
    fn is_shared(&self) -> bool;
}

/// The wheels that `hot.url` names, under the store's own name. Redis is not reached yet.
pub fn open(config: &Config, name: &str) -> Result<Arc<dyn HotWheel>, Error> {
    match config.hot_url().map_err(|why| Error::Url(why.to_string()))? {
        HotUrl::Memory => Ok(Arc::new(MemoryWheel::default())),
        url => Ok(Arc::new(RedisWheel::open(&url, config.hot.connections, name)?)),
    }
}

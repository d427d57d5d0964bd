//! All keys of Mainspring in Redis. The keys of one shard have one hash tag, so that a script may use several
//! of them on a Redis Cluster too.

use super::slot::{Level, Slot};

/// Builds the keys of one store.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    store: String,
}

impl Keys {
    pub fn new(store: &str) -> Self {
        Self { store: store.to_owned() }
    }

    /// HASH of a shard's standing: `i` incarnation, `e` epoch, `b` beat, `l` loaded (ms), and the marks
    /// `s`, `m`, `w`.
    pub fn standing(&self, shard: i32) -> String {
        format!("mainspring:{{{}:{shard}}}", self.store)
    }

    /// LIST of a slot's packed pointers.
    pub fn slot(&self, shard: i32, slot: Slot) -> String {
        format!("mainspring:{{{}:{shard}}}:{}{}", self.store, mark(slot.level), slot.tick.0)
    }

    /// STRING: the highest incarnation of the cold store that a node has seen. It does not expire.
    pub fn witness(&self) -> String {
        format!("mainspring:{{{}:witness}}", self.store)
    }

    /// LIST of pointers for a node's last mile; each entry is the shard (4 bytes, big-endian) and the packed
    /// pointer.
    pub fn express(&self, node: &str) -> String {
        format!("mainspring:{{{}:express:{node}}}", self.store)
    }
}

/// The letter of a level: the field of its mark, and the beginning of its slots' names.
pub(super) const fn mark(level: Level) -> &'static str {
    match level {
        Level::Second => "s",
        Level::Minute => "m",
        Level::WholeMinute => "w",
    }
}

//! sea-orm entities of the small tables. `timers` and `history` are read and written in batches (see
//! `super::row`).

pub mod attempt;
pub mod node;
pub mod replay;
pub mod shard;
pub mod store;

//! The model of a timer, without I/O: ids, time, state and its one transition ([`timer::Life::step`]), pointer,
//! target, policies.
//!
//! This room knows no other room. Every decision about a timer's state is made here, from values.

pub mod destination;
pub mod id;
pub mod json;
pub mod key;
pub mod merge;
pub mod namespace;
pub mod networks;
pub mod operation;
pub mod place;
pub mod pointer;
pub mod policy;
pub mod priority;
pub mod queue;
pub mod rule;
pub mod schedule;
pub mod spread;
pub mod subscription;
pub mod target;
pub mod template;
pub mod time;
pub mod timer;
pub mod trace;

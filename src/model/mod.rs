//! What a timer is, without any I/O: ids, time, state and its one [`timer::Life::step`], target, policies.
//!
//! This room knows no other room. Whatever decides over a timer's fate is decided here, from values.

pub mod id;
pub mod pointer;
pub mod policy;
pub mod target;
pub mod time;
pub mod timer;

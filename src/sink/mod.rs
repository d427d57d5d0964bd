//! Where a firing goes: what is said, to whom, and what came of it.

pub mod event;
pub mod guard;
pub mod webhook;

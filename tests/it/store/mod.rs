//! One conformance suite for the cold store, run on SQLite and on PostgreSQL: every rule and every race that
//! SQL must win. The clock is turned by hand.

mod audit;
mod calls;
mod claim;
mod copies;
pub mod fixture;
mod keys;
mod list;
mod live_operations;
mod look;
mod merge;
mod moved;
mod namespaces;
mod operations;
mod outbox;
mod owners;
mod paused;
mod plans;
pub mod queues;
mod register;
mod retention;
mod schedules;
mod schema;
mod templates;

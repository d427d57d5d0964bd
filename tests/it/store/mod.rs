//! One conformance suite for the cold store, run on SQLite and on PostgreSQL: every rule and every race that
//! SQL must win. The clock is turned by hand.

mod claim;
mod fixture;
mod look;
mod owners;
mod register;
mod schema;

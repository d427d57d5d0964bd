//! Tests against the real binary, real servers and a real HTTP receiver. One binary, so that it
//! links once.
//!
//! `scripts/test` provides the shared servers; a test that needs one fails without it, and never
//! passes by skipping.
#![allow(clippy::disallowed_methods, reason = "tests are outside the clock room")]

mod bad_days;
mod bench;
mod cli;
mod crash;
mod deploy;
mod drill;
mod durable;
mod examples;
mod fleet;
mod grafana;
mod hostile;
mod large;
mod layout;
mod lifecycle;
mod logs;
mod operations;
mod page;
mod paths;
mod places;
mod queue;
mod races;
mod recurring;
mod reload;
mod rest;
mod retention;
mod series;
#[cfg(feature = "planted")]
mod sim;
mod spread;
mod store;
mod support;
mod templates;
#[cfg(feature = "otlp")]
mod traces;
mod upgrade;
mod wheels;

mod servers_and_support;

//! draft
pub mod api;
pub mod app;
pub mod cli;
pub mod clock;
pub mod cold;
pub mod config;
pub mod dispatch;
pub mod housekeeping;
pub mod intake;
pub mod metrics;
pub mod model;
pub mod ownership;
pub mod sweep;
pub mod telemetry;

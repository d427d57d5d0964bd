//! Log lines on stderr. Payloads, secrets and URLs' paths never reach them.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{Log, LogFormat};

/// Starts logging; later calls in the same process change nothing.
pub fn init(log: &Log) -> anyhow::Result<()> {
    // A database that goes away is told of by whoever needed it; sqlx would tell it twice for each connection.
    let quiet = match log.filter.contains("sqlx") {
        true => "",
        false => ",sqlx::postgres::notice=error,sqlx_core::pool::connection=error",
    };
    let filter = EnvFilter::try_new(format!("{}{quiet}", log.filter)).map_err(|why| {
        anyhow::anyhow!("settings: `log.filter`: {why}; for example info or info,mainspring=debug")
    })?;
    let lines = fmt::Subscriber::builder()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Fails only if a subscriber is set already, as in tests.
    let _ = match log.format {
        LogFormat::Text => tracing::subscriber::set_global_default(lines.compact().finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(lines.json().finish()),
    };
    Ok(())
}

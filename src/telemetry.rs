//! Log lines on stderr. They never hold payloads, secrets or the paths of URLs.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{Log, LogFormat};

/// Starts logging. Later calls in the same process change nothing.
pub fn init(log: &Log) -> anyhow::Result<()> {
    // When the database goes away, the statement that failed is logged where it is handled. sqlx would log two more
    // lines for each connection.
    let sqlx_levels = match log.filter.contains("sqlx") {
        true => "",
        false => ",sqlx::postgres::notice=error,sqlx_core::pool::connection=error",
    };
    let filter = EnvFilter::try_new(format!("{}{sqlx_levels}", log.filter)).map_err(|why| {
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

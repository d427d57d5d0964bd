//! Log lines on stderr, and what decides whether there is one.
//!
//! One line a failure, where it is handled. A line holds no payload, no secret, and of a URL neither path nor query. A
//! failure that lasts is one line too ([`Streak`], [`Rarely`]).

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::clock::Monotonic;
use crate::config::{Log, LogFormat};

/// For `info`: what libraries log about themselves at this level (each migration, each job of the scheduler) is shown
/// with `debug`.
const AT_INFO: [&str; 3] = ["warn", "mainspring=info", SQLX];

/// When the database goes away, the statement that failed is logged where it is handled. sqlx would add lines for every
/// connection, at `warn`.
const SQLX: &str = "sqlx=error";

/// lapin, a client of brokers, logs what is returned to it, payload and all, and at `debug` what it sends. What fails there
/// fails an attempt, which has its own words.
const LAPIN: &str = "lapin=off";

/// How long a failure of one loop lasts before it is logged, while the store answers others: the renewal of the leases
/// finds out within that time whether the store is away, and logs that once for all loops.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts logging. Later calls in the same process change nothing.
pub fn init(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(directives(&log.filter)).map_err(|why| {
        anyhow::anyhow!("settings: `log.filter`: {why}; for example info or info,mainspring=debug")
    })?;
    let lines = fmt::Subscriber::builder()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let set = match log.format {
        LogFormat::Text => tracing::subscriber::set_global_default(lines.compact().finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(lines.json().finish()),
    };
    // Fails only if a subscriber is set already, as in tests.
    if set.is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

/// The directives of a filter as it is set. `info` and `warn` for everything are meant for Mainspring, and are replaced;
/// a directive for one target stays as it is, and is the stronger.
fn directives(filter: &str) -> String {
    let (mut ours, mut given) = (Vec::new(), Vec::new());
    for directive in filter.split(',').map(str::trim) {
        match directive.to_ascii_lowercase().as_str() {
            "info" => ours.extend(AT_INFO),
            "warn" => ours.extend(["warn", SQLX]),
            _ => given.push(directive),
        }
    }
    // Of two directives for one target the later one holds.
    ours.extend(given);
    ours.push(LAPIN);
    ours.join(",")
}

/// Logs a panic as one line like any other, with the place in the code.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    let message = literal(panic.payload());
    let trace = Backtrace::capture();
    match trace.status() {
        BacktraceStatus::Captured => tracing::error!(place, thread, message, %trace, "panicked"),
        _ => tracing::error!(place, thread, message, "panicked"),
    }
}

/// The message of a panic, if it is a literal of the source. One that was formatted may quote what is not for a log, such
/// as the text that was cut in the middle of a character.
fn literal(payload: &(dyn Any + Send)) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("(withheld: it may quote data)")
}

/// The failures of one loop in a row, so that they are one line and not one a try.
#[derive(Debug, Default)]
pub struct Streak {
    since: Option<Monotonic>,
    logged: bool,
}

impl Streak {
    /// Notes a failure. Returns whether to log it: once a streak, when it has lasted for ten seconds. Not while
    /// `is_known`: the cause is logged already.
    pub fn failed(&mut self, is_known: bool) -> bool {
        if is_known {
            // What fails beyond the end of the known trouble begins then.
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert_with(Monotonic::now);
        since.elapsed() >= PATIENCE && !std::mem::replace(&mut self.logged, true)
    }

    /// Notes a success. Returns whether to log it: the failures before were logged.
    pub fn succeeded(&mut self) -> bool {
        self.since = None;
        std::mem::take(&mut self.logged)
    }
}

/// Limits a line that would repeat: one a minute.
#[derive(Debug, Default)]
pub struct Rarely(Option<Monotonic>);

impl Rarely {
    /// Whether the line may be logged now; the next one not before a minute has passed.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|last| last.elapsed() >= Duration::from_secs(60));
        if is_due {
            self.0 = Some(Monotonic::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_for_everything_is_meant_for_mainspring() {
        for (given, in_force) in [
            ("info", "warn,mainspring=info,sqlx=error,lapin=off"),
            (
                " INFO , mainspring::dispatch=debug",
                "warn,mainspring=info,sqlx=error,mainspring::dispatch=debug,lapin=off",
            ),
            ("sqlx=info,info", "warn,mainspring=info,sqlx=error,sqlx=info,lapin=off"),
            ("warn", "warn,sqlx=error,lapin=off"),
            ("error", "error,lapin=off"),
            ("debug", "debug,lapin=off"),
            ("mainspring=trace", "mainspring=trace,lapin=off"),
            ("lapin=debug", "lapin=debug,lapin=off"),
        ] {
            assert_eq!(directives(given), in_force, "{given}");
            assert!(EnvFilter::try_new(directives(given)).is_ok(), "{given}");
        }
    }

    #[test]
    fn of_a_panic_only_a_literal_is_logged() {
        let text = "of a user";
        let formatted = std::panic::catch_unwind(|| panic!("cannot cut {text}")).unwrap_err();
        assert!(!literal(&*formatted).contains(text));
        let fixed = std::panic::catch_unwind(|| panic!("no room")).unwrap_err();
        assert_eq!(literal(&*fixed), "no room");
    }

    #[test]
    #[cfg(feature = "planted")]
    fn failures_in_a_row_are_one_line() {
        // The time of this thread alone.
        let at = |seconds| Monotonic::turn(Duration::from_secs(seconds));
        let mut streak = Streak::default();
        at(0);
        assert!(!streak.failed(false), "a hiccup");
        at(9);
        assert!(!streak.failed(false));
        at(10);
        assert!(streak.failed(false));
        at(3600);
        assert!(!streak.failed(false), "once");
        assert!(streak.succeeded());
        assert!(!streak.succeeded());
        assert!(!streak.failed(false), "the next one begins anew");
        at(3620);
        assert!(!streak.failed(true), "the outage is logged elsewhere");
        assert!(!streak.failed(false), "the store is back for less than ten seconds");
        assert!(!streak.succeeded(), "nothing was logged");
    }

    #[test]
    #[cfg(feature = "planted")]
    fn a_line_that_repeats_comes_once_a_minute() {
        let mut rarely = Rarely::default();
        Monotonic::turn(Duration::from_secs(0));
        assert!(rarely.is_due() && !rarely.is_due());
        Monotonic::turn(Duration::from_secs(60));
        assert!(rarely.is_due() && !rarely.is_due());
    }
}

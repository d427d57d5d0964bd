//! Traces: a span for each call of the API and for each attempt, exported by OTLP.
//!
//! A build option, the feature `otlp`. Without it this room is a set of empty types and functions (`off.rs`); no other
//! room knows which of the two it has. With it (`otlp.rs`) nothing is recorded unless the environment names a collector.
//!
//! A span never holds a payload, a secret, or the path or query of a URL. No span is waited for: what the collector does
//! not take in time is dropped.
//!
//! The trace of the call that registered a timer ([`Trace`]) is kept and sent as `ce-traceparent` in every build. It
//! is not the trace of the attempt, which is a new one with a link to the call's (docs/decisions.md).

#[cfg(feature = "otlp")]
mod client;
#[cfg(not(feature = "otlp"))]
mod off;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod settings;

use std::time::Duration;

use crate::model::id::Generation;
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::trace::Trace;

#[cfg(not(feature = "otlp"))]
pub use off::{Attempt, Call, Export, Onward};
#[cfg(feature = "otlp")]
pub use otlp::{Attempt, Call, Export, Onward};

/// The variables of the environment that turn the export on; the first one has precedence.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// A variable of the environment, if it is set and not empty.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().trim().to_owned();
    (!value.is_empty()).then_some(value)
}

/// What is known of an attempt when it starts.
#[derive(Debug, Clone, Copy)]
pub struct Started<'a> {
    /// The trace of the call that registered the timer.
    pub registered: Option<Trace>,
    /// The timer's id.
    pub timer: &'a str,
    /// The delivery id.
    pub delivery: &'a str,
    /// The generation that fires.
    pub generation: Generation,
    /// Which attempt of the generation it is, from 1.
    pub attempt: i32,
    /// The due time.
    pub due_at: UnixMs,
    /// How long after its time the attempt starts: after the due time, or after the end of the wait before a retry.
    pub late: Duration,
    /// Where it goes.
    pub target: &'a Target,
}

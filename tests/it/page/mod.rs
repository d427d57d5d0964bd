//! The page as a browser meets it: without script over plain HTTP, and in a real browser ([`browser`]).

mod acting;
mod browser;
mod choosing;
mod looking;
mod visitor;
mod who;

use serde_json::{Value, json};

use crate::support::to;
use visitor::{Page, Visitor};

/// Nobody listens there, and no test's timer to it becomes due.
const NOWHERE: &str = "http://127.0.0.1:9/x";

/// A key of the settings.
const KEY: &str = "the-key-of-the-page-0123456789";

/// A timer that is not due while its test runs.
fn later() -> Value {
    json!({"delay": "PT1H", "target": to(NOWHERE)})
}

//! The lives of a run's timers, as lifecycle events tell them. Events are written in the transaction that makes them true,
//! so what has arrived must fit them, whoever changed the timer.

use mainspring::model::subscription::Lifecycle;
use mainspring::model::time::UnixMs;
use serde_json::Value;

use super::events::Event;
use super::receiver::Behaviour;

/// One event of a life: what the timer was from then on.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub kind: Lifecycle,
    /// When it became true; of a registration, when it was asked for.
    pub at: i64,
    pub generation: i32,
    pub due_at: i64,
    pub is_paused: bool,
}

/// An arrival: when, of which generation, and how its receiver behaved.
pub type Arrival = (i64, i32, Behaviour);

/// A timer's life in order.
pub fn read(events: &[Event]) -> Vec<Entry> {
    let entry = |event: &Event| {
        let body: Value = serde_json::from_slice(&event.body).expect("JSON");
        let moment =
            |name: &str| UnixMs::parse_rfc3339(body[name].as_str().expect("a text")).expect("a time").get();
        Entry {
            kind: event.kind,
            at: moment("at"),
            generation: body["generation"].as_i64().and_then(|n| i32::try_from(n).ok()).expect("a number"),
            due_at: moment("due_at"),
            is_paused: body["state"] == "paused",
        }
    };
    events.iter().map(entry).collect()
}

/// Whether an arrival fits the life of its timer.
pub fn fits(life: &[Entry], (at, generation, how): Arrival) -> Result<(), String> {
    let is_known = |entry: &&Entry| entry.at < at;
    let mut changes = life.iter().filter(is_known).filter(|entry| entry.kind == Lifecycle::TimerChanged);
    if let Some(later) = changes.find(|entry| entry.generation > generation) {
        return Err(format!("sent at {at} as generation {generation}, after {later:?}"));
    }
    // A registration has the moment at which it was asked for: what was before may have been sent until it was made.
    let of = |entry: &&Entry| entry.generation <= generation;
    let last = life.iter().filter(is_known).rfind(of);
    // What happened within the same millisecond may have come before it.
    let mut now = life.iter().filter(|entry| entry.at == at).filter(of);
    match last {
        Some(last) if last.is_paused && now.all(|entry| entry.is_paused) => {
            Err(format!("sent at {at}, and paused: {last:?}"))
        }
        Some(last) if last.kind == Lifecycle::TimerCancelled && how != Behaviour::Refuses => {
            Err(format!("sent at {at}, after it was cancelled: {last:?}"))
        }
        _ => Ok(()),
    }
}

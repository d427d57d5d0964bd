//! What the receiver remembers of a request.

use std::net::SocketAddr;

use axum::body::Bytes;
use http::{HeaderMap, request};

/// One request, as it arrived. Text that was not sent is empty, a number that was not sent is 0.
#[derive(Clone, Debug)]
pub struct Received {
    /// When its headers had arrived, in Unix milliseconds, rounded down.
    pub at_ms: i64,
    /// The other end of its connection.
    pub peer: SocketAddr,
    pub path: String,
    /// `ce-id`.
    pub delivery_id: String,
    /// `ce-subject`.
    pub timer: String,
    /// `ce-attempt`.
    pub attempt: u32,
    /// `ce-generation`.
    pub generation: u32,
    /// `ce-dueat` in Unix milliseconds; `None` when it is absent or no RFC 3339 time.
    pub due_at_ms: Option<i64>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    /// Arrival minus due time, negative if it came early. Panics without a due time.
    pub fn lateness_ms(&self) -> i64 {
        self.at_ms - self.due_at_ms.unwrap_or_else(|| panic!("no due time in {self:?}"))
    }

    /// The body as JSON; panics if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}) in {self:?}"))
    }

    pub(super) fn new(at_ms: i64, peer: SocketAddr, head: &request::Parts, body: Bytes) -> Self {
        let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            at_ms,
            peer,
            path: head.uri.path().to_owned(),
            delivery_id: text("ce-id").to_owned(),
            timer: text("ce-subject").to_owned(),
            attempt: text("ce-attempt").parse().unwrap_or_default(),
            generation: text("ce-generation").parse().unwrap_or_default(),
            due_at_ms: chrono::DateTime::parse_from_rfc3339(text("ce-dueat"))
                .ok()
                .map(|due| due.timestamp_millis()),
            headers: head.headers.clone(),
            body,
        }
    }
}

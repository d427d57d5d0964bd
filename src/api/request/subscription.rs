//! A subscription in a request, checked.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Refused, read};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::model::destination::is_name;
use crate::model::namespace::Namespace;
use crate::model::subscription::{Asked, Filter, Lifecycle};

/// A standing order: lifecycle events of timers go to a destination.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Subscription)]
pub struct SubscriptionIn {
    /// Where the events go, by its name.
    #[schema(value_type = schema::DestinationName)]
    destination: Option<String>,
    /// Which events; `["*"]` is all.
    #[schema(value_type = schema::LifecycleWords)]
    events: Option<Vec<String>>,
    /// The timers whose events go: those that match every field. The fields are those of the list, but for `limit` and
    /// `cursor`; `id` may be a list of ids. Default: all timers.
    #[schema(value_type = Option<schema::EventFilter>)]
    filter: Option<Map<String, Value>>,
    /// Whether the payload goes with the event, as `data`. Default: no.
    #[schema(value_type = Option<bool>)]
    include_data: Option<bool>,
}

/// Reads and checks a subscription: its destination, and what it asks for.
pub fn subscription(text: &[u8]) -> Result<(String, Asked), Refused> {
    let SubscriptionIn { destination, events, filter, include_data } = read(text, "")?;
    let mut errors = Vec::new();
    let mut wrong = |pointer: String, code, detail: &str| errors.push(FieldError::new(pointer, code, detail));
    match destination.as_deref() {
        None => wrong("/destination".into(), "missing", "say where the events go: the name of a destination"),
        Some(name) if !is_name(name) => {
            wrong("/destination".into(), "bad_name", "1 to 64 of A-Z a-z 0-9 . _ -, not a dot first");
        }
        Some(_) => {}
    }
    let events = events.unwrap_or_default();
    if events.is_empty() {
        wrong(
            "/events".into(),
            "missing",
            "say which events, such as [\"timer.delivered\"], or [\"*\"] for all",
        );
    }
    for (n, word) in events.iter().enumerate() {
        let pointer = format!("/events/{n}");
        if word == "*" && events.len() > 1 {
            wrong(pointer, "not_alone", "`*` is all events: it stands alone");
        } else if word != "*" && Lifecycle::from_word(word).is_none() {
            let words: Vec<&str> = Lifecycle::asked_for().map(Lifecycle::word).collect();
            wrong(pointer, "unknown_event", &format!("one of {}, or * alone", words.join(", ")));
        } else if events[..n].contains(word) {
            wrong(pointer, "repeated", "it stands there more than once");
        }
    }
    // An empty filter is none.
    let filter = filter.filter(|fields| !fields.is_empty());
    // Whether it can be read is the same in every namespace.
    if let Some(Err(found)) = filter.as_ref().map(|fields| Filter::read(fields, Namespace::OWN)) {
        for bad in found {
            let name = super::escaped(&bad.name);
            wrong(format!("/filter/{name}"), bad.code, &bad.detail);
        }
    }
    match destination {
        Some(destination) if errors.is_empty() => {
            let include_data = include_data.unwrap_or(false);
            Ok((destination, Asked { events, filter, include_data, ..Asked::default() }))
        }
        _ => Err(Refused::Fields(errors)),
    }
}

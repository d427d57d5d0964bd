//! A namespace in a request, checked.

use serde::Deserialize;

use super::{MAX_DATA, Refused, read};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::model::namespace::{Quotas, Terms};
use crate::model::networks::{BadNetwork, Network, Networks};
use crate::model::time::Span;

/// The most networks in a list.
const MAX_NETWORKS: usize = 100;

/// The highest quota of live timers.
const MAX_LIVE: u64 = 1_000_000_000_000;

/// The highest quota of anything a second.
const MAX_RATE: u32 = 1_000_000;

/// What a namespace may use.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NamespaceTerms)]
pub struct NamespaceIn {
    /// Its quotas. Default: none.
    #[schema(value_type = Option<QuotasIn>)]
    quotas: Option<QuotasIn>,
    /// Where what it sends may go. Default: wherever the settings of the service allow.
    #[schema(value_type = Option<NetworksIn>)]
    networks: Option<NetworksIn>,
}

/// The networks that a namespace may send to: `10.1.0.0/16`, an address, or `public` for all public addresses.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Networks)]
pub struct NetworksIn {
    /// Only these, in place of what the settings allow. Default: what the settings allow.
    #[schema(value_type = Option<Vec<schema::Network>>, max_items = 100)]
    allow: Option<Vec<String>>,
    /// Never these.
    #[schema(value_type = Option<Vec<schema::Network>>, max_items = 100)]
    deny: Option<Vec<String>>,
}

/// The quotas of a namespace. What is left out has no limit of its own.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Quotas)]
pub struct QuotasIn {
    /// Calls a second, all nodes together. Each timer of a batch counts, and a stream is read no faster.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000000)]
    requests_per_second: Option<u32>,
    /// Live timers, to about what is registered in two seconds.
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 1_000_000_000_000_u64)]
    live_timers: Option<u64>,
    /// Bytes of a timer's `data`, at most 65,536.
    #[schema(value_type = Option<usize>, minimum = 1, maximum = 65536)]
    payload_bytes: Option<usize>,
    /// How far ahead a timer may be due.
    #[schema(value_type = Option<schema::Duration>)]
    horizon: Option<String>,
    /// Timers that are due in one second, to about what is registered in two.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000000)]
    due_per_second: Option<u32>,
}

/// Reads and checks what a namespace may use.
pub fn namespace(text: &[u8]) -> Result<Terms, Refused> {
    let NamespaceIn { quotas, networks } = read(text, "")?;
    let QuotasIn { requests_per_second, live_timers, payload_bytes, horizon, due_per_second } =
        quotas.unwrap_or_default();
    let mut errors = Vec::new();
    let mut wrong = |name: &str, detail: String| {
        errors.push(FieldError::new(format!("/quotas/{name}"), "range", detail));
    };
    for (name, rate) in [("requests_per_second", requests_per_second), ("due_per_second", due_per_second)] {
        if rate.is_some_and(|rate| !(1..=MAX_RATE).contains(&rate)) {
            wrong(name, format!("from 1 to {MAX_RATE}; leave it out for no limit"));
        }
    }
    if live_timers.is_some_and(|count| !(1..=MAX_LIVE).contains(&count)) {
        wrong("live_timers", format!("from 1 to {MAX_LIVE}; leave it out for no limit"));
    }
    if payload_bytes.is_some_and(|bytes| !(1..=MAX_DATA).contains(&bytes)) {
        wrong("payload_bytes", format!("from 1 to {MAX_DATA}, which is what any timer may have"));
    }
    let horizon = match horizon.as_deref().map(Span::parse) {
        Some(Ok(span)) if span.get().is_zero() => {
            wrong("horizon", "longer than nothing, such as P30D".into());
            None
        }
        Some(Ok(span)) => Some(span),
        Some(Err(why)) => {
            errors.push(FieldError::new("/quotas/horizon", "bad_duration", why.to_string()));
            None
        }
        None => None,
    };
    let quotas = Quotas { requests_per_second, live_timers, payload_bytes, horizon, due_per_second };
    let NetworksIn { allow, deny } = networks.unwrap_or_default();
    let networks =
        Networks { allow: list(allow, "allow", &mut errors), deny: list(deny, "deny", &mut errors) };
    if errors.is_empty() { Ok(Terms { quotas, networks }) } else { Err(Refused::Fields(errors)) }
}

fn list(given: Option<Vec<String>>, name: &str, errors: &mut Vec<FieldError>) -> Vec<Network> {
    let given = given.unwrap_or_default();
    if given.len() > MAX_NETWORKS {
        let detail = format!("at most {MAX_NETWORKS}");
        errors.push(FieldError::new(format!("/networks/{name}"), "range", detail));
        return Vec::new();
    }
    let mut networks = Vec::with_capacity(given.len());
    for (n, text) in given.iter().enumerate() {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(BadNetwork) => {
                let pointer = format!("/networks/{name}/{n}");
                errors.push(FieldError::new(pointer, "bad_network", BadNetwork.to_string()));
            }
        }
    }
    networks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_and_what_is_wrong_is_named() {
        let terms = namespace(br#"{"quotas":{"live_timers":5,"horizon":"P30D"}}"#).expect("is right");
        assert_eq!((terms.quotas.live_timers, terms.quotas.payload_bytes), (Some(5), None));
        assert_eq!(namespace(b"{}").expect("is right"), Terms::default());
        for (text, pointer, code) in [
            (r#"{"quotas":{"live_timers":0}}"#, "/quotas/live_timers", "range"),
            (r#"{"quotas":{"live_timers":1000000000001}}"#, "/quotas/live_timers", "range"),
            (r#"{"quotas":{"requests_per_second":0}}"#, "/quotas/requests_per_second", "range"),
            (r#"{"quotas":{"due_per_second":1000001}}"#, "/quotas/due_per_second", "range"),
            (r#"{"quotas":{"payload_bytes":70000}}"#, "/quotas/payload_bytes", "range"),
            (r#"{"quotas":{"horizon":"PT0S"}}"#, "/quotas/horizon", "range"),
            (r#"{"quotas":{"horizon":"soon"}}"#, "/quotas/horizon", "bad_duration"),
            (r#"{"networks":{"allow":["public","everything"]}}"#, "/networks/allow/1", "bad_network"),
            (r#"{"networks":{"deny":["10.0.0.0/33"]}}"#, "/networks/deny/0", "bad_network"),
            (r#"{"networks":{"deny":null,"permit":[]}}"#, "/networks/permit", "unknown_field"),
            (r#"{"quotas":{"spoons":1}}"#, "/quotas/spoons", "unknown_field"),
        ] {
            let Err(Refused::Fields(errors)) = namespace(text.as_bytes()) else { panic!("{text}") };
            let found: Vec<_> = errors.iter().map(|error| (error.pointer.as_str(), error.code)).collect();
            assert_eq!(found, [(pointer, code)], "{text}");
        }
    }
}

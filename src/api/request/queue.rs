//! What workers ask of queues, and the settings of a queue, checked.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::raw::optional_object;
use super::{Refused, RetryIn, read, retry};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::cold::Asking;
use crate::model::id::{TimerId, Uid};
use crate::model::namespace::Salt;
use crate::model::queue::{
    Action, LeaseToken, MAX_GROUPS, MAX_ITEMS, MAX_LEASE, MAX_RESULT, MAX_WAIT, MIN_LEASE, Settings,
};
use crate::model::time::Span;

/// The longest delay of a `retry`.
const MAX_DELAY: Span = Span::from_duration(Duration::from_secs(365 * 86_400));

/// The settings of a queue.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Queue)]
pub struct QueueIn {
    /// How long a lease lasts that does not say: `PT1S` to `PT12H`. Default: `PT30S`.
    #[schema(value_type = Option<schema::Duration>)]
    lease: Option<String>,
    /// How places are given out again, for timers without a `retry` of their own.
    #[serde(default, deserialize_with = "optional_object")]
    retry: Option<RetryIn>,
    /// Whether nothing is given out. Default: as it is, and of a new queue `false`.
    paused: Option<bool>,
}

/// Reads and checks the settings of a queue, and whether it is paused.
pub fn queue(text: &[u8]) -> Result<(Settings, Option<bool>), Refused> {
    let raw: QueueIn = read(text, "")?;
    let mut errors = Vec::new();
    let settings = Settings {
        lease: span(raw.lease.as_deref(), "/lease", (MIN_LEASE, MAX_LEASE), &mut errors),
        retry: retry(raw.retry.as_ref(), &mut errors),
    };
    if errors.is_empty() { Ok((settings, raw.paused)) } else { Err(Refused::Fields(errors)) }
}

/// What a worker asks for.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Lease)]
pub struct LeaseIn {
    /// Who asks.
    #[schema(value_type = schema::WorkerName)]
    worker: Option<String>,
    /// The groups that it is in, at most 32. Default: none.
    #[schema(value_type = Vec<schema::WorkerName>)]
    #[serde(default)]
    groups: Vec<String>,
    /// How many items it takes, at most 1,000. Default: 1.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max: Option<u64>,
    /// How long it wants to have them: `PT1S` to `PT12H`. Default: what the queue says.
    #[schema(value_type = Option<schema::Duration>)]
    lease: Option<String>,
    /// How long to wait for something, at most `PT60S`. Default: not at all.
    #[schema(value_type = Option<schema::Duration>)]
    wait: Option<String>,
    /// Ids of timers that it does not take, at most 1,000. Default: none.
    #[schema(value_type = Vec<schema::TimerId>)]
    #[serde(default)]
    exclude: Vec<String>,
    /// While it has anything that it has not settled, it gets that and nothing else. Default: `false`.
    #[schema(value_type = Option<bool>)]
    redo: Option<bool>,
}

/// Reads and checks what a worker asks for, and how long it waits.
pub fn lease(text: &[u8], salt: &Salt) -> Result<(Asking, Duration), Refused> {
    let raw: LeaseIn = read(text, "")?;
    let mut errors = Vec::new();
    let mut wrong =
        |pointer: String, code, detail: String| errors.push(FieldError::new(pointer, code, detail));
    let bad_name = || "1 to 128 of A-Z a-z 0-9 . _ : -".to_owned();
    match raw.worker.as_deref().map(TimerId::parse) {
        None => wrong("/worker".into(), "missing", "say who asks: the name of the worker".into()),
        Some(Err(_)) => wrong("/worker".into(), "bad_name", bad_name()),
        Some(Ok(_)) => {}
    }
    if raw.groups.len() > MAX_GROUPS {
        wrong("/groups".into(), "too_many", format!("{}; at most {MAX_GROUPS}", raw.groups.len()));
    }
    for (n, group) in raw.groups.iter().take(MAX_GROUPS).enumerate() {
        if TimerId::parse(group).is_err() {
            wrong(format!("/groups/{n}"), "bad_name", bad_name());
        }
    }
    let most = raw.max.unwrap_or(1);
    if !(1..=MAX_ITEMS as u64).contains(&most) {
        wrong("/max".into(), "range", format!("from 1 to {MAX_ITEMS}"));
    }
    if raw.exclude.len() > MAX_ITEMS {
        wrong("/exclude".into(), "too_many", format!("{}; at most {MAX_ITEMS}", raw.exclude.len()));
    }
    let mut exclude: HashSet<Uid> = HashSet::new();
    for (n, id) in raw.exclude.iter().take(MAX_ITEMS).enumerate() {
        match TimerId::parse(id) {
            Ok(id) => drop(exclude.insert(id.uid(salt))),
            Err(why) => wrong(format!("/exclude/{n}"), "bad_id", why.to_string()),
        }
    }
    let lease = span(raw.lease.as_deref(), "/lease", (MIN_LEASE, MAX_LEASE), &mut errors);
    let none = Span::from_duration(Duration::ZERO);
    let wait = span(raw.wait.as_deref(), "/wait", (none, MAX_WAIT), &mut errors);
    match raw.worker {
        Some(worker) if errors.is_empty() => {
            let asking = Asking {
                worker,
                groups: raw.groups,
                most: usize::try_from(most).unwrap_or(MAX_ITEMS),
                lease,
                exclude,
                redo: raw.redo.unwrap_or(false),
            };
            Ok((asking, wait.unwrap_or(none).get()))
        }
        _ => Err(Refused::Fields(errors)),
    }
}

/// What a worker says of what it has.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settle)]
pub struct SettleIn {
    /// At most 1,000.
    #[schema(value_type = Vec<SettlementIn>, max_items = 1000)]
    settlements: Option<Vec<Box<RawValue>>>,
}

/// What a worker says of one item.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlement)]
pub struct SettlementIn {
    /// What it was leased with.
    #[schema(value_type = schema::LeaseToken)]
    lease_token: Option<String>,
    /// What becomes of it.
    #[schema(value_type = schema::SettleAction)]
    action: Option<String>,
    /// For `retry`: after how long it may be given out again. Default: the wait that its `retry` gives.
    #[schema(value_type = Option<schema::Duration>)]
    delay: Option<String>,
    /// For `extend`: how long its worker keeps it from now on, `PT1S` to `PT12H`. Default: what the queue says.
    #[schema(value_type = Option<schema::Duration>)]
    lease: Option<String>,
    /// What is kept of it, and shown with its attempts: any JSON, at most 4 KiB. Not for `extend`.
    #[schema(value_type = Option<Value>)]
    result: Option<Box<RawValue>>,
}

/// A settlement, checked.
#[derive(Debug)]
pub struct Settled {
    /// The token as it was sent.
    pub text: String,
    /// `None`: it is none, and so it is not current either.
    pub token: Option<LeaseToken>,
    /// What becomes of it.
    pub action: Action,
    /// What its worker says: JSON.
    pub result: Option<String>,
}

/// Reads and checks settlements; `default_lease` is what the queue says.
pub fn settle(text: &[u8], default_lease: Span) -> Result<Vec<Settled>, Refused> {
    let raw: SettleIn = read(text, "")?;
    let Some(all) = raw.settlements.filter(|all| !all.is_empty()) else {
        let detail = "say what is settled: [{\"lease_token\":\"…\",\"action\":\"ack\"}]";
        return Err(Refused::Fields(vec![FieldError::new("/settlements", "missing", detail)]));
    };
    if all.len() > MAX_ITEMS {
        let detail = format!("{}; at most {MAX_ITEMS}", all.len());
        return Err(Refused::Fields(vec![FieldError::new("/settlements", "too_many", detail)]));
    }
    let (mut settled, mut errors) = (Vec::with_capacity(all.len()), Vec::new());
    for (n, one) in all.iter().enumerate() {
        let place = format!("/settlements/{n}");
        match read::<SettlementIn>(one.get().as_bytes(), &place) {
            Ok(one) => settled.extend(settlement(one, &place, default_lease, &mut errors)),
            Err(Refused::Fields(found)) => errors.extend(found),
            Err(Refused::NotJson(why)) => errors.push(FieldError::new(place, "wrong_type", why)),
        }
    }
    if errors.is_empty() { Ok(settled) } else { Err(Refused::Fields(errors)) }
}

fn settlement(
    raw: SettlementIn,
    place: &str,
    default_lease: Span,
    errors: &mut Vec<FieldError>,
) -> Option<Settled> {
    let before = errors.len();
    let at = |field: &str| format!("{place}/{field}");
    let delay =
        span(raw.delay.as_deref(), &at("delay"), (Span::from_duration(Duration::ZERO), MAX_DELAY), errors);
    let lease = span(raw.lease.as_deref(), &at("lease"), (MIN_LEASE, MAX_LEASE), errors);
    let mut only_for = |given: bool, field: &str, action: &str, wanted: &str| {
        if given && action != wanted {
            let detail = format!("only `{wanted}` has a {field}; leave it out");
            errors.push(FieldError::new(at(field), "not_here", detail));
        }
    };
    let word = raw.action.as_deref().unwrap_or_default();
    only_for(raw.delay.is_some(), "delay", word, "retry");
    only_for(raw.lease.is_some(), "lease", word, "extend");
    let ms = |span: Span| i64::try_from(span.get().as_millis()).unwrap_or(i64::MAX);
    let action = match raw.action.as_deref() {
        Some("ack") => Some(Action::Ack),
        Some("retry") => Some(Action::Retry(delay.map(ms))),
        Some("dead") => Some(Action::Dead),
        Some("extend") => Some(Action::Extend(ms(lease.unwrap_or(default_lease)))),
        Some(_) => {
            errors.push(FieldError::new(at("action"), "unknown_action", "one of ack, retry, dead, extend"));
            None
        }
        None => {
            let detail = "say what becomes of it: ack, retry, dead or extend";
            errors.push(FieldError::new(at("action"), "missing", detail));
            None
        }
    };
    if raw.lease_token.is_none() {
        let detail = "give the lease_token of the item";
        errors.push(FieldError::new(at("lease_token"), "missing", detail));
    }
    let size = raw.result.as_ref().map_or(0, |result| result.get().len());
    if size > MAX_RESULT {
        errors.push(FieldError::new(
            at("result"),
            "too_large",
            format!("{size} bytes; at most {MAX_RESULT}"),
        ));
    }
    if raw.result.is_some() && word == "extend" {
        errors.push(FieldError::new(at("result"), "not_here", "an `extend` has no result; leave it out"));
    }
    let text = raw.lease_token?;
    let action = action.filter(|_| errors.len() == before)?;
    let token = LeaseToken::read(&text);
    Some(Settled { text, token, action, result: raw.result.map(|result| result.get().to_owned()) })
}

fn span(
    text: Option<&str>,
    pointer: &str,
    (least, most): (Span, Span),
    errors: &mut Vec<FieldError>,
) -> Option<Span> {
    match Span::parse(text?) {
        Ok(span) if (least..=most).contains(&span) => return Some(span),
        Ok(_) => errors.push(FieldError::new(pointer, "range", format!("from {least} to {most}"))),
        Err(why) => errors.push(FieldError::new(pointer, "bad_duration", why.to_string())),
    }
    None
}

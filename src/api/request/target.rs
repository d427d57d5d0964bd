//! The target of a request: exactly one kind, checked.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::raw::optional_object;
use super::{Refused, read};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::model::destination::is_name;
use crate::model::target::{Kind, Target, Webhook};
use crate::sink::guard::Guard;

/// Where a timer goes.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Target)]
pub struct TargetIn {
    /// An HTTP receiver.
    #[schema(value_type = WebhookIn)]
    #[serde(default, deserialize_with = "optional_object")]
    pub webhook: Option<WebhookIn>,
    /// A destination, by its name.
    #[schema(value_type = schema::DestinationName)]
    #[serde(default)]
    pub destination: Option<String>,
    /// A queue, by its name: workers fetch the timer there. It comes into being with its first timer.
    #[schema(value_type = schema::QueueName)]
    #[serde(default)]
    pub queue: Option<String>,
}

/// An HTTP receiver.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Webhook)]
pub struct WebhookIn {
    /// Where deliveries are posted.
    #[schema(value_type = schema::Url)]
    pub url: String,
    /// With it, deliveries are signed.
    #[schema(value_type = Option<schema::Secret>)]
    pub secret: Option<String>,
    /// Headers that go with each delivery. Default: none.
    #[serde(default)]
    #[schema(value_type = schema::Headers)]
    pub headers: BTreeMap<String, String>,
}

/// Reads and checks a target; pushes what is wrong with it.
pub fn target(raw: Option<&RawValue>, guard: &Guard, errors: &mut Vec<FieldError>) -> Option<Target> {
    let Some(raw) = raw else {
        errors.push(FieldError::new(
            "/target",
            "missing",
            "say where it goes: {\"webhook\":{\"url\":\"https://…\"}}",
        ));
        return None;
    };
    let TargetIn { mut webhook, mut destination, mut queue } = match read(raw.get().as_bytes(), "/target") {
        Ok(target) => target,
        Err(Refused::Fields(found)) => {
            errors.extend(found);
            return None;
        }
        Err(Refused::NotJson(why)) => {
            errors.push(FieldError::new("/target", "wrong_type", why));
            return None;
        }
    };
    let mut found = Kind::ALL.iter().filter_map(|kind| match kind {
        Kind::Webhook => webhook.take().map(|hook| check_webhook(hook, guard)),
        Kind::Destination => destination.take().map(check_destination),
        Kind::Queue => queue.take().map(check_queue),
    });
    match (found.next(), found.next()) {
        (Some(Ok(target)), None) => return Some(target),
        (Some(Err(why)), None) => errors.push(why),
        _ => errors.push(FieldError::new(
            "/target",
            "missing",
            "give exactly one kind of target: webhook, destination or queue",
        )),
    }
    None
}

fn check_webhook(hook: WebhookIn, guard: &Guard) -> Result<Target, FieldError> {
    checked_webhook(hook, "/target/webhook", guard).map(Target::Webhook)
}

/// Whether there is one of this name shows when the timer is written.
fn check_destination(name: String) -> Result<Target, FieldError> {
    if is_name(&name) { Ok(Target::Destination(name)) } else { Err(no_destination(&name)) }
}

fn check_queue(name: String) -> Result<Target, FieldError> {
    let bad = || FieldError::new("/target/queue", "bad_name", BAD_QUEUE);
    if is_name(&name) { Ok(Target::Queue(name)) } else { Err(bad()) }
}

/// What a queue may be called.
pub const BAD_QUEUE: &str = "a queue's name is 1 to 64 of A-Z a-z 0-9 . _ -, not a dot first";

/// What is wrong with a target whose destination there is not.
pub fn no_destination(name: &str) -> FieldError {
    let detail = format!("there is no destination `{name}`; make it with PUT /v1/destinations/{{name}}");
    FieldError::new("/target/destination", "no_destination", detail)
}

/// Checks a webhook, which stands at `pointer`.
pub(super) fn checked_webhook(hook: WebhookIn, pointer: &str, guard: &Guard) -> Result<Webhook, FieldError> {
    let hook = Webhook::new(&hook.url, hook.secret, hook.headers)
        .map_err(|why| FieldError::new(format!("{pointer}{}", why.pointer), "bad_webhook", why.detail))?;
    guard
        .check_url(&hook.url)
        .map_err(|why| FieldError::new(format!("{pointer}/url"), "address_refused", why.to_string()))?;
    Ok(hook)
}

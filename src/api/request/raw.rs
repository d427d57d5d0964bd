//! A timer's fields as JSON has them, unchecked; also what the OpenAPI document shows of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::policy::Then;

/// A timer in a request.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Timer)]
pub struct RawTimer {
    /// The caller's own id; in a PUT the same as in the path, or left out.
    pub id: Option<String>,
    /// When to fire: RFC 3339 with an offset. A time in the past fires at once.
    #[schema(example = "2026-12-01T09:00:00+08:00")]
    pub fire_at: Option<String>,
    /// When to fire, from now: an ISO 8601 duration without months or years.
    #[schema(example = "PT48H")]
    pub delay: Option<String>,
    /// When to fire: wall time, together with `zone`.
    #[schema(example = "2026-12-01T09:00:00")]
    pub local: Option<String>,
    /// The IANA time zone of `local`.
    #[schema(example = "Asia/Shanghai")]
    pub zone: Option<String>,
    /// Whom the timer is about; default the id.
    pub owner: Option<String>,
    /// Where it goes.
    #[schema(value_type = TargetIn)]
    pub target: Option<Box<RawValue>>,
    /// The payload, any JSON up to 64 KiB.
    #[schema(value_type = Option<Value>)]
    pub data: Option<Box<RawValue>>,
    /// At most 16 texts by name.
    pub labels: Option<BTreeMap<String, String>>,
    /// `second` (default) or `minute`: due is rounded up to the whole minute.
    pub precision: Option<Precision>,
    /// What happens when it is found late.
    pub late: Option<LateIn>,
    /// How failed attempts are repeated.
    pub retry: Option<RetryIn>,
    #[schema(ignore)]
    #[serde(default)]
    pub(super) priority: Option<Value>,
    #[schema(ignore)]
    #[serde(default)]
    pub(super) spread: Option<Value>,
    #[schema(ignore)]
    #[serde(default)]
    pub(super) merge: Option<Value>,
    #[schema(ignore)]
    #[serde(default)]
    pub(super) dispatch: Option<Value>,
}

/// `precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Fires at its due time.
    Second,
    /// Due is rounded up to the whole minute.
    Minute,
}

/// Where a timer goes: exactly one kind.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetIn {
    /// An HTTP receiver.
    pub webhook: Option<WebhookIn>,
    #[schema(ignore)]
    pub(super) destination: Option<Value>,
    #[schema(ignore)]
    pub(super) queue: Option<Value>,
}

/// An HTTP receiver.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookIn {
    /// `http` or `https`.
    pub url: String,
    /// Signs deliveries as Standard Webhooks asks: `whsec_` and base64. Never shown again.
    pub secret: Option<String>,
    /// At most 16 static headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// `late`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LateIn {
    /// How far past due still counts as in time.
    #[schema(example = "P1D")]
    pub grace: String,
    /// `deliver` (default) or `expire`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub then: Then,
}

/// `retry`; what is left out has its default (8, PT1S, PT1H).
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryIn {
    /// Attempts in all, 1 to 100.
    pub attempts: Option<u32>,
    /// The wait after the first failure; doubles with each further one.
    pub first: Option<String>,
    /// The longest wait.
    pub cap: Option<String>,
}

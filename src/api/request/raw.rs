//! A timer's fields as JSON has them, unchecked. The OpenAPI document describes requests by these types.

use std::collections::BTreeMap;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::target::TargetIn;
use crate::api::schema;
use crate::model::policy::Then;
use crate::model::priority::Priority;

/// A timer in a request: a time (`fire_at`, `delay`, or `local` with `zone`), a target, and what else it needs.
/// A field that is `null` counts as left out.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Timer)]
pub struct RawTimer {
    /// The caller's own id. In a PUT it may repeat the id of the path; POST refuses it.
    #[schema(ignore)]
    pub id: Option<String>,
    /// When to fire. A time in the past fires at once.
    #[schema(value_type = Option<schema::Instant>)]
    pub fire_at: Option<String>,
    /// When to fire, from now.
    #[schema(value_type = Option<schema::Duration>)]
    pub delay: Option<String>,
    /// When to fire: wall time in `zone`.
    #[schema(value_type = Option<schema::LocalTime>)]
    pub local: Option<String>,
    /// The time zone of `local`.
    #[schema(value_type = Option<schema::Zone>)]
    pub zone: Option<String>,
    /// Whom the timer is about. Default: its id.
    #[schema(value_type = Option<schema::Owner>)]
    pub owner: Option<String>,
    /// Where it goes.
    #[schema(value_type = TargetIn)]
    pub target: Option<Box<RawValue>>,
    /// The payload: any JSON, at most 64 KiB, nested at most 126 deep. Default: `null`.
    #[schema(value_type = Option<Value>)]
    pub data: Option<Box<RawValue>>,
    /// A template, by its name. What is kept and sent is its `defaults` with `data` merged over them (RFC 7396), checked
    /// against its schema. Default: `data` is kept as it is.
    #[schema(value_type = Option<schema::TemplateName>)]
    pub template: Option<String>,
    /// Labels to list by. Default: none.
    #[schema(value_type = Option<schema::Labels>)]
    pub labels: Option<BTreeMap<String, String>>,
    /// Default: `normal`.
    pub priority: Option<Priority>,
    /// Default: `second`.
    pub precision: Option<Precision>,
    /// It may fire anywhere from its due time to so long after it: the service chooses the moment by what is due around it,
    /// and shows it as `due_at`. At most `P1D`. Default: it fires at its due time.
    #[schema(value_type = Option<schema::Duration>)]
    pub spread: Option<String>,
    /// What happens when the timer is found late. Default: it is delivered.
    #[serde(default, deserialize_with = "optional_object")]
    pub late: Option<LateIn>,
    /// How failed attempts are repeated.
    #[serde(default, deserialize_with = "optional_object")]
    pub retry: Option<RetryIn>,
    /// With which timers it may go out as one delivery.
    #[serde(default, deserialize_with = "optional_object")]
    pub merge: Option<MergeIn>,
    /// How it is given out, if its target is a queue. Default: once, to any worker.
    #[serde(default, deserialize_with = "optional_object")]
    pub dispatch: Option<DispatchIn>,
}

/// `precision`: `second` fires at the due time, `minute` rounds the due time up to the whole minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Fires at its due time.
    Second,
    /// Its due time is rounded up to the whole minute.
    Minute,
}

/// What happens to a timer whose first attempt would start later than `grace` past due.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Late)]
pub struct LateIn {
    /// How far past due still counts as in time.
    #[schema(value_type = schema::Duration)]
    pub grace: String,
    /// Default: `deliver`.
    #[serde(default)]
    #[schema(value_type = LateThen)]
    pub then: Then,
}

/// `deliver`: it is delivered all the same. `expire`: it ends as `expired`, and nothing is sent.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum LateThen {
    /// It is delivered all the same.
    Deliver,
    /// It ends as `expired`.
    Expire,
}

/// How failed attempts are repeated. `first` is at least `PT0.01S` and at most `cap`; `cap` is at most `P7D`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Retry)]
pub struct RetryIn {
    /// Default: 8.
    #[schema(value_type = Option<schema::RetryAttempts>)]
    pub attempts: Option<u32>,
    /// The wait after the first failure; it doubles with each further one. Default: `PT1S`.
    #[schema(value_type = Option<schema::Duration>)]
    pub first: Option<String>,
    /// The longest wait. Default: `PT1H`, or `first` if that is longer.
    #[schema(value_type = Option<schema::Duration>)]
    pub cap: Option<String>,
}

/// How a timer for a queue is given out: `times` times in all to the workers of `to`, to each once unless `repeat`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Dispatch)]
pub struct DispatchIn {
    /// `any`, `worker:NAME` or `group:NAME`. Default: `any`.
    #[schema(value_type = Option<schema::DispatchTo>)]
    pub to: Option<String>,
    /// From 1 to 1,000. Default: 1.
    #[schema(value_type = Option<schema::DispatchTimes>)]
    pub times: Option<u32>,
    /// A worker that has settled it may get it again. Default: `false`.
    pub repeat: Option<bool>,
}

/// Timers of one owner, one target and one window that are due within the window of the first of them go out as one
/// delivery, at the last of their due times.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Merge)]
pub struct MergeIn {
    /// How much later than the first of them the others are due; at most `PT5M`.
    #[schema(value_type = schema::Duration)]
    pub window: String,
}

/// A `T` in a JSON object. Derived alone, `T` would also be read from an array of its fields in their order.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }

        deserializer.deserialize_map(OfMap(std::marker::PhantomData))
    }
}

pub(super) fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}

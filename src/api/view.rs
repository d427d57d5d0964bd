//! What answers show of a timer.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::cold::{AttemptRecord, TimerRow};
use crate::model::id::{Generation, delivery_id};
use crate::model::policy::{Late, Retry};
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::positions::Positions;
use crate::service::Service;

/// A timer in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TimerView {
    id: String,
    /// `scheduled`, `delivering`, `retrying`, `paused`; ended: `delivered`, `cancelled`, `expired`, `dead`.
    #[schema(value_type = String)]
    state: State,
    /// When it should fire; UTC.
    #[schema(value_type = String)]
    due_at: UnixMs,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// As registered, without the secret.
    #[schema(value_type = Object)]
    target: TargetView,
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    labels: BTreeMap<String, String>,
    /// `second` or `minute`.
    precision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    late: Option<Late>,
    #[schema(value_type = Object)]
    retry: Retry,
    /// The version of its due time.
    generation: i32,
    /// Rises with every change a caller makes; also the `ETag`.
    version: i32,
    #[schema(value_type = String)]
    created_at: UnixMs,
    /// The one id that all attempts of this generation carry.
    delivery_id: String,
    /// Attempts so far, of all generations.
    attempts: i32,
    #[schema(value_type = Option<String>)]
    next_attempt_at: Option<UnixMs>,
    /// Where its pointer is: `cold`, `minute`, `second` or `claimed`; ended timers are in no tier.
    tier: Option<&'static str>,
    /// Timers of this version belong to no schedule.
    schedule: Option<String>,
    /// An attempt's outcome is not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    uncertain: bool,
    /// A cancel is recorded: no further attempt starts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ended_at: Option<UnixMs>,
}

/// Where a timer goes, without its secrets.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum TargetView {
    Webhook(WebhookView),
    /// A kind that only newer nodes know.
    Unknown {
        kind: i16,
    },
}

impl TargetView {
    fn new(target: &Target) -> Self {
        match target {
            Target::Webhook(hook) => Self::Webhook(WebhookView {
                url: hook.url.to_string(),
                headers: hook.headers.clone(),
                signed: hook.secret.is_some(),
            }),
            Target::Unknown { kind } => Self::Unknown { kind: *kind },
        }
    }
}

#[derive(Debug, Serialize)]
struct WebhookView {
    url: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    /// Whether deliveries are signed; the secret itself is never shown.
    signed: bool,
}

/// Tells the tier of a timer: from its shard's watermark, never from the row.
#[derive(Clone, Copy)]
pub struct Tiers<'a> {
    positions: &'a Positions,
    /// What wakes before this is in the second wheel.
    near: UnixMs,
}

impl<'a> Tiers<'a> {
    /// Tiers as of now.
    pub fn now(service: &'a Service, near: std::time::Duration) -> Self {
        Self { positions: &service.positions, near: service.store.clock().now().plus(near) }
    }

    /// The tier of a live timer.
    pub fn of(&self, row: &TimerRow) -> Option<&'static str> {
        let life = &row.life;
        match life.state {
            State::Delivering => Some("claimed"),
            state if state.is_end() => None,
            State::Paused => Some("cold"),
            _ if life.wake_at >= self.positions.watermark(row.shard) => Some("cold"),
            State::Scheduled if row.minute => Some("minute"),
            // A minute is cascaded as a whole, as soon as it begins within reach.
            _ if life.wake_at.floor_minute() > self.near => Some("minute"),
            _ => Some("second"),
        }
    }
}

impl TimerView {
    /// A timer as it stands.
    pub fn new(row: &TimerRow, tiers: Tiers) -> Self {
        let life = &row.life;
        let waiting = matches!(life.state, State::Scheduled | State::Retrying);
        let data = String::from_utf8(row.body()).ok().and_then(|text| RawValue::from_string(text).ok());
        Self {
            id: row.id.clone(),
            state: life.state,
            due_at: life.due_at,
            owner: row.owner.clone(),
            target: TargetView::new(&row.target),
            data: data.unwrap_or_else(|| RawValue::NULL.to_owned()),
            labels: row
                .labels
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            precision: if row.minute { "minute" } else { "second" },
            late: row.policies.late,
            retry: row.policies.retry.unwrap_or_default(),
            generation: life.generation.0,
            version: life.version.0,
            created_at: row.created_at,
            delivery_id: row.delivery_id(),
            attempts: life.tries,
            next_attempt_at: match life.state {
                State::Scheduled => Some(life.due_at),
                _ if waiting => Some(life.wake_at),
                _ => None,
            },
            tier: tiers.of(row),
            schedule: None,
            uncertain: life.uncertain,
            cancel_requested: life.cancel_requested && !life.state.is_end(),
            ended_at: row.ended_at,
        }
    }
}

/// One attempt in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AttemptView {
    /// Its number within its generation, from 1.
    attempt: i32,
    generation: i32,
    delivery_id: String,
    #[schema(value_type = String)]
    started_at: UnixMs,
    #[schema(value_type = String)]
    ended_at: UnixMs,
    /// `ok`, `failed`, `timeout`, `refused` or `unknown`.
    #[schema(value_type = String)]
    result: crate::model::timer::AttemptResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The first 1 KiB of the answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    node: String,
}

impl AttemptView {
    /// An attempt of this timer.
    pub fn new(row: &TimerRow, record: AttemptRecord) -> Self {
        Self {
            attempt: record.attempt,
            generation: record.generation,
            delivery_id: delivery_id(row.uid, row.created_at.get(), Generation(record.generation)),
            started_at: UnixMs::new(record.started_at),
            ended_at: UnixMs::new(record.ended_at),
            result: record.result,
            status: record.status,
            reply: record.reply,
            detail: record.detail,
            node: record.node,
        }
    }
}

//! What answers show of a timer. [`TimerView::new`] is the only place that builds it, for every answer.

mod schedule;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use super::request::{LateThen, Precision};
use super::schema;
use crate::cold::{AttemptRecord, TimerRow};
use crate::model::id::{Generation, delivery_id};
use crate::model::merge::Merge;
use crate::model::policy::{Late, Retry, Then};
use crate::model::priority::Priority;
use crate::model::queue::Dispatch;
use crate::model::schedule::Skipped;
use crate::model::target::Target;
use crate::model::time::{Span, UnixMs};
use crate::model::timer::{AttemptResult, State};
pub use crate::service::tier::{Tier, Tiers};
pub use schedule::ScheduleView;

/// In force where a request has no `late`: a timer is delivered, however late it is found.
const LATE_DEFAULT: Late = Late { grace: Span::from_duration(Duration::ZERO), then: Then::Deliver };

/// A timer in an answer, live or ended. Fields that the request left out have the value in force.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TimerView {
    #[schema(value_type = schema::TimerId)]
    id: String,
    #[schema(value_type = schema::TimerState)]
    state: State,
    /// When it fires, or fired.
    #[schema(value_type = schema::Moment)]
    due_at: UnixMs,
    /// Whom it is about; its id where the request named nobody.
    #[schema(value_type = schema::Owner)]
    owner: String,
    target: TargetView,
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// The template that `data` was fitted to, if it has one.
    #[schema(required, value_type = Option<schema::TemplateName>)]
    template: Option<String>,
    #[schema(value_type = schema::Labels)]
    labels: BTreeMap<String, String>,
    priority: Priority,
    precision: Precision,
    /// How long after the due time that was asked for `due_at` may be; `null` if it is that time.
    #[schema(required, value_type = Option<schema::Duration>)]
    spread: Option<Span>,
    #[schema(value_type = LateView)]
    late: Late,
    #[schema(value_type = RetryView)]
    retry: Retry,
    /// Timers that it may go out with, if it merges.
    #[schema(required, value_type = Option<MergeView>)]
    merge: Option<Merge>,
    /// How it is given out, if its target is a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DispatchView, required = false)]
    dispatch: Option<Dispatch>,
    /// There if its target is a queue: places that were acked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, required = false)]
    acked: Option<u32>,
    /// The version of its due time.
    #[schema(minimum = 1)]
    generation: i32,
    /// Rises with every change a caller makes; also the `ETag`.
    #[schema(minimum = 1)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    /// The one id that all attempts of this generation carry; once it is part of a merged set, that of the set.
    delivery_id: String,
    /// Attempts so far, of all generations.
    #[schema(minimum = 0)]
    attempts: i32,
    /// `null` while an attempt is under way, and once it has ended.
    #[schema(required, value_type = Option<schema::Moment>)]
    next_attempt_at: Option<UnixMs>,
    /// Where its pointer is; `null` once it has ended.
    #[schema(required)]
    tier: Option<Tier>,
    /// The schedule that made it.
    #[schema(required, value_type = Option<schema::ScheduleId>)]
    schedule: Option<String>,
    /// There if its schedule skipped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::SkippedWord, required = false)]
    skipped: Option<&'static str>,
    /// There if the outcome of an attempt is not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    uncertain: bool,
    /// There if a cancel is recorded while an attempt is open: no further attempt starts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
    /// There once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Moment, required = false)]
    ended_at: Option<UnixMs>,
}

/// Where a timer goes, without its secrets.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TargetView {
    /// An HTTP receiver.
    Webhook(WebhookView),
    /// A destination, by its name.
    #[schema(value_type = schema::DestinationName)]
    Destination(String),
    /// A queue, by its name.
    #[schema(value_type = schema::QueueName)]
    Queue(String),
    /// A kind that only newer nodes know.
    Unknown { kind: i16 },
}

impl TargetView {
    fn new(target: &Target) -> Self {
        match target {
            Target::Webhook(hook) => Self::Webhook(WebhookView {
                url: hook.url.to_string(),
                headers: hook.headers.clone(),
                signed: hook.secret.is_some(),
            }),
            Target::Destination(name) => Self::Destination(name.clone()),
            Target::Queue(name) => Self::Queue(name.clone()),
            Target::Unknown { kind } => Self::Unknown { kind: *kind },
        }
    }
}

/// An HTTP receiver, without its secret.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WebhookView {
    /// As deliveries use it: normalized, so it may be longer than in the request.
    #[schema(format = "uri")]
    url: String,
    /// Names in lower case.
    #[schema(value_type = schema::Headers)]
    headers: BTreeMap<String, String>,
    /// Whether deliveries are signed.
    signed: bool,
}

/// The `late` in force.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes `Late` in the OpenAPI document")]
pub struct LateView {
    /// How far past due still counts as in time.
    #[schema(value_type = schema::Duration)]
    grace: Span,
    then: LateThen,
}

/// The `retry` in force.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes `Retry` in the OpenAPI document")]
pub struct RetryView {
    #[schema(value_type = schema::RetryAttempts)]
    attempts: u32,
    /// The wait after the first failure; it doubles with each further one.
    #[schema(value_type = schema::Duration)]
    first: Span,
    /// The longest wait.
    #[schema(value_type = schema::Duration)]
    cap: Span,
}

/// The `merge` in force.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes `Merge` in the OpenAPI document")]
pub struct MergeView {
    /// How much later than the first of them the others are due.
    #[schema(value_type = schema::Duration)]
    window: Span,
}

/// How a timer for a queue is given out.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes `Dispatch` in the OpenAPI document")]
pub struct DispatchView {
    #[schema(value_type = schema::DispatchTo)]
    to: String,
    #[schema(value_type = schema::DispatchTimes)]
    times: u32,
    repeat: bool,
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
            owner: row.owner.clone().unwrap_or_else(|| row.id.clone()),
            target: TargetView::new(&row.target),
            data: data.unwrap_or_else(|| RawValue::NULL.to_owned()),
            template: row.template.clone(),
            labels: row
                .labels
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            priority: row.priority,
            precision: if row.minute { Precision::Minute } else { Precision::Second },
            spread: row.spread.map(|spread| spread.within),
            late: row.policies.late.unwrap_or(LATE_DEFAULT),
            retry: tiers.retry(row),
            merge: row.policies.merge,
            dispatch: row.seats.as_ref().map(|seats| seats.dispatch.clone()),
            acked: row.seats.as_ref().map(|seats| seats.acked),
            generation: life.generation.0,
            version: life.version.0,
            created_at: row.created_at,
            delivery_id: row.delivery_id(),
            attempts: life.tries,
            next_attempt_at: match life.state {
                _ if let Some(seats) = &row.seats => seats.ready_at.filter(|_| waiting),
                State::Scheduled => Some(life.due_at),
                _ if waiting => Some(life.wake_at),
                _ => None,
            },
            tier: tiers.of(row),
            schedule: row.schedule().map(str::to_owned),
            skipped: row.skipped().and_then(Skipped::word),
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
    #[schema(minimum = 1)]
    attempt: i32,
    #[schema(minimum = 1)]
    generation: i32,
    delivery_id: String,
    #[schema(value_type = schema::Moment)]
    started_at: UnixMs,
    #[schema(value_type = schema::Moment)]
    ended_at: UnixMs,
    #[schema(value_type = schema::AttemptResult)]
    result: AttemptResult,
    /// The HTTP status, if the receiver answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u16, required = false)]
    status: Option<u16>,
    /// The first 1 KiB of the answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    reply: Option<String>,
    /// What went wrong, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    detail: Option<String>,
    /// The node that made it, or gave it out.
    node: String,
    /// The worker, if its target is a queue; what it said is `reply`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    worker: Option<String>,
}

impl AttemptView {
    /// An attempt of this timer.
    pub fn new(row: &TimerRow, record: AttemptRecord) -> Self {
        Self {
            attempt: record.attempt,
            generation: record.generation,
            delivery_id: record
                .delivery_id
                .unwrap_or_else(|| delivery_id(row.uid, row.created_at.get(), Generation(record.generation))),
            started_at: UnixMs::new(record.started_at),
            ended_at: UnixMs::new(record.ended_at),
            result: record.result,
            status: record.status,
            reply: record.reply,
            detail: record.detail,
            node: record.node,
            worker: record.worker,
        }
    }
}

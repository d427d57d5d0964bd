//! What answers show of a schedule.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::{DispatchView, LateView, MergeView, RetryView, TargetView, TimerView};
use crate::api::request::Precision;
use crate::api::schema;
use crate::cold::ScheduleRow;
use crate::model::merge::Merge;
use crate::model::policy::{Late, Retry};
use crate::model::priority::Priority;
use crate::model::queue::Dispatch;
use crate::model::schedule::When;
use crate::model::time::{Span, UnixMs};

/// A schedule in an answer. Fields that the request left out have the value in force.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduleView {
    #[schema(value_type = schema::ScheduleId)]
    id: String,
    #[schema(value_type = schema::ScheduleStateWord)]
    state: &'static str,
    /// `null` but for a rule of this form.
    #[schema(required, value_type = Option<schema::Cron>)]
    cron: Option<String>,
    /// `null` but for a rule of this form.
    #[schema(required, value_type = Option<schema::Duration>)]
    every: Option<Span>,
    /// `null` but for a rule of this form.
    #[schema(required)]
    daily: Option<DailyView>,
    #[schema(value_type = schema::Zone)]
    zone: String,
    #[schema(value_type = schema::Moment)]
    start_at: UnixMs,
    #[schema(required, value_type = Option<schema::Moment>)]
    end_at: Option<UnixMs>,
    /// `null` is any number.
    #[schema(required, minimum = 1)]
    max_occurrences: Option<i64>,
    missed: MissedView,
    #[schema(value_type = schema::OverlapWord)]
    overlap: &'static str,
    /// Whom its occurrences are about; `null` where each is its own owner.
    #[schema(required, value_type = Option<schema::Owner>)]
    owner: Option<String>,
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
    #[schema(required, value_type = Option<schema::Duration>)]
    spread: Option<Span>,
    #[schema(value_type = LateView)]
    late: Late,
    #[schema(value_type = RetryView)]
    retry: Retry,
    #[schema(required, value_type = Option<MergeView>)]
    merge: Option<Merge>,
    /// How one is given out, if their target is a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DispatchView, required = false)]
    dispatch: Option<Dispatch>,
    /// Its next nominal time; `null` while it is paused, and once it has ended.
    #[schema(required, value_type = Option<schema::Moment>)]
    next_at: Option<UnixMs>,
    /// Occurrences made so far, ahead of their times too, without those that a change has cancelled.
    #[schema(minimum = 0)]
    made: i64,
    /// Rises with every change a caller makes; also the `ETag`.
    #[schema(minimum = 1)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    #[schema(value_type = schema::Moment)]
    changed_at: UnixMs,
}

/// A time of day.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct DailyView {
    #[schema(value_type = schema::TimeOfDay)]
    at: String,
    #[schema(minimum = 1)]
    every_days: u32,
}

/// What happens to nominal times that nobody could fire for more than a minute.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct MissedView {
    #[schema(value_type = schema::MissedWord)]
    policy: &'static str,
    #[schema(value_type = schema::Duration)]
    within: Span,
}

impl ScheduleView {
    /// A schedule as it stands. `specimen` is one of its occurrences, as it is shown.
    pub fn new(row: &ScheduleRow, specimen: TimerView, next_at: Option<UnixMs>) -> Self {
        let plan = &row.plan;
        let (mut cron, mut every, mut daily) = (None, None, None);
        match &plan.timing.when {
            When::Cron(text) => cron = Some(text.clone()),
            When::Every(span) => every = Some(*span),
            When::Daily { at, every_days } => {
                daily = Some(DailyView { at: at.clone(), every_days: *every_days });
            }
        }
        Self {
            id: row.id.clone(),
            state: row.state.word(),
            cron,
            every,
            daily,
            zone: plan.timing.zone.clone(),
            start_at: plan.timing.start_at,
            end_at: plan.end_at,
            max_occurrences: plan.max_occurrences,
            missed: MissedView { policy: plan.missed.policy.word(), within: plan.missed.within },
            overlap: plan.overlap.word(),
            owner: row.content.owner().map(str::to_owned),
            target: specimen.target,
            data: specimen.data,
            template: row.content.template().map(str::to_owned),
            labels: specimen.labels,
            priority: specimen.priority,
            precision: specimen.precision,
            spread: specimen.spread,
            late: specimen.late,
            retry: specimen.retry,
            merge: specimen.merge,
            dispatch: specimen.dispatch,
            next_at,
            made: row.made,
            version: row.version,
            created_at: row.created_at,
            changed_at: row.changed_at,
        }
    }
}

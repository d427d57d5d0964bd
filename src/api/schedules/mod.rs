//! `/v1/schedules`: rules that make timers. Here is what the handlers share.

pub mod change;
pub mod look;
pub mod work;

use std::time::Duration;

use axum::http::StatusCode;

use super::ApiState;
use super::etag::tagged;
use super::problem::{ApiResult, FieldError, Problem};
use super::schema;
use super::view::{ScheduleView, TimerView};
use crate::cold::ScheduleRow;
use crate::model::schedule::is_schedule_id;
use crate::model::time::UnixMs;
use crate::schedule::reach;
use crate::service::Service;

/// The schedule that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct SchedulePath {
    /// The schedule's id.
    #[param(value_type = schema::ScheduleId, example = "daily-report")]
    id: String,
}

/// Fails with 422 if no schedule can have this id.
fn checked_id(id: &str) -> Result<(), Problem> {
    if is_schedule_id(id) {
        return Ok(());
    }
    let detail = "a schedule's id is 1 to 100 characters of A-Z a-z 0-9 . _ : -";
    Err(Problem::invalid(vec![FieldError::new("?id", "bad_id", detail)]))
}

fn no_such(id: &str) -> Problem {
    Problem::no_such("schedule", id)
}

async fn find(service: &Service, id: &str) -> Result<ScheduleRow, Problem> {
    checked_id(id)?;
    service.store.schedule(id).await?.ok_or_else(|| no_such(id))
}

/// How far ahead occurrences are made.
fn reach_of(state: &ApiState) -> Duration {
    reach(state.node.config.wheel.window.get())
}

/// Its next nominal time. One that is not found is the maker's to tell.
fn next_at(row: &ScheduleRow, now: UnixMs) -> Option<UnixMs> {
    row.next_times(now, 1).ok()?.first().copied()
}

fn view(state: &ApiState, service: &Service, row: &ScheduleRow, next_at: Option<UnixMs>) -> ScheduleView {
    let specimen = service.store.specimen(row);
    ScheduleView::new(row, TimerView::new(&specimen, state.tiers(service)), next_at)
}

/// An answer that shows a schedule.
fn answer(state: &ApiState, service: &Service, status: StatusCode, row: &ScheduleRow) -> ApiResult {
    let next = next_at(row, service.store.clock().now());
    Ok(tagged(status, row.version, &view(state, service, row, next)))
}

//! `run` and `backfill`: occurrences at somebody's wish.

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{SchedulePath, checked_id, find, no_such};
use crate::api::Within;
use crate::api::etag::tagged;
use crate::api::named::MAX_BODY;
use crate::api::problem::{ApiResult, FieldError, Problem};
use crate::api::request::{self, no_destination};
use crate::api::schema;
use crate::api::timers::register::register;
use crate::api::view::TimerView;
use crate::cold::{Backfilled, Deed, MAX_BACKFILL, Registered};
use crate::model::time::UnixMs;

/// Make an occurrence now, outside the rule, of one that is paused or has ended too. It has an id of its own and no
/// `ce-nominal`, and does not count as one of `max_occurrences`.
#[utoipa::path(post, path = "/v1/schedules/{id}/run", tag = "schedules", operation_id = "run_schedule",
    params(SchedulePath),
    responses((status = 201, body = TimerView, description = "The timer, which is due now",
            headers(("location" = String, description = "The path of the timer"))),
        (status = 404, body = Problem)))]
pub async fn run(Within(state): Within, Path(id): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    let caller = crate::api::state::caller(&request);
    let row = find(service, &id).await?;
    let timer = service.store.run_of(&row, uuid::Uuid::now_v7());
    // Before it is made: of what is not written down nothing is done.
    let became = Some(json!({"timer": timer.id.to_string()}));
    service.store.note_deed(Deed { action: "schedule.run", object: &id, was: None, became }).await?;
    match register(&state, service, caller, timer).await? {
        Registered::New(row) | Registered::Same(row) => {
            let view = TimerView::new(&row, state.tiers(service));
            let mut response = tagged(StatusCode::CREATED, row.life.version.0, &view);
            if let Ok(location) = HeaderValue::from_str(&format!("/v1/timers/{}", row.id)) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        Registered::NoDestination(name) => Err(Problem::invalid(vec![no_destination(&name)])),
        // An id that was just made.
        Registered::Taken | Registered::Unfitted(_) => Err(crate::cold::Error::Busy.into()),
    }
}

/// A range of nominal times.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Backfill)]
pub struct BackfillIn {
    /// Nominal times at this moment or later.
    #[schema(value_type = schema::Instant)]
    from: String,
    /// Nominal times at this moment or before it.
    #[schema(value_type = schema::Instant)]
    to: String,
}

/// What was made.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BackfillAnswer {
    /// How many occurrences.
    #[schema(minimum = 0, maximum = 1000)]
    made: usize,
}

/// Make occurrences of nominal times that were skipped and never became one, due at once and in order. At most 1,000 a call.
/// Where occurrences may not overlap, each waits for the one before.
#[utoipa::path(post, path = "/v1/schedules/{id}/backfill", tag = "schedules", operation_id = "backfill_schedule",
    params(SchedulePath), request_body = BackfillIn,
    responses((status = 200, body = BackfillAnswer), (status = 404, body = Problem)))]
pub async fn backfill(Within(state): Within, Path(id): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_id(&id)?;
    let body = state.body(request, MAX_BODY).await?;
    let asked: BackfillIn = request::read(&body.bytes, "")?;
    let mut errors = Vec::new();
    let mut moment = |pointer: &str, text: &str| match UnixMs::parse_rfc3339(text) {
        Ok(at) => Some(at),
        Err(why) => {
            errors.push(FieldError::new(pointer, "bad_time", why.to_string()));
            None
        }
    };
    let (from, to) = (moment("/from", &asked.from), moment("/to", &asked.to));
    if from.zip(to).is_some_and(|(from, to)| from > to) {
        errors.push(FieldError::new("/to", "range", "it has to be `from` or later"));
    }
    let (Some(from), Some(to), true) = (from, to, errors.is_empty()) else {
        return Err(Problem::invalid(errors));
    };
    match service.intake.backfill(id.clone(), from, to).await? {
        Backfilled::Done(made, _) => Ok(Json(BackfillAnswer { made }).into_response()),
        Backfilled::NoSuch => Err(no_such(&id)),
        Backfilled::TooMany => {
            let detail = format!(
                "these are more than {MAX_BACKFILL} nominal times; give a shorter range, call by call"
            );
            Err(Problem::invalid(vec![FieldError::new("/to", "too_many", detail)]))
        }
    }
}

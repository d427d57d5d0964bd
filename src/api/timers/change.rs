//! Change: due time, payload and labels; cancel; fire now.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{Answered, MAX_BODY, body, parse_id, shown};
use crate::api::ApiState;
use crate::api::problem::{FieldError, Problem};
use crate::api::request;
use crate::api::view::TimerView;
use crate::cold::{Applied, Change, ChangeEvent, Edit, TimerRow};
use crate::model::id::{TimerId, Version};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, Event, State as TimerState};
use crate::service::Service;

/// What a PATCH may change.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// The new due time: RFC 3339 with an offset.
    fire_at: Option<String>,
    /// The new due time, from now: an ISO 8601 duration.
    delay: Option<String>,
    /// The new payload; `null` empties it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
    /// The new labels, all of them.
    labels: Option<std::collections::BTreeMap<String, String>>,
    #[schema(ignore)]
    priority: Option<serde_json::Value>,
}

/// Tells `null` from absent: what is there is `Some`, `null` too.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Change due time, payload or labels.
#[utoipa::path(patch, path = "/v1/timers/{id}", tag = "timers",
    params(("id" = String, Path), ("if-match" = Option<String>, Header, description = "The ETag it must still have")),
    request_body = Patch,
    responses((status = 200, body = TimerView, description = "A new generation if due time or payload changed"),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled"),
        (status = 412, body = Problem), (status = 422, body = Problem)))]
pub async fn patch(State(state): State<Arc<ApiState>>, Path(id): Path<String>, request: Request) -> Answered {
    let service = state.service()?;
    let timer_id = parse_id(&id)?;
    let if_version = if_match(request.headers())?;
    let bytes = body(request.into_body(), MAX_BODY).await?;
    let raw: Patch = request::read(&bytes, "")?;
    let mut errors = Vec::new();
    if raw.priority.as_ref().is_some_and(|given| given != "normal") {
        errors.push(FieldError::new(
            "/priority",
            "not_supported",
            "not supported by this version; leave it out",
        ));
    }
    let now = service.store.clock().now();
    let due_at = match (&raw.fire_at, &raw.delay) {
        (None, None) => None,
        _ => request::due(&raw.fire_at, &raw.delay, &None, &None, now, &mut errors),
    };
    request::check_data(raw.data.as_deref(), &mut errors);
    let labels = raw.labels.as_ref().map(|given| request::labels(Some(given), &mut errors));
    let times = raw.fire_at.is_some() || raw.delay.is_some();
    if !times && raw.data.is_none() && labels.is_none() && raw.priority.is_none() {
        errors.push(FieldError::new("", "empty", "give at least one of fire_at, delay, data, labels"));
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let data = raw.data.map(|data| (data.get() != "null").then(|| data.get().as_bytes().to_vec()));
    let edit = Edit { due_at, data, labels, if_version };
    match change(service, &timer_id, ChangeEvent::Edit(edit)).await? {
        (row, Answer::Done) => Ok(shown(StatusCode::OK, &row, state.tiers(service))),
        (row, answer) => Err(conflict(&row, answer)),
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<Version>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    // A tag of another form was never given out, so it cannot match.
    Ok(Some(Version(text.trim_matches('"').parse().unwrap_or(-1))))
}

/// Take a timer back.
#[utoipa::path(delete, path = "/v1/timers/{id}", tag = "timers", params(("id" = String, Path)),
    responses((status = 200, description = "{\"outcome\": \"cancelled\"}: nothing was or ever will be sent; \
            \"stopped\": earlier attempts all surely failed, nothing more will be sent"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight: the cancel is recorded, no further attempt starts; already_fired")))]
pub async fn cancel(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    let service = state.service()?;
    let (row, answer) = change(service, &parse_id(&id)?, ChangeEvent::Cancel).await?;
    match answer {
        Answer::Cancelled => Ok(Json(json!({ "outcome": "cancelled" })).into_response()),
        Answer::Stopped => Ok(Json(json!({ "outcome": "stopped" })).into_response()),
        other => Err(conflict(&row, other)),
    }
}

/// Fire now.
#[utoipa::path(post, path = "/v1/timers/{id}/fire", tag = "timers", params(("id" = String, Path)),
    responses((status = 202, body = TimerView), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled")))]
pub async fn fire(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    let service = state.service()?;
    match change(service, &parse_id(&id)?, ChangeEvent::Fire).await? {
        (row, Answer::Done) => Ok(shown(StatusCode::ACCEPTED, &row, state.tiers(service))),
        (row, answer) => Err(conflict(&row, answer)),
    }
}

/// Applies a caller's change to the live timer, or finds what to answer from how it ended.
async fn change(service: &Service, id: &TimerId, event: ChangeEvent) -> Result<(TimerRow, Answer), Problem> {
    let uid = id.uid(service.store.namespace());
    let (probe, now) = match &event {
        ChangeEvent::Cancel => (Event::Cancel, UnixMs::default()),
        _ => (Event::Relabel, UnixMs::default()),
    };
    for _ in 0..3 {
        match service.intake.change(Change { uid, event: event.clone() }).await?? {
            Applied::Live(row, answer) => return Ok((*row, answer)),
            Applied::OtherVersion(version) => {
                let detail = format!("the timer's version is \"{version}\"; read it again and decide anew");
                return Err(Problem::new(StatusCode::PRECONDITION_FAILED, "version_changed", detail));
            }
            Applied::Unreadable => {
                let detail = "this version of the service cannot read this timer; nothing was changed";
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unreadable", detail));
            }
            Applied::NotLive => match service.store.find(uid).await? {
                // Ended: the answer follows from how.
                Some(row) if row.life.state.is_end() => {
                    let answer = row.life.step(probe, now).answer;
                    return Ok((row, answer));
                }
                // Registered, or registered again, between the two looks.
                Some(_) => {}
                None => return Err(Problem::no_timer(id.as_str())),
            },
        }
    }
    Err(crate::cold::Error::Busy.into())
}

fn conflict(row: &TimerRow, answer: Answer) -> Problem {
    let id = &row.id;
    let (code, detail) = match (answer, row.life.state) {
        (Answer::InFlight, TimerState::Cancelled) => (
            "in_flight",
            format!(
                "`{id}` is cancelled, but the outcome of an earlier attempt is not known: the receiver may have got it"
            ),
        ),
        (Answer::InFlight, TimerState::Delivering) if row.life.cancel_requested => (
            "in_flight",
            format!(
                "an attempt of `{id}` is under way; the cancel is recorded and no further attempt starts"
            ),
        ),
        (Answer::InFlight, _) => {
            ("in_flight", format!("an attempt of `{id}` is under way, or its outcome is not known"))
        }
        (Answer::AlreadyCancelled, _) => ("already_cancelled", format!("`{id}` was cancelled before")),
        (_, TimerState::Expired) => (
            "already_fired",
            format!("`{id}` is over: it was found later than its grace and expired; nothing was sent"),
        ),
        (_, TimerState::Dead) => (
            "already_fired",
            format!("`{id}` is over: it ran out of attempts, or its receiver is gone (410)"),
        ),
        _ => ("already_fired", format!("`{id}` was delivered before")),
    };
    Problem::new(StatusCode::CONFLICT, code, detail)
}

//! `PATCH`, `DELETE`, `fire`, `pause` and `resume`: change a timer, cancel it, fire it now, keep it from firing.

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fit::NewData;
use super::{ApiResult, MAX_BODY, TimerPath, parse_id, timer_answer};
use crate::api::etag::if_match;
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{self, DispatchIn, Refused, TargetIn};
use crate::api::schema;
use crate::api::state::caller;
use crate::api::view::TimerView;
use crate::api::{ApiState, Caller, Within};
use crate::cold::{ChangeEvent, Edit, Error as ColdError, TimerRow, Unfit};
use crate::model::id::{TimerId, Uid};
use crate::model::priority::Priority;
use crate::model::time::UnixMs;
use crate::model::timer::Answer;
use crate::service::Service;
use crate::service::answer::conflict;
use crate::service::density::Seconds;
use crate::writer::Changed;

/// What to change: at least one field. A field that is `null` counts as left out, but for `data`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// The new due time: one of `fire_at`, `delay`, or `local` with `zone`.
    #[schema(value_type = Option<schema::Instant>)]
    fire_at: Option<String>,
    /// The new due time, from now.
    #[schema(value_type = Option<schema::Duration>)]
    delay: Option<String>,
    /// The new due time on the clocks of `zone`.
    #[schema(value_type = Option<schema::LocalTime>)]
    local: Option<String>,
    /// The time zone of `local`.
    #[schema(value_type = Option<schema::Zone>)]
    zone: Option<String>,
    /// The new payload; `null` empties it. Of a timer with a template it is merged over the template's defaults and checked
    /// against its schema, as they are now.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
    /// The new labels, in place of all former ones.
    #[schema(value_type = Option<schema::Labels>)]
    labels: Option<std::collections::BTreeMap<String, String>>,
    /// The new priority.
    priority: Option<Priority>,
    /// How it is given out from now on, as a whole, if its target is a queue. Places that are settled stay so.
    #[serde(default)]
    #[schema(value_type = Option<DispatchIn>)]
    dispatch: Option<Box<RawValue>>,
    /// The new target, in place of the former one as a whole: its secret and headers too.
    #[schema(value_type = Option<TargetIn>)]
    target: Option<Box<RawValue>>,
}

/// The headers of a PATCH.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the headers in the OpenAPI document")]
pub struct PatchHeaders {
    /// The `ETag` that the timer must still have.
    #[param(rename = "if-match", required = false, inline, value_type = schema::EntityTag)]
    if_match: String,
}

/// Keeps `null` apart from a field that is left out: `null` is `Some`.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Change due time, payload, labels, target, how it is given out, or priority.
#[utoipa::path(patch, path = "/v1/timers/{id}", tag = "timers",
    params(TimerPath, PatchHeaders),
    request_body = Patch,
    responses((status = 200, body = TimerView, description = "A new generation if due time, payload, target or how it is given out changed"),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled"),
        (status = 412, body = Problem, description = "version_changed")))]
pub async fn patch(Within(state): Within, Path(id): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    let timer_id = parse_id(&id)?;
    let if_version = if_match(request.headers());
    let caller = caller(&request);
    let body = state.body(request, MAX_BODY).await?;
    let raw: Patch = state.check(caller, body.bytes.len(), move || request::read(&body.bytes, "")).await??;
    let mut errors = Vec::new();
    let now = service.store.clock().now();
    let times = [&raw.fire_at, &raw.delay, &raw.local, &raw.zone].into_iter().any(Option::is_some);
    let due_at = if times {
        request::due(&raw.fire_at, &raw.delay, &raw.local, &raw.zone, now, &mut errors)
    } else {
        None
    };
    let quotas = state.node.namespaces.quotas(service.namespace());
    request::check_horizon(due_at, now, &quotas, &mut errors);
    request::check_data(raw.data.as_deref(), &quotas, &mut errors);
    let labels = raw.labels.as_ref().map(|labels| request::labels(Some(labels), &mut errors));
    let is_empty = raw.data.is_none()
        && raw.target.is_none()
        && raw.labels.is_none()
        && raw.priority.is_none()
        && raw.dispatch.is_none();
    let dispatch = match raw.dispatch.as_deref().map(|raw| request::read(raw.get().as_bytes(), "/dispatch")) {
        Some(Ok(dispatch)) => request::dispatch(Some(&dispatch), &mut errors),
        Some(Err(Refused::Fields(found))) => {
            errors.extend(found);
            None
        }
        Some(Err(Refused::NotJson(why))) => {
            errors.push(FieldError::new("/dispatch", "wrong_type", why));
            None
        }
        None => None,
    };
    let guard = state.guard(service.namespace());
    let mut target =
        raw.target.as_deref().and_then(|target| request::target(Some(target), &guard, &mut errors));
    if !times && is_empty {
        let detail =
            "give at least one of fire_at, delay, local with zone, data, labels, target, dispatch, priority";
        errors.push(FieldError::new("", "empty", detail));
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    if let Some(target) = &mut target {
        service.destinations.seal_target(service.namespace(), target).await?;
    }
    let admitted = match due_at {
        Some(_) => Box::pin(may_be_due(&state, service, timer_id.uid(service.store.salt()), due_at)).await?,
        None => None,
    };
    let data = raw.data.map(|data| (data.get() != "null").then(|| data.get().as_bytes().to_vec()));
    let new = NewData::new(data.clone().flatten());
    let edit = Edit {
        due_at,
        data,
        labels,
        priority: raw.priority,
        target,
        dispatch,
        if_version,
        ..Edit::default()
    };
    let edited = edit_timer(&state, service, caller, &timer_id, edit, new).await;
    if edited.is_err() {
        state.node.namespaces.give_back_due(service.namespace(), admitted);
    }
    edited
}

/// Makes a caller's edit, with data that is fitted to the timer's template if it has one.
async fn edit_timer(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    timer_id: &TimerId,
    mut edit: Edit,
    mut new: NewData,
) -> ApiResult {
    loop {
        let event = ChangeEvent::Edit(edit.clone());
        match changed(service.intake.change(timer_id.uid(service.store.salt()), event).await?, timer_id)? {
            Made::Answered(row, Answer::Done) => {
                return Ok(timer_answer(StatusCode::OK, &row, state.tiers(service)));
            }
            Made::Answered(row, answer) => return Err(refused(&row, answer)),
            // Only now is it known that the timer has a template, or that this has changed.
            Made::Unfitted(template) => {
                let (data, template) = new.fitted(state, service, caller, template).await?;
                (edit.data, edit.template) = (Some(data), template);
            }
        }
    }
}

/// Whether the namespace's quota lets a timer be due then, or now. Returns what is to be given back if nothing comes of it.
async fn may_be_due(
    state: &ApiState,
    service: &Service,
    uid: Uid,
    due_at: Option<UnixMs>,
) -> Result<Option<Seconds>, Problem> {
    let admitted = state.node.namespaces.admit_moves(&service.store, &[uid], due_at).await?;
    Ok(admitted.map_err(Problem::over)?.pop().flatten())
}

/// The answer to a cancel.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Cancelled {
    #[schema(value_type = schema::CancelOutcome)]
    outcome: &'static str,
    /// There if it was for a queue and places of it were acked: how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, required = false)]
    acked: Option<u32>,
}

/// Cancel a timer.
#[utoipa::path(delete, path = "/v1/timers/{id}", tag = "timers", params(TimerPath),
    responses((status = 200, body = Cancelled, description = "It is over; a repeat gives the same answer"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight: the cancel is recorded, no further attempt starts; already_fired")))]
pub async fn cancel(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let service = state.service()?;
    let (row, answer) = change(service, &parse_id(&id)?, ChangeEvent::Cancel).await?;
    let acked = row.seats.as_ref().map(|seats| seats.acked).filter(|acked| *acked > 0);
    match answer {
        Answer::Cancelled => Ok(Json(Cancelled { outcome: "cancelled", acked }).into_response()),
        Answer::Stopped => Ok(Json(Cancelled { outcome: "stopped", acked }).into_response()),
        other => Err(refused(&row, other)),
    }
}

/// Fire now.
#[utoipa::path(post, path = "/v1/timers/{id}/fire", tag = "timers", params(TimerPath),
    responses((status = 202, body = TimerView, description = "It is due now, as a new generation"), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled")))]
pub async fn fire(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let service = state.service()?;
    let uid = parse_id(&id)?.uid(service.store.salt());
    let admitted = Box::pin(may_be_due(&state, service, uid, None)).await?;
    let fired = act(&state, &id, ChangeEvent::Fire(None), StatusCode::ACCEPTED).await;
    if fired.is_err() {
        state.node.namespaces.give_back_due(service.namespace(), admitted);
    }
    fired
}

/// Keep a timer from firing until it is resumed. It keeps its place and its age.
#[utoipa::path(post, path = "/v1/timers/{id}/pause", tag = "timers", params(TimerPath),
    responses((status = 200, body = TimerView, description = "It is paused; a repeat gives the same answer"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled")))]
pub async fn pause(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    act(&state, &id, ChangeEvent::Pause(None), StatusCode::OK).await
}

/// Let a paused timer fire. One that is overdue by more than its `late.grace` by now follows `late.then`.
#[utoipa::path(post, path = "/v1/timers/{id}/resume", tag = "timers", params(TimerPath),
    responses((status = 200, body = TimerView, description = "It waits for its due time, or is due; or it has expired"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled")))]
pub async fn resume(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    act(&state, &id, ChangeEvent::Resume(None), StatusCode::OK).await
}

/// Makes a change that has no body; answers with the timer after it, under this status.
async fn act(state: &ApiState, id: &str, event: ChangeEvent, done: StatusCode) -> ApiResult {
    let service = state.service()?;
    match change(service, &parse_id(id)?, event).await? {
        (row, Answer::Done) => Ok(timer_answer(done, &row, state.tiers(service))),
        (row, answer) => Err(refused(&row, answer)),
    }
}

/// Makes a caller's change without new data; returns the timer as it is then, and the answer.
async fn change(service: &Service, id: &TimerId, event: ChangeEvent) -> Result<(TimerRow, Answer), Problem> {
    match changed(service.intake.change(id.uid(service.store.salt()), event).await?, id)? {
        Made::Answered(row, answer) => Ok((*row, answer)),
        Made::Unfitted(_) => Err(ColdError::Busy.into()),
    }
}

/// What became of a change that could be tried.
enum Made {
    /// The timer as it is then, and the answer.
    Answered(Box<TimerRow>, Answer),
    /// Its data was not fitted to the timer's template, which has this name.
    Unfitted(Option<String>),
}

fn changed(changed: Changed, id: &TimerId) -> Result<Made, Problem> {
    match changed {
        Changed::Answered(row, answer) => Ok(Made::Answered(row, answer)),
        Changed::Unfitted(template) => Ok(Made::Unfitted(template)),
        Changed::OtherVersion(version) => Err(Problem::other_version("timer", version.0)),
        Changed::Unreadable => {
            let detail = "this version of the service cannot read this timer; nothing was changed";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unreadable", detail))
        }
        Changed::NoTimer => Err(Problem::no_timer(id.as_str())),
        Changed::NoDestination(name) => Err(Problem::invalid(vec![request::no_destination(&name)])),
        Changed::Unfit(Unfit::NoQueue) => Err(Problem::invalid(vec![request::no_queue()])),
        Changed::Unfit(Unfit::Merges) => Err(Problem::invalid(vec![request::merges("/target/queue")])),
    }
}

fn refused(row: &TimerRow, answer: Answer) -> Problem {
    let (code, detail) = conflict(row, answer);
    Problem::new(StatusCode::CONFLICT, code, detail)
}

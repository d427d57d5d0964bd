//! `PUT`, `PATCH`, `DELETE`, `pause` and `resume` of schedules.

use std::sync::Arc;

use axum::extract::{Path, Request};
use axum::http::StatusCode;

use super::{SchedulePath, answer, checked_id, find, no_such, reach_of};
use crate::api::auth::Caller;
use crate::api::etag::{if_match, wants_any};
use crate::api::named::{RemovedAnswer, removed};
use crate::api::problem::{ApiResult, FieldError, Problem};
use crate::api::request::{self, ScheduleIn, no_destination};
use crate::api::state::caller;
use crate::api::timers::change::PatchHeaders;
use crate::api::timers::fit::NewData;
use crate::api::timers::{MAX_BODY, context};
use crate::api::view::ScheduleView;
use crate::api::{ApiState, Within, schema};
use crate::cold::{MAX_SCHEDULES, ScheduleEdit, SchedulePut};
use crate::service::Service;

/// How often a patch is tried again whose schedule was changed meanwhile.
const PATCH_TRIES: usize = 5;

/// Make a schedule, or put another in its place. Occurrences that are still ahead are cancelled then, but for those that were
/// moved or cancelled by hand, and the new rule makes its own; a paused one stays paused. The same content again changes
/// nothing.
#[utoipa::path(put, path = "/v1/schedules/{id}", tag = "schedules", operation_id = "put_schedule",
    params(SchedulePath, PatchHeaders), request_body = ScheduleIn,
    responses((status = 201, body = ScheduleView, description = "New"),
        (status = 200, body = ScheduleView, description = "In place of the former one, or the same content again"),
        (status = 412, body = Problem, description = "version_changed")))]
pub async fn put(Within(state): Within, Path(id): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_id(&id)?;
    let if_version = if_match(request.headers()).map(|version| version.0);
    if wants_any(request.headers()) && service.store.schedule(&id).await?.is_none() {
        return Err(Problem::other_version("schedule", 0));
    }
    let caller = caller(&request);
    let body = state.body(request, MAX_BODY).await?;
    let (all, size) = (Arc::clone(&state), body.bytes.len());
    let check = move || {
        let context = context(&all, all.service()?, None);
        Ok::<_, Problem>(request::schedule(&id, &body.bytes, &context)?)
    };
    let edit = state.check(caller, size, check).await??;
    let put = write(&state, service, caller, ScheduleEdit { if_version, ..edit }).await?;
    written(&state, service, put)
}

/// Writes a schedule; one whose content names a template after its payload was fitted to it.
async fn write(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    mut edit: ScheduleEdit,
) -> Result<SchedulePut, Problem> {
    let reach = reach_of(state);
    let mut target = edit.content.target();
    service.destinations.seal_target(service.namespace(), &mut target).await?;
    edit.content.set_target(&target);
    edit.request = service.destinations.sealed_request(edit.request, &target);
    let Some(name) = edit.content.template().map(str::to_owned) else {
        return Ok(service.intake.put_schedule(edit, reach).await?);
    };
    // The same request again changes nothing: what its template says now is not asked of it.
    let before = service.store.schedule(&edit.id).await?;
    let mut is_same = before.is_some_and(|row| row.request_hash == edit.request_hash);
    let mut data = NewData::new(edit.content.data());
    loop {
        if !is_same {
            let (fitted, template) = data.fitted(state, service, caller, Some(name.clone())).await?;
            edit.content.fit(fitted);
            edit.fitted = template.and_then(|one| one.fitted);
        }
        is_same = false;
        match service.intake.put_schedule(edit.clone(), reach).await? {
            SchedulePut::Unfitted => {}
            put => return Ok(put),
        }
    }
}

/// The answer to a schedule that was to be written.
fn written(state: &ApiState, service: &Service, put: SchedulePut) -> ApiResult {
    match put {
        SchedulePut::Done(row, true) => answer(state, service, StatusCode::CREATED, &row),
        SchedulePut::Done(row, false) | SchedulePut::Same(row) => {
            answer(state, service, StatusCode::OK, &row)
        }
        SchedulePut::OtherVersion(version) => Err(Problem::other_version("schedule", version)),
        SchedulePut::NoDestination(name) => Err(Problem::invalid(vec![no_destination(&name)])),
        SchedulePut::Unfitted => Err(crate::cold::Error::Busy.into()),
        SchedulePut::EndsBeforeStart => {
            let detail =
                "it has to be `start_at` or later; without `start_at` that is when the schedule was made";
            Err(Problem::invalid(vec![FieldError::new("/end_at", "range", detail)]))
        }
        SchedulePut::Full => Err(Problem::too_many(service.store.most_here(MAX_SCHEDULES), "schedules")),
    }
}

/// Change parts of a schedule: what is given is merged over what there is (RFC 7396); `null` removes. A `target` and a rule
/// (`cron`, `every`, `daily`) take the place of the former one as a whole.
#[utoipa::path(patch, path = "/v1/schedules/{id}", tag = "schedules", operation_id = "patch_schedule",
    params(SchedulePath, PatchHeaders), request_body = schema::SchedulePatch,
    responses((status = 200, body = ScheduleView, description = "As after a PUT of the whole"),
        (status = 404, body = Problem), (status = 412, body = Problem, description = "version_changed")))]
pub async fn patch(Within(state): Within, Path(id): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_id(&id)?;
    let if_version = if_match(request.headers()).map(|version| version.0);
    let caller = caller(&request);
    let body = Arc::new(state.body(request, MAX_BODY).await?);
    // Whatever there is to be changed, it has to be an object.
    request::patched("{}", &body.bytes)?;
    for _ in 0..PATCH_TRIES {
        let row = find(service, &id).await?;
        if if_version.is_some_and(|version| version != row.version) {
            return Err(Problem::other_version("schedule", row.version));
        }
        let (all, body, size) = (Arc::clone(&state), Arc::clone(&body), body.bytes.len());
        let Ok(before) = service.destinations.opened_request(service.namespace(), row.request) else {
            let detail = "this node cannot open the secret of this schedule; change it on a node that can, or PUT it anew";
            return Err(Problem::invalid(vec![FieldError::new(
                "/target/webhook/secret",
                "unreadable",
                detail,
            )]));
        };
        let id = id.clone();
        let check = move || {
            let whole = request::patched(&before, &body.bytes)?;
            if whole.len() > MAX_BODY {
                let detail = format!("the whole would have {} bytes; at most {MAX_BODY}", whole.len());
                return Err(Problem::invalid(vec![FieldError::new("", "too_large", detail)]));
            }
            let context = context(&all, all.service()?, None);
            Ok(request::schedule(&id, whole.as_bytes(), &context)?)
        };
        let edit = state.check(caller, size, check).await??;
        let edit = ScheduleEdit { if_version: Some(row.version), ..edit };
        match write(&state, service, caller, edit).await? {
            SchedulePut::OtherVersion(0) => return Err(no_such(&row.id)),
            SchedulePut::OtherVersion(_) if if_version.is_none() => {}
            put => return written(&state, service, put),
        }
    }
    Err(crate::cold::Error::Busy.into())
}

/// Remove a schedule. Occurrences that are still ahead are cancelled, but for those that were moved or cancelled by hand.
#[utoipa::path(delete, path = "/v1/schedules/{id}", tag = "schedules", operation_id = "remove_schedule",
    params(SchedulePath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem)))]
pub async fn remove(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_id(&id)?;
    match service.intake.remove_schedule(id.clone()).await? {
        true => Ok(removed()),
        false => Err(no_such(&id)),
    }
}

/// Pause a schedule: its nominal times are skipped, and recorded. A repeat gives the same answer.
#[utoipa::path(post, path = "/v1/schedules/{id}/pause", tag = "schedules", operation_id = "pause_schedule",
    params(SchedulePath),
    responses((status = 200, body = ScheduleView, description = "One that has ended stays as it is"),
        (status = 404, body = Problem)))]
pub async fn pause(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    set_paused(&state, id, true).await
}

/// Resume a schedule, from its next nominal time on. A repeat gives the same answer.
#[utoipa::path(post, path = "/v1/schedules/{id}/resume", tag = "schedules", operation_id = "resume_schedule",
    params(SchedulePath),
    responses((status = 200, body = ScheduleView), (status = 404, body = Problem)))]
pub async fn resume(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    set_paused(&state, id, false).await
}

async fn set_paused(state: &ApiState, id: String, paused: bool) -> ApiResult {
    let service = state.service()?;
    checked_id(&id)?;
    match service.intake.pause_schedule(id.clone(), paused, reach_of(state)).await? {
        Some(row) => answer(state, service, StatusCode::OK, &row),
        None => Err(no_such(&id)),
    }
}

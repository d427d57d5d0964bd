//! `PUT` and `POST`: register one timer, under its caller's id or under one that the service makes.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request};
use axum::http::{HeaderValue, StatusCode, header};
use serde::Deserialize;

use super::fit::{self, Way};
use super::{ApiResult, TimerPath, bad_query, new_timer, parse_id, timer_answer};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{Naming, RawTimer, no_destination};
use crate::api::schema;
use crate::api::state::caller;
use crate::api::view::TimerView;
use crate::api::{ApiState, Caller, Within};
use crate::cold::{Error as ColdError, NewTimer, Registered};
use crate::model::id::{TimerId, idempotency_uid};
use crate::service::Service;

/// The query of a PUT.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PutQuery {
    /// On an ended id: start it anew, as the next generation.
    #[serde(default)]
    #[param(required = false)]
    again: bool,
}

/// Register under an id of your own.
#[utoipa::path(put, path = "/v1/timers/{id}", tag = "timers", params(TimerPath, PutQuery),
    request_body = RawTimer,
    responses((status = 201, body = TimerView, description = "New"),
        (status = 200, body = TimerView, description = "The same content again: its state, ended or not"),
        (status = 409, body = Problem, description = "id_taken: other content under this id")))]
pub async fn put(
    Within(state): Within,
    Path(id): Path<String>,
    query: Result<Query<PutQuery>, QueryRejection>,
    request: Request,
) -> ApiResult {
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let service = state.service()?;
    let id = parse_id(&id)?;
    let (of_server, caller) = (id.is_of_server(), caller(&request));
    let new = new_timer(&state, request, Naming::Path(id.clone()), query.again).await?;
    if of_server {
        return put_of_server(&state, service, &id, &new).await;
    }
    match register(&state, service, caller, new).await? {
        Registered::New(row) => Ok(timer_answer(StatusCode::CREATED, &row, state.tiers(service))),
        Registered::Same(row) => Ok(timer_answer(StatusCode::OK, &row, state.tiers(service))),
        Registered::Taken => Err(id_taken(&id)),
        Registered::NoDestination(name) => Err(Problem::invalid(vec![no_destination(&name)])),
        Registered::Unfitted(_) => Err(ColdError::Busy.into()),
    }
}

/// Answers a PUT of an id in the service's own form: 200 for the same content; it registers nothing.
async fn put_of_server(state: &ApiState, service: &Service, id: &TimerId, new: &NewTimer) -> ApiResult {
    match service.store.find(new.uid).await? {
        Some(row) if row.request_hash == new.request_hash => {
            Ok(timer_answer(StatusCode::OK, &row, state.tiers(service)))
        }
        Some(_) => Err(id_taken(id)),
        None => Err(Problem::invalid(vec![FieldError::new(
            "?id",
            "reserved",
            "ids of the form tmr_… are made by the service; choose another",
        )])),
    }
}

pub(super) fn id_taken(id: &TimerId) -> Problem {
    let detail = format!(
        "`{id}` is taken by a timer with other content, or by one whose history was removed; change it with PATCH, or \
         choose another id"
    );
    Problem::new(StatusCode::CONFLICT, "id_taken", detail)
}

/// Registers a timer, fitted to its template if it names one.
pub(in crate::api) async fn register(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    new: NewTimer,
) -> Result<Registered, Problem> {
    let registered = fit::register(state, service, caller, vec![new], Way::Together).await?.pop();
    Ok(registered.unwrap_or(Err(fit::Failure::Cold(ColdError::Busy)))?)
}

/// The headers of a POST.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the headers in the OpenAPI document")]
pub struct PostHeaders {
    /// The same key and body give the same timer.
    #[param(rename = "idempotency-key", required = false, inline, value_type = schema::IdempotencyKey)]
    idempotency_key: String,
}

/// Register under an id that the service makes.
#[utoipa::path(post, path = "/v1/timers", tag = "timers",
    params(PostHeaders),
    request_body = RawTimer,
    responses((status = 201, body = TimerView, description = "New",
            headers(("location" = String, description = "The path of the new timer"))),
        (status = 200, body = TimerView, description = "The same key and body again"),
        (status = 422, body = Problem, description = "Not valid, or key_reused: the key with another body")))]
pub async fn post(Within(state): Within, request: Request) -> ApiResult {
    let service = state.service()?;
    let naming = match request.headers().get("idempotency-key") {
        None => Naming::Server,
        Some(key) => {
            let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len())).ok_or_else(|| {
                let detail = "1 to 255 printable ASCII characters";
                Problem::invalid(vec![FieldError::new("?idempotency-key", "bad_key", detail)])
            })?;
            Naming::Key(idempotency_uid(service.store.salt(), key))
        }
    };
    let caller = caller(&request);
    let new = new_timer(&state, request, naming, false).await?;
    let (status, row) = match register(&state, service, caller, new).await? {
        Registered::New(row) => (StatusCode::CREATED, row),
        Registered::Same(row) => (StatusCode::OK, row),
        Registered::Taken => {
            let detail = "this Idempotency-Key was used with another body; use a new key for a new request";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", detail));
        }
        Registered::NoDestination(name) => return Err(Problem::invalid(vec![no_destination(&name)])),
        Registered::Unfitted(_) => return Err(ColdError::Busy.into()),
    };
    let mut response = timer_answer(status, &row, state.tiers(service));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/timers/{}", row.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

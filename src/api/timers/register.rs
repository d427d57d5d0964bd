//! Register: one under its caller's id, one under the service's, many at once.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Answered, MAX_BODY, bad_query, body, context, parse_id, shown};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{self, Naming, RawTimer};
use crate::api::view::TimerView;
use crate::api::{ApiState, Caller};
use crate::app::Service;
use crate::cold::{MAX_REGISTER_BATCH, NewTimer, Registered};
use crate::model::id::{TimerId, idempotency_uid};

const MAX_BATCH_BODY: usize = 16 * 1024 * 1024;
const MAX_BATCH: usize = 5000;

/// `again` of a PUT.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PutQuery {
    /// On an ended id: start it anew, as the next generation.
    #[serde(default)]
    again: bool,
}

/// Register under an id of your own.
#[utoipa::path(put, path = "/v1/timers/{id}", tag = "timers", params(("id" = String, Path), PutQuery),
    request_body = RawTimer,
    responses((status = 201, body = TimerView, description = "New"),
        (status = 200, body = TimerView, description = "The same content again: its state, ended or not"),
        (status = 409, body = Problem, description = "id_taken: other content under this id"),
        (status = 422, body = Problem)))]
pub async fn put(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    query: Result<Query<PutQuery>, QueryRejection>,
    request: Request,
) -> Answered {
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let service = state.service()?;
    let id = parse_id(&id)?;
    let bytes = body(request.into_body(), MAX_BODY).await?;
    let reserved = id.server_uid().is_some();
    let new = request::timer(&bytes, Naming::Path(id.clone()), query.again, &context(&state, service))?;
    if reserved {
        return put_reserved(&state, service, &id, &new).await;
    }
    match register(&state, service, new).await? {
        Registered::New(row) => Ok(shown(StatusCode::CREATED, &row, state.tiers(service))),
        Registered::Same(row) => Ok(shown(StatusCode::OK, &row, state.tiers(service))),
        Registered::Taken => Err(id_taken(&id)),
    }
}

/// Ids of the service's own form exist only where the service made them.
async fn put_reserved(state: &ApiState, service: &Service, id: &TimerId, new: &NewTimer) -> Answered {
    match service.store.find(new.uid).await? {
        Some(row) if row.request_hash == new.request_hash => {
            Ok(shown(StatusCode::OK, &row, state.tiers(service)))
        }
        Some(_) => Err(id_taken(id)),
        None => Err(Problem::invalid(vec![FieldError::new(
            "?id",
            "reserved",
            "ids of the form tmr_… are made by the service; choose another",
        )])),
    }
}

fn id_taken(id: &TimerId) -> Problem {
    let detail = format!(
        "`{id}` is taken by a timer with other content; change that one with PATCH, or choose another id"
    );
    Problem::new(StatusCode::CONFLICT, "id_taken", detail)
}

async fn register(state: &ApiState, service: &Service, new: NewTimer) -> Result<Registered, Problem> {
    let registered = service.registrations.submit(new).await??;
    if matches!(registered, Registered::New(_)) {
        state.app.metrics.registered.inc();
    }
    Ok(registered)
}

/// Register under an id that the service makes.
#[utoipa::path(post, path = "/v1/timers", tag = "timers",
    params(("idempotency-key" = Option<String>, Header, description = "The same key and body give the same timer")),
    request_body = RawTimer,
    responses((status = 201, body = TimerView, description = "New; Location names it"),
        (status = 200, body = TimerView, description = "The same key and body again"),
        (status = 422, body = Problem, description = "Not valid, or key_reused: the key with another body")))]
pub async fn post(State(state): State<Arc<ApiState>>, request: Request) -> Answered {
    let service = state.service()?;
    let naming = match request.headers().get("idempotency-key") {
        None => Naming::Server,
        Some(key) => {
            let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len())).ok_or_else(|| {
                let detail = "1 to 255 printable ASCII characters";
                Problem::invalid(vec![FieldError::new("?idempotency-key", "bad_key", detail)])
            })?;
            Naming::Key(idempotency_uid(service.store.namespace(), key))
        }
    };
    let bytes = body(request.into_body(), MAX_BODY).await?;
    let new = request::timer(&bytes, naming, false, &context(&state, service))?;
    let (status, row) = match register(&state, service, new).await? {
        Registered::New(row) => (StatusCode::CREATED, row),
        Registered::Same(row) => (StatusCode::OK, row),
        Registered::Taken => {
            let detail = "this Idempotency-Key was used with another body; use a new key for a new request";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", detail));
        }
    };
    let mut response = shown(status, &row, state.tiers(service));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/timers/{}", row.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBatch {
    timers: Vec<Box<RawValue>>,
}

/// The body of a batch.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes the body; items are read one by one")]
pub struct Batch {
    /// At most 5,000, each as in PUT with its `id`, or without one.
    timers: Vec<RawTimer>,
}

/// What became of each item, in order.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BatchAnswer {
    results: Vec<ItemAnswer>,
}

/// What became of one item.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// 201 new, 200 the same again, 409 taken, 422 not valid, 503 not committed.
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ItemError>,
}

/// Why an item was not registered.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemError {
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

impl ItemAnswer {
    fn refused(id: Option<String>, problem: Problem) -> Self {
        // Within a batch every invalid item is 422, its size included.
        let status = if problem.status == 413 || problem.status == 400 { 422 } else { problem.status };
        let error = ItemError { code: problem.code, detail: problem.detail, errors: problem.errors };
        Self { id, status, error: Some(error) }
    }
}

/// Register many at once; each item stands alone.
#[utoipa::path(post, path = "/v1/timers/batch", tag = "timers", request_body = Batch,
    responses((status = 200, body = BatchAnswer), (status = 413, body = Problem), (status = 422, body = Problem)))]
pub async fn batch(
    State(state): State<Arc<ApiState>>,
    axum::Extension(caller): axum::Extension<Caller>,
    request: Request,
) -> Answered {
    let service = state.service()?;
    let bytes = body(request.into_body(), MAX_BATCH_BODY).await?;
    let raw: RawBatch = request::read(&bytes, "")?;
    if raw.timers.len() > MAX_BATCH {
        let detail = format!("{} timers; at most {MAX_BATCH}", raw.timers.len());
        return Err(Problem::invalid(vec![FieldError::new("/timers", "too_large", detail)]));
    }
    state.auth.charge(&caller, raw.timers.len().saturating_sub(1))?;
    let mut results: Vec<Option<ItemAnswer>> = Vec::with_capacity(raw.timers.len());
    let mut good: Vec<(usize, NewTimer)> = Vec::with_capacity(raw.timers.len());
    for (place, item) in raw.timers.iter().enumerate() {
        match request::timer(item.get().as_bytes(), Naming::Own, false, &context(&state, service)) {
            Ok(new) => {
                good.push((place, new));
                results.push(None);
            }
            Err(bad) => results.push(Some(ItemAnswer::refused(own_id(item), bad.into()))),
        }
    }
    // Chunks in order, one after another: an id that stands twice meets its first registration.
    for chunk in good.chunks(MAX_REGISTER_BATCH) {
        let timers: Vec<NewTimer> = chunk.iter().map(|(_, new)| new.clone()).collect();
        let answers = service.store.register(&timers).await;
        service.promotion.written(answers.iter().filter_map(Registered::new_row));
        for ((place, new), answer) in chunk.iter().zip(answers) {
            let id = Some(new.id.as_str().to_owned());
            results[*place] = Some(match answer {
                Ok(Registered::New(_)) => {
                    state.app.metrics.registered.inc();
                    ItemAnswer { id, status: 201, error: None }
                }
                Ok(Registered::Same(_)) => ItemAnswer { id, status: 200, error: None },
                Ok(Registered::Taken) => ItemAnswer::refused(id, id_taken(&new.id)),
                Err(why) => ItemAnswer::refused(id, why.into()),
            });
        }
    }
    Ok(Json(BatchAnswer { results: results.into_iter().flatten().collect() }).into_response())
}

/// The id an invalid item asked for, to name it in the answer.
fn own_id(item: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: Option<String>,
    }
    serde_json::from_str::<OnlyId>(item.get()).ok()?.id
}

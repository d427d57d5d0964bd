//! `POST /v1/timers/batch`: register many, each by itself. The stream registers its lines by the same functions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::register::id_taken;
use super::{ApiResult, body, context, trace_of};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{self, Context, Naming, RawTimer, Refused};
use crate::api::schema;
use crate::api::{ApiState, Caller, RequestId};
use crate::cold::{Error as ColdError, MAX_REGISTER_BATCH, NewTimer, Registered};
use crate::model::id::TimerId;
use crate::service::Service;

const MAX_BATCH_BODY: usize = 16 * 1024 * 1024;
/// The most timers of one batch.
pub const MAX_BATCH: usize = 5000;

/// The result of one item of a batch or stream.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemResult {
    /// The timer's id. If the item was refused: the id that it asked for, if it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    id: Option<String>,
    #[schema(value_type = schema::ItemStatus)]
    status: u16,
    /// There if the item was not registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ItemError, required = false)]
    error: Option<ItemError>,
}

/// Why an item was not registered.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemError {
    /// Stable word for programs.
    code: &'static str,
    /// What happened and what to do.
    detail: String,
    /// The fields that are not valid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

impl ItemResult {
    /// The result of an item that was not registered.
    pub(super) fn refused(id: Option<String>, problem: Problem) -> Self {
        // An item that is too large or not JSON is 422 like any other that is not valid.
        let status = if problem.status == 413 || problem.status == 400 { 422 } else { problem.status };
        let error = ItemError { code: problem.code, detail: problem.detail, errors: problem.errors };
        Self { id, status, error: Some(error) }
    }

    fn of(id: TimerId, registered: Result<Registered, ColdError>) -> Self {
        let named = Some(id.as_str().to_owned());
        match registered {
            Ok(Registered::New(_)) => Self { id: named, status: 201, error: None },
            Ok(Registered::Same(_)) => Self { id: named, status: 200, error: None },
            Ok(Registered::Taken) => Self::refused(named, id_taken(&id)),
            Err(why) => Self::refused(named, why.into()),
        }
    }
}

/// One item of a batch or stream, after its checks.
pub(super) enum CheckedItem {
    /// A timer to register.
    Valid(Box<NewTimer>),
    /// It will not be registered; this is its result.
    Refused(ItemResult),
}

impl CheckedItem {
    /// Checks one item.
    pub(super) fn check(text: &[u8], context: &Context<'_>) -> Self {
        match request::timer(text, Naming::Body, false, context) {
            Ok(new) => Self::Valid(Box::new(new)),
            // "line 1" would be read as the first line of the stream.
            Err(Refused::NotJson(why)) => {
                Self::refused(text, Refused::NotJson(why.replace(" line 1 column ", " column ")).into())
            }
            Err(refused) => Self::refused(text, refused.into()),
        }
    }

    /// An item that will not be registered because of `problem`.
    pub(super) fn refused(text: &[u8], problem: Problem) -> Self {
        Self::Refused(ItemResult::refused(id_in(text), problem))
    }
}

/// The `id` in an item, to name it in its result.
fn id_in(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: Option<String>,
    }
    serde_json::from_slice::<OnlyId>(text).ok()?.id
}

/// Registers the valid ones of up to [`MAX_REGISTER_BATCH`] items in one transaction; returns all results, in order.
/// Items that the store did not take are one log line.
pub(super) async fn register_group(
    service: &Service,
    group: Vec<CheckedItem>,
    request_id: &RequestId,
) -> Vec<ItemResult> {
    let mut timers = Vec::with_capacity(group.len());
    let checked: Vec<Result<TimerId, ItemResult>> = group
        .into_iter()
        .map(|item| match item {
            CheckedItem::Valid(new) => {
                let id = new.id.clone();
                timers.push(*new);
                Ok(id)
            }
            CheckedItem::Refused(result) => Err(result),
        })
        .collect();
    let registered = if timers.is_empty() { Vec::new() } else { service.intake.register_many(timers).await };
    let mut failed = registered.iter().filter_map(|item| item.as_ref().err());
    if let Some(why) = failed.next() {
        let (request_id, timers) = (&*request_id.0, 1 + failed.count());
        tracing::info!(request_id, timers, %why, "timers of a batch or stream were not registered");
    }
    let mut registered = registered.into_iter();
    checked
        .into_iter()
        .map(|item| match item {
            Ok(id) => ItemResult::of(id, registered.next().unwrap_or(Err(ColdError::Busy))),
            Err(result) => result,
        })
        .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBatch {
    timers: Vec<Box<RawValue>>,
}

/// The body of a batch; each item stands alone.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes the body; items are read one by one")]
pub struct Batch {
    timers: Vec<RawTimer>,
}

/// The result of each item, in order.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BatchAnswer {
    results: Vec<ItemResult>,
}

/// Register many at once; each item stands alone.
#[utoipa::path(post, path = "/v1/timers/batch", tag = "timers", request_body(content = Batch, description = "At most 16 MiB"),
    responses((status = 200, body = BatchAnswer, description = "The result of each item, refused ones too")))]
pub async fn batch(
    State(state): State<Arc<ApiState>>,
    axum::Extension(caller): axum::Extension<Caller>,
    axum::Extension(request_id): axum::Extension<RequestId>,
    request: Request,
) -> ApiResult {
    let service = state.service()?;
    let trace = trace_of(request.headers());
    let bytes = body(request.into_body(), MAX_BATCH_BODY).await?;
    let raw: RawBatch = request::read(&bytes, "")?;
    if raw.timers.len() > MAX_BATCH {
        let detail = format!("{} timers; at most {MAX_BATCH}", raw.timers.len());
        return Err(Problem::invalid(vec![FieldError::new("/timers", "too_large", detail)]));
    }
    state.auth.charge(&caller, raw.timers.len().saturating_sub(1))?;
    let check = |item: &RawValue| CheckedItem::check(item.get().as_bytes(), &context(&state, service, trace));
    let items = raw.timers.iter().map(|item| check(item));
    let mut items = items.collect::<Vec<_>>().into_iter();
    let mut results = Vec::with_capacity(items.len());
    // One group after another: the second of two equal ids meets the registration of the first.
    while items.len() > 0 {
        let group = items.by_ref().take(MAX_REGISTER_BATCH).collect();
        results.extend(register_group(service, group, &request_id).await);
    }
    Ok(Json(BatchAnswer { results }).into_response())
}

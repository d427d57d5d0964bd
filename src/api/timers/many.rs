//! Register many: the batch, and what it shares with the stream.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::register::id_taken;
use super::{Answered, body, context};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{self, Bad, Context, Naming, RawTimer};
use crate::api::{ApiState, Caller};
use crate::cold::{Error as ColdError, MAX_REGISTER_BATCH, NewTimer, Registered};
use crate::model::id::TimerId;
use crate::service::Service;

const MAX_BATCH_BODY: usize = 16 * 1024 * 1024;
const MAX_BATCH: usize = 5000;

/// What became of one item.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// 201 new, 200 the same again, 409 taken, 422 not valid, 429 beyond the quota (in a stream), 503 not
    /// committed.
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
    /// The answer to an item that is not registered.
    pub(super) fn refused(id: Option<String>, problem: Problem) -> Self {
        // Among others every invalid item is 422, its size and its syntax included.
        let status = if problem.status == 413 || problem.status == 400 { 422 } else { problem.status };
        let error = ItemError { code: problem.code, detail: problem.detail, errors: problem.errors };
        Self { id, status, error: Some(error) }
    }

    fn answered(id: TimerId, answer: Result<Registered, ColdError>) -> Self {
        let named = Some(id.as_str().to_owned());
        match answer {
            Ok(Registered::New(_)) => Self { id: named, status: 201, error: None },
            Ok(Registered::Same(_)) => Self { id: named, status: 200, error: None },
            Ok(Registered::Taken) => Self::refused(named, id_taken(&id)),
            Err(why) => Self::refused(named, why.into()),
        }
    }
}

/// One timer among many, looked at by itself.
pub(super) enum Item {
    /// To be registered.
    Good(Box<NewTimer>),
    /// Answered already.
    Refused(ItemAnswer),
}

impl Item {
    /// Reads one timer with its own id, or without one.
    pub(super) fn read(text: &[u8], context: &Context<'_>) -> Self {
        match request::timer(text, Naming::Own, false, context) {
            Ok(new) => Self::Good(Box::new(new)),
            // Whoever sends many lines would look for this in the first.
            Err(Bad::Syntax(why)) => {
                Self::refused(text, Bad::Syntax(why.replace(" line 1 column ", " column ")).into())
            }
            Err(bad) => Self::refused(text, bad.into()),
        }
    }

    /// An item that is not registered, whatever is in it.
    pub(super) fn refused(text: &[u8], problem: Problem) -> Self {
        Self::Refused(ItemAnswer::refused(own_id(text), problem))
    }
}

/// The id an item asks for, to name it in the answer.
fn own_id(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: Option<String>,
    }
    serde_json::from_slice::<OnlyId>(text).ok()?.id
}

/// Registers what is good of up to [`MAX_REGISTER_BATCH`] items in one transaction; answers all, in order.
pub(super) async fn register_group(service: &Service, group: Vec<Item>) -> Vec<ItemAnswer> {
    let mut timers = Vec::with_capacity(group.len());
    let looked_at: Vec<Result<TimerId, ItemAnswer>> = group
        .into_iter()
        .map(|item| match item {
            Item::Good(new) => {
                let id = new.id.clone();
                timers.push(*new);
                Ok(id)
            }
            Item::Refused(answer) => Err(answer),
        })
        .collect();
    let registered = if timers.is_empty() { Vec::new() } else { service.intake.register_many(timers).await };
    let mut registered = registered.into_iter();
    looked_at
        .into_iter()
        .map(|one| match one {
            Ok(id) => ItemAnswer::answered(id, registered.next().unwrap_or(Err(ColdError::Busy))),
            Err(answer) => answer,
        })
        .collect()
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
    let items = raw.timers.iter().map(|item| Item::read(item.get().as_bytes(), &context(&state, service)));
    let mut items = items.collect::<Vec<_>>().into_iter();
    let mut results = Vec::with_capacity(items.len());
    // Group by group, one after another: an id that stands twice meets its first registration.
    while items.len() > 0 {
        let group = items.by_ref().take(MAX_REGISTER_BATCH).collect();
        results.extend(register_group(service, group).await);
    }
    Ok(Json(BatchAnswer { results }).into_response())
}

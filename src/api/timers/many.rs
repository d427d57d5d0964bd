//! `POST /v1/timers/batch`: register many, each by itself. The stream registers its lines by the same functions.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Request;
use axum::response::IntoResponse;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::fit::{self, Failure, Way};
use super::register::id_taken;
use super::{ApiResult, MAX_BODY, context, trace_of};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{self, Context, Naming, RawTimer, Refused};
use crate::api::schema;
use crate::api::{ApiState, Caller, RequestId, Within};
use crate::cold::{Error as ColdError, NewTimer, Registered};
use crate::model::id::TimerId;
use crate::service::Service;

const MAX_BATCH_BODY: usize = 16 * 1024 * 1024;
/// The bytes at which a slice of a batch ends: what is checked at once, and registered in one transaction.
const SLICE: usize = 512 * 1024;
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

    fn of(id: TimerId, registered: Result<Registered, Failure>) -> Self {
        let named = Some(id.as_str().to_owned());
        match registered {
            Ok(Registered::New(_)) => Self { id: named, status: 201, error: None },
            Ok(Registered::Same(_)) => Self { id: named, status: 200, error: None },
            Ok(Registered::Taken) => Self::refused(named, id_taken(&id)),
            Ok(Registered::NoDestination(name)) => {
                Self::refused(named, Problem::invalid(vec![request::no_destination(&name)]))
            }
            Ok(Registered::Unfitted(_)) => Self::refused(named, ColdError::Busy.into()),
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
        if text.len() > MAX_BODY {
            let detail = format!("the timer is over {MAX_BODY} bytes");
            return Self::refused(text, Problem::invalid(vec![FieldError::new("", "too_large", detail)]));
        }
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

/// Registers the valid ones of up to [`crate::cold::MAX_REGISTER_BATCH`] items in one transaction; returns all results, in order.
/// Items that the store did not take are one log line.
pub(super) async fn register_group(
    state: &ApiState,
    service: &Service,
    caller: Caller,
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
    let count = timers.len();
    let registered = match timers.is_empty() {
        true => Ok(Vec::new()),
        false => fit::register(state, service, caller, timers, Way::Apart).await,
    };
    let registered = registered.unwrap_or_else(|why| {
        let (request_id, code) = (&*request_id.0, why.code);
        tracing::info!(request_id, timers = count, code, "timers of a batch or stream were not registered");
        (0..count).map(|_| Err(Failure::Problem(why.clone()))).collect()
    });
    let mut failed = registered.iter().filter_map(|item| match item {
        Err(Failure::Cold(why)) => Some(why),
        _ => None,
    });
    if let Some(why) = failed.next() {
        let (request_id, timers) = (&*request_id.0, 1 + failed.count());
        tracing::info!(request_id, timers, %why, "timers of a batch or stream were not registered");
    }
    let mut registered = registered.into_iter();
    checked
        .into_iter()
        .map(|item| match item {
            Ok(id) => ItemResult::of(id, registered.next().unwrap_or(Err(Failure::Cold(ColdError::Busy)))),
            Err(result) => result,
        })
        .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBatch<'a> {
    #[serde(borrow)]
    timers: Items<'a>,
}

/// The items of a batch as text. Those beyond [`MAX_BATCH`] are counted and not kept.
struct Items<'a> {
    kept: Vec<&'a RawValue>,
    count: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfSeq;

        impl<'de> Visitor<'de> for OfSeq {
            type Value = Items<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Items { kept: Vec::new(), count: 0 };
                while items.count < MAX_BATCH
                    && let Some(item) = seq.next_element()?
                {
                    items.kept.push(item);
                    items.count += 1;
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    items.count += 1;
                }
                Ok(items)
            }
        }

        deserializer.deserialize_seq(OfSeq)
    }
}

/// Splits the body of a batch into its items.
fn split(bytes: &Bytes) -> Result<Vec<Bytes>, Problem> {
    let raw: RawBatch<'_> = request::read(bytes, "")?;
    if raw.timers.count > MAX_BATCH {
        let detail = format!("{} timers; at most {MAX_BATCH}", raw.timers.count);
        return Err(Problem::invalid(vec![FieldError::new("/timers", "too_large", detail)]));
    }
    Ok(raw.timers.kept.into_iter().map(|item| bytes.slice_ref(item.get().as_bytes())).collect())
}

/// The items of the next slice: as many as one transaction takes, and up to [`SLICE`] bytes. None are left if it is
/// empty.
fn next_slice(items: &mut impl Iterator<Item = Bytes>, most: usize) -> Vec<Bytes> {
    let (mut slice, mut bytes) = (Vec::new(), 0);
    while slice.len() < most
        && bytes < SLICE
        && let Some(item) = items.next()
    {
        bytes += item.len();
        slice.push(item);
    }
    slice
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
    Within(state): Within,
    axum::Extension(caller): axum::Extension<Caller>,
    axum::Extension(request_id): axum::Extension<RequestId>,
    request: Request,
) -> ApiResult {
    let service = state.service()?;
    let trace = trace_of(request.headers());
    let body = state.body(request, MAX_BATCH_BODY).await?;
    let (bytes, size) = (body.bytes.clone(), body.bytes.len());
    let items = state.check(caller, size, move || split(&bytes)).await??;
    state.charge(caller, items.len().saturating_sub(1)).await?;
    let mut results = Vec::with_capacity(items.len());
    let mut items = items.into_iter();
    // One group after another: the second of two equal ids meets the registration of the first.
    loop {
        let slice = next_slice(&mut items, service.store.bulk());
        if slice.is_empty() {
            return Ok(Json(BatchAnswer { results }).into_response());
        }
        // A key that was revoked or has expired meanwhile registers nothing more.
        state.auth.still(caller)?;
        let all = Arc::clone(&state);
        let check = move || {
            let service = all.service()?;
            Ok(slice.iter().map(|item| CheckedItem::check(item, &context(&all, service, trace))).collect())
        };
        let group: Result<_, Problem> = state.check(caller, size, check).await?;
        results.extend(register_group(&state, service, caller, group?, &request_id).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(slices: &[usize], most: usize) -> Vec<usize> {
        let mut items = slices.iter().map(|size| Bytes::from(vec![b' '; *size]));
        let slices =
            std::iter::from_fn(|| Some(next_slice(&mut items, most)).filter(|slice| !slice.is_empty()));
        slices.map(|slice| slice.len()).collect()
    }

    #[test]
    fn slices_are_bounded_in_items_and_bytes() {
        assert_eq!(sizes(&[1; 5], 2), [2, 2, 1]);
        assert_eq!(sizes(&[SLICE / 2; 5], 100), [2, 2, 1]);
        assert_eq!(sizes(&[2 * SLICE, 1, 2 * SLICE], 100), [1, 2]);
        assert!(sizes(&[], 1).is_empty());
    }

    #[test]
    fn a_batch_is_split_without_copying_and_counted_to_its_end() {
        let bytes = Bytes::from(format!(r#"{{"timers":[{}0]}}"#, "0, ".repeat(MAX_BATCH - 1)));
        let items = split(&bytes).expect("as many as a batch may have");
        assert!(
            items.len() == MAX_BATCH
                && items.iter().all(|item| bytes.as_ptr_range().contains(&item.as_ptr()))
        );
        let bytes = Bytes::from(format!(r#"{{"timers":[{}0]}}"#, "0,".repeat(100_000)));
        let refused = split(&bytes).expect_err("too many");
        assert_eq!((refused.status, refused.detail.as_str()), (413, "/timers: 100001 timers; at most 5000"));
    }
}

//! `/v1/queues`: workers fetch what is due, and settle it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::etag::tagged;
use super::listen::MAX_HEADERS;
use super::named::{MAX_BODY, RemovedAnswer, checked_name, removed};
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, LeaseIn, QueueIn, SettleIn};
use super::schema;
use super::state::caller;
use super::view::RetryView;
use super::{ApiState, Within};
use crate::cold::{Leased, QueueDepth, QueueRemoved, QueueRow, Settlement};
use crate::model::policy::Retry;
use crate::model::queue::{DEFAULT_LEASE, lane};
use crate::model::time::{Span, UnixMs};
use crate::queue::{Given, Refused};
use crate::service::Service;

/// The most queues of one answer.
const MAX_LIST: usize = 1000;

/// The most bytes of a body of settlements.
const MAX_SETTLE: usize = 8 * 1024 * 1024;

/// The queue that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct QueuePath {
    /// The queue's name.
    #[param(value_type = schema::QueueName, example = "reports")]
    name: String,
}

/// A queue in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueueView {
    #[schema(value_type = schema::QueueName)]
    name: String,
    /// How long a lease lasts that does not say.
    #[schema(value_type = schema::Duration)]
    lease: Span,
    /// How places are given out again, for timers without a `retry` of their own.
    #[schema(value_type = RetryView)]
    retry: Retry,
    /// Nothing is given out.
    paused: bool,
    /// Timers of which a place may be given out now, counted up to 100,000, in a list up to 1,000 at least.
    #[schema(minimum = 0)]
    ready: i64,
    /// Timers of which a worker has a place, counted up to 100,000, in a list up to 1,000 at least.
    #[schema(minimum = 0)]
    leased: i64,
    /// Timers that are not due yet, counted up to 100,000, in a list up to 1,000 at least.
    #[schema(minimum = 0)]
    scheduled: i64,
    /// Since when the one is ready that nobody has fetched for longest.
    #[schema(required, value_type = Option<schema::Moment>)]
    oldest_ready_at: Option<UnixMs>,
    /// Rises with every change; also the `ETag`.
    #[schema(minimum = 1)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
}

/// Queues, by name.
#[derive(Serialize, utoipa::ToSchema)]
pub struct QueuesAnswer {
    items: Vec<QueueView>,
    /// The name to go on after, as `after`; `null` if there are no more.
    #[schema(required)]
    next: Option<String>,
}

fn view(row: &QueueRow, depth: QueueDepth) -> QueueView {
    QueueView {
        name: row.name.clone(),
        lease: row.settings.lease.unwrap_or(DEFAULT_LEASE),
        retry: row.settings.retry.unwrap_or_default(),
        paused: row.paused,
        ready: depth.ready,
        leased: depth.leased,
        scheduled: depth.scheduled,
        oldest_ready_at: depth.oldest_ready_at,
        version: row.version,
        created_at: row.created_at,
    }
}

async fn answer(service: &Service, status: StatusCode, row: &QueueRow) -> ApiResult {
    let depth =
        service.store.queue_depths(&[lane(row.namespace, &row.name)]).await?.pop().unwrap_or_default();
    Ok(tagged(status, row.version, &view(row, depth)))
}

fn no_such(name: &str) -> Problem {
    Problem::no_such("queue", name)
}

/// Which queues to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct QueuesQuery {
    /// `next` of the page before.
    #[param(value_type = Option<String>)]
    after: Option<String>,
    /// Default and most: 1,000.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Queues, by name.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", operation_id = "queues", params(QueuesQuery),
    responses((status = 200, body = QueuesAnswer)))]
pub async fn list(
    Within(state): Within,
    query: Result<Query<QueuesQuery>, axum::extract::rejection::QueryRejection>,
) -> ApiResult {
    let service = state.service()?;
    let Query(QueuesQuery { after, limit }) =
        query.map_err(|why| Problem::invalid(vec![FieldError::new("?", "bad_query", why.body_text())]))?;
    let limit = limit.unwrap_or(MAX_LIST);
    if !(1..=MAX_LIST).contains(&limit) {
        let detail = format!("from 1 to {MAX_LIST}");
        return Err(Problem::invalid(vec![FieldError::new("?limit", "range", detail)]));
    }
    let after = after.unwrap_or_default().replace('\0', "\u{fffd}");
    let mut rows = service.store.queues(&after, limit + 1).await?;
    let is_more = rows.len() > limit;
    rows.truncate(limit);
    let lanes: Vec<i64> = rows.iter().map(|row| lane(row.namespace, &row.name)).collect();
    let depths = service.store.queue_depths(&lanes).await?;
    let next = rows.last().filter(|_| is_more).map(|row| row.name.clone());
    let items = rows.iter().zip(depths).map(|(row, depth)| view(row, depth)).collect();
    Ok(Json(QueuesAnswer { items, next }).into_response())
}

/// One queue: what it says, and what waits in it.
#[utoipa::path(get, path = "/v1/queues/{name}", tag = "queues", operation_id = "queue", params(QueuePath),
    responses((status = 200, body = QueueView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let row = service.store.queue(&name).await?.ok_or_else(|| no_such(&name))?;
    answer(service, StatusCode::OK, &row).await
}

/// Make a queue, or say anew what it says. It is not needed to begin: a queue comes into being with its first timer or lease.
#[utoipa::path(put, path = "/v1/queues/{name}", tag = "queues", operation_id = "put_queue", params(QueuePath),
    request_body = QueueIn,
    responses((status = 201, body = QueueView, description = "New"),
        (status = 200, body = QueueView, description = "It holds for what is given out or comes back from now on")))]
pub async fn put(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let body = state.body(request, MAX_BODY).await?;
    let (settings, paused) = request::queue(&body.bytes)?;
    let (row, is_new) = service.store.put_queue(&name, &settings, paused).await?;
    service.queues.note_settings(service.namespace(), &name, &settings);
    service.queues.changed(service.namespace(), &name).await;
    answer(service, if is_new { StatusCode::CREATED } else { StatusCode::OK }, &row).await
}

/// Remove a queue that no live timer and no schedule is for.
#[utoipa::path(delete, path = "/v1/queues/{name}", tag = "queues", operation_id = "remove_queue", params(QueuePath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_use: live timers or schedules are for it; the detail has their number")))]
pub async fn remove(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    match service.store.remove_queue(&name).await? {
        QueueRemoved::Done => Ok(removed()),
        QueueRemoved::NoSuch => Err(no_such(&name)),
        QueueRemoved::InUse(timers, schedules) => {
            let are = if timers == 1 { "timer is" } else { "timers are" };
            let more = if timers >= crate::cold::MOST_COUNTED { " or more" } else { "" };
            let detail = match schedules {
                0 => format!(
                    "{timers}{more} live {are} for `{name}`; settle or cancel them, or change their target, first"
                ),
                _ => format!(
                    "{timers}{more} live {are} for `{name}`, and schedules make more of them: {schedules}; remove \
                     these or change their target, and settle or cancel the timers, first"
                ),
            };
            Err(Problem::new(StatusCode::CONFLICT, "in_use", detail))
        }
    }
}

/// Give nothing out. What is leased stays so and can be settled; a repeat gives the same answer.
#[utoipa::path(post, path = "/v1/queues/{name}/pause", tag = "queues", operation_id = "pause_queue", params(QueuePath),
    responses((status = 200, body = QueueView), (status = 404, body = Problem)))]
pub async fn pause(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    set_paused(&state, &name, true).await
}

/// Give out what is ready. What is later than its grace by now follows its `late`.
#[utoipa::path(post, path = "/v1/queues/{name}/resume", tag = "queues", operation_id = "resume_queue", params(QueuePath),
    responses((status = 200, body = QueueView), (status = 404, body = Problem)))]
pub async fn resume(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    set_paused(&state, &name, false).await
}

async fn set_paused(state: &ApiState, name: &str, paused: bool) -> ApiResult {
    let service = state.service()?;
    checked_name(name)?;
    let row = service.store.pause_queue(name, paused).await?.ok_or_else(|| no_such(name))?;
    if !paused {
        service.queues.changed(service.namespace(), name).await;
    }
    answer(service, StatusCode::OK, &row).await
}

/// What a worker got.
#[derive(Serialize, utoipa::ToSchema)]
pub struct LeaseAnswer {
    /// At most as many as it asked for; empty if nothing was due in time.
    items: Vec<ItemView>,
}

/// One item: a place of a timer.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemView {
    /// The same whenever this item is given out.
    delivery_id: String,
    /// The timer's id.
    #[schema(value_type = schema::TimerId)]
    timer: String,
    #[schema(value_type = schema::Moment)]
    due_at: UnixMs,
    /// How often this item was given out, this time included.
    #[schema(minimum = 1)]
    attempt: i32,
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// What it is settled with.
    #[schema(value_type = schema::LeaseToken)]
    lease_token: String,
    /// When it is due again, if it is not settled by then.
    #[schema(value_type = schema::Moment)]
    lease_until: UnixMs,
}

impl ItemView {
    fn new(leased: &Leased) -> Self {
        let data = std::str::from_utf8(&leased.data).ok().map(str::to_owned).map(RawValue::from_string);
        Self {
            delivery_id: leased.delivery_id.clone(),
            timer: leased.timer.clone(),
            due_at: leased.due_at,
            attempt: leased.attempt,
            data: data.and_then(Result::ok).unwrap_or_else(|| RawValue::NULL.to_owned()),
            lease_token: leased.token.text(),
            lease_until: leased.lease_until,
        }
    }
}

/// Fetch what is due, or wait for it. What is not settled in time is due again.
#[utoipa::path(post, path = "/v1/queues/{name}/lease", tag = "queues", operation_id = "lease", params(QueuePath),
    request_body = LeaseIn, responses((status = 200, body = LeaseAnswer)))]
pub async fn lease(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    let caller = caller(&request);
    checked_name(&name)?;
    let body = state.body(request, MAX_SETTLE).await?;
    let (asking, wait) = request::lease(&body.bytes, service.store.salt())?;
    drop(body);
    let given =
        service.queues.lease((service.namespace(), &name), asking, wait).await.map_err(|why| match why {
            Refused::Full => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", why.to_string()).retry_after(1)
            }
            Refused::Cold(why) => why.into(),
        })?;
    // A key that was revoked or has expired while the call waited gets nothing: what is dropped here is taken back.
    state.auth.still(caller)?;
    let items = given.items.iter().map(ItemView::new).collect();
    let bytes = Bytes::from(serde_json::to_vec(&LeaseAnswer { items }).unwrap_or_default());
    let last = if bytes.len() > MAX_HEADERS { bytes.len() - 1 } else { 0 };
    let body = Body::new(Kept { bytes, last, given: Some(given) }.boxed());
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The body of an answer with leases. If the connection does not take it, the leases are taken back.
struct Kept {
    /// What is not given to the connection yet.
    bytes: Bytes,
    /// So much of it is given first, if it is more than the connection holds ([`MAX_HEADERS`]): the last byte is asked for when
    /// the rest is written.
    last: usize,
    given: Option<Given>,
}

impl hyper::body::Body for Kept {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let first = std::mem::take(&mut self.last);
        if first > 0 {
            return Poll::Ready(Some(Ok(Frame::data(self.bytes.split_to(first)))));
        }
        // It is asked for when the connection writes.
        if let Some(given) = self.given.take() {
            given.keep();
        }
        let rest = std::mem::take(&mut self.bytes);
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// What became of each settlement.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SettleAnswer {
    /// In the order of the request.
    results: Vec<SettledView>,
}

/// What became of one settlement.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SettledView {
    /// As it was sent.
    lease_token: String,
    /// 200: it counts. 409: the token is not current. 503: the store did not take it; repeat it.
    #[schema(value_type = u16)]
    status: u16,
    /// `lease_lost`: its lease has ended, or it was settled before, or it is of another queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    code: Option<&'static str>,
}

/// Say what becomes of what was fetched.
#[utoipa::path(post, path = "/v1/queues/{name}/settle", tag = "queues", operation_id = "settle", params(QueuePath),
    request_body = SettleIn,
    responses((status = 200, body = SettleAnswer, description = "Each stands alone")))]
pub async fn settle(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let caller = caller(&request);
    let body = state.body(request, MAX_SETTLE).await?;
    let lease = service.queues.settings(service.namespace(), &name).lease.unwrap_or(DEFAULT_LEASE);
    let size = body.bytes.len();
    let settled = state.check(caller, size, move || request::settle(&body.bytes, lease)).await??;
    let (mut results, mut settlements) = (Vec::with_capacity(settled.len()), Vec::new());
    for (n, one) in settled.into_iter().enumerate() {
        results.push(SettledView { lease_token: one.text, status: 409, code: Some("lease_lost") });
        if let Some(token) = one.token {
            let settlement = Settlement {
                token,
                lane: lane(service.namespace(), &name),
                action: one.action,
                result: one.result,
            };
            settlements.push((n, settlement));
        }
    }
    let (which, settlements): (Vec<usize>, Vec<Settlement>) = settlements.into_iter().unzip();
    let answers = service.intake.settle(settlements).await;
    let mut failed = None;
    let all = answers.len();
    let mut failures = 0;
    for (n, answer) in which.into_iter().zip(answers) {
        (results[n].status, results[n].code) = match answer {
            Ok(true) => (200, None),
            Ok(false) => (409, Some("lease_lost")),
            Err(why) => {
                failures += 1;
                failed = Some(why);
                (503, Some("unavailable"))
            }
        };
    }
    match failed {
        Some(why) if failures == all && all == results.len() => Err(why.into()),
        _ => Ok(Json(SettleAnswer { results }).into_response()),
    }
}

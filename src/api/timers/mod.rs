//! `/v1/timers`: register, read, change. Here is what the handlers share.

pub mod change;
pub mod explain;
pub(in crate::api) mod fit;
pub mod many;
pub mod read;
pub mod register;
pub mod stream;

use std::sync::Arc;

use axum::extract::Request;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::ApiState;
use super::etag::tagged;
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, Context, Naming, Refused};
use super::schema;
use super::state::caller;
use super::view::{Tiers, TimerView};
use crate::cold::{NewTimer, TimerRow};
use crate::model::id::TimerId;
use crate::model::trace::Trace;
use crate::service::Service;

/// The most bytes of one timer's body: the payload, and as much again for the rest.
pub(super) const MAX_BODY: usize = 2 * request::MAX_DATA;

/// Reads the body of a registration and checks it. `again` comes from the query.
async fn new_timer(
    state: &Arc<ApiState>,
    request: Request,
    naming: Naming,
    again: bool,
) -> Result<NewTimer, Problem> {
    let (caller, trace) = (caller(&request), trace_of(request.headers()));
    let body = state.body(request, MAX_BODY).await?;
    let (all, size) = (Arc::clone(state), body.bytes.len());
    let check = move || {
        let context = context(&all, all.service()?, trace);
        Ok(request::timer(&body.bytes, naming, again, &context)?)
    };
    state.check(caller, size, check).await?
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotJson(why) => Self::new(StatusCode::BAD_REQUEST, "malformed", why),
            Refused::Fields(errors) => Self::invalid(errors),
        }
    }
}

/// The timer that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct TimerPath {
    /// The timer's id.
    #[param(value_type = schema::TimerId, example = "order-8841-review")]
    id: String,
}

fn parse_id(text: &str) -> Result<TimerId, Problem> {
    TimerId::parse(text)
        .map_err(|why| Problem::invalid(vec![FieldError::new("?id", "bad_id", why.to_string())]))
}

/// The trace that a call belongs to.
fn trace_of(headers: &HeaderMap) -> Option<Trace> {
    Trace::parse(headers.get("traceparent")?.to_str().ok()?)
}

pub(super) fn context<'a>(state: &'a ApiState, service: &'a Service, trace: Option<Trace>) -> Context<'a> {
    Context {
        now: service.store.clock().now(),
        salt: service.store.salt(),
        quotas: state.node.namespaces.quotas(service.namespace()),
        guard: state.guard(service.namespace()),
        fresh: uuid::Uuid::now_v7(),
        trace,
    }
}

/// An answer that shows a timer.
fn timer_answer(status: StatusCode, row: &TimerRow, tiers: Tiers) -> Response {
    tagged(status, row.life.version.0, &TimerView::new(row, tiers))
}

pub(super) fn bad_query(why: &QueryRejection) -> Problem {
    Problem::invalid(vec![FieldError::new("?", "bad_query", why.body_text())])
}

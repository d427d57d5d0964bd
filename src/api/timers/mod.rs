//! `/v1/timers`: register, read, change. Here is what the handlers share.

pub mod change;
pub mod explain;
pub mod many;
pub mod read;
pub mod register;
pub mod stream;

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;

use super::ApiState;
use super::problem::{FieldError, Problem};
use super::request::{self, Context, Refused};
use super::schema;
use super::view::{Tiers, TimerView};
use crate::cold::TimerRow;
use crate::model::id::TimerId;
use crate::model::trace::Trace;
use crate::service::Service;

/// The most bytes of one timer's body: the payload, and as much again for the rest.
const MAX_BODY: usize = 2 * request::MAX_DATA;
/// How long a body may take to arrive.
const BODY_WAIT: Duration = Duration::from_secs(30);

type ApiResult = Result<Response, Problem>;

/// Reads a body of at most `most` bytes.
async fn body(body: Body, most: usize) -> Result<Bytes, Problem> {
    match tokio::time::timeout(BODY_WAIT, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(why)) => {
            let too_long =
                std::error::Error::source(&why).is_some_and(|cause| cause.is::<LengthLimitError>());
            if too_long {
                let detail = format!("the body is over {most} bytes");
                return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
            }
            Err(Problem::new(StatusCode::BAD_REQUEST, "body_broken", "the body did not arrive whole"))
        }
        Err(_) => {
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive within 30 s"))
        }
    }
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

fn context<'a>(state: &'a ApiState, service: &'a Service, trace: Option<Trace>) -> Context<'a> {
    Context {
        now: service.store.clock().now(),
        namespace: service.store.namespace(),
        guard: &state.guard,
        fresh: uuid::Uuid::now_v7(),
        trace,
    }
}

/// An answer that shows a timer.
fn timer_answer(status: StatusCode, row: &TimerRow, tiers: Tiers) -> Response {
    let mut response = (status, Json(TimerView::new(row, tiers))).into_response();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", row.life.version)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

fn bad_query(why: &QueryRejection) -> Problem {
    Problem::invalid(vec![FieldError::new("?", "bad_query", why.body_text())])
}

//! Errors as `application/problem+json` (RFC 9457), with a stable code and a pointer to each field that is not valid.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::cold::Error as ColdError;
use crate::service::keys::Refusal;
use crate::writer::{ChangeError, NotTaken};

/// What a handler answers.
pub type ApiResult = Result<Response, Problem>;

/// One thing that is wrong in a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct FieldError {
    /// JSON pointer into the body, or `?name` for a parameter in path, query or header.
    pub pointer: String,
    /// Stable word for programs.
    pub code: &'static str,
    /// What is wrong and what would be right.
    pub detail: String,
}

impl FieldError {
    /// An error at `pointer`.
    pub fn new(pointer: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Self {
        Self { pointer: cut(pointer.into()), code, detail: cut(detail.into()) }
    }
}

/// At most about a kilobyte: names in a request may be long, and an answer for each of many items repeats them.
fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_TOLD).filter(|_| text.len() > MAX_TOLD) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The most characters of a request that an error repeats.
const MAX_TOLD: usize = 1000;

/// An error answer.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Problem {
    /// `urn:mainspring:problem:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
    /// Stable word for programs.
    pub code: &'static str,
    /// The fields that are not valid, if the error is about the request's content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The `x-request-id` of this answer.
    pub request_id: String,
    #[serde(skip)]
    retry_after: Option<u32>,
    /// Why, for the log only: it may hold addresses and names.
    #[serde(skip)]
    why: Option<String>,
}

impl Problem {
    /// A problem with this status and code.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:mainspring:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            code,
            errors: Vec::new(),
            request_id: String::new(),
            retry_after: None,
            why: None,
        }
    }

    /// Adds `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Adds the cause, which is logged with the answer and not sent.
    #[must_use]
    pub fn because(mut self, why: impl std::fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// 429: a quota admits no more; or 422, where a namespace's quota admits no such call and waiting does not help.
    pub fn over(why: Refusal) -> Self {
        let status = match why.is_for_good() {
            true => StatusCode::UNPROCESSABLE_ENTITY,
            false => StatusCode::TOO_MANY_REQUESTS,
        };
        let problem = Self::new(status, why.code, why.detail);
        match why.retry_after {
            Some(seconds) => problem.retry_after(seconds),
            None => problem,
        }
    }

    /// 422, or 413 if one of the errors is a size.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let too_large = errors.iter().any(|error| error.code == "too_large");
        let (status, code) = if too_large {
            (StatusCode::PAYLOAD_TOO_LARGE, "too_large")
        } else {
            (StatusCode::UNPROCESSABLE_ENTITY, "invalid")
        };
        let detail = match errors.as_slice() {
            [one] if one.pointer.is_empty() => one.detail.clone(),
            [one] => format!("{}: {}", one.pointer, one.detail),
            many => format!("{} fields are not valid; see errors", many.len()),
        };
        Self { errors, ..Self::new(status, code, detail) }
    }

    /// 404 for a timer.
    pub fn no_timer(id: &str) -> Self {
        let shown: String = id.chars().take(128).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no timer `{shown}`, live or within history"),
        )
    }

    /// 404 for something else, by its name or id.
    pub fn no_such(what: &str, name: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what} `{name}`"))
    }

    /// 422: there are `most` already; `what` is their plural.
    pub fn too_many(most: impl std::fmt::Display, what: &str) -> Self {
        let detail = format!("there are {most} {what}, which is as many as there may be");
        Self::invalid(vec![FieldError::new("", "too_many", detail)])
    }

    /// 412: it is of another version than the caller expects.
    pub fn other_version(what: &str, version: i32) -> Self {
        let detail = match version {
            0 => format!("there is no such {what}; leave `If-Match` out to make it"),
            _ => format!("the {what}'s version is \"{version}\"; read it again and decide anew"),
        };
        Self::new(StatusCode::PRECONDITION_FAILED, "version_changed", detail)
    }

    /// 503: the cold store has not answered since the start.
    pub fn starting() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "starting",
            "the cold store has not answered yet; the service goes on trying",
        )
        .retry_after(1)
    }
}

impl From<ColdError> for Problem {
    fn from(why: ColdError) -> Self {
        if matches!(why, ColdError::NoNamespace) {
            let detail = "this namespace was removed just now";
            return Self::invalid(vec![FieldError::new("", "unknown_namespace", detail)]);
        }
        if why.is_data() {
            let detail = "the database cannot hold a value of this request";
            return Self::invalid(vec![FieldError::new("", "refused", detail)]).because(why);
        }
        let detail = match &why {
            ColdError::Full | ColdError::Busy => why.to_string(),
            ColdError::ReadOnly(_) => "the cold store cannot be written".to_owned(),
            ColdError::Ambiguous(_) => {
                "the cold store broke off during the commit: whether this was kept is not known; repeat the call, \
                 with the same id or Idempotency-Key"
                    .to_owned()
            }
            _ => "the cold store cannot commit now".to_owned(),
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", detail).retry_after(1).because(why)
    }
}

impl From<ChangeError> for Problem {
    fn from(why: ChangeError) -> Self {
        match why {
            ChangeError::NotTaken(why) => why.into(),
            ChangeError::Cold(why) => why.into(),
        }
    }
}

impl From<NotTaken> for Problem {
    fn from(why: NotTaken) -> Self {
        let (code, detail) = match why {
            NotTaken::Full => ("overloaded", "more is waiting to be committed than the store keeps up with"),
            NotTaken::Stopping => ("stopping", "this node is stopping"),
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(1)
    }
}

impl IntoResponse for Problem {
    /// Carries the problem as an extension; [`finish`] writes it, with the request's id.
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Logs a call that failed, with the id of its request. A defect is an error. What passes by itself (the store is away,
/// the node is stopping) is logged at `info`: one warning says so for the whole outage.
pub fn log_failure(response: &Response, request_id: &str, method: &str, route: &str) {
    let status = response.status();
    let problem = response.extensions().get::<Problem>();
    let (code, why) = problem.map_or(("", None), |problem| (problem.code, problem.why.as_deref()));
    let is_server_error = status.is_server_error();
    let status = status.as_u16();
    match status {
        // A health check says how the node is; that is no failure of the check.
        503 if problem.is_none() => {}
        503 => tracing::info!(request_id, method, route, status, code, why, "a call was not served"),
        _ if is_server_error => {
            tracing::error!(request_id, method, route, status, code, why, "a call failed")
        }
        // A defect too, although the caller is told to mend the request.
        _ if why.is_some() => tracing::warn!(
            request_id,
            method,
            route,
            status,
            code,
            why,
            "a value passed the checks and the database refused it"
        ),
        _ => {}
    }
}

/// Gives every error answer the shape of a problem, whichever layer it came from, and every answer its request id.
pub fn finish(mut response: Response, request_id: &str) -> Response {
    let status = response.status();
    let problem = response.extensions_mut().remove::<Problem>();
    if status.is_client_error() || status.is_server_error() {
        // The page's errors are pages.
        let ours = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/json" || kind.as_bytes().starts_with(b"text/html"));
        if problem.is_some() || !ours {
            let mut problem = problem.unwrap_or_else(|| generic(status));
            problem.request_id = request_id.to_owned();
            let retry_after = problem.retry_after;
            let (mut parts, _) = response.into_parts();
            let json = Json(problem).into_response();
            parts.headers.remove(header::CONTENT_LENGTH);
            parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
            if let Some(seconds) = retry_after {
                parts.headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response = Response::from_parts(parts, Body::new(json.into_body()));
        }
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

fn generic(status: StatusCode) -> Problem {
    match status {
        StatusCode::NOT_FOUND => {
            Problem::new(status, "not_found", "there is nothing at this path; see /docs")
        }
        StatusCode::BAD_REQUEST => {
            Problem::new(status, "malformed", "the path or query of the request is not UTF-8")
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            Problem::new(status, "method_not_allowed", "this path does not know that method; see /docs")
        }
        StatusCode::REQUEST_TIMEOUT => {
            Problem::new(status, "timeout", "the request did not arrive, or was not answered, in time")
        }
        _ => Problem::new(status, "error", status.canonical_reason().unwrap_or("the request failed")),
    }
}

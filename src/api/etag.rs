//! Versions as entity tags: each change of a thing gives it another, and a call may say which one it expects.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::model::id::Version;

/// An answer whose `ETag` is a version.
pub(super) fn tagged(status: StatusCode, version: i32, view: &impl Serialize) -> Response {
    let mut response = (status, Json(view)).into_response();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// The version that a call wants to find (`If-Match`); `None` for any.
pub(super) fn if_match(headers: &HeaderMap) -> Option<Version> {
    let text = headers.get(header::IF_MATCH)?.to_str().unwrap_or_default().trim();
    // No answer ever carried a tag of another form, so it matches nothing.
    (text != "*").then(|| Version(text.trim_matches('"').parse().unwrap_or(-1)))
}

/// Whether a call wants to find any version (`If-Match: *`).
pub(super) fn wants_any(headers: &HeaderMap) -> bool {
    headers.get(header::IF_MATCH).is_some_and(|tag| tag.as_bytes().trim_ascii() == b"*")
}

//! What calls on things that have a name of the caller's share: destinations and subscriptions.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::{FieldError, Problem};
use super::schema;
use crate::model::destination::is_name;

/// The most bytes of a body.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// The answer to a removal.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RemovedAnswer {
    #[schema(value_type = schema::RemovedWord)]
    outcome: &'static str,
}

/// The answer to a removal that was done.
pub(super) fn removed() -> Response {
    Json(RemovedAnswer { outcome: "removed" }).into_response()
}

/// Fails with 422 if no thing can have this name.
pub(super) fn checked_name(name: &str) -> Result<(), Problem> {
    if is_name(name) {
        return Ok(());
    }
    let detail = "1 to 64 of A-Z a-z 0-9 . _ -, not a dot first";
    Err(Problem::invalid(vec![FieldError::new("?name", "bad_name", detail)]))
}

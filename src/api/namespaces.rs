//! `/v1/namespaces`: which teams share the store, and what each may use. And which one a call is about.

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::auth::Caller;
use super::etag::tagged;
use super::named::{MAX_BODY, RemovedAnswer, removed};
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, NamespaceIn};
use super::schema;
use super::{ApiState, Within};
use crate::cold::{MAX_NAMESPACES, NamespaceRemoved, NamespaceRow, NamespaceWritten};
use crate::model::namespace::{Namespace, is_name};
use crate::model::networks::Network;
use crate::model::time::{Span, UnixMs};

/// By this header a caller with a key of all namespaces says which one his call is about.
pub const HEADER: &str = "x-mainspring-namespace";

/// The namespace that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct NamespacePath {
    /// The namespace's name.
    #[param(value_type = schema::NamespaceName, example = "billing")]
    name: String,
}

/// A namespace in an answer.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NamespaceView {
    #[schema(value_type = schema::NamespaceName)]
    name: String,
    /// What stands before its names where all namespaces are shown together, as in metrics: `7/orders`. 0 is the store's own,
    /// whose names stand alone.
    #[schema(minimum = 0, maximum = 32767)]
    number: i16,
    quotas: QuotasView,
    networks: NetworksView,
    /// Rises with every change; also the `ETag`. 0: nothing was ever said of it.
    #[schema(minimum = 0)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
}

/// What a namespace may use; `null` is no limit of its own.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = QuotasNow)]
pub struct QuotasView {
    #[schema(required, value_type = Option<u32>)]
    requests_per_second: Option<u32>,
    #[schema(required, value_type = Option<u64>)]
    live_timers: Option<u64>,
    #[schema(required, value_type = Option<usize>)]
    payload_bytes: Option<usize>,
    #[schema(required, value_type = Option<schema::Duration>)]
    horizon: Option<Span>,
    #[schema(required, value_type = Option<u32>)]
    due_per_second: Option<u32>,
}

/// Where a namespace may send to. With nothing in `allow`: wherever the settings of the service allow.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = NetworksNow)]
pub struct NetworksView {
    #[schema(value_type = Vec<schema::Network>)]
    allow: Vec<Network>,
    #[schema(value_type = Vec<schema::Network>)]
    deny: Vec<Network>,
}

/// The namespaces.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NamespacesAnswer {
    items: Vec<NamespaceView>,
}

impl NamespaceView {
    fn new(row: &NamespaceRow) -> Self {
        let quotas = &row.terms.quotas;
        Self {
            name: row.name.clone(),
            number: row.number.0,
            quotas: QuotasView {
                requests_per_second: quotas.requests_per_second,
                live_timers: quotas.live_timers,
                payload_bytes: quotas.payload_bytes,
                horizon: quotas.horizon,
                due_per_second: quotas.due_per_second,
            },
            networks: NetworksView {
                allow: row.terms.networks.allow.clone(),
                deny: row.terms.networks.deny.clone(),
            },
            version: row.version,
            created_at: row.created_at,
        }
    }
}

fn answer(status: StatusCode, row: &NamespaceRow) -> Response {
    tagged(status, row.version, &NamespaceView::new(row))
}

fn checked(name: &str) -> Result<(), Problem> {
    match is_name(name) {
        true => Ok(()),
        false => {
            let detail = "1 to 64 of A-Z a-z 0-9 . _ -, not a dot first";
            Err(Problem::invalid(vec![FieldError::new("?name", "bad_name", detail)]))
        }
    }
}

fn no_such(name: &str) -> Problem {
    Problem::no_such("namespace", name)
}

/// The namespace that a call is about: that of the key, or with one of all the one that the header names.
pub(super) async fn chosen(state: &ApiState, caller: Caller, headers: &HeaderMap) -> Result<Caller, Problem> {
    let Some(name) = headers.get(HEADER) else { return Ok(caller) };
    let name = name.to_str().unwrap_or_default();
    // Whether there is one of this name is not for a key of another to know.
    if let Some(own) = caller.key_of {
        let is_own = state.node.namespaces.get(own).is_some_and(|row| row.name == name);
        return match is_own {
            true => Ok(caller),
            false => {
                let detail = "this key is of another namespace; leave X-Mainspring-Namespace out";
                Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail))
            }
        };
    }
    match state.node.namespaces.find(name).await? {
        Some(row) => Ok(Caller { namespace: row.number, ..caller }),
        None => {
            let detail = "there is no namespace of this name; `GET /v1/namespaces` lists them";
            let pointer = "header:X-Mainspring-Namespace";
            Err(Problem::invalid(vec![FieldError::new(pointer, "unknown_namespace", detail)]))
        }
    }
}

/// The namespaces of the store, by name. Its own is among them.
#[utoipa::path(get, path = "/v1/namespaces", tag = "namespaces", operation_id = "namespaces",
    responses((status = 200, body = NamespacesAnswer)))]
pub async fn list(Within(state): Within) -> ApiResult {
    let rows = state.service()?.store.namespaces().await?;
    Ok(Json(NamespacesAnswer { items: rows.iter().map(NamespaceView::new).collect() }).into_response())
}

/// One namespace.
#[utoipa::path(get, path = "/v1/namespaces/{name}", tag = "namespaces", operation_id = "namespace", params(NamespacePath),
    responses((status = 200, body = NamespaceView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    checked(&name)?;
    let rows = state.service()?.store.namespaces().await?;
    let row = rows.iter().find(|row| row.name == name).ok_or_else(|| no_such(&name))?;
    Ok(answer(StatusCode::OK, row))
}

/// Make a namespace, or say anew what one may use. What is left out has no limit.
#[utoipa::path(put, path = "/v1/namespaces/{name}", tag = "namespaces", operation_id = "put_namespace",
    params(NamespacePath), request_body = NamespaceIn,
    responses((status = 201, body = NamespaceView, description = "New"),
        (status = 200, body = NamespaceView, description = "It holds on every node within two seconds"),
        (status = 409, body = Problem, description = "older_nodes: nodes of a version without namespaces are running")))]
pub async fn put(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    checked(&name)?;
    let body = state.body(request, MAX_BODY).await?;
    let terms = request::namespace(&body.bytes)?;
    let written = state.service()?.store.put_namespace(&name, &terms).await?;
    let _ = state.node.namespaces.read().await;
    match written {
        NamespaceWritten::Done(row, true) => Ok(answer(StatusCode::CREATED, &row)),
        NamespaceWritten::Done(row, false) => Ok(answer(StatusCode::OK, &row)),
        NamespaceWritten::Full => Err(Problem::too_many(MAX_NAMESPACES, "namespaces")),
        NamespaceWritten::OlderNodes(names) => {
            let names = names.join(", ");
            let detail = format!(
                "nodes of a version that knows no namespaces are running: {names}; upgrade them first"
            );
            Err(Problem::new(StatusCode::CONFLICT, "older_nodes", detail))
        }
    }
}

/// Remove a namespace that has no live timer, no schedule, no running operation and no key. Its destinations, queues,
/// templates and subscriptions go with it.
#[utoipa::path(delete, path = "/v1/namespaces/{name}", tag = "namespaces", operation_id = "remove_namespace",
    params(NamespacePath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_use: the detail says what it has; own_namespace: the store was made with it")))]
pub async fn remove(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    checked(&name)?;
    let gone = state.service()?.store.remove_namespace(&name).await?;
    let _ = state.node.namespaces.read().await;
    match gone {
        NamespaceRemoved::Done => Ok(removed()),
        NamespaceRemoved::NoSuch => Err(no_such(&name)),
        NamespaceRemoved::InUse(what) => {
            let detail = format!("`{name}` has {what}; end or remove these first");
            Err(Problem::new(StatusCode::CONFLICT, "in_use", detail))
        }
        NamespaceRemoved::Own => {
            let detail = "the store was made with this namespace, which stays";
            Err(Problem::new(StatusCode::CONFLICT, "own_namespace", detail))
        }
    }
}

/// The name of a namespace, or `*` for all.
pub(super) fn shown(state: &ApiState, of: Option<Namespace>) -> String {
    let Some(number) = of else { return request::ALL_NAMESPACES.to_owned() };
    state.node.namespaces.get(number).map_or_else(|| number.0.to_string(), |row| row.name.clone())
}

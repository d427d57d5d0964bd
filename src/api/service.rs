//! Health, metrics, nodes and the ledger.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::auth::Caller;
use super::namespaces::HEADER;
use super::problem::Problem;
use super::schema;
use super::{ApiState, Within};
use crate::cold::{Held, Ledger, NodeRow, Whose};
use crate::dispatch::ReceiverLoad;
use crate::model::time::{Span, UnixMs};

/// How long the readiness check waits for the cold store.
const CHECK_WAIT: Duration = Duration::from_secs(2);

/// The answer of a health check.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Health {
    #[schema(value_type = schema::HealthWord)]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Checks, required = false)]
    checks: Option<Checks>,
}

/// What `/readyz` found: `ok`, or what is wrong, in words.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Checks {
    cold_store: String,
    wheels: String,
    /// Only while something is held since the cold store was restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<String>,
}

impl Health {
    const fn plain(status: &'static str) -> Self {
        Self { status, checks: None }
    }
}

/// The process runs.
#[utoipa::path(get, path = "/livez", tag = "service",
    responses((status = 200, body = Health, description = "It runs")))]
pub async fn livez() -> Json<Health> {
    Json(Health::plain("ok"))
}

/// It can serve.
#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200, body = Health, description = "It can serve; `degraded` while the wheels are away or short"),
        (status = 503, body = Health, description = "Without the cold store, or stopping")))]
pub async fn readyz(State(state): State<Arc<ApiState>>) -> Response {
    let store = match state.node.service() {
        None => "not reached yet",
        Some(service) => match tokio::time::timeout(CHECK_WAIT, service.store.ping()).await {
            Ok(Ok(())) if state.node.can_write() => "ok",
            Ok(Ok(())) => "answers, but cannot be written",
            _ => "unavailable",
        },
    };
    let shards = usize::from(state.node.config.shards);
    let wheels = match state.node.service() {
        None => "not reached yet",
        Some(_) if !state.node.config.wheel.enabled => "off: timers fire from SQL, up to a second late",
        Some(service) => match service.positions.unreachable().len() {
            0 if service.positions.reach.is_short() => &format!(
                "reach {} ahead instead of {}: Redis has no room for more",
                Span::from_duration(service.positions.reach.get()),
                state.node.config.wheel.window
            ),
            0 => "ok",
            away if away < shards => &format!(
                "unavailable for {away} of {shards} shards: their timers fire from SQL, up to a second late"
            ),
            _ => "unavailable: timers fire from SQL, up to a second late",
        },
    };
    let held = state.node.service().and_then(|service| service.store.held()).filter(Held::is_open);
    let restored = held.map(|held| {
        format!(
            "restored as of {}: what fell due since is held until `mainspring restore accept`",
            held.from.rfc3339()
        )
    });
    let stopping = state.node.is_stopping();
    let ready = store == "ok" && !stopping;
    let status = match (ready, stopping, wheels) {
        (true, _, "ok") if restored.is_none() => "ok",
        (true, ..) => "degraded",
        (false, true, _) => "stopping",
        (false, false, _) => "unavailable",
    };
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let checks = Checks { cold_store: store.to_owned(), wheels: wheels.to_owned(), restored };
    (code, Json(Health { status, checks: Some(checks) })).into_response()
}

/// It has recovered: shards are owned and everything overdue has been looked at once.
#[utoipa::path(get, path = "/startupz", tag = "service",
    responses((status = 200, body = Health, description = "Recovered"),
        (status = 503, body = Health, description = "Not yet")))]
pub async fn startupz(State(state): State<Arc<ApiState>>) -> Response {
    if state.node.has_recovered() {
        Json(Health::plain("ok")).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(Health::plain("starting"))).into_response()
    }
}

/// Prometheus text.
#[utoipa::path(get, path = "/metrics", tag = "service",
    responses((status = 200, body = String, content_type = "text/plain", description = "Prometheus text")))]
pub async fn metrics(State(state): State<Arc<ApiState>>) -> Response {
    if let Some(service) = state.node.service() {
        service.observer.refresh();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], state.node.metrics.text()).into_response()
}

/// The ledger of the namespace: registered = delivered + cancelled + expired + dead + pending. With a key of all namespaces
/// that names none it is the whole store's.
#[utoipa::path(get, path = "/v1/ledger", tag = "service", responses((status = 200, body = Ledger)))]
pub async fn ledger(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let is_of_all = caller.is_of_all() && !headers.contains_key(HEADER);
    let of = if is_of_all { Whose::All } else { Whose::One(caller.namespace) };
    Ok(Json(state.service()?.store.ledger(of).await?).into_response())
}

/// The nodes of the store.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NodesAnswer {
    items: Vec<NodeView>,
}

/// One node.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NodeView {
    /// Whether it is the node that answers.
    me: bool,
    name: String,
    /// Where its API listens.
    address: String,
    version: String,
    #[schema(value_type = schema::Moment)]
    started_at: UnixMs,
    /// Its last sign of life.
    #[schema(value_type = schema::Moment)]
    beat_at: UnixMs,
    /// The shards that it owns.
    shards: Vec<i32>,
}

/// The nodes that share the work.
#[utoipa::path(get, path = "/v1/nodes", tag = "service", responses((status = 200, body = NodesAnswer)))]
pub async fn nodes(State(state): State<Arc<ApiState>>) -> Result<Response, Problem> {
    let service = state.service()?;
    let me = &service.ownership.me().name;
    let view = |node: NodeRow| NodeView {
        me: node.name == *me,
        name: node.name,
        address: node.address,
        version: node.version,
        started_at: node.started_at,
        beat_at: node.beat_at,
        shards: node.shards,
    };
    let items = service.store.nodes().await?.into_iter().map(view).collect();
    Ok(Json(NodesAnswer { items }).into_response())
}

/// The receivers of inline webhooks.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ReceiversAnswer {
    items: Vec<ReceiverView>,
}

/// One receiver, all nodes together.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ReceiverView {
    /// Scheme, host and port.
    receiver: String,
    #[schema(value_type = schema::ReceiverState)]
    state: &'static str,
    /// Since when.
    #[schema(value_type = schema::Moment)]
    since: UnixMs,
    /// Attempts that ended, a second, over about the last ten seconds.
    rate: f64,
    /// Claimed timers whose attempt has not ended.
    in_flight: usize,
    /// Due timers that wait for room.
    waiting: usize,
    /// Why the last attempt that failed did so.
    #[schema(required)]
    last_error: Option<String>,
    /// When that was.
    #[schema(required, value_type = Option<schema::Moment>)]
    last_error_at: Option<UnixMs>,
}

/// The receivers of inline webhooks, worst first: those that this node has sent to since its start, and the worst
/// hundred of each other node.
#[utoipa::path(get, path = "/v1/receivers", tag = "service", responses((status = 200, body = ReceiversAnswer)))]
pub async fn receivers(State(state): State<Arc<ApiState>>) -> Result<Response, Problem> {
    let view = |one: ReceiverLoad| {
        let (last_error, last_error_at) = one.last_error.map(|error| (error.detail, error.at)).unzip();
        ReceiverView {
            receiver: one.receiver,
            state: if one.failing { "failing" } else { "ok" },
            since: one.since,
            rate: one.rate,
            in_flight: one.in_flight,
            waiting: one.waiting,
            last_error,
            last_error_at,
        }
    };
    let receivers = state.service()?.observer.receivers().await?.into_iter();
    let items = receivers.filter(|one| !one.is_destination).map(view).collect();
    Ok(Json(ReceiversAnswer { items }).into_response())
}

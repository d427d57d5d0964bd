//! Health, metrics, nodes and the ledger.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::ApiState;
use super::problem::Problem;
use crate::cold::Ledger;

/// How long the readiness check waits for the cold store.
const CHECK_WAIT: Duration = Duration::from_secs(2);

/// The process runs.
#[utoipa::path(get, path = "/livez", tag = "service", responses((status = 200, description = "It runs")))]
pub async fn livez() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

/// It can serve.
#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200, description = "It can serve; `degraded` while the wheels are away"), (status = 503, description = "Without the cold store, or stopping")))]
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
        Some(service) => match service.positions.away().len() {
            0 => "ok",
            away if away < shards => &format!(
                "unavailable for {away} of {shards} shards: their timers fire from SQL, up to a second late"
            ),
            _ => "unavailable: timers fire from SQL, up to a second late",
        },
    };
    let stopping = state.node.is_stopping();
    let ready = store == "ok" && !stopping;
    let status = match (ready, stopping, wheels) {
        (true, _, "ok") => "ok",
        (true, ..) => "degraded",
        (false, true, _) => "stopping",
        (false, false, _) => "unavailable",
    };
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let checks = json!({ "cold_store": store, "wheels": wheels });
    (code, Json(json!({ "status": status, "checks": checks }))).into_response()
}

/// It has recovered: shards are owned and everything overdue has been looked at once.
#[utoipa::path(get, path = "/startupz", tag = "service",
    responses((status = 200, description = "Recovered"), (status = 503, description = "Not yet")))]
pub async fn startupz(State(state): State<Arc<ApiState>>) -> Response {
    if state.node.has_recovered() {
        Json(json!({ "status": "ok" })).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "starting" }))).into_response()
    }
}

/// Prometheus text.
#[utoipa::path(get, path = "/metrics", tag = "service", responses((status = 200, description = "Prometheus text")))]
pub async fn metrics(State(state): State<Arc<ApiState>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], state.node.metrics.text()).into_response()
}

/// registered = delivered + cancelled + expired + dead + pending.
#[utoipa::path(get, path = "/v1/ledger", tag = "service", responses((status = 200, body = Ledger)))]
pub async fn ledger(State(state): State<Arc<ApiState>>) -> Result<Response, Problem> {
    Ok(Json(state.service()?.store.ledger().await?).into_response())
}

/// The nodes that share the work.
#[utoipa::path(get, path = "/v1/nodes", tag = "service",
    responses((status = 200, description = "{\"items\": [{name, address, version, started_at, beat_at, shards}]}")))]
pub async fn nodes(State(state): State<Arc<ApiState>>) -> Result<Response, Problem> {
    let service = state.service()?;
    let me = &service.ownership.me().name;
    let items: Vec<_> = service
        .store
        .nodes()
        .await?
        .into_iter()
        .map(|node| {
            json!({
                "me": node.name == *me,
                "name": node.name,
                "address": node.address,
                "version": node.version,
                "started_at": node.started_at,
                "beat_at": node.beat_at,
                "shards": node.shards,
            })
        })
        .collect();
    Ok(Json(json!({ "items": items })).into_response())
}

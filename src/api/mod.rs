//! The REST door: routes, limits, keys, and one shape for every error.

mod auth;
mod document;
mod linger;
mod problem;
pub mod request;
mod service;
mod state;
mod timers;
mod view;
mod wheels;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::clock::Monotonic;
use crate::service::Node;
use crate::sink::guard::Guard;
use auth::{Auth, Caller};
use problem::Problem;
pub use state::ApiState;

/// How long a client may take to send its headers; also how long an idle connection is kept.
const HEADER_WAIT: Duration = Duration::from_secs(30);

/// The most bytes of headers.
const MAX_HEADERS: usize = 32 * 1024;

/// How long a call may take until its answer begins.
const CALL_WAIT: Duration = Duration::from_secs(60);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Mainspring",
        description = "A durable alarm-clock service: register a wake-up, be called back at the right second. \
                       Errors are application/problem+json with a stable `code`."
    ),
    tags((name = "timers", description = "One future firing each"), (name = "service", description = "Health, ledger, nodes"))
)]
struct Doc;

fn documented() -> OpenApiRouter<Arc<ApiState>> {
    OpenApiRouter::with_openapi(Doc::openapi())
        .routes(routes!(timers::register::post, timers::read::list))
        .routes(routes!(timers::many::batch))
        .routes(routes!(timers::stream::stream))
        .routes(routes!(
            timers::register::put,
            timers::read::get,
            timers::change::patch,
            timers::change::cancel
        ))
        .routes(routes!(timers::change::fire))
        .routes(routes!(timers::read::attempts))
        .routes(routes!(timers::explain::explain))
        .routes(routes!(service::ledger))
        .routes(routes!(service::nodes))
        .routes(routes!(wheels::wheels))
        .routes(routes!(service::livez))
        .routes(routes!(service::readyz))
        .routes(routes!(service::startupz))
        .routes(routes!(service::metrics))
}

/// The routes and the OpenAPI document that describes them.
fn routes_and_document() -> (Router<Arc<ApiState>>, utoipa::openapi::OpenApi) {
    let (routes, mut document) = documented().split_for_parts();
    document::complete(&mut document);
    (routes, document)
}

/// The OpenAPI document, as `/openapi.json` serves it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes_and_document().1
}

/// All routes. What has no end of its own ends when `closing` does.
fn router(node: Arc<Node>, closing: CancellationToken) -> Router {
    let state = Arc::new(ApiState {
        auth: Auth::new(&node.config.server),
        guard: Guard::new(Arc::clone(&node.config)),
        node,
        closing,
    });
    let (routes, document) = routes_and_document();
    // Left to itself the page tells a validator on the net where this server is.
    let page = utoipa_swagger_ui::Config::from("/openapi.json").validator_url("none");
    let page = utoipa_swagger_ui::SwaggerUi::new("/docs").config(page);
    routes
        .merge(page)
        .route("/openapi.json", axum::routing::get(move || async move { Json(document) }))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(middleware::from_fn_with_state(Arc::clone(&state), admit))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), observe))
        .with_state(state)
}

/// Checks the key of every call but the health checks and metrics, and charges it.
async fn admit(
    State(state): State<Arc<ApiState>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if matches!(request.uri().path(), "/livez" | "/readyz" | "/startupz" | "/metrics") {
        return Ok(next.run(request).await);
    }
    let caller = state.auth.check(request.headers())?;
    if request.uri().path().starts_with("/v1/") && !request.method().is_safe() {
        state.auth.charge(&caller, 1)?;
    }
    request.extensions_mut().insert(caller);
    match tokio::time::timeout(CALL_WAIT, next.run(request)).await {
        Ok(response) => Ok(response),
        Err(_) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "not answered within 60 s")
            .retry_after(1)),
    }
}

/// Names the request, measures it, and gives errors their shape.
async fn observe(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let began = Monotonic::now();
    let request_id = request
        .headers()
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .filter(|id| (1..=128).contains(&id.len()))
        .map_or_else(|| format!("req_{}", uuid::Uuid::now_v7().simple()), str::to_owned);
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let method = request.method().clone();
    let response = problem::finish(next.run(linger::lingering(request)).await, &request_id);
    let metrics = &state.node.metrics;
    let method = match method.as_str() {
        known @ ("GET" | "PUT" | "POST" | "PATCH" | "DELETE") => known,
        _ => "other",
    };
    metrics.requests.with_label_values(&[route.as_str(), method, response.status().as_str()]).inc();
    metrics.request_seconds.with_label_values(&[route.as_str()]).observe(began.elapsed().as_secs_f64());
    if response.status().is_server_error() {
        tracing::debug!(request_id, route, status = response.status().as_u16(), "answered with an error");
    }
    response
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a handler panicked");
    axum::response::IntoResponse::into_response(Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the service failed at this request; the failure is logged",
    ))
}

/// Accepts connections until `closing`, then lets each finish the call it is in.
pub async fn serve(listener: TcpListener, node: Arc<Node>, closing: CancellationToken) {
    let places = Arc::new(Semaphore::new(node.config.server.max_connections));
    let router = router(node, closing.clone());
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(MAX_HEADERS);
    loop {
        let place = tokio::select! {
            () = closing.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let stream = tokio::select! {
            () = closing.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(why) => {
                    // Out of file descriptors, most likely: wait for some to be closed.
                    tracing::warn!(%why, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        // Small answers go out at once; a failure to ask for that costs only latency.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // A client that breaks off is its own affair.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

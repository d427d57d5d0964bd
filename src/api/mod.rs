//! The REST API: routes, limits, keys, and one shape for every error.

mod auth;
mod document;
mod drain;
mod forecast;
mod page;
mod problem;
pub mod request;
mod schema;
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
use crate::telemetry::Rarely;
use auth::{Auth, Caller};
use problem::Problem;
pub use state::ApiState;

/// How long a client may take to send its headers; also how long an idle connection is kept.
const HEADER_WAIT: Duration = Duration::from_secs(30);

/// The most bytes of headers that one request may have.
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
        .routes(routes!(service::receivers))
        .routes(routes!(forecast::forecast))
        .routes(routes!(wheels::wheels))
        .routes(routes!(wheels::watch))
        .routes(routes!(service::livez))
        .routes(routes!(service::readyz))
        .routes(routes!(service::startupz))
        .routes(routes!(service::metrics))
}

/// All routes: the API, and `pages`, which answer for themselves who may see them. Streams end when `closing` is
/// cancelled.
fn router(node: Arc<Node>, pages: Router, closing: CancellationToken) -> Router {
    let state = Arc::new(ApiState {
        auth: Auth::new(Arc::clone(&node.keys)),
        guard: Guard::new(Arc::clone(&node.config)),
        node,
        closing,
    });
    let (routes, document) = documented().split_for_parts();
    let document = document::completed(&document);
    routes
        .merge(page::routes())
        .route("/openapi.json", axum::routing::get(move || async move { Json(document) }))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(middleware::from_fn_with_state(Arc::clone(&state), admit))
        .with_state(Arc::clone(&state))
        .merge(pages)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(state, observe))
}

/// Checks the key of every call but the health checks and metrics, and charges it for writes.
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

/// The id of a request, for log lines about a part of it.
#[derive(Clone)]
struct RequestId(Arc<str>);

/// Gives the request its id, measures it, logs it if it fails, and gives errors their shape.
async fn observe(State(state): State<Arc<ApiState>>, mut request: Request, next: Next) -> Response {
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
    if matches!(route.as_str(), "/v1/timers/batch" | "/v1/timers/stream") {
        request.extensions_mut().insert(RequestId(request_id.as_str().into()));
    }
    let answered = next.run(drain::drained_on_drop(request)).await;
    problem::log_failure(&answered, &request_id, method.as_str(), &route);
    let response = problem::finish(answered, &request_id);
    let metrics = &state.node.metrics;
    let method = match method.as_str() {
        known @ ("GET" | "PUT" | "POST" | "PATCH" | "DELETE") => known,
        _ => "other",
    };
    metrics.requests.with_label_values(&[route.as_str(), method, response.status().as_str()]).inc();
    metrics.request_seconds.with_label_values(&[route.as_str()]).observe(began.elapsed().as_secs_f64());
    response
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    axum::response::IntoResponse::into_response(Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the service failed at this request; the failure is logged",
    ))
}

/// Serves the API and `pages`: accepts connections until `closing` is cancelled, then lets each finish its current call.
pub async fn serve(listener: TcpListener, node: Arc<Node>, pages: Router, closing: CancellationToken) {
    let permits = Arc::new(Semaphore::new(node.config.server.max_connections));
    let router = router(node, pages, closing.clone());
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    let mut refused_logged = Rarely::default();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(MAX_HEADERS);
    loop {
        let permit = tokio::select! {
            () = closing.cancelled() => break,
            permit = Arc::clone(&permits).acquire_owned() => permit,
        };
        let stream = tokio::select! {
            () = closing.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(why) => {
                    // Most likely the process is out of file descriptors: wait until some are closed.
                    if refused_logged.is_due() {
                        tracing::warn!(%why, "a connection was not accepted");
                    }
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
            // A connection that a client breaks off is no failure of the service.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

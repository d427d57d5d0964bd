//! The REST API: routes, limits, keys, and one shape for every error.

mod arrival;
mod audit;
mod auth;
mod bodies;
mod connections;
mod destinations;
mod document;
mod etag;
mod forecast;
mod keys;
mod listen;
mod named;
mod namespaces;
mod operations;
mod page;
mod problem;
mod queues;
pub mod request;
mod schedules;
mod schema;
mod scopes;
mod service;
mod slices;
mod state;
mod subscriptions;
mod templates;
mod timers;
pub mod tls;
mod view;
mod wheels;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{OpenApi, openapi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::clock::Monotonic;
use crate::cold::acting;
use crate::limits::FileLimits;
use crate::metrics::Metrics;
use crate::model::key::Scope;
use crate::model::namespace::Namespace;
use crate::model::queue::MAX_WAIT;
use crate::service::Node;
use crate::sink::guard::Guard;
use crate::traces;
use arrival::{Arrival, Pace};
use auth::{Auth, Caller};
use bodies::Bodies;
use listen::NoSeat;
use problem::Problem;
use slices::Slices;
pub use state::{ApiState, Within};
use tls::Tls;

/// How long a call may take until its answer begins, from the last of its body.
const CALL_WAIT: Duration = Duration::from_secs(60);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Mainspring",
        description = "A durable alarm-clock service: register a wake-up, be called back at the right second. \
                       Errors are application/problem+json with a stable `code`."
    ),
    tags((name = "timers", description = "One future firing each"),
        (name = "destinations", description = "Named places that deliveries go to"),
        (name = "schedules", description = "Rules that make timers"),
        (name = "queues", description = "Workers fetch what is due, and settle it"),
        (name = "operations", description = "One action on every timer that a filter matches"),
        (name = "templates", description = "Named JSON Schemas with defaults that data is checked against"),
        (name = "subscriptions", description = "Who gets lifecycle events"), (name = "keys", description = "Who may call, and what each may do"),
        (name = "namespaces", description = "Which teams share the store, and what each may use"), (name = "service", description = "Health, ledger, nodes"))
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
        .routes(routes!(timers::change::pause))
        .routes(routes!(timers::change::resume))
        .routes(routes!(timers::read::attempts))
        .routes(routes!(timers::explain::explain))
        .routes(routes!(destinations::list))
        .routes(routes!(destinations::put, destinations::get, destinations::patch, destinations::remove))
        .routes(routes!(destinations::test))
        .routes(routes!(destinations::pause))
        .routes(routes!(destinations::resume))
        .routes(routes!(queues::list))
        .routes(routes!(queues::put, queues::get, queues::remove))
        .routes(routes!(queues::lease))
        .routes(routes!(queues::settle))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(operations::redrive))
        .routes(routes!(operations::post, operations::list))
        .routes(routes!(operations::get))
        .routes(routes!(operations::stop))
        .routes(routes!(schedules::look::list))
        .routes(routes!(schedules::look::upcoming))
        .routes(routes!(
            schedules::change::put,
            schedules::look::get,
            schedules::change::patch,
            schedules::change::remove
        ))
        .routes(routes!(schedules::change::pause))
        .routes(routes!(schedules::change::resume))
        .routes(routes!(schedules::work::run))
        .routes(routes!(schedules::work::backfill))
        .routes(routes!(schedules::look::next))
        .routes(routes!(schedules::look::skipped))
        .routes(routes!(subscriptions::list))
        .routes(routes!(subscriptions::put, subscriptions::get, subscriptions::remove))
        .routes(routes!(templates::list))
        .routes(routes!(templates::put, templates::get, templates::remove))
        .routes(routes!(namespaces::list))
        .routes(routes!(namespaces::put, namespaces::get, namespaces::remove))
        .routes(routes!(keys::list, keys::post))
        .routes(routes!(keys::remove))
        .routes(routes!(audit::audit))
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
fn router(node: Arc<Node>, pages: Router, closing: CancellationToken) -> std::io::Result<Router> {
    let state = Arc::new(ApiState {
        auth: Auth::new(Arc::clone(&node.keys)),
        settings_guard: Guard::new(Arc::clone(&node.config)),
        bodies: Arc::new(Bodies::new()),
        slices: Arc::new(Slices::start()?),
        node,
        closing,
        within: None,
        of_others: Arc::default(),
    });
    let (routes, document) = documented().split_for_parts();
    start_failures(&document, &state.node.metrics);
    let document = document::completed(&document);
    Ok(routes
        .merge(page::routes())
        .route("/openapi.json", axum::routing::get(move || async move { Json(document) }))
        .fallback(nothing_here)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), admit))
        .with_state(Arc::clone(&state))
        .merge(pages)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(state, observe)))
}

/// The answer to a path that is none: a problem, or for a browser a page.
async fn nothing_here(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accepts.is_some_and(|accept| accept.contains("text/html")) {
        let page = "<!doctype html><title>Mainspring: no such page</title><p>There is no such page. <a href=\"/\">Overview</a>";
        return (StatusCode::NOT_FOUND, Html(page)).into_response();
    }
    StatusCode::NOT_FOUND.into_response()
}

/// Starts the series of failed calls at 0. A series that begins with its first count is in no rate, so the calls that a
/// node fails while it starts would be missing.
fn start_failures(document: &openapi::OpenApi, metrics: &Metrics) {
    for (route, item) in &document.paths.paths {
        for (method, operation) in [
            ("GET", &item.get),
            ("PUT", &item.put),
            ("POST", &item.post),
            ("PATCH", &item.patch),
            ("DELETE", &item.delete),
        ] {
            for status in operation.iter().flat_map(|_| ["500", "503"]) {
                metrics.requests.with_label_values(&[route.as_str(), method, status]);
            }
        }
    }
}

/// Checks the key of every call but the health checks and metrics, and what it may do, and charges it for writes.
async fn admit(
    State(state): State<Arc<ApiState>>,
    route: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if is_probe(request.uri().path()) {
        return Ok(next.run(request).await);
    }
    let caller = state.auth.check(request.headers(), request.extensions().get()).await?;
    let caller = namespaces::chosen(&state, caller, request.headers()).await?;
    let route = route.as_ref().map_or("", MatchedPath::as_str);
    let takes = scopes::of(request.method().as_str(), route);
    takes.check(caller, request.method().as_str(), route)?;
    if request.uri().path().starts_with("/v1/") {
        if !request.method().is_safe() {
            state.auth.charge(&caller, 1)?;
        }
        // What is about all namespaces uses the quota of none.
        if !takes.is_of_all {
            state.charge_namespace(caller.namespace, 1).await?;
        }
    }
    request.extensions_mut().insert(caller);
    if caller.namespace != Namespace::OWN {
        if state.node.namespaces.get(caller.namespace).is_none() {
            // Made a moment ago, by another node: what it may use is to hold from the first call on.
            Box::pin(state.node.namespaces.read()).await?;
        }
        let state = state.of(caller.namespace)?;
        request.extensions_mut().insert(state);
    }
    // What reads changes nothing, and what programs do to timers is in the timers' own lives.
    let actor = (!request.method().is_safe() && takes.scope >= Scope::Operate)
        .then(|| state.node.actor(caller, request.extensions(), request.headers()));
    let arrival = request.extensions().get::<Arrival>().cloned().unwrap_or_default();
    // A lease waits as long as it was asked to, and then for the store like any other call.
    let is_lease =
        request.uri().path().starts_with("/v1/queues/") && request.uri().path().ends_with("/lease");
    let wait = if is_lease { CALL_WAIT + MAX_WAIT.get() } else { CALL_WAIT };
    let answering = async {
        match actor {
            Some(actor) => acting(actor, next.run(request)).await,
            None => next.run(request).await,
        }
    };
    match arrival.answered_within(wait, answering).await {
        Some(response) => Ok(response),
        None => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "not answered within 60 s")
            .retry_after(1)),
    }
}

/// The paths for health and metrics. They need no key, and are answered also when all connections are taken.
fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/startupz" | "/metrics")
}

/// The answer to a call for which there is no connection: the client is to close the one that it has.
fn no_seat(seat: &NoSeat) -> Response {
    seat.count();
    let detail = "all connections of this node are busy; only health and metrics are answered";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail).retry_after(1);
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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
    let call = traces::Call::begin(&request, &route);
    let pace = if route == "/v1/timers/stream" { Pace::Any } else { Pace::LEAST };
    let request = arrival::watched(request, pace);
    let seat = request.extensions().get::<NoSeat>().filter(|_| !is_probe(request.uri().path()));
    let answered = match seat {
        Some(seat) => no_seat(seat),
        None => next.run(request).await,
    };
    problem::log_failure(&answered, &request_id, method.as_str(), &route);
    let response = problem::finish(answered, &request_id);
    call.end(&response);
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
    IntoResponse::into_response(Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the service failed at this request; the failure is logged",
    ))
}

/// Serves the API and `pages` on as many connections as `files` allows, until `closing` is cancelled; then lets each
/// finish its current call. An error if the system has no thread left at the start.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    node: Arc<Node>,
    pages: Router,
    files: FileLimits,
    closing: CancellationToken,
) -> std::io::Result<()> {
    let metrics = node.metrics.clone();
    let router = router(node, pages, closing.clone())?;
    listen::serve(listener, tls, router, metrics, files, closing).await;
    Ok(())
}

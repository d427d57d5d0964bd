//! `/v1/subscriptions`: who gets lifecycle events.

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Map, Value};

use super::etag::tagged;
use super::named::{MAX_BODY, RemovedAnswer, checked_name, removed};
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, SubscriptionIn};
use super::schema;
use super::state::caller;
use super::{ApiState, Within};
use crate::cold::{Backlog, MAX_SUBSCRIPTIONS, MOST_EXCESS, MOST_SUBSCRIPTIONS_IN_ALL, SubscriptionRow};
use crate::model::namespace::Namespace;
use crate::model::subscription::Asked;
use crate::model::time::UnixMs;
use crate::outbox::{Put, PutOutcome};

/// The subscription that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct SubscriptionPath {
    /// The subscription's name.
    #[param(value_type = schema::DestinationName, example = "task-log")]
    name: String,
}

/// A subscription in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SubscriptionView {
    #[schema(value_type = schema::DestinationName)]
    name: String,
    /// Where the events go.
    #[schema(value_type = schema::DestinationName)]
    destination: String,
    #[schema(value_type = schema::LifecycleWords)]
    events: Vec<String>,
    /// `null` is all timers.
    #[schema(required, value_type = Option<schema::EventFilter>)]
    filter: Option<Map<String, Value>>,
    include_data: bool,
    /// Events that wait to be sent. `null` if they could not be counted.
    #[schema(required, minimum = 0)]
    waiting: Option<i64>,
    /// When the oldest of them became true.
    #[schema(required, value_type = Option<schema::Moment>)]
    oldest_at: Option<UnixMs>,
    /// Rises with every change; also the `ETag`.
    #[schema(minimum = 1)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    #[schema(value_type = schema::Moment)]
    changed_at: UnixMs,
}

/// All subscriptions.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SubscriptionsAnswer {
    items: Vec<SubscriptionView>,
}

/// `backlog`: what waits, if anything does; the outer `None`, if that is not known.
fn view(row: SubscriptionRow, backlog: Option<Option<Backlog>>) -> SubscriptionView {
    let Asked { events, filter, include_data, .. } = serde_json::from_str(&row.settings).unwrap_or_default();
    SubscriptionView {
        name: row.name,
        destination: row.destination,
        events,
        filter,
        include_data,
        waiting: backlog.map(|some| some.map_or(0, |one| one.events)),
        oldest_at: backlog.flatten().map(|one| one.oldest_at),
        version: row.version,
        created_at: row.created_at,
        changed_at: row.changed_at,
    }
}

async fn answer(state: &ApiState, status: StatusCode, row: SubscriptionRow) -> ApiResult {
    let backlog = backlog(state, &row).await;
    Ok(tagged(status, row.version, &view(row, backlog)))
}

/// What waits. What was changed is answered also when this cannot be counted.
async fn backlog(state: &ApiState, row: &SubscriptionRow) -> Option<Option<Backlog>> {
    let most = i64::try_from(state.node.config.outbox.max_events).unwrap_or(i64::MAX);
    state.service().ok()?.store.backlog(row.id, most.saturating_add(MOST_EXCESS)).await.ok()
}

fn no_such(name: &str) -> Problem {
    Problem::no_such("subscription", name)
}

/// All subscriptions, by name.
#[utoipa::path(get, path = "/v1/subscriptions", tag = "subscriptions", operation_id = "subscriptions",
    responses((status = 200, body = SubscriptionsAnswer)))]
pub async fn list(Within(state): Within) -> ApiResult {
    let service = state.service()?;
    let rows = service.store.subscriptions().await?;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        let backlog = backlog(&state, &row).await;
        items.push(view(row, backlog));
    }
    Ok(Json(SubscriptionsAnswer { items }).into_response())
}

/// One subscription.
#[utoipa::path(get, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "subscription",
    params(SubscriptionPath),
    responses((status = 200, body = SubscriptionView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let row = service.store.subscriptions().await?.into_iter().find(|row| row.name == name);
    answer(&state, StatusCode::OK, row.ok_or_else(|| no_such(&name))?).await
}

/// Subscribe, or put another subscription in the place of the one of this name. It is told everything that becomes true
/// after the answer, on whichever node.
#[utoipa::path(put, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "put_subscription",
    params(SubscriptionPath), request_body = SubscriptionIn,
    responses((status = 201, body = SubscriptionView, description = "New"),
        (status = 200, body = SubscriptionView, description = "In place of the former one, whose events that wait stay"),
        (status = 503, body = Problem, description = "not_taken: it is made, and the nodes in the detail write no events for it \
            yet; repeat the call")))]
pub async fn put(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let caller = caller(&request);
    let body = state.body(request, MAX_BODY).await?;
    let size = body.bytes.len();
    let (destination, asked) =
        state.check(caller, size, move || request::subscription(&body.bytes)).await??;
    let settings =
        serde_json::to_string(&asked).map_err(|_| crate::cold::Error::Corrupt("a filter".into()))?;
    match service.subscriptions.put(service.namespace(), &name, &destination, &settings).await? {
        PutOutcome::Done(Put { row, is_new, behind }) if behind.is_empty() => {
            answer(&state, if is_new { StatusCode::CREATED } else { StatusCode::OK }, row).await
        }
        PutOutcome::Done(Put { behind, .. }) => {
            let names: Vec<String> = behind.into_iter().collect();
            let detail = format!(
                "the subscription is made, but these nodes write no events for it yet: {}; repeat the call, or bring \
                 them up to this version",
                names.join(", ")
            );
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_taken", detail).retry_after(1))
        }
        PutOutcome::NoDestination => {
            let detail = format!(
                "there is no destination `{destination}`; make it with PUT /v1/destinations/{{name}}"
            );
            Err(Problem::invalid(vec![FieldError::new("/destination", "no_destination", detail)]))
        }
        PutOutcome::Full => {
            let most = service.store.most_here(MAX_SUBSCRIPTIONS);
            let detail = match service.namespace() {
                Namespace::OWN => format!("there are {most} subscriptions, which is as many as there may be"),
                _ => format!(
                    "this namespace has {most} subscriptions, or all together have {MOST_SUBSCRIPTIONS_IN_ALL}, which is as \
                     many as there may be"
                ),
            };
            Err(Problem::invalid(vec![FieldError::new("", "too_many", detail)]))
        }
    }
}

/// Remove a subscription, with its events that wait.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "remove_subscription",
    params(SubscriptionPath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem)))]
pub async fn remove(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    match service.subscriptions.remove(service.namespace(), &name).await? {
        true => Ok(removed()),
        false => Err(no_such(&name)),
    }
}

//! `/v1/destinations`: named places that deliveries go to.

mod place;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Value, json};

use self::place::{
    AmqpView, HookView, KafkaView, MqttView, NatsView, RedisStreamView, check_credentials, keep_secrets,
};
use super::etag::{if_match, tagged, wants_any};
use super::named::{MAX_BODY, RemovedAnswer, checked_name, removed};
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, DestinationIn};
use super::schema;
use super::state::caller;
use super::view::RetryView;
use super::{ApiState, Within};
use crate::cold::{Deed, DestinationRow, MAX_DESTINATIONS, MOST_COUNTED, Removed, Uses, Written};
use crate::destinations::{Refused, Wanted};
use crate::dispatch::ReceiverLoad;
use crate::model::destination::{Destination, Settings, lane};
use crate::model::json;
use crate::model::place::Place;
use crate::model::policy::Retry;
use crate::model::time::{Span, UnixMs};
use crate::model::timer::AttemptResult;
use crate::service::Service;
use crate::sink::Delivery;

/// The most timers of each destination that a list counts.
const MOST_COUNTED_EACH: i64 = 1000;

/// How often a change is tried again on what another caller has changed meanwhile.
const PATCH_TRIES: usize = 3;

/// The destination that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct DestinationPath {
    /// The destination's name.
    #[param(value_type = schema::DestinationName, example = "shop-orders")]
    name: String,
}

/// A destination in an answer, without its secrets. Limits that were left out have the value in force.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct DestinationView {
    #[schema(value_type = schema::DestinationName)]
    name: String,
    /// What it is: `webhook`, `redis_stream`, `amqp`, `mqtt`, `nats` or `kafka`. The field of this name says where it is; it is missing where this node
    /// cannot send there: its version or its build has no such kind, or it lacks the key of the secrets.
    kind: String,
    /// An HTTP receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = HookView, required = false)]
    webhook: Option<HookView>,
    /// A stream of Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = RedisStreamView, required = false)]
    redis_stream: Option<RedisStreamView>,
    /// An exchange of an AMQP broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = AmqpView, required = false)]
    amqp: Option<AmqpView>,
    /// A topic of an MQTT broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = MqttView, required = false)]
    mqtt: Option<MqttView>,
    /// A subject of NATS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = NatsView, required = false)]
    nats: Option<NatsView>,
    /// A topic of Kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = KafkaView, required = false)]
    kafka: Option<KafkaView>,
    /// Attempts at once, for each node.
    #[schema(minimum = 1)]
    concurrency: usize,
    /// Attempts a second, all nodes together; `null` is no limit.
    #[schema(required)]
    rate_per_second: Option<u32>,
    #[schema(value_type = RetryView)]
    retry: Retry,
    #[schema(value_type = schema::Duration)]
    timeout: Span,
    #[schema(value_type = schema::DestinationState)]
    state: &'static str,
    /// Attempts that ended, a second, over about the last ten seconds.
    rate: f64,
    /// Claimed timers whose attempt has not ended.
    in_flight: usize,
    /// Timers that are due and not under way: they wait for room, for the rate, for their next attempt, or to be resumed.
    /// From 100,000 on it says no more, in a list from 1,000 on. `null` if it could not be counted.
    #[schema(required, minimum = 0)]
    waiting: Option<i64>,
    /// Why the last attempt that failed did so.
    #[schema(required)]
    last_error: Option<String>,
    /// When that was.
    #[schema(required, value_type = Option<schema::Moment>)]
    last_error_at: Option<UnixMs>,
    /// Rises with every change; also the `ETag`.
    #[schema(minimum = 1)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    #[schema(value_type = schema::Moment)]
    changed_at: UnixMs,
}

/// All destinations.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DestinationsAnswer {
    items: Vec<DestinationView>,
}

/// Views of these destinations as of now.
async fn views(
    state: &ApiState,
    service: &Service,
    rows: &[DestinationRow],
) -> Result<Vec<DestinationView>, Problem> {
    // What was changed is answered also when this cannot be counted.
    let loads = service.observer.receivers().await.unwrap_or_default();
    let loads: HashMap<String, ReceiverLoad> =
        loads.into_iter().filter(|one| one.is_destination).map(|one| (one.receiver.clone(), one)).collect();
    let lanes: Vec<i64> = rows.iter().map(|row| lane(row.namespace, &row.name)).collect();
    let most = if rows.len() == 1 { MOST_COUNTED } else { MOST_COUNTED_EACH };
    let waiting = service.store.destinations_waiting(&lanes, most).await.ok();
    let settings = &state.node.config.webhook;
    let view = |row: &DestinationRow| {
        let Destination { namespace, name, kind, place, limits, paused, version, .. } =
            service.destinations.opened(row);
        let load = loads.get(&*namespace.qualified(&name));
        let (last_error, last_error_at) =
            load.and_then(|load| load.last_error.clone()).map(|error| (error.detail, error.at)).unzip();
        let mut view = DestinationView {
            kind,
            webhook: None,
            redis_stream: None,
            amqp: None,
            mqtt: None,
            nats: None,
            kafka: None,
            concurrency: limits.concurrency.unwrap_or(settings.concurrency),
            rate_per_second: limits.rate_per_second,
            retry: limits.retry.unwrap_or_default(),
            timeout: limits.timeout.unwrap_or(settings.timeout),
            state: match load {
                _ if paused => "paused",
                Some(load) if load.failing => "failing",
                _ => "ok",
            },
            rate: load.map_or(0.0, |load| load.rate),
            in_flight: load.map_or(0, |load| load.in_flight),
            waiting: waiting
                .as_ref()
                .map(|waiting| waiting.get(&lane(namespace, &name)).copied().unwrap_or(0)),
            last_error,
            last_error_at,
            version,
            created_at: row.created_at,
            changed_at: row.changed_at,
            name,
        };
        match place {
            Ok(Place::Webhook(hook)) => view.webhook = Some(hook.into()),
            Ok(Place::RedisStream(stream)) => view.redis_stream = Some(stream.into()),
            Ok(Place::Amqp(exchange)) => view.amqp = Some(exchange.into()),
            Ok(Place::Mqtt(topic)) => view.mqtt = Some(topic.into()),
            Ok(Place::Nats(subject)) => view.nats = Some(subject.into()),
            Ok(Place::Kafka(topic)) => view.kafka = Some(topic.into()),
            Err(_) => {}
        }
        view
    };
    Ok(rows.iter().map(view).collect())
}

async fn answer(state: &ApiState, service: &Service, status: StatusCode, row: &DestinationRow) -> ApiResult {
    let view = views(state, service, std::slice::from_ref(row)).await?;
    Ok(tagged(status, row.version, &view.into_iter().next()))
}

fn no_such(name: &str) -> Problem {
    Problem::no_such("destination", name)
}

/// One destination as the store has it.
pub(super) async fn find(service: &Service, name: &str) -> Result<DestinationRow, Problem> {
    checked_name(name)?;
    let rows = service.store.destinations(Some(&[name.to_owned()])).await?;
    rows.into_iter().next().ok_or_else(|| no_such(name))
}

impl From<Refused> for Problem {
    fn from(why: Refused) -> Self {
        match why {
            Refused::NoKey { kind } => {
                Self::invalid(vec![FieldError::new(format!("/{kind}"), "no_secrets_key", why.to_string())])
            }
            Refused::NotSealed => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", why.to_string()),
            Refused::Cold(why) => why.into(),
        }
    }
}

/// All destinations, by name.
#[utoipa::path(get, path = "/v1/destinations", tag = "destinations", operation_id = "destinations",
    responses((status = 200, body = DestinationsAnswer)))]
pub async fn list(Within(state): Within) -> ApiResult {
    let service = state.service()?;
    let rows = service.store.destinations(None).await?;
    Ok(Json(DestinationsAnswer { items: views(&state, service, &rows).await? }).into_response())
}

/// One destination.
#[utoipa::path(get, path = "/v1/destinations/{name}", tag = "destinations", operation_id = "destination",
    params(DestinationPath),
    responses((status = 200, body = DestinationView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    answer(&state, service, StatusCode::OK, &find(service, &name).await?).await
}

/// Make a destination, or put another in its place: its secrets too. It stays paused if it is.
#[utoipa::path(put, path = "/v1/destinations/{name}", tag = "destinations", operation_id = "put_destination",
    params(DestinationPath), request_body = DestinationIn,
    responses((status = 201, body = DestinationView, description = "New"),
        (status = 200, body = DestinationView, description = "In place of the former one; it holds for what is registered already"),
        (status = 412, body = Problem, description = "version_changed")))]
pub async fn put(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let if_version = if_match(request.headers()).map(|version| version.0);
    if wants_any(request.headers()) && service.destinations.find(service.namespace(), &name).await?.is_none()
    {
        return Err(Problem::other_version("destination", 0));
    }
    let caller = caller(&request);
    let body = state.body(request, MAX_BODY).await?;
    let (guard, size) = (state.guard(service.namespace()), body.bytes.len());
    let wanted = state.check(caller, size, move || request::destination(&body.bytes, &guard)).await??;
    check_credentials(&wanted.place)?;
    let written = service.destinations.put(service.namespace(), &name, wanted, if_version).await?;
    written_answer(&state, service, written).await
}

async fn written_answer(state: &ApiState, service: &Service, written: Written) -> ApiResult {
    match written {
        Written::Done(row, true) => answer(state, service, StatusCode::CREATED, &row).await,
        Written::Done(row, false) => answer(state, service, StatusCode::OK, &row).await,
        Written::OtherVersion(version) => Err(Problem::other_version("destination", version)),
        Written::Full => Err(Problem::too_many(service.store.most_here(MAX_DESTINATIONS), "destinations")),
    }
}

/// Change parts of a destination: what is given is merged over what there is (RFC 7396). Secrets that are not given stay;
/// `null` removes.
#[utoipa::path(patch, path = "/v1/destinations/{name}", tag = "destinations", operation_id = "patch_destination",
    params(DestinationPath), request_body = schema::DestinationPatch,
    responses((status = 200, body = DestinationView, description = "It holds for what is registered already"),
        (status = 404, body = Problem), (status = 412, body = Problem, description = "version_changed")))]
pub async fn patch(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let if_version = if_match(request.headers()).map(|version| version.0);
    let body = state.body(request, MAX_BODY).await?;
    let patch: Value = request::read::<BTreeMap<String, Value>>(&body.bytes, "")?.into_iter().collect();
    for _ in 0..PATCH_TRIES {
        let row = find(service, &name).await?;
        if if_version.is_some_and(|version| version != row.version) {
            return Err(Problem::other_version("destination", row.version));
        }
        let wanted = merged(service, &row, &patch, &state)?;
        match service.destinations.put(service.namespace(), &name, wanted, Some(row.version)).await? {
            Written::OtherVersion(_) if if_version.is_none() => {}
            Written::OtherVersion(0) => return Err(no_such(&name)),
            written => return written_answer(&state, service, written).await,
        }
    }
    Err(crate::cold::Error::Busy.into())
}

/// The destination with a patch merged over it, checked like a new one.
fn merged(
    service: &Service,
    row: &DestinationRow,
    patch: &Value,
    state: &ApiState,
) -> Result<Wanted, Problem> {
    let Destination { place, limits, .. } = service.destinations.opened(row);
    let Ok(before) = place else {
        let detail = "this node cannot read this destination; change it on a node that can, or PUT it anew";
        return Err(Problem::invalid(vec![FieldError::new("", "unreadable", detail)]));
    };
    let patch = with_lower_case_headers(patch);
    let whole = serde_json::to_value(Settings { limits, place: before.clone() });
    let whole = whole.map_err(|_| crate::cold::Error::Corrupt("a destination".into()))?;
    let whole = json::merged(&whole.to_string(), &patch.to_string());
    let whole =
        whole.map_err(|why| Problem::invalid(vec![FieldError::new("", "not_readable", why.to_string())]))?;
    let mut wanted = request::destination(whole.as_bytes(), &state.guard(service.namespace()))?;
    keep_secrets(&before, &mut wanted.place, &patch)?;
    check_credentials(&wanted.place)?;
    Ok(wanted)
}

/// The patch, with its headers named as they are stored: `X-Tenant` is `x-tenant`.
fn with_lower_case_headers(patch: &Value) -> Value {
    let mut patch = patch.clone();
    if let Some(headers) = patch.pointer_mut("/webhook/headers").and_then(Value::as_object_mut) {
        let lower = |(name, value): (String, Value)| (name.to_ascii_lowercase(), value);
        *headers = std::mem::take(headers).into_iter().map(lower).collect();
    }
    patch
}

/// Remove a destination that nothing uses.
#[utoipa::path(delete, path = "/v1/destinations/{name}", tag = "destinations", operation_id = "remove_destination",
    params(DestinationPath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_use: live timers or subscriptions go there; the detail has their number")))]
pub async fn remove(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    match service.destinations.remove(service.namespace(), &name).await? {
        Removed::Done => Ok(removed()),
        Removed::NoSuch => Err(no_such(&name)),
        Removed::InUse(uses) => {
            let detail = format!("{} to `{name}`; {}", used(&uses), cure(&uses));
            Err(Problem::new(StatusCode::CONFLICT, "in_use", detail))
        }
    }
}

/// How many go there.
fn used(uses: &Uses) -> String {
    let Uses { timers, schedules, subscriptions } = *uses;
    let more = if timers >= MOST_COUNTED { " or more" } else { "" };
    let counts =
        [(timers, more, "live timer"), (schedules, "", "schedule"), (subscriptions, "", "subscription")];
    let parts: Vec<String> = counts
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, more, noun)| format!("{count}{more} {}", plural(count, noun)))
        .collect();
    let verb = if timers + schedules + subscriptions == 1 { "goes" } else { "go" };
    format!("{} {verb}", parts.join(" and "))
}

fn plural(count: i64, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

fn cure(uses: &Uses) -> String {
    let cures = [
        (uses.timers, "cancel the timers or change their target"),
        (uses.schedules, "remove the schedules or change their target"),
        (uses.subscriptions, "remove or change what subscribes"),
    ];
    let needed: Vec<&str> = cures.into_iter().filter(|(count, _)| *count > 0).map(|(_, cure)| cure).collect();
    format!("{} first", needed.join(", and "))
}

/// Keep what falls due. What is under way ends; a repeat gives the same answer.
#[utoipa::path(post, path = "/v1/destinations/{name}/pause", tag = "destinations", operation_id = "pause_destination",
    params(DestinationPath),
    responses((status = 200, body = DestinationView, description = "Other nodes follow within a few seconds at the latest"),
        (status = 404, body = Problem)))]
pub async fn pause(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    set_paused(&state, &name, true).await
}

/// Send what was kept, oldest first, at the destination's rate.
#[utoipa::path(post, path = "/v1/destinations/{name}/resume", tag = "destinations", operation_id = "resume_destination",
    params(DestinationPath),
    responses((status = 200, body = DestinationView), (status = 404, body = Problem)))]
pub async fn resume(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    set_paused(&state, &name, false).await
}

async fn set_paused(state: &ApiState, name: &str, paused: bool) -> ApiResult {
    let service = state.service()?;
    checked_name(name)?;
    match service.destinations.pause(service.namespace(), name, paused).await? {
        Some(row) => answer(state, service, StatusCode::OK, &row).await,
        None => Err(no_such(name)),
    }
}

/// What came back from a test.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TestAnswer {
    #[schema(value_type = schema::AttemptResult)]
    result: AttemptResult,
    /// The HTTP status, if there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u16, required = false)]
    status: Option<u16>,
    /// The first 1 KiB of the answer's body; of a Redis stream the id of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    reply: Option<String>,
    /// What went wrong, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    detail: Option<String>,
    /// The `ce-id` of the event.
    delivery_id: String,
}

/// Send one `mainspring.test.v1` event there, also while it is paused. The answer says what came back.
#[utoipa::path(post, path = "/v1/destinations/{name}/test", tag = "destinations", operation_id = "test_destination",
    params(DestinationPath),
    responses((status = 200, body = TestAnswer, description = "`result` says whether it arrived"),
        (status = 404, body = Problem)))]
pub async fn test(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    let row = find(service, &name).await?;
    let destination = Arc::new(service.destinations.opened(&row));
    let delivery = Delivery::test(
        destination,
        service.store.sender(service.namespace()).await?,
        service.store.clock().now(),
    );
    let delivery_id = delivery.id.clone();
    let became = Some(json!({"delivery_id": delivery_id}));
    service.store.note_deed(Deed { action: "destination.test", object: &name, was: None, became }).await?;
    let answer = match service.sink.send(&delivery).await {
        Ok(outcome) => TestAnswer {
            result: outcome.result,
            status: outcome.status,
            reply: outcome.reply,
            detail: outcome.detail,
            delivery_id,
        },
        Err(lack) => TestAnswer {
            result: AttemptResult::Refused,
            status: None,
            reply: None,
            detail: Some(format!("this node lacks what it needs to send: {}", lack.cure())),
            delivery_id,
        },
    };
    Ok(Json(answer).into_response())
}

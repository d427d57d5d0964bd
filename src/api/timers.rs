//! `/v1/timers`: register, read, list, change, cancel, fire.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::problem::{FieldError, Problem};
use super::request::{self, Bad, Context, Naming, RawTimer};
use super::view::{AttemptView, TimerView};
use super::{ApiState, Caller};
use crate::app::Service;
use crate::cold::{
    Applied, Change, ChangeEvent, Edit, Filter, MAX_REGISTER_BATCH, NewTimer, Place, Registered, TimerRow,
};
use crate::model::id::{TimerId, idempotency_uid};
use crate::model::time::UnixMs;
use crate::model::timer::{Answer, Event, State as TimerState};

/// Body of one timer: the payload, and as much again for the rest.
const MAX_BODY: usize = 2 * request::MAX_DATA;
const MAX_BATCH_BODY: usize = 16 * 1024 * 1024;
const MAX_BATCH: usize = 5000;
const MAX_LIST: usize = 1000;
const BODY_WAIT: Duration = Duration::from_secs(30);

type Answered = Result<Response, Problem>;

/// Reads a body within its limit and time.
async fn body(body: Body, most: usize) -> Result<Bytes, Problem> {
    match tokio::time::timeout(BODY_WAIT, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(why)) => {
            let text = format!("{:?}", why);
            if text.contains("LengthLimit") {
                let detail = format!("the body is over {most} bytes");
                return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
            }
            Err(Problem::new(StatusCode::BAD_REQUEST, "body_broken", "the body did not arrive whole"))
        }
        Err(_) => {
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive within 30 s"))
        }
    }
}

impl From<Bad> for Problem {
    fn from(bad: Bad) -> Self {
        match bad {
            Bad::Syntax(why) => Self::new(StatusCode::BAD_REQUEST, "malformed", why),
            Bad::Fields(errors) => Self::invalid(errors),
        }
    }
}

fn parse_id(text: &str) -> Result<TimerId, Problem> {
    TimerId::parse(text)
        .map_err(|why| Problem::invalid(vec![FieldError::new("?id", "bad_id", why.to_string())]))
}

fn context<'a>(state: &'a ApiState, service: &'a Service) -> Context<'a> {
    Context {
        now: service.store.clock().now(),
        namespace: service.store.namespace(),
        guard: &state.guard,
        fresh: uuid::Uuid::now_v7(),
    }
}

fn shown(status: StatusCode, row: &TimerRow) -> Response {
    let mut response = (status, Json(TimerView::from(row))).into_response();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", row.life.version)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// `again` of a PUT.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PutQuery {
    /// On an ended id: start it anew, as the next generation.
    #[serde(default)]
    again: bool,
}

/// Register under an id of your own.
#[utoipa::path(put, path = "/v1/timers/{id}", tag = "timers", params(("id" = String, Path), PutQuery),
    request_body = RawTimer,
    responses((status = 201, body = TimerView, description = "New"),
        (status = 200, body = TimerView, description = "The same content again: its state, ended or not"),
        (status = 409, body = Problem, description = "id_taken: other content under this id"),
        (status = 422, body = Problem)))]
pub async fn put(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    query: Result<Query<PutQuery>, QueryRejection>,
    request: Request,
) -> Answered {
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let service = state.service()?;
    let id = parse_id(&id)?;
    let bytes = body(request.into_body(), MAX_BODY).await?;
    let reserved = id.server_uid().is_some();
    let new = request::timer(&bytes, Naming::Path(id.clone()), query.again, &context(&state, service))?;
    if reserved {
        return put_reserved(service, &id, &new).await;
    }
    match register(&state, service, new).await? {
        Registered::New(row) => Ok(shown(StatusCode::CREATED, &row)),
        Registered::Same(row) => Ok(shown(StatusCode::OK, &row)),
        Registered::Taken => Err(id_taken(&id)),
    }
}

fn bad_query(why: &QueryRejection) -> Problem {
    Problem::invalid(vec![FieldError::new("?", "bad_query", why.body_text())])
}

/// Ids of the service's own form exist only where the service made them.
async fn put_reserved(service: &Service, id: &TimerId, new: &NewTimer) -> Answered {
    match service.store.find(new.uid).await? {
        Some(row) if row.request_hash == new.request_hash => Ok(shown(StatusCode::OK, &row)),
        Some(_) => Err(id_taken(id)),
        None => Err(Problem::invalid(vec![FieldError::new(
            "?id",
            "reserved",
            "ids of the form tmr_… are made by the service; choose another",
        )])),
    }
}

fn id_taken(id: &TimerId) -> Problem {
    let detail = format!(
        "`{id}` is taken by a timer with other content; change that one with PATCH, or choose another id"
    );
    Problem::new(StatusCode::CONFLICT, "id_taken", detail)
}

async fn register(state: &ApiState, service: &Service, new: NewTimer) -> Result<Registered, Problem> {
    let registered = service.registrations.submit(new).await??;
    if matches!(registered, Registered::New(_)) {
        state.app.metrics.registered.inc();
    }
    Ok(registered)
}

/// Register under an id that the service makes.
#[utoipa::path(post, path = "/v1/timers", tag = "timers",
    params(("idempotency-key" = Option<String>, Header, description = "The same key and body give the same timer")),
    request_body = RawTimer,
    responses((status = 201, body = TimerView, description = "New; Location names it"),
        (status = 200, body = TimerView, description = "The same key and body again"),
        (status = 422, body = Problem, description = "Not valid, or key_reused: the key with another body")))]
pub async fn post(State(state): State<Arc<ApiState>>, request: Request) -> Answered {
    let service = state.service()?;
    let naming = match request.headers().get("idempotency-key") {
        None => Naming::Server,
        Some(key) => {
            let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len())).ok_or_else(|| {
                let detail = "1 to 255 printable ASCII characters";
                Problem::invalid(vec![FieldError::new("?idempotency-key", "bad_key", detail)])
            })?;
            Naming::Key(idempotency_uid(service.store.namespace(), key))
        }
    };
    let bytes = body(request.into_body(), MAX_BODY).await?;
    let new = request::timer(&bytes, naming, false, &context(&state, service))?;
    let (status, row) = match register(&state, service, new).await? {
        Registered::New(row) => (StatusCode::CREATED, row),
        Registered::Same(row) => (StatusCode::OK, row),
        Registered::Taken => {
            let detail = "this Idempotency-Key was used with another body; use a new key for a new request";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", detail));
        }
    };
    let mut response = shown(status, &row);
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/timers/{}", row.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBatch {
    timers: Vec<Box<RawValue>>,
}

/// The body of a batch.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes the body; items are read one by one")]
pub struct Batch {
    /// At most 5,000, each as in PUT with its `id`, or without one.
    timers: Vec<RawTimer>,
}

/// What became of each item, in order.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BatchAnswer {
    results: Vec<ItemAnswer>,
}

/// What became of one item.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// 201 new, 200 the same again, 409 taken, 422 not valid, 503 not committed.
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ItemError>,
}

/// Why an item was not registered.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ItemError {
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

impl ItemAnswer {
    fn refused(id: Option<String>, problem: Problem) -> Self {
        // Within a batch every invalid item is 422, its size included.
        let status = if problem.status == 413 || problem.status == 400 { 422 } else { problem.status };
        let error = ItemError { code: problem.code, detail: problem.detail, errors: problem.errors };
        Self { id, status, error: Some(error) }
    }
}

/// Register many at once; each item stands alone.
#[utoipa::path(post, path = "/v1/timers/batch", tag = "timers", request_body = Batch,
    responses((status = 200, body = BatchAnswer), (status = 413, body = Problem), (status = 422, body = Problem)))]
pub async fn batch(
    State(state): State<Arc<ApiState>>,
    axum::Extension(caller): axum::Extension<Caller>,
    request: Request,
) -> Answered {
    let service = state.service()?;
    let bytes = body(request.into_body(), MAX_BATCH_BODY).await?;
    let raw: RawBatch = request::read(&bytes, "")?;
    if raw.timers.len() > MAX_BATCH {
        let detail = format!("{} timers; at most {MAX_BATCH}", raw.timers.len());
        return Err(Problem::invalid(vec![FieldError::new("/timers", "too_large", detail)]));
    }
    state.auth.charge(&caller, raw.timers.len().saturating_sub(1))?;
    let mut results: Vec<Option<ItemAnswer>> = Vec::with_capacity(raw.timers.len());
    let mut good: Vec<(usize, NewTimer)> = Vec::with_capacity(raw.timers.len());
    for (place, item) in raw.timers.iter().enumerate() {
        match request::timer(item.get().as_bytes(), Naming::Own, false, &context(&state, service)) {
            Ok(new) => {
                good.push((place, new));
                results.push(None);
            }
            Err(bad) => results.push(Some(ItemAnswer::refused(own_id(item), bad.into()))),
        }
    }
    // Chunks in order, one after another: an id that stands twice meets its first registration.
    for chunk in good.chunks(MAX_REGISTER_BATCH) {
        let timers: Vec<NewTimer> = chunk.iter().map(|(_, new)| new.clone()).collect();
        let answers = service.store.register(&timers).await;
        for ((place, new), answer) in chunk.iter().zip(answers) {
            let id = Some(new.id.as_str().to_owned());
            results[*place] = Some(match answer {
                Ok(Registered::New(_)) => {
                    state.app.metrics.registered.inc();
                    ItemAnswer { id, status: 201, error: None }
                }
                Ok(Registered::Same(_)) => ItemAnswer { id, status: 200, error: None },
                Ok(Registered::Taken) => ItemAnswer::refused(id, id_taken(&new.id)),
                Err(why) => ItemAnswer::refused(id, why.into()),
            });
        }
    }
    Ok(Json(BatchAnswer { results: results.into_iter().flatten().collect() }).into_response())
}

/// The id an invalid item asked for, to name it in the answer.
fn own_id(item: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: Option<String>,
    }
    serde_json::from_str::<OnlyId>(item.get()).ok()?.id
}

/// One timer, live or ended.
#[utoipa::path(get, path = "/v1/timers/{id}", tag = "timers", params(("id" = String, Path)),
    responses((status = 200, body = TimerView), (status = 404, body = Problem)))]
pub async fn get(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    Ok(shown(StatusCode::OK, &find(state.service()?, &id).await?))
}

async fn find(service: &Service, id: &str) -> Result<TimerRow, Problem> {
    let uid = parse_id(id)?.uid(service.store.namespace());
    service.store.find(uid).await?.ok_or_else(|| Problem::no_timer(id))
}

/// The attempts that are over, oldest first.
#[utoipa::path(get, path = "/v1/timers/{id}/attempts", tag = "timers", params(("id" = String, Path)),
    responses((status = 200, description = "{\"items\": […]}", body = [AttemptView]), (status = 404, body = Problem)))]
pub async fn attempts(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    let service = state.service()?;
    let row = find(service, &id).await?;
    let items: Vec<AttemptView> = service
        .store
        .attempts(&row)
        .await?
        .into_iter()
        .map(|record| AttemptView::new(&row, record))
        .collect();
    Ok(Json(json!({ "items": items })).into_response())
}

/// One page of a list. Written as it stands: a payload's numbers keep their digits.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ListAnswer {
    items: Vec<TimerView>,
    /// Where the next page starts; null on the last.
    next: Option<String>,
}

/// Timers in due order, live and ended.
#[utoipa::path(get, path = "/v1/timers", tag = "timers",
    params(("state" = Option<String>, Query), ("owner" = Option<String>, Query),
        ("label.NAME" = Option<String>, Query, description = "Any number of these"),
        ("due_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("due_before" = Option<String>, Query, description = "Before, RFC 3339"),
        ("limit" = Option<u32>, Query, description = "1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, description = "A page may be short, or empty, and still have a next one", body = ListAnswer), (status = 422, body = Problem)))]
pub async fn list(
    State(state): State<Arc<ApiState>>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Answered {
    let service = state.service()?;
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let (filter, limit, cursor) = filter_of(query)?;
    let page = service.store.list(&filter, cursor, limit).await?;
    let items: Vec<TimerView> = page.rows.iter().map(TimerView::from).collect();
    Ok(Json(ListAnswer { items, next: page.next.map(cursor_text) }).into_response())
}

fn filter_of(query: Vec<(String, String)>) -> Result<(Filter, usize, Option<Place>), Problem> {
    let (mut filter, mut limit, mut cursor) = (Filter::default(), 100, None);
    let mut errors = Vec::new();
    let mut seen: HashMap<String, ()> = HashMap::new();
    for (name, value) in query {
        let mut bad = |code, detail: String| errors.push(FieldError::new(format!("?{name}"), code, detail));
        if seen.insert(name.clone(), ()).is_some() {
            bad("repeated", "given more than once".into());
            continue;
        }
        match name.as_str() {
            "state" => match TimerState::from_word(&value) {
                Some(state) => filter.state = Some(state),
                None => bad("unknown_state", TimerState::ALL.map(TimerState::word).join(", ")),
            },
            "owner" => filter.owner = Some(value.replace('\0', "\u{fffd}")),
            "due_after" | "due_before" => match UnixMs::parse_rfc3339(&value) {
                Ok(at) if name == "due_after" => filter.due_after = Some(at),
                Ok(at) => filter.due_before = Some(at),
                Err(why) => bad("bad_time", format!("{why} (a + in a URL is written %2B)")),
            },
            "limit" => match value.parse() {
                Ok(n) if (1..=MAX_LIST).contains(&n) => limit = n,
                _ => bad("range", format!("from 1 to {MAX_LIST}")),
            },
            "cursor" => match place_of(&value) {
                Some(place) => cursor = Some(place),
                None => bad("bad_cursor", "give `next` of the page before, unchanged".into()),
            },
            "destination" | "queue" | "schedule" => {
                bad("not_supported", "not supported by this version".into())
            }
            label if label.starts_with("label.") => {
                filter
                    .labels
                    .push((label["label.".len()..].replace('\0', ""), value.replace('\0', "\u{fffd}")));
            }
            _ => bad("unknown_field", "no such filter; see /docs".into()),
        }
    }
    if errors.is_empty() { Ok((filter, limit, cursor)) } else { Err(Problem::invalid(errors)) }
}

fn cursor_text(place: Place) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}.{}.{}", place.due_at, place.uid.simple(), place.generation))
}

fn place_of(text: &str) -> Option<Place> {
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let mut parts = plain.split('.');
    let place = Place {
        due_at: parts.next()?.parse().ok()?,
        uid: uuid::Uuid::try_parse(parts.next()?).ok()?,
        generation: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(place)
}

/// What a PATCH may change.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// The new due time: RFC 3339 with an offset.
    fire_at: Option<String>,
    /// The new due time, from now: an ISO 8601 duration.
    delay: Option<String>,
    /// The new payload; `null` empties it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Object)]
    data: Option<Box<RawValue>>,
    /// The new labels, all of them.
    labels: Option<std::collections::BTreeMap<String, String>>,
    #[schema(ignore)]
    priority: Option<serde_json::Value>,
}

/// Tells `null` from absent: what is there is `Some`, `null` too.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Change due time, payload or labels.
#[utoipa::path(patch, path = "/v1/timers/{id}", tag = "timers",
    params(("id" = String, Path), ("if-match" = Option<String>, Header, description = "The ETag it must still have")),
    request_body = Patch,
    responses((status = 200, body = TimerView, description = "A new generation if due time or payload changed"),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled"),
        (status = 412, body = Problem), (status = 422, body = Problem)))]
pub async fn patch(State(state): State<Arc<ApiState>>, Path(id): Path<String>, request: Request) -> Answered {
    let service = state.service()?;
    let timer_id = parse_id(&id)?;
    let if_version = if_match(request.headers())?;
    let bytes = body(request.into_body(), MAX_BODY).await?;
    let raw: Patch = request::read(&bytes, "")?;
    let mut errors = Vec::new();
    if raw.priority.is_some_and(|given| given != "normal") {
        errors.push(FieldError::new(
            "/priority",
            "not_supported",
            "not supported by this version; leave it out",
        ));
    }
    let now = service.store.clock().now();
    let due_at = match (&raw.fire_at, &raw.delay) {
        (None, None) => None,
        _ => request::due(&raw.fire_at, &raw.delay, &None, &None, now, &mut errors),
    };
    request::check_data(raw.data.as_deref(), &mut errors);
    let labels = raw.labels.as_ref().map(|given| request::labels(Some(given), &mut errors));
    if raw.fire_at.is_none() && raw.delay.is_none() && raw.data.is_none() && labels.is_none() {
        errors.push(FieldError::new("", "empty", "give at least one of fire_at, delay, data, labels"));
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let data = raw.data.map(|data| (data.get() != "null").then(|| data.get().as_bytes().to_vec()));
    let edit = Edit { due_at, data, labels, if_version };
    match change(&state, service, &timer_id, ChangeEvent::Edit(edit)).await? {
        (row, Answer::Done) => Ok(shown(StatusCode::OK, &row)),
        (row, answer) => Err(conflict(&row, answer)),
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<i32>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    // A tag of another form was never given out, so it cannot match.
    Ok(Some(text.trim_matches('"').parse().unwrap_or(-1)))
}

/// Take a timer back.
#[utoipa::path(delete, path = "/v1/timers/{id}", tag = "timers", params(("id" = String, Path)),
    responses((status = 200, description = "{\"outcome\": \"cancelled\"}: nothing was or ever will be sent; \
            \"stopped\": earlier attempts all surely failed, nothing more will be sent"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight: the cancel is recorded, no further attempt starts; already_fired")))]
pub async fn cancel(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    let service = state.service()?;
    let (row, answer) = change(&state, service, &parse_id(&id)?, ChangeEvent::Cancel).await?;
    match answer {
        Answer::Cancelled => Ok(Json(json!({ "outcome": "cancelled" })).into_response()),
        Answer::Stopped => Ok(Json(json!({ "outcome": "stopped" })).into_response()),
        other => Err(conflict(&row, other)),
    }
}

/// Fire now.
#[utoipa::path(post, path = "/v1/timers/{id}/fire", tag = "timers", params(("id" = String, Path)),
    responses((status = 202, body = TimerView), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_flight, already_fired, already_cancelled")))]
pub async fn fire(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    let service = state.service()?;
    match change(&state, service, &parse_id(&id)?, ChangeEvent::Fire).await? {
        (row, Answer::Done) => Ok(shown(StatusCode::ACCEPTED, &row)),
        (row, answer) => Err(conflict(&row, answer)),
    }
}

/// Applies a caller's change to the live timer, or finds what to answer from how it ended.
async fn change(
    state: &ApiState,
    service: &Service,
    id: &TimerId,
    event: ChangeEvent,
) -> Result<(TimerRow, Answer), Problem> {
    let uid = id.uid(service.store.namespace());
    let (probe, now) = match &event {
        ChangeEvent::Cancel => (Event::Cancel, UnixMs::default()),
        _ => (Event::Relabel, UnixMs::default()),
    };
    for _ in 0..3 {
        match service.changes.submit(Change { uid, event: event.clone() }).await?? {
            Applied::Live(row, answer) => {
                if row.life.state.is_end() {
                    state.app.metrics.ended.with_label_values(&[row.life.state.word()]).inc();
                }
                return Ok((*row, answer));
            }
            Applied::OtherVersion(version) => {
                let detail = format!("the timer's version is \"{version}\"; read it again and decide anew");
                return Err(Problem::new(StatusCode::PRECONDITION_FAILED, "version_changed", detail));
            }
            Applied::NotLive => match service.store.find(uid).await? {
                // Ended: the answer follows from how.
                Some(row) if row.life.state.is_end() => {
                    let answer = row.life.step(probe, now).answer;
                    return Ok((row, answer));
                }
                // Registered, or registered again, between the two looks.
                Some(_) => {}
                None => return Err(Problem::no_timer(id.as_str())),
            },
        }
    }
    Err(crate::cold::Error::Busy.into())
}

fn conflict(row: &TimerRow, answer: Answer) -> Problem {
    let id = &row.id;
    let (code, detail) = match (answer, row.life.state) {
        (Answer::InFlight, TimerState::Cancelled) => (
            "in_flight",
            format!(
                "`{id}` is cancelled, but the outcome of an earlier attempt is not known: the receiver may have got it"
            ),
        ),
        (Answer::InFlight, TimerState::Delivering) if row.life.cancel_requested => (
            "in_flight",
            format!(
                "an attempt of `{id}` is under way; the cancel is recorded and no further attempt starts"
            ),
        ),
        (Answer::InFlight, _) => {
            ("in_flight", format!("an attempt of `{id}` is under way, or its outcome is not known"))
        }
        (Answer::AlreadyCancelled, _) => ("already_cancelled", format!("`{id}` was cancelled before")),
        (_, TimerState::Expired) => (
            "already_fired",
            format!("`{id}` is over: it was found later than its grace and expired; nothing was sent"),
        ),
        (_, TimerState::Dead) => (
            "already_fired",
            format!("`{id}` is over: it ran out of attempts, or its receiver is gone (410)"),
        ),
        _ => ("already_fired", format!("`{id}` was delivered before")),
    };
    Problem::new(StatusCode::CONFLICT, code, detail)
}

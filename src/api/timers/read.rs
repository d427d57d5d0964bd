//! `GET`: one timer, its attempts, a list in due order.

use std::collections::{BTreeMap, HashSet};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;

use super::{ApiResult, TimerPath, bad_query, parse_id, timer_answer};
use crate::api::Within;
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{bad_label, escaped};
use crate::api::schema;
use crate::api::view::{AttemptView, TimerView};
use crate::cold::{Filter, ListCursor, TimerRow};
use crate::model::destination::is_name;
use crate::model::id::TimerId;
use crate::model::namespace::Salt;
use crate::model::queue::To;
use crate::model::schedule::is_schedule_id;
use crate::model::target::Webhook;
use crate::model::time::UnixMs;
use crate::model::timer::State as TimerState;
use crate::service::Service;

/// The most timers of one page.
pub const MAX_LIST: usize = 1000;
/// The timers of one page, unless the caller asks for another number.
pub const DEFAULT_LIST: usize = 100;

/// One timer, live or ended.
#[utoipa::path(get, path = "/v1/timers/{id}", tag = "timers", params(TimerPath),
    responses((status = 200, body = TimerView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let service = state.service()?;
    Ok(timer_answer(StatusCode::OK, &find(service, &id).await?, state.tiers(service)))
}

pub(super) async fn find(service: &Service, id: &str) -> Result<TimerRow, Problem> {
    let uid = parse_id(id)?.uid(service.store.salt());
    service.store.find(uid).await?.ok_or_else(|| Problem::no_timer(id))
}

/// A timer's attempts.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AttemptsAnswer {
    items: Vec<AttemptView>,
}

/// A timer's attempts that have ended, oldest first.
#[utoipa::path(get, path = "/v1/timers/{id}/attempts", tag = "timers", params(TimerPath),
    responses((status = 200, body = AttemptsAnswer), (status = 404, body = Problem)))]
pub async fn attempts(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let service = state.service()?;
    let row = find(service, &id).await?;
    let items: Vec<AttemptView> = service
        .store
        .attempts(&row)
        .await?
        .into_iter()
        .map(|record| AttemptView::new(&row, record))
        .collect();
    Ok(Json(AttemptsAnswer { items }).into_response())
}

/// One page of a list.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ListAnswer {
    items: Vec<TimerView>,
    /// The `cursor` of the next page; `null` on the last.
    #[schema(required, value_type = Option<schema::Cursor>)]
    next: Option<String>,
}

/// The most ids that one list may name.
const MAX_IDS: usize = 100;

/// The query of a list.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query in the OpenAPI document; `page_of` reads it")]
pub struct ListQuery {
    /// One of these timers; any number of these, up to 100.
    #[param(required = false, value_type = schema::TimerId)]
    id: String,
    #[param(required = false, value_type = schema::TimerState)]
    state: TimerState,
    /// The receiver of an inline webhook: scheme, host and port.
    #[param(required = false, inline, value_type = schema::Receiver)]
    receiver: String,
    /// The name of a destination.
    #[param(required = false, inline, value_type = schema::DestinationName)]
    destination: String,
    /// The name of a queue.
    #[param(required = false, inline, value_type = schema::QueueName)]
    queue: String,
    /// Whom a timer for a queue is for: `any`, `worker:NAME` or `group:NAME`.
    #[param(required = false, inline, value_type = schema::DispatchTo)]
    to: String,
    /// A worker that has a place of it now.
    #[param(required = false, inline, value_type = schema::WorkerName)]
    worker: String,
    /// The owner as registered, or a timer's id.
    #[param(required = false)]
    owner: String,
    /// The schedule that made them.
    #[param(required = false, inline, value_type = schema::ScheduleId)]
    schedule: String,
    /// The value of the label `NAME`; any number of these.
    #[param(required = false, rename = "label.NAME")]
    label: String,
    /// Due at this moment or later. In a URL a `+` is written `%2B`.
    #[param(required = false, value_type = schema::Instant)]
    due_after: UnixMs,
    /// Due before this moment.
    #[param(required = false, value_type = schema::Instant)]
    due_before: UnixMs,
    /// The most timers of a page.
    #[param(required = false, inline, value_type = schema::ListLimit)]
    limit: usize,
    #[param(required = false, inline, value_type = schema::Cursor)]
    cursor: String,
}

/// Timers in due order, live and ended.
#[utoipa::path(get, path = "/v1/timers", tag = "timers",
    params(ListQuery),
    responses((status = 200, description = "A page may be short, or empty, and still have a next one. A timer that a newer version wrote is left out", body = ListAnswer)))]
pub async fn list(
    Within(state): Within,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> ApiResult {
    let service = state.service()?;
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let (filter, limit, cursor) = page_of(query, service.store.salt())?;
    let page = service.store.list(&filter, cursor, limit).await?;
    let items: Vec<TimerView> =
        page.rows.iter().map(|row| TimerView::new(row, state.tiers(service))).collect();
    Ok(Json(ListAnswer { items, next: page.next.map(|next| next.to_string()) }).into_response())
}

/// What a list is asked for.
fn page_of(
    query: Vec<(String, String)>,
    salt: &Salt,
) -> Result<(Filter, usize, Option<ListCursor>), Problem> {
    let (mut limit, mut cursor) = (DEFAULT_LIST, None);
    let (mut errors, mut fields) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for (name, value) in query {
        let mut bad =
            |code, detail: String| errors.push(FieldError::new(Field::OfQuery.pointer(&name), code, detail));
        if name != "id" && !seen.insert(name.clone()) {
            bad("repeated", "it stands there more than once".into());
            continue;
        }
        match name.as_str() {
            "limit" => match value.parse() {
                Ok(n) if (1..=MAX_LIST).contains(&n) => limit = n,
                _ => bad("range", format!("from 1 to {MAX_LIST}")),
            },
            "cursor" => match value.parse() {
                Ok(place) => cursor = Some(place),
                Err(_) => bad("bad_cursor", "give `next` of the page before, unchanged".into()),
            },
            _ => fields.push((name, value)),
        }
    }
    let filter = filter_of(fields, salt, Field::OfQuery).unwrap_or_else(|more| {
        errors.extend(more);
        Filter::default()
    });
    if errors.is_empty() { Ok((filter, limit, cursor)) } else { Err(Problem::invalid(errors)) }
}

/// Where the fields of a filter stand.
#[derive(Clone, Copy)]
pub enum Field {
    /// In the query of a list.
    OfQuery,
    /// In the `filter` of a body.
    OfFilter,
}

impl Field {
    /// The pointer to one of them.
    pub fn pointer(self, name: &str) -> String {
        match self {
            Self::OfQuery => format!("?{name}"),
            Self::OfFilter => format!("/filter/{}", escaped(name)),
        }
    }
}

/// The filter that these fields are.
pub fn filter_of(
    fields: Vec<(String, String)>,
    salt: &Salt,
    place: Field,
) -> Result<Filter, Vec<FieldError>> {
    let mut filter = Filter::default();
    let mut errors = Vec::new();
    for (name, value) in fields {
        let mut bad = |code, detail: String| errors.push(FieldError::new(place.pointer(&name), code, detail));
        match name.as_str() {
            "id" => match TimerId::parse(&value) {
                Ok(_) if filter.uids.len() == MAX_IDS => {
                    bad("range", format!("at most {MAX_IDS} ids"));
                    break;
                }
                Ok(id) => filter.uids.push(id.uid(salt)),
                Err(why) => bad("bad_id", why.to_string()),
            },
            "receiver" => match Webhook::new(&value, None, BTreeMap::new()) {
                Ok(hook) => filter.lanes = Some(hook.lanes(salt.namespace)),
                Err(why) => bad("bad_receiver", format!("{why}; give scheme, host and port")),
            },
            "state" => match TimerState::from_word(&value) {
                Some(state) => filter.state = Some(state),
                None => bad("unknown_state", TimerState::ALL.map(TimerState::word).join(", ")),
            },
            "owner" => filter.owner = Some(value.replace('\0', "\u{fffd}")),
            "due_after" | "due_before" => match UnixMs::parse_rfc3339(&value) {
                Ok(at) if name == "due_after" => filter.due_after = Some(at),
                Ok(at) => filter.due_before = Some(at),
                Err(why) if matches!(place, Field::OfFilter) => bad("bad_time", why.to_string()),
                Err(why) => bad("bad_time", format!("{why} (a + in a URL is written %2B)")),
            },
            "destination" if is_name(&value) => filter.destination = Some(value),
            "destination" => bad("bad_name", "1 to 64 of A-Z a-z 0-9 . _ -".into()),
            "queue" if is_name(&value) => filter.queue = Some(value),
            "queue" => bad("bad_name", "1 to 64 of A-Z a-z 0-9 . _ -".into()),
            "to" => match To::try_from(value) {
                Ok(to) => filter.to = Some(to),
                Err(why) => bad("bad_to", why.to_string()),
            },
            "worker" => match TimerId::parse(&value) {
                Ok(_) => filter.worker = Some(value),
                Err(_) => bad("bad_name", "1 to 128 of A-Z a-z 0-9 . _ : -".into()),
            },
            "schedule" if is_schedule_id(&value) => filter.schedule = Some(value),
            "schedule" => bad("bad_id", "1 to 100 characters of A-Z a-z 0-9 . _ : -".into()),
            label if let Some(label) = label.strip_prefix("label.") => {
                match bad_label(label, &place.pointer(&name)) {
                    None => filter.labels.push((label.to_owned(), value.replace('\0', "\u{fffd}"))),
                    Some(why) => errors.push(why),
                }
            }
            _ => bad("unknown_field", "no such filter; see /docs".into()),
        }
    }
    if errors.is_empty() { Ok(filter) } else { Err(errors) }
}

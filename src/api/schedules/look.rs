//! `GET`: one schedule, a list, the next nominal times of one, those of all.

use std::collections::HashSet;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};

use super::{SchedulePath, answer, find, next_at, view};
use crate::api::Within;
use crate::api::auth::Caller;
use crate::api::problem::{ApiResult, FieldError, Problem};
use crate::api::request::bad_label;
use crate::api::schema;
use crate::api::timers::bad_query;
use crate::api::timers::read::{DEFAULT_LIST, MAX_LIST};
use crate::api::view::ScheduleView;
use crate::cold::{ScheduleFilter, SkippedRange, Whose};
use crate::model::destination::is_name;
use crate::model::queue::To;
use crate::model::rule::RuleError;
use crate::model::schedule::{ScheduleState, is_schedule_id, occurrence_id};
use crate::model::time::UnixMs;
use crate::schedule::upcoming::upcoming as ahead;

/// The most nominal times of one answer.
pub const MAX_TIMES: usize = 1000;

/// The nominal times of one answer, unless the caller asks for another number.
const DEFAULT_TIMES: usize = 10;

/// What is listed of upcoming nominal times if nothing is said: the next day.
const DAY_MS: i64 = 86_400_000;

/// One schedule.
#[utoipa::path(get, path = "/v1/schedules/{id}", tag = "schedules", operation_id = "schedule", params(SchedulePath),
    responses((status = 200, body = ScheduleView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let service = state.service()?;
    answer(&state, service, StatusCode::OK, &find(service, &id).await?)
}

/// The query of a list.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query in the OpenAPI document; `list` reads it")]
pub struct ScheduleQuery {
    #[param(required = false, value_type = schema::ScheduleStateWord)]
    state: String,
    /// The owner of the occurrences.
    #[param(required = false)]
    owner: String,
    /// The name of a destination.
    #[param(required = false, inline, value_type = schema::DestinationName)]
    destination: String,
    /// The name of a queue.
    #[param(required = false, inline, value_type = schema::QueueName)]
    queue: String,
    /// The value of the label `NAME`; any number of these.
    #[param(required = false, rename = "label.NAME")]
    label: String,
    /// The most schedules of a page.
    #[param(required = false, inline, value_type = schema::ListLimit)]
    limit: usize,
    #[param(required = false, inline, value_type = schema::ScheduleId)]
    cursor: String,
}

/// One page of a list.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SchedulesAnswer {
    items: Vec<ScheduleView>,
    /// The `cursor` of the next page; `null` on the last.
    #[schema(required, value_type = Option<schema::ScheduleId>)]
    next: Option<String>,
}

/// Schedules, by id.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", operation_id = "schedules", params(ScheduleQuery),
    responses((status = 200, body = SchedulesAnswer)))]
pub async fn list(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> ApiResult {
    let service = state.service()?;
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let (filter, limit, cursor) = page_of(query).map_err(Problem::invalid)?;
    let page = service.store.schedules(&filter, cursor.as_deref(), limit).await?;
    let now = service.store.clock().now();
    // Beside the runtime: a rule may take some microseconds.
    let rows = state
        .check(caller, usize::MAX, move || {
            let next = |row| (next_at(&row, now), row);
            page.rows.into_iter().map(next).collect::<Vec<_>>()
        })
        .await?;
    let items = rows.iter().map(|(next, row)| view(&state, service, row, *next)).collect();
    Ok(Json(SchedulesAnswer { items, next: page.next }).into_response())
}

/// What a list is asked for.
fn page_of(query: Vec<(String, String)>) -> Result<(ScheduleFilter, usize, Option<String>), Vec<FieldError>> {
    let (mut filter, mut limit, mut cursor) = (ScheduleFilter::default(), DEFAULT_LIST, None);
    let (mut errors, mut seen) = (Vec::new(), HashSet::new());
    for (name, value) in query {
        let mut bad = |code, detail: String| errors.push(FieldError::new(format!("?{name}"), code, detail));
        if !seen.insert(name.clone()) {
            bad("repeated", "it stands there more than once".into());
            continue;
        }
        match name.as_str() {
            "limit" => match value.parse() {
                Ok(n) if (1..=MAX_LIST).contains(&n) => limit = n,
                _ => bad("range", format!("from 1 to {MAX_LIST}")),
            },
            "cursor" if is_schedule_id(&value) => cursor = Some(value),
            "cursor" => bad("bad_cursor", "give `next` of the page before, unchanged".into()),
            "state" => match ScheduleState::from_word(&value) {
                Some(state) => filter.state = Some(state),
                None => bad("unknown_state", ScheduleState::ALL.map(ScheduleState::word).join(", ")),
            },
            "owner" => filter.owner = Some(value.replace('\0', "\u{fffd}")),
            "destination" if is_name(&value) => filter.destination = Some(value),
            "destination" => bad("bad_name", "1 to 64 of A-Z a-z 0-9 . _ -".into()),
            "queue" if is_name(&value) => filter.queue = Some(value),
            "queue" => bad("bad_name", "1 to 64 of A-Z a-z 0-9 . _ -".into()),
            label if let Some(label) = label.strip_prefix("label.") => {
                match bad_label(label, &format!("?{name}")) {
                    None => filter.labels.push((label.to_owned(), value.replace('\0', "\u{fffd}"))),
                    Some(why) => errors.push(why),
                }
            }
            _ => bad("unknown_field", "no such filter; see /docs".into()),
        }
    }
    if errors.is_empty() { Ok((filter, limit, cursor)) } else { Err(errors) }
}

/// The query of the next nominal times.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct NextQuery {
    /// How many. Default: 10.
    #[param(required = false, minimum = 1, maximum = 1000)]
    count: Option<usize>,
}

/// Nominal times.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NextAnswer {
    #[schema(value_type = Vec<schema::Moment>)]
    items: Vec<UnixMs>,
}

/// The next nominal times of a schedule, made or not. None while it is paused, and once it has ended.
#[utoipa::path(get, path = "/v1/schedules/{id}/next", tag = "schedules", operation_id = "next_of_schedule",
    params(SchedulePath, NextQuery),
    responses((status = 200, body = NextAnswer), (status = 404, body = Problem)))]
pub async fn next(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    query: Result<Query<NextQuery>, QueryRejection>,
) -> ApiResult {
    let service = state.service()?;
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let count = query.count.unwrap_or(DEFAULT_TIMES);
    if !(1..=MAX_TIMES).contains(&count) {
        let detail = format!("from 1 to {MAX_TIMES}");
        return Err(Problem::invalid(vec![FieldError::new("?count", "range", detail)]));
    }
    let (row, now) = (find(service, &id).await?, service.store.clock().now());
    let items = state.check(caller, usize::MAX, move || row.next_times(now, count)).await?;
    Ok(Json(NextAnswer { items: items.map_err(|why| unforeseen(&why))? }).into_response())
}

/// The query of skipped nominal times.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SkippedQuery {
    /// The most ranges. Default: 100.
    #[param(required = false, inline, value_type = schema::ListLimit)]
    limit: Option<usize>,
}

/// Nominal times that became no occurrence.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SkippedAnswer {
    /// The latest first.
    items: Vec<SkippedItem>,
}

/// Nominal times in a row that became no occurrence.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SkippedItem {
    /// The first of them.
    #[schema(value_type = schema::Moment)]
    first: UnixMs,
    /// The last of them.
    #[schema(value_type = schema::Moment)]
    last: UnixMs,
    /// How many.
    #[schema(minimum = 1)]
    count: i64,
    #[schema(value_type = schema::SkippedWord)]
    skipped: &'static str,
    /// When the first of them was recorded.
    #[schema(value_type = schema::Moment)]
    at: UnixMs,
}

/// Nominal times of a schedule that were skipped and became no occurrence, as ranges, the latest first. Of each schedule the
/// last 1,000 ranges are kept. Those that were made and skipped afterwards are timers: list them with `state=expired`.
#[utoipa::path(get, path = "/v1/schedules/{id}/skipped", tag = "schedules", operation_id = "skipped_of_schedule",
    params(SchedulePath, SkippedQuery),
    responses((status = 200, body = SkippedAnswer), (status = 404, body = Problem)))]
pub async fn skipped(
    Within(state): Within,
    Path(id): Path<String>,
    query: Result<Query<SkippedQuery>, QueryRejection>,
) -> ApiResult {
    let service = state.service()?;
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let limit = query.limit.unwrap_or(DEFAULT_LIST);
    if !(1..=MAX_LIST).contains(&limit) {
        return Err(Problem::invalid(vec![FieldError::new(
            "?limit",
            "range",
            format!("from 1 to {MAX_LIST}"),
        )]));
    }
    let row = find(service, &id).await?;
    let ranges = service.store.skipped_ranges(&row.id, limit).await?.into_iter();
    let item = |SkippedRange { first, last, count, reason, at }| {
        Some(SkippedItem { first, last, count, skipped: reason.word()?, at })
    };
    Ok(Json(SkippedAnswer { items: ranges.filter_map(item).collect() }).into_response())
}

/// The query of upcoming nominal times.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UpcomingQuery {
    /// At this moment or later; now, if left out. In a URL a `+` is written `%2B`.
    #[param(required = false, value_type = schema::Instant)]
    from: Option<String>,
    /// Before this moment; a day after `from`, if left out.
    #[param(required = false, value_type = schema::Instant)]
    to: Option<String>,
    /// Only of schedules for this queue.
    #[param(required = false, inline, value_type = schema::QueueName)]
    queue: Option<String>,
    /// Only of those for a queue that are given out to this group.
    #[param(required = false, inline, value_type = schema::WorkerName)]
    to_group: Option<String>,
}

/// Nominal times of all schedules.
#[derive(Serialize, utoipa::ToSchema)]
pub struct UpcomingAnswer {
    /// In order, at most 1,000.
    items: Vec<UpcomingItem>,
    /// Whether there are more: ask again from the time of the last one, or, where that is the time of all, by queue or group.
    more: bool,
}

/// One nominal time.
#[derive(Serialize, utoipa::ToSchema)]
pub struct UpcomingItem {
    #[schema(value_type = schema::ScheduleId)]
    schedule: String,
    /// The nominal time.
    #[schema(value_type = schema::Moment)]
    at: UnixMs,
    /// The id of its occurrence.
    #[schema(value_type = schema::TimerId)]
    timer: String,
    /// Whether the occurrence is made already.
    made: bool,
}

/// Nominal times of all schedules that are active, made or not.
#[utoipa::path(get, path = "/v1/schedules/upcoming", tag = "schedules", operation_id = "upcoming", params(UpcomingQuery),
    responses((status = 200, body = UpcomingAnswer)))]
pub async fn upcoming(
    Within(state): Within,
    query: Result<Query<UpcomingQuery>, QueryRejection>,
    request: Request,
) -> ApiResult {
    let service = state.service()?;
    let caller = crate::api::state::caller(&request);
    let Query(query) = query.map_err(|why| bad_query(&why))?;
    let now = service.store.clock().now();
    let asked = asked(query, now).map_err(Problem::invalid)?;
    let (from, to) = (asked.from, asked.to_before);
    let rows = service
        .store
        .rhythms(Whose::One(service.namespace()), asked.queue.as_deref(), asked.to.as_ref())
        .await?;
    let found = state
        .check(caller, usize::MAX, move || {
            let (found, more) = ahead(&rows, from, to, now, MAX_TIMES)?;
            let item = |one: crate::schedule::upcoming::Upcoming| {
                let row = &rows[one.of];
                Some(UpcomingItem {
                    schedule: row.id.clone(),
                    at: one.at,
                    timer: occurrence_id(&row.id, one.at)?.as_str().to_owned(),
                    made: one.at <= row.last_nominal,
                })
            };
            Ok(UpcomingAnswer { items: found.into_iter().filter_map(item).collect(), more })
        })
        .await?;
    Ok(Json(found.map_err(|why| unforeseen(&why))?).into_response())
}

/// What is asked for.
struct Asked {
    from: UnixMs,
    to_before: UnixMs,
    queue: Option<String>,
    to: Option<To>,
}

fn asked(query: UpcomingQuery, now: UnixMs) -> Result<Asked, Vec<FieldError>> {
    let mut errors = Vec::new();
    if query.queue.as_deref().is_some_and(|name| !is_name(name)) {
        errors.push(FieldError::new("?queue", "bad_name", "1 to 64 of A-Z a-z 0-9 . _ -"));
    }
    let to = query.to_group.map(|name| To::try_from(format!("group:{name}"))).transpose();
    let to = to.unwrap_or_else(|why| {
        errors.push(FieldError::new("?to_group", "bad_to", why.to_string()));
        None
    });
    let mut moment = |name: &str, text: &Option<String>| match text.as_deref().map(UnixMs::parse_rfc3339) {
        Some(Err(why)) => {
            let detail = format!("{why} (a + in a URL is written %2B)");
            errors.push(FieldError::new(format!("?{name}"), "bad_time", detail));
            None
        }
        Some(Ok(at)) => Some(at),
        None => None,
    };
    let from = moment("from", &query.from).unwrap_or(now);
    let to_before = moment("to", &query.to).unwrap_or_else(|| from.shifted(DAY_MS));
    if to_before <= from {
        errors.push(FieldError::new("?to", "range", "it has to be later than `from`"));
    }
    if errors.is_empty() { Ok(Asked { from, to_before, queue: query.queue, to }) } else { Err(errors) }
}

/// A rule that was checked has failed to tell its next nominal time: the maker tells it in the log.
fn unforeseen(why: &RuleError) -> Problem {
    crate::cold::Error::Corrupt(format!("a rule: {why}")).into()
}

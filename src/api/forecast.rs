//! `GET /v1/forecast`: how much is due when.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::Within;
use super::auth::Caller;
use super::namespaces::HEADER;
use super::problem::{FieldError, Problem};
use super::schema;
use crate::model::time::{Span, UnixMs};
use crate::observe::forecast::{MAX_ITEMS, forecast as count};

/// What is asked for if nothing is said: the next day, by the hour.
const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;

/// The query of a forecast.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ForecastQuery {
    /// Where it begins; now, if left out. In a URL a `+` is written `%2B`.
    #[param(required = false, value_type = schema::Instant)]
    from: Option<String>,
    /// Where it ends; a day after its beginning, if left out.
    #[param(required = false, value_type = schema::Instant)]
    to: Option<String>,
    /// The length of a step: an hour, if left out, or what makes at most 1,500 steps.
    #[param(required = false, value_type = schema::Duration)]
    step: Option<String>,
}

/// What is due when.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ForecastAnswer {
    /// The steps that hold timers, in order.
    items: Vec<ForecastItem>,
    /// The fullest step, the first of equal ones; `null` if nothing is due.
    #[schema(required)]
    peak: Option<ForecastItem>,
    /// When this was counted. A range with very many timers is read from a summary, which is some minutes old and counts
    /// by the minute for a day, by the hour for two months, by the day beyond.
    #[schema(value_type = schema::Moment)]
    counted_at: UnixMs,
    /// There are more nominal times of schedules in this range than are counted beside timers (100,000, and all of a rule
    /// `every`); give a shorter range.
    more: bool,
}

/// One step.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ForecastItem {
    /// When it begins.
    #[schema(value_type = schema::Moment)]
    from: UnixMs,
    /// Timers that are due in it.
    count: i64,
}

/// How many live timers are due when, and how many nominal times of schedules that are not made yet.
#[utoipa::path(get, path = "/v1/forecast", tag = "service", params(ForecastQuery),
    responses((status = 200, body = ForecastAnswer)))]
pub async fn forecast(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Result<Query<ForecastQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let service = state.service()?;
    let bad_query =
        |why: QueryRejection| Problem::invalid(vec![FieldError::new("?", "bad_query", why.body_text())]);
    let Query(query) = query.map_err(bad_query)?;
    let (from, to, step) = range(&query, service.store.clock().now()).map_err(Problem::invalid)?;
    let found =
        count(&service.store, caller.is_of_all() && !headers.contains_key(HEADER), (from, to), step).await?;
    let item = |(from, count)| ForecastItem { from, count };
    let answer = ForecastAnswer {
        items: found.items.into_iter().map(item).collect(),
        peak: found.peak.map(item),
        counted_at: found.counted_at,
        more: found.is_cut,
    };
    Ok(Json(answer).into_response())
}

/// The range and the step in milliseconds that are asked for.
fn range(query: &ForecastQuery, now: UnixMs) -> Result<(UnixMs, UnixMs, i64), Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut moment = |name: &str, text: &Option<String>| {
        let read = text.as_deref().map(UnixMs::parse_rfc3339).transpose();
        read.unwrap_or_else(|why| {
            let detail = format!("{why} (a + in a URL is written %2B)");
            errors.push(FieldError::new(format!("?{name}"), "bad_time", detail));
            None
        })
    };
    let from = moment("from", &query.from).unwrap_or(now);
    let to = moment("to", &query.to).unwrap_or(UnixMs::new(from.get().saturating_add(DAY_MS)));
    let length = to.get().saturating_sub(from.get());
    if length <= 0 {
        errors.push(FieldError::new("?to", "range", "it has to be later than `from`"));
    }
    let step = match query.step.as_deref().map(Span::parse) {
        None => HOUR_MS.max((length / MAX_ITEMS / HOUR_MS + 1) * HOUR_MS),
        Some(Ok(step)) => i64::try_from(step.get().as_millis()).unwrap_or(i64::MAX),
        Some(Err(why)) => {
            errors.push(FieldError::new("?step", "bad_duration", why.to_string()));
            HOUR_MS
        }
    };
    if step == 0 || length / step.max(1) > MAX_ITEMS {
        let detail =
            format!("from `from` to `to` there would be more than {MAX_ITEMS} steps; give a longer one");
        errors.push(FieldError::new("?step", "range", detail));
    }
    if errors.is_empty() { Ok((from, to, step)) } else { Err(errors) }
}

//! Read: one timer, its attempts, many in due order.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use super::{Answered, bad_query, parse_id, shown};
use crate::api::ApiState;
use crate::api::problem::{FieldError, Problem};
use crate::api::view::{AttemptView, TimerView};
use crate::cold::{Filter, Place, TimerRow};
use crate::model::time::UnixMs;
use crate::model::timer::State as TimerState;
use crate::service::Service;

const MAX_LIST: usize = 1000;

/// One timer, live or ended.
#[utoipa::path(get, path = "/v1/timers/{id}", tag = "timers", params(("id" = String, Path)),
    responses((status = 200, body = TimerView), (status = 404, body = Problem)))]
pub async fn get(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Answered {
    let service = state.service()?;
    Ok(shown(StatusCode::OK, &find(service, &id).await?, state.tiers(service)))
}

pub(super) async fn find(service: &Service, id: &str) -> Result<TimerRow, Problem> {
    let uid = parse_id(id)?.uid(service.store.namespace());
    service.store.find(uid).await?.ok_or_else(|| Problem::no_timer(id))
}

/// A timer's attempts.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AttemptsAnswer {
    items: Vec<AttemptView>,
}

/// The attempts that are over, oldest first.
#[utoipa::path(get, path = "/v1/timers/{id}/attempts", tag = "timers", params(("id" = String, Path)),
    responses((status = 200, body = AttemptsAnswer), (status = 404, body = Problem)))]
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
    Ok(Json(AttemptsAnswer { items }).into_response())
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
    let items: Vec<TimerView> =
        page.rows.iter().map(|row| TimerView::new(row, state.tiers(service))).collect();
    Ok(Json(ListAnswer { items, next: page.next.map(cursor_text) }).into_response())
}

fn filter_of(query: Vec<(String, String)>) -> Result<(Filter, usize, Option<Place>), Problem> {
    let (mut filter, mut limit, mut cursor) = (Filter::default(), 100, None);
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (name, value) in query {
        let mut bad = |code, detail: String| errors.push(FieldError::new(format!("?{name}"), code, detail));
        if !seen.insert(name.clone()) {
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

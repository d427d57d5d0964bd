//! `GET /v1/timers/{id}/explain`: a timer's life in order, and what it waits for, in words.

use axum::extract::Path;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use super::{ApiResult, TimerPath, read};
use crate::api::problem::Problem;
use crate::api::schema;
use crate::api::view::TimerView;
use crate::api::{Caller, Within};
use crate::model::time::UnixMs;
use crate::service::explain::{LifeEvent, explain as explained};

/// A timer's life.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Explanation {
    timer: TimerView,
    /// In order.
    events: Vec<EventView>,
    /// What it waits for, in words; `null` once it has ended.
    #[schema(required)]
    waiting_for: Option<String>,
}

/// One event of a timer's life.
#[derive(Serialize, utoipa::ToSchema)]
pub struct EventView {
    #[schema(value_type = schema::Moment)]
    at: UnixMs,
    #[schema(value_type = schema::EventWord)]
    event: &'static str,
    /// The node that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    node: Option<String>,
    /// More about it, in words for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    detail: Option<String>,
}

impl From<LifeEvent> for EventView {
    fn from(event: LifeEvent) -> Self {
        Self { at: event.at, event: event.event, node: event.node, detail: event.detail }
    }
}

/// Its life in order, and what it waits for.
#[utoipa::path(get, path = "/v1/timers/{id}/explain", tag = "timers", params(TimerPath),
    responses((status = 200, body = Explanation), (status = 404, body = Problem)))]
pub async fn explain(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ApiResult {
    let service = state.service()?;
    let row = read::find(service, &id).await?;
    let explained = explained(service, &state.node.config, &row, caller).await?;
    let explanation = Explanation {
        events: explained.events.into_iter().map(EventView::from).collect(),
        waiting_for: explained.waiting_for,
        timer: TimerView::new(&row, state.tiers(service)),
    };
    Ok(Json(explanation).into_response())
}

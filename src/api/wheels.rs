//! `GET /v1/wheels`: the cursors of the wheels, and how many pointers are in each slot. `GET /v1/wheels/stream`: the same
//! as it changes.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::Serialize;

use super::Within;
use super::auth::Caller;
use super::problem::Problem;
use super::schema;
use crate::model::time::{Span, UnixMs};
use crate::observe::frame::Frame;
use crate::observe::slots::reach;
use crate::wheel::{Level, Slot, Standing};

/// The wheels of the whole store, or of this node when they live in its process.
#[derive(Serialize, utoipa::ToSchema)]
pub struct WheelsView {
    /// Whether all nodes share them (Redis), or each has its own.
    shared: bool,
    /// Reach of the minute wheel.
    #[schema(value_type = schema::Duration)]
    window: Span,
    /// Reach of the second wheel.
    #[schema(value_type = schema::Duration)]
    near: Span,
    /// The second wheel, the minute wheel, and the minutes of `precision: minute`.
    wheels: Vec<WheelView>,
    shards: Vec<ShardView>,
    /// Pointers that this node has taken from the wheels and that are not due yet.
    last_mile: i64,
}

/// One wheel, all shards together.
#[derive(Serialize, utoipa::ToSchema)]
pub struct WheelView {
    #[schema(value_type = schema::WheelWord)]
    level: &'static str,
    /// The end of the last slot that every shard has taken.
    #[schema(required, value_type = Option<schema::Moment>)]
    cursor: Option<UnixMs>,
    /// Pointers in all its slots.
    count: usize,
    /// The slots that hold pointers, in order.
    slots: Vec<SlotView>,
}

/// One slot, all shards together.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SlotView {
    #[schema(value_type = schema::Moment)]
    starts_at: UnixMs,
    /// Pointers in it.
    count: usize,
}

/// How far one shard is promoted and handed over.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ShardView {
    shard: i32,
    /// Its owner; `null` if it has none.
    #[schema(required)]
    node: Option<String>,
    /// The number of its ownership; it only rises.
    epoch: i64,
    /// Timers that wake before this are in the wheels.
    #[schema(value_type = schema::Moment)]
    watermark: UnixMs,
    /// The end of the last slot of the second wheel that was taken; `null` if there is no wheel, or it does not answer.
    #[schema(required, value_type = Option<schema::Moment>)]
    cursor: Option<UnixMs>,
}

/// The wheels: cursors, and how many pointers each slot holds.
#[utoipa::path(get, path = "/v1/wheels", tag = "service",
    responses((status = 200, body = WheelsView), (status = 503, body = Problem,
        description = "wheels_unavailable: the wheels do not answer; or as for other calls")))]
pub async fn wheels(Within(state): Within) -> Result<Response, Problem> {
    let service = state.service()?;
    let rows = service.store.shard_rows(&[]).await?;
    let shards: Vec<i32> = rows.iter().map(|row| row.shard).collect();
    let away = |why: crate::wheel::Error| {
        let detail = "the wheels do not answer; timers fire from SQL, up to a second late";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "wheels_unavailable", detail)
            .retry_after(1)
            .because(why)
    };
    // The shards whose wheels do not answer are left out, unless none does.
    let missing = service.positions.unreachable();
    let asked: Vec<i32> = match missing.len() < shards.len() {
        true => shards.iter().copied().filter(|shard| !missing.contains(shard)).collect(),
        false => shards.clone(),
    };
    let found = service.hot.look(&asked).await.map_err(away)?;
    let mut found: HashMap<i32, Option<Standing>> = asked.into_iter().zip(found).collect();
    let standings: Vec<Option<Standing>> = shards.iter().map(|shard| found.remove(shard).flatten()).collect();
    let mut slots: Vec<(i32, Slot)> = Vec::new();
    for (row, standing) in rows.iter().zip(&standings) {
        let Some(standing) = standing else { continue };
        for level in Level::ALL {
            slots.extend(reach(level, standing, row.watermark).map(|slot| (row.shard, slot)));
        }
    }
    let counts = service.hot.counts(&slots).await.map_err(away)?;
    let mut by_slot: BTreeMap<Slot, usize> = BTreeMap::new();
    for ((_, slot), count) in slots.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
        *by_slot.entry(slot).or_default() += count;
    }
    let wheel = |level: Level| {
        let marks = standings.iter().flatten().map(|standing| standing.marks.of(level));
        let of_level = by_slot.iter().filter(|(slot, _)| slot.level == level);
        WheelView {
            level: level.word(),
            cursor: marks.min().map(|tick| Slot { level, tick }.ends_at()),
            count: of_level.clone().map(|(_, count)| count).sum(),
            slots: of_level
                .map(|(slot, count)| SlotView { starts_at: slot.starts_at(), count: *count })
                .collect(),
        }
    };
    let config = &state.node.config.wheel;
    let view = WheelsView {
        shared: service.hot.is_shared(),
        window: config.window,
        near: config.near,
        wheels: Level::ALL.into_iter().map(wheel).collect(),
        shards: rows
            .into_iter()
            .zip(&standings)
            .map(|(row, standing)| ShardView {
                shard: row.shard,
                node: row.owner,
                epoch: row.epoch.0,
                watermark: row.watermark,
                cursor: standing
                    .as_ref()
                    .map(|standing| Slot { level: Level::Second, tick: standing.marks.second }.ends_at()),
            })
            .collect(),
        last_mile: state.node.metrics.last_mile.get(),
    };
    Ok(Json(view).into_response())
}

/// The wheels as they change, four times a second: server-sent events `full` and `delta`
/// ([`crate::observe::frame`]).
#[utoipa::path(get, path = "/v1/wheels/stream", tag = "service",
    responses((status = 200, body = String, content_type = "text/event-stream",
        description = "`full` at the start and now and then: all counts. `delta`: the counts that changed, 0 for a slot that \
                       is empty now; once a second with the overview `x`")))]
pub async fn watch(Within(state): Within, Extension(caller): Extension<Caller>) -> Result<Response, Problem> {
    let event = |frame: Frame| Event::default().event(frame.event).data(&*frame.data);
    let frames = state.service()?.observer.frames().await;
    let node = Arc::clone(&state.node);
    let events = frames
        .take_while(move |_| futures::future::ready(node.keys.holds(caller)))
        .map(move |frame| Ok::<_, Infallible>(event(frame)))
        .take_until(state.closing.clone().cancelled_owned());
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

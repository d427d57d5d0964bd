//! Queues: what waits in each, and for how long; pause and resume.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::timers::list_of;
use super::words::{self, Moment};
use super::{Admin, html};
use crate::cold::most_counted;
use crate::model::destination::is_name;
use crate::model::queue::lane;

/// The most queues of the page.
const MOST: usize = 500;

#[derive(Template)]
#[template(path = "queues.html", config = ".askama.toml")]
struct QueuesPage {
    frame: Frame,
    rows: Vec<Row>,
    /// There are more than are shown.
    is_cut: bool,
}

struct Row {
    name: String,
    /// The list of its timers.
    href: String,
    /// Where it is paused and resumed.
    act: String,
    paused: bool,
    ready: String,
    leased: String,
    scheduled: String,
    oldest: Option<Moment>,
}

/// `GET /queues`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let (now, zone) = (service.store.clock().now(), visit.zone);
    let mut queues = service.store.queues("", MOST + 1).await?;
    let is_cut = queues.len() > MOST;
    queues.truncate(MOST);
    let lanes: Vec<i64> = queues.iter().map(|queue| lane(queue.namespace, &queue.name)).collect();
    let depths = service.store.queue_depths(&lanes).await?;
    let most = most_counted(lanes.len());
    let shown = |count| format!("{}{}", words::number(count), if count < most { "" } else { " or more" });
    let rows: Vec<Row> = queues
        .iter()
        .zip(depths)
        .map(|(queue, depth)| Row {
            name: queue.name.clone(),
            href: list_of(&[("queue", &queue.name)]),
            act: format!("/queues/{}", queue.name),
            paused: queue.paused,
            ready: shown(depth.ready),
            leased: shown(depth.leased),
            scheduled: shown(depth.scheduled),
            oldest: depth.oldest_ready_at.map(|at| zone.moment(at, now)),
        })
        .collect();
    Ok(html(&QueuesPage { frame: Frame::new(&admin, &visit, "/queues", "Queues"), rows, is_cut }))
}

/// `POST /queues/{name}/pause`.
pub async fn pause(admin: State<Arc<Admin>>, name: Path<String>, visit: Visit) -> Result<Response, Trouble> {
    set_paused(&admin, &name, &visit, true).await
}

/// `POST /queues/{name}/resume`.
pub async fn resume(admin: State<Arc<Admin>>, name: Path<String>, visit: Visit) -> Result<Response, Trouble> {
    set_paused(&admin, &name, &visit, false).await
}

async fn set_paused(admin: &Admin, name: &str, visit: &Visit, paused: bool) -> Result<Response, Trouble> {
    let service = admin.service(visit)?;
    let row = if is_name(name) { service.store.pause_queue(name, paused).await? } else { None };
    row.ok_or_else(|| Trouble::refused("There is no queue of this name any more."))?;
    if !paused {
        service.queues.changed(service.namespace(), name).await;
    }
    Ok(Redirect::to("/queues").into_response())
}

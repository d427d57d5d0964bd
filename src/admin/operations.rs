//! Operations on many timers: begun from a search, counted first, then done by a button that names how many.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::timers::Search;
use super::words::{self, Moment, Zone};
use super::{Admin, html};
use crate::cold::{MAX_RUNNING, OperationRow, Selection};
use crate::model::operation::{Action, OperationId, OperationState, parse_shift, shift_text};
use crate::model::time::{LAST, UnixMs};
use crate::service::Service;

/// An operation as a list shows it.
struct View {
    id: String,
    href: String,
    /// `shift by PT1H`.
    action: String,
    /// What it is for, as it was asked.
    filter: String,
    dry_run: bool,
    state: &'static str,
    is_running: bool,
    matched: String,
    done: String,
    refused: String,
    began: Moment,
    node: String,
}

impl View {
    fn new(row: &OperationRow, zone: Zone, now: UnixMs) -> Self {
        let by = row.selection().ok().and_then(|selection| selection.by_ms);
        let by = by.map_or_else(String::new, |by| format!(" by {}", shift_text(by)));
        Self {
            id: row.id.to_string(),
            href: format!("/operations/{}", row.id),
            action: format!("{}{by}", row.action),
            filter: words_of(&row.filter),
            dry_run: row.dry_run,
            state: row.state.word(),
            is_running: row.state == OperationState::Running,
            matched: words::number(row.matched),
            done: words::number(row.done),
            refused: words::number(row.refused.values().sum::<i64>()),
            began: zone.moment(row.created_at, now),
            node: row.node.clone().unwrap_or_default(),
        }
    }
}

/// A filter in words: `owner user:123, state dead`.
fn words_of(filter: &str) -> String {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(filter).unwrap_or_default();
    let word = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(all) => {
            all.iter().filter_map(|one| one.as_str()).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    };
    fields.iter().map(|(name, value)| format!("{name} {}", word(value))).collect::<Vec<_>>().join(", ")
}

#[derive(Template)]
#[template(path = "operations.html", config = ".askama.toml")]
struct OperationsPage {
    frame: Frame,
    rows: Vec<View>,
}

/// `GET /operations`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let now = service.store.clock().now();
    let rows = service.operations.list(service.namespace()).await?;
    let rows = rows.iter().map(|row| View::new(row, visit.zone, now)).collect();
    Ok(html(&OperationsPage { frame: Frame::new(&admin, &visit, "/operations", "Operations"), rows }))
}

#[derive(Template)]
#[template(path = "operation.html", config = ".askama.toml")]
struct OperationPage {
    frame: Frame,
    view: View,
    /// How many were refused, by reason.
    refused: Vec<(String, String)>,
    failure: Option<String>,
    /// What the button of a count that has ended says.
    button: Option<String>,
}

async fn find(service: &Service, id: &str) -> Result<OperationRow, Trouble> {
    let id = OperationId::parse(id).ok_or_else(Trouble::no_operation)?;
    service.operations.find(service.namespace(), id).await?.ok_or_else(Trouble::no_operation)
}

/// `GET /operations/{id}`.
pub async fn one(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let row = find(&service, &id).await?;
    let view = View::new(&row, visit.zone, service.store.clock().now());
    let left = row.matched - row.refused.values().sum::<i64>();
    let is_counted = row.dry_run && row.state == OperationState::Done && left > 0;
    let button = format!("{} {}", view.action, words::count(usize::try_from(left).unwrap_or(0), "timer"));
    let refused = row.refused.iter().map(|(why, count)| (why.clone(), words::number(*count))).collect();
    let title = format!("{} · {}", view.action, view.state);
    let page = OperationPage {
        frame: Frame::new(&admin, &visit, "/operations", title),
        refused,
        failure: row.failure,
        button: is_counted.then_some(button),
        view,
    };
    Ok(html(&page))
}

/// `POST /operations`: counts the timers of a search.
pub async fn count(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let action = Action::from_word(visit.form.get("action")).ok_or_else(Trouble::stale)?;
    // The address of a search holds times with their offset.
    let search = Search::read(visit.form.get("query"), visit.zone, service.store.salt());
    if !search.wrongs.is_empty() || !search.asked.any {
        return Err(Trouble::refused(
            "Search for something first: an operation on every timer is not begun here.",
        ));
    }
    if let Some(state) = search.filter.state.filter(|state| !action.states().contains(state)) {
        let text = format!("{} takes no timers that are {}.", action.word(), state.word());
        return Err(Trouble::refused(text));
    }
    let by_ms = match action {
        Action::Shift => {
            let by = parse_shift(visit.form.get("by").trim());
            Some(by.map_err(|why| Trouble::refused(format!("How far is not said: {why}.")))?)
        }
        _ => None,
    };
    let text = search.json();
    let selection = Selection { filter: search.filter, ended_before: LAST, by_ms, ..Selection::default() };
    shown(service.operations.begin(service.namespace(), action, text, selection, true).await?)
}

/// `POST /operations/{id}/run`: does what was counted. Sent again, it leads to the same operation.
pub async fn run(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let counted = find(&service, &id).await?;
    let action = Action::from_word(&counted.action).filter(|_| counted.dry_run).ok_or_else(Trouble::stale)?;
    shown(service.operations.begin_counted(&counted, action).await?)
}

/// `POST /operations/{id}/stop`.
pub async fn stop(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let row = find(&service, &id).await?;
    service.operations.end(service.namespace(), row.id).await?;
    Ok(Redirect::to(&format!("/operations/{}", row.id)).into_response())
}

/// Leads to an operation that has begun.
fn shown(begun: Option<OperationRow>) -> Result<Response, Trouble> {
    let full =
        || Trouble::refused(format!("{MAX_RUNNING} operations run already; wait for one, or stop one."));
    let row = begun.ok_or_else(full)?;
    Ok(Redirect::to(&format!("/operations/{}", row.id)).into_response())
}

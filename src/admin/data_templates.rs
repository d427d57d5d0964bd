//! Templates: the list, and one of them with its schema and its defaults.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::words::{self, Moment};
use super::{Admin, html};
use crate::model::destination::is_name;

/// The most templates of the page.
const MOST: usize = 500;

#[derive(Template)]
#[template(path = "data_templates.html", config = ".askama.toml")]
struct TemplatesPage {
    frame: Frame,
    rows: Vec<Row>,
    /// There are more than are shown.
    is_cut: bool,
    base: String,
}

struct Row {
    name: String,
    href: String,
    schema: String,
    has_defaults: bool,
    version: String,
    changed: Moment,
}

/// `GET /templates`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let now = service.store.clock().now();
    let mut found = service.store.templates(None).await?;
    let is_cut = found.len() > MOST;
    found.truncate(MOST);
    let row = |one: crate::cold::TemplateRow| Row {
        href: format!("/templates/{}", one.name),
        name: one.name,
        schema: words::count(one.schema.len(), "byte"),
        has_defaults: one.defaults.is_some(),
        version: words::number(one.version),
        changed: visit.zone.moment(one.changed_at, now),
    };
    let frame = Frame::new(&admin, &visit, "/templates", "Templates");
    let base = frame.base.clone();
    Ok(html(&TemplatesPage { frame, rows: found.into_iter().map(row).collect(), is_cut, base }))
}

#[derive(Template)]
#[template(path = "data_template.html", config = ".askama.toml")]
struct TemplatePage {
    frame: Frame,
    name: String,
    schema: String,
    defaults: Option<String>,
    created: Moment,
    changed: Moment,
}

/// `GET /templates/{name}`.
pub async fn one(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let now = service.store.clock().now();
    let found = if is_name(&name) { service.store.templates(Some(&[name])).await? } else { Vec::new() };
    let row = found.into_iter().next().ok_or_else(Trouble::no_template)?;
    Ok(html(&TemplatePage {
        frame: Frame::new(&admin, &visit, "/templates", format!("{} · template", row.name)),
        name: row.name,
        schema: in_lines(&row.schema),
        defaults: row.defaults.as_deref().map(in_lines),
        created: visit.zone.moment(row.created_at, now),
        changed: visit.zone.moment(row.changed_at, now),
    }))
}

/// JSON with a line for each member. What a store restored from elsewhere has that is none stays as it is.
fn in_lines(json: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(json);
    value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_else(|_| json.to_owned())
}

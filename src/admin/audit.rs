//! The audit: who did what to the service, the latest first.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::words::Moment;
use super::{Admin, html};
use crate::cold::{AuditFilter, AuditRow};
use crate::model::key::Scope;
use crate::model::time::UnixMs;

/// How many entries one page has.
const MOST: usize = 100;

#[derive(Template)]
#[template(path = "audit.html", config = ".askama.toml")]
struct AuditPage {
    frame: Frame,
    rows: Vec<Row>,
    actor: String,
    action: String,
    /// The address of the page after this one.
    next: Option<String>,
    is_first: bool,
    first: String,
}

struct Row {
    at: Moment,
    /// What the key is called; any key may be called so.
    who: Option<String>,
    id: String,
    from: Option<String>,
    action: String,
    object: String,
    was: Option<String>,
    became: Option<String>,
}

/// `GET /audit`: with `actor` and `action` only what these have, from `before` on.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let caller = visit.caller.ok_or_else(Trouble::stale)?;
    if caller.scope < Scope::Operate {
        return Err(Trouble::beyond(caller.scope, Scope::Operate));
    }
    let service = admin.service(&visit)?;
    let query = visit.path.split_once('?').map_or("", |(_, query)| query);
    let field = |wanted: &str| {
        let found = url::form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let (actor, action) = (field("actor"), field("action"));
    let before = field("before").and_then(|text| {
        let (at, id) = text.split_once('-')?;
        Some((UnixMs::new(at.parse().ok()?), id.parse().ok()?))
    });
    let filter = AuditFilter {
        actor: actor.clone(),
        action: action.clone(),
        before,
        without_keys: caller.scope < Scope::Admin,
        of_one: !caller.is_of_all(),
        ..AuditFilter::default()
    };
    let mut found = service.store.audited(&filter, MOST + 1).await?;
    let is_last = found.len() <= MOST;
    found.truncate(MOST);
    let address = |before: Option<&AuditRow>| {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in [("actor", &actor), ("action", &action)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        if let Some(row) = before {
            query.append_pair("before", &format!("{}-{}", row.at.get(), row.id));
        }
        format!("/audit?{}", query.finish())
    };
    let next = found.last().filter(|_| !is_last).map(|row| address(Some(row)));
    let first = address(None);
    let now = service.store.clock().now();
    let row = |one: AuditRow| Row {
        at: visit.zone.moment(one.at, now),
        who: one.actor.name,
        id: one.actor.id,
        from: one.actor.from,
        action: one.action,
        object: one.object,
        was: one.was,
        became: one.became,
    };
    Ok(html(&AuditPage {
        frame: Frame::new(&admin, &visit, "/audit", "Audit"),
        rows: found.into_iter().map(row).collect(),
        actor: actor.unwrap_or_default(),
        action: action.unwrap_or_default(),
        next,
        is_first: before.is_none(),
        first,
    }))
}

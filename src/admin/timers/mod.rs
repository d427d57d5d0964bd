//! Timers: the list with its search, and what other pages need of both.

mod content;
mod filter;
mod life;
mod one;

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::words::{self, Moment, Zone};
use super::{Admin, html};
use crate::cold::{TimerRow, Whose};
use crate::model::operation::Action;
use crate::model::time::UnixMs;
use crate::model::timer::State as TimerState;
use filter::Asked;
pub use filter::Search;
pub use one::{data, one};

/// The timers of one page of the list.
const PER_PAGE: usize = 100;

#[derive(Template)]
#[template(path = "timers.html", config = ".askama.toml")]
struct TimersPage {
    frame: Frame,
    summary: &'static str,
    /// The list of all timers.
    oldest: String,
    /// No timer was ever registered.
    is_new: bool,
    asked: Asked,
    states: [&'static str; 8],
    wrongs: Vec<String>,
    rows: Vec<RowView>,
    has_live: bool,
    is_first: bool,
    first: String,
    /// The search, as its address has it.
    query: String,
    /// What can be done to all that it finds.
    actions: [&'static str; 7],
    next: Option<String>,
    retention: String,
}

/// A timer as a list shows it.
pub struct RowView {
    pub id: String,
    pub href: String,
    pub is_live: bool,
    pub state: &'static str,
    pub due: Moment,
    /// What comes next; empty if that is its due time, or nothing.
    pub next: String,
    pub owner: Option<String>,
    pub owner_href: String,
    pub receiver: Option<String>,
    pub receiver_href: String,
    pub attempts: String,
}

impl RowView {
    /// A row, as of `now`.
    pub fn new(row: &TimerRow, zone: Zone, now: UnixMs) -> Self {
        let life = &row.life;
        let receiver = row.target.shown();
        let next = match life.state {
            TimerState::Retrying => {
                format!("attempt {} {}", life.attempt + 1, zone.moment(life.wake_at, now).distance)
            }
            TimerState::Delivering => format!("attempt {} is under way", life.attempt),
            _ => String::new(),
        };
        Self {
            id: row.id.clone(),
            href: address(&row.id),
            is_live: !life.state.is_end(),
            state: life.state.word(),
            due: zone.moment(life.due_at, now),
            next,
            owner_href: list_of(&[("owner", row.owner.as_deref().unwrap_or_default())]),
            owner: row.owner.clone(),
            receiver_href: list_of(&[("receiver", receiver.as_deref().unwrap_or_default())]),
            receiver,
            attempts: words::number(life.tries),
        }
    }
}

/// The page of a timer. Every character of an id may stand in a path as it is.
pub fn address(id: &str) -> String {
    format!("/timers/{id}")
}

/// The address of a list; fields without a value are left out.
pub fn list_of(fields: &[(&str, &str)]) -> String {
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish();
    if query.is_empty() { "/timers".to_owned() } else { format!("/timers?{query}") }
}

/// How many of these timers go to which receiver, most first.
pub fn by_receiver<'a>(rows: impl Iterator<Item = &'a TimerRow>) -> Vec<(String, usize)> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for receiver in rows.filter_map(|row| row.target.shown()) {
        *counts.entry(receiver).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
    counts
}

/// `GET /timers`: the address is the search. Fields as a form sends them are written in their own form by a redirect,
/// so that the address means the same to everybody, whatever his time zone.
pub async fn list(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let query = visit.path.split_once('?').map_or("", |(_, query)| query);
    let mut search = Search::read(query, visit.zone, service.store.salt());
    if let Some(canonical) = search.canonical(query) {
        return Ok(Redirect::to(&canonical).into_response());
    }
    let now = service.store.clock().now();
    let asks_nothing = !search.asked.any;
    if asks_nothing {
        search.filter.due_after = Some(now);
    }
    let (rows, next) = if search.wrongs.is_empty() {
        let page = service.store.list(&search.filter, search.cursor, PER_PAGE).await?;
        (page.rows, page.next.map(|cursor| search.page(&cursor.to_string())))
    } else {
        (Vec::new(), None)
    };
    let rows: Vec<RowView> = rows.iter().map(|row| RowView::new(row, visit.zone, now)).collect();
    let title = search.title();
    let page = TimersPage {
        frame: Frame::new(&admin, &visit, "/timers", title),
        summary: match asks_nothing {
            true => "What is due from now on, in due order.",
            false => "Live and ended timers, in due order.",
        },
        oldest: list_of(&[("due_after", &UnixMs::new(0).rfc3339())]),
        is_new: rows.is_empty()
            && asks_nothing
            && service.store.ledger(Whose::One(service.namespace())).await?.registered == 0,
        states: TimerState::ALL.map(TimerState::word),
        has_live: rows.iter().any(|row| row.is_live),
        is_first: search.cursor.is_none(),
        query: search.first().split_once('?').map_or_else(String::new, |(_, query)| query.to_owned()),
        actions: Action::ALL.map(Action::word),
        first: search.first(),
        asked: search.asked,
        wrongs: search.wrongs,
        rows,
        next,
        retention: words::span(admin.node.config.history.retention.get()),
    };
    Ok(html(&page))
}

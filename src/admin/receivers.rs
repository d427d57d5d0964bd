//! Receivers: how each lane stands, worst first.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::timers::list_of;
use super::words::{self, Moment};
use super::{Admin, html};
use crate::cold::Whose;
use crate::model::timer::State as TimerState;

/// The most receivers of the page.
const MOST: usize = 500;

#[derive(Template)]
#[template(path = "receivers.html", config = ".askama.toml")]
struct ReceiversPage {
    frame: Frame,
    clock: String,
    summary: String,
    rows: Vec<Row>,
    /// There is no live timer.
    is_empty: bool,
    /// Timers whose last attempt failed, when this node knows no receiver.
    retrying: i64,
}

struct Row {
    name: String,
    href: String,
    state: &'static str,
    since: Moment,
    rate: String,
    in_flight: usize,
    waiting: usize,
    last_error: String,
    last_error_at: Option<Moment>,
}

/// `GET /receivers`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let (now, zone) = (service.store.clock().now(), visit.zone);
    let all = service.observer.receivers().await?;
    let (known, failing) = (all.len(), all.iter().filter(|one| one.failing).count());
    let waiting: usize = all.iter().map(|one| one.waiting).sum();
    let row = |one: crate::dispatch::ReceiverLoad| {
        let state = match (one.failing, one.waiting, one.in_flight) {
            (true, ..) => "failing",
            (_, 0, 0) => "ok",
            (_, 0, _) => "sending",
            _ => "waiting",
        };
        let (last_error, last_error_at) =
            one.last_error.map(|error| (error.detail, zone.moment(error.at, now))).unzip();
        Row {
            href: list_of(&[("receiver", &one.receiver)]),
            name: one.receiver,
            state,
            since: zone.moment(one.since, now),
            rate: words::rate(one.rate),
            in_flight: one.in_flight,
            waiting: one.waiting,
            last_error: last_error.unwrap_or_default(),
            last_error_at,
        }
    };
    let title = match failing {
        0 if known == 0 => "No attempt since this node was started".to_owned(),
        0 if waiting > 0 => {
            format!("Every receiver answers. {} waiting for room", words::count(waiting, "timer"))
        }
        0 => "Every receiver answers".to_owned(),
        1 => "One receiver is failing".to_owned(),
        n => format!("{} receivers are failing", words::number(n)),
    };
    let shown = if known > MOST { format!(" The worst {MOST} are shown.") } else { String::new() };
    let page = ReceiversPage {
        frame: Frame::new(&admin, &visit, "/receivers", title),
        clock: zone.clock(now),
        summary: format!(
            "{}, {} failing; {} due for them and not sent.{shown}",
            words::count(known, "receiver"),
            words::number(failing),
            words::count(waiting, "timer"),
        ),
        retrying: match all.is_empty() {
            true => service.store.held_back().await?.get(&TimerState::Retrying).copied().unwrap_or(0),
            false => 0,
        },
        is_empty: all.is_empty() && service.store.ledger(Whose::All).await?.pending == 0,
        rows: all.into_iter().take(MOST).map(row).collect(),
    };
    Ok(html(&page))
}

//! The overview: the sentence, the live picture, and what flows between the tiers.

use std::convert::Infallible;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::live::{self, Full};
use super::picture::Picture;
use super::session::IDLE;
use super::timers::{by_receiver, list_of};
use super::{Admin, html, words};
use crate::cold::Filter;
use crate::model::time::UnixMs;
use crate::observe::frame::Frame as StreamFrame;

/// The bins of the cold store, and how far ahead each reaches, in milliseconds.
const BINS: [(&str, i64); 5] = [
    ("next hour", 3_600_000),
    ("to a day", 86_400_000),
    ("to a week", 7 * 86_400_000),
    ("to 30 days", 30 * 86_400_000),
    ("later", i64::MAX),
];

/// How many timers of a slot are looked at for its receivers.
const LOOKED_AT: usize = 200;

/// How many receivers of a slot are named.
const NAMED: usize = 3;

#[derive(Template)]
#[template(path = "overview.html", config = ".askama.toml")]
struct OverviewPage {
    frame: Frame,
    now: live::Overview,
    p99: String,
    wheels: String,
    bins: Vec<Bin>,
    picture: Picture,
}

struct Bin {
    name: &'static str,
    count: i64,
    /// Of 100.
    width: String,
    href: String,
}

/// `GET /`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let full = live::look(&*admin.service(&visit)?).await?;
    let frame = Frame::new(&admin, &visit, "/", full.overview.sentence.clone()).live();
    let picture = Picture::new(&full, visit.zone);
    let bins = bins(&full);
    let p99 = words::p99(full.overview.p99);
    let wheels = words::wheels(&admin.node.config);
    Ok(html(&OverviewPage { frame, p99, wheels, bins, picture, now: full.overview }))
}

fn bins(full: &Full) -> Vec<Bin> {
    let counts = full.overview.bins;
    let longest = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut from = full.now;
    BINS.into_iter()
        .zip(counts)
        .map(|((name, reach), count)| {
            let to = full.now.saturating_add(reach);
            let until = (reach != i64::MAX).then(|| format!("&due_before={}", UnixMs::new(to).rfc3339()));
            let href =
                format!("/timers?due_after={}{}", UnixMs::new(from).rfc3339(), until.unwrap_or_default());
            from = to;
            let width = 100.0 * (count as f64).ln_1p() / longest.ln_1p();
            Bin { name, count, width: format!("{width:.1}"), href }
        })
        .collect()
}

/// `GET /wheels/stream`: the frames of the live picture, as the API's stream has them. It ends with the half of a
/// session's idle time: the browser calls again, and the session goes on as long as somebody looks.
pub async fn stream(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let event = |frame: StreamFrame| Event::default().event(frame.event).data(&*frame.data);
    let frames = admin.service(&visit)?.observer.frames().await;
    let closing = admin.closing.clone();
    let over = async move {
        tokio::select! {
            () = closing.cancelled() => {}
            () = tokio::time::sleep(IDLE / 2) => {}
        }
    };
    let caller = visit.caller.ok_or_else(Trouble::stale)?;
    let node = Arc::clone(&admin.node);
    let events = frames
        .take_while(move |_| futures::future::ready(node.keys.holds(caller)))
        .map(move |frame| Ok::<_, Infallible>(event(frame)))
        .take_until(Box::pin(over));
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

#[derive(Template)]
#[template(path = "slots.html", config = ".askama.toml")]
struct SlotsPart {
    picture: Picture,
}

/// `GET /wheels/table`: the picture's slots as tables.
pub async fn table(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let full = live::look(&*admin.service(&visit)?).await?;
    Ok(html(&SlotsPart { picture: Picture::new(&full, visit.zone) }))
}

#[derive(Template)]
#[template(path = "slot.html", config = ".askama.toml")]
struct SlotPart {
    label: String,
    receivers: Vec<SlotReceiver>,
    others: usize,
    /// Not all of its timers were looked at.
    partly: bool,
    looked: usize,
}

struct SlotReceiver {
    name: String,
    count: usize,
    href: String,
}

/// `GET /wheels/slot`: the largest receivers of one slot.
pub async fn slot(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let query = visit.path.split_once('?').map_or("", |(_, query)| query);
    let asked = |name: &str| {
        let found = url::form_urlencoded::parse(query.as_bytes()).find(|(field, _)| field == name);
        found.and_then(|(_, text)| UnixMs::parse_rfc3339(&text).ok())
    };
    let filter =
        Filter { due_after: asked("due_after"), due_before: asked("due_before"), ..Filter::default() };
    let page = service.store.list(&filter, None, LOOKED_AT).await?;
    let mut receivers = by_receiver(page.rows.iter().filter(|row| !row.life.state.is_end()));
    let others = receivers.len().saturating_sub(NAMED);
    receivers.truncate(NAMED);
    let receivers = receivers.into_iter().map(|(name, count)| {
        let href = list_of(&[
            ("receiver", &name),
            ("due_after", &filter.due_after.map(UnixMs::rfc3339).unwrap_or_default()),
            ("due_before", &filter.due_before.map(UnixMs::rfc3339).unwrap_or_default()),
        ]);
        SlotReceiver { name, count, href }
    });
    let part = SlotPart {
        label: filter.due_after.map(|at| visit.zone.clock(at)).unwrap_or_default(),
        receivers: receivers.collect(),
        others,
        partly: page.next.is_some(),
        looked: LOOKED_AT,
    };
    Ok(html(&part))
}

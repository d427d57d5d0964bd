//! One timer: its life, its attempts, what it waits for, and on demand its data.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;

use super::content::Content;
use super::life::{self, EventRow, Life};
use super::{RowView, address, list_of};
use crate::admin::frame::{Frame, Trouble};
use crate::admin::guard::Visit;
use crate::admin::words::{self, Zone};
use crate::admin::{Admin, html};
use crate::cold::TimerRow;
use crate::model::id::TimerId;
use crate::model::policy::Then;
use crate::model::queue::{Seats, To};
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::State as TimerState;
use crate::service::Service;
use crate::service::explain::explain;
use crate::service::keys::Caller;
use crate::service::tier::Tiers;

#[derive(Template)]
#[template(path = "timer.html", config = ".askama.toml")]
struct TimerPage {
    frame: Frame,
    row: RowView,
    uncertain: bool,
    cancel_requested: bool,
    waiting_for: Option<String>,
    ending: &'static str,
    life: Life,
    events: Vec<EventRow>,
    facts: Vec<Fact>,
    content: Option<Content>,
}

struct Fact {
    name: &'static str,
    value: String,
    href: Option<String>,
}

impl Fact {
    fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), href: None }
    }

    fn linked(self, href: String) -> Self {
        Self { href: Some(href), ..self }
    }
}

async fn find(service: &Service, id: &str) -> Result<TimerRow, Trouble> {
    let parsed = TimerId::parse(id).map_err(|_| Trouble::no_timer(id))?;
    let found = service.store.find(parsed.uid(service.store.salt())).await?;
    found.ok_or_else(|| Trouble::no_timer(id))
}

/// `GET /timers/{id}`.
pub async fn one(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let config = &admin.node.config;
    let row = find(&service, &id).await?;
    let explained = explain(&service, config, &row, visit.caller.unwrap_or(Caller::ANYBODY)).await?;
    let now = service.store.clock().now();
    let tier = Tiers::now(&service, config.wheel.near.get()).of(&row).map(|tier| tier.word());
    let (life, events) = life::draw(&row, &explained, now, visit.zone);
    let frame = Frame::new(&admin, &visit, "/timers", format!("{} · {}", row.id, row.life.state.word()));
    let asks_for_content = visit.path.ends_with("?show=data");
    let page = TimerPage {
        uncertain: row.life.uncertain,
        cancel_requested: row.life.cancel_requested && !row.life.state.is_end(),
        waiting_for: explained.waiting_for.map(|why| visit.zone.retell(&why)),
        ending: ending(&row),
        life,
        events,
        facts: facts(&row, tier, visit.zone, now),
        content: asks_for_content.then(|| Content::new(&row, &frame.base, frame.keyed, now)),
        row: RowView::new(&row, visit.zone, now),
        frame,
    };
    Ok(html(&page))
}

#[derive(Template)]
#[template(path = "data.html", config = ".askama.toml")]
struct DataPart {
    content: Content,
}

/// `GET /timers/{id}/data`: its data, and the call that would make it again.
pub async fn data(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let row = find(&service, &id).await?;
    let now = service.store.clock().now();
    let content = Content::new(&row, &visit.base, !admin.node.keys.is_open(), now);
    Ok(html(&DataPart { content }))
}

/// What became of a timer that has ended.
fn ending(row: &TimerRow) -> &'static str {
    let is_out = row.life.attempt >= i32::try_from(row.policies.max_attempts()).unwrap_or(i32::MAX);
    match row.life.state {
        TimerState::Delivered => "It is over: its receiver accepted it.",
        TimerState::Cancelled => "It is over: it was cancelled.",
        TimerState::Expired if row.skipped().is_some() => {
            "It is over: its schedule skipped it, and nothing was sent."
        }
        TimerState::Expired => "It is over: it was found later than its grace, and nothing was sent.",
        TimerState::Dead if is_out => "It is over: its last attempt failed too.",
        TimerState::Dead => "It is over: its receiver said that it is gone for good (410).",
        _ => "",
    }
}

/// How it is given out, in words.
fn given_out(queue: &str, seats: &Seats) -> Fact {
    let to = seats.dispatch.to.to_string();
    let whom = match &seats.dispatch.to {
        To::Any => "any worker".to_owned(),
        To::Worker(name) => format!("worker {name}"),
        To::Group(name) => format!("workers of group {name}"),
    };
    let times = match (seats.dispatch.times, seats.dispatch.repeat) {
        (1, _) => "once".to_owned(),
        (times, false) => format!("{times} times in all, to each once"),
        (times, true) => format!("{times} times in all, to each as often as it asks"),
    };
    let acked = match seats.acked {
        0 => String::new(),
        acked => format!("; {acked} done"),
    };
    Fact::new("Given to", format!("{whom}, {times}{acked}")).linked(list_of(&[("queue", queue), ("to", &to)]))
}

fn facts(row: &TimerRow, tier: Option<&'static str>, zone: Zone, now: UnixMs) -> Vec<Fact> {
    let life = &row.life;
    let retry = row.policies.retry.unwrap_or_default();
    let late = row.policies.late.filter(|late| late.then == Then::Expire).map_or_else(
        || "delivered, however late it is found".to_owned(),
        |late| format!("expires when it is found more than {} late", words::span(late.grace.get())),
    );
    let owner = match &row.owner {
        Some(owner) => Fact::new("Owner", owner).linked(list_of(&[("owner", owner)])),
        None => Fact::new("Owner", "none was given: it is its own"),
    };
    let mut facts = vec![owner];
    match &row.target {
        Target::Webhook(hook) => {
            let receiver = row.target.receiver().unwrap_or_default();
            facts
                .push(Fact::new("Webhook", hook.url.to_string()).linked(list_of(&[("receiver", &receiver)])));
            let signed = if hook.secret.is_some() { "yes" } else { "no" };
            facts.push(Fact::new("Signed", signed));
            if !hook.headers.is_empty() {
                let names: Vec<&str> = hook.headers.keys().map(String::as_str).collect();
                facts.push(Fact::new("Static headers", names.join(", ")));
            }
        }
        Target::Destination(name) => {
            facts.push(Fact::new("Destination", name.clone()).linked(list_of(&[("destination", name)])));
        }
        Target::Queue(name) => {
            facts.push(Fact::new("Queue", name.clone()).linked(list_of(&[("queue", name)])));
            facts.extend(row.seats.as_ref().map(|seats| given_out(name, seats)));
        }
        Target::Unknown { kind } => {
            facts.push(Fact::new("Target", format!("of kind {kind}, which this node does not know")));
        }
    }
    let labels: std::collections::BTreeMap<String, String> =
        row.labels.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    facts.extend(labels.iter().map(|(name, value)| {
        let href = list_of(&[(&format!("label.{name}"), value)]);
        Fact::new("Label", format!("{name} = {value}")).linked(href)
    }));
    facts.extend(row.template.as_ref().map(|name| Fact::new("Template", name)));
    if let Some(id) = row.schedule() {
        facts.push(Fact::new("Schedule", id).linked(format!("/schedules/{id}")));
    }
    if let Some(at) = row.nominal() {
        facts.push(Fact::new("Nominal time", zone.moment(at, now).text));
    }
    facts.push(Fact::new("Priority", row.priority.word()));
    facts.push(Fact::new("Precision", if row.minute { "minute" } else { "second" }));
    facts.push(Fact::new("When late", late));
    facts.push(Fact::new(
        "Retries",
        format!(
            "{} attempts at most, {} after the first failure, then twice as long each time up to {}",
            retry.attempts,
            words::span(retry.first.get()),
            words::span(retry.cap.get())
        ),
    ));
    facts.push(Fact::new("Registered", zone.moment(row.created_at, now).text));
    facts.push(Fact::new("Generation", format!("{}, version {}", life.generation.0, life.version)));
    facts.push(Fact::new("Delivery id", row.delivery_id()));
    facts.extend(tier.map(|tier| Fact::new("Tier", tier)));
    facts.push(Fact::new("Shard", row.shard.to_string()).linked("/nodes".to_owned()));
    facts.push(Fact::new("API", format!("/v1{}", address(&row.id))));
    facts
}

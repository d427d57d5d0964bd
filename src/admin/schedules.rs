//! Schedules: the list, and one of them with its rule in words, its next times, and what can be done with it.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::json;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::timers::list_of;
use super::words::{self, Moment, Zone};
use super::{Admin, html};
use crate::cold::{Deed, Registered, ScheduleFilter, ScheduleRow, SkippedRange};
use crate::model::schedule::{MissedPolicy, Overlap, Plan, ScheduleState, Skipped, When, is_schedule_id};
use crate::model::target::Target;
use crate::model::time::{Span, UnixMs};
use crate::schedule::reach;
use crate::service::Service;

/// The most schedules of one page.
const MOST: usize = 100;

/// How many of its next times, and of the ranges that were skipped, one schedule shows.
const NEXT: usize = 8;

/// A schedule as a list shows it.
struct View {
    id: String,
    href: String,
    state: &'static str,
    rule: String,
    next: Option<Moment>,
    made: String,
    target: String,
}

impl View {
    fn new(row: &ScheduleRow, next: Option<UnixMs>, zone: Zone, now: UnixMs) -> Self {
        Self {
            id: row.id.clone(),
            href: format!("/schedules/{}", row.id),
            state: row.state.word(),
            rule: in_words(&row.plan),
            next: next.map(|at| zone.moment(at, now)),
            made: words::number(row.made),
            target: match row.content.target() {
                Target::Webhook(hook) => hook.url.to_string(),
                Target::Destination(name) => name,
                Target::Queue(name) => format!("queue {name}"),
                Target::Unknown { .. } => "a kind that this node does not know".to_owned(),
            },
        }
    }
}

/// A rule in words: `each day at 09:00, in Asia/Shanghai`.
fn in_words(plan: &Plan) -> String {
    let zone = &plan.timing.zone;
    let mut rule = match &plan.timing.when {
        When::Cron(text) => format!("cron {text}, in {zone}"),
        When::Every(span) => format!("every {}", words::span(span.get())),
        When::Daily { at, every_days: 1 } => format!("each day at {at}, in {zone}"),
        When::Daily { at, every_days } => format!("each {every_days} days at {at}, in {zone}"),
    };
    if let Some(most) = plan.max_occurrences {
        rule += &format!(", {} at most", words::count(most, "time"));
    }
    rule
}

/// What happens to nominal times that nobody could fire.
fn missed_in_words(policy: MissedPolicy, within: Span) -> String {
    let within = words::span(within.get());
    match policy {
        MissedPolicy::FireAll => format!("those of the last {within} fire all the same"),
        MissedPolicy::FireOnce => format!("the latest of the last {within} fires"),
        MissedPolicy::Skip => "they are skipped".to_owned(),
    }
}

const fn overlap_in_words(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Skip => "the next one is skipped",
        Overlap::QueueOne => "one waits for it, further ones are skipped",
        Overlap::Allow => "the next one fires all the same",
    }
}

#[derive(Template)]
#[template(path = "schedules.html", config = ".askama.toml")]
struct SchedulesPage {
    frame: Frame,
    rows: Vec<View>,
    /// The address of the next page.
    next: Option<String>,
    wrong: Option<String>,
    base: String,
}

/// `GET /schedules`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let now = service.store.clock().now();
    let query = visit.path.split_once('?').map(|(_, query)| query.to_owned()).unwrap_or_default();
    let (mut filter, mut after, mut wrong) = (ScheduleFilter::default(), None, None);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "state" => filter.state = ScheduleState::from_word(&value),
            "after" if is_schedule_id(&value) => after = Some(value.into_owned()),
            other => wrong = Some(format!("There is no filter {other}.")),
        }
    }
    let found = service.store.schedules(&filter, after.as_deref(), MOST).await?;
    let next_of = |row: &ScheduleRow| row.next_times(now, 1).ok().and_then(|next| next.first().copied());
    let rows = found.rows.iter().map(|row| View::new(row, next_of(row), visit.zone, now)).collect();
    let next = found.next.map(|id| {
        let state = filter.state.map(|state| format!("state={}&", state.word())).unwrap_or_default();
        format!("/schedules?{state}after={id}")
    });
    let frame = Frame::new(&admin, &visit, "/schedules", "Schedules");
    let base = frame.base.clone();
    Ok(html(&SchedulesPage { frame, rows, next, wrong, base }))
}

#[derive(Template)]
#[template(path = "schedule.html", config = ".askama.toml")]
struct SchedulePage {
    frame: Frame,
    view: View,
    is_paused: bool,
    is_active: bool,
    next: Vec<Moment>,
    missed: String,
    overlap: &'static str,
    /// Nominal times that became no occurrence, by reason.
    skipped: Vec<(String, String)>,
    /// The latest of them.
    ranges: Vec<Range>,
    timers: String,
    expired: String,
    created: Moment,
    changed: Moment,
}

/// Nominal times in a row that became no occurrence.
struct Range {
    first: Moment,
    /// `None` if it is one time.
    last: Option<Moment>,
    count: String,
    why: &'static str,
}

impl Range {
    fn new(range: &SkippedRange, zone: Zone, now: UnixMs) -> Option<Self> {
        Some(Self {
            first: zone.moment(range.first, now),
            last: (range.last != range.first).then(|| zone.moment(range.last, now)),
            count: words::count(range.count, "time"),
            why: range.reason.word()?,
        })
    }
}

async fn find(service: &Service, id: &str) -> Result<ScheduleRow, Trouble> {
    if !is_schedule_id(id) {
        return Err(Trouble::no_schedule());
    }
    service.store.schedule(id).await?.ok_or_else(Trouble::no_schedule)
}

/// `GET /schedules/{id}`.
pub async fn one(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let row = find(&service, &id).await?;
    let now = service.store.clock().now();
    let next = row.next_times(now, NEXT).unwrap_or_default();
    let skipped = service.store.skipped_times(&row.id).await?.into_iter();
    let ranges = service.store.skipped_ranges(&row.id, NEXT).await?;
    let word = |why: Skipped| why.word().unwrap_or_default().to_owned();
    let page = SchedulePage {
        frame: Frame::new(&admin, &visit, "/schedules", format!("{} · {}", row.id, row.state.word())),
        view: View::new(&row, next.first().copied(), visit.zone, now),
        is_paused: row.state == ScheduleState::Paused,
        is_active: row.state == ScheduleState::Active,
        next: next.into_iter().map(|at| visit.zone.moment(at, now)).collect(),
        missed: missed_in_words(row.plan.missed.policy, row.plan.missed.within),
        overlap: overlap_in_words(row.plan.overlap),
        skipped: skipped.map(|(why, count)| (word(why), words::number(count))).collect(),
        ranges: ranges.iter().filter_map(|range| Range::new(range, visit.zone, now)).collect(),
        timers: list_of(&[("schedule", &row.id)]),
        expired: list_of(&[("schedule", &row.id), ("state", "expired")]),
        created: visit.zone.moment(row.created_at, now),
        changed: visit.zone.moment(row.changed_at, now),
    };
    Ok(html(&page))
}

/// `POST /schedules/{id}/act`: what the button says.
pub async fn act(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    visit: Visit,
) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let row = find(&service, &id).await?;
    let here = || Redirect::to(&format!("/schedules/{}", row.id)).into_response();
    let reach = reach(admin.node.config.wheel.window.get());
    match visit.form.get("action") {
        action @ ("pause" | "resume") => {
            let paused = service.intake.pause_schedule(row.id.clone(), action == "pause", reach).await?;
            paused.ok_or_else(Trouble::no_schedule)?;
            Ok(here())
        }
        "run" => {
            let timer = service.store.run_of(&row, uuid::Uuid::now_v7());
            // Before it is made: of what is not written down nothing is done.
            let became = Some(json!({"timer": timer.id.to_string()}));
            service
                .store
                .note_deed(Deed { action: "schedule.run", object: &row.id, was: None, became })
                .await?;
            let made = service.intake.register(timer).await;
            let busy =
                |_| Trouble::refused("The store does not keep up, or the node is stopping: try again.");
            match made.map_err(busy)?? {
                Registered::New(made) | Registered::Same(made) => {
                    Ok(Redirect::to(&format!("/timers/{}", made.id)).into_response())
                }
                _ => Err(Trouble::refused("Its destination is not there any more.")),
            }
        }
        "remove" => {
            service.intake.remove_schedule(row.id.clone()).await?;
            Ok(Redirect::to("/schedules").into_response())
        }
        _ => Err(Trouble::stale()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::schedule::{Missed, Timing};

    #[test]
    fn a_rule_is_told_in_words() {
        let plan = |when, max_occurrences| Plan {
            timing: Timing { when, zone: "Asia/Shanghai".into(), start_at: UnixMs::new(0) },
            end_at: None,
            max_occurrences,
            missed: Missed::default(),
            overlap: Overlap::Allow,
        };
        let daily = |every_days| When::Daily { at: "09:00".into(), every_days };
        for (when, most, expected) in [
            (When::Cron("0 9 * * 1-5".into()), None, "cron 0 9 * * 1-5, in Asia/Shanghai"),
            (When::Every(Span::parse("PT90M").unwrap()), None, "every 1h 30m"),
            (daily(1), Some(1), "each day at 09:00, in Asia/Shanghai, 1 time at most"),
            (daily(2), Some(5), "each 2 days at 09:00, in Asia/Shanghai, 5 times at most"),
        ] {
            assert_eq!(in_words(&plan(when, most)), expected);
        }
        let hour = Span::parse("PT1H").unwrap();
        assert_eq!(missed_in_words(MissedPolicy::FireOnce, hour), "the latest of the last 1h fires");
    }
}

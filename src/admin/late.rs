//! Late and dead: timers that are overdue, timers that retry, and timers that died, each by receiver.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::timers::list_of;
use super::words::{self, Moment, Zone};
use super::{Admin, html};
use crate::cold::{AttemptRecord, DeadTimer, LateOf, LateTimers};
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::State as TimerState;

/// How many timers of each kind are looked at.
const LOOKED_AT: i64 = 10_000;

/// A timer that is due for less than this is not overdue: it may be in hand.
const OVERDUE_MS: i64 = 2000;

/// How far back the dead are shown.
const DEAD_WITHIN_MS: i64 = 86_400_000;

#[derive(Template)]
#[template(path = "late.html", config = ".askama.toml")]
struct LatePage {
    frame: Frame,
    clock: String,
    parts: Vec<Part>,
}

/// Timers of one kind.
struct Part {
    anchor: &'static str,
    title: String,
    means: &'static str,
    why: &'static str,
    when: &'static str,
    which: &'static str,
    rows: Vec<Row>,
    is_cut: bool,
    looked: i64,
}

/// Those of one receiver, for one reason.
struct Row {
    receiver: String,
    href: String,
    reason: String,
    count: i64,
    at: Moment,
}

impl Part {
    fn total(&self) -> i64 {
        self.rows.iter().map(|row| row.count).sum()
    }
}

/// `GET /late`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let (store, zone) = (&service.store, visit.zone);
    let now = store.clock().now();
    let overdue_before = UnixMs::new(now.get() - OVERDUE_MS);
    // What a paused destination keeps is not overdue.
    let known = service.destinations.known();
    let mut paused: Vec<i64> = known.values().filter(|one| one.paused).map(|one| one.lane()).collect();
    paused.sort_unstable();
    let overdue =
        store.late(TimerState::Scheduled, overdue_before, LateOf::AllBut(&paused), LOOKED_AT).await?;
    let retrying = store.late(TimerState::Retrying, UnixMs::new(i64::MAX), LateOf::All, LOOKED_AT).await?;
    let kept = match paused.as_slice() {
        [] => Vec::new(),
        names => store.late(TimerState::Scheduled, now, LateOf::Only(names), LOOKED_AT).await?,
    };
    let dead = store.dead_since(UnixMs::new(now.get() - DEAD_WITHIN_MS), LOOKED_AT).await?;
    let receivers = service.observer.receivers().await?;
    let errors: HashMap<(bool, String), String> = receivers
        .into_iter()
        .filter_map(|one| Some(((one.is_destination, one.receiver), one.last_error?.detail)))
        .collect();
    // A host is a receiver of all namespaces together: what another one's calls to it came to is not for everybody to see.
    let sees_all = visit.caller.is_none_or(|caller| caller.is_of_all());
    let last_error = |target: &Target| match target {
        Target::Destination(name) => {
            errors.get(&(true, store.namespace().qualified(name).into_owned())).cloned()
        }
        target if sees_all => errors.get(&(false, receiver(target))).cloned(),
        _ => None,
    };
    let is_cut = |groups: &[LateTimers]| groups.iter().map(|one| one.count).sum::<i64>() >= LOOKED_AT;
    let row = |one: LateTimers, state: TimerState, at: UnixMs| {
        let receiver = receiver(&one.target);
        Row {
            href: list_of(&[
                ("state", state.word()),
                ("receiver", &receiver),
                ("due_before", &if state == TimerState::Scheduled { now.rfc3339() } else { String::new() }),
            ]),
            reason: last_error(&one.target).unwrap_or_default(),
            receiver: shown(receiver),
            count: one.count,
            at: zone.moment(at, now),
        }
    };
    let oldest_first = |groups: Vec<LateTimers>| -> Vec<Row> {
        let of = |one: LateTimers| (one.oldest_due, one);
        groups.into_iter().map(of).map(|(at, one)| row(one, TimerState::Scheduled, at)).collect()
    };
    let parts = vec![
        Part {
            anchor: "overdue",
            title: "Overdue".to_owned(),
            means: "Due for more than two seconds and not fired: they wait for room at their receiver, or for the node.",
            why: "Last error of the receiver",
            when: "Oldest was due",
            which: "oldest",
            is_cut: is_cut(&overdue),
            rows: oldest_first(overdue),
            looked: LOOKED_AT,
        },
        Part {
            anchor: "kept",
            title: "Kept".to_owned(),
            means: "Due for a destination that is paused. It is sent when the destination is resumed.",
            why: "Last error of the receiver",
            when: "Oldest was due",
            which: "oldest",
            is_cut: is_cut(&kept),
            rows: oldest_first(kept),
            looked: LOOKED_AT,
        },
        Part {
            anchor: "retrying",
            title: "Retrying".to_owned(),
            means: "An attempt failed; the next one comes by itself.",
            why: "Last error of the receiver",
            when: "Next attempt",
            which: "oldest",
            is_cut: is_cut(&retrying),
            rows: retrying
                .into_iter()
                .map(|one| (one.next_wake, one))
                .map(|(at, one)| row(one, TimerState::Retrying, at))
                .collect(),
            looked: LOOKED_AT,
        },
        Part {
            anchor: "dead",
            title: "Dead within a day".to_owned(),
            means: "Out of attempts, or refused for good (410). Each can be registered again from its page; \
                    those of a destination run again by POST /v1/destinations/NAME/redrive.",
            why: "Reason",
            when: "Last died",
            which: "last",
            is_cut: dead.len() as i64 >= LOOKED_AT,
            rows: dead_rows(&dead, zone, now),
            looked: LOOKED_AT,
        },
    ];
    let [overdue, retrying, dead] = [&parts[0], &parts[2], &parts[3]].map(Part::total);
    let title = match (overdue, retrying, dead) {
        (0, 0, 0) => "Nothing is late, and nothing died within a day.".to_owned(),
        (0, ..) => format!(
            "Nothing is overdue. {} retrying, {} dead within a day.",
            words::number(retrying),
            words::number(dead)
        ),
        _ => format!(
            "{} overdue, {} retrying, {} dead within a day.",
            words::number(overdue),
            words::number(retrying),
            words::number(dead)
        ),
    };
    let page = LatePage { frame: Frame::new(&admin, &visit, "/late", title), clock: zone.clock(now), parts };
    Ok(html(&page))
}

/// Where a target leads; empty for a kind that this node does not know.
fn receiver(target: &Target) -> String {
    target.shown().unwrap_or_default()
}

fn shown(receiver: String) -> String {
    if receiver.is_empty() { "a kind that this node does not know".to_owned() } else { receiver }
}

/// The dead by receiver and reason, most first.
fn dead_rows(dead: &[DeadTimer], zone: Zone, now: UnixMs) -> Vec<Row> {
    let mut groups: HashMap<(String, String), (i64, UnixMs)> = HashMap::new();
    for one in dead {
        let group = groups.entry((receiver(&one.target), reason(one.last.as_ref()))).or_default();
        *group = (group.0 + 1, group.1.max(one.ended_at));
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_unstable_by(|((a, why_a), (m, _)), ((b, why_b), (n, _))| {
        n.cmp(m).then_with(|| (a, why_a).cmp(&(b, why_b)))
    });
    let row = |((receiver, reason), (count, at)): ((String, String), (i64, UnixMs))| Row {
        href: list_of(&[("state", "dead"), ("receiver", &receiver)]),
        receiver: shown(receiver),
        reason,
        count,
        at: zone.moment(at, now),
    };
    groups.into_iter().take(200).map(row).collect()
}

/// Why a timer died: the answer that its last attempt got.
fn reason(last: Option<&AttemptRecord>) -> String {
    match last {
        None => "not recorded".to_owned(),
        Some(AttemptRecord { status: Some(status), .. }) => format!("answered {status}"),
        Some(one) => one.detail.clone().unwrap_or_else(|| one.result.word().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::target::Webhook;
    use crate::model::timer::AttemptResult;

    #[test]
    fn the_dead_are_put_together_by_receiver_and_reason() {
        let dead = |url: &str, status, ended_at| DeadTimer {
            target: Target::Webhook(Webhook::new(url, None, BTreeMap::new()).unwrap()),
            ended_at: UnixMs::new(ended_at),
            last: Some(AttemptRecord {
                generation: 1,
                attempt: 1,
                started_at: 0,
                ended_at: 0,
                result: AttemptResult::Failed,
                status,
                reply: None,
                detail: Some("no route".into()),
                node: "n".into(),
                delivery_id: None,
                worker: None,
            }),
        };
        let all = [
            dead("http://a/x", Some(500), 1),
            dead("http://b/x", None, 2),
            dead("http://a/y", Some(500), 3),
            dead("http://a/y", Some(410), 4),
        ];
        let rows = dead_rows(&all, Zone::default(), UnixMs::new(10));
        let seen: Vec<_> =
            rows.iter().map(|row| (row.receiver.as_str(), row.reason.as_str(), row.count)).collect();
        assert_eq!(
            seen,
            [("http://a", "answered 500", 2), ("http://a", "answered 410", 1), ("http://b", "no route", 1)]
        );
        assert_eq!(rows[0].at.utc, "1970-01-01T00:00:00.003Z");
        assert_eq!(rows[0].href, "/timers?state=dead&receiver=http%3A%2F%2Fa");
    }
}

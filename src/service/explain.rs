//! A timer's life in order, and what it waits for, in words.
//!
//! It is made from the timer's row, its attempts and the replays of its shard; nothing is stored for it alone. The
//! moment of the promotion is computed from the watermark, so it is exact to a step of the loader.

use std::sync::Arc;
use std::time::Duration;

use super::Service;
use super::keys::Caller;
use super::tier::{Tier, Tiers};
use crate::cold::{AttemptRecord, Error, QueueRow, ReplayNote, TimerRow};
use crate::config::Config;
use crate::model::destination::Destination;
use crate::model::pointer::Via;
use crate::model::queue::{Held, Place, Seats, To};
use crate::model::schedule::Skipped;
use crate::model::spread::Spread;
use crate::model::time::{LAST, Span, UnixMs};
use crate::model::timer::State;

/// A timer's life.
pub struct Explanation {
    /// In order.
    pub events: Vec<LifeEvent>,
    /// Its attempts that have ended, oldest first.
    pub attempts: Vec<AttemptRecord>,
    /// What it waits for, in words; `None` once it has ended.
    pub waiting_for: Option<String>,
}

/// One event of a timer's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifeEvent {
    /// When.
    pub at: UnixMs,
    /// What, in one word: `registered`, `promoted`, `replayed`, `due`, `claimed`, `leased`, `attempt`, or the state it ended in.
    pub event: &'static str,
    /// The node that did it.
    pub node: Option<String>,
    /// More about it, in words for people.
    pub detail: Option<String>,
}

impl LifeEvent {
    fn new(at: UnixMs, event: &'static str, detail: impl Into<String>) -> Self {
        Self { at, event, node: None, detail: Some(detail.into()) }
    }

    fn by(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }
}

/// Explains a timer as of now. Who has a key of one namespace is not told how many timers of all a replay has found.
pub async fn explain(
    service: &Service,
    config: &Config,
    row: &TimerRow,
    caller: Caller,
) -> Result<Explanation, Error> {
    let attempts = service.store.attempts(row).await?;
    let now = service.store.clock().now();
    let replays = service.store.replays(row.shard, row.created_at, row.ended_at.unwrap_or(now)).await?;
    let tier = Tiers::now(service, config.wheel.near.get()).of(row);
    let is_held = service.store.held().is_some_and(|held| held.holds(row.life.due_at, row.created_at));
    let reach = service.positions.reach.get();
    let destination = match row.target.destination() {
        Some(name) => service.destinations.find(row.namespace, name).await?,
        None => None,
    };
    let (queue, places) = match row.target.queue() {
        Some(name) => (service.store.queue(name).await?, service.store.places(row.uid).await?),
        None => (None, Vec::new()),
    };
    let counts = caller.is_of_all() || !service.store.has_others();
    let facts = Facts { row, config, tier, now, reach, is_held, destination, queue, places, counts };
    let events = facts.events(&attempts, replays);
    let waiting_for =
        facts.waiting_for(!service.positions.unreachable().contains(&row.shard), attempts.last());
    Ok(Explanation { events, attempts, waiting_for })
}

/// What an explanation is made from.
struct Facts<'a> {
    row: &'a TimerRow,
    config: &'a Config,
    tier: Option<Tier>,
    now: UnixMs,
    /// How far the wheels reach.
    reach: Duration,
    /// It is held since the store was restored.
    is_held: bool,
    /// Where it goes, if that is a destination.
    destination: Option<Arc<Destination>>,
    /// The queue that it is for, and its places that were given out.
    queue: Option<QueueRow>,
    places: Vec<Place>,
    /// What is counted of all namespaces may be told.
    counts: bool,
}

impl Facts<'_> {
    fn events(&self, attempts: &[AttemptRecord], replays: Vec<ReplayNote>) -> Vec<LifeEvent> {
        let (row, life) = (self.row, &self.row.life);
        let mut events = vec![LifeEvent::new(row.created_at, "registered", self.registration())];
        events.extend(self.promotion());
        // A replay concerns the timers that were due within the window at that time.
        let window = self.config.wheel.window.get();
        let concerned = |note: &ReplayNote| life.due_at < note.at.plus(window);
        events.extend(replays.into_iter().filter(concerned).map(|note| {
            let mut detail = format!("shard {}: {}", note.shard, note.cause);
            if self.counts {
                detail = format!("{detail}; {}", note.detail);
            }
            LifeEvent::new(note.at, "replayed", detail).by(&note.node)
        }));
        let over = row.ended_at.unwrap_or(self.now);
        if life.due_at <= over {
            events.push(LifeEvent { at: life.due_at, event: "due", node: None, detail: None });
        }
        for place in &self.places {
            events.push(LifeEvent::new(place.given_at, "leased", lease_line(place)));
        }
        if let (Some(at), Some(node), None) = (row.claimed_at, &row.node, &row.seats) {
            events.push(LifeEvent::new(at, "claimed", self.claim(at)).by(node));
        }
        for record in attempts {
            events.push(
                LifeEvent::new(UnixMs::new(record.started_at), "attempt", attempt_line(record))
                    .by(&record.node),
            );
        }
        if let Some(at) = row.ended_at {
            let uncertain = life.uncertain.then(|| "the outcome of an attempt is not known".to_owned());
            let detail = uncertain.or_else(|| row.skipped().map(|why| skip_line(why).to_owned()));
            events.push(LifeEvent { at, event: life.state.word(), node: None, detail });
        }
        events.sort_by_key(|event| event.at);
        events
    }

    fn registration(&self) -> String {
        let (row, life) = (self.row, &self.row.life);
        let chosen = match row.spread.filter(|spread| spread.holds(life.due_at, row.minute)) {
            Some(Spread { within, from }) => format!(", chosen from {} to {within} later", from.rfc3339()),
            None => String::new(),
        };
        let due_at = life.due_at.rfc3339();
        let template =
            row.template.as_ref().map(|name| format!(", by template `{name}`")).unwrap_or_default();
        let told = match life.generation.0 {
            1 => format!("due at {due_at}{chosen}{template}, shard {}", row.shard),
            n => format!(
                "shard {}{template}; changed since: generation {n} is due at {due_at}{chosen}",
                row.shard
            ),
        };
        match (row.schedule(), row.nominal()) {
            (Some(id), Some(at)) => {
                format!("{told}; made by schedule `{id}` for its nominal time {}", at.rfc3339())
            }
            (Some(id), None) => format!("{told}; made by schedule `{id}`, outside its rule"),
            (None, _) => told,
        }
    }

    /// When its pointer went into the wheels, if the watermark or the claim shows that it did.
    fn promotion(&self) -> Option<LifeEvent> {
        let (row, life) = (self.row, &self.row.life);
        let window = Span::from_duration(self.reach);
        let opened = UnixMs::new(life.due_at.get() - i64::try_from(self.reach.as_millis()).unwrap_or(0));
        let by_writer = opened <= row.created_at;
        let claimed_from_wheels = matches!(row.via, Some(Via::Loader | Via::Express | Via::Replay));
        let in_wheels = matches!(self.tier, Some(Tier::Minute | Tier::Second));
        (claimed_from_wheels || (row.via.is_none() && in_wheels)).then(|| match by_writer {
            true => {
                LifeEvent::new(row.created_at, "promoted", "into the wheels at once: due within the window")
            }
            false => LifeEvent::new(
                opened,
                "promoted",
                format!("from SQL into the minute wheel, {window} before it is due"),
            ),
        })
    }

    fn claim(&self, at: UnixMs) -> String {
        let (row, life) = (self.row, &self.row.life);
        let how = match row.via {
            Some(Via::Loader) => "its slot came up, where the loader had put it",
            Some(Via::Express) => "its slot came up, where it was put when it was written",
            Some(Via::Replay) => "a replay found it overdue in SQL",
            Some(Via::Sweep) => "the sweep found it overdue in SQL: no wheel had brought it",
            None => "by an earlier version",
        };
        let late = at.since(row.delivery_due_at());
        let late = if late > Duration::from_millis(1) && life.attempt <= 1 {
            format!(", {} after it was due", Span::from_duration(late))
        } else {
            String::new()
        };
        let merged = match &row.merged {
            Some(merged) => {
                format!("; with {} others, as delivery {}", merged.members.saturating_sub(1), merged.id)
            }
            None => String::new(),
        };
        format!("attempt {}: {how}{late}{merged}", life.attempt)
    }

    /// Why a due timer of its destination waits, as far as the destination tells.
    fn destination_waits(&self) -> Option<String> {
        let one = self.destination.as_ref()?;
        let name = &one.name;
        match (one.paused, &one.place, one.limits.rate_per_second) {
            (true, ..) => Some(format!("the resume of destination `{name}`: it is paused")),
            (_, Err(_), _) => {
                Some(format!("a node that can send to destination `{name}` ({}): this one cannot", one.kind))
            }
            (_, _, Some(rate)) => {
                Some(format!("its turn at destination `{name}`, which takes {rate} attempts a second"))
            }
            _ => None,
        }
    }

    /// What an occurrence waits for that its schedule keeps from firing.
    fn schedule_waits(&self) -> Option<String> {
        let one = self.row.occurrence.as_ref()?;
        let id = &one.schedule;
        let life = &self.row.life;
        let judge_after = one.judge_after.filter(|_| life.state == State::Scheduled);
        match (judge_after, one.turn) {
            (Some(at), _) if at < life.due_at => Some(format!(
                "its due time, {}; schedule `{id}` is paused and skips it then",
                life.due_at.rfc3339()
            )),
            (Some(at), _) if at <= self.now => {
                Some(format!("schedule `{id}`: it judges whether the nominal time was missed"))
            }
            (Some(LAST), Some(_)) => {
                Some(format!("the occurrence of schedule `{id}` before it: that one has not ended"))
            }
            _ => None,
        }
    }

    /// What a timer for a queue waits for, once it is due.
    fn waits_for_worker(&self, seats: &Seats) -> Option<String> {
        let life = &self.row.life;
        if !matches!(life.state, State::Scheduled | State::Delivering | State::Retrying)
            || life.due_at > self.now
        {
            return None;
        }
        let queue = self.row.target.queue().unwrap_or_default();
        let out: Vec<String> = self
            .places
            .iter()
            .filter(|place| place.held == Held::Out)
            .map(|place| format!("worker {} to settle it, by {}", place.worker, place.until.rfc3339()))
            .collect();
        let free = match (seats.ready_at, self.queue.as_ref().is_some_and(|queue| queue.paused)) {
            (Some(_), true) => Some(format!("the resume of queue `{queue}`: it is paused")),
            (Some(at), false) if at > self.now => Some(format!("{}, when a place comes back", at.rfc3339())),
            (Some(_), false) => Some(match &seats.dispatch.to {
                To::Any => format!("a worker that fetches it from queue `{queue}`"),
                To::Worker(name) => format!("worker {name}, to fetch it from queue `{queue}`"),
                To::Group(name) => format!("a worker of group {name} that fetches it from queue `{queue}`"),
            }),
            (None, _) => None,
        };
        let all: Vec<String> = out.into_iter().chain(free).collect();
        Some(all.join("; and for ")).filter(|text| !text.is_empty())
    }

    fn waiting_for(&self, wheels_up: bool, last: Option<&AttemptRecord>) -> Option<String> {
        let (row, life) = (self.row, &self.row.life);
        // No worker gets it before an operator, or its schedule, lets it go.
        let is_kept = match life.state {
            State::Scheduled => self.is_held || self.schedule_waits().is_some(),
            State::Retrying => self.is_held,
            _ => false,
        };
        let seats = row.seats.as_ref().filter(|_| !is_kept);
        if let Some(why) = seats.and_then(|seats| self.waits_for_worker(seats)) {
            return Some(why);
        }
        let at = life.wake_at.rfc3339();
        let retry = row.policies.retry.or(self.destination.as_ref().and_then(|one| one.limits.retry));
        let attempts = retry.unwrap_or_default().attempts;
        let overdue = life.wake_at <= self.now;
        let window = Span::from_duration(self.reach);
        // While the wheels do not answer, the sweep finds the timers that are in them.
        let within = life.wake_at < self.now.plus(self.reach);
        Some(match life.state {
            state if state.is_end() => return None,
            State::Delivering => format!(
                "the outcome of attempt {}, made by {}; if nothing is reported by {at}, it counts as unknown and is made again",
                life.attempt,
                row.node.as_deref().unwrap_or("a node"),
            ),
            State::Paused => "its resume: it is paused".to_owned(),
            _ if self.is_held => {
                "an operator: it fell due since the point to which the store was restored, and may have fired already; \
                 `mainspring restore accept`"
                    .to_owned()
            }
            State::Scheduled if let Some(why) = self.schedule_waits() => why,
            State::Scheduled if row.merge_key.is_some() && life.due_at <= self.now && !overdue => {
                format!("timers that it goes out with; the last of them is due at {at}")
            }
            _ if overdue && let Some(why) = self.destination_waits() => why,
            _ if overdue && life.due_at <= self.now => {
                "its claim: it is due; its receiver, or the node, may have as many attempts under way as it can"
                    .to_owned()
            }
            State::Retrying => {
                let why = last.and_then(|last| last.detail.as_deref());
                let why = why.map_or_else(String::new, |why| format!("; the last one failed: {why}"));
                format!("attempt {} of {attempts}, at {at}{why}", life.attempt + 1)
            }
            _ if !self.config.wheel.enabled => {
                format!("its due time, {at}; the wheels are off, the sweep will find it in SQL")
            }
            _ if !wheels_up && within => {
                format!("its due time, {at}; the wheels do not answer, the sweep will find it in SQL")
            }
            _ => match self.tier {
                Some(tier @ (Tier::Minute | Tier::Second)) => {
                    format!("its due time, {at}, in the {} wheel", tier.word())
                }
                _ => {
                    format!("its due time, {at}; it rests in SQL until {window} before, and is promoted then")
                }
            },
        })
    }
}

fn skip_line(why: Skipped) -> &'static str {
    match why {
        Skipped::Missed => "missed: nobody could fire it for more than a minute",
        Skipped::Overlap => "skipped: the occurrence before had not ended",
        Skipped::Paused => "skipped: its schedule was paused",
        Skipped::Changed => "its schedule was changed or removed before its time",
    }
}

fn lease_line(place: &Place) -> String {
    let (worker, until) = (&place.worker, place.until.rfc3339());
    let what = match place.held {
        Held::Out => format!("until {until}"),
        Held::Returned => format!("given back; it may be given out again from {until} on"),
        Held::Lost => format!("its lease ended at {until}"),
        Held::Acked => format!("done at {until}"),
        Held::Dead => format!("given up at {until}"),
    };
    format!("place {} to worker {worker}, attempt {}: {what}", place.number + 1, place.attempt)
}

fn attempt_line(record: &AttemptRecord) -> String {
    let took = UnixMs::new(record.ended_at).since(UnixMs::new(record.started_at)).as_millis();
    let status = record.status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
    let detail = record.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
    let generation = record.generation;
    let merged = match (&record.worker, record.delivery_id.as_deref()) {
        (Some(worker), _) => format!(", by worker {worker}"),
        (None, Some(id)) => format!(", merged as {id}"),
        (None, None) => String::new(),
    };
    format!(
        "attempt {} of generation {generation}{merged}: {}{status} after {took} ms{detail}",
        record.attempt,
        record.result.word()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_one_line() {
        let record = AttemptRecord {
            generation: 1,
            attempt: 2,
            started_at: 1000,
            ended_at: 1020,
            result: crate::model::timer::AttemptResult::Failed,
            status: Some(500),
            reply: None,
            detail: Some("answered 500".into()),
            node: "n".into(),
            delivery_id: None,
            worker: None,
        };
        assert_eq!(
            attempt_line(&record),
            "attempt 2 of generation 1: failed (HTTP 500) after 20 ms: answered 500"
        );
    }
}

//! A timer's life as a line: its events, its attempts as bars, and what is still ahead.
//!
//! Days may lie between two events and milliseconds between two others, so the line is not to scale: a gap is as wide
//! as the logarithm of its length. The list below the line has the exact times.

use crate::admin::words::{self, Moment, Zone};
use crate::cold::{AttemptRecord, TimerRow};
use crate::model::time::UnixMs;
use crate::model::timer::{AttemptResult, State};
use crate::service::explain::{Explanation, LifeEvent};

/// The drawing goes from here to there, in the units of its view box.
const FROM: f64 = 10.0;
const TO: f64 = 990.0;

/// The line.
pub struct Life {
    pub bars: Vec<Bar>,
    pub dots: Vec<Dot>,
    /// How much of the line has passed.
    pub passed: String,
}

/// An attempt.
pub struct Bar {
    pub x: String,
    pub width: String,
    pub class: &'static str,
}

/// An event.
pub struct Dot {
    pub x: String,
    pub class: &'static str,
    pub title: String,
}

/// One event in the list.
pub struct EventRow {
    pub class: &'static str,
    pub at: Moment,
    /// How long after the event before.
    pub gap: Option<String>,
    pub word: String,
    /// How an attempt ended.
    pub result: Option<&'static str>,
    pub node: Option<String>,
    pub detail: Option<String>,
    /// What the receiver answered to an attempt.
    pub reply: Option<String>,
}

/// Events that were, and the one that is ahead.
struct Point {
    at: UnixMs,
    class: &'static str,
    word: String,
    result: Option<&'static str>,
    node: Option<String>,
    detail: Option<String>,
    reply: Option<String>,
}

/// The line and the list of a life.
pub fn draw(row: &TimerRow, life: &Explanation, now: UnixMs, zone: Zone) -> (Life, Vec<EventRow>) {
    let points = points(row, life, now);
    let bars = life.attempts.iter().map(|one| (one.started_at, one.ended_at));
    let mut times: Vec<i64> = points.iter().map(|point| point.at.get()).collect();
    times.extend(bars.flat_map(|(from, to)| [from, to]));
    if row.ended_at.is_none() {
        times.push(now.get());
    }
    let scale = Scale::new(times);
    let drawn = Life {
        bars: life.attempts.iter().map(|one| bar(&scale, one)).collect(),
        // An attempt is a bar.
        dots: points
            .iter()
            .filter(|point| point.result.is_none())
            .map(|point| Dot {
                x: format!("{:.1}", scale.x(point.at.get())),
                class: point.class,
                title: format!("{} {}", point.word, zone.moment(point.at, now).text),
            })
            .collect(),
        passed: format!("{:.1}", scale.x(row.ended_at.unwrap_or(now).get())),
    };
    let mut before: Option<UnixMs> = None;
    let rows = points
        .into_iter()
        .map(|point| {
            let gap = before.replace(point.at).map(|before| point.at.since(before));
            EventRow {
                class: point.class,
                at: zone.moment(point.at, now),
                gap: gap.filter(|gap| !gap.is_zero()).map(|gap| format!("{} later", words::span(gap))),
                word: point.word,
                result: point.result,
                node: point.node,
                detail: point.detail.map(|detail| zone.retell(&detail)),
                reply: point.reply,
            }
        })
        .collect();
    (drawn, rows)
}

fn points(row: &TimerRow, life: &Explanation, now: UnixMs) -> Vec<Point> {
    let mut attempts = life.attempts.iter();
    let mut points: Vec<Point> = life
        .events
        .iter()
        .map(|event| {
            let attempt = (event.event == "attempt").then(|| attempts.next()).flatten();
            Point {
                at: event.at,
                class: class(event, attempt),
                word: attempt.map_or_else(|| event.event.to_owned(), |one| attempt_word(row, one)),
                result: attempt.map(|one| one.result.word()),
                node: event.node.clone(),
                detail: attempt.map_or_else(|| event.detail.clone(), |one| Some(attempt_line(one))),
                reply: attempt.and_then(|one| one.reply.clone()).filter(|reply| !reply.is_empty()),
            }
        })
        .collect();
    let next = match row.life.state {
        State::Scheduled if row.life.due_at > now => Some((row.life.due_at, "due".to_owned())),
        State::Retrying if row.life.wake_at > now => {
            Some((row.life.wake_at, format!("attempt {}", row.life.attempt + 1)))
        }
        _ => None,
    };
    points.extend(next.map(|(at, word)| Point {
        at,
        class: "ahead",
        word,
        result: None,
        node: None,
        detail: None,
        reply: None,
    }));
    points
}

/// `attempt 2`, and of which generation if that is not the present one.
fn attempt_word(row: &TimerRow, one: &AttemptRecord) -> String {
    match one.generation == row.life.generation.0 {
        true => format!("attempt {}", one.attempt),
        false => format!("attempt {} of generation {}", one.attempt, one.generation),
    }
}

/// How long it took, and what came of it.
fn attempt_line(one: &AttemptRecord) -> String {
    let took = words::span(UnixMs::new(one.ended_at).since(UnixMs::new(one.started_at)));
    let said = match (one.status, &one.detail) {
        (_, Some(detail)) => format!(": {detail}"),
        (Some(status), None) => format!(": answered {status}"),
        (None, None) => String::new(),
    };
    format!("after {took}{said}")
}

fn class(event: &LifeEvent, attempt: Option<&AttemptRecord>) -> &'static str {
    match (event.event, attempt) {
        ("delivered", _) => "good",
        ("dead" | "expired", _) => "bad",
        ("replayed", _) => "warn",
        ("attempt", Some(one)) if one.result == AttemptResult::Ok => "good",
        ("attempt", _) => "warn",
        _ => "",
    }
}

fn bar(scale: &Scale, one: &AttemptRecord) -> Bar {
    let (from, to) = (scale.x(one.started_at), scale.x(one.ended_at));
    Bar {
        x: format!("{from:.1}"),
        width: format!("{:.1}", (to - from).max(3.0)),
        class: if one.result == AttemptResult::Ok { "ok" } else { "" },
    }
}

/// Places moments on the line.
struct Scale {
    times: Vec<i64>,
    /// The part of the line before each of them.
    before: Vec<f64>,
}

impl Scale {
    fn new(mut times: Vec<i64>) -> Self {
        times.sort_unstable();
        times.dedup();
        let mut sum = 0.0;
        let mut before = vec![0.0; times.len().min(1)];
        for pair in times.windows(2) {
            sum += 1.0 + ((pair[1] - pair[0]) as f64).ln_1p();
            before.push(sum);
        }
        Self { times, before }
    }

    fn x(&self, at: i64) -> f64 {
        let whole = self.before.last().copied().unwrap_or_default();
        match self.times.binary_search(&at) {
            Ok(index) if whole > 0.0 => FROM + self.before[index] / whole * (TO - FROM),
            _ => FROM,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_as_wide_as_the_logarithm_of_its_length() {
        let scale = Scale::new(vec![5_000, 0, 1_000_000_000, 5_000]);
        let (zero, five, end) = (scale.x(0), scale.x(5_000), scale.x(1_000_000_000));
        assert_eq!((zero, end), (FROM, TO));
        assert!((five - FROM) / (TO - FROM) > 0.2, "five seconds of eleven days are seen: {five}");
        assert_eq!(Scale::new(vec![7]).x(7), FROM);
    }
}

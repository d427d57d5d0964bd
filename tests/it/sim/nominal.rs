//! The book of schedules: what their planners were answered, what became of each nominal time, and the rules of that.
//!
//! Nominal times are reckoned here anew, from the rules as they were answered. Each must have become one occurrence, or be
//! recorded as skipped: once, and for a reason that holds. What cannot be known is left open: when a removal had its effect
//! whose answer came later, and what was claimed a moment ahead of a pause or a change.

use std::collections::BTreeMap;

use mainspring::cold::{ScheduleRow, TimerRow};
use mainspring::model::schedule::{
    Missed, MissedPolicy, Overlap, Plan, ScheduleState, Skipped, Timing, When,
};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{MISSED, State};
use mainspring::sink::Delivery;
use serde_json::Value;

use super::events::Event;
use super::receiver::Behaviour;

/// Claims are made up to so many milliseconds ahead: what is claimed fires, though its schedule is paused or changed.
const AHEAD_MS: i64 = 1000;

/// From when until when a schedule had one rule and one state.
#[derive(Debug)]
struct Segment {
    timing: Timing,
    end_at: i64,
    is_paused: bool,
    from: i64,
    /// The earliest and the latest moment of its end.
    until: (i64, i64),
    /// It ended with the schedule's removal.
    is_removed: bool,
}

/// A backfill that was answered.
#[derive(Debug)]
struct Backfill {
    range: (i64, i64),
    began: i64,
    answered: i64,
}

/// An occurrence of which something has arrived.
#[derive(Debug)]
struct Run {
    first_at: i64,
    /// The delivery id of each attempt, how it came out, and whether its node knows.
    sent: Vec<(String, Behaviour, bool)>,
}

/// One schedule.
#[derive(Debug)]
struct Known {
    missed: Missed,
    overlap: Overlap,
    version: i32,
    segments: Vec<Segment>,
    backfills: Vec<Backfill>,
    runs: BTreeMap<i64, Run>,
}

/// A nominal time that is recorded as skipped.
#[derive(Debug, Clone, Copy)]
struct Skip<'a> {
    reason: &'a str,
    at: i64,
}

/// What is found of one schedule at the end.
pub struct Found<'a> {
    /// All its occurrences.
    pub rows: Vec<&'a TimerRow>,
    /// The events that nominal times were skipped, without an occurrence.
    pub skips: Vec<Event>,
    /// How many are recorded as skipped, of all reasons.
    pub recorded: i64,
}

/// The book of schedules.
#[derive(Default)]
pub struct Recurring {
    schedules: BTreeMap<String, Known>,
    /// From when until when nobody served.
    outages: Vec<(i64, i64)>,
}

impl Segment {
    /// Its nominal times after one moment, up to another.
    fn times(&self, after: i64, until: i64) -> Vec<i64> {
        let start = self.timing.start_at.get();
        let (origin, step) = match &self.timing.when {
            When::Every(every) => (start, i64::try_from(every.get().as_millis()).expect("short")),
            When::Cron(text) => {
                let seconds = text.trim_start_matches("*/").split(' ').next().expect("a field");
                (0, seconds.parse::<i64>().expect("a number") * 1000)
            }
            When::Daily { .. } => return Vec::new(),
        };
        let first = after.max(start - 1);
        let first = origin + ((first - origin).div_euclid(step) + 1) * step;
        (0..).map(|n| first + n * step).take_while(|at| *at <= until.min(self.end_at)).collect()
    }

    /// All of them that it surely or maybe decided.
    fn all(&self) -> Vec<i64> {
        self.times(self.from, self.until.1)
    }
}

impl Run {
    /// Whether its end was known to a node.
    fn is_over(&self) -> bool {
        self.sent.iter().any(|(_, how, is_known)| *how == Behaviour::Ok && *is_known)
    }
}

/// Whether a change or a removal of its schedule has cancelled it.
fn is_withdrawn(row: &TimerRow) -> bool {
    row.life.state == State::Cancelled && row.skipped() == Some(Skipped::Changed)
}

impl Recurring {
    /// This is asked to be a schedule; its policies never change.
    pub fn putting(&mut self, id: &str, plan: &Plan) {
        self.schedules.entry(id.to_owned()).or_insert_with(|| Known {
            missed: plan.missed,
            overlap: plan.overlap,
            version: 0,
            segments: Vec::new(),
            backfills: Vec::new(),
            runs: BTreeMap::new(),
        });
    }

    /// A schedule was answered to be this.
    pub fn is_now(&mut self, row: &ScheduleRow) {
        let Some(known) = self.schedules.get_mut(&row.id) else { return };
        if row.version <= known.version {
            return;
        }
        known.version = row.version;
        let from = row.changed_at.get();
        if let Some(last) = known.segments.last_mut().filter(|last| !last.is_removed) {
            last.until = (from, from);
        }
        known.segments.push(Segment {
            timing: row.plan.timing.clone(),
            end_at: row.plan.end_at.map_or(i64::MAX, UnixMs::get),
            is_paused: row.state == ScheduleState::Paused,
            from,
            until: (i64::MAX, i64::MAX),
            is_removed: false,
        });
    }

    /// A removal was asked for then and is answered now.
    pub fn removed(&mut self, id: &str, asked_at: i64, now: i64) {
        let Some(known) = self.schedules.get_mut(id) else { return };
        known.version = 0;
        if let Some(last) = known.segments.last_mut().filter(|last| !last.is_removed) {
            (last.until, last.is_removed) = ((asked_at, now), true);
        }
    }

    /// What was skipped in this range was made.
    pub fn backfilled(&mut self, id: &str, range: (i64, i64), began: i64, answered: i64) {
        if let Some(known) = self.schedules.get_mut(id) {
            known.backfills.push(Backfill { range, began, answered });
        }
    }

    /// Nobody served from then until now.
    pub fn outage(&mut self, from: i64, until: i64) {
        self.outages.push((from, until));
    }

    /// An occurrence is sent now.
    pub fn sends(&mut self, delivery: &Delivery, how: Behaviour, now: i64) -> Result<(), String> {
        let (Some(schedule), Some(nominal)) = (&delivery.schedule, delivery.nominal) else { return Ok(()) };
        let Some(known) = self.schedules.get_mut(schedule) else { return Err("nobody made it".into()) };
        let nominal = nominal.get();
        let run = known.runs.entry(nominal).or_insert_with(|| Run { first_at: now, sent: Vec::new() });
        run.sent.push((delivery.id.clone(), how, false));
        if now < nominal {
            return Err(format!("sent {} ms before its nominal time", nominal - now));
        }
        let mut others = known.runs.iter().filter(|(at, _)| **at != nominal);
        match others.find(|(_, run)| known.overlap != Overlap::Allow && !run.is_over()) {
            Some((at, run)) => Err(format!("sent while that of {at} runs: {run:?}")),
            None => Ok(()),
        }
    }

    /// The node learns how an attempt came out.
    pub fn learns(&mut self, delivery: &Delivery) {
        let known = delivery.schedule.as_ref().and_then(|id| self.schedules.get_mut(id));
        let run = known.zip(delivery.nominal).and_then(|(known, at)| known.runs.get_mut(&at.get()));
        let sent = run.into_iter().flat_map(|run| &mut run.sent);
        sent.filter(|(id, ..)| *id == delivery.id).for_each(|(.., is_known)| *is_known = true);
    }

    /// The ids of all schedules.
    pub fn ids(&self) -> Vec<String> {
        self.schedules.keys().cloned().collect()
    }

    /// What has become of all nominal times of a schedule, at the end of all.
    pub fn ended(&self, id: &str, found: &Found<'_>) -> Result<(), String> {
        let known = &self.schedules[id];
        let mut made: BTreeMap<i64, &TimerRow> = BTreeMap::new();
        for row in found.rows.iter().filter(|row| !is_withdrawn(row)) {
            let at = row.nominal().ok_or_else(|| format!("{} has no nominal time", row.id))?.get();
            if let Some(other) = made.insert(at, row) {
                return Err(format!("{at} was made twice: {other:?} and {row:?}"));
            }
        }
        let skipped = known.recorded(&found.skips)?;
        let mut unheard: BTreeMap<i64, &TimerRow> = made.clone();
        for segment in &known.segments {
            for at in segment.all() {
                let row = unheard.remove(&at);
                let judge = Judge { known, segment, at, found, outages: &self.outages };
                judge.check(row, skipped.get(&at).copied()).map_err(|what| {
                    format!("{at}: {what}; {row:?}; {:?}; {segment:?}; {known:?}", skipped.get(&at))
                })?;
            }
        }
        if let Some((at, row)) = unheard.into_iter().find(|(at, _)| !known.was_claimed_ahead(*at)) {
            return Err(format!("{at} is none of its nominal times: {row:?}; {known:?}"));
        }
        if let Some(what) = self.outages.iter().find_map(|outage| known.fired_twice(&made, *outage)) {
            return Err(format!("of those that were missed in {what} two fired: {known:?}"));
        }
        let latest = known.segments.iter().rev().find(|segment| segment.is_removed);
        let since = latest.map_or(i64::MIN, |segment| segment.until.1);
        let counts = skipped.keys().filter(|at| **at > since && !made.contains_key(at)).count();
        if known.segments.last().is_some_and(|last| !last.is_removed) && counts as i64 != found.recorded {
            return Err(format!("{} are recorded as skipped, and {counts} were told", found.recorded));
        }
        Ok(())
    }
}

impl Known {
    /// The nominal times that were recorded as skipped without an occurrence, each once.
    fn recorded<'a>(&self, events: &'a [Event]) -> Result<BTreeMap<i64, Skip<'a>>, String> {
        let mut skipped = BTreeMap::new();
        for event in events {
            let body: Value = serde_json::from_slice(&event.body).expect("JSON");
            let moment = |name: &str| {
                let text = body[name].as_str().unwrap_or_default();
                UnixMs::parse_rfc3339(text).map(UnixMs::get).map_err(|_| format!("{name} of {body}"))
            };
            let (first, last, at) = (moment("first")?, moment("last")?, moment("at")?);
            let reason = [Skipped::Missed, Skipped::Overlap, Skipped::Paused].map(Skipped::word);
            let reason = reason.into_iter().flatten().find(|word| body["skipped"] == *word).unwrap_or("?");
            let is_of = |segment: &&Segment| first > segment.from && last <= segment.until.1;
            let times = self.segments.iter().find(is_of).map(|segment| segment.times(first - 1, last));
            let times = times.unwrap_or_default();
            if times.first() != Some(&first) || times.last() != Some(&last) || body["count"] != times.len() {
                return Err(format!("these are no nominal times: {body}; {self:?}"));
            }
            for time in times {
                if let Some(before) = skipped.insert(time, Skip { reason, at }) {
                    return Err(format!("{time} is recorded twice: {before:?} and {body}"));
                }
            }
        }
        Ok(skipped)
    }

    /// Whether this was a nominal time of a rule that was changed, or removed, when it may have been claimed already.
    fn was_claimed_ahead(&self, at: i64) -> bool {
        let is_of = |segment: &Segment| {
            let until = segment.until.1;
            until < i64::MAX && until < at && !segment.times(at - 1, at).is_empty() && at <= until + AHEAD_MS
        };
        self.segments.iter().any(is_of)
    }

    /// Whether somebody had it made afterwards.
    fn is_backfilled(&self, at: i64, row: &TimerRow) -> bool {
        let is_asked = |one: &Backfill| (one.range.0..=one.range.1).contains(&at);
        row.life.due_at.get() != at && row.created_at.get() > at && self.backfills.iter().any(is_asked)
    }

    /// Two of the nominal times that were missed in an outage and fired, if that is one too many.
    fn fired_twice(&self, made: &BTreeMap<i64, &TimerRow>, outage: (i64, i64)) -> Option<String> {
        let fires = |(at, row): &(&i64, &&TimerRow)| {
            is_missed(**at, outage) && row.life.state == State::Delivered && !self.is_backfilled(**at, row)
        };
        let fired: Vec<&i64> = made.iter().filter(fires).map(|(at, _)| at).collect();
        let is_too_many = self.missed.policy == MissedPolicy::FireOnce && fired.len() > 1;
        is_too_many.then(|| format!("{outage:?}, {fired:?},"))
    }

    /// Whether the schedule may have been removed from one moment to another.
    fn is_removed_between(&self, from: i64, until: i64) -> bool {
        let removals = self.segments.iter().filter(|segment| segment.is_removed);
        removals.map(|segment| segment.until).any(|(asked, answered)| asked <= until && answered >= from)
    }
}

/// One nominal time, and what it is judged by.
struct Judge<'a> {
    known: &'a Known,
    segment: &'a Segment,
    at: i64,
    found: &'a Found<'a>,
    outages: &'a [(i64, i64)],
}

impl Judge<'_> {
    fn check(&self, row: Option<&TimerRow>, skip: Option<Skip<'_>>) -> Result<(), String> {
        let is_backfilled = row.is_some_and(|row| self.known.is_backfilled(self.at, row));
        match (row, skip) {
            (None, None) if self.at > self.segment.until.0 || self.was_withdrawn_waiting() => Ok(()),
            (None, None) => Err("it made no occurrence, and no skip is recorded".into()),
            (Some(_), Some(_)) if !is_backfilled => Err("it is recorded as skipped, and was made".into()),
            (Some(_), None) if is_backfilled => {
                Err("it was made afterwards, and was not skipped before".into())
            }
            (None, Some(skip)) if self.is_owed(skip) => Err("it was to be made afterwards".into()),
            (row, skip) => {
                skip.map_or(Ok(()), |skip| self.reason(skip))?;
                row.map_or(Ok(()), |row| self.made(row, is_backfilled))
            }
        }
    }

    /// An occurrence waited for others when its schedule was removed, and was cancelled with it.
    fn was_withdrawn_waiting(&self) -> bool {
        let (asked, answered) = self.segment.until;
        let mut rows = self.found.rows.iter().filter(|row| row.nominal().map(UnixMs::get) == Some(self.at));
        let in_time = |row: &TimerRow| row.ended_at.is_some_and(|at| (asked..=answered).contains(&at.get()));
        // It may have waited since an earlier rule.
        let is_removed = |row: &TimerRow| {
            let ended = row.ended_at.map_or(0, UnixMs::get);
            self.known.is_removed_between(ended, ended)
        };
        self.known.overlap != Overlap::Allow
            && rows.any(|row| is_withdrawn(row) && (in_time(row) || is_removed(row)))
    }

    /// Whether a backfill that began after the skip should have made it.
    fn is_owed(&self, skip: Skip<'_>) -> bool {
        self.known.backfills.iter().any(|one| {
            let is_in = (one.range.0..=one.range.1).contains(&self.at);
            is_in && skip.at < one.began && !self.known.is_removed_between(skip.at, one.answered)
        })
    }

    /// An occurrence, as it has ended.
    fn made(&self, row: &TimerRow, is_backfilled: bool) -> Result<(), String> {
        let (at, run) = (self.at, self.known.runs.get(&self.at));
        if row.life.due_at.get() != at && !is_backfilled {
            return Err("it was moved, and nobody asked for it".into());
        }
        match (row.life.state, row.skipped().and_then(Skipped::word)) {
            (State::Delivered, None) => self.fired(row, run, is_backfilled),
            (State::Expired, Some(reason)) if run.is_none() => {
                self.reason(Skip { reason, at: row.ended_at.map_or(0, UnixMs::get) })
            }
            (State::Expired, Some(_)) => Err("it fired, and is recorded as skipped".into()),
            (state, _) => Err(format!("it ended as {state:?}")),
        }
    }

    fn fired(&self, row: &TimerRow, run: Option<&Run>, is_backfilled: bool) -> Result<(), String> {
        let Some(run) = run else { return Err("it is delivered, and nobody got it".into()) };
        if is_backfilled {
            return Ok(());
        }
        let Self { known, segment, at, .. } = *self;
        if segment.is_paused && at > segment.from + AHEAD_MS && at <= segment.until.0 {
            return Err("it fired, and its schedule was paused".into());
        }
        let was_missed = self.outages.iter().any(|outage| is_missed(at, *outage));
        if known.missed.policy == MissedPolicy::Skip && was_missed {
            return Err("it fired, and was missed".into());
        }
        // Claims come a moment ahead, of what runs as of what is to be skipped.
        let ran_over = self.others(at).find(|(other, ended)| {
            let first_at = other.nominal().and_then(|at| known.runs.get(&at.get())).map(|run| run.first_at);
            // What an earlier schedule of this id had made is none of its own.
            let is_own = |other: i64| other < at && !known.is_removed_between(other, at);
            other.nominal().is_some_and(|other| is_own(other.get()))
                && first_at.is_some_and(|first| first <= at)
                && *ended > at
        });
        match ran_over {
            Some((other, _)) if known.overlap == Overlap::Skip => Err(format!(
                "it fired at {}, and that before ran at its time: {other:?}; {row:?}",
                run.first_at
            )),
            _ => Ok(()),
        }
    }

    /// Whether the reason of a skip holds.
    fn reason(&self, skip: Skip<'_>) -> Result<(), String> {
        let Self { known, segment, at, .. } = *self;
        let is_paused = segment.is_paused;
        let late_ms = skip.at - at;
        let within = i64::try_from(known.missed.within.get().as_millis()).unwrap_or(i64::MAX);
        let holds = match skip.reason {
            "paused" => is_paused,
            _ if is_paused && at > segment.from + AHEAD_MS => false,
            "missed" if late_ms <= missed_ms() => false,
            "missed" => known.missed.policy != MissedPolicy::FireAll || late_ms > within,
            "overlap" => known.overlap != Overlap::Allow && self.others(at).next().is_some(),
            _ => false,
        };
        if holds { Ok(()) } else { Err(format!("`{}` is no reason {late_ms} ms after it", skip.reason)) }
    }

    /// The other occurrences that had not ended at this moment, and when each did.
    fn others(&self, at: i64) -> impl Iterator<Item = (&TimerRow, i64)> {
        let other = move |row: &&TimerRow| row.nominal().is_some_and(|nominal| nominal.get() != self.at);
        let rows = self.found.rows.iter().copied().filter(other);
        rows.filter_map(move |row| Some((row, row.ended_at?.get())).filter(|(_, ended)| *ended >= at))
    }
}

/// Whether a nominal time was surely missed in an outage.
fn is_missed(at: i64, (from, until): (i64, i64)) -> bool {
    at > from + AHEAD_MS && at + missed_ms() < until
}

fn missed_ms() -> i64 {
    i64::try_from(MISSED.as_millis()).expect("a minute")
}

//! Schedules: each nominal time makes exactly one occurrence, or a recorded skip.
//!
//! The nominal times come from plain arithmetic, and the calls say which rule held when, and when a schedule was paused. A
//! change, a pause and a resume happen at a moment between their first call and their answer; what lies between these may be
//! decided either way, but not twice. Occurrences are known by what came, skips by lifecycle events and by the lists of
//! occurrences.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Check, Dues, FirstAttempt, RECORD_US, SCHEDULES};
use crate::tools::drill::history::{
    Arrival, History, Listed, Micros, Reason, Rhythm, ScheduleAsk, ScheduleCall, ScheduleTerms, ToldSkip,
};

/// How long after a change or a pause an occurrence may still come that was claimed before: claims are made that much ahead
/// (`wheel.lead`), and its nominal time is told in whole milliseconds.
const LEAD_US: Micros = 55_000;
/// The same while shards are handed over, from a node that stops or to one that has come back.
const HAND_OVER_LEAD_US: Micros = 505_000;
/// What nobody could fire for so long was missed.
const MISSED_US: Micros = 60_000_000;
/// What an answer of a receiver may differ by from a nominal time by which it counts.
const GRAIN_US: Micros = 5_000;

/// When something happened that a caller asked for: between two moments, these included.
#[derive(Debug, Clone, Copy)]
struct Span {
    from_us: Micros,
    until_us: Micros,
}

impl Span {
    /// That of calls of one kind; `None` if there is none, or all were refused.
    fn of(calls: &[&ScheduleCall], ask: ScheduleAsk) -> Option<Self> {
        let mut calls = calls.iter().filter(|call| call.ask == ask).peekable();
        let from_us = calls.peek()?.asked_us;
        let mut until_us = Micros::MAX;
        for call in calls {
            match call.status {
                Some(_) if call.is_done() => until_us = until_us.min(call.answered_us),
                Some(_) => return None,
                None => {}
            }
        }
        Some(Self { from_us, until_us })
    }
}

/// What is known of one schedule.
struct Schedule<'a> {
    number: u32,
    terms: ScheduleTerms,
    calls: Vec<&'a ScheduleCall>,
    made: Option<Span>,
    changed: Option<(Span, Rhythm)>,
    paused: Option<(Span, Option<Span>)>,
}

impl<'a> Schedule<'a> {
    fn of(number: u32, terms: ScheduleTerms, calls: Vec<&'a ScheduleCall>) -> Self {
        let span = |ask| Span::of(&calls, ask);
        let made = span(ScheduleAsk::Make);
        let changed = span(ScheduleAsk::Change).zip(terms.changed);
        let paused = span(ScheduleAsk::Pause).map(|from| (from, span(ScheduleAsk::Resume)));
        Self { number, terms, calls, made, changed, paused }
    }

    /// The nominal times from one moment to another, by a rule.
    fn times(&self, rule: Rhythm, after_us: Micros, until_us: Micros) -> impl Iterator<Item = i64> + use<> {
        let after_us = after_us.max(self.terms.start_ms * 1000 - 1);
        rule.times(after_us, until_us.min(self.terms.end_ms * 1000))
    }

    /// Nominal times that have to be decided.
    fn required(&self) -> BTreeSet<i64> {
        let Some(made) = self.made.filter(|made| made.until_us < Micros::MAX) else { return BTreeSet::new() };
        let Some((changed, rule)) = self.changed else {
            return self.times(self.terms.rule, made.until_us, Micros::MAX).collect();
        };
        let before = self.times(self.terms.rule, made.until_us, changed.from_us);
        let after = self.times(rule, changed.until_us.max(made.until_us), Micros::MAX);
        // By both rules it is one, whenever the change happened.
        let between = self.times(rule, changed.from_us.max(made.until_us), changed.until_us);
        before.chain(after).chain(between.filter(|at| self.terms.rule.has(*at))).collect()
    }

    /// Whether it may be a nominal time.
    fn may_be(&self, at_ms: i64, lead_us: Micros) -> bool {
        let (at_us, terms) = (at_ms * 1000, &self.terms);
        // The store's moment of the making is told in whole milliseconds, too.
        let is_within = self.made.is_some_and(|made| at_us >= made.from_us - GRAIN_US)
            && (terms.start_ms..=terms.end_ms).contains(&at_ms);
        let is_old = terms.rule.has(at_ms)
            && self.changed.is_none_or(|(span, _)| at_us <= span.until_us.saturating_add(lead_us));
        let is_new = self.changed.is_some_and(|(span, rule)| rule.has(at_ms) && at_us >= span.from_us);
        is_within && (is_old || is_new)
    }

    /// Whether it has to be skipped because of a pause, and whether it may be.
    fn pause_at(&self, at_ms: i64, lead_us: Micros) -> (bool, bool) {
        let at_us = at_ms * 1000;
        let Some((from, until)) = self.paused else { return (false, false) };
        let (resumes_us, resumed_us) =
            until.map_or((Micros::MAX, Micros::MAX), |span| (span.from_us, span.until_us));
        let has_to = at_us > from.until_us.saturating_add(lead_us) && at_us < resumes_us;
        (has_to, (from.from_us..=resumed_us).contains(&at_us))
    }
}

/// What is known of one nominal time.
#[derive(Default)]
struct Nominal<'a> {
    arrivals: Vec<&'a Arrival>,
    skips: Vec<&'a ToldSkip>,
    listed: Option<&'a Listed>,
}

impl Nominal<'_> {
    fn came(&self) -> bool {
        !self.arrivals.is_empty()
    }

    fn is_skipped(&self) -> bool {
        !self.skips.is_empty() || self.listed.is_some_and(|listed| listed.skipped.is_some())
    }

    fn reasons(&self) -> impl Iterator<Item = (Reason, Micros)> {
        let listed = self.listed.and_then(|listed| listed.skipped).map(|reason| (reason, Micros::MAX));
        self.skips.iter().map(|told| (told.reason, told.at_us)).chain(listed)
    }

    /// How often it was decided: occurrences by the ids of their deliveries or timers, and skips by their events.
    fn decided(&self) -> usize {
        let deliveries: HashSet<u64> = self.arrivals.iter().map(|arrival| arrival.delivery).collect();
        let timers: HashSet<u64> =
            self.arrivals.iter().filter_map(|arrival| arrival.of).map(|of| of.timer).collect();
        let events: HashSet<u64> = self.skips.iter().map(|told| told.event).collect();
        deliveries.len().max(timers.len()).max(events.len())
    }

    /// When the receiver first accepted it.
    fn accepted_us(&self) -> Option<Micros> {
        self.arrivals.iter().filter(|arrival| arrival.accepted()).map(|a| a.at_us + a.took_us).min()
    }
}

type Nominals<'a> = BTreeMap<i64, Nominal<'a>>;

impl<'a> Check<'a> {
    /// Judges all schedules.
    pub(super) fn schedules(&mut self) {
        let history = self.history;
        let mut nominals = self.nominals();
        let mut calls: HashMap<u32, Vec<&ScheduleCall>> = HashMap::new();
        for call in &history.schedule_calls {
            calls.entry(call.schedule).or_default().push(call);
        }
        for (number, terms) in (0..).zip(&history.schedules) {
            let mut calls = calls.remove(&number).unwrap_or_default();
            calls.sort_by_key(|call| call.asked_us);
            let schedule = Schedule::of(number, *terms, calls);
            let mut nominals = nominals.remove(&number).unwrap_or_default();
            for at in schedule.required() {
                nominals.entry(at).or_default();
            }
            self.calls_about(&schedule);
            self.schedule(&schedule, &nominals);
        }
        for number in nominals.into_keys() {
            self.found.stray += 1;
            self.describe("stray", SCHEDULES.saturating_add(number), || "it is none of the drill".into());
        }
        self.deliveries();
    }

    fn calls_about(&mut self, schedule: &Schedule<'_>) {
        for call in &schedule.calls {
            match call.status {
                None => self.found.unanswered += 1,
                Some(status) if !call.is_done() => {
                    self.found.nonsense += 1;
                    let ask = call.ask;
                    self.describe("nonsense", SCHEDULES + schedule.number, || {
                        format!("{ask:?} was answered {status}")
                    });
                }
                Some(_) => {}
            }
        }
    }

    fn schedule(&mut self, schedule: &Schedule<'_>, nominals: &Nominals<'_>) {
        let required = schedule.required();
        let is_over = |at: &&i64| **at * 1000 <= self.history.ended_us;
        for at in nominals.keys().filter(is_over).copied().collect::<Vec<_>>() {
            let Some(nominal) = nominals.get(&at) else { continue };
            let is_known = nominal.came() || nominal.is_skipped();
            if is_known && !schedule.may_be(at, self.lead_us(at * 1000)) {
                self.found.stray += 1;
                self.tell("stray", schedule, at, nominal, "it is no nominal time");
            } else if is_known || required.contains(&at) {
                self.nominal(schedule, at, nominal);
                self.skip(schedule, at, nominals);
                self.attempts(schedule, at, nominal);
            }
        }
    }

    /// It fired, or it was skipped; and once.
    fn nominal(&mut self, schedule: &Schedule<'_>, at: i64, nominal: &Nominal<'_>) {
        self.found.nominals += 1;
        let beyond = nominal.decided().saturating_sub(1) as u64;
        if beyond > 0 {
            self.found.made_twice += beyond;
            self.tell("nominal made twice", schedule, at, nominal, "it was decided more than once");
        }
        if nominal.came() && nominal.is_skipped() {
            self.found.fired_and_skipped += 1;
            self.tell("fired and skipped", schedule, at, nominal, "both happened");
        }
        if nominal.accepted_us().is_some() {
            self.found.nominals_fired += 1;
        } else if nominal.is_skipped() {
            self.found.nominals_skipped += 1;
            self.found.never_made += u64::from(nominal.skips.iter().any(|told| !told.was_made));
        } else {
            self.found.nominals_lost += 1;
            self.tell("nominal lost", schedule, at, nominal, "it was neither accepted nor skipped");
        }
    }

    /// A skip has its reason, and what has one is skipped.
    fn skip(&mut self, schedule: &Schedule<'_>, at: i64, nominals: &Nominals<'_>) {
        let Some(nominal) = nominals.get(&at) else { return };
        let (has_to_pause, may_pause) = schedule.pause_at(at, self.lead_us(at * 1000));
        let before = || nominals.range(..at).map(|(_, nominal)| nominal);
        let end = |(of, one): (&i64, &Nominal<'_>)| {
            one.accepted_us().filter(|us| *us > at * 1000 + GRAIN_US).map(|us| (*of - at, us - at * 1000))
        };
        let is_exclusive = schedule.terms.is_exclusive;
        let may_overlap = || is_exclusive && before().any(|one| self.may_run(one, at * 1000));
        let is_true = |(reason, told_us): (Reason, Micros)| match reason {
            Reason::Paused => may_pause,
            Reason::Overlap => may_overlap(),
            Reason::Missed => told_us >= at * 1000 + MISSED_US && self.was_nobody_there(at * 1000),
            Reason::Other => false,
        };
        let is_untrue = nominal.reasons().any(|one| !is_true(one));
        let ran_over = nominals.range(..at).find_map(end).filter(|_| is_exclusive);
        if is_untrue {
            self.found.untrue_skips += 1;
            self.tell("untrue skip", schedule, at, nominal, "it has no such reason");
        }
        if nominal.came() && (has_to_pause || ran_over.is_some()) {
            self.found.unskipped += 1;
            let why = match ran_over {
                _ if has_to_pause => "its schedule was paused".to_owned(),
                None => String::new(),
                Some((of_ms, us)) => format!("that of {of_ms} ms ended at {:.1}", us as f64 / 1000.0),
            };
            self.tell("not skipped", schedule, at, nominal, &why);
        }
    }

    /// How far ahead claims are made of what is due at a moment.
    fn lead_us(&self, at_us: Micros) -> Micros {
        let from_us = at_us - self.limits.recovery_us;
        match self.history.faults.iter().any(|fault| fault.may_delay() && fault.overlaps(from_us, at_us)) {
            true => HAND_OVER_LEAD_US,
            false => LEAD_US,
        }
    }

    /// Whether an occurrence may not have ended at a moment, as far as its node or another one knew.
    fn may_run(&self, nominal: &Nominal<'_>, at_us: Micros) -> bool {
        nominal.arrivals.iter().any(|arrival| {
            let took_us = if arrival.replied.is_some() { arrival.took_us } else { self.limits.answer_us };
            let known_us = arrival.at_us + took_us + RECORD_US;
            let faults = self.history.faults.iter().filter(|fault| fault.keeps_from_recording(arrival));
            let mut faults = faults.filter(|fault| fault.overlaps(arrival.at_us, known_us));
            at_us <= known_us || faults.any(|fault| at_us <= fault.until_us + self.limits.recovery_us)
        })
    }

    /// Whether faults lasted for as long as it takes to miss a nominal time.
    fn was_nobody_there(&self, at_us: Micros) -> bool {
        let faults = self.history.faults.iter().filter(|fault| fault.may_delay());
        faults.into_iter().any(|fault| fault.from_us <= at_us && at_us + MISSED_US <= fault.until_us)
    }

    /// Each attempt, like one for any timer.
    fn attempts(&mut self, schedule: &Schedule<'_>, at: i64, nominal: &Nominal<'_>) {
        let arrivals = &nominal.arrivals;
        // A change may make it anew, as the next generation.
        let dues: Dues = arrivals.iter().map(|arrival| (arrival.generation, vec![at])).collect();
        let stale = self.arrivals(SCHEDULES + schedule.number, &dues, arrivals);
        self.repeats(SCHEDULES + schedule.number, arrivals, &stale);
        if arrivals.iter().any(|arrival| arrival.of.is_some_and(|of| !of.is_named_so)) {
            self.found.mistaken_identity += 1;
            self.tell("mistaken identity", schedule, at, nominal, "its timer has another id");
        }
        let Some(first) = arrivals.first() else { return };
        if schedule.terms.is_exclusive || schedule.terms.is_difficult {
            return;
        }
        let asked = schedule.calls.iter().filter(|call| call.is_done() && call.asked_us < first.at_us);
        let promised_us = asked.map(|call| call.answered_us).max().unwrap_or(first.at_us);
        self.firsts.push(FirstAttempt {
            timer: SCHEDULES + schedule.number,
            due_ms: at,
            from_us: self.clock.due_since(at * 1000, promised_us, first.at_us),
            at_us: first.at_us,
            made_us: nominal.listed.map(|listed| listed.made_us),
        });
    }

    /// A delivery id is of one nominal time.
    fn deliveries(&mut self) {
        let history = self.history;
        let mut of_delivery: HashMap<u64, (u32, i64)> = HashMap::new();
        for (delivery, of) in history.arrivals.iter().filter_map(|a| Some((a.delivery, a.of?))) {
            let nominal = (of.schedule, of.nominal_ms);
            if *of_delivery.entry(delivery).or_insert(nominal) != nominal {
                self.found.mistaken_identity += 1;
                let other = of_delivery.get(&delivery).copied();
                self.describe("mistaken identity", SCHEDULES + of.schedule, || {
                    format!("a delivery id of {nominal:?} and {other:?}")
                });
            }
        }
    }

    /// What is known, by schedule and nominal time.
    fn nominals(&mut self) -> BTreeMap<u32, Nominals<'a>> {
        let history = self.history;
        let mut all: BTreeMap<u32, Nominals<'a>> = BTreeMap::new();
        let mut arrivals: Vec<&Arrival> = history.arrivals.iter().collect();
        arrivals.sort_by_key(|arrival| arrival.at_us);
        for (arrival, of) in arrivals.into_iter().filter_map(|arrival| Some((arrival, arrival.of?))) {
            let of_schedule = all.entry(of.schedule).or_default();
            of_schedule.entry(of.nominal_ms).or_default().arrivals.push(arrival);
        }
        for listed in &history.listed {
            let of_schedule = all.entry(listed.schedule).or_default();
            of_schedule.entry(listed.nominal_ms).or_default().listed = Some(listed);
        }
        for told in &history.skips {
            let of_schedule = all.entry(told.schedule).or_default();
            match times_told(told, history.schedules.get(told.schedule as usize)) {
                Some(times) => times.into_iter().for_each(|at| {
                    of_schedule.entry(at).or_default().skips.push(told);
                }),
                None => {
                    self.found.untrue_skips += 1;
                    let text = || format!("no rule has these nominal times: {told:?}");
                    self.describe("untrue skip", SCHEDULES.saturating_add(told.schedule), text);
                }
            }
        }
        all
    }

    /// Describes a finding about a nominal time: times are milliseconds from it.
    fn tell(
        &mut self,
        kind: &'static str,
        schedule: &Schedule<'_>,
        at: i64,
        nominal: &Nominal<'_>,
        why: &str,
    ) {
        self.describe(kind, SCHEDULES + schedule.number, || {
            format!("nominal time {at}: {why}; {}", story(schedule, at, nominal))
        });
    }
}

/// The nominal times that an event tells of: those of the rule that has as many; `None` if there is none.
fn times_told(told: &ToldSkip, terms: Option<&ScheduleTerms>) -> Option<Vec<i64>> {
    let terms = terms?;
    let (after_us, until_us) = (told.first_ms * 1000 - 1, told.last_ms * 1000);
    let mut rules = [Some(terms.rule), terms.changed].into_iter().flatten();
    rules.find_map(|rule| {
        let times: Vec<i64> = rule.times(after_us, until_us).collect();
        let is_its = times.first() == Some(&told.first_ms) && times.last() == Some(&told.last_ms);
        (is_its && times.len() as u64 == told.count).then_some(times)
    })
}

/// What happened about a nominal time that came, in a line.
pub(super) fn life_of_nominal(history: &History, number: u32, at: i64) -> String {
    let Some(terms) = history.schedules.get(number as usize) else { return String::new() };
    let calls = history.schedule_calls.iter().filter(|call| call.schedule == number).collect();
    let is_it = |schedule: u32, nominal_ms: i64| (schedule, nominal_ms) == (number, at);
    let nominal = Nominal {
        arrivals: history
            .arrivals
            .iter()
            .filter(|arrival| arrival.of.is_some_and(|of| is_it(of.schedule, of.nominal_ms)))
            .collect(),
        skips: Vec::new(),
        listed: history.listed.iter().find(|one| is_it(one.schedule, one.nominal_ms)),
    };
    story(&Schedule::of(number, *terms, calls), at, &nominal)
}

/// What happened about a nominal time, in a line; in milliseconds from it.
fn story(schedule: &Schedule<'_>, at: i64, nominal: &Nominal<'_>) -> String {
    let ms = |us: Micros| (us - at * 1000) as f64 / 1000.0;
    let mut lines: Vec<(Micros, String)> = Vec::new();
    for call in &schedule.calls {
        let (ask, answered) = (call.ask, ms(call.answered_us));
        let text = format!("{:.1} {ask:?}: {:?} at {answered:.1}", ms(call.asked_us), call.status);
        lines.push((call.asked_us, text));
    }
    for a in &nominal.arrivals {
        let text = format!(
            "{:.1} arrival {}.{} of node {:?}, delivery {:x}, answered {:?}",
            ms(a.at_us),
            a.generation,
            a.attempt,
            a.node,
            a.delivery,
            a.replied
        );
        lines.push((a.at_us, text));
    }
    for told in &nominal.skips {
        let range = if told.count == 1 { String::new() } else { format!(", one of {}", told.count) };
        lines.push((told.at_us, format!("{:.1} told skipped: {:?}{range}", ms(told.at_us), told.reason)));
    }
    lines.sort();
    let mut lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    lines.extend(nominal.listed.map(|one| format!("listed as made at {:.1}: {one:?}", ms(one.made_us))));
    lines.join("; ")
}

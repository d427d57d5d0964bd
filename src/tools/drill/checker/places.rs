//! Timers for queues: what workers were given, what they settled, and what they were told of it.
//!
//! A worker *holds* a place from when the store gave it until it settles it, or its lease ends. The end of a lease is what
//! the worker was told; a lease whose extension was not answered may end at either moment, so each hold has the moment
//! until which it surely lasted and the one until which it may have.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::lateness::covers_half;
use super::{Check, End, in_force};
use crate::tools::drill::history::{Answer, Ask, Call, Giving, Micros, Places, Settled, Settlement, Wish};
use crate::tools::quantiles::Quantiles;

/// What a settlement's way to the store may differ by from its lease's end: that is told in whole milliseconds.
const GRAIN_US: Micros = 5_000;
/// How soon after the end of its lease, or after the wait that its worker asked for, a place is given out again.
const AGAIN_US: Micros = 5_000_000;

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Its worker never settled it, or was told that the lease was lost.
    Unsettled,
    /// Settled for good: acked, or given up.
    Settled { acked: bool },
    /// Given back.
    Returned,
    /// A settlement had no answer.
    Doubtful,
}

/// A place in the hands of a worker.
struct Hold<'a> {
    giving: &'a Giving,
    ended: Ended,
    /// The worker surely had it until then.
    surely_us: Micros,
    /// Nobody else may have it before then.
    alone_us: Micros,
    /// It is free at the latest then, unless it is settled for good.
    latest_us: Micros,
    /// When the settlement that ended it was sent, and when it was answered.
    settled_us: Option<(Micros, Micros)>,
}

impl Hold<'_> {
    const fn is_settled(&self) -> bool {
        matches!(self.ended, Ended::Settled { .. })
    }

    /// Whether it may count as settled by then.
    fn may_be_settled(&self, by_us: Micros) -> bool {
        (self.is_settled() || self.ended == Ended::Doubtful)
            && self.settled_us.is_some_and(|(asked_us, _)| asked_us <= by_us)
    }
}

/// What workers saw of all timers.
pub(super) struct Work<'a> {
    givings: HashMap<u32, Vec<&'a Giving>>,
    settlements: HashMap<u64, Vec<&'a Settlement>>,
    late: Vec<Micros>,
}

impl<'a> Work<'a> {
    pub(super) fn of(givings: &'a [Giving], settlements: &'a [Settlement]) -> Self {
        let mut work = Self { givings: HashMap::new(), settlements: HashMap::new(), late: Vec::new() };
        let mut sorted: Vec<&Giving> = givings.iter().collect();
        sorted.sort_by_key(|giving| (giving.given_us, giving.at_us));
        let mut told = HashSet::new();
        // A lease that a worker was told of again is the same.
        for giving in sorted.into_iter().filter(|giving| told.insert(giving.token)) {
            work.givings.entry(giving.timer).or_default().push(giving);
        }
        let mut sorted: Vec<&Settlement> = settlements.iter().collect();
        sorted.sort_by_key(|settlement| settlement.asked_us);
        for settlement in sorted {
            work.settlements.entry(settlement.token).or_default().push(settlement);
        }
        work
    }

    /// The longest that a worker was told it has a place.
    fn longest_us(&self) -> Micros {
        let spans = self.givings.values().flatten().map(|giving| giving.until_us - giving.given_us);
        spans.max().unwrap_or_default()
    }
}

impl Check<'_> {
    /// Judges a timer for a queue.
    pub(super) fn task(&mut self, number: u32, calls: &[&Call], terms: Places, work: &mut Work<'_>) {
        self.answers(number, calls);
        let givings = work.givings.get(&number).cloned().unwrap_or_default();
        self.found.given += givings.len() as u64;
        let mut holds = Vec::with_capacity(givings.len());
        for giving in givings {
            let settlements = work.settlements.get(&giving.token).map_or(&[][..], Vec::as_slice);
            holds.push(self.hold(giving, settlements));
        }
        self.given(number, calls, terms, &holds);
        self.twice(number, calls, terms, &holds);
        self.fetched(number, calls, terms, &holds, work);
        for call in calls.iter().filter(|call| call.ask == Ask::Cancel) {
            if let Some(untrue) = untrue_cancel(call, calls, terms, &holds) {
                self.found.untrue_cancels += 1;
                self.describe("untrue cancel", number, || format!("{untrue}; {}", story(calls, &holds)));
            }
        }
        let is_known =
            |call: &&Call| matches!((call.ask, call.answer), (Ask::Register { .. }, Answer::Done { .. }));
        if !calls.iter().any(is_known) {
            return;
        }
        self.found.registered += 1;
        match self.end_of_task(calls, terms, &holds) {
            End::Delivered => self.found.delivered += 1,
            End::Cancelled => self.found.cancelled += 1,
            End::Dead => self.found.dead += 1,
            End::Pending => self.found.pending += 1,
            End::Open => self.found.open += 1,
            End::Expired | End::Lost => {
                self.found.lost += 1;
                self.describe("lost", number, || story(calls, &holds));
            }
        }
    }

    /// What follows for all queues together.
    pub(super) fn queues(&mut self, work: Work<'_>) {
        self.found.fetched = Quantiles::of(work.late);
        let history = self.history;
        let mut of_delivery: HashMap<u64, u32> = HashMap::new();
        for giving in &history.givings {
            if *of_delivery.entry(giving.delivery).or_insert(giving.timer) != giving.timer {
                self.found.mistaken_identity += 1;
                self.describe("mistaken identity", giving.timer, || "a delivery id of two timers".into());
            }
        }
        for what in &history.strange {
            self.found.nonsense += 1;
            self.describe("nonsense", 0, || format!("a worker was answered {what}"));
        }
        for looks in &history.looks {
            let beyond = looks.calls.saturating_sub(looks.most);
            self.found.polls += beyond;
            if beyond > 0 {
                self.describe("polls", 0, || format!("{looks:?}"));
            }
        }
    }

    /// Goes through the settlements of one lease, in order.
    fn hold<'a>(&mut self, giving: &'a Giving, settlements: &[&Settlement]) -> Hold<'a> {
        let (until_us, ended) = (giving.until_us, Ended::Unsettled);
        let mut hold = Hold {
            giving,
            ended,
            surely_us: until_us,
            alone_us: until_us,
            latest_us: until_us,
            settled_us: None,
        };
        for one in settlements {
            let untrue = match one.answer {
                Settled::Counts if matches!(hold.ended, Ended::Settled { .. } | Ended::Returned) => {
                    Some("it counts, and it was settled before")
                }
                Settled::Counts if one.asked_us > hold.latest_us + GRAIN_US => {
                    Some("it counts, and its lease had ended")
                }
                Settled::Lost
                    if hold.ended == Ended::Unsettled && one.answered_us + GRAIN_US < hold.surely_us =>
                {
                    Some("lease_lost, and the lease had not ended")
                }
                _ => None,
            };
            if let Some(untrue) = untrue {
                self.found.untrue_settlements += 1;
                let late_us = one.asked_us - giving.until_us;
                self.describe("untrue settlement", one.timer, || {
                    let (worker, wish) = (giving.worker, one.wish);
                    format!("{untrue}: {wish:?} by worker {worker}, {} ms after the lease", late_us / 1000)
                });
            }
            self.found.settled += u64::from(one.answer == Settled::Counts);
            self.found.leases_lost += u64::from(one.answer == Settled::Lost);
            hold.settle(one);
        }
        hold
    }

    /// What was given too early, or to nobody's knowledge; more places than there are.
    fn given(&mut self, number: u32, calls: &[&Call], terms: Places, holds: &[Hold<'_>]) {
        let dues: Vec<i64> = in_force(calls).iter().map(|(due_us, _)| due_us / 1000).collect();
        let mut attempts: HashMap<u64, i32> = HashMap::new();
        for Hold { giving, .. } in holds {
            if !dues.contains(&giving.due_ms) {
                self.found.stray += 1;
                self.describe("stray", number, || {
                    format!("given as due {}; asked for was {dues:?}", giving.due_ms)
                });
            }
            if giving.given_us.min(giving.at_us) < giving.due_ms * 1000 {
                self.found.early += 1;
                self.describe("early", number, || story(calls, holds));
            }
            let before = attempts.insert(giving.delivery, giving.attempt).unwrap_or_default();
            if terms.is_all_seen && giving.attempt != before + 1 {
                self.found.unseen_attempts += 1;
                self.describe("unseen attempts", number, || {
                    format!("attempt {} follows {before}; {}", giving.attempt, story(calls, holds))
                });
            }
        }
        let beyond = attempts.len().saturating_sub(terms.times as usize);
        if beyond > 0 {
            self.found.too_many_places += beyond as u64;
            self.describe("too many places", number, || story(calls, holds));
        }
    }

    /// Nobody gets what another has or what is settled, and no worker gets a timer twice unless it repeats: then one
    /// after the other.
    fn twice(&mut self, number: u32, calls: &[&Call], terms: Places, holds: &[Hold<'_>]) {
        for (index, again) in holds.iter().enumerate() {
            let wrong = |before: &&Hold<'_>| {
                let is_at_once = again.giving.given_us + 1000 <= before.alone_us;
                let is_one_place = before.giving.delivery == again.giving.delivery;
                let is_one_worker = before.giving.worker == again.giving.worker;
                match (is_one_place, is_one_worker) {
                    (true, _) => {
                        before.is_settled() || is_at_once || again.giving.attempt <= before.giving.attempt
                    }
                    (false, true) => (before.is_settled() && !terms.repeat) || is_at_once,
                    (false, false) => false,
                }
            };
            if let Some(before) = holds[..index].iter().find(wrong) {
                self.found.given_twice += 1;
                let (first, second) = (before.giving, again.giving);
                self.describe("given twice", number, || {
                    format!(
                        "delivery {:x} attempt {} to worker {}, then {:x} attempt {} to worker {}; {}",
                        first.delivery,
                        first.attempt,
                        first.worker,
                        second.delivery,
                        second.attempt,
                        second.worker,
                        story(calls, holds)
                    )
                });
            }
        }
    }

    /// How soon workers had what was due, and what came back. A giving that nobody has read takes a whole lease, and is
    /// seen by the attempt after it.
    fn fetched(
        &mut self,
        number: u32,
        calls: &[&Call],
        terms: Places,
        holds: &[Hold<'_>],
        work: &mut Work<'_>,
    ) {
        let unread_us = work.longest_us() + AGAIN_US;
        let mut last: BTreeMap<u64, &Hold<'_>> = BTreeMap::new();
        for (index, hold) in holds.iter().enumerate() {
            let giving = hold.giving;
            let before = last.insert(giving.delivery, hold);
            let (ready_us, within_us) = match before {
                Some(before) => (before.latest_us, AGAIN_US),
                // Of the other places of a timer it is not known when somebody came who may have one.
                None if index > 0 => continue,
                None => {
                    let due_us = in_force(calls).iter().map(|(due, answered)| *due.max(answered)).max();
                    (due_us.unwrap_or(giving.given_us), terms.within_us)
                }
            };
            let known = before.map_or(0, |before| before.giving.attempt);
            let unread = Micros::from(giving.attempt - known - 1).max(0);
            let late_us = giving.at_us - ready_us;
            let from_us = self.undisturbed_from(ready_us, giving.at_us);
            if before.is_none() && unread == 0 && from_us == ready_us {
                work.late.push(late_us);
            }
            let is_late = giving.at_us > from_us + within_us + unread * unread_us;
            if is_late && !covers_half(&self.busy(), from_us, giving.at_us) {
                self.found.fetched_late += 1;
                self.describe("fetched late", number, || {
                    let what = if before.is_some() { "came back" } else { "was due" };
                    format!("{} ms after it {what}; {}", late_us / 1000, story(calls, holds))
                });
            }
        }
    }

    /// From when on nothing excuses what was ready at one moment and fetched at another: faults that began by then are
    /// over, and recovered from.
    fn undisturbed_from(&self, ready_us: Micros, at_us: Micros) -> Micros {
        let faults = self.history.faults.iter().filter(|fault| fault.may_delay() && fault.from_us <= at_us);
        let over = faults.map(|fault| fault.until_us + self.limits.recovery_us);
        over.max().unwrap_or(ready_us).max(ready_us)
    }

    fn end_of_task(&self, calls: &[&Call], terms: Places, holds: &[Hold<'_>]) -> End {
        let mut places: BTreeMap<u64, Ended> = BTreeMap::new();
        for hold in holds {
            places.insert(hold.giving.delivery, hold.ended);
        }
        let count = |is: fn(&Ended) -> bool| places.values().filter(|ended| is(ended)).count();
        let dead = count(|ended| *ended == Ended::Settled { acked: false });
        let may_be_settled =
            count(|ended| matches!(ended, Ended::Settled { .. } | Ended::Doubtful)) >= terms.times as usize;
        let cancels = || calls.iter().filter(|call| call.ask == Ask::Cancel);
        let is_stopped = |call: &&Call| {
            use Answer::{AlreadyCancelled, Cancelled, InFlight, Stopped, StoppedAfter};
            matches!(call.answer, Cancelled | Stopped | StoppedAfter { .. } | AlreadyCancelled | InFlight)
        };
        let is_in_future = |(due_us, _): &(Micros, Micros)| *due_us > self.history.ended_us;
        if may_be_settled {
            return if dead > 0 { End::Dead } else { End::Delivered };
        }
        if cancels().any(is_stopped) {
            return End::Cancelled;
        }
        if in_force(calls).iter().any(is_in_future) {
            return End::Pending;
        }
        match cancels().any(|call| call.answer == Answer::Unknown) {
            true => End::Open,
            false => End::Lost,
        }
    }
}

impl Hold<'_> {
    /// What a settlement has done to it, or may have.
    fn settle(&mut self, one: &Settlement) {
        let (asked_us, answered_us) = (one.asked_us, one.answered_us);
        match (one.answer, one.wish) {
            (Settled::Lost, _) => {}
            (Settled::Counts, Wish::Extend(us)) => {
                (self.surely_us, self.alone_us) = (asked_us + us, asked_us + us);
                self.latest_us = answered_us + us;
            }
            (Settled::Unknown, Wish::Extend(us)) => self.latest_us = self.latest_us.max(answered_us + us),
            (Settled::Counts, Wish::Retry(us)) => {
                self.ended = Ended::Returned;
                (self.surely_us, self.alone_us, self.latest_us) = (asked_us, asked_us + us, answered_us + us);
                self.settled_us = Some((asked_us, answered_us));
            }
            (Settled::Counts, wish) => {
                self.ended = Ended::Settled { acked: wish == Wish::Ack };
                (self.surely_us, self.alone_us) = (self.surely_us.min(asked_us), self.alone_us.min(asked_us));
                self.settled_us.get_or_insert((asked_us, answered_us));
            }
            (Settled::Unknown, wish) => {
                if self.ended == Ended::Unsettled {
                    self.ended = Ended::Doubtful;
                }
                let wait_us = if let Wish::Retry(us) = wish { us } else { 0 };
                (self.surely_us, self.alone_us) = (self.surely_us.min(asked_us), self.alone_us.min(asked_us));
                self.latest_us = self.latest_us.max(answered_us + wait_us);
                self.settled_us.get_or_insert((asked_us, answered_us));
            }
        }
    }
}

/// What is wrong with the answer to a cancel.
fn untrue_cancel(call: &Call, calls: &[&Call], terms: Places, holds: &[Hold<'_>]) -> Option<&'static str> {
    let (asked_us, since_us) = (call.asked_us, call.answered_us);
    let is_given_after = holds.iter().any(|hold| hold.giving.given_us > since_us);
    // The store's moment is told in whole milliseconds.
    let is_out = |hold: &Hold<'_>| hold.giving.given_us + 1000 < asked_us && hold.surely_us > since_us;
    let stopped = |acked: u32| {
        let acks = |by_us: Micros, is: fn(&Hold<'_>) -> bool, at: fn((Micros, Micros)) -> Micros| {
            let by =
                |hold: &&Hold<'_>| is(hold) && hold.settled_us.is_some_and(|settled| at(settled) <= by_us);
            holds.iter().filter(by).count()
        };
        let surely =
            acks(asked_us, |hold| hold.ended == Ended::Settled { acked: true }, |(_, answered)| answered);
        let perhaps =
            |hold: &Hold<'_>| matches!(hold.ended, Ended::Settled { acked: true } | Ended::Doubtful);
        let perhaps = acks(since_us, perhaps, |(asked, _)| asked);
        if holds.iter().any(is_out) {
            Some("cancelled or stopped, while a worker had it")
        } else if is_given_after {
            Some("cancelled or stopped, and given out once more")
        } else if !(surely..=perhaps).contains(&(acked as usize)) {
            Some("cancelled or stopped, with another number of acks")
        } else {
            None
        }
    };
    match call.answer {
        // Without an ack it is `cancelled`, also where leases of it had ended.
        Answer::Cancelled | Answer::Stopped => stopped(0),
        Answer::StoppedAfter { acked } => stopped(acked),
        Answer::InFlight => is_given_after.then_some("in_flight, and given out once more"),
        Answer::AlreadyFired => {
            let settled = holds.iter().filter(|hold| hold.may_be_settled(since_us)).count();
            (settled < terms.times as usize).then_some("already_fired, and not every place was settled")
        }
        Answer::AlreadyCancelled => {
            let before = |one: &&&Call| one.ask == Ask::Cancel && one.asked_us < asked_us;
            calls.iter().find(before).is_none().then_some("already_cancelled, and nobody had cancelled it")
        }
        Answer::NotFound => Some("not found, though its registration was acknowledged"),
        Answer::Done { .. } | Answer::Unknown | Answer::Nonsense(_) => None,
    }
}

/// A timer's life in a line, in milliseconds since its first call.
fn story(calls: &[&Call], holds: &[Hold<'_>]) -> String {
    let from_us = calls.first().map_or(0, |call| call.asked_us);
    let ms = |us: Micros| (us - from_us) as f64 / 1000.0;
    let mut told = super::story(calls, &[]);
    for Hold { giving, ended, settled_us, .. } in holds {
        let settled = settled_us.map_or(String::new(), |(asked, _)| format!(" at {:.1}", ms(asked)));
        told.push_str(&format!(
            "; {:.1} delivery {:x} attempt {} read by worker {} at {:.1}, until {:.1}: {ended:?}{settled}",
            ms(giving.given_us),
            giving.delivery,
            giving.attempt,
            giving.worker,
            ms(giving.at_us),
            ms(giving.until_us),
        ));
    }
    told
}

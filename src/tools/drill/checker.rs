//! The checker: from what callers and receivers saw to what was promised and not kept.
//!
//! Timer by timer, the calls in their order give the due times and answers that count; the arrivals are held
//! against them. Calls and arrivals are sorted once and passed once; the server is asked nothing. What cannot be
//! decided from outside (a call that never got an answer) is decided in the server's favour, so that whatever is
//! reported is real.
//!
//! | finding | what was seen |
//! |---|---|
//! | lost | acknowledged, and neither accepted by its receiver nor ended by a true answer or by its terms |
//! | early | began before its due time by the store's clock |
//! | stray | of a generation or due time that nobody asked for |
//! | untrue cancel | `cancelled`, and yet something was sent; `stopped`, and something was accepted or came after; `in_flight`, and two attempts came after; `already_fired`, and nothing was; 404 |
//! | untrue change | acknowledged, and an older due time fired |
//! | unexplained duplicate | accepted, and sent again, though no fault kept the node of the accepted attempt from recording it |
//! | unfenced | an attempt came after a later one, and its node had not stood still: it went on although it had lost the shard |
//! | mistaken identity | one firing under two delivery ids, or two under one that are no merged set |
//! | joined | a timer that came with a merged set which had come without it before |
//! | straggler | late by the sweep's grain in healthy times, while its neighbours were not: the wheel had lost it |
//! | late | the same, and its neighbours were late too, while the machine had time: the service is too slow |
//! | too many places | a timer for a queue was given out under more delivery ids than it has places |
//! | given twice | a place was given to a worker while another had it, or after it was settled; or a worker got a timer twice that does not repeat, or two of its places at once |
//! | untrue settlement | it counts, and its lease had ended; or `lease_lost` while the lease lasted |
//! | fetched late | a worker got what was due, or what had come back, too late in healthy times |
//! | unseen attempts | an attempt was counted of which nothing was written to any worker |
//! | polls | nodes asked the store more often than time and items explain |
//! | nominal made twice | a nominal time of a schedule came under two delivery ids or timers, or was recorded twice as skipped |
//! | nominal lost | it neither made an occurrence that was accepted nor was recorded as skipped |
//! | fired and skipped | both |
//! | untrue skip | skipped for a reason that there was not |
//! | not skipped | it came while its schedule was paused, or while the one before had not ended and it was to be skipped then |
//! | unheld | fell due between a backup and its restore, and was sent before the operator accepted it |
//! | nonsense | an answer that the contract does not have |
//!
//! Each of them fails the drill. A fault explains a finding only if it was a fault of what made the finding, at a
//! time that covers it: see [`Fault::keeps_from_recording`], [`Fault::made_stand_still`] and
//! [`Fault::may_lose_pointers`].

mod calls;
mod clock;
mod findings;
mod identity;
mod lateness;
mod places;
mod recurring;
mod restored;

use std::collections::{BTreeMap, HashMap, HashSet};

use calls::{due_before, dues, in_force, story};
use clock::StoreClock;
pub use findings::Findings;
use places::Work;
use restored::Restore;

use super::history::{Affected, Answer, Arrival, Ask, Call, Fault, History, Micros, Terms};

/// How long a fault may still have its effect after its end: connections are made anew.
const RECONNECT_US: Micros = 2_000_000;
/// The same of a broker: its reader connects anew, too, and nodes wait longer before they do.
const BROKER_RECONNECT_US: Micros = 6_000_000;
/// How long a node may take to record the outcome of an attempt once it knows it. A fault that begins later
/// explains no repeat of that attempt.
const RECORD_US: Micros = 2_000_000;
/// In findings, what is no timer's number: from here on they are those of schedules.
const SCHEDULES: u32 = 1 << 31;
/// How many findings of a kind are described in words.
const DESCRIBED: usize = 5;

/// How much time the checker allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long after a fault's end lateness is still its doing.
    pub recovery_us: Micros,
    /// An answer that took longer may have come after its node had stopped waiting.
    pub answer_us: Micros,
}

/// How long a fault may still bear on this attempt after its end.
const fn reconnect_us(arrival: &Arrival) -> Micros {
    if arrival.broker.is_some() { BROKER_RECONNECT_US } else { RECONNECT_US }
}

/// How a timer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Delivered,
    Cancelled,
    Expired,
    Dead,
    Pending,
    Lost,
    /// A call about it was never answered, so that nothing can be said.
    Open,
}

/// The first attempt of a generation, for the lateness.
#[derive(Clone, Copy)]
struct FirstAttempt {
    timer: u32,
    due_ms: i64,
    /// From when on it could be fired at all.
    from_us: Micros,
    at_us: Micros,
    /// When a schedule made it, if one did.
    made_us: Option<Micros>,
}

struct Check<'a> {
    history: &'a History,
    clock: StoreClock,
    limits: Limits,
    found: Findings,
    described: HashMap<&'static str, usize>,
    /// The faults that have explained an attempt after a later one; each does so once.
    spent: HashSet<usize>,
    firsts: Vec<FirstAttempt>,
    late_or_lost: Vec<LateOrLost>,
}

/// A timer that may have expired, if others of its time were late too.
struct LateOrLost {
    timer: u32,
    /// Its due times ([`in_force`]).
    dues: Vec<(Micros, Micros)>,
    grace_us: Micros,
    story: String,
}

/// Judges a history.
pub fn check(history: &History, limits: Limits) -> Findings {
    let mut calls: Vec<&Call> = history.calls.iter().collect();
    calls.sort_by_key(|call| (call.timer, call.asked_us));
    let mut arrivals: Vec<&Arrival> =
        history.arrivals.iter().filter(|arrival| arrival.of.is_none()).collect();
    arrivals.sort_by_key(|arrival| (arrival.timer, arrival.at_us));
    let mut check = Check {
        history,
        clock: StoreClock::of(&history.faults),
        limits,
        found: Findings::default(),
        described: HashMap::new(),
        spent: HashSet::new(),
        firsts: Vec::new(),
        late_or_lost: Vec::new(),
    };
    let restores = Restore::all(history);
    let mut work = Work::of(&history.givings, &history.settlements);
    let mut touched = HashSet::new();
    let mut arrived = arrivals.chunk_by(|a, b| a.timer == b.timer).peekable();
    for calls in calls.chunk_by(|a, b| a.timer == b.timer) {
        let number = calls[0].timer;
        while arrived.next_if(|group| group[0].timer < number).is_some_and(|group| check.unasked(group)) {}
        let arrivals = arrived.next_if(|group| group[0].timer == number).unwrap_or_default();
        let terms = history.terms.get(number as usize).copied().unwrap_or_default();
        let restore = restores.iter().find(|restore| restore.touches(calls, arrivals));
        match (terms.places, restore) {
            (Some(places), _) => check.task(number, calls, places, &mut work),
            (None, Some(restore)) => {
                touched.insert(number);
                check.restored(*restore, calls, arrivals, terms);
            }
            (None, None) => check.timer(number, calls, arrivals, terms),
        }
    }
    while arrived.next().is_some_and(|group| check.unasked(group)) {}
    let is_touched = |arrival: &&Arrival| touched.contains(&arrival.timer);
    let undone: HashSet<u64> =
        arrivals.iter().copied().filter(is_touched).map(|arrival| arrival.delivery).collect();
    arrivals.retain(|arrival| !undone.contains(&arrival.delivery));
    check.identities(&arrivals);
    check.sets(&arrivals);
    check.schedules();
    check.lateness();
    check.queues(work);
    check.found
}

/// The moments that a timer may be due at, by generation, as its calls tell.
type Dues = BTreeMap<i32, Vec<i64>>;

impl Check<'_> {
    /// Keeps a description of the first findings of a kind.
    fn describe(&mut self, kind: &'static str, timer: u32, text: impl FnOnce() -> String) {
        let described = self.described.entry(kind).or_default();
        *described += 1;
        if *described <= DESCRIBED {
            let of = timer.checked_sub(SCHEDULES);
            let of = of.map_or_else(|| format!("timer {timer}"), |schedule| format!("schedule {schedule}"));
            self.found.examples.push(format!("{kind}: {of}: {}", text()));
        }
    }

    fn unasked(&mut self, group: &[&Arrival]) -> bool {
        self.found.stray += group.len() as u64;
        self.describe("stray", group[0].timer, || "was delivered, and never registered".into());
        true
    }

    fn timer(&mut self, number: u32, calls: &[&Call], arrivals: &[&Arrival], terms: Terms) {
        let acked = calls
            .iter()
            .any(|call| matches!((call.ask, call.answer), (Ask::Register { .. }, Answer::Done { .. })));
        self.answers(number, calls);
        let dues = dues(calls);
        let stale = self.arrivals(number, &dues, arrivals);
        self.changes(number, calls, arrivals, terms);
        self.cancels(number, calls, arrivals, &stale, terms);
        self.repeats(number, arrivals, &stale);
        self.firsts(number, calls, arrivals, terms);
        if !acked {
            return;
        }
        self.found.registered += 1;
        match self.end(calls, arrivals, terms) {
            End::Delivered => self.found.delivered += 1,
            End::Cancelled => self.found.cancelled += 1,
            End::Expired => self.found.expired += 1,
            End::Dead => self.found.dead += 1,
            End::Pending => self.found.pending += 1,
            End::Open => self.found.open += 1,
            End::Lost if terms.grace_ms.is_some() => {
                let grace_us = terms.grace_ms.unwrap_or_default() * 1000;
                let (dues, story) = (in_force(calls), story(calls, arrivals));
                self.late_or_lost.push(LateOrLost { timer: number, dues, grace_us, story });
            }
            End::Lost => {
                self.found.lost += 1;
                self.describe("lost", number, || story(calls, arrivals));
            }
        }
    }

    fn answers(&mut self, number: u32, calls: &[&Call]) {
        for call in calls {
            match (call.ask, call.answer) {
                (_, Answer::Unknown) => self.found.unanswered += 1,
                (_, Answer::Nonsense(status)) => {
                    self.found.nonsense += 1;
                    self.describe("nonsense", number, || format!("{:?} was answered {status}", call.ask));
                }
                (Ask::Register { .. }, _) => {}
                (Ask::Cancel | Ask::Move { .. }, _) => {
                    self.found.answered += 1;
                    let due_ms = due_before(calls, call.asked_us);
                    let near = due_ms.is_some_and(|due| (call.asked_us - due * 1000).abs() <= 50_000);
                    self.found.raced += u64::from(near);
                }
            }
        }
    }

    /// Early and stray arrivals; returns which came after a later attempt.
    fn arrivals(&mut self, number: u32, dues: &Dues, arrivals: &[&Arrival]) -> Vec<bool> {
        let mut latest: HashMap<i32, i32> = HashMap::new();
        let mut stale = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            let possible = dues.get(&arrival.generation).is_some_and(|dues| dues.contains(&arrival.due_ms));
            if !possible {
                self.found.stray += 1;
                self.describe("stray", number, || {
                    format!(
                        "generation {} due {}; asked for were {dues:?}",
                        arrival.generation, arrival.due_ms
                    )
                });
            }
            self.early(number, arrival);
            let latest = latest.entry(arrival.generation).or_default();
            let is_stale = arrival.attempt < *latest;
            stale.push(is_stale);
            if is_stale && (self.was_held_at_broker(arrival) || self.is_explained_by_standstill(arrival)) {
                self.found.unfenced_explained += 1;
            } else if is_stale {
                self.found.unfenced += 1;
                let latest = *latest;
                self.describe("unfenced", number, || {
                    format!(
                        "attempt {} of node {:?} came after attempt {latest}",
                        arrival.attempt, arrival.node
                    )
                });
            }
            *latest = arrival.attempt.max(*latest);
        }
        stale
    }

    fn early(&mut self, number: u32, arrival: &Arrival) {
        let clock_us = self.clock.of_claim(arrival.at_us);
        let due_ms = arrival.due_ms.max(arrival.moment_ms);
        if clock_us < due_ms * 1000 {
            self.found.early += 1;
            self.describe("early", number, || format!("{} us before {due_ms}", due_ms * 1000 - clock_us));
        }
    }

    /// Whether its node had just stood still, with its first byte not yet sent after its last look at the lease.
    /// That window is short, so each standstill explains one attempt.
    fn is_explained_by_standstill(&mut self, arrival: &Arrival) -> bool {
        let mut faults = self.history.faults.iter().enumerate();
        let standstill = faults.find(|(index, fault)| {
            fault.made_stand_still(arrival)
                && fault.overlaps(arrival.at_us - RECONNECT_US, arrival.at_us)
                && !self.spent.contains(index)
        });
        standstill.is_some_and(|(index, _)| self.spent.insert(index))
    }

    /// Whether a broker that stood still or was away took it, or told of it, later than it was sent.
    fn was_held_at_broker(&self, arrival: &Arrival) -> bool {
        let from_us = arrival.at_us - reconnect_us(arrival);
        arrival.broker.is_some_and(|broker| {
            let is_its = |fault: &Fault| fault.affected == Affected::Broker(broker);
            self.history.faults.iter().any(|fault| is_its(fault) && fault.overlaps(from_us, arrival.at_us))
        })
    }

    fn changes(&mut self, number: u32, calls: &[&Call], arrivals: &[&Arrival], terms: Terms) {
        for call in calls.iter().filter(|call| matches!(call.ask, Ask::Move { .. })) {
            let refused = match call.answer {
                Answer::NotFound => Some("not found, though its registration was acknowledged"),
                Answer::AlreadyCancelled => Some("already_cancelled, and nobody had cancelled it"),
                Answer::AlreadyFired if terms == Terms::default() => {
                    let fired = arrivals.iter().any(|a| a.accepted() && a.at_us <= call.answered_us);
                    (!fired).then_some("already_fired, and nothing had been accepted")
                }
                _ => None,
            };
            if let Some(untrue) = refused {
                self.found.untrue_changes += 1;
                self.describe("untrue change", number, || format!("{untrue}; {}", story(calls, arrivals)));
            }
            let Answer::Done { generation } = call.answer else { continue };
            let mut older = arrivals.iter().filter(|arrival| arrival.generation < generation);
            if let Some(wrong) = older.find(|old| old.at_us > call.answered_us || old.accepted()) {
                self.found.untrue_changes += 1;
                let after = wrong.at_us - call.answered_us;
                self.describe("untrue change", number, || {
                    format!(
                        "moved to generation {generation}, and generation {} came {after} us after the answer",
                        wrong.generation
                    )
                });
            }
        }
    }

    fn cancels(&mut self, number: u32, calls: &[&Call], arrivals: &[&Arrival], stale: &[bool], terms: Terms) {
        for call in calls.iter().filter(|call| call.ask == Ask::Cancel) {
            let since = call.answered_us;
            let after = || arrivals.iter().filter(|arrival| arrival.at_us > since);
            let untrue = match call.answer {
                Answer::Cancelled => (!arrivals.is_empty()).then_some("cancelled, and yet it was sent"),
                Answer::Stopped if arrivals.iter().any(|a| a.accepted() && a.at_us <= since) => {
                    Some("stopped, and yet an attempt had been accepted")
                }
                Answer::Stopped => after().next().map(|_| "stopped, and sent once more"),
                Answer::InFlight => {
                    let fresh = arrivals.iter().zip(stale).filter(|(a, stale)| a.at_us > since && !**stale);
                    let fresh = fresh.filter(|(a, _)| !self.was_held_at_broker(a));
                    (fresh.count() > 1).then_some("in_flight, and more than the attempt under way came")
                }
                Answer::AlreadyFired if terms == Terms::default() => {
                    let fired = arrivals.iter().any(|a| a.accepted() && a.at_us <= since);
                    (!fired).then_some("already_fired, and nothing had been accepted")
                }
                Answer::NotFound => {
                    let known =
                        |c: &&&Call| c.asked_us < call.asked_us && matches!(c.answer, Answer::Done { .. });
                    calls.iter().find(known).map(|_| "not found, though its registration was acknowledged")
                }
                _ => None,
            };
            if let Some(untrue) = untrue {
                self.found.untrue_cancels += 1;
                self.describe("untrue cancel", number, || format!("{untrue}; {}", story(calls, arrivals)));
            }
        }
    }

    /// Arrivals after one that was accepted.
    fn repeats(&mut self, number: u32, arrivals: &[&Arrival], stale: &[bool]) {
        for (index, (again, stale)) in arrivals.iter().zip(stale).enumerate() {
            let before = &arrivals[..index];
            let mut accepted =
                before.iter().filter(|a| a.generation == again.generation && self.surely(a)).peekable();
            // An attempt that came after a later one is counted as that already.
            if accepted.peek().is_none() || *stale {
                continue;
            }
            let is_numbered_alike =
                before.iter().any(|a| (a.generation, a.attempt) == (again.generation, again.attempt));
            let is_explained = |a: &&Arrival| {
                let (from, until) = (a.at_us - reconnect_us(a), a.at_us + a.took_us + RECORD_US);
                self.history.faults.iter().any(|fault| {
                    fault.keeps_from_recording(a) && fault.overlaps(from, until.min(again.at_us))
                })
            };
            if !is_numbered_alike && accepted.all(is_explained) {
                self.found.duplicates_explained += 1;
            } else {
                self.found.duplicates_unexplained += 1;
                self.describe("unexplained duplicate", number, || {
                    format!("attempt {} of node {:?}; {}", again.attempt, again.node, story(&[], arrivals))
                });
            }
        }
    }

    /// Whether it was accepted, and in time for its node to know.
    fn surely(&self, arrival: &Arrival) -> bool {
        arrival.accepted() && arrival.took_us <= self.limits.answer_us
    }

    fn firsts(&mut self, number: u32, calls: &[&Call], arrivals: &[&Arrival], terms: Terms) {
        if terms.difficult {
            return;
        }
        let mut seen = Vec::new();
        for arrival in arrivals {
            if seen.contains(&arrival.generation) {
                continue;
            }
            seen.push(arrival.generation);
            // A node is not late with what it was not told of yet. A first attempt that was never sent (its node
            // died with the claim) is part of the lateness of the second.
            let promised = calls.iter().filter(|call| call.asked_us < arrival.at_us).filter(|call| {
                matches!(call.ask, Ask::Move { .. } | Ask::Register { .. })
                    && matches!(call.answer, Answer::Done { generation } if generation <= arrival.generation)
            });
            let promised_us = promised.map(|call| call.answered_us).max().unwrap_or(arrival.at_us);
            let from_us = self.clock.due_since(arrival.due_ms * 1000, promised_us, arrival.at_us);
            self.firsts.push(FirstAttempt {
                timer: number,
                due_ms: arrival.due_ms,
                from_us,
                at_us: arrival.at_us,
                made_us: None,
            });
        }
    }

    fn end(&self, calls: &[&Call], arrivals: &[&Arrival], terms: Terms) -> End {
        if arrivals.iter().any(|arrival| arrival.accepted()) {
            return End::Delivered;
        }
        let ended = |call: &&Call| {
            matches!(
                call.answer,
                Answer::Cancelled | Answer::Stopped | Answer::AlreadyCancelled | Answer::InFlight
            )
        };
        if calls.iter().filter(|call| call.ask == Ask::Cancel).any(ended) {
            return End::Cancelled;
        }
        let in_force = in_force(calls);
        if in_force.iter().any(|(due_us, _)| *due_us > self.history.ended_us) {
            return End::Pending;
        }
        let failed = arrivals.iter().filter(|arrival| arrival.replied.is_some()).count();
        let gone = arrivals.iter().any(|arrival| arrival.replied == Some(410));
        if let Some(attempts) = terms.attempts {
            // A claim whose node died counts as an attempt that no receiver saw.
            let due_us = in_force.iter().map(|(due_us, _)| *due_us).min().unwrap_or_default();
            let loses_claims = |f: &&Fault| {
                let loses = matches!(f.affected, Affected::Nodes(_) | Affected::Paused(_) | Affected::Cold);
                loses && f.overlaps(due_us, self.history.ended_us)
            };
            let unseen = self.history.faults.iter().filter(loses_claims).count();
            if gone || failed + unseen >= usize::try_from(attempts).unwrap_or(usize::MAX) {
                return End::Dead;
            }
        }
        if let Some(grace_ms) = terms.grace_ms {
            let held_up = |(due_us, answered_us): &(Micros, Micros)| {
                let from = due_us - self.limits.recovery_us;
                let until = due_us + grace_ms * 1000 + RECONNECT_US;
                // Registered or moved when it was too late already, or nearly.
                *answered_us > due_us + grace_ms * 500
                    || self.history.faults.iter().any(|fault| fault.overlaps(from, until))
            };
            if in_force.iter().any(held_up) {
                return End::Expired;
            }
        }
        if calls.iter().any(|call| call.ask == Ask::Cancel && call.answer == Answer::Unknown) {
            return End::Open;
        }
        End::Lost
    }
}

#[cfg(test)]
mod tests;

//! What callers and receivers saw of a drill: the only evidence of the checker.
//!
//! Callers, receivers and faults live in one process and read one clock, so their moments can be compared. Nothing
//! here comes from the server's own account of itself.

mod recurring;
mod work;

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::tools::brokers::Kind;
pub use recurring::{
    Listed, Occurrence, Reason, Rhythm, ScheduleAsk, ScheduleCall, ScheduleTerms, ToldSkip, occurrence_id,
    schedule_id, schedule_of,
};
pub use work::{Giving, Looks, Places, Settled, Settlement, Wish};

/// Microseconds: a moment since the Unix epoch by this machine's wall clock, or a span.
pub type Micros = i64;

/// One call about a timer. Calls about one timer follow each other; none overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The timer's number.
    pub timer: u32,
    /// What was asked.
    pub ask: Ask,
    /// When it was sent.
    pub asked_us: Micros,
    /// When its answer was there, or it was given up.
    pub answered_us: Micros,
    /// The answer.
    pub answer: Answer,
}

/// What a caller asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// To register the timer.
    Register {
        /// Its due time, in milliseconds since the Unix epoch.
        due_ms: i64,
    },
    /// To cancel it.
    Cancel,
    /// To move it.
    Move {
        /// Its new due time.
        due_ms: i64,
    },
}

/// What a caller was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// 200 or 201 to a registration, 200 to a change: done, and this is its generation now.
    Done {
        /// The generation in the answer.
        generation: i32,
    },
    /// Nothing was or ever will be sent.
    Cancelled,
    /// What was sent has surely failed, and nothing more will be.
    Stopped,
    /// The same of a timer for a queue, of which so many places were acked before.
    StoppedAfter {
        /// How many.
        acked: u32,
    },
    /// Under way, or unknown.
    InFlight,
    /// Too late.
    AlreadyFired,
    /// Cancelled before.
    AlreadyCancelled,
    /// 404.
    NotFound,
    /// No answer, or one that promises nothing (429, 5xx): it may have happened, or may not.
    Unknown,
    /// Any other status, or a body that the contract does not have.
    Nonsense(u16),
}

/// One attempt as a receiver saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The timer's number.
    pub timer: u32,
    /// `ce-generation`.
    pub generation: i32,
    /// `ce-attempt`.
    pub attempt: i32,
    /// The delivery id, hashed.
    pub delivery: u64,
    /// The timer's due time, in milliseconds since the Unix epoch.
    pub due_ms: i64,
    /// `ce-dueat`: the same, or of a merged set its moment.
    pub moment_ms: i64,
    /// It came with others, in a merged set.
    pub merged: bool,
    /// The nominal time that it is for, if a schedule has made the timer.
    pub of: Option<Occurrence>,
    /// Which node sent it, by the address that it came from; `None` for a stranger, and for what came to a broker.
    pub node: Option<u8>,
    /// The broker that it came to; of what came to a receiver `None`.
    pub broker: Option<Kind>,
    /// When it came; from a broker, when it was read there.
    pub at_us: Micros,
    /// The status that it was answered with; `None` if it never was.
    pub replied: Option<u16>,
    /// How long that took.
    pub took_us: Micros,
}

impl Arrival {
    /// Whether the receiver took it.
    pub fn accepted(&self) -> bool {
        self.replied.is_some_and(|status| (200..300).contains(&status))
    }

    /// Whether it came from a node of the drill, or to a broker of it.
    pub const fn is_known(&self) -> bool {
        self.node.is_some() || self.broker.is_some()
    }
}

/// What a fault affected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Affected {
    /// These nodes, which were killed, or their way to the cold store.
    Nodes(Vec<u8>),
    /// These nodes, which stood still and went on.
    #[serde(rename = "nodes")]
    Paused(Vec<u8>),
    /// These nodes, which were asked to stop and had time to finish.
    Orderly(Vec<u8>),
    /// The cold store itself, and so all nodes.
    Cold,
    /// Everything: the machine stood still by itself.
    Machine,
    /// The wheels only: this explains nothing but lateness.
    Hot,
    /// The receivers only.
    Receivers,
    /// These nodes, whose way to the cold store is slow: this explains nothing.
    Slow(Vec<u8>),
    /// The broker of this kind only.
    Broker(Kind),
    /// The callers only: this explains nothing.
    Callers,
    /// Some rows of the cold store, beside which all others go on: this explains nothing.
    Rows,
    /// What ends timers in the cold store, which waits: this explains nothing but lateness.
    Ends,
    /// The cold store's clock, which jumped so far: what is under way may be lost to its node, and repeated.
    Clock(Micros),
    /// The cold store, which was restored from a backup: what was done since may be undone, and is repeated once an
    /// operator has accepted it.
    Restored(Restored),
}

/// The moments of a restore. The fault begins with its backup and ends when what was held is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The backup was made: it may have more than was there when the fault began, and nothing from after this.
    pub backed_up_us: Micros,
    /// The nodes were ended.
    pub ended_us: Micros,
    /// Every node said that the store was restored.
    pub found_us: Micros,
    /// The operator began to accept.
    pub accepting_us: Micros,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its name.
    pub kind: &'static str,
    /// What it affected.
    #[serde(rename = "struck")]
    pub affected: Affected,
    /// When it was injected.
    pub from_us: Micros,
    /// When it was healed: what was stopped runs again.
    pub until_us: Micros,
    /// What shows that it really landed, in words; `None` if nothing does.
    pub landed: Option<String>,
}

impl Fault {
    /// Whether any of it lay between two moments, these included.
    pub fn overlaps(&self, from_us: Micros, until_us: Micros) -> bool {
        self.from_us <= until_us && from_us <= self.until_us
    }

    /// Whether it keeps the node of an attempt from learning or recording how it came out. No fault explains what a
    /// stranger sent.
    pub fn keeps_from_recording(&self, of: &Arrival) -> bool {
        match &self.affected {
            Affected::Nodes(nodes) | Affected::Paused(nodes) => {
                of.node.is_some_and(|node| nodes.contains(&node))
            }
            Affected::Cold | Affected::Machine | Affected::Clock(_) | Affected::Restored(_) => of.is_known(),
            Affected::Broker(kind) => of.broker == Some(*kind),
            Affected::Orderly(_)
            | Affected::Hot
            | Affected::Receivers
            | Affected::Slow(_)
            | Affected::Callers
            | Affected::Rows
            | Affected::Ends => false,
        }
    }

    /// Whether it excuses lateness. A fault of receivers or of the way to a store does not: the timers of others are
    /// to come in time.
    pub fn may_delay(&self) -> bool {
        !matches!(
            self.affected,
            Affected::Receivers
                | Affected::Broker(_)
                | Affected::Callers
                | Affected::Slow(_)
                | Affected::Rows
        )
    }

    /// Whether it made the node of an attempt stand still, so that the node may go on with what it had begun.
    pub fn made_stand_still(&self, of: &Arrival) -> bool {
        match &self.affected {
            Affected::Paused(nodes) => of.node.is_some_and(|node| nodes.contains(&node)),
            Affected::Machine => of.is_known(),
            _ => false,
        }
    }

    /// Whether a timer that is being written may be committed and not get into a wheel.
    pub fn may_lose_pointers(&self) -> bool {
        match &self.affected {
            Affected::Nodes(_)
            | Affected::Paused(_)
            | Affected::Cold
            | Affected::Machine
            | Affected::Restored(_) => true,
            Affected::Orderly(_)
            | Affected::Hot
            | Affected::Receivers
            | Affected::Broker(_)
            | Affected::Slow(_)
            | Affected::Callers
            | Affected::Rows
            | Affected::Ends
            | Affected::Clock(_) => false,
        }
    }
}

/// What the plan says of a timer that bears on what may become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// It ends as `expired` when it is found later than this after its due time.
    pub grace_ms: Option<i64>,
    /// How many attempts it has; `None`: more than a drill lasts.
    pub attempts: Option<i32>,
    /// Its receiver does not always accept at once.
    pub difficult: bool,
    /// It is for a queue.
    pub places: Option<Places>,
}

/// Everything that was seen.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The terms of each timer, by its number.
    pub terms: Vec<Terms>,
    /// All calls.
    pub calls: Vec<Call>,
    /// All arrivals.
    pub arrivals: Vec<Arrival>,
    /// What workers were given.
    pub givings: Vec<Giving>,
    /// What workers did with it.
    pub settlements: Vec<Settlement>,
    /// What it cost the store.
    pub looks: Vec<Looks>,
    /// What workers were answered that the contract does not have.
    pub strange: Vec<String>,
    /// The terms of each schedule, by its number.
    pub schedules: Vec<ScheduleTerms>,
    /// All calls about schedules.
    pub schedule_calls: Vec<ScheduleCall>,
    /// What was told of nominal times that were skipped.
    pub skips: Vec<ToldSkip>,
    /// The occurrences of all schedules, when everything was over.
    pub listed: Vec<Listed>,
    /// All faults, in order.
    pub faults: Vec<Fault>,
    /// When this machine held everything up, by a measure that no timer and no call is part of. In the order of their
    /// beginnings.
    pub held_up: Vec<(Micros, Micros)>,
    /// When programs of others had half of the processors. In the order of their beginnings.
    pub crowded: Vec<(Micros, Micros)>,
    /// When watching ended.
    pub ended_us: Micros,
}

/// Where callers and receivers write down what they see.
#[derive(Debug, Default)]
pub struct Recorder {
    calls: Mutex<Vec<Call>>,
    arrivals: Mutex<Vec<Arrival>>,
    givings: Mutex<Vec<Giving>>,
    settlements: Mutex<Vec<Settlement>>,
    looks: Mutex<Vec<Looks>>,
    strange: Mutex<Vec<String>>,
    schedule_calls: Mutex<Vec<ScheduleCall>>,
    skips: Mutex<Vec<ToldSkip>>,
    listed: Mutex<Vec<Listed>>,
    refused: AtomicU64,
}

impl Recorder {
    /// Notes a call.
    pub fn call(&self, call: Call) {
        lock(&self.calls).push(call);
    }

    /// Notes what came with one attempt, one timer or a set; the answer follows by the numbers that are returned.
    pub fn arrived(&self, arrived: Vec<Arrival>) -> Range<usize> {
        let mut arrivals = lock(&self.arrivals);
        let first = arrivals.len();
        arrivals.extend(arrived);
        first..arrivals.len()
    }

    /// Notes the status with which an attempt is answered, before it is, and how long that took.
    pub fn replied(&self, numbers: Range<usize>, status: u16, took_us: Micros) {
        for arrival in lock(&self.arrivals).get_mut(numbers).into_iter().flatten() {
            (arrival.replied, arrival.took_us) = (Some(status), took_us);
        }
    }

    /// Notes what a worker was given.
    pub fn gave(&self, giving: Giving) {
        lock(&self.givings).push(giving);
    }

    /// Notes a settlement.
    pub fn settled(&self, settlement: Settlement) {
        lock(&self.settlements).push(settlement);
    }

    /// Notes how often nodes asked the store.
    pub fn looked(&self, looks: Looks) {
        lock(&self.looks).push(looks);
    }

    /// How often nodes asked the store.
    pub fn looks(&self) -> Vec<Looks> {
        lock(&self.looks).clone()
    }

    /// Notes a call about a schedule.
    pub fn schedule_call(&self, call: ScheduleCall) {
        lock(&self.schedule_calls).push(call);
    }

    /// Notes that nominal times were skipped.
    pub fn skipped(&self, told: ToldSkip) {
        lock(&self.skips).push(told);
    }

    /// Notes the occurrences of schedules, in place of those that were noted before.
    pub fn listed(&self, all: Vec<Listed>) {
        *lock(&self.listed) = all;
    }

    /// Notes an answer to a worker that the contract does not have.
    pub fn strange(&self, what: String) {
        lock(&self.strange).push(what);
    }

    /// How many items workers have got since a moment.
    pub fn given_since(&self, since_us: Micros) -> u64 {
        lock(&self.givings).iter().filter(|giving| giving.at_us >= since_us).count() as u64
    }

    /// Notes that a call was refused as the contract says: 503 with `Retry-After`.
    pub fn refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls were.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The latest due time that a caller was promised so far; zero before the first.
    pub fn last_due_us(&self) -> Micros {
        let due = |call: &Call| match (call.ask, call.answer) {
            (Ask::Register { due_ms } | Ask::Move { due_ms }, Answer::Done { .. }) => Some(due_ms * 1000),
            _ => None,
        };
        lock(&self.calls).iter().filter_map(due).max().unwrap_or_default()
    }

    /// How many attempts came from a node since a moment.
    pub fn arrived_from(&self, node: u8, since_us: Micros) -> usize {
        let arrivals = lock(&self.arrivals);
        arrivals.iter().rev().take_while(|a| a.at_us >= since_us).filter(|a| a.node == Some(node)).count()
    }

    /// How many attempts came to a broker between two moments.
    pub fn arrived_at(&self, broker: Kind, from_us: Micros, until_us: Micros) -> usize {
        let arrivals = lock(&self.arrivals);
        let its = |a: &&Arrival| a.broker == Some(broker) && (from_us..=until_us).contains(&a.at_us);
        arrivals.iter().filter(its).count()
    }

    /// When the first and the last attempt for timers of these numbers came, and for how many timers.
    pub fn arrived_for(&self, timers: Range<u32>) -> Option<(Micros, Micros, usize)> {
        let arrivals = lock(&self.arrivals);
        let theirs = || arrivals.iter().filter(|arrival| timers.contains(&arrival.timer));
        let (first, last) = (theirs().map(|a| a.at_us).min()?, theirs().map(|a| a.at_us).max()?);
        Some((first, last, theirs().map(|arrival| arrival.timer).collect::<HashSet<_>>().len()))
    }

    /// The nominal times that came, and the nodes that they came from.
    pub fn occurrences(&self) -> Vec<(Occurrence, u8)> {
        lock(&self.arrivals).iter().filter_map(|arrival| arrival.of.zip(arrival.node)).collect()
    }

    /// How many attempts were not accepted, or not answered.
    pub fn not_accepted(&self) -> usize {
        lock(&self.arrivals).iter().filter(|arrival| !arrival.accepted()).count()
    }

    /// A copy of what is written down, `terms` and `faults` added.
    pub fn history(&self, terms: Vec<Terms>, faults: Vec<Fault>, ended_us: Micros) -> History {
        let (calls, arrivals) = (lock(&self.calls).clone(), lock(&self.arrivals).clone());
        let (givings, settlements) = (lock(&self.givings).clone(), lock(&self.settlements).clone());
        let (looks, strange) = (lock(&self.looks).clone(), lock(&self.strange).clone());
        let schedule_calls = lock(&self.schedule_calls).clone();
        let (skips, listed) = (lock(&self.skips).clone(), lock(&self.listed).clone());
        let seen = History { calls, arrivals, givings, settlements, looks, strange, ..History::default() };
        History { terms, faults, ended_us, schedule_calls, skips, listed, ..seen }
    }
}

/// The address that node number `node` sends from: receivers tell nodes apart by it.
pub fn source_of(node: u8) -> IpAddr {
    IpAddr::from([127, 0, 77, node + 1])
}

/// The node that sends from an address.
pub fn node_of(source: IpAddr) -> Option<u8> {
    match source {
        IpAddr::V4(v4) if v4.octets()[..3] == [127, 0, 77] => v4.octets()[3].checked_sub(1),
        _ => None,
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

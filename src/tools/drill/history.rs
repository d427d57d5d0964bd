//! What clients and receivers saw of a drill: the only evidence that the checker works from.
//!
//! Callers, receivers and faults live in one process and stamp with one clock, so that their moments can be
//! compared. Nothing here comes from the server's own account of itself.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// A moment: wall time in microseconds since the Unix epoch.
pub type Us = i64;

/// One call of a client about a timer. Calls about one timer follow each other; none overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The timer's number.
    pub timer: u32,
    /// What was asked.
    pub ask: Ask,
    /// When it was sent.
    pub asked_us: Us,
    /// When its answer was there, or it was given up.
    pub answered_us: Us,
    /// The answer.
    pub answer: Answer,
}

/// What a client asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// To be woken at this moment, in milliseconds since the Unix epoch.
    Register {
        /// When.
        due_ms: i64,
    },
    /// Not to be woken after all.
    Cancel,
    /// To be woken at another moment.
    Move {
        /// When.
        due_ms: i64,
    },
}

/// What a client was told.
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
    /// Any other status: the drill asked wrongly, or the server answers nonsense.
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
    /// `ce-dueat`, in milliseconds since the Unix epoch.
    pub due_ms: i64,
    /// Which node sent it, by the address that it came from; `None` for a stranger.
    pub node: Option<u8>,
    /// When it came.
    pub at_us: Us,
    /// The status that it was answered with; `None` if it never was.
    pub replied: Option<u16>,
    /// How long that took.
    pub took_us: Us,
}

impl Arrival {
    /// Whether the receiver took it.
    pub fn accepted(&self) -> bool {
        self.replied.is_some_and(|status| (200..300).contains(&status))
    }
}

/// Whom a fault struck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Struck {
    /// These nodes, or their way to the cold store.
    Nodes(Vec<u8>),
    /// These nodes, which were asked to stop and had time to finish.
    Orderly(Vec<u8>),
    /// All nodes: the cold store itself.
    Cold,
    /// Everything: the machine stood still, and nobody had asked it to.
    Machine,
    /// Nobody but the wheels: no excuse for anything but lateness.
    Hot,
    /// Nobody of ours: the receivers.
    Receivers,
    /// These nodes, whose way to the cold store is slow: no excuse for anything.
    Slow(Vec<u8>),
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its name.
    pub kind: &'static str,
    /// Whom it struck.
    pub struck: Struck,
    /// When it was injected.
    pub from_us: Us,
    /// When it was healed: what was stopped runs again.
    pub until_us: Us,
    /// What shows that it really landed, in words; `None` if nothing does.
    pub landed: Option<String>,
}

impl Fault {
    /// Whether this fault keeps a node from learning or recording how an attempt came out, at some time
    /// between two moments.
    pub fn excuses(&self, node: Option<u8>, from_us: Us, until_us: Us) -> bool {
        let overlaps = self.from_us <= until_us && from_us <= self.until_us;
        overlaps
            && match &self.struck {
                Struck::Nodes(nodes) => node.is_none_or(|node| nodes.contains(&node)),
                Struck::Cold | Struck::Machine => true,
                Struck::Orderly(_) | Struck::Hot | Struck::Receivers | Struck::Slow(_) => false,
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
}

/// Everything that was seen.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// What was agreed on each timer, by number.
    pub terms: Vec<Terms>,
    /// All calls.
    pub calls: Vec<Call>,
    /// All arrivals.
    pub arrivals: Vec<Arrival>,
    /// All faults, in order.
    pub faults: Vec<Fault>,
    /// When watching ended.
    pub ended_us: Us,
}

/// Where clients and receivers write down what they see.
#[derive(Debug, Default)]
pub struct Book {
    calls: Mutex<Vec<Call>>,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Book {
    /// Notes a call.
    pub fn call(&self, call: Call) {
        lock(&self.calls).push(call);
    }

    /// Notes an arrival; the answer follows by the number that is returned.
    pub fn arrival(&self, arrival: Arrival) -> usize {
        let mut arrivals = lock(&self.arrivals);
        arrivals.push(arrival);
        arrivals.len() - 1
    }

    /// Notes the status with which an arrival is answered, before it is, and how long that took.
    pub fn replied(&self, number: usize, status: u16, took_us: Us) {
        if let Some(arrival) = lock(&self.arrivals).get_mut(number) {
            (arrival.replied, arrival.took_us) = (Some(status), took_us);
        }
    }

    /// How many calls and arrivals there are so far.
    pub fn counts(&self) -> (usize, usize) {
        (lock(&self.calls).len(), lock(&self.arrivals).len())
    }

    /// What came from a node since a moment.
    pub fn arrived_from(&self, node: u8, since_us: Us) -> usize {
        let arrivals = lock(&self.arrivals);
        arrivals.iter().rev().take_while(|a| a.at_us >= since_us).filter(|a| a.node == Some(node)).count()
    }

    /// How many attempts were not accepted, or not answered.
    pub fn not_accepted(&self) -> usize {
        lock(&self.arrivals).iter().filter(|arrival| !arrival.accepted()).count()
    }

    /// A copy of what is written down, `terms` and `faults` added.
    pub fn history(&self, terms: Vec<Terms>, faults: Vec<Fault>, ended_us: Us) -> History {
        let (calls, arrivals) = (lock(&self.calls).clone(), lock(&self.arrivals).clone());
        History { terms, calls, arrivals, faults, ended_us }
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

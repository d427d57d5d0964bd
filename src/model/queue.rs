//! Queues: workers fetch what is due themselves, and settle it.
//!
//! A timer for a queue is given out as *places*: `times` of them, each to one worker at a time, under a delivery id of its
//! own. [`Places`] is all that a lease, a settlement or the end of a lease does to them; it knows neither SQL nor a clock.
//! Whoever changes a timer for a queue has locked its row, so its places change one after the other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::id::{Generation, TimerId, Uid, delivery_id, digest16};
use super::namespace::Namespace;
use super::policy::Retry;
use super::time::{LAST, Span, UnixMs};
use super::timer::{Life, State};

/// The most places of one timer.
pub const MAX_TIMES: u32 = 1000;

/// The most items of one lease call.
pub const MAX_ITEMS: usize = 1000;

/// The most groups of one lease call.
pub const MAX_GROUPS: usize = 32;

/// The largest result of a settlement, in bytes of JSON.
pub const MAX_RESULT: usize = 4096;

/// The lane of a queue.
pub fn lane(namespace: Namespace, name: &str) -> i64 {
    number(&digest16(&[b"queue", namespace.qualified(name).as_bytes()]))
}

/// What a worker is known by in a queue, among its places.
pub fn holder(namespace: Namespace, queue: &str, worker: &str) -> i64 {
    number(&digest16(&[b"worker", namespace.qualified(queue).as_bytes(), worker.as_bytes()]))
}

fn number(digest: &[u8; 16]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Whom a timer of a queue is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum To {
    /// Any worker.
    #[default]
    Any,
    /// The worker of this name.
    Worker(String),
    /// Workers who say that they are in this group.
    Group(String),
}

/// The text does not say whom a timer is for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`any`, `worker:NAME` or `group:NAME`; a name is 1 to 128 of A-Z a-z 0-9 . _ : -")]
pub struct BadTo;

impl TryFrom<String> for To {
    type Error = BadTo;

    fn try_from(text: String) -> Result<Self, BadTo> {
        let name = |name: &str| TimerId::parse(name).map(|name| name.as_str().to_owned()).map_err(|_| BadTo);
        match text.split_once(':') {
            None if text == "any" => Ok(Self::Any),
            Some(("worker", rest)) => name(rest).map(Self::Worker),
            Some(("group", rest)) => name(rest).map(Self::Group),
            _ => Err(BadTo),
        }
    }
}

impl From<To> for String {
    fn from(to: To) -> Self {
        to.to_string()
    }
}

impl std::fmt::Display for To {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Worker(name) => write!(f, "worker:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
        }
    }
}

impl To {
    /// Queue and audience as one number, by which what is ready is found.
    pub fn audience(&self, namespace: Namespace, queue: &str) -> i64 {
        let queue = namespace.qualified(queue);
        number(&digest16(&[b"audience", queue.as_bytes(), self.to_string().as_bytes()]))
    }
}

/// How a timer is given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// To whom.
    #[serde(default)]
    pub to: To,
    /// How often in all.
    #[serde(default = "once")]
    pub times: u32,
    /// Whether a worker may have it again after it has settled a place.
    #[serde(default)]
    pub repeat: bool,
}

const fn once() -> u32 {
    1
}

impl Default for Dispatch {
    fn default() -> Self {
        Self { to: To::Any, times: 1, repeat: false }
    }
}

/// What a timer for a queue has beside the life of any timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seats {
    /// How it is given out.
    pub dispatch: Dispatch,
    /// Places that nobody has had yet.
    pub fresh: u32,
    /// Places that were acked.
    pub acked: u32,
    /// From when on a place may be given out; `None` if none may.
    pub ready_at: Option<UnixMs>,
}

impl Seats {
    /// Those of a new timer that is due then.
    pub fn new(dispatch: Dispatch, due_at: UnixMs) -> Self {
        Self { fresh: dispatch.times, acked: 0, ready_at: Some(due_at), dispatch }
    }
}

/// The settings of a queue, as they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How long a lease lasts that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// How places are given out again, for timers without a `retry` of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// How long a lease lasts where neither the call nor the queue says.
pub const DEFAULT_LEASE: Span = Span::from_duration(Duration::from_secs(30));

/// The shortest lease.
pub const MIN_LEASE: Span = Span::from_duration(Duration::from_secs(1));

/// The longest lease.
pub const MAX_LEASE: Span = Span::from_duration(Duration::from_secs(12 * 3600));

/// The longest wait of a lease call.
pub const MAX_WAIT: Span = Span::from_duration(Duration::from_secs(60));

/// What has become of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// A worker has it.
    Out,
    /// Its worker gave it back.
    Returned,
    /// Its lease ended.
    Lost,
    /// Acked.
    Acked,
    /// Given up.
    Dead,
}

impl Held {
    /// Every state, in the order of the codes.
    pub const ALL: [Self; 5] = [Self::Out, Self::Returned, Self::Lost, Self::Acked, Self::Dead];

    /// Its number in SQL.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    const fn is_settled(self) -> bool {
        matches!(self, Self::Acked | Self::Dead)
    }
}

/// A place that was given out at least once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its number within the timer, from 0.
    pub number: i32,
    /// The generation in which it was first given out: a part of its delivery id.
    pub generation: Generation,
    /// How often it was given out.
    pub attempt: i32,
    /// Which giving-out of the whole timer the last one was, from 1: the number of its record.
    pub giving: i32,
    /// Who has it, or had it last.
    pub worker: String,
    /// What has become of it.
    pub held: Held,
    /// When its lease ends; of one that was given back, from when on it may be given out; of one that is settled, when.
    pub until: UnixMs,
    /// When it was given out last.
    pub given_at: UnixMs,
}

impl Place {
    /// The id of its delivery: the same whenever it is given out.
    pub fn delivery_id(&self, uid: Uid, created_at: UnixMs) -> String {
        place_delivery_id(uid, created_at, self.generation, self.number)
    }
}

/// The delivery id of a place; the first one has that of the timer.
pub fn place_delivery_id(uid: Uid, created_at: UnixMs, generation: Generation, number: i32) -> String {
    match number {
        0 => delivery_id(uid, created_at.get(), generation),
        _ => {
            let parts: [&[u8]; 5] = [
                b"place",
                uid.0.as_bytes(),
                &created_at.get().to_be_bytes(),
                &generation.0.to_be_bytes(),
                &number.to_be_bytes(),
            ];
            format!("dlv_{}", uuid::Uuid::from_bytes(digest16(&parts)).simple())
        }
    }
}

/// What a worker does with a place that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is done.
    Ack,
    /// Not now: again after so many milliseconds, or after the wait that `retry` gives.
    Retry(Option<i64>),
    /// Never again.
    Dead,
    /// It keeps it for so many milliseconds from now.
    Extend(i64),
}

impl Action {
    /// The word of the contract.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Retry(_) => "retry",
            Self::Dead => "dead",
            Self::Extend(_) => "extend",
        }
    }
}

/// What decides whether a place is given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// How often a place may be given out.
    pub max_attempts: u32,
    /// The wait, in milliseconds, after a worker gave it back without saying when.
    pub wait_ms: i64,
}

/// A timer for a queue with its places, under the lock of its row.
#[derive(Debug)]
pub struct Places<'a> {
    /// Its life.
    pub life: &'a mut Life,
    /// Its counts.
    pub seats: &'a mut Seats,
    /// What was given out.
    pub places: &'a mut Vec<Place>,
    /// From when on nobody gets a place any more that nobody has had yet; `None` if that never comes.
    pub expire_at: Option<UnixMs>,
}

fn is_late(seats: &Seats, expire_at: Option<UnixMs>, now: UnixMs) -> bool {
    seats.fresh > 0 && expire_at.is_some_and(|at| at < now)
}

/// The place that this worker may have now: one that came back, by its position, or a new one. `None`: there is none.
pub fn free_for(
    life: &Life,
    seats: &Seats,
    places: &[Place],
    expire_at: Option<UnixMs>,
    worker: &str,
    now: UnixMs,
) -> Option<Option<usize>> {
    let may_fire = matches!(life.state, State::Scheduled | State::Delivering | State::Retrying);
    if !may_fire || life.cancel_requested {
        return None;
    }
    let bars = |place: &Place| place.held == Held::Out || (place.held.is_settled() && !seats.dispatch.repeat);
    if places.iter().any(|place| place.worker == worker && bars(place)) {
        return None;
    }
    let came_back = |(_, place): &(usize, &Place)| {
        matches!(place.held, Held::Returned | Held::Lost) && place.until <= now
    };
    // One that it had itself comes first: it may have begun.
    let again = places.iter().enumerate().filter(came_back);
    match again.min_by_key(|(_, place)| (place.worker != worker, place.until)) {
        Some((index, _)) => Some(Some(index)),
        None if seats.fresh > 0 && life.due_at <= now && !is_late(seats, expire_at, now) => Some(None),
        None => None,
    }
}

impl Places<'_> {
    /// Whether places that nobody has had yet are too late now.
    pub fn is_late(&self, now: UnixMs) -> bool {
        is_late(self.seats, self.expire_at, now)
    }

    /// Gives a place out, until then. `None` if there is none for this worker.
    pub fn give(&mut self, worker: &str, until: UnixMs, now: UnixMs) -> Option<Place> {
        let free = free_for(self.life, self.seats, self.places, self.expire_at, worker, now)?;
        self.life.attempt += 1;
        self.life.tries += 1;
        let giving = self.life.attempt;
        let index = free.unwrap_or_else(|| {
            self.seats.fresh -= 1;
            let number = self.places.iter().map(|place| place.number + 1).max().unwrap_or(0);
            self.places.push(Place {
                number,
                generation: self.life.generation,
                attempt: 0,
                giving,
                worker: String::new(),
                held: Held::Out,
                until,
                given_at: now,
            });
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        place.attempt += 1;
        (place.giving, place.held, place.until, place.given_at) = (giving, Held::Out, until, now);
        worker.clone_into(&mut place.worker);
        let place = place.clone();
        self.settle_state(now);
        Some(place)
    }

    /// The place of a token, if it is current: it is out, and was given out as often as then.
    fn current(&self, token: &LeaseToken) -> Option<usize> {
        let is_it = |place: &Place| {
            (place.number, place.giving, place.generation.0) == (token.place, token.giving, token.generation)
                && place.given_at == token.given_at
                && place.held == Held::Out
        };
        self.places.iter().position(is_it)
    }

    /// A worker settles a place. Returns the place as it was; `None`, and nothing changes, if the token is not current:
    /// its lease has ended, or it was settled before.
    pub fn settle(&mut self, token: &LeaseToken, action: Action, again: Again, now: UnixMs) -> Option<Place> {
        let index = self.current(token)?;
        let place = &mut self.places[index];
        let before = place.clone();
        if before.until <= now {
            return None;
        }
        match action {
            Action::Ack => {
                (place.held, place.until) = (Held::Acked, now);
                self.seats.acked += 1;
            }
            Action::Dead => (place.held, place.until) = (Held::Dead, now),
            Action::Retry(_) if is_spent(place, again) => (place.held, place.until) = (Held::Dead, now),
            Action::Retry(delay) => {
                let wait = delay.unwrap_or(again.wait_ms).max(0);
                (place.held, place.until) = (Held::Returned, now.shifted(wait));
            }
            Action::Extend(lease) => place.until = now.shifted(lease),
        }
        self.settle_state(now);
        Some(before)
    }

    /// Ends the leases that have run out. Returns the places as they were.
    pub fn expire(&mut self, again: Again, now: UnixMs) -> Vec<Place> {
        let mut lost = Vec::new();
        for place in self.places.iter_mut().filter(|place| place.held == Held::Out && place.until <= now) {
            lost.push(place.clone());
            place.held = if is_spent(place, again) { Held::Dead } else { Held::Lost };
            place.until = now;
        }
        if !lost.is_empty() {
            self.settle_state(now);
        }
        lost
    }

    /// Tells its worker of a place once more. Its lease ends a millisecond later: by that it is seen that he knows of it.
    pub fn tell_again(&mut self, worker: &str, now: UnixMs) -> Option<Place> {
        let is_his = |place: &&mut Place| place.worker == worker && place.held == Held::Out;
        let place = self.places.iter_mut().find(is_his)?;
        place.until = place.until.shifted(1);
        let place = place.clone();
        self.settle_state(now);
        Some(place)
    }

    /// Takes back a place whose lease until then nobody got: the answer could not be written. It does not count. One that had been
    /// given out before is as it was then, `before`: lost by this very worker, or given back. Returns whether it was out; if its
    /// worker was told of it again, or has extended it, it stays.
    pub fn take_back(&mut self, token: &LeaseToken, until: UnixMs, before: Held, now: UnixMs) -> bool {
        let Some(index) = self.current(token) else { return false };
        let place = &mut self.places[index];
        if place.until != until {
            return false;
        }
        place.attempt -= 1;
        if place.attempt == 0 {
            self.places.remove(index);
            self.seats.fresh += 1;
        } else {
            (place.held, place.until) = (before, now);
        }
        // The numbers of giving-outs are not used again: a token of this one stays stale.
        self.life.tries -= 1;
        self.settle_state(now);
        true
    }

    /// Nobody may have those places any more that nobody has had yet: they are too late.
    pub fn give_up_fresh(&mut self, now: UnixMs) {
        self.seats.fresh = 0;
        self.settle_state(now);
    }

    /// A caller's change began a new generation, or changed how it is given out: what is settled stays so, everything
    /// else is given out anew.
    pub fn start_anew(&mut self, now: UnixMs) {
        self.places.retain(|place| place.held.is_settled());
        let settled = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.seats.fresh = self.seats.dispatch.times.saturating_sub(settled);
        self.settle_state(now);
    }

    /// State, `wake_at` and `ready_at` follow from the places. A timer that is paused or has ended keeps its state.
    pub fn settle_state(&mut self, now: UnixMs) {
        self.seats.ready_at = None;
        if self.life.state.is_end() || self.life.state == State::Paused {
            return;
        }
        let is = |held: Held| move |place: &&Place| place.held == held;
        let count = |held: Held| self.places.iter().filter(is(held)).count();
        let (out, dead) = (count(Held::Out), count(Held::Dead));
        let waiting = count(Held::Returned) + count(Held::Lost);
        let next_end = self.places.iter().filter(is(Held::Out)).map(|place| place.until).min();
        let free = if self.life.cancel_requested { 0 } else { waiting + self.seats.fresh as usize };
        if out + free == 0 {
            let is_whole = waiting == 0 && self.seats.fresh == 0;
            self.life.state = match (dead, self.seats.acked) {
                (1.., _) if is_whole && !self.life.cancel_requested => State::Dead,
                (0, 1..) if is_whole => State::Delivered,
                _ if self.life.cancel_requested => {
                    // The cancel was answered `in_flight`, so the outcome stays uncertain in the record.
                    self.life.uncertain = true;
                    State::Cancelled
                }
                _ => State::Expired,
            };
            return;
        }
        let back = self.places.iter().filter(|place| matches!(place.held, Held::Returned | Held::Lost));
        let back = back.map(|place| place.until).min();
        let fresh = (self.seats.fresh > 0).then_some(self.life.due_at);
        self.seats.ready_at = back.into_iter().chain(fresh).min().filter(|_| free > 0);
        self.life.state = match (out, waiting) {
            (1.., _) => State::Delivering,
            (0, 1..) => State::Retrying,
            (0, 0) => State::Scheduled,
        };
        // What is ready waits for a worker, and nobody has to look at it: who writes it wakes the workers that wait.
        let free_at = self.places.iter().filter(|place| !place.held.is_settled()).map(|place| place.until);
        let free_at = free_at.chain(fresh).filter(|at| free > 0 && *at > now);
        let late_at = self.expire_at.filter(|_| fresh.is_some() && free > 0).map(|at| at.shifted(1));
        self.life.wake_at = next_end.into_iter().chain(free_at).chain(late_at).min().unwrap_or(LAST);
    }
}

fn is_spent(place: &Place, again: Again) -> bool {
    u32::try_from(place.attempt).unwrap_or(0) >= again.max_attempts
}

/// The token of a lease: it names one giving-out of one place. It holds the moment of that, because a store that was
/// restored may give the same place out as often again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseToken {
    /// The timer.
    pub uid: Uid,
    /// When it was registered: an id that is free again may be registered anew.
    pub created_at: UnixMs,
    /// When the place was given out.
    pub given_at: UnixMs,
    /// The generation of the place.
    pub generation: i32,
    /// The number of the place.
    pub place: i32,
    /// Which giving-out of the timer it was.
    pub giving: i32,
}

/// Its length in bytes.
const TOKEN: usize = 44;

impl LeaseToken {
    /// The token as text.
    pub fn text(&self) -> String {
        use base64::Engine;
        let mut packed = [0; TOKEN];
        packed[..16].copy_from_slice(self.uid.0.as_bytes());
        packed[16..24].copy_from_slice(&self.created_at.get().to_be_bytes());
        packed[24..32].copy_from_slice(&self.given_at.get().to_be_bytes());
        packed[32..36].copy_from_slice(&self.generation.to_be_bytes());
        packed[36..40].copy_from_slice(&self.place.to_be_bytes());
        packed[40..].copy_from_slice(&self.giving.to_be_bytes());
        format!("lse_{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(packed))
    }

    /// Reads a token; `None` if it is none.
    pub fn read(text: &str) -> Option<Self> {
        use base64::Engine;
        let packed = text.strip_prefix("lse_")?;
        let packed = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(packed).ok()?;
        let packed: [u8; TOKEN] = packed.try_into().ok()?;
        let long = |at: usize| packed[at..at + 8].try_into().ok().map(i64::from_be_bytes);
        let short = |at: usize| packed[at..at + 4].try_into().ok().map(i32::from_be_bytes);
        Some(Self {
            uid: Uid(uuid::Uuid::from_slice(&packed[..16]).ok()?),
            created_at: UnixMs::new(long(16)?),
            given_at: UnixMs::new(long(24)?),
            generation: short(32)?,
            place: short(36)?,
            giving: short(40)?,
        })
    }
}

#[cfg(test)]
mod tests;

//! The book of operations on many timers: what was asked for and told, and whether the lives of timers agree.
//!
//! Every change in a timer's life has one cause: a client's call, or an operation that takes the timer and ran at that
//! moment. So a change that nobody asked for shows, a second one by the same operation, one after it was stopped, and a count
//! that does not agree. What cannot be known is left open: whether a call that got no answer had its effect, and whether an
//! attempt was under way when an operation came by.

use std::collections::BTreeMap;

use mainspring::cold::{Applied, NewTimer, OperationRow, Registered, TimerRow};
use mainspring::model::id::Uid;
use mainspring::model::operation::{Action, OperationState};
use mainspring::model::subscription::Lifecycle;
use mainspring::model::timer::{Answer, State};

use super::clients::Ask;
use super::lives::{self, Arrival, Entry};
use super::operators::{Plan, number};

/// A timer may be claimed so many milliseconds ahead of its due time, and more.
const AHEAD_MS: i64 = 1000;

/// An attempt ends so many milliseconds, at most, before that is written: its node may stand still meanwhile.
const LAG_MS: i64 = 12_000;

/// What has come of a client's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Nothing,
    /// The timer is of this generation then.
    Made(i32),
    /// The cancel of this generation is recorded: an attempt was under way.
    Recorded(i32),
    /// It got no answer.
    Unknown,
}

/// A client's call.
#[derive(Debug)]
struct Call {
    ask: Ask,
    asked_at: i64,
    ended_at: i64,
    outcome: Outcome,
}

/// An operation that was asked for.
#[derive(Debug)]
struct Asked {
    plan: Plan,
    at: i64,
    /// Somebody asked for its end.
    may_stop: bool,
    /// As it was told last.
    told: Option<OperationRow>,
}

/// Whom a timer belongs to, which never changes.
#[derive(Debug)]
struct Marks {
    owner: Option<String>,
    labels: Option<String>,
}

/// The life of one timer, and what else is known of it at the end.
pub struct Life<'a> {
    pub entries: Vec<Entry>,
    pub row: &'a TimerRow,
    pub arrivals: Vec<Arrival>,
}

/// What an operation has surely done, and may have done.
#[derive(Debug, Default)]
struct Did {
    /// Which entries of these lives.
    surely: BTreeMap<Uid, Vec<usize>>,
    maybe: i64,
}

/// The book of operations.
#[derive(Default)]
pub struct Operations {
    asked: BTreeMap<i64, Asked>,
    marks: BTreeMap<Uid, Marks>,
    calls: BTreeMap<Uid, Vec<Call>>,
}

/// What has come of a change.
pub fn outcome(applied: &Applied) -> Outcome {
    match applied {
        Applied::Live(row, Answer::Done | Answer::Cancelled | Answer::Stopped) => {
            Outcome::Made(row.life.generation.0)
        }
        Applied::Live(row, Answer::InFlight) if row.life.state == State::Cancelled => {
            Outcome::Made(row.life.generation.0)
        }
        Applied::Live(row, Answer::InFlight) if row.life.cancel_requested => {
            Outcome::Recorded(row.life.generation.0)
        }
        _ => Outcome::Nothing,
    }
}

/// What has come of a registration.
pub fn outcome_of_new(answer: Option<&Registered>) -> Outcome {
    match answer {
        None => Outcome::Unknown,
        Some(Registered::New(row)) => Outcome::Made(row.life.generation.0),
        Some(_) => Outcome::Nothing,
    }
}

impl Call {
    /// Whether it may have made this of a timer that was as `before`; and whether it surely did.
    fn made(&self, before: &Entry, entry: &Entry) -> Option<bool> {
        let is_anew = entry.generation == before.generation + 1;
        let is_turned = entry.generation == before.generation && entry.is_paused != before.is_paused;
        let is_changed = entry.kind == Lifecycle::TimerChanged;
        let is_it = match &self.ask {
            Ask::Register(_) => false,
            Ask::Cancel(_) => entry.kind == Lifecycle::TimerCancelled,
            Ask::Move(_, due_at) => is_changed && is_anew && entry.due_at == due_at.get(),
            Ask::Fire(_) => is_changed && is_anew && entry.due_at == entry.at,
            Ask::Pause(_) => is_changed && is_turned && entry.is_paused,
            Ask::Resume(_) => is_changed && is_turned && !entry.is_paused,
        };
        // What is recorded comes true when the attempt has ended.
        let may_trail =
            matches!((&self.ask, self.outcome), (Ask::Cancel(_), Outcome::Recorded(_) | Outcome::Unknown));
        let is_in_time = self.asked_at <= entry.at && (entry.at <= self.ended_at || may_trail);
        match self.outcome {
            _ if !is_it || !is_in_time => None,
            Outcome::Nothing => None,
            Outcome::Made(generation) | Outcome::Recorded(generation) => {
                (generation == entry.generation).then_some(true)
            }
            Outcome::Unknown => Some(false),
        }
    }
}

impl Plan {
    /// Whether it makes this of a timer that was as `before`.
    fn makes(&self, before: &Entry, entry: &Entry) -> bool {
        let is_anew = entry.generation == before.generation + 1;
        let is_turned = entry.generation == before.generation && entry.is_paused != before.is_paused;
        match (self.action, entry.kind) {
            (Action::Cancel, Lifecycle::TimerCancelled) => true,
            (Action::Shift, Lifecycle::TimerChanged) => {
                let moved = entry.due_at - before.due_at;
                is_anew && moved == self.by_ms && entry.is_paused == before.is_paused
            }
            (Action::Fire, Lifecycle::TimerChanged) => is_anew && entry.due_at == entry.at,
            (Action::Pause, Lifecycle::TimerChanged) => is_turned && entry.is_paused,
            (Action::Resume, Lifecycle::TimerChanged) => is_turned && !entry.is_paused,
            _ => false,
        }
    }
}

impl Life<'_> {
    /// The entry before, within the same registration.
    fn before(&self, place: usize) -> Option<&Entry> {
        self.entries[..place].last()
    }

    /// The registration that this entry is of.
    fn registered(&self, place: usize) -> Option<&Entry> {
        let all = self.entries[..=place].iter();
        all.rev().find(|entry| entry.kind == Lifecycle::TimerRegistered)
    }

    /// How many registrations of it were asked for until then, and may not have ended.
    fn registrations_at(&self, at: i64) -> i64 {
        let mut count = 0;
        let mut is_asked = false;
        for entry in &self.entries {
            match entry.kind {
                Lifecycle::TimerRegistered => is_asked = entry.at <= at,
                Lifecycle::TimerChanged => {}
                Lifecycle::TimerCancelled => {
                    count += i64::from(is_asked && entry.at >= at);
                    is_asked = false;
                }
                _ => {
                    count += i64::from(is_asked && entry.at + LAG_MS >= at);
                    is_asked = false;
                }
            }
        }
        count + i64::from(is_asked)
    }

    /// Whether this entry, not the first, is a move of it.
    fn is_move(&self, place: usize) -> bool {
        let (before, entry) = (&self.entries[place - 1], &self.entries[place]);
        entry.kind == Lifecycle::TimerChanged && entry.generation != before.generation
    }

    /// How often it was moved within this time, but for these entries.
    fn moved(&self, from: i64, until: i64, made: &[usize]) -> i64 {
        let is_move = |place: &usize| {
            self.is_move(*place) && (from..=until).contains(&self.entries[*place].at) && !made.contains(place)
        };
        i64::try_from((1..self.entries.len()).filter(is_move).count()).unwrap_or(i64::MAX)
    }

    /// Whether this cancel is certain: nothing was sent, or all of that surely failed. `None`: nobody knows.
    fn is_certain(&self, place: usize) -> Option<bool> {
        let entry = &self.entries[place];
        if place + 1 == self.entries.len() {
            return Some(!self.row.life.uncertain);
        }
        if self.row.target.queue().is_some() {
            return None;
        }
        let since = self.registered(place)?.generation;
        let has_arrived = self.arrivals.iter().any(|(_, of, _)| (since..=entry.generation).contains(of));
        let before = self.before(place)?;
        let was_idle = before.is_paused || before.due_at > entry.at + AHEAD_MS;
        (!has_arrived && was_idle).then_some(true)
    }
}

impl Operations {
    /// A registration is asked for.
    pub fn registering(&mut self, timer: &NewTimer) {
        let marks = || Marks { owner: timer.owner.clone(), labels: timer.labels.clone() };
        self.marks.entry(timer.uid).or_insert_with(marks);
    }

    /// A client asks.
    pub fn asks(&mut self, ask: &Ask, now: i64) {
        let call = Call { ask: ask.clone(), asked_at: now, ended_at: i64::MAX, outcome: Outcome::Unknown };
        self.calls.entry(ask.uid()).or_default().push(call);
    }

    /// A client's latest call about this timer has ended.
    pub fn answers(&mut self, uid: Uid, outcome: Outcome, now: i64) {
        if let Some(call) = self.calls.get_mut(&uid).and_then(|calls| calls.last_mut()) {
            (call.ended_at, call.outcome) = (now, outcome);
        }
    }

    /// An operation is asked for.
    pub fn asked(&mut self, plan: &Plan, now: i64) {
        let asked = Asked { plan: plan.clone(), at: now, may_stop: false, told: None };
        self.asked.insert(plan.number, asked);
    }

    /// The end of one is asked for.
    pub fn stopping(&mut self, number: i64) {
        self.asked.get_mut(&number).into_iter().for_each(|asked| asked.may_stop = true);
    }

    /// This was told of an operation.
    pub fn told(&mut self, row: &OperationRow) -> Result<(), String> {
        let asked = number(row).and_then(|number| self.asked.get_mut(&number));
        let Some(asked) = asked else { return Err(format!("nobody asked for this operation: {row:?}")) };
        if let Some(before) = asked.told.replace(row.clone()) {
            let is_over = before.state != OperationState::Running;
            let shrinks = row.matched < before.matched || row.done < before.done;
            if shrinks || (is_over && format!("{before:?}") != format!("{row:?}")) {
                return Err(format!("an operation was told to be {before:?}, and is {row:?}"));
            }
        }
        Ok(())
    }

    /// The operations that may have to do with this timer.
    fn of(&self, uid: Uid) -> impl Iterator<Item = &Asked> {
        let marks = self.marks.get(&uid);
        let takes = move |plan: &Plan| {
            marks.is_some_and(|marks| plan.takes(marks.owner.as_deref(), marks.labels.as_deref()))
        };
        self.asked.values().filter(move |asked| !asked.plan.dry_run && takes(&asked.plan))
    }

    /// When an operation that takes this timer was asked for last.
    pub fn latest(&self, uid: Uid) -> Option<i64> {
        self.of(uid).map(|asked| asked.at).max()
    }

    /// Whether an operation may make this timer late: it pauses it, or moves it back to a moment that has passed.
    pub fn may_delay(&self, uid: Uid) -> bool {
        self.of(uid).any(|asked| match asked.plan.action {
            Action::Pause => true,
            Action::Shift => asked.plan.by_ms < 0,
            _ => false,
        })
    }

    /// Whether an operation may have cancelled this timer.
    pub fn may_cancel(&self, uid: Uid) -> bool {
        self.of(uid).any(|asked| asked.plan.action == Action::Cancel)
    }

    /// At the end of all: what these operations, all that there are, have done to these timers.
    pub fn ended(&self, rows: &[OperationRow], lives: &BTreeMap<Uid, Life<'_>>) -> Result<(), String> {
        let rows: Result<BTreeMap<i64, &OperationRow>, String> = rows
            .iter()
            .map(|row| Ok((number(row).ok_or_else(|| format!("nobody asked for {row:?}"))?, row)))
            .collect();
        let rows = rows?;
        let mut did: BTreeMap<i64, Did> = BTreeMap::new();
        for (uid, life) in lives {
            let wrong = |what: String| {
                let calls = self.calls.get(uid);
                format!("{}: {what}; {:?}; {calls:?}; {rows:?}", life.row.id, life.entries)
            };
            for arrival in &life.arrivals {
                lives::fits(&life.entries, *arrival).map_err(wrong)?;
            }
            for (place, operations, is_sure) in self.causes(*uid, life, &rows).map_err(wrong)? {
                for number in operations {
                    let did = did.entry(number).or_default();
                    match is_sure {
                        true => did.surely.entry(*uid).or_default().push(place),
                        false => did.maybe += 1,
                    }
                }
            }
        }
        for (number, row) in &rows {
            let did = did.remove(number).unwrap_or_default();
            let Some(asked) = self.asked.get(number) else { return Err(format!("nobody asked for {row:?}")) };
            self.agrees(asked, row, &did, lives)
                .map_err(|what| format!("{what}: {asked:?}; {row:?}; {did:?}"))?;
        }
        let is_gone = |(number, asked): &(&i64, &Asked)| asked.told.is_some() && !rows.contains_key(number);
        match self.asked.iter().find(is_gone) {
            Some((_, asked)) => Err(format!("an operation is gone: {asked:?}")),
            None => Ok(()),
        }
    }

    /// The changes of a life that operations may have made: which ones, and whether surely that one, so that it counts it.
    fn causes(
        &self,
        uid: Uid,
        life: &Life<'_>,
        rows: &BTreeMap<i64, &OperationRow>,
    ) -> Result<Vec<(usize, Vec<i64>, bool)>, String> {
        let mut caused = Vec::new();
        let calls = self.calls.get(&uid).map(Vec::as_slice).unwrap_or_default();
        let mut is_used = vec![false; calls.len()];
        for (place, entry) in life.entries.iter().enumerate() {
            let (Some(before), Some(registered)) = (life.before(place), life.registered(place)) else {
                continue;
            };
            if !matches!(entry.kind, Lifecycle::TimerChanged | Lifecycle::TimerCancelled) {
                continue;
            }
            let made: Vec<_> = calls.iter().map(|call| call.made(before, entry)).collect();
            let surely = (0..calls.len()).find(|one| made[*one] == Some(true) && !is_used[*one]);
            if let Some(surely) = surely {
                is_used[surely] = true;
                continue;
            }
            let is_certain =
                if entry.kind == Lifecycle::TimerCancelled { life.is_certain(place) } else { Some(true) };
            let operations = self.of(uid).filter(|asked| asked.plan.makes(before, entry)).filter(|asked| {
                rows.get(&asked.plan.number).is_some_and(|row| {
                    let until = row.ended_at.map_or(i64::MAX, |at| at.get());
                    let is_in_time = entry.at <= until || is_certain != Some(true);
                    registered.at <= row.created_at.get() && row.created_at.get() <= entry.at && is_in_time
                })
            });
            let operations: Vec<i64> = operations.map(|asked| asked.plan.number).collect();
            let by_client = made.contains(&Some(false));
            match operations.len() {
                0 if by_client => {}
                0 => return Err(format!("nobody asked for {entry:?}")),
                // It is told as one that was refused.
                _ if is_certain == Some(false) => {}
                n => {
                    let is_sure = n == 1 && !by_client && is_certain.is_some();
                    caused.push((place, operations, is_sure));
                }
            }
        }
        Ok(caused)
    }

    /// Whether what is told of an operation agrees with what it did.
    fn agrees(
        &self,
        asked: &Asked,
        row: &OperationRow,
        did: &Did,
        lives: &BTreeMap<Uid, Life<'_>>,
    ) -> Result<(), String> {
        let told = asked.told.as_ref().filter(|told| told.state != OperationState::Running);
        if told.is_some_and(|told| format!("{told:?}") != format!("{row:?}")) {
            return Err("it was told otherwise".into());
        }
        match row.state {
            OperationState::Done => {}
            OperationState::Stopped if asked.may_stop => {}
            _ => return Err("so it cannot end".into()),
        }
        // What it does not move, and somebody else has turned back and moved, may come up again.
        let is_anew = |life: &Life<'_>, (one, next): (usize, usize)| {
            !asked.plan.action.moves() && (one + 1..next).any(|place| life.is_move(place))
        };
        let twice = did.surely.iter().find(|(uid, places)| {
            let mut pairs = places.iter().copied().zip(places.iter().copied().skip(1));
            !pairs.all(|pair| is_anew(&lives[*uid], pair))
        });
        if let Some((uid, _)) = twice {
            return Err(format!("it changed {} more than once: {:?}", lives[uid].row.id, lives[uid].entries));
        }
        let surely: usize = did.surely.values().map(Vec::len).sum();
        let surely = i64::try_from(surely).unwrap_or(i64::MAX);
        let refused: i64 = row.refused.values().sum();
        if !(surely..=surely + did.maybe).contains(&row.done) {
            return Err(format!("it tells {} and has changed {surely} to {}", row.done, surely + did.maybe));
        }
        if !asked.plan.dry_run && row.matched != row.done + refused {
            return Err("its counts do not add up".into());
        }
        let taken = || lives.iter().filter(|(uid, _)| self.takes(**uid, asked));
        let (began, ended) = (row.created_at.get(), row.ended_at.map_or(i64::MAX, |at| at.get()));
        let made = |uid: &Uid| did.surely.get(uid).map(Vec::as_slice).unwrap_or_default();
        // What somebody else moves meanwhile may come up again.
        let there = taken()
            .map(|(uid, life)| life.registrations_at(began) + life.moved(began, ended, made(uid)))
            .sum::<i64>();
        if row.matched > there {
            return Err(format!("{} matched, of {there}", row.matched));
        }
        let mut owed = 0;
        for (uid, life) in taken() {
            if !self.is_owed(*uid, asked, row, life, made(uid)) {
                continue;
            }
            owed += 1;
            if made(uid).is_empty() && !asked.plan.dry_run && row.state == OperationState::Done {
                return Err(format!("it left out {}: {:?}", life.row.id, life.entries));
            }
        }
        match row.state == OperationState::Done && row.matched < owed {
            true => Err(format!("{} matched, and {owed} were there", row.matched)),
            false => Ok(()),
        }
    }

    fn takes(&self, uid: Uid, asked: &Asked) -> bool {
        let marks = self.marks.get(&uid);
        marks.is_some_and(|marks| asked.plan.takes(marks.owner.as_deref(), marks.labels.as_deref()))
    }

    /// Whether the operation, once it is done, has surely changed this timer: it was there and could be changed, from the
    /// operation's begin to its end, and nobody else changed it meanwhile. `made`: what it changed.
    fn is_owed(&self, uid: Uid, asked: &Asked, row: &OperationRow, life: &Life<'_>, made: &[usize]) -> bool {
        let (began, ended) = (row.created_at.get(), row.ended_at.map_or(i64::MAX, |at| at.get()));
        let before = life.entries.iter().rposition(|entry| entry.at < began);
        let Some(place) = before else { return false };
        let (was, registered) = (&life.entries[place], life.registered(place));
        let is_live = matches!(was.kind, Lifecycle::TimerRegistered | Lifecycle::TimerChanged);
        let mut others =
            life.entries.iter().enumerate().filter(|(one, _)| *one > place && !made.contains(one));
        let is_alone = !others.any(|(_, entry)| entry.at <= ended);
        let is_acknowledged = |call: &Call| {
            let made = registered.map(|registered| Outcome::Made(registered.generation));
            matches!(call.ask, Ask::Register(_)) && Some(call.outcome) == made && call.ended_at < began
        };
        let may_be = match asked.plan.action {
            Action::Pause => !was.is_paused,
            Action::Resume => was.is_paused,
            _ => true,
        };
        let is_idle = was.is_paused || was.due_at > ended + AHEAD_MS;
        let calls = self.calls.get(&uid);
        is_live
            && is_alone
            && may_be
            && is_idle
            && calls.is_some_and(|calls| calls.iter().any(is_acknowledged))
    }
}

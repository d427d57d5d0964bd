//! What the workers of a run were given and told, and the rules of places.
//!
//! Nothing here looks into the product, and most rules hold whatever the order in which answers come: after each answer
//! the whole registration that it is about is looked at. A call that got no answer may have had its effect or not, until
//! its end; so bounds are kept where the truth is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainspring::cold::{Asking, Leased, NewTimer, TimerRow};
use mainspring::model::id::Uid;
use mainspring::model::queue::{Action, Dispatch, LeaseToken, To};
use mainspring::model::timer::{Answer, State};

use super::world::World;

/// A moment of the book: what came before what, within a millisecond too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    order: u64,
    /// In milliseconds.
    at: i64,
}

/// What a settlement was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Done,
    LeaseLost,
    /// Nothing: it counts or does not.
    Unknown,
}

/// A settlement that ends the lease.
#[derive(Debug)]
struct Ending {
    action: Action,
    asked: Moment,
    /// `None` while its call is under way.
    answer: Option<Settled>,
}

/// One giving-out, as its worker knows it.
#[derive(Debug)]
struct Giving {
    token: LeaseToken,
    worker: String,
    attempt: i32,
    delivery: String,
    /// When the lease was asked for, and when the answer came.
    asked: Moment,
    known: Moment,
    /// The earliest and the latest moment at which the lease may end, in milliseconds.
    until: (i64, i64),
    endings: Vec<Ending>,
}

/// What a cancel was answered.
#[derive(Debug, Clone, Copy)]
struct Told {
    answer: Answer,
    known: Moment,
    acked: u32,
}

/// One registration of a timer.
#[derive(Debug, Default)]
struct Registration {
    givings: Vec<Giving>,
    told: Option<Told>,
}

/// A change that was acknowledged: the generation, when that is due, and when the answer came.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    generation: i32,
    due_at: i64,
    known: Moment,
}

/// A timer for the queue.
#[derive(Debug)]
struct Known {
    dispatch: Dispatch,
    /// How often a place may be given out.
    attempts: u32,
    acknowledged: Option<Acknowledged>,
    /// When its pause was acknowledged, if nobody has asked for its end since.
    paused: Option<Moment>,
    /// By the moment of each registration.
    registrations: BTreeMap<i64, Registration>,
    cancelling: bool,
}

/// The book of places.
pub struct Places {
    world: Arc<World>,
    timers: BTreeMap<Uid, Known>,
    /// Whose each delivery id is: timer, registration, generation, number.
    deliveries: BTreeMap<String, (Uid, i64, i32, i32)>,
    order: u64,
    /// How many calls have given out something, maybe, that nobody has heard of.
    unheard: u32,
    pub given: usize,
}

impl Giving {
    /// Whether the worker surely had it at that time.
    fn is_surely_out(&self, at: i64) -> bool {
        let may_be_ended = self.endings.iter().any(|ending| ending.asked.at <= at);
        self.token.given_at.get() <= at && at < self.until.0 && !may_be_ended
    }

    /// The settlement that counts, by its answer.
    fn counted(&self) -> Option<&Ending> {
        self.endings.iter().find(|ending| ending.answer == Some(Settled::Done))
    }

    fn is_settled(&self) -> bool {
        self.counted().is_some_and(|ending| matches!(ending.action, Action::Ack | Action::Dead))
    }

    fn may_be(&self, action: Action) -> bool {
        let counts = |ending: &Ending| ending.answer != Some(Settled::LeaseLost);
        self.endings.iter().any(|ending| ending.action == action && counts(ending))
    }

    const fn place(&self) -> (i32, i32) {
        (self.token.generation, self.token.place)
    }

    /// Which of two came first.
    const fn number(&self) -> (i32, i32) {
        (self.token.generation, self.token.giving)
    }

    /// Whether it was given out after the answer of that moment.
    fn is_after(&self, known: Moment) -> bool {
        self.asked > known || self.token.given_at.get() > known.at
    }
}

impl Known {
    /// Whether there may be something left to give out or to settle.
    fn is_open(&self) -> bool {
        self.registrations.values().next_back().is_none_or(|latest| {
            let settled = latest.givings.iter().filter(|one| one.is_settled()).count();
            let is_over = latest.told.is_some_and(|told| told.answer != Answer::InFlight);
            !is_over && settled < self.dispatch.times as usize
        })
    }
}

impl Registration {
    /// How many places were surely acked, and how many may be.
    fn acked(&self) -> (u32, u32) {
        let count = |is: &dyn Fn(&Giving) -> bool| {
            let places: BTreeSet<_> = self.givings.iter().filter(|one| is(one)).map(Giving::place).collect();
            u32::try_from(places.len()).expect("few")
        };
        let surely = |one: &Giving| one.counted().is_some_and(|ending| ending.action == Action::Ack);
        (count(&surely), count(&|one| one.may_be(Action::Ack)))
    }

    /// The rules of what was given out.
    fn check(&self, known: &Known) -> Result<(), String> {
        for later in &self.givings {
            let attempt = u32::try_from(later.attempt).unwrap_or(0);
            if !(1..=known.attempts).contains(&attempt) {
                return Err(format!("given out as attempt {attempt} of {}: {later:?}", known.attempts));
            }
            if let Some(told) = self.told.filter(|told| later.is_after(told.known)) {
                return Err(format!("given out after its cancel was answered {:?}: {later:?}", told.answer));
            }
            let earlier = self.givings.iter().filter(|one| one.number() <= later.number());
            for earlier in earlier.filter(|one| !std::ptr::eq(*one, later)) {
                pair(earlier, later, known)
                    .map_err(|what| format!("{what}: {earlier:?}, and then {later:?}"))?;
            }
            let settled =
                self.givings.iter().filter(|one| one.is_settled() || one.place().0 == later.place().0);
            let places: BTreeSet<_> =
                settled.filter(|one| one.place().0 <= later.place().0).map(Giving::place).collect();
            if places.len() > known.dispatch.times as usize {
                return Err(format!("given out to {} places: {places:?}", places.len()));
            }
        }
        Ok(())
    }
}

/// The rules of two givings of one registration.
fn pair(earlier: &Giving, later: &Giving, known: &Known) -> Result<(), &'static str> {
    let given_at = later.token.given_at.get();
    if earlier.number() == later.number() {
        return Err("two have one number");
    }
    // A change begins a new generation only when nothing is out.
    let is_same = earlier.place() == later.place();
    let is_same_worker = earlier.worker == later.worker;
    if (is_same || is_same_worker) && earlier.is_surely_out(given_at) {
        return Err(if is_same { "a place is given out while somebody has it" } else { "a worker has two" });
    }
    if is_same && earlier.delivery != later.delivery {
        return Err("a place has two delivery ids");
    }
    if is_same && later.attempt <= earlier.attempt {
        return Err("the attempt does not rise");
    }
    if is_same_worker && !is_same && earlier.is_settled() && !known.dispatch.repeat {
        return Err("a worker gets a second place");
    }
    let Some(ending) = earlier.counted().filter(|_| is_same) else { return Ok(()) };
    let back_at = match ending.action {
        Action::Retry(delay) => ending.asked.at + delay.unwrap_or(0),
        _ => return Err("a place is given out again that is settled"),
    };
    match given_at < back_at || later.known < ending.asked {
        true => Err("a settlement counts after its lease was lost, or it came back too soon"),
        false => Ok(()),
    }
}

impl Places {
    pub fn new(world: Arc<World>) -> Self {
        Self { world, timers: BTreeMap::new(), deliveries: BTreeMap::new(), order: 0, unheard: 0, given: 0 }
    }

    /// Now, after everything that was noted before.
    pub fn moment(&mut self) -> Moment {
        self.order += 1;
        Moment { order: self.order, at: self.world.now() }
    }

    fn wrong(&self, uid: Uid, what: &str) {
        self.world.wrong(format!("{}: {what}", uid.0.simple()));
    }

    /// Whether this timer is for the queue.
    pub fn has(&self, uid: Uid) -> bool {
        self.timers.contains_key(&uid)
    }

    /// All timers for the queue.
    pub fn uids(&self) -> Vec<Uid> {
        self.timers.keys().copied().collect()
    }

    /// Whether workers may still get something.
    pub fn is_open(&self) -> bool {
        self.timers.values().any(Known::is_open)
    }

    /// Whether they may now.
    pub fn is_due(&self) -> bool {
        let now = self.world.now();
        let is_due = |known: &Known| known.acknowledged.is_none_or(|latest| latest.due_at <= now);
        self.timers.values().any(|known| known.is_open() && is_due(known))
    }

    /// A registration is asked for, maybe not for the first time.
    pub fn registering(&mut self, timer: &NewTimer) {
        let Some(dispatch) = timer.dispatch.clone() else { return };
        self.timers.entry(timer.uid).or_insert_with(|| Known {
            dispatch,
            attempts: timer.policies.retry.unwrap_or_default().attempts,
            acknowledged: None,
            paused: None,
            registrations: BTreeMap::new(),
            cancelling: false,
        });
    }

    /// A registration or a change was acknowledged: the timer as it is then.
    pub fn acknowledged(&mut self, row: &TimerRow) {
        let known = self.moment();
        let Some(timer) = self.timers.get_mut(&row.uid) else { return };
        let created_at = row.created_at.get();
        if timer.registrations.last_key_value().is_none_or(|(latest, _)| *latest < created_at) {
            (timer.cancelling, timer.paused) = (false, None);
        }
        timer.registrations.entry(created_at).or_default();
        let generation = row.life.generation.0;
        if timer.acknowledged.is_none_or(|before| before.generation < generation) {
            let due_at = row.life.due_at.get();
            timer.acknowledged = Some(Acknowledged { generation, due_at, known });
        }
    }

    /// A pause was acknowledged.
    pub fn paused(&mut self, uid: Uid) {
        let known = self.moment();
        if let Some(timer) = self.timers.get_mut(&uid) {
            timer.paused.get_or_insert(known);
        }
    }

    /// A resume is asked for, or what ends a pause too.
    pub fn resuming(&mut self, uid: Uid) {
        if let Some(timer) = self.timers.get_mut(&uid) {
            timer.paused = None;
        }
    }

    /// A worker asks for what it has. Its leases end a millisecond later, each time that it is told of them.
    pub fn asking_again(&mut self, worker: &str) {
        let registrations = self.timers.values_mut().flat_map(|timer| timer.registrations.values_mut());
        let givings = registrations.flat_map(|registration| &mut registration.givings);
        givings.filter(|giving| giving.worker == worker).for_each(|giving| giving.until.1 += 1);
    }

    /// A lease was answered: this worker has this now.
    pub fn given(&mut self, asking: &Asking, asked: Moment, item: &Leased) {
        let known = self.moment();
        self.given += 1;
        let LeaseToken { uid, created_at, given_at, generation, place, giving } = item.token;
        let at = given_at.get();
        let wrong = |what: String| {
            self.world.wrong(format!("{}, given to {}: {what}; {item:?}", uid.0.simple(), asking.worker));
        };
        let Some(timer) = self.timers.get_mut(&uid) else { return wrong("nobody registered it".into()) };
        let may_have = match &timer.dispatch.to {
            To::Any => true,
            To::Worker(name) => *name == asking.worker,
            To::Group(name) => asking.groups.contains(name),
        };
        if !may_have || asking.exclude.contains(&uid) {
            return wrong("it is not for it".into());
        }
        if at < item.due_at.get() {
            return wrong(format!("{} ms before it is due", item.due_at.get() - at));
        }
        let key = (uid, created_at.get(), generation, place);
        if *self.deliveries.entry(item.delivery_id.clone()).or_insert(key) != key {
            return wrong(format!("its delivery id is that of {:?}", self.deliveries[&item.delivery_id]));
        }
        let registration = timer.registrations.entry(created_at.get()).or_default();
        let before = registration.givings.iter_mut().find(|one| one.token == item.token);
        if let Some(before) = before {
            let is_its_own = before.worker == asking.worker && before.delivery == item.delivery_id;
            let until = item.lease_until.get();
            if !asking.redo || !is_its_own || !(before.until.0..=before.until.1).contains(&until) {
                wrong(format!("it was given out before: {before:?}"));
            }
            before.until.0 = before.until.0.max(until);
            return;
        }
        // What was not heard of before may be given again to who asks for what it has.
        if at > known.at || (at < asked.at && !asking.redo) {
            return wrong(format!("given out at {at}, asked for from {asked:?} to {known:?}"));
        }
        let until = item.lease_until.get();
        registration.givings.push(Giving {
            token: item.token,
            worker: asking.worker.clone(),
            attempt: item.attempt,
            delivery: item.delivery_id.clone(),
            // What was given out before, and not heard of, comes among what was asked for again.
            asked: if asking.redo { Moment { order: 0, at } } else { asked },
            known,
            until: (until, until),
            endings: Vec::new(),
        });
        let latest = registration.givings.last().expect("just pushed");
        if timer.paused.is_some_and(|paused| latest.is_after(paused)) {
            return wrong("while it is paused".into());
        }
        if let Some(acknowledged) = timer.acknowledged {
            if generation < acknowledged.generation && latest.is_after(acknowledged.known) {
                return wrong(format!("after generation {} was acknowledged", acknowledged.generation));
            }
            if generation == acknowledged.generation && item.due_at.get() != acknowledged.due_at {
                return wrong(format!("its client wants it at {}", acknowledged.due_at));
            }
        }
        self.world.tell(usize::MAX, format!("{} has {} {generation}.{giving}", asking.worker, item.timer));
        self.look_at(uid, created_at.get());
    }

    /// A lease was answered as a whole. A worker that wants what it has gets that and nothing else.
    pub fn answered(&mut self, asking: &Asking, asked: Moment, items: &[Leased]) {
        let now = self.world.now();
        let is_its_own = |one: &&Giving| {
            one.worker == asking.worker
                && one.known < asked
                && one.is_surely_out(asked.at)
                && one.is_surely_out(now)
        };
        let registrations = self.timers.values().flat_map(|timer| timer.registrations.values());
        let own: Vec<LeaseToken> =
            registrations.flat_map(|one| &one.givings).filter(is_its_own).map(|one| one.token).collect();
        // Not one that it had before, and whose lease has ended.
        let is_new = |item: &Leased| item.token.given_at.get() > asked.at && item.attempt == 1;
        if asking.redo && !own.is_empty() && (items.is_empty() || items.iter().any(is_new)) {
            self.world.wrong(format!("{} has {own:?} and gets {items:?}", asking.worker));
        }
    }

    /// A call that gives out has no answer, or one that could not be written.
    pub fn unheard(&mut self) {
        self.unheard += 1;
    }

    fn giving(&mut self, token: &LeaseToken) -> Option<&mut Giving> {
        let timer = self.timers.get_mut(&token.uid)?;
        let registration = timer.registrations.get_mut(&token.created_at.get())?;
        registration.givings.iter_mut().find(|one| one.token == *token)
    }

    /// A worker settles.
    pub fn settling(&mut self, token: &LeaseToken, action: Action) -> Moment {
        let asked = self.moment();
        if let Some(giving) = self.giving(token) {
            match action {
                Action::Extend(lease) => giving.until.0 = giving.until.0.min(asked.at + lease),
                _ => giving.endings.push(Ending { action, asked, answer: None }),
            }
        }
        asked
    }

    /// A settlement that was asked for then was answered, or will never be.
    pub fn settled(&mut self, token: &LeaseToken, action: Action, asked: Moment, answer: Settled) {
        let now = self.world.now();
        let uid = token.uid;
        let Some(giving) = self.giving(token) else { return };
        let ended = giving.until;
        let others = giving.endings.iter().filter(|ending| ending.asked != asked);
        let (mut is_done, mut may_be_done) = (false, false);
        for other in others.filter(|ending| ending.asked < asked) {
            is_done |= other.answer == Some(Settled::Done);
            may_be_done |= other.answer != Some(Settled::LeaseLost);
        }
        match action {
            Action::Extend(lease) => match answer {
                Settled::Done => giving.until = (asked.at + lease, now + lease),
                Settled::LeaseLost => {}
                Settled::Unknown => giving.until.1 = giving.until.1.max(now + lease),
            },
            _ => {
                let ending = giving.endings.iter_mut().find(|ending| ending.asked == asked);
                ending.into_iter().for_each(|ending| ending.answer = Some(answer));
            }
        }
        let what = match answer {
            Settled::Done if is_done => Some("it counts a second time"),
            Settled::Done if asked.at >= ended.1 => Some("it counts after its lease has ended"),
            Settled::LeaseLost if now < ended.0 && !may_be_done => {
                Some("its lease is lost, and nothing explains it")
            }
            _ => None,
        };
        if let Some(what) = what {
            let what = format!("{} is answered {answer:?}: {what}; {giving:?}", action.word());
            return self.wrong(uid, &what);
        }
        self.look_at(uid, token.created_at.get());
    }

    /// A cancel is asked for.
    pub fn cancelling(&mut self, uid: Uid) -> Moment {
        if let Some(known) = self.timers.get_mut(&uid) {
            known.cancelling = true;
        }
        self.moment()
    }

    /// A cancel that was asked for then was answered.
    pub fn cancelled(&mut self, row: &TimerRow, answer: Answer, asked: Moment) {
        let known = self.moment();
        let is_over = match answer {
            Answer::Cancelled | Answer::Stopped => true,
            Answer::InFlight => false,
            _ => return,
        };
        let Some(timer) = self.timers.get_mut(&row.uid) else { return };
        let registration = timer.registrations.entry(row.created_at.get()).or_default();
        let acked = row.seats.as_ref().map_or(0, |seats| seats.acked);
        let (least, most) = registration.acked();
        let out = registration
            .givings
            .iter()
            .find(|one| one.is_surely_out(asked.at) && one.is_surely_out(known.at));
        let what = match out {
            Some(out) if is_over => Some(format!("and somebody has it: {out:?}")),
            // What was acked since may be missing while it goes on.
            _ if acked > most || (is_over && acked < least) => {
                Some(format!("with {acked} acked; from {least} to {most} were"))
            }
            _ if is_over && (answer == Answer::Stopped) != (acked > 0) => Some(format!("with {acked} acked")),
            _ => None,
        };
        registration.told.get_or_insert(Told { answer, known, acked });
        if let Some(what) = what {
            return self.wrong(row.uid, &format!("its cancel is answered {answer:?}, {what}"));
        }
        self.look_at(row.uid, row.created_at.get());
    }

    fn look_at(&self, uid: Uid, created_at: i64) {
        let Some(known) = self.timers.get(&uid) else { return };
        if let Some(Err(what)) = known.registrations.get(&created_at).map(|one| one.check(known)) {
            self.wrong(uid, &what);
        }
    }

    /// The timers that somebody was given something of, and when last.
    pub fn fired(&self) -> impl Iterator<Item = (i64, Uid)> {
        self.timers.iter().filter_map(|(uid, known)| {
            let givings = known.registrations.values().flat_map(|one| &one.givings);
            Some((givings.map(|one| one.token.given_at.get()).max()?, *uid))
        })
    }

    /// How a timer has ended, at the end of all; an operation may have cancelled it.
    pub fn ended(&self, row: &TimerRow, may_cancel: bool) {
        let known = &self.timers[&row.uid];
        let wrong = |what: &str| self.wrong(row.uid, &format!("{what}; {row:?}; {known:?}"));
        let created_at = row.created_at.get();
        if known.registrations.last_key_value().is_some_and(|(latest, _)| *latest > created_at) {
            return wrong("ended as an earlier registration");
        }
        if known.acknowledged.is_some_and(|latest| latest.generation > row.life.generation.0) {
            return wrong("ended as an earlier generation");
        }
        let none = Registration::default();
        let registration = known.registrations.get(&created_at).unwrap_or(&none);
        let acked = row.seats.as_ref().map_or(0, |seats| seats.acked);
        let (least, most) = registration.acked();
        // What a worker was not told of cannot be acked.
        if !(least..=most).contains(&acked) {
            return wrong(&format!("{acked} places are acked; from {least} to {most} were"));
        }
        let told = registration.told;
        let over = told.filter(|told| told.answer != Answer::InFlight);
        let attempts = registration.givings.iter().map(|one| u32::try_from(one.attempt).unwrap_or(0)).max();
        let is_spent = attempts.unwrap_or(0) + self.unheard >= known.attempts;
        match (row.life.state, over) {
            (State::Cancelled, Some(told)) if row.life.uncertain || acked != told.acked => {
                wrong("ended otherwise than its cancel was answered");
            }
            (State::Cancelled, None) if told.is_some() && !row.life.uncertain => {
                wrong("its cancel was answered as in flight, and its end is certain");
            }
            (State::Cancelled, _) if !known.cancelling && !may_cancel => {
                wrong("cancelled, and nobody asked for it")
            }
            (State::Cancelled, _) => {}
            (state, Some(told)) => wrong(&format!("ended as {state:?} after {:?}", told.answer)),
            (State::Delivered, None) if acked == known.dispatch.times => {}
            (State::Dead, None) if told.is_some() => wrong("dead, and its cancel was recorded"),
            (State::Dead, None)
                if is_spent || registration.givings.iter().any(|one| one.may_be(Action::Dead)) => {}
            (state, None) => wrong(&format!("ended as {state:?}")),
        }
    }
}

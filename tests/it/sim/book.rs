//! What the clients and the receivers of a run saw, and the rules that it must obey.
//!
//! Nothing here looks into the product: a rule is broken when answers and arrivals contradict each other, or
//! when an arrival contradicts who owned its shard by the store's own account.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainspring::cold::{Applied, NewTimer, TimerRow};
use mainspring::model::id::{TimerId, Uid};
use mainspring::model::namespace::Salt;
use mainspring::model::pointer::Via;
use mainspring::model::subscription::Lifecycle;
use mainspring::model::timer::{Answer, State, Token};
use mainspring::positions::GRACE_MS;
use mainspring::sink::{Claim, Delivery};

use super::events::{Arrived, Event, Events};
use super::lives::Arrival;
use super::nominal::Recurring;
use super::operations::Operations;
use super::places::{Moment, Places};
use super::receiver::Behaviour;
use super::world::World;

/// One arrival.
#[derive(Debug, Clone)]
struct Sent {
    generation: i32,
    attempt: i32,
    at: i64,
    process: usize,
    epoch: i64,
    how: Behaviour,
    /// The delivery id.
    delivery: String,
    /// The node knows how it came out.
    known: bool,
}

/// What a cancel was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Cancelled,
    Stopped,
    /// And the attempt that may be under way.
    InFlight(Option<(i32, i32)>),
}

/// One timer, as its client knows it.
#[derive(Debug)]
struct Known {
    /// The latest acknowledged generation, and when it is due.
    generation: i32,
    due_at: i64,
    /// The first generation since it was registered (again).
    since: i32,
    /// What its cancel was answered, and as which generation.
    told: Option<(Told, i32)>,
    /// A cancel was asked for.
    cancelling: bool,
    /// When the latest change was asked for and when it was answered.
    asked_at: i64,
    acked_at: i64,
    /// Its pause was acknowledged, and nobody has asked for its end since.
    is_paused: bool,
    /// It was paused at some time: it is as late as that made it.
    was_paused: bool,
    sent: Vec<Sent>,
}

impl Known {
    /// Nothing was answered yet.
    const fn unanswered() -> Self {
        Self {
            generation: 0,
            due_at: i64::MIN,
            since: 0,
            told: None,
            cancelling: false,
            asked_at: 0,
            acked_at: i64::MAX,
            is_paused: false,
            was_paused: false,
            sent: Vec::new(),
        }
    }
}

/// From when to when nothing goes wrong.
#[derive(Debug, Clone, Copy)]
pub struct Calm {
    /// What is written before is in the wheels when things begin to go wrong.
    pub until: i64,
    /// From here on everything is well again.
    pub again: i64,
}

/// The book of one run.
pub struct Book {
    world: Arc<World>,
    timers: BTreeMap<Uid, Known>,
    /// The epoch of each shard by the store's account, and up to which epoch it was given up in order.
    epochs: BTreeMap<i32, (i64, i64)>,
    calm: Calm,
    /// The members of each merged set, as it was first sent.
    sets: BTreeMap<String, BTreeSet<Uid>>,
    /// Lifecycle events by their timer's id.
    events: BTreeMap<String, Vec<Arrived>>,
    pub arrivals: usize,
    /// What is for workers.
    pub places: Places,
    /// What schedules make.
    pub recurring: Recurring,
    /// What operations do.
    pub operations: Operations,
}

impl Book {
    pub fn new(world: Arc<World>) -> Self {
        let calm = Calm { until: i64::MAX, again: i64::MAX };
        Self {
            places: Places::new(Arc::clone(&world)),
            recurring: Recurring::default(),
            operations: Operations::default(),
            world,
            timers: BTreeMap::new(),
            epochs: BTreeMap::new(),
            calm,
            sets: BTreeMap::new(),
            events: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// By the store's account these are the shards' epochs. While all is well none of them moves.
    pub fn set_epochs(&mut self, epochs: impl IntoIterator<Item = (i32, (i64, i64))>, settled: bool) {
        for (shard, epoch) in epochs {
            let before = self.epochs.insert(shard, epoch);
            if settled && before.is_some_and(|before| before.0 != epoch.0) {
                self.world.wrong(format!("shard {shard} has changed hands, and nothing explains it"));
            }
        }
    }

    /// From `until` to `again` faults explain what the sweep fires.
    pub fn set_calm(&mut self, calm: Calm) {
        self.calm = calm;
    }

    /// A registration is asked for, maybe not for the first time.
    pub fn registering(&mut self, timer: &NewTimer) {
        self.places.registering(timer);
        self.operations.registering(timer);
        // It may begin anew, and is not paused then.
        self.resuming(timer.uid);
        self.timers.entry(timer.uid).or_insert_with(Known::unanswered);
    }

    /// A registration was answered as one that was made before: by an answer that was lost, or by an earlier.
    pub fn registered_before(&mut self, row: &TimerRow, asked_at: i64) {
        if self.timers.get(&row.uid).is_some_and(|known| known.generation < row.life.generation.0) {
            self.registered(row, asked_at);
        }
    }

    /// A registration was acknowledged.
    pub fn registered(&mut self, row: &TimerRow, asked_at: i64) {
        self.places.acknowledged(row);
        let now = self.world.now();
        let generation = row.life.generation.0;
        let sent = self.timers.remove(&row.uid).map(|known| known.sent).unwrap_or_default();
        let known = Known {
            generation,
            due_at: row.life.due_at.get(),
            since: generation,
            asked_at,
            acked_at: now,
            sent,
            ..Known::unanswered()
        };
        self.timers.insert(row.uid, known);
    }

    pub fn cancelling(&mut self, uid: Uid) -> Moment {
        if let Some(known) = self.timers.get_mut(&uid) {
            known.cancelling = true;
        }
        self.places.cancelling(uid)
    }

    /// A cancel that was asked for then was answered.
    pub fn cancelled(&mut self, applied: &Applied, asked: Moment) {
        let Applied::Live(row, answer) = applied else { return };
        self.places.cancelled(row, *answer, asked);
        let Some(known) = self.timers.get_mut(&row.uid) else { return };
        let token = (row.life.generation.0, row.life.attempt);
        let since = known.since;
        let mut mine = known.sent.iter().filter(|sent| sent.generation >= since);
        let told = match answer {
            Answer::Cancelled => {
                if let Some(sent) = mine.find(|sent| sent.how != Behaviour::Refuses) {
                    self.world.wrong(format!("{} is answered `cancelled` and was sent: {sent:?}", row.id));
                }
                Told::Cancelled
            }
            Answer::Stopped => {
                let open = |sent: &&Sent| !matches!(sent.how, Behaviour::Fails | Behaviour::Refuses);
                if let Some(sent) = mine.find(open) {
                    self.world.wrong(format!("{} is answered `stopped` and may be taken: {sent:?}", row.id));
                }
                Told::Stopped
            }
            Answer::InFlight => Told::InFlight((row.life.state == State::Delivering).then_some(token)),
            _ => return,
        };
        known.told = Some((told, token.0));
    }

    /// A change of the due time was acknowledged.
    pub fn moved(&mut self, row: &TimerRow, asked_at: i64) {
        self.places.acknowledged(row);
        let now = self.world.now();
        let Some(known) = self.timers.get_mut(&row.uid) else { return };
        known.generation = known.generation.max(row.life.generation.0);
        known.due_at = row.life.due_at.get();
        known.asked_at = asked_at;
        known.acked_at = now;
    }

    /// A pause was acknowledged.
    pub fn paused(&mut self, uid: Uid) {
        self.places.paused(uid);
        if let Some(known) = self.timers.get_mut(&uid) {
            (known.is_paused, known.was_paused) = (true, true);
        }
    }

    /// A resume is asked for, or what ends a pause too.
    pub fn resuming(&mut self, uid: Uid) {
        self.places.resuming(uid);
        if let Some(known) = self.timers.get_mut(&uid) {
            known.is_paused = false;
        }
    }

    /// An attempt is sent now, after its node's last look at the lease.
    pub fn sends(&mut self, process: usize, delivery: &Delivery, how: Behaviour) {
        let now = self.world.now();
        self.arrivals += 1;
        let (generation, attempt) = (delivery.generation.0, delivery.attempt);
        let via = delivery.claim.via.map_or("?", Via::word);
        self.world
            .tell(process, format!("sends {} {generation}.{attempt} via {via}: {how:?}", delivery.subject));
        let wrong =
            |what: String| self.world.wrong(format!("{} {generation}.{attempt}: {what}", delivery.subject));
        if now < delivery.due_at.get() {
            wrong(format!("sent {} ms before it is due", delivery.due_at.get() - now));
        }
        if let Err(what) = self.may_send(&delivery.claim) {
            wrong(what);
        }
        if let Err(what) = self.recurring.sends(delivery, how, now) {
            wrong(what);
        }
        let members = members(delivery);
        if !delivery.members.is_empty() {
            let uids = || members.iter().map(|(uid, _)| *uid);
            let first = self.sets.entry(delivery.id.clone()).or_insert_with(|| uids().collect());
            if let Some(joined) = uids().find(|uid| !first.contains(uid)) {
                wrong(format!("{} joined set {} after it was sent", joined.0.simple(), delivery.id));
            }
        }
        for (uid, token) in members {
            self.sends_one(process, delivery, uid, token, how);
        }
    }

    /// Whether a shard is, by the store's account, of the epoch under which it is sent for.
    fn may_send(&self, claim: &Claim) -> Result<(), String> {
        let Some((epoch, spared)) = self.epochs.get(&claim.shard) else { return Ok(()) };
        // What was claimed before a shard was given up in order is sent to its end.
        if claim.epoch.0 == *epoch || claim.epoch.0 <= *spared {
            return Ok(());
        }
        Err(format!("sent under epoch {}, the shard's is {:?}", claim.epoch.0, (epoch, spared)))
    }

    /// A lifecycle event is sent now, after its node's last look at the lease.
    pub fn tells(&mut self, process: usize, delivery: &Delivery, kind: Lifecycle, how: Behaviour) {
        let (id, epoch) = (delivery.id.clone(), delivery.claim.epoch.0);
        self.world.tell(process, format!("tells {} of {}: {how:?}", kind.word(), delivery.subject));
        let wrong = |what: String| {
            self.world.wrong(format!("{} of {} ({id}): {what}", kind.word(), delivery.subject));
        };
        if let Err(what) = self.may_send(&delivery.claim) {
            wrong(what);
        }
        let before = self.events.get(&delivery.subject).into_iter().flatten().filter(|one| one.id == id);
        for before in before {
            let explained = (before.known && before.how != Behaviour::Ok)
                || before.epoch != epoch
                || self.world.disturbed_at(before.process) >= before.at;
            if !explained {
                wrong(format!("told again, and nothing explains it: {before:?}"));
            }
        }
        let event = Event { kind, body: delivery.data.clone() };
        let arrived = Arrived { id, event, at: self.world.now(), process, epoch, how, known: false };
        self.events.entry(delivery.subject.clone()).or_default().push(arrived);
    }

    /// The lifecycle events that were taken, in the order in which each was taken first.
    pub fn told(&self) -> Events {
        let taken = |arrived: &Vec<Arrived>| {
            let mut seen = BTreeSet::new();
            let first = arrived.iter().filter(|one| one.how.takes() && seen.insert(&one.id));
            first.map(|one| one.event.clone()).collect()
        };
        self.events.iter().map(|(timer, arrived)| (timer.clone(), taken(arrived))).collect()
    }

    /// One timer of a delivery.
    fn sends_one(&mut self, process: usize, delivery: &Delivery, uid: Uid, token: Token, how: Behaviour) {
        let now = self.world.now();
        let (generation, attempt) = (token.generation.0, token.attempt);
        if delivery.nominal.is_some() {
            // Nobody registered it, and it may be late because it waited for others.
            self.timers.entry(uid).or_insert_with(|| Known { was_paused: true, ..Known::unanswered() });
        }
        // A registration whose answer is still on its way.
        let Some(known) = self.timers.get_mut(&uid) else { return };
        let wrong = |what: String| {
            self.world.wrong(format!("{} {generation}.{attempt} ({}): {what}", uid.0.simple(), delivery.id));
        };
        if self.places.has(uid) {
            wrong("sent, and workers are to fetch it".into());
        }
        if known.is_paused {
            wrong("sent while it is paused".into());
        }
        if generation < known.generation {
            wrong(format!("sent after generation {} was acknowledged", known.generation));
        }
        if generation == known.generation && now < known.due_at {
            wrong(format!("sent {} ms before its client wants it", known.due_at - now));
        }
        match known.told.filter(|(_, last)| generation <= *last) {
            Some((Told::InFlight(Some(token)), _)) if token == (generation, attempt) => {}
            Some((told, _)) if how != Behaviour::Refuses => {
                wrong(format!("sent after its cancel was answered {told:?}"))
            }
            _ => {}
        }
        for before in known.sent.iter().filter(|before| before.generation == generation) {
            if before.delivery != delivery.id {
                wrong(format!("sent under another delivery id before: {before:?}"));
            }
            let token = (before.generation, before.attempt) == (generation, attempt);
            let unknown = matches!(before.how, Behaviour::Hangs | Behaviour::Lost);
            let explained =
                before.known && (unknown || matches!(before.how, Behaviour::Fails | Behaviour::Refuses));
            let taken_over = before.epoch != delivery.claim.epoch.0;
            let explained = explained || taken_over || self.world.disturbed_at(before.process) >= before.at;
            if token || !explained {
                wrong(format!("sent again, and nothing explains it: {before:?}"));
            }
        }
        // Sooner it is no rescue: until a wheel that was taken over ticks, the sweep leaves it nothing.
        let is_newer = generation > known.generation;
        let due_at = if is_newer { delivery.due_at.get() } else { known.due_at };
        let late_ms = now.saturating_sub(due_at);
        let may_be_late = known.was_paused || self.operations.may_delay(uid);
        let rescued = delivery.claim.via == Some(Via::Sweep) && late_ms >= GRACE_MS && !may_be_late;
        let is_covered = self.calm.covers(known, due_at, now)
            && self.operations.latest(uid).is_none_or(|asked_at| self.calm.is_well_since(asked_at));
        if rescued && attempt == 1 && is_covered {
            wrong(format!("left to the sweep, {late_ms} ms late, and nothing explains it"));
        }
        known.sent.push(Sent {
            generation,
            attempt,
            at: now,
            process,
            epoch: delivery.claim.epoch.0,
            how,
            delivery: delivery.id.clone(),
            known: false,
        });
    }

    /// The node learns how an attempt came out.
    pub fn learns(&mut self, delivery: &Delivery) {
        self.recurring.learns(delivery);
        if let Some(arrived) = self.events.get_mut(&delivery.subject) {
            arrived.iter_mut().filter(|one| one.id == delivery.id).for_each(|one| one.known = true);
        }
        for (uid, token) in members(delivery) {
            let sent = self.timers.get_mut(&uid).into_iter().flat_map(|known| &mut known.sent);
            sent.filter(|sent| (sent.generation, sent.attempt) == (token.generation.0, token.attempt))
                .for_each(|sent| sent.known = true);
        }
    }

    /// Whether this process waits for an answer that will be good.
    pub fn waits(&self, process: usize) -> bool {
        let mut sent = self.timers.values().filter_map(|known| known.sent.last());
        sent.any(|sent| sent.process == process && sent.how == Behaviour::Ok && !sent.known)
    }

    /// Timers of which something has arrived, or was given to a worker; the latest last.
    pub fn fired(&self) -> Vec<Uid> {
        let mut fired: Vec<(i64, Uid)> =
            self.timers.iter().filter_map(|(uid, known)| Some((known.sent.last()?.at, *uid))).collect();
        fired.extend(self.places.fired());
        fired.sort_unstable();
        fired.into_iter().map(|(_, uid)| uid).collect()
    }

    /// The timer of which one process got an answer while another that sent it before still waits for its own:
    /// what the late answer does depends on what has become of the timer meanwhile.
    pub fn contested(&self) -> Option<Uid> {
        let mut timers = self.timers.iter().rev();
        let is_contested = |sent: &[Sent]| {
            sent.last().is_some_and(|last| {
                last.known
                    && sent.iter().any(|one| {
                        one.process != last.process
                            && one.how == Behaviour::Ok
                            && !one.known
                            && self.world.is_alive(one.process)
                    })
            })
        };
        timers.find(|(_, known)| is_contested(&known.sent)).map(|(uid, _)| *uid)
    }

    /// The timers that were acknowledged.
    pub fn uids(&self) -> Vec<Uid> {
        self.timers.keys().copied().collect()
    }

    /// What has arrived of a timer.
    pub fn arrivals_of(&self, uid: Uid) -> Vec<Arrival> {
        self.timers[&uid].sent.iter().map(|sent| (sent.at, sent.generation, sent.how)).collect()
    }

    /// How a timer has ended, at the end of all.
    pub fn ended(&self, uid: Uid, row: Option<&TimerRow>) {
        let known = &self.timers[&uid];
        let Some(row) = row else {
            return self.world.wrong(format!("{} is gone without a trace", uid.0));
        };
        if self.places.has(uid) {
            return self.places.ended(row, self.operations.may_cancel(uid));
        }
        let generation = row.life.generation.0;
        let wrong = |what: String| self.world.wrong(format!("{}: {what}; {row:?}; {known:?}", row.id));
        if generation < known.generation {
            wrong(format!("ended as generation {generation}"));
        }
        let taken = known.sent.iter().any(|sent| {
            sent.generation == generation && !matches!(sent.how, Behaviour::Fails | Behaviour::Refuses)
        });
        match row.life.state {
            State::Delivered if !taken => wrong("ended as delivered, and nobody got it".into()),
            State::Delivered if matches!(known.told, Some((Told::Cancelled | Told::Stopped, last)) if generation <= last) =>
            {
                wrong("ended as delivered after its cancel".into());
            }
            State::Delivered => {}
            State::Cancelled if known.cancelling || self.operations.may_cancel(uid) => {}
            state => wrong(format!("ended as {state:?}")),
        }
    }
}

impl Calm {
    /// Whether a timer was written, and came due then, while all was well.
    fn covers(self, known: &Known, due_at: i64, now: i64) -> bool {
        let written = known.acked_at <= self.until || known.asked_at >= self.again;
        let due = due_at >= self.again || now <= self.until;
        written && due
    }

    /// Whether nothing has gone wrong since then, however long ago it was.
    const fn is_well_since(self, at: i64) -> bool {
        self.until == i64::MAX || at >= self.again
    }
}

/// The timers that are delivered, each with its attempt.
fn members(delivery: &Delivery) -> Vec<(Uid, Token)> {
    if !delivery.members.is_empty() {
        return delivery.members.clone();
    }
    let uid = TimerId::parse(&delivery.subject).expect("an id").uid(&Salt::own("default"));
    vec![(uid, Token { generation: delivery.generation, attempt: delivery.attempt })]
}

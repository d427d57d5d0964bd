//! The workers of a run: they fetch from the queue through any node, and settle, give back, extend, sleep beyond their
//! lease, settle twice, or are never heard of again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::cold::{Applied, Asker, Asking, Change, ChangeEvent, Leased, Settlement, Turn};
use mainspring::model::id::Uid;
use mainspring::model::namespace::Namespace;
use mainspring::model::queue::{Action, Dispatch, LeaseToken, To, lane};
use mainspring::model::time::Span;
use mainspring::model::timer::Answer;
use mainspring::queue::taken_back;

use super::book::Book;
use super::node::{Node, Task};
use super::places::{Moment, Settled};
use super::world::World;

/// The queue of a run.
pub const QUEUE: &str = "work";

/// How many workers there are; the first [`IN_GROUP`] of them are in a group.
const WORKERS: usize = 4;
const IN_GROUP: usize = 3;
const GROUP: &str = "some";

/// How often a worker settles again what was not answered.
const TRIES: u32 = 4;

/// Something that a worker does.
#[derive(Debug, Clone)]
pub enum Deed {
    /// These ask in one call.
    Lease(Vec<usize>),
    /// This one settles; so many times more if there is no answer.
    Settle(usize, LeaseToken, Action, u32),
}

impl Deed {
    fn workers(&self) -> Vec<usize> {
        match self {
            Self::Lease(workers) => workers.clone(),
            Self::Settle(worker, ..) => vec![*worker],
        }
    }
}

/// A worker: one call at a time.
#[derive(Debug, Default)]
struct Worker {
    is_busy: bool,
    /// When it asks for more.
    asks_at: i64,
    /// What it does with what it has, and when.
    plans: Vec<(i64, LeaseToken, Action, u32)>,
}

/// All workers.
pub struct Crew {
    workers: Vec<Worker>,
    /// Nobody begins anything.
    pub rests: bool,
    /// All does what it should.
    pub is_well: bool,
}

/// How a timer is given out, so that these workers can settle all of it.
pub fn dispatch(world: &World) -> Dispatch {
    let (times, repeat) = (world.pick(1..4), world.one_in(3));
    let to = match world.pick(0..4) {
        0 => To::Group(GROUP.into()),
        1 if times == 1 || repeat => To::Worker(name(at_random(world, WORKERS))),
        _ => To::Any,
    };
    Dispatch { to, times: u32::try_from(times).expect("few"), repeat }
}

fn name(worker: usize) -> String {
    format!("w{worker}")
}

fn at_random(world: &World, of: usize) -> usize {
    usize::try_from(world.pick(0..of as i64)).expect("small")
}

impl Crew {
    /// Without a queue there are no workers.
    pub fn new(has_queue: bool) -> Self {
        let count = if has_queue { WORKERS } else { 0 };
        Self { workers: (0..count).map(|_| Worker::default()).collect(), rests: true, is_well: false }
    }

    /// What somebody does now. `is_due`: there may be something to fetch; otherwise they seldom ask.
    pub fn next(&mut self, world: &World, is_due: bool) -> Option<Deed> {
        let now = world.now();
        if self.rests {
            return None;
        }
        let idle = |one: &Worker| !one.is_busy;
        let who =
            self.workers.iter().position(|one| idle(one) && one.next_at().is_some_and(|at| at <= now))?;
        let worker = &mut self.workers[who];
        let plan = worker.plans.iter().position(|(at, ..)| *at <= now);
        let deed = match plan {
            Some(plan) => {
                let (_, token, action, tries) = worker.plans.remove(plan);
                Deed::Settle(who, token, action, tries)
            }
            None if !is_due && !world.one_in(6) => {
                worker.asks_at = now + world.pick(100..700);
                return None;
            }
            None => {
                let joins = |one: &Worker| idle(one) && one.asks_at < now + 500;
                let others = (0..self.workers.len()).filter(|one| *one != who && joins(&self.workers[*one]));
                let others: Vec<usize> = others.filter(|_| world.one_in(2)).collect();
                Deed::Lease([who].into_iter().chain(others).collect())
            }
        };
        self.set_busy(&deed, true);
        Some(deed)
    }

    /// When somebody does something.
    pub fn next_at(&self) -> Option<i64> {
        let idle = self.workers.iter().filter(|one| !self.rests && !one.is_busy);
        idle.filter_map(Worker::next_at).min()
    }

    fn set_busy(&mut self, deed: &Deed, is_busy: bool) {
        deed.workers().into_iter().for_each(|who| self.workers[who].is_busy = is_busy);
    }

    /// Its call has ended; those that asked ask again later.
    fn ends(&mut self, world: &World, deed: &Deed) {
        self.set_busy(deed, false);
        if let Deed::Lease(workers) = deed {
            let longest = if self.is_well { 900 } else { 2000 };
            for who in workers {
                self.workers[*who].asks_at = world.now() + world.pick(50..longest);
            }
        }
    }

    /// What this worker does with what it got.
    fn plan(&mut self, world: &World, who: usize, item: &Leased) {
        let (now, left) = (world.now(), item.lease_until.get() - world.now());
        // Who had this place before, and sleeps, wakes while this one has it.
        let is_it = |token: &LeaseToken| {
            (token.uid, token.created_at, token.generation, token.place)
                == (item.token.uid, item.token.created_at, item.token.generation, item.token.place)
        };
        let others = self.workers.iter_mut().flat_map(|one| &mut one.plans);
        for (at, ..) in others.filter(|(_, token, ..)| *token != item.token && is_it(token)) {
            if world.one_in(2) {
                *at = now + world.pick(1..left.max(2));
            }
        }
        let worker = &mut self.workers[who];
        worker.plans.retain(|(_, token, ..)| *token != item.token);
        let within = now + world.pick(1..left.max(2)) / 2;
        let mut plans = |at: i64, action: Action| worker.plans.push((at, item.token, action, TRIES));
        let odds = if self.is_well { world.pick(0..60) } else { world.pick(0..100) };
        match odds {
            0..40 => plans(within, Action::Ack),
            40..45 => plans(within, Action::Retry(Some(world.pick(0..800)))),
            45..48 => plans(within, Action::Retry(None)),
            48..50 => plans(within, Action::Dead),
            // It takes longer, or asks for longer when it may be too late.
            50..57 => {
                let lease = world.pick(300..2000);
                plans(within, Action::Extend(lease));
                plans(within + lease / 2, Action::Ack);
            }
            // As does a worker that hears no answer.
            57..60 => {
                plans(within, Action::Ack);
                plans(within + world.pick(1..500), Action::Ack);
            }
            // It sleeps beyond its lease, and does not know.
            60..82 => {
                let action = match world.pick(0..6) {
                    0 => Action::Retry(Some(0)),
                    1 => Action::Dead,
                    2 => Action::Extend(1000),
                    _ => Action::Ack,
                };
                plans(now + left + world.pick(-100..4000), action);
            }
            // It dies with all that it has.
            82..86 => worker.plans.clear(),
            _ => {}
        }
    }
}

impl Worker {
    fn next_at(&self) -> Option<i64> {
        self.plans.iter().map(|(at, ..)| *at).chain([self.asks_at]).min()
    }
}

/// Everything that workers need.
#[derive(Clone)]
pub struct Workers {
    pub world: Arc<World>,
    pub book: Arc<Mutex<Book>>,
    pub crew: Arc<Mutex<Crew>>,
}

/// A call of workers, and when it was made.
#[derive(Debug, Clone)]
pub struct Job {
    pub deed: Deed,
    asked: Moment,
}

impl Workers {
    /// Does this through this node.
    pub fn begin(&self, node: &Node, deed: Deed) -> (Job, Task) {
        let asked = match &deed {
            Deed::Lease(_) => self.book.lock().expect("plain").places.moment(),
            Deed::Settle(_, token, action, _) => {
                self.book.lock().expect("plain").places.settling(token, *action)
            }
        };
        let job = Job { deed, asked };
        let process = node.process;
        let task = match &job.deed {
            Deed::Lease(workers) => {
                self.world.tell(process, format!("workers {workers:?} ask"));
                Task::new("lease", &self.world, self.clone().lease(node, workers.clone(), job.clone()))
            }
            Deed::Settle(who, token, action, _) => {
                let (number, uid) = (token.giving, token.uid.0.simple());
                let what = action.word();
                self.world.tell(process, format!("{} says {what} of {uid} {number}", name(*who)));
                Task::new("settle", &self.world, self.clone().settle(node, job.clone()))
            }
        };
        (job, task)
    }

    fn asking(&self, who: usize) -> Asking {
        let world = &self.world;
        let groups = if who < IN_GROUP { vec![GROUP.to_owned()] } else { Vec::new() };
        let redo = world.one_in(4);
        let known = self.book.lock().expect("plain").places.uids();
        let excluded = !redo && !known.is_empty() && world.one_in(8);
        let exclude: HashSet<Uid> =
            excluded.then(|| known[at_random(world, known.len())]).into_iter().collect();
        Asking {
            worker: name(who),
            groups,
            most: at_random(world, 3) + 1,
            lease: Some(Span::from_duration(Duration::from_millis(world.pick(600..2500) as u64))),
            exclude,
            redo,
        }
    }

    fn lease(self, node: &Node, workers: Vec<usize>, job: Job) -> impl Future<Output = i64> + 'static {
        let (writer, name, process) = (node.writer.clone(), node.name.clone(), node.process);
        let asking: Vec<Asker> =
            workers.iter().map(|who| self.asking(*who).of(Namespace::OWN, QUEUE)).collect();
        async move {
            for asking in asking.iter().filter(|asking| asking.redo) {
                self.book.lock().expect("plain").places.asking_again(&asking.worker);
            }
            let answer = writer.lease(Namespace::OWN, QUEUE, &asking, &name, &mut Turn::default()).await;
            let is_well = self.crew.lock().expect("plain").is_well;
            let Ok(answer) = answer else {
                self.unanswered(job);
                return 0;
            };
            if answer.in_doubt.is_some() {
                // As the desk does.
                let items: Vec<_> = answer.given.into_iter().flatten().collect();
                writer.apply(&taken_back(&items)).await;
                self.unanswered(job);
                return 0;
            }
            for ((who, asking), items) in workers.iter().zip(&asking).zip(answer.given) {
                if !items.is_empty() && !is_well && self.world.one_in(12) {
                    // The answer cannot be written, as when the worker has gone.
                    self.world.tell(process, format!("{} is not told of {}", asking.worker, items.len()));
                    self.book.lock().expect("plain").places.unheard();
                    writer.apply(&taken_back(&items)).await;
                    continue;
                }
                let mut book = self.book.lock().expect("plain");
                book.places.answered(asking, job.asked, &items);
                items.iter().for_each(|item| book.places.given(asking, job.asked, item));
                drop(book);
                let mut crew = self.crew.lock().expect("plain");
                items.iter().for_each(|item| crew.plan(&self.world, *who, item));
            }
            self.crew.lock().expect("plain").ends(&self.world, &job.deed);
            0
        }
    }

    fn settle(self, node: &Node, job: Job) -> impl Future<Output = i64> + 'static {
        let (writer, process) = (node.writer.clone(), node.process);
        async move {
            let Deed::Settle(_, token, action, _) = job.deed else { return 0 };
            let settlement = Settlement { token, lane: lane(Namespace::OWN, QUEUE), action, result: None };
            let change = Change { uid: token.uid, caller: None, event: ChangeEvent::Settle(settlement) };
            let settled = match writer.apply(&[change]).await.remove(0) {
                Ok(Applied::Live(_, Answer::Done)) => Settled::Done,
                Ok(Applied::Live(_, Answer::Stale) | Applied::NotLive) => Settled::LeaseLost,
                Ok(other) => {
                    self.world.wrong(format!("a settlement is answered {other:?}"));
                    return 0;
                }
                Err(_) => {
                    self.unanswered(job);
                    return 0;
                }
            };
            self.world.tell(process, format!("{} is answered {settled:?}", action.word()));
            self.book.lock().expect("plain").places.settled(&token, action, job.asked, settled);
            self.crew.lock().expect("plain").ends(&self.world, &job.deed);
            0
        }
    }

    /// No answer came, and none will.
    pub fn unanswered(&self, job: Job) {
        let mut book = self.book.lock().expect("plain");
        match &job.deed {
            Deed::Lease(_) => book.places.unheard(),
            Deed::Settle(_, token, action, _) => {
                book.places.settled(token, *action, job.asked, Settled::Unknown);
            }
        }
        drop(book);
        let mut crew = self.crew.lock().expect("plain");
        crew.ends(&self.world, &job.deed);
        if let Deed::Settle(who, token, action, tries @ 1..) = job.deed {
            let at = self.world.now() + self.world.pick(50..600);
            crew.workers[who].plans.push((at, token, action, tries - 1));
        }
    }

    /// Nobody can be asked now.
    pub fn put_off(&self, deed: Deed) {
        let mut crew = self.crew.lock().expect("plain");
        crew.ends(&self.world, &deed);
        if let Deed::Settle(who, token, action, tries) = deed {
            let at = self.world.now() + self.world.pick(50..600);
            crew.workers[who].plans.push((at, token, action, tries));
        }
    }
}

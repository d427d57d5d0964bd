//! Those who keep the schedules of a run: they write them, change, pause, resume and remove them, and have made what was
//! skipped. Each schedule has one, who asks one thing at a time, again and again until it is answered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::cold::{Backfilled, Content, NewTimer, ScheduleEdit, SchedulePut, ScheduleRow};
use mainspring::model::id::digest16;
use mainspring::model::policy::{Policies, Retry};
use mainspring::model::schedule::{Missed, MissedPolicy, Overlap, Plan, ScheduleState, Timing, When};
use mainspring::model::time::{Span, UnixMs};
use mainspring::schedule::reach;

use super::book::Book;
use super::clients::target;
use super::node::{Node, Task};
use super::run::WINDOW_MS;
use super::world::World;
use crate::support::new_timer;

/// How many schedules a run has: one of each kind of overlap.
const SCHEDULES: usize = Overlap::ALL.len();

/// What one asks of a schedule.
#[derive(Debug, Clone)]
pub enum Wish {
    /// To be this from now on.
    Put(Box<ScheduleEdit>),
    Pause,
    Resume,
    Remove,
    /// To make what was skipped from the first of these to the second.
    Backfill(UnixMs, UnixMs),
}

impl Wish {
    const fn name(&self) -> &'static str {
        match self {
            Self::Put(_) => "planner put",
            Self::Pause => "planner pause",
            Self::Resume => "planner resume",
            Self::Remove => "planner remove",
            Self::Backfill(..) => "planner backfill",
        }
    }
}

/// A wish, and since when it is asked.
#[derive(Debug, Clone)]
pub struct Order {
    which: usize,
    wish: Wish,
    asked_at: i64,
}

/// What an order was answered.
enum Answer {
    Is(Box<ScheduleRow>),
    IsGone,
    IsMade,
}

/// How a schedule is, as far as its planner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Absent,
    Active,
    Paused,
    /// It was told when it ends.
    Ends,
}

/// Who keeps one schedule.
#[derive(Debug)]
struct Planner {
    stage: Stage,
    missed: Missed,
    overlap: Overlap,
    is_busy: bool,
    asks_at: i64,
    again: Option<Order>,
}

/// All of them.
pub struct Planners {
    all: Vec<Planner>,
    /// Nobody begins anything.
    pub rests: bool,
    /// Every schedule is to end.
    ends: bool,
}

/// The id of a schedule.
fn id(which: usize) -> String {
    format!("s{which}")
}

impl Planners {
    /// Without schedules there is nobody.
    pub fn new(has_schedules: bool, world: &World) -> Self {
        let count = if has_schedules { SCHEDULES } else { 0 };
        let planner = |which: usize| Planner {
            stage: Stage::Absent,
            missed: missed(world),
            overlap: Overlap::ALL[which],
            is_busy: false,
            asks_at: 0,
            again: None,
        };
        Self { all: (0..count).map(planner).collect(), rests: true, ends: false }
    }

    /// From now on every schedule is resumed and told its end.
    pub fn end(&mut self, now: i64) {
        self.ends = true;
        self.all.iter_mut().for_each(|one| one.asks_at = one.asks_at.min(now));
    }

    /// Whether nobody wants anything any more.
    pub fn are_done(&self) -> bool {
        let is_done = |one: &Planner| !one.is_busy && matches!(one.stage, Stage::Absent | Stage::Ends);
        self.all.iter().all(|one| is_done(one) && one.again.is_none())
    }

    /// When somebody does something.
    pub fn next_at(&self) -> Option<i64> {
        let idle = self.all.iter().filter(|one| !self.rests && !one.is_busy);
        idle.map(|one| one.asks_at).min().filter(|at| *at < i64::MAX)
    }

    /// What somebody asks now.
    pub fn next(&mut self, world: &World) -> Option<Order> {
        let now = world.now();
        if self.rests {
            return None;
        }
        let which = self.all.iter().position(|one| !one.is_busy && one.asks_at <= now)?;
        let ends = self.ends;
        let one = &mut self.all[which];
        let order = one.again.take().or_else(|| {
            let wish = if ends { one.last_wish(which, world) } else { one.wish(which, world) };
            wish.map(|wish| Order { which, wish, asked_at: now })
        });
        one.is_busy = order.is_some();
        one.asks_at = match (&order, ends) {
            (None, true) => i64::MAX,
            _ => now + world.pick(600..3500),
        };
        order
    }

    /// It was answered so.
    fn answered(&mut self, order: &Order, answer: &Answer, world: &World) {
        let one = &mut self.all[order.which];
        one.is_busy = false;
        one.asks_at = world.now() + if self.ends { 1 } else { world.pick(500..5000) };
        match answer {
            Answer::Is(row) if row.plan.end_at.is_some() => one.stage = Stage::Ends,
            Answer::Is(row) if row.state == ScheduleState::Paused => one.stage = Stage::Paused,
            Answer::Is(_) => one.stage = Stage::Active,
            Answer::IsGone => one.stage = Stage::Absent,
            Answer::IsMade => {}
        }
    }

    /// No answer came, or nobody could be asked: it is asked again.
    pub fn unanswered(&mut self, order: Order, world: &World) {
        let one = &mut self.all[order.which];
        one.is_busy = false;
        one.asks_at = world.now() + world.pick(50..600);
        one.again = Some(order);
    }
}

impl Planner {
    fn wish(&self, which: usize, world: &World) -> Option<Wish> {
        let (is_new, is_paused) = (self.stage == Stage::Absent, self.stage == Stage::Paused);
        match world.pick(0..100) {
            n if is_new => (n < 90).then(|| self.put(which, None, world)),
            0..45 if is_paused => Some(Wish::Resume),
            0..30 => Some(Wish::Pause),
            30..60 => Some(self.put(which, None, world)),
            60..85 => {
                let now = world.now();
                let from = now - world.pick(0..20_000);
                Some(Wish::Backfill(UnixMs::new(from), UnixMs::new(world.pick(from..now + 2000))))
            }
            85..92 => Some(Wish::Remove),
            _ => None,
        }
    }

    /// What leads to its end.
    fn last_wish(&self, which: usize, world: &World) -> Option<Wish> {
        match self.stage {
            Stage::Absent | Stage::Ends => None,
            Stage::Paused => Some(Wish::Resume),
            Stage::Active => Some(self.put(which, Some(world.now() + world.pick(1..3000)), world)),
        }
    }

    /// A rule of a few seconds, and the same policies as ever.
    fn put(&self, which: usize, end_at: Option<i64>, world: &World) -> Wish {
        let now = world.now();
        let when = match world.pick(0..3) {
            0 => When::Cron(format!("*/{} * * * * *", world.pick(2..4))),
            _ => When::Every(Span::from_duration(Duration::from_millis(
                world.pick(10..35).unsigned_abs() * 100,
            ))),
        };
        let has_start = end_at.is_none() && world.one_in(3);
        let start_at = UnixMs::new(now + if has_start { world.pick(-3000..1500) } else { 0 });
        let timing = Timing { when, zone: "UTC".into(), start_at };
        let (missed, overlap) = (self.missed, self.overlap);
        let plan = Plan { timing, end_at: end_at.map(UnixMs::new), max_occurrences: None, missed, overlap };
        let content = Content::of(&content(which, now));
        let request = serde_json::to_string(&plan).expect("JSON");
        Wish::Put(Box::new(ScheduleEdit {
            id: id(which),
            plan,
            has_start,
            content,
            fitted: None,
            request_hash: digest16(&[request.as_bytes()]),
            request,
            if_version: None,
        }))
    }
}

fn missed(world: &World) -> Missed {
    let policy = MissedPolicy::ALL[usize::try_from(world.pick(0..3)).expect("small")];
    let within = if world.one_in(2) { 3600 } else { 68 };
    Missed { policy, within: Span::from_duration(Duration::from_secs(within)) }
}

/// What each occurrence is.
fn content(which: usize, now: i64) -> NewTimer {
    let span = |ms| Span::from_duration(Duration::from_millis(ms));
    let retry = Retry { attempts: 100, first: span(300), cap: span(1000) };
    NewTimer {
        target: target(u32::try_from(which).expect("few")),
        policies: Policies { retry: Some(retry), ..Policies::default() },
        ..new_timer("content", UnixMs::new(now), UnixMs::new(now))
    }
}

/// Everything that planners need.
#[derive(Clone)]
pub struct Office {
    pub world: Arc<World>,
    pub book: Arc<Mutex<Book>>,
    pub planners: Arc<Mutex<Planners>>,
}

impl Office {
    /// Asks through this node.
    pub fn ask(&self, node: &Node, order: Order) -> Task {
        let this = self.clone();
        let (writer, process, id) = (node.writer.clone(), node.process, id(order.which));
        self.world.tell(process, format!("{} {id}: {:?}", order.wish.name(), order.wish));
        if let Wish::Put(edit) = &order.wish {
            self.book.lock().expect("plain").recurring.putting(&id, &edit.plan);
        }
        Task::new(order.wish.name(), &self.world.clone(), async move {
            let reach = reach(Duration::from_millis(WINDOW_MS.unsigned_abs()));
            let strange = |what: String| this.world.wrong(format!("{id}: {what}"));
            let answer = match &order.wish {
                Wish::Put(edit) => match writer.put_schedule(edit, reach).await {
                    Ok(SchedulePut::Done(row, _) | SchedulePut::Same(row)) => Some(Answer::Is(row)),
                    Ok(other) => {
                        strange(format!("a schedule is answered {other:?}"));
                        None
                    }
                    Err(_) => None,
                },
                Wish::Pause | Wish::Resume => {
                    let paused = matches!(order.wish, Wish::Pause);
                    match writer.pause_schedule(&id, paused, reach).await {
                        Ok(Some(row)) => Some(Answer::Is(Box::new(row))),
                        Ok(None) => {
                            strange("it is gone, and nobody has removed it".into());
                            None
                        }
                        Err(_) => None,
                    }
                }
                Wish::Remove => writer.remove_schedule(&id).await.ok().map(|_| Answer::IsGone),
                Wish::Backfill(from, to) => {
                    let began = this.world.now();
                    match writer.backfill(&id, *from, *to).await {
                        Ok(Backfilled::Done(..)) => {
                            let range = (from.get(), to.get());
                            let mut book = this.book.lock().expect("plain");
                            book.recurring.backfilled(&id, range, began, this.world.now());
                            Some(Answer::IsMade)
                        }
                        Ok(other) => {
                            strange(format!("a backfill is answered {other:?}"));
                            None
                        }
                        Err(_) => None,
                    }
                }
            };
            this.world.tell(process, format!("{} is answered: {}", order.wish.name(), answer.is_some()));
            let mut planners = this.planners.lock().expect("plain");
            let Some(answer) = answer else {
                planners.unanswered(order, &this.world);
                return 0;
            };
            planners.answered(&order, &answer, &this.world);
            let mut book = this.book.lock().expect("plain");
            match answer {
                Answer::Is(row) => book.recurring.is_now(&row),
                Answer::IsGone => book.recurring.removed(&id, order.asked_at, this.world.now()),
                Answer::IsMade => {}
            }
            0
        })
    }
}

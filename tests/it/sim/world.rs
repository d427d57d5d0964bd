//! What all of a run's nodes live in: time, chance and the trace.
//!
//! Nothing here runs by itself. Time stands until the run turns it; chance comes from the seed alone; a call
//! that is held at the gate goes on when the run says so. So one seed is one run.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::clock::Monotonic;
use mainspring::model::time::UnixMs;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// How a run is watched, which must not change it.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// Of how many of the latest steps it tells.
    pub told: usize,
    /// Looks for the database's answers all the time, and is woken late.
    pub hasty: bool,
}

/// How often something happens at the gate, in ten thousand passages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// The call waits while others go on.
    pub hold: u32,
    /// A statement fails and did nothing.
    pub fail: u32,
    /// A statement's answer is lost.
    pub lose: u32,
    /// A wheel's call fails and did nothing.
    pub wheel_fail: u32,
    /// A wheel's answer is lost.
    pub wheel_lose: u32,
    /// A wheel's call is made twice.
    pub wheel_repeat: u32,
    /// The process dies here.
    pub crash: u32,
}

/// One start of a node.
#[derive(Debug)]
struct Process {
    name: String,
    alive: bool,
    paused: bool,
    /// When something last went wrong with it.
    disturbed_at: i64,
}

struct Sleeper {
    at: i64,
    process: usize,
    waker: Waker,
}

enum Step {
    Call(&'static str),
    Told(String),
}

struct Inner {
    now: i64,
    rng: SmallRng,
    odds: Odds,
    digest: u64,
    tail: VecDeque<(i64, usize, Step)>,
    watch: Watch,
    processes: Vec<Process>,
    sleepers: Vec<Sleeper>,
    /// A statement is with the database, so the one who made it is waited for.
    busy: bool,
    /// It is done, and the one who made it has not gone on yet.
    answered: bool,
    /// A transaction is open: the process that has it.
    writer: Option<usize>,
    crashed: Option<usize>,
    epochs_moved: bool,
    wheels_away: bool,
    wrong: Option<String>,
}

/// The world of one run.
pub struct World(Mutex<Inner>);

impl World {
    pub fn new(seed: u64, start: UnixMs, watch: Watch) -> Arc<Self> {
        let world = Self(Mutex::new(Inner {
            now: start.get(),
            rng: SmallRng::seed_from_u64(seed),
            odds: Odds::default(),
            digest: 0xcbf2_9ce4_8422_2325,
            tail: VecDeque::new(),
            watch,
            processes: Vec::new(),
            sleepers: Vec::new(),
            busy: false,
            answered: false,
            writer: None,
            crashed: None,
            epochs_moved: false,
            wheels_away: false,
            wrong: None,
        }));
        Monotonic::turn(monotonic(start.get()));
        Arc::new(world)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("plain data")
    }

    pub fn now(&self) -> i64 {
        self.lock().now
    }

    /// Turns both kinds of time, and wakes who slept until then and is not paused.
    pub fn turn(&self, to: i64) {
        let mut inner = self.lock();
        inner.now = to.max(inner.now);
        Monotonic::turn(monotonic(inner.now));
        inner.wake_sleepers();
    }

    /// When the next sleeper that is not paused wakes.
    pub fn next_waking(&self) -> Option<i64> {
        let inner = self.lock();
        let awake = inner.sleepers.iter().filter(|one| inner.processes[one.process].runs());
        awake.map(|one| one.at).min()
    }

    pub fn pick(&self, from: std::ops::Range<i64>) -> i64 {
        self.lock().rng.random_range(from)
    }

    /// A new rank for a task.
    pub fn rank(&self) -> i64 {
        self.pick(0..1_000_000)
    }

    pub fn one_in(&self, n: u32) -> bool {
        self.lock().rng.random_ratio(1, n)
    }

    pub fn set_odds(&self, odds: Odds) {
        self.lock().odds = odds;
    }

    pub fn set_wheels_away(&self, away: bool) {
        self.lock().wheels_away = away;
    }

    /// Adds a line to the trace.
    pub fn tell(&self, process: usize, what: String) {
        self.lock().note(process, Step::Told(what));
    }

    /// A rule is broken: the run ends here.
    pub fn wrong(&self, what: String) {
        let mut inner = self.lock();
        inner.note(usize::MAX, Step::Told(format!("WRONG: {what}")));
        inner.wrong.get_or_insert(what);
    }

    pub fn is_wrong(&self) -> Option<String> {
        self.lock().wrong.clone()
    }

    pub fn digest(&self) -> u64 {
        self.lock().digest
    }

    /// The end of the trace, as text.
    pub fn tail(&self) -> String {
        let inner = self.lock();
        let first = inner.tail.front().map_or(0, |(at, ..)| *at);
        let line = |(at, process, step): &(i64, usize, Step)| {
            let who = inner.processes.get(*process).map_or("-", |process| process.name.as_str());
            match step {
                Step::Call(name) => format!("{:>7} ms  {who:8} {name}\n", at - first),
                Step::Told(what) => format!("{:>7} ms  {who:8} {what}\n", at - first),
            }
        };
        inner.tail.iter().map(line).collect()
    }

    /// A process starts; its number.
    pub fn starts(&self, name: &str) -> usize {
        let mut inner = self.lock();
        let name = format!("{name}/{}", inner.processes.len());
        inner.processes.push(Process { name, alive: true, paused: false, disturbed_at: i64::MIN });
        inner.processes.len() - 1
    }

    pub fn dies(&self, process: usize) {
        let mut inner = self.lock();
        inner.processes[process].alive = false;
        inner.disturb(process);
        inner.note(process, Step::Told("dies".into()));
    }

    pub fn pauses(&self, process: usize, paused: bool) {
        let mut inner = self.lock();
        inner.processes[process].paused = paused;
        inner.disturb(process);
        inner.note(process, Step::Told(if paused { "pauses" } else { "goes on" }.into()));
        inner.wake_sleepers();
    }

    pub fn disturb(&self, process: usize) {
        self.lock().disturb(process);
    }

    pub fn disturbed_at(&self, process: usize) -> i64 {
        self.lock().processes[process].disturbed_at
    }

    pub fn runs(&self, process: usize) -> bool {
        self.lock().processes[process].runs()
    }

    pub fn is_alive(&self, process: usize) -> bool {
        self.lock().processes[process].alive
    }

    pub fn is_hasty(&self) -> bool {
        self.lock().watch.hasty
    }

    pub fn is_busy(&self) -> bool {
        self.lock().busy
    }

    /// A statement goes to the database.
    pub fn goes_in(&self, process: usize, name: &'static str) {
        let mut inner = self.lock();
        inner.note(process, Step::Call(name));
        inner.busy = true;
    }

    /// It is done. The one who made it goes on when this was seen.
    pub async fn comes_out(&self, name: &'static str) {
        {
            let mut inner = self.lock();
            inner.busy = false;
            inner.answered = true;
            inner.epochs_moved |= matches!(name, "take_over" | "give_up");
        }
        self.stand().await;
    }

    /// Whether the database has answered since this was asked last.
    pub fn has_answered(&self) -> bool {
        std::mem::take(&mut self.lock().answered)
    }

    pub fn set_writer(&self, process: Option<usize>) {
        self.lock().writer = process;
    }

    /// The process whose transaction is open.
    pub fn writer(&self) -> Option<usize> {
        self.lock().writer
    }

    /// The process that has just died at the gate.
    pub fn crashed(&self) -> Option<usize> {
        self.lock().crashed.take()
    }

    /// Whether a statement has run that may have moved epochs, since this was asked last.
    pub fn epochs_moved(&self) -> bool {
        std::mem::take(&mut self.lock().epochs_moved)
    }

    /// Sleeps, as this process does: one that is paused does not wake.
    pub fn sleep(self: &Arc<Self>, process: usize, by: Duration) -> BoxFuture<'static, ()> {
        let world = Arc::clone(self);
        let at = self.now() + i64::try_from(by.as_millis()).unwrap_or(i64::MAX / 2).max(1);
        Box::pin(poll_fn(move |cx| {
            let mut inner = world.lock();
            if inner.now >= at && inner.processes[process].runs() {
                return Poll::Ready(());
            }
            inner.sleepers.push(Sleeper { at, process, waker: cx.waker().clone() });
            Poll::Pending
        }))
    }

    /// Gives the run back its say; goes on when it chooses this task again.
    pub async fn stand(&self) {
        let mut stood = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut stood, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    pub async fn hold(&self) {
        while self.chance(|odds| odds.hold) {
            self.stand().await;
        }
    }

    fn chance(&self, of: fn(&Odds) -> u32) -> bool {
        let mut inner = self.lock();
        let odds = of(&inner.odds);
        odds > 0 && inner.rng.random_range(0..10_000) < odds
    }

    /// A process that dies here is never heard of again.
    pub async fn live(&self, process: usize) {
        if self.chance(|odds| odds.crash) {
            self.lock().crashed = Some(process);
            self.dies(process);
        }
        if !self.lock().processes[process].alive {
            std::future::pending::<()>().await;
        }
    }

    /// Whether a call of the wheels comes to nothing.
    pub async fn before_wheels(&self, process: usize, name: &'static str) -> bool {
        self.hold().await;
        self.live(process).await;
        self.lock().note(process, Step::Call(name));
        self.lock().wheels_away || self.goes_wrong(process, name, "fails", |odds| odds.wheel_fail)
    }

    /// Whether the answer of a call of the wheels is lost.
    pub async fn after_wheels(&self, process: usize, name: &'static str) -> bool {
        self.hold().await;
        self.live(process).await;
        self.goes_wrong(process, name, "answer lost", |odds| odds.wheel_lose)
    }

    pub fn repeats_wheels(&self) -> bool {
        self.chance(|odds| odds.wheel_repeat)
    }

    pub fn goes_wrong(&self, process: usize, name: &str, how: &str, of: fn(&Odds) -> u32) -> bool {
        let wrong = self.chance(of);
        if wrong {
            let mut inner = self.lock();
            inner.disturb(process);
            inner.note(process, Step::Told(format!("{name}: {how}")));
        }
        wrong
    }
}

impl Inner {
    fn note(&mut self, process: usize, step: Step) {
        let name = match &step {
            Step::Call(name) => name.as_bytes(),
            Step::Told(what) => what.as_bytes(),
        };
        let (now, process_bytes) = (self.now.to_le_bytes(), process.to_le_bytes());
        for byte in now.iter().chain(&process_bytes).chain(name) {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.tail.len() == self.watch.told {
            self.tail.pop_front();
        }
        self.tail.push_back((self.now, process, step));
    }

    fn disturb(&mut self, process: usize) {
        self.processes[process].disturbed_at = self.now;
    }

    /// In the order in which they lay down.
    fn wake_sleepers(&mut self) {
        let (now, processes) = (self.now, &self.processes);
        self.sleepers.retain(|one| {
            let wakes = one.at <= now && processes[one.process].runs();
            if wakes {
                one.waker.wake_by_ref();
            }
            !wakes
        });
    }
}

impl Process {
    const fn runs(&self) -> bool {
        self.alive && !self.paused
    }
}

/// So long after the machine's start, which was long ago.
fn monotonic(now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now).expect("after 1970"))
}

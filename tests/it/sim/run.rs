//! One run: from a seed to a verdict.
//!
//! A run has three times. In the first all is well, but for the order in which things happen. In the second
//! things go wrong, of the kind that the seed picks; a calm run has none. Then all is healed, and time moves on
//! until every timer has ended.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use mainspring::clock::ManualClock;
use mainspring::cold::ColdStore;
use mainspring::config::Config;
use mainspring::dispatch::webhook::Sender;
use mainspring::metrics::Metrics;
use mainspring::model::time::UnixMs;
use mainspring::planted::Defect;
use mainspring::wheel::Snapshot;

use super::book::{Book, Calm};
use super::clients::{Ask, Clients, Desk};
use super::faults::{Fault, Kind, odds, plan};
use super::node::{Common, Node, Task};
use super::receiver::{Mood, Receivers};
use super::wheels::Server;
use super::world::World;

pub const SHARDS: u16 = 4;
pub const WINDOW_MS: i64 = 6000;

/// How long the first time lasts, and the second.
pub const WELL_MS: i64 = 5000;
pub const ILL_MS: i64 = 6000;

/// By then after the healing every wheel turns.
const HEALED_MS: i64 = 8000;

/// By then after the healing every timer has ended.
const PATIENCE_MS: i64 = 60_000;

/// What a run comes to.
pub struct Verdict {
    pub digest: u64,
    pub arrivals: usize,
    pub steps: usize,
    /// The broken rule, and the end of the trace.
    pub wrong: Option<(String, String)>,
}

/// The settings of a run.
fn config(file: &str, long_lead: bool, planted: Option<Defect>) -> Config {
    let sets = [
        format!("cold.url=sqlite://{file}"),
        format!("shards={SHARDS}"),
        "lease=PT3S".into(),
        format!("wheel.window=PT{}S", WINDOW_MS / 1000),
        "wheel.near=PT2S".into(),
        format!("wheel.lead=PT{}S", if long_lead { 0.5 } else { 0.05 }),
        "webhook.timeout=PT1S".into(),
    ];
    let mut config = Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).expect("settings");
    config.planted = planted;
    config
}

/// What all runs of this process share: a place, an empty store to copy, and what takes long to make.
struct Ground {
    place: tempfile::TempDir,
    empty: PathBuf,
    metrics: Metrics,
    sender: Sender,
}

fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        crate::support::init();
        // In memory, where there is such a place: nothing here has to outlive the process.
        let memory = std::path::Path::new("/dev/shm");
        let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let place = place.expect("a folder");
        let empty = place.path().join("empty.db");
        let config = Arc::new(config(empty.to_str().expect("a plain path"), false, None));
        let clock = ManualClock::new(UnixMs::new(0));
        let store = ColdStore::open(&config, clock, true, false).expect("opens");
        let sender = Sender::new(&config, store.clock().clone()).expect("a client");
        runtime().block_on(async {
            store.prepare().await.expect("prepares");
            store.close().await;
        });
        Ground { place, empty, metrics: Metrics::new().expect("series"), sender }
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Runs one seed on this thread.
pub fn run(seed: u64, planted: Option<Defect>) -> Verdict {
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let ground = ground();
    let number = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = ground.place.path().join(format!("{number}.db"));
    std::fs::copy(&ground.empty, &file).expect("copies");
    let runtime = runtime();
    let verdict = runtime.block_on(tokio::task::unconstrained(async {
        let config = Arc::new(config(file.to_str().expect("a plain path"), seed % 2 == 0, planted));
        let mut run = Run::new(seed, config, ground);
        run.go().await;
        run.close().await
    }));
    drop(runtime);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    verdict
}

/// Where a node can run.
struct Seat {
    node: Option<Node>,
    /// When it starts (again), or goes on.
    until: Option<i64>,
}

/// A call of a client that is under way.
struct Call {
    process: usize,
    ask: Ask,
    task: Task,
}

/// What can be done next.
enum Choice {
    Begin(usize, usize),
    Duty(usize, usize),
    Loop(usize, usize),
    Call(usize),
}

struct Run {
    kind: Kind,
    world: Arc<World>,
    common: Common,
    clients: Clients,
    mood: Arc<Mutex<Mood>>,
    seats: Vec<Seat>,
    calls: Vec<Call>,
    faults: Vec<(i64, Fault)>,
    snapshots: Vec<(i64, Snapshot)>,
    next_ask: i64,
    asks_left: i64,
    steps: usize,
    /// A roll-back that may have gone unnoticed explains what the sweep fires afterwards.
    unnoticed: bool,
    /// Timers may be due far beyond the window.
    far: bool,
    /// The wheels turn, and nothing has gone wrong yet.
    settled: bool,
}

impl Run {
    fn new(seed: u64, config: Arc<Config>, ground: &Ground) -> Self {
        let kind = Kind::of(seed);
        // Somewhere in a minute, so that runs cross its end at different times.
        let start = UnixMs::new(1_800_000_000_000 + (seed % 60) as i64 * 1000 + (seed % 997) as i64);
        let world = World::new(seed, start);
        let clock = Arc::new(super::world::Door { world: Arc::clone(&world), process: 0 });
        let store = ColdStore::open(&config, clock, true, false).expect("opens");
        let book = Arc::new(Mutex::new(Book::new(Arc::clone(&world))));
        let clients = Clients {
            world: Arc::clone(&world),
            book,
            desk: Arc::new(Mutex::new(Desk::default())),
            metrics: ground.metrics.clone(),
        };
        let common = Common {
            world: Arc::clone(&world),
            config,
            store,
            server: Arc::new(Server::default()),
            metrics: ground.metrics.clone(),
            sender: ground.sender.clone(),
        };
        world.set_odds(odds(None));
        let seats = 2 + usize::from(seed % 3 == 0);
        Self {
            kind,
            common,
            clients,
            mood: Arc::new(Mutex::new(Mood { fails: 8, hangs: 4, lost: 3, refuses: 3 })),
            seats: (0..seats).map(|_| Seat { node: None, until: Some(0) }).collect(),
            calls: Vec::new(),
            faults: Vec::new(),
            snapshots: Vec::new(),
            next_ask: i64::MAX,
            asks_left: 0,
            steps: 0,
            unnoticed: false,
            far: true,
            settled: false,
            world,
        }
    }

    async fn close(self) -> Verdict {
        let Self { world, common, clients, steps, seats, calls, .. } = self;
        drop((seats, calls));
        common.store.close().await;
        let wrong = world.is_wrong().map(|what| (what, world.tail()));
        let arrivals = clients.book.lock().expect("plain").arrivals;
        Verdict { digest: world.digest(), arrivals, steps, wrong }
    }

    async fn go(&mut self) {
        let start = self.world.now();
        if !self.until(start + 20_000, Self::is_still).await {
            return self.world.wrong("the wheels never turn".into());
        }
        let well = self.world.now();
        self.settled = true;
        self.ask(if self.kind == Kind::Calm { 50 } else { 35 });
        self.until(well + WELL_MS, |_| false).await;
        self.far = false;
        if self.kind != Kind::Calm {
            self.next_ask = i64::MAX;
            // What was written while all was well has come to rest.
            self.until(well + WELL_MS + 3000, Self::is_at_rest).await;
            self.make_ill().await;
        }
        let healed = self.world.now();
        if !self.until(healed + HEALED_MS, Self::is_still).await {
            return self.world.wrong("the wheels do not turn again".into());
        }
        if self.kind != Kind::Calm && !self.unnoticed {
            let until = healed - ILL_MS;
            let again = self.world.now() + 2000;
            self.clients.book.lock().expect("plain").set_calm(Calm { until, again });
        }
        self.ask(self.asks_left.max(6));
        let patience = self.world.now() + PATIENCE_MS;
        while self.world.is_wrong().is_none() {
            let next = self.world.now() + 1000;
            self.until(next, |_| false).await;
            if self.asks_left == 0
                && !self.clients.desk.lock().expect("plain").is_busy()
                && self.pending().await == 0
            {
                break;
            }
            if self.world.now() > patience {
                return self.world.wrong("timers are still waiting".into());
            }
        }
        self.audit().await;
    }

    /// Clients ask so often from now on.
    fn ask(&mut self, asks: i64) {
        self.asks_left = asks;
        self.next_ask = self.world.now();
    }

    async fn make_ill(&mut self) {
        let now = self.world.now();
        self.settled = false;
        self.clients.book.lock().expect("plain").set_calm(Calm { until: now, again: i64::MAX });
        self.world.set_odds(odds(Some(self.kind)));
        self.faults = plan(self.kind, &self.world, self.seats.len());
        *self.mood.lock().expect("plain") = Mood { fails: 8, hangs: 15, lost: 5, refuses: 3 };
        self.ask(24);
        self.until(now + ILL_MS, |_| false).await;
        self.world.set_odds(odds(None));
        self.world.set_wheels_away(false);
        *self.mood.lock().expect("plain") = Mood { fails: 3, ..Mood::default() };
        self.faults.clear();
        let now = self.world.now();
        for seat in &mut self.seats {
            seat.until = seat.until.map(|until| until.min(now));
        }
        let loops = self.seats.iter_mut().filter_map(|seat| seat.node.as_mut());
        loops.for_each(Node::let_go);
        self.calls.iter_mut().for_each(|call| call.task.held_until = 0);
        self.world.tell(usize::MAX, "all is healed".into());
    }

    /// Whether every shard has an owner whose wheels turn.
    fn is_still(&self) -> bool {
        let nodes: Vec<&Node> = self.seats.iter().filter_map(|seat| seat.node.as_ref()).collect();
        let owned: usize = nodes.iter().map(|node| node.ownership.claimable().len()).sum();
        nodes.len() == self.seats.len()
            && owned == usize::from(SHARDS)
            && nodes.iter().all(|node| node.is_still() && node.ownership.count() <= 2)
    }

    /// Whether nothing is under way.
    fn is_at_rest(&self) -> bool {
        let now = self.world.now();
        let nodes = self.seats.iter().filter_map(|seat| seat.node.as_ref());
        self.calls.is_empty() && nodes.into_iter().all(|node| !node.is_restless(now)) && self.is_still()
    }

    /// Takes steps until that moment or that state; tells whether the state came.
    async fn until(&mut self, end: i64, state: impl Fn(&Self) -> bool) -> bool {
        while self.world.now() < end && self.world.is_wrong().is_none() {
            self.step(end).await;
            if state(self) {
                return true;
            }
        }
        false
    }

    /// One step: something that is due, or time moves on.
    async fn step(&mut self, end: i64) {
        self.steps += 1;
        self.happen().await;
        let now = self.world.now();
        let choices = self.choices(now);
        let oldest = self.oldest().unwrap_or(now);
        // While all is well nobody is held up for long.
        let moves = now - oldest < 60 || self.is_ill();
        if choices.is_empty() || (moves && self.world.one_in(40)) {
            let next = self.next_at().unwrap_or(end).clamp(now + 1, end.max(now + 1));
            let next = if choices.is_empty() { next } else { next.min(now + self.world.pick(1..40)) };
            self.world.turn(next);
            for seat in &mut self.seats {
                if let Some(node) = seat.node.as_mut().filter(|node| self.world.runs(node.process)) {
                    node.mile();
                }
            }
            return self.settle().await;
        }
        let chance = usize::try_from(self.world.pick(0..choices.len() as i64)).expect("small");
        let ranked = (0..choices.len()).max_by_key(|one| self.rank(&choices[*one])).unwrap_or(chance);
        let choice = &choices[if self.world.one_in(4) { chance } else { ranked }];
        self.take(choice).await;
        // Only these start attempts, or tell them something.
        if matches!(choice, Choice::Loop(..)) {
            self.settle().await;
        }
        if let Some(process) = self.world.crashed() {
            let back = now + self.world.pick(100..5000);
            let seat = self
                .seats
                .iter()
                .position(|seat| seat.node.as_ref().is_some_and(|node| node.process == process));
            if let Some(seat) = seat {
                self.bury(seat, back);
            }
        }
        if self.world.epochs_moved() {
            let rows = self.common.store.shard_rows(&[]).await.expect("reads");
            let epochs = rows.into_iter().map(|row| (row.shard, row.epoch.0));
            self.clients.book.lock().expect("plain").set_epochs(epochs, self.settled);
        }
    }

    fn rank(&self, choice: &Choice) -> i64 {
        let node = |seat: usize| self.seats[seat].node.as_ref().expect("offered");
        match *choice {
            Choice::Begin(..) => i64::MAX,
            Choice::Duty(seat, duty) => node(seat).duties[duty].task.as_ref().map_or(0, |task| task.rank),
            Choice::Loop(seat, one) => node(seat).loops[one].rank,
            Choice::Call(call) => self.calls[call].task.rank,
        }
    }

    fn is_ill(&self) -> bool {
        !self.faults.is_empty()
    }

    async fn take(&mut self, choice: &Choice) {
        let now = self.world.now();
        match *choice {
            Choice::Begin(seat, duty) => {
                let node = self.seats[seat].node.as_mut().expect("chosen");
                node.duties[duty].task = Some(node.begin(node.duties[duty].duty));
                Box::pin(self.take(&Choice::Duty(seat, duty))).await;
            }
            Choice::Duty(seat, duty) => {
                let node = self.seats[seat].node.as_mut().expect("chosen");
                let due = &mut node.duties[duty];
                let task = due.task.as_mut().expect("chosen");
                if let Some(wait) = task.turn(&self.world).await {
                    due.task = None;
                    due.next_at = now + wait.max(1);
                } else {
                    hold(&self.world, node.process, task, !self.faults.is_empty());
                }
                node.mile();
            }
            Choice::Loop(seat, one) => {
                let node = self.seats[seat].node.as_mut().expect("chosen");
                let task = &mut node.loops[one];
                if self.world.one_in(8) {
                    task.rank = self.world.rank();
                }
                if task.turn(&self.world).await.is_some() {
                    self.world.wrong(format!("the {} loop ended", task.name));
                } else if task.is_ready(now) {
                    hold(&self.world, node.process, task, !self.faults.is_empty());
                }
                node.mile();
            }
            Choice::Call(call) => {
                let Call { process, task, .. } = &mut self.calls[call];
                if task.turn(&self.world).await.is_some() {
                    self.calls.remove(call);
                } else {
                    hold(&self.world, *process, task, !self.faults.is_empty());
                }
            }
        }
    }

    /// Lets the attempts run that were told something.
    async fn settle(&self) {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }

    fn choices(&self, now: i64) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (place, seat) in self.seats.iter().enumerate() {
            let Some(node) = seat.node.as_ref().filter(|node| self.world.runs(node.process)) else {
                continue;
            };
            for (number, due) in node.duties.iter().enumerate() {
                match &due.task {
                    Some(task) if task.is_ready(now) => choices.push(Choice::Duty(place, number)),
                    None if due.next_at <= now => choices.push(Choice::Begin(place, number)),
                    _ => {}
                }
            }
            for (number, task) in node.loops.iter().enumerate().filter(|(_, task)| task.is_ready(now)) {
                let _ = task;
                choices.push(Choice::Loop(place, number));
            }
        }
        for (number, call) in self.calls.iter().enumerate() {
            if call.task.is_ready(now) && self.world.runs(call.process) {
                choices.push(Choice::Call(number));
            }
        }
        choices
    }

    /// Since when the one who waits longest does.
    fn oldest(&self) -> Option<i64> {
        let nodes = self.seats.iter().filter_map(|seat| seat.node.as_ref());
        let duties = nodes.flat_map(|node| node.duties.iter().filter_map(|due| due.task.as_ref()));
        duties.chain(self.calls.iter().map(|call| &call.task)).map(|task| task.since).min()
    }

    fn next_at(&self) -> Option<i64> {
        let seats = self.seats.iter().filter_map(|seat| match (&seat.node, seat.until) {
            (Some(node), None) => node.next_at(),
            (_, until) => until,
        });
        let faults = self.faults.first().map(|(at, _)| *at);
        let asks = (self.asks_left > 0).then_some(self.next_ask);
        let held = self.calls.iter().map(|call| call.task.held_until).filter(|at| *at > self.world.now());
        seats.chain(faults).chain(asks).chain(held).chain(self.world.next_waking()).min()
    }

    /// What comes at its time: faults, starts, ends of pauses, and clients.
    async fn happen(&mut self) {
        let now = self.world.now();
        while self.faults.first().is_some_and(|(at, _)| *at <= now) {
            let (_, fault) = self.faults.remove(0);
            self.befall(fault).await;
        }
        for place in 0..self.seats.len() {
            if self.seats[place].until.is_none_or(|until| until > now) {
                continue;
            }
            self.seats[place].until = None;
            match &mut self.seats[place].node {
                Some(node) => {
                    self.world.pauses(node.process, false);
                    node.mile();
                    self.settle().await;
                }
                None => self.start(place),
            }
        }
        // By steps, not by time: so that others are in the middle of something.
        if self.asks_left > 0 && (self.next_ask <= now || self.world.one_in(16)) {
            self.asks_left -= 1;
            self.next_ask = now + 400;
            let fired = self.clients.book.lock().expect("plain").fired();
            let mut desk = self.clients.desk.lock().expect("plain");
            let ask = desk.think(&self.world, WINDOW_MS, self.far, &fired);
            drop(desk);
            ask.into_iter().for_each(|ask| self.call(ask));
        } else if self.asks_left == 0 && self.world.one_in(20) {
            let ask = self.clients.desk.lock().expect("plain").next_again();
            ask.into_iter().for_each(|ask| self.call(ask));
        }
    }

    fn call(&mut self, ask: Ask) {
        let open: Vec<usize> = (0..self.seats.len())
            .filter(|place| {
                self.seats[*place].node.as_ref().is_some_and(|node| self.world.runs(node.process))
            })
            .collect();
        if open.is_empty() {
            return self.clients.desk.lock().expect("plain").unanswered(&self.world, ask);
        }
        let place = open[usize::try_from(self.world.pick(0..open.len() as i64)).expect("small")];
        let node = self.seats[place].node.as_ref().expect("open");
        let task = self.clients.ask(node, ask.clone());
        self.calls.push(Call { process: node.process, ask, task });
    }

    fn start(&mut self, place: usize) {
        let name = format!("node-{place}");
        let process = self.world.starts(&name);
        let receivers = Receivers {
            world: Arc::clone(&self.world),
            book: Arc::clone(&self.clients.book),
            mood: Arc::clone(&self.mood),
            process,
        };
        self.seats[place].node = Some(Node::start(&self.common, &name, process, Arc::new(receivers)));
        self.world.tell(process, "starts".into());
    }

    /// The node in this seat is dead; another process starts there later.
    fn bury(&mut self, place: usize, back: i64) {
        let Some(node) = self.seats[place].node.take() else { return };
        let process = node.process;
        drop(node);
        self.seats[place].until = Some(back);
        let (cut_off, calls) =
            std::mem::take(&mut self.calls).into_iter().partition(|call| call.process == process);
        self.calls = calls;
        let cut_off: Vec<Call> = cut_off;
        for Call { ask, .. } in cut_off {
            self.clients.desk.lock().expect("plain").unanswered(&self.world, ask);
        }
    }

    async fn befall(&mut self, fault: Fault) {
        let now = self.world.now();
        let server = &self.common.server;
        self.world.tell(usize::MAX, format!("{fault:?}"));
        match fault {
            Fault::Flush => server.flush(),
            Fault::Replace => server.replace(),
            Fault::Snapshot => self.snapshots.push((now, server.snapshot())),
            Fault::RollBack => {
                let beats = server.beats(SHARDS).await;
                if let Some((_, snapshot)) = self.snapshots.first() {
                    server.roll_back(snapshot);
                }
                let before = server.beats(SHARDS).await;
                // The same building, with no take forgotten: nobody can tell, and what was added is gone.
                self.unnoticed |= self.kind == Kind::All
                    || beats.iter().zip(&before).any(|pair| match pair {
                        (Some((now, beat)), Some((then, older))) => now == then && beat <= older,
                        _ => false,
                    });
            }
            Fault::WheelsGo => self.world.set_wheels_away(true),
            Fault::WheelsCome => self.world.set_wheels_away(false),
            Fault::Pause(place, ms) => {
                let node = self.seats[place].node.as_ref().filter(|node| self.world.runs(node.process));
                let Some(process) = node.map(|node| node.process) else { return };
                // Whoever has SQLite's one writer would stop everybody.
                if self.world.writer() == Some(process) {
                    return self.faults.insert(0, (now + 1, fault));
                }
                self.world.pauses(process, true);
                self.seats[place].until = Some(now + ms);
            }
            Fault::Crash(place, ms) => {
                let Some(process) = self.seats[place].node.as_ref().map(|node| node.process) else { return };
                self.world.dies(process);
                self.bury(place, now + ms);
            }
        }
    }

    async fn pending(&self) -> i64 {
        self.common.store.pending().await.expect("reads")
    }

    /// The end: every timer that a client knows has ended, and truly.
    async fn audit(&self) {
        if self.world.is_wrong().is_some() {
            return;
        }
        let store = &self.common.store;
        let book = self.clients.book.lock().expect("plain").uids();
        let rows = store.find_many(&book).await.expect("reads");
        let known = self.clients.book.lock().expect("plain");
        book.iter().for_each(|uid| known.ended(*uid, rows.get(uid)));
        drop(known);
        let verification = store.verify().await.expect("reads");
        if !verification.balanced || !verification.mismatches.is_empty() {
            self.world.wrong(format!("the ledger does not add up: {verification:?}"));
        }
    }
}

/// A task that stands at the gate may be held up there for long, when things go wrong.
fn hold(world: &World, process: usize, task: &mut Task, ill: bool) {
    if ill && world.writer() != Some(process) && world.one_in(60) {
        task.held_until = world.now() + world.pick(50..2500);
        world.disturb(process);
        world.tell(process, format!("{} is held up for {} ms", task.name, task.held_until - world.now()));
    }
}

//! A simulated node: every real part of one, its duties as tasks that the run turns one at a time.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use mainspring::cold::{ColdStore, FailPoint, Identity};
use mainspring::config::Config;
use mainspring::destinations::Destinations;
use mainspring::destinations::vault::Vault;
use mainspring::dispatch::Dispatcher;
use mainspring::hot::AHEAD_MS;
use mainspring::hot::last_mile::LastMile;
use mainspring::hot::loader::{Loader, Rates};
use mainspring::hot::promoter::Promoter;
use mainspring::hot::ticker::Ticker;
use mainspring::metrics::Metrics;
use mainspring::model::time::UnixMs;
use mainspring::operations::Operations;
use mainspring::outbox::Outbox;
use mainspring::ownership::{Ownership, Round};
use mainspring::positions::{Positions, Reach};
use mainspring::promotion::Promotion;
use mainspring::schedule::Maker;
use mainspring::sink::Sink;
use mainspring::sweep::Sweep;
use mainspring::wheel::HotWheel;
use mainspring::writer::Writer;
use tokio_util::sync::CancellationToken;

use super::gate::Door;
use super::operators::PER_SECOND;
use super::wheels::{Reached, Server};
use super::world::World;

/// How long the first sweep waits for the first replay.
const REPLAY_FIRST_MS: i64 = 3000;

/// Work under way.
pub struct Task {
    pub name: &'static str,
    work: Pin<Box<dyn Future<Output = i64>>>,
    woken: Arc<Woken>,
    /// Not to be turned before.
    pub held_until: i64,
    pub since: i64,
    /// Of those that can go on, mostly the highest does: so some stand still while others do much.
    pub rank: i64,
}

/// Whether a task has something to do, and who waits for it meanwhile.
struct Woken {
    ready: AtomicBool,
    root: Mutex<Option<Waker>>,
    /// The run's thread, if what others wake is to come late.
    late: Option<ThreadId>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if self.late.is_some_and(|run| run != std::thread::current().id()) {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        self.ready.store(true, Ordering::SeqCst);
        let root = self.root.lock().expect("plain").take();
        if let Some(root) = root {
            root.wake();
        }
    }
}

impl Woken {
    fn new(world: &World) -> Arc<Self> {
        let late = world.is_hasty().then(|| std::thread::current().id());
        Arc::new(Self { ready: AtomicBool::new(true), root: Mutex::default(), late })
    }
}

impl Task {
    pub fn new(name: &'static str, world: &World, work: impl Future<Output = i64> + 'static) -> Self {
        let (now, rank) = (world.now(), world.rank());
        Self { name, work: Box::pin(work), woken: Woken::new(world), held_until: 0, since: now, rank }
    }

    /// Whether it can go on.
    pub fn is_ready(&self, now: i64) -> bool {
        self.woken.ready.load(Ordering::SeqCst) && self.held_until <= now
    }

    /// Turns it until it is done (how long to wait before the next, in ms), stands at the gate, or waits for
    /// others. While the database works it is waited for.
    ///
    /// The database's thread may wake the task after the task has seen the answer, and this must not look as if
    /// there were something to do. So after each statement the task is woken by another way, and what comes by
    /// the one before is heard by nobody.
    pub async fn turn(&mut self, world: &World) -> Option<i64> {
        std::future::poll_fn(|cx| {
            loop {
                *self.woken.root.lock().expect("plain") = Some(cx.waker().clone());
                self.woken.ready.store(false, Ordering::SeqCst);
                let waker = Waker::from(Arc::clone(&self.woken));
                match self.work.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(wait) => return Poll::Ready(Some(wait)),
                    Poll::Pending if world.has_answered() => self.woken = Woken::new(world),
                    Poll::Pending if world.is_busy() => {
                        if world.is_hasty() {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                    Poll::Pending => return Poll::Ready(None),
                }
            }
        })
        .await
    }
}

/// What a node does again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    Own,
    Load,
    Tick,
    Sweep,
    /// Occurrences of schedules.
    Make,
    /// Whether there are any.
    Look,
}

pub struct Due {
    pub duty: Duty,
    pub next_at: i64,
    pub task: Option<Task>,
}

/// What all nodes of a run share.
pub struct Common {
    pub world: Arc<World>,
    pub config: Arc<Config>,
    pub store: ColdStore,
    pub server: Arc<Server>,
    pub metrics: Metrics,
    /// Nodes send lifecycle events.
    pub sends_events: bool,
    /// Nodes make occurrences.
    pub has_schedules: bool,
    /// Nodes carry on operations.
    pub has_operations: bool,
}

/// A node that runs.
pub struct Node {
    pub name: String,
    pub process: usize,
    pub store: ColdStore,
    pub writer: Writer,
    pub operations: Arc<Operations>,
    pub ownership: Arc<Ownership>,
    pub positions: Arc<Positions>,
    last_mile: Arc<LastMile>,
    loader: Arc<Loader>,
    ticker: Arc<Ticker>,
    sweep: Arc<Sweep>,
    maker: Arc<Maker>,
    server: Arc<Server>,
    known: Arc<Mutex<HashMap<i32, String>>>,
    config: Arc<Config>,
    world: Arc<World>,
    started_at: i64,
    /// When the latest round of ownership that went well was begun.
    renewed_at: Arc<AtomicI64>,
    swept: Arc<AtomicBool>,
    pub duties: Vec<Due>,
    pub loops: Vec<Task>,
    /// When the last mile has something to let go of.
    pub mile_at: Option<i64>,
}

impl Node {
    pub fn start(common: &Common, name: &str, process: usize, receivers: Arc<dyn Sink>) -> Self {
        let Common { world, config, server, metrics, .. } = common;
        let door = Arc::new(Door { world: Arc::clone(world), process });
        let fail_point: Arc<dyn FailPoint> = door.clone();
        let store = common.store.with_fail_point(fail_point, door);
        let me =
            Identity { name: name.into(), incarnation: process.to_string(), address: "127.0.0.1:1".into() };
        let ownership = Ownership::new(me, config.lease.get(), config.shards, false).with(config.planted());
        let ownership = Arc::new(ownership);
        let reach = Reach::new(config.wheel.window.get(), config.wheel.near.get());
        let positions = Arc::new(Positions::new(config.shards, reach));
        let clock = store.clock().clone();
        let (promotion, inbox) = Promotion::new(
            clock.clone(),
            config.wheel.window.get(),
            Some(Arc::clone(&positions)),
            metrics.clone(),
        );
        let writer = Writer::new(store.clone(), promotion, metrics.clone());
        let destinations = Arc::new(Destinations::new(store.clone(), Vault::default()));
        let (dispatcher, recorder) = Dispatcher::new(
            config,
            store.clone(),
            writer.clone(),
            Arc::clone(&ownership),
            metrics.clone(),
            Arc::clone(&receivers),
            Arc::clone(&destinations),
        );
        let lead = config.wheel.lead.get();
        let last_mile = LastMile::new(Arc::clone(&dispatcher), clock.clone(), lead, metrics.clone());
        let hot: Arc<dyn HotWheel> =
            Arc::new(Reached { server: Arc::clone(server), world: Arc::clone(world), process });
        let promoter = Arc::new(Promoter {
            store: store.clone(),
            hot: Arc::clone(&hot),
            ownership: Arc::clone(&ownership),
            positions: Arc::clone(&positions),
            near: config.wheel.near.get(),
            last_mile: Arc::clone(&last_mile),
            metrics: metrics.clone(),
        });
        let now = world.now();
        let never = CancellationToken::new();
        let operations = Arc::new(Operations::new(store.clone(), writer.clone(), name, PER_SECOND));
        let mut loops = vec![Task::new("record", world, async {
            recorder.await;
            0
        })];
        for _ in 0..2 {
            let dispatcher = Arc::clone(&dispatcher);
            loops.push(Task::new("claim", world, async {
                dispatcher.run().await;
                0
            }));
        }
        let promoting = Arc::clone(&promoter);
        loops.push(Task::new("promote", world, async move {
            promoting.run(inbox, never).await;
            0
        }));
        if common.sends_events {
            let terms = Arc::clone(&dispatcher);
            loops.push(Task::new("terms", world, async {
                terms.follow_destinations().await;
                0
            }));
            let outbox = Outbox::new(
                config,
                store.clone(),
                Arc::clone(&dispatcher),
                Arc::clone(&ownership),
                destinations,
                receivers,
                metrics.clone(),
            );
            for one in store.subscription_set().all.clone() {
                let sending = Arc::clone(&outbox).send(one, CancellationToken::new());
                loops.push(Task::new("events", world, async {
                    sending.await;
                    0
                }));
            }
        }
        if common.has_operations {
            let carrying = Arc::clone(&operations);
            loops.push(Task::new("operations", world, async {
                carrying.run(CancellationToken::new()).await;
                0
            }));
        }
        let mut duties = vec![Duty::Own, Duty::Load, Duty::Tick, Duty::Sweep];
        if common.has_schedules {
            duties.extend([Duty::Make, Duty::Look]);
        }
        let maker =
            Maker::new(writer.clone(), Arc::clone(&ownership), clock.clone(), config.wheel.window.get());
        let due = |duty| Due { duty, next_at: now, task: None };
        Self {
            name: name.into(),
            process,
            writer: writer.clone(),
            operations,
            ownership: Arc::clone(&ownership),
            positions: Arc::clone(&positions),
            last_mile: Arc::clone(&last_mile),
            loader: Arc::new(Loader {
                promoter,
                dispatcher: Arc::clone(&dispatcher),
                rates: Arc::new(Rates::new(1_000_000, 1_000_000)),
            }),
            ticker: Arc::new(Ticker::new(hot, Arc::clone(&positions), last_mile, clock, metrics.clone())),
            sweep: Arc::new(Sweep::new(
                store.clone(),
                ownership,
                dispatcher,
                positions,
                writer,
                metrics.clone(),
            )),
            maker: Arc::new(maker),
            store,
            server: Arc::clone(server),
            known: Arc::default(),
            config: Arc::clone(config),
            world: Arc::clone(world),
            started_at: now,
            renewed_at: Arc::new(AtomicI64::new(i64::MIN)),
            swept: Arc::default(),
            duties: duties.into_iter().map(due).collect(),
            loops,
            mile_at: None,
        }
    }

    /// Begins one round of a duty.
    pub fn begin(&self, duty: Duty) -> Task {
        match duty {
            Duty::Own => Task::new("own", &self.world, self.own()),
            Duty::Load => Task::new("load", &self.world, self.load()),
            Duty::Tick => Task::new("tick", &self.world, self.tick()),
            Duty::Sweep => Task::new("sweep", &self.world, self.sweep()),
            Duty::Make => Task::new("make", &self.world, self.make()),
            Duty::Look => Task::new("look", &self.world, self.look()),
        }
    }

    fn own(&self) -> impl Future<Output = i64> + 'static {
        let (store, ownership) = (self.store.clone(), Arc::clone(&self.ownership));
        let (positions, world, process) =
            (Arc::clone(&self.positions), Arc::clone(&self.world), self.process);
        let third = i64::try_from(self.config.lease.get().as_millis() / 3).expect("short");
        let (renewed_at, began) = (Arc::clone(&self.renewed_at), self.world.now());
        async move {
            let round = if ownership.has_entered() {
                ownership.run_once(&store, |shard| positions.cursor(shard)).await
            } else {
                ownership.enter(&store).await
            };
            match round {
                Ok(Round { superseded: true, .. }) => {
                    world.wrong(format!("{} is superseded", ownership.me().name));
                    third
                }
                Ok(round) => {
                    renewed_at.store(began, Ordering::SeqCst);
                    if round != Round::default() {
                        let Round { taken, lost, given_up, recalled, .. } = round;
                        world.tell(
                            process,
                            format!("shards: taken {taken:?} lost {lost:?} given up {given_up:?} recalled {recalled}"),
                        );
                    }
                    if ownership.has_peers() {
                        let rows = store.shard_rows(&[]).await.unwrap_or_default();
                        rows.iter().for_each(|row| positions.learn(row.shard, row.watermark));
                    }
                    let rest = i64::try_from(ownership.rest().as_millis()).expect("short");
                    if ownership.is_short() { rest.min(250) } else { rest }
                }
                Err(_) => third.min(500),
            }
        }
    }

    fn load(&self) -> impl Future<Output = i64> + 'static {
        let loader = Arc::clone(&self.loader);
        async move {
            match loader.run_once().await {
                Ok(wait) => i64::try_from(wait.as_millis()).unwrap_or(200),
                Err(_) => 500,
            }
        }
    }

    fn tick(&self) -> impl Future<Output = i64> + 'static {
        let (ticker, known, store) = (Arc::clone(&self.ticker), Arc::clone(&self.known), self.store.clone());
        async move {
            let mut server = known.lock().expect("plain").clone();
            let checked = ticker.check_servers(&mut server).await;
            *known.lock().expect("plain") = server;
            if checked.is_err() || ticker.run_once(store.clock().now()).await.is_err() {
                return 250;
            }
            let now = store.clock().now().get();
            let next = ((now + AHEAD_MS).div_euclid(1000) + 1) * 1000 - AHEAD_MS;
            (next - now).clamp(5, 1000)
        }
    }

    fn sweep(&self) -> impl Future<Output = i64> + 'static {
        let (sweep, swept) = (Arc::clone(&self.sweep), Arc::clone(&self.swept));
        let (ownership, positions) = (Arc::clone(&self.ownership), Arc::clone(&self.positions));
        let (world, started_at) = (Arc::clone(&self.world), self.started_at);
        async move {
            let looked = positions.has_looked() || world.now() - started_at > REPLAY_FIRST_MS;
            let may = swept.load(Ordering::SeqCst) || (ownership.has_entered() && looked);
            if !may {
                return 20;
            }
            if sweep.run_once().await.is_ok() {
                swept.store(true, Ordering::SeqCst);
            }
            let now = UnixMs::new(world.now());
            let alone = ownership.claimable().iter().any(|(shard, _)| positions.grace_ms(*shard, now) == 0);
            if alone { 250 } else { 1000 }
        }
    }

    fn make(&self) -> impl Future<Output = i64> + 'static {
        let maker = Arc::clone(&self.maker);
        async move {
            // One that fails is tried again, as by a node.
            let _ = maker.run_once().await;
            1000
        }
    }

    fn look(&self) -> impl Future<Output = i64> + 'static {
        let store = self.store.clone();
        async move {
            let _ = store.look_at_marks().await;
            2000
        }
    }

    /// Lets the last mile let go of what is due.
    pub fn mile(&mut self) {
        let given = self.server.take_express(&self.name);
        self.last_mile.push(&given);
        let next = self.last_mile.run_once(self.store.clock().now());
        let lead = i64::try_from(self.config.wheel.lead.get().as_millis()).expect("short");
        self.mile_at = next.map(|at| at.get() - lead);
    }

    /// Nothing of its work is held up any longer.
    pub fn let_go(&mut self) {
        let duties = self.duties.iter_mut().filter_map(|due| due.task.as_mut());
        duties.chain(&mut self.loops).for_each(|task| task.held_until = 0);
    }

    /// Whether its leases were renewed since, its shards' wheels turn and keep up, and nothing is left to scan.
    pub fn is_still(&self, since: i64) -> bool {
        let now = UnixMs::new(self.world.now());
        let standings = self.positions.standings();
        self.renewed_at.load(Ordering::SeqCst) >= since
            && self.positions.ranges().is_empty()
            && standings.len() == self.ownership.count()
            && standings.iter().all(|(shard, ..)| self.positions.grace_ms(*shard, now) > 0)
    }

    /// Whether some of its work can go on.
    pub fn is_restless(&self, now: i64) -> bool {
        self.duties.iter().any(|due| due.task.is_some()) || self.loops.iter().any(|one| one.is_ready(now))
    }

    /// The moment at which it has something to do by itself.
    pub fn next_at(&self) -> Option<i64> {
        let duties = self.duties.iter().filter(|due| due.task.is_none()).map(|due| due.next_at);
        let held = self.duties.iter().filter_map(|due| due.task.as_ref()).chain(&self.loops);
        let held = held.map(|task| task.held_until).filter(|at| *at > self.world.now());
        duties.chain(held).chain(self.mile_at).min()
    }
}

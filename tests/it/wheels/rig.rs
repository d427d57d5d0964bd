//! A whole node without its loops: the real loader, ticker, promoter and last mile on a real cold store and
//! real wheels, cranked by hand.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::clock::{Clock, ManualClock};
use mainspring::cold::{ColdStore, Identity, NewTimer, Registered, ShardRow, TimerRow};
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
use mainspring::model::id::Epoch;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::time::UnixMs;
use mainspring::ownership::Ownership;
use mainspring::positions::{Positions, Reach};
use mainspring::promotion::Promotion;
use mainspring::sink::Sinks;
use mainspring::sweep::Sweep;
use mainspring::wheel::{
    Append, Appended, Error, HotWheel, Level, MemoryWheel, Slot, Snapshot, Standing, Take, Taken, Tick,
    Unreachable,
};
use mainspring::writer::Writer;
use tokio::sync::{Notify, mpsc};

use super::space::{Dumps, START_MS, Space};
use crate::support::{new_timer, run_sql};

pub const START: UnixMs = UnixMs::new(START_MS);

/// Longer than any round takes.
const ROUND: Duration = Duration::from_secs(20);

/// Where the wheels are.
pub enum Home {
    Memory(Arc<MemoryWheel>),
    Redis(Box<Space>),
}

/// A kind of place for wheels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Memory,
    Redis,
    Cluster,
}

/// What wheels held at some moment.
pub enum Kept {
    Memory(Snapshot),
    Redis(Dumps),
}

/// The calls that can be made to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Append,
    Take,
    HandOver,
    SetLoaded,
}

/// How the next such call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It does nothing and fails.
    Fail,
    /// It does its work, and its answer is lost.
    LoseAnswer,
    /// It comes to nothing and never ends: the caller is cut off there.
    Stall,
}

/// Wheels that can be emptied, set back, renamed and made to fail.
pub struct TestWheel {
    inner: Arc<dyn HotWheel>,
    home: Home,
    name: Mutex<Option<String>>,
    fault: Mutex<Option<(Call, Fault)>>,
    pub stalled: Notify,
}

impl TestWheel {
    pub fn memory() -> Self {
        let wheel = Arc::new(MemoryWheel::default());
        Self::of(wheel.clone(), Home::Memory(wheel))
    }

    pub async fn redis() -> Self {
        Self::in_redis(Space::new().await)
    }

    /// In a server of the test's own.
    pub async fn in_server(url: &str) -> Self {
        Self::in_redis(Space::at(url).await)
    }

    pub async fn cluster() -> Self {
        Self::in_redis(Space::in_cluster().await)
    }

    /// Wheels in a place of this kind.
    pub async fn at(place: At) -> Self {
        match place {
            At::Memory => Self::memory(),
            At::Redis => Self::redis().await,
            At::Cluster => Self::cluster().await,
        }
    }

    fn in_redis(space: Space) -> Self {
        Self::of(Arc::new(space.wheel()), Home::Redis(Box::new(space)))
    }

    fn of(inner: Arc<dyn HotWheel>, home: Home) -> Self {
        let (name, fault, stalled) = Default::default();
        Self { inner, home, name, fault, stalled }
    }

    pub fn is_memory(&self) -> bool {
        matches!(self.home, Home::Memory(_))
    }

    pub async fn flush(&self) {
        match &self.home {
            Home::Memory(wheel) => wheel.flush(),
            Home::Redis(space) => space.flush().await,
        }
    }

    pub async fn snapshot(&self) -> Kept {
        match &self.home {
            Home::Memory(wheel) => Kept::Memory(wheel.snapshot()),
            Home::Redis(space) => Kept::Redis(space.snapshot().await),
        }
    }

    pub async fn roll_back(&self, to: &Kept) {
        match (&self.home, to) {
            (Home::Memory(wheel), Kept::Memory(to)) => wheel.roll_back(to),
            (Home::Redis(space), Kept::Redis(to)) => space.roll_back(to).await,
            _ => panic!("another's"),
        }
    }

    /// From now on it answers as another server.
    pub fn rename(&self) {
        *self.name.lock().expect("plain") = Some(uuid::Uuid::now_v7().simple().to_string());
    }

    /// The process that it lives in dies: wheels in memory are gone, those in Redis are as they were.
    pub async fn survive_a_crash(&self) {
        self.heal();
        if self.is_memory() {
            self.flush().await;
            self.rename();
        }
    }

    /// No call goes wrong that has not yet.
    pub fn heal(&self) {
        *self.fault.lock().expect("plain") = None;
    }

    /// The next call of this kind goes wrong.
    pub fn fault(&self, call: Call, fault: Fault) {
        *self.fault.lock().expect("plain") = Some((call, fault));
    }

    /// What waits in a node's express list; asks Redis only, and does not wait.
    pub async fn express(&self, node: &str) -> Vec<Pointer> {
        if let Home::Redis(space) = &self.home {
            let list = format!("mainspring:{{{}:express:{node}}}", space.namespace);
            if space.ask::<i64>("LLEN", &[list]).await > 0 {
                return self.inner.receive_express(node).await.expect("receives");
            }
        }
        Vec::new()
    }

    async fn run<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        // Wheels in memory answer at once; a loop that asks for ever must be seen as one.
        tokio::task::yield_now().await;
        let mut fault = None;
        {
            let mut set = self.fault.lock().expect("plain");
            if set.is_some_and(|(on, _)| on == call) {
                fault = set.take().map(|(_, fault)| fault);
            }
        }
        match fault {
            None => work.await,
            Some(Fault::Fail) => Err(Error::Answer("nothing".into())),
            Some(Fault::LoseAnswer) => {
                work.await?;
                Err(Error::Answer("too late".into()))
            }
            Some(Fault::Stall) => {
                self.stalled.notify_one();
                std::future::pending().await
            }
        }
    }
}

#[async_trait::async_trait]
impl HotWheel for TestWheel {
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Unreachable>>, Error> {
        let name = self.name.lock().expect("plain").clone();
        match name {
            Some(name) => Ok(shards.iter().map(|_| Ok(name.clone())).collect()),
            None => self.inner.servers(shards).await,
        }
    }

    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error> {
        self.inner.look(shards).await
    }

    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<Vec<bool>, Error> {
        self.inner.build(wheels, until).await
    }

    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error> {
        self.inner.adopt(shards).await
    }

    async fn set_loaded(&self, shards: &[(i32, Epoch, i64)]) -> Result<(), Error> {
        self.run(Call::SetLoaded, self.inner.set_loaded(shards)).await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.run(Call::Append, self.inner.append(appends)).await
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error> {
        self.run(Call::Take, self.inner.take(takes)).await
    }

    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error> {
        self.run(Call::HandOver, self.inner.hand_over(slots)).await
    }

    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error> {
        self.inner.counts(slots).await
    }

    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error> {
        self.inner.send_express(node, pointers).await
    }

    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error> {
        self.inner.receive_express(node).await
    }

    async fn used(&self) -> Result<f64, Error> {
        self.inner.used().await
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
}

/// What outlives a node: the clock, the cold store and the wheels.
pub struct Rig {
    pub clock: Arc<ManualClock>,
    pub store: ColdStore,
    pub hot: Arc<TestWheel>,
    pub metrics: Metrics,
    config: Arc<Config>,
    dispatcher: Arc<Dispatcher>,
}

impl Rig {
    /// A store at `cold.url`, made ready. `sets` are the settings that matter to the test.
    pub async fn new(cold: &str, hot: TestWheel, sets: &[&str]) -> Self {
        let mut all = vec![format!("cold.url={cold}"), "lease=PT60S".to_owned()];
        all.extend(sets.iter().map(|set| (*set).to_owned()));
        let config = Arc::new(Config::load(Some(Path::new("/dev/null")), [], &all).expect("settings"));
        let clock = ManualClock::new(START);
        let store = ColdStore::open(&config, clock.clone(), true, false).expect("opens");
        store.prepare().await.expect("prepares");
        let metrics = Metrics::new().expect("series");
        let dispatcher = dispatcher(&config, &store, &metrics);
        Self { clock, store, hot: Arc::new(hot), metrics, config, dispatcher }
    }

    pub fn now(&self) -> UnixMs {
        self.clock.now()
    }

    /// Sets the clock to so many milliseconds after the start.
    pub fn at(&self, ms: i64) {
        self.clock.set(UnixMs::new(START_MS + ms));
    }

    /// A timer that is due so many milliseconds after the start.
    pub fn timer(&self, id: &str, due_ms: i64) -> NewTimer {
        new_timer(id, UnixMs::new(START_MS + due_ms), self.now())
    }

    /// Commits timers, and nothing more.
    pub async fn commit(&self, timers: &[NewTimer]) -> Vec<Pointer> {
        let pointer = |answer| match answer {
            Ok(Registered::New(row)) => row.pointer(Via::Express).expect("it waits"),
            other => panic!("{other:?}"),
        };
        self.store.register(timers).await.into_iter().map(pointer).collect()
    }

    /// Changes the store without the server's knowledge.
    pub async fn behind_its_back(&self, sql: &str) {
        run_sql(&self.config.cold.url, sql).await;
    }

    /// How many pointers wait to be claimed.
    pub fn held(&self) -> usize {
        self.dispatcher.queued()
    }

    pub async fn row(&self, shard: i32) -> ShardRow {
        self.store.shard_rows(&[shard]).await.expect("reads").remove(0)
    }

    /// How often a pointer's second, minute and whole-minute slots hold something.
    pub async fn lying(&self, pointer: &Pointer) -> [usize; 3] {
        let slots = Level::ALL.map(|level| (pointer.shard, level.slot_of(pointer.wake_at)));
        self.hot.counts(&slots).await.expect("counts").try_into().expect("three")
    }

    /// How many pointers all slots of a shard hold, from the start until so many milliseconds after it.
    pub async fn lying_until(&self, shard: i32, ms: i64) -> usize {
        let slots: Vec<(i32, Slot)> = Level::ALL
            .into_iter()
            .flat_map(|level| {
                let ticks = level.slot_of(START).tick.0..=level.slot_of(UnixMs::new(START_MS + ms)).tick.0;
                ticks.map(move |tick| (shard, Slot { level, tick: Tick(tick) }))
            })
            .collect();
        self.hot.counts(&slots).await.expect("counts").into_iter().sum()
    }

    /// A node that has taken every shard that is free or stands under its name.
    pub async fn start(&self, name: &str) -> Node {
        let incarnation = uuid::Uuid::now_v7().simple().to_string();
        let me = Identity { name: name.into(), incarnation, address: "127.0.0.1:1".into() };
        let ownership = Arc::new(Ownership::new(
            me,
            self.config.lease.get(),
            self.config.shards,
            !self.store.is_shared(),
        ));
        ownership.enter(&self.store).await.expect("enters");
        let reach = Reach::new(self.config.wheel.window.get(), self.config.wheel.near.get());
        let positions = Arc::new(Positions::new(self.config.shards, reach));
        let clock = self.store.clock().clone();
        let lead = self.config.wheel.lead.get();
        let last_mile =
            LastMile::new(Arc::clone(&self.dispatcher), clock.clone(), lead, self.metrics.clone());
        let hot: Arc<dyn HotWheel> = self.hot.clone();
        let promoter = Arc::new(Promoter {
            store: self.store.clone(),
            hot: Arc::clone(&hot),
            ownership,
            positions: Arc::clone(&positions),
            near: self.config.wheel.near.get(),
            last_mile: Arc::clone(&last_mile),
            metrics: self.metrics.clone(),
        });
        Node {
            store: self.store.clone(),
            hot: Arc::clone(&self.hot),
            loader: Loader {
                promoter: Arc::clone(&promoter),
                dispatcher: Arc::clone(&self.dispatcher),
                rates: Arc::new(Rates::new(1_000_000, 1_000_000)),
            },
            ticker: Ticker::new(hot, positions, last_mile, clock, self.metrics.clone()),
            promoter,
            servers: HashMap::new(),
        }
    }

    /// A node's writer, and what it hands on to be promoted.
    pub fn writer(&self, node: &Node) -> (Writer, mpsc::Receiver<Pointer>) {
        let (clock, window) = (self.store.clock().clone(), self.config.wheel.window.get());
        let (promotion, inbox) =
            Promotion::new(clock, window, Some(Arc::clone(&node.promoter.positions)), self.metrics.clone());
        (Writer::new(self.store.clone(), promotion, self.metrics.clone()), inbox)
    }

    /// A node's sweep, and what it hands on to be promoted.
    pub fn sweep(&self, node: &Node) -> (Sweep, mpsc::Receiver<Pointer>) {
        let (writer, inbox) = self.writer(node);
        let Promoter { ownership, positions, .. } = &*node.promoter;
        let sweep = Sweep::new(
            self.store.clone(),
            Arc::clone(ownership),
            Arc::clone(&self.dispatcher),
            Arc::clone(positions),
            writer,
            self.metrics.clone(),
        );
        (sweep, inbox)
    }

    /// Another node takes over without a word from the one before, which does not know it yet.
    pub async fn supersede(&self, before: &Node, name: &str) -> Node {
        let me = before.promoter.ownership.me();
        self.store.give_up(me, &before.promoter.ownership.claimable()).await.expect("gives up");
        self.store.leave(me).await.expect("leaves");
        self.start(name).await
    }
}

/// A dispatcher that is never run: what is offered to it is held.
fn dispatcher(config: &Arc<Config>, store: &ColdStore, metrics: &Metrics) -> Arc<Dispatcher> {
    crate::support::init();
    let me = Identity { name: "nobody".into(), incarnation: "1".into(), address: "127.0.0.1:1".into() };
    let ownership = Arc::new(Ownership::new(me, config.lease.get(), config.shards, false));
    let (promotion, _) =
        Promotion::new(store.clock().clone(), config.wheel.window.get(), None, metrics.clone());
    let writer = Writer::new(store.clone(), promotion, metrics.clone());
    let sinks = Sinks::new(config, store.clock().clone(), 64).expect("a client");
    let destinations = Arc::new(Destinations::new(store.clone(), Vault::default()));
    let sinks = Arc::new(sinks);
    Dispatcher::new(config, store.clone(), writer, ownership, metrics.clone(), sinks, destinations).0
}

/// A node whose loops are cranked.
pub struct Node {
    store: ColdStore,
    hot: Arc<TestWheel>,
    pub promoter: Arc<Promoter>,
    pub loader: Loader,
    pub ticker: Ticker,
    servers: HashMap<i32, String>,
}

impl Node {
    fn now(&self) -> UnixMs {
        self.store.clock().now()
    }

    pub fn positions(&self) -> &Positions {
        &self.promoter.positions
    }

    pub fn last_mile(&self) -> &LastMile {
        &self.promoter.last_mile
    }

    pub fn name(&self) -> &str {
        &self.promoter.ownership.me().name
    }

    /// One round of the ticker.
    pub async fn tick(&mut self) -> Result<(), Error> {
        self.ticker.check_servers(&mut self.servers).await?;
        self.ticker.run_once(self.now()).await.map(drop)
    }

    /// Loads and ticks until nothing is left to do at this moment.
    pub async fn crank(&mut self) {
        let mut failures = 0;
        for _ in 0..200 {
            let round = tokio::time::timeout(ROUND, self.loader.run_once()).await;
            failures += usize::from(round.expect("a round of the loader ends").is_err());
            failures += usize::from(self.tick().await.is_err());
            let express = self.hot.express(self.name()).await;
            self.last_mile().push(&express);
            assert!(failures < 5, "the wheels do not answer");
            if self.is_still() {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.positions().standings());
    }

    /// Whether every wheel turns, is loaded, and no slot is to be taken.
    pub fn is_still(&self) -> bool {
        let near = self.now().plus(self.promoter.near);
        let ahead = UnixMs::new(self.now().get() + AHEAD_MS);
        let takes = [(Level::Minute, near), (Level::Second, ahead), (Level::WholeMinute, ahead)];
        let positions = self.positions();
        positions.has_looked()
            && positions.ranges().is_empty()
            && takes.iter().all(|(level, until)| positions.takes(*level, *until).is_empty())
    }

    /// Commits timers and then promotes them, as the intake does. Nobody waits for the second part.
    pub async fn write(&self, rig: &Rig, timers: &[NewTimer]) -> Vec<Pointer> {
        let pointers = rig.commit(timers).await;
        self.promote(&pointers).await;
        pointers
    }

    pub async fn promote(&self, pointers: &[Pointer]) {
        self.promoter.promote(pointers).await;
        let express = self.hot.express(self.name()).await;
        self.last_mile().push(&express);
    }

    /// What the last mile lets go of by now.
    pub fn due(&self) -> Vec<Pointer> {
        self.last_mile().take_due(self.now(), usize::MAX).0
    }

    /// All that the last mile holds; it holds it still.
    pub fn held(&self) -> Vec<Pointer> {
        let all = self.last_mile().take_due(UnixMs::new(i64::MAX), usize::MAX).0;
        self.last_mile().push(&all);
        all
    }

    /// Claims, under the epochs that this node believes in, and promotes what was moved.
    pub async fn claim(&self, pointers: &[Pointer], lead_ms: i64) -> Vec<TimerRow> {
        let epochs: BTreeMap<i32, Epoch> = self.promoter.ownership.claimable().into_iter().collect();
        let owned: Vec<(Pointer, Epoch)> =
            pointers.iter().filter_map(|one| Some((*one, *epochs.get(&one.shard)?))).collect();
        if owned.is_empty() {
            return Vec::new();
        }
        let claimed = self.store.claim(&owned, self.name(), lead_ms).await.expect("claims");
        let moved: Vec<Pointer> =
            claimed.early.iter().filter(|one| one.is_moved).map(|one| one.pointer).collect();
        self.promote(&moved).await;
        claimed.rows
    }
}

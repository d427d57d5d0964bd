//! One run: from a seed to a verdict.
//!
//! A run has three times. In the first all is well, but for the order in which things happen. In the second
//! things go wrong, of the kind that the seed picks; a calm run has none. Then all is healed, and time moves on
//! until every timer has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mainspring::cold::{ColdStore, Filter, TimerRow};
use mainspring::config::Config;
use mainspring::model::id::{TimerId, Uid};
use mainspring::model::namespace::Salt;
use mainspring::model::schedule::ScheduleState;
use mainspring::model::time::UnixMs;
use mainspring::planted::Defect;
use mainspring::wheel::Snapshot;

use super::book::{Book, Calm};
use super::clients::{Ask, Clients, Desk};
use super::events::{self, Events};
use super::faults::{Fault, Kind, odds, plan};
use super::ground::{Ground, Verdict};
use super::lives;
use super::node::{Common, Node, Task};
use super::nominal::Found;
use super::operations::Life;
use super::operators::{Control, Operator};
use super::planners::{Office, Order, Planners};
use super::receiver::Mood;
use super::wheels::Server;
use super::workers::{Crew, Job, Workers};
use super::world::{Odds, Watch, World};

pub const SHARDS: u16 = 4;
pub const WINDOW_MS: i64 = 6000;

/// How long the first time lasts.
const WELL_MS: i64 = 4000;

/// By then after the healing every wheel turns.
const HEALED_MS: i64 = 8000;

/// By then after the healing every timer has ended.
const PATIENCE_MS: i64 = 60_000;

/// What is played in a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Play {
    pub planted: Option<Defect>,
    /// The nodes send the lifecycle events. Otherwise these wait until the end.
    pub sends_events: bool,
    /// Some timers are for a queue, from which workers fetch.
    pub has_queue: bool,
    /// Clients pause timers, and resume them.
    pub has_pauses: bool,
    /// There are schedules.
    pub has_schedules: bool,
    /// There are operations on many timers.
    pub has_operations: bool,
}

/// How long nobody serves, in some runs with schedules: longer than a nominal time may wait.
const OUTAGE_MS: std::ops::Range<i64> = 62_000..75_000;

/// How long events may take beyond the timers.
const EVENTS_TRAIL_MS: i64 = 120_000;

/// More than the occurrences of one schedule.
const MOST_OCCURRENCES: usize = 1000;

/// What nobody does in an outage.
#[derive(Debug)]
enum Nobody {
    ReachesStore,
    Moves,
    Runs,
}

/// Where a node can run.
pub struct Seat {
    pub node: Option<Node>,
    /// When it starts (again), or goes on.
    pub until: Option<i64>,
}

/// A call that is under way.
pub struct Call {
    pub process: usize,
    pub of: Caller,
    pub task: Task,
}

/// Whose call it is, and what it is for.
pub enum Caller {
    Client(Ask),
    Workers(Job),
    Planner(Order),
    Operator,
}

/// A run under way.
pub struct Run {
    pub start: i64,
    pub kind: Kind,
    pub world: Arc<World>,
    pub common: Common,
    pub clients: Clients,
    pub workers: Workers,
    pub office: Office,
    pub control: Control,
    pub mood: Arc<Mutex<Mood>>,
    pub seats: Vec<Seat>,
    pub calls: Vec<Call>,
    pub faults: Vec<(i64, Fault)>,
    pub snapshots: Vec<(i64, Snapshot)>,
    pub next_ask: i64,
    pub asks_left: i64,
    pub steps: usize,
    /// A roll-back that may have gone unnoticed explains what the sweep fires afterwards.
    pub unnoticed: bool,
    /// Timers may be due far beyond the window.
    pub far: bool,
    /// The wheels turn, and nothing has gone wrong yet.
    pub settled: bool,
    /// When all was healed.
    pub healed_at: i64,
    /// Who is told of everything.
    pub subscription: i64,
}

impl Run {
    pub fn new(seed: u64, play: Play, watch: Watch, config: Arc<Config>, ground: &Ground) -> Self {
        let kind = Kind::of(seed);
        // Somewhere in a minute, so that runs cross its end at different times.
        let start = UnixMs::new(1_800_000_000_000 + (seed % 60) as i64 * 1000 + (seed % 997) as i64);
        let world = World::new(seed, start, watch);
        let clock = Arc::new(super::gate::Door { world: Arc::clone(&world), process: 0 });
        let store = ColdStore::open(&config, clock, true, false).expect("opens");
        let book = Arc::new(Mutex::new(Book::new(Arc::clone(&world))));
        let desk = Desk::new(play);
        let crew = Arc::new(Mutex::new(Crew::new(play.has_queue)));
        let workers = Workers { world: Arc::clone(&world), book: Arc::clone(&book), crew };
        let planners = Arc::new(Mutex::new(Planners::new(play.has_schedules, &world)));
        let office = Office { world: Arc::clone(&world), book: Arc::clone(&book), planners };
        let operator = Arc::new(Mutex::new(Operator::new(play.has_operations)));
        let control = Control { world: Arc::clone(&world), book: Arc::clone(&book), operator };
        let clients = Clients { world: Arc::clone(&world), book, desk: Arc::new(Mutex::new(desk)) };
        let common = Common {
            world: Arc::clone(&world),
            config,
            store,
            server: Arc::new(Server::default()),
            metrics: ground.metrics.clone(),
            sends_events: play.sends_events,
            has_schedules: play.has_schedules,
            has_operations: play.has_operations,
        };
        world.set_odds(odds(None));
        let seats = 2 + usize::from(seed.is_multiple_of(3));
        Self {
            start: start.get(),
            kind,
            common,
            clients,
            workers,
            office,
            control,
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
            healed_at: i64::MIN,
            subscription: 0,
            world,
        }
    }

    pub async fn close(self) -> Verdict {
        let Self { world, common, clients, steps, seats, calls, start, .. } = self;
        let lasted_ms = world.now() - start;
        drop((seats, calls));
        common.store.close().await;
        let wrong = world.is_wrong();
        let (arrivals, given) = {
            let book = clients.book.lock().expect("plain");
            (book.arrivals, book.places.given)
        };
        Verdict { digest: world.digest(), trace: world.tail(), arrivals, given, steps, lasted_ms, wrong }
    }

    pub async fn go(&mut self) {
        let start = self.world.now();
        self.subscription = events::subscribe(&self.common.store).await;
        if !self.until(start + 20_000, Self::is_still).await {
            return self.world.wrong("the wheels never turn".into());
        }
        let well = self.world.now();
        self.settled = true;
        self.rest(false);
        let asks = if self.kind == Kind::Calm { 50 } else { 35 };
        // What schedules make comes beside it, and a run is not to take longer.
        self.ask(if self.common.has_schedules { asks / 3 } else { asks });
        self.until(well + WELL_MS, |_| false).await;
        self.far = false;
        let mut began = self.world.now();
        if self.kind != Kind::Calm {
            self.next_ask = i64::MAX;
            self.rest(true);
            // What was written while all was well has come to rest.
            self.until(well + WELL_MS + 3000, Self::is_at_rest).await;
            began = self.world.now();
            self.make_ill().await;
        }
        self.rest(false);
        self.crew(|crew| crew.is_well = true);
        let healed = self.world.now();
        if self.kind != Kind::Calm {
            self.healed_at = healed;
        }
        if !self.until(healed + HEALED_MS, Self::is_still).await {
            return self.world.wrong("the wheels do not turn again".into());
        }
        if self.kind != Kind::Calm && !self.unnoticed {
            let again = self.world.now() + 2000;
            self.clients.book.lock().expect("plain").set_calm(Calm { until: began, again });
        }
        self.ask(self.asks_left.max(6));
        self.office.planners.lock().expect("plain").end(self.world.now());
        let trail = if self.common.sends_events { EVENTS_TRAIL_MS } else { 0 };
        let patience = self.world.now() + PATIENCE_MS + trail;
        while self.world.is_wrong().is_none() {
            let next = self.world.now() + 1000;
            self.until(next, |_| false).await;
            self.clients.desk.lock().expect("plain").resume_all();
            if self.asks_left == 0 {
                self.control.operator.lock().expect("plain").end();
            }
            if self.asks_left == 0
                && !self.clients.desk.lock().expect("plain").is_busy()
                && self.office.planners.lock().expect("plain").are_done()
                && self.control.operator.lock().expect("plain").is_done()
                && self.unended().await == 0
                && self.pending().await == 0
                && self.unsent().await == 0
            {
                break;
            }
            if self.world.now() > patience {
                let (waiting, unsent) = (self.waiting().await, self.unsent().await);
                let unended = self.unended().await;
                let what = format!(
                    "timers are still waiting: {waiting:?}; {unended} schedules go on; {unsent} events are not sent"
                );
                return self.world.wrong(what);
            }
        }
        self.audit().await;
    }

    /// Whether workers, planners and the operator begin nothing.
    fn rest(&self, rests: bool) {
        self.crew(|crew| crew.rests = rests);
        self.office.planners.lock().expect("plain").rests = rests;
        self.control.operator.lock().expect("plain").rests = rests;
    }

    fn crew(&self, change: impl FnOnce(&mut Crew)) {
        change(&mut self.workers.crew.lock().expect("plain"));
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
        self.rest(false);
        self.ask(if self.common.has_schedules { 8 } else { 24 });
        self.until(now + self.kind.ill_ms(), |_| false).await;
        if self.common.has_schedules && self.world.one_in(2) {
            self.outage().await;
        }
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

    /// For more than a minute no node runs, or all stand still, or none reaches the store.
    async fn outage(&mut self) {
        let from = self.world.now();
        let until = from + self.world.pick(OUTAGE_MS);
        let nobody = match self.kind {
            Kind::Calm | Kind::Wheels => return,
            Kind::Store => Nobody::ReachesStore,
            Kind::Nodes | Kind::All if self.world.one_in(2) => Nobody::Moves,
            Kind::Nodes | Kind::All => Nobody::Runs,
        };
        // Nobody comes back earlier.
        self.faults.retain(|(_, fault)| !matches!(fault, Fault::Pause(..) | Fault::Crash(..)));
        self.world.tell(usize::MAX, format!("nobody {nobody:?} for {} ms", until - from));
        match nobody {
            Nobody::ReachesStore => self.world.set_odds(Odds { fail: 10_000, ..odds(None) }),
            Nobody::Moves => (0..self.seats.len()).for_each(|seat| self.stand_still(seat, until)),
            Nobody::Runs => (0..self.seats.len()).for_each(|seat| self.kill(seat, until)),
        }
        self.until(until, |_| false).await;
        // What was under way may have come through until then.
        self.clients.book.lock().expect("plain").recurring.outage(from + 3000, until);
    }

    /// Whether every shard has an owner whose wheels turn, and every node its fair share, by the order of names.
    fn is_still(&self) -> bool {
        let nodes: Vec<&Node> = self.seats.iter().filter_map(|seat| seat.node.as_ref()).collect();
        let owned: usize = nodes.iter().map(|node| node.ownership.claimable().len()).sum();
        nodes.len() == self.seats.len()
            && owned == usize::from(SHARDS)
            && nodes.iter().enumerate().all(|(rank, node)| {
                let (all, nodes) = (usize::from(SHARDS), nodes.len());
                let fair = all / nodes + usize::from(rank < all % nodes);
                node.is_still(self.healed_at) && node.ownership.count() == fair
            })
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

    pub fn is_ill(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Lets the attempts run that were told something.
    pub async fn settle(&self) {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }

    async fn pending(&self) -> i64 {
        self.common.store.ledger(mainspring::cold::Whose::All).await.expect("reads").pending
    }

    /// The lifecycle events that nodes have still to send.
    async fn unsent(&self) -> usize {
        match self.common.sends_events {
            true => events::written(&self.common.store, self.subscription).await.values().map(Vec::len).sum(),
            false => 0,
        }
    }

    /// Schedules that have still to make something.
    async fn unended(&self) -> i64 {
        if !self.common.has_schedules {
            return 0;
        }
        let counts = self.common.store.schedule_counts().await.expect("reads");
        counts.iter().filter(|(state, _)| *state != ScheduleState::Ended).map(|(_, count)| count).sum()
    }

    /// The timers that have not ended.
    async fn waiting(&self) -> Vec<TimerRow> {
        let page = self.common.store.list(&Filter::default(), None, MOST_OCCURRENCES).await.expect("lists");
        page.rows.into_iter().filter(|row| !row.life.state.is_end()).collect()
    }

    /// The end: every timer that a client knows has ended, and truly.
    async fn audit(&self) {
        if self.world.is_wrong().is_some() {
            return;
        }
        let store = &self.common.store;
        let mut told = match self.common.sends_events {
            true => self.clients.book.lock().expect("plain").told(),
            false => events::written(store, self.subscription).await,
        };
        let occurrences = self.audit_schedules(&mut told).await;
        let book = self.clients.book.lock().expect("plain").uids();
        let mut rows = store.find_many(&book).await.expect("reads");
        rows.extend(occurrences);
        {
            let known = self.clients.book.lock().expect("plain");
            book.iter().for_each(|uid| known.ended(*uid, rows.get(uid)));
        }
        if self.common.has_operations {
            self.audit_operations(&told, &rows).await;
        }
        events::audit(told, &rows, &self.world);
        let verification = store.verify().await.expect("reads");
        if !verification.balanced || !verification.mismatches.is_empty() {
            self.world.wrong(format!("the ledger does not add up: {verification:?}"));
        }
    }

    /// Every nominal time was decided once. Returns all occurrences by the keys that follow from their ids, and takes the
    /// events of their schedules out of those that were told.
    async fn audit_schedules(&self, told: &mut Events) -> HashMap<Uid, TimerRow> {
        let store = &self.common.store;
        let ids = self.clients.book.lock().expect("plain").recurring.ids();
        let mut all = HashMap::new();
        for id in ids {
            let filter = Filter { schedule: Some(id.clone()), ..Filter::default() };
            let rows = store.list(&filter, None, MOST_OCCURRENCES).await.expect("lists").rows;
            let recorded =
                store.skipped_times(&id).await.expect("counts").iter().map(|(_, count)| count).sum();
            let skips = told.remove(&id).unwrap_or_default();
            let found = Found { rows: rows.iter().collect(), skips, recorded };
            if let Err(what) = self.clients.book.lock().expect("plain").recurring.ended(&id, &found) {
                self.world.wrong(format!("schedule {id}: {what}"));
            }
            all.extend(
                rows.into_iter()
                    .map(|row| (TimerId::parse(&row.id).expect("an id").uid(&Salt::own("default")), row)),
            );
        }
        all
    }

    /// The operations have changed what they tell, and nobody changed anything else.
    async fn audit_operations(&self, told: &Events, rows: &HashMap<Uid, TimerRow>) {
        let found = self.common.store.operations().await.expect("reads");
        let book = self.clients.book.lock().expect("plain");
        let lives = rows.iter().map(|(uid, row)| {
            let entries = told.get(row.id.as_str()).map(|events| lives::read(events)).unwrap_or_default();
            (*uid, Life { entries, row, arrivals: book.arrivals_of(*uid) })
        });
        if let Err(what) = book.operations.ended(&found, &lives.collect()) {
            self.world.wrong(what);
        }
    }
}

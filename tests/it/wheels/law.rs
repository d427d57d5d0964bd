//! The wheel law: whatever happens, what fires is what a sorted map says.
//!
//! The model is a map of live timers. The system is the real thing, cold store to last mile, without the
//! sweep: where the law holds, the sweep has nothing to rescue. Random operations in a row from a seed, which
//! is told when the law breaks; `MAINSPRING_TEST_SEED` runs that one again.
//!
//! What the law leaves out, because only the sweep can find it (a second late): wheels that were set back to
//! a moment after the last take, or that were set back and given to a new owner before anybody ticked; an
//! append that failed whose owner ended before he built the wheel anew; and what is written after a take-over
//! and before its first round, if the wheels are in memory or did not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainspring::cold::{Applied, AttemptRecord, Change, ChangeEvent, Edit, NewTimer, TimerRow};
use mainspring::hot::AHEAD_MS;
use mainspring::model::id::Uid;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{Answer, AttemptResult, Next};
use mainspring::wheel::{HotWheel, Level};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::rig::{At, Call, Fault, Kept, Node, Rig, TestWheel};
use super::space::START_MS;

/// Cases on each version of the wheels.
const CASES: u64 = 250;
const CASES_LONG: u64 = 3000;

/// Operations of one case.
const STEPS: usize = 30;

const SHARDS: i32 = 3;

/// Short wheels, so that a case passes all of them: window 3 min, near 20 s.
const SETS: [&str; 3] = ["shards=3", "wheel.window=PT3M", "wheel.near=PT20S"];

/// What happened, to be told when the law breaks.
type Log = Vec<String>;

struct Case {
    rng: SmallRng,
    rig: Rig,
    node: Node,
    /// Owners of older epochs that do not know it yet.
    ghosts: Vec<Node>,
    /// The model: live timers, by id.
    live: BTreeMap<Uid, Pointer>,
    /// A copy of the wheels, and the beats they had.
    kept: Option<(Kept, Vec<i64>)>,
    /// The last operation can only be noticed by a tick of this owner.
    unnoticed: bool,
    named: usize,
    log: Log,
}

impl Case {
    fn now(&self) -> i64 {
        self.rig.now().get()
    }

    fn is_memory(&self) -> bool {
        self.rig.hot.is_memory()
    }

    /// Some moment: overdue, within seconds, near, within the window, beyond; sometimes a whole minute.
    fn moment(&mut self) -> i64 {
        let by = match self.rng.random_range(0..10) {
            0 => self.rng.random_range(-5000..=0),
            1..=3 => self.rng.random_range(0..3000),
            4..=5 => self.rng.random_range(0..25_000),
            6..=8 => self.rng.random_range(0..190_000),
            _ => self.rng.random_range(150_000..400_000),
        };
        let at = self.now() + by;
        if self.rng.random_ratio(1, 8) { at.div_euclid(60_000) * 60_000 } else { at }
    }

    async fn insert(&mut self) {
        let mut timers: Vec<NewTimer> = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            self.named += 1;
            let mut due = self.moment();
            let minute = self.rng.random_ratio(1, 5);
            if minute {
                due = UnixMs::new(due).ceil_minute().get();
            }
            let timer = self.rig.timer(&format!("t{}", self.named), due - START_MS);
            timers.push(NewTimer { minute, ..timer });
        }
        let pointers = self.node.write(&self.rig, &timers).await;
        for (pointer, timer) in pointers.iter().zip(&timers) {
            assert_eq!(pointer.wake_at, timer.due_at.max(self.rig.now()));
            self.log.push(format!("insert {} in {} ms", timer.id, pointer.wake_at.get() - self.now()));
            self.live.insert(pointer.uid, *pointer);
        }
    }

    fn any(&mut self) -> Option<Uid> {
        let at = self.rng.random_range(0..self.live.len().max(1));
        self.live.keys().nth(at).copied()
    }

    async fn change(&self, uid: Uid, event: ChangeEvent) -> (TimerRow, Answer) {
        match self.rig.store.apply(&[Change { uid, caller: None, event }]).await.remove(0).expect("applies") {
            Applied::Live(row, answer) => (*row, answer),
            Applied::Same(row) => (*row, Answer::Done),
            other => panic!("{other:?}"),
        }
    }

    async fn cancel(&mut self) {
        let Some(uid) = self.any() else { return };
        let (_, answer) = self.change(uid, ChangeEvent::Cancel).await;
        self.log.push(format!("cancel {uid:?}: {answer:?}"));
        self.live.remove(&uid);
    }

    async fn reschedule(&mut self) {
        let Some(uid) = self.any() else { return };
        let old = self.live[&uid];
        let mut due = UnixMs::new(self.moment());
        if old.minute {
            due = due.ceil_minute();
        }
        let (row, answer) =
            self.change(uid, ChangeEvent::Edit(Edit { due_at: Some(due), ..Edit::default() })).await;
        self.log.push(format!("reschedule {uid:?} to {} ms: {answer:?}", due.get() - self.now()));
        let pointer = row.pointer(Via::Express).expect("it waits");
        assert!(
            pointer.generation > old.generation || pointer.wake_at == old.wake_at,
            "{pointer:?} after {old:?}"
        );
        self.live.insert(uid, pointer);
        self.node.promote(&[pointer]).await;
    }

    /// Time passes, and the loops turn, in either order; what has come due fires.
    async fn advance(&mut self, ms: i64) {
        self.log.push(format!("advance {ms} ms to {}", self.now() + ms - START_MS));
        self.rig.clock.advance(Duration::from_millis(ms as u64));
        if self.rng.random() {
            let _ = self.node.tick().await;
        }
        self.settle().await;
    }

    async fn settle(&mut self) {
        let ghosts_first = self.rng.random();
        if ghosts_first {
            self.crank_ghosts().await;
        }
        self.node.crank().await;
        self.unnoticed = false;
        if !ghosts_first {
            self.crank_ghosts().await;
        }
        assert!(self.node.is_still(), "a ghost disturbed it");
        self.fire().await;
    }

    /// Owners of older epochs go on as if nothing had happened, and nothing comes of it.
    async fn crank_ghosts(&mut self) {
        for ghost in &mut self.ghosts {
            let _ = ghost.loader.run_once().await;
            let _ = ghost.tick().await;
            let stale = ghost.due();
            assert!(ghost.claim(&stale, 0).await.is_empty(), "an older epoch claims nothing");
        }
    }

    /// What fires is what the model says.
    async fn fire(&mut self) {
        let ahead = Level::Second.slot_of(UnixMs::new(self.now() + AHEAD_MS)).ends_at();
        for held in self.node.held() {
            assert!(held.wake_at < ahead, "handed over before its slot's time: {held:?} at {}", self.now());
        }
        let due = self.node.due();
        let rows = self.node.claim(&due, 0).await;
        let fired: BTreeSet<_> =
            rows.iter().map(|row| (row.uid, row.life.generation, row.life.attempt - 1)).collect();
        let now = self.rig.now();
        let expected: BTreeSet<_> = self
            .live
            .values()
            .filter(|one| one.wake_at <= now)
            .map(|one| (one.uid, one.generation, one.attempt))
            .collect();
        assert_eq!(fired, expected, "at {} ms", self.now() - START_MS);
        for row in rows {
            self.end(row).await;
        }
    }

    /// An attempt ends well, or is to be made again at some moment.
    async fn end(&mut self, row: TimerRow) {
        let (uid, again) = (row.uid, self.rng.random_ratio(1, 6));
        let record = AttemptRecord {
            generation: row.life.generation.0,
            attempt: row.life.attempt,
            started_at: self.now(),
            ended_at: self.now(),
            result: if again { AttemptResult::Failed } else { AttemptResult::Ok },
            status: None,
            reply: None,
            detail: None,
            node: "a".into(),
            delivery_id: None,
            worker: None,
        };
        if !again {
            let ended = self.rig.store.finish_delivered(&[(uid, record)]).await.expect("ends");
            assert_eq!(ended, [uid]);
            self.live.remove(&uid);
            return;
        }
        let at = UnixMs::new(self.now() + self.rng.random_range(1..90_000));
        let (row, _) = self.change(uid, ChangeEvent::Attempted(Next::Retry(at), record)).await;
        let pointer = row.pointer(Via::Express).expect("it waits");
        assert_eq!((pointer.wake_at, pointer.attempt), (at, row.life.attempt));
        self.log.push(format!("{uid:?} fails, again in {} ms", at.get() - self.now()));
        self.live.insert(uid, pointer);
        self.node.promote(&[pointer]).await;
    }

    async fn beats(&self) -> Vec<i64> {
        let shards: Vec<i32> = (0..SHARDS).collect();
        let all = self.rig.hot.look(&shards).await.expect("looks");
        all.into_iter().map(|one| one.map_or(0, |one| one.beat)).collect()
    }

    /// Whether nothing is known to this owner alone that the next would have to know.
    fn is_sure(&self) -> bool {
        !self.unnoticed && self.node.positions().waiting().is_empty()
    }

    /// One operation; time passes in most.
    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..=29 => self.insert().await,
            30..=36 => self.cancel().await,
            37..=46 => self.reschedule().await,
            47..=69 => {
                let ms = self.rng.random_range(1..3000);
                self.advance(ms).await;
            }
            70..=76 => {
                let ms = self.rng.random_range(3000..40_000);
                self.advance(ms).await;
            }
            77..=78 => {
                let ms = self.rng.random_range(1..4) * 60_000;
                self.advance(ms).await;
            }
            79..=82 if self.is_sure() => {
                self.log.push("crash".into());
                self.rig.hot.survive_a_crash().await;
                self.node = self.rig.start(self.node.name().to_owned().as_str()).await;
                self.first_round().await;
            }
            83..=85 if self.is_sure() => {
                self.log.push("take-over".into());
                self.rig.hot.heal();
                let name = format!("n{}", self.rng.random_range(0..u32::MAX));
                let next = self.rig.supersede(&self.node, &name).await;
                self.ghosts.push(std::mem::replace(&mut self.node, next));
                self.first_round().await;
            }
            86..=87 => {
                self.log.push("flush".into());
                self.rig.hot.flush().await;
            }
            88 => {
                self.log.push("replace".into());
                self.rig.hot.rename();
                self.unnoticed = true;
            }
            89..=92 => {
                self.log.push("copy".into());
                self.kept = Some((self.rig.hot.snapshot().await, self.beats().await));
            }
            93..=95 => {
                let now = self.beats().await;
                if let Some((kept, beats)) = &self.kept
                    && beats.iter().zip(&now).all(|(then, now)| then < now)
                    && self.node.positions().has_looked()
                {
                    self.log.push("roll back".into());
                    self.rig.hot.roll_back(kept).await;
                    self.unnoticed = true;
                    if self.rng.random() {
                        self.insert().await;
                    }
                    self.advance(1500).await;
                }
            }
            96..=97 if self.node.positions().has_looked() => {
                let call =
                    [Call::Append, Call::Take, Call::HandOver, Call::SetLoaded][self.rng.random_range(0..4)];
                let fault = [Fault::Fail, Fault::LoseAnswer][self.rng.random_range(0..2)];
                self.log.push(format!("{call:?}: {fault:?}"));
                self.rig.hot.fault(call, fault);
                self.unnoticed = true;
            }
            _ => {
                let why = "somebody thinks so";
                self.log.push("lose".into());
                let positions = self.node.positions();
                positions.lose(&positions.shards(), why);
                self.unnoticed = true;
            }
        }
    }

    /// In memory nobody but the owner can promote, so what is written before its first round waits for the
    /// sweep.
    async fn first_round(&mut self) {
        if self.is_memory() || self.rng.random() {
            self.node.crank().await;
        }
    }
}

/// Where a case keeps its file: in memory if the machine allows, for nothing here is about flushing.
fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if shm.is_dir() { builder.tempdir_in(shm) } else { builder.tempdir() }.expect("a directory")
}

/// A database file with its schema, to be copied for each case.
async fn template(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("template.db");
    let url = format!("sqlite://{}", path.display());
    Rig::new(&url, TestWheel::memory(), &SETS).await.store.close().await;
    path
}

async fn run(seed: u64, at: At, template: PathBuf, log: Arc<std::sync::Mutex<Log>>) {
    let dir = scratch();
    let path = dir.path().join("t.db");
    std::fs::copy(template, &path).expect("copies");
    let hot = TestWheel::at(at).await;
    let rig = Rig::new(&format!("sqlite://{}", path.display()), hot, &SETS).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let rng = SmallRng::seed_from_u64(seed);
    let (ghosts, live, kept, told) = Default::default();
    let mut case = Case { rng, rig, node, ghosts, live, kept, unnoticed: false, named: 0, log: told };
    case.rig.clock.advance(Duration::from_millis(case.rng.random_range(0..60_000)));
    for _ in 0..STEPS {
        case.step().await;
        log.lock().expect("plain").append(&mut case.log);
    }
    case.advance(70_000).await;
    log.lock().expect("plain").append(&mut case.log);
    let found = case.rig.store.verify().await.expect("verifies");
    assert!(found.balanced && found.mismatches.is_empty(), "{found:?}");
    case.rig.store.close().await;
}

async fn law(at: At) {
    let long = std::env::var("MAINSPRING_TEST_LONG").is_ok_and(|set| set == "1");
    let one: Option<u64> =
        std::env::var("MAINSPRING_TEST_SEED").ok().map(|seed| seed.parse().expect("a seed"));
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => {
            0..match (long, at) {
                (true, _) => CASES_LONG,
                // What differs from one server is where a key lies, and the conformance suite has that too.
                (false, At::Cluster) => CASES / 5,
                (false, _) => CASES,
            }
        }
    };
    let dir = scratch();
    let template = template(&dir).await;
    // A few at once: most of a case is waiting for an answer.
    for some in seeds.collect::<Vec<u64>>().chunks(8) {
        let running = some.iter().map(|seed| {
            let log = Arc::<std::sync::Mutex<Log>>::default();
            (*seed, log.clone(), tokio::spawn(run(*seed, at, template.clone(), log)))
        });
        for (seed, log, running) in running.collect::<Vec<_>>() {
            if let Err(why) = running.await {
                let log = log.lock().expect("plain").join("\n");
                panic!("the law is broken; MAINSPRING_TEST_SEED={seed} shows it again\n{log}\n{why}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wheels_in_memory_fire_what_a_sorted_map_says() {
    law(At::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wheels_in_redis_fire_what_a_sorted_map_says() {
    law(At::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wheels_in_a_cluster_fire_what_a_sorted_map_says() {
    law(At::Cluster).await;
}

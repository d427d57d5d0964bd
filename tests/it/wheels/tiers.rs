//! The way of a timer: cold store, minute wheel, second wheel, last mile; and the races on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainspring::cold::{NewTimer, Range, ScanPlace};
use mainspring::model::id::Uid;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::time::UnixMs;
use mainspring::replay;
use mainspring::wheel::{HotWheel, Level};

use super::rig::{At, Call, Fault, Node, Rig, START, TestWheel};
use super::space::START_MS;
use crate::support::fresh_database;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;

/// What a rig is to be made of; held so that its files stay.
struct Parts {
    url: String,
    hot: TestWheel,
    _dir: Option<tempfile::TempDir>,
}

impl Parts {
    async fn new(postgres: bool, at: At) -> Self {
        let hot = TestWheel::at(at).await;
        if postgres {
            return Self { url: fresh_database().await, hot, _dir: None };
        }
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("t.db").display());
        Self { url, hot, _dir: Some(dir) }
    }
}

/// Four shards, a window of ten minutes, two minutes near.
const USUAL: [&str; 3] = ["shards=4", "wheel.window=PT10M", "wheel.near=PT2M"];

impl Parts {
    async fn rig(self, sets: &[&str]) -> (Rig, Option<tempfile::TempDir>) {
        (Rig::new(&self.url, self.hot, sets).await, self._dir)
    }
}

/// Goes on to so many milliseconds after the start, with a round just after every minute on the
/// way, which is when the watermark rises.
async fn walk(rig: &Rig, node: &mut Node, to: i64) {
    let from = rig.now().get() - START_MS;
    for minute in from / MINUTE..to / MINUTE {
        rig.at((minute * MINUTE + 1).max(from));
        node.crank().await;
    }
    rig.at(to);
    node.crank().await;
}

async fn a_timer_passes_from_sql_through_minute_and_second_to_the_last_mile(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let due = 30 * MINUTE + 7250;
    let pointer = node.write(&rig, &[rig.timer("t", due)]).await[0];
    let far = node.write(&rig, &[rig.timer("far", 40 * MINUTE)]).await[0];
    let shard = pointer.shard;
    // Each moment, what lies in second, minute and whole-minute slot, and what the last mile holds.
    for (ms, lying, held, why) in [
        (0, [0, 0, 0], 0, "cold"),
        (20 * MINUTE, [0, 0, 0], 0, "the window ends with the minute before its own"),
        (20 * MINUTE + 1, [0, 1, 0], 0, "the window has reached its minute"),
        (28 * MINUTE - 1, [0, 1, 0], 0, "its minute is not near yet"),
        (28 * MINUTE, [1, 0, 0], 0, "its minute begins within two"),
        (30 * MINUTE + 6499, [1, 0, 0], 0, "its second is not near yet"),
        (30 * MINUTE + 6500, [0, 0, 0], 1, "its second begins within half of one"),
        (30 * MINUTE + 7199, [0, 0, 0], 1, "the last mile holds it"),
    ] {
        walk(&rig, &mut node, ms).await;
        assert_eq!((rig.lying(&pointer).await, node.held().len()), (lying, held), "{why}");
        let warm = rig.row(shard).await.watermark > pointer.wake_at;
        assert_eq!(warm, ms > 20 * MINUTE, "{why}");
        assert_eq!(node.positions().watermark(shard), rig.row(shard).await.watermark, "{why}");
        let (_, _, _, standing, loaded) =
            node.positions().standings().into_iter().find(|one| one.0 == shard).expect("owned");
        assert_eq!(
            standing.map(|one| one.marks),
            rig.hot.look(&[shard]).await.expect("looks").remove(0).map(|one| one.marks)
        );
        assert!(loaded);
        let lead = rig.now().plus(Duration::from_millis(50));
        assert!(node.last_mile().take_due(lead, 10).0.is_empty(), "{why}");
    }
    assert_eq!(rig.lying(&far).await, [0, 1, 0]);
    rig.at(due - 50);
    let let_go = node.last_mile().take_due(rig.now().plus(Duration::from_millis(50)), 10).0;
    assert_eq!(let_go, [Pointer { via: Via::Loader, ..pointer }]);
    assert!(
        node.claim(&let_go, 49).await.is_empty(),
        "the claim itself refuses what is earlier than its lead"
    );
    let rows = node.claim(&let_go, 50).await;
    assert_eq!(
        rows.iter().map(|row| (row.uid, row.via)).collect::<Vec<_>>(),
        [(pointer.uid, Some(Via::Loader))]
    );
}

async fn a_timer_that_is_near_goes_where_its_slots_are_open(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    rig.at(250);
    node.crank().await;
    // The second that begins within half of one is taken; the minute of +2 min is cascaded.
    for (due, lying, held) in [
        (-5 * SECOND, [0, 0, 0], 1),
        (250, [0, 0, 0], 1),
        (999, [0, 0, 0], 1),
        (SECOND, [1, 0, 0], 0),
        (3 * MINUTE - 1, [1, 0, 0], 0),
        (3 * MINUTE, [0, 1, 0], 0),
        (11 * MINUTE - 1, [0, 1, 0], 0),
        (11 * MINUTE, [0, 0, 0], 0),
    ] {
        let before = node.held().len();
        let pointer = node.write(&rig, &[rig.timer(&format!("t{due}"), due)]).await[0];
        assert_eq!((rig.lying(&pointer).await, node.held().len() - before), (lying, held), "{due}");
        assert_eq!(pointer.wake_at, UnixMs::new(START_MS + due.max(250)));
    }
}

async fn a_timer_of_minute_precision_waits_in_its_whole_minute(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let minute = |id: &str, due| NewTimer { minute: true, ..rig.timer(id, due) };
    let cold = node.write(&rig, &[minute("cold", 15 * MINUTE)]).await[0];
    let near = node.write(&rig, &[minute("near", MINUTE)]).await[0];
    assert_eq!((rig.lying(&cold).await, rig.lying(&near).await), ([0, 0, 0], [0, 0, 1]));
    for (ms, lying, held) in [
        (59_499, [0, 0, 0], 0),
        (59_500, [0, 0, 0], 1),
        (5 * MINUTE, [0, 0, 0], 0),
        (5 * MINUTE + 1, [0, 0, 1], 0),
        // Never cascaded.
        (13 * MINUTE, [0, 0, 1], 0),
        (15 * MINUTE - 501, [0, 0, 1], 0),
        (15 * MINUTE - 500, [0, 0, 0], 1),
    ] {
        walk(&rig, &mut node, ms).await;
        assert_eq!((rig.lying(&cold).await, node.held().len()), (lying, held), "{ms}");
        let let_go = node.last_mile().take_due(UnixMs::new(START_MS + 14 * MINUTE), 10).0;
        if held == 1 && ms < MINUTE {
            assert_eq!(let_go, [Pointer { via: Via::Express, ..near }]);
            assert!(node.claim(&let_go, 0).await.is_empty(), "half a second early");
        }
    }
    rig.at(15 * MINUTE);
    let rows = node.claim(&node.due(), 0).await;
    assert_eq!(rows.iter().map(|row| row.uid).collect::<Vec<_>>(), [cold.uid]);
}

/// One step of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The writer's first, and his second.
    Writer(usize),
    /// The loader's first, and its second.
    Loader(usize),
}

/// All ways in which two steps of each can follow one another.
fn interleavings() -> Vec<[Step; 4]> {
    let mut all = Vec::new();
    for first in 0..4 {
        for second in first + 1..4 {
            let (mut writer, mut loader) = (0..2, 0..2);
            all.push(std::array::from_fn(|place| {
                if place == first || place == second {
                    Step::Writer(writer.next().expect("two"))
                } else {
                    Step::Loader(loader.next().expect("two"))
                }
            }));
        }
    }
    all
}

/// What the loader does in its two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Commits the watermark, then scans: as it is.
    WatermarkThenScan,
    /// Scans, then commits the watermark.
    ScanThenWatermark,
    /// A lost wheel is built anew: replay commits the watermark and orders the scan.
    Rebuild,
}

/// Runs one race in every interleaving; tells in which the timer was missed. In each the window moves on by
/// a step, and the timer is due in the slice that it takes in.
async fn missed(
    rig: &Rig,
    owner: &mut Node,
    writer: Option<&Node>,
    order: Order,
    commit_first: bool,
) -> Vec<[Step; 4]> {
    let mut missed = Vec::new();
    owner.crank().await;
    for (n, steps) in interleavings().into_iter().enumerate() {
        let now = (n as i64 + 1) * MINUTE + 1;
        rig.at(now - 1);
        owner.crank().await;
        rig.at(now);
        let due = now - 1 + 10 * MINUTE + 30 * SECOND;
        let timer = rig.timer(&format!("t{n}"), due);
        let owned = owner.promoter.ownership.claimable();
        let old = rig.row(0).await.watermark;
        let target = UnixMs::new(old.get() + MINUTE);
        assert!((old..target).contains(&timer.due_at), "due in the slice that comes in");
        if order == Order::Rebuild {
            rig.hot.flush().await;
            assert!(owner.tick().await.is_ok());
            owner.positions().lose(&owner.positions().shards(), "it was emptied");
        }
        let (mut pointer, mut seen, mut near) = (None, Vec::new(), false);
        let by = writer.unwrap_or(owner);
        for step in steps {
            match (step, order, commit_first) {
                (Step::Writer(0), _, true) => {
                    pointer = Some(rig.commit(std::slice::from_ref(&timer)).await[0])
                }
                (Step::Writer(_), _, true) => by.promote(pointer.as_slice()).await,
                // Naive: the watermark is read first, and what it said is acted on after the commit.
                (Step::Writer(0), ..) => {
                    near = timer.due_at < rig.row(0).await.watermark;
                }
                (Step::Writer(_), ..) => {
                    pointer = Some(rig.commit(std::slice::from_ref(&timer)).await[0]);
                    if near {
                        by.promote(pointer.as_slice()).await;
                    }
                }
                (Step::Loader(0), Order::WatermarkThenScan, _) => owner.loader.raise().await.expect("raises"),
                (Step::Loader(0), Order::Rebuild, _) => {
                    replay::run_once(&owner.promoter, owner.loader.window).await.expect("builds");
                }
                (Step::Loader(_), Order::WatermarkThenScan | Order::Rebuild, _) => {
                    owner.loader.scan().await.map(drop).expect("scans");
                }
                // Naive: what the slice holds now is all that it will ever hold.
                (Step::Loader(0), Order::ScanThenWatermark, _) => {
                    let slice = |(shard, _): &(i32, _)| Range {
                        shard: *shard,
                        after: ScanPlace::before(old.get()),
                        until: target.get(),
                    };
                    let slices: Vec<Range> = owned.iter().map(slice).collect();
                    seen = rig.store.scan(&slices, 100).await.expect("scans");
                }
                (Step::Loader(_), Order::ScanThenWatermark, _) => {
                    let shards = rig.store.raise_watermarks(&owned, target).await.expect("raises");
                    owner.positions().raise(&shards, target);
                    for range in owner.positions().ranges() {
                        owner.positions().scanned(&range, None, 0, 0);
                    }
                }
            }
        }
        let pointer = pointer.expect("committed");
        let lying: usize = rig.lying(&pointer).await.iter().sum();
        let caught = lying + seen.iter().filter(|one| one.uid == pointer.uid).count();
        if caught == 0 {
            missed.push(steps);
        }
        assert!(order != Order::WatermarkThenScan || rig.row(0).await.watermark == target);
    }
    missed
}

/// The cure of the race between writer and loader, in every interleaving.
async fn who_commits_then_reads_the_watermark_is_never_missed(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    assert_eq!(missed(&rig, &mut node, None, Order::WatermarkThenScan, true).await, [] as [[Step; 4]; 0]);
}

/// The same while a lost wheel is built anew.
async fn who_writes_while_a_wheel_is_built_is_never_missed(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    assert_eq!(missed(&rig, &mut node, None, Order::Rebuild, true).await, [] as [[Step; 4]; 0]);
}

/// Why the loader commits before it scans: the other order misses whoever commits and reads in between.
async fn a_loader_that_scans_first_would_miss_a_timer(parts: Parts) {
    use Step::{Loader, Writer};
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    let missed = missed(&rig, &mut node, None, Order::ScanThenWatermark, true).await;
    assert_eq!(missed, [[Loader(0), Writer(0), Writer(1), Loader(1)]]);
}

/// Why a writer commits before it reads the watermark: the other order is missed by a whole round between.
async fn a_writer_that_reads_first_would_be_missed(parts: Parts) {
    use Step::{Loader, Writer};
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    let missed = missed(&rig, &mut node, None, Order::WatermarkThenScan, false).await;
    assert_eq!(missed, [[Writer(0), Loader(0), Loader(1), Writer(1)]]);
}

/// A writer on another node reads the watermark from SQL.
#[tokio::test(flavor = "multi_thread")]
async fn who_writes_on_another_node_is_never_missed() {
    for order in [Order::WatermarkThenScan, Order::Rebuild] {
        let (rig, _dir) = Parts::new(true, At::Redis).await.rig(&USUAL).await;
        let mut owner = rig.start("a").await;
        let writer = rig.start("b").await;
        assert_eq!((owner.promoter.ownership.count(), writer.promoter.ownership.count()), (4, 0));
        let missed = missed(&rig, &mut owner, Some(&writer), order, true).await;
        assert_eq!(missed, [] as [[Step; 4]; 0]);
    }
}

/// Many writers, a loader over moving window ends: every timer comes to the last mile in time, and none
/// before; nobody sweeps.
async fn many_writers_beside_a_moving_window_are_all_served(parts: Parts) {
    let sets = ["shards=4", "wheel.window=PT60S", "wheel.near=PT5S"];
    let (rig, _dir) = parts.rig(&sets).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let rig = Arc::new(rig);
    let writing = Arc::new(AtomicUsize::new(4));
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let (rig, promoter) = (Arc::clone(&rig), Arc::clone(&node.promoter));
            let writing = Arc::clone(&writing);
            tokio::spawn(async move {
                let mut all = Vec::new();
                for batch in 0..25_u64 {
                    let edge = rig.now().get() - START_MS + 60 * SECOND;
                    let timers: Vec<NewTimer> = (0..40_u64)
                        .map(|n| {
                            // Spread over eight seconds to both sides of the window's end.
                            let by = ((batch * 40 + n) * 7919 + writer * 104_729) % 16_000;
                            rig.timer(&format!("t{writer}-{batch}-{n}"), edge + by as i64 - 8000)
                        })
                        .collect();
                    let pointers = rig.commit(&timers).await;
                    tokio::task::yield_now().await;
                    promoter.promote(&pointers).await;
                    all.extend(pointers);
                }
                writing.fetch_sub(1, Ordering::SeqCst);
                all
            })
        })
        .collect();
    let mut rounds = 0_i64;
    while writing.load(Ordering::SeqCst) > 0 && rounds < 5000 {
        rounds += 1;
        // Up to 40 s: then the earliest of the timers is still to come.
        if rounds < 400 {
            rig.at(rounds * 100);
        }
        node.loader.run_once().await.expect("loads");
        tokio::task::yield_now().await;
    }
    let mut left: BTreeMap<Uid, Pointer> = BTreeMap::new();
    for writer in writers {
        left.extend(writer.await.expect("runs").into_iter().map(|one| (one.uid, one)));
    }
    assert_eq!(left.len(), 4000);
    let mut late = Vec::new();
    while !left.is_empty() && rig.now() < START.plus(Duration::from_secs(300)) {
        rig.clock.advance(Duration::from_secs(1));
        node.crank().await;
        for one in node.due() {
            assert!(one.wake_at <= rig.now());
            left.remove(&one.uid);
        }
        late.extend(left.values().filter(|one| one.wake_at <= rig.now()).map(|one| one.uid));
        assert!(late.is_empty(), "{} of 4000 missed after {rounds} rounds", late.len());
    }
    assert!(left.is_empty(), "{} never came", left.len());
}

async fn an_owner_under_an_old_epoch_moves_nothing(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut old = rig.start("old").await;
    old.crank().await;
    let near = old.write(&rig, &[rig.timer("near", 10 * SECOND)]).await[0];
    let minute = old.write(&rig, &[rig.timer("minute", 4 * MINUTE)]).await[0];
    let mut new = rig.usurp(&old, "new").await;
    new.crank().await;
    let shards: Vec<i32> = (0..4).collect();
    let rows = || async { rig.store.shard_rows(&[]).await.expect("reads") };
    let before = (rows().await, rig.hot.look(&shards).await.expect("looks"));
    assert!(
        before
            .1
            .iter()
            .zip(&before.0)
            .all(|(wheel, row)| wheel.as_ref().is_some_and(|one| one.epoch == row.epoch))
    );

    rig.at(3 * MINUTE);
    old.loader.raise().await.expect("asks");
    assert!(old.positions().ranges().is_empty(), "nothing was raised, so nothing is scanned");
    old.tick().await.expect("asks");
    assert_eq!(old.held(), [], "its takes are refused");
    for _ in 0..3 {
        // It looks at the wheels again, and may not even adopt them.
        old.loader.run_once().await.expect("asks");
        old.tick().await.expect("asks");
    }
    assert_eq!((rows().await, rig.hot.look(&shards).await.expect("looks")), before);
    assert_eq!((rig.lying(&near).await, rig.lying(&minute).await), ([1, 0, 0], [0, 1, 0]));
    assert!(old.claim(&[near], 0).await.is_empty(), "and it cannot claim what it remembers");

    new.loader.run_once().await.expect("loads");
    new.tick().await.expect("ticks");
    assert_eq!(new.positions().waiting(), [], "who took over was not disturbed");
    // Wheels that are not shared are built anew by who takes over, so the way it came may differ.
    let due = new.due();
    assert_eq!((due.len(), due[0].uid), (1, near.uid));
    assert_eq!(new.claim(&[near], 0).await.len(), 1);
    assert_eq!(rig.lying(&minute).await, [1, 0, 0]);
}

async fn a_crash_between_watermark_and_scan_loses_nothing(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let pointer = node.write(&rig, &[rig.timer("t", 11 * MINUTE + 500)]).await[0];
    let before = rig.row(pointer.shard).await.watermark;
    rig.at(MINUTE + 1);
    node.loader.raise().await.expect("raises");
    assert!(before <= pointer.wake_at && rig.row(pointer.shard).await.watermark > pointer.wake_at);
    assert_eq!(rig.lying(&pointer).await, [0, 0, 0], "raised, not scanned");
    drop(node);
    rig.hot.survive_a_crash().await;
    let mut node = rig.start("a").await;
    node.crank().await;
    assert_eq!(rig.lying(&pointer).await, [0, 1, 0]);
    rig.at(11 * MINUTE + 500);
    node.crank().await;
    assert_eq!(node.due().iter().map(|one| one.uid).collect::<Vec<_>>(), [pointer.uid]);
}

async fn a_cascade_that_was_cut_short_is_done_again(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    for (n, (call, fault)) in [
        (Call::Append, Fault::Stall),
        (Call::HandOver, Fault::Stall),
        (Call::Take, Fault::LoseAnswer),
        (Call::Take, Fault::Fail),
        (Call::Append, Fault::LoseAnswer),
        (Call::Append, Fault::Fail),
        (Call::HandOver, Fault::LoseAnswer),
        (Call::HandOver, Fault::Fail),
    ]
    .into_iter()
    .enumerate()
    {
        let base = n as i64 * 10 * MINUTE;
        rig.at(base);
        node.crank().await;
        let due = base + 4 * MINUTE + 500;
        let pointer = node.write(&rig, &[rig.timer(&format!("t{n}"), due)]).await[0];
        assert_eq!(rig.lying(&pointer).await, [0, 1, 0]);
        rig.at(base + MINUTE + 59_999);
        node.crank().await;
        rig.at(base + 2 * MINUTE);
        // Only the cascade takes here: the tick comes later.
        rig.hot.fault(call, fault);
        tokio::select! {
            _ = node.loader.run_once() => assert_ne!(fault, Fault::Stall),
            () = rig.hot.stalled.notified() => {}
        }
        if fault == Fault::Stall {
            let seconds = usize::from(call == Call::HandOver);
            assert_eq!(rig.lying(&pointer).await, [seconds, 1, 0], "taken, and not handed over");
            drop(node);
            rig.hot.survive_a_crash().await;
            node = rig.start("a").await;
        }
        node.crank().await;
        let lying = rig.lying(&pointer).await;
        assert!(lying[0] >= 1, "{call:?} {fault:?}: {lying:?}");
        rig.at(due);
        node.crank().await;
        let due: BTreeSet<Uid> = node.due().into_iter().map(|one| one.uid).collect();
        assert_eq!(due, BTreeSet::from([pointer.uid]), "{call:?} {fault:?}");
        assert_eq!(node.claim(&[pointer], 0).await.len(), 1);
    }
}

/// A taken slot whose hand-over to the last mile was cut, or whose answer was lost, is taken again.
async fn a_tick_that_was_cut_short_is_done_again(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    for (n, fault) in [Fault::Fail, Fault::LoseAnswer].into_iter().enumerate() {
        let due = (n as i64 + 1) * 10 * SECOND;
        let pointer = node.write(&rig, &[rig.timer(&format!("t{n}"), due)]).await[0];
        rig.at(due - 1);
        rig.hot.fault(Call::Take, fault);
        assert!(node.tick().await.is_err());
        assert_eq!((rig.lying(&pointer).await[0], node.held().len()), (1, 0));
        node.crank().await;
        assert_eq!((rig.lying(&pointer).await[0], node.held()), (0, vec![pointer]));
        rig.at(due);
        assert_eq!(node.claim(&node.due(), 0).await.len(), 1);
    }
}

async fn replays(rig: &Rig) -> Vec<(String, String)> {
    let notes = rig.store.replays(0, UnixMs::new(0), UnixMs::new(i64::MAX)).await.expect("reads");
    notes.into_iter().map(|note| (note.cause, note.detail)).collect()
}

/// A new owner goes on with an intact wheel: what was taken and may not have fired is read from SQL, and
/// nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_of_an_intact_wheel_reads_again_what_was_taken() {
    for postgres in [false, true] {
        let sets = ["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"];
        let (rig, _dir) = Parts::new(postgres, At::Redis).await.rig(&sets).await;
        let mut before = rig.start("a").await;
        before.crank().await;
        let minute = |id: &str, due| NewTimer { minute: true, ..rig.timer(id, due) };
        let all = before
            .write(
                &rig,
                &[
                    rig.timer("overdue", -SECOND),
                    rig.timer("taken", MINUTE - 1),
                    minute("taken-whole", MINUTE),
                    rig.timer("second", MINUTE + 2 * SECOND),
                    rig.timer("minute", 5 * MINUTE),
                    minute("whole", 6 * MINUTE),
                    rig.timer("cold", 30 * MINUTE),
                ],
            )
            .await;
        rig.at(MINUTE - 400);
        before.crank().await;
        let cursor = |shard| before.positions().cursor(shard);
        before.promoter.ownership.run_once(&rig.store, cursor).await.expect("renews");
        let standing = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel");
        let fired = before.claim(&before.due(), 0).await;
        assert_eq!(fired.iter().map(|row| row.uid).collect::<Vec<_>>(), [all[0].uid]);
        assert_eq!(before.held().len(), 2, "taken, and not due yet");
        drop(before);

        let mut after = rig.start("b").await;
        assert_eq!(after.promoter.ownership.count(), 0, "its lease runs still");
        drop(after);
        after = rig.start("a").await;
        after.loader.run_once().await.expect("loads");
        let held: BTreeSet<Uid> = after.held().into_iter().map(|one| one.uid).collect();
        assert_eq!(held, BTreeSet::from([all[1].uid, all[2].uid]));
        let mut lying = Vec::new();
        for one in &all[3..] {
            lying.push(rig.lying(one).await);
        }
        assert_eq!(lying, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], "none came twice");
        let now = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel");
        // The last minute is cascaded once more, in case that was cut short.
        assert_eq!((&now.incarnation, now.beat), (&standing.incarnation, standing.beat + 1));
        assert!(now.epoch > standing.epoch);
        let (cause, detail) = replays(&rig).await.pop().expect("a note");
        assert_eq!(
            (cause.as_str(), detail.as_str()),
            (
                "taken over from another owner, with its wheel",
                "its wheel went on turning: 0 timers were found past due, 2 put into slots"
            )
        );

        // Down for a while: every slot that was missed is taken in turn, and everything fires once.
        drop(after);
        rig.at(7 * MINUTE);
        let mut last = rig.start("a").await;
        last.crank().await;
        let mut fired: Vec<Uid> = last.due().into_iter().map(|one| one.uid).collect();
        let claimed = last.claim(&all, 0).await;
        assert_eq!((fired.len(), claimed.len()), (5, 5));
        fired.sort_unstable();
        let mut expected: Vec<Uid> = all[1..6].iter().map(|one| one.uid).collect();
        expected.sort_unstable();
        assert_eq!(fired, expected, "each once");
    }
}

/// Between the moment at which a shard is a new owner's and the one at which its wheel turns there, what is
/// written goes into the wheel: nobody scans for it when the wheel goes on as it is.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_while_a_wheel_changes_hands_goes_into_it() {
    let sets = ["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"];
    let (rig, _dir) = Parts::new(true, At::Redis).await.rig(&sets).await;
    let mut before = rig.start("a").await;
    before.crank().await;
    let mut after = rig.usurp(&before, "b").await;
    after.positions().sync(&after.promoter.ownership.kept());
    let all = after.write(&rig, &[rig.timer("second", 50 * SECOND), rig.timer("minute", 5 * MINUTE)]).await;
    after.crank().await;
    assert_eq!(rig.lying(&all[0]).await, [1, 0, 0]);
    assert_eq!(rig.lying(&all[1]).await, [0, 1, 0]);
    let (cause, _) = replays(&rig).await.pop().unwrap_or_default();
    assert!(!cause.contains("anew"), "{cause}");
}

/// The cursor in SQL tells a new owner that a wheel of the right name is an older copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_that_was_set_back_before_its_new_owner_looked_is_built_anew() {
    let sets = ["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"];
    let (rig, _dir) = Parts::new(false, At::Redis).await.rig(&sets).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let kept = rig.hot.snapshot().await;
    rig.at(3 * SECOND);
    node.crank().await;
    let pointer = node.write(&rig, &[rig.timer("t", 5 * MINUTE)]).await[0];
    let cursor = |shard| node.positions().cursor(shard);
    node.promoter.ownership.run_once(&rig.store, cursor).await.expect("renews");
    assert_eq!(rig.row(0).await.cursor_at, UnixMs::new(START_MS + 4 * SECOND));
    drop(node);
    rig.hot.roll_back(&kept).await;
    assert_eq!(rig.lying(&pointer).await, [0, 0, 0]);
    let mut next = rig.start("a").await;
    next.crank().await;
    assert_eq!(rig.lying(&pointer).await, [0, 1, 0]);
    assert_eq!(replays(&rig).await.pop().map(|(cause, _)| cause).as_deref(), Some("it went back in time"));
}

/// What could not be kept of how far a shard is loaded is read again, and its replay is told all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_told_although_the_wheel_fails_at_its_end() {
    let sets = ["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"];
    let (rig, _dir) = Parts::new(false, At::Redis).await.rig(&sets).await;
    let pointer = rig.commit(&[rig.timer("t", 5 * MINUTE)]).await[0];
    let node = rig.start("a").await;
    rig.hot.fault(Call::SetLoaded, Fault::Fail);
    assert!(node.loader.run_once().await.is_err());
    assert_eq!(replays(&rig).await.len(), 1);
    assert_eq!(rig.lying(&pointer).await, [0, 1, 0]);
    assert_eq!(rig.hot.look(&[0]).await.expect("looks")[0].as_ref().map(|one| one.loaded), Some(0));
    drop(node);
    let mut next = rig.start("a").await;
    next.crank().await;
    let standing = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel");
    assert_eq!(standing.loaded, rig.row(0).await.watermark.get());
    assert_eq!(rig.lying(&pointer).await, [0, 2, 0], "twice, and its claim takes one");
    rig.at(5 * MINUTE);
    next.crank().await;
    assert_eq!(next.claim(&next.due(), 0).await.len(), 1);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Emptied,
    RolledBack,
    Replaced,
    Died,
}

async fn a_wheel_that_was_lost_is_built_anew(parts: Parts) {
    let sets = ["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"];
    let (rig, _dir) = parts.rig(&sets).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    for (n, loss) in [Loss::Emptied, Loss::RolledBack, Loss::Replaced, Loss::Died].into_iter().enumerate() {
        let base = n as i64 * 20 * MINUTE;
        rig.at(base);
        node.crank().await;
        let cursor = |shard| node.positions().cursor(shard);
        node.promoter.ownership.run_once(&rig.store, cursor).await.expect("renews");
        let id = |what: &str| format!("{what}{n}");
        let first = node.write(&rig, &[rig.timer(&id("first"), base + 10 * SECOND)]).await[0];
        let kept = rig.hot.snapshot().await;
        rig.at(base + 2 * SECOND);
        node.crank().await;
        // These two come after the copy.
        let second = node.write(&rig, &[rig.timer(&id("second"), base + 30 * SECOND)]).await[0];
        let minute = node.write(&rig, &[rig.timer(&id("minute"), base + 5 * MINUTE)]).await[0];
        let before = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel");
        let noted = replays(&rig).await.len();
        let rebuilt = rig.metrics.replays.with_label_values(&["rebuilt"]).get();
        match loss {
            Loss::Emptied => rig.hot.flush().await,
            Loss::RolledBack => rig.hot.roll_back(&kept).await,
            Loss::Replaced => rig.hot.rename(),
            Loss::Died => {
                rig.hot.flush().await;
                rig.hot.rename();
                drop(node);
                node = rig.start("a").await;
            }
        }
        rig.at(base + 20 * SECOND);
        if loss != Loss::Died {
            node.tick().await.expect("asks");
            assert_eq!(node.positions().waiting().len(), 1, "{loss:?} is noticed by a tick");
            assert_eq!(node.positions().grace_ms(0, rig.now()), 0, "the sweep waits no longer for it");
        }
        node.crank().await;
        let now = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel");
        assert_ne!(now.incarnation, before.incarnation, "{loss:?}");
        let server = rig.hot.servers(&[0]).await.expect("answers").remove(0).expect("answers");
        assert_eq!(rig.row(0).await.wheel, format!("{server} {}", now.incarnation));
        assert_eq!(node.due(), [Pointer { via: Via::Replay, overdue: true, ..first }]);
        assert_eq!((rig.lying(&second).await, rig.lying(&minute).await), ([1, 0, 0], [0, 1, 0]));
        assert_eq!(node.claim(&[first], 0).await.len(), 1);
        let causes = match loss {
            Loss::Emptied => "it was emptied or built by somebody else",
            Loss::RolledBack => "it went back in time",
            Loss::Replaced => "Redis was restarted or replaced by another",
            Loss::Died if rig.hot.is_memory() => "this process started, and its wheels with it",
            Loss::Died => "Redis was restarted or replaced by another",
        };
        let notes = replays(&rig).await;
        assert_eq!(notes.len(), noted + 1, "{notes:?}");
        assert_eq!(
            notes[noted],
            (
                causes.to_owned(),
                "its wheel was built anew from SQL: 1 timers were found past due, 2 put into slots"
                    .to_owned()
            )
        );
        assert_eq!(rig.metrics.replays.with_label_values(&["rebuilt"]).get(), rebuilt + 1);
        // The rest of this round fires from the new wheel.
        rig.at(base + 5 * MINUTE);
        node.crank().await;
        let due: Vec<Pointer> = node.due();
        assert_eq!(due.iter().map(|one| one.uid).collect::<Vec<_>>(), [second.uid, minute.uid]);
        assert_eq!(node.claim(&due, 0).await.len(), 2);
    }
}

/// Slots of more than a page, and appends of more than a chunk, pass whole.
async fn a_crowded_second_passes_whole(parts: Parts) {
    let (rig, _dir) = parts.rig(&["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"]).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let mut all = BTreeSet::new();
    for batch in 0..21 {
        let timers: Vec<NewTimer> =
            (0..1000).map(|n| rig.timer(&format!("t{batch}-{n}"), 12 * MINUTE + n % 1000)).collect();
        all.extend(rig.commit(&timers).await.into_iter().map(|one| one.uid));
    }
    rig.at(3 * MINUTE);
    node.crank().await;
    let slots =
        [Level::Second, Level::Minute].map(|level| (0, level.slot_of(UnixMs::new(START_MS + 12 * MINUTE))));
    assert_eq!(rig.hot.counts(&slots).await.expect("counts"), [0, 21_000]);
    rig.at(11 * MINUTE);
    node.crank().await;
    assert_eq!(rig.hot.counts(&slots).await.expect("counts"), [21_000, 0]);
    rig.at(12 * MINUTE + SECOND);
    node.crank().await;
    let due = node.due();
    assert!(due.is_sorted_by_key(|one| one.wake_at), "in order of their due milliseconds");
    assert_eq!(due.len(), 21_000, "each once");
    assert_eq!(due.into_iter().map(|one| one.uid).collect::<BTreeSet<_>>(), all);
}

macro_rules! on_all {
    ($($rule:ident),* $(,)?) => {
        on_all!(@on sqlite_memory, false, Memory, $($rule),*);
        on_all!(@on sqlite_redis, false, Redis, $($rule),*);
        on_all!(@on postgres_memory, true, Memory, $($rule),*);
        on_all!(@on postgres_redis, true, Redis, $($rule),*);
        on_all!(@on sqlite_cluster, false, Cluster, $($rule),*);
    };
    (@on $name:ident, $postgres:expr, $at:ident, $($rule:ident),*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() {
                super::$rule(super::Parts::new($postgres, super::At::$at).await).await;
            })*
        }
    };
}

on_all!(
    a_timer_passes_from_sql_through_minute_and_second_to_the_last_mile,
    a_timer_that_is_near_goes_where_its_slots_are_open,
    a_timer_of_minute_precision_waits_in_its_whole_minute,
    who_commits_then_reads_the_watermark_is_never_missed,
    who_writes_while_a_wheel_is_built_is_never_missed,
    a_loader_that_scans_first_would_miss_a_timer,
    a_writer_that_reads_first_would_be_missed,
    many_writers_beside_a_moving_window_are_all_served,
    an_owner_under_an_old_epoch_moves_nothing,
    a_crash_between_watermark_and_scan_loses_nothing,
    a_cascade_that_was_cut_short_is_done_again,
    a_tick_that_was_cut_short_is_done_again,
    a_wheel_that_was_lost_is_built_anew,
    a_crowded_second_passes_whole,
);

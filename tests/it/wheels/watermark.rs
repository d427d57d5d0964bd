//! The watermark: of a writer and the loader, and of an old owner and a new one, none may miss a timer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainspring::cold::{NewTimer, Range};
use mainspring::hot::replay;
use mainspring::model::id::Uid;
use mainspring::model::pointer::Pointer;
use mainspring::model::time::UnixMs;
use mainspring::wheel::HotWheel;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::parts::{MINUTE, Parts, SECOND, USUAL, on_all};
use super::rig::{At, Call, Fault, Node, Rig, START};
use super::space::START_MS;

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
                    replay::run_once(&owner.promoter).await.expect("builds");
                }
                (Step::Loader(_), Order::WatermarkThenScan | Order::Rebuild, _) => {
                    owner.loader.scan().await.map(drop).expect("scans");
                }
                // Naive: what the slice holds now is all that it will ever hold.
                (Step::Loader(0), Order::ScanThenWatermark, _) => {
                    let slices: Vec<Range> =
                        owned.iter().map(|(shard, _)| Range::new(*shard, old.get(), target)).collect();
                    let found = rig.store.scan(&slices, 100).await.expect("scans");
                    seen = found.into_iter().map(|row| row.pointer).collect();
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

/// What could not be brought to another node's wheels is brought there when they can be reached again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_on_another_node_is_brought_again_until_it_is_due() {
    let (rig, _dir) = Parts::new(true, At::Redis).await.rig(&USUAL).await;
    let mut owner = rig.start("a").await;
    owner.crank().await;
    let writer = rig.start("b").await;
    let (door, inbox) = mpsc::channel(10);
    let promoting = tokio::spawn(Arc::clone(&writer.promoter).run(inbox, CancellationToken::new()));
    let pointers = rig.commit(&[rig.timer("t", 60 * SECOND), rig.timer("past", -1)]).await;
    rig.hot.fault(Call::Append, Fault::Fail);
    for pointer in &pointers {
        door.send(*pointer).await.expect("promotes");
    }
    let lies = async {
        while rig.lying(&pointers[0]).await.iter().sum::<usize>() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), lies).await.expect("it is brought again");
    drop(door);
    promoting.await.expect("ends with its door");
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
    let mut new = rig.supersede(&old, "new").await;
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

on_all!(
    who_commits_then_reads_the_watermark_is_never_missed,
    who_writes_while_a_wheel_is_built_is_never_missed,
    a_loader_that_scans_first_would_miss_a_timer,
    a_writer_that_reads_first_would_be_missed,
    many_writers_beside_a_moving_window_are_all_served,
    an_owner_under_an_old_epoch_moves_nothing,
);

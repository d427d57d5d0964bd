//! The way of a timer: cold store, minute wheel, second wheel, last mile; and what cuts it short.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainspring::cold::NewTimer;
use mainspring::model::id::Uid;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::time::UnixMs;
use mainspring::promotion::Promotion;
use mainspring::wheel::{HotWheel, Level};

use super::parts::{MINUTE, Parts, SECOND, USUAL, on_all, walk};
use super::rig::{Call, Fault};
use super::space::START_MS;

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

/// A shard keeps the reach it had: what lies within is promoted by whoever writes it, whatever the window is now.
async fn after_the_window_was_shortened_what_is_written_within_the_old_one_is_promoted(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let positions = Some(Arc::clone(&node.promoter.positions));
    let (promotion, mut inbox) =
        Promotion::new(rig.store.clock().clone(), Duration::from_secs(60), positions, rig.metrics.clone());
    for (id, due, promoted) in [("within", 8 * MINUTE, true), ("beyond", 11 * MINUTE, false)] {
        let pointer = rig.commit(&[rig.timer(id, due)]).await[0];
        let row = rig.store.find(pointer.uid).await.expect("reads").expect("is there");
        promotion.written([&row]);
        assert_eq!(inbox.try_recv().ok().map(|one| one.uid), promoted.then_some(pointer.uid), "{id}");
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

on_all!(
    a_timer_passes_from_sql_through_minute_and_second_to_the_last_mile,
    a_timer_that_is_near_goes_where_its_slots_are_open,
    a_timer_of_minute_precision_waits_in_its_whole_minute,
    after_the_window_was_shortened_what_is_written_within_the_old_one_is_promoted,
    a_crash_between_watermark_and_scan_loses_nothing,
    a_cascade_that_was_cut_short_is_done_again,
    a_tick_that_was_cut_short_is_done_again,
    a_crowded_second_passes_whole,
);

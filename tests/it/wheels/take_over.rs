//! Wheels that change hands, and wheels that are lost.

use std::collections::BTreeSet;

use mainspring::cold::NewTimer;
use mainspring::model::id::Uid;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::time::UnixMs;
use mainspring::wheel::HotWheel;

use super::parts::{MINUTE, Parts, SECOND, on_all};
use super::rig::{At, Call, Fault, Rig};
use super::space::START_MS;

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

        // Down for a while: every slot that was missed is taken in turn. Down for long: its overdue timers are
        // read in order and at the set rate instead. Either way everything fires once.
        drop(after);
        for (at, cause, missed) in [
            (2 * MINUTE + 30 * SECOND, "taken over from another owner, with its wheel", &all[1..4]),
            (7 * MINUTE, "it stood still for long", &all[4..6]),
        ] {
            rig.at(at);
            let mut last = rig.start("a").await;
            last.crank().await;
            let due = last.due();
            assert_eq!(due.iter().all(|one| one.via == Via::Replay), cause.contains("long"), "{due:?}");
            let fired: BTreeSet<Uid> = due.iter().map(|one| one.uid).collect();
            assert_eq!(fired, missed.iter().map(|one| one.uid).collect());
            assert_eq!(
                (due.len(), last.claim(&due, 0).await.len()),
                (missed.len(), missed.len()),
                "each once"
            );
            assert_eq!(replays(&rig).await.pop().map(|(cause, _)| cause).as_deref(), Some(cause));
        }
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
    let mut after = rig.supersede(&before, "b").await;
    after.positions().sync(&after.promoter.ownership.kept());
    let all = after.write(&rig, &[rig.timer("second", 50 * SECOND), rig.timer("minute", 5 * MINUTE)]).await;
    after.crank().await;
    assert_eq!(rig.lying(&all[0]).await, [1, 0, 0]);
    assert_eq!(rig.lying(&all[1]).await, [0, 1, 0]);
    let (cause, _) = replays(&rig).await.pop().unwrap_or_default();
    assert!(!cause.contains("anew"), "{cause}");
}

/// An owner that stood still in the midst of an append wakes to its failure, and the shard is another's: that one
/// has taken the wheel as it was, and knows of nothing that would be missing.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_could_not_add_goes_to_the_next_owner() {
    let sets = ["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"];
    let (rig, _dir) = Parts::new(true, At::Redis).await.rig(&sets).await;
    let mut before = rig.start("a").await;
    before.crank().await;
    let all = rig.commit(&[rig.timer("second", 50 * SECOND), rig.timer("minute", 5 * MINUTE)]).await;
    let mut after = rig.supersede(&before, "b").await;
    after.crank().await;
    rig.hot.fault(Call::Append, Fault::Fail);
    let left = before.promoter.promote(&all).await;
    assert_eq!(left, all, "nothing is dropped");
    let left = before.promoter.promote(&left).await;
    assert_eq!(left, all, "its wheel is lost, as far as it knows");
    before.promoter.ownership.run_once(&rig.store, |_| 0).await.expect("learns that it has lost the shard");
    assert_eq!(before.promoter.promote(&left).await, []);
    assert_eq!((rig.lying(&all[0]).await, rig.lying(&all[1]).await), ([1, 0, 0], [0, 1, 0]));
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
    assert_eq!(replays(&rig).await.pop().map(|(cause, _)| cause).as_deref(), Some("it was rolled back"));
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

/// What a dead owner had claimed is seen to when its shard is taken over: not when the sweep comes round to it.
async fn what_a_dead_owner_had_claimed_is_due_at_the_take_over(parts: Parts) {
    let sets = ["shards=4", "wheel.window=PT10M", "wheel.near=PT2M", "lease=PT3S"];
    let (rig, _dir) = parts.rig(&sets).await;
    let mut before = rig.start("a").await;
    before.crank().await;
    let pointers = before.write(&rig, &[rig.timer("t", 100)]).await;
    rig.at(60);
    assert_eq!(before.claim(&pointers, 50).await.len(), 1);
    rig.at(60 + 3001);
    let mut after = rig.start("b").await;
    after.crank().await;
    let (sweep, mut inbox) = rig.sweep(&after);
    sweep.run_once().await.expect("sweeps");
    let again = inbox.try_recv().expect("promoted by whoever found it");
    assert_eq!((again.uid, again.attempt, again.wake_at), (pointers[0].uid, 1, rig.now()));
    after.promote(&[again]).await;
    assert_eq!(after.claim(&after.due(), 50).await.len(), 1);
    assert!(after.promoter.ownership.take_recalled().is_empty(), "seen to once");
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
            Loss::Emptied => "it was emptied, or built anew by another process",
            Loss::RolledBack => "it was rolled back",
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

/// The clock jumps forward, or Redis was away for long: what was due meanwhile is read in order and at the set rate, and
/// nobody takes slot after slot.
async fn a_wheel_that_stood_still_under_its_owner_is_built_anew(parts: Parts) {
    const HOUR: i64 = 60 * MINUTE;
    let (rig, _dir) = parts.rig(&["shards=1", "wheel.window=PT10M", "wheel.near=PT2M"]).await;
    let mut node = rig.start("a").await;
    node.crank().await;
    let timers = [
        rig.timer("soon", MINUTE),
        rig.timer("second", HOUR - 70 * SECOND),
        rig.timer("minute", HOUR - SECOND),
        rig.timer("next", HOUR + 30 * SECOND),
        rig.timer("far", HOUR + 5 * MINUTE),
    ];
    let [soon, second, minute, next, far] = node.write(&rig, &timers).await[..] else { panic!("five") };
    let built = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel").incarnation;

    rig.at(119 * SECOND);
    node.loader.run_once().await.expect("loads");
    node.crank().await;
    assert_eq!(rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel").incarnation, built);
    assert_eq!(node.due(), [soon], "slot after slot, as long as it is not for long");
    assert_eq!(node.claim(&[soon], 0).await.len(), 1);

    rig.at(HOUR);
    node.loader.run_once().await.expect("loads");
    let standing = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel");
    assert_ne!(standing.incarnation, built);
    assert!(node.positions().cursor(0) >= rig.now().get(), "it begins at the new time: {standing:?}");
    node.crank().await;
    assert_eq!(
        node.due(),
        [second, minute].map(|one| Pointer { via: Via::Replay, overdue: one == second, ..one })
    );
    assert_eq!((rig.lying(&next).await, rig.lying(&far).await), ([1, 0, 0], [0, 1, 0]));
    assert_eq!(node.claim(&[second, minute], 0).await.len(), 2);
    let told = "its wheel was built anew from SQL: 2 timers were found past due, 2 put into slots";
    let note = ("it stood still for long".to_owned(), told.to_owned());
    assert_eq!(replays(&rig).await.pop(), Some(note));
}

on_all!(
    what_a_dead_owner_had_claimed_is_due_at_the_take_over,
    a_wheel_that_was_lost_is_built_anew,
    a_wheel_that_stood_still_under_its_owner_is_built_anew,
);

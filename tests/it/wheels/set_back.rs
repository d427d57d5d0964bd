//! A store whose clock is set by an hour under a node with wheels.

use std::time::Duration;

use mainspring::model::timer::State;
use mainspring::wheel::HotWheel;

use super::parts::{MINUTE, Parts, SECOND, USUAL, on_all, walk};
use super::rig::{At, Node, Rig};
use super::space::START_MS;

const HOUR: i64 = 60 * MINUTE;

/// Leases run by the machine's time, and a busy one may take long until here.
async fn renew(rig: &Rig, node: &Node) {
    let cursor = |shard| node.positions().cursor(shard);
    node.promoter.ownership.run_once(&rig.store, cursor).await.expect("renews");
}

/// Wheels that were taken an hour too far are built anew at the new time, with the window from there on.
async fn wheels_begin_anew_where_the_clock_was_set(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    rig.at(HOUR);
    node.crank().await;
    let by_then = node.write(&rig, &[rig.timer("by-then", HOUR + 30 * SECOND)]).await[0];
    let cursor = |shard| node.positions().cursor(shard);
    assert_eq!(node.promoter.ownership.run_once(&rig.store, cursor).await.expect("renews").set_back_ms, 0);

    rig.at(0);
    let cursor = |shard| node.positions().cursor(shard);
    let round = node.promoter.ownership.run_once(&rig.store, cursor).await.expect("renews");
    assert_eq!((round.set_back_ms, round.lost.len()), (HOUR + MINUTE, 0), "an hour, and the lease");
    let near = node.write(&rig, &[rig.timer("near", 5 * MINUTE)]).await[0];
    node.crank().await;
    for shard in 0..4 {
        let row = rig.row(shard).await;
        assert_eq!(row.watermark.get(), START_MS + 11 * MINUTE);
        assert_eq!(node.positions().watermark(shard), row.watermark);
        assert_eq!(node.positions().cursor(shard), START_MS + SECOND);
    }
    assert_eq!(rig.lying(&near).await, [0, 1, 0]);
    assert!(node.due().is_empty());
    walk(&rig, &mut node, 5 * MINUTE).await;
    // Maybe twice: it was in the last mile when its wheel was built anew. The claim drops the second.
    let due = node.due();
    assert!(!due.is_empty() && due.iter().all(|one| one.uid == near.uid), "{due:?}");
    renew(&rig, &node).await;
    assert_eq!(node.claim(&[near], 0).await.len(), 1);
    walk(&rig, &mut node, HOUR + 30 * SECOND - 1).await;
    assert!(node.due().iter().all(|one| one.uid != by_then.uid), "not before its time by the clock of now");
    walk(&rig, &mut node, HOUR + 30 * SECOND).await;
    assert!(node.due().iter().any(|one| one.uid == by_then.uid));
    renew(&rig, &node).await;
    assert_eq!(node.claim(&[by_then], 0).await.len(), 1);
}

/// A set-back by less than a wheel is ahead of the clock anyway, or by a little more, builds nothing.
async fn a_small_step_back_builds_no_wheel_anew(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    rig.at(HOUR);
    node.crank().await;
    let built = rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel").incarnation;
    rig.at(HOUR - 5 * SECOND);
    let soon = node.write(&rig, &[rig.timer("soon", HOUR - 3 * SECOND)]).await[0];
    node.crank().await;
    assert_eq!(rig.hot.look(&[0]).await.expect("looks").remove(0).expect("a wheel").incarnation, built);
    rig.at(HOUR - 3 * SECOND);
    assert_eq!(node.due().iter().map(|one| one.uid).collect::<Vec<_>>(), [soon.uid]);
}

/// By its own clock the node has its lease still, and by the store's another node may have the shard.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_jump_forward_has_ended_sends_nothing() {
    let (rig, _dir) = Parts::new(true, At::Memory).await.rig(&USUAL).await;
    let node = rig.start("a").await;
    let ownership = &node.promoter.ownership;
    let epoch = ownership.begin(0).expect("is its own");
    let may_send = || ownership.valid(0, epoch, rig.now());
    assert!(may_send());
    rig.at(HOUR);
    assert!(!may_send() && ownership.owns(0, epoch));
    renew(&rig, &node).await;
    assert!(may_send(), "nobody had taken it");
    rig.at(0);
    assert!(may_send(), "after a set-back its own clock tells");
}

/// An owner dies with a claim, the clock is set back, and the next owner ends the claim within moments.
async fn a_dead_owners_claim_is_found_though_the_clock_was_set_back(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut before = rig.start("a").await;
    rig.at(HOUR);
    before.crank().await;
    before.promoter.ownership.run_once(&rig.store, |_| 0).await.expect("renews");
    let timer = before.write(&rig, &[rig.timer("t", HOUR)]).await[0];
    assert_eq!(before.claim(&[timer], 0).await.len(), 1);
    drop(before);
    rig.hot.survive_a_crash().await;

    rig.at(0);
    let mut after = rig.start("a").await;
    after.crank().await;
    let (sweep, _promoted) = rig.sweep(&after);
    sweep.run_once().await.expect("brings back");
    let round = after.promoter.ownership.run_once(&rig.store, |_| 0).await.expect("recalls");
    assert_eq!(round.recalled, 1);
    sweep.run_once().await.expect("ends the claim");
    let row = rig.store.find(timer.uid).await.expect("reads").expect("is there");
    assert_eq!((row.life.state, row.life.uncertain), (State::Retrying, true));
    assert!(row.life.wake_at <= rig.now().plus(Duration::from_secs(1)));
}

/// A clock that is ahead between two heartbeats leaves no lease from the future, but claims.
async fn a_claim_is_found_though_no_lease_was_made_by_the_clock_that_was_ahead(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let node = rig.start("a").await;
    let timer = node.write(&rig, &[rig.timer("t", HOUR)]).await[0];
    rig.at(HOUR);
    assert_eq!(node.claim(&[timer], 0).await.len(), 1);
    rig.at(0);
    let round = node.promoter.ownership.run_once(&rig.store, |_| 0).await.expect("renews");
    assert_eq!(round.set_back_ms, HOUR + MINUTE, "an hour, and the lease");
    let (sweep, _promoted) = rig.sweep(&node);
    sweep.run_once().await.expect("brings back");
    let row = rig.store.find(timer.uid).await.expect("reads").expect("is there");
    assert_eq!(row.life.state, State::Delivering);
    assert!(row.life.wake_at <= rig.now().plus(Duration::from_secs(300)), "{:?}", row.life.wake_at);
}

/// A registration began before the clock was set back, and was committed after the claims were looked through.
async fn what_is_committed_after_the_look_is_found_by_a_later_one(parts: Parts) {
    let (rig, _dir) = parts.rig(&USUAL).await;
    let mut node = rig.start("a").await;
    rig.at(HOUR);
    node.crank().await;
    renew(&rig, &node).await;
    rig.at(0);
    renew(&rig, &node).await;
    let (sweep, mut promoted) = rig.sweep(&node);
    sweep.run_once().await.expect("brings back");
    let timer = rig.commit(&[rig.timer("t", 30 * SECOND)]).await[0];
    let by_then = format!("UPDATE timers SET wake_at = {0}, created_at = {0}", START_MS + HOUR);
    rig.behind_its_back(&by_then).await;
    let wakes =
        async || rig.store.find(timer.uid).await.expect("reads").expect("is there").life.wake_at.get();
    sweep.run_once().await.expect("looks no sooner than it has to");
    assert_eq!(wakes().await, START_MS + HOUR);
    rig.at(SECOND);
    sweep.run_once().await.expect("looks again");
    assert_eq!(wakes().await, START_MS + 30 * SECOND);
    let pointer = promoted.try_recv().expect("no wheel knows it");
    assert_eq!((pointer.uid, pointer.wake_at.get()), (timer.uid, START_MS + 30 * SECOND));
}

on_all!(
    a_claim_is_found_though_no_lease_was_made_by_the_clock_that_was_ahead,
    what_is_committed_after_the_look_is_found_by_a_later_one,
    wheels_begin_anew_where_the_clock_was_set,
    a_small_step_back_builds_no_wheel_anew,
    a_dead_owners_claim_is_found_though_the_clock_was_set_back,
);

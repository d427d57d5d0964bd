//! Timers that are moved again and again: few pointers stay behind, and the last moment is kept by the wheels.

use std::collections::BTreeMap;

use mainspring::cold::{Change, ChangeEvent, Edit};
use mainspring::model::namespace::Namespace;
use mainspring::model::pointer::Pointer;
use mainspring::model::target::{Target, Webhook};
use mainspring::model::time::UnixMs;
use mainspring::writer::Writer;
use tokio::sync::mpsc;

use super::parts::{MINUTE, Parts, SECOND, USUAL, on_all, walk};
use super::rig::{Node, Rig};
use super::space::START_MS;

/// The reach of the wheels, and what their watermark may be beyond it.
const WINDOW: i64 = 11 * MINUTE;

/// One timer on a node, and the writer that moves it.
struct Mover {
    rig: Rig,
    node: Node,
    writer: Writer,
    inbox: mpsc::Receiver<Pointer>,
    pointer: Pointer,
    fired: usize,
    _dir: Option<tempfile::TempDir>,
}

impl Mover {
    /// The timer is due so many milliseconds after the start.
    async fn new(parts: Parts, due_ms: i64, minute: bool) -> Self {
        let (rig, dir) = parts.rig(&USUAL).await;
        let mut node = rig.start("a").await;
        node.crank().await;
        let timer = mainspring::cold::NewTimer { minute, ..rig.timer("t", due_ms) };
        let pointer = node.write(&rig, &[timer]).await[0];
        let (writer, inbox) = rig.writer(&node);
        Self { rig, node, writer, inbox, pointer, fired: 0, _dir: dir }
    }

    async fn edit(&mut self, edit: Edit) {
        let change = Change { uid: self.pointer.uid, caller: None, event: ChangeEvent::Edit(edit) };
        self.writer.apply(&[change]).await.remove(0).expect("applies");
        while let Ok(pointer) = self.inbox.try_recv() {
            self.node.promote(&[pointer]).await;
        }
    }

    async fn to(&mut self, due_ms: i64) {
        self.edit(Edit { due_at: Some(UnixMs::new(START_MS + due_ms)), ..Edit::default() }).await;
    }

    /// Goes on to a moment; whatever falls due by then comes from the wheels and is claimed.
    async fn walk(&mut self, to_ms: i64) {
        walk(&self.rig, &mut self.node, to_ms).await;
        let due = self.node.due();
        self.fired += self.node.claim(&due, 0).await.len();
        self.node.crank().await;
    }

    /// How many pointers are in the slots and in the last mile.
    async fn pointers(&self) -> usize {
        let now = self.rig.now().get() - START_MS;
        self.rig.lying_until(self.pointer.shard, now + WINDOW).await + self.node.held().len()
    }

    /// The timer fires at this moment and no earlier, by the wheels: nothing is swept here.
    async fn fires_at(mut self, due_ms: i64) {
        self.walk(due_ms - 1).await;
        assert_eq!(self.fired, 0);
        self.walk(due_ms).await;
        assert_eq!(self.fired, 1, "the wheels bring it");
    }
}

async fn a_timer_pushed_back_at_once_keeps_one_pointer(parts: Parts) {
    let mut timer = Mover::new(parts, MINUTE, false).await;
    for n in 1..=100 {
        timer.to(MINUTE + n * SECOND).await;
    }
    assert_eq!(timer.pointers().await, 1);
    timer.fires_at(MINUTE + 100 * SECOND).await;
}

/// The pointer that it had would wait for the turn of the former receiver.
async fn a_timer_for_another_receiver_gets_a_pointer_of_its_own(parts: Parts) {
    let mut timer = Mover::new(parts, MINUTE, false).await;
    let other = Webhook::new("http://127.0.0.1:81/other", None, BTreeMap::new()).expect("a webhook");
    let lane = other.lane(Namespace::OWN);
    timer.edit(Edit { target: Some(Target::Webhook(other)), ..Edit::default() }).await;
    assert_eq!(timer.pointers().await, 2);
    walk(&timer.rig, &mut timer.node, MINUTE).await;
    let due = timer.node.due();
    assert_eq!(due.iter().filter(|one| one.lane == lane).count(), 1, "{due:?}");
    assert_eq!(timer.node.claim(&due, 0).await.len(), 1);
}

async fn a_heartbeat_leaves_two_pointers_at_most(parts: Parts) {
    let mut timer = Mover::new(parts, 3 * MINUTE, false).await;
    for beat in 1..=100 {
        timer.walk(beat * 10 * SECOND).await;
        timer.to(beat * 10 * SECOND + 3 * MINUTE).await;
        let pointers = timer.pointers().await;
        assert!((1..=2).contains(&pointers), "{pointers} after {beat} beats");
    }
    timer.fires_at(1000 * SECOND + 3 * MINUTE).await;
}

async fn a_timer_of_minute_precision_leaves_two_pointers_at_most(parts: Parts) {
    let mut timer = Mover::new(parts, 3 * MINUTE, true).await;
    for beat in 1..=60 {
        timer.walk(beat * 10 * SECOND).await;
        timer.to(beat * 10 * SECOND + 3 * MINUTE).await;
        let pointers = timer.pointers().await;
        assert!((1..=2).contains(&pointers), "{pointers} after {beat} beats");
    }
    timer.fires_at(13 * MINUTE).await;
}

async fn a_timer_moved_to_and_fro_leaves_two_pointers_at_most(parts: Parts) {
    let mut timer = Mover::new(parts, 4 * MINUTE, false).await;
    for (near, far) in [(2 * MINUTE, 4 * MINUTE), (2 * MINUTE, 30 * MINUTE)] {
        for _ in 0..50 {
            timer.to(far).await;
            timer.to(near).await;
        }
        let pointers = timer.pointers().await;
        assert!((1..=2).contains(&pointers), "{pointers} between {near} and {far}");
    }
    timer.to(3 * MINUTE).await;
    timer.fires_at(3 * MINUTE).await;
}

async fn a_timer_changed_for_the_same_moment_keeps_one_pointer(parts: Parts) {
    let mut timer = Mover::new(parts, MINUTE, false).await;
    for n in 0..50 {
        timer.edit(Edit { data: Some(Some(format!("{n}").into_bytes())), ..Edit::default() }).await;
        timer.edit(Edit { labels: Some(Some(format!(r#"{{"n":"{n}"}}"#))), ..Edit::default() }).await;
        timer.to(MINUTE).await;
    }
    assert_eq!(timer.pointers().await, 1);
}

/// The pointer that it relied on is gone with the wheel, and comes back when that is built anew.
async fn a_moved_timer_survives_the_loss_of_its_wheel(parts: Parts) {
    let mut timer = Mover::new(parts, 3 * MINUTE, false).await;
    timer.to(4 * MINUTE).await;
    timer.rig.hot.flush().await;
    timer.walk(MINUTE).await;
    assert_eq!(timer.pointers().await, 1);
    for due in [5 * MINUTE, 6 * MINUTE, 5 * MINUTE] {
        timer.to(due).await;
    }
    assert_eq!(timer.pointers().await, 1);
    timer.fires_at(5 * MINUTE).await;
}

/// Even if a pointer is lost for good, the timer has one again once that one would have come up.
async fn a_lost_pointer_is_made_up_for(parts: Parts) {
    let mut timer = Mover::new(parts, 3 * MINUTE, false).await;
    timer.to(4 * MINUTE).await;
    let relied_on = [(timer.pointer.shard, mainspring::wheel::Level::Minute.slot_of(timer.pointer.wake_at))];
    mainspring::wheel::HotWheel::hand_over(&*timer.rig.hot, &relied_on).await.expect("drops it");
    assert_eq!(timer.pointers().await, 0);
    timer.walk(3 * MINUTE + 1).await;
    timer.to(5 * MINUTE).await;
    timer.fires_at(5 * MINUTE).await;
}

on_all!(
    a_timer_pushed_back_at_once_keeps_one_pointer,
    a_timer_for_another_receiver_gets_a_pointer_of_its_own,
    a_heartbeat_leaves_two_pointers_at_most,
    a_timer_of_minute_precision_leaves_two_pointers_at_most,
    a_timer_moved_to_and_fro_leaves_two_pointers_at_most,
    a_timer_changed_for_the_same_moment_keeps_one_pointer,
    a_moved_timer_survives_the_loss_of_its_wheel,
    a_lost_pointer_is_made_up_for,
);

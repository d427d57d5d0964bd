//! Queues: a place is given out to one worker at a time, at most `times` in all, and settled once. Every answer is true,
//! also when leases end.

mod again;
mod share;

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::cold::Whose;
use mainspring::cold::{
    Applied, Asker, Asking, Backlogged, Call, Change, ChangeEvent, ColdStore, DueRow, Edit, Error, FailPoint,
    Filter, Leased, NewOperation, NewTimer, QueueRemoved, Registered, Selection, Settlement, TimerRow, Turn,
    Worker,
};
use mainspring::model::id::Uid;
use mainspring::model::namespace::Namespace;
use mainspring::model::namespace::Salt;
use mainspring::model::operation::{self, OperationId};
use mainspring::model::policy::{Late, Policies, Retry, Then};
use mainspring::model::priority::Priority;
use mainspring::model::queue::{Action, Dispatch, Held, LeaseToken, Settings, To, lane};
use mainspring::model::target::Target;
use mainspring::model::time::{LAST, Span, UnixMs};
use mainspring::model::timer::{Answer, AttemptResult, Event, Next, State};
use mainspring::queue::taken_back;
use uuid::Uuid;

use super::fixture::{Fixture, behind_its_back, on_both_stores, record};
use super::namespaces;

const Q: &str = "q";

pub fn asking(worker: &str) -> Asking {
    Asking {
        worker: worker.into(),
        groups: Vec::new(),
        most: 1,
        lease: Some(Span::from_duration(Duration::from_secs(10))),
        exclude: HashSet::new(),
        redo: false,
    }
}

/// Workers that ask a queue of the store's own namespace.
pub fn who_ask(queue: &str, asking: &[Asking]) -> Vec<Asker> {
    asking.iter().map(|one| one.clone().of(Namespace::OWN, queue)).collect()
}

pub fn for_queue(timer: NewTimer, dispatch: Dispatch) -> NewTimer {
    NewTimer { target: Target::Queue(Q.into()), dispatch: Some(dispatch), ..timer }
}

fn times(times: u32, repeat: bool) -> Dispatch {
    Dispatch { times, repeat, ..Dispatch::default() }
}

fn only(to: To) -> Dispatch {
    Dispatch { to, ..Dispatch::default() }
}

impl Fixture {
    async fn put_for(&self, id: &str, due_in_ms: i64, dispatch: Dispatch) -> Uid {
        self.put_timer(for_queue(self.timer(id, due_in_ms), dispatch)).await
    }

    async fn put_timer(&self, timer: NewTimer) -> Uid {
        assert!(matches!(self.register(std::slice::from_ref(&timer)).await[..], [Registered::New(_)]));
        timer.uid
    }

    async fn lease_all(&self, asking: &[Asking]) -> Vec<Vec<Leased>> {
        self.store.lease(Q, &who_ask(Q, asking), "a", &mut Turn::default()).await.expect("leases").given
    }

    async fn lease(&self, asking: Asking) -> Vec<Leased> {
        self.lease_all(&[asking]).await.remove(0)
    }

    /// The only item that this worker gets.
    async fn item(&self, worker: &str) -> Leased {
        let mut items = self.lease(asking(worker)).await;
        assert_eq!(items.len(), 1, "{worker}");
        items.remove(0)
    }

    async fn nothing_for(&self, worker: &str) {
        let items = self.lease(asking(worker)).await;
        assert!(items.is_empty(), "{worker}: {items:?}");
    }

    async fn settle_in(&self, queue: &str, token: LeaseToken, action: Action) -> Option<TimerRow> {
        let settlement =
            Settlement { token, lane: lane(Namespace::OWN, queue), action, result: Some("{\"n\":1}".into()) };
        let change = Change { uid: token.uid, caller: None, event: ChangeEvent::Settle(settlement) };
        match self.apply(&[change]).await.remove(0) {
            Applied::Live(row, Answer::Done) => Some(*row),
            Applied::Live(_, Answer::Stale) | Applied::NotLive => None,
            other => panic!("{other:?}"),
        }
    }

    async fn settle(&self, item: &Leased, action: Action) -> Option<TimerRow> {
        self.settle_in(Q, item.token, action).await
    }

    /// What the sweep does for queues, once.
    async fn swept(&self) -> usize {
        let owned: Vec<_> = (0..8).map(|shard| (shard, mainspring::model::id::Epoch(1))).collect();
        let found = self.look(&owned, &Backlogged::default()).await;
        let (plain, others): (Vec<&DueRow>, Vec<&DueRow>) = found
            .iter()
            .partition(|due| due.state == State::Scheduled && due.pointer.attempt == 0 && !due.too_late);
        assert!(found.iter().all(|due| due.pointer.is_for_queue));
        let plain: Vec<_> = plain.into_iter().map(|due| due.pointer).collect();
        self.store.park(&plain).await.expect("parks");
        let looks: Vec<Change> = others
            .into_iter()
            .map(|due| Change { uid: due.pointer.uid, caller: None, event: ChangeEvent::Look })
            .collect();
        self.apply(&looks).await;
        found.len()
    }

    fn after(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

async fn a_place_is_given_out_when_it_is_due_and_settled_once(f: Fixture) {
    let uid = f.put_for("t", 1000, Dispatch::default()).await;
    f.nothing_for("w1").await;
    f.clock.advance(Duration::from_millis(999));
    f.nothing_for("w1").await;
    f.clock.advance(Duration::from_millis(1));
    let item = f.item("w1").await;
    let row = f.find(uid).await;
    assert_eq!((item.timer.as_str(), item.attempt, item.due_at), ("t", 1, row.life.due_at));
    assert_eq!((item.delivery_id.clone(), item.data.clone()), (row.delivery_id(), row.body()));
    assert_eq!((row.life.state, row.life.wake_at), (State::Delivering, item.lease_until));
    assert_eq!(item.lease_until, f.now().plus(Duration::from_secs(10)));
    f.nothing_for("w2").await;
    f.nothing_for("w1").await;
    assert!(f.settle_in("other", item.token, Action::Ack).await.is_none(), "a token of another queue");
    let forged = LeaseToken { giving: 2, ..item.token };
    assert!(f.settle_in(Q, forged, Action::Ack).await.is_none());
    assert_eq!(LeaseToken::read(&item.token.text()), Some(item.token));

    let done = f.settle(&item, Action::Ack).await.expect("counts");
    assert_eq!(done.life.state, State::Delivered);
    let ended = f.find(uid).await;
    let last = ended.last.clone().expect("the attempt that ended it");
    assert_eq!(
        (last.worker.as_deref(), last.reply.as_deref(), last.attempt),
        (Some("w1"), Some("{\"n\":1}"), 1)
    );
    assert_eq!((ended.seats.as_ref().map(|seats| (seats.acked, seats.ready_at))), Some((1, None)));
    assert!(f.settle(&item, Action::Ack).await.is_none(), "settled twice");
    assert!(f.store.places(uid).await.expect("reads").is_empty());
    f.nothing_for("w2").await;
    f.balanced().await;
}

async fn what_nobody_settles_comes_back_and_counts(f: Fixture) {
    f.own_all().await;
    let retry = Retry { attempts: 2, ..Retry::default() };
    let policies = Policies { retry: Some(retry), ..Policies::default() };
    let uid = f.put_timer(NewTimer { policies, ..for_queue(f.timer("t", 0), Dispatch::default()) }).await;
    let first = f.item("w1").await;
    f.after(10);
    assert!(f.settle(&first, Action::Ack).await.is_none(), "its lease has ended, though nobody has looked");
    f.nothing_for("w2").await;
    assert_eq!(f.swept().await, 1);
    let row = f.find(uid).await;
    assert_eq!((row.life.state, row.life.uncertain, row.life.wake_at), (State::Retrying, false, LAST));
    assert!(f.settle(&first, Action::Ack).await.is_none());
    let second = f.item("w2").await;
    assert_eq!((second.delivery_id.as_str(), second.attempt), (first.delivery_id.as_str(), 2));
    assert_ne!(second.token, first.token);
    assert!(f.settle(&first, Action::Ack).await.is_none(), "only the latest token is current");
    f.after(11);
    assert_eq!(f.swept().await, 1);
    let dead = f.find(uid).await;
    assert_eq!(dead.life.state, State::Dead);
    let attempts = f.store.attempts(&dead).await.expect("reads");
    let workers: Vec<_> =
        attempts.iter().map(|one| (one.attempt, one.worker.clone(), one.result.word())).collect();
    assert_eq!(workers, [(1, Some("w1".into()), "unknown"), (2, Some("w2".into()), "unknown")]);
    f.balanced().await;
}

async fn times_is_never_exceeded(f: Fixture) {
    f.own_all().await;
    let uid = f.put_for("t", 0, times(3, false)).await;
    let first = f.item("w1").await;
    f.nothing_for("w1").await;
    let second = f.item("w2").await;
    let third = f.item("w3").await;
    f.nothing_for("w4").await;
    let ids: BTreeSet<&str> = [&first, &second, &third].map(|item| item.delivery_id.as_str()).into();
    assert_eq!(ids.len(), 3, "each place has a delivery id of its own");
    f.settle(&first, Action::Ack).await.expect("counts");
    f.nothing_for("w1").await;
    // One comes back; whoever has settled one does not get it.
    let row = f.settle(&second, Action::Retry(Some(0))).await.expect("counts");
    assert_eq!(row.life.state, State::Delivering, "the third is out");
    f.nothing_for("w1").await;
    let again = f.item("w4").await;
    assert_eq!((again.delivery_id.as_str(), again.attempt), (second.delivery_id.as_str(), 2));
    f.settle(&again, Action::Ack).await.expect("counts");
    let row = f.settle(&third, Action::Dead).await.expect("counts");
    assert_eq!(row.life.state, State::Dead, "dead when one is dead and none is left");
    let ended = f.find(uid).await;
    assert_eq!(ended.seats.as_ref().map(|seats| seats.acked), Some(2));
    assert_eq!(f.store.attempts(&ended).await.expect("reads").len(), 4);
    f.balanced().await;
}

async fn with_repeat_a_worker_holds_one_at_a_time(f: Fixture) {
    let uid = f.put_for("t", 0, times(3, true)).await;
    let many = f.lease(Asking { most: 10, ..asking("w1") }).await;
    assert_eq!(many.len(), 1);
    f.settle(&many[0], Action::Ack).await.expect("counts");
    for _ in 0..2 {
        let item = f.item("w1").await;
        f.settle(&item, Action::Ack).await.expect("counts");
    }
    assert_eq!(f.find(uid).await.life.state, State::Delivered);
    f.nothing_for("w1").await;
    f.balanced().await;
}

async fn a_worker_gives_back_gives_up_or_keeps(f: Fixture) {
    f.own_all().await;
    let uid = f.put_for("t", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    let row = f.settle(&item, Action::Extend(60_000)).await.expect("counts");
    assert_eq!(row.life.wake_at, f.now().plus(Duration::from_secs(60)));
    f.after(59);
    let row = f.settle(&item, Action::Extend(2000)).await.expect("the token does not depend on the deadline");
    assert_eq!(row.life.wake_at, f.now().plus(Duration::from_secs(2)));
    let row = f.settle(&item, Action::Retry(Some(5000))).await.expect("counts");
    assert_eq!(
        (row.life.state, row.seats.and_then(|seats| seats.ready_at)),
        (State::Retrying, Some(row.life.wake_at))
    );
    assert!(f.settle(&item, Action::Extend(2000)).await.is_none(), "it is not out any more");
    f.after(4);
    f.nothing_for("w1").await;
    f.after(1);
    let again = f.item("w1").await;
    assert_eq!(again.attempt, 2);
    let row = f.settle(&again, Action::Retry(None)).await.expect("counts");
    let wait = row.life.wake_at.since(f.now());
    assert!((1500..=2500).contains(&wait.as_millis()), "the second wait of its `retry`: {wait:?}");
    f.after(3);
    let third = f.item("w2").await;
    f.settle(&third, Action::Dead).await.expect("counts");
    assert_eq!(f.find(uid).await.life.state, State::Dead);
    f.balanced().await;
}

async fn a_cancel_tells_the_truth_about_places(f: Fixture) {
    f.own_all().await;
    let cancel = async |uid| f.change(uid, ChangeEvent::Cancel).await;
    // Nobody has it: also after a lease that ended.
    let uid = f.put_for("lost", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    let (row, answer) = cancel(uid).await;
    assert_eq!((answer, row.life.cancel_requested), (Answer::InFlight, true));
    f.nothing_for("w2").await;
    f.after(10);
    f.swept().await;
    let ended = f.find(uid).await;
    assert_eq!((ended.life.state, ended.life.uncertain), (State::Cancelled, true));
    assert!(f.settle(&item, Action::Ack).await.is_none());

    let uid = f.put_for("back", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    f.settle(&item, Action::Retry(Some(0))).await.expect("counts");
    assert_eq!(cancel(uid).await.1, Answer::Cancelled, "no place is out");
    // One has it and finishes it.
    let uid = f.put_for("done", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    assert_eq!(cancel(uid).await.1, Answer::InFlight);
    f.settle(&item, Action::Ack).await.expect("counts");
    assert_eq!(f.find(uid).await.life.state, State::Delivered);
    // Some have done it.
    let uid = f.put_for("some", 0, times(3, false)).await;
    let item = f.item("w1").await;
    f.settle(&item, Action::Ack).await.expect("counts");
    let (row, answer) = cancel(uid).await;
    assert_eq!((answer, row.seats.map(|seats| seats.acked)), (Answer::Stopped, Some(1)));
    let ended = f.find(uid).await;
    assert_eq!(ended.seats.map(|seats| seats.acked), Some(1));
    f.nothing_for("w2").await;
    // Some have done it, and one has it still.
    let uid = f.put_for("both", 0, times(3, false)).await;
    let item = f.item("w1").await;
    f.settle(&item, Action::Ack).await.expect("counts");
    let item = f.item("w2").await;
    assert_eq!(cancel(uid).await.1, Answer::InFlight);
    f.settle(&item, Action::Ack).await.expect("counts");
    let ended = f.find(uid).await;
    assert_eq!((ended.life.state, ended.life.uncertain), (State::Cancelled, true));
    assert_eq!(ended.seats.map(|seats| seats.acked), Some(2));
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.delivered, ledger.cancelled), (5, 1, 4));
    f.balanced().await;
}

/// Only a queue's own answers can say what workers have done. So a timer of which one has done something, or may have, stays
/// with its queue; and one that was sent before it came to a queue was not just cancelled.
async fn a_cancel_is_true_after_a_change_of_target(f: Fixture) {
    let owned = f.own_all().await;
    let retarget = |target| ChangeEvent::Edit(Edit { target: Some(target), ..Edit::default() });
    let away = || retarget(f.timer("x", 0).target);
    let done = f.put_for("done", 0, times(3, false)).await;
    let item = f.item("w1").await;
    f.settle(&item, Action::Ack).await.expect("counts");
    assert_eq!(f.change(done, away()).await.1, Answer::InFlight, "a place is acked");
    assert_eq!(f.change(done, ChangeEvent::Cancel).await.1, Answer::Stopped);

    let lost = f.put_for("lost", 0, times(3, false)).await;
    f.item("w1").await;
    f.after(10);
    f.swept().await;
    assert_eq!(f.change(lost, away()).await.1, Answer::InFlight, "the worker may have done it");
    // Nor does a change between the two make that unknown.
    let dispatch = ChangeEvent::Edit(Edit { dispatch: Some(times(2, false)), ..Edit::default() });
    assert_eq!(f.change(lost, dispatch).await.1, Answer::Done);
    assert_eq!(f.change(lost, away()).await.1, Answer::InFlight);
    let elsewhere = Target::Queue("elsewhere".into());
    assert_eq!(f.change(lost, retarget(elsewhere)).await.1, Answer::Done, "another queue knows as much");
    assert_eq!(f.change(lost, ChangeEvent::Cancel).await.1, Answer::Cancelled);

    // What was given back was certainly not done. Settled and changed in one transaction, too.
    let back = f.put_for("back", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    f.settle(&item, Action::Retry(Some(0))).await.expect("counts");
    assert_eq!(f.change(back, away()).await.1, Answer::Done);
    assert_eq!(f.change(back, ChangeEvent::Cancel).await.1, Answer::Stopped, "a worker had it");
    let batch = f.put_for("batch", 0, times(2, false)).await;
    let item = f.item("w1").await;
    let ack =
        Settlement { token: item.token, lane: lane(Namespace::OWN, Q), action: Action::Ack, result: None };
    let both = [ChangeEvent::Settle(ack), away()].map(|event| Change { uid: batch, caller: None, event });
    let answers = f.apply(&both).await;
    assert!(matches!(answers[1], Applied::Live(_, Answer::InFlight)), "{:?}", answers[1]);

    // A request was sent, and failed, before it came to a queue.
    let sent = f.put("sent", 0).await;
    let row = f.claim_due(&owned).await.into_iter().find(|row| row.uid == sent).expect("is due");
    let failed = record(&row, AttemptResult::Failed);
    let next = Next::Retry(UnixMs::new(f.now().get() + 60_000));
    f.change(sent, ChangeEvent::Attempted(next, failed)).await;
    assert_eq!(f.change(sent, retarget(Target::Queue(Q.into()))).await.1, Answer::Done);
    for _ in 0..2 {
        let answer = match f
            .apply(&[Change { uid: sent, caller: None, event: ChangeEvent::Cancel }])
            .await
            .remove(0)
        {
            Applied::Live(_, answer) => answer,
            _ => {
                let row = f.find(sent).await;
                row.answer(row.life.step(Event::Cancel, f.now()).answer)
            }
        };
        assert_eq!(answer, Answer::Stopped, "a repeat says the same");
    }
}

async fn what_nobody_took_in_time_follows_its_late(f: Fixture) {
    f.own_all().await;
    let late = |then| Some(Late { grace: Span::from_duration(Duration::from_secs(5)), then });
    let expiring = |id: &str, dispatch| {
        let policies = Policies { late: late(Then::Expire), ..Policies::default() };
        NewTimer { policies, ..for_queue(f.timer(id, 0), dispatch) }
    };
    let none = f.put_timer(expiring("none", only(To::Group("g".into())))).await;
    let some = f.put_timer(expiring("some", times(3, false))).await;
    let delivers = {
        let policies = Policies { late: late(Then::Deliver), ..Policies::default() };
        NewTimer { policies, ..for_queue(f.timer("delivers", 0), only(To::Worker("w9".into()))) }
    };
    f.put_timer(delivers).await;
    let item = f.item("w1").await;
    assert_eq!(f.swept().await, 2, "what is ready is looked at once");
    assert_eq!(f.swept().await, 0, "and waits then, out of the way of others");
    f.clock.advance(Duration::from_millis(5001));
    f.nothing_for("w2").await;
    assert!(f.lease(Asking { groups: vec!["g".into()], ..asking("w2") }).await.is_empty());
    f.swept().await;
    assert_eq!(f.find(none).await.life.state, State::Expired);
    let row = f.find(some).await;
    assert_eq!((row.life.state, row.seats.map(|seats| seats.fresh)), (State::Delivering, Some(0)));
    f.nothing_for("w2").await;
    f.settle(&item, Action::Ack).await.expect("counts");
    assert_eq!(f.find(some).await.life.state, State::Delivered, "those that were taken are all done");
    assert_eq!(f.item("w9").await.timer, "delivers");
    f.balanced().await;
}

async fn a_paused_queue_gives_nothing_out_and_judges_at_its_resume(f: Fixture) {
    f.own_all().await;
    let late = Some(Late { grace: Span::from_duration(Duration::from_secs(5)), then: Then::Expire });
    let policies = Policies { late, ..Policies::default() };
    let uid = f.put_timer(NewTimer { policies, ..for_queue(f.timer("t", 0), Dispatch::default()) }).await;
    let held = f.put_for("held", 0, Dispatch::default()).await;
    let item = f.lease(Asking { exclude: HashSet::from([uid]), ..asking("w1") }).await.remove(0);
    assert_eq!(item.token.uid, held);
    assert!(f.store.pause_queue(Q, true).await.expect("writes").expect("is there").paused);
    f.nothing_for("w2").await;
    let own = f.lease(Asking { redo: true, ..asking("w1") }).await;
    assert_eq!(own[0].token, item.token, "what a worker has it may be told");
    f.settle(&item, Action::Retry(Some(0))).await.expect("what is out is settled");
    assert!(f.lease(Asking { redo: true, ..asking("w1") }).await.is_empty());
    f.after(6);
    f.swept().await;
    assert_eq!(f.find(uid).await.life.state, State::Scheduled, "not judged while it is paused");
    f.store.pause_queue(Q, false).await.expect("writes");
    assert_eq!(f.item("w2").await.timer, "held");
    f.nothing_for("w2").await;
    f.after(30);
    f.swept().await;
    assert_eq!(f.find(uid).await.life.state, State::Expired);
    f.balanced().await;
}

async fn a_change_gives_out_anew_what_is_not_settled(f: Fixture) {
    f.own_all().await;
    let uid = f.put_for("t", 0, times(2, false)).await;
    let first = f.item("w1").await;
    f.settle(&first, Action::Ack).await.expect("counts");
    let second = f.item("w2").await;
    let edit = |dispatch| ChangeEvent::Edit(Edit { dispatch: Some(dispatch), ..Edit::default() });
    assert_eq!(f.change(uid, edit(only(To::Any))).await.1, Answer::InFlight, "a place is out");
    f.settle(&second, Action::Retry(Some(0))).await.expect("counts");
    let to = Dispatch { times: 2, ..only(To::Worker("w3".into())) };
    let (row, answer) = f.change(uid, edit(to.clone())).await;
    assert_eq!((answer, row.life.generation.0), (Answer::Done, 2));
    assert_eq!(
        row.seats.as_ref().map(|seats| (seats.fresh, seats.acked)),
        Some((1, 1)),
        "what is acked stays so"
    );
    assert_eq!(f.change(uid, edit(to)).await.0.life, row.life, "a repeat changes nothing");
    f.nothing_for("w2").await;
    let third = f.item("w3").await;
    assert_ne!(third.delivery_id, second.delivery_id, "a new generation");
    assert_ne!(third.delivery_id, first.delivery_id);
    f.settle(&third, Action::Ack).await.expect("counts");
    assert_eq!(f.find(uid).await.life.state, State::Delivered);

    // To a later moment, paused and resumed, and to another queue.
    let uid = f.put_for("moved", 0, Dispatch::default()).await;
    let due_at = Some(UnixMs::new(f.now().get() + 5000));
    f.change(uid, ChangeEvent::Edit(Edit { due_at, ..Edit::default() })).await;
    f.nothing_for("w1").await;
    f.change(uid, ChangeEvent::Pause(None)).await;
    f.after(5);
    f.nothing_for("w1").await;
    assert_eq!(f.swept().await, 0, "nobody looks at what is paused");
    f.change(uid, ChangeEvent::Resume(None)).await;
    let target = Some(Target::Queue("elsewhere".into()));
    let (row, _) = f.change(uid, ChangeEvent::Edit(Edit { target, ..Edit::default() })).await;
    assert_eq!(row.lane, lane(Namespace::OWN, "elsewhere"));
    f.nothing_for("w1").await;
    let given = f
        .store
        .lease("elsewhere", &who_ask("elsewhere", &[asking("w1")]), "a", &mut Turn::default())
        .await
        .expect("leases");
    assert_eq!(given.given[0].len(), 1);
    assert!(f.store.queue("elsewhere").await.expect("reads").is_some(), "it came into being");
    f.balanced().await;
}

async fn no_dispatcher_claims_it_and_no_take_over_takes_it_back(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put_for("t", 0, Dispatch::default()).await;
    let due = f.due(&owned).await;
    assert_eq!(due.len(), 1);
    assert!(f.claim(&due).await.is_empty());
    let item = f.item("w1").await;
    let other = super::fixture::identity("b");
    f.store.enter(&other).await.expect("enters");
    f.clock.advance(Duration::from_secs(4));
    let taken = f.store.take_over(&other, 100, true, 3000).await.expect("takes");
    assert_eq!(taken.len(), 8);
    assert!(f.store.recall(&taken, 3000).await.expect("recalls").is_empty(), "leases outlive the node");
    f.settle(&item, Action::Ack).await.expect("counts");
    assert_eq!(f.find(uid).await.life.state, State::Delivered);
}

async fn a_queue_says_what_waits_in_it_and_goes_when_nothing_does(f: Fixture) {
    let lease = Span::from_duration(Duration::from_secs(60));
    let settings = Settings { lease: Some(lease), retry: Some(Retry { attempts: 1, ..Retry::default() }) };
    assert!(f.store.put_queue(Q, &settings, None).await.expect("writes").1, "new");
    let ready = f.put_for("ready", 0, Dispatch::default()).await;
    f.clock.advance(Duration::from_millis(7));
    f.put_for("out", 0, only(To::Worker("w1".into()))).await;
    f.put_for("later", 60_000, Dispatch::default()).await;
    let exclude = HashSet::from([ready]);
    let item = f.lease(Asking { lease: None, exclude, ..asking("w1") }).await.remove(0);
    assert_eq!(item.lease_until, f.now().plus(lease.get()), "what the queue says");
    let depth =
        f.store.queue_depths(&[Q, "none"].map(|name| lane(Namespace::OWN, name))).await.expect("counts");
    let oldest = Some(UnixMs::new(f.now().get() - 7));
    assert_eq!(
        (depth[0].ready, depth[0].leased, depth[0].scheduled, depth[0].oldest_ready_at),
        (1, 1, 1, oldest)
    );
    assert_eq!((depth[1].ready, depth[1].oldest_ready_at), (0, None));
    let now = f.store.queue_depths_now(&[lane(Namespace::OWN, Q)]).await.expect("counts");
    assert_eq!(
        (now[0].ready, now[0].leased, now[0].scheduled, now[0].oldest_ready_at),
        (1, 1, 0, oldest),
        "what is scheduled is not counted again and again"
    );
    assert_eq!(f.store.remove_queue(Q).await.expect("writes"), QueueRemoved::InUse(3, 0));
    assert_eq!(f.store.remove_queue("none").await.expect("writes"), QueueRemoved::NoSuch);
    // What the queue says of retries holds where the timer says nothing.
    let row = f.settle(&item, Action::Retry(Some(0))).await.expect("counts");
    assert_eq!(row.life.state, State::Dead);
    for id in ["ready", "later"] {
        let uid = mainspring::model::id::TimerId::parse(id).expect("an id").uid(&Salt::own("default"));
        assert_eq!(f.change(uid, ChangeEvent::Cancel).await.1, Answer::Cancelled);
    }
    assert_eq!(f.store.remove_queue(Q).await.expect("writes"), QueueRemoved::Done);
    assert!(f.store.queues("", 10).await.expect("reads").is_empty());
}

/// Timers of ever new queues leave no more rows than these, and are fetched all the same.
async fn beyond_so_many_queues_a_timer_makes_none(f: Fixture) {
    let a = namespaces::made(&f, "a").await;
    let there = format!(
        "INSERT INTO queues (namespace, name, settings, paused, version, created_at, changed_at) \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
         SELECT {}, 'n' || i, '{{}}', false, 1, 0, 0 FROM n",
        a.0
    );
    behind_its_back(&f, &there).await;
    let of_a = f.store.within(a);
    for (name, is_listed) in [("last", true), ("beyond", false)] {
        let timer = f.timer(name, 0);
        let timer = NewTimer {
            uid: timer.id.uid(of_a.salt()),
            namespace: a,
            target: Target::Queue(name.into()),
            dispatch: Some(Dispatch::default()),
            ..timer
        };
        assert!(matches!(f.register(std::slice::from_ref(&timer)).await[..], [Registered::New(_)]));
        assert_eq!(of_a.queue(name).await.expect("reads").is_some(), is_listed, "{name}");
        let asked = [asking("w").of(a, name)];
        let given = of_a.lease(name, &asked, "a", &mut Turn::default()).await.expect("leases").given;
        assert_eq!(given[0].len(), 1, "{name}");
    }
}

async fn lists_know_queues_and_who_has_what(f: Fixture) {
    f.put_for("any", 0, Dispatch::default()).await;
    f.put_for("group", 0, only(To::Group("g_1".into()))).await;
    f.put_for("other", 0, only(To::Group("gx1".into()))).await;
    f.put("webhook", 0).await;
    let ids = async |filter: Filter| {
        let page = f.store.list(&filter, None, 10).await.expect("lists");
        page.rows.into_iter().map(|row| row.id).collect::<BTreeSet<_>>()
    };
    let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    let queue = Some(Q.to_owned());
    assert_eq!(
        ids(Filter { queue: queue.clone(), ..Filter::default() }).await,
        set(&["any", "group", "other"])
    );
    assert_eq!(ids(Filter { to: Some(To::Any), ..Filter::default() }).await, set(&["any"]));
    let to = Some(To::Group("g_1".into()));
    assert_eq!(ids(Filter { to: to.clone(), ..Filter::default() }).await, set(&["group"]));
    let worker = Some("w1".to_owned());
    assert!(ids(Filter { worker: worker.clone(), ..Filter::default() }).await.is_empty());
    let item = f.item("w1").await;
    assert_eq!(ids(Filter { worker: worker.clone(), ..Filter::default() }).await, set(&["any"]));
    let state = Some(State::Delivering);
    assert_eq!(ids(Filter { worker: worker.clone(), state, ..Filter::default() }).await, set(&["any"]));
    assert!(ids(Filter { worker: worker.clone(), to, queue, ..Filter::default() }).await.is_empty());
    f.settle(&item, Action::Ack).await.expect("counts");
    assert!(ids(Filter { worker, ..Filter::default() }).await.is_empty());
}

/// A worker has places of live timers only, though an ended one may have had the same id.
async fn a_list_by_worker_has_no_ended_timers(f: Fixture) {
    let timer = for_queue(f.timer("t", 0), Dispatch::default());
    f.put_timer(timer.clone()).await;
    let item = f.item("w1").await;
    f.settle(&item, Action::Ack).await.expect("counts");
    f.put_timer(NewTimer { again: true, ..timer }).await;
    f.item("w1").await;
    let of = |state| Filter { worker: Some("w1".into()), state, ..Filter::default() };
    for (state, expected) in [(None, 1), (Some(State::Delivering), 1), (Some(State::Delivered), 0)] {
        for filter in [of(state), Filter { queue: Some(Q.into()), ..of(state) }] {
            let page = f.store.list(&filter, None, 10).await.expect("lists");
            let found: Vec<_> = page.rows.iter().map(|row| row.life.generation.0).collect();
            assert_eq!(found, vec![2; expected], "{filter:?}");
        }
    }
}

/// Dead timers run again in a queue that was removed meanwhile: it comes into being again.
async fn a_redrive_makes_the_queue_of_its_timers(f: Fixture) {
    let uid = f.put_for("t", 0, Dispatch::default()).await;
    let item = f.item("w1").await;
    assert_eq!(f.settle(&item, Action::Dead).await.expect("counts").life.state, State::Dead);
    assert_eq!(f.store.remove_queue(Q).await.expect("writes"), QueueRemoved::Done);
    f.after(1);
    let worker = Worker { node: "a".into(), token: Uuid::from_u128(1), lease_ms: 5000 };
    let selection = Selection { ended_before: f.now(), ..Selection::default() };
    let (id, action) = (OperationId(Uuid::from_u128(1)), operation::Action::Redrive);
    let new = NewOperation { id, action, filter: "{}".into(), selection, dry_run: false };
    f.store.create_operation(&new).await.expect("begins").expect("there is room");
    f.after(3);
    let leased = f.store.lease_operations(&worker, &[], 1).await.expect("leases").remove(0);
    assert_eq!(f.store.redrive(&leased, &worker, 9).await.expect("steps").made.len(), 1);
    let queues = f.store.queues("", 10).await.expect("reads");
    assert_eq!(queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), [Q]);
    assert_eq!(f.store.remove_queue(Q).await.expect("writes"), QueueRemoved::InUse(1, 0));
    let item = f.item("w1").await;
    f.settle(&item, Action::Ack).await.expect("counts");
    assert_eq!(f.find(uid).await.life.state, State::Delivered);
    f.balanced().await;
}

/// Two nodes and many workers at once: every place goes to one worker.
async fn of_many_workers_each_place_goes_to_one(f: Fixture) {
    let mut timers = Vec::new();
    for n in 0..60 {
        timers.push(for_queue(f.timer(&format!("t{n}"), 0), times(1 + n % 3, n % 2 == 0)));
    }
    f.register(&timers).await;
    let workers = (0..16usize).map(|w| {
        let (store, node) = (f.store.clone(), if w % 2 == 0 { "a" } else { "b" });
        tokio::spawn(async move {
            let mut got = Vec::new();
            for _ in 0..12 {
                let one = Asking { most: 3, ..asking(&format!("w{w}")) };
                let given = store
                    .lease(Q, &who_ask(Q, &[one]), node, &mut Turn::default())
                    .await
                    .expect("leases")
                    .given;
                got.extend(given.into_iter().flatten());
            }
            got
        })
    });
    let mut places: BTreeSet<String> = BTreeSet::new();
    let mut held: BTreeSet<(String, usize)> = BTreeSet::new();
    let all = futures::future::join_all(workers).await;
    // What another had locked for a moment was passed over.
    let mut rest = Vec::new();
    for worker in 16..20usize {
        rest.push((worker, f.lease(Asking { most: 1000, ..asking(&format!("w{worker}")) }).await));
    }
    for (worker, got) in all.into_iter().enumerate() {
        for item in got.expect("ends") {
            assert!(places.insert(item.delivery_id.clone()), "{item:?} went to two");
            assert!(held.insert((item.timer.clone(), worker)), "{item:?}: one place of a timer at a time");
        }
    }
    for (worker, got) in rest {
        for item in got {
            assert!(
                places.insert(item.delivery_id.clone()) && held.insert((item.timer.clone(), worker)),
                "{item:?}"
            );
        }
    }
    assert_eq!(places.len(), 120, "60 timers with one to three places");
    f.nothing_for("w-last").await;
}

on_both_stores!(
    a_place_is_given_out_when_it_is_due_and_settled_once,
    what_nobody_settles_comes_back_and_counts,
    times_is_never_exceeded,
    with_repeat_a_worker_holds_one_at_a_time,
    a_worker_gives_back_gives_up_or_keeps,
    a_cancel_tells_the_truth_about_places,
    a_cancel_is_true_after_a_change_of_target,
    what_nobody_took_in_time_follows_its_late,
    a_paused_queue_gives_nothing_out_and_judges_at_its_resume,
    a_change_gives_out_anew_what_is_not_settled,
    no_dispatcher_claims_it_and_no_take_over_takes_it_back,
    a_queue_says_what_waits_in_it_and_goes_when_nothing_does,
    beyond_so_many_queues_a_timer_makes_none,
    lists_know_queues_and_who_has_what,
    a_list_by_worker_has_no_ended_timers,
    a_redrive_makes_the_queue_of_its_timers,
    of_many_workers_each_place_goes_to_one,
);

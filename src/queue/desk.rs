//! One desk: the calls that wait for a queue on this node, and the task that serves them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Notify, oneshot};

use super::waiting::Counted;
use super::{Given, Queues};
use crate::clock::Monotonic;
use crate::cold::{Asker, Asking, Error, LeaseAnswer, Leased, MAX_ASKING};
use crate::model::namespace::Namespace;

/// How often a desk asks the store by itself: a note that something is ready may be lost.
const BY_ITSELF: Duration = Duration::from_secs(5);

/// After it was woken a desk asks again after these pauses where other nodes ask too, and after the first where none does: what
/// somebody had locked for a moment (a desk elsewhere, a change, a settlement of another place), and has not given out, was
/// passed over. SQLite passes over nothing.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(80), Duration::from_millis(320)];

/// Where calls wait after a round that left nothing ready for them, the next one begins so long after that one began at the
/// earliest: what becomes ready meanwhile, and who comes, goes with it. Without it 200 workers that get a thousand items a second had the
/// store look for five of them at a time.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);

/// A call that waits.
pub(super) struct Call {
    asking: Asker,
    /// When it is answered at the latest.
    until: Monotonic,
    answer: oneshot::Sender<Result<Given, Error>>,
    /// It was not served yet.
    is_new: bool,
    counted: Counted,
}

impl Call {
    /// A call that just came, and waits until then.
    pub fn new(
        (namespace, queue): (Namespace, &str),
        asking: Asking,
        until: Monotonic,
        answer: oneshot::Sender<Result<Given, Error>>,
        counted: Counted,
    ) -> Self {
        Self { asking: asking.of(namespace, queue), until, answer, is_new: true, counted }
    }
}

/// Calls that wait for one queue, the first first.
#[derive(Default)]
pub(super) struct Desk {
    calls: VecDeque<Call>,
    woken: Arc<Notify>,
}

impl Desk {
    /// A call comes.
    pub fn arrive(&mut self, call: Call) {
        self.calls.push_back(call);
        self.wake();
    }

    /// Something may be ready.
    pub fn wake(&self) {
        self.woken.notify_one();
    }
}

impl Queues {
    /// Serves the calls of a queue until none waits.
    pub(super) async fn serve(self: Arc<Self>, lane: i64, queue: (Namespace, &str)) {
        // Those that were served and got nothing, in the order in which they came.
        let mut waiting: VecDeque<Call> = VecDeque::new();
        // How often it has asked since it was woken.
        let mut asked = 0;
        loop {
            let woken = {
                let mut desks = self.desks();
                let Some(desk) = desks.get_mut(&lane) else { return };
                waiting.append(&mut desk.calls);
                // The round that begins now sees what it was woken for so far.
                let _ = desk.woken.notified().now_or_never();
                if waiting.is_empty() {
                    desks.remove(&lane);
                    return;
                }
                Arc::clone(&desk.woken)
            };
            let began = Monotonic::now();
            let has_more;
            (waiting, has_more) = self.round(lane, queue, waiting).await;
            let next = waiting.iter().map(|call| call.until).min();
            let now = Monotonic::now();
            let is_due = |_: &&Duration| self.ownership.has_peers() || (asked == 0 && self.store.is_shared());
            let again = AGAIN.get(asked).filter(is_due);
            let pause =
                next.map_or(Duration::ZERO, |until| until.since(now)).min(*again.unwrap_or(&BY_ITSELF));
            asked += 1;
            tokio::select! {
                () = self.stop.cancelled() => {
                    waiting.clear();
                    self.leave_all(lane);
                    return;
                }
                () = woken.notified() => asked = 0,
                () = self.store.clock().sleep(pause) => {}
            }
            if !waiting.is_empty() && !has_more {
                let next = began.plus(BETWEEN_ROUNDS);
                self.store.clock().sleep(next.since(Monotonic::now())).await;
            }
        }
    }

    /// The node stops: whoever waits at this desk is answered.
    fn leave_all(&self, lane: i64) {
        drop(self.desks().remove(&lane));
    }

    /// Serves these calls once; returns those that go on waiting, and whether there may be more for those who asked.
    async fn round(
        self: &Arc<Self>,
        lane: i64,
        (namespace, queue): (Namespace, &str),
        calls: VecDeque<Call>,
    ) -> (VecDeque<Call>, bool) {
        let mut waiting: VecDeque<Call> = calls;
        let mut has_more = false;
        let_go(&mut waiting);
        let is_many = waiting.len() > MAX_ASKING;
        let mut turn = self.turn(lane);
        // By their position; one is served once a round, unless the store says that it was passed over.
        let mut left: VecDeque<usize> = (0..waiting.len()).collect();
        let mut slots: Vec<Option<Call>> = waiting.into_iter().map(Some).collect();
        while !left.is_empty() {
            let served = match is_many {
                true => match self.ready_for(&slots, &left).await {
                    Ok(served) => served,
                    Err(why) => {
                        self.fail(&mut slots, left.drain(..), &why);
                        break;
                    }
                },
                false => left.iter().copied().collect(),
            };
            if served.is_empty() {
                break;
            }
            left.retain(|at| !served.contains(at));
            let asking: Vec<Asker> =
                served.iter().filter_map(|&at| slots[at].as_ref()).map(|call| call.asking.clone()).collect();
            match self.writer.lease(namespace, queue, &asking, &self.ownership.me().name, &mut turn).await {
                Ok(LeaseAnswer { given, in_doubt: Some(why), .. }) => {
                    // Nobody has their tokens, and they may be out.
                    let items: Vec<Leased> = given.into_iter().flatten().collect();
                    Arc::clone(self).take_back(&items);
                    self.fail(&mut slots, served.into_iter(), &why);
                }
                Ok(answer) => {
                    has_more |= answer.has_more;
                    let got_some = answer.given.iter().any(|items| !items.is_empty());
                    let goes_on = got_some || !answer.again.is_empty() || !answer.is_paused;
                    for (n, (at, items)) in served.into_iter().zip(answer.given).enumerate() {
                        match answer.again.contains(&n) {
                            true => left.push_back(at),
                            false => self.answer(&mut slots[at], items),
                        }
                    }
                    if !goes_on {
                        break;
                    }
                }
                Err(why) => self.fail(&mut slots, served.into_iter(), &why),
            }
        }
        self.note_turn(lane, turn);
        // Of very many only those were served for whom there may be something.
        let now = Monotonic::now();
        for slot in &mut slots {
            if slot.as_ref().is_some_and(|call| call.until <= now) {
                self.answer(slot, Vec::new());
            }
        }
        (slots.into_iter().flatten().collect(), has_more)
    }

    /// Which of these calls may get something: at most as many as one transaction serves.
    async fn ready_for(&self, slots: &[Option<Call>], left: &VecDeque<usize>) -> Result<Vec<usize>, Error> {
        let calls = || left.iter().filter_map(|&at| slots[at].as_ref().map(|call| (at, call)));
        let audiences = calls().flat_map(|(_, call)| call.asking.audiences().iter().copied()).collect();
        let ready = self.store.ready_audiences(&audiences).await?;
        let may_get = |call: &Call| {
            (call.is_new && call.asking.redo) || call.asking.audiences().iter().any(|one| ready.contains(one))
        };
        Ok(calls().filter(|(_, call)| may_get(call)).map(|(at, _)| at).take(MAX_ASKING).collect())
    }

    /// Answers a call that was served, unless it goes on waiting.
    fn answer(self: &Arc<Self>, slot: &mut Option<Call>, items: Vec<Leased>) {
        let Some(mut call) = slot.take() else { return };
        if items.is_empty() && Monotonic::now() < call.until && !self.stop.is_cancelled() {
            call.is_new = false;
            *slot = Some(call);
            return;
        }
        drop(call.counted);
        // If its caller has gone meanwhile, or goes before it has looked, what is dropped takes the items back.
        let given = Given { items, queues: Some(Arc::clone(self)) };
        drop(call.answer.send(Ok(given)));
    }

    fn fail(&self, slots: &mut [Option<Call>], which: impl Iterator<Item = usize>, why: &Error) {
        for at in which {
            if let Some(call) = slots[at].take() {
                drop(call.counted);
                let _ = call.answer.send(Err(why.clone()));
            }
        }
    }
}

/// Calls whose callers have gone do not go on waiting.
fn let_go(waiting: &mut VecDeque<Call>) {
    waiting.retain(|call| !call.answer.is_closed());
}

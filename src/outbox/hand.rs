//! The events that a node has in hand of one subscription, by timer. It reads no clock and sends nothing.
//!
//! Invariant: of each timer at most one event is out, the oldest; the next one follows when that is settled. So those of
//! one timer arrive in order, and a timer whose event is not taken holds up itself alone: its events leave the hand and
//! are left out of what is read until its next try, so that they take no room of the others.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::clock::Monotonic;
use crate::cold::{EventRow, LeftOut};
use crate::model::id::Epoch;
use crate::model::time::UnixMs;

/// An event in hand, and the epoch under which this node owns its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub event: EventRow,
    pub epoch: Epoch,
}

/// Where the oldest event of a timer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    Out,
}

#[derive(Debug)]
struct Queue {
    events: VecDeque<Arc<Held>>,
    stage: Stage,
    /// Tries of the oldest that failed.
    failures: u32,
}

/// Events in hand.
#[derive(Debug, Default)]
pub(super) struct Hand {
    queues: HashMap<String, Queue>,
    /// Timers whose oldest event may go, in order.
    ready: VecDeque<String>,
    /// Timers whose oldest event waits for its next try, by when that may be, and how often it failed. None of their
    /// events is in hand.
    resting: BTreeMap<(Monotonic, i64), (String, u32)>,
    /// Timers that have rested and are to be read again, and how often their oldest event failed.
    woken: HashMap<String, u32>,
    /// All events in hand, those included that are settled and not removed yet.
    seqs: HashSet<i64>,
    waiting: usize,
}

impl Hand {
    /// Takes events in, which come in the order of each timer. Those in hand already are left out.
    pub fn add(&mut self, events: impl IntoIterator<Item = Held>) {
        for held in events {
            if !self.seqs.insert(held.event.seq) {
                continue;
            }
            self.waiting += 1;
            let subject = held.event.subject.clone();
            match self.queues.get_mut(&subject) {
                Some(queue) => queue.events.push_back(Arc::new(held)),
                None => {
                    let failures = self.woken.remove(&subject).unwrap_or(0);
                    let queue =
                        Queue { events: VecDeque::from([Arc::new(held)]), stage: Stage::Ready, failures };
                    self.queues.insert(subject.clone(), queue);
                    self.ready.push_back(subject);
                }
            }
        }
    }

    /// The next event to send; it is out then.
    pub fn next(&mut self) -> Option<Arc<Held>> {
        loop {
            let subject = self.ready.pop_front()?;
            let Some(queue) = self.queues.get_mut(&subject) else { continue };
            if let (Stage::Ready, Some(held)) = (queue.stage, queue.events.front()) {
                queue.stage = Stage::Out;
                return Some(Arc::clone(held));
            }
        }
    }

    /// An event that was out was taken, or is given up: the next one of its timer follows.
    pub fn settled(&mut self, held: &Held) {
        let subject = &held.event.subject;
        let Some(queue) = self.queues.get_mut(subject) else { return };
        if queue.events.front().is_none_or(|first| first.event.seq != held.event.seq) {
            return;
        }
        queue.events.pop_front();
        self.waiting -= 1;
        if queue.events.is_empty() {
            self.queues.remove(subject);
        } else {
            (queue.stage, queue.failures) = (Stage::Ready, 0);
            self.ready.push_back(subject.clone());
        }
    }

    /// An event that was out was not taken: its timer rests until `until` says, given how often it failed so far.
    pub fn failed(&mut self, held: &Held, until: impl FnOnce(u32) -> Monotonic) {
        let subject = &held.event.subject;
        let Some(failures) = self.queues.get(subject).map(|queue| queue.failures.saturating_add(1)) else {
            return;
        };
        self.drop_timer(subject);
        self.resting.insert((until(failures), held.event.seq), (subject.clone(), failures));
    }

    /// An event that was out was not sent: it is the next one to go.
    pub fn not_sent(&mut self, held: &Held) {
        let Some(queue) = self.queues.get_mut(&held.event.subject) else { return };
        queue.stage = Stage::Ready;
        self.ready.push_front(held.event.subject.clone());
    }

    /// What has rested long enough may be read again.
    pub fn wake(&mut self, now: Monotonic) {
        while let Some(entry) = self.resting.first_entry().filter(|entry| entry.key().0 <= now) {
            let (subject, failures) = entry.remove();
            self.woken.insert(subject, failures);
        }
    }

    /// Whether there are timers that have rested and were not read again.
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Everything that is to be read was read: what was woken and did not come is gone.
    pub fn all_read(&mut self) {
        self.woken.clear();
    }

    /// Timers that rest.
    pub fn resting(&self) -> usize {
        self.resting.len()
    }

    /// When the next one has rested long enough.
    pub fn wakes_at(&self) -> Option<Monotonic> {
        self.resting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Drops what is in hand of a timer, also what was out: it is read again if it is still this node's.
    pub fn drop_timer(&mut self, subject: &str) {
        let Some(queue) = self.queues.remove(subject) else { return };
        self.waiting -= queue.events.len();
        self.removed(queue.events.iter().map(|held| held.event.seq));
    }

    /// Drops what is not out. It is read again if the store still has it then.
    pub fn put_back(&mut self) {
        self.ready.clear();
        self.keep(|_| false);
    }

    /// Events that were removed from the store are no longer in hand.
    pub fn removed(&mut self, seqs: impl IntoIterator<Item = i64>) {
        for seq in seqs {
            self.seqs.remove(&seq);
        }
    }

    /// Drops what this node may no longer send. One that is out stays until its answer comes.
    pub fn keep(&mut self, may_send: impl Fn(&Held) -> bool) {
        let (seqs, waiting) = (&mut self.seqs, &mut self.waiting);
        self.queues.retain(|_, queue| {
            let is_out = queue.stage == Stage::Out;
            let mut at = 0;
            queue.events.retain(|held| {
                at += 1;
                let stays = may_send(held) || (is_out && at == 1);
                if !stays {
                    seqs.remove(&held.event.seq);
                    *waiting -= 1;
                }
                stays
            });
            !queue.events.is_empty()
        });
    }

    /// What a read leaves out: everything in hand, settled and not removed yet included, and the timers that rest;
    /// with `woken_too` those that have rested as well.
    pub fn left_out(&self, woken_too: bool) -> LeftOut {
        let resting = self.resting.values().map(|(subject, _)| subject);
        let woken = self.woken.keys().filter(|_| woken_too);
        let subjects = resting.chain(woken).cloned().collect();
        LeftOut { seqs: self.seqs.iter().copied().collect(), subjects }
    }

    /// When the oldest event that is not settled became true.
    pub fn oldest_at(&self) -> Option<UnixMs> {
        self.queues.values().filter_map(|queue| Some(queue.events.front()?.event.at)).min()
    }

    /// Events that are not settled.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Timers whose oldest event may go now, about.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event(seq: i64, subject: &str) -> Held {
        let event = EventRow {
            shard: i32::try_from(seq % 2).unwrap(),
            seq,
            id: uuid::Uuid::from_u128(seq as u128),
            kind: 0,
            subject: subject.into(),
            at: UnixMs::new(0),
            body: Vec::new(),
        };
        Held { event, epoch: Epoch(1) }
    }

    fn out(hand: &mut Hand) -> Vec<i64> {
        std::iter::from_fn(|| hand.next()).map(|held| held.event.seq).collect()
    }

    #[test]
    fn of_each_timer_one_event_is_out() {
        let mut hand = Hand::default();
        hand.add([event(1, "a"), event(2, "b"), event(3, "a"), event(4, "a")]);
        assert_eq!(out(&mut hand), [1, 2]);
        hand.settled(&event(1, "a"));
        assert_eq!(out(&mut hand), [3]);
        hand.settled(&event(3, "a"));
        hand.settled(&event(3, "a"));
        assert_eq!((out(&mut hand), hand.waiting()), (vec![4], 2), "an answer counts once");
        hand.add([event(4, "a"), event(3, "a"), event(5, "b")]);
        assert_eq!(hand.waiting(), 3, "what is in hand is not taken in again");
        hand.removed([3]);
        hand.add([event(3, "c")]);
        assert_eq!(out(&mut hand), [3]);
    }

    /// What a read returns of these.
    fn read(hand: &mut Hand, events: &[(i64, &str)]) {
        let left_out = hand.left_out(false);
        let subjects = &left_out.subjects;
        hand.add(
            events
                .iter()
                .filter(|(_, of)| !subjects.iter().any(|one| one == of))
                .map(|(seq, of)| event(*seq, of)),
        );
    }

    #[test]
    fn one_that_failed_holds_up_its_timer_alone() {
        let mut hand = Hand::default();
        let at = |seconds| Monotonic::now().plus(Duration::from_secs(seconds));
        let all = [(1, "a"), (2, "a"), (3, "b")];
        read(&mut hand, &all);
        assert_eq!(out(&mut hand), [1, 3]);
        let wakes = at(60);
        let fails = |hand: &mut Hand, times| {
            hand.failed(&event(1, "a"), |failures| {
                assert_eq!(failures, times);
                wakes
            });
        };
        fails(&mut hand, 1);
        hand.settled(&event(3, "b"));
        hand.removed([3]);
        hand.wake(at(0));
        read(&mut hand, &all[..2]);
        assert_eq!((out(&mut hand), hand.wakes_at(), hand.waiting()), (vec![], Some(wakes), 0));
        hand.wake(wakes);
        assert!(hand.has_woken());
        read(&mut hand, &all[..2]);
        assert_eq!(
            (out(&mut hand), hand.has_woken()),
            (vec![1], false),
            "the same one again, before the next"
        );
        fails(&mut hand, 2);
        hand.wake(wakes);
        read(&mut hand, &all[..2]);
        assert_eq!(out(&mut hand), [1]);
        hand.settled(&event(1, "a"));
        assert_eq!(out(&mut hand), [2]);
        hand.not_sent(&event(2, "a"));
        assert_eq!(out(&mut hand), [2]);
    }

    #[test]
    fn what_is_not_out_is_put_back() {
        let mut hand = Hand::default();
        hand.add([event(1, "a"), event(2, "a"), event(3, "b")]);
        assert_eq!(hand.next().map(|held| held.event.seq), Some(1));
        hand.put_back();
        assert_eq!((hand.waiting(), hand.ready(), hand.left_out(false).seqs), (1, 0, vec![1]));
        hand.settled(&event(1, "a"));
        hand.add([event(2, "a"), event(3, "b")]);
        assert_eq!(out(&mut hand), [2, 3], "what the store still has is read again");
    }

    #[test]
    fn what_another_node_sends_is_dropped() {
        let mut hand = Hand::default();
        hand.add([event(1, "a"), event(3, "a"), event(2, "b")]);
        assert_eq!(hand.next().map(|held| held.event.seq), Some(1));
        hand.keep(|held| held.event.shard == 0);
        assert_eq!((hand.waiting(), hand.left_out(false).seqs.len()), (2, 2), "the one that is out stays");
        assert_eq!(out(&mut hand), [2]);
        hand.settled(&event(1, "a"));
        assert_eq!(hand.waiting(), 1);
        hand.drop_timer("b");
        hand.settled(&event(2, "b"));
        assert_eq!((hand.waiting(), hand.left_out(false).seqs), (0, vec![1]), "it may be read again");
        hand.add([event(2, "b")]);
        assert_eq!(out(&mut hand), [2]);
    }
}

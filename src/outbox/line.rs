//! The sending of one subscription's events on this node: read, send, remove.
//!
//! Events are read from the oldest on, each time: a transaction that was given a lower `seq` may commit after one with a
//! higher one, and what is read is only what is not in hand. They are removed once they were taken. After a crash what was
//! taken and not removed is sent again, under the same number.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Outbox;
use super::hand::{Hand, Held};
use super::pace::Pace;
use crate::clock::Monotonic;
use crate::cold::{Error, MAX_EVENT_BATCH};
use crate::dispatch::Place;
use crate::model::destination::Destination;
use crate::model::id::Epoch;
use crate::model::namespace::Sender;
use crate::model::subscription::{Lifecycle, Subscription};
use crate::model::target::Target;
use crate::model::time::{Span, UnixMs};
use crate::model::timer::AttemptResult;
use crate::planted::Defect;
use crate::sink::{Delivery, Lack, Outcome};
use crate::telemetry::{Rarely, Streak};

/// Events of one subscription that a node has in hand at most.
const MOST_IN_HAND: usize = 1000;

/// When fewer are in hand, more are read.
const FEW_IN_HAND: usize = MOST_IN_HAND / 2;

/// Timers of one subscription whose next event may rest on a node after it was not taken. With more, nothing is read but
/// these: each read passes by them.
const MOST_RESTING: usize = 10_000;

/// The fewest events of a shard that are read at once.
const FEWEST_OF_SHARD: usize = 16;

/// How long events of other nodes' calls may wait until they are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often it looks whether this process has written events.
const GLANCE_EVERY: Duration = Duration::from_millis(20);

/// Taken events are removed together: when there are so many, or so long after the first.
const REMOVE_MANY: usize = 250;
const REMOVE_AFTER: Duration = Duration::from_millis(50);

/// The wait after the first failure of an event, which doubles with each further one up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// After so many failures in a row a destination is tried by one event at a time.
const TRIED_SINGLY_AFTER: u32 = 5;

/// The wait before such a try, which doubles up to the longest.
const FIRST_TRIAL: Duration = Duration::from_millis(250);
const LONGEST_TRIAL: Duration = Duration::from_secs(15);

/// How long nothing is sent after this node lacked something.
const LACK_PAUSE: Duration = Duration::from_millis(500);

/// At a stop, how long answers are waited for.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// While something is out, the pause between two turns: answers are dealt with together. Where other lines have the places of
/// the destination, they are asked for as often, so that each line gets its part.
const ANSWERS: Duration = Duration::from_millis(2);

/// An event came back.
struct Sent {
    held: Arc<Held>,
    /// `None`: the shard is another node's by now, and nothing was sent.
    answer: Option<Result<Outcome, Lack>>,
}

/// The sending of one subscription's events.
pub(super) struct Line {
    outbox: Arc<Outbox>,
    subscription: Subscription,
    hand: Hand,
    sends: JoinSet<Sent>,
    /// Settled and not removed: shard, `seq` and number.
    done: Vec<(i32, i64, Uuid)>,
    done_since: Option<Monotonic>,
    /// How long after a read this process's own events are looked for: longer where they were not found.
    glance: Duration,
    /// What this process had written for it when events were last read, and when that was.
    read: Option<(u64, Monotonic)>,
    /// When the oldest event in hand became true, as of the last read.
    oldest_at: Option<UnixMs>,
    pace: Pace,
    /// Other lines have places at the destination that this one could have.
    is_crowded: bool,
    /// When it was last looked whether what is in hand is still this node's to send.
    kept_at: Option<Monotonic>,
    /// The last read found as much as it asked for.
    has_more: bool,
    per_shard: usize,
    /// Tries in a row that the destination did not take.
    failures: u32,
    /// Nothing is sent until then.
    rests_until: Option<Monotonic>,
    failing: Streak,
    dropped: Rarely,
}

impl Line {
    pub fn new(outbox: Arc<Outbox>, subscription: Subscription) -> Self {
        Self {
            outbox,
            subscription,
            hand: Hand::default(),
            sends: JoinSet::new(),
            done: Vec::new(),
            done_since: None,
            glance: GLANCE_EVERY,
            read: None,
            oldest_at: None,
            pace: Pace::default(),
            is_crowded: false,
            kept_at: None,
            has_more: false,
            per_shard: FEWEST_OF_SHARD,
            failures: 0,
            rests_until: None,
            failing: Streak::default(),
            dropped: Rarely::default(),
        }
    }

    /// Sends until stopped; then answers are waited for, and what was taken is removed.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let turned = self.turn().await;
            self.note(&turned);
            let pause = self.pause(turned.is_err());
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.outbox.store.clock().sleep(pause) => {}
            }
        }
        self.end().await;
    }

    /// Waits for the answers to what is out, and removes what was taken.
    pub async fn end(&mut self) {
        let answers = async {
            while let Some(sent) = self.sends.join_next().await {
                self.came_back(sent);
            }
        };
        let _ = tokio::time::timeout(LAST_ANSWERS, answers).await;
        if let Err(why) = self.remove(true).await {
            tracing::debug!(%why, "events that were taken could not be removed; they are sent again");
        }
    }

    /// One turn: what came back is settled, what was taken is removed, more is read, and what may go is sent.
    pub async fn turn(&mut self) -> Result<(), Error> {
        self.is_crowded = false;
        while let Some(sent) = self.sends.try_join_next() {
            self.came_back(sent);
        }
        self.remove(self.sends.is_empty()).await?;
        let Some(destination) = self
            .outbox
            .destinations
            .find(self.subscription.namespace, &self.subscription.destination)
            .await?
        else {
            return Ok(());
        };
        if destination.is_held() {
            // It may be dropped meanwhile.
            self.put_back();
            return Ok(());
        }
        self.hand.wake(Monotonic::now());
        self.refill().await?;
        let sender = self.outbox.store.sender(self.subscription.namespace).await?;
        self.start(&destination, &sender);
        Ok(())
    }

    /// How long to wait for the next turn.
    fn pause(&self, has_failed: bool) -> Duration {
        let now = Monotonic::now();
        if has_failed {
            return LOOK_EVERY;
        }
        if !self.sends.is_empty() || self.is_crowded {
            return ANSWERS;
        }
        let until = |at: Option<Monotonic>| {
            at.filter(|at| *at > now).map_or(GLANCE_EVERY, |at| at.since(now).min(GLANCE_EVERY))
        };
        until(self.rests_until).min(until(self.hand.wakes_at())).max(Duration::from_millis(1))
    }

    fn note(&mut self, turned: &Result<(), Error>) {
        match turned {
            Ok(()) => drop(self.failing.succeeded()),
            Err(why) if self.failing.failed(self.outbox.store.is_away()) => {
                tracing::warn!(%why, "lifecycle events cannot be read or removed; they wait");
            }
            Err(_) => {}
        }
    }

    fn came_back(&mut self, sent: Result<Sent, JoinError>) {
        // A task fails only at the end of the process, or by a panic, after which its timer waits for a restart.
        let Ok(Sent { held, answer }) = sent else { return };
        let now = Monotonic::now();
        let outcome = match answer {
            None => return self.hand.drop_timer(&held.event.subject),
            Some(Ok(outcome)) => outcome,
            Some(Err(lack)) => {
                self.outbox.metrics.deferred.with_label_values(&[lack.word()]).inc();
                self.rests_until = Some(now.plus(LACK_PAUSE));
                return self.hand.not_sent(&held);
            }
        };
        let metrics = &self.outbox.metrics;
        metrics.outbox_sends.with_label_values(&[outcome.result.word()]).inc();
        let target = Target::Destination(self.subscription.destination.clone());
        self.outbox.dispatcher.note_beside((self.subscription.namespace, &target), &outcome);
        let is_given_up = outcome.gone || self.outbox.store.planted().is(Defect::EventGivenUp);
        if outcome.result == AttemptResult::Ok || is_given_up {
            (self.failures, self.rests_until) = (0, None);
            if outcome.gone {
                metrics.outbox_dropped.with_label_values(&["gone"]).inc();
                if self.dropped.is_due() {
                    tracing::warn!(
                        subscription = self.subscription.name,
                        destination = self.subscription.destination,
                        detail = outcome.detail.as_deref().unwrap_or_default(),
                        "a lifecycle event was refused for good and is dropped"
                    );
                }
            }
            self.done_since.get_or_insert(now);
            self.done.push((held.event.shard, held.event.seq, held.event.id));
            return self.hand.settled(&held);
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= TRIED_SINGLY_AFTER {
            let wait = doubled(FIRST_TRIAL, self.failures - TRIED_SINGLY_AFTER, LONGEST_TRIAL);
            self.rests_until = Some(now.plus(wait));
            // Some may be dropped before the destination takes any.
            self.put_back();
        }
        let seq = held.event.seq;
        self.hand.failed(&held, |failures| {
            let wait = doubled(FIRST_WAIT, failures - 1, LONGEST_WAIT);
            // Those that failed together do not come together again.
            let spread =
                wait.mul_f64(0.75 + 0.5 * f64::from(u16::try_from(seq % 1000).unwrap_or(0)) / 1000.0);
            now.plus(outcome.retry_after.map_or(spread, |asked| asked.min(LONGEST_WAIT * 60)))
        });
    }

    /// Removes what was taken, if it is many, or waited for long enough, or `now`.
    async fn remove(&mut self, now: bool) -> Result<(), Error> {
        let is_due = self.done_since.is_some_and(|since| since.elapsed() >= REMOVE_AFTER);
        if self.done.is_empty() || !(now || is_due || self.done.len() >= REMOVE_MANY) {
            return Ok(());
        }
        while !self.done.is_empty() {
            let some = self.done.len().min(MAX_EVENT_BATCH);
            self.outbox.store.remove_events(self.subscription.id, &self.done[..some]).await?;
            self.hand.removed(self.done.drain(..some).map(|(_, seq, _)| seq));
        }
        self.done_since = None;
        Ok(())
    }

    /// Gives back what is not out; it is read again.
    fn put_back(&mut self) {
        if self.hand.ready() > 0 {
            self.hand.put_back();
            self.read = None;
        }
    }

    /// The shards whose events this node sends. What is in hand of others is dropped.
    fn owned(&mut self) -> HashMap<i32, Epoch> {
        let owned: HashMap<i32, Epoch> = self.outbox.ownership.claimable().into_iter().collect();
        self.hand.keep(|held| owned.get(&held.event.shard) == Some(&held.epoch));
        self.kept_at = Some(Monotonic::now());
        owned
    }

    /// Reads more, if few are in hand and there may be more.
    async fn refill(&mut self) -> Result<(), Error> {
        if self.rests_until.is_some_and(|until| Monotonic::now() < until) {
            return Ok(());
        }
        if self.hand.waiting() >= FEW_IN_HAND {
            if self.kept_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                self.owned();
            }
            return Ok(());
        }
        let told = self.outbox.store.told_to(self.subscription.id);
        let is_told = self.read.is_some_and(|(before, _)| before != told);
        let is_due = self
            .read
            .is_none_or(|(before, at)| at.elapsed() >= if before == told { LOOK_EVERY } else { self.glance });
        if !is_due && !self.has_more && !self.hand.has_woken() {
            return Ok(());
        }
        let owned = self.owned();
        let shards: Vec<i32> = owned.keys().copied().collect();
        let may_rest = MOST_RESTING.saturating_sub(self.hand.resting());
        let room = (MOST_IN_HAND - self.hand.waiting()).min(may_rest.saturating_sub(self.hand.waiting()));
        if room == 0 {
            return Ok(());
        }
        let is_trial = self.failures >= TRIED_SINGLY_AFTER;
        let room = if is_trial { room.min(FEWEST_OF_SHARD) } else { room };
        // What failed before is older and would be tried each time: every other trial is one of the rest.
        let mut is_new_only = is_trial && self.failures.is_multiple_of(2) && self.hand.has_woken();
        let store = &self.outbox.store;
        let (of, mut left_out) = (self.subscription.id, self.hand.left_out(is_new_only));
        let mut events = store.outbox(of, &shards, &left_out, self.per_shard, room).await?;
        if is_new_only && events.is_empty() {
            (is_new_only, left_out) = (false, self.hand.left_out(false));
            events = store.outbox(of, &shards, &left_out, self.per_shard, room).await?;
        }
        self.read = Some((told, Monotonic::now()));
        let found = events.len();
        self.glance = match (found, is_told) {
            // Another node sends them, or they are not committed yet.
            (0, true) => (self.glance * 2).min(LOOK_EVERY),
            (0, false) => self.glance,
            _ => GLANCE_EVERY,
        };
        let mut of_shard: HashMap<i32, usize> = HashMap::new();
        events.iter().for_each(|event| *of_shard.entry(event.shard).or_default() += 1);
        let is_cut = of_shard.values().any(|count| *count >= self.per_shard);
        self.has_more = is_cut || found >= room || is_new_only;
        // Where few shards have many events, more of each are read.
        self.per_shard = match (is_cut, found < room / 2) {
            (true, true) => (self.per_shard * 2).min(MOST_IN_HAND),
            (true, false) => self.per_shard,
            (false, _) => (self.per_shard / 2).max(FEWEST_OF_SHARD),
        };
        let held = events.into_iter().filter_map(|event| {
            let epoch = *owned.get(&event.shard)?;
            Some(Held { event, epoch })
        });
        self.hand.add(held);
        if !self.has_more {
            self.hand.all_read();
        }
        self.oldest_at = self.hand.oldest_at();
        Ok(())
    }

    /// How many events that are ready this line would send now.
    fn wanted(&self) -> usize {
        if self.rests_until.is_some_and(|until| Monotonic::now() < until) {
            return 0;
        }
        let ready = self.hand.ready();
        let is_trial = self.failures >= TRIED_SINGLY_AFTER;
        if is_trial { ready.min(1_usize.saturating_sub(self.sends.len())) } else { ready }
    }

    /// Sends what may go: firings go first, and all lines of a destination share what these leave.
    fn start(&mut self, destination: &Arc<Destination>, sender: &Arc<Sender>) {
        let wanted = self.wanted();
        let most = self.pace.share(wanted, self.oldest_at, &self.outbox);
        if most == 0 {
            return;
        }
        let (places, is_crowded) = self.outbox.dispatcher.places(destination, wanted, most);
        self.is_crowded = is_crowded;
        if places.is_empty() {
            return;
        }
        self.pace.sends();
        for place in places {
            let Some(held) = self.hand.next() else { break };
            let Some(kind) = Lifecycle::from_code(held.event.kind) else {
                // Of a later version: a node of that one sends it.
                self.hand.failed(&held, |_| Monotonic::now().plus(LONGEST_WAIT));
                continue;
            };
            let delivery = delivery(&held, kind, Arc::clone(destination), Arc::clone(sender));
            self.sends.spawn(send(Arc::clone(&self.outbox), held, delivery, place));
        }
    }
}

/// Makes one try, in this place.
async fn send(outbox: Arc<Outbox>, held: Arc<Held>, delivery: Delivery, place: Place) -> Sent {
    place.wait().await;
    if !outbox.ownership.valid(held.event.shard, held.epoch, outbox.store.clock().now()) {
        return Sent { held, answer: None };
    }
    let answer = outbox.sink.send(&delivery).await;
    Sent { held, answer: Some(answer) }
}

fn delivery(held: &Held, kind: Lifecycle, destination: Arc<Destination>, sender: Arc<Sender>) -> Delivery {
    let Held { event, epoch } = held;
    let timeout = destination.limits.timeout.map(Span::get);
    let about = (event.id, event.subject.clone(), event.at, event.body.clone());
    Delivery::told(kind, about, destination, sender, (event.shard, *epoch), timeout)
}

/// A wait that doubles so many times, up to the longest.
fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(20)).min(longest)
}

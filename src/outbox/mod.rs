//! Lifecycle events, from the outbox to the destinations of those who subscribed.
//!
//! What happens to a timer is written for its subscribers in the transaction that makes it true ([`crate::cold`]); here it
//! is sent. The owner of a shard sends the events of that shard, under its epoch, through the same sinks as firings, and
//! removes what was taken. So events trail, and nothing that fires waits for them: they take what room firings leave at
//! their destination ([`crate::dispatch::Place`]), all subscriptions together.
//!
//! | rule | where |
//! |---|---|
//! | at least once, always under the same number | a row goes only after the destination took it |
//! | in order within one timer | `hand::Hand`: one event of a timer is out at a time |
//! | a dead destination delays no other | each subscription has a `line::Line` of its own |
//! | bounded | so many events of a subscription wait at most (`outbox.max_events`), then the oldest are dropped |

mod hand;
mod line;
mod pace;
mod subscriptions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cold::{Backlog, ColdStore, Error, MOST_EXCESS};
use crate::config::Config;
use crate::destinations::Destinations;
use crate::dispatch::Dispatcher;
use crate::metrics::Metrics;
use crate::model::subscription::Subscription;
use crate::ownership::Ownership;
use crate::sink::Sink;
use crate::telemetry::{Rarely, Streak};
use line::Line;
pub use subscriptions::{Put, PutOutcome, Subscriptions};

/// How often what waits is counted.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// After so long no transaction writes events any more for a subscription that was removed.
const WRITERS_GONE_MS: i64 = 60_000;

/// The parts of a node that the outbox works with.
pub struct Outbox {
    /// The cold store.
    pub store: ColdStore,
    /// This node's shards.
    pub ownership: Arc<Ownership>,
    /// The destinations.
    pub destinations: Arc<Destinations>,
    /// Makes attempts.
    pub sink: Arc<dyn Sink>,
    /// What is fired beside, and what is known of receivers.
    pub dispatcher: Arc<Dispatcher>,
    /// The series.
    pub metrics: Metrics,
    /// The most events of one subscription that wait.
    pub max_events: i64,
}

/// The line of one subscription, and how to end it.
struct Running {
    subscription: Subscription,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Outbox {
    /// An outbox over these parts.
    pub fn new(
        config: &Config,
        store: ColdStore,
        dispatcher: Arc<Dispatcher>,
        ownership: Arc<Ownership>,
        destinations: Arc<Destinations>,
        sink: Arc<dyn Sink>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            ownership,
            destinations,
            sink,
            dispatcher,
            metrics,
            max_events: i64::try_from(config.outbox.max_events).unwrap_or(i64::MAX),
        })
    }

    /// Sends what waits, for every subscription, until stopped.
    pub async fn run(self: Arc<Self>, subscriptions: Arc<Subscriptions>, stop: CancellationToken) {
        let mut changes = subscriptions.changes();
        let mut lines: BTreeMap<i64, Running> = BTreeMap::new();
        let (mut streak, mut dropping) = (Streak::default(), Rarely::default());
        while !stop.is_cancelled() {
            changes.borrow_and_update();
            self.set_lines(&mut lines);
            if let Err(why) = self.count(&mut dropping).await
                && streak.failed(self.store.is_away())
            {
                tracing::warn!(%why, "lifecycle events that wait cannot be counted");
            }
            tokio::select! {
                () = stop.cancelled() => {}
                _ = changes.changed() => {}
                () = self.store.clock().sleep(COUNT_EVERY) => {}
            }
        }
        lines.values().for_each(|line| line.stop.cancel());
        for line in lines.into_values() {
            // Fails only after a panic, which the line's own phase has no part in.
            let _ = line.task.await;
        }
    }

    /// One line for each subscription as it is now.
    fn set_lines(self: &Arc<Self>, lines: &mut BTreeMap<i64, Running>) {
        let set = self.store.subscription_set();
        lines.retain(|id, line| {
            let stays = set.all.iter().any(|one| one.id == *id);
            if !stays {
                line.stop.cancel();
            }
            stays
        });
        for one in &set.all {
            match lines.remove(&one.id) {
                Some(same) if same.subscription == *one && !same.task.is_finished() => {
                    lines.insert(one.id, same);
                }
                before => drop(lines.insert(one.id, self.start(one.clone(), before))),
            }
        }
    }

    /// Starts a line, in place of one that is ended first: two would send the events of one timer side by side.
    fn start(self: &Arc<Self>, subscription: Subscription, before: Option<Running>) -> Running {
        let stop = CancellationToken::new();
        let sending = Arc::clone(self).send(subscription.clone(), stop.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                before.stop.cancel();
                let _ = before.task.await;
            }
            sending.await;
        });
        Running { subscription, stop, task }
    }

    /// Sends the events of one subscription until stopped; then answers are waited for, and what was taken is removed.
    pub async fn send(self: Arc<Self>, subscription: Subscription, stop: CancellationToken) {
        Line::new(self, subscription).run(stop).await;
    }

    /// Counts what waits and drops what is too much: on one node for all, the owner of shard 0.
    async fn count(&self, dropping: &mut Rarely) -> Result<(), Error> {
        let Metrics { outbox_events, outbox_oldest, .. } = &self.metrics;
        let set = self.store.subscription_set();
        if !self.ownership.is_first() || set.version == 0 {
            outbox_events.set(0);
            outbox_oldest.set(0.0);
            return Ok(());
        }
        let all = set.all.clone();
        // Held no longer than needed: who changes the set waits for those that use it.
        drop(set);
        let (mut waiting, mut done) = (Vec::new(), Ok(()));
        for one in &all {
            // One that fails holds up none of the rest.
            match self.bound(one, dropping).await {
                Ok(backlog) => waiting.extend(backlog),
                Err(why) => done = Err(why),
            }
        }
        self.store.clear_removed(WRITERS_GONE_MS).await?;
        self.store.forget_takers().await?;
        done?;
        outbox_events.set(waiting.iter().map(|one| one.events).sum());
        let oldest = waiting.iter().map(|one| one.oldest_at).min();
        let now = self.store.clock().now();
        outbox_oldest.set(oldest.map_or(0.0, |at| now.since(at).as_secs_f64()));
        Ok(())
    }

    /// Counts what waits of a subscription and drops what is too much; returns what is left.
    async fn bound(&self, one: &Subscription, dropping: &mut Rarely) -> Result<Option<Backlog>, Error> {
        let most = self.max_events.saturating_add(MOST_EXCESS);
        let Some(mut backlog) = self.store.backlog(one.id, most).await? else { return Ok(None) };
        let mut dropped = 0;
        let count = |some| {
            self.metrics.outbox_dropped.with_label_values(&["overflow"]).inc_by(some);
            dropped += some;
        };
        let done = self.store.drop_oldest(one, backlog.events - self.max_events, count).await;
        if dropped > 0 && dropping.is_due() {
            tracing::warn!(
                subscription = one.name,
                destination = one.destination,
                dropped,
                "more lifecycle events wait than `outbox.max_events`; the oldest are dropped"
            );
        }
        done?;
        backlog.events -= i64::try_from(dropped).unwrap_or(0);
        Ok(Some(backlog))
    }
}

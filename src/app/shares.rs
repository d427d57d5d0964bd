//! The loop that keeps this node's share of the shards. It runs a round three times a lease, when another node counts as
//! dead, and at once when another node notifies that shards are free or that it has started ([`ColdStore::listen`]).
//!
//! It decides when; [`crate::ownership`] decides what. Invariant: at its end it hands over the shards of this node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::phases::DRAIN;
use crate::clock::Monotonic;
use crate::cold::{ColdStore, Error};
use crate::ownership::{Ownership, Round};
use crate::positions::Positions;
use crate::service::Node;
use crate::telemetry::Rarely;
use crate::wheel::HotWheel;

/// The shortest pause before a round that a notification asks for: a hand-over among many nodes sends many of them.
const NOTIFIED_PAUSE: Duration = Duration::from_millis(50);

/// The first and the longest pause of a node that has less than its share; it doubles each time. A take-over skips shards
/// in which a claim of the last owner is being committed.
const SHORT_PAUSE: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// The longest that a start waits for connections to the stores.
const WARM_UP: Duration = Duration::from_secs(1);

/// The longest that a start waits for what Redis has seen of the store.
const WITNESS: Duration = Duration::from_secs(3);

/// How often it tries again while the store does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Keeps this node's share of the shards.
pub(super) struct Shares {
    node: Arc<Node>,
    store: ColdStore,
    ownership: Arc<Ownership>,
    positions: Arc<Positions>,
    hot: Arc<dyn HotWheel>,
    /// The next pause while the node has less than its share.
    short_pause: Duration,
    /// It is logged that wheels in process do not suit several nodes.
    is_warned: bool,
    /// Limits the warning that the clocks differ.
    skew_logged: Rarely,
    /// The witness is being told what was seen of the store.
    telling: Option<JoinHandle<()>>,
    /// Something is held since the store was restored.
    is_holding: bool,
}

impl Shares {
    /// The shares of this node, which owns no shard yet.
    pub fn new(
        node: Arc<Node>,
        store: ColdStore,
        ownership: Arc<Ownership>,
        positions: Arc<Positions>,
        hot: Arc<dyn HotWheel>,
    ) -> Self {
        Self {
            node,
            store,
            ownership,
            positions,
            hot,
            short_pause: SHORT_PAUSE[0],
            is_warned: false,
            skew_logged: Rarely::default(),
            telling: None,
            is_holding: false,
        }
    }

    /// Renews leases, takes shards over and hands them over, until `leave`; then gives all up. Fails when another process
    /// has started under this node's name.
    pub async fn run(mut self, leave: CancellationToken) -> anyhow::Result<()> {
        let heard = Arc::new(Notify::new());
        let (store, ownership) = (self.store.clone(), Arc::clone(&self.ownership));
        let listening = async {
            store.listen(ownership.me(), &heard).await;
            // It ended with the store's pools; there are still rounds without it.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.rounds(&heard, &leave) => ended?,
            () = listening => {}
        }
        self.leave().await;
        Ok(())
    }

    async fn rounds(&mut self, heard: &Notify, leave: &CancellationToken) -> anyhow::Result<()> {
        // Connections first: a node that takes part is handed its share at once. A failure here shows when they are used.
        let warming = async { (self.store.warm_up().await.is_ok(), self.hot.servers(&[0]).await.is_ok()) };
        let _ = tokio::time::timeout(WARM_UP, warming).await;
        // Before the first heartbeat, so that a store that was restored while no node ran is found at once.
        if let Ok(Ok(witnessed)) = tokio::time::timeout(WITNESS, self.hot.witness(0)).await {
            self.store.see(witnessed);
        }
        while !leave.is_cancelled() {
            match self.round().await {
                Ok(round) if round.superseded => anyhow::bail!(
                    "another process has started under the node name `{}`; give each its own `node.name`",
                    self.ownership.me().name
                ),
                Ok(round) => self.renewed(&round).await,
                Err(why) => self.failed(&why),
            }
            let ended = Monotonic::now();
            let pause = self.pause();
            tokio::select! {
                () = leave.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => continue,
                () = heard.notified() => {}
            }
            tokio::select! {
                () = leave.cancelled() => {}
                () = tokio::time::sleep(NOTIFIED_PAUSE.saturating_sub(ended.elapsed())) => {}
            }
        }
        Ok(())
    }

    async fn round(&self) -> Result<Round, Error> {
        if self.ownership.has_entered() {
            self.ownership.run_once(&self.store, |shard| self.positions.cursor(shard)).await
        } else {
            self.ownership.enter(&self.store).await
        }
    }

    /// A round succeeded.
    async fn renewed(&mut self, round: &Round) {
        if self.store.set_away(false) {
            tracing::info!("the cold store answers again");
        }
        self.show(round);
        self.show_held(round.restored);
        self.tell_witness();
        if self.ownership.has_peers() {
            // For `tier`. A failure shows in the next renewal.
            let rows = self.store.shard_rows(&[]).await.unwrap_or_default();
            rows.iter().for_each(|row| self.positions.learn(row.shard, row.watermark));
            if !self.hot.is_shared() && !std::mem::replace(&mut self.is_warned, true) {
                tracing::warn!(
                    "several nodes share the store, but each has its own wheels (`hot.url` is memory://): \
                     a timer that is registered on one and fires on another is up to two seconds late; use redis://"
                );
            }
        }
    }

    /// Tells Redis what was seen of the store, beside the rounds: Redis may hang.
    fn tell_witness(&mut self) {
        if self.telling.as_ref().is_some_and(|telling| !telling.is_finished()) {
            return;
        }
        let (hot, store) = (Arc::clone(&self.hot), self.store.clone());
        self.telling = Some(tokio::spawn(async move {
            if let Ok(witnessed) = hot.witness(store.seen()).await {
                store.see(witnessed);
            }
        }));
    }

    /// Shows what is held since the store was restored; once it is accepted, it is read from SQL in order.
    fn show_held(&mut self, found: bool) {
        let held = self.store.held();
        let is_holding = found || held.is_some_and(|held| held.is_open());
        self.node.metrics.store_held.set(i64::from(is_holding));
        let was_holding = std::mem::replace(&mut self.is_holding, is_holding);
        if is_holding && !was_holding {
            tracing::warn!(
                "the cold store went back in time: it was restored. What fell due since is held and does not fire until \
                 `mainspring restore accept`; `mainspring restore status` shows how much it is"
            );
        }
        if was_holding && !is_holding {
            tracing::info!("what was held since the store was restored is accepted");
            let shards: Vec<i32> = self.ownership.kept().into_iter().map(|(shard, _)| shard).collect();
            self.positions.lose(&shards, "what the restored store held was accepted");
        }
    }

    /// A round failed: the store is away, or cannot be written.
    fn failed(&mut self, why: &Error) {
        let metrics = &self.node.metrics;
        metrics.store_up.set(0);
        metrics.shards_owned.set(self.ownership.claimable().len() as i64);
        self.node.set_can_write(false);
        // The one line of an outage: the other loops fail with it and log nothing.
        if self.store.set_away(true) {
            tracing::debug!(%why, "leases still cannot be renewed");
        } else {
            tracing::warn!(%why, "leases cannot be renewed; nothing fires until the cold store answers again");
        }
    }

    /// How long to wait for the next round without a notification.
    fn pause(&mut self) -> Duration {
        let pause = if self.store.is_away() {
            RETRY
        } else if self.ownership.is_short() {
            let pause = self.short_pause;
            self.short_pause = (pause * 2).min(SHORT_PAUSE[1]);
            pause
        } else {
            self.short_pause = SHORT_PAUSE[0];
            self.ownership.rest()
        };
        pause.min(self.node.config.lease.get() / 3)
    }

    async fn leave(&self) {
        let leaving = async {
            while let Err(why) = self.ownership.leave(&self.store).await {
                tracing::debug!(%why, "shards not given up yet");
                tokio::time::sleep(RETRY).await;
            }
        };
        if tokio::time::timeout(DRAIN, leaving).await.is_err() {
            tracing::warn!("shards not given up; their leases expire");
        }
        self.node.metrics.shards_owned.set(self.ownership.count() as i64);
    }

    fn show(&mut self, round: &Round) {
        let metrics = &self.node.metrics;
        metrics.store_up.set(1);
        self.node.set_can_write(true);
        metrics.shards_owned.set(self.ownership.count() as i64);
        metrics.shards_taken.inc_by(round.taken.len() as u64);
        let skew = self.store.clock().skew_ms();
        metrics.clock_skew.set(skew as f64 / 1000.0);
        if skew.abs() > 500 && self.skew_logged.is_due() {
            tracing::warn!(
                skew_ms = skew,
                "this node's clock is not the store's; the store's decides what is due"
            );
        }
        if round.set_back_ms > 0 {
            tracing::warn!(
                seconds = round.set_back_ms / 1000,
                "the store's clock was set back; leases, claims and retries from the future count from now"
            );
        }
        if *round != Round::default() {
            tracing::info!(
                taken = round.taken.len(),
                lost = round.lost.len(),
                given_up = round.given_up.len(),
                recalled = round.recalled,
                owned = self.ownership.count(),
                "shards"
            );
        }
    }
}

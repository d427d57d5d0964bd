//! The loop that keeps this node's share of the shards: three rounds a lease, one when another node counts as
//! dead, and one at once whenever another tells that shards came free or that it came ([`ColdStore::hear`]).
//!
//! It decides nothing ([`crate::ownership`] does); it says when. Invariant: the last thing it does is to hand
//! over what the node has.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::DRAIN;
use crate::clock::Monotonic;
use crate::cold::ColdStore;
use crate::ownership::{Ownership, Round};
use crate::service::{Node, Service};

/// What is heard within so long after a round waits for the next: a hand-over among many nodes tells much.
const GATHER: Duration = Duration::from_millis(50);

/// When a node that has less than its share looks again: soon, for a take passes over shards in which a claim
/// of the last owner is being committed; then less and less often, down to this.
const HUNGRY: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// The longest that a start waits for its connections.
const WARM_UP: Duration = Duration::from_secs(1);

/// How often it tries while the store does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Renews leases, takes over and hands over, until told to leave; then leaves.
pub(super) async fn own(node: Arc<Node>, store: ColdStore, leave: CancellationToken) -> anyhow::Result<()> {
    let Some(Service { ownership, .. }) = node.service() else { return Ok(()) };
    let heard = Notify::new();
    let hearing = async {
        store.hear(ownership.me(), &heard).await;
        // Over only with the store's pools; without news there are still rounds.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = rounds(&node, &store, &heard, &leave) => ended?,
        () = hearing => {}
    }
    let leaving = async {
        while let Err(why) = ownership.leave(&store).await {
            tracing::debug!(%why, "shards not given up yet");
            tokio::time::sleep(RETRY).await;
        }
    };
    if tokio::time::timeout(DRAIN, leaving).await.is_err() {
        tracing::warn!("shards not given up; their leases run out");
    }
    node.metrics.shards_owned.set(ownership.count() as i64);
    Ok(())
}

async fn rounds(
    node: &Node,
    store: &ColdStore,
    heard: &Notify,
    leave: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(Service { ownership, positions, hot, .. }) = node.service() else { return Ok(()) };
    // Whoever takes part is handed its share at once. What fails here is tried again when it is needed.
    let warming = async { (store.warm_up().await.is_ok(), hot.servers(&[0]).await.is_ok()) };
    let _ = tokio::time::timeout(WARM_UP, warming).await;
    let mut warned = false;
    let mut entered = false;
    let mut failing = false;
    let mut hungry = HUNGRY[0];
    while !leave.is_cancelled() {
        let round = if entered {
            ownership.run_once(store, |shard| positions.cursor(shard)).await
        } else {
            ownership.enter(store).await
        };
        match round {
            Ok(Round { usurped: true, .. }) => anyhow::bail!(
                "another process has started under the node name `{}`; give each its own `node.name`",
                ownership.me().name
            ),
            Ok(round) => {
                entered = true;
                if failing {
                    failing = false;
                    tracing::info!("the cold store answers again");
                }
                note(node, store, ownership, &round);
                if ownership.has_company() {
                    // For `tier`: a failure shows in the next renewal.
                    let rows = store.shard_rows(&[]).await.unwrap_or_default();
                    rows.iter().for_each(|row| positions.learn(row.shard, row.watermark));
                    if !warned && !hot.is_shared() {
                        warned = true;
                        tracing::warn!(
                            "several nodes share the store, but each has its own wheels (`hot.url` is memory://): \
                             what is registered on one and fires on another is up to two seconds late; use redis://"
                        );
                    }
                }
            }
            Err(why) => {
                node.metrics.store_errors.inc();
                node.metrics.store_up.set(0);
                node.set_can_write(false);
                node.metrics.shards_owned.set(ownership.claimable().len() as i64);
                if !failing {
                    failing = true;
                    tracing::warn!(%why, "leases cannot be renewed");
                }
            }
        }
        let ended = Monotonic::now();
        let pause = match (failing, ownership.is_hungry()) {
            (true, _) => RETRY,
            (false, true) => {
                let pause = hungry;
                hungry = (hungry * 2).min(HUNGRY[1]);
                pause
            }
            (false, false) => {
                hungry = HUNGRY[0];
                ownership.rest()
            }
        };
        let pause = pause.min(node.config.lease.get() / 3);
        tokio::select! {
            () = leave.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => continue,
            () = heard.notified() => {}
        }
        tokio::select! {
            () = leave.cancelled() => {}
            () = tokio::time::sleep(GATHER.saturating_sub(ended.elapsed())) => {}
        }
    }
    Ok(())
}

fn note(node: &Node, store: &ColdStore, ownership: &Ownership, round: &Round) {
    node.metrics.store_up.set(1);
    node.set_can_write(true);
    node.metrics.shards_owned.set(ownership.count() as i64);
    node.metrics.shards_taken.inc_by(round.taken.len() as u64);
    let skew = store.clock().skew_ms();
    node.metrics.clock_skew_ms.set(skew);
    if skew.abs() > 500 {
        tracing::warn!(
            skew_ms = skew,
            "this node's clock is not the store's; the store's decides what is due"
        );
    }
    if *round != Round::default() {
        tracing::info!(
            taken = round.taken.len(),
            lost = round.lost.len(),
            given_up = round.given_up.len(),
            recalled = round.recalled,
            owned = ownership.count(),
            "shards"
        );
    }
}

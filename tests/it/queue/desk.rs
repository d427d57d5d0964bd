//! The desk itself, without a server around it: a caller that goes at a moment of its own, and whose turn it is.

use std::sync::Arc;
use std::time::Duration;

use mainspring::cold::{NewTimer, Turn};
use mainspring::metrics::Metrics;
use mainspring::model::priority::Priority;
use mainspring::model::queue::Dispatch;
use mainspring::ownership::Ownership;
use mainspring::promotion::Promotion;
use mainspring::queue::Queues;
use mainspring::writer::Writer;
use tokio_util::sync::CancellationToken;

use crate::store::fixture::{Fixture, on_both_stores};
use crate::store::queues::{asking, for_queue};

/// The desks of a node that does nothing else.
fn desks(f: &Fixture) -> Arc<Queues> {
    let metrics = Metrics::new().expect("series");
    let ownership = Ownership::new(f.me.clone(), f.config.lease.get(), f.config.shards, false);
    let (promotion, _) =
        Promotion::new(f.store.clock().clone(), f.config.wheel.window.get(), None, metrics.clone());
    let writer = Writer::new(f.store.clone(), promotion, metrics.clone());
    Queues::new(f.store.clone(), writer, Arc::new(ownership), metrics, CancellationToken::new())
}

async fn a_caller_that_goes_before_it_has_looked_costs_nothing(f: Fixture) {
    let timer = for_queue(f.timer("t", 0), Dispatch::default());
    f.register(std::slice::from_ref(&timer)).await;
    let desks = desks(&f);
    let mut call = Box::pin(desks.lease("q", asking("w1"), Duration::ZERO));
    assert!(futures::poll!(&mut call).is_pending(), "it stands at the desk");
    desks.drain().await;
    let places = f.store.places(timer.uid).await.expect("reads");
    assert_eq!(places.len(), 1, "the desk has answered, and nobody has looked");
    drop(call);
    desks.drain().await;
    let again = f.store.lease("q", &[asking("w2")], "a", &mut Turn::default()).await;
    let given = again.expect("leases").given.remove(0);
    assert_eq!(given.iter().map(|item| item.attempt).collect::<Vec<_>>(), [1], "it did not count");
    f.balanced().await;
}

/// A worker that takes one task after another meets all priorities, each in its turn.
async fn turns_go_on_from_call_to_call(f: Fixture) {
    let mut timers = Vec::new();
    for priority in [Priority::High, Priority::Normal, Priority::Low] {
        for n in 0..42 {
            let timer = f.timer(&format!("{}-{n:02}", priority.word()), 0);
            timers.push(NewTimer { priority, ..for_queue(timer, Dispatch::default()) });
        }
    }
    f.register(&timers).await;
    let desks = desks(&f);
    let mut got = Vec::new();
    for _ in 0..42 {
        let given = desks.lease("q", asking("w1"), Duration::ZERO).await.expect("leases");
        got.extend(given.items.iter().map(|item| item.timer.clone()));
        given.keep();
        // The desk is gone before the next call.
        desks.drain().await;
    }
    let count = |word: &str| got.iter().filter(|id| id.starts_with(word)).count();
    assert_eq!((count("high"), count("normal"), count("low")), (32, 8, 2), "{got:?}");
}

on_both_stores!(a_caller_that_goes_before_it_has_looked_costs_nothing, turns_go_on_from_call_to_call);

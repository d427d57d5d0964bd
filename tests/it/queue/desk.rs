//! The desk itself, without a server around it: a caller that goes at a moment of its own, and whose turn it is.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::cold::{Asking, Call, ColdStore, Error, FailPoint, NewTimer, Turn};
use mainspring::metrics::Metrics;
use mainspring::model::id::Uid;
use mainspring::model::namespace::Namespace;
use mainspring::model::priority::Priority;
use mainspring::model::queue::Dispatch;
use mainspring::ownership::Ownership;
use mainspring::promotion::Promotion;
use mainspring::queue::{Queues, Refused};
use mainspring::writer::Writer;
use tokio_util::sync::CancellationToken;

use crate::store::fixture::{Fixture, on_both_stores};
use crate::store::queues::{asking, for_queue, who_ask};

/// The desks of a node that does nothing else.
fn desks(f: &Fixture) -> Arc<Queues> {
    desks_of(f, f.store.clone())
}

/// The same, with another way to the store.
fn desks_of(f: &Fixture, store: ColdStore) -> Arc<Queues> {
    let metrics = Metrics::new().expect("series");
    let ownership = Ownership::new(f.me.clone(), f.config.lease.get(), f.config.shards, false);
    let (promotion, _) =
        Promotion::new(f.store.clock().clone(), f.config.wheel.window.get(), None, metrics.clone());
    let writer = Writer::new(store.clone(), promotion, metrics.clone());
    Queues::new(store, writer, Arc::new(ownership), metrics, CancellationToken::new())
}

async fn a_caller_that_goes_before_it_has_looked_costs_nothing(f: Fixture) {
    let timer = for_queue(f.timer("t", 0), Dispatch::default());
    f.register(std::slice::from_ref(&timer)).await;
    let desks = desks(&f);
    let mut call = Box::pin(desks.lease((Namespace::OWN, "q"), asking("w1"), Duration::ZERO));
    assert!(futures::poll!(&mut call).is_pending(), "it stands at the desk");
    desks.drain().await;
    let places = f.store.places(timer.uid).await.expect("reads");
    assert_eq!(places.len(), 1, "the desk has answered, and nobody has looked");
    drop(call);
    desks.drain().await;
    let again = f.store.lease("q", &who_ask("q", &[asking("w2")]), "a", &mut Turn::default()).await;
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
        let given = desks.lease((Namespace::OWN, "q"), asking("w1"), Duration::ZERO).await.expect("leases");
        got.extend(given.items.iter().map(|item| item.timer.clone()));
        given.keep();
        // The desk is gone before the next call.
        desks.drain().await;
    }
    let count = |word: &str| got.iter().filter(|id| id.starts_with(word)).count();
    assert_eq!((count("high"), count("normal"), count("low")), (32, 8, 2), "{got:?}");
}

/// Workers to whom others hide what they may have do not wait for each other.
async fn nobody_waits_for_the_next_look_behind_what_hides(f: Fixture) {
    const WORKERS: usize = 40;
    let put = async |word: &str| {
        let timer = |n| for_queue(f.timer(&format!("{word}-{n:02}"), 0), Dispatch::default());
        let timers: Vec<NewTimer> = (0..WORKERS).map(timer).collect();
        f.register(&timers).await;
        timers.into_iter().map(|timer| timer.uid).collect::<HashSet<Uid>>()
    };
    let exclude = put("hides").await;
    f.clock.advance(Duration::from_millis(5));
    put("new").await;
    let desks = desks(&f);
    // Nothing wakes the desk but these calls; by itself it looks after five seconds.
    let calls = (0..WORKERS).map(|n| {
        let one = Asking { exclude: exclude.clone(), ..asking(&format!("w{n}")) };
        desks.lease((Namespace::OWN, "q"), one, Duration::from_secs(20))
    });
    let all = tokio::time::timeout(Duration::from_secs(4), futures::future::join_all(calls));
    let all = all.await.expect("at once");
    let mut got = BTreeSet::new();
    for given in all {
        let given = given.expect("leases");
        got.extend(given.items.iter().map(|item| item.timer.clone()));
        given.keep();
    }
    assert_eq!(got.len(), WORKERS, "{got:?}");
}

/// Breaks the connection once, right after a commit.
struct BrokenCommit(AtomicBool);

impl FailPoint for BrokenCommit {
    fn before(&self, _: Call, _: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn after(&self, call: Call, _: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        let breaks = call == Call::Commit && self.0.swap(false, Ordering::SeqCst);
        let why = || Error::Unavailable(Arc::new(sea_orm::sqlx::Error::PoolClosed));
        Box::pin(async move { if breaks { Err(why()) } else { Ok(()) } })
    }

    fn begin(&self) -> Box<dyn std::any::Any + Send + Sync> {
        Box::new(())
    }
}

async fn what_a_broken_commit_gave_out_is_taken_back(f: Fixture) {
    let timer = for_queue(f.timer("t", 0), Dispatch::default());
    f.register(std::slice::from_ref(&timer)).await;
    let point = Arc::new(BrokenCommit(AtomicBool::new(true)));
    let desks = desks_of(&f, f.store.with_fail_point(point, f.clock.clone()));
    let answer = desks.lease((Namespace::OWN, "q"), asking("w1"), Duration::ZERO).await;
    assert!(matches!(answer, Err(Refused::Cold(Error::Ambiguous(_)))), "nobody knows");
    desks.drain().await;
    assert!(f.store.places(timer.uid).await.expect("reads").is_empty(), "it was committed, and taken back");
    let again =
        f.store.lease("q", &who_ask("q", &[asking("w2")]), "a", &mut Turn::default()).await.expect("leases");
    assert_eq!(again.given[0].iter().map(|item| item.attempt).collect::<Vec<_>>(), [1], "it did not count");
    f.balanced().await;
}

on_both_stores!(
    a_caller_that_goes_before_it_has_looked_costs_nothing,
    turns_go_on_from_call_to_call,
    nobody_waits_for_the_next_look_behind_what_hides,
    what_a_broken_commit_gave_out_is_taken_back,
);

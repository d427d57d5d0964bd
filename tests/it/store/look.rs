//! What is kept and what is told of it: history, lists, the ledger.

use std::collections::HashSet;
use std::time::Duration;

use mainspring::cold::{ChangeEvent, Filter, NewTimer, Registered};
use mainspring::model::timer::State;

use super::fixture::{Fixture, START, behind_its_back, on_both_stores};

async fn history_goes_after_its_retention_and_the_totals_stay(f: Fixture) {
    f.store.make_partitions(f.now(), 3).await.expect("partitions");
    for n in 0..5 {
        let uid = f.put(&format!("t{n}"), 5000).await;
        f.change(uid, ChangeEvent::Cancel).await;
    }
    f.put("live", 1_000_000_000).await;
    f.store.clean_up(f.now()).await.expect("cleans");
    assert!(f.store.find(f.timer("t0", 0).uid).await.expect("looks").is_some());
    // Past the retention of two days and the rest of the day whose partition it was.
    f.clock.advance(Duration::from_secs(3 * 86_400 + 1));
    assert_eq!(f.store.clean_up(f.now()).await.expect("cleans"), 5);
    assert!(f.store.find(f.timer("t0", 0).uid).await.expect("looks").is_none());
    assert!(
        matches!(f.register(&[f.timer("t0", 5000)]).await[..], [Registered::New(_)]),
        "the id is free again"
    );
    let ledger = f.store.ledger().await.expect("reads");
    assert_eq!((ledger.registered, ledger.cancelled, ledger.pending), (7, 5, 2));
    f.balanced().await;
}

async fn a_list_misses_nothing_and_repeats_nothing(f: Fixture) {
    let mut timers = Vec::new();
    for n in 0..60 {
        let owner = (n % 2 == 0).then(|| "even".to_owned());
        let labels = (n % 3 == 0).then(|| r#"{"kind":"third"}"#.to_owned());
        timers.push(NewTimer { owner, labels, ..f.timer(&format!("t{n}"), 1000 + i64::from(n / 7)) });
    }
    f.register(&timers).await;
    for timer in &timers[..20] {
        f.change(timer.uid, ChangeEvent::Cancel).await;
    }
    let all = |filter: Filter| {
        let store = f.store.clone();
        async move {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = store.list(&filter, after, 7).await.expect("lists");
                assert!(page.rows.len() <= 7);
                seen.extend(page.rows);
                after = page.next;
                if after.is_none() {
                    return seen;
                }
            }
        }
    };
    let seen = all(Filter::default()).await;
    assert_eq!(seen.iter().map(|row| row.uid).collect::<HashSet<_>>().len(), 60);
    assert_eq!(seen.len(), 60);
    assert!(seen.is_sorted_by_key(|row| row.life.due_at), "in due order");
    let count = |filter| async { all(filter).await.len() };
    assert_eq!(count(Filter { state: Some(State::Cancelled), ..Filter::default() }).await, 20);
    assert_eq!(count(Filter { owner: Some("even".into()), ..Filter::default() }).await, 30);
    assert_eq!(
        count(Filter { labels: vec![("kind".into(), "third".into())], ..Filter::default() }).await,
        20
    );
    assert_eq!(
        count(Filter { labels: vec![("k\"'ind".into(), "third".into())], ..Filter::default() }).await,
        0
    );
    let after = START.plus(Duration::from_millis(1004));
    assert_eq!(count(Filter { due_after: Some(after), ..Filter::default() }).await, 60 - 28);
    assert_eq!(count(Filter { due_before: Some(after), ..Filter::default() }).await, 28);
}

async fn a_planted_loss_is_found_by_verify(f: Fixture) {
    f.put("t", 0).await;
    f.balanced().await;
    let mut gone = f.timer("u", 0);
    gone.caller_id = false;
    f.register(&[gone]).await;
    behind_its_back(&f, "DELETE FROM timers WHERE id = 'u'").await;
    let found = f.store.verify().await.expect("verifies");
    assert!(!found.balanced);
}

on_both_stores!(
    history_goes_after_its_retention_and_the_totals_stay,
    a_list_misses_nothing_and_repeats_nothing,
    a_planted_loss_is_found_by_verify,
);

//! What is kept and what is told of it: history, lists, the ledger.

use std::collections::HashSet;
use std::time::Duration;

use mainspring::cold::Whose;
use mainspring::cold::{ChangeEvent, Filter, NewTimer, Registered, SCALES, Summary};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::State;

use super::fixture::{Fixture, START, behind_its_back, on_both_stores};

async fn history_goes_after_its_retention_and_the_totals_stay(f: Fixture) {
    f.store.make_partitions(f.now(), 3).await.expect("partitions");
    for n in 0..5 {
        let uid = f.put(&format!("t{n}"), 5000).await;
        f.change(uid, ChangeEvent::Cancel).await;
    }
    f.put("live", 1_000_000_000).await;
    f.clean_up().await;
    assert!(f.store.find(f.timer("t0", 0).uid).await.expect("looks").is_some());
    // Past the retention of two days and the rest of the day whose partition it was.
    f.clock.advance(Duration::from_secs(3 * 86_400 + 1));
    assert_eq!(f.clean_up().await, 5);
    assert!(f.store.find(f.timer("t0", 0).uid).await.expect("looks").is_none());
    assert!(
        matches!(f.register(&[f.timer("t0", 5000)]).await[..], [Registered::New(_)]),
        "the id is free again"
    );
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.cancelled, ledger.pending), (7, 5, 2));
    f.balanced().await;
}

/// A minute, an hour, a day and twelve years ahead: one in each scale, and one beyond the last.
const SPREAD: [i64; 4] = [60_000, 40 * 3_600_000, 90 * 86_400_000, 12 * 365 * 86_400_000];

async fn a_summary_has_every_timer_in_the_scale_of_its_time(f: Fixture) {
    let timers: Vec<NewTimer> = (0..40).map(|n| f.timer(&format!("t{n}"), SPREAD[n % 4])).collect();
    f.register(&timers).await;
    let mut summary = Summary::default();
    for scale in 0..SCALES.len() {
        f.store.summarize(&mut summary, scale, f.now(), 40).await.expect("counts");
    }
    f.store.put_summary(&summary).await.expect("is kept");
    assert_eq!(f.store.summary().await.expect("is read"), Some(summary.clone()));
    let bins: Vec<i64> = summary.bins().map(|(_, count)| count).collect();
    assert_eq!((bins, summary.since(f.now().floor_minute())), (vec![10; 3], 40));
    // Twenty hours later the minutes reach over what the hours had counted.
    f.clock.advance(Duration::from_secs(20 * 3600));
    f.store.summarize(&mut summary, 0, f.now(), 40).await.expect("counts");
    let (from, to) = (f.now(), UnixMs::new(f.now().get() + 86_400_000));
    assert_eq!((summary.between(from, to), summary.since(from)), (10, 30), "counted once");
}

async fn an_exact_count_stops_at_its_limit(f: Fixture) {
    let timers: Vec<NewTimer> =
        (0..30).map(|n| f.timer(&format!("t{n}"), 60_000 + n / 10 * 60_000)).collect();
    f.register(&timers).await;
    let to = UnixMs::new(START.get() + 3_600_000);
    let count = async |most| f.store.count_due(START, to, 60_000, most).await.expect("counts");
    assert_eq!(count(30).await, Some([(1, 10), (2, 10), (3, 10)].into()));
    assert_eq!(count(29).await, None);
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
    a_summary_has_every_timer_in_the_scale_of_its_time,
    an_exact_count_stops_at_its_limit,
    a_list_misses_nothing_and_repeats_nothing,
    a_planted_loss_is_found_by_verify,
);

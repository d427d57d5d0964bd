//! Lists: pages by each filter, in one snapshot, bounded in bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring::cold::{Change, ChangeEvent, ColdStore, Filter, NewTimer};
use mainspring::model::id::Uid;
use mainspring::model::timer::State;

use super::fixture::{Fixture, behind_its_back, on_both_stores, record};
use mainspring::model::timer::{AttemptResult, Next};

/// The ids of all pages of a list, and how many pages there were.
async fn ids(store: &ColdStore, filter: &Filter, limit: usize) -> (Vec<String>, usize) {
    let (mut ids, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.list(filter, after, limit).await.expect("lists");
        assert!(page.rows.len() <= limit);
        ids.extend(page.rows.into_iter().map(|row| row.id));
        pages += 1;
        match page.next {
            Some(next) => assert!(after.replace(next) < Some(next), "a cursor goes on"),
            None => return (ids, pages),
        }
    }
}

/// Timers in each state, many of them due at one millisecond, of two owners and of none.
async fn one_of_each(f: &Fixture) -> BTreeMap<String, (State, Option<&'static str>)> {
    let owners = [Some("ann"), Some("bob"), None];
    let timers: Vec<NewTimer> = (0..60)
        .map(|n| NewTimer {
            owner: owners[n % 3].map(str::to_owned),
            ..f.timer(&format!("t{n:02}"), if n % 2 == 0 { 0 } else { 1000 * n as i64 })
        })
        .collect();
    let uids: Vec<Uid> = timers.iter().map(|timer| timer.uid).collect();
    f.register(&timers).await;
    let mut expected: BTreeMap<String, _> =
        (0..60).map(|n| (format!("t{n:02}"), (State::Scheduled, owners[n % 3]))).collect();
    let mut be = |n: usize, state| expected.get_mut(&format!("t{n:02}")).expect("there").0 = state;
    for n in [1, 7, 8] {
        f.change(uids[n], ChangeEvent::Cancel).await;
        be(n, State::Cancelled);
    }
    let owned = f.own_all().await;
    let claimed = f.claim_due(&owned).await;
    let mut rows: BTreeMap<usize, _> = claimed
        .into_iter()
        .map(|row| (uids.iter().position(|uid| *uid == row.uid).expect("ours"), row))
        .collect();
    rows.keys().for_each(|n| be(*n, State::Delivering));
    for (n, result, next, state) in [
        (0, AttemptResult::Ok, Next::GiveUp, State::Delivered),
        (2, AttemptResult::Failed, Next::GiveUp, State::Dead),
        (4, AttemptResult::Failed, Next::Retry(f.now()), State::Retrying),
        (6, AttemptResult::Failed, Next::Retry(f.now()), State::Retrying),
    ] {
        let row = rows.remove(&n).expect("claimed");
        f.change(row.uid, ChangeEvent::Attempted(next, record(&row, result))).await;
        be(n, state);
    }
    expected
}

async fn every_filter_has_all_its_timers_in_pages_of_any_size(f: Fixture) {
    let all = one_of_each(&f).await;
    let states = State::ALL.into_iter().map(Some).chain([None]);
    for state in states {
        for owner in [None, Some("ann"), Some("bob"), Some("t05"), Some("nobody")] {
            let filter = Filter { state, owner: owner.map(str::to_owned), ..Filter::default() };
            let belongs = |id: &str, of: Option<&str>| owner.is_none_or(|owner| of.unwrap_or(id) == owner);
            let mut expected: Vec<&String> = all
                .iter()
                .filter(|(id, (is, of))| state.is_none_or(|state| *is == state) && belongs(id, *of))
                .map(|(id, _)| id)
                .collect();
            for limit in [1, 7, 1000] {
                let (mut found, pages) = ids(&f.store, &filter, limit).await;
                let in_order = found.clone();
                found.sort();
                expected.sort();
                assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?} by {limit}");
                assert!(pages <= found.len() / limit + 1, "{pages} pages of {limit} for {}", found.len());
                let (again, _) = ids(&f.store, &filter, 13).await;
                assert_eq!(again, in_order, "the order does not depend on the page");
            }
        }
    }
}

async fn a_page_ends_before_it_is_too_large(f: Fixture) {
    let large = vec![b'9'; 60_000];
    let timers: Vec<NewTimer> = (0..300)
        .map(|n| NewTimer { data: Some(large.clone()), ..f.timer(&format!("l{n:03}"), 60_000) })
        .collect();
    f.register(&timers).await;
    let page = f.store.list(&Filter::default(), None, 1000).await.expect("lists");
    // 8 MiB are 138 of them.
    assert_eq!((page.rows.len(), page.next.is_some()), (139, true));
    let (ids, pages) = ids(&f.store, &Filter::default(), 1000).await;
    assert_eq!((ids.len(), pages), (300, 3));
}

/// A newer version has written them.
async fn a_page_goes_past_what_cannot_be_read(f: Fixture) {
    for (n, id) in (1..).zip(["a", "b", "c", "d", "e"]) {
        f.put(id, n * 1000).await;
    }
    behind_its_back(&f, "UPDATE timers SET policies = '{]' WHERE id IN ('b', 'c', 'e')").await;
    for limit in [1, 2, 3, 9] {
        assert_eq!(ids(&f.store, &Filter::default(), limit).await.0, ["a", "d"], "by {limit}");
    }
    let page = f.store.list(&Filter::default(), None, 9).await.expect("lists");
    assert_eq!(page.unreadable.len(), 3);
}

/// While timers end, each page has each timer exactly once.
async fn a_timer_that_ends_is_neither_missing_nor_twice(f: Fixture) {
    let timers: Vec<NewTimer> = (0..400).map(|n| f.timer(&format!("t{n:03}"), 60_000)).collect();
    f.register(&timers).await;
    let ended = Arc::new(AtomicBool::new(false));
    let (store, over) = (f.store.clone(), Arc::clone(&ended));
    let ending = tokio::spawn(async move {
        for timer in &timers {
            let cancel = Change { uid: timer.uid, caller: None, event: ChangeEvent::Cancel };
            store.apply(&[cancel]).await.remove(0).expect("cancels");
        }
        over.store(true, Ordering::Release);
    });
    let mut looks = 0;
    while !ended.load(Ordering::Acquire) {
        let page = f.store.list(&Filter::default(), None, 1000).await.expect("lists");
        let mut ids: Vec<_> = page.rows.iter().map(|row| &row.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), page.rows.len()), (400, 400), "after {looks} looks");
        looks += 1;
    }
    ending.await.expect("ends");
    assert!(looks > 3, "{looks}");
}

on_both_stores!(
    every_filter_has_all_its_timers_in_pages_of_any_size,
    a_page_ends_before_it_is_too_large,
    a_page_goes_past_what_cannot_be_read,
    a_timer_that_ends_is_neither_missing_nor_twice,
);

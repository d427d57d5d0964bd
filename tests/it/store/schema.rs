//! The schema, and who may open a store.

use mainspring::clock::ManualClock;
use mainspring::cold::{ChangeEvent, ColdStore, Error};
use mainspring::model::timer::State;

use super::fixture::{Fixture, START, behind_its_back, config, on_both_stores};
use crate::support::fresh_database;

async fn the_schema_goes_up_down_and_up_again(f: Fixture) {
    f.put("t", 0).await;
    f.store.migrate_down(None).await.expect("down");
    assert!(f.store.find(f.timer("t", 0).uid).await.is_err());
    f.store.prepare().await.expect("up again");
    assert!(f.store.find(f.timer("t", 0).uid).await.expect("looks").is_none());
    f.put("t", 0).await;
}

async fn timers_outlive_a_migration(f: Fixture) {
    let lives = f.put("lives", 60_000).await;
    let ended = f.put("ended", 60_000).await;
    f.change(ended, ChangeEvent::Cancel).await;
    f.store.migrate_down(Some(1)).await.expect("one step back");
    f.store.prepare().await.expect("and forward");
    assert_eq!(f.find(lives).await.life.state, State::Scheduled);
    assert_eq!(f.find(ended).await.life.state, State::Cancelled);
}

async fn a_newer_database_and_another_shard_count_are_refused(f: Fixture) {
    let other = config(&f.config.cold.url, &["shards=16"]);
    let store = ColdStore::open(&other, f.clock.clone(), true, false).expect("opens");
    let why = store.prepare().await.expect_err("made with 8");
    assert!(matches!(why, Error::Shards { store: 8, config: 16 }), "{why}");
    let other = config(&f.config.cold.url, &["namespace=other"]);
    let store = ColdStore::open(&other, f.clock.clone(), true, false).expect("opens");
    let why = store.prepare().await.expect_err("made for `default`");
    assert!(matches!(&why, Error::Namespace { store, .. } if store == "default"), "{why}");
    let newer = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m29990101_000001_future', 0)";
    behind_its_back(&f, newer).await;
    let why = f.store.prepare().await.expect_err("newer").to_string();
    assert!(why.contains("m29990101_000001_future") && why.contains("newer"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_at_once_migrate_in_turn() {
    let url = fresh_database().await;
    let config = config(&url, &[]);
    let starts = (0..6).map(|_| {
        let config = config.clone();
        async move {
            let store = ColdStore::open(&config, ManualClock::new(START), true, true).expect("opens");
            store.prepare().await
        }
    });
    for started in futures::future::join_all(starts).await {
        started.expect("prepares");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_one_sqlite_file_is_refused() {
    let f = Fixture::sqlite().await;
    let why = ColdStore::open(&f.config, f.clock.clone(), true, true).err().expect("held").to_string();
    assert!(why.contains("in use") && why.contains("t.db"), "{why}");
    ColdStore::open(&f.config, f.clock.clone(), true, false).expect("reading beside it is allowed");
}

on_both_stores!(
    the_schema_goes_up_down_and_up_again,
    timers_outlive_a_migration,
    a_newer_database_and_another_shard_count_are_refused,
);

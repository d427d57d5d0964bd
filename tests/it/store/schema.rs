//! The schema, and who may open a store.

use mainspring::clock::ManualClock;
use mainspring::cold::{ChangeEvent, ColdStore, Error};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::State;
use mainspring_migrations::{Migrator, RELEASE};
use sea_orm_migration::MigratorTrait;

use super::fixture::{Fixture, START, behind_its_back, config, held_open, on_both_stores, somebody_waits};
use crate::support::{ask_sql, empty_database};

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

/// A schema with a step of another release.
async fn told(f: &Fixture, release: i32, bears: i32) {
    let step = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m29990101_000001_future', 0)";
    behind_its_back(f, step).await;
    behind_its_back(f, &format!("UPDATE store SET release = {release}, bears = {bears}")).await;
}

async fn a_schema_of_the_next_release_is_worked_with_if_it_bears_this_one(f: Fixture) {
    told(&f, RELEASE + 1, RELEASE).await;
    f.store.prepare().await.expect("the next one");
    f.put("t", 0).await;
    let state = f.store.migration_state().await.expect("reads");
    assert_eq!((state.release, state.is_borne, state.unknown.len()), (Some(RELEASE + 1), true, 1));
    for (release, bears) in [(RELEASE + 1, RELEASE + 1), (RELEASE + 2, RELEASE)] {
        behind_its_back(&f, &format!("UPDATE store SET release = {release}, bears = {bears}")).await;
        let why = f.store.prepare().await.expect_err("too new");
        assert!(matches!(why, Error::Newer { .. }), "{why}");
    }
}

/// Release 1 dropped a column that nodes of release 0 write.
async fn nodes_that_could_not_bear_a_step_are_waited_for(f: Fixture) {
    f.store
        .migrate_down(Some(u32::try_from(Migrator::migrations().len() - 2).expect("few")))
        .await
        .expect("down");
    let node = |name: &str, beat_at: i64| {
        format!("INSERT INTO nodes VALUES ('{name}', '{name}', '127.0.0.1:1', '0.1.0', 0, {beat_at})")
    };
    behind_its_back(&f, "DELETE FROM nodes").await;
    behind_its_back(&f, &node("alive", START.get() - 59_000)).await;
    behind_its_back(&f, &node("gone", START.get() - 61_000)).await;
    let why = f.store.prepare().await.expect_err("a node lives");
    assert!(matches!(&why, Error::OlderNodes { names } if names == "alive"), "{why}");
    assert!(why.is_passing(), "a server tries again");
    assert_eq!(f.store.migration_state().await.expect("reads").applied.len(), 2, "nothing was changed");
    f.clock.set(UnixMs::new(START.get() + 2000));
    f.store.prepare().await.expect("it has gone");
}

/// What a broken-off build of an index leaves is invalid, and another session that has locked the table makes only the
/// migration wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_broken_off_is_gone_on_with() {
    let f = Fixture::postgres().await;
    // Back to before the step that makes them.
    let after_the_eighth = Migrator::migrations().len() - 8;
    f.store.migrate_down(Some(u32::try_from(after_the_eighth).expect("few"))).await.expect("back");
    behind_its_back(&f, "CREATE INDEX timers_by_owner ON timers (due_at)").await;
    let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'timers_by_owner'::regclass";
    behind_its_back(&f, invalid).await;
    behind_its_back(&f, "CREATE INDEX history_default_by_owner ON history_default (owner, due_at, uid) WHERE owner IS NOT NULL").await;
    let mut lock = held_open(&f.config.cold.url).await;
    sea_orm::sqlx::raw_sql("LOCK TABLE history IN ROW EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .expect("locks");
    let store = f.store.clone();
    let migration = tokio::spawn(async move { store.prepare().await });
    somebody_waits(&f.config.cold.url).await;
    assert!(!migration.is_finished());
    lock.commit().await.expect("commits");
    migration.await.expect("runs").expect("goes on");
    let made = "SELECT indexdef FROM pg_indexes WHERE indexname = 'timers_by_owner'";
    assert!(ask_sql(&f.config.cold.url, made).await.contains("(owner, due_at, uid)"));
    let rest = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    assert_eq!(ask_sql(&f.config.cold.url, rest).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_at_once_migrate_in_turn() {
    let url = empty_database().await;
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
    a_schema_of_the_next_release_is_worked_with_if_it_bears_this_one,
    nodes_that_could_not_bear_a_step_are_waited_for,
);

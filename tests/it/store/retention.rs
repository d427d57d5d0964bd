//! What removes history and makes its partitions, beside others who use it.

use std::time::Duration;

use mainspring::cold::{ChangeEvent, RetentionStep};
use mainspring::model::id::Uid;
use mainspring::model::timer::{AttemptResult, Next};
use sea_orm::sqlx::{Connection, PgConnection};

use super::fixture::{Fixture, behind_its_back, held_open, on_both_stores, record};
use crate::support::psql;

/// Whoever waits behind a lock that is held for long waits longer than this. Ends and cancels do not. It is shorter than the
/// ten seconds after which the database ends any statement, and with it such a wait.
const ANSWERS: Duration = Duration::from_secs(8);

const DAY_S: u64 = 86_400;

/// Another session with locks on history, like a backup (`ACCESS SHARE`) or an end that is not committed.
async fn locked(f: &Fixture, lock: &str) -> sea_orm::sqlx::Transaction<'static, sea_orm::sqlx::Postgres> {
    let mut other = held_open(&f.config.cold.url).await;
    let sql = sea_orm::sqlx::AssertSqlSafe(format!("LOCK TABLE {lock} MODE"));
    sea_orm::sqlx::raw_sql(sql).execute(&mut *other).await.expect("locks");
    other
}

/// Cancels a timer and ends another while `work` is under way, and demands both answers in time.
async fn ends_meanwhile<T>(f: &Fixture, uids: [Uid; 2], work: impl Future<Output = T>) -> T {
    let ends = async {
        // In the queue of locks they come after the work.
        tokio::time::sleep(Duration::from_millis(50)).await;
        f.change(uids[0], ChangeEvent::Cancel).await;
        let owned = f.own_all().await;
        let row = f.claim_due(&owned).await.remove(0);
        f.store.finish_delivered(&[(uids[1], record(&row, AttemptResult::Ok))]).await.expect("ends")
    };
    let (done, ended) = tokio::join!(work, tokio::time::timeout(ANSWERS, ends));
    assert_eq!(ended.expect("ends and cancels do not wait"), [uids[1]]);
    done
}

async fn partitions(f: &Fixture) -> usize {
    let sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'history'::regclass";
    psql(&f.config.cold.url, sql).await.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_waits_for_a_backup_makes_nobody_wait() {
    let f = Fixture::postgres().await;
    let uids = [f.put("cancelled", 5000).await, f.put("fired", 0).await];
    let before = partitions(&f).await;
    let backup = locked(&f, "history IN ACCESS SHARE").await;
    let made = ends_meanwhile(&f, uids, f.store.make_partitions(f.now(), 9)).await;
    assert!(made.is_err(), "the backup holds the default partition");
    assert_eq!(partitions(&f).await, before);
    f.store.prepare().await.expect("a node starts all the same");
    backup.rollback().await.expect("ends");
    f.store.make_partitions(f.now(), 9).await.expect("makes");
    assert_eq!(partitions(&f).await, before + 2);
    f.balanced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_made_beside_ends_that_are_not_committed() {
    let f = Fixture::postgres().await;
    let (before, ending) = (partitions(&f).await, locked(&f, "ONLY history IN ROW EXCLUSIVE").await);
    f.store.make_partitions(f.now(), 8).await.expect("needs no lock that an end forbids");
    assert_eq!(partitions(&f).await, before + 1);
    ending.rollback().await.expect("ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_that_waits_for_others_makes_nobody_wait() {
    for lock in ["history IN ACCESS SHARE", "history IN ROW EXCLUSIVE"] {
        let f = Fixture::postgres().await;
        let old = f.put("old", 5000).await;
        f.change(old, ChangeEvent::Cancel).await;
        f.clock.advance(Duration::from_secs(3 * DAY_S + 10));
        let uids = [f.put("cancelled", 5000).await, f.put("fired", 0).await];
        let other = locked(&f, lock).await;
        let drop = f.store.clean_up(RetentionStep::Partitions, f.now());
        assert!(ends_meanwhile(&f, uids, drop).await.is_err(), "{lock}");
        let lag = async || f.store.retention_lag_ms(RetentionStep::Partitions, f.now()).await.expect("looks");
        assert!((1..DAY_S as i64 * 1000).contains(&lag().await), "{lock}");
        f.balanced().await;
        other.rollback().await.expect("ends");
        assert_eq!(f.store.clean_up(RetentionStep::Partitions, f.now()).await.expect("drops"), 1);
        assert_eq!(lag().await, 0);
        f.balanced().await;
    }
}

/// Rows without a partition of their day keep none of the other days from theirs, and are not in the way of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_the_default_partition_keeps_no_other_day_from_its_own() {
    let f = Fixture::postgres().await;
    let uid = f.put("t", 5000).await;
    // Beyond the days ahead there is no partition.
    f.clock.advance(Duration::from_secs(20 * DAY_S));
    f.change(uid, ChangeEvent::Cancel).await;
    let of_default = "SELECT count(*) FROM history_default";
    assert_eq!(psql(&f.config.cold.url, of_default).await, "1");
    let before = partitions(&f).await;
    f.store.make_partitions(f.now(), 3).await.expect("makes");
    assert_eq!(partitions(&f).await, before + 3, "all but today");
    let left =
        "SELECT count(*) FROM pg_constraint WHERE conrelid = 'history_default'::regclass AND contype = 'c'";
    assert_eq!(psql(&f.config.cold.url, left).await, "0");
    let next = f.put("next", 5000).await;
    f.clock.advance(Duration::from_secs(DAY_S));
    f.change(next, ChangeEvent::Cancel).await;
    assert_eq!(psql(&f.config.cold.url, of_default).await, "1");
    f.balanced().await;
}

async fn a_step_that_fails_keeps_no_other_from_its_own(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let row = f.claim_due(&owned).await.remove(0);
    let next = Next::Retry(f.now().plus(Duration::from_secs(1)));
    f.change(uid, ChangeEvent::Attempted(next, record(&row, AttemptResult::Failed))).await;
    f.change(uid, ChangeEvent::Cancel).await;
    f.clock.advance(Duration::from_secs(4 * DAY_S));
    let lag = async |step| f.store.retention_lag_ms(step, f.now()).await.expect("looks");
    let retention_ms = 2 * DAY_S as i64 * 1000;
    assert_eq!(lag(RetentionStep::Ids).await, retention_ms);
    assert!((retention_ms - 10..=retention_ms).contains(&lag(RetentionStep::Attempts).await));
    behind_its_back(&f, "ALTER TABLE ended_ids RENAME TO elsewhere").await;
    let mut failed = Vec::new();
    for step in RetentionStep::ALL {
        if f.store.clean_up(step, f.now()).await.is_err() {
            failed.push(step);
        }
    }
    assert_eq!(failed, [RetentionStep::ShortenIds, RetentionStep::Ids]);
    assert_eq!(lag(RetentionStep::Attempts).await, 0);
    assert!(f.store.find(uid).await.expect("looks").is_none());
    behind_its_back(&f, "ALTER TABLE elsewhere RENAME TO ended_ids").await;
    assert_eq!(f.clean_up().await, 0);
    assert_eq!(lag(RetentionStep::Ids).await, 0);
    f.balanced().await;
}

on_both_stores!(a_step_that_fails_keeps_no_other_from_its_own);

/// Commits as soon as somebody waits for a lock on history. The server does it by itself: a drop waits for a fifth of a second
/// only, and this process, or whatever it starts, may take longer to see that and to answer.
const COMMIT_WHEN_AWAITED: &str = "DO $$ BEGIN \
       FOR look IN 1..10000 LOOP \
         IF EXISTS (SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
             WHERE d.datname = current_database() AND l.relation = 'history'::regclass AND NOT l.granted) \
         THEN RETURN; END IF; \
         PERFORM pg_sleep(0.002); \
       END LOOP; \
       RAISE 'nobody waits for a lock on history'; \
     END $$; COMMIT";

/// Its rows were counted before, and would be counted twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_in_which_a_purge_removes_rows_is_dropped_by_another_round() {
    let f = Fixture::postgres().await;
    for id in ["a", "b"] {
        let uid = f.put(id, 5000).await;
        f.change(uid, ChangeEvent::Cancel).await;
    }
    f.clock.advance(Duration::from_secs(4 * DAY_S));
    let rows = async || psql(&f.config.cold.url, "SELECT count(*) FROM history").await.trim().to_owned();
    let mut purge = PgConnection::connect(&f.config.cold.url).await.expect("connects");
    let sql = "BEGIN; DELETE FROM history WHERE id = 'a'; \
               INSERT INTO totals (name, slot, value) VALUES ('folded.cancelled', 999999, 1), ('purged', 999999, 1)";
    sea_orm::sqlx::raw_sql(sql).execute(&mut purge).await.expect("purges");
    let now = f.now();
    let commit = async {
        sea_orm::sqlx::raw_sql(COMMIT_WHEN_AWAITED).execute(&mut purge).await.expect("commits");
    };
    // The first of the two is sent before the other begins.
    let ((), dropped) = tokio::join!(commit, f.store.clean_up(RetentionStep::Partitions, now));
    assert_eq!(dropped.expect("no failure"), 0);
    assert_eq!(rows().await, "1");
    f.balanced().await;
    assert_eq!(f.store.clean_up(RetentionStep::Partitions, now).await.expect("drops"), 1);
    assert_eq!(rows().await, "0");
    f.balanced().await;
}

//! What statements read on PostgreSQL, whatever its statistics said when their plans were made.
//!
//! PostgreSQL itself counts the rows that it reads of tables, the entries that its indexes give, and the pages of indexes that
//! it walks.

use std::collections::HashSet;
use std::time::Duration;

use mainspring::cold::{
    Asking, Backlogged, Change, ChangeEvent, ColdStore, NewTimer, Registered, Settlement, TimerRow, Turn,
};
use mainspring::model::id::{Epoch, Uid};
use mainspring::model::namespace::Namespace;
use mainspring::model::queue::{Action, Dispatch, lane};
use mainspring::model::timer::AttemptResult;

use super::fixture::{Fixture, record};
use super::queues::{asking, for_queue, who_ask};
use crate::support::psql;

/// Timers that nothing here is about.
const OTHERS: u64 = 16_000;
/// How many each statement is about.
const FEW: usize = 20;

/// What a store does to a few timers of its own, all of which have ended then.
#[derive(Debug, Clone, Copy)]
enum Work {
    Deliver,
    Cancel,
    TakeAgain,
    GiveOut,
}

impl Work {
    const ALL: [Self; 4] = [Self::Deliver, Self::Cancel, Self::TakeAgain, Self::GiveOut];

    async fn run(self, f: &Fixture, owned: &[(i32, Epoch)], round: &str) {
        let timers: Vec<_> = (0..FEW).map(|n| f.timer(&format!("{self:?}-{round}-{n}"), 0)).collect();
        match self {
            Self::Deliver => {
                f.register(&timers).await;
                let claimed = f.claim_due(owned).await;
                assert_eq!(claimed.len(), FEW);
                let done: Vec<_> =
                    claimed.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
                assert_eq!(f.store.finish_delivered(&done).await.expect("ends").len(), FEW);
            }
            Self::Cancel => {
                f.register(&timers).await;
                let uids: Vec<Uid> = timers.iter().map(|timer| timer.uid).collect();
                assert_eq!(f.store.find_many(&uids).await.expect("finds").len(), FEW);
                cancel(f, &timers).await;
            }
            Self::TakeAgain => {
                f.register(&timers).await;
                cancel(f, &timers).await;
                // The id of one that has ended is taken, unless it is said that it is to be another.
                let fresh = |answers: Vec<Registered>| {
                    answers.iter().filter(|answer| matches!(answer, Registered::New(_))).count()
                };
                assert_eq!(fresh(f.register(&timers).await), 0);
                let again: Vec<_> =
                    timers.iter().map(|timer| NewTimer { again: true, ..timer.clone() }).collect();
                assert_eq!(fresh(f.register(&again).await), FEW);
                cancel(f, &timers).await;
            }
            Self::GiveOut => give_out(f, owned, timers).await,
        }
    }
}

async fn cancel(f: &Fixture, timers: &[NewTimer]) {
    let cancel = |timer: &NewTimer| Change { uid: timer.uid, caller: None, event: ChangeEvent::Cancel };
    f.apply(&timers.iter().map(cancel).collect::<Vec<_>>()).await;
}

/// Workers take what is for their queue, and settle it. Each may be had by two.
async fn give_out(f: &Fixture, owned: &[(i32, Epoch)], timers: Vec<NewTimer>) {
    let dispatch = Dispatch { times: 2, ..Dispatch::default() };
    let timers: Vec<NewTimer> = timers.into_iter().map(|timer| for_queue(timer, dispatch.clone())).collect();
    f.register(&timers).await;
    let found = f.look(owned, &Backlogged::default()).await;
    f.store.park(&found.iter().map(|due| due.pointer).collect::<Vec<_>>()).await.expect("parks");
    let names: Vec<String> = (0..2 * FEW).map(|n| format!("w{n}")).collect();
    let workers: Vec<_> = names.iter().map(|name| Asking { redo: true, ..asking(name) }).collect();
    let who: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(f.store.ended_leases("q", &who).await.expect("looks"), []);
    let leased =
        f.store.lease("q", &who_ask("q", &workers), "a", &mut Turn::default()).await.expect("leases");
    let items: Vec<_> = leased.given.into_iter().flatten().collect();
    assert_eq!(items.len(), 2 * FEW);
    let settled: Vec<Change> = items
        .iter()
        .map(|item| {
            let settlement = Settlement {
                token: item.token,
                lane: lane(Namespace::OWN, "q"),
                action: Action::Ack,
                result: None,
            };
            Change { uid: item.token.uid, caller: None, event: ChangeEvent::Settle(settlement) }
        })
        .collect();
    f.apply(&settled).await;
    let left: Vec<TimerRow> = {
        let uids: Vec<Uid> = timers.iter().map(|timer| timer.uid).collect();
        f.store.find_many(&uids).await.expect("finds").into_values().collect()
    };
    let ended: HashSet<bool> = left.iter().map(|row| row.ended_at.is_some()).collect();
    assert_eq!(ended, HashSet::from([true]));
}

/// Waits until no other session than the asking one is left, or none of that kind: they tell what they have read when they end.
async fn are_gone(url: &str, kind: &str) {
    let of_kind = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND {kind}"
    );
    while psql(url, &of_kind).await != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends the store's sessions, and opens it anew.
async fn open_anew(f: &mut Fixture) {
    let url = f.config.cold.url.clone();
    let others = "datname = current_database() AND pid <> pg_backend_pid()";
    psql(&url, &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")).await;
    are_gone(&url, "true").await;
    f.store = ColdStore::open(&f.config, f.clock.clone(), true, true).expect("opens");
    f.store.prepare().await.expect("prepares");
    f.alive().await;
}

/// Rows of `timers` and `places` and entries of their indexes that were read so far, and pages of the two indexes of `timers`
/// that have the key and all rows.
async fn read_so_far(url: &str) -> (u64, u64) {
    let rows = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('timers', 'places')) \
                + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('timers', 'places'))";
    let pages = "SELECT sum(idx_blks_read + idx_blks_hit) FROM pg_statio_user_indexes \
                 WHERE indexrelname IN ('timers_pkey', 'timers_by_wake')";
    let count = async |sql| psql(url, sql).await.parse().expect("a number");
    (count(rows).await, count(pages).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_made_while_there_were_no_timers_does_not_read_all_of_them_later() {
    let mut f = Fixture::postgres().await;
    let (owned, url) = (f.own_all().await, f.config.cold.url.clone());
    // Nothing else takes statistics.
    for table in ["timers", "places"] {
        psql(&url, &format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).await;
    }
    // Copies of one timer, each of which comes up at another moment.
    f.put("other", 3_600_000).await;
    let others = format!(
        "CREATE TABLE others AS SELECT timers.* FROM timers, generate_series(1, {OTHERS}); \
         UPDATE others SET uid = gen_random_uuid(), wake_at = wake_at + random() * 1000000"
    );
    psql(&url, &others).await;
    let mut each = Vec::new();
    for work in Work::ALL {
        // Statistics are taken when all have gone: no row in some pages.
        let gone: Vec<NewTimer> = (0..FEW).map(|n| f.timer(&format!("gone-{n}"), 3_600_000)).collect();
        f.register(&gone).await;
        psql(&url, "DELETE FROM timers; DELETE FROM places").await;
        psql(&url, "VACUUM (ANALYZE, TRUNCATE off) timers, places").await;
        let known =
            psql(&url, "SELECT reltuples || ' ' || (relpages > 0) FROM pg_class WHERE relname = 'timers'");
        assert_eq!(known.await, "0 true");
        open_anew(&mut f).await;
        work.run(&f, &owned, "before").await;
        psql(&url, "INSERT INTO timers SELECT * FROM others").await;
        psql(&url, "INSERT INTO places SELECT uid, 1, 1, 1, 1, wake_at, 'other', 0, wake_at, 0 FROM others")
            .await;
        are_gone(&url, "application_name = 'psql'").await;
        let before = read_so_far(&url).await;
        work.run(&f, &owned, "after").await;
        open_anew(&mut f).await;
        let after = read_so_far(&url).await;
        each.push((work, after.0 - before.0, after.1 - before.1));
    }
    // All of an index once is more, and so are its pages for each row of a batch.
    assert!(
        each.iter().all(|(_, rows, pages)| (1..OTHERS / 4).contains(rows) && *pages < OTHERS / 8),
        "work, rows, pages: {each:?}"
    );
}

//! What statements read on PostgreSQL, whatever its statistics said when their plans were made.
//!
//! PostgreSQL itself counts the rows that it reads of tables, and the entries that its indexes give. It does not count entries
//! that an index walks past.

use std::time::Duration;

use mainspring::cold::{Change, ChangeEvent, ColdStore, NewTimer, Settlement, Turn};
use mainspring::model::namespace::Namespace;
use mainspring::model::pointer::Pointer;
use mainspring::model::queue::{Action, Dispatch, lane};
use mainspring::model::timer::AttemptResult;

use super::fixture::{Fixture, record};
use super::queues::{asking, for_queue, who_ask};
use crate::support::psql;

/// Timers that nothing here is about.
const OTHERS: usize = 4000;
/// How many each statement is about, at least.
const FEW: usize = 20;

/// The rows of `timers` and of its indexes that were read so far. Sessions tell what they have counted when they end; the
/// store is opened anew, and plans anew.
async fn read_so_far(f: &mut Fixture) -> u64 {
    let url = f.config.cold.url.clone();
    let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    psql(&url, &format!("SELECT pg_terminate_backend(pid) {others}")).await;
    while psql(&url, &format!("SELECT count(*) {others}")).await != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    f.store = ColdStore::open(&f.config, f.clock.clone(), true, true).expect("opens");
    f.store.prepare().await.expect("prepares");
    let sum = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'timers') \
               + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'timers')";
    psql(&url, sum).await.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_made_while_there_were_no_timers_does_not_read_all_of_them_later() {
    let mut f = Fixture::postgres().await;
    let (owned, url) = (f.own_all().await, f.config.cold.url.clone());
    let later =
        |f: &Fixture, count: usize| (0..count).map(|n| f.timer(&format!("later-{n}"), 3_600_000)).collect();
    // Statistics are taken when all have gone: no row in many pages. Nothing takes others.
    psql(&url, "ALTER TABLE timers SET (autovacuum_enabled = off)").await;
    let gone: Vec<NewTimer> = later(&f, 500);
    f.register(&gone).await;
    psql(&url, "DELETE FROM timers").await;
    psql(&url, "VACUUM (ANALYZE, TRUNCATE off) timers").await;
    let known =
        psql(&url, "SELECT reltuples || ' ' || (relpages > 0) FROM pg_class WHERE relname = 'timers'");
    assert_eq!(known.await, "0 true");
    let others: Vec<NewTimer> = later(&f, OTHERS);
    for batch in others.chunks(1000) {
        f.register(batch).await;
    }
    let due =
        |f: &Fixture, name: &str| (0..FEW).map(|n| f.timer(&format!("{name}-{n}"), 0)).collect::<Vec<_>>();
    f.register(&due(&f, "due")).await;
    let for_workers: Vec<NewTimer> =
        due(&f, "work").into_iter().map(|timer| for_queue(timer, Dispatch::default())).collect();
    f.register(&for_workers).await;
    let found = f.look(&owned, &mainspring::cold::Backlogged::default()).await;
    let (work, plain): (Vec<Pointer>, Vec<Pointer>) =
        found.iter().map(|due| due.pointer).partition(|pointer| pointer.is_for_queue);
    assert_eq!((work.len(), plain.len()), (FEW, FEW));
    let epoch = |pointer: &Pointer| owned.iter().find(|(shard, _)| *shard == pointer.shard).expect("owned").1;
    let plain: Vec<_> = plain.into_iter().map(|pointer| (pointer, epoch(&pointer))).collect();

    let mut reads = vec![read_so_far(&mut f).await];
    let claimed = f.claim(&plain).await;
    assert_eq!(claimed.len(), FEW);
    reads.push(read_so_far(&mut f).await);
    let done: Vec<_> = claimed.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    assert_eq!(f.store.finish_delivered(&done).await.expect("ends").len(), FEW);
    reads.push(read_so_far(&mut f).await);
    let cancels: Vec<Change> = others[..FEW]
        .iter()
        .map(|timer| Change { uid: timer.uid, caller: None, event: ChangeEvent::Cancel })
        .collect();
    f.apply(&cancels).await;
    reads.push(read_so_far(&mut f).await);
    f.store.park(&work).await.expect("parks");
    reads.push(read_so_far(&mut f).await);
    let workers = (0..FEW).map(|n| asking(&format!("w{n}"))).collect::<Vec<_>>();
    let leased =
        f.store.lease("q", &who_ask("q", &workers), "a", &mut Turn::default()).await.expect("leases");
    let items: Vec<_> = leased.given.into_iter().flatten().collect();
    assert_eq!(items.len(), FEW);
    reads.push(read_so_far(&mut f).await);
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
    reads.push(read_so_far(&mut f).await);
    let names = ["claim", "end", "cancel", "park", "lease", "settle"];
    let each: Vec<_> = names.into_iter().zip(reads.windows(2).map(|pair| pair[1] - pair[0])).collect();
    assert!(each.iter().all(|(_, rows)| (1..OTHERS as u64 / 4).contains(rows)), "{each:?}");
}

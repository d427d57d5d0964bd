//! Who owns a shard, and what becomes of the claims of one who does no longer.

use std::collections::HashSet;
use std::str::FromStr;
use std::time::Duration;

use mainspring::cold::{Change, ChangeEvent, Error, TimerRow};
use mainspring::model::id::{Epoch, Generation, Uid};
use mainspring::model::pointer::Pointer;
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{Answer, AttemptResult, Next, State, Token};

use sea_orm::sqlx::postgres::PgConnectOptions;
use sea_orm::sqlx::{Connection, PgConnection, query};

use super::fixture::{Fixture, held_open, identity, on_both_stores, record, token};
use crate::support::{ask_sql, eventually, wall_ms};

async fn what_a_dead_owner_had_claimed_is_due_again_at_once(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let far = f.put("far", 3_600_000).await;
    assert_eq!(f.claim_due(&owned).await.len(), 1);
    let again = f.own_all().await;
    assert!(again.iter().zip(&owned).all(|(new, old)| new.1 > old.1), "a restart has new epochs");
    assert_eq!(f.store.recall(&again, 3000).await.expect("recalls").len(), 1);
    let due = f.due(&again).await;
    assert_eq!(due.len(), 1);
    let expired = ChangeEvent::ClaimExpired(Token { generation: Generation(1), attempt: 1 });
    let (row, answer) = f.change(uid, expired).await;
    assert_eq!((answer, row.life.state, row.life.uncertain), (Answer::Done, State::Retrying, true));
    let attempts = f.store.attempts(&row).await.expect("reads");
    assert_eq!(attempts.iter().map(|a| a.result).collect::<Vec<_>>(), [AttemptResult::Unknown]);
    assert_eq!(f.find(far).await.life.state, State::Scheduled);
    let second = f.claim_due(&again).await;
    assert_eq!(second[0].life.attempt, 2);
    assert_eq!(second[0].delivery_id(), row.delivery_id(), "all attempts of one firing carry one id");
    f.balanced().await;
}

/// Claims, ends and recalls go on although a stranger has locked one of their rows.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_stranger_has_locked_are_passed_by() {
    let f = Fixture::postgres().await;
    f.alive().await;
    let lock = async |uid: Uid| {
        let mut stranger = held_open(&f.config.cold.url).await;
        let sql = query("SELECT 1 FROM timers WHERE uid = $1 FOR UPDATE").bind(uid.0);
        sql.execute(&mut *stranger).await.expect("locks");
        stranger
    };
    let (locked, free) = (f.put("locked", 0).await, f.put("free", 0).await);
    let first = f.own_all().await;
    let uids = |rows: Vec<TimerRow>| rows.iter().map(|row| row.uid).collect::<Vec<_>>();

    let stranger = lock(locked).await;
    assert_eq!(uids(f.claim_due(&first).await), [free]);
    stranger.rollback().await.expect("unlocks");
    assert_eq!(uids(f.claim_due(&first).await), [locked]);

    let stranger = lock(locked).await;
    let done =
        [f.find(locked).await, f.find(free).await].map(|row| (row.uid, record(&row, AttemptResult::Ok)));
    assert_eq!(f.store.finish_delivered(&done).await.expect("ends"), [free]);
    let event = ChangeEvent::Attempted(Next::GiveUp, done[0].1.clone());
    let applied = f.store.apply_unlocked(&[Change { uid: locked, caller: None, event }]).await.remove(0);
    assert!(matches!(applied, Err(Error::Busy)), "{applied:?}");
    stranger.rollback().await.expect("unlocks");
    assert_eq!(f.store.finish_delivered(&done).await.expect("ends"), [locked]);

    let (locked, free) = (f.put("locked2", 0).await, f.put("free2", 0).await);
    assert_eq!(f.claim_due(&first).await.len(), 2);
    let second = f.own_all().await;
    let stranger = lock(locked).await;
    let recalled = f.store.recall(&second, 3000).await.expect("recalls");
    assert_eq!(recalled.iter().map(|(uid, _)| *uid).collect::<Vec<_>>(), [free]);
    stranger.rollback().await.expect("unlocks");
}

async fn what_was_given_up_in_order_is_not_recalled(f: Fixture) {
    let (first, kept) = (f.own_all().await, f.put("kept", 0).await);
    assert_eq!(f.claim_due(&first).await.len(), 1);
    let expires = f.find(kept).await.life.wake_at;
    let given_up = f.store.give_up(&f.me, &first).await.expect("gives up");
    assert_eq!(given_up.len(), 8);
    assert!(f.store.give_up(&f.me, &first).await.expect("asks").is_empty(), "they are nobody's now");

    // The next owner leaves the claim alone, and crashes with one of its own.
    let second = f.own_all().await;
    assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 0);
    let crashed = f.put("crashed", 0).await;
    assert_eq!(f.claim_due(&second).await.len(), 1);
    let third = f.own_all().await;
    assert_eq!(f.store.recall(&third, 3000).await.expect("recalls").len(), 1, "the crashed owner's only");
    assert_eq!(f.find(crashed).await.life.wake_at, f.now());
    assert_eq!(f.find(kept).await.life.wake_at, expires, "who ceded it may be sending it still");

    // Given up in order again: what the one before him ceded is spared still.
    f.store.give_up(&f.me, &third).await.expect("gives up");
    let fourth = f.own_all().await;
    assert_eq!(f.store.recall(&fourth, 3000).await.expect("recalls").len(), 0);

    // A late success under the ceded epoch ends it; what nobody reports runs out.
    let row = f.find(kept).await;
    let ended = f.store.finish_delivered(&[(kept, record(&row, AttemptResult::Ok))]).await.expect("ends");
    assert_eq!(ended, [kept]);
    f.change(crashed, ChangeEvent::ClaimExpired(token(&f.find(crashed).await))).await;
    let lost = f.put("lost", 0).await;
    let due: Vec<_> = f.due(&fourth).await.into_iter().filter(|(pointer, _)| pointer.uid == lost).collect();
    assert_eq!(f.claim(&due).await.len(), 1);
    f.store.give_up(&f.me, &fourth).await.expect("gives up");
    let fifth = f.own_all().await;
    assert_eq!(f.store.recall(&fifth, 3000).await.expect("recalls").len(), 0);
    assert!(f.due(&fifth).await.iter().all(|(pointer, _)| pointer.uid != lost));
    f.clock.advance(Duration::from_secs(60));
    assert!(f.due(&fifth).await.iter().any(|(pointer, _)| pointer.uid == lost), "its claim ran out");
    f.balanced().await;
}

async fn what_was_ceded_by_a_node_that_died_since_is_recalled(f: Fixture) {
    for restarted in [false, true] {
        f.store.enter(&f.me).await.expect("enters");
        let uid = f.put(if restarted { "restarted" } else { "dead" }, 0).await;
        let first = f.own_all().await;
        assert_eq!(f.claim_due(&first).await.len(), 1);
        f.store.give_up(&f.me, &first).await.expect("gives up");
        let second = f.own_all().await;
        assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 0, "it is alive");
        if restarted {
            f.clock.advance(Duration::from_secs(1));
            f.store.enter(&f.me).await.expect("enters anew");
        } else {
            f.clock.advance(Duration::from_secs(4));
        }
        assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 1);
        assert_eq!(f.find(uid).await.life.wake_at, f.now());
        f.change(uid, ChangeEvent::ClaimExpired(token(&f.find(uid).await))).await;
        f.change(uid, ChangeEvent::Cancel).await;
    }
}

async fn what_is_given_up_sparing_nothing_is_recalled(f: Fixture) {
    let (first, uid) = (f.own_all().await, f.put("t", 0).await);
    assert_eq!(f.claim_due(&first).await.len(), 1);
    f.store.give_up_sparing_nothing(&f.me, &first).await.expect("gives up");
    let second = f.own_all().await;
    assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 1);
    assert_eq!(f.find(uid).await.life.wake_at, f.now());
}

async fn nodes_are_counted_and_ranked_by_their_names(f: Fixture) {
    let (b, c) = (identity("b"), identity("c"));
    f.store.enter(&c).await.expect("enters");
    f.store.enter(&b).await.expect("enters");
    for (me, rank) in [(&f.me, 0), (&b, 1), (&c, 2)] {
        let beat = f.store.heartbeat(me, 3000).await.expect("beats");
        assert_eq!((beat.alive.len(), beat.rank(&me.name), beat.superseded), (3, rank, false));
    }
    f.store.leave(&b).await.expect("leaves");
    let beat = f.store.heartbeat(&c, 3000).await.expect("beats");
    assert_eq!((beat.alive.len(), beat.rank("c")), (2, 1), "whoever has left does not count");
}

async fn when_the_next_node_counts_as_dead_is_known(f: Fixture) {
    let (b, c) = (identity("b"), identity("c"));
    assert_eq!(f.store.heartbeat(&f.me, 3000).await.expect("beats").next_dead_ms, None, "nobody else");
    f.store.enter(&b).await.expect("enters");
    f.store.enter(&c).await.expect("enters");
    f.clock.advance(Duration::from_secs(1));
    f.store.heartbeat(&b, 3000).await.expect("beats");
    for (after, alive, left) in
        [(0, 3, Some(2000)), (1500, 3, Some(500)), (500, 2, Some(1000)), (1000, 1, None)]
    {
        f.clock.advance(Duration::from_millis(after));
        let beat = f.store.heartbeat(&f.me, 3000).await.expect("beats");
        assert_eq!((beat.alive.len(), beat.next_dead_ms), (alive, left), "{after} ms later");
    }
}

/// An hour in milliseconds: the store's clock is set back by it.
const HOUR_MS: i64 = 3_600_000;

fn set_back(f: &Fixture) {
    f.clock.set(UnixMs::new(f.now().get() - HOUR_MS));
}

async fn leases_and_beats_from_the_future_count_from_now(f: Fixture) {
    let b = identity("b");
    f.store.enter(&b).await.expect("enters");
    let owned = f.own_all().await;
    assert!(f.store.heartbeat(&b, 3000).await.expect("beats").lease_excess_ms <= 0);
    set_back(&f);
    let beat = f.store.heartbeat(&b, 3000).await.expect("beats");
    assert_eq!(
        (beat.lease_excess_ms, beat.alive.len()),
        (HOUR_MS, 2),
        "it may live: it beats again, or does not"
    );
    assert_eq!(f.store.take_over(&b, 100, false, 3000).await.expect("takes"), []);
    f.store.bring_leases_back(3000).await.expect("brings back");
    let beat = f.store.heartbeat(&b, 3000).await.expect("beats");
    assert_eq!((beat.lease_excess_ms, beat.next_dead_ms), (0, Some(3000)));
    assert_eq!(
        f.store.take_over(&b, 100, false, 3000).await.expect("takes"),
        [],
        "a lease long they are kept"
    );
    assert_eq!(f.store.renew(&f.me, &owned[..4], |_| 0, 60_000).await.expect("renews").len(), 4);
    f.clock.advance(Duration::from_millis(3001));
    assert_eq!(f.store.heartbeat(&b, 3000).await.expect("beats").alive.len(), 1);
    let taken = f.store.take_over(&b, 100, false, 3000).await.expect("takes");
    assert_eq!(taken.len(), 4, "those that nobody has renewed");
}

async fn a_cursor_from_the_future_comes_back(f: Fixture) {
    let owned = f.own_all().await;
    let ahead = f.now().get() + 1500;
    let cursor = async || f.store.shard_rows(&[0]).await.expect("reads")[0].cursor_at.get();
    f.store.renew(&f.me, &owned, |_| ahead, 3000).await.expect("renews");
    f.store.renew(&f.me, &owned, |_| ahead - 1000, 3000).await.expect("renews");
    assert_eq!(cursor().await, ahead, "it only rises");
    set_back(&f);
    // The wheel is still the one from before.
    f.store.renew(&f.me, &owned, |_| ahead, 3000).await.expect("renews");
    assert!(cursor().await <= f.now().get());
    let now = f.now().get();
    f.store.renew(&f.me, &owned, |_| now + 1500, 3000).await.expect("renews");
    assert_eq!(cursor().await, now + 1500);
}

async fn claims_and_retries_from_the_future_count_from_now(f: Fixture) {
    let owned = f.own_all().await;
    let claimed = f.put("claimed", 0).await;
    let retried = f.put("retried", 0).await;
    let postponed = f.put("postponed", -2 * HOUR_MS).await;
    let late = f.put("late", -HOUR_MS / 2).await;
    let far = f.put("far", HOUR_MS / 2).await;
    let due = f.due(&owned).await;
    let is_postponed = |(pointer, _): &(Pointer, Epoch)| [postponed, late].contains(&pointer.uid);
    let (wait, first): (Vec<_>, Vec<_>) = due.into_iter().partition(is_postponed);
    let wait: Vec<_> = wait.into_iter().map(|(pointer, _)| (pointer, 300_000)).collect();
    f.store.postpone(&wait).await.expect("postpones");
    assert_eq!(f.claim(&first).await.len(), 2);
    let row = f.find(retried).await;
    let ttl = row.life.wake_at.get() - f.now().get();
    let next = Next::Retry(f.now().plus(Duration::from_secs(20)));
    f.change(retried, ChangeEvent::Attempted(next, record(&row, AttemptResult::Failed))).await;

    set_back(&f);
    // The timers whose pointers are given: no wheel knows when they wake now.
    let bring_back = async || {
        let mut pointers = f.store.bring_retries_back(i64::MIN, 10).await.expect("brings back").0;
        for shard in 0..8 {
            pointers.extend(f.store.bring_claims_back(shard, HOUR_MS + 3000).await.expect("brings back"));
        }
        let is_true = async |one: &Pointer| f.find(one.uid).await.life.wake_at == one.wake_at;
        for one in &pointers {
            assert!(is_true(one).await, "{one:?}");
        }
        pointers.into_iter().map(|one| one.uid).collect::<HashSet<_>>()
    };
    assert_eq!(bring_back().await, HashSet::from([retried, late]));
    let wakes_in = async |uid| f.find(uid).await.life.wake_at.get() - f.now().get();
    assert_eq!(wakes_in(claimed).await, ttl);
    assert_eq!(wakes_in(retried).await, 20_000);
    assert_eq!(wakes_in(postponed).await, 0, "it is due by this clock too");
    assert_eq!(wakes_in(late).await, HOUR_MS / 2);
    assert_eq!(wakes_in(far).await, HOUR_MS + HOUR_MS / 2, "what is due later is due later");
    f.clock.advance(Duration::from_secs(1));
    assert_eq!(bring_back().await, HashSet::new(), "once");
    assert_eq!((wakes_in(claimed).await, wakes_in(retried).await), (ttl - 1000, 19_000));

    // What was claimed stays claimed, and a claim of a dead owner is recalled as usual.
    assert_eq!(f.find(claimed).await.life.state, State::Delivering);
    let again = f.own_all().await;
    assert_eq!(f.store.recall(&again, 3000).await.expect("recalls").len(), 1);
    f.balanced().await;
}

async fn all_retries_come_back_however_many_there_are(f: Fixture) {
    let owned = f.own_all().await;
    let timers: Vec<_> = (0..25).map(|n| f.timer(&format!("t{n}"), -(n % 3))).collect();
    f.register(&timers).await;
    for row in f.claim_due(&owned).await {
        let next = Next::Retry(f.now().plus(Duration::from_secs(20)));
        f.change(row.uid, ChangeEvent::Attempted(next, record(&row, AttemptResult::Failed))).await;
    }
    set_back(&f);
    let (mut from, mut counts) = (i64::MIN, Vec::new());
    while counts.last().is_none_or(|count| *count == 10) {
        let (pointers, last) = f.store.bring_retries_back(from, 10).await.expect("brings back");
        from = last;
        counts.push(pointers.len());
    }
    assert_eq!(counts, [10, 10, 5]);
    f.clock.advance(Duration::from_secs(20));
    assert_eq!(f.due(&owned).await.len(), 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_does_not_pass_a_running_claim() {
    let f = Fixture::postgres().await;
    f.own_all().await;
    let mut claiming = held_open(&f.config.cold.url).await;
    query("SELECT 1 FROM shards WHERE shard = 3 FOR KEY SHARE").execute(&mut *claiming).await.expect("locks");
    f.clock.advance(Duration::from_millis(3001));
    let other = identity("b");
    let taken = f.store.take_over(&other, 100, false, 3000).await.expect("takes");
    assert_eq!(taken.len(), 7, "all but the shard in which a claim runs");
    claiming.commit().await.expect("commits");
    assert_eq!(f.store.take_over(&other, 100, false, 3000).await.expect("takes").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_passes_a_running_claim() {
    let f = Fixture::postgres().await;
    let owned = f.own_all().await;
    let mut claiming = held_open(&f.config.cold.url).await;
    query("SELECT 1 FROM shards FOR KEY SHARE").execute(&mut *claiming).await.expect("locks");
    let renewed =
        tokio::time::timeout(Duration::from_secs(5), f.store.renew(&f.me, &owned, |_| 0, 3000)).await;
    assert_eq!(renewed.expect("does not wait").expect("renews").len(), 8);
}

/// PostgreSQL keeps the end of a wait as a point in time: after a set-back it lasts for as long as the step.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_since_before_a_set_back_is_ended() {
    let f = Fixture::postgres().await;
    let session = async |name: &str| {
        let options = PgConnectOptions::from_str(&f.config.cold.url).expect("a URL").application_name(name);
        PgConnection::connect_with(&options).await.expect("connects")
    };
    let ask = async |mut session: PgConnection| query("SELECT 1 FROM attempts").execute(&mut session).await;
    let mut holder = session("a stranger").await;
    query("BEGIN").execute(&mut holder).await.expect("begins");
    query("LOCK TABLE attempts").execute(&mut holder).await.expect("locks");
    let mut idle = session("mainspring").await;
    query("BEGIN").execute(&mut idle).await.expect("begins");
    let (ours, theirs) = (session("mainspring").await, session("a backup").await);
    let (ours, theirs) = (tokio::spawn(ask(ours)), tokio::spawn(ask(theirs)));
    eventually("both wait", Duration::from_secs(20), async || {
        let waiting = "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND database = \
                       (SELECT oid FROM pg_database WHERE datname = current_database())";
        let waiting = ask_sql(&f.config.cold.url, waiting).await;
        if waiting == "2" { Ok(()) } else { Err(waiting) }
    })
    .await;

    f.clock.set(UnixMs::new(wall_ms()));
    assert_eq!(f.store.end_old_waits().await.expect("looks"), 0, "the clock was not set back");
    set_back(&f);
    assert_eq!(f.store.end_old_waits().await.expect("ends"), 2);
    let why = ours.await.expect("runs").expect_err("is cancelled");
    assert_eq!(why.as_database_error().and_then(|why| why.code()).as_deref(), Some("57014"), "{why}");
    assert!(query("SELECT 1").execute(&mut idle).await.is_err(), "its session was ended");
    assert!(!theirs.is_finished(), "sessions of others are theirs");
    query("ROLLBACK").execute(&mut holder).await.expect("leaves");
    theirs.await.expect("runs").expect("reads");
}

/// One destination has longer attempts than the settings say, and every claim lasts as long.
async fn a_claim_of_the_longest_attempt_is_recalled_too(f: Fixture) {
    let (first, uid) = (f.own_all().await, f.put("t", 0).await);
    f.store.set_longest_attempt(Duration::from_secs(60));
    assert_eq!(f.claim_due(&first).await.len(), 1);
    f.store.set_longest_attempt(Duration::ZERO);
    let second = f.own_all().await;
    assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 1);
    assert_eq!(f.find(uid).await.life.wake_at, f.now());
}

/// A machine that slept for days looks first for nodes that are gone, and then sends a heartbeat.
async fn a_node_that_slept_for_days_is_not_forgotten_while_it_has_shards(f: Fixture) {
    f.store.enter(&f.me).await.expect("enters");
    let owned = f.own_all().await;
    f.clock.advance(Duration::from_secs(3 * 86_400));
    f.store.forget_nodes().await.expect("forgets");
    assert!(!f.store.heartbeat(&f.me, 3000).await.expect("beats").superseded);
    f.store.give_up(&f.me, &owned).await.expect("gives up");
    f.clock.advance(Duration::from_secs(3 * 86_400));
    f.store.forget_nodes().await.expect("forgets");
    assert!(f.store.nodes().await.expect("reads").is_empty());
}

on_both_stores!(
    a_claim_of_the_longest_attempt_is_recalled_too,
    a_node_that_slept_for_days_is_not_forgotten_while_it_has_shards,
    what_a_dead_owner_had_claimed_is_due_again_at_once,
    what_was_given_up_in_order_is_not_recalled,
    what_was_ceded_by_a_node_that_died_since_is_recalled,
    what_is_given_up_sparing_nothing_is_recalled,
    nodes_are_counted_and_ranked_by_their_names,
    when_the_next_node_counts_as_dead_is_known,
    leases_and_beats_from_the_future_count_from_now,
    a_cursor_from_the_future_comes_back,
    claims_and_retries_from_the_future_count_from_now,
    all_retries_come_back_however_many_there_are,
);

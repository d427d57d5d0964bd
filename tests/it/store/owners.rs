//! Who owns a shard, and what becomes of the claims of one who does no longer.

use std::time::Duration;

use mainspring::cold::ChangeEvent;
use mainspring::model::id::Generation;
use mainspring::model::timer::{Answer, AttemptResult, State, Token};

use super::fixture::{Fixture, held_open, identity, on_both_stores, record, token};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_does_not_pass_a_running_claim() {
    let f = Fixture::postgres().await;
    f.own_all().await;
    let mut claiming = held_open(&f.config.cold.url).await;
    sea_orm::sqlx::query("SELECT 1 FROM shards WHERE shard = 3 FOR KEY SHARE")
        .execute(&mut *claiming)
        .await
        .expect("locks");
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
    sea_orm::sqlx::query("SELECT 1 FROM shards FOR KEY SHARE").execute(&mut *claiming).await.expect("locks");
    let renewed =
        tokio::time::timeout(Duration::from_secs(5), f.store.renew(&f.me, &owned, |_| 0, 3000)).await;
    assert_eq!(renewed.expect("does not wait").expect("renews").len(), 8);
}

on_both_stores!(
    what_a_dead_owner_had_claimed_is_due_again_at_once,
    what_was_given_up_in_order_is_not_recalled,
    what_was_ceded_by_a_node_that_died_since_is_recalled,
    what_is_given_up_sparing_nothing_is_recalled,
    nodes_are_counted_and_ranked_by_their_names,
    when_the_next_node_counts_as_dead_is_known,
);

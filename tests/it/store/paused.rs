//! Timers that are paused: nobody claims them, nobody waits for them, and a resume judges how late they are.

use std::time::Duration;

use mainspring::cold::Whose;
use mainspring::cold::{Applied, Change, ChangeEvent, Edit, NewTimer, Range};
use mainspring::model::id::Version;
use mainspring::model::merge::Merge;
use mainspring::model::policy::{Late, Policies, Then};
use mainspring::model::time::{LAST, Span, UnixMs};
use mainspring::model::timer::{Answer, AttemptResult, Next, State};

use super::fixture::{Fixture, on_both_stores, record};

const PAUSE: ChangeEvent = ChangeEvent::Pause(None);
const RESUME: ChangeEvent = ChangeEvent::Resume(None);

/// A timer that expires when it is found more than ten seconds late.
fn expiring(f: &Fixture, id: &str, due_in_ms: i64) -> NewTimer {
    let grace = Span::parse("PT10S").expect("a span");
    let timer = f.timer(id, due_in_ms);
    let late = Some(Late { grace, then: Then::Expire });
    NewTimer { policies: Policies { late, ..timer.policies }, ..timer }
}

async fn nobody_claims_a_paused_timer(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 1000).await;
    let before = f.find(uid).await;
    let (paused, answer) = f.change(uid, PAUSE).await;
    assert_eq!((paused.life.state, answer), (State::Paused, Answer::Done));
    f.clock.advance(Duration::from_secs(3600));
    // Neither its pointer, nor the sweep, nor the loader brings it.
    let pointers: Vec<_> = owned
        .iter()
        .map(|(_, epoch)| (before.pointer(mainspring::model::pointer::Via::Express), *epoch))
        .collect();
    for (pointer, epoch) in pointers {
        assert!(f.claim(&[(pointer.expect("a pointer"), epoch)]).await.is_empty());
    }
    assert!(f.due(&owned).await.is_empty());
    let ranges: Vec<Range> = owned.iter().map(|(shard, _)| Range::new(*shard, 0, LAST)).collect();
    assert!(f.store.scan(&ranges, 10).await.expect("scans").is_empty());
    // A repeat changes nothing.
    assert_eq!(f.change(uid, PAUSE).await.0.life, paused.life);

    let (resumed, answer) = f.change(uid, RESUME).await;
    assert_eq!((resumed.life.state, resumed.life.wake_at, answer), (State::Scheduled, f.now(), Answer::Done));
    assert_eq!((resumed.life.due_at, resumed.delivery_id()), (before.life.due_at, before.delivery_id()));
    assert!(resumed.pointed_at.is_none(), "it gets a pointer");
    assert_eq!(f.change(uid, RESUME).await.0.life, resumed.life, "a repeat");
    let claimed = f.claim_due(&owned).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(f.change(uid, PAUSE).await.1, Answer::InFlight);
    assert_eq!(f.change(uid, RESUME).await.1, Answer::InFlight);
    let failed = ChangeEvent::Attempted(Next::Retry(LAST), record(&claimed[0], AttemptResult::Failed));
    f.change(uid, failed).await;
    f.change(uid, PAUSE).await;
    let (again, _) = f.change(uid, RESUME).await;
    assert_eq!((again.life.state, again.life.attempt, again.life.wake_at), (State::Retrying, 1, f.now()));
    assert_eq!(f.claim_due(&owned).await.len(), 1, "its second attempt");
    f.balanced().await;
}

async fn lateness_is_judged_at_the_resume(f: Fixture) {
    let owned = f.own_all().await;
    let timers =
        [expiring(&f, "in-time", 1000), expiring(&f, "too-late", 1000), expiring(&f, "ahead", 60_000)];
    f.register(&timers).await;
    for timer in &timers {
        f.change(timer.uid, PAUSE).await;
    }
    // As late as it may be.
    f.clock.advance(Duration::from_millis(11_000));
    let (in_time, _) = f.change(timers[0].uid, RESUME).await;
    assert_eq!(
        (in_time.life.state, in_time.expire_at),
        (State::Scheduled, Some(f.now().plus(Duration::from_secs(10))))
    );
    f.clock.advance(Duration::from_millis(1));
    let (too_late, answer) = f.change(timers[1].uid, RESUME).await;
    assert_eq!(
        (too_late.life.state, answer, too_late.ended_at),
        (State::Expired, Answer::Done, Some(f.now()))
    );
    let (ahead, _) = f.change(timers[2].uid, RESUME).await;
    assert_eq!(ahead.expire_at, Some(UnixMs::new(timers[2].due_at.get() + 10_000)));
    let claimed = f.claim_due(&owned).await;
    assert_eq!(claimed.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["in-time"]);
    let ledger = f.store.ledger(Whose::All).await.expect("reads");
    assert_eq!((ledger.registered, ledger.expired, ledger.pending), (3, 1, 2));
    f.balanced().await;
}

async fn a_paused_timer_can_be_changed_and_stays_paused(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 1000).await;
    f.change(uid, PAUSE).await;
    let edit = |edit| ChangeEvent::Edit(edit);
    let due_at = Some(UnixMs::new(f.now().get() + 500));
    let (moved, _) = f.change(uid, edit(Edit { due_at, ..Edit::default() })).await;
    assert_eq!((moved.life.state, moved.life.generation.0), (State::Paused, 2));
    let (filled, _) = f.change(uid, edit(Edit { data: Some(None), ..Edit::default() })).await;
    assert_eq!((filled.life.state, filled.life.generation.0), (State::Paused, 3));
    let shifted = f.change(uid, ChangeEvent::Shift(-100)).await.0;
    assert_eq!((shifted.life.state, shifted.life.due_at.get()), (State::Paused, f.now().get() + 400));
    f.clock.advance(Duration::from_secs(10));
    assert!(f.claim_due(&owned).await.is_empty());
    let stale = f
        .store
        .apply(&[Change { uid, caller: None, event: ChangeEvent::Resume(Some(Version(1))) }])
        .await
        .remove(0);
    assert!(matches!(stale, Ok(Applied::OtherVersion(_))), "{stale:?}");
    let (fired, _) = f.change(uid, ChangeEvent::Fire(None)).await;
    assert_eq!((fired.life.state, fired.life.due_at), (State::Scheduled, f.now()));
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

/// Others that merge with it do not wait for it, and a set that has failed goes on without it.
async fn a_paused_timer_leaves_those_it_merges_with(f: Fixture) {
    let owned = f.own_all().await;
    let merging = |id: &str, due| {
        let merge = Some(Merge { window: Span::parse("PT1S").expect("a span") });
        let timer = f.timer(id, due);
        NewTimer { owner: Some("u".into()), policies: Policies { merge, ..timer.policies }, ..timer }
    };
    let timers = [merging("a", 1000), merging("b", 1500), merging("c", 1900)];
    f.register(&timers).await;
    let (paused, _) = f.change(timers[2].uid, PAUSE).await;
    assert!(paused.left.is_some(), "others may have waited for it");
    f.clock.advance(Duration::from_millis(1500));
    let due = f.due(&owned).await;
    let set = f.store.claim(&due, "a", 0).await.expect("claims").sets.remove(0);
    assert_eq!(set.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    for row in &set.rows {
        let failed = ChangeEvent::Attempted(Next::Retry(f.now()), record(row, AttemptResult::Failed));
        f.change(row.uid, failed).await;
    }
    let set_id = f.find(timers[0].uid).await.delivery_id();
    f.change(timers[1].uid, PAUSE).await;
    let due = f.due(&owned).await;
    let again = f.store.claim(&due, "a", 0).await.expect("claims");
    let ids: Vec<_> = again.sets.iter().flat_map(|set| &set.rows).chain(&again.rows).collect();
    assert_eq!(
        ids.iter().map(|row| (row.id.as_str(), row.delivery_id())).collect::<Vec<_>>(),
        [("a", set_id.clone())]
    );
    let (resumed, _) = f.change(timers[1].uid, RESUME).await;
    assert_ne!(resumed.delivery_id(), set_id, "it goes out by itself: the set may have been delivered");
    f.balanced().await;
}

on_both_stores!(
    nobody_claims_a_paused_timer,
    lateness_is_judged_at_the_resume,
    a_paused_timer_can_be_changed_and_stays_paused,
    a_paused_timer_leaves_those_it_merges_with,
);

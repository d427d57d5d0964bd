//! Schedules: each nominal time makes one occurrence, or a recorded skip.

mod hands;
mod rules;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring::cold::Whose;
use mainspring::cold::{
    Backfilled, ChangeEvent, Content, Edit, Filter, Leased, MAX_SCHEDULES, MadeOccurrences, NewTimer,
    ScheduleEdit, SchedulePut, ScheduleRow, Settlement, TimerRow, Turn,
};
use mainspring::model::id::{Epoch, TimerId, Uid, digest16, shard_of};
use mainspring::model::namespace::Namespace;
use mainspring::model::namespace::Salt;
use mainspring::model::policy::{Late, Policies, Then};
use mainspring::model::queue::{Action, Dispatch, lane};
use mainspring::model::schedule::{
    AHEAD, Missed, MissedPolicy, Overlap, Plan, ScheduleState, Skipped, Timing, When, occurrence_id,
};
use mainspring::model::time::{Span, UnixMs};
use mainspring::model::timer::{AttemptResult, Next, State};

use crate::store::fixture::{Fixture, START, behind_its_back, on_both_stores, record};
use crate::store::queues::{asking, for_queue, who_ask};

type Owned = Vec<(i32, Epoch)>;

const MINUTE: i64 = 60_000;

pub fn every(text: &str) -> When {
    When::Every(Span::parse(text).expect("a span"))
}

/// A schedule of this rule, whose occurrences are for a webhook that nobody serves.
pub fn edit(f: &Fixture, when: When) -> ScheduleEdit {
    let timing = Timing { when, zone: "UTC".into(), start_at: START };
    let (missed, overlap) = (Missed::default(), Overlap::Allow);
    let plan = Plan { timing, end_at: None, max_occurrences: None, missed, overlap };
    with(
        f,
        ScheduleEdit {
            id: "s".into(),
            plan,
            has_start: false,
            content: Content::of(&f.timer("content", 0)),
            fitted: None,
            request: "{}".into(),
            request_hash: [0; 16],
            if_version: None,
        },
    )
}

/// The same, as another request.
fn with(_: &Fixture, edit: ScheduleEdit) -> ScheduleEdit {
    let of = serde_json::to_string(&(&edit.plan, &edit.content)).expect("JSON");
    ScheduleEdit { request_hash: digest16(&[of.as_bytes()]), ..edit }
}

pub async fn put(f: &Fixture, edit: &ScheduleEdit) -> ScheduleRow {
    match f.store.put_schedule(edit, AHEAD).await.expect("writes").0 {
        SchedulePut::Done(row, _) => *row,
        other => panic!("{other:?}"),
    }
}

async fn make(f: &Fixture, owned: &Owned) -> MadeOccurrences {
    f.store.make_occurrences(owned, AHEAD).await.expect("makes")
}

async fn found(f: &Fixture) -> ScheduleRow {
    f.store.schedule("s").await.expect("reads").expect("is there")
}

/// Time passes while nodes serve all shards.
async fn serve(f: &Fixture, owned: &Owned, until_ms: i64) {
    let until = START.get() + until_ms;
    loop {
        f.store.renew(&f.me, owned, |_| 0, 3000).await.expect("renews");
        let now = f.now().get();
        if now == until {
            return;
        }
        f.clock.set(UnixMs::new((now + 10_000).min(until)));
    }
}

/// Time passes while nobody serves, and then the shards are taken over.
async fn outage(f: &Fixture, until_ms: i64) -> Owned {
    f.clock.set(at(until_ms));
    f.own_all().await
}

fn at(ms: i64) -> UnixMs {
    UnixMs::new(START.get() + ms)
}

fn uid(ms: i64) -> Uid {
    occurrence_id("s", at(ms)).expect("an id").uid(&Salt::own("default"))
}

/// All occurrences, live and ended, by their nominal times after the start, in milliseconds.
async fn all(f: &Fixture) -> BTreeMap<i64, TimerRow> {
    let filter = Filter { schedule: Some("s".into()), ..Filter::default() };
    let page = f.store.list(&filter, None, 1000).await.expect("lists");
    let nominal = |row: &TimerRow| row.nominal().expect("a nominal time").get() - START.get();
    page.rows.into_iter().map(|row| (nominal(&row), row)).collect()
}

/// The states of all occurrences, and why each was skipped.
async fn states(f: &Fixture) -> Vec<(i64, State, Option<Skipped>)> {
    all(f).await.into_iter().map(|(ms, row)| (ms / 1000, row.life.state, row.skipped())).collect()
}

async fn skipped(f: &Fixture) -> Vec<(Skipped, i64)> {
    f.store.skipped_times("s").await.expect("counts")
}

/// Ends attempts under way as successes.
async fn deliver(f: &Fixture, rows: &[TimerRow]) {
    let done: Vec<_> = rows.iter().map(|row| (row.uid, record(row, AttemptResult::Ok))).collect();
    assert_eq!(f.store.finish_delivered(&done).await.expect("ends").len(), rows.len());
}

fn nominals(rows: &[TimerRow]) -> Vec<i64> {
    let mut all: Vec<i64> =
        rows.iter().map(|row| (row.nominal().expect("one").get() - START.get()) / 1000).collect();
    all.sort_unstable();
    all
}

async fn occurrences_are_made_ahead_of_their_times_and_fire(f: Fixture) {
    let owned = f.own_all().await;
    let row = put(&f, &edit(&f, every("PT1M"))).await;
    assert_eq!((row.state, row.made, row.version), (ScheduleState::Active, 10, 1));
    let made = all(&f).await;
    assert_eq!(made.keys().copied().collect::<Vec<_>>(), (1..=10).map(|n| n * MINUTE).collect::<Vec<_>>());
    for (ms, row) in &made {
        assert_eq!((row.life.due_at, row.schedule()), (at(*ms), Some("s")));
        assert_eq!(Some(row.id.as_str()), occurrence_id("s", at(*ms)).as_ref().map(TimerId::as_str));
    }
    assert_eq!(make(&f, &owned).await.looked_at, 0, "nothing is to be done yet");
    serve(&f, &owned, MINUTE - 1).await;
    assert!(f.claim_due(&owned).await.is_empty());
    serve(&f, &owned, MINUTE).await;
    let claimed = f.claim_due(&owned).await;
    assert_eq!(nominals(&claimed), [60]);
    deliver(&f, &claimed).await;
    for minute in 2..=30 {
        serve(&f, &owned, minute * MINUTE).await;
        make(&f, &owned).await;
        let claimed = f.claim_due(&owned).await;
        assert_eq!(nominals(&claimed), [minute * 60]);
        deliver(&f, &claimed).await;
        let row = found(&f).await;
        let ahead = (row.last_nominal.get() - f.now().get()) / MINUTE;
        assert!((5..=10).contains(&ahead), "{ahead} ahead at {minute}");
    }
    assert_eq!(skipped(&f).await, []);
    f.balanced().await;
}

async fn one_that_is_far_off_is_made_alone_and_the_next_when_its_time_has_come(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, When::Cron("0 * * * *".into()))).await;
    let first = all(&f).await;
    assert_eq!(first.len(), 1);
    let due = *first.keys().next().expect("one");
    serve(&f, &owned, due).await;
    assert_eq!(make(&f, &owned).await.rows.len(), 1);
    assert_eq!(all(&f).await.keys().copied().collect::<Vec<_>>(), [due, due + 3_600_000]);
}

async fn at_most_a_hundred_are_made_ahead(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT0.5S"))).await;
    assert_eq!(all(&f).await.len(), 100);
    serve(&f, &owned, 30_000).await;
    make(&f, &owned).await;
    let last = *all(&f).await.keys().last().expect("some");
    assert_eq!(last, 30_000 + 50_000);
}

async fn two_makers_make_each_nominal_time_once(f: Fixture) {
    let owned = f.own_all().await;
    for n in 0..20 {
        let one = edit(&f, every("PT1M"));
        put(&f, &ScheduleEdit { id: format!("s{n}"), ..one }).await;
    }
    let registered = f.store.ledger(Whose::All).await.expect("counts").registered;
    assert_eq!(registered, 200);
    serve(&f, &owned, 8 * MINUTE).await;
    let (one, other) = tokio::join!(make(&f, &owned), make(&f, &owned));
    let rest = make(&f, &owned).await;
    let made = one.rows.len() + other.rows.len() + rest.rows.len();
    assert_eq!(made, 20 * 8);
    assert_eq!(f.store.ledger(Whose::All).await.expect("counts").registered, 360);
    // One whose shards another has taken over since makes nothing.
    let later = f.own_all().await;
    serve(&f, &later, 16 * MINUTE).await;
    assert_eq!(make(&f, &owned).await.rows.len(), 0);
    assert_eq!(make(&f, &later).await.rows.len(), 20 * 8);
    f.balanced().await;
}

async fn a_maker_that_is_late_by_less_than_a_minute_makes_what_is_due(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, When::Cron("*/20 * * * *".into()))).await;
    let first = *all(&f).await.keys().next().expect("one");
    // Nobody looks at the schedule, while all shards are served.
    serve(&f, &owned, first + 20 * MINUTE + 59_000).await;
    make(&f, &owned).await;
    let made = all(&f).await;
    assert_eq!(made.len(), 3);
    let late = &made[&(first + 20 * MINUTE)];
    assert_eq!((late.life.due_at, late.life.state), (at(first + 20 * MINUTE), State::Scheduled));
    assert!(late.occurrence.as_ref().expect("one").judge_after.is_some());
}

/// One that its maker makes late is not claimed before it is known what ran at its time.
async fn one_that_is_made_late_is_skipped_if_the_one_before_ran_over_its_time(f: Fixture) {
    let owned = f.own_all().await;
    let reach = Duration::from_secs(1);
    let one = edit(&f, every("PT10S"));
    let plan = Plan { overlap: Overlap::Skip, ..one.plan.clone() };
    f.store.put_schedule(&with(&f, ScheduleEdit { plan, ..one }), reach).await.expect("writes");
    serve(&f, &owned, 10_000).await;
    let first = f.claim_due(&owned).await;
    assert_eq!(nominals(&first), [10]);
    // It ends after the second nominal time, of which nobody has made anything yet.
    serve(&f, &owned, 21_000).await;
    deliver(&f, &first).await;
    let made = f.store.make_occurrences(&owned, reach).await.expect("makes");
    assert_eq!((nominals(&made.rows), made.is_cut), (vec![20, 30], true));
    assert!(f.claim_due(&owned).await.is_empty(), "it is not judged yet");
    f.store.make_occurrences(&owned, reach).await.expect("makes");
    assert!(f.claim_due(&owned).await.is_empty(), "it was skipped");
    let expected = [(10, State::Delivered, None), (20, State::Expired, Some(Skipped::Overlap))];
    assert_eq!(states(&f).await[..2], expected);
    f.balanced().await;
}

/// What is judged for its turn within a minute of its time was not missed, though its own shard is still without an owner.
async fn one_that_is_judged_within_a_minute_was_not_missed(f: Fixture) {
    let owned = f.own_all().await;
    let shard = |id: &str| shard_of(&Salt::own("default"), id, 8);
    let its_own = |n: i64| shard(occurrence_id("s", at(n * 10_000)).expect("an id").as_str());
    let left = (3..=7).map(its_own).find(|one| *one != shard("s")).expect("another shard");
    let served: Owned = owned.iter().copied().filter(|(one, _)| *one != left).collect();
    let reach = Duration::from_secs(1);
    let one = edit(&f, every("PT10S"));
    let missed = Missed { policy: MissedPolicy::Skip, ..one.plan.missed };
    let plan = Plan { overlap: Overlap::Skip, missed, ..one.plan.clone() };
    f.store.put_schedule(&with(&f, ScheduleEdit { plan, ..one }), reach).await.expect("writes");
    serve(&f, &owned, 10_000).await;
    deliver(&f, &f.claim_due(&owned).await).await;
    serve(&f, &served, 75_000).await;
    for _ in 0..2 {
        f.store.make_occurrences(&served, reach).await.expect("makes");
    }
    let skipped = (3..=7).map(|n| (n * 10, State::Expired, Some(Skipped::Overlap)));
    let expected: Vec<_> = [(20, State::Scheduled, None)].into_iter().chain(skipped).collect();
    assert_eq!(states(&f).await[1..=6], expected);
}

/// One that was made afterwards counts like any other; and a claim that was begun before the due time, and had to wait for its
/// turn at the database, does not slip through.
async fn one_that_a_backfilled_one_ran_over_is_skipped_however_old_its_claim_is(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT10S"));
    let plan = Plan { overlap: Overlap::Skip, ..one.plan.clone() };
    f.store
        .put_schedule(&with(&f, ScheduleEdit { plan, ..one }), Duration::from_secs(1))
        .await
        .expect("writes");
    // Nothing is made beyond the first, so that what falls into the pause is recorded, and can be made.
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 25_000).await;
    f.store.pause_schedule("s", false, AHEAD).await.expect("resumes");
    assert!(matches!(f.store.backfill("s", at(0), at(25_000)).await.expect("makes"), Backfilled::Done(1, _)));
    serve(&f, &owned, 29_000).await;
    let running = f.claim_due(&owned).await;
    assert_eq!(nominals(&running), [20]);
    serve(&f, &owned, 31_000).await;
    let due = f.due(&owned).await;
    assert_eq!(due.len(), 1);
    deliver(&f, &running).await;
    f.clock.set(at(29_980));
    assert!(f.claim(&due).await.is_empty(), "the claim is as old as that");
    f.clock.set(at(31_000));
    assert!(f.claim(&due).await.is_empty(), "it is not judged yet");
    make(&f, &owned).await;
    let third = all(&f).await.remove(&30_000).expect("was made");
    assert_eq!((third.life.state, third.skipped()), (State::Expired, Some(Skipped::Overlap)));
}

/// A change does not forget who waits, though there is nothing left to make.
async fn one_that_waits_goes_on_after_a_change_of_its_schedule(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT10S"));
    let one = ScheduleEdit { plan: Plan { overlap: Overlap::QueueOne, ..one.plan.clone() }, ..one };
    put(&f, &with(&f, one.clone())).await;
    serve(&f, &owned, 10_000).await;
    let first = f.claim_due(&owned).await;
    serve(&f, &owned, 21_000).await;
    let plan = Plan { end_at: Some(at(25_000)), ..one.plan.clone() };
    assert_eq!(put(&f, &with(&f, ScheduleEdit { plan, ..one })).await.state, ScheduleState::Ended);
    deliver(&f, &first).await;
    serve(&f, &owned, 35_000).await;
    make(&f, &owned).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [20]);
    f.balanced().await;
}

/// What a removal makes of the past does not go all at once.
async fn what_a_removal_makes_of_the_past_does_not_overlap(f: Fixture) {
    for (overlap, ends) in [(Overlap::Skip, State::Expired), (Overlap::QueueOne, State::Cancelled)] {
        let owned = f.own_all().await;
        let now = f.now().get() - START.get();
        let one = edit(&f, every("PT10S"));
        let timing = Timing { start_at: at(now), ..one.plan.timing.clone() };
        let plan = Plan { overlap, timing, ..one.plan.clone() };
        let one = with(&f, ScheduleEdit { plan, has_start: true, ..one });
        f.store.put_schedule(&one, Duration::from_secs(1)).await.expect("writes");
        // Nobody makes the second to the fourth.
        serve(&f, &owned, now + 45_000).await;
        f.store.remove_schedule("s").await.expect("removes");
        let claimed = f.claim_due(&owned).await;
        assert_eq!(claimed.len(), 1, "{overlap:?}");
        deliver(&f, &claimed).await;
        assert!(f.claim_due(&owned).await.is_empty(), "{overlap:?}");
        let second = all(&f).await.remove(&(now + 20_000)).expect("was made");
        assert_eq!(second.life.state, ends, "{overlap:?}");
    }
    f.balanced().await;
}

/// Nobody serves from before the third minute until long after it: what is made and what is not comes out by the policy.
async fn what_nobody_could_fire_is_judged_by_the_policy_made_or_not(f: Fixture) {
    // Made ahead are the minutes 1 to 10; by the outage's end 1 to 20 have passed.
    let cases: [(MissedPolicy, &str, Vec<i64>); 4] = [
        (MissedPolicy::FireAll, "PT1H", (3..=20).collect()),
        (MissedPolicy::FireAll, "PT12M", (9..=20).collect()),
        (MissedPolicy::FireOnce, "PT1H", vec![19, 20]),
        (MissedPolicy::Skip, "PT1H", vec![20]),
    ];
    let mut start = 0;
    for (n, (policy, within, fires)) in cases.into_iter().enumerate() {
        let owned = outage(&f, start).await;
        // What the one before still had to decide is decided with its removal, and goes out.
        f.store.remove_schedule("s").await.expect("removes");
        deliver(&f, &f.claim_due(&owned).await).await;
        let one = edit(&f, every("PT1M"));
        let missed = Missed { policy, within: Span::parse(within).expect("a span") };
        let late = Some(Late { grace: Span::parse("PT10S").expect("a span"), then: Then::Expire });
        let timer = NewTimer { policies: Policies { late, ..Policies::default() }, ..f.timer("content", 0) };
        let timing = Timing { start_at: at(start), ..one.plan.timing.clone() };
        let plan = Plan { missed, timing, ..one.plan.clone() };
        let one = ScheduleEdit { plan, has_start: true, content: Content::of(&timer), ..one };
        put(&f, &with(&f, one)).await;
        for minute in 1..=2 {
            serve(&f, &owned, start + minute * MINUTE).await;
            let claimed = f.claim_due(&owned).await;
            assert_eq!(claimed.len(), 1, "case {n}");
            deliver(&f, &claimed).await;
        }
        // The last renewal was at the second minute; the nineteenth is older than a minute, the twentieth is not.
        let owned = outage(&f, start + 20 * MINUTE + 10_000).await;
        assert!(f.claim_due(&owned).await.is_empty(), "case {n}: nothing fires before it is judged");
        make(&f, &owned).await;
        // What was missed is not asked how late it is; what was not missed is.
        let claimed = f.claim_due(&owned).await;
        let minutes = |rows: &[TimerRow]| -> Vec<i64> {
            nominals(rows).into_iter().map(|s| (s * 1000 - start) / MINUTE).collect()
        };
        assert_eq!(minutes(&claimed), fires, "case {n}");
        deliver(&f, &claimed).await;
        // Each of them was decided once.
        let of_case: Vec<_> = all(&f).await.into_iter().filter(|(ms, _)| *ms > start).collect();
        let decided = of_case.iter().filter(|(ms, _)| *ms <= start + 20 * MINUTE);
        let (fired, rest): (Vec<_>, Vec<_>) =
            decided.partition(|(_, row)| row.life.state == State::Delivered);
        let why: Vec<_> = rest.iter().map(|(_, row)| (row.life.state, row.skipped())).collect();
        assert!(why.iter().all(|one| *one == (State::Expired, Some(Skipped::Missed))), "case {n}: {why:?}");
        let unmade: i64 = skipped(&f).await.iter().map(|(_, count)| count).sum();
        assert_eq!(fired.len() as i64 + rest.len() as i64 + unmade, 20, "case {n}");
        start += 60 * MINUTE;
    }
    f.balanced().await;
}

async fn an_outage_of_less_than_a_minute_is_none(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let missed = Missed { policy: MissedPolicy::Skip, ..one.plan.missed };
    put(&f, &with(&f, ScheduleEdit { plan: Plan { missed, ..one.plan.clone() }, ..one })).await;
    serve(&f, &owned, MINUTE - 1000).await;
    let owned = outage(&f, 2 * MINUTE - 2000).await;
    make(&f, &owned).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [60], "59 s after the last sign of a node");
}

async fn one_that_waits_for_room_is_not_missed_and_its_lateness_counts(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1H"));
    let missed = Missed { policy: MissedPolicy::Skip, ..one.plan.missed };
    put(&f, &with(&f, ScheduleEdit { plan: Plan { missed, ..one.plan.clone() }, ..one })).await;
    serve(&f, &owned, 70 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty(), "it is to be judged first");
    make(&f, &owned).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [3600]);
}

async fn one_moved_by_hand_is_judged_by_its_new_time(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1H"));
    let missed = Missed { policy: MissedPolicy::Skip, ..one.plan.missed };
    put(&f, &with(&f, ScheduleEdit { plan: Plan { missed, ..one.plan.clone() }, ..one })).await;
    let moved = Edit { due_at: Some(at(30 * MINUTE)), ..Edit::default() };
    f.change(uid(60 * MINUTE), ChangeEvent::Edit(moved)).await;
    serve(&f, &owned, 29 * MINUTE).await;
    let owned = outage(&f, 40 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty());
    make(&f, &owned).await;
    let row = f.find(uid(60 * MINUTE)).await;
    assert_eq!((row.life.state, row.skipped()), (State::Expired, Some(Skipped::Missed)));
}

async fn under(f: &Fixture, overlap: Overlap, text: &str) -> Owned {
    let owned = f.own_all().await;
    f.alive().await;
    let one = edit(f, every(text));
    put(f, &with(f, ScheduleEdit { plan: Plan { overlap, ..one.plan.clone() }, ..one })).await;
    owned
}

async fn one_whose_time_comes_while_another_runs_is_skipped(f: Fixture) {
    let owned = under(&f, Overlap::Skip, "PT1M").await;
    serve(&f, &owned, MINUTE).await;
    let first = f.claim_due(&owned).await;
    assert_eq!(nominals(&first), [60]);
    serve(&f, &owned, 2 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty(), "the first is delivering");
    make(&f, &owned).await;
    let second = f.find(uid(2 * MINUTE)).await;
    assert_eq!((second.life.state, second.skipped()), (State::Expired, Some(Skipped::Overlap)));
    // It retries, is paused: both count as not ended.
    let failed =
        ChangeEvent::Attempted(Next::Retry(at(10 * MINUTE)), record(&first[0], AttemptResult::Failed));
    f.change(first[0].uid, failed).await;
    serve(&f, &owned, 3 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty());
    make(&f, &owned).await;
    f.change(first[0].uid, ChangeEvent::Pause(None)).await;
    serve(&f, &owned, 4 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty());
    make(&f, &owned).await;
    f.change(first[0].uid, ChangeEvent::Cancel).await;
    serve(&f, &owned, 5 * MINUTE).await;
    let next = f.claim_due(&owned).await;
    assert_eq!(nominals(&next), [300]);
    // It ends before the maker looks: at the nominal time it had not ended all the same.
    f.clock.set(at(6 * MINUTE));
    let due = f.due(&owned).await;
    assert!(f.claim(&due).await.is_empty() && due.iter().any(|(one, _)| one.uid == uid(6 * MINUTE)));
    f.clock.set(at(6 * MINUTE + 200));
    deliver(&f, &next).await;
    assert!(f.claim_due(&owned).await.is_empty(), "it has to be judged first");
    // A claim may have waited for the store: it read the time before that end, and even before it was due.
    for early in [100, -20] {
        f.clock.set(at(6 * MINUTE + early));
        let claimed = f.store.claim(&due, "a", 50).await.expect("claims");
        assert!(claimed.rows.is_empty(), "{early}: it has to be judged first");
    }
    f.clock.set(at(6 * MINUTE + 200));
    make(&f, &owned).await;
    let why: Vec<_> = states(&f).await.into_iter().take(6).collect();
    let overlapped = |s| (s, State::Expired, Some(Skipped::Overlap));
    assert_eq!(
        why,
        [
            (60, State::Cancelled, None),
            overlapped(120),
            overlapped(180),
            overlapped(240),
            (300, State::Delivered, None),
            overlapped(360),
        ]
    );
    f.balanced().await;
}

async fn one_waits_until_the_one_before_has_ended(f: Fixture) {
    let owned = under(&f, Overlap::QueueOne, "PT1M").await;
    serve(&f, &owned, MINUTE).await;
    let first = f.claim_due(&owned).await;
    serve(&f, &owned, 2 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty());
    make(&f, &owned).await;
    assert_eq!(f.find(uid(2 * MINUTE)).await.life.state, State::Scheduled);
    serve(&f, &owned, 3 * MINUTE).await;
    make(&f, &owned).await;
    assert_eq!(f.find(uid(3 * MINUTE)).await.skipped(), Some(Skipped::Overlap), "one waits already");
    assert!(f.claim_due(&owned).await.is_empty());
    deliver(&f, &first).await;
    serve(&f, &owned, 3 * MINUTE + 20_000).await;
    make(&f, &owned).await;
    let second = f.claim_due(&owned).await;
    assert_eq!(nominals(&second), [120], "its turn has come");
    deliver(&f, &second).await;
    serve(&f, &owned, 4 * MINUTE).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [240]);
    f.balanced().await;
}

async fn what_may_overlap_does(f: Fixture) {
    let owned = under(&f, Overlap::Allow, "PT1M").await;
    serve(&f, &owned, MINUTE).await;
    assert_eq!(f.claim_due(&owned).await.len(), 1);
    serve(&f, &owned, 2 * MINUTE).await;
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

/// What a worker of the queue gets.
async fn leased(f: &Fixture) -> Vec<Leased> {
    f.store
        .lease("q", &who_ask("q", &[asking("w")]), "a", &mut Turn::default())
        .await
        .expect("leases")
        .given
        .remove(0)
}

async fn acknowledge(f: &Fixture, item: &Leased) {
    let settlement =
        Settlement { token: item.token, lane: lane(Namespace::OWN, "q"), action: Action::Ack, result: None };
    let (row, _) = f.change(item.token.uid, ChangeEvent::Settle(settlement)).await;
    assert_eq!(row.life.state, State::Delivered);
}

async fn a_worker_gets_nothing_that_is_to_be_judged_first(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let content = Content::of(&for_queue(f.timer("content", 0), Dispatch::default()));
    let missed = Missed { policy: MissedPolicy::FireOnce, ..one.plan.missed };
    let plan = Plan { overlap: Overlap::Skip, missed, ..one.plan.clone() };
    put(&f, &with(&f, ScheduleEdit { content, plan, ..one })).await;
    serve(&f, &owned, MINUTE - 1).await;
    assert!(leased(&f).await.is_empty());
    // A worker has the first when the second's time comes.
    serve(&f, &owned, 2 * MINUTE - 5000).await;
    make(&f, &owned).await;
    let first = leased(&f).await;
    assert_eq!(first.iter().map(|item| item.due_at).collect::<Vec<_>>(), [at(MINUTE)]);
    serve(&f, &owned, 2 * MINUTE).await;
    assert!(leased(&f).await.is_empty(), "the first is out");
    make(&f, &owned).await;
    assert_eq!(f.find(uid(2 * MINUTE)).await.skipped(), Some(Skipped::Overlap));
    acknowledge(&f, &first[0]).await;
    assert!(leased(&f).await.is_empty());
    // Nobody serves for a while.
    serve(&f, &owned, 2 * MINUTE + 30_000).await;
    let owned = outage(&f, 8 * MINUTE + 90_000).await;
    assert!(leased(&f).await.is_empty(), "nothing goes out before it is judged");
    make(&f, &owned).await;
    let latest = leased(&f).await;
    assert_eq!(latest.iter().map(|item| item.due_at).collect::<Vec<_>>(), [at(8 * MINUTE)]);
    acknowledge(&f, &latest[0]).await;
    assert!(leased(&f).await.is_empty());
    // Paused: none goes out, and it is recorded.
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 10 * MINUTE).await;
    assert!(leased(&f).await.is_empty());
    make(&f, &owned).await;
    assert_eq!(f.find(uid(10 * MINUTE)).await.skipped(), Some(Skipped::Paused));
    f.balanced().await;
}

async fn of_a_paused_schedule_nothing_fires_and_all_is_recorded(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT1M"))).await;
    serve(&f, &owned, 90_000).await;
    deliver(&f, &f.claim_due(&owned).await).await;
    let (paused, _) = f.store.pause_schedule("s", true, AHEAD).await.expect("pauses").expect("is there");
    assert_eq!((paused.state, paused.version), (ScheduleState::Paused, 2));
    let (again, _) = f.store.pause_schedule("s", true, AHEAD).await.expect("pauses").expect("is there");
    assert_eq!(again.version, 2, "a repeat changes nothing");
    for minute in 2..=14 {
        serve(&f, &owned, minute * MINUTE).await;
        assert!(f.claim_due(&owned).await.is_empty(), "minute {minute}");
        make(&f, &owned).await;
    }
    let resumed = f.store.pause_schedule("s", false, AHEAD).await.expect("resumes").expect("is there").0;
    assert_eq!(resumed.state, ScheduleState::Active);
    let of_pause: Vec<_> = states(&f).await.into_iter().skip(1).filter(|(s, ..)| *s <= 840).collect();
    assert_eq!(of_pause.len(), 9, "the minutes 2 to 10 had been made");
    assert!(of_pause.iter().all(|(_, state, why)| (*state, *why) == (State::Expired, Some(Skipped::Paused))));
    assert_eq!(skipped(&f).await, [(Skipped::Paused, 4)], "11 to 14 had not");
    let ranges = f.store.skipped_ranges("s", 10).await.expect("reads");
    let ranges: Vec<_> = ranges.iter().map(|one| (one.first, one.last, one.count, one.reason)).collect();
    assert_eq!(ranges, [(at(11 * MINUTE), at(14 * MINUTE), 4, Skipped::Paused)]);
    serve(&f, &owned, 15 * MINUTE).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [900]);
    f.balanced().await;
}

async fn a_pause_and_a_resume_before_the_time_change_nothing(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT1M"))).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 59_000).await;
    make(&f, &owned).await;
    f.store.pause_schedule("s", false, AHEAD).await.expect("resumes");
    serve(&f, &owned, MINUTE).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [60]);
}

async fn a_change_cancels_what_is_ahead_but_what_was_touched(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    put(&f, &one).await;
    let moved = Edit { due_at: Some(at(150_000)), ..Edit::default() };
    f.change(uid(3 * MINUTE), ChangeEvent::Edit(moved)).await;
    f.change(uid(4 * MINUTE), ChangeEvent::Cancel).await;
    serve(&f, &owned, MINUTE).await;
    let first = f.claim_due(&owned).await;
    let half = Plan { timing: Timing { when: every("PT2M"), ..one.plan.timing.clone() }, ..one.plan.clone() };
    let changed = put(&f, &with(&f, ScheduleEdit { plan: half, ..one.clone() })).await;
    assert_eq!(changed.version, 2);
    let now = |rows: &BTreeMap<i64, TimerRow>, minute: i64| {
        let row = &rows[&(minute * MINUTE)];
        (row.life.state, row.life.generation.0, row.skipped().and_then(Skipped::word))
    };
    let rows = all(&f).await;
    assert_eq!(now(&rows, 1), (State::Delivering, 1, None));
    assert_eq!(now(&rows, 3), (State::Scheduled, 2, None), "moved by hand");
    assert_eq!(rows[&(3 * MINUTE)].life.due_at, at(150_000));
    assert_eq!(now(&rows, 4), (State::Cancelled, 1, None), "cancelled by hand: it does not come back");
    assert_eq!(now(&rows, 5), (State::Cancelled, 1, None), "the new rule has none");
    assert_eq!(now(&rows, 6), (State::Scheduled, 2, None), "the new rule has it too");
    assert_eq!(now(&rows, 12 - 2), (State::Scheduled, 2, None));
    // Another change, and back again.
    let back = put(&f, &one).await;
    assert_eq!(back.version, 3);
    let rows = all(&f).await;
    assert_eq!(now(&rows, 4), (State::Cancelled, 1, None));
    assert_eq!(now(&rows, 6), (State::Scheduled, 3, None));
    assert_eq!(now(&rows, 5), (State::Scheduled, 2, None));
    deliver(&f, &first).await;
    f.balanced().await;
}

async fn a_change_that_changes_nothing_leaves_occurrences_alone(f: Fixture) {
    f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let row = put(&f, &one).await;
    let same = f.store.put_schedule(&one, AHEAD).await.expect("writes").0;
    assert!(matches!(&same, SchedulePut::Same(same) if same.version == row.version), "{same:?}");
    assert!(
        all(&f).await.values().all(|row| row.life.generation.0 == 1 && row.life.state == State::Scheduled)
    );
    let other = ScheduleEdit { if_version: Some(7), ..one.clone() };
    let refused = f.store.put_schedule(&other, AHEAD).await.expect("looks").0;
    assert!(matches!(refused, SchedulePut::OtherVersion(1)), "{refused:?}");
    let new = ScheduleEdit { id: "none".into(), ..other };
    assert!(matches!(
        f.store.put_schedule(&new, AHEAD).await.expect("looks").0,
        SchedulePut::OtherVersion(0)
    ));
}

/// The phase of `every` is that of the schedule's making, whatever is changed later.
async fn a_change_keeps_the_phase(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT10M"));
    put(&f, &one).await;
    serve(&f, &owned, 7 * MINUTE).await;
    let labels = NewTimer { labels: Some(r#"{"a":"b"}"#.into()), ..f.timer("content", 0) };
    put(&f, &with(&f, ScheduleEdit { content: Content::of(&labels), ..one })).await;
    let rows = all(&f).await;
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), [10 * MINUTE]);
    assert_eq!(rows[&(10 * MINUTE)].labels.as_deref(), Some(r#"{"a":"b"}"#));
}

async fn a_removal_cancels_what_is_ahead(f: Fixture) {
    let owned = under(&f, Overlap::QueueOne, "PT1M").await;
    serve(&f, &owned, MINUTE).await;
    let first = f.claim_due(&owned).await;
    serve(&f, &owned, 2 * MINUTE).await;
    make(&f, &owned).await;
    let moved = Edit { due_at: Some(at(150_000)), ..Edit::default() };
    f.change(uid(3 * MINUTE), ChangeEvent::Edit(moved)).await;
    assert!(f.store.remove_schedule("s").await.expect("removes").is_some());
    assert!(f.store.remove_schedule("s").await.expect("looks").is_none());
    assert!(f.store.schedule("s").await.expect("looks").is_none());
    for (ms, row) in all(&f).await {
        let expected = match ms / MINUTE {
            1 => State::Delivering,
            3 => State::Scheduled,
            _ => State::Cancelled,
        };
        assert_eq!(row.life.state, expected, "{ms}: that of minute 2 only waited");
    }
    // It fires though the first still runs: there is no schedule any more that would have it wait.
    serve(&f, &owned, 3 * MINUTE).await;
    make(&f, &owned).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [180]);
    deliver(&f, &first).await;
    // The same id may be used again, and its nominal times are made anew.
    put(&f, &edit(&f, every("PT1M"))).await;
    let again = &all(&f).await[&(5 * MINUTE)];
    assert_eq!((again.life.state, again.life.generation.0), (State::Scheduled, 2));
    f.balanced().await;
}

async fn it_ends_with_its_last_occurrence(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let plan = Plan { max_occurrences: Some(3), ..one.plan.clone() };
    let row = put(&f, &with(&f, ScheduleEdit { plan, ..one.clone() })).await;
    assert_eq!((row.state, row.made, all(&f).await.len()), (ScheduleState::Active, 3, 3));
    for minute in 1..=4 {
        serve(&f, &owned, minute * MINUTE).await;
        make(&f, &owned).await;
    }
    assert_eq!((found(&f).await.state, all(&f).await.len()), (ScheduleState::Ended, 3));
    // A change lets it go on; its end is one of its times.
    let plan = Plan { end_at: Some(at(6 * MINUTE)), ..one.plan.clone() };
    let row = put(&f, &with(&f, ScheduleEdit { plan, ..one.clone() })).await;
    assert_eq!((row.state, all(&f).await.len()), (ScheduleState::Active, 5));
    serve(&f, &owned, 7 * MINUTE).await;
    make(&f, &owned).await;
    assert_eq!((found(&f).await.state, all(&f).await.len()), (ScheduleState::Ended, 5));
    let plan = Plan { end_at: Some(at(-1)), ..one.plan.clone() };
    let refused =
        f.store.put_schedule(&with(&f, ScheduleEdit { plan, ..one }), AHEAD).await.expect("looks").0;
    assert!(matches!(refused, SchedulePut::EndsBeforeStart), "{refused:?}");
}

async fn backfilled(f: &Fixture, from_ms: i64, to_ms: i64) -> usize {
    match f.store.backfill("s", at(from_ms), at(to_ms)).await.expect("backfills") {
        Backfilled::Done(count, _) => count,
        other => panic!("{other:?}"),
    }
}

async fn what_was_skipped_and_never_made_can_be_made_once(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT1M"))).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 20 * MINUTE).await;
    make(&f, &owned).await;
    assert_eq!(skipped(&f).await, [(Skipped::Paused, 10)], "11 to 20");
    // 5 to 10 have become occurrences.
    assert_eq!(backfilled(&f, 5 * MINUTE, 13 * MINUTE).await, 3);
    assert_eq!(backfilled(&f, 5 * MINUTE, 13 * MINUTE).await, 0, "once");
    assert_eq!(backfilled(&f, 16 * MINUTE, 17 * MINUTE).await, 2);
    assert_eq!(skipped(&f).await, [(Skipped::Paused, 5)]);
    assert_eq!(backfilled(&f, 0, 60 * MINUTE).await, 5, "the rest of both sides");
    assert_eq!((skipped(&f).await, backfilled(&f, 0, 60 * MINUTE).await), (Vec::new(), 0));
    f.clock.set(at(20 * MINUTE + 100));
    let mut claimed = f.claim_due(&owned).await;
    claimed.sort_by_key(|row| row.life.due_at);
    assert_eq!(nominals(&claimed), (11..=20).map(|n| n * 60).collect::<Vec<_>>());
    deliver(&f, &claimed).await;
    assert!(matches!(f.store.backfill("none", at(0), at(1)).await.expect("looks"), Backfilled::NoSuch));
    f.balanced().await;
}

async fn a_backfill_goes_in_order_where_nothing_may_overlap(f: Fixture) {
    let owned = under(&f, Overlap::Skip, "PT1M").await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 13 * MINUTE + 1000).await;
    make(&f, &owned).await;
    assert_eq!(backfilled(&f, 0, 60 * MINUTE).await, 3);
    let mut order = Vec::new();
    for second in 2..40 {
        serve(&f, &owned, 13 * MINUTE + second * 1000).await;
        make(&f, &owned).await;
        let claimed = f.claim_due(&owned).await;
        assert!(claimed.len() <= 1, "{:?}", nominals(&claimed));
        order.extend(nominals(&claimed));
        deliver(&f, &claimed).await;
    }
    assert_eq!(order, [11 * 60, 12 * 60, 13 * 60]);
}

async fn too_many_are_not_made_at_once(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT0.5S"))).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 15 * MINUTE).await;
    while make(&f, &owned).await.is_cut {}
    assert_eq!(skipped(&f).await, [(Skipped::Paused, 1700)]);
    assert!(matches!(
        f.store.backfill("s", at(0), at(60 * MINUTE)).await.expect("looks"),
        Backfilled::TooMany
    ));
    assert_eq!(skipped(&f).await, [(Skipped::Paused, 1700)], "nothing was changed");
    // The first 50 seconds were made ahead.
    assert_eq!(backfilled(&f, 0, 9 * MINUTE).await, 980);
}

async fn a_full_store_takes_no_more(f: Fixture) {
    let hash = if f.store.is_shared() { "'\\x00'" } else { "x'00'" };
    let all_but_two = format!(
        "INSERT INTO schedules (namespace, id, shard, state, plan, content, request, request_hash, kind, lane, made, \
           last_nominal, failures, version, created_at, changed_at) \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) \
         SELECT 0, 'n' || i, 0, 2, '{{}}', '{{}}', '{{}}', {hash}, 0, 0, 0, 0, 0, 1, 0, 0 FROM n",
        MAX_SCHEDULES - 2
    );
    behind_its_back(&f, &all_but_two).await;
    let mut one = edit(&f, every("PT1M"));
    for id in ["s", "t"] {
        one.id = id.into();
        put(&f, &one).await;
    }
    one.id = "u".into();
    let refused = f.store.put_schedule(&one, AHEAD).await.expect("answers").0;
    assert!(matches!(refused, SchedulePut::Full), "{refused:?}");
    one.id = "t".into();
    let same = f.store.put_schedule(&one, AHEAD).await.expect("answers").0;
    assert!(matches!(same, SchedulePut::Same(_)), "{same:?}");
    f.store.remove_schedule("t").await.expect("removes").expect("is there");
    one.id = "u".into();
    put(&f, &one).await;
}

on_both_stores! {
    a_full_store_takes_no_more,
    occurrences_are_made_ahead_of_their_times_and_fire,
    one_that_is_far_off_is_made_alone_and_the_next_when_its_time_has_come,
    at_most_a_hundred_are_made_ahead,
    two_makers_make_each_nominal_time_once,
    a_maker_that_is_late_by_less_than_a_minute_makes_what_is_due,
    what_nobody_could_fire_is_judged_by_the_policy_made_or_not,
    an_outage_of_less_than_a_minute_is_none,
    one_that_waits_for_room_is_not_missed_and_its_lateness_counts,
    one_moved_by_hand_is_judged_by_its_new_time,
    one_whose_time_comes_while_another_runs_is_skipped,
    one_waits_until_the_one_before_has_ended,
    what_may_overlap_does,
    one_that_is_made_late_is_skipped_if_the_one_before_ran_over_its_time,
    one_that_a_backfilled_one_ran_over_is_skipped_however_old_its_claim_is,
    one_that_is_judged_within_a_minute_was_not_missed,
    one_that_waits_goes_on_after_a_change_of_its_schedule,
    what_a_removal_makes_of_the_past_does_not_overlap,
    a_worker_gets_nothing_that_is_to_be_judged_first,
    of_a_paused_schedule_nothing_fires_and_all_is_recorded,
    a_pause_and_a_resume_before_the_time_change_nothing,
    a_change_cancels_what_is_ahead_but_what_was_touched,
    a_change_that_changes_nothing_leaves_occurrences_alone,
    a_change_keeps_the_phase,
    a_removal_cancels_what_is_ahead,
    it_ends_with_its_last_occurrence,
    what_was_skipped_and_never_made_can_be_made_once,
    a_backfill_goes_in_order_where_nothing_may_overlap,
    too_many_are_not_made_at_once,
}

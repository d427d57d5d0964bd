//! What somebody does by hand to an occurrence or a schedule, and what the schedule makes of it.

use super::*;

/// The same schedule with other labels, as another request.
fn labelled(f: &Fixture, one: &ScheduleEdit, label: &str) -> ScheduleEdit {
    let labels = NewTimer { labels: Some(format!(r#"{{"a":"{label}"}}"#)), ..f.timer("content", 0) };
    with(f, ScheduleEdit { content: Content::of(&labels), ..one.clone() })
}

fn move_to(ms: i64) -> ChangeEvent {
    ChangeEvent::Edit(Edit { due_at: Some(at(ms)), ..Edit::default() })
}

async fn one_that_was_moved_counts_once_however_often_the_schedule_is_changed(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT20M"));
    let one = with(&f, ScheduleEdit { plan: Plan { max_occurrences: Some(3), ..one.plan.clone() }, ..one });
    assert_eq!(put(&f, &one).await.made, 1);
    f.change(uid(20 * MINUTE), move_to(25 * MINUTE)).await;
    for label in ["b", "c", "d"] {
        let row = put(&f, &labelled(&f, &one, label)).await;
        assert_eq!((row.made, row.state), (1, ScheduleState::Active), "{label}");
    }
    for minute in [20, 25, 40, 60, 80] {
        serve(&f, &owned, minute * MINUTE).await;
        make(&f, &owned).await;
        deliver(&f, &f.claim_due(&owned).await).await;
    }
    let delivered = [1200, 2400, 3600].map(|s| (s, State::Delivered, None));
    assert_eq!((states(&f).await, found(&f).await.state), (delivered.to_vec(), ScheduleState::Ended));
    f.balanced().await;
}

async fn one_that_was_moved_is_no_skip_of_a_pause(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT20M"));
    put(&f, &one).await;
    f.change(uid(20 * MINUTE), move_to(25 * MINUTE)).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    put(&f, &labelled(&f, &one, "b")).await;
    serve(&f, &owned, 25 * MINUTE).await;
    make(&f, &owned).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [1200], "it has a moment of its own");
    f.store.pause_schedule("s", false, AHEAD).await.expect("resumes");
    assert_eq!(skipped(&f).await, [], "it has not been skipped");
}

async fn what_was_relabelled_in_a_pause_fires_after_it(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT1M"))).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    let labels = Edit { labels: Some(Some(r#"{"a":"b"}"#.into())), ..Edit::default() };
    f.change(uid(MINUTE), ChangeEvent::Edit(labels)).await;
    f.store.pause_schedule("s", false, AHEAD).await.expect("resumes");
    serve(&f, &owned, MINUTE).await;
    make(&f, &owned).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [60]);
}

/// Its nominal time lies in the pause, though it would be due after it.
async fn what_falls_into_a_pause_does_not_fire_after_it(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT90S"));
    let rounded = NewTimer { minute: true, ..f.timer("content", 0) };
    put(&f, &with(&f, ScheduleEdit { content: Content::of(&rounded), ..one })).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, 105_000).await;
    f.store.pause_schedule("s", false, AHEAD).await.expect("resumes");
    serve(&f, &owned, 2 * MINUTE).await;
    assert!(f.claim_due(&owned).await.is_empty());
    make(&f, &owned).await;
    assert_eq!(states(&f).await[0], (90, State::Expired, Some(Skipped::Paused)));
    serve(&f, &owned, 3 * MINUTE).await;
    assert_eq!(nominals(&f.claim_due(&owned).await), [180], "the next one does");
}

/// What a paused schedule is looked at for is found when it is due, and not each second from when it may not be claimed.
async fn a_pause_costs_no_look_before_its_time(f: Fixture) {
    let owned = f.own_all().await;
    put(&f, &edit(&f, every("PT1M"))).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    serve(&f, &owned, MINUTE - 1000).await;
    assert_eq!(make(&f, &owned).await.looked_at, 0);
    serve(&f, &owned, MINUTE).await;
    assert_eq!(make(&f, &owned).await.looked_at, 1);
    assert_eq!(states(&f).await[0], (60, State::Expired, Some(Skipped::Paused)));
}

async fn one_that_is_paused_keeps_those_after_it_and_no_others(f: Fixture) {
    let owned = under(&f, Overlap::Skip, "PT1M").await;
    f.change(uid(3 * MINUTE), ChangeEvent::Pause(None)).await;
    for minute in 1..=4 {
        serve(&f, &owned, minute * MINUTE).await;
        make(&f, &owned).await;
        deliver(&f, &f.claim_due(&owned).await).await;
    }
    let expected = [
        (60, State::Delivered, None),
        (120, State::Delivered, None),
        (180, State::Paused, None),
        (240, State::Expired, Some(Skipped::Overlap)),
    ];
    assert_eq!(states(&f).await[..4], expected);
}

async fn as_many_as_it_may_make_are_all_though_it_is_paused(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let plan = Plan { max_occurrences: Some(3), ..one.plan.clone() };
    put(&f, &with(&f, ScheduleEdit { plan, ..one })).await;
    f.store.pause_schedule("s", true, AHEAD).await.expect("pauses");
    for minute in 1..=10 {
        serve(&f, &owned, minute * MINUTE).await;
        make(&f, &owned).await;
    }
    assert_eq!((found(&f).await.state, skipped(&f).await), (ScheduleState::Ended, vec![]));
    let paused = [60, 120, 180].map(|s| (s, State::Expired, Some(Skipped::Paused)));
    assert_eq!(states(&f).await, paused);
}

/// What a change has cancelled is made again by the rule that it had, though a purge has removed what was kept of it.
async fn what_a_change_took_away_comes_back_after_a_purge(f: Fixture) {
    f.own_all().await;
    let one = edit(&f, every("PT20M"));
    put(&f, &one).await;
    let when =
        |text| Plan { timing: Timing { when: every(text), ..one.plan.timing.clone() }, ..one.plan.clone() };
    put(&f, &with(&f, ScheduleEdit { plan: when("PT30M"), ..one.clone() })).await;
    assert_eq!(f.find(uid(20 * MINUTE)).await.life.state, State::Cancelled);
    behind_its_back(&f, "DELETE FROM history").await;
    put(&f, &one).await;
    let again = f.find(uid(20 * MINUTE)).await;
    assert_eq!((again.life.state, again.life.generation.0), (State::Scheduled, 2));
}

on_both_stores! {
    one_that_was_moved_counts_once_however_often_the_schedule_is_changed,
    one_that_was_moved_is_no_skip_of_a_pause,
    what_was_relabelled_in_a_pause_fires_after_it,
    what_falls_into_a_pause_does_not_fire_after_it,
    a_pause_costs_no_look_before_its_time,
    one_that_is_paused_keeps_those_after_it_and_no_others,
    as_many_as_it_may_make_are_all_though_it_is_paused,
    what_a_change_took_away_comes_back_after_a_purge,
}

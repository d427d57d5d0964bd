//! Nominal times that come out otherwise than they did: very many were missed, other data of the time zones, a rule that this
//! version does not take.

use super::*;

/// The latest that was missed fires, though one look does not see to the end of what is undecided.
async fn of_very_many_the_latest_that_was_missed_fires(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT0.5S"));
    let missed = Missed { policy: MissedPolicy::FireOnce, ..one.plan.missed };
    put(&f, &with(&f, ScheduleEdit { plan: Plan { missed, ..one.plan.clone() }, ..one })).await;
    serve(&f, &owned, 0).await;
    // Made ahead are 50 seconds; a thousand more end within the last minute.
    let owned = outage(&f, 600_000).await;
    while make(&f, &owned).await.is_cut {}
    let mut fired = Vec::new();
    loop {
        let claimed = f.claim_due(&owned).await;
        if claimed.is_empty() {
            break;
        }
        fired.extend(claimed.iter().map(|row| row.nominal().expect("one").get() - START.get()));
        deliver(&f, &claimed).await;
    }
    fired.sort_unstable();
    let expected: Vec<i64> = (0..=120).map(|n| 540_000 + n * 500).collect();
    assert_eq!(fired[1..], expected, "those within a minute were not missed");
    assert_eq!(fired[0], 539_500, "the latest before them");
    let unmade: i64 = skipped(&f).await.iter().map(|(_, count)| count).sum();
    assert_eq!(unmade, 1079 - 1 - 100, "all others but those that were made");
    f.balanced().await;
}

fn daily() -> When {
    When::Daily { at: "09:00".into(), every_days: 1 }
}

/// As if this had been made by other data of the time zones, by which the wall clock shows so many milliseconds more.
async fn made_by_other_zones(f: &Fixture, ahead_ms: i64) {
    let sql = format!(
        "UPDATE timers SET nominal = nominal - {ahead_ms}, due_at = due_at - {ahead_ms}, wake_at = wake_at - {ahead_ms}; \
         UPDATE schedules SET tzdb = '2000a', last_nominal = last_nominal - {ahead_ms}, make_at = make_at - {ahead_ms}"
    );
    for statement in sql.split(';') {
        behind_its_back(f, statement).await;
    }
}

async fn follow(f: &Fixture, owned: &Owned) -> usize {
    f.store.follow_zones(owned, 10, AHEAD).await.expect("follows").0
}

async fn other_data_of_the_zones_move_what_is_ahead(f: Fixture) {
    let owned = f.own_all().await;
    for ahead_ms in [30 * MINUTE, -30 * MINUTE] {
        let row = put(&f, &edit(&f, daily())).await;
        let (made, due) = (row.made, row.last_nominal.get() - START.get());
        assert_eq!(follow(&f, &owned).await, 0, "it follows them");
        made_by_other_zones(&f, ahead_ms).await;
        assert_eq!((follow(&f, &owned).await, follow(&f, &owned).await), (1, 0));
        let row = found(&f).await;
        assert_eq!((row.made, row.last_nominal, row.state), (made, at(due), ScheduleState::Active));
        let live: Vec<_> =
            states(&f).await.into_iter().filter(|(_, state, _)| *state == State::Scheduled).collect();
        assert_eq!(live, [(due / 1000, State::Scheduled, None)], "{ahead_ms}");
        f.store.remove_schedule("s").await.expect("removes");
    }
    f.balanced().await;
}

async fn what_the_zones_do_not_move_stays_as_it_is(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, every("PT1M"));
    let plan = Plan { max_occurrences: Some(12), ..one.plan.clone() };
    put(&f, &with(&f, ScheduleEdit { plan, ..one })).await;
    f.change(uid(3 * MINUTE), ChangeEvent::Cancel).await;
    let (before, made) = (states(&f).await, found(&f).await.made);
    made_by_other_zones(&f, 0).await;
    assert_eq!(follow(&f, &owned).await, 1);
    assert_eq!(
        (states(&f).await, found(&f).await.made),
        (before, made),
        "the one that was cancelled counts once"
    );
    assert!(all(&f).await.values().all(|row| row.life.generation.0 == 1));
    for minute in 1..=13 {
        serve(&f, &owned, minute * MINUTE).await;
        make(&f, &owned).await;
    }
    assert_eq!((skipped(&f).await, found(&f).await.state), (vec![], ScheduleState::Ended));
}

async fn what_the_zones_did_not_move_a_change_makes_anew(f: Fixture) {
    let owned = f.own_all().await;
    for when in [daily(), every("PT1M")] {
        let one = edit(&f, when);
        let due = put(&f, &one).await.last_nominal;
        made_by_other_zones(&f, 0).await;
        assert_eq!(follow(&f, &owned).await, 1);
        let content = Content::of(&NewTimer { owner: Some("another".into()), ..f.timer("content", 0) });
        let changed = put(&f, &with(&f, ScheduleEdit { content, ..one })).await;
        assert_eq!(changed.last_nominal, due);
        let rows = all(&f).await;
        assert_eq!(rows.keys().max(), Some(&(due.get() - START.get())));
        for row in rows.values() {
            assert_eq!(
                (row.life.state, row.life.generation.0, row.owner.as_deref()),
                (State::Scheduled, 2, Some("another"))
            );
        }
        f.store.remove_schedule("s").await.expect("removes");
        behind_its_back(&f, "DELETE FROM ended_ids").await;
        behind_its_back(&f, "DELETE FROM history").await;
    }
}

/// One whose row cannot be read, and one whose nominal times cannot be told, do not hold up the others.
async fn the_zones_move_what_can_be_read(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, daily());
    for id in ["a", "b", "s"] {
        put(&f, &ScheduleEdit { id: id.into(), ..one.clone() }).await;
    }
    made_by_other_zones(&f, 30 * MINUTE).await;
    behind_its_back(&f, "UPDATE schedules SET content = '[]' WHERE id = 'a'").await;
    behind_its_back(&f, "UPDATE schedules SET plan = replace(plan, '09:00', 'noon') WHERE id = 'b'").await;
    assert_eq!((follow(&f, &owned).await, follow(&f, &owned).await), (3, 0));
    let live = all(&f).await.values().filter(|row| row.life.state == State::Scheduled).count();
    assert_eq!((live, found(&f).await.last_nominal), (1, at(60 * MINUTE)));
}

/// A later version may take rules that this one does not.
async fn what_cannot_be_read_can_be_paused_changed_and_removed(f: Fixture) {
    let owned = f.own_all().await;
    let one = edit(&f, When::Cron("0 9 * * *".into()));
    for change in 0..2 {
        put(&f, &one).await;
        behind_its_back(
            &f,
            "UPDATE schedules SET plan = replace(plan, '0 9 * * *', 'some day'), make_at = 0",
        )
        .await;
        assert_eq!(make(&f, &owned).await.failures.len(), 1);
        let (paused, _) = f.store.pause_schedule("s", true, AHEAD).await.expect("pauses").expect("is there");
        assert_eq!(paused.state, ScheduleState::Paused);
        match change {
            0 => {
                let row = put(&f, &ScheduleEdit { request_hash: [1; 16], ..one.clone() }).await;
                assert_eq!(row.state, ScheduleState::Paused);
                f.store.pause_schedule("s", false, AHEAD).await.expect("resumes");
                assert_eq!(
                    all(&f).await.values().filter(|row| row.life.state == State::Scheduled).count(),
                    1
                );
            }
            _ => assert!(f.store.remove_schedule("s").await.expect("removes").is_some()),
        }
    }
    f.balanced().await;
}

on_both_stores! {
    of_very_many_the_latest_that_was_missed_fires,
    other_data_of_the_zones_move_what_is_ahead,
    what_the_zones_do_not_move_stays_as_it_is,
    what_the_zones_did_not_move_a_change_makes_anew,
    the_zones_move_what_can_be_read,
    what_cannot_be_read_can_be_paused_changed_and_removed,
}

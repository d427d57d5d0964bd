//! How long queues are, what becomes of pointers beyond that, and backlogs.

use super::super::backlogs::{BACKLOG_MAX, QUEUED_WITHOUT_BACKLOG};
use super::*;

/// A receiver that answers so many attempts in each of so many seconds, with a queue all the time.
fn paced(lanes: &mut Lanes, lane: i64, per_second: usize, seconds: i64) {
    let key = LaneKey { lane, class: Class::First };
    let mut n = 0;
    for second in 0..seconds {
        for _ in 0..2 * per_second {
            n += 1;
            lanes.offer(swept((lane as u128) << 64 | n, lane), second * 1000);
        }
        for taken in take(lanes, per_second) {
            let _ = lanes.acquire(key);
            lanes.attempt_ended(key, AttemptEnd::Answered, second * 1000 + 999);
            lanes.recorded(&taken.uid, second * 1000 + 999);
        }
    }
}

#[test]
fn a_lane_queues_half_a_minutes_work_of_its_receiver() {
    let mut lanes = Lanes::new(1000, 100);
    paced(&mut lanes, 1, 10, 60);
    for n in 0..20 {
        lanes.offer(pointer(n << 96, 1, 0), 60_000);
    }
    let queued = lanes.queued();
    assert!((250..350).contains(&queued), "ten a second: {queued}");
    let mut postponed_ms = || match lanes.offer(swept(u128::MAX, 1), 60_000) {
        Offer::Postpone(ms) => ms,
        other => panic!("{other:?}"),
    };
    let first = postponed_ms();
    let later = (0..100).map(|_| postponed_ms()).last().unwrap_or_default();
    assert!(first >= 25_000, "the queued ones come before it: {first}");
    assert!((9000..11_000).contains(&(later - first)), "and a hundred that were postponed: {first}, {later}");
    assert_eq!(lanes.offer(pointer(u128::MAX, 2, 0), 60_000), Offer::Queued, "another receiver's");
}

#[test]
fn a_short_stall_postpones_nothing_for_long() {
    let mut lanes = Lanes::new(1000, 100);
    // Nothing is taken and nothing answers; the sweep looks every second.
    let mut offers = Vec::new();
    for second in 0..20 {
        for n in 0..100_000 {
            offers.push(lanes.offer(swept(second << 32 | n, 1), second as i64 * 1000));
        }
    }
    let longest =
        offers.iter().filter_map(|offer| if let Offer::Postpone(ms) = offer { Some(*ms) } else { None });
    assert_eq!(longest.max(), Some(19_000), "as long as there has been a queue");
}

#[test]
fn a_pause_does_not_make_a_quick_receiver_a_slow_one() {
    let mut lanes = Lanes::new(10_000, 1000);
    paced(&mut lanes, 1, 300, 120);
    let queued = lanes.queued();
    assert!((8500..9500).contains(&queued), "half a minute's work: {queued}");
    // Ten seconds without an answer; then the attempts under way time out.
    let key = LaneKey { lane: 1, class: Class::First };
    for _ in take(&mut lanes, 10) {
        let _ = lanes.acquire(key);
        lanes.attempt_ended(key, AttemptEnd::NoAnswer, 130_000);
    }
    assert!(lanes.queued() > queued * 3 / 4, "{} of {queued} are queued still", lanes.queued());
    assert_eq!(lanes.backlogged().collect::<Vec<_>>(), [(key, Priority::Normal)], "the sweep skips the lane");
    let postponed = (0..queued as u128).filter_map(|n| match lanes.offer(swept(n << 96, 1), 130_000) {
        Offer::Postpone(ms) => Some(ms),
        _ => None,
    });
    let longest = postponed.max().unwrap_or_default();
    assert!((30_000..75_000).contains(&longest), "until they can be sent: {longest}");
}

#[test]
fn dropped_pointers_come_before_those_that_fall_due_now() {
    let mut lanes = Lanes::new(1000, 100);
    paced(&mut lanes, 1, 100, 20);
    let mut n = 1_u128 << 96;
    let mut next = || {
        n += 1;
        n
    };
    while lanes.offer(pointer(next(), 1, 0), 20_000) == Offer::Queued {}
    assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Dropped, "the lane is full");
    let key = LaneKey { lane: 1, class: Class::First };
    let serve = |lanes: &mut Lanes, until: usize| {
        while lanes.queued() > until {
            for taken in take(lanes, (lanes.queued() - until).min(64)) {
                let _ = lanes.acquire(key);
                lanes.attempt_ended(key, AttemptEnd::Answered, 20_000);
                lanes.recorded(&taken.uid, 20_000);
            }
        }
    };
    serve(&mut lanes, BACKLOG_MAX);
    assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Dropped, "the room is for older ones");
    assert_eq!(lanes.offer(pointer(next(), 2, 0), 20_000), Offer::Queued, "another receiver's");
    while lanes.offer(swept(next(), 1), 20_000) == Offer::Queued && lanes.queued() < BACKLOG_MAX + 10 {}
    assert_eq!(
        lanes.offer(pointer(next(), 1, 0), 20_000),
        Offer::Queued,
        "the sweep has brought all of them"
    );
    // The timers that were dropped may have been cancelled.
    while lanes.offer(pointer(next(), 1, 0), 20_000) == Offer::Queued {}
    assert_eq!(take(&mut lanes, 20).len(), 20, "in flight, so that the lane is kept");
    serve(&mut lanes, 0);
    for _ in 0..BACKLOG_MAX {
        assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Queued);
    }
}

#[test]
fn many_lanes_have_a_backlog_sooner() {
    let mut lanes = Lanes::new(1000, 100);
    for n in 0..200 {
        for lane in 0..1000 {
            lanes.offer(pointer(n << 64 | lane, lane as i64, 0), 0);
        }
    }
    assert_eq!(lanes.queued(), 200_000);
    assert!(
        lanes.queued_without_backlog() < 2 * QUEUED_WITHOUT_BACKLOG,
        "read at every look: {}",
        lanes.queued_without_backlog()
    );
    assert_eq!(lanes.backlogged().count(), 1000);
}

#[test]
fn one_lane_leaves_room_for_others_and_two_for_a_third() {
    let mut lanes = Lanes::new(1000, 100);
    for lane in 1..4 {
        for n in 0..MAX_QUEUED as u128 {
            if lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0) != Offer::Queued {
                break;
            }
        }
        assert_eq!(MAX_QUEUED - lanes.queued(), MAX_QUEUED >> lane, "half of what was left");
    }
}

#[test]
fn a_lane_has_a_backlog_until_a_quarter_is_left() {
    let mut lanes = Lanes::new(10_000, 10_000);
    for n in 0..BACKLOG_MAX as u128 {
        assert_eq!(lanes.backlogged().count(), 0);
        lanes.offer(pointer(n, 1, 0), 0);
    }
    lanes.offer(pointer(0, 2, 0), 0);
    lanes.offer(pointer(u128::MAX, 2, 0), 0);
    let key = LaneKey { lane: 1, class: Class::First };
    assert_eq!(lanes.backlogged().collect::<Vec<_>>(), [(key, Priority::Normal)]);
    assert_eq!(lanes.queued_without_backlog(), 1);
    while lanes.queued() >= BACKLOG_MAX / 4 {
        assert_eq!(lanes.backlogs_cleared(), 0);
        for taken in take(&mut lanes, 64) {
            finish_quickly(&mut lanes, &taken);
        }
    }
    assert_eq!(lanes.backlogs_cleared(), 1);
    assert_eq!((lanes.backlogged().count(), lanes.queued_without_backlog()), (0, lanes.queued()));
}

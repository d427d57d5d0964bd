use super::lane::{MIN_CAPACITY, MIN_LIMIT};
use super::*;
use crate::model::id::Generation;
use crate::model::pointer::Via;
use crate::model::time::UnixMs;
use uuid::Uuid;

fn pointer(n: u128, lane: i64, attempt: i32) -> Pointer {
    Pointer {
        uid: Uid(Uuid::from_u128(n)),
        shard: 0,
        generation: Generation(1),
        attempt,
        wake_at: UnixMs::new(0),
        lane,
        minute: false,
        overdue: false,
        via: Via::Loader,
    }
}

fn swept(n: u128, lane: i64) -> Pointer {
    Pointer { via: Via::Sweep, ..pointer(n, lane, 0) }
}

#[test]
fn a_full_lane_leaves_room_for_the_others() {
    let mut lanes = Lanes::new(100, 20);
    for n in 0..50 {
        assert_eq!(lanes.offer(pointer(n, 1, 0), 0), Offer::Queued);
    }
    assert_eq!(lanes.take(100).len(), 3 * INITIAL_LIMIT, "a new lane starts small");
    lanes.offer(pointer(100, 2, 0), 0);
    assert_eq!(lanes.take(100), [pointer(100, 2, 0)]);
    assert!(lanes.take(100).is_empty());
}

#[test]
fn the_limit_of_a_lane_rises_with_answers_and_falls_without() {
    let mut lanes = Lanes::new(1000, 20);
    for n in 0..500 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    for _ in lanes.take(1000) {
        assert!(lanes.acquire(key).is_none());
        lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    }
    assert_eq!(lanes.take(1000).len(), 60, "three times as many as may be sent at once");
    for _ in 0..60 {
        let _ = lanes.acquire(key);
        lanes.attempt_ended(key, AttemptEnd::NoAnswer, 0);
    }
    assert_eq!(lanes.take(1000).len(), MIN_LIMIT);
}

#[test]
fn no_more_permits_are_given_than_may_be_sent_at_once() {
    let mut lanes = Lanes::new(1000, 2);
    for n in 0..6 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    assert_eq!(lanes.take(100).len(), 6);
    assert!(lanes.acquire(key).is_none() && lanes.acquire(key).is_none());
    lanes.free_claim(key);
    lanes.free_claim(key);
    let (given_up, mut waiting) = (lanes.acquire(key).unwrap(), lanes.acquire(key).unwrap());
    drop(given_up);
    lanes.free_claim(key);
    assert!(waiting.try_recv().is_err(), "no permit is free");
    lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    assert!(waiting.try_recv().is_ok(), "an attempt that no longer waits gets no permit");
    lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    assert_eq!(lanes.in_flight(), 0);
}

#[test]
fn retries_never_take_more_than_a_quarter() {
    let mut lanes = Lanes::new(8, 8);
    for n in 0..20 {
        lanes.offer(pointer(n, 1, 1), 0);
        lanes.offer(pointer(100 + n, 1, 0), 0);
    }
    let taken = lanes.take(100);
    assert_eq!(taken.iter().filter(|p| p.attempt > 0).count(), 2);
    assert_eq!(taken.len(), 8);
}

#[test]
fn overdue_timers_of_an_outage_take_at_most_half() {
    let mut lanes = Lanes::new(8, 8);
    for n in 0..20 {
        lanes.offer(Pointer { overdue: true, ..pointer(n, 1, 0) }, 0);
    }
    assert_eq!(lanes.take(100).len(), 4);
    for n in 100..120 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    assert_eq!(lanes.take(100).len(), 4, "timers that fall due now have the other half");
}

#[test]
fn a_timer_is_in_hand_until_its_outcome_is_recorded() {
    let mut lanes = Lanes::new(10, 10);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Queued);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Duplicate);
    let taken = lanes.take(10);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Duplicate, "it is being claimed");
    lanes.claim_dropped(&taken[0], 0);
    assert_eq!((lanes.queued(), lanes.in_flight()), (0, 0));
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Queued);
    let taken = lanes.take(10);
    assert_eq!((lanes.queued(), lanes.in_flight()), (0, 1));
    assert!(lanes.acquire(LaneKey::of(&taken[0])).is_none());
    lanes.attempt_ended(LaneKey::of(&taken[0]), AttemptEnd::Answered, 0);
    assert_eq!(lanes.in_flight(), 0);
    assert_eq!(lanes.offer(pointer(1, 1, 1), 0), Offer::Duplicate, "its result is not recorded yet");
    assert!(lanes.recorded(&taken[0].uid, 0), "it is queued now");
    assert_eq!(lanes.take(10), [pointer(1, 1, 1)]);
}

#[test]
fn a_pointer_that_comes_while_its_timer_is_in_hand_is_offered_afterwards() {
    let moved = Pointer { generation: Generation(2), ..pointer(1, 1, 0) };
    let swept = Pointer { via: Via::Sweep, ..moved };
    let mut lanes = Lanes::new(10, 10);
    // The claim of the old generation is under way when the new one comes, due at once.
    lanes.offer(pointer(1, 1, 0), 0);
    let taken = lanes.take(10);
    assert_eq!(lanes.offer(moved, 0), Offer::Duplicate);
    assert_eq!(lanes.offer(swept, 0), Offer::Duplicate, "the sweep offers it again");
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Duplicate, "an older one is of no use");
    assert!(lanes.take(10).is_empty());
    lanes.claim_dropped(&taken[0], 0);
    assert_eq!(lanes.take(10), [moved]);
    // Its attempt is given back, or fails and is to be made again at once, before the record is known here.
    let again = Pointer { attempt: 1, ..moved };
    assert_eq!(lanes.offer(again, 0), Offer::Duplicate);
    assert!(lanes.recorded(&moved.uid, 0));
    assert_eq!(lanes.take(10), [again]);
    assert!(!lanes.recorded(&moved.uid, 0), "nothing came meanwhile");
    assert!(lanes.take(10).is_empty());
}

#[test]
fn a_newer_generation_replaces_a_queued_pointer() {
    let mut lanes = Lanes::new(10, 10);
    lanes.offer(pointer(1, 1, 1), 0);
    let newer = Pointer { generation: Generation(2), ..pointer(1, 1, 0) };
    assert_eq!(lanes.offer(newer, 0), Offer::Queued);
    assert_eq!(lanes.offer(pointer(1, 1, 1), 0), Offer::Duplicate, "an older one does not replace it");
    assert_eq!(lanes.take(10), [newer]);
    assert_eq!((lanes.queued(), lanes.in_flight()), (0, 1));
}

/// A receiver that answers so many attempts in each of so many seconds, with a queue all the time.
fn paced(lanes: &mut Lanes, lane: i64, per_second: usize, seconds: i64) {
    let key = LaneKey { lane, class: Class::First };
    let mut n = 0;
    for second in 0..seconds {
        for _ in 0..2 * per_second {
            n += 1;
            lanes.offer(swept((lane as u128) << 64 | n, lane), second * 1000);
        }
        for taken in lanes.take(per_second) {
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
    for _ in lanes.take(10) {
        let _ = lanes.acquire(key);
        lanes.attempt_ended(key, AttemptEnd::NoAnswer, 130_000);
    }
    assert!(lanes.queued() > queued * 3 / 4, "{} of {queued} are queued still", lanes.queued());
    assert_eq!(lanes.backlogged().collect::<Vec<_>>(), [key], "the sweep skips the lane");
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
            for taken in lanes.take((lanes.queued() - until).min(64)) {
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
    assert_eq!(lanes.take(20).len(), 20, "in flight, so that the lane is kept");
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
    assert_eq!(lanes.backlogged().collect::<Vec<_>>(), [key]);
    assert_eq!(lanes.queued_without_backlog(), 1);
    while lanes.queued() >= BACKLOG_MAX / 4 {
        assert_eq!(lanes.backlogs_cleared(), 0);
        for _ in lanes.take(64) {
            let _ = lanes.acquire(key);
            lanes.attempt_ended(key, AttemptEnd::Answered, 0);
        }
    }
    assert_eq!(lanes.backlogs_cleared(), 1);
    assert_eq!((lanes.backlogged().count(), lanes.queued_without_backlog()), (0, lanes.queued()));
}

#[test]
fn attempts_that_wait_for_a_permit_take_at_most_half() {
    let mut lanes = Lanes::new(240, 16);
    for lane in 0..20 {
        for n in 0..100 {
            lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0);
        }
    }
    let taken = lanes.take(1000);
    let of = |lane| taken.iter().filter(|pointer| pointer.lane == lane).count();
    assert_eq!(taken.len(), 240);
    assert!((0..15).all(|lane| of(lane) > 0), "each of many receivers gets its turn");
    // No attempt ends, and yet there is room for another receiver.
    let mut lanes = Lanes::new(240, 16);
    for lane in 0..6 {
        for n in 0..100 {
            lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0);
        }
        lanes.take(1000);
    }
    lanes.offer(pointer(u128::MAX, 99, 0), 0);
    assert_eq!(lanes.take(1000), [pointer(u128::MAX, 99, 0)]);
}

#[test]
fn receivers_that_never_answer_leave_room_for_others() {
    let mut lanes = Lanes::new(1000, 100);
    for lane in 0..200 {
        for n in 0..100 {
            lanes.offer(pointer(lane * 1000 + n, lane as i64, 0), 0);
        }
        let key = LaneKey { lane: lane as i64, class: Class::First };
        for _ in lanes.take(1000) {
            let _ = lanes.acquire(key);
            lanes.attempt_ended(key, AttemptEnd::NoAnswer, 60_000);
        }
    }
    let before = lanes.queued();
    for n in 0..100 {
        lanes.offer(pointer(1_000_000 + n, 77, 0), 60_000);
    }
    assert!(lanes.queued() - before <= MIN_CAPACITY, "a lane whose receiver does not answer queues few");
    assert!(before <= 200 * MIN_CAPACITY, "and so do all of them together: {before}");
}

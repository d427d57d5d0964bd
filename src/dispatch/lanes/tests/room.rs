//! Room for attempts: of a lane, of its class, of the node.

use super::super::lane::MIN_LIMIT;
use super::*;

#[test]
fn a_full_lane_leaves_room_for_the_others() {
    let mut lanes = Lanes::new(200, 20);
    for n in 0..50 {
        assert_eq!(lanes.offer(pointer(n, 1, 0), 0), Offer::Queued);
    }
    assert_eq!(take(&mut lanes, 100).len(), INITIAL_LIMIT, "a new lane starts small");
    lanes.offer(pointer(100, 2, 0), 0);
    assert_eq!(take(&mut lanes, 100), [pointer(100, 2, 0)]);
    assert!(take(&mut lanes, 100).is_empty());
}

#[test]
fn the_limit_of_a_lane_rises_with_answers_and_falls_without() {
    let mut lanes = Lanes::new(1000, 20);
    for n in 0..500 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    for _ in 0..2 {
        let taken = take(&mut lanes, 1000);
        taken.iter().for_each(|_| drop(lanes.acquire(key)));
        taken.iter().for_each(|_| lanes.attempt_ended(key, AttemptEnd::Answered, 0));
    }
    assert_eq!(take(&mut lanes, 1000).len(), 60, "three times as many as may be sent at once");
    for _ in 0..60 {
        let _ = lanes.acquire(key);
        lanes.attempt_ended(key, AttemptEnd::NoAnswer, 0);
    }
    assert_eq!(take(&mut lanes, 1000).len(), MIN_LIMIT);
}

#[test]
fn no_more_permits_are_given_than_may_be_sent_at_once() {
    let mut lanes = proven(1000, 2, [1]);
    for n in 0..6 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    assert_eq!(take(&mut lanes, 100).len(), 6);
    assert!(lanes.acquire(key).is_none() && lanes.acquire(key).is_none());
    lanes.free_claim(key, 0);
    lanes.free_claim(key, 0);
    let (given_up, mut waiting) = (lanes.acquire(key).unwrap(), lanes.acquire(key).unwrap());
    drop(given_up);
    lanes.free_claim(key, 0);
    assert!(waiting.try_recv().is_err(), "no permit is free");
    lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    assert!(waiting.try_recv().is_ok(), "an attempt that no longer waits gets no permit");
    lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    lanes.attempt_ended(key, AttemptEnd::Answered, 0);
    assert_eq!(lanes.in_flight(), 0);
}

#[test]
fn limits_change_while_attempts_are_under_way() {
    let mut lanes = proven(200, 20, [1, 2]);
    for n in 0..300 {
        lanes.offer(pointer(n, 1 + (n % 2) as i64, 0), 0);
    }
    let under_way = take(&mut lanes, 200);
    assert!(under_way.len() > 60, "three times what is sent at once: {}", under_way.len());
    lanes.set_limits(60, 2);
    assert_eq!(take(&mut lanes, 200).len(), 0, "more are under way than may be");
    under_way.iter().for_each(|one| finish(&mut lanes, one, AttemptEnd::Answered, 0));
    let fewer = take(&mut lanes, 200);
    assert_eq!(fewer.len(), 2 * 3 * 2, "two lanes, each three times what it sends at once");
    lanes.set_limits(400, 50);
    fewer.iter().for_each(|one| finish(&mut lanes, one, AttemptEnd::Answered, 0));
    let mut most = 0;
    for _ in 0..20 {
        let more = take(&mut lanes, 400);
        most = most.max(more.len());
        more.iter().for_each(|one| finish(&mut lanes, one, AttemptEnd::Answered, 0));
    }
    assert!(most > 12, "the limit of a lane rises again: {most}");
}

#[test]
fn retries_never_take_more_than_a_quarter() {
    let mut lanes = proven(8, 8, [1]);
    for n in 0..20 {
        lanes.offer(pointer(n, 1, 1), 0);
        lanes.offer(pointer(100 + n, 1, 0), 0);
    }
    let taken = take(&mut lanes, 100);
    assert_eq!(taken.iter().filter(|p| p.attempt > 0).count(), 2);
    assert_eq!(taken.len(), 8);
}

#[test]
fn overdue_timers_of_an_outage_take_at_most_half() {
    let mut lanes = proven(8, 8, [1]);
    for n in 0..20 {
        lanes.offer(Pointer { overdue: true, ..pointer(n, 1, 0) }, 0);
    }
    assert_eq!(take(&mut lanes, 100).len(), 4);
    for n in 100..120 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    assert_eq!(take(&mut lanes, 100).len(), 4, "timers that fall due now have the other half");
}

#[test]
fn attempts_that_wait_for_a_permit_take_at_most_half() {
    let mut lanes = proven(240, 16, 0..20);
    for lane in 0..20 {
        for n in 0..100 {
            lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0);
        }
    }
    let taken = take(&mut lanes, 1000);
    let of = |lane| taken.iter().filter(|pointer| pointer.lane == lane).count();
    assert!(taken.len() > 200, "{}", taken.len());
    assert!((0..15).all(|lane| of(lane) > 0), "each of many receivers gets its turn");
    // No attempt ends, and yet there is room for another receiver.
    let mut lanes = proven(240, 16, (0..6).chain([99]));
    for lane in 0..6 {
        for n in 0..100 {
            lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0);
        }
        take(&mut lanes, 1000);
    }
    lanes.offer(pointer(u128::MAX, 99, 0), 0);
    assert_eq!(take(&mut lanes, 1000), [pointer(u128::MAX, 99, 0)]);
}

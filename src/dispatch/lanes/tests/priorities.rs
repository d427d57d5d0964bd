//! Priorities within a lane.

use super::super::backlogs::BACKLOG_MAX;
use super::super::lane::MIN_CAPACITY;
use super::*;

fn ranked(n: u128, lane: i64, priority: Priority) -> Pointer {
    Pointer { priority, ..pointer(n, lane, 0) }
}

#[test]
fn priorities_take_turns_by_their_weights() {
    let mut lanes = proven(100, 100, [1]);
    for n in 0..100 {
        for (place, priority) in Priority::ALL.into_iter().enumerate() {
            assert_eq!(lanes.offer(ranked(n * 3 + place as u128, 1, priority), 0), Offer::Queued);
        }
    }
    let mut order = Vec::new();
    while order.len() < 63 {
        let taken = take(&mut lanes, 63 - order.len());
        for one in taken {
            order.push(one.priority);
            finish(&mut lanes, &one, AttemptEnd::Answered, 0);
        }
    }
    let count =
        |part: &[Priority]| Priority::ALL.map(|one| part.iter().filter(|other| **other == one).count());
    assert_eq!(count(&order), [48, 12, 3]);
    assert_eq!(count(&order[..21]), [16, 4, 1], "each round of turns has all of them");
    assert_eq!(order[0], Priority::High);
}

#[test]
fn a_full_lane_takes_what_is_more_important() {
    let mut lanes = Lanes::new(100, 10);
    // A slow receiver, behind which timers wait: its queue is as short as a queue gets.
    let low = |n: i64| ranked(1 << 100 | n as u128, 1, Priority::Low);
    for n in 0..20 {
        lanes.offer(low(n), 0);
    }
    for at in (1..60).map(|n| n * 1000) {
        let taken = take_at(&mut lanes, 1, at);
        taken.iter().for_each(|one| finish(&mut lanes, one, AttemptEnd::Answered, at));
        lanes.offer(low(at), at);
    }
    let at = 60_000;
    assert_eq!(lanes.lanes[&LaneKey { lane: 1, class: Class::First }].capacity(), MIN_CAPACITY);
    let mut offered = Vec::new();
    for n in 0..2 * MIN_CAPACITY as u128 {
        offered.push(lanes.offer(ranked(n, 1, Priority::Low), at));
    }
    assert!(offered.contains(&Offer::Dropped), "it is full");
    assert_eq!(lanes.offer(ranked(1000, 1, Priority::Normal), at), Offer::Queued);
    assert_eq!(lanes.offer(ranked(1001, 1, Priority::High), at), Offer::Queued);
    lanes.check();
    let taken = take_at(&mut lanes, 2, at);
    assert_eq!(taken.iter().map(|one| one.priority).collect::<Vec<_>>(), [Priority::High, Priority::Normal]);
    // The low ones that were put out come by the sweep.
    assert!(lanes.lanes[&LaneKey { lane: 1, class: Class::First }].is_owed_by_sweep(Priority::Low));
}

#[test]
fn a_backlog_of_low_ones_hides_no_high_one_from_the_sweep() {
    let mut lanes = Lanes::new(100, 10);
    for n in 0..BACKLOG_MAX as u128 {
        assert_eq!(lanes.offer(ranked(n, 1, Priority::Low), 0), Offer::Queued);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    assert_eq!(lanes.backlogged().collect::<Vec<_>>(), [(key, Priority::Low)]);
    assert_eq!(lanes.offer(Pointer { via: Via::Sweep, ..ranked(9999, 1, Priority::High) }, 0), Offer::Queued);
    assert_eq!(lanes.queued_without_backlog(), 1);
    lanes.check();
}

#[test]
fn a_changed_priority_counts_also_for_what_waits() {
    let mut lanes = proven(100, 10, [1]);
    for n in 0..5 {
        lanes.offer(ranked(n, 1, Priority::Normal), 0);
    }
    let raised = Pointer { change: 1, ..ranked(4, 1, Priority::High) };
    assert_eq!(lanes.offer(raised, 0), Offer::Queued);
    assert_eq!(lanes.offer(ranked(4, 1, Priority::Normal), 0), Offer::Duplicate, "an older one");
    assert_eq!(take(&mut lanes, 1), [raised]);
    let rest: Vec<u128> = take(&mut lanes, 10).iter().map(|one| one.uid.0.as_u128()).collect();
    assert_eq!(rest, [0, 1, 2, 3], "each once");
}

/// A receiver slower than the high ones that come: low ones wait long, and still move.
#[test]
fn a_stream_of_high_ones_leaves_low_ones_their_turns() {
    let mut lanes = proven(100, 4, [1]);
    let (mut sent, mut n) = ([0; 3], 0);
    for at in (1..400).map(|tenth| tenth * 100) {
        // Ten times as many as are sent.
        for priority in [Priority::High; 9].into_iter().chain([Priority::Normal, Priority::Low]) {
            n += 1;
            lanes.offer(ranked(n, 1, priority), at);
        }
        for one in take_at(&mut lanes, 1, at) {
            sent[one.priority as usize] += 1;
            finish(&mut lanes, &one, AttemptEnd::Answered, at);
        }
    }
    let [high, normal, low] = sent;
    assert!(low >= 10 && normal >= 2 * low && high >= 2 * normal, "{sent:?}");
}

/// A full lane puts out the replaced pointer of a timer that was raised: the one that counts stays.
#[test]
fn a_raised_timer_is_not_lost_with_its_old_pointer() {
    let mut lanes = proven(100, 1, [1]);
    for n in 0..20 {
        lanes.offer(ranked(n, 1, Priority::Low), 0);
    }
    // A slow receiver: the queue is short.
    for at in (1..60).map(|n| n * 1000) {
        for one in take_at(&mut lanes, 1, at) {
            finish(&mut lanes, &one, AttemptEnd::Answered, at);
        }
        lanes.offer(ranked(1 << 90 | at as u128, 1, Priority::Low), at);
    }
    let (at, key) = (60_000, LaneKey { lane: 1, class: Class::First });
    while lanes.lanes[&key].queue.len() < MIN_CAPACITY - 2 {
        lanes.offer(ranked(1 << 91 | lanes.queued() as u128, 1, Priority::Low), at);
    }
    let last = ranked(1 << 92, 1, Priority::Low);
    let raised = Pointer { change: 1, priority: Priority::High, ..last };
    let other = ranked(1 << 93, 1, Priority::High);
    let offers = [last, raised, other].map(|one| lanes.offer(one, at));
    assert_eq!(
        offers,
        [Offer::Queued; 3],
        "for the other one the last low pointer is put out, which is the replaced one"
    );
    lanes.check();
    assert_eq!(lanes.offer(raised, at), Offer::Duplicate, "it waits");
    assert!(take_at(&mut lanes, 5, at).contains(&raised));
}

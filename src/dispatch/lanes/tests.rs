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
        assert_eq!(lanes.offer(pointer(n, 1, 0), 0), Offer::Held);
    }
    assert_eq!(lanes.take(100).len(), 3 * START, "a new lane starts small");
    lanes.offer(pointer(100, 2, 0), 0);
    assert_eq!(lanes.take(100), [pointer(100, 2, 0)]);
    assert!(lanes.take(100).is_empty());
}

#[test]
fn a_lane_grows_with_answers_and_shrinks_with_silence() {
    let mut lanes = Lanes::new(1000, 20);
    for n in 0..500 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    for _ in lanes.take(1000) {
        assert!(lanes.enter(key).is_none());
        lanes.left(key, Left::Answered, 0);
    }
    assert_eq!(lanes.take(1000).len(), 60, "twice as many again as may be sent at once");
    for _ in 0..60 {
        let _ = lanes.enter(key);
        lanes.left(key, Left::Silent, 0);
    }
    assert_eq!(lanes.take(1000).len(), FLOOR);
}

#[test]
fn no_more_pass_the_gate_than_may_be_sent_at_once() {
    let mut lanes = Lanes::new(1000, 2);
    for n in 0..6 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let key = LaneKey { lane: 1, class: Class::First };
    assert_eq!(lanes.take(100).len(), 6);
    assert!(lanes.enter(key).is_none() && lanes.enter(key).is_none());
    lanes.gave_up(key);
    lanes.gave_up(key);
    let (gone, mut waits) = (lanes.enter(key).unwrap(), lanes.enter(key).unwrap());
    drop(gone);
    lanes.gave_up(key);
    assert!(waits.try_recv().is_err(), "nobody has left");
    lanes.left(key, Left::Answered, 0);
    assert!(waits.try_recv().is_ok(), "who went away takes no place");
    lanes.left(key, Left::Answered, 0);
    lanes.left(key, Left::Answered, 0);
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
fn what_an_outage_left_overdue_takes_at_most_half() {
    let mut lanes = Lanes::new(8, 8);
    for n in 0..20 {
        lanes.offer(Pointer { overdue: true, ..pointer(n, 1, 0) }, 0);
    }
    assert_eq!(lanes.take(100).len(), 4);
    for n in 100..120 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    assert_eq!(lanes.take(100).len(), 4, "what falls due now has the other half");
}

#[test]
fn a_pointer_is_in_one_hand_until_it_is_recorded() {
    let mut lanes = Lanes::new(10, 10);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Held);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Known);
    let taken = lanes.take(10);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Known, "it is being claimed");
    lanes.dropped(&taken[0], 0);
    assert_eq!((lanes.held(), lanes.in_flight()), (0, 0));
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Held);
    let taken = lanes.take(10);
    assert_eq!((lanes.held(), lanes.in_flight()), (0, 1));
    assert!(lanes.enter(LaneKey::of(&taken[0])).is_none());
    lanes.left(LaneKey::of(&taken[0]), Left::Answered, 0);
    assert_eq!(lanes.in_flight(), 0);
    assert_eq!(lanes.offer(pointer(1, 1, 1), 0), Offer::Known, "its result is not recorded yet");
    assert!(lanes.recorded(&taken[0].uid, 0), "it waits now");
    assert_eq!(lanes.take(10), [pointer(1, 1, 1)]);
}

#[test]
fn what_comes_of_a_timer_in_hand_is_offered_when_the_hand_is_free() {
    let moved = Pointer { generation: Generation(2), ..pointer(1, 1, 0) };
    let swept = Pointer { via: Via::Sweep, ..moved };
    let mut lanes = Lanes::new(10, 10);
    // The claim of the old generation is under way when the new one comes, due at once.
    lanes.offer(pointer(1, 1, 0), 0);
    let taken = lanes.take(10);
    assert_eq!(lanes.offer(moved, 0), Offer::Known);
    assert_eq!(lanes.offer(swept, 0), Offer::Known, "the sweep comes again by itself");
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Known, "an older one is worth nothing");
    assert!(lanes.take(10).is_empty());
    lanes.dropped(&taken[0], 0);
    assert_eq!(lanes.take(10), [moved]);
    // Its attempt is given back, or fails and is to be made again at once, before the record is known here.
    let again = Pointer { attempt: 1, ..moved };
    assert_eq!(lanes.offer(again, 0), Offer::Known);
    assert!(lanes.recorded(&moved.uid, 0));
    assert_eq!(lanes.take(10), [again]);
    assert!(!lanes.recorded(&moved.uid, 0), "nothing came meanwhile");
    assert!(lanes.take(10).is_empty());
}

#[test]
fn a_newer_generation_replaces_a_waiting_pointer() {
    let mut lanes = Lanes::new(10, 10);
    lanes.offer(pointer(1, 1, 1), 0);
    let newer = Pointer { generation: Generation(2), ..pointer(1, 1, 0) };
    assert_eq!(lanes.offer(newer, 0), Offer::Held);
    assert_eq!(lanes.offer(pointer(1, 1, 1), 0), Offer::Known, "an older one does not replace it");
    assert_eq!(lanes.take(10), [newer]);
    assert_eq!((lanes.held(), lanes.in_flight()), (0, 1));
}

/// A receiver that answers so many attempts in each of so many seconds, with more waiting all the time.
fn paced(lanes: &mut Lanes, lane: i64, per_second: usize, seconds: i64) {
    let key = LaneKey { lane, class: Class::First };
    let mut n = 0;
    for second in 0..seconds {
        for _ in 0..2 * per_second {
            n += 1;
            lanes.offer(swept((lane as u128) << 64 | n, lane), second * 1000);
        }
        for taken in lanes.take(per_second) {
            let _ = lanes.enter(key);
            lanes.left(key, Left::Answered, second * 1000 + 999);
            lanes.recorded(&taken.uid, second * 1000 + 999);
        }
    }
}

#[test]
fn a_lane_holds_half_a_minutes_work_of_its_receiver() {
    let mut lanes = Lanes::new(1000, 100);
    paced(&mut lanes, 1, 10, 60);
    for n in 0..20 {
        lanes.offer(pointer(n << 96, 1, 0), 60_000);
    }
    let held = lanes.held();
    assert!((250..350).contains(&held), "ten a second: {held}");
    let mut puts_off = || match lanes.offer(swept(u128::MAX, 1), 60_000) {
        Offer::Later(ms) => ms,
        other => panic!("{other:?}"),
    };
    let first = puts_off();
    let later = (0..100).map(|_| puts_off()).last().unwrap_or_default();
    assert!(first >= 25_000, "those that wait here come before it: {first}");
    assert!((9000..11_000).contains(&(later - first)), "and a hundred that were put off: {first}, {later}");
    assert_eq!(lanes.offer(pointer(u128::MAX, 2, 0), 60_000), Offer::Held, "another receiver's");
}

#[test]
fn a_short_stall_puts_nothing_off_for_long() {
    let mut lanes = Lanes::new(1000, 100);
    // Nobody is taken and nothing answers; looked at every second.
    let mut offers = Vec::new();
    for second in 0..20 {
        for n in 0..100_000 {
            offers.push(lanes.offer(swept(second << 32 | n, 1), second as i64 * 1000));
        }
    }
    let longest =
        offers.iter().filter_map(|offer| if let Offer::Later(ms) = offer { Some(*ms) } else { None });
    assert_eq!(longest.max(), Some(19_000), "as long as there has been a queue");
}

#[test]
fn a_pause_does_not_make_a_quick_receiver_a_slow_one() {
    let mut lanes = Lanes::new(10_000, 1000);
    paced(&mut lanes, 1, 300, 120);
    let held = lanes.held();
    assert!((8500..9500).contains(&held), "half a minute's work: {held}");
    // Ten seconds without an answer, and what was sent is given up.
    let key = LaneKey { lane: 1, class: Class::First };
    for _ in lanes.take(10) {
        let _ = lanes.enter(key);
        lanes.left(key, Left::Silent, 130_000);
    }
    assert!(lanes.held() > held * 3 / 4, "of {held} wait {}", lanes.held());
    assert_eq!(lanes.crowded().collect::<Vec<_>>(), [key], "so much waits that nothing more is looked for");
    let put_off = (0..held as u128).filter_map(|n| match lanes.offer(swept(n << 96, 1), 130_000) {
        Offer::Later(ms) => Some(ms),
        _ => None,
    });
    let longest = put_off.max().unwrap_or_default();
    assert!((30_000..75_000).contains(&longest), "until they can have their turn: {longest}");
}

#[test]
fn what_was_left_to_the_sweep_comes_before_what_falls_due_now() {
    let mut lanes = Lanes::new(1000, 100);
    paced(&mut lanes, 1, 100, 20);
    let mut n = 1_u128 << 96;
    let mut next = || {
        n += 1;
        n
    };
    while lanes.offer(pointer(next(), 1, 0), 20_000) == Offer::Held {}
    assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Left, "the lane is full");
    let key = LaneKey { lane: 1, class: Class::First };
    let serve = |lanes: &mut Lanes, until: usize| {
        while lanes.held() > until {
            for taken in lanes.take((lanes.held() - until).min(64)) {
                let _ = lanes.enter(key);
                lanes.left(key, Left::Answered, 20_000);
                lanes.recorded(&taken.uid, 20_000);
            }
        }
    };
    serve(&mut lanes, CROWDED);
    assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Left, "there is room, for older ones");
    assert_eq!(lanes.offer(pointer(next(), 2, 0), 20_000), Offer::Held, "another receiver's");
    while lanes.offer(swept(next(), 1), 20_000) == Offer::Held && lanes.held() < CROWDED + 10 {}
    assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Held, "all of them have come");
    // And what was left may have been cancelled.
    while lanes.offer(pointer(next(), 1, 0), 20_000) == Offer::Held {}
    assert_eq!(lanes.take(20).len(), 20, "under way, so that the lane is not forgotten");
    serve(&mut lanes, 0);
    for _ in 0..CROWDED {
        assert_eq!(lanes.offer(pointer(next(), 1, 0), 20_000), Offer::Held);
    }
}

#[test]
fn many_lanes_are_crowded_sooner() {
    let mut lanes = Lanes::new(1000, 100);
    for n in 0..200 {
        for lane in 0..1000 {
            lanes.offer(pointer(n << 64 | lane, lane as i64, 0), 0);
        }
    }
    assert_eq!(lanes.held(), 200_000);
    assert!(lanes.uncrowded() < 2 * UNCROWDED, "read at every look: {}", lanes.uncrowded());
    assert_eq!(lanes.crowded().count(), 1000);
}

#[test]
fn one_lane_leaves_room_for_others_and_two_for_a_third() {
    let mut lanes = Lanes::new(1000, 100);
    for lane in 1..4 {
        for n in 0..ALL_HELD as u128 {
            if lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0) != Offer::Held {
                break;
            }
        }
        assert_eq!(ALL_HELD - lanes.held(), ALL_HELD >> lane, "half of what was left");
    }
}

#[test]
fn a_crowded_lane_is_named_until_it_has_eased() {
    let mut lanes = Lanes::new(10_000, 10_000);
    for n in 0..CROWDED as u128 {
        assert_eq!(lanes.crowded().count(), 0);
        lanes.offer(pointer(n, 1, 0), 0);
    }
    lanes.offer(pointer(0, 2, 0), 0);
    lanes.offer(pointer(u128::MAX, 2, 0), 0);
    let key = LaneKey { lane: 1, class: Class::First };
    assert_eq!(lanes.crowded().collect::<Vec<_>>(), [key]);
    assert_eq!(lanes.uncrowded(), 1);
    while lanes.held() >= CROWDED / 4 {
        assert_eq!(lanes.eased(), 0);
        for _ in lanes.take(64) {
            let _ = lanes.enter(key);
            lanes.left(key, Left::Answered, 0);
        }
    }
    assert_eq!(lanes.eased(), 1);
    assert_eq!((lanes.crowded().count(), lanes.uncrowded()), (0, lanes.held()));
}

#[test]
fn what_waits_at_gates_takes_at_most_half() {
    let mut lanes = Lanes::new(240, 16);
    for lane in 0..20 {
        for n in 0..100 {
            lanes.offer(pointer(lane << 64 | n, lane as i64, 0), 0);
        }
    }
    let taken = lanes.take(1000);
    let of = |lane| taken.iter().filter(|pointer| pointer.lane == lane).count();
    assert_eq!(taken.len(), 240);
    assert!((0..15).all(|lane| of(lane) > 0), "each of many receivers gets a turn");
    // Nothing comes back, and yet another receiver finds a place.
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
fn silent_receivers_leave_room_for_others() {
    let mut lanes = Lanes::new(1000, 100);
    for lane in 0..200 {
        for n in 0..100 {
            lanes.offer(pointer(lane * 1000 + n, lane as i64, 0), 0);
        }
        let key = LaneKey { lane: lane as i64, class: Class::First };
        for _ in lanes.take(1000) {
            let _ = lanes.enter(key);
            lanes.left(key, Left::Silent, 60_000);
        }
    }
    let before = lanes.held();
    for n in 0..100 {
        lanes.offer(pointer(1_000_000 + n, 77, 0), 60_000);
    }
    assert!(lanes.held() - before <= SLOW_HELD, "a lane that was silent holds few");
    assert!(before <= 200 * SLOW_HELD, "and so do all of them together: {before}");
}

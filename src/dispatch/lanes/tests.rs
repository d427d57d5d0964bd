mod unproven;

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
        priority: Priority::Normal,
        change: 0,
        overdue: false,
        via: Via::Loader,
    }
}

fn swept(n: u128, lane: i64) -> Pointer {
    Pointer { via: Via::Sweep, ..pointer(n, lane, 0) }
}

fn take(lanes: &mut Lanes, most: usize) -> Vec<Pointer> {
    take_at(lanes, most, 0)
}

/// Takes pointers whose attempts run at once.
fn take_at(lanes: &mut Lanes, most: usize, now_ms: i64) -> Vec<Pointer> {
    let taken = lanes.take(most, now_ms).0;
    for one in &taken {
        lanes.runs(LaneKey::of(one), 0, now_ms);
    }
    lanes.check();
    taken
}

/// An attempt at a receiver, and how it ends.
fn attempt(lanes: &mut Lanes, lane: i64, end: AttemptEnd, now_ms: i64) {
    let id = (1 << 120) | (now_ms as u128) << 64 | (lane as u128 & 0xffff_ffff);
    assert_eq!(lanes.offer(pointer(id, lane, 0), now_ms), Offer::Queued);
    let taken = take_at(lanes, 1, now_ms).remove(0);
    finish(lanes, &taken, end, now_ms);
}

fn finish(lanes: &mut Lanes, taken: &Pointer, end: AttemptEnd, now_ms: i64) {
    let key = LaneKey::of(taken);
    assert!(lanes.acquire(key).is_none());
    lanes.attempt_ended(key, end, now_ms);
    lanes.recorded(&taken.uid, now_ms);
    lanes.check();
}

/// Lanes with these receivers, which have answered once.
fn proven(total: usize, per_lane: usize, receivers: impl IntoIterator<Item = i64>) -> Lanes {
    let mut lanes = Lanes::new(total, per_lane);
    receivers.into_iter().for_each(|lane| attempt(&mut lanes, lane, AttemptEnd::Answered, 0));
    lanes
}

/// A lane of a group of its own.
fn lane_of_group(group: i64) -> i64 {
    group << 32 | 1
}

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
fn a_timer_is_in_hand_until_its_outcome_is_recorded() {
    let mut lanes = Lanes::new(10, 10);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Queued);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Duplicate);
    let taken = take(&mut lanes, 10);
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Duplicate, "it is being claimed");
    lanes.claim_dropped(&taken[0], 0);
    assert_eq!((lanes.queued(), lanes.in_flight()), (0, 0));
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Queued);
    let taken = take(&mut lanes, 10);
    assert_eq!((lanes.queued(), lanes.in_flight()), (0, 1));
    assert!(lanes.acquire(LaneKey::of(&taken[0])).is_none());
    lanes.attempt_ended(LaneKey::of(&taken[0]), AttemptEnd::Answered, 0);
    assert_eq!(lanes.in_flight(), 0);
    assert_eq!(lanes.offer(pointer(1, 1, 1), 0), Offer::Duplicate, "its result is not recorded yet");
    assert!(lanes.recorded(&taken[0].uid, 0), "it is queued now");
    assert_eq!(take(&mut lanes, 10), [pointer(1, 1, 1)]);
}

#[test]
fn a_pointer_that_comes_while_its_timer_is_in_hand_is_offered_afterwards() {
    let moved = Pointer { generation: Generation(2), ..pointer(1, 1, 0) };
    let swept = Pointer { via: Via::Sweep, ..moved };
    let mut lanes = Lanes::new(100, 10);
    // The claim of the old generation is under way when the new one comes, due at once.
    lanes.offer(pointer(1, 1, 0), 0);
    let taken = take(&mut lanes, 10);
    assert_eq!(lanes.offer(moved, 0), Offer::Duplicate);
    assert_eq!(lanes.offer(swept, 0), Offer::Duplicate, "the sweep offers it again");
    assert_eq!(lanes.offer(pointer(1, 1, 0), 0), Offer::Duplicate, "an older one is of no use");
    assert!(take(&mut lanes, 10).is_empty());
    lanes.claim_dropped(&taken[0], 0);
    assert_eq!(take(&mut lanes, 10), [moved]);
    // Its attempt is given back, or fails and is to be made again at once, before the record is known here.
    let again = Pointer { attempt: 1, ..moved };
    assert_eq!(lanes.offer(again, 0), Offer::Duplicate);
    assert!(lanes.recorded(&moved.uid, 0));
    assert_eq!(take(&mut lanes, 10), [again]);
    assert!(!lanes.recorded(&moved.uid, 0), "nothing came meanwhile");
    assert!(take(&mut lanes, 10).is_empty());
}

#[test]
fn a_newer_generation_replaces_a_queued_pointer() {
    let mut lanes = Lanes::new(100, 10);
    lanes.offer(pointer(1, 1, 1), 0);
    let newer = Pointer { generation: Generation(2), ..pointer(1, 1, 0) };
    assert_eq!(lanes.offer(newer, 0), Offer::Queued);
    assert_eq!(lanes.offer(pointer(1, 1, 1), 0), Offer::Duplicate, "an older one does not replace it");
    assert_eq!(take(&mut lanes, 10), [newer]);
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

#[test]
fn what_is_sent_and_not_recorded_takes_a_place() {
    let mut lanes = proven(100, 100, [1]);
    for n in 0..300 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let mut sent = Vec::new();
    for _ in 0..20 {
        for taken in take(&mut lanes, 256) {
            let _ = lanes.acquire(LaneKey::of(&taken));
            lanes.attempt_ended(LaneKey::of(&taken), AttemptEnd::Answered, 0);
            sent.push(taken);
        }
    }
    assert_eq!((sent.len(), lanes.in_flight()), (100, 0), "the node is full of results");
    assert!(lanes.recorded(&sent[0].uid, 0), "others wait for its place");
    assert_eq!(take(&mut lanes, 256).len(), 1);
    // One that cannot be read takes none.
    lanes.recorded(&sent[1].uid, 0);
    let unreadable = take(&mut lanes, 256).remove(0);
    lanes.set_aside(&unreadable, 0);
    assert_eq!(lanes.offer(unreadable, 0), Offer::Duplicate);
    assert_eq!(take(&mut lanes, 256).len(), 1);
}

#[test]
fn a_turn_costs_the_same_with_a_hundred_thousand_receivers() {
    let mut lanes = Lanes::new(2048, 128);
    let many = 100_000;
    for host in 0..many {
        assert_eq!(lanes.offer(pointer(host as u128, lane_of_group(host), 0), 0), Offer::Queued);
    }
    let before = lanes.looks();
    let mut served = 0;
    while served < many {
        let (taken, _) = lanes.take(256, 0);
        assert!(!taken.is_empty());
        for taken in taken {
            let _ = lanes.acquire(LaneKey::of(&taken));
            lanes.attempt_ended(LaneKey::of(&taken), AttemptEnd::Answered, 0);
            lanes.recorded(&taken.uid, 0);
            served += 1;
        }
    }
    lanes.check();
    assert!(lanes.looks() - before <= 2 * many as u64, "{} looks", lanes.looks() - before);
    // Each waits for its receiver, which is full: nobody looks at them again and again.
    let mut lanes = Lanes::new(2048, 1);
    for host in 0..many {
        for n in 0..2 {
            lanes.offer(pointer((host as u128) << 32 | n, 5 << 32 | host, 0), 0);
        }
    }
    let mut under_way = VecDeque::new();
    loop {
        let (taken, more) = lanes.take(2048, 0);
        if taken.is_empty() && !more {
            break;
        }
        for one in &taken {
            lanes.runs(LaneKey::of(one), 0, 0);
        }
        under_way.extend(taken);
    }
    let before = lanes.looks();
    for _ in 0..10_000 {
        let ended = under_way.pop_front().expect("one under way");
        finish_quickly(&mut lanes, &ended);
        under_way.extend(lanes.take(256, 0).0);
    }
    assert!(lanes.looks() - before <= 4 * 10_000, "{} looks", lanes.looks() - before);
}

fn finish_quickly(lanes: &mut Lanes, taken: &Pointer) {
    let _ = lanes.acquire(LaneKey::of(taken));
    lanes.attempt_ended(LaneKey::of(taken), AttemptEnd::Answered, 0);
    lanes.recorded(&taken.uid, 0);
}

#[test]
fn idle_lanes_are_forgotten_after_a_while_or_when_there_are_too_many() {
    let mut lanes = proven(1000, 100, 0..10);
    let known = |lanes: &Lanes| lanes.states().idle;
    attempt(&mut lanes, 3, AttemptEnd::Answered, KEEP_IDLE_MS / 2);
    for n in 0..20 {
        attempt(&mut lanes, 100, AttemptEnd::Answered, KEEP_IDLE_MS + n);
    }
    assert_eq!(known(&lanes), 2, "the one that was used meanwhile, and the new one");
    let mut lanes = proven(1000, 100, 0..MAX_IDLE_LANES as i64 + 100);
    assert!(known(&lanes) <= MAX_IDLE_LANES + 1, "{}", known(&lanes));
    attempt(&mut lanes, 1 << 40, AttemptEnd::Answered, 1);
    lanes.check();
}

#[test]
fn counts_stay_true_whatever_happens() {
    use rand::{Rng, SeedableRng};
    for seed in 0..6 {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
        let mut lanes = Lanes::new(60, 12);
        let (mut now_ms, mut n) = (0, 0_u128);
        let mut under_way: Vec<(Pointer, bool)> = Vec::new();
        let mut unrecorded: Vec<Uid> = Vec::new();
        for _ in 0..3000 {
            now_ms += rng.random_range(0..40);
            match rng.random_range(0..100) {
                0..45 => {
                    n += 1;
                    let lane = rng.random_range(0..3) << 32 | rng.random_range(0..5);
                    let id = if rng.random_ratio(1, 10) { rng.random_range(0..n) } else { n };
                    let due = Pointer {
                        wake_at: UnixMs::new(now_ms - rng.random_range(0..500)),
                        generation: Generation(rng.random_range(1..3)),
                        overdue: rng.random_ratio(1, 5),
                        via: if rng.random_ratio(1, 4) { Via::Sweep } else { Via::Loader },
                        ..pointer(id, lane, i32::from(rng.random_ratio(1, 4)))
                    };
                    lanes.offer(due, now_ms);
                }
                45..60 => under_way.extend(lanes.take(10, now_ms).0.into_iter().map(|one| (one, false))),
                60..90 if !under_way.is_empty() => {
                    let (one, _) = under_way.swap_remove(rng.random_range(0..under_way.len()));
                    match rng.random_range(0..10) {
                        0 => lanes.claim_dropped(&one, now_ms),
                        1 => {
                            lanes.free_claim(LaneKey::of(&one), now_ms);
                            unrecorded.push(one.uid);
                        }
                        how => {
                            let end = match how {
                                2..6 => AttemptEnd::Answered,
                                6 => AttemptEnd::NoAnswer,
                                7..9 => AttemptEnd::NotReached,
                                _ => AttemptEnd::NotSent,
                            };
                            drop(lanes.acquire(LaneKey::of(&one)));
                            lanes.attempt_ended(LaneKey::of(&one), end, now_ms);
                            unrecorded.push(one.uid);
                        }
                    }
                }
                90..99 if !unrecorded.is_empty() => {
                    lanes.recorded(&unrecorded.swap_remove(0), now_ms);
                }
                99 if rng.random_ratio(1, 20) => lanes.clear(),
                _ => {}
            }
            lanes.check();
        }
        // Whatever waits is taken in the end: no lane is left in a corner.
        for _ in 0..10_000 {
            now_ms += 100;
            under_way.extend(lanes.take(100, now_ms).0.into_iter().map(|one| (one, false)));
            for (one, _) in std::mem::take(&mut under_way) {
                drop(lanes.acquire(LaneKey::of(&one)));
                lanes.attempt_ended(LaneKey::of(&one), AttemptEnd::Answered, now_ms);
                unrecorded.push(one.uid);
            }
            for uid in std::mem::take(&mut unrecorded) {
                lanes.recorded(&uid, now_ms);
            }
            lanes.check();
            if lanes.queued() == 0 {
                break;
            }
        }
        assert_eq!((lanes.queued(), lanes.in_flight()), (0, 0), "seed {seed}");
    }
}

impl Lanes {
    fn looks(&self) -> u64 {
        self.turns.looks
    }

    /// Every count is what it counts.
    fn check(&self) {
        if self.lanes.len() > 60 {
            return;
        }
        let sum = |count: fn(&Lane) -> usize| self.lanes.values().map(count).sum::<usize>();
        assert_eq!(self.queued, sum(|lane| lane.queue.len()));
        assert_eq!(self.queued, self.ages.values().sum::<usize>());
        assert_eq!(self.lanes_queued, sum(|lane| usize::from(!lane.queue.is_empty())));
        assert_eq!(self.in_flight(), sum(|lane| lane.in_flight));
        assert_eq!(self.forgettable.len(), self.lanes.len());
        let backlogs =
            self.backlogged.iter().map(|(key, one)| self.lanes[key].queue.len_of(*one)).sum::<usize>();
        assert_eq!(self.queued_in_backlogs, backlogs);
        let (mut states, mut by_standing) = (States::default(), [0; 3]);
        let mut groups: HashMap<u32, usize> = HashMap::new();
        for (lane, receiver) in &self.receivers {
            let own = || self.lanes.iter().filter(|(key, _)| key.lane == *lane).map(|(_, lane)| lane);
            assert_eq!(receiver.waiting, own().map(|lane| lane.queue.len()).sum::<usize>());
            assert_eq!(receiver.in_flight, own().map(|lane| lane.in_flight).sum::<usize>());
            assert_eq!(usize::from(receiver.lanes), own().count());
            *states.of(receiver.load()) += 1;
            by_standing[receiver.standing() as usize] += receiver.in_flight;
            if receiver.standing() != Standing::Proven {
                *groups.entry(group_of(*lane)).or_default() += receiver.in_flight;
            }
        }
        groups.retain(|_, in_flight| *in_flight > 0);
        assert_eq!((self.states, self.by_standing), (states, by_standing));
        assert_eq!(self.turns.groups.counts(), groups);
    }
}

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

fn terms(lane: i64, terms: Terms) -> HashMap<i64, Terms> {
    HashMap::from([(lane, terms)])
}

const PLAIN: Terms = Terms { concurrency: None, step_us: None, held: false };

#[test]
fn a_lane_that_is_held_queues_nothing_and_the_sweep_looks_again_when_it_is_not() {
    let mut lanes = proven(100, 10, [1, 2]);
    for n in 0..20 {
        lanes.offer(pointer(n, 1, 0), 0);
    }
    let cleared = lanes.backlogs_cleared();
    lanes.set_terms(terms(1, Terms { held: true, ..PLAIN }), 0);
    lanes.check();
    assert_eq!((lanes.queued(), lanes.held().collect::<Vec<_>>()), (0, vec![1]));
    assert_eq!(lanes.offer(pointer(50, 1, 0), 0), Offer::Held);
    assert_eq!(lanes.offer(pointer(51, 2, 0), 0), Offer::Queued);
    assert_eq!(lanes.backlogs_cleared(), cleared);
    lanes.set_terms(terms(1, PLAIN), 0);
    assert_eq!(lanes.backlogs_cleared(), cleared + 1);
    assert_eq!(lanes.offer(pointer(50, 1, 0), 0), Offer::Queued);
    lanes.check();
}

#[test]
fn a_lane_with_a_rate_hands_out_as_many_as_it_has_slots() {
    let mut lanes = proven(100, 10, [1]);
    lanes.set_terms(terms(1, Terms { step_us: Some(20_000), ..PLAIN }), 0);
    for n in 0..30 {
        lanes.offer(pointer(n, 1, 0), 1000);
    }
    assert!(take_at(&mut lanes, 100, 1000).is_empty(), "no slot yet");
    assert!(lanes.needs_slots());
    let wanted = lanes.wanted_slots();
    assert_eq!(wanted, [(1, 12, 20_000)], "a quarter of a second");
    lanes.grant_slots(1, 1_060_000, 12, 20_000, 1000);
    assert!(take_at(&mut lanes, 100, 1000).is_empty(), "the first comes up in 60 ms");
    assert_eq!(lanes.next_trial_ms(), Some(1010));
    let taken = take_at(&mut lanes, 100, 1030);
    assert_eq!(taken.len(), 2);
    assert_eq!(
        taken.iter().map(|one| lanes.slot_of(&one.uid)).collect::<Vec<_>>(),
        [Some(1_060_000), Some(1_080_000)]
    );
    lanes.check();
}

#[test]
fn a_destination_that_refuses_again_and_again_is_tried_singly() {
    let mut lanes = Lanes::new(100, 10);
    lanes.set_terms(terms(1, PLAIN), 0);
    // Lane 2 is no destination's.
    for lane in [1, 2] {
        for n in 0..5 {
            attempt(&mut lanes, lane, AttemptEnd::Refused, n);
        }
        for n in 0..10 {
            lanes.offer(pointer(n + 100 * lane as u128, lane, 0), 10);
        }
    }
    let taken = take_at(&mut lanes, 100, 10);
    assert!(taken.iter().all(|one| one.lane == 2) && taken.len() == 10);
    let trial = take_at(&mut lanes, 100, 200);
    assert_eq!(trial.len(), 1, "one at a time");
    finish(&mut lanes, &trial[0], AttemptEnd::Answered, 201);
    assert_eq!(take_at(&mut lanes, 100, 202).len(), 9, "it is well again");
}

#[test]
fn a_concurrency_of_its_own_holds_for_one_lane() {
    let mut lanes = proven(1000, 100, [1, 2]);
    lanes.set_terms(terms(1, Terms { concurrency: Some(2), ..PLAIN }), 0);
    for n in 0..40 {
        lanes.offer(pointer(n, 1 + (n % 2) as i64, 0), 0);
    }
    let taken = take(&mut lanes, 100);
    let permits = taken.iter().filter(|one| lanes.acquire(LaneKey::of(one)).is_none());
    let permits: Vec<i64> = permits.map(|one| one.lane).collect();
    let of = |lane| permits.iter().filter(|one| **one == lane).count();
    assert_eq!((of(1), of(2)), (2, 17), "the other has one more than a new lane");
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

#[test]
fn a_concurrency_of_its_own_holds_for_all_classes_together() {
    let mut lanes = proven(1000, 100, [1]);
    lanes.set_terms(terms(1, Terms { concurrency: Some(2), ..PLAIN }), 0);
    for n in 0..3 {
        lanes.offer(pointer(n, 1, 0), 0);
        lanes.offer(pointer(100 + n, 1, 1), 0);
    }
    let taken = take(&mut lanes, 100);
    let mut waiting = Vec::new();
    let mut sending = Vec::new();
    for one in &taken {
        match lanes.acquire(LaneKey::of(one)) {
            None => sending.push(*one),
            Some(granted) => waiting.push((*one, granted)),
        }
    }
    assert_eq!(sending.len(), 2);
    lanes.attempt_ended(LaneKey::of(&sending[0]), AttemptEnd::Answered, 1);
    let granted = waiting.iter_mut().filter_map(|(_, granted)| granted.try_recv().ok()).count();
    assert_eq!(granted, 1, "one for one that ended");
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

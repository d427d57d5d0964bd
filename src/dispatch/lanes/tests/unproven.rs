//! Receivers of which nothing is known, and such as cannot be reached.

use super::super::lane::MIN_CAPACITY;
use super::super::receiver::{FIRST_TRIAL_MS, LONGEST_TRIAL_MS};
use super::*;

#[test]
fn receivers_that_never_answer_leave_room_for_others() {
    let mut lanes = Lanes::new(1000, 100);
    for lane in 0..200 {
        for n in 0..100 {
            lanes.offer(pointer(lane * 1000 + n, lane_of_group(lane as i64), 0), 0);
        }
        for taken in take(&mut lanes, 1000) {
            let _ = lanes.acquire(LaneKey::of(&taken));
            lanes.attempt_ended(LaneKey::of(&taken), AttemptEnd::NoAnswer, 60_000);
            lanes.recorded(&taken.uid, 60_000);
        }
    }
    let before = lanes.queued();
    for n in 0..100 {
        lanes.offer(pointer(1_000_000 + n, lane_of_group(77), 0), 60_000);
    }
    assert!(lanes.queued() - before <= MIN_CAPACITY, "a lane whose receiver does not answer queues few");
    assert!(before <= 200 * MIN_CAPACITY, "and so do all of them together: {before}");
}

#[test]
fn a_receiver_that_cannot_be_reached_is_tried_by_one_at_a_time() {
    let mut lanes = proven(1000, 100, [1]);
    for n in 0..80 {
        lanes.offer(pointer(n, 1, i32::from(n % 5 == 0)), 0);
    }
    // Those under way when it goes away, retries among them.
    for taken in take(&mut lanes, 1000) {
        finish(&mut lanes, &taken, AttemptEnd::NotReached, 10);
    }
    let waiting = lanes.queued();
    assert!(waiting >= 10, "those that were not claimed before wait: {waiting}");
    for n in 200..240 {
        assert_eq!(lanes.offer(pointer(n, 1, 0), 10), Offer::Queued);
    }
    let mut trials = Vec::new();
    for now_ms in 10..15_000 {
        let taken = take_at(&mut lanes, 1000, now_ms);
        assert!(taken.len() <= 1);
        if !taken.is_empty() {
            assert!(take_at(&mut lanes, 1000, now_ms).is_empty(), "one at a time");
            trials.push(now_ms);
            assert_eq!(lanes.next_trial_ms(), None, "the end of the trial decides when the next is");
        }
        taken.iter().for_each(|taken| finish(&mut lanes, taken, AttemptEnd::NotReached, now_ms));
        let next = lanes.next_trial_ms().expect("they wait for a trial");
        assert!(next > now_ms && next <= now_ms + LONGEST_TRIAL_MS);
    }
    let waits: Vec<i64> = trials.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((trials[0], &waits[..6]), (10 + FIRST_TRIAL_MS, &[200, 400, 800, 1000, 1000, 1000][..]));
    let mut now_ms = lanes.next_trial_ms().expect("a trial");
    let trial = take_at(&mut lanes, 1000, now_ms).remove(0);
    finish(&mut lanes, &trial, AttemptEnd::Answered, now_ms);
    let mut left = lanes.queued();
    while left > 0 {
        now_ms += 1;
        let taken = take_at(&mut lanes, 1000, now_ms);
        assert!(taken.len() > 1, "it is back");
        taken.iter().for_each(|taken| finish(&mut lanes, taken, AttemptEnd::Answered, now_ms));
        left = lanes.queued();
    }
}

#[test]
fn one_failed_connection_does_not_close_a_proven_lane() {
    let mut lanes = proven(1000, 100, [1]);
    attempt(&mut lanes, 1, AttemptEnd::NotReached, 0);
    attempt(&mut lanes, 1, AttemptEnd::NotReached, 1);
    attempt(&mut lanes, 1, AttemptEnd::Answered, 2);
    attempt(&mut lanes, 1, AttemptEnd::NotReached, 3);
    for n in 0..10 {
        lanes.offer(pointer(n, 1, 0), 3);
    }
    assert_eq!(take_at(&mut lanes, 100, 3).len(), 10);
}

#[test]
fn receivers_of_which_nothing_is_known_leave_room_for_proven_ones() {
    let mut lanes = proven(1000, 100, [lane_of_group(7)]);
    // Half of them did not answer before.
    (1000..1500).for_each(|group| attempt(&mut lanes, lane_of_group(group), AttemptEnd::NoAnswer, 0));
    for group in 1000..2000 {
        for n in 0..10 {
            lanes.offer(pointer((group as u128) << 32 | n, lane_of_group(group), 0), 0);
        }
    }
    let taken: Vec<Pointer> = (0..20).flat_map(|_| take(&mut lanes, 256)).collect();
    let doubtful = taken.iter().filter(|one| one.lane < lane_of_group(1500)).count();
    assert_eq!(taken.len(), 500, "half of the node");
    assert!((100..=250).contains(&doubtful), "at most a quarter for those that do not answer: {doubtful}");
    for n in 0..50 {
        lanes.offer(pointer(n, lane_of_group(7), 0), 1);
    }
    let of_proven =
        (0..4).flat_map(|_| take_at(&mut lanes, 256, 1)).filter(|one| one.lane == lane_of_group(7));
    assert!(of_proven.count() >= INITIAL_LIMIT, "the proven one has its turn");
}

#[test]
fn a_crowd_of_new_receivers_is_as_large_as_the_processor_bears() {
    let mut lanes = proven(1600, 100, [lane_of_group(7)]);
    let crowd = |lanes: &mut Lanes| {
        for group in 1000..4000 {
            let id = (group as u128) << 32 | 1 << 100;
            assert_eq!(lanes.offer(pointer(id, lane_of_group(group), 0), 0), Offer::Queued);
        }
    };
    crowd(&mut lanes);
    let mut under_way = take(&mut lanes, 1600);
    assert_eq!(under_way.len(), 100, "a sixteenth at first");
    under_way.extend(take(&mut lanes, 1600));
    assert_eq!(under_way.len(), 200, "as many again, as they ran at once");
    for _ in 0..10 {
        under_way.extend(take(&mut lanes, 1600));
    }
    assert_eq!(under_way.len(), 800, "half of the node");
    let runs =
        |lanes: &mut Lanes, waited_ms, now_ms| lanes.runs(LaneKey::of(&under_way[0]), waited_ms, now_ms);
    // Those that were claimed together tell the same.
    assert!(!(0..50).any(|_| runs(&mut lanes, 300, 1000)));
    assert!(!runs(&mut lanes, 300, 1299));
    assert_eq!(lanes.newcomers.limit(), 400);
    assert!(!runs(&mut lanes, 300, 1300));
    assert_eq!(lanes.newcomers.limit(), 200);
    assert!(!(2..9).any(|n| runs(&mut lanes, 300, 1000 * n)));
    assert_eq!(lanes.newcomers.limit(), 100, "never none");
    // A proven one has its turn all the same, and its attempts say nothing.
    lanes.offer(pointer(1, lane_of_group(7), 0), 0);
    let [of_proven] = take(&mut lanes, 1600)[..] else { panic!("one is taken") };
    assert!(!lanes.runs(LaneKey::of(&of_proven), 0, 10_000));
    let left = under_way.split_off(701);
    under_way.iter().for_each(|ended| finish(&mut lanes, ended, AttemptEnd::Answered, 10_000));
    assert_eq!(take(&mut lanes, 1600).len(), 1, "there is room for one again");
    left.iter().for_each(|ended| finish(&mut lanes, ended, AttemptEnd::Answered, 10_000));
}

#[test]
fn one_host_or_domain_takes_an_eighth_until_its_receivers_are_proven() {
    let mut lanes = Lanes::new(800, 100);
    for host in 0..200 {
        for n in 0..3 {
            lanes.offer(pointer((host as u128) << 32 | n, 9 << 32 | host, 0), 0);
        }
    }
    lanes.offer(pointer(u128::MAX, lane_of_group(10), 0), 0);
    let mut under_way: VecDeque<Pointer> = (0..5).flat_map(|_| take(&mut lanes, 256)).collect();
    assert_eq!(under_way.len(), 101, "an eighth, and the other group's");
    let mut ended = 0;
    while let Some(taken) = under_way.pop_front() {
        finish(&mut lanes, &taken, AttemptEnd::Answered, 1);
        ended += 1;
        under_way.extend(take_at(&mut lanes, 256, 1));
    }
    assert_eq!((ended, lanes.queued()), (601, 0), "all had their turn");
}

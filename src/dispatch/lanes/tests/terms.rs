//! Lanes of destinations: held, with a rate, with a concurrency of their own.

use super::*;

pub(super) fn terms(lane: i64, terms: Terms) -> HashMap<i64, Terms> {
    HashMap::from([(lane, terms)])
}

pub(super) const PLAIN: Terms = Terms { concurrency: None, step_us: None, held: false };

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

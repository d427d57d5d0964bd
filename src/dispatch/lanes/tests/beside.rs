//! Events beside firings: what a destination bears holds for both together, and firings go first.

use super::super::turns::SLOT_LEAD_MS;
use super::terms::{PLAIN, terms};
use super::*;

/// The lane of the destination, and that of its first attempts.
const LANE: i64 = 1;
const KEY: LaneKey = LaneKey { lane: LANE, class: Class::First };

const fn at_once(concurrency: usize) -> Terms {
    Terms { concurrency: Some(concurrency), ..PLAIN }
}

/// Lanes with a destination that bears this; timers have fired there if it is proven.
fn with(agreed: &Terms, is_proven: bool) -> Lanes {
    let mut lanes = proven(100, 10, is_proven.then_some(LANE));
    lanes.set_terms(terms(LANE, agreed.clone()), 0);
    lanes
}

/// How many events get a place of those that want one.
fn granted(lanes: &mut Lanes, agreed: &Terms, wanted: usize) -> usize {
    lanes.take_beside(LANE, agreed, wanted, wanted, 0).slots.len()
}

#[test]
fn all_events_at_a_destination_share_its_places() {
    for (agreed, all) in [(at_once(3), 3), (PLAIN, 10)] {
        let mut lanes = with(&agreed, false);
        let first = lanes.take_beside(LANE, &agreed, 2, 2, 0);
        assert_eq!((first.slots, first.is_crowded), (vec![None; 2], false));
        let second = lanes.take_beside(LANE, &agreed, 50, 50, 0);
        assert_eq!((second.slots.len(), second.is_crowded), (all - 2, true), "what the first leaves");
        assert_eq!(granted(&mut lanes, &agreed, 1), 0);
        assert!(!lanes.end_beside(LANE, 0), "no timer waits");
        assert_eq!(granted(&mut lanes, &agreed, 50), 1);
    }
}

#[test]
fn events_get_no_place_that_a_timer_could_have() {
    let agreed = at_once(4);
    let mut lanes = with(&agreed, true);
    assert_eq!(granted(&mut lanes, &agreed, 50), 3, "one is left to timers");
    for n in 0..2 {
        lanes.offer(pointer(n, LANE, 0), 0);
    }
    assert!(lanes.end_beside(LANE, 0));
    assert_eq!(granted(&mut lanes, &agreed, 50), 0, "timers wait");
    assert_eq!(take(&mut lanes, 10).len(), 2);
    assert!(lanes.acquire(KEY).is_none() && lanes.acquire(KEY).is_none());
    assert_eq!(granted(&mut lanes, &agreed, 50), 0, "two attempts and two events");
    lanes.attempt_ended(KEY, AttemptEnd::Answered, 0);
    assert_eq!(granted(&mut lanes, &agreed, 50), 1);
}

#[test]
fn an_attempt_waits_for_the_place_of_an_event_and_has_it_then() {
    let agreed = at_once(2);
    let mut lanes = with(&agreed, false);
    assert_eq!(granted(&mut lanes, &agreed, 50), 2, "no timer fires here");
    lanes.offer(pointer(1, LANE, 0), 0);
    assert!(take(&mut lanes, 10).is_empty(), "it is not claimed in vain");
    assert!(lanes.end_beside(LANE, 0), "a timer waits");
    assert_eq!(take(&mut lanes, 10).len(), 1);
    assert!(lanes.acquire(KEY).is_none());
    // One that was claimed ahead waits for its permit.
    lanes.offer(pointer(2, LANE, 0), 0);
    let mut permit = lanes.acquire(KEY).expect("none is free");
    assert!(permit.try_recv().is_err());
    lanes.end_beside(LANE, 0);
    assert!(permit.try_recv().is_ok());
}

#[test]
fn nothing_is_sent_by_terms_that_do_not_hold() {
    let held = Terms { held: true, ..PLAIN };
    let mut lanes = with(&held, false);
    assert_eq!([held, at_once(9)].map(|terms| granted(&mut lanes, &terms, 5)), [0, 0]);
    // Not even without any.
    lanes.set_terms(HashMap::new(), 0);
    assert_eq!(granted(&mut lanes, &PLAIN, 5), 0);
}

/// At one a second: all events together reserve one slot, and a timer that comes up before it has it.
#[test]
fn there_is_one_reservation_and_a_timer_goes_first() {
    const SECOND_US: i64 = 1_000_000;
    let agreed = Terms { step_us: Some(SECOND_US), ..PLAIN };
    let mut lanes = with(&agreed, true);
    let events = |lanes: &mut Lanes, now_ms| lanes.take_beside(LANE, &agreed, 500, 500, now_ms).slots;
    assert_eq!(events(&mut lanes, 1000), [], "no slot yet");
    assert_eq!(events(&mut lanes, 1000), []);
    assert!(lanes.needs_slots());
    assert_eq!(lanes.wanted_slots(), [(LANE, 1, SECOND_US)]);
    lanes.grant_slots(LANE, 1_900_000, 1, SECOND_US, 1000);
    assert_eq!(events(&mut lanes, 1100), [], "its time has not come");
    assert!(lanes.wanted_slots().is_empty(), "one at a time");
    lanes.offer(pointer(7, LANE, 0), 1800);
    let at_ms = 1900 - SLOT_LEAD_MS;
    assert_eq!(events(&mut lanes, at_ms), []);
    let taken = take_at(&mut lanes, 10, at_ms);
    assert_eq!(taken.iter().map(|one| lanes.slot_of(&one.uid)).collect::<Vec<_>>(), [Some(1_900_000)]);
    // The next one is an event's, if no timer comes.
    assert_eq!(events(&mut lanes, 1900), []);
    assert_eq!(lanes.wanted_slots(), [(LANE, 1, SECOND_US)]);
    lanes.grant_slots(LANE, 2_900_000, 1, SECOND_US, 1950);
    assert_eq!(events(&mut lanes, 2880), [Some(2_900_000)]);
}

/// Whatever begins and ends in which order: never more at once than agreed, and whatever waits is sent in the end.
#[test]
fn no_more_is_under_way_than_is_agreed() {
    use rand::{Rng, SeedableRng};
    for seed in 0..40 {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
        let most = rng.random_range(1..6);
        let agreed = at_once(most);
        let mut lanes = with(&agreed, rng.random());
        let (mut events, mut sending) = (0, Vec::new());
        let mut waiting: Vec<(Pointer, oneshot::Receiver<()>)> = Vec::new();
        let (mut now_ms, mut left) = (0, 400_u128);
        while left > 0 || lanes.queued() > 0 || !waiting.is_empty() || !sending.is_empty() || events > 0 {
            now_ms += rng.random_range(0..20);
            assert!(now_ms < 1_000_000, "seed {seed}: what waits is not sent");
            match rng.random_range(0..10) {
                0..3 if left > 0 => {
                    left -= 1;
                    lanes.offer(pointer(left, LANE, i32::from(rng.random_ratio(1, 4))), now_ms);
                }
                3..5 => {
                    for one in lanes.take(10, now_ms).0 {
                        match lanes.acquire(LaneKey::of(&one)) {
                            None => sending.push(one),
                            Some(permit) => waiting.push((one, permit)),
                        }
                    }
                }
                5..7 if left > 0 => events += granted(&mut lanes, &agreed, rng.random_range(1..8)),
                7..9 if events > 0 => {
                    events -= 1;
                    lanes.end_beside(LANE, now_ms);
                }
                _ if !sending.is_empty() => {
                    let one = sending.swap_remove(rng.random_range(0..sending.len()));
                    lanes.attempt_ended(LaneKey::of(&one), AttemptEnd::Answered, now_ms);
                    lanes.recorded(&one.uid, now_ms);
                }
                _ => {}
            }
            waiting.retain_mut(|(one, permit)| {
                let is_granted = permit.try_recv().is_ok();
                if is_granted {
                    sending.push(*one);
                }
                !is_granted
            });
            assert!(sending.len() + events <= most, "seed {seed}: {} and {events}", sending.len());
            lanes.check();
        }
    }
}

//! Timers in hand, and pointers to timers that are known already.

use super::*;

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

//! Namespaces: whose turn it is, and what one that takes all it can leaves to others.

use super::*;

const A: Namespace = Namespace(1);
const B: Namespace = Namespace(2);

fn of(namespace: Namespace, n: u128, lane: i64) -> Pointer {
    Pointer { namespace, ..pointer(n, lane, 0) }
}

/// Offers so many pointers of a namespace, to each of these receivers in turn.
fn flood(lanes: &mut Lanes, namespace: Namespace, receivers: &[i64], count: u128) -> usize {
    let offers = (0..count).map(|n| {
        let lane = receivers[n as usize % receivers.len()];
        lanes.offer(of(namespace, (namespace.0 as u128) << 64 | n, lane), 0)
    });
    offers.filter(|offer| *offer == Offer::Queued).count()
}

/// Receivers that have answered often, each of this namespace.
fn known(lanes: &mut Lanes, namespace: Namespace, receivers: &[i64]) {
    for lane in receivers {
        for n in 0..200 {
            let id = (*lane as u128) << 64 | n | 1 << 120;
            assert_eq!(lanes.offer(of(namespace, id, *lane), 0), Offer::Queued);
            let taken = take(lanes, 1).remove(0);
            finish(lanes, &taken, AttemptEnd::Answered, 0);
        }
    }
}

fn count_of(namespace: Namespace, taken: &[Pointer]) -> usize {
    taken.iter().filter(|one| one.namespace == namespace).count()
}

#[test]
fn a_namespace_with_many_receivers_gets_no_more_turns_than_one_with_a_single_one() {
    let mut lanes = Lanes::new(10_000, 1000);
    let many: Vec<i64> = (1..=40).collect();
    known(&mut lanes, A, &many);
    known(&mut lanes, B, &[100]);
    flood(&mut lanes, A, &many, 2000);
    flood(&mut lanes, B, &[100], 64);
    let taken = take(&mut lanes, 128);
    assert_eq!((count_of(A, &taken), count_of(B, &taken)), (64, 64));
    // One that has nothing left leaves its turns to the other.
    assert_eq!(count_of(A, &take(&mut lanes, 128)), 128);
}

#[test]
fn lanes_with_one_pointer_each_count_like_one_with_many() {
    let mut lanes = Lanes::new(10_000, 1000);
    let many: Vec<i64> = (1..=200).collect();
    known(&mut lanes, A, &many);
    known(&mut lanes, B, &[1000]);
    flood(&mut lanes, A, &many, 200);
    flood(&mut lanes, B, &[1000], 64);
    let taken = take(&mut lanes, 96);
    assert_eq!((count_of(A, &taken), count_of(B, &taken)), (48, 48));
}

#[test]
fn receivers_that_hang_leave_places_for_other_namespaces() {
    let mut lanes = Lanes::new(320, 1000);
    let many: Vec<i64> = (1..=10).collect();
    known(&mut lanes, A, &many);
    // It has the node to itself.
    flood(&mut lanes, A, &many, 600);
    let mut of_a = take(&mut lanes, 1000);
    assert_eq!(of_a.len(), 320);
    // Another one has come: what the first has beyond its share ends first.
    flood(&mut lanes, B, &[100], 1);
    assert_eq!(take(&mut lanes, 1000), [], "there is no place");
    for ended in of_a.drain(..20) {
        finish(&mut lanes, &ended, AttemptEnd::Answered, 0);
    }
    let taken = take(&mut lanes, 1000);
    assert_eq!((count_of(A, &taken), count_of(B, &taken)), (0, 1), "{taken:?}");
    assert_eq!(lanes.shares.of(A).in_flight.iter().sum::<usize>(), 300);
    // It goes on when there is room for it as well.
    for ended in of_a.drain(..20) {
        finish(&mut lanes, &ended, AttemptEnd::Answered, 0);
    }
    let taken = take(&mut lanes, 1000);
    let free = 320 - lanes.in_flight();
    assert!(!taken.is_empty() && (19..=21).contains(&free), "{} taken, {free} free", taken.len());
}

/// Takes all that there is room for.
fn take_all(lanes: &mut Lanes) -> Vec<Pointer> {
    let mut all = Vec::new();
    loop {
        let taken = take(lanes, 1000);
        if taken.is_empty() {
            return all;
        }
        all.extend(taken);
    }
}

#[test]
fn new_receivers_that_hang_leave_room_for_new_ones_of_other_namespaces() {
    let mut lanes = Lanes::new(320, 1000);
    known(&mut lanes, B, &[100]);
    let many: Vec<i64> = (1..=40).map(lane_of_group).collect();
    flood(&mut lanes, A, &many, 1000);
    let of_a = take_all(&mut lanes);
    assert!((145..=151).contains(&of_a.len()), "{} of the 160 that new ones may have", of_a.len());
    flood(&mut lanes, B, &[lane_of_group(50)], 4);
    assert_eq!(count_of(B, &take_all(&mut lanes)), 4);
    // Without an answer they are doubtful, and there are new ones beside them.
    for hung in &of_a {
        finish(&mut lanes, hung, AttemptEnd::NoAnswer, 0);
    }
    let of_a = take_all(&mut lanes).len();
    assert!(of_a >= 140, "{of_a}");
    for n in 0..3 {
        lanes.offer(of(B, 1 << 110 | n, lane_of_group(51)), 0);
    }
    assert_eq!(count_of(B, &take_all(&mut lanes)), 3);
}

#[test]
fn retries_of_a_namespace_leave_room_for_those_of_others() {
    let mut lanes = Lanes::new(320, 1000);
    let many: Vec<i64> = (1..=10).collect();
    known(&mut lanes, A, &many);
    known(&mut lanes, B, &[100]);
    let again = |namespace, n: u128, lane| Pointer { attempt: 1, ..of(namespace, 1 << 100 | n, lane) };
    for n in 0..300 {
        lanes.offer(again(A, n, many[n as usize % many.len()]), 0);
    }
    let of_a = take_all(&mut lanes);
    assert!((72..=76).contains(&of_a.len()), "{} of the eighty of retries", of_a.len());
    lanes.offer(again(B, 1 << 64, 100), 0);
    assert_eq!(count_of(B, &take_all(&mut lanes)), 1);
}

#[test]
fn on_a_node_with_few_places_the_last_one_is_left_for_who_has_none() {
    let mut lanes = Lanes::new(8, 8);
    known(&mut lanes, A, &[1]);
    known(&mut lanes, B, &[2]);
    flood(&mut lanes, A, &[1], 20);
    assert_eq!(take_all(&mut lanes).len(), 7);
    flood(&mut lanes, B, &[2], 2);
    assert_eq!(count_of(B, &take_all(&mut lanes)), 1);
}

#[test]
fn a_namespace_leaves_room_in_the_queues() {
    let mut lanes = Lanes::new(16, 16);
    // Of each receiver a few: no lane is long.
    let many: Vec<i64> = (1..=12_000).collect();
    lanes.offer(of(B, 1, -1), 0);
    let queued = flood(&mut lanes, A, &many, 12_000 * 60);
    let left = MAX_QUEUED - 1 - queued;
    assert!((MAX_QUEUED / 17..=MAX_QUEUED / 15).contains(&left), "{left} of {MAX_QUEUED} are left");
    assert_eq!(flood(&mut lanes, B, &(20_000..20_100).collect::<Vec<_>>(), 5000), 5000);
}

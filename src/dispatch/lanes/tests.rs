//! What the rules of lanes share, and rules about all of them together.

mod beside;
mod in_hand;
mod namespaces;
mod priorities;
mod queues;
mod room;
mod terms;
mod unproven;

use super::shares::Held;
use super::*;
use crate::model::id::Generation;
use crate::model::namespace::Namespace;
use crate::model::priority::Priority;
use crate::model::time::UnixMs;
use uuid::Uuid;

fn pointer(n: u128, lane: i64, attempt: i32) -> Pointer {
    Pointer {
        uid: Uid(Uuid::from_u128(n)),
        shard: 0,
        namespace: Namespace::OWN,
        generation: Generation(1),
        attempt,
        wake_at: UnixMs::new(0),
        lane,
        minute: false,
        is_for_queue: false,
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

fn finish_quickly(lanes: &mut Lanes, taken: &Pointer) {
    let _ = lanes.acquire(LaneKey::of(taken));
    lanes.attempt_ended(LaneKey::of(taken), AttemptEnd::Answered, 0);
    lanes.recorded(&taken.uid, 0);
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
        assert_eq!(self.queued, self.ages.count());
        assert_eq!(self.lanes_queued, sum(|lane| usize::from(!lane.queue.is_empty())));
        assert_eq!(self.in_flight(), sum(|lane| lane.in_flight));
        assert_eq!(self.forgettable.len(), self.lanes.len());
        let backlogs = self.backlogged().map(|(key, one)| self.lanes[&key].queue.len_of(one)).sum::<usize>();
        assert_eq!(self.backlogs.queued, backlogs);
        let mut held: HashMap<Namespace, Held> = HashMap::new();
        for lane in self.lanes.values() {
            let held = held.entry(lane.namespace).or_default();
            held.lanes += 1;
            held.queued += lane.queue.len();
        }
        for (key, lane) in &self.lanes {
            let held = held.entry(lane.namespace).or_default();
            held.in_flight[key.class as usize] += lane.in_flight;
        }
        for receiver in self.receivers.values() {
            let held = held.entry(receiver.namespace).or_default();
            held.by_standing[receiver.standing() as usize] += receiver.in_flight;
        }
        assert_eq!(*self.shares.all(), held);
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
                        // A lane is one namespace's.
                        namespace: Namespace((lane & 1) as i16),
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

//! A seeded simulation of whole nodes: loader, ticker, sweep, replay, ownership, dispatch and claim, with
//! time, chance and order in one hand.
//!
//! Two or three nodes run in one thread, on one SQLite file and one in-process wheel that they share as if it
//! were Redis. Every statement and every call of the wheels passes a gate ([`gate`]) at which it may be held
//! while others go on, fail, lose its answer, come twice, or be the last that its process does. A scheduler
//! ([`schedule`]) picks what happens next from the seed, and nothing else: one seed is one run, and a seed that
//! fails fails again. What clients and receivers saw is held against the promises ([`book`]).
//!
//! What it does not show: real concurrency inside a database (SQLite has one writer), clocks that disagree,
//! Redis's own scripts, HTTP.

mod book;
mod clients;
mod events;
mod faults;
mod gate;
mod ground;
mod lives;
mod node;
mod nominal;
mod operations;
mod operators;
mod places;
mod planners;
mod receiver;
mod run;
mod schedule;
mod wheels;
mod workers;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use faults::Kind;
use mainspring::planted::Defect;
use run::Play;
use world::Watch;

/// Where the seeds begin.
const FIRST: u64 = 1;

/// A run that fails tells how it came to that.
const BRIEF: Watch = Watch { told: 400, hasty: false };

fn long() -> bool {
    std::env::var_os("MAINSPRING_TEST_LONG").is_some()
}

/// Webhooks alone.
const QUIET: Play = Play {
    planted: None,
    sends_events: false,
    has_queue: false,
    has_pauses: false,
    has_schedules: false,
    has_operations: false,
};

/// Nodes send the lifecycle events, too.
const WITH_EVENTS: Play = Play { sends_events: true, ..QUIET };

/// Some timers are for workers.
const WITH_QUEUE: Play = Play { has_queue: true, ..QUIET };

/// Beside that clients pause timers and resume them.
const WITH_PAUSES: Play = Play { has_pauses: true, ..WITH_QUEUE };

/// Beside timers there are schedules.
const WITH_SCHEDULES: Play = Play { has_schedules: true, ..QUIET };

/// Beside timers for receivers and for workers there are operations on many of them.
const WITH_OPERATIONS: Play = Play { has_operations: true, ..WITH_QUEUE };

/// Runs these seeds until one fails; that one, and why.
fn first_wrong(seeds: &[u64], play: Play) -> Option<(u64, String, String)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let found: std::sync::Mutex<Vec<(u64, String, String)>> = std::sync::Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if !found.lock().expect("plain").is_empty() {
                        return;
                    }
                    let verdict = ground::run(seed, play, BRIEF);
                    if let Some(what) = verdict.wrong {
                        found.lock().expect("plain").push((seed, what, verdict.trace));
                    }
                }
            });
        }
    });
    found.into_inner().expect("plain").into_iter().min_by_key(|(seed, ..)| *seed)
}

fn fail(seed: u64, what: &str, tail: &str) -> ! {
    panic!(
        "seed {seed}: {what}\nto see it again: MAINSPRING_SIM_SEED={seed} cargo test --features planted --test it -- \
         sim::one_seed\n{tail}"
    );
}

/// How many seeds to run, unless `MAINSPRING_SIM_SEEDS` says otherwise. They are the same each time, so twice as many show a
/// change little more; `--long` looks for what none of them shows.
fn seeds() -> u64 {
    let told = std::env::var("MAINSPRING_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    told.unwrap_or(if long() { 20_000 } else { 500 })
}

/// Whether this is one of the runs with nodes that send lifecycle events: a tenth of each [`Kind`].
const fn has_events(seed: u64) -> bool {
    (seed / 5).is_multiple_of(10)
}

/// Whether this is one of the runs with a queue: a fifth of each [`Kind`].
const fn has_queue(seed: u64) -> bool {
    matches!((seed / 5) % 10, 2 | 7)
}

/// Whether clients pause timers, too: in half of those.
const fn has_pauses(seed: u64) -> bool {
    (seed / 5) % 10 == 7
}

/// Whether this is one of the runs with schedules: a tenth of each [`Kind`].
const fn has_schedules(seed: u64) -> bool {
    (seed / 5) % 10 == 4
}

/// Whether this is one of the runs with operations on many timers: a tenth of each [`Kind`].
const fn has_operations(seed: u64) -> bool {
    (seed / 5) % 10 == 9
}

/// Every run of these is right.
fn all_are_right(play: Play, is_one: impl Fn(u64) -> bool) {
    let began = mainspring::clock::Monotonic::now();
    let all: Vec<u64> = (FIRST..FIRST + seeds()).filter(|seed| is_one(*seed)).collect();
    if let Some((seed, what, tail)) = first_wrong(&all, play) {
        let how = match play {
            Play { sends_events: true, .. } => "with MAINSPRING_SIM_EVENTS=1: ",
            Play { has_operations: true, .. } => "with MAINSPRING_SIM_QUEUE=1 MAINSPRING_SIM_OPERATIONS=1: ",
            Play { has_pauses: true, .. } => "with MAINSPRING_SIM_QUEUE=1 MAINSPRING_SIM_PAUSES=1: ",
            Play { has_queue: true, .. } => "with MAINSPRING_SIM_QUEUE=1: ",
            Play { has_schedules: true, .. } => "with MAINSPRING_SIM_SCHEDULES=1: ",
            _ => "",
        };
        fail(seed, &format!("{how}{what}"), &tail);
    }
    eprintln!("{} seeds in {:?}", all.len(), began.elapsed());
}

#[test]
fn every_promise_holds_in_every_run() {
    let is_other = |seed| has_events(seed) || has_queue(seed) || has_schedules(seed) || has_operations(seed);
    all_are_right(Play::default(), |seed| !is_other(seed));
}

/// Beside that, workers that fetch what is for a queue, settle it or fail to, get each place as often as they should, and every
/// answer that they get is true.
#[test]
fn every_place_is_settled_once_in_every_run() {
    all_are_right(WITH_QUEUE, |seed| has_queue(seed) && !has_pauses(seed));
}

/// Beside that, nothing is sent and nothing given out of a timer between the answer to its pause and its resume.
#[test]
fn every_pause_holds_in_every_run() {
    all_are_right(WITH_PAUSES, has_pauses);
}

/// Beside that, each nominal time of a schedule makes one occurrence or a recorded skip, whatever happens to its maker, and to
/// the schedule.
#[test]
fn every_nominal_time_is_decided_once_in_every_run() {
    all_are_right(WITH_SCHEDULES, has_schedules);
}

/// Beside that, an operation changes each timer that it takes exactly once, whatever happens to its node, and tells how many;
/// one that was stopped changes nothing more; and nobody else changes anything.
#[test]
fn every_operation_changes_each_timer_once_in_every_run() {
    all_are_right(WITH_OPERATIONS, has_operations);
}

/// Beside that, each lifecycle event is taken, those of one timer in order, and none is sent by a node that does not own its
/// shard.
#[test]
fn every_event_is_told_in_every_run() {
    all_are_right(WITH_EVENTS, has_events);
}

/// Runs the seed that `MAINSPRING_SIM_SEED` names, with the defect that `MAINSPRING_SIM_PLANTED` names, if any, with nodes
/// that send lifecycle events, if `MAINSPRING_SIM_EVENTS` is set, with workers, if `MAINSPRING_SIM_QUEUE` is, with
/// pauses, if `MAINSPRING_SIM_PAUSES` is, with schedules, if `MAINSPRING_SIM_SCHEDULES` is, and with operations, if
/// `MAINSPRING_SIM_OPERATIONS` is. A run that fails tells its last `MAINSPRING_SIM_TOLD` steps.
#[test]
fn one_seed() {
    let seed = std::env::var("MAINSPRING_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(FIRST);
    let planted = std::env::var("MAINSPRING_SIM_PLANTED").ok();
    let planted = planted.map(|name| serde_json::from_value(name.into()).expect("a defect's name"));
    let told = std::env::var("MAINSPRING_SIM_TOLD").ok().and_then(|told| told.parse().ok());
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let (sends_events, has_queue) = (is_set("MAINSPRING_SIM_EVENTS"), is_set("MAINSPRING_SIM_QUEUE"));
    let (has_pauses, has_schedules) = (is_set("MAINSPRING_SIM_PAUSES"), is_set("MAINSPRING_SIM_SCHEDULES"));
    let has_operations = is_set("MAINSPRING_SIM_OPERATIONS");
    let play = Play { planted, sends_events, has_queue, has_pauses, has_schedules, has_operations };
    let verdict = ground::run(seed, play, Watch { told: told.unwrap_or(BRIEF.told), ..BRIEF });
    eprintln!(
        "seed {seed}: {} steps, {} arrivals, {} leases in {} s",
        verdict.steps,
        verdict.arrivals,
        verdict.given,
        verdict.lasted_ms / 1000
    );
    if let Some(what) = verdict.wrong {
        fail(seed, &what, &verdict.trace);
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in FIRST..FIRST + if long() { 200 } else { 12 } {
        let plays = [WITH_EVENTS, Play::default(), WITH_QUEUE, WITH_PAUSES, WITH_SCHEDULES, WITH_OPERATIONS];
        let play = plays[(seed % 6) as usize];
        let run = |hasty| ground::run(seed, play, Watch { told: usize::MAX, hasty });
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| run(false));
            (run(true), one.join().expect("a run does not panic"))
        });
        if (one.digest, one.steps) == (other.digest, other.steps) {
            continue;
        }
        let (one, other) = (one.trace.lines().collect::<Vec<_>>(), other.trace.lines().collect::<Vec<_>>());
        let same = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        let around = |trace: &[&str]| trace[same.saturating_sub(40)..trace.len().min(same + 10)].join("\n");
        panic!("seed {seed} is two runs:\n{}\n-- and --\n{}", around(&one), around(&other));
    }
}

/// The simulation finds this defect within three hundred runs of the kind that can show it, and finds nothing in
/// the same runs without it. `from` is a seed shortly before one that shows it today, so that the search is short.
fn is_found(planted: Defect, kind: Kind, from: u64) {
    is_found_in(Play::default(), planted, kind, from);
}

fn is_found_in(play: Play, planted: Defect, kind: Kind, from: u64) {
    let seeds: Vec<u64> = (from..).filter(|seed| Kind::of(*seed) == kind).take(300).collect();
    let Some((seed, what, _)) = first_wrong(&seeds, Play { planted: Some(planted), ..play }) else {
        panic!("{planted:?} is not found within {} runs", seeds.len());
    };
    let runs = seeds.iter().take_while(|one| **one <= seed).count();
    eprintln!("{planted:?}: found in run {runs}, seed {seed}: {what}");
    if let Some((seed, what, tail)) = first_wrong(&seeds[..runs], play) {
        fail(seed, &what, &tail);
    }
}

#[test]
fn a_loader_that_scans_before_it_raises_is_found() {
    is_found(Defect::NaiveLoader, Kind::Calm, 56);
}

#[test]
fn a_claim_without_generation_is_found() {
    is_found(Defect::ClaimWithoutGeneration, Kind::Calm, FIRST);
}

#[test]
fn a_claim_without_epoch_is_found() {
    is_found(Defect::ClaimWithoutEpoch, Kind::Nodes, 148);
}

#[test]
fn a_result_without_token_is_found() {
    is_found(Defect::ResultWithoutToken, Kind::Nodes, 1998);
}

#[test]
fn a_blind_cancel_is_found() {
    is_found(Defect::BlindCancel, Kind::Calm, FIRST);
}

#[test]
fn a_cancelled_member_that_is_sent_is_found() {
    is_found(Defect::CancelledMemberStays, Kind::Nodes, 58);
}

#[test]
fn a_member_that_is_sent_twice_is_found() {
    is_found(Defect::FirstMemberEnds, Kind::Calm, FIRST);
}

#[test]
fn a_set_that_is_made_anew_is_found() {
    is_found(Defect::SetNotFrozen, Kind::Calm, FIRST);
}

#[test]
fn a_trusted_cursor_is_found() {
    is_found(Defect::CursorTrusted, Kind::Wheels, FIRST);
}

#[test]
fn an_event_that_is_written_after_the_commit_is_found() {
    is_found(Defect::EventAfterCommit, Kind::Store, FIRST);
}

#[test]
fn an_event_that_is_given_up_is_found() {
    is_found_in(WITH_EVENTS, Defect::EventGivenUp, Kind::Calm, FIRST);
}

#[test]
fn a_place_that_is_given_out_twice_is_found() {
    is_found_in(WITH_QUEUE, Defect::PlaceGivenTwice, Kind::Calm, FIRST);
}

#[test]
fn a_settlement_after_its_lease_was_lost_is_found() {
    is_found_in(WITH_QUEUE, Defect::SettledByAnyToken, Kind::Calm, 56);
}

#[test]
fn an_occurrence_that_is_made_twice_is_found() {
    is_found_in(WITH_SCHEDULES, Defect::OccurrenceMadeTwice, Kind::Nodes, FIRST);
}

#[test]
fn a_nominal_time_that_is_passed_over_is_found() {
    is_found_in(WITH_SCHEDULES, Defect::SkipNotRecorded, Kind::Nodes, FIRST);
}

#[test]
fn an_operation_that_repeats_a_step_is_found() {
    is_found_in(WITH_OPERATIONS, Defect::OperationRepeats, Kind::Nodes, 64);
}

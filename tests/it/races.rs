//! Cancels and reschedules that race their own due time, against receivers that are fast, slow, failing and
//! hanging: every answer is checked against what the receiver really saw.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{
    Api, Node, NodeBuilder, Received, Receiver, eventually, fresh_database, rfc3339, wall_ms,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cancel,
    Reschedule,
}

/// One race: the timer, the call, the answer, and when each was.
#[derive(Debug)]
struct Race {
    id: String,
    kind: Kind,
    hanging: bool,
    failing: bool,
    status: u16,
    body: Value,
    /// How long after the planned moment it was asked, in ms.
    late: i64,
    answered_at: i64,
    new_due: i64,
}

/// Timers are due this long after the first is registered, so that registration does not race.
const HEAD_START: i64 = 2500;

/// A round is this many waves, and a wave half a second of due times.
const ROUND: usize = 8;

/// At most and at least so many timers fall due in a second.
const PACE: (usize, usize) = (1000, 100);

/// Races `each` cancels and `each` reschedules against their due times. A call that is made later than planned is
/// no race, so the calls are spread over as many seconds as this machine needs to make them when planned.
async fn every_answer_is_true(node: Node, each: usize) {
    let seed: u64 =
        std::env::var("MAINSPRING_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(wall_ms() as u64);
    println!("seed {seed} (MAINSPRING_TEST_SEED repeats it)");
    let mut dice = SmallRng::seed_from_u64(seed);
    let receivers = Receivers::start().await;
    let api = node.api();
    let total = each * 2;
    let (mut all, mut pace) = (Vec::new(), PACE.0);
    while all.len() < total {
        let round = a_round(&api, &receivers, &mut dice, all.len()..total, pace).await;
        let late = round.iter().filter(|race: &&Race| race.late > 25).count();
        let percent = late * 100 / round.len();
        println!("{} of {total} asked, {pace} a second: {percent} % more than 25 ms late", all.len());
        pace = match percent {
            0..5 => pace * 9 / 8,
            5..20 => pace,
            _ => pace / 2,
        }
        .clamp(PACE.1, PACE.0);
        all.extend(round);
    }
    assert_eq!(all.len(), total);
    settled(&api, total as u64).await;
    let mut arrivals: HashMap<String, Vec<Received>> = HashMap::new();
    for receiver in receivers.all() {
        for received in receiver.received() {
            assert!(received.lateness_ms() >= 0, "early: {received:?}");
            arrivals.entry(received.timer.clone()).or_default().push(received);
        }
    }
    let ends = ends(&api).await;
    let mut counts: HashMap<String, usize> = HashMap::new();
    for race in &all {
        let answer = check(race, arrivals.get(&race.id).map_or(&[][..], Vec::as_slice), &ends[&race.id]);
        *counts.entry(format!("{:?} {answer}", race.kind)).or_default() += 1;
    }
    println!("{total} races: {counts:?}");
    for wanted in [
        "Cancel cancelled",
        "Cancel in_flight",
        "Cancel already_fired",
        "Reschedule 200",
        "Reschedule already_fired",
    ] {
        assert!(counts.contains_key(wanted), "no {wanted}: these were no races ({counts:?})");
    }
}

struct Receivers {
    quick: Receiver,
    slow: Receiver,
    failing: Receiver,
    hanging: Receiver,
}

impl Receivers {
    async fn start() -> Self {
        let (quick, slow) = (Receiver::start().await, Receiver::start().await);
        let (failing, hanging) = (Receiver::start().await, Receiver::start().await);
        Self { quick, slow, failing, hanging }
    }

    fn all(&self) -> [&Receiver; 4] {
        [&self.quick, &self.slow, &self.failing, &self.hanging]
    }

    /// A URL, whether it fails and whether it hangs. A hanging receiver holds an attempt for its whole
    /// timeout, so it gets the smallest share.
    fn draw(&self, dice: &mut SmallRng) -> (String, bool, bool) {
        match dice.random_range(0..100) {
            0..70 => (self.quick.url("/ok"), false, false),
            70..85 => (self.slow.url("/slow/20"), false, false),
            85..99 => (self.failing.url("/status/500"), true, false),
            _ => (self.hanging.url("/hang"), false, true),
        }
    }
}

/// One wave after another with `pace` timers a second, the first [`ROUND`] of what is `left`.
async fn a_round(
    api: &Api,
    receivers: &Receivers,
    dice: &mut SmallRng,
    mut left: Range<usize>,
    pace: usize,
) -> Vec<Race> {
    let mut waves = Vec::new();
    for _ in 0..ROUND {
        let base = wall_ms() + HEAD_START;
        let (mut items, mut plans) = (Vec::new(), Vec::new());
        for n in left.by_ref().take(pace / 2) {
            let id = format!("race-{n}");
            let due = base + dice.random_range(0..500);
            let (url, fails, hangs) = receivers.draw(dice);
            items.push(json!({
                "id": id, "fire_at": rfc3339(due), "data": n,
                "target": {"webhook": {"url": url}},
                "retry": {"attempts": 2, "first": "PT0.3S", "cap": "PT0.3S"},
            }));
            // Half of them around the due time, half around the moment at which the sweep finds it.
            let offset =
                if dice.random_bool(0.5) { dice.random_range(-50..=50) } else { dice.random_range(0..300) };
            let kind = if n % 2 == 0 { Kind::Cancel } else { Kind::Reschedule };
            plans.push((id, kind, fails, hangs, due + offset));
        }
        if items.is_empty() {
            break;
        }
        let (status, answer) = api.post("/v1/timers/batch", &json!({ "timers": items })).await;
        assert_eq!(status, 200, "{answer}");
        assert!(
            answer["results"].as_array().expect("results").iter().all(|r| r["status"] == 201),
            "{answer}"
        );
        waves.push(tokio::spawn(run_wave(api.clone(), plans)));
        let ahead = u64::try_from(base - HEAD_START + 500 - wall_ms()).unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(ahead)).await;
    }
    let mut races = Vec::new();
    for wave in waves {
        races.extend(wave.await.expect("a wave runs"));
    }
    races
}

async fn run_wave(api: Api, plans: Vec<(String, Kind, bool, bool, i64)>) -> Vec<Race> {
    let calls = Arc::new(Semaphore::new(64));
    let tasks: Vec<_> = plans
        .into_iter()
        .map(|(id, kind, failing, hanging, at)| {
            let (api, calls) = (api.clone(), Arc::clone(&calls));
            tokio::spawn(async move {
                let wait = u64::try_from(at - wall_ms()).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                let _place = calls.acquire().await.expect("open");
                let asked_at = wall_ms();
                let new_due = asked_at + 1500;
                let (status, body) = match kind {
                    Kind::Cancel => api.delete(&id).await,
                    Kind::Reschedule => api.patch(&id, &json!({ "fire_at": rfc3339(new_due) })).await,
                };
                let (late, answered_at) = (asked_at - at, wall_ms());
                Race { id, kind, failing, hanging, status, body, late, answered_at, new_due }
            })
        })
        .collect();
    let mut races = Vec::new();
    for task in tasks {
        races.push(task.await.expect("a race runs"));
    }
    races
}

/// Compares an answer with what happened; names the answer.
fn check(race: &Race, arrivals: &[Received], end: &Value) -> String {
    let state = end["state"].as_str().expect("a state");
    let code = race.body["code"].as_str().unwrap_or_default();
    let after = arrivals.iter().filter(|r| r.at_ms > race.answered_at).count();
    let second = arrivals.iter().filter(|r| r.generation == 2).count();
    let what = || format!("{race:?}\narrivals {arrivals:?}\nend {end}");
    match (race.kind, race.status, code) {
        (Kind::Cancel, 200, _) => match race.body["outcome"].as_str().expect("an outcome") {
            "cancelled" => {
                assert!(arrivals.is_empty(), "cancelled, and sent: {}", what());
                assert_eq!((state, &end["uncertain"]), ("cancelled", &Value::Null), "{}", what());
                "cancelled".into()
            }
            "stopped" => {
                assert!(race.failing && !arrivals.is_empty() && after == 0, "stopped, and sent: {}", what());
                assert_eq!(state, "cancelled", "{}", what());
                "stopped".into()
            }
            other => panic!("{other}: {}", what()),
        },
        (Kind::Cancel, 409, "in_flight") => {
            // The attempt under way may arrive after the answer; a further one may not.
            assert!(arrivals.len() <= 2 && after <= 1, "a further attempt: {}", what());
            let ended = state == "delivered" || (state == "cancelled" && end["uncertain"] == true);
            assert!(ended, "in_flight, and ended otherwise: {}", what());
            assert!(state != "delivered" || !(race.failing || race.hanging), "{}", what());
            "in_flight".into()
        }
        (Kind::Cancel | Kind::Reschedule, 409, "already_fired") => {
            assert!(
                matches!(state, "delivered" | "dead") && !arrivals.is_empty() && after == 0,
                "{}",
                what()
            );
            assert_eq!(second, 0, "{}", what());
            "already_fired".into()
        }
        (Kind::Reschedule, 200, _) => {
            let old = arrivals.iter().filter(|r| r.generation == 1);
            let old: Vec<_> = old.collect();
            assert!(old.iter().all(|r| r.at_ms <= race.answered_at), "the old due time fired: {}", what());
            assert!(race.failing || old.is_empty(), "rescheduled although delivered: {}", what());
            assert!(second > 0, "the new due time did not fire: {}", what());
            assert!(
                arrivals.iter().filter(|r| r.generation == 2).all(|r| r.at_ms >= race.new_due),
                "{}",
                what()
            );
            "200".into()
        }
        (Kind::Reschedule, 409, "in_flight") => {
            assert_eq!(second, 0, "refused, and rescheduled: {}", what());
            "in_flight".into()
        }
        _ => panic!("no such answer: {}", what()),
    }
}

/// Waits until every timer has ended; the ledger balances at every look.
async fn settled(api: &Api, total: u64) {
    eventually("every timer has ended", Duration::from_secs(60), async || {
        let ledger = api.ledger().await;
        assert!(ledger.balances() && ledger.registered == total, "{ledger:?}");
        if ledger.pending == 0 { Ok(()) } else { Err(ledger) }
    })
    .await;
}

/// How every timer ended, by id.
async fn ends(api: &Api) -> HashMap<String, Value> {
    let mut ends = HashMap::new();
    let mut cursor = String::new();
    loop {
        let (status, page) = api.get(&format!("/v1/timers?limit=1000{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        for item in page["items"].as_array().expect("items") {
            ends.insert(item["id"].as_str().expect("an id").to_owned(), item.clone());
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ends,
        }
    }
}

fn node(cold: Option<&str>) -> NodeBuilder {
    let builder = Node::builder().env("MAINSPRING__WEBHOOK__TIMEOUT", "PT0.5S");
    match cold {
        Some(url) => builder.cold(url),
        None => builder,
    }
}

/// Cancels, and as many reschedules: 10,000 on each store, 20,000 on both together; twice as many on each with
/// `scripts/test --long`.
fn each() -> usize {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_some() { 20_000 } else { 10_000 }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_true_on_sqlite() {
    every_answer_is_true(node(None).start_ready().await, each()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_true_on_postgres() {
    let url = fresh_database().await;
    every_answer_is_true(node(Some(&url)).start_ready().await, each()).await;
}

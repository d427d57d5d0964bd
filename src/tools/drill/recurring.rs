//! Schedules, beside the load: rules that make timers, while nodes are lost that make them.
//!
//! Most have `every` or a cron with seconds, from one second to ten. Some may not overlap, and of these some have a receiver
//! that takes longer than their period; some are paused for a moment, some for most of the drill, so that nominal times are
//! skipped that were never made; some get another rule.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::history::{Affected, Fault, Micros, Recorder, Rhythm, ScheduleAsk, ScheduleTerms, schedule_id};
use super::load::Callers;
use super::plan::{Behaviour, TAIL_MS};
use super::receiver::Receivers;
use super::{Drill, Options, wait_until};
use crate::clock::wall_us;
use crate::model::time::UnixMs;

/// So many schedules for each timer that the load registers in a second.
const BY_RATE: u32 = 2;
/// How many they are, at least and at most.
const COUNT: Range<u32> = 60..400;
/// From one nominal time to the next, in milliseconds; each divides a minute, so that a cron can say it.
const STEPS_MS: [i64; 5] = [1000, 2000, 3000, 5000, 10_000];
/// The step of what is paused for long: much is skipped then.
const SHORT_STEP_MS: i64 = 500;
/// How long what is slow may be under way after its last nominal time.
const SLOW_END_MS: i64 = 7000;
/// When a long pause begins, and how long before the end of everything it is over.
const LONG_PAUSE_MS: (i64, i64) = (2500, 1500);

/// A rule, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `every`.
    Every { step_ms: i64 },
    /// A cron whose seconds are so many apart, from the first of them on.
    Cron { step_ms: i64, first_ms: i64 },
}

impl Form {
    fn of(rng: &mut SmallRng, step_ms: i64) -> Self {
        match rng.random_bool(0.5) && step_ms % 1000 == 0 {
            true => Self::Cron { step_ms, first_ms: rng.random_range(0..step_ms / 1000) * 1000 },
            false => Self::Every { step_ms },
        }
    }

    fn rhythm(self, start_ms: i64) -> Rhythm {
        match self {
            Self::Every { step_ms } => Rhythm { origin_ms: start_ms, step_ms },
            // The epoch began with a minute, and UTC has no leap seconds here.
            Self::Cron { step_ms, first_ms } => Rhythm { origin_ms: first_ms, step_ms },
        }
    }

    fn body(self) -> Value {
        match self {
            Self::Every { step_ms } => json!({"every": format!("PT{}S", step_ms as f64 / 1000.0)}),
            Self::Cron { step_ms, first_ms } => {
                let seconds = (first_ms / 1000..60).step_by(usize::try_from(step_ms / 1000).unwrap_or(1));
                let seconds: Vec<String> = seconds.map(|second| second.to_string()).collect();
                json!({"cron": format!("{} * * * * *", seconds.join(","))})
            }
        }
    }
}

/// One schedule of a plan; times are milliseconds since the load began.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Planned {
    asked_at: i64,
    start_at: i64,
    end_at: i64,
    form: Form,
    behaviour: Behaviour,
    is_exclusive: bool,
    has_owner: bool,
    missed: Option<&'static str>,
    /// When it is paused and when it is resumed.
    pause: Option<(i64, i64)>,
    /// When it gets another rule.
    change: Option<(i64, Form)>,
}

impl Planned {
    fn terms(&self, began_ms: i64) -> ScheduleTerms {
        let start_ms = began_ms + self.start_at;
        ScheduleTerms {
            rule: self.form.rhythm(start_ms),
            changed: self.change.map(|(_, form)| form.rhythm(start_ms)),
            start_ms,
            end_ms: began_ms + self.end_at,
            is_exclusive: self.is_exclusive,
            is_difficult: self.behaviour != Behaviour::Accepts,
            has_owner: self.has_owner,
        }
    }

    /// The request that makes it.
    fn body(&self, number: u32, url: &str, began_ms: i64) -> Value {
        let mut body = self.form.body();
        body["start_at"] = UnixMs::new(began_ms + self.start_at).rfc3339().into();
        body["end_at"] = UnixMs::new(began_ms + self.end_at).rfc3339().into();
        body["target"] = json!({"webhook": {"url": url}});
        body["retry"] = json!({"attempts": 100, "first": "PT0.2S", "cap": "PT2S"});
        body["data"] = json!({"drill": true});
        if self.is_exclusive {
            body["overlap"] = "skip".into();
        }
        if self.has_owner {
            body["owner"] = schedule_id(number).into();
        }
        if let Some(policy) = self.missed {
            body["missed"] = json!({"policy": policy});
        }
        body
    }

    /// What is asked of it after it is made, in order.
    fn asks(&self) -> Vec<(i64, ScheduleAsk, Option<Value>)> {
        let pause = self.pause.into_iter();
        let pause =
            pause.flat_map(|(from, until)| [(from, ScheduleAsk::Pause), (until, ScheduleAsk::Resume)]);
        let change = self.change.map(|(at, form)| (at, ScheduleAsk::Change, Some(form.body())));
        pause.map(|(at, ask)| (at, ask, None)).chain(change).collect()
    }
}

/// The schedules of a drill.
pub struct Recurring {
    plan: Vec<Planned>,
}

/// Schedules at work.
pub struct AtWork {
    terms: Vec<ScheduleTerms>,
    began_us: Micros,
    asking: JoinHandle<()>,
}

impl Recurring {
    /// Those of a drill; `None` if it has none.
    pub fn of(drill: Drill, seed: u64, options: &Options) -> Option<Self> {
        let count = (options.rate * BY_RATE).clamp(COUNT.start, COUNT.end);
        let plan = || plan(seed, count, i64::from(options.seconds) * 1000);
        (drill == Drill::ScheduleTakeOver).then(|| Self { plan: plan() })
    }

    /// Begins: schedules are made, paused, resumed and changed as planned.
    pub fn begin(self, callers: &Arc<Callers>, receivers: &Arc<Receivers>, began_us: Micros) -> AtWork {
        let began_ms = began_us / 1000;
        let terms = self.plan.iter().map(|one| one.terms(began_ms)).collect();
        let (callers, receivers) = (Arc::clone(callers), Arc::clone(receivers));
        let asking = tokio::spawn(async move {
            let tasks = TaskTracker::new();
            for (number, planned) in (0..).zip(self.plan) {
                wait_until(began_us + planned.asked_at * 1000).await;
                let body = planned.body(number, &receivers.url(number, planned.behaviour), began_ms);
                let callers = Arc::clone(&callers);
                tasks.spawn(async move { one(&callers, number, &planned, &body, began_us).await });
            }
            tasks.close();
            tasks.wait().await;
        });
        AtWork { terms, began_us, asking }
    }
}

async fn one(callers: &Callers, number: u32, planned: &Planned, body: &Value, began_us: Micros) {
    if !callers.ask_schedule(number, ScheduleAsk::Make, Some(body)).await {
        return;
    }
    for (at, ask, body) in planned.asks() {
        wait_until(began_us + at * 1000).await;
        callers.ask_schedule(number, ask, body.as_ref()).await;
    }
}

impl AtWork {
    /// Whether every call is answered.
    pub fn is_asked(&self) -> bool {
        self.asking.is_finished()
    }

    /// The terms of all schedules.
    pub fn terms(&self) -> Vec<ScheduleTerms> {
        self.terms.clone()
    }

    /// Notes what the schedules have made, as it is listed.
    pub async fn list(&self, callers: &Callers, recorder: &Recorder) -> anyhow::Result<()> {
        let mut all = Vec::new();
        for (number, _) in (0..).zip(&self.terms) {
            all.extend(callers.occurrences(number).await?);
        }
        recorder.listed(all);
        Ok(())
    }

    /// The take-overs as a fault, which excuses nothing: that of a shard is seen where all occurrences of a schedule have one,
    /// and come from two nodes. `None` of a single node.
    pub fn taken_over(&self, recorder: &Recorder, count: u8) -> Option<Fault> {
        let mut nodes: HashMap<u32, HashSet<u8>> = HashMap::new();
        for (of, node) in recorder.occurrences() {
            if self.terms.get(of.schedule as usize).is_some_and(|terms| terms.has_owner) {
                nodes.entry(of.schedule).or_default().insert(node);
            }
        }
        let moved = nodes.values().filter(|nodes| nodes.len() > 1).count();
        let all = nodes.len();
        let landed = (moved > 0)
            .then(|| format!("{moved} of {all} schedules of one shard each fired from several nodes"));
        let (from_us, until_us) = (self.began_us, wall_us());
        let fault = Fault { kind: "take-overs", affected: Affected::Callers, from_us, until_us, landed };
        (count > 1).then_some(fault)
    }
}

/// The schedules of a seed, in the order in which they are made.
fn plan(seed: u64, count: u32, load_ms: i64) -> Vec<Planned> {
    // Other random numbers than those of the load and of the faults.
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5c4e_d01e);
    (0..count).map(|number| planned(&mut rng, number, count, load_ms)).collect()
}

fn planned(rng: &mut SmallRng, number: u32, count: u32, load_ms: i64) -> Planned {
    // They are made all through the first half of the load.
    let asked_at = i64::from(number) * load_ms / i64::from(count * 2);
    let last = load_ms + TAIL_MS;
    let is_exclusive = number % 10 < 3;
    let behaviour = match number % 10 {
        0 => Behaviour::FailsOnceSlowly,
        1 => Behaviour::AcceptsSlowly,
        _ => Behaviour::Accepts,
    };
    let is_slow = behaviour == Behaviour::FailsOnceSlowly;
    let mut step_ms = *STEPS_MS.choose(rng).unwrap_or(&STEPS_MS[0]);
    let mut asked_at = asked_at;
    let pause = match number % 12 {
        5 => {
            let from = asked_at + rng.random_range(1000..load_ms / 2);
            Some((from, from + rng.random_range(1500..4000)))
        }
        7 => {
            // Nothing is skipped that was made before: the pause has to begin soon, and to last.
            (step_ms, asked_at) = (SHORT_STEP_MS, asked_at.min(LONG_PAUSE_MS.0 - 1000));
            Some((LONG_PAUSE_MS.0 + rng.random_range(0..500), last - LONG_PAUSE_MS.1))
        }
        _ => None,
    };
    let form = Form::of(rng, step_ms);
    let is_changed = matches!(number % 12, 3 | 9);
    let change = is_changed.then(|| {
        let step_ms = *STEPS_MS.choose(rng).unwrap_or(&STEPS_MS[0]);
        (asked_at + rng.random_range(1000..load_ms / 2), Form::of(rng, step_ms))
    });
    Planned {
        asked_at,
        start_at: asked_at + rng.random_range(-1500..1500),
        end_at: if is_slow { last - SLOW_END_MS } else { last },
        form,
        behaviour,
        is_exclusive,
        has_owner: rng.random_bool(0.5),
        missed: *[None, Some("skip"), Some("fire_once"), Some("fire_all")].choose(rng).unwrap_or(&None),
        pause,
        change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_plan_and_every_kind_of_schedule_is_in_it() {
        let all = plan(1, 120, 8000);
        assert_eq!(all, plan(1, 120, 8000));
        assert_ne!(all, plan(2, 120, 8000));
        let count = |is: fn(&Planned) -> bool| all.iter().filter(|one| is(one)).count();
        assert!(count(|one| one.is_exclusive && one.behaviour == Behaviour::FailsOnceSlowly) == 12);
        assert!(count(|one| one.pause.is_some_and(|(from, until)| until - from < 4000)) == 10);
        assert!(count(|one| one.pause.is_some_and(|(from, until)| until - from > 9500)) == 10);
        assert!(count(|one| one.change.is_some()) == 20);
        assert!(count(|one| matches!(one.form, Form::Cron { .. })) > 30);
        assert!(count(|one| one.missed == Some("skip")) > 10);
        let asks = |one: &Planned| one.asks().into_iter().map(|(at, ..)| at).collect::<Vec<_>>();
        assert!(
            all.iter().all(|one| asks(one).iter().all(|at| *at > one.asked_at && *at < one.end_at + 7000))
        );
    }

    #[test]
    fn a_rule_and_its_rhythm_say_the_same() {
        let cron = Form::Cron { step_ms: 10_000, first_ms: 3000 };
        assert_eq!(cron.body()["cron"], "3,13,23,33,43,53 * * * * *");
        assert!(cron.rhythm(1).has(63_000) && !cron.rhythm(1).has(60_000));
        let every = Form::Every { step_ms: 500 };
        assert_eq!(every.body()["every"], "PT0.5S");
        assert!(every.rhythm(7).has(507) && !every.rhythm(7).has(500));
    }
}

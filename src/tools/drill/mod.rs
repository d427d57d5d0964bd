//! Drills: failures rehearsed on the operator's own machine, with a verdict from what was seen outside.
//!
//! A drill prepares a [`cluster`] (stores, nodes, a proxy between each node and each store), lets callers do what a
//! seeded [`plan`] says, injects the faults of its [`schedule`] at random moments and heals them, waits until every
//! timer has ended, and has the [`checker`] hold the whole [`history`] against the promises. It trusts no word of
//! the server: an answer counts as what a caller was told, a delivery as what a receiver got.
//!
//! | room | what it is for |
//! |---|---|
//! | [`schedule`], [`fault`], `backup` | which faults come when; how each is injected, healed and proved |
//! | [`plan`], `extra`, [`load`], [`receiver`] | the timers; those beside the load; the callers; the receivers |
//! | `recurring` | the schedules that make timers |
//! | `crew` | the timers of a queue, and the workers who fetch them |
//! | [`history`], [`checker`], [`verdict`] | what was seen; what it proves; how it is reported |
//! | [`brokers`] | the brokers, and who reads what comes there |
//! | [`machine`] | when this machine stood still by itself |
//! | [`cluster`], [`proxy`] | nodes and stores; connections that can be cut |

mod backup;
pub mod brokers;
pub mod checker;
pub mod cluster;
mod crew;
mod extra;
pub mod fault;
pub mod history;
pub mod load;
pub mod machine;
pub mod plan;
pub mod proxy;
pub mod receiver;
mod recurring;
pub mod schedule;
pub mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::clock::wall_us;
use crate::limits;
use crate::tools::brokers::Kind;
use checker::{Findings, Limits, check};
use cluster::{Cluster, Environment};
use crew::Crew;
use extra::Extra;
use fault::{ActiveFault, heal, inject};
use history::{Affected, Fault, History, Micros, Recorder, Terms};
use load::Callers;
use machine::Machine;
use receiver::Receivers;
use recurring::Recurring;
use schedule::{Breakable, Drill, ScheduledFault};
use verdict::{Outcome, Verdict};

/// How long timers may take to end after the last due time, and after what was away has been caught up with: retries, claims
/// that run out.
const END: Duration = Duration::from_secs(45);
/// How long after the ledger has none that is live it may take to see from outside that all have ended: what was sent comes
/// within moments, and what is at a broker is read by a client that connects anew within a second.
const SEEN: Duration = Duration::from_secs(10);
/// How long repeats are watched for after every timer has ended.
///
/// No node has any more to send then: an attempt starts only from a row that has not ended. One that comes all
/// the same is a defect of a node that acts without a claim, from a pointer or from memory. A pointer is used
/// within milliseconds of its time, and the sweep looks at what is a second overdue once a second: in two
/// seconds each of them has had its chance.
const SETTLE: Duration = Duration::from_secs(2);
/// How long workers of a queue do no harm at first.
const HEALTHY_MS: i64 = 1000;
/// How often the drill looks whether every timer has ended.
const POLL: Duration = Duration::from_millis(500);
/// How long after a fault lateness may still be its doing, beside the lease.
const RECOVERY_US: Micros = 4_000_000;

/// What all drills of a call have in common.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where.
    pub environment: Environment,
    /// How many nodes; one when embedded.
    pub nodes: u8,
    /// Timers registered a second.
    pub rate: u32,
    /// For so many seconds.
    pub seconds: u32,
    /// The nodes' lease, in milliseconds.
    pub lease_ms: u64,
    /// Timers that fill the window before the load begins, beside those of the load.
    pub window_timers: u32,
    /// The kinds of brokers that drills of brokers have.
    pub brokers: Vec<Kind>,
    /// Further settings of the nodes.
    pub sets: Vec<String>,
    /// Where the nodes' logs are kept after a violation.
    pub keep: Option<PathBuf>,
}

impl Options {
    /// Whether the nodes have a planted defect. It is to be found on a busy machine, too: what it does looks like the load
    /// of others.
    fn is_planted(&self) -> bool {
        self.sets.iter().any(|set| set.starts_with("planted="))
    }
}

/// Shows what is going on: a phase, and how many seconds of how many have passed.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// The drill was told to stop.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Rehearses one drill. Ends what it has started, also when it is interrupted or fails.
pub async fn run(
    drill: Drill,
    seed: u64,
    options: &Options,
    progress: Progress<'_>,
    stop: &CancellationToken,
) -> anyhow::Result<Verdict> {
    progress("preparing", 0, 0);
    // Receivers and callers need more files than a shell gives as a rule.
    limits::raise();
    let nodes = if options.environment == Environment::Embedded { 1 } else { options.nodes };
    let needs = drill.needs(&options.brokers);
    let mut cluster =
        Cluster::open(&options.environment, nodes, options.lease_ms, &options.sets, &needs).await?;
    let rehearsed = tokio::select! {
        rehearsed = rehearse(&mut cluster, drill, seed, options, progress) => rehearsed,
        () = stop.cancelled() => Err(Interrupted.into()),
    };
    let mut verdict = match rehearsed {
        Ok(verdict) => verdict,
        Err(why) => {
            // The first error matters more than one of the clean-up.
            let _ = cluster.close().await;
            return Err(why);
        }
    };
    if let (Outcome::Violated, Some(keep)) = (verdict.outcome, &options.keep) {
        let to = keep.join(format!("{}-{seed}", drill.name()));
        cluster.keep_logs(&to).context("the nodes' logs cannot be kept")?;
        verdict.logs = Some(to.display().to_string());
    }
    cluster.close().await?;
    Ok(verdict)
}

async fn rehearse(
    cluster: &mut Cluster,
    drill: Drill,
    seed: u64,
    options: &Options,
    progress: Progress<'_>,
) -> anyhow::Result<Verdict> {
    let nodes = cluster.nodes.len() as u8;
    let plan = plan::timers(seed, drill.shape(options.rate, options.seconds));
    let lease_ms = i64::try_from(options.lease_ms)?;
    let (breakable, brokers) = (breakable(&options.environment), &options.brokers);
    let schedule = drill.schedule(seed, options.seconds, lease_ms, nodes, breakable, brokers);
    let recorder = Arc::new(Recorder::default());
    let receivers = Arc::new(Receivers::start(Arc::clone(&recorder)).await?);
    let (names, bodies): (Vec<_>, Vec<_>) = cluster.brokers.destinations().into_iter().unzip();
    let callers =
        Callers::new(cluster.addresses(), Arc::clone(&recorder), Arc::clone(&receivers), names.clone())?;
    cluster.brokers.read(&recorder).await?;
    for (name, body) in names.iter().zip(&bodies) {
        callers.destination(name, body).await?;
    }
    let extra = Extra::of(drill, plan.len() as u32, options, nodes);
    if !extra.is_empty() {
        progress("filling the window", 0, 0);
        extra.register(&callers, options).await;
    }

    let mut terms: Vec<Terms> = plan.iter().map(plan::Planned::terms).collect();
    extra.add_terms(&mut terms);
    let crew = Crew::of(drill, terms.len() as u32, seed, options);
    if let Some(crew) = &crew {
        crew.add_terms(&mut terms);
    }
    let machine = Machine::watch(cluster.dir()).context("the drill's own directory cannot be written")?;
    let began_us = wall_us();
    let load_ms = i64::from(options.seconds) * 1000;
    let load = {
        let (callers, plan) = (Arc::clone(&callers), plan.clone());
        tokio::spawn(async move { callers.run(&plan, began_us).await })
    };
    // The last second is to be healthy, as with other faults.
    let harm = began_us + HEALTHY_MS * 1000..began_us + (load_ms - 1000) * 1000;
    let begin = |crew: Crew| crew.begin(cluster, &callers, &recorder, began_us, harm);
    let crew = crew.map(begin).transpose()?;
    let recurring = match Recurring::of(drill, seed, options) {
        Some(recurring) => {
            callers.hear_of_skips().await?;
            Some(recurring.begin(&callers, &receivers, began_us))
        }
        None => None,
    };
    let rules = recurring.as_ref().map(recurring::AtWork::terms).unwrap_or_default();
    let mut faults = Vec::new();
    play(cluster, &recorder, &receivers, &schedule, began_us, &mut faults, |at_ms, phase| {
        progress(phase, at_ms.unsigned_abs() / 1000, load_ms.unsigned_abs() / 1000);
    })
    .await?;
    for node in &cluster.nodes {
        node.ready().await?;
    }
    let limits =
        Limits { recovery_us: RECOVERY_US + lease_ms * 1000, answer_us: plan::TIMEOUT_MS as Micros * 750 };
    let all_faults = || [faults.clone(), machine.stood_still()].concat();
    let check_now = || {
        let seen = recorder.history(terms.clone(), all_faults(), wall_us());
        let crowded = if options.is_planted() { Vec::new() } else { machine.crowded() };
        check(&History { held_up: machine.held_up(), crowded, schedules: rules.clone(), ..seen }, limits)
    };
    // What came in while a receiver was away is postponed for as long as it was away, at most.
    let caught_up_us =
        faults.iter().map(|fault| 2 * fault.until_us - fault.from_us).max().unwrap_or_default();
    let (mut ledger, mut ended_us) = (None, None);
    loop {
        let now_us = wall_us();
        let is_asked = load.is_finished()
            && crew.as_ref().is_none_or(crew::AtWork::is_registered)
            && recurring.as_ref().is_none_or(recurring::AtWork::is_asked);
        // Calls that are still under way may move a timer to a later time.
        let planned_us = began_us + (load_ms + plan::TAIL_MS) * 1000;
        let is_planned = !is_asked || recurring.is_some();
        let last_due_us = recorder.last_due_us().max(if is_planned { planned_us } else { 0 });
        let give_up = now_us > last_due_us.max(caught_up_us) + END.as_micros() as Micros;
        progress("waiting for what is due", seconds(now_us - began_us), seconds(last_due_us - began_us));
        if give_up {
            callers.give_up();
        }
        if is_asked && now_us >= last_due_us {
            ledger = callers.ledger().await.or(ledger);
            let ended = ledger.as_ref().is_some_and(|ledger| ledger["pending"] == 0);
            ended_us = ended.then(|| ended_us.unwrap_or(now_us));
            let unseen = ended_us.is_some_and(|at_us: Micros| now_us > at_us + SEEN.as_micros() as Micros);
            let found = check_now();
            if give_up || unseen || (ended && found.lost + found.open + found.nominals_lost == 0) {
                break;
            }
        }
        tokio::time::sleep(POLL).await;
    }
    tokio::time::sleep(SETTLE).await;
    if let Some(recurring) = &recurring {
        recurring.list(&callers, &recorder).await?;
    }
    let findings = check_now();
    load.await.context("the callers broke down")?;
    let ledger = callers.ledger().await.or(ledger);
    let mut faults = all_faults();
    faults.extend(bad_receivers(drill, &recorder, began_us));
    faults.extend(extra.came(&recorder, cluster));
    if let Some(crew) = crew {
        faults.push(crew.end().await?);
    }
    faults.extend(recurring.and_then(|recurring| recurring.taken_over(&recorder, nodes)));
    let verdict = judge(drill, seed, options, findings, faults, ledger);
    Ok(Verdict { nodes, seconds: (wall_us() - began_us) as f64 / 1e6, ..verdict })
}

/// Waits until a moment by this machine's clock; not at all where it is past.
async fn wait_until(at_us: Micros) {
    let wait_us = at_us - wall_us();
    if wait_us > 0 {
        tokio::time::sleep(Duration::from_micros(wait_us.unsigned_abs())).await;
    }
}

/// Injects and heals the faults of the schedule, in the order of time.
async fn play(
    cluster: &mut Cluster,
    recorder: &Recorder,
    receivers: &Receivers,
    schedule: &[ScheduledFault],
    began_us: Micros,
    faults: &mut Vec<Fault>,
    show: impl Fn(i64, &str),
) -> anyhow::Result<()> {
    let mut moments: Vec<(i64, usize, bool)> = Vec::new();
    for (number, fault) in schedule.iter().enumerate() {
        moments.push((fault.from_ms, number, true));
        moments.push((fault.until_ms, number, false));
    }
    moments.sort_unstable_by_key(|(at, number, begins)| (*at, !begins, *number));
    let mut active: Vec<(usize, ActiveFault)> = Vec::new();
    for (at_ms, number, begins) in moments {
        loop {
            let wait_us = began_us + at_ms * 1000 - wall_us();
            if wait_us <= 0 {
                break;
            }
            show((wall_us() - began_us) / 1000, "load and faults");
            tokio::time::sleep(Duration::from_micros(wait_us.unsigned_abs()).min(POLL)).await;
        }
        let kind = schedule[number].kind;
        if begins {
            show(at_ms, kind.name());
            let injected = inject(cluster, recorder, receivers, kind).await;
            active.push((number, injected.with_context(|| format!("{} cannot be injected", kind.name()))?));
        } else if let Some(index) = active.iter().position(|(of, _)| *of == number) {
            let (_, one) = active.swap_remove(index);
            faults.push(
                heal(cluster, recorder, receivers, one)
                    .await
                    .with_context(|| format!("{} cannot be healed", kind.name()))?,
            );
        }
    }
    Ok(())
}

/// Receivers that behave badly are a fault from the first registration to now.
fn bad_receivers(drill: Drill, recorder: &Recorder, began_us: Micros) -> Option<Fault> {
    (drill == Drill::SlowHook).then(|| {
        let bad = recorder.not_accepted();
        Fault {
            kind: "bad receivers",
            affected: Affected::Receivers,
            from_us: began_us,
            until_us: wall_us(),
            landed: (bad > 0).then(|| format!("{bad} attempts were not accepted")),
        }
    })
}

fn judge(
    drill: Drill,
    seed: u64,
    options: &Options,
    findings: Findings,
    faults: Vec<Fault>,
    ledger: Option<serde_json::Value>,
) -> Verdict {
    let named = |(name, count): (&str, u64)| (name.to_owned(), count);
    let mut violations: Vec<(String, u64)> = findings.violations().into_iter().map(named).collect();
    if !ledger.as_ref().is_some_and(|ledger| balances(ledger, findings.registered)) {
        violations.push(("ledger not balanced".into(), 1));
    }
    // All of them were due and caught up with 45 s ago.
    let pending = ledger.as_ref().and_then(|ledger| ledger["pending"].as_u64()).unwrap_or_default();
    if pending > 0 {
        violations.push(("unsettled".into(), pending));
    }
    let landed = |fault: &Fault| fault.landed.is_some() && fault.affected != Affected::Machine;
    let landed = faults.iter().any(landed);
    let outcome = match (violations.is_empty(), landed) {
        (false, _) => Outcome::Violated,
        (true, false) => Outcome::Unknown,
        (true, true) => Outcome::Passed,
    };
    Verdict {
        drill: drill.name(),
        environment: options.environment.name(),
        nodes: options.nodes,
        seed,
        seconds: 0.0,
        lease_ms: options.lease_ms,
        outcome,
        violations,
        findings,
        faults,
        ledger,
        logs: None,
    }
}

/// Whether what was registered is the sum of what became of it, and no less than what callers know of.
fn balances(ledger: &serde_json::Value, acknowledged: u64) -> bool {
    let of = |name: &str| ledger[name].as_u64();
    let parts = ["delivered", "cancelled", "expired", "dead", "pending"].map(of);
    let sum: Option<u64> = parts.into_iter().sum();
    of("registered").is_some_and(|registered| Some(registered) == sum && registered >= acknowledged)
}

/// What can be broken there.
const fn breakable(environment: &Environment) -> Breakable {
    match environment {
        Environment::Embedded => Breakable::Nodes,
        Environment::Own => Breakable::Servers,
        Environment::Given { .. } => Breakable::Connections,
    }
}

const fn seconds(us: Micros) -> u64 {
    us.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            environment: Environment::Embedded,
            nodes: 1,
            rate: 1,
            seconds: 1,
            lease_ms: 1000,
            window_timers: 0,
            brokers: Vec::new(),
            sets: Vec::new(),
            keep: None,
        }
    }

    fn outcome(findings: &Findings, affected: Affected, ledger: serde_json::Value) -> Outcome {
        let landed = Some("it landed".to_owned());
        let fault = Fault { kind: "a fault", affected, from_us: 0, until_us: 1, landed };
        judge(Drill::Kill, 1, &options(), findings.clone(), vec![fault], Some(ledger)).outcome
    }

    fn balanced() -> serde_json::Value {
        serde_json::json!({ "registered": 9, "delivered": 9, "cancelled": 0, "expired": 0, "dead": 0, "pending": 0 })
    }

    #[test]
    fn one_violation_of_any_kind_fails_the_drill() {
        let killed = || Affected::Nodes(vec![0]);
        let nothing = Findings::default();
        assert_eq!(outcome(&nothing, killed(), balanced()), Outcome::Passed);
        for wrong in [
            Findings { lost: 1, ..nothing.clone() },
            Findings { early: 1, ..nothing.clone() },
            Findings { stray: 1, ..nothing.clone() },
            Findings { untrue_cancels: 1, ..nothing.clone() },
            Findings { untrue_changes: 1, ..nothing.clone() },
            Findings { duplicates_unexplained: 1, ..nothing.clone() },
            Findings { unfenced: 1, ..nothing.clone() },
            Findings { mistaken_identity: 1, ..nothing.clone() },
            Findings { stragglers: 1, ..nothing.clone() },
            Findings { late: 1, ..nothing.clone() },
            Findings { nonsense: 1, ..nothing.clone() },
            Findings { unheld: 1, ..nothing.clone() },
            Findings { too_many_places: 1, ..nothing.clone() },
            Findings { given_twice: 1, ..nothing.clone() },
            Findings { untrue_settlements: 1, ..nothing.clone() },
            Findings { fetched_late: 1, ..nothing.clone() },
            Findings { unseen_attempts: 1, ..nothing.clone() },
            Findings { polls: 1, ..nothing.clone() },
            Findings { made_twice: 1, ..nothing.clone() },
            Findings { nominals_lost: 1, ..nothing.clone() },
            Findings { fired_and_skipped: 1, ..nothing.clone() },
            Findings { untrue_skips: 1, ..nothing.clone() },
            Findings { unskipped: 1, ..nothing.clone() },
        ] {
            assert_eq!(outcome(&wrong, killed(), balanced()), Outcome::Violated, "{wrong:?}");
        }
        let mut short = balanced();
        short["delivered"] = 8.into();
        assert_eq!(outcome(&nothing, killed(), short), Outcome::Violated, "the ledger does not balance");
        let mut unsettled = balanced();
        (unsettled["delivered"], unsettled["pending"]) = (8.into(), 1.into());
        assert_eq!(outcome(&nothing, killed(), unsettled), Outcome::Violated, "one has not ended");
    }

    #[test]
    fn what_only_the_machine_did_rehearses_nothing() {
        assert_eq!(outcome(&Findings::default(), Affected::Machine, balanced()), Outcome::Unknown);
    }
}

//! Drills: failures rehearsed on the operator's own machine, with a verdict from what was seen outside.
//!
//! A drill prepares a [`field`] (stores, nodes, a proxy on every way between), lets callers do what a seeded
//! [`plan`] says, injects the faults of its [`script`] at random moments, heals, waits until everything that
//! can come has come, and has the [`checker`] hold the whole [`history`] against the promises. It trusts no
//! word of the server: an answer counts as what a caller was told, a delivery as what a receiver got.
//!
//! | room | what it is for |
//! |---|---|
//! | [`script`], [`fault`] | which faults come when; how each is injected, healed and proved |
//! | [`plan`], [`load`], [`receiver`] | the timers; those who ask; those who are called |
//! | [`history`], [`checker`], [`verdict`] | what was seen; what it proves; how it is told |
//! | [`machine`] | what this machine did by itself |
//! | [`field`], [`ground`], [`proxy`], [`process`] | nodes; servers of its own; ways that can be cut; children |

pub mod checker;
pub mod fault;
pub mod field;
pub mod ground;
pub mod history;
pub mod load;
pub mod machine;
pub mod plan;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod script;
pub mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::clock::{Monotonic, wall_us};
use checker::{Findings, Patience, check};
use fault::{Open, heal, inject};
use field::{Field, Ground};
use history::{Book, Fault, Struck, Terms, Us};
use load::Callers;
use machine::Machine;
use receiver::Receivers;
use script::{Drill, Has, Scene};
use verdict::{Outcome, Verdict};

/// How long after the last due time, at most, outcomes are waited for: retries, expired claims.
const SETTLE: Duration = Duration::from_secs(45);
/// How long repeats are waited for when everything has come.
const LINGER: Duration = Duration::from_secs(2);
/// How often it is looked whether everything has come.
const LOOK: Duration = Duration::from_millis(700);
/// How long after a fault lateness may still be its doing, beside the lease.
const RECOVERY_US: Us = 4_000_000;

/// What all drills of a call have in common.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where.
    pub ground: Ground,
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
    /// Further settings of the nodes.
    pub sets: Vec<String>,
    /// Where the nodes' logs are kept after a violation.
    pub keep: Option<PathBuf>,
}

/// Tells what is going on: what, how many seconds of how many.
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
    let nodes = if options.ground == Ground::Embedded { 1 } else { options.nodes };
    let mut field = Field::open(&options.ground, nodes, options.lease_ms, &options.sets).await?;
    let rehearsed = tokio::select! {
        rehearsed = rehearse(&mut field, drill, seed, options, progress) => rehearsed,
        () = stop.cancelled() => Err(Interrupted.into()),
    };
    let mut verdict = match rehearsed {
        Ok(verdict) => verdict,
        Err(why) => {
            // What it was about to say matters more than how its end went.
            let _ = field.close().await;
            return Err(why);
        }
    };
    if let (Outcome::Violated, Some(keep)) = (verdict.outcome, &options.keep) {
        let to = keep.join(format!("{}-{seed}", drill.name()));
        field.keep_logs(&to).context("the nodes' logs cannot be kept")?;
        verdict.logs = Some(to.display().to_string());
    }
    field.close().await?;
    Ok(verdict)
}

async fn rehearse(
    field: &mut Field,
    drill: Drill,
    seed: u64,
    options: &Options,
    progress: Progress<'_>,
) -> anyhow::Result<Verdict> {
    let nodes = field.nodes.len() as u8;
    let shape = drill.shape(options.rate, options.seconds);
    let plan = plan::timers(seed, shape);
    let lease_ms = i64::try_from(options.lease_ms)?;
    let scenes = drill.scenes(seed, options.seconds, lease_ms, nodes, has(&options.ground));
    let book = Arc::new(Book::default());
    let receivers = Arc::new(Receivers::start(Arc::clone(&book)).await?);
    let callers = Callers::new(field.addresses(), Arc::clone(&book), receivers)?;

    // Due all through the load, so that a fault meets them in every place.
    let first_extra = plan.len() as u32;
    let span_ms = i64::from(options.seconds) * 1000;
    let from_ms = wall_us() / 1000 + fill_ms(options.window_timers);
    let spread = |n: u32| from_ms + i64::from(n) * span_ms / i64::from(options.window_timers.max(1));
    if options.window_timers > 0 {
        progress("filling the window", 0, 0);
        callers.fill(first_extra, (0..options.window_timers).map(spread).collect()).await;
    }

    let machine = Machine::watch(field.disk()).context("the drill's own directory cannot be written")?;
    let began_us = wall_us();
    let last_due_ms = plan.iter().map(|timer| timer.due_at + plan::MOVE_MS).max().unwrap_or_default();
    let last_due_ms = last_due_ms.max(from_ms + span_ms - began_us / 1000);
    let load = {
        let (callers, plan) = (Arc::clone(&callers), plan.clone());
        tokio::spawn(async move { callers.run(&plan, began_us).await })
    };
    let mut faults = Vec::new();
    play(field, &book, &scenes, began_us, &mut faults, |at_ms, what| {
        progress(what, at_ms.unsigned_abs() / 1000, last_due_ms.unsigned_abs() / 1000);
    })
    .await?;
    for node in &field.nodes {
        node.ready().await?;
    }
    let mut terms: Vec<Terms> = plan.iter().map(plan::Planned::terms).collect();
    terms.resize(terms.len() + options.window_timers as usize, Terms::default());
    let patience =
        Patience { recovery_us: RECOVERY_US + lease_ms * 1000, answer_us: plan::TIMEOUT_MS as Us * 750 };
    let all = || [faults.clone(), machine.stood_still()].concat();
    let look = |at_us: Us| check(&book.history(terms.clone(), all(), at_us), patience);
    let end_us = began_us + last_due_ms * 1000;
    let give_up_us = end_us + SETTLE.as_micros() as Us;
    let findings = loop {
        tokio::time::sleep(LOOK).await;
        let now = wall_us();
        progress("waiting for what is due", seconds(now - began_us), seconds(end_us - began_us));
        if now < end_us {
            continue;
        }
        if now > give_up_us {
            callers.give_up();
        }
        if !load.is_finished() {
            continue;
        }
        let found = look(now);
        if (found.lost == 0 && found.open == 0) || now > give_up_us {
            tokio::time::sleep(LINGER).await;
            break look(wall_us());
        }
    };
    load.await.context("the callers broke down")?;
    let mut faults = all();
    faults.extend(bad_receivers(drill, &book, began_us));
    let ledger = ledger(&callers).await;
    let verdict = judge(drill, seed, options, findings, faults, ledger);
    Ok(Verdict { nodes, seconds: (wall_us() - began_us) as f64 / 1e6, ..verdict })
}

/// Injects and heals as the script says, in the order of time.
async fn play(
    field: &mut Field,
    book: &Book,
    scenes: &[Scene],
    began_us: Us,
    faults: &mut Vec<Fault>,
    tell: impl Fn(i64, &str),
) -> anyhow::Result<()> {
    let mut moments: Vec<(i64, usize, bool)> = Vec::new();
    for (number, scene) in scenes.iter().enumerate() {
        moments.push((scene.from_ms, number, true));
        moments.push((scene.until_ms, number, false));
    }
    moments.sort_unstable_by_key(|(at, number, begins)| (*at, !begins, *number));
    let mut open: Vec<(usize, Open)> = Vec::new();
    for (at_ms, number, begins) in moments {
        loop {
            let wait_us = began_us + at_ms * 1000 - wall_us();
            if wait_us <= 0 {
                break;
            }
            tell((wall_us() - began_us) / 1000, "load and faults");
            tokio::time::sleep(Duration::from_micros(wait_us.unsigned_abs()).min(LOOK)).await;
        }
        let strike = scenes[number].strike;
        if begins {
            tell(at_ms, strike.name());
            let injected = inject(field, book, strike).await;
            open.push((number, injected.with_context(|| format!("{} cannot be injected", strike.name()))?));
        } else if let Some(place) = open.iter().position(|(of, _)| *of == number) {
            let (_, one) = open.swap_remove(place);
            faults
                .push(heal(field, one).await.with_context(|| format!("{} cannot be healed", strike.name()))?);
        }
    }
    Ok(())
}

/// Receivers that behave badly are a fault as long as the load.
fn bad_receivers(drill: Drill, book: &Book, began_us: Us) -> Option<Fault> {
    (drill == Drill::SlowHook).then(|| {
        let bad = book.not_accepted();
        Fault {
            kind: "bad receivers",
            struck: Struck::Receivers,
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
    let mut violations: Vec<(String, u64)> =
        findings.violations(faults.len()).into_iter().map(named).collect();
    if !ledger.as_ref().is_some_and(|ledger| balances(ledger, findings.registered)) {
        violations.push(("ledger not balanced".into(), 1));
    }
    let landed = |fault: &Fault| fault.landed.is_some() && fault.struck != Struck::Machine;
    let landed = faults.iter().any(landed);
    let outcome = match (violations.is_empty(), landed) {
        (false, _) => Outcome::Violated,
        (true, false) => Outcome::Unknown,
        (true, true) => Outcome::Passed,
    };
    Verdict {
        drill: drill.name(),
        ground: options.ground.name(),
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

/// The ledger, once the last results are recorded.
async fn ledger(callers: &Callers) -> Option<serde_json::Value> {
    let began = Monotonic::now();
    let mut last = None;
    while began.elapsed() < Duration::from_secs(10) {
        last = callers.ledger().await.or(last);
        if last.as_ref().is_some_and(|ledger| ledger["pending"] == 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    last
}

const fn has(ground: &Ground) -> Has {
    match ground {
        Ground::Embedded => Has::Nodes,
        Ground::Own => Has::Servers,
        Ground::Given { .. } => Has::Ways,
    }
}

/// How long, in milliseconds, filling the window takes at most: those timers are due after it.
fn fill_ms(timers: u32) -> i64 {
    3000 + i64::from(timers) / 10
}

const fn seconds(us: Us) -> u64 {
    us.unsigned_abs() / 1_000_000
}

//! `burst`: many timers due within one second, or at one millisecond.
//!
//! They are registered before, in batches. Seconds are from the first due time to the last arrival.

use std::time::Duration;

use anyhow::bail;

use super::{Env, Row, note_span, note_verdict, of_run, short, step};
use crate::clock::{Clock, SystemClock};
use crate::model::time::UnixMs;
use crate::tools::bench::load::LoadResult;
use crate::tools::bench::require_complete;
use crate::tools::bench::timers::{Due, Ids};

/// As many timers are surely registered in a second; it gives how far ahead a burst has to be due.
const SURE_RATE: u64 = 3000;
/// How long before the first due time the last registration has to be over.
const CALM_MS: i64 = 500;

/// `burst`
#[derive(Debug, Clone)]
pub struct Burst {
    /// How many timers, one measurement each.
    pub counts: Vec<u64>,
    /// All due at one millisecond instead of within one second.
    pub same_ms: bool,
    /// How long after the first registration they are due; reckoned from the count if not given.
    pub ahead: Option<Duration>,
    /// Far-future timers that are there before.
    pub parked: u64,
}

impl Burst {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.park(self.parked, Ids::Server).await?;
        self.runs(env, "burst", self.parked).await
    }

    /// All counts, in all runs; `parked` is only for the name.
    pub(super) async fn runs(
        &self,
        env: &mut Env,
        scenario: &'static str,
        parked: u64,
    ) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            for &count in &self.counts {
                let within = if self.same_ms { "1 ms" } else { "1 s" };
                let name = format!("burst {} in {within}", short(count));
                rows.push(of_run(self.once(env, count, Row::new(scenario, step(name, parked))).await?, run));
            }
        }
        Ok(rows)
    }

    async fn once(&self, env: &mut Env, count: u64, mut row: Row) -> anyhow::Result<Row> {
        env.say(&format!("{} {}", row.scenario, row.step));
        let over_ms = if self.same_ms { 1 } else { 1000 };
        let (load, first_due) = register(env, count, over_ms, self.ahead).await?;
        until(UnixMs::new(first_due.get() - CALM_MS / 2)).await;
        let before = env.reading().await;
        env.received(load.done, load.last_due).await;
        env.reading().await.note(&before, false, &mut row.figures);
        let verdict = env.verdict(&load).await;
        note_verdict(&verdict, &mut row.figures);
        let first_due = verdict.first_due.unwrap_or(first_due);
        note_span(first_due.get() * 1000, &verdict, &mut row.figures);
        env.drained(&mut row.figures).await?;
        Ok(row)
    }
}

/// Registers a burst and has the receiver expect it; returns its first due time. Fails if registering is not over
/// well before that.
pub(super) async fn register(
    env: &mut Env,
    count: u64,
    over_ms: i64,
    ahead: Option<Duration>,
) -> anyhow::Result<(LoadResult, UnixMs)> {
    let ahead = ahead.unwrap_or_else(|| Duration::from_secs(10 + count / SURE_RATE));
    let from = SystemClock.now().plus(ahead);
    let job = env.job(Ids::Server, Due::At { from, over_ms }, count);
    env.receiver.expect(job.first..job.first + job.count);
    let load = env.batches(job).await?;
    require_complete(&load)?;
    if SystemClock.now().get() + CALM_MS > from.get() {
        bail!(
            "registering took {:.1} s of the {} s until the first is due; raise --ahead",
            load.seconds,
            ahead.as_secs()
        );
    }
    Ok((load, from))
}

/// Waits for a moment of wall time.
pub(super) async fn until(at: UnixMs) {
    tokio::time::sleep(at.since(SystemClock.now())).await;
}

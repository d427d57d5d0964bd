//! `crash`: SIGKILL in the middle of a burst.
//!
//! The server is started again at once. Attempts that were in flight are made a second time. The step ends when the
//! server says that nothing but the parked timers is pending. Seconds are from the restart to the last
//! timer's first arrival, `again` to the last second attempt. Duplicates are expected here: what had arrived
//! and could not be recorded must come again.

use std::time::Duration;

use super::burst::register;
use super::{Env, Figure, Row, note_span, note_verdict, of_run, short, step};
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::tools::bench::timers::Ids;

/// `crash`
#[derive(Debug, Clone)]
pub struct Crash {
    /// Timers in the burst.
    pub count: u64,
    /// How long after the first registration they are due; reckoned from the count if not given.
    pub ahead: Option<Duration>,
    /// The share that has arrived when the server is killed.
    pub kill_at: f64,
    /// Far-future timers beside them.
    pub parked: u64,
}

impl Crash {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.park(self.parked, Ids::Server).await?;
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            let name = step(format!("crash {}", short(self.count)), self.parked);
            rows.push(of_run(self.once(env, Row::new("crash", name)).await?, run));
        }
        Ok(rows)
    }

    async fn once(&self, env: &mut Env, mut row: Row) -> anyhow::Result<Row> {
        env.say(&format!("{} {}", row.scenario, row.step));
        let others = env.pending().await?;
        let (load, _) = register(env, self.count, 1000, self.ahead).await?;
        let enough = ((self.count as f64 * self.kill_at) as u64).clamp(1, self.count);
        while env.receiver.distinct() < enough && SystemClock.now() < load.last_due.plus(env.options.wait) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        env.kill().await?;
        let at_kill = env.receiver.distinct();
        let before = env.reading().await;
        let began_us = env.restart(&mut row.figures).await?;
        env.received(load.done, SystemClock.now()).await;
        let began = Monotonic::now();
        while began.elapsed() < env.options.wait && env.pending().await.unwrap_or(i64::MAX) > others {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        env.reading().await.note(&before, true, &mut row.figures);
        let verdict = env.verdict(&load).await;
        note_verdict(&verdict, &mut row.figures);
        note_span(began_us, &verdict, &mut row.figures);
        row.figures.set(
            Figure::Rate,
            (verdict.received - at_kill) as f64 / row.figures.get(Figure::Seconds).unwrap_or(0.0).max(0.001),
        );
        let again = env.receiver.arrivals().into_iter().filter(|arrival| arrival.attempt > 1);
        let (count, last_us) =
            again.fold((0_u64, None), |(n, last), arrival| (n + 1, last.max(Some(arrival.at_us))));
        row.figures.set(Figure::Redelivered, count as f64);
        row.figures.set(Figure::Again, last_us.map(|last| (last - began_us) as f64 / 1e6));
        row.note = Some(format!("{at_kill} had arrived at the kill"));
        Ok(row)
    }
}

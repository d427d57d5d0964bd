//! `paced`: lateness while timers are registered, and come due, at a steady rate.
//!
//! A timer is due a random time after its registration, so due moments spread over milliseconds; they reach
//! the full rate once the longest of those times has passed, and fall again after the last registration.

use std::time::Duration;

use super::{Env, Figure, Row, note_load, note_verdict, of_run, step};
use crate::tools::bench::load;
use crate::tools::bench::timers::{Due, Ids};

/// `paced`
#[derive(Debug, Clone)]
pub struct Paced {
    /// Timers a second.
    pub rate: f64,
    /// How long they are registered.
    pub seconds: f64,
    /// Connections that register.
    pub connections: usize,
    /// The shortest time from registration to due.
    pub ahead_min: Duration,
    /// The longest.
    pub ahead_max: Duration,
    /// Far-future timers that are there before.
    pub parked: u64,
}

impl Paced {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.park(self.parked, Ids::Server).await?;
        self.runs(env, "paced", self.parked).await
    }

    /// All runs; `parked` is only for the name.
    pub(super) async fn runs(
        &self,
        env: &mut Env,
        scenario: &'static str,
        parked: u64,
    ) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            let name = format!("paced {}/s {} s", self.rate, self.seconds);
            rows.push(of_run(self.once(env, Row::new(scenario, step(name, parked))).await?, run));
        }
        Ok(rows)
    }

    async fn once(&self, env: &mut Env, mut row: Row) -> anyhow::Result<Row> {
        env.say(&format!("{} {}", row.scenario, row.step));
        let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let due = Due::After { min_ms: ms(self.ahead_min), max_ms: ms(self.ahead_max) };
        let job = env.job(Ids::Server, due, (self.rate * self.seconds).round() as u64);
        env.receiver.expect(job.first..job.first + job.count);
        let before = env.reading().await;
        let load = load::singles(job, self.connections, Some(self.rate)).await?;
        env.received(load.done, load.last_due).await;
        env.reading().await.note(&before, false, &mut row.figures);
        note_load(&load, &mut row);
        let verdict = env.verdict(&load).await;
        note_verdict(&verdict, &mut row.figures);
        row.figures.set(Figure::Rate, load.rate());
        Ok(row)
    }
}

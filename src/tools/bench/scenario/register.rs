//! `register`: how fast timers are taken in, singly and in bulk, and taken back.
//!
//! Every timer is due in one to three years, so that nothing fires beside it. Each step works through a
//! fixed count; its seconds are from the first call to the last answer.

use super::{Env, Row, note_load, of_run, short, step};
use crate::tools::bench::load::{self, LoadResult};
use crate::tools::bench::require_complete;
use crate::tools::bench::timers::{Due, Ids};

/// One way to register, or to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Step {
    /// POST /v1/timers: the service names the timer
    Post,
    /// PUT /v1/timers/{id}: the caller does
    Put,
    /// POST /v1/timers/batch without ids
    BatchPost,
    /// POST /v1/timers/batch with the caller's ids
    BatchPut,
    /// POST /v1/timers/stream without ids
    StreamPost,
    /// POST /v1/timers/stream with the caller's ids
    StreamPut,
    /// DELETE /v1/timers/{id}
    Cancel,
}

/// `register`
#[derive(Debug, Clone)]
pub struct Register {
    /// Which steps.
    pub steps: Vec<Step>,
    /// Timers a step.
    pub count: u64,
    /// How many connections single registrations use, one measurement each; cancels use the first.
    pub connections: Vec<usize>,
    /// Timers, under callers' ids, that are there before.
    pub parked: u64,
}

impl Register {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.park(self.parked, Ids::Caller).await?;
        self.steps(env, "register", self.parked).await
    }

    /// All steps, in all runs; `parked` is only for the name.
    pub(super) async fn steps(
        &self,
        env: &mut Env,
        scenario: &'static str,
        parked: u64,
    ) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            for &one in &self.steps {
                let connections = match one {
                    Step::Post | Step::Put => &self.connections[..],
                    Step::Cancel => &self.connections[..1],
                    _ => &[env.options.bulk_connections][..],
                };
                for &connections in connections {
                    let name = format!("{} {} c={connections}", name(one), short(self.count));
                    let row = Row::new(scenario, step(name, parked));
                    rows.push(of_run(self.measure(env, one, connections, row).await?, run));
                }
            }
        }
        Ok(rows)
    }

    async fn measure(
        &self,
        env: &mut Env,
        one: Step,
        connections: usize,
        mut row: Row,
    ) -> anyhow::Result<Row> {
        env.say(&format!("{} {}", row.scenario, row.step));
        let ids = match one {
            Step::Post | Step::BatchPost | Step::StreamPost => Ids::Server,
            Step::Put | Step::BatchPut | Step::StreamPut | Step::Cancel => Ids::Caller,
        };
        let job = env.job(ids, Due::FAR, self.count);
        if one == Step::Cancel {
            require_complete(&env.batches(job.clone()).await?)?;
        }
        let before = env.reading().await;
        let load: Option<LoadResult> = match one {
            Step::Post | Step::Put => Some(load::singles(job, connections, None).await?),
            Step::BatchPost | Step::BatchPut => Some(env.batches(job).await?),
            Step::StreamPost | Step::StreamPut => load::streams(job, connections).await?,
            Step::Cancel => Some(load::cancels(job, connections).await?),
        };
        match load {
            Some(load) => {
                env.reading().await.note(&before, false, &mut row.figures);
                note_load(&load, &mut row);
                env.drained(&mut row.figures).await?;
            }
            None => row.note = Some("this server has no POST /v1/timers/stream".into()),
        }
        Ok(row)
    }
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Post => "post",
        Step::Put => "put",
        Step::BatchPost => "batch-post",
        Step::BatchPut => "batch-put",
        Step::StreamPost => "stream-post",
        Step::StreamPut => "stream-put",
        Step::Cancel => "cancel",
    }
}

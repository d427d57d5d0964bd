//! `recover`: many timers overdue before the process starts.
//!
//! They are registered to be due within one second, the server is killed before that, and started again when
//! all are overdue. Seconds are from just before the process is started to the last arrival; lateness is
//! therefore mostly the time during which there was no server.

use std::time::Duration;

use anyhow::bail;

use super::burst::{register, until};
use super::{Env, Row, note_span, note_verdict, of_run, short, step};
use crate::clock::{Clock, SystemClock};
use crate::tools::bench::timers::Ids;

/// `recover`
#[derive(Debug, Clone)]
pub struct Recover {
    /// Timers overdue at the start.
    pub count: u64,
    /// How long after the first registration they are due; reckoned from the count if not given.
    pub ahead: Option<Duration>,
    /// Far-future timers beside them.
    pub parked: u64,
}

impl Recover {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.park(self.parked, Ids::Server).await?;
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            let name = step(format!("recover {}", short(self.count)), self.parked);
            rows.push(of_run(self.once(env, Row::new("recover", name)).await?, run));
        }
        Ok(rows)
    }

    async fn once(&self, env: &mut Env, mut row: Row) -> anyhow::Result<Row> {
        env.say(&format!("{} {}", row.scenario, row.step));
        let (load, first_due) = register(env, self.count, 1000, self.ahead).await?;
        env.kill().await?;
        if SystemClock.now() >= first_due || env.receiver.distinct() > 0 {
            bail!("the server was not killed before the first was due; raise --ahead");
        }
        until(load.last_due.plus(Duration::from_millis(100))).await;
        let before = env.reading().await;
        let began_us = env.restart(&mut row.figures).await?;
        env.received(load.done, SystemClock.now()).await;
        env.reading().await.note(&before, true, &mut row.figures);
        let verdict = env.verdict(&load).await;
        note_verdict(&verdict, &mut row.figures);
        note_span(began_us, &verdict, &mut row.figures);
        Ok(row)
    }
}

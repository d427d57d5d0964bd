//! `idle`: what it costs to do nothing, with far-future timers in the store.

use std::time::Duration;

use super::{Env, Figure, Row, of_run, step};
use crate::tools::bench::timers::Ids;

/// `idle`
#[derive(Debug, Clone)]
pub struct Idle {
    /// Far-future timers.
    pub parked: u64,
    /// How long nothing is done.
    pub span: Duration,
    /// How long server and stores may first get over being filled.
    pub settle: Duration,
}

impl Idle {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.park(self.parked, Ids::Server).await?;
        if let Some(stores) = &mut env.stores {
            stores.tidy().await;
        }
        env.say("letting things settle");
        tokio::time::sleep(self.settle).await;
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            let mut row = Row::new("idle", step("idle".into(), self.parked));
            env.say(&format!("{} for {:?}", row.step, self.span));
            let before = env.reading().await;
            tokio::time::sleep(self.span).await;
            let after = env.reading().await;
            after.note(&before, false, &mut row.figures);
            row.figures.set(Figure::Seconds, (after.at_us - before.at_us) as f64 / 1e6);
            rows.push(of_run(row, run));
        }
        Ok(rows)
    }
}

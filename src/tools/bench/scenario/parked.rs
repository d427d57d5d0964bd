//! `parked`: what far-future timers weigh, and whether registering, pace and bursts feel them.
//!
//! Bytes in SQL are the growth of the live table with its indexes, divided by the timers. Bytes in Redis are
//! the growth of its memory when timers due within the hour have been promoted; whatever else uses that
//! Redis meanwhile is in it.

use std::time::Duration;

use super::burst::Burst;
use super::paced::Paced;
use super::register::Register;
use super::{Env, Figure, Row, note_load, short};
use crate::clock::Monotonic;
use crate::tools::bench::require_complete;
use crate::tools::bench::timers::{Due, Ids};

/// Timers to weigh in Redis are due within the window, and late enough to be left alone while they are weighed.
const PROMOTED: Due = Due::After { min_ms: 10 * 60_000, max_ms: 50 * 60_000 };
/// How often Redis is weighed, how long it has to stay the same, and how long that is waited for.
const WEIGH: Duration = Duration::from_secs(3);
const SAME: u32 = 8;
const SETTLE: Duration = Duration::from_secs(240);
/// What the memory of a Redis in use goes up and down by, in bytes.
const RIPPLE: f64 = 16_384.0;

/// `parked`
#[derive(Debug, Clone)]
pub struct Parked {
    /// Far-future timers.
    pub count: u64,
    /// Who names them.
    pub ids: Ids,
    /// Timers to weigh in Redis; 0 leaves that out.
    pub promoted: u64,
    /// Then registered.
    pub register: Register,
    /// Then paced.
    pub paced: Paced,
    /// Then at once.
    pub burst: Burst,
}

impl Parked {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        let mut rows = vec![self.park(env).await?];
        rows.extend(self.register.steps(env, "parked", self.count).await?);
        rows.extend(self.paced.runs(env, "parked", self.count).await?);
        rows.extend(self.burst.runs(env, "parked", self.count).await?);
        if self.promoted > 0 {
            rows.push(self.weigh(env).await?);
        }
        Ok(rows)
    }

    async fn park(&self, env: &mut Env) -> anyhow::Result<Row> {
        let mut row = Row::new("parked", format!("park {}", short(self.count)));
        let (bytes, before) = (env.sql_bytes().await, env.reading().await);
        let Some(load) = env.park(self.count, self.ids).await? else { return Ok(row) };
        env.reading().await.note(&before, false, &mut row.figures);
        note_load(&load, &mut row);
        let grown = env.sql_bytes().await.zip(bytes).map(|(now, then)| (now - then) / self.count as f64);
        row.figures.set(Figure::SqlBytes, grown);
        Ok(row)
    }

    async fn weigh(&self, env: &mut Env) -> anyhow::Result<Row> {
        let mut row = Row::new("parked", format!("promote {}", short(self.promoted)));
        env.say(&format!("{} {}", row.scenario, row.step));
        let before = env.reading().await;
        let job = env.job(Ids::Caller, PROMOTED, self.promoted);
        let load = env.batches(job).await?;
        require_complete(&load)?;
        note_load(&load, &mut row);
        let mut after = env.reading().await;
        if before.redis.memory.is_some() {
            let (began, mut same) = (Monotonic::now(), 0);
            while same < SAME && began.elapsed() < SETTLE {
                tokio::time::sleep(WEIGH).await;
                let next = env.reading().await;
                let moved = next.redis.memory.zip(after.redis.memory).map(|(now, then)| (now - then).abs());
                let still = moved.is_some_and(|moved| moved < RIPPLE);
                same = if still { same + 1 } else { 0 };
                after = next;
            }
            if same < SAME {
                row.note = Some("the memory of Redis did not stand still; who else uses it?".into());
            }
        }
        after.note(&before, false, &mut row.figures);
        let grown = after.redis.memory.zip(before.redis.memory);
        row.figures.set(Figure::RedisBytes, grown.map(|(now, then)| (now - then) / self.promoted as f64));
        Ok(row)
    }
}

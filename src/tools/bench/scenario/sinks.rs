//! `sinks`: deliveries to a destination of each kind, beside a publisher that has no server behind it.
//!
//! The brokers are the bench's own, on this machine. A burst is over when the server counts the last timer as delivered,
//! which it is when its broker has confirmed it. Lateness is from due to that confirmation, of a sample of the timers.

use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;

use super::{Env, Figure, Row, of_run, short};
use crate::clock::{Clock, SystemClock, wall_us};
use crate::model::time::UnixMs;
use crate::tools::bench::require_complete;
use crate::tools::bench::timers::{Due, Ids};
use crate::tools::brokers::{Broker, Kind};
use crate::tools::quantiles::Quantiles;

/// The destination.
const NAME: &str = "bench-sink";
/// At most so many events are under way: for the server and for the publisher beside it.
const UNDER_WAY: usize = 256;
/// As many timers of a step are asked when they were delivered.
const SAMPLE: u64 = 1000;
/// How long before the first due time all has to be registered.
const CALM: Duration = Duration::from_secs(1);

/// `sinks`
#[derive(Debug, Clone)]
pub struct Sinks {
    /// The kinds, in this order.
    pub kinds: Vec<Kind>,
    /// Timers of a burst, due within one second.
    pub count: u64,
    /// Timers a second at a steady rate.
    pub rate: u64,
    /// How many seconds that lasts.
    pub seconds: u64,
}

impl Sinks {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for &kind in &self.kinds {
            let dir = env.dir.join(kind.word().replace(' ', "-"));
            let mut broker = match kind {
                Kind::Webhook => Broker::webhook(&env.receiver.url()),
                kind => Broker::start(kind, &dir)
                    .await
                    .with_context(|| format!("a broker for {}", kind.word()))?,
            };
            broker.listen().await?;
            let mut body = broker.place.clone();
            body["concurrency"] = json!(UNDER_WAY);
            env.endpoint.put(&format!("/v1/destinations/{NAME}"), &body.to_string()).await?;
            env.shape.target = json!({"destination": NAME}).to_string();
            for run in 1..=env.options.runs {
                for row in self.once(env, kind, &broker).await? {
                    rows.push(of_run(row, run));
                }
            }
        }
        Ok(rows)
    }

    async fn once(&self, env: &mut Env, kind: Kind, broker: &Broker) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        env.say(&format!("sinks {} bare", kind.word()));
        if let Some(rate) = broker.bare(self.count, env.options.payload_bytes, UNDER_WAY).await? {
            let mut row = Row::new("sinks", format!("{} bare", kind.word()));
            row.figures.set(Figure::Count, self.count as f64);
            row.figures.set(Figure::Rate, rate);
            rows.push(row);
        }
        let name = format!("{} burst {}", kind.word(), short(self.count));
        rows.push(self.step(env, name, self.count, 1000).await?);
        let name = format!("{} {}/s {} s", kind.word(), self.rate, self.seconds);
        let over_ms = i64::try_from(self.seconds * 1000)?;
        rows.push(self.step(env, name, self.rate * self.seconds, over_ms).await?);
        Ok(rows)
    }

    /// Timers due within so many milliseconds, registered before.
    async fn step(&self, env: &mut Env, name: String, count: u64, over_ms: i64) -> anyhow::Result<Row> {
        env.say(&format!("sinks {name}"));
        let mut row = Row::new("sinks", name);
        let before = ended(env).await?;
        let from = SystemClock.now().plus(Duration::from_secs(5 + count / 3000) + CALM);
        let job = env.job(Ids::Caller, Due::At { from, over_ms }, count);
        env.receiver.expect(job.first..job.first + job.count);
        let (first, due, shape) = (job.first, job.due, job.shape.clone());
        let load = env.batches(job).await?;
        require_complete(&load)?;
        super::burst::until(UnixMs::new(from.get() - 200)).await;
        let usage = env.reading().await;
        let give_up = load.last_due.plus(env.options.wait);
        let mut delivered = 0;
        while delivered < count && SystemClock.now() < give_up {
            tokio::time::sleep(Duration::from_millis(5)).await;
            delivered = ended(env).await? - before;
        }
        let seconds = (wall_us() - from.get() * 1000) as f64 / 1e6;
        env.reading().await.note(&usage, false, &mut row.figures);
        row.figures.set(Figure::Count, delivered as f64);
        row.figures.set(Figure::Lost, count.saturating_sub(delivered) as f64);
        row.figures.set(Figure::Seconds, seconds);
        row.figures.set(Figure::Rate, delivered as f64 / seconds.max(0.001));
        let every = (count / SAMPLE).max(1);
        let asked = (0..count / every).map(|n| first + n * every);
        let late_us = |number: u64| {
            let (id, due) = (shape.id(number), shape.due(number, due));
            let endpoint = env.endpoint.clone();
            async move {
                let attempts = endpoint.get(&format!("/v1/timers/{id}/attempts")).await?;
                let Attempts { items } = serde_json::from_slice(&attempts)?;
                let ended = items.iter().filter_map(|attempt| attempt.ended_at).max();
                anyhow::Ok((items.len(), ended.map(|ended| (ended.get() - due.get()) * 1000)))
            }
        };
        let asked: Vec<_> = stream::iter(asked).map(late_us).buffered(16).try_collect().await?;
        row.figures
            .set(Figure::Redelivered, asked.iter().filter(|(attempts, _)| *attempts > 1).count() as f64);
        row.figures.set_lateness(&Quantiles::of(asked.iter().filter_map(|(_, late)| *late)));
        Ok(row)
    }
}

#[derive(Deserialize)]
struct Attempts {
    items: Vec<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    ended_at: Option<UnixMs>,
}

/// Timers that were delivered, by the server's own count.
async fn ended(env: &Env) -> anyhow::Result<u64> {
    #[derive(Deserialize)]
    struct Ledger {
        delivered: u64,
    }
    let ledger: Ledger = serde_json::from_slice(&env.endpoint.get("/v1/ledger").await?)?;
    Ok(ledger.delivered)
}

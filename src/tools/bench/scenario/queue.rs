//! `queue`: workers that fetch and settle.
//!
//! *Drain*: so many timers are ready, and so many workers fetch and ack them, each on a connection of its own, until none
//! is left. On PostgreSQL a bare table is drained beside it, by as many connections without a server: `UPDATE … SKIP
//! LOCKED` for a lease, `DELETE` for an ack, as many rows a statement. *Paced*: timers fall due at a steady rate while
//! workers wait; lateness is from due to leased.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use sea_orm::sqlx::{self, Connection as _, PgConnection, Row as _};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::task::JoinSet;

use super::{Env, Figure, Row, of_run, short};
use crate::clock::{Clock, Monotonic, SystemClock, wall_us};
use crate::model::time::UnixMs;
use crate::tools::bench::load::Endpoint;
use crate::tools::bench::require_complete;
use crate::tools::bench::timers::{Due, Ids};
use crate::tools::quantiles::Quantiles;
use crate::tools::wire::Connection;

/// The queue.
const NAME: &str = "bench";

/// `queue`
#[derive(Debug, Clone)]
pub struct Queue {
    /// Timers of a drain.
    pub count: u64,
    /// How many workers, one drain each.
    pub workers: Vec<usize>,
    /// Items of a lease.
    pub max: u64,
    /// Timers a second at the steady rate.
    pub rate: u64,
    /// How many seconds that lasts.
    pub seconds: u64,
    /// How many workers wait then.
    pub waiting: usize,
}

/// What the workers of a step have got.
#[derive(Debug, Default)]
struct Got {
    leased: AtomicU64,
    acked: AtomicU64,
    again: AtomicU64,
    lost: AtomicU64,
    /// When all were acked, in microseconds since the Unix epoch: workers that wait go on for a moment.
    done_us: AtomicI64,
}

impl Got {
    fn seconds_from(&self, began_us: i64) -> f64 {
        let done_us = self.done_us.load(Ordering::Relaxed);
        let done_us = if done_us == 0 { wall_us() } else { done_us };
        (done_us - began_us) as f64 / 1e6
    }
}

#[derive(Deserialize)]
struct Leased<'a> {
    #[serde(borrow)]
    items: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    lease_token: &'a RawValue,
    due_at: UnixMs,
    attempt: u32,
}

#[derive(Deserialize)]
struct Settled {
    results: Vec<Status>,
}

#[derive(Deserialize)]
struct Status {
    status: u16,
}

impl Queue {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        env.shape.target = json!({"queue": NAME}).to_string();
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            for &workers in &self.workers {
                if let Some(rate) = self.bare(env, workers).await? {
                    let mut row = Row::new("queue", format!("{workers} workers, bare table"));
                    row.figures.set(Figure::Count, self.count as f64);
                    row.figures.set(Figure::Rate, rate);
                    rows.push(of_run(row, run));
                }
                rows.push(of_run(self.drain(env, workers).await?, run));
            }
            if self.seconds > 0 {
                rows.push(of_run(self.paced(env).await?, run));
            }
        }
        Ok(rows)
    }

    /// Everything is ready; so many workers fetch and ack it.
    async fn drain(&self, env: &mut Env, workers: usize) -> anyhow::Result<Row> {
        let name = format!("{workers} workers, {} ready, {} a lease", short(self.count), self.max);
        env.say(&format!("queue {name}"));
        let mut row = Row::new("queue", name);
        let job = env.job(Ids::Caller, Due::At { from: SystemClock.now(), over_ms: 1 }, self.count);
        let load = env.batches(job).await?;
        require_complete(&load)?;
        let before = env.reading().await;
        let began_us = wall_us();
        let (got, _) = self.work(env, workers, self.count, Duration::from_secs(1)).await?;
        let seconds = got.seconds_from(began_us);
        env.reading().await.note(&before, false, &mut row.figures);
        note(&got, self.count, seconds, &mut row);
        Ok(row)
    }

    /// Timers fall due at a steady rate while workers wait.
    async fn paced(&self, env: &mut Env) -> anyhow::Result<Row> {
        let count = self.rate * self.seconds;
        let name = format!("{}/s {} s, {} workers wait", self.rate, self.seconds, self.waiting);
        env.say(&format!("queue {name}"));
        let mut row = Row::new("queue", name);
        let from = SystemClock.now().plus(Duration::from_secs(3 + count / 3000));
        let job = env.job(Ids::Caller, Due::At { from, over_ms: i64::try_from(self.seconds * 1000)? }, count);
        let load = env.batches(job).await?;
        require_complete(&load)?;
        super::burst::until(UnixMs::new(from.get() - 1000)).await;
        let before = env.reading().await;
        let (got, late) = self.work(env, self.waiting, count, Duration::from_secs(20)).await?;
        let seconds = got.seconds_from(from.get() * 1000);
        env.reading().await.note(&before, false, &mut row.figures);
        note(&got, count, seconds, &mut row);
        row.figures.set(Figure::Early, late.iter().filter(|late| **late < 0).count() as f64);
        row.figures.set_lateness(&Quantiles::of(late.iter().copied()));
        Ok(row)
    }

    /// Workers fetch and ack until `count` are acked, or nothing comes for the time that makes it lost. Returns also how
    /// late each item was leased, in microseconds.
    async fn work(
        &self,
        env: &Env,
        workers: usize,
        count: u64,
        wait: Duration,
    ) -> anyhow::Result<(Arc<Got>, Vec<i64>)> {
        let got = Arc::new(Got::default());
        let mut tasks = JoinSet::new();
        for n in 0..workers {
            let worker = Worker {
                endpoint: env.endpoint.clone(),
                lease: json!({"worker": format!("w{n}"), "max": self.max, "wait": format!("PT{}S", wait.as_secs())})
                    .to_string(),
                got: Arc::clone(&got),
                count,
                patience: env.options.wait,
            };
            tasks.spawn(worker.run());
        }
        let mut late = Vec::new();
        while let Some(done) = tasks.join_next().await {
            late.extend(done??);
        }
        Ok((got, late))
    }

    /// How many rows a second a bare table gives out and removes on this machine, with as many connections. `None` if the
    /// store is no PostgreSQL of the bench's own.
    async fn bare(&self, env: &Env, workers: usize) -> anyhow::Result<Option<f64>> {
        let Some(url) =
            env.stores.as_ref().map(|stores| stores.cold.clone()).filter(|url| url.starts_with("postgres"))
        else {
            return Ok(None);
        };
        env.say(&format!("queue {workers} workers, bare table"));
        // PostgreSQL takes a hundred connections, of which the server has some.
        let (connections, max) = (workers.min(50), i64::try_from(self.max)?);
        let mut db = PgConnection::connect(&url).await?;
        for statement in [
            "DROP TABLE IF EXISTS bench_bare",
            "CREATE TABLE bench_bare (id bigserial PRIMARY KEY, ready_at bigint NOT NULL, token bigint, data text)",
            "CREATE INDEX ON bench_bare (ready_at) WHERE token IS NULL",
        ] {
            sqlx::query(statement).execute(&mut db).await?;
        }
        let fill = "INSERT INTO bench_bare (ready_at, data) SELECT n, repeat('x', $2::int) FROM generate_series(1, $1) n";
        let payload = i32::try_from(env.options.payload_bytes)?;
        sqlx::query(fill).bind(i64::try_from(self.count)?).bind(payload).execute(&mut db).await?;
        sqlx::query("ANALYZE bench_bare").execute(&mut db).await?;
        let mut tasks = JoinSet::new();
        let began = Monotonic::now();
        for worker in 0..connections {
            let url = url.clone();
            tasks.spawn(async move {
                let mut db = PgConnection::connect(&url).await?;
                let lease = "UPDATE bench_bare SET token = $1 WHERE id IN (SELECT id FROM bench_bare WHERE token IS NULL \
                             ORDER BY ready_at LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING id, data";
                let mut done = 0_u64;
                loop {
                    let leased = sqlx::query(lease).bind(worker as i64).bind(max).fetch_all(&mut db).await?;
                    if leased.is_empty() {
                        return anyhow::Ok(done);
                    }
                    let ids: Vec<i64> = leased.iter().map(|row| row.get(0)).collect();
                    let acked = sqlx::query("DELETE FROM bench_bare WHERE id = ANY($1)").bind(ids);
                    done += acked.execute(&mut db).await?.rows_affected();
                }
            });
        }
        let mut done = 0;
        while let Some(one) = tasks.join_next().await {
            done += one??;
        }
        let seconds = began.elapsed().as_secs_f64();
        sqlx::query("DROP TABLE bench_bare").execute(&mut db).await?;
        if done != self.count {
            bail!("the bare table gave out {done} of {} rows", self.count);
        }
        Ok(Some(done as f64 / seconds.max(0.001)))
    }
}

fn note(got: &Got, count: u64, seconds: f64, row: &mut Row) {
    let acked = got.acked.load(Ordering::Relaxed);
    row.figures.set(Figure::Count, acked as f64);
    row.figures.set(Figure::Seconds, seconds);
    row.figures.set(Figure::Rate, acked as f64 / seconds.max(0.001));
    row.figures.set(Figure::Lost, count.saturating_sub(acked) as f64);
    row.figures.set(Figure::Failed, got.lost.load(Ordering::Relaxed) as f64);
    row.figures.set(Figure::Redelivered, got.again.load(Ordering::Relaxed) as f64);
}

/// One worker, on a connection of its own.
struct Worker {
    endpoint: Endpoint,
    lease: String,
    got: Arc<Got>,
    count: u64,
    patience: Duration,
}

impl Worker {
    async fn run(self) -> anyhow::Result<Vec<i64>> {
        let mut connection =
            Connection::open(&self.endpoint.address).await.context("the server does not answer")?;
        let path = |what: &str| format!("/v1/queues/{NAME}/{what}");
        let lease = format!("{}{}", self.endpoint.head("POST", &path("lease"), self.lease.len()), self.lease);
        let (mut late, mut body, mut last) = (Vec::new(), Vec::new(), Monotonic::now());
        while self.got.acked.load(Ordering::Relaxed) < self.count && last.elapsed() < self.patience {
            let head = connection.call(lease.as_bytes(), &mut body).await?;
            let at_us = wall_us();
            if head.status != 200 {
                bail!("a lease was answered {}: {}", head.status, String::from_utf8_lossy(&body));
            }
            let Leased { items } = serde_json::from_slice(&body)?;
            if items.is_empty() {
                continue;
            }
            last = Monotonic::now();
            self.got.leased.fetch_add(items.len() as u64, Ordering::Relaxed);
            late.extend(items.iter().map(|item| at_us - item.due_at.get() * 1000));
            let again = items.iter().filter(|item| item.attempt > 1).count();
            self.got.again.fetch_add(again as u64, Ordering::Relaxed);
            let settlements: Vec<_> =
                items.iter().map(|item| json!({"lease_token": item.lease_token, "action": "ack"})).collect();
            let settle = json!({"settlements": settlements}).to_string();
            let settle = format!("{}{settle}", self.endpoint.head("POST", &path("settle"), settle.len()));
            let head = connection.call(settle.as_bytes(), &mut body).await?;
            if head.status != 200 {
                bail!("a settlement was answered {}: {}", head.status, String::from_utf8_lossy(&body));
            }
            let Settled { results } = serde_json::from_slice(&body)?;
            let acked = results.iter().filter(|one| one.status == 200).count() as u64;
            if self.got.acked.fetch_add(acked, Ordering::Relaxed) + acked >= self.count {
                self.got.done_us.store(wall_us(), Ordering::Relaxed);
            }
            self.got.lost.fetch_add(results.len() as u64 - acked, Ordering::Relaxed);
        }
        Ok(late)
    }
}

//! `schedules`: so many rules, each of which makes one occurrence a minute (or another interval), spread evenly over it.
//!
//! *Register*: the rules are put, one call each. *Idle*: all stand, and nothing is due yet. *Fire*: each makes its
//! occurrences, which are delivered; lateness is from the nominal time to the arrival.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::task::JoinSet;

use super::{Env, Figure, Row, note_span, note_verdict, of_run, short};
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::model::time::UnixMs;
use crate::tools::bench::LINGER;
use crate::tools::bench::load::Endpoint;
use crate::tools::bench::receiver::{Arrival, judge};
use crate::tools::bench::timers::{DIGITS, MIN_PAYLOAD};
use crate::tools::wire::Connection;

/// How many rules a second are put at least: the first occurrence is due when all should stand.
const PUTS_A_SECOND: u64 = 400;
/// How long the server may get over that before it is seen idle.
const SETTLE: Duration = Duration::from_secs(10);
/// How long before the first nominal time the idle span ends: what comes up is promoted then.
const AHEAD: Duration = Duration::from_secs(5);

/// `schedules`
#[derive(Debug, Clone)]
pub struct Schedules {
    /// How many rules.
    pub count: u64,
    /// From one nominal time of a rule to the next.
    pub every: Duration,
    /// Occurrences of each.
    pub times: u64,
    /// How long they are idle first.
    pub idle: Duration,
    /// Connections that put them.
    pub connections: u64,
}

/// The rules of one run.
struct Rules {
    endpoint: Endpoint,
    /// Before the ids of this run.
    first: u64,
    count: u64,
    /// The first nominal time of the first rule.
    from: UnixMs,
    every_ms: i64,
    times: u64,
    url: String,
    filling: String,
}

impl Schedules {
    pub(super) async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        if env.options.receivers.hosts > 1 {
            bail!("schedules go to one receiver; leave --hosts out");
        }
        let mut rows = Vec::new();
        for run in 1..=env.options.runs {
            rows.extend(self.once(env).await?.into_iter().map(|row| of_run(row, run)));
        }
        Ok(rows)
    }

    async fn once(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        let settled = if self.idle.is_zero() { Duration::ZERO } else { SETTLE + self.idle + AHEAD };
        let ahead = Duration::from_secs(2 + self.count / PUTS_A_SECOND) + settled;
        let rules = Arc::new(Rules {
            endpoint: env.endpoint.clone(),
            first: env.next,
            count: self.count,
            from: SystemClock.now().plus(ahead),
            every_ms: i64::try_from(self.every.as_millis())?,
            times: self.times,
            url: env.receiver.url(),
            filling: "x".repeat(env.options.payload_bytes.saturating_sub(MIN_PAYLOAD)),
        });
        env.next += self.count;
        env.receiver.expect(rules.first..rules.first + rules.count);
        let mut rows = vec![self.register(env, &rules).await?];
        if !self.idle.is_zero() {
            rows.push(self.stand(env, &rules).await?);
        }
        rows.push(self.fire(env, &rules).await?);
        Ok(rows)
    }

    async fn register(&self, env: &mut Env, rules: &Arc<Rules>) -> anyhow::Result<Row> {
        let mut row = Row::new("schedules", format!("put {}", short(self.count)));
        env.say(&format!("schedules {}", row.step));
        let (before, began) = (env.reading().await, Monotonic::now());
        let (next, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for _ in 0..self.connections {
            tasks.spawn(put(Arc::clone(rules), Arc::clone(&next)));
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let seconds = began.elapsed().as_secs_f64();
        env.reading().await.note(&before, false, &mut row.figures);
        row.figures.set(Figure::Count, self.count as f64);
        row.figures.set(Figure::Seconds, seconds);
        row.figures.set(Figure::Rate, self.count as f64 / seconds.max(0.001));
        if SystemClock.now() >= rules.from {
            bail!("fewer than {PUTS_A_SECOND} rules a second were put; try a smaller --count");
        }
        Ok(row)
    }

    /// Nothing is due yet.
    async fn stand(&self, env: &mut Env, rules: &Rules) -> anyhow::Result<Row> {
        let mut row = Row::new("schedules", format!("idle, {} rules", short(self.count)));
        env.say(&format!("schedules {} for {:?}", row.step, self.idle));
        let end = UnixMs::new(rules.from.get() - i64::try_from(AHEAD.as_millis())?);
        let begin = UnixMs::new(end.get() - i64::try_from(self.idle.as_millis())?);
        super::burst::until(begin).await;
        let before = env.reading().await;
        super::burst::until(end).await;
        let after = env.reading().await;
        after.note(&before, false, &mut row.figures);
        row.figures.set(Figure::Seconds, (after.at_us - before.at_us) as f64 / 1e6);
        Ok(row)
    }

    async fn fire(&self, env: &mut Env, rules: &Rules) -> anyhow::Result<Row> {
        let mut row = Row::new(
            "schedules",
            format!("fire {} each {:?}, {} times", short(self.count), self.every, self.times),
        );
        env.say(&format!("schedules {}", row.step));
        super::burst::until(UnixMs::new(rules.from.get() - 1000)).await;
        let before = env.reading().await;
        let (wanted, patience) = (self.count * self.times, i64::try_from(env.options.wait.as_millis())?);
        let end = rules.from.get() + rules.every_ms * i64::try_from(self.times)?;
        while env.receiver.total() < wanted && SystemClock.now().get() < end + patience {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        env.reading().await.note(&before, false, &mut row.figures);
        tokio::time::sleep(LINGER).await;
        let occurrences: Vec<Arrival> =
            env.receiver.arrivals().into_iter().filter_map(|one| rules.occurrence(one)).collect();
        let verdict = judge(0..wanted, &[], &occurrences);
        note_verdict(&verdict, &mut row.figures);
        note_span(rules.from.get() * 1000, &verdict, &mut row.figures);
        Ok(row)
    }
}

impl Rules {
    /// The first nominal time of a rule.
    fn start(&self, nth: u64) -> UnixMs {
        let share =
            u128::from(nth) * u128::from(self.every_ms.unsigned_abs()) / u128::from(self.count.max(1));
        UnixMs::new(self.from.get() + i64::try_from(share).unwrap_or(0))
    }

    fn body(&self, nth: u64) -> String {
        let (start, every, times) = (self.start(nth).rfc3339(), self.every_ms as f64 / 1000.0, self.times);
        let (url, filling) = (&self.url, &self.filling);
        let number = self.first + nth;
        format!(
            r#"{{"every":"PT{every}S","start_at":"{start}","max_occurrences":{times},"target":{{"webhook":{{"url":"{url}"}}}},"data":{{"n":"{number:0DIGITS$}","p":"{filling}"}}}}"#
        )
    }

    /// The arrival under the number of its occurrence: `None` if it is for none of the nominal times.
    fn occurrence(&self, one: Arrival) -> Option<Arrival> {
        let rule = one.timer.checked_sub(self.first)?;
        let since = one.due_at.get() - self.start(rule).get();
        let nth = u64::try_from(since / self.every_ms)
            .ok()
            .filter(|nth| since % self.every_ms == 0 && *nth < self.times);
        Some(Arrival { timer: rule * self.times + nth?, ..one })
    }
}

/// Puts rules until none is left.
async fn put(rules: Arc<Rules>, next: Arc<AtomicU64>) -> anyhow::Result<()> {
    let mut connection =
        Connection::open(&rules.endpoint.address).await.context("the server does not answer")?;
    let mut answer = Vec::new();
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if nth >= rules.count {
            return Ok(());
        }
        let (body, path) = (rules.body(nth), format!("/v1/schedules/bench-{}", rules.first + nth));
        let call = format!("{}{body}", rules.endpoint.head("PUT", &path, body.len()));
        let head = connection.call(call.as_bytes(), &mut answer).await?;
        if head.status != 201 {
            bail!("a rule was answered {}: {}", head.status, String::from_utf8_lossy(&answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_belongs_to_the_nominal_time_of_its_rule() {
        let rules = Rules {
            endpoint: Endpoint { address: String::new(), prefix: String::new(), key: None },
            first: 100,
            count: 4,
            from: UnixMs::new(1_800_000_000_000),
            every_ms: 60_000,
            times: 3,
            url: "http://127.0.0.1:1/x".into(),
            filling: "xx".into(),
        };
        let body: serde_json::Value = serde_json::from_str(&rules.body(2)).unwrap();
        assert_eq!(body["data"]["n"], "000000000102");
        assert_eq!(body["start_at"], UnixMs::new(1_800_000_030_000).rfc3339());
        let came = |timer, due_at| {
            let one = Arrival { timer, delivery: 1, due_at: UnixMs::new(due_at), at_us: 0, attempt: 1 };
            rules.occurrence(one).map(|one| one.timer)
        };
        assert_eq!(came(102, 1_800_000_030_000), Some(6));
        assert_eq!(came(102, 1_800_000_150_000), Some(8));
        assert_eq!(came(102, 1_800_000_210_000), None, "after the last");
        assert_eq!(came(102, 1_800_000_000_000), None, "before the first");
        assert_eq!(came(102, 1_800_000_030_001), None, "beside its time");
    }
}

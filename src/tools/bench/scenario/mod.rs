//! What is measured: one file for each scenario, and [`plan`] with all of them.

pub mod burst;
pub mod crash;
pub mod idle;
pub mod paced;
pub mod parked;
pub mod plan;
pub mod queue;
pub mod recover;
pub mod register;
pub mod schedules;
pub mod sinks;

use super::Env;
use super::figures::{Figure, Figures, Row, Run};
use super::load::LoadResult;
use super::receiver::Verdict;
use crate::tools::quantiles::Quantiles;

/// A scenario with its numbers.
#[derive(Debug, Clone)]
pub enum Scenario {
    /// How fast timers are taken in and taken back.
    Register(register::Register),
    /// Lateness at a steady rate.
    Paced(paced::Paced),
    /// Many due within one second.
    Burst(burst::Burst),
    /// What far-future timers weigh, and whether they slow the rest down.
    Parked(parked::Parked),
    /// Many overdue before the process starts.
    Recover(recover::Recover),
    /// SIGKILL in the middle of a burst.
    Crash(crash::Crash),
    /// What it costs to do nothing.
    Idle(idle::Idle),
    /// Deliveries to destinations of each kind.
    Sinks(sinks::Sinks),
    /// Workers that fetch and settle.
    Queue(queue::Queue),
    /// Rules that make occurrences every minute.
    Schedules(schedules::Schedules),
}

impl Scenario {
    /// Its name, as on the command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "register",
            Self::Paced(_) => "paced",
            Self::Burst(_) => "burst",
            Self::Parked(_) => "parked",
            Self::Recover(_) => "recover",
            Self::Crash(_) => "crash",
            Self::Idle(_) => "idle",
            Self::Sinks(_) => "sinks",
            Self::Queue(_) => "queue",
            Self::Schedules(_) => "schedules",
        }
    }

    /// Whether it ends the server and starts it again.
    pub const fn restarts(&self) -> bool {
        matches!(self, Self::Recover(_) | Self::Crash(_))
    }

    /// Whether its timers may be of several namespaces.
    pub const fn has_namespaces(&self) -> bool {
        !matches!(self, Self::Sinks(_) | Self::Queue(_) | Self::Schedules(_))
    }

    /// Does all its runs.
    pub async fn run(&self, env: &mut Env) -> anyhow::Result<Vec<Row>> {
        match self {
            Self::Register(scenario) => scenario.run(env).await,
            Self::Paced(scenario) => scenario.run(env).await,
            Self::Burst(scenario) => scenario.run(env).await,
            Self::Parked(scenario) => scenario.run(env).await,
            Self::Recover(scenario) => scenario.run(env).await,
            Self::Crash(scenario) => scenario.run(env).await,
            Self::Idle(scenario) => scenario.run(env).await,
            Self::Sinks(scenario) => scenario.run(env).await,
            Self::Queue(scenario) => scenario.run(env).await,
            Self::Schedules(scenario) => scenario.run(env).await,
        }
    }
}

/// Notes how registering went.
fn note_load(load: &LoadResult, row: &mut Row) {
    row.figures.set(Figure::Count, load.done as f64);
    row.figures.set(Figure::Failed, load.failed.len() as f64);
    row.figures.set(Figure::Seconds, load.seconds);
    row.figures.set(Figure::Rate, load.rate());
    let calls = Some(Quantiles::of(load.call_us.iter().copied())).filter(|calls| calls.count > 0);
    row.figures.set(Figure::CallP50, calls.map(|calls| calls.p50_ms));
    row.figures.set(Figure::CallP99, calls.map(|calls| calls.p99_ms));
    row.figures.set(Figure::CallP999, calls.map(|calls| calls.p999_ms));
    row.figures.set(Figure::CallMax, calls.map(|calls| calls.max_ms));
    row.note = load.why.clone();
}

/// Notes what was received.
fn note_verdict(verdict: &Verdict, figures: &mut Figures) {
    figures.set(Figure::Count, verdict.received as f64);
    figures.set_lateness(&verdict.lateness);
    figures.set(Figure::Lost, verdict.lost as f64);
    figures.set(Figure::Duplicates, verdict.duplicates as f64);
    figures.set(Figure::Early, verdict.early as f64);
    figures.set(Figure::Refired, verdict.refired as f64);
}

/// Notes how long it took from a moment until the last timer came, and how many a second that is.
fn note_span(from_us: i64, verdict: &Verdict, figures: &mut Figures) {
    let Some(last_us) = verdict.last_at_us else { return };
    let seconds = (last_us - from_us) as f64 / 1e6;
    figures.set(Figure::Seconds, seconds);
    figures.set(Figure::Rate, verdict.received as f64 / seconds.max(0.001));
}

/// A step's name; what is parked beside it belongs to it.
fn step(name: String, parked: u64) -> String {
    if parked == 0 { name } else { format!("{name}, {} parked", short(parked)) }
}

/// A count as people write it: `20k`, `1M`.
fn short(count: u64) -> String {
    match count {
        count if count >= 1_000_000 && count.is_multiple_of(100_000) => format!("{}M", count as f64 / 1e6),
        count if count >= 1000 && count.is_multiple_of(1000) => format!("{}k", count / 1000),
        count => count.to_string(),
    }
}

/// The same row for another run.
fn of_run(row: Row, run: u32) -> Row {
    Row { run: Run::Nth(run), ..row }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_short() {
        for (count, text) in
            [(50, "50"), (20_000, "20k"), (1_000_000, "1M"), (2_500_000, "2.5M"), (1_234_567, "1234567")]
        {
            assert_eq!(short(count), text);
        }
        assert_eq!(step("20k".into(), 0), "20k");
        assert_eq!(step("20k".into(), 1_000_000), "20k, 1M parked");
    }
}

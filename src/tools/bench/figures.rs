//! What is reported: figures, medians over runs, rows.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::tools::quantiles::Quantiles;

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident $key:literal $head:literal $digits:literal;)*) => {
        /// What can be measured.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Figure { $($(#[$doc])* $name,)* }

        impl Figure {
            /// All of them, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in JSON.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// Its head in the table.
            pub const fn head(self) -> &'static str {
                match self { $(Self::$name => $head,)* }
            }

            /// How many digits after the point the table shows; whole figures are whole numbers in JSON too.
            pub const fn digits(self) -> usize {
                match self { $(Self::$name => $digits,)* }
            }
        }
    };
}

figures! {
    /// Timers acknowledged or, in steps about firing, received.
    Count "count" "count" 0;
    /// Calls or timers that were not acknowledged.
    Failed "failed" "failed" 0;
    /// How long the step took; which moments it is between is the step's own.
    Seconds "seconds" "s" 2;
    /// Timers a second.
    Rate "per_second" "/s" 0;
    /// Duration of one call.
    CallP50 "call_p50_ms" "call p50" 1;
    /// Duration of one call.
    CallP99 "call_p99_ms" "call p99" 1;
    /// Duration of one call.
    CallP999 "call_p999_ms" "call p99.9" 1;
    /// The longest call.
    CallMax "call_max_ms" "call max" 1;
    /// Lateness, due → received, of each timer's first arrival.
    P50 "late_p50_ms" "late p50" 1;
    /// Lateness.
    P95 "late_p95_ms" "p95" 1;
    /// Lateness.
    P99 "late_p99_ms" "p99" 1;
    /// Lateness.
    P999 "late_p999_ms" "p99.9" 1;
    /// Lateness.
    Max "late_max_ms" "max ms" 1;
    /// Timers acknowledged and never received.
    Lost "lost" "lost" 0;
    /// Deliveries of one delivery id beyond the first.
    Duplicates "duplicates" "dup" 0;
    /// Deliveries before due.
    Early "early" "early" 0;
    /// Timers received under a second delivery id.
    Refired "refired" "refired" 0;
    /// Share of firings that came over the loader.
    Loader "loader_percent" "loader%" 1;
    /// Share of firings that were due too soon for the loader.
    Express "express_percent" "express%" 1;
    /// Share of firings that the sweep found.
    Sweep "sweep_percent" "sweep%" 1;
    /// Share of firings that replay found.
    Replay "replay_percent" "replay%" 1;
    /// From process start to ready.
    Ready "ready_s" "ready s" 2;
    /// Deliveries that were attempted again.
    Redelivered "redelivered" "again" 0;
    /// From process start until everything that was in flight at the kill was delivered again.
    Again "again_s" "again s" 2;
    /// From the end of the step until no lifecycle event waited.
    Drained "drained_s" "drained s" 2;
    /// Bytes a timer takes in SQL, indexes included.
    SqlBytes "sql_bytes_per_timer" "SQL B" 0;
    /// Bytes a timer takes in Redis.
    RedisBytes "redis_bytes_per_timer" "Redis B" 0;
    /// CPU time of the server, in seconds.
    CpuServer "cpu_server_s" "CPU srv" 2;
    /// CPU time of PostgreSQL.
    CpuPostgres "cpu_postgres_s" "PG" 2;
    /// CPU time of Redis.
    CpuRedis "cpu_redis_s" "Redis" 2;
    /// CPU time of the bench itself: load and receiver.
    CpuBench "cpu_bench_s" "bench s" 2;
    /// CPU time of server and stores as a share of one core.
    CpuPercent "cpu_percent_of_core" "core%" 1;
    /// Resident memory of the server at the end, in MiB.
    MemServer "mem_server_mib" "MiB srv" 0;
    /// Its peak since it was started.
    MemPeak "mem_server_peak_mib" "peak" 0;
    /// Memory of PostgreSQL.
    MemPostgres "mem_postgres_mib" "PG MiB" 0;
    /// Memory of Redis.
    MemRedis "mem_redis_mib" "Redis MiB" 1;
}

impl Figure {
    /// Whether runs are added up rather than compared: one loss in three runs is a loss.
    const fn adds_up(self) -> bool {
        matches!(self, Self::Failed | Self::Lost | Self::Duplicates | Self::Early | Self::Refired)
    }
}

/// What was measured. A figure that is missing was not measured, or could not be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures(BTreeMap<Figure, f64>);

impl Figures {
    /// Notes a figure; `None` leaves it out.
    pub fn set(&mut self, figure: Figure, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into() {
            self.0.insert(figure, value);
        }
    }

    /// A figure, if it was measured.
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.0.get(&figure).copied()
    }

    /// Notes how late deliveries were; nothing if there were none.
    pub fn set_lateness(&mut self, late: &Quantiles) {
        if late.count == 0 {
            return;
        }
        self.set(Figure::P50, late.p50_ms);
        self.set(Figure::P95, late.p95_ms);
        self.set(Figure::P99, late.p99_ms);
        self.set(Figure::P999, late.p999_ms);
        self.set(Figure::Max, late.max_ms);
    }

    fn cell(&self, figure: Figure) -> String {
        self.get(figure).map_or_else(|| "–".to_owned(), |value| format!("{value:.*}", figure.digits()))
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Figure::ALL.len()))?;
        for &figure in Figure::ALL {
            match self.get(figure) {
                Some(value) if figure.digits() == 0 => {
                    map.serialize_entry(figure.key(), &(value.round() as i64))?
                }
                Some(value) => map.serialize_entry(figure.key(), &((value * 1000.0).round() / 1000.0))?,
                None => map.serialize_entry(figure.key(), &None::<f64>)?,
            }
        }
        map.end()
    }
}

/// Which run a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// One, counted from 1.
    Nth(u32),
    /// The median of all; counts of what went wrong are added up.
    Median,
}

impl Serialize for Run {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nth(nth) => serializer.serialize_u32(*nth),
            Self::Median => serializer.serialize_str("median"),
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Row {
    /// The scenario.
    pub scenario: &'static str,
    /// Which of its measurements.
    pub step: String,
    /// Which run.
    pub run: Run,
    /// What a reader of the row has to know; mostly empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What was measured.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Row {
    /// A row of the first run.
    pub fn new(scenario: &'static str, step: impl Into<String>) -> Self {
        Self { scenario, step: step.into(), run: Run::Nth(1), note: None, figures: Figures::default() }
    }
}

/// The rows in the order of their first run, each step's runs together and followed by their median.
pub fn with_medians(rows: Vec<Row>) -> Vec<Row> {
    let mut steps: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        match steps.iter_mut().find(|step| step[0].scenario == row.scenario && step[0].step == row.step) {
            Some(step) => step.push(row),
            None => steps.push(vec![row]),
        }
    }
    let closed = |mut step: Vec<Row>| {
        if step.len() > 1 {
            let mut middle = Row { run: Run::Median, note: None, ..step[0].clone() };
            for &figure in Figure::ALL {
                let values: Vec<f64> = step.iter().filter_map(|row| row.figures.get(figure)).collect();
                let value = match figure.adds_up() && !values.is_empty() {
                    true => Some(values.iter().sum()),
                    false => median(values),
                };
                middle.figures.set(figure, value);
            }
            step.push(middle);
        }
        step
    };
    steps.into_iter().flat_map(closed).collect()
}

/// The rows as cells, heads first. A figure that no row has gets no column.
pub fn cells(rows: &[Row]) -> Vec<Vec<String>> {
    let any = |&figure: &Figure| rows.iter().any(|row| row.figures.get(figure).is_some());
    let figures: Vec<Figure> = Figure::ALL.iter().copied().filter(any).collect();
    let heads = ["scenario", "step", "run"].map(str::to_owned).into_iter();
    let heads = heads.chain(figures.iter().map(|figure| figure.head().to_owned())).collect();
    let line = |row: &Row| {
        let run = match row.run {
            Run::Nth(nth) => nth.to_string(),
            Run::Median => "median".to_owned(),
        };
        let names = [row.scenario.to_owned(), row.step.clone(), run].into_iter();
        names.chain(figures.iter().map(|&figure| row.figures.cell(figure))).collect()
    };
    std::iter::once(heads).chain(rows.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    fn row(step: &str, run: u32, rate: f64, lost: f64) -> Row {
        let mut row = Row { run: Run::Nth(run), ..Row::new("paced", step) };
        row.figures.set(Figure::Rate, rate);
        row.figures.set(Figure::Lost, lost);
        row
    }

    #[test]
    fn medians_follow_their_runs_and_losses_add_up() {
        let rows = vec![
            row("a", 1, 10.0, 0.0),
            row("b", 1, 5.0, 0.0),
            row("a", 2, 30.0, 1.0),
            row("a", 3, 20.0, 0.0),
        ];
        let rows = with_medians(rows);
        let steps: Vec<_> = rows.iter().map(|row| (row.step.as_str(), row.run)).collect();
        let a = |run| ("a", run);
        assert_eq!(
            steps,
            [a(Run::Nth(1)), a(Run::Nth(2)), a(Run::Nth(3)), a(Run::Median), ("b", Run::Nth(1))]
        );
        assert_eq!(rows[3].figures.get(Figure::Rate), Some(20.0));
        assert_eq!(rows[3].figures.get(Figure::Lost), Some(1.0));
    }

    #[test]
    fn the_table_tells_unmeasured_from_zero() {
        let mut other = Row::new("idle", "parked");
        other.figures.set(Figure::CpuPercent, 0.0);
        let cells = cells(&[row("a", 1, 1234.5, 0.0), other]);
        assert_eq!(cells[0], ["scenario", "step", "run", "/s", "lost", "core%"]);
        assert_eq!(cells[1], ["paced", "a", "1", "1234", "0", "–"]);
        assert_eq!(cells[2], ["idle", "parked", "1", "–", "–", "0.0"]);
    }

    #[test]
    fn json_has_every_key() {
        let json = serde_json::to_value(row("a", 1, 1234.5, 0.0)).unwrap();
        assert_eq!((&json["run"], &json["lost"], &json["per_second"]), (&1.into(), &0.into(), &1235.into()));
        assert!(json["early"].is_null() && json.get("early").is_some());
    }
}

//! What a step costs: CPU time and memory from `/proc` and from the stores; and the paths that firings took,
//! from `/metrics`.

use std::collections::BTreeMap;

use super::figures::{Figure, Figures};
use crate::clock::wall_us;
use crate::tools::proc::{Used, used_by};
use crate::tools::servers::RedisInfo;

const MIB: f64 = 1_048_576.0;

/// What server, stores and bench have used up to one moment.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// When, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// The server.
    pub server: Used,
    /// PostgreSQL, all of its processes.
    pub postgres: Used,
    /// Redis.
    pub redis: RedisInfo,
    /// This process.
    pub bench: Used,
    /// Firings by the path that found them; empty if the server does not answer.
    pub paths: BTreeMap<String, f64>,
}

impl Reading {
    /// A reading of this moment, when everything else has been read.
    pub fn now(server: Used, postgres: Used, redis: RedisInfo, metrics: &str) -> Self {
        let paths = by_path(metrics);
        Self { at_us: wall_us(), server, postgres, redis, bench: used_by(std::process::id()), paths }
    }

    /// Notes what was used since `before`, and the memory of now. Set `restarted` if the server was started in
    /// between: its own counts then begin at zero.
    pub fn note(&self, before: &Self, restarted: bool, figures: &mut Figures) {
        let since =
            |now: Option<f64>, then: Option<f64>| now.zip(then).map(|(now, then)| (now - then).max(0.0));
        let server =
            if restarted { self.server.cpu_s } else { since(self.server.cpu_s, before.server.cpu_s) };
        let postgres = since(self.postgres.cpu_s, before.postgres.cpu_s);
        let redis = since(self.redis.cpu_s, before.redis.cpu_s);
        figures.set(Figure::CpuServer, server);
        figures.set(Figure::CpuPostgres, postgres);
        figures.set(Figure::CpuRedis, redis);
        figures.set(Figure::CpuBench, since(self.bench.cpu_s, before.bench.cpu_s));
        let seconds = (self.at_us - before.at_us) as f64 / 1e6;
        if let Some(server) = server.filter(|_| seconds > 0.0) {
            let all = server + postgres.unwrap_or(0.0) + redis.unwrap_or(0.0);
            figures.set(Figure::CpuPercent, 100.0 * all / seconds);
        }
        let mib = |bytes: Option<f64>| bytes.map(|bytes| bytes / MIB);
        figures.set(Figure::MemServer, mib(self.server.memory));
        figures.set(Figure::MemPeak, mib(self.server.peak));
        figures.set(Figure::MemPostgres, mib(self.postgres.memory));
        figures.set(Figure::MemRedis, mib(self.redis.memory));
        self.note_paths(before, restarted, figures);
    }

    fn note_paths(&self, before: &Self, restarted: bool, figures: &mut Figures) {
        let fired = |path: &str| {
            let then = if restarted { None } else { before.paths.get(path) };
            self.paths.get(path).map(|now| now - then.copied().unwrap_or(0.0))
        };
        let all: f64 = self.paths.keys().filter_map(|path| fired(path)).sum();
        if all <= 0.0 {
            return;
        }
        let ways = [
            ("loader", Figure::Loader),
            ("express", Figure::Express),
            ("sweep", Figure::Sweep),
            ("replay", Figure::Replay),
        ];
        for (path, figure) in ways {
            figures.set(figure, fired(path).map(|fired| 100.0 * fired / all));
        }
    }
}

/// What a running server says on `/metrics` that it has used.
pub fn used_by_metrics(metrics: &str) -> Used {
    Used {
        cpu_s: sample(metrics, "process_cpu_seconds_total"),
        memory: sample(metrics, "process_resident_memory_bytes"),
        peak: None,
    }
}

fn sample(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn by_path(metrics: &str) -> BTreeMap<String, f64> {
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix("mainspring_fired_total{")?.split_once("} ")?;
        let path = labels.split(',').find_map(|label| label.strip_prefix("path=\"")?.strip_suffix('"'))?;
        Some((path.to_owned(), value.trim().parse::<f64>().ok()?))
    };
    let mut paths = BTreeMap::new();
    metrics.lines().filter_map(of).for_each(|(path, value)| *paths.entry(path).or_default() += value);
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_firings_in_between() {
        let at = |loader: u32, sweep: u32| Reading {
            paths: by_path(&format!(
                "mainspring_fired_total{{lateness=\"on_time\",path=\"loader\"}} {}\n\
                 mainspring_fired_total{{lateness=\"late\",path=\"loader\"}} 20\n\
                 mainspring_fired_total{{lateness=\"late\",path=\"sweep\"}} {sweep}\n",
                loader - 20
            )),
            ..Reading::default()
        };
        let mut figures = Figures::default();
        at(130, 20).note(&at(100, 10), false, &mut figures);
        assert_eq!((figures.get(Figure::Loader), figures.get(Figure::Sweep)), (Some(75.0), Some(25.0)));
        assert_eq!(figures.get(Figure::Express), None, "not measured is not zero");
        assert_eq!(figures.get(Figure::CpuServer), None);
        let mut none = Figures::default();
        Reading::default().note(&Reading::default(), false, &mut none);
        assert_eq!(none.get(Figure::Loader), None);
    }
}

//! What it cost: CPU time and memory from `/proc` and from the stores, firings by path from `/metrics`.

use std::collections::BTreeMap;
use std::fs;

use super::figures::{Figure, Figures};
use super::stores::RedisInfo;
use crate::clock::wall_us;

/// `USER_HZ`: what `/proc` counts CPU time in, the same on every architecture this runs on.
const TICKS_PER_SECOND: f64 = 100.0;
const MIB: f64 = 1_048_576.0;

/// CPU and memory of one process, or of several together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Used {
    /// CPU seconds since it was started.
    pub cpu_s: Option<f64>,
    /// Resident bytes.
    pub memory: Option<f64>,
    /// The most resident bytes since it was started.
    pub peak: Option<f64>,
}

/// A moment: what everybody had used by then.
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
    /// Firings by the path that found them; empty if the server does not tell.
    pub paths: BTreeMap<String, f64>,
}

impl Reading {
    /// The moment when everything else was read.
    pub fn now(server: Used, postgres: Used, redis: RedisInfo, metrics: &str) -> Self {
        let paths = by_path(metrics);
        Self { at_us: wall_us(), server, postgres, redis, bench: of_process(std::process::id()), paths }
    }

    /// Notes what was used between two moments, and the memory at the second. Set `anew` if the server was
    /// started in between: its own counts then begin at zero.
    pub fn note(&self, before: &Self, anew: bool, figures: &mut Figures) {
        let since =
            |now: Option<f64>, then: Option<f64>| now.zip(then).map(|(now, then)| (now - then).max(0.0));
        let server = if anew { self.server.cpu_s } else { since(self.server.cpu_s, before.server.cpu_s) };
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
        self.note_paths(before, anew, figures);
    }

    fn note_paths(&self, before: &Self, anew: bool, figures: &mut Figures) {
        let fired = |path: &str| {
            let then = if anew { None } else { before.paths.get(path) };
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

/// Of a process on this machine; empty if there is none with this id.
pub fn of_process(pid: u32) -> Used {
    let Some(stat) = stat(pid) else { return Used::default() };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    Used {
        cpu_s: Some(stat.own_ticks / TICKS_PER_SECOND),
        memory: kib(&status, "VmRSS"),
        peak: kib(&status, "VmHWM"),
    }
}

/// Of PostgreSQL: the postmaster, its children, and those it has outlived. Memory that they share counts
/// once, as much of it as the process with the largest part of it has touched.
pub fn of_postgres(postmaster: u32) -> Used {
    let Some(main) = stat(postmaster) else { return Used::default() };
    let mut ticks = main.own_ticks + main.reaped_ticks;
    let (mut private, mut shared) = (0.0, 0.0_f64);
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let Some(child) = stat(pid).filter(|stat| stat.parent == postmaster || pid == postmaster) else {
            continue;
        };
        if pid != postmaster {
            ticks += child.own_ticks + child.reaped_ticks;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        private += kib(&status, "RssAnon").unwrap_or(0.0);
        shared = shared.max(kib(&status, "RssShmem").unwrap_or(0.0));
    }
    Used { cpu_s: Some(ticks / TICKS_PER_SECOND), memory: Some(private + shared), peak: None }
}

/// The parent of a PostgreSQL backend, if that is a process of this machine.
pub fn postmaster_of(backend: u32) -> Option<u32> {
    stat(backend).filter(|stat| stat.name.contains("postgres")).map(|stat| stat.parent)
}

/// Of a server that tells about itself on `/metrics`.
pub fn of_metrics(metrics: &str) -> Used {
    Used {
        cpu_s: sample(metrics, "process_cpu_seconds_total"),
        memory: sample(metrics, "process_resident_memory_bytes"),
        peak: None,
    }
}

struct Stat {
    name: String,
    parent: u32,
    own_ticks: f64,
    reaped_ticks: f64,
}

fn stat(pid: u32) -> Option<Stat> {
    read_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `/proc/PID/stat`. The name is in parentheses and may itself have some.
fn read_stat(text: &str) -> Option<Stat> {
    let (start, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The first of these is the third of the file, `state`.
    let ticks = |place: usize| fields.get(place)?.parse::<f64>().ok();
    Some(Stat {
        name: start.split_once('(')?.1.to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        own_ticks: ticks(11)? + ticks(12)?,
        reaped_ticks: ticks(13)? + ticks(14)?,
    })
}

/// A line of `/proc/PID/status` in bytes.
fn kib(status: &str, name: &str) -> Option<f64> {
    let of = |line: &str| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix("kB")?;
        value.trim().parse::<f64>().ok()
    };
    status.lines().find_map(of).map(|kib| kib * 1024.0)
}

fn sample(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn by_path(metrics: &str) -> BTreeMap<String, f64> {
    let of = |line: &str| {
        let (path, value) = line.strip_prefix("mainspring_fired_total{path=\"")?.split_once("\"}")?;
        Some((path.to_owned(), value.trim().parse().ok()?))
    };
    metrics.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_any_name() {
        let stat = read_stat("12 (post) gres: x) S 7 12 12 0 -1 0 1 2 3 4 150 50 30 20 20 0").unwrap();
        assert_eq!((stat.parent, stat.own_ticks, stat.reaped_ticks), (7, 200.0, 50.0));
        assert_eq!(stat.name, "post) gres: x");
        let own = of_process(std::process::id());
        assert!(own.memory.unwrap() > MIB && own.peak >= own.memory && own.cpu_s.is_some());
        assert_eq!(of_process(u32::MAX), Used::default());
    }

    #[test]
    fn shares_are_of_the_firings_in_between() {
        let at = |loader: u32, sweep: u32| Reading {
            paths: by_path(&format!(
                "mainspring_fired_total{{path=\"loader\"}} {loader}\nmainspring_fired_total{{path=\"sweep\"}} {sweep}\n"
            )),
            ..Reading::default()
        };
        let mut figures = Figures::default();
        at(130, 20).note(&at(100, 10), false, &mut figures);
        assert_eq!((figures.get(Figure::Loader), figures.get(Figure::Sweep)), (Some(75.0), Some(25.0)));
        assert_eq!(figures.get(Figure::Express), None, "not told is not zero");
        assert_eq!(figures.get(Figure::CpuServer), None);
        let mut none = Figures::default();
        Reading::default().note(&Reading::default(), false, &mut none);
        assert_eq!(none.get(Figure::Loader), None);
    }
}

//! Processes of this machine as `/proc` shows them: CPU time, memory, children, whether they run.
//!
//! A process that has ended meanwhile is left out everywhere; it is no error.

use std::collections::BTreeMap;
use std::net::IpAddr;

use procfs::net::TcpState;
use procfs::process::{LimitValue, Process, Stat, all_processes};
use procfs::{CurrentSI, KernelStats};

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

/// What one process has used; empty if there is none with this id.
pub fn used_by(pid: u32) -> Used {
    let Some(process) = process(pid) else { return Used::default() };
    let (Ok(stat), Ok(status)) = (process.stat(), process.status()) else { return Used::default() };
    let bytes = |kib: Option<u64>| kib.map(|kib| (kib * 1024) as f64);
    Used { cpu_s: Some(own_cpu_s(&stat)), memory: bytes(status.vmrss), peak: bytes(status.vmhwm) }
}

/// What PostgreSQL has used: the postmaster, its children, and those of them that have ended. Memory that they
/// share counts once: as much of it as the process that has touched most of it.
pub fn used_by_postgres(postmaster: u32) -> Used {
    let Some(main) = process(postmaster).and_then(|process| process.stat().ok()) else {
        return Used::default();
    };
    let mut cpu_s = 0.0;
    let (mut private_kib, mut shared_kib) = (0, 0);
    for process in all_processes().into_iter().flatten().flatten() {
        let Ok(stat) = process.stat() else { continue };
        if stat.pid != main.pid && stat.ppid != main.pid {
            continue;
        }
        cpu_s += own_cpu_s(&stat) + reaped_cpu_s(&stat);
        if let Ok(status) = process.status() {
            private_kib += status.rssanon.unwrap_or_default();
            shared_kib = shared_kib.max(status.rssshmem.unwrap_or_default());
        }
    }
    Used { cpu_s: Some(cpu_s), memory: Some(((private_kib + shared_kib) * 1024) as f64), peak: None }
}

/// CPU seconds of this process and all of its descendants since they were started, with those that have ended and were
/// waited for.
pub fn cpu_s_of_family() -> f64 {
    let own = std::process::id();
    let family = descendants(own).into_iter().chain([own]);
    family
        .filter_map(|pid| process(pid)?.stat().ok())
        .map(|stat| own_cpu_s(&stat) + reaped_cpu_s(&stat))
        .sum()
}

/// CPU seconds that this machine has spent on anything since it was started, those included that its host took away
/// from it. `None` if it does not say.
pub fn cpu_s_of_machine() -> Option<f64> {
    let all = KernelStats::current().ok()?.total;
    let more = [all.irq, all.softirq, all.steal].into_iter().flatten().sum::<u64>();
    Some((all.user + all.nice + all.system + more) as f64 / procfs::ticks_per_second() as f64)
}

/// The parent of a PostgreSQL backend; `None` if that is no process of this machine.
pub fn postmaster_of(backend: u32) -> Option<u32> {
    let stat = process(backend)?.stat().ok()?;
    stat.comm.contains("postgres").then_some(stat.ppid.unsigned_abs())
}

/// The children of a process, their children and so on, parents first. A process that is started meanwhile may
/// be missing; a caller that needs all of them stops the parents before.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for process in all_processes().into_iter().flatten().flatten() {
        if let Ok(stat) = process.stat() {
            children.entry(stat.ppid.unsigned_abs()).or_default().push(stat.pid.unsigned_abs());
        }
    }
    let mut all = children.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        all.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    all
}

/// The most files that a process may have open; `None` if there is none with this id, or no limit.
pub fn most_files(pid: u32) -> Option<u64> {
    match process(pid)?.limits().ok()?.max_open_files.hard_limit {
        LimitValue::Value(files) => Some(files),
        LimitValue::Unlimited => None,
    }
}

/// How many connections of this machine to a port wait for the answer to their SYN and come from such an address.
pub fn connecting_to(port: u16, is_from: impl Fn(IpAddr) -> bool) -> usize {
    let sockets = procfs::net::tcp().unwrap_or_default();
    let waits = sockets.iter().filter(|socket| {
        socket.state == TcpState::SynSent
            && socket.remote_address.port() == port
            && is_from(socket.local_address.ip())
    });
    waits.count()
}

/// Whether no thread of a process runs; true of one that has ended.
pub fn stands_still(pid: u32) -> bool {
    let Some(tasks) = process(pid).and_then(|process| process.tasks().ok()) else { return true };
    let mut running = tasks.flatten().filter_map(|task| task.stat().ok());
    // Stopped, traced, or ended.
    running.all(|stat| matches!(stat.state, 'T' | 't' | 'Z' | 'X'))
}

fn process(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

fn own_cpu_s(stat: &Stat) -> f64 {
    (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
}

/// CPU seconds of the children that have ended.
fn reaped_cpu_s(stat: &Stat) -> f64 {
    (stat.cutime + stat.cstime) as f64 / procfs::ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_used_memory_and_one_that_is_not_there_nothing() {
        let own = used_by(std::process::id());
        assert!(own.memory.unwrap() > 1e6 && own.peak >= own.memory && own.cpu_s.is_some(), "{own:?}");
        assert_eq!(used_by(i32::MAX.unsigned_abs()), Used::default());
        assert_eq!(used_by_postgres(i32::MAX.unsigned_abs()), Used::default());
        assert_eq!(postmaster_of(std::process::id()), None, "this is no PostgreSQL");
    }

    #[test]
    fn what_this_process_uses_is_part_of_what_the_machine_does() {
        let (own, machine) = (cpu_s_of_family(), cpu_s_of_machine().expect("it says so"));
        let begun = crate::clock::Monotonic::now();
        while begun.elapsed() < std::time::Duration::from_millis(300) {}
        let (own, machine) = (cpu_s_of_family() - own, cpu_s_of_machine().expect("it says so") - machine);
        // Ticks are hundredths of a second, rounded down.
        assert!(own > 0.0 && machine + 0.1 > own, "{own} {machine}");
    }

    #[test]
    fn a_child_is_a_descendant_until_it_has_ended() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        assert!(descendants(std::process::id()).contains(&child.id()));
        let both = used_by_postgres(std::process::id());
        assert!(both.memory > Some(1e6) && both.cpu_s.is_some(), "whatever its name: {both:?}");
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(!descendants(std::process::id()).contains(&child.id()));
        assert!(stands_still(child.id()) && !stands_still(std::process::id()));
    }
}

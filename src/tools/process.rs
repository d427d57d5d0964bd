//! A child process that is signalled by its pid and always reaped.
//!
//! Signals go to this process's own children and their descendants only, and never by name.
//!
//! Invariant: each child has a thread that waits for its end, so that others can wait for an event. The thread
//! marks the child as ended and reaps it under one lock, and signals are sent under the same lock: no signal can
//! reach another process that got the pid afterwards.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::proc::stands_still;
use crate::clock::Monotonic;

/// A killed process is gone in milliseconds, unless the disk holds it.
const REAP: Duration = Duration::from_secs(10);
/// A stopped process stands still in microseconds, unless the disk holds one of its threads.
const STILL: Duration = Duration::from_secs(10);
/// How much of a log is read for its last lines, in bytes.
const TAIL: u64 = 64 << 10;

/// How a child ended, and when that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// Its exit code, or the signal that ended it.
    pub status: ExitStatus,
    /// When the end was seen; the child was gone a moment before.
    pub at: Monotonic,
}

/// A running or ended child. Dropping it kills it with SIGKILL and waits until it is gone.
pub struct Process {
    name: String,
    pid: Pid,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    end: Mutex<Option<Exit>>,
    ended: Condvar,
}

impl Shared {
    fn end(&self) -> MutexGuard<'_, Option<Exit>> {
        // It is written in one assignment.
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Starts `command`. Fails when it cannot be started, as when there is no such program.
    pub fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let shared = Arc::new(Shared::default());
        // The thread is there before the child: no child is ever without one.
        let (hand_over, child) = mpsc::channel::<Child>();
        let reaper = Arc::clone(&shared);
        thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || child.into_iter().for_each(|child| reap(child, &reaper)))
            .context("a thread cannot be started")?;
        let child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        let pid = Pid::from_child(&child);
        hand_over.send(child).expect("the thread waits for the child");
        Ok(Self { name, pid, shared })
    }

    /// Its process id. The system may give it to another process once this one has ended.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&self) -> Option<Exit> {
        *self.shared.end()
    }

    /// Sends a signal; false when the child has ended already.
    pub fn signal(&self, signal: Signal) -> bool {
        let end = self.shared.end();
        end.is_none() && kill_process(self.pid, signal).is_ok()
    }

    /// Stops it with SIGSTOP and returns when all its threads stand still. Blocks this thread until then, which
    /// takes less than a millisecond as a rule. Fails when it has ended, or does not stand still within 10 s.
    pub fn pause(&self) -> anyhow::Result<()> {
        let stopped = self.signal(Signal::STOP);
        if stopped {
            until_still(&[self.pid()]).with_context(|| format!("{} cannot be paused", self.name))?;
        }
        ensure!(stopped && self.ended().is_none(), "{} has ended and cannot be paused", self.name);
        Ok(())
    }

    /// Continues it after [`Process::pause`]; does nothing to one that runs. Fails when it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        ensure!(self.signal(Signal::CONT), "{} has ended and cannot be continued", self.name);
        Ok(())
    }

    /// Waits for the end, on this thread; `None` when it still runs after `timeout`.
    pub fn wait_blocking(&self, timeout: Duration) -> Option<Exit> {
        wait(&self.shared, timeout)
    }

    /// Waits for the end; `None` when it still runs after `timeout`. Cancel-safe.
    pub async fn wait(&self, timeout: Duration) -> Option<Exit> {
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || wait(&shared, timeout)).await.expect("waiting does not panic")
    }

    /// Sends `signal` and waits for the end, which may have come already. Fails when it still runs after
    /// `timeout`.
    pub async fn end_with(&self, signal: Signal, timeout: Duration) -> anyhow::Result<Exit> {
        self.signal(signal);
        let late = || format!("{} still runs {timeout:?} after signal {}", self.name, signal.as_raw());
        self.wait(timeout).await.with_context(late)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if self.wait_blocking(REAP).is_none() {
            tracing::warn!(pid = self.pid(), name = self.name, "a child survives SIGKILL");
        }
    }
}

fn reap(mut child: Child, shared: &Shared) {
    let id = WaitId::Pid(Pid::from_child(&child));
    while waitid(id.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).err() == Some(Errno::INTR) {}
    let at = Monotonic::now();
    let mut end = shared.end();
    let status = child.wait().expect("a child that has ended can be reaped");
    *end = Some(Exit { status, at });
    shared.ended.notify_all();
}

fn wait(shared: &Shared, timeout: Duration) -> Option<Exit> {
    let waited = shared.ended.wait_timeout_while(shared.end(), timeout, |end| end.is_none());
    let (end, _) = waited.unwrap_or_else(PoisonError::into_inner);
    *end
}

/// Waits until no thread of any of these processes runs; one that has ended stands still. Blocks this thread.
pub(super) fn until_still(pids: &[u32]) -> anyhow::Result<()> {
    let began = Monotonic::now();
    for pid in pids {
        while !stands_still(*pid) {
            if began.elapsed() > STILL {
                bail!("process {pid} does not stand still within {STILL:?}");
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}

/// The last lines of a log file, at most so many; empty if there is none.
pub fn log_tail(path: &Path, lines: usize) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(TAIL);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_only_the_last_lines_are_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        assert_eq!(log_tail(&log, 3), "");
        let long: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&log, long).expect("it can be written");
        assert_eq!(log_tail(&log, 2), "line 19998\nline 19999");
    }
}

//! A child process which is signalled by pid and always reaped.

use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How a child ended, and when that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    pub status: ExitStatus,
    pub at: Instant,
}

/// A running or ended child. Dropping it kills it with SIGKILL and waits until it is gone.
///
/// A thread of its own waits for the end, so that waiting is an event for everyone else. It marks
/// the child as ended and reaps it under one lock, and signals are sent under the same lock: no
/// signal can reach a stranger that was given the pid afterwards.
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
        self.end.lock().expect("nothing panics while it holds this lock")
    }
}

impl Process {
    /// Starts `command`; panics if it cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let pid = Pid::from_child(&child);
        let shared = Arc::new(Shared::default());
        let reaper = Arc::clone(&shared);
        thread::spawn(move || reap(child, pid, &reaper));
        Self { name, pid, shared }
    }

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

    /// Stops it with SIGSTOP; returns when all its threads stand still. False when it has ended.
    pub fn pause(&self) -> bool {
        self.signal(Signal::STOP)
            && loop {
                match waitid(WaitId::Pid(self.pid), WaitIdOptions::STOPPED) {
                    Ok(_) => break true,
                    Err(Errno::INTR) => {}
                    Err(_) => break false,
                }
            }
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

    /// Sends `signal` and waits for the end; panics when it still runs after `timeout`.
    pub async fn end_with(&self, signal: Signal, timeout: Duration) -> Exit {
        self.signal(signal);
        self.wait(timeout).await.unwrap_or_else(|| {
            panic!("{} still runs {timeout:?} after signal {}", self.name, signal.as_raw())
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if self.wait_blocking(Duration::from_secs(10)).is_none() {
            eprintln!("{} (pid {}) survives SIGKILL", self.name, self.pid());
        }
    }
}

fn reap(mut child: Child, pid: Pid, shared: &Shared) {
    while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).err() == Some(Errno::INTR) {
    }
    let at = Instant::now();
    let mut end = shared.end();
    let status = child.wait().expect("a child that has ended can be reaped");
    *end = Some(Exit { status, at });
    shared.ended.notify_all();
}

fn wait(shared: &Shared, timeout: Duration) -> Option<Exit> {
    let (end, _) = shared
        .ended
        .wait_timeout_while(shared.end(), timeout, |end| end.is_none())
        .expect("nothing panics while it holds this lock");
    *end
}

//! A Mainspring node: this very program as a child process, with settings of its own.
//!
//! Its address and directory stay the same over all starts, so a client that knows the address finds the node
//! again. It is killed when dropped.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::process::{Exit, Process, log_tail};
use crate::clock::Monotonic;

/// How often a node is asked whether it is ready.
const POLL: Duration = Duration::from_millis(5);
/// One question to a node that may not answer.
const ASK: Duration = Duration::from_secs(2);
/// As many lines of a node's log are told with an error.
const LOG_LINES: usize = 20;

/// A node, running or not.
pub struct NodeProcess {
    dir: PathBuf,
    address: SocketAddr,
    settings: Vec<String>,
    /// How many files it may have open.
    files: Option<u64>,
    process: Option<Process>,
}

impl NodeProcess {
    /// A node in `dir` that will listen on `address`; it is not started yet. `settings` are all that differ from
    /// the defaults (`section.key=value`).
    pub fn new(dir: PathBuf, address: SocketAddr, settings: Vec<String>) -> Self {
        Self { dir, address, settings, files: None, process: None }
    }

    /// From its next start on, it may have so many files open and cannot raise the limit.
    pub fn limit_files(&mut self, files: u64) {
        self.files = Some(files);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process, from its start until it was ended by [`NodeProcess::end`].
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Starts it; does not wait until it is ready. Neither a `config.toml` of another directory nor settings in
    /// this process's environment reach it.
    pub fn start(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let binary = std::env::current_exe().context("this program cannot be found to start a node")?;
        let mut command = match self.files {
            None => Command::new(binary),
            // A shell that sets the limit and becomes the node: in this process it would hold for everything else.
            Some(files) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &files.to_string()]).arg(binary);
                shell
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MAINSPRING__") {
                command.env_remove(name);
            }
        }
        command.arg("serve").arg("--set").arg(format!("server.listen={}", self.address));
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        command.current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    /// Waits until it is ready; fails when it ends instead, or after `limit`.
    pub async fn ready(&self, limit: Duration) -> anyhow::Result<()> {
        let http = reqwest::Client::builder().no_proxy().timeout(ASK).build()?;
        let began = Monotonic::now();
        for path in ["startupz", "readyz"] {
            let url = format!("http://{}/{path}", self.address);
            while !http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
                let ended = self.process.as_ref().is_none_or(|process| process.ended().is_some());
                if ended || began.elapsed() > limit {
                    bail!("the node does not get ready; the end of its log:\n{}", self.log_tail());
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// Sends a signal and waits until it is gone: its process id and how it ended; `None` if it did not run.
    /// Fails when it still runs after `limit`; then [`NodeProcess::end`] can be called again.
    pub async fn end(&mut self, signal: Signal, limit: Duration) -> anyhow::Result<Option<(u32, Exit)>> {
        let Some(process) = &self.process else { return Ok(None) };
        let ended = (process.pid(), process.end_with(signal, limit).await?);
        self.process = None;
        Ok(Some(ended))
    }

    /// Where it logs.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The last lines that it logged, over all its starts.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log(), LOG_LINES)
    }

    /// Copies its log.
    pub fn keep_log(&self, to: &Path) -> anyhow::Result<()> {
        std::fs::copy(self.log(), to).with_context(|| format!("{} cannot be written", to.display()))?;
        Ok(())
    }
}

//! The server under test: one that runs already, or one of the bench's own to be killed and started again.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::load::Site;
use crate::clock::{Monotonic, wall_us};

/// A server with many parked timers has nothing to read before it is ready, but the machine is busy.
const START: Duration = Duration::from_secs(120);
/// Beyond this a stop is no stop, and the server is killed.
const STOP: Duration = Duration::from_secs(30);

/// A server process of the bench's own. It is killed when dropped.
pub struct Process {
    child: Option<Child>,
    dir: PathBuf,
    address: String,
    sets: Vec<String>,
}

impl Process {
    /// What a server in `dir` will be; it is not started yet. `sets` are its settings.
    pub fn new(dir: PathBuf, sets: Vec<String>) -> anyhow::Result<Self> {
        // The port is free now and below those that the kernel gives to outgoing connections.
        let from = 20_000 + std::process::id() % 10_000;
        let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let mut ports = (from..from + 2000).filter_map(|port| u16::try_from(port).ok());
        let port = ports.find(free).context("no port is free for the server")?;
        Ok(Self { child: None, dir, address: format!("127.0.0.1:{port}"), sets })
    }

    /// Where it listens.
    pub fn site(&self) -> Site {
        Site { address: self.address.clone(), prefix: String::new(), key: None }
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts it; returns the moment just before, in microseconds since the Unix epoch. Does not wait.
    pub fn start(&mut self) -> anyhow::Result<i64> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let binary = std::env::current_exe().context("this program cannot be found to start a server")?;
        let mut command = Command::new(binary);
        // Neither a config.toml of this directory nor this process's environment shall reach it.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MAINSPRING__") {
                command.env_remove(name);
            }
        }
        command.arg("serve").current_dir(&self.dir);
        let own = [
            format!("server.listen={}", self.address),
            "node.name=bench".to_owned(),
            "log.filter=warn".to_owned(),
        ];
        for set in own.iter().chain(&self.sets) {
            command.arg("--set").arg(set);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let began_us = wall_us();
        self.child = Some(command.spawn().context("the server cannot be started")?);
        Ok(began_us)
    }

    /// Waits until it is ready; fails when it ends instead.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let site = self.site();
        let began = Monotonic::now();
        for path in ["/startupz", "/readyz"] {
            while site.get(path).await.is_err() {
                let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
                if ended.is_some() || began.elapsed() > START {
                    bail!("the server does not get ready; the end of its log:\n{}", self.log_tail());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).map_err(|why| anyhow!("the server survives: {why}"))?;
        }
        Ok(())
    }

    /// SIGTERM, and SIGKILL if that does not end it.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let asked = Monotonic::now();
        if let Some(child) = &self.child {
            // It may have ended by itself, which is as good.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        while let Some(child) = &mut self.child
            && asked.elapsed() < STOP
        {
            if child.try_wait()?.is_some() {
                self.child = None;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.kill()
    }

    fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// The last lines that it wrote; empty if it had nothing to warn of.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A running server's address from its base URL.
pub fn site(base: &str, key: Option<String>) -> Option<Site> {
    let url = url::Url::parse(base).ok().filter(|url| url.scheme() == "http" && url.query().is_none())?;
    let address = format!("{}:{}", url.host_str()?, url.port_or_known_default()?);
    Some(Site { address, prefix: url.path().trim_end_matches('/').to_owned(), key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_becomes_host_and_port() {
        let read = |base| site(base, None).map(|site| (site.address, site.prefix));
        assert_eq!(read("http://127.0.0.1:7600"), Some(("127.0.0.1:7600".into(), String::new())));
        assert_eq!(read("http://localhost/x/"), Some(("localhost:80".into(), "/x".into())));
        assert_eq!((read("https://a/"), read("7600")), (None, None));
    }
}

//! The server under test: one that runs already, or one of the bench's own to be killed and started again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::load::Site;
use crate::clock::{Monotonic, wall_us};
use crate::tools::drill::ground::free_port;
use crate::tools::drill::process::{self, log_tail};

/// A server with many parked timers has nothing to read before it is ready, but the machine is busy.
const START: Duration = Duration::from_secs(120);
/// Beyond this a stop is no stop, and the server is killed.
const STOP: Duration = Duration::from_secs(30);

/// A server process of the bench's own. It is killed when dropped.
pub struct Process {
    child: Option<process::Process>,
    dir: PathBuf,
    address: String,
    sets: Vec<String>,
}

impl Process {
    /// What a server in `dir` will be; it is not started yet. `sets` are its settings.
    pub fn new(dir: PathBuf, sets: Vec<String>) -> anyhow::Result<Self> {
        let port = free_port()?;
        Ok(Self { child: None, dir, address: format!("127.0.0.1:{port}"), sets })
    }

    /// Where it listens.
    pub fn site(&self) -> Site {
        Site { address: self.address.clone(), prefix: String::new(), key: None }
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(process::Process::pid)
    }

    /// Starts it; returns the moment just before, in microseconds since the Unix epoch. Does not wait.
    pub fn start(&mut self) -> anyhow::Result<i64> {
        let own = [
            format!("server.listen={}", self.address),
            "node.name=bench".to_owned(),
            "log.filter=warn".to_owned(),
        ];
        let began_us = wall_us();
        self.child = Some(process::serve(&self.dir, &self.log(), own.iter().chain(&self.sets))?);
        Ok(began_us)
    }

    /// Waits until it is ready; fails when it ends instead.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let site = self.site();
        let began = Monotonic::now();
        for path in ["/startupz", "/readyz"] {
            while site.get(path).await.is_err() {
                let ended = self.child.as_ref().is_none_or(|child| child.ended().is_some());
                if ended || began.elapsed() > START {
                    bail!("the server does not get ready; the end of its log:\n{}", self.log_tail());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(child) = self.child.take() {
            child.signal(Signal::KILL);
            child.wait_blocking(STOP).context("the server survives SIGKILL")?;
        }
        Ok(())
    }

    /// SIGTERM, and SIGKILL if that does not end it.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &self.child {
            child.signal(Signal::TERM);
            child.wait(STOP).await;
        }
        self.kill()
    }

    fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// The last lines that it wrote; empty if it had nothing to warn of.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log(), 20)
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

//! What throwaway brokers have in common: a process that listens on one port for good, stopped, killed and started again.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::future::BoxFuture;
use rustix::process::Signal;

use super::{program_dirs, ready};
use crate::tools::process::Process;

/// A killed server is gone in milliseconds, unless the disk holds it.
const STOP: Duration = Duration::from_secs(10);

/// Starts the program of a server.
type Launch = Box<dyn Fn() -> anyhow::Result<Process> + Send + Sync>;

/// A server of its caller's own. Dropping it ends the server.
pub struct Running {
    name: &'static str,
    process: Process,
    launch: Launch,
    dir: PathBuf,
    port: u16,
    limit: Duration,
}

impl Running {
    /// Starts a server that writes its log in `dir`, and returns when it takes connections at `port`. Fails when it does not
    /// within `limit`.
    pub(super) async fn start(
        name: &'static str,
        dir: &Path,
        port: u16,
        limit: Duration,
        launch: impl Fn() -> anyhow::Result<Process> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let process = launch()?;
        let server = Self { name, process, launch: Box::new(launch), dir: dir.to_owned(), port, limit };
        server.ready().await?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// SIGKILL; returns when it is gone. Its port stays free for it.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.process.end_with(Signal::KILL, STOP).await?;
        Ok(())
    }

    /// Starts it with what it kept and returns when it takes connections. Fails when it still runs.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.process.ended().is_some(), "kill {} before you start it again", self.name);
        self.process = (self.launch)()?;
        self.ready().await
    }

    /// Stops it in its tracks: connections stay, nothing is answered. Returns when it stands still. Fails when it has ended.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.process.pause()
    }

    /// Lets it go on where it was stopped. Fails when it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.process.resume()
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let address = self.address();
        let answers = || -> BoxFuture<'_, bool> {
            Box::pin(async move { tokio::net::TcpStream::connect(address).await.is_ok() })
        };
        ready(self.name, &self.process, &self.dir, self.limit, answers).await
    }
}

/// An installed program: `beside` is looked into first.
pub(super) fn program(name: &str, beside: &[&str], package: &str) -> anyhow::Result<PathBuf> {
    let dirs = beside.iter().map(PathBuf::from).chain(program_dirs());
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file()).with_context(|| {
        format!("no {package} is installed here ({name}); on Debian and Ubuntu: apt-get install {package}")
    })
}

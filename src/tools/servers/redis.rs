//! A throwaway Redis: stopped, killed, emptied and rolled back.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use deadpool_redis::redis;
use futures::future::BoxFuture;
use rustix::process::Signal;

use super::{LOG_LINES, free_port, launch, log_of, program_dirs, ready};
use crate::tools::process::{Process, log_tail};

/// A start reads back what was kept.
const START: Duration = Duration::from_secs(60);
/// A killed server is gone in milliseconds, unless the disk holds it.
const STOP: Duration = Duration::from_secs(10);
/// One command, and a `SAVE` of much data with it.
const ASK: Duration = Duration::from_secs(60);
/// Whether it answers at all.
const PING: Duration = Duration::from_secs(5);

/// What a Redis still has when it was killed and is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// Every write that it has answered: it has an append-only file.
    #[default]
    Writes,
    /// What the last [`Redis::save_copy`], or a `SAVE`, found; nothing without one.
    Snapshots,
}

/// A Redis (or Valkey) of its caller's own, on one port for good. Dropping it ends the server; the data stay.
pub struct Redis {
    process: Process,
    program: PathBuf,
    dir: PathBuf,
    port: u16,
    keeps: Keeps,
    options: Vec<String>,
}

impl Redis {
    /// Starts a server in `dir`, with what one before it kept there, and returns when it answers. Without a
    /// `port` it takes a free one. Fails when Redis is not installed, or does not answer within a minute.
    pub async fn start(dir: &Path, port: Option<u16>, keeps: Keeps) -> anyhow::Result<Self> {
        Self::start_with(dir, port, keeps, Vec::new()).await
    }

    /// Fails, with the reason, if it is not installed.
    pub fn check() -> anyhow::Result<()> {
        program().map(drop)
    }

    /// The same with further options for the program, at this start and later ones.
    pub async fn start_with(
        dir: &Path,
        port: Option<u16>,
        keeps: Keeps,
        options: Vec<String>,
    ) -> anyhow::Result<Self> {
        let program = program()?;
        let made = || format!("Redis cannot have {}", dir.display());
        fs::create_dir_all(dir).with_context(made)?;
        let dir = fs::canonicalize(dir).with_context(made)?;
        let port = port.map_or_else(free_port, Ok)?;
        let process = serve(&program, &dir, port, keeps, &options)?;
        let server = Self { process, program, dir, port, keeps, options };
        server.ready().await?;
        Ok(server)
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its process id. After a restart it is another.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether its process is there, standing still or not.
    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// SIGKILL; returns when it is gone. Its port stays free for it.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.process.end_with(Signal::KILL, STOP).await?;
        Ok(())
    }

    /// Kills it and removes its files: [`Redis::start_again`] starts an empty one.
    pub async fn kill_and_empty(&self) -> anyhow::Result<()> {
        self.kill().await?;
        remove(&self.data())
    }

    /// Starts it with what it kept and returns when it answers. Fails when it still runs.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.process.ended().is_some(), "kill Redis before you start it again");
        self.process = serve(&self.program, &self.dir, self.port, self.keeps, &self.options)?;
        self.ready().await
    }

    /// Stops it in its tracks: connections stay, nothing is answered. Returns when it stands still. Fails when
    /// it has ended.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.process.pause()
    }

    /// Lets it go on where it was stopped. Fails when it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.process.resume()
    }

    /// Forgets every key, while clients stay connected.
    pub async fn flush(&self) -> anyhow::Result<()> {
        self.ask::<()>(&["FLUSHALL", "SYNC"]).await
    }

    /// How many keys it has.
    pub async fn dbsize(&self) -> anyhow::Result<u64> {
        self.ask(&["DBSIZE"]).await
    }

    /// Runs one command on a connection of its own and returns its answer. Fails when the server refuses it,
    /// or does not answer within a minute.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> anyhow::Result<T> {
        let [name, args @ ..] = command else { anyhow::bail!("a command has a name") };
        let asked = async {
            let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
            let client = redis::Client::open(self.url())?;
            let mut db = client.get_multiplexed_async_connection_with_config(&config).await?;
            redis::cmd(name).arg(args).query_async(&mut db).await
        };
        let context = || format!("Redis does not do {name}");
        tokio::time::timeout(ASK, asked).await.with_context(context)?.with_context(context)
    }

    /// Puts its present data aside, for [`Redis::roll_back`]. A later copy replaces it. It stands still for as
    /// long as the copying takes.
    pub async fn save_copy(&self) -> anyhow::Result<()> {
        if self.keeps == Keeps::Snapshots {
            self.ask::<()>(&["SAVE"]).await?;
        }
        // Whatever it has answered is in the files; stopped, it does not write while they are copied.
        self.stop()?;
        let copied = remove(&self.copy()).and_then(|()| copy(&self.data(), &self.copy()));
        self.resume()?;
        copied
    }

    /// The data of the last copy again, as after a restored backup or a failover to a replica that lagged
    /// behind. Kills it if it runs; returns when it answers. The copy stays. Fails without a copy.
    pub async fn roll_back(&mut self) -> anyhow::Result<()> {
        ensure!(self.copy().exists(), "save a copy before you roll back to it");
        self.kill_and_empty().await?;
        copy(&self.copy(), &self.data())?;
        self.start_again().await
    }

    /// The last lines of what it wrote, over all its restarts.
    pub fn log_tail(&self) -> String {
        log_tail(&log_of(&self.dir), LOG_LINES)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let answers = || -> BoxFuture<'_, bool> {
            Box::pin(async {
                let pong = tokio::time::timeout(PING, self.ask::<String>(&["PING"])).await;
                matches!(pong, Ok(Ok(pong)) if pong == "PONG")
            })
        };
        ready("Redis", &self.process, &self.dir, START, answers).await
    }

    fn data(&self) -> PathBuf {
        data(&self.dir)
    }

    fn copy(&self) -> PathBuf {
        self.dir.join("copy")
    }
}

/// The directory of its files; its log lies beside it.
fn data(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn program() -> anyhow::Result<PathBuf> {
    let dirs = program_dirs();
    let mut names = ["redis-server", "valkey-server"].iter();
    let found = names.find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file()));
    found.context(
        "no Redis server is installed here (redis-server or valkey-server on the path); on Debian and \
         Ubuntu: apt-get install redis-server",
    )
}

fn serve(program: &Path, dir: &Path, port: u16, keeps: Keeps, options: &[String]) -> anyhow::Result<Process> {
    let data = data(dir);
    fs::create_dir_all(&data).with_context(|| format!("{} cannot be made", data.display()))?;
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--daemonize", "no", "--save", ""]);
    command.args(["--appendonly", if keeps == Keeps::Writes { "yes" } else { "no" }]);
    command.arg("--dir").arg(&data).args(options).current_dir(&data);
    launch(&mut command, dir)
}

fn remove(dir: &Path) -> anyhow::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("{} cannot be removed", dir.display()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let context = || format!("{} cannot be copied", from.display());
    fs::create_dir_all(to).with_context(context)?;
    for entry in fs::read_dir(from).with_context(context)? {
        let from = entry.with_context(context)?.path();
        let to = to.join(from.file_name().expect("an entry has a name"));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
        }
    }
    Ok(())
}

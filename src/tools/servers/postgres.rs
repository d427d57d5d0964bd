//! A throwaway PostgreSQL: made, stopped, killed, paused and started again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::future::BoxFuture;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{FakeClock, LOG_LINES, free_port, launch, log_of, program_dirs, ready};
use crate::clock::wall_us;
use crate::tools::proc::descendants;
use crate::tools::process::{Process, log_tail, until_still};

/// Making the cluster and starting it, or recovering from a crash, on a busy machine.
const START: Duration = Duration::from_secs(60);
/// A fast shutdown writes a checkpoint, an immediate one waits up to 5 s for its own children.
const STOP: Duration = Duration::from_secs(30);
/// One question to a server that may not answer.
const ASK: Duration = Duration::from_secs(5);
/// Where a backup lies, beside the data.
const BACKUP: &str = "backup";
/// Where Debian and its kin put each version aside.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A PostgreSQL of its caller's own, on one port for good. Dropping it ends the server; the data stay.
///
/// Its superuser is `postgres`, without a password. It flushes what is committed and takes 300 connections.
pub struct Postgres {
    process: Process,
    dir: PathBuf,
    port: u16,
    bin: PathBuf,
    user: Option<User>,
    clock: Option<FakeClock>,
    paused: AtomicBool,
}

/// Whom the server runs as, when that is not ourselves.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl Postgres {
    /// Makes a new cluster in `dir`, or takes the one that is there, and returns when it answers. Without a
    /// `port` it takes a free one.
    ///
    /// PostgreSQL refuses to run as root; run by root, it becomes the system user `postgres`, who is given
    /// `dir` and must be able to pass through the directories above it. Fails when PostgreSQL is not
    /// installed, or does not answer within a minute.
    pub async fn start(dir: &Path, port: Option<u16>) -> anyhow::Result<Self> {
        Self::start_with(dir, port, None).await
    }

    /// The same with a clock that can be set, at this start and later ones.
    pub async fn start_with(dir: &Path, port: Option<u16>, clock: Option<FakeClock>) -> anyhow::Result<Self> {
        let (bin, user) = (programs()?, user()?);
        let made = || format!("PostgreSQL cannot have {}", dir.display());
        fs::create_dir_all(dir).with_context(made)?;
        let dir = fs::canonicalize(dir).with_context(made)?;
        if let Some(user) = user {
            std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid)).with_context(made)?;
        }
        if !dir.join("data/PG_VERSION").exists() {
            make_cluster(&bin, user, &dir).await?;
        }
        let port = port.map_or_else(free_port, Ok)?;
        let process = serve(&bin, user, &dir, port, clock.as_ref())?;
        let server = Self { process, dir, port, bin, user, clock, paused: AtomicBool::new(false) };
        server.ready().await?;
        Ok(server)
    }

    /// The superuser's URL for `database`; `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The process id of the postmaster. After a restart it is another.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Makes an empty database and returns its URL. Fails when there is one of that name.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<String> {
        let context = || format!("database {name} cannot be made");
        let create = AssertSqlSafe(format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")));
        let make = async {
            let mut db = self.connect().await?;
            sqlx::query(create).execute(&mut db).await?;
            db.close().await
        };
        tokio::time::timeout(STOP, make).await.with_context(context)?.with_context(context)?;
        Ok(self.url(name))
    }

    /// SIGINT: rolls back what is open, cuts the connections, writes everything. Returns when it is gone.
    pub async fn stop_fast(&self) -> anyhow::Result<()> {
        self.end_with(Signal::INT).await
    }

    /// SIGQUIT: ends at once, as in a crash; the next start recovers. Returns when it is gone.
    pub async fn kill_immediate(&self) -> anyhow::Result<()> {
        self.end_with(Signal::QUIT).await
    }

    /// Starts it on the same data and port and returns when it answers. Fails when it still runs.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.process.ended().is_some(), "stop PostgreSQL before you start it again");
        self.tidy();
        self.process = serve(&self.bin, self.user, &self.dir, self.port, self.clock.as_ref())?;
        self.ready().await
    }

    /// Sets its clock so many seconds further, from where it stands. Returns how far it is ahead of this machine's
    /// afterwards, as the server itself says. Fails if that is not where it was set, or if it was started without a
    /// clock of its own.
    pub async fn jump(&self, by_s: i64) -> anyhow::Result<f64> {
        let clock = self.clock.as_ref().context("this server has this machine's clock")?;
        clock.jump(by_s)?;
        let context = "PostgreSQL does not say what time it is";
        let ask = async {
            let mut db = self.connect().await?;
            let shows: f64 = sqlx::query_scalar("SELECT extract(epoch FROM statement_timestamp())::float8")
                .fetch_one(&mut db)
                .await?;
            let ahead_s = shows - wall_us() as f64 / 1e6;
            db.close().await?;
            Ok::<_, sqlx::Error>(ahead_s)
        };
        let ahead_s: f64 = tokio::time::timeout(ASK, ask).await.context(context)?.context(context)?;
        let is_set = (ahead_s - clock.ahead_s() as f64).abs() < 60.0;
        ensure!(is_set, "PostgreSQL's clock is {ahead_s} s ahead, and was set to {}", clock.ahead_s());
        Ok(ahead_s)
    }

    /// Has it write its log forward until it goes down for want of space, or does not within a time; returns whether it
    /// went down.
    pub async fn use_up_log(&self) -> bool {
        let write = async {
            while self.process.ended().is_none() {
                if let Ok(mut db) = self.connect().await {
                    let megabyte = "SELECT pg_logical_emit_message(false, 'filling', repeat('x', 1048576))";
                    while sqlx::query(megabyte).execute(&mut db).await.is_ok() {}
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(STOP, write).await.is_ok()
    }

    /// Copies all of it while it works, as a base backup. One that was made before is replaced.
    pub async fn back_up(&self) -> anyhow::Result<()> {
        let copy = self.dir.join(BACKUP);
        if copy.exists() {
            fs::remove_dir_all(&copy).with_context(|| format!("{} cannot be removed", copy.display()))?;
        }
        let mut backup = program(&self.bin, "pg_basebackup", self.user, &self.dir);
        backup.args(["--host=127.0.0.1", "--username=postgres", "--checkpoint=fast", "--no-sync"]);
        backup.arg(format!("--port={}", self.port)).arg(format!("--pgdata={BACKUP}"));
        let exit = spawn(&mut backup, self.user, &self.dir)?.wait(START).await;
        let is_made = exit.is_some_and(|exit| exit.status.success());
        ensure!(is_made, "pg_basebackup makes no backup:\n{}", self.log_tail());
        Ok(())
    }

    /// Ends it at once, puts what [`Postgres::back_up`] has copied into its place, and starts it.
    pub async fn go_back(&mut self) -> anyhow::Result<()> {
        self.kill_immediate().await?;
        let (data, copy) = (self.dir.join("data"), self.dir.join(BACKUP));
        fs::remove_dir_all(&data).with_context(|| format!("{} cannot be removed", data.display()))?;
        fs::rename(&copy, &data).context("the backup cannot be brought back")?;
        self.start_again().await
    }

    /// Whether it runs. One that found no space to recover in has ended by itself.
    pub fn runs(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Stops all of its processes in their tracks: connections stay, nothing is answered. Returns when all
    /// stand still. Fails when it has ended.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.paused.store(true, Ordering::SeqCst);
        // The postmaster first: it starts no more of them, and as it reaps none either, no pid of a child can
        // become a stranger's before it goes on.
        self.process.pause()?;
        let mut still = Vec::new();
        loop {
            let all = descendants(self.pid());
            let new: Vec<u32> = all.into_iter().filter(|pid| !still.contains(pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            signal_all(&new, Signal::STOP);
            until_still(&new)?;
            still.extend(new);
        }
    }

    /// Lets all of its processes go on after [`Postgres::pause`]. Fails when it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        if self.paused.swap(false, Ordering::SeqCst) {
            signal_all(&descendants(self.pid()), Signal::CONT);
        }
        self.process.resume()
    }

    /// The last lines of what it wrote, over all its restarts.
    pub fn log_tail(&self) -> String {
        log_tail(&log_of(&self.dir), LOG_LINES)
    }

    async fn end_with(&self, signal: Signal) -> anyhow::Result<()> {
        self.tell_end(signal);
        let context = || format!("PostgreSQL stays; the end of its log:\n{}", self.log_tail());
        self.process.wait(STOP).await.with_context(context)?;
        Ok(())
    }

    fn tell_end(&self, signal: Signal) {
        self.process.signal(signal);
        if self.paused.load(Ordering::SeqCst) {
            // A paused process gets the signal only when it goes on. An error here means that it has ended.
            let _ = self.resume();
        }
    }

    fn tidy(&self) {
        if self.clock.is_some() {
            FakeClock::tidy(self.pid());
        }
    }

    async fn connect(&self) -> sqlx::Result<PgConnection> {
        // An environment that asks for TLS means other servers than this one.
        let options: PgConnectOptions = self.url("postgres").parse()?;
        PgConnection::connect_with(&options.ssl_mode(PgSslMode::Disable)).await
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let answers = || -> BoxFuture<'_, bool> {
            Box::pin(async {
                match tokio::time::timeout(ASK, self.connect()).await {
                    Ok(Ok(db)) => db.close().await.is_ok(),
                    _ => false,
                }
            })
        };
        ready("PostgreSQL", &self.process, &self.dir, START, answers).await
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // By SIGKILL alone the server's own children would outlive it by a moment.
        self.tell_end(Signal::QUIT);
        self.process.wait_blocking(STOP);
        self.tidy();
    }
}

/// Where the newest PostgreSQL is that can make and run a cluster.
fn programs() -> anyhow::Result<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir(VERSIONS)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    let aside = versions.iter().map(|version| Path::new(VERSIONS).join(format!("{version}/bin")));
    aside
        .chain(program_dirs())
        .find(|dir| ["initdb", "postgres"].iter().all(|name| dir.join(name).is_file()))
        .context(
            "no PostgreSQL server is installed here (initdb and postgres, below /usr/lib/postgresql or on \
             the path); on Debian and Ubuntu: apt-get install postgresql",
        )
}

/// The user that the server runs as; `None` for our own, unless we are root.
fn user() -> anyhow::Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd cannot be read")?;
    let user = find_user(&passwd, "postgres").context(
        "PostgreSQL refuses to run as root, and there is no system user postgres to run it; the package \
         `postgresql` makes one",
    )?;
    Ok(Some(user))
}

fn find_user(passwd: &str, name: &str) -> Option<User> {
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|line| line.first() == Some(&name))?;
    Some(User { uid: line.get(2)?.parse().ok()?, gid: line.get(3)?.parse().ok()? })
}

/// One of PostgreSQL's programs, in `dir` and as `user`, without this process's own PostgreSQL settings.
fn program(bin: &Path, name: &str, user: Option<User>, dir: &Path) -> Command {
    let mut command = Command::new(bin.join(name));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.current_dir(dir);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

async fn make_cluster(bin: &Path, user: Option<User>, dir: &Path) -> anyhow::Result<()> {
    let aside = dir.join("data.new");
    if aside.exists() {
        fs::remove_dir_all(&aside).with_context(|| format!("{} cannot be removed", aside.display()))?;
    }
    let mut initdb = program(bin, "initdb", user, dir);
    initdb.args(["--pgdata=data.new", "--username=postgres", "--auth=trust", "--encoding=UTF8"]);
    initdb.args(["--locale=C.UTF-8", "--no-sync", "--no-instructions"]);
    let exit = spawn(&mut initdb, user, dir)?.wait(START).await;
    if !exit.is_some_and(|exit| exit.status.success()) {
        let how = exit.map_or_else(|| format!("not within {START:?}"), |exit| exit.status.to_string());
        bail!("initdb makes no cluster ({how}):\n{}", log_tail(&log_of(dir), LOG_LINES));
    }
    // Made aside and renamed, so that an initdb cut short leaves nothing that looks like a cluster.
    fs::rename(&aside, dir.join("data")).context("the new cluster cannot be put into its place")
}

fn serve(
    bin: &Path,
    user: Option<User>,
    dir: &Path,
    port: u16,
    clock: Option<&FakeClock>,
) -> anyhow::Result<Process> {
    let mut postgres = program(bin, "postgres", user, dir);
    if let Some(clock) = clock {
        clock.give(&mut postgres);
    }
    postgres.args(["-D", "data", "-c", "listen_addresses=127.0.0.1", "-c", &format!("port={port}")]);
    // No socket: its path would be too long for the system in a deep directory.
    postgres.args(["-c", "unix_socket_directories=", "-c", "max_connections=300", "-c", "fsync=on"]);
    spawn(&mut postgres, user, dir)
}

fn spawn(command: &mut Command, user: Option<User>, dir: &Path) -> anyhow::Result<Process> {
    launch(command, dir).with_context(|| match user {
        Some(_) => format!("the user postgres must be able to enter {} and all above it", dir.display()),
        None => format!("PostgreSQL cannot be started in {}", dir.display()),
    })
}

fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let passwd = "root:x:0:0::/:/bin/sh\npostgres2:x:5:6::/:/bin/sh\npostgres:x:101:104:A:/:/bin/sh\n";
        let found = find_user(passwd, "postgres").map(|user| (user.uid, user.gid));
        assert_eq!(found, Some((101, 104)));
        assert!(find_user(passwd, "post").is_none() && find_user("postgres:x", "postgres").is_none());
    }
}

//! Redis for tests: a namespace on the shared server, and private servers to kill, empty and roll back.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::servers::run;
use super::{Process, free_port};

/// A start reads back what was kept; tests keep little.
const START: Duration = Duration::from_secs(30);
/// A killed server is gone in milliseconds, unless the disk holds it.
const STOP: Duration = Duration::from_secs(10);

/// What a private Redis finds again when it was killed and is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// What it has answered: it has an append-only file.
    Writes,
    /// What the last [`Redis::save_copy`], or a `SAVE`, found; nothing without one.
    Snapshots,
}

/// A Redis of this test's own, on one port for good. Dropping it ends the server and removes its data.
pub struct Redis {
    // Before `dir`: the server ends before its directory goes.
    process: Process,
    dir: TempDir,
    port: u16,
    keeps: Keeps,
    /// Options beyond the usual ones.
    options: Vec<String>,
}

impl Redis {
    /// Starts an empty server that keeps its writes, and returns when it answers.
    pub async fn private() -> Self {
        Self::private_keeping(Keeps::Writes).await
    }

    /// Starts an empty server that keeps no more than this, and returns when it answers.
    pub async fn private_keeping(keeps: Keeps) -> Self {
        Self::private_with(keeps, Vec::new()).await
    }

    /// The same with further options for redis-server, at this start and later ones.
    pub(super) async fn private_with(keeps: Keeps, options: Vec<String>) -> Self {
        let dir = tempfile::Builder::new().prefix("redis").tempdir().expect("a temporary directory");
        let port = free_port();
        let process = launch(dir.path(), port, keeps, &options);
        let server = Self { process, dir, port, keeps, options };
        server.wait_ready().await;
        server
    }

    /// A namespace of this test's own on the shared server.
    pub fn shared() -> SharedRedis {
        let url = env::var("MAINSPRING_TEST_REDIS")
            .expect("MAINSPRING_TEST_REDIS is not set: run scripts/test, which starts the servers");
        SharedRedis { url, namespace: format!("test-{}", uuid::Uuid::now_v7().simple()) }
    }

    /// `redis://127.0.0.1:PORT`, the same for its whole life.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// SIGKILL; returns when it is gone. Its port stays free for it.
    pub async fn kill(&self) {
        self.process.end_with(Signal::KILL, STOP).await;
    }

    /// Starts it with what it kept and returns when it answers. It must have been killed.
    pub async fn start_again(&mut self) {
        assert!(self.process.ended().is_some(), "kill the server before you start it again");
        self.process = launch(self.dir.path(), self.port, self.keeps, &self.options);
        self.wait_ready().await;
    }

    /// Another Redis in its place, which knows nothing. Kills the present one if it runs.
    pub async fn start_empty(&mut self) {
        self.replace(None).await;
    }

    /// Stops it in its tracks: connections stay, nothing is answered. Returns when it stands still.
    pub fn stop_process(&self) {
        assert!(self.process.pause(), "the server has ended and cannot be stopped");
    }

    /// See [`Redis::stop_process`]: it goes on where it was.
    pub fn continue_process(&self) {
        assert!(self.process.signal(Signal::CONT), "the server has ended and cannot go on");
    }

    /// Forgets every key, while clients stay connected.
    pub async fn flush_all(&self) {
        assert_eq!(self.cli(&["FLUSHALL", "SYNC"]).await, "OK");
    }

    /// Puts its present data aside, for [`Redis::roll_back`]. A later copy replaces it.
    pub async fn save_copy(&self) {
        if self.keeps == Keeps::Snapshots {
            assert_eq!(self.cli(&["SAVE"]).await, "OK");
        }
        // Whatever it has answered is in the files; stopped, it does not write while they are copied.
        self.stop_process();
        remove(&self.copy());
        copy(&data(self.dir.path()), &self.copy());
        self.continue_process();
    }

    /// The data of the last copy again, as after a restored backup or a failover to a replica that lagged
    /// behind. Kills it if it runs; returns when it answers. The copy stays.
    pub async fn roll_back(&mut self) {
        assert!(self.copy().exists(), "save a copy before you roll back to it");
        self.replace(Some(self.copy())).await;
    }

    /// Runs one command with redis-cli and returns what it prints. Panics if the server refuses it, or does
    /// not answer within ten seconds.
    pub async fn cli(&self, args: &[&str]) -> String {
        cli(&self.url(), args).await.unwrap_or_else(|why| panic!("redis-cli {args:?}: {why}"))
    }

    async fn replace(&mut self, with: Option<PathBuf>) {
        self.kill().await;
        let data = data(self.dir.path());
        remove(&data);
        if let Some(with) = with {
            copy(&with, &data);
        }
        self.start_again().await;
    }

    async fn wait_ready(&self) {
        let end = Instant::now() + START;
        while cli(&self.url(), &["PING"]).await.as_deref() != Ok("PONG") {
            let gone = self.process.ended();
            assert!(gone.is_none() && Instant::now() < end, "Redis does not start: {}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// The server that all tests share, and a namespace that no other test has.
pub struct SharedRedis {
    url: String,
    namespace: String,
}

impl SharedRedis {
    pub fn url(&self) -> &str {
        &self.url
    }

    /// For [`super::NodeBuilder::namespace`]: what keeps the tests on this server apart.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// As [`Redis::cli`].
    pub async fn cli(&self, args: &[&str]) -> String {
        cli(&self.url, args).await.unwrap_or_else(|why| panic!("redis-cli {args:?}: {why}"))
    }
}

/// Its files; what it says goes beside them.
fn data(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn launch(dir: &Path, port: u16, keeps: Keeps, options: &[String]) -> Process {
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log file");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/private-redis");
    let mut command = Command::new(script);
    command.arg(data(dir)).arg(port.to_string());
    if keeps == Keeps::Snapshots {
        command.args(["--appendonly", "no"]);
    }
    command.args(options).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("the log file can be shared")).stderr(log);
    Process::spawn(&mut command)
}

/// What redis-cli prints, or what it says against it.
async fn cli(url: &str, args: &[&str]) -> Result<String, String> {
    // It has no limit of its own on how long it waits for a server that stands still.
    let mut command = Command::new("timeout");
    command.args(["10", "redis-cli", "-e", "--no-auth-warning", "-u", url]).args(args).stdin(Stdio::null());
    let output = run(command).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{} {} {}", output.status, text(&output.stdout), text(&output.stderr)))
    }
}

fn remove(dir: &Path) {
    if dir.exists() {
        fs::remove_dir_all(dir).expect("a directory of our own can be removed");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory of our own can be made");
    for entry in fs::read_dir(from).expect("the directory can be read").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a file of our own can be copied");
        }
    }
}

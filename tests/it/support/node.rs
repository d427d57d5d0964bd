//! The real binary as a child process, to be killed, paused and started again.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mainspring::clock::Monotonic;
use mainspring::tools::process::log_tail;
use rustix::process::Signal;
use tempfile::TempDir;

use super::{Api, Process, Redis, free_port, http_client};

/// A killed process is gone in milliseconds, unless the disk holds it.
const REAP: Duration = Duration::from_secs(10);
/// Past this, a stop is no stop. Tests set tighter limits on the time they are given.
const STOP: Duration = Duration::from_secs(60);
/// As much of a failed node's log as is worth reading.
const LOG_TAIL: usize = 100;

/// What a node is to be started with.
#[derive(Default)]
pub struct NodeBuilder {
    cold: Option<String>,
    name: Option<String>,
    env: Vec<(String, String)>,
    bears_limits: bool,
    bears_core_files: bool,
    open_files: Option<(u64, u64)>,
    program: Option<PathBuf>,
}

impl NodeBuilder {
    /// The cold store's URL; without one, an SQLite file of the node's own.
    pub fn cold(mut self, url: impl Into<String>) -> Self {
        self.cold = Some(url.into());
        self
    }

    /// The wheels' URL; without one, the shared Redis beside a PostgreSQL, and the default beside SQLite.
    pub fn hot(self, url: impl Into<String>) -> Self {
        self.env("MAINSPRING__HOT__URL", url)
    }

    /// The store's namespace; without one, the default. On a shared Redis each test needs its own.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.env("MAINSPRING__NAMESPACE", namespace)
    }

    /// The node's name; without one, a name that no other node of this test run has.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// One more environment variable. The last of equal names counts.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// A crash may leave a core file, unless the node itself says otherwise.
    pub fn bearing_core_files(mut self) -> Self {
        self.bears_core_files = true;
        self
    }

    /// A write beyond the limit on file sizes shall fail instead of ending the process.
    pub fn bearing_file_size_limits(mut self) -> Self {
        self.bears_limits = true;
        self
    }

    /// The soft and the hard limit on its open files.
    pub fn open_files(mut self, soft: u64, hard: u64) -> Self {
        self.open_files = Some((soft, hard));
        self
    }

    /// Another program than the one under test: that of an earlier release.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Starts the process and does not wait for it.
    pub fn start(self) -> Node {
        let dir = tempfile::Builder::new().prefix("node").tempdir().expect("a temporary directory");
        let port = free_port();
        let cold = self.cold.unwrap_or_else(|| format!("sqlite://{}/mainspring.db", dir.path().display()));
        let mut env = vec![
            ("MAINSPRING__SERVER__LISTEN".to_owned(), format!("127.0.0.1:{port}")),
            ("MAINSPRING__COLD__URL".to_owned(), cold),
            ("MAINSPRING__NODE__NAME".to_owned(), self.name.unwrap_or_else(|| format!("node-{port}"))),
        ];
        if env[1].1.starts_with("postgres") {
            env.push(("MAINSPRING__HOT__URL".to_owned(), Redis::shared().url().to_owned()));
        }
        env.extend(self.env);
        let program = self.program.unwrap_or_else(|| env!("CARGO_BIN_EXE_mainspring").into());
        let (bears_limits, bears_core_files) = (self.bears_limits, self.bears_core_files);
        let how = How { program, bears_limits, bears_core_files, open_files: self.open_files };
        Node { process: launch(&dir, &env, &how), dir, port, env, how }
    }

    /// Starts it and returns when it is ready to serve.
    pub async fn start_ready(self) -> Node {
        let node = self.start();
        // Making a database flushes the disk again and again, which a busy one delays.
        node.wait_ready(Duration::from_secs(120)).await;
        node
    }
}

/// A node. Dropping it kills it; while a test fails, its log is shown first.
pub struct Node {
    // Before `dir`: the process ends before its directory goes.
    process: Process,
    dir: TempDir,
    port: u16,
    env: Vec<(String, String)>,
    how: How,
}

/// The program, and what a shell sets before it becomes it.
struct How {
    program: PathBuf,
    bears_limits: bool,
    bears_core_files: bool,
    open_files: Option<(u64, u64)>,
}

impl Node {
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Waits until it has started up and can serve; panics after `timeout`, or as soon as the process ends.
    pub async fn wait_ready(&self, timeout: Duration) {
        let client = http_client(Duration::from_secs(5));
        let end = Instant::now() + timeout;
        for path in ["/startupz", "/readyz"] {
            let url = format!("{}{path}", self.base());
            while !client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
                if let Some(exit) = self.process.ended() {
                    panic!("the node ended instead of getting ready: {}", exit.status);
                }
                assert!(Instant::now() < end, "{path} is not 200 within {timeout:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// `http://127.0.0.1:PORT`, the same after a restart.
    pub fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its own directory: the working directory, the log and, unless told otherwise, the store.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// A client of this node.
    pub fn api(&self) -> Api {
        Api::new(self.base())
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGKILL; returns when it is gone.
    pub async fn kill9(&self) {
        self.process.end_with(Signal::KILL, REAP).await.expect("it ends");
    }

    /// Stops it in its tracks, as a long pause would; returns when it stands still. See [`Node::resume`].
    pub fn pause(&self) {
        self.process.pause().expect("it stops");
    }

    pub fn resume(&self) {
        self.process.resume().expect("it goes on");
    }

    /// SIGTERM; returns how it ended and how long that took.
    pub async fn sigterm(&self) -> (ExitStatus, Duration) {
        let asked = Monotonic::now();
        let exit = self.process.end_with(Signal::TERM, STOP).await.expect("it stops");
        (exit.status, exit.at.since(asked))
    }

    /// Waits until it ends by itself; `None` when it still runs after `timeout`.
    pub async fn wait_exit(&self, timeout: Duration) -> Option<ExitStatus> {
        self.process.wait(timeout).await.map(|exit| exit.status)
    }

    /// Starts it with the same settings, port and directory, killing it first if it runs. Does not wait
    /// until it is ready.
    pub async fn restart(&mut self) {
        self.kill9().await;
        self.process = launch(&self.dir, &self.env, &self.how);
    }

    /// Replaces the program by the one under test: SIGTERM to the one that runs, then a start. Does not wait until it is
    /// ready.
    pub async fn upgrade(&mut self) {
        assert!(self.sigterm().await.0.success(), "the older release stops in order");
        self.how.program = env!("CARGO_BIN_EXE_mainspring").into();
        self.process = launch(&self.dir, &self.env, &self.how);
    }

    /// As [`Node::restart`], with one setting changed for good.
    pub async fn restart_with(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
        self.restart().await;
    }

    /// All that it has written to stderr so far, over all its restarts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let tail = log_tail(&self.dir.path().join("log"), LOG_TAIL);
            eprintln!("--- last lines of the node on port {}\n{tail}\n---", self.port);
        }
    }
}

/// It runs in its own directory and sees none of this process's settings.
fn launch(dir: &TempDir, env: &[(String, String)], how: &How) -> Process {
    let log = File::options().create(true).append(true).open(dir.path().join("log")).expect("a log file");
    let binary = &how.program;
    let mut script = String::new();
    if how.bears_limits {
        script.push_str("trap '' XFSZ; ");
    }
    if how.bears_core_files {
        script.push_str("ulimit -c unlimited; ");
    }
    if let Some((soft, hard)) = how.open_files {
        script.push_str(&format!("ulimit -Sn {soft}; ulimit -Hn {hard}; "));
    }
    let mut command = if script.is_empty() {
        Command::new(binary)
    } else {
        // What is ignored, and limits, stay over an exec, which also keeps the pid.
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{script} exec \"$0\" \"$@\"")]).arg(binary);
        shell
    };
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("MAINSPRING__") || text.starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command.arg("serve").current_dir(dir.path());
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Process::spawn(&mut command).expect("the node starts")
}

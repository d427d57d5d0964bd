//! PostgreSQL for tests: databases on the shared server, and private servers to stop and kill.

use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::Process;

/// Making the cluster and starting it, on a machine busy with other tests.
const START: Duration = Duration::from_secs(60);
/// A fast shutdown writes a checkpoint, an immediate one waits up to 5 s for its own children.
const STOP: Duration = Duration::from_secs(30);

/// A PostgreSQL of this test's own. Dropping it ends the server and removes its data.
pub struct Postgres {
    // Before `dir`: the server ends before its directory goes.
    process: Process,
    dir: TempDir,
    port: u16,
}

impl Postgres {
    /// Makes a new cluster and returns when it answers.
    pub async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("pg").tempdir().expect("a temporary directory");
        let port = free_port();
        let server = Self { process: launch(dir.path(), port), dir, port };
        server.wait_ready().await;
        server
    }

    /// The superuser's URL for `database`; `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes an empty database with a new name and returns its URL.
    pub async fn create_database(&self) -> String {
        create_database(&self.url("postgres")).await
    }

    /// SIGINT: rolls back what is open, cuts the connections, writes everything. Returns when it is gone.
    pub async fn stop_fast(&self) {
        self.process.end_with(Signal::INT, STOP).await;
    }

    /// SIGQUIT: ends at once, as in a crash; the next start recovers. Returns when it is gone.
    pub async fn kill_immediate(&self) {
        self.process.end_with(Signal::QUIT, STOP).await;
    }

    /// Starts it on the same data and port and returns when it answers. It must have been stopped.
    pub async fn start_again(&mut self) {
        assert!(self.process.ended().is_some(), "stop the server before you start it again");
        self.process = launch(self.dir.path(), self.port);
        self.wait_ready().await;
    }

    async fn wait_ready(&self) {
        let end = Instant::now() + START;
        let url = self.url("postgres");
        while !answers(&url).await {
            let gone = self.process.ended();
            assert!(gone.is_none() && Instant::now() < end, "PostgreSQL does not start: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // By SIGKILL alone the server's own children would outlive it by a moment.
        self.process.signal(Signal::QUIT);
        self.process.wait_blocking(STOP);
    }
}

/// Makes an empty database with a new name on the shared server and returns its URL.
pub async fn fresh_database() -> String {
    let shared = env::var("MAINSPRING_TEST_POSTGRES")
        .expect("MAINSPRING_TEST_POSTGRES is not set: run scripts/test, which starts the servers");
    create_database(&shared).await
}

/// Runs one SQL text and returns its rows, unaligned, a row a line. Panics if the server refuses it.
pub async fn psql(url: &str, sql: &str) -> String {
    let mut command = tool("psql");
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
    command.args(["--set=ON_ERROR_STOP=1", "--dbname", url, "--command", sql]);
    command.env("PGCONNECT_TIMEOUT", "10").stdin(Stdio::null());
    let output = run(command).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql refuses {sql:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// A loopback port that nobody listens on, and that no other call in this process returns.
///
/// It is below the range from which the kernel serves outgoing connections: a server that is down
/// for a moment must find its port free when it comes back.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = process::id().wrapping_mul(97) % COUNT;
    for _ in 0..COUNT {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + (start + offset) % COUNT).expect("below 32,000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("every port from {FIRST} up is taken");
}

fn launch(dir: &Path, port: u16) -> Process {
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log file");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/private-postgres");
    let mut command = Command::new(script);
    command.arg(dir).arg(port.to_string());
    command.stdin(Stdio::null());
    command.stdout(log.try_clone().expect("the log file can be shared")).stderr(log);
    Process::spawn(&mut command)
}

async fn create_database(server: &str) -> String {
    let name = format!("test_{}", uuid::Uuid::now_v7().simple());
    psql(server, &format!("CREATE DATABASE {name}")).await;
    let mut url = url::Url::parse(server).expect("the server's URL is a URL");
    url.set_path(&name);
    url.into()
}

async fn answers(url: &str) -> bool {
    let mut command = tool("pg_isready");
    command.args(["--quiet", "--timeout=5", "--dbname", url]).stdin(Stdio::null());
    run(command).await.status.success()
}

pub(super) async fn run(mut command: Command) -> process::Output {
    let name = command.get_program().to_string_lossy().into_owned();
    tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("running a command does not panic")
        .unwrap_or_else(|error| panic!("cannot run {name} (scripts/install-needs installs it): {error}"))
}

/// One of PostgreSQL's own programs: the newest that Debian put aside, or else the one on the path.
fn tool(name: &str) -> Command {
    static BIN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let bin = BIN.get_or_init(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max()?;
        Some(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
    });
    match bin.as_ref().map(|bin| bin.join(name)).filter(|path| path.exists()) {
        Some(path) => Command::new(path),
        None => Command::new(name),
    }
}

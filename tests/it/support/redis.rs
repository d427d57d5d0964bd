//! Redis for tests: a namespace on the shared server, and private servers to kill, empty and roll back.

use std::env;
use std::process::{Command, Stdio};

use mainspring::tools::servers;
pub use mainspring::tools::servers::Keeps;
use tempfile::TempDir;

use super::servers::run;

/// A Redis of this test's own, on one port for good. Dropping it ends the server and removes its data.
pub struct Redis {
    // Before `dir`: the server ends before its directory goes.
    server: servers::Redis,
    _dir: TempDir,
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
    pub async fn private_with(keeps: Keeps, options: Vec<String>) -> Self {
        let dir = tempfile::Builder::new().prefix("redis").tempdir().expect("a temporary directory");
        let server =
            servers::Redis::start_with(dir.path(), None, keeps, options).await.expect("Redis starts");
        Self { server, _dir: dir }
    }

    /// A namespace of this test's own on the shared server.
    pub fn shared() -> SharedRedis {
        let url = env::var("MAINSPRING_TEST_REDIS")
            .expect("MAINSPRING_TEST_REDIS is not set: run scripts/test, which starts the servers");
        SharedRedis { url, namespace: format!("test-{}", uuid::Uuid::now_v7().simple()) }
    }

    /// `redis://127.0.0.1:PORT`, the same for its whole life.
    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn port(&self) -> u16 {
        self.server.address().port()
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    pub fn is_running(&self) -> bool {
        self.server.is_running()
    }

    /// See [`servers::Redis::kill`].
    pub async fn kill(&self) {
        self.server.kill().await.expect("it ends");
    }

    /// See [`servers::Redis::start_again`].
    pub async fn start_again(&mut self) {
        self.server.start_again().await.expect("it starts again");
    }

    /// Another Redis in its place, which knows nothing. Kills the present one if it runs.
    pub async fn start_empty(&mut self) {
        self.server.kill_and_empty().await.expect("it ends");
        self.start_again().await;
    }

    /// See [`servers::Redis::stop`].
    pub fn stop_process(&self) {
        self.server.stop().expect("it stops");
    }

    /// See [`servers::Redis::resume`].
    pub fn continue_process(&self) {
        self.server.resume().expect("it goes on");
    }

    /// See [`servers::Redis::flush`].
    pub async fn flush_all(&self) {
        self.server.flush().await.expect("it forgets");
    }

    /// See [`servers::Redis::save_copy`].
    pub async fn save_copy(&self) {
        self.server.save_copy().await.expect("it can be copied");
    }

    /// See [`servers::Redis::roll_back`].
    pub async fn roll_back(&mut self) {
        self.server.roll_back().await.expect("it is as it was");
    }

    /// Runs one command with redis-cli and returns what it prints. Panics if the server refuses it, or does
    /// not answer within ten seconds.
    pub async fn cli(&self, args: &[&str]) -> String {
        cli(&self.url(), args).await.unwrap_or_else(|why| panic!("redis-cli {args:?}: {why}"))
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

//! A throwaway Tansu: a broker of Kafka's protocol that keeps topics in memory.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use super::running::{Running, program};
use super::{free_port, launch};

/// It starts in no time.
const START: Duration = Duration::from_secs(30);

/// A Tansu of its caller's own, on one port for good. Dropping it ends the broker; killing it, its topics.
pub struct Tansu {
    running: Running,
    program: PathBuf,
}

impl Tansu {
    /// The variable with the path of its program; otherwise it is looked for like any other.
    pub const PROGRAM: &str = "MAINSPRING_TEST_KAFKA";

    /// Fails, with the reason, if it is not installed.
    pub fn check() -> anyhow::Result<()> {
        Self::installed().map(drop)
    }

    fn installed() -> anyhow::Result<PathBuf> {
        match std::env::var_os(Self::PROGRAM) {
            Some(path) => Ok(path.into()),
            None => program("tansu", &[], "tansu (no package; scripts/kafka-broker fetches it)"),
        }
    }

    /// Starts a broker in `dir` and returns when it takes connections. It tells clients to go to `advertised` (host and port), to
    /// itself if there is none. Fails when it is not installed, or does not start within half a minute.
    pub async fn start(dir: &Path, advertised: Option<&str>) -> anyhow::Result<Self> {
        let made = || format!("Tansu cannot have {}", dir.display());
        fs::create_dir_all(dir).with_context(made)?;
        let dir = fs::canonicalize(dir).with_context(made)?;
        let port = free_port()?;
        let program = Self::installed()?;
        let own = format!("127.0.0.1:{port}");
        let urls = [&own, advertised.unwrap_or(&own)].map(|address| format!("tcp://{address}"));
        let serve = {
            let (dir, program) = (dir.clone(), program.clone());
            move || {
                let mut command = Command::new(&program);
                command.args(["broker", "--storage-engine", "memory://tansu/"]).current_dir(&dir);
                command.args(["--listener-url", &urls[0], "--advertised-listener-url", &urls[1]]);
                launch(&mut command, &dir)
            }
        };
        let running = Running::start("Tansu", &dir, port, START, serve).await?;
        Ok(Self { running, program })
    }

    /// The command that makes a topic, to be run.
    pub fn create_topic(&self, name: &str, partitions: u32) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["topic", "create", "--broker", &format!("tcp://{}", self.address())]);
        command.args(["--partitions", &partitions.to_string(), name]).stdin(Stdio::null());
        command
    }
}

impl Deref for Tansu {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Tansu {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

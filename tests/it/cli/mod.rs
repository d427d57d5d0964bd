//! The command line as a user meets it: the real binary against a real server or store. Data is on stdout and
//! nothing else, the exit code is the contract's (section 5), and each of its codes is reached by its cause.
//!
//! Code 6 of `bench` and `drill` is in `bench` and `drill::verdicts`.

mod calls;
mod destinations;
mod keys;
mod look;
mod manuals;
mod operations;
mod receive;
mod schedules;
mod settings;
mod stores;
mod subscriptions;
mod templates;
mod timers;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Node, Process};

/// A verb that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The exit codes of the contract.
const OK: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const UNAVAILABLE: i32 = 5;
const LOSS: i32 = 6;

/// A directory to call the binary in. Nothing of this process's own settings reaches it.
struct Shell {
    dir: TempDir,
    env: Vec<(String, String)>,
}

/// What a verb printed, and how it ended.
#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// A verb that runs. Dropping it kills it.
struct Running {
    process: Process,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Shell {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory"), env: Vec::new() }
    }

    /// With `MAINSPRING_SERVER` set to a node's address.
    fn of(node: &Node) -> Self {
        Self::new().env("MAINSPRING_SERVER", node.base())
    }

    /// With one more environment variable.
    fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a verb to its end. The line is split at blanks.
    async fn run(&self, line: &str) -> Ran {
        self.start(line).ended().await
    }

    /// Starts a verb and does not wait for its end.
    fn start(&self, line: &str) -> Running {
        let out = tempfile::Builder::new().prefix("out").tempdir_in(self.path()).expect("a directory").keep();
        let stdout = out.join("stdout");
        self.launch(line, File::create(&stdout).expect("a file").into(), &out)
    }

    /// Runs a verb whose stdout nobody reads: the pipe's other end is closed already.
    async fn run_unread(&self, line: &str) -> Ran {
        let out = tempfile::Builder::new().prefix("out").tempdir_in(self.path()).expect("a directory").keep();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        File::create(out.join("stdout")).expect("a file");
        self.launch(line, writer.into(), &out).ended().await
    }

    fn launch(&self, line: &str, stdout: Stdio, out: &Path) -> Running {
        let stderr = out.join("stderr");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
        command.args(line.split_whitespace()).current_dir(self.path()).env_clear();
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(stdout).stderr(File::create(&stderr).expect("a file"));
        let process = Process::spawn(&mut command).expect("it starts");
        Running { process, stdout: out.join("stdout"), stderr }
    }
}

impl Running {
    /// What it has printed to stderr so far.
    fn noted(&self) -> String {
        std::fs::read_to_string(&self.stderr).expect("text")
    }

    /// What it has printed to stdout so far.
    fn printed(&self) -> String {
        std::fs::read_to_string(&self.stdout).expect("text")
    }

    /// Waits for its end.
    async fn ended(self) -> Ran {
        let exit = self.process.wait(PATIENCE).await;
        let (stdout, stderr) = (std::fs::read_to_string(&self.stdout).expect("text"), self.noted());
        let exit = exit.unwrap_or_else(|| panic!("it does not end: {stdout}{stderr}"));
        assert!(!stderr.contains("panicked"), "{stderr}");
        let code = exit.status.code().unwrap_or_else(|| panic!("{}: {stderr}", exit.status));
        Ran { code, stdout, stderr }
    }
}

impl Ran {
    /// Its stdout, after it succeeded and had nothing to say besides.
    #[track_caller]
    fn printed(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (OK, ""), "{self:?}");
        self.stdout
    }

    /// The one JSON object that it printed; its stderr is empty.
    #[track_caller]
    fn json(self) -> Value {
        let text = self.printed();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }

    /// The one line on stderr of a verb that failed with this code and printed nothing to stdout.
    #[track_caller]
    fn refused(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("mainspring: "), "{self:?}");
        self.stderr
    }
}

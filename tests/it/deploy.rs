//! What `deploy/` relies on: what a service manager is told by the real binary, and that settings named there exist.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainspring::config::Config;
use tempfile::TempDir;

use crate::support::{Node, NodeBuilder, Postgres, eventually};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A service manager: the socket that `NOTIFY_SOCKET` names.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _dir: TempDir,
    /// Every line so far, in order.
    lines: Vec<String>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("it can be polled");
        Self { socket, path, _dir: dir, lines: Vec::new() }
    }

    /// With a watchdog of this many milliseconds, as `WatchdogSec=` sets it.
    fn manages(&self, node: NodeBuilder, watchdog_ms: u64) -> NodeBuilder {
        node.env("NOTIFY_SOCKET", self.path.display().to_string())
            .env("WATCHDOG_USEC", (watchdog_ms * 1000).to_string())
    }

    /// Every line so far.
    fn lines(&mut self) -> &[String] {
        let mut message = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut message) {
            let text = std::str::from_utf8(&message[..length]).expect("text");
            self.lines.extend(text.lines().map(str::to_owned));
        }
        &self.lines
    }

    fn count(&mut self, line: &str) -> usize {
        self.lines().iter().filter(|one| *one == line).count()
    }

    /// Waits until a line that begins so is told after the first `from` lines.
    async fn told(&mut self, from: usize, begins: &str) -> String {
        eventually(begins, LONG, async || {
            let found = self.lines().iter().skip(from).find(|line| line.starts_with(begins)).cloned();
            found.ok_or_else(|| self.lines.clone())
        })
        .await
    }
}

#[tokio::test]
async fn a_service_manager_is_told_when_the_node_is_ready_how_it_is_and_when_it_stops() {
    let mut manager = Manager::new();
    let node = manager.manages(Node::builder(), 30_000).start_ready().await;
    manager.told(0, "READY=1").await;
    assert_eq!(node.api().get("/startupz").await.0, 200);
    assert_eq!(manager.told(0, "STATUS=Ready").await, "STATUS=Ready, 64 of 64 shards");
    let at = |manager: &mut Manager, begins: &str| {
        manager.lines().iter().position(|line| line.starts_with(begins))
    };
    assert!(at(&mut manager, "STATUS=Starting") < at(&mut manager, "READY=1"), "{:?}", manager.lines);
    assert!(at(&mut manager, "EXTEND_TIMEOUT_USEC=") < at(&mut manager, "READY=1"), "{:?}", manager.lines);
    assert_eq!(manager.count("STOPPING=1"), 0);
    assert!(node.sigterm().await.0.success());
    assert_eq!((manager.count("READY=1"), manager.count("STOPPING=1")), (1, 1), "{:?}", manager.lines);
    assert!(at(&mut manager, "STATUS=Stopping") > at(&mut manager, "READY=1"), "{:?}", manager.lines);
}

#[tokio::test]
async fn the_watchdog_is_told_three_times_in_its_time() {
    let mut manager = Manager::new();
    let _node = manager.manages(Node::builder(), 900).start_ready().await;
    let (began, before) = (Instant::now(), manager.count("WATCHDOG=1"));
    eventually("it beats", LONG, async || {
        let beats = manager.count("WATCHDOG=1");
        if beats >= before + 5 { Ok(()) } else { Err(beats) }
    })
    .await;
    assert!(began.elapsed() > Duration::from_millis(1000), "and not more often: {:?}", began.elapsed());
}

#[tokio::test]
async fn without_its_database_a_node_asks_for_time_and_then_stays_alive() {
    let mut server = Postgres::start().await;
    let database = server.create_database().await;
    server.stop_fast().await;
    let mut manager = Manager::new();
    let node = manager.manages(Node::builder().cold(database), 900).start();
    manager.told(0, "STATUS=Starting: the database").await;
    manager.told(0, "EXTEND_TIMEOUT_USEC=60000000").await;
    assert_eq!(manager.count("READY=1"), 0);
    server.start_again().await;
    manager.told(0, "READY=1").await;
    let from = manager.lines().len();
    server.stop_fast().await;
    manager.told(from, "STATUS=Unavailable: the database").await;
    let from = manager.lines().len();
    manager.told(from, "WATCHDOG=1").await;
    server.start_again().await;
    manager.told(from, "STATUS=Ready").await;
    assert_eq!(manager.count("READY=1"), 1);
    assert!(node.wait_exit(Duration::ZERO).await.is_none(), "the same process all the time");
}

#[tokio::test]
async fn a_service_manager_that_cannot_be_reached_is_one_warning() {
    let node = Node::builder().env("NOTIFY_SOCKET", "/nonexistent/notify").env("WATCHDOG_USEC", "300000");
    let node = node.start_ready().await;
    let warned = |log: &str| log.matches("the service manager cannot be told").count();
    eventually("it is logged", LONG, async || if warned(&node.log()) > 0 { Ok(()) } else { Err(node.log()) })
        .await;
    assert!(node.sigterm().await.0.success());
    assert_eq!(warned(&node.log()), 1, "{}", node.log());
}

/// Every file below a directory.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true if path.ends_with("secrets") => {}
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn settings_named_in_deploy_exist() {
    let mut paths = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy"), &mut paths);
    let defaults = toml::Value::try_from(Config::default()).expect("the defaults are TOML");
    let mut named = 0;
    for path in &paths {
        let text = std::fs::read_to_string(path).expect("text");
        for rest in text.split("MAINSPRING__").skip(1) {
            let name = rest.split(|c: char| !c.is_ascii_uppercase() && c != '_').next().unwrap_or_default();
            let key = name.strip_suffix("_FILE").unwrap_or(name).to_ascii_lowercase();
            // As a comment writes the form of a name.
            if key.starts_with("section") {
                continue;
            }
            let found = key.split("__").try_fold(&defaults, |value, part| value.get(part));
            assert!(found.is_some_and(|value| !value.is_table()), "{}: {name}", path.display());
            named += 1;
        }
    }
    assert!(named > 15, "{named} settings read");
}

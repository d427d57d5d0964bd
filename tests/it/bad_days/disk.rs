//! SQLite when nothing more can be written: the disk is full, or the file may not grow.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use super::{LONG, due_in};
use crate::support::{Answer, Api, Node, Receiver, eventually, problem};

/// A small disk of this test's own, and a file on it that can make room.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// A tmpfs. Only root may mount it, outside a container or in one with `CAP_SYS_ADMIN`; no other user can
    /// make a disk that is really full (a limit on the file's size is another error, and the test below).
    fn mount() -> Self {
        let dir = tempfile::Builder::new().prefix("disk").tempdir().expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"]).arg(dir.path());
        let output = mount.output().expect("there is a mount");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "a full disk needs a tmpfs, and only root may mount one: {said}");
        let disk = Self(dir);
        std::fs::write(disk.filler(), vec![0; 7 << 20]).expect("it holds 12 MiB");
        disk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn filler(&self) -> std::path::PathBuf {
        self.path().join("filler")
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(self.path()).status().ok();
    }
}

/// Puts timers with `bytes` of data until one is refused; returns how many were taken, and the refusal.
async fn fill(api: &Api, name: &str, bytes: usize) -> (u64, Answer) {
    let mut timer = due_in(3_600_000, "http://127.0.0.1:9/");
    timer["data"] = json!("x".repeat(bytes));
    for n in 0..2000 {
        let asked = Instant::now();
        let answer = api.send(Method::PUT, &format!("/v1/timers/{name}-{n}"), &[], Some(&timer)).await;
        assert!(asked.elapsed() < Duration::from_secs(8), "answered after {:?}", asked.elapsed());
        if answer.status != 201 {
            return (n, answer);
        }
    }
    panic!("2000 timers of {bytes} bytes each found room");
}

/// Fills the store's disk, makes room, and demands that everything acknowledged is there and all goes on.
async fn a_store_without_room_refuses_and_recovers(
    node: Node,
    full: impl FnOnce(&Node),
    make_room: impl FnOnce(&Node),
    says: &str,
) {
    let (api, receiver) = (node.api(), Receiver::start().await);
    // Taken while there is room, due while there is none.
    for n in 0..20 {
        assert_eq!(api.put(&format!("t{n}"), &due_in(2500, receiver.url("/ok"))).await.0, 201);
    }
    full(&node);
    let (large, refusal) = fill(&api, "large", 60_000).await;
    problem(&refusal, 503, "store_unavailable");
    assert!(refusal.body["detail"].as_str().is_some_and(|detail| detail.contains(says)), "{}", refusal.body);
    let (small, refusal) = fill(&api, "small", 0).await;
    problem(&refusal, 503, "store_unavailable");
    assert_eq!(api.get("/livez").await.0, 200);
    assert_eq!(api.timer("large-0").await.0, 200, "what is there can be read");
    assert_eq!(api.timer(&format!("large-{large}")).await.0, 404, "503 means not kept");

    make_room(&node);
    eventually("writes are taken again", LONG, async || {
        let answer =
            api.send(Method::PUT, "/v1/timers/after", &[], Some(&due_in(0, receiver.url("/ok")))).await;
        if matches!(answer.status, 200 | 201) { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let due = |all: &[crate::support::Received]| {
        (0..20).all(|n| all.iter().any(|one| one.timer == format!("t{n}")))
            && all.iter().any(|one| one.timer == "after")
    };
    let all = receiver.wait_until(due, LONG).await;
    assert!(all.iter().all(|one| one.lateness_ms() >= 0));
    for (name, taken) in [("large", large), ("small", small)] {
        for n in 0..taken {
            assert_eq!(api.timer(&format!("{name}-{n}")).await.0, 200, "{name}-{n} was acknowledged");
        }
    }
    eventually("the ledger settles", LONG, async || {
        let ledger = api.ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        if ledger.delivered >= 21 && ledger.pending == large + small {
            Ok(())
        } else {
            Err((large, small, ledger))
        }
    })
    .await;
    let log = node.log();
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(log.matches("listening on").count(), 1, "the same process all the time");
}

/// Lets no file of this process grow beyond its present size, or lifts that again.
fn limit_files(node: &Node, to: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(node.pid()).expect("a pid"));
    let most = getrlimit(Resource::Fsize).maximum;
    prlimit(pid, Resource::Fsize, Rlimit { current: to.or(most), maximum: most }).expect("our own child");
}

#[tokio::test]
async fn a_full_disk_is_503_until_there_is_room() {
    let disk = SmallDisk::mount();
    let url = format!("sqlite://{}", disk.path().join("mainspring.db").display());
    let node = Node::builder().cold(url).start_ready().await;
    a_store_without_room_refuses_and_recovers(node, |_| {}, |_| disk.make_room(), "full").await;
}

#[tokio::test]
async fn a_file_that_may_not_grow_is_503_until_it_may() {
    let node = Node::builder().bearing_file_size_limits().start_ready().await;
    let full = |node: &Node| limit_files(node, Some(2 << 20));
    a_store_without_room_refuses_and_recovers(node, full, |node| limit_files(node, None), "cold store").await;
}

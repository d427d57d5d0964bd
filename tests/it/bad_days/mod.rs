//! Faults around a node: databases and Redis that are down, full disks, taken ports and names, wrong settings,
//! clocks that differ, stops under load, and surroundings that misbehave.

mod clock;
mod cluster;
mod disk;
mod encrypted;
mod name;
mod postgres;
mod redis;
mod restored;
mod sqlite;
mod start;
mod stop;
mod strain;

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Api, Ledger, Process, eventually, to};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A timer that is due in this many milliseconds and is retried soon and often.
fn due_in(ms: u64, url: impl AsRef<str>) -> Value {
    json!({"delay": format!("PT{}.{:03}S", ms / 1000, ms % 1000), "target": to(url),
        "retry": {"attempts": 20, "first": "PT0.1S", "cap": "PT0.5S"}})
}

/// Waits until everything registered is delivered; the ledger balances at every look.
async fn all_delivered(api: &Api, registered: u64) {
    let wanted = Ledger { registered, delivered: registered, cancelled: 0, expired: 0, dead: 0, pending: 0 };
    eventually("all is delivered", LONG, async || {
        let ledger = api.ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        if ledger == wanted { Ok(()) } else { Err(ledger) }
    })
    .await;
}

/// Runs `mainspring serve` where it cannot work, and returns its exit code and what it said.
async fn refused(dir: &std::path::Path, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let log = dir.join("stderr");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.arg("serve").current_dir(dir).stdin(std::process::Stdio::null());
    command
        .env_clear()
        .env("MAINSPRING__SERVER__LISTEN", format!("127.0.0.1:{}", crate::support::free_port()));
    command.envs(env.iter().copied());
    command.stderr(std::fs::File::create(&log).expect("a log file"));
    let process = Process::spawn(&mut command).expect("it starts");
    let exit = process.wait(LONG).await.expect("it gives up by itself");
    let said = std::fs::read_to_string(&log).expect("readable");
    assert!(!said.contains("panicked"), "{said}");
    (exit.status.code(), said)
}

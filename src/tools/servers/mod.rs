//! PostgreSQL, Redis and brokers for tools and tests: throwaway servers on this machine ([`Postgres`], [`Redis`],
//! [`RabbitMq`], [`Mosquitto`], [`Nats`], [`Tansu`]), and databases and namespaces of a run's own on given servers ([`Stores`]).
//!
//! The throwaway servers are the installed programs: nothing is downloaded, and no server that was started elsewhere
//! is ever used or ended. They flush to disk like real ones, know no passwords (but the brokers), and listen on the loopback only.
//! Each has a directory of its caller's.
//!
//! Invariant: such a server keeps its port and its directory, so that its clients find it again after a restart. It ends when its handle is dropped; its directory is the caller's to remove.
//! Every wait has an end, and an error carries the end of the server's log.

mod clock;
mod disk;
mod mosquitto;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;
mod running;
mod stores;
mod tansu;

use std::env;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::BoxFuture;

use super::process::{Process, log_tail};
use crate::clock::Monotonic;

pub use clock::FakeClock;
pub use disk::SmallDisk;
pub use mosquitto::Mosquitto;
pub use nats::Nats;
pub use postgres::Postgres;
pub use rabbitmq::RabbitMq;
pub use redis::{Keeps, Redis};
pub use running::Running;
pub use stores::{Choice, RedisInfo, Stores};
pub use tansu::Tansu;

/// How many lines of a server's log an error shows.
const LOG_LINES: usize = 20;

/// A loopback port that nobody listens on, and that no other call in this process returns.
///
/// It is below the range from which the kernel serves outgoing connections: a server that is down for a
/// moment must find its port free when it comes back. Fails when all are taken.
pub fn free_port() -> anyhow::Result<u16> {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = process::id().wrapping_mul(97) % COUNT;
    for _ in 0..COUNT {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        if offset >= COUNT {
            break;
        }
        let port = u16::try_from(FIRST + (start + offset) % COUNT).expect("below 32,000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("every port from {FIRST} to {} is taken", FIRST + COUNT - 1)
}

/// The log of a server.
fn log_of(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// Starts a program that writes to the log in `dir`.
fn launch(command: &mut Command, dir: &Path) -> anyhow::Result<Process> {
    let open = || {
        let log = File::options().create(true).append(true).open(log_of(dir))?;
        std::io::Result::Ok((log.try_clone()?, log))
    };
    let (out, err) = open().with_context(|| format!("no log can be written in {}", dir.display()))?;
    Process::spawn(command.stdin(Stdio::null()).stdout(out).stderr(err))
}

/// Asks until there is an answer. Fails when the process ends instead, or after `limit`.
///
/// The answers are boxed: the compiler does not see that the future of a borrowing async closure is `Send`.
async fn ready<'a>(
    name: &str,
    process: &Process,
    dir: &Path,
    limit: Duration,
    answers: impl Fn() -> BoxFuture<'a, bool>,
) -> anyhow::Result<()> {
    let began = Monotonic::now();
    while !answers().await {
        let why = match process.ended() {
            Some(exit) => exit.status.to_string(),
            None if began.elapsed() > limit => format!("no answer within {limit:?}"),
            None => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        bail!("{name} does not start ({why}); the end of its log:\n{}", log_tail(&log_of(dir), LOG_LINES));
    }
    Ok(())
}

/// The directories in which programs are looked for; servers are often beside the path of plain users.
fn program_dirs() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let beside = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"].map(PathBuf::from);
    env::split_paths(&path).filter(|dir| dir.is_absolute()).chain(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_given_once_and_lies_below_those_of_outgoing_connections() {
        let mut ports: Vec<u16> = (0..50).map(|_| free_port().expect("a port")).collect();
        assert!(ports.iter().all(|port| (20_000..32_000).contains(port)), "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
    }
}

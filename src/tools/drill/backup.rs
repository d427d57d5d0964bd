//! A backup of the cold store, its return, and the operator's word afterwards.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::cluster::Cluster;
use super::fault::FaultKind;
use super::history::{Affected, Fault, Micros, Restored};
use super::wait_until;
use crate::clock::{Monotonic, wall_us};

/// How far the store goes back at least: some heartbeats, by which it is found.
const BACK_US: Micros = 2_000_000;
/// How long what is held is watched before it is accepted: the sweep looks once a second, with a second of grace.
const HELD: Duration = Duration::from_millis(2500);
/// How long nodes may take to find that the store was restored.
const FOUND: Duration = Duration::from_secs(30);
/// How often they are asked.
const POLL: Duration = Duration::from_millis(50);

/// Copies the cold store while the nodes work.
pub async fn take(cluster: &Cluster) -> anyhow::Result<()> {
    match &cluster.own {
        Some(own) => own.postgres.back_up().await,
        None => {
            let (file, copy) = (cluster.sqlite(), cluster.sqlite().with_extension("copy"));
            let mut db = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await?;
            let vacuum = AssertSqlSafe(format!("VACUUM INTO '{}'", copy.display()));
            sqlx::query(vacuum).execute(&mut db).await.context("SQLite cannot be copied")?;
            Ok(db.close().await?)
        }
    }
}

/// All nodes are killed, the cold store goes back, and the nodes hold for a while what fell due since.
pub async fn restored(cluster: &mut Cluster, from_us: Micros, backed_up_us: Micros) -> anyhow::Result<Fault> {
    // On a busy machine the backup may have taken all the time that was planned.
    wait_until(backed_up_us + BACK_US).await;
    for node in &mut cluster.nodes {
        node.kill().await?;
    }
    let ended_us = wall_us();
    bring_back(cluster).await?;
    for node in &mut cluster.nodes {
        node.start()?;
    }
    found(cluster).await?;
    let found_us = wall_us();
    tokio::time::sleep(HELD).await;
    let status = restore(cluster, "status").await?;
    let accepting_us = wall_us();
    restore(cluster, "accept").await?;
    let held = status["timers"].as_u64().unwrap_or_default();
    let back_s = (ended_us - from_us) as f64 / 1e6;
    Ok(Fault {
        kind: FaultKind::Restore.name(),
        affected: Affected::Restored(Restored { backed_up_us, ended_us, found_us, accepting_us }),
        from_us,
        until_us: wall_us(),
        landed: (held > 0)
            .then(|| format!("{back_s:.1} s back, {held} timers held until they were accepted")),
    })
}

/// Puts the copy into the place of the store. No node runs.
async fn bring_back(cluster: &mut Cluster) -> anyhow::Result<()> {
    let file = cluster.sqlite();
    match &mut cluster.own {
        Some(own) => own.postgres.go_back().await,
        None => {
            for beside in ["db-wal", "db-shm"] {
                // Those of the store that goes; a node that was closed well has left none.
                let _ = std::fs::remove_file(file.with_extension(beside));
            }
            std::fs::rename(file.with_extension("copy"), &file).context("the copy cannot be brought back")
        }
    }
}

/// Waits until every node says that the store was restored.
async fn found(cluster: &Cluster) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
    let began = Monotonic::now();
    for address in cluster.addresses() {
        loop {
            if let Ok(answer) = http.get(format!("{address}/readyz")).send().await
                && let Ok(ready) = answer.json::<Value>().await
                && ready["checks"]["restored"].is_string()
            {
                break;
            }
            if began.elapsed() > FOUND {
                bail!("the node at {address} does not say that the store was restored");
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

/// `mainspring restore VERB --json`, as an operator runs it.
async fn restore(cluster: &Cluster, verb: &str) -> anyhow::Result<Value> {
    let store = cluster.cold.clone().unwrap_or_else(|| format!("sqlite://{}", cluster.sqlite().display()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["restore", verb, "--json", "--set", &format!("cold.url={store}")]);
    command.current_dir(cluster.sqlite().with_file_name(""));
    let ran = tokio::task::spawn_blocking(move || command.output()).await??;
    let said = || format!("restore {verb}: {}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).with_context(said)
}

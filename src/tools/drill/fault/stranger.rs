//! A foreign session in PostgreSQL that locks what the nodes need, as a forgotten `psql`, a report or a migration does.

use std::time::Duration;

use anyhow::Context;
use sqlx::{Connection, PgConnection};

/// How many claimed rows it locks at most.
const ROWS: i64 = 20;
/// How long it looks for claimed rows, and for somebody who waits for it.
const LOOK: Duration = Duration::from_secs(2);
/// How often.
const EVERY: Duration = Duration::from_millis(20);
/// One statement; it waits for locks itself.
const ASK: Duration = Duration::from_secs(10);

/// The session, with its transaction open.
#[derive(Debug)]
pub struct Stranger {
    db: PgConnection,
}

impl Stranger {
    /// Connects and begins a transaction.
    pub async fn begin(url: &str) -> anyhow::Result<Self> {
        let work = async {
            let mut db = PgConnection::connect(url).await?;
            sqlx::query("BEGIN").execute(&mut db).await?;
            Ok::<_, sqlx::Error>(Self { db })
        };
        let context = "a foreign session cannot begin";
        tokio::time::timeout(ASK, work).await.context(context)?.context(context)
    }

    /// Locks timers whose attempt is under way; returns how many. Zero: none was found.
    pub async fn lock_claimed_rows(&mut self) -> anyhow::Result<usize> {
        // 1 is `delivering`.
        let lock = "SELECT uid FROM timers WHERE state = 1 LIMIT $1 FOR UPDATE SKIP LOCKED";
        let look = async {
            loop {
                let rows = sqlx::query(lock).bind(ROWS).fetch_all(&mut self.db).await?;
                if !rows.is_empty() {
                    return Ok::<_, sqlx::Error>(rows.len());
                }
                tokio::time::sleep(EVERY).await;
            }
        };
        match tokio::time::timeout(LOOK, look).await {
            Ok(rows) => rows.context("claimed rows cannot be locked"),
            Err(_) => Ok(0),
        }
    }

    /// Locks the table of what has ended, against everybody.
    pub async fn lock_history(&mut self) -> anyhow::Result<()> {
        let lock = sqlx::query("LOCK TABLE history IN ACCESS EXCLUSIVE MODE").execute(&mut self.db);
        let context = "the table history cannot be locked";
        tokio::time::timeout(ASK, lock).await.context(context)?.context(context)?;
        Ok(())
    }

    /// How many sessions wait for what this one has locked. Looks for two seconds before it says that none does.
    pub async fn waiting(&mut self) -> anyhow::Result<i64> {
        let count = "SELECT count(*) FROM pg_locks \
                     WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))";
        let look = async {
            loop {
                let waiting: i64 = sqlx::query_scalar(count).fetch_one(&mut self.db).await?;
                if waiting > 0 {
                    return Ok::<_, sqlx::Error>(waiting);
                }
                tokio::time::sleep(EVERY).await;
            }
        };
        match tokio::time::timeout(LOOK, look).await {
            Ok(waiting) => waiting.context("PostgreSQL does not say who waits"),
            Err(_) => Ok(0),
        }
    }

    /// Gives everything back.
    pub async fn leave(self) -> anyhow::Result<()> {
        tokio::time::timeout(ASK, self.db.close()).await.context("a foreign session does not end")??;
        Ok(())
    }
}

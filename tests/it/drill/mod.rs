//! Drills, and what they stand on: private servers that are killed, paused, emptied and rolled back, and the proxy
//! that does to a connection what a bad network does.

mod proxy;
mod servers;
mod verdicts;

use std::time::Duration;

use mainspring::tools::servers::{Keeps, Postgres, Redis};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

/// Long enough for a busy machine; nothing here takes it unless it is broken.
const LONG: Duration = Duration::from_secs(20);
/// What is held has not come by then.
const HELD: Duration = Duration::from_millis(300);

fn dir() -> TempDir {
    tempfile::Builder::new().prefix("drill").tempdir().expect("a temporary directory")
}

async fn postgres() -> (Postgres, TempDir) {
    let dir = dir();
    (Postgres::start(dir.path(), None).await.expect("PostgreSQL starts"), dir)
}

async fn redis(keeps: Keeps) -> (Redis, TempDir) {
    let dir = dir();
    (Redis::start(dir.path(), None, keeps).await.expect("Redis starts"), dir)
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("{what} takes longer than {LONG:?}"))
}

/// Sees that it is not answered, and gives it back to be waited for.
async fn held<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(tokio::time::timeout(HELD, &mut future).await.is_err(), "it is answered");
    future
}

async fn connect(url: &str) -> PgConnection {
    within("connecting", PgConnection::connect(url)).await.expect("a connection")
}

async fn execute(db: &mut PgConnection, sql: &'static str) -> sqlx::Result<()> {
    within(sql, sqlx::query(sql).execute(db)).await.map(|_| ())
}

async fn number(db: &mut PgConnection, sql: &'static str) -> sqlx::Result<i64> {
    within(sql, sqlx::query_scalar(sql).fetch_one(db)).await
}

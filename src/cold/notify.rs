//! News between nodes: that shards came free, or that a node came.
//!
//! PostgreSQL tells (`NOTIFY`, in the transaction that makes the news) whoever listens (`LISTEN`, on a
//! connection of its own). Nothing hangs on it: a word may get lost or come twice, and a database behind a proxy
//! that cannot listen (pgbouncer in transaction mode) tells nothing. Whoever hears something looks at once;
//! whoever does not, in his next round.

use std::time::Duration;

use sea_orm::sqlx::postgres::PgListener;
use sea_orm::sqlx::{self, PgPool};
use tokio::sync::Notify;

use super::{ColdStore, Identity};
use crate::clock::Monotonic;

/// Channels belong to a database; another store in it costs its listeners a look.
const CHANNEL: &str = "mainspring_shards";

/// A connection on which nothing is heard for so long is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(20);

/// How long it has to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How long it waits before it connects again: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];

/// What tells, as a column of a statement; `teller` is what tells one who told from others.
pub(super) fn tell(teller: &str) -> String {
    format!("pg_notify('{CHANNEL}', {teller})")
}

impl ColdStore {
    /// Notifies whenever another node gives shards up or starts, and whenever something may have been missed
    /// because there was no connection. Runs until the store is closed; on SQLite there is nothing to hear.
    pub async fn hear(&self, me: &Identity, heard: &Notify) {
        let Some(pool) = &self.news else { return std::future::pending().await };
        let mut wait = AGAIN[0];
        let mut told = false;
        while !pool.is_closed() {
            let began = Monotonic::now();
            let why = match listen(pool).await {
                Ok(listener) => {
                    heard.notify_one();
                    pass_on(listener, me, heard).await
                }
                Err(why) => why,
            };
            if began.elapsed() > SILENCE {
                wait = AGAIN[0];
            }
            if pool.is_closed() {
                return;
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!(%why, "no news from the database (LISTEN); shards are looked for three times a lease");
            }
            self.clock.sleep(wait).await;
            wait = (wait * 2).min(AGAIN[1]);
        }
    }
}

async fn listen(pool: &PgPool) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    // After a loss there is something to be made up for, so it is not mended behind our back.
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Passes on what is heard until the connection fails.
async fn pass_on(mut listener: PgListener, me: &Identity, heard: &Notify) -> sqlx::Error {
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            // What this node told is no news to it.
            Ok(Ok(Some(news))) if news.payload() == me.incarnation => {}
            Ok(Ok(Some(_))) => heard.notify_one(),
            Ok(Ok(None)) => return lost("the connection was lost"),
            Ok(Err(why)) => return why,
            Err(_) => {
                let asked = sqlx::query("SELECT 1").execute(&mut listener);
                match tokio::time::timeout(ANSWER, asked).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(why)) => return why,
                    Err(_) => return lost("the connection does not answer"),
                }
            }
        }
    }
}

fn lost(why: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::other(why))
}

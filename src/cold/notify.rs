//! Notifications between nodes (`LISTEN`, `NOTIFY`): shards were given up, a node has started, or destinations,
//! subscriptions, keys or namespaces have changed.
//!
//! A node notifies in the transaction that makes the change, and every node listens on a connection of its own.
//! Nothing depends on it: a notification may be lost or come twice, and a database behind a proxy that cannot
//! listen (pgbouncer in transaction mode) delivers none. A notified node runs its next round, or reads what has changed, at
//! once; otherwise it does so at its usual time, or when it sees another mark ([`super::copies`]).

use std::time::Duration;

use sea_orm::sqlx::postgres::PgListener;
use sea_orm::sqlx::{self, PgPool};
use tokio::sync::Notify;

use super::copies::Copied;
use super::{ColdStore, Identity};
use crate::clock::Monotonic;
use crate::telemetry::Streak;

/// Channels belong to a database. Another store in the same database costs its listeners a round.
const CHANNEL: &str = "mainspring_shards";

/// Likewise for queues that have something ready.
const READY: &str = "mainspring_queues";

/// After so long without a notification the connection is checked.
const SILENCE: Duration = Duration::from_secs(20);

/// How long that check may take.
const CHECK: Duration = Duration::from_secs(5);

/// The pause before it connects again: the first one, and the longest.
const RECONNECT: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];

/// The SQL expression that notifies all listeners; `sender` is an expression for the incarnation of this
/// process.
pub(super) fn notification(sender: &str) -> String {
    format!("pg_notify('{CHANNEL}', {sender})")
}

/// The SQL expression that tells all listeners which queues have something ready; `text` is an expression for who says so
/// and their lanes.
pub(super) fn queues_ready(text: &str) -> String {
    format!("pg_notify('{READY}', {text})")
}

impl ColdStore {
    /// Wakes `notified` whenever another node starts or gives shards up, and who reads destinations when these
    /// change, and likewise for subscriptions, keys and namespaces; all after every new connection, because a
    /// notification may have been lost without one. Runs until the store is closed; on SQLite it never wakes.
    pub async fn listen(&self, me: &Identity, notified: &Notify) {
        let Some(pool) = &self.listener else { return std::future::pending().await };
        let mut pause = RECONNECT[0];
        let mut streak = Streak::default();
        while !pool.is_closed() {
            let began = Monotonic::now();
            let why = match connect(pool).await {
                Ok(listener) => {
                    notified.notify_one();
                    Copied::ALL.iter().for_each(|what| self.changed(*what).notify_one());
                    self.ready.told_any();
                    self.forward(listener, me, notified).await
                }
                Err(why) => why,
            };
            if began.elapsed() > SILENCE {
                pause = RECONNECT[0];
                streak.succeeded();
            }
            if pool.is_closed() {
                return;
            }
            if streak.failed(self.is_away()) {
                tracing::info!(
                    %why,
                    "no notifications from the database (LISTEN); free shards are looked for three times a lease"
                );
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(RECONNECT[1]);
        }
    }

    /// Forwards notifications until the connection fails.
    async fn forward(&self, mut listener: PgListener, me: &Identity, notified: &Notify) -> sqlx::Error {
        loop {
            match tokio::time::timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(notification))) => {
                    let (channel, sender) = (notification.channel(), notification.payload());
                    match Copied::ALL.into_iter().find(|what| what.channel() == channel) {
                        Some(what) => self.changed(what).notify_one(),
                        None if channel == READY => self.ready.told(sender, &me.incarnation),
                        // This node's own.
                        None if sender == me.incarnation => {}
                        None => notified.notify_one(),
                    }
                }
                Ok(Ok(None)) => return lost("the connection was lost"),
                Ok(Err(why)) => return why,
                Err(_) => {
                    let check = sqlx::query("SELECT 1").execute(&mut listener);
                    match tokio::time::timeout(CHECK, check).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(why)) => return why,
                        Err(_) => return lost("the connection does not answer"),
                    }
                }
            }
        }
    }
}

async fn connect(pool: &PgPool) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    // A lost connection has to be seen here, for notifications may be lost with it; so it is not replaced
    // silently.
    listener.eager_reconnect(false);
    listener.listen_all(Copied::ALL.map(Copied::channel).into_iter().chain([CHANNEL, READY])).await?;
    Ok(listener)
}

fn lost(why: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::other(why))
}

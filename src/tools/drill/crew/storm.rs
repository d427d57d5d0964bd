//! A storm of workers: hundreds begin to wait, hang up one after another, and come again at once when the last has gone.
//!
//! One that hangs up closes its half of the connection and reads what is still in the other: so it is known what a node
//! has written to a worker that was gone, and what it has not. What it has not counts as no attempt.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::Team;
use super::desk::{Item, Leased, QUEUE, lease_body, settle_body, settled_of};
use crate::clock::wall_us;
use crate::tools::drill::history::{Looks, Settled, Wish};
use crate::tools::drill::wait_until;
use crate::tools::wire::Connection;

/// How many workers come at once, for each node: more than one transaction serves.
const CALLERS: u32 = 220;
/// The numbers in their names begin here.
const FIRST: u32 = 100_000;
/// How long each waits, in milliseconds, before it hangs up.
const PATIENCE_MS: std::ops::Range<u64> = 50..900;
/// How long it waits for an answer that is on its way, or for the other half to be closed.
const LAST: Duration = Duration::from_secs(10);

/// Calls to the store that each node may make in a second while so many come and go, and for each item. A worker that
/// asked the store itself once a second would make more.
const LOOKS_PER_SECOND: u64 = 100;
const LOOKS_PER_ITEM: u64 = 10;

/// Rages until the time for harm is over.
pub async fn rage(team: Arc<Team>, nodes: Vec<SocketAddr>, seed: u64) {
    wait_until(team.harm.start).await;
    let from_us = wall_us();
    let before = team.desk.looks().await;
    let count = CALLERS * nodes.len() as u32;
    let mut wave = 0;
    while team.harm.contains(&wall_us()) && !team.stop.is_cancelled() {
        wave += 1;
        let callers = (0..count).zip(nodes.iter().cycle()).map(|(n, node)| {
            let rng = SmallRng::seed_from_u64(seed ^ (u64::from(n) << 32) ^ (wave << 20));
            call(&team, *node, FIRST + n, rng)
        });
        join_all(callers).await;
    }
    let Some((before, after)) = before.zip(team.desk.looks().await) else { return };
    let until_us = wall_us();
    let (nodes, items) = (nodes.len() as u64, team.recorder.given_since(from_us));
    let seconds = (until_us - from_us).unsigned_abs().div_ceil(1_000_000);
    team.recorder.looked(Looks {
        from_us,
        until_us,
        nodes: nodes as u32,
        calls: after.saturating_sub(before),
        items,
        most: nodes * seconds * LOOKS_PER_SECOND + items * LOOKS_PER_ITEM,
    });
}

/// One worker in one wave: waits, and settles what it gets or hangs up.
async fn call(team: &Team, node: SocketAddr, worker: u32, mut rng: SmallRng) {
    let patience = Duration::from_millis(rng.random_range(PATIENCE_MS));
    let Ok(Ok(mut connection)) = timeout(LAST, Connection::open(&node.to_string())).await else { return };
    let asked = request("lease", &lease_body(worker, 1, false));
    if connection.requests.write_all(asked.as_bytes()).await.is_err() {
        return;
    }
    if let Ok(head) = timeout(patience, connection.answers.head()).await {
        let Ok(head) = head else { return };
        let items = read(team, &mut connection, head, worker).await;
        for item in items {
            let asked_us = wall_us();
            let answer = ack(&mut connection, &item).await;
            item.note_settled(Wish::Ack, asked_us, answer, &team.recorder);
        }
        return;
    }
    team.deeds.hung_up.fetch_add(1, Ordering::Relaxed);
    if connection.requests.shutdown().await.is_err() {
        return;
    }
    // Written before the node knew: it has no reader, and its lease ends by itself.
    if let Ok(Ok(head)) = timeout(LAST, connection.answers.head()).await {
        let unread = read(team, &mut connection, head, worker).await;
        team.deeds.unread.fetch_add(unread.len() as u64, Ordering::Relaxed);
    }
}

/// Reads the rest of an answer to a lease, and notes what was given.
async fn read(
    team: &Team,
    connection: &mut Connection,
    head: crate::tools::wire::Head,
    worker: u32,
) -> Vec<Item> {
    let mut body = Vec::new();
    if connection.answers.body(head.body, &mut body).await.is_err() {
        return Vec::new();
    }
    match (head.status, serde_json::from_slice::<Leased>(&body)) {
        (200, Ok(leased)) => {
            leased.items.iter().for_each(|item| item.note(worker, &team.recorder));
            leased.items
        }
        // Refused, and told when to come back: the other callers look at that.
        (429 | 503, _) => Vec::new(),
        (status, _) => {
            team.recorder.strange(format!("{status} to a lease"));
            Vec::new()
        }
    }
}

async fn ack(connection: &mut Connection, item: &Item) -> Settled {
    let asked = request("settle", &settle_body([(item, Wish::Ack)]));
    let mut body = Vec::new();
    let answered = timeout(LAST, connection.call(asked.as_bytes(), &mut body)).await;
    let told = match answered {
        Ok(Ok(head)) if head.status == 200 => serde_json::from_slice::<Value>(&body).ok(),
        _ => None,
    };
    told.and_then(|told| settled_of(&told, 1)?.pop()).unwrap_or(Settled::Unknown)
}

fn request(what: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /v1/queues/{QUEUE}/{what} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

//! What surrounds a node misbehaves: strangers hold locks, receivers cannot be reached, the node's own limits are low.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sea_orm::sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{LONG, all_delivered};
use crate::support::{
    Api, Node, Received, Receiver, Reply, eventually, fresh_database, register, rfc3339, to, wall_ms,
};

/// Timers that are due together in a second and a half.
fn soon(name: &str, count: usize, url: impl Fn(usize) -> String) -> Vec<Value> {
    let at = rfc3339(wall_ms() + 1500);
    (0..count).map(|n| json!({"id": format!("{name}{n}"), "fire_at": at, "target": to(url(n))})).collect()
}

/// A stranger's session in which this was run, and whose transaction is open.
async fn stranger(database: &str, sql: String) -> PgConnection {
    let mut session = PgConnection::connect(database).await.expect("the database answers");
    session.execute("BEGIN").await.expect("begun");
    session.execute(AssertSqlSafe(sql)).await.expect("locked");
    session
}

async fn delivered(api: &Api, count: u64) {
    eventually("others are delivered and recorded", LONG, async || {
        let ledger = api.ledger().await;
        if ledger.delivered >= count { Ok(()) } else { Err(ledger) }
    })
    .await;
}

#[tokio::test]
async fn a_locked_row_does_not_hold_up_the_results_and_claims_of_others() {
    let database = fresh_database().await;
    let node = Node::builder().cold(&database).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (release, released) = watch::channel(false);
    receiver.on("/held", move |_| Reply::ok().until(released.clone()));
    // One is under way when it is locked, one is locked before it is claimed. It is due when the others are, and that is far
    // enough ahead for a busy machine.
    let held = json!({"delay": "PT0S", "target": to(receiver.url("/held"))});
    assert_eq!(api.put("sent", &held).await.0, 201);
    receiver.wait_for(1, LONG).await;
    let at = rfc3339(wall_ms() + 3000);
    let timer = |id: String| json!({"id": id, "fire_at": at, "target": to(receiver.url("/ok"))});
    register(&api, &[timer("due".into())]).await;
    let lock = "SELECT 1 FROM timers WHERE id IN ('sent', 'due') FOR UPDATE";
    let mut stranger = stranger(&database, lock.to_owned()).await;
    register(&api, &(0..300).map(|n| timer(format!("other{n}"))).collect::<Vec<_>>()).await;
    // The one under way is answered while the others are.
    receiver.wait_for(2, LONG).await;
    release.send_replace(true);
    delivered(&api, 300).await;
    assert_eq!(api.ledger().await.delivered, 300);
    stranger.execute("ROLLBACK").await.expect("unlocked");
    all_delivered(&api, 302).await;
    let twice: Vec<_> =
        receiver.received().into_iter().filter(|one| one.attempt > 1).map(|one| one.timer).collect();
    assert_eq!((receiver.received().len(), twice), (302, vec![]), "each came once");
    assert_eq!(api.metric("mainspring_claims_expired_total").await, 0.0);
}

#[tokio::test]
async fn results_that_cannot_be_written_slow_the_firing_down() {
    let database = fresh_database().await;
    let node =
        Node::builder().cold(&database).env("MAINSPRING__DISPATCH__CONCURRENCY", "40").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let ok = receiver.url("/ok");
    register(&api, &soon("first", 20, |_| ok.clone())).await;
    delivered(&api, 20).await;
    let mut stranger = stranger(&database, "LOCK TABLE history IN ACCESS EXCLUSIVE MODE".into()).await;
    register(&api, &soon("t", 300, |_| ok.clone())).await;
    receiver.wait_for(60, LONG).await;
    eventually("the node is full", LONG, async || {
        let unrecorded = api.metric("mainspring_results_unrecorded").await;
        if unrecorded == 40.0 { Ok(()) } else { Err(unrecorded) }
    })
    .await;
    // Claims are under way all the time; a further one would be sent within a few milliseconds.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(receiver.received().len(), 60, "no more than a crash may repeat");
    stranger.execute("ROLLBACK").await.expect("unlocked");
    all_delivered(&api, 320).await;
    assert_eq!(receiver.received().len(), 320, "each came once");
}

/// Listeners whose queue of connections is full: the kernel answers no further SYN.
async fn silent_listeners(count: usize) -> (Vec<SocketAddr>, Vec<Box<dyn Send>>) {
    let (mut addresses, mut kept): (Vec<_>, Vec<Box<dyn Send>>) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let listener = socket.listen(0).expect("it listens");
        let address = listener.local_addr().expect("it is bound");
        // A queue of length 0 holds one connection.
        kept.push(Box::new(tokio::net::TcpStream::connect(address).await.expect("the first one fits")));
        kept.push(Box::new(listener));
        addresses.push(address);
    }
    (addresses, kept)
}

#[tokio::test]
async fn receivers_that_cannot_be_reached_do_not_delay_others() {
    let node = Node::builder().env("MAINSPRING__DISPATCH__CONCURRENCY", "256").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let (silent, _kept) = silent_listeners(100).await;
    let ok = receiver.url("/ok");
    register(&api, &soon("warm", 1, |_| ok.clone())).await;
    receiver.wait_for(1, LONG).await;
    let dead = |n: usize| format!("http://{}/x", silent[n % silent.len()]);
    let (due, at) = (soon("dead", 2000, dead), wall_ms() + 2000);
    register(&api, &due).await;
    let beside: Vec<Value> = (0..200)
        .map(|n| json!({"id": format!("t{n}"), "fire_at": rfc3339(at + n * 10), "target": to(&ok)}))
        .collect();
    register(&api, &beside).await;
    let received = receiver.wait_for(201, LONG).await;
    let latest = received.iter().filter(|one| one.timer.starts_with('t')).map(Received::lateness_ms).max();
    // A connection is given up after four seconds. While receivers without answers held the node, others waited for that.
    assert!(latest.is_some_and(|late| late < 3000), "{latest:?} ms late");
}

#[tokio::test]
async fn what_the_node_itself_lacks_is_no_attempt() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start_everywhere().await);
    // The node has fewer files than it thinks. Each address is a receiver, which keeps its connection open.
    let pid = Pid::from_raw(i32::try_from(node.pid()).expect("a pid"));
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("readable").count() as u64;
    let limit = Some(open + 20);
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit })
        .expect("its limit can be lowered");
    receiver.on("/slow", |_| Reply::status(200).after(Duration::from_millis(200)));
    let port = receiver.port();
    let url = |n: usize| format!("http://127.1.0.{}:{port}/slow", 1 + n);
    register(&api, &soon("t", 200, url)).await;
    all_delivered(&api, 200).await;
    let timers: HashSet<String> = receiver.received().into_iter().map(|one| one.timer).collect();
    assert_eq!((timers.len(), receiver.received().len()), (200, 200), "each came once");
    assert!(api.metric("mainspring_attempts_deferred_total{lack=\"files\"}").await > 0.0);
    assert_eq!(api.metric("mainspring_attempts_total{result=\"refused\",sink=\"webhook\"}").await, 0.0);
    let (_, kept) = api.timer("t7").await;
    assert_eq!(kept["attempts"], 1, "{kept}");
    let log = node.log();
    assert_eq!(log.matches("this node lacks what it needs").count(), 1, "one line a minute: {log}");
    assert!(log.contains("LimitNOFILE"), "{log}");
}

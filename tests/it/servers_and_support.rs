//! The tests' own ground: a receiver that misbehaves as asked, servers that die and come back with
//! their data, processes that stop when told to.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    Keeps, Node, Postgres, Process, Receiver, Redis, Reply, empty_database, eventually, http_client, psql, to,
};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(20);

async fn status(client: &reqwest::Client, receiver: &Receiver, path: &str) -> u16 {
    let answer = client.post(receiver.url(path)).header("ce-subject", "t1").send().await;
    answer.expect("the receiver answers").status().as_u16()
}

#[tokio::test]
async fn receiver_records_what_arrived() {
    let receiver = Receiver::start().await;
    let sent = http_client(LONG)
        .post(receiver.url("/ok"))
        .header("ce-id", "d1")
        .header("ce-subject", "t1")
        .header("ce-attempt", "2")
        .header("ce-generation", "3")
        .header("ce-dueat", "2026-01-01T08:00:00.250+08:00")
        .json(&serde_json::json!({"a": 1}));
    let (answer, all) = tokio::join!(sent.send(), receiver.wait_for(1, LONG));
    assert_eq!(answer.unwrap().status(), 200);

    let one = &all[0];
    assert_eq!((one.path.as_str(), one.delivery_id.as_str(), one.timer.as_str()), ("/ok", "d1", "t1"));
    assert_eq!((one.attempt, one.generation), (2, 3));
    assert_eq!(one.due_at_ms, Some(1_767_225_600_250));
    assert_eq!(one.lateness_ms(), one.at_ms - 1_767_225_600_250);
    assert_eq!(one.json(), serde_json::json!({"a": 1}));
    assert_eq!(receiver.of("t1").len(), 1);
    assert!(receiver.of("t2").is_empty());
}

#[tokio::test]
async fn receiver_answers_as_its_paths_say() {
    let receiver = Receiver::start().await;
    let client = http_client(LONG);
    for (path, expected) in [
        ("/ok", 200),
        ("/status/410", 410),
        ("/redirect", 302),
        ("/nowhere", 404),
        ("/flaky/2", 500),
        ("/flaky/2", 500),
        ("/flaky/2", 200),
    ] {
        assert_eq!(status(&client, &receiver, path).await, expected, "{path}");
    }

    let asked = Instant::now();
    assert_eq!(status(&client, &receiver, "/slow/200").await, 200);
    assert!(asked.elapsed() >= Duration::from_millis(200));

    let busy = client.get(receiver.url("/status/429?retry_after=7")).send().await.unwrap();
    assert_eq!((busy.status().as_u16(), &busy.headers()["retry-after"]), (429, &"7".parse().unwrap()));

    receiver.on("/mine", |received| Reply::status(202).header("x-timer", &received.timer).body("yes"));
    let mine = client.get(receiver.url("/mine")).header("ce-subject", "t9").send().await.unwrap();
    assert_eq!((mine.status().as_u16(), &mine.headers()["x-timer"]), (202, &"t9".parse().unwrap()));
    assert_eq!(mine.text().await.unwrap(), "yes");
    assert_eq!(receiver.received().len(), 10);
}

#[tokio::test]
async fn receiver_misbehaves_as_its_paths_say() {
    let receiver = Receiver::start().await;
    let client = http_client(LONG);

    let closed = client.post(receiver.url("/close")).body("x").send().await.unwrap_err();
    assert!(!closed.is_timeout() && !closed.is_connect(), "{closed:?}");

    let hasty = http_client(Duration::from_millis(200));
    assert!(hasty.post(receiver.url("/hang")).send().await.unwrap_err().is_timeout());

    let mut drip = client.get(receiver.url("/drip")).send().await.unwrap();
    assert_eq!(drip.chunk().await.unwrap().unwrap().len(), 1);
    drop(drip);

    let giant = client.get(receiver.url("/giant")).send().await.unwrap();
    assert_eq!(giant.bytes().await.unwrap().len(), 50 << 20);

    let seen = receiver.wait_until(|all| all.iter().any(|one| one.path == "/giant"), LONG).await;
    assert_eq!(seen.len(), 4);

    let port = receiver.port();
    drop(receiver);
    // A new client: the old one may still trust a connection that was cut just now.
    let client = http_client(LONG);
    let refused = client.get(format!("http://127.0.0.1:{port}/ok")).send().await.unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    let back = Receiver::start_on(port).await;
    // What the old one had not taken yet may be reset meanwhile.
    eventually("it answers where the old one did", LONG, async || {
        match client.get(back.url("/ok")).send().await {
            Ok(response) if response.status() == 200 => Ok(()),
            other => Err(other.map(|response| response.status())),
        }
    })
    .await;
}

#[tokio::test]
#[should_panic(expected = "not 1 requests within")]
async fn receiver_does_not_wait_for_ever() {
    Receiver::start().await.wait_for(1, Duration::from_millis(10)).await;
}

#[tokio::test]
async fn shared_server_gives_each_test_a_database_of_its_own() {
    let (one, two) = (empty_database().await, empty_database().await);
    assert_ne!(one, two);
    psql(&one, "CREATE TABLE mine (n int)").await;
    assert_eq!(psql(&two, "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'").await, "0");
}

#[tokio::test]
async fn private_server_keeps_its_data_when_killed() {
    let mut server = Postgres::start().await;
    let database = server.create_database().await;
    psql(&database, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").await;

    server.kill_immediate().await;
    server.start_again().await;
    psql(&database, "INSERT INTO kept VALUES (2)").await;

    server.stop_fast().await;
    server.start_again().await;
    assert_eq!(psql(&database, "SELECT n FROM kept ORDER BY n").await, "1\n2");
}

#[tokio::test]
async fn private_redis_keeps_what_it_is_to_keep_when_killed() {
    for keeps in [Keeps::Writes, Keeps::Snapshots] {
        let mut server = Redis::private_keeping(keeps).await;
        let url = server.url();
        assert_eq!(server.cli(&["SET", "a", "1"]).await, "OK");
        server.kill().await;
        server.start_again().await;
        let kept = if keeps == Keeps::Writes { "1" } else { "0" };
        assert_eq!(server.cli(&["EXISTS", "a"]).await, kept, "{keeps:?}");

        assert_eq!(server.cli(&["SET", "b", "1"]).await, "OK");
        server.flush_all().await;
        assert_eq!(server.cli(&["DBSIZE"]).await, "0");
        assert_eq!(server.cli(&["SET", "c", "1"]).await, "OK");
        server.start_empty().await;
        assert_eq!((server.cli(&["DBSIZE"]).await.as_str(), server.url()), ("0", url));
    }
}

#[tokio::test]
async fn private_redis_rolls_back_to_its_copy_any_number_of_times() {
    for keeps in [Keeps::Writes, Keeps::Snapshots] {
        let mut server = Redis::private_keeping(keeps).await;
        assert_eq!(server.cli(&["MSET", "kept", "1", "changed", "1"]).await, "OK");
        server.save_copy().await;
        for _ in 0..2 {
            assert_eq!(server.cli(&["MSET", "changed", "2", "new", "2"]).await, "OK");
            server.roll_back().await;
            assert_eq!(server.cli(&["MGET", "kept", "changed", "new"]).await, "1\n1", "{keeps:?}");
        }
        server.kill().await;
        server.roll_back().await;
        assert_eq!(server.cli(&["DBSIZE"]).await, "2");
    }
}

#[tokio::test]
async fn private_redis_that_is_stopped_answers_when_it_goes_on_and_ends_when_dropped() {
    let server = Redis::private().await;
    let mut client = tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    server.stop_process();
    client.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    let early = tokio::time::timeout(Duration::from_millis(200), client.read_exact(&mut answer)).await;
    assert!(early.is_err(), "{answer:?}");
    server.continue_process();
    tokio::time::timeout(LONG, client.read_exact(&mut answer)).await.expect("it goes on").unwrap();
    assert_eq!(&answer, b"+PONG\r\n");

    server.stop_process();
    let state = format!("/proc/{}/stat", server.pid());
    drop(server);
    assert!(!std::path::Path::new(&state).exists());
}

#[tokio::test]
#[should_panic(expected = "ERR unknown command")]
async fn a_command_that_redis_refuses_does_not_pass_for_an_answer() {
    Redis::private().await.cli(&["NONSENSE"]).await;
}

#[tokio::test]
async fn shared_redis_gives_each_test_a_namespace_of_its_own() {
    let (one, two) = (Redis::shared(), Redis::shared());
    assert_ne!(one.namespace(), two.namespace());
    assert_eq!(one.url(), two.url());
    assert_eq!(one.cli(&["PING"]).await, "PONG");
}

#[tokio::test]
async fn a_node_takes_its_namespace_and_its_wheels_from_its_builder() {
    let receiver = Receiver::start().await;
    let node = Node::builder().namespace("mine").hot("memory://").start_ready().await;
    let timer = json!({"delay": "PT0S", "target": to(receiver.url("/ok"))});
    assert_eq!(node.api().put("t", &timer).await.0, 201);
    let all = receiver.wait_for(1, LONG).await;
    assert_eq!(all[0].headers["ce-source"], "/mainspring/mine");
    drop(node);
    // Whatever it makes of it, it is told.
    let node = Node::builder().hot("nonsense://").start();
    assert!(node.wait_exit(LONG).await.is_some_and(|status| !status.success()));
    assert!(node.log().contains("hot.url"), "{}", node.log());
}

#[tokio::test]
async fn process_pauses_and_ends_when_told_and_is_always_reaped() {
    let process = Process::spawn(Command::new("sleep").arg("600")).unwrap();
    let state = format!("/proc/{}/stat", process.pid());
    process.pause().unwrap();
    assert!(std::fs::read_to_string(&state).unwrap().contains(") T "));
    assert!(process.signal(Signal::CONT));
    assert!(process.wait(Duration::from_millis(10)).await.is_none());

    let exit = process.end_with(Signal::TERM, LONG).await.unwrap();
    assert!(!exit.status.success());
    assert!(!process.signal(Signal::CONT), "an ended process takes no signals");
    assert!(process.pause().is_err() && process.resume().is_err());
    assert!(!std::path::Path::new(&state).exists());

    let dropped = Process::spawn(Command::new("sleep").arg("600")).unwrap();
    let state = format!("/proc/{}/stat", dropped.pid());
    drop(dropped);
    assert!(!std::path::Path::new(&state).exists());
}

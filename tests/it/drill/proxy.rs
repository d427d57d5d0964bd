//! The fault proxy, before real servers.

use std::time::{Duration, Instant};

use mainspring::tools::drill::proxy::{Commits, Counts, Proxy};
use mainspring::tools::servers::Keeps;
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{LONG, connect, execute, held, number, postgres, redis, within};
use crate::support::eventually;

async fn proxy(upstream: std::net::SocketAddr) -> Proxy {
    Proxy::start(upstream).await.expect("a proxy")
}

async fn counts(proxy: &Proxy, what: &str, wanted: impl Fn(Counts) -> bool) {
    eventually(what, LONG, async || {
        let seen = proxy.counts();
        if wanted(seen) { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Much passes unchanged, and is counted.
async fn passes(proxy: &Proxy, url: &str) {
    let mut db = connect(url).await;
    let much = sqlx::query_scalar("SELECT repeat('x', 3000000)").fetch_one(&mut db);
    let answer: String = within("much", much).await.expect("a long answer");
    assert_eq!(answer.len(), 3_000_000);
    let seen = proxy.counts();
    assert!(seen.to_client > 3_000_000 && seen.to_server > 100, "{seen:?}");
    assert_eq!((seen.accepted, seen.open, seen.cut), (1, 1, 0));
    db.close().await.expect("closes");
    counts(proxy, "it is closed", |seen| seen.open == 0 && seen.cut == 0).await;
}

/// A query is held, and a new connection; pass lets both go on.
async fn freezes(proxy: &Proxy, url: &str) {
    let mut db = connect(url).await;
    let before = proxy.counts();
    proxy.freeze();
    let both = held(async { tokio::join!(number(&mut db, "SELECT 42::bigint"), connect(url)) }).await;
    counts(proxy, "the new one is accepted", |seen| seen.open == 2).await;
    let seen = proxy.counts();
    assert_eq!((seen.to_server, seen.to_client), (before.to_server, before.to_client), "not a byte flows");
    proxy.pass();
    let (answer, _new) = both.await;
    assert_eq!(answer.expect("an answer"), 42);
}

async fn delays_each_way(proxy: &Proxy, url: &str) {
    let mut db = connect(url).await;
    let each = Duration::from_millis(150);
    proxy.delay(each);
    let asked = Instant::now();
    execute(&mut db, "SELECT 1").await.expect("an answer");
    assert!(asked.elapsed() >= each * 2, "{:?}", asked.elapsed());
    // What is late comes together: read by read, one after another, this would take 20 s and more.
    let much = sqlx::query_scalar("SELECT repeat('x', 3000000)").fetch_one(&mut db);
    let answer: String = within("much", much).await.expect("a long answer");
    assert_eq!(answer.len(), 3_000_000);
    assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
    proxy.pass();
}

/// Whoever waits for an answer gets an error at once, and new connections are cut too.
async fn cuts(proxy: &Proxy, direct: &str, url: &str) {
    let (mut seen, mut db) = (connect(direct).await, connect(url).await);
    let running =
        "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'";
    let runs = eventually("the query runs", LONG, async || match number(&mut seen, running).await {
        Ok(1) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let mut slow = Box::pin(execute(&mut db, "SELECT pg_sleep(600)"));
    tokio::select! { ended = &mut slow => panic!("{ended:?}"), () = runs => () }
    let (began, before) = (Instant::now(), proxy.counts());
    proxy.cut();
    assert!(slow.await.is_err());
    assert!(began.elapsed() < LONG / 2, "at once: {:?}", began.elapsed());
    assert!(within("connecting", PgConnection::connect(url)).await.is_err(), "new ones are cut too");
    counts(proxy, "both are cut", |now| now.open == 0 && now.cut >= before.cut + 2).await;
    proxy.pass();
}

async fn cuts_commits(proxy: &Proxy, direct: &str, url: &str) {
    let mut seen = connect(direct).await;
    execute(&mut seen, "CREATE TABLE rows (n bigint)").await.expect("a table");
    let rows = "SELECT count(*) FROM rows";

    // In a transaction: the commit happens, its answer does not come.
    let mut db = connect(url).await;
    proxy.cut_after_commit(1, Commits::Explicit);
    execute(&mut db, "INSERT INTO rows VALUES (1)").await.expect("no commit that is meant");
    let mut tx = db.begin().await.expect("a transaction");
    sqlx::query("INSERT INTO rows VALUES (2)").execute(&mut *tx).await.expect("a row");
    let told = within("the commit", tx.commit()).await;
    assert!(told.is_err(), "the client does not learn of its commit");
    assert_eq!(number(&mut seen, rows).await.expect("rows"), 2, "which happened");
    counts(proxy, "one commit is cut", |seen| seen.commits_cut == 1 && seen.open == 0).await;

    // It was one only.
    let mut db = connect(url).await;
    let tx = db.begin().await.expect("a transaction");
    tx.commit().await.expect("a commit");

    // A write that commits by itself; one within a transaction that is undone is none.
    proxy.cut_after_commit(2, Commits::AndWrites);
    let mut tx = db.begin().await.expect("a transaction");
    sqlx::query("INSERT INTO rows VALUES (3)").execute(&mut *tx).await.expect("a row");
    tx.rollback().await.expect("undone");
    for _ in 0..2 {
        let told = execute(&mut db, "INSERT INTO rows VALUES (4)").await;
        assert!(told.is_err(), "the client does not learn of its write");
        db = connect(url).await;
    }
    assert_eq!(number(&mut seen, rows).await.expect("rows"), 4, "which happened");
    execute(&mut db, "DELETE FROM rows").await.expect("nothing more is cut");

    // Taken back.
    proxy.cut_after_commit(1, Commits::AndWrites);
    proxy.cut_after_commit(0, Commits::AndWrites);
    execute(&mut db, "INSERT INTO rows VALUES (5)").await.expect("nothing is cut");
    assert_eq!((proxy.counts().commits_cut, proxy.counts().unreadable), (3, 0));
}

#[tokio::test]
async fn a_proxy_before_postgres_passes_cuts_freezes_and_delays_and_cuts_after_a_commit() {
    let (server, _dir) = postgres().await;
    let proxy = proxy(server.address()).await;
    assert!((20_000..32_768).contains(&proxy.address().port()));
    let direct = server.url("postgres");
    let url = direct.replace(&server.address().to_string(), &proxy.address().to_string());
    passes(&proxy, &url).await;
    freezes(&proxy, &url).await;
    delays_each_way(&proxy, &url).await;
    cuts(&proxy, &direct, &url).await;
    cuts_commits(&proxy, &direct, &url).await;

    // The server is away: so is the client's connection.
    server.stop_fast().await.expect("it stops");
    assert!(within("connecting", PgConnection::connect(&url)).await.is_err());
    assert!(proxy.counts().unreachable > 0);
    let address = proxy.address();
    drop(proxy);
    eventually("nobody listens", LONG, async || match TcpStream::connect(address).await {
        Ok(_) => Err("somebody does"),
        Err(_) => Ok(()),
    })
    .await;
}

/// Asks Redis for a PONG.
async fn ping(client: &mut TcpStream) -> std::io::Result<()> {
    client.write_all(b"PING\r\n").await?;
    let mut answer = [0; 7];
    client.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"+PONG\r\n");
    Ok(())
}

#[tokio::test]
async fn a_proxy_before_redis_freezes_and_cuts() {
    let (server, _dir) = redis(Keeps::Writes).await;
    let proxy = proxy(server.address()).await;
    let mut client = TcpStream::connect(proxy.address()).await.expect("accepted");
    within("a ping", ping(&mut client)).await.expect("a pong");
    proxy.freeze();
    let asked = held(ping(&mut client)).await;
    proxy.pass();
    within("the ping that was held", asked).await.expect("a pong");

    // What cuts wins over what waits.
    proxy.freeze();
    let mut new = TcpStream::connect(proxy.address()).await.expect("accepted");
    counts(&proxy, "it is held", |seen| seen.open == 2).await;
    proxy.cut();
    for client in [&mut client, &mut new] {
        let ended = within("the end", client.read(&mut [0])).await;
        assert_eq!(ended.map_err(|why| why.kind()), Err(std::io::ErrorKind::ConnectionReset));
    }
    counts(&proxy, "both are cut", |seen| seen.cut == 2 && seen.open == 0).await;
    proxy.pass();
    let mut client = TcpStream::connect(proxy.address()).await.expect("accepted");
    within("a ping", ping(&mut client)).await.expect("a pong");
    proxy.cut();
    proxy.pass();
    let ended = within("the end", client.read(&mut [0])).await;
    assert!(ended.is_err(), "also a cut of no length cuts what is open");
    // No commit is looked for in what is not PostgreSQL's, and that is told.
    proxy.cut_after_commit(1, Commits::Explicit);
    let mut client = TcpStream::connect(proxy.address()).await.expect("accepted");
    within("a ping", ping(&mut client)).await.expect("a pong");
    let seen = proxy.counts();
    assert_eq!((seen.commits_cut, seen.unreadable), (0, 3));
}

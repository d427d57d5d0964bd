//! The private servers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use mainspring::tools::proc::descendants;
use mainspring::tools::servers::{Keeps, Postgres};
use sqlx::Connection;

use super::{connect, dir, execute, held, number, postgres, redis};

fn stat(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

#[tokio::test]
async fn a_private_postgres_keeps_what_is_committed_and_stands_still_with_all_its_processes() {
    let (mut server, dir) = postgres().await;
    let url = server.create_database("mine").await.expect("a database");
    assert!(server.create_database("mine").await.is_err(), "there is one of that name");
    let mut db = connect(&url).await;
    execute(&mut db, "CREATE TABLE kept (n bigint)").await.expect("a table");
    execute(&mut db, "INSERT INTO kept VALUES (7)").await.expect("a row");
    execute(&mut db, "BEGIN").await.expect("a transaction");
    execute(&mut db, "INSERT INTO kept VALUES (8)").await.expect("a row");

    server.pause().expect("it stops");
    let all = descendants(server.pid());
    assert!(all.len() > 3, "the backend and the writers: {all:?}");
    for pid in all.iter().chain([&server.pid()]) {
        // A session that has just ended is not reaped while the postmaster stands.
        let stands = |stat: String| stat.contains(") T ") || stat.contains(") Z ");
        assert!(stat(*pid).is_some_and(stands), "{pid} runs");
    }
    let query = held(number(&mut db, "SELECT max(n) FROM kept")).await;
    server.resume().expect("it goes on");
    assert_eq!(query.await.expect("the answer"), 8);
    assert!(server.start_again().await.is_err(), "it runs");

    // A crash in the midst of a pause.
    server.pause().expect("it stops");
    server.kill_immediate().await.expect("it ends");
    assert!(server.pause().is_err() && server.resume().is_err(), "nobody is there");
    let left: Vec<_> =
        all.iter().filter(|pid| stat(**pid).is_some_and(|stat| !stat.contains(") Z "))).collect();
    assert!(left.is_empty(), "they outlive their postmaster: {left:?}");
    assert!(number(&mut db, "SELECT 1").await.is_err());
    server.start_again().await.expect("it recovers");
    let mut db = connect(&url).await;
    assert_eq!(number(&mut db, "SELECT sum(n)::bigint FROM kept").await.expect("the sum"), 7);

    server.stop_fast().await.expect("it stops");
    let port = server.address().port();
    drop(server);
    let again = Postgres::start(dir.path(), Some(port)).await.expect("another handle, the same data");
    assert_eq!(again.url("mine"), url);
    let mut db = connect(&url).await;
    assert_eq!(number(&mut db, "SELECT sum(n)::bigint FROM kept").await.expect("the sum"), 7);
    db.close().await.expect("closes");
    again.pause().expect("it stops");
    let pid = again.pid();
    drop(again);
    assert!(stat(pid).is_none(), "also a paused server ends when it is dropped");
}

#[tokio::test]
async fn a_server_that_cannot_start_tells_why() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = Some(taken.local_addr().expect("bound").port());
    let dir = dir();
    if rustix::process::geteuid().is_root() {
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).expect("a directory");
        std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("closed");
        let why = Postgres::start(&closed.join("within"), None).await.err().map(|why| format!("{why:#}"));
        assert!(why.as_ref().is_some_and(|why| why.contains("postgres must be able to enter")), "{why:?}");
    }
    let why = Postgres::start(dir.path(), port).await.err().map(|why| format!("{why:#}"));
    assert!(why.as_ref().is_some_and(|why| why.contains("Address already in use")), "{why:?}");
    let why = mainspring::tools::servers::Redis::start(&dir.path().join("redis"), port, Keeps::Writes).await;
    let why = why.err().map(|why| format!("{why:#}"));
    assert!(why.as_ref().is_some_and(|why| why.contains("Address already in use")), "{why:?}");
}

#[tokio::test]
async fn a_private_redis_is_emptied_and_rolled_back() {
    for keeps in [Keeps::Writes, Keeps::Snapshots] {
        let (mut server, _dir) = redis(keeps).await;
        assert!(server.roll_back().await.is_err(), "there is no copy");
        let set = async |server: &super::Redis, value| {
            server.ask::<()>(&["SET", "key", value]).await.expect("it is set");
        };
        set(&server, "old").await;
        server.save_copy().await.expect("a copy");
        set(&server, "new").await;
        server.ask::<()>(&["SET", "other", "1"]).await.expect("it is set");
        assert_eq!(server.dbsize().await.expect("a size"), 2);
        server.roll_back().await.expect("as it was");
        assert_eq!(server.ask::<String>(&["GET", "key"]).await.expect("a value"), "old", "{keeps:?}");
        assert_eq!(server.dbsize().await.expect("a size"), 1);

        server.kill_and_empty().await.expect("it ends");
        assert!(server.stop().is_err(), "nobody is there");
        server.start_again().await.expect("it starts");
        assert!(server.start_again().await.is_err(), "it runs");
        assert_eq!(server.dbsize().await.expect("a size"), 0, "{keeps:?}");
        set(&server, "newer").await;
        server.flush().await.expect("it forgets");
        assert_eq!(server.dbsize().await.expect("a size"), 0);
        assert!(
            server.ask::<()>(&["NONSENSE"]).await.is_err_and(|why| format!("{why:#}").contains("unknown"))
        );
    }
}

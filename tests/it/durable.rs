//! A 2xx follows a flush. A trigger in the store notes how each writing session commits, so what is judged is
//! the very connection that wrote, not the settings that somebody reads beside it.

use std::time::Duration;

use serde_json::json;

use crate::support::{Node, Receiver, ask_sql, fresh_database, in_state, psql, run_sql, to};

/// Notes the operation and `synchronous` at every change of `timers`.
const NOTE_ON_SQLITE: &str = "
    CREATE TABLE seen (op TEXT, synchronous TEXT);
    CREATE TRIGGER note_insert AFTER INSERT ON timers BEGIN
        INSERT INTO seen SELECT 'INSERT', synchronous FROM pragma_synchronous; END;
    CREATE TRIGGER note_update AFTER UPDATE ON timers BEGIN
        INSERT INTO seen SELECT 'UPDATE', synchronous FROM pragma_synchronous; END;
    CREATE TRIGGER note_delete AFTER DELETE ON timers BEGIN
        INSERT INTO seen SELECT 'DELETE', synchronous FROM pragma_synchronous; END;";

/// The same with PostgreSQL's `synchronous_commit`.
const NOTE_ON_POSTGRES: &str = "
    CREATE TABLE seen (op TEXT, synchronous TEXT);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen VALUES (TG_OP, current_setting('synchronous_commit')); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON timers FOR EACH STATEMENT EXECUTE FUNCTION note();";

/// Registers, changes, cancels and fires timers; returns how the sessions committed that did it: each
/// operation with each setting it was seen with.
async fn how_a_node_commits(node: &Node, store: &str, note: &str) -> String {
    run_sql(store, note).await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = |delay: &str| json!({"delay": delay, "target": to(receiver.url("/ok"))});
    for id in ["changed", "cancelled"] {
        assert_eq!(api.put(id, &timer("PT1H")).await.0, 201);
    }
    assert_eq!(api.patch("changed", &json!({"delay": "PT2H"})).await.0, 200);
    assert_eq!(api.delete("cancelled").await.0, 200);
    assert_eq!(api.put("fired", &timer("PT0S")).await.0, 201);
    receiver.wait_for(1, Duration::from_secs(20)).await;
    in_state(&api, "fired", "delivered").await;
    ask_sql(store, "SELECT DISTINCT op || ' ' || synchronous FROM seen ORDER BY 1").await
}

#[tokio::test]
async fn sqlite_flushes_what_is_acknowledged() {
    let node = Node::builder().start_ready().await;
    let store = format!("sqlite://{}/mainspring.db", node.dir().display());
    // 2 is FULL: in WAL mode the log is flushed at every commit. With NORMAL, 1, it is not.
    assert_eq!(how_a_node_commits(&node, &store, NOTE_ON_SQLITE).await, "DELETE 2\nINSERT 2\nUPDATE 2");
    assert_eq!(ask_sql(&store, "SELECT journal_mode FROM pragma_journal_mode").await, "wal");
}

/// How a node commits in a database whose default for `synchronous_commit` is this.
async fn with_a_default_of(default: &str) -> String {
    let store = fresh_database().await;
    let database = store.rsplit('/').next().expect("a name");
    psql(&store, &format!("ALTER DATABASE {database} SET synchronous_commit = {default}")).await;
    let node = Node::builder().cold(&store).start_ready().await;
    how_a_node_commits(&node, &store, NOTE_ON_POSTGRES).await
}

#[tokio::test]
async fn postgres_flushes_what_is_acknowledged_whatever_its_default() {
    assert_eq!(with_a_default_of("off").await, "DELETE on\nINSERT on\nUPDATE on");
}

#[tokio::test]
async fn what_postgres_waits_for_at_replicas_stays_as_it_was_set() {
    let (local, apply) = tokio::join!(with_a_default_of("local"), with_a_default_of("remote_apply"));
    assert_eq!(local, "DELETE local\nINSERT local\nUPDATE local");
    assert_eq!(apply, "DELETE remote_apply\nINSERT remote_apply\nUPDATE remote_apply");
}

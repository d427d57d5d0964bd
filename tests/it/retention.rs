//! What has ended can be read for `history.retention`, and then its id is free.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::support::{Node, NodeBuilder, Receiver, eventually, fresh_database, in_state, psql, settled, to};

/// The retention once what has ended was looked at: until then the default, of days.
const RETENTION: &str = "PT1S";

/// It goes within a retention and the second between two rounds, unless the machine is busy.
const GONE: Duration = Duration::from_secs(30);

/// `age` makes what has ended old enough, where waiting alone does not.
async fn what_has_ended_goes(builder: NodeBuilder, store: &str, age: impl AsyncFnOnce()) {
    let mut node = builder.cold(store).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = json!({"delay": "PT0S", "target": to(receiver.url("/ok")), "data": 1});
    let other = json!({"delay": "PT0S", "target": to(receiver.url("/ok")), "data": 2});
    let far = json!({"delay": "PT1H", "target": to(receiver.url("/ok"))});
    assert_eq!(api.put("stays", &far).await.0, 201);
    assert_eq!(api.put("cancelled", &far).await.0, 201);
    assert_eq!(api.delete("cancelled").await.0, 200);
    assert_eq!(api.put("t", &timer).await.0, 201);

    in_state(&api, "t", "delivered").await;
    assert_eq!(api.timer("cancelled").await.1["state"], "cancelled");
    assert_eq!(api.get("/v1/timers/t/explain").await.0, 200);
    assert_eq!(api.put("t", &timer).await.0, 200, "the same again shows its end");
    assert_eq!(api.put("t", &other).await.0, 409, "the id is taken");
    let before = settled(&api, 1, 1).await;
    assert_eq!((before.registered, before.cancelled), (3, 1));

    age().await;
    node.restart_with("MAINSPRING__HISTORY__RETENTION", RETENTION).await;
    node.wait_ready(GONE).await;
    for id in ["t", "cancelled"] {
        eventually(&format!("{id} is gone"), GONE, async || match api.timer(id).await {
            (404, _) => Ok(()),
            seen => Err(seen),
        })
        .await;
    }
    for path in ["/v1/timers/t/attempts", "/v1/timers/t/explain"] {
        assert_eq!(api.get(path).await.0, 404, "{path}");
    }
    let (_, list) = api.get("/v1/timers").await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(api.ledger().await, before, "the totals outlive what they count");

    eventually("the id is free", GONE, async || match api.put("t", &other).await {
        (201, made) => Ok(made),
        seen => Err(seen),
    })
    .await;
    receiver.wait_for(2, GONE).await;
    let after = settled(&api, 2, 1).await;
    assert_eq!((after.registered, after.cancelled), (4, 1));
    let ids: Vec<_> = receiver.of("t").into_iter().map(|one| one.delivery_id).collect();
    assert_ne!(ids[0], ids[1], "another timer under the same id has a delivery id of its own");
    assert_eq!(api.timer("stays").await.1["state"], "scheduled");
    closes(&node, store).await;
}

/// `mainspring verify` finds every row that the totals speak of, or that it was removed in order.
async fn closes(node: &Node, store: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.args(["verify", "--set", &format!("cold.url={store}")]).current_dir(node.dir()).env_clear();
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("runs").expect("runs");
    assert!(output.status.success(), "{} {output:?}", output.status);
}

#[tokio::test]
async fn what_has_ended_goes_after_its_retention_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite://{}", dir.path().join("t.db").display());
    what_has_ended_goes(Node::builder(), &store, async || {}).await;
}

/// History goes by whole days there: what ended today goes when the day is over, so it is made to have ended
/// three days ago.
#[tokio::test]
async fn what_has_ended_goes_after_its_retention_and_its_day_on_postgres() {
    let store = fresh_database().await;
    let age = async || drop(psql(&store, "UPDATE history SET ended_at = ended_at - 3 * 86400000").await);
    what_has_ended_goes(Node::builder(), &store, age).await;
}

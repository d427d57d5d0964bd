//! Stores as nodes of earlier releases left them.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Api, Ledger, Node, NodeBuilder, Receiver, Verdict, ask_sql, empty_database, eventually, in_state,
    run_sql, settled,
};

/// What the nodes of release 2 were started with: the key of callers, and that of secrets.
const KEY: &str = "key-of-the-settings-1";
const SECRETS_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The secret of a destination and of an inline webhook of release 2.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A store as a node of release 1 left it when it was killed (`kill -9`; PostgreSQL's by `pg_dump --inserts`, SQLite's by
/// `.dump`), its receiver replaced by ours.
async fn release_1(store: &str, url: &str) {
    let recorded = match store.starts_with("sqlite") {
        true => include_str!("release_1.sqlite.sql"),
        false => include_str!("release_1.postgres.sql"),
    };
    run_sql(store, &made_ours(recorded, url)).await;
}

/// The ids of the recorded stores.
const IDS: [&str; 4] = [
    "01a207a81975752a8ebe2d05f64a98db",
    "01a207a8222673ca9f8bbe4c7d60b480",
    "01a21eead3b973858207fb31fa966431",
    "01a21eeabea47257a183c446ee1dee24",
];

/// A recorded store with our receiver, and an id of its own: two stores of one id would share what is in Redis.
fn made_ours(recorded: &str, url: &str) -> String {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let sql = IDS.iter().fold(recorded.to_owned(), |sql, recorded| sql.replace(recorded, &id));
    let paths = ["ok", "fail", "gone", "hang"].map(|path| format!("http://receiver.invalid:1/{path}"));
    paths.iter().fold(sql, |sql, path| sql.replace(path, url))
}

async fn timers_of_release_1_fire(builder: NodeBuilder, store: &str) {
    let receiver = Receiver::start().await;
    release_1(store, &receiver.url("/ok")).await;
    // What had ended by then is still to be seen, whenever this runs.
    let node = builder.cold(store).env("MAINSPRING__HISTORY__RETENTION", "P36500D").start_ready().await;
    let api = node.api();
    // `retrying`, `claimed`, `moved`, `overdue` beside the one that was delivered before.
    let ledger = settled(&api, 5, 2).await;
    assert_eq!((ledger.registered, ledger.cancelled, ledger.dead), (9, 1, 1));
    let received = receiver.received();
    Verdict::on(&received).is_clean(4);
    for (id, attempt, generation) in
        [("overdue", 1, 1), ("moved", 1, 2), ("retrying", 2, 1), ("claimed", 2, 1)]
    {
        let one = &receiver.of(id)[0];
        assert_eq!((one.attempt, one.generation, one.json()), (attempt, generation, json!({"n": 1})), "{id}");
    }
    for (id, state) in
        [("far", "scheduled"), ("minute", "scheduled"), ("delivered", "delivered"), ("dead", "dead")]
    {
        assert_eq!(api.timer(id).await.1["state"], state, "{id}");
    }
    let (_, all) = api.get("/v1/timers?limit=4").await;
    let (_, rest) = api.get(&format!("/v1/timers?cursor={}", all["next"].as_str().expect("more"))).await;
    let ids = |page: &Value| -> Vec<String> {
        page["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|t| t["id"].as_str().map(str::to_owned))
            .collect()
    };
    let ids = [ids(&all), ids(&rest)].concat();
    let in_due_order =
        ["delivered", "dead", "retrying", "claimed", "moved", "overdue", "cancelled", "far", "minute"];
    assert_eq!(ids, in_due_order);
    assert_eq!(api.patch("far", &json!({"delay": "PT0S"})).await.0, 200);
    settled(&api, 6, 1).await;
    assert!(node.sigterm().await.0.success());
}

#[tokio::test]
async fn timers_of_release_1_fire_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite://{}?mode=rwc", dir.path().join("old.db").display());
    let plain = store.trim_end_matches("?mode=rwc").to_owned();
    run_sql(&store, "SELECT 1").await;
    timers_of_release_1_fire(Node::builder(), &plain).await;
}

#[tokio::test]
async fn timers_of_release_1_fire_on_postgres() {
    let store = empty_database().await;
    timers_of_release_1_fire(Node::builder(), &store).await;
    let broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    assert_eq!(ask_sql(&store, broken).await, "");
    // Each partition of its time has the new index, bound to that of `history`.
    let partitions = "SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'history'::regclass";
    let bound = "SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'history_own_by_due'::regclass";
    assert_eq!(ask_sql(&store, partitions).await, ask_sql(&store, bound).await);
}

/// A store as a node of release 2 left it when it was killed (`kill -9`, 732dd89; PostgreSQL's by `pg_dump --inserts`,
/// SQLite's by Python's `iterdump`), its receiver replaced by ours. It has a timer of each state, called by it, and one of
/// everything that release 2 had.
pub async fn release_2(store: &str, url: &str) {
    let recorded = match store.starts_with("sqlite") {
        true => include_str!("release_2.sqlite.sql"),
        false => include_str!("release_2.postgres.sql"),
    };
    run_sql(store, &made_ours(recorded, url)).await;
}

/// The settings of release 2's nodes. What had ended by then is still to be seen, whenever this runs.
pub fn as_release_2(builder: NodeBuilder) -> NodeBuilder {
    builder
        .env("MAINSPRING__SERVER__API_KEYS", KEY)
        .env("MAINSPRING__SERVER__SECRETS_KEY", SECRETS_KEY)
        .env("MAINSPRING__HISTORY__RETENTION", "P36500D")
}

/// Who calls with the key of release 2's nodes.
pub fn caller(node: &Node) -> Api {
    node.api().with_key(KEY)
}

/// How many timers of that store are live once all that was overdue has fired.
pub const STAYS: usize = 9;
/// How many are delivered then, two of them before the node was killed.
pub const FIRED: usize = 6;

/// Ids, idempotency keys, secrets, and what has a name: all is there and works on. `receiver` got what was overdue.
pub async fn all_of_release_2_is_there(api: &Api, receiver: &Receiver) {
    for (id, attempt) in [("retrying", 2), ("claimed", 2), ("by-destination", 1), ("with-secret", 1)] {
        let got = receiver.of(id);
        assert_eq!((got.len(), got[0].attempt, got[0].json()), (1, attempt, json!({"n": 1})), "{id}");
    }
    let ours = standardwebhooks::Webhook::new(SECRET).expect("a secret");
    for id in ["by-destination", "with-secret"] {
        let one = &receiver.of(id)[0];
        ours.verify(&one.body, &one.headers).expect("signed with the secret that was kept");
    }
    for (id, state) in [("far", "scheduled"), ("minute", "scheduled"), ("paused", "paused"), ("dead", "dead")]
    {
        assert_eq!(api.timer(id).await.1["state"], state, "{id}");
    }
    for (id, state) in [("cancelled", "cancelled"), ("delivered", "delivered"), ("task", "scheduled")] {
        assert_eq!(api.timer(id).await.1["state"], state, "{id}");
    }
    // The same again is the same timer, another one is refused.
    let far_task =
        |n| json!({"fire_at": "2126-01-01T00:00:00Z", "target": {"queue": "tasks"}, "data": {"n": n}});
    for (n, status, is) in
        [(1, 200, ("id", "tmr_109b7e1578328572e5196d916bffe134")), (2, 422, ("code", "key_reused"))]
    {
        let headers = [("idempotency-key", "once")];
        let answer = api.send(Method::POST, "/v1/timers", &headers, Some(&far_task(n))).await;
        assert_eq!((answer.status, &answer.body[is.0]), (status, &json!(is.1)), "{}", answer.body);
    }
    assert_eq!(api.put("later-task", &far_task(1)).await.0, 200);
    assert_eq!(api.put("later-task", &far_task(2)).await.0, 409);

    assert_eq!(api.get("/v1/queues/tasks").await.1["lease"], "PT5M");
    assert_eq!(api.get("/v1/destinations/signed").await.1["webhook"]["signed"], true);
    let next = api.get("/v1/schedules/far-daily/next?count=1").await.1;
    assert_eq!(next["items"], json!(["2126-01-01T08:00:00.000Z"]));
    assert_eq!(api.get("/v1/schedules/resting").await.1["state"], "paused");
    let once = api.get("/v1/timers?schedule=once").await.1;
    assert_eq!(once["items"][0]["state"], "delivered", "{once}");
    let operation = api.get("/v1/operations").await.1;
    assert_eq!(
        (&operation["items"][0]["state"], &operation["items"][0]["done"]),
        (&json!("done"), &json!(1))
    );
    for used in ["/v1/destinations/signed", "/v1/templates/task"] {
        let kept = api.send(Method::DELETE, used, &[], None).await;
        assert_eq!((kept.status, &kept.body["code"]), (409, &json!("in_use")), "{used}: {}", kept.body);
    }
}

/// Workers take the places that are left, a schedule and a timer go on from their pause, and a subscription hears.
async fn all_of_release_2_goes_on(api: &Api, receiver: &Receiver) {
    for (worker, group, timer, attempt) in [("w1", "night", "leased", 2), ("w3", "day", "task", 1)] {
        let ask = json!({"worker": worker, "groups": [group], "max": 1, "wait": "PT1S"});
        let item = eventually("a lease that ended is a place again", Duration::from_secs(60), async || {
            let (status, items) = api.post("/v1/queues/tasks/lease", &ask).await;
            assert_eq!(status, 200, "{items}");
            items["items"].get(0).cloned().ok_or(items)
        });
        let item = item.await;
        assert_eq!((&item["timer"], &item["attempt"]), (&json!(timer), &json!(attempt)), "{item}");
        let ack = json!({"settlements": [{"lease_token": item["lease_token"], "action": "ack"}]});
        let (_, settled) = api.post("/v1/queues/tasks/settle", &ack).await;
        assert_eq!(settled["results"][0]["status"], 200, "{settled}");
        in_state(api, timer, "delivered").await;
    }
    assert_eq!(api.post("/v1/schedules/resting/resume", &Value::Null).await.0, 200);
    assert_eq!(api.post("/v1/timers/paused/resume", &Value::Null).await.0, 200);
    assert_eq!(api.timer("paused").await.1["state"], "scheduled");
    assert_eq!(api.patch("far", &json!({"delay": "PT0S"})).await.0, 200);
    let delivered = "mainspring.timer.delivered.v1";
    let heard = |all: &[crate::support::Received]| all.iter().any(|one| one.headers["ce-type"] == delivered);
    receiver.wait_until(heard, Duration::from_secs(30)).await;
    let team = api.send(Method::PUT, "/v1/namespaces/team", &[], Some(&json!({}))).await;
    assert_eq!(team.status, 201, "what release 3 has, its nodes may use now: {}", team.body);
}

async fn everything_of_release_2_goes_on(builder: NodeBuilder, store: &str) {
    let receiver = Receiver::start().await;
    release_2(store, &receiver.url("/ok")).await;
    let node = as_release_2(builder).cold(store).start_ready().await;
    assert_eq!(node.api().get("/v1/timers").await.0, 401, "a key is needed, as before");
    let api = caller(&node);
    let ledger = settled(&api, FIRED, STAYS).await;
    assert_eq!(
        ledger,
        Ledger { registered: 17, delivered: 6, cancelled: 1, expired: 0, dead: 1, pending: 9 }
    );
    Verdict::on(&receiver.received()).is_clean(FIRED - 2);
    all_of_release_2_is_there(&api, &receiver).await;
    all_of_release_2_goes_on(&api, &receiver).await;
    settled(&api, FIRED + 3, STAYS - 3).await;
    assert!(node.sigterm().await.0.success());
}

#[tokio::test]
async fn everything_of_release_2_goes_on_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite://{}", dir.path().join("old.db").display());
    run_sql(&format!("{store}?mode=rwc"), "SELECT 1").await;
    everything_of_release_2_goes_on(Node::builder(), &store).await;
}

#[tokio::test]
async fn everything_of_release_2_goes_on_on_postgres() {
    let store = empty_database().await;
    everything_of_release_2_goes_on(Node::builder(), &store).await;
    let broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    assert_eq!(ask_sql(&store, broken).await, "");
}

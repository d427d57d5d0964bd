//! Operations on live timers through the API: counted first, then done, also by the next node after a kill.

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, begun, counts, ended, ended_by_the_other, shown};
use crate::support::{Api, NodeBuilder, Receiver, eventually, in_state, on_both, to};

/// As many as several steps of every pace leave time to do something in between.
const MANY: usize = 1500;

/// Registers timers of one owner, a minute apart.
async fn register(api: &Api, receiver: &Receiver, owner: &str, count: usize) {
    let timer = |n: usize| {
        json!({"id": format!("{owner}-{n}"), "delay": format!("PT{}M", 60 + n), "owner": owner,
            "target": to(receiver.url("/ok")), "labels": {"n": (n % 2).to_string()}})
    };
    let items: Vec<Value> = (0..count).map(timer).collect();
    let (status, answer) = api.post("/v1/timers/batch", &json!({"timers": items})).await;
    assert_eq!(status, 200, "{answer}");
}

async fn begin(api: &Api, body: Value) -> Value {
    begun(api, api.send(Method::POST, "/v1/operations", &[], Some(&body)).await)
}

/// Does it, and returns matched and done.
async fn did(api: &Api, body: Value) -> (i64, i64) {
    let operation = begin(api, body).await;
    let done = ended(api, &operation).await;
    let (matched, did, refused) = counts(&done);
    assert_eq!(refused, &json!({}), "{done}");
    (matched, did)
}

async fn number_in(api: &Api, state: &str) -> usize {
    let (status, page) = api.get(&format!("/v1/timers?state={state}&limit=1000")).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().expect("items").len()
}

async fn what_is_asked_for_is_counted_and_then_done(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    register(&api, &receiver, "u", 40).await;
    register(&api, &receiver, "v", 10).await;
    let of_u = json!({"owner": "u", "label.n": "1"});
    assert_eq!(did(&api, json!({"action": "pause", "filter": of_u, "dry_run": true})).await, (20, 0));
    assert_eq!(number_in(&api, "paused").await, 0, "a dry run changes nothing");
    assert_eq!(did(&api, json!({"action": "pause", "filter": of_u})).await, (20, 20));
    assert_eq!(did(&api, json!({"action": "pause", "filter": of_u})).await, (0, 0), "they are paused");
    assert_eq!((number_in(&api, "paused").await, number_in(&api, "scheduled").await), (20, 30));

    let before = api.timer("u-0").await.1;
    let shifted = begin(&api, json!({"action": "shift", "by": "-PT30M", "filter": {"owner": "u"}})).await;
    assert_eq!(shifted["by"], "-PT30M");
    assert_eq!(counts(&ended(&api, &shifted).await).1, 40);
    let (first, last) = (api.timer("u-0").await.1, api.timer("u-39").await.1);
    let minutes = |timer: &Value| {
        let due = timer["due_at"].as_str().expect("a time");
        chrono::DateTime::parse_from_rfc3339(due).expect("a time").timestamp_millis() / 60_000
    };
    assert_eq!(minutes(&before) - minutes(&first), 30);
    assert_eq!(minutes(&last) - minutes(&first), 39);
    assert_eq!((&first["state"], &last["state"]), (&json!("scheduled"), &json!("paused")));

    assert_eq!(did(&api, json!({"action": "resume", "filter": {"owner": "u"}})).await, (20, 20));
    let early = json!({"owner": "u", "due_before": last["due_at"]});
    assert_eq!(did(&api, json!({"action": "cancel", "filter": early})).await, (39, 39));
    assert_eq!(did(&api, json!({"action": "fire", "filter": {"owner": "v"}})).await, (10, 10));
    receiver.wait_for(10, LONG).await;
    eventually("the ledger tells so", LONG, async || {
        let ledger = api.ledger().await;
        let told = (ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending);
        if told == (50, 10, 39, 1) { Ok(()) } else { Err(ledger) }
    })
    .await;
}

/// What a person leaves behind: the live timers are cancelled, then all that ended is purged.
async fn a_person_is_forgotten(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    register(&api, &receiver, "u", 30).await;
    register(&api, &receiver, "v", 5).await;
    let path = "/v1/timers/u-3/fire";
    assert_eq!(api.send(Method::POST, path, &[], None::<&Value>).await.status, 202);
    in_state(&api, "u-3", "delivered").await;
    assert_eq!(did(&api, json!({"action": "cancel", "filter": {"owner": "u"}})).await, (29, 29));
    let all = json!({"action": "purge", "filter": {"owner": "u"}});
    let counted = json!({"action": "purge", "filter": {"owner": "u"}, "dry_run": true});
    assert_eq!(did(&api, counted).await, (30, 0));
    assert_eq!(api.get("/v1/timers?owner=u").await.1["items"].as_array().map(Vec::len), Some(30));
    assert_eq!(did(&api, all.clone()).await, (30, 30));
    assert_eq!(api.get("/v1/timers?owner=u").await.1, json!({"items": [], "next": null}));
    for path in ["", "/attempts", "/explain"] {
        assert_eq!(api.get(&format!("/v1/timers/u-3{path}")).await.0, 404, "{path}");
    }
    let again = json!({"delay": "PT1H", "owner": "u", "target": to(receiver.url("/ok"))});
    assert_eq!(api.put("u-3", &again).await.0, 409, "its id stays taken");
    assert_eq!(did(&api, all).await, (0, 0));
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending), (35, 1, 29, 5));
}

/// An operation of which something is done, and not all.
async fn under_way(api: &Api, body: Value) -> Value {
    let operation = begin(api, body).await;
    eventually("it has begun", LONG, async || {
        let now = shown(api, &operation).await;
        if counts(&now).1 > 0 { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(shown(api, &operation).await["state"], "running", "it is not through yet");
    operation
}

/// Each timer has been moved, and once only.
async fn each_is_moved_once(api: &Api) {
    let mut cursor = String::new();
    let mut seen = 0;
    loop {
        let page = api.get(&format!("/v1/timers?owner=u&limit=1000{cursor}")).await.1;
        for timer in page["items"].as_array().expect("items") {
            assert_eq!(timer["generation"], 2, "{timer}");
            seen += 1;
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, MANY);
}

const SHIFT: &str = "PT2H";

/// A shift of many timers that is not through, and their receiver.
async fn shift_under_way(api: &Api) -> (Receiver, Value) {
    let receiver = Receiver::start().await;
    register(api, &receiver, "u", MANY).await;
    let operation = under_way(api, json!({"action": "shift", "by": SHIFT, "filter": {"owner": "u"}})).await;
    (receiver, operation)
}

async fn a_node_that_is_killed_leaves_the_rest_to_the_next(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let (_receiver, operation) = shift_under_way(&node.api()).await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    let done = ended(&api, &operation).await;
    assert_eq!(counts(&done), (MANY as i64, MANY as i64, &json!({})), "{done}");
    each_is_moved_once(&api).await;
}

#[tokio::test]
async fn another_node_goes_on_with_the_operation_of_one_that_is_killed() {
    let (heir, _, done) = ended_by_the_other(shift_under_way).await;
    assert_eq!(counts(&done), (MANY as i64, MANY as i64, &json!({})), "{done}");
    each_is_moved_once(&heir.api()).await;
}

/// Callers cancel the same timers meanwhile: each is cancelled by one or the other, and told so truly.
async fn of_an_operation_and_a_caller_one_cancels(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    register(&api, &receiver, "u", MANY).await;
    let callers = async {
        // From the end, so that the two meet.
        for n in (0..MANY).rev().step_by(3) {
            assert_eq!(api.delete(&format!("u-{n}")).await, (200, json!({"outcome": "cancelled"})), "{n}");
        }
    };
    let (operation, ()) =
        tokio::join!(begin(&api, json!({"action": "cancel", "filter": {"owner": "u"}})), callers);
    let done = ended(&api, &operation).await;
    let (matched, did, refused) = counts(&done);
    assert_eq!((matched, refused), (did, &json!({})), "{done}");
    assert!(did >= (MANY - MANY.div_ceil(3)) as i64, "{done}");
    let ledger = api.ledger().await;
    assert_eq!((ledger.registered, ledger.cancelled, ledger.pending), (MANY as u64, MANY as u64, 0));
    assert!(receiver.received().is_empty());
}

on_both!(
    a_person_is_forgotten,
    what_is_asked_for_is_counted_and_then_done,
    a_node_that_is_killed_leaves_the_rest_to_the_next,
    of_an_operation_and_a_caller_one_cancels,
);

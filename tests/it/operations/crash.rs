//! Operations that are broken off: by a caller, by the end of their node, by others who want the same timers.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, Mendable, begin, counts, dead, ended, ended_by_the_other, shown};
use crate::support::{Api, Node, NodeBuilder, eventually, on_both, problem, run_sql, settled, to};

/// As many as two or three steps of every pace leave time to do something in between.
const MANY: usize = 700;

/// A timer for the place. Its receiver is no destination, so that many die at once.
fn timer(place: &Mendable) -> Value {
    json!({"delay": "PT0S", "target": to(place.receiver.url("/in")), "labels": {"of": "a"}})
}

/// Many dead timers whose receiver works again.
async fn mended(api: &Api) -> Mendable {
    let place = Mendable::start().await;
    dead(api, &timer(&place), "a", MANY).await;
    place.mend();
    place
}

async fn begin_all(api: &Api) -> Value {
    begin(api, json!({"label.of": "a"}), false).await
}

/// The same, and an operation that has made some of them run again, and not all.
async fn under_way(api: &Api) -> (Mendable, Value) {
    let place = mended(api).await;
    let operation = begin_all(api).await;
    eventually("it has begun", LONG, async || {
        let now = shown(api, &operation).await;
        if counts(&now).1 > 0 { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(shown(api, &operation).await["state"], "running", "it is not through yet");
    (place, operation)
}

/// Each timer ran again once, under one id, however often it was sent.
async fn each_ran_again_once(api: &Api, place: &Mendable) {
    let ledger = settled(api, MANY, 0).await;
    assert_eq!((ledger.registered, ledger.dead), (2 * MANY as u64, MANY as u64));
    let mut ids: BTreeMap<String, Vec<(u32, String)>> = BTreeMap::new();
    for one in place.receiver.received() {
        ids.entry(one.timer).or_default().push((one.generation, one.delivery_id));
    }
    assert_eq!(ids.len(), MANY);
    for (timer, mut firings) in ids {
        firings.sort_unstable();
        firings.dedup();
        assert_eq!(firings.iter().map(|(generation, _)| *generation).collect::<Vec<_>>(), [1, 2], "{timer}");
    }
}

async fn a_node_that_is_killed_leaves_the_rest_to_the_next(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let (place, operation) = under_way(&node.api()).await;
    node.restart().await;
    node.wait_ready(LONG).await;
    let api = node.api();
    let done = ended(&api, &operation).await;
    assert_eq!(counts(&done), (MANY as i64, MANY as i64, &json!({})), "{done}");
    each_ran_again_once(&api, &place).await;
}

#[tokio::test]
async fn another_node_goes_on_with_the_operation_of_one_that_is_killed() {
    let (heir, place, done) = ended_by_the_other(under_way).await;
    assert_eq!(counts(&done), (MANY as i64, MANY as i64, &json!({})), "{done}");
    each_ran_again_once(&heir.api(), &place).await;
}

async fn a_stop_ends_it_and_another_one_does_the_rest(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let (place, operation) = under_way(&api).await;
    let stop = format!("/v1/operations/{}/stop", operation["id"].as_str().expect("an id"));
    let stopped = api.send(Method::POST, &stop, &[], None).await;
    assert_eq!((stopped.status, &stopped.body["state"]), (200, &json!("stopped")), "{}", stopped.body);
    let (matched, done, _) = counts(&stopped.body);
    assert!(done > 0 && done < MANY as i64 && matched == done, "{}", stopped.body);
    let again = api.send(Method::POST, &stop, &[], None).await;
    assert_eq!((again.status, &again.body), (200, &stopped.body), "a repeat, and nothing more was done");
    assert_eq!(api.ledger().await.registered, MANY as u64 + done as u64);
    let rest = begin_all(&api).await;
    let rest = ended(&api, &rest).await;
    let (matched, did, refused) = counts(&rest);
    assert_eq!((matched, did), (MANY as i64, MANY as i64 - done), "{rest}");
    let sum: i64 = refused.as_object().expect("counts").values().filter_map(Value::as_i64).sum();
    assert_eq!(sum, done, "{rest}");
    let late = format!("/v1/operations/{}/stop", rest["id"].as_str().expect("an id"));
    problem(&api.send(Method::POST, &late, &[], None).await, 409, "already_ended");
    each_ran_again_once(&api, &place).await;
}

/// Of a newer version: a node of this one leaves it, instead of doing what nobody asked for, and goes on with others.
#[tokio::test]
async fn one_that_cannot_be_read_is_left_to_a_newer_node_and_the_others_go_on() {
    let node = Node::builder().start_ready().await;
    let (api, store) = (node.api(), format!("sqlite://{}/mainspring.db", node.dir().display()));
    let place = mended(&api).await;
    let id = "op_00000000000000000000000000000007";
    run_sql(
        &store,
        "INSERT INTO operations (namespace, id, action, filter, selection, dry_run, state, matched, done, refused, \
         created_at, lease_until) VALUES (0, x'00000000000000000000000000000007', 'redrive', '{\"worker\":\"w\"}', \
         '{\"worker\":\"w\"}', false, 0, 0, 0, '{}', 1, 0)",
    )
    .await;
    let other = begin_all(&api).await;
    assert_eq!(counts(&ended(&api, &other).await).1, MANY as i64);
    let left = api.get(&format!("/v1/operations/{id}")).await.1;
    assert_eq!(
        (&left["state"], left["node"].is_null(), counts(&left).1),
        (&json!("running"), true, 0),
        "{left}"
    );
    each_ran_again_once(&api, &place).await;
}

/// Callers register the same ids again meanwhile: each of them runs once more, by one or the other.
async fn of_a_redrive_and_a_registration_again_exactly_one_wins(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    let place = mended(&api).await;
    let again = async {
        let mut new = 0;
        // From the end, so that the two meet.
        for n in (0..MANY).rev() {
            let path = format!("/v1/timers/a-{n}?again=true");
            let status = api.send(Method::PUT, &path, &[], Some(&timer(&place))).await.status;
            assert!(matches!(status, 200 | 201), "{status}");
            new += i64::from(status == 201);
        }
        new
    };
    let (operation, new) = tokio::join!(begin_all(&api), again);
    let done = ended(&api, &operation).await;
    let (matched, did, refused) = counts(&done);
    println!("{did} by the operation, {new} by callers; refused {refused}");
    // A timer that ran again by the operation, ended, and was registered again runs a third time.
    let ledger = settled(&api, usize::try_from(new + did).expect("small"), 0).await;
    assert_eq!(ledger.registered, MANY as u64 + (new + did) as u64);
    let sum: i64 = refused.as_object().expect("counts").values().filter_map(Value::as_i64).sum();
    assert_eq!((matched, did + sum), (MANY as i64, MANY as i64), "{done}");
    let mut seen = BTreeMap::new();
    for one in place.receiver.received() {
        *seen.entry((one.timer, one.generation)).or_insert(0) += 1;
    }
    assert!(seen.values().all(|sent| *sent == 1), "no generation was fired twice");
}

on_both!(
    a_node_that_is_killed_leaves_the_rest_to_the_next,
    a_stop_ends_it_and_another_one_does_the_rest,
    of_a_redrive_and_a_registration_again_exactly_one_wins,
);

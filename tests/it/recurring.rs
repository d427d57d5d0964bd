//! Promise 9 on real processes: each nominal time of a schedule makes exactly one occurrence, whoever is killed when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Api, Node, NodeBuilder, Received, Receiver, fresh_database, on_both, rfc3339, shared_as, to,
};

const LONG: Duration = Duration::from_secs(40);

async fn put(api: &Api, id: &str, body: &Value) {
    let made = api.send(Method::PUT, &format!("/v1/schedules/{id}"), &[], Some(body)).await;
    assert_eq!(made.status, 201, "{}", made.body);
}

fn nominal_ms(one: &Received) -> Option<i64> {
    let at = one.headers.get("ce-nominal")?.to_str().expect("text");
    Some(chrono::DateTime::parse_from_rfc3339(at).expect("a time").timestamp_millis())
}

/// The nominal times that arrived, by schedule; each by one delivery.
fn by_schedule(all: &[Received]) -> BTreeMap<String, BTreeSet<i64>> {
    let mut found: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    let mut deliveries: BTreeMap<(String, i64), BTreeSet<String>> = BTreeMap::new();
    for one in all {
        let Some(at) = nominal_ms(one) else { continue };
        let schedule = one.headers["ce-schedule"].to_str().expect("text").to_owned();
        deliveries.entry((schedule.clone(), at)).or_default().insert(one.delivery_id.clone());
        found.entry(schedule).or_default().insert(at);
    }
    assert!(deliveries.values().all(|ids| ids.len() == 1), "a nominal time fired twice: {deliveries:?}");
    found
}

/// Every nominal time from the first to the last is there.
fn without_gaps(times: &BTreeSet<i64>, step_ms: i64) {
    let (first, last) = (times.first().expect("some"), times.last().expect("some"));
    assert_eq!(times.len() as i64, (last - first) / step_ms + 1, "{times:?}");
}

/// A timer of its own tells when a second is left.
async fn a_node_that_is_killed_a_second_before_the_tick_fires_it_once(builder: NodeBuilder) {
    let mut node = builder.env("MAINSPRING__LEASE", "PT1S").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    put(&api, "s", &json!({"every": "PT4S", "target": to(receiver.url("/ok"))})).await;
    let next = api.get("/v1/schedules/s/next?count=2").await.1;
    let tick = next["items"][1].as_str().expect("a time").to_owned();
    let tick_ms = chrono::DateTime::parse_from_rfc3339(&tick).expect("a time").timestamp_millis();
    let bell = json!({"fire_at": rfc3339(tick_ms - 1000), "target": to(receiver.url("/bell"))});
    assert_eq!(api.put("bell", &bell).await.0, 201);
    receiver.wait_until(|all| all.iter().any(|one| one.path == "/bell"), LONG).await;
    node.kill9().await;
    node.restart().await;
    let has_both = |all: &[Received]| {
        [tick_ms, tick_ms + 4000].iter().all(|at| all.iter().any(|one| nominal_ms(one) == Some(*at)))
    };
    let all = receiver.wait_until(has_both, LONG).await;
    let times = by_schedule(&all).remove("s").expect("some");
    assert!(times.contains(&tick_ms), "{times:?}");
    without_gaps(&times, 4000);
    let ledger = node.api().ledger().await;
    assert!(ledger.balances() && ledger.dead == 0, "{ledger:?}");
}

on_both! { a_node_that_is_killed_a_second_before_the_tick_fires_it_once }

#[tokio::test]
async fn a_take_over_leaves_no_nominal_time_out_and_doubles_none() {
    let url = fresh_database().await;
    let start = async |name: &str| {
        Node::builder().name(name).cold(&url).env("MAINSPRING__LEASE", "PT1S").start_ready().await
    };
    let (one, two) = (start("one").await, start("two").await);
    let (api, receiver) = (two.api(), Receiver::start().await);
    shared_as(&api, &[("one", 32), ("two", 32)], LONG).await;
    for n in 0..8 {
        put(&api, &format!("s{n}"), &json!({"every": "PT1S", "target": to(receiver.url("/ok"))})).await;
    }
    let each = |least: usize| {
        move |all: &[Received]| {
            let found = by_schedule(all);
            found.len() == 8 && found.values().all(|times| times.len() >= least)
        }
    };
    receiver.wait_until(each(4), LONG).await;
    one.kill9().await;
    let all = receiver.wait_until(each(14), LONG).await;
    by_schedule(&all).values().for_each(|times| without_gaps(times, 1000));
}

//! Large bodies: what they may hold, and where they are read.

use reqwest::Method;
use serde_json::{Value, json};

use super::{NOWHERE, later, with};
use crate::support::{Node, to};

/// The processor time of the threads that read large bodies, in ticks of ten milliseconds.
fn ticks(node: &Node) -> u64 {
    let tasks = format!("/proc/{}/task", node.pid());
    let threads = std::fs::read_dir(tasks).expect("threads").map(|entry| entry.expect("a thread").path());
    let mut found = 0;
    let of = |stat: String| {
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let fields: Vec<u64> = fields.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        fields[11] + fields[12]
    };
    let ours = threads.filter(|path| {
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        name.trim_end() == "slices"
    });
    let sum: u64 = ours
        .map(|path| std::fs::read_to_string(path.join("stat")).expect("its times"))
        .map(of)
        .inspect(|_| found += 1)
        .sum();
    assert!(found > 0, "threads for large bodies");
    sum
}

#[tokio::test]
async fn large_bodies_are_read_beside_the_runtime() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    for n in 0..20 {
        assert_eq!(
            api.put(&format!("small-{n}"), &with(later(), "data", json!("x".repeat(30_000)))).await.0,
            201
        );
    }
    assert_eq!(ticks(&node), 0, "small ones are read where they come in");
    let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let data: Value =
        serde_json::from_str(&format!("[{}0]", format!("{nested},").repeat(300))).expect("JSON");
    let timers: Vec<Value> =
        (0..50).map(|n| with(with(later(), "data", data.clone()), "id", json!(format!("t{n}")))).collect();
    let (status, body) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
    assert_eq!(status, 200, "{body}");
    assert!(body["results"].as_array().expect("results").iter().all(|one| one["status"] == 201), "{body}");
    assert!(ticks(&node) > 0, "3 MB were read beside it");
    assert_eq!(api.timer("t49").await.1["data"], data);
}

#[tokio::test]
async fn an_item_of_a_batch_that_is_too_large_costs_nobody_but_itself() {
    let node = Node::builder().start_ready().await;
    let named = |id: &str| with(later(), "id", json!(id));
    let large = with(named("large"), "data", json!("x".repeat(200_000)));
    let unknown = json!({"id": "unknown", "delay": "PT1H", "target": to(NOWHERE), ("y".repeat(100_000)): 1});
    let timers = json!({"timers": [named("a"), large, unknown, named("b")]});
    let answer = node.api().send(Method::POST, "/v1/timers/batch", &[], Some(&timers)).await;
    let results = answer.body["results"].as_array().expect("results");
    let short: Vec<_> =
        results.iter().map(|one| (one["id"].as_str().unwrap_or_default(), &one["status"])).collect();
    assert_eq!(
        short,
        [("a", &json!(201)), ("large", &json!(422)), ("unknown", &json!(422)), ("b", &json!(201))]
    );
    assert_eq!(results[1]["error"]["code"], "too_large");
    assert_eq!(results[1]["error"]["errors"][0]["detail"], "the timer is over 131072 bytes");
    assert!(results[2].to_string().len() < 5_000, "what is wrong is not repeated at length");
}

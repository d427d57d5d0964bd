//! Priority: where more is due than a destination takes, the important ones go first, and low ones still move.

use serde_json::{Value, json};

use super::{LONG, made};
use crate::support::{Api, NodeBuilder, Received, Receiver, in_state, on_both};

/// Registers timers that are due at once.
async fn due_now(api: &Api, priority: &str, ids: impl Iterator<Item = usize>) {
    let timer = |n: usize| json!({"id": format!("{priority}-{n}"), "delay": "PT0S", "priority": priority, "target": {"destination": "a"}});
    let timers: Vec<Value> = ids.map(timer).collect();
    let (status, body) = api.post("/v1/timers/batch", &json!({ "timers": timers })).await;
    assert_eq!(status, 200, "{body}");
    assert!(body["results"].as_array().expect("a list").iter().all(|one| one["status"] == 201), "{body}");
}

fn count(all: &[Received], priority: &str) -> usize {
    all.iter().filter(|one| one.timer.starts_with(priority)).count()
}

/// 4,000 low and normal ones wait at a destination that takes 200 a second: a high one that falls due goes before them.
async fn the_important_ones_go_first(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    made(&api, "a", &json!({"webhook": {"url": receiver.url("/ok")}, "rate_per_second": 200})).await;
    due_now(&api, "low", 0..2000).await;
    due_now(&api, "normal", 0..2000).await;
    receiver.wait_for(50, LONG).await;
    let (status, body) = api
        .put("high-0", &json!({"delay": "PT0.5S", "priority": "high", "target": {"destination": "a"}}))
        .await;
    assert_eq!((status, &body["priority"]), (201, &json!("high")), "{body}");
    in_state(&api, "high-0", "delivered").await;
    let late = receiver.of("high-0")[0].lateness_ms();
    println!("the high one was {late} ms late");
    // What waits takes twenty seconds.
    assert!((0..5000).contains(&late), "{late} ms late");

    // One that waits already is moved up, and one is moved down.
    assert_eq!(api.patch("low-1999", &json!({"priority": "high"})).await.1["priority"], "high");
    assert_eq!(
        api.patch("normal-1998", &json!({"priority": "low"})).await.1["generation"],
        1,
        "its time is the same"
    );
    let before = receiver.received().len();
    in_state(&api, "low-1999", "delivered").await;
    let place = receiver.received().iter().position(|one| one.timer == "low-1999").expect("it came");
    let passed = place.saturating_sub(before);
    assert!(passed < 400, "{passed} went before it");

    // Of what has gone out, four fifths are normal and a fifth low, but for the beginning.
    let all = receiver.wait_until(|all| all.len() >= before + 300, LONG).await;
    let (low, normal) = (count(&all[before..], "low"), count(&all[before..], "normal"));
    println!("{low} low and {normal} normal ones");
    assert!(low > 20 && normal > 2 * low, "{low} low and {normal} normal ones");
}

async fn the_important_ones_go_first_without_wheels(builder: NodeBuilder) {
    the_important_ones_go_first(builder.env("MAINSPRING__WHEEL__ENABLED", "false")).await;
}

on_both!(the_important_ones_go_first, the_important_ones_go_first_without_wheels);

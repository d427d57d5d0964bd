//! The audit, as the store has it: written with what it tells of, kept for its own retention.

use std::time::Duration;

use mainspring::cold::{Actor, AuditFilter, Deed, RetentionStep, acting, carried};
use mainspring::model::queue::Settings;
use mainspring::model::time::UnixMs;
use serde_json::json;

use super::fixture::{Fixture, on_both_stores};

fn actor(name: &str) -> Actor {
    Actor { id: "key_1".into(), name: Some(name.into()), from: None }
}

async fn objects(f: &Fixture) -> Vec<String> {
    let rows = f.store.audited(&AuditFilter::default(), 1000).await.expect("reads");
    rows.into_iter().map(|row| row.object).collect()
}

async fn put(f: &Fixture, name: &str) {
    f.store.put_queue(name, &Settings::default(), None).await.expect("writes");
}

async fn what_somebody_does_is_written_down_and_what_the_node_does_is_not(f: Fixture) {
    put(&f, "node").await;
    assert!(objects(&f).await.is_empty());
    acting(actor("a"), put(&f, "first")).await;
    f.clock.advance(Duration::from_secs(1));
    // In a task of its own, as that of whoever began it.
    let store = f.store.clone();
    acting(actor("b"), async move {
        let task = carried(async move { store.put_queue("second", &Settings::default(), None).await });
        tokio::spawn(task).await.expect("runs").expect("writes");
    })
    .await;
    let rows = f.store.audited(&AuditFilter::default(), 1000).await.expect("reads");
    let told: Vec<_> = rows.iter().map(|row| (row.object.as_str(), row.actor.name.as_deref())).collect();
    assert_eq!(told, [("second", Some("b")), ("first", Some("a"))], "the latest first");
    assert_eq!(
        (rows[1].action.as_str(), rows[1].at, &rows[1].was),
        ("queue.put", UnixMs::new(rows[0].at.get() - 1000), &None)
    );
    // What fails leaves nothing: a queue with a timer is not removed.
    assert!(matches!(f.store.remove_queue("none").await, Ok(mainspring::cold::QueueRemoved::NoSuch)));
    assert_eq!(objects(&f).await.len(), 2);
    // What is too long says so.
    let long = Deed { action: "a.b", object: "long", was: None, became: Some(json!("x".repeat(20_000))) };
    acting(actor("a"), f.store.note_deed(long)).await.expect("writes");
    let rows = f.store.audited(&AuditFilter::default(), 1).await.expect("reads");
    assert_eq!(rows[0].became.as_deref(), Some(r#"{"left_out":"20002 bytes"}"#));
}

async fn the_audit_is_kept_for_its_own_retention(f: Fixture) {
    acting(actor("a"), put(&f, "old")).await;
    f.clock.advance(Duration::from_secs(399 * 86_400));
    acting(actor("a"), put(&f, "new")).await;
    f.store.clean_up(RetentionStep::Audit, f.now()).await.expect("cleans");
    assert_eq!(objects(&f).await, ["new", "old"]);
    assert_eq!(f.store.retention_lag_ms(RetentionStep::Audit, f.now()).await.expect("looks"), 0);
    f.clock.advance(Duration::from_secs(2 * 86_400));
    assert_eq!(f.store.retention_lag_ms(RetentionStep::Audit, f.now()).await.expect("looks"), 86_400_000);
    f.store.clean_up(RetentionStep::Audit, f.now()).await.expect("cleans");
    assert_eq!(objects(&f).await, ["new"]);
}

on_both_stores!(
    what_somebody_does_is_written_down_and_what_the_node_does_is_not,
    the_audit_is_kept_for_its_own_retention,
);

//! `schedule …`, against a running server.

use serde_json::json;

use super::{FAILED, NOT_FOUND, OK, Shell, USAGE};
use crate::support::{Node, Receiver};

#[tokio::test]
async fn a_schedule_is_put_shown_paused_run_and_removed() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    let shell = Shell::of(&node);
    assert_eq!(shell.run("schedule ls").await.code, OK);
    let url = receiver.url("/ok");
    let put = shell
        .run(&format!("schedule put s --daily 09:00 --zone Asia/Shanghai --webhook {url} --label app=shop"))
        .await;
    let put = put.printed();
    assert!(put.starts_with("s: active, daily 09:00, next at 20"), "{put}");
    let one = shell.run("schedule get s --json").await.json();
    assert_eq!((&one["zone"], &one["labels"]), (&json!("Asia/Shanghai"), &json!({"app": "shop"})));
    let text = shell.run("schedule get s").await.printed();
    assert!(text.starts_with("s\n") && text.contains("Asia/Shanghai"), "{text}");
    let next = shell.run("schedule next s --count 3").await.printed();
    assert_eq!(next.lines().filter(|line| line.ends_with("T01:00:00.000Z")).count(), 3, "{next}");
    let upcoming = shell.run("schedule upcoming").await.printed();
    assert!(upcoming.contains("s:20"), "{upcoming}");
    let none = shell.run("schedule skipped s").await;
    assert_eq!((none.code, none.stdout.as_str()), (OK, ""), "{}", none.stderr);
    assert!(shell.run("schedule pause s").await.printed().starts_with("s: paused, daily 09:00"));
    assert_eq!(shell.run("schedule ls --state paused --label app=shop").await.printed().lines().count(), 2);
    let run = shell.run("schedule run s --json").await.json();
    let arrived = receiver.wait_for(1, super::PATIENCE).await;
    assert_eq!(run["id"], json!(arrived[0].timer));
    let made = "schedule backfill s --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z";
    assert_eq!(shell.run(made).await.printed().trim(), "s: 0 made");
    assert!(shell.run("schedule resume s").await.printed().starts_with("s: active"));
    assert_eq!(shell.run("timer ls --schedule s --state scheduled").await.printed().lines().count(), 2);
    assert_eq!(shell.run("schedule rm s").await.printed().trim(), "rm s: removed");
    shell.run("schedule get s").await.refused(NOT_FOUND);
    assert_eq!(shell.run("schedule put s --every soon --webhook http://a/").await.code, USAGE);
    shell.run(&format!("schedule put s --cron 61_9_*_*_* --webhook {url}")).await.refused(FAILED);
}

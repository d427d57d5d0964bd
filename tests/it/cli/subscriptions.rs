//! `subscription …` against a running server.

use serde_json::json;

use super::{CONFLICT, FAILED, NOT_FOUND, OK, Shell};
use crate::support::Node;

#[tokio::test]
async fn one_is_made_shown_listed_and_removed() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    shell.run("destination put log --webhook http://127.0.0.1:9/log").await.printed();
    let none = shell.run("subscription ls").await;
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (OK, "", "nobody subscribes yet\n"));
    let put = "subscription put s --destination log --event timer.dead --event timer.expired --label app=shop \
               --owner me --include-data";
    assert_eq!(shell.run(put).await.printed(), "put s: timer.dead, timer.expired to log\n");
    let shown = shell.run("subscription get s --json").await.json();
    assert_eq!(
        [&shown["filter"], &shown["include_data"], &shown["waiting"]],
        [&json!({"label.app": "shop", "owner": "me"}), &json!(true), &json!(0)]
    );
    let again = shell.run("subscription put s --destination log").await;
    assert_eq!(
        (again.code, again.stdout.as_str(), again.stderr.as_str()),
        (OK, "put s: all events to log\n", "(it took the place of the former one)\n")
    );
    let table = shell.run("subscription ls").await.printed();
    assert!(
        table.lines().any(|row| row.split_whitespace().eq(["s", "log", "0", "all", "events"])),
        "{table}"
    );
    shell.run("destination rm log").await.refused(CONFLICT);
    let refused = shell.run("subscription put s --destination log --event timer.eaten").await;
    assert!(refused.code == FAILED && refused.stderr.contains("/events/0"), "{refused:?}");
    assert_eq!(shell.run("subscription rm s").await.printed(), "rm s: removed\n");
    shell.run("subscription get s").await.refused(NOT_FOUND);
}

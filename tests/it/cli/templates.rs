//! `template …` against a running server.

use serde_json::json;

use super::{CONFLICT, FAILED, NOT_FOUND, OK, Shell};
use crate::support::Node;

#[tokio::test]
async fn one_is_made_used_shown_listed_and_removed() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let none = shell.run("template ls").await;
    assert_eq!(
        (none.code, none.stdout.as_str(), none.stderr.as_str()),
        (OK, "", "there are no templates yet\n")
    );
    let put = r#"template put order --schema {"required":["order"]} --defaults {"kind":"review"}"#;
    assert_eq!(shell.run(put).await.printed(), "put order: version 1\n");
    let shown = shell.run("template get order --json").await.json();
    assert_eq!(
        [&shown["schema"], &shown["defaults"], &shown["version"]],
        [&json!({"required": ["order"]}), &json!({"kind": "review"}), &json!(1)]
    );
    let block = shell.run("template get order").await.printed();
    assert!(block.starts_with("order\n  schema      {\"required\":[\"order\"]}\n"), "{block}");
    let timer = "timer put t --in 1h --webhook http://127.0.0.1:9/ --template order --data";
    shell.run(&format!("{timer} {{\"order\":1}}")).await.printed();
    let kept = shell.run("timer get t --json").await.json();
    assert_eq!((&kept["template"], &kept["data"]), (&json!("order"), &json!({"kind": "review", "order": 1})));
    let refused = shell.run(&format!("{} {{}}", timer.replace(" t ", " u "))).await;
    assert!(refused.code == FAILED && refused.stderr.contains("/data/order"), "{refused:?}");
    let again = shell.run("template put order --schema true").await;
    assert_eq!((again.code, again.stdout.as_str()), (OK, "put order: version 2\n"));
    let table = shell.run("template ls").await.printed();
    assert!(table.lines().any(|row| row.split_whitespace().eq(["order", "2", "true"])), "{table}");
    shell.run("template rm order").await.refused(CONFLICT);
    shell.run("timer cancel t").await.printed();
    assert_eq!(shell.run("template rm order").await.printed(), "rm order: removed\n");
    shell.run("template get order").await.refused(NOT_FOUND);
    let refused = shell.run(r#"template put order --schema {"$ref":"http://a/"}"#).await;
    assert!(refused.code == FAILED && refused.stderr.contains("/schema/$ref"), "{refused:?}");
}

//! `key create|ls|revoke`, on the store itself and by a running server.

use serde_json::json;

use super::{CONFLICT, FAILED, NOT_FOUND, OK, Ran, Shell, USAGE};
use crate::support::{Node, eventually, free_port};

/// The id in what `key create` says of the key that it has printed.
fn id(ran: &Ran) -> String {
    ran.stderr.lines().last().expect("a line").split_whitespace().next().expect("an id").to_owned()
}

#[tokio::test]
async fn the_first_key_is_made_on_the_machine_and_closes_the_server() {
    let shell = Shell::new();
    for verb in ["key ls", "key revoke key_0123456789abcdef"] {
        let said = shell.run(verb).await.refused(NOT_FOUND);
        assert!(said.contains("mainspring.db does not exist"), "{said}");
    }
    assert!(!shell.path().join("mainspring.db").exists(), "looking makes nothing");
    let made = shell.run("key create ops --scope admin --namespace *").await;
    assert_eq!(made.code, OK, "{made:?}");
    let text = made.stdout.trim_end();
    assert!(text.starts_with("mainspring_") && text.lines().count() == 1, "the key alone: {made:?}");
    assert!(made.stderr.contains("made ") && made.stderr.contains("ops: admin, namespace *"), "{made:?}");
    let first = id(&made);
    let row = shell.run("key ls --json").await.json();
    assert_eq!(
        (&row["id"], &row["scopes"], &row["key"]),
        (&json!(first), &json!(["view", "register", "operate", "admin"]), &json!(null))
    );

    let url = format!("sqlite://{}/mainspring.db", shell.path().display());
    let node = Node::builder().cold(&url).start_ready().await;
    assert_eq!(node.api().get("/v1/timers").await.0, 401);
    assert_eq!(node.api().with_key(text).get("/v1/timers").await.0, 200);

    // Beside the running server; it hears of it.
    let second = shell.run("key create shop --scope register --expires-in 90d").await;
    let api = node.api().with_key(second.stdout.trim_end());
    assert_eq!(api.get("/v1/timers").await.0, 200);
    assert_eq!(api.get("/v1/keys").await.0, 404);
    let listed = shell.run("key ls").await.printed();
    assert!(listed.contains("shop") && listed.contains("register") && listed.contains("in 89d"), "{listed}");
    assert_eq!(shell.run(&format!("key revoke {}", id(&second))).await.code, OK);
    eventually("it is refused", super::PATIENCE, async || {
        let (status, body) = api.get("/v1/timers").await;
        if status == 401 { Ok(()) } else { Err(body) }
    })
    .await;
    // On the machine itself the last one goes too, and that is told.
    let last = shell.run(&format!("key revoke {first}")).await;
    assert_eq!(last.code, OK);
    assert!(last.stderr.contains("the last key of the store"), "{last:?}");
    let missing = shell.run(&format!("key revoke {first}")).await.refused(NOT_FOUND);
    assert!(missing.contains(&first), "{missing}");
    // Its server does not become open by that, not even when it has read that there is none: it refuses one that is gone.
    let short = shell.run("key create short --scope view").await;
    let api = node.api().with_key(short.stdout.trim_end());
    assert_eq!(api.get("/v1/timers").await.0, 200);
    assert_eq!(shell.run(&format!("key revoke {}", id(&short))).await.code, OK);
    eventually("it has read that there is none", super::PATIENCE, async || {
        let (status, problem) = api.get("/v1/timers").await;
        if status == 401 { Ok(()) } else { Err(problem) }
    })
    .await;
    assert_eq!(node.api().get("/v1/timers").await.0, 401);
}

#[tokio::test]
async fn keys_are_made_by_a_running_server_too() {
    let node = Node::builder().start_ready().await;
    let open = Shell::of(&node);
    let first = open.run("key create ops --scope admin --namespace *").await;
    assert_eq!(first.code, OK, "{first:?}");
    let said = open.run("key ls").await.refused(FAILED);
    assert!(said.contains("Unauthorized"), "{said}");
    let shell = Shell::of(&node).env("MAINSPRING_API_KEY", first.stdout.trim_end());
    let made = shell.run("key create shop --scope view --json").await.json();
    let second = made["id"].as_str().expect("an id");
    assert!(made["key"].as_str().is_some_and(|key| key.starts_with("mainspring_")));
    assert_eq!(shell.run("key ls --json").await.printed().lines().count(), 2);
    assert_eq!(shell.run(&format!("key revoke {second}")).await.printed(), format!("rm {second}: removed\n"));
    let said = shell.run(&format!("key revoke {}", id(&first))).await.refused(CONFLICT);
    assert!(said.contains("the last key with the scope `admin`"), "{said}");
    let said = shell.run(&format!("key revoke {second}")).await.refused(NOT_FOUND);
    assert!(said.contains(second), "{said}");
    let said = shell.run("key create a --scope view --namespace nowhere").await.refused(FAILED);
    assert!(said.contains("there is no namespace of this name"), "{said}");
}

#[tokio::test]
async fn a_server_without_keys_listens_on_loopback_only_and_says_how_to_make_one() {
    let listen = format!("0.0.0.0:{}", free_port());
    let shell = Shell::new().env("MAINSPRING__SERVER__LISTEN", &listen);
    let doctor = shell.run("doctor --json").await;
    assert_eq!(doctor.code, FAILED);
    assert!(doctor.stdout.contains(r#""check":"keys","result":"fail""#), "{doctor:?}");
    let refused = shell.run("serve").await;
    assert_eq!(refused.code, USAGE, "{refused:?}");
    let last = refused.stderr.lines().last().expect("a line");
    assert!(last.contains("`server.listen`") && last.contains("mainspring key create"), "{last}");
    let said = shell.run("key create a --scope view --namespace nowhere").await.refused(USAGE);
    assert!(said.contains("--namespace nowhere"), "{said}");
}

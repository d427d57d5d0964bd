//! How any verb is called: usage, the way to the server, and who reads the output.

use super::{FAILED, OK, Shell, UNAVAILABLE, USAGE};
use crate::support::{Node, free_port};

#[tokio::test]
async fn a_command_line_that_is_not_understood_is_usage() {
    let shell = Shell::new();
    for line in [
        "",
        "srve",
        "timer get",
        "timer get a --colour",
        "timer put a --in soon --webhook http://a/",
        "timer put a --in 1h --at 2099-01-01T00:00:00Z --webhook http://a/",
        "timer get a --server nonsense",
        "timer put a --in 1h --webhook http://a/ --data {",
        "timer ls --state asleep",
        "receive --listen 0.0.0.0:0",
    ] {
        let ran = shell.run(line).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (USAGE, ""), "{line}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{line}");
    }
}

#[tokio::test]
async fn help_and_version_are_data() {
    let shell = Shell::new();
    assert!(shell.run("--help").await.printed().contains("Exit codes: 0 ok"));
    assert!(shell.run("timer put --help").await.printed().contains("--webhook"));
    assert_eq!(shell.run("--version").await.printed(), format!("mainspring {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_named() {
    let server = format!("http://127.0.0.1:{}", free_port());
    let shell = Shell::new().env("MAINSPRING_SERVER", "http://127.0.0.1:1");
    for verb in ["get a", "ls", "cancel a", "put a --in 1h --webhook http://a/"] {
        let said = shell.run(&format!("timer {verb} --server {server} --json")).await.refused(UNAVAILABLE);
        assert!(said.contains(&server), "the flag goes over the environment: {said}");
    }
}

#[tokio::test]
async fn a_database_that_is_away_is_unavailable() {
    let url = format!("postgres://me:open-sesame@127.0.0.1:{}/x", free_port());
    let said = Shell::new().env("MAINSPRING__COLD__URL", url).run("verify").await.refused(UNAVAILABLE);
    assert!(!said.contains("open-sesame"), "{said}");
}

#[tokio::test]
async fn a_key_comes_from_the_environment_or_a_file_and_is_never_shown() {
    let key = "0123456789abcdef";
    let node = Node::builder().env("MAINSPRING__SERVER__API_KEYS", key).start_ready().await;
    Shell::of(&node).run("timer ls").await.refused(FAILED);
    assert_eq!(Shell::of(&node).env("MAINSPRING_API_KEY", key).run("timer ls").await.code, OK);
    let shell = Shell::of(&node).env("MAINSPRING_API_KEY", "another-key-altogether");
    let said = shell.run("timer ls").await.refused(FAILED);
    assert!(!said.contains("another-key"), "{said}");
    std::fs::write(shell.path().join("key"), format!("{key}\n")).expect("writes");
    assert_eq!(shell.run("timer ls --key-file key").await.code, OK, "the flag goes over the environment");
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_failure() {
    let ran = Shell::new().run_unread("config show").await;
    assert_eq!((ran.code, ran.stderr.as_str()), (OK, ""), "{ran:?}");
}

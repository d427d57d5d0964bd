//! `config`, `doctor`, and `serve` with settings that do not fit.

use serde_json::{Value, json};

use super::{FAILED, OK, Ran, Shell, USAGE};
use crate::support::{Node, free_port};

#[tokio::test]
async fn settings_that_do_not_fit_are_usage_and_name_their_key() {
    let shell = Shell::new();
    for (set, named) in [
        ("shards=0", "`shards`"),
        ("lease=3", "`lease`"),
        ("server.listn=127.0.0.1:1", "listn"),
        ("cold.url=mysql://x", "`cold.url`"),
        ("nonsense", "--set nonsense"),
    ] {
        for verb in ["serve", "config check", "config show", "verify", "migrate up"] {
            let said = shell.run(&format!("{verb} --set {set}")).await.refused(USAGE);
            assert!(said.contains(named), "{verb} {set}: {said}");
        }
    }
    let said = shell.run("config check --config nowhere.toml").await.refused(USAGE);
    assert!(said.contains("nowhere.toml"), "{said}");
}

#[tokio::test]
async fn config_check_is_ok_with_settings_that_fit() {
    let shell = Shell::new();
    assert_eq!(shell.run("config check").await.printed(), "ok\n");
    assert_eq!(shell.run("config check --json").await.json(), json!({"ok": true}));
}

#[tokio::test]
async fn config_show_prints_what_is_in_force_and_no_secret() {
    let shell = Shell::new()
        .env("MAINSPRING__LEASE", "PT7S")
        .env("MAINSPRING__SHARDS", "16")
        .env("MAINSPRING__SERVER__API_KEYS", "0123456789abcdef")
        .env("MAINSPRING__COLD__URL", "postgres://me:open-sesame@db/x");
    std::fs::write(shell.path().join("config.toml"), "shards = 8\nlease = \"PT5S\"\n[node]\nname = \"n1\"\n")
        .expect("writes");
    let shown = shell.run("config show --json --set shards=32").await.json();
    assert_eq!(
        (&shown["node"]["name"], &shown["lease"], &shown["shards"]),
        (&"n1".into(), &"PT7S".into(), &32.into()),
        "the file, over it the environment, over that the flags"
    );
    assert_eq!(shown["cold"]["url"], "postgres://me:hidden@db/x");
    let text = shell.run("config show").await.printed();
    assert!(!text.contains("0123456789abcdef") && !text.contains("open-sesame"), "{text}");
}

#[tokio::test]
async fn what_config_show_prints_is_a_settings_file() {
    let shell = Shell::new();
    let shown = shell.run("config show --set wheel.lead=PT0.02S --set log.format=json").await.printed();
    std::fs::write(shell.path().join("shown.toml"), &shown).expect("writes");
    assert_eq!(shell.run("config show --config shown.toml").await.printed(), shown);
}

fn checks(ran: &Ran) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let check = |line| serde_json::from_str::<Value>(line).expect("a JSON object a line");
    let pair = |check: Value| (text(&check["check"]), text(&check["result"]));
    ran.stdout.lines().map(|line| pair(check(line))).collect()
}

#[tokio::test]
async fn doctor_finds_a_running_server_well() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::new()
        .env("MAINSPRING__COLD__URL", format!("sqlite://{}/mainspring.db", node.dir().display()))
        .env("MAINSPRING__SERVER__LISTEN", node.base().trim_start_matches("http://"));
    let ran = shell.run("doctor --json").await;
    assert_eq!((ran.code, ran.stderr.as_str()), (OK, ""), "{ran:?}");
    let names = [
        "settings", "files", "store", "clock", "schema", "shards", "keys", "ledger", "flush", "wheels",
        "exposure", "server",
    ];
    assert_eq!(checks(&ran), names.map(|name| (name.to_owned(), "ok".to_owned())));
    let text = shell.run("doctor").await.printed();
    assert!(text.lines().all(|line| line.starts_with("ok    ")), "{text}");

    let other = shell.run("doctor --json --set shards=8").await;
    let failed: Vec<_> = checks(&other).into_iter().filter(|(_, result)| result == "fail").collect();
    assert_eq!((other.code, failed), (FAILED, vec![("shards".to_owned(), "fail".to_owned())]));
    assert!(other.stdout.contains("set `shards = 64`"), "with its cure: {}", other.stdout);
}

/// `serve` raises its limit on open files to the highest that it may have, and tells how it is shared.
#[tokio::test]
async fn open_files_that_do_not_suffice_are_told_and_shared() {
    let node = Node::builder().open_files(200, 1000).start_ready().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.pid())).expect("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    assert_eq!(files.split_whitespace().filter(|word| *word == "1000").count(), 2, "{files}");
    assert!(node.log().contains("1000 open files at most: 301 connections of clients, 603 to receivers"));
    assert!(
        node.log().contains("the settings want 12384: raise `LimitNOFILE` of the unit"),
        "{}",
        node.log()
    );
    assert_eq!(node.api().metric("mainspring_connections_max").await, 301.0);

    let shell = Shell::new().env("MAINSPRING__SERVER__MAX_CONNECTIONS", "100000000");
    let ran = shell.run("doctor --only files --json").await;
    assert_eq!((ran.code, checks(&ran)), (OK, vec![("files".to_owned(), "warn".to_owned())]));
    assert!(ran.stdout.contains("the settings want 300000096: raise `LimitNOFILE`"), "{}", ran.stdout);
    let few = shell.run("doctor --only files --set server.max_connections=100").await.printed();
    assert!(few.starts_with("ok    files     "), "{few}");
}

#[tokio::test]
async fn doctor_tells_what_is_to_be_set_before_a_server_leaves_loopback() {
    let shell = Shell::new().env("MAINSPRING__SERVER__LISTEN", "0.0.0.0:7600");
    let ran = shell.run("doctor --only exposure --json").await;
    let results: Vec<String> = checks(&ran).into_iter().map(|(_, result)| result).collect();
    assert_eq!(
        (ran.code, results),
        (OK, ["warn", "warn", "ok", "ok", "ok", "ok"].map(str::to_owned).to_vec()),
        "{ran:?}"
    );
    assert!(
        ran.stdout.contains("server.tls_certificate") && ran.stdout.contains("SECRETS_KEY_FILE"),
        "{}",
        ran.stdout
    );
    let here = Shell::new().run("doctor --only exposure").await.printed();
    assert!(here.starts_with("ok    exposure  the server answers this machine only"), "{here}");
}

#[tokio::test]
async fn doctor_of_the_server_alone_is_a_health_check() {
    let node = Node::builder().start_ready().await;
    // Settings of the server's machine that the check has no use for.
    let shell = Shell::new()
        .env("MAINSPRING__COLD__URL", "postgres://nobody@127.0.0.1:9/none")
        .env("MAINSPRING__SERVER__LISTEN", node.base().trim_start_matches("http://"));
    let health = "doctor --only server --json";
    assert_eq!(checks(&shell.run(health).await), [("server".to_owned(), "ok".to_owned())]);
    let names: Vec<String> = checks(&shell.run("doctor --only settings,server --json").await)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["settings", "server"]);
    node.kill9().await;
    let ran = shell.run(health).await;
    assert_eq!((ran.code, checks(&ran)), (FAILED, vec![("server".to_owned(), "fail".to_owned())]));
    let ran = shell.run("doctor --only settings,server --json").await;
    assert_eq!(ran.code, OK, "a server that is not started yet fails nothing else: {ran:?}");
}

#[tokio::test]
async fn doctor_before_the_first_start_warns_and_makes_nothing() {
    let shell = Shell::new().env("MAINSPRING__SERVER__LISTEN", format!("127.0.0.1:{}", free_port()));
    let ran = shell.run("doctor --json").await;
    assert_eq!(ran.code, OK, "{ran:?}");
    let warned: Vec<_> = checks(&ran).into_iter().filter(|(_, result)| result != "ok").collect();
    let warn = |check: &str| (check.to_owned(), "warn".to_owned());
    assert_eq!(warned, [warn("store"), warn("server")], "{ran:?}");
    assert!(!shell.path().join("mainspring.db").exists());
}

#[tokio::test]
async fn doctor_shows_settings_that_do_not_fit_as_a_failed_check() {
    let ran = Shell::new().run("doctor --json --set lease=3").await;
    assert_eq!((ran.code, checks(&ran)), (USAGE, vec![("settings".to_owned(), "fail".to_owned())]));
    assert!(ran.stdout.contains("`lease`"), "{}", ran.stdout);
}

//! Stores that are reached by TLS: each is who it should be, or nothing is sent there, and the reason is told.

use serde_json::{Value, json};

use super::LONG;
use crate::support::{Authority, Keeps, Node, Postgres, Redis, ask_sql, eventually, free_port, to};

/// What `doctor` says of one thing: the result, and all of it.
async fn doctor(only: &str, env: &[(&str, &str)]) -> (String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.args(["doctor", "--json", "--only", only]).current_dir(dir.path()).env_clear();
    command.envs(env.iter().copied()).stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("runs").expect("runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let first: Value = serde_json::from_str(text.lines().next().expect("a check")).expect("a check a line");
    (first["result"].as_str().expect("a word").to_owned(), text)
}

/// Certificates that a client must not take for `localhost`: the name of its files, and words of the reason.
const WRONG: [(&str, &str); 3] =
    [("other", "not valid for name"), ("expired", "expired"), ("stranger", "UnknownIssuer")];

fn authority() -> Authority {
    let authority = Authority::new();
    authority.sign("right", &["localhost"], false);
    authority.sign("other", &["other.example"], false);
    authority.sign("expired", &["localhost"], true);
    let stranger = Authority::new();
    stranger.sign("stranger", &["localhost"], false);
    for file in ["stranger.pem", "stranger.key"] {
        std::fs::copy(stranger.path(file), authority.path(file)).expect("copied");
    }
    authority
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_is_who_its_certificate_says_or_is_not_spoken_to() {
    let (authority, server) = (authority(), Postgres::start().await);
    let plain = server.create_database().await;
    let pair = |name: &str| (authority.text(&format!("{name}.pem")), authority.text(&format!("{name}.key")));
    let url = format!(
        "{}?sslmode=verify-full&sslrootcert={}",
        plain.replace("127.0.0.1", "localhost"),
        authority.path("ca.pem").display()
    );
    let (result, all) = doctor("store", &[("MAINSPRING__COLD__URL", &url)]).await;
    assert!(result == "fail" && all.contains("TLS"), "one that does not speak it: {all}");
    for (name, words) in WRONG {
        let (certificate, key) = pair(name);
        server.encrypt(&certificate, &key).await;
        eventually("it is refused", LONG, async || {
            let (result, all) = doctor("store", &[("MAINSPRING__COLD__URL", &url)]).await;
            if result == "fail" && all.contains(words) { Ok(()) } else { Err(format!("{words}: {all}")) }
        })
        .await;
    }
    let (certificate, key) = pair("right");
    server.encrypt(&certificate, &key).await;
    eventually("it is taken", LONG, async || {
        let (result, all) = doctor("store", &[("MAINSPRING__COLD__URL", &url)]).await;
        if result == "ok" { Ok(()) } else { Err(all) }
    })
    .await;
    let node = Node::builder().cold(&url).hot("memory://").start_ready().await;
    let timer = json!({"delay": "PT1H", "target": to("http://127.0.0.1:9/x")});
    assert_eq!(node.api().put("t", &timer).await.0, 201);
    let clear = "SELECT count(*)::text FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE application_name = 'mainspring' AND NOT ssl";
    assert_eq!(ask_sql(&plain, clear).await, "0", "every connection of the node is encrypted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_is_who_its_certificate_says_or_is_not_spoken_to() {
    let authority = authority();
    let ca = authority.path("ca.pem").display().to_string();
    let redis = async |name: &str| {
        let port = free_port();
        let file = |ending: &str| authority.path(&format!("{name}.{ending}")).display().to_string();
        let options = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &file("pem"),
            "--tls-key-file",
            &file("key"),
            "--tls-auth-clients",
            "no",
            "--user",
            "shop",
            "on",
            ">t0p/secret",
            "~*",
            "&*",
            "+@all",
        ];
        let server = Redis::private_with(Keeps::Snapshots, options.map(str::to_owned).to_vec()).await;
        (server, format!("rediss://shop:t0p%2Fsecret@localhost:{port}"))
    };
    for (name, words) in WRONG {
        let (_server, url) = redis(name).await;
        let (result, all) = doctor("wheels", &[("MAINSPRING__HOT__URL", &url), ("SSL_CERT_FILE", &ca)]).await;
        assert!(result == "warn" && all.contains(words), "{words}: {all}");
        assert!(!all.contains("t0p"), "{all}");
    }
    let (server, url) = redis("right").await;
    let (result, all) = doctor("wheels", &[("MAINSPRING__HOT__URL", &url), ("SSL_CERT_FILE", &ca)]).await;
    assert_eq!(result, "ok", "{all}");
    let node = Node::builder().hot(&url).env("SSL_CERT_FILE", &ca).start_ready().await;
    let (status, ready) = node.api().get("/readyz").await;
    assert_eq!((status, &ready["status"]), (200, &json!("ok")), "{ready}");
    let timer = json!({"delay": "PT30S", "target": to("http://127.0.0.1:9/x")});
    assert_eq!(node.api().put("t", &timer).await.0, 201);
    let keys = server.cli(&["DBSIZE"]).await;
    assert_ne!(keys.trim(), "0", "its wheels are there");
}

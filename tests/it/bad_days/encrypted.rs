//! Stores that are reached by TLS: each is who it should be, or nothing is sent there, and the reason is told.

use serde_json::{Value, json};

use super::LONG;
use crate::support::{Authority, Cluster, Keeps, Node, Postgres, Redis, ask_sql, eventually, free_port, to};

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

/// Options of a Redis that speaks TLS on this port, with the certificate of this name.
fn tls_options(authority: &Authority, name: &str, port: u16) -> Vec<String> {
    let file = |ending: &str| authority.path(&format!("{name}.{ending}")).display().to_string();
    let (port, pem, key) = (port.to_string(), file("pem"), file("key"));
    let options = [
        ["--tls-port", &port],
        ["--tls-cert-file", &pem],
        ["--tls-key-file", &key],
        ["--tls-auth-clients", "no"],
    ];
    options.concat().into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_of_a_cluster_are_who_their_certificates_say() {
    let authority = Authority::new();
    // A cluster names its nodes by their addresses.
    authority.sign("right", &["localhost", "127.0.0.1"], false);
    authority.sign("other", &["localhost"], false);
    let ca = authority.path("ca.pem").display().to_string();
    let cluster = async |last: &str| {
        let ports = [free_port(), free_port(), free_port()];
        let options = [(ports[0], "right"), (ports[1], "right"), (ports[2], last)];
        // Without `tls-cluster` it would name the ports without TLS.
        let bus = ["--tls-cluster", "yes", "--tls-ca-cert-file", &ca].map(str::to_owned);
        let options =
            options.map(|(port, name)| [tls_options(&authority, name, port), bus.to_vec()].concat());
        let cluster = Cluster::of(options).await;
        (cluster, format!("rediss+cluster://127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]))
    };
    let (right, url) = cluster("right").await;
    let (result, all) = doctor("wheels", &[("MAINSPRING__HOT__URL", &url), ("SSL_CERT_FILE", &ca)]).await;
    assert_eq!(result, "ok", "{all}");
    let node = Node::builder().hot(&url).env("SSL_CERT_FILE", &ca).start_ready().await;
    for n in 0..20 {
        let timer = json!({"delay": "PT30S", "owner": format!("o{n}"), "target": to("http://127.0.0.1:9/x")});
        assert_eq!(node.api().put(&format!("t{n}"), &timer).await.0, 201);
    }
    eventually("each master has wheels", LONG, async || {
        for master in &right.masters {
            if master.cli(&["DBSIZE"]).await.trim() == "0" {
                return Err(master.port());
            }
        }
        Ok(())
    })
    .await;
    // One whose certificate is of another name is not spoken to, though the first two are right.
    let (_wrong, url) = cluster("other").await;
    let (result, all) = doctor("wheels", &[("MAINSPRING__HOT__URL", &url), ("SSL_CERT_FILE", &ca)]).await;
    assert!(result == "warn" && all.contains("not valid for name"), "{all}");
    let (result, all) = doctor("wheels", &[("MAINSPRING__HOT__URL", &url)]).await;
    assert!(result == "warn" && all.contains("UnknownIssuer"), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_is_who_its_certificate_says_or_is_not_spoken_to() {
    let authority = authority();
    let ca = authority.path("ca.pem").display().to_string();
    let redis = async |name: &str| {
        let port = free_port();
        let user = ["--user", "shop", "on", ">t0p/secret", "~*", "&*", "+@all"].map(str::to_owned);
        let options = [tls_options(&authority, name, port), user.to_vec()].concat();
        let server = Redis::private_with(Keeps::Snapshots, options).await;
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

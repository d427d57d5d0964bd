//! A start that cannot work says what is wrong, names the setting, and ends with the right code.

use std::net::TcpListener;

use super::refused;
use crate::support::{Node, free_port};

#[tokio::test]
async fn a_taken_port_is_named_with_its_setting() {
    let dir = tempfile::tempdir().expect("a directory");
    let taken = TcpListener::bind(("127.0.0.1", free_port())).expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, said) = refused(dir.path(), &[("MAINSPRING__SERVER__LISTEN", &address)]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("server.listen") && said.contains(&address), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one clear line: {said}");
    let files = std::fs::read_dir(dir.path()).expect("readable").count();
    assert_eq!(files, 1, "nothing was made but the log");
}

#[tokio::test]
async fn an_unknown_key_is_refused_by_name_wherever_it_stands() {
    for (file, env, named) in [
        ("[server]\nlistn = \"127.0.0.1:1\"\n", &[][..], "listn"),
        ("shard = 8\n", &[], "shard"),
        ("[sever]\nlisten = \"127.0.0.1:1\"\n", &[], "sever"),
        ("", &[("MAINSPRING__SERVER__LISTN", "127.0.0.1:1")], "listn"),
        ("", &[("MAINSPRING__COLOUR", "red")], "colour"),
        ("", &[("MAINSPRING__NODE__NAME_FILE", "/nonexistent/name")], "MAINSPRING__NODE__NAME_FILE"),
        ("shards = \"many\"\n", &[], "shards"),
        ("lease = \"3\"\n", &[], "lease"),
        ("this is no TOML", &[], "config.toml"),
        ("", &[("MAINSPRING__HOT__URL", "memcached://localhost")], "hot.url"),
        ("", &[("MAINSPRING__COLD__URL", "mysql://localhost/x")], "cold.url"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("config.toml"), file).expect("writes");
        let (code, said) = refused(dir.path(), env).await;
        assert_eq!(code, Some(2), "{file} {env:?}: {said}");
        assert!(said.contains(named), "{file} {env:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "one clear line: {said}");
        assert!(!dir.path().join("mainspring.db").exists(), "settings are checked before anything is made");
    }
}

#[tokio::test]
async fn the_settings_of_a_store_that_was_made_with_others_are_refused() {
    let node = Node::builder().start_ready().await;
    let (status, _) = node.sigterm().await;
    assert!(status.success());
    let url = format!("sqlite://{}/mainspring.db", node.dir().display());
    for (name, value, named) in
        [("MAINSPRING__SHARDS", "8", "shards"), ("MAINSPRING__NAMESPACE", "b", "namespace")]
    {
        let dir = tempfile::tempdir().expect("a directory");
        let (code, said) = refused(dir.path(), &[("MAINSPRING__COLD__URL", &url), (name, value)]).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&format!("`{named}` is {value}")), "{said}");
    }
}

//! Streams of Redis.

use std::path::PathBuf;

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{Certificate, LONG, PLAIN, RIGHT, TestBroker, Via, conforms, made, put, refused, test, url};
use crate::support::{Keeps, Node, Redis, eventually, free_port};

const STREAM: &str = "shop:viewings";

/// A Redis of the test's own: one is started in no time.
struct Stream {
    redis: Redis,
    tls_port: u16,
    certificate: Certificate,
}

impl TestBroker for Stream {
    const KIND: &'static str = "redis_stream";
    const NOT_LET_IN: &'static str = "does not let this node in";

    async fn any() -> Self {
        Self::own().await
    }

    async fn own() -> Self {
        let (certificate, tls_port) = (Certificate::new(), free_port());
        let text = |path: PathBuf| path.to_str().expect("text").to_owned();
        let port = tls_port.to_string();
        let options = [
            ["--tls-port", &port],
            ["--tls-cert-file", &text(certificate.path())],
            ["--tls-key-file", &text(certificate.key())],
            ["--tls-auth-clients", "no"],
        ];
        let user = ["--user", "shop", "on", ">t0p/secret", "~*", "+@all"];
        let options = options.iter().flatten().chain(&user).map(|&option| option.to_owned()).collect();
        let redis = Redis::private_with(Keeps::Writes, options).await;
        Self { redis, tls_port, certificate }
    }

    fn place(&self, via: &Via) -> Value {
        let port = if via.tls { self.tls_port } else { self.redis.port() };
        json!({"redis_stream": {"url": url("redis", via, port), "stream": STREAM}})
    }

    /// The entries as redis-cli reads them; `entry` is the id of each.
    async fn arrived(&mut self) -> Vec<Value> {
        let text = self.redis.cli(&["XRANGE", STREAM, "-", "+"]).await;
        let mut entries = Vec::new();
        let mut lines = text.lines().peekable();
        while let Some(id) = lines.next().filter(|id| !id.is_empty()) {
            let mut fields = serde_json::Map::from_iter([("entry".to_owned(), json!(id))]);
            // The next entry begins with its id: digits, a dash, digits.
            let is_id = |line: &str| {
                line.split_once('-').is_some_and(|(a, b)| {
                    a.len() == 13 && a.parse::<u64>().is_ok() && b.parse::<u64>().is_ok()
                })
            };
            while lines.peek().is_some_and(|line| !is_id(line)) {
                let name = lines.next().expect("a name").to_owned();
                fields.insert(name, json!(lines.next().expect("a value")));
            }
            entries.push(Value::Object(fields));
        }
        entries
    }

    fn certificate(&self) -> PathBuf {
        self.certificate.path()
    }

    async fn kill(&self) {
        self.redis.kill().await;
    }

    async fn start_again(&mut self) {
        self.redis.start_again().await;
    }

    fn freeze(&self) {
        self.redis.stop_process();
    }

    fn thaw(&self) {
        self.redis.continue_process();
    }
}

conforms!(Stream);

#[tokio::test]
async fn what_redis_refuses_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, broker) = (node.api(), Stream::own().await);
    let redis = &broker.redis;
    put(&api, "a", &broker.place(&PLAIN)).await;
    redis.cli(&["SET", STREAM, "x"]).await;
    refused(&api, "a", "failed", "something else than a stream").await;
    redis.cli(&["DEL", STREAM]).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    refused(&api, "a", "failed", "maxmemory").await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    redis.cli(&["ACL", "SETUSER", "shop", "-xadd"]).await;
    refused(&api, "a", "failed", "may not XADD").await;
    let mut other = broker.place(&PLAIN);
    other["redis_stream"]["url"] = json!(format!("redis://{RIGHT}@127.0.0.1:{}/99", redis.port()));
    put(&api, "a", &other).await;
    refused(&api, "a", "refused", "does not let this node in").await;
    redis.cli(&["CONFIG", "SET", "requirepass", "t0p-other"]).await;
    other["redis_stream"]["url"] = json!(redis.url());
    put(&api, "a", &other).await;
    refused(&api, "a", "refused", "NOAUTH").await;
}

#[tokio::test]
async fn a_stream_is_trimmed_only_where_it_is_asked_for() {
    let node = Node::builder().start_ready().await;
    let (api, redis) = (node.api(), Redis::private().await);
    redis.cli(&["CONFIG", "SET", "stream-node-max-entries", "10"]).await;
    for (name, max_len, least, most) in [("all", None, 60, 60), ("some", Some(20), 20, 30)] {
        let place = json!({"redis_stream": {"url": redis.url(), "stream": name, "max_len": max_len}});
        assert_eq!(made(&api, name, &place).await["redis_stream"]["max_len"], json!(max_len));
        for _ in 0..60 {
            let tried = test(&api, name).await;
            assert_eq!(tried["result"], "ok");
            assert!(
                tried["reply"].as_str().is_some_and(|id| id.contains('-')),
                "the id of the entry: {tried}"
            );
        }
        let len: usize = redis.cli(&["XLEN", name]).await.parse().expect("a number");
        assert!((least..=most).contains(&len), "{name}: {len}");
    }
    let clients = redis.cli(&["CLIENT", "LIST"]).await;
    let senders = clients.lines().filter(|line| line.contains("cmd=xadd")).count();
    assert_eq!(senders, 2, "one connection each: {clients}");
}

/// A thousand destinations, and files for fewer connections: those that have nothing to do make room, and everything arrives.
#[tokio::test]
async fn a_thousand_destinations_share_the_files_of_a_node() {
    const DESTINATIONS: u64 = 1000;
    const FILES: u64 = 512;
    let node = Node::builder().open_files(FILES, FILES).start_ready().await;
    let (api, redis) = (node.api(), Redis::private().await);
    let make = async |n: u64| {
        let place = json!({"redis_stream": {"url": redis.url(), "stream": format!("s{n}")}});
        made(&api, &format!("d{n}"), &place).await;
    };
    stream::iter(0..DESTINATIONS).map(make).buffer_unordered(8).collect::<Vec<()>>().await;
    let timers = |round: u64| {
        let timer = |n| json!({"id": format!("t{round}-{n}"), "delay": "PT1S", "target": {"destination": format!("d{n}")}});
        json!({"timers": (0..DESTINATIONS).map(timer).collect::<Vec<_>>()})
    };
    for round in 1..=2 {
        assert_eq!(api.post("/v1/timers/batch", &timers(round)).await.0, 200);
        let mut most = 0_u64;
        eventually("all are delivered", LONG, async || {
            let clients = redis.cli(&["CLIENT", "LIST"]).await;
            most = most.max(clients.lines().filter(|line| line.contains("cmd=xadd")).count() as u64);
            let delivered = api.ledger().await.delivered;
            if delivered == round * DESTINATIONS { Ok(()) } else { Err(format!("{delivered}")) }
        })
        .await;
        assert!((1..FILES).contains(&most), "{most} connections");
    }
    for n in [0, 499, 999] {
        assert_eq!(redis.cli(&["XLEN", &format!("s{n}")]).await, "2");
    }
}

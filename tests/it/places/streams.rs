//! Destinations that are streams of Redis: what arrives, what is refused, and what happens when Redis goes.

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, call, get, made, now, put};
use crate::support::{
    Api, Keeps, Node, NodeBuilder, Receiver, Redis, ask_sql, eventually, fresh_database, in_state, on_both,
};

/// The entries of a stream as redis-cli reads them: the fields of each.
async fn entries(redis: &Redis, stream: &str) -> Vec<Value> {
    let text = redis.cli(&["XRANGE", stream, "-", "+"]).await;
    let mut entries = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(id) = lines.next().filter(|id| !id.is_empty()) {
        let mut fields = serde_json::Map::from_iter([("entry".to_owned(), json!(id))]);
        // The next entry begins with its id: digits, a dash, digits.
        let is_id = |line: &str| {
            line.split_once('-')
                .is_some_and(|(a, b)| a.len() == 13 && a.parse::<u64>().is_ok() && b.parse::<u64>().is_ok())
        };
        while lines.peek().is_some_and(|line| !is_id(line)) {
            let name = lines.next().expect("a name").to_owned();
            fields.insert(name, json!(lines.next().expect("a value")));
        }
        entries.push(Value::Object(fields));
    }
    entries
}

fn stream(redis: &Redis) -> Value {
    json!({"redis_stream": {"url": redis.url(), "stream": "shop:viewings"}})
}

async fn test(api: &Api, name: &str) -> Value {
    let answer = call(api, Method::POST, name, "/test", None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body
}

async fn firings_are_entries(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, redis) = (node.api(), Redis::private().await);
    made(&api, "viewings", &stream(&redis)).await;
    let tried = test(&api, "viewings").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    let timer = json!({"delay": "PT0S", "target": {"destination": "viewings"}, "data": {"house": "a ü\n\"b\""}, "owner": "user:1"});
    assert_eq!(api.put("one", &timer).await.0, 201);
    let one = in_state(&api, "one", "delivered").await;
    let got = entries(&redis, "shop:viewings").await;
    assert_eq!(got.len(), 2, "{got:?}");
    let (first, second) = (&got[0], &got[1]);
    assert_eq!((&first["type"], &first["subject"]), (&json!("mainspring.test.v1"), &json!("viewings")));
    assert_eq!((&first["id"], &first["entry"]), (&tried["delivery_id"], &tried["reply"]));
    for (field, value) in [
        ("specversion", "1.0"),
        ("type", "mainspring.timer.fired.v1"),
        ("source", "/mainspring/default"),
        ("subject", "one"),
        ("dueat", one["due_at"].as_str().expect("a time")),
        ("attempt", "1"),
        ("generation", "1"),
        ("datacontenttype", "application/json"),
    ] {
        assert_eq!(second[field], value, "{field}: {second}");
    }
    let data: Value = serde_json::from_str(second["data"].as_str().expect("a text")).expect("JSON");
    assert_eq!(data, timer["data"]);
    let (_, attempts) = api.get("/v1/timers/one/attempts").await;
    assert_eq!(attempts["items"][0]["delivery_id"], second["id"]);

    // Many at once, each one time.
    let timers: Vec<Value> = (0..500)
        .map(|n| {
            let mut timer = now("viewings");
            timer["id"] = json!(format!("m{n}"));
            timer
        })
        .collect();
    let (status, _) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
    assert_eq!(status, 200);
    eventually("all are delivered", LONG, async || {
        if api.ledger().await.delivered == 501 { Ok(()) } else { Err("not yet") }
    })
    .await;
    let got = entries(&redis, "shop:viewings").await;
    let subjects: std::collections::BTreeSet<_> = got.iter().map(|one| one["subject"].to_string()).collect();
    assert_eq!((got.len(), subjects.len()), (502, 502));
    let clients = redis.cli(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.lines().filter(|line| line.contains("cmd=xadd")).count(), 1, "{clients}");
}

#[tokio::test]
async fn what_redis_refuses_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, redis) = (node.api(), Redis::private().await);
    let at = |url: String| json!({"redis_stream": {"url": url, "stream": "shop:viewings"}});
    let port = redis.port();
    put(&api, "a", &at(redis.url())).await;
    let refused = async |result: &str, words: &str| {
        let tried = test(&api, "a").await;
        assert_eq!(tried["result"], result, "{tried}");
        assert!(tried["detail"].as_str().expect("a text").contains(words), "{words}: {tried}");
        assert!(!tried.to_string().contains("t0p"), "{tried}");
    };
    redis.cli(&["SET", "shop:viewings", "x"]).await;
    refused("failed", "something else than a stream").await;
    redis.cli(&["DEL", "shop:viewings"]).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    refused("failed", "maxmemory").await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    redis.cli(&["ACL", "SETUSER", "shop", "on", ">t0p-right", "~*", "+@all", "-xadd"]).await;
    put(&api, "a", &at(format!("redis://shop:t0p-right@127.0.0.1:{port}"))).await;
    refused("failed", "may not XADD").await;
    put(&api, "a", &at(format!("redis://shop:t0p-wrong@127.0.0.1:{port}"))).await;
    refused("refused", "does not let this node in").await;
    put(&api, "a", &at(format!("redis://127.0.0.1:{port}/99"))).await;
    refused("refused", "does not let this node in").await;
    put(&api, "a", &at("redis://127.0.0.1:9".into())).await;
    refused("refused", "no connection").await;
    redis.cli(&["CONFIG", "SET", "requirepass", "t0p-other"]).await;
    put(&api, "a", &at(redis.url())).await;
    refused("refused", "NOAUTH").await;
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
            assert_eq!(test(&api, name).await["result"], "ok");
        }
        let len: usize = redis.cli(&["XLEN", name]).await.parse().expect("a number");
        assert!((least..=most).contains(&len), "{name}: {len}");
    }
}

/// Killed and frozen with attempts under way: everything arrives, nothing is told to have arrived that has not, and other
/// destinations go on.
#[tokio::test]
async fn a_redis_that_goes_and_comes_back_loses_nothing() {
    let node = Node::builder().start_ready().await;
    let (api, mut redis, receiver) =
        (node.api(), Redis::private_keeping(Keeps::Writes).await, Receiver::start().await);
    let retry = json!({"attempts": 20, "first": "PT0.1S", "cap": "PT0.5S"});
    let mut place = stream(&redis);
    (place["retry"], place["timeout"]) = (retry, json!("PT0.5S"));
    made(&api, "viewings", &place).await;
    made(&api, "hook", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    assert_eq!(test(&api, "viewings").await["result"], "ok");

    redis.stop_process();
    assert_eq!(api.put("frozen", &now("viewings")).await.0, 201);
    assert_eq!(api.put("beside", &now("hook")).await.0, 201);
    in_state(&api, "beside", "delivered").await;
    let first = async || api.get("/v1/timers/frozen/attempts").await.1["items"][0].clone();
    eventually(
        "an attempt has ended",
        LONG,
        async || if !first().await.is_null() { Ok(()) } else { Err("not yet") },
    )
    .await;
    assert_eq!(first().await["result"], "timeout");
    redis.continue_process();
    in_state(&api, "frozen", "delivered").await;

    redis.kill().await;
    assert_eq!(api.put("killed", &now("viewings")).await.0, 201);
    in_state(&api, "killed", "retrying").await;
    let (_, attempts) = api.get("/v1/timers/killed/attempts").await;
    assert_eq!(attempts["items"][0]["result"], "refused", "nothing was sent: {attempts}");
    redis.start_again().await;
    in_state(&api, "killed", "delivered").await;
    let got = entries(&redis, "shop:viewings").await;
    for id in ["frozen", "killed"] {
        let of: Vec<_> = got.iter().filter(|one| one["subject"] == id).collect();
        assert!(!of.is_empty() && of.iter().all(|one| one["id"] == of[0]["id"]), "one delivery id: {of:?}");
    }
    assert_eq!(got.iter().filter(|one| one["subject"] == "killed").count(), 1);
    assert_eq!(get(&api, "viewings").await["state"], "ok");
}

#[tokio::test]
async fn connections_are_encrypted_and_the_certificate_is_of_the_host() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(path("cert.pem"), key.cert.pem()).expect("written");
    std::fs::write(path("key.pem"), key.signing_key.serialize_pem()).expect("written");
    let port = crate::support::free_port();
    let options = [
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-auth-clients",
        "no",
    ];
    let redis = Redis::private_with(Keeps::Writes, options.map(str::to_owned).to_vec()).await;
    let at = |host: &str| json!({"redis_stream": {"url": format!("rediss://{host}:{port}"), "stream": "s"}});
    let trusting = Node::builder().env("SSL_CERT_FILE", path("cert.pem")).start_ready().await;
    made(&trusting.api(), "named", &at("localhost")).await;
    let tried = test(&trusting.api(), "named").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    assert_eq!(redis.cli(&["XLEN", "s"]).await, "1");
    made(&trusting.api(), "other", &at("127.0.0.1")).await;
    let other = test(&trusting.api(), "other").await;
    assert!(other["result"] == "refused" && other["detail"].to_string().contains("TLS"), "{other}");
    let strange = Node::builder().start_ready().await;
    made(&strange.api(), "named", &at("localhost")).await;
    let tried = test(&strange.api(), "named").await;
    assert!(tried["result"] == "refused" && tried["detail"].to_string().contains("TLS"), "{tried}");
    assert_eq!(redis.cli(&["XLEN", "s"]).await, "1");
}

#[tokio::test]
async fn the_password_is_sealed_kept_and_not_taken_elsewhere() {
    let url_of_store = fresh_database().await;
    let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let node =
        Node::builder().cold(&url_of_store).env("MAINSPRING__SERVER__SECRETS_KEY", key).start_ready().await;
    let (api, redis) = (node.api(), Redis::private().await);
    redis.cli(&["ACL", "SETUSER", "shop", "on", ">t0p/secret", "~*", "+@all"]).await;
    let url = |host: &str| format!("redis://shop@{host}:{}/0", redis.port());
    let with = url("127.0.0.1").replace("shop@", "shop:t0p%2Fsecret@");
    let shown = made(&api, "a", &json!({"redis_stream": {"url": with, "stream": "s"}})).await;
    assert_eq!(
        shown["redis_stream"],
        json!({"url": url("127.0.0.1"), "authenticated": true, "stream": "s", "max_len": null})
    );
    assert_eq!(shown["kind"], "redis_stream");
    assert_eq!(test(&api, "a").await["result"], "ok");
    let stored =
        ask_sql(&url_of_store, "SELECT settings || encode(secrets, 'escape') FROM destinations").await;
    assert!(stored.contains("redis_stream") && !stored.contains("t0p"), "{stored}");

    // The URL as it is shown is the same place: the password stays. Another host gets none.
    let patch = async |url: String| {
        let part = json!({"redis_stream": {"url": url, "stream": "t"}});
        call(&api, Method::PATCH, "a", "", Some(&part)).await.body
    };
    assert_eq!(patch(url("127.0.0.1")).await["redis_stream"]["authenticated"], true);
    assert_eq!(test(&api, "a").await["result"], "ok");
    assert_eq!(redis.cli(&["XLEN", "t"]).await, "1");
    assert_eq!(patch(url("127.0.0.2")).await["redis_stream"]["authenticated"], false);

    // One kind takes the place of another.
    let part = json!({"redis_stream": null, "webhook": {"url": "http://127.0.0.1:9/"}});
    let changed = call(&api, Method::PATCH, "a", "", Some(&part)).await;
    assert_eq!((changed.status, &changed.body["kind"]), (200, &json!("webhook")), "{:?}", changed.body);
    assert!(changed.body.get("redis_stream").is_none());
}

on_both!(firings_are_entries);

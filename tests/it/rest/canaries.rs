//! Secrets that callers give, looked for wherever the service says something: answers and errors, pages, metrics, events, the
//! audit and the log. They are found where they belong, at receivers, and nowhere else.

use reqwest::Method;
use serde_json::{Value, json};

use super::LONG;
use crate::support::{Api, Node, Receiver, eventually, http_client};

const KEY: &str = "canary-key-of-the-settings-0123456789";

/// What must be seen nowhere. The secret of a webhook is written in base64, and must not be seen in the clear either.
const CANARIES: [&str; 8] = [
    KEY,
    "Y2FuYXJ5LW9mLXRoZS1zZWNyZXQh",
    "canary-of-the-secret!",
    "canary-of-the-header",
    "canary-of-the-password",
    "canary-of-the-wrong-secret",
    "canary-of-the-wrong-url",
    "canary-of-the-wrong-header",
];

/// Everything that the service has said, and where.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    async fn call(&mut self, api: &Api, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let answer = api.send(method.clone(), path, &[], body.as_ref()).await;
        self.0.push((
            format!("{method} {path} {}", answer.status),
            format!("{} {:?}", answer.body, answer.headers),
        ));
        (answer.status, answer.body)
    }

    #[track_caller]
    fn holds_no_canary(&self) {
        for (place, text) in &self.0 {
            for canary in CANARIES {
                assert!(!text.contains(canary), "{canary} in {place}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_secret_is_seen_by_receivers_alone() {
    let receiver = Receiver::start().await;
    let secrets_key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let node = Node::builder()
        .env("MAINSPRING__SERVER__API_KEYS", KEY)
        .env("MAINSPRING__SERVER__SECRETS_KEY", secrets_key)
        .env("MAINSPRING__LOG__FILTER", "debug")
        .start_ready()
        .await;
    let (api, mut said) = (node.api().with_key(KEY), Said::default());
    let hook = |path: &str| {
        json!({"url": receiver.url(path), "secret": "whsec_Y2FuYXJ5LW9mLXRoZS1zZWNyZXQh",
            "headers": {"authorization": "canary-of-the-header"}})
    };
    // The static headers of an inline webhook are shown to whoever may see its timer (docs/operations.md, "Security").
    let inline =
        |path: &str| json!({"url": receiver.url(path), "secret": "whsec_Y2FuYXJ5LW9mLXRoZS1zZWNyZXQh"});
    // Where nobody listens: connecting fails, and the reason is told.
    let lost = |kind: &str| match kind {
        "redis_stream" => json!({"url": "redis://u:canary-of-the-password@127.0.0.1:9", "stream": "s"}),
        "amqp" => {
            json!({"url": "amqp://u:canary-of-the-password@127.0.0.1:9", "exchange": "x", "routing_key": "k"})
        }
        "mqtt" => json!({"url": "mqtt://u:canary-of-the-password@127.0.0.1:9", "topic": "t"}),
        _ => json!({"url": "nats://u:canary-of-the-password@127.0.0.1:9", "subject": "s"}),
    };
    for (name, place) in [
        ("ok", json!({"webhook": hook("/ok")})),
        ("broken", json!({"webhook": hook("/status/500")})),
        ("redis", json!({"redis_stream": lost("redis_stream")})),
        ("amqp", json!({"amqp": lost("amqp")})),
        ("mqtt", json!({"mqtt": lost("mqtt")})),
        ("nats", json!({"nats": lost("nats")})),
    ] {
        let (status, body) =
            said.call(&api, Method::PUT, &format!("/v1/destinations/{name}"), Some(place)).await;
        assert_eq!(status, 201, "{body}");
        said.call(&api, Method::POST, &format!("/v1/destinations/{name}/test"), None).await;
    }
    let subscription = json!({"destination": "ok", "events": ["*"], "include_data": true});
    said.call(&api, Method::PUT, "/v1/subscriptions/log", Some(subscription)).await;
    let retry = json!({"attempts": 2, "first": "PT0.05S", "cap": "PT0.05S"});
    let timer = |target: Value| json!({"delay": "PT0S", "target": target, "retry": retry});
    for (id, target) in [
        ("inline", json!({"webhook": inline("/ok")})),
        ("inline-broken", json!({"webhook": inline("/status/500")})),
        ("inline-closed", json!({"webhook": inline("/close")})),
        ("to-broken", json!({"destination": "broken"})),
        ("to-redis", json!({"destination": "redis"})),
        ("to-nats", json!({"destination": "nats"})),
    ] {
        let (status, body) =
            said.call(&api, Method::PUT, &format!("/v1/timers/{id}"), Some(timer(target))).await;
        assert_eq!(status, 201, "{body}");
    }
    let schedule = json!({"cron": "@yearly", "target": {"webhook": inline("/ok")}});
    let (status, body) = said.call(&api, Method::PUT, "/v1/schedules/s", Some(schedule)).await;
    assert_eq!(status, 201, "{body}");
    said.call(&api, Method::POST, "/v1/schedules/s/pause", None).await;

    // What is wrong is told without what is secret in it.
    let url = receiver.url("/ok");
    for webhook in [
        json!({"url": url, "secret": "canary-of-the-wrong-secret, not base64"}),
        json!({"url": url, "secret": {"canary-of-the-wrong-secret": 1}}),
        json!({"url": url, "headers": {"x-token": "canary-of-the-wrong-header\n"}}),
        json!({"url": url, "headers": {"host": "canary-of-the-wrong-header"}}),
        json!({"url": url, "headers": "canary-of-the-wrong-header"}),
        json!({"url": "http://u:canary-of-the-wrong-url@127.0.0.1/"}),
        json!({"url": "ftp://u:canary-of-the-wrong-url@127.0.0.1/"}),
    ] {
        let target = json!({"webhook": webhook});
        for (path, body) in [
            ("/v1/timers/wrong", timer(target.clone())),
            ("/v1/destinations/wrong", target.clone()),
            ("/v1/schedules/wrong", json!({"cron": "@yearly", "target": target})),
        ] {
            let (status, body) = said.call(&api, Method::PUT, path, Some(body)).await;
            assert_eq!(status, 422, "{path}: {body}");
        }
    }
    for place in [
        json!({"redis_stream": {"url": "redis://u:canary-of-the-wrong-url@h:port", "stream": "s"}}),
        json!({"amqp": {"url": "http://u:canary-of-the-wrong-url@h", "exchange": "x"}}),
        json!({"nats": {"url": "nats://u:canary-of-the-wrong-url@h/#f", "subject": "s"}}),
    ] {
        let (status, body) = said.call(&api, Method::PUT, "/v1/destinations/wrong", Some(place)).await;
        assert_eq!(status, 422, "{body}");
    }
    for key in ["canary-of-the-wrong-secret", KEY.trim_end_matches('9')] {
        let wrong = node.api().with_key(key);
        said.call(&wrong, Method::GET, "/v1/timers", None).await;
    }
    for id in ["inline-broken", "inline-closed", "to-broken", "to-redis", "to-nats"] {
        eventually("it dies", LONG, async || {
            let (_, timer) = api.timer(id).await;
            if timer["state"] == "dead" { Ok(()) } else { Err(timer) }
        })
        .await;
    }
    receiver.wait_until(|all| all.iter().any(|one| one.timer == "inline"), LONG).await;
    let delivered = receiver.received();
    let header =
        |one: &crate::support::Received| one.headers.values().any(|value| value == "canary-of-the-header");
    assert!(delivered.iter().any(header), "the receiver gets what is its own");

    // All that can be asked for, by the document, of what there is.
    let (_, document) = api.get("/openapi.json").await;
    let ids = |path: &str| match path.split('/').nth(2) {
        Some("timers") => &["inline", "inline-broken", "to-redis"][..],
        Some("destinations") => &["ok", "broken", "redis", "nats"],
        Some("schedules") => &["s"],
        Some("subscriptions") => &["log"],
        _ => &["none"],
    };
    for (path, methods) in document["paths"].as_object().expect("paths") {
        if methods["get"].is_null() || path.ends_with("/stream") {
            continue;
        }
        for id in ids(path) {
            let path = path.replace("{id}", id).replace("{name}", id);
            said.call(&api, Method::GET, &path, None).await;
        }
    }
    // The page, with a session of this key.
    let base = node.base();
    let client = http_client(LONG);
    let form = client.get(format!("{base}/login")).send().await.expect("an answer");
    let anonymous =
        form.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("a cookie").to_owned();
    let text = form.text().await.expect("text");
    let token = text
        .split("name=\"token\" value=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("a token");
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("token", token), ("key", KEY), ("to", "/")])
        .finish();
    let request = client.post(format!("{base}/login")).header("cookie", &anonymous).body(body);
    let entered =
        request.header("content-type", "application/x-www-form-urlencoded").send().await.expect("an answer");
    assert_eq!(entered.status().as_u16(), 303);
    let session = entered.headers()["set-cookie"]
        .to_str()
        .expect("text")
        .split(';')
        .next()
        .expect("a cookie")
        .to_owned();
    for path in [
        "/",
        "/timers",
        "/timers/inline",
        "/timers/inline-broken",
        "/timers/to-redis",
        "/late",
        "/receivers",
        "/schedules",
        "/schedules/s",
        "/audit",
        "/nodes",
        "/timers/inline/data",
    ] {
        let page =
            client.get(format!("{base}{path}")).header("cookie", &session).send().await.expect("an answer");
        assert_eq!(page.status().as_u16(), 200, "{path}");
        said.0.push((format!("page {path}"), page.text().await.expect("text")));
    }
    // Events are told to the destination `ok`, whose own header and signature are its to see; their bodies are not.
    for event in receiver.received() {
        said.0.push((format!("delivery {}", event.timer), String::from_utf8_lossy(&event.body).into_owned()));
    }
    said.0.push(("log".to_owned(), node.log()));
    said.holds_no_canary();
    assert!(said.0.len() > 100, "{}", said.0.len());
}

/// What is in memory stays there: a crash writes no core file, even where it might.
#[tokio::test]
async fn a_crash_leaves_no_memory_on_disk() {
    let node = Node::builder().bearing_core_files().start_ready().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.pid())).expect("a process");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let pid = rustix::process::Pid::from_raw(node.pid().cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::ABORT).expect("it is there");
    let exit = node.wait_exit(LONG).await.expect("it ends");
    assert!(!exit.success(), "{exit}");
    let names: Vec<_> = std::fs::read_dir(node.dir())
        .expect("its directory")
        .map(|one| one.expect("a file").file_name())
        .collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("core")), "{names:?}");
}

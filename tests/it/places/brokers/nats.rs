//! Subjects of NATS, in core NATS and in streams of JetStream.

use std::path::PathBuf;
use std::sync::Arc;

use async_nats::jetstream::{self, stream};
use futures::StreamExt;
use mainspring::tools::servers::Nats;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::{
    Certificate, LONG, PLAIN, TestBroker, Via, conforms, dead_at_once, made, put, refused, sized, test, url,
    what_is_too_large_is_dead_at_once,
};
use crate::support::{Node, eventually};

const SUBJECT: &str = "shop.orders";
const STREAM: &str = "ORDERS";

/// The largest message that the server takes, in bytes.
const LARGEST: usize = 20_000;

/// One that may not publish, and one that may not have an inbox.
const USERS: &str = r#"
    { user: silent, password: "t0p", permissions: { publish: { deny: ["shop.>"] } } }
    { user: deaf, password: "t0p", permissions: { subscribe: { deny: ["_INBOX.>"] } } }
"#;

/// A server of the test's own.
struct Server {
    // Before its files: it ends before they go.
    nats: Nats,
    certificate: Certificate,
    _dir: TempDir,
}

/// The settings of TLS.
fn tls(certificate: &Certificate) -> String {
    let (path, key) = (certificate.path(), certificate.key());
    format!("tls {{ cert_file: \"{}\", key_file: \"{}\" }}", path.display(), key.display())
}

impl Server {
    async fn start(users: &str, more: &str) -> Self {
        let certificate = Certificate::new();
        let settings = format!("max_payload: {LARGEST}\nallow_non_tls: true\n{}\n{more}", tls(&certificate));
        let dir = tempfile::Builder::new().prefix("nats").tempdir().expect("a directory");
        let nats = Nats::start(dir.path(), users, &settings).await.expect("NATS starts");
        Self { nats, certificate, _dir: dir }
    }

    async fn client(&self) -> async_nats::Client {
        let (user, password) = (Nats::USER.to_owned(), Nats::PASSWORD.to_owned());
        let options = async_nats::ConnectOptions::with_user_and_password(user, password);
        options.connect(self.nats.address().to_string()).await.expect("it connects")
    }

    fn place(&self, via: &Via) -> Value {
        let port = self.nats.address().port();
        let url = url("nats", via, port).replace("natss://", "tls://");
        json!({"nats": {"url": url, "subject": SUBJECT}})
    }
}

/// An event as it is told of other kinds: attributes by their bare names, the payload as `data`.
fn event(message: &async_nats::Message) -> Value {
    let headers = message.headers.as_ref().expect("headers");
    assert_eq!(headers.get("Content-Type").map(|name| name.as_str()), Some("application/cloudevents+json"));
    let mut event: Value = serde_json::from_slice(&message.payload).expect("JSON");
    event["data"] = json!(event["data"].to_string());
    event
}

/// A subject of core NATS, and a subscriber that keeps what it gets.
struct Subject {
    seen: Arc<Mutex<Vec<Value>>>,
    client: async_nats::Client,
    server: Server,
}

impl Subject {
    async fn of(server: Server) -> Self {
        let (client, seen) = (server.client().await, Arc::default());
        let mut subscriber = client.subscribe(SUBJECT).await.expect("it subscribes");
        client.flush().await.expect("it is sent");
        let kept: Arc<Mutex<Vec<Value>>> = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Some(message) = subscriber.next().await {
                let fields = match message.headers.is_some() {
                    true => event(&message),
                    false => json!({"marker": String::from_utf8_lossy(&message.payload)}),
                };
                kept.lock().await.push(fields);
            }
        });
        let subject = Self { seen, client, server };
        subject.marked().await;
        subject
    }

    /// Returns when the subscriber has everything that was sent before this, and so is subscribed.
    async fn marked(&self) {
        let marker = uuid::Uuid::now_v7().to_string();
        eventually("the subscriber has everything", LONG, async || {
            self.client.publish(SUBJECT, marker.clone().into()).await.map_err(|why| why.to_string())?;
            self.client.flush().await.map_err(|why| why.to_string())?;
            let seen = self.seen.lock().await;
            if seen.iter().any(|one| one["marker"] == marker) {
                Ok(())
            } else {
                Err(format!("{}", seen.len()))
            }
        })
        .await;
    }
}

impl TestBroker for Subject {
    const KIND: &'static str = "nats";
    const NOT_LET_IN: &'static str = "does not let this node in";

    async fn any() -> Self {
        Self::of(Server::start("", "").await).await
    }

    async fn own() -> Self {
        Self::any().await
    }

    fn place(&self, via: &Via) -> Value {
        self.server.place(via)
    }

    async fn arrived(&mut self) -> Vec<Value> {
        self.marked().await;
        self.seen.lock().await.iter().filter(|one| one["marker"].is_null()).cloned().collect()
    }

    fn certificate(&self) -> PathBuf {
        self.server.certificate.path()
    }

    async fn kill(&self) {
        self.server.nats.kill().await.expect("it ends");
    }

    async fn start_again(&mut self) {
        self.server.nats.start_again().await.expect("it starts again");
        // The subscriber comes back by itself.
        self.marked().await;
    }

    fn freeze(&self) {
        self.server.nats.stop().expect("it stops");
    }

    fn thaw(&self) {
        self.server.nats.resume().expect("it goes on");
    }
}

/// A subject that a stream keeps.
struct Kept {
    server: Server,
}

impl Kept {
    async fn of(server: Server, more: stream::Config) -> Self {
        let config = stream::Config { name: STREAM.into(), subjects: vec![SUBJECT.into()], ..more };
        jetstream::new(server.client().await).create_stream(config).await.expect("a stream");
        Self { server }
    }
}

impl TestBroker for Kept {
    const KIND: &'static str = "nats";
    const NOT_LET_IN: &'static str = "does not let this node in";

    async fn any() -> Self {
        Self::of(Server::start("", "").await, stream::Config::default()).await
    }

    async fn own() -> Self {
        Self::any().await
    }

    fn place(&self, via: &Via) -> Value {
        let mut place = self.server.place(via);
        place["nats"]["jetstream"] = json!(true);
        place
    }

    async fn arrived(&mut self) -> Vec<Value> {
        let context = jetstream::new(self.server.client().await);
        let stream = context.get_stream(STREAM).await.expect("the stream");
        let mut events = Vec::new();
        for number in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(number).await.expect("a message");
            let id = message.headers.get("Nats-Msg-Id").expect("an id").to_string();
            let mut event: Value = serde_json::from_slice(&message.payload).expect("JSON");
            assert_eq!(event["id"], id.as_str());
            event["data"] = json!(event["data"].to_string());
            events.push(event);
        }
        events
    }

    fn certificate(&self) -> PathBuf {
        self.server.certificate.path()
    }

    async fn kill(&self) {
        self.server.nats.kill().await.expect("it ends");
    }

    async fn start_again(&mut self) {
        self.server.nats.start_again().await.expect("it starts again");
    }

    fn freeze(&self) {
        self.server.nats.stop().expect("it stops");
    }

    fn thaw(&self) {
        self.server.nats.resume().expect("it goes on");
    }
}

conforms!(Subject);

mod in_streams {
    super::conforms!(super::Kept);
}

#[tokio::test]
async fn what_the_server_refuses_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, mut subject) = (node.api(), Subject::of(Server::start(USERS, "").await).await);
    let mut place = subject.place(&PLAIN);
    place["nats"]["subject"] = json!("nobody.listens");
    put(&api, "a", &place).await;
    refused(&api, "a", "failed", "nobody subscribes").await;
    put(&api, "a", &subject.place(&Via { credentials: "silent:t0p", ..PLAIN })).await;
    refused(&api, "a", "failed", "Permissions Violation for Publish").await;
    put(&api, "a", &subject.place(&Via { credentials: "deaf:t0p", ..PLAIN })).await;
    refused(&api, "a", "refused", "may not have an inbox").await;
    put(&api, "a", &subject.place(&Via { credentials: ":t0p", ..PLAIN })).await;
    refused(&api, "a", "refused", "does not let this node in").await;

    // The connection stays.
    put(&api, "a", &subject.place(&PLAIN)).await;
    what_is_too_large_is_dead_at_once(&api, "a", LARGEST, "max_payload").await;
    let subjects: Vec<_> = subject.arrived().await.iter().map(|one| one["subject"].clone()).collect();
    assert_eq!(subjects, ["fits"]);
}

#[tokio::test]
async fn what_a_stream_refuses_is_told() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let server = Server::start("", "").await;
    let mut place = server.place(&PLAIN);
    place["nats"]["jetstream"] = json!(true);
    made(&api, "a", &place).await;
    // With a subscriber and without a stream nobody confirms it; without either the server says so.
    refused(&api, "a", "failed", "there is no stream").await;
    let limits = stream::Config {
        max_message_size: 5000,
        max_messages: 2,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let mut kept = Kept::of(server, limits).await;
    let tried = test(&api, "a").await;
    assert_eq!((&tried["result"], &tried["reply"]), (&json!("ok"), &json!(format!("{STREAM} 1"))), "{tried}");
    // Larger than the stream allows.
    dead_at_once(&api, "large", &sized("a", 6000), "message size exceeds maximum").await;
    assert_eq!(test(&api, "a").await["result"], "ok");
    refused(&api, "a", "failed", "maximum messages exceeded").await;
    assert_eq!(kept.arrived().await.len(), 2);
}

/// Who answers beside a stream says nothing of what the stream does.
#[tokio::test]
async fn a_strangers_reply_is_no_acknowledgement() {
    let node = Node::builder().start_ready().await;
    let (api, server) = (node.api(), Server::start("", "").await);
    let client = server.client().await;
    let mut asked = client.subscribe(SUBJECT).await.expect("it subscribes");
    client.flush().await.expect("it is sent");
    tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            let Some(reply) = message.reply else { continue };
            for text in ["hello", "{}", r#"{"error": "no"}"#, r#"{"error": {"code": 404}}"#] {
                client.publish(reply.clone(), text.into()).await.expect("it is sent");
            }
        }
    });
    let mut place = server.place(&PLAIN);
    (place["nats"]["jetstream"], place["timeout"]) = (json!(true), json!("PT0.5S"));
    eventually("it is subscribed", LONG, async || {
        put(&api, "a", &place).await;
        let tried = test(&api, "a").await;
        // Until the subscription has come, the server says that there is no stream.
        if tried["result"] == "timeout" { Ok(()) } else { Err(tried.to_string()) }
    })
    .await;
    refused(&api, "a", "timeout", "no confirmation within 0.5 s").await;
    let mut kept = Kept::of(server, stream::Config::default()).await;
    place["timeout"] = json!("PT5S");
    put(&api, "a", &place).await;
    for number in 1..=20 {
        let tried = test(&api, "a").await;
        assert_eq!((&tried["result"], &tried["reply"]), (&json!("ok"), &json!(format!("{STREAM} {number}"))));
    }
    assert_eq!(kept.arrived().await.len(), 20);
}

/// A server that wants TLS, and one that lets a token in.
#[tokio::test]
async fn tls_is_asked_for_and_tokens_let_in() {
    let node = Node::builder().start_ready().await;
    let (api, dir, key) = (node.api(), tempfile::tempdir().expect("a directory"), Certificate::new());
    let strict = Nats::start(dir.path(), "", &tls(&key)).await.expect("NATS starts");
    let place = |credentials: &str, port| json!({"nats": {"url": format!("nats://{credentials}@127.0.0.1:{port}"), "subject": SUBJECT}});
    put(&api, "a", &place("shop:t0p%2Fsecret", strict.address().port())).await;
    refused(&api, "a", "refused", "write tls://").await;
    let dir = tempfile::tempdir().expect("a directory");
    let tokens =
        Nats::start(dir.path(), "", "authorization { token: \"t0p/token\" }").await.expect("NATS starts");
    let options = async_nats::ConnectOptions::with_token("t0p/token".into());
    let client = options.connect(tokens.address().to_string()).await.expect("it connects");
    let _subscriber = client.subscribe(SUBJECT).await.expect("it subscribes");
    eventually("it is subscribed", LONG, async || {
        client.flush().await.map_err(|why| why.to_string())?;
        put(&api, "a", &place(":t0p%2Ftoken", tokens.address().port())).await;
        let tried = test(&api, "a").await;
        if tried["result"] == "ok" { Ok(()) } else { Err(tried.to_string()) }
    })
    .await;
    put(&api, "a", &place(":t0p-wrong", tokens.address().port())).await;
    refused(&api, "a", "refused", "Authorization Violation").await;
    // Without TLS there is nothing to encrypt.
    let plain = place(":t0p%2Ftoken", tokens.address().port())["nats"]["url"]
        .as_str()
        .expect("a text")
        .replace("nats:", "tls:");
    put(&api, "a", &json!({"nats": {"url": plain, "subject": SUBJECT}})).await;
    refused(&api, "a", "refused", "TLS").await;
}

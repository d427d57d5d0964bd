//! Topics of Mosquitto.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use mainspring::tools::servers::Mosquitto;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Certificate, LONG, PLAIN, TestBroker, Via, conforms, put, refused, sized, taken_in_the_end, test, url,
    what_is_too_large_is_dead_at_once,
};
use crate::support::{Node, Process, eventually, free_port, in_state};

const TOPIC: &str = "shop/orders";

/// The largest packet that the broker takes, in bytes.
const LARGEST: usize = 20_000;

/// A Mosquitto of the test's own, and a subscriber that writes down what it gets: the client of Mosquitto.
struct Topic {
    // Before its files: they end before it goes.
    subscriber: Process,
    server: Mosquitto,
    tls_port: u16,
    certificate: Certificate,
    dir: TempDir,
}

impl Topic {
    async fn start() -> Self {
        let (certificate, tls_port) = (Certificate::new(), free_port());
        let settings = [
            format!("listener {tls_port} 127.0.0.1"),
            format!("certfile {}", certificate.path().display()),
            format!("keyfile {}", certificate.key().display()),
            format!("max_packet_size {LARGEST}"),
        ];
        let dir = tempfile::Builder::new().prefix("mosquitto").tempdir().expect("a directory");
        let server = Mosquitto::start(dir.path(), &settings).await.expect("Mosquitto starts");
        let seen = std::fs::File::create(dir.path().join("seen")).expect("a file");
        let subscriber = Self::subscriber(&server, TOPIC, seen);
        let topic = Self { subscriber, server, tls_port, certificate, dir };
        topic.subscribed().await;
        topic
    }

    fn subscriber(server: &Mosquitto, topic: &str, seen: std::fs::File) -> Process {
        let port = server.address().port().to_string();
        let mut command = Command::new("mosquitto_sub");
        command.args(["-V", "5", "-q", "1", "-F", "%j", "-h", "127.0.0.1", "-p", &port, "-t", topic]);
        command.args(["-u", Mosquitto::USER, "-P", Mosquitto::PASSWORD]);
        command.stdin(Stdio::null()).stdout(seen).stderr(Stdio::null());
        Process::spawn(&mut command).expect("mosquitto_sub")
    }

    /// Until then the broker drops what comes.
    async fn subscribed(&self) {
        eventually("it is subscribed", LONG, async || {
            let log = std::fs::read_to_string(self.dir.path().join("log")).expect("a log");
            if log.contains("Sending SUBACK") { Ok(()) } else { Err(log) }
        })
        .await;
    }
}

/// An event as it is told of other kinds: attributes by their bare names, the payload as `data`.
fn event(line: &str) -> Option<Value> {
    let message: Value = serde_json::from_str(line).expect("JSON");
    if !line.contains("user-properties") {
        // One structured event, or the mark of a test.
        let mut event: Value = serde_json::from_str(message["payload"].as_str()?).ok()?;
        event["data"] = json!(event["data"].to_string());
        return Some(event);
    }
    let properties = &message["properties"];
    let mut fields = properties["user-properties"].as_object().expect("attributes").clone();
    fields.insert("datacontenttype".into(), properties["content-type"].clone());
    fields.insert("data".into(), message["payload"].clone());
    Some(Value::Object(fields))
}

impl TestBroker for Topic {
    const KIND: &'static str = "mqtt";
    const NOT_LET_IN: &'static str = "does not let this node in";

    async fn any() -> Self {
        Self::start().await
    }

    async fn own() -> Self {
        Self::start().await
    }

    fn place(&self, via: &Via) -> Value {
        let port = if via.tls { self.tls_port } else { self.server.address().port() };
        json!({"mqtt": {"url": url("mqtt", via, port), "topic": TOPIC}})
    }

    async fn arrived(&mut self) -> Vec<Value> {
        // The subscriber gets everything in order, and so has all that was published before this.
        let port = self.server.address().port().to_string();
        let last = uuid::Uuid::now_v7().to_string();
        let mut command = Command::new("mosquitto_pub");
        command.args(["-V", "5", "-q", "1", "-h", "127.0.0.1", "-p", &port, "-t", TOPIC, "-m", &last]);
        command.args(["-u", Mosquitto::USER, "-P", Mosquitto::PASSWORD]).stdin(Stdio::null());
        assert!(crate::support::run(command).await.status.success());
        let seen = async || std::fs::read_to_string(self.dir.path().join("seen")).expect("a file");
        eventually("the subscriber has everything", LONG, async || {
            let seen = seen().await;
            if seen.contains(&last) { Ok(()) } else { Err(format!("{} bytes", seen.len())) }
        })
        .await;
        let all = seen().await;
        all.lines().filter_map(event).collect()
    }

    fn certificate(&self) -> PathBuf {
        self.certificate.path()
    }

    async fn kill(&self) {
        self.server.kill().await.expect("it ends");
    }

    async fn start_again(&mut self) {
        self.server.start_again().await.expect("it starts again");
    }

    fn freeze(&self) {
        self.server.stop().expect("it stops");
    }

    fn thaw(&self) {
        self.server.resume().expect("it goes on");
    }
}

conforms!(Topic);

/// The same, reached by MQTT 3.1.1.
struct Topic3(Topic);

impl TestBroker for Topic3 {
    const KIND: &'static str = Topic::KIND;
    const NOT_LET_IN: &'static str = Topic::NOT_LET_IN;

    async fn any() -> Self {
        Self(Topic::start().await)
    }

    async fn own() -> Self {
        Self(Topic::start().await)
    }

    fn place(&self, via: &Via) -> Value {
        let mut place = self.0.place(via);
        place["mqtt"]["version"] = json!(3);
        place
    }

    async fn arrived(&mut self) -> Vec<Value> {
        self.0.arrived().await
    }

    fn certificate(&self) -> PathBuf {
        self.0.certificate()
    }

    async fn kill(&self) {
        self.0.kill().await;
    }

    async fn start_again(&mut self) {
        self.0.start_again().await;
    }

    fn freeze(&self) {
        self.0.freeze();
    }

    fn thaw(&self) {
        self.0.thaw();
    }
}

mod version_3 {
    // Not what is lost when it goes: the broker says that it has what nobody subscribes to, and drops it.
    super::conforms!(super::Topic3:
        events_arrive,
        who_is_not_let_in_is_told,
        connections_are_encrypted_and_the_certificate_is_of_the_host,
        the_password_is_sealed_kept_and_not_taken_elsewhere,
    );
}

/// Of this version a broker can say of an event only that it has it: what it does not take ends the connection.
#[tokio::test]
async fn version_3_says_less() {
    let node = Node::builder().start_ready().await;
    let (api, mut topic) = (node.api(), Topic3::own().await);
    let mut place = topic.place(&PLAIN);
    (place["mqtt"]["qos"], place["retry"]) = (json!(2), json!({"attempts": 2, "first": "PT0.01S"}));
    let shown = put(&api, "a", &place).await.body;
    assert_eq!((&shown["mqtt"]["qos"], &shown["mqtt"]["version"]), (&json!(2), &json!(3)), "{shown}");
    assert_eq!(api.put("large", &sized("a", LARGEST)).await.0, 201);
    assert_eq!(in_state(&api, "large", "dead").await["attempts"], 2);
    let (_, attempts) = api.get("/v1/timers/large/attempts").await;
    assert_eq!(attempts["items"][0]["result"], "unknown", "{attempts}");
    assert!(attempts["items"][0]["detail"].to_string().contains("too large"), "{attempts}");
    taken_in_the_end(&api, "a", "the next one goes on a new connection").await;
    let got = topic.arrived().await;
    assert_eq!(got.len(), 1, "{got:?}");

    topic.kill().await;
    refused(&api, "a", "refused", "no connection").await;
    topic.start_again().await;
    taken_in_the_end(&api, "a", "it comes back").await;
}

#[tokio::test]
async fn what_the_broker_refuses_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, mut topic) = (node.api(), Topic::own().await);
    let mut place = topic.place(&PLAIN);
    place["mqtt"]["qos"] = json!(2);
    put(&api, "a", &place).await;
    assert_eq!(test(&api, "a").await["result"], "ok");
    // Acknowledged and dropped, did the broker not say so.
    place["mqtt"]["qos"] = json!(1);
    place["mqtt"]["topic"] = json!("nobody/listens");
    put(&api, "a", &place).await;
    refused(&api, "a", "failed", "nobody subscribes").await;

    // The connection stays.
    put(&api, "a", &topic.place(&PLAIN)).await;
    what_is_too_large_is_dead_at_once(&api, "a", LARGEST, "maximum packet size").await;
    let got = topic.arrived().await;
    let subjects: Vec<_> = got.iter().map(|one| one["subject"].as_str().expect("a text")).collect();
    assert_eq!(subjects, ["a", "fits"]);
    assert!(topic.subscriber.ended().is_none());
}

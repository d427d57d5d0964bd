//! Topics of Mosquitto.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use mainspring::tools::servers::Mosquitto;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LONG, PLAIN, TestBroker, Via, certificate, conforms, now, put, refused, test, url};
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
    certificate: TempDir,
    dir: TempDir,
}

impl Topic {
    async fn start() -> Self {
        let (certificate, tls_port) = (certificate(), free_port());
        let file = |name: &str| certificate.path().join(name).display().to_string();
        let settings = [
            format!("listener {tls_port} 127.0.0.1"),
            format!("certfile {}", file("cert.pem")),
            format!("keyfile {}", file("key.pem")),
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
fn event(line: &str) -> Value {
    let message: Value = serde_json::from_str(line).expect("JSON");
    let properties = &message["properties"];
    let mut fields = properties["user-properties"].as_object().expect("attributes").clone();
    fields.insert("datacontenttype".into(), properties["content-type"].clone());
    fields.insert("data".into(), message["payload"].clone());
    Value::Object(fields)
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
        all.lines().filter(|line| line.contains("user-properties")).map(event).collect()
    }

    fn certificate(&self) -> PathBuf {
        self.certificate.path().join("cert.pem")
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

    // Too large: dead at once, and the connection stays.
    put(&api, "a", &topic.place(&PLAIN)).await;
    let mut large = now("a");
    large["data"] = json!("x".repeat(LARGEST));
    assert_eq!(api.put("large", &large).await.0, 201);
    let dead = in_state(&api, "large", "dead").await;
    assert_eq!(dead["attempts"], 1, "{dead}");
    let (_, attempts) = api.get("/v1/timers/large/attempts").await;
    assert!(attempts.to_string().contains("maximum packet size"), "{attempts}");
    let mut fits = now("a");
    fits["data"] = json!("x".repeat(LARGEST - 1000));
    assert_eq!(api.put("fits", &fits).await.0, 201);
    in_state(&api, "fits", "delivered").await;
    let got = topic.arrived().await;
    let subjects: Vec<_> = got.iter().map(|one| one["subject"].as_str().expect("a text")).collect();
    assert_eq!(subjects, ["a", "fits"]);
    assert!(topic.subscriber.ended().is_none());
}

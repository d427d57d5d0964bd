//! Exchanges of RabbitMQ.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use amqprs::channel::{BasicGetArguments, Channel, QueueBindArguments, QueueDeclareArguments};
use amqprs::connection::{Connection, OpenConnectionArguments};
use amqprs::{BasicProperties, FieldValue};
use mainspring::tools::servers::RabbitMq;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::{
    Certificate, LONG, PLAIN, TestBroker, Via, conforms, made, now, put, refused, test, url,
    what_is_too_large_is_dead_at_once,
};
use crate::support::{Node, eventually, free_port, in_state, run};

/// The largest message that the broker takes, in bytes.
const LARGEST: usize = 20_000;

/// A queue of a RabbitMQ, behind the default exchange.
struct Queue {
    broker: Arc<Mutex<Rabbit>>,
    /// What does not change while it runs.
    port: u16,
    tls_port: u16,
    certificate: PathBuf,
    name: String,
    seen: Vec<Value>,
}

struct Rabbit {
    // Before its files: it ends before they go.
    server: RabbitMq,
    tls_port: u16,
    certificate: Certificate,
    _dir: TempDir,
}

impl Rabbit {
    async fn start() -> Self {
        let (certificate, tls_port) = (Certificate::new(), free_port());
        let settings = [
            format!("listeners.ssl.1 = 127.0.0.1:{tls_port}"),
            format!("ssl_options.certfile = {}", certificate.path().display()),
            format!("ssl_options.keyfile = {}", certificate.key().display()),
            "ssl_options.verify = verify_none".to_owned(),
            format!("max_message_size = {LARGEST}"),
        ];
        let dir = tempfile::Builder::new().prefix("rabbitmq").tempdir().expect("a directory");
        let server = RabbitMq::start(dir.path(), &settings).await.expect("RabbitMQ starts");
        Self { server, tls_port, certificate, _dir: dir }
    }

    /// The one that all tests have that run at the same time: each takes seconds to start. The last one ends it.
    async fn shared() -> Arc<Mutex<Self>> {
        static SHARED: Mutex<Weak<Mutex<Rabbit>>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Mutex::new(Self::start().await));
        *shared = Arc::downgrade(&started);
        started
    }
}

impl Queue {
    async fn of(broker: Arc<Mutex<Rabbit>>) -> Self {
        let name = format!("q-{}", uuid::Uuid::now_v7().simple());
        let locked = broker.lock().await;
        let (port, tls_port) = (locked.server.address().port(), locked.tls_port);
        let certificate = locked.certificate.path();
        drop(locked);
        let queue = Self { broker, port, tls_port, certificate, name, seen: Vec::new() };
        queue.declare(QueueDeclareArguments::durable_client_named(&queue.name)).await;
        queue
    }

    async fn client(&self) -> (Connection, Channel) {
        let (user, password) = (RabbitMq::USER, RabbitMq::PASSWORD);
        let arguments = OpenConnectionArguments::new("127.0.0.1", self.port, user, password);
        let connection = Connection::open(&arguments).await.expect("it connects");
        let channel = connection.open_channel(None).await.expect("a channel");
        (connection, channel)
    }

    async fn declare(&self, arguments: QueueDeclareArguments) {
        let (connection, channel) = self.client().await;
        channel.queue_declare(arguments).await.expect("a queue");
        let _ = channel.close().await;
        connection.close().await.expect("it closes");
    }

    /// The place at an exchange.
    fn at(&self, exchange: &str, routing_key: &str) -> Value {
        let mut place = self.place(&PLAIN);
        place["amqp"]["exchange"] = json!(exchange);
        place["amqp"]["routing_key"] = json!(routing_key);
        place
    }

    async fn ctl(&self, args: &[&str]) {
        let command = self.broker.lock().await.server.ctl(args).expect("rabbitmqctl");
        let output = run(command).await;
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A message as it is told of other kinds: `cloudEvents:id` is `id`.
fn event(properties: &BasicProperties, body: Vec<u8>) -> Value {
    let mut fields = serde_json::Map::new();
    for (name, value) in properties.headers().into_iter().flat_map(AsRef::as_ref) {
        let name = name.as_ref().strip_prefix("cloudEvents:").expect("an attribute");
        let FieldValue::S(value) = value else { panic!("{name} is no text") };
        fields.insert(name.to_owned(), json!(value.as_ref()));
    }
    assert_eq!(properties.message_id().map(|id| json!(id)), fields.get("id").cloned());
    assert_eq!(properties.delivery_mode(), Some(amqprs::DELIVERY_MODE_PERSISTENT));
    fields.insert("datacontenttype".into(), json!(properties.content_type()));
    fields.insert("data".into(), json!(String::from_utf8(body).expect("text")));
    Value::Object(fields)
}

impl TestBroker for Queue {
    const KIND: &'static str = "amqp";
    const NOT_LET_IN: &'static str = "does not let this node in";

    async fn any() -> Self {
        Self::of(Rabbit::shared().await).await
    }

    async fn own() -> Self {
        Self::of(Arc::new(Mutex::new(Rabbit::start().await))).await
    }

    fn place(&self, via: &Via) -> Value {
        let port = if via.tls { self.tls_port } else { self.port };
        json!({"amqp": {"url": url("amqp", via, port), "routing_key": self.name}})
    }

    async fn arrived(&mut self) -> Vec<Value> {
        let (connection, channel) = self.client().await;
        let mut get = BasicGetArguments::new(&self.name);
        get.no_ack(true);
        while let Some((_, properties, body)) = channel.basic_get(get.clone()).await.expect("it answers") {
            self.seen.push(event(&properties, body));
        }
        let _ = channel.close().await;
        connection.close().await.expect("it closes");
        self.seen.clone()
    }

    fn certificate(&self) -> PathBuf {
        self.certificate.clone()
    }

    async fn kill(&self) {
        self.broker.lock().await.server.kill().await.expect("it ends");
    }

    async fn start_again(&mut self) {
        self.broker.lock().await.server.start_again().await.expect("it starts again");
    }

    fn freeze(&self) {
        self.broker.try_lock().expect("nobody else has it").server.stop().expect("it stops");
    }

    fn thaw(&self) {
        self.broker.try_lock().expect("nobody else has it").server.resume().expect("it goes on");
    }
}

conforms!(Queue);

#[tokio::test]
async fn what_the_broker_refuses_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, mut queue) = (node.api(), Queue::any().await);
    // Confirmed and dropped, were it not for `mandatory`.
    put(&api, "a", &queue.at("", "no-such-queue")).await;
    refused(&api, "a", "failed", "no queue").await;
    put(&api, "a", &queue.at("amq.direct", &queue.name)).await;
    refused(&api, "a", "failed", "NO_ROUTE").await;
    let (connection, channel) = queue.client().await;
    let bind = QueueBindArguments::new(&queue.name, "amq.direct", &queue.name);
    channel.queue_bind(bind).await.expect("it is bound");
    assert_eq!(test(&api, "a").await["result"], "ok");
    put(&api, "a", &queue.at("no-such-exchange", "")).await;
    refused(&api, "a", "refused", "there is no exchange `no-such-exchange`").await;
    let mut elsewhere = queue.at("", &queue.name);
    let url = elsewhere["amqp"]["url"].as_str().expect("a text").to_owned();
    elsewhere["amqp"]["url"] = json!(format!("{url}no-such-host"));
    put(&api, "a", &elsewhere).await;
    refused(&api, "a", "refused", "no-such-host").await;

    // A queue that takes one more, and then none.
    let full = format!("{}-full", queue.name);
    let mut arguments = QueueDeclareArguments::durable_client_named(&full);
    let mut limits = amqprs::FieldTable::new();
    limits.insert("x-max-length".try_into().expect("short"), FieldValue::I(1));
    limits.insert(
        "x-overflow".try_into().expect("short"),
        FieldValue::S("reject-publish".try_into().expect("short")),
    );
    arguments.arguments(limits);
    channel.queue_declare(arguments).await.expect("a queue");
    put(&api, "a", &queue.at("", &full)).await;
    assert_eq!(test(&api, "a").await["result"], "ok");
    refused(&api, "a", "failed", "a queue is full").await;
    let _ = channel.close().await;
    connection.close().await.expect("it closes");

    put(&api, "a", &queue.at("", &queue.name)).await;
    what_is_too_large_is_dead_at_once(&api, "a", LARGEST, "message size").await;
    let got = queue.arrived().await;
    assert_eq!(got.iter().filter(|one| one["subject"] == "fits").count(), 1, "{got:?}");
    assert!(got.iter().all(|one| one["subject"] != "large"));
}

/// A broker that is short of memory takes nothing more: nothing is lost, nothing is told to have arrived, others go on.
#[tokio::test]
async fn an_alarm_holds_events_back() {
    let node = Node::builder().start_ready().await;
    let (api, mut queue) = (node.api(), Queue::own().await);
    let mut place = queue.place(&PLAIN);
    (place["retry"], place["timeout"]) =
        (json!({"attempts": 100, "first": "PT0.1S", "cap": "PT0.5S"}), json!("PT3S"));
    made(&api, "a", &place).await;
    let tried = test(&api, "a").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    queue.ctl(&["set_vm_memory_high_watermark", "0.000001"]).await;
    assert_eq!(api.put("one", &now("a")).await.0, 201);
    eventually("it says why, and then sends no more", LONG, async || {
        let (_, attempts) = api.get("/v1/timers/one/attempts").await;
        let last = attempts["items"].as_array().and_then(|all| all.last()).unwrap_or(&Value::Null);
        let said = last["detail"].as_str().is_some_and(|detail| detail.contains("short of memory"));
        if said && last["result"] == "refused" { Ok(()) } else { Err(attempts.to_string()) }
    })
    .await;
    let attempts_of = async |id: String| {
        let (_, attempts) = api.get(&format!("/v1/timers/{id}/attempts")).await;
        attempts["items"].as_array().map_or(0, Vec::len)
    };
    eventually("it is tried singly", LONG, async || {
        let tries = attempts_of("one".into()).await;
        if tries >= 5 { Ok(()) } else { Err(tries) }
    })
    .await;
    for n in 0..10 {
        assert_eq!(api.put(&format!("behind-{n}"), &now("a")).await.0, 201);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tries = futures::future::join_all((0..10).map(|n| attempts_of(format!("behind-{n}")))).await;
    assert!(
        tries.iter().filter(|tries| **tries == 0).count() >= 5,
        "those behind keep their attempts: {tries:?}"
    );
    queue.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    in_state(&api, "one", "delivered").await;
    for n in 0..10 {
        in_state(&api, &format!("behind-{n}"), "delivered").await;
    }
    let got = queue.arrived().await;
    let of: Vec<_> = got.iter().filter(|one| one["subject"] == "one").collect();
    assert!(!of.is_empty() && of.iter().all(|event| event["id"] == of[0]["id"]), "{of:?}");
}

//! Topics of Kafka: at Tansu, which is another implementation, and at the cluster that librdkafka makes for tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainspring::tools::servers::Tansu;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use reqwest::Method;
use rskafka::client::partition::UnknownTopicHandling;
use rskafka::client::{Client, ClientBuilder};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Certificate, LONG, NOBODY, PLAIN, TestBroker, Via, call, conforms, dead_at_once, get, made, now,
    only_the_host_of_its_certificate_is_reached, put, refused, taken_in_the_end, test,
};
use crate::support::{Node, ask_sql, eventually, fresh_database, in_state};

const TOPIC: &str = "shop.orders";

/// A topic of a Tansu of the test's own.
struct Topic {
    // Before its files: it ends before they go.
    server: Tansu,
    /// Encrypts connections before it, which cannot do that.
    proxy: Option<Proxy>,
    /// What arrived before it was killed: it keeps nothing.
    seen: Vec<Value>,
    _dir: TempDir,
}

impl Topic {
    async fn start(tls: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let advertised = tls.then(|| format!("localhost:{port}"));
        let server = Tansu::start(dir.path(), advertised.as_deref()).await.expect("Tansu starts");
        let proxy = tls.then(|| Proxy::start(listener, server.address()));
        let topic = Self { server, proxy, seen: Vec::new(), _dir: dir };
        topic.create().await;
        topic
    }

    async fn client(&self) -> Client {
        let address = match &self.proxy {
            Some(proxy) => format!("localhost:{}", proxy.port),
            None => self.server.address().to_string(),
        };
        let mut builder = ClientBuilder::new(vec![address]);
        if let Some(proxy) = &self.proxy {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(proxy.own()).expect("a certificate");
            let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            builder = builder.tls_config(Arc::new(tls));
        }
        builder.build().await.expect("it connects")
    }

    async fn create(&self) {
        let client = self.client().await;
        client
            .controller_client()
            .expect("a controller")
            .create_topic(TOPIC, 1, 1, 5000)
            .await
            .expect("a topic");
    }

    /// What the broker has now.
    async fn there(&self) -> Vec<Value> {
        let client = self.client().await;
        let partition =
            client.partition_client(TOPIC, 0, UnknownTopicHandling::Retry).await.expect("the partition");
        let (mut events, mut next) = (Vec::new(), 0);
        loop {
            let (records, end) = partition.fetch_records(next, 1..1_000_000, 100).await.expect("records");
            for record in records {
                next = record.offset + 1;
                let record = record.record;
                let mut fields = serde_json::Map::new();
                for (name, value) in &record.headers {
                    let name = if name == "content-type" { "ce_datacontenttype" } else { name };
                    let name = name.strip_prefix("ce_").expect("an attribute");
                    fields.insert(name.to_owned(), json!(String::from_utf8_lossy(value)));
                }
                let key = record.key.map(|key| String::from_utf8(key).expect("text"));
                assert_eq!(json!(key), fields["subject"], "the key is the timer's id");
                let data = String::from_utf8(record.value.expect("a value")).expect("text");
                fields.insert("data".into(), json!(data));
                events.push(Value::Object(fields));
            }
            if next >= end {
                return events;
            }
        }
    }
}

/// Takes connections with TLS and hands on what they say.
struct Proxy {
    port: u16,
    certificate: Certificate,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    fn start(listener: tokio::net::TcpListener, to: std::net::SocketAddr) -> Self {
        let (certificate, port) = (Certificate::new(), listener.local_addr().expect("an address").port());
        let key = PrivateKeyDer::from_pem_file(certificate.key()).expect("a key");
        let own = CertificateDer::from_pem_file(certificate.path()).expect("a certificate");
        let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![own], key);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.expect("they fit")));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut client = acceptor.accept(client).await?;
                    let mut server = tokio::net::TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { port, certificate, task }
    }

    fn own(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.certificate.path()).expect("a certificate")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TestBroker for Topic {
    const KIND: &'static str = "kafka";
    const NOT_LET_IN: &'static str = "";

    async fn any() -> Self {
        Self::start(false).await
    }

    async fn own() -> Self {
        Self::start(false).await
    }

    fn place(&self, via: &Via) -> Value {
        let port = self.proxy.as_ref().map_or(self.server.address().port(), |proxy| proxy.port);
        let brokers = format!("{}:{port}", via.host);
        json!({"kafka": {"brokers": brokers, "topic": TOPIC, "tls": via.tls}})
    }

    async fn arrived(&mut self) -> Vec<Value> {
        self.seen.iter().cloned().chain(self.there().await).collect()
    }

    fn certificate(&self) -> PathBuf {
        self.proxy.as_ref().expect("one").certificate.path()
    }

    async fn kill(&self) {
        self.server.kill().await.expect("it ends");
    }

    async fn start_again(&mut self) {
        self.server.start_again().await.expect("it starts again");
        self.create().await;
    }

    fn freeze(&self) {
        self.server.stop().expect("it stops");
    }

    fn thaw(&self) {
        self.server.resume().expect("it goes on");
    }
}

conforms!(Topic: events_arrive);

/// Frozen and killed with attempts under way: everything arrives, and another destination goes on. What it had is gone with
/// the broker, which keeps nothing.
#[tokio::test]
async fn one_that_goes_and_comes_back_loses_nothing() {
    let node = Node::builder().start_ready().await;
    let (api, mut topic) = (node.api(), Topic::own().await);
    let mut place = topic.place(&PLAIN);
    place["retry"] = json!({"attempts": 100, "first": "PT0.1S", "cap": "PT0.5S"});
    // A new producer needs about half a second for its first event, and on a busy machine several attempts.
    place["timeout"] = json!("PT2S");
    made(&api, "there", &place).await;
    taken_in_the_end(&api, "there", "it takes events").await;
    topic.freeze();
    assert_eq!(api.put("frozen", &now("there")).await.0, 201);
    let first = async |id: &str| api.get(&format!("/v1/timers/{id}/attempts")).await.1["items"][0].clone();
    eventually("an attempt has ended", LONG, async || {
        if first("frozen").await.is_null() { Err("not yet") } else { Ok(()) }
    })
    .await;
    assert_eq!(first("frozen").await["result"], "timeout");
    topic.thaw();
    in_state(&api, "frozen", "delivered").await;
    let before = topic.there().await;
    assert!(before.iter().any(|event| event["subject"] == "frozen"), "{before:?}");

    topic.kill().await;
    assert_eq!(api.put("killed", &now("there")).await.0, 201);
    in_state(&api, "killed", "retrying").await;
    let result = first("killed").await["result"].clone();
    assert!(result == "refused" || result == "timeout", "{result}");
    topic.start_again().await;
    in_state(&api, "killed", "delivered").await;
    let of: Vec<_> = topic.there().await.into_iter().filter(|event| event["subject"] == "killed").collect();
    assert!(!of.is_empty() && of.iter().all(|event| event["id"] == of[0]["id"]), "one delivery id: {of:?}");
    assert_eq!(get(&api, "there").await["state"], "ok");
}

#[tokio::test]
async fn connections_are_encrypted_and_the_certificate_is_of_the_host() {
    only_the_host_of_its_certificate_is_reached(Topic::start(true).await).await;
}

#[tokio::test]
async fn what_is_missing_or_refused_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, topic) = (node.api(), Topic::own().await);
    let mut place = topic.place(&PLAIN);
    place["kafka"]["topic"] = json!("no-such-topic");
    put(&api, "a", &place).await;
    refused(&api, "a", "refused", "there is no topic `no-such-topic`").await;
    put(&api, "a", &json!({"kafka": {"brokers": format!("127.0.0.1:{NOBODY}"), "topic": TOPIC}})).await;
    refused(&api, "a", "refused", "no connection").await;
    // A broker that names another, which is not delivered to.
    let dir = tempfile::tempdir().expect("a directory");
    let liar = Tansu::start(dir.path(), Some("10.11.12.13:9092")).await.expect("Tansu starts");
    put(&api, "a", &json!({"kafka": {"brokers": liar.address().to_string(), "topic": TOPIC}})).await;
    refused(&api, "a", "refused", "10.11.12.13 is a loopback, private").await;
}

/// The cluster of librdkafka. It makes every topic that is asked for.
fn mock() -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(3).expect("a cluster");
    cluster.create_topic(TOPIC, 3, 3).expect("a topic");
    cluster
}

/// The brokers of a cluster find each other, and say what they do not take.
#[tokio::test]
async fn what_brokers_say_of_an_event_is_told() {
    let node = Node::builder().start_ready().await;
    let (api, cluster) = (node.api(), mock());
    let place = json!({"kafka": {"brokers": cluster.bootstrap_servers(), "topic": TOPIC}});
    made(&api, "a", &place).await;
    let tried = test(&api, "a").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    let produce = RDKafkaApiKey::Produce;
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.request_errors(produce, &[denied]);
    refused(&api, "a", "failed", "may not write to the topic").await;

    // A batch that is too large is sent again one by one; what is too large alone is dead at once.
    let size = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(produce, &[size]);
    let tried = test(&api, "a").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    cluster.request_errors(produce, &[size, size]);
    dead_at_once(&api, "large", &now("a"), "max.message.bytes").await;

    // Brokers hang up, and one of them takes over all partitions. (`broker_down` binds the port anew, and ends this process if
    // somebody has taken it meanwhile.)
    let hangs_up = RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT;
    cluster.request_errors(produce, &[hangs_up, hangs_up]);
    for partition in 0..3 {
        cluster.partition_leader(TOPIC, partition, Some(2)).expect("a leader");
    }
    taken_in_the_end(&api, "a", "the other takes it").await;
    // A producer that is of no use any more is replaced.
    let fenced = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH;
    cluster.request_errors(produce, &[fenced]);
    let _ = test(&api, "a").await;
    taken_in_the_end(&api, "a", "another one takes it").await;
}

/// What its producer could send after the attempt is over is not given to it.
#[tokio::test]
async fn an_event_is_given_up_before_its_attempt_ends() {
    let node = Node::builder().start_ready().await;
    let (api, cluster) = (node.api(), mock());
    for broker in 1..=3 {
        cluster.broker_round_trip_time(broker, Duration::from_millis(700)).expect("it is slow");
    }
    let place = json!({"kafka": {"brokers": cluster.bootstrap_servers(), "topic": TOPIC}, "timeout": "PT4S"});
    // It takes more than a quarter of the time to connect, and on a busy machine at times all of it.
    let name = eventually("it has connected late", LONG, async || {
        let name = format!("k{}", uuid::Uuid::now_v7().simple());
        made(&api, &name, &place).await;
        let tried = test(&api, &name).await;
        assert_eq!(tried["result"], "refused", "{tried}");
        if tried.to_string().contains("took too much of the attempt's time") { Ok(name) } else { Err(tried) }
    })
    .await;
    // The next attempt finds the connection there.
    let size = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[size]);
    refused(&api, &name, "failed", "no time is left to send it alone").await;
}

/// Sealed in the store, never shown, kept by a change that leaves the place where it is, and taken nowhere else.
#[tokio::test]
async fn the_password_is_sealed_kept_and_not_taken_elsewhere() {
    let store = fresh_database().await;
    let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let node = Node::builder().cold(&store).env("MAINSPRING__SERVER__SECRETS_KEY", key).start_ready().await;
    let api = node.api();
    let place = json!({"kafka": {"brokers": "127.0.0.1:9", "topic": TOPIC, "user": "shop", "password": "t0p",
        "mechanism": "scram-sha-256"}});
    let shown = made(&api, "there", &place).await;
    let kafka = &shown["kafka"];
    assert_eq!((&kafka["user"], &kafka["authenticated"]), (&json!("shop"), &json!(true)), "{shown}");
    assert!(!shown.to_string().contains("t0p"), "{shown}");
    let stored = ask_sql(&store, "SELECT settings || encode(secrets, 'escape') FROM destinations").await;
    assert!(stored.contains("scram-sha-256") && !stored.contains("t0p"), "{stored}");
    let patch = async |part: Value| {
        call(&api, Method::PATCH, "there", "", Some(&json!({"kafka": part}))).await.body["kafka"].clone()
    };
    assert_eq!(patch(json!({"topic": "other"})).await["authenticated"], true);
    assert_eq!(patch(json!({"brokers": "127.0.0.1:9"})).await["authenticated"], true);
    assert_eq!(patch(json!({"brokers": "127.0.0.2:9"})).await["authenticated"], false);
    assert_eq!(patch(json!({"brokers": "127.0.0.1:9", "password": "t0p"})).await["authenticated"], true);
    assert_eq!(patch(json!({"user": null, "password": null})).await["authenticated"], false);
}

/// Answers like a broker that asks for SASL and lets nobody in; returns what it was shown.
async fn doorkeeper(listener: tokio::net::TcpListener) -> Vec<u8> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let text =
        |text: &str| [&i16::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()].concat();
    // Keys of requests: versions, handshake, authentication, metadata; each with the versions that it knows.
    let known: [[i16; 3]; 4] = [[18, 0, 0], [17, 0, 1], [36, 0, 0], [3, 0, 1]];
    let versions = |error: i16| {
        let all = known.iter().flatten().flat_map(|number| number.to_be_bytes());
        [&error.to_be_bytes()[..], &4_i32.to_be_bytes(), &all.collect::<Vec<u8>>()].concat()
    };
    let mut shown = None;
    while shown.is_none() {
        let (mut client, _) = listener.accept().await.expect("a client");
        while let Ok(length) = client.read_i32().await {
            let mut request = vec![0; usize::try_from(length).expect("a length")];
            client.read_exact(&mut request).await.expect("a request");
            let number = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
            let answer = match (number(0), number(2)) {
                (18, 0) => versions(0),
                // It knows the first version only (35).
                (18, _) => versions(35),
                (17, _) => [&0_i16.to_be_bytes()[..], &1_i32.to_be_bytes(), &text("PLAIN")].concat(),
                (36, _) => {
                    shown = Some(request.clone());
                    // SASL_AUTHENTICATION_FAILED
                    [&58_i16.to_be_bytes()[..], &text("go away"), &0_i32.to_be_bytes()].concat()
                }
                other => panic!("{other:?} before it was let in"),
            };
            let answer = [&request[4..8], &answer].concat();
            client.write_i32(i32::try_from(answer.len()).expect("short")).await.expect("written");
            client.write_all(&answer).await.expect("written");
        }
    }
    shown.expect("it was asked")
}

#[tokio::test]
async fn who_is_not_let_in_is_told() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let brokers = listener.local_addr().expect("an address").to_string();
    let asked = tokio::spawn(doorkeeper(listener));
    let place =
        json!({"kafka": {"brokers": brokers, "topic": TOPIC, "user": "shop", "password": "t0p/secret"}});
    made(&api, "a", &place).await;
    refused(&api, "a", "refused", "does not let this node in").await;
    let shown = tokio::time::timeout(LONG, asked).await.expect("in time").expect("it answered");
    assert!(String::from_utf8_lossy(&shown).contains("\0shop\0t0p/secret"), "{shown:?}");
}

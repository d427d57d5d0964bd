//! The flags that say where a broker's destination is: a set for each kind, of which one may be used.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use crate::cli::input;

/// The flags of webhooks.
const HOOK_FLAGS: [&str; 4] = ["webhook", "secret", "secret_file", "header"];

/// The place of a broker, as far as it is given.
#[derive(Args)]
#[group(skip)]
pub struct Place {
    #[command(flatten)]
    stream: Stream,
    #[command(flatten)]
    exchange: Exchange,
    #[command(flatten)]
    topic: Topic,
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    kafka: Kafka,
    /// Put the password in this file into the URL of the broker, or give it to Kafka
    #[arg(long, value_name = "FILE", requires = "broker", conflicts_with_all = HOOK_FLAGS)]
    password_file: Option<PathBuf>,
}

/// A stream of Redis.
#[derive(Args)]
#[group(id = "a_stream", conflicts_with_all = HOOK_FLAGS)]
struct Stream {
    /// Add to a stream of the Redis at this redis or rediss URL
    #[arg(long, value_name = "URL", group = "broker")]
    redis: Option<String>,
    /// The key of the stream
    #[arg(long, value_name = "KEY")]
    stream: Option<String>,
    /// Trim the stream to about this many entries
    #[arg(long, value_name = "N")]
    max_len: Option<u64>,
}

/// An exchange of an AMQP broker.
#[derive(Args)]
#[group(id = "an_exchange", conflicts_with_all = HOOK_FLAGS, conflicts_with = "a_stream")]
struct Exchange {
    /// Publish to an exchange of the AMQP 0-9-1 broker (RabbitMQ) at this amqp or amqps URL
    #[arg(long, value_name = "URL", group = "broker")]
    amqp: Option<String>,
    /// The exchange; the default one unless set
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    /// The routing key; for the default exchange the name of a queue
    #[arg(long, value_name = "KEY")]
    routing_key: Option<String>,
}

/// A topic of an MQTT broker.
#[derive(Args)]
#[group(id = "a_topic", conflicts_with_all = HOOK_FLAGS, conflicts_with_all = ["a_stream", "an_exchange"])]
struct Topic {
    /// Publish to a topic of the MQTT broker at this mqtt or mqtts URL
    #[arg(long, value_name = "URL", group = "broker")]
    mqtt: Option<String>,
    /// The topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// The quality of service, 1 or 2; 1 unless set
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    qos: Option<u8>,
    /// The version of MQTT, 5 or 3 (for 3.1.1); 5 unless set
    #[arg(long, value_name = "N")]
    mqtt_version: Option<u8>,
}

/// A subject of NATS.
#[derive(Args)]
#[group(id = "a_subject", conflicts_with_all = HOOK_FLAGS, conflicts_with_all = ["a_stream", "an_exchange", "a_topic"])]
struct Subject {
    /// Publish to a subject of the NATS server at this nats or, with TLS, tls URL
    #[arg(long, value_name = "URL", group = "broker")]
    nats: Option<String>,
    /// The subject
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Whether a stream of JetStream has to confirm each event; false unless set
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    jetstream: Option<bool>,
}

/// A topic of Kafka.
#[derive(Args)]
#[group(id = "a_kafka", conflicts_with_all = HOOK_FLAGS, conflicts_with_all = ["a_stream", "an_exchange", "a_topic", "a_subject"])]
struct Kafka {
    /// Publish to a topic of Kafka, which is found at these brokers (host:port,host:port)
    #[arg(long, value_name = "BROKERS", group = "broker")]
    kafka: Option<String>,
    /// The topic of Kafka
    #[arg(long, value_name = "TOPIC")]
    kafka_topic: Option<String>,
    /// Log in at Kafka as this user
    #[arg(long, value_name = "USER")]
    kafka_user: Option<String>,
    /// How the password is shown to Kafka: plain, scram-sha-256 or scram-sha-512; plain unless set
    #[arg(long, value_name = "NAME")]
    kafka_mechanism: Option<String>,
    /// Whether connections to Kafka are encrypted; false unless set
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    kafka_tls: Option<bool>,
}

impl Place {
    /// The places by the word of their kind. One of which no part is given is left out.
    pub fn given(&self) -> anyhow::Result<Map<String, Value>> {
        let Self { stream, exchange, topic, subject, kafka, password_file } = self;
        let password = match (&kafka.kafka, password_file) {
            (Some(_), Some(file)) => Some(input::secret_file("--password-file", file)?),
            _ => None,
        };
        let kinds = [
            (
                "redis_stream",
                vec![
                    ("url", self.url(stream.redis.as_ref())?.into()),
                    ("stream", stream.stream.clone().into()),
                    ("max_len", stream.max_len.into()),
                ],
            ),
            (
                "amqp",
                vec![
                    ("url", self.url(exchange.amqp.as_ref())?.into()),
                    ("exchange", exchange.exchange.clone().into()),
                    ("routing_key", exchange.routing_key.clone().into()),
                ],
            ),
            (
                "mqtt",
                vec![
                    ("url", self.url(topic.mqtt.as_ref())?.into()),
                    ("topic", topic.topic.clone().into()),
                    ("qos", topic.qos.into()),
                    ("version", topic.mqtt_version.into()),
                ],
            ),
            (
                "nats",
                vec![
                    ("url", self.url(subject.nats.as_ref())?.into()),
                    ("subject", subject.subject.clone().into()),
                    ("jetstream", subject.jetstream.into()),
                ],
            ),
            (
                "kafka",
                vec![
                    ("brokers", kafka.kafka.clone().into()),
                    ("topic", kafka.kafka_topic.clone().into()),
                    ("user", kafka.kafka_user.clone().into()),
                    ("password", password.into()),
                    ("mechanism", kafka.kafka_mechanism.clone().into()),
                    ("tls", kafka.kafka_tls.into()),
                ],
            ),
        ];
        let given =
            kinds.into_iter().filter_map(|(kind, fields)| Some((kind.to_owned(), present(fields)?.into())));
        Ok(given.collect())
    }

    /// A URL with the password of the file, if there is one.
    fn url(&self, given: Option<&String>) -> anyhow::Result<Option<String>> {
        match (given, &self.password_file) {
            (Some(url), Some(file)) => input::url_with_password(url, file).map(Some),
            (url, _) => Ok(url.cloned()),
        }
    }
}

/// The fields of a request that are given, not `null`; `None` if there is none.
fn present(fields: Vec<(&str, Value)>) -> Option<Map<String, Value>> {
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    let given: Map<String, Value> = given.map(|(name, value)| (name.to_owned(), value)).collect();
    (!given.is_empty()).then_some(given)
}

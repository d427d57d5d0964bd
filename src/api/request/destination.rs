//! A destination in a request: exactly one kind, and what it bears, checked.

use std::time::Duration;

use serde::Deserialize;

use super::raw::{RetryIn, optional_object};
use super::target::{WebhookIn, checked_webhook};
use super::{Refused, read, retry};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::config::MAX_WEBHOOK_TIMEOUT;
use crate::destinations::Wanted;
use crate::model::destination::{Limits, MAX_CONCURRENCY, MAX_RATE};
use crate::model::place::{Amqp, BadField, Brokers, Kafka, Mechanism, Mqtt, Nats, Place, RedisStream};
use crate::model::time::Span;
use crate::sink::guard::Guard;

/// The shortest time limit of an attempt.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);

/// A named place that deliveries go to: exactly one kind, and what it bears. A field that is `null` counts as left out.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Destination)]
pub struct DestinationIn {
    /// An HTTP receiver.
    #[schema(value_type = WebhookIn)]
    #[serde(default, deserialize_with = "optional_object")]
    webhook: Option<WebhookIn>,
    /// A stream of Redis.
    #[schema(value_type = RedisStreamIn)]
    #[serde(default, deserialize_with = "optional_object")]
    redis_stream: Option<RedisStreamIn>,
    /// An exchange of an AMQP 0-9-1 broker.
    #[schema(value_type = AmqpIn)]
    #[serde(default, deserialize_with = "optional_object")]
    amqp: Option<AmqpIn>,
    /// A topic of an MQTT broker.
    #[schema(value_type = MqttIn)]
    #[serde(default, deserialize_with = "optional_object")]
    mqtt: Option<MqttIn>,
    /// A subject of NATS.
    #[schema(value_type = NatsIn)]
    #[serde(default, deserialize_with = "optional_object")]
    nats: Option<NatsIn>,
    /// A topic of Kafka.
    #[schema(value_type = KafkaIn)]
    #[serde(default, deserialize_with = "optional_object")]
    kafka: Option<KafkaIn>,
    /// Attempts at once, for each node. Default: `webhook.concurrency` of the settings.
    #[schema(value_type = Option<schema::Concurrency>)]
    concurrency: Option<usize>,
    /// Attempts a second, all nodes together. Default: no limit.
    #[schema(value_type = Option<schema::Rate>)]
    rate_per_second: Option<u32>,
    /// How failed attempts are repeated, for timers without a `retry` of their own.
    #[serde(default, deserialize_with = "optional_object")]
    retry: Option<RetryIn>,
    /// The time limit of one attempt, from `PT0.1S` to `PT60S`. Default: `webhook.timeout` of the settings.
    #[schema(value_type = Option<schema::Duration>)]
    timeout: Option<String>,
}

/// A stream of Redis. Each event is an entry: its attributes are fields by their bare names, the payload is in `data`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RedisStream)]
pub struct RedisStreamIn {
    /// Where Redis is.
    #[schema(value_type = schema::RedisUrl)]
    url: String,
    /// The key of the stream. The first event makes it.
    #[schema(value_type = schema::StreamName)]
    stream: String,
    /// Trims the stream to about this many entries, whether or not somebody has read them. Default: never.
    #[schema(minimum = 1)]
    max_len: Option<u64>,
}

/// An exchange of an AMQP 0-9-1 broker, such as RabbitMQ. Each event is a persistent, mandatory message: its attributes are
/// headers `cloudEvents:NAME`, the payload is its body.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Amqp)]
pub struct AmqpIn {
    /// Where the broker is.
    #[schema(value_type = schema::AmqpUrl)]
    url: String,
    /// The exchange, which must be there. Default: the default exchange, whose routing keys are names of queues.
    #[schema(value_type = Option<schema::PlaceName>)]
    exchange: Option<String>,
    /// The routing key. Default: an empty one, which the default exchange has no use for.
    #[schema(value_type = Option<schema::PlaceName>)]
    routing_key: Option<String>,
}

/// A topic of an MQTT broker. Each event is a message. Of MQTT 5: its attributes are user properties by their bare names, the
/// payload is its payload. Of MQTT 3.1.1: its payload is one structured CloudEvent.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Mqtt)]
pub struct MqttIn {
    /// Where the broker is.
    #[schema(value_type = schema::MqttUrl)]
    url: String,
    /// The topic, without wildcards.
    #[schema(value_type = schema::TopicName)]
    topic: String,
    /// The quality of service. Default: 1, at least once.
    #[schema(minimum = 1, maximum = 2)]
    qos: Option<u8>,
    /// The version of the protocol: 5, or 3 for 3.1.1. Default: 5.
    #[schema(value_type = Option<schema::MqttVersion>)]
    version: Option<u8>,
}

/// A subject of NATS. Each event is a message whose body is one structured CloudEvent (`application/cloudevents+json`).
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nats)]
pub struct NatsIn {
    /// Where the server is.
    #[schema(value_type = schema::NatsUrl)]
    url: String,
    /// The subject, without wildcards.
    #[schema(value_type = schema::SubjectName)]
    subject: String,
    /// An event counts as delivered when a stream of JetStream has it. Default: `false`, when the server has handled it.
    #[schema(value_type = Option<bool>)]
    jetstream: Option<bool>,
}

/// A topic of Kafka. Each event is a record: its attributes are headers `ce_NAME`, the payload is the value, and the key is
/// the timer's id.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Kafka)]
pub struct KafkaIn {
    /// Where the cluster is found.
    #[schema(value_type = schema::Brokers)]
    brokers: String,
    /// The topic, which must be there.
    #[schema(value_type = schema::KafkaTopic)]
    topic: String,
    /// Who logs in, by SASL. Default: nobody.
    #[schema(value_type = Option<schema::PlaceName>)]
    user: Option<String>,
    /// The user's password.
    #[schema(value_type = Option<schema::KafkaPassword>)]
    password: Option<String>,
    /// How the password is shown to the brokers. Default: `plain`.
    #[schema(value_type = Option<schema::KafkaMechanism>)]
    mechanism: Option<Mechanism>,
    /// Whether connections are encrypted. Default: `false`.
    tls: Option<bool>,
}

/// Checks a broker's place, of the build and its address too.
fn checked_broker(place: Result<Place, BadField>, kind: &str, guard: &Guard) -> Result<Place, FieldError> {
    let place =
        place.map_err(|why| FieldError::new(format!("/{kind}{}", why.pointer), why.code, why.detail))?;
    if let Some(option) = place.lacks() {
        let detail = format!("this server was built without it; build it with `--features {option}`");
        return Err(FieldError::new(format!("/{kind}"), "not_supported", detail));
    }
    let field = if place.url().is_some() { "url" } else { "brokers" };
    let checked = place.addresses().iter().try_for_each(|address| guard.check_address(address));
    checked.map_err(|why| FieldError::new(format!("/{kind}/{field}"), "address_refused", why.to_string()))?;
    Ok(place)
}

/// Reads and checks a destination.
pub fn destination(text: &[u8], guard: &Guard) -> Result<Wanted, Refused> {
    let mut raw: DestinationIn = read(text, "")?;
    let mut errors = Vec::new();
    let place = place(&mut raw, guard).map_err(|why| errors.push(why)).ok();
    if raw.concurrency.is_some_and(|count| !(1..=MAX_CONCURRENCY).contains(&count)) {
        errors.push(FieldError::new("/concurrency", "range", format!("from 1 to {MAX_CONCURRENCY}")));
    }
    if raw.rate_per_second.is_some_and(|rate| !(1..=MAX_RATE).contains(&rate)) {
        errors.push(FieldError::new("/rate_per_second", "range", format!("from 1 to {MAX_RATE}")));
    }
    let retry = retry(raw.retry.as_ref(), &mut errors);
    let timeout = match raw.timeout.as_deref().map(Span::parse) {
        None => None,
        Some(Ok(span)) if (MIN_TIMEOUT..=MAX_WEBHOOK_TIMEOUT).contains(&span.get()) => Some(span),
        Some(Ok(_)) => {
            errors.push(FieldError::new("/timeout", "range", "from PT0.1S to PT60S"));
            None
        }
        Some(Err(why)) => {
            errors.push(FieldError::new("/timeout", "bad_duration", why.to_string()));
            None
        }
    };
    match place {
        Some(place) if errors.is_empty() => {
            let limits =
                Limits { concurrency: raw.concurrency, rate_per_second: raw.rate_per_second, retry, timeout };
            Ok(Wanted { place, limits })
        }
        _ => Err(Refused::Fields(errors)),
    }
}

/// The one place of a request.
fn place(raw: &mut DestinationIn, guard: &Guard) -> Result<Place, FieldError> {
    let webhook = raw.webhook.take().map(|hook| checked_webhook(hook, "/webhook", guard).map(Place::Webhook));
    let redis_stream = raw.redis_stream.take().map(|RedisStreamIn { url, stream, max_len }| {
        let stream = RedisStream::new(&url, stream, max_len).map(Place::RedisStream);
        checked_broker(stream, "redis_stream", guard)
    });
    let amqp = raw.amqp.take().map(|AmqpIn { url, exchange, routing_key }| {
        let amqp = Amqp::new(&url, exchange.unwrap_or_default(), routing_key.unwrap_or_default());
        checked_broker(amqp.map(Place::Amqp), "amqp", guard)
    });
    let mqtt = raw.mqtt.take().map(|MqttIn { url, topic, qos, version }| {
        let mqtt = Mqtt::new(&url, topic, qos.unwrap_or(1), version.unwrap_or(5));
        checked_broker(mqtt.map(Place::Mqtt), "mqtt", guard)
    });
    let nats = raw.nats.take().map(|NatsIn { url, subject, jetstream }| {
        let nats = Nats::new(&url, subject, jetstream.unwrap_or(false));
        checked_broker(nats.map(Place::Nats), "nats", guard)
    });
    let kafka = raw.kafka.take().map(|KafkaIn { brokers, topic, user, password, mechanism, tls }| {
        let (mechanism, tls) = (mechanism.unwrap_or_default(), tls.unwrap_or(false));
        let kafka = Brokers::new(&brokers)
            .and_then(|brokers| Kafka { brokers, topic, user, password, mechanism, tls }.checked());
        checked_broker(kafka.map(Place::Kafka), "kafka", guard)
    });
    let mut given = [webhook, redis_stream, amqp, mqtt, nats, kafka].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(one), None) => one,
        _ => {
            let detail =
                "give exactly one kind of destination: webhook, redis_stream, amqp, mqtt, nats or kafka";
            Err(FieldError::new("", "missing", detail))
        }
    }
}

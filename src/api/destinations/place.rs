//! Where a destination is, in an answer and in a change: what is secret is not shown, and goes nowhere by itself.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::api::problem::{FieldError, Problem};
use crate::api::schema;
use crate::model::destination::is_secret_header;
use crate::model::place::{Amqp, Kafka, Mechanism, Mqtt, Nats, Place, RedisStream};
use crate::model::target::Webhook;

/// An HTTP receiver, without its secrets.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HookView {
    /// As deliveries use it: normalized, so it may be longer than in the request.
    #[schema(format = "uri")]
    url: String,
    /// Names in lower case. The value of a header that holds a credential, by its name, is `null`.
    #[schema(value_type = schema::ShownHeaders)]
    headers: BTreeMap<String, Option<String>>,
    /// Whether deliveries are signed.
    signed: bool,
}

/// A stream of Redis, without the password.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RedisStreamView {
    /// With the user, without the password.
    #[schema(format = "uri")]
    url: String,
    /// Whether there is a password.
    authenticated: bool,
    /// The key of the stream.
    stream: String,
    /// The stream is trimmed to about this many entries; `null` is never.
    #[schema(required, minimum = 1)]
    max_len: Option<u64>,
}

/// An exchange of an AMQP broker, without the password.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AmqpView {
    /// With the user, without the password.
    #[schema(format = "uri")]
    url: String,
    /// Whether there is a password.
    authenticated: bool,
    /// The exchange; empty is the default one.
    exchange: String,
    routing_key: String,
}

/// A topic of an MQTT broker, without the password.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct MqttView {
    /// With the user, without the password.
    #[schema(format = "uri")]
    url: String,
    /// Whether there is a password.
    authenticated: bool,
    topic: String,
    /// The quality of service.
    qos: u8,
    /// The version of the protocol.
    version: u8,
}

/// A subject of NATS, without the password or token.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct NatsView {
    /// With the user, without the password.
    #[schema(format = "uri")]
    url: String,
    /// Whether there is a password or a token.
    authenticated: bool,
    subject: String,
    /// Whether a stream confirms each event.
    jetstream: bool,
}

/// A topic of Kafka, without the password.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct KafkaView {
    /// Where the cluster is found.
    brokers: String,
    topic: String,
    /// Who logs in; `null` is nobody.
    #[schema(required)]
    user: Option<String>,
    /// Whether there is a password.
    authenticated: bool,
    /// How the password is shown to the brokers.
    #[schema(value_type = schema::KafkaMechanism)]
    mechanism: Mechanism,
    /// Whether connections are encrypted.
    tls: bool,
}

impl From<Webhook> for HookView {
    fn from(Webhook { url, secret, headers }: Webhook) -> Self {
        let shown = |(name, value): (String, String)| {
            let value = Some(value).filter(|_| !is_secret_header(&name));
            (name, value)
        };
        let headers = headers.into_iter().map(shown).collect();
        Self { url: url.into(), headers, signed: secret.is_some() }
    }
}

impl From<RedisStream> for RedisStreamView {
    fn from(RedisStream { url, stream, max_len }: RedisStream) -> Self {
        Self { url: url.shown(), authenticated: url.has_credentials(), stream, max_len }
    }
}

impl From<Amqp> for AmqpView {
    fn from(Amqp { url, exchange, routing_key }: Amqp) -> Self {
        Self { url: url.shown(), authenticated: url.has_credentials(), exchange, routing_key }
    }
}

impl From<Mqtt> for MqttView {
    fn from(Mqtt { url, topic, qos, version }: Mqtt) -> Self {
        Self { url: url.shown(), authenticated: url.has_credentials(), topic, qos, version }
    }
}

impl From<Nats> for NatsView {
    fn from(Nats { url, subject, jetstream }: Nats) -> Self {
        Self { url: url.shown(), authenticated: url.has_credentials(), subject, jetstream }
    }
}

impl From<Kafka> for KafkaView {
    fn from(Kafka { brokers, topic, user, password, mechanism, tls }: Kafka) -> Self {
        Self { brokers: brokers.to_string(), topic, user, authenticated: password.is_some(), mechanism, tls }
    }
}

/// What a patch makes of the secrets of a place: those that are never shown and that it does not give stay where they are.
/// They do not go to another host, because somebody changed the URL alone.
pub fn keep_secrets(before: &Place, after: &mut Place, patch: &Value) -> Result<(), Problem> {
    match (before, after) {
        (Place::Webhook(before), Place::Webhook(after)) if before.url.origin() != after.url.origin() => {
            takes_no_secret_along(before, after, patch)
        }
        // The password of the one before is in the patched one, if the patch does not say otherwise.
        (Place::Kafka(before), Place::Kafka(after)) if patch.pointer("/kafka/password").is_none() => {
            after.password = None;
            after.keep_password(before);
            Ok(())
        }
        (before, after) => {
            if let (Some(before), Some(after)) = (before.url(), after.url_mut()) {
                after.keep_credentials(before);
            }
            Ok(())
        }
    }
}

/// Checks that the credentials of a place are whole.
pub fn check_credentials(place: &Place) -> Result<(), Problem> {
    place.check_credentials().map_err(|why| {
        let pointer = format!("/{}{}", place.kind(), why.pointer);
        Problem::invalid(vec![FieldError::new(pointer, why.code, why.detail)])
    })
}

/// The secrets of a webhook are given again, or removed, in the call that sends them to another host.
fn takes_no_secret_along(before: &Webhook, after: &Webhook, patch: &Value) -> Result<(), Problem> {
    let given = |pointer: &str| patch.pointer(&format!("/webhook/{pointer}")).is_some();
    let is_kept = before.secret.is_some() && after.secret.is_some() && !given("secret");
    let headers = before.headers.keys().filter(|name| is_secret_header(name));
    let kept_headers = headers.filter(|name| {
        let escaped = name.replace('~', "~0");
        after.headers.contains_key(*name) && !given(&format!("headers/{escaped}"))
    });
    let kept: Vec<FieldError> = is_kept
        .then(|| "/webhook/secret".to_owned())
        .into_iter()
        .chain(kept_headers.map(|name| format!("/webhook/headers/{name}")))
        .map(|pointer| {
            let detail = "the URL goes to another host: give this secret again, or null to remove it";
            FieldError::new(pointer, "secret_needed", detail)
        })
        .collect();
    if kept.is_empty() { Ok(()) } else { Err(Problem::invalid(kept)) }
}

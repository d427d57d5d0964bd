//! Where destinations are: HTTP receivers and brokers, each with its settings, checked.

mod address;
mod kafka;

use serde::{Deserialize, Serialize};

pub use self::address::Address;
pub use self::kafka::{Brokers, Kafka, MAX_TOPIC, Mechanism};
use super::destination::{Secrets, is_loopback_host};
use super::target::Webhook;

/// The longest name of a stream, an exchange, a routing key, a topic and a subject, in bytes.
pub const MAX_PLACE_NAME: usize = 255;

/// Where a destination is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// An HTTP receiver.
    Webhook(Webhook),
    /// A stream of Redis.
    RedisStream(RedisStream),
    /// An exchange of an AMQP 0-9-1 broker.
    Amqp(Amqp),
    /// A topic of an MQTT broker.
    Mqtt(Mqtt),
    /// A subject of NATS.
    Nats(Nats),
    /// A topic of Kafka.
    Kafka(Kafka),
}

/// A stream of Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisStream {
    /// `redis` or `rediss`; the path is the number of the database.
    pub url: Address,
    /// The key of the stream.
    pub stream: String,
    /// The stream is trimmed to about this many entries. Trimming asks no consumer group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_len: Option<u64>,
}

/// An exchange of an AMQP 0-9-1 broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amqp {
    /// `amqp` or `amqps`; the path is the virtual host.
    pub url: Address,
    /// The exchange; empty is the default one, where a routing key is the name of a queue.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
}

/// A topic of an MQTT broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mqtt {
    /// `mqtt` or `mqtts`.
    pub url: Address,
    /// The topic.
    pub topic: String,
    /// The quality of service: 1 or 2.
    pub qos: u8,
    /// The version of the protocol: 5, or 3 for 3.1.1.
    pub version: u8,
}

/// A subject of NATS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nats {
    /// `nats` or `tls`.
    pub url: Address,
    /// The subject.
    pub subject: String,
    /// A stream of JetStream confirms each event.
    pub jetstream: bool,
}

/// A field that is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadField {
    /// Its JSON pointer within the place.
    pub pointer: &'static str,
    /// A stable word for what is wrong.
    pub code: &'static str,
    /// What is wrong, and what is allowed.
    pub detail: String,
}

fn bad(pointer: &'static str, code: &'static str, detail: impl Into<String>) -> BadField {
    BadField { pointer, code, detail: detail.into() }
}

impl Place {
    /// The word of its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::RedisStream(_) => "redis_stream",
            Self::Amqp(_) => "amqp",
            Self::Mqtt(_) => "mqtt",
            Self::Nats(_) => "nats",
            Self::Kafka(_) => "kafka",
        }
    }

    /// The build option of its kind, if this build lacks it.
    pub const fn lacks(&self) -> Option<&'static str> {
        match self {
            Self::Amqp(_) if !cfg!(feature = "amqp") => Some("amqp"),
            Self::Mqtt(_) if !cfg!(feature = "mqtt") => Some("mqtt"),
            Self::Nats(_) if !cfg!(feature = "nats") => Some("nats"),
            Self::Kafka(_) if !cfg!(feature = "kafka") => Some("kafka"),
            _ => None,
        }
    }

    /// The addresses of its brokers; none for an HTTP receiver.
    pub fn addresses(&self) -> &[Address] {
        match self {
            Self::Kafka(kafka) => kafka.brokers.addresses(),
            place => place.url().map_or(&[], std::slice::from_ref),
        }
    }

    /// The URL of its broker; `None` for an HTTP receiver, and where a broker has none.
    pub const fn url(&self) -> Option<&Address> {
        match self {
            Self::Webhook(_) | Self::Kafka(_) => None,
            Self::RedisStream(RedisStream { url, .. })
            | Self::Amqp(Amqp { url, .. })
            | Self::Mqtt(Mqtt { url, .. })
            | Self::Nats(Nats { url, .. }) => Some(url),
        }
    }

    /// The same, to change it.
    pub const fn url_mut(&mut self) -> Option<&mut Address> {
        match self {
            Self::Webhook(_) | Self::Kafka(_) => None,
            Self::RedisStream(RedisStream { url, .. })
            | Self::Amqp(Amqp { url, .. })
            | Self::Mqtt(Mqtt { url, .. })
            | Self::Nats(Nats { url, .. }) => Some(url),
        }
    }

    /// Whether it is on this very machine.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Webhook(hook) => hook.url.host_str().is_some_and(is_loopback_host),
            broker => broker.addresses().iter().all(|address| is_loopback_host(address.host())),
        }
    }

    /// Checks that its credentials are whole, once those that a change keeps are put in. A token of NATS in the place of the
    /// user would be stored and shown in the clear.
    pub fn check_credentials(&self) -> Result<(), BadField> {
        match self.url() {
            Some(url) if matches!(self, Self::Nats(_)) && url.user().is_some() && !url.has_credentials() => {
                let detail = "a user needs a password: write nats://USER:PASSWORD@host, or nats://:TOKEN@host for a token";
                Err(bad("/url", "password_needed", detail))
            }
            _ => Ok(()),
        }
    }

    /// Takes what is secret out of it.
    pub fn take_secrets(&mut self) -> Secrets {
        match self {
            Self::Webhook(hook) => Secrets::taken_from(hook),
            Self::Kafka(kafka) => Secrets { password: kafka.password.take(), ..Secrets::default() },
            broker => broker.url_mut().map(Address::take_credentials).unwrap_or_default(),
        }
    }

    /// Puts it back.
    pub fn put_secrets(&mut self, secrets: Secrets) {
        match self {
            Self::Webhook(hook) => secrets.put_into(hook),
            Self::Kafka(kafka) => kafka.password = secrets.password,
            broker => {
                if let Some(address) = broker.url_mut() {
                    address.put_credentials(&secrets);
                }
            }
        }
    }
}

/// Checks a name that brokers know: a text without control characters. It may be empty.
fn checked_name(pointer: &'static str, name: String) -> Result<String, BadField> {
    match name.len() {
        0..=MAX_PLACE_NAME if name.chars().any(char::is_control) => {
            Err(bad(pointer, "bad_name", "it has control characters"))
        }
        0..=MAX_PLACE_NAME => Ok(name),
        n => Err(bad(pointer, "bad_name", format!("{n} bytes; at most {MAX_PLACE_NAME}"))),
    }
}

impl RedisStream {
    /// Checks a caller's stream.
    pub fn new(url: &str, stream: String, max_len: Option<u64>) -> Result<Self, BadField> {
        let url = Address::new(url, ["redis", "rediss"])?;
        if !url.path().is_empty() && url.path().parse::<u16>().is_err() {
            return Err(bad("/url", "bad_url", "the path is the number of a database, such as /0"));
        }
        if max_len == Some(0) {
            return Err(bad("/max_len", "range", "at least 1"));
        }
        if stream.is_empty() {
            return Err(bad("/stream", "bad_name", "it is empty"));
        }
        Ok(Self { url, stream: checked_name("/stream", stream)?, max_len })
    }

    /// The number of the database: 0 unless the URL names another.
    pub fn database(&self) -> i64 {
        self.url.path().parse().unwrap_or(0)
    }
}

impl Amqp {
    /// Checks a caller's exchange.
    pub fn new(url: &str, exchange: String, routing_key: String) -> Result<Self, BadField> {
        let url = Address::new(url, ["amqp", "amqps"])?;
        let place = Self {
            url,
            exchange: checked_name("/exchange", exchange)?,
            routing_key: checked_name("/routing_key", routing_key)?,
        };
        if place.virtual_host().len() > MAX_PLACE_NAME {
            let detail = format!("the path is the virtual host, of at most {MAX_PLACE_NAME} bytes");
            return Err(bad("/url", "bad_url", detail));
        }
        if place.exchange.is_empty() && place.routing_key.is_empty() {
            let detail = "the default exchange needs the name of a queue here";
            return Err(bad("/routing_key", "bad_name", detail));
        }
        Ok(place)
    }

    /// The virtual host: `/` unless the URL names another.
    pub fn virtual_host(&self) -> String {
        let path = self.url.path();
        if path.is_empty() { "/".into() } else { path }
    }
}

impl Mqtt {
    /// Checks a caller's topic.
    pub fn new(url: &str, topic: String, qos: u8, version: u8) -> Result<Self, BadField> {
        let url = Address::new(url, ["mqtt", "mqtts"])?;
        if !url.path().is_empty() {
            return Err(bad("/url", "bad_url", "the URL has a path; the topic is a field of its own"));
        }
        if topic.is_empty() || topic.contains(['+', '#']) {
            return Err(bad("/topic", "bad_name", "a topic is not empty and has no wildcards (+ and #)"));
        }
        match (qos, version) {
            (1 | 2, 3 | 5) => Ok(Self { url, topic: checked_name("/topic", topic)?, qos, version }),
            (0, _) => Err(bad("/qos", "range", "1 or 2: with 0 no broker says that it has the event")),
            (1 | 2, _) => Err(bad("/version", "range", "5, or 3 for MQTT 3.1.1")),
            _ => Err(bad("/qos", "range", "1 or 2")),
        }
    }
}

impl Nats {
    /// Checks a caller's subject.
    pub fn new(url: &str, subject: String, jetstream: bool) -> Result<Self, BadField> {
        let url = Address::new(url, ["nats", "tls"])?;
        if !url.path().is_empty() {
            return Err(bad("/url", "bad_url", "the URL has a path; the subject is a field of its own"));
        }
        if subject.split('.').any(|token| matches!(token, "" | "*" | ">")) {
            let detail = "a subject is words with dots between them, without wildcards (* and >)";
            return Err(bad("/subject", "bad_name", detail));
        }
        if subject.contains(char::is_whitespace) {
            return Err(bad("/subject", "bad_name", "a subject has no spaces"));
        }
        Ok(Self { url, subject: checked_name("/subject", subject)?, jetstream })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(url: &str) -> Result<RedisStream, BadField> {
        RedisStream::new(url, "s".into(), None)
    }

    #[test]
    fn urls_are_checked() {
        for good in ["redis://h", "rediss://u:p@h:1/3", "redis://[::1]/", "redis://:p@127.0.0.1/0"] {
            assert!(stream(good).is_ok(), "{good}");
        }
        for wrong in
            ["", "h:6379", "http://h", "redis://", "redis://h?x=1", "redis://h:0", "redis://h/x", "redis:h"]
        {
            assert_eq!(stream(wrong).unwrap_err().pointer, "/url", "{wrong}");
        }
        let one = stream("rediss://u:p%40@[::1]:7/3").unwrap();
        assert_eq!((one.url.host(), one.url.port(), one.url.is_tls()), ("::1", 7, true));
        assert_eq!((one.url.user().as_deref(), one.url.password().as_deref()), (Some("u"), Some("p@")));
        assert_eq!(one.database(), 3);
        assert_eq!(stream("redis://h").unwrap().url.port(), 6379);
    }

    #[test]
    fn names_are_checked() {
        let pointer = |stream: &str, max_len| {
            RedisStream::new("redis://h", stream.into(), max_len).map_or_else(|why| why.pointer, |_| "")
        };
        let long = "x".repeat(MAX_PLACE_NAME + 1);
        assert_eq!(
            [
                pointer("a:b", None),
                pointer("", None),
                pointer("a\n", None),
                pointer(&long, None),
                pointer("a", Some(0))
            ],
            ["", "/stream", "/stream", "/stream", "/max_len"]
        );
    }

    #[test]
    fn an_exchange_is_checked() {
        let new = |url: &str, exchange: &str, key: &str| Amqp::new(url, exchange.into(), key.into());
        for (url, port, host) in [
            ("amqp://h", 5672, "/"),
            ("amqp://h/", 5672, "/"),
            ("amqps://h/%2f", 5671, "/"),
            ("amqps://h:7/shop", 7, "shop"),
        ] {
            let one = new(url, "", "q").unwrap();
            let found = (one.url.port(), one.virtual_host(), one.url.is_tls());
            assert_eq!(found, (port, host.to_owned(), url.starts_with("amqps")), "{url}");
        }
        let long = "x".repeat(MAX_PLACE_NAME + 1);
        for (url, exchange, key, pointer) in [
            ("redis://h", "x", "", "/url"),
            ("amqp://h?heartbeat=1", "x", "", "/url"),
            (&format!("amqp://h/{long}"), "x", "", "/url"),
            ("amqp://h", "", "", "/routing_key"),
            ("amqp://h", "x", &long, "/routing_key"),
            ("amqp://h", "x\n", "", "/exchange"),
            ("amqp://h", "x", "", ""),
        ] {
            assert_eq!(
                new(url, exchange, key).map_or_else(|why| why.pointer, |_| ""),
                pointer,
                "{url} {key}"
            );
        }
    }

    #[test]
    fn a_topic_is_checked() {
        let pointer = |url: &str, topic: &str, qos, version| {
            Mqtt::new(url, topic.into(), qos, version).map_or_else(|why| why.pointer, |_| "")
        };
        assert_eq!(
            [
                pointer("mqtt://h", "a/b", 1, 5),
                pointer("mqtts://h:1/", "a", 2, 5),
                pointer("mqtt://h/a", "a", 1, 5),
                pointer("mqtt://h", "a/+", 1, 5),
                pointer("mqtt://h", "", 1, 5),
                pointer("mqtt://h", "a", 0, 5),
                pointer("mqtt://h", "a", 3, 5),
                pointer("mqtt://h", "a", 1, 3),
                pointer("mqtt://h", "a", 1, 4),
            ],
            ["", "", "/url", "/topic", "/topic", "/qos", "/qos", "", "/version"]
        );
        let port = |url: &str| Mqtt::new(url, "a".into(), 1, 5).unwrap().url.port();
        assert_eq!([port("mqtt://h"), port("mqtts://h"), port("mqtt://h:7")], [1883, 8883, 7]);
    }

    #[test]
    fn a_subject_is_checked() {
        let pointer = |url: &str, subject: &str| {
            Nats::new(url, subject.into(), false).map_or_else(|why| why.pointer, |_| "")
        };
        assert_eq!(
            [
                pointer("nats://h", "a.b-c"),
                pointer("tls://h:1/", "a"),
                pointer("nats://h/a", "a"),
                pointer("mqtt://h", "a"),
                pointer("nats://h", ""),
                pointer("nats://h", "a..b"),
                pointer("nats://h", "a.*"),
                pointer("nats://h", ">"),
                pointer("nats://h", "a b"),
                pointer("nats://h", "a\r\nPUB x 0"),
            ],
            ["", "", "/url", "/url", "/subject", "/subject", "/subject", "/subject", "/subject", "/subject"]
        );
        let credentials = |url: &str| {
            let place = Place::Nats(Nats::new(url, "a".into(), true).unwrap());
            place.check_credentials().map_or_else(|why| why.pointer, |()| "")
        };
        assert_eq!(
            ["nats://h", "nats://u:p@h", "nats://:token@h", "nats://token@h", "tls://u:@h"].map(credentials),
            ["", "", "", "/url", "/url"]
        );
        let port = |url: &str| Nats::new(url, "a".into(), true).unwrap().url.port();
        assert_eq!([port("nats://h"), port("tls://h"), port("nats://h:7")], [4222, 4222, 7]);
    }

    #[test]
    fn credentials_are_taken_out_put_back_and_never_shown() {
        for url in ["redis://u:t0p%2F@h/", "redis://:t0p@h/", "redis://h"] {
            let whole = Place::RedisStream(stream(url).unwrap());
            let mut place = whole.clone();
            let secrets = place.take_secrets();
            let stored = serde_json::to_string(&place).unwrap();
            assert!(!stored.contains("t0p"), "{stored}");
            assert!(!format!("{whole:?}{secrets:?}").contains("t0p"));
            let mut read: Place = serde_json::from_str(&stored).unwrap();
            read.put_secrets(secrets);
            assert_eq!(read.url().map(Address::password), whole.url().map(Address::password));
            assert_eq!(read.url().map(Address::user), whole.url().map(Address::user));
        }
    }

    #[test]
    fn a_url_without_a_password_keeps_that_of_the_same_user_there() {
        let kept = |text: &str| {
            let mut url = stream(text).unwrap().url;
            url.keep_credentials(&stream("redis://u:p@h/").unwrap().url);
            url.password()
        };
        assert_eq!(kept("redis://u@h/").as_deref(), Some("p"));
        assert_eq!(kept("redis://u:q@h/").as_deref(), Some("q"));
        for other in ["redis://v@h/", "redis://u@h2/", "redis://u@h:1/", "rediss://u@h/"] {
            assert_eq!(kept(other), None, "{other}");
        }
    }
}

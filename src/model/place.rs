//! Where destinations are: HTTP receivers and brokers, each with its settings, checked.

use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use url::Url;

use super::destination::{Secrets, is_loopback_host};
use super::target::{MAX_URL, Webhook};

/// The longest name of a stream, an exchange, a routing key and a topic, in bytes.
pub const MAX_PLACE_NAME: usize = 255;

/// The schemes of brokers' addresses: whether connections are encrypted, and the port that stands for none.
const SCHEMES: [(&str, bool, u16); 6] = [
    ("redis", false, 6379),
    ("rediss", true, 6379),
    ("amqp", false, 5672),
    ("amqps", true, 5671),
    ("mqtt", false, 1883),
    ("mqtts", true, 8883),
];

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
    /// The version of the protocol: 5.
    pub version: u8,
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
        }
    }

    /// The build option of its kind, if this build lacks it.
    pub const fn lacks(&self) -> Option<&'static str> {
        match self {
            Self::Amqp(_) if !cfg!(feature = "amqp") => Some("amqp"),
            Self::Mqtt(_) if !cfg!(feature = "mqtt") => Some("mqtt"),
            Self::Webhook(_) | Self::RedisStream(_) | Self::Amqp(_) | Self::Mqtt(_) => None,
        }
    }

    /// The address of its broker; `None` for an HTTP receiver.
    pub const fn address(&self) -> Option<&Address> {
        match self {
            Self::Webhook(_) => None,
            Self::RedisStream(RedisStream { url, .. })
            | Self::Amqp(Amqp { url, .. })
            | Self::Mqtt(Mqtt { url, .. }) => Some(url),
        }
    }

    /// The same, to change it.
    pub const fn address_mut(&mut self) -> Option<&mut Address> {
        match self {
            Self::Webhook(_) => None,
            Self::RedisStream(RedisStream { url, .. })
            | Self::Amqp(Amqp { url, .. })
            | Self::Mqtt(Mqtt { url, .. }) => Some(url),
        }
    }

    /// Whether it is on this very machine.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Webhook(hook) => hook.url.host_str().is_some_and(is_loopback_host),
            broker => broker.address().is_some_and(|address| is_loopback_host(address.host())),
        }
    }

    /// Takes what is secret out of it.
    pub fn take_secrets(&mut self) -> Secrets {
        match self {
            Self::Webhook(hook) => Secrets::taken_from(hook),
            broker => broker.address_mut().map(Address::take_credentials).unwrap_or_default(),
        }
    }

    /// Puts it back.
    pub fn put_secrets(&mut self, secrets: Secrets) {
        match self {
            Self::Webhook(hook) => secrets.put_into(hook),
            broker => {
                if let Some(address) = broker.address_mut() {
                    address.put_credentials(&secrets);
                }
            }
        }
    }
}

/// The address of a broker: a URL that may hold a user and a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Address(Url);

impl std::fmt::Debug for Address {
    /// Credentials never reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.host())
    }
}

impl Address {
    /// Checks a caller's URL: one of two schemes, the second one with TLS.
    fn new(text: &str, schemes: [&str; 2]) -> Result<Self, BadField> {
        let bad = |detail: String| bad("/url", "bad_url", detail);
        if text.len() > MAX_URL {
            return Err(bad(format!("a URL of {} bytes; at most {MAX_URL}", text.len())));
        }
        let [plain, tls] = schemes;
        let url =
            Url::parse(text).map_err(|why| bad(format!("not a URL ({why}); such as {plain}://host/")))?;
        if !schemes.contains(&url.scheme()) {
            return Err(bad(format!("scheme `{}`; {plain} or, with TLS, {tls}", url.scheme())));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(bad("the URL has no host".into()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("the URL has options (?… or #…); there are none".into()));
        }
        if url.port() == Some(0) {
            return Err(bad("port 0 is not allowed".into()));
        }
        Ok(Self(url))
    }

    /// The name or address of the host; an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    /// The host, if it is an address.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host().parse().ok()
    }

    /// Its port, or that of the scheme.
    pub fn port(&self) -> u16 {
        self.0.port().unwrap_or(self.scheme().2)
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.scheme().1
    }

    fn scheme(&self) -> (&'static str, bool, u16) {
        let known = SCHEMES.into_iter().find(|(name, ..)| *name == self.0.scheme());
        // Of a later version; such a place is not sent to.
        known.unwrap_or(("", false, 0))
    }

    /// The user, if there is one.
    pub fn user(&self) -> Option<String> {
        Some(decoded(self.0.username())).filter(|user| !user.is_empty())
    }

    /// The password, if there is one.
    pub fn password(&self) -> Option<String> {
        self.0.password().map(decoded)
    }

    /// What follows the host, without the first slash.
    pub fn path(&self) -> String {
        decoded(self.0.path().strip_prefix('/').unwrap_or_default())
    }

    /// The URL as it is shown: with the user, without the password.
    pub fn shown(&self) -> String {
        let mut shown = self.clone();
        shown.take_credentials();
        shown.0.into()
    }

    /// Whether there is something that is not shown.
    pub fn has_credentials(&self) -> bool {
        self.0.password().is_some()
    }

    /// Takes the credentials of this address over from the one before, if it goes to the same user at the same place
    /// and has none of its own: they are never shown, so that who changes a URL may not know them.
    pub fn keep_credentials(&mut self, before: &Self) {
        if !self.has_credentials() && self.shown() == before.shown() {
            *self = before.clone();
        }
    }

    fn take_credentials(&mut self) -> Secrets {
        let password = self.password();
        // Fails only for a URL without a host, which this is not.
        let _ = self.0.set_password(None);
        Secrets { password, ..Secrets::default() }
    }

    fn put_credentials(&mut self, secrets: &Secrets) {
        if let Some(password) = &secrets.password {
            let _ = self.0.set_password(Some(password));
        }
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
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
            (1 | 2, 5) => Ok(Self { url, topic: checked_name("/topic", topic)?, qos, version }),
            (0, _) => Err(bad("/qos", "range", "1 or 2: with 0 no broker says that it has the event")),
            (1 | 2, 3) => {
                Err(bad("/version", "not_supported", "this version of the service speaks MQTT 5 only"))
            }
            (1 | 2, _) => Err(bad("/version", "range", "5")),
            _ => Err(bad("/qos", "range", "1 or 2")),
        }
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
            ],
            ["", "", "/url", "/topic", "/topic", "/qos", "/qos", "/version"]
        );
        let port = |url: &str| Mqtt::new(url, "a".into(), 1, 5).unwrap().url.port();
        assert_eq!([port("mqtt://h"), port("mqtts://h"), port("mqtt://h:7")], [1883, 8883, 7]);
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
            assert_eq!(read.address().map(Address::password), whole.address().map(Address::password));
            assert_eq!(read.address().map(Address::user), whole.address().map(Address::user));
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

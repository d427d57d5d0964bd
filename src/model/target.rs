//! Targets: where a firing is delivered: an inline webhook, a destination by its name, or a queue, where workers fetch it.
//!
//! A new kind of target needs a variant of [`Kind`] and of [`Target`]; the compiler then names every place that
//! must handle it (docs/architecture.md, "A new kind of target").

use std::collections::BTreeMap;

use base64::Engine;
use serde::{Deserialize, Serialize};
use url::Url;

use super::id::digest16;
use super::namespace::Namespace;

/// The most static headers a webhook may carry.
pub const MAX_HEADERS: usize = 16;
/// The longest URL, in bytes.
pub const MAX_URL: usize = 2048;
/// The most bytes of one header, name and value together.
pub const MAX_HEADER_BYTES: usize = 1024;
/// The longest signing key, in bytes.
pub const MAX_SECRET_BYTES: usize = 512;
const SECRET_PREFIX: &str = "whsec_";
/// What a sealed secret begins with. No caller's secret does: it would be no base64.
pub const SEALED: &str = "sealed:";

/// Headers that the connection or the service sets; a caller cannot.
const RESERVED: [&str; 10] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "user-agent",
];

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal $word:literal),* $(,)?) => {
        /// The kinds of targets that this build knows. Timers of other kinds are never claimed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $kind),*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The number of this kind in SQL. It is never reused for another kind.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$kind => $code),*
                }
            }

            /// The field that holds a target of this kind in JSON.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word),*
                }
            }
        }
    };
}

impl Kind {
    /// Whether the service sends to targets of this kind; from a queue workers fetch.
    pub const fn is_sent(self) -> bool {
        !matches!(self, Self::Queue)
    }
}

kinds! {
    /// [`Target::Webhook`].
    Webhook = 0 "webhook",
    /// [`Target::Destination`].
    Destination = 1 "destination",
    /// [`Target::Queue`].
    Queue = 2 "queue",
}

/// A target, as the cold store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// An HTTP receiver.
    Webhook(Webhook),
    /// A destination, by its name ([`super::destination`]).
    Destination(String),
    /// A queue, by its name ([`super::queue`]).
    Queue(String),
    /// A kind that this build does not know, registered by a newer node. This node can show, cancel and
    /// reschedule the timer; only a node that knows the kind claims it.
    #[serde(skip)]
    Unknown {
        /// Its number in SQL.
        kind: i16,
    },
}

impl Target {
    /// The number of its kind in SQL.
    pub const fn kind(&self) -> i16 {
        match self {
            Self::Webhook(_) => Kind::Webhook.code(),
            Self::Destination(_) => Kind::Destination.code(),
            Self::Queue(_) => Kind::Queue.code(),
            Self::Unknown { kind } => *kind,
        }
    }

    /// The word of its kind, in metrics.
    pub const fn kind_word(&self) -> &'static str {
        match self {
            Self::Webhook(_) => Kind::Webhook.word(),
            Self::Destination(_) => Kind::Destination.word(),
            Self::Queue(_) => Kind::Queue.word(),
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Scheme, host and port of a webhook.
    pub fn receiver(&self) -> Option<String> {
        match self {
            Self::Webhook(hook) => Some(hook.url.origin().ascii_serialization()),
            Self::Destination(_) | Self::Queue(_) | Self::Unknown { .. } => None,
        }
    }

    /// The name of a destination.
    pub fn destination(&self) -> Option<&str> {
        match self {
            Self::Destination(name) => Some(name),
            Self::Webhook(_) | Self::Queue(_) | Self::Unknown { .. } => None,
        }
    }

    /// The name of a queue.
    pub fn queue(&self) -> Option<&str> {
        match self {
            Self::Queue(name) => Some(name),
            Self::Webhook(_) | Self::Destination(_) | Self::Unknown { .. } => None,
        }
    }

    /// What people call it: the receiver of a webhook, or the name of a destination or queue.
    pub fn shown(&self) -> Option<String> {
        self.receiver().or_else(|| self.destination().or(self.queue()).map(str::to_owned))
    }

    /// The lane of this target. Targets of one lane share limits and wait for each other.
    pub fn lane(&self, namespace: Namespace) -> i64 {
        match self {
            Self::Webhook(hook) => hook.lane(namespace),
            Self::Destination(name) => super::destination::lane(namespace, name),
            Self::Queue(name) => super::queue::lane(namespace, name),
            Self::Unknown { .. } => 0,
        }
    }

    /// The JSON text that the cold store stores.
    pub fn stored(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses what [`Target::stored`] returned, for the kind with this number.
    pub fn read(kind: i16, stored: &str) -> Result<Self, serde_json::Error> {
        match Kind::ALL.iter().any(|known| known.code() == kind) {
            true => serde_json::from_str(stored),
            false => Ok(Self::Unknown { kind }),
        }
    }
}

/// An HTTP receiver, checked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// `http` or `https`, without credentials or fragment.
    pub url: Url,
    /// The signing secret, `whsec_` and base64, or [`SEALED`] and what only a node with the key can read; it is never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Static headers, lower-case names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl std::fmt::Debug for Webhook {
    /// Secrets and headers (which often hold tokens) never reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("origin", &self.url.origin().ascii_serialization())
            .finish_non_exhaustive()
    }
}

/// An error in a webhook: the field, and the error in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct BadWebhook {
    /// The JSON pointer within the webhook object.
    pub pointer: String,
    /// What is wrong, and what is allowed.
    pub detail: String,
}

impl Webhook {
    /// Whether its secret is sealed.
    pub fn is_sealed(&self) -> bool {
        self.secret.as_ref().is_some_and(|secret| secret.starts_with(SEALED))
    }

    /// Checks a caller's webhook.
    pub fn new(
        url: &str,
        secret: Option<String>,
        headers: BTreeMap<String, String>,
    ) -> Result<Self, BadWebhook> {
        let bad = |pointer: &str, detail: String| BadWebhook { pointer: pointer.into(), detail };
        let url = check_url(url).map_err(|detail| bad("/url", detail))?;
        if let Some(secret) = &secret {
            secret_keys(secret).map_err(|detail| bad("/secret", detail))?;
        }
        if headers.len() > MAX_HEADERS {
            return Err(bad("/headers", format!("{} headers; at most {MAX_HEADERS}", headers.len())));
        }
        let mut kept = BTreeMap::new();
        for (name, value) in headers {
            let lower = name.to_ascii_lowercase();
            check_header(&lower, &value).map_err(|detail| {
                bad(&format!("/headers/{}", name.replace('~', "~0").replace('/', "~1")), detail)
            })?;
            if kept.insert(lower, value).is_some() {
                let detail = "a header is given twice; upper and lower case are the same";
                return Err(bad("/headers", detail.into()));
            }
        }
        Ok(Self { url, secret, headers: kept })
    }

    /// The lane of this receiver. Its upper half is a hash of the group: the address, or the last two labels of the name.
    /// Its lower half is a hash of scheme, host and port. So the receivers of one host or one domain can be told from
    /// the others by the lane alone. Each namespace has lanes of its own: what one sends to a receiver, and how that
    /// answers, is nothing to another one.
    pub fn lane(&self, namespace: Namespace) -> i64 {
        let group = namespace.qualified(group(self.url.host_str().unwrap_or("")));
        let [a, b, c, d, ..] = digest16(&[b"group", group.as_bytes()]);
        let [e, f, g, h, ..] = self.digest(namespace);
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The lanes under which timers for this receiver may be stored: its lane, and the one that it had in the first
    /// version of the schema, a hash of scheme, host and port.
    pub fn lanes(&self, namespace: Namespace) -> [i64; 2] {
        let [a, b, c, d, e, f, g, h, ..] = self.digest(namespace);
        [self.lane(namespace), i64::from_be_bytes([a, b, c, d, e, f, g, h])]
    }

    fn digest(&self, namespace: Namespace) -> [u8; 16] {
        let port = self.url.port_or_known_default().unwrap_or(0);
        let host = namespace.qualified(self.url.host_str().unwrap_or(""));
        digest16(&[b"lane", self.url.scheme().as_bytes(), host.as_bytes(), &port.to_be_bytes()])
    }
}

/// The group of a host: an address is its own, a name belongs to its last two labels.
fn group(host: &str) -> &str {
    let is_address = host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok();
    match host.trim_end_matches('.').rmatch_indices('.').nth(1) {
        Some((at, _)) if !is_address => &host[at + 1..],
        _ => host,
    }
}

/// Whether a name means this very machine.
pub fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn check_url(text: &str) -> Result<Url, String> {
    if text.len() > MAX_URL {
        return Err(format!("a URL of {} bytes; at most {MAX_URL}", text.len()));
    }
    let url =
        Url::parse(text).map_err(|why| format!("not a URL ({why}); use an absolute http or https URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("scheme `{}`; only http and https are allowed", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the URL has no host".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL contains credentials; send them in a header, such as authorization".into());
    }
    if url.fragment().is_some() {
        return Err("the URL has a fragment (#…), which is never sent; remove it".into());
    }
    if url.port() == Some(0) {
        return Err("port 0 is not allowed".into());
    }
    Ok(url)
}

fn check_header(name: &str, value: &str) -> Result<(), String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err("not a header name".into());
    }
    if RESERVED.contains(&name) || name.starts_with("ce-") || name.starts_with("webhook-") {
        return Err(format!("`{name}` is set by the service"));
    }
    if name.len() + value.len() > MAX_HEADER_BYTES {
        return Err(format!("name and value have more than {MAX_HEADER_BYTES} bytes"));
    }
    if !value.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Err("the value contains characters other than printable ASCII".into());
    }
    Ok(())
}

/// The keys of a webhook's `secret`: of one Standard Webhooks secret, or of two with a space between them, while a receiver
/// changes from one to the other.
pub fn secret_keys(secret: &str) -> Result<Vec<Vec<u8>>, String> {
    let all: Vec<&str> = secret.split(' ').collect();
    if all.len() > 2 {
        return Err("at most two secrets, with one space between them".into());
    }
    all.into_iter().map(secret_bytes).collect()
}

/// The key in a Standard Webhooks secret: base64, with or without the prefix `whsec_`.
pub fn secret_bytes(secret: &str) -> Result<Vec<u8>, String> {
    let text = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
    let key = base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|_| "not a Standard Webhooks secret: `whsec_` followed by base64".to_owned())?;
    match key.len() {
        0 => Err("the secret is empty".into()),
        1..=MAX_SECRET_BYTES => Ok(key),
        n => Err(format!("the secret has {n} bytes; at most {MAX_SECRET_BYTES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(url: &str) -> Result<Webhook, BadWebhook> {
        Webhook::new(url, None, BTreeMap::new())
    }

    #[test]
    fn urls_are_checked() {
        for good in ["http://127.0.0.1:9000/x?y=1", "https://shop.example/hooks", "http://[::1]:9/"] {
            assert!(hook(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "shop.example",
            "ftp://a/",
            "http://",
            "http://u:p@a/",
            "http://a/#f",
            "http://a:0/",
            "file:///etc",
        ] {
            assert_eq!(hook(bad).unwrap_err().pointer, "/url", "{bad}");
        }
    }

    #[test]
    fn headers_and_secrets_are_checked() {
        let with = |name: &str, value: &str| {
            Webhook::new("http://a/", None, BTreeMap::from([(name.to_owned(), value.to_owned())]))
        };
        assert!(with("X-Api-Key", "k").is_ok());
        for (name, value) in
            [("Host", "x"), ("ce-id", "x"), ("webhook-id", "x"), ("a b", "x"), ("x", "a\r\nb: c"), ("x", "ü")]
        {
            assert!(with(name, value).is_err(), "{name}: {value}");
        }
        assert!(Webhook::new("http://a/", Some("whsec_c2VjcmV0".into()), BTreeMap::new()).is_ok());
        assert_eq!(
            Webhook::new("http://a/", Some("not base64!".into()), BTreeMap::new()).unwrap_err().pointer,
            "/secret"
        );
    }

    #[test]
    fn a_target_is_read_as_it_was_stored_and_an_unknown_kind_is_no_error() {
        let target = Target::Webhook(hook("https://shop.example/hooks").unwrap());
        assert_eq!(Target::read(target.kind(), &target.stored()).unwrap(), target);
        assert_eq!(Target::read(9, "{\"carrier_pigeon\":{}}").unwrap(), Target::Unknown { kind: 9 });
        assert!(Target::read(target.kind(), "{").is_err());
    }

    #[test]
    fn a_lane_is_scheme_host_and_port() {
        let lane = |url| hook(url).unwrap().lane(Namespace::OWN);
        assert_eq!(lane("http://a/x"), lane("http://A:80/y"));
        assert_ne!(lane("http://a/"), lane("https://a/"));
        assert_ne!(lane("http://a/"), lane("http://a:81/"));
        let group = |url| lane(url) >> 32;
        assert_eq!(group("http://a.shop.example/"), group("https://b.shop.example:81/"));
        assert_ne!(group("http://shop.example/"), group("http://mall.example/"));
        assert_eq!(group("http://10.0.0.1/"), group("http://10.0.0.1:81/"));
        assert_ne!(group("http://10.0.0.1/"), group("http://10.9.0.1/"));
        assert_ne!(group("http://[2001:db8::1]/"), group("http://[2001:db8::2]/"));
        assert_eq!(hook("http://a/x").unwrap().lanes(Namespace::OWN)[0], lane("http://a/"));
        let of_another = hook("http://a/").unwrap().lane(Namespace(7));
        assert_ne!(of_another, lane("http://a/"));
        assert_ne!(of_another >> 32, group("http://a/"));
        assert_eq!(hook("http://a/").unwrap().lanes(Namespace(7))[0], of_another);
    }

    #[test]
    fn a_secret_is_one_or_two() {
        let keys = |text: &str| secret_keys(text).map(|keys| keys.len());
        assert_eq!((keys("whsec_c2VjcmV0"), keys("whsec_c2VjcmV0 b3RoZXI=")), (Ok(1), Ok(2)));
        for bad in ["", " ", "whsec_c2VjcmV0 ", "whsec_c2VjcmV0  b3RoZXI=", "YQ== YQ== YQ==", "whsec_"] {
            assert!(keys(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let hook =
            Webhook::new("http://a/?token=t0p", Some("whsec_c2VjcmV0".into()), BTreeMap::new()).unwrap();
        let shown = format!("{hook:?}");
        assert!(!shown.contains("c2Vj") && !shown.contains("t0p"), "{shown}");
    }
}

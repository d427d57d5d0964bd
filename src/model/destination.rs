//! Destinations: named places that deliveries go to, with what they need and what they bear.
//!
//! A timer keeps a destination's name. What it stands for is looked up at the attempt, so a changed URL or secret holds
//! for what is registered already.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::id::digest16;
use super::namespace::Namespace;
use super::place::Place;
use super::policy::Retry;
use super::target::{Webhook, is_local_name};
use super::time::{Span, UnixMs};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 64;

/// The most attempts at once that a destination may ask for on each node.
pub const MAX_CONCURRENCY: usize = 10_000;

/// The highest rate that may be asked for, in attempts a second.
pub const MAX_RATE: u32 = 100_000;

/// Whether a text can be a destination's name.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        // `.` and `..` mean something else in a path.
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The lane of a destination. Its upper half is its group, which no other destination has (but by chance).
pub fn lane(namespace: Namespace, name: &str) -> i64 {
    let name = namespace.qualified(name);
    let [a, b, c, d, e, f, g, h, ..] = digest16(&[b"destination", name.as_bytes()]);
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// The word of its kind.
    pub kind: String,
    /// Where it is, or why this node cannot tell.
    pub place: Result<Place, Closed>,
    /// What it bears.
    pub limits: Limits,
    /// What falls due for it is kept.
    pub paused: bool,
    /// Rises with every change.
    pub version: i32,
    /// When it was made.
    pub created_at: UnixMs,
}

impl Destination {
    /// Whether nothing is to be sent there from this node now: it is paused, or this node cannot.
    pub const fn is_held(&self) -> bool {
        self.paused || self.place.is_err()
    }

    /// Its lane.
    pub fn lane(&self) -> i64 {
        lane(self.namespace, &self.name)
    }
}

/// Why a node cannot use a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Its kind is of a later version, or of a build option that this build lacks.
    Unknown,
    /// Its secrets cannot be opened with this node's keys.
    Locked,
}

/// What a destination bears. `None` is the setting of the service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Attempts at once, for each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// Attempts a second, all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// How failed attempts are repeated, for timers without a `retry` of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The time limit of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

impl Limits {
    /// The limits in the stored settings of a destination of any kind ([`Settings`]).
    pub fn of_settings(stored: &str) -> Option<Self> {
        serde_json::from_str(stored).ok()
    }
}

/// The settings of a destination as they are stored: without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What it bears.
    #[serde(flatten)]
    pub limits: Limits,
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
}

/// What of a destination is not shown and not stored in the clear.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// The signing secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Headers that hold credentials.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The password in the URL of a broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(hidden)")
    }
}

impl Secrets {
    /// Whether there is nothing to hide.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes the secrets out of a webhook.
    pub fn taken_from(hook: &mut Webhook) -> Self {
        let (hidden, shown) =
            std::mem::take(&mut hook.headers).into_iter().partition(|(name, _)| is_secret_header(name));
        hook.headers = shown;
        Self { secret: hook.secret.take(), headers: hidden, ..Self::default() }
    }

    /// Puts them back.
    pub fn put_into(self, hook: &mut Webhook) {
        hook.secret = self.secret;
        hook.headers.extend(self.headers);
    }
}

/// Whether a header of this name (in lower case) holds a credential: its value is then not shown.
pub fn is_secret_header(name: &str) -> bool {
    ["auth", "cookie", "key", "token", "secret", "pass", "pwd", "cred", "session", "bearer", "jwt", "sign"]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether a host is this very machine.
pub fn is_loopback_host(host: &str) -> bool {
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => is_local_name(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        for good in ["a", "task-log", "shop.orders_2", &"x".repeat(MAX_NAME)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".a", "a b", "a/b", "ä", "a:b", &"x".repeat(MAX_NAME + 1)] {
            assert!(!is_name(bad), "{bad}");
        }
        let lane = |name| lane(Namespace::OWN, name);
        assert_ne!(lane("a") >> 32, lane("b") >> 32);
        assert_ne!(lane("a"), super::lane(Namespace(7), "a"), "of another namespace");
    }

    #[test]
    fn secrets_are_taken_out_and_put_back() {
        let headers = [("authorization", "Bearer x"), ("x-tenant", "shop"), ("x-api-key", "k")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let whole = Webhook::new("http://a/", Some("whsec_c2VjcmV0".into()), headers).unwrap();
        let mut hook = whole.clone();
        let secrets = Secrets::taken_from(&mut hook);
        assert_eq!(hook.headers.keys().collect::<Vec<_>>(), ["x-tenant"]);
        assert_eq!(hook.secret, None);
        assert!(!secrets.is_empty() && !format!("{secrets:?}").contains("Bearer"));
        secrets.put_into(&mut hook);
        assert_eq!(hook, whole);
    }

    #[test]
    fn loopback_is_this_machine() {
        for here in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "x.localhost"] {
            assert!(is_loopback_host(here), "{here}");
        }
        assert!(!is_loopback_host("10.0.0.1") && !is_loopback_host("shop.example"));
    }
}

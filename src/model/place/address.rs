//! Addresses of brokers: URLs whose credentials are taken out, put back and never shown.

use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{BadField, bad};
use crate::model::destination::Secrets;
use crate::model::target::MAX_URL;

/// The schemes of brokers' addresses: whether connections are encrypted, and the port that stands for none.
const SCHEMES: [(&str, bool, u16); 9] = [
    ("redis", false, 6379),
    ("rediss", true, 6379),
    ("amqp", false, 5672),
    ("amqps", true, 5671),
    ("mqtt", false, 1883),
    ("mqtts", true, 8883),
    ("nats", false, 4222),
    ("tls", true, 4222),
    ("kafka", false, 9092),
];

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
    pub(super) fn new(text: &str, schemes: [&str; 2]) -> Result<Self, BadField> {
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

    /// Checks `host:port`, as Kafka has it.
    pub fn of_kafka(text: &str) -> Result<Self, BadField> {
        if text.contains(['/', '@', '?', '#']) || text.contains(char::is_whitespace) {
            return Err(bad("/url", "bad_url", "a broker is a host and a port"));
        }
        Self::new(&format!("kafka://{text}"), ["kafka", "kafka"])
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

    pub(super) fn take_credentials(&mut self) -> Secrets {
        let password = self.password();
        // Fails only for a URL without a host, which this is not.
        let _ = self.0.set_password(None);
        Secrets { password, ..Secrets::default() }
    }

    pub(super) fn put_credentials(&mut self, secrets: &Secrets) {
        if let Some(password) = &secrets.password {
            let _ = self.0.set_password(Some(password));
        }
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

//! Topics of Kafka.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Address, BadField, bad, checked_name};
use crate::model::destination::is_loopback_host;
use crate::model::target::MAX_URL;

/// The most brokers of a list. Others are found through them.
const MAX_BROKERS: usize = 16;

/// The longest name of a topic, in bytes: Kafka's own limit.
pub const MAX_TOPIC: usize = 249;

/// A topic of Kafka.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kafka {
    /// Where a cluster is found.
    pub brokers: Brokers,
    /// The topic.
    pub topic: String,
    /// Who logs in, by SASL; nobody without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// How the password is shown to the brokers.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// Whether connections are encrypted.
    #[serde(default)]
    pub tls: bool,
}

/// The brokers at which a cluster is found: `host:port,host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Brokers(Vec<Address>);

/// A mechanism of SASL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// The password itself: with TLS only, but on this machine.
    #[default]
    Plain,
    /// A proof of it, with SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// A proof of it, with SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl Mechanism {
    /// Its name in lower case.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ScramSha256 => "scram-sha-256",
            Self::ScramSha512 => "scram-sha-512",
        }
    }
}

impl Brokers {
    /// Checks a caller's list.
    pub fn new(text: &str) -> Result<Self, BadField> {
        let wrong = |detail: String| bad("/brokers", "bad_brokers", detail);
        if text.len() > MAX_URL {
            return Err(wrong(format!("{} bytes; at most {MAX_URL}", text.len())));
        }
        let brokers: Result<Vec<_>, _> =
            text.split(',').map(|broker| Address::of_kafka(broker.trim())).collect();
        match brokers {
            Err(why) => Err(wrong(format!("{}; such as host:9092,host:9092", why.detail))),
            Ok(brokers) if brokers.len() > MAX_BROKERS => {
                Err(wrong(format!("{} brokers; at most {MAX_BROKERS}", brokers.len())))
            }
            Ok(brokers) => Ok(Self(brokers)),
        }
    }

    /// Where they are.
    pub fn addresses(&self) -> &[Address] {
        &self.0
    }
}

impl fmt::Display for Brokers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, address) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match address.host() {
                host if host.contains(':') => write!(f, "{comma}[{host}]:{}", address.port())?,
                host => write!(f, "{comma}{host}:{}", address.port())?,
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for Brokers {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text).map_err(|why| why.detail)
    }
}

impl From<Brokers> for String {
    fn from(brokers: Brokers) -> Self {
        brokers.to_string()
    }
}

impl Kafka {
    /// Checks a caller's topic and user.
    pub fn checked(self) -> Result<Self, BadField> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_TOPIC).contains(&self.topic.len())
            || !self.topic.bytes().all(is_name)
            || self.topic.starts_with('.')
        {
            let detail = format!("1 to {MAX_TOPIC} of A-Z a-z 0-9 . _ -, and no dot first");
            return Err(bad("/topic", "bad_name", detail));
        }
        match (&self.user, &self.password) {
            (None, Some(_)) => return Err(bad("/user", "missing", "a password is somebody's")),
            (Some(user), _) if user.is_empty() => return Err(bad("/user", "bad_name", "it is empty")),
            (Some(user), _) => drop(checked_name("/user", user.clone())?),
            (None, None) => {}
        }
        if let Some(password) = &self.password {
            checked_name("/password", password.clone())?;
        }
        let is_elsewhere = |broker: &Address| !is_loopback_host(broker.host());
        if self.user.is_some()
            && self.mechanism == Mechanism::Plain
            && !self.tls
            && self.brokers.addresses().iter().any(is_elsewhere)
        {
            let detail = "`plain` sends the password in the clear to another machine: set `tls` to true, or use \
                          scram-sha-256 or scram-sha-512";
            return Err(bad("/mechanism", "password_in_clear", detail));
        }
        Ok(self)
    }

    /// Takes the password over from the place before, if the same user goes to the same brokers in the same way.
    pub fn keep_password(&mut self, before: &Self) {
        let same = |kafka: &Self| (kafka.brokers.clone(), kafka.user.clone(), kafka.tls, kafka.mechanism);
        if same(self) == same(before) {
            self.password = before.password.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_brokers_is_checked_and_shown() {
        let shown =
            |text: &str| Brokers::new(text).map_or_else(|why| why.code.into(), |brokers| brokers.to_string());
        assert_eq!(
            ["a", "a:1, b:2", "127.0.0.1:7,[::1]:8", "", "a,,b", "http://a", "a/b", "u:p@a:1", "a:0", "a b"]
                .map(shown),
            [
                "a:9092",
                "a:1,b:2",
                "127.0.0.1:7,[::1]:8",
                "bad_brokers",
                "bad_brokers",
                "bad_brokers",
                "bad_brokers",
                "bad_brokers",
                "bad_brokers",
                "bad_brokers"
            ]
        );
    }

    #[test]
    fn a_password_is_kept_for_the_same_brokers_only() {
        let kafka = |brokers: &str, password: Option<&str>| Kafka {
            brokers: Brokers::new(brokers).unwrap(),
            topic: "t".into(),
            user: Some("u".into()),
            password: password.map(str::to_owned),
            mechanism: Mechanism::Plain,
            tls: false,
        };
        let before = kafka("a:1", Some("p"));
        for (brokers, kept) in [("a:1", Some("p")), ("a:2", None), ("a:1,b:1", None)] {
            let mut after = kafka(brokers, None);
            after.keep_password(&before);
            assert_eq!(after.password.as_deref(), kept, "{brokers}");
        }
        let mut after = Kafka { mechanism: Mechanism::ScramSha256, ..kafka("a:1", None) };
        after.keep_password(&before);
        assert_eq!(after.password, None, "it is shown in another way");
    }

    #[test]
    fn a_password_goes_in_the_clear_to_this_machine_only() {
        let pointer = |brokers: &str, mechanism: Mechanism, tls: bool, user: Option<&str>| {
            let kafka = Kafka {
                brokers: Brokers::new(brokers).unwrap(),
                topic: "t".into(),
                user: user.map(str::to_owned),
                password: user.map(str::to_owned),
                mechanism,
                tls,
            };
            kafka.checked().map_or_else(|why| why.pointer, |_| "")
        };
        let (plain, scram) = (Mechanism::Plain, Mechanism::ScramSha512);
        assert_eq!(
            [
                pointer("127.0.0.1,localhost:1", plain, false, Some("u")),
                pointer("127.0.0.1,a", plain, false, Some("u")),
                pointer("127.0.0.1,a", plain, true, Some("u")),
                pointer("a", scram, false, Some("u")),
                pointer("a", plain, false, None),
            ],
            ["", "/mechanism", "", "", ""]
        );
    }
}

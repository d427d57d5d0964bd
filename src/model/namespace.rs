//! Namespaces: one store holds the timers of many teams, none of whom sees another's.
//!
//! Within a store a namespace is a number. Whatever has a name (a timer's id, a destination, a queue) has it within its
//! namespace, so two namespaces may use the same one for different things. Number 0 is the store's own, which it was made with;
//! what belongs to it is stored, hashed and counted as in a store without any other.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::networks::Networks;
use super::time::Span;

/// The longest name of a namespace, in bytes.
pub const MAX_NAME: usize = 64;

/// Whether a text can be a namespace's name.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        // `.` and `..` mean something else in a path.
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The number of a namespace within its store. It is never given to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Namespace(pub i16);

impl Namespace {
    /// The store's own.
    pub const OWN: Self = Self(0);

    /// As a row has it: nothing for the store's own, which so costs no byte.
    pub fn stored(self) -> Option<i16> {
        (self != Self::OWN).then_some(self.0)
    }

    /// The one that a row has.
    pub fn of_stored(stored: Option<i16>) -> Self {
        Self(stored.unwrap_or(0))
    }

    /// A name of this namespace as one text, which no other namespace has: what this process keeps things by, and what lanes
    /// are hashes of. A name holds no slash.
    pub fn qualified(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::OWN => Cow::Borrowed(name),
            Self(number) => Cow::Owned(format!("{number}/{name}")),
        }
    }

    /// The name in such a text of this namespace.
    pub fn plain(self, qualified: String) -> String {
        match self {
            Self::OWN => qualified,
            Self(_) => qualified.split_once('/').map_or_else(String::new, |(_, name)| name.to_owned()),
        }
    }

    /// A uid of the service's own making as the id of its timer shows it, and back: the same id in two namespaces is two timers.
    pub fn turned(self, uid: Uuid) -> Uuid {
        Uuid::from_u128(uid.as_u128() ^ u128::from(self.0.unsigned_abs()))
    }
}

/// What the hashes of one namespace are made with: the store's name for its own, the number for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salt {
    /// The namespace.
    pub namespace: Namespace,
    text: Arc<str>,
}

impl Salt {
    /// That of a store's own namespace, which has this name.
    pub fn own(name: &str) -> Self {
        Self { namespace: Namespace::OWN, text: name.into() }
    }

    /// That of another namespace. This is that of the store's own.
    #[must_use]
    pub fn of(&self, namespace: Namespace) -> Self {
        match namespace {
            Namespace::OWN => self.clone(),
            // No name of a store begins so.
            Namespace(number) => Self { namespace, text: format!("#{number}").into() },
        }
    }

    /// Of the store's own: its name.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// The text: of the store's own, its name.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// As a part of what is hashed.
    pub fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// What a namespace may use: as the API has it, and as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Its quotas.
    #[serde(default, skip_serializing_if = "Quotas::is_none")]
    pub quotas: Quotas,
    /// Where it may send to.
    #[serde(default, skip_serializing_if = "Networks::is_none")]
    pub networks: Networks,
}

/// Of a namespace, what whoever sends for it needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// Its name.
    pub name: Arc<str>,
    /// Where it may send to, if not wherever the settings allow.
    pub networks: Option<Arc<Networks>>,
}

impl Sender {
    /// A namespace of this name and these networks.
    pub fn new(name: &str, networks: &Networks) -> Self {
        Self { name: name.into(), networks: (!networks.is_none()).then(|| Arc::new(networks.clone())) }
    }
}

/// The quotas of a namespace; `None` is no limit of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotas {
    /// Calls a second, all nodes together. Each timer of a batch, stream or form counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    /// Live timers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_timers: Option<u64>,
    /// Bytes of a timer's `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<usize>,
    /// How far ahead a timer may be due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon: Option<Span>,
    /// Timers that are due in one second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_per_second: Option<u32>,
}

impl Quotas {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_own_costs_nothing_and_is_hashed_as_ever() {
        assert_eq!((Namespace::OWN.stored(), Namespace(7).stored()), (None, Some(7)));
        assert_eq!(Namespace::of_stored(None), Namespace::OWN);
        assert_eq!(Namespace::OWN.qualified("mail"), "mail");
        for one in [Namespace::OWN, Namespace(7)] {
            assert_eq!(one.plain(one.qualified("mail").into_owned()), "mail");
        }
        let own = Salt::own("shop");
        assert_eq!((own.bytes(), own.of(Namespace::OWN)), (&b"shop"[..], own.clone()));
    }

    #[test]
    fn no_two_namespaces_share_a_name_a_salt_or_an_id() {
        let (own, uid) = (Salt::own("shop"), Uuid::from_u128(77));
        let all: Vec<Namespace> = [0, 1, 2, 12, i16::MAX].map(Namespace).to_vec();
        for (n, one) in all.iter().enumerate() {
            assert_eq!(one.turned(one.turned(uid)), uid);
            for other in &all[n + 1..] {
                assert_ne!(one.qualified("mail"), other.qualified("mail"));
                assert_ne!(own.of(*one).bytes(), own.of(*other).bytes());
                assert_ne!(one.turned(uid), other.turned(uid));
            }
        }
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "shop-1", "Team_A.b", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "*", "a/b", ".a", "ä", "a b", "#1", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}

//! Identifiers: of timers, deliveries, shards, generations, epochs.
//!
//! A timer has two names. Its *id* is text, chosen by the caller or by the service. Its *uid* is 16 bytes
//! and the primary key: a UUIDv7 for a service-made id, a 128-bit hash of (namespace, id) for a caller's
//! own, so that uniqueness needs no second index.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::namespace::{Namespace, Salt};

/// The prefix of ids that the service makes.
const SERVER_PREFIX: &str = "tmr_";

/// The longest id a caller may choose, in bytes.
pub const MAX_ID_LEN: usize = 128;

/// The 16-byte primary key of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(pub Uuid);

impl Uid {
    /// A number from 0 to 1 that differs between timers and attempts. Jitter needs no secrecy, and a number that follows
    /// from the timer keeps a replayed run of the simulation the same (`dice` is the name that the hash has always had).
    pub fn jitter(self, attempt: u32) -> f64 {
        let hash = digest16(&[b"dice", self.0.as_bytes(), &attempt.to_be_bytes()]);
        f64::from(u16::from_be_bytes([hash[0], hash[1]])) / f64::from(u16::MAX)
    }
}

/// A timer's id as text: 1–128 of `A-Z a-z 0-9 . _ : -`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TimerId(String);

/// The text is not a timer id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an id is 1 to {MAX_ID_LEN} characters of A-Z a-z 0-9 . _ : -")]
pub struct BadId;

impl TimerId {
    /// Checks a caller's text.
    pub fn parse(text: &str) -> Result<Self, BadId> {
        let fits = (1..=MAX_ID_LEN).contains(&text.len());
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
        if fits && text.bytes().all(allowed) { Ok(Self(text.to_owned())) } else { Err(BadId) }
    }

    /// The id of a timer of this namespace without an id of its caller's.
    pub fn of_server(uid: Uid, namespace: Namespace) -> Self {
        Self(format!("{SERVER_PREFIX}{}", namespace.turned(uid.0).simple()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is of the service's own form.
    pub fn is_of_server(&self) -> bool {
        self.server_uid(Namespace::OWN).is_some()
    }

    /// The uid in an id of the service's own form, of a timer of this namespace; `None` for an id of another form.
    fn server_uid(&self, namespace: Namespace) -> Option<Uid> {
        let hex = self.0.strip_prefix(SERVER_PREFIX)?;
        let canonical = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        canonical.then(|| Uuid::try_parse(hex).ok().map(|uid| Uid(namespace.turned(uid))))?
    }

    /// The primary key of the timer with this id.
    pub fn uid(&self, salt: &Salt) -> Uid {
        self.server_uid(salt.namespace).unwrap_or_else(|| hashed("id", salt, &self.0))
    }
}

impl fmt::Display for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The uid of the timer that was made under an `Idempotency-Key`.
pub fn idempotency_uid(salt: &Salt, key: &str) -> Uid {
    hashed("key", salt, key)
}

fn hashed(kind: &str, salt: &Salt, text: &str) -> Uid {
    Uid(Uuid::from_bytes(digest16(&[kind.as_bytes(), salt.bytes(), text.as_bytes()])))
}

/// The first 128 bits of SHA-256 over length-prefixed parts.
pub fn digest16(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hash.finalize()[..16]);
    first
}

/// The delivery id: one for all attempts of one firing, never shared by two firings.
///
/// It depends on the registration (`created_at_ms`), so that an id that is free again after its retention does
/// not repeat the delivery ids of its earlier timer.
pub fn delivery_id(uid: Uid, created_at_ms: i64, generation: Generation) -> String {
    let hash =
        digest16(&[b"delivery", uid.0.as_bytes(), &created_at_ms.to_be_bytes(), &generation.0.to_be_bytes()]);
    format!("dlv_{}", Uuid::from_bytes(hash).simple())
}

/// The shard of an owner's timers: 0 to `shards` − 1.
pub fn shard_of(salt: &Salt, owner: &str, shards: u16) -> i32 {
    let hash = digest16(&[b"shard", salt.bytes(), owner.as_bytes()]);
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    i32::try_from(u64::from_be_bytes(first) % u64::from(shards.max(1))).unwrap_or(0)
}

/// The version of a timer's due time; a reschedule makes a new one. Starts at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub i32);

/// Rises with every change a caller makes to a timer; its `ETag`. Starts at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub i32);

impl Version {
    /// How often it has risen, as a byte that begins anew after 255.
    pub const fn change(self) -> u8 {
        self.0.wrapping_sub(1).to_le_bytes()[0]
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a shard's ownership; only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        for good in ["a", "order-8841-review", "A.b_c:9-", &"x".repeat(128)] {
            assert!(TimerId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "a/b", "ä", "a\0", "a b", &"x".repeat(129)] {
            assert_eq!(TimerId::parse(bad), Err(BadId), "{bad:?}");
        }
    }

    #[test]
    fn a_server_id_leads_back_to_its_uid() {
        let uid = Uid(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001));
        let own = Salt::own("default");
        let salts = [own.clone(), own.of(Namespace(7))];
        let ids = salts.each_ref().map(|salt| TimerId::of_server(uid, salt.namespace));
        assert_ne!(ids[0], ids[1]);
        for (id, salt) in ids.iter().zip(&salts) {
            assert!(id.is_of_server() && id.uid(salt) == uid);
        }
        assert_ne!(ids[0].uid(&salts[1]), uid, "another namespace's timer");
        assert!(!TimerId::parse("tmr_0192").unwrap().is_of_server());
    }

    #[test]
    fn one_id_is_one_uid_and_namespaces_do_not_meet() {
        let id = TimerId::parse("order-1").unwrap();
        let (a, b) = (Salt::own("a"), Salt::own("b"));
        assert_eq!(id.uid(&a), id.uid(&a));
        for other in [&b, &a.of(Namespace(1)), &a.of(Namespace(2))] {
            assert_ne!(id.uid(&a), id.uid(other));
        }
        assert_ne!(id.uid(&a), idempotency_uid(&a, "order-1"));
    }

    #[test]
    fn no_two_firings_share_a_delivery_id() {
        let uid = Uid(Uuid::from_u128(7));
        let first = delivery_id(uid, 1, Generation(1));
        assert_eq!(first, delivery_id(uid, 1, Generation(1)));
        assert_ne!(first, delivery_id(uid, 1, Generation(2)));
        assert_ne!(first, delivery_id(uid, 2, Generation(1)));
    }

    #[test]
    fn shards_are_all_used_and_stay_in_range() {
        let mut seen = [0; 64];
        for n in 0..6400 {
            seen[shard_of(&Salt::own("default"), &format!("user:{n}"), 64) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (50..200).contains(&n)), "{seen:?}");
    }
}

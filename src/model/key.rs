//! API keys: their ids, the text that a caller shows, and what a key may do.
//!
//! A key is `mainspring_<id>_<secret>`: the id is public and finds the key in the store, the secret is 32 random bytes. The
//! store has a SHA-256 of the whole text only. That is enough, because nobody can try through 2^256 secrets; what people
//! choose themselves would need a slow hash. The fixed first word lets scanners find a key that was left in a repository.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

/// What a key's text begins with.
const PREFIX: &str = "mainspring_";

/// What the id of a key begins with where it is shown.
const ID_PREFIX: &str = "key_";

/// How many random bytes make a secret.
pub const SECRET_LEN: usize = 32;

/// The SHA-256 of a key's text.
pub type KeyHash = [u8; 32];

/// What a key may do. Each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Reads.
    View,
    /// Makes, changes and cancels timers; leases and settles as a worker.
    Register,
    /// Changes destinations, queues, schedules, templates, subscriptions and operations.
    Operate,
    /// Makes and revokes keys.
    Admin,
}

impl Scope {
    /// All scopes, each including those before it.
    pub const ALL: [Self; 4] = [Self::View, Self::Register, Self::Operate, Self::Admin];

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Register => "register",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// The scope of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }

    /// The number that the store keeps.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The scope of this number.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.code() == code)
    }

    /// The words of this scope and of those that it includes.
    pub fn included(self) -> Vec<&'static str> {
        Self::ALL.into_iter().filter(|scope| *scope <= self).map(Self::word).collect()
    }
}

/// The id of a key, which is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u64);

impl KeyId {
    /// The id of this number, which is random.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Reads an id as it is shown.
    pub fn parse(text: &str) -> Option<Self> {
        Self::from_digits(text.strip_prefix(ID_PREFIX)?)
    }

    fn from_digits(digits: &str) -> Option<Self> {
        let is_written_so =
            digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_written_so.then(|| u64::from_str_radix(digits, 16).ok()).flatten().map(Self)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ID_PREFIX}{:016x}", self.0)
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text of a new key, which is shown once.
pub fn key_text(id: KeyId, secret: &[u8; SECRET_LEN]) -> String {
    format!("{PREFIX}{:016x}_{}", id.0, URL_SAFE_NO_PAD.encode(secret))
}

/// The id in a key's text; `None` if no key of the store is written so.
pub fn id_in(text: &str) -> Option<KeyId> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_secret = URL_SAFE_NO_PAD.decode(secret).is_ok_and(|bytes| bytes.len() == SECRET_LEN);
    KeyId::from_digits(id).filter(|_| is_secret)
}

/// What the store keeps of a key's text.
pub fn hash_of(text: &str) -> KeyHash {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_includes_those_before_it() {
        assert!(Scope::View < Scope::Register && Scope::Register < Scope::Operate);
        assert_eq!(Scope::Operate.included(), ["view", "register", "operate"]);
        for scope in Scope::ALL {
            assert_eq!(Scope::from_word(scope.word()), Some(scope));
            assert_eq!(Scope::from_code(scope.code()), Some(scope));
        }
        assert_eq!((Scope::from_word("root"), Scope::from_code(4)), (None, None));
    }

    #[test]
    fn a_key_tells_its_id_and_nothing_else_is_a_key() {
        let id = KeyId::new(0x0123_4567_89ab_cdef);
        let text = key_text(id, &[7; SECRET_LEN]);
        assert_eq!(text, "mainspring_0123456789abcdef_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc");
        assert_eq!(id_in(&text), Some(id));
        assert_eq!(KeyId::parse(&id.to_string()), Some(id));
        for other in [
            "",
            "mainspring_",
            "mainspring_0123456789abcdef_",
            "mainspring_0123456789ABCDEF_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc",
            "mainspring_+123456789abcdef_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc",
            "mainspring_0123456789abcdef_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw",
            "0123456789abcdef_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc",
        ] {
            assert_eq!(id_in(other), None, "{other}");
        }
        for other in [
            "key_",
            "0123456789abcdef",
            "key_0123456789abcde",
            "key_0123456789abcdeF",
            "key_0123456789abcdef0",
        ] {
            assert_eq!(KeyId::parse(other), None, "{other}");
        }
    }
}

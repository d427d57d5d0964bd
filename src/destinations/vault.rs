//! Seals the secrets of destinations and of inline webhooks: AES-256-GCM under `server.secrets_key`.
//!
//! What is stored begins with a byte that tells how. 1: the key's id (4 bytes), the nonce (12), the sealed text. 0: the
//! text follows in the clear, which only destinations on this machine may have. The name of the destination is sealed
//! with it, so that no row can be given another one's secrets.
//!
//! A secret of an inline webhook stands in the row of its timer as a text, after `sealed:` in base64: the key's id, the nonce, the
//! sealed text; its namespace and its receiver are sealed with it. Its nonce is a keyed hash of what is sealed, so that the same
//! secret gives the same text: timers with one target go out together.

use base64::Engine;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use secrecy::{ExposeSecret, SecretString};

use crate::config::SECRETS_KEY_LEN as KEY_LEN;
use crate::model::destination::Secrets;
use crate::model::id::digest16;
use crate::model::target::SEALED as PREFIX;

/// How many bytes of its hash name a key.
const ID_LEN: usize = 4;

const CLEAR: u8 = 0;
const SEALED: u8 = 1;

/// The keys of a node. The first one seals; all of them open.
#[derive(Default)]
pub struct Vault {
    keys: Vec<Key>,
}

struct Key {
    id: [u8; ID_LEN],
    key: LessSafeKey,
    /// What nonces of inline secrets are made with.
    nonces: hmac::Key,
}

/// A text that is not a key: base64 of 32 bytes.
#[derive(Debug, thiserror::Error)]
#[error("not base64 of {KEY_LEN} bytes; make one with `openssl rand -base64 {KEY_LEN}`")]
pub struct BadKey;

/// Why secrets cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Locked {
    /// No key of this node has sealed them.
    #[error("they were sealed under another key")]
    OtherKey,
    /// They were changed since, or belong to another destination.
    #[error("they are damaged")]
    Damaged,
}

impl Vault {
    /// A vault with these keys: base64 of 32 bytes each.
    pub fn new(keys: &[SecretString]) -> Result<Self, BadKey> {
        Ok(Self { keys: keys.iter().map(|text| Key::read(text.expose_secret())).collect::<Result<_, _>>()? })
    }

    /// Whether there is a key.
    pub fn has_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Seals the secrets of a destination; in the clear where there is no key. `None` if there are none.
    pub fn seal(&self, name: &str, secrets: &Secrets) -> Result<Option<Vec<u8>>, ring::error::Unspecified> {
        if secrets.is_empty() {
            return Ok(None);
        }
        let mut text = serde_json::to_vec(secrets).map_err(|_| ring::error::Unspecified)?;
        let Some(Key { id, key, .. }) = self.keys.first() else {
            return Ok(Some([&[CLEAR], text.as_slice()].concat()));
        };
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce)?;
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut text,
        )?;
        Ok(Some([&[SEALED][..], id, &nonce, &text].concat()))
    }

    /// Opens the secrets of a destination.
    pub fn open(&self, name: &str, sealed: Option<&[u8]>) -> Result<Secrets, Locked> {
        let Some((how, rest)) = sealed.and_then(<[u8]>::split_first) else { return Ok(Secrets::default()) };
        let text = match *how {
            CLEAR => rest.to_vec(),
            SEALED => self.unseal(name, rest)?,
            _ => return Err(Locked::Damaged),
        };
        serde_json::from_slice(&text).map_err(|_| Locked::Damaged)
    }

    fn unseal(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, Locked> {
        let (id, rest) = sealed.split_first_chunk::<ID_LEN>().ok_or(Locked::Damaged)?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>().ok_or(Locked::Damaged)?;
        let Key { key, .. } = self.keys.iter().find(|key| key.id == *id).ok_or(Locked::OtherKey)?;
        let (mut text, nonce) = (text.to_vec(), Nonce::assume_unique_for_key(*nonce));
        let opened = key.open_in_place(nonce, Aad::from(name.as_bytes()), &mut text);
        Ok(opened.map_err(|_| Locked::Damaged)?.to_vec())
    }

    /// Seals the secret of an inline webhook, which has this name; `None` where there is no key.
    pub fn seal_text(&self, name: &str, secret: &str) -> Result<Option<String>, ring::error::Unspecified> {
        let Some(Key { id, key, nonces }) = self.keys.first() else { return Ok(None) };
        let hash = hmac::sign(nonces, format!("{name}\n{secret}").as_bytes());
        let nonce = hash.as_ref().first_chunk::<NONCE_LEN>().ok_or(ring::error::Unspecified)?;
        let mut text = secret.as_bytes().to_vec();
        let assumed = Nonce::assume_unique_for_key(*nonce);
        key.seal_in_place_append_tag(assumed, Aad::from(name.as_bytes()), &mut text)?;
        let sealed = [&id[..], nonce, &text].concat();
        Ok(Some(format!("{PREFIX}{}", base64::engine::general_purpose::STANDARD.encode(sealed))))
    }

    /// Opens what [`Vault::seal_text`] made.
    pub fn open_text(&self, name: &str, sealed: &str) -> Result<String, Locked> {
        let text = sealed.strip_prefix(PREFIX).ok_or(Locked::Damaged)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| Locked::Damaged)?;
        String::from_utf8(self.unseal(name, &bytes)?).map_err(|_| Locked::Damaged)
    }

    /// Whether the first key has sealed this, or there is nothing that it could seal.
    pub fn is_current(&self, sealed: Option<&[u8]>) -> bool {
        match (sealed.and_then(<[u8]>::split_first), self.keys.first()) {
            (None, _) | (_, None) => true,
            (Some((&SEALED, rest)), Some(first)) => rest.starts_with(&first.id),
            (Some(_), Some(_)) => false,
        }
    }
}

impl Key {
    fn read(text: &str) -> Result<Self, BadKey> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim()).map_err(|_| BadKey)?;
        if bytes.len() != KEY_LEN {
            return Err(BadKey);
        }
        let [a, b, c, d, ..] = digest16(&[b"secrets key", &bytes]);
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| BadKey)?;
        let nonces = hmac::Key::new(hmac::HMAC_SHA256, &[b"nonces", bytes.as_slice()].concat());
        Ok(Self { id: [a, b, c, d], key: LessSafeKey::new(key), nonces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(keys: &[u8]) -> Vault {
        let text = |byte: &u8| base64::engine::general_purpose::STANDARD.encode([*byte; KEY_LEN]).into();
        Vault::new(&keys.iter().map(text).collect::<Vec<SecretString>>()).expect("keys")
    }

    #[test]
    fn the_same_secret_is_sealed_to_the_same_text_and_for_its_receiver_alone() {
        let seal = |key: u8, name: &str, secret: &str| {
            vault(&[key]).seal_text(name, secret).expect("seals").expect("there is a key")
        };
        let sealed = seal(1, "a", "whsec_c2VjcmV0");
        assert!(sealed.starts_with(PREFIX) && !sealed.contains("c2Vj"), "{sealed}");
        assert_eq!(seal(1, "a", "whsec_c2VjcmV0"), sealed);
        for other in
            [seal(2, "a", "whsec_c2VjcmV0"), seal(1, "b", "whsec_c2VjcmV0"), seal(1, "a", "whsec_b3RoZXI=")]
        {
            assert_ne!(other, sealed);
        }
        assert_eq!(vault(&[2, 1]).open_text("a", &sealed).as_deref(), Ok("whsec_c2VjcmV0"));
        assert_eq!(vault(&[2]).open_text("a", &sealed), Err(Locked::OtherKey));
        assert_eq!(vault(&[1]).open_text("b", &sealed), Err(Locked::Damaged));
        assert_eq!(vault(&[1]).open_text("a", &sealed[..sealed.len() - 4]), Err(Locked::Damaged));
        assert_eq!(vault(&[1]).open_text("a", "whsec_c2VjcmV0"), Err(Locked::Damaged));
        assert_eq!(vault(&[]).seal_text("a", "whsec_c2VjcmV0").expect("nothing fails"), None);
    }

    fn secrets() -> Secrets {
        Secrets {
            secret: Some("whsec_c2VjcmV0".into()),
            headers: [("authorization".into(), "t0p".into())].into(),
            password: None,
        }
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_same_key_and_for_the_same_name() {
        let sealed = vault(&[1]).seal("a", &secrets()).expect("seals").expect("something");
        assert!(!String::from_utf8_lossy(&sealed).contains("t0p"));
        assert_eq!(vault(&[1]).open("a", Some(&sealed)), Ok(secrets()));
        assert_eq!(vault(&[2, 1]).open("a", Some(&sealed)), Ok(secrets()), "while keys are changed");
        assert_eq!(vault(&[2]).open("a", Some(&sealed)), Err(Locked::OtherKey));
        assert_eq!(vault(&[]).open("a", Some(&sealed)), Err(Locked::OtherKey));
        assert_eq!(vault(&[1]).open("b", Some(&sealed)), Err(Locked::Damaged));
        let mut changed = sealed.clone();
        *changed.last_mut().expect("a byte") ^= 1;
        assert_eq!(vault(&[1]).open("a", Some(&changed)), Err(Locked::Damaged));
        assert_ne!(vault(&[1]).seal("a", &secrets()).expect("seals"), Some(sealed), "a nonce of its own");
    }

    #[test]
    fn without_a_key_it_is_in_the_clear_until_there_is_one() {
        let clear = vault(&[]).seal("a", &secrets()).expect("seals").expect("something");
        assert_eq!(vault(&[1]).open("a", Some(&clear)), Ok(secrets()));
        assert!(vault(&[]).is_current(Some(&clear)) && !vault(&[1]).is_current(Some(&clear)));
        let sealed = vault(&[1]).seal("a", &secrets()).expect("seals");
        assert!(
            vault(&[1, 2]).is_current(sealed.as_deref()) && !vault(&[2, 1]).is_current(sealed.as_deref())
        );
        assert_eq!(vault(&[1]).seal("a", &Secrets::default()).expect("seals"), None);
    }

    #[test]
    fn a_key_is_base64_of_32_bytes() {
        for bad in ["", "short", "c2hvcnQ="] {
            assert!(Vault::new(&[bad.into()]).is_err(), "{bad}");
        }
    }
}

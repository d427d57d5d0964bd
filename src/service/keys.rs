//! Who may call: the keys of the store and of `server.api_keys`, the quota of each, and the rule for a server without
//! keys. Both doors ask here.
//!
//! A node knows all keys of its store. It reads them at its start, when another node tells of a change (`NOTIFY`), and
//! when their mark has changed ([`ColdStore::watch_marks`]), so a key that was revoked elsewhere is refused within two
//! seconds and the time of a read. A key that is not known yet is looked for in the store, within limits. While the store
//! is away, the keys that are known stay in force.
//!
//! Whether a server is open is known once the store was read: before that it answers nobody. A server that has seen a
//! key does not become open again until it is started anew.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use governor::clock::Clock;
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::cold::{ColdStore, Copied, Error, KeyRow, KeysMark, NewKey};
use crate::config::Server;
use crate::model::key::{KeyHash, KeyId, SECRET_LEN, Scope, hash_of, id_in, key_text};
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;

/// How far the store may be behind in when a key was last used, in milliseconds. Its first use is told at once.
const NOTED_EVERY_MS: i64 = 30_000;

/// How long a key that is not known is looked for in the store.
const LOOKING: Duration = Duration::from_secs(1);

/// Keys that are not known and are looked for in the store, at most, in a second.
const LOOKED_FOR: NonZeroU32 = NonZeroU32::new(20).expect("not zero");

/// Who calls: with which key, and what that may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The key.
    pub id: KeyId,
    /// What it may do.
    pub scope: Scope,
    /// The namespace that the key is of; `None`: all.
    pub key_of: Option<Namespace>,
    /// The namespace that the call is about.
    pub namespace: Namespace,
}

impl Caller {
    /// Whoever calls a server that has no keys.
    pub const ANYBODY: Self =
        Self { id: KeyId::new(0), scope: Scope::Admin, key_of: None, namespace: Namespace::OWN };

    /// Whether the key is of all namespaces.
    pub const fn is_of_all(&self) -> bool {
        self.key_of.is_none()
    }

    /// Whether it is somebody without a key.
    pub fn is_anybody(&self) -> bool {
        self.id == Self::ANYBODY.id
    }

    /// A number by which callers are told apart where they share something.
    pub const fn number(self) -> usize {
        self.id.get() as usize
    }
}

/// Whom a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// The store has not told yet whether it has keys: nobody.
    Unknown,
    /// There is no key: everybody on this machine.
    Open,
    /// Whoever has a key.
    Keyed,
}

/// Makes a key: what the store keeps of it, and its text. Fails if the machine gives no random numbers.
pub fn make(
    name: String,
    namespace: Option<Namespace>,
    scope: Scope,
    expires_at: Option<UnixMs>,
) -> Result<(NewKey, String), NoRandom> {
    let mut random = [0; 8 + SECRET_LEN];
    SystemRandom::new().fill(&mut random).map_err(|_| NoRandom)?;
    let (id, secret) = random.split_first_chunk().ok_or(NoRandom)?;
    let id = KeyId::new(u64::from_be_bytes(*id));
    let text = key_text(id, secret.first_chunk().ok_or(NoRandom)?);
    let hash = hash_of(&text);
    Ok((NewKey { id, name, namespace, scope, hash, is_certificate: false, expires_at }, text))
}

/// The SHA-256 of a certificate, as it is shown.
pub fn fingerprint(hash: &KeyHash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of the first certificate in this PEM; `None` if it holds none.
pub fn certificate_hash(pem: &[u8]) -> Option<KeyHash> {
    CertificateDer::from_pem_slice(pem).ok().map(|der| Sha256::digest(der).into())
}

/// The machine gives no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("this machine gives no random numbers")]
pub struct NoRandom;

/// A call that is refused: a stable code, and why in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Stable word for programs.
    pub code: &'static str,
    /// What happened and what to do.
    pub detail: Cow<'static, str>,
    /// After how many seconds it may be tried again; `None` if waiting does not help.
    pub retry_after: Option<u32>,
}

impl Refusal {
    pub(super) fn new(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into(), retry_after: None }
    }

    /// Whether a quota of the namespace never admits such a call, so that it is no use to make it again.
    pub fn is_for_good(&self) -> bool {
        self.code == "quota" && self.retry_after.is_none()
    }
}

/// One key, as this node knows it.
struct Key {
    name: String,
    hash: KeyHash,
    /// Its hash is of a certificate, which is public.
    is_certificate: bool,
    scope: Scope,
    key_of: Option<Namespace>,
    expires_at: Option<UnixMs>,
    /// When it was last used here, in milliseconds; 0 for never.
    used_at: AtomicI64,
    /// The last use that the store was told of.
    noted_at: AtomicI64,
}

impl Key {
    fn stored(row: &KeyRow, before: Option<&Self>) -> Self {
        let last = |of: fn(&Self) -> &AtomicI64| {
            AtomicI64::new(before.map_or(0, |key| of(key).load(Ordering::Relaxed)))
        };
        Self {
            name: row.name.clone(),
            hash: row.hash,
            is_certificate: row.is_certificate,
            scope: row.scope,
            key_of: row.namespace,
            expires_at: row.expires_at,
            used_at: last(|key| &key.used_at),
            noted_at: last(|key| &key.noted_at),
        }
    }

    fn caller(&self, id: KeyId, now: UnixMs) -> Option<Caller> {
        let is_current = self.expires_at.is_none_or(|until| now < until);
        is_current.then_some(Caller {
            id,
            scope: self.scope,
            key_of: self.key_of,
            namespace: self.key_of.unwrap_or_default(),
        })
    }
}

/// The keys that a node knows, and what they looked like when they were read.
#[derive(Default, Clone)]
struct Known {
    keys: HashMap<KeyId, Arc<Key>>,
    /// The keys that are certificates, by the SHA-256 of these.
    certificates: HashMap<KeyHash, KeyId>,
    mark: Option<KeysMark>,
    /// Of all hashes: the same on all nodes.
    digest: KeyHash,
}

/// The keys.
pub struct Keys {
    /// Those of the settings. They are found by their hash, as they tell no id.
    settings: Vec<(KeyId, Arc<Key>)>,
    known: RwLock<Arc<Known>>,
    access: AtomicU8,
    /// It may be open: it listens on loopback.
    is_local: bool,
    store: OnceLock<ColdStore>,
    /// One reads at a time, so that an older answer does not replace a newer one.
    reading: tokio::sync::Mutex<()>,
    limits: Option<DefaultKeyedRateLimiter<KeyId>>,
    looking: DefaultDirectRateLimiter,
}

/// The keys of the settings may do everything. Their ids are made of their hashes, so they are the same on all nodes; of 24
/// bits of them, because people may have chosen these keys, and an id is no secret: whoever tries keys offline learns from it
/// that one of 16 million may be right.
fn of_settings(server: &Server) -> Vec<(KeyId, Arc<Key>)> {
    let key = |text: &secrecy::SecretString| {
        let hash = hash_of(text.expose_secret());
        let digest = Sha256::digest([b"mainspring key of the settings".as_slice(), &hash].concat());
        let number =
            digest.first_chunk().map_or(1, |[a, b, c]| u64::from_be_bytes([0, 0, 0, 0, 1, *a, *b, *c]));
        let key = Key {
            // No key of the store may be called so.
            name: "(server.api_keys)".into(),
            hash,
            is_certificate: false,
            scope: Scope::Admin,
            key_of: None,
            expires_at: None,
            used_at: AtomicI64::new(0),
            noted_at: AtomicI64::new(0),
        };
        (KeyId::new(number), Arc::new(key))
    };
    server.api_keys.iter().map(key).collect()
}

impl Keys {
    /// Keys and limits from the settings. Those of the store are not read yet.
    pub fn new(server: &Server) -> Self {
        let settings = of_settings(server);
        let access = if settings.is_empty() { Access::Unknown } else { Access::Keyed };
        let known = Known { digest: digest_of(settings.iter().map(|(_, key)| key.hash)), ..Known::default() };
        Self {
            settings,
            known: RwLock::new(Arc::new(known)),
            access: AtomicU8::new(access as u8),
            is_local: server.listen.ip().is_loopback(),
            store: OnceLock::new(),
            reading: tokio::sync::Mutex::default(),
            limits: NonZeroU32::new(server.rate_per_second)
                .map(|rate| RateLimiter::keyed(Quota::per_second(rate))),
            looking: RateLimiter::direct(Quota::per_second(LOOKED_FOR)),
        }
    }

    /// Reads the keys of the store at the start. From now on it is known whether this server is open.
    pub async fn open(&self, store: &ColdStore) -> Result<(), Error> {
        // Callers who take all connections do not hold up a revocation.
        let _ = self.store.set(store.urgently());
        self.read().await
    }

    /// Keeps them current. Runs until dropped.
    pub async fn run(self: Arc<Self>) {
        let Some(store) = self.store.get() else { return };
        let this = &self;
        let read = |is_old| async move {
            if is_old {
                this.read().await?;
            }
            this.note_used(store).await
        };
        store.keep_current(Copied::Keys, read).await;
    }

    /// Reads what has changed.
    pub async fn read(&self) -> Result<(), Error> {
        let Some(store) = self.store.get() else { return Ok(()) };
        let _reading = self.reading.lock().await;
        let before = self.known();
        if before.mark == Some(store.keys_mark().await?) {
            return Ok(());
        }
        let (rows, mark) = store.copy_of_keys().await?;
        let keys: HashMap<KeyId, Arc<Key>> = rows
            .iter()
            .map(|row| (row.id, Arc::new(Key::stored(row, before.keys.get(&row.id).map(AsRef::as_ref)))))
            .collect();
        let certificates =
            rows.iter().filter(|row| row.is_certificate).map(|row| (row.hash, row.id)).collect();
        let digest = self.digest_with(&keys);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(Known { keys, certificates, mark: Some(mark), digest });
        store.note_copy(Copied::Keys, mark.into());
        let access = match (self.access(), mark.count) {
            (Access::Unknown | Access::Open, 0) if self.is_local => Access::Open,
            _ => Access::Keyed,
        };
        self.access.store(access as u8, Ordering::SeqCst);
        Ok(())
    }

    /// One was revoked by this node, which answers to it no more, whatever becomes of the next reading.
    pub fn forget(&self, id: KeyId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut without = Known { mark: None, ..Known::clone(&known) };
        without.keys.remove(&id);
        without.certificates.retain(|_, of| *of != id);
        without.digest = self.digest_with(&without.keys);
        *known = Arc::new(without);
    }

    fn digest_with(&self, stored: &HashMap<KeyId, Arc<Key>>) -> KeyHash {
        let of_settings = self.settings.iter().map(|(_, key)| key.hash);
        digest_of(of_settings.chain(stored.values().map(|key| key.hash)))
    }

    async fn note_used(&self, store: &ColdStore) -> Result<(), Error> {
        let known = self.known();
        let used: Vec<(KeyId, UnixMs)> = known
            .keys
            .iter()
            .map(|(id, key)| (*id, key.used_at.load(Ordering::Relaxed), key))
            .filter(|(_, used_at, key)| {
                *used_at > 0 && *used_at >= key.noted_at.load(Ordering::Relaxed) + NOTED_EVERY_MS
            })
            .map(|(id, used_at, _)| (id, UnixMs::new(used_at)))
            .collect();
        store.note_keys_used(&used).await?;
        for (id, at) in used {
            known.keys.get(&id).inspect(|key| key.noted_at.store(at.get(), Ordering::Relaxed));
        }
        Ok(())
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whom this server answers.
    pub fn access(&self) -> Access {
        match self.access.load(Ordering::SeqCst) {
            0 => Access::Unknown,
            1 => Access::Open,
            _ => Access::Keyed,
        }
    }

    /// Whether the server has no key and answers everybody on its machine.
    pub fn is_open(&self) -> bool {
        self.access() == Access::Open
    }

    /// Whether there is any key, of the settings or of the store.
    pub fn has_any(&self) -> bool {
        !self.settings.is_empty() || self.known().mark.is_some_and(|mark| mark.count > 0)
    }

    /// Whether a key of the settings, which may do everything, is in force.
    pub const fn has_settings(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Of all keys: two nodes with the same keys have the same.
    pub fn digest(&self) -> KeyHash {
        self.known().digest
    }

    /// The hash of a key that is known, unless it is a certificate: the hash of that anybody may know.
    pub fn secret_hash(&self, id: KeyId) -> Option<KeyHash> {
        self.key(id).filter(|key| !key.is_certificate).map(|key| key.hash)
    }

    /// Whether a call that this caller began some time ago may go on: his key is in force still, or the server is open.
    pub fn holds(&self, caller: Caller) -> bool {
        let is_the_same = |now: Caller| (now.scope, now.key_of) == (caller.scope, caller.key_of);
        if caller.is_anybody() { self.is_open() } else { self.current(caller.id).is_some_and(is_the_same) }
    }

    /// What a key is called.
    pub fn name(&self, id: KeyId) -> Option<String> {
        self.key(id).map(|key| key.name.clone())
    }

    /// Who has this key, if it is in force.
    pub fn current(&self, id: KeyId) -> Option<Caller> {
        self.key(id)?.caller(id, self.now())
    }

    fn key(&self, id: KeyId) -> Option<Arc<Key>> {
        let of_settings = self.settings.iter().find(|(known, _)| *known == id).map(|(_, key)| key);
        of_settings.cloned().or_else(|| self.known().keys.get(&id).cloned())
    }

    /// The store's time: a key of the store is not known before the store.
    fn now(&self) -> UnixMs {
        self.store.get().map_or(UnixMs::new(0), |store| store.clock().now())
    }

    /// Who presents this key of the settings. All hashes are compared, each in constant time.
    pub fn find_in_settings(&self, presented: &str) -> Option<Caller> {
        let hash = hash_of(presented.trim());
        let mut found = None;
        for (id, key) in &self.settings {
            if bool::from(key.hash.ct_eq(&hash)) {
                found = key.caller(*id, UnixMs::new(0));
            }
        }
        found
    }

    /// Who presents this key; `None` if it is not in force. Hashes are compared in constant time.
    pub async fn find(&self, presented: &str) -> Option<Caller> {
        if let Some(found) = self.find_in_settings(presented) {
            return Some(found);
        }
        let presented = presented.trim();
        let (id, hash) = (id_in(presented)?, hash_of(presented));
        let known = self.known().keys.get(&id).cloned();
        let key = match known {
            Some(key) => key,
            None => self.look_for(id).await?,
        };
        if !bool::from(key.hash.ct_eq(&hash)) {
            return None;
        }
        self.used(id, &key)
    }

    /// Who has shown this certificate, by its SHA-256; the handshake has proved that it is his. `None` if it is no key in
    /// force.
    pub async fn find_certificate(&self, hash: &KeyHash) -> Option<Caller> {
        let known = || self.known().certificates.get(hash).copied();
        let id = match known() {
            Some(id) => id,
            None => {
                Box::pin(self.look()).await?;
                known()?
            }
        };
        self.used(id, &*self.key(id)?)
    }

    /// Notes that a key is used; `None` if its time is over.
    fn used(&self, id: KeyId, key: &Key) -> Option<Caller> {
        let now = self.now();
        let caller = key.caller(id, now)?;
        key.used_at.store(now.get(), Ordering::Relaxed);
        Some(caller)
    }

    /// A key that another node has made a moment ago. What is not found in time is not known.
    async fn look_for(&self, id: KeyId) -> Option<Arc<Key>> {
        Box::pin(self.look()).await?;
        self.known().keys.get(&id).cloned()
    }

    /// Looks for keys that are not known yet, so often a second at most; `None` if it did not.
    async fn look(&self) -> Option<()> {
        let store = self.store.get()?;
        // Nobody can read now, and who is not known does not wait until somebody can.
        if store.is_away() {
            return None;
        }
        self.looking.check().ok()?;
        tokio::time::timeout(LOOKING, self.read()).await.ok()?.ok()
    }

    /// Charges `timers` calls to the caller; refused when its quota of this second is spent.
    pub fn charge(&self, caller: Caller, timers: usize) -> Result<(), Refusal> {
        let (Some(limits), Ok(timers)) = (&self.limits, u32::try_from(timers)) else {
            return Ok(());
        };
        let Some(timers) = NonZeroU32::new(timers) else {
            return Ok(());
        };
        match limits.check_key_n(&caller.id, timers) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => {
                let wait = not_until.wait_time_from(governor::clock::DefaultClock::default().now());
                let seconds = u32::try_from(wait.as_secs()).unwrap_or(60).saturating_add(1);
                let detail = "this key has used up its calls of this second (`server.rate_per_second`)";
                Err(Refusal { retry_after: Some(seconds), ..Refusal::new("rate_exceeded", detail) })
            }
            // One call asks for more than the quota of a whole second, so waiting does not help.
            Err(_) => Err(Refusal::new(
                "rate_exceeded",
                "one call holds more timers than `server.rate_per_second` allows in a second; send smaller batches",
            )),
        }
    }
}

/// Of these hashes, in whatever order they come.
fn digest_of(hashes: impl Iterator<Item = KeyHash>) -> KeyHash {
    let mut hashes: Vec<KeyHash> = hashes.collect();
    hashes.sort_unstable();
    Sha256::digest(hashes.concat()).into()
}

/// An open server answers programs on its own machine, and no web page of another site that a browser there shows.
/// `Origin` names the page's site; `Host` does, if the site's name was made to resolve to loopback (DNS rebinding).
pub fn local_only(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let Some(host) = text(header::HOST) else {
        // A program of the old kind. A browser says where it goes.
        return match text(header::ORIGIN) {
            None => Ok(()),
            Some(_) => Err(Refusal::new("foreign_origin", "a call with `Origin` needs `Host`")),
        };
    };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let local = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !local {
        return Err(Refusal::new(
            "foreign_host",
            "without keys this server answers to localhost and loopback addresses only",
        ));
    }
    match text(header::ORIGIN) {
        Some(origin) if origin != format!("http://{host}") && origin != format!("https://{host}") => {
            Err(Refusal::new(
                "foreign_origin",
                "without keys this server does not answer other sites' pages; make a key with `mainspring key create`",
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn a_key_that_this_node_has_revoked_is_forgotten_before_anything_is_read() {
        let config = Config::load(Some(std::path::Path::new("/dev/null")), [], &[]).unwrap();
        let keys = Keys::new(&config.server);
        let (new, text) = make("k".into(), None, Scope::View, None).unwrap();
        let stored = Key {
            name: new.name,
            hash: new.hash,
            is_certificate: true,
            scope: new.scope,
            key_of: None,
            expires_at: None,
            used_at: AtomicI64::new(0),
            noted_at: AtomicI64::new(0),
        };
        let certificates = HashMap::from([(new.hash, new.id)]);
        let known = Known {
            keys: HashMap::from([(new.id, Arc::new(stored))]),
            certificates,
            mark: None,
            digest: keys.digest(),
        };
        *keys.known.write().unwrap() = Arc::new(known);
        assert!(keys.find(&text).await.is_some() && keys.find_certificate(&new.hash).await.is_some());
        keys.forget(new.id);
        assert!(keys.find(&text).await.is_none() && keys.find_certificate(&new.hash).await.is_none());
    }

    #[test]
    fn an_open_server_answers_no_foreign_page() {
        let asked = |pairs: &[(&str, &str)]| {
            let headers: HeaderMap = pairs
                .iter()
                .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap()))
                .collect();
            local_only(&headers).is_ok()
        };
        for host in ["127.0.0.1:7600", "localhost:7600", "localhost", "[::1]:7600", "127.0.0.1"] {
            assert!(asked(&[("host", host)]), "{host}");
        }
        for host in ["evil.example", "evil.example:7600", "127.0.0.1.evil.example", "10.0.0.1:7600"] {
            assert!(!asked(&[("host", host)]), "{host}");
        }
        for scheme in ["http", "https"] {
            let own = format!("{scheme}://localhost:7600");
            assert!(asked(&[("host", "localhost:7600"), ("origin", &own)]), "{own}");
        }
        assert!(asked(&[]) && !asked(&[("origin", "https://evil.example")]), "without a host");
        for origin in ["https://evil.example", "null", "http://localhost:8000"] {
            assert!(!asked(&[("host", "localhost:7600"), ("origin", origin)]), "{origin}");
        }
    }
}

//! Sessions of the page: who opened it, with which key, and until when.
//!
//! A session is a signed cookie; the server stores nothing of it, so any node of a store reads the cookies of the
//! others. The cookie holds two times, a random number and the id of the caller's key, and a MAC under a key that is derived
//! from the hash of the caller's key and from `server.secrets_key`. The caller's key itself is not in it. A key that is
//! revoked, expires, or is taken out of the settings ends its sessions. Whoever reads the database finds the hashes of
//! keys there; without `server.secrets_key` that is enough to make a cookie.
//!
//! A session ends [`IDLE`] after the last page that was asked for, and [`LONGEST`] after its login. A logout ends it on
//! the node that gets it; another node learns of it when the cookie's time is over. Somebody who is not logged in has
//! a session too, an *anonymous* one: it is what the token of the login form belongs to, and on an open server the
//! tokens of all forms.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::model::key::KeyId;
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;
use crate::service::keys::{Caller, Keys};

/// How long a session lasts without a page being asked for.
pub const IDLE: Duration = Duration::from_secs(30 * 60);

/// How long a session lasts at most.
pub const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// The sessions that were ended by a logout and whose cookies could still be used, at most.
const MAX_ENDED: usize = 10_000;

const NONCE: usize = 16;
/// The id of the key; [`NOBODY`] in an anonymous session.
const KEY: usize = 8;
/// Start and end, eight bytes each, the nonce and the key.
const BODY: usize = 16 + NONCE + KEY;
const MAC: usize = 32;

/// The id in a cookie of somebody who has not logged in.
const NOBODY: KeyId = KeyId::new(0);

type Signer = Hmac<Sha256>;

/// One session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// With which key it was opened; `None` for an anonymous one.
    pub caller: Option<Caller>,
    started_at: UnixMs,
    until: UnixMs,
    nonce: [u8; NONCE],
}

/// Makes and reads the cookies of sessions.
pub struct Sessions {
    keys: Arc<Keys>,
    /// Signs the sessions of a server without keys.
    secret: [u8; 32],
    /// What all nodes of a store know and its database does not; empty if they know nothing of the kind.
    pepper: Vec<u8>,
    /// The sessions that were ended by a logout, and when their cookies end.
    ended: Mutex<HashMap<[u8; NONCE], UnixMs>>,
}

impl Sessions {
    /// Sessions under these keys. `secret` signs the sessions of a server without keys: they end with its process.
    /// `pepper` is known to all nodes, and not to who reads the database.
    pub fn new(keys: Arc<Keys>, secret: [u8; 32], pepper: &[u8]) -> Self {
        Self { keys, secret, pepper: pepper.to_vec(), ended: Mutex::default() }
    }

    /// Opens a session; `nonce` is random.
    pub fn begin(&self, caller: Option<Caller>, now: UnixMs, nonce: [u8; NONCE]) -> Session {
        Session { caller, started_at: now, until: now.plus(IDLE), nonce }
    }

    /// The session of this cookie; `None` if it is over, ended by a logout, or signed by nobody known.
    pub fn read(&self, cookie: &str, now: UnixMs) -> Option<Session> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie).ok().filter(|bytes| bytes.len() == BODY + MAC)?;
        let (body, mac) = bytes.split_at(BODY);
        let number = |at: usize| Some(u64::from_be_bytes(body[at..at + 8].try_into().ok()?));
        let ms = |at: usize| Some(UnixMs::new(number(at)?.cast_signed()));
        let id = KeyId::new(number(16 + NONCE)?);
        let caller = if id == NOBODY { None } else { Some(self.keys.current(id)?) };
        // A certificate opens no page: what would sign its sessions is public.
        if caller.is_some() && self.keys.secret_hash(id).is_none() {
            return None;
        }
        if !bool::from(derived(&self.signing_key(caller.map(|caller| caller.id)), body).ct_eq(mac)) {
            return None;
        }
        let nonce = body[16..16 + NONCE].try_into().ok()?;
        let session = Session { caller, started_at: ms(0)?, until: ms(8)?, nonce };
        let is_running = now < session.until && now < session.started_at.plus(LONGEST);
        (is_running && !self.has_ended(&session)).then_some(session)
    }

    /// The cookie of a session.
    pub fn cookie(&self, session: &Session) -> String {
        let mut body = Vec::with_capacity(BODY + MAC);
        body.extend(session.started_at.get().to_be_bytes());
        body.extend(session.until.get().to_be_bytes());
        body.extend(session.nonce);
        body.extend(session.caller.map_or(NOBODY, |caller| caller.id).get().to_be_bytes());
        let mac = derived(&self.signing_key(session.caller.map(|caller| caller.id)), &body);
        body.extend(mac);
        URL_SAFE_NO_PAD.encode(body)
    }

    /// The session with a new end, if the present one is less than three quarters of [`IDLE`] away.
    pub fn renewed(&self, session: &Session, now: UnixMs) -> Option<Session> {
        let until = now.plus(IDLE).min(session.started_at.plus(LONGEST));
        (session.until.since(now) < IDLE * 3 / 4 && until > session.until)
            .then_some(Session { until, ..*session })
    }

    /// Ends a session: its cookie is not accepted by this node any more.
    pub fn end(&self, session: &Session, now: UnixMs) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|_, over| *over > now);
        if ended.len() < MAX_ENDED {
            ended.insert(session.nonce, session.started_at.plus(LONGEST));
        }
    }

    fn has_ended(&self, session: &Session) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&session.nonce)
    }

    /// The token that the forms of this session carry on pages about this namespace. Another site cannot know it, and a form
    /// of one namespace does nothing in another one that was chosen since.
    pub fn token(&self, session: &Session, namespace: Namespace) -> String {
        let bound = [b"token ".as_slice(), &session.nonce, &namespace.0.to_be_bytes()].concat();
        URL_SAFE_NO_PAD.encode(derived(&self.signing_key(session.caller.map(|caller| caller.id)), &bound))
    }

    /// Whether this is the session's token for this namespace. Compared in constant time.
    pub fn is_token(&self, session: &Session, namespace: Namespace, presented: &str) -> bool {
        self.token(session, namespace).as_bytes().ct_eq(presented.as_bytes()).into()
    }

    /// What signs the sessions of this key. One that was revoked this moment gets a key that nobody reads by.
    fn signing_key(&self, id: Option<KeyId>) -> [u8; 32] {
        let (from, label) = match id.and_then(|id| self.keys.secret_hash(id)) {
            Some(hash) => (hash, b"mainspring page session".as_slice()),
            None if self.keys.is_open() => (self.secret, b"mainspring page open".as_slice()),
            None => (self.keys.digest(), b"mainspring page visitor".as_slice()),
        };
        derived(&derived(&from, label), &self.pepper)
    }
}

fn derived(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    // An HMAC takes a key of any length.
    let mut signer = <Signer as Mac>::new_from_slice(key).expect("32 bytes are a key");
    signer.update(message);
    signer.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Server};

    const NOW: UnixMs = UnixMs::new(1_800_000_000_000);

    fn sessions(keys: &[&str]) -> Sessions {
        let api_keys = keys.iter().map(|key| (*key).into()).collect();
        let server = Server { api_keys, ..Config::default().server };
        Sessions::new(Arc::new(Keys::new(&server)), [7; 32], b"")
    }

    /// Who has this key.
    fn caller(sessions: &Sessions, key: &str) -> Option<Caller> {
        sessions.keys.find_in_settings(key)
    }

    #[test]
    fn a_session_ends_when_nobody_asks_for_a_page_and_at_the_latest_after_its_longest_time() {
        let sessions = sessions(&["first-key-0123456789", "other-key-0123456789"]);
        let other = caller(&sessions, "other-key-0123456789");
        let mut session = sessions.begin(other, NOW, [1; NONCE]);
        let cookie = sessions.cookie(&session);
        assert_eq!(sessions.read(&cookie, NOW), Some(session));
        assert_eq!(sessions.read(&cookie, NOW.plus(IDLE - Duration::from_millis(1))), Some(session));
        assert_eq!(sessions.read(&cookie, NOW.plus(IDLE)), None);
        assert_eq!(sessions.renewed(&session, NOW.plus(IDLE / 8)), None, "it is young");
        let mut now = NOW;
        while let Some(renewed) = sessions.renewed(&session, now.plus(IDLE / 2)) {
            now = now.plus(IDLE / 2);
            session = renewed;
            assert_eq!(sessions.read(&sessions.cookie(&session), now), Some(session));
        }
        let cookie = sessions.cookie(&session);
        assert!(sessions.read(&cookie, NOW.plus(LONGEST - Duration::from_secs(1))).is_some());
        assert_eq!(sessions.read(&cookie, NOW.plus(LONGEST)), None);
    }

    #[test]
    fn a_cookie_is_read_by_every_node_with_the_key_and_by_no_other() {
        let (one, other) = ("first-key-0123456789", "other-key-0123456789");
        let here = sessions(&[one, other]);
        let first = caller(&here, one);
        assert!(first.is_some() && first != caller(&here, other));
        let cookie = here.cookie(&here.begin(first, NOW, [1; NONCE]));
        let read = |node: &Sessions| node.read(&cookie, NOW).map(|session| session.caller);
        assert_eq!(read(&sessions(&[other, one])), Some(first), "the same key in another place");
        assert_eq!(read(&sessions(&[other])), None, "the key was taken out");
        assert_eq!(read(&sessions(&[])), None);
        let peppered = Sessions { pepper: b"of the settings".to_vec(), ..sessions(&[one, other]) };
        assert_eq!(read(&peppered), None, "the hash of the key does not make a cookie");
        let visitor = here.cookie(&here.begin(None, NOW, [2; NONCE]));
        assert!(sessions(&[other, one]).read(&visitor, NOW).is_some());
        assert!(sessions(&[]).read(&visitor, NOW).is_none());
    }

    #[test]
    fn a_changed_cookie_and_an_ended_session_are_refused() {
        let sessions = sessions(&["first-key-0123456789"]);
        let session = sessions.begin(caller(&sessions, "first-key-0123456789"), NOW, [1; NONCE]);
        let cookie = sessions.cookie(&session);
        let mut bytes = URL_SAFE_NO_PAD.decode(&cookie).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(sessions.read(&URL_SAFE_NO_PAD.encode(&bytes), NOW), None, "byte {at}");
            bytes[at] ^= 1;
        }
        for text in ["", "x", &cookie[1..], &format!("{cookie}AA")] {
            assert_eq!(sessions.read(text, NOW), None, "{text}");
        }
        sessions.end(&session, NOW);
        assert_eq!(sessions.read(&cookie, NOW), None);
    }

    #[test]
    fn a_token_belongs_to_one_session() {
        let sessions = sessions(&["first-key-0123456789"]);
        let own = Namespace::OWN;
        let of = |caller, nonce| sessions.token(&sessions.begin(caller, NOW, [nonce; NONCE]), own);
        let first = caller(&sessions, "first-key-0123456789");
        let session = sessions.begin(first, NOW, [1; NONCE]);
        assert!(sessions.is_token(&session, own, &of(first, 1)));
        for other in [of(first, 2), of(None, 1), String::new()] {
            assert!(!sessions.is_token(&session, own, &other));
        }
        assert!(!sessions.is_token(&session, Namespace(7), &of(first, 1)));
    }
}

//! Sessions of the page: who opened it, with which key, and until when.
//!
//! A session is a signed cookie; the server stores nothing of it, so any node of a store reads the cookies of the
//! others, as long as they have the same keys. The cookie holds two times and a random number, and a MAC under a key
//! that is derived from the caller's key. The key itself is not in it. A key that is taken out of the settings ends its
//! sessions.
//!
//! A session ends [`IDLE`] after the last page that was asked for, and [`LONGEST`] after its login. A logout ends it on
//! the node that gets it; another node learns of it when the cookie's time is over. Somebody who is not logged in has
//! a session too, an *anonymous* one: it is what the token of the login form belongs to, and on an open server the
//! tokens of all forms.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::model::time::UnixMs;
use crate::service::keys::{Caller, Keys};

/// How long a session lasts without a page being asked for.
pub const IDLE: Duration = Duration::from_secs(30 * 60);

/// How long a session lasts at most.
pub const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// The sessions that were ended by a logout and whose cookies could still be used, at most.
const MAX_ENDED: usize = 10_000;

const NONCE: usize = 16;
/// Start and end, eight bytes each, and the nonce.
const BODY: usize = 16 + NONCE;
const MAC: usize = 32;

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
    /// The signing key of each caller, in the order of the settings.
    callers: Vec<[u8; 32]>,
    /// The signing key of anonymous sessions.
    anonymous: [u8; 32],
    /// The sessions that were ended by a logout, and when their cookies end.
    ended: Mutex<HashMap<[u8; NONCE], UnixMs>>,
}

impl Sessions {
    /// Sessions under these keys. `secret` signs the sessions of a server without keys: they end with its process.
    pub fn new(keys: &Keys, secret: [u8; 32]) -> Self {
        let callers: Vec<[u8; 32]> =
            keys.hashes().iter().map(|hash| derived(hash, b"mainspring page session")).collect();
        let anonymous = match keys.is_open() {
            true => secret,
            // The nodes may list their keys in different orders.
            false => {
                let mut hashes = keys.hashes().to_vec();
                hashes.sort_unstable();
                derived(&Sha256::digest(hashes.concat()).into(), b"mainspring page visitor")
            }
        };
        Self { callers, anonymous, ended: Mutex::default() }
    }

    /// Opens a session; `nonce` is random.
    pub fn begin(&self, caller: Option<Caller>, now: UnixMs, nonce: [u8; NONCE]) -> Session {
        Session { caller, started_at: now, until: now.plus(IDLE), nonce }
    }

    /// The session of this cookie; `None` if it is over, ended by a logout, or signed by nobody known.
    pub fn read(&self, cookie: &str, now: UnixMs) -> Option<Session> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie).ok().filter(|bytes| bytes.len() == BODY + MAC)?;
        let (body, mac) = bytes.split_at(BODY);
        let mut signer = None;
        let signers = self.callers.iter().enumerate().map(|(index, key)| (Some(Caller(index)), key));
        for (caller, key) in signers.chain([(None, &self.anonymous)]) {
            if bool::from(derived(key, body).ct_eq(mac)) {
                signer = Some(caller);
            }
        }
        let ms = |at: usize| Some(UnixMs::new(i64::from_be_bytes(body[at..at + 8].try_into().ok()?)));
        let nonce = body[16..].try_into().ok()?;
        let session = Session { caller: signer?, started_at: ms(0)?, until: ms(8)?, nonce };
        let is_running = now < session.until && now < session.started_at.plus(LONGEST);
        (is_running && !self.has_ended(&session)).then_some(session)
    }

    /// The cookie of a session.
    pub fn cookie(&self, session: &Session) -> String {
        let mut body = Vec::with_capacity(BODY + MAC);
        body.extend(session.started_at.get().to_be_bytes());
        body.extend(session.until.get().to_be_bytes());
        body.extend(session.nonce);
        let mac = derived(self.signing_key(session), &body);
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

    /// The token that the forms of this session carry. Another site cannot know it.
    pub fn token(&self, session: &Session) -> String {
        let bound = [b"token ".as_slice(), &session.nonce].concat();
        URL_SAFE_NO_PAD.encode(derived(self.signing_key(session), &bound))
    }

    /// Whether this is the session's token. Compared in constant time.
    pub fn is_token(&self, session: &Session, presented: &str) -> bool {
        self.token(session).as_bytes().ct_eq(presented.as_bytes()).into()
    }

    fn signing_key(&self, session: &Session) -> &[u8; 32] {
        session.caller.and_then(|Caller(index)| self.callers.get(index)).unwrap_or(&self.anonymous)
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
        Sessions::new(&Keys::new(&server), [7; 32])
    }

    #[test]
    fn a_session_ends_when_nobody_asks_for_a_page_and_at_the_latest_after_its_longest_time() {
        let sessions = sessions(&["first-key-0123456789", "other-key-0123456789"]);
        let mut session = sessions.begin(Some(Caller(1)), NOW, [1; NONCE]);
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
        let cookie = here.cookie(&here.begin(Some(Caller(0)), NOW, [1; NONCE]));
        let caller = |node: &Sessions| node.read(&cookie, NOW).map(|session| session.caller);
        assert_eq!(caller(&sessions(&[other, one])), Some(Some(Caller(1))), "the same key in another place");
        assert_eq!(caller(&sessions(&[other])), None, "the key was taken out");
        assert_eq!(caller(&sessions(&[])), None);
        let visitor = here.cookie(&here.begin(None, NOW, [2; NONCE]));
        assert!(sessions(&[other, one]).read(&visitor, NOW).is_some());
        assert!(sessions(&[]).read(&visitor, NOW).is_none());
    }

    #[test]
    fn a_changed_cookie_and_an_ended_session_are_refused() {
        let sessions = sessions(&["first-key-0123456789"]);
        let session = sessions.begin(Some(Caller(0)), NOW, [1; NONCE]);
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
        let of = |caller, nonce| sessions.token(&sessions.begin(caller, NOW, [nonce; NONCE]));
        let session = sessions.begin(Some(Caller(0)), NOW, [1; NONCE]);
        assert!(sessions.is_token(&session, &of(Some(Caller(0)), 1)));
        for other in [of(Some(Caller(0)), 2), of(None, 1), String::new()] {
            assert!(!sessions.is_token(&session, &other));
        }
    }
}

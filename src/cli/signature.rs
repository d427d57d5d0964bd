//! Checks what Standard Webhooks puts on a delivery: an HMAC over id, timestamp and body.
//!
//! Written from the specification and apart from the code that signs, so that the one can find a mistake
//! of the other. <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::model::time::UnixMs;

/// How far a signature's timestamp may be from now, in seconds; beyond it, it may be a replay.
const TOLERANCE_S: i64 = 300;

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Signed with this secret, just now.
    Ok,
    /// Signed with this secret, but long ago or for the future.
    Stale,
    /// Signed with another secret, or changed on its way.
    Bad,
    /// Not signed.
    Missing,
}

impl Verdict {
    /// As it stands in a line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Stale => "stale",
            Self::Bad => "bad",
            Self::Missing => "missing",
        }
    }
}

/// Checks the signature of a delivery that arrived at `now`.
pub fn check(key: &[u8], headers: &HeaderMap, body: &[u8], now: UnixMs) -> Verdict {
    let header = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    let (Some(id), Some(timestamp), Some(signatures)) =
        (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"))
    else {
        return Verdict::Missing;
    };
    // A list, so that senders can change their secret; one good signature is enough.
    let good = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,")).any(|signature| {
        let (Ok(given), Ok(mut mac)) = (STANDARD.decode(signature), Hmac::<Sha256>::new_from_slice(key))
        else {
            return false;
        };
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        // Compares in constant time.
        mac.verify_slice(&given).is_ok()
    });
    let signed_at = timestamp.parse::<i64>().unwrap_or(0);
    match good {
        false => Verdict::Bad,
        true if (now.get() / 1000).abs_diff(signed_at) > TOLERANCE_S.unsigned_abs() => Verdict::Stale,
        true => Verdict::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"order":8841}"#;

    fn key() -> Vec<u8> {
        crate::model::target::secret_bytes(SECRET).unwrap()
    }

    /// Signed by the specification's own library.
    fn signed(at_s: i64, more: &str) -> HeaderMap {
        let signature = standardwebhooks::Webhook::new(SECRET).unwrap().sign("dlv_1", at_s, BODY).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "dlv_1".parse().unwrap());
        headers.insert("webhook-timestamp", at_s.to_string().parse().unwrap());
        headers.insert("webhook-signature", format!("{more}{signature}").parse().unwrap());
        headers
    }

    #[test]
    fn what_the_library_signs_is_ok_and_nothing_else_is() {
        let now = SystemClock.now();
        let at = now.get() / 1000;
        let headers = signed(at, "");
        standardwebhooks::Webhook::new(SECRET).unwrap().verify(BODY, &headers).unwrap();
        assert_eq!(check(&key(), &headers, BODY, now), Verdict::Ok);
        assert_eq!(
            check(&key(), &signed(at, "v2,xx v1,AAAA v1,!! "), BODY, now),
            Verdict::Ok,
            "one of a list"
        );
        assert_eq!(check(&key(), &headers, b"{}", now), Verdict::Bad, "another body");
        assert_eq!(check(b"another key", &headers, BODY, now), Verdict::Bad);
        let mut other = headers.clone();
        other.insert("webhook-id", "dlv_2".parse().unwrap());
        assert_eq!(check(&key(), &other, BODY, now), Verdict::Bad, "another id");
        let mut later = headers.clone();
        later.insert("webhook-timestamp", (at + 1).to_string().parse().unwrap());
        assert_eq!(check(&key(), &later, BODY, now), Verdict::Bad, "another timestamp");
        let mut bare = headers;
        bare.remove("webhook-signature");
        assert_eq!(check(&key(), &bare, BODY, now), Verdict::Missing);
    }

    #[test]
    fn an_old_signature_is_stale() {
        let now = UnixMs::new(1_800_000_000_000);
        for (at, verdict) in [
            (1_800_000_300, Verdict::Ok),
            (1_799_999_700, Verdict::Ok),
            (1_800_000_301, Verdict::Stale),
            (1_799_999_699, Verdict::Stale),
        ] {
            assert_eq!(check(&key(), &signed(at, ""), BODY, now), verdict, "{at}");
        }
    }
}

//! Checks the Standard Webhooks signature of a delivery, with the specification's own library: `receive` shows
//! what any other receiver would find, and shares no code with what signs.

use axum::http::HeaderMap;
use standardwebhooks::{HEADER_WEBHOOK_TIMESTAMP, Webhook, WebhookError};

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Signed with this secret, within five minutes of now.
    Ok,
    /// The signature's timestamp is more than five minutes from now: it may be a replay. Not checked further.
    Stale,
    /// Signed with another secret, or changed after it was signed.
    Bad,
    /// Not signed.
    Missing,
}

impl Verdict {
    /// The word in `receive`'s output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Stale => "stale",
            Self::Bad => "bad",
            Self::Missing => "missing",
        }
    }
}

/// Checks the signature of a delivery that arrives now, by the machine's clock.
pub fn check(secret: &Webhook, headers: &HeaderMap, body: &[u8]) -> Verdict {
    // The library subtracts the timestamp from now, which overflows for the lowest ones.
    if headers.get(HEADER_WEBHOOK_TIMESTAMP).is_some_and(|at| at.as_bytes().starts_with(b"-")) {
        return Verdict::Bad;
    }
    match secret.verify(body, headers) {
        Ok(()) => Verdict::Ok,
        Err(WebhookError::TimestampTooOldError | WebhookError::FutureTimestampError) => Verdict::Stale,
        Err(WebhookError::MissingHeader(_)) => Verdict::Missing,
        Err(_) => Verdict::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::model::time::UnixMs;
    use crate::sink::event;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"order":8841}"#;

    fn verdict(headers: &HeaderMap, body: &[u8]) -> Verdict {
        check(&Webhook::new(SECRET).unwrap(), headers, body)
    }

    /// As this service signs a delivery, `seconds` from now.
    fn signed(seconds: i64) -> HeaderMap {
        let at = UnixMs::new(SystemClock.now().get() + seconds * 1000);
        let signature = event::signature(SECRET, "dlv_1", at, BODY).unwrap();
        let at_s = (at.get() / 1000).to_string();
        let pairs =
            [("webhook-id", "dlv_1"), ("webhook-timestamp", &at_s), ("webhook-signature", &signature)];
        pairs.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = signed(0);
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn only_what_was_signed_with_this_secret_and_not_changed_is_ok() {
        assert_eq!(verdict(&signed(0), BODY), Verdict::Ok);
        let one = signed(0)["webhook-signature"].to_str().unwrap().to_owned();
        let list = with("webhook-signature", &format!("v2,xx v1,AAAA v1,!! {one}"));
        assert_eq!(verdict(&list, BODY), Verdict::Ok, "one of a list");
        assert_eq!(verdict(&signed(0), b"{}"), Verdict::Bad, "another body");
        assert_eq!(verdict(&signed(0), b"\xff"), Verdict::Bad, "a body that is not text");
        assert_eq!(verdict(&with("webhook-id", "dlv_2"), BODY), Verdict::Bad, "another id");
        let later = (SystemClock.now().get() / 1000 + 2).to_string();
        assert_eq!(verdict(&with("webhook-timestamp", &later), BODY), Verdict::Bad, "another timestamp");
        for timestamp in ["soon", "-1", "-9223372036854775808"] {
            assert_eq!(verdict(&with("webhook-timestamp", timestamp), BODY), Verdict::Bad, "{timestamp}");
        }
        let other = Webhook::new("whsec_AAAA").unwrap();
        assert_eq!(check(&other, &signed(0), BODY), Verdict::Bad, "another secret");
    }

    #[test]
    fn what_is_not_signed_has_no_signature_to_check() {
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut headers = signed(0);
            headers.remove(name);
            assert_eq!(verdict(&headers, BODY), Verdict::Missing, "{name}");
        }
    }

    #[test]
    fn an_old_signature_is_stale() {
        for (seconds, found) in
            [(-330, Verdict::Stale), (-270, Verdict::Ok), (270, Verdict::Ok), (330, Verdict::Stale)]
        {
            assert_eq!(verdict(&signed(seconds), BODY), found, "{seconds}");
        }
    }
}

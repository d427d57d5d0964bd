//! The request that a receiver gets: CloudEvents 1.0 in HTTP binary mode, signed according to Standard Webhooks.

use base64::Engine;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::{Delivery, Event};
use crate::model::target::secret_bytes;
use crate::model::time::UnixMs;

/// The `ce-source` of every event of a namespace.
pub fn source(namespace: &str) -> String {
    format!("/mainspring/{namespace}")
}

/// The headers of one attempt, without the static headers of the target. `at` is the time of the attempt.
pub fn headers(delivery: &Delivery, source: &str, at: UnixMs) -> Vec<(&'static str, String)> {
    let trace = delivery.trace.map(|trace| ("ce-traceparent", trace.to_string()));
    let always = [
        ("content-type", "application/json".into()),
        ("ce-specversion", "1.0".into()),
        ("ce-type", delivery.event.kind().into()),
        ("ce-source", source.into()),
        ("ce-id", delivery.id.clone()),
        ("ce-subject", delivery.timer.clone()),
        ("ce-time", at.rfc3339()),
        ("webhook-id", delivery.id.clone()),
        ("webhook-timestamp", at.get().div_euclid(1000).to_string()),
    ];
    let onward = delivery.onward.traceparent().map(|trace| ("traceparent", trace.to_string()));
    let of_timer = (delivery.event == Event::Fired).then(|| {
        [
            ("ce-dueat", delivery.due_at.rfc3339()),
            ("ce-attempt", delivery.attempt.to_string()),
            ("ce-generation", delivery.generation.0.to_string()),
        ]
    });
    always.into_iter().chain(of_timer.into_iter().flatten()).chain(trace).chain(onward).collect()
}

/// The `webhook-signature` header: HMAC-SHA256 over `id.timestamp.body`, base64, version 1.
pub fn signature(secret: &str, delivery_id: &str, at: UnixMs, body: &[u8]) -> Option<String> {
    let key = secret_bytes(secret).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(format!("{delivery_id}.{}.", at.get().div_euclid(1000)).as_bytes());
    mac.update(body);
    Some(format!("v1,{}", base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standard_webhooks_library_accepts_the_signature() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let oracle = standardwebhooks::Webhook::new(secret).unwrap();
        let now = crate::clock::Clock::now(&crate::clock::SystemClock);
        let body = br#"{"order":8841}"#;
        let mut headers = http::HeaderMap::new();
        headers.insert("webhook-id", "dlv_1".parse().unwrap());
        headers.insert("webhook-timestamp", (now.get() / 1000).to_string().parse().unwrap());
        headers.insert("webhook-signature", signature(secret, "dlv_1", now, body).unwrap().parse().unwrap());
        oracle.verify(body, &headers).unwrap();
        assert!(oracle.verify(b"{}", &headers).is_err());
    }
}

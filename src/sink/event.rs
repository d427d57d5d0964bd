//! What a receiver gets: the attributes of CloudEvents 1.0; over HTTP as headers (binary mode), signed according to
//! Standard Webhooks.

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

/// The CloudEvents attributes of one attempt by their bare names. `at` is the time of the attempt.
pub fn attributes(delivery: &Delivery, source: &str, at: UnixMs) -> Vec<(&'static str, String)> {
    let always = [
        ("specversion", "1.0".into()),
        ("type", delivery.event.kind().into()),
        ("source", source.into()),
        ("id", delivery.id.clone()),
        ("subject", delivery.timer.clone()),
        ("time", at.rfc3339()),
    ];
    let of_timer = (delivery.event == Event::Fired).then(|| {
        [
            ("dueat", delivery.due_at.rfc3339()),
            ("attempt", delivery.attempt.to_string()),
            ("generation", delivery.generation.0.to_string()),
        ]
    });
    let trace = delivery.trace.map(|trace| ("traceparent", trace.to_string()));
    always.into_iter().chain(of_timer.into_iter().flatten()).chain(trace).collect()
}

/// The HTTP headers of one attempt, without the static headers of the target.
pub fn headers(delivery: &Delivery, source: &str, at: UnixMs) -> Vec<(String, String)> {
    let attributes = attributes(delivery, source, at).into_iter();
    let others = [
        ("content-type", "application/json".into()),
        ("webhook-id", delivery.id.clone()),
        ("webhook-timestamp", at.get().div_euclid(1000).to_string()),
    ];
    let onward = delivery.onward.traceparent().map(|trace| ("traceparent", trace.to_string()));
    let others = others.into_iter().chain(onward).map(|(name, value)| (name.to_owned(), value));
    attributes.map(|(name, value)| (format!("ce-{name}"), value)).chain(others).collect()
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

//! What a receiver gets: the attributes of CloudEvents 1.0; over HTTP as headers (binary mode), signed according to
//! Standard Webhooks.

use std::borrow::Cow;

use base64::Engine;
use bytes::BytesMut;
use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;

use super::{Delivery, Event};
use crate::model::target::{Webhook, secret_keys};
use crate::model::time::UnixMs;

/// An attribute of CloudEvents.
pub struct Attribute<'a> {
    /// Its bare name.
    pub name: &'static str,
    /// Its value.
    pub value: Cow<'a, str>,
    /// Its name over HTTP.
    header: HeaderName,
}

macro_rules! attribute {
    ($name:literal, $value:expr) => {
        Attribute {
            name: $name,
            value: $value.into(),
            header: const { HeaderName::from_static(concat!("ce-", $name)) },
        }
    };
}

/// The attributes of one attempt. `at` is the time of the attempt.
pub fn attributes(delivery: &Delivery, at: UnixMs) -> Vec<Attribute<'_>> {
    // When it happened: the same at each try.
    let at = if matches!(delivery.event, Event::Told(_)) { delivery.due_at } else { at };
    let mut all = Vec::with_capacity(12);
    all.extend([
        attribute!("specversion", "1.0"),
        attribute!("type", delivery.event.kind()),
        attribute!("source", format!("/mainspring/{}", delivery.sender.name)),
        attribute!("id", &delivery.id),
        attribute!("subject", &delivery.subject),
        attribute!("time", at.rfc3339()),
    ]);
    if matches!(delivery.event, Event::Fired | Event::Merged) {
        all.push(attribute!("dueat", delivery.due_at.rfc3339()));
        all.push(attribute!("attempt", delivery.attempt.to_string()));
    }
    // Each member of a merged set has its own, in the body.
    if delivery.event == Event::Fired {
        all.push(attribute!("generation", delivery.generation.0.to_string()));
    }
    all.extend(delivery.schedule.as_ref().map(|id| attribute!("schedule", id)));
    all.extend(delivery.nominal.map(|at| attribute!("nominal", at.rfc3339())));
    all.extend(delivery.trace.map(|trace| attribute!("traceparent", trace.to_string())));
    all
}

/// What CloudEvents' binding for HTTP has percent-encoded in the values of headers; besides, everything that is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// The headers of one attempt: the static ones of the target, and over them those of the event, whose attributes are
/// percent-encoded.
pub fn headers(hook: &Webhook, delivery: &Delivery, at: UnixMs) -> HeaderMap {
    let mut headers = Headers { map: HeaderMap::with_capacity(24), values: BytesMut::with_capacity(1024) };
    for (name, value) in &hook.headers {
        // It was checked when the timer was registered.
        if let Ok(name) = HeaderName::try_from(name) {
            headers.set(name, value);
        }
    }
    for Attribute { value, header, .. } in attributes(delivery, at) {
        headers.set_parts(header, utf8_percent_encode(&value, ENCODED));
    }
    headers.set(CONTENT_TYPE, JSON);
    headers.set(const { HeaderName::from_static("webhook-id") }, &delivery.id);
    let timestamp = at.get().div_euclid(1000).to_string();
    headers.set(const { HeaderName::from_static("webhook-timestamp") }, &timestamp);
    if let Some(trace) = delivery.onward.traceparent() {
        headers.set(const { HeaderName::from_static("traceparent") }, &trace.to_string());
    }
    let sign = |secret| signature(secret, &delivery.id, at, &delivery.data);
    if let Some(signature) = hook.secret.as_deref().and_then(sign) {
        headers.set(const { HeaderName::from_static("webhook-signature") }, &signature);
    }
    headers.map
}

/// Headers whose values stand in one buffer: neither they nor the copies that the client makes of them are allocated one by
/// one.
struct Headers {
    map: HeaderMap,
    values: BytesMut,
}

impl Headers {
    fn set(&mut self, name: HeaderName, value: &str) {
        self.set_parts(name, [value]);
    }

    fn set_parts<'a>(&mut self, name: HeaderName, value: impl IntoIterator<Item = &'a str>) {
        value.into_iter().for_each(|part| self.values.extend_from_slice(part.as_bytes()));
        // Those of callers were checked when the timer was registered.
        if let Ok(value) = HeaderValue::from_maybe_shared(self.values.split().freeze()) {
            self.map.insert(name, value);
        }
    }
}

/// The media type of [`structured`].
pub const STRUCTURED: &str = "application/cloudevents+json";

/// One CloudEvent as JSON, for brokers whose messages have no place for attributes. `body` is JSON.
pub fn structured(attributes: &[(&'static str, String)], body: &[u8]) -> Vec<u8> {
    let mut event = vec![b'{'];
    let attributes = attributes.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in attributes.chain([("datacontenttype", JSON)]) {
        event.extend_from_slice(format!("\"{name}\":{},", serde_json::Value::from(value)).as_bytes());
    }
    event.extend_from_slice(b"\"data\":");
    event.extend_from_slice(body);
    event.push(b'}');
    event
}

/// What the payload is.
const JSON: &str = "application/json";

/// The `webhook-signature` header: HMAC-SHA256 over `id.timestamp.body`, base64, version 1; with two secrets one for each, a
/// space between them.
pub fn signature(secret: &str, delivery_id: &str, at: UnixMs, body: &[u8]) -> Option<String> {
    let sign = |key: Vec<u8>| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
        mac.update(format!("{delivery_id}.{}.", at.get().div_euclid(1000)).as_bytes());
        mac.update(body);
        let code = base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
        Some(format!("v1,{code}"))
    };
    let all: Option<Vec<String>> = secret_keys(secret).ok()?.into_iter().map(sign).collect();
    Some(all?.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structured_event_is_read_by_the_official_sdk() {
        use cloudevents::AttributesReader;
        let attributes =
            [("specversion", "1.0"), ("type", "t"), ("source", "/s"), ("id", "i"), ("dueat", "a \"b\" ü")];
        let attributes = attributes.map(|(name, value)| (name, value.to_owned()));
        let event: cloudevents::Event =
            serde_json::from_slice(&structured(&attributes, br#"{"order":[1]}"#)).unwrap();
        assert_eq!((event.id(), event.ty(), event.datacontenttype()), ("i", "t", Some("application/json")));
        assert_eq!(event.extension("dueat").unwrap().to_string(), "a \"b\" ü");
        let data: serde_json::Value = event.data().unwrap().clone().try_into().unwrap();
        assert_eq!(data, serde_json::json!({"order": [1]}));
    }

    /// The vector that the libraries of Standard Webhooks test themselves with.
    #[test]
    fn the_signature_is_that_of_the_published_vector() {
        let (secret, id) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek");
        let sign =
            |secret: &str| signature(secret, id, UnixMs::new(1_614_265_330_999), br#"{"test": 2432232314}"#);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(secret).as_deref(), Some(expected));
        assert_eq!(sign(&secret["whsec_".len()..]).as_deref(), Some(expected), "without the prefix");
    }

    #[test]
    fn with_two_secrets_a_library_that_has_either_accepts_it() {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2VjcmV0IG51bWJlciB0d28="];
        let now = crate::clock::Clock::now(&crate::clock::SystemClock);
        let both = signature(&secrets.join(" "), "dlv_1", now, b"{}").unwrap();
        for (n, secret) in secrets.into_iter().enumerate() {
            let oracle = standardwebhooks::Webhook::new(secret).unwrap();
            let verify = |signatures: &str| {
                let mut headers = http::HeaderMap::new();
                headers.insert("webhook-id", "dlv_1".parse().unwrap());
                headers.insert("webhook-timestamp", (now.get() / 1000).to_string().parse().unwrap());
                headers.insert("webhook-signature", signatures.parse().unwrap());
                oracle.verify(b"{}", &headers)
            };
            verify(&both).unwrap();
            let other = signature(secrets[1 - n], "dlv_1", now, b"{}").unwrap();
            assert!(verify(&other).is_err());
        }
    }

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

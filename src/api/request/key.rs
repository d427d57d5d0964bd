//! A key in a request, checked.

use serde::Deserialize;

use super::{Refused, read};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::model::destination::is_name;
use crate::model::key::{KeyHash, Scope};
use crate::model::time::UnixMs;
use crate::service::keys::certificate_hash;

/// The namespace that is all of them.
pub const ALL: &str = "*";

/// A key to make.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Key)]
pub struct KeyIn {
    /// What it is called: who uses it, and for what.
    #[schema(value_type = schema::KeyName)]
    name: Option<String>,
    /// The namespace in which it holds, or `*` for all. Default: the one that the call is about.
    #[schema(value_type = Option<schema::NamespaceOrAll>)]
    namespace: Option<String>,
    /// What it may do; each scope includes those before it, so one is enough.
    #[schema(value_type = schema::Scopes)]
    scopes: Option<Vec<String>>,
    /// From when on it is refused. Default: it does not expire.
    #[schema(value_type = Option<schema::Instant>)]
    expires_at: Option<String>,
    /// A client's certificate in PEM, which becomes the key: whoever shows it in the handshake for TLS needs no other.
    /// `server.tls_client_ca` must have its authority. Default: the service makes a key.
    #[schema(value_type = Option<schema::Pem>)]
    certificate: Option<String>,
}

/// What a key shall be.
#[derive(Debug, PartialEq, Eq)]
pub struct WantedKey {
    /// What it is called.
    pub name: String,
    /// The name of the namespace that it is to be of, or [`ALL`].
    pub namespace: Option<String>,
    /// What it may do.
    pub scope: Scope,
    /// From when on it is refused.
    pub expires_at: Option<UnixMs>,
    /// The SHA-256 of the certificate that it is to be.
    pub certificate: Option<KeyHash>,
}

/// Reads and checks a key. `now` is the store's time.
pub fn key(text: &[u8], now: UnixMs) -> Result<WantedKey, Refused> {
    let KeyIn { name, namespace, scopes, expires_at, certificate } = read(text, "")?;
    let mut errors = Vec::new();
    let mut wrong =
        |pointer: String, code, detail: String| errors.push(FieldError::new(pointer, code, detail));
    match name.as_deref() {
        None => wrong("/name".into(), "missing", "say who uses it, such as `shop-backend`".into()),
        Some(name) if !is_name(name) => {
            wrong("/name".into(), "bad_name", "1 to 64 of A-Z a-z 0-9 . _ -, not a dot first".into());
        }
        Some(_) => {}
    }
    let scopes = scopes.unwrap_or_default();
    if scopes.is_empty() {
        let detail = "say what it may do: [\"view\"], [\"register\"], [\"operate\"] or [\"admin\"]".into();
        wrong("/scopes".into(), "missing", detail);
    }
    let mut scope = Scope::View;
    for (n, word) in scopes.iter().enumerate() {
        match Scope::from_word(word) {
            Some(one) => scope = scope.max(one),
            None => {
                let words = Scope::ALL.map(Scope::word).join(", ");
                wrong(format!("/scopes/{n}"), "unknown_scope", format!("one of {words}"));
            }
        }
    }
    let expires_at = match expires_at.as_deref().map(UnixMs::parse_rfc3339) {
        Some(Ok(at)) if at <= now => {
            wrong(
                "/expires_at".into(),
                "passed",
                "it lies in the past; leave it out, or give a later time".into(),
            );
            None
        }
        Some(Ok(at)) => Some(at),
        Some(Err(why)) => {
            wrong("/expires_at".into(), "bad_time", why.to_string());
            None
        }
        None => None,
    };
    let certificate = certificate.and_then(|pem| {
        let hash = certificate_hash(pem.as_bytes());
        if hash.is_none() {
            wrong(
                "/certificate".into(),
                "bad_certificate",
                "one certificate in PEM (-----BEGIN CERTIFICATE-----)".into(),
            );
        }
        hash
    });
    match name {
        Some(name) if errors.is_empty() => Ok(WantedKey { name, namespace, scope, expires_at, certificate }),
        _ => Err(Refused::Fields(errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs::new(1_800_000_000_000);

    #[test]
    fn a_key_has_the_largest_of_its_scopes() {
        let read = |text: &str| key(text.as_bytes(), NOW).expect("is right");
        let wanted = read(r#"{"name":"shop","scopes":["view","operate"]}"#);
        let expected = WantedKey {
            name: "shop".into(),
            namespace: None,
            scope: Scope::Operate,
            expires_at: None,
            certificate: None,
        };
        assert_eq!(wanted, expected);
        let wanted =
            read(r#"{"name":"ops","namespace":"*","scopes":["admin"],"expires_at":"2100-01-01T00:00:00Z"}"#);
        assert!(
            wanted.namespace.as_deref() == Some(ALL)
                && wanted.scope == Scope::Admin
                && wanted.expires_at.is_some()
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, pointer, code) in [
            (r#"{"scopes":["view"]}"#, "/name", "missing"),
            (r#"{"name":"a b","scopes":["view"]}"#, "/name", "bad_name"),
            (r#"{"name":"a"}"#, "/scopes", "missing"),
            (r#"{"name":"a","scopes":[]}"#, "/scopes", "missing"),
            (r#"{"name":"a","scopes":["view","root"]}"#, "/scopes/1", "unknown_scope"),
            (r#"{"name":"a","scopes":["view"],"certificate":"x"}"#, "/certificate", "bad_certificate"),
            (r#"{"name":"a","scopes":["view"],"expires_at":"tomorrow"}"#, "/expires_at", "bad_time"),
            (
                r#"{"name":"a","scopes":["view"],"expires_at":"2000-01-01T00:00:00Z"}"#,
                "/expires_at",
                "passed",
            ),
        ] {
            let Err(Refused::Fields(errors)) = key(text.as_bytes(), NOW) else { panic!("{text}") };
            let found: Vec<_> = errors.iter().map(|error| (error.pointer.as_str(), error.code)).collect();
            assert_eq!(found, [(pointer, code)], "{text}");
        }
    }
}

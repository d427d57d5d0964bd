//! The key of a call, `Authorization: Bearer` or the certificate of its connection, checked against the keys that this node
//! knows ([`Keys`]).

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};

use super::problem::Problem;
pub use crate::service::keys::Caller;
use crate::service::keys::{Access, Keys, local_only};
use crate::service::origin::Peer;

/// Whether this is no call that another site's page makes a browser send. A browser shows a client's certificate by itself,
/// which it does not do with a key.
fn is_of_no_other_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (text("sec-fetch-site"), text("origin"), text("host")) {
        (Some(site), ..) => matches!(site, "same-origin" | "none"),
        (None, Some(origin), host) => host.is_some_and(|host| origin == format!("https://{host}")),
        (None, None, _) => true,
    }
}

/// The keys, and the problems that a call without the right one is answered with.
#[derive(Clone)]
pub struct Auth(Arc<Keys>);

impl Auth {
    /// Checks calls against these keys.
    pub const fn new(keys: Arc<Keys>) -> Self {
        Self(keys)
    }

    /// Checks `Authorization: Bearer`, and without it the certificate that the client has shown. An open server answers its own machine; one that does not know yet whether it is
    /// open answers nobody.
    pub async fn check(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Caller, Problem> {
        match self.0.access() {
            Access::Unknown => return Err(Problem::starting()),
            Access::Open => {
                return local_only(headers)
                    .map(|()| Caller::ANYBODY)
                    .map_err(|why| Problem::new(StatusCode::FORBIDDEN, why.code, why.detail));
            }
            Access::Keyed => {}
        }
        let presented = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")));
        let certificate = peer.and_then(|peer| peer.certificate.as_ref());
        if let (None, Some(certificate)) = (headers.get(header::AUTHORIZATION), certificate) {
            if !is_of_no_other_site(headers) {
                let detail = "a browser has sent this call for another site's page, with the certificate that it shows everywhere";
                return Err(Problem::new(StatusCode::FORBIDDEN, "foreign_origin", detail));
            }
            return self.0.find_certificate(certificate).await.ok_or_else(|| {
                let detail = "this certificate is no key here, or has expired; `mainspring key create --certificate` makes it one";
                Problem::new(StatusCode::UNAUTHORIZED, "unknown_key", detail)
            });
        }
        let Some(presented) = presented else {
            let detail = "this server wants `Authorization: Bearer <key>`";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "no_key", detail));
        };
        self.0.find(presented).await.ok_or_else(not_in_force)
    }

    /// Whether a call that this caller began some time ago may go on.
    pub fn still(&self, caller: Caller) -> Result<(), Problem> {
        if self.0.holds(caller) { Ok(()) } else { Err(not_in_force()) }
    }

    /// Charges `timers` calls to the caller's key; 429 when its quota of this second is spent.
    pub fn charge(&self, caller: &Caller, timers: usize) -> Result<(), Problem> {
        self.0.charge(*caller, timers).map_err(Problem::over)
    }
}

fn not_in_force() -> Problem {
    let detail = "this key is not known here, or has expired";
    Problem::new(StatusCode::UNAUTHORIZED, "unknown_key", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_counts_for_programs_and_for_pages_of_this_server() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), header::HeaderValue::from_static(value))
            });
            is_of_no_other_site(&headers.collect())
        };
        let (site, origin, host) = ("sec-fetch-site", "origin", ("host", "m.example"));
        for own in [
            &[host][..],
            &[host, (site, "same-origin")],
            &[host, (site, "none")],
            &[host, (origin, "https://m.example")],
        ] {
            assert!(asked(own), "{own:?}");
        }
        for foreign in [
            &[host, (site, "cross-site")][..],
            &[host, (site, "same-site"), (origin, "https://m.example")],
            &[host, (origin, "https://evil.example")],
            &[host, (origin, "null")],
            &[(origin, "https://m.example")],
        ] {
            assert!(!asked(foreign), "{foreign:?}");
        }
    }
}

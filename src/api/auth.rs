//! The key of a call, `Authorization: Bearer` or the certificate of its connection, checked against the keys that this node
//! knows ([`Keys`]).

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};

use super::problem::Problem;
pub use crate::service::keys::Caller;
use crate::service::keys::{Access, Keys, local_only};
use crate::service::origin::Peer;

/// The keys, and the problems that a call without the right one is answered with.
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
            return self.0.find_certificate(certificate).await.ok_or_else(|| {
                let detail = "this certificate is no key here, or has expired; `mainspring key create --certificate` makes it one";
                Problem::new(StatusCode::UNAUTHORIZED, "unknown_key", detail)
            });
        }
        let Some(presented) = presented else {
            let detail = "this server wants `Authorization: Bearer <key>`";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "no_key", detail));
        };
        self.0.find(presented).await.ok_or_else(|| {
            Problem::new(
                StatusCode::UNAUTHORIZED,
                "unknown_key",
                "this key is not known here, or has expired",
            )
        })
    }

    /// Charges `timers` calls to the caller; 429 when its quota of this second is spent.
    pub fn charge(&self, caller: &Caller, timers: usize) -> Result<(), Problem> {
        self.0.charge(*caller, timers).map_err(|why| {
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, why.code, why.detail);
            match why.retry_after {
                Some(seconds) => problem.retry_after(seconds),
                None => problem,
            }
        })
    }
}
